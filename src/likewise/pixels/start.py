"""The first flow: every cell of one picture is compared with every cell of the other.

P(i, j) = softmax over j of s(i, j)/τ times softmax over i of s(i, j)/τ is large where two cells are each other's best.
A cell goes to the expectation of P in the 3 × 3 cells around its maximum; where no cell stands out, the flow comes from
the neighbourhood.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from likewise.pixels.geometry import grid


@dataclass(frozen=True)
class Start:
    """A flow in cells (b, h, w, 2), and how sure each cell is of it, in [0, 1]."""

    flow: Tensor
    confidence: Tensor


def similarities(fa: Float[Tensor, "b d h w"], fb: Float[Tensor, "b d h2 w2"], tau: Tensor | float) -> Tensor:
    """⟨a_i, b_j⟩ / τ for all cells, (b, h w, h2 w2)."""
    return torch.bmm(fa.flatten(2).transpose(1, 2), fb.flatten(2)) / tau


def log_dual(s: Float[Tensor, "b n m"]) -> Float[Tensor, "b n m"]:
    """log P(i, j) = log softmax_j s(i, ·) + log softmax_i s(·, j)."""
    return 2 * s - torch.logsumexp(s, 2, keepdim=True) - torch.logsumexp(s, 1, keepdim=True)


def starts(
    fa: Float[Tensor, "b d h w"], fb: Float[Tensor, "b d h2 w2"], tau: Tensor | float, *, smooth: bool = True
) -> tuple[Start, Start]:
    """The first flow both ways, from one matrix of similarities."""
    log_p = log_dual(similarities(fa, fb, tau))
    size_a, size_b = (cast(tuple[int, int], tuple(f.shape[-2:])) for f in (fa, fb))
    there = _expected(log_p, size_a, size_b)
    back = _expected(log_p.transpose(1, 2), size_b, size_a)
    return (smoothed(there), smoothed(back)) if smooth else (there, back)


def _expected(log_p: Tensor, size: tuple[int, int], other: tuple[int, int]) -> Start:
    """Where the cells of one picture go: ∑ P j / ∑ P over the 3 × 3 cells j around the best."""
    best = log_p.argmax(2)
    row, column = best // other[1], best % other[1]
    rows, columns, weights = [], [], []
    for dy in (-1, 0, 1):
        for dx in (-1, 0, 1):
            y, x = row + dy, column + dx
            inside = (y >= 0) & (y < other[0]) & (x >= 0) & (x < other[1])
            index = y.clamp(0, other[0] - 1) * other[1] + x.clamp(0, other[1] - 1)
            value = log_p.gather(2, index[:, :, None])[:, :, 0]
            weights.append(torch.where(inside, value.exp(), torch.zeros_like(value)))
            rows.append(y)
            columns.append(x)
    w = torch.stack(weights)
    total = w.sum(0)
    at = torch.stack([(w * torch.stack(columns)).sum(0), (w * torch.stack(rows)).sum(0)], -1)
    safe = total.clamp_min(1e-12)[..., None]
    fallback = torch.stack([column, row], -1).to(at)
    at = torch.where(total[..., None] > 1e-12, at / safe, fallback)
    flow = at.view(-1, *size, 2) - grid(*size, like=at)
    return Start(flow, total.clamp(0, 1).view(-1, *size))


def smoothed(start: Start, *, floor: float = 0.05) -> Start:
    """Flow where cells are sure, from ever larger neighbourhoods where they are not.

    Coarse to fine: f ← (c f + ε f_coarse) / (c + ε), with c and c f averaged 2 × 2 on the way up.
    """
    c = start.confidence[:, None]
    values = start.flow.movedim(-1, 1)
    levels = [(c, c * values)]
    while min(levels[-1][0].shape[-2:]) > 2:
        levels.append(cast(tuple[Tensor, Tensor], tuple(_halved(x) for x in levels[-1])))
    weight, total = levels[-1]
    flow = (total.sum((2, 3), keepdim=True) / weight.sum((2, 3), keepdim=True).clamp_min(1e-9)).expand_as(total)
    for weight, total in reversed(levels):
        coarse = functional.interpolate(flow, weight.shape[-2:], mode="bilinear", align_corners=False)
        flow = (total + floor * coarse) / (weight + floor)
    return Start(flow.movedim(1, -1), start.confidence)


def _halved(x: Tensor) -> Tensor:
    return functional.avg_pool2d(x, 2, ceil_mode=True, count_include_pad=False)
