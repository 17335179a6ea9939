"""What the level reads and writes: a generator by its name, as module:attribute, or a file of any known family."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from likewise import __version__
from likewise.distributions.formats import Network
from likewise.distributions.formats.biggan import BigGANDeep
from likewise.distributions.formats.decoders import DCGAN, VAE, ProGAN, UpsamplingDCGAN
from likewise.distributions.formats.onnx import OnnxNetwork
from likewise.distributions.formats.stylegan import StyleGAN2, StyleGAN3, StyleModule
from likewise.distributions.generator import Generator
from likewise.distributions.latents import Latent, Normal, TruncatedNormal, Uniform
from likewise.distributions.pretrained import pretrained
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
_NAME = re.compile(r"(?P<module>[^:]+|[A-Za-z]:[\\/][^:]+):(?P<attribute>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)")


def load(source: Any, *, family: str | None = None, **options: Any) -> Generator:
    """Load a generator: by name, as module:attribute, from a file, or from weights at hand.

    Nothing in a file is run. `module:attribute` imports a module and so runs its code: name only what you trust.

    Parameters
    ----------
    source : str, Path, Mapping or Module
        `fashion` and `fashion-vae` come with likewise. `module:attribute` (or `file.py:attribute`) is imported from the
        current folder or Python's path: a Generator, a module with a `latent`, or a function without arguments that
        gives one. A file may be a checkpoint of `save`, weights (.pth, .pt, .bin, .safetensors), or .onnx. A state
        dict, and a module with StyleGAN's official `mapping` and `synthesis`, are taken as they are.
    family : str, optional
        The family of the weights, where their keys do not tell: stylegan3, stylegan2, biggan_deep, progan,
        upsampling_dcgan, vae, dcgan.
    **options
        For weights and ONNX: `psi` truncates as the family does and composes with ρ [Polarity C.3], `latent` replaces
        the family's, `space`, `name`, `device` and `batch` are those of `Generator`. Settings that weights do not hold:
        `clamp` (stylegan2: where activations are cut off, None for nowhere); `kinds`, `strides`, `paddings`, `extras`
        (one entry a convolution), `slope`, `output`, `colours` (dcgan, vae); `slope`, `latent_first`
        (upsampling_dcgan); `dim`, `labels`, `black`, `white` (onnx).

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
            raise InputError(f"{next(iter(options))}: only weights and ONNX files take options, got {text}")
        return pretrained(text) if text in GENERATORS else _as_generator(load_object(text), text)
    path = Path(text)
    if not path.exists():
        raise FileError(f"{text}: no such file, and not the module:attribute of a generator")
    if path.suffix.lower() == ".py":
        raise InputError(f"generator: {text} is a program; name what is in it, {text}:attribute")
    if path.suffix.lower() == ".onnx":
        return _from_onnx(path, family, options)
    if _is_checkpoint(path):
        return _from_checkpoint(path, family, options)
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
    if getattr(net, "family", None) not in FAMILIES:
        raise InputError(
            f"generator: {generator.name} is of no known family, so it cannot be saved; save its weights yourself and "
            "name it as module:attribute"
        )
    about = {
        "family": net.family,  # type: ignore[attr-defined]
        "settings": net.settings,  # type: ignore[attr-defined]
        "latent": generator.latent.to_dict(),
        "name": generator.name,
        "psi": generator.psi,
    }
    arrays = {key: value.detach().cpu().numpy() for key, value in net.state_dict().items()}  # type: ignore[attr-defined]
    whole = {"format": checkpoint.FORMAT, "likewise": __version__, "class": CLASS, "header": about}
    checkpoint.write(path, arrays, whole)


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


