"""The aligner's network: XFeat's trunk, the first flow and the windows against loops, steps of the recurrence."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kornia.feature import XFeat
from torch.nn.functional import avg_pool2d, normalize

from likewise.errors import ShapeError
from likewise.nn.pretrained import read_state, weights_file
from likewise.pixels.geometry import sample
from likewise.pixels.life import network as module
from likewise.pixels.life.network import (
    CENTRE,
    STRIDE,
    Network,
    Refine,
    Start,
    _enlarged,
    _finer,
    at_pixels,
    cells,
    log_dual,
    smoothed,
    starts,
)
from likewise.pixels.raft.correlation import Correlation
from likewise.pixels.rendering import textures


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
def network():
    """Untrained, on the wheel's trunk."""
    torch.manual_seed(0)
    made = Network(hidden=8)
    made.encoder.begin()
    return made.requires_grad_(False)


@pytest.fixture(scope="module")
def photo():
    return torch.from_numpy(np.array(textures.procedural(0, 1, side=160)[0])).movedim(-1, 0)[None] / 255.0


def test_features_are_those_of_xfeat(network):
    published = XFeat().eval()
    published.net.load_state_dict(read_state(weights_file("xfeat")))
    x = torch.rand(2, 3, 64, 96, generator=source(1))
    result = network.encoder(x)
    assert result.shape == (2, 64, *cells(x)) == (2, 64, 8, 12)
    assert torch.allclose(result, normalize(published.net(x)[0], dim=1), atol=1e-5)
    assert torch.allclose(result.square().sum(1), torch.ones(2, 8, 12), atol=1e-5)


def test_training_changes_no_statistics():
    """A network in training mode normalises as before, and what it normalises by stays to the last bit."""
    made = Network(hidden=8)
    made.encoder.begin()
    x = torch.rand(2, 3, 64, 64, generator=source(2))
    before, buffers = made.eval().encoder(x), {k: v.clone() for k, v in made.encoder.named_buffers()}
    assert torch.equal(made.train().encoder(x), before)
    assert made.refine.training
    assert len(buffers) > 20
    assert all(torch.equal(v, buffers[k]) for k, v in made.encoder.named_buffers())


def test_a_shift_by_the_deepest_stride_shifts_the_cells(network, photo):
    """A photo moved by 32 px gives the same cells four further on, away from the borders."""
    one, two = (network.encoder(x)[:, :, 5:-5] for x in (photo[..., :128], photo[..., 32:160]))
    same, other = (one[..., 9:11] * two[..., 5:7]).sum(1), (one[..., 5:7] * two[..., 5:7]).sum(1)
    assert same.mean() > 0.9
    assert same.mean() > other.mean() + 0.2


@pytest.mark.parametrize("shape", [(3, 64, 64), (1, 1, 64, 64), (1, 3, 64, 72), (1, 3, 48, 64)])
def test_a_wrong_shape_is_told(network, shape):
    for call in (cells, network.encoder):
        with pytest.raises(ShapeError, match=r"images: expected \(b, 3, h, w\) with sides that 32 divides, got"):
            call(torch.zeros(shape))


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


def test_of_too_many_cells_means_are_compared(network, monkeypatch):
    """Blocks of 2 × 2 like cells moved by two: the coarser start, enlarged, is the flow of the finer cells."""
    f = unit_map(3, 1, 64, 6, 8).repeat_interleave(2, 2).repeat_interleave(2, 3)
    moved = torch.roll(f, 2, 3)
    whole = network.starts(f, moved)
    monkeypatch.setattr(module, "MOST_CELLS", 60)
    for few, all_cells, dx in zip(network.starts(f, moved), whole, (2, -2), strict=True):
        assert few.flow.shape == all_cells.flow.shape == (1, 12, 16, 2)
        assert (few.flow[0, :, 4:-4] - torch.tensor([dx, 0.0])).abs().max() < 0.2


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


def test_peaks_against_a_loop():
    refine, seen = Refine(12, 8), 0.3 * torch.randn(1, 147, 2, 3, generator=source())
    goals, heights, spread = (x.detach() for x in refine.peaks(seen))
    tau = float(refine.log_tau.detach().exp())
    for level, i, j in np.ndindex(3, 2, 3):
        window = seen[0, 49 * level : 49 * level + 49, i, j].double().numpy()
        p = np.exp(window / tau) / np.exp(window / tau).sum()
        at = [sum(p[7 * y + x] * 2**level * ((x, y)[k] - 3) for y in range(7) for x in range(7)) for k in (0, 1)]
        assert goals[0, level, :, i, j].tolist() == pytest.approx(at, abs=1e-4)
        assert float(heights[0, level, i, j]) == pytest.approx(p.max(), rel=1e-4)
        own = spread[0, 49 * level : 49 * level + 49, i, j].numpy()
        np.testing.assert_allclose(own, (window - window.mean()) / window.std(), rtol=0.02)


