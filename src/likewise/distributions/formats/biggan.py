"""BigGAN-deep, by the keys of pytorch-pretrained-BigGAN: embeddings, generator.gen_z, generator.layers.{i} …"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from likewise.distributions.formats import Network, one_hot, upsampled
from likewise.distributions.latents import TruncatedNormal
from likewise.errors import InputError

EPS = 1e-4
"""ε of the batch normalisations."""
CUT = 2.0
"""Latents are drawn from N(0, 1) cut to ± 2, then multiplied with the truncation ψ."""


class Spectral(nn.Module):
    """A linear map or convolution divided by its largest singular value σ = uᵀ W v, u and v as stored."""

    weight_u: Tensor
    weight_v: Tensor

    def __init__(self, *shape: int, bias: bool = True) -> None:
        super().__init__()
        self.weight_orig = nn.Parameter(torch.randn(*shape) / math.sqrt(math.prod(shape[1:])))
        if bias:
            self.bias = nn.Parameter(torch.zeros(shape[0]))
        u, _, vt = torch.linalg.svd(self.weight_orig.detach().flatten(1), full_matrices=False)
        self.register_buffer("weight_u", u[:, 0].clone())
        self.register_buffer("weight_v", vt[0].clone())

    @property
    def weight(self) -> Tensor:
        """W / σ."""
        return self.weight_orig / (self.weight_u @ (self.weight_orig.flatten(1) @ self.weight_v))

    def forward(self, x: Tensor) -> Tensor:
        """The map, by the number of its weight's axes; convolutions keep the size."""
        bias = getattr(self, "bias", None)
        if self.weight_orig.ndim == 2:
            return nn.functional.linear(x, self.weight, bias)
        return nn.functional.conv2d(x, self.weight, bias, padding=self.weight_orig.shape[2] // 2)


class Norm(nn.Module):
    """Batch normalisation with statistics for each step of ψ; scale and offset follow the condition, if any."""

    running_means: Tensor
    running_vars: Tensor

    def __init__(self, channels: int, steps: int, condition: int | None = None) -> None:
        super().__init__()
        self.register_buffer("running_means", torch.zeros(steps, channels))
        self.register_buffer("running_vars", torch.ones(steps, channels))
        self.conditional = condition is not None
        if condition is not None:
            self.scale = Spectral(channels, condition, bias=False)
            self.offset = Spectral(channels, condition, bias=False)
        else:
            self.weight = nn.Parameter(torch.ones(channels))
            self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Float[Tensor, "n c h w"], condition: Float[Tensor, "n d"], psi: float) -> Tensor:
        """(x − μ_ψ) / √(σ²_ψ + ε) · (1 + scale) + offset."""
        mean, deviation = at(self.running_means, psi), (at(self.running_vars, psi) + EPS).sqrt()
        scale = 1 + self.scale(condition) if self.conditional else self.weight[None]
        offset = self.offset(condition) if self.conditional else self.bias[None]
        gain = scale / deviation
        return x * gain[:, :, None, None] + (offset - mean * gain)[:, :, None, None]


def at(table: Float[Tensor, "steps c"], psi: float) -> Float[Tensor, " c"]:
    """The row for ψ: rows stand for ψ = 0, 1/(steps − 1) … 1; between two, the straight line from one to the other."""
    place = min(max(psi, 0.0), 1.0) * (len(table) - 1)
    near = round(place)
    if abs(place - near) < 1e-6:
        return table[near]
    low = math.floor(place)
    return table[low] + (place - low) * (table[low + 1] - table[low])


class Block(nn.Module):
    """A bottleneck of four normalised convolutions, doubled in size where `up`; half the channels may be dropped."""

    def __init__(self, into: int, out: int, condition: int, steps: int, *, up: bool, middle: int) -> None:
        super().__init__()
        widths = (into, middle, middle, middle, out)
        for i, kernel in enumerate((1, 3, 3, 1)):
            self.add_module(f"bn_{i}", Norm(widths[i], steps, condition))
            self.add_module(f"conv_{i}", Spectral(widths[i + 1], widths[i], kernel, kernel))
        self.up, self.out = up, out

    def forward(self, x: Float[Tensor, "n c h w"], condition: Float[Tensor, "n d"], psi: float) -> Tensor:
        """The first channels of x, doubled in size where `up`, plus what the convolutions give."""
        y = x
        for i in range(4):
            y = torch.relu(self.get_submodule(f"bn_{i}")(y, condition, psi))
            y = self.get_submodule(f"conv_{i}")(upsampled(y) if self.up and i == 1 else y)
        kept = x[:, : self.out]
        return (upsampled(kept) if self.up else kept) + y


