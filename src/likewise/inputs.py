"""The one door: whatever is given (path, folder, video, array, Pillow image, tensor, list, features) as what it is.

| given | is |
|---|---|
| a path to an image, a Pillow image, an array (h, w), (h, w, 1 | 3 | 4), a tensor (c, h, w), an `Image` | one photo |
| a folder, a list of the above, an array (n, h, w[, c]), a tensor (n, c, h, w) | photos |
| a path to a video | its frames |
| an array (n, d) of floats, a list of rows, (points, weights), a `Signature`, .npy, .npz, file.npz#name | features |
| a callable with `.latent`, its name, module:attribute, a file of weights, a `Bank` or its folder | a generator |

Every function of every level takes what it takes in all these forms, with the same meaning and the same errors.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from likewise import media
from likewise.errors import FileError, InputError, ShapeError
from likewise.types import Image, Signature

Kind = Literal["photo", "photos", "video", "features", "generator"]
CHANNELS = (1, 3, 4)
"""Lengths of the axis of an array that is taken for its channels."""
WEIGHTS = frozenset({".pth", ".pt", ".bin", ".safetensors", ".pkl", ".py"})
"""How names of files end that hold a generator; a program is refused there with the way to name what is in it."""
GENERATORS = ("fashion", "fashion-vae")
"""Generators that come with likewise."""
BANK_FILE = "job.sqlite"
"""A folder that holds this, and no image, is a bank."""


@dataclass(frozen=True, eq=False)
class Input:
    """What was given: the item, its kind, words for it, what it is called in errors, and how many members it has."""

    item: Any
    kind: Kind
    words: str
    where: str
    count: int | None = None


# ----------------------------------------------------------------------------------------------------- what is it?


def classify(item: Any, where: str = "a") -> Input:
    """What a path, an array, a list or an object is; an InputError that names the argument where it is nothing."""
    if isinstance(item, Input):
        return item
    if isinstance(item, str | os.PathLike):
        return _classify_path(os.fspath(item), where)
    if isinstance(item, Signature):
        return Input(item, "features", f"a set of {len(item)} points", where, len(item))
    if is_generator(item):
        return Input(item, "generator", "a generator", where)
    if hasattr(item, "latents") and hasattr(item, "log_sigma"):
        return Input(item, "generator", "a bank of a generator", where)
    if is_image(item):
        return Input(item, "photo", "a single photo", where, 1)
    if hasattr(item, "ndim") and hasattr(item, "shape"):
        return _classify_array(item, where)
    if isinstance(item, Sequence) and not isinstance(item, bytes | bytearray):
        return _classify_list(item, where)
    raise InputError(
        f"{where}: expected a photo, photos, a video, a folder, features (n, d) or a generator, "
        f"got {type(item).__name__}"
    )


def is_generator(item: Any) -> bool:
    """Whether it can be sampled: callable, with the density of its latents."""
    return callable(item) and hasattr(item, "latent")


def is_image(item: Any) -> bool:
    """Whether it is one image in memory: an Image, Pillow's, an array of one; a 2-D array only as unsigned integers."""
    if isinstance(item, Image) or hasattr(item, "getexif"):
        return True
    shape = tuple(getattr(item, "shape", ()))
    if len(shape) == 2:
        return "uint" in str(item.dtype)
    return len(shape) == 3 and shape[0 if hasattr(item, "detach") else 2] in CHANNELS


def is_batch(item: Any) -> bool:
    """Whether it is an array or a tensor of several images: (n, h, w), (n, h, w, c) or (n, c, h, w)."""
    ndim = getattr(item, "ndim", 0) if hasattr(item, "shape") else 0
    return (ndim == 4 and bool({item.shape[1], item.shape[3]} & set(CHANNELS))) or (ndim == 3 and not is_image(item))


def is_video(path: str | os.PathLike[str]) -> bool:
    """Whether a file's name is that of a video."""
    return Path(path).suffix.lower() in media.VIDEO_NAMES


