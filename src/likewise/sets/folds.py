"""Inner folds of the training sets: members held out where classes can spare them, else whole classes; and a score."""

from __future__ import annotations

from typing import Any

import numpy as np

from likewise.sets.transport.solvers import Index
from likewise.types import Array


def inner_folds(y: Index, seed: int | tuple[int, ...], most: int = 5) -> list[Index]:
    """Disjoint held-out parts, stratified, that leave every class two members; [] if no class has three."""
    sizes = np.bincount(y)
    usable = sizes[sizes >= 3]
    if len(usable) == 0:
        return []
    count = int(np.clip(usable.min(), 3, most))
    rng = np.random.default_rng(seed)
    fold = np.full(len(y), -1)
    for c in np.flatnonzero(sizes >= 3):
        members = rng.permutation(np.flatnonzero(y == c))
        fold[members] = (np.arange(len(members)) + c) % count
    return [np.flatnonzero(fold == f) for f in range(count) if (fold == f).any()]


def class_folds(y: Index, level: Index, seed: int | tuple[int, ...], count: int = 3) -> list[Index]:
    """Disjoint held-out parts made of whole classes, spread over the levels; [] for fewer than four classes."""
    classes, first = np.unique(y, return_index=True)
    if len(classes) < 4:
        return []
    count = min(count, len(classes) // 2)
    shuffled = np.random.default_rng(seed).permutation(len(classes))
    order = shuffled[np.argsort(level[first][shuffled], kind="stable")]
    fold = np.empty(len(classes), dtype=np.int64)
    fold[order] = np.arange(len(classes)) % count
    return [np.flatnonzero(np.isin(y, classes[fold == f])) for f in range(count)]


def area(distances: Array, same: Any) -> float:
    """The area under the ROC curve: how often a same pair is closer than a different one; ½ if one kind is missing."""
    from scipy.stats import rankdata

    n = int(same.sum())
    if n == 0 or n == len(same):
        return 0.5
    ranks = rankdata(-distances)
    return float((ranks[same].sum() - n * (n + 1) / 2) / (n * (len(same) - n)))
