"""What every figure shares: the palette, figures without pyplot, quiet axes, thumbnails, and the writing of files."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, TypeAlias

import cv2
import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from likewise.errors import InputError
from likewise.media import as_uint8, read_array, write_bytes

# Okabe and Ito's colours, in an order in which neighbours differ in lightness too.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555", "#B8A800")
INK, QUIET, FAINT = "#222222", "#767676", "#D9D9D9"
THUMBNAIL_PIXELS = 160
"""The side of a thumbnail: what an inch of a figure can show at 160 dpi."""
RGB: TypeAlias = NDArray[np.uint8]

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


def finish(ax: Axes, x: str, y: str, *, grid: bool = True) -> None:
    """Name both axes and draw the legend; a dollar in a name is no formula."""
    ax.set_xlabel(x, size=9, color=INK)
    ax.set_ylabel(y, size=9, color=INK)
    if grid:
        ax.grid(True, axis="y", color=FAINT, lw=0.5)
    for text in ax.legend(frameon=False, fontsize=8.5, labelcolor=INK).get_texts():
        text.set_parse_math(False)


# ── images ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def as_array(values: Any) -> NDArray[Any]:
    """An array, or a tensor of any device, as a NumPy array."""
    return np.asarray(values.detach().cpu().numpy() if hasattr(values, "detach") else values)


def as_rgb(image: Any, where: str) -> RGB:
    """A file, an array (h, w), (h, w, 3) or (3, h, w), or a tensor, as uint8 (h, w, 3)."""
    if isinstance(image, str | os.PathLike):
        return read_array(image)
    array = _channels_last(as_array(image))
    rgb = as_uint8(np.clip(array, 0, 1) if array.dtype.kind == "f" else array, where=where)
    return rgb if rgb.ndim == 3 else np.repeat(rgb[:, :, None], 3, axis=2)


def fit(image: RGB, side: int | None) -> RGB:
    """An image (h, w, 3) with its longest side at most `side`, averaged over areas."""
    scale = 1.0 if side is None else side / max(image.shape[:2])
    if scale >= 1:
        return image
    size = max(1, round(scale * image.shape[1])), max(1, round(scale * image.shape[0]))
    return np.asarray(cv2.resize(np.ascontiguousarray(image), size, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def thumbnail(image: Any) -> RGB | None:
    """A square image of at most THUMBNAIL_PIXELS, the middle of the given one; None stays None."""
    if image is None:
        return None
    file = isinstance(image, str | os.PathLike)
    rgb = read_array(image, side=THUMBNAIL_PIXELS) if file else as_rgb(image, "thumbnails")
    h, w = rgb.shape[:2]
    side = min(h, w)
    return fit(rgb[(h - side) // 2 :, (w - side) // 2 :][:side, :side], THUMBNAIL_PIXELS)


def _channels_last(array: NDArray[Any]) -> NDArray[Any]:
    return np.moveaxis(array, 0, 2) if array.ndim == 3 and array.shape[0] == 3 and array.shape[2] != 3 else array


def place(
    ax: Axes, image: Any, left: float, top: float, edge: float, *, colour: str = FAINT, width: float = 0.8
) -> None:
    """Draw the thumbnail of an image on a sheet from its top left corner, in a frame (none where width is 0)."""
    shown = thumbnail(image)
    if shown is not None:
        box = (left, left + edge, top - edge, top)
        style = "nearest" if shown.shape[0] < 64 else "antialiased"  # few pixels stay pixels
        ax.imshow(shown, extent=box, aspect="auto", interpolation=style, zorder=3)
    if width:
        ax.add_patch(Rectangle((left, top - edge), edge, edge, fill=False, ec=colour, lw=width, zorder=4))


# ── files ──────────────────────────────────────────────────────────────────────────────────────────────────────────


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
