"""Polarity sampling: latents drawn in proportion to a power ρ of the volume that the generator gives them.

v_k(z) = Σ_{i ≤ k} log σ_i(J_G(z)),   w_ρ(z) ∝ exp(ρ v_k(z)).   ρ < 0: modes, 0: the model, ρ > 0: anti-modes.

Everything is in float64 and in logarithms: the reference's products, clipped to [1e-200, 1e200], are far from the
weights that they stand for once k is 30. A latent is dead where fewer than k directions move the output: its volume
is 0, so for ρ > 0 its weight is 0, and for ρ < 0 it would be infinite; there it is left out, not favoured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float64, Int64
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import logsumexp

from likewise.distributions.latents import check_whole
from likewise.errors import InputError, ShapeError
from likewise.types import Array

Target = Literal["latent", "uniform"]
Scheme = Literal["multinomial", "systematic", "without"]
LEAST_ESS = 0.01
"""Below this effective share of the latents a sample says little about the model: a DegeneracyWarning."""
MOST_RHO = 1e6
"""Where even this ρ leaves the sample effective, the log-volumes differ by rounding only."""

Vector = Float64[np.ndarray, " n"]
Mask = Bool[np.ndarray, " n"]
Rows = Int64[np.ndarray, " rows"]


def log_volume(log_sigma: ArrayLike, k: int | None = None) -> Vector:
    """v_k = Σ_{i ≤ k} log σ_i, the log of the volume of a unit cube's image [Polarity Theorem 1, Eq. 5].

    For k < K it is that of the k most stretched directions: a score, not the logarithm of a density (erratum 3).
    """
    logs = _spectra(log_sigma)
    return np.asarray(logs[:, : _order(k, logs)].sum(1))


def dead(log_sigma: ArrayLike, k: int | None = None, *, rank: ArrayLike | None = None) -> Mask:
    """The latents whose Jacobian has numerical rank below k: v_k = −∞."""
    logs = _spectra(log_sigma)
    k = _order(k, logs)
    gone = np.asarray(np.isneginf(logs[:, :k]).any(1))
    return gone if rank is None else np.asarray(gone | (np.asarray(rank) < k))


def log_weights(
    log_sigma: ArrayLike,
    rho: float,
    k: int | None = None,
    *,
    rank: ArrayLike | None = None,
    log_density: ArrayLike | None = None,
) -> Vector:
    """log w_i = ρ v_k(z_i) − log Σ_j exp(ρ v_k(z_j)) over latents z_i ~ p_z [Polarity Eq. 7, Algorithm 1].

    With `log_density` = log p_z(z_i), that is subtracted: the latents then stand for a uniform density on the domain
    they were drawn from; one of density 0 is left out. Dead latents have weight 0, unless ρ = 0, which is the model.
    """
    rho = check_rho(rho)
    logs = _spectra(log_sigma)
    out = np.zeros(len(logs)) if rho == 0 else _tilted(logs, rho, _order(k, logs), rank)
    if log_density is not None:
        out = out - _densities(log_density, len(out))
    total = logsumexp(out)
    if not np.isfinite(total):
        raise InputError("log_w: no latent has any weight")
    return np.asarray(out - total)


def ess(log_w: ArrayLike) -> float:
    """The effective sample size (Σ w)² / Σ w², as a fraction of N: 1 for equal weights, 1/N where one owns all."""
    w = _relative(log_w)
    return float(min(w.sum() ** 2 / (w**2).sum() / len(w), 1.0))


def largest(log_w: ArrayLike) -> float:
    """The largest normalised weight, max w / Σ w."""
    return float(1 / _relative(log_w).sum())


def rho_for_ess(
    log_sigma: ArrayLike,
    fraction: float,
    k: int | None = None,
    *,
    sign: int = -1,
    rank: ArrayLike | None = None,
    groups: ArrayLike | None = None,
) -> float:
    """The ρ of the given sign that is furthest from 0 with an effective sample size of at least `fraction` of N.

    log ESS(ρ) = 2 A(ρ) − A(2ρ) with A(ρ) = log Σ exp(ρ v), which is convex: ESS falls as |ρ| grows, so one root is
    bracketed. Dead latents count in N, so where they are many the answer may be 0. `groups` (n,) are classes
    within which weights are normalised, each keeping its share of N.
    """
    if not (isinstance(fraction, int | float | np.number) and 0 < fraction <= 1):
        raise InputError(f"fraction: expected a share of N, above 0 and at most 1, got {fraction!r}")
    if sign not in (-1, 1):
        raise InputError(f"sign: expected −1 (towards modes) or 1 (towards anti-modes), got {sign!r}")
    logs = _spectra(log_sigma)
    members = partition(np.zeros(len(logs), dtype=np.int64) if groups is None else np.asarray(groups))

    def excess(size: float) -> float:
        w = grouped(logs, sign * size, k, members=members, rank=rank)
        return float(np.log(ess(w)) - np.log(fraction))

    tiny = 1e-12
    if excess(tiny) < 0:
        return 0.0
    high = 1.0
    while excess(high) >= 0:
        high *= 2
        if high > MOST_RHO:
            spread = np.ptp(log_volume(logs, k)[~dead(logs, k, rank=rank)])
            why = f"the log-volumes are the same (they spread by {spread:.1e} nats), so ρ changes nothing"
            if len(members) >= fraction * len(logs):
                why = f"each of {len(members)} classes of {len(logs)} latents keeps one at any ρ"
            raise InputError(f"fraction: every ρ up to {MOST_RHO:g} leaves an effective share ≥ {fraction:g}: {why}")
    return float(sign * brentq(excess, tiny, high, xtol=1e-12, rtol=1e-12))


def grouped(
    log_sigma: Array,
    rho: float,
    k: int | None = None,
    *,
    members: Mapping[int, Rows],
    rank: ArrayLike | None = None,
    log_density: ArrayLike | None = None,
) -> Vector:
    """log-weights normalised within each group of rows; a group keeps its share of N, as under the model.

    w_i = n_c / N · w_{i|c}: ρ moves mass between the latents of a class, not between classes.
    """
    out = np.full(len(log_sigma), -np.inf)
    for group, rows in members.items():
        ranks = None if rank is None else np.asarray(rank)[rows]
        density = None if log_density is None else np.asarray(log_density)[rows]
        try:
            w = log_weights(log_sigma[rows], rho, k, rank=ranks, log_density=density)
        except InputError as error:
            raise error if len(members) == 1 else InputError(f"class {group}: {error}") from None
        out[rows] = np.log(len(rows) / len(log_sigma)) + w
    return out


def partition(groups: Int64[np.ndarray, " n"]) -> dict[int, Rows]:
    """The rows of each group, by the group's number, ascending."""
    order = np.argsort(groups, kind="stable")
    names, starts = np.unique(groups[order], return_index=True)
    return {int(g): rows for g, rows in zip(names, np.split(order, starts[1:]), strict=True)}


