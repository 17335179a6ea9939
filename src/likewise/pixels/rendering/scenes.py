"""What a seed draws: a street or a room of boxes, balls and columns, two cameras, and the light of each image.

The world has x to the right, y ahead and z up, in metres. All light is linear until `develop` makes an image of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.spatial.transform import Rotation

Array = np.ndarray[Any, Any]
Rng = np.random.Generator
Triple = tuple[float, float, float]

KINDS = ("box", "ball", "column")


@dataclass(frozen=True)
class Solid:
    """A unit shape through the map p = M (x − c): box |p|∞ ≤ 1, ball ‖p‖ ≤ 1, column of radius and half height 1.

    `axes` has its directions as rows, `half` its half sizes along them. A photo covers `metres` of it, shifted and
    turned; `faces` (6,) in [0, 1) says which photo of all. What encloses the place casts no shadow; the sky shines.
    """

    kind: str
    centre: Float[np.ndarray, "3"]
    half: Float[np.ndarray, "3"]
    axes: Float[np.ndarray, "3 3"]
    metres: float
    faces: Float[np.ndarray, "6"]
    shift: Float[np.ndarray, "2"]
    turn: float
    bump: float
    gloss: float
    encloses: bool
    shines: bool

    @cached_property
    def map(self) -> Float[np.ndarray, "3 3"]:
        """M."""
        return np.asarray(self.axes / self.half[:, None])

    @property
    def bound(self) -> float:
        """The squared radius of a ball around it that rays must meet."""
        return math.inf if self.encloses else float(self.half @ self.half)

    def cross(self, origin: Float[np.ndarray, "3 n"], rays: Float[np.ndarray, "3 n"]) -> tuple[Array, Array]:
        """Where rays are inside, from t₀ to t₁, in the solid's own coordinates; nowhere if not t₀ ≤ t₁."""
        if self.kind == "ball":
            return _round(origin, rays)
        if self.kind == "box":
            return _slabs(origin, rays)
        t0, t1 = _round(origin[:2], rays[:2])
        low, high = _slabs(origin[2:], rays[2:])
        return np.maximum(t0, low), np.minimum(t1, high)

    def chart(self, p: Float[np.ndarray, "n 3"]) -> tuple[Int[np.ndarray, " n"], Array, Array, Array]:
        """Of points on its surface: face, 2 · axis + (1 on the positive side); metres (n, 2) along it; the two axes
        (n, 2, 3) that these run along; the normal (n, 3), all but the face and the metres in the world."""
        rows, far = np.arange(len(p)), np.abs(p)
        around = (self.kind == "column") & (far[:, 2] < np.hypot(p[:, 0], p[:, 1]))
        axis = np.where(around, 0, 2 if self.kind == "column" else far.argmax(axis=1))
        i, j = np.where((axis == 0) & ~around, 1, 0), np.where(axis == 2, 1, 2)
        flat = p * self.half / (far.max(axis=1, keepdims=True) if self.kind == "ball" else 1.0)
        u = np.where(around, np.arctan2(p[:, 1], p[:, 0]) * self.half[0], flat[rows, i])
        side = np.where(p[rows, axis] > 0, 1.0, -1.0)
        normal = p * [1, 1, 0] if self.kind == "column" else p.copy()
        edged = ~around & (self.kind != "ball")
        normal[edged] = np.eye(3)[axis[edged]] * side[edged, None]
        normal = normal @ self.map
        face = np.where(around, 0, 2 * axis + (side > 0))
        return face, np.stack([u, flat[rows, j]], axis=1), self.axes[np.stack([i, j], axis=1)], unit(normal)


def _round(o: Array, d: Array) -> tuple[Array, Array]:
    """Where rays are within 1 of the origin; NaN where they never are."""
    a, b, c = (d * d).sum(axis=0) + 1e-300, (o * d).sum(axis=0), (o * o).sum(axis=0) - 1
    with np.errstate(invalid="ignore"):
        root = np.sqrt(b * b - a * c)
    return (-b - root) / a, (-b + root) / a


