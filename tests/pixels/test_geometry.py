"""Two views: projections of random points, OpenCV and loops as oracles; resampling and resizing round trips."""

from __future__ import annotations

import math

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import map_coordinates
from torch import Tensor
from torch.autograd import gradcheck

from likewise.errors import InputError, ShapeError
from likewise.pixels import geometry as g

seeds = st.integers(0, 2**31 - 1)
sides = st.integers(3, 40)


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=source(seed), dtype=torch.float64)


def rotation(v: Tensor) -> Tensor:
    """The rotation about v by ‖v‖ radians."""
    return torch.linalg.matrix_exp(g.skew(v))


def views(seed: int, n: int = 30) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
    """n points of space seen in two (240, 320) images, and the cameras (Ka, Kb, R, t)."""
    X = noise(n, 3, seed=seed) * torch.tensor([4.0, 3.0, 4.0]).double() + torch.tensor([-2.0, -1.5, 4.0]).double()
    u = 2 * noise(8, seed=seed + 1) - 1
    R, t = rotation(0.3 * u[:3]), u[3:6] + torch.tensor([0.5, 0.0, 0.0]).double()
    Ka = torch.tensor([[300.0, 0, 160], [0, 310, 120], [0, 0, 1]]).double()
    Kb = Ka + torch.tensor([[20.0, 0, 5], [0, 20, -3], [0, 0, 0]]).double() * u[6]
    return project(Ka, X), project(Kb, X @ R.T + t), (Ka, Kb, R, t)


def project(K: Tensor, X: Tensor) -> Tensor:
    q = X @ K.T
    return q[:, :2] / q[:, 2:]


def some_homography(seed: int) -> Tensor:
    """Near the identity, its horizon far outside of a frame of 40 px."""
    u = 2 * noise(8, seed=seed) - 1
    H = torch.eye(3).double()
    H[:2, :2] += 0.3 * u[:4].reshape(2, 2)
    H[:2, 2], H[2, :2] = 8 * u[4:6], 4e-3 * u[6:8]
    return H


# ---------------------------------------------------------------------------------------------------------- resampling


def test_the_grid_is_x_then_y() -> None:
    assert g.grid(2, 3).tolist() == [[[0, 0], [1, 0], [2, 0]], [[0, 1], [1, 1], [2, 1]]]
    assert g.grid(2, 3, like=torch.zeros(1, dtype=torch.float64)).dtype == torch.float64
    assert g.grid(2, 3, like=torch.zeros(1, dtype=torch.uint8)).dtype == torch.float32


def test_sample_by_hand() -> None:
    image = torch.tensor([[[[0.0, 10.0], [20.0, 30.0]]]], dtype=torch.float64)
    points = torch.tensor([[[[0.0, 0.0], [0.5, 0.0], [0.5, 0.5], [1.0, 1.0], [1.5, 0.0], [3.0, 3.0]]]]).double()
    zeros, border = g.sample(image, points), g.sample(image, points, padding="border")
    assert zeros.flatten().tolist() == pytest.approx([0, 5, 15, 30, 5, 0])
    assert border.flatten().tolist() == pytest.approx([0, 5, 15, 30, 10, 30])


@given(seeds, sides, sides)
@settings(max_examples=30, deadline=None)
def test_sample_is_scipys(seed: int, h: int, w: int) -> None:
    image, points = noise(2, 3, h, w, seed=seed), noise(2, 5, 7, 2, seed=seed + 1)
    points = points * torch.tensor([w + 3.0, h + 3.0]).double() - 2.0
    for padding, mode in (("zeros", "grid-constant"), ("border", "nearest")):
        got = g.sample(image, points, padding=padding)
        for b in range(2):
            at = [points[b, ..., 1].numpy(), points[b, ..., 0].numpy()]
            want = [map_coordinates(c.numpy(), at, order=1, mode=mode) for c in image[b]]
            np.testing.assert_allclose(got[b].numpy(), np.stack(want), atol=1e-9)


def test_a_picture_one_pixel_wide_is_read_too() -> None:
    image = torch.tensor([1.0, 3.0]).reshape(1, 1, 2, 1)
    points = torch.tensor([[0.0, 0.5], [0.5, 0.0], [4.0, 0.0]]).reshape(1, 1, 3, 2)
    assert g.sample(image, points).flatten().tolist() == pytest.approx([2.0, 0.5, 0.0])


