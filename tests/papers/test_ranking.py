"""The tables of places: truth, fits and figures on small cases that can be counted by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from likewise.media import write_image
from likewise.papers.life.places import SHIFTED
from likewise.papers.places import ranking
from likewise.papers.places.ranking import COLLECTIONS, Asked, Collected, Options, Photos, collected, fit, fit_judge
from likewise.search.local import Local, Projection, vlad
from likewise.search.verdict import Judge


def photos(*numbers: int, side: str = "query") -> Photos:
    return Photos([f"{side}/{n:03d}.jpg" for n in numbers], np.zeros((len(numbers), 4), np.float32), [])


def test_the_truth_of_kudamm_is_read_shifted(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for side, numbers in (("reference", (0, 2, 4)), ("query", (1, 3))):
        for n in numbers:
            photo = rng.integers(0, 255, (40, 48, 3), dtype=np.uint8)
            write_image(tmp_path / "kudamm" / side / f"{n:03d}.jpg", photo)
    (tmp_path / "kudamm" / "truth.csv").write_text(f"query,reference\n{SHIFTED + 1:03d},004\n{SHIFTED + 9:03d},002\n")
    one = collected(tmp_path, "kudamm", tmp_path)
    assert [Path(p).name for p in one.queries.paths] == ["001.jpg"], "the other query has no truth"
    assert one.apart.tolist() == [[4, 2, 0]]
    assert one.right().tolist() == [[False, True, True]]
    again = collected(tmp_path, "kudamm", tmp_path)  # from what was kept
    assert (again.queries.features[0].codes == one.queries.features[0].codes).all()
    np.testing.assert_array_equal(again.queries.embeddings, one.queries.embeddings)


def test_cameras_that_look_at_the_same_are_neither_right_nor_wrong() -> None:
    one = Collected("webcams", photos(34, 82, 5), photos(82, 5), np.abs(np.array([[82], [5]]) - [[34, 82, 5]]))
    assert one.right().tolist() == [[False, True, False], [False, False, True]]
    assert one.wrong().tolist() == [[False, False, True], [True, True, False]]


def test_a_fit_finds_the_logistic_model_and_keeps_its_sense() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20_000, 2))
    y = rng.uniform(size=len(x)) < 1 / (1 + np.exp(-(0.5 - 1.5 * x[:, 0] + 0.8 * x[:, 1])))
    weight = np.full(len(x), 1 / len(x))
    np.testing.assert_allclose(fit(x, y, weight, (-1, 1)), [0.5, -1.5, 0.8], atol=0.08)
    against = fit(-x, y, weight, (-1, 1))
    assert against[1:] == [0.0, 0.0], "no weight acts against its sense"


def test_every_collection_counts_alike_in_the_verdict() -> None:
    """A large collection in which nothing is right does not outvote a small one in which all is."""
    small, large = (np.zeros((10, 7)), np.ones(10, bool)), (np.zeros((1000, 7)), np.zeros(1000, bool))
    judge = fit_judge([small, large])
    assert judge.evaluate("verified", [0.0] * 5) == pytest.approx(0.5, abs=1e-3)


def test_candidates_are_ordered_by_distance_and_features() -> None:
    flags = np.zeros(3, bool)
    asked = Asked(np.arange(3), np.array([1.0, 1.1, 1.2]), np.array([0, 50, 3]), flags, ~flags)
    assert ranking.rerank(asked, Judge({"quick": [0.0, -1.0, 1.0]})).tolist() == [1, 2, 0]
    assert ranking.rerank(asked, Judge({"quick": [0.0, -1.0, 0.0]})).tolist() == [0, 1, 2]


def test_the_table_of_verdicts_counts_what_was_harvested(tmp_path: Path) -> None:
    """Right candidates have a geometry, wrong ones none; the first by rank is wrong, the first by verdict right."""
    geometry, none = [1.0, 2.0, 1.5, 0.0, 0.0], [0.0, 0.0, 0.0, 0.2, 3.0]
    right = [0.8, 4.0, *geometry, True, True, False, False]
    near = [0.9, 3.0, *none, False, True, False, False]  # right, of a neighbouring number, without a geometry
    wrong = [1.2, 1.0, *none, False, False, True, False]
    unknown = [1.0, 2.0, *none, False, False, False, False]
    queries = [[[wrong, right, unknown, wrong, wrong], 0.5] for _ in range(29)] + [[[wrong, near], 0.5]]
    (tmp_path / "verified-10.json").write_text(json.dumps(dict.fromkeys(COLLECTIONS, queries)))
    record = ranking.verdict(Options(cells=str(tmp_path)))
    rows = [row for row in record.rows if row["bin"] == "all"]
    assert [row["collection"] for row in rows] == list(COLLECTIONS)
    for row in rows:
        assert row["candidates"] == 29 * 4 + 2, "what is neither right nor wrong is left out"
        assert row["right"] == pytest.approx(30 / 118)
        assert (row["precision of same"], row["recall"]) == (1.0, pytest.approx(29 / 30))
        assert row["recall, its own number"] == 1.0
        assert row["queries answered"] == pytest.approx(29 / 30)
        assert row["right called different"] == pytest.approx(1 / 30)
        assert (row["R@1 re-ranked"], row["R@1 verified"]) == (0.0, pytest.approx(29 / 30))


def test_a_projection_whitens_half() -> None:
    """Along each kept axis the spread of projected rows is the square root of what it was."""
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(500, 6)) * [9, 4, 1, 0.5, 0.2, 0.1]).astype(np.float32)
    mean, axes, spread = ranking.principal(rows, 3)
    half = (rows - mean) @ (axes / np.sqrt(spread)[:, None]).T
    np.testing.assert_allclose(half.std(axis=0), np.sqrt(spread), rtol=1e-4)
    p = Projection(np.zeros((2, 3), np.float32), mean, axes, mean, axes, np.ones(3, np.float32))
    moved = p.whiten(rows)
    np.testing.assert_allclose(np.linalg.norm(moved, axis=1), 1, atol=1e-5)
    plain = (rows - mean) / np.linalg.norm(rows - mean, axis=1, keepdims=True)
    np.testing.assert_allclose(moved, plain, atol=1e-5)  # gains of 1 change nothing


def test_no_features_are_no_vlad() -> None:
    empty = Local(
        np.empty((0, 2), np.float32), np.empty((0, 64), np.int8), (9, 9), (9, 9), np.zeros((16, 16), np.uint8)
    )
    assert (vlad(empty, np.ones((4, 64), np.float32)) == 0).all()
