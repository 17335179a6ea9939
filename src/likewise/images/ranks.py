"""Where the rows of one's own class stand among all others: exact, in tiles, ties counted and never broken.

Similarities are taken twice: by a float32 product of matrices, whose rounding is bounded, and in float64, pair by pair,
for the few that this bound cannot order. A pair's float64 value does not depend on where its rows
stand, so equal rows tie exactly, and the order of the rows changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likewise.errors import InputError, ShapeError

T = TypeVar("T")
R = TypeVar("R")
Rows = NDArray[np.float32]
Index = NDArray[np.int64]
Floats = NDArray[np.float64]

TILE = 2048
"""Rows and columns of a tile: 16 MB in float32."""
PAIRS = 4096
"""Pairs whose float64 similarity is taken at a time."""
PANEL = 1 << 22
"""Similarities of a panel, some rows against all: 16 MB in float32."""
UNIT = float(np.finfo(np.float32).eps) / 2


@dataclass(frozen=True, eq=False)
class Sides:
    """Unit rows with their classes as numbers 0, 1, …: the queries, and the gallery in which they are looked up.

    With `within`, both sides are one collection, and no row is looked up as its own neighbour.
    """

    X: Rows
    x: Index
    Y: Rows
    y: Index
    within: bool

    @property
    def rounding(self) -> float:
        """A bound on |float32 product − true product| of two unit rows: d u Σ|x_i y_i| ≤ d u, and a little more."""
        return 1.01 * (int(self.X.shape[1]) + 4) * UNIT

    @property
    def relevant(self) -> Index:
        """For each query, how many rows of its class there are to be found."""
        counts = np.bincount(self.y, minlength=int(max(self.x.max(), self.y.max())) + 1)[self.x]
        return np.asarray(counts - self.within, dtype=np.int64)

    def exact(self, i: Index, j: Index) -> Floats:
        """x_i · y_j in float64, each pair for itself."""
        found = np.empty(len(i))
        for s in range(0, len(i), PAIRS):
            part = slice(s, s + PAIRS)
            products = self.X[i[part]].astype(np.float64)
            products *= self.Y[j[part]]
            found[part] = products.sum(axis=1)
        return found


def sides(
    embeddings: ArrayLike, labels: ArrayLike, gallery: ArrayLike | None = None, gallery_labels: ArrayLike | None = None
) -> Sides:
    """Checked rows of length 1 and classes by number, of one collection or of queries and their gallery."""
    if (gallery is None) != (gallery_labels is None):
        raise InputError("gallery: expected together with gallery_labels, got one without the other")
    X, x = unit(embeddings), names_of(labels, "labels")
    _one_a_row(x, X, "labels")
    if gallery is None or gallery_labels is None:
        if len(X) < 2:
            raise ShapeError(f"embeddings: expected at least two rows, got {len(X)}")
        codes = _codes(x)
        return Sides(X, codes, X, codes, within=True)
    Y, y = unit(gallery, "gallery"), names_of(gallery_labels, "gallery_labels")
    _one_a_row(y, Y, "gallery_labels")
    if Y.shape[1] != X.shape[1]:
        raise ShapeError(f"gallery: expected rows of {X.shape[1]} numbers as in embeddings, got {Y.shape[1]}")
    codes = _codes(np.concatenate([x, y]))
    return Sides(X, codes[: len(x)], Y, codes[len(x) :], within=False)


def unit(embeddings: ArrayLike, where: str = "embeddings") -> Rows:
    """The rows (n, d) as float32 of length 1; a row without direction is an error."""
    try:
        rows = np.asarray(embeddings)
        X = np.array(rows, dtype=np.float32, order="C")
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: expected rows (n, d) of numbers: {error}") from None
    if X.ndim != 2 or 0 in X.shape:
        raise ShapeError(f"{where}: expected rows (n, d), got shape {X.shape}")
    lengths = np.sqrt(np.einsum("id,id->i", X, X, dtype=np.float64))
    bad = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
    if len(bad):
        what = "is all zeros: it has no direction" if lengths[bad[0]] == 0 else "contains NaN or infinity"
        raise InputError(f"{where}: row {bad[0]} {what}")
    for s in range(0, len(X), TILE):  # in float64: the same row gives the same bits, whatever stands around it
        X[s : s + TILE] = X[s : s + TILE] / lengths[s : s + TILE, None]
    return X


def names_of(labels: ArrayLike, where: str) -> NDArray[np.generic]:
    """One class a row: numbers or strings."""
    found = np.asarray(labels)
    if found.ndim != 1 or found.dtype.kind not in "iubUS":
        raise InputError(f"{where}: expected whole numbers or strings (n,), got {found.dtype} of shape {found.shape}")
    return found


def _one_a_row(labels: NDArray[np.generic], rows: Rows, where: str) -> None:
    if len(labels) != len(rows):
        raise ShapeError(f"{where}: expected {len(rows)}, one a row, got {len(labels)}")


def _codes(labels: NDArray[np.generic]) -> Index:
    return np.asarray(np.unique(labels, return_inverse=True)[1], dtype=np.int64).reshape(-1)


# ----------------------------------------------------------------------------------------- the best of one's own class


@dataclass(frozen=True, eq=False)
class Best:
    """For each query: how many rows of other classes are nearer than its nearest row of the same class.

    `above` (n,) are strictly nearer (counted up to `most` only), `tied` (n,) as near; `same` (n,) are the rows of its
    own class that share the first place, 0 where its class has no other row.
    """

    above: Index
    tied: Index
    same: Index

    def hits(self, k: int) -> Floats:
        """The chance of a row of the same class among the nearest k, all orders of tied rows being equally likely.

        1 − C(tied, m) / C(tied + same, m) with m = k − above: 0 or 1 wherever nothing is tied.
        """
        found = np.asarray((self.above < k) & (self.same > 0), dtype=np.float64)
        for i in np.flatnonzero((found > 0) & (self.tied > 0)):
            places, wrong, right = k - self.above[i], self.tied[i], self.same[i]
            taken = np.arange(min(places, wrong + 1))
            found[i] = 1.0 - float(np.prod((wrong - taken) / (wrong + right - taken)))
        return found


def best_of_class(s: Sides, most: int) -> Best:
    """Exact ranks of the nearest row of the same class, counted up to `most`."""
    value, same = _nearest_of_class(s)
    count = _Count(s, value, most)
    for pairs in _in_threads(count.look, _tiles(s)):
        for found in pairs:
            count.add(*found)
    return Best(count.above, count.tied, same)


def _nearest_of_class(s: Sides) -> tuple[Floats, Index]:
    """The largest float64 similarity to a row of the same class, and how many rows have it; +inf and 0 without any."""
    value, same = np.full(len(s.X), np.inf), np.zeros(len(s.X), dtype=np.int64)
    for i, nearest, count in _in_threads(lambda pair: _nearest_among(s, *pair), _classes(s)):
        value[i], same[i] = nearest, count
    return value, same


def _nearest_among(s: Sides, i: Index, j: Index) -> tuple[Index, Floats, Index]:
    """Of the queries i and the rows j of one class: i again, the largest similarity, how many rows have it."""
    G = s.X[i] @ s.Y[j].T
    if s.within:
        G[i[:, None] == j[None, :]] = -np.inf
    low = G.max(axis=1, keepdims=True) - np.float32(2 * s.rounding)
    row, column = np.nonzero(low <= G)
    exact = s.exact(i[row], j[column])
    value = np.maximum.reduceat(exact, np.searchsorted(row, np.arange(len(i))))
    return i, value, np.bincount(row, exact == value[row], len(i)).astype(np.int64)


def _classes(s: Sides) -> Iterator[tuple[Index, Index]]:
    """Queries of a class, of a large one some at a time, and its rows in the gallery, where there is one to find."""
    relevant = s.relevant
    left, right = (np.argsort(codes, kind="stable") for codes in (s.x, s.y))
    left = left[relevant[left] > 0]
    classes = np.unique(s.x[left])
    ends = np.concatenate([classes, classes + 1]).reshape(2, -1).T
    queries, gallery = np.searchsorted(s.x[left], ends), np.searchsorted(s.y[right], ends)
    for (i, i_end), (j, j_end) in zip(queries.tolist(), gallery.tolist(), strict=True):
        for part in np.array_split(left[i:i_end], -(-(i_end - i) * (j_end - j) // PANEL)):
            yield part, right[j:j_end]


class _Count:
    """How many rows of other classes beat, or equal, a similarity that each query has; queries with enough are done."""

    def __init__(self, s: Sides, value: Floats, most: int) -> None:
        self.s, self.value, self.most = s, value, most
        self.above, self.tied = np.zeros(len(value), dtype=np.int64), np.zeros(len(value), dtype=np.int64)
        self.low = (value - s.rounding).astype(np.float32)

    def look(self, tile: tuple[slice, slice]) -> list[tuple[Index, Index, Rows]]:
        """Query, row and similarity of the pairs of a tile that may count, of one collection both ways round."""
        rows, columns = tile
        G = self.s.X[rows] @ self.s.Y[columns].T
        found = [_where(self.low[rows, None] <= G, G, rows, columns)]
        if self.s.within and rows != columns:
            j, i, g = _where(self.low[None, columns] <= G, G, rows, columns)
            found.append((i, j, g))
        return found

    def add(self, i: Index, j: Index, g: Rows) -> None:
        """Count pairs with a similarity of at least `low`: surely above, or to be decided in float64."""
        other = self.s.x[i] != self.s.y[j]
        i, j, g = i[other], j[other], g[other]
        sure = g > self.value[i] + self.s.rounding
        self._add(self.above, i[sure])
        open_ = ~sure & (self.above[i] < self.most)
        i, j = i[open_], j[open_]
        exact = self.s.exact(i, j)
        self._add(self.above, i[exact > self.value[i]])
        self._add(self.tied, i[exact == self.value[i]])

    def _add(self, counts: Index, i: Index) -> None:
        if len(i):
            counts += np.bincount(i, minlength=len(counts))
            done = i[self.above[i] >= self.most]
            self.above[done], self.low[done] = self.most, np.inf


def _where(seen: NDArray[np.bool_], G: Rows, rows: slice, columns: slice) -> tuple[Index, Index, Rows]:
    """Row, column and similarity of the marked places of a tile."""
    at = np.flatnonzero(seen)
    i, j = np.divmod(at, G.shape[1])
    return i + rows.start, j + columns.start, G.reshape(-1)[at]


def _tiles(s: Sides) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of each tile; of one collection only those on and above the diagonal."""
    for i in range(0, len(s.X), TILE):
        for j in range(i if s.within else 0, len(s.Y), TILE):
            yield slice(i, min(i + TILE, len(s.X))), slice(j, min(j + TILE, len(s.Y)))


