"""The Marchenko–Pastur law, and how well a spectrum of singular values follows it [Polarity Fig. 13]."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from likewise.errors import InputError
from likewise.types import Array

GRID = 4096


@dataclass(frozen=True)
class MarchenkoPastur:
    """The limit law of the eigenvalues x of WᵀW / D, W (D, K) with entries of variance `scale`, `ratio` λ = K / D.

    p(x) = √((x₊ − x)(x − x₋)) / (2π s λ x) on x₋ ≤ x ≤ x₊ = s (1 ± √λ)²; for λ > 1 a share 1 − 1/λ lies at 0.
    `distance` is the largest gap between the two distribution functions (Kolmogorov–Smirnov): small is a good fit.
    """

    scale: float
    ratio: float
    distance: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("scale", self.scale), ("ratio", self.ratio)):
            if not (np.isfinite(value) and value > 0):
                raise InputError(f"{name}: expected a number > 0, got {value}")

    @property
    def support(self) -> tuple[float, float]:
        """x₋, x₊."""
        root = np.sqrt(self.ratio)
        return float(self.scale * (1 - root) ** 2), float(self.scale * (1 + root) ** 2)

    def density(self, x: ArrayLike) -> Array:
        """p(x) of the continuous part."""
        low, high = self.support
        v = np.asarray(x, dtype=np.float64)
        inside = (v > low) & (v < high) & (v > 0)
        safe = np.where(inside, v, 1.0)
        root = np.sqrt(np.where(inside, (high - safe) * (safe - low), 0.0))
        return np.asarray(np.where(inside, root / (2 * np.pi * self.scale * self.ratio * safe), 0.0))

    def log_density(self, log_sigma: ArrayLike) -> Array:
        """The density of log σ where σ² = x: 2 x p(x)."""
        x = np.exp(2 * np.asarray(log_sigma, dtype=np.float64))
        return 2 * x * self.density(x)

    def cdf(self, x: ArrayLike) -> Array:
        """The share of eigenvalues ≤ x, by the midpoint rule in θ, x = x₋ + (x₊ − x₋) sin² θ, where p dx is smooth."""
        low, high = self.support
        theta = (np.arange(GRID) + 0.5) * (np.pi / 2 / GRID)
        at = low + (high - low) * np.sin(theta) ** 2
        steps = self.density(at) * (high - low) * np.sin(2 * theta) * (np.pi / 2 / GRID)
        edges = low + (high - low) * np.sin(np.arange(GRID + 1) * (np.pi / 2 / GRID)) ** 2
        at_zero = max(0.0, 1 - 1 / self.ratio)
        cumulative = at_zero + np.concatenate([[0.0], np.cumsum(steps)])
        v = np.asarray(x, dtype=np.float64)
        return np.asarray(np.where(v < 0, 0.0, np.where(v < low, at_zero, np.interp(v, edges, cumulative))))


def marchenko_pastur(sigma: ArrayLike) -> MarchenkoPastur:
    """The law with the mean and variance of σ²: s = E x, λ = Var x / (E x)² [Polarity Fig. 13].

    `sigma` are all singular values of one Jacobian, or of many, (n, K). Of a cut spectrum (the k largest of K) the
    law is not that of Marchenko and Pastur: give all, or read `.distance` for what it is.
    """
    values = np.asarray(sigma, dtype=np.float64).ravel()
    if values.size < 2 or not np.isfinite(values).all() or (values < 0).any():
        raise InputError("sigma: expected at least two finite singular values ≥ 0")
    x = np.sort(values**2)
    mean, variance = float(x.mean()), float(x.var())
    if not variance > 0:
        raise InputError("sigma: all singular values are equal; there is no spread to fit")
    law = MarchenkoPastur(mean, variance / mean**2)
    return MarchenkoPastur(law.scale, law.ratio, _largest_gap(x, law.cdf(x)))


def _largest_gap(x: Array, cdf: Array) -> float:
    """sup |F_n − F| over sorted values; equal values are one step."""
    upper = np.searchsorted(x, x, side="right") / len(x)
    lower = np.searchsorted(x, x, side="left") / len(x)
    before = np.where(x > 0, cdf, 0.0)  # the law may jump at 0, and nowhere else
    return float(max(np.abs(upper - cdf).max(), np.abs(before - lower).max()))
