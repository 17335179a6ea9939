"""StyleGAN2 (skip connections) and StyleGAN3 (t and r) by the keys of their official PyTorch code; or as the module.

mapping.fc*, synthesis.b4.const, b8.conv0 … for StyleGAN2; synthesis.input.*, synthesis.L{i}_{size}_{channels}.* for 3.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from likewise.distributions.formats import GIVEN, Network, check_given, count, one_hot, pixel_norm, squashed
from likewise.distributions.formats.snapshot import Module
from likewise.distributions.spectra import Composite
from likewise.errors import InputError

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


class StyleMapping(nn.Module):
    """z, and the class where there are any, to w: both normalised, then a stack of dense layers."""

    w_avg: Tensor

    def __init__(
        self, z: int, w: int, layers: int, *, classes: int | None = None, embedding: int = 0, rate: float = 0.01
    ) -> None:
        super().__init__()
        self.classes, self.layers, self.rate = classes, layers, rate
        if classes is not None:
            self.embed = Dense(classes, embedding)
        self.z = z
        for i in range(layers):
            into = w if i else z + (embedding if classes is not None else 0)
            self.add_module(f"fc{i}", Dense(into, w, rate=rate, activate=True))
        self.register_buffer("w_avg", torch.zeros(w))

    @classmethod
    def shaped(cls, state: Mapping[str, Tensor], rate: float) -> StyleMapping:
        """A mapping of the shapes under mapping.* of a state dict."""
        layers = count(state, "mapping.fc{}.weight")
        w, into = state["mapping.fc0.weight"].shape
        if "mapping.embed.weight" not in state:
            return cls(into, w, layers, rate=rate)
        embedding, classes = state["mapping.embed.weight"].shape
        return cls(into - embedding, w, layers, classes=classes, embedding=embedding, rate=rate)

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
    """A generator in two steps, mapping z → w and synthesis w → image; it has no last squashing.

    Its image, nominally in [−1, 1], is what the space "preactivation" measures, through w; "pixel" is that image
    mapped to [0, 1] and cut off there.
    """

    output = "clamp"
    mapping: nn.Module
    synthesis: nn.Module

    @property
    def spaces(self) -> dict[str, Callable[..., Tensor]]:
        """Before the cut to [0, 1], and the style w."""
        return {"preactivation": Composite(self.style, self._drawn), "style": self.style}

    def style(self, z: Float[Tensor, "n z"], y: Int[Tensor, " n"] | None = None) -> Float[Tensor, "n w"]:
        """w, truncated to ψ."""
        w: Tensor = self.mapping(z, y, self.psi)
        return w

    def preactivation(self, z: Float[Tensor, "n z"], y: Int[Tensor, " n"] | None = None) -> Float[Tensor, "n c h w"]:
        """The image as the network gives it, nominally in [−1, 1]."""
        return self._drawn(self.style(z, y))

    def _drawn(self, w: Float[Tensor, "n w"]) -> Float[Tensor, "n c h w"]:
        x: Tensor = self.synthesis(w)
        return x


# ---------------------------------------------------------------------------------------------------------- resampling


DENSE = 256
"""Up to this many samples a side, a separable filter is applied as two products with a matrix; above, it convolves."""


def upfirdn(
    x: Float[Tensor, "n c h w"],
    f: Float[Tensor, "*taps"] | None,
    *,
    up: int = 1,
    down: int = 1,
    pad: tuple[int, int] = (0, 0),
    gain: float = 1.0,
) -> Float[Tensor, "n c h2 w2"]:
    """Put up − 1 zeros after each sample, pad, convolve with f, keep every down-th: the same along both axes.

    `pad` counts zeros before and after on the finer grid, negative to crop. f is (t,), applied to rows and to columns,
    or (t, t); None is a single tap of 1. The size h becomes ⌈(h·up + pad − t + 1) / down⌉.
    """
    f = torch.ones(1, dtype=x.dtype, device=x.device) if f is None else f.to(x.dtype)
    if f.ndim == 2:
        f = _factor(f)
    if f.ndim == 2:
        return _along(x, f, (up, up), (down, down), (pad, pad)) * gain
    if max(x.shape[2:]) <= DENSE:
        tall, wide = (line_matrix(f, size, up, down, pad) for size in x.shape[2:])
        return (gain * tall) @ (x @ wide.T)
    rows = _along(x, f[None, :], (1, up), (1, down), ((0, 0), pad))
    return _along(rows, f[:, None], (up, 1), (down, 1), (pad, (0, 0))) * gain


def _factor(f: Float[Tensor, "t t"]) -> Tensor:
    """g where f = g gᵀ, as for the outer square of a filter that sums to 1; else f itself."""
    g = f.sum(1)
    return g if torch.allclose(torch.outer(g, g), f, rtol=1e-6, atol=1e-9) else f


def line_matrix(
    f: Float[Tensor, " t"], size: int, up: int, down: int, pad: tuple[int, int]
) -> Float[Tensor, "out size"]:
    """The matrix of `upfirdn` along one axis: A[o, i] = f[o·down + t − 1 − pad₀ − i·up], 0 where f has no such tap."""
    taps = len(f)
    out = -(-(size * up + pad[0] + pad[1] - taps + 1) // down)
    ends = torch.arange(out, device=f.device)[:, None] * down + taps - 1 - pad[0]
    tap = ends - torch.arange(size, device=f.device)[None, :] * up
    return torch.where((tap >= 0) & (tap < taps), f[tap.clamp(0, taps - 1)], 0.0)


def _along(
    x: Tensor, f: Tensor, up: tuple[int, int], down: tuple[int, int], pad: tuple[tuple[int, int], tuple[int, int]]
) -> Tensor:
    """The same by convolution, channel by channel, with factors and padding of their own for rows and columns."""
    channels = x.shape[1]
    kernel = f.expand(channels, 1, *f.shape)
    (top, bottom), (left, right) = pad
    if up == (1, 1):
        padded = nn.functional.pad(x, (left, right, top, bottom))
        return nn.functional.conv2d(padded, kernel.flip(2, 3), stride=down, groups=channels)
    # A transposed convolution is the full one of the zero-stuffed signal: only its ends are left to be set.
    full = nn.functional.conv_transpose2d(x, kernel, stride=up, groups=channels)
    ends: list[int] = []
    for axis, (low, high) in ((3, pad[1]), (2, pad[0])):
        taps, factor = f.shape[axis - 2], up[axis - 2]
        before = low - taps + 1
        ends += [before, x.shape[axis] * factor + low + high - taps + 1 - full.shape[axis] - before]
    return nn.functional.pad(full, ends)[:, :, :: down[0], :: down[1]]


def binomial() -> Float[Tensor, "4 4"]:
    """The outer square of (1, 3, 3, 1) / 8."""
    f = torch.tensor([1.0, 3.0, 3.0, 1.0]) / 8
    return torch.outer(f, f)


# ----------------------------------------------------------------------------------------------------------- StyleGAN2


NOISES = ("const", "none", "random")


class SkipLayer(nn.Module):
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

    def forward(
        self, x: Float[Tensor, "n into h w"], w: Float[Tensor, "n w"], noise: str
    ) -> Float[Tensor, "n out h2 w2"]:
        """The layer; the noise is the stored one, a new one for each image, or none, times its strength."""
        s = self.affine(w)
        y = self._doubled(x, s) if self.up else modulated_conv(x, self.weight, s, padding=1)
        if self.noise and noise != "none":
            plane = self.noise_const if noise == "const" else torch.randn_like(y[:, :1])
            y = y + plane * self.noise_strength
        return leaky(y + self.bias[:, None, None], self.clamp)

    def _doubled(self, x: Tensor, s: Tensor) -> Tensor:
        """Zero-stuffed, convolved with the kernel, smoothed: y = 4 f ∗ w ∗ (x s)↑2, cut to twice the size."""
        y = nn.functional.conv_transpose2d(x * s[:, :, None, None], self.weight.transpose(0, 1), stride=2)
        return upfirdn(y, self.resample_filter, pad=(1, 1), gain=4.0) * demodulation(self.weight, s)[:, :, None, None]


class ToRGB(nn.Module):
    """Modulated 1 × 1 convolution to the image's channels, not demodulated."""

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


