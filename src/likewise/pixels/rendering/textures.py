"""Where the renderer's textures come from: a folder of one's own, photos inside other packages, or made-up patterns.

Training takes a folder (or patterns); the photos inside scikit-image and scikit-learn are kept for the held-out set.
"""

from __future__ import annotations

import importlib.resources
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import cv2
import numpy as np
from jaxtyping import Float, Int, UInt8

from likewise.errors import FileError, InputError, ShapeError
from likewise.media import as_uint8, images, read_array
from likewise.pixels.geometry import shrink

HELD_OUT = (
    "skimage/data/astronaut.png",
    "skimage/data/brick.png",
    "skimage/data/camera.png",
    "skimage/data/chelsea.png",
    "skimage/data/coffee.png",
    "skimage/data/coins.png",
    "skimage/data/grass.png",
    "skimage/data/gravel.png",
    "skimage/data/motorcycle_left.png",
    "skimage/data/rocket.jpg",
    "sklearn/datasets/images/china.jpg",
    "sklearn/datasets/images/flower.jpg",
)
"""The photos inside the wheels of scikit-image and scikit-learn: for the held-out set only, never for training.

Left out: drawings and scans (logo, horse, page, text, chessboards), medicine (cell, ihc, retina), the second
photo of the motorcycle, and those without detail (the moon, the deep field, a clock in motion).
"""

SHORTEST = 384
DETAIL = 4.0
"""Images of a folder with less detail than this are left out; see `detailed`."""
LEVELS = 9
"""The size of a texture's pyramid; a level has half the width and height of the one before, at least 1."""
GAMMA = 2.2
DARKEST = 0.02
"""The least share of light that a surface returns: black in a photo is rarely black in the world."""


@dataclass(frozen=True)
class Textures:
    """Photos as uint8 (h, w, 3), sRGB, of any sizes, and their names."""

    photos: tuple[UInt8[np.ndarray, "h w 3"], ...]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.photos:
            raise InputError("textures: expected at least one photo, got none")
        if len(self.photos) != len(self.names):
            raise InputError(f"names: expected {len(self.photos)}, one a photo, got {len(self.names)}")
        for name, photo in zip(self.names, self.photos, strict=True):
            if photo.ndim != 3 or photo.shape[2] != 3 or min(photo.shape) < 1 or photo.dtype != np.uint8:
                raise ShapeError(f"{name}: expected uint8 (h, w, 3), got {photo.dtype} {photo.shape}")

    def __len__(self) -> int:
        return len(self.photos)

    def __iter__(self) -> Iterator[UInt8[np.ndarray, "h w 3"]]:
        return iter(self.photos)

    def __add__(self, other: Textures) -> Textures:
        return Textures(self.photos + other.photos, self.names + other.names)

    def __repr__(self) -> str:
        return f"Textures({len(self)}: {', '.join(self.names[:3])}{', …' if len(self) > 3 else ''})"

    @cached_property
    def pyramid(self) -> tuple[UInt8[np.ndarray, "n 3"], Int[np.ndarray, "k l 3"]]:
        """All texels of all levels, and where a level starts: (offset, w, h)."""
        flat: list[np.ndarray[Any, Any]] = []
        table = np.zeros((len(self), LEVELS, 3), np.int64)
        offset = 0
        for i, photo in enumerate(self.photos):
            for k, level in enumerate(_halved(photo)):
                table[i, k] = offset, level.shape[1], level.shape[0]
                flat.append(level.reshape(-1, 3))
                offset += len(flat[-1])
        return np.concatenate(flat), table


def reflectance() -> Float[np.ndarray, "256"]:
    """The share of light that each of 256 values of a photo stands for: (v/255)^γ, from DARKEST up."""
    return np.asarray(DARKEST + (1 - DARKEST) * (np.arange(256) / 255.0) ** GAMMA, np.float64)


