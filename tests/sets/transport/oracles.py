"""Slow, plain computations that the fast ones are held against."""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp


def smoothed(C, a, b, gamma, tol=1e-13, most=200_000):
    """(kl value, plan) by textbook log-domain Sinkhorn."""
    la, lb, K = np.log(a), np.log(b), -C / gamma
    f, g = np.zeros(len(a)), np.zeros(len(b))
    for step in range(most):
        f = -logsumexp(K + (g + lb)[None, :], axis=1)
        g = -logsumexp(K + (f + la)[:, None], axis=0)
        if step % 50 == 49:
            F = np.exp(K + (f + la)[:, None] + (g + lb)[None, :])
            if np.abs(F.sum(1) - a).sum() < tol:
                break
    F = np.exp(K + (f + la)[:, None] + (g + lb)[None, :])
    return float((C * F).sum() + gamma * (F * (K + f[:, None] + g[None, :])).sum()), F


def cost(P, Q, M=None):
    """C_ij = (p_i − q_j)ᵀ M (p_i − q_j), by loops."""
    M = np.eye(P.shape[1]) if M is None else M
    return np.array([[(p - q) @ M @ (p - q) for q in Q] for p in P])


def ragged(n, d=3, seed=0, low=1, high=8, scale=1.0):
    """n random sets with random weights."""
    r = np.random.default_rng(seed)
    sets = []
    for _ in range(n):
        m = int(r.integers(low, high + 1))
        w = r.uniform(0.2, 1.0, m)
        sets.append((scale * r.normal(size=(m, d)) + r.normal(size=d), w / w.sum()))
    return sets
