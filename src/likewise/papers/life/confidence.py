"""Confidence of the aligner's flow: the weights of its cues, and how often what is said to be right is right.

Rendered places (seeds of their own) and still webcams under homographies have dense truth. Whole pairs are left out:
weights that were fitted on four fifths of them say how sure the last fifth is. What ships is fitted on all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from likewise.papers import Record, data_folder
from likewise.papers.life.places import webcams_with_homographies
from likewise.pixels.aligner import CUES, Aligner, align, default, resize_flows
from likewise.pixels.data import rendered
from likewise.pixels.geometry import size_of
from likewise.pixels.rendering import HELD_OUT_SEED, Renderer
from likewise.pixels.rendering.textures import held_out

EACH = 1500
"""Pixels of a pair: those of one pair are right or wrong together, so more of them say little."""
RENDERED = 80
FIRST = 1000
"""Rendered pairs and the first of them; `flow` reports pairs 0 to 99."""
FOLDS = 5
RIGHT = 3.0
"""Pixels up to which a flow is right."""
TOLERANCES = (2.0, 3.0, 5.0)
"""Pixels up to which a flow is right in the fit: several, so that it learns what a tolerance is worth."""
LEAST = 0.01
"""The least share of pixels of a row."""


@dataclass(frozen=True)
class Seen:
    """Cues (n, 6) of some pixels of a pair, whether its matches are of one plane, and the errors of the flow, in px."""

    data: str
    cues: Any
    flat: bool
    errors: Any

    def at(self, tolerance: float) -> tuple[Any, Any]:
        """The cues, the last of which is the log of the tolerance, and whether the flow is right to it."""
        return self.cues + np.log(tolerance / RIGHT) * (np.arange(CUES) == CUES - 1), self.errors <= tolerance


def observe(model: Aligner, data: str = "") -> list[Seen]:
    """Pixels of every pair with a truth; pairs without an alignment say nothing.

    Parameters
    ----------
    model : Aligner
        Whose flow it is.
    data : str
        The folder of real data; by default $LIKEWISE_DATA.

    Returns
    -------
    list of Seen
        One a pair.
    """
    renderer, cameras = Renderer(held_out()), webcams_with_homographies(data_folder(data) / "places", 1000)
    places = rendered([renderer.pair(HELD_OUT_SEED + FIRST + i) for i in range(RENDERED)])
    rng = np.random.default_rng(0)
    seen = []
    for name, pairs in {"rendered": places, "webcams + H": cameras}.items():
        for pair in pairs:
            s = pair.load(None)
            aligned, cues = align(model.network, s.a, s.b, model.options)
            if cues is None:
                continue
            flow = resize_flows(aligned, size_of(s.a), size_of(s.b)).ab.numpy()
            valid = np.flatnonzero(np.asarray(s.flow.valid))
            some = rng.choice(valid, min(EACH, len(valid)), replace=False)
            full = torch.nn.functional.interpolate(cues.values.movedim(-1, 0)[None], size_of(s.a), mode="bilinear")[0]
            d = np.linalg.norm(flow - np.asarray(s.flow), axis=-1).reshape(-1)[some]
            seen.append(Seen(name, full.flatten(1).T.numpy()[some], cues.flat, d))
    return seen


def fit(seen: Sequence[Seen]) -> Any:
    """Weights (2, 6) of the cues by logistic regression, of one plane and in depth."""
    weights = np.zeros((2, CUES))
    for row, flat in enumerate((True, False)):
        X, y = zip(*(s.at(t) for s in seen if s.flat == flat for t in TOLERANCES), strict=True)
        model = LogisticRegression(fit_intercept=False, max_iter=2000)
        weights[row] = model.fit(np.concatenate(X), np.concatenate(y)).coef_
    return weights


def said(seen: Seen, weights: Any) -> Any:
    """The probability that each pixel's flow is right."""
    return 1 / (1 + np.exp(-(seen.cues @ weights[0 if seen.flat else 1])))


def confidence(options: Any) -> Record:
    """How often flow is within 3 px, by what weights say that were fitted on other pairs, with s.e. over pairs.

    Parameters
    ----------
    options : object with .data
        The folder of real data.

    Returns
    -------
    Record
        A row a tenth of the probability that a hundredth of the pixels have at least.
    """
    seen = observe(default(), options.data)
    folds = [[s for i, s in enumerate(seen) if i % FOLDS == fold] for fold in range(FOLDS)]
    judged: list[tuple[Seen, Any]] = []
    for fold in range(FOLDS):
        weights = fit([s for other in range(FOLDS) if other != fold for s in folds[other]])
        judged += [(s, said(s, weights)) for s in folds[fold]]
    rows = [
        {"data": data, **row}
        for data in dict.fromkeys(s.data for s in seen)
        for row in reliability([(p, s.errors <= RIGHT) for s, p in judged if s.data == data])
    ]
    return Record(["data", "from", "pairs", "share of pixels", "said", "right", "right, s.e."], rows)


def reliability(pairs: Sequence[tuple[Any, Any]]) -> list[dict[str, Any]]:
    """For each tenth: the mean of what was said, the share that is right, and its standard error over pairs.

    The share is a ratio of sums over pairs; its error is that of a ratio, to first order.
    """
    rows, total = [], sum(len(p) for p, _ in pairs)
    for low in range(10):
        chosen = [(p >= low / 10) & ((p < (low + 1) / 10) | (low == 9)) for p, _ in pairs]
        n = np.array([c.sum() for c in chosen])
        if n.sum() < LEAST * total:
            continue
        hits = np.array([right[c].sum() for c, (_, right) in zip(chosen, pairs, strict=True)])
        share = hits.sum() / n.sum()
        rows.append(
            {
                "from": low / 10,
                "pairs": int((n > 0).sum()),
                "share of pixels": float(n.sum() / total),
                "said": float(sum(p[c].sum() for c, (p, _) in zip(chosen, pairs, strict=True)) / n.sum()),
                "right": float(share),
                "right, s.e.": float(np.sqrt(((hits - share * n) ** 2).sum()) / n.sum()),
            }
        )
    return rows
