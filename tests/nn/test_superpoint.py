"""SuperPoint against a plain restatement: pooled layers, cells, greedy suppression, descriptors between cells."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from likewise.nn.superpoint import SuperPoint, sample, suppress


@pytest.fixture(scope="module")
def network() -> SuperPoint:
    torch.manual_seed(1)
    made = SuperPoint().eval()
    for name, value in made.state_dict().items():
        if name.endswith("weight"):
            value *= 1.8  # so that a signal is left after ten layers
    made.convPb.weight.data *= 20
    return made


def grey(h: int, w: int) -> torch.Tensor:
    return torch.rand(1, h, w, generator=torch.Generator().manual_seed(2))


def test_the_maps_layer_by_layer(network: SuperPoint) -> None:
    w, x = network.state_dict(), grey(40, 51)[None]

    def layer(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.conv2d(x, w[f"{name}.weight"], w[f"{name}.bias"], padding=w[f"{name}.weight"].shape[-1] // 2)

    for block in "1234":
        x = layer(layer(x, f"conv{block}a").relu(), f"conv{block}b").relu()
        x = functional.max_pool2d(x, 2) if block != "4" else x
    cells = layer(layer(x, "convPa").relu(), "convPb")[0].exp()
    cells = (cells / cells.sum(dim=0)).numpy()
    rows = layer(layer(x, "convDa").relu(), "convDb")
    with torch.inference_mode():
        descriptors, probability = network(grey(40, 51)[None])
    assert descriptors.shape == (1, 256, 5, 6)
    assert torch.allclose(descriptors, rows / rows.norm(dim=1, keepdim=True), atol=1e-5)
    assert probability.shape == (1, 40, 48)
    for y, x_ in ((0, 0), (13, 29), (39, 47)):
        assert probability[0, y, x_] == pytest.approx(cells[(y % 8) * 8 + x_ % 8, y // 8, x_ // 8], abs=1e-6)


def test_the_layout_is_the_published_one() -> None:
    shapes = {name: tuple(value.shape) for name, value in SuperPoint().state_dict().items()}
    assert len(shapes) == 24
    assert shapes["conv1a.weight"] == (64, 1, 3, 3)
    assert shapes["convPb.weight"] == (65, 256, 1, 1)
    assert shapes["convDb.bias"] == (256,)


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 4))
def test_suppression_is_greedy(seed: int, radius: int) -> None:
    scores = np.random.default_rng(seed).permutation(15 * 18).reshape(15, 18) / 270
    left, expected = scores.copy(), np.zeros(scores.shape, dtype=bool)
    while left.max() > 0.1:
        y, x = np.unravel_index(left.argmax(), left.shape)
        expected[y, x] = True
        left[max(0, y - radius) : y + radius + 1, max(0, x - radius) : x + radius + 1] = -1
    assert np.array_equal(suppress(torch.from_numpy(scores), radius, 0.1).numpy(), expected)


def test_descriptors_between_cells() -> None:
    """By hand: a map that grows by 1 a cell in x and by 10 in y, beside a constant, so that its ratio survives."""
    i, j = np.mgrid[:5, :7].astype(np.float32)
    cells = torch.from_numpy(np.stack([j + 10 * i, np.ones_like(i)]))
    xy = torch.tensor([[3.5, 3.5], [20.0, 9.0], [55.0, 39.0]])
    rows = sample(cells, xy)
    u, v = (xy[:, 0] - 3.5) * 6 / (8 * 7 - 4.5), (xy[:, 1] - 3.5) * 4 / (8 * 5 - 4.5)
    assert torch.allclose(rows.norm(dim=1), torch.ones(3))
    assert torch.allclose(rows[:, 0] / rows[:, 1], u + 10 * v, atol=1e-4)


def test_points_are_kept_maxima_off_the_rim_strongest_first(network: SuperPoint) -> None:
    with torch.inference_mode():
        descriptors, probability = network(grey(48, 64)[None])
        xy, rows, scores = network.points(grey(48, 64), 1000)
        few = network.points(grey(48, 64), 3)
    kept = suppress(probability[0]).numpy()
    inner = {(x, y) for y, x in zip(*np.nonzero(kept), strict=True) if 4 <= x < 60 and 4 <= y < 44}
    assert len(inner) > 10
    assert {tuple(p) for p in xy.int().tolist()} == inner
    assert (scores.diff() <= 0).all()
    assert torch.equal(scores, probability[0, xy[:, 1].long(), xy[:, 0].long()])
    assert torch.allclose(rows, sample(descriptors[0], xy))
    assert torch.equal(few[0], xy[:3])
