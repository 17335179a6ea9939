"""Exact order from approximate search: distances anew in float64, ties by name, and no tie cut off unseen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from likewise.errors import FileError
from likewise.images.stores import Found, Rows
from likewise.types import Array

Fetch: TypeAlias = Callable[[Rows, int], list["Candidates"]]
"""(queries, how many) → for each query its nearest candidates."""

SLACK = 8
"""Candidates beyond k that are fetched at first."""

TOLERANCE = 1e-5
"""How far a squared distance between unit rows in float32 may be off; ten times what was seen at 1280 dimensions."""


class Candidates:
    """What an engine found for one query: names, rows (m, d), and the largest squared distance that it looked at.

    `last` is infinite where there is nothing further to be found.
    """

    def __init__(self, names: Sequence[str], rows: Rows, last: float) -> None:
        self.names, self.rows, self.last = names, rows, last


def distances(query: Rows, rows: Rows) -> Array:
    """‖x − y‖ of unit rows in float64: 0 (same) to 2 (opposite), the same number as `likewise.images.compare` gives."""
    x, y = unit(query[None])[0], unit(rows)
    return np.asarray(np.linalg.norm(y - x, axis=1))


def unit(rows: NDArray[np.floating]) -> Array:
    """Rows of length 1 in float64."""
    wide = np.asarray(rows, dtype=np.float64)
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    return np.asarray(wide / np.maximum(norms, np.finfo(np.float64).tiny))


def ranked(queries: Rows, k: int, fetch: Fetch) -> list[Found]:
    """The k nearest of each query by (distance, name); more is fetched where a tie could reach beyond what was seen."""
    found: list[Found] = [[] for _ in queries]
    open_ones, many = list(range(len(queries))), k + SLACK
    while open_ones:
        unsettled = []
        for i, candidates in zip(open_ones, fetch(queries[open_ones], many), strict=True):
            found[i], settled = _order(queries[i], candidates, k)
            if not settled:
                unsettled.append(i)
        open_ones, many = unsettled, 4 * many
    return found


def _order(query: Rows, candidates: Candidates, k: int) -> tuple[Found, bool]:
    """The first k of the candidates, and whether nothing unseen can be among them."""
    if not candidates.names:
        return [], True
    exact = distances(query, candidates.rows)
    if not np.isfinite(exact).all():
        raise FileError("the gallery holds rows that are not numbers: it is damaged; check() says where")
    order = sorted(range(len(exact)), key=lambda i: (exact[i], candidates.names[i]))[:k]
    found = [(candidates.names[i], float(exact[i])) for i in order]
    whole = candidates.last == np.inf or (len(found) == k and found[-1][1] ** 2 + TOLERANCE < candidates.last)
    return found, whole
