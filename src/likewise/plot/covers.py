"""What one collection covers of another: pages of picture pairs, and maps of points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from likewise.errors import InputError, ShapeError
from likewise.plot.pictures import thumbnail
from likewise.plot.style import FAINT, INK, PALETTE, QUIET, axes, figure, legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
        self.fig = figure(self.width, self.height)
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
        picture = thumbnail(given)
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
    fig, ax = axes(6.4, 6.0, None)
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
    legend(ax, 8)
    return fig