def test_inside_counts_the_outermost_centres() -> None:
    points = torch.tensor([[0, 0], [3, 2], [3.01, 2], [-0.01, 0], [0, 2.01], [math.nan, 0]])
    assert g.inside(points, 3, 4).tolist() == [True, True, False, False, False, False]
    assert g.inside(points, 3, 4, margin=0.1).tolist() == [True, True, True, True, True, False]


def test_warp_brings_b_onto_a() -> None:
    """b is a moved 2 right and 1 down, so the flow a→b is (2, 1), and b read there is a."""
    a = noise(1, 1, 6, 8)
    b = torch.zeros_like(a)
    b[..., 1:, 2:] = a[..., :-1, :-2]
    flow = torch.tensor([2.0, 1.0]).double().expand(1, 6, 8, 2)
    warped = g.warp(b, flow)
    assert torch.allclose(warped[..., :-1, :-2], a[..., :-1, :-2])
    assert (warped[..., -1, :] == 0).all()


def test_composition_is_that_of_a_loop() -> None:
    h, w = 7, 9
    ab, bc = 3 * noise(2, h, w, 2) - 1, noise(2, h, w, 2, seed=1)
    got = g.compose(ab, bc)
    assert not g.inside(g.follow(ab), h, w).all()
    for b, i, j in np.ndindex(2, h, w):
        x, y = j + float(ab[b, i, j, 0]), i + float(ab[b, i, j, 1])
        x, y = min(max(x, 0), w - 1), min(max(y, 0), h - 1)
        want = ab[b, i, j].clone()
        for p, q in ((int(y) + dy, int(x) + dx) for dy in (0, 1) for dx in (0, 1)):
            if p < h and q < w:
                want += (1 - abs(y - p)) * (1 - abs(x - q)) * bc[b, p, q]
        assert torch.allclose(got[b, i, j], want)
    assert torch.equal(g.compose(ab[0], bc[0]), got[0])


@given(seeds)
@settings(max_examples=25, deadline=None)
def test_a_flow_composed_with_its_inverse_is_zero(seed: int) -> None:
    """Affine flows are bilinear, so that reading between pixels is exact where the way leads inside."""
    H = some_homography(seed)
    H[2, :2] = 0
    ab, ba = g.homography_flow(H, 20, 24), g.homography_flow(torch.linalg.inv(H), 20, 24)
    kept = g.inside(g.follow(ab), 20, 24)
    assert kept.any()
    assert g.compose(ab, ba)[kept].abs().max() < 1e-9


@given(seeds, sides, sides, st.integers(3, 60), st.integers(3, 60))
@settings(max_examples=40, deadline=None)
def test_a_resized_flow_moves_resized_points(seed: int, h: int, w: int, h2: int, w2: int) -> None:
    """p + flow[p], resized, is where the resized flow takes the resized p: exactly, away from the clamped border."""
    M = noise(2, 2, seed=seed) - 0.5
    flow = g.grid(h, w).double() @ M.T + noise(2, seed=seed + 1)
    got = g.resize_flow(flow, (h2, w2))
    back = g.resize_points(g.grid(h2, w2).double(), (h2, w2), (h, w))
    want = g.resize_points(back + back @ M.T + noise(2, seed=seed + 1), (h, w), (h2, w2)) - g.grid(h2, w2)
    kept = g.inside(back, h, w)
    assert torch.allclose(got[kept], want[kept], atol=1e-9 * max(h, w, h2, w2))


def test_a_flow_resized_to_its_own_size_is_itself_and_leading_axes_stay() -> None:
    flow = noise(2, 3, 5, 6, 2)
    assert torch.equal(g.resize_flow(flow, (5, 6)), flow)
    assert g.resize_flow(flow, (10, 3)).shape == (2, 3, 10, 3, 2)
    assert torch.equal(g.resize_flow(flow, (10, 3))[1, 2], g.resize_flow(flow[1, 2], (10, 3)))


@given(seeds, st.tuples(sides, sides), st.tuples(sides, sides))
@settings(max_examples=30, deadline=None)
def test_resizing_there_and_back(seed: int, old: g.Size, new: g.Size) -> None:
    points = 40 * noise(5, 2, seed=seed)
    resized = g.resize_points(points, old, new)
    assert torch.allclose(g.resize_points(resized, new, old), points)
    assert torch.allclose(g.transform(g.scaling(old, new), points), resized)
    M = noise(3, 3, seed=seed)
    for f in (g.rescale_fundamental, g.rescale_homography):
        assert torch.allclose(f(f(M, old, new, new, old), new, old, old, new), M)


