"""Where the LIFE paper is silent or ambiguous: what is done here, and what the other reading would do."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from likewise.pixels import geometry as g
from likewise.pixels import life

double = torch.zeros((), dtype=torch.float64)
RECTIFIED = torch.tensor([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]], dtype=torch.float64)

HALF = 0.0136
"""Measured on the pair below: px from the line, without the shift (specific to its cameras)."""


def constant(x: float, y: float, h: int = 64, w: int = 96) -> Tensor:
    return torch.tensor([x, y], dtype=torch.float64).expand(1, h, w, 2).clone()


def pair(size: g.Size = (240, 320)) -> tuple[Tensor, Tensor, Tensor]:
    """Exact projections x, y of a lattice of points at three depths into two (h, w) images, and their F."""
    h, w = size
    K = torch.tensor([[0.9 * w, 0, (w - 1) / 2], [0, 0.9 * w, (h - 1) / 2], [0, 0, 1]], dtype=torch.float64)
    R = torch.linalg.matrix_exp(g.skew(torch.tensor([0.05, -0.2, 0.1], dtype=torch.float64)))
    t = torch.tensor([0.8, 0.1, 0.3], dtype=torch.float64)
    lattice = torch.cartesian_prod(*(torch.linspace(0, n - 1, 9, dtype=torch.float64) for n in (w, h)))
    rays = torch.cat([lattice, torch.ones(81, 1).double()], dim=1) @ torch.linalg.inv(K).T
    X = torch.cat([rays * depth for depth in (3.0, 5.0, 9.0)])
    q = (X @ R.T + t) @ K.T
    return lattice.repeat(3, 1), q[:, :2] / q[:, 2:], g.fundamental(K, K, R, t)


def test_f_is_a_position_in_the_equations_and_a_displacement_in_the_tolerance() -> None:
    """Nothing moves, and the way back misses by 4 px: more than α everywhere, so nothing is kept.

    Were ‖f‖ in max(α, β‖f‖) the position, 0.05 · ‖(95, 63)‖ = 5.7 px would be allowed in the far corner, and what is
    kept would depend on where the frame's origin lies.
    """
    still, missed = constant(0, 0), constant(0, 4)
    assert float(life.cycle_loss(still, missed)) == 0
    position = g.follow(still).norm(dim=-1)
    assert ((life.BETA * position).clamp(min=life.ALPHA) >= 4).any()
    far = constant(90, 0)
    assert float(life.cycle_loss(far, constant(-90, 4))) == pytest.approx(4)  # 0.05 · 90 = 4.5 px are allowed


def test_tolerance_and_weights_are_ours_and_are_these() -> None:
    """The paper gives neither α, β nor the weights of the losses."""
    assert (life.ALPHA, life.BETA) == (3.0, 0.05)
    assert life.Weights() == (0.5, 1.0, 0.1)
    assert float(life.cycle_loss(constant(0, 0), constant(2.99, 0))) == pytest.approx(2.99)
    assert float(life.cycle_loss(constant(0, 0), constant(3.01, 0))) == 0


def test_a_capped_epipolar_distance_lets_runaways_go() -> None:
    """A flow 40 px off its line: under a cap it has no gradient, under the logarithm it is drawn back."""
    for keywords, drawn in (({"cap": 10.0, "scale": None}, False), ({"scale": 5.0}, True)):
        flow = constant(0, 40, 4, 6).requires_grad_()
        life.sed_loss(flow, RECTIFIED[None], **keywords).backward()
        assert bool((flow.grad[..., 1] > 0).all()) is drawn


def test_epipolar_distance_alone_leaves_one_direction_free() -> None:
    """Along the lines SED is 0 whatever the flow, and has no gradient there: alone it drifts."""
    for x in (-7.0, 0.0, 25.0):
        flow = constant(x, 1.0, 4, 6).requires_grad_()
        loss = life.sed_loss(flow, RECTIFIED[None])
        loss.backward()
        assert float(loss.detach()) == pytest.approx(5 * math.log1p(2 / 5), rel=1e-4)
        assert flow.grad[..., 0].abs().max() < 1e-6 * flow.grad[..., 1].abs().max()


def test_one_way_is_from_b_to_its_warped_copy() -> None:
    """T(B′B) of Tab. 6: only the flow B→B′ is taught; the other may be anything."""
    warp = g.random_warp(1, 24, 32, generator=torch.Generator().manual_seed(0), like=double)
    truth = life.bit_truth(warp, (24, 32), like=double)
    there, back = truth.there.clone().requires_grad_(), (truth.back + 5).requires_grad_()
    for one_way, taught in ((True, False), (False, True)):
        loss = life.bit_loss(there, back, warp, one_way=one_way)
        slope = torch.autograd.grad(loss, back, allow_unused=True)[0]
        assert (slope is not None) is taught


def test_without_the_half_pixel_shift_f_of_a_resized_pair_is_wrong() -> None:
    """At × 0.75 exact matches of this pair miss their lines by HALF px in the mean if S is only diag(s, s, 1).

    With the shift they miss by nothing. The shift of both images is ⅛ px, most of which lies along the lines or
    cancels; that it is small is why it goes unnoticed.
    """
    x, y, F = pair()
    old, new = (240, 320), (180, 240)
    small = [g.resize_points(p, old, new) for p in (x, y)]
    right = g.rescale_fundamental(F, old, new, old, new)
    unshifted = torch.diag(torch.tensor([4 / 3, 4 / 3, 1.0]).double())
    wrong = unshifted.T @ F @ unshifted
    assert life.sed(*small, right).max() < 1e-6
    assert float(life.sed(*small, wrong).mean() / 2) == pytest.approx(HALF, rel=0.02)


def test_the_half_pixel_shift_is_that_of_resized_pictures() -> None:
    """torch and OpenCV resize with pixel areas kept: a ramp of coordinates, made smaller, says where its pixels lie."""
    ramp = g.grid(12, 16, like=double).permute(2, 0, 1)[None]
    small = torch.nn.functional.interpolate(ramp, size=(9, 12), mode="bilinear", align_corners=False)[0]
    want = g.resize_points(g.grid(9, 12, like=double), (9, 12), (12, 16))
    assert torch.allclose(small.permute(1, 2, 0), want)
    assert not torch.allclose(small.permute(1, 2, 0), g.grid(9, 12, like=double) * 4 / 3, atol=0.1)