class SkipBlock(nn.Module):
    """One resolution: a constant (the first) or a doubling layer, a layer, and its share of the image."""

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
            self.conv0 = SkipLayer(into, out, w, size, up=True, clamp=clamp, noise=noise)
        self.conv1 = SkipLayer(out, out, w, size, up=False, clamp=clamp, noise=noise)
        self.torgb = ToRGB(out, colours, w, clamp=clamp)

    def forward(
        self, x: Tensor | None, image: Tensor | None, w: Float[Tensor, "n w"], noise: str
    ) -> tuple[Tensor, Tensor]:
        """The next features and the next image, the smaller one doubled and added to."""
        entered = self.const.expand(len(w), *self.const.shape) if x is None else self.conv0(x, w, noise)
        y = self.conv1(entered, w, noise)
        share: Tensor = self.torgb(y, w)
        if image is not None:
            share = share + upfirdn(image, self.resample_filter, up=2, pad=(2, 1), gain=4.0)
        return y, share


class SkipSynthesis(nn.Module):
    """w to an image of side 4 · 2^(blocks − 1)."""

    def __init__(self, w: int, channels: Sequence[int], colours: int, *, clamp: float | None, noise: bool) -> None:
        super().__init__()
        self.sizes = [4 * 2**i for i in range(len(channels))]
        for into, out, size in zip((0, *channels), channels, self.sizes, strict=False):
            self.add_module(f"b{size}", SkipBlock(into, out, w, size, colours, clamp=clamp, noise=noise))

    def forward(self, w: Float[Tensor, "n w"], noise: str = "const") -> Float[Tensor, "n c h w"]:
        """The image, nominally in [−1, 1]."""
        features: Tensor | None = None
        image: Any = None
        for size in self.sizes:
            features, image = self.get_submodule(f"b{size}")(features, image, w, noise)
        x: Tensor = image
        return x


