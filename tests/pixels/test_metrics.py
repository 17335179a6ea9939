"""The measures of the level: cases by hand, naive loops, OpenCV beside ours, and what must hold for any input."""

from __future__ import annotations

import math

import cv2
import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from likewise.errors import InputError, ShapeError
from likewise.pixels import metrics
from likewise.types import Flow, Matches

Floats = NDArray[np.float64]

FIELDS = arrays.arrays(np.float64, (3, 4, 2), elements=st.floats(-50, 50))
MASKS = arrays.arrays(np.bool_, (3, 4))
ANGLES = st.floats(0, 180)
ERRORS = st.lists(st.floats(0, 100) | st.just(math.inf), min_size=1, max_size=30)
VECTORS = arrays.arrays(np.float64, 3, elements=st.floats(-5, 5)).filter(lambda v: float(np.linalg.norm(v)) > 1e-3)


def rotation(axis: Floats, degrees: float) -> Floats:
    turned: Floats = Rotation.from_rotvec(np.radians(degrees) * axis / np.linalg.norm(axis)).as_matrix()
    return turned


# ---------------------------------------------------------------------------------------------------------------- flow


def test_errors_of_a_flow_by_hand() -> None:
    truth = np.array([[[0.0, 0.0], [100.0, 0.0], [10.0, 0.0], [5.0, 5.0]]])
    flow = truth + np.array([[[3.0, 4.0], [0.0, 4.0], [0.0, 4.0], [1.0, 0.0]]])
    np.testing.assert_array_equal(metrics.endpoint_error(flow, truth), [[5, 4, 4, 1]])
    assert metrics.aepe(flow, truth) == 3.5
    assert metrics.accuracy(flow, truth) == {1: 0.25, 3: 0.25, 5: 1.0}
    assert metrics.fl(flow, truth) == 0.5  # 4 px of 100 is below 5 %, 1 px is below 3
    valid = np.array([[True, True, False, False]])
    assert metrics.aepe(flow, truth, valid) == 4.5
    assert metrics.aepe(flow, Flow(truth, valid)) == 4.5
    assert metrics.aepe(flow, Flow(truth, valid), valid & [[True, False, True, True]]) == 5.0
    assert metrics.fl(flow, truth, valid) == 0.5


def test_exactly_three_pixels_are_no_outlier_and_exactly_one_is_accurate() -> None:
    truth = np.zeros((1, 2, 2))
    flow = np.array([[[3.0, 0.0], [0.0, 1.0]]])
    assert metrics.fl(flow, truth) == 0.0
    assert metrics.accuracy(flow, truth, px=(1, 3)) == {1: 0.5, 3: 1.0}


@given(flow=FIELDS, truth=FIELDS, valid=MASKS)
def test_flow_measures_are_naive_loops(flow: Floats, truth: Floats, valid: NDArray[np.bool_]) -> None:
    assume(valid.any())
    errors, outliers = [], 0
    for y in range(3):
        for x in range(4):
            if valid[y, x]:
                e = math.dist(flow[y, x], truth[y, x])
                errors.append(e)
                outliers += e > 3 and e > 0.05 * math.hypot(*truth[y, x])
    assert metrics.aepe(flow, truth, valid) == pytest.approx(sum(errors) / len(errors))
    assert metrics.fl(flow, truth, valid) == pytest.approx(outliers / len(errors))
    result = metrics.accuracy(flow, truth, valid, px=(1, 5))
    assert result[1] <= result[5]
    assert result[5] == pytest.approx(sum(e <= 5 for e in errors) / len(errors), abs=1e-9)


def test_tensors_are_taken_and_a_broken_flow_is_infinitely_wrong() -> None:
    truth = torch.zeros(2, 2, 2)
    flow = torch.zeros(2, 2, 2, requires_grad=True)
    assert metrics.aepe(flow, truth, torch.ones(2, 2, dtype=torch.bool)) == 0
    assert metrics.aepe(torch.full((2, 2, 2), math.nan), truth) == math.inf
    assert metrics.accuracy(torch.full((2, 2, 2), math.nan), truth) == {1: 0.0, 3: 0.0, 5: 0.0}


