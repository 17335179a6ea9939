"""A hierarchical decoder in the style of NVAE: groups of latents from coarse to fine, residual cells between them.

The keys are this project's own; files of the official NVAE have another layout and are not read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from likewise.distributions.networks.network import Network, count, upsampled


class Group(NamedTuple):
    """A group of latents: its channels, the features' width, how many cells follow, whether the size doubles before."""

    latents: int
    width: int
    cells: int
    up: bool


class Cell(nn.Module):
    """x + 0.1 · gate(BN, 1 × 1 wider, BN swish, depthwise 5 × 5, BN swish, 1 × 1, BN): NVAE's generative cell."""

    def __init__(self, width: int, wide: int, squeezed: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(c, eps=1e-5) for c in (width, wide, wide, width))
        self.widen = nn.Conv2d(width, wide, 1, bias=False)
        self.mix = nn.Conv2d(wide, wide, 5, padding=2, groups=wide, bias=False)
        self.narrow = nn.Conv2d(wide, width, 1, bias=False)
        self.squeeze = nn.Linear(width, squeezed)
        self.excite = nn.Linear(squeezed, width)

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h w"]:
        """The cell."""
        swish = nn.functional.silu
        y = swish(self.norms[1](self.widen(self.norms[0](x))))
        y = swish(self.norms[2](self.mix(y)))
        y = self.norms[3](self.narrow(y))
        gate = torch.sigmoid(self.excite(torch.relu(self.squeeze(y.mean((2, 3))))))
        refined: Tensor = x + 0.1 * y * gate[:, :, None, None]
        return refined


class Step(nn.Module):
    """One group: grow where it must, draw the group's latents given what is above, take them in, refine."""

    def __init__(self, before: int, group: Group, wide: int, squeezed: int, *, first: bool) -> None:
        super().__init__()
        if group.up:
            self.up = nn.Conv2d(before, group.width, 3, padding=1)
        if not first:
            self.prior = nn.Conv2d(group.width, 2 * group.latents, 1)
        self.combine = nn.Conv2d(group.width + group.latents, group.width, 1)
        self.cells = nn.ModuleList(Cell(group.width, wide, squeezed) for _ in range(group.cells))
        self.latents, self.doubles, self.first = group.latents, group.up, first

    def forward(self, h: Float[Tensor, "n c h w"], noise: Float[Tensor, "n d"]) -> Float[Tensor, "n c2 h2 w2"]:
        """z = μ(h) + σ(h) ε, h ← cells(combine(h, z))."""
        if self.doubles:
            h = self.up(upsampled(h))
        z = noise.reshape(len(h), self.latents, *h.shape[2:])
        if not self.first:
            mean, log_deviation = self.prior(nn.functional.elu(h)).chunk(2, 1)
            z = _soft(mean) + _soft(log_deviation).exp() * z
        h = self.combine(torch.cat([h, z], 1))
        for cell in self.cells:
            h = cell(h)
        return h


def _soft(x: Tensor) -> Tensor:
    """5 tanh(x / 5): a soft cut at ± 5."""
    return 5 * torch.tanh(x / 5)


class NVAE(Network):
    """A decoder whose latent is the standard normal noise of all groups, coarse to fine, laid flat one after another.

    Scaling it by ψ is NVAE's temperature. `output` is "sigmoid": the picture is the mean of Bernoulli pixels.
    """

    family = "nvae"
    output = "sigmoid"

    def __init__(
        self, top: Sequence[int], groups: Sequence[Group], *, colours: int = 3, wide: int = 6, squeezed: int = 4
    ) -> None:
        super().__init__()
        width, height, across = top
        self.top = nn.Parameter(torch.randn(width, height, across))
        steps, self.sizes, scale = [], [], 1
        for i, group in enumerate(groups):
            steps.append(Step(width, group, wide * group.width, squeezed, first=i == 0))
            scale, width = scale * (2 if group.up else 1), group.width
            self.sizes.append(group.latents * height * across * scale**2)
        self.groups = nn.ModuleList(steps)
        self.head = nn.Conv2d(width, colours, 3, padding=1)
        self.dim = sum(self.sizes)

    @classmethod
    def _shaped(cls, state: Mapping[str, Tensor]) -> Self:
        groups = []
        for i in range(count(state, "groups.{}.combine.weight")):
            width, both = state[f"groups.{i}.combine.weight"].shape[:2]
            cells = count(state, f"groups.{i}.cells.{{}}.widen.weight")
            groups.append(Group(both - width, width, cells, f"groups.{i}.up.weight" in state))
        wide, squeezed = _cell_shape(state, groups)
        colours = len(state["head.weight"])
        return cls(tuple(state["top"].shape), groups, colours=colours, wide=wide, squeezed=squeezed)

    def preactivation(self, z: Float[Tensor, "n z"], y: Int[Tensor, " n"] | None = None) -> Float[Tensor, "n c h w"]:
        """The logits of the pixels."""
        h = self.top.expand(len(z), *self.top.shape)
        for step, noise in zip(self.groups, torch.split(self.psi * z, self.sizes, 1), strict=True):
            h = step(h, noise)
        x: Tensor = self.head(nn.functional.elu(h))
        return x


def _cell_shape(state: Mapping[str, Tensor], groups: Sequence[Group]) -> tuple[int, int]:
    """How many times wider a cell is inside, and the width of its gate."""
    for i, group in enumerate(groups):
        if group.cells:
            wide = len(state[f"groups.{i}.cells.0.widen.weight"])
            return math.ceil(wide / group.width), len(state[f"groups.{i}.cells.0.squeeze.weight"])
    return 6, 4