class StyleGAN2(StyleNetwork):
    """StyleGAN2 (skip architecture, one style for all layers), spaces pixel, preactivation and style.

    It has no last squashing: its image, nominally in [−1, 1], is what the space "preactivation" measures (the paper's
    pixels), and "pixel" is that image mapped to [0, 1] and cut off there. z is normalised to a sphere first, so its
    Jacobian has at most dim − 1 directions. `noise` is that of the official code; "random" draws it for each image that
    is made, and volumes are measured at the stored noise.
    """

    family = "stylegan2"
    signs = ("synthesis.b4.const", "mapping.w_avg")

    def __init__(
        self,
        mapping: StyleMapping,
        channels: Sequence[int],
        *,
        colours: int = 3,
        clamp: float | None,
        noise: str = "const",
        noisy: bool = True,
    ) -> None:
        super().__init__()
        self.mapping, self.clamp, self.noise = mapping, clamp, _noise(noise)
        w = int(mapping.w_avg.shape[0])
        self.synthesis = SkipSynthesis(w, channels, colours, clamp=clamp, noise=noisy)
        self.dim, self.labels = mapping.z, mapping.classes

    @classmethod
    def _shaped(
        cls, state: Mapping[str, Tensor], *, clamp: float | None = GIVEN, rate: float = GIVEN, noise: str = "const"
    ) -> Self:
        sizes = sorted({int(m[1]) for key in state if (m := re.match(r"synthesis\.b(\d+)\.", key))})
        if sizes != [4 * 2**i for i in range(len(sizes))]:
            raise InputError(f"state: expected blocks of side 4, 8, 16 …, got {sizes}")
        if any(f"synthesis.b{size}.torgb.weight" not in state for size in sizes):
            raise InputError("state: not every block has a torgb: only the skip architecture is read")
        channels = [int(state[f"synthesis.b{size}.conv1.weight"].shape[0]) for size in sizes]
        colours = int(state["synthesis.b4.torgb.weight"].shape[0])
        noisy = "synthesis.b4.conv1.noise_const" in state
        check_given(cls.family, clamp=clamp, rate=rate)
        mapping = StyleMapping.shaped(state, rate)
        return cls(mapping, channels, colours=colours, clamp=clamp, noise=noise, noisy=noisy)

    @property
    def settings(self) -> dict[str, Any]:
        """Where activations are cut off, the learning rate's multiplier in the mapping, and the noise."""
        return {"clamp": self.clamp, "rate": self.mapping.rate, "noise": self.noise}

    @classmethod
    def read(cls, net: Module) -> dict[str, Any]:
        """The settings that a snapshot says."""
        for path, part in net.walk():
            if part.kind == "SynthesisBlock":
                _expect(path, part, architecture="skip")
            elif part.kind == "SynthesisLayer":
                up = 2 if path.endswith("conv0") else 1
                _expect(path, part, activation="lrelu", act_gain=GAIN, up=up, padding=1)
        return {"clamp": _common(net, "conv_clamp"), "rate": _rate(net)}

    def sample(self, z: Float[Tensor, "n z"], y: Int[Tensor, " n"] | None = None) -> Float[Tensor, "n c h w"]:
        """Images in [0, 1] with the noise of `noise`; `forward` is the same where that is not random."""
        return squashed(self.synthesis(self.style(z, y), self.noise), self.output)

    def _drawn(self, w: Float[Tensor, "n w"]) -> Float[Tensor, "n c h w"]:
        x: Tensor = self.synthesis(w, "none" if self.noise == "none" else "const")
        return x


