"""What the level reads and writes: a generator by its name, as module:attribute, or a file of any known family.

The weights of the small networks that come with likewise, and a card for each with data, recipe, licence and figures,
are in likewise/weights; tools/train_generators.py made them.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

import likewise
from likewise.distributions.formats import Network
from likewise.distributions.formats.biggan import BigGANDeep
from likewise.distributions.formats.decoders import DCGAN, VAE, ProGAN, UpsamplingDCGAN
from likewise.distributions.formats.snapshot import is_snapshot, read_snapshot
from likewise.distributions.formats.stylegan import StyleGAN2, StyleGAN3, StyleModule
from likewise.distributions.generator import Generator
from likewise.distributions.harvesting import FOLDERS
from likewise.distributions.latents import Latent, Normal, TruncatedNormal, Uniform
from likewise.errors import FileError, InputError, LikewiseError
from likewise.inputs import GENERATORS
from likewise.nn.pretrained import as_state, read_state
from likewise.store import checkpoint

CLASS = "distributions.Generator"
"""What a checkpoint of likewise that holds a generator calls itself."""
FAMILIES: dict[str, type[Network]] = {
    net.family: net for net in (StyleGAN3, StyleGAN2, BigGANDeep, ProGAN, UpsamplingDCGAN, VAE, DCGAN)
}
"""The networks whose weights are read; the first whose signs all occur among the keys is taken."""
LATENTS = {kind.__name__: kind for kind in (Normal, Uniform, TruncatedNormal)}
OPTIONS = ("psi", "latent", "space", "name", "device", "batch")
"""What every family takes, besides the settings of its own."""
HIDDEN = 256
"""Features between the latent and the first map of the generators that come with likewise."""
_NAME = re.compile(r"(?P<module>[^:]+|[A-Za-z]:[\\/][^:]+):(?P<attribute>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)")


def load(source: Any, *, family: str | None = None, **options: Any) -> Generator:
    """Load a generator: by name, as module:attribute, from a file, or from weights at hand.

    Nothing in a file is run. `module:attribute` imports a module and so runs its code: name only what you trust.

    Parameters
    ----------
    source : str, Path, Mapping or Module
        `fashion` and `fashion-vae` come with likewise. `module:attribute` (or `file.py:attribute`) is imported from the
        current folder or Python's path: a Generator, a module with a `latent`, or a function without arguments that
        gives one. A file may be a checkpoint of `save`, a snapshot of StyleGAN2-ada-pytorch or StyleGAN3 (.pkl, of
        which G_ema is taken), or weights (.pth, .pt, .bin, .safetensors). A state dict, and a module with StyleGAN's
        official `mapping` and `synthesis`, are taken as they are.
    family : str, optional
        The family of the weights, where their keys do not tell: stylegan3, stylegan2, biggan_deep, progan,
        upsampling_dcgan, vae, dcgan.
    **options
        For weights: `psi` truncates as the family does and composes with ρ [Polarity C.3], `latent` replaces the
        family's, `space`, `name`, `device` and `batch` are those of `Generator`; `part` names the network of a
        snapshot. What weights do not hold must be given, and is never guessed: `strides`, `slope` and, where they are
        not 0, `paddings` and `extras` (dcgan, one entry a convolution; vae by keys decoder.{i}, with `output`);
        `slope` and, with classes, `latent_first` (upsampling_dcgan); `clamp` and `rate` (stylegan2), with `cutoff`,
        `scale`, `upsampling`, `margin` (stylegan3): a snapshot says those. May be given: `kinds`, `colours` (dcgan,
        vae), `noise` (stylegan2: const, none or random).

    Returns
    -------
    Generator
        Images (n, c, h, w) in [0, 1], with the latent that the family was trained with, its classes, and the spaces
        "pixel", "preactivation" and, for style generators, "style".

    Raises
    ------
    FileError
        Where a file is missing, damaged, would run code, or fits no family.
    InputError
        Where the name means nothing, or an option is not one of the family's.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.distributions.load("fashion")
    Generator(likewise-fashion, Normal(dim=24), space pixel)
    """
    if isinstance(source, nn.Module):
        return _generator(StyleModule(source), {"name": family or "module", **options})
    if isinstance(source, Mapping):
        return _from_weights(as_state(source), family, options)
    text = str(source)
    if text in GENERATORS or (_NAME.fullmatch(text) and not Path(text).exists()):
        if options:
            raise InputError(f"{next(iter(options))}: only weights take options, got {text}")
        return pretrained(text) if text in GENERATORS else _as_generator(load_object(text), text)
    path = Path(text)
    if not path.exists():
        raise FileError(f"{text}: no such file, and not the module:attribute of a generator")
    if path.suffix.lower() == ".py":
        raise InputError(f"generator: {text} is a program; name what is in it, {text}:attribute")
    if _is_checkpoint(path):
        return _from_checkpoint(path, family, options)
    if path.is_file() and is_snapshot(path):
        return _from_snapshot(path, family, options)
    state = read_state(path)
    try:
        return _from_weights(state, family, {"name": path.stem, **options})
    except InputError as error:
        raise FileError(f"{path}: {str(error).removeprefix('state: ')}") from None


def save(generator: Generator, path: str | Path) -> None:
    """Write a generator of a known family to one file of tensors and JSON, which `load` reads.

    Parameters
    ----------
    generator : Generator
        One that `load` made from weights.
    path : str or Path
        The file, `.safetensors`.

    Returns
    -------
    None

    Raises
    ------
    InputError
        Where the network is of no known family.

    Examples
    --------
    >>> import likewise as lw
    >>> import tempfile, torch
    >>> state = {"fc3.weight": torch.ones(8, 2), "fc3.bias": torch.zeros(8)}
    >>> state |= {"fc4.weight": torch.ones(16, 8), "fc4.bias": torch.zeros(16)}
    >>> generator = lw.distributions.load(state)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lw.distributions.save(generator, f"{folder}/vae.safetensors")
    ...     lw.distributions.load(f"{folder}/vae.safetensors").digest == generator.digest
    True
    """
    net = generator.net
    if not isinstance(net, Network) or net.family not in FAMILIES:
        raise InputError(
            f"generator: {generator.name} is of no known family, so it cannot be saved; save its weights yourself and "
            "name it as module:attribute"
        )
    about = {"family": net.family, "settings": net.settings, "name": generator.name, "psi": generator.psi}
    about["latent"] = generator.latent.to_dict()
    arrays = {key: value.detach().cpu().numpy() for key, value in net.state_dict().items()}
    whole = {"format": checkpoint.FORMAT, "likewise": likewise.__version__, "class": CLASS, "header": about}
    checkpoint.write(path, arrays, whole)


def pretrained(name: str = "fashion", *, device: str | torch.device | None = None) -> Generator:
    """A generator that comes with likewise.

    Parameters
    ----------
    name : {"fashion", "fashion-vae"}, default "fashion"
        A GAN of clothes, or the VAE that it began as; 24 latent coordinates, 28 × 28 grey images in [0, 1].
    device : str or torch.device, optional
        Where it runs.

    Returns
    -------
    Generator
        With normal latents.

    Raises
    ------
    InputError
        Where there is no generator of this name.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.distributions.pretrained("fashion").draw(2).shape
    torch.Size([2, 1, 28, 28])
    """
    if name not in GENERATORS:
        raise InputError(f"name: expected one of {', '.join(GENERATORS)}, got {name!r}")
    arrays, header = read_shipped(name)
    net = fill(decoder(header["dim"], header["channels"]), arrays, "decoder")
    return Generator(net, Normal(header["dim"]), name=f"likewise-{name}", device=device)


def fashion_features(*, device: str | torch.device | None = None) -> nn.Sequential:
    """The network that measures images of clothes: (n, 1, 28, 28) in [0, 1] → features (n, 64).

    Parameters
    ----------
    device : str or torch.device, optional
        Where it runs.

    Returns
    -------
    Module
        For `features=` of `compare` and `sweep`, and as a space of `Generator`.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.distributions.fashion_features()(lw.distributions.pretrained().draw(2)).shape
    torch.Size([2, 64])
    """
    arrays, header = read_shipped("fashion-features")
    net = fill(features(header["size"]), arrays, "features").to(device)
    net.name = "likewise-fashion-lenet"  # type: ignore[assignment]
    return net


# ----------------------------------------------------------------------------------------------------------- weights


def recognise(state: Mapping[str, Tensor]) -> str:
    """The family whose keys these are; an InputError says which families there are where none fits."""
    for family, net in FAMILIES.items():
        if all(any(re.fullmatch(sign, key) for key in state) for sign in net.signs):
            return family
    some = ", ".join(list(state)[:3]) + (" …" if len(state) > 3 else "")
    raise InputError(
        f"family: the keys ({some or 'none'}) are those of no known family; name one of {', '.join(FAMILIES)}, "
        "or give the generator as module:attribute"
    )


def _from_weights(state: Mapping[str, Tensor], family: str | None, options: dict[str, Any]) -> Generator:
    family = recognise(state) if family is None else family
    if family not in FAMILIES:
        raise InputError(f"family: expected one of {', '.join(FAMILIES)}, got {family!r}")
    kind = FAMILIES[family]
    settings = _settings(kind._shaped, options)
    return _generator(kind.from_state(state, **settings), {"name": family, **options})


def _from_snapshot(path: Path, family: str | None, options: dict[str, Any]) -> Generator:
    """The generator of an official training's snapshot, its structure as it says itself."""
    net = read_snapshot(path, options.pop("part", "G_ema"))
    try:
        state = as_state(net.state())
        kind = FAMILIES[recognise(state)]
        if not issubclass(kind, StyleGAN2 | StyleGAN3) or family not in (None, kind.family):
            raise InputError(f"family: it holds a {kind.family}, and a {family or 'StyleGAN'} was expected")
        said = kind.read(net)
    except InputError as error:
        raise FileError(f"{path}: {str(error).removeprefix('state: ')}") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise FileError(f"{path}: its network is not one of the official code: {_line(error)}") from None
    return _from_weights(state, kind.family, {"name": path.stem, **said, **options})