def test_corners_of_pixels_keep_their_place() -> None:
    """The frame runs from −½ to w − ½: both ends stay ends when an image is resized."""
    corners = torch.tensor([[-0.5, -0.5], [7.5, 3.5]], dtype=torch.float64)
    want = torch.tensor([[-0.5, -0.5], [5.5, 2.5]], dtype=torch.float64)
    assert torch.equal(g.resize_points(corners, (4, 8), (3, 6)), want)


# ----------------------------------------------------------------------------------------------------------- two views


@given(seeds)
@settings(max_examples=40, deadline=None)
def test_exact_projections_lie_on_their_lines(seed: int) -> None:
    x, y, cameras = views(seed)
    F = g.fundamental(*cameras)
    line = g.apply(F, x)
    d = ((line[:, :2] * y).sum(1) + line[:, 2]) / line[:, :2].norm(dim=1)
    assert d.abs().max() < 1e-8
    assert float(torch.linalg.matrix_norm(F)) == pytest.approx(1)
    g.check_fundamental(F)
    g.check_fundamental(F.float())


def test_lines_are_opencvs() -> None:
    x, y, cameras = views(3)
    F = g.fundamental(*cameras)
    for points, M, which in ((x, F, 1), (y, F.T, 2)):
        want = cv2.computeCorrespondEpilines(points.numpy()[:, None], which, F.numpy())[:, 0]
        got = g.apply(M, points)
        np.testing.assert_allclose((got / got[:, :2].norm(dim=1, keepdim=True)).numpy(), want, rtol=1e-9, atol=1e-9)


def test_lines_and_points_come_in_batches() -> None:
    F, points = noise(4, 3, 3), 9 * noise(4, 5, 6, 2, seed=1)
    want = torch.stack([g.apply(M, p) for M, p in zip(F, points, strict=True)])
    assert torch.allclose(g.apply(F, points), want)
    shared = g.apply(F, points[:1])
    assert torch.allclose(shared[2], g.apply(F[2], points[0]))
    assert g.transform(F, points[:, 0, 0]).shape == (4, 2)


def test_skew_is_the_cross_product() -> None:
    u, v = noise(6, 3), noise(6, 3, seed=1)
    assert torch.allclose((g.skew(u) @ v[..., None])[..., 0], torch.linalg.cross(u, v))


@given(
    seeds, st.tuples(st.integers(20, 400), st.integers(20, 400)), st.tuples(st.integers(20, 400), st.integers(20, 400))
)
@settings(max_examples=30, deadline=None)
def test_rescaled_matrices_fit_rescaled_points(seed: int, a: g.Size, b: g.Size) -> None:
    x, y, (Ka, Kb, R, t) = views(seed)
    old = (240, 320)
    x2, y2 = g.resize_points(x, old, a), g.resize_points(y, old, b)
    F = g.rescale_fundamental(g.fundamental(Ka, Kb, R, t), old, a, old, b)
    line = g.apply(F, x2)
    assert (((line[:, :2] * y2).sum(1) + line[:, 2]) / line[:, :2].norm(dim=1)).abs().max() < 1e-7
    cameras = g.fundamental(g.rescale_intrinsics(Ka, old, a), g.rescale_intrinsics(Kb, old, b), R, t)
    assert torch.allclose(F / torch.linalg.matrix_norm(F), cameras, atol=1e-9)
    H = some_homography(seed)
    assert torch.allclose(
        g.transform(g.rescale_homography(H, old, a, old, b), x2),
        g.resize_points(g.transform(H, x), old, b),
        rtol=1e-6,
        atol=1e-6,
    )


@given(seeds)
@settings(max_examples=25, deadline=None)
def test_homographies_are_opencvs(seed: int) -> None:
    H = some_homography(seed)
    flow = g.homography_flow(H, 12, 16)
    points = g.grid(12, 16).double()
    want = cv2.perspectiveTransform(points.reshape(-1, 1, 2).numpy(), H.numpy()).reshape(12, 16, 2)
    np.testing.assert_allclose((points + flow).numpy(), want, atol=1e-9)
    both = g.homography_flow(torch.stack([H, 3 * H]), 12, 16)
    assert torch.allclose(both[0], flow)
    assert torch.allclose(both[1], flow)


def test_the_horizon_is_finite() -> None:
    H = torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 0, -4]]).requires_grad_()
    out = g.transform(H, torch.tensor([[4.0, 1.0], [5.0, 1.0]]))
    assert torch.isfinite(out).all()
    assert out[1].tolist() == pytest.approx([5, 1])
    out.sum().backward()
    assert torch.isfinite(H.grad).all()