def _in_threads(function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
    """function(item) of each, in order, in as many threads as BLAS has, each of which then has a BLAS of one thread.

    Where others use the cores, too, threads inside of small products wait for each other most of the time.
    """
    threads = _blas_threads()
    if threads == 1:
        yield from map(function, items)
        return
    waiting: deque[Future[R]] = deque()
    with one_thread(), ThreadPoolExecutor(threads, "likewise-ranks") as pool:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def one_thread() -> AbstractContextManager[Any]:
    """A BLAS of one thread."""
    from threadpoolctl import threadpool_limits

    return threadpool_limits(limits=1, user_api="blas")  # type: ignore[no-any-return]


def _blas_threads() -> int:
    from threadpoolctl import threadpool_info

    return max((int(lib["num_threads"]) for lib in threadpool_info() if lib["user_api"] == "blas"), default=1)


# ------------------------------------------------------------------------------------------------- the nearest R rows


def average_precision_at_r(s: Sides) -> Floats:
    """(1/R) Σ_{m ≤ R} P(m) rel(m) of each query, R the rows of its class to be found; 0 where there is none.

    P(m) is the share of its class among the nearest m, rel(m) whether the m-th belongs to it. Of tied rows, the
    expectation over their orders.
    """
    relevant, found = s.relevant, np.zeros(len(s.X))
    order = np.argsort(relevant, kind="stable")
    order = order[relevant[order] > 0]
    parts = [p for p in np.array_split(order, max(1, -(-len(order) * len(s.Y) // PANEL))) if len(p)]

    def of(part: Index) -> Floats:
        return _expected_precision(*_ordered(s, part, relevant[part]), relevant[part])

    for part, scores in zip(parts, _in_threads(of, parts), strict=True):
        found[part] = scores
    return found


def _ordered(s: Sides, part: Index, R: Index) -> tuple[Index, Floats, NDArray[np.bool_]]:
    """The rows that may be among the nearest R of each query: query (by place in `part`), similarity, same class.

    Sorted by query, nearest first. Similarities that could be confused across classes are float64.
    """
    S = s.X[part] @ s.Y.T
    if s.within:
        S[np.arange(len(part)), part] = -np.inf
    low = _at_least(S, R) - np.float32(2 * s.rounding)
    row, column = np.divmod(np.flatnonzero(low[:, None] <= S), S.shape[1])
    value, same = S[row, column].astype(np.float64), s.x[part[row]] == s.y[column]
    order = np.lexsort((-value, row))
    row, column, value, same = row[order], column[order], value[order], same[order]
    doubtful = _mixed(row, value, same, 2 * s.rounding)
    value[doubtful] = s.exact(part[row[doubtful]], column[doubtful])
    order = np.lexsort((-value, row))
    return row[order], value[order], same[order]


def _at_least(S: Rows, R: Index) -> Rows:
    """A lower bound on the R-th largest of each row, near it: the R-th largest of the maxima of 8 R or more blocks."""
    n = S.shape[1]
    width = max(1, n // (8 * int(R.max())))
    blocks = n // width
    tops = S[:, : blocks * width].reshape(len(S), blocks, width).max(axis=2)
    places = blocks - R
    tops.partition(np.unique(places), axis=1)
    return np.asarray(tops[np.arange(len(S)), places], dtype=np.float32)


def _mixed(row: Index, value: Floats, same: NDArray[np.bool_], gap: float) -> NDArray[np.bool_]:
    """Which sorted values stand in a run without a gap that holds both rows of the class and others."""
    run = np.cumsum((np.diff(row, prepend=-1) != 0) | (-np.diff(value, prepend=np.inf) > gap))
    size, own = np.bincount(run), np.bincount(run, same)
    mixed: NDArray[np.bool_] = ((own > 0) & (own < size))[run]
    return mixed


def _expected_precision(row: Index, value: Floats, same: NDArray[np.bool_], R: Index) -> Floats:
    """Σ_{m ≤ R} E[P(m) rel(m)] / R of each query, over the orders of tied rows.

    Of t tied rows r belong to the class, after a others of which b do: at place a + m, relevant with chance r / t, the
    expected precision there is (b + 1 + (m − 1)(r − 1)/(t − 1)) / (a + m).
    """
    n = np.arange(len(row))
    first = np.searchsorted(row, row)
    new = (np.diff(row, prepend=-1) != 0) | (np.diff(value, prepend=np.inf) != 0)
    group, start = np.cumsum(new) - 1, np.flatnonzero(new)
    t, r = np.bincount(group)[group], np.bincount(group, same)[group]
    before: Index = np.cumsum(same) - same
    a, b = start[group] - first, before[start[group]] - before[first]
    m = n - start[group] + 1
    ahead = (m - 1) * np.maximum(r - 1, 0) / np.maximum(t - 1, 1)
    worth = np.where(a + m <= R[row], r / t * (b + 1 + ahead) / (a + m), 0.0)
    return np.asarray(np.bincount(row, worth, len(R)) / R)
