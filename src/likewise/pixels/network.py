"""Encoder, first flow and recurrence as one network, at the resolution of the encoder's cells."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from likewise.pixels.encoder import CENTRE, STRIDE, Encoder, along
from likewise.pixels.geometry import grid
from likewise.pixels.refine import Nearby, Refine, Volume
from likewise.pixels.start import Start, starts

MOST_CELLS = 5_000
"""Cells of a picture that are compared all with all; of larger pictures, means of 2 × 2 cells."""


@dataclass(frozen=True)
class Direction:
    """One direction: the first flow, and the flow after each step of the recurrence, all in cells."""

    start: Start
    flows: list[Tensor]

    @property
    def last(self) -> Tensor:
        """The flow after the last step, or the first flow where there was none."""
        return self.flows[-1] if self.flows else self.start.flow


class Network(nn.Module):
    """Two pictures to their flows, both ways, with shared weights."""

    def __init__(self, dim: int = 96, hidden: int = 48) -> None:
        super().__init__()
        self.dim, self.hidden = dim, hidden
        self.encoder = Encoder(dim)
        self.refine = Refine(dim, hidden)
        self.log_tau = nn.Parameter(torch.tensor(-3.0))

    def features(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """The cells of both pictures; in one pass where they are of one size."""
        if a.shape == b.shape:
            fa, fb = self.encoder(torch.cat([a, b])).chunk(2)
            return fa, fb
        return self.encoder(a), self.encoder(b)

    def starts(self, fa: Tensor, fb: Tensor) -> tuple[Start, Start]:
        """The first flow both ways, from cells that are few enough."""
        ca, ka = _fewer(fa)
        cb, kb = _fewer(fb)
        there, back = starts(ca, cb, self.log_tau.exp())
        return _finer(there, fa, ka, kb), _finer(back, fb, kb, ka)

    def forward(
        self, fa: Float[Tensor, "b d h w"], fb: Float[Tensor, "b d h2 w2"], iters: int = 6
    ) -> tuple[Direction, Direction]:
        """Both directions from features."""
        first = self.starts(fa, fb)
        return self.towards(fa, fb, first[0], iters), self.towards(fb, fa, first[1], iters)

    def towards(self, fa: Tensor, fb: Tensor, start: Start, iters: int) -> Direction:
        """One direction from features and a first flow."""
        if iters == 0:
            return Direction(start, [])
        seen = Volume if torch.is_grad_enabled() or fa.device.type != "cpu" else Nearby
        volume = seen(fa, fb, self.refine.levels)
        return Direction(start, self.refine(fa, volume, start.flow, start.confidence, iters))


def _fewer(f: Tensor) -> tuple[Tensor, int]:
    """Features on at most MOST_CELLS cells, each of unit length, and how many times coarser they are."""
    factor = 1
    while f.shape[-2] * f.shape[-1] > MOST_CELLS:
        f = functional.avg_pool2d(f, 2, ceil_mode=True, count_include_pad=False)
        factor *= 2
    return (f if factor == 1 else functional.normalize(f, dim=1)), factor


def _finer(start: Start, f: Tensor, own: int, other: int) -> Start:
    """A first flow between coarser cells as one between cells: (x + ½) k − ½ takes a coarse place to a fine one."""
    if own == other == 1:
        return start
    h, w = int(f.shape[-2]), int(f.shape[-1])
    base = grid(int(start.flow.shape[1]), int(start.flow.shape[2]), like=start.flow)
    goals = (base + start.flow + 0.5) * other - 0.5
    goals = _enlarged(goals.movedim(-1, 1), own, h, w).movedim(1, -1)
    return Start(goals - grid(h, w, like=goals), _enlarged(start.confidence[:, None], own, h, w)[:, 0])


def _enlarged(x: Tensor, factor: int, h: int, w: int) -> Tensor:
    """Cells `factor` times finer, of which the first h × w are kept; linear beyond the outermost centres, too."""
    if factor == 1:
        return x
    padded = functional.pad(x, (1, 1, 1, 1), mode="replicate")
    for axis in (2, 3):
        n = padded.shape[axis]
        padded.narrow(axis, 0, 1).mul_(2).sub_(padded.narrow(axis, min(2, n - 1), 1))
        padded.narrow(axis, n - 1, 1).mul_(2).sub_(padded.narrow(axis, max(0, n - 3), 1))
    fine = functional.interpolate(padded, scale_factor=factor, mode="bilinear", align_corners=False)
    return fine[:, :, factor : factor + h, factor : factor + w]


def at_pixels(flow: Float[Tensor, "b h w 2"], h: int, w: int) -> Float[Tensor, "b h2 w2 2"]:
    """The flow of cells in pixels, at every pixel: cell i stands at pixel 4 i + 1."""
    rows, columns = ((torch.arange(n, dtype=flow.dtype, device=flow.device) - CENTRE) / STRIDE for n in (h, w))
    return along(along(flow.movedim(-1, 1) * STRIDE, rows, 2), columns, 3).movedim(1, -1)
