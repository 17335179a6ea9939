"""What every backbone is: pictures (b, 3, h, w) in [0, 1] to vectors (b, dim), in parts that follow one another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from likewise.errors import InputError, ShapeError


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
