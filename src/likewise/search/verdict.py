"""The verdict: how probable it is that two photos show the same, by a logistic model of what was measured.

P = 1 / (1 + exp(−(b + w · x))). Without evidence x is the distance of the vectors and ln(1 + features alike). With
evidence it is the evidence alone, so that a pair has one probability, whoever asks and whatever embedder found it:
whether there is a geometry that chance does not explain, ln(n / 15) of its n distinct inliers and ln(−log NFA / 3), how
far beyond chance it is; where there is none, how near it came and ln(1 + matches). The coefficients were fitted on
candidates of real searches, so a probability means: of candidates like this, so many are right. Where a photo has few
features, "different" is not said; without evidence, or where a pattern repeats, "same" is not. weights/search-
verdict.md says what the coefficients were fitted on.
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

from likewise.pixels.robust import LOG_NFA

if TYPE_CHECKING:
    from likewise.search.verify import Evidence

Verdict = Literal["same", "different", "unsure"]
SAME, DIFFERENT = 0.85, 0.1
"""From the first probability on the verdict is "same"; up to the second it is "different"."""
CHANCE = 15
"""Up to so many distinct inliers a geometry counts alike."""
PARTS = {"quick": 2, "verified": 5}
"""The models, and how many of the numbers in x each has."""
WEIGHTS = Path(__file__).parents[1] / "weights" / "search-verdict.json"


def measured(distance: float, alike: int, evidence: Evidence | None) -> tuple[str, list[float]]:
    """What the model is given: which of its parts, and x."""
    quick = [distance, math.log1p(alike)]
    if evidence is None:
        return "quick", quick
    beyond = evidence.log_nfa / LOG_NFA
    if evidence.kind is None:
        return "verified", [0.0, 0.0, 0.0, min(max(beyond, 0.0), 1.0), math.log1p(len(evidence.matches))]
    distinct = math.log(max(evidence.distinct, CHANCE) / CHANCE)
    return "verified", [1.0, distinct, math.log(max(beyond, 1.0)), 0.0, 0.0]


@dataclass(frozen=True)
class Judge:
    """Probabilities from coefficients.

    Parameters
    ----------
    parts : mapping of str to sequence of float
        For each part of the model ("quick", "verified") its coefficients (b, w₁, w₂ …).

    Examples
    --------
    >>> import likewise as lw
    >>> judge = lw.search.Judge({"quick": [4.0, -8.0, 1.0]})
    >>> round(judge.probability(0.5, 0), 2)
    0.5
    """

    parts: Mapping[str, Sequence[float]]

    def probability(self, distance: float, alike: int, evidence: Evidence | None = None) -> float:
        """P that both show the same."""
        return self.evaluate(*measured(distance, alike, evidence))

    def evaluate(self, name: str, x: Sequence[float]) -> float:
        """P by one part of the model."""
        intercept, *weights = self.parts[name]
        logit = intercept + float(np.dot(weights, x))
        return 1 / (1 + math.exp(-min(max(logit, -30.0), 30.0)))


def word(probability: float, evidence: Evidence | None) -> Verdict:
    """same, different, or unsure: same only with evidence, and not of patterns that repeat; different not of few."""
    if evidence is not None and probability >= SAME and not evidence.repetitive:
        return "same"
    return "different" if probability <= DIFFERENT and not (evidence and evidence.few) else "unsure"


@functools.cache
def judge() -> Judge:
    """The coefficients that come with likewise."""
    return Judge(json.loads(WEIGHTS.read_text())["parts"])
