"""What the level reads: a generator by its name, as module:attribute or a file of any kind that is known."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from likewise.distributions.shipped import GENERATORS, shipped
from likewise.errors import FileError, InputError, LikewiseError

if TYPE_CHECKING:
    from likewise.distributions.model import Generator

_NAME = re.compile(r"(?P<module>[^:]+|[A-Za-z]:[\\/][^:]+):(?P<attribute>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)")
CLASS = "distributions.Generator"
"""What a checkpoint of likewise that holds a generator calls itself."""


def load_generator(spec: str | Path, *, family: str | None = None, **options: Any) -> Generator:
    """The generator that a word means.

    `module:attribute` (or `file.py:attribute`) is imported from the current folder or Python's path: a Generator, a
    module with a `latent`, or a function without arguments that gives one. That runs the module's code: name only what
    you trust. `fashion` and `fashion-vae` come with likewise. A file may be a checkpoint of `save_generator`, weights
    (.pth, .pt, .bin, .safetensors) whose family is told by their keys or by `family`, or .onnx; nothing in a file is
    run. `options` are those of the adapters.
    """
    text = str(spec)
    if text in GENERATORS:
        return shipped(text)
    if _NAME.fullmatch(text) and not Path(text).exists():
        return _as_generator(load_object(text), text)
    path = Path(text)
    if not path.exists():
        raise FileError(f"{text}: no such file, and not the module:attribute of a generator")
    if path.suffix.lower() == ".onnx":
        return _onnx(path, family, options)
    if path.suffix.lower() == ".py":
        raise InputError(f"generator: {text} is a program; name what is in it, {text}:attribute")
    header = _header(path)
    if header is not None:
        return _checkpoint(path, family, options)
    from likewise.distributions import adapters

    return adapters.weights(path, family, **options)


def load_object(spec: str) -> Any:
    """What module:attribute names, imported from the current folder or Python's path, or from file.py:attribute."""
    match = _NAME.fullmatch(spec)
    if match is None:
        raise InputError(f"{spec!r}: expected module:attribute or file.py:attribute")
    module = _module(match["module"], spec)
    found: Any = module
    for name in match["attribute"].split("."):
        if not hasattr(found, name):
            raise InputError(f"{spec}: {match['module']} has no {match['attribute']}")
        found = getattr(found, name)
    return found


def save_generator(generator: Generator, path: str | Path) -> None:
    """Write a generator of a known family to one file of tensors and JSON, which `load_generator` reads."""
    from likewise import __version__
    from likewise.distributions.networks.network import Network
    from likewise.store import checkpoint

    net = generator.net
    if not isinstance(net, Network):
        raise InputError(
            f"generator: {generator.name} is of no known family, so it cannot be saved; save its weights yourself and "
            "name it as module:attribute"
        )
    about = {
        "family": net.family,
        "settings": net.settings,
        "latent": generator.latent.to_dict(),
        "name": generator.name,
        "psi": generator.psi,
    }
    arrays = {key: value.detach().cpu().numpy() for key, value in net.state_dict().items()}
    whole = {"format": checkpoint.FORMAT, "likewise": __version__, "class": CLASS, "header": about}
    checkpoint.write(path, arrays, whole)


# ----------------------------------------------------------------------------------------------------------- modules


def _module(name: str, spec: str) -> Any:
    """A module by its file or its name; whatever its own code raises is told in one line."""
    try:
        if name.endswith(".py"):
            return _from_file(Path(name))
        with _current_folder():
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
    folder, name = str(path.resolve().parent), path.stem
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(path.resolve()):
        return known
    if known is not None:
        raise InputError(f"{path}: a module called {name} is loaded already; rename the file")
    found = importlib.util.spec_from_file_location(name, path.resolve())
    if found is None or found.loader is None:
        raise FileError(f"{path}: not a Python program")
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module
    sys.path.insert(0, folder)
    try:
        found.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(folder)
    return module


