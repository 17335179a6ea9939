"""The warm-up: of all cells of the other picture, the right one shall be the most alike, both ways."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from likewise.pixels.encoder import CENTRE, STRIDE
from likewise.pixels.geometry import Warp, grid, inside
from likewise.pixels.life import RESIDUAL, Truth, masked_mean


def to_cells(points: Float[Tensor, "*n 2"]) -> Float[Tensor, "*n 2"]:
    """Pixels as places among the cells."""
    return (points - CENTRE) / STRIDE


def cell_truth(warp: Warp, h: int, w: int) -> Truth:
    """The flows B→B′ and B′→B between cells, and where they are known [LIFE Eq. 3]."""
    base = grid(h, w)
    with torch.no_grad():
        points = (STRIDE * base + CENTRE).expand(len(warp), h, w, 2)
        there, missed = warp.forward(points)
        there, back = to_cells(there), to_cells(warp.backward(points))
        known = inside(there, h, w) & (missed <= RESIDUAL)
        return Truth(there - base, back - base, known, inside(back, h, w))


def contrast(log_p: Float[Tensor, "b n m"], truth: Truth) -> Float[Tensor, ""]:
    """−log P of the true cell, P mixed bilinearly of the four around it, the mean both ways."""
    b, h, w = truth.there.shape[:3]
    base = grid(h, w)
    ways = (
        (log_p, base + truth.there, truth.there_valid),
        (log_p.transpose(1, 2), base + truth.back, truth.back_valid),
    )
    missed = [_missed(p, g.reshape(b, h * w, 2), known.reshape(b, h * w), (h, w)) for p, g, known in ways]
    return 0.5 * (missed[0] + missed[1])


def _missed(log_p: Tensor, goals: Tensor, known: Bool[Tensor, "b n"], size: tuple[int, int]) -> Tensor:
    h, w = size
    low = goals.floor()
    fx, fy = (goals - low).unbind(-1)
    found = []
    for dy, wy in ((0, 1 - fy), (1, fy)):
        for dx, wx in ((0, 1 - fx), (1, fx)):
            x, y = (low[..., 0] + dx).clamp(0, w - 1).long(), (low[..., 1] + dy).clamp(0, h - 1).long()
            value = log_p.gather(2, (y * w + x)[..., None])[..., 0]
            found.append(value + (wx * wy).clamp_min(1e-6).log())
    return masked_mean(-torch.logsumexp(torch.stack(found), 0), known)
