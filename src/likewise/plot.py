"""One picture per correspondence, drawn from the plain types. Every function returns a matplotlib Figure.

No global state is touched: figures are made without pyplot, so that drawing is safe in threads and servers.
The palette is Okabe and Ito's (told apart by colour-blind readers), the sequential map is cividis.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likewise.errors import InputError, ShapeError
from likewise.types import Array, Signature

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555", "#B8A800")
INK, QUIET, FAINT = "#222222", "#767676", "#D9D9D9"
THUMBNAIL_PIXELS = 160

Picture = NDArray[Any]
Thumbnails = tuple[Sequence[Any] | None, Sequence[Any] | None]


# ------------------------------------------------------------------------------------------------- transport plan


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


def untangle(F: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Orders of the rows and columns of a plan in which little mass crosses.

    The start is the order of the plan's second singular vectors (correspondence analysis); then each side in turn is
    sorted by the barycentre of its partners, and the best order seen is kept.
    """
    rows, columns = _spectral_orders(F)
    best, fewest = (rows, columns), crossings(F[np.ix_(rows, columns)])
    for turn in range(12):
        G = F[np.ix_(rows, columns)]
        if turn % 2 == 0:
            columns = columns[np.argsort(_barycentres(G.T), kind="stable")]
        else:
            rows = rows[np.argsort(_barycentres(G), kind="stable")]
        crossed = crossings(F[np.ix_(rows, columns)])
        if crossed < fewest:
            best, fewest = (rows, columns), crossed
    return best


def crossings(F: Array) -> float:
    """Σ F_ij F_kl over the pairs of lines that cross: i < k and j > l."""
    below = np.cumsum(F[::-1], axis=0)[::-1]
    later = np.vstack([below[1:], np.zeros((1, F.shape[1]))])
    before = np.cumsum(later, axis=1)
    return float((F[:, 1:] * before[:, :-1]).sum())


