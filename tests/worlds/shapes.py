"""Pictures whose classes are known: stripes under noise, folders of small files; and batches of rows for losses."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from likewise import media
from likewise.images import losses
from likewise.images.data import Dataset

PIXEL = np.full((2, 2, 3), 90, dtype=np.uint8)


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


def put(root: Path, *names: str) -> None:
    """Small pictures of these names, all the same."""
    first = root / names[0]
    media.write_image(first, PIXEL)
    for name in names[1:]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(first, root / name)


def names_of(dataset: Dataset) -> list[tuple[str, str]]:
    """(class, file) of each picture."""
    return [(dataset.classes[c], Path(p).name) for p, c in zip(dataset.items, dataset.labels, strict=True)]  # type: ignore[arg-type]


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(*shape, generator=g, dtype=torch.float64), dim=-1)


def batch(n: int = 12, heads: int = 4, dim: int = 6, *, each: int = 4, seed: int = 0, step: int = 0) -> losses.Batch:
    z = unit(n, heads, dim, seed=seed)
    y = torch.arange(n // each).repeat_interleave(each)
    return losses.Batch(z, y, torch.arange(n), moved=unit(n, heads, dim, seed=seed + 1), step=step, seed=seed)