def _halved(photo: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """A photo and its halves, averaged in linear light."""
    curve = reflectance().astype(np.float32)
    light, levels = curve[photo], [photo]
    for k in range(1, LEVELS):
        size = (max(photo.shape[1] >> k, 1), max(photo.shape[0] >> k, 1))
        light = cv2.resize(light, size, interpolation=cv2.INTER_AREA).reshape(size[1], size[0], 3)
        level = ((light - DARKEST) / (1 - DARKEST)).clip(0, 1) ** (1 / GAMMA)
        levels.append(np.rint(level * 255).astype(np.uint8))
    return levels


def collected(photos: Textures | Sequence[np.ndarray[Any, Any]] | None, names: Sequence[str] | None = None) -> Textures:
    """Textures from arrays (h, w) or (h, w, 3), uint8 or floats in [0, 1]; made-up patterns where none are given."""
    if isinstance(photos, Textures):
        return photos
    if photos is None:
        return procedural(0)
    if isinstance(photos, (str, os.PathLike)) or not isinstance(photos, Sequence):
        raise InputError(f"textures: expected Textures or a list of arrays, got {photos!r}; read a folder by folder()")
    given = tuple(_three(as_uint8(np.asarray(p), where=f"texture {i}")) for i, p in enumerate(photos))
    return Textures(given, tuple(names) if names is not None else tuple(f"texture {i}" for i in range(len(given))))


def _three(photo: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.repeat(photo[:, :, None], 3, axis=2) if photo.ndim == 2 else photo


# --------------------------------------------------------------------------------------------------- photos on disk


def folder(
    path: str | os.PathLike[str], *, shortest: int = SHORTEST, least: int = 64, detail: float = DETAIL
) -> Textures:
    """The photos of a folder and its subfolders, shorter side at `shortest` px.

    Left out: images under `least` px a side, and smooth ones (gradients, blurred backdrops), whose `detailed` is
    below `detail`: no flow can be found on them.
    """
    photos, names = [], []
    for file in images(path):
        photo = shrink(read_array(file, side=shortest), shortest=shortest)
        if min(photo.shape[:2]) >= least and detailed(photo) >= detail:
            photos.append(photo)
            names.append(str(file.relative_to(path)))
    if not photos:
        words = f"holds no image of at least {least} px a side and a detail of {detail:g}"
        raise FileError(f"{path}: {words}; give a folder of photos")
    return Textures(tuple(photos), tuple(names))


def detailed(photo: UInt8[np.ndarray, "h w 3"]) -> float:
    """How much there is to see: the median, over a grid of 8 × 8 parts, of the mean step between neighbouring pixels.

    In grey levels, with the shorter side at 96 px. Most photos have 5 to 40, gradients and logos less than 4.
    """
    small = cv2.cvtColor(shrink(photo, shortest=96), cv2.COLOR_RGB2GRAY).astype(np.float32)
    steps = np.abs(np.diff(small, axis=0))[:, 1:] + np.abs(np.diff(small, axis=1))[1:]
    return float(np.median(cv2.resize(steps, (8, 8), interpolation=cv2.INTER_AREA)))


@cache
def held_out(shortest: int = SHORTEST) -> Textures:
    """The photos that the wheels of scikit-image and scikit-learn carry (HELD_OUT); nothing is downloaded."""
    photos = tuple(shrink(_packaged(name), shortest=shortest) for name in HELD_OUT)
    return Textures(photos, HELD_OUT)


def _packaged(name: str) -> np.ndarray[Any, Any]:
    package, _, rest = name.partition("/")
    with importlib.resources.as_file(importlib.resources.files(package).joinpath(rest)) as path:
        return read_array(path)


# -------------------------------------------------------------------------------------------------- made-up patterns


def procedural(seed: int, n: int = 24, *, side: int = 256) -> Textures:
    """n patterns of `side` px from a seed: noise of many scales, bricks, and patches like signs, in turn."""
    if n < 1 or side < 16:
        raise InputError(f"procedural: expected n ≥ 1 and side ≥ 16, got n={n}, side={side}")
    photos, names = [], []
    for i in range(n):
        rng = np.random.default_rng((seed, i))
        name, pattern = PATTERNS[i % len(PATTERNS)]
        photos.append(np.rint(pattern(rng, side).clip(0, 1) * 255).astype(np.uint8))
        names.append(f"{name} {seed}/{i}")
    return Textures(tuple(photos), tuple(names))


def noise(rng: np.random.Generator, side: int, *, finest: int = 2, roughness: float = 0.75) -> np.ndarray[Any, Any]:
    """(side, side) in [0, 1]: octaves of smoothed noise, each `roughness` as strong as the one twice as coarse."""
    total, cells, weight = np.zeros((side, side)), 3, 1.0
    while side // cells >= finest:
        octave = rng.random((cells + 1, cells + 1))
        total += weight * cv2.resize(octave, (side, side), interpolation=cv2.INTER_CUBIC)
        cells, weight = cells * 2, weight * roughness
    low, high = np.quantile(total, [0.005, 0.995])
    return np.asarray(((total - low) / (high - low)).clip(0, 1))


def _colours(rng: np.random.Generator, n: int) -> np.ndarray[Any, Any]:
    """n muted colours of very different lightness."""
    light = rng.permutation(np.linspace(0.15, 0.9, n) if n > 1 else np.array([0.5]))
    return np.asarray((light[:, None] + rng.normal(0, 0.09, (n, 3))).clip(0.02, 0.98))


def _blend(rng: np.random.Generator, mask: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Two colours mixed by a mask in [0, 1]."""
    one, two = _colours(rng, 2)
    return np.asarray(one + mask[..., None] * (two - one))


def _rough(rng: np.random.Generator, picture: np.ndarray[Any, Any], amount: float) -> np.ndarray[Any, Any]:
    """An image with stains of all sizes over it."""
    grain = noise(rng, len(picture), roughness=0.9)
    return np.asarray(picture * (1 - amount + 2 * amount * grain[..., None]))


def _noise(rng: np.random.Generator, side: int) -> np.ndarray[Any, Any]:
    """Stone, soil, rust: two colours by one noise, stained by another."""
    return _rough(rng, _blend(rng, noise(rng, side, roughness=rng.uniform(0.6, 0.95))), 0.3)


def _bricks(rng: np.random.Generator, side: int) -> np.ndarray[Any, Any]:
    """Rows of bricks, each of its own lightness, every other row shifted by half a brick."""
    rows, columns = int(rng.integers(8, 20)), int(rng.integers(4, 9))
    y, x = np.mgrid[:side, :side] / side
    row = (y * rows).astype(int)
    across = x * columns + 0.5 * (row % 2)
    joint = (np.mod(y * rows, 1) < 0.12) | (np.mod(across, 1) < 0.12 * columns / rows)
    tone = rng.uniform(0.6, 1.15, (rows + 1, columns + 2))[row, across.astype(int)]
    brick, mortar = _colours(rng, 2)
    return _rough(rng, np.where(joint[..., None], mortar, brick * tone[..., None]), 0.2)


def _patches(rng: np.random.Generator, side: int) -> np.ndarray[Any, Any]:
    """Rectangles and discs over each other: posters, windows, signs."""
    page = _rough(rng, np.tile(_colours(rng, 1), (side, side, 1)), 0.3)
    for colour in _colours(rng, int(rng.integers(15, 50))):
        x, y, w, h = np.rint(rng.random(4) * [side, side, side / 4, side / 4]).astype(int).tolist()
        if rng.random() < 0.7:
            cv2.rectangle(page, (x, y), (x + w + 2, y + h + 2), colour.tolist(), -1)
        else:
            cv2.circle(page, (x, y), w // 2 + 2, colour.tolist(), -1)
    return _rough(rng, page, 0.25)


PATTERNS: tuple[tuple[str, Callable[[np.random.Generator, int], np.ndarray[Any, Any]]], ...] = (
    ("noise", _noise),
    ("bricks", _bricks),
    ("patches", _patches),
)
