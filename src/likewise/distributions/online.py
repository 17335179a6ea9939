"""Fresh latents of polarity ρ, as many as wanted: a bank says where to start, the generator is asked on the way.

The target is π(z) ∝ p_z(z) exp(ρ v_k(z)) [Polarity Eq. 7]. Every move below leaves p_z as it is, so that only ρ v_k
decides on acceptance. What v_k costs, a spectrum, is counted and reported.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Float32, Float64
from scipy.special import expit, logsumexp

from likewise.distributions import polarity
from likewise.distributions.bank import Bank
from likewise.distributions.generator import Generator
from likewise.distributions.harvesting import measure
from likewise.distributions.latents import Latent, Normal, TruncatedNormal, Uniform, check_whole
from likewise.distributions.polarity import LEAST_ESS, resample
from likewise.errors import BudgetError, DegeneracyWarning, InputError

Algorithm = Literal["mh", "paper"]
Z = Float32[np.ndarray, "n dim"]
V = Float64[np.ndarray, " n"]


class OnlineSampler:
    """Draws fresh latents of polarity ρ, as many as wanted [Polarity Algorithm 2, corrected].

    Parameters
    ----------
    generator : Generator
        The one that the bank was harvested from.
    bank : Bank
        Where to start, and what is known of volumes.
    rho : float
        The polarity; below 0 modes, above 0 anti-modes.
    k : int, optional
        Singular values in a volume; by default all that the bank holds.
    algorithm : {"mh", "paper"}
        "mh": chains that start at latents of the bank drawn at ρ and make `steps` Metropolis–Hastings moves: fresh
        latents from p_z and small ones around (autoregressive for normal latents, reflected for uniform ones).
        "paper": Algorithm 2 as printed, but for its exponent: accepts latents from p_z with probability
        σ^ρ / (σ^ρ + Σ σ_i^ρ), the sum over the N latents of the bank: about one in N + 1 (errata 1 and 2).
    label : int, optional
        The class; without one, classes of a conditional generator take turns.
    steps : int, default 12
        Moves of a chain.
    budget : int, default 20,000
        Bounds the spectra that a sample of "paper" may cost.

    Raises
    ------
    InputError
        Where an argument is out of range, or the bank is another generator's.

    Examples
    --------
    >>> import likewise as lw
    >>> generator = lw.distributions.Generator(lambda z: z + z**3, lw.distributions.Normal(1))
    >>> bank = lw.distributions.harvest(generator, 200, progress=False)
    >>> z, info = lw.distributions.OnlineSampler(generator, bank, -0.5).draw(8, seed=0)
    >>> z.shape, 0 < info["acceptance"] <= 1
    ((8, 1), True)
    """

    def __init__(
        self,
        generator: Generator,
        bank: Bank,
        rho: float,
        k: int | None = None,
        algorithm: Algorithm = "mh",
        *,
        label: int | None = None,
        steps: int = 12,
        budget: int = 20_000,
    ) -> None:
        if algorithm not in get_args(Algorithm):
            raise InputError(f"algorithm: expected {', '.join(get_args(Algorithm))}, got {algorithm!r}")
        if bank.about.generator is None:
            raise InputError("bank: nothing says which generator and space it comes from; harvest one")
        bank.check(generator)
        bank.log_weights(rho, k, label=label)  # refuses a wrong ρ, k or label, and a bank of the dead
        self.generator, self.bank, self.rho = generator, bank, polarity.check_rho(rho)
        self.k = bank.k if k is None else int(k)
        self.algorithm, self.label = algorithm, label
        self.steps, self.budget = check_whole("steps", steps), check_whole("budget", budget)
        self._warned = False

    def __repr__(self) -> str:
        return f"OnlineSampler({self.generator.name}, ρ = {self.rho:g}, k = {self.k}, {self.algorithm})"

    def draw(self, n: int, seed: int = 0) -> tuple[Z, dict[str, Any]]:
        """n latents (n, dim), and how they came about.

        info: acceptance (share of proposals), jacobians_per_sample, ess and largest weight of the bank at ρ, labels of
        the latents for a conditional generator, and what is the algorithm's own: moved and starts, or reference.
        """
        n = check_whole("n", n)
        self._warn()
        rng = np.random.default_rng(seed)
        shares = list(self._shares(n))
        problems = [_Problem(self, label) for label, _ in shares]
        run = _mh if self.algorithm == "mh" else _paper
        runs = [run(problem, share, rng) for problem, (_, share) in zip(problems, shares, strict=True)]
        info: dict[str, Any] = {
            "algorithm": self.algorithm,
            "rho": self.rho,
            "k": self.k,
            "acceptance": sum(made.accepted for made in runs) / sum(made.proposed for made in runs),
            "jacobians_per_sample": sum(problem.jacobians for problem in problems) / n,
            "ess": self.bank.ess(self.rho, self.k, label=self.label),
            "largest": self.bank.largest(self.rho, self.k, label=self.label),
        }
        for name in runs[0].notes:
            values = [made.notes[name] for made in runs]
            info[name] = values[0] if len(values) == 1 else values
        if self.bank.labels is not None:
            info["labels"] = np.repeat([label for label, _ in shares], [share for _, share in shares])
        return np.concatenate([made.z for made in runs]), info

    def _warn(self) -> None:
        """Say once that chains begin at next to no latents, and so may not know of others."""
        share = self.bank.ess(self.rho, self.k, label=self.label)
        if self.algorithm != "mh" or share >= LEAST_ESS or self._warned:
            return
        self._warned = True
        warnings.warn(
            f"at ρ = {self.rho:g}, k = {self.k} an effective {share:.2%} of the bank is left for chains to start from; "
            "use more steps, a ρ nearer to 0 or a larger bank",
            DegeneracyWarning,
            stacklevel=3,
        )

    def _shares(self, n: int) -> Iterator[tuple[int | None, int]]:
        """How many latents of which class."""
        if self.bank.labels is None or self.label is not None:
            yield self.label, n
            return
        classes = np.unique(self.bank.labels)
        shares = np.array_split(np.arange(n), len(classes))
        yield from ((int(label), len(share)) for label, share in zip(classes, shares, strict=True) if len(share))


class _Run(NamedTuple):
    """Latents, how many were proposed and accepted, and what is the algorithm's own to tell."""

    z: Z
    proposed: int
    accepted: int
    notes: dict[str, Any]


