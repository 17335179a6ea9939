"""Homography, F, E and pose: exact worlds with outliers, OpenCV as a peer, chance, and what cannot be told."""

from __future__ import annotations

import math

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from likewise.errors import InputError, ShapeError
from likewise.pixels import metrics, robust

Ka = np.array([[500.0, 0, 320], [0, 500, 240], [0, 0, 1]])
Kb = np.array([[600.0, 0, 300], [0, 610, 250], [0, 0, 1]])
H = np.array([[1.1, 0.1, 5], [-0.05, 0.9, 20], [1e-4, 2e-4, 1]])


def world(n: int = 200, wrong: float = 0.4, noise: float = 0.3, seed: int = 0, turn: float = 0.2):
    """Matches of points in space seen by two cameras, some of them wrong; the pose, and which are wrong."""
    rng = np.random.default_rng(seed)
    R, t = Rotation.from_rotvec([0.05, turn, -0.1]).as_matrix(), np.array([1.0, 0.1, 0.2])
    X = rng.uniform([-2, -2, 4], [2, 2, 10], (n, 3))
    a, b = seen(Ka, X), seen(Kb, X @ R.T + t) + rng.normal(0, noise, (n, 2))
    bad = rng.random(n) < wrong
    b[bad] = rng.uniform(0, 600, (int(bad.sum()), 2))
    return a, b, R, t / np.linalg.norm(t), bad


def seen(K: np.ndarray, X: np.ndarray) -> np.ndarray:
    x = X @ K.T
    return x[:, :2] / x[:, 2:]


def plane(n: int = 200, wrong: float = 0.4, noise: float = 0.3, seed: int = 1):
    rng = np.random.default_rng(seed)
    a = rng.uniform(0, 600, (n, 2))
    b = metrics.project(H, a) + rng.normal(0, noise, (n, 2))
    bad = rng.random(n) < wrong
    b[bad] = rng.uniform(0, 600, (int(bad.sum()), 2))
    return a, b, bad


# ------------------------------------------------------------------------------------------------------------- answers


def test_homography_among_outliers() -> None:
    a, b, bad = plane()
    result = robust.homography(a, b)
    assert metrics.corner_error(result.matrix, H, (600, 600)) < 0.5
    assert result.n == result.inliers.sum() == (~bad).sum()
    assert not (result.inliers & bad).any()
    assert np.asarray(result)[2, 2] == 1.0


def test_fundamental_among_outliers() -> None:
    a, b, R, t, bad = world()
    result = robust.fundamental(a, b)
    truth = np.linalg.inv(Kb).T @ np.cross(np.eye(3), -t) @ R @ np.linalg.inv(Ka)
    clean = world(noise=0, wrong=0, seed=5)
    assert np.median(robust.epipolar_errors(truth, clean[0], clean[1])) < 1e-9
    assert np.median(robust.epipolar_errors(result.matrix, clean[0], clean[1])) < 0.3
    assert np.linalg.norm(result.matrix) == pytest.approx(1)
    assert np.linalg.svd(result.matrix)[1][2] < 1e-12
    assert (result.inliers & bad).sum() <= 3
    assert (result.inliers & ~bad).sum() >= 0.95 * (~bad).sum()


def test_geometry_is_a_plane_of_a_plane_and_f_of_space() -> None:
    flat, deep = robust.geometry(*plane()[:2]), robust.geometry(*world()[:2])
    assert flat.kind == "homography"
    assert np.array_equal(flat.inliers, robust.homography(*plane()[:2]).inliers)
    assert deep.kind == "fundamental"
    assert np.array_equal(deep.inliers, robust.fundamental(*world()[:2]).inliers)


@pytest.mark.parametrize(
    ("plane_n", "line_n", "kind"), [(10, 12, "homography"), (10, 13, "fundamental"), (0, 0, "homography")]
)
def test_f_must_find_a_fifth_more(monkeypatch: pytest.MonkeyPatch, plane_n: int, line_n: int, kind: str) -> None:
    def finds(name: str, n: int):
        return lambda a, b, px, *, seed, sizes: robust.Model(name, np.eye(3), np.arange(20) < n)

    monkeypatch.setattr(robust, "homography", finds("homography", plane_n))
    monkeypatch.setattr(robust, "fundamental", finds("fundamental", line_n))
    assert robust.geometry(np.zeros((20, 2)), np.zeros((20, 2))).kind == kind


