"""A small convolutional network for pictures of 16 to 64 px (Omniglot, MNIST), from random weights."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from likewise.errors import InputError, ShapeError
from likewise.nn.convolution import convolve
from likewise.nn.network import Backbone, Pixels, Pool, seeded

BLOCKS, WIDTH = 4, 64

MIDDLE = 127.5
"""Pixels become (v − 127.5) / 127.5, from −1 to 1."""


class Grey(nn.Module):
    """The mean of the three colours, as one channel."""

    def forward(self, x: Tensor) -> Tensor:
        """(r + g + b) / 3."""
        return x.mean(dim=1, keepdim=True)


class Block(nn.Module):
    """3 × 3 convolution, batch normalisation, ReLU, and the maximum of each 2 × 2."""

    def __init__(self, into: int, width: int) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(into, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        nn.init.kaiming_normal_(self.conv.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """max over 2 × 2 of max(bn(w ∗ x), 0); a map of one pixel is an error."""
        if min(x.shape[2:]) < 2:
            raise ShapeError(f"x: the pictures are too small: a map of {x.shape[2]} × {x.shape[3]} cannot be halved")
        return nn.functional.max_pool2d(convolve(x, self.conv, self.bn).relu_(), 2)


class ConvNet(Backbone):
    """Four blocks of width 64, then the mean over the map: the network of much few-shot learning.

    Its vector has `width` numbers. With `grey` it sees the mean of the colours. Its weights are random (He's start), a
    function of `seed`; its normalisations learn their statistics unless `frozen_bn`.
    """

    def __init__(
        self,
        *,
        width: int = WIDTH,
        blocks: int = BLOCKS,
        size: int = 32,
        grey: bool = False,
        frozen_bn: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        _check(width, blocks, size)
        self.dim, self.size, self.frozen_bn = width, size, frozen_bn
        pixels = Pixels([MIDDLE] * 3, [MIDDLE] * 3)
        self.pixels = nn.Sequential(pixels, Grey()) if grey else pixels
        with seeded(seed):
            self.blocks = nn.ModuleList(Block(width if i else 1 if grey else 3, width) for i in range(blocks))
        self.pool = Pool()
        nn.Module.to(self, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.eval()

    def forward(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b d"]:
        """The same as `features`: there is no classifier."""
        return self.features(x)

    def parts(self) -> list[nn.Module]:
        """The pixels' normalisation, each block, and the mean over the map."""
        return [self.pixels, *self.blocks, self.pool]

    def pairs(self) -> Iterator[tuple[nn.Module, str, str]]:
        """One of every block."""
        return ((block, "conv", "bn") for block in self.blocks)


def _check(width: int, blocks: int, size: int) -> None:
    for name, value in (("width", width), ("blocks", blocks), ("size", size)):
        if not isinstance(value, int) or value < 1:
            raise InputError(f"{name}: expected a whole number ≥ 1, got {value!r}")
    if size < 2**blocks:
        raise InputError(f"size: {blocks} blocks halve a picture {blocks} times and need ≥ {2**blocks} px, got {size}")
