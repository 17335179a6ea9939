"""Transport plans: two columns of points, joined by lines as wide as the mass that goes along them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likewise.errors import InputError, ShapeError
from likewise.plot.orders import untangle
from likewise.plot.pictures import Picture, thumbnail
from likewise.plot.style import INK, QUIET, figure
from likewise.types import Array, Signature

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Thumbnails = tuple[Sequence[Any] | None, Sequence[Any] | None]


def plan(
    p: Signature,
    q: Signature,
    F: ArrayLike,
    *,
    title: str | None = None,
    thumbnails: Thumbnails | None = None,
    most: int = 60,
    labels: tuple[str, str] = ("P", "Q"),
) -> Figure:
    """Two columns of points joined by lines whose width and opacity are the mass F_ij that goes from p_i to q_j.

    Bars outside the columns are the weights. Points are put in an order in which few lines cross. A point is drawn as
    the picture handed in for it (`thumbnails` = those of p, those of q: arrays or files), else as the image file that
    its name points to, else as a numbered dot. Of a larger set the `most` heaviest points are drawn, and this is said.
    """
    F = _plan_matrix(F, p, q)
    if most < 1:
        raise InputError(f"most: expected at least 1, got {most}")
    rows, columns = _heaviest(p.weights, most), _heaviest(q.weights, most)
    left, right = untangle(F[np.ix_(rows, columns)])
    rows, columns = rows[left], columns[right]
    pictures = thumbnails or (None, None)
    fig, ax, size = _page(max(len(rows), len(columns)), title)
    peak = max(float(p.weights[rows].max()), float(q.weights[columns].max()))
    P = _Column(p, rows, _thumbnails(p, pictures[0], rows, labels[0]), size, -1, peak)
    Q = _Column(q, columns, _thumbnails(q, pictures[1], columns, labels[1]), size, +1, peak)
    drawn = _join(ax, P, Q, F[np.ix_(rows, columns)]) / max(float(F.sum()), 1e-300)
    for column, label in ((P, labels[0]), (Q, labels[1])):
        column.draw(ax, label)
    _say_what_is_drawn(ax, sum(F.shape) - len(rows) - len(columns), drawn, size)
    return fig


@dataclass(frozen=True)
class _Size:
    """The page of a plan, in inches."""

    width: float
    height: float
    top: float
    bottom: float
    column: float = 1.72

    @property
    def body(self) -> float:
        return self.height - self.top - self.bottom


def _page(points: int, title: str | None) -> tuple[Figure, Axes, _Size]:
    """A figure whose axes are measured in inches, as tall as the longer column needs."""
    body = float(np.clip(0.62 * points, 2.6, 11.0))
    top = 0.98 if title else 0.55
    size = _Size(7.4, body + top + 0.42, top, 0.42)
    fig = figure(size.width, size.height)
    ax = fig.add_axes((0.0, 0.0, 1.0, 1.0))
    ax.set(xlim=(0, size.width), ylim=(0, size.height))
    ax.axis("off")
    if title:
        ax.text(0.42, size.height - 0.4, title, size=12.5, color=INK, va="center")
    return fig, ax, size


class _Column:
    """One side of a plan: where its points stand, their thumbnails and their weights."""

    def __init__(
        self, s: Signature, shown: Any, pictures: list[Picture | None], size: _Size, side: int, peak: float
    ) -> None:
        self.s, self.shown, self.pictures, self.size, self.side, self.peak = s, shown, pictures, size, side, peak
        slot = size.body / len(shown)
        self.y = size.height - size.top - slot * (np.arange(len(shown)) + 0.5)
        self.edge = min(0.86 * slot, 0.95)
        self.x = size.column if side < 0 else size.width - size.column

    @property
    def room(self) -> float:
        """How much of the column's height the lines of one point may take."""
        return (0.72 if self._drawn else 0.5) * self.edge

    @property
    def inner(self) -> float:
        """Where lines begin: the edge that looks to the other column."""
        return self.x - self.side * (self.edge / 2 if self._drawn else 0.075)

    def draw(self, ax: Axes, label: str) -> None:
        count = f"{len(self.s)} point" + ("s" if len(self.s) > 1 else "")
        y = self.size.height - self.size.top + 0.22
        ax.text(self.x, y, label, size=9.5, color=INK, ha="center", va="bottom")
        ax.text(self.x, y - 0.03, count, size=7.5, color=QUIET, ha="center", va="top")
        for y, index, picture in zip(self.y, self.shown, self.pictures, strict=True):
            self._point(ax, float(y), int(index), picture)
            self._weight(ax, float(y), float(self.s.weights[index]))

    def _point(self, ax: Axes, y: float, index: int, picture: Picture | None) -> None:
        from matplotlib.patches import Rectangle

        if picture is None:
            small = float(np.clip(28 * self.edge, 4.5, 7.5))
            ax.plot([self.x], [y], "o", ms=small, mfc="white", mec=INK, mew=0.9, zorder=3)
            ax.text(self._outside, y, self._name(index), size=small, color=QUIET, va="center", ha=self._ha, zorder=3)
            return
        half = self.edge / 2
        box = (self.x - half, self.x + half, y - half, y + half)
        ax.imshow(picture, extent=box, aspect="auto", zorder=3, cmap="gray", vmin=0, vmax=255)
        frame = Rectangle((box[0], box[2]), 2 * half, 2 * half, fill=False, lw=0.6, ec="white", zorder=4)
        ax.add_patch(frame)
        ax.set(xlim=(0, self.size.width), ylim=(0, self.size.height))

    def _weight(self, ax: Axes, y: float, weight: float) -> None:
        from matplotlib.patches import Rectangle

        start = self._outside + self.side * (0.0 if self._drawn else 0.24)
        length = 0.62 * weight / self.peak
        height = float(np.clip(0.28 * self.edge, 0.02, 0.11))
        left = start if self.side > 0 else start - length
        ax.add_patch(Rectangle((left, y - height / 2), length, height, color=QUIET, lw=0, alpha=0.75))
        if self.edge >= 0.2:
            words = f"{100 * weight:.0f} %" if weight >= 0.0095 else "< 1 %"
            ax.text(start + self.side * (length + 0.05), y, words, size=6.5, color=QUIET, va="center", ha=self._ha)

    @property
    def _drawn(self) -> bool:
        return any(p is not None for p in self.pictures)

    @property
    def _outside(self) -> float:
        return self.x + self.side * ((self.edge / 2 if self._drawn else 0.075) + 0.07)

    @property
    def _ha(self) -> Literal["left", "right"]:
        return "left" if self.side > 0 else "right"

    def _name(self, index: int) -> str:
        return str(index + 1)


