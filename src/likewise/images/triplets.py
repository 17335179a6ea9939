"""Triplets of unit rows: how likely a distance is by chance, which triplets to take, and what they cost.

Everything is drawn on the CPU from a generator that is handed in, so that equal seeds give equal triplets on every
device and in every process.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from likewise.errors import InputError

LOWER, UPPER = 0.5, 1.4
"""Distances below 0.5 count as 0.5 (their weights would be extreme); beyond 1.4, about orthogonal, none is drawn."""


class Triplets(NamedTuple):
    """Rows of a batch by index: anchors, those to be near, those to be far."""

    anchor: Int[Tensor, " t"]
    positive: Int[Tensor, " t"]
    negative: Int[Tensor, " t"]


def distances(x: Float[Tensor, "n d"], y: Float[Tensor, "m d"] | None = None) -> Float[Tensor, "n m"]:
    """‖x_i − y_j‖ of unit rows, √(2 − 2 ⟨x, y⟩), with a gradient that is finite where rows are equal."""
    similarity = x @ (x if y is None else y).T
    return (2.0 - 2.0 * similarity).clamp(min=1e-8).sqrt()


def log_density(d: Tensor, dim: int) -> Tensor:
    """log q(d) = (D − 2) log d + (D − 3)/2 log(1 − d²/4) but for a constant: two random unit rows in D dimensions."""
    if dim < 2:
        raise InputError(f"dim: unit rows need at least 2 dimensions, got {dim}")
    return (dim - 2.0) * d.log() + 0.5 * (dim - 3.0) * (1.0 - 0.25 * d * d).clamp(min=1e-8).log()


def distance_weights(
    d: Float[Tensor, "n m"],
    allowed: Bool[Tensor, "n m"],
    dim: int,
    *,
    lower: float = LOWER,
    upper: float | None = UPPER,
) -> Float[Tensor, "n m"]:
    """q(max(d, lower))⁻¹ where allowed and d < upper, each row normalised to sum 1.

    A row with nothing below `upper` falls back on all that is allowed, evenly; one with nothing allowed is 0.
    """
    near = allowed if upper is None else allowed & (d < upper)
    logits = -log_density(d.detach().clamp(min=lower), dim)
    weights = torch.softmax(logits.masked_fill(~near, -torch.inf), dim=1)
    even = allowed / allowed.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.where(near.any(dim=1, keepdim=True), weights.nan_to_num(0.0), even.to(d.dtype))


def draw(weights: Float[Tensor, "n m"], generator: torch.Generator) -> Int[Tensor, " n"]:
    """One column a row with the row's weights; −1 for a row of zeros."""
    w = weights.detach().to(device="cpu", dtype=torch.float64)
    total = w.cumsum(dim=1)
    u = torch.rand(len(w), 1, generator=generator, dtype=torch.float64) * total[:, -1:]
    column = torch.searchsorted(total, u, right=True).clamp(max=w.shape[1] - 1).squeeze(1)
    return torch.where(total[:, -1] > 0, column, -1).to(weights.device)


def discriminative(d: Float[Tensor, "n n"], y: Int[Tensor, " n"], dim: int, generator: torch.Generator) -> Triplets:
    """y_a = y_p ≠ y_n: every ordered pair of one class, its negative drawn by distance [DiVA Eq. 2]."""
    same = y[:, None] == y[None, :]
    a, p = torch.nonzero(same & ~_eye(same), as_tuple=True)
    return _kept(a, p, draw(distance_weights(d, ~same, dim)[a], generator))


def shared(d: Float[Tensor, "n n"], y: Int[Tensor, " n"], dim: int, generator: torch.Generator) -> Triplets:
    """y_a, y_p, y_n mutually different, both members drawn by distance [DiVA Eq. 3]; one triplet an anchor."""
    other = y[:, None] != y[None, :]
    a = torch.arange(len(y), device=y.device)
    p = draw(distance_weights(d, other, dim), generator)
    third = other & (y[None, :] != y[p.clamp(min=0)][:, None])
    return _kept(a, p, draw(distance_weights(d, third, dim), generator))


def permuted(d: Float[Tensor, "n n"], y: Int[Tensor, " n"], dim: int, generator: torch.Generator) -> Triplets:
    """`discriminative` on labels dealt anew among the rows: what the released code of DiVA takes for Eq. 3."""
    order = torch.randperm(len(y), generator=generator).to(y.device)
    return discriminative(d, y[order], dim, generator)


def intra(y: Int[Tensor, " n"], generator: torch.Generator) -> Triplets:
    """Three distinct rows of one class, two drawn evenly for each anchor [DiVA Eq. 4]."""
    same = y[:, None] == y[None, :]
    weights = (same & ~_eye(same)).to(torch.float64)
    p = draw(weights, generator)
    weights.scatter_(1, p.clamp(min=0)[:, None], 0.0)
    return _kept(torch.arange(len(y), device=y.device), p, draw(weights, generator))


def hinge(d_ap: Tensor, d_an: Tensor, gamma: float) -> Tensor:
    """Mean of [d_ap − d_an + γ]₊ over the triplets in which it is positive [DiVA Eq. 1]; 0 where there is none."""
    return active_mean(torch.relu(d_ap - d_an + gamma))


def margin(d_ap: Tensor, d_an: Tensor, beta: Tensor, gamma: float) -> Tensor:
    """Σ [γ + d_ap − β]₊ + [γ − d_an + β]₊ over the number of its positive terms; 0 where there is none."""
    return active_mean(torch.cat([torch.relu(gamma + d_ap - beta), torch.relu(gamma - d_an + beta)]))


def active_mean(terms: Tensor) -> Tensor:
    """The mean of the terms that are positive, 0 where none is; its gradient is that of the sum over a fixed count."""
    return terms.sum() / (terms > 0).sum().clamp(min=1)


def _eye(like: Tensor) -> Tensor:
    return torch.eye(len(like), dtype=torch.bool, device=like.device)


def _kept(a: Tensor, p: Tensor, n: Tensor) -> Triplets:
    """Those that found both members."""
    found = (p >= 0) & (n >= 0)
    return Triplets(a[found], p[found], n[found])
