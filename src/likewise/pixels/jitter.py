"""The same place under another light: exposure, colour cast, gamma, uneven lighting, night with lamps, noise, blur.

Nothing here moves a pixel. Every draw comes from the generator that is handed in.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

LUMA = (0.299, 0.587, 0.114)


def relit(
    x: Float[Tensor, "b 3 h w"], generator: torch.Generator, *, strength: float = 1.0, night: float = 0.25
) -> Float[Tensor, "b 3 h w"]:
    """Pictures under a light drawn anew for each; `night` is the share that falls dark; strength 0 changes none."""
    if strength <= 0:
        return x
    y = _toned(x, generator, strength)
    y = y * _field(x, generator, 0.7 * strength).exp()
    y = torch.where(_chosen(x, generator, night), _dark(y, generator), y)
    y = _blurred(y, generator, 0.3 * strength)
    sigma = 0.03 * strength * _uniform(x, generator, 0, 1) ** 2
    y = y + sigma * torch.randn(y.shape, generator=generator)
    return y.clamp(0, 1)


def _uniform(x: Tensor, generator: torch.Generator, low: float, high: float, channels: int = 1) -> Tensor:
    return low + (high - low) * torch.rand(len(x), channels, 1, 1, generator=generator)


def _chosen(x: Tensor, generator: torch.Generator, share: float) -> Tensor:
    return _uniform(x, generator, 0, 1) < share


def _toned(x: Tensor, g: torch.Generator, strength: float) -> Tensor:
    """Gamma, colour cast, contrast and saturation."""
    y = x.clamp_min(1e-4) ** (strength * _uniform(x, g, -0.8, 0.8)).exp()
    y = y * (strength * _uniform(x, g, -0.5, 0.5)).exp() * (strength * _uniform(x, g, -0.3, 0.3, 3)).exp()
    mean = y.mean((1, 2, 3), keepdim=True)
    y = mean + (y - mean) * (strength * _uniform(x, g, -0.5, 0.3)).exp()
    grey = (y * torch.tensor(LUMA).view(1, 3, 1, 1)).sum(1, keepdim=True)
    return torch.lerp(y, grey, strength * _uniform(x, g, -0.3, 1.0)).clamp(0, 1.5)


def _field(x: Tensor, g: torch.Generator, strength: float) -> Tensor:
    """A smooth field around 0, one in three with an edge in it as of a shadow; (b, 1, h, w)."""
    h, w = int(x.shape[-2]), int(x.shape[-1])
    total = torch.zeros(len(x), 1, h, w)
    for cells in (2, 5):
        coarse = torch.randn(len(x), 1, cells, cells, generator=g) * _uniform(x, g, 0, 0.5)
        total = total + functional.interpolate(coarse, (h, w), mode="bicubic", align_corners=False)
    angle = _uniform(x, g, 0, 6.2832)
    rows = torch.linspace(-1, 1, h).view(1, 1, h, 1)
    columns = torch.linspace(-1, 1, w).view(1, 1, 1, w)
    side = angle.cos() * columns + angle.sin() * rows - _uniform(x, g, -0.7, 0.7)
    bend = 0.3 * torch.sin(4 * (angle.cos() * rows - angle.sin() * columns) + 3 * angle)
    shadow = torch.sigmoid((side + bend) * _uniform(x, g, 5, 60)) * _uniform(x, g, -1.4, 0)
    return strength * (total + torch.where(_chosen(x, g, 0.33), shadow, torch.zeros_like(shadow)))


def _dark(x: Tensor, g: torch.Generator) -> Tensor:
    """Night: little light, a blue or sodium cast, a few lamps that light what is near them, the sensor's gain."""
    h, w = int(x.shape[-2]), int(x.shape[-1])
    ambient = (_uniform(x, g, -2.3, -0.7)).exp()
    rows = torch.linspace(-1, 1, h).view(1, 1, h, 1)
    columns = torch.linspace(-1, 1, w).view(1, 1, 1, w)
    warm = torch.tensor([1.0, 0.75, 0.4]).view(1, 3, 1, 1)
    cool = torch.tensor([0.7, 0.85, 1.1]).view(1, 3, 1, 1)
    light = ambient * torch.lerp(cool, torch.ones_like(cool), _uniform(x, g, 0, 1))
    glow = torch.zeros(len(x), 3, h, w)
    for _ in range(3):
        cx, cy, spread = _uniform(x, g, -1.1, 1.1), _uniform(x, g, -1.1, 1.1), _uniform(x, g, 0.15, 0.8)
        fall = 1 / (1 + ((columns - cx) ** 2 + (rows - cy) ** 2) / spread**2)
        on = _chosen(x, g, 0.6).float() * _uniform(x, g, 0.1, 0.9)
        light = light + on * fall**2 * torch.lerp(torch.ones_like(warm), warm, _uniform(x, g, 0, 1))
        glow = glow + 0.5 * on * (fall**12) * warm
    y = x * light + _chosen(x, g, 0.3).float() * glow
    gain = (_uniform(x, g, 0.25, 0.55) / y.mean((1, 2, 3), keepdim=True).clamp_min(0.02)).clamp(0.6, 4)
    y = y * torch.where(_chosen(x, g, 0.5), gain, torch.ones_like(gain))
    return y + 0.03 * _uniform(x, g, 0, 1) * torch.randn(y.shape, generator=g)


def _blurred(x: Tensor, g: torch.Generator, share: float) -> Tensor:
    soft = functional.avg_pool2d(functional.pad(x, (1, 1, 1, 1), mode="replicate"), 3, 1)
    return torch.where(_chosen(x, g, share), soft, x)
