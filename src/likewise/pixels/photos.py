"""Pairs from single photos: a photo and the same photo bent, each under a light of its own; the bend is known exactly.

This is the B, B′ = T(B) of LIFE's third loss. Both pictures are cut from a larger piece of the photo, so that what
the bend brings into the frame is real.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from likewise import media
from likewise.errors import InputError
from likewise.pixels.geometry import Warp, grid, random_warp, sample
from likewise.pixels.jitter import relit

MARGIN = 0.35
"""The piece of the photo that is kept is larger than the frame by this share of it on every side."""


@dataclass(frozen=True)
class Bent:
    """Pictures B, B′ (n, 3, h, w) and the bend T between them."""

    b: Tensor
    bent: Tensor
    warp: Warp

    def to(self, device: str) -> Bent:
        """The pictures on another device."""
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
        found = [_shrunk(media.read_array(p, side=shortest), shortest) for p in media.images(Path(path))]
        large = [x for x in found if min(x.shape[:2]) >= shortest // 2]
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


def _shrunk(picture: UInt8[np.ndarray, "h w 3"], shortest: int) -> UInt8[np.ndarray, "h w 3"]:
    import cv2

    share = shortest / min(picture.shape[:2])
    if share >= 1:
        return picture
    size = tuple(max(1, round(share * n)) for n in picture.shape[1::-1])
    return np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA))


def _piece(
    picture: UInt8[np.ndarray, "h w 3"], size: tuple[int, int], rng: np.random.Generator
) -> UInt8[np.ndarray, "h2 w2 3"]:
    """A piece with the frame's proportions, between the frame's own size and all that the photo gives."""
    import cv2

    whole = min(picture.shape[0] / size[0], picture.shape[1] / size[1])
    share = whole * np.exp(rng.uniform(np.log(min(1.0, 1.0 / max(whole, 1.0))), 0.0))
    h, w = (min(round(share * n), m) for n, m in zip(size, picture.shape, strict=False))
    top, left = rng.integers(picture.shape[0] - h + 1), rng.integers(picture.shape[1] - w + 1)
    piece = cv2.resize(picture[top : top + h, left : left + w], size[::-1], interpolation=cv2.INTER_AREA)
    return np.ascontiguousarray(piece[:, ::-1]) if rng.random() < 0.5 else piece