def check_rho(rho: float) -> float:
    """ρ as a finite float."""
    try:
        number = float(rho)
    except (TypeError, ValueError):
        number = np.nan
    if not np.isfinite(number):
        raise InputError(f"rho: expected a finite number, got {rho!r}")
    return number


def _relative(log_w: ArrayLike) -> Vector:
    """Weights in units of the largest."""
    logs = np.asarray(log_w, dtype=np.float64)
    return np.asarray(np.exp(logs - logs.max()))


def _tilted(logs: Array, rho: float, k: int, rank: ArrayLike | None) -> Vector:
    gone = dead(logs, k, rank=rank)
    if gone.all():
        alive = np.isfinite(logs).sum(1)
        best = int(alive.max() if rank is None else np.minimum(alive, np.asarray(rank)).max())
        fix = f"use k ≤ {best}" if best else "the generator is constant around every latent"
        raise InputError(f"k: all {len(logs)} latents are dead at k = {k}: their Jacobians have a lower rank; {fix}")
    out = np.full(len(logs), -np.inf)
    out[~gone] = rho * logs[~gone, :k].sum(1)
    return out


def _spectra(log_sigma: ArrayLike) -> Array:
    logs = np.asarray(log_sigma, dtype=np.float64)
    if logs.ndim != 2 or 0 in logs.shape:
        raise ShapeError(f"log_sigma: expected (n, K), a row of log-singular values a latent, got shape {logs.shape}")
    if np.isnan(logs).any() or np.isposinf(logs).any():
        row = int(np.flatnonzero((np.isnan(logs) | np.isposinf(logs)).any(1))[0])
        raise InputError(f"log_sigma: row {row} contains NaN or +infinity")
    return logs


