"""Windows against a loop, the two ways of computing them against each other, and the recurrence's invariances."""

import pytest
import torch

from likewise.pixels.geometry import sample
from likewise.pixels.life.network import Nearby, Network, Refine, Start, Volume, _enlarged, _finer, at_pixels
from likewise.pixels.raft.correlation import window


def maps(seed=0, b=2, d=12, size=(6, 7), other=(5, 8)):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(b, d, *size, generator=g), torch.randn(b, d, *other, generator=g)


def test_a_window_against_bilinear_sampling():
    level = torch.randn(1, 3, 5 * 8, generator=torch.Generator().manual_seed(1))
    at = torch.tensor([[[2.3, 1.6], [0.0, 4.0], [7.4, -0.5]]])
    found = window(level[0], at[0], (5, 8), 2)
    for i in range(3):
        picture = level[0, i].view(1, 1, 5, 8)
        offsets = torch.arange(-2.0, 3.0)
        points = torch.stack(torch.meshgrid(offsets, offsets, indexing="ij")[::-1], -1)[None] + at[0, i]
        assert torch.allclose(found[i].mT, sample(picture, points)[0, 0], atol=1e-5)


def test_windows_computed_when_asked_for_are_the_same():
    fa, fb = maps()
    goals = 10 * torch.rand(2, 6, 7, 2, generator=torch.Generator().manual_seed(2)) - 1
    assert torch.allclose(Volume(fa, fb).around(goals), Nearby(fa, fb).around(goals), atol=1e-5)


def test_a_new_recurrence_changes_nothing():
    """Its last layer begins at zero: the flow is the start's."""
    fa, fb = maps()
    start = torch.randn(2, 6, 7, 2)
    refine = Refine(12, 8)
    for flow in refine(fa, Volume(fa, fb), start, torch.ones(2, 6, 7), 3):
        assert torch.equal(flow, start)


def test_gradients_reach_every_weight_of_the_recurrence():
    fa, fb = maps()
    refine = Refine(12, 8)
    torch.nn.init.normal_(refine.head[2].weight, std=0.1)
    flows = refine(fa, Volume(fa, fb), torch.zeros(2, 6, 7, 2), torch.ones(2, 6, 7), 2)
    flows[-1].square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in refine.parameters())


def test_inference_and_training_give_the_same_flow():
    torch.manual_seed(0)
    network = Network(dim=16, hidden=8)
    torch.nn.init.normal_(network.refine.head[2].weight, std=0.1)
    fa = torch.nn.functional.normalize(torch.randn(1, 16, 10, 12), dim=1)
    fb = torch.nn.functional.normalize(torch.randn(1, 16, 11, 9), dim=1)
    with_gradient = network(fa, fb, iters=2)[0].last
    with torch.no_grad():
        without = network(fa, fb, iters=2)[0].last
    assert torch.allclose(with_gradient, without, atol=1e-4)


def test_cells_to_pixels_keeps_a_linear_flow():
    """A flow that is linear in the cells' places is linear in the pixels between the outermost cells."""
    n, m = 7, 9
    y, x = torch.meshgrid(4.0 * torch.arange(n) + 1, 4.0 * torch.arange(m) + 1, indexing="ij")
    flow = torch.stack([0.1 * x - 0.2 * y, 0.3 * x + 0.05 * y], -1) / 4
    found = at_pixels(flow[None], 26, 34)[0]
    py, px = torch.meshgrid(torch.arange(26.0), torch.arange(34.0), indexing="ij")
    wanted = torch.stack([0.1 * px - 0.2 * py, 0.3 * px + 0.05 * py], -1)
    assert torch.allclose(found[1:25, 1:33], wanted[1:25, 1:33], atol=1e-4)


@pytest.mark.parametrize("factor", [2, 4])
def test_enlarging_is_exact_for_linear_maps_up_to_the_border(factor):
    y, x = torch.meshgrid(torch.arange(5.0), torch.arange(6.0), indexing="ij")
    coarse = torch.stack([x, y])[None]
    fine = _enlarged(coarse, factor, 5 * factor - 1, 6 * factor - 1)
    fy, fx = torch.meshgrid(torch.arange(5.0 * factor - 1), torch.arange(6.0 * factor - 1), indexing="ij")
    assert torch.allclose(fine[0, 0], (fx + 0.5) / factor - 0.5, atol=1e-5)
    assert torch.allclose(fine[0, 1], (fy + 0.5) / factor - 0.5, atol=1e-5)


def test_a_coarse_start_at_rest_is_a_fine_one_at_rest():
    f = torch.zeros(1, 4, 9, 11)
    coarse = Start(torch.zeros(1, 5, 6, 2), torch.ones(1, 5, 6))
    assert _finer(coarse, f, 2, 2).flow.abs().max() < 1e-5
