"""All distances between many signatures, on disk, by blocks: for matrices too long to lose or too large to hold.

out/
  inputs.safetensors   the signatures, stacked and in the metric's coordinates, written once for all workers
  blocks/              one shard a block (upper triangle only where Y is X), removed once the matrix is whole
  distances.npy        the matrix (N, M): np.load(…, mmap_mode="r") reads it without loading it
  distances.json       γ, value, shape, convergence, time, and the checksum of the matrix
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import logging
import math
import shutil
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from likewise import media, numeric
from likewise.errors import ConvergenceWarning, FileError, InputError, ShapeError
from likewise.inputs import signatures
from likewise.sets.compare import Gamma, check_gamma
from likewise.sets.transport import solvers as transport
from likewise.sets.transport.solvers import AllPairs, Pack, Value
from likewise.store import checkpoint
from likewise.store import job as shards
from likewise.store import run as runs
from likewise.types import Array

FORMAT = 1

log = logging.getLogger(__name__)


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
    """Smoothed Wasserstein distances of all X against all Y (or X) [MLML Eq. 4–7, 11], on disk in the folder `out`.

    The numbers are those of `distances`; memory is that of the inputs and a block, never that of the matrix.
    `executor` and `n_jobs` are those of `likewise.store.job.run`. A run that was killed goes on where it was;
    a folder made from other inputs or settings is refused unless resume=False.
    """
    began = time.monotonic()
    _check(gamma, value, tol, max_iter, block, dtype)
    shards.check_executor(executor, n_jobs)
    left, right = _pack(X, "X"), None if Y is None else _pack(Y, "Y")
    if right is not None and right.dim != left.dim:
        raise ShapeError(f"Y has {right.dim} dimensions where X has {left.dim}")
    M = None if metric is None else numeric.psd(metric, dim=left.dim)
    key = {
        "what": "distance matrix",
        "X": _digest(left),
        "Y": None if right is None else _digest(right),
        "metric": None if M is None else _sha(M),
        "gamma": gamma if isinstance(gamma, str) else float(gamma),
        "value": value,
        "tol": float(tol),
        "max_iter": int(max_iter),
        "block": int(block),
        "dtype": dtype,
    }
    folder = Path(out)
    with shards.locked(folder):
        finished = _begin(folder, key, resume)
        if finished is not None:
            return finished
        work = _inputs(folder, key, left, right, M)
        grid = _grid(len(left), None if right is None else len(right), block)
        store = shards.run(
            work, grid, folder / "blocks", executor=executor, n_jobs=n_jobs, resume=resume, progress=progress, key=key
        )
        shape = (len(left), len(left if right is None else right))
        found = _assemble(store, grid, folder / "distances.npy", shape, work)
        info = {"format": FORMAT, "shape": list(shape), "gamma": work.gamma, **found, "key": key}
        info["seconds"] = round(time.monotonic() - began, 3)
        media.write_text(folder / "distances.json", json.dumps(info, indent=2, allow_nan=False) + "\n")
        shutil.rmtree(folder / "blocks")
    if found["unconverged"]:
        warnings.warn(
            f"{found['unconverged']} of {found['pairs']} pairs stopped at max_iter={max_iter} "
            f"(worst marginal error {found['worst_residual']:.3g}, tol {tol:g}); raise max_iter or gamma",
            ConvergenceWarning,
            stacklevel=2,
        )
    return DistanceMatrix.open(folder)


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
        found = self.values[index]
        return np.array(found) if isinstance(found, np.ndarray) else found

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
    """What a worker needs to solve block (i, j): where the inputs are, and how to solve."""

    inputs: str
    job: str
    gamma: float
    value: Value
    tol: float
    max_iter: int
    block: int
    dtype: str

    def __call__(self, at: Sequence[int]) -> dict[str, Any]:
        """The distances of a block of rows and a block of columns, and how well they converged."""
        i, j = at
        with contextlib.closing(_Slices(self.inputs, self.job)) as inputs:
            own = i == j and not inputs.two
            X, x_self = inputs.sets("X", i * self.block, self.block)
            Y, y_self = (X, x_self) if own else inputs.sets("Y" if inputs.two else "X", j * self.block, self.block)
        found = _solve(X, None if own else Y, self)
        value = np.triu(found.value) + np.triu(found.value, 1).T if own else found.value  # symmetric to the last bit
        if self.value == "divergence":
            value = value - (x_self[:, None] + y_self[None, :]) / 2
            if own:
                np.fill_diagonal(value, 0.0)
        once = np.triu(np.ones(value.shape, dtype=np.bool_)) if own else np.ones(value.shape, dtype=np.bool_)
        iterations = found.iterations[once].astype(np.int64)
        return {
            "value": value.astype(self.dtype),
            "worst": np.array(found.residual[once].max(), dtype=np.float64),
            "unconverged": np.array(np.count_nonzero(~found.converged[once])),
            "iterations": np.array([iterations.sum(), iterations.max()]),
            "pairs": np.array(len(iterations)),
        }


def _solve(X: Pack, Y: Pack | None, how: BlockWork) -> AllPairs:
    """Every pair of a block; the self-terms of a divergence are not solved here but once for all blocks."""
    value: Value = "kl" if how.value == "divergence" else how.value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # counted, and told once at the end
        return transport.solve_all(X, Y, how.gamma, value=value, tol=how.tol, max_iter=how.max_iter)


class _Slices:
    """The inputs file, of which a worker reads only the rows of its blocks."""

    def __init__(self, path: str, job: str) -> None:
        safetensors: Any = importlib.import_module("safetensors")
        try:
            self.stack = contextlib.ExitStack()
            self.file: Any = self.stack.enter_context(safetensors.safe_open(path, framework="np"))
            header = json.loads(self.file.metadata()["likewise"])["header"]
        except (OSError, safetensors.SafetensorError, KeyError, TypeError, ValueError) as error:
            raise FileError(f"{path} cannot be read: {error}") from None
        if header.get("job") != job:
            raise FileError(f"{path} belongs to another job")
        self.two = bool(header["two"])

    def close(self) -> None:
        self.stack.close()

    def sets(self, name: str, first: int, count: int) -> tuple[Pack, Array]:
        """Sets `first` … `first + count` − 1 of X or Y, and their self-terms (0 unless a divergence is wanted)."""
        offsets = self._rows(f"{name}.offsets", first, first + count + 1)
        rows = int(offsets[0]), int(offsets[-1])
        pack = Pack(self._rows(f"{name}.points", *rows), self._rows(f"{name}.weights", *rows), offsets - offsets[0])
        return pack, self._rows(f"{name}.selves", first, first + count)

    def _rows(self, name: str, first: int, last: int) -> NDArray[Any]:
        held = self.file.get_slice(name)
        length = held.get_shape()[0]
        return np.ascontiguousarray(held[min(first, length) : min(last, length)])


def _begin(folder: Path, key: dict[str, Any], resume: bool) -> DistanceMatrix | None:
    """Clear away what dead processes left, and an older matrix if told to; the matrix, if it is there already."""
    for pattern in (".distances.*.tmp.npy", ".distances.*.tmp.json", ".inputs.*.tmp.safetensors"):
        _remove(*folder.glob(pattern))
    if not resume:
        _remove(*(folder / name for name in ("distances.json", "distances.npy", "inputs.safetensors")))
    if not (folder / "distances.json").exists():
        return None
    _same(folder, runs.read_json(folder / "distances.json").get("key"), key)
    try:
        finished = DistanceMatrix.open(folder)
    except FileError as error:
        log.warning("%s; the matrix is made again", error)
        _remove(folder / "distances.json", folder / "distances.npy")
        return None
    shutil.rmtree(folder / "blocks", ignore_errors=True)
    return finished


def _remove(*files: Path) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _same(folder: Path, old: Any, new: dict[str, Any]) -> None:
    if old != new:
        difference = runs.differing(old if isinstance(old, dict) else {}, new)
        raise InputError(f"out: {folder} holds another matrix ({difference}); use another folder or resume=False")


def _inputs(folder: Path, key: dict[str, Any], X: Pack, Y: Pack | None, M: Array | None) -> BlockWork:
    """Write the inputs once, in the metric's coordinates, or take what an earlier run wrote; how to solve a block."""
    path = folder / "inputs.safetensors"
    header = _header(path)
    if header is not None:
        _same(folder, header.get("key"), key)
    else:
        header = _write_inputs(path, key, X, Y, M)
    return BlockWork(
        inputs=str(path.absolute()),
        job=header["job"],
        gamma=header["gamma"],
        value=key["value"],
        tol=key["tol"],
        max_iter=key["max_iter"],
        block=key["block"],
        dtype=key["dtype"],
    )


