"""Pictures of flow: the colours by hand and beside flow_vis, what is warped where, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from likewise import plot
from likewise.errors import InputError, ShapeError
from likewise.plot import flows
from likewise.types import Flow, Matches
from worlds import scenes

FIELDS = arrays.arrays(np.float64, (5, 6, 2), elements=st.floats(-100, 100))


def colour(x: float, y: float, largest: float = 1.0) -> list[int]:
    return [int(c) for c in plot.wheel([[[x, y]]], largest=largest)[0, 0]]


# ---------------------------------------------------------------------------------------------------------- the colours


def test_colours_by_hand_and_in_the_key() -> None:
    assert colour(0, 0) == [255, 255, 255]
    assert colour(1, 0) == [255, 0, 0]  # right is red
    key = plot.disc(101)
    assert key[0, 0].tolist() == [255, 255, 255]
    assert key[50, 98, 0] == 255
    assert key[50, 98, 1] < 20
    assert colour(0.5, 0) == [255, 127, 127]
    assert colour(2, 0) == [191, 0, 0]  # longer than the largest


@given(FIELDS)
def test_colours_are_those_of_flow_vis(vectors: NDArray[np.float64]) -> None:
    theirs = pytest.importorskip("flow_vis", reason="pip install flow_vis")
    largest = np.hypot(vectors[..., 0], vectors[..., 1]).max() + 1e-5
    np.testing.assert_array_equal(plot.wheel(vectors, largest=largest), theirs.flow_to_color(vectors))


def test_unknown_vectors_are_black_and_do_not_set_the_scale() -> None:
    vectors = np.array([[[2.0, 0.0], [1e6, 0.0]]])
    flow = Flow(vectors, np.array([[True, False]]))
    np.testing.assert_array_equal(plot.wheel(flow)[0], [[255, 0, 0], [0, 0, 0]])
    np.testing.assert_array_equal(plot.wheel([[[2.0, 0.0], [np.nan, 0.0]]])[0], [[255, 0, 0], [0, 0, 0]])
    np.testing.assert_array_equal(plot.wheel(torch.zeros(1, 2, 2, requires_grad=True)), np.full((1, 2, 3), 255))


def test_runaways_do_not_bleach_the_rest() -> None:
    vectors = np.full((20, 20, 2), (3.0, 0.0))
    vectors[0, 0] = (1e5, 0.0)
    assert flows.longest(vectors) == pytest.approx(3)
    np.testing.assert_array_equal(plot.wheel(vectors)[5, 5], [255, 0, 0])


# ----------------------------------------------------------------------------------------------------------- alignments


def test_b_is_warped_to_a() -> None:
    a = scenes.texture(0)
    b = scenes.moved(a, 3, -2)
    laid = flows.warp(b, np.full((48, 64, 2), (3.0, -2.0)))
    np.testing.assert_array_equal(laid[2:, :-3], a[2:, :-3])
    assert (laid[:2] == flows.NOWHERE).all()
    assert (laid[:, -3:] == flows.NOWHERE).all()


def test_a_checkerboard_has_both() -> None:
    a, b = np.zeros((4, 8, 3), np.uint8), np.full((4, 8, 3), 9, np.uint8)
    np.testing.assert_array_equal(
        plot.checkerboard(a, b, 4)[..., 0], np.array([[0, 0, 9, 9] * 2] * 2 + [[9, 9, 0, 0] * 2] * 2)
    )


def test_an_alignment_has_six_panels_and_names_its_pictures(tmp_path: Path) -> None:
    a = scenes.texture(0)
    fig = plot.alignment(a, scenes.texture(1, 30, 90), np.ones((48, 64, 2)), np.full((48, 64), 0.5), title="a $ title")
    assert len(fig.axes) == 6
    names = [t.get_text() for t in fig.texts]
    assert names[:6] == ["a $ title", "a", "b", "b warped to a, where it is sure", "checkerboard of a and b", "flow"]
    unsure = np.full((48, 64), 0.4)
    hidden = plot.alignment(a, a, np.zeros((48, 64, 2)), unsure).axes[2].images[0].get_array()
    assert np.ptp(np.asarray(hidden)) == 0  # nothing is sure: nothing is shown
    assert fig.axes[4].child_axes[0].get_title() == "1.41 px"
    plot.save(fig, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 10_000
    tensors = plot.alignment(torch.rand(3, 48, 64), torch.rand(3, 48, 64), torch.zeros(48, 64, 2))
    assert len(tensors.axes) == 5
    fig = plot.alignment(A, A, STILL, names=("$day.jpg", "n" * 60 + ".jpg"))
    names = [t.get_text() for t in fig.texts]
    assert names[:2] == ["a: $day.jpg", "b: …" + "n" * 31 + ".jpg"]
    fig.canvas.draw()  # a dollar sign is one


# ------------------------------------------------------------------------------------------------------------- matches


def test_matches_are_drawn_by_stage() -> None:
    a = scenes.texture(0)
    points = np.random.default_rng(0).uniform(0, 47, (30, 2))
    result = Matches(points, points, np.where(np.arange(30) < 21, 1, 2))
    fig = plot.matches(a, a, result, title="x")
    lines = fig.axes[0].collections[::2]
    assert [len(c.get_segments()) for c in lines] == [21, 9]  # type: ignore[attr-defined]
    assert [t.get_text() for t in fig.texts] == ["x", "■ 21 near the flow", "■ 9 elsewhere"]
    first = lines[0].get_segments()[0]  # type: ignore[attr-defined]
    np.testing.assert_allclose(first[1] - first[0], [64 + 0.02 * 64, 0])
    unguided = plot.matches(a, a, Matches(points, points, np.full(30, 2)), title="x")
    assert [t.get_text() for t in unguided.texts] == ["x"], "without a flow none is elsewhere"


def test_of_many_matches_some_are_drawn_and_all_are_counted() -> None:
    a = scenes.texture(0)
    points = np.random.default_rng(0).uniform(0, 47, (300, 2))
    fig, again = (plot.matches(a, a, Matches(points, points), most=50) for _ in range(2))
    segments = [np.array(f.axes[0].collections[0].get_segments()) for f in (fig, again)]  # type: ignore[attr-defined]
    assert len(segments[0]) == 50
    np.testing.assert_array_equal(*segments)
    assert [t.get_text() for t in fig.texts] == ["■ 300 near the flow", "■ 0 elsewhere", "50 of 300 drawn"]
    assert len(plot.matches(a, a, Matches([], [])).axes) == 1  # none are a picture, too


A, STILL = scenes.texture(0), np.zeros((48, 64, 2))


@pytest.mark.parametrize(
    ("draw", "items", "error", "message"),
    [
        (plot.wheel, (np.zeros((2, 2)),), ShapeError, r"flow: expected \(h, w, 2\), got shape \(2, 2\)"),
        (lambda flow: plot.wheel(flow, largest=0), (STILL,), InputError, "largest: expected a length in pixels > 0"),
        (plot.disc, (4,), InputError, "side: expected at least 8 pixels"),
        (plot.checkerboard, (A, A, 1), InputError, "tiles: expected a whole number ≥ 2"),
        (plot.checkerboard, (A, A[:2], 4), ShapeError, "b: expected the shape of a"),
        (plot.alignment, (A, A, STILL[:2, :2]), ShapeError, r"flow: expected a vector a pixel of a, \(48, 64\), got"),
        (plot.alignment, (A, A, STILL, np.zeros((2, 2))), ShapeError, r"confidence: expected \(48, 64\)"),
        (plot.alignment, (A, np.zeros((2, 2, 2, 2)), STILL), ShapeError, "b: expected"),
        (plot.matches, (A, A, Matches([[1, 1]], [[300, 1]])), InputError, "points of b lie outside of its 48 × 64 pix"),
    ],
)
def test_what_cannot_be_drawn(draw: Any, items: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        draw(*items)
