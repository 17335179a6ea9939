"""Smoothed transport in torch: the algorithm of the numba kernels on padded batches, for GPUs.

A batch is every set of one block against every set of another, blocks being sets of about one size: its costs are one
matrix product. On a CPU the numba kernels are several times faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from likewise.sets.transport.kernels import FAR, STRIDE
from likewise.sets.transport.panels import LARGE, QUICK, place
from likewise.sets.transport.solvers import AllPairs, Index, Pack, Value, finish

ROOM = {"cpu": 400_000, "cuda": 50_000_000}
"""Entries of a batch: what stays in a CPU's cache, what keeps a GPU busy."""


@dataclass(frozen=True)
class _Block:
    """Sets of about one size, padded: points (r, m, d), weights (r, m), 0 where there is no point."""

    sets: Index
    points: Tensor
    weights: Tensor

    @classmethod
    def of(cls, X: Pack, sets: Index, device: torch.device) -> _Block:
        sizes = X.sizes[sets]
        within = np.arange(sizes.max())
        row = X.offsets[sets][:, None] + np.minimum(within, sizes[:, None] - 1)
        weights = np.where(within < sizes[:, None], X.weights[row], 0.0)
        return cls(sets, torch.from_numpy(X.points[row]).to(device), torch.from_numpy(weights).to(device))


def _blocks(X: Pack, device: torch.device) -> list[_Block]:
    """The sets, sorted by size, in blocks of which two make a batch."""
    side = ROOM["cpu" if device.type == "cpu" else "cuda"] ** 0.5
    order = np.argsort(X.sizes, kind="stable")
    cuts = [0]
    while cuts[-1] < len(order):
        most = np.arange(1, len(order) - cuts[-1] + 1) * X.sizes[order[cuts[-1] :]]
        cuts.append(cuts[-1] + max(1, int(np.searchsorted(most, side, side="right"))))
    return [_Block.of(X, order[i:j], device) for i, j in pairwise(cuts)]


def _costs(P: _Block, Q: _Block) -> Float[Tensor, "rq m n"]:
    """‖p − q‖² of every point of every set of P and of Q; FAR where there is no point."""
    (r, m, d), (q, n, _) = P.points.shape, Q.points.shape
    left, right = P.points.reshape(-1, d), Q.points.reshape(-1, d)
    C = left.square().sum(1)[:, None] + right.square().sum(1) - 2 * left @ right.T
    real = (P.weights.reshape(-1) > 0)[:, None] & (Q.weights.reshape(-1) > 0)
    C = torch.where(real, C.clamp_min_(0.0), FAR)
    return C.reshape(r, m, q, n).permute(0, 2, 1, 3).reshape(r * q, m, n)


def _transforms(C: Tensor, a: Tensor, b: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """From any g: f_i = min_j (C_ij − g_j), g_j = min_i (C_ij − f_i); 0 where there is no point."""
    f = torch.where(a > 0, (C - g[:, None, :]).amin(2), 0.0)
    return f, torch.where(b > 0, (C - f[:, :, None]).amin(1), 0.0)


def _newton_step(K: Tensor, u: Tensor, v: Tensor, a: Tensor, b: Tensor, r: Tensor) -> Tensor:
    """u · exp(δ) with (diag(r) − F diag(1/b) Fᵀ) δ = a − r, row 0 left aside; see kernels."""
    F = K * v[:, None, :]
    F *= u[:, :, None]
    S = (F / b.clamp_min(1e-300)[:, None, :] @ F.mT)[:, 1:, 1:].neg_()
    r = r[:, 1:]
    S.diagonal(dim1=1, dim2=2).add_(torch.where(r > 0, r, 1.0))
    factor, failed = torch.linalg.cholesky_ex(S)
    delta = torch.cholesky_solve((a[:, 1:] - r)[:, :, None], factor)[:, :, 0]
    delta = delta * (STRIDE / delta.abs().amax(1, keepdim=True).clamp_min(STRIDE))
    usable = (failed == 0)[:, None] & delta.isfinite()
    return torch.cat([u[:, :1], u[:, 1:] * torch.where(usable, delta, 0.0).exp()], dim=1)


def solve(
    C: Float[Tensor, "b m n"], a: Float[Tensor, "b m"], b: Float[Tensor, "b n"], gamma: float, tol: float, sharp: bool
) -> tuple[Tensor, Tensor, int]:
    """The values (b,), the L1 marginal errors (b,) and the steps made, by the quick policy of the kernels."""
    first, most, allowed, shrink, stage, loose = QUICK
    if C[0].numel() > LARGE:
        first *= 4  # a factorisation costs as much as dozens of Sinkhorn steps
    f, g = _transforms(C, a, b, torch.zeros_like(b))
    slack = ((a[:, None, :] @ C @ b[:, :, None])[:, 0, 0] - (a * f).sum(1) - (b * g).sum(1)).amax()
    current, made = gamma, 0
    while current * allowed < float(slack):
        current *= shrink
    while True:
        K = (f[:, :, None] + g[:, None, :]).sub_(C).div_(current).exp_()
        final = current <= gamma
        limit, ceiling = (tol, most) if final else (loose, stage)
        u, v, now = a, b, 0
        while True:
            s = (K * v[:, None, :]).sum(2)
            error = (u * s - a).abs().sum(1)
            if now and (now >= ceiling or float(error.amax()) <= limit):
                break
            plain = now < first or now % 16 == 15
            u = a / s.clamp_min(1e-300) if plain else _newton_step(K, u, v, a, b, u * s)
            v = b / (K * u[:, :, None]).sum(1).clamp_min(1e-300)
            now += 1
        made += now
        f = f + current * torch.where(a > 0, u / a, 1.0).clamp_min(1e-300).log()
        g = g + current * torch.where(b > 0, v / b, 1.0).clamp_min(1e-300).log()
        if final:
            break
        current = max(current / shrink, gamma)
        f, g = _transforms(C, a, b, g)
    value = (u[:, None, :] @ (K * C) @ v[:, :, None])[:, 0, 0] if sharp else (a * f).sum(1) + (b * g).sum(1)
    return value, error, made


def solve_all(
    X: Pack,
    Y: Pack | None = None,
    gamma: float = 1.0,
    *,
    value: Value = "kl",
    tol: float = 1e-6,
    max_iter: int = 2000,
    device: str | None = None,
) -> AllPairs:
    """`transport.solve_all` on a device; what the batches leave unconverged, the kernels solve."""
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    other = X if Y is None else Y
    out = AllPairs.empty(len(X), len(other), tol)
    centre = X.points.mean(axis=0)
    rows = _blocks(Pack(X.points - centre, X.weights, X.offsets), where)
    columns = rows if Y is None else _blocks(Pack(Y.points - centre, Y.weights, Y.offsets), where)
    for k, P in enumerate(rows):
        for Q in columns[k if Y is None else 0 :]:
            r, q = len(P.sets), len(Q.sets)
            a, b = P.weights.repeat_interleave(q, 0), Q.weights.repeat(r, 1)
            values, errors, steps = solve(_costs(P, Q), a, b, gamma, tol, value == "sharp")
            i, j = (x.ravel() for x in np.meshgrid(P.sets, Q.sets, indexing="ij"))
            once = i <= j if P is Q else np.ones(r * q, dtype=np.bool_)
            found, wrong = values.cpu().numpy()[once], errors.cpu().numpy()[once]
            place(out, i[once], j[once], found, wrong, np.full(len(found), steps), Y is None)
    finish(X, Y, out, value, gamma, tol=tol, max_iter=max_iter)
    return out
