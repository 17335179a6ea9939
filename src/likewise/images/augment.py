"""Random crops and mirrors of a picture for training, and the one crop for evaluation; each is sampled in one step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from likewise.backbones.preparation import CROP, SHORTEST, resized
from likewise.errors import ConfigError, ShapeError

if TYPE_CHECKING:
    from jaxtyping import UInt8

Box = tuple[float, float, float, float]
"""Left, top, right, bottom in pixels of the picture, not whole numbers in general."""

MODES = ("random-resized", "crop", "none")

ATTEMPTS = 10
"""How often an area and a shape are drawn before a crop that fits is taken instead."""


@dataclass(frozen=True)
class Augment:
    """A random part of a picture as uint8 (size, size, 3), mirrored half of the time where `flip`.

    "random-resized": a part whose area is a `scale` share of the picture's and whose width to height a `ratio`, both
    drawn (the ratio in logarithm); "crop": a square of `size` px from the picture with its shortest side at `shortest`;
    "none": the evaluation crop, `centre`, never mirrored.
    """

    size: int = CROP
    mode: Literal["random-resized", "crop", "none"] = "random-resized"
    shortest: int = SHORTEST
    scale: tuple[float, float] = (0.16, 1.0)
    flip: bool = True
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"mode: expected one of {', '.join(MODES)}, got {self.mode!r}")
        if not isinstance(self.size, int) or self.size < 1:
            raise ConfigError(f"size: expected a whole number ≥ 1, got {self.size!r}")
        if not isinstance(self.shortest, int) or self.shortest < self.size:
            raise ConfigError(f"shortest: expected a whole number ≥ size, {self.size}, got {self.shortest!r}")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ConfigError(f"scale: expected two shares of the area, 0 < low ≤ high ≤ 1, got {self.scale}")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ConfigError(f"ratio: expected width to height, 0 < low ≤ high, got {self.ratio}")

    def __call__(self, array: UInt8[np.ndarray, "h w 3"], rng: np.random.Generator) -> UInt8[np.ndarray, "s s 3"]:
        """One draw from `array`; the same state of `rng` gives the same bytes."""
        _check(array)
        if self.mode == "none":
            return centre(array, self.size, self.shortest)
        height, width = array.shape[:2]
        drawn = resized(array, (self.size, self.size), self.box(height, width, rng))
        mirrored = self.flip and rng.random() < 0.5
        return np.ascontiguousarray(drawn[:, ::-1]) if mirrored else drawn

    def box(self, height: int, width: int, rng: np.random.Generator) -> Box:
        """The part that is taken of a picture of this size, always within it."""
        if self.mode == "none":
            return middle(height, width, self.size / self.shortest)
        if self.mode == "crop":
            side = min(height, width) * self.size / self.shortest
            return _placed(height, width, side, side, rng)
        return self._random_resized(height, width, rng)

    def _random_resized(self, height: int, width: int, rng: np.random.Generator) -> Box:
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(ATTEMPTS):
            area = height * width * rng.uniform(*self.scale)
            ratio = math.exp(rng.uniform(low, high))
            w, h = math.sqrt(area * ratio), math.sqrt(area / ratio)
            if w <= width and h <= height:
                return _placed(height, width, h, w, rng)
        return self._fitting(height, width)

    def _fitting(self, height: int, width: int) -> Box:
        """The largest part in the middle whose shape is allowed: for pictures so long that no draw fits."""
        ratio = min(max(width / height, self.ratio[0]), self.ratio[1])
        w, h = min(float(width), height * ratio), min(float(height), width / ratio)
        left, top = (width - w) / 2, (height - h) / 2
        return left, top, left + w, top + h

    @property
    def decoded_side(self) -> int:
        """The shortest side below which a picture should not be decoded, lest small crops be blown up needlessly."""
        if self.mode == "random-resized":
            return math.ceil(self.size / math.sqrt(self.scale[0]))
        return 2 * self.shortest


def centre(array: UInt8[np.ndarray, "h w 3"], size: int = CROP, shortest: int = SHORTEST) -> UInt8[np.ndarray, "s s 3"]:
    """The centre size × size of the picture with its shortest side at `shortest`: the crop for evaluation."""
    _check(array)
    if not 1 <= size <= shortest:
        raise ConfigError(f"size: expected 1 ≤ size ≤ shortest, {shortest}, got {size}")
    return resized(array, (size, size), middle(array.shape[0], array.shape[1], size / shortest))


def middle(height: int, width: int, share: float) -> Box:
    """The square in the middle whose side is this share of the shortest side."""
    half = min(height, width) * share / 2
    return width / 2 - half, height / 2 - half, width / 2 + half, height / 2 + half


def _placed(height: int, width: int, h: float, w: float, rng: np.random.Generator) -> Box:
    """A part of h × w anywhere in the picture; rounding never carries it across the edge."""
    left, top = rng.uniform(0.0, 1.0, 2) * (width - w, height - h)
    return float(left), float(top), min(float(left + w), float(width)), min(float(top + h), float(height))


def _check(array: Any) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
        got = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
        raise ShapeError(f"array: expected uint8 (h, w, 3), got {got}")