def _join(ax: Axes, P: _Column, Q: _Column, F: Array) -> float:
    """Draw the heaviest lines, stacked where they leave and arrive so that none hides another; returns their mass."""
    from matplotlib import colormaps

    lines = _lines(F)
    if not lines:
        return 0.0
    inches = _inches_per_mass(F, P, Q)
    leave, arrive = _ports(F, lines, inches, 0), _ports(F, lines, inches, 1)
    hues = colormaps["viridis"](np.linspace(0.08, 0.80, len(P.y)))
    largest = float(F.max())
    for i, j in lines:
        y0, y1 = P.y[i] + leave[i, j], Q.y[j] + arrive[i, j]
        width, alpha = max(72 * inches * F[i, j], 0.35), 0.14 + 0.68 * (F[i, j] / largest) ** 0.7
        _ribbon(ax, (P.inner, y0), (Q.inner, y1), color=hues[i], width=width, alpha=alpha)
    return float(sum(F[i, j] for i, j in lines))


def _lines(F: Array) -> list[tuple[int, int]]:
    """The masses that can be seen (≥ 1 % of the largest), at most three a point, from light to heavy."""
    order = np.argsort(F, axis=None, kind="stable")[-3 * sum(F.shape) :]
    i, j = np.unravel_index(order, F.shape)
    seen = (F[i, j] > 0) & (F[i, j] >= 0.01 * F.max())
    return [(int(a), int(b)) for a, b in zip(i[seen], j[seen], strict=True)]


def _inches_per_mass(F: Array, P: _Column, Q: _Column) -> float:
    """As wide as the heaviest point of either side allows."""
    room = (P.room / max(float(F.sum(1).max()), 1e-300), Q.room / max(float(F.sum(0).max()), 1e-300))
    return float(min(room))


def _ports(F: Array, lines: list[tuple[int, int]], inches: float, side: int) -> dict[tuple[int, int], float]:
    """How far above its point's middle each line starts (side 0) or ends (side 1): stacked in the partners' order."""
    at: dict[tuple[int, int], float] = {}
    for point in {line[side] for line in lines}:
        own = sorted((line for line in lines if line[side] == point), key=lambda line: line[1 - side])
        heights = np.array([F[line] for line in own]) * inches
        middles = heights.sum() / 2 - np.cumsum(heights) + heights / 2
        at.update(zip(own, middles.tolist(), strict=True))
    return at


def _ribbon(
    ax: Axes, start: tuple[float, float], end: tuple[float, float], *, color: Any, width: float, alpha: float
) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Curve

    bend = 0.45 * (end[0] - start[0])
    curve = Curve([start, (start[0] + bend, start[1]), (end[0] - bend, end[1]), end], [1, 4, 4, 4])
    ax.add_patch(PathPatch(curve, fc="none", ec=color, lw=width, alpha=alpha, capstyle="butt", zorder=1))


def _say_what_is_drawn(ax: Axes, hidden: int, drawn: float, size: _Size) -> None:
    words = "line: mass from one point to another (width, opacity)   ·   bar: weight of a point"
    if hidden or drawn < 0.995:
        points = f"{hidden} light points left out   ·   " if hidden else ""
        words += f"   ·   {points}lines drawn: {100 * drawn:.0f} % of the mass"
    ax.text(size.width / 2, 0.22, words, size=6.5, color=QUIET, ha="center", va="center")


def _heaviest(weights: Array, most: int) -> NDArray[np.int64]:
    return np.sort(np.argsort(-weights, kind="stable")[:most])


def _plan_matrix(F: ArrayLike, p: Signature, q: Signature) -> Array:
    A = np.asarray(F, dtype=np.float64)
    if A.shape != (len(p), len(q)):
        raise ShapeError(f"F: expected ({len(p)}, {len(q)}), the sizes of the two signatures, got {A.shape}")
    if not np.isfinite(A).all() or (A < 0).any():
        raise InputError("F: expected masses ≥ 0, got negative or non-finite ones")
    return A


def _thumbnails(s: Signature, given: Sequence[Any] | None, shown: Any, label: str) -> list[Picture | None]:
    """The picture of each shown point: handed in, or the image file of its name; None where there is neither."""
    if given is not None and len(given) != len(s):
        raise ShapeError(f"thumbnails of {label}: expected {len(s)}, one a point, got {len(given)}")
    return [thumbnail(given[i] if given is not None else _named(s, i)) for i in shown]


def _named(s: Signature, i: int) -> str | None:
    from likewise.media import is_image

    return s.names[i] if s.names is not None and is_image(s.names[i]) else None
