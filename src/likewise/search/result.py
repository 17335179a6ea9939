"""What a search found, stage by stage, with the reasons."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from likewise.search.verdict import Judge, Verdict, word

if TYPE_CHECKING:
    from likewise.search.evidence import Evidence
    from likewise.search.queries import Query
    from likewise.sets.compare import SetComparison


@dataclass(frozen=True, eq=False)
class Found:
    """A picture that was found, and why.

    `distance` is that of the embeddings (`likewise.images`), `transport` that of the parts (`likewise.sets`), None
    where it was not asked for; `evidence` is what the pixels say (`likewise.pixels`), None where they were not looked
    at. `probability` is that it shows the same, `shot` the one of the query's pictures that is nearest to it, `metric`
    the one that `transport` was measured under, None for the identity.
    """

    path: str
    rank: int
    distance: float
    shot: int = 0
    transport: float | None = None
    evidence: Evidence | None = field(default=None, repr=False)
    probability: float = 0.0
    parts: tuple[NDArray[np.int8], NDArray[np.int8]] | None = field(default=None, repr=False)
    metric: NDArray[np.float64] | None = field(default=None, repr=False)

    @property
    def verdict(self) -> Verdict:
        """same (from 90 % on), different (up to 10 %), or unsure."""
        return word(self.probability)

    def plan(self) -> SetComparison | None:
        """The plan between the parts of the query and of this picture; None where they are not known."""
        from likewise.search.parts import plan

        return None if self.parts is None else plan(*self.parts, self.metric)

    def judged(self, judge: Judge, evidence: Evidence | None = None) -> Found:
        """The same with a probability, and with evidence where there is any.

        The transport distance counts under the identity only: that is what the verdict was fitted on.
        """
        seen = self.evidence if evidence is None else evidence
        transport = self.transport if self.metric is None else None
        return replace(self, evidence=seen, probability=judge.probability(self.distance, transport, seen))

    def to_dict(self) -> dict[str, Any]:
        """As plain Python values."""
        return {
            "path": self.path,
            "rank": self.rank,
            "verdict": self.verdict,
            "probability": self.probability,
            "distance": self.distance,
            "transport": self.transport,
            "shot": self.shot,
            "evidence": None if self.evidence is None else self.evidence.to_dict(),
        }

    def words(self) -> str:
        """The reasons in one line."""
        said = [f"{self.verdict} ({self.probability:.0%})", f"distance {self.distance:.3f}"]
        if self.transport is not None:
            said.append(f"transport {self.transport:.3f}")
        if self.evidence is not None:
            said.append(f"{self.evidence.n} of {len(self.evidence.matches)} matches agree")
        return ", ".join(said)


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """The hits of one query, best first; `seconds` says how long each stage took, `stages` which there were."""

    query: Query
    hits: tuple[Found, ...]
    place: str
    stages: tuple[str, ...]
    seconds: dict[str, float]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.hits)

    def __iter__(self) -> Any:
        return iter(self.hits)

    def __getitem__(self, i: int) -> Found:
        return self.hits[i]

    def __repr__(self) -> str:
        if not self.hits:
            return "Result(nothing found)"
        best = self.hits[0]
        return f"Result({len(self)} hits; first {Path(best.path).name}: {best.words()})"

    def to_dict(self) -> dict[str, Any]:
        """Everything that `to_json` writes."""
        return {
            "query": list(self.query.names),
            "index": self.place,
            "stages": list(self.stages),
            "seconds": {name: round(value, 4) for name, value in self.seconds.items()},
            "notes": list(self.notes),
            "hits": [hit.to_dict() for hit in self.hits],
        }

    def to_json(self, path: str | Path | None = None) -> str:
        """The result as JSON; with `path`, also written there, atomically."""
        text = json.dumps(self.to_dict(), ensure_ascii=False, indent=2, allow_nan=False)
        if path is not None:
            from likewise.media import write_text

            write_text(path, text + "\n")
        return text

    def page(self, path: str | Path) -> Path:
        """A self-contained page with every hit, its verdict and the reasons."""
        from likewise.search.page import write

        return write([self], Path(path))

    def plot(self, path: str | Path | None = None, *, most: int = 8) -> Any:
        """The query and its hits in a row, framed by the verdict. A matplotlib Figure."""
        from likewise import plot

        shown = self.hits[:most]
        judged = {"same": True, "different": False}
        figure = plot.ranking(
            [self.query.shots[0]],
            [[hit.path if Path(hit.path).is_file() else None for hit in shown]],
            right=[[judged.get(hit.verdict) if hit.evidence is not None else None for hit in shown]],
            names=[Path(self.query.names[0]).name],
            captions=[[f"{hit.probability:.0%} · {hit.distance:.2f}" for hit in shown]],
            edge=1.25,
        )
        if path is not None:
            plot.save(figure, path)
        return figure
