"""Numba kernels of correlation lookups: a window of whole places, then two linear interpolations in place.

Every point's windows are independent; rows of points are shared out over as many threads as torch would use.
"""

# mypy: ignore-errors
# The arguments are numba's to type: jitted functions of arrays.

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
from numba import njit

from likewise.media import cache_folder

SHARE = 2048
"""The fewest points that are worth a thread."""


def cached(function: Any) -> Any:
    """njit without the GIL, its machine code kept in the user's cache folder."""
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(cache_folder() / "numba")
    try:
        fast = {"reassoc", "contract", "nsz"}
        return njit(cache=True, nogil=True, error_model="numpy", boundscheck=False, fastmath=fast)(function)
    finally:
        numba.config.CACHE_DIR = before


def all_pairs(pyramid: list[np.ndarray], points: np.ndarray, radius: int, out: np.ndarray) -> None:
    """Windows of the volumes (n, h, w) around points (n, 2) into out (n, levels (2r + 1)²)."""

    def work(k0: int, k1: int) -> None:
        for level, volume in enumerate(pyramid):
            _read(volume, points, 0.5**level, radius, level * (2 * radius + 1) ** 2, out, k0, k1)

    _shared(work, len(points))


def on_demand(rows: np.ndarray, maps: list[np.ndarray], points: np.ndarray, radius: int, out: np.ndarray) -> None:
    """Windows of ⟨rows[n], map⟩ for maps (b, h, w, c) around points (n, 2) into out (n, levels (2r + 1)²)."""

    def work(k0: int, k1: int) -> None:
        for level, features in enumerate(maps):
            each = len(points) // len(features)
            first = level * (2 * radius + 1) ** 2
            _compute(rows, features, points, 0.5**level, radius, first, out, k0, k1, each)

    _shared(work, len(points))


def _shared(work: Callable[[int, int], None], n: int) -> None:
    import torch

    threads = min(torch.get_num_threads(), max(1, n // SHARE))
    if threads == 1:
        work(0, n)
        return
    bounds = np.linspace(0, n, threads + 1).astype(int)
    with ThreadPoolExecutor(threads, "likewise-lookup") as pool:
        list(pool.map(work, bounds[:-1].tolist(), bounds[1:].tolist()))


@njit(inline="always")
def _place(value, size, radius):
    """The whole place below a coordinate, and how far beyond it; one that is far outside stays a number that fits."""
    low = np.floor(value)
    far = size + 2 * radius + 2
    if not (low > -far):
        return -far, value - low
    if low > far:
        return far, value - low
    return int(low), value - low


@njit(inline="always")
def _blend(window, side, fx, fy, out, k, first):
    """Interpolate a window (x slowest) at whole places in x, then in y, into a row of the output."""
    for i in range(side):
        for j in range(side):
            low = window[i, j] + fx * (window[i + 1, j] - window[i, j])
            high = window[i, j + 1] + fx * (window[i + 1, j + 1] - window[i, j + 1])
            out[k, first + i * side + j] = low + fy * (high - low)


@cached
def _read(volume, points, scale, radius, first, out, k0, k1):
    h, w = volume.shape[1:3]
    side = 2 * radius + 1
    window = np.empty((side + 1, side + 1), volume.dtype)
    scale = points.dtype.type(scale)
    for k in range(k0, k1):
        x, fx = _place(points[k, 0] * scale, w, radius)
        y, fy = _place(points[k, 1] * scale, h, radius)
        window[:] = 0
        for row in range(max(y - radius, 0), min(y + radius + 2, h)):
            for column in range(max(x - radius, 0), min(x + radius + 2, w)):
                window[column - x + radius, row - y + radius] = volume[k, row, column]
        _blend(window, side, fx, fy, out, k, first)


@njit(inline="always")
def _one(u, v):
    total = u.dtype.type(0)
    for i in range(len(u)):
        total += u[i] * v[i]
    return total


@njit(inline="always")
def _four(u, places, at):
    """Four dot products at a time: u is read once for all of them."""
    p, q, r, s = places[at], places[at + 1], places[at + 2], places[at + 3]
    a = b = c = d = u.dtype.type(0)
    for i in range(len(u)):
        a += u[i] * p[i]
        b += u[i] * q[i]
        c += u[i] * r[i]
        d += u[i] * s[i]
    return a, b, c, d


@cached
def _compute(rows, features, points, scale, radius, first, out, k0, k1, each):
    h, w = features.shape[1:3]
    side = 2 * radius + 1
    window = np.empty((side + 1, side + 1), features.dtype)
    scale = points.dtype.type(scale)
    for k in range(k0, k1):
        picture = k // each
        x, fx = _place(points[k, 0] * scale, w, radius)
        y, fy = _place(points[k, 1] * scale, h, radius)
        window[:] = 0
        left, right = max(x - radius, 0), min(x + radius + 2, w)
        for row in range(max(y - radius, 0), min(y + radius + 2, h)):
            j = row - y + radius
            column = left
            while column + 4 <= right:
                i = column - x + radius
                places = features[picture, row]
                window[i, j], window[i + 1, j], window[i + 2, j], window[i + 3, j] = _four(rows[k], places, column)
                column += 4
            for last in range(column, right):
                window[last - x + radius, j] = _one(rows[k], features[picture, row, last])
        _blend(window, side, fx, fy, out, k, first)
