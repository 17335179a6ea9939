"""All distances between many signatures, on disk, by blocks: for matrices too long to lose or too large to hold.

out/
  distances.npy        the matrix (N, M): np.load(…, mmap_mode="r") reads it without loading it
  distances.json       γ, value, shape, convergence, time, and the checksum of the matrix
  job.sqlite           until the matrix is whole: the sets, and one shard a block (upper triangle only where Y is X)
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from likewise import media, numeric
from likewise.errors import ConvergenceWarning, FileError, InputError, ShapeError
from likewise.inputs import signatures
from likewise.sets.compare import Gamma
from likewise.sets.transport import solvers as transport
from likewise.sets.transport.solvers import AllPairs, Pack, Value
from likewise.store import job as jobs
from likewise.store import run as runs
from likewise.store.job import Job
from likewise.train.options import check, option
from likewise.types import Array

FORMAT = 1

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """What decides the numbers besides the sets and the metric."""

    gamma: float | str = option("auto", "smoothing of the plan", above=0, choices=("auto",))
    value: Value = option("kl", "which number of the plan is the distance")
    tol: float = option(1e-6, "marginal error at which a solve stops", above=0)
    max_iter: int = option(2000, "iterations after which it stops anyway", low=1)
    block: int = option(512, "sets a side of a block", low=1)
    dtype: Literal["float64", "float32"] = option("float64", "numbers of the file")

    def __post_init__(self) -> None:
        check(self)


def distance_matrix(
    X: Any,
    Y: Any = None,
    *,
    out: str | Path,
    gamma: Gamma = "auto",
    metric: ArrayLike | None = None,
    value: Value = "kl",
    tol: float = 1e-6,
    max_iter: int = 2000,
    block: int = 512,
    dtype: Literal["float64", "float32"] = "float64",
    executor: Any = None,
    n_jobs: int = 1,
    resume: bool = True,
    progress: bool = True,
) -> DistanceMatrix:
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
    DistanceMatrix
        Indexed like an array of shape (N, M) and read from the disk as it is indexed.

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
    began = time.monotonic()
    options = Options(gamma, value, tol, max_iter, block, dtype)
    jobs.check_executor(executor, n_jobs)
    left, right = _pack(X, "X"), None if Y is None else _pack(Y, "Y")
    if right is not None and right.dim != left.dim:
        raise ShapeError(f"Y has {right.dim} dimensions where X has {left.dim}")
    M = None if metric is None else numeric.psd(metric, dim=left.dim)
    identity = {
        "what": "distance matrix",
        "X": _sha(left.points, left.weights, left.offsets),
        "Y": None if right is None else _sha(right.points, right.weights, right.offsets),
        "metric": None if M is None else _sha(M),
        **dataclasses.asdict(options),
    }
    folder = Path(out)
    if resume and (finished := _finished(folder, identity)) is not None:
        return finished
    with Job.begin(folder, identity, resume=resume) as job:
        for stale in (*folder.glob(".distances.*.tmp.*"), folder / "distances.json"):
            stale.unlink(missing_ok=True)
        if M is not None:
            L = numeric.factor(M)
            left, right = left.project(L), None if right is None else right.project(L)
        number = transport.auto_gamma(left) if isinstance(gamma, str) else float(gamma)
        work = BlockWork(str(folder.absolute()), dataclasses.replace(options, gamma=number), right is not None)
        work.keep_inputs(job, "X", left)
        if right is not None:
            work.keep_inputs(job, "Y", right)
        columns = left if right is None else right
        n, m = math.ceil(len(left) / block), math.ceil(len(columns) / block)
        grid = [[i, j] for i in range(n) for j in range(i if right is None else 0, m)]  # Y is X: the upper triangle
        job.run(work, grid, executor=executor, n_jobs=n_jobs, progress=progress)
        figures = _assemble(job, grid, folder / "distances.npy", (len(left), len(columns)), work)
        info = {"format": FORMAT, "shape": [len(left), len(columns)], "gamma": number, **figures, "key": job.identity}
        runs.write_json(folder / "distances.json", {**info, "seconds": round(time.monotonic() - began, 3)})
        jobs.remove(folder)
    if figures["unconverged"]:
        warnings.warn(
            f"{figures['unconverged']} of {figures['pairs']} pairs stopped at max_iter={max_iter} "
            f"(worst marginal error {figures['worst_residual']:.3g}, tol {tol:g}); raise max_iter or gamma",
            ConvergenceWarning,
            stacklevel=2,
        )
    return DistanceMatrix.open(folder)


def _finished(folder: Path, identity: dict[str, Any]) -> DistanceMatrix | None:
    """The matrix, if it is whole; one of other inputs is refused, a damaged one is said and made again."""
    if not (folder / "distances.json").exists():
        return None
    old = runs.read_json(folder / "distances.json").get("key")
    if old != identity:
        difference = runs.differing(old if isinstance(old, dict) else {}, identity)
        raise InputError(f"out: {folder} holds another matrix ({difference}); use another folder or resume=False")
    try:
        return DistanceMatrix.open(folder)
    except FileError as error:
        log.warning("%s; the matrix is made again", error)
        return None


class DistanceMatrix:
    """A finished matrix on disk: index it like an array, or np.asarray it. `info` says how it was made."""

    def __init__(self, path: Path, info: dict[str, Any], values: NDArray[Any]) -> None:
        self.path, self.info, self.values = path, info, values

    @classmethod
    def open(cls, out: str | Path) -> DistanceMatrix:
        """The matrix in a folder that `distance_matrix` has written; nothing is loaded but what is then indexed."""
        folder = Path(out)
        info, file = runs.read_json(folder / "distances.json"), folder / "distances.npy"
        kinds = {"shape": list, "gamma": float, "key": dict}
        if info.get("format") != FORMAT or not all(isinstance(info.get(name), kind) for name, kind in kinds.items()):
            raise FileError(f"{folder / 'distances.json'} does not describe a distance matrix of format {FORMAT}")
        if not file.exists():
            raise FileError(f"{file} does not exist")
        values = media.map_array(file)
        if values.ndim != 2 or values.dtype not in (np.float32, np.float64):
            raise FileError(f"{file} is damaged: it holds {values.dtype} {values.shape}, not a matrix of distances")
        if list(values.shape) != info["shape"]:
            raise FileError(f"{file} has shape {values.shape} where distances.json says {tuple(info['shape'])}")
        return cls(folder, info, values)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""
        n, m = self.values.shape
        return int(n), int(m)

    @property
    def gamma(self) -> float:
        """The γ that was used: what "auto" came to, or what was given."""
        return float(self.info["gamma"])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        part = self.values[index]
        return np.array(part) if isinstance(part, np.ndarray) else part

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.values, dtype=dtype, copy=copy)

    def verify(self) -> None:
        """Read the whole file; a FileError if it is not what was written."""
        file = self.path / "distances.npy"
        if _sha_of_file(file) != self.info.get("sha256"):
            raise FileError(f"{file} is damaged: it does not match its checksum; make it again with resume=False")

    def __repr__(self) -> str:
        n, m = self.shape
        return f"DistanceMatrix({n}×{m}, {self.info['key'].get('value')}, gamma={self.gamma:.4g}, in {self.path})"


@dataclass(frozen=True)
class BlockWork:
    """What a worker needs to solve block (i, j): the folder of the job that keeps the sets, and how to solve."""

    folder: str
    options: Options
    two: bool

    def keep_inputs(self, job: Job, name: str, sets: Pack) -> None:
        """Keep the sets in the metric's coordinates, a part for each row or column of blocks, with their self-terms."""
        block = self.options.block
        for k in range(math.ceil(len(sets) / block)):
            job.keep(f"{name}-{k}", functools.partial(self._part, sets, k * block, min((k + 1) * block, len(sets))))

    def _part(self, sets: Pack, first: int, last: int) -> tuple[dict[str, Any], dict[str, Any]]:
        offsets = sets.offsets[first : last + 1]
        rows = slice(int(offsets[0]), int(offsets[-1]))
        part = Pack(sets.points[rows], sets.weights[rows], offsets - offsets[0])
        # kl(P, P) of every set is solved here, once, not in every block that the set is part of
        own = _solve_self(part, self.options) if self.options.value == "divergence" else np.zeros(len(part))
        return {"points": part.points, "weights": part.weights, "offsets": part.offsets, "self": own}, {}

    def __call__(self, at: Sequence[int]) -> dict[str, Any]:
        """The distances of a block of rows and a block of columns, and how well they converged."""
        i, j = at
        job, own = Job.open(self.folder), i == j and not self.two
        X, Y = job.load(f"X-{i}"), job.load(f"{'Y' if self.two else 'X'}-{j}")
        left, right = (Pack(part["points"], part["weights"], part["offsets"]) for part in (X, Y))
        solved = _solve(left, None if own else right, self.options)
        value = np.triu(solved.value) + np.triu(solved.value, 1).T if own else solved.value  # symmetric to the last bit
        if self.options.value == "divergence":
            value = value - (X["self"][:, None] + Y["self"][None, :]) / 2
            if own:
                np.fill_diagonal(value, 0.0)
        once = np.triu(np.ones(value.shape, dtype=np.bool_)) if own else np.ones(value.shape, dtype=np.bool_)
        iterations, unconverged = solved.iterations[once], np.count_nonzero(~solved.converged[once])
        figures = [len(iterations), unconverged, iterations.sum(), iterations.max(), solved.residual[once].max()]
        return {"value": value.astype(self.options.dtype), "figures": np.array(figures, dtype=np.float64)}


