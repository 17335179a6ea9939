"""Warps against scipy's splines, loops and their own inverses."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import RBFInterpolator
from torch import Tensor
from torch.autograd import gradcheck

from likewise.errors import InputError, ShapeError
from likewise.pixels import geometry as g

seeds = st.integers(0, 2**31 - 1)
double = torch.zeros((), dtype=torch.float64)


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def field(b: int, h: int, w: int) -> Tensor:
    return g.grid(h, w, like=double).expand(b, h, w, 2)


# -------------------------------------------------------------------------------------------------------------- affine


def test_an_affine_map_by_hand() -> None:
    """B′ is B moved 2 px to the right: T⁻¹(p) = p − (2, 0), T(x) = x + (2, 0)."""
    warp = g.Affine(torch.tensor([[[1.0, 0, -2], [0, 1, 0]]]))
    B = torch.rand(1, 3, 4, 6, generator=source())
    moved, seen = warp.image(B)
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


@given(seeds)
@settings(max_examples=8, deadline=None)
def test_there_and_back_in_float32(seed: int) -> None:
    warp = g.random_warp(4, 96, 128, generator=source(seed), strength=0.3)
    points = g.grid(96, 128)[None]
    there, residual = warp.forward(points)
    again = torch.linalg.vector_norm(warp.backward(there) - points, dim=-1)
    assert residual.max() < 0.01
    assert torch.allclose(again, residual, atol=1e-3)
    home, _ = warp.forward(warp.backward(points))
    near = torch.linalg.vector_norm(home - points, dim=-1)
    assert near.max() < 0.05


def test_few_steps_are_enough_and_too_few_are_reported() -> None:
    warp = g.random_thin_plate(4, 96, 128, generator=source(), strength=0.3, like=double)
    points = field(4, 96, 128)
    residuals = []
    for steps in (0, 1, 2):
        warp.steps = steps
        there, residual = warp.forward(points)
        truly = torch.linalg.vector_norm(warp.backward(there) - points, dim=-1)
        assert torch.allclose(residual, truly, atol=1e-9)
        residuals.append(float(residual.max()))
    assert residuals[0] > 1
    assert residuals == sorted(residuals, reverse=True)
    assert residuals[-1] <= 1.5e-3  # 1e-3 in x and in y


def test_a_scattered_field_needs_no_smooth_start() -> None:
    """Points in the shape of an image but in no order: the coarse start is useless, Newton finds them all the same."""
    warp = g.random_thin_plate(2, 96, 128, generator=source(), strength=0.2, like=double)
    points = torch.rand(2, 40, 50, 2, generator=source(1)).double() * torch.tensor([127.0, 95.0]).double()
    assert warp.forward(points)[1].max() < 0.01


def test_parts_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    warp = g.random_thin_plate(2, 20, 30, generator=source(), like=double)
    whole, found = warp.backward(field(2, 20, 30)), warp.forward(field(2, 20, 30))[0]
    monkeypatch.setattr(g.ThinPlate, "_parts", lambda self, x: torch.split(x, 7, dim=2))
    assert torch.allclose(warp.backward(field(2, 20, 30)), whole)
    assert torch.allclose(warp.forward(field(2, 20, 30))[0], found, atol=2e-3)


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
    moved, seen = warp.image(B, (44, 54))
    assert moved.shape == (2, 2, 44, 54)
    points = field(2, 44, 54)
    assert 0.4 < seen.double().mean() < 1
    assert torch.allclose(moved.permute(0, 2, 3, 1)[seen], warp.backward(points)[seen], atol=1e-9)
    there, _ = warp.forward(field(2, 40, 50))
    kept = g.inside(there, 44, 54) & g.inside(field(2, 40, 50) - 5, 30, 40)
    found = g.sample(moved, there).permute(0, 2, 3, 1)
    assert (found - field(2, 40, 50))[kept].abs().max() < 0.1


def test_a_chain_is_one_after_the_other() -> None:
    first = g.random_affine(2, 40, 50, generator=source(1), like=double)
    second = g.random_thin_plate(2, 40, 50, generator=source(2), like=double)
    chain, points = g.Chain(first, second), field(2, 40, 50)
    assert torch.equal(chain.backward(points), first.backward(second.backward(points)))
    there, residual = chain.forward(points)
    assert torch.allclose(there, second.forward(first.forward(points)[0])[0])
    assert torch.allclose(residual, torch.linalg.vector_norm(chain.backward(there) - points, dim=-1), atol=1e-9)
    B = torch.rand(2, 1, 40, 50, generator=source()).double()
    smooth = torch.nn.functional.avg_pool2d(B, 9, 1, 4)
    twice = second.image(first.image(smooth)[0])[0]
    once, seen = chain.image(smooth)
    assert (once - twice)[:, 0][seen].abs().mean() < 0.01
    with pytest.raises(ShapeError, match="second: expected 2 maps"):
        g.Chain(first, g.random_affine(3, 40, 50, generator=source()))


@pytest.mark.parametrize("draw", [g.random_affine, g.random_thin_plate, g.random_warp])
def test_some_of_the_maps_are_those_maps(draw: object) -> None:
    warp = draw(4, 20, 30, generator=source(1), like=double)  # type: ignore[operator]
    few, points = warp.part(slice(1, 3)), field(1, 20, 30)
    assert (len(few), len(warp)) == (2, 4)
    assert torch.allclose(few.backward(points), warp.backward(points)[1:3])
    assert torch.allclose(few.forward(points)[0], warp.forward(points)[0][1:3], atol=2e-3)


def test_gradients_of_points() -> None:
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


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: g.Affine(torch.zeros(1, 2, 3)), "determinant 0"),
        (lambda: g.Affine(torch.zeros(2, 3)), r"matrix: expected \(b, 2, 3\)"),
        (lambda: g.ThinPlate(torch.zeros(3, 2), torch.zeros(1, 4, 2)), "knots, moved"),
        (lambda: g.ThinPlate(torch.arange(8.0).reshape(4, 2), torch.zeros(1, 4, 2)), "not all on one line"),
        (lambda: g.random_affine(1, 9, 9, generator=source(), scale=0.5), "scale: expected a largest factor"),
        (lambda: g.random_thin_plate(1, 9, 9, generator=source(), cells=0), "cells: expected at least 1"),
        (lambda: g.random_affine(2, 9, 9, generator=source()).image(torch.zeros(3, 1, 9, 9)), "B: expected"),
    ],
)
def test_refusals(call: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()  # type: ignore[operator]
