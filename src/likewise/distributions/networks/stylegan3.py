"""StyleGAN3 (configurations t and r), by the official keys: synthesis.input.*, synthesis.L{i}_{size}_{channels}.*"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from likewise.distributions.networks.resample import lowpass, power_of_two, upfirdn
from likewise.distributions.networks.style import Dense, StyleNetwork, leaky, modulated_conv
from likewise.distributions.networks.style import Mapping as StyleMapping
from likewise.errors import InputError

CLAMP = 256.0
MARGIN = 10
"""Pixels around the picture's canvas, on each side, at every layer but the last two."""
CUTOFF = 2.0
"""The bandwidth of the Fourier features, in cycles a canvas."""
SCALE = 0.25
"""What the last layer's output is multiplied with."""
TAPS = 6
"""Taps of a filter for each factor of its resampling."""


class Stage(NamedTuple):
    """The grid after a layer: samples a side and a canvas, the band it carries and the width of its transition."""

    size: int
    rate: int
    cutoff: float
    width: float
    channels: int


def stages(
    side: int, layers: int = 14, *, base: int = 32768, most: int = 512, colours: int = 3, critical: int = 2
) -> list[Stage]:
    """The geometric progression of cut-offs and stop bands from 2 and 2^2.1 to side/2 and side/2 · 2^0.3 cycles.

    The last `critical` layers are sampled critically; a grid's rate is the next power of two above twice its stop band.
    """
    rows = []
    for i in range(layers + 1):
        t = min(i / (layers - critical), 1.0)
        cutoff = CUTOFF * (side / 2 / CUTOFF) ** t
        stop = 2**2.1 * (side / 2 * 2**0.3 / 2**2.1) ** t
        rate = power_of_two(min(2 * stop, side))
        size = side if i >= layers - 1 else int(rate) + 2 * MARGIN
        channels = colours if i == layers else round(min(base / 2 / cutoff, most))
        rows.append(Stage(size, int(rate), cutoff, 2 * (max(stop, rate / 2) - cutoff), channels))
    return rows


class Fourier(nn.Module):
    """Fourier features on the canvas, rotated and shifted by the style, mixed by a matrix."""

    freqs: Tensor
    phases: Tensor
    transform: Tensor

    def __init__(self, w: int, channels: int, size: int, rate: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, channels))
        self.affine = Dense(w, 4)
        with torch.no_grad():
            self.affine.weight.zero_()
            self.affine.bias.copy_(torch.tensor([1.0, 0.0, 0.0, 0.0]))
        self.register_buffer("transform", torch.eye(3))
        self.register_buffer("freqs", _in_disc(channels) * CUTOFF)
        self.register_buffer("phases", torch.rand(channels) - 0.5)
        self.size, self.rate = size, rate

    def forward(self, w: Float[Tensor, "n w"]) -> Float[Tensor, "n channels size size"]:
        """a sin 2π(f·R(x − t) + φ): amplitudes a fall to 0 from the cut-off to half the rate."""
        rotation, shift = self._moved(w)
        matrix = rotation @ self.transform[:2, :2]
        offset = rotation @ (self.transform[:2, 2] - shift)[:, :, None]
        freqs = self.freqs @ matrix
        phases = self.phases + (self.freqs @ offset)[:, :, 0]
        amplitudes = (1 - (freqs.norm(dim=2) - CUTOFF) / (self.rate / 2 - CUTOFF)).clamp(0, 1)
        waves = torch.sin(2 * math.pi * (torch.einsum("hwd,ncd->nhwc", self._grid(w), freqs) + phases[:, None, None]))
        mixed: Tensor = (waves * amplitudes[:, None, None]) @ (self.weight.T / math.sqrt(len(self.weight)))
        x: Tensor = mixed.permute(0, 3, 1, 2)
        return x

    def _moved(self, w: Tensor) -> tuple[Float[Tensor, "n 2 2"], Float[Tensor, "n 2"]]:
        """The rotation and the shift that the style asks for, (cos, sin, x, y) up to the length of the first two."""
        t = self.affine(w)
        t = t / t[:, :2].norm(dim=1, keepdim=True)
        c, s = t[:, 0], t[:, 1]
        return torch.stack([torch.stack([c, -s], 1), torch.stack([s, c], 1)], 1), t[:, 2:]

    def _grid(self, like: Tensor) -> Float[Tensor, "size size 2"]:
        """Pixel centres as (x, y), the canvas being [−½, ½]²."""
        line = torch.arange(self.size, dtype=like.dtype, device=like.device)
        line = (line + 0.5 - self.size / 2) / self.rate
        return torch.stack(torch.meshgrid(line, line, indexing="xy"), 2)


