"""Pairs from single photos: a photo and the same photo bent, each under a light of its own; the bend is known exactly.

This is the B, B′ = T(B) of LIFE's third loss. Both images are cut from a larger piece of the photo, so that what
the bend brings into the frame is real.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional

from likewise import media
from likewise.errors import InputError
from likewise.pixels.geometry import grid, sample, shrink
from likewise.pixels.warps import Warp, random_warp

LUMA = (0.299, 0.587, 0.114)


def relit(
    x: Float[Tensor, "b 3 h w"], generator: torch.Generator, *, strength: float = 1.0, night: float = 0.25
) -> Float[Tensor, "b 3 h w"]:
    """Images under a light drawn anew for each; `night` is the share that falls dark; strength 0 changes none."""
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


MARGIN = 0.35
"""The piece of the photo that is kept is larger than the frame by this share of it on every side."""


@dataclass(frozen=True)
class Bent:
    """Images B, B′ (n, 3, h, w) and the bend T between them."""

    b: Tensor
    bent: Tensor
    warp: Warp

    def to(self, device: str) -> Bent:
        """The images on another device."""
        return Bent(self.b.to(device), self.bent.to(device), self.warp)


class Photos:
    """Photos held in memory as 8 bits, `shortest` pixels on the shorter side."""

    def __init__(self, pictures: Sequence[UInt8[np.ndarray, "h w 3"]]) -> None:
        if not pictures:
            raise InputError("photos: expected at least one photo, got none")
        self.pictures = list(pictures)

    @classmethod
    def folder(cls, path: str | os.PathLike[str], *, shortest: int = 480) -> Photos:
        """Every photo of a folder whose shorter side has at least half of `shortest` pixels."""
        images = [shrink(media.read_array(p, side=shortest), shortest=shortest) for p in media.images(Path(path))]
        large = [x for x in images if min(x.shape[:2]) >= shortest // 2]
        if not large:
            raise InputError(f"photos: {path} holds no photo of {shortest // 2} px or more on its shorter side")
        return cls(large)

    def __len__(self) -> int:
        return len(self.pictures)

    def split(self, share: float, seed: int = 0) -> tuple[Photos, Photos]:
        """Photos to learn from, and a share that is set aside."""
        order = np.random.default_rng(seed).permutation(len(self))
        aside = max(1, round(share * len(self)))
        if aside >= len(self):
            raise InputError(f"photos: {len(self)} are too few to set some aside")
        return (Photos([self.pictures[i] for i in order[aside:]]), Photos([self.pictures[i] for i in order[:aside]]))

    def pieces(self, n: int, size: tuple[int, int], rng: np.random.Generator) -> Float[Tensor, "n 3 h w"]:
        """Random pieces of random photos, half of them mirrored."""
        chosen = rng.integers(len(self), size=n)
        return torch.from_numpy(np.stack([_piece(self.pictures[i], size, rng) for i in chosen])).movedim(-1, 1) / 255.0

    def bent(
        self,
        n: int,
        size: tuple[int, int],
        seed: Sequence[int],
        *,
        strength: float = 1.0,
        light: float = 1.0,
        night: float = 0.25,
        part: slice = slice(None),
    ) -> Bent:
        """n pairs, or a part of them; `strength` scales the bends, `light` the change of lighting.

        A pair is a function of the seed and of its number among the n, whatever the part.
        """
        rng = np.random.default_rng(list(seed))
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        h, w = size
        border = (round(MARGIN * h), round(MARGIN * w))
        pieces = self.pieces(n, (h + 2 * border[0], w + 2 * border[1]), rng)
        warp = random_warp(n, h, w, generator=generator, **_options(strength))
        frame = pieces[:, :, border[0] : border[0] + h, border[1] : border[1] + w]
        points = warp.backward(grid(h, w)[None]) + torch.tensor([border[1], border[0]])
        bent = sample(pieces, points, padding="border")
        lit = [relit(x, generator, strength=light, night=night)[part] for x in (frame, bent)]
        return Bent(lit[0], lit[1], warp.part(part))


def _options(strength: float) -> dict[str, Any]:
    return {
        "rotation": 30.0 * strength,
        "scale": 1.4**strength,
        "shear": 0.15 * strength,
        "shift": 0.1 * strength,
        "strength": 0.15 * strength,
    }


def _piece(
    picture: UInt8[np.ndarray, "h w 3"], size: tuple[int, int], rng: np.random.Generator
) -> UInt8[np.ndarray, "h2 w2 3"]:
    """A piece with the frame's proportions, between the frame's own size and all that the photo gives."""
    whole = min(picture.shape[0] / size[0], picture.shape[1] / size[1])
    share = whole * np.exp(rng.uniform(np.log(min(1.0, 1.0 / max(whole, 1.0))), 0.0))
    h, w = (min(round(share * n), m) for n, m in zip(size, picture.shape, strict=False))
    top, left = rng.integers(picture.shape[0] - h + 1), rng.integers(picture.shape[1] - w + 1)
    piece = cv2.resize(picture[top : top + h, left : left + w], size[::-1], interpolation=cv2.INTER_AREA)
    return np.ascontiguousarray(piece[:, ::-1]) if rng.random() < 0.5 else piece