def _header(path: Path) -> dict[str, Any] | None:
    """The header of a whole inputs file; None where there is none, or a damaged one."""
    if not path.exists():
        return None
    try:
        return checkpoint.read(path)[1]
    except FileError as error:
        log.warning("%s; it is written again", error)
        return None


def _write_inputs(path: Path, key: dict[str, Any], X: Pack, Y: Pack | None, M: Array | None) -> dict[str, Any]:
    if M is not None:
        L = numeric.factor(M)
        X, Y = X.project(L), None if Y is None else Y.project(L)
    gamma = transport.auto_gamma(X) if key["gamma"] == "auto" else key["gamma"]
    arrays: dict[str, Any] = {}
    for name, sets in (("X", X), ("Y", Y)):
        if sets is not None:
            selves = _selves(sets, gamma, key) if key["value"] == "divergence" else np.zeros(len(sets))
            held = {"points": sets.points, "weights": sets.weights, "offsets": sets.offsets, "selves": selves}
            arrays |= {f"{name}.{part}": array for part, array in held.items()}
    job = hashlib.sha256(checkpoint.canonical(key, "key").encode()).hexdigest()
    header = {"job": job, "key": key, "gamma": gamma, "two": Y is not None}
    checkpoint.write(path, arrays, header)
    return header


