"""Nearest descriptors: mutual ones, and those among the features that lie near a given place.

All distances are squared Euclidean; binary descriptors are read as ±1, of which ‖x − y‖² is four times Hamming's
distance. Of equal distances the feature that comes first wins.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from likewise.errors import InputError
from likewise.pixels.features import Features

Rows: TypeAlias = NDArray[np.float32]
Index: TypeAlias = NDArray[np.int64]

TILE = 1024
"""Rows that are compared with all columns at once."""
PAIRS = 1 << 16
"""Pairs of near features whose distances are computed at once."""
DENSE = 0.02
"""With more than this share of all pairs near, all are compared: matrix products are that much faster."""


def comparable(a: Features, b: Features) -> tuple[Rows, Rows]:
    """The descriptors of both as float32 rows whose Euclidean distance orders as their own does."""
    if a.binary != b.binary or a.descriptors.shape[1] != b.descriptors.shape[1]:
        raise InputError(f"features: those of a and b cannot be compared, got {a!r} and {b!r}")
    if not a.binary:
        return a.descriptors, b.descriptors
    one, two = (2.0 * np.unpackbits(f.descriptors, axis=1) - 1.0 for f in (a, b))
    return one.astype(np.float32), two.astype(np.float32)


def similarity(x: Rows, y: Rows) -> Rows:
    """2 x·y / (‖x‖² + ‖y‖²) of each pair of rows: the cosine of unit rows, 1 where they are equal."""
    total = np.einsum("nd,nd->n", x, x) + np.einsum("nd,nd->n", y, y)
    both = 2.0 * np.einsum("nd,nd->n", x, y)
    return np.asarray(np.where(total > 0, both / np.where(total > 0, total, 1), 1), dtype=np.float32)


# -------------------------------------------------------------------------------------------------------- mutual, all


def mutual(x: Rows, y: Rows, ratio: float | None = None) -> tuple[Index, Index]:
    """The pairs (i, j) that are each other's nearest; with `ratio`, d₁ < ratio · d₂ both ways (Lowe's test)."""
    if not len(x) or not len(y):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    there, back = _Best(len(x)), _Best(len(y))
    for rows, D in _tiles(x, y):
        there.along_rows(rows, D, second=ratio is not None)
        back.along_columns(rows.start, D, second=ratio is not None)
    i = np.flatnonzero(back.index[there.index] == np.arange(len(x)))
    j = there.index[i]
    kept = np.ones(len(i), dtype=bool) if ratio is None else there.clear(ratio)[i] & back.clear(ratio)[j]
    return i[kept], j[kept]


class _Best:
    """The nearest and second nearest seen so far of each of n rows."""

    def __init__(self, n: int) -> None:
        self.index = np.zeros(n, dtype=np.int64)
        self.first, self.second = np.full(n, np.inf, np.float32), np.full(n, np.inf, np.float32)

    def along_rows(self, rows: slice, D: Rows, *, second: bool) -> None:
        """See whole rows of distances."""
        at = D.argmin(axis=1)
        self.index[rows], self.first[rows] = at, D[np.arange(len(D)), at]
        if second:
            self.second[rows] = _without(D, (np.arange(len(D)), at), axis=1)

    def along_columns(self, start: int, D: Rows, *, second: bool) -> None:
        """See some rows of every column, which begin at `start`; only columns with something nearer are searched."""
        low = D.min(axis=0)
        better = np.flatnonzero(low < self.first)
        at = D[:, better].argmin(axis=0)
        if second:
            places = D.argmin(axis=0), np.arange(D.shape[1])
            runner = np.minimum(self.second, _without(D, places, axis=0))
            self.second = np.minimum(runner, np.maximum(self.first, low))
        self.index[better], self.first[better] = at + start, low[better]

    def clear(self, ratio: float) -> NDArray[np.bool_]:
        """d₁ < ratio · d₂, in squares; where there is no second, it passes."""
        return np.asarray(self.first < np.float32(ratio**2) * self.second)


def _without(D: Rows, places: tuple[Index, Index], axis: int) -> Rows:
    """The least along an axis but for one place each; infinite where there is no other."""
    kept = D[places]
    D[places] = np.inf
    least = D.min(axis=axis)
    D[places] = kept
    return np.asarray(least)


def _tiles(x: Rows, y: Rows) -> Iterator[tuple[slice, Rows]]:
    """‖x_i − y_j‖² of some rows i and all j."""
    own = np.einsum("nd,nd->n", y, y)
    for start in range(0, len(x), TILE):
        part = x[start : start + TILE]
        D = part @ y.T
        D *= -2.0
        D += np.einsum("nd,nd->n", part, part)[:, None]
        D += own
        yield slice(start, start + len(part)), np.maximum(D, 0.0, out=D)


# --------------------------------------------------------------------------------------------------- near some places


def guided(x: Rows, places: NDArray[np.float64], y: Rows, points: NDArray[np.float64], radius: float) -> Index:
    """For each row of x the nearest row of y among the points within `radius` of its place, −1 where none is near.

    argmin_j ‖x_i − y_j‖ over ‖points_j − places_i‖ ≤ radius [LIFE Eq. 4]. A place that is not finite has none near.
    """
    from scipy.spatial import cKDTree

    found = np.full(len(x), -1, dtype=np.int64)
    known = np.flatnonzero(np.isfinite(places).all(axis=1))
    if not len(known) or not len(points):
        return found
    tree = cKDTree(points)
    counts = np.asarray(tree.query_ball_point(places[known], radius, return_length=True), dtype=np.int64)
    if counts.sum() > DENSE * len(known) * len(points):
        found[known] = _dense(x[known], places[known], y, points, radius)
        return found
    known, counts = known[counts > 0], counts[counts > 0]
    for part in _parts(counts):
        rows = known[part]
        near = tree.query_ball_point(places[rows], radius, return_sorted=True)
        found[rows] = _sparse(x, rows, y, near, counts[part])
    return found


def _parts(counts: Index) -> Iterator[slice]:
    """Runs of rows with about PAIRS near ones together."""
    ends = np.searchsorted(np.cumsum(counts), np.arange(PAIRS, counts.sum() + PAIRS, PAIRS)) + 1
    start = 0
    for end in (*ends[:-1].tolist(), len(counts)):
        if end > start:
            yield slice(start, end)
            start = end


def _sparse(x: Rows, rows: Index, y: Rows, near: NDArray[np.object_], counts: Index) -> Index:
    """The nearest of the listed rows of y to each of these rows of x; every list holds one at least."""
    j = np.concatenate([np.asarray(n, dtype=np.int64) for n in near])
    gap = np.repeat(x[rows], counts, axis=0) - y[j]
    d = np.einsum("nd,nd->n", gap, gap)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    lowest = np.repeat(np.minimum.reduceat(d, starts), counts)
    first = np.where(d == lowest, np.arange(len(d)), len(d))
    return j[np.minimum.reduceat(first, starts)]


def _dense(x: Rows, places: NDArray[np.float64], y: Rows, points: NDArray[np.float64], radius: float) -> Index:
    found = np.empty(len(x), dtype=np.int64)
    for rows, D in _tiles(x, y):
        away = places[rows]
        far = (away[:, :1] - points[:, 0]) ** 2 + (away[:, 1:] - points[:, 1]) ** 2 > radius**2
        D[far] = np.inf
        at = D.argmin(axis=1)
        found[rows] = np.where(np.isfinite(D[np.arange(len(D)), at]), at, -1)
    return found