def _settings(call: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options that are a family's own, taken out of all; one that is neither its own nor common is refused."""
    own = [p.name for p in inspect.signature(call).parameters.values() if p.kind is p.KEYWORD_ONLY]
    unknown = sorted(options.keys() - {*own, *OPTIONS})
    if unknown:
        raise InputError(f"{unknown[0]}: not an option; there are {', '.join([*OPTIONS, *own])}")
    return {name: options.pop(name) for name in own if name in options}


def _generator(net: Any, options: dict[str, Any]) -> Generator:
    """A network as a Generator with its own latent, classes, spaces and truncation."""
    psi = options.pop("psi", 1.0)
    latent = options.pop("latent", None) or net.latent
    if latent.dim != net.dim:
        raise InputError(f"latent: expected {net.dim} dimensions, got {latent.dim}")
    return Generator(net, latent, labels=net.labels, **options).truncated(psi)


# ------------------------------------------------------------------------------------------------------- checkpoints


def _is_checkpoint(path: Path) -> bool:
    """Whether a file is a checkpoint of likewise, by the notes in its header."""
    try:
        with safe_open(path, "numpy") as file:
            return "likewise" in (file.metadata() or {})
    except (SafetensorError, OSError):  # other weights, which say themselves what is wrong with them
        return False


def _from_checkpoint(path: Path, family: str | None, options: dict[str, Any]) -> Generator:
    """A generator that likewise wrote: one of `save`, or any registered class that is one."""
    arrays, whole = checkpoint.read(path)
    if whole.get("class") != CLASS:
        return _as_generator(checkpoint.load(path), str(path))
    if whole.get("format") != checkpoint.FORMAT:
        raise FileError(f"{path} is of format {str(whole.get('format'))[:20]}; this likewise reads {checkpoint.FORMAT}")
    try:
        about = whole["header"]
        if family not in (None, about["family"]):
            raise InputError(f"family: the file holds a {about['family']}, got {family!r}")
        state = {key: torch.from_numpy(value) for key, value in arrays.items()}
        density = dict(about["latent"])
        latent = LATENTS[density.pop("kind")](**density)
        kept = {"latent": latent, "name": str(about["name"]), "psi": float(about["psi"]), **about["settings"]}
        return _from_weights(state, about["family"], {**kept, **options})
    except LikewiseError as error:
        raise FileError(f"{path}: {error}") from None
    except Exception as error:  # the file is a stranger's: whatever its contents break is the file's fault
        raise FileError(f"{path} does not hold a generator: {_line(error)}") from error


# ----------------------------------------------------------------------------------------------------------- modules


def load_object(spec: str) -> Any:
    """What module:attribute names, imported from the current folder or Python's path, or from file.py:attribute."""
    match = _NAME.fullmatch(spec)
    if match is None:
        raise InputError(f"{spec!r}: expected module:attribute or file.py:attribute")
    named = _module(match["module"], spec)
    for name in match["attribute"].split("."):
        if not hasattr(named, name):
            raise InputError(f"{spec}: {match['module']} has no {match['attribute']}")
        named = getattr(named, name)
    return named


def _module(name: str, spec: str) -> Any:
    """A module by its file or its name; whatever its own code raises is told in one line."""
    file = Path(name).resolve() if name.endswith(".py") else None
    if file is not None and not file.is_file():
        raise FileError(f"{name}: no such file")
    # Under the name of its file and with its folder first on the path, as for a program that is started there: so its
    # objects can travel to worker processes.
    folder, called = (str(Path.cwd()), name) if file is None else (str(file.parent), file.stem)
    sys.path.insert(0, folder)
    try:
        importlib.invalidate_caches()
        module = importlib.import_module(called)
    except LikewiseError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (called == error.name or called.startswith(f"{error.name}.")):
            raise InputError(f"{spec}: there is no module {called} here or on Python's path") from None
        raise InputError(f"{spec}: {name} needs {error.name}, which is not installed") from error
    except Exception as error:  # it is the user's program that failed, in whatever way
        raise InputError(f"{spec}: importing {name} failed: {_line(error)}") from error
    finally:
        sys.path.remove(folder)
    if folder not in FOLDERS:
        FOLDERS.append(folder)
    if file is not None and Path(getattr(module, "__file__", None) or "").resolve() != file:
        raise InputError(f"{name}: a module called {called} is loaded already; rename the file")
    return module


def _as_generator(named: Any, spec: str) -> Generator:
    """A Generator as it is, a network with a declared latent made into one, or what a bare function gives."""
    made, declared = named, hasattr(named, "latent") and not isinstance(named, type)
    if isinstance(named, nn.Module) and not declared:
        raise InputError(
            f"{spec}: a module without a latent; wrap it, Generator(module, Normal(dim)), or set its .latent"
        )
    if callable(named) and not declared:
        try:
            inspect.signature(named).bind()
        except (TypeError, ValueError):
            raise InputError(f"{spec}: takes arguments; give a function without any that returns a Generator") from None
        try:
            made = named()
        except LikewiseError:
            raise
        except Exception as error:  # the user's own function
            raise InputError(f"{spec}: calling it failed: {_line(error)}") from error
    if isinstance(made, Generator):
        return made
    if callable(made) and isinstance(getattr(made, "latent", None), Latent):
        return Generator(made, made.latent, labels=getattr(made, "labels", None), name=spec)
    raise InputError(
        f"{spec}: expected a Generator, a network with a `latent`, or a function without arguments that gives one; "
        f"got {type(made).__name__}"
    )


def _line(error: BaseException) -> str:
    """An error's message in one line of bearable length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{type(error).__name__}: {text[:200]}"


# ------------------------------------------------------------------------------------------- networks that are shipped


def decoder(dim: int, channels: int, planes: int = 1) -> nn.Sequential:
    """A generator of 28 × 28 images: z → 256 → 7 × 7 → 14 × 14 → 28 × 28, normalised, a sigmoid last.

    Maps are enlarged by repeating pixels, then convolved: transposed convolutions leave a chequerboard.
    """
    c = channels
    return nn.Sequential(
        nn.Linear(dim, HIDDEN, bias=False),
        nn.BatchNorm1d(HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, c * 49, bias=False),
        nn.Unflatten(1, (c, 7, 7)),
        nn.BatchNorm2d(c),
        nn.ReLU(),
        *_enlarged(c, c // 2),
        *_enlarged(c // 2, c // 4),
        nn.Conv2d(c // 4, planes, 3, padding=1),
        nn.Sigmoid(),
    )


def _enlarged(into: int, out: int) -> list[nn.Module]:
    convolution = nn.Conv2d(into, out, 3, padding=1, bias=False)
    return [nn.Upsample(scale_factor=2), convolution, nn.BatchNorm2d(out), nn.ReLU()]


def features(size: int, planes: int = 1) -> nn.Sequential:
    """A LeNet without its last layer: images (n, 1, 28, 28) in [0, 1] → features (n, size), before their ReLU."""
    return nn.Sequential(
        nn.Conv2d(planes, 16, 5, padding=2),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(16, 32, 5),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 25, 128),
        nn.ReLU(),
        nn.Linear(128, size),
    )


@functools.cache
def read_shipped(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays and header of a file in likewise/weights."""
    return checkpoint.read(Path(likewise.__file__).parent / "weights" / f"{name}.safetensors")


def fill(net: nn.Sequential, arrays: dict[str, Any], part: str) -> nn.Sequential:
    """The network with the weights of a part of a file, for evaluation only."""
    state = {key.removeprefix(f"{part}."): value for key, value in arrays.items() if key.startswith(f"{part}.")}
    net.load_state_dict({key: torch.from_numpy(value.copy()) for key, value in state.items()})
    return net.eval().requires_grad_(False)
