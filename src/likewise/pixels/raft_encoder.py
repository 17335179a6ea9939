"""RAFT's encoders: a picture to features at 1/8 of its size, in residual blocks (large) or bottlenecks (small).

Module names are those of the published state dicts, so that weights load by key.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from likewise.nn.convolution import convolve
from likewise.pixels.raft_norm import InstanceNorm

Norm: TypeAlias = Literal["instance", "batch", "none"]
Widths: TypeAlias = tuple[int, int, int, int]


def norm(kind: Norm, width: int) -> nn.Module:
    """The normalisation of a name; instance norm has no weights, as in the original."""
    if kind == "batch":
        return nn.BatchNorm2d(width)
    return InstanceNorm() if kind == "instance" else nn.Identity()


def unit(x: Tensor, conv: nn.Conv2d, norm: nn.Module, *, relu: bool = True, add: Tensor | None = None) -> Tensor:
    """n(w ∗ x), relu(n(w ∗ x)), or with a residual relu(add + relu(n(w ∗ x)))."""
    if isinstance(norm, InstanceNorm):
        return norm.finish(conv(x), relu=relu, add=add)
    y = convolve(x, conv, norm)
    y = y.relu_() if relu else y
    return y if add is None else (y + add).relu_()


class Block(nn.Module):
    """relu(x + y), where y is x through convolutions, each with its normalisation and ReLU [RAFT Fig. 8].

    Convolutions are 3 × 3, 3 × 3, or as a bottleneck 1 × 1, 3 × 3, 1 × 1 on a quarter of the width; x goes through
    `downsample` where the map is halved.
    """

    def __init__(self, into: int, width: int, stride: int, kind: Norm, bottleneck: bool) -> None:
        super().__init__()
        narrow = width // 4
        if bottleneck:
            rows = [(into, narrow, 1, 1), (narrow, narrow, 3, stride), (narrow, width, 1, 1)]
        else:
            rows = [(into, width, 3, stride), (width, width, 3, 1)]
        self.depth = len(rows)
        for i, (a, b, kernel, step) in enumerate(rows, start=1):
            setattr(self, f"conv{i}", nn.Conv2d(a, b, kernel, step, kernel // 2))
            setattr(self, f"norm{i}", norm(kind, b))
        self.downsample: nn.Sequential | None = None
        if stride != 1:
            self.downsample = nn.Sequential(nn.Conv2d(into, width, 1, stride), norm(kind, width))

    def forward(self, x: Tensor) -> Tensor:
        """The formula of the class."""
        y = x
        if self.downsample is not None:
            x = unit(x, cast(nn.Conv2d, self.downsample[0]), self.downsample[1], relu=False)
        for i in range(1, self.depth + 1):
            last = i == self.depth
            y = unit(y, getattr(self, f"conv{i}"), getattr(self, f"norm{i}"), add=x if last else None)
        return y


class Encoder(nn.Module):
    """Pictures (b, 3, h, w) in [−1, 1] to features (b, out, h/8, w/8); `widths` are the stem's and the stages'."""

    def __init__(self, widths: Widths, out: int, kind: Norm, *, bottleneck: bool) -> None:
        super().__init__()
        stem, one, two, three = widths
        self.conv1, self.norm1 = nn.Conv2d(3, stem, 7, 2, 3), norm(kind, stem)
        self.layer1 = self._stage(stem, one, 1, kind, bottleneck)
        self.layer2 = self._stage(one, two, 2, kind, bottleneck)
        self.layer3 = self._stage(two, three, 2, kind, bottleneck)
        self.conv2 = nn.Conv2d(three, out, 1)

    @staticmethod
    def _stage(into: int, width: int, stride: int, kind: Norm, bottleneck: bool) -> nn.Sequential:
        return nn.Sequential(Block(into, width, stride, kind, bottleneck), Block(width, width, 1, kind, bottleneck))

    def forward(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b out h2 w2"]:
        """Stem, three stages of two blocks, 1 × 1."""
        x = unit(x.contiguous(memory_format=torch.channels_last), self.conv1, self.norm1)
        x = self.layer3(self.layer2(self.layer1(x)))
        return cast(Tensor, self.conv2(x))
