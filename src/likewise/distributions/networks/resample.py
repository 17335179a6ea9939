"""Up, filter, down: resampling with a finite impulse response, and the low-pass filters of alias-free networks."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

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


def lowpass(taps: int, cutoff: float, width: float, rate: float, *, radial: bool = False) -> Tensor | None:
    """A Kaiser-windowed low-pass filter that sums to 1: (taps,), or (taps, taps) where radial; None for a single tap.

    The ideal response is a sinc, radial a jinc; the window's β follows from the width of the transition band.
    """
    from scipy import signal, special

    if taps == 1:
        return None
    if not radial:
        return torch.as_tensor(signal.firwin(taps, cutoff, width=width, fs=rate), dtype=torch.float32)
    x = (np.arange(taps) - (taps - 1) / 2) / rate
    r = np.hypot(*np.meshgrid(x, x))
    jinc = np.where(r > 0, special.j1(2 * cutoff * np.pi * r) / (np.pi * np.maximum(r, 1e-30)), cutoff)
    beta = signal.kaiser_beta(signal.kaiser_atten(taps, width / (rate / 2)))
    window = np.kaiser(taps, beta)
    f = jinc * np.outer(window, window)
    return torch.as_tensor(f / f.sum(), dtype=torch.float32)


def power_of_two(value: float) -> float:
    """The smallest power of two that is no less."""
    return float(2.0 ** math.ceil(math.log2(value) - 1e-9))