def _slabs(o: Array, d: Array) -> tuple[Array, Array]:
    """Where all coordinates of rays are between −1 and 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        one, two = (-1 - o) / d, (1 - o) / d
    return np.fmin(one, two).max(axis=0), np.fmax(one, two).min(axis=0)


def unit(v: Float[np.ndarray, "n 3"]) -> Float[np.ndarray, "n 3"]:
    """Vectors of length 1."""
    return np.asarray(v / np.linalg.norm(v, axis=-1, keepdims=True))


# ------------------------------------------------------------------------------------------------------------- places


def solid(
    rng: Rng, kind: str, centre: Any, half: Any, turn: Triple = (0.0, 0.0, 0.0), *,
    metres: float | None = None, encloses: bool = False, shines: bool = False,
) -> Solid:  # fmt: skip
    """A solid that is turned by yaw, pitch and roll, painted at random."""
    size = np.asarray(half, float)
    return Solid(
        kind,
        np.asarray(centre, float),
        size,
        Rotation.from_euler("ZXY", turn).as_matrix().T,
        metres=float(size.max()) * rng.uniform(1.0, 2.2) if metres is None else metres,
        faces=rng.random(6) if rng.random() < 0.5 else np.full(6, rng.random()),
        shift=rng.uniform(0, 4, 2),
        turn=rng.normal(0, 0.15) + math.pi * (rng.random() < 0.15),
        bump=rng.uniform(0.0, 0.8),
        gloss=rng.uniform(0.05, 0.5) * (rng.random() < 0.3),
        encloses=encloses,
        shines=shines,
    )


def street(rng: Rng) -> list[Solid]:
    """Ground under a sky, walls at the sides and across, and things before them."""
    radius = rng.uniform(14, 26)
    sky: dict[str, Any] = {"metres": rng.uniform(0.5, 1.1) * radius, "encloses": True, "shines": True}
    solids = [
        solid(rng, "ball", (0, 4, 0), (radius,) * 3, (rng.uniform(0, 6), 0, 0), **sky),
        solid(rng, "box", (0, 4, -0.1), (radius, radius, 0.1), (rng.uniform(0, 1.5), 0, 0), metres=rng.uniform(3, 7)),
    ]
    walls = [(s * rng.uniform(2.5, 5.0), rng.uniform(4, 8), -s * rng.uniform(0.8, 1.4), 0.85) for s in (-1, 1)]
    for x, y, yaw, chance in (*walls, (rng.normal(0, 1), rng.uniform(5, 13), rng.normal(0, 0.35), 0.8)):
        if rng.random() < chance:
            width, height = rng.uniform(3, 8), rng.uniform(1.5, 4.5)
            size, metres = (width, 0.1, height), rng.uniform(2.5, 6.0)
            solids.append(solid(rng, "box", (x, y, height - 0.3), size, (yaw, 0, 0), metres=metres))
    return solids + things(rng, int(rng.integers(4, 11)), 2.0, 8.5)


def room(rng: Rng) -> list[Solid]:
    """A box from inside, and things in it."""
    half = rng.uniform((2.5, 3.5, 1.4), (4.5, 5.5, 2.2))
    centre, yaw = (rng.normal(0, 0.4), half[1] - rng.uniform(1.2, 2.0), half[2]), rng.normal(0, 0.15)
    walls = solid(rng, "box", centre, half, (yaw, 0, 0), metres=rng.uniform(2.0, 4.0), encloses=True)
    return [walls, *things(rng, int(rng.integers(4, 9)), 1.9, 2 * half[1] - 2.5)]


def things(rng: Rng, n: int, near: float, far: float) -> list[Solid]:
    """n solids in front of the cameras, between two distances, most of them standing, a few in the air."""
    made = []
    for _ in range(n):
        y = rng.uniform(near, far)
        half = rng.uniform(0.12, 0.36) * (1 + 0.22 * y) * rng.uniform((0.5, 0.5, 0.6), (1.3, 1.3, 2.6))
        pitch, roll = rng.normal(0, 0.35, 2) * (rng.random() < 0.35)
        at = rng.uniform(-0.55, 0.55) * y, y, half[2] + rng.uniform(0, 1.6) * (rng.random() < 0.2)
        kind = KINDS[int(rng.integers(len(KINDS)))]
        made.append(solid(rng, kind, at, half, (rng.uniform(0, math.pi), pitch, roll)))
    return made


# ------------------------------------------------------------------------------------------------------------ cameras


@dataclass(frozen=True)
class Camera:
    """K (3, 3), rotation (3, 3) whose rows are right, down and forward in the world, and centre (3,): x = R (X − C)."""

    K: Float[np.ndarray, "3 3"]
    rotation: Float[np.ndarray, "3 3"]
    centre: Float[np.ndarray, "3"]

    def to(self, other: Camera) -> tuple[Float[np.ndarray, "3 3"], Float[np.ndarray, "3"]]:
        """R, t with X_other = R X_self + t."""
        return other.rotation @ self.rotation.T, other.rotation @ (self.centre - other.centre)

    def rays(self, pixels: Float[np.ndarray, "n 2"]) -> Float[np.ndarray, "n 3"]:
        """The directions in the world of the rays through pixels, of depth 1."""
        local = np.column_stack([(pixels - self.K[:2, 2]) / self.K[0, 0], np.ones(len(pixels))])
        return np.asarray(local @ self.rotation)

    def project(self, points: Float[np.ndarray, "n 3"]) -> tuple[Float[np.ndarray, "n 2"], Float[np.ndarray, " n"]]:
        """Pixels and depths of points of the world."""
        local = (points - self.centre) @ self.rotation.T
        return local[:, :2] / local[:, 2:] * self.K[0, 0] + self.K[:2, 2], local[:, 2]


def look(centre: Any, at: Any, roll: float = 0.0) -> Float[np.ndarray, "3 3"]:
    """The rotation of a camera at `centre` that has `at` in its middle, rolled about its axis by `roll`."""
    forward = unit(np.asarray(at, float) - np.asarray(centre, float))
    right = unit(np.cross(forward, [0.0, 0.0, 1.0]))
    down = np.cross(forward, right)
    c, s = math.cos(roll), math.sin(roll)
    return np.stack([c * right + s * down, c * down - s * right, forward])


def _intrinsics(rng: Rng, focal: float, size: tuple[int, int]) -> Array:
    """K of square pixels, the principal point near the middle."""
    h, w = size
    x, y = (w - 1) / 2 + rng.normal(0, 0.01) * w, (h - 1) / 2 + rng.normal(0, 0.01) * h
    return np.array([[focal, 0.0, x], [0.0, focal, y], [0.0, 0.0, 1.0]])


def first_camera(rng: Rng, size: tuple[int, int]) -> Camera:
    """A camera at the height of a head that looks ahead, a little to a side and down."""
    K = _intrinsics(rng, size[1] * math.exp(rng.uniform(math.log(0.8), math.log(1.35))), size)
    centre = np.array([rng.normal(0, 0.3), rng.normal(0, 0.3), rng.uniform(1.1, 2.0)])
    at = np.array([rng.normal(0, 0.5), 5.0, rng.uniform(0.4, 1.4)])
    return Camera(K, look(centre, at, rng.normal(0, 0.05)), centre)


def second_camera(rng: Rng, a: Camera, size: tuple[int, int], depth: float, motion: float) -> Camera:
    """A camera that looks at the place at `depth` before camera a, from elsewhere.

    `motion` scales all of it: the baseline (a share of the depth), the drift of the middle of the image, roll, zoom.
    """
    way = rng.normal(0, 1, 3) * [1.0, 0.6, 0.5]
    centre = a.centre + depth * motion * rng.uniform(0.02, 0.105) * unit(way)
    drift = rng.normal(0, 0.038, 2) * motion * size[1] / a.K[0, 0] * depth
    at = a.centre + depth * a.rotation[2] + drift @ a.rotation[:2]
    roll = math.atan2(-a.rotation[0, 2], -a.rotation[1, 2]) + rng.normal(0, 0.05) * motion
    K = _intrinsics(rng, a.K[0, 0] * math.exp(rng.normal(0, 0.05) * motion), size)
    return Camera(K, look(centre, at, roll), centre)


# ------------------------------------------------------------------------------------------------------------- lights


@dataclass(frozen=True)
class Light:
    """lamps (m, 7): place, reach, colour, the sun being far away and of endless reach; ambient (3, 3): from above, from
    below, of the sky itself; then what the camera does: the mean it exposes for, tone curve, colour cast, veil of
    stray light, vignette, blur in pixels, noise."""

    lamps: Float[np.ndarray, "m 7"]
    ambient: Float[np.ndarray, "3 3"]
    target: float
    gamma: float
    cast: Float[np.ndarray, "3"]
    veil: float
    vignette: float
    blur: float
    grain: float


SUN = 1e6
"""How far away the sun is, in metres: its rays are parallel to 10⁻⁵."""
SODIUM, WHITE = (1.5, 0.85, 0.35), (1.1, 1.1, 1.15)
SKIES = {
    "day": ((0.4, 0.44, 0.52), (0.24, 0.21, 0.17), (0.7, 0.78, 0.9), (0.68, 0.65, 0.58), (0.45, 1.35), (0.3, 0.6)),
    "evening": ((0.24, 0.25, 0.33), (0.18, 0.14, 0.12), (0.75, 0.5, 0.4), (0.78, 0.53, 0.3), (0.12, 0.45), (0.25, 0.5)),
}
"""Colours from above, from below, of the sky and of the sun; the sun's height in radians; exposure."""
OUTDOORS, SHARES = ("day", "evening", "night"), (0.5, 0.2, 0.3)
"""Kinds of light in a street, with their shares; a room has lamps."""


