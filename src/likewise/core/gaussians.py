"""Gaussians fitted to samples, and the Fréchet distance (= W2²) between two of them, without a matrix square root."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likewise.core.linalg import factor, psd
from likewise.errors import InputError, ShapeError
from likewise.types import Array

CHUNK = 4096
"""Rows that are brought to float64 at a time."""


def frechet(mean_a: ArrayLike, cov_a: ArrayLike, mean_b: ArrayLike, cov_b: ArrayLike) -> float:
    """The squared Wasserstein distance of two Gaussians: ‖μ_a − μ_b‖² + Tr(Σ_a + Σ_b − 2 (Σ_a Σ_b)^½) ≥ 0."""
    a, b = _vector(mean_a, "mean_a"), _vector(mean_b, "mean_b")
    if a.shape != b.shape:
        raise ShapeError(f"mean_b: expected {len(a)} coordinates as in mean_a, got {len(b)}")
    A = factor(psd(cov_a, dim=len(a), where="cov_a"))
    B = factor(psd(cov_b, dim=len(a), where="cov_b"))
    return frechet_of_factors(a, A, b, B)


def frechet_of_factors(mean_a: Array, A: Array, mean_b: Array, B: Array) -> float:
    """The same from factors Σ_a = A Aᵀ, Σ_b = B Bᵀ: ‖μ_a − μ_b‖² + ‖A‖² + ‖B‖² − 2 ‖Aᵀ B‖_*, the nuclear norm.

    Tr (Σ_a Σ_b)^½ is the sum of the singular values of Aᵀ B. Taken from eigenvalues of the product Σ_a Σ_b, as is
    common, it loses half of its digits wherever a covariance is nearly singular, which those of features always are.
    """
    shared = np.linalg.svd(A.T @ B, compute_uv=False).sum()
    spread = (A * A).sum() + (B * B).sum() - 2.0 * shared
    return float(max(((mean_a - mean_b) ** 2).sum() + spread, 0.0))


def moments(X: NDArray[np.floating], *, chunk: int = CHUNK) -> tuple[Array, Array]:
    """Mean (d,) and covariance (d, d) with n − 1, in float64, by chunks of rows."""
    mean = mean_of(X, chunk=chunk)
    scatter = np.zeros((len(mean), len(mean)))
    for start in range(0, len(X), chunk):
        rows = X[start : start + chunk].astype(np.float64) - mean
        scatter += rows.T @ rows
    return mean, scatter / (_count(X) - 1)


def fitted(X: NDArray[np.floating]) -> tuple[Array, Array]:
    """Mean (d,) and a factor (d, r) of the covariance: the centred rows themselves where they are fewer than d."""
    if _count(X) > X.shape[1]:
        mean, covariance = moments(X)
        return mean, factor(covariance)
    mean = mean_of(X)
    return mean, np.ascontiguousarray((X.astype(np.float64) - mean).T / np.sqrt(len(X) - 1))


def mean_of(X: NDArray[np.floating], *, chunk: int = CHUNK) -> Array:
    """The mean of the rows, summed in float64."""
    total = np.zeros(X.shape[1])
    for start in range(0, len(X), chunk):
        total += X[start : start + chunk].sum(axis=0, dtype=np.float64)
    return total / max(len(X), 1)


def _count(X: NDArray[np.floating]) -> int:
    if len(X) < 2:
        raise ShapeError(f"X: a covariance needs at least two rows, got {len(X)}")
    return len(X)


def _vector(mean: ArrayLike, where: str) -> Array:
    try:
        v = np.asarray(mean, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where} is not a vector of numbers: {error}") from None
    if v.ndim != 1 or v.size == 0:
        raise ShapeError(f"{where}: expected shape (d,), got {v.shape}")
    if not np.isfinite(v).all():
        raise InputError(f"{where} contains NaN or infinity")
    return v