@contextmanager
def _current_folder() -> Iterator[None]:
    """The current folder first on Python's path, as for a program that is started in it."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(folder)


def _as_generator(found: Any, spec: str) -> Generator:
    """A Generator as it is, a network with a declared latent made into one, or what a bare function gives."""
    from likewise.distributions.latents import Latent
    from likewise.distributions.model import Generator

    made = found
    if not isinstance(found, Generator) and (isinstance(found, type) or not hasattr(found, "latent")):
        made = _called(found, spec)
    if isinstance(made, Generator):
        return made
    if callable(made) and isinstance(getattr(made, "latent", None), Latent):
        return Generator(
            made,
            made.latent,
            labels=getattr(made, "labels", None),
            spaces=getattr(made, "spaces", None),
            truncate=getattr(made, "truncated", None),
            name=spec,
        )
    raise InputError(
        f"{spec}: expected a Generator, a network with a `latent`, or a function without arguments that gives one; "
        f"got {type(made).__name__}"
    )


def _called(found: Any, spec: str) -> Any:
    import inspect

    from torch import nn

    if isinstance(found, nn.Module):
        raise InputError(
            f"{spec}: a module without a latent; wrap it, Generator(module, Normal(dim)), or set its .latent"
        )
    if not callable(found):
        return found
    try:
        inspect.signature(found).bind()
    except (TypeError, ValueError):
        raise InputError(f"{spec}: takes arguments; give a function without any that returns a Generator") from None
    try:
        return found()
    except LikewiseError:
        raise
    except Exception as error:  # the user's own function
        raise InputError(f"{spec}: calling it failed: {_line(error)}") from error


# ------------------------------------------------------------------------------------------------------------- files


def _onnx(path: Path, family: str | None, options: dict[str, Any]) -> Generator:
    from likewise.distributions import adapters

    if family not in (None, "onnx"):
        raise InputError(f"family: {path} is an ONNX file, got {family!r}")
    return adapters.onnx(path, **options)


def _header(path: Path) -> bool | None:
    """True where a file is a checkpoint of likewise, by its first bytes; None for any other."""
    import json

    from likewise.store.checkpoint import MOST_HEADER

    if not path.is_file():
        return None
    try:
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 2 <= length <= MOST_HEADER:
                return None
            return True if "likewise" in json.loads(stream.read(length)).get("__metadata__", {}) else None
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None


def _checkpoint(path: Path, family: str | None, options: dict[str, Any]) -> Generator:
    """A generator that likewise wrote: one of `save_generator`, or any registered class that is one."""
    from likewise.store import checkpoint

    arrays, whole = checkpoint.read(path)
    if whole.get("class") != CLASS:
        return _as_generator(checkpoint.load(path), str(path))
    if whole.get("format") != checkpoint.FORMAT:
        raise FileError(f"{path} is of format {str(whole.get('format'))[:20]}; this likewise reads {checkpoint.FORMAT}")
    try:
        return _restored(arrays, whole["header"], family, options)
    except LikewiseError as error:
        raise FileError(f"{path}: {error}") from None
    except Exception as error:  # the file is a stranger's: whatever its contents break is the file's fault
        raise FileError(f"{path} does not hold a generator: {_line(error)}") from error


def _restored(arrays: dict[str, Any], about: dict[str, Any], family: str | None, options: dict[str, Any]) -> Generator:
    import torch

    from likewise.distributions import adapters, latents
    from likewise.distributions.networks import class_of

    if family not in (None, about["family"]):
        raise InputError(f"family: the file holds a {about['family']}, got {family!r}")
    state = {key: torch.from_numpy(value) for key, value in arrays.items()}
    net = class_of(about["family"]).from_state(state, **about["settings"])
    kinds = {"Normal": latents.Normal, "Uniform": latents.Uniform, "TruncatedNormal": latents.TruncatedNormal}
    density = dict(about["latent"])
    latent = kinds[density.pop("kind")](**density)
    given: Any = {"latent": latent, "name": str(about["name"]), "psi": float(about["psi"]), **options}
    return adapters._generator(net, given)


def _line(error: BaseException) -> str:
    """An error's message in one line of bearable length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{type(error).__name__}: {text[:200]}"
