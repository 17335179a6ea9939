"""LIFE's losses: hand cases, loops over pixels, properties, gradients."""

from __future__ import annotations

import math

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from likewise.errors import InputError, ShapeError
from likewise.pixels import geometry as g
from likewise.pixels import life
from pixels.test_geometry import double, noise, seeds, source

RECTIFIED = torch.tensor([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]], dtype=torch.float64)
"""Cameras side by side: the line of (x, y) is the row y."""


def fundamental(seed: int, b: int | None = None) -> Tensor:
    """Of two cameras for frames of about (12, 16), turned and moved at random."""
    if b is not None:
        return torch.stack([fundamental(seed + i) for i in range(b)])
    u = 2 * noise(6, seed=seed) - 1
    K = torch.tensor([[15.0, 0, 7.5], [0, 15, 5.5], [0, 0, 1]], dtype=torch.float64)
    return g.fundamental(K, K, torch.linalg.matrix_exp(g.skew(0.3 * u[:3])), u[3:])


def on_the_line(x: Tensor, F: Tensor, seed: int) -> Tensor:
    """A point on the line of x for each x: its foot from the origin, and some way along."""
    line = g.apply(F, x)
    normal = line[..., :2] / line[..., :2].norm(dim=-1, keepdim=True)
    foot = -normal * (line[..., 2] / line[..., :2].norm(dim=-1))[..., None]
    along = torch.stack([-normal[..., 1], normal[..., 0]], dim=-1)
    return foot + along * (20 * noise(*x.shape[:-1], 1, seed=seed) - 10)


def loop_sed(x: Tensor, y: Tensor, F: Tensor) -> float:
    """SED of one match, written out without ε."""
    p, q = np.array([*x.tolist(), 1.0]), np.array([*y.tolist(), 1.0])
    a, b = F.numpy() @ p, F.numpy().T @ q
    return abs(q @ a) / math.hypot(a[0], a[1]) + abs(p @ b) / math.hypot(b[0], b[1])


# ----------------------------------------------------------------------------------------------------------------- sed


def test_sed_by_hand() -> None:
    """Lines are rows: y lies 3 px under the row of x, x lies 3 px above the row of y."""
    x, y = torch.tensor([[2.0, 5.0]]).double(), torch.tensor([[9.0, 8.0]]).double()
    assert life.sed(x, y, RECTIFIED).tolist() == pytest.approx([6.0], rel=1e-5)
    assert life.sed(x, y, RECTIFIED, cap=4.0).tolist() == [4.0]


@given(seeds)
@settings(max_examples=30, deadline=None)
def test_sed_is_its_loop_and_opencvs_distance_to_lines(seed: int) -> None:
    F, x, y = fundamental(seed), 16 * noise(8, 2, seed=seed + 1), 16 * noise(8, 2, seed=seed + 2)
    got = life.sed(x, y, F, eps=0.0)
    want = [loop_sed(p, q, F) for p, q in zip(x, y, strict=True)]
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-7, atol=1e-9)
    total = torch.zeros(8).double()
    for points, others, which in ((x, y, 1), (y, x, 2)):
        line = torch.from_numpy(cv2.computeCorrespondEpilines(points.numpy()[:, None], which, F.numpy())[:, 0])
        total += ((line[:, :2] * others).sum(1) + line[:, 2]).abs()
    assert torch.allclose(got, total, rtol=1e-5, atol=1e-6)


@given(seeds, st.sampled_from([1e-30, -1e-4, 1.0, -7.0, 1e25]))
@settings(max_examples=30, deadline=None)
def test_the_scale_of_f_does_not_matter_nor_which_picture_is_first(seed: int, scale: float) -> None:
    F, x, y = fundamental(seed), 16 * noise(8, 2, seed=seed + 1), 16 * noise(8, 2, seed=seed + 2)
    d = life.sed(x, y, F)
    assert torch.allclose(life.sed(x, y, scale * F), d)
    assert torch.allclose(life.sed(y, x, F.T), d)
    assert torch.allclose(life.sed(x.float(), y.float(), F * scale), d.float(), rtol=1e-3, atol=1e-3)


