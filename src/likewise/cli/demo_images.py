"""The demo's panel on images: a gallery of places in photographs, searched by other pictures of the same places."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from likewise import samples
from likewise.cli.demo import Panel, step
from likewise.samples import CHANGES, Query

if TYPE_CHECKING:
    import numpy as np

    from likewise.plot.report import Section
    from likewise.search import Hit

ROWS, HITS = 6, 7
"""Searches that are drawn, and hits of each."""


def places_panel(folder: Path, seed: int) -> Panel:
    """Places in photographs, looked up by pictures of them in other light, turned, and from another crop."""
    import numpy as np

    with step("a gallery, searched") as said:
        queries, found, size, model = searched(folder, seed)
        figures = scores(queries, found) | {"places": size, "photographs": len(samples.PHOTOS)}
        _draw(queries, found, folder / "search.png", np.random.default_rng([seed, 6]))
        said.append(f"{figures['first']} of {figures['queries']} queries find their place first, among {size}")
    fact = (f"of queries find their place first, among {size}", f"{figures['first'] / figures['queries']:.0%}")
    return Panel("places", "search.png", figures, fact, _section(folder / "search.png", figures, model))


@functools.cache
def searched(folder: Path, seed: int) -> tuple[list[Query], list[list[Hit]], int, str]:
    """Index the places and the workshop by day, look up a query a place: queries, hits, how many, by which model."""
    from likewise.media import write_image
    from likewise.search import Collection

    samples.gallery(folder / "places", seed)
    write_image(folder / "places" / "workshop" / "day.jpg", samples.pair(seed)[0])
    queries = samples.queries(folder / "queries", seed, in_turn=True)
    with Collection.build(folder / "places", folder / "index") as collection:
        hits = [list(collection.search(q.path, HITS, rerank=False, verify=0)) for q in queries]
        return queries, hits, len(collection), collection.about.model


# ── what came of it ───────────────────────────────────────────────────────────────────────────────────────────────


def scores(queries: Sequence[Query], found: Sequence[Sequence[Hit]]) -> dict[str, Any]:
    """How many queries find their place first and among the first five, of all and for each change; and the misses."""
    ranks = [_rank(q, hits) for q, hits in zip(queries, found, strict=True)]
    photos = [Path(hits[0].path).parent.name == photo(q) for q, hits in zip(queries, found, strict=True)]
    by = {change: [r for q, r in zip(queries, ranks, strict=True) if q.change == change] for change in CHANGES}
    return {
        "queries": len(queries),
        "first": sum(r == 1 for r in ranks),
        "among_five": sum(r <= 5 for r in ranks),
        "first_is_of_the_photograph": sum(photos),
        "first_by_change": {change: [sum(r == 1 for r in some), len(some)] for change, some in by.items()},
    }


def _rank(query: Query, hits: Sequence[Hit]) -> float:
    """The rank of the query's own place among the hits; infinite where it is not among them."""
    return next((h.rank for h in hits if place(h.path) == query.place), float("inf"))


def place(path: str) -> str:
    """The place that a picture of the gallery shows, as a query names it."""
    return "/".join(Path(path).parts[-2:])


def photo(query: Query) -> str:
    """The photograph that the query's place lies in."""
    return query.place.partition("/")[0]


def _draw(queries: Sequence[Query], found: Sequence[Sequence[Hit]], path: Path, draw: np.random.Generator) -> None:
    """Some searches; the query's own place is framed."""
    from likewise import plot

    chosen = _chosen(queries, draw)
    figure = plot.ranking(
        [queries[i].path for i in chosen],
        [[h.path for h in found[i]] for i in chosen],
        right=[[place(h.path) == queries[i].place or None for h in found[i]] for i in chosen],
        names=[queries[i].change for i in chosen],
        captions=[[f"{h.distance:.2f}" for h in found[i]] for i in chosen],
        title="a place in other light, turned, from another crop: what is nearest?",
    )
    plot.save(figure, path)


def _chosen(queries: Sequence[Query], draw: np.random.Generator) -> list[int]:
    """ROWS queries at random, as many of each change, each of another photograph; fewer where those do not suffice."""
    taken: dict[str, list[int]] = {change: [] for change in CHANGES}
    used = set[str]()
    for i in draw.permutation(len(queries)).tolist():
        some, which = taken[queries[i].change], photo(queries[i])
        if len(some) < ROWS // len(CHANGES) and which not in used:
            some.append(i)
            used.add(which)
    return [i for some in taken.values() for i in some]


def _section(picture: Path, figures: dict[str, Any], model: str) -> Section:
    from likewise.plot.report import Section, Table

    n, first, alike = figures["queries"], figures["first"], figures["first_is_of_the_photograph"]
    text = (
        f"{n} places in {figures['photographs']} photographs make a gallery, a picture each, and a workshop. It is "
        f"asked {n} times for a place it has, by a picture that it does not have: in other light, turned, or cut out "
        "anew.",
        f"{first} of the {n} queries find their own place first, {figures['among_five']} among the first five; by "
        f"chance it would be one in {figures['places']}. Nothing was trained for this. Of the {n - first} that do "
        f"not, {alike - first} find another place of the same photograph: a patch of grass is much like the next.",
    )
    by = figures["first_by_change"].items()
    rows = [(change, f"{right} of {of}", f"{right / of:.0%}") for change, (right, of) in by]
    return Section(
        "Which pictures are like this one?",
        text,
        picture,
        "Rows of small photographs: a query at the left, the nearest pictures of the gallery beside it; the picture of "
        "the same place has a green frame, mostly right beside the query.",
        "Searches drawn at random, as many of each change, each of another photograph. At the left the query, "
        "then what the gallery has nearest, with its distance; the same place is framed. Embedder: "
        f"{model}; exact search.",
        Table(("query", "its place first", ""), rows),
        wide="46rem",
    )
