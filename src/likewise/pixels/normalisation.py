"""Numba kernels of instance normalisation on channels-last pictures: statistics in one pass, the rest in a second."""

# mypy: ignore-errors
# The arguments are numba's to type: jitted functions of arrays.

from __future__ import annotations

import numpy as np

from likewise.pixels.lookup import cached

BLOCK = 32
"""Rows that are summed in float32 before they are added up in float64."""


def normalise(x: np.ndarray, other: np.ndarray, eps: float, relu: bool, residual: bool) -> None:
    """x (pixels, channels) ← n(x), its ReLU, or relu(other + relu(n(x)))."""
    n, channels = x.shape
    side = next(k for k in (8, 4, 2, 1) if n % k == 0 and (k == 1 or k * channels <= 256))
    wide, beside = x.reshape(n // side, side * channels), other.reshape(n // side, side * channels)
    mean, variance = _statistics(wide)
    mean, variance = _joined(mean, variance, side, channels)
    scale = 1 / np.sqrt(variance + eps)
    factors = [np.tile(v, side).astype(np.float32) for v in (scale, -mean * scale)]
    if residual:
        _add(wide, *factors, beside)
    else:
        _apply(wide, *factors, np.float32(0 if relu else -np.inf))


def _joined(mean: np.ndarray, variance: np.ndarray, side: int, channels: int) -> tuple[np.ndarray, np.ndarray]:
    """Statistics of `side` groups of equal size as those of all: the variance gains that of the means."""
    mean, variance = mean.reshape(side, channels), variance.reshape(side, channels)
    return mean.mean(axis=0), variance.mean(axis=0) + mean.var(axis=0)


@cached
def _statistics(x):
    """Mean and variance of every column, around the first block's mean, so that no digits cancel."""
    n, width = x.shape
    centre = np.zeros(width, np.float32)
    first = min(BLOCK, n)
    for i in range(first):
        for j in range(width):
            centre[j] += x[i, j] / np.float32(first)
    total, squares = np.zeros(width), np.zeros(width)
    some, some_squares = np.empty(width, np.float32), np.empty(width, np.float32)
    for start in range(0, n, BLOCK):
        some[:] = 0
        some_squares[:] = 0
        for i in range(start, min(start + BLOCK, n)):
            for j in range(width):
                d = x[i, j] - centre[j]
                some[j] += d
                some_squares[j] += d * d
        for j in range(width):
            total[j] += some[j]
            squares[j] += some_squares[j]
    mean = total / n
    return centre + mean, np.maximum(squares / n - mean * mean, 0.0)


@cached
def _apply(x, scale, shift, least):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] = max(x[i, j] * scale[j] + shift[j], least)


@cached
def _add(x, scale, shift, other):
    zero = np.float32(0)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] = max(other[i, j] + max(x[i, j] * scale[j] + shift[j], zero), zero)