@given(seeds)
@settings(max_examples=30, deadline=None)
def test_exact_matches_cost_nothing(seed: int) -> None:
    F, x = fundamental(seed), 16 * noise(8, 2, seed=seed + 1)
    assert life.sed(x, on_the_line(x, F, seed + 2), F).max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_at_the_epipole_value_and_gradient_are_finite(dtype: torch.dtype) -> None:
    """Forward motion: the epipole is the middle of the image, a pixel, and no line leads from it."""
    K = torch.tensor([[15.0, 0, 8], [0, 15, 6], [0, 0, 1]], dtype=dtype)
    F = g.fundamental(K, K, torch.eye(3, dtype=dtype), torch.tensor([0.0, 0, 1], dtype=dtype))
    e = torch.tensor([8.0, 6.0], dtype=dtype)
    assert g.apply(F, e).abs().max() < 1e-6
    for start, end in ((e, e + 2), (e, e), (e + 2, e), (e + 1e-4, e + torch.tensor([2, 0]))):
        x, y = start.clone().requires_grad_(), end.clone().requires_grad_()
        d = life.sed(x, y, F)
        d.backward()
        assert torch.isfinite(d)
        assert x.grad.norm() < 1e3  # ‖y − e‖ / (ε ‖e‖), not ‖y − e‖ / ‖x − e‖, which has no bound
        assert y.grad.norm() < 1e3
    flow = torch.zeros(1, 12, 16, 2, dtype=dtype, requires_grad=True)
    life.sed_loss(flow + 0.5, F[None]).backward()
    assert flow.grad.norm(dim=-1).max() < 10 / (12 * 16)


def test_the_floor_is_felt_only_near_the_epipole() -> None:
    K = torch.tensor([[15.0, 0, 8], [0, 15, 6], [0, 0, 1]]).double()
    F = g.fundamental(K, K, torch.eye(3).double(), torch.tensor([0.0, 0, 1]).double())
    e, y = torch.tensor([8.0, 6.0]).double(), torch.tensor([12.0, 3.0]).double()
    for far in (0.5, 1.0, 3.0):
        x = e + torch.tensor([far, far]).double()
        assert float(life.sed(x, y, F)) == pytest.approx(loop_sed(x, y, F), rel=1e-3)


def test_soft_is_the_distance_when_small_and_never_flat() -> None:
    d = torch.tensor([0.0, 1e-3, 5.0, 1e4]).double().requires_grad_()
    s = life.soft(d, 5.0)
    assert s.tolist() == pytest.approx([0, 1e-3, 5 * math.log(2), 5 * math.log(2001)], rel=1e-3)
    (slope,) = torch.autograd.grad(s.sum(), d)
    assert slope.tolist() == pytest.approx([1, 1, 0.5, 5 / 10005], rel=1e-3)
    assert life.soft(d, None) is d


def test_sed_loss_is_its_loop() -> None:
    flow, F, valid = 4 * noise(2, 5, 6, 2) - 2, fundamental(3, 2), noise(2, 5, 6, seed=4) > 0.3
    terms = []
    for b, i, j in torch.nonzero(valid).tolist():
        x = torch.tensor([float(j), float(i)]).double()
        terms.append(5 * math.log1p(loop_sed(x, x + flow[b, i, j], F[b]) / 5))
    assert float(life.sed_loss(flow, F, valid=valid, eps=0.0)) == pytest.approx(np.mean(terms), rel=1e-9)
    plain = life.sed_loss(flow, F, scale=None, cap=3.0)
    x = g.grid(5, 6).double().expand(2, 5, 6, 2)
    assert float(plain) == pytest.approx(float(life.sed(x, x + flow, F).clamp(max=3).mean()))


# --------------------------------------------------------------------------------------------------------------- cycle


def constant(x: float, y: float, h: int = 8, w: int = 10) -> Tensor:
    return torch.tensor([x, y], dtype=torch.float64).expand(1, h, w, 2).clone()


