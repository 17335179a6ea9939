"""What two levels share: positive semi-definite matrices, Gaussians and their Fréchet distance, tiled neighbours.

Neighbours are found a tile at a time: memory is that of a few tiles, whatever the number of rows. Rows may be float32;
every tile is computed in float64, centred on the mean of X so that little is lost to cancellation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likewise.errors import InputError, ShapeError
from likewise.types import Array

Rows = NDArray[np.floating]
Index = NDArray[np.int64]

# ------------------------------------------------------------------------------- positive semi-definite matrices

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


# ------------------------------------------------------------------------------------------------- Gaussians

CHUNK = 4096
"""Rows that are brought to float64 at a time."""


def frechet_of_factors(mean_a: Array, A: Array, mean_b: Array, B: Array) -> float:
    """The squared Wasserstein distance of two Gaussians: ‖μ_a − μ_b‖² + Tr(Σ_a + Σ_b − 2 (Σ_a Σ_b)^½) ≥ 0.

    From factors Σ_a = A Aᵀ, Σ_b = B Bᵀ it is ‖μ_a − μ_b‖² + ‖A‖² + ‖B‖² − 2 ‖Aᵀ B‖_*, the nuclear norm.

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


# ------------------------------------------------------------------------------------- distances, a tile at a time

TILE = 2048
"""Rows and columns of a tile: 32 MB, large enough for BLAS to run at its full rate."""

ROUNDING = 256 * np.finfo(np.float64).eps
"""‖x − y‖² below this share of ‖x‖² + ‖y‖² is rounding, and counts as 0: equal rows are at distance 0."""


def tiles(X: Rows, Y: Rows | None = None, *, tile: int = TILE) -> Iterator[tuple[slice, slice, Array]]:
    """‖x_i − y_j‖² by tiles (rows of X, rows of Y, block); with Y = None of X to itself, only blocks with j ≥ i.

    A block may be overwritten by the caller; it is not used again.
    """
    _check(X, Y, tile)
    centre = mean_of(X)
    other = X if Y is None else Y
    for i in _slices(len(X), tile):
        P = X[i].astype(np.float64) - centre
        for j in _slices(len(other), tile, start=i.start if Y is None else 0):
            yield i, j, _squared(P, P if Y is None and i == j else other[j].astype(np.float64) - centre)


def _squared(P: Array, Q: Array) -> Array:
    p, q = np.einsum("id,id->i", P, P)[:, None], np.einsum("jd,jd->j", Q, Q)[None, :]
    D = P @ Q.T
    D *= -2.0
    D += p
    D += q
    if D.min() <= ROUNDING * (p.max() + q.max()):  # seldom: otherwise no entry can be rounding alone
        D[ROUNDING * (p + q) >= D] = 0.0
    return D


def _slices(n: int, tile: int, start: int = 0) -> list[slice]:
    return [slice(s, min(s + tile, n)) for s in range(start, n, tile)]


def _check(X: Rows, Y: Rows | None, tile: int) -> None:
    for name, rows in (("X", X), ("Y", X if Y is None else Y)):
        if rows.ndim != 2 or 0 in rows.shape:
            raise ShapeError(f"{name}: expected rows (n, d), got shape {rows.shape}")
    if Y is not None and Y.shape[1] != X.shape[1]:
        raise ShapeError(f"Y: expected rows of {X.shape[1]} numbers as in X, got {Y.shape[1]}")
    if tile < 1:
        raise InputError(f"tile: expected a whole number ≥ 1, got {tile}")


# ---------------------------------------------------------------------------------------------- nearest neighbours


def nearest(X: Rows, Y: Rows | None = None, k: int = 1, *, tile: int = TILE) -> tuple[Array, Index]:
    """The k nearest rows of Y to each row of X: distances (n, k), ascending, and indices (n, k).

    With Y = None the nearest other rows of X: a row is not its own neighbour.
    """
    most = len(X) - 1 if Y is None else len(Y)
    if not 1 <= k <= most:
        raise InputError(f"k: expected 1 to {most}, the number of {'other ' if Y is None else ''}rows, got {k}")
    best = _Best(len(X), k)
    for i, j, D in tiles(X, Y, tile=tile):
        if Y is None and i == j:
            np.fill_diagonal(D, np.inf)
        elif Y is None:
            best.offer(j, i, D.T)
        best.offer(i, j, D)
    return np.sqrt(best.distance), best.index


