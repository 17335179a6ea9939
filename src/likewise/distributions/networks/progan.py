"""ProGAN, by the keys of pytorch_GAN_zoo: formatLayer, groupScale0.{i}, scaleLayers.{i}.{j}, toRGBLayers.{i}"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from likewise.distributions.networks.network import Network, count, pixel_norm, upsampled
from likewise.distributions.networks.style import SLOPE
from likewise.errors import InputError


class Equalised(nn.Module):
    """c (W x + b), c = √(2 / fan-in), linear or a convolution that keeps the size: this layout scales the bias, too."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(*shape))
        self.bias = nn.Parameter(torch.zeros(shape[0]))
        self.gain = math.sqrt(2.0 / math.prod(shape[1:]))

    def forward(self, x: Tensor) -> Tensor:
        """The map."""
        weight, bias = self.weight * self.gain, self.bias * self.gain
        if weight.ndim == 2:
            return nn.functional.linear(x, weight, bias)
        return nn.functional.conv2d(x, weight, bias, padding=weight.shape[2] // 2)


class ProGAN(Network):
    """A fully grown progressive GAN: pixel norm, equalised learning rate, the picture of the largest scale.

    The latent is normalised to a sphere first: scaling it changes nothing, so truncation is refused, and its Jacobian
    has at most dim − 1 directions. The output is linear; "pixel" cuts it off at the ends of [−1, 1].
    """

    family = "progan"
    output = "clamp"

    def __init__(self, dim: int, widths: list[int], *, colours: int = 3, group: int = 1) -> None:
        super().__init__()
        self.dim = dim
        self.formatLayer = Equalised(16 * widths[0], dim)
        self.groupScale0 = nn.ModuleList(Equalised(widths[0], widths[0], 3, 3) for _ in range(group))
        self.scaleLayers = nn.ModuleList(
            nn.ModuleList([Equalised(out, into, 3, 3), Equalised(out, out, 3, 3)]) for into, out in pairwise(widths)
        )
        self.toRGBLayers = nn.ModuleList(Equalised(colours, width, 1, 1) for width in widths)

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor], **settings: object) -> Self:
        """The network of a state dict; newer files put .module. before weight and bias, older ones do not."""
        return super().from_state({key.replace(".module.", "."): value for key, value in state.items()}, **settings)

    @classmethod
    def _shaped(cls, state: Mapping[str, Tensor]) -> Self:
        scales = count(state, "toRGBLayers.{}.weight")
        widths = [int(state[f"toRGBLayers.{i}.weight"].shape[1]) for i in range(scales)]
        colours = int(state["toRGBLayers.0.weight"].shape[0])
        dim = int(state["formatLayer.weight"].shape[1])
        return cls(dim, widths, colours=colours, group=count(state, "groupScale0.{}.weight"))

    def truncated(self, psi: float) -> Self:
        """Refused, but for ψ = 1."""
        if psi != 1:
            raise InputError(
                "psi: a ProGAN normalises its latents, so ψ z gives the picture of z; truncate the density instead, "
                "latent=TruncatedNormal(dim, psi)"
            )
        return super().truncated(psi)

    def preactivation(self, z: Float[Tensor, "n z"], y: Int[Tensor, " n"] | None = None) -> Float[Tensor, "n c h w"]:
        """The picture as the network gives it, nominally in [−1, 1]."""
        x = _activated(self.formatLayer(pixel_norm(z)).reshape(len(z), -1, 4, 4))
        for layer in self.groupScale0:
            x = _activated(layer(x))
        for scale in self.scaleLayers:
            x = upsampled(x)
            for layer in scale.children():
                x = _activated(layer(x))
        picture: Tensor = self.toRGBLayers[-1](x)
        return picture


def _activated(x: Tensor) -> Tensor:
    return pixel_norm(nn.functional.leaky_relu(x, SLOPE))
