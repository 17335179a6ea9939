"""Random crops and mirrors of a picture for training, and the one crop for evaluation; each is sampled in one step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from likewise.errors import ConfigError, ShapeError
from likewise.nn.backbone import CROP, SHORTEST, resize

if TYPE_CHECKING:
    from jaxtyping import UInt8

Box = tuple[int, int, int, int]
"""Left, top, right, bottom: a part of a picture in whole pixels, never empty."""

MODES = ("random-resized", "crop", "none")

ATTEMPTS = 10
"""How often an area and a shape are drawn before the largest part that fits is taken instead."""


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
        _sizes(self.size, self.shortest if self.mode != "random-resized" else self.size)
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ConfigError(f"scale: expected two shares of the area, 0 < low ≤ high ≤ 1, got {self.scale}")
        if not 0 < self.ratio[0] <= self.ratio[1] < math.inf:
            raise ConfigError(f"ratio: expected two of width to height, 0 < low ≤ high, got {self.ratio}")

    def __call__(self, array: UInt8[np.ndarray, "h w 3"], rng: np.random.Generator) -> UInt8[np.ndarray, "s s 3"]:
        """One draw from `array`; the same state of `rng` gives the same bytes."""
        _picture(array)
        if self.mode == "none":
            return centre(array, self.size, self.shortest)
        left, top, right, bottom = self.box(array.shape[0], array.shape[1], rng)
        part = array[top:bottom, left:right]
        return sampled(part[:, ::-1] if self.flip and rng.random() < 0.5 else part, self.size)

    def box(self, height: int, width: int, rng: np.random.Generator) -> Box:
        """The part that a random mode takes of a picture of this size, always within it."""
        if self.mode == "random-resized":
            return self._random_resized(height, width, rng)
        side = max(1, round(min(height, width) * self.size / self.shortest))
        return _placed(height, width, side, side, rng)

    def _random_resized(self, height: int, width: int, rng: np.random.Generator) -> Box:
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(ATTEMPTS):
            area = height * width * rng.uniform(*self.scale)
            ratio = math.exp(rng.uniform(low, high))
            h, w = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 1 <= h <= height and 1 <= w <= width:
                return _placed(height, width, h, w, rng)
        return self._largest(height, width)

    def _largest(self, height: int, width: int) -> Box:
        """The largest part in the middle whose shape is allowed: for pictures so long that no draw fits."""
        h = max(1, min(height, round(width / self.ratio[0])))
        w = max(1, min(width, round(height * self.ratio[1])))
        left, top = (width - w) // 2, (height - h) // 2
        return left, top, left + w, top + h

    @property
    def decoded_side(self) -> int:
        """The shortest side at which a decoder may stop: of a square picture the smallest crop still has `size` px."""
        if self.mode == "random-resized":
            return math.ceil(self.size / math.sqrt(self.scale[0]))
        return 2 * self.shortest


def centre(array: UInt8[np.ndarray, "h w 3"], size: int = CROP, shortest: int = SHORTEST) -> UInt8[np.ndarray, "s s 3"]:
    """The centre size × size of the picture with its shortest side at `shortest`: the crop for evaluation."""
    _picture(array)
    _sizes(size, shortest)
    height, width = array.shape[:2]
    half = min(height, width) * size / shortest / 2
    return resize(array, (size, size), (width / 2 - half, height / 2 - half, width / 2 + half, height / 2 + half))


def sampled(part: UInt8[np.ndarray, "h w 3"], size: int) -> UInt8[np.ndarray, "s s 3"]:
    """A part of a picture at size × size, antialiased bicubic like `resized`, four times as fast as Pillow."""
    import torch

    x = torch.from_numpy(part[None].copy()).permute(0, 3, 1, 2)  # channels last, which has a kernel of its own
    y = torch.nn.functional.interpolate(x, (size, size), mode="bicubic", antialias=True)
    return np.ascontiguousarray(y.permute(0, 2, 3, 1)[0].numpy())


def _placed(height: int, width: int, h: int, w: int, rng: np.random.Generator) -> Box:
    left, top = int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1))
    return left, top, left + w, top + h


def _sizes(size: int, shortest: int) -> None:
    for name, value, least in (("size", size, 1), ("shortest", shortest, size)):
        if not isinstance(value, int) or value < least:
            raise ConfigError(f"{name}: expected a whole number ≥ {least}, got {value!r}")


def _picture(array: Any) -> None:
    if not isinstance(array, np.ndarray):
        raise ShapeError(f"array: expected uint8 (h, w, 3), got {type(array).__name__}")
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or array.size == 0:
        raise ShapeError(f"array: expected uint8 (h, w, 3), got {array.dtype} of shape {array.shape}")
