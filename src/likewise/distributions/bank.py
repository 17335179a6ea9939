"""A bank: latents and the singular values of the generator at each, harvested once; k and ρ are chosen afterwards."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from jaxtyping import Bool, Float64, Int64
from numpy.typing import ArrayLike, NDArray

from likewise.distributions import polarity
from likewise.distributions.generator import Generator
from likewise.distributions.harvesting import (
    About,
    explain_generators,
    fill,
    merge,
    prepare,
    read,
    read_reference,
    write,
)
from likewise.distributions.latents import Latent
from likewise.distributions.polarity import LEAST_ESS, Scheme, Target, in_turn, resample
from likewise.errors import DegeneracyWarning, InputError, ShapeError
from likewise.store.job import check_executor

Latents = NDArray[Any]


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
    folder = None if out is None else Path(out)
    check_executor(executor, n_jobs)
    work = prepare(generator, n, k, seed, method, shard_size, folder if resume else None)
    how = {"executor": executor, "n_jobs": n_jobs, "progress": progress}
    if folder is not None:
        fill(folder, work, n, resume=resume, **how)
        return Bank.open(folder).first(n)
    with tempfile.TemporaryDirectory(prefix="likewise-bank-") as scratch:
        fill(Path(scratch) / "bank", work, n, resume=False, **how)
        bank = Bank.open(Path(scratch) / "bank")
    bank.path = None
    return bank


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
        scheme: Scheme = "multinomial",
        target: Target = "latent",
        seed: int = 0,
    ) -> Draw:
        """n latents of polarity ρ with their classes, where they stand in the bank, and ESS, largest weight, dead.

        ρ = 0 is the model, and nothing is resampled: seed s gives the s-th run of n latents in the order in which
        they were harvested, from the start again after the last. Below an ESS of 1 % a DegeneracyWarning, once.
        """
        log_w = self.log_weights(rho, k, target, label=label)
        rows = self._of(label)
        if rho == 0 and target == "latent":
            picked = rows[in_turn(len(rows), n, scheme, seed)]
        else:
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
        """An InputError unless the bank was harvested from this very generator, in this very space."""
        if self.about.generator is not None and self.about.generator != generator.digest:
            where = "the bank" if self.path is None else f"{self.path.name}/"
            said = explain_generators(where, self.about.generator, generator.digest)
            raise InputError(f"{said}; harvest again or pass its own generator")
        if self.dim != generator.dim:
            raise InputError(f"generator: expected latents of size {self.dim} as in the bank, got {generator.dim}")

    def first(self, n: int) -> Self:
        """The first n latents, or all where there are no more."""
        return self if n >= len(self) else self._take(slice(n))

    def _take(self, rows: Any) -> Self:
        return type(self)(
            self.latents[rows],
            self.log_sigma[rows],
            rank=self.rank[rows],
            labels=None if self.labels is None else self.labels[rows],
            log_density=None if self.log_density is None else self.log_density[rows],
            about=self.about,
            path=self.path,
        )

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @classmethod
    def open(cls, path: str | Path) -> Bank:
        """The bank in a folder; a shard that is missing or damaged is named, with the way to harvest it again."""
        columns, about = read(Path(path))
        return cls(**columns, about=about, path=Path(path))

    def save(self, path: str | Path) -> None:
        """Write the bank to a folder that `open` reads; one that holds another bank is refused."""
        names = ("latents", "log_sigma", "rank", "labels", "log_density")
        write(Path(path), {name: getattr(self, name) for name in names}, self.about)

    @classmethod
    def merge(cls, banks: Sequence[Bank]) -> Bank:
        """One bank of several of the same generator, space, k and method; those that share a shard are refused.

        Machines that share no disk harvest with a seed each. The order in which banks are given does not matter.
        """
        for i, bank in enumerate(banks):
            if not isinstance(bank, Bank):
                raise InputError(f"banks[{i}]: expected a Bank, got {type(bank).__name__}")
        if not banks:
            raise InputError("banks: expected at least one bank, got none")
        columns, about = merge(banks)
        return cls(**columns, about=about)

    @classmethod
    def from_reference_npz(cls, path: str | Path, *, latent: Latent | None = None, log: bool = False) -> Bank:
        """The authors' files: `latents` (n, dim), `svds` (n, K), and one-hot `labels` (n, classes) where there are any.

        `svds` are singular values there, not logarithms: log=True is for files that hold logarithms. `latent`, the
        density that the latents were drawn from, is not in the file; target="uniform" needs it. Nothing in the file
        says which generator it belongs to, so `check` compares the size of the latents only.
        """
        columns, about = read_reference(path, latent, log=log)
        return cls(**columns, about=about)
