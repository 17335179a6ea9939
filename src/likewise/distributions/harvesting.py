"""Harvesting: the spectra of a generator at many latents, shard by shard, in a folder that can be resumed and extended.

bank/job.sqlite   the generator's sha256, space, latent, k, method, seed scheme and shard size; n; and for each shard
                  z (m, dim), log_sigma (m, k), rank (m,), log_density (m,), label (m,) with classes

Shard i draws its latents from a counter-based generator whose key is the seed and whose counter starts at i · 2^192:
its bytes depend on the generator, the seed, i, the shard size, k and the method, not on who makes it or when. So a
later harvest with a larger n adds shards to the folder, and keeps those that are there.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from likewise import media
from likewise.distributions.bank import HARVESTED, Bank
from likewise.distributions.generator import Generator
from likewise.distributions.latents import check_whole
from likewise.distributions.spectra import Spectrum, spectrum
from likewise.errors import InputError, ShapeError
from likewise.store import job as jobs
from likewise.store.job import Job

SHARD = 256
"""About how many latents a shard holds."""
SEEDS = "Philox: key = seed, counter = shard × 2^192"
MOST_SEED = 2**63 - 1
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
    progress: bool = True,
) -> Bank:
    """Draw n latents and take the top k singular values of the generator's Jacobian at each [Polarity Algorithm 1].

    Parameters
    ----------
    generator : Generator
        The network, its latents and the space in which volumes are measured.
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
        That of `spectrum`.
    shard_size : int, optional
        Latents a shard; by default about 256.
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
    if shard_size is None and resume and out is not None and (Path(out) / jobs.FILE).exists():
        shard_size = Job.open(out).identity.get("shard_size")
    n, seed = check_whole("n", n), check_whole("seed", seed, 0, MOST_SEED)
    most = min(30, generator.dim)
    k = check_whole("k", most if k is None else k, 1, generator.dim, f", the size of a latent of {generator.name}")
    if shard_size is None:  # equal shards of about SHARD latents, so that none is nearly empty
        shard_size = math.ceil(n / math.ceil(n / SHARD))
    work = Work(generator, k, seed, check_whole("shard_size", shard_size), method)
    with media.scratch("likewise-bank-") as scratch:
        folder = Path(scratch) / "bank" if out is None else Path(out)
        with Job.begin(folder, work.identity(), resume=resume) as job:
            how: Any = {"executor": executor, "n_jobs": n_jobs, "progress": progress}
            job.run(work, math.ceil(n / work.size), notes={"n": max(n, int(job.notes.get("n", 0)))}, **how)
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

    def __call__(self, shard: int) -> dict[str, NDArray[Any]]:
        """The arrays of a shard."""
        z, labels = self.latents(shard)
        measured = measure(self.generator, z, labels, self.k, self.method)
        arrays: dict[str, NDArray[Any]] = {"z": z, "log_sigma": measured.log_values, "rank": measured.rank}
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

    def identity(self) -> dict[str, Any]:
        """What the job is, but for the number of latents; two are tried, so that a wrong generator is told at once."""
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
            "resolved": measure(generator, *self.latents(0, 2), self.k, self.method).method,
            "seeds": SEEDS,
            "seed": self.seed,
            "shard_size": self.size,
        }


def measure(generator: Generator, z: NDArray[Any], labels: NDArray[Any] | None, k: int, method: str) -> Spectrum:
    """The k largest singular values of the generator's Jacobian at each latent, class by class, on one thread.

    The random directions of a sketching method are the same in every call: log-volumes are one function of z,
    which samples can be compared by.
    """
    values, rank, cost = np.empty((len(z), k)), np.empty(len(z), dtype=np.int64), 0.0
    used = method
    with one_thread():
        # a spectrum may call the generator with any number of rows, so the class is one number
        for label in [None] if labels is None else np.unique(labels).tolist():
            rows = slice(None) if label is None else np.flatnonzero(labels == label)
            try:
                part = spectrum(generator.function(label), generator.latents(z[rows]), k, method=method)  # type: ignore[arg-type]
            except InputError as error:
                raise type(error)(f"generator: {generator.name}: {error}") from error
            values[rows], rank[rows], used = part.values, part.rank, part.method
            cost += part.cost * len(part) / len(z)
    return Spectrum(values, rank, used, cost)


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