def _spectral_orders(F: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    a, b = np.maximum(F.sum(1), 1e-150), np.maximum(F.sum(0), 1e-150)
    if min(F.shape) < 2:
        return np.argsort(-a, kind="stable"), np.argsort(-b, kind="stable")
    U, _, V = np.linalg.svd(F / np.sqrt(a[:, None] * b[None, :]))
    u, v = U[:, 1] / np.sqrt(a), V[1] / np.sqrt(b)
    sign = 1.0 if u[np.argmax(np.abs(u))] > 0 else -1.0
    return np.argsort(sign * u, kind="stable"), np.argsort(sign * v, kind="stable")


def _barycentres(F: Array) -> Array:
    """Where the partners of each row lie, on average; a row without mass stays where it is."""
    mass = F.sum(1)
    at = np.arange(F.shape[1]) / max(F.shape[1] - 1, 1)
    own = np.arange(len(F)) / max(len(F) - 1, 1)
    return np.where(mass > 0, F @ at / np.maximum(mass, 1e-300), own)


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
    fig = _figure(size.width, size.height)
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
    return [_thumbnail(given[i] if given is not None else _named(s, i)) for i in shown]


def _named(s: Signature, i: int) -> str | None:
    from likewise.io import is_image

    return s.names[i] if s.names is not None and is_image(s.names[i]) else None


def _thumbnail(given: Any) -> Picture | None:
    """A square picture of at most THUMBNAIL_PIXELS, its middle cut out; uint8 or floats in [0, 1]."""
    if given is None:
        return None
    if isinstance(given, str | os.PathLike):
        from likewise.io import read_array

        given = read_array(given, side=THUMBNAIL_PIXELS)
    array = np.asarray(given)
    if array.ndim == 3 and array.shape[0] == 3 and array.shape[2] != 3:
        array = np.moveaxis(array, 0, 2)
    if array.ndim not in (2, 3) or array.size == 0:
        raise ShapeError(f"thumbnails: expected pictures (h, w), (h, w, 3) or (3, h, w), got shape {array.shape}")
    return _square(array)


def _square(array: Picture) -> Picture:
    from PIL import Image

    h, w = array.shape[:2]
    side = min(h, w)
    cut = array[(h - side) // 2 :, (w - side) // 2 :][:side, :side]
    if cut.dtype.kind == "f":
        cut = np.rint(np.clip(cut, 0, 1) * 255).astype(np.uint8)
    if side <= THUMBNAIL_PIXELS:
        return cut
    small = Image.fromarray(cut).resize((THUMBNAIL_PIXELS, THUMBNAIL_PIXELS), Image.Resampling.LANCZOS)
    return np.asarray(small)


# ------------------------------------------------------------------------------------------- curves, matrices, bars


_AXES = {"cmc": ("rank", "matched up to this rank"), "roc": ("false accept rate", "true accept rate")}


def curves(
    lines: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    kind: Literal["cmc", "roc"] | None = None,
    title: str | None = None,
    xlabel: str = "",
    ylabel: str = "",
) -> Figure:
    """Named curves (x, y) in one picture: CMC (x = rank), ROC (x = false accepts, y = true accepts), or any."""
    if not lines:
        raise InputError("lines: expected at least one curve, got none")
    fig, ax = _axes(5.4, 4.2, title)
    x_words, y_words = _AXES[kind] if kind else (xlabel, ylabel)
    for n, (name, (x, y)) in enumerate(lines.items()):
        xs, ys = _curve(name, x, y)
        colour, dash = PALETTE[n % len(PALETTE)], ("-", (0, (5, 1.6)), (0, (1.5, 1.2)))[n // len(PALETTE) % 3]
        ax.plot(xs, ys, color=colour, ls=dash, lw=1.7, label=name, clip_on=False)
    if kind is not None:
        ax.set_ylim(0, 1)
        _percent(ax.yaxis)
    if kind == "roc":
        ax.plot([0, 1], [0, 1], color=FAINT, lw=0.9, zorder=0)
        ax.set_xlim(0, 1)
        _percent(ax.xaxis)
    if kind == "cmc":
        _ranks(ax)
    ax.set_xlabel(x_words, size=9, color=INK)
    ax.set_ylabel(y_words, size=9, color=INK)
    ax.grid(True, axis="y", color=FAINT, lw=0.5)
    ax.legend(frameon=False, fontsize=8.5, labelcolor=INK, loc="lower right" if kind else "best")
    return fig


def _curve(name: str, x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if xs.ndim != 1 or xs.shape != ys.shape or xs.size == 0:
        raise ShapeError(f"curve {name!r}: expected x and y of one length, got shapes {xs.shape} and {ys.shape}")
    return xs, ys


def heatmap(
    D: ArrayLike, labels: Sequence[Any] | None = None, *, title: str | None = None, unit: str = "distance"
) -> Figure:
    """A matrix of distances, near dark and far light; with labels, items of one label stand together and are named."""
    A = np.asarray(D, dtype=np.float64)
    if A.ndim != 2 or A.size == 0:
        raise ShapeError(f"D: expected a matrix, got shape {A.shape}")
    if labels is not None and (len(labels) != len(A) or A.shape[0] != A.shape[1]):
        raise ShapeError(f"labels: expected {len(A)} for a square matrix, got {len(labels)} for shape {A.shape}")
    fig, ax = _axes(5.6, 4.9, title)
    groups: list[tuple[str, int, int]] = []
    if labels is not None:
        order, groups = _groups(labels)
        A = A[np.ix_(order, order)]
    shown = ax.imshow(A, cmap="cividis", interpolation="nearest" if max(A.shape) < 600 else "antialiased")
    _name_groups(ax, groups)
    ax.tick_params(length=0, labelsize=8, colors=QUIET)
    for spine in ax.spines.values():
        spine.set_visible(False)
    bar = fig.colorbar(shown, ax=ax, fraction=0.04, pad=0.03)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=8, colors=QUIET)
    bar.set_label(unit, size=8.5, color=QUIET)
    return fig


def _groups(labels: Sequence[Any]) -> tuple[NDArray[np.int64], list[tuple[str, int, int]]]:
    """The order that brings equal labels together (in order of first appearance), and each group's span."""
    names = list(dict.fromkeys(labels))
    code = np.array([names.index(label) for label in labels])
    order = np.argsort(code, kind="stable")
    ends = np.cumsum(np.bincount(code, minlength=len(names)))
    return order, [(str(n), int(e - c), int(e)) for n, e, c in zip(names, ends, np.diff(ends, prepend=0), strict=True)]


def _name_groups(ax: Axes, groups: list[tuple[str, int, int]]) -> None:
    if not groups:
        return
    middles = [(start + end - 1) / 2 for _, start, end in groups]
    ax.set_yticks(middles, [name for name, _, _ in groups])
    long = max(len(name) for name, _, _ in groups) * len(groups) > 45
    turned: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if long else {}
    ax.set_xticks(middles, [name for name, _, _ in groups], **turned)
    for _, start, _ in groups[1:]:
        ax.axhline(start - 0.5, color="white", lw=0.9)
        ax.axvline(start - 0.5, color="white", lw=0.9)


def bars(
    values: Mapping[str, float],
    *,
    errors: Mapping[str, float] | None = None,
    title: str | None = None,
    unit: str = "",
    highlight: str | None = None,
    form: Callable[[float], str] = "{:.3g}".format,
) -> Figure:
    """Named numbers as horizontal bars, each with its value at the end; `highlight` names the one that matters."""
    if not values:
        raise InputError("values: expected at least one, got none")
    if highlight is not None and highlight not in values:
        raise InputError(f"highlight: expected one of {', '.join(values)}, got {highlight!r}")
    fig, ax = _axes(5.8, 0.36 * len(values) + (1.15 if title else 0.8), title)
    spread = errors or {}
    names, numbers = list(values), np.array([float(v) for v in values.values()])
    plus = [float(spread.get(name, 0.0)) for name in names]
    at = np.arange(len(names))
    tone = [PALETTE[0] if highlight in (None, name) else "#B9C4CC" for name in names]
    ax.barh(at, numbers, height=0.62, color=tone)
    reach = max(float(np.abs(numbers).max()), 1e-300)
    for y, name, number, error in zip(at, names, numbers, plus, strict=True):
        if error:
            ax.plot([number - error, number + error], [y, y], color=INK, lw=1.1, solid_capstyle="butt")
        words = form(float(number)) + (f" ± {form(error)}" if error else "")
        weight = "bold" if name == highlight else "normal"
        ax.text(
            max(float(number) + error, 0) + 0.015 * reach,
            float(y),
            words,
            size=8.5,
            color=INK,
            va="center",
            weight=weight,
        )
    ax.set_yticks(at, names, size=9)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlim(min(0.0, 1.1 * float(numbers.min())), (1.34 if any(plus) else 1.16) * (reach + max(plus)))
    ax.set_xlabel(unit, size=8.5, color=QUIET)
    ax.tick_params(axis="y", length=0, colors=INK)
    ax.spines["left"].set_visible(False)
    return fig


def _ranks(ax: Axes) -> None:
    """Whole ranks, from 1."""
    from matplotlib.ticker import MaxNLocator

    last = max(float(ax.dataLim.x1), 1.5)
    ticks = MaxNLocator(nbins=6, integer=True).tick_values(1, last)
    ax.set_xticks(sorted({max(1, int(t)) for t in ticks if t <= last}))
    ax.set_xlim(1, last)


def _percent(axis: Any) -> None:
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))


# -------------------------------------------------------------------------------------------------- coverage of sets


Pair = tuple[Any, Any, float]
"""A picture, the nearest one of the other side, and their distance."""


def coverage(
    uncovered: Sequence[Pair],
    covered: Sequence[Pair],
    *,
    counts: tuple[int, int] | None = None,
    figures: Mapping[str, str] | None = None,
    title: str | None = None,
    labels: tuple[str, str] = ("A", "B"),
    columns: int = 8,
) -> Figure:
    """The pictures of A that nothing in B covers, the farthest out first, beside some that are covered.

    Under each stands its nearest picture in B, with their distance. `counts` are how many there are of both kinds.
    """
    if columns < 1:
        raise InputError(f"columns: expected at least 1, got {columns}")
    lost, kept = counts or (len(uncovered), len(covered))
    parts = (
        (f"in {labels[0]}, but not covered by {labels[1]}: {lost:,} of {lost + kept:,}", PALETTE[1], list(uncovered)),
        (f"in {labels[0]}, and covered by {labels[1]}: {kept:,} of {lost + kept:,}", PALETTE[0], list(covered)),
    )
    sheet = _Sheet(columns, [len(pairs) for _, _, pairs in parts], title, figures)
    for words, colour, pairs in parts:
        sheet.section(words, colour, pairs, labels)
    return sheet.fig


class _Sheet:
    """A page of thumbnail pairs, measured in inches, filled from the top."""

    edge, step, left = 0.86, 0.98, 1.15

    def __init__(self, columns: int, sizes: list[int], title: str | None, figures: Mapping[str, str] | None) -> None:
        rows = sum(-(-size // columns) for size in sizes)
        self.columns = columns
        self.width = self.left + columns * self.step + 0.3
        self.height = 0.35 + (0.45 if title else 0) + (0.6 if figures else 0) + 0.62 * len(sizes) + 2.2 * rows
        self.fig = _figure(self.width, self.height)
        self.ax = self.fig.add_axes((0.0, 0.0, 1.0, 1.0))
        self.ax.axis("off")
        self.y = self.height - 0.4
        if title:
            self.ax.text(0.3, self.y, title, size=12.5, color=INK, va="center", parse_math=False)
            self.y -= 0.45
        if figures:
            _say_figures(self.ax, figures, 0.3, self.y, self.width - 0.6)
            self.y -= 0.6
        self._frame()

    def _frame(self) -> None:
        self.ax.set(xlim=(0, self.width), ylim=(0, self.height))

    def section(self, words: str, colour: str, pairs: list[Pair], labels: tuple[str, str]) -> None:
        self.ax.text(0.3, self.y, words, size=10, color=colour, va="center", weight="bold", parse_math=False)
        self.y -= 0.3
        for start in range(0, len(pairs), self.columns):
            self._row(pairs[start : start + self.columns], colour, labels)
        if not pairs:
            self.ax.text(0.3, self.y + 0.02, "none", size=8.5, color=QUIET, va="center")
        self.y -= 0.32

    def _row(self, pairs: list[Pair], colour: str, labels: tuple[str, str]) -> None:
        top, bottom = self.y - self.edge / 2, self.y - self.step - self.edge / 2
        for y, name in ((top, labels[0]), (bottom, f"nearest in\n{labels[1]}")):
            self.ax.text(0.3, y, name, size=8, color=QUIET, va="center", parse_math=False, wrap=False)
        for column, (mine, theirs, distance) in enumerate(pairs):
            x = self.left + (column + 0.5) * self.step
            self._picture(mine, x, top, colour, 2.0)
            self._picture(theirs, x, bottom, FAINT, 0.8)
            self.ax.text(
                x, bottom - self.edge / 2 - 0.1, f"{distance:.3g}", size=7, color=QUIET, ha="center", va="center"
            )
        self.y = bottom - self.edge / 2 - 0.26

    def _picture(self, given: Any, x: float, y: float, colour: str, width: float) -> None:
        from matplotlib.patches import Rectangle

        half = self.edge / 2
        picture = _thumbnail(given)
        if picture is not None:
            box = (x - half, x + half, y - half, y + half)
            self.ax.imshow(picture, extent=box, aspect="auto", cmap="gray", vmin=0, vmax=255)
        frame = Rectangle((x - half, y - half), 2 * half, 2 * half, fill=False, lw=width, ec=colour, zorder=4)
        self.ax.add_patch(frame)
        self._frame()


def _say_figures(ax: Axes, figures: Mapping[str, str], x: float, y: float, width: float) -> None:
    """Names over values, side by side, each column as wide as its words."""
    need = [max(len(name), len(value), 4) + 2 for name, value in figures.items()]
    scale = min(width / sum(need), 0.11)
    for (name, value), size in zip(figures.items(), need, strict=True):
        ax.text(x, y + 0.1, name, size=7.5, color=QUIET, va="center", parse_math=False)
        ax.text(x, y - 0.1, value, size=9.5, color=INK, va="center", parse_math=False)
        x += size * scale


def cover_map(
    real: ArrayLike,
    fake: ArrayLike,
    uncovered: ArrayLike,
    *,
    figures: Mapping[str, str] | None = None,
    title: str | None = None,
    labels: tuple[str, str] = ("A", "B"),
) -> Figure:
    """Two samples of points (n, 2) over each other; those of the first that the second does not cover stand out."""
    P, Q, out = (
        np.asarray(real, dtype=np.float64),
        np.asarray(fake, dtype=np.float64),
        np.asarray(uncovered, dtype=bool),
    )
    for name, points in (("real", P), ("fake", Q)):
        if points.ndim != 2 or points.shape[1] != 2 or len(points) == 0:
            raise ShapeError(f"{name}: expected points (n, 2), got shape {points.shape}")
    if out.shape != (len(P),):
        raise ShapeError(f"uncovered: expected ({len(P)},), one a point of real, got shape {out.shape}")
    fig, ax = _axes(6.4, 6.0, None)
    size = float(np.clip(6000 / max(len(P), len(Q)), 5, 28))
    for points, colour, name in (
        (Q, "#B9C4CC", labels[1]),
        (P[~out], PALETTE[0], f"{labels[0]}, covered"),
        (P[out], PALETTE[1], f"{labels[0]}, not covered by {labels[1]}"),
    ):
        ax.scatter(points[:, 0], points[:, 1], s=size, c=colour, lw=0, alpha=0.85, label=name)
    ax.set_aspect("equal", adjustable="datalim")
    said = [f"{name} {value}" for name, value in (figures or {}).items()]
    lines = [title or "", "   ".join(said[: len(said) // 2]), "   ".join(said[len(said) // 2 :])]
    fig.suptitle(lines[0], size=12.5, color=INK, x=0.03, ha="left", parse_math=False)
    ax.set_title("\n".join(line for line in lines[1:] if line), size=8, color=QUIET, loc="left", parse_math=False)
    _legend(ax, 8)
    return fig


# ---------------------------------------------------------------------------------------------- frontiers and grids


def frontier(cells: Sequence[Mapping[str, float]], *, title: str | None = None) -> Figure:
    """What ρ and truncation ψ do: precision against recall, and the Fréchet distance against ρ, a curve a ψ.

    Each cell has rho, psi, precision, recall, frechet; a standard error where it has frechet_error. Points that no
    other beats in both precision and recall are filled. Truncation alone (ρ = 0, all ψ) is the dashed line.
    """
    table = _cells(cells)
    fig = _figure(10.6, 4.6, layout="constrained")
    left, right = (_quiet(ax) for ax in fig.subplots(1, 2))
    psis = sorted({cell["psi"] for cell in table}, reverse=True)
    best = _unbeaten(np.array([(cell["precision"], cell["recall"]) for cell in table]))
    for n, psi in enumerate(psis):
        own = sorted((i for i, cell in enumerate(table) if cell["psi"] == psi), key=lambda i: table[i]["rho"])
        rows, name = [table[i] for i in own], f"ρ at ψ = {psi:g}"
        _along(left, rows, ("recall", "precision"), name, PALETTE[n % len(PALETTE)], best[own])
        _along(right, rows, ("rho", "frechet"), name, PALETTE[n % len(PALETTE)], np.ones(len(own), dtype=bool))
        _mark(left, rows, "rho", PALETTE[n % len(PALETTE)])
    alone = sorted((cell for cell in table if cell["rho"] == 0), key=lambda cell: cell["psi"])
    if len(alone) > 1:
        left.plot(
            *_columns(alone, "recall", "precision"), color=QUIET, lw=1.1, ls=(0, (4, 2)), label="ψ at ρ = 0", zorder=1
        )
    _say_axes(left, "recall (diversity)", "precision (quality)")
    _say_axes(right, "polarity ρ", "Fréchet distance")
    if title:
        fig.suptitle(title, size=11.5, color=INK, x=0.01, ha="left", parse_math=False)
    return fig


def _cells(cells: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    if len(cells) == 0:
        raise InputError("cells: expected at least one, got none")
    for i, cell in enumerate(cells):
        for name in ("rho", "psi", "precision", "recall", "frechet"):
            if name not in cell or not np.isfinite(cell[name]):
                raise InputError(f"cells: cell {i} has no finite {name!r}")
    return list(cells)


def _columns(rows: Sequence[Mapping[str, float]], *names: str) -> list[Array]:
    return [np.array([float(row[name]) for row in rows]) for name in names]


def _along(
    ax: Axes,
    rows: list[Mapping[str, float]],
    names: tuple[str, str],
    label: str,
    colour: str,
    filled: NDArray[np.bool_],
) -> None:
    x, y = _columns(rows, *names)
    ax.plot(x, y, color=colour, lw=1.4, label=label, marker="o", ms=5.5, mec=colour, mfc="white", zorder=2)
    ax.plot(x[filled], y[filled], "o", ms=5.5, color=colour, zorder=3)
    spread = f"{names[1]}_error"
    if all(spread in row for row in rows):
        ax.errorbar(
            x, y, yerr=_columns(rows, spread)[0], fmt="none", ecolor=colour, elinewidth=0.8, capsize=2, zorder=1
        )


def _mark(ax: Axes, rows: list[Mapping[str, float]], name: str, colour: str) -> None:
    for row in rows:
        at = (float(row["recall"]), float(row["precision"]))
        ax.annotate(f"{row[name]:g}", at, xytext=(4, 4), textcoords="offset points", size=7, color=colour)


def _unbeaten(points: Array) -> NDArray[np.bool_]:
    """Which rows no other row is at least as large as in every column and larger in one: the Pareto frontier."""
    as_good = np.all(points[None, :, :] >= points[:, None, :], axis=2)
    better = np.any(points[None, :, :] > points[:, None, :], axis=2)
    return np.asarray(~np.any(as_good & better, axis=1))


def _say_axes(ax: Axes, x: str, y: str) -> None:
    ax.set_xlabel(x, size=9, color=INK)
    ax.set_ylabel(y, size=9, color=INK)
    ax.grid(True, color=FAINT, lw=0.5)
    ax.margins(0.08)
    _legend(ax, 8)


def grid(
    rows: Sequence[Sequence[Any]],
    labels: Sequence[str] | None = None,
    *,
    captions: Sequence[Sequence[str]] | None = None,
    title: str | None = None,
    edge: float = 0.8,
) -> Figure:
    """Pictures in rows, each row beside its label (a ρ, a class): arrays (h, w), (h, w, 3), (3, h, w), or files."""
    if not any(len(row) for row in rows):
        raise InputError("rows: expected at least one picture, got none")
    names = [""] * len(rows) if labels is None else [str(label) for label in labels]
    for what, given in (("labels", names), ("captions", captions)):
        if given is not None and len(given) != len(rows):
            raise ShapeError(f"{what}: expected {len(rows)}, one a row, got {len(given)}")
    left = 0.2 + 0.085 * max(len(name) for name in names)
    gap, head = (0.06 if captions is None else 0.2), (0.62 if title else 0.15)
    width = left + max(len(row) for row in rows) * (edge + 0.06) + 0.15
    height = len(rows) * (edge + gap) + head + 0.1
    fig = _figure(width, height)
    ax = fig.add_axes((0.0, 0.0, 1.0, 1.0))
    ax.axis("off")
    if title:
        ax.text(0.2, height - 0.33, title, size=12, color=INK, va="center", parse_math=False)
    for r, (name, row) in enumerate(zip(names, rows, strict=True)):
        top = height - head - r * (edge + gap)
        ax.text(left - 0.12, top - edge / 2, name, size=9, color=INK, ha="right", va="center", parse_math=False)
        _grid_row(ax, row, captions[r] if captions else (), left, top, edge)
    ax.set(xlim=(0, width), ylim=(0, height))
    return fig


def _grid_row(ax: Axes, row: Sequence[Any], captions: Sequence[str], left: float, top: float, edge: float) -> None:
    for c, given in enumerate(row):
        x = left + c * (edge + 0.06)
        picture = _thumbnail(given)
        if picture is not None:
            box = (x, x + edge, top - edge, top)
            ax.imshow(picture, extent=box, aspect="auto", cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        if c < len(captions):
            ax.text(x + edge / 2, top - edge - 0.08, captions[c], size=6.5, color=QUIET, ha="center", va="center")


# ---------------------------------------------------------------------------------------------------------- spectra


def histogram(
    groups: Mapping[str, ArrayLike],
    *,
    weights: Mapping[str, ArrayLike] | None = None,
    curve: tuple[ArrayLike, ArrayLike] | None = None,
    bins: int = 60,
    title: str | None = None,
    xlabel: str = "log σ",
) -> Figure:
    """Densities of named samples as outlines over common bins, with a curve (x, density) of a law where given."""
    if not groups:
        raise InputError("groups: expected at least one sample, got none")
    values = {name: np.asarray(v, dtype=np.float64).ravel() for name, v in groups.items()}
    finite = np.concatenate([v[np.isfinite(v)] for v in values.values()])
    if finite.size == 0:
        raise InputError("groups: expected finite values, got none")
    edges = np.histogram_bin_edges(finite, bins=bins)
    fig, ax = _axes(5.8, 4.2, title)
    for n, (name, v) in enumerate(values.items()):
        w = None if weights is None or name not in weights else np.asarray(weights[name], dtype=np.float64).ravel()
        _outline(ax, v, w, edges, name, PALETTE[n % len(PALETTE)])
    if curve is not None:
        ax.plot(*_curve("curve", *curve), color=INK, lw=1.1, ls=(0, (4, 2)), label="law")
    ax.set_xlabel(xlabel, size=9, color=INK)
    ax.set_ylabel("density", size=9, color=INK)
    ax.set_ylim(bottom=0)
    _legend(ax, 8.5)
    return fig


def _outline(ax: Axes, v: Array, w: Array | None, edges: Array, name: str, colour: str) -> None:
    if w is not None and w.shape != v.shape:
        raise ShapeError(f"weights of {name!r}: expected {v.size}, one a value, got {w.size}")
    good = np.isfinite(v)
    share = np.ones(v.size) if w is None else w
    heights = np.histogram(v[good], edges, weights=share[good])[0] / (share.sum() * np.diff(edges))
    ax.stairs(heights, edges, color=colour, lw=1.4, label=name)
    ax.stairs(heights, edges, color=colour, fill=True, alpha=0.08)


def spectrum(
    groups: Mapping[str, ArrayLike], *, title: str | None = None, ylabel: str = "log σ", band: float = 0.8
) -> Figure:
    """Spectra (n, k) against the number of the singular value: the median of each group, and the middle `band`."""
    if not groups:
        raise InputError("groups: expected at least one group of spectra, got none")
    fig, ax = _axes(5.8, 4.2, title)
    for n, (name, given) in enumerate(groups.items()):
        rows = np.atleast_2d(np.asarray(given, dtype=np.float64))
        if rows.ndim != 2 or rows.size == 0 or np.isnan(rows).any():
            raise ShapeError(f"group {name!r}: expected spectra (n, k) without NaN, got shape {rows.shape}")
        rows = np.where(np.isfinite(rows), rows, np.nan)
        low, middle, high = np.nanquantile(rows, [(1 - band) / 2, 0.5, (1 + band) / 2], axis=0)
        at, colour = np.arange(1, rows.shape[1] + 1), PALETTE[n % len(PALETTE)]
        ax.plot(at, middle, color=colour, lw=1.6, label=name)
        ax.fill_between(at, low, high, color=colour, alpha=0.12, lw=0)
    ax.set_xlabel("number of the singular value", size=9, color=INK)
    ax.set_ylabel(ylabel, size=9, color=INK)
    ax.grid(True, axis="y", color=FAINT, lw=0.5)
    _legend(ax, 8.5)
    _ranks(ax)
    return fig


# ------------------------------------------------------------------------------------------------------------ files


def save(fig: Figure, path: str | os.PathLike[str], *, dpi: int = 160) -> Path:
    """Write a figure in the format of the suffix (.png, .svg, .pdf, .jpg), atomically; same figure, same bytes."""
    import io as buffers

    from matplotlib import rc_context

    from likewise.io import write_bytes

    form = Path(path).suffix.lower().lstrip(".")
    dates: dict[str, dict[str, Any]] = {
        "png": {"Software": None},
        "svg": {"Date": None},
        "pdf": {"CreationDate": None},
        "jpg": {},
        "jpeg": {},
    }
    if form not in dates:
        raise InputError(f"path: expected a name that ends in .png, .svg, .pdf or .jpg, got {os.fspath(path)!r}")
    buffer = buffers.BytesIO()
    with rc_context({"svg.hashsalt": "likewise"}):
        fig.savefig(buffer, format=form, dpi=dpi, facecolor="white", metadata=dates[form] or None)
    return write_bytes(path, buffer.getvalue())


def _figure(width: float, height: float, **kwargs: Any) -> Figure:
    """A figure with its own canvas: no pyplot, nothing kept, nothing shown."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    fig = Figure(figsize=(width, height), facecolor="white", **kwargs)
    FigureCanvasAgg(fig)
    return fig


def _axes(width: float, height: float, title: str | None) -> tuple[Figure, Axes]:
    """A quiet pair of axes: two thin spines, grey ticks, the title at the left."""
    fig = _figure(width, height, layout="constrained")
    ax = _quiet(fig.add_subplot())
    if title:
        ax.set_title(title, size=11.5, color=INK, loc="left", pad=12)
    return fig, ax


def _legend(ax: Axes, size: float) -> None:
    """Names as they are: a dollar in one is no formula."""
    for text in ax.legend(frameon=False, fontsize=size, labelcolor=INK, loc="best").get_texts():
        text.set_parse_math(False)


def _quiet(ax: Axes) -> Axes:
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set(color=FAINT, linewidth=0.8)
    ax.tick_params(length=3, width=0.6, labelsize=8.5, color=FAINT, labelcolor=QUIET)
    return ax