def light(rng: Rng, kind: str) -> Light:
    """One random light: day, evening, night, or the lamps of a room."""
    if kind in SKIES:
        above, below, sky, sun, (low, high), exposure = SKIES[kind]
        height, way = rng.uniform(low, high), rng.uniform(0, 2 * math.pi)
        towards = [math.cos(height) * math.sin(way), math.cos(height) * math.cos(way), math.sin(height)]
        clouds = rng.uniform(0.2, 1.1)  # the less sun, the more sky
        lamps = [[*np.multiply(towards, SUN), math.inf, *_tint(rng, sun) * clouds]]
        ambient = np.stack([_tint(rng, above) * (1.6 - 0.7 * clouds), _tint(rng, below), _tint(rng, sky)])
        return _exposed(rng, lamps, ambient, exposure, (0.003, 0.012))
    if kind == "night":  # little blue from above, and lamps that reach a few metres
        blue = _tint(rng, (0.06, 0.085, 0.14)) * rng.uniform(0.6, 1.6)
        lamps = _lamps(rng, (-4, 0.5, 2.2), (4, 8, 4.5), SODIUM if rng.random() < 0.6 else WHITE)
        return _exposed(rng, lamps, np.outer([1, 0.5, 0.7], blue), (0.12, 0.25), (0.006, 0.02))
    warm = _tint(rng, (1.0, 0.93, 0.8)) * math.exp(rng.uniform(math.log(0.07), math.log(0.45)))
    lamps = _lamps(rng, (-1.8, 0.5, 0.8), (1.8, 5, 2.6), (1.25, 1.05, 0.75))
    return _exposed(rng, lamps, np.outer([1, 0.8, 0], warm), (0.15, 0.5), (0.004, 0.016))


