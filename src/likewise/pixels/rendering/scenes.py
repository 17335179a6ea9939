"""The light of an image and the camera that takes it: day, evening, overcast, lamps, night; exposure, tone, noise.

All light is linear until `developed` turns it into an image.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Float

SHEET, BOX, BALL, CYLINDER = 0, 1, 2, 3
CELLS = 28
"""Cells along a side of a relief's table."""
Array = np.ndarray[Any, Any]


KIND, MAP, BOUND, CASTS, RELIEF, LIMITS, HALF, PAINT, TEXTURE, WIDTH = 0, 1, 13, 14, 15, 16, 23, 26, 34, 40
"""Columns of a solid's row: its kind; M by rows, then c; squared radius of its ball; whether it casts shadows; which
table of heights it has or −1; LIMITS: see `limits`; half sizes; PAINT: scale, shift (2), turn (2),
bump, gloss, whether it shines by itself; TEXTURE: one a face.
"""


@dataclass(frozen=True)
class Scene:
    """Solids as rows (n, WIDTH), tables of heights (k, g, g), the metres that a photo covers on each solid (n,)."""

    solids: Float[np.ndarray, "n c"]
    tables: Float[np.ndarray, "k g g"]
    sizes: Float[np.ndarray, " n"]
    indoors: bool

    def __len__(self) -> int:
        return len(self.solids)


@dataclass
class Builder:
    """Collects solids; `scene()` makes arrays of them."""

    rng: np.random.Generator
    rows: list[Array] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)
    tables: list[Array] = field(default_factory=list)

    def add(
        self, kind: int, centre: Any, half: Any, turn: Array | None = None, *,
        relief: float = 0.0, encloses: bool = False, shines: bool = False, size: float | None = None,
    ) -> None:  # fmt: skip
        """One solid: `turn` has its axes as rows, `relief` is the height of its bumps, `size` the metres of a photo."""
        axes = np.eye(3) if turn is None else turn
        row = np.zeros(WIDTH)
        half = np.asarray(half, float)
        row[RELIEF] = -1
        if relief > 0:
            row[RELIEF] = len(self.tables)
            self.tables.append(bumps(self.rng, relief))
            row[LIMITS : LIMITS + 7] = limits(self.tables[-1])
            half = np.array([half[0], half[1], 1.0])
        row[KIND], row[CASTS], row[PAINT + 7] = kind, not encloses, shines
        row[BOUND] = np.inf if encloses else (float(np.linalg.norm(half)) + relief) ** 2
        row[MAP : MAP + 12] = np.concatenate([(axes / half[:, None]).ravel(), np.asarray(centre, float)])
        row[HALF : HALF + 3] = half
        self.rows.append(row)
        self.sizes.append(size if size is not None else float(np.max(half)) * 2 * self.rng.uniform(0.5, 1.1))

    def scene(self, *, indoors: bool = False) -> Scene:
        """The solids as arrays, those with relief last: their rays are then cut short by the rest."""
        rows = np.array(self.rows)
        order = np.argsort(rows[:, RELIEF], kind="stable")
        tables = np.array(self.tables) if self.tables else np.zeros((1, 3, 3))
        return Scene(rows[order], tables, np.array(self.sizes)[order], indoors)


def bumps(rng: np.random.Generator, height: float) -> Float[np.ndarray, "g g"]:
    """A table of heights in [0, height]: a few octaves of noise, smoothed by the spline that reads it."""
    g = CELLS + 2
    total = np.zeros((g, g))
    for cells, weight in ((4, 1.0), (9, 0.5), (CELLS, 0.18)):
        coarse = rng.random((cells + 1, cells + 1))
        at = np.linspace(0, cells, g)
        low = np.minimum(at.astype(int), cells - 1)
        f = (at - low) ** 2 * (3 - 2 * (at - low))
        rows = coarse[low] * (1 - f)[:, None] + coarse[low + 1] * f[:, None]
        total += weight * (rows[:, low] * (1 - f) + rows[:, low + 1] * f)
    return np.asarray((total - total.min()) / np.ptp(total) * height)


