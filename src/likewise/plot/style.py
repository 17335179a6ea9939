"""What every picture shares: the palette, figures without pyplot, quiet axes, and the writing of files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from likewise.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555", "#B8A800")
INK, QUIET, FAINT = "#222222", "#767676", "#D9D9D9"


def figure(width: float, height: float, **kwargs: Any) -> Figure:
    """A figure with its own canvas: no pyplot, nothing kept, nothing shown."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    fig = Figure(figsize=(width, height), facecolor="white", **kwargs)
    FigureCanvasAgg(fig)
    return fig


def axes(width: float, height: float, title: str | None) -> tuple[Figure, Axes]:
    """A quiet pair of axes: two thin spines, grey ticks, the title at the left."""
    fig = figure(width, height, layout="constrained")
    ax = quiet(fig.add_subplot())
    if title:
        ax.set_title(title, size=11.5, color=INK, loc="left", pad=12)
    return fig, ax


def legend(ax: Axes, size: float) -> None:
    """Names as they are: a dollar in one is no formula."""
    for text in ax.legend(frameon=False, fontsize=size, labelcolor=INK, loc="best").get_texts():
        text.set_parse_math(False)


def quiet(ax: Axes) -> Axes:
    for side, spine in ax.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set(color=FAINT, linewidth=0.8)
    ax.tick_params(length=3, width=0.6, labelsize=8.5, color=FAINT, labelcolor=QUIET)
    return ax


def ranks(ax: Axes) -> None:
    """Whole ranks, from 1."""
    from matplotlib.ticker import MaxNLocator

    last = max(float(ax.dataLim.x1), 1.5)
    ticks = MaxNLocator(nbins=6, integer=True).tick_values(1, last)
    ax.set_xticks(sorted({max(1, int(t)) for t in ticks if t <= last}))
    ax.set_xlim(1, last)


def save(fig: Figure, path: str | os.PathLike[str], *, dpi: int = 160) -> Path:
    """Write a figure in the format of the suffix (.png, .svg, .pdf, .jpg), atomically; same figure, same bytes."""
    import io as buffers

    from matplotlib import rc_context

    from likewise.media import write_bytes

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
