"""The second stage: local similarity, the smoothed Wasserstein distance between what two images show where."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from likewise.images.embedder import directions
from likewise.numeric import psd
from likewise.sets.compare import SetComparison, compare, distances
from likewise.types import Signature

if TYPE_CHECKING:
    from likewise.search.collection import Collection
    from likewise.search.result import Hit

GAMMA = 0.02
"""Smoothing, in units of the ground cost ‖p − q‖² of unit vectors, which is at most 4."""
TOL = 1e-3
"""Marginal error at which a solve stops: ranks do not change below it."""


def local_distances(query: NDArray[np.int8], candidates: NDArray[np.int8], metric: Any = None) -> NDArray[np.float64]:
    """The distance between the parts of a query (cells, d) and of each candidate (n, cells, d); NaN where zero.

    `metric` is a positive semi-definite (d, d) matrix, or None for the identity.
    """
    values = np.full(len(candidates), np.nan)
    known = np.flatnonzero(candidates.any(axis=(1, 2)))
    if len(known) and query.any():
        sets = [signature(candidates[i]) for i in known]
        values[known] = distances([signature(query)], sets, gamma=GAMMA, tol=TOL, metric=metric)[0]
    return values


def nearest_shots(
    shots: NDArray[np.int8], candidates: NDArray[np.int8], metric: Any = None
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """The smallest distance from any shot to each candidate, and which shot that is."""
    every = np.stack([local_distances(shot, candidates, metric) for shot in shots])
    whole = np.where(np.isnan(every), np.inf, every)
    which = whole.argmin(axis=0)
    smallest = whole[which, np.arange(len(candidates))]
    return np.where(np.isinf(smallest), np.nan, smallest), which.astype(np.int64)


def plan(query: NDArray[np.int8], candidate: NDArray[np.int8], metric: Any = None) -> SetComparison:
    """The plan between the parts of two images."""
    return compare(signature(query), signature(candidate), gamma=GAMMA, tol=TOL, metric=metric)


def signature(parts: NDArray[np.int8]) -> Signature:
    """The parts of an image as a set, all of one weight."""
    return Signature(directions(parts))


def rerank_hits(collection: Collection, hits: list[Hit], views: Any, metric: Any) -> tuple[list[Hit], list[str]]:
    """The same by local distance; those whose parts are not known come last, as they were. And what there is to say."""
    kept = None if views is None else collection.parts([hit.path for hit in hits])
    if kept is None:
        return hits, [f"not re-ranked: {collection.about.model} has no map of an image's parts"]
    matrix = None if metric is None else psd(getattr(metric, "M0_", metric), dim=int(kept.shape[2]))
    values, which = nearest_shots(views, kept, matrix)
    measured = [
        replace(hit, local_distance=float(v), shot=int(s), parts=(views[s], kept[i]), metric=matrix)
        if np.isfinite(v)
        else hit
        for i, (hit, v, s) in enumerate(zip(hits, values, which, strict=True))
    ]
    return [measured[i] for i in np.argsort(values, kind="stable")], []  # NaN last