def test_pose_among_outliers() -> None:
    a, b, R, t, bad = world()
    result = robust.pose(a, b, Ka, Kb)
    rotation, translation = metrics.pose_error(result.R, result.t, R, t, signed=True)
    assert rotation < 0.3
    assert translation < 0.6
    assert np.linalg.norm(result.t) == pytest.approx(1)
    assert np.linalg.det(result.R) == pytest.approx(1)
    assert (result.inliers & ~bad).sum() >= 0.95 * (~bad).sum()


def test_pose_of_exact_matches_is_exact() -> None:
    a, b, R, t, _ = world(wrong=0, noise=0)
    result = robust.pose(a, b, Ka, Kb)
    assert max(metrics.pose_error(result.R, result.t, R, t, signed=True)) < 1e-4
    assert result.n == len(a)


def test_the_polish_earns_its_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    worlds = [world(seed=s) for s in range(4)]

    def errors() -> float:
        poses = [robust.pose(w[0], w[1], Ka, Kb) for w in worlds]
        return float(np.mean([metrics.pose_error(p.R, p.t, *w[2:4])[1] for p, w in zip(poses, worlds, strict=True)]))

    polished = errors()
    monkeypatch.setattr(robust, "_polished", lambda at, n, *rest: np.zeros(n))
    assert polished < 0.7 * errors()


def test_pose_agrees_with_opencv() -> None:
    a, b, *_ = world(wrong=0)
    result = robust.pose(a, b, Ka, Kb)
    x, y = robust.rays(Ka, a)[:, :2].copy(), robust.rays(Kb, b)[:, :2].copy()
    _, R, t, _ = cv2.recoverPose(result.matrix, x, y, np.eye(3))
    assert np.allclose(result.R, R, atol=1e-6)
    assert np.allclose(result.t, t[:, 0], atol=1e-6)


@given(st.integers(0, 10_000))
def test_the_four_readings_of_e_hold_the_pose(seed: int) -> None:
    rng = np.random.default_rng(seed)
    R, t = Rotation.random(random_state=seed).as_matrix(), rng.normal(size=3)
    t /= np.linalg.norm(t)
    readings = robust.decomposed(np.cross(np.eye(3), -t) @ R)
    assert min(np.abs(r - R).max() + np.abs(s - t).max() for r, s in readings) < 1e-6
    X = rng.uniform(-1, 1, (20, 3)) + np.array([0, 0, 5])
    Y = X @ R.T + t
    ahead = robust.in_front(R, t, X / X[:, 2:], Y / Y[:, 2:])
    assert np.array_equal(ahead, Y[:, 2] > 0)


def test_epipolar_errors_by_hand_and_by_loop() -> None:
    F = np.array([[0, 0, 0], [0, 0, -1.0], [0, 1.0, 0]])  # cameras side by side: y stays
    a, b = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[7.0, 2.0], [9.0, 6.5]])
    assert robust.epipolar_errors(F, a, b).tolist() == [0.0, 2.5]
    assert np.allclose(np.abs(robust.sampson_errors(F, a, b)), [0.0, 2.5 / np.sqrt(2)])
    F = np.random.default_rng(0).normal(size=(3, 3))
    for k, error in enumerate(robust.epipolar_errors(F, a, b)):
        x, y = np.append(a[k], 1), np.append(b[k], 1)
        one, two = abs(y @ F @ x) / np.hypot(*(F @ x)[:2]), abs(y @ F @ x) / np.hypot(*(F.T @ y)[:2])
        assert error == pytest.approx(max(one, two))


def test_the_same_matches_give_the_same_answer_whatever_the_global_seed() -> None:
    a, b, *_ = world()
    answers = []
    for seed in (1, 2):
        cv2.setRNGSeed(seed)
        answers.append([robust.homography(a, b).matrix, robust.fundamental(a, b).matrix, robust.pose(a, b, Ka, Kb).R])
    for one, two in zip(*answers, strict=True):
        assert np.array_equal(one, two)


# --------------------------------------------------------------------------------------------------- nothing to tell


@pytest.mark.parametrize("n", range(9))
def test_too_few_matches_say_so(n: int) -> None:
    a, b, *_ = world(wrong=0, noise=0)
    for kind, least, result in (
        ("homography", 4, robust.homography(*(metrics_plane(n)))),
        ("fundamental", 8, robust.fundamental(a[:n], b[:n])),
        ("essential", 5, robust.essential(a[:n], b[:n], Ka, Kb)),
    ):
        assert result.inliers.shape == (n,)
        assert not result, "as many fit whatever they are"
        assert result.n == 0
        if n < least:
            assert result.reason == f"{least} matches at least are needed, got {n}"
        assert f"no {kind}" in repr(result)
    empty = robust.pose(a[:4], b[:4], Ka, Kb)
    assert empty.R is None
    assert empty.t is None
    assert "5 matches" in empty.reason
    assert repr(empty) == "Model(no pose: 5 matches at least are needed, got 4)"


