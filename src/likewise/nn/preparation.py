"""How a photo is brought to the size that a backbone was trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import UInt8

SHORTEST, CROP = 256, 224
"""The shortest side of a photo in pixels, and the side of the square that is cut from its middle."""


def crop(array: UInt8[np.ndarray, "h w 3"], size: int = CROP, shortest: int = SHORTEST) -> UInt8[np.ndarray, "s s 3"]:
    """The centre size × size of the picture with its shortest side at `shortest`: antialiased bicubic, in one step."""
    height, width = array.shape[:2]
    half = min(height, width) * size / shortest / 2
    return resized(array, (size, size), (width / 2 - half, height / 2 - half, width / 2 + half, height / 2 + half))


def resized(
    array: UInt8[np.ndarray, "h w 3"], size: tuple[int, int], box: tuple[float, float, float, float]
) -> UInt8[np.ndarray, "H W 3"]:
    """A part of a picture, (left, top, right, bottom), at another size (width, height): antialiased bicubic."""
    from PIL import Image

    return np.asarray(Image.fromarray(array).resize(size, Image.Resampling.BICUBIC, box=box))
