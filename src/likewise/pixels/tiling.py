"""Large photos, tile by tile: the flow of the whole at a small size is carried to ever larger ones and corrected there.

At each size, b is bent onto a by the flow so far, and the recurrence looks for what is left, in tiles that overlap. The
memory is that of the pictures and their flows, and of one tile.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from likewise.pixels.geometry import carried, grid, sample
from likewise.pixels.inference import Aligned, resized
from likewise.pixels.network import Network, at_pixels
from likewise.pixels.start import Start

TILE, OVERLAP = 256, 32
"""Pixels of a tile, and how many of them it shares with each neighbour."""

FARTHEST = 8.0
"""Corrections of more pixels than this are not believed: the flow so far stands."""


def sizes(small: tuple[int, int], whole: tuple[int, int], detail: int) -> Iterator[tuple[int, int]]:
    """The sizes between the one worked at and `detail` px on the longest side, each at most twice the last."""
    goal = min(1.0, detail / max(whole))
    share = max(small) / max(whole)
    while share < goal * 0.999:
        share = min(goal, 2 * share)
        yield round(share * whole[0]), round(share * whole[1])


@torch.no_grad()
def detailed(
    network: Network,
    a: Float[Tensor, "3 h w"],
    b: Float[Tensor, "3 h2 w2"],
    found: Aligned,
    detail: int,
    iters: int = 3,
) -> Aligned:
    """Both flows at `detail` pixels on the longest side, or the pictures' own size where that is smaller."""
    from likewise.pixels.model import enlarged

    whole = [(int(x.shape[-2]), int(x.shape[-1])) for x in (a, b)]
    start = [(int(f.shape[0]), int(f.shape[1])) for f in (found.ab, found.ba)]
    steps = [list(sizes(s, w, detail)) for s, w in zip(start, whole, strict=True)]
    for k in range(max(len(s) for s in steps)):
        size_a, size_b = (s[min(k, len(s) - 1)] if s else t for s, t in zip(steps, start, strict=True))
        found = enlarged(found, size_a, size_b)
        one, two = resized(a, size_a), resized(b, size_b)
        ab = corrected(network, one, two, found.ab, iters)
        found = Aligned(ab, corrected(network, two, one, found.ba, iters), found.notes)
    return found


def corrected(
    network: Network, a: Float[Tensor, "3 h w"], b: Float[Tensor, "3 h2 w2"], flow: Float[Tensor, "h w 2"], iters: int
) -> Float[Tensor, "h w 2"]:
    """x + f(x) → f(x + c(x)) + c(x), with c what the recurrence finds between a and b bent onto it."""
    h, w = int(a.shape[-2]), int(a.shape[-1])
    total, weight = torch.zeros(h, w, 2), torch.zeros(h, w, 1)
    for top in _places(h):
        for left in _places(w):
            rows, columns = slice(top, min(top + TILE, h)), slice(left, min(left + TILE, w))
            c, trust = _tile(network, a[:, rows, columns], b, flow, top, left, iters)
            total[rows, columns] += trust * c
            weight[rows, columns] += trust
    return total / weight


def _places(n: int) -> list[int]:
    """Where tiles begin so that they cover n pixels and overlap."""
    if n <= TILE:
        return [0]
    step = TILE - OVERLAP
    count = -(-(n - OVERLAP) // step)
    return [round(i * (n - TILE) / (count - 1)) for i in range(count)]


def _tile(
    network: Network, a: Tensor, b: Tensor, flow: Tensor, top: int, left: int, iters: int
) -> tuple[Float[Tensor, "h w 2"], Float[Tensor, "h w 1"]]:
    """The corrected flow of a tile of a, and how much it counts at each pixel: less towards its border."""
    h, w = int(a.shape[-2]), int(a.shape[-1])
    base = grid(h, w)
    own = flow[top : top + h, left : left + w]
    corner = torch.tensor([float(left), float(top)])
    bent = sample(b[None], (base + corner + own)[None], padding="border")
    fa, fb = network.features(a[None], bent)
    n, m = int(fa.shape[-2]), int(fa.shape[-1])
    start = Start(torch.zeros(1, n, m, 2), torch.full((1, n, m), 0.5))
    c = at_pixels(network.towards(fa, fb, start, iters).last, h, w)[0]
    c = torch.where(torch.linalg.vector_norm(c, dim=-1, keepdim=True) <= FARTHEST, c, torch.zeros_like(c))
    moved = c + carried(flow[None], (base + corner + c)[None])[0]
    rise = [(torch.minimum(torch.arange(k), torch.arange(k).flip(0)) + 1.0).clamp_max(OVERLAP) for k in (h, w)]
    return moved, (rise[0][:, None] * rise[1][None, :])[..., None]
