"""How pictures enter RAFT and flow leaves it: enlarged where small, padded to whole cells, and brought back.

Sizes are (h, w), pixel centres at integers: resizing maps x to (x + ½) s − ½.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

STRIDE = 8
"""Pixels of a cell of the feature maps."""

SMALLEST = 128
"""A picture with a shorter side is enlarged to it first: below, the coarsest correlations would be a single cell."""


@dataclass(frozen=True)
class Frame:
    """The way of pictures (h, w) into the network and of flow out: enlarged where small, padded to multiples of 8."""

    h: int
    w: int

    @property
    def size(self) -> tuple[int, int]:
        """The size before padding."""
        factor = max(1.0, SMALLEST / min(self.h, self.w))
        return round(self.h * factor), round(self.w * factor)

    @property
    def padding(self) -> tuple[int, int, int, int]:
        """Left, right, top, bottom: half on each side, the odd pixel right and below, as the original for Sintel."""
        high, wide = (-side % STRIDE for side in self.size)
        return wide // 2, wide - wide // 2, high // 2, high - high // 2

    def enter(self, image: Tensor) -> Tensor:
        """2 x − 1, enlarged and padded."""
        if self.size != (self.h, self.w):
            image = functional.interpolate(image, self.size, mode="bilinear", align_corners=False)
        return functional.pad(2 * image - 1, self.padding, mode="replicate")

    def leave(self, flow: Tensor) -> Tensor:
        """Flow (b, 2, h, w) of the padded pictures as (b, h, w, 2) of the given ones."""
        left, _, top, _ = self.padding
        high, wide = self.size
        flow = flow[:, :, top : top + high, left : left + wide]
        if self.size != (self.h, self.w):
            flow = functional.interpolate(flow, (self.h, self.w), mode="bilinear", align_corners=False)
            flow = flow * _pair(flow, self.w / wide, self.h / high)
        return flow.permute(0, 2, 3, 1)

    def cells(self, flow: Tensor) -> Tensor:
        """Flow (b, h, w, 2) of the given pictures as (b, 2, h/8, w/8) of the cells, in cells: means over 8 × 8."""
        high, wide = self.size
        flow = flow.permute(0, 3, 1, 2)
        if self.size != (self.h, self.w):
            flow = functional.interpolate(flow, self.size, mode="bilinear", align_corners=False)
            flow = flow * _pair(flow, wide / self.w, high / self.h)
        return functional.avg_pool2d(functional.pad(flow, self.padding, mode="replicate"), STRIDE) / STRIDE


def _pair(like: Tensor, x: float, y: float) -> Tensor:
    return like.new_tensor([x, y]).view(1, 2, 1, 1)


def grid(like: Tensor) -> Tensor:
    """(1, 2, h, w): x, then y, of every cell; channels-last in memory."""
    h, w = like.shape[2:]
    y, x = torch.meshgrid(*(torch.arange(s, dtype=like.dtype, device=like.device) for s in (h, w)), indexing="ij")
    return torch.stack([x, y], dim=-1).permute(2, 0, 1)[None]


def size_of(image: Tensor) -> tuple[int, int]:
    """(h, w) of pictures (…, h, w)."""
    return image.shape[-2], image.shape[-1]


def target_resized(flow: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Flow (h, w, 2) whose target picture goes from a size to another: p + f moves as pixel centres do."""
    if old == new:
        return flow
    scale = flow.new_tensor([new[1] / old[1], new[0] / old[0]])
    home = grid(flow.permute(2, 0, 1)[None])[0].permute(1, 2, 0)
    return (home + flow + 0.5) * scale - 0.5 - home


def source_resized(flow: Tensor, new: tuple[int, int]) -> Tensor:
    """Flow (h, w, 2) whose source picture is brought to another size: read between its pixels, ends where it did."""
    old = (flow.shape[0], flow.shape[1])
    if old == new:
        return flow
    home = grid(flow.permute(2, 0, 1)[None])
    ends = home + flow.permute(2, 0, 1)[None]
    moved = functional.interpolate(ends - home, new, mode="bilinear", align_corners=False)[0].permute(1, 2, 0)
    own = grid(moved.permute(2, 0, 1)[None])[0].permute(1, 2, 0)
    scale = flow.new_tensor([old[1] / new[1], old[0] / new[0]])
    return (own + 0.5) * scale - 0.5 + moved - own
