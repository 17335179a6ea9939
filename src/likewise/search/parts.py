"""Re-ranking: the smoothed Wasserstein distance between what two pictures show where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from likewise.images.parts import directions
from likewise.types import Signature

if TYPE_CHECKING:
    from likewise.sets.compare import SetComparison

GAMMA = 0.02
"""Smoothing, in units of the ground cost ‖p − q‖² of unit vectors, which is at most 4."""
TOL = 1e-3
"""Marginal error at which a solve stops: ranks do not change below it."""


def transports(query: NDArray[np.int8], candidates: NDArray[np.int8], metric: Any = None) -> NDArray[np.float64]:
    """The distance between the parts of a query (cells, d) and of each candidate (n, cells, d); NaN where zero.

    `metric` is a positive semi-definite (d, d) matrix, or None for the identity.
    """
    from likewise.sets.compare import distances

    found = np.full(len(candidates), np.nan)
    known = np.flatnonzero(candidates.any(axis=(1, 2)))
    if len(known) and query.any():
        sets = [signature(candidates[i]) for i in known]
        found[known] = distances([signature(query)], sets, gamma=GAMMA, tol=TOL, metric=metric)[0]
    return found


def best_transports(
    shots: NDArray[np.int8], candidates: NDArray[np.int8], metric: Any = None
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The smallest distance from any shot to each candidate, and which shot that is."""
    every = np.stack([transports(shot, candidates, metric) for shot in shots])
    whole = np.where(np.isnan(every), np.inf, every)
    which = whole.argmin(axis=0)
    smallest = whole[which, np.arange(len(candidates))]
    return np.where(np.isinf(smallest), np.nan, smallest), which.astype(np.int64)


def plan(query: NDArray[np.int8], candidate: NDArray[np.int8], metric: Any = None) -> SetComparison:
    """The plan between the parts of two pictures."""
    from likewise.sets.compare import compare

    return compare(signature(query), signature(candidate), gamma=GAMMA, tol=TOL, metric=metric)


def signature(parts: NDArray[np.int8]) -> Signature:
    """The parts of a picture as a set, all of one weight."""
    return Signature(directions(parts))


def check_metric(metric: Any, width: int) -> Any:
    """A metric as a (d, d) matrix: None, a matrix, or a model with M0_ (`likewise.sets.WassersteinLMNN`)."""
    from likewise.numeric import psd

    if metric is None:
        return None
    matrix = getattr(metric, "M0_", metric)
    return psd(matrix, dim=width)


def order(values: Sequence[float] | NDArray[np.float64]) -> list[int]:
    """Places by value, smallest first, equal ones as they come, NaN last."""
    return [int(i) for i in np.argsort(np.asarray(values, dtype=np.float64), kind="stable")]
