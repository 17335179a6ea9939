"""Pictures whose classes are known: stripes, by their direction and colour, under noise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from likewise.images.data import Dataset


def stripes(classes: int = 8, each: int = 10, *, side: int = 36, seed: int = 0, first: int = 0) -> Dataset:
    """`classes` classes of `each` pictures (side, side, 3); classes are numbered from `first`."""
    rng = np.random.default_rng(seed)
    items, labels = [], []
    for c in range(first, first + classes):
        for _ in range(each):
            items.append(stripe(c, side, rng))
            labels.append(c - first)
    return Dataset(
        tuple(items), np.array(labels), tuple(f"class {c}" for c in range(first, first + classes)), "stripes"
    )


def stripe(c: int, side: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """One picture of class c: its direction and two colours are the class's, its phase and noise its own."""
    own = np.random.default_rng(1000 + c)
    angle, colours = own.uniform(0, np.pi), own.uniform(0, 255, (2, 3))
    y, x = np.mgrid[:side, :side]
    wave = 0.5 + 0.5 * np.sin((np.cos(angle) * x + np.sin(angle) * y) * 0.9 + rng.uniform(0, 6.3))[..., None]
    picture = wave * colours[0] + (1 - wave) * colours[1] + rng.normal(0, 140, (side, side, 3))
    return picture.clip(0, 255).astype(np.uint8)