def _classify_path(text: str, where: str) -> Input:
    if not text:
        raise InputError(f"{where}: expected a path, got an empty one")
    path = Path(text)
    if not os.path.exists(text):  # Path.exists raises where a name is too long
        return _classify_name(text, where)
    if path.is_dir():
        return _classify_folder(path, where)
    if media.is_image(path):
        return Input(path, "photo", "a single photo", where, 1)
    suffix = path.suffix.lower()
    if suffix in (".npy", ".npz"):
        arrays = list(media.load_arrays(path).values())
        rows = len(arrays[0]) if len(arrays) == 1 and arrays[0].ndim == 2 else None
        return Input(path, "features", "a file of features", where, rows)
    if suffix in WEIGHTS:
        return Input(text, "generator", "a generator", where)
    if is_video(path):
        return Input(path, "video", "a video", where)
    raise FileError(f"{where}: {text} is neither an image nor a video, nor a file of features or of a generator")


def _classify_name(text: str, where: str) -> Input:
    """What is not there may still be a generator's name, or one set of an .npz file."""
    file, mark, _ = text.rpartition("#")
    if text in GENERATORS or (":" in text and "/" not in text.rpartition(":")[2]):
        return Input(text, "generator", f"the generator {text}", where)
    if mark and Path(file).suffix.lower() == ".npz" and media.is_file(file):
        return Input(text, "features", "a set of features", where)
    raise FileError(
        f"{where}: {text}: no such file or folder, nor a generator ({', '.join(GENERATORS)}, or module:attribute)"
    )


def _classify_folder(path: Path, where: str) -> Input:
    files = media.images(path)
    if files:
        return Input(path, "photos", f"a folder of {_counted(len(files))}", where, len(files))
    if (path / BANK_FILE).is_file():
        return Input(path, "generator", "a bank of a generator", where)
    raise FileError(f"{where}: {path}: no image in this folder")


def _classify_array(item: Any, where: str) -> Input:
    n = int(item.shape[0]) if item.ndim else 0
    if is_batch(item) and n:
        return Input(item, "photos", f"a batch of {_counted(n)}", where, n)
    if item.ndim == 2:
        return Input(item, "features", f"a set of {n} points", where, n)
    raise InputError(
        f"{where}: expected an image (h, w, 3), images (n, h, w, 3) or features (n, d), got shape {tuple(item.shape)}"
    )


def _classify_list(items: Sequence[Any], where: str) -> Input:
    if not items:
        raise InputError(f"{where}: expected at least one image or point, got an empty {type(items).__name__}")
    photos = [isinstance(x, str | os.PathLike) or is_image(x) for x in items]
    if all(photos):
        return Input(list(items), "photos", f"a list of {_counted(len(items))}", where, len(items))
    if any(photos):
        raise InputError(f"{where}: item {photos.index(False)} is no image, as others in the list are")
    count = len(items[0]) if isinstance(items, tuple) and hasattr(items[0], "__len__") else len(items)
    return Input(items, "features", "a set of points", where, count)


def _counted(n: int) -> str:
    return "one image" if n == 1 else f"{n:,} images"


# ------------------------------------------------------------------------------------------------------------ images


def image(item: Any, *, where: str = "image") -> Image:
    """One image in any of its forms; a file is decoded when its pixels are first asked for."""
    return item if isinstance(item, Image) else Image(item, where=where)


def images(items: Any, *, where: str = "images", every: int = 1) -> Iterator[Image]:
    """One image after the other: files of a folder in natural order, frames of a video, members of a batch or a list.

    Nothing is decoded before it is asked for, but the frames of a video.
    """
    if isinstance(items, str | os.PathLike):
        yield from _below(Path(items), every)
    elif is_image(items) or (hasattr(items, "ndim") and items.ndim == 2 and items.dtype.kind == "f"):
        yield image(items, where=where)
    elif is_batch(items):
        for i in range(len(items)):
            yield Image(_member(items, i), where=f"{where} {i}")
    elif isinstance(items, bytes) or not isinstance(items, Iterable):
        raise InputError(f"{where}: expected paths, arrays, Pillow images or tensors, got {type(items).__name__}")
    else:
        for i, item in enumerate(items):
            if isinstance(item, str | os.PathLike):
                yield from _below(Path(item), every)
            else:
                yield image(item, where=f"{where} {i}")