def test_cycle_by_hand() -> None:
    """4 px right, then 3 px left: misses by 1 px. 4 px right, then 4 px down and 4 left: misses by 4 px, too many."""
    there = constant(4, 0)
    assert float(life.cycle_loss(there, constant(-3, 0))) == pytest.approx(1)
    assert float(life.cycle_loss(there, constant(-4, 0))) == 0
    assert float(life.cycle_loss(there, constant(-4, 4))) == 0
    assert float(life.cycle_loss(there, constant(-4, 4), mode="full")) == pytest.approx(4)
    assert float(life.cycle_loss(there, constant(-4, 4), alpha=4.0)) == pytest.approx(4)
    assert float(life.cycle_loss(there, constant(-4, 4), beta=1.0)) == pytest.approx(4)
    assert float(life.cycle_loss(there, constant(-3, 0), scale=2.0)) == pytest.approx(2 * math.log(1.5))


def loop_cycle(f: Tensor, b: Tensor, alpha: float, beta: float, adaptive: bool) -> float:
    """Over pixels, with scalar bilinear reading."""
    terms = []
    h, w = b.shape[1:3]
    for n, i, j in np.ndindex(*f.shape[:3]):
        x, y = j + float(f[n, i, j, 0]), i + float(f[n, i, j, 1])
        if not (0 <= x <= w - 1 and 0 <= y <= h - 1):
            continue
        back = np.zeros(2)
        for p, q in ((int(y) + dy, int(x) + dx) for dy in (0, 1) for dx in (0, 1)):
            if p < h and q < w:
                back += (1 - abs(y - p)) * (1 - abs(x - q)) * b[n, p, q].numpy()
        d = float(np.linalg.norm(f[n, i, j].numpy() + back))
        if not adaptive or d <= max(alpha, beta * float(f[n, i, j].norm())):
            terms.append(d)
    return float(np.mean(terms))


@given(seeds, st.booleans())
@settings(max_examples=15, deadline=None)
def test_cycle_loss_is_its_loop(seed: int, adaptive: bool) -> None:
    f, b = 8 * noise(2, 6, 7, 2, seed=seed) - 4, 8 * noise(2, 5, 9, 2, seed=seed + 1) - 4
    got = life.cycle_loss(f, b, mode="adaptive" if adaptive else "full", alpha=2.0, beta=1.0)
    assert float(got) == pytest.approx(loop_cycle(f, b, 2.0, 1.0, adaptive), abs=1e-9)


def test_what_is_taken_for_occluded_has_no_gradient() -> None:
    f, b = constant(2, 0).requires_grad_(), constant(-1, 0)
    b[:, :4] += 10
    life.cycle_loss(f, b).backward()
    assert (f.grad[:, :3] == 0).all()
    assert (f.grad[:, 5:, :7] != 0).any(dim=-1).all()


# ----------------------------------------------------------------------------------------------------------------- bit


def shift(x: float, y: float) -> g.Affine:
    """B′ is B moved by (x, y)."""
    return g.Affine(torch.tensor([[[1.0, 0, -x], [0, 1, -y]]]).double())


def test_bit_by_hand() -> None:
    """B moves by (3, 0): the true flow there is (3, 0), back (−3, 0); a zero flow misses by 3 both ways."""
    zero = constant(0, 0)
    assert float(life.bit_loss(constant(3, 0), constant(-3, 0), shift(3, 0))) == pytest.approx(0, abs=1e-9)
    assert float(life.bit_loss(zero, zero, shift(3, 0), scale=None)) == pytest.approx(6)
    assert float(life.bit_loss(zero, zero, shift(3, 0))) == pytest.approx(8 * math.log(1.75))
    assert float(life.bit_loss(zero, zero, shift(3, 0), one_way=True)) == pytest.approx(4 * math.log(1.75))
    assert float(life.bit_loss(constant(3, 0), zero, shift(3, 0), one_way=True)) == 0
    assert float(life.bit_loss(constant(3, 0), None, shift(3, 0), one_way=True)) == 0
    assert float(life.bit_loss(constant(3, 0), zero, shift(3, 0), scale=None)) == pytest.approx(3)


