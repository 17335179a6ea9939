"""Positive semi-definite matrices: checks, factors, projections, Mahalanobis distances."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from likewise.errors import InputError, ShapeError
from likewise.types import Array

PSD_SLACK = 1e-8
"""How far below zero, relative to the largest, an eigenvalue may lie and still count as rounding."""


def psd(M: ArrayLike, *, dim: int | None = None, where: str = "metric") -> Array:
    """M as a symmetric positive semi-definite float64 matrix, or an InputError that says why not."""
    try:
        A = np.asarray(M, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where} is not a matrix of numbers: {error}") from None
    if A.ndim != 2 or A.shape[0] != A.shape[1] or (dim is not None and A.shape[0] != dim):
        wanted = "(d, d)" if dim is None else f"({dim}, {dim})"
        raise ShapeError(f"{where}: expected shape {wanted}, got {A.shape}")
    if not np.isfinite(A).all():
        raise InputError(f"{where} contains NaN or infinity")
    scale = float(np.abs(A).max())
    if np.abs(A - A.T).max() > PSD_SLACK * max(scale, 1e-300):
        raise InputError(f"{where} is not symmetric; give (M + Mᵀ) / 2 if that is what you mean")
    A = (A + A.T) / 2
    smallest = float(np.linalg.eigvalsh(A)[0])
    if smallest < -PSD_SLACK * max(scale, 1e-300):
        raise InputError(f"{where} is not positive semi-definite: smallest eigenvalue {smallest:.3g}")
    return A


def project_psd(M: Array) -> Array:
    """The nearest positive semi-definite matrix in Frobenius norm: negative eigenvalues set to 0 [MLML Eq. 16]."""
    w, V = np.linalg.eigh((M + M.T) / 2)
    if w[0] >= 0:
        return np.asarray((M + M.T) / 2)
    positive = w > 0
    return np.asarray((V[:, positive] * w[positive]) @ V[:, positive].T)


def factor(M: Array) -> Array:
    """L (d, r) with M = L Lᵀ and r = rank M, so that (p − q)ᵀ M (p − q) = ‖Lᵀ p − Lᵀ q‖²."""
    w, V = np.linalg.eigh((M + M.T) / 2)
    keep = w > max(float(w[-1]), 0.0) * len(w) * np.finfo(np.float64).eps
    if not keep.any():
        return np.zeros((len(w), 1))
    return np.ascontiguousarray(V[:, keep] * np.sqrt(w[keep]))


def sqrt_psd(M: Array) -> Array:
    """The symmetric square root of a positive semi-definite matrix."""
    w, V = np.linalg.eigh((M + M.T) / 2)
    return np.asarray((V * np.sqrt(np.clip(w, 0, None))) @ V.T)


def squared_distances(P: Array, Q: Array) -> Array:
    """‖p_i − q_j‖² for all i, j: one BLAS product, centred first so that little is lost to cancellation."""
    centre = P.mean(axis=0)
    P, Q = P - centre, Q - centre
    C = np.einsum("id,id->i", P, P)[:, None] + np.einsum("jd,jd->j", Q, Q)[None, :] - 2.0 * (P @ Q.T)
    return np.asarray(np.maximum(C, 0.0, out=C))


def mahalanobis(P: Array, Q: Array, M: Array | None = None) -> Array:
    """C_ij = (p_i − q_j)ᵀ M (p_i − q_j) [MLML Eq. 8, 10]; M = None is the identity."""
    if M is None:
        return squared_distances(P, Q)
    L = factor(M)
    return squared_distances(P @ L, Q @ L)
