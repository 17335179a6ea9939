"""Two views: projections of random points, OpenCV and loops as oracles; resampling and resizing round trips."""

from __future__ import annotations

import math

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import RBFInterpolator
from scipy.ndimage import map_coordinates
from torch import Tensor
from torch.autograd import gradcheck

from likewise.errors import InputError, ShapeError
from likewise.pixels import geometry as g

seeds = st.integers(0, 2**31 - 1)
double = torch.zeros((), dtype=torch.float64)
sides = st.integers(1, 40)


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
        (lambda: g.check_fundamental(torch.eye(3)), "rank 3"),
        (lambda: g.check_fundamental(torch.tensor([[1.0, 0.1, 5], [0, 1, -3], [1e-4, 0, 1]])), "not a homography"),
        (lambda: g.check_fundamental(torch.zeros(3, 3)), "got 0"),
        (lambda: g.check_fundamental(torch.stack([RECTIFIED, torch.zeros(3, 3)])), "got 0"),
        (lambda: g.check_fundamental(torch.stack([RECTIFIED, torch.eye(3)])), "rank 3"),
        (lambda: g.check_fundamental(torch.ones(3, 3)), "rank 1"),
        (lambda: g.check_fundamental(torch.full((3, 3), math.nan)), "NaN"),
        (lambda: g.check_fundamental(torch.zeros(2, 3)), r"\(…, 3, 3\), got \(2, 3\)"),
        (lambda: g.check_fundamental(torch.zeros(9)), "expected"),
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
        (lambda: g.Affine(torch.zeros(1, 2, 3)), "determinant 0"),
        (lambda: g.Affine(torch.zeros(2, 3)), r"matrix: expected \(b, 2, 3\)"),
        (lambda: g.ThinPlate(torch.zeros(3, 2), torch.zeros(1, 4, 2)), "knots, moved"),
        (lambda: g.ThinPlate(torch.arange(8.0).reshape(4, 2), torch.zeros(1, 4, 2)), "not all on one line"),
        (lambda: g.random_affine(1, 9, 9, generator=source(), scale=0.5), "scale: expected a largest factor"),
        (lambda: g.random_thin_plate(1, 9, 9, generator=source(), cells=0), "cells: expected at least 1"),
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


# ---------------------------------------------------------------------------------------------------------------- warps


def field(b: int, h: int, w: int) -> Tensor:
    return g.grid(h, w, like=double).expand(b, h, w, 2)