def _order(k: int | None, logs: Array) -> int:
    """k, or all columns; between 1 and their number."""
    if k is None:
        return int(logs.shape[1])
    return check_whole("k", k, 1, logs.shape[1], ", the singular values held")


def _densities(log_density: ArrayLike, n: int) -> Vector:
    """log p_z with −∞ turned so that subtracting it leaves a latent out."""
    logs = np.asarray(log_density, dtype=np.float64)
    if logs.shape != (n,):
        raise ShapeError(f"log_density: expected ({n},), one a latent, got shape {logs.shape}")
    if np.isnan(logs).any() or np.isposinf(logs).any():
        raise InputError("log_density contains NaN or +infinity")
    return np.where(np.isneginf(logs), np.inf, logs)


# ── resampling ───────────────────────────────────────────────────────────────────────────────────────────────────


def resample(log_w: Vector, n: int, scheme: Scheme, rng: np.random.Generator) -> Rows:
    """n indices drawn in proportion to exp(log_w); one of weight 0 is never drawn.

    "multinomial": independent draws. "systematic": one uniform number for all, index i comes ⌊n w_i⌋ or ⌈n w_i⌉
    times, in the order of the indices. "without": successive draws without replacement, in the order in which they
    are drawn; as n nears N the weights lose their effect.
    """
    _check_draw(n, scheme)
    top = log_w.max(initial=-np.inf)
    if not np.isfinite(top):
        raise InputError("log_w: expected at least one finite log-weight, and no NaN or +infinity")
    return _SCHEMES[scheme](log_w - top, int(n), rng)


def _check_draw(n: int, scheme: Scheme) -> None:
    check_whole("n", n)
    if scheme not in _SCHEMES:
        raise InputError(f"scheme: expected {', '.join(_SCHEMES)}, got {scheme!r}")


def _systematic(log_w: Vector, n: int, rng: np.random.Generator) -> Rows:
    """Quantiles at (i + u) / n, u uniform, of the weights in a random order: classes may stand in turn in a bank."""
    order = rng.permutation(len(log_w))
    drawn = order[_invert(np.exp(log_w[order]), (np.arange(n) + rng.random()) / n)]
    return np.sort(drawn).astype(np.int64)


def _without(log_w: Vector, n: int, rng: np.random.Generator) -> Rows:
    """The n largest of log w_i + a Gumbel number each: the order of successive draws without replacement."""
    able = int(np.isfinite(log_w).sum())
    if n > able:
        raise InputError(
            f'n: expected at most {able}, the latents that have any weight, got {n}; or scheme="systematic"'
        )
    keys = log_w + rng.gumbel(size=len(log_w))
    first = np.argpartition(-keys, n - 1)[:n]
    return np.asarray(first[np.argsort(-keys[first], kind="stable")], dtype=np.int64)


def _invert(w: Vector, u: Vector) -> Rows:
    """The index in whose stretch of the cumulative sum each u of [0, 1) falls; a stretch of length 0 catches none."""
    edges = np.cumsum(w)
    index = np.searchsorted(edges, u * edges[-1], side="right")
    last = np.flatnonzero(w)[-1]  # u · total may round up to the total
    return np.asarray(np.minimum(index, last), dtype=np.int64)


_SCHEMES: dict[str, Callable[[Vector, int, np.random.Generator], Rows]] = {
    "multinomial": lambda log_w, n, rng: _invert(np.exp(log_w), rng.random(n)),
    "systematic": _systematic,
    "without": _without,
}
