"""The results of searches as one self-contained page: every hit with its verdict, its evidence and the reasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from likewise import plot
from likewise.errors import LikewiseError
from likewise.images import data
from likewise.nn.backbone import crop
from likewise.plot.report import Card, Page, Picture, Section, inline
from likewise.search.result import Found, Result

SIDE = 320
"""Longest side of an image on the page, in pixels; of one that explains, twice that."""


def write(results: Sequence[Result], path: Path) -> Path:
    """Write the page of some results."""
    sections = [section for result in results for section in _sections(result)]
    asked = f"{len(results)} {'query' if len(results) == 1 else 'queries'}"
    return Page("likewise search", f"{asked}, the hits of each with the reasons.", {}, sections, wide=True).write(path)


def _sections(result: Result) -> Iterator[Section]:
    query, same = result.query, sum(hit.verdict == "same" for hit in result.hits)
    spent = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in result.seconds.items())
    head = f"{len(result.hits)} hits in {result.place}, {same} of them the same; {spent}."
    names = ", ".join(Path(n).name for n in query.names[:4]) + ("…" if len(query) > 4 else "")
    strip = [_picture(shot, name) for shot, name in zip(query.shots[:4], query.names[:4], strict=True)]
    yield Section(names, [head, *result.notes], strip=strip, cards=[_card(hit) for hit in result.hits])
    reasons = {f"{hit.rank}. {Path(hit.path).name}: {hit.words()}": [*_why(hit, result)] for hit in result.hits}
    if any(reasons.values()):
        yield Section("Why", details={summary: figures for summary, figures in reasons.items() if figures})


def _card(hit: Found) -> Card:
    values = {"embedding distance": f"{hit.distance:.3f}"}
    if hit.transport is not None:
        values["local similarity"] = f"{hit.transport:.3f}"
    if hit.evidence is None:
        values["pixels"] = "not verified"
    else:
        values["inliers"] = f"{hit.evidence.n} of {len(hit.evidence.matches)} matches"
        values["round-trip consistency"] = f"{hit.evidence.home:.0%}"
    title = f"{hit.rank}. {'/'.join(Path(hit.path).parts[-2:])}"
    badge = f"{hit.verdict} · {hit.probability:.0%}"
    return Card(_picture(hit.path, Path(hit.path).name), title, badge, hit.verdict, values)


def _why(hit: Found, result: Result) -> Iterator[Picture]:
    """The figures that explain a hit: inliers, the warped hit, the plan between the parts."""
    evidence = hit.evidence
    if evidence is None:
        return
    if evidence.n:
        words = f"Inliers of one {evidence.kind}"
        yield Picture(inline(evidence.plot(title=" ")), words, words)
        overlay = evidence.overlay()
        if overlay is not None and hit.verdict != "different":
            yield Picture(inline(overlay, side=2 * SIDE), "The hit warped to the query", "The hit warped to the query")
    plan = hit.plan()
    if plan is not None:
        try:
            a, b = (crop(data.picture(p)) for p in (result.query.shots[hit.shot], hit.path))
        except LikewiseError:  # the file has gone since it was indexed
            return
        words = "Transport plan: each part of the hit in the colours of the query's parts that it received"
        yield Picture(inline(plot.parts(a, b, plan.plan)), words, words)


def _picture(given: Any, name: str) -> Picture:
    try:
        return Picture(inline(data.picture(given), side=SIDE), name)
    except LikewiseError as error:
        return Picture("", str(error))