@pytest.mark.parametrize(("level", "dx", "dy"), [(0, 2, -1), (1, -3, 0), (2, 1, 3)])
def test_a_sharp_peak_is_where_it_is(level, dx, dy):
    """In cells of the finest level: (dx, dy) · 2ˡ; windows without a peak say to stay."""
    seen = torch.zeros(1, 3, 7, 7, 1, 1)
    seen[0, level, dy + 3, dx + 3] = 2.0
    goals = Refine(12, 8).peaks(seen.reshape(1, 147, 1, 1))[0][0, :, :, 0, 0]
    wanted = torch.zeros(3, 2)
    wanted[level] = 2.0**level * torch.tensor([dx, dy])
    assert torch.allclose(goals, wanted, atol=1e-3)


def test_windows_beyond_the_frame_have_a_finite_gradient():
    """There every correlation is 0, and their standard deviation as well."""
    fa, fb = (f.requires_grad_() for f in maps())
    flows = Refine(12, 8)(fa, pairs(fa, fb), torch.full((2, 6, 7, 2), 90.0), 2)
    flows[-1].sum().backward()
    assert torch.isfinite(fa.grad).all()
    assert torch.isfinite(fb.grad).all()


@pytest.mark.parametrize(("dx", "dy"), [(1, 0), (-1, 0), (0, 1), (0, -1)])
def test_the_first_step_of_a_new_network_goes_towards_the_shift(network, dx, dy):
    f = unit_map(0, 1, 64, 12, 14)
    moved = network.towards(f, torch.roll(f, (dy, dx), (2, 3)), torch.zeros(1, 12, 14, 2), 1)[0][0, 2:-2, 2:-2]
    along, across = (moved[..., 0], moved[..., 1]) if dx else (moved[..., 1], moved[..., 0])
    assert (along * (dx + dy) > 0.02).all()
    assert across.abs().max() < 0.2 * along.abs().min()


def test_an_image_does_not_move_towards_itself(network, photo):
    fa, fb = network.features(photo, photo)
    assert torch.equal(fa, fb)
    for way in network(fa, fb, iters=2):
        assert len(way) == 3
        assert way[0].abs().max() < 0.15
        assert way[-1][:, 3:-3, 3:-3].abs().mean() < 0.1  # untrained: at the border windows see zeros, and pull inwards


def test_features_of_other_sizes_are_encoded_apart(network, photo):
    fa, fb = network.features(photo, photo[..., :128])
    assert torch.allclose(fb, network.encoder(photo[..., :128]))
    assert [f.shape[1:3] for f in (network(fa, fb, iters=1)[k][-1] for k in (0, 1))] == [(20, 20), (20, 16)]


def test_gradients_reach_every_weight_of_the_recurrence_and_the_features_by_every_road():
    """Of one image through the context, of both through the windows. The head's last layer begins with weights of
    zero, which no gradient passes: it is given others."""
    refine, (fa, fb) = Refine(12, 8), maps()
    torch.nn.init.normal_(refine.head[2].weight, std=0.1)

    def run(own, one, other):
        flow = refine(own, pairs(one, other), torch.zeros(2, 6, 7, 2), 2)[-1]
        leaves = [x for x in (own, one, other) if x.requires_grad]
        return torch.autograd.grad(flow.square().sum(), [*leaves, *refine.parameters()])

    for number in range(3):
        given = [x.detach().clone() for x in (fa, fa, fb)]
        given[number].requires_grad_()
        assert all(grad.abs().sum() > 0 for grad in run(*given))


def test_inference_and_training_give_the_same_flow():
    torch.manual_seed(0)
    made = Network(hidden=8)
    torch.nn.init.normal_(made.refine.head[2].weight, std=0.1)
    fa, fb = unit_map(0, 1, 64, 10, 12), unit_map(1, 1, 64, 11, 9).requires_grad_()
    with_gradient = made(fa, fb, iters=2)[0][-1].detach()
    with torch.no_grad():
        without = made(fa, fb, iters=2)[0][-1]
    assert torch.allclose(with_gradient, without, atol=1e-4)


# -------------------------------------------------------------------------------------------------------- cells, pixels


@pytest.mark.parametrize("size", [(64, 96), (57, 90)])
def test_a_linear_flow_of_cells_is_that_of_every_pixel(size):
    """Also beyond the outermost centres: cell i stands at pixel 8 i + 3.5."""
    M, v = torch.tensor([[0.1, -0.2], [0.3, 0.05]]), torch.tensor([5.0, -7.0])
    cell, pixel = plane(8, 12, STRIDE, CENTRE).permute(1, 2, 0), plane(*size).permute(1, 2, 0)
    result = at_pixels(((cell @ M.T + v) / STRIDE)[None], *size)[0]
    assert torch.allclose(result, pixel @ M.T + v, atol=1e-4)
    assert (STRIDE, CENTRE) == (8, 3.5)


@pytest.mark.parametrize("factor", [2, 4])
def test_enlarging_is_exact_for_linear_maps_up_to_the_border(factor):
    h, w = 5 * factor - 1, 6 * factor - 1
    fine = _enlarged(plane(5, 6)[None], factor, h, w)
    assert torch.allclose(fine[0], (plane(h, w) + 0.5) / factor - 0.5, atol=1e-5)


def test_a_coarse_start_at_rest_is_a_fine_one_at_rest():
    f = torch.zeros(1, 4, 9, 11)
    coarse = Start(torch.zeros(1, 5, 6, 2), torch.ones(1, 5, 6))
    assert _finer(coarse, f, 2, 2).flow.abs().max() < 1e-5