def _noise(noise: str) -> str:
    if noise not in NOISES:
        raise InputError(f"noise: expected one of {', '.join(NOISES)}, got {noise!r}")
    return noise


def _expect(path: str, part: Module, **values: Any) -> None:
    """An InputError unless a module of a snapshot has these attributes."""
    for name, value in values.items():
        said = part[name]
        if not (said == value if isinstance(value, str) else np.allclose(said, value, rtol=1e-6)):
            raise InputError(f"{path} has {name} = {said!r}, and only {value!r} is known; give it as module:attribute")


def _common(net: Module, name: str) -> Any:
    """An attribute that all layers have in common."""
    values = {part[name] for _, part in net.walk() if part.kind in ("SynthesisLayer", "ToRGBLayer")}
    if len(values) != 1:
        raise InputError(f"its layers have {len(values)} values of {name}; only one for all is known")
    return values.pop()


def _rate(net: Module) -> float:
    """The learning rate's multiplier in the mapping; every dense layer is checked to be one of ours."""
    rates = set()
    for path, part in net.walk():
        if part.kind == "FullyConnectedLayer":
            mapped = path.startswith("mapping.fc")
            rate = float(part["bias_gain"]) if mapped else 1.0
            gain = rate / math.sqrt(part.tensors["weight"].shape[1])
            _expect(path, part, activation="lrelu" if mapped else "linear", weight_gain=gain, bias_gain=rate)
            rates |= {rate} if mapped else set()
    if len(rates) != 1:
        raise InputError(f"its mapping has {len(rates)} learning rates; only one for all layers is known")
    return rates.pop()


# ----------------------------------------------------------------------------------------------------------- StyleGAN3


