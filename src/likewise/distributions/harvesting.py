"""Harvesting: one shard of a bank from its number alone, the folder that many of them fill, and the authors' files.

bank/job.sqlite   the generator's sha256, space, latent, k, method, seed scheme and shard size; n; and for each shard
                  z (m, dim), log_sigma (m, k), rank (m,), log_density (m,), label (m,) with classes

Shard i draws its latents from a counter-based generator whose key is the seed and whose counter starts at i · 2^192:
its bytes depend on the generator, the seed, i, the shard size, k and the method, not on who makes it or when. So a
later harvest with a larger n adds shards to the folder, and keeps those that are there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from likewise import media
from likewise.distributions.generator import Generator
from likewise.distributions.latents import Latent
from likewise.distributions.spectra import spectrum
from likewise.errors import FileError, InputError, ShapeError
from likewise.store import checkpoint
from likewise.store import job as jobs
from likewise.store.checkpoint import Arrays
from likewise.store.job import Job
from likewise.types import Array

if TYPE_CHECKING:
    from likewise.distributions.bank import Bank

SHARD = 256
"""About how many latents a shard holds."""
ROWS = 4096
"""How many latents a shard of a saved bank holds."""
HARVESTED, SAVED = "bank", "bank, saved"
SEEDS = "Philox: key = seed, counter = shard × 2^192"
MOST_SEED = 2**63 - 1
_COLUMNS = {"z": 2, "log_sigma": 2, "rank": 1, "log_density": 1, "label": 1}
_SAME = ("generator", "space", "latent", "labels", "method")
_TURN = threading.Lock()

Columns = dict[str, Any]
"""The arrays of a bank, under the names that `Bank` takes them by."""


@dataclass(frozen=True)
class About:
    """Where a bank comes from. `parts` are (seed, first shard, number of shards, shard size)."""

    generator: str | None
    name: str
    space: str
    latent: Mapping[str, Any] | None
    bounded: bool
    labels: int | None
    method: str
    parts: tuple[tuple[int, int, int, int], ...] = ()

    @property
    def shards(self) -> set[tuple[int, int]]:
        """(seed, shard) of every shard: what two banks must not share, whatever the size of their shards."""
        return {(seed, i) for seed, first, count, _ in self.parts for i in range(first, first + count)}


def stream(seed: int, shard: int) -> np.random.Generator:
    """The random numbers of a shard: 2^192 blocks that no other shard of this seed touches."""
    return np.random.Generator(np.random.Philox(key=seed, counter=shard << 192))


@dataclass(frozen=True)
class Work:
    """Harvest shard i: its latents, the log-singular values of the generator's Jacobian at each, their rank."""

    generator: Generator
    k: int
    seed: int
    size: int
    method: str = "auto"

    def __call__(self, shard: int) -> dict[str, NDArray[Any]]:
        """The arrays of a shard."""
        z, labels = self.latents(shard)
        measured = measure(self.generator, z, labels, self.k, self.method)
        arrays = {"z": z, "log_sigma": measured.log_sigma, "rank": measured.rank}
        arrays["log_density"] = np.asarray(self.generator.latent.log_density(z), dtype=np.float64)
        return arrays if labels is None else {**arrays, "label": labels}

    def latents(self, shard: int, n: int | None = None) -> tuple[NDArray[np.float32], Int64[np.ndarray, " n"] | None]:
        """The shard's latents and classes; classes take turns, so that each has its equal share."""
        latent, classes = self.generator.latent, self.generator.labels
        z = np.asarray(latent.sample(self.size, stream(self.seed, shard)), dtype=np.float32)[:n]
        if z.ndim != 2 or z.shape[1] != latent.dim:
            raise ShapeError(f"latent: {latent.name} gave shape {z.shape}, expected (n, {latent.dim})")
        turns = shard * self.size + np.arange(len(z))
        return z, None if classes is None else (turns % classes).astype(np.int64)

    def probe(self) -> str:
        """Try two latents, so that what is wrong with the generator is said at once; which method is in fact used."""
        z, labels = self.latents(0, 2)
        return measure(self.generator, z, labels, self.k, self.method).method

    def identity(self) -> dict[str, Any]:
        """What the job is, but for the number of latents."""
        generator = self.generator
        return {
            "what": HARVESTED,
            "generator": generator.digest,
            "name": generator.name,
            "space": generator.space,
            "latent": generator.latent.to_dict(),
            "bounded": generator.latent.support() is not None,
            "labels": generator.labels,
            "dim": generator.dim,
            "k": self.k,
            "method": self.method,
            "resolved": self.probe(),
            "seeds": SEEDS,
            "seed": self.seed,
            "shard_size": self.size,
        }


