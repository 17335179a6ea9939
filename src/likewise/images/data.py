"""What the images level reads: paths, folders, arrays, Pillow images and tensors, all brought to uint8 (h, w, 3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import UInt8

from likewise import inputs
from likewise.nn.backbone import CROP, SHORTEST, resize
from likewise.types import Image

Picture: TypeAlias = Any

DECODED_SIDE = 2 * SHORTEST
"""A large JPEG is decoded no smaller than this, so that the resampling, not the decoder, decides the result."""

CELL, LONGEST = 32, 3
"""Whole pictures get sides that are multiples of 32 px, the longer at most three times the shorter."""


def pictures(images: Any) -> Iterator[Image]:
    """One image after the other, as `inputs.images` has it."""
    return inputs.images(images, where="image")


def picture(item: Any, *, where: str = "image") -> UInt8[np.ndarray, "h w 3"]:
    """One image as uint8 (h, w, 3); `where` stands for it in errors."""
    return inputs.image(item, where=where).reduced(DECODED_SIDE)


def name_of(item: Any) -> str:
    """The path that an image came from, or nothing where it came from memory."""
    return inputs.image(item).name


count = inputs.count


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