def _in_disc(n: int) -> Float[Tensor, "n 2"]:
    """n points spread evenly over the disc of radius 1."""
    angle, radius = 2 * math.pi * torch.rand(n), torch.rand(n).sqrt()
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1)


class Layer(nn.Module):
    """Modulated convolution, then a leaky ReLU on a twice finer grid between two low-pass filters; or the last."""

    up_filter: Tensor | None
    down_filter: Tensor | None
    magnitude_ema: Tensor

    def __init__(
        self, w: int, before: Stage, after: Stage, *, kernel: int, last: bool, filters: Sequence[Tensor | None]
    ) -> None:
        super().__init__()
        self.affine = Dense(w, before.channels, bias=1.0)
        self.weight = nn.Parameter(torch.randn(after.channels, before.channels, kernel, kernel))
        self.bias = nn.Parameter(torch.zeros(after.channels))
        self.register_buffer("magnitude_ema", torch.ones(()))
        for name, f in zip(("up_filter", "down_filter"), filters, strict=True):
            self.register_buffer(name, f)
        fine = max(before.rate, after.rate) * (1 if last else 2)
        self.up, self.down, self.last = fine // before.rate, fine // after.rate, last
        self.pad = self._padding(before.size + kernel - 1, after.size)

    def _padding(self, into: int, out: int) -> tuple[int, int]:
        """Zeros on the fine grid before and after, so that `out` samples remain and the canvas stays centred."""
        taps = sum(1 if f is None else len(f) for f in (self.up_filter, self.down_filter))
        total = (out - 1) * self.down + 1 - into * self.up + taps - 2
        low = (total + self.up) // 2
        return low, total - low

    def forward(self, x: Float[Tensor, "n into h w"], w: Float[Tensor, "n w"]) -> Float[Tensor, "n out h2 w2"]:
        """The layer; inputs are divided by the root of their tracked mean square."""
        kernel: Tensor = self.weight
        s = self.affine(w)
        x = x * self.magnitude_ema.rsqrt()
        if self.last:
            s = s / math.sqrt(kernel[0].numel())
            y = nn.functional.conv2d(x * s[:, :, None, None], kernel, self.bias, padding=kernel.shape[2] - 1)
            return upfirdn(y, None, pad=self.pad).clamp(-CLAMP, CLAMP)
        # Both normalisations cancel in the demodulation; they keep its sum far from its ε.
        kernel = kernel * kernel.square().mean((1, 2, 3), keepdim=True).rsqrt()
        s = s * s.square().mean(1, keepdim=True).rsqrt()
        y = modulated_conv(x, kernel, s, padding=kernel.shape[2] - 1) + self.bias[:, None, None]
        y = upfirdn(y, self.up_filter, up=self.up, pad=self.pad, gain=self.up**2)
        return upfirdn(leaky(y, CLAMP), self.down_filter, down=self.down)


