"""The measures of flow, matches and poses, as the papers and benchmarks define them.

A point counts as right where its error is at most the threshold. Shares are in [0, 1], errors in pixels or degrees.
Arrays and tensors of any device are taken; sums are in float64. A failure (no homography, no pose, no match) is an
infinite error or a share of 0, never left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from likewise.errors import InputError, ShapeError
from likewise.pixels.geometry import carried
from likewise.types import Flow, Matches

Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]

PX = (1, 3, 5)
"""The thresholds of Acc@px and of sparse accuracy."""
MMA_PX = tuple(range(1, 11))
"""The thresholds of mean matching accuracy."""
POSE_BINS = (0.0, 15.0, 30.0, 60.0)
"""Degrees between the bins of true rotation: easy, moderate, hard."""
AUC_DEGREES = (5.0, 10.0, 20.0)


# ---------------------------------------------------------------------------------------------------------------- flow


def endpoint_error(flow: Any, truth: Any) -> Floats:
    """‖flow − truth‖ of each vector, in pixels: (…, 2) and (…, 2) give (…)."""
    f, t = _numbers("flow", flow), _numbers("truth", truth)
    if f.shape != t.shape or f.shape[-1:] != (2,):
        raise ShapeError(f"flow: expected vectors of the truth's shape {t.shape}, x then y, got shape {f.shape}")
    return np.asarray(np.hypot(f[..., 0] - t[..., 0], f[..., 1] - t[..., 1]))


def aepe(flow: Any, truth: Any, valid: Any = None) -> float:
    """AEPE, the mean endpoint error over the pixels whose truth is known."""
    return float(_errors(flow, truth, valid).mean())


def accuracy(flow: Any, truth: Any, valid: Any = None, *, px: Iterable[float] = PX) -> dict[float, float]:
    """Acc@px, the share of known pixels whose endpoint error is at most px, for each px."""
    return shares(_errors(flow, truth, valid), px)


def fl(flow: Any, truth: Any, valid: Any = None) -> float:
    """Fl (KITTI's F1), the share of known pixels off by more than 3 px and by more than 5 % of the true length."""
    known = _known(truth, valid)
    lengths = np.linalg.norm(_numbers("truth", truth), axis=-1)[known]
    errors = _errors(flow, truth, valid)
    return float(((errors > 3.0) & (errors > 0.05 * lengths)).mean())


def shares(errors: Any, px: Iterable[float]) -> dict[float, float]:
    """The share of errors (n,) that are at most px, for each px; 0 where there is none."""
    values = _numbers("errors", errors).ravel()
    return {p: float((values <= p).mean()) if len(values) else 0.0 for p in _thresholds("px", px)}


def _errors(flow: Any, truth: Any, valid: Any) -> Floats:
    """The endpoint errors of the known pixels; a vector that is not finite is infinitely wrong."""
    known = _known(truth, valid)
    errors = endpoint_error(flow, truth)[known]
    if errors.size == 0:
        raise InputError("valid: the truth is known at no pixel; give one at least")
    return np.where(np.isnan(errors), np.inf, errors)


def _known(truth: Any, valid: Any) -> Mask:
    own = getattr(truth, "valid", None)
    size = _numbers("truth", truth).shape[:-1]
    known = np.ones(size, dtype=bool) if own is None else np.asarray(own)
    if valid is None:
        return known
    given = plain(valid)
    if given.shape != size or given.dtype != np.bool_:
        raise ShapeError(f"valid: expected booleans {size}, one a vector, got {given.dtype} of shape {given.shape}")
    return np.asarray(known & given)


# ------------------------------------------------------------------------------------------------------ sparse points


def sparse_errors(flow: Any, a: Any, b: Any) -> Floats:
    """‖a + flow(a) − b‖ of known matches a ↔ b (n, 2), the flow read between its pixels; outside, at its border."""
    left, right = _points("a", a), _points("b", b)
    if len(left) != len(right):
        raise ShapeError(f"b: expected {len(left)} points, one for each of a, got {len(right)}")
    ends = left + at(flow, left)
    return np.asarray(np.linalg.norm(ends - right, axis=1))


def sparse_accuracy(flow: Any, a: Any, b: Any, *, px: Iterable[float] = PX) -> dict[float, float]:
    """The share of known matches a ↔ b that the flow brings to within px of b, for each px."""
    return shares(sparse_errors(flow, a, b), px)


def at(flow: Any, points: Any) -> Floats:
    """The flow (h, w, 2) at points (n, 2), bilinear; a point outside takes the value of the nearest border."""
    f, p = _numbers("flow", flow), _points("points", points)
    if f.ndim != 3 or f.shape[2] != 2:
        raise ShapeError(f"flow: expected (h, w, 2), got shape {f.shape}")
    return carried(torch.from_numpy(f), torch.from_numpy(p)[None])[0].numpy()


# ------------------------------------------------------------------------------------------- matches and homographies


def match_errors(matches: Matches, homography: Any) -> Floats:
    """‖H(a) − b‖ of each match under the true homography; infinite where a goes to infinity or behind the camera."""
    there = project(homography, matches.a)
    errors = np.linalg.norm(there - matches.b, axis=1)
    return np.where(np.isnan(errors), np.inf, errors)


def mma(
    matches: Matches, homography: Any, thresholds: Iterable[float] = MMA_PX, *, stage: int | None = None
) -> dict[float, float]:
    """Matching accuracy of a pair: the share of matches within each threshold of the true homography.

    MMA is its mean over pairs, each of the same weight; a pair without a match counts as 0 (D2-Net's protocol). With
    `stage`, only the matches that it found count [LIFE Fig. 6: stage 1 alone].
    """
    counted = matches if stage is None else matches.of_stage(stage)
    return shares(match_errors(counted, homography), thresholds)


def project(homography: Any, points: Any) -> Floats:
    """H(points) (n, 2); NaN where the third coordinate is not positive (H is scaled so that its last entry is 1)."""
    H, p = matrix("homography", homography), _points("points", points)
    mapped = np.column_stack([p, np.ones(len(p))]) @ H.T
    depth = mapped[:, 2:] * (np.sign(H[2, 2]) or 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(depth > 0, mapped[:, :2] / mapped[:, 2:], np.nan)


def corner_error(homography: Any, truth: Any, size: tuple[int, int]) -> float:
    """The mean distance in pixels of the four corners of an (h, w) image under both homographies (SuperPoint's).

    Infinite where there is no homography (None), or where it sends a corner to infinity.
    """
    if homography is None:
        return float("inf")
    h, w = size
    corners = np.array([[0, 0], [w - 1, 0], [0, h - 1], [w - 1, h - 1]], dtype=np.float64)
    apart = np.linalg.norm(project(homography, corners) - project(truth, corners), axis=1)
    return float(apart.mean()) if np.isfinite(apart).all() else float("inf")


# --------------------------------------------------------------------------------------------------------------- poses


def rotation_angle(R: Any, R_true: Any = None) -> float:
    """The angle in degrees between two rotations, 2 arcsin(‖R − R_true‖_F / √8); of one alone, between it and none."""
    one = matrix("R", R)
    two = np.eye(3) if R_true is None else matrix("R_true", R_true)
    return float(np.degrees(2 * np.arcsin(min(1.0, np.linalg.norm(one - two) / np.sqrt(8)))))


def direction_angle(t: Any, t_true: Any, *, signed: bool = False) -> float:
    """The angle in degrees between two directions of translation.

    Two views say nothing of the sign of t, so the smaller of θ and 180° − θ is taken, as the field does, unless
    `signed`. Without a true translation nothing can be wrong (0°); where only the estimate has none, it is as wrong as
    can be.
    """
    one, two = _vector("t", t), _vector("t_true", t_true)
    lengths = float(np.linalg.norm(one)), float(np.linalg.norm(two))
    if lengths[1] == 0:
        return 0.0
    if lengths[0] == 0:
        return 180.0 if signed else 90.0
    one, two = one / lengths[0], two / lengths[1]
    angle = float(np.degrees(2 * np.arctan2(np.linalg.norm(one - two), np.linalg.norm(one + two))))
    return angle if signed else min(angle, 180.0 - angle)


def pose_error(R: Any, t: Any, R_true: Any, t_true: Any, *, signed: bool = False) -> tuple[float, float]:
    """Rotation and translation direction of a relative pose against the truth, in degrees.

    Where no pose was found (R or t is None) both are infinite.
    """
    if R is None or t is None:
        return float("inf"), float("inf")
    return rotation_angle(R, R_true), direction_angle(t, t_true, signed=signed)


def pose_accuracy(
    rotation: Any, translation: Any, angles: Any, *, degrees: float = 10.0, bins: Sequence[float] = POSE_BINS
) -> dict[str, dict[str, float]]:
    """The shares of pairs with rotation, and with translation, right to `degrees`, in bins of the true angle.

    Keys are "0–15", "15–30" …, and "all" for every pair, those outside of the bins, too. A bin holds its upper end,
    the first also its lower one; one without pairs is left out.
    """
    errors = np.stack([_numbers("rotation", rotation), _numbers("translation", translation)])
    true = _numbers("angles", angles)
    if errors.ndim != 2 or errors.shape[1:] != true.shape or not true.size:
        raise ShapeError(f"angles: expected one a pair, {errors.shape[1:]}, got shape {true.shape}")
    edges = _thresholds("bins", bins)
    members = {"all": np.ones(len(true), dtype=bool)}
    for low, high in itertools.pairwise(edges):
        members[f"{low:g}–{high:g}"] = (true <= high) & ((true > low) | ((true == low) & (low == edges[0])))
    right = {name: (errors[:, m] <= degrees).mean(axis=1).tolist() for name, m in members.items() if m.any()}
    return {name: {"rotation": r, "translation": t, "n": int(members[name].sum())} for name, (r, t) in right.items()}


def auc(errors: Any, thresholds: Iterable[float] = AUC_DEGREES) -> dict[float, float]:
    """The area under the curve of recall over error up to each threshold, over the threshold.

    The curve joins (0, 0) and (e_i, i / n), e sorted, by straight lines and stays level after the last e_i below the
    threshold (SuperGlue's). A pose's error is the larger of its two angles.
    """
    e = np.sort(_numbers("errors", errors).ravel())
    if not len(e):
        raise InputError("errors: expected one a pair, got none")
    if np.isnan(e).any() or (e < 0).any():
        raise InputError("errors: expected numbers ≥ 0, infinite where nothing was found; got NaN or less")
    return {t: _area(e, t) for t in _thresholds("thresholds", thresholds)}


def _area(e: Floats, threshold: float) -> float:
    below = int(np.searchsorted(e, threshold))
    x = np.concatenate([[0.0], e[:below], [threshold]])
    y = np.concatenate([np.arange(below + 1), [below]]) / len(e)
    return float(((y[1:] + y[:-1]) / 2 * np.diff(x)).sum() / threshold)


def camera_error(R: Any, t: Any, R_true: Any, t_true: Any) -> tuple[float, float]:
    """Distance of the camera's centre −Rᵀt from the true one, in the map's units, and the rotation's angle in degrees.

    R, t bring points of the map into the camera. Where no pose was found both are infinite.
    """
    if R is None or t is None:
        return float("inf"), float("inf")
    centre = -matrix("R", R).T @ _vector("t", t)
    true = -matrix("R_true", R_true).T @ _vector("t_true", t_true)
    return float(np.linalg.norm(centre - true)), rotation_angle(R, R_true)


# -------------------------------------------------------------------------------------------------------------- pieces


def plain(values: Any) -> NDArray[Any]:
    """An array, a Flow, or a tensor of any device, as a NumPy array."""
    return np.asarray(values.detach().cpu().numpy() if hasattr(values, "detach") else values)


def _numbers(argument: str, values: Any) -> Floats:
    array = plain(values.vectors if isinstance(values, Flow) else values)
    if array.dtype.kind not in "fiu":
        raise InputError(f"{argument}: expected numbers, got {array.dtype}")
    return array.astype(np.float64)


def _points(argument: str, values: Any) -> Floats:
    points = _numbers(argument, values)
    if points.size == 0:
        points = points.reshape(0, 2)
    if points.ndim != 2 or points.shape[1] != 2:
        raise ShapeError(f"{argument}: expected points (n, 2), x then y, got shape {points.shape}")
    return points


def matrix(argument: str, values: Any) -> Floats:
    matrix = _numbers(argument, values)
    if matrix.shape != (3, 3) or not np.isfinite(matrix).all():
        raise ShapeError(f"{argument}: expected a finite matrix (3, 3), got shape {matrix.shape}")
    return matrix


def _vector(argument: str, values: Any) -> Floats:
    vector = _numbers(argument, values).ravel()
    if vector.shape != (3,) or not np.isfinite(vector).all():
        raise ShapeError(f"{argument}: expected a finite vector (3,), got {vector}")
    return vector


def _thresholds(argument: str, values: Iterable[float]) -> tuple[float, ...]:
    """Numbers ≥ 0 as they are, so that what is asked for by 3 is found under 3."""
    wanted = tuple(values)
    if not wanted or not all(isinstance(v, int | float | np.number) and v >= 0 for v in wanted):
        raise InputError(f"{argument}: expected numbers ≥ 0, one at least, got {wanted}")
    return wanted
