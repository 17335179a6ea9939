"""Rankings: a query, and beside it what was found, nearest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from likewise.errors import InputError, ShapeError
from likewise.plot.pictures import thumbnail
from likewise.plot.style import FAINT, INK, PALETTE, QUIET, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RIGHT, WRONG = PALETTE[2], PALETTE[1]
"""Green and red that colour-blind readers tell apart; a mark in the corner says the same."""

GAP, BELOW = 0.1, 0.24


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
    """Each query at the left of its row, then its hits, nearest first: pictures as `grid` takes them, None for none.

    `right` says which hits are right: framed green with ✓, or red with ✗; where it is None nothing is judged. `names`
    stand under the queries, `captions` under the hits.
    """
    _check(queries, hits, right, names, captions)
    columns = max(len(row) for row in hits)
    width = 0.2 + edge + 0.3 + columns * (edge + GAP) + 0.1
    head = 0.6 if title else 0.2
    height = head + len(queries) * (edge + BELOW) + 0.05
    fig = figure(width, height)
    ax = fig.add_axes((0.0, 0.0, 1.0, 1.0))
    ax.axis("off")
    if title:
        ax.text(0.2, height - 0.3, title, size=11.5, color=INK, va="center", parse_math=False)
    for r, query in enumerate(queries):
        top = height - head - r * (edge + BELOW)
        _picture(ax, query, 0.2, top, edge, None, names[r] if names else "")
        for c, hit in enumerate(hits[r]):
            judged = None if right is None else right[r][c]
            _picture(ax, hit, 0.5 + edge + c * (edge + GAP), top, edge, judged, captions[r][c] if captions else "")
    ax.axvline(0.35 + edge, 0.02, 1 - head / height, color=FAINT, lw=0.8)
    ax.set(xlim=(0, width), ylim=(0, height))
    return fig


def _check(
    queries: Sequence[Any],
    hits: Sequence[Sequence[Any]],
    right: Sequence[Sequence[bool | None]] | None,
    names: Sequence[str] | None,
    captions: Sequence[Sequence[str]] | None,
) -> None:
    if not queries or not any(len(row) for row in hits):
        raise InputError("queries: expected at least one, with at least one hit, got none")
    for what, given in (("hits", hits), ("right", right), ("names", names), ("captions", captions)):
        if given is not None and len(given) != len(queries):
            raise ShapeError(f"{what}: expected {len(queries)}, one a query, got {len(given)}")
    for what, rows in (("right", right), ("captions", captions)):
        for r, row in enumerate(rows or ()):
            if len(row) != len(hits[r]):
                raise ShapeError(f"{what} of query {r}: expected {len(hits[r])}, one a hit, got {len(row)}")


def _picture(ax: Axes, given: Any, x: float, top: float, edge: float, judged: bool | None, caption: str) -> None:
    """A square picture from its top left corner, framed by what was judged of it, over its caption."""
    from matplotlib.patches import Rectangle

    picture = thumbnail(given)
    if picture is not None:
        box = (x, x + edge, top - edge, top)
        ax.imshow(picture, extent=box, aspect="auto", cmap="gray", vmin=0, vmax=255, interpolation="antialiased")
    colour = FAINT if judged is None else RIGHT if judged else WRONG
    lw = 0.8 if judged is None else 2.6
    ax.add_patch(Rectangle((x, top - edge), edge, edge, fill=False, ec=colour, lw=lw, zorder=4))
    if judged is not None:
        badge = {"boxstyle": "square,pad=0.18", "fc": colour, "ec": "none"}
        at = (x + edge - 0.09, top - 0.1)
        ax.text(*at, "✓" if judged else "✗", size=7, color="white", ha="center", va="center", bbox=badge, zorder=5)
    most = max(4, int(18 * edge))
    words = caption if len(caption) <= most else caption[: most - 1] + "…"
    ax.text(x + edge / 2, top - edge - 0.1, words, size=6.2, color=QUIET, ha="center", va="center", parse_math=False)
