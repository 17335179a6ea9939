"""How ragged sets become panels of eight problems, and results come back: between transport and its kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg  # noqa: F401 - has a BLAS of its own, and one_blas_thread can hold only what is loaded
from joblib import effective_n_jobs
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from likewise.errors import InputError
from likewise.sets.transport import kernels
from likewise.types import Array

if TYPE_CHECKING:
    from likewise.sets.transport.solvers import AllPairs, Pack, Solutions

Index = NDArray[np.int64]
Policy = tuple[float, float, float, float, float, float]

WIDTH = 8
"""Problems a panel: the lanes of _simd."""
QUICK: Policy = (4.0, 60.0, 20.0, 4.0, 8.0, 0.1)
PATIENT: Policy = (20.0, 2000.0, 5.0, 2.0, 40.0, 1e-3)
"""(Sinkhorn steps first, steps at most, slack at the start in γ, factor between stages, steps a stage, its error).

All are floats: one machine type for every policy, so that the kernel is compiled once.
"""
LARGE = 65_536
"""Above this many entries of a plan a problem is solved by itself with BLAS, not eight to a panel."""
_ROOM = 4_000_000
"""Numbers of panel storage handed to one kernel call."""


def writable(a: NDArray[Any]) -> NDArray[Any]:
    """The array, or a copy where it is read-only (memory-mapped by joblib, say): kernels have one signature each."""
    return a if a.flags.writeable else a.copy()


def offsets(sizes: Index) -> Index:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def workers(n_jobs: int) -> int:
    """How many threads: n_jobs as scikit-learn means it, −1 being all cores."""
    if n_jobs == 0 or not isinstance(n_jobs, int | np.integer):
        raise InputError(f"n_jobs: expected a whole number other than 0 (−1 for all cores), got {n_jobs!r}")
    return 1 if n_jobs == 1 else int(effective_n_jobs(n_jobs))


def threads(jobs: Sequence[Callable[[], None]], n_jobs: int) -> None:
    """Run jobs, n_jobs at a time; the kernels hold no lock."""
    if n_jobs == 1 or len(jobs) == 1:
        for job in jobs:
            job()
        return
    with ThreadPoolExecutor(n_jobs) as pool:
        for done in [pool.submit(job) for job in jobs]:
            done.result()


def solve_pairs(
    X: Pack,
    Y: Pack,
    left: Index,
    right: Index,
    which: Index,
    solved: Solutions,
    gamma: float,
    policy: Policy,
    sharp: bool,
    warm: bool,
    n_jobs: int,
) -> None:
    """Pairs `which`, sorted by size and eight to a panel."""
    if len(which) == 0:
        return
    m, n = solved.sizes[which].T
    order = which[np.lexsort((n, m))]
    panels = np.concatenate([order, np.repeat(order[-1:], -len(order) % WIDTH)]).reshape(-1, WIDTH)
    lanes = np.arange(panels.size).reshape(-1, WIDTH) < len(order)
    load = np.cumsum(solved.sizes[panels].max(axis=1).prod(axis=1) * WIDTH)
    pieces = max(n_jobs if len(panels) >= 8 * n_jobs else 1, int(np.ceil(load[-1] / _ROOM)))
    cuts = np.unique(np.searchsorted(load, np.linspace(0, load[-1], pieces + 1)[1:-1]))
    packs = [writable(a) for a in (*X.arrays.values(), *Y.arrays.values())]

    def solve(panels: Index, real: NDArray[np.bool_]) -> None:
        """One kernel call: lay the pairs out, solve, and take the results back to `solved`."""
        pairs, keep = panels.ravel(), real.ravel()
        heights, widths = np.ascontiguousarray(solved.sizes[panels].max(axis=1).T)
        at, row_at, column_at = (offsets(s * WIDTH) for s in (heights * widths, heights, widths))
        G, f, g = np.empty(at[-1]), np.empty(row_at[-1]), np.zeros(column_at[-1])
        sides = [np.empty(len(x)) for x in (f, f, g, g)]  # squared norms and weights of rows, of columns
        layout = (at[:-1], heights, widths, row_at[:-1], column_at[:-1])
        kernels.gather_pairs(*packs, left[pairs], right[pairs], *layout, G, *sides)
        mine, other = np.ascontiguousarray(solved.sizes[pairs].T)
        if warm:
            kernels.spread_columns(column_at[:-1], solved.g_offsets[pairs], other, solved.g, g)
        values, residuals, steps = np.empty(len(pairs)), np.empty(len(pairs)), np.empty(len(panels), dtype=np.int64)
        kernels.solve_panels(
            G, 0, *layout[:3], int(heights.max()), int(widths.max()), *layout[3:], *sides,
            gamma, solved.tol, policy, sharp, warm, True, values, residuals, steps, f, g,
        )  # fmt: skip
        solved.value[pairs[keep]], solved.residual[pairs[keep]] = values[keep], residuals[keep]
        solved.iterations[pairs[keep]] += np.repeat(steps, WIDTH)[keep]
        f_at, g_at = np.where(keep, solved.f_offsets[pairs], -1), np.where(keep, solved.g_offsets[pairs], -1)
        F_at, F_out = np.full(len(pairs), -1), np.empty(0)
        if solved.plans is not None:
            F_at, F_out = np.where(keep, solved.plan_offsets[pairs], -1), solved.plans
        kernels.scatter_pairs(*layout, G, f, g, mine, other, F_at, f_at, g_at, F_out, solved.f, solved.g)

    threads([partial(solve, *job) for job in zip(np.split(panels, cuts), np.split(lanes, cuts), strict=True)], n_jobs)


def one_blas_thread() -> AbstractContextManager[Any]:
    """Keep BLAS to the caller's thread: n_jobs says how many threads there are."""
    return threadpool_limits(limits=1, user_api="blas")  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Rows:
    """Sets sorted by size, their points stacked: the rows of tiles. Weights and norms are repeated over the lanes."""

    order: Index
    offsets: Index
    points: Array
    weights: Array
    norms: Array

    @classmethod
    def of(cls, X: Pack, centre: Array) -> _Rows:
        order = np.argsort(X.sizes, kind="stable")
        starts, sizes = X.offsets[order], X.sizes[order]
        within = offsets(sizes)
        index = np.repeat(starts - within[:-1], sizes) + np.arange(within[-1])
        points = X.points[index] - centre
        norms = np.einsum("id,id->i", points, points)
        return cls(order, within, points, np.repeat(X.weights[index], WIDTH), np.repeat(norms, WIDTH))