# ------------------------------------------------------------------------------------------------------ sparse points


@given(FIELDS, arrays.arrays(np.float64, (5, 2), elements=st.integers(-64, 160).map(lambda n: n / 32)))
def test_a_flow_between_its_pixels_is_opencvs(flow: Floats, points: Floats) -> None:
    """In steps of 1/32 px, which are those of OpenCV's tables."""
    x, y = points[:, :1].astype(np.float32), points[:, 1:].astype(np.float32)
    theirs = cv2.remap(flow.astype(np.float32), x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    np.testing.assert_allclose(metrics.at(flow, points), theirs[:, 0], atol=1e-3)


def test_sparse_accuracy_by_hand() -> None:
    flow = np.full((10, 10, 2), (2.0, 0.0))
    a = [[1, 1], [2, 2], [3, 3], [4, 4]]
    b = [[3, 1], [4, 5], [5, 7], [16, 4]]  # off by 0, 3, 4, 10
    np.testing.assert_allclose(metrics.sparse_errors(flow, a, b), [0, 3, 4, 10])
    assert metrics.sparse_accuracy(flow, a, b) == {1: 0.25, 3: 0.5, 5: 0.75}


# ------------------------------------------------------------------------------------------- matches and homographies

H = np.array([[1.1, 0.05, 4.0], [-0.03, 0.95, -2.0], [1e-4, -2e-4, 1.0]])


def test_matching_accuracy_by_hand() -> None:
    shift = np.array([[1.0, 0, 10], [0, 1, 0], [0, 0, 1]])
    result = Matches([[0, 0], [1, 0], [2, 0], [3, 0]], [[10, 0], [11, 1.5], [12, 4], [0, 0]], [1, 1, 2, 2])
    np.testing.assert_allclose(metrics.match_errors(result, shift), [0, 1.5, 4, 13])
    assert metrics.mma(result, shift, (1, 3, 5)) == {1: 0.25, 3: 0.5, 5: 0.75}
    assert metrics.mma(result, shift, (1, 3), stage=1) == {1: 0.5, 3: 1.0}
    assert tuple(metrics.mma(result, shift)) == tuple(range(1, 11))
    assert metrics.mma(Matches([], []), shift, (3,)) == {3: 0.0}


@given(arrays.arrays(np.float64, (6, 2), elements=st.floats(0, 500)), st.floats(-3, 3).filter(lambda s: abs(s) > 0.1))
def test_points_go_where_opencv_sends_them_whatever_the_scale_of_h(points: Floats, scale: float) -> None:
    theirs = cv2.perspectiveTransform(points[None], H)[0]
    np.testing.assert_allclose(metrics.project(scale * H, points), theirs, rtol=1e-9, atol=1e-9)


def test_points_behind_the_camera_are_infinitely_wrong() -> None:
    turned = np.array([[1.0, 0, 0], [0, 1, 0], [-0.01, 0, 1]])  # x = 100 goes to infinity, x = 200 behind
    result = Matches([[0, 0], [100, 0], [200, 0]], [[0, 0], [0, 0], [-200, 0]])
    np.testing.assert_array_equal(metrics.match_errors(result, turned), [0, np.inf, np.inf])


def test_corner_error_by_hand() -> None:
    shift = np.array([[1.0, 0, 3], [0, 1, 4], [0, 0, 1]])
    assert metrics.corner_error(shift, np.eye(3), (10, 20)) == pytest.approx(5.0)
    scale = np.diag([2.0, 2.0, 1.0])  # corners (19, 9), (19, 0), (0, 9), (0, 0) move by their own length
    assert metrics.corner_error(scale, np.eye(3), (10, 20)) == pytest.approx((math.hypot(19, 9) + 19 + 9) / 4)
    assert metrics.corner_error(-2 * shift, np.eye(3), (10, 20)) == pytest.approx(5.0)
    assert metrics.corner_error(None, np.eye(3), (10, 20)) == math.inf
    assert metrics.corner_error(np.array([[1.0, 0, 0], [0, 1, 0], [-1, 0, 1]]), np.eye(3), (10, 20)) == math.inf


# --------------------------------------------------------------------------------------------------------------- poses


@given(VECTORS, ANGLES, VECTORS, ANGLES)
def test_the_angle_between_rotations(axis: Floats, degrees: float, other: Floats, turn: float) -> None:
    R, Q = rotation(axis, degrees), rotation(other, turn)
    assert metrics.rotation_angle(R) == pytest.approx(degrees, abs=1e-5)
    assert metrics.rotation_angle(R, R) == 0
    theirs = math.degrees(Rotation.from_matrix(R.T @ Q).magnitude())
    assert metrics.rotation_angle(R, Q) == pytest.approx(theirs, abs=1e-5)
    assert metrics.rotation_angle(Q @ R, Q) == pytest.approx(degrees, abs=1e-5)


@given(VECTORS, VECTORS, st.floats(0.01, 100), st.sampled_from([-1.0, 1.0]))
def test_the_angle_between_directions(one: Floats, two: Floats, length: float, sign: float) -> None:
    cosine = one @ two / np.linalg.norm(one) / np.linalg.norm(two)
    signed = metrics.direction_angle(length * one, two, signed=True)
    assert signed == pytest.approx(math.degrees(math.acos(np.clip(cosine, -1, 1))), abs=1e-5)
    unsigned = metrics.direction_angle(sign * length * one, two)
    assert unsigned == pytest.approx(min(signed, 180 - signed), abs=1e-9)
    assert 0 <= unsigned <= 90 + 1e-9
    assert metrics.direction_angle(sign * length * two, two) == pytest.approx(0, abs=1e-5)


def test_pose_errors_by_hand() -> None:
    R = rotation(np.array([0, 0, 1.0]), 30)
    assert metrics.pose_error(R, [0, -2, 0], np.eye(3), [0, 1, 0]) == pytest.approx((30, 0), abs=1e-9)
    assert metrics.pose_error(R, [0, -2, 0], np.eye(3), [0, 1, 0], signed=True) == pytest.approx((30, 180))
    assert metrics.pose_error(R, [1, 1, 0], R, [1, 0, 0]) == pytest.approx((0, 45))
    assert metrics.pose_error(None, None, R, [1, 0, 0]) == (math.inf, math.inf)
    assert metrics.direction_angle([1, 0, 0], [0, 0, 0]) == 0
    assert metrics.direction_angle([0, 0, 0], [1, 0, 0]) == 90
    assert metrics.direction_angle([0, 0, 0], [1, 0, 0], signed=True) == 180


def test_pose_accuracy_by_hand() -> None:
    rotation_errors, translation_errors = [1, 11, 10, math.inf, 2], [5, 5, 30, math.inf, 1]
    result = metrics.pose_accuracy(rotation_errors, translation_errors, [0, 15, 20, 40, 80])
    assert result["0–15"] == {"rotation": 0.5, "translation": 1.0, "n": 2}
    assert result["15–30"] == {"rotation": 1.0, "translation": 0.0, "n": 1}
    assert result["30–60"] == {"rotation": 0.0, "translation": 0.0, "n": 1}
    assert result["all"] == {"rotation": 0.6, "translation": 0.6, "n": 5}
    assert set(metrics.pose_accuracy([1], [1], [20])) == {"all", "15–30"}


@given(st.lists(st.tuples(ANGLES, ANGLES, st.floats(0, 60)), min_size=1, max_size=20))
def test_every_pair_is_in_one_bin(pairs: list[tuple[float, float, float]]) -> None:
    result = metrics.pose_accuracy(*map(list, zip(*pairs, strict=True)))
    assert sum(v["n"] for k, v in result.items() if k != "all") == len(pairs) == result["all"]["n"]
    for which, column in (("rotation", 0), ("translation", 1)):
        right = sum(p[column] <= 10 for p in pairs)
        assert result["all"][which] == pytest.approx(right / len(pairs))
        assert sum(v[which] * v["n"] for k, v in result.items() if k != "all") == pytest.approx(right)


def test_area_by_hand() -> None:
    assert metrics.auc([0.0, 0.0]) == {5.0: 1.0, 10.0: 1.0, 20.0: 1.0}
    assert metrics.auc([math.inf]) == {5.0: 0.0, 10.0: 0.0, 20.0: 0.0}
    assert metrics.auc([10.0], (20,)) == {20: pytest.approx(0.75)}  # up to 1 at 10, then level
    assert metrics.auc([5.0, 10.0], (5, 10)) == {5: pytest.approx(0.0), 10: pytest.approx((1.25 + 2.5) / 10)}


@given(ERRORS, st.floats(1, 50))
def test_area_is_a_fine_sum_under_the_curve(errors: list[float], threshold: float) -> None:
    below = sorted(e for e in errors if e < threshold)
    xs = [0.0, *below, threshold]
    ys = [i / len(errors) for i in [*range(len(below) + 1), len(below)]]
    area = 0.0
    for k in range(len(xs) - 1):
        area += (xs[k + 1] - xs[k]) * (ys[k] + ys[k + 1]) / 2
    result = metrics.auc(errors, (threshold,))[threshold]
    assert result == pytest.approx(area / threshold, abs=1e-12)
    assert 0 <= result <= 1 + 1e-12
    assert metrics.auc(errors[::-1], (threshold,))[threshold] == result
    assert metrics.auc([e / 2 for e in errors], (threshold,))[threshold] >= result - 1e-9


def test_localisation_by_hand() -> None:
    R = rotation(np.array([0, 1.0, 0]), 3)
    centre = np.array([1.0, 2.0, 3.0])
    moved = centre + np.array([0.3, 0.0, 0.0])
    distance, angle = metrics.camera_error(R, -R @ moved, np.eye(3), -centre)
    assert (distance, angle) == pytest.approx((0.3, 3.0))
    assert metrics.camera_error(None, None, R, centre) == (math.inf, math.inf)


ZERO = np.zeros((2, 3, 2))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: metrics.aepe(np.zeros((3, 2, 2)), ZERO), ShapeError, r"flow: expected vectors of the truth's shape"),
        (lambda: metrics.aepe(ZERO, ZERO, np.zeros((2, 3), bool)), InputError, "valid: the truth is known at no pixel"),
        (lambda: metrics.fl(ZERO, ZERO, np.ones((2, 3))), ShapeError, r"valid: expected booleans \(2, 3\)"),
        (lambda: metrics.accuracy(ZERO, ZERO, px=()), InputError, "px: expected numbers ≥ 0, one at least"),
        (lambda: metrics.aepe("zero", ZERO), InputError, "flow: expected numbers"),
        (lambda: metrics.sparse_accuracy(ZERO, np.zeros((4, 2)), np.zeros((3, 2))), ShapeError, "b: expected 4 points"),
        (lambda: metrics.corner_error(np.eye(2), np.eye(3), (10, 20)), ShapeError, "homography: expected a finite"),
        (lambda: metrics.pose_error(np.eye(3), [1, 0], np.eye(3), [1, 0, 0]), ShapeError, "t: expected a finite"),
        (lambda: metrics.pose_accuracy([1], [1], [20, 30]), ShapeError, "angles: expected one a pair"),
        (lambda: metrics.auc([]), InputError, "errors: expected one a pair, got none"),
        (lambda: metrics.auc([math.nan]), InputError, "errors: expected numbers ≥ 0"),
    ],
)
def test_refusals(call, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
