"""What is it? A path, an array, a list or an object, told as a photo, a video, an album, features or a generator."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from likewise.errors import FileError, InputError
from likewise.types import Signature

WEIGHTS = frozenset({".pth", ".pt", ".bin", ".safetensors", ".onnx", ".py"})
"""How names of files end that hold a generator; a program is refused there with the way to name what is in it."""

Kind = Literal["photo", "video", "album", "features", "generator"]


@dataclass(frozen=True, eq=False)
class Told:
    """One side of a comparison: what was given, what kind of thing it is, how many members it has, and words for it."""

    item: Any
    kind: Kind
    words: str
    where: str
    count: int | None = None


def told(item: Any, where: str = "a") -> Told:
    """What a path, an array, a list or an object is; an InputError that names the argument where it is nothing."""
    if isinstance(item, str | os.PathLike):
        return _path(os.fspath(item), where)
    if isinstance(item, Signature):
        return Told(item, "features", f"a set of {len(item)} points", where, len(item))
    if callable(item) and hasattr(item, "latent"):
        return Told(item, "generator", "a generator", where)
    if hasattr(item, "latents") and hasattr(item, "log_sigma"):
        return Told(item, "generator", "a bank of a generator", where)
    if hasattr(item, "getexif"):  # Pillow's
        return Told(item, "photo", "a single photo", where, 1)
    if hasattr(item, "ndim") and hasattr(item, "shape"):
        return _array(item, where)
    if isinstance(item, Sequence) and not isinstance(item, bytes | bytearray):
        return _list(item, where)
    raise InputError(
        f"{where}: expected a photo, an album, a video, a folder, features (n, d) or a generator, "
        f"got {type(item).__name__}"
    )


def _path(text: str, where: str) -> Told:
    if not text:
        raise InputError(f"{where}: expected a path, got an empty one")
    path = Path(text)
    if not os.path.exists(text):  # Path.exists raises where a name is too long
        return _missing(text, where)
    if path.is_dir():
        return _folder(path, where)
    from likewise.media import is_image
    from likewise.sets.data import VIDEO_NAMES

    if is_image(path):
        return Told(path, "photo", "a single photo", where, 1)
    suffix = path.suffix.lower()
    if suffix in (".npy", ".npz"):
        return _arrays(path, where)
    if suffix in WEIGHTS:
        return Told(text, "generator", "a generator", where)
    if suffix in VIDEO_NAMES:
        return Told(path, "video", "a video", where)
    raise FileError(f"{where}: {text} is neither a picture nor a video, nor a file of features or of a generator")


def _missing(text: str, where: str) -> Told:
    """What is not there may still be a generator's name, or one set of an .npz file."""
    from likewise.distributions.shipped import GENERATORS

    file, mark, _ = text.rpartition("#")
    if text in GENERATORS or (":" in text and "/" not in text.rpartition(":")[2]):
        return Told(text, "generator", f"the generator {text}", where)
    if mark and Path(file).suffix.lower() == ".npz" and Path(file).is_file():
        return Told(text, "features", "a set of features", where)
    raise FileError(
        f"{where}: {text}: no such file or folder, nor a generator ({', '.join(GENERATORS)}, or module:attribute)"
    )


def _folder(path: Path, where: str) -> Told:
    from likewise.media import images

    found = images(path)
    if found:
        return Told(path, "album", f"a folder of {_pictures(len(found))}", where, len(found))
    if (path / "manifest.json").is_file():
        from likewise.distributions.bank import Bank

        return Told(Bank.open(path), "generator", "a bank of a generator", where)
    raise FileError(f"{where}: {path}: no picture in this folder")


def _arrays(path: Path, where: str) -> Told:
    from likewise.media import load_arrays

    arrays = list(load_arrays(path).values())
    rows = len(arrays[0]) if len(arrays) == 1 and arrays[0].ndim == 2 else None
    return Told(path, "features", "a file of features", where, rows)


def _array(item: Any, where: str) -> Told:
    """(h, w, 3) and grey 8-bit (h, w) are a photo, (n, …) of four dimensions an album, other (n, d) features."""
    n = int(item.shape[0]) if item.ndim else 0
    if item.ndim == 3 or (item.ndim == 2 and str(item.dtype) in ("uint8", "torch.uint8")):
        return Told(item, "photo", "a single photo", where, 1)
    if item.ndim == 4:
        return Told(item, "album", f"a batch of {_pictures(n)}", where, n)
    if item.ndim == 2:
        return Told(item, "features", f"a set of {n} points", where, n)
    raise InputError(
        f"{where}: expected a picture (h, w, 3), pictures (n, h, w, 3) or features (n, d), "
        f"got shape {tuple(item.shape)}"
    )


def _list(item: Sequence[Any], where: str) -> Told:
    if not item:
        raise InputError(f"{where}: expected at least one picture or point, got an empty {type(item).__name__}")
    pictured = [isinstance(x, str | os.PathLike) or hasattr(x, "getexif") or getattr(x, "ndim", 0) == 3 for x in item]
    if all(pictured):
        return Told(list(item), "album", f"a list of {_pictures(len(item))}", where, len(item))
    if any(pictured):
        raise InputError(f"{where}: item {pictured.index(False)} is no picture, as others in the list are")
    return Told(item, "features", "a set of points", where, len(item[0]) if isinstance(item, tuple) else len(item))


def _pictures(n: int) -> str:
    return "one picture" if n == 1 else f"{n:,} pictures"
