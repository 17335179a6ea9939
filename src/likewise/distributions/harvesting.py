"""Harvesting: the spectra of a generator at many latents, shard by shard, in a folder that can be resumed and extended.

bank/job.sqlite   the generator's sha256, space, latent, k, method, seed scheme and shard size; n; and for each shard
                  z (m, dim), log_sigma (m, k), rank (m,), log_density (m,), label (m,) with classes

Shard i draws its latents from a counter-based generator whose key is the seed and whose counter starts at i · 2^192:
its bytes depend on the generator, the seed, i, the shard size, k and the method, not on who makes it or when. So a
later harvest with a larger n adds shards to the folder, and keeps those that are there.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import pickle
import platform
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from joblib.externals.loky import ProcessPoolExecutor as LokyPool
from joblib.externals.loky.backend import reduction
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor

from likewise import media
from likewise.distributions.bank import HARVESTED, Bank
from likewise.distributions.generator import Generator
from likewise.distributions.latents import check_whole
from likewise.distributions.spectra import FEW, TRIED, Spectrum, choose, pilot, spectrum
from likewise.errors import InputError, ShapeError
from likewise.store import job as jobs
from likewise.store.job import Job

SHARD = 256
"""About how many latents a shard holds."""
SEEDS = "Philox: key = seed, counter = shard × 2^192"
MOST_SEED = 2**63 - 1
MOST_SHARDS = jobs.MOST_SHARDS
PILOT = 64
"""Latents whose Jacobians give the directions of `basis`."""
FOLDERS: list[str] = []
"""Folders that a user's program was imported from, which is not on Python's path; a worker needs them."""
_TURN = threading.Lock()


def harvest(
    generator: Generator,
    n: int,
    *,
    k: int | None = None,
    out: str | Path | None = None,
    seed: int = 0,
    executor: Any = None,
    resume: bool = True,
    n_jobs: int = 1,
    method: str = "auto",
    shard_size: int | None = None,
    label: int | None = None,
    chunk: int | None = None,
    basis: int | None = None,
    progress: bool = True,
) -> Bank:
    """Draw n latents and take the top k singular values of the generator's Jacobian at each [Polarity Algorithm 1].

    Parameters
    ----------
    generator : Generator
        The network, its latents and the space in which volumes are measured; truncated to ψ, volumes are those of the
        truncated map.
    n : int
        How many latents.
    k : int, optional
        Singular values of each; by default min(30, latent size).
    out : path, optional
        A folder that keeps the bank: an interrupted harvest resumes there, and a larger n extends it. Without one the
        bank stays in memory.
    seed : int, default 0
        Of the latents.
    executor, n_jobs
        Where shards are made, as for `likewise.store.job`; the bytes are the same with any of them.
    resume : bool, default True
        Whether a bank that stands in `out` is continued or made again.
    method : str, default "auto"
        That of `spectrum`; what "auto" chose is kept with the bank.
    shard_size : int, optional
        Latents a shard; by default about 256.
    label : int, optional
        Only latents of this class; by default all classes take turns.
    chunk : int, optional
        Rows in one pass through the network, as for `spectrum`: fewer need less memory.
    basis : int, optional
        Measure by `left` along so many directions that a pilot of a few latents finds, the same for all.
    progress : bool, default True
        Show a bar.

    Returns
    -------
    Bank
        n latents with their singular values.

    Raises
    ------
    InputError
        Where an argument is out of range, `out` holds another generator's bank, or the generator gives NaN.

    Examples
    --------
    >>> import likewise as lw
    >>> generator = lw.distributions.Generator(lambda z: z + z**3, lw.distributions.Normal(2))
    >>> lw.distributions.harvest(generator, 50, progress=False)
    Bank(50 latents of <lambda>, k = 2, space pixel, dead 0.00%)
    """
    if not isinstance(generator, Generator):
        raise InputError(f"generator: expected a Generator(net, latent), got {type(generator).__name__}")
    jobs.check_executor(executor, n_jobs)
    there: Any = {}
    if resume and out is not None and Job.begun(out):
        there = Job.open(out).identity
        shard_size = there.get("shard_size") if shard_size is None else shard_size
    n, seed = check_whole("n", n), check_whole("seed", seed, 0, MOST_SEED)
    most = min(30, generator.dim)
    k = check_whole("k", most if k is None else k, 1, generator.dim, f", the size of a latent of {generator.name}")
    if shard_size is None:  # equal shards of about SHARD latents, so that none is nearly empty
        shard_size = math.ceil(n / math.ceil(n / SHARD))
    if label is not None and (generator.labels is None or not 0 <= check_whole("label", label, 0) < generator.labels):
        raise InputError(f"label: expected a class of {generator.name}, which has {generator.labels}, got {label}")
    if basis is not None:
        check_whole("basis", basis, k, generator.dim, ", the size of a latent")
        if method not in ("auto", "left"):
            raise InputError(f'method: a basis is for "left", got {method!r}')
        method = "left"
    work = Work(generator, k, seed, check_whole("shard_size", shard_size), method, label, chunk, basis)
    if method == "auto" and "method" in there:  # banks of earlier versions did not say what auto chose
        work = replace(work, method=there["method"], resolved=str(there.get("resolved", "gram")).split(" ")[0])
    elif method == "auto":
        work = replace(work, method=work.chosen(n))
    with media.scratch("likewise-bank-") as scratch:
        folder = Path(scratch) / "bank" if out is None else Path(out)
        with Job.begin(folder, work.identity(), resume=resume) as job:
            how: Any = {"executor": executor, "n_jobs": n_jobs, "progress": progress}
            todo = Sent.of(work, Path(scratch), executor) if _leaves(executor, n_jobs) else work
            job.run(todo, math.ceil(n / work.size), notes={"n": max(n, int(job.notes.get("n", 0)))}, **how)
        bank = Bank.open(folder).first(n)
    bank.path = None if out is None else folder
    return bank


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
    label: int | None = None
    chunk: int | None = None
    basis: int | None = None
    resolved: str | None = None

    def __call__(self, shard: int) -> dict[str, NDArray[Any]]:
        """The arrays of a shard."""
        z, labels = self.latents(shard)
        measured = self.measure(z, labels)
        arrays: dict[str, NDArray[Any]] = {"z": z, "log_sigma": measured.log_values, "rank": measured.rank}
        arrays["log_density"] = np.asarray(self.generator.latent.log_density(z), dtype=np.float64)
        return arrays if labels is None else {**arrays, "label": labels}

    def measure(self, z: NDArray[Any], labels: NDArray[Any] | None) -> Spectrum:
        """The spectra at some latents."""
        how = self.resolved if self.resolved and self.method == "auto" else self.method
        return measure(self.generator, z, labels, self.k, how, chunk=self.chunk, basis=self.directions)

    @functools.cached_property
    def directions(self) -> Tensor | None:
        """The directions that are large on average over the pilot's latents, which are no shard's."""
        if self.basis is None:
            return None
        rows = self.generator.latent.sample(PILOT, stream(self.seed, MOST_SHARDS))
        y = self._classes(np.arange(PILOT))
        with one_thread():
            return pilot(self.generator.by_class(), self.generator.latents(rows), self.basis, y=y, chunk=self.chunk)

    def latents(self, shard: int, n: int | None = None) -> tuple[NDArray[np.float32], Int64[np.ndarray, " n"] | None]:
        """The shard's latents and classes; classes take turns, so that each has its equal share."""
        latent = self.generator.latent
        z = np.asarray(latent.sample(self.size, stream(self.seed, shard)), dtype=np.float32)[:n]
        if z.ndim != 2 or z.shape[1] != latent.dim:
            raise ShapeError(f"latent: {latent.name} gave shape {z.shape}, expected (n, {latent.dim})")
        return z, self._classes(shard * self.size + np.arange(len(z)))

    def chosen(self, n: int) -> str:
        """The method for n latents, tried on the first of them where they are many."""
        plain = self.measure(*self.latents(0, 2)).method.split(" ")[0]
        z, labels = self.latents(0, TRIED)
        if n < FEW or len(z) < TRIED or plain == "fd":
            return plain
        f, y = self.generator.by_class(), self.generator.classes(labels, len(z))
        with one_thread():
            return choose(f, self.generator.latents(z), self.k, y=y, chunk=self.chunk)

    def _classes(self, turns: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n"] | None:
        if self.generator.labels is None:
            return None
        return np.full(len(turns), self.label) if self.label is not None else turns % self.generator.labels

    def identity(self) -> dict[str, Any]:
        """What the job is, but for the number of latents; two are tried, so that a wrong generator is told at once."""
        generator = self.generator
        given = {name: getattr(self, name) for name in ("label", "chunk", "basis") if getattr(self, name) is not None}
        return {
            **given,
            **({} if generator.psi == 1 else {"psi": generator.psi}),
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
            "resolved": self.measure(*self.latents(0, 2)).method,
            "seeds": SEEDS,
            "seed": self.seed,
            "shard_size": self.size,
        }


def measure(
    generator: Generator, z: NDArray[Any], labels: NDArray[Any] | None, k: int, method: str, **options: Any
) -> Spectrum:
    """The k largest singular values of the generator's Jacobian at each latent, all classes together, on one thread.

    The random directions of a sketching method are the same in every call: log-volumes are one function of z,
    which samples can be compared by.
    """
    options |= {"y": generator.classes(labels, len(z)), "method": method}
    with one_thread():
        try:
            return spectrum(generator.by_class(), generator.latents(z), k, **options)
        except InputError as error:
            raise type(error)(f"generator: {generator.name}: {error}") from error


# ── the way to a worker ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Sent:
    """`Work` for other processes: they get it once, with the folders that its program was imported from.

    Workers on this machine read it from a file; others (Dask's, which are sent a task once) get the bytes.
    """

    key: str
    held: bytes | str
    folders: tuple[str, ...]

    @classmethod
    def of(cls, work: Work, scratch: Path, executor: Any) -> Sent:
        """The work packed for an executor."""
        try:
            held = bytes(reduction.dumps(work))
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise InputError(
                f"generator: {work.generator.name} cannot be sent to another process: {error}; use n_jobs=1, or give "
                "it as module:attribute"
            ) from error
        key = hashlib.sha256(held).hexdigest()
        if executor is not None:
            return cls(key, held, _folders())
        (scratch / "work").write_bytes(held)
        return cls(key, str(scratch / "work"), _folders())

    def __call__(self, shard: int) -> dict[str, NDArray[Any]]:
        """The arrays of a shard, in a worker."""
        if self.key not in _RECEIVED:
            _RECEIVED.clear()
            sys.path += [folder for folder in self.folders if folder not in sys.path]
            held = self.held if isinstance(self.held, bytes) else Path(self.held).read_bytes()
            try:
                _RECEIVED[self.key] = reduction.loads(held)
            except (ImportError, AttributeError) as error:
                where = f"on {platform.node()}, which looked in {', '.join(self.folders[:3])} …"
                raise InputError(
                    f"generator: its program cannot be imported {where}: {error}; put its file there, or give weights"
                ) from None
        return _RECEIVED[self.key](shard)


def _leaves(executor: Any, n_jobs: int) -> bool:
    """Whether shards are made in other processes; threads, and what else runs here, share the generator."""
    if executor is None:
        return jobs.count_jobs(n_jobs) > 1
    return not isinstance(executor, Executor) or isinstance(executor, ProcessPoolExecutor | LokyPool)


def _folders() -> tuple[str, ...]:
    """Where this process imports from, its user's programs first."""
    return tuple(dict.fromkeys([*FOLDERS, *filter(None, sys.path)]))


_RECEIVED: dict[str, Work] = {}
"""What this worker was sent last, by its digest."""


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