@dataclass(frozen=True)
class _Columns:
    """Sets sorted by size in groups of eight; column (group, point, lane) is a point, or padding of weight 0."""

    order: Index
    widths: Index
    bases: Index
    points: Array
    weights: Array
    norms: Array

    @classmethod
    def of(cls, Y: Pack, centre: Array) -> _Columns:
        order = np.argsort(Y.sizes, kind="stable")
        full = np.concatenate([order, np.repeat(order[-1:], -len(order) % WIDTH)])
        sizes = Y.sizes[full]
        widths = sizes.reshape(-1, WIDTH).max(axis=1)
        bases = offsets(widths * WIDTH)
        member = np.repeat(np.arange(len(full)), sizes)
        j = np.arange(len(member)) - np.repeat(offsets(sizes)[:-1], sizes)
        slot = bases[member // WIDTH] + j * WIDTH + member % WIDTH
        points = np.zeros((bases[-1], Y.dim))
        weights, norms = np.zeros(bases[-1]), np.full(bases[-1], 1e30)
        source = Y.offsets[full][member] + j
        points[slot] = Y.points[source] - centre
        weights[slot] = Y.weights[source]
        norms[slot] = np.einsum("id,id->i", points[slot], points[slot])
        return cls(order, widths, bases, points, weights, norms)


_TILE_ROWS = 512
_TILE_COLUMNS = 1024


def _cuts(offsets: Index, most: int) -> list[int]:
    """Indices that cut stacked sets into runs of about `most` points, each at least one set."""
    cuts, last = [0], 0
    for k in range(1, len(offsets)):
        if offsets[k] - offsets[last] > most and k - 1 > last:
            last = k - 1
            cuts.append(last)
    return [*cuts, len(offsets) - 1]


def _tiles(rows: _Rows, columns: _Columns, symmetric: bool) -> Iterator[tuple[int, int, int, int]]:
    """(first set, last set, first group, last group) of each tile; with symmetry those on or above the diagonal."""
    for r0, r1 in pairwise(_cuts(rows.offsets, _TILE_ROWS)):
        for q0, q1 in pairwise(_cuts(columns.bases, _TILE_COLUMNS)):
            first = max(q0, r0 // WIDTH) if symmetric else q0
            if first < q1:
                yield r0, r1, first, q1


def solve_all(
    X: Pack, Y: Pack, symmetric: bool, gamma: float, tol: float, sharp: bool, large: int, n_jobs: int, out: AllPairs
) -> None:
    """Fill `out` tile by tile; pairs with more than `large` entries are left with an infinite residual."""
    centre = X.points.mean(axis=0)
    rows, columns = _Rows.of(X, centre), _Columns.of(Y, centre)

    def solve(r0: int, r1: int, q0: int, q1: int) -> None:
        """One tile: one BLAS product and one kernel call."""
        top, base = rows.offsets[r0], columns.bases[q0]
        left, right = slice(top, rows.offsets[r1]), slice(base, columns.bases[q1])
        sets, groups = (x.ravel() for x in np.meshgrid(np.arange(r0, r1), np.arange(q0, q1), indexing="ij"))
        heights, widths = np.diff(rows.offsets)[sets], columns.widths[groups]
        wanted = heights * widths <= large
        if symmetric:
            wanted &= groups >= sets // WIDTH
        if not wanted.any():
            return
        sets, groups, heights, widths = sets[wanted], groups[wanted], heights[wanted], widths[wanted]
        values, residuals = np.empty(len(sets) * WIDTH), np.empty(len(sets) * WIDTH)
        steps, nothing = np.empty(len(sets), dtype=np.int64), np.empty(0)
        G = rows.points[left] @ columns.points[right].T
        row_at, column_at = rows.offsets[sets] - top, columns.bases[groups] - base
        lanes = slice(top * WIDTH, left.stop * WIDTH)
        kernels.solve_panels(
            G.ravel(), G.shape[1], row_at * G.shape[1] + column_at,
            heights, widths, int(heights.max()), int(widths.max()), row_at * WIDTH, column_at,
            rows.norms[lanes], rows.weights[lanes], columns.norms[right], columns.weights[right],
            gamma, tol, QUICK, sharp, False, False, values, residuals, steps, nothing, nothing,
        )  # fmt: skip
        row, column = np.repeat(sets, WIDTH), (groups[:, None] * WIDTH + np.arange(WIDTH)).ravel()
        real = (column < len(columns.order)) & ((column >= row) | (not symmetric))
        i, j = rows.order[row[real]], columns.order[column[real]]
        place(out, i, j, values[real], residuals[real], np.repeat(steps, WIDTH)[real], symmetric)

    with one_blas_thread():
        threads([partial(solve, *tile) for tile in _tiles(rows, columns, symmetric)], n_jobs)


def place(out: AllPairs, i: Index, j: Index, values: Array, residuals: Array, steps: Index, symmetric: bool) -> None:
    """Write results at (i, j), and with symmetry at (j, i)."""
    width = out.value.shape[1]
    for at in (i * width + j, j * width + i) if symmetric else (i * width + j,):
        for target, source in ((out.value, values), (out.residual, residuals), (out.iterations, steps)):
            target.reshape(-1)[at] = source