def limits(table: Float[np.ndarray, "g g"]) -> Float[np.ndarray, "7"]:
    """What the spline of a table cannot exceed on [−1, 1]²: lowest, highest, |h_x|, |h_y|, |h_xx|, |h_xy|, |h_yy|.

    A derivative of a quadratic B-spline is a mean of differences of its table.
    """
    gy, gx = (np.array(table.shape) - 2) / 2
    x, y = np.diff(table, axis=1), np.diff(table, axis=0)
    bends = np.diff(x, axis=1), np.diff(x, axis=0), np.diff(y, axis=0)
    most = [float(np.abs(d).max()) for d in (x, y, *bends)]
    scale = np.array([gx, gy, gx * gx, gx * gy, gy * gy])
    return np.array([table.min() - 1e-9, table.max() + 1e-9, *(scale * most)])


def turned(yaw: float, pitch: float = 0.0, roll: float = 0.0) -> Float[np.ndarray, "3 3"]:
    """A rotation whose rows are the axes of a solid: yaw about z, then pitch about x, then roll about y."""
    cy, sy, cp, sp, cr, sr = (g(v) for v in (yaw, pitch, roll) for g in (math.cos, math.sin))
    z = np.array([[cy, sy, 0], [-sy, cy, 0], [0, 0, 1]])
    x = np.array([[1, 0, 0], [0, cp, sp], [0, -sp, cp]])
    y = np.array([[cr, 0, -sr], [0, 1, 0], [sr, 0, cr]])
    return np.asarray(y @ x @ z)


UPRIGHT = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, -1.0, 0.0]])
"""The axes of a sheet that stands on the ground and faces the cameras: width along x, height along z, normal −y."""


# ------------------------------------------------------------------------------------------------------------ places


def place(rng: np.random.Generator) -> Scene:
    """One random place with its solids."""
    build = Builder(rng)
    kind = PLACES[int(rng.integers(len(PLACES)))]
    kind(build)
    return build.scene(indoors=kind is _room)


def _dome(b: Builder, radius: float) -> None:
    b.add(BALL, (0, 4, 0), (radius, radius, radius), turned(b.rng.uniform(0, 6)), encloses=True, shines=True,
          size=radius * b.rng.uniform(0.5, 1.1))  # fmt: skip


def _ground(b: Builder, radius: float, roughest: float) -> None:
    relief = b.rng.uniform(0.1, roughest) if b.rng.random() < 0.6 else 0.0
    centre = (0, 4, -0.6 * relief)
    b.add(SHEET, centre, (radius, radius, 1), turned(b.rng.uniform(0, 1.5)), relief=relief, size=b.rng.uniform(3, 7))


def _wall(b: Builder, x: float, y: float, yaw: float, width: float, height: float) -> None:
    """A wall that stands at (x, y) and faces −y, turned by yaw; about half of them have relief."""
    relief = b.rng.uniform(0.05, 0.45) if b.rng.random() < 0.5 else 0.0
    b.add(SHEET, (x, y, height - 0.3), (width, height, 1), UPRIGHT @ turned(yaw), relief=relief,
          size=b.rng.uniform(2.5, 6.0))  # fmt: skip


def _street(b: Builder) -> None:
    rng, radius = b.rng, b.rng.uniform(16, 26)
    _dome(b, radius)
    _ground(b, radius, 0.5)
    for side in (-1, 1):
        if rng.random() < 0.85:
            yaw = -side * rng.uniform(0.8, 1.4)
            _wall(b, side * rng.uniform(2.5, 5.0), rng.uniform(4, 8), yaw, rng.uniform(3, 7), rng.uniform(1.5, 4))
    if rng.random() < 0.7:
        _wall(b, rng.normal(0, 1), rng.uniform(7, 13), rng.normal(0, 0.3), rng.uniform(3, 9), rng.uniform(1.5, 4))
    _things(b, int(rng.integers(3, 8)), (2.2, 8.0))


def _open(b: Builder) -> None:
    radius = b.rng.uniform(12, 22)
    _dome(b, radius)
    _ground(b, radius, 1.2)
    _things(b, int(b.rng.integers(5, 11)), (2.4, 9.0))


def _facade(b: Builder) -> None:
    rng, radius = b.rng, b.rng.uniform(14, 22)
    _dome(b, radius)
    _ground(b, radius, 0.4)
    _wall(b, rng.normal(0, 0.7), rng.uniform(4, 7), rng.normal(0, 0.45), rng.uniform(5, 9), rng.uniform(3, 5))
    _things(b, int(rng.integers(2, 6)), (1.8, 5.0))


