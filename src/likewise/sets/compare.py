"""Compare two sets, or all pairs of many: the smoothed Wasserstein distance and the plan that justifies it.

A matrix that is too long to lose, or too large to hold, is made on disk by blocks (`distance_matrix`):

out/
  distances.npy        the matrix (N, M): np.load(…, mmap_mode="r") reads it without loading it
  distances.json       γ, shape, convergence, time, and all that decides the numbers
  job.sqlite           until the matrix is whole: the sets, and one shard a block (upper triangle only where Y is X)
"""

from __future__ import annotations

import functools
import logging
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likewise import media, numeric, plot
from likewise.errors import ConvergenceWarning, FileError, InputError, ShapeError
from likewise.inputs import signature as signature_of
from likewise.inputs import signatures
from likewise.sets import transport
from likewise.sets.transport.solvers import Pack, Value
from likewise.store import job as jobs
from likewise.store import run as runs
from likewise.store.job import Job
from likewise.train.options import check, option
from likewise.types import Array, Comparison, Signature

Set = Signature | tuple[ArrayLike, ArrayLike] | ArrayLike
"""What counts as a set: a Signature, (points, weights), or an (m, d) array of equally weighted points."""
Gamma = float | Literal["auto"]
Backend = Literal["auto", "numba", "torch"]


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """What decides the numbers besides the sets and the metric; a wrong one is refused by name."""

    gamma: float | str = option("auto", "smoothing of the plan", above=0, choices=("auto",))
    value: Value = option("divergence", "which number of the plan is the distance")
    tol: float = option(1e-6, "marginal error at which a solve stops", above=0)
    max_iter: int = option(2000, "iterations after which it stops anyway", low=1)
    block: int = option(512, "sets a side of a block", low=1)
    dtype: Literal["float64", "float32"] = option("float64", "numbers of the file")

    def __post_init__(self) -> None:
        check(self)


def _under(metric: ArrayLike | None, X: Pack, Y: Pack, where: str) -> tuple[Pack, Pack]:
    """The sets in coordinates whose Euclidean cost is that of the metric; `where` is what Y is called."""
    if Y.dim != X.dim:
        raise ShapeError(f"{where}: expected points of {X.dim} dimensions, got {Y.dim}")
    if metric is None:
        return X, Y
    L = numeric.factor(numeric.psd(metric, dim=X.dim))
    moved = X.project(L)
    return moved, moved if Y is X else Y.project(L)


def _read(X: Any, Y: Any, metric: ArrayLike | None) -> tuple[Pack, Pack | None]:
    """Two collections in the coordinates of the metric; None stands for X once more."""
    left = transport.pack(signatures(X))
    right = left if Y is None else transport.pack(signatures(Y, where="Y"))
    left, right = _under(metric, left, right, "Y")
    return left, None if Y is None else right


def _smoothing(gamma: Gamma, X: Pack, Y: Pack | None) -> float:
    """γ as a number, the same whichever side comes first; one beyond reason is refused."""
    return transport.auto_gamma(X, Y) if isinstance(gamma, str) else transport.check_gamma(float(gamma), X, Y)


