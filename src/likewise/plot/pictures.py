"""Pictures in pictures: square thumbnails of arrays and files, and grids of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from likewise.errors import InputError, ShapeError
from likewise.plot.style import INK, QUIET, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

THUMBNAIL_PIXELS = 160

Picture = NDArray[Any]


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
    fig = figure(width, height)
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
        picture = thumbnail(given)
        if picture is not None:
            box = (x, x + edge, top - edge, top)
            ax.imshow(picture, extent=box, aspect="auto", cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        if c < len(captions):
            ax.text(x + edge / 2, top - edge - 0.08, captions[c], size=6.5, color=QUIET, ha="center", va="center")


def thumbnail(given: Any) -> Picture | None:
    """A square picture of at most THUMBNAIL_PIXELS, its middle cut out; uint8 or floats in [0, 1]."""
    if given is None:
        return None
    if isinstance(given, str | os.PathLike):
        from likewise.media import read_array

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