def test_exact_matches_are_believed_from_a_number_on() -> None:
    a, b, *_ = world(wrong=0, noise=0)
    planes = [robust.homography(*metrics_plane(n)) for n in range(4, 30)]
    spaces = [robust.fundamental(a[:n], b[:n]) for n in range(8, 40)]
    for models, least, most in ((planes, 8, 12), (spaces, 16, 30)):
        believed = [len(m.inliers) for m in models if m]
        assert believed == list(range(believed[0], believed[-1] + 1)), "once enough, always enough"
        assert least <= believed[0] <= most
        assert believed[-1] == len(models[-1].inliers)
        assert all(m.log_nfa <= -3 for m in models if m)
    assert "any 4 do" in planes[0].reason
    assert planes[2].reason.startswith("6 of 6 matches fit a homography, no more than chance gives (1 in 1,000 needs ")


def metrics_plane(n: int) -> tuple[np.ndarray, np.ndarray]:
    a, b, _ = plane(wrong=0, noise=0)
    return a[:n], b[:n]


# -------------------------------------------------------------------------------------------------------------- chance


def test_log_nfa_by_hand() -> None:
    for n, k, s, alpha in ((10, 6, 4, 0.01), (300, 25, 7, 0.02), (8, 8, 7, 1.0)):
        by_hand = math.log10((n - s) * math.comb(n, k) * math.comb(k, s)) + (k - s) * math.log10(alpha)
        assert robust._log_nfa(n, np.array(k), s, alpha) == pytest.approx(by_hand)
    areas = np.array([[480.0, 240.0], [640.0, 320.0]])  # heights, widths; chance is largest in the smaller image
    assert robust._share("homography", 3.0, areas) == pytest.approx(np.pi * 9 / (240 * 320))
    assert robust._share("fundamental", 1.0, areas) == pytest.approx(2 * 400 / (240 * 320))


def test_evidence_by_hand() -> None:
    grid = np.stack(np.meshgrid(96.0 * np.arange(5), 48.0 * np.arange(3)), axis=-1).reshape(-1, 2)
    a = np.concatenate([grid, grid + 5.0, [[900.0, 900.0]]])  # two a cell of 16 px, and one that is no inlier
    inliers = np.arange(31) < 30
    cells, spread = robust._evidence("homography", inliers, (a, 2 * a), 3.0)
    sides = np.sqrt(np.linalg.eigvalsh(np.cov(a[:30].T)))
    assert cells == 15
    assert spread == pytest.approx(np.log10(0.1 * sides).sum())
    assert robust._evidence("fundamental", inliers, (a, 2 * a), 3.0)[1] == pytest.approx(np.log10(0.1 * sides[0]))
    line = np.column_stack([np.arange(30.0), np.zeros(30)])
    assert robust._evidence("fundamental", inliers[:30], (a[:30], line), 3.0)[1] == 0.0


def test_random_matches_have_no_geometry() -> None:
    """Of 2,000 draws none had one."""
    for seed in range(100):
        rng = np.random.default_rng(seed)
        a, b = rng.uniform(0, [640, 480], (2, (10, 25, 60, 150)[seed % 4], 2))
        H, F = robust.homography(a, b), robust.fundamental(a, b)
        assert not H
        assert not F
        assert H.n == F.n == 0
        assert H.reason
        assert F.reason


@pytest.mark.parametrize("scale", [0.25, 4.0])
def test_evidence_does_not_depend_on_the_unit(scale: float) -> None:
    a, b, _ = plane()
    one = robust.homography(a, b, 3.0, sizes=((600, 600), (700, 700)))
    sides = round(600 * scale), round(700 * scale)
    two = robust.homography(scale * a, scale * b, 3.0 * scale, sizes=((sides[0],) * 2, (sides[1],) * 2))
    assert np.array_equal(one.inliers, two.inliers)
    assert one.log_nfa == pytest.approx(two.log_nfa, rel=1e-3)


