"""Optimal transport between many small weighted point sets: smoothed (batched Sinkhorn) and exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from likewise.core import linalg
from likewise.errors import InputError, ShapeError
from likewise.types import Array, Signature

Index = NDArray[np.int64]
Value = Literal["kl", "paper", "divergence", "sharp"]


@dataclass(frozen=True, eq=False)
class Pack:
    """Ragged sets stacked once, the form that every solver takes.

    points (P, d) and weights (P,) of all sets one after the other; set i is rows offsets[i] to offsets[i + 1].
    Points of weight zero have been dropped: they are inert.
    """

    points: Array
    weights: Array
    offsets: Index

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Index:
        """The number of points of each set."""
        return np.diff(self.offsets)

    @property
    def dim(self) -> int:
        """The number d of coordinates."""
        return int(self.points.shape[1])

    def rows(self, i: int) -> slice:
        """Where set i lies in `points` and `weights`."""
        return slice(int(self.offsets[i]), int(self.offsets[i + 1]))

    def project(self, L: Array) -> Pack:
        """The same sets in coordinates Lᵀ p: under them the Euclidean cost is the Mahalanobis cost of L Lᵀ."""
        return Pack(np.ascontiguousarray(self.points @ L), self.weights, self.offsets)


def pack(sets: Sequence[Signature]) -> Pack:
    """Stack signatures, without their zero-weight points."""
    if len(sets) == 0:
        raise ShapeError("X: expected at least one signature, got none")
    dim = sets[0].dim
    for i, s in enumerate(sets):
        if s.dim != dim:
            raise ShapeError(f"signature {i} has {s.dim} dimensions where signature 0 has {dim}")
    masks = [s.weights > 0 for s in sets]
    sizes = np.array([int(k.sum()) for k in masks], dtype=np.int64)
    return Pack(
        np.ascontiguousarray(np.concatenate([s.points[k] for s, k in zip(sets, masks, strict=True)])),
        np.concatenate([s.weights[k] for s, k in zip(sets, masks, strict=True)]),
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
    )


@dataclass(frozen=True, eq=False)
class Solutions:
    """What solving a list of pairs gives: value (n,), residual (n,) (L1 marginal error), iterations (n,).

    With plans=True, `plans` holds every plan one after the other, row-major, from plan_offsets[k]; `plan(k)` is (m, n).
    `f` and `g` hold the potentials the same way, and serve as `start=` of the next solve (a warm start).
    """

    value: Array
    residual: Array
    iterations: Index
    tol: float
    sizes: NDArray[np.int64]
    plans: Array | None
    plan_offsets: Index
    f: Array
    f_offsets: Index
    g: Array
    g_offsets: Index

    @property
    def converged(self) -> NDArray[np.bool_]:
        """Which pairs reached the tolerance."""
        return self.residual <= self.tol

    def plan(self, k: int) -> Array:
        """The transport plan F (m, n) of pair k."""
        if self.plans is None:
            raise InputError("plans were not kept; solve with plans=True")
        m, n = self.sizes[k]
        return self.plans[self.plan_offsets[k] : self.plan_offsets[k] + m * n].reshape(m, n)


def solve_pairs(
    X: Pack,
    Y: Pack,
    left: Index,
    right: Index,
    gamma: float,
    *,
    value: Value = "kl",
    tol: float = 1e-6,
    max_iter: int = 10_000,
    plans: bool = False,
    start: Solutions | None = None,
    n_jobs: int = 1,
) -> Solutions:
    """Solve pair k = (X[left[k]], Y[right[k]]) for every k, under the Euclidean cost of the packed coordinates.

    F minimises ⟨C, F⟩ + γ KL(F ‖ a bᵀ) over plans with marginals a, b [MLML Eq. 4–7]; `value` says which number is returned.
    """
    from scipy.special import logsumexp

    n = len(left)
    m_, n_ = X.sizes[left], Y.sizes[right]
    po, fo, go = (np.concatenate([[0], np.cumsum(s)]).astype(np.int64) for s in (m_ * n_, m_, n_))
    out, f_all, g_all = np.zeros(po[-1]), np.zeros(fo[-1]), np.zeros(go[-1])
    values, residual, iterations = np.zeros(n), np.zeros(n), np.zeros(n, dtype=np.int64)
    for k in range(n):
        i, j = X.rows(int(left[k])), Y.rows(int(right[k]))
        a, b = X.weights[i], Y.weights[j]
        C = linalg.squared_distances(X.points[i], Y.points[j])
        la, lb, K = np.log(a), np.log(b), -C / gamma
        f, g = np.zeros_like(a), np.zeros_like(b)
        if start is not None:
            g = start.g[start.g_offsets[k] : start.g_offsets[k + 1]] / gamma
        for it in range(max_iter):
            f = -logsumexp(K + (g + lb)[None, :], axis=1)
            g = -logsumexp(K + (f + la)[:, None], axis=0)
            if it % 5 == 4:
                F = np.exp(K + (f + la)[:, None] + (g + lb)[None, :])
                residual[k] = np.abs(F.sum(1) - a).sum()
                if residual[k] <= tol:
                    break
        iterations[k] = it + 1
        F = np.exp(K + (f + la)[:, None] + (g + lb)[None, :])
        kl = gamma * (a @ f + b @ g)
        sharp = float((C * F).sum())
        values[k] = {"kl": kl, "sharp": sharp, "paper": kl + gamma * (a @ la + b @ lb)}[value]
        out[po[k] : po[k + 1]], f_all[fo[k] : fo[k + 1]], g_all[go[k] : go[k + 1]] = F.ravel(), gamma * f, gamma * g
    sizes = np.stack([m_, n_], axis=1)
    return Solutions(values, residual, iterations, tol, sizes, out if plans else None, po, f_all, fo, g_all, go)


def exact(C: Array, a: Array, b: Array) -> tuple[float, Array]:
    """Exact optimal transport, min ⟨C, F⟩ over plans with marginals a, b: the oracle of γ → 0. Returns (value, plan)."""
    from scipy.optimize import linear_sum_assignment, linprog
    from scipy.sparse import eye_array, kron, vstack

    m, n = C.shape
    if m == n and np.allclose(a, 1 / m, rtol=1e-12, atol=0) and np.allclose(b, 1 / n, rtol=1e-12, atol=0):
        rows, columns = linear_sum_assignment(C)
        F = np.zeros((m, n))
        F[rows, columns] = 1 / m
        return float((C * F).sum()), F
    A = vstack([kron(eye_array(m), np.ones((1, n))), kron(np.ones((1, m)), eye_array(n))], format="csr")
    scale = max(float(np.abs(C).max()), 1e-300)
    solved = linprog(C.ravel() / scale, A_eq=A[:-1], b_eq=np.concatenate([a, b])[:-1], bounds=(0, None), method="highs")
    if solved.x is None:
        raise InputError(f"exact transport failed: {solved.message}")
    F = solved.x.reshape(m, n)
    return float((C * F).sum()), F


def scatter(X: Pack, Y: Pack, left: Index, right: Index, solved: Solutions, weights: Array) -> Array:
    """Σ_k weights[k] · G_k with G = Σ_ij F_ij (p_i − q_j)(p_i − q_j)ᵀ, the gradient of a sum of values in M [MLML Eq. 15].

    As Zᵀ L Z with L the graph Laplacian of the weighted plans over the stacked points: never one d × d matrix a pair.
    X and Y are packed in the coordinates in which the gradient is wanted (usually unprojected), plans from `solved`.
    """
    from scipy.sparse import csr_array

    if solved.plans is None:
        raise InputError("scatter needs plans; solve with plans=True")
    m, n = solved.sizes[:, 0], solved.sizes[:, 1]
    mass = solved.plans * np.repeat(weights, m * n)
    pair = np.repeat(np.arange(len(left)), m * n)
    within = np.arange(len(mass)) - solved.plan_offsets[pair]
    i = X.offsets[left][pair] + within // n[pair]
    j = Y.offsets[right][pair] + within % n[pair]
    W = csr_array((mass, (i, j)), shape=(len(X.points), len(Y.points)))
    cross = X.points.T @ (W @ Y.points)
    rows, columns = W.sum(axis=1), W.sum(axis=0)
    G = (X.points * rows[:, None]).T @ X.points + (Y.points * columns[:, None]).T @ Y.points - cross - cross.T
    return np.asarray((G + G.T) / 2)


def auto_gamma(X: Pack, Y: Pack | None = None, *, fraction: float = 0.05, most: int = 2000) -> float:
    """0.05 × the median ground cost: among the points of X, or between those of X and Y. Deterministic, above 0."""
    P = _thin(X.points, most)
    if Y is None:
        C = linalg.squared_distances(P, P)[np.triu_indices(len(P), 1)]
    else:
        C = linalg.squared_distances(P, _thin(Y.points, most)).ravel()
    median = float(np.median(C)) if C.size else 0.0
    if median <= 0 and C.size:
        median = float(C.mean())
    return fraction * median if median > 0 else 1e-12


def _thin(points: Array, most: int) -> Array:
    """At most `most` rows, evenly spaced."""
    if len(points) <= most:
        return points
    return points[np.linspace(0, len(points) - 1, most).astype(np.int64)]