class _Problem:
    """ρ v_k as a function of latents of one class, the bank's latents of that class, and a count of spectra."""

    def __init__(self, sampler: OnlineSampler, label: int | None) -> None:
        self.sampler, self.label, self.jacobians = sampler, label, 0
        bank = sampler.bank
        rows = np.arange(len(bank)) if label is None else np.flatnonzero(bank.labels == label)
        self.z = bank.latents[rows].astype(np.float32)
        self.tilt = self._tilt(bank.log_volume(sampler.k)[rows])
        self.latent = sampler.generator.latent

    def _tilt(self, v: V) -> V:
        """ρ v, −∞ where dead; 0 everywhere for ρ = 0."""
        return np.where(np.isfinite(v), self.sampler.rho * v, -np.inf) if self.sampler.rho else np.zeros(len(v))

    def __call__(self, z: Z) -> V:
        """ρ v_k(z), by a spectrum of each; −∞ where a latent lies outside p_z or is dead."""
        out = np.full(len(z), -np.inf)
        inside = np.isfinite(self.latent.log_density(z))
        if not inside.any():
            return out
        self.jacobians += int(inside.sum())
        s = self.sampler
        labels = None if self.label is None else np.full(int(inside.sum()), self.label)
        values = measure(s.generator, z[inside], labels, s.k, s.bank.about.method)
        out[inside] = self._tilt(values.log_volume)
        return out


# ── Metropolis–Hastings ───────────────────────────────────────────────────────────────────────────────────────────


def _mh(problem: _Problem, n: int, rng: np.random.Generator) -> _Run:
    """n chains from the bank at ρ, each moved `steps` times; the stationary density is π from the first step on."""
    at = resample(problem.tilt, n, "systematic", rng)
    z, tilt = problem.z[at], problem.tilt[at]
    kinds = schedule(problem.latent, problem.sampler.steps, rng)
    accepted = sum(step(z, tilt, kind, problem, problem.latent, rng) for kind in kinds)
    left = float((z != problem.z[at]).any(1).mean())
    notes = {"moved": left, "starts": len(np.unique(at)) / n}
    return _Run(rng.permutation(z), n * len(kinds), accepted, notes)