def _lamps(rng: Rng, low: Triple, high: Triple, colour: Triple) -> list[list[float]]:
    n = int(rng.integers(1, 4))
    return [[*rng.uniform(low, high), rng.uniform(1.8, 5.0), *_tint(rng, colour)] for _ in range(n)]


def _tint(rng: Rng, colour: Triple) -> Array:
    return np.array(colour) * np.exp(rng.normal(0, 0.06, 3))


def _exposed(rng: Rng, lamps: Any, ambient: Array, exposure: tuple[float, float], grain: tuple[float, float]) -> Light:
    """A light and what a camera draws for itself."""
    return Light(
        np.array(lamps),
        ambient,
        target=rng.uniform(*exposure) * (rng.uniform(0.3, 0.8) if rng.random() < 0.4 and exposure[0] > 0.2 else 1.0),
        gamma=float(np.clip(math.exp(rng.normal(0, 0.5)), 0.5, 1.7)),
        cast=np.exp(rng.normal(0, 0.07, 3)),
        veil=rng.uniform(0.3, 1.5) * (rng.random() < 0.25),
        vignette=rng.uniform(0, 0.35),
        blur=rng.uniform(0, 0.55),
        grain=math.exp(rng.uniform(*np.log(grain))),
    )


def mix(a: Light, b: Light, share: float) -> Light:
    """The light (1 − share) · a + share · b: light adds up; what the camera does is between the two."""
    if share in (0.0, 1.0):
        return b if share else a
    dim = [1.0] * 4 + [1 - share] * 3, [1.0] * 4 + [share] * 3
    between = {f.name: (1 - share) * getattr(a, f.name) + share * getattr(b, f.name) for f in fields(a)[1:]}
    return Light(np.concatenate([a.lamps * dim[0], b.lamps * dim[1]]), **between)
