"""What two pictures show where: each part of one in a colour, each part of the other in the colours of what it got."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from likewise.errors import ShapeError
from likewise.plot.flows import shown
from likewise.plot.style import INK, figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def parts(a: Any, b: Any, plan: Any, *, title: str | None = None) -> Figure:
    """Two square pictures under their grids of parts; plan (n², n²) is the mass from each part of a to each of b.

    The parts of a have colours by their place; a part of b has the mean of the colours that it gets, the paler the more
    places they come from.
    """
    F = np.asarray(plan, dtype=np.float64)
    side = math.isqrt(len(F))
    if F.ndim != 2 or F.shape != (side * side, side * side) or side == 0:
        raise ShapeError(f"plan: expected (n², n²), a grid of parts each, got shape {F.shape}")
    colours = _colours(side)
    got = F.T @ colours / np.maximum(F.sum(axis=0), 1e-12)[:, None]
    fig = figure(7.2, 3.9 if title else 3.6)
    top = 0.9 if title else 0.98
    for left, picture, cells, words in ((0.01, a, colours, "a"), (0.505, b, got, "b")):
        ax = fig.add_axes((left, 0.02, 0.485, top - 0.02))
        ax.imshow(_tinted(shown(picture, words), cells.reshape(side, side, 3)))
        ax.axis("off")
    if title:
        fig.text(0.015, 0.955, title, size=11, color=INK, va="center", parse_math=False)
    return fig


def _colours(side: int) -> NDArray[np.float64]:
    """Hue by direction from the middle, saturation by distance: (side², 3) in [0, 1]."""
    from matplotlib.colors import hsv_to_rgb

    y, x = np.meshgrid(*(np.linspace(-1, 1, side),) * 2, indexing="ij")
    hue = (np.arctan2(y, x) / (2 * np.pi)) % 1.0
    hsv = np.stack([hue, np.clip(0.25 + 0.75 * np.hypot(x, y) / math.sqrt(2), 0, 1), np.ones_like(x)], axis=-1)
    return np.asarray(hsv_to_rgb(hsv).reshape(-1, 3))


def _tinted(picture: NDArray[Any], cells: NDArray[np.float64]) -> NDArray[np.uint8]:
    """The picture in grey under its cells' colours."""
    import cv2

    array = np.asarray(picture)
    grey = array.astype(np.float64).mean(axis=2, keepdims=True)
    size = (array.shape[1], array.shape[0])
    tint = cv2.resize(cells, size, interpolation=cv2.INTER_NEAREST)
    return np.asarray(np.clip((0.25 + 0.75 * grey / 255) * tint * 255, 0, 255), dtype=np.uint8)
