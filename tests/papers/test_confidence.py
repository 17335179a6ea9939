"""The weights of the confidence's cues, and the table that says how often what is said to be right is right."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from likewise.papers.life import confidence
from likewise.papers.life.confidence import Seen, fit, reliability, said
from likewise.pixels.aligner import CUES, default

TRUE = np.array([[-1.0, -1.0, 0.0, 0.0, -2.0, 1.3], [-2.5, 0.0, 2.0, 0.0, 0.0, 1.6]])


def simulated(n: int, seed: int = 0, lie: int = 0) -> list[Seen]:
    """Pairs, of one plane or not, whose errors are log-logistic: up to t as often as the weights TRUE say. With `lie`,
    cues of every lie-th pair have the wrong sign."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(n):
        weights = TRUE[0 if i % 2 else 1]
        scale = np.log(3 * rng.choice([1.0, 3.0]))  # photos as they are, and photos enlarged three times
        cues = np.column_stack([np.ones(500), rng.normal(0, 1, (500, CUES - 2)), np.full(500, scale)])
        z = cues @ weights * (-1 if lie and i % lie == 0 else 1)
        u = rng.random(500)
        made.append(Seen("simulated", cues, bool(i % 2), 3 * np.exp((np.log(u / (1 - u)) - z) / weights[-1])))
    return made


def test_weights_are_found_again_for_each_kind() -> None:
    seen = simulated(60)
    weights = fit(seen)
    assert np.abs(weights - TRUE).max() < 0.15
    p = np.concatenate([said(s, weights) for s in seen])
    assert p.mean() == pytest.approx(np.mean([s.errors <= 3 for s in seen]), abs=0.01)


def test_rows_of_reliability_by_hand() -> None:
    """Two pairs in the tenth from .7 on, 3 of 4 right; the error is that of the ratio; 1.0 is in the last tenth."""
    one = np.array([0.72, 0.78, 0.1]), np.array([True, True, False])
    two = np.array([0.74, 0.76, 1.0]), np.array([True, False, True])
    rows = {row["from"]: row for row in reliability([one, two])}
    assert sorted(rows) == [0.1, 0.7, 0.9]
    assert rows[0.7]["pairs"] == 2
    assert rows[0.7]["share of pixels"] == pytest.approx(4 / 6)
    assert rows[0.7]["said"] == pytest.approx(0.75)
    assert rows[0.7]["right"] == pytest.approx(0.75)
    assert rows[0.7]["right, s.e."] == pytest.approx(np.sqrt(0.5**2 + 0.5**2) / 4)
    assert rows[0.9]["right"] == 1.0


def test_the_table_judges_pairs_that_were_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = simulated(100, seed=1)
    fitted: list[int] = []
    monkeypatch.setattr(confidence, "observe", lambda model, data: seen)
    monkeypatch.setattr(confidence, "fit", lambda some: fitted.append(len(some)) or fit(some))
    rows = confidence.confidence(SimpleNamespace(data="")).rows
    assert fitted == [80] * confidence.FOLDS
    assert {row["data"] for row in rows} == {"simulated"}
    assert max(abs(row["said"] - row["right"]) for row in rows) < 0.05
    monkeypatch.setattr(confidence, "observe", lambda model, data: simulated(100, seed=1, lie=5))
    rows = confidence.confidence(SimpleNamespace(data="")).rows
    assert max(abs(row["said"] - row["right"]) for row in rows) > 0.1, "a fifth is wrong where the others are right"


def test_pixels_of_a_rendered_pair_are_observed(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(confidence, "RENDERED", 1)
    monkeypatch.setattr(confidence, "webcams_with_homographies", lambda folder, n: [])
    (seen,) = confidence.observe(default(), str(tmp_path))
    assert seen.data == "rendered"
    assert seen.cues.shape == (confidence.EACH, CUES)
    assert np.median(seen.errors) < 3
    assert np.allclose(seen.cues[:, -1], np.log(9)), "96 × 128 px are aligned three times as large"
