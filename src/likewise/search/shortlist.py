"""The first two stages: the nearest by embedding to any shot of a query, then in the order of local similarity.

A query is an image, several of the same thing, or a video: a few shots of it are looked for. Local similarity is the
smoothed Wasserstein distance between what two images show where.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from likewise import inputs
from likewise.errors import InputError
from likewise.images import embedding
from likewise.images.embedder import Embedder, directions
from likewise.numeric import psd
from likewise.sets.compare import SetComparison, compare, distances
from likewise.types import Image, Signature

if TYPE_CHECKING:
    from likewise.search.collection import Collection
    from likewise.search.result import Hit

SHOTS = 16
"""Images of a query, or frames of a video, at most."""
GAMMA = 0.02
"""Smoothing, in units of the ground cost ‖p − q‖² of unit vectors, which is at most 4."""
TOL = 1e-3
"""Marginal error at which a solve stops: ranks do not change below it."""


@dataclass(frozen=True, eq=False)
class Query:
    """The shots of a query, what each is called, and of how many images they were taken."""

    shots: tuple[Image, ...]
    names: tuple[str, ...]
    of: int

    def __len__(self) -> int:
        return len(self.shots)


def shots(query: Any, most: int = SHOTS) -> Query:
    """An image in any form, a list of them, a folder, or a video, as shots, `most` at most.

    Of more images, or of a longer video, shots are taken evenly from the first to the last.
    """
    if isinstance(query, Query):
        return query
    kept, every, total = list[Image](), 1, 0
    for image in inputs.images(query, where="query"):
        if total % every == 0:
            kept.append(image)
        total += 1
        if len(kept) > 4 * most:  # frames are pixels: no more of a long video are held than this
            kept, every = kept[::2], 2 * every
    if not kept:
        raise InputError("query: expected at least one image, got none")
    at = np.unique(np.linspace(0, len(kept) - 1, min(most, len(kept))).round().astype(int))
    chosen = tuple(kept[i] for i in at)
    return Query(chosen, tuple(image.name or "query" for image in chosen), total)


def shortlist_hits(
    collection: Collection, query: Query, many: int, *, under: Any, label: str | None, leave_out: Sequence[Any]
) -> tuple[list[Hit], Any]:
    """The nearest by embedding to any shot, each with the shot it is nearest to; and the shots' parts."""
    model, left = collection.model, {os.path.realpath(path) for path in leave_out}
    parts = isinstance(model, Embedder) and model.part_shape is not None
    rows, views, _, _ = embedding.embed_images(model, list(query.shots), parts=parts, on_error="raise")
    best: dict[str, Hit] = {}
    for shot, hits in enumerate(collection.nearest(rows, many + len(left), under=under, label=label)):
        for hit in hits:
            known = best.get(hit.path)
            if (known is None or hit.distance < known.distance) and not (left and os.path.realpath(hit.path) in left):
                best[hit.path] = replace(hit, shot=shot)
    ordered = sorted(best.values(), key=lambda hit: hit.distance) if len(query) > 1 else list(best.values())
    return [replace(hit, rank=i) for i, hit in enumerate(ordered[:many], start=1)], views


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
    """The smallest distance from any shot to each candidate, infinite where none is known; and which shot that is."""
    every = np.stack([local_distances(shot, candidates, metric) for shot in shots])
    every[np.isnan(every)] = np.inf
    return every.min(axis=0), every.argmin(axis=0)


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
    return [measured[i] for i in np.argsort(values, kind="stable")], []  # what is not known comes last
