"""Triplets of unit rows: densities against chance, draws against their weights, losses against loops and a peer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from likewise.errors import InputError
from likewise.images import triplets


def rows(n: int, d: int, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(n, d, generator=g, dtype=torch.float64), dim=1)


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_distances_are_those_of_a_loop() -> None:
    x, y = rows(7, 5), rows(4, 5, 1)
    want = [[math.dist(a.tolist(), b.tolist()) for b in y] for a in x]
    assert torch.allclose(triplets.distances(x, y), torch.tensor(want, dtype=torch.float64), atol=1e-7)


def test_equal_rows_have_a_finite_gradient() -> None:
    x = rows(3, 4)[[0, 0, 1]].requires_grad_()
    triplets.distances(x).sum().backward()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("dim", [3, 8, 32])
def test_the_density_is_that_of_random_rows(dim: int) -> None:
    """q(d), normalised on a grid, gives the share of random pairs below a distance."""
    grid = torch.linspace(1e-4, 2 - 1e-4, 20_001, dtype=torch.float64)
    q = triplets.log_density(grid, dim).exp()
    share = (q.cumsum(0) / q.sum()).numpy()
    d = triplets.distances(rows(4_000, dim), rows(4_000, dim, 1)).diagonal().numpy()
    for quantile in (0.1, 0.5, 0.9):
        at = float(np.quantile(d, quantile))
        assert np.interp(at, grid.numpy(), share) == pytest.approx(quantile, abs=0.03)


def test_weights_by_hand() -> None:
    """Three dimensions: q(d) = d, so that weights are 1/d, with 0.2 counted as 0.5, nothing beyond 1.4."""
    d = torch.tensor([[0.2, 1.0, 1.25, 1.5, 0.7]], dtype=torch.float64)
    allowed = torch.tensor([[True, True, True, True, False]])
    want = np.array([2.0, 1.0, 0.8, 0.0, 0.0]) / 3.8
    assert triplets.distance_weights(d, allowed, 3)[0].numpy() == pytest.approx(want)


def test_weights_fall_back_evenly_and_may_be_nothing() -> None:
    d = torch.tensor([[1.5, 1.6, 0.6], [1.0, 1.0, 1.0]], dtype=torch.float64)
    allowed = torch.tensor([[True, True, False], [False, False, False]])
    assert triplets.distance_weights(d, allowed, 8).tolist() == [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]


@given(st.integers(0, 1000), st.integers(2, 200))
def test_rows_of_weights_sum_to_one(seed: int, dim: int) -> None:
    """Also in many dimensions, where q spans hundreds of orders of magnitude."""
    d = triplets.distances(rows(6, min(dim, 40), seed))
    allowed = ~torch.eye(6, dtype=torch.bool)
    w = triplets.distance_weights(d, allowed, dim)
    assert torch.allclose(w.sum(1), torch.ones(6, dtype=torch.float64))
    assert (w[~allowed] == 0).all()


def test_draws_follow_their_weights() -> None:
    w = torch.tensor([[0.1, 0.0, 0.6, 0.3]], dtype=torch.float64).expand(20_000, 4)
    counts = torch.bincount(triplets.draw(w, source()), minlength=4) / 20_000
    assert counts[1] == 0
    assert counts.tolist() == pytest.approx([0.1, 0.0, 0.6, 0.3], abs=0.02)
    assert triplets.draw(torch.zeros(2, 3), source()).tolist() == [-1, -1]


@given(st.integers(0, 500), st.integers(3, 6), st.integers(3, 5))
def test_kinds_of_triplets(seed: int, classes: int, each: int) -> None:
    y = torch.arange(classes).repeat_interleave(each)
    d = triplets.distances(rows(len(y), 6, seed))
    a, p, n = triplets.discriminative(d, y, 6, source(seed))
    assert len(a) == len(y) * (each - 1)  # every ordered pair of one class
    assert (y[a] == y[p]).all()
    assert (a != p).all()
    assert (y[a] != y[n]).all()
    a, p, n = triplets.shared(d, y, 6, source(seed))
    assert (y[a] != y[p]).all()
    assert (y[a] != y[n]).all()
    assert (y[p] != y[n]).all()
    a, p, n = triplets.intra(y, source(seed))
    assert len(a) == len(y)
    assert (y[a] == y[p]).all()
    assert (y[a] == y[n]).all()
    assert (a != p).all()
    assert (a != n).all()
    assert (p != n).all()


def test_dealt_labels_make_pairs_of_all_classes() -> None:
    y = torch.arange(6).repeat_interleave(4)
    a, p, _ = triplets.permuted(triplets.distances(rows(24, 6)), y, 6, source())
    assert (y[a] != y[p]).any()
    assert len(a) == 24 * 3


def test_two_of_a_class_make_no_intra_triplet() -> None:
    """Three distinct pictures are needed; the released code repeats one of two instead."""
    a, _, _ = triplets.intra(torch.tensor([0, 0, 1, 1, 1]), source())
    assert a.tolist() == [2, 3, 4]


def test_equal_seeds_equal_triplets() -> None:
    y = torch.arange(5).repeat_interleave(3)
    d = triplets.distances(rows(15, 4))
    first, again, other = (triplets.discriminative(d, y, 4, source(s)).negative for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@given(st.integers(0, 1000))
def test_losses_are_those_of_a_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ap, an, beta = rng.uniform(0, 2, (3, 9))
    terms = [max(0.2 + p - b, 0) for p, b in zip(ap, beta, strict=True)]
    terms += [max(0.2 - n + b, 0) for n, b in zip(an, beta, strict=True)]
    active = [t for t in terms if t > 0]
    got = triplets.margin(*map(torch.from_numpy, (ap, an, beta)), 0.2)
    assert got.item() == pytest.approx(sum(active) / max(len(active), 1))
    hinges = [max(p - n + 0.2, 0) for p, n in zip(ap, an, strict=True)]
    active = [t for t in hinges if t > 0]
    got = triplets.hinge(torch.from_numpy(ap), torch.from_numpy(an), 0.2)
    assert got.item() == pytest.approx(sum(active) / max(len(active), 1))


def test_nothing_active_is_zero_with_a_gradient() -> None:
    d = torch.tensor([0.1], dtype=torch.float64, requires_grad=True)
    loss = triplets.margin(d, torch.tensor([2.0], dtype=torch.float64), torch.tensor([1.2], dtype=torch.float64), 0.2)
    loss.backward()
    assert loss.item() == 0.0
    assert d.grad.tolist() == [0.0]


def test_gradients_of_the_margin() -> None:
    y = torch.arange(4).repeat_interleave(3)
    mined = triplets.discriminative(triplets.distances(rows(12, 5)), y, 5, source())
    beta = torch.full((4,), 1.15, dtype=torch.float64, requires_grad=True)

    def loss(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        d = triplets.distances(torch.nn.functional.normalize(x, dim=1))
        return triplets.margin(
            d[mined.anchor, mined.positive], d[mined.anchor, mined.negative], b[y[mined.anchor]], 0.2
        )

    assert torch.autograd.gradcheck(loss, (rows(12, 5).requires_grad_(), beta))


def test_one_dimension_is_refused() -> None:
    with pytest.raises(InputError, match="dim"):
        triplets.log_density(torch.ones(1), 1)