def _member(batch: Any, i: int) -> Any:
    """Image i of a batch: channels last for arrays, first for tensors, wherever the batch has them."""
    one = batch[i]
    if one.ndim == 2:
        return one
    axis = 0 if hasattr(batch, "detach") else 2
    if one.shape[axis] in CHANNELS:
        return one
    return one.permute(2, 0, 1) if hasattr(batch, "detach") else np.moveaxis(one, 0, 2)


def _below(path: Path, every: int) -> Iterator[Image]:
    if path.is_dir():
        files = media.images(path)
        if not files:
            raise FileError(f"{path}: no image in this folder")
        yield from (Image(file) for file in files)
    elif is_video(path) and not media.is_image(path):
        for i, frame in enumerate(media.frames(path, every=every)):
            yield Image(frame, name=f"{path}#{i * every}")
    else:
        yield Image(path)


def count(items: Any) -> int | None:
    """How many images these are, where that can be told without decoding or consuming any."""
    if isinstance(items, str | os.PathLike):
        path = Path(items)
        return len(media.images(path)) if path.is_dir() else None if is_video(path) else 1
    if is_image(items):
        return 1
    if is_batch(items):
        return len(items)
    if not hasattr(items, "__len__") or not isinstance(items, Iterable):
        return len(items) if hasattr(items, "__len__") else None
    numbers = [count(item) if isinstance(item, str | os.PathLike) else 1 for item in items]
    return None if None in numbers else sum(cast(list[int], numbers))


def misnamed(folder: str | os.PathLike[str]) -> list[Path]:
    """Files below a folder that are named like images and are none."""
    named = [p for p in media.files(folder, unreadable=[]) if p.suffix.lower() in media.PICTURE_NAMES]
    return sorted(p for p in named if media.is_file(p) and not media.is_image(p))


# ---------------------------------------------------------------------------------------------------------- features


def signature(item: Any, *, where: str = "set") -> Signature:
    """One set of features: a Signature, (points, weights), (m, d), a .npy, or one set of an .npz (file.npz#name)."""
    if isinstance(item, Signature):
        return item
    if isinstance(item, str | os.PathLike):
        return _stored_signature(os.fspath(item), where)
    if isinstance(item, tuple):
        if len(item) != 2:
            raise InputError(f"{where}: expected (points, weights), got a tuple of {len(item)}")
        return Signature(*item, where=where)
    return Signature(item.detach().cpu() if hasattr(item, "detach") else item, where=where)


def signatures(X: Any, *, where: str = "X") -> list[Signature]:
    """Several sets of features: a sequence of what `signature` takes, or an .npz file; a row of (n, d) is one point."""
    if isinstance(X, Signature):
        raise InputError(f"{where}: expected several sets, got one Signature; put it in a list")
    if isinstance(X, str | os.PathLike):
        return load_signatures(X)[0]
    held = _array(X, where)  # outside: what is no number is a TypeError, too, as scikit-learn expects
    try:
        members = list(held)
    except TypeError:
        raise InputError(f"{where}: expected a sequence of sets, got {type(X).__name__}") from None
    if not members:
        raise ShapeError(f"{where}: expected at least one set, got none (Found array with 0 sample(s))")
    return [signature(member, where=f"{where}[{i}]") for i, member in enumerate(members)]


def load_signatures(path: str | os.PathLike[str]) -> tuple[list[Signature], list[Any] | None]:
    """The sets of an .npz file, and their labels.

    Either points (P, d) and offsets (n + 1,), set i being rows offsets[i] to offsets[i + 1], where given with weights
    (P,), names (P,), labels (n,) and levels (n,); or one array (m, d) a set, whose names become the labels.
    """
    arrays = media.load_arrays(path)
    if not arrays:
        raise FileError(f"{path}: no arrays in this file")
    if "offsets" not in arrays:
        return [Signature(rows, where=f"{path}: {key}") for key, rows in arrays.items()], list(arrays)
    sets = _unpacked(path, arrays)
    labels = arrays.get("labels")
    return sets, None if labels is None else labels.tolist()