def test_bit_counts_what_both_pictures_show() -> None:
    """What leaves the frame, or was never in it, may have any flow, NaN, too."""
    there, back = constant(3, 0), constant(-3, 0)
    there[:, :, 7:], back[:, :, :3] = math.nan, math.nan
    there.requires_grad_()
    loss = life.bit_loss(there, back, shift(3, 0))
    assert float(loss.detach()) == pytest.approx(0, abs=1e-9)
    loss.backward()
    assert (there.grad == 0).all()
    there, back = constant(3, 0), constant(-3, 0)
    there[:, :, 6] += 1
    assert float(life.bit_loss(there, back, shift(3, 0), scale=None)) == pytest.approx(math.sqrt(2) / 7)


def test_bit_is_its_loop() -> None:
    warp = g.random_warp(2, 8, 10, generator=source(5), like=double)
    f, b = 4 * noise(2, 8, 10, 2) - 2, 4 * noise(2, 9, 7, 2, seed=1) - 2
    total = 0.0
    there, residual = warp.forward(g.grid(8, 10, like=double)[None])
    back = warp.backward(g.grid(9, 7, like=double)[None])
    for flow, ends, (h, w), missed in ((f, there, (9, 7), residual), (b, back, (8, 10), torch.zeros(2, 9, 7))):
        terms = []
        for n, i, j in np.ndindex(*flow.shape[:3]):
            x, y = ends[n, i, j].tolist()
            if 0 <= x <= w - 1 and 0 <= y <= h - 1 and missed[n, i, j] <= 0.05:
                miss = math.hypot(j + float(flow[n, i, j, 0]) - x, i + float(flow[n, i, j, 1]) - y)
                terms.append(4 * math.log1p(miss / 4))
        total += float(np.mean(terms))
    assert float(life.bit_loss(f, b, warp)) == pytest.approx(total, rel=1e-9)


def test_the_truth_of_cells_by_hand() -> None:
    """T doubles every place. Cell i stands at pixel 8 i + 3.5, which goes to 16 i + 7: cell 2 i + 3.5 / 8."""
    doubled = g.Affine(torch.tensor([[[0.5, 0, 0], [0, 0.5, 0]]]).double())
    truth = life.bit_truth(doubled, (4, 6), stride=8, centre=3.5)
    cell = g.grid(4, 6, like=double)
    assert torch.allclose(truth.there, cell + 3.5 / 8)
    assert torch.allclose(truth.back, -0.5 * (cell + 3.5 / 8))
    assert truth.there_valid[0].tolist() == [[i < 2 and j < 3 for j in range(6)] for i in range(4)]
    assert truth.back_valid[0].tolist() == [[i > 0 and j > 0 for j in range(6)] for i in range(4)]


def test_where_the_inverse_missed_nothing_is_taught() -> None:
    warp = g.random_thin_plate(1, 20, 24, generator=source(1), strength=0.4, like=double)
    warp.steps = 0
    _, residual = warp.forward(g.grid(20, 24, like=double)[None])
    truth = life.bit_truth(warp, (20, 24), like=double)
    assert residual.max() > 0.5
    assert not truth.there_valid[residual > 0.05].any()
    assert truth.back_valid.double().mean() > 0.5
    loose = life.bit_truth(warp, (20, 24), like=double, residual=100.0)
    assert loose.there_valid.sum() > truth.there_valid.sum()


@given(seeds)
@settings(max_examples=10, deadline=None)
def test_the_truth_costs_nothing_and_can_be_made_once(seed: int) -> None:
    warp = g.random_warp(2, 24, 32, generator=source(seed))
    truth = life.bit_truth(warp, (24, 32))
    assert float(life.bit_loss(truth.there, truth.back, warp)) == pytest.approx(0, abs=1e-5)
    f, b = torch.randn(2, 24, 32, 2, generator=source(seed)), torch.randn(2, 24, 32, 2, generator=source(seed + 1))
    assert torch.equal(life.bit_loss(f, b, truth), life.bit_loss(f, b, warp))


# -------------------------------------------------------------------------------------------------- masks, joint, sums


