"""The aligner's network: cells stand where they say, the first flow and the windows against loops, the recurrence."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import avg_pool2d, interpolate, normalize, pad

from likewise.errors import ShapeError
from likewise.nn import named
from likewise.pixels.geometry import sample
from likewise.pixels.life.network import (
    AROUND,
    CENTRE,
    STRIDE,
    TAPS,
    Encoder,
    Network,
    Refine,
    Start,
    _enlarged,
    _finer,
    at_pixels,
    cells,
    log_dual,
    place,
    smoothed,
    starts,
    unit,
)
from likewise.pixels.raft.correlation import Correlation


def source(seed=0):
    return torch.Generator().manual_seed(seed)


def unit_map(seed, b, d, h, w):
    return normalize(torch.randn(b, d, h, w, generator=source(seed)), dim=1)


def plane(h, w, step=1.0, first=0.0):
    """x and y of places (h, w), first + step · index: (2, h, w)."""
    y, x = torch.meshgrid(first + step * torch.arange(h), first + step * torch.arange(w), indexing="ij")
    return torch.stack([x, y])


# ------------------------------------------------------------------------------------------------------------- encoder


@pytest.fixture(scope="module")
def encoder():
    made = Encoder(dim=24)
    made.begin()
    made.principal(torch.rand(2, 3, 64, 80, generator=source(0)))
    return made.eval().requires_grad_(False)


def test_maps_are_those_of_the_backbone(encoder):
    x = torch.rand(1, 3, 64, 64, generator=source(1))
    base = named("efficientnet-lite0").fold()
    padded = pad(x, (AROUND, AROUND + 12, AROUND, AROUND + 12), mode="replicate")  # to 144
    for result, (block, channels, stride) in zip(encoder.maps(x), TAPS, strict=True):
        before = base.features(padded, block - 1)
        wanted = base.blocks[block].expand(before)
        assert result.shape == (1, channels, 144 // stride, 144 // stride)
        assert torch.allclose(result, wanted, atol=1e-4)


@pytest.mark.parametrize("stride", [4, 8, 16])
def test_a_map_is_read_at_the_cells_places(stride):
    """A map whose value is the pixel at which its cell stands gives the cells' own pixels."""
    n = 24
    at = stride * torch.arange(n, dtype=torch.float64) + stride - 1 - AROUND
    ramp = torch.stack([at.expand(n, n), at[:, None].expand(n, n)])[None]
    h = w = 8
    result = place(ramp, stride, h, w)
    wanted = STRIDE * torch.arange(8, dtype=torch.float64) + CENTRE
    assert torch.allclose(result[0, 0], wanted.expand(8, 8))
    assert torch.allclose(result[0, 1], wanted[:, None].expand(8, 8))


def test_a_shift_by_a_stride_shifts_the_cells(encoder):
    """A photo moved by 16 px gives the same cells four further on, away from the borders."""
    g = source(2)
    coarse = torch.rand(1, 3, 24, 30, generator=g)
    photo = interpolate(coarse, (192, 240), mode="bicubic").clamp(0, 1)
    one, two = encoder(photo[:, :, :160, :192]), encoder(photo[:, :, :160, 16:208])
    inner = (slice(None), slice(None), slice(12, 28))
    here, there = one[..., 18:36][inner], two[..., 14:32][inner]
    agree = (here * there).sum(1)
    apart = (one[..., 14:32][inner] * there).sum(1)
    assert agree.mean() > 0.9
    assert agree.mean() > apart.mean() + 0.1


def test_rows_are_of_unit_length_and_sized_by_four(encoder):
    result = encoder(torch.rand(2, 3, 66, 81, generator=source(3)))
    assert result.shape == (2, 24, 17, 21)
    assert torch.allclose(result.square().sum(1), torch.ones(2, 17, 21), atol=1e-3)


def test_unit_normalises_channels_then_cells():
    x = torch.randn(2, 5, 4, 6, generator=source(4))
    y = (x - x.mean((2, 3), keepdim=True)) / (x.var((2, 3), unbiased=False, keepdim=True) + 1e-5).sqrt()
    wanted = y / (y.square().sum(1, keepdim=True) + 1e-6).sqrt()
    assert torch.allclose(unit(x), wanted, atol=1e-5)


def test_the_axes_are_principal(encoder):
    """No other projection to as many dimensions keeps more of the variance: the Gram matrix of the axes is one."""
    axes = torch.cat([p.weight[:, :, 0, 0] for p in encoder.project], 1)
    assert torch.allclose(axes @ axes.T, torch.eye(24), atol=1e-4)


def test_a_wrong_shape_is_told():
    with pytest.raises(ShapeError, match="images"):
        cells(torch.zeros(3, 64, 64))


# ----------------------------------------------------------------------------------------------------------- first flow


def test_dual_softmax_against_a_loop():
    s = torch.randn(1, 4, 5, generator=source(), dtype=torch.float64)
    result = log_dual(s).exp()
    for i in range(4):
        for j in range(5):
            row = s[0, i].exp() / s[0, i].exp().sum()
            column = s[0, :, j].exp() / s[0, :, j].exp().sum()
            assert result[0, i, j] == pytest.approx(float(row[j] * column[i]))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.integers(-3, 3), st.integers(-2, 2))
