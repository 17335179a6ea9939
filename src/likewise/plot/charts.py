"""Numbers: curves, spectra, the frontier of quality and diversity, maps of points, and transport plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path as Curve
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from likewise.errors import InputError, ShapeError
from likewise.media import is_image
from likewise.plot.style import INK, PALETTE, QUIET, axes, figure, finish, place, quiet, sheet, thumbnail
from likewise.types import Array, Signature

_DASHES = ("-", (0, (5, 1.6)), (0, (1.5, 1.2)))
_PALE = "#B9C4CC"


def curves(
    lines: Mapping[str, tuple[ArrayLike, ArrayLike]], *, title: str | None = None, xlabel: str = "", ylabel: str = ""
) -> Figure:
    """Draw named curves (x, y) in one figure.

    Parameters
    ----------
    lines : mapping of str to (array, array)
        x and y of each curve.
    title, xlabel, ylabel : str, optional
        What stands above and at the axes.

    Returns
    -------
    Figure
        One axes.

    Raises
    ------
    InputError
        If there is no curve.
    ShapeError
        If x and y of a curve differ in length.

    Examples
    --------
    >>> import likewise as lw
    >>> figure = lw.plot.curves({"loss": ([1, 2, 3], [0.9, 0.5, 0.4])}, xlabel="epoch")
    >>> figure.axes[0].get_xlabel()
    'epoch'
    """
    _at_least_one(lines, "lines", "curve")
    fig, ax = axes(5.4, 4.2, title)
    for n, (name, (x, y)) in enumerate(lines.items()):
        xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
        if xs.ndim != 1 or xs.shape != ys.shape or xs.size == 0:
            raise ShapeError(f"curve {name!r}: expected x and y of one length, got shapes {xs.shape} and {ys.shape}")
        dash = _DASHES[n // len(PALETTE) % 3]
        ax.plot(xs, ys, color=_colour(n), ls=dash, lw=1.7, label=name, clip_on=False)
    finish(ax, xlabel, ylabel)
    return fig


def _at_least_one(given: Any, where: str, unit: str) -> None:
    if not len(given):
        raise InputError(f"{where}: expected at least one {unit}, got none")


def _colour(n: int) -> str:
    return PALETTE[n % len(PALETTE)]


def spectrum(groups: Mapping[str, ArrayLike], *, title: str | None = None, ylabel: str = "log σ") -> Figure:
    """Draw spectra against the number of the singular value: the median of each group, and its middle 80 %.

    Parameters
    ----------
    groups : mapping of str to array (n, k)
        Spectra; values that are not finite are left out.
    title, ylabel : str, optional
        What stands above and beside.

    Returns
    -------
    Figure
        One axes.

    Raises
    ------
    InputError
        If there is no group.
    ShapeError
        If a group is not (n, k), or has NaN.

    Examples
    --------
    >>> import likewise as lw
    >>> figure = lw.plot.spectrum({"ρ = 0": [[3.0, 2.0, 1.0], [5.0, 2.0, 1.0]]})
    >>> figure.axes[0].lines[0].get_ydata().tolist()
    [4.0, 2.0, 1.0]
    """
    _at_least_one(groups, "groups", "group of spectra")
    fig, ax = axes(5.8, 4.2, title)
    for n, (name, given) in enumerate(groups.items()):
        rows = np.atleast_2d(np.asarray(given, dtype=np.float64))
        if rows.ndim != 2 or rows.size == 0 or np.isnan(rows).any():
            raise ShapeError(f"group {name!r}: expected spectra (n, k) without NaN, got shape {rows.shape}")
        rows = np.where(np.isfinite(rows), rows, np.nan)
        low, middle, high = np.nanquantile(rows, [0.1, 0.5, 0.9], axis=0)
        at = np.arange(1, rows.shape[1] + 1)
        ax.plot(at, middle, color=_colour(n), lw=1.6, label=name)
        ax.fill_between(at, low, high, color=_colour(n), alpha=0.12, lw=0)
    finish(ax, "number of the singular value", ylabel)
    ax.set_xlim(1, max(float(ax.dataLim.x1), 1.5))
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    return fig


def frontier(cells: Sequence[Mapping[str, float]], *, title: str | None = None) -> Figure:
    """Draw what ρ and truncation ψ do: precision against recall, and the Fréchet distance against ρ.

    There is a curve a ψ. Points that no other beats in both precision and recall are filled. Truncation alone
    (ρ = 0, all ψ) is the dashed line.

    Parameters
    ----------
    cells : sequence of mappings
        Each has rho, psi, precision, recall, frechet.
    title : str, optional
        Stands above.

    Returns
    -------
    Figure
        Two axes.

    Raises
    ------
    InputError
        If there is no cell, or one lacks a finite number.

    Examples
    --------
    >>> import likewise as lw
    >>> cell = {"rho": 0.0, "psi": 1.0, "precision": 0.6, "recall": 0.5, "frechet": 40.0}
    >>> len(lw.plot.frontier([cell, {**cell, "rho": -0.5, "precision": 0.7}]).axes)
    2
    """
    _at_least_one(cells, "cells", "cell")
    for i, cell in enumerate(cells):
        for name in ("rho", "psi", "precision", "recall", "frechet"):
            if name not in cell or not np.isfinite(cell[name]):
                raise InputError(f"cells: cell {i} has no finite {name!r}")
    table = sorted(cells, key=lambda cell: (-cell["psi"], cell["rho"]))
    names = ("psi", "rho", "recall", "precision", "frechet")
    psi, rho, recall, precision, frechet = (np.array([float(cell[name]) for cell in table]) for name in names)
    best = _unbeaten(np.stack([precision, recall], axis=1))
    fig = figure(10.6, 4.6, layout="constrained")
    left, right = (quiet(ax) for ax in fig.subplots(1, 2))
    for n, value in enumerate(dict.fromkeys(psi.tolist())):
        own, colour = psi == value, _colour(n)
        style: dict[str, Any] = {"color": colour, "lw": 1.4, "marker": "o", "ms": 5.5, "label": f"ρ at ψ = {value:g}"}
        left.plot(recall[own], precision[own], mfc="white", **style)
        left.plot(recall[own & best], precision[own & best], "o", ms=5.5, color=colour, zorder=3)
        right.plot(rho[own], frechet[own], **style)
        for x, y, words in zip(recall[own], precision[own], rho[own], strict=True):
            left.annotate(f"{words:g}", (x, y), xytext=(4, 4), textcoords="offset points", size=7, color=colour)
    if (alone := rho == 0).sum() > 1:
        left.plot(recall[alone], precision[alone], color=QUIET, lw=1.1, ls=(0, (4, 2)), label="ψ at ρ = 0", zorder=1)
    finish(left, "recall (diversity)", "precision (quality)")
    finish(right, "polarity ρ", "Fréchet distance")
    if title:
        fig.suptitle(title, size=11.5, color=INK, x=0.01, ha="left", parse_math=False)
    return fig


def _unbeaten(points: Array) -> NDArray[np.bool_]:
    """Which rows no other row is at least as large as in every column and larger in one: the Pareto frontier."""
    as_good = np.all(points[None, :, :] >= points[:, None, :], axis=2)
    better = np.any(points[None, :, :] > points[:, None, :], axis=2)
    return np.asarray(~np.any(as_good & better, axis=1))


def cover_map(
    real: ArrayLike,
    fake: ArrayLike,
    uncovered: ArrayLike,
    *,
    figures: Mapping[str, str] | None = None,
    title: str | None = None,
    labels: tuple[str, str] = ("A", "B"),
) -> Figure:
    """Draw two samples of points over each other; those of the first that the second does not cover stand out.

    Parameters
    ----------
    real, fake : array (n, 2), (m, 2)
        The points of A and of B.
    uncovered : array (n,) of bool
        Which points of A are not covered.
    figures : mapping of str to str, optional
        Names and values that stand above.
    title : str, optional
        Stands above.
    labels : (str, str)
        What A and B are called.

    Returns
    -------
    Figure
        One axes.

    Raises
    ------
    ShapeError
        If points are not (n, 2), or uncovered is not one a point.

    Examples
    --------
    >>> import likewise as lw
    >>> figure = lw.plot.cover_map([[0, 0], [1, 1]], [[0, 0.1]], [False, True])
    >>> [len(points.get_offsets()) for points in figure.axes[0].collections]
    [1, 1, 1]
    """
    P, Q, out = np.asarray(real, np.float64), np.asarray(fake, np.float64), np.asarray(uncovered, bool)
    for name, points in (("real", P), ("fake", Q)):
        if points.ndim != 2 or points.shape[1] != 2 or len(points) == 0:
            raise ShapeError(f"{name}: expected points (n, 2), got shape {points.shape}")
    if out.shape != (len(P),):
        raise ShapeError(f"uncovered: expected ({len(P)},), one a point of real, got shape {out.shape}")
    fig, ax = axes(6.4, 6.0, None)
    # Many points are drawn small, so that they do not hide each other.
    size = float(np.clip(6000 / max(len(P), len(Q)), 5, 28))
    for points, colour, name in (
        (Q, _PALE, labels[1]),
        (P[~out], PALETTE[0], f"{labels[0]}, covered"),
        (P[out], PALETTE[1], f"{labels[0]}, not covered by {labels[1]}"),
    ):
        ax.scatter(points[:, 0], points[:, 1], s=size, c=colour, lw=0, alpha=0.85, label=name)
    ax.set_aspect("equal", adjustable="datalim")
    values = [f"{name} {value}" for name, value in (figures or {}).items()]
    half = len(values) // 2
    lines = ["   ".join(part) for part in (values[:half], values[half:]) if part]
    fig.suptitle(title or "", size=12.5, color=INK, x=0.03, ha="left", parse_math=False)
    ax.set_title("\n".join(lines), size=8, color=QUIET, loc="left", parse_math=False)
    finish(ax, "", "", grid=False)
    return fig


# ── transport plans ───────────────────────────────────────────────────────────────────────────────────────────────

Order = NDArray[np.int64]
Lines = list[tuple[int, int]]

WIDTH, COLUMN, BOTTOM = 7.4, 1.72, 0.42
"""The page in inches: its width, where the columns stand from its sides, and the room below them."""


def plan(
    p: Signature,
    q: Signature,
    F: ArrayLike,
    *,
    title: str | None = None,
    thumbnails: tuple[Sequence[Any] | None, Sequence[Any] | None] | None = None,
    most: int = 60,
    labels: tuple[str, str] = ("P", "Q"),
) -> Figure:
    """Draw two columns of points, joined by lines whose width and opacity are the mass F_ij from p_i to q_j.

    Bars outside the columns are the weights. Points stand in an order in which few lines cross.

    Parameters
    ----------
    p, q : Signature
        The two sets.
    F : array (m, n)
        The plan.
    title : str, optional
        Stands above.
    thumbnails : (sequence, sequence), optional
        The images of p's and of q's points, as arrays or files. By default a point is drawn as the image file that its
        name points to, else as a numbered dot.
    most : int
        Of a larger set so many of its heaviest points are drawn, and this is said.
    labels : (str, str)
        What the sets are called.

    Returns
    -------
    Figure
        One axes that holds everything.

    Raises
    ------
    ShapeError
        If F is not (len(p), len(q)), or thumbnails are not one a point.
    InputError
        If F has masses that are negative or not finite, or most is below 1.

    Examples
    --------
    >>> import likewise as lw
    >>> p = lw.sets.Signature([[0.0], [1.0]])
    >>> figure = lw.plot.plan(p, p, [[0.5, 0.0], [0.0, 0.5]], labels=("monday", "friday"))
    >>> len(figure.axes)
    1
    """
    F = _plan_matrix(F, p, q)
    if most < 1:
        raise InputError(f"most: expected at least 1, got {most}")
    rows, columns = (np.sort(np.argsort(-s.weights, kind="stable")[:most]) for s in (p, q))
    left, right = untangle(F[np.ix_(rows, columns)])
    rows, columns = rows[left], columns[right]
    body = float(np.clip(0.62 * max(len(rows), len(columns)), 2.6, 11.0))
    fig, ax = sheet(WIDTH, body + (0.98 if title else 0.55) + BOTTOM, title)
    peak = max(float(p.weights[rows].max()), float(q.weights[columns].max()))
    given = thumbnails or (None, None)
    P = _Column(ax, p, rows, given[0], labels[0], -1, body)
    Q = _Column(ax, q, columns, given[1], labels[1], +1, body)
    drawn = _join(ax, P, Q, F[np.ix_(rows, columns)]) / max(float(F.sum()), 1e-300)
    for column in (P, Q):
        column.draw(peak)
    words = "line: mass from one point to another (width, opacity)   ·   bar: weight of a point"
    hidden = sum(F.shape) - len(rows) - len(columns)
    if hidden or drawn < 0.995:
        points = f"{hidden} light points left out   ·   " if hidden else ""
        words += f"   ·   {points}lines drawn: {100 * drawn:.0f} % of the mass"
    ax.text(WIDTH / 2, 0.22, words, size=6.5, color=QUIET, ha="center", va="center")
    return fig


def _plan_matrix(F: ArrayLike, p: Signature, q: Signature) -> Array:
    A = np.asarray(F, dtype=np.float64)
    if A.shape != (len(p), len(q)):
        raise ShapeError(f"F: expected ({len(p)}, {len(q)}), the sizes of the two signatures, got {A.shape}")
    if not np.isfinite(A).all() or (A < 0).any():
        raise InputError("F: expected masses ≥ 0, got negative or non-finite ones")
    return A


class _Column:
    """One side of a plan: where its points stand, their thumbnails and their weights."""

    def __init__(
        self, ax: Axes, s: Signature, shown: Order, given: Sequence[Any] | None, label: str, side: int, body: float
    ) -> None:
        if given is not None and len(given) != len(s):
            raise ShapeError(f"thumbnails of {label}: expected {len(s)}, one a point, got {len(given)}")
        named = [name if is_image(name) else None for name in s.names] if s.names is not None else [None] * len(s)
        images = named if given is None else given
        self.ax, self.s, self.shown, self.label, self.side = ax, s, shown, label, side
        self.images = [thumbnail(images[i]) for i in shown]
        slot = body / len(shown)
        self.y = BOTTOM + body - slot * (np.arange(len(shown)) + 0.5)
        self.edge = min(0.86 * slot, 0.95)
        self.x = COLUMN if side < 0 else WIDTH - COLUMN
        drawn = any(image is not None for image in self.images)
        half = self.edge / 2 if drawn else 0.075
        # Lines begin at the edge that looks to the other column, weights at the other one, clear of the numbers.
        self.inner, self.outside = self.x - side * half, self.x + side * (half + 0.07)
        self.bars = self.outside + side * (0.0 if drawn else 0.24)
        self.room = (0.72 if drawn else 0.5) * self.edge
        self.ha: Literal["left", "right"] = "left" if side > 0 else "right"

    def draw(self, peak: float) -> None:
        """The label, and each point with the bar of its weight."""
        top = self.y[0] + self.edge / 2
        count = f"{len(self.s)} point" + ("s" if len(self.s) > 1 else "")
        self.ax.text(self.x, top + 0.26, self.label, size=9.5, color=INK, ha="center", va="bottom", parse_math=False)
        self.ax.text(self.x, top + 0.23, count, size=7.5, color=QUIET, ha="center", va="top")
        for y, index, image in zip(self.y.tolist(), self.shown.tolist(), self.images, strict=True):
            self._point(y, index, image)
            self._weight(y, float(self.s.weights[index]), peak)

    def _point(self, y: float, index: int, image: Any) -> None:
        if image is not None:
            place(self.ax, image, self.x - self.edge / 2, y + self.edge / 2, self.edge, colour="white", width=0.6)
            return
        small = float(np.clip(28 * self.edge, 4.5, 7.5))
        self.ax.plot([self.x], [y], "o", ms=small, mfc="white", mec=INK, mew=0.9, zorder=3)
        self.ax.text(self.outside, y, str(index + 1), size=small, color=QUIET, va="center", ha=self.ha, zorder=3)

    def _weight(self, y: float, weight: float, peak: float) -> None:
        length, height = 0.62 * weight / peak, float(np.clip(0.28 * self.edge, 0.02, 0.11))
        left = self.bars if self.side > 0 else self.bars - length
        self.ax.add_patch(Rectangle((left, y - height / 2), length, height, color=QUIET, lw=0, alpha=0.75))
        if self.edge >= 0.2:
            words = f"{100 * weight:.0f} %" if weight >= 0.0095 else "< 1 %"
            self.ax.text(
                self.bars + self.side * (length + 0.05), y, words, size=6.5, color=QUIET, va="center", ha=self.ha
            )


def _join(ax: Axes, P: _Column, Q: _Column, F: Array) -> float:
    """Draw the heaviest lines, stacked where they leave and arrive so that none hides another; returns their mass."""
    lines = _lines(F)
    if not lines:
        return 0.0
    # A unit of mass is as wide as the heaviest point of either side allows.
    inches = min(P.room / max(float(F.sum(1).max()), 1e-300), Q.room / max(float(F.sum(0).max()), 1e-300))
    leave, arrive = _ports(F, lines, inches, 0), _ports(F, lines, inches, 1)
    hues = colormaps["viridis"](np.linspace(0.08, 0.80, len(P.y)))
    for i, j in lines:
        y0, y1 = P.y[i] + leave[i, j], Q.y[j] + arrive[i, j]
        width, alpha = max(72 * inches * F[i, j], 0.35), 0.14 + 0.68 * (F[i, j] / F.max()) ** 0.7
        bend = 0.45 * (Q.inner - P.inner)
        curve = Curve([(P.inner, y0), (P.inner + bend, y0), (Q.inner - bend, y1), (Q.inner, y1)], [1, 4, 4, 4])
        ax.add_patch(PathPatch(curve, fc="none", ec=hues[i], lw=width, alpha=alpha, capstyle="butt", zorder=1))
    return float(sum(F[i, j] for i, j in lines))


def _lines(F: Array) -> Lines:
    """The masses that can be seen (≥ 1 % of the largest), at most three a point, from light to heavy."""
    order = np.argsort(F, axis=None, kind="stable")[-3 * sum(F.shape) :]
    i, j = np.unravel_index(order, F.shape)
    seen = (F[i, j] > 0) & (F[i, j] >= 0.01 * F.max())
    return [(int(a), int(b)) for a, b in zip(i[seen], j[seen], strict=True)]


def _ports(F: Array, lines: Lines, inches: float, side: int) -> dict[tuple[int, int], float]:
    """How far above its point's middle each line starts (side 0) or ends (side 1): stacked in the partners' order."""
    at: dict[tuple[int, int], float] = {}
    for point in {line[side] for line in lines}:
        own = sorted((line for line in lines if line[side] == point), key=lambda line: line[1 - side])
        heights = np.array([F[line] for line in own]) * inches
        middles = heights.sum() / 2 - np.cumsum(heights) + heights / 2
        at.update(zip(own, middles.tolist(), strict=True))
    return at


# ── the order of the points of a plan ─────────────────────────────────────────────────────────────────────────────


def untangle(F: Array) -> tuple[Order, Order]:
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


def _spectral_orders(F: Array) -> tuple[Order, Order]:
    """The order of the second singular vectors of the plan over its marginals."""
    a, b = np.maximum(F.sum(1), 1e-150), np.maximum(F.sum(0), 1e-150)
    if min(F.shape) < 2:
        return np.argsort(-a, kind="stable"), np.argsort(-b, kind="stable")
    U, _, V = np.linalg.svd(F / np.sqrt(a[:, None] * b[None, :]))
    u, v = U[:, 1] / np.sqrt(a), V[1] / np.sqrt(b)
    # The sign of a singular vector is not defined; fixing it keeps the figure the same everywhere.
    sign = 1.0 if u[np.argmax(np.abs(u))] > 0 else -1.0
    return np.argsort(sign * u, kind="stable"), np.argsort(sign * v, kind="stable")


def _barycentres(F: Array) -> Array:
    """Where the partners of each row lie, on average; a row without mass stays where it is."""
    mass = F.sum(1)
    at = np.arange(F.shape[1]) / max(F.shape[1] - 1, 1)
    own = np.arange(len(F)) / max(len(F) - 1, 1)
    return np.where(mass > 0, F @ at / np.maximum(mass, 1e-300), own)
