"""The first flow against loops, hand cases and permutations."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from likewise.pixels.life.network import Start, log_dual, similarities, smoothed, starts


def unit_map(seed, b, d, h, w):
    x = torch.randn(b, d, h, w, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(x, dim=1)


def test_dual_softmax_against_a_loop():
    s = torch.randn(1, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = log_dual(s).exp()
    for i in range(4):
        for j in range(5):
            row = s[0, i].exp() / s[0, i].exp().sum()
            column = s[0, :, j].exp() / s[0, :, j].exp().sum()
            assert found[0, i, j] == pytest.approx(float(row[j] * column[i]))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.integers(-3, 3), st.integers(-2, 2))
def test_a_shifted_map_is_found_exactly(seed, dx, dy):
    """Cells that are all different, moved by whole cells: the flow is that shift wherever the goal is inside."""
    f = unit_map(seed, 1, 32, 9, 12)
    moved = torch.roll(f, (dy, dx), (2, 3))
    there, back = starts(f, moved, 0.02, smooth=False)
    y, x = torch.meshgrid(torch.arange(9), torch.arange(12), indexing="ij")
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


def test_similarities_are_inner_products():
    a, b = unit_map(3, 1, 8, 2, 3), unit_map(4, 1, 8, 3, 2)
    s = similarities(a, b, 0.5)
    assert s.shape == (1, 6, 6)
    assert s[0, 4, 3].item() == pytest.approx(float(a[0, :, 1, 1] @ b[0, :, 1, 1]) / 0.5, abs=1e-6)


def test_smoothing_keeps_a_constant_and_fills_what_is_unsure():
    flow = torch.zeros(1, 8, 10, 2)
    flow[..., 0] = 3.0
    flow[0, 4, 5] = 40.0
    sure = torch.ones(1, 8, 10)
    sure[0, 4, 5] = 0.0
    found = smoothed(Start(flow, sure)).flow
    assert torch.allclose(found[..., 0], torch.full((1, 8, 10), 3.0), atol=1e-4)
    assert found[..., 1].abs().max() < 1e-4


def test_smoothing_without_any_confidence_is_finite():
    found = smoothed(Start(torch.randn(1, 5, 5, 2), torch.zeros(1, 5, 5))).flow
    assert torch.isfinite(found).all()
