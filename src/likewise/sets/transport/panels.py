"""How ragged sets are laid out for the kernels, and results come back.

Small problems stand eight to a panel, one a lane; a problem above LARGE entries stands by itself, which is a panel of
one lane: `lanes` is 8 or 1 throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.linalg  # noqa: F401 - has a BLAS of its own, and one_blas_thread can hold only what is loaded
from joblib import effective_n_jobs
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from likewise import numeric
from likewise.errors import InputError
from likewise.sets.transport import kernels, large
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
ALONE: Policy = (6.0, 2000.0, 20.0, 4.0, 8.0, 0.1)
"""What a problem by itself is given first: its passes are cheap."""
LARGE = 800
"""Above this many entries of a plan a problem is solved by itself, not eight to a panel."""
SINGLE = 1e-6
"""From this tolerance on, kernel matrices of large problems are kept in float32, 6e-8 an entry."""
_ROOM = 4_000_000
"""Numbers of panel storage handed to one kernel call."""


def up_to(policy: Policy, max_iter: int) -> Policy:
    """The policy with another number of steps at most."""
    return (policy[0], float(max_iter), *policy[2:])


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


def kernel(lanes: int, m: int, n: int, tol: float) -> Callable[..., None]:
    """The kernel for panels of so many lanes and at most m × n points, with room for its matrix."""
    if lanes == WIDTH:
        return kernels.solve_panels  # type: ignore[no-any-return]
    size = -(-m // large.ROWS) * large.ROWS * -(-n // WIDTH) * WIDTH
    room = np.empty(size, np.float32 if tol >= SINGLE else np.float64)
    return partial(large.solve_large, room)


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
    lanes: int = WIDTH,
) -> None:
    """Pairs `which`, sorted by size and so many lanes to a panel."""
    if len(which) == 0:
        return
    m, n = solved.sizes[which].T
    order = which[np.lexsort((n, m))]
    panels = np.concatenate([order, np.repeat(order[-1:], -len(order) % lanes)]).reshape(-1, lanes)
    real_lanes = np.arange(panels.size).reshape(-1, lanes) < len(order)
    load = np.cumsum(solved.sizes[panels].max(axis=1).prod(axis=1) * lanes)
    pieces = max(n_jobs if len(panels) >= 8 * n_jobs else 1, int(np.ceil(load[-1] / _ROOM)))
    cuts = np.unique(np.searchsorted(load, np.linspace(0, load[-1], pieces + 1)[1:-1]))
    packs = [writable(a) for a in (*X.arrays.values(), *Y.arrays.values())]

    def solve(panels: Index, real: NDArray[np.bool_]) -> None:
        """One kernel call: lay the pairs out, solve, and take the results back to `solved`."""
        pairs, keep = panels.ravel(), real.ravel()
        heights, widths = np.ascontiguousarray(solved.sizes[panels].max(axis=1).T)
        at, row_at, column_at = (offsets(s * lanes) for s in (heights * widths, heights, widths))
        G, f, g = np.zeros(at[-1] + WIDTH), np.empty(row_at[-1]), np.zeros(column_at[-1])
        sides = [np.zeros(len(x)) for x in (f, f, g, g)]  # squared norms and weights of rows, of columns
        layout = (at[:-1], heights, widths, row_at[:-1], column_at[:-1])
        if lanes == 1:
            for k in range(len(pairs)):  # a product each, ten times the speed of sums of differences
                P, Q = X.rows(left[pairs[k]]), Y.rows(right[pairs[k]])
                G[at[k] : at[k + 1]] = -0.5 * numeric.squared_distances(X.points[P], Y.points[Q]).ravel()
                sides[1][row_at[k] : row_at[k + 1]] = X.weights[P]
                sides[3][column_at[k] : column_at[k + 1]] = Y.weights[Q]
        else:
            kernels.gather_pairs(*packs, left[pairs], right[pairs], *layout, G, *sides)
        mine, other = np.ascontiguousarray(solved.sizes[pairs].T)
        if warm:
            kernels.spread_columns(lanes, column_at[:-1], solved.g_offsets[pairs], other, solved.g, g)
        values, residuals, steps = np.empty(len(pairs)), np.empty(len(pairs)), np.empty(len(panels), dtype=np.int64)
        most = int(heights.max()), int(widths.max())
        kernel(lanes, *most, solved.tol)(
            G, np.empty(0, np.float32), False, 0, *layout[:3], *most, *layout[3:], *sides,
            gamma, solved.tol, policy, sharp, warm, True, values, residuals, steps, f, g,
        )  # fmt: skip
        solved.value[pairs[keep]], solved.residual[pairs[keep]] = values[keep], residuals[keep]
        solved.iterations[pairs[keep]] += np.repeat(steps, lanes)[keep]
        f_at, g_at = np.where(keep, solved.f_offsets[pairs], -1), np.where(keep, solved.g_offsets[pairs], -1)
        F_at, F_out = np.full(len(pairs), -1), np.empty(0)
        if solved.plans is not None:
            F_at, F_out = np.where(keep, solved.plan_offsets[pairs], -1), solved.plans
        kernels.scatter_pairs(lanes, *layout, G, f, g, mine, other, F_at, f_at, g_at, F_out, solved.f, solved.g)

    jobs = [partial(solve, *piece) for piece in zip(np.split(panels, cuts), np.split(real_lanes, cuts), strict=True)]
    with one_blas_thread() if lanes == 1 else nullcontext():
        threads(jobs, n_jobs)


def one_blas_thread() -> AbstractContextManager[Any]:
    """Keep BLAS to the caller's thread: n_jobs says how many threads there are."""
    return threadpool_limits(limits=1, user_api="blas")  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Rows:
    """Sets sorted by size, their points stacked: the rows of tiles. Weights and norms are repeated over the lanes."""

    order: Index
    offsets: Index
    points: NDArray[Any]
    weights: Array
    norms: Array

    @classmethod
    def of(cls, X: Pack, lanes: int, dtype: Any) -> _Rows:
        order = np.argsort(X.sizes, kind="stable")
        starts, sizes = X.offsets[order], X.sizes[order]
        within = offsets(sizes)
        index = np.repeat(starts - within[:-1], sizes) + np.arange(within[-1])
        norms, weights = (np.repeat(x[index], lanes) for x in (_norms(X.points), X.weights))
        return cls(order, within, X.points.astype(dtype, copy=False)[index], weights, norms)