def _room(b: Builder) -> None:
    rng = b.rng
    half = (rng.uniform(2.5, 4.5), rng.uniform(3.5, 5.5), rng.uniform(1.4, 2.2))
    centre = (rng.normal(0, 0.4), half[1] - rng.uniform(1.2, 2.0), half[2])
    b.add(BOX, centre, half, turned(rng.normal(0, 0.15)), encloses=True, size=rng.uniform(2.0, 4.0))
    _things(b, int(rng.integers(4, 9)), (1.9, 2 * half[1] - 2.5))


PLACES: tuple[Callable[[Builder], None], ...] = (_street, _open, _facade, _room)


# ------------------------------------------------------------------------------------------------------------ solids


def _things(b: Builder, n: int, depth: tuple[float, float]) -> None:
    """n solids in front of the cameras, between two distances, most of them standing, a few in the air."""
    for _ in range(n):
        y = b.rng.uniform(*depth)
        x, size = b.rng.uniform(-0.55, 0.55) * y, b.rng.uniform(0.12, 0.36) * (1 + 0.22 * y)
        THINGS[int(b.rng.integers(len(THINGS)))](b, x, y, size)


def _crate(b: Builder, x: float, y: float, size: float) -> None:
    half = size * b.rng.uniform(0.6, 1.3, 3)
    tilt = b.rng.normal(0, 0.35, 2) if b.rng.random() < 0.35 else (0.0, 0.0)
    lift = b.rng.uniform(0, 1.8) if b.rng.random() < 0.2 else 0.0
    b.add(BOX, (x, y, half[2] + lift), half, turned(b.rng.uniform(0, math.pi), *tilt))


def _ball(b: Builder, x: float, y: float, size: float) -> None:
    half = size * b.rng.uniform(0.7, 1.3, 3)
    lift = b.rng.uniform(0, 1.5) if b.rng.random() < 0.3 else 0.0
    b.add(BALL, (x, y, half[2] * 0.9 + lift), half, turned(*b.rng.uniform(0, 3, 3)))


def _column(b: Builder, x: float, y: float, size: float) -> None:
    radius, tall = size * b.rng.uniform(0.4, 0.9), size * b.rng.uniform(1.0, 4.0)
    lean = b.rng.normal(0, 0.3, 2) if b.rng.random() < 0.3 else (0.0, 0.0)
    b.add(CYLINDER, (x, y, tall), (radius, radius, tall), turned(b.rng.uniform(0, 6), *lean))


def _tower(b: Builder, x: float, y: float, size: float) -> None:
    half = size * np.array([b.rng.uniform(0.6, 1.2), b.rng.uniform(0.6, 1.2), b.rng.uniform(1.5, 4.0)])
    b.add(BOX, (x, y, half[2]), half, turned(b.rng.uniform(0, math.pi)))


def _panel(b: Builder, x: float, y: float, size: float) -> None:
    """A thin board that stands or leans, often with relief."""
    w, h = size * b.rng.uniform(0.8, 1.8, 2)
    relief = size * b.rng.uniform(0.1, 0.4) if b.rng.random() < 0.5 else 0.0
    b.add(SHEET, (x, y, h), (w, h, 1), UPRIGHT @ turned(b.rng.normal(0, 0.6), b.rng.normal(0, 0.2)), relief=relief)


THINGS: tuple[Callable[[Builder, float, float, float], None], ...] = (_crate, _crate, _ball, _column, _tower, _panel)


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

    `motion` scales all of it: the baseline (a share of the depth), the drift of the middle of the image, roll, zoom.
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


SUN, LAMP = 0.0, 1.0
LUMA = np.array([0.2126, 0.7152, 0.0722])


@dataclass(frozen=True)
class Light:
    """lamps (m, 12): kind, place or direction, axis of the cone, cosine of its edge, colour, reach; ambient (9,): from
    above, from below, of the backdrop; then what the camera does: the mean it exposes for, tone curve, colour cast,
    veil of stray light.
    """

    kind: str
    lamps: Float[np.ndarray, "m 12"]
    ambient: Float[np.ndarray, "9"]
    target: float
    gamma: float
    cast: Float[np.ndarray, "3"]
    veil: float
    vignette: float
    blur: float
    grain: float

    @property
    def rows(self) -> Float[np.ndarray, "m 12"]:
        """What the kernels take: the ambient light in the first row, then the lamps."""
        return np.concatenate([np.pad(self.ambient, (0, 3))[None], self.lamps])


def light(rng: np.random.Generator, *, indoors: bool) -> Light:
    """One random light; rooms have lamps or windows, places outdoors any."""
    kinds = INDOORS if indoors else OUTDOORS
    shares = np.array([share for share, _ in kinds])
    return kinds[int(rng.choice(len(kinds), p=shares / shares.sum()))][1](rng)


