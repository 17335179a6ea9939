"""One shard of a bank from its number alone, and the folder that many of them fill.

bank/
  manifest.json               the generator's sha256, space, latent, k, method, seed scheme, shard size, n
  shard-000000.safetensors    z (m, dim), log_sigma (m, k), rank (m,), log_density (m,), label (m,) with classes
  more-000020000/             what a later harvest with a larger n added: a manifest and shards of its own

Shard i draws its latents from a counter-based generator whose key is the seed and whose counter starts at i · 2^192:
its bytes depend on the generator, the seed, i, the shard size, k and the method, not on who makes it or when.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import NDArray

from likewise.errors import InputError, ShapeError
from likewise.store import job as shards
from likewise.store.job import ShardStore

if TYPE_CHECKING:
    from likewise.distributions.generator import Generator

SHARD = 256
"""About how many latents a shard holds."""
WHAT = "bank"
SEEDS = "Philox: key = seed, counter = shard × 2^192"
MOST_SEED = 2**63 - 1
_TURN = threading.Lock()


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
        found = measured(self.generator, z, labels, self.k, self.method)
        arrays = {"z": z, "log_sigma": found.log_sigma, "rank": found.rank}
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
        return measured(self.generator, z, labels, self.k, self.method).method

    def key(self) -> dict[str, Any]:
        """What the job is, without its extent."""
        generator = self.generator
        return {
            "what": WHAT,
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


def measured(generator: Generator, z: NDArray[Any], labels: NDArray[Any] | None, k: int, method: str) -> Measured:
    """The k largest log-singular values of the generator's Jacobian at each latent, on one thread.

    The random directions of a sketching method are the same in every call: log-volumes are one function of z,
    which samples can be compared by.
    """
    log_sigma, rank = np.empty((len(z), k)), np.empty(len(z), dtype=np.int64)
    method_used, cost = method, 0.0
    with one_thread():
        for rows, label in _by_class(len(z), labels):
            found = _spectrum(generator, z[rows], label, k, method)
            log_sigma[rows], rank[rows] = found.log_sigma, found.rank
            method_used, cost = found.method, cost + found.cost * len(found.rank) / len(z)
    return Measured(log_sigma, rank, method_used, cost)


def _spectrum(generator: Generator, z: NDArray[Any], label: int | None, k: int, method: str) -> Measured:
    from likewise.distributions.spectra import spectrum

    try:
        found = spectrum(generator.function(label), generator.latents(z), k, method=method)  # type: ignore[arg-type]
    except InputError as error:
        raise type(error)(f"generator: {generator.name}: {error}") from error
    return Measured(found.log_values, np.asarray(found.rank, dtype=np.int64), found.method, float(found.cost))


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
    import torch
    from threadpoolctl import threadpool_limits

    with _TURN:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with threadpool_limits(limits=1):
                yield
        finally:
            torch.set_num_threads(before)


# ── arguments ─────────────────────────────────────────────────────────────────────────────────────────────────────


def prepared(
    generator: Generator, n: int, k: int | None, seed: int, method: str, shard_size: int | None, out: Path | None
) -> Work:
    """The work of a harvest, its arguments checked; without a shard size, that of the folder, or one that fits n."""
    from likewise.distributions.generator import Generator

    if not isinstance(generator, Generator):
        raise InputError(f"generator: expected a Generator(net, latent), got {type(generator).__name__}")
    _whole("n", n, 1)
    _whole("seed", seed, 0)
    if seed > MOST_SEED:
        raise InputError(f"seed: expected a whole number below 2^63, got {seed}")
    if shard_size is None:
        shard_size = _standing_size(out) or math.ceil(n / math.ceil(n / SHARD))
    _whole("shard_size", shard_size, 1)
    k = min(30, generator.dim) if k is None else k
    _whole("k", k, 1)
    if k > generator.dim:
        raise InputError(f"k: expected at most {generator.dim}, the size of a latent of {generator.name}, got {k}")
    return Work(generator, int(k), int(seed), int(shard_size), method)


def _whole(name: str, value: object, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < low:
        raise InputError(f"{name}: expected a whole number ≥ {low}, got {value!r}")


def _standing_size(out: Path | None) -> int | None:
    if out is None or not (out / "manifest.json").exists():
        return None
    size = ShardStore.open(out).key.get("shard_size")
    return size if isinstance(size, int) and size > 0 else None


# ── the folder ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Segment:
    """Shards first … last − 1 in a folder of their own; with those before, they make n latents."""

    path: Path
    n: int
    first: int
    last: int


def segments(out: Path, n: int, size: int) -> list[Segment]:
    """The segments of which a bank of n consists: those that stand, as far as needed, and one more for a larger n."""
    found: list[Segment] = []
    for store in stores(out):
        first = found[-1].last if found else 0
        found.append(Segment(store.path, _n(store), first, first + len(store)))
        if found[-1].n >= n:
            return found
    first = found[-1].last if found else 0
    path = out / f"more-{n:09d}" if found else out
    return [*found, Segment(path, n, first, max(first, math.ceil(n / size)))]


def stores(out: Path) -> list[ShardStore]:
    """The shard stores of a bank, in order."""
    if not (out / "manifest.json").exists():
        return []
    paths = [out, *sorted(p for p in out.glob("more-*") if (p / "manifest.json").exists())]
    return [ShardStore.open(path) for path in paths]


def _n(store: ShardStore) -> int:
    n = store.key.get("n")
    if not isinstance(n, int):
        raise InputError(f"out: {store.path} holds no bank; use another folder")
    return n


def fill(out: Path, work: Work, n: int, *, resume: bool, **how: Any) -> None:
    """Harvest what is missing of a bank of n latents in the folder `out`."""
    key = work.key()
    if not resume:
        _clear(out)
    elif (standing := stores(out)) and (other := standing[0].key.get("generator")) != key["generator"]:
        raise InputError(f"out: {another(out, other, key['generator'])}; use another folder, or resume=False")
    for segment in segments(out, n, work.size):
        part = [work.seed, segment.first, segment.last - segment.first, work.size]
        extent = {"n": segment.n, "parts": [part]}
        ids = range(segment.first, segment.last)
        shards.run(work, ids, segment.path, key={**key, **extent}, resume=resume, **how)
        resume = True


def another(where: Any, theirs: Any, ours: str) -> str:
    """The sentence on a bank whose generator is not the one at hand."""
    return f"{where} was harvested from another generator (sha {str(theirs)[:4]}… ≠ {ours[:4]}…)"


def _clear(out: Path) -> None:
    """Take a bank away, but for the shards that the next run replaces; one that is in use is refused by its lock."""
    with shards.locked(out):
        for path in out.glob("more-*"):
            with shards.locked(path):
                pass
            shutil.rmtree(path)
        (out / "manifest.json").unlink(missing_ok=True)
