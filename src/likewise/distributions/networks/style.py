"""What style-based generators share: equalised layers, the mapping from z to w, truncation, modulated convolution."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Mapping as Named

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from likewise.distributions.networks.network import Network, count, one_hot, pixel_norm
from likewise.distributions.spaces import Composed

SLOPE = 0.2
GAIN = math.sqrt(2.0)


class Dense(nn.Module):
    """λ W x / √(in) + λ b, then √2 · leaky ReLU where it activates: equalised learning rate with multiplier λ."""

    def __init__(self, into: int, out: int, *, rate: float = 1.0, activate: bool = False, bias: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(out, into) / rate)
        self.bias = nn.Parameter(torch.full((out,), bias))
        self.rate, self.gain, self.activate = rate, rate / math.sqrt(into), activate

    def forward(self, x: Float[Tensor, "n into"]) -> Float[Tensor, "n out"]:
        """The layer."""
        y = nn.functional.linear(x, self.weight * self.gain, self.bias * self.rate)
        return leaky(y) if self.activate else y


def leaky(x: Tensor, clamp: float | None = None, gain: float = GAIN) -> Tensor:
    """gain · leaky ReLU of slope 0.2, cut off at ± clamp."""
    y = nn.functional.leaky_relu(x, SLOPE) * gain
    return y if clamp is None else y.clamp(-clamp, clamp)


class Mapping(nn.Module):
    """z, and the class where there are any, to w: both normalised, then a stack of dense layers."""

    w_avg: Tensor

    def __init__(
        self, z: int, w: int, layers: int, *, classes: int | None = None, embedding: int = 0, rate: float = 0.01
    ) -> None:
        super().__init__()
        self.classes, self.layers = classes, layers
        if classes is not None:
            self.embed = Dense(classes, embedding)
        self.z = z
        for i in range(layers):
            into = w if i else z + (embedding if classes is not None else 0)
            self.add_module(f"fc{i}", Dense(into, w, rate=rate, activate=True))
        self.register_buffer("w_avg", torch.zeros(w))

    @classmethod
    def shaped(cls, state: Named[str, Tensor]) -> Mapping:
        """A mapping of the shapes under mapping.* of a state dict."""
        layers = count(state, "mapping.fc{}.weight")
        w, into = state["mapping.fc0.weight"].shape
        if "mapping.embed.weight" not in state:
            return cls(into, w, layers)
        embedding, classes = state["mapping.embed.weight"].shape
        return cls(into - embedding, w, layers, classes=classes, embedding=embedding)

    def forward(
        self, z: Float[Tensor, "n z"], y: Int[Tensor, " n"] | None = None, psi: float = 1.0
    ) -> Float[Tensor, "n w"]:
        """w̄ + ψ (w − w̄), the style truncated towards the mean style w̄."""
        x = pixel_norm(z)
        if self.classes is not None:
            x = torch.cat([x, pixel_norm(self.embed(one_hot(y, self.classes, z)))], 1)
        for i in range(self.layers):
            x = self.get_submodule(f"fc{i}")(x)
        return x if psi == 1 else self.w_avg + psi * (x - self.w_avg)


def demodulation(weight: Float[Tensor, "out into k k"], s: Float[Tensor, "n into"]) -> Float[Tensor, "n out"]:
    """1 / √(Σ (w s)² + ε) over inputs and taps: outputs of unit variance for inputs of unit variance."""
    return (s.square() @ weight.square().sum((2, 3)).T + 1e-8).rsqrt()


def modulated_conv(
    x: Float[Tensor, "n into h w"], weight: Float[Tensor, "out into k k"], s: Float[Tensor, "n into"], *, padding: int
) -> Float[Tensor, "n out h2 w2"]:
    """x ∗ (w s), demodulated: the same as a kernel for each sample, by scaling inputs and outputs instead."""
    y = nn.functional.conv2d(x * s[:, :, None, None], weight, padding=padding)
    return y * demodulation(weight, s)[:, :, None, None]


class StyleNetwork(Network):
    """A generator in two steps, mapping z → w and synthesis w → picture; it has no last squashing.

    Its picture, nominally in [−1, 1], is what the space "preactivation" measures, through w; "pixel" is that picture
    mapped to [0, 1] and cut off there.
    """

    output = "clamp"
    mapping: nn.Module
    synthesis: nn.Module

    @property
    def spaces(self) -> dict[str, Callable[..., Tensor]]:
        """Before the cut to [0, 1], and the style w."""
        return {"preactivation": Composed(self.style, self.synthesis), "style": self.style}

    def style(self, z: Float[Tensor, "n z"], y: Int[Tensor, " n"] | None = None) -> Float[Tensor, "n w"]:
        """w, truncated to ψ."""
        w: Tensor = self.mapping(z, y, self.psi)
        return w

    def preactivation(self, z: Float[Tensor, "n z"], y: Int[Tensor, " n"] | None = None) -> Float[Tensor, "n c h w"]:
        """The picture as the network gives it, nominally in [−1, 1]."""
        x: Tensor = self.synthesis(self.style(z, y))
        return x