def mixed(a: Light, b: Light, share: float) -> Light:
    """The light (1 − share) · a + share · b: light adds up; what the camera does is between the two."""
    if share in (0.0, 1.0):
        return b if share else a
    lamps = np.concatenate([_dimmed(a.lamps, 1 - share), _dimmed(b.lamps, share)])
    between = {
        n: (1 - share) * getattr(a, n) + share * getattr(b, n)
        for n in ("ambient", "target", "gamma", "cast", "veil", "vignette", "blur", "grain")
    }
    return Light(f"{a.kind} to {b.kind}", lamps, **between)


def _dimmed(lamps: Array, share: float) -> Array:
    lamps = lamps.copy()
    lamps[:, 8:11] *= share
    return lamps


# ----------------------------------------------------------------------------------------------------- kinds of light


def _camera(rng: np.random.Generator, low: float, high: float, grain: tuple[float, float]) -> dict[str, Any]:
    """What a camera draws for itself: exposure, tone curve, white balance, vignette, softness, noise."""
    return {
        "target": rng.uniform(low, high) * (rng.uniform(0.3, 0.8) if rng.random() < 0.4 and low > 0.2 else 1.0),
        "gamma": float(np.clip(math.exp(rng.normal(0, 0.5)), 0.5, 1.7)),
        "cast": np.exp(rng.normal(0, 0.07, 3)),
        "veil": rng.uniform(0.3, 1.5) if rng.random() < 0.25 else 0.0,
        "vignette": rng.uniform(0, 0.35),
        "blur": rng.uniform(0, 0.55),
        "grain": math.exp(rng.uniform(*np.log(grain))),
    }


def _sun(rng: np.random.Generator, low: float, high: float, colour: Any) -> Array:
    height, round_ = rng.uniform(low, high), rng.uniform(0, 2 * math.pi)
    at = [math.cos(height) * math.sin(round_), math.cos(height) * math.cos(round_), math.sin(height)]
    return np.array([[SUN, *at, 0, 0, 0, 0, *colour, 1.0]])


def _lamp(rng: np.random.Generator, at: Any, aim: Any, edge: float, colour: Any, reach: float) -> Array:
    axis = np.asarray(aim, float) - np.asarray(at, float)
    return np.array([[LAMP, *at, *(axis / np.linalg.norm(axis)), edge, *colour, reach]])


def _tint(rng: np.random.Generator, *colour: float) -> Array:
    return np.array(colour) * np.exp(rng.normal(0, 0.06, 3))


def _day(rng: np.random.Generator) -> Light:
    sky = _tint(rng, 0.34, 0.38, 0.46) * rng.uniform(0.6, 1.4)
    ambient = np.concatenate([sky, _tint(rng, 0.24, 0.21, 0.17), _tint(rng, 0.7, 0.78, 0.9)])
    lamps = _sun(rng, 0.45, 1.35, _tint(rng, 0.68, 0.65, 0.58))
    return Light("day", lamps, ambient, **_camera(rng, 0.3, 0.6, (0.003, 0.01)))


def _evening(rng: np.random.Generator) -> Light:
    ambient = np.concatenate([_tint(rng, 0.24, 0.25, 0.33), _tint(rng, 0.18, 0.14, 0.12), _tint(rng, 0.75, 0.5, 0.4)])
    lamps = _sun(rng, 0.12, 0.45, _tint(rng, 0.78, 0.53, 0.32))
    return Light("evening", lamps, ambient, **_camera(rng, 0.25, 0.5, (0.004, 0.014)))


def _overcast(rng: np.random.Generator) -> Light:
    ambient = np.concatenate([_tint(rng, 0.8, 0.85, 0.9), _tint(rng, 0.25, 0.24, 0.22), _tint(rng, 0.8, 0.82, 0.85)])
    lamps = _sun(rng, 0.7, 1.4, _tint(rng, 0.15, 0.15, 0.16))
    return Light("overcast", lamps, ambient, **_camera(rng, 0.25, 0.55, (0.003, 0.01)))


SODIUM, WHITE = (1.5, 0.85, 0.35), (1.1, 1.1, 1.15)