class Synthesis(nn.Module):
    """w to a picture: Fourier features and a chain of layers named by their number, size and channels."""

    def __init__(
        self, w: int, rows: Sequence[Stage], *, entry: int, kernel: int, filters: Sequence[Sequence[Tensor | None]]
    ) -> None:
        super().__init__()
        start = rows[0]._replace(channels=entry)
        self.input = Fourier(w, entry, start.size, start.rate)
        self.names = [f"L{i}_{row.size}_{row.channels}" for i, row in enumerate(rows)]
        for i, (before, after) in enumerate(zip((start, *rows), rows, strict=False)):
            last = i == len(rows) - 1
            width = 1 if last else kernel
            self.add_module(self.names[i], Layer(w, before, after, kernel=width, last=last, filters=filters[i]))

    def forward(self, w: Float[Tensor, "n w"]) -> Float[Tensor, "n c h w"]:
        """The picture, nominally in [−1, 1]."""
        x: Tensor = self.input(w)
        for name in self.names:
            x = self.get_submodule(name)(x, w)
        return SCALE * x


Filters = list[tuple[Tensor | None, Tensor | None]]


def designed(rows: Sequence[Stage], *, radial: bool = False, critical: int = 2) -> Filters:
    """The low-pass filters of each layer, up and down, as the progression of `stages` asks for; none for the last."""
    pairs: Filters = []
    for i, (before, after) in enumerate(zip((rows[0], *rows[:-2]), rows[:-1], strict=True)):
        fine = 2 * max(before.rate, after.rate)
        up = lowpass(TAPS * fine // before.rate, before.cutoff, before.width, fine)
        around = radial and i < len(rows) - 1 - critical
        pairs.append((up, lowpass(TAPS * fine // after.rate, after.cutoff, after.width, fine, radial=around)))
    return [*pairs, (None, None)]


class StyleGAN3(StyleNetwork):
    """StyleGAN3, spaces pixel, preactivation and style; what `StyleGAN2` says of spaces and of z holds here, too."""

    family = "stylegan3"

    def __init__(
        self, mapping: StyleMapping, rows: Sequence[Stage], *, entry: int, kernel: int = 3, filters: Filters
    ) -> None:
        super().__init__()
        self.mapping = mapping
        w = int(mapping.w_avg.shape[0])
        self.synthesis = Synthesis(w, rows, entry=entry, kernel=kernel, filters=filters)
        self.dim, self.labels = mapping.z, mapping.classes

    @classmethod
    def _shaped(cls, state: Mapping[str, Tensor]) -> Self:
        names = _names(state)
        rows = _rows([(int(size), int(channels)) for _, size, channels in (n.split("_") for n in names)])
        filters: Filters = [
            (state.get(f"synthesis.{name}.up_filter"), state.get(f"synthesis.{name}.down_filter")) for name in names
        ]
        kernel = int(state[f"synthesis.{names[0]}.weight"].shape[2])
        entry = len(state["synthesis.input.weight"])
        return cls(StyleMapping.shaped(state), rows, entry=entry, kernel=kernel, filters=_copies(filters))


def _names(state: Mapping[str, Tensor]) -> list[str]:
    """The layers' names in the order of their numbers."""
    found = {m[1] for key in state if (m := re.match(r"synthesis\.(L\d+_\d+_\d+)\.", key))}
    names = sorted(found, key=lambda name: int(name[1:].split("_")[0]))
    if len(names) < 3 or [int(n[1:].split("_")[0]) for n in names] != list(range(len(names))):
        raise InputError(f"state: expected layers synthesis.L0_…, L1_…, L2_… , got {', '.join(names) or 'none'}")
    return names


def _rows(shapes: Sequence[tuple[int, int]]) -> list[Stage]:
    """The grids from the sizes in the layers' names: the size without margins; the last two have none."""
    side = shapes[-1][0]
    rows = []
    for i, (size, channels) in enumerate(shapes):
        rate = side if i >= len(shapes) - 2 else size - 2 * MARGIN
        if rate < 1 or rate & (rate - 1):
            raise InputError(f"state: layer {i} has {size} samples a side; expected a power of two and {2 * MARGIN}")
        rows.append(Stage(size, rate, 0.0, 0.0, channels))
    return rows


def _copies(filters: Filters) -> Filters:
    return [(None if a is None else a.clone(), None if b is None else b.clone()) for a, b in filters]