class Design(NamedTuple):
    """What the weights of a StyleGAN3 do not say, the values of the official configurations in brackets.

    Where activations are cut off (256), the bandwidth of the Fourier features in cycles a canvas (2), what the last
    layer's output is multiplied with (¼), how much finer the leaky ReLU's grid is (2), and pixels around the canvas, on
    each side, at every layer but the last two (10).
    """

    clamp: float | None
    cutoff: float
    scale: float
    upsampling: int
    margin: int


MOST_SIDE, FINEST = 8192, 16
"""Samples a side, and how much finer a leaky ReLU's grid may be: a few bytes could ask for all memory otherwise."""


class Stage(NamedTuple):
    """The grid after a layer: samples a side, samples a canvas, channels."""

    size: int
    rate: int
    channels: int


class Fourier(nn.Module):
    """Fourier features on the canvas, rotated and shifted by the style, mixed by a matrix."""

    freqs: Tensor
    phases: Tensor
    transform: Tensor

    def __init__(self, w: int, channels: int, size: int, rate: int, cutoff: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, channels))
        self.affine = Dense(w, 4)
        self.register_buffer("transform", torch.eye(3))
        self.register_buffer("freqs", torch.randn(channels, 2))
        self.register_buffer("phases", torch.rand(channels) - 0.5)
        self.size, self.rate, self.cutoff = size, rate, cutoff

    def forward(self, w: Float[Tensor, "n w"]) -> Float[Tensor, "n channels size size"]:
        """a sin 2π(f·R(x − t) + φ): amplitudes a fall to 0 from the cut-off to half the rate."""
        rotation, shift = self._moved(w)
        matrix = rotation @ self.transform[:2, :2]
        offset = rotation @ (self.transform[:2, 2] - shift)[:, :, None]
        freqs = self.freqs @ matrix
        phases = self.phases + (self.freqs @ offset)[:, :, 0]
        amplitudes = (1 - (freqs.norm(dim=2) - self.cutoff) / (self.rate / 2 - self.cutoff)).clamp(0, 1)
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


class AliasFreeLayer(nn.Module):
    """Modulated convolution, then a leaky ReLU on a twice finer grid between two low-pass filters; or the last."""

    up_filter: Tensor | None
    down_filter: Tensor | None
    magnitude_ema: Tensor

    def __init__(
        self,
        w: int,
        before: Stage,
        after: Stage,
        *,
        kernel: int,
        last: bool,
        filters: Sequence[Tensor | None],
        design: Design,
    ) -> None:
        super().__init__()
        self.affine = Dense(w, before.channels, bias=1.0)
        self.weight = nn.Parameter(torch.randn(after.channels, before.channels, kernel, kernel))
        self.bias = nn.Parameter(torch.zeros(after.channels))
        self.register_buffer("magnitude_ema", torch.ones(()))
        for name, f in zip(("up_filter", "down_filter"), filters, strict=True):
            self.register_buffer(name, f)
        fine = max(before.rate, after.rate) * (1 if last else design.upsampling)
        self.up, self.down, self.last, self.clamp = fine // before.rate, fine // after.rate, last, design.clamp
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
            y = upfirdn(y, None, pad=self.pad)
            return y if self.clamp is None else y.clamp(-self.clamp, self.clamp)
        # Both normalisations cancel in the demodulation; they keep its sum far from its ε.
        kernel = kernel * kernel.square().mean((1, 2, 3), keepdim=True).rsqrt()
        s = s * s.square().mean(1, keepdim=True).rsqrt()
        y = modulated_conv(x, kernel, s, padding=kernel.shape[2] - 1) + self.bias[:, None, None]
        y = upfirdn(y, self.up_filter, up=self.up, pad=self.pad, gain=self.up**2)
        return upfirdn(leaky(y, self.clamp), self.down_filter, down=self.down)


