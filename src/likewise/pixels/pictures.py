"""One picture, however it is given, as the tensor (3, h, w) in [0, 1] that the level works on."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from likewise import media
from likewise.errors import InputError, ShapeError

if TYPE_CHECKING:
    from jaxtyping import Float, UInt8
    from torch import Tensor

Picture: TypeAlias = Any
"""A path, a tensor (3, h, w) in [0, 1] or uint8, or an array (h, w), (h, w, 1), (h, w, 3) or (h, w, 4)."""

ROUNDING = 1e-4
"""How far resampled floats may lie beyond [0, 1]."""


def picture(image: Picture, *, where: str = "image") -> Float[Tensor, "3 h w"]:
    """Any picture as a float32 tensor (3, h, w) in [0, 1]: grey repeated, transparency over white, 8 or 16 bits."""
    import torch

    if isinstance(image, str | os.PathLike):
        return media.read(image)
    if isinstance(image, torch.Tensor):
        channels_last = np.moveaxis(_planes(image, where), 0, -1)
    elif isinstance(image, np.ndarray):
        channels_last = image[..., None] if image.ndim == 2 else image
    elif hasattr(image, "getexif") and "PIL" in sys.modules:
        channels_last = media.from_pillow(image)
    else:
        raise InputError(f"{where}: expected a path, an array, a Pillow image or a tensor, got {type(image).__name__}")
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(_rgb(channels_last, where), -1, 0)))


def _planes(image: Tensor, where: str) -> NDArray[Any]:
    """A tensor (h, w) or (c, h, w) as an array (c, h, w)."""
    array = image.detach().cpu()
    planes = array[None] if array.ndim == 2 else array
    if planes.ndim != 3:
        raise ShapeError(f"{where}: expected a tensor (3, h, w), got shape {tuple(image.shape)}")
    return np.asarray((planes.float() if planes.dtype.is_floating_point else planes).numpy())


def _rgb(array: NDArray[Any], where: str) -> NDArray[np.float32]:
    """(h, w, 1 | 3 | 4) of any depth as float32 (h, w, 3) in [0, 1]."""
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or array.size == 0:
        raise ShapeError(f"{where}: expected (h, w), (h, w, 3) or (h, w, 4), got shape {array.shape}")
    values = _unit(array, where)
    if values.shape[2] == 4:
        alpha = values[..., 3:]
        values = values[..., :3] * alpha + (1 - alpha)
    return np.repeat(values, 3, axis=2) if values.shape[2] == 1 else values


def _unit(array: NDArray[Any], where: str) -> NDArray[np.float32]:
    """Values in [0, 1]: floats as they are, 8 and 16 bits divided by their largest."""
    if array.dtype in (np.uint8, np.uint16):
        return array.astype(np.float32) / np.float32(np.iinfo(array.dtype).max)
    if not np.issubdtype(array.dtype, np.floating):
        raise InputError(f"{where}: expected uint8, uint16, or floats in [0, 1], got {array.dtype}")
    if not (array.min() >= -ROUNDING and array.max() <= 1 + ROUNDING):
        raise InputError(f"{where}: expected floats in [0, 1], got {array.min():g} to {array.max():g}")
    return np.clip(array.astype(np.float32), 0, 1)


def luma(image: Float[Tensor, "3 h w"]) -> Float[np.ndarray, "h w"]:
    """0.299 R + 0.587 G + 0.114 B, float32 in [0, 1]."""
    r, g, b = image.detach().cpu().numpy()
    return np.asarray(np.clip(0.299 * r + 0.587 * g + 0.114 * b, 0, 1), dtype=np.float32)


def grey(image: Float[Tensor, "3 h w"]) -> UInt8[np.ndarray, "h w"]:
    """Luma, rounded to 8 bits."""
    return np.asarray(np.rint(luma(image) * 255), dtype=np.uint8)
