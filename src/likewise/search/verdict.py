"""The verdict: how probable it is that two images show the same, by a logistic model of what was measured.

P = 1 / (1 + exp(−(b + w · x))). Without evidence x is the embedding distance and, where it is known, the local
distance; with evidence also ln(max(n, 15) / 15) of the n inliers and their share of all matches, both 0 where chance
explains the geometry. Where the matches alone make it at least 90 %, nothing outvotes them: a photo turned on its side
is far away by every distance, and the same. weights/search-verdict.md says what the coefficients were fitted on.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from likewise.search.verify import Evidence

Verdict = Literal["same", "different", "unsure"]
SAME, DIFFERENT = 0.9, 0.1
"""From the first probability on the verdict is "same"; up to the second it is "different"."""
CHANCE = 15
"""Up to so many inliers, a geometry is counted by their share alone."""
WEIGHTS = Path(__file__).parents[1] / "weights" / "search-verdict.json"


def measured(distance: float, local: float | None, evidence: Evidence | None) -> tuple[str, list[float]]:
    """What the model is given: which of its parts, and x."""
    known = local is not None and math.isfinite(local)
    seen = [distance, float(local)] if known and local is not None else [distance]
    name = "transport" if known else "distance"
    if evidence is None:
        return name, seen
    return f"{name}+evidence", [*seen, math.log(max(evidence.n, CHANCE) / CHANCE), evidence.share]


@dataclass(frozen=True)
class Judge:
    """Probabilities from coefficients.

    Parameters
    ----------
    parts : mapping of str to sequence of float
        For each part of the model ("distance", "transport", "matches" …) its coefficients (b, w₁, w₂ …).

    Examples
    --------
    >>> import likewise as lw
    >>> judge = lw.search.Judge({"distance": [4.0, -8.0]})
    >>> round(judge.probability(0.5), 2)
    0.5
    """

    parts: Mapping[str, Sequence[float]]

    def probability(
        self, distance: float, local_distance: float | None = None, evidence: Evidence | None = None
    ) -> float:
        """P that both show the same."""
        name, x = measured(distance, local_distance, evidence)
        whole = self._of(name, x)
        if evidence is None:
            return whole
        alone = self._of("matches", x[-2:])
        return max(whole, alone) if alone >= SAME else whole

    def _of(self, name: str, x: Sequence[float]) -> float:
        intercept, *weights = self.parts[name]
        logit = intercept + float(np.dot(weights, x))
        return 1 / (1 + math.exp(-min(max(logit, -30.0), 30.0)))


def word(probability: float) -> Verdict:
    """same, different, or unsure."""
    return "same" if probability >= SAME else "different" if probability <= DIFFERENT else "unsure"


@functools.cache
def judge() -> Judge:
    """The coefficients that come with likewise."""
    return Judge(json.loads(WEIGHTS.read_text())["parts"])
