"""Against POT: the smoothed plan and value, and exact transport."""

from __future__ import annotations

import numpy as np
import ot
import pytest

import likewise as lw
from likewise.sets.transport import solvers as transport
from tests.sets.transport.oracles import ragged

SETS = ragged(8, d=4, seed=11, high=12)
PAIRS = [(i, j) for i in range(0, 8, 2) for j in range(1, 8, 3)]


@pytest.mark.parametrize("gamma", [2.0, 0.2])
@pytest.mark.parametrize("pair", PAIRS)
def test_smoothed_plan_and_value(pair, gamma):
    (P, a), (Q, b) = (SETS[k] for k in pair)
    ours = lw.sets.compare((P, a), (Q, b), gamma=gamma, value="kl", tol=1e-10)
    C = ot.dist(P, Q)
    theirs = ot.sinkhorn(a, b, C, gamma, method="sinkhorn_log", stopThr=1e-12, numItermax=100_000)
    np.testing.assert_allclose(ours.plan, theirs, atol=1e-8)
    value = (C * theirs).sum() + gamma * (theirs * np.log(theirs / np.outer(a, b))).sum()
    assert ours.distance == pytest.approx(value, rel=1e-7)


@pytest.mark.parametrize("pair", PAIRS)
def test_exact_value(pair):
    (P, a), (Q, b) = (SETS[k] for k in pair)
    C = ot.dist(P, Q)
    value, F = transport.exact(C, a, b)
    assert value == pytest.approx(ot.emd2(a, b, C), rel=1e-9)
    np.testing.assert_allclose(F.sum(1), a, atol=1e-9)
    np.testing.assert_allclose(F.sum(0), b, atol=1e-9)


@pytest.mark.slow
def test_divergence_is_theirs():
    (P, a), (Q, b) = SETS[0], SETS[1]
    gamma = 0.5

    def kl(P, a, Q, b):
        C = ot.dist(P, Q)
        F = ot.sinkhorn(a, b, C, gamma, method="sinkhorn_log", stopThr=1e-12, numItermax=100_000)
        return (C * F).sum() + gamma * (F * np.log(F / np.outer(a, b))).sum()

    expected = kl(P, a, Q, b) - (kl(P, a, P, a) + kl(Q, b, Q, b)) / 2
    assert lw.sets.compare((P, a), (Q, b), gamma=gamma, value="divergence").distance == pytest.approx(
        expected, rel=1e-6
    )


@pytest.mark.parametrize(("m", "n"), [(1, 6), (30, 30), (20, 90), (130, 120)])
@pytest.mark.parametrize("d", [2, 40])
def test_a_table_of_any_size_has_their_values(m, n, d):
    r = np.random.default_rng(m)
    P, Q = r.normal(size=(m, d)), r.normal(size=(n, d)) + 0.5
    a, b = np.full(m, 1 / m), np.full(n, 1 / n)
    C = ot.dist(P, Q)
    gamma = 0.2 * float(np.median(C))
    theirs = ot.sinkhorn(a, b, C, gamma, method="sinkhorn_log", stopThr=1e-11, numItermax=100_000)
    value = (C * theirs).sum() + gamma * (theirs * np.log(theirs / np.outer(a, b))).sum()
    assert lw.sets.distances([P], [Q], gamma=gamma, value="kl")[0, 0] == pytest.approx(value, rel=1e-6)
    assert lw.sets.distances([P, Q], gamma=gamma, value="kl")[0, 1] == pytest.approx(value, rel=1e-6)