class Attention(nn.Module):
    """Every place looks at every 2 × 2 cell: x + γ o(softmax(θ(x)ᵀ φ(x)) g(x))."""

    def __init__(self, channels: int, inner: int, values: int) -> None:
        super().__init__()
        self.snconv1x1_theta = Spectral(inner, channels, 1, 1, bias=False)
        self.snconv1x1_phi = Spectral(inner, channels, 1, 1, bias=False)
        self.snconv1x1_g = Spectral(values, channels, 1, 1, bias=False)
        self.snconv1x1_o_conv = Spectral(channels, values, 1, 1, bias=False)
        self.gamma = nn.Parameter(torch.zeros(1))

    def forward(self, x: Float[Tensor, "n c h w"], condition: Tensor, psi: float) -> Float[Tensor, "n c h w"]:
        """The layer; it knows neither condition nor ψ."""
        query = self.snconv1x1_theta(x).flatten(2)
        key = nn.functional.max_pool2d(self.snconv1x1_phi(x), 2).flatten(2)
        value = nn.functional.max_pool2d(self.snconv1x1_g(x), 2).flatten(2)
        share = torch.softmax(query.transpose(1, 2) @ key, dim=2)
        seen = (value @ share.transpose(1, 2)).reshape(*value.shape[:2], *x.shape[2:])
        y: Tensor = x + self.gamma * self.snconv1x1_o_conv(seen)
        return y


class Trunk(nn.Module):
    """From a condition (z and the class's embedding) to what goes into tanh."""

    def __init__(self, condition: int, width: int, layers: nn.ModuleList, steps: int) -> None:
        super().__init__()
        self.width = width
        self.gen_z = Spectral(16 * 16 * width, condition)
        self.layers = layers
        self.bn = Norm(width, steps)
        self.conv_to_rgb = Spectral(width, width, 3, 3)

    def forward(self, condition: Float[Tensor, "n d"], psi: float) -> Float[Tensor, "n 3 h w"]:
        """The first three of the last layer's channels."""
        x = self.gen_z(condition).reshape(-1, 4, 4, 16 * self.width).permute(0, 3, 1, 2)
        for layer in self.layers:
            x = layer(x, condition, psi)
        y: Tensor = self.conv_to_rgb(torch.relu(self.bn(x, condition, psi)))
        return y[:, :3]


class BigGANDeep(Network):
    """BigGAN-deep: classes, latents from a truncated normal, every second block doubles the size.

    ψ multiplies the latent and chooses the statistics of the normalisations, as in the original. Statistics between
    two steps of ψ are interpolated linearly; pytorch-pretrained-BigGAN swaps the two weights there, which differs
    where ψ is no multiple of the step (0.02).
    """

    family = "biggan_deep"
    signs = ("embeddings.weight", "generator.gen_z.weight_orig")

    def __init__(
        self, latent: int, embedding: int, classes: int, width: int, layers: nn.ModuleList, steps: int
    ) -> None:
        super().__init__()
        self.dim, self.labels = latent, classes
        self.embeddings = nn.Linear(classes, embedding, bias=False)
        self.generator = Trunk(latent + embedding, width, layers, steps)

    @classmethod
    def _shaped(cls, state: Mapping[str, Tensor]) -> Self:
        embedding, classes = state["embeddings.weight"].shape
        flat, condition = state["generator.gen_z.weight_orig"].shape
        steps = len(state["generator.bn.running_means"])
        return cls(condition - embedding, embedding, classes, flat // 256, _layers(state, condition, steps), steps)

    @property
    def latent(self) -> TruncatedNormal:
        """N(0, 1) cut to ± 2."""
        return TruncatedNormal(self.dim, CUT)

    def truncated(self, psi: float) -> Self:
        """The network for latents ψ z, with the statistics of ψ."""
        if not 0 < psi <= 1:
            raise InputError(f"psi: BigGAN has statistics for 0 < ψ ≤ 1, got {psi}")
        return super().truncated(psi)

    def preactivation(self, z: Float[Tensor, "n z"], y: Int[Tensor, " n"] | None = None) -> Float[Tensor, "n 3 h w"]:
        """What goes into tanh."""
        classes = self.embeddings.in_features
        condition = torch.cat([self.psi * z, self.embeddings(one_hot(y, classes, z))], 1)
        x: Tensor = self.generator(condition, self.psi)
        return x


def _layers(state: Mapping[str, Tensor], condition: int, steps: int) -> nn.ModuleList:
    """Blocks and attention in the order of the state dict's numbers; every second block doubles the size."""
    layers: list[nn.Module] = []
    blocks = 0
    while True:
        at_i = f"generator.layers.{len(layers)}"
        if f"{at_i}.gamma" in state:
            inner, channels = state[f"{at_i}.snconv1x1_theta.weight_orig"].shape[:2]
            layers.append(Attention(channels, inner, len(state[f"{at_i}.snconv1x1_g.weight_orig"])))
        elif f"{at_i}.conv_0.weight_orig" in state:
            middle, into = state[f"{at_i}.conv_0.weight_orig"].shape[:2]
            out = len(state[f"{at_i}.conv_3.weight_orig"])
            layers.append(Block(into, out, condition, steps, up=blocks % 2 == 1, middle=middle))
            blocks += 1
        else:
            return nn.ModuleList(layers)
