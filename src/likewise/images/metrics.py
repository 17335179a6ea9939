"""The measures of an embedding of labelled images: what a search finds, how classes cluster, how directions are used.

Rows are brought to length 1 first (an `Embedder` gives such rows), so nearest by cosine is nearest by distance. All of
them look a row up among all others, never among itself, by its place: a copy of an image is another image.

Ranks are exact. Tied similarities score as chance, the expectation over all orders of the tied rows, so the order of
the rows changes nothing. Similarities are taken twice: by a float32 product of matrices, whose rounding is bounded, and
in float64, pair by pair, for the few that this bound cannot order. A pair's float64 value does not depend on where its
rows stand, so equal rows tie exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import faiss
import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.metrics import normalized_mutual_info_score
from sklearn.metrics.cluster import pair_confusion_matrix
from threadpoolctl import threadpool_info, threadpool_limits

from likewise.errors import InputError, ShapeError

Rows = NDArray[np.float32]
Index = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

KS = (1, 2, 4, 8)
"""The k of R@k in most papers; SOP has 1, 10, 100, 1000."""
ITERATIONS = 20
"""Rounds of k-means, as in the authors' evaluations."""
BLOCK = 4096
"""Rows or pairs that are taken at a time in float64."""
PANEL = 1 << 22
"""Similarities of a panel, some rows against all: 16 MB in float32."""
SPREAD = 600
"""Collections up to this size are mapped by t-SNE, which shows groups; larger ones by their principal components."""
UNIT = float(np.finfo(np.float32).eps) / 2


# ------------------------------------------------------------------------------------------------------ what is found


def recall_at_k(
    embeddings: ArrayLike,
    labels: ArrayLike,
    ks: Iterable[int] = KS,
    *,
    gallery: ArrayLike | None = None,
    gallery_labels: ArrayLike | None = None,
) -> dict[int, float]:
    """R@k, the share of rows with a row of the same class among their k nearest others [DiVA Tab. 1].

    A row whose class has no other row cannot be found: it counts as a miss, as in the papers.

    Parameters
    ----------
    embeddings : array (n, d)
        One row an image, of any length but zero.
    labels : array (n,)
        The class of each row: whole numbers or strings.
    ks : iterable of int, default (1, 2, 4, 8)
        Each k.
    gallery, gallery_labels : arrays (m, d) and (m,), optional
        Look each row up here instead of among the other rows.

    Returns
    -------
    dict of int to float
        R@k by k.

    Raises
    ------
    InputError, ShapeError
        If rows have no direction, shapes do not fit, or no row has another one of its class.

    Examples
    --------
    >>> import likewise as lw
    >>> rows = [[1, 0], [1, 0.1], [0, 1], [0.1, 1]]
    >>> lw.images.recall_at_k(rows, ["a", "a", "b", "b"], ks=(1, 2))
    {1: 1.0, 2: 1.0}
    >>> lw.images.recall_at_k(rows, ["a", "b", "a", "b"], ks=(1, 2))
    {1: 0.0, 2: 0.5}
    """
    hits = hits_at_k(embeddings, labels, ks, gallery=gallery, gallery_labels=gallery_labels)
    return {k: mean_score(scores) for k, scores in hits.items()}


def hits_at_k(
    embeddings: ArrayLike,
    labels: ArrayLike,
    ks: Iterable[int] = KS,
    *,
    gallery: ArrayLike | None = None,
    gallery_labels: ArrayLike | None = None,
) -> dict[int, Floats]:
    """For each k the score of each row (n,): 1 with its class among the k nearest, else 0; between where ties decide.

    NaN marks a row whose class has no other row to be found.
    """
    wanted = check_ks(ks)
    sides = _sides(embeddings, labels, gallery, gallery_labels)
    most = min(max(wanted), len(sides.Y) - sides.within)
    hits = {k: np.full(len(sides.X), np.nan) for k in wanted}

    def score(part: Index, ranked: Ranked) -> None:
        best = _best_of_class(ranked, len(part))
        for k in wanted:
            hits[k][part] = _chance(best, k)

    _rank(sides, np.full(len(sides.X), most), score)
    return hits


