"""Optimal transport between many small weighted point sets: smoothed (batched Sinkhorn) and exact."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lstsq
from scipy.optimize import linear_sum_assignment, linprog
from scipy.sparse import eye_array, kron, vstack

from likewise import numeric
from likewise.errors import InputError, ShapeError
from likewise.sets.transport import kernels, panels
from likewise.sets.transport.panels import PATIENT, QUICK, WIDTH, offsets
from likewise.sets.transport.panels import one_blas_thread as one_blas_thread
from likewise.types import Array, Signature

Index = NDArray[np.int64]
Value = Literal["kl", "paper", "divergence", "sharp"]

ALONE = 200
"""Steps in numpy that a pair by itself is given."""
ROOM = 65_536
"""Entries up to which a hard problem is solved by Newton steps with a factorisation, whose room is twice this."""
BLUR = 0.2
"""γ "auto" as a share of the median ground cost."""


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

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """All of it by name: Pack(**arrays) is the same again."""
        return {"points": self.points, "weights": self.weights, "offsets": self.offsets}

    def rows(self, i: int) -> slice:
        """Where set i lies in `points` and `weights`."""
        return slice(int(self.offsets[i]), int(self.offsets[i + 1]))

    def project(self, L: Array) -> Pack:
        """The same sets in coordinates Lᵀ p: under them the Euclidean cost is the Mahalanobis cost of L Lᵀ."""
        return Pack(np.ascontiguousarray(self.points @ L), self.weights, self.offsets)

    def take(self, which: Index) -> Pack:
        """The sets `which`, in that order."""
        sizes = self.sizes[which]
        ends = np.cumsum(sizes)
        rows = np.arange(int(ends[-1])) + np.repeat(self.offsets[which] - (ends - sizes), sizes)
        return Pack(np.ascontiguousarray(self.points[rows]), self.weights[rows], offsets(sizes))


def digest(arrays: dict[str, NDArray[Any]]) -> str:
    """sha256 of the shapes and bytes of arrays: whether they are the same as before."""
    sha = hashlib.sha256()
    for array in arrays.values():
        sha.update(f"{array.dtype.str}{array.shape}".encode())
        sha.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return sha.hexdigest()


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
        offsets(sizes),
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
    f: Array
    g: Array

    @classmethod
    def empty(cls, sizes: NDArray[np.int64], tol: float, plans: bool) -> Solutions:
        """Room for the results of pairs of these sizes (n, 2), none of them converged yet."""
        n, (rows, columns) = len(sizes), sizes.sum(axis=0)
        held = np.zeros(int(sizes.prod(axis=1).sum())) if plans else None
        steps = np.zeros(n, dtype=np.int64)
        return cls(np.zeros(n), np.full(n, np.inf), steps, tol, sizes, held, np.zeros(rows), np.zeros(columns))

    @cached_property
    def plan_offsets(self) -> Index:
        """Where each plan starts in `plans`."""
        return offsets(self.sizes.prod(axis=1))

    @cached_property
    def f_offsets(self) -> Index:
        """Where the row potentials of each pair start in `f`."""
        return offsets(self.sizes[:, 0])

    @cached_property
    def g_offsets(self) -> Index:
        """Where the column potentials of each pair start in `g`."""
        return offsets(self.sizes[:, 1])

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
    max_iter: int = 2000,
    plans: bool = False,
    start: Solutions | None = None,
    n_jobs: int = 1,
) -> Solutions:
    """Solve pair k = (X[left[k]], Y[right[k]]) for every k, under the Euclidean cost of the packed coordinates.

    F minimises ⟨C, F⟩ + γ KL(F ‖ a bᵀ) over plans with marginals a, b [MLML Eq. 4–7]; `value` says which number is
    returned. What the quick policy leaves unconverged is solved again with a patient one; `converged` tells the truth.
    """
    n_jobs = panels.workers(n_jobs)
    left, right = np.asarray(left, dtype=np.int64), np.asarray(right, dtype=np.int64)
    sizes = np.stack([X.sizes[left], Y.sizes[right]], axis=1)
    solved = Solutions.empty(sizes, tol, plans)
    if start is not None:
        if not np.array_equal(start.sizes, sizes):
            raise ShapeError("start: its pairs are not of the sizes of these pairs; leave it out")
        solved.g[:] = start.g
    sharp = value == "sharp"
    if len(sizes) == 1 and start is None:
        # Milliseconds in numpy; compiling the kernels takes seconds, once on a machine: they get what is too hard.
        _solve_in_numpy(X, Y, int(left[0]), int(right[0]), solved, gamma, min(max_iter, ALONE), sharp)
    area = sizes.prod(axis=1)
    large, warm = area > panels.LARGE, start is not None
    alone, patient = (panels.up_to(policy, max_iter) for policy in (panels.ALONE, PATIENT))
    attempts = [(~large, QUICK, WIDTH, warm), (large, alone, 1, warm)]
    # Newton steps with a factorisation end what conjugate gradients do not, where there is room for them.
    attempts += [(area <= ROOM, patient, WIDTH, False), (area > ROOM, patient, 1, False)]
    for which, policy, lanes, start_there in attempts:
        these = np.flatnonzero(which & ~solved.converged)
        panels.solve_pairs(X, Y, left, right, these, solved, gamma, policy, sharp, start_there, n_jobs, lanes)
    _shift(solved.value, value, X, Y, left, right, gamma, tol=tol, max_iter=max_iter, n_jobs=n_jobs)
    return solved


def _shift(values: Array, value: Value, X: Pack, Y: Pack, left: Index, right: Index, gamma: float, **how: Any) -> None:
    """From kl to the value asked for, in place, at the pairs (X[left], Y[right]); self-terms are solved once a set.

    paper = kl + γ (Σ a log a + Σ b log b); divergence = kl − ½ kl(P, P) − ½ kl(Q, Q). `how` is that of solve_pairs.
    Where values are those of X × X, the self-terms are on their diagonal.
    """

    def negative_entropies(Z: Pack, index: Index) -> Array:
        return np.add.reduceat(Z.weights * np.log(Z.weights), Z.offsets[:-1])[index]

    def self_terms(Z: Pack, index: Index) -> Array:
        sets, back = np.unique(index, return_inverse=True)
        return solve_pairs(Z, Z, sets, sets, gamma, **how).value[back.reshape(index.shape)]

    if value == "paper":
        values += gamma * (negative_entropies(X, left) + negative_entropies(Y, right))
    elif value == "divergence" and X is Y:
        whole = values.ndim == 2
        own = values.diagonal().copy() if whole else self_terms(X, np.stack([left, right]))
        values -= 0.5 * (own[:, None] + own if whole else own[0] + own[1])
    elif value == "divergence":
        values -= 0.5 * (self_terms(X, left) + self_terms(Y, right))


def _solve_in_numpy(
    X: Pack, Y: Pack, i: int, j: int, solved: Solutions, gamma: float, max_iter: int, sharp: bool
) -> None:
    """The only pair of `solved`, without the kernels."""
    P, Q = X.rows(i), Y.rows(j)
    a, b, C = X.weights[P], Y.weights[Q], numeric.squared_distances(X.points[P], Y.points[Q])
    f, g, F, residual, steps = sinkhorn(C, a, b, gamma, tol=solved.tol, max_iter=max_iter)
    solved.value[:] = float((C * F).sum()) if sharp else float(a @ f + b @ g)
    solved.residual[:], solved.iterations[:] = residual, steps
    solved.f[:], solved.g[:] = f, g
    if solved.plans is not None:
        solved.plans[:] = F.ravel()


def sinkhorn(
    C: Array, a: Array, b: Array, gamma: float, *, tol: float = 1e-6, max_iter: int = 2000
) -> tuple[Array, Array, Array, float, int]:
    """One smoothed problem in plain numpy, as the kernels solve it: (f, g, F, L1 marginal error, steps)."""
    g = np.zeros(len(b))
    f = C.min(axis=1)
    g = (C - f[:, None]).min(axis=0)
    slack = float(a @ (C - f[:, None] - g[None, :]) @ b)
    current = gamma * 2.0 ** max(0, int(np.ceil(np.log2(max(slack / (PATIENT[2] * gamma), 1.0)))))
    steps = 0
    while True:
        final = current <= gamma
        K = np.exp((f[:, None] + g[None, :] - C) / current)
        u, v, residual, made = _scale(K, a, b, tol if final else PATIENT[5], max_iter if final else 40)
        steps += made
        f, g = f + current * np.log(u / a), g + current * np.log(v / b)
        if final:
            return f, g, u[:, None] * K * v[None, :], residual, steps
        current = max(current / 2.0, gamma)
        f = (C - g[None, :]).min(axis=1)
        g = (C - f[:, None]).min(axis=0)


def _scale(K: Array, a: Array, b: Array, tol: float, most: int) -> tuple[Array, Array, float, int]:
    """u, v with diag(u) K diag(v) of marginals a, b: Sinkhorn steps, and a Newton step after every forty-nine."""
    v = b.copy()
    u, residual, made = a / (K @ v), np.inf, 0
    while made < most:
        v = b / np.maximum(K.T @ u, 1e-300)
        s = K @ v
        residual = float(np.abs(u * s - a).sum())
        made += 1
        if residual <= tol:
            break
        if made % 50 or len(a) > 4000:
            u = a / np.maximum(s, 1e-300)
            continue
        F = u[:, None] * K * v[None, :]
        S = np.diag(u * s) - (F / b[None, :]) @ F.T
        try:
            delta = np.linalg.solve(S[1:, 1:], (a - u * s)[1:])
        except np.linalg.LinAlgError:
            delta = lstsq(S[1:, 1:], (a - u * s)[1:])[0]
        u[1:] *= np.exp(delta * min(1.0, 3.0 / max(float(np.abs(delta).max()), 1e-300)))
    return u, v, residual, made


@dataclass(frozen=True, eq=False)
class AllPairs:
    """Every set of X against every set of Y: value (N, M), residual (N, M) (L1 marginal error), iterations (N, M)."""

    value: Array
    residual: NDArray[np.float32]
    iterations: NDArray[np.int32]
    tol: float

    @classmethod
    def empty(cls, n: int, m: int, tol: float) -> AllPairs:
        """Room for n × m results, none of them converged yet."""
        return cls(np.zeros((n, m)), np.full((n, m), np.inf, np.float32), np.zeros((n, m), np.int32), tol)

    @property
    def converged(self) -> NDArray[np.bool_]:
        """Which pairs reached the tolerance."""
        return self.residual <= self.tol * (1 + 1e-6)


def solve_all(
    X: Pack,
    Y: Pack | None = None,
    gamma: float = 1.0,
    *,
    value: Value = "kl",
    tol: float = 1e-6,
    max_iter: int = 2000,
    n_jobs: int = 1,
) -> AllPairs:
    """Solve all pairs of X × Y, or, with Y = None, of X × X by symmetry at half the cost.

    Sets are sorted by size, laid out so that a BLAS product of stacked points is eight problems a panel as it stands.
    """
    n_jobs = panels.workers(n_jobs)
    other = X if Y is None else Y
    out = AllPairs.empty(len(X), len(other), tol)
    panels.solve_all(X, other, Y is None, gamma, tol, max_iter, value == "sharp", n_jobs, out)
    finish(X, Y, out, value, gamma, tol=tol, max_iter=max_iter, n_jobs=n_jobs)
    return out


def finish(X: Pack, Y: Pack | None, out: AllPairs, value: Value, gamma: float, **how: Any) -> None:
    """Solve again what has not converged (`how`: as solve_pairs), then turn kl values into the value asked for."""
    other = X if Y is None else Y
    missed = ~out.converged
    i, j = np.nonzero(np.triu(missed) if Y is None else missed)
    if len(i):
        plain: Value = "sharp" if value == "sharp" else "kl"
        again = solve_pairs(X, other, i, j, gamma, value=plain, **how)
        panels.place(out, i, j, again.value, again.residual, again.iterations, Y is None)
    _shift(out.value, value, X, other, np.arange(len(X))[:, None], np.arange(len(other))[None, :], gamma, **how)


def exact(C: Array, a: Array, b: Array) -> tuple[float, Array]:
    """Exact optimal transport, min ⟨C, F⟩ over plans with marginals a, b, the limit γ → 0: (value, plan)."""
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
    """Σ_k weights[k] · G_k, G = Σ_ij F_ij (p_i − q_j)(p_i − q_j)ᵀ: the gradient in M of a sum of values [MLML Eq. 15].

    As Zᵀ L Z with L the graph Laplacian of the weighted plans over the stacked points: never one d × d matrix a pair,
    nor the plans as one sparse matrix, whose indices took five times their memory. Pairs of weight 0 cost nothing.
    X and Y are packed in the coordinates in which the gradient is wanted (usually unprojected), plans from `solved`.
    """
    if solved.plans is None:
        raise InputError("scatter needs plans; solve with plans=True")
    rows, columns, moved = np.zeros(len(X.points)), np.zeros(len(Y.points)), np.zeros(X.points.shape)
    starts, pairs = solved.plan_offsets, (X.offsets, Y.offsets, np.asarray(left), np.asarray(right))
    kernels.weigh_plans(*pairs, solved.plans, starts, np.asarray(weights, np.float64), Y.points, rows, columns, moved)
    cross = X.points.T @ moved
    G = (X.points * rows[:, None]).T @ X.points + (Y.points * columns[:, None]).T @ Y.points - cross - cross.T
    return np.asarray((G + G.T) / 2)


def plan_costs(X: Pack, Y: Pack, left: Index, right: Index, solved: Solutions) -> Array:
    """⟨C, F⟩ of each pair under the Euclidean cost of the packed coordinates, with the plans of `solved`."""
    if solved.plans is None:
        raise InputError("plan_costs needs plans; solve with plans=True")
    out = np.empty(len(left))
    kernels.sum_costs(X.offsets, Y.offsets, left, right, solved.plans, solved.plan_offsets, X.points, Y.points, out)
    return out


def auto_gamma(X: Pack, Y: Pack | None = None, *, fraction: float = BLUR, most: int = 2000) -> float:
    """A share of the median ground cost among the points of X, and of Y: the same whichever comes first, above 0."""
    whole = len(X.points) + (0 if Y is None else len(Y.points))
    P = np.concatenate([_thin(Z.points, -(-most * len(Z.points) // whole)) for Z in (X, Y) if Z is not None])
    C = numeric.squared_distances(P, P)[np.triu_indices(len(P), 1)]
    median = float(np.median(C)) if C.size else 0.0
    if median <= 0 and C.size:
        median = float(C.mean())
    return fraction * median if median > 0 else 1e-12


def check_gamma(gamma: float, X: Pack, Y: Pack | None = None) -> float:
    """γ, or an InputError where float64 cannot tell apart what it smooths: below 1e-15 or above 1e9 of the costs."""
    both = X.points if Y is None else np.concatenate([X.points, Y.points])
    spread = np.ptp(both, axis=0)
    largest = float(spread @ spread)  # the squared diagonal of the box around the points bounds every cost
    low, high = (1e-15 * largest, 1e9 * largest) if largest > 0 else (1e-100, 1e100)
    if not low <= gamma <= high:
        raise InputError(
            f"gamma: expected {low:.1g} to {high:.1g} for costs up to {largest:.3g}, got {gamma}; try 'auto'"
        )
    return gamma


def _thin(points: Array, most: int) -> Array:
    """At most `most` rows, evenly spaced."""
    if len(points) <= most:
        return points
    return points[np.linspace(0, len(points) - 1, most).astype(np.int64)]