def test_all_masked_is_zero_with_a_gradient_of_zero() -> None:
    nothing = torch.zeros(1, 8, 10, dtype=torch.bool)
    flow = (constant(1, 1) + noise(1, 8, 10, 2)).requires_grad_()
    losses = (
        life.sed_loss(flow, RECTIFIED[None], valid=nothing),
        life.cycle_loss(flow, constant(-1, -1), valid=nothing),
        life.bit_loss(flow, constant(0, 0), shift(50, 0)),
        life.masked_mean(flow[..., 0], nothing),
    )
    for loss in losses:
        assert float(loss.detach()) == 0
        (slope,) = torch.autograd.grad(loss, flow)
        assert (slope == 0).all()


def test_nan_behind_a_mask_stays_there() -> None:
    valid = torch.ones(1, 8, 10, dtype=torch.bool)
    valid[:, :2] = False
    flow = constant(1, 0.5)
    flow[:, :2] = math.nan
    flow.requires_grad_()
    clean = constant(1, 0.5)
    for loss in (
        lambda f: life.sed_loss(f, RECTIFIED[None], valid=valid),
        lambda f: life.cycle_loss(f, constant(-1, 0), valid=valid),
        lambda f: life.bit_loss(f, constant(0, 0), shift(0, 0), valid=valid),
    ):
        assert float(loss(flow).detach()) == pytest.approx(float(loss(clean)))
        (slope,) = torch.autograd.grad(loss(flow), flow)
        assert torch.isfinite(slope).all()
        assert (slope[:, :2] == 0).all()
        assert slope.abs().sum() > 0


def test_the_last_iteration_weighs_most() -> None:
    losses = [torch.tensor(x) for x in (1.0, 2.0, 3.0)]
    assert float(life.sequence(losses)) == pytest.approx(0.64 + 1.6 + 3)
    assert float(life.sequence(losses, gamma=1.0)) == pytest.approx(6)
    assert float(life.sequence(losses[:1], gamma=0.1)) == 1


def joint(seed: int = 0, n: int = 3) -> tuple[list[list[Tensor]], Tensor, g.Warp]:
    flows = [[4 * noise(2, 8, 10, 2, seed=seed + 10 * k + i) - 2 for i in range(n)] for k in range(4)]
    return flows, fundamental(seed, 2), g.random_warp(2, 8, 10, generator=source(seed), like=double)


def test_the_joint_loss_is_the_sum_of_its_parts() -> None:
    (ab, ba, there, back), F, warp = joint()
    got = life.life_loss(ab, ba, F, there=there, back=back, warp=warp, weights=life.Weights(0.5, 2.0, 0.25))
    sed = cycle = bit = 0.0
    for i, share in enumerate((0.64, 0.8, 1.0)):
        sed += share * float(life.sed_loss(ab[i], F) + life.sed_loss(ba[i], F.mT)) / 2
        cycle += share * float(life.cycle_loss(ab[i], ba[i]) + life.cycle_loss(ba[i], ab[i])) / 2
        bit += share * float(life.bit_loss(there[i], back[i], warp))
    assert [float(p) for p in got[1:]] == pytest.approx([sed, bit, cycle])
    assert float(got.total) == pytest.approx(0.5 * sed + 2 * bit + 0.25 * cycle)


def test_a_loss_without_weight_is_not_computed() -> None:
    (ab, ba, there, _), F, warp = joint()
    got = life.life_loss(ab[0], ba[0], F, weights=life.Weights(1.0, 0.0, 0.0))
    assert got.bit is None
    assert got.cycle is None
    assert torch.equal(got.total, got.sed)
    only = life.life_loss(
        ab, ba, torch.zeros(2, 3, 3), there=there, warp=warp, one_way=True, weights=life.Weights(0, 1, 0)
    )
    assert torch.equal(only.total, only.bit)