@dataclass(frozen=True)
class _Columns:
    """Sets sorted by size in groups of `lanes`; column (group, point, lane) is a point, or padding of weight 0.

    `slots` are the columns of the points in the order of _Rows.
    """

    order: Index
    widths: Index
    bases: Index
    slots: Index
    points: NDArray[Any]
    weights: Array
    norms: Array

    @classmethod
    def of(cls, Y: Pack, lanes: int, dtype: Any) -> _Columns:
        order = np.argsort(Y.sizes, kind="stable")
        full = np.concatenate([order, np.repeat(order[-1:], -len(order) % lanes)])
        sizes = Y.sizes[full]
        widths = sizes.reshape(-1, lanes).max(axis=1)
        bases = offsets(widths * lanes)
        member = np.repeat(np.arange(len(full)), sizes)
        j = np.arange(len(member)) - np.repeat(offsets(sizes)[:-1], sizes)
        slot = bases[member // lanes] + j * lanes + member % lanes
        points = np.zeros((bases[-1], Y.dim), dtype)
        weights, norms = np.zeros(bases[-1]), np.full(bases[-1], kernels.FAR)
        source = Y.offsets[full][member] + j
        points[slot], weights[slot], norms[slot] = Y.points[source], Y.weights[source], _norms(Y.points)[source]
        return cls(order, widths, bases, slot, points, weights, norms)


def _norms(points: Array) -> Array:
    return np.asarray(np.einsum("id,id->i", points, points))


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


def _tiles(rows: _Rows, columns: _Columns, symmetric: bool, lanes: int) -> Iterator[tuple[int, int, int, int]]:
    """(first set, last set, first group, last group) of each tile; with symmetry those on or above the diagonal."""
    for r0, r1 in pairwise(_cuts(rows.offsets, _TILE_ROWS)):
        for q0, q1 in pairwise(_cuts(columns.bases, _TILE_COLUMNS)):
            first = max(q0, r0 // lanes) if symmetric else q0
            if first < q1:
                yield r0, r1, first, q1


def product_type(X: Pack, Y: Pack, gamma: float, tol: float) -> Any:
    """float32 for inner products whose rounding, 2⁻²⁴ of the largest squared norm, is within tol · γ; else float64.

    The exponents (f + g − C)/γ are then right to about the tolerance. Measured root mean square: 0.2–0.6 of that figure
    (clouds, low rank, half of the coordinates 0), 5 of it for two tight clusters, from 8 to 2048 dimensions.
    """
    if X.dim < 16 or tol < SINGLE:  # in few dimensions the products are no cost
        return np.float64
    largest = max(float(_norms(Z.points).max()) for Z in ((X,) if X is Y else (X, Y)))
    return np.float32 if largest * 2.0**-24 <= tol * gamma else np.float64


def solve_all(
    X: Pack, Y: Pack, symmetric: bool, gamma: float, tol: float, max_iter: int, sharp: bool, n_jobs: int, out: AllPairs
) -> None:
    """Fill `out` tile by tile: small problems eight to a panel, then those above LARGE one by one."""
    centre = X.points.mean(axis=0)
    X = replace(X, points=X.points - centre)
    Y = X if symmetric else replace(Y, points=Y.points - centre)
    dtype = product_type(X, Y, gamma, tol)
    with one_blas_thread():
        if X.sizes.min() * Y.sizes.min() <= LARGE:
            _solve_tiles(X, Y, symmetric, gamma, tol, QUICK, sharp, n_jobs, out, dtype, WIDTH)
        if X.sizes.max() * Y.sizes.max() > LARGE:
            _solve_tiles(X, Y, symmetric, gamma, tol, up_to(ALONE, max_iter), sharp, n_jobs, out, dtype, 1)


def _solve_tiles(
    X: Pack, Y: Pack, symmetric: bool, gamma: float, tol: float, policy: Policy, sharp: bool, n_jobs: int,
    out: AllPairs, dtype: Any, lanes: int,
) -> None:  # fmt: skip
    """The problems for panels of so many lanes."""
    rows = _Rows.of(X, lanes, dtype)
    if symmetric and lanes == 1:
        slots = np.arange(len(rows.points))
        columns = _Columns(
            rows.order, np.diff(rows.offsets), rows.offsets, slots, rows.points, rows.weights, rows.norms
        )
    else:
        columns = _Columns.of(Y, lanes, dtype)

    def solve(r0: int, r1: int, q0: int, q1: int) -> None:
        """One tile: one BLAS product and one kernel call."""
        top, base = rows.offsets[r0], columns.bases[q0]
        left, right = slice(top, rows.offsets[r1]), slice(base, columns.bases[q1])
        sets, groups = (x.ravel() for x in np.meshgrid(np.arange(r0, r1), np.arange(q0, q1), indexing="ij"))
        heights, widths = np.diff(rows.offsets)[sets], columns.widths[groups]
        wanted = (heights * widths <= LARGE) == (lanes == WIDTH)
        if symmetric:
            wanted &= groups >= sets // lanes
        if not wanted.any():
            return
        sets, groups, heights, widths = sets[wanted], groups[wanted], heights[wanted], widths[wanted]
        values, residuals = np.empty(len(sets) * lanes), np.empty(len(sets) * lanes)
        steps, nothing = np.empty(len(sets), dtype=np.int64), np.empty(0)
        stride = columns.bases[q1] - base
        G = np.empty((left.stop - top) * stride + WIDTH, dtype)
        G[-WIDTH:] = 0
        product, single = G[:-WIDTH].reshape(-1, stride), dtype == np.float32
        np.matmul(rows.points[left], columns.points[right].T, out=product)
        if symmetric and single:
            # A point against itself costs 0: where all of a small value is there, rounding would show.
            own = columns.slots[left] - base
            at = np.flatnonzero((own >= 0) & (own < stride))
            product[at, own[at]] = rows.norms[left.start * lanes : left.stop * lanes : lanes][at]
        products = (nothing, G, True) if single else (G, np.empty(0, np.float32), False)
        row_at, column_at = rows.offsets[sets] - top, columns.bases[groups] - base
        beside = slice(top * lanes, left.stop * lanes)
        most = int(heights.max()), int(widths.max())
        kernel(lanes, *most, tol)(
            *products, stride, row_at * stride + column_at, heights, widths, *most, row_at * lanes, column_at,
            rows.norms[beside], rows.weights[beside], columns.norms[right], columns.weights[right],
            gamma, tol, policy, sharp, False, False, values, residuals, steps, nothing, nothing,
        )  # fmt: skip
        row, column = np.repeat(sets, lanes), (groups[:, None] * lanes + np.arange(lanes)).ravel()
        real = (column < len(columns.order)) & ((column >= row) | (not symmetric))
        i, j = rows.order[row[real]], columns.order[column[real]]
        place(out, i, j, values[real], residuals[real], np.repeat(steps, lanes)[real], symmetric)

    threads([partial(solve, *tile) for tile in _tiles(rows, columns, symmetric, lanes)], n_jobs)


def place(out: AllPairs, i: Index, j: Index, values: Array, residuals: Array, steps: Index, symmetric: bool) -> None:
    """Write results at (i, j), and with symmetry at (j, i)."""
    width = out.value.shape[1]
    for at in (i * width + j, j * width + i) if symmetric else (i * width + j,):
        for target, source in ((out.value, values), (out.residual, residuals), (out.iterations, steps)):
            target.reshape(-1)[at] = source
