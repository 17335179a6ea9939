"""Compare two sets, or all pairs of many: the smoothed Wasserstein distance and the plan that justifies it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from likewise import numeric, plot
from likewise.errors import ConvergenceWarning, InputError, ShapeError
from likewise.inputs import signature as signature_of
from likewise.inputs import signatures
from likewise.sets import transport
from likewise.sets.transport.solvers import Value
from likewise.types import Array, Comparison, Signature

Set = Signature | tuple[ArrayLike, ArrayLike] | ArrayLike
"""What counts as a set: a Signature, (points, weights), or an (m, d) array of equally weighted points."""
Gamma = float | Literal["auto"]
Backend = Literal["auto", "numba", "torch"]


def _check(gamma: Gamma, value: str, tol: float) -> None:
    number = isinstance(gamma, int | float | np.number) and 0 < gamma < np.inf
    if not (number or (isinstance(gamma, str) and gamma == "auto")):
        raise InputError(f'gamma: expected "auto" or a number > 0, got {gamma!r}; for exact transport use a small one')
    if value not in get_args(Value):
        raise InputError(f"value: expected one of {', '.join(get_args(Value))}, got {value!r}")
    if not (np.isfinite(tol) and tol > 0):
        raise InputError(f"tol: expected a number > 0, got {tol!r}")


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

    W = ⟨C, F⟩ + γ KL(F ‖ a bᵀ) at the optimal plan F, with the ground cost C_ij = (p_i − q_j)ᵀ M (p_i − q_j).

    Parameters
    ----------
    X, Y : sequences of sets
        Signature, (points, weights) or (m, d) arrays; sets need not be of one size. A 2-D array is as many one-point
        sets as it has rows, a path an .npz of many sets. Y defaults to X, at half the cost.
    gamma : float or "auto", default "auto"
        Smoothing of the plan, in units of the cost; "auto" is 0.05 × the median ground cost among the points of X.
    metric : array (d, d), optional
        M, positive semi-definite; by default the identity.
    value : {"kl", "paper", "divergence", "sharp"}, default "kl"
        Which number of the plan: "kl" is W; "paper" ⟨C, F⟩ − γ h(F), h the entropy; "divergence"
        kl(P, Q) − ½ kl(P, P) − ½ kl(Q, Q), 0 for identical sets; "sharp" ⟨C, F⟩.
    tol : float, default 1e-6
        L1 error of the marginals at which a problem counts as solved.
    backend : {"auto", "numba", "torch"}, default "auto"
        "numba" runs on the CPU, "torch" in padded batches, on CUDA if there is one.
    n_jobs : int, default 1
        Threads of the numba backend; -1 is all cores. The numbers do not depend on it.

    Returns
    -------
    ndarray (len(X), len(Y))

    Raises
    ------
    InputError
        A set, the metric or an option is wrong; the message names it.

    Warns
    -----
    ConvergenceWarning
        Some problems stopped before `tol`.

    Examples
    --------
    >>> import likewise as lw
    >>> X = [[[0.0, 0.0]], [[3.0, 4.0]], [[0.0, 0.0], [3.0, 4.0]]]
    >>> lw.sets.distances(X, gamma=1.0).round(1)
    array([[ 0. , 25. , 12.5],
           [25. ,  0. , 12.5],
           [12.5, 12.5,  0.7]])
    """
    _check(gamma, value, tol)
    packed, other = transport.pack(signatures(X)), None if Y is None else transport.pack(signatures(Y, where="Y"))
    if other is not None and other.dim != packed.dim:
        raise ShapeError(f"Y: expected points of {packed.dim} dimensions as in X, got {other.dim}")
    if metric is not None:
        L = numeric.factor(numeric.psd(metric, dim=packed.dim))
        packed, other = packed.project(L), None if other is None else other.project(L)
    g = transport.auto_gamma(packed) if gamma == "auto" else float(gamma)
    if backend == "torch":
        solved = transport.batched.solve_all(packed, other, g, value=value, tol=tol)
    elif backend in ("auto", "numba"):
        solved = transport.solve_all(packed, other, g, value=value, tol=tol, n_jobs=n_jobs)
    else:
        raise InputError(f"backend: expected auto, numba or torch, got {backend!r}")
    _warn(int((~solved.converged).sum()), solved.converged.size, float(solved.residual.max()), tol)
    return solved.value


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
    """The distance of two sets, and the plan that justifies it: plan[i, j] is the mass that point i sends to point j.

    Attributes
    ----------
    distance : float
        The `value` of the plan under smoothing `gamma`.
    plan : array (m, n)
    gamma : float
    converged : bool
    iterations : int
    residual : float
        The L1 error of the marginals.
    value : str
        What the distance is: "kl", "sharp", "divergence" …
    p, q : Signature
        The sets.

    Examples
    --------
    >>> import likewise as lw
    >>> result = lw.sets.compare([[0.0], [1.0]], [[0.0], [3.0]], gamma=0.1)
    >>> result.plan.round(2)
    array([[0.5, 0. ],
           [0. , 0.5]])
    """

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
    """Compare two sets: their smoothed Wasserstein distance, and which part of one answers to which of the other.

    Parameters
    ----------
    p, q : Signature, (points, weights), array (m, d), or a path to one set (.npy, file.npz#name)
        The two sets, of any sizes.
    gamma : float or "auto", default "auto"
        Smoothing of the plan; "auto" is 0.05 × the median ground cost between the two sets.
    metric, value, tol
        As in `distances`.

    Returns
    -------
    SetComparison
        .distance .plan .gamma .converged .iterations .residual, .plot() and .to_json() [MLML Eq. 4–7].

    Raises
    ------
    InputError
        A set, the metric or an option is wrong; the message names it.

    Warns
    -----
    ConvergenceWarning
        The problem stopped before `tol`.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.sets.compare([[0.0, 0.0]], [[3.0, 4.0]])
    SetComparison(distance=25, plan 1×1, converged in 1 iteration)
    """
    _check(gamma, value, tol)
    a, b = signature_of(p, where="p"), signature_of(q, where="q")
    if a.dim != b.dim:
        raise ShapeError(f"q: expected points of {a.dim} dimensions as in p, got {b.dim}")
    P, Q = transport.pack([a]), transport.pack([b])
    if metric is not None:
        L = numeric.factor(numeric.psd(metric, dim=a.dim))
        P, Q = P.project(L), Q.project(L)
    g = transport.auto_gamma(P, Q) if gamma == "auto" else float(gamma)
    one = np.zeros(1, dtype=np.int64)
    solved = transport.solve_pairs(P, Q, one, one, g, value=value, tol=tol, plans=True)
    converged, residual = bool(solved.converged[0]), float(solved.residual[0])
    _warn(int(not converged), 1, residual, tol)
    plan = np.zeros((len(a), len(b)))
    plan[np.ix_(a.weights > 0, b.weights > 0)] = solved.plan(0)  # points of weight 0 are not solved for
    distance, iterations = float(solved.value[0]), int(solved.iterations[0])
    return SetComparison(distance, plan, g, converged, iterations, residual, value, a, b)