# -------------------------------------------------------------------------------------------------------------- checks


RECTIFIED = torch.tensor([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]])


def test_good_matrices_pass() -> None:
    """Of rectified cameras, of large images in float32, of small numbers, and in batches."""
    K = torch.tensor([[3000.0, 0, 2000], [0, 3000, 1500], [0, 0, 1]])
    R, t = rotation(torch.tensor([0.1, 0.2, 0.05])), torch.tensor([1.0, 0.1, 0.3])
    F = g.fundamental(K, K, R, t)
    for good in (RECTIFIED, F, 1e-12 * F, F.T, torch.stack([F, RECTIFIED])):
        g.check_fundamental(good)
    noisy = RECTIFIED.double() + 1e-12 * noise(3, 3)
    g.check_fundamental(noisy)


@pytest.mark.parametrize(
    ("F", "error", "words"),
    [
        (torch.eye(3), InputError, "rank 3"),
        (torch.tensor([[1.0, 0.1, 5], [0, 1, -3], [1e-4, 0, 1]]), InputError, "not a homography"),
        (torch.zeros(3, 3), InputError, "got 0"),
        (torch.stack([RECTIFIED, torch.zeros(3, 3)]), InputError, "got 0"),
        (torch.stack([RECTIFIED, torch.eye(3)]), InputError, "rank 3"),
        (torch.ones(3, 3), InputError, "rank 1"),
        (torch.full((3, 3), math.nan), InputError, "NaN"),
        (torch.zeros(2, 3), ShapeError, r"\(…, 3, 3\), got \(2, 3\)"),
        (torch.zeros(9), ShapeError, "expected"),
    ],
)
def test_wrong_matrices_are_refused(F: Tensor, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        g.check_fundamental(F)


def test_a_fundamental_matrix_spoilt_in_pixels_is_found() -> None:
    """F in pixels has entries of very different sizes; a wrong one of the small ones is of rank 3 all the same."""
    F = g.fundamental(*views(7)[2])
    spoilt = F.clone()
    spoilt[0, 1] *= 1.5
    with pytest.raises(InputError, match="rank 3"):
        g.check_fundamental(spoilt)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: g.sample(torch.zeros(1, 1, 4, 4), torch.zeros(1, 2, 2, 2), padding="wrap"), "padding: expected"),
        (lambda: g.sample(torch.zeros(2, 1, 4, 4), torch.zeros(1, 2, 2, 2)), "image, points"),
        (lambda: g.sample(torch.zeros(1, 4, 4), torch.zeros(1, 2, 2, 2)), "image, points"),
        (lambda: g.compose(torch.zeros(2, 4, 4), torch.zeros(4, 4, 2)), r"flow: expected \(…, h, w, 2\)"),
        (lambda: g.resize_flow(torch.zeros(4, 4, 2), (0, 3)), "size: expected"),
        (lambda: g.resize_points(torch.zeros(4, 2), (0, 3), (2, 2)), "old: expected"),
        (lambda: g.scaling((2, 2), (2, 0)), "new: expected"),
        (lambda: g.apply(torch.eye(4), torch.zeros(4, 2)), "matrix, points"),
        (lambda: g.transform(torch.zeros(2, 5, 3, 3), torch.zeros(2, 2)), "matrix, points"),
        (lambda: g.fundamental(torch.eye(3), torch.eye(3), torch.eye(3), torch.zeros(3)), "t: expected a translation"),
    ],
)
def test_refusals(call: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()  # type: ignore[operator]


# ----------------------------------------------------------------------------------------------------------- gradients


def test_gradients() -> None:
    image, flow = noise(1, 2, 5, 6).requires_grad_(), (0.9 * noise(1, 5, 6, 2) + 0.05).requires_grad_()
    other = noise(1, 5, 6, 2, seed=2).requires_grad_()
    assert gradcheck(g.warp, (image, flow))
    assert gradcheck(lambda i, f: g.sample(i, g.follow(f), padding="border"), (image, flow))
    assert gradcheck(g.compose, (flow, other))
    assert gradcheck(lambda f: g.resize_flow(f, (7, 4)), (flow,))
    H, points = some_homography(1).requires_grad_(), (9 * noise(4, 2)).requires_grad_()
    assert gradcheck(g.transform, (H, points))
    assert gradcheck(g.apply, (H, points))
    cameras = [m.clone().requires_grad_() for m in views(2)[2]]
    assert gradcheck(g.fundamental, cameras)
