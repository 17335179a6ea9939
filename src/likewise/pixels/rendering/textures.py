"""What covers the surfaces of rendered places: photos or made-up patterns, at every size that a camera may see.

Training takes photos of one's own (or patterns); those inside scikit-image and scikit-learn are for the held-out set.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

import cv2
import numpy as np
from jaxtyping import Float, Int, UInt8

from likewise import inputs, samples
from likewise.errors import InputError
from likewise.pixels.geometry import shrink

Array = np.ndarray[Any, Any]

HELD_OUT = (
    "portrait", "brick", "cameraman", "cat", "coffee", "coins", "grass", "gravel", "motorcycle", "rocket", "temple",
    "flower",
)  # fmt: skip
"""The photographs of `likewise.samples` for the held-out set, never for training; those without detail are left out."""
SHORTEST = 384
LEVELS = 9
"""The size of a texture's pyramid; a level has half the width and height of the one before, at least 1."""
GAMMA = 2.2
DARKEST = 0.02
"""The least share of light that a surface returns: black in a photo is rarely black in the world."""
REFLECTANCE = DARKEST + (1 - DARKEST) * (np.arange(256) / 255.0) ** GAMMA
"""The share of light that each of 256 values of a photo stands for."""


class Textures:
    """Photos of any sizes, in any form that `likewise.inputs` takes for an image, and their halves."""

    def __init__(self, photos: Sequence[Any]) -> None:
        if isinstance(photos, (str, os.PathLike)) or not isinstance(photos, Sequence) or not photos:
            raise InputError(f"textures: expected a list of at least one image, got {photos!r}")
        self.photos = tuple(inputs.image(p, where=f"texture {i}").pixels for i, p in enumerate(photos))

    @cached_property
    def pyramid(self) -> tuple[UInt8[np.ndarray, "n 3"], Int[np.ndarray, "k l 3"]]:
        """All texels of all levels, averaged in linear light, and where a level starts: (offset, w, h)."""
        flat, offset = list[Array](), 0
        table = np.zeros((len(self.photos), LEVELS, 3), np.int64)
        for i, photo in enumerate(self.photos):
            light: Array = REFLECTANCE[photo].astype(np.float32)
            for k in range(LEVELS):
                h, w = max(photo.shape[0] >> k, 1), max(photo.shape[1] >> k, 1)
                light = cv2.resize(light, (w, h), interpolation=cv2.INTER_AREA).reshape(h, w, 3)
                value = ((light - DARKEST) / (1 - DARKEST)).clip(0, 1) ** (1 / GAMMA)
                flat.append(np.rint(value * 255).astype(np.uint8).reshape(-1, 3))
                table[i, k] = offset, w, h
                offset += w * h
        return np.concatenate(flat), table

    def sample(
        self,
        which: Int[np.ndarray, " n"],
        u: Float[np.ndarray, " n"],
        v: Float[np.ndarray, " n"],
        foot: Float[np.ndarray, " n"],
    ) -> tuple[Float[np.ndarray, "n 3"], Float[np.ndarray, "n 2"]]:
        """Linear RGB of the textures `which` at (u, v) in units of their shorter sides, and green's slopes a texel.

        Trilinear over two levels of the pyramid, mirrored beyond the borders; `foot` is a pixel's footprint in (u, v).
        """
        texels, table = self.pyramid
        sizes = table[which, 0, 1:]
        short = sizes.min(axis=1)
        level = np.log2(np.maximum(foot * short, 1.0)).clip(0, LEVELS - 1.001)
        fold = (np.stack([u, v], axis=1) * short[:, None] / sizes + 1) % 2 - 1  # negative where the mirror turns it
        colour, slopes = np.zeros((len(u), 3)), np.zeros((len(u), 2))
        for k in (0, 1):
            at, w, h = table[which, level.astype(int) + k].T
            x, y = (np.abs(fold) * np.stack([w, h], axis=1) - 0.5).clip(0, np.stack([w, h], axis=1) - 1).T
            i, j = x.astype(int), y.astype(int)
            rows, columns = (j, np.minimum(j + 1, h - 1)), (i, np.minimum(i + 1, w - 1))
            a, b, c, d = (REFLECTANCE[texels[at + row * w + column]] for row in rows for column in columns)
            fx, fy, weight = (x - i)[:, None], (y - j)[:, None], np.abs(1 - k - level % 1)[:, None]
            top, low = a + fx * (b - a), c + fx * (d - c)
            colour += weight * (top + fy * (low - top))
            slopes += weight * np.stack([(b - a + fy * (d - c - b + a))[:, 1], (low - top)[:, 1]], axis=1)
        return colour, slopes * np.sign(fold)


@cache
def held_out() -> Textures:
    """The photographs of HELD_OUT; nothing is downloaded."""
    return Textures([shrink(samples.photograph(name), shortest=SHORTEST) for name in HELD_OUT])


def procedural(seed: int, n: int = 24, *, side: int = 256) -> list[UInt8[np.ndarray, "h w 3"]]:
    """n patterns of `side` px from a seed: stone and rust by noise of many scales; on every other one, posters."""
    if n < 1 or side < 16:
        raise InputError(f"procedural: expected n ≥ 1 and side ≥ 16, got n={n}, side={side}")
    pages = []
    for i in range(n):
        rng = np.random.default_rng((seed, i))
        one, two, *others = _colours(rng, 2 + i % 2 * int(rng.integers(15, 50)))
        page = one + _noise(rng, side, rng.uniform(0.6, 0.95)) * (two - one)
        for colour in others:
            x, y, w, h = np.rint(rng.random(4) * [side, side, side / 4, side / 4]).astype(int).tolist()
            cv2.rectangle(page, (x, y), (x + w + 2, y + h + 2), colour.tolist(), -1)
        page *= 0.7 + 0.6 * _noise(rng, side, 0.9)  # stains over all of it
        pages.append(np.rint(page.clip(0, 1) * 255).astype(np.uint8))
    return pages


def _colours(rng: np.random.Generator, n: int) -> Array:
    """n muted colours of very different lightness."""
    light = rng.permutation(np.linspace(0.15, 0.9, n))
    return np.asarray((light[:, None] + rng.normal(0, 0.09, (n, 3))).clip(0.02, 0.98))


def _noise(rng: np.random.Generator, side: int, roughness: float) -> Array:
    """(side, side, 1) in [0, 1]: octaves of smoothed noise, each `roughness` as strong as the one twice as coarse."""
    total, cells, weight = np.zeros((side, side)), 3, 1.0
    while side // cells >= 2:
        octave = rng.random((cells + 1, cells + 1))
        total += weight * cv2.resize(octave, (side, side), interpolation=cv2.INTER_CUBIC)
        cells, weight = cells * 2, weight * roughness
    low, high = np.quantile(total, [0.005, 0.995])
    return np.asarray(((total - low) / (high - low)).clip(0, 1))[..., None]