def test_a_shifted_map_is_found_exactly(seed, dx, dy):
    """Cells that are all different, moved by whole cells: the flow is that shift wherever the goal is inside."""
    f = unit_map(seed, 1, 32, 9, 12)
    moved = torch.roll(f, (dy, dx), (2, 3))
    there, back = starts(f, moved, 0.02, smooth=False)
    x, y = plane(9, 12)
    inside = (y + dy >= 0) & (y + dy < 9) & (x + dx >= 0) & (x + dx < 12)
    wanted = torch.tensor([dx, dy], dtype=torch.float32)
    assert (there.flow[0][inside] - wanted).abs().max() < 0.2
    assert (back.flow[0].flip(0, 1)[inside] + wanted).abs().max() < 0.2
    assert there.confidence[0][inside].min() > 0.5


def test_both_ways_are_each_others_mirror():
    a, b = unit_map(1, 2, 16, 6, 7), unit_map(2, 2, 16, 5, 8)
    there, back = starts(a, b, 0.1)
    other, again = starts(b, a, 0.1)
    assert torch.allclose(there.flow, again.flow, atol=1e-5)
    assert torch.allclose(back.flow, other.flow, atol=1e-5)


def test_smoothing_keeps_a_constant_and_fills_what_is_unsure():
    flow = torch.zeros(1, 8, 10, 2)
    flow[..., 0] = 3.0
    flow[0, 4, 5] = 40.0
    sure = torch.ones(1, 8, 10)
    sure[0, 4, 5] = 0.0
    result = smoothed(Start(flow, sure)).flow
    assert torch.allclose(result[..., 0], torch.full((1, 8, 10), 3.0), atol=1e-4)
    assert result[..., 1].abs().max() < 1e-4


def test_smoothing_without_any_confidence_is_finite():
    result = smoothed(Start(torch.randn(1, 5, 5, 2), torch.zeros(1, 5, 5))).flow
    assert torch.isfinite(result).all()


# ----------------------------------------------------------------------------------------------------------- recurrence


def maps(seed=0, b=2, d=12, size=(6, 7), other=(5, 8)):
    return torch.randn(b, d, *size, generator=source(seed)), torch.randn(b, d, *other, generator=source(seed + 1))


def pairs(fa, fb, **more):
    return Correlation(fa, fb, levels=3, radius=3, centred=True, **more)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("kind", ["all", "demand"])
def test_centred_windows_against_bilinear_sampling(kind, grad):
    """Level by level: inner products with means of 2 × 2 cells, read around (p + ½) / 2ˡ − ½, y the slower one."""
    fa, fb = maps()
    goals = 10 * torch.rand(2, 6, 7, 2, generator=source(2)) - 1
    result = pairs(fa.requires_grad_(grad), fb, kind=kind).lookup(goals).detach()
    offsets, wanted = plane(7, 7, first=-3.0).permute(1, 2, 0), []
    for level in range(3):
        volume = torch.einsum("bdhw,bdij->bhwij", fa.detach(), fb).flatten(0, 2)[:, None]
        points = ((goals + 0.5) / 2**level - 0.5).reshape(-1, 1, 1, 2) + offsets
        wanted.append(sample(volume, points).reshape(2, 6, 7, 49))
        fb = avg_pool2d(fb, 2, ceil_mode=True, count_include_pad=False)
    assert torch.allclose(result, torch.cat(wanted, -1).permute(0, 3, 1, 2), atol=1e-5)


def test_a_new_recurrence_changes_nothing():
    """Its last layer begins at zero: the flow is the start's."""
    fa, fb = maps()
    start = torch.randn(2, 6, 7, 2)
    refine = Refine(12, 8)
    for flow in refine(fa, pairs(fa, fb), start, torch.ones(2, 6, 7), 3):
        assert torch.equal(flow, start)


def test_gradients_reach_every_weight_of_the_recurrence():
    fa, fb = maps()
    refine = Refine(12, 8)
    torch.nn.init.normal_(refine.head[2].weight, std=0.1)
    flows = refine(fa, pairs(fa, fb), torch.zeros(2, 6, 7, 2), torch.ones(2, 6, 7), 2)
    flows[-1].square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in refine.parameters())


def test_inference_and_training_give_the_same_flow():
    torch.manual_seed(0)
    network = Network(dim=16, hidden=8)
    torch.nn.init.normal_(network.refine.head[2].weight, std=0.1)
    fa = unit_map(0, 1, 16, 10, 12)
    fb = unit_map(1, 1, 16, 11, 9)
    with_gradient = network(fa, fb, iters=2)[0][-1]
    with torch.no_grad():
        without = network(fa, fb, iters=2)[0][-1]
    assert torch.allclose(with_gradient, without, atol=1e-4)


def test_cells_to_pixels_keeps_a_linear_flow():
    """A flow that is linear in the cells' places is linear in the pixels between the outermost cells."""
    M = torch.tensor([[0.1, -0.2], [0.3, 0.05]])
    cell, pixel = plane(7, 9, 4.0, 1.0).permute(1, 2, 0), plane(26, 34).permute(1, 2, 0)
    result, wanted = at_pixels((cell @ M.T / 4)[None], 26, 34)[0], pixel @ M.T
    assert torch.allclose(result[1:25, 1:33], wanted[1:25, 1:33], atol=1e-4)


@pytest.mark.parametrize("factor", [2, 4])
def test_enlarging_is_exact_for_linear_maps_up_to_the_border(factor):
    h, w = 5 * factor - 1, 6 * factor - 1
    fine = _enlarged(plane(5, 6)[None], factor, h, w)
    assert torch.allclose(fine[0], (plane(h, w) + 0.5) / factor - 0.5, atol=1e-5)


def test_a_coarse_start_at_rest_is_a_fine_one_at_rest():
    f = torch.zeros(1, 4, 9, 11)
    coarse = Start(torch.zeros(1, 5, 6, 2), torch.ones(1, 5, 6))
    assert _finer(coarse, f, 2, 2).flow.abs().max() < 1e-5
