"""What a search gives: hits with their reasons, best first, as JSON, as a picture and as a page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from likewise import inputs, media, plot
from likewise.errors import LikewiseError
from likewise.images.embedder import Skipped
from likewise.search.verdict import Judge, Verdict, word

if TYPE_CHECKING:
    from likewise.plot.report import Card, Picture, Section
    from likewise.search.shortlist import Query
    from likewise.search.verify import Evidence

SIDE = 320
"""Longest side of an image on the page, in pixels; of one that explains, twice that."""


@dataclass(frozen=True)
class IndexReport:
    """What a build, update or addition did to an index.

    Attributes
    ----------
    added, updated, unchanged, removed : int
        Photos that are new, embedded again as their files had changed, left as they were, taken out.
    skipped : tuple of Skipped
        What could not be read, with the reasons.

    Examples
    --------
    >>> import likewise as lw
    >>> print(lw.search.IndexReport(added=3))
    3 added, 0 updated, 0 unchanged, 0 removed, 0 unreadable
    """

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    removed: int = 0
    skipped: tuple[Skipped, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        counts = f"{self.added} added, {self.updated} updated, {self.unchanged} unchanged, {self.removed} removed"
        return f"{counts}, {len(self.skipped)} unreadable"


@dataclass(frozen=True, eq=False)
class Hit:
    """A photo that a search gives, and why.

    Attributes
    ----------
    path : str
        The photo's file.
    rank : int
        Its place among the hits, from 1 on.
    distance : float
        ‖x − y‖ of the vectors of both, embedding and VLAD, 0 (same) to 2.
    alike : int
        How many local features of both are each other's nearest, and alike.
    evidence : Evidence or None
        Matches and their geometry (`likewise.pixels`); None where it was not verified.
    probability : float
        That both show the same; `verdict` is its word.
    shot : int
        Which image of the query is nearest to it.
    turns : tuple of int
        Which turns of the query found it, in steps of 90° to the left.
    taken, place : str, (float, float) or None
        When (ISO 8601) and where (latitude, longitude) it was taken, where its camera told.

    Examples
    --------
    >>> import likewise as lw
    >>> hit = lw.search.Hit("photos/cat.jpg", rank=1, distance=0.2, probability=0.97)
    >>> hit.name, hit.verdict  # as it was not verified
    ('cat.jpg', 'unsure')
    """

    path: str
    rank: int
    distance: float
    shot: int = 0
    alike: int = 0
    evidence: Evidence | None = field(default=None, repr=False)
    probability: float = 0.0
    turns: tuple[int, ...] = ()
    taken: str = ""
    place: tuple[float, float] | None = None

    @property
    def name(self) -> str:
        """The file's own name."""
        return Path(self.path).name

    @property
    def verdict(self) -> Verdict:
        """same (from 85 % on, verified), different (up to 10 %), or unsure; what shows too little is not different."""
        return word(self.probability, self.evidence)

    @property
    def percent(self) -> str:
        """The probability in words that are never quite sure: 97%, > 99%, < 1%."""
        p = self.probability
        return "> 99%" if p > 0.995 else "< 1%" if p < 0.005 else f"{p:.0%}"

    def judged(self, judge: Judge, evidence: Evidence | None = None) -> Hit:
        """The same with a probability, and with evidence where there is any."""
        seen = self.evidence if evidence is None else evidence
        count = self.alike if seen is None else max(self.alike, seen.alike)
        chance = judge.probability(self.distance, count, seen)
        return replace(self, evidence=seen, alike=count, probability=chance)

    def to_dict(self) -> dict[str, Any]:
        """As plain Python values."""
        names = ("path", "rank", "verdict", "probability", "distance", "alike", "shot", "taken", "place")
        evidence = None if self.evidence is None else self.evidence.to_dict()
        return {**{name: getattr(self, name) for name in names}, "evidence": evidence}

    def words(self) -> str:
        """The reasons in one line."""
        said = [f"{self.verdict} ({self.percent})", f"distance {self.distance:.3f}"]
        if self.evidence is None:
            return ", ".join([*said, f"{self.alike} features alike, not verified"])
        relation = [self.evidence.relation] if self.evidence.relation else []
        return ", ".join([*said, f"{self.evidence.n} of {len(self.evidence.matches)} matches are inliers", *relation])


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """The hits of one query, best first: a sequence of `Hit`.

    Attributes
    ----------
    query : Query
        The images that were looked for, with their names.
    hits : tuple of Hit
    place : str
        The index that was searched.
    seconds : dict of str to float
        How long each stage took; those that there were, of "shortlist", "re-rank" and "verify".
    notes : tuple of str
        What there is to say besides, such as what could not be verified.

    Examples
    --------
    >>> import likewise as lw
    >>> hit = lw.search.Hit("photos/cat.jpg", rank=1, distance=0.2, probability=0.97)
    >>> lw.search.Result(query=None, hits=(hit,), place="index", seconds={"shortlist": 0.01})
    Result(1 hits; first cat.jpg: unsure (97%), distance 0.200, 0 features alike, not verified)
    """

    query: Query
    hits: tuple[Hit, ...]
    place: str
    seconds: dict[str, float]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.hits)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __getitem__(self, i: int) -> Hit:
        return self.hits[i]

    def __repr__(self) -> str:
        best = f"{len(self)} hits; first {self.hits[0].name}: {self.hits[0].words()}" if self.hits else "no hits"
        return f"Result({best})"

    def _repr_html_(self) -> str:
        return "".join(section.html() for section in _sections(self))

    def to_dict(self) -> dict[str, Any]:
        """Everything that `to_json` writes."""
        return {
            "query": list(self.query.names),
            "index": self.place,
            "stages": list(self.seconds),
            "seconds": {name: round(value, 4) for name, value in self.seconds.items()},
            "notes": list(self.notes),
            "hits": [hit.to_dict() for hit in self.hits],
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """The result as JSON; with `path`, also written there, atomically."""
        text = json.dumps(self.to_dict(), ensure_ascii=False, indent=2, allow_nan=False)
        if path is not None:
            media.write_text(path, text + "\n")
        return text

    def page(self, path: str | Path) -> Path:
        """A self-contained page with every hit, its verdict and the reasons."""
        return write_page([self], Path(path))

    def plot(self, path: str | Path | None = None, *, most: int = 8) -> Any:
        """The query and its hits in a row, framed by the verdict. A matplotlib Figure."""
        shown = self.hits[:most]
        judged = {"same": True, "different": False}
        figure = plot.ranking(
            [self.query.shots[0].pixels],
            [[hit.path if Path(hit.path).is_file() else None for hit in shown]],
            right=[[judged.get(hit.verdict) if hit.evidence is not None else None for hit in shown]],
            names=[Path(self.query.names[0]).name],
            captions=[[hit.percent for hit in shown]],
            edge=1.25,
        )
        if path is not None:
            plot.save(figure, path)
        return figure


# ── the page ──────────────────────────────────────────────────────────────────────────────────────────────────────


def write_page(results: Sequence[Result], path: Path) -> Path:
    """Write the page of some results."""
    sections = [section for result in results for section in _sections(result)]
    asked = f"{len(results)} {'query' if len(results) == 1 else 'queries'}"
    page = plot.report.Page("likewise search", f"{asked}, the hits of each with the reasons.", {}, sections, wide=True)
    return page.write(path)


def _sections(result: Result) -> Iterator[Section]:
    query, same = result.query, sum(hit.verdict == "same" for hit in result.hits)
    spent = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in result.seconds.items())
    head = f"{len(result.hits)} hits in {result.place}, {same} of them the same; {spent}."
    names = ", ".join(Path(n).name for n in query.names[:4]) + ("…" if len(query) > 4 else "")
    strip = [_picture(shot, name) for shot, name in zip(query.shots[:4], query.names[:4], strict=True)]
    yield plot.report.Section(names, [head, *result.notes], strip=strip, cards=[_card(hit) for hit in result.hits])
    reasons = {f"{hit.rank}. {hit.name}: {hit.words()}": [*_why(hit)] for hit in result.hits}
    if any(reasons.values()):
        yield plot.report.Section("Why", details={summary: figures for summary, figures in reasons.items() if figures})


