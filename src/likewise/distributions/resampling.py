"""Draw indices in proportion to weights given as logarithms: with replacement, systematically, without replacement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from jaxtyping import Float64, Int64

from likewise.errors import InputError

Scheme = Literal["multinomial", "systematic", "without"]
Indices = Int64[np.ndarray, " n"]


def resample(log_w: Float64[np.ndarray, " N"], n: int, scheme: Scheme, rng: np.random.Generator) -> Indices:
    """n indices drawn in proportion to exp(log_w); one of weight 0 is never drawn.

    "multinomial": independent draws. "systematic": one uniform number for all, index i comes ⌊n w_i⌋ or ⌈n w_i⌉
    times, in the order of the indices. "without": successive draws without replacement, in the order in which they
    are drawn; as n nears N the weights lose their effect.
    """
    _check(n, scheme)
    top = log_w.max(initial=-np.inf)
    if not np.isfinite(top):
        raise InputError("log_w: expected at least one finite log-weight, and no NaN or +infinity")
    return _SCHEMES[scheme](log_w - top, int(n), rng)


def in_turn(N: int, n: int, scheme: Scheme, seed: int) -> Indices:
    """n of N indices without any chance: seed s gives the s-th run of n, from the start again after the last."""
    _check(n, scheme)
    if scheme == "without":
        _enough(n, N)
    return np.asarray((int(seed) * n % N + np.arange(n)) % N, dtype=np.int64)


def _check(n: int, scheme: Scheme) -> None:
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise InputError(f"n: expected a whole number ≥ 1, got {n!r}")
    if scheme not in _SCHEMES:
        raise InputError(f"scheme: expected {', '.join(_SCHEMES)}, got {scheme!r}")


def _enough(n: int, able: int) -> None:
    if n > able:
        raise InputError(f"n: expected at most {able}, the latents of any weight, got {n}; or draw with replacement")


def _multinomial(log_w: Float64[np.ndarray, " N"], n: int, rng: np.random.Generator) -> Indices:
    return _invert(np.exp(log_w), rng.random(n))


def _systematic(log_w: Float64[np.ndarray, " N"], n: int, rng: np.random.Generator) -> Indices:
    """Quantiles at (i + u) / n, u uniform, of the weights in a random order: classes may stand in turn in a bank."""
    order = rng.permutation(len(log_w))
    found = order[_invert(np.exp(log_w[order]), (np.arange(n) + rng.random()) / n)]
    return np.sort(found).astype(np.int64)


def _without(log_w: Float64[np.ndarray, " N"], n: int, rng: np.random.Generator) -> Indices:
    """The n largest of log w_i + a Gumbel number each: the order of successive draws without replacement."""
    able = int(np.isfinite(log_w).sum())
    if n > able:
        raise InputError(
            f'n: expected at most {able}, the latents that have any weight, got {n}; or scheme="systematic"'
        )
    keys = log_w + rng.gumbel(size=len(log_w))
    first = np.argpartition(-keys, n - 1)[:n]
    return np.asarray(first[np.argsort(-keys[first], kind="stable")], dtype=np.int64)


def _invert(w: Float64[np.ndarray, " N"], u: Float64[np.ndarray, " n"]) -> Indices:
    """The index in whose stretch of the cumulative sum each u of [0, 1) falls; a stretch of length 0 catches none."""
    edges = np.cumsum(w)
    found = np.searchsorted(edges, u * edges[-1], side="right")
    last = np.flatnonzero(w)[-1]  # u · total may round up to the total
    return np.asarray(np.minimum(found, last), dtype=np.int64)


_SCHEMES: dict[str, Callable[[Float64[np.ndarray, " N"], int, np.random.Generator], Indices]] = {
    "multinomial": _multinomial,
    "systematic": _systematic,
    "without": _without,
}
