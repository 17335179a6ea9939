"""What every backbone is: pictures (b, 3, h, w) in [0, 1] to vectors (b, dim), in parts that follow one another."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from likewise.errors import InputError, ShapeError
from likewise.nn.convolution import fold_pair


class Backbone(nn.Module):
    """A network that gives each picture a vector of `dim` numbers; `size` is the side that its weights expect, in px.

    With `frozen_bn` its normalisations stay in evaluation mode under `train()`: fine-tuning on small batches then
    cannot spoil their statistics. Call `train()` on the network, not on a part of it.
    """

    dim: int
    size: int
    frozen_bn: bool

    def parts(self) -> list[nn.Module]:
        """Modules that share this network's weights; one after the other is `features`, so the first k can be kept."""
        raise NotImplementedError

    def pairs(self) -> Iterator[tuple[nn.Module, str, str]]:
        """Every convolution with its normalisation: the module that owns both, and their names in it."""
        return iter(())

    def features(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b d"]:
        """The pooled vector of each picture in [0, 1]."""
        for part in self.parts():
            x = part(x)
        return x

    def train(self, mode: bool = True) -> Self:
        """Training mode, with the normalisations left in evaluation mode where `frozen_bn`."""
        super().train(mode)
        if self.frozen_bn:
            for m in self.modules():
                if isinstance(m, nn.modules.batchnorm._BatchNorm):
                    m.eval()
        return self

    def fold(self) -> Self:
        """A copy for inference without gradients, every normalisation inside its convolution."""
        folded = copy.deepcopy(self).eval()
        for owner, conv, bn in list(folded.pairs()):
            fold_pair(owner, conv, bn)
        return folded.requires_grad_(False)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random weights that depend on the seed alone; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


class Pixels(nn.Module):
    """The first step of a backbone: (255 x − mean) / std of pixels x in [0, 1], channel by channel, channels-last.

    `mean` and `std` are in units of 0 … 255 and in the order that the weights want, which with `bgr` is blue first.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float], *, bgr: bool = False) -> None:
        super().__init__()
        scale, shift = [255.0 / s for s in std], [-m / s for m, s in zip(mean, std, strict=True)]
        self.bgr = bgr
        self.register_buffer("scale", torch.tensor(scale).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("shift", torch.tensor(shift).view(1, -1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The normalised pixels; a wrong shape or whole numbers are an error that names `x`."""
        check_pictures(x)
        x = x.flip(1) if self.bgr else x
        return (x * self.scale + self.shift).contiguous(memory_format=torch.channels_last)


class Pool(nn.Module):
    """The last step of a backbone: the mean over the map, (b, d, h, w) to (b, d)."""

    def forward(self, x: Tensor) -> Tensor:
        """mean over h and w."""
        return x.mean(dim=(2, 3))


def check_pictures(x: Tensor) -> None:
    """(b, 3, h, w) of floats, or an error that names `x`."""
    if x.ndim != 4 or x.shape[1] != 3 or min(x.shape[2:]) < 1:
        raise ShapeError(f"x: expected (b, 3, h, w), got shape {tuple(x.shape)}")
    if not x.is_floating_point():
        raise InputError(f"x: expected floats in [0, 1], got {x.dtype}; divide by 255")
