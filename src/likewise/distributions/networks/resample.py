"""Up, filter, down: resampling with a finite impulse response, and the low-pass filters of alias-free networks."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn


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

    `pad` counts zeros before and after on the finer grid, negative to crop. f is (t,), applied to rows and then to
    columns, or (t, t); None is a single tap of 1. The size h becomes ⌈(h·up + pad − t + 1) / down⌉.
    """
    if f is None:
        f = torch.ones(1, dtype=x.dtype, device=x.device)
    if f.ndim == 1:
        rows = _along(x, f[None, :], (1, up), (1, down), ((0, 0), pad))
        return _along(rows, f[:, None], (up, 1), (down, 1), (pad, (0, 0))) * gain
    return _along(x, f, (up, up), (down, down), (pad, pad)) * gain


def _along(
    x: Tensor, f: Tensor, up: tuple[int, int], down: tuple[int, int], pad: tuple[tuple[int, int], tuple[int, int]]
) -> Tensor:
    """The same with factors and padding of their own for rows and columns; channels go through as pictures."""
    planes = x.reshape(-1, 1, *x.shape[2:])
    kernel = f.to(x.dtype)[None, None]
    (top, bottom), (left, right) = pad
    if up != (1, 1):
        # A transposed convolution is the full one of the zero-stuffed signal: only its ends are left to be set.
        planes = nn.functional.conv_transpose2d(planes, kernel, stride=up)
        tall, wide = (x.shape[2] * up[0], x.shape[3] * up[1])
        top, left = top - f.shape[0] + 1, left - f.shape[1] + 1
        bottom = tall + pad[0][0] + pad[0][1] - f.shape[0] + 1 - planes.shape[2] - top
        right = wide + pad[1][0] + pad[1][1] - f.shape[1] + 1 - planes.shape[3] - left
        y = nn.functional.pad(planes, (left, right, top, bottom))[:, :, :: down[0], :: down[1]]
    else:
        padded = nn.functional.pad(planes, (left, right, top, bottom))
        y = nn.functional.conv2d(padded, kernel.flip(2, 3), stride=down)
    return y.reshape(*x.shape[:2], *y.shape[2:])


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
