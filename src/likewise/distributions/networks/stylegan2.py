"""StyleGAN2 with skip connections, by the keys of stylegan2-ada-pytorch: mapping.fc*, synthesis.b4.const, b8.conv0 …"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from likewise.distributions.networks.resample import binomial, upfirdn
from likewise.distributions.networks.style import Dense, StyleNetwork, demodulation, leaky, modulated_conv
from likewise.distributions.networks.style import Mapping as StyleMapping
from likewise.errors import InputError

CLAMP = 256.0
"""Where the official training configurations cut activations off; None for networks that were made without."""


class Layer(nn.Module):
    """Modulated 3 × 3 convolution, twice the size where `up`, fixed noise, bias and leaky ReLU."""

    resample_filter: Tensor
    noise_const: Tensor

    def __init__(self, into: int, out: int, w: int, size: int, *, up: bool, clamp: float | None, noise: bool) -> None:
        super().__init__()
        self.affine = Dense(w, into, bias=1.0)
        self.weight = nn.Parameter(torch.randn(out, into, 3, 3))
        self.bias = nn.Parameter(torch.zeros(out))
        self.register_buffer("resample_filter", binomial())
        if noise:
            self.register_buffer("noise_const", torch.randn(size, size))
            self.noise_strength = nn.Parameter(torch.zeros(()))
        self.up, self.noise, self.clamp = up, noise, clamp

    def forward(self, x: Float[Tensor, "n into h w"], w: Float[Tensor, "n w"]) -> Float[Tensor, "n out h2 w2"]:
        """The layer; the noise is the stored one, times its strength."""
        s = self.affine(w)
        y = self._doubled(x, s) if self.up else modulated_conv(x, self.weight, s, padding=1)
        if self.noise:
            y = y + self.noise_const * self.noise_strength
        return leaky(y + self.bias[:, None, None], self.clamp)

    def _doubled(self, x: Tensor, s: Tensor) -> Tensor:
        """Zero-stuffed, convolved with the kernel, smoothed: y = 4 f ∗ w ∗ (x s)↑2, cut to twice the size."""
        y = nn.functional.conv_transpose2d(x * s[:, :, None, None], self.weight.transpose(0, 1), stride=2)
        return upfirdn(y, self.resample_filter, pad=(1, 1), gain=4.0) * demodulation(self.weight, s)[:, :, None, None]


class ToRGB(nn.Module):
    """Modulated 1 × 1 convolution to the picture's channels, not demodulated."""

    def __init__(self, into: int, out: int, w: int, *, clamp: float | None) -> None:
        super().__init__()
        self.affine = Dense(w, into, bias=1.0)
        self.weight = nn.Parameter(torch.randn(out, into, 1, 1))
        self.bias = nn.Parameter(torch.zeros(out))
        self.gain, self.clamp = 1 / math.sqrt(into), clamp

    def forward(self, x: Float[Tensor, "n into h w"], w: Float[Tensor, "n w"]) -> Float[Tensor, "n out h w"]:
        """The layer."""
        s = self.affine(w) * self.gain
        y = nn.functional.conv2d(x * s[:, :, None, None], self.weight, self.bias)
        return y if self.clamp is None else y.clamp(-self.clamp, self.clamp)


class Block(nn.Module):
    """One resolution: a constant (the first) or a doubling layer, a layer, and its share of the picture."""

    resample_filter: Tensor

    def __init__(
        self, into: int, out: int, w: int, size: int, colours: int, *, clamp: float | None, noise: bool
    ) -> None:
        super().__init__()
        self.first = into == 0
        self.register_buffer("resample_filter", binomial())
        if self.first:
            self.const = nn.Parameter(torch.randn(out, size, size))
        else:
            self.conv0 = Layer(into, out, w, size, up=True, clamp=clamp, noise=noise)
        self.conv1 = Layer(out, out, w, size, up=False, clamp=clamp, noise=noise)
        self.torgb = ToRGB(out, colours, w, clamp=clamp)

    def forward(self, x: Tensor | None, picture: Tensor | None, w: Float[Tensor, "n w"]) -> tuple[Tensor, Tensor]:
        """The next features and the next picture, the smaller one doubled and added to."""
        entered = self.const.expand(len(w), *self.const.shape) if x is None else self.conv0(x, w)
        y = self.conv1(entered, w)
        share: Tensor = self.torgb(y, w)
        if picture is not None:
            share = share + upfirdn(picture, self.resample_filter, up=2, pad=(2, 1), gain=4.0)
        return y, share


class Synthesis(nn.Module):
    """w to a picture of side 4 · 2^(blocks − 1)."""

    def __init__(self, w: int, channels: Sequence[int], colours: int, *, clamp: float | None, noise: bool) -> None:
        super().__init__()
        self.sizes = [4 * 2**i for i in range(len(channels))]
        for into, out, size in zip((0, *channels), channels, self.sizes, strict=False):
            self.add_module(f"b{size}", Block(into, out, w, size, colours, clamp=clamp, noise=noise))

    def forward(self, w: Float[Tensor, "n w"]) -> Float[Tensor, "n c h w"]:
        """The picture, nominally in [−1, 1]."""
        features: Tensor | None = None
        picture: Any = None
        for size in self.sizes:
            features, picture = self.get_submodule(f"b{size}")(features, picture, w)
        x: Tensor = picture
        return x


class StyleGAN2(StyleNetwork):
    """StyleGAN2 (skip architecture, stored noise, one style for all layers), spaces pixel, preactivation and style.

    It has no last squashing: its picture, nominally in [−1, 1], is what the space "preactivation" measures (the paper's
    pixels), and "pixel" is that picture mapped to [0, 1] and cut off there. z is normalised to a sphere first, so its
    Jacobian has at most dim − 1 directions.
    """

    family = "stylegan2"

    def __init__(
        self,
        mapping: StyleMapping,
        channels: Sequence[int],
        *,
        colours: int = 3,
        clamp: float | None = CLAMP,
        noise: bool = True,
    ) -> None:
        super().__init__()
        self.mapping, self.clamp = mapping, clamp
        w = int(mapping.w_avg.shape[0])
        self.synthesis = Synthesis(w, channels, colours, clamp=clamp, noise=noise)
        self.dim, self.labels = mapping.z, mapping.classes

    @classmethod
    def _shaped(cls, state: Mapping[str, Tensor], *, clamp: float | None = CLAMP) -> Self:
        sizes = sorted({int(m[1]) for key in state if (m := re.match(r"synthesis\.b(\d+)\.", key))})
        if sizes != [4 * 2**i for i in range(len(sizes))]:
            raise InputError(f"state: expected blocks of side 4, 8, 16 …, got {sizes}")
        if any(f"synthesis.b{size}.torgb.weight" not in state for size in sizes):
            raise InputError("state: not every block has a torgb: only the skip architecture is read")
        channels = [int(state[f"synthesis.b{size}.conv1.weight"].shape[0]) for size in sizes]
        colours = int(state["synthesis.b4.torgb.weight"].shape[0])
        noise = "synthesis.b4.conv1.noise_const" in state
        return cls(StyleMapping.shaped(state), channels, colours=colours, clamp=clamp, noise=noise)

    @property
    def settings(self) -> dict[str, Any]:
        """Where activations are cut off."""
        return {"clamp": self.clamp}