@dataclass(frozen=True)
class Measured:
    """log σ (n, k), −∞ beyond the numerical rank (n,); the method and what it cost, in calls a latent."""

    log_sigma: Float64[np.ndarray, "n k"]
    rank: Int64[np.ndarray, " n"]
    method: str
    cost: float


def measure(generator: Generator, z: NDArray[Any], labels: NDArray[Any] | None, k: int, method: str) -> Measured:
    """The k largest log-singular values of the generator's Jacobian at each latent, on one thread.

    The random directions of a sketching method are the same in every call: log-volumes are one function of z,
    which samples can be compared by.
    """
    log_sigma, rank = np.empty((len(z), k)), np.empty(len(z), dtype=np.int64)
    method_used, cost = method, 0.0
    with one_thread():
        for rows, label in _by_class(len(z), labels):
            part = _spectrum(generator, z[rows], label, k, method)
            log_sigma[rows], rank[rows] = part.log_sigma, part.rank
            method_used, cost = part.method, cost + part.cost * len(part.rank) / len(z)
    return Measured(log_sigma, rank, method_used, cost)


def _spectrum(generator: Generator, z: NDArray[Any], label: int | None, k: int, method: str) -> Measured:
    try:
        values = spectrum(generator.function(label), generator.latents(z), k, method=method)  # type: ignore[arg-type]
    except InputError as error:
        raise type(error)(f"generator: {generator.name}: {error}") from error
    return Measured(values.log_values, np.asarray(values.rank, dtype=np.int64), values.method, float(values.cost))