# ── Algorithm 2 ───────────────────────────────────────────────────────────────────────────────────────────────────


def _paper(problem: _Problem, n: int, rng: np.random.Generator) -> _Run:
    """Accept z ~ p_z with probability σ_z^ρ / (σ_z^ρ + Σ_i σ_i^ρ), i over the bank [Polarity Algorithm 2]."""
    total, budget = float(logsumexp(problem.tilt)), problem.sampler.budget
    accepted: list[Z] = []
    have = proposed = 0
    while have < n:
        if proposed > budget * n:
            raise BudgetError(
                f"paper: {have} of {proposed} proposals were accepted, and {budget} spectra a sample are allowed; use "
                'algorithm="mh", a smaller bank or a larger budget'
            )
        batch = int(np.clip((n - have) * (len(problem.tilt) + 1), 16, 4096))
        z = np.asarray(problem.latent.sample(batch, rng), dtype=np.float32)
        proposed += batch
        accepted.append(z[rng.random(batch) < expit(problem(z) - total)])
        have += len(accepted[-1])
    return _Run(np.concatenate(accepted)[:n], proposed, have, {"reference": len(problem.tilt)})


# ── moves ─────────────────────────────────────────────────────────────────────────────────────────────────────────
#
# Each move is reversible with respect to p_z, and a random choice among them that does not look at the state is, too:
# normal      z′ = √(1 − b²) z + b ξ, ξ ~ N(0, 1)     (preconditioned Crank–Nicolson; truncated: refused outside)
# uniform     z′ = z + b (high − low) / 2 · ξ, folded back into [low, high] at the bounds
# any         z′ ~ p_z, a fresh latent

FRESH = 1.0
"""The step that is a fresh latent."""
STEPS = (0.1, 0.3, 0.6)
"""Small to large: which of them suits depends on the size of the latent, so all take part."""


def schedule(latent: Latent, steps: int, rng: np.random.Generator) -> list[float]:
    """The step size of each move: a fresh latent every third time, otherwise one of STEPS at random."""
    local = isinstance(latent, Normal | TruncatedNormal | Uniform)
    return [float(rng.choice(STEPS)) if local and i % 3 else FRESH for i in range(steps)]


def step(z: Z, tilt: V, size: float, measure: Callable[[Z], V], latent: Latent, rng: np.random.Generator) -> int:
    """Move every chain z (n, dim) of tilt ρ v (n,) once towards p_z exp(tilt), in place; how many moves were accepted.

    Metropolis–Hastings: a chain at z goes to z′ with probability min(1, exp(tilt(z′) − tilt(z))).
    """
    proposed = propose(z, size, latent, rng)
    tilts = measure(proposed)
    with np.errstate(invalid="ignore"):  # −∞ − (−∞): from nowhere to nowhere, stays
        ratio = tilts - tilt
    accept = np.log1p(-rng.random(len(z))) < np.where(np.isneginf(tilts), -np.inf, ratio)
    z[accept], tilt[accept] = proposed[accept], tilts[accept]
    return int(accept.sum())


def propose(z: Z, size: float, latent: Latent, rng: np.random.Generator) -> Z:
    """A proposal for each row, by a kernel that is reversible with respect to p_z inside its support."""
    if size == FRESH:
        return np.asarray(latent.sample(len(z), rng), dtype=np.float32)
    noise = rng.standard_normal(z.shape)
    if isinstance(latent, Uniform):
        return _folded(z + size * (latent.high - latent.low) / 2 * noise, latent.low, latent.high)
    scale = latent.scale if isinstance(latent, TruncatedNormal) else 1.0
    return np.asarray(np.sqrt(1 - size**2) * z + size * scale * noise, dtype=np.float32)


def _folded(z: Float64[np.ndarray, "n dim"], low: float, high: float) -> Z:
    """Reflected at both bounds as often as needed."""
    width = high - low
    turn = np.mod(z - low, 2 * width)
    inside = low + np.where(turn > width, 2 * width - turn, turn)
    return np.asarray(np.clip(inside, low, high), dtype=np.float32)