def _card(hit: Hit) -> Card:
    values = {"distance": f"{hit.distance:.3f}", "features alike": str(hit.alike)}
    if hit.evidence is None:
        values["inliers"] = "not verified"
    else:
        values["inliers"] = f"{hit.evidence.n} of {len(hit.evidence.matches)} matches"
        values |= {"relation": hit.evidence.relation} if hit.evidence.relation else {}
    values |= {"taken": hit.taken.replace("T", " ")} if hit.taken else {}
    title = f"{hit.rank}. {'/'.join(Path(hit.path).parts[-2:])}"
    badge = f"{hit.verdict} · {hit.percent}"
    return plot.report.Card(_picture(hit.path, hit.name), title, badge, hit.verdict, values)


def _why(hit: Hit) -> Iterator[Picture]:
    """The figures that explain a hit: inliers, and the warped hit where a plane was found."""
    evidence = hit.evidence
    if evidence is None or not evidence.n:
        return
    words = f"Inliers of one {evidence.kind}"
    try:
        yield plot.report.Picture(plot.report.inline(evidence.plot(title=" ")), words, words)
        overlay = evidence.overlay()
    except LikewiseError:  # the file has gone since it was indexed
        return
    if overlay is not None and hit.verdict != "different":
        yield plot.report.Picture(plot.report.inline(overlay, side=2 * SIDE), *["The hit warped to the query"] * 2)


def _picture(given: Any, name: str) -> Picture:
    try:
        return plot.report.Picture(plot.report.inline(inputs.image(given).reduced(SIDE), side=SIDE), name)
    except LikewiseError as error:
        return plot.report.Picture("", str(error))