def test_matches_that_move_together_on_one_spot_or_line_are_chance() -> None:
    """As a matcher gives for a tree or a horizon: 60 matches that agree to 3 px, but only there."""
    rng = np.random.default_rng(0)
    spot = rng.normal(0, 8, (60, 2)) + 200
    line = np.column_stack([rng.uniform(0, 600, 60), 300 + rng.normal(0, 2, 60)])
    for a in (spot, line):
        clutter, elsewhere = rng.uniform(0, 600, (2, 40, 2))
        b = 1.3 * a + rng.normal(0, 1, (60, 2))
        result = robust.homography(np.concatenate([a, clutter]), np.concatenate([b, elsewhere]))
        assert not result
        assert result.n == 0
        assert "chance" in result.reason
        assert result.log_nfa > -3
        wide = 100 * (a - a.mean(axis=0)) / a.std(axis=0)
        assert robust.homography(wide, 1.3 * wide), "the same, spread over the image"


def test_repeated_matches_count_once() -> None:
    a, b = metrics_plane(5)
    assert not robust.homography(np.tile(a, (20, 1)), np.tile(b, (20, 1)))


def test_a_plane_does_not_determine_f() -> None:
    a, b, _ = plane()
    result = robust.fundamental(a, b)
    assert not result
    assert "one plane" in result.reason
    turned = metrics.project(Kb @ Rotation.from_rotvec([0.02, 0.1, 0.05]).as_matrix() @ np.linalg.inv(Ka), a)
    result = robust.pose(a, turned + np.random.default_rng(0).normal(0, 0.3, a.shape), Ka, Kb)
    assert not result
    assert "only turned" in result.reason


def test_inlier_models_are_several_planes() -> None:
    rng = np.random.default_rng(0)
    a = rng.uniform(0, 600, (230, 2))
    b = rng.uniform(0, 600, (230, 2))  # 30 are wrong
    left, right = (a[:, 0] < 300) & (np.arange(230) < 200), (a[:, 0] >= 300) & (np.arange(230) < 200)
    b[left], b[right] = metrics.project(H, a[left]), a[right] * 0.7 + [90, 40]
    models = robust.inlier_models(a, b)
    assert len(models) == 2
    assert sum(m.inliers.astype(int) for m in models).max() == 1, "no match counts twice"
    for truth in (left, right):
        assert max((m.inliers & truth).sum() / (m.inliers | truth).sum() for m in models) > 0.95
    assert len(robust.inlier_models(a, b, most=1)) == 1
    assert robust.inlier_models(np.empty((0, 2)), np.empty((0, 2))) == []


def test_degenerate_matches_are_told_not_raised() -> None:
    line = np.column_stack([np.arange(20.0), 2 * np.arange(20.0)])
    rng = np.random.default_rng(0)
    for a, b, why in (
        (line, rng.uniform(0, 9, (20, 2)), "one line"),
        (rng.uniform(0, 9, (20, 2)), line, "one line"),
        (np.zeros((20, 2)), line, "distinct"),
        (np.repeat(rng.uniform(0, 9, (2, 2)), 10, axis=0), rng.uniform(0, 9, (20, 2)), "distinct"),
    ):
        for result in (robust.homography(a, b), robust.fundamental(a, b), robust.pose(a, b, Ka, Kb)):
            assert why in result.reason
            assert result.n == 0
    with pytest.raises(InputError, match="there is none"):
        np.asarray(robust.homography(line, line))


@settings(max_examples=15)
@given(st.integers(0, 200), st.integers(0, 40))
def test_nonsense_never_raises(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = np.rint(rng.uniform(0, 9, (n, 2))), np.rint(rng.uniform(0, 9, (n, 2)))
    for result in (robust.homography(a, b), robust.fundamental(a, b), robust.essential(a, b, Ka, Kb)):
        assert (result.matrix is None) == bool(result.reason)
        assert result.matrix is None or np.isfinite(result.matrix).all()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda a, b: robust.homography(a, b[:-1]), ShapeError, "a, b: expected points"),
        (lambda a, b: robust.fundamental(a, b, px=0), InputError, "px: expected"),
        (lambda a, b: robust.homography(a, b, sizes=((0, 5), (5, 5))), InputError, "sizes: expected"),
        (lambda a, b: robust.geometry(a, b, sizes=(5, 5)), InputError, "sizes: expected"),
        (lambda a, b: robust.pose(a, b, Ka, Kb, sizes="big"), InputError, "sizes: expected"),
        (lambda a, b: robust.pose(a, b, np.eye(2), Kb), ShapeError, "Ka: expected"),
        (lambda a, b: robust.pose(a, b, Ka, -Kb), InputError, "Kb: expected"),
    ],
)
def test_refusals(call, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call(*world()[:2])
