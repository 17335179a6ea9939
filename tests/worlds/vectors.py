"""Vectors and sets whose classes differ in a planted subspace, under louder noise everywhere else."""

from __future__ import annotations

import numpy as np

from likewise.types import Signature


def planted(seed: int, *, classes: int = 4, each: int = 15, dim: int = 12, signal: int = 2, noise: float = 2.0):
    """X (n, dim), y: class centres lie apart in the first `signal` coordinates, the rest is noise of no use."""
    angle = 2 * np.pi * np.arange(classes) / classes
    centres = np.hstack([3 * np.stack([np.cos(angle), np.sin(angle)], axis=1), np.zeros((classes, signal - 2))])
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(classes), each)
    X = np.hstack(
        [centres[y] + 0.5 * rng.normal(size=(len(y), signal)), noise * rng.normal(size=(len(y), dim - signal))]
    )
    return X, y


def planted_sets(seed: int, *, points: int = 5, **options):
    """The same as sets: each is `points` draws around one row of `planted`, with uneven weights."""
    X, y = planted(seed, **options)
    rng = np.random.default_rng(seed + 1)
    return [Signature(x + 0.3 * rng.normal(size=(points, len(x))), 0.5 + rng.random(points)) for x in X], y
