"""The first stage: a query (an image, several of the same thing, a video) as a few shots, and the nearest to any."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise import inputs
from likewise.errors import InputError
from likewise.images import embedding
from likewise.images.embedder import Embedder
from likewise.search.result import Hit
from likewise.types import Image

if TYPE_CHECKING:
    from likewise.search.collection import Collection

SHOTS = 16
"""Images of a query, or frames of a video, at most."""


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
