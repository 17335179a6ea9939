"""The plain types of the level: what they hold, what they refuse, and what they say of themselves."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from likewise.errors import InputError, ShapeError
from likewise.types import Flow, Matches

# ---------------------------------------------------------------------------------------------------------------- Flow


def test_a_flow_is_its_vectors() -> None:
    vectors = np.arange(24, dtype=np.float64).reshape(3, 4, 2)
    flow = Flow(vectors)
    assert (flow.height, flow.width) == (3, 4)
    assert flow.vectors.dtype == np.float32
    assert flow.valid is None
    np.testing.assert_array_equal(np.asarray(flow), vectors)
    assert np.asarray(flow) is flow.vectors
    assert np.asarray(flow, dtype=np.float64).dtype == np.float64
    assert np.array(flow) is not flow.vectors
    vectors[0, 0] = 99
    assert flow.vectors[0, 0, 0] == 0


def test_the_length_of_a_vector() -> None:
    np.testing.assert_allclose(Flow([[[3.0, 4.0], [0.0, -2.0]]]).magnitude(), [[5.0, 2.0]])


def test_a_flow_takes_a_tensor_that_has_a_gradient() -> None:
    flow = Flow(torch.ones(2, 3, 2, requires_grad=True), torch.ones(2, 3, dtype=torch.bool))
    np.testing.assert_array_equal(flow.vectors, np.ones((2, 3, 2)))
    assert flow.valid is not None
    assert flow.valid.all()


def test_what_is_not_known_is_zero() -> None:
    flow = Flow([[[np.nan, 1.0], [3.0, 4.0], [1e300, 0.0]]], [[False, True, False]])
    np.testing.assert_array_equal(flow.vectors, [[[0, 0], [3, 4], [0, 0]]])
    summary = flow.to_dict()
    assert summary == {
        "height": 1,
        "width": 3,
        "known": pytest.approx(1 / 3),
        "length": {"mean": 5.0, "median": 5.0, "largest": 5.0},
    }
    json.dumps(summary, allow_nan=False)
    assert repr(flow) == "Flow(1 × 3, 5.00 px in the mean, known at 33%)"


def test_a_flow_that_is_known_nowhere_has_no_length() -> None:
    flow = Flow(np.zeros((2, 2, 2)), np.zeros((2, 2), dtype=bool))
    assert flow.to_dict()["length"] == {}
    assert repr(flow) == "Flow(2 × 2, known at 0%)"


@pytest.mark.parametrize(
    ("vectors", "valid", "error", "words"),
    [
        (np.zeros((2, 2, 3)), None, ShapeError, r"vectors: expected \(h, w, 2\), got shape \(2, 2, 3\)"),
        (np.zeros((0, 2, 2)), None, ShapeError, "vectors: expected"),
        ("left", None, InputError, "vectors: expected an array of numbers, got str"),
        ([[[np.inf, 0.0]]], None, InputError, "NaN or infinity where the flow is known"),
        ([[[np.nan, 0.0]]], [[True]], InputError, "NaN or infinity where the flow is known"),
        ([[[1e39, 0.0]]], None, InputError, "NaN or infinity where the flow is known"),
        (np.zeros((2, 3, 2)), np.ones((3, 2), dtype=bool), ShapeError, r"valid: expected \(2, 3\)"),
        (np.zeros((2, 3, 2)), np.ones((2, 3)), InputError, "valid: expected booleans, got float64"),
    ],
)
def test_flows_that_cannot_be(vectors: object, valid: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Flow(vectors, valid)


# ------------------------------------------------------------------------------------------------------------- Matches


def test_matches_hold_what_was_found() -> None:
    result = Matches([[0, 0], [1, 2], [5, 5]], [[3, 4], [1, 2], [5, 7]], [1, 2, 1], [0.5, 0.25, 1.0])
    assert len(result) == 3
    assert (result.a.dtype, result.stage.dtype, result.score.dtype) == (np.float64, np.int8, np.float32)
    assert result.to_dict() == {"matches": 3, "stage 1": 2, "stage 2": 1, "median length": 2.0}
    json.dumps(result.to_dict(), allow_nan=False)
    assert repr(result) == "Matches(3: 2 near the flow, 1 elsewhere)"
    np.testing.assert_array_equal(result.of_stage(2).b, [[1, 2]])
    np.testing.assert_array_equal(result.take([2, 0]).a, [[5, 5], [0, 0]])
    np.testing.assert_array_equal(result.take(result.score > 0.4).score, [0.5, 1.0])


def test_there_may_be_no_matches() -> None:
    none = Matches([], [])
    assert len(none) == len(none.of_stage(1)) == len(none.take([])) == 0
    assert none.a.shape == (0, 2)
    assert none.to_dict() == {"matches": 0, "stage 1": 0, "stage 2": 0, "median length": None}


def test_by_default_matches_are_of_stage_1() -> None:
    result = Matches([[0, 0]], [[1, 1]])
    assert result.stage.tolist() == [1]
    assert result.score.tolist() == [1.0]


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (([[0, 0]], [[0, 0], [1, 1]]), ShapeError, "b: expected 1 points, one for each of a, got 2"),
        (([[0, 0, 1]], [[0, 0, 1]]), ShapeError, r"a: expected points \(n, 2\)"),
        (([[0, np.nan]], [[0, 0]]), InputError, "a: points contain NaN"),
        (([[0, 0]], [[0, 0]], [3]), InputError, "stage: expected 1 or 2, got 3"),
        (([[0, 0]], [[0, 0]], [257]), InputError, "stage: expected finite numbers that int8 holds"),
        (([[0, 0]], [[0, 0]], [1.5]), InputError, "stage: expected finite numbers that int8 holds"),
        (([[0, 0]], [[0, 0]], [1, 1]), ShapeError, r"stage: expected \(1,\), one a match"),
        (([[0, 0]], [[0, 0]], [1], [np.inf]), InputError, "score: expected finite numbers"),
        (([[0, 0]], [[0, 0]], [1], ["high"]), InputError, "score: expected"),
    ],
)
def test_matches_that_cannot_be(given: tuple[object, ...], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Matches(*given)