def radii(X: Rows, k: int, *, tile: int = TILE) -> Array:
    """The distance of each row to its k-th nearest other row: the radius of its ball."""
    return np.ascontiguousarray(nearest(X, None, k, tile=tile)[0][:, -1])


class _Best:
    """The k smallest squared distances seen so far of each row, ascending, and whose they are."""

    def __init__(self, n: int, k: int) -> None:
        self.k = k
        self.distance = np.full((n, k), np.inf)
        self.index = np.full((n, k), -1, dtype=np.int64)

    def offer(self, rows: slice, columns: slice, D: Array) -> None:
        """See a block; only rows in which it has something nearer are sorted."""
        at = np.flatnonzero(D.min(axis=1) < self.distance[rows, -1])
        few = min(self.k, D.shape[1])
        block = D[at]
        near = np.argpartition(block, few - 1, axis=1)[:, :few]
        at += rows.start
        distance = np.concatenate([self.distance[at], np.take_along_axis(block, near, axis=1)], axis=1)
        index = np.concatenate([self.index[at], near + columns.start], axis=1)
        order = np.argsort(distance, axis=1, kind="stable")[:, : self.k]
        self.distance[at] = np.take_along_axis(distance, order, axis=1)
        self.index[at] = np.take_along_axis(index, order, axis=1)


# ---------------------------------------------------------------------------------------------------------- balls


@dataclass(frozen=True, eq=False)
class Covered:
    """How the n points of one side lie to the balls of the other.

    `margin` (n,) is the distance to the surface of the nearest ball, ≤ 0 inside of one; `inside` (n,) counts the balls
    that hold the point; `distance` (n,) and `index` (n,) are those of the nearest point of the other side.
    """

    margin: Array
    inside: Index
    distance: Array
    index: Index


def cover(X: Rows, Y: Rows, radius_x: Array, radius_y: Array, *, tile: int = TILE) -> tuple[Covered, Covered]:
    """How X lies to the balls around Y, and Y to those around X, in one pass; a ball holds its surface."""
    for name, radius, rows in (("radius_x", radius_x, X), ("radius_y", radius_y, Y)):
        if radius.shape != (len(rows),):
            raise ShapeError(f"{name}: expected ({len(rows)},), one a row, got shape {radius.shape}")
    left, right = _Cover(len(X)), _Cover(len(Y))
    for i, j, D in tiles(X, Y, tile=tile):
        np.sqrt(D, out=D)
        left.see(i, j, D, radius_y[j][None, :])
        right.see(j, i, D.T, radius_x[i][None, :])
    return left.found(), right.found()


class _Cover:
    def __init__(self, n: int) -> None:
        self.margin, self.distance = np.full(n, np.inf), np.full(n, np.inf)
        self.inside, self.index = np.zeros(n, dtype=np.int64), np.full(n, -1, dtype=np.int64)

    def see(self, rows: slice, columns: slice, D: Array, radius: Array) -> None:
        self._nearest(rows, columns, D)
        gap = D - radius
        self.margin[rows] = np.minimum(self.margin[rows], gap.min(axis=1))
        self.inside[rows] += np.count_nonzero(gap <= 0, axis=1)

    def _nearest(self, rows: slice, columns: slice, D: Array) -> None:
        lowest = D.min(axis=1)
        at = np.flatnonzero(lowest < self.distance[rows])
        self.index[at + rows.start] = D[at].argmin(axis=1) + columns.start
        self.distance[at + rows.start] = lowest[at]

    def found(self) -> Covered:
        return Covered(self.margin, self.inside, self.distance, self.index)