def distances(
    X: Sequence[Set],
    Y: Sequence[Set] | None = None,
    *,
    gamma: Gamma = "auto",
    metric: ArrayLike | None = None,
    value: Value = "divergence",
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
        Smoothing of the plan, in units of the cost; "auto" is 0.2 × the median ground cost among all points.
    metric : array (d, d), optional
        M, positive semi-definite; by default the identity.
    value : {"kl", "paper", "divergence", "sharp"}, default "divergence"
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
    array([[ 0. , 25. , 12.2],
           [25. ,  0. , 12.2],
           [12.2, 12.2,  0. ]])
    """
    Options(gamma, value, tol)
    packed, other = _read(X, Y, metric)
    g = _smoothing(gamma, packed, other)
    if backend == "torch":
        solved = transport.batched.solve_all(packed, other, g, value=value, tol=tol)
    elif backend in ("auto", "numba"):
        solved = transport.solve_all(packed, other, g, value=value, tol=tol, n_jobs=n_jobs)
    else:
        raise InputError(f"backend: expected auto, numba or torch, got {backend!r}")
    _warn(int((~solved.converged).sum()), solved.converged.size, float(solved.residual.max()), tol)
    return _clean(solved.value, value, Y is None)


def _clean(D: Array, value: Value, own: bool) -> Array:
    """A divergence is never below 0, and 0 between a set and itself: what the solver leaves there is rounding."""
    if value == "divergence":
        np.maximum(D, 0.0, out=D)
        if own:
            np.fill_diagonal(D, 0.0)
    return D


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
    p: Set,
    q: Set,
    *,
    gamma: Gamma = "auto",
    metric: ArrayLike | None = None,
    value: Value = "divergence",
    tol: float = 1e-6,
) -> SetComparison:
    """Compare two sets: their smoothed Wasserstein distance, and which part of one answers to which of the other.

    Parameters
    ----------
    p, q : Signature, (points, weights), array (m, d), or a path to one set (.npy, file.npz#name)
        The two sets, of any sizes.
    gamma : float or "auto", default "auto"
        Smoothing of the plan; "auto" is 0.2 × the median ground cost among all points of both.
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
    Options(gamma, value, tol)
    a, b = signature_of(p, where="p"), signature_of(q, where="q")
    P, Q = _under(metric, transport.pack([a]), transport.pack([b]), "q")
    g = _smoothing(gamma, P, Q)
    one = np.zeros(1, dtype=np.int64)
    solved = transport.solve_pairs(P, Q, one, one, g, value=value, tol=tol, plans=True)
    converged, residual = bool(solved.converged[0]), float(solved.residual[0])
    _warn(int(not converged), 1, residual, tol)
    plan = np.zeros((len(a), len(b)))
    plan[np.ix_(a.weights > 0, b.weights > 0)] = solved.plan(0)  # points of weight 0 are not solved for
    distance, iterations = float(_clean(solved.value, value, False)[0]), int(solved.iterations[0])
    return SetComparison(distance, plan, g, converged, iterations, residual, value, a, b)


# ── a matrix on disk ──────────────────────────────────────────────────────────────────────────────────────────────


def distance_matrix(
    X: Any,
    Y: Any = None,
    *,
    out: str | Path,
    gamma: Gamma = "auto",
    metric: ArrayLike | None = None,
    value: Value = "divergence",
    tol: float = 1e-6,
    max_iter: int = 2000,
    block: int = 512,
    dtype: Literal["float64", "float32"] = "float64",
    executor: Any = None,
    n_jobs: int = 1,
    resume: bool = True,
    progress: bool = True,
) -> NDArray[Any]:
    """Smoothed Wasserstein distances of all X against all Y, on disk [MLML Eq. 4–7, 11].

    The numbers are those of `distances`; memory is that of the inputs and a block, never that of the matrix.

    Parameters
    ----------
    X, Y : sequence of Signature, (points, weights) or (m, d) arrays
        The sets; without Y, X against itself.
    out : str or Path
        The folder of the matrix. Killed, the same call resumes there; a folder made from other inputs or options is
        refused.
    gamma, metric, value, tol
        Those of `distances`.
    max_iter : int
        Iterations after which a pair is left as it is, with one ConvergenceWarning for all.
    block : int
        Sets a side of the blocks that are solved and kept one by one.
    dtype : {"float64", "float32"}
        The numbers of the file.
    executor, n_jobs
        Who computes: those of `likewise.store.job.Job.run`. Workers on other machines must see the folder `out`.
    resume : bool
        False begins again, whatever the folder holds.
    progress : bool
        A bar on the terminal.

    Returns
    -------
    ndarray (N, M)
        Read-only, and read from the disk as it is indexed; distances.json beside it says γ and how well it converged.

    Raises
    ------
    InputError
        An argument is wrong, the folder holds another matrix, or another process works on it.
    ShardError
        A block could not be solved; the finished ones are kept.

    Examples
    --------
    >>> import likewise as lw
    >>> import tempfile
    >>> import numpy as np
    >>> sets = [np.zeros((2, 3)), np.ones((4, 3)), np.full((1, 3), 2.0)]
    >>> with tempfile.TemporaryDirectory() as out:
    ...     D = lw.sets.distance_matrix(sets, out=out, gamma=0.1, progress=False)
    ...     D.shape, D[0, 1].round(6).item()
    ((3, 3), 3.0)
    """
    began, folder = time.monotonic(), Path(out)
    options = Options(gamma, value, tol, max_iter, block, dtype)
    jobs.check_executor(executor, n_jobs)
    left, right = _read(X, Y, metric)
    columns = left if right is None else right
    identity = {
        "what": "distance matrix",
        "X": transport.digest(left.arrays),
        "Y": None if right is None else transport.digest(right.arrays),
        "metric": None if metric is None else transport.digest({"M": np.asarray(metric, dtype=np.float64)}),
        **asdict(options),
    }
    finished = _finished(folder, identity, (len(left), len(columns))) if resume else None
    if finished is not None:
        return finished
    with Job.begin(folder, identity, resume=resume) as job:
        (folder / "distances.json").unlink(missing_ok=True)
        number = _smoothing(gamma, left, right)
        n = m = _keep_parts(job, "X", left, block)
        if right is not None:
            m = _keep_parts(job, "Y", right, block)
        grid = [[i, j] for i in range(n) for j in range(i if right is None else 0, m)]  # Y is X: the upper triangle
        beside = "X" if right is None else "Y"
        work = functools.partial(_solve_block, str(folder.absolute()), beside, replace(options, gamma=number))
        job.run(work, grid, executor=executor, n_jobs=n_jobs, progress=progress)
        whole = np.dtype(dtype), (len(left), len(columns))
        missed, worst = _assemble(job, grid, block, folder / "distances.npy", *whole, mirror=right is None)
        pairs = len(left) * (len(left) + 1) // 2 if right is None else len(left) * len(right)
        info = {"shape": whole[1], "gamma": number, "pairs": pairs, "unconverged": missed, "worst_residual": worst}
        seconds = round(time.monotonic() - began, 3)
        runs.write_json(folder / "distances.json", {**info, "key": job.identity, "seconds": seconds})
        jobs.remove(folder)
    _warn(missed, pairs, worst, tol)
    return media.map_array(folder / "distances.npy")


def _finished(folder: Path, identity: dict[str, Any], shape: tuple[int, int]) -> NDArray[Any] | None:
    """The matrix, if it is whole; one of other inputs is refused, a damaged one is said and made again."""
    about, file = folder / "distances.json", folder / "distances.npy"
    if not about.exists():
        return None
    old = runs.read_json(about).get("key")
    if old != identity:
        difference = runs.differing(old if isinstance(old, dict) else {}, identity)
        raise InputError(f"out: {folder} holds another matrix ({difference}); use another folder or resume=False")
    try:
        values = media.map_array(file)
        if values.shape != shape or values.dtype != identity["dtype"]:
            raise FileError(f"{file} is damaged: it holds {values.dtype} {values.shape}, not {shape}")
    except FileError as error:
        log.warning("%s; the matrix is made again", error)
        return None
    return values


def _keep_parts(job: Job, name: str, sets: Pack, block: int) -> int:
    """Keep the sets where workers read them, a part for each row or column of blocks; how many there are."""
    cuts = range(0, len(sets), block)
    for k, first in enumerate(cuts):
        part = sets.take(np.arange(first, min(first + block, len(sets))))
        job.keep(f"{name}-{k}", functools.partial(_part, part))
    return len(cuts)


def _part(sets: Pack) -> tuple[dict[str, Any], dict[str, Any]]:
    return sets.arrays, {}


def _solve_block(folder: str, beside: str, how: Options, at: Sequence[int]) -> dict[str, Any]:
    """The distances of a block of rows and a block of columns; how many missed the tolerance, and the worst error."""
    job, own = Job.open(folder), beside == "X" and at[0] == at[1]
    X, Y = (Pack(**job.load(name)) for name in (f"X-{at[0]}", f"{beside}-{at[1]}"))
    gamma, others = float(how.gamma), None if own else Y
    solved = transport.solve_all(X, others, gamma, value=how.value, tol=how.tol, max_iter=how.max_iter)
    _clean(solved.value, how.value, own)
    missed = np.triu(~solved.converged) if own else ~solved.converged  # each pair once
    figures = np.array([missed.sum(), solved.residual.max()], dtype=np.float64)
    return {"value": solved.value.astype(how.dtype), "figures": figures}


def _assemble(
    job: Job, grid: list[list[int]], block: int, target: Path, dtype: Any, shape: tuple[int, int], mirror: bool
) -> tuple[int, float]:
    """Put the blocks into one .npy file; how many pairs missed the tolerance, and the worst error."""
    said = []
    with media.atomic(target) as temporary:
        np.lib.format.open_memmap(temporary, mode="w+", dtype=dtype, shape=shape)
        for k, (i, j) in enumerate(grid):
            part = job.load(k)
            said.append(part["figures"])
            # mapped again each time, so that only a block's pages are ever held
            whole, (m, n) = np.lib.format.open_memmap(temporary, mode="r+"), part["value"].shape
            whole[i * block : i * block + m, j * block : j * block + n] = part["value"]
            if mirror and i != j:
                whole[j * block : j * block + n, i * block : i * block + m] = part["value"].T
            del whole
    missed, worst = np.array(said).T
    return int(missed.sum()), float(worst.max())
