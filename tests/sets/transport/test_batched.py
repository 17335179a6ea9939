"""The torch road: equal to the kernels, and its gradient is right."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.sets.transport.oracles import cost, ragged, smoothed

import likewise as lw
from likewise.sets.transport.batched import wasserstein

SETS = ragged(9, seed=5)


@pytest.mark.parametrize("value", ["kl", "paper", "divergence", "sharp"])
@pytest.mark.parametrize("gamma", [1.0, 0.1])
def test_equal_to_the_kernels(value, gamma):
    fast = lw.sets.distances(SETS, gamma=gamma, value=value, tol=1e-8)
    slow = lw.sets.distances(SETS, gamma=gamma, value=value, tol=1e-8, backend="torch")
    np.testing.assert_allclose(slow, fast, rtol=1e-5, atol=1e-6)


def test_gradient_in_the_points():
    torch.manual_seed(0)
    P, Q = (torch.randn(2, n, 3, dtype=torch.float64, requires_grad=True) for n in (4, 5))
    assert torch.autograd.gradcheck(lambda p, q: wasserstein(p, q, gamma=0.3, tol=1e-12), (P, Q), atol=1e-6)


def test_padding_has_no_part_and_no_gradient():
    P, a = SETS[0]
    Q, b = SETS[1]
    padded = np.vstack([P, [[9.0, 9.0, 9.0]]])
    points = torch.tensor(padded[None], requires_grad=True)
    value = wasserstein(
        points,
        torch.tensor(Q[None]),
        torch.tensor(np.append(a, 0.0)[None]),
        torch.tensor(b[None]),
        gamma=0.2,
        tol=1e-11,
    )
    expected, _ = smoothed(cost(P, Q), a, b, 0.2)
    assert float(value[0].detach()) == pytest.approx(expected, rel=1e-8)
    value.sum().backward()
    assert torch.equal(points.grad[0, -1], torch.zeros(3, dtype=torch.float64))
    assert torch.isfinite(points.grad).all()


def test_gamma_must_be_positive():
    with pytest.raises(lw.InputError, match="gamma"):
        wasserstein(torch.zeros(1, 2, 2), torch.zeros(1, 2, 2), gamma=0.0)