def _stored_signature(text: str, where: str) -> Signature:
    file, mark, name = text.rpartition("#")
    if not mark or Path(text).exists():
        file, name = text, ""
    if Path(file).suffix.lower() != ".npz":
        return Signature(media.load_arrays(file)["arr_0"], where=f"{where}: {file}")
    sets, labels = load_signatures(file)
    names = [str(label) for label in (labels if labels is not None else range(len(sets)))]
    if name and name not in names:
        raise InputError(f"{where}: {file} has no set {name!r}; it has {', '.join(names[:6])}")
    if not name and len(sets) > 1:
        raise InputError(f"{where}: {file} holds {len(sets)} sets; say which, as in {file}#{names[0]}")
    return sets[names.index(name) if name else 0]


def _unpacked(path: str | os.PathLike[str], arrays: dict[str, np.ndarray[Any, Any]]) -> list[Signature]:
    """Sets that lie one after the other in one array of points."""
    if "points" not in arrays:
        raise FileError(f"{path}: has offsets but no points; expected points (P, d) and offsets (n + 1,)")
    points, offsets = arrays["points"], arrays["offsets"]
    rising = offsets.ndim == 1 and offsets.dtype.kind in "iu" and len(offsets) >= 2 and (np.diff(offsets) > 0).all()
    if points.ndim != 2 or not rising or offsets[0] != 0 or offsets[-1] != len(points):
        raise FileError(f"{path}: offsets must rise from 0 to the number of points ({len(points)})")
    n = len(offsets) - 1
    for key, wanted in (("weights", len(points)), ("names", len(points)), ("labels", n), ("levels", n)):
        if key in arrays and arrays[key].shape != (wanted,):
            raise FileError(f"{path}: {key} has shape {arrays[key].shape}, expected ({wanted},)")
    weights, names, levels = (arrays.get(key) for key in ("weights", "names", "levels"))
    return [
        Signature(
            points[rows],
            None if weights is None else weights[rows],
            None if levels is None else levels[i].item(),
            None if names is None else [str(s) for s in names[rows]],
            where=f"{path}: signature {i}",
        )
        for i, rows in enumerate(slice(int(a), int(b)) for a, b in pairwise(offsets))
    ]


def _array(X: Any, where: str) -> Any:
    """Data frames and other containers as the array they hold, checked; lists as they are."""
    if hasattr(X, "toarray"):
        raise InputError(f"{where} is sparse; give X.toarray()")
    if hasattr(X, "detach"):
        X = X.detach().cpu().numpy()
    if hasattr(X, "to_numpy"):
        X = X.to_numpy()
    if not isinstance(X, np.ndarray | Sequence) and hasattr(X, "__array__"):
        X = np.asarray(X)
    if isinstance(X, np.ndarray) and not (X.dtype == object and X.ndim == 1):
        return _checked(X, where)
    return X


def _checked(X: Any, where: str) -> Any:
    """An array of numbers (n, d) or (n, m, d); the words are those that scikit-learn's own checks look for."""
    if X.dtype == object:
        try:
            X = X.astype(np.float64)
        except TypeError as error:
            raise NotNumbersError(f"{where}: argument must be a string or a number: {error}") from None
        except ValueError as error:
            raise InputError(f"{where}: {error}") from None
    if X.ndim == 1:
        raise ShapeError(f"{where}: expected sets or a 2-D array, got a 1-D array. Reshape your data: X.reshape(-1, 1)")
    if X.ndim not in (2, 3):
        raise ShapeError(f"{where}: expected a list of (m, d) sets, or (n, d) or (n, m, d); got shape {X.shape}")
    if np.iscomplexobj(X):
        raise InputError(f"{where}: Complex data not supported")
    if X.shape[-1] == 0:
        raise ShapeError(f"{where}: 0 feature(s) (shape={X.shape}) while a minimum of 1 is required.")
    return X


class NotNumbersError(InputError, TypeError):
    """A value of a type that is no number: an InputError that is a TypeError, too, as scikit-learn expects."""