def _from_onnx(path: Path, family: str | None, options: dict[str, Any]) -> Generator:
    if family not in (None, "onnx"):
        raise InputError(f"family: {path} is an ONNX file, got {family!r}")
    net = OnnxNetwork(path, **_settings(OnnxNetwork, options))
    return _generator(net, {"latent": Normal(net.dim), "name": path.stem, **options})


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
    """Whether a file is a checkpoint of likewise, by its first bytes."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 2 <= length <= checkpoint.MOST_HEADER:
                return False
            return "likewise" in json.loads(stream.read(length)).get("__metadata__", {})
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, AttributeError, TypeError, RecursionError):
        return False


def _from_checkpoint(path: Path, family: str | None, options: dict[str, Any]) -> Generator:
    """A generator that likewise wrote: one of `save`, or any registered class that is one."""
    arrays, whole = checkpoint.read(path)
    if whole.get("class") != CLASS:
        return _as_generator(checkpoint.load(path), str(path))
    if whole.get("format") != checkpoint.FORMAT:
        raise FileError(f"{path} is of format {str(whole.get('format'))[:20]}; this likewise reads {checkpoint.FORMAT}")
    try:
        return _restore(arrays, whole["header"], family, options)
    except LikewiseError as error:
        raise FileError(f"{path}: {error}") from None
    except Exception as error:  # the file is a stranger's: whatever its contents break is the file's fault
        raise FileError(f"{path} does not hold a generator: {_line(error)}") from error


def _restore(arrays: dict[str, Any], about: dict[str, Any], family: str | None, options: dict[str, Any]) -> Generator:
    if family not in (None, about["family"]):
        raise InputError(f"family: the file holds a {about['family']}, got {family!r}")
    state = {key: torch.from_numpy(value) for key, value in arrays.items()}
    density = dict(about["latent"])
    latent = LATENTS[density.pop("kind")](**density)
    kept = {"latent": latent, "name": str(about["name"]), "psi": float(about["psi"]), **about["settings"]}
    return _from_weights(state, about["family"], {**kept, **options})


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
    try:
        if name.endswith(".py"):
            return _from_file(Path(name))
        with _first_on_path(Path.cwd()):
            importlib.invalidate_caches()
            return importlib.import_module(name)
    except LikewiseError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise InputError(f"{spec}: there is no module {name} here or on Python's path") from None
        raise InputError(f"{spec}: {name} needs {error.name}, which is not installed") from error
    except Exception as error:  # it is the user's program that failed, in whatever way
        raise InputError(f"{spec}: importing {name} failed: {_line(error)}") from error


def _from_file(path: Path) -> Any:
    """A program's module, under the name of its file, so that its objects can travel to worker processes."""
    if not path.is_file():
        raise FileError(f"{path}: no such file")
    full, name = path.resolve(), path.stem
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(full):
        return known
    if known is not None:
        raise InputError(f"{path}: a module called {name} is loaded already; rename the file")
    spec = importlib.util.spec_from_file_location(name, full)
    if spec is None or spec.loader is None:
        raise FileError(f"{path}: not a Python program")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _first_on_path(full.parent):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _first_on_path(folder: Path) -> Iterator[None]:
    """A folder first on Python's path, as for a program that is started in it."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _as_generator(named: Any, spec: str) -> Generator:
    """A Generator as it is, a network with a declared latent made into one, or what a bare function gives."""
    made = named
    if not isinstance(named, Generator) and (isinstance(named, type) or not hasattr(named, "latent")):
        made = _call(named, spec)
    if isinstance(made, Generator):
        return made
    if callable(made) and isinstance(getattr(made, "latent", None), Latent):
        return Generator(made, made.latent, labels=getattr(made, "labels", None), name=spec)
    raise InputError(
        f"{spec}: expected a Generator, a network with a `latent`, or a function without arguments that gives one; "
        f"got {type(made).__name__}"
    )


def _call(named: Any, spec: str) -> Any:
    if isinstance(named, nn.Module):
        raise InputError(
            f"{spec}: a module without a latent; wrap it, Generator(module, Normal(dim)), or set its .latent"
        )
    if not callable(named):
        return named
    try:
        inspect.signature(named).bind()
    except (TypeError, ValueError):
        raise InputError(f"{spec}: takes arguments; give a function without any that returns a Generator") from None
    try:
        return named()
    except LikewiseError:
        raise
    except Exception as error:  # the user's own function
        raise InputError(f"{spec}: calling it failed: {_line(error)}") from error


def _line(error: BaseException) -> str:
    """An error's message in one line of bearable length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{type(error).__name__}: {text[:200]}"