def _by_class(n: int, labels: NDArray[Any] | None) -> Iterator[tuple[Any, int | None]]:
    """The rows of each class: a spectrum may call the generator with any number of rows, so the class is one number."""
    if labels is None:
        yield slice(None), None
        return
    for label in np.unique(labels):
        yield np.flatnonzero(labels == label), int(label)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Torch and BLAS on one thread: the order of sums, and so the bytes, must not depend on the machine's load.

    Threads of one process take turns: forward-mode differentiation has one state for all of them.
    """
    with _TURN:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with threadpool_limits(limits=1):
                yield
        finally:
            torch.set_num_threads(before)


# ── the folder ────────────────────────────────────────────────────────────────────────────────────────────────────


def prepare(
    generator: Generator, n: int, k: int | None, seed: int, method: str, shard_size: int | None, out: Path | None
) -> Work:
    """The work of a harvest, its arguments checked; without a shard size, that of the folder, or one that fits n."""
    if not isinstance(generator, Generator):
        raise InputError(f"generator: expected a Generator(net, latent), got {type(generator).__name__}")
    if shard_size is None and out is not None and (out / jobs.FILE).exists():
        shard_size = Job.open(out).identity.get("shard_size")
    k = min(30, generator.dim) if k is None else k
    size = 1 if shard_size is None else shard_size
    for name, value, low in (("n", n, 1), ("seed", seed, 0), ("shard_size", size, 1), ("k", k, 1)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < low:
            raise InputError(f"{name}: expected a whole number ≥ {low}, got {value!r}")
    if seed > MOST_SEED:
        raise InputError(f"seed: expected a whole number below 2^63, got {seed}")
    if k > generator.dim:
        raise InputError(f"k: expected at most {generator.dim}, the size of a latent of {generator.name}, got {k}")
    if shard_size is None:  # equal shards of about SHARD latents, so that none is nearly empty
        size = math.ceil(n / math.ceil(n / SHARD))
    return Work(generator, int(k), int(seed), int(size), method)


def fill(out: Path, work: Work, n: int, *, resume: bool, **how: Any) -> None:
    """Harvest what is missing of a bank of n latents in the folder `out`; `how` is that of `Job.run`."""
    identity = work.identity()
    if resume and (out / jobs.FILE).exists():
        theirs = Job.open(out).identity.get("generator")
        if theirs != identity["generator"]:
            said = explain_generators(out, theirs, identity["generator"])
            raise InputError(f"out: {said}; use another folder, or resume=False")
    with Job.begin(out, identity, resume=resume) as job:
        job.run(work, math.ceil(n / work.size), notes={"n": max(n, int(job.notes.get("n", 0)))}, **how)


def explain_generators(where: Any, theirs: Any, ours: str) -> str:
    """The sentence on a bank whose generator is not the one at hand."""
    return f"{where} was harvested from another generator (sha {str(theirs)[:4]}… ≠ {ours[:4]}…)"


def read(path: Path) -> tuple[Columns, About]:
    """The bank in a folder; FileError names a shard that is missing or damaged, and says how to harvest it again."""
    job = Job.open(path)
    about, n = _about(job)
    missing = job.missing()
    if missing:
        more = f" and {len(missing) - 1} more are" if len(missing) > 1 else " is"
        raise FileError(f"{path}: shard {missing[0]}{more} missing; {_remedy(job, n)}")
    shards = [_shard(job, i, n) for i in range(len(job))]
    try:
        return _columns({name: np.concatenate([shard[name] for shard in shards])[:n] for name in shards[0]}), about
    except (ValueError, KeyError, IndexError) as error:
        raise FileError(f"{path} holds no bank: {error}") from error


def write(path: Path, columns: Columns, about: About) -> None:
    """A bank of any origin as a folder that `read` takes."""
    names = {"z": "latents", "log_sigma": "log_sigma", "rank": "rank", "log_density": "log_density", "label": "labels"}
    arrays = {short: columns[name] for short, name in names.items() if columns[name] is not None}
    n = len(arrays["z"])
    contents = hashlib.sha256(checkpoint.encode(arrays, {})).hexdigest()
    with Job.begin(path, {"what": SAVED, **dataclasses.asdict(about), "contents": contents}) as job:
        job.run(
            lambda i: {name: array[i * ROWS : (i + 1) * ROWS] for name, array in arrays.items()},
            math.ceil(n / ROWS),
            notes={"n": n},
            progress=False,
        )


def _columns(arrays: Mapping[str, NDArray[Any]]) -> Columns:
    return {
        "latents": arrays["z"],
        "log_sigma": arrays["log_sigma"],
        "rank": arrays["rank"],
        "labels": arrays.get("label"),
        "log_density": arrays.get("log_density"),
    }


def _about(job: Job) -> tuple[About, int]:
    """What the record of a job says of the bank in it."""
    said: dict[str, Any] = job.identity
    try:
        n = int(job.notes["n"])
        if said["what"] == HARVESTED:
            said["parts"] = [[said["seed"], 0, len(job), said["shard_size"]]]
        elif said["what"] != SAVED:
            raise KeyError("what")
        parts = tuple((int(a), int(b), int(c), int(d)) for a, b, c, d in said["parts"])
        fields = {field.name: said[field.name] for field in dataclasses.fields(About)}
        return About(**{**fields, "parts": parts}), n
    except (KeyError, TypeError, ValueError):
        raise FileError(f"{job.path / jobs.FILE} is not the record of a bank") from None


def _shard(job: Job, i: int, n: int) -> Arrays:
    try:
        arrays = job.load(i)
    except FileError as error:
        raise FileError(f"{error}; {_remedy(job, n)}") from error
    sizes = {len(a) if a.ndim else -1 for a in arrays.values()}
    shaped = all(name in _COLUMNS and array.ndim == _COLUMNS[name] for name, array in arrays.items())
    if len(sizes) != 1 or not shaped or not {"z", "log_sigma", "rank"} <= set(arrays):
        raise FileError(f"{job.path}: shard {i} is not a shard of a bank")
    return arrays


def _remedy(job: Job, n: int) -> str:
    said = job.identity
    if said["what"] == SAVED:
        return "save the bank again"
    call = f"harvest(generator, {n}, k={said['k']}, seed={said['seed']}, out={str(job.path)!r})"
    return f"{call} does it again and keeps the others"


# ── many as one ───────────────────────────────────────────────────────────────────────────────────────────────────


def merge(banks: Sequence[Bank]) -> tuple[Columns, About]:
    """One bank of several that do not overlap, in the order of their seeds and shards."""
    seen: set[tuple[int, int]] = set()
    for i, bank in enumerate(banks):
        _check_alike(banks[0], bank, i)
        if common := seen & bank.about.shards:
            seed, shard = min(common)
            raise InputError(
                f"banks[{i}] holds shard {shard} of seed {seed} that another holds, too: the same latents would count "
                "twice; harvest it with another seed"
            )
        seen |= bank.about.shards
    ordered = sorted(banks, key=lambda bank: bank.about.parts)
    names = ("latents", "log_sigma", "rank", "labels", "log_density")
    parts = {name: [getattr(bank, name) for bank in ordered] for name in names}
    columns = {name: None if part[0] is None else np.concatenate(part) for name, part in parts.items()}
    return columns, dataclasses.replace(banks[0].about, parts=tuple(p for bank in ordered for p in bank.about.parts))


def _check_alike(first: Bank, bank: Bank, i: int) -> None:
    pairs = [(name, getattr(first.about, name), getattr(bank.about, name)) for name in _SAME]
    pairs += [("dim", first.dim, bank.dim), ("k", first.k, bank.k)]
    pairs += [("log_density", first.log_density is None, bank.log_density is None)]
    pairs += [("classes", first.labels is None, bank.labels is None)]
    for name, a, b in pairs:
        if a != b:
            raise InputError(
                f"banks[{i}]: {name} is {str(b)[:24]} where the first has {str(a)[:24]}; these cannot be merged"
            )


# ── the authors' files ────────────────────────────────────────────────────────────────────────────────────────────


def read_reference(path: str | Path, latent: Latent | None, *, log: bool) -> tuple[Columns, About]:
    """The arrays of an .npz with latents, svds and (one-hot) labels; nothing in it is unpickled."""
    arrays = media.load_arrays(path)
    absent = {"latents", "svds"} - set(arrays)
    if absent:
        raise FileError(f"{path}: expected arrays 'latents' and 'svds', found {', '.join(sorted(arrays)) or 'none'}")
    latents = _vectors(arrays["latents"], path)
    log_sigma, rank = _logs(arrays["svds"], path, log=log)
    labels, classes = _classes(arrays.get("labels"), path)
    lengths = {len(latents), len(log_sigma)} | ({len(labels)} if labels is not None else set())
    if len(lengths) != 1:
        raise FileError(f"{path}: its arrays have different lengths: {', '.join(map(str, sorted(lengths)))}")
    if latent is not None and latent.dim != latents.shape[1]:
        raise InputError(f"latent: expected one of size {latents.shape[1]}, as in {path}, got {latent.dim}")
    density = None if latent is None else latent.log_density(latents)
    described = None if latent is None else latent.to_dict()
    bounded = latent is not None and latent.support() is not None
    about = About(None, Path(path).stem, "unknown", described, bounded, classes, "reference")
    columns = {"latents": latents, "log_sigma": log_sigma, "rank": rank, "labels": labels, "log_density": density}
    return columns, about


def _vectors(latents: NDArray[Any], path: Any) -> NDArray[Any]:
    if latents.ndim == 1 or latents.dtype.kind in "iu":
        raise FileError(
            f"{path}: 'latents' are random seeds, not vectors; draw the vectors with the program that took the seeds, "
            "and save (n, dim) numbers"
        )
    if latents.ndim < 2 or latents.dtype.kind != "f" or 0 in latents.shape:
        raise FileError(f"{path}: 'latents': expected numbers (n, dim), got {latents.dtype} {latents.shape}")
    flat = latents.reshape(len(latents), -1).astype(np.float32)
    if not np.isfinite(flat).all():
        raise FileError(f"{path}: 'latents' contain NaN or infinity")
    return flat


def _logs(svds: NDArray[Any], path: Any, *, log: bool) -> tuple[Array, NDArray[np.int64]]:
    """log σ descending, and the rank: the values above σ₁ · K · ε, ε that of the numbers stored."""
    if svds.ndim != 2 or svds.dtype.kind != "f" or 0 in svds.shape:
        raise FileError(f"{path}: 'svds': expected floating numbers (n, K), got {svds.dtype} {svds.shape}")
    values = np.asarray(svds, dtype=np.float64)
    if np.isnan(values).any() or np.isposinf(values).any():
        raise FileError(f"{path}: 'svds' contain NaN or infinity")
    if not log and (values < 0).any():
        raise InputError(f"log: {path}: 'svds' are below 0 in places: if they are logarithms, pass log=True")
    with np.errstate(divide="ignore"):
        logs = -np.sort(-(values if log else np.log(values)), axis=1)
    least = logs[:, :1] + np.log(logs.shape[1] * float(np.finfo(svds.dtype).eps))
    alive = np.isfinite(logs) & (logs > least)
    return np.where(alive, logs, -np.inf), alive.sum(1)


def _classes(labels: NDArray[Any] | None, path: Any) -> tuple[NDArray[np.int64] | None, int | None]:
    """Class numbers and their count, from one-hot rows or from numbers; an empty array means that there are none."""
    if labels is None or labels.size == 0:
        return None, None
    if labels.dtype.kind not in "biuf":
        raise FileError(f"{path}: 'labels': expected numbers, got {labels.dtype} {labels.shape}")
    if labels.ndim == 2 and labels.shape[1] > 1:
        hot = labels.astype(np.float64)
        if not (((hot == 0) | (hot == 1)).all() and (hot.sum(1) == 1).all()):
            raise FileError(f"{path}: 'labels' {labels.shape} are not one-hot")
        return hot.argmax(1).astype(np.int64), int(labels.shape[1])
    flat = labels.reshape(-1)
    if flat.dtype.kind not in "iu" or (flat < 0).any():
        raise FileError(f"{path}: 'labels': expected one-hot rows or class numbers, got {labels.dtype} {labels.shape}")
    return flat.astype(np.int64), int(flat.max()) + 1
