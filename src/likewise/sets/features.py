"""Picture features that need no network: block-LBP, block-HOG, grey pixels, the window of most motion.

A `describe` of this level maps a list of pictures, or of their paths, to (n, d); `describe_with(block_lbp)` is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from likewise.errors import InputError, ShapeError
from likewise.types import Array

Picture: TypeAlias = "str | PathLike[str] | NDArray[Any]"
Describe: TypeAlias = Callable[[Sequence[Any]], Any]

LBP_BINS = 59
"""Uniform patterns of 8 neighbours: 58 with at most two changes around the circle, and one for all others."""


def grey(picture: Picture) -> Array:
    """A picture, or the file at a path, as grey (h, w) in [0, 1] by the luma weights .299, .587, .114."""
    if isinstance(picture, str | PathLike):
        from likewise.media import read_array

        picture = read_array(picture)
    array = np.asarray(picture)
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3)) or 0 in array.shape:
        raise ShapeError(f"picture: expected (h, w) or (h, w, 3), got shape {array.shape}")
    values = array.astype(np.float64) / (255.0 if array.dtype == np.uint8 else 1.0)
    if not np.isfinite(values).all():
        raise InputError("picture contains NaN or infinity")
    if values.ndim == 2:
        return values
    return np.asarray(values @ (0.299, 0.587, 0.114) if values.shape[2] == 3 else values[:, :, 0])


def block_lbp(picture: Picture, grid: tuple[int, int] = (8, 8), *, radius: int = 1, root: bool = False) -> Array:
    """Histograms (blocks, 59) of uniform local binary patterns, one a block of the grid, row by row; each sums to 1.

    A pixel's pattern tells which of its 8 neighbours at `radius` are at least as bright (beyond the
    border the nearest pixel stands in). `root` takes square roots, under which the
    Euclidean distance is Hellinger's.
    """
    from skimage.feature import local_binary_pattern

    image = np.round(grey(picture) * 255).astype(np.uint8)
    patterns: Any = local_binary_pattern
    padded = np.pad(image, radius, mode="edge")
    codes: NDArray[np.int64] = patterns(padded, P=8, R=radius, method="nri_uniform").astype(np.int64)
    codes = codes[radius:-radius, radius:-radius]
    block = _block_index(codes.shape, grid)
    blocks = grid[0] * grid[1]
    counts = np.bincount((block * LBP_BINS + codes).ravel(), minlength=blocks * LBP_BINS).reshape(blocks, LBP_BINS)
    histograms: Array = counts / counts.sum(axis=1, keepdims=True)
    return np.sqrt(histograms) if root else histograms


def block_hog(picture: Picture, grid: tuple[int, int] = (8, 8), *, orientations: int = 9) -> Array:
    """Histograms (blocks, orientations) of oriented gradients, one a block of the grid, row by row, of unit length."""
    from skimage.feature import hog

    image = grey(picture)
    _block_index(image.shape, grid)  # refuses a grid finer than the picture
    h, w = image.shape[0] // grid[0], image.shape[1] // grid[1]
    cells = hog(
        image[: h * grid[0], : w * grid[1]],
        orientations=orientations,
        pixels_per_cell=(h, w),
        cells_per_block=(1, 1),
        block_norm="L2",
    )
    return np.asarray(cells, dtype=np.float64).reshape(grid[0] * grid[1], orientations)


def grey_pixels(picture: Picture, size: tuple[int, int] = (20, 20)) -> Array:
    """The picture itself, grey, resized to (h, w) by area means, as one row (1, h·w)."""
    return _resize(grey(picture), size).reshape(1, -1)


def describe_with(feature: Callable[..., Array], **options: Any) -> Describe:
    """`feature` of each picture, flattened, as the rows of (n, d): a `describe` for signatures of many pictures."""

    def describe(pictures: Sequence[Picture]) -> Array:
        return np.stack([feature(p, **options).ravel() for p in pictures])

    return describe


NAMES = ("embed", "pixels", "lbp")
"""embed: 1280 numbers of a network; pixels: the image, grey, 20 × 20; lbp: 8 × 8 histograms of local patterns."""


class Described:
    """A feature that needs no network, with a name: what `likewise.nn.features` takes for a net."""

    side = None  # files are decoded at full size: patterns of pixels change with the scale

    def __init__(self, name: str, feature: Callable[[Any], Array]) -> None:
        self.name, self.feature = name, feature

    def embed(self, images: Sequence[Any]) -> Array:
        """One row an image."""
        return np.stack([self.feature(image).ravel() for image in images])


def named(features: Any) -> Any:
    """The net that a name of `NAMES` stands for; anything else is taken as it is."""
    if not isinstance(features, str):
        return features
    nets = {
        "embed": None,
        "pixels": Described("pixels", grey_pixels),
        "lbp": Described("lbp", lambda image: block_lbp(image, root=True)),
    }
    if features not in nets:
        raise InputError(f"features: expected one of {', '.join(NAMES)}, got {features!r}")
    return nets[features]


def motion_window(
    frames: Sequence[Picture], *, size: tuple[int, int] = (60, 80), window: tuple[int, int] = (48, 48)
) -> Array:
    """The frames (n, 48, 48), grey, resized to 80 × 60, cut to the window in which they change most.

    Motion is Σ_t |x_{t+1} − x_t| over the window; of equal windows the first, from the top. One window a video.
    """
    if len(frames) == 0:
        raise ShapeError("frames: expected at least one frame, got none")
    if window[0] > size[0] or window[1] > size[1]:
        raise InputError(f"window: expected at most the frame's {size}, got {window}")
    small = np.stack([_resize(grey(f), size) for f in frames])
    total = np.pad(np.abs(np.diff(small, axis=0)).sum(axis=0), ((1, 0), (1, 0))).cumsum(axis=0).cumsum(axis=1)
    (h, w), T = window, total
    motion = T[h:, w:] - T[:-h, w:] - T[h:, :-w] + T[:-h, :-w]
    top, left = np.unravel_index(int(np.round(motion, 9).argmax()), motion.shape)
    return np.ascontiguousarray(small[:, top : top + h, left : left + w])


def _block_index(shape: tuple[int, ...], grid: tuple[int, int]) -> NDArray[np.int64]:
    """Which block of the grid each pixel lies in, (h, w)."""
    h, w = shape
    if min(grid) < 1 or grid[0] > h or grid[1] > w:
        raise InputError(f"grid: expected 1 to {h} rows and 1 to {w} columns of blocks, got {grid}")
    rows, columns = np.arange(h) * grid[0] // h, np.arange(w) * grid[1] // w
    return np.asarray(rows[:, None] * grid[1] + columns[None, :], dtype=np.int64)


def _resize(image: Array, size: tuple[int, int]) -> Array:
    import cv2

    return np.asarray(cv2.resize(image, (size[1], size[0]), interpolation=cv2.INTER_AREA), dtype=np.float64)
