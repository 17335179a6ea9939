"""How well distances separate, rank and classify: CMC, PUR, ROC, equal error rate. Smaller is closer, always."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likewise.errors import InputError, ShapeError
from likewise.types import Array

Labels = Sequence[Any] | NDArray[Any]


@dataclass(frozen=True, eq=False)
class Roc:
    """Rates of accepting pairs with distance ≤ threshold: fpr of the different, tpr of the same, area `auc`.

    All three arrays ascend and have one entry a distinct distance, after (0, 0) at threshold −∞.
    """

    fpr: Array
    tpr: Array
    thresholds: Array
    auc: float

    def __repr__(self) -> str:
        return f"Roc(auc={self.auc:.3f}, {len(self.fpr)} thresholds)"


def match_density(D: ArrayLike, query_ids: Labels, gallery_ids: Labels) -> Array:
    """m(r), r = 1 … N: the share of queries whose first true match has rank r, for a gallery of N items.

    Ties are broken at random and the expectation is returned, so a constant D scores as chance does. Each query needs a
    true match.
    """
    matrix = _numbers(D, "D", 2)
    n, m = matrix.shape
    queries, gallery = _ids(query_ids, n, "query_ids"), _ids(gallery_ids, m, "gallery_ids")
    matches = queries[:, None] == gallery[None, :]
    lonely = np.flatnonzero(~matches.any(axis=1))
    if len(lonely):
        raise InputError(
            f"query {lonely[0]} (identity {queries[lonely[0]]}) has no true match in the gallery; "
            f"leave it out ({len(lonely)} such)"
        )
    density = np.zeros(m)
    for row, match in zip(matrix, matches, strict=True):
        best = row[match].min()
        better = int((row < best).sum())
        level = row == best
        first = _first_of_tied(int((level & match).sum()), int(level.sum()))
        density[better : better + len(first)] += first
    return density / len(matrix)


def cmc(D: ArrayLike, query_ids: Labels, gallery_ids: Labels) -> Array:
    """Cumulative match characteristic: the share of queries whose true match is among the first r, for r = 1 … N.

    Ties count by their expectation under a random order, so that a constant D scores as chance does.

    Parameters
    ----------
    D : array (queries, gallery)
        Distances; smaller is closer.
    query_ids, gallery_ids : sequences
        Who each query and each gallery item is.

    Returns
    -------
    ndarray (gallery,)
        Entry r − 1 is the share within the first r ranks.

    Raises
    ------
    InputError
        A query has no true match in the gallery, or shapes do not fit.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.sets.cmc([[0.1, 0.5], [0.2, 0.7]], ["ann", "bob"], ["ann", "bob"])
    array([0.5, 1. ])
    """
    density = match_density(D, query_ids, gallery_ids)
    return np.minimum(np.cumsum(density), 1.0)


def pur(D: ArrayLike, query_ids: Labels, gallery_ids: Labels) -> float:
    """Proportion of uncertainty removed: 1 when every match ranks first, 0 when ranks are uniform [MLML Eq. 17].

    PUR = (log N + Σ_r m(r) log m(r)) / log N, with m the match *density* at rank r. The paper's symbol reads as the
    cumulative curve, under which chance scores far below 0 (erratum 5).

    Parameters
    ----------
    D, query_ids, gallery_ids
        As in `cmc`.

    Returns
    -------
    float
        At most 1.

    Raises
    ------
    InputError
        As in `cmc`, or the gallery has fewer than two items.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.sets.pur([[0.1, 0.5], [0.7, 0.2]], ["ann", "bob"], ["ann", "bob"])
    1.0
    """
    return pur_of_density(match_density(D, query_ids, gallery_ids))


def pur_of_density(density: ArrayLike) -> float:
    """PUR of a match density m (N,) that sums to 1 [MLML Eq. 17]: for a density averaged over splits, say."""
    m = _numbers(density, "density", 1)
    if len(m) < 2:
        raise ShapeError(f"density: expected at least two ranks, (N,) with N ≥ 2, got shape {m.shape}")
    if (m < 0).any() or abs(float(m.sum()) - 1.0) > 1e-6:
        raise InputError(
            f"density: expected shares ≥ 0 that sum to 1, got a sum of {m.sum():.6g}; "
            "give the share of matches at each rank, not the cumulative curve"
        )
    positive = m[m > 0]
    return float(1.0 + (positive @ np.log(positive)) / np.log(len(m)))


def roc(distances: ArrayLike, same: ArrayLike) -> Roc:
    """Receiver operating characteristic of "same when distance ≤ threshold", over all thresholds.

    Parameters
    ----------
    distances : array (n,)
        Distances of pairs; smaller is closer.
    same : array (n,) of 0 and 1
        Whether each pair is of the same identity; both kinds must occur.

    Returns
    -------
    Roc
        .fpr, .tpr and .thresholds, ascending, and the area .auc.

    Raises
    ------
    InputError
        A kind of pair is missing, or shapes do not fit.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.sets.roc([0.1, 0.4, 0.3, 0.9], [1, 1, 0, 0])
    Roc(auc=0.750, 5 thresholds)
    """
    d, positive = _numbers(distances, "distances", 1), np.asarray(same)
    if positive.shape != d.shape:
        raise ShapeError(f"distances and same: expected one shape (n,), got {d.shape} and {positive.shape}")
    if not np.isin(positive, (0, 1)).all():
        raise InputError("same: expected True or False (1 or 0) for each pair")
    if positive.all() or not positive.any():
        raise InputError(f"same: expected both kinds of pairs, got {int(positive.sum())} same of {len(positive)}")
    order = np.argsort(d, kind="stable")
    d, positive = d[order], positive[order].astype(bool)
    last = np.append(d[1:] != d[:-1], True)  # pairs at one distance are accepted together
    tpr = np.append(0.0, np.cumsum(positive)[last] / positive.sum())
    fpr = np.append(0.0, np.cumsum(~positive)[last] / (~positive).sum())
    return Roc(fpr, tpr, np.append(-np.inf, d[last]), float(np.diff(fpr) @ (tpr[1:] + tpr[:-1]) / 2))


def eer(distances: ArrayLike, same: ArrayLike) -> float:
    """Equal error rate: where the share of different pairs accepted equals the share of same pairs refused.

    The crossing fpr = 1 − tpr, interpolated linearly between the two thresholds that enclose it.

    Parameters
    ----------
    distances, same
        As in `roc`.

    Returns
    -------
    float
        0 is perfect, 0.5 is chance.

    Raises
    ------
    InputError
        As in `roc`.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.sets.eer([0.1, 0.4, 0.3, 0.9], [1, 1, 0, 0])
    0.5
    """
    curve = roc(distances, same)
    gap = curve.fpr - (1.0 - curve.tpr)
    k = int(np.searchsorted(gap, 0.0))
    if gap[k] == 0.0:
        return float(curve.fpr[k])
    share = -gap[k - 1] / (gap[k] - gap[k - 1])
    return float(curve.fpr[k - 1] + share * (curve.fpr[k] - curve.fpr[k - 1]))


def _first_of_tied(matches: int, tied: int) -> Array:
    """P(the first match stands at place j) when `matches` of `tied` items are shuffled, j = 1 … tied − matches + 1.

    P(j) = (s / (t − j + 1)) Π_{i<j} (1 − s / (t − i + 1)): no match before, one now.
    """
    left = tied - np.arange(tied - matches + 1)
    hit = matches / left
    return np.asarray(hit * np.append(1.0, np.cumprod(1.0 - hit[:-1])))


def _ids(ids: Labels, n: int, where: str) -> NDArray[Any]:
    values = np.asarray(ids)
    if values.shape != (n,):
        raise ShapeError(f"{where}: expected ({n},), got shape {values.shape}")
    return values


def _numbers(values: ArrayLike, where: str, ndim: int) -> Array:
    """Numbers in an array of so many axes, none of them empty; infinity is a distance, too."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: expected numbers, {error}") from None
    if array.ndim != ndim or 0 in array.shape:
        raise ShapeError(f"{where}: expected {'(n,)' if ndim == 1 else '(queries, gallery)'}, got shape {array.shape}")
    if np.isnan(array).any():
        raise InputError(f"{where} contains NaN")
    return array
