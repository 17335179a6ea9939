"""Smoothed transport in torch: the same problems as padded batches, for GPUs.

The numba kernels are much faster on a CPU; this is the path on a device. Everything is in the log domain.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from likewise.sets.transport.solvers import AllPairs, Pack, Value, finish


def log_sinkhorn(
    C: Float[Tensor, "b m n"],
    log_a: Float[Tensor, "b m"],
    log_b: Float[Tensor, "b n"],
    gamma: float,
    *,
    tol: float = 1e-6,
    max_iter: int = 10_000,
    check: int = 10,
) -> tuple[Tensor, Tensor, Tensor, int]:
    """Potentials f (b, m), g (b, n), the L1 marginal errors (b,) and the steps made; log-weights of padding are −∞.

    f = −γ log Σ_j b_j exp((g_j − C_ij)/γ), g likewise, in turns [MLML Eq. 6–7]. γ starts large and shrinks: fewer
    steps when γ is small against the costs.
    """
    real = (log_a > -torch.inf)[:, :, None] & (log_b > -torch.inf)[:, None, :]
    spread = float(torch.where(real, C, torch.zeros_like(C)).amax())
    current, f, g = max(gamma, spread), torch.zeros_like(log_a), torch.zeros_like(log_b)
    a = log_a.exp()
    made = 0
    error = torch.full(C.shape[:1], torch.inf, dtype=C.dtype, device=C.device)
    while True:
        final = current <= gamma
        for step in range(max_iter if final else 8):
            f = -current * torch.logsumexp((g[:, None, :] - C) / current + log_b[:, None, :], dim=2)
            g = -current * torch.logsumexp((f[:, :, None] - C) / current + log_a[:, :, None], dim=1)
            made += 1
            if final and step % check == check - 1:
                error = _row_error(C, a, log_a, log_b, f, g, current)
                if float(error.max()) <= tol:
                    return f, g, error, made
        if final:
            return f, g, _row_error(C, a, log_a, log_b, f, g, current), made
        current = max(current / 4, gamma)


def _row_error(C: Tensor, a: Tensor, log_a: Tensor, log_b: Tensor, f: Tensor, g: Tensor, gamma: float) -> Tensor:
    return (plan(C, log_a, log_b, f, g, gamma).sum(2) - a).abs().sum(1)


def plan(C: Tensor, log_a: Tensor, log_b: Tensor, f: Tensor, g: Tensor, gamma: float) -> Tensor:
    """F = a exp((f + g − C)/γ) bᵀ."""
    return torch.exp((f[:, :, None] + g[:, None, :] - C) / gamma + log_a[:, :, None] + log_b[:, None, :])


def _padded(X: Pack, index: np.ndarray[Any, Any], device: torch.device) -> tuple[Tensor, Tensor]:
    """Sets as (n, most, d) points and (n, most) log-weights, padded with −∞."""
    most = int(X.sizes[index].max())
    points = np.zeros((len(index), most, X.dim))
    weights = np.zeros((len(index), most))
    for row, i in enumerate(index):
        part = X.rows(int(i))
        points[row, : part.stop - part.start] = X.points[part]
        weights[row, : part.stop - part.start] = X.weights[part]
    return torch.from_numpy(points).to(device), torch.from_numpy(weights).to(device).log()


def solve_all(
    X: Pack,
    Y: Pack | None = None,
    gamma: float = 1.0,
    *,
    value: Value = "kl",
    tol: float = 1e-6,
    max_iter: int = 2000,
    device: str | None = None,
    room: int = 20_000_000,
) -> AllPairs:
    """`transport.solve_all` on a device: one row of X against as many sets of Y as `room` numbers allow, at a time."""
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    other = X if Y is None else Y
    out = AllPairs.empty(len(X), len(other), tol)
    order = np.argsort(other.sizes, kind="stable")
    for i in range(len(X)):
        P, log_a = _padded(X, np.array([i]), where)
        width = max(1, room // int(X.sizes[i] * other.sizes.max() * max(1, X.dim // 8)))
        for cut in range(0, len(order), width):
            j = order[cut : cut + width]
            Q, log_b = _padded(other, j, where)
            C = torch.cdist(P, Q.reshape(1, -1, X.dim)).square().reshape(P.shape[1], *Q.shape[:2]).permute(1, 0, 2)
            log_as = log_a.expand(len(j), -1)
            f, g, error, steps = log_sinkhorn(C, log_as, log_b, gamma, tol=tol, max_iter=max_iter)
            if value == "sharp":
                values = (C * plan(C, log_as, log_b, f, g, gamma)).sum((1, 2))
            else:
                a, b = log_as.exp(), log_b.exp()
                values = torch.where(a > 0, a * f, 0.0).sum(1) + torch.where(b > 0, b * g, 0.0).sum(1)
            out.value[i, j], out.residual[i, j], out.iterations[i, j] = values.cpu(), error.cpu(), steps
    finish(X, Y, out, value, gamma, tol=tol, max_iter=max_iter)
    return out