def map_at_r(
    embeddings: ArrayLike,
    labels: ArrayLike,
    *,
    gallery: ArrayLike | None = None,
    gallery_labels: ArrayLike | None = None,
) -> float:
    """mAP@R: the mean over rows of (1/R) Σ_{m ≤ R} P(m) rel(m), R the number of other rows of the row's class.

    P(m) is the share of its class among the nearest m, rel(m) is 1 where the m-th belongs to it, else 0 (Musgrave et
    al., A Metric Learning Reality Check). A row with R = 0 counts as 0.

    Parameters
    ----------
    embeddings, labels, gallery, gallery_labels
        As for `recall_at_k`.

    Returns
    -------
    float
        Between 0 and 1.

    Raises
    ------
    InputError, ShapeError
        As for `recall_at_k`.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.images.map_at_r([[1, 0], [1, 0.1], [0, 1], [0.1, 1]], [0, 0, 1, 1])
    1.0
    """
    sides = _sides(embeddings, labels, gallery, gallery_labels)
    scores = np.full(len(sides.X), np.nan)

    def score(part: Index, ranked: Ranked) -> None:
        scores[part] = _expected_precision(ranked, sides.relevant[part])

    _rank(sides, sides.relevant, score)
    return mean_score(scores)


def check_ks(ks: Iterable[int]) -> tuple[int, ...]:
    """The k of R@k, each once, ascending."""
    wanted = list(ks) if isinstance(ks, Iterable) else []
    if not wanted or any(isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1 for k in wanted):
        raise InputError(f"ks: expected whole numbers ≥ 1, such as (1, 2, 4, 8), got {wanted or ks!r}")
    return tuple(sorted({int(k) for k in wanted}))


def mean_score(scores: Floats) -> float:
    """The mean over rows; NaN marks those whose class has no other row, which count as 0."""
    if np.isnan(scores).all():
        raise InputError("labels: no row has another one of its class, so nothing can be found; give two a class")
    return float(np.nan_to_num(scores).mean())


# --------------------------------------------------------------------------------------------------------- exact ranks


@dataclass(frozen=True, eq=False)
class _Sides:
    """Unit rows with their classes as numbers: the queries X, and the gallery Y in which they are looked up.

    With `within`, both sides are one collection, and no row is looked up as its own neighbour. `relevant` is how many
    rows of its class each query can find.
    """

    X: Rows
    x: Index
    Y: Rows
    y: Index
    within: bool
    relevant: Index

    @property
    def rounding(self) -> float:
        """A bound on |float32 product − true product| of two unit rows: d u Σ|x_i y_i| ≤ d u, and a little more."""
        return 1.01 * (int(self.X.shape[1]) + 4) * UNIT

    def exact(self, i: Index, j: Index) -> Floats:
        """x_i · y_j in float64, each pair for itself."""
        values = np.empty(len(i))
        for s in range(0, len(i), BLOCK):
            part = slice(s, s + BLOCK)
            values[part] = (self.X[i[part]].astype(np.float64) * self.Y[j[part]]).sum(axis=1)
        return values


def _sides(
    embeddings: ArrayLike, labels: ArrayLike, gallery: ArrayLike | None, gallery_labels: ArrayLike | None
) -> _Sides:
    if (gallery is None) != (gallery_labels is None):
        raise InputError("gallery: expected together with gallery_labels, got one without the other")
    X, x = unit_rows(embeddings), _names(labels, "labels")
    within = gallery is None or gallery_labels is None
    Y, y = (X, x) if within else (unit_rows(gallery, "gallery"), _names(gallery_labels, "gallery_labels"))  # type: ignore[arg-type]
    for names, rows, where in ((x, X, "labels"), (y, Y, "gallery_labels")):
        if len(names) != len(rows):
            raise ShapeError(f"{where}: expected {len(rows)}, one a row, got {len(names)}")
    if within and len(X) < 2:
        raise ShapeError(f"embeddings: expected at least two rows, got {len(X)}")
    if Y.shape[1] != X.shape[1]:
        raise ShapeError(f"gallery: expected rows of {X.shape[1]} numbers as in embeddings, got {Y.shape[1]}")
    codes = np.unique(np.concatenate([x, y]), return_inverse=True)[1].reshape(-1).astype(np.int64)
    x, y = codes[: len(X)], codes[len(X) :]
    relevant = np.bincount(y, minlength=int(codes.max()) + 1)[x] - within
    return _Sides(X, x, Y, y, within, relevant.astype(np.int64))


