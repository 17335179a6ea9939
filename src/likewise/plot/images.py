"""Images in figures: grids, rankings, parts in colours, and what one collection covers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from likewise.errors import InputError, ShapeError
from likewise.plot.style import FAINT, INK, PALETTE, QUIET, place, sheet

ACROSS = 8
"""Images in a row of `coverage`."""
RIGHT, WRONG = PALETTE[2], PALETTE[1]
"""Green and red that colour-blind readers tell apart; a mark in the corner says the same."""

Pair: TypeAlias = tuple[Any, Any, float]
"""An image, the nearest one of the other side, and their distance."""


def grid(
    rows: Sequence[Sequence[Any]], labels: Sequence[str] | None = None, *, title: str | None = None, edge: float = 0.8
) -> Figure:
    """Draw images in rows, each row beside its label (a ρ, a class).

    Parameters
    ----------
    rows : sequence of sequences
        Arrays (h, w), (h, w, 3) or (3, h, w), files, or None for an empty place.
    labels : sequence of str, optional
        One a row.
    title : str, optional
        Stands above.
    edge : float
        Side of an image in inches.

    Returns
    -------
    Figure
        One axes that holds everything.

    Raises
    ------
    InputError
        If there is no image.
    ShapeError
        If labels are not one a row.

    Examples
    --------
    >>> import likewise as lw
    >>> import numpy as np
    >>> len(lw.plot.grid([np.zeros((3, 8, 8)), np.ones((2, 8, 8))], ["dark", "bright"]).axes[0].images)
    5
    """
    if not any(len(row) for row in rows):
        raise InputError("rows: expected at least one image, got none")
    names = [""] * len(rows) if labels is None else [str(label) for label in labels]
    _check_counts(len(rows), "row", labels=names)
    left = 0.2 + 0.085 * max(len(name) for name in names)
    gap, head = 0.06, 0.62 if title else 0.15
    height = len(rows) * (edge + gap) + head + 0.1
    fig, ax = sheet(left + max(len(row) for row in rows) * (edge + gap) + 0.15, height, title)
    for r, (name, row) in enumerate(zip(names, rows, strict=True)):
        top = height - head - r * (edge + gap)
        ax.text(left - 0.12, top - edge / 2, name, size=9, color=INK, ha="right", va="center", parse_math=False)
        for c, image in enumerate(row):
            place(ax, image, left + c * (edge + gap), top, edge, width=0)
    return fig


def ranking(
    queries: Sequence[Any],
    hits: Sequence[Sequence[Any]],
    *,
    right: Sequence[Sequence[bool | None]] | None = None,
    names: Sequence[str] | None = None,
    captions: Sequence[Sequence[str]] | None = None,
    title: str | None = None,
    edge: float = 1.0,
) -> Figure:
    """Draw each query at the left of its row, then its hits, nearest first.

    Parameters
    ----------
    queries : sequence
        Images as `grid` takes them.
    hits : sequence of sequences
        The images of each query's hits.
    right : sequence of sequences of bool or None, optional
        Which hits are right: framed green with ✓, or red with ✗; None is not judged.
    names, captions : optional
        What stands under the queries, and under the hits.
    title : str, optional
        Stands above.
    edge : float
        Side of an image in inches.

    Returns
    -------
    Figure
        One axes that holds everything.

    Raises
    ------
    InputError
        If there is no query or no hit.
    ShapeError
        If there is not one of something a query or a hit.

    Examples
    --------
    >>> import likewise as lw
    >>> import numpy as np
    >>> figure = lw.plot.ranking(np.zeros((1, 8, 8)), [np.ones((2, 8, 8))], right=[[True, False]])
    >>> [text.get_text() for text in figure.axes[0].texts if text.get_text()]
    ['✓', '✗']
    """
    if len(queries) == 0 or not any(len(row) for row in hits):
        raise InputError("queries: expected at least one, with at least one hit, got none")
    _check_counts(len(queries), "query", hits=hits, right=right, names=names, captions=captions)
    for r, row in enumerate(hits):
        own = {"right": right and right[r], "captions": captions and captions[r]}
        _check_counts(len(row), "hit", **{f"{what} of query {r}": given for what, given in own.items()})
    step, below, head = edge + 0.1, 0.24, 0.6 if title else 0.2
    height = head + len(queries) * (edge + below) + 0.05
    fig, ax = sheet(0.6 + edge + max(len(row) for row in hits) * step, height, title)
    for r, query in enumerate(queries):
        top = height - head - r * (edge + below)
        place(ax, query, 0.2, top, edge)
        _caption(ax, names[r] if names else "", 0.2, top - edge - 0.1, edge)
        for c, hit in enumerate(hits[r]):
            x = 0.5 + edge + c * step
            _judged(ax, hit, x, top, edge, None if right is None else right[r][c])
            _caption(ax, captions[r][c] if captions else "", x, top - edge - 0.1, edge)
    ax.axvline(0.35 + edge, 0.02, 1 - head / height, color=FAINT, lw=0.8)
    return fig


def _judged(ax: Axes, image: Any, x: float, top: float, edge: float, right: bool | None) -> None:
    """An image in a frame that says whether it is right, with a mark in its corner."""
    colour = FAINT if right is None else RIGHT if right else WRONG
    place(ax, image, x, top, edge, colour=colour, width=0.8 if right is None else 2.6)
    if right is not None:
        badge = {"boxstyle": "square,pad=0.18", "fc": colour, "ec": "none"}
        at = (x + edge - 0.09, top - 0.1)
        ax.text(*at, "✓" if right else "✗", size=7, color="white", ha="center", va="center", bbox=badge, zorder=5)


def _caption(ax: Axes, words: str, x: float, y: float, edge: float) -> None:
    most = max(4, int(18 * edge))
    short = words if len(words) <= most else words[: most - 1] + "…"
    ax.text(x + edge / 2, y, short, size=6.2, color=QUIET, ha="center", va="center", parse_math=False)


def _check_counts(count: int, unit: str, **given: Any) -> None:
    for what, values in given.items():
        if values is not None and len(values) != count:
            raise ShapeError(f"{what}: expected {count}, one a {unit}, got {len(values)}")


def coverage(
    uncovered: Sequence[Pair],
    covered: Sequence[Pair],
    *,
    counts: tuple[int, int] | None = None,
    figures: Mapping[str, str] | None = None,
    title: str | None = None,
    labels: tuple[str, str] = ("A", "B"),
) -> Figure:
    """Draw the images of A that nothing in B covers, the farthest out first, beside some that are covered.

    Under each stands its nearest image in B, with their distance.

    Parameters
    ----------
    uncovered, covered : sequence of (image, nearest image, distance)
        What is drawn of both kinds.
    counts : (int, int), optional
        How many there are of both kinds; by default those that are drawn.
    figures : mapping of str to str, optional
        Names and values that stand above.
    title : str, optional
        Stands above.
    labels : (str, str)
        What A and B are called.

    Returns
    -------
    Figure
        One axes that holds everything.

    Examples
    --------
    >>> import likewise as lw
    >>> import numpy as np
    >>> pair = (np.zeros((8, 8)), np.ones((8, 8)), 0.7)
    >>> len(lw.plot.coverage([pair], [pair, pair]).axes[0].images)
    6
    """
    lost, kept = counts or (len(uncovered), len(covered))
    parts = (
        (f"in {labels[0]}, but not covered by {labels[1]}: {lost:,} of {lost + kept:,}", PALETTE[1], uncovered),
        (f"in {labels[0]}, and covered by {labels[1]}: {kept:,} of {lost + kept:,}", PALETTE[0], covered),
    )
    rows = sum(-(-len(pairs) // ACROSS) for _, _, pairs in parts)
    height = 1.6 + (0.45 if title else 0) + (0.5 if figures else 0) + 2.22 * rows
    fig, ax = sheet(1.45 + ACROSS * 0.98, height, title)
    y = height - (0.85 if title else 0.4)
    if figures:
        said = "    ".join(f"{name} {value}" for name, value in figures.items())
        ax.text(0.3, y, said, size=8.5, color=QUIET, va="center", parse_math=False)
        y -= 0.5
    for words, colour, pairs in parts:
        ax.text(0.3, y, words, size=10, color=colour, va="center", weight="bold", parse_math=False)
        y -= 0.3
        for start in range(0, len(pairs), ACROSS):
            _cover_row(ax, pairs[start : start + ACROSS], y, colour, labels)
            y -= 2.22
        if not pairs:
            ax.text(0.3, y + 0.02, "none", size=8.5, color=QUIET, va="center")
        y -= 0.32
    return fig


def _cover_row(ax: Axes, pairs: Sequence[Pair], top: float, colour: str, labels: tuple[str, str]) -> None:
    """Images over their nearest ones, which stand 0.98 in below, and their distances."""
    for y, name in ((top - 0.43, labels[0]), (top - 1.41, f"nearest in\n{labels[1]}")):
        ax.text(0.3, y, name, size=8, color=QUIET, va="center", parse_math=False)
    for column, (mine, theirs, distance) in enumerate(pairs):
        x = 1.21 + column * 0.98
        place(ax, mine, x, top, 0.86, colour=colour, width=2.0)
        place(ax, theirs, x, top - 0.98, 0.86)
        ax.text(x + 0.43, top - 1.94, f"{distance:.3g}", size=7, color=QUIET, ha="center", va="center")