def _selves(sets: Pack, gamma: float, key: dict[str, Any]) -> Array:
    """kl(P, P) of every set, solved once."""
    which = np.arange(len(sets), dtype=np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        solved = transport.solve_pairs(
            sets, sets, which, which, gamma, value="kl", tol=key["tol"], max_iter=key["max_iter"]
        )
    return solved.value


def _grid(n: int, m: int | None, block: int) -> list[list[int]]:
    """The blocks (i, j) of the matrix; where Y is X, those of the upper triangle."""
    rows = math.ceil(n / block)
    columns = rows if m is None else math.ceil(m / block)
    return [[i, j] for i in range(rows) for j in range(i if m is None else 0, columns)]


def _assemble(
    store: shards.ShardStore, grid: list[list[int]], target: Path, shape: tuple[int, int], work: BlockWork
) -> dict[str, Any]:
    """Put the blocks into one .npy file; what they say about convergence, and the file's checksum."""
    worst, unconverged, pairs, total, most = 0.0, 0, 0, 0, 0
    symmetric = store.key["Y"] is None
    with media.atomic(target) as temporary:
        np.lib.format.open_memmap(temporary, mode="w+", dtype=np.dtype(work.dtype), shape=shape)
        for k, (i, j) in enumerate(grid):
            found = store.load(k)
            _place(temporary, found["value"], i * work.block, j * work.block, mirror=symmetric and i != j)
            worst, unconverged = max(worst, float(found["worst"])), unconverged + int(found["unconverged"])
            pairs, total = pairs + int(found["pairs"]), total + int(found["iterations"][0])
            most = max(most, int(found["iterations"][1]))
        checksum = _sha_of_file(temporary)
    return {
        "pairs": pairs,
        "unconverged": unconverged,
        "worst_residual": worst,
        "mean_iterations": total / pairs,
        "most_iterations": most,
        "sha256": checksum,
    }


def _place(file: Path, value: NDArray[Any], row: int, column: int, *, mirror: bool) -> None:
    """Write a block into the matrix; mapped anew each time, so that only a block's pages are ever held."""
    whole = np.lib.format.open_memmap(file, mode="r+")
    m, n = value.shape
    whole[row : row + m, column : column + n] = value
    if mirror:
        whole[column : column + n, row : row + m] = value.T


def _check(gamma: Any, value: Any, tol: Any, max_iter: Any, block: Any, dtype: Any) -> None:
    check_gamma(gamma)
    if value not in get_args(Value):
        raise InputError(f"value: expected one of {', '.join(get_args(Value))}, got {value!r}")
    if not (isinstance(tol, int | float | np.number) and 0 < tol < math.inf):
        raise InputError(f"tol: expected a number > 0, got {tol!r}")
    for name, count in (("max_iter", max_iter), ("block", block)):
        if not isinstance(count, (int, np.integer)) or count < 1:
            raise InputError(f"{name}: expected a whole number ≥ 1, got {count!r}")
    if dtype not in ("float64", "float32"):
        raise InputError(f"dtype: expected 'float64' or 'float32', got {dtype!r}")


def _pack(X: Any, where: str) -> Pack:
    """Signatures in any of the forms that `distances` takes, stacked; a Pack is taken as it is."""
    if isinstance(X, Pack):
        return X
    return transport.pack(signatures(X, where=where))


def _digest(sets: Pack) -> str:
    return _sha(sets.points, sets.weights, sets.offsets)


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