def unit_rows(embeddings: ArrayLike, where: str = "embeddings") -> Rows:
    """The rows (n, d) as float32 of length 1; a row without direction is an error."""
    try:
        X = np.array(np.asarray(embeddings), dtype=np.float32, order="C")
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: expected rows (n, d) of numbers: {error}") from None
    if X.ndim != 2 or 0 in X.shape:
        raise ShapeError(f"{where}: expected rows (n, d), got shape {X.shape}")
    lengths = np.sqrt(np.einsum("id,id->i", X, X, dtype=np.float64))
    bad = np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))
    if len(bad):
        what = "is all zeros: it has no direction" if lengths[bad[0]] == 0 else "contains NaN or infinity"
        raise InputError(f"{where}: row {bad[0]} {what}")
    # in float64: the same row gives the same bits, whatever stands around it
    np.divide(X, lengths[:, None], out=X, casting="unsafe")
    return X


def _names(labels: ArrayLike, where: str) -> NDArray[np.generic]:
    names = np.asarray(labels)
    if names.ndim != 1 or names.dtype.kind not in "iubUS":
        raise InputError(f"{where}: expected whole numbers or strings (n,), got {names.dtype} of shape {names.shape}")
    return names


class Ranked(NamedTuple):
    """The rows that may be among the nearest of each query, sorted by query, nearest first.

    `query` is its place in the part that was asked for, `value` the similarity, `same` whether of the query's class.
    """

    query: Index
    value: Floats
    same: Flags


