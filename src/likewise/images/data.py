"""What the images level reads: paths, folders, arrays, Pillow images and tensors, all brought to uint8 (h, w, 3)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np

from likewise import media
from likewise.errors import FileError, InputError, ShapeError
from likewise.nn.backbone import CROP, SHORTEST, resize

if TYPE_CHECKING:
    from jaxtyping import UInt8
    from PIL import Image
    from torch import Tensor

    Picture: TypeAlias = str | os.PathLike[str] | Image.Image | np.ndarray[Any, Any] | Tensor

DECODED_SIDE = 2 * SHORTEST
"""A large JPEG is decoded no smaller than this, so that the resampling, not the decoder, decides the result."""

CELL, LONGEST = 32, 3
"""Whole pictures get sides that are multiples of 32 px, the longer at most three times the shorter."""


def pictures(images: Picture | Iterable[Picture]) -> Iterator[Picture]:
    """One picture after the other: a folder gives its files in natural order, a batch its members, a list its items."""
    given: Any = images
    if isinstance(given, str | os.PathLike):
        yield from _files(Path(given))
    elif _is_pillow(given) or (_is_array(given) and not _is_batch(given)):
        yield given
    elif isinstance(given, bytes) or not isinstance(given, Iterable):
        raise InputError(f"images: expected paths, arrays, Pillow images or tensors, got {type(given).__name__}")
    else:
        for item in given:
            yield from _files(Path(item)) if isinstance(item, str | os.PathLike) else [item]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    if found := media.images(path):
        return found
    raise FileError(f"{path}: no picture in this folder")


def picture(item: Picture, *, where: str = "image") -> UInt8[np.ndarray, "h w 3"]:
    """One picture as uint8 (h, w, 3); `where` stands for it in errors."""
    if isinstance(item, str | os.PathLike):
        return media.read_array(item, side=DECODED_SIDE)
    if _is_pillow(item):
        return media.from_pillow(item)
    if _is_tensor(item):
        return _from_tensor(item, where)
    if isinstance(item, np.ndarray):
        array = media.as_uint8(item, where=where)
        return array if array.ndim == 3 else np.repeat(array[:, :, None], 3, axis=2)
    raise InputError(f"{where}: expected a path, an array, a Pillow image or a tensor, got {type(item).__name__}")


def _from_tensor(item: Tensor, where: str) -> UInt8[np.ndarray, "h w 3"]:
    if item.ndim != 3 or item.shape[0] != 3:
        raise ShapeError(f"{where}: expected a tensor (3, h, w), got shape {tuple(item.shape)}")
    array = item.detach().cpu().permute(1, 2, 0)
    array = array if str(array.dtype) == "torch.uint8" else array.float()
    return media.as_uint8(array.numpy(), where=where)


def name_of(item: Picture) -> str:
    """The path that a picture came from, or nothing where it came from memory."""
    return os.fspath(item) if isinstance(item, str | os.PathLike) else str(getattr(item, "filename", ""))


def count(images: Any) -> int | None:
    """How many pictures these are, where that can be told without decoding or consuming any."""
    if isinstance(images, str | os.PathLike):
        return len(_files(Path(images)))
    if _is_pillow(images) or (_is_array(images) and not _is_batch(images)):
        return 1
    if not hasattr(images, "__len__"):
        return None
    return sum(len(_files(Path(i))) if isinstance(i, str | os.PathLike) else 1 for i in images)


def whole(array: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "H W 3"]:
    """The whole picture with its shortest side at 224 and the other at the nearest multiple of 32 (at most 672)."""
    height, width = array.shape[:2]
    longer = round(CROP * max(height, width) / min(height, width) / CELL) * CELL
    longer = min(longer, LONGEST * CROP)
    size = (longer, CROP) if width >= height else (CROP, longer)
    return resize(array, size, (0.0, 0.0, float(width), float(height)))


def thumbnail(array: UInt8[np.ndarray, "h w 3"], side: int) -> UInt8[np.ndarray, "H W 3"]:
    """The whole picture with its longest side at most `side`."""
    height, width = array.shape[:2]
    scale = min(1.0, side / max(height, width))
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return resize(array, size, (0.0, 0.0, float(width), float(height)))


def _is_tensor(item: object) -> TypeGuard[Tensor]:
    """Whether it is a torch tensor, without importing torch for those who have none."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(item, torch.Tensor)


def _is_pillow(item: object) -> TypeGuard[Image.Image]:
    # by getattr: another thread may be in the middle of importing PIL, and then nobody has an image of it yet
    kind = getattr(sys.modules.get("PIL.Image"), "Image", None)
    return kind is not None and isinstance(item, kind)


def _is_array(item: object) -> bool:
    return isinstance(item, np.ndarray) or _is_tensor(item)


def _is_batch(images: Any) -> bool:
    """Four axes, or a NumPy array of paths."""
    return images.ndim == 4 or (isinstance(images, np.ndarray) and images.dtype.kind in "OU")
