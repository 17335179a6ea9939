"""A bank: latents and the singular values of the generator at each, harvested once; k and ρ are chosen afterwards."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from jaxtyping import Bool, Float64, Int64
from numpy.typing import ArrayLike, NDArray

from likewise import media
from likewise.distributions import polarity
from likewise.distributions.generator import Generator
from likewise.distributions.latents import Latent
from likewise.distributions.polarity import LEAST_ESS, Scheme, Target, resample
from likewise.errors import DegeneracyWarning, FileError, InputError, ShapeError
from likewise.store import checkpoint
from likewise.store import job as jobs
from likewise.store.checkpoint import Arrays
from likewise.store.job import Job
from likewise.types import Array

ROWS = 4096
"""How many latents a shard of a saved bank holds."""
HARVESTED, SAVED = "bank", "bank, saved"
_COLUMNS = {
    "z": ("latents", 2),
    "log_sigma": ("log_sigma", 2),
    "rank": ("rank", 1),
    "log_density": ("log_density", 1),
    "label": ("labels", 1),
}
"""The arrays of a shard: what `Bank` calls each, and how many axes it has."""

Latents = NDArray[Any]


@dataclass(frozen=True)
class About:
    """Where a bank comes from. `parts` are (seed, first shard, number of shards, shard size), `psi` the truncation."""

    generator: str | None
    name: str
    space: str
    latent: Mapping[str, Any] | None
    bounded: bool
    labels: int | None
    method: str
    parts: tuple[tuple[int, int, int, int], ...] = ()
    psi: float = 1.0

    @property
    def shards(self) -> set[tuple[int, int]]:
        """(seed, shard) of every shard: what two banks must not share, whatever the size of their shards."""
        return {(seed, i) for seed, first, count, _ in self.parts for i in range(first, first + count)}


@dataclass(frozen=True, eq=False, repr=False)
class Draw:
    """Latents drawn from a bank, with what says how far to trust them: what `Bank.draw` gives.

    Attributes
    ----------
    latents : ndarray (n, dim)
    labels : ndarray (n,) or None
        Their classes.
    indices : ndarray (n,)
        Where they stand in the bank.
    rho, k
        The setting.
    ess : float
        The effective share of the latents that were drawn from.
    largest : float
        The largest weight among them.
    dead : float
        The share that ρ ≠ 0 leaves out.

    Examples
    --------
    >>> import numpy as np
    >>> from likewise.distributions import Bank
    >>> draw = np.random.default_rng(0)
    >>> bank = Bank(draw.normal(size=(9, 4)), -np.sort(-draw.normal(size=(9, 3)), axis=1))
    >>> drawn = bank.draw(5, rho=0.5)
    >>> drawn.latents.shape, 0 < drawn.ess <= 1
    ((5, 4), True)
    """

    latents: Latents
    labels: Int64[np.ndarray, " n"] | None
    indices: Int64[np.ndarray, " n"]
    rho: float
    k: int
    ess: float
    largest: float
    dead: float

    def __repr__(self) -> str:
        figures = f"ESS {self.ess:.2%}, largest weight {self.largest:.2%}, dead {self.dead:.2%}"
        return f"Draw({len(self.latents)} latents, ρ = {self.rho:g}, k = {self.k}, {figures})"


class Bank:
    """Latents and the singular values of a generator at each, from which any ρ and any k can be drawn.

    `harvest` makes one, `Bank.open` reads one, `Bank.merge` joins several.

    Parameters
    ----------
    latents : array (N, dim)
    log_sigma : array (N, k)
        Log-singular values, descending; −∞ beyond the numerical rank.
    rank : array (N,), optional
        Numerical ranks; by default the number of finite values.
    labels : array (N,), optional
        Classes.
    log_density : array (N,), optional
        log p_z of each latent, for target="uniform".
    about : About, optional
        Which generator, space, latent and method it comes from.
    path : Path, optional
        The folder that it stands in.

    Raises
    ------
    ShapeError
        Where the arrays do not fit each other.

    Examples
    --------
    >>> import likewise as lw
    >>> import numpy as np
    >>> bank = lw.distributions.Bank(np.zeros((4, 1)), np.log([[1.0], [1.0], [2.0], [4.0]]))
    >>> np.exp(bank.log_weights(1.0)).round(3).tolist()
    [0.125, 0.125, 0.25, 0.5]
    >>> bank.ess(0.0), bank.sample(2, -1.0).shape
    (1.0, (2, 1))
    """

    def __init__(
        self,
        latents: ArrayLike,
        log_sigma: ArrayLike,
        *,
        rank: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        log_density: ArrayLike | None = None,
        about: About | None = None,
        path: Path | None = None,
    ) -> None:
        self.latents = np.asarray(latents)
        self.log_sigma = np.asarray(log_sigma, dtype=np.float64)
        if self.latents.ndim != 2 or self.log_sigma.ndim != 2 or len(self.latents) != len(self.log_sigma):
            raise ShapeError(
                f"latents, log_sigma: expected (N, dim) and (N, k), got {self.latents.shape} and {self.log_sigma.shape}"
            )
        polarity.log_volume(self.log_sigma)  # refuses NaN
        self.rank = np.isfinite(self.log_sigma).sum(1) if rank is None else self._column("rank", rank, np.int64)
        self.labels = None if labels is None else self._column("labels", labels, np.int64)
        self.log_density = None if log_density is None else self._column("log_density", log_density, np.float64)
        classes = None if self.labels is None else int(self.labels.max()) + 1
        self.about = about or About(None, "unknown", "unknown", None, False, classes, "unknown")
        self.path = path
        self._warned: set[tuple[Any, ...]] = set()

    def _column(self, name: str, values: ArrayLike, dtype: Any) -> NDArray[Any]:
        column = np.asarray(values, dtype=dtype)
        if column.shape != (len(self.latents),):
            raise ShapeError(f"{name}: expected ({len(self.latents)},), one a latent, got shape {column.shape}")
        return column

    def __len__(self) -> int:
        return len(self.latents)

    @property
    def k(self) -> int:
        """How many singular values are held of each latent."""
        return int(self.log_sigma.shape[1])

    @property
    def dim(self) -> int:
        """The size of a latent."""
        return int(self.latents.shape[1])

    def __repr__(self) -> str:
        classes = "" if self.about.labels is None else f", {self.about.labels} classes"
        return (
            f"Bank({len(self)} latents of {self.about.name}, k = {self.k}, space {self.about.space}{classes}, "
            f"dead {self.dead().mean():.2%})"
        )

    # ── weights ───────────────────────────────────────────────────────────────────────────────────────────────────

    def dead(self, k: int | None = None) -> Bool[np.ndarray, " N"]:
        """The latents whose Jacobian has a numerical rank below k: ρ ≠ 0 leaves them out."""
        return polarity.dead(self.log_sigma, k, rank=self.rank)

    def log_volume(self, k: int | None = None) -> Float64[np.ndarray, " N"]:
        """v_k of each latent [Polarity Eq. 5]; −∞ where it is dead."""
        return np.where(self.dead(k), -np.inf, polarity.log_volume(self.log_sigma, k))

    def log_weights(
        self, rho: float, k: int | None = None, target: Target = "latent", *, label: int | None = None
    ) -> Float64[np.ndarray, " N"]:
        """log w ∝ ρ v_k, normalised [Polarity Eq. 7]; k: by default all that are held.

        target="latent" keeps the density p_z of the latents; "uniform" divides by it, on a bounded domain only: that
        of a Uniform or TruncatedNormal latent. With classes, weights are normalised within each, and a class keeps its
        share; `label` leaves the others out.
        """
        rows, density = self._of(label), self._density(target)
        classes = np.zeros(len(self), dtype=np.int64) if self.labels is None else self.labels
        out = np.full(len(self), -np.inf)
        out[rows] = polarity.grouped(
            self.log_sigma[rows],
            rho,
            k,
            members=polarity.partition(classes[rows]),
            rank=self.rank[rows],
            log_density=None if density is None else density[rows],
        )
        return out

    def ess(self, rho: float, k: int | None = None, target: Target = "latent", *, label: int | None = None) -> float:
        """The effective sample size as a fraction of N (of the class, where `label` is given)."""
        return polarity.ess(self.log_weights(rho, k, target, label=label)[self._of(label)])

    def largest(self, rho: float, k: int | None = None, *, label: int | None = None) -> float:
        """The largest weight."""
        return polarity.largest(self.log_weights(rho, k, label=label))

    def rho_for_ess(self, fraction: float, k: int | None = None, sign: int = -1, *, label: int | None = None) -> float:
        """The ρ furthest from 0, of the given sign, that keeps an effective share of `fraction`."""
        rows = self._of(label)
        groups = None if self.labels is None else self.labels[rows]
        return polarity.rho_for_ess(self.log_sigma[rows], fraction, k, sign=sign, rank=self.rank[rows], groups=groups)

    def _of(self, label: int | None) -> Int64[np.ndarray, " rows"]:
        """The rows of a class; all of them for None."""
        if label is None:
            return np.arange(len(self))
        if self.labels is None:
            raise InputError(f"label: this bank has no classes; leave label={label!r} away")
        rows = np.flatnonzero(self.labels == label)
        if len(rows) == 0:
            have = np.unique(self.labels)
            raise InputError(f"label: expected a class from {have[0]} to {have[-1]}, got {label!r}")
        return rows

    def _density(self, target: Target) -> Float64[np.ndarray, " N"] | None:
        """log p_z for the uniform target; None for the latent target."""
        if target == "latent":
            return None
        if target != "uniform":
            raise InputError(f"target: expected latent or uniform, got {target!r}")
        if self.log_density is None:
            raise InputError('target: "uniform" needs the density of the latents, which this bank does not know')
        if not self.about.bounded:
            kind = (self.about.latent or {}).get("kind", "these latents")
            raise InputError(
                f'target: "uniform" needs a bounded domain, and {kind} has none; harvest from a TruncatedNormal or '
                "Uniform latent"
            )
        return self.log_density

    # ── samples ───────────────────────────────────────────────────────────────────────────────────────────────────

    def sample(self, n: int, rho: float, k: int | None = None, **options: Any) -> Latents:
        """n latents (n, dim) of polarity ρ [Polarity Algorithm 1]: `draw` without its figures, the same options."""
        return self.draw(n, rho, k, **options).latents

    def draw(
        self,
        n: int,
        rho: float,
        k: int | None = None,
        *,
        label: int | None = None,
        scheme: Scheme = "systematic",
        target: Target = "latent",
        seed: int = 0,
    ) -> Draw:
        """n latents of polarity ρ with their classes, where they stand in the bank, and ESS, largest weight, dead.

        Every ρ is drawn by the same `scheme`, ρ = 0 with equal weights: what differs along ρ is ρ. Systematic draws
        stand in the order of the bank. Below an ESS of 1 % a DegeneracyWarning, once.
        """
        log_w = self.log_weights(rho, k, target, label=label)
        rows = self._of(label)
        picked = rows[resample(log_w[rows], n, scheme, np.random.default_rng(seed))]
        drawn = Draw(
            self.latents[picked],
            None if self.labels is None else self.labels[picked],
            picked,
            float(rho),
            self.k if k is None else k,
            polarity.ess(log_w[rows]),
            polarity.largest(log_w),
            float(self.dead(k)[rows].mean()),
        )
        self._warn(drawn, (float(rho), k, target, label))
        return drawn

    def _warn(self, drawn: Draw, setting: tuple[Any, ...]) -> None:
        if drawn.ess >= LEAST_ESS or setting in self._warned:
            return
        self._warned.add(setting)
        warnings.warn(
            f"ρ = {drawn.rho:g} at k = {drawn.k} leaves an effective {drawn.ess:.2%} of the latents, and one has "
            f"{drawn.largest:.0%} of the weight; use a ρ nearer to 0 (rho_for_ess), a smaller k or a larger bank",
            DegeneracyWarning,
            stacklevel=4,
        )

    # ── identity ──────────────────────────────────────────────────────────────────────────────────────────────────

    def check(self, generator: Generator) -> None:
        """An InputError unless the bank was harvested from this very generator, in this very space, at its own ψ."""
        if self.about.psi != generator.psi:
            generator = generator.truncated(self.about.psi)
        if self.about.generator is not None and self.about.generator != generator.digest:
            where = "the bank" if self.path is None else f"{self.path.name}/"
            raise InputError(
                f"{where} was harvested from another generator (sha {self.about.generator[:4]}… ≠ "
                f"{generator.digest[:4]}…); harvest again or pass its own generator"
            )
        if self.dim != generator.dim:
            raise InputError(f"generator: expected latents of size {self.dim} as in the bank, got {generator.dim}")

    def first(self, n: int) -> Self:
        """The first n latents, or all where there are no more."""
        if n >= len(self):
            return self
        part: Any = {name: None if column is None else column[:n] for name, column in self._columns().items()}
        return type(self)(**part, about=self.about, path=self.path)

    def _columns(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name, _ in _COLUMNS.values()}

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @classmethod
    def open(cls, path: str | Path) -> Bank:
        """The bank in a folder; a shard that is missing or damaged is named, with the way to harvest it again.

        A .npz file is taken for one of the authors' (`from_reference_npz`).
        """
        if Path(path).suffix.lower() == ".npz":
            return cls.from_reference_npz(path)
        job = Job.open(path)
        about, n = _about(job)
        missing = job.missing()
        if missing:
            more = f" and {len(missing) - 1} more are" if len(missing) > 1 else " is"
            raise FileError(f"{path}: shard {missing[0]}{more} missing; {_remedy(job, n)}")
        shards = [_shard(job, i, n) for i in range(len(job))]
        try:
            arrays = {name: np.concatenate([shard[name] for shard in shards])[:n] for name in shards[0]}
        except (ValueError, KeyError, IndexError) as error:
            raise FileError(f"{path} holds no bank: {error}") from error
        return cls(**{_COLUMNS[name][0]: array for name, array in arrays.items()}, about=about, path=Path(path))

    def save(self, path: str | Path) -> None:
        """Write the bank to a folder that `open` reads; one that holds another bank is refused."""
        columns = {name: getattr(self, of) for name, (of, _) in _COLUMNS.items()}
        arrays = {name: column for name, column in columns.items() if column is not None}
        contents = hashlib.sha256(checkpoint.encode(arrays, {})).hexdigest()
        with Job.begin(path, {"what": SAVED, **dataclasses.asdict(self.about), "contents": contents}) as job:
            job.run(
                lambda i: {name: array[i * ROWS : (i + 1) * ROWS] for name, array in arrays.items()},
                math.ceil(len(self) / ROWS),
                notes={"n": len(self)},
                progress=False,
            )

    @classmethod
    def merge(cls, banks: Sequence[Bank]) -> Bank:
        """One bank of several of the same generator, space, k and method; those that share a shard are refused.

        Machines that share no disk harvest with a seed each. The order in which banks are given does not matter.
        """
        if not banks:
            raise InputError("banks: expected at least one bank, got none")
        seen: set[tuple[int, int]] = set()
        for i, bank in enumerate(banks):
            if not isinstance(bank, Bank):
                raise InputError(f"banks[{i}]: expected a Bank, got {type(bank).__name__}")
            for name, value in bank._kind().items():
                first = banks[0]._kind()[name]
                if value != first:
                    raise InputError(
                        f"banks[{i}]: {name} is {str(value)[:24]} where the first has {str(first)[:24]}; these cannot "
                        "be merged"
                    )
            if common := seen & bank.about.shards:
                seed, shard = min(common)
                raise InputError(
                    f"banks[{i}] holds shard {shard} of seed {seed} that another holds, too: the same latents would "
                    "count twice; harvest it with another seed"
                )
            seen |= bank.about.shards
        ordered = sorted(banks, key=lambda bank: bank.about.parts)
        parts = {name: [bank._columns()[name] for bank in ordered] for name in banks[0]._columns()}
        columns: Any = {name: None if part[0] is None else np.concatenate(part) for name, part in parts.items()}
        about = dataclasses.replace(banks[0].about, parts=tuple(p for bank in ordered for p in bank.about.parts))
        return cls(**columns, about=about)

    def _kind(self) -> dict[str, Any]:
        """What banks that are merged have in common."""
        names = ("generator", "space", "latent", "labels", "method", "psi")
        about = {name: getattr(self.about, name) for name in names}
        known = {"log_density": self.log_density is None, "classes": self.labels is None}
        return {**about, "dim": self.dim, "k": self.k, **known}

    @classmethod
    def from_reference_npz(cls, path: str | Path, *, latent: Latent | None = None, log: bool = False) -> Bank:
        """The authors' files: `latents` (n, dim), `svds` (n, K), and one-hot `labels` (n, classes) where there are any.

        What their get_svds writes itself has a further axis of batches, (n, batch, …), in each.

        `svds` are singular values there, not logarithms: log=True is for files that hold logarithms. `latent`, the
        density that the latents were drawn from, is not in the file; target="uniform" needs it. Nothing in the file
        says which generator it belongs to, so `check` compares the size of the latents only, and nothing in it is
        unpickled.
        """
        arrays = media.load_arrays(path)
        if {"latents", "svds"} - set(arrays):
            have = ", ".join(sorted(arrays)) or "none"
            raise FileError(f"{path}: expected arrays 'latents' and 'svds', found {have}")
        if arrays["svds"].ndim == 3:
            batches = arrays["svds"].shape[:2]
            arrays = {name: a.reshape(-1, *a.shape[2:]) if a.shape[:2] == batches else a for name, a in arrays.items()}
        latents = _vectors(arrays["latents"], path)
        log_sigma, rank = _logs(arrays["svds"], path, log=log)
        labels, classes = _classes(arrays.get("labels"), path)
        lengths = {len(latents), len(log_sigma)} | ({len(labels)} if labels is not None else set())
        if len(lengths) != 1:
            raise FileError(f"{path}: its arrays have different lengths: {', '.join(map(str, sorted(lengths)))}")
        about = About(None, Path(path).stem, "unknown", None, False, classes, "reference")
        if latent is None:
            return cls(latents, log_sigma, rank=rank, labels=labels, about=about)
        if latent.dim != latents.shape[1]:
            raise InputError(f"latent: expected one of size {latents.shape[1]}, as in {path}, got {latent.dim}")
        about = dataclasses.replace(about, latent=latent.to_dict(), bounded=latent.support() is not None)
        density = latent.log_density(latents)
        return cls(latents, log_sigma, rank=rank, labels=labels, log_density=density, about=about)


# ── the record of a bank ──────────────────────────────────────────────────────────────────────────────────────────


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
        said.setdefault("psi", 1.0)
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
    shaped = all(name in _COLUMNS and array.ndim == _COLUMNS[name][1] for name, array in arrays.items())
    if len(sizes) != 1 or not shaped or not {"z", "log_sigma", "rank"} <= set(arrays):
        raise FileError(f"{job.path}: shard {i} is not a shard of a bank")
    return arrays


def _remedy(job: Job, n: int) -> str:
    said = job.identity
    if said["what"] == SAVED:
        return "save the bank again"
    call = f"harvest(generator, {n}, k={said['k']}, seed={said['seed']}, out={str(job.path)!r})"
    return f"{call} does it again and keeps the others"


# ── the authors' files ────────────────────────────────────────────────────────────────────────────────────────────


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
