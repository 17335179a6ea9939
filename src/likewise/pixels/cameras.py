"""The two cameras of a rendered pair: the second moves, turns, rolls and zooms, and still looks at the same place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float


@dataclass(frozen=True)
class Camera:
    """K (3, 3), rotation (3, 3) whose rows are right, down and forward in the world, and centre (3,): x = R (X − C)."""

    K: Float[np.ndarray, "3 3"]
    rotation: Float[np.ndarray, "3 3"]
    centre: Float[np.ndarray, "3"]

    @property
    def flat(self) -> Float[np.ndarray, "15"]:
        """What the kernels take: the rotation by rows, focal length, principal point, centre."""
        return np.concatenate([self.rotation.ravel(), self.K[[0, 0, 1], [0, 2, 2]], self.centre])

    def to(self, other: Camera) -> tuple[Float[np.ndarray, "3 3"], Float[np.ndarray, "3"]]:
        """R, t with X_other = R X_self + t."""
        return other.rotation @ self.rotation.T, other.rotation @ (self.centre - other.centre)


def intrinsics(focal: float, x: float, y: float) -> Float[np.ndarray, "3 3"]:
    """K of square pixels."""
    return np.array([[focal, 0.0, x], [0.0, focal, y], [0.0, 0.0, 1.0]])


def looking(centre: Any, at: Any, roll: float = 0.0) -> Float[np.ndarray, "3 3"]:
    """The rotation of a camera at `centre` that has `at` in its middle, rolled about its axis by `roll`."""
    forward = np.asarray(at, float) - np.asarray(centre, float)
    forward /= np.linalg.norm(forward)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    down = np.cross(forward, right)
    c, s = math.cos(roll), math.sin(roll)
    return np.stack([c * right + s * down, c * down - s * right, forward])


def first(rng: np.random.Generator, size: tuple[int, int]) -> Camera:
    """A camera at the height of a head that looks ahead, a little to a side and down."""
    h, w = size
    focal = w * math.exp(rng.uniform(math.log(0.8), math.log(1.35)))
    K = intrinsics(focal, (w - 1) / 2 + rng.normal(0, 0.01) * w, (h - 1) / 2 + rng.normal(0, 0.01) * h)
    centre = np.array([rng.normal(0, 0.3), rng.normal(0, 0.3), rng.uniform(1.1, 2.0)])
    at = np.array([rng.normal(0, 0.5), 5.0, rng.uniform(0.4, 1.4)])
    return Camera(K, looking(centre, at, rng.normal(0, 0.05)), centre)


def second(rng: np.random.Generator, a: Camera, size: tuple[int, int], depth: float, motion: float) -> Camera:
    """A camera that looks at the place at `depth` before camera a, from elsewhere.

    `motion` scales all of it: the baseline (a share of the depth), the drift of the middle of the picture, roll, zoom.
    """
    h, w = size
    way = rng.normal(0, 1, 3) * [1.0, 0.6, 0.5]
    step = depth * motion * rng.uniform(0.02, 0.105) * way / np.linalg.norm(way)
    target = a.centre + depth * a.rotation[2]
    focal = a.K[0, 0] * math.exp(rng.normal(0, 0.05) * motion)
    drift = rng.normal(0, 0.038, 2) * motion * w / a.K[0, 0] * depth
    at = target + drift @ a.rotation[:2]
    roll = math.atan2(-a.rotation[0, 2], -a.rotation[1, 2])
    K = intrinsics(focal, (w - 1) / 2 + rng.normal(0, 0.01) * w, (h - 1) / 2 + rng.normal(0, 0.01) * h)
    centre = a.centre + step
    return Camera(K, looking(centre, at, roll + rng.normal(0, 0.05) * motion), centre)