def _solve(X: Pack, Y: Pack | None, how: Options) -> AllPairs:
    """Every pair of a block; what does not converge is counted, and told once at the end."""
    value: Value = "kl" if how.value == "divergence" else how.value
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        return transport.solve_all(X, Y, float(how.gamma), value=value, tol=how.tol, max_iter=how.max_iter)


def _solve_self(sets: Pack, how: Options) -> Array:
    """kl(P, P) of every set."""
    each = np.arange(len(sets), dtype=np.int64)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        solved = transport.solve_pairs(sets, sets, each, each, float(how.gamma), tol=how.tol, max_iter=how.max_iter)
    return solved.value


def _assemble(job: Job, grid: list[list[int]], target: Path, shape: tuple[int, int], work: BlockWork) -> dict[str, Any]:
    """Put the blocks into one .npy file; what they say about convergence, and the file's checksum."""
    dtype, block, said = np.dtype(work.options.dtype), work.options.block, []
    with media.atomic(target) as temporary:
        np.lib.format.open_memmap(temporary, mode="w+", dtype=dtype, shape=shape)
        for k, (i, j) in enumerate(grid):
            part = job.load(k)
            said.append(part["figures"])
            # mapped again each time, so that only a block's pages are ever held
            whole, (m, n) = np.lib.format.open_memmap(temporary, mode="r+"), part["value"].shape
            whole[i * block : i * block + m, j * block : j * block + n] = part["value"]
            if not work.two and i != j:
                whole[j * block : j * block + n, i * block : i * block + m] = part["value"].T
            del whole
        checksum = _sha_of_file(temporary)
    pairs, unconverged, iterations, most, worst = np.array(said).T
    return {
        "pairs": int(pairs.sum()),
        "unconverged": int(unconverged.sum()),
        "worst_residual": float(worst.max()),
        "mean_iterations": float(iterations.sum() / pairs.sum()),
        "most_iterations": int(most.max()),
        "sha256": checksum,
    }


def _pack(X: Any, where: str) -> Pack:
    """Signatures in any of the forms that `distances` takes, stacked; a Pack is taken as it is."""
    if isinstance(X, Pack):
        return X
    return transport.pack(signatures(X, where=where))


def _sha(*arrays: NDArray[Any]) -> str:
    """sha256 of the shapes and bytes of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _sha_of_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