def _night(rng: np.random.Generator) -> Light:
    """Little blue light from above, one to three lamps (sodium or white) that reach a few metres."""
    above = _tint(rng, 0.06, 0.085, 0.14) * rng.uniform(0.6, 1.6)
    ambient = np.concatenate([above, above * 0.5, above * rng.uniform(0.4, 1.0)])
    colour = SODIUM if rng.random() < 0.6 else WHITE
    lamps = []
    for _ in range(int(rng.integers(1, 4))):
        at = (rng.uniform(-4, 4), rng.uniform(0.5, 8), rng.uniform(2.2, 4.5))
        aim = (at[0] + rng.normal(0, 1), at[1] + rng.normal(0, 1), 0.0)
        lamps.append(_lamp(rng, at, aim, rng.uniform(-1.2, 0.4), _tint(rng, *colour), rng.uniform(2.5, 5.0)))
    return Light("night", np.concatenate(lamps), ambient, **_camera(rng, 0.12, 0.25, (0.006, 0.02)))


def _torch(rng: np.random.Generator) -> Light:
    """A lamp beside the camera in the dark: headlights, a flash."""
    above = _tint(rng, 0.07, 0.085, 0.12)
    at = (rng.normal(0, 0.8), -0.3, rng.uniform(0.8, 2.2))
    aim = (rng.normal(0, 1.0), 5.0, rng.uniform(0.5, 1.5))
    lamps = _lamp(rng, at, aim, rng.uniform(0.5, 0.8), _tint(rng, *WHITE), rng.uniform(4.0, 8.0))
    ambient = np.concatenate([above, above * 0.7, above * 0.8])
    return Light("torch", lamps, ambient, **_camera(rng, 0.15, 0.3, (0.005, 0.018)))


def _ceiling(rng: np.random.Generator) -> Light:
    """A room by one or two lamps under its ceiling."""
    ambient = np.concatenate([_tint(rng, 0.4, 0.37, 0.32), _tint(rng, 0.33, 0.3, 0.26), np.zeros(3)])
    lamps = []
    for _ in range(int(rng.integers(1, 3))):
        at = (rng.uniform(-1.8, 1.8), rng.uniform(0.5, 5), rng.uniform(2.0, 2.6))
        lamps.append(_lamp(rng, at, (at[0], at[1], 0), -2.0, _tint(rng, 1.2, 1.05, 0.8), rng.uniform(2.5, 5)))
    return Light("ceiling", np.concatenate(lamps), ambient, **_camera(rng, 0.25, 0.5, (0.004, 0.014)))


def _window(rng: np.random.Generator) -> Light:
    """A room by the sun and the sky through the glass of its roof."""
    lit = _day(rng)
    return replace(lit, kind="window", ambient=lit.ambient * 0.8)


def _dusk(rng: np.random.Generator) -> Light:
    """A room at night: one weak lamp."""
    above = _tint(rng, 0.07, 0.075, 0.1)
    at = (rng.uniform(-2, 2), rng.uniform(1, 5), rng.uniform(0.8, 2.2))
    aim = (at[0] + rng.normal(0, 1), at[1] + rng.normal(0, 1), 0.5)
    lamps = _lamp(rng, at, aim, rng.uniform(-2, 0.2), _tint(rng, 1.4, 0.95, 0.5), rng.uniform(1.5, 3.0))
    return Light("dusk", lamps, np.concatenate([above, above, above]), **_camera(rng, 0.13, 0.27, (0.006, 0.02)))


Kind = tuple[float, Callable[[np.random.Generator], Light]]
OUTDOORS: tuple[Kind, ...] = ((0.36, _day), (0.16, _evening), (0.22, _overcast), (0.2, _night), (0.06, _torch))
INDOORS: tuple[Kind, ...] = ((0.4, _ceiling), (0.4, _window), (0.2, _dusk))
"""Kinds of light with their shares."""


# ---------------------------------------------------------------------------------------------------------- an image


def taken(light: Light, sensor: float) -> Light:
    """The same light by a camera with `sensor` times the vignette, blur and noise."""
    return replace(
        light, vignette=min(light.vignette * sensor, 1.0), blur=light.blur * sensor, grain=light.grain * sensor
    )


def exposure(radiance: Float[np.ndarray, "h w 3"], light: Light) -> float:
    """The factor that brings a typical pixel, after a tone curve of 1/2.2, near the light's target."""
    luma = radiance.reshape(-1, 3)[:: max(radiance.shape[0] * radiance.shape[1] // 4096, 1)] @ LUMA
    return float(light.target**2.2 / max(float(np.mean(np.sqrt(luma))) ** 2, 1e-9))