def shown(warp: g.Warp, B: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """B′[p] = B[T⁻¹(p)], and where T⁻¹(p) lies inside B."""
    points = warp.backward(g.grid(*size, like=warp.like)[None])
    return g.sample(B, points), g.inside(points, *B.shape[-2:])


# -------------------------------------------------------------------------------------------------------------- affine


def test_an_affine_map_by_hand() -> None:
    """B′ is B moved 2 px to the right: T⁻¹(p) = p − (2, 0), T(x) = x + (2, 0)."""
    warp = g.Affine(torch.tensor([[[1.0, 0, -2], [0, 1, 0]]]))
    B = torch.rand(1, 3, 4, 6, generator=source())
    moved, seen = shown(warp, B, (4, 6))
    assert torch.allclose(moved[..., 2:], B[..., :-2], atol=1e-5)
    assert seen[0, 0].tolist() == [False, False, True, True, True, True]
    there, residual = warp.forward(torch.tensor([[[1.0, 1.0]]]))
    assert there.tolist() == [[[3, 1]]]
    assert residual.tolist() == [[0]]


@given(seeds, st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=25, deadline=None)
def test_affine_pairs_are_exact(seed: int, dtype: torch.dtype) -> None:
    like = torch.zeros((), dtype=dtype)
    warp = g.random_affine(3, 48, 64, generator=source(seed), rotation=180, scale=2, shear=0.5, like=like)
    points = g.grid(48, 64, like=like)[None]
    there, residual = warp.forward(points)
    assert there.dtype == residual.dtype == dtype
    assert residual.max() < 1e3 * torch.finfo(dtype).eps  # coordinates up to some 200 px
    assert torch.allclose(
        warp.forward(warp.backward(points))[0], points.expand(3, -1, -1, -1), atol=float(residual.max()) + 1e-4
    )


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_random_affine_maps_keep_their_bounds(seed: int) -> None:
    warp = g.random_affine(50, 60, 80, generator=source(seed), rotation=20, scale=1.5, shear=0, shift=0.1, like=double)
    A, centre = warp.matrix[:, :, :2], torch.tensor([39.5, 29.5]).double()
    size = torch.linalg.det(A).sqrt()
    assert ((size >= 1 / 1.5) & (size <= 1.5)).all()
    assert size.max() / size.min() > 1.5
    angle = torch.atan2(A[:, 1, 0], A[:, 0, 0]).abs() * 180 / math.pi
    assert angle.max() <= 20
    assert angle.max() > 12
    moved = (warp.backward(centre.expand(50, 2)) - centre).abs()
    assert (moved <= torch.tensor([8.0, 6.0]).double() + 1e-9).all()
    still = g.random_affine(2, 60, 80, generator=source(seed), rotation=0, scale=1, shear=0, shift=0, like=double)
    assert torch.allclose(still.backward(field(2, 6, 8)), field(2, 6, 8))


# --------------------------------------------------------------------------------------------------------- thin plates


@given(seeds)
@settings(max_examples=15, deadline=None)
def test_a_thin_plate_is_scipys(seed: int) -> None:
    knots, moved = (
        60 * torch.rand(12, 2, generator=source(seed)).double(),
        torch.randn(2, 12, 2, generator=source(seed)).double(),
    )
    warp = g.ThinPlate(knots, moved)
    points = 80 * torch.rand(2, 30, 2, generator=source(seed + 1)).double() - 10
    for b in range(2):
        spline = RBFInterpolator(knots.numpy(), moved[b].numpy(), kernel="thin_plate_spline", degree=1)
        want = points[b] + torch.from_numpy(spline(points[b].numpy()))
        assert torch.allclose(warp.backward(points)[b], want, atol=1e-5 * (1 + float(want.abs().max())))
    at = knots.expand(2, -1, -1)
    assert torch.allclose(warp.backward(at), at + moved, atol=1e-6)


def test_the_slope_is_the_derivative() -> None:
    warp = g.random_thin_plate(2, 40, 50, generator=source(), strength=0.3, like=double)
    points = (40 * torch.rand(2, 7, 2, generator=source(1)).double()).requires_grad_()
    moved = warp.backward(points) - points
    slope = warp.slope(points.detach())
    for i in range(2):
        (row,) = torch.autograd.grad(moved[..., i].sum(), points, retain_graph=True)
        assert torch.allclose(slope[..., i, :], row, atol=1e-9)


@given(seeds, st.sampled_from([2, 3, 4, 5]), st.sampled_from([0.05, 0.15, 0.5, 3.0]))
@settings(max_examples=16, deadline=None)
def test_random_plates_never_fold(seed: int, cells: int, strength: float) -> None:
    """det ∂T⁻¹ > 0 on every pixel and around the frame, and T is found within a hundredth of a pixel."""
    warp = g.random_thin_plate(2, 48, 64, generator=source(seed), strength=strength, cells=cells, like=double)
    points = field(2, 72, 96) - 12 * torch.tensor([1.3, 1.0]).double()
    slope = warp.slope(points)
    assert torch.linalg.det(slope + torch.eye(2).double()).min() > 0.05
    assert torch.linalg.matrix_norm(slope, ord=2).max() < 0.75
    there, residual = warp.forward(field(2, 48, 64))
    assert residual.max() < 0.01
    assert torch.allclose(warp.backward(there), field(2, 48, 64), atol=0.01)


def test_a_scattered_field_needs_no_smooth_start() -> None:
    """Points in the shape of an image but in no order: the coarse start is useless, Newton finds them all the same."""
    warp = g.random_thin_plate(2, 96, 128, generator=source(), strength=0.2, like=double)
    points = torch.rand(2, 40, 50, 2, generator=source(1)).double() * torch.tensor([127.0, 95.0]).double()
    assert warp.forward(points)[1].max() < 0.01


def test_parts_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    warp = g.random_thin_plate(2, 20, 30, generator=source(), like=double)
    whole, result = warp.backward(field(2, 20, 30)), warp.forward(field(2, 20, 30))[0]
    monkeypatch.setattr(g.ThinPlate, "_parts", lambda self, x: torch.split(x, 7, dim=2))
    assert torch.allclose(warp.backward(field(2, 20, 30)), whole)
    assert torch.allclose(warp.forward(field(2, 20, 30))[0], result, atol=2e-3)


# --------------------------------------------------------------------------------------------------------------- all


@pytest.mark.parametrize("draw", [g.random_affine, g.random_thin_plate, g.random_warp])
def test_draws_follow_the_generator_alone(draw: object) -> None:
    def points(seed: int, global_seed: int) -> Tensor:
        torch.manual_seed(global_seed)
        return draw(2, 30, 40, generator=source(seed)).backward(g.grid(30, 40)[None])  # type: ignore[operator]

    assert torch.equal(points(1, 0), points(1, 9))
    assert not torch.equal(points(1, 0), points(2, 0))
    assert not torch.equal(points(1, 0)[0], points(1, 0)[1])


@pytest.mark.parametrize("draw", [g.random_affine, g.random_thin_plate, g.random_warp])
def test_pictures_and_points_agree(draw: object) -> None:
    """A smooth image of coordinates: B′[p] is T⁻¹(p), and a point x of B is seen in B′ at T(x)."""
    warp = draw(2, 40, 50, generator=source(3), like=double)  # type: ignore[operator]
    B = field(2, 40, 50).permute(0, 3, 1, 2)
    moved, seen = shown(warp, B, (44, 54))
    assert moved.shape == (2, 2, 44, 54)
    points = field(2, 44, 54)
    assert 0.4 < seen.double().mean() < 1
    assert torch.allclose(moved.permute(0, 2, 3, 1)[seen], warp.backward(points)[seen], atol=1e-9)
    there, _ = warp.forward(field(2, 40, 50))
    kept = g.inside(there, 44, 54) & g.inside(field(2, 40, 50) - 5, 30, 40)
    result = g.sample(moved, there).permute(0, 2, 3, 1)
    assert (result - field(2, 40, 50))[kept].abs().max() < 0.1


def test_a_chain_is_one_after_the_other() -> None:
    first = g.random_affine(2, 40, 50, generator=source(1), like=double)
    second = g.random_thin_plate(2, 40, 50, generator=source(2), like=double)
    chain, points = g.Chain(first, second), field(2, 40, 50)
    assert torch.equal(chain.backward(points), first.backward(second.backward(points)))
    there, residual = chain.forward(points)
    assert torch.allclose(there, second.forward(first.forward(points)[0])[0])
    assert torch.allclose(residual, torch.linalg.vector_norm(chain.backward(there) - points, dim=-1), atol=1e-9)
    with pytest.raises(ShapeError, match="second: expected 2 maps"):
        g.Chain(first, g.random_affine(3, 40, 50, generator=source()))


@pytest.mark.parametrize("draw", [g.random_affine, g.random_thin_plate, g.random_warp])
def test_some_of_the_maps_are_those_maps(draw: object) -> None:
    warp = draw(4, 20, 30, generator=source(1), like=double)  # type: ignore[operator]
    few, points = warp.part(slice(1, 3)), field(1, 20, 30)
    assert (len(few), len(warp)) == (2, 4)
    assert torch.allclose(few.backward(points), warp.backward(points)[1:3])
    assert torch.allclose(few.forward(points)[0], warp.forward(points)[0][1:3], atol=2e-3)


def test_gradients_of_warped_points() -> None:
    warp = g.random_warp(2, 30, 40, generator=source(), like=double)
    points = (25 * torch.rand(2, 5, 2, generator=source(1)).double() + 2).requires_grad_()
    warp.second.tol = 1e-12  # type: ignore[attr-defined]
    assert gradcheck(warp.backward, (points,))
    assert gradcheck(lambda p: warp.forward(p)[0], (points,))


def test_a_close_start_keeps_its_gradient() -> None:
    """Even a plate so flat that no step is needed has the slope of its inverse as gradient."""
    warp = g.random_thin_plate(1, 30, 40, generator=source(), strength=1e-5, like=double)
    points = (25 * torch.rand(1, 5, 2, generator=source(1)).double()).requires_grad_()
    warp.forward(points)[0][..., 0].sum().backward()
    want = torch.linalg.inv(torch.eye(2).double() + warp.slope(points.detach()))[..., 0, :]
    assert torch.allclose(points.grad, want, atol=1e-9)
    assert not torch.equal(points.grad[..., 0], torch.ones(1, 5).double())


def test_a_knot_has_a_finite_gradient() -> None:
    warp = g.random_thin_plate(1, 30, 40, generator=source())
    points = torch.tensor([[[0.0, 0.0], [39.0, 29.0]]], requires_grad=True)
    warp.backward(points).sum().backward()
    assert torch.isfinite(points.grad).all()
