"""The demo's panel on search: what the nearest embedding gets wrong, re-ranked, verified, told with the reasons."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from likewise.cli.demo import Panel, beside, step

if TYPE_CHECKING:
    from likewise.plot.report import Section
    from likewise.samples import Query
    from likewise.search import Collection, Result

HITS, VERIFY, ROWS = 5, 3, 3
"""Hits of a search, how many of the best are looked at pixel by pixel, and searches that are drawn."""
AGAIN = 5
"""Queries that are asked again: such as the embedding alone gets wrong, as far as there are any."""
NIGHT, DAY = "place/night.png", "workshop/day.jpg"
"""The first query, below the demo's folder, and its place in the collection."""


def search_panel(folder: Path, seed: int) -> Panel:
    """The workshop by night among all places by day; and queries that the nearest embedding gets wrong."""
    from likewise.search import Collection

    with step("the same again: search, verified") as said, Collection.open(folder / "index") as collection:
        night = collection.search(folder / NIGHT, HITS, verify=VERIFY)
        wrong = misses(folder, seed)
        again = [collection.search(q.path, HITS, verify=VERIFY) for q in wrong]
        figures = scores(collection, night, wrong, again)
        night.to_json(folder / "search.json")
        night.page(folder / "search.html")
        _draw(night, wrong, again, folder)
        said.append(
            f"the workshop by night is found by day at rank {figures['night_rank']}, {figures['night_agree']} matches "
            f"agree; of {len(wrong)} that the embedding gets wrong, {figures['put_right']} are put right"
        )
    fact = (f"of {len(wrong)} queries that the nearest embedding gets wrong are put right", str(figures["put_right"]))
    return Panel("search", "verified.png", figures, fact, _section(folder, figures, night))


def misses(folder: Path, seed: int) -> list[Query]:
    """AGAIN of the demo's queries that do not find their place first by embedding alone, each of another photograph."""
    import numpy as np

    from likewise.cli.demo_images import photo, place, searched

    queries, found, _, _ = searched(folder, seed)
    wrong = [q for q, hits in zip(queries, found, strict=True) if place(hits[0].path) != q.place]
    order = np.random.default_rng([seed, 8]).permutation(len(wrong))
    chosen: dict[str, Query] = {}
    for i in order:
        chosen.setdefault(photo(wrong[i]), wrong[i])
    return list(chosen.values())[:AGAIN]


def scores(collection: Collection, night: Result, wrong: Sequence[Query], again: Sequence[Result]) -> dict[str, Any]:
    """Where the workshop was found and how sure that is; how many of the misses now find their place first."""
    from likewise.cli.demo_images import place

    ranks = {place(hit.path): hit for hit in night}
    day = ranks.get(DAY)
    return {
        "photos": len(collection),
        "night_rank": None if day is None else day.rank,
        "night_probability": None if day is None else day.probability,
        "night_verdict": None if day is None else day.verdict,
        "night_matches": 0 if day is None or day.evidence is None else len(day.evidence.matches),
        "night_agree": 0 if day is None or day.evidence is None else day.evidence.n,
        "asked_again": len(wrong),
        "put_right": sum(place(found[0].path) == q.place for q, found in zip(wrong, again, strict=True)),
        "seconds": {name: round(value, 2) for name, value in night.seconds.items()},
    }


def _draw(night: Result, wrong: Sequence[Query], again: Sequence[Result], folder: Path) -> None:
    """Every search in a row, hits that were verified framed by their verdict; beside it the matches of the first."""
    import tempfile

    from likewise import plot
    from likewise.cli.demo_images import place

    results = [night, *again][:ROWS]
    names, own = ["by night", *(q.change for q in wrong)][:ROWS], [DAY, *(q.place for q in wrong)][:ROWS]
    rows = plot.ranking(
        [r.query.shots[0].pixels for r in results],
        [[hit.path for hit in r] for r in results],
        right=[[place(h.path) == p or None for h in r] for r, p in zip(results, own, strict=True)],
        names=names,
        captions=[[_caption(hit) for hit in r] for r in results],
        title="re-ranked, the best three verified: the same place is framed",
    )
    best = night[0].evidence
    with tempfile.TemporaryDirectory() as scratch:
        files = [("", plot.save(rows, Path(scratch) / "rows.png"))]
        if best is not None:
            files.append(("", Path(scratch) / "matches.png"))
            best.plot(files[-1][1])
        beside([files], folder / "verified.png")


def _caption(hit: Any) -> str:
    agree = "" if hit.evidence is None else f" · {hit.evidence.n} agree"
    return f"{hit.probability:.0%}{agree}"


def _section(folder: Path, figures: dict[str, Any], night: Result) -> Section:
    from likewise.plot.report import Section

    took = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in figures["seconds"].items())
    text = (
        f"All levels together: {figures['photos']} photos are indexed once. A query is compared with all of them by "
        "embedding, with the best of these by transport between their parts, and with the best three pixel by pixel: "
        "features are found again near the flow, and a geometry is looked for that they agree on.",
        f"The workshop by night finds itself by day at rank {figures['night_rank']}: {figures['night_agree']} of "
        f"{figures['night_matches']} matches agree. Of {figures['asked_again']} queries of the panel on images whose "
        f"nearest picture was a wrong one, drawn at random, {figures['put_right']} now find their place first.",
    )
    return Section(
        "The same again, with the reasons",
        text,
        folder / "verified.png",
        "Rows of small photographs: a query at the left and what was found beside it, the same place framed in green; "
        "at the right the workshop by night and by day, joined by lines between the features that agree.",
        "Under each hit the probability that it shows the same, and how many matches agree where pixels were looked "
        f"at. The first search took: {took}. More of it in search.html beside this page.",
        wide="58rem",
    )
