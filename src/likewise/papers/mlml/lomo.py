"""LOMO, local maximal occurrence: the feature of people by which the paper finds them again.

Liao, Hu, Zhu and Li, CVPR 2015. The Retinex that they put before the colours is left out: their settings of it are not
in print.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from skimage.color import rgb2hsv

from likewise import inputs
from likewise.errors import InputError
from likewise.nn.features import Net
from likewise.sets.data import block_index, resize
from likewise.types import Array

Codes = NDArray[np.int64]

SIZE = (128, 48)
"""Height and width to which a person is resized."""
SCALES, STRIDE = 3, 5
"""Images of the pyramid, each half as large as the one before; windows of 2 · STRIDE pixels begin STRIDE apart."""
SHADES = 8
"""Bins of each of hue, saturation and value."""
RADII, TAU = (3, 5), 0.3
"""How far the four neighbours of a texture lie, and by what share they must differ."""
EDGE = 1e-9
"""What rounding may do: a saturation of exactly ½ begins a bin, and 130 is not above 1.3 · 100, on any machine."""


def lomo(image: Any, size: tuple[int, int] = SIZE) -> Array:
    """Local maximal occurrence of colours and textures: 26,960 numbers for 128 × 48.

    At each scale, windows of 10 × 10 pixels are counted by their joint HSV colours (8 × 8 × 8) and by SILTP at two
    radii. Of the windows that stand side by side each bin keeps the largest count x, as log(1 + x). All colours
    together have unit length, and so have all textures.
    """
    if min(size) < 2 * STRIDE << SCALES - 1:
        raise InputError(f"size: expected at least {2 * STRIDE << SCALES - 1} pixels a side, got {size}")
    rgb = resize(inputs.image(image).pixels / 255.0, size)
    colours: list[Codes] = []
    textures: list[Codes] = []
    for _ in range(SCALES):
        shades = np.minimum((rgb2hsv(rgb) * SHADES + EDGE).astype(np.int64), SHADES - 1) @ (SHADES**2, SHADES, 1)
        colours.append(maximal_occurrence(shades, SHADES**3))
        textures += [maximal_occurrence(siltp(rgb @ (0.299, 0.587, 0.114), r), 81) for r in RADII]
        h, w = rgb.shape[0] // 2, rgb.shape[1] // 2
        rgb = rgb[: 2 * h, : 2 * w].reshape(h, 2, w, 2, 3).mean(axis=(1, 3))
    logs = [np.log1p(np.concatenate([part.ravel() for part in parts])) for parts in (colours, textures)]
    return np.concatenate([part / np.linalg.norm(part) for part in logs])


def maximal_occurrence(codes: Codes, bins: int) -> Codes:
    """(rows, bins): how often each code occurs, at most, in a window of each row of windows.

    A window is four cells of STRIDE × STRIDE pixels, so cells are counted once; pixels beyond the last whole cell are
    in no window.
    """
    h, w = codes.shape[0] // STRIDE, codes.shape[1] // STRIDE
    inside = codes[: h * STRIDE, : w * STRIDE]
    cells = np.bincount((block_index(inside.shape, (h, w)) * bins + inside).ravel(), minlength=h * w * bins)
    pairs = cells.reshape(h, w, bins)[:-1] + cells.reshape(h, w, bins)[1:]
    return np.asarray((pairs[:, :-1] + pairs[:, 1:]).max(axis=1))


def siltp(grey: Array, radius: int, tau: float = TAU) -> Codes:
    """Scale invariant local ternary patterns, 0 … 80 a pixel, of the neighbours to the right, below, left and above.

    A neighbour is 1 if above (1 + τ) times the pixel, 2 if below (1 − τ) times, else 0; the one to the right counts
    once, the next 3, 9 and 27 times. Beyond the border the nearest pixel stands in.
    """
    padded, codes = np.pad(grey, radius, mode="edge"), np.zeros(grey.shape, dtype=np.int64)
    for k, (axis, step) in enumerate(((1, radius), (0, radius), (1, -radius), (0, -radius))):
        near = np.roll(padded, -step, axis)[radius:-radius, radius:-radius]
        codes += 3**k * ((near > (1 + tau) * grey + EDGE) + 2 * (near < (1 - tau) * grey - EDGE))
    return codes


LOMO = Net(lambda images, _: np.stack([lomo(image) for image in images]), "lomo", takes_any_size=True)
"""LOMO as `features=`."""
