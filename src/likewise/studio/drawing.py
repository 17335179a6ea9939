"""Quick drawings as arrays: values as heat, pictures as tiles, matches as lines between two pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

RGB = NDArray[np.uint8]

PAPER = 245
"""The grey between pictures."""
COLOURS = ((230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (204, 121, 167))
"""Okabe and Ito's, told apart by colour-blind readers: lines take turns, so that neighbours can be followed."""


def heat(values: NDArray[Any]) -> RGB:
    """Values in [0, 1] in the colours of cividis, which read alike for all eyes."""
    import cv2

    grey = np.rint(np.clip(values, 0, 1) * 255).astype(np.uint8)
    return np.ascontiguousarray(cv2.applyColorMap(grey, cv2.COLORMAP_CIVIDIS)[..., ::-1])


def tiles(pictures: Sequence[RGB], across: int, *, edge: int = 84, gap: int = 4) -> RGB:
    """Pictures in rows of `across`, each `edge` pixels wide and high; small ones are enlarged pixel by pixel."""
    import cv2

    rows = -(-len(pictures) // across)
    sheet = np.full((rows * (edge + gap) - gap, across * (edge + gap) - gap, 3), PAPER, dtype=np.uint8)
    for i, picture in enumerate(pictures):
        how = cv2.INTER_NEAREST if max(picture.shape[:2]) <= edge else cv2.INTER_AREA
        top, left = (edge + gap) * (i // across), (edge + gap) * (i % across)
        sheet[top : top + edge, left : left + edge] = cv2.resize(picture, (edge, edge), interpolation=how)
    return sheet


def joined(a: RGB, b: RGB, ends: Sequence[tuple[NDArray[Any], NDArray[Any]]], *, height: int = 480) -> RGB:
    """Two pictures side by side at one height, and a line from each point (x, y) of a to its point of b."""
    import cv2

    sizes = [(max(1, round(p.shape[1] * height / p.shape[0])), height) for p in (a, b)]
    gap = 12
    sheet = np.full((height, sizes[0][0] + gap + sizes[1][0], 3), PAPER, dtype=np.uint8)
    sheet[:, : sizes[0][0]] = cv2.resize(a, sizes[0], interpolation=cv2.INTER_AREA)
    sheet[:, sizes[0][0] + gap :] = cv2.resize(b, sizes[1], interpolation=cv2.INTER_AREA)
    scales = [height / p.shape[0] for p in (a, b)]
    for i, (p, q) in enumerate(ends):
        one = np.asarray(p) * scales[0]
        two = np.asarray(q) * scales[1] + [sizes[0][0] + gap, 0]
        _line(sheet, one, two, COLOURS[i % len(COLOURS)])
    return sheet


def _line(sheet: RGB, one: NDArray[Any], two: NDArray[Any], colour: tuple[int, int, int]) -> None:
    """A line with a dot at each end, to a sixteenth of a pixel."""
    import cv2

    (x1, y1), (x2, y2) = ((int(v * 16) for v in p) for p in (one, two))
    cv2.line(sheet, (x1, y1), (x2, y2), colour, 1, cv2.LINE_AA, 4)
    for x, y in ((x1, y1), (x2, y2)):
        cv2.circle(sheet, (x, y), 40, colour, -1, cv2.LINE_AA, 4)