class AliasFreeSynthesis(nn.Module):
    """w to an image: Fourier features and a chain of layers named by their number, size and channels."""

    def __init__(
        self, w: int, rows: Sequence[Stage], *, entry: int, kernel: int, filters: Filters, design: Design
    ) -> None:
        super().__init__()
        start, self.scale = rows[0]._replace(channels=entry), design.scale
        self.input = Fourier(w, entry, start.size, start.rate, design.cutoff)
        self.names = [f"L{i}_{row.size}_{row.channels}" for i, row in enumerate(rows)]
        for i, (before, after) in enumerate(zip((start, *rows), rows, strict=False)):
            last = i == len(rows) - 1
            width = 1 if last else kernel
            self.add_module(
                self.names[i],
                AliasFreeLayer(w, before, after, kernel=width, last=last, filters=filters[i], design=design),
            )

    def forward(self, w: Float[Tensor, "n w"]) -> Float[Tensor, "n c h w"]:
        """The image, nominally in [−1, 1]."""
        x: Tensor = self.input(w)
        for name in self.names:
            x = self.get_submodule(name)(x, w)
        return self.scale * x


Filters = Sequence[Sequence[Tensor | None]]


class StyleGAN3(StyleNetwork):
    """StyleGAN3, spaces pixel, preactivation and style; what `StyleGAN2` says of spaces and of z holds here, too."""

    family = "stylegan3"
    signs = ("synthesis.input.freqs",)

    def __init__(
        self,
        mapping: StyleMapping,
        rows: Sequence[Stage],
        *,
        entry: int,
        kernel: int = 3,
        filters: Filters,
        design: Design,
        noise: str = "const",
    ) -> None:
        super().__init__()
        self.mapping, self.design, self.noise = mapping, design, _noise(noise)
        w = int(mapping.w_avg.shape[0])
        self.synthesis = AliasFreeSynthesis(w, rows, entry=entry, kernel=kernel, filters=filters, design=design)
        self.dim, self.labels = mapping.z, mapping.classes

    @classmethod
    def _shaped(
        cls,
        state: Mapping[str, Tensor],
        *,
        clamp: float | None = GIVEN,
        cutoff: float = GIVEN,
        scale: float = GIVEN,
        upsampling: int = GIVEN,
        margin: int = GIVEN,
        rate: float = GIVEN,
        noise: str = "const",
    ) -> Self:
        names, design = _names(state), Design(clamp, cutoff, scale, upsampling, margin)
        check_given(cls.family, **design._asdict(), rate=rate)
        if not 1 <= upsampling <= FINEST:
            raise InputError(f"upsampling: expected a whole number from 1 to {FINEST}, got {upsampling!r}")
        rows = grids([(int(size), int(channels)) for _, size, channels in (n.split("_") for n in names)], margin)
        stored = [[state.get(f"synthesis.{name}.{way}_filter") for way in ("up", "down")] for name in names]
        filters = [[None if f is None else f.clone() for f in pair] for pair in stored]
        kernel = int(state[f"synthesis.{names[0]}.weight"].shape[2])
        entry, mapping = len(state["synthesis.input.weight"]), StyleMapping.shaped(state, rate)
        return cls(mapping, rows, entry=entry, kernel=kernel, filters=filters, design=design, noise=noise)

    @property
    def settings(self) -> dict[str, Any]:
        """The design, the learning rate's multiplier in the mapping, and the noise, of which there is none."""
        return {**self.design._asdict(), "rate": self.mapping.rate, "noise": self.noise}

    @classmethod
    def read(cls, net: Module) -> dict[str, Any]:
        """The settings that a snapshot says; the grids that follow from them are checked against its own."""
        synthesis = net.modules["synthesis"]
        layers = [synthesis.modules[name] for name in synthesis["layer_names"]]
        fine = layers[0]["tmp_sampling_rate"] / max(layers[0]["in_sampling_rate"], layers[0]["out_sampling_rate"])
        said = {"clamp": _common(net, "conv_clamp"), "cutoff": float(synthesis.modules["input"]["bandwidth"])}
        said |= {"scale": float(synthesis["output_scale"]), "upsampling": int(fine), "margin": synthesis["margin_size"]}
        made = cls._shaped(net.state(), **said, rate=_rate(net))
        first: Any = made.synthesis.input
        _expect("input", synthesis.modules["input"], size=[first.size] * 2, sampling_rate=first.rate)
        for name, layer in zip(synthesis["layer_names"], layers, strict=True):
            ours: Any = made.synthesis.get_submodule(name)
            _expect(name, layer, up_factor=ours.up, down_factor=ours.down, padding=[*ours.pad] * 2, is_torgb=ours.last)
        return {**said, "rate": _rate(net)}


