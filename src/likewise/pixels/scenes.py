"""Random places for the renderer: streets, rooms, open ground, façades; solids that stand about in them.

The world is in metres, z up; cameras stand near the origin and look along +y. Every place is closed (a dome or the
walls of a room), so that every ray meets a surface. A place is a pure function of the random numbers it is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
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
