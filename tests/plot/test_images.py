"""Images in figures: frames and marks say which hits are right, pairs and grids stand in their rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image

from likewise import plot
from likewise.errors import InputError, ShapeError
from likewise.plot.images import RIGHT, WRONG


def noise(n: int, seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).uniform(size=(n, 8, 8)))


def texts(ax) -> list[str]:
    return [t.get_text() for t in ax.texts]


def frames(ax) -> list[str]:
    return [to_hex(p.get_edgecolor()).upper() for p in ax.patches]


def test_right_ones_are_green_and_wrong_ones_red_in_their_places() -> None:
    fig = plot.ranking(noise(2), [noise(3), noise(2)], right=[[True, False, True], [False, True]], title="t")
    ax = fig.axes[0]
    assert len(ax.images) == 7
    judged = [c for c in frames(ax) if c in (RIGHT, WRONG)]
    assert judged == [RIGHT, WRONG, RIGHT, WRONG, RIGHT]
    assert [t.get_text() for t in ax.texts if t.get_text() in ("✓", "✗")] == ["✓", "✗", "✓", "✗", "✓"]
    lefts = [im.get_extent()[0] for im in ax.images]
    assert lefts[0] < lefts[1] < lefts[2] < lefts[3]
    assert lefts[4] == lefts[0]
    assert ax.images[4].get_extent()[3] < ax.images[0].get_extent()[2]
    assert min(im.get_extent()[2] for im in ax.images) > 0
    assert max(im.get_extent()[1] for im in ax.images) < ax.get_xlim()[1]


def test_files_missing_pictures_names_and_captions(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((9, 12, 3), np.uint8)).save(tmp_path / "a.png")
    words = [["one", "a caption that is much too long for its picture"]]
    fig = plot.ranking([tmp_path / "a.png"], [[None, str(tmp_path / "a.png")]], names=["$x^{"], captions=words)
    said = texts(fig.axes[0])
    assert {"$x^{", "one"} <= set(said)
    assert any(t.startswith("a caption") and t.endswith("…") for t in said)
    assert len(fig.axes[0].images) == 2
    plot.save(fig, tmp_path / "out.png")
    with Image.open(tmp_path / "out.png") as drawn:
        assert drawn.width > 200


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"queries": [], "hits": []}, InputError, "at least one"),
        ({"hits": [[]]}, InputError, "at least one hit"),
        ({"hits": [[0], [0]]}, ShapeError, "hits: expected 1, one a query, got 2"),
        ({"right": [[True]]}, ShapeError, "right of query 0: expected 2, one a hit, got 1"),
        ({"names": ["a", "b"]}, ShapeError, "names: expected 1"),
        ({"captions": [["a"]]}, ShapeError, "captions of query 0: expected 2"),
        ({"rows": [noise(1), noise(1)], "labels": ["a"]}, ShapeError, "labels: expected 2"),
        ({"rows": [[]]}, InputError, "at least one image"),
    ],
)
def test_errors(options, error, message) -> None:
    draw, usual = (plot.grid, {}) if "rows" in options else (plot.ranking, {"queries": noise(1), "hits": [noise(2)]})
    with pytest.raises(error, match=message):
        draw(**{**usual, **options})


def test_coverage_draws_each_pair_and_says_how_many_there_are() -> None:
    a, b = noise(11), noise(11, 1)
    pairs = [(x, y, float(i)) for i, (x, y) in enumerate(zip(a, b, strict=True))]
    fig = plot.coverage(pairs[:9], pairs[9:], counts=(40, 60), labels=("summer", "winter"), figures={"recall": "0.6"})
    ax = fig.axes[0]
    assert len(ax.images) == 22
    said = texts(ax)
    assert "in summer, but not covered by winter: 40 of 100" in said
    assert "in summer, and covered by winter: 60 of 100" in said
    assert said.count("nearest in\nwinter") == 3
    assert {"recall 0.6", "0", "8"} <= set(said)
    bottom = min(im.get_extent()[2] for im in ax.images)
    assert 0 < bottom < ax.get_ylim()[1]
    assert texts(plot.coverage([], []).axes[0]).count("none") == 2


def test_a_grid_has_rows_with_labels(tmp_path: Path) -> None:
    fig = plot.grid([noise(3), noise(2)], ["ρ = −1", "ρ = 1"], title="t")
    ax = fig.axes[0]
    assert len(ax.images) == 5
    tops = [im.get_extent()[3] for im in ax.images]
    assert tops[0] == tops[2] > tops[3]
    assert {"ρ = −1", "ρ = 1", "t"} <= set(texts(ax))
    plot.save(plot.grid([noise(1)]), tmp_path / "one.png")