def _names(state: Mapping[str, Tensor]) -> list[str]:
    """The layers' names in the order of their numbers."""
    found = {m[1] for key in state if (m := re.match(r"synthesis\.(L\d+_\d+_\d+)\.", key))}
    names = sorted(found, key=lambda name: int(name[1:].split("_")[0]))
    if len(names) < 3 or [int(n[1:].split("_")[0]) for n in names] != list(range(len(names))):
        raise InputError(f"state: expected layers synthesis.L0_…, L1_…, L2_… , got {', '.join(names) or 'none'}")
    return names


def grids(shapes: Sequence[tuple[int, int]], margin: int) -> list[Stage]:
    """The grids from the sizes in the layers' names: the size without margins; the last two have none."""
    side = shapes[-1][0]
    rows = []
    for i, (size, channels) in enumerate(shapes):
        rate = side if i >= len(shapes) - 2 else size - 2 * margin
        if not 1 <= rate <= size <= MOST_SIDE or rate & (rate - 1):
            raise InputError(f"state: layer {i} has {size} samples a side; expected a power of two and {2 * margin}")
        rows.append(Stage(size, rate, channels))
    return rows


# ------------------------------------------------------------------------------------------------------------ a module


class StyleModule(Network):
    """A module with the official calls: G.mapping(z, c, truncation_psi=ψ), G.synthesis(ws, noise_mode="const").

    Its spaces are those of `StyleGAN2`.
    """

    output = "clamp"

    def __init__(self, module: Any) -> None:
        super().__init__()
        for name in ("mapping", "synthesis", "z_dim"):
            if not hasattr(module, name):
                raise InputError(f"module: expected mapping, synthesis and z_dim, as StyleGAN2 and 3 have; no {name}")
        self.module, self.dim = module, int(module.z_dim)
        self.labels = int(getattr(module, "c_dim", 0) or 0) or None

    @property
    def spaces(self) -> dict[str, Callable[..., Tensor]]:
        """Before the cut to [0, 1], and the style w."""
        return {"preactivation": self.preactivation, "style": self.style}

    def _styles(self, z: Tensor, y: Tensor | None) -> Tensor:
        """One w for each layer, (n, layers, w)."""
        condition = None if self.labels is None else one_hot(y, self.labels, z)
        ws: Tensor = self.module.mapping(z, condition, truncation_psi=self.psi)
        return ws

    def style(self, z: Float[Tensor, "n z"], y: Int[Tensor, " n"] | None = None) -> Float[Tensor, "n w"]:
        """w of the first layer; without style mixing and a cut-off of ψ they are all the same."""
        ws = self._styles(z, y)
        return ws[:, 0] if ws.ndim == 3 else ws

    def preactivation(self, z: Float[Tensor, "n z"], y: Int[Tensor, " n"] | None = None) -> Float[Tensor, "n c h w"]:
        """The image as the module gives it, nominally in [−1, 1], its noise held constant."""
        synthesis: Any = self.module.synthesis
        x: Tensor = synthesis(self._styles(z, y), **_accepted(synthesis, noise_mode="const", force_fp32=True))
        return x


def _accepted(call: Any, **options: Any) -> dict[str, Any]:
    """The options that a call takes, by name or by **kwargs."""
    parameters = inspect.signature(call.forward if isinstance(call, nn.Module) else call).parameters.values()
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return options
    return {name: value for name, value in options.items() if name in {p.name for p in parameters}}
