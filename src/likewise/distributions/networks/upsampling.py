"""The DCGAN that doubles pixels and convolves, by the keys label_emb, l1, conv_blocks; with classes or without."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from likewise.distributions.networks.network import Network, upsampled
from likewise.errors import InputError

EPS = 0.8
"""ε of the inner batch normalisations: this layout's authors passed their momentum in its place."""


class UpsamplingDCGAN(Network):
    """Linear, BN, then twice: double, convolve, BN, activate; a last convolution, tanh.

    With classes, latent and embedding of the class go in side by side. Files of this layout exist in both orders, and
    their keys do not tell which: where `latent_first` is not given, the order is taken under which the first
    normalisation's stored statistics are those of its inputs. `slope` is that of the activation's negative side, 0 for
    ReLU.
    """

    family = "upsampling_dcgan"

    def __init__(
        self,
        dim: int,
        widths: tuple[int, int, int, int],
        side: int,
        *,
        slope: float = 0.0,
        classes: tuple[int, int] | None = None,
        latent_first: bool = True,
    ) -> None:
        super().__init__()
        first, second, third, colours = widths
        self.dim, self.side, self.slope, self.latent_first = dim, side, slope, latent_first
        if classes is not None:
            self.labels = classes[0]
            self.label_emb = nn.Embedding(*classes)
        self.l1 = nn.Sequential(nn.Linear(dim + (classes[1] if classes else 0), first * side**2))
        parts: dict[str, nn.Module] = {
            "0": nn.BatchNorm2d(first),
            "2": nn.Conv2d(first, second, 3, padding=1),
            "3": nn.BatchNorm2d(second, EPS),
            "6": nn.Conv2d(second, third, 3, padding=1),
            "7": nn.BatchNorm2d(third, EPS),
            "9": nn.Conv2d(third, colours, 3, padding=1),
        }
        self.conv_blocks = nn.ModuleDict(parts)

    @classmethod
    def _shaped(
        cls, state: Mapping[str, Tensor], *, slope: float | None = None, latent_first: bool | None = None
    ) -> Self:
        flat, into = state["l1.0.weight"].shape
        first = len(state["conv_blocks.0.weight"])
        second, third, colours = (len(state[f"conv_blocks.{i}.weight"]) for i in (2, 6, 9))
        side = math.isqrt(flat // first)
        if first * side**2 != flat:
            raise InputError(f"state: l1 gives {flat} numbers, which is no square of {first} channels")
        embedding = state.get("label_emb.weight")
        classes = None if embedding is None else (int(embedding.shape[0]), int(embedding.shape[1]))
        if slope is None:
            slope = 0.2 if classes is None else 0.0
        dim = int(into) - (classes[1] if classes else 0)
        if latent_first is None:
            latent_first = embedding is None or _latent_first(state)
        widths = (first, second, third, colours)
        return cls(dim, widths, side, slope=slope, classes=classes, latent_first=latent_first)

    @property
    def settings(self) -> dict[str, Any]:
        """The slope of the activation and the order of latent and class."""
        return {"slope": self.slope, "latent_first": self.latent_first}

    def preactivation(self, z: Float[Tensor, "n z"], y: Int[Tensor, " n"] | None = None) -> Float[Tensor, "n c h w"]:
        """What goes into tanh."""
        part = self.conv_blocks
        x = self.psi * z
        if self.labels is not None:
            if y is None:
                raise InputError(f"y: the network has {self.labels} classes; give a class number for each latent")
            x = torch.cat([x, self.label_emb(y)] if self.latent_first else [self.label_emb(y), x], 1)
        x = part["0"](self.l1(x).reshape(len(z), -1, self.side, self.side))
        x = nn.functional.leaky_relu(part["3"](part["2"](upsampled(x))), self.slope)
        x = nn.functional.leaky_relu(part["7"](part["6"](upsampled(x))), self.slope)
        out: Tensor = part["9"](x)
        return out


def _latent_first(state: Mapping[str, Tensor]) -> bool:
    """Whether z ‖ embedding fits the first normalisation's running mean and variance better than embedding ‖ z."""
    return _misfit(state, latent_first=True) <= _misfit(state, latent_first=False)


def _misfit(state: Mapping[str, Tensor], *, latent_first: bool) -> float:
    """How far mean and variance of l1's outputs, z ~ N(0, I) and all classes alike, are from the stored ones."""
    embedding = state["label_emb.weight"].double()
    weight, bias = state["l1.0.weight"].double(), state["l1.0.bias"].double()
    split = weight.shape[1] - embedding.shape[1] if latent_first else embedding.shape[1]
    first, second = weight[:, :split], weight[:, split:]
    of_latent, of_class = (first, second) if latent_first else (second, first)
    shares = embedding @ of_class.T + bias
    channels = len(state["conv_blocks.0.running_mean"])
    spread = (of_latent.square().sum(1) + shares.var(0, correction=0)).reshape(channels, -1)
    places = shares.mean(0).reshape(channels, -1)
    variance = spread.mean(1) + places.var(1, correction=0)
    known_mean, known_variance = (state[f"conv_blocks.0.running_{of}"].double() for of in ("mean", "var"))
    off = (places.mean(1) - known_mean).abs() / known_variance.sqrt() + (variance / known_variance).log().abs()
    return float(off.mean())
