"""How a photo is brought to the size that a backbone was trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import UInt8

SHORTEST, CROP = 256, 224
"""The shortest side of a photo in pixels, and the side of the square that is cut from its middle."""


def crop(array: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "224 224 3"]:
    """The centre 224 × 224 of the picture with its shortest side at 256: antialiased bicubic, sampled in one step."""
    height, width = array.shape[:2]
    half = min(height, width) * CROP / SHORTEST / 2
    return resized(array, (CROP, CROP), (width / 2 - half, height / 2 - half, width / 2 + half, height / 2 + half))


def resized(
    array: UInt8[np.ndarray, "h w 3"], size: tuple[int, int], box: tuple[float, float, float, float]
) -> UInt8[np.ndarray, "H W 3"]:
    """A part of a picture, (left, top, right, bottom), at another size (width, height): antialiased bicubic."""
    from PIL import Image

    return np.asarray(Image.fromarray(array).resize(size, Image.Resampling.BICUBIC, box=box))
