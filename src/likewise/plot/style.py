"""What every figure shares: the palette, figures without pyplot, quiet axes, and the writing of files."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from likewise.errors import InputError
from likewise.media import write_bytes

# Okabe and Ito's colours, in an order in which neighbours differ in lightness too.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555", "#B8A800")
INK, QUIET, FAINT = "#222222", "#767676", "#D9D9D9"

# Dates and versions are left out of each format, so that the same figure gives the same bytes.
_UNDATED: dict[str, dict[str, Any] | None] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
    "jpg": None,
    "jpeg": None,
}


def figure(width: float, height: float, **kwargs: Any) -> Figure:
    """A figure with its own canvas: no pyplot, nothing kept, nothing shown."""
    fig = Figure(figsize=(width, height), facecolor="white", **kwargs)
    FigureCanvasAgg(fig)
    return fig


def sheet(width: float, height: float, title: str | None = None) -> tuple[Figure, Axes]:
    """A page without axes whose coordinates are inches from the lower left corner."""
    fig = figure(width, height)
    ax = fig.add_axes((0.0, 0.0, 1.0, 1.0))
    ax.axis("off")
    # Limits that are set are no longer scaled to the images that are drawn.
    ax.set(xlim=(0, width), ylim=(0, height))
    if title:
        ax.text(0.2, height - 0.33, title, size=12, color=INK, va="center", parse_math=False)
    return fig, ax


def axes(width: float, height: float, title: str | None) -> tuple[Figure, Axes]:
    """A quiet pair of axes: two thin spines, grey ticks, the title at the left."""
    fig = figure(width, height, layout="constrained")
    ax = quiet(fig.add_subplot())
    if title:
        ax.set_title(title, size=11.5, color=INK, loc="left", pad=12, parse_math=False)
    return fig, ax


def quiet(ax: Axes) -> Axes:
    """Two thin spines and grey ticks."""
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set(color=FAINT, linewidth=0.8)
    ax.tick_params(length=3, width=0.6, labelsize=8.5, color=FAINT, labelcolor=QUIET)
    return ax


def finish(ax: Axes, x: str, y: str, *, loc: Literal["best", "lower right"] = "best", grid: bool = True) -> None:
    """Name both axes and draw the legend; a dollar in a name is no formula."""
    ax.set_xlabel(x, size=9, color=INK)
    ax.set_ylabel(y, size=9, color=INK)
    if grid:
        ax.grid(True, axis="y", color=FAINT, lw=0.5)
    for text in ax.legend(frameon=False, fontsize=8.5, labelcolor=INK, loc=loc).get_texts():
        text.set_parse_math(False)


def ranks(ax: Axes) -> None:
    """Whole ranks, from 1."""
    last = max(float(ax.dataLim.x1), 1.5)
    ticks = MaxNLocator(nbins=6, integer=True).tick_values(1, last)
    ax.set_xticks(sorted({max(1, int(t)) for t in ticks if t <= last}))
    ax.set_xlim(1, last)


def save(fig: Figure, path: str | os.PathLike[str], *, dpi: int = 160) -> Path:
    """Write a figure atomically, in the format of its suffix; the same figure gives the same bytes.

    Parameters
    ----------
    fig : Figure
        What a function of `likewise.plot` returned.
    path : path
        Where to write it; ends in .png, .svg, .pdf or .jpg.
    dpi : int
        Pixels per inch of .png and .jpg.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    InputError
        If the name ends in something else; nothing is written.

    Examples
    --------
    >>> import likewise as lw
    >>> import tempfile
    >>> figure = lw.plot.curves({"loss": ([1, 2], [0.9, 0.5])})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lw.plot.save(figure, folder + "/curves.png").suffix
    '.png'
    """
    form = Path(path).suffix.lower().lstrip(".")
    if form not in _UNDATED:
        raise InputError(f"path: expected a name that ends in .png, .svg, .pdf or .jpg, got {os.fspath(path)!r}")
    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "likewise"}):
        fig.savefig(buffer, format=form, dpi=dpi, facecolor="white", metadata=_UNDATED[form])
    return write_bytes(path, buffer.getvalue())
