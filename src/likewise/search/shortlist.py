"""The first two stages: the photos nearest to a query by their vectors, then in the order of what features say.

A query is an image, several of the same thing, or a video: a few shots of it are looked for. Each shot is looked up as
it is, and, where candidates are re-ranked, also turned and in parts, which adds a few candidates each. Re-ranking
counts the features that two photos have alike.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise import inputs
from likewise.errors import InputError
from likewise.images import embedding
from likewise.images.embedder import in_threads
from likewise.nn.backbone import DECODED_SIDE
from likewise.search.local import Box, Floats, Local, alike, extract, joined, projection, vlad
from likewise.search.verdict import judge
from likewise.types import Image

if TYPE_CHECKING:
    from likewise.search.collection import Collection
    from likewise.search.result import Hit

SHOTS = 16
"""Images of a query, or frames of a video, at most."""
TURNS = (1, 2, 3)
BOXES: tuple[Box, ...] = ((0.2, 0.2, 0.8, 0.8), *((x, y, x + 0.6, y + 0.6) for x in (0.0, 0.4) for y in (0.0, 0.4)))
"""Parts of a query that are looked up, too: of a photo that shows one of them the whole query may be far away."""
MORE = 10
"""Candidates that each turn and part adds."""


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


def vectors(model: Any, image: Image, *, views: bool) -> Floats:
    """The vector of a shot, and, with `views`, of its turns and parts: rows (v, dim), the shot's own first."""
    pixels = image.reduced(DECODED_SIDE)  # once, not once a thread
    own, *laid = in_threads(lambda turn: extract(image, turn=turn), (0, *TURNS) if views else (0,))
    seen, centres = [image], projection().centres
    vlads = [vlad(own, centres)]
    if views:
        h, w = pixels.shape[:2]
        seen += [Image(np.ascontiguousarray(np.rot90(pixels, turn))) for turn in TURNS]
        vlads += [vlad(one, centres) for one in laid]
        for box in BOXES:
            left, top, right, bottom = (round(s * n) for s, n in zip(box, (w, h, w, h), strict=True))
            seen.append(Image(np.ascontiguousarray(pixels[top : max(bottom, top + 1), left : max(right, left + 1)])))
            vlads.append(vlad(own, centres, box))
    made = embedding.embed_images(model, seen, on_error="raise")
    return joined(made.rows, np.stack(vlads), embedding.model_name(model))


def shortlist_hits(
    collection: Collection,
    query: Query,
    many: int,
    *,
    views: bool,
    under: Any,
    label: str | None,
    leave_out: Sequence[Any],
) -> list[Hit]:
    """The nearest to any shot, each with the shot it is nearest to; with `views` also what turns and parts add."""
    left = {os.path.realpath(path) for path in leave_out}
    best: dict[str, Hit] = {}
    more: dict[str, Hit] = {}
    turns: dict[str, set[int]] = {}
    for shot, image in enumerate(query.shots):
        rows = vectors(collection.model, image, views=views)
        own = collection.nearest(rows[:1], many + len(left), under=under, label=label)
        added = collection.nearest(rows[1:], MORE + len(left), under=under, label=label) if views else []
        for turn, answer in zip(TURNS, added, strict=False):
            for hit in answer:
                turns.setdefault(hit.path, set()).add(turn)
        for into, answers in ((best, own), (more, added)):
            for hit in (hit for answer in answers for hit in answer):
                known = into.get(hit.path)
                if (known is None or hit.distance < known.distance) and os.path.realpath(hit.path) not in left:
                    into[hit.path] = replace(hit, shot=shot)
    ordered = sorted(best.values(), key=lambda hit: hit.distance) if len(query) > 1 else list(best.values())
    ordered = ordered[:many]
    taken = {hit.path for hit in ordered}
    ordered += sorted((hit for hit in more.values() if hit.path not in taken), key=lambda hit: hit.distance)
    return [
        replace(hit, rank=i, turns=tuple(sorted(turns.get(hit.path, ())))) for i, hit in enumerate(ordered, start=1)
    ]


def rerank_hits(query: Query, hits: list[Hit], features: dict[str, Local]) -> list[Hit]:
    """The same by how probable they are by distance and features alike; turned as it was found, too."""

    def counted(hit: Hit) -> Hit:
        image, other = query.shots[hit.shot], features.get(hit.path)
        if other is None:
            return hit
        looks = [extract(image), *(extract(image, turn=turn) for turn in hit.turns)]
        return replace(hit, alike=max(alike(one, other) for one in looks))

    judged = [hit.judged(judge()) for hit in in_threads(counted, hits)]
    return sorted(judged, key=lambda hit: -hit.probability)