def test_gradients() -> None:
    f, b = (2 * noise(1, 3, 4, 2) - 0.9).requires_grad_(), (2 * noise(1, 3, 4, 2, seed=1) - 1.1).requires_grad_()
    F = fundamental(4, 1)
    warp = g.random_affine(1, 3, 4, generator=source(2), like=double)
    valid = noise(1, 3, 4, seed=3) > 0.2
    x, y = (9 * noise(3, 2)).requires_grad_(), (9 * noise(3, 2, seed=1)).requires_grad_()
    assert gradcheck(lambda p, q: life.sed(p, q, fundamental(2)), (x, y))
    assert gradcheck(lambda flow: life.sed_loss(flow, F, valid=valid), (f,))
    for mode in ("adaptive", "full"):
        assert gradcheck(lambda p, q, mode=mode: life.cycle_loss(p, q, mode=mode, alpha=1.0, valid=valid), (f, b))
    assert gradcheck(lambda p, q: life.bit_loss(p, q, warp, valid=valid), (f, b))
    assert gradcheck(lambda p: life.bit_loss(p, None, warp, one_way=True, scale=None), (f,))

    def whole(p: Tensor, q: Tensor) -> Tensor:
        return life.life_loss([p, 0.5 * p], [q, 0.5 * q], F, there=[p, q], back=[q, p], warp=warp).total

    assert gradcheck(whole, (f, b))


def test_the_gradient_of_f_is_right_though_f_is_scaled_inside() -> None:
    """Perturbations of F that stay of rank 2: scalings, and turns of the second view."""
    x, y = 9 * noise(3, 2), 9 * noise(3, 2, seed=1)
    v = torch.tensor([0.3, -0.2, 0.5]).double().requires_grad_()

    def turned(v: Tensor) -> Tensor:
        return life.sed(x, y, fundamental(2) @ torch.linalg.matrix_exp(g.skew(0.01 * v[:1].repeat(3))) * v[1])

    assert gradcheck(turned, (v,))


# -------------------------------------------------------------------------------------------- where the paper is silent


HALF = 0.0136
"""Measured on the pair below: px from the line, without the shift (specific to its cameras)."""


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
    still, missed = constant(0, 0, 64, 96), constant(0, 4, 64, 96)
    assert float(life.cycle_loss(still, missed)) == 0
    position = g.follow(still).norm(dim=-1)
    assert ((life.BETA * position).clamp(min=life.ALPHA) >= 4).any()
    far = constant(90, 0, 64, 96)
    assert float(life.cycle_loss(far, constant(-90, 4, 64, 96))) == pytest.approx(4)  # 0.05 · 90 = 4.5 px are allowed


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


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: life.sed(torch.zeros(1, 2), torch.zeros(1, 2), torch.eye(3)), InputError, "rank 3"),
        (lambda: life.sed(torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(3, 3)), InputError, "got 0"),
        (lambda: life.sed(torch.zeros(1, 2), torch.zeros(2, 2), RECTIFIED), ShapeError, "x, y, F"),
        (lambda: life.sed(torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(2, 3)), ShapeError, "F: expected"),
        (lambda: life.sed_loss(constant(0, 0), torch.eye(3)[None]), InputError, "rank 3"),
        (lambda: life.sed_loss(constant(0, 0), RECTIFIED), ShapeError, "one for each flow"),
        (lambda: life.sed_loss(constant(0, 0)[0], RECTIFIED[None]), ShapeError, "flow: expected a flow"),
        (lambda: life.cycle_loss(constant(0, 0), constant(0, 0), mode="half"), InputError, "mode: expected"),
        (lambda: life.cycle_loss(constant(0, 0), constant(0, 0)[0]), ShapeError, "backward: expected"),
        (lambda: life.bit_loss(constant(0, 0), None, shift(0, 0)), InputError, "give it or one_way=True"),
        (lambda: life.bit_loss(constant(0, 0).expand(2, -1, -1, -1), constant(0, 0), shift(0, 0)), ShapeError, "warp"),
        (lambda: life.sequence([]), InputError, "losses"),
        (lambda: life.life_loss(constant(0, 0), constant(0, 0), RECTIFIED[None]), InputError, "weights.bit = 0"),
        (lambda: life.life_loss([], [], RECTIFIED[None]), InputError, "ab, ba: expected as many"),
        (lambda: life.life_loss(constant(0, 0), constant(0, 0), torch.eye(3)[None]), InputError, "rank 3"),
        (lambda: life.life_loss([constant(0, 0)] * 2, constant(0, 0), RECTIFIED[None]), InputError, "as many"),
    ],
)
def test_refusals(call: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()  # type: ignore[operator]
