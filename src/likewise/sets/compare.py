"""Compare two sets, or all pairs of many: the smoothed Wasserstein distance and the plan that justifies it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from likewise import numeric, plot
from likewise.errors import ConvergenceWarning, InputError, ShapeError
from likewise.inputs import signature as signature_of
from likewise.inputs import signatures
from likewise.sets import transport
from likewise.sets.transport.solvers import AllPairs, Pack, Value
from likewise.types import Array, Comparison, Signature

Set = Signature | tuple[ArrayLike, ArrayLike] | ArrayLike
"""What counts as a set: a Signature, (points, weights), or an (m, d) array of equally weighted points."""
Gamma = float | Literal["auto"]
Backend = Literal["auto", "numba", "torch"]


def check_gamma(gamma: Gamma) -> None:
    """γ is "auto" or a finite number above 0."""
    if isinstance(gamma, str):
        if gamma != "auto":
            raise InputError(f'gamma: expected "auto" or a number > 0, got {gamma!r}')
    elif not (isinstance(gamma, int | float | np.number) and np.isfinite(gamma) and gamma > 0):
        raise InputError(f'gamma: expected "auto" or a number > 0, got {gamma!r}; for exact transport use a small one')


def _check(gamma: Gamma, value: str, tol: float) -> None:
    check_gamma(gamma)
    if value not in get_args(Value):
        raise InputError(f"value: expected one of {', '.join(get_args(Value))}, got {value!r}")
    if not (np.isfinite(tol) and tol > 0):
        raise InputError(f"tol: expected a number > 0, got {tol!r}")


def _projected(X: Pack, metric: ArrayLike | None, Y: Pack | None = None) -> tuple[Pack, Pack | None]:
    """Both packs in the coordinates in which the metric is Euclidean."""
    if Y is not None and Y.dim != X.dim:
        raise ShapeError(f"Y: expected points of {X.dim} dimensions as in X, got {Y.dim}")
    if metric is None:
        return X, Y
    L = numeric.factor(numeric.psd(metric, dim=X.dim))
    return X.project(L), None if Y is None else Y.project(L)


def distances(
    X: Sequence[Set],
    Y: Sequence[Set] | None = None,
    *,
    gamma: Gamma = "auto",
    metric: ArrayLike | None = None,
    value: Value = "kl",
    tol: float = 1e-6,
    backend: Backend = "auto",
    n_jobs: int = 1,
) -> Array:
    """The smoothed Wasserstein distance of every set of X to every set of Y, or of X [MLML Eq. 4–7, 11].

    W = ⟨C, F⟩ + γ KL(F ‖ a bᵀ) at the optimal plan F, ground cost C_ij = (p_i − q_j)ᵀ M (p_i − q_j) with M = metric.
    value: "kl" (this), "paper" (⟨C, F⟩ − γ h(F)), "divergence" (0 for identical sets), "sharp" (⟨C, F⟩).
    gamma: "auto" is 0.05 × the median ground cost of X. backend: "numba" (CPU), "torch" (batched, CUDA if there).
    """
    _check(gamma, value, tol)
    packed, other = _projected(
        transport.pack(signatures(X)), metric, None if Y is None else transport.pack(signatures(Y, where="Y"))
    )
    g = transport.auto_gamma(packed) if gamma == "auto" else float(gamma)
    solved: AllPairs = _solver(backend, n_jobs)(packed, other, g, value=value, tol=tol)
    _warn(int((~solved.converged).sum()), solved.converged.size, float(solved.residual.max()), tol)
    return solved.value


def _solver(backend: Backend, n_jobs: int) -> Any:
    if backend in ("auto", "numba"):
        return partial(transport.solve_all, n_jobs=n_jobs)
    if backend == "torch":
        return transport.batched.solve_all
    raise InputError(f"backend: expected auto, numba or torch, got {backend!r}")


def _warn(missed: int, total: int, worst: float, tol: float) -> None:
    if missed:
        warnings.warn(
            f"{missed} of {total} transport problems stopped before tol={tol:g} (largest marginal error {worst:.2g}); "
            "a larger gamma converges sooner",
            ConvergenceWarning,
            stacklevel=3,
        )


@dataclass(frozen=True, eq=False, repr=False)
class SetComparison(Comparison):
    """The distance of two sets and the transport plan (m, n) between them: plan[i, j] is the mass that i sends to j."""

    plan: Array
    gamma: float
    converged: bool
    iterations: int
    residual: float
    value: str
    p: Signature
    q: Signature

    def __repr__(self) -> str:
        m, n = self.plan.shape
        how = "converged" if self.converged else f"not converged (marginal error {self.residual:.1e})"
        steps = f"{self.iterations} iteration{'' if self.iterations == 1 else 's'}"
        return f"SetComparison(distance={self.distance:.4g}, plan {m}×{n}, {how} in {steps})"

    def plot(self, path: str | Path | None = None, **options: Any) -> Any:
        """The plan as lines of mass between the two sets; points whose `names` are image files show as thumbnails."""
        figure = plot.plan(self.p, self.q, self.plan, **{"title": f"distance {self.distance:.4g}", **options})
        if path is not None:
            plot.save(figure, path)
        return figure

    def to_dict(self) -> dict[str, Any]:
        """Distance, plan, weights and how the solver did."""
        return {
            "level": "sets",
            "distance": self.distance,
            "value": self.value,
            "gamma": self.gamma,
            "converged": self.converged,
            "iterations": self.iterations,
            "residual": self.residual,
            "plan": self.plan.tolist(),
            "weights": [self.p.weights.tolist(), self.q.weights.tolist()],
            "names": [None if s.names is None else list(s.names) for s in (self.p, self.q)],
        }


def compare(
    p: Set, q: Set, *, gamma: Gamma = "auto", metric: ArrayLike | None = None, value: Value = "kl", tol: float = 1e-6
) -> SetComparison:
    """Compare two sets: .distance .plan .gamma .converged .iterations .residual [MLML Eq. 4–7].

    gamma: "auto" is 0.05 × the median ground cost between the two sets.
    """
    _check(gamma, value, tol)
    a, b = signature_of(p, where="p"), signature_of(q, where="q")
    if a.dim != b.dim:
        raise ShapeError(f"q: expected points of {a.dim} dimensions as in p, got {b.dim}")
    P, Q = _projected(transport.pack([a]), metric, transport.pack([b]))
    if Q is None:  # pragma: no cover - a pack in gives a pack out
        raise InputError("q is missing")
    g = transport.auto_gamma(P, Q) if gamma == "auto" else float(gamma)
    one = np.zeros(1, dtype=np.int64)
    solved = transport.solve_pairs(P, Q, one, one, g, value=value, tol=tol, plans=True)
    _warn(int(not solved.converged[0]), 1, float(solved.residual[0]), tol)
    plan = np.zeros((len(a), len(b)))
    plan[np.ix_(a.weights > 0, b.weights > 0)] = solved.plan(0)
    return SetComparison(
        distance=float(solved.value[0]),
        plan=plan,
        gamma=g,
        converged=bool(solved.converged[0]),
        iterations=int(solved.iterations[0]),
        residual=float(solved.residual[0]),
        value=value,
        p=a,
        q=b,
    )