def _rank(s: _Sides, depth: Index, score: Callable[[Index, Ranked], None]) -> None:
    """Call score(queries, their nearest `depth` rows) part by part, for the queries that have something to find.

    In as many threads as BLAS has, each of which then has a BLAS of one thread: where others use the cores, too,
    threads inside of small products wait for each other most of the time. No two parts share a query.
    """
    order = np.argsort(depth, kind="stable")
    order = order[s.relevant[order] > 0]
    parts = [p for p in np.array_split(order, max(1, -(-len(order) * len(s.Y) // PANEL))) if len(p)]
    threads = max((int(lib["num_threads"]) for lib in threadpool_info() if lib["user_api"] == "blas"), default=1)
    with threadpool_limits(limits=1, user_api="blas"), ThreadPoolExecutor(threads, "likewise-ranks") as pool:
        list(pool.map(lambda part: score(part, _ranked(s, part, depth[part])), parts))


def _ranked(s: _Sides, part: Index, depth: Index) -> Ranked:
    S = s.X[part] @ s.Y.T
    if s.within:
        S[np.arange(len(part)), part] = -np.inf
    low = _lower_bound(S, depth) - np.float32(2 * s.rounding)
    row, column = np.divmod(np.flatnonzero(low[:, None] <= S), S.shape[1])
    value, same = S[row, column].astype(np.float64), s.x[part[row]] == s.y[column]
    order = np.lexsort((-value, row))
    row, column, value, same = row[order], column[order], value[order], same[order]
    # only where rows of the class and others stand closer than rounding can tell does their order matter
    run = np.cumsum((np.diff(row, prepend=-1) != 0) | (-np.diff(value, prepend=np.inf) > 2 * s.rounding))
    size, own = np.bincount(run), np.bincount(run, same)
    doubtful = ((own > 0) & (own < size))[run]
    value[doubtful] = s.exact(part[row[doubtful]], column[doubtful])
    order = np.lexsort((-value, row))
    return Ranked(row[order], value[order], same[order])


def _lower_bound(S: Rows, depth: Index) -> Rows:
    """A bound on the depth-th largest of each row, near it: that of the maxima of 8 · depth or more blocks."""
    n = S.shape[1]
    width = max(1, n // (8 * int(depth.max())))
    blocks = n // width
    tops = S[:, : blocks * width].reshape(len(S), blocks, width).max(axis=2)
    places = blocks - depth
    tops.partition(np.unique(places), axis=1)
    return np.asarray(tops[np.arange(len(S)), places], dtype=np.float32)


def _best_of_class(ranked: Ranked, count: int) -> tuple[Index, Index, Index]:
    """For each query: rows nearer than the best of its class, others as near as that one, and its class's as near."""
    query, value, same = ranked
    best = np.full(count, np.inf)
    first = np.flatnonzero(same)[np.unique(query[same], return_index=True)[1]]
    best[query[first]] = value[first]
    level = value == best[query]
    above, tied, own = (
        np.bincount(query[flags], minlength=count) for flags in (value > best[query], level & ~same, level & same)
    )
    return above, tied, own


def _chance(best: tuple[Index, Index, Index], k: int) -> Floats:
    """The chance of a row of the same class among the nearest k, all orders of tied rows being equally likely.

    1 − C(tied, m) / C(tied + own, m) with m = k − above: 0 or 1 wherever nothing is tied.
    """
    above, tied, own = best
    chance = np.asarray((above < k) & (own > 0), dtype=np.float64)
    for i in np.flatnonzero((chance > 0) & (tied > 0)):
        taken = np.arange(min(k - above[i], tied[i] + 1))
        chance[i] = 1.0 - float(np.prod((tied[i] - taken) / (tied[i] + own[i] - taken)))
    return chance


def _expected_precision(ranked: Ranked, R: Index) -> Floats:
    """Σ_{m ≤ R} E[P(m) rel(m)] / R of each query, over the orders of tied rows.

    Of t tied rows r belong to the class, after a others of which b do: at place a + m, relevant with chance r / t, the
    expected precision there is (b + 1 + (m − 1)(r − 1)/(t − 1)) / (a + m).
    """
    row, value, same = ranked
    first = np.searchsorted(row, row)
    new = (np.diff(row, prepend=-1) != 0) | (np.diff(value, prepend=np.inf) != 0)
    group, start = np.cumsum(new) - 1, np.flatnonzero(new)
    t, r = np.bincount(group)[group], np.bincount(group, same)[group]
    before: Index = np.cumsum(same) - same
    a, b = start[group] - first, before[start[group]] - before[first]
    m = np.arange(len(row)) - start[group] + 1
    ahead = (m - 1) * np.maximum(r - 1, 0) / np.maximum(t - 1, 1)
    worth = np.where(a + m <= R[row], r / t * (b + 1 + ahead) / (a + m), 0.0)
    return np.asarray(np.bincount(row, worth, len(R)) / R)


# ---------------------------------------------------------------------------------------------------------- clustering


def clusters(embeddings: ArrayLike, k: int, *, seed: int = 0) -> Index:
    """The cluster (n,) of each row, 0 … k − 1, by k-means on the unit rows: FAISS, all rows, 20 rounds, one start.

    The start is k rows drawn by `seed`, as in the papers; compare figures over several seeds.
    """
    X = unit_rows(embeddings)
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= len(X):
        raise InputError(f"k: expected a whole number from 1 to {len(X)}, the number of rows, got {k!r}")
    # FAISS would else draw 256 rows a cluster, and warn where there are fewer than 39
    every = {"min_points_per_centroid": 1, "max_points_per_centroid": len(X)}
    means = faiss.Kmeans(X.shape[1], int(k), niter=ITERATIONS, seed=int(seed), **every)
    means.train(X)
    assigned: Index = means.index.search(X, 1)[1][:, 0].astype(np.int64)
    return assigned


def nmi(embeddings: ArrayLike, labels: ArrayLike, *, seed: int = 0, clustering: ArrayLike | None = None) -> float:
    """Normalised mutual information 2 I(A; B) / (H(A) + H(B)) of classes and clusters, as many clusters as classes.

    Parameters
    ----------
    embeddings : array (n, d)
        One row an image.
    labels : array (n,)
        The class of each row.
    seed : int, default 0
        Of the rows with which k-means starts; compare figures over several seeds.
    clustering : array (n,), optional
        Clusters that are known already, instead of those of k-means.

    Returns
    -------
    float
        Between 0 and 1, which is clusters that are the classes.

    Raises
    ------
    InputError, ShapeError
        If rows have no direction or shapes do not fit.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.images.nmi([[1, 0], [1, 0.1], [0, 1], [0.1, 1]], [0, 0, 1, 1], clustering=[1, 1, 0, 0])
    1.0
    """
    return float(normalized_mutual_info_score(*_clustered(embeddings, labels, seed, clustering)))


def f1(embeddings: ArrayLike, labels: ArrayLike, *, seed: int = 0, clustering: ArrayLike | None = None) -> float:
    """F1 = 2 P R / (P + R) over pairs of rows: P of the pairs in one cluster, how many are of one class, R the reverse.

    Parameters
    ----------
    embeddings, labels, seed, clustering
        As for `nmi`.

    Returns
    -------
    float
        Between 0 and 1; 0 where no pair is of one class and in one cluster.

    Raises
    ------
    InputError, ShapeError
        As for `nmi`.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.images.f1([[1, 0], [1, 0.1], [0, 1], [0.1, 1]], [0, 0, 1, 1], clustering=[0, 1, 0, 1])
    0.0
    """
    (_, wrong), (missed, right) = pair_confusion_matrix(*_clustered(embeddings, labels, seed, clustering)).tolist()
    return 2 * right / (2 * right + wrong + missed) if right else 0.0


def _clustered(
    embeddings: ArrayLike, labels: ArrayLike, seed: int, clustering: ArrayLike | None
) -> tuple[Index, Index]:
    names = _names(labels, "labels")
    rows = len(np.asarray(embeddings if clustering is None else clustering))
    if len(names) != rows:
        raise ShapeError(f"labels: expected {rows}, one a row, got {len(names)}")
    classes, y = np.unique(names, return_inverse=True)
    assigned = clusters(embeddings, len(classes), seed=seed) if clustering is None else np.asarray(clustering)
    return y.astype(np.int64), assigned.astype(np.int64)


# ------------------------------------------------------------------------------------------------------------ spectrum


def spectrum(embeddings: ArrayLike) -> Floats:
    """The min(n, d) singular values of the unit rows, not centred, over their sum, descending [DiVA Fig. 5]."""
    values = np.linalg.svd(unit_rows(embeddings).astype(np.float64), compute_uv=False)
    return np.asarray(values / values.sum())


def spectral_decay(embeddings: ArrayLike) -> float:
    """How unevenly directions are used: KL(uniform ‖ s) = −log k − (1/k) Σ log s_i of the spectrum [DiVA Fig. 5].

    Parameters
    ----------
    embeddings : array (n, d)
        One row an image.

    Returns
    -------
    float
        0 where all directions are used alike, larger the fewer carry the embedding. A direction that no row has (below
        the resolution of float32) makes it infinite. With fewer rows than dimensions there are only as many directions
        as rows.

    Raises
    ------
    InputError, ShapeError
        If rows have no direction, or are not (n, d).

    Examples
    --------
    >>> import likewise as lw
    >>> round(lw.images.spectral_decay([[1, 0], [0, 1]]), 6) + 0.0
    0.0
    >>> lw.images.spectral_decay([[1, 0], [1, 0]])
    inf
    """
    values = spectrum(embeddings)
    if values[-1] <= values[0] * np.finfo(np.float32).eps:
        return float("inf")
    return float(-np.log(len(values)) - np.log(values).mean())


# ------------------------------------------------------------------------------------------------ in the plane


def lay_out(embeddings: Rows | Floats) -> Floats:
    """Places (n, 2) in [0, 1] such that similar images lie together; the same embeddings give the same places."""
    n = len(embeddings)
    if n < 3 or np.ptp(embeddings, axis=0).max() < 1e-9:  # too few, or all the same: in a row
        return np.column_stack([np.linspace(0.25, 0.75, n), np.full(n, 0.5)])
    components = PCA(min(50, *embeddings.shape), svd_solver="full").fit_transform(embeddings.astype(np.float64))
    flat = components[:, :2]
    if 8 <= n <= SPREAD:
        start = (1e-4 * flat / flat[:, 0].std()).astype(np.float32)  # as scikit-learn scales init="pca"
        perplexity = min(30.0, (n - 1) / 3)
        flat = TSNE(init=start, perplexity=perplexity, random_state=0).fit_transform(components)
    low, high = flat.min(0), flat.max(0)
    return np.asarray((flat - low) / np.where(high > low, high - low, 1.0))
