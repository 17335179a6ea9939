"""Margin loss and distance-weighted negatives against pytorch-metric-learning."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from likewise.images import losses as mine

losses = pytest.importorskip("pytorch_metric_learning.losses", reason="pip install pytorch-metric-learning")
miners = pytest.importorskip("pytorch_metric_learning.miners")


def world(seed: int, n: int = 24, each: int = 4, dim: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(n, dim, generator=g), dim=1), torch.arange(
        n // each
    ).repeat_interleave(each)


@pytest.mark.parametrize("seed", range(5))
def test_margin_loss_and_its_gradients(seed: int) -> None:
    """Equal triplets, equal boundaries: equal losses, equal gradients of rows and β."""
    z, y = world(seed)
    mined = mine.mine_discriminative(mine.distances(z), y, 8, torch.Generator().manual_seed(seed))
    theirs = losses.MarginLoss(margin=0.2, nu=0, beta=1.1, learn_beta=True, num_classes=6)
    a, b = z.clone().requires_grad_(), z.clone().requires_grad_()
    beta = torch.full((6,), 1.1, requires_grad=True)
    d = mine.distances(a)
    ours = mine.margin(d[mined.anchor, mined.positive], d[mined.anchor, mined.negative], beta[y[mined.anchor]], 0.2)
    other = theirs(b, y, indices_tuple=tuple(mined))
    assert ours.item() == pytest.approx(other.item(), rel=1e-5)
    torch.autograd.backward([ours, other])
    tangent = a.grad - (a.grad * z).sum(1, keepdim=True) * z  # theirs normalises, which leaves the tangent part
    assert torch.allclose(tangent, b.grad, atol=1e-5)
    assert torch.allclose(beta.grad, theirs.beta.grad, atol=1e-6)


def test_negatives_are_drawn_as_often() -> None:
    """How often each negative of an anchor is drawn, over many draws of either."""
    z, y = world(3, n=12, each=3, dim=16)
    d = mine.distances(z)
    weights = mine.distance_weights(d, y[:, None] != y[None, :], 16)
    miner = miners.DistanceWeightedMiner(cutoff=mine.LOWER, nonzero_loss_cutoff=mine.UPPER)
    torch.manual_seed(0)
    counts = np.zeros((12, 12))
    for _ in range(600):
        a, _, n = miner(z, y)
        np.add.at(counts, (a.numpy(), n.numpy()), 1)
    drawn = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    some = counts.sum(axis=1) > 0  # theirs leaves out an anchor with nothing within the cutoff
    assert some.sum() >= 8
    assert np.abs(drawn - weights.numpy())[some].max() < 0.06
