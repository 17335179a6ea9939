"""The measures of an embedding of labelled pictures: what a search finds, how classes cluster, how directions are used.

Rows are brought to length 1 first (an `Embedder` gives such rows), so nearest by cosine is nearest by distance. All of
them look a row up among all others, never among itself, by its place: a copy of a picture is another picture. Tied
similarities score as chance, the expectation over all orders of the tied rows, so the order of rows changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from likewise.errors import InputError, ShapeError
from likewise.images import ranks
from likewise.images.ranks import Floats, Index

KS = (1, 2, 4, 8)
"""The k of R@k in most papers; SOP has 1, 10, 100, 1000."""
ITERATIONS = 20
"""Rounds of k-means, as in the authors' evaluations."""
ROWS = 4096

Lone: TypeAlias = Literal["miss", "skip"]


# ------------------------------------------------------------------------------------------------------ what is found


def recall_at_k(
    embeddings: ArrayLike,
    labels: ArrayLike,
    ks: Iterable[int] = KS,
    *,
    gallery: ArrayLike | None = None,
    gallery_labels: ArrayLike | None = None,
    lone: Lone = "miss",
) -> dict[int, float]:
    """R@k, the share of rows with a row of the same class among their k nearest others, for each k [DiVA Tab. 1].

    With `gallery` and `gallery_labels` each row is looked up there instead. A row whose class has no other row cannot
    be found: it counts as a miss, as in the papers, or with lone="skip" not at all.
    """
    found = hits_at_k(embeddings, labels, ks, gallery=gallery, gallery_labels=gallery_labels)
    return {k: mean_of(hits, lone) for k, hits in found.items()}


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
    wanted = checked(ks)
    sides = ranks.sides(embeddings, labels, gallery, gallery_labels)
    best = ranks.best_of_class(sides, max(wanted))
    return {k: np.where(best.same > 0, best.hits(k), np.nan) for k in wanted}


def map_at_r(
    embeddings: ArrayLike,
    labels: ArrayLike,
    *,
    gallery: ArrayLike | None = None,
    gallery_labels: ArrayLike | None = None,
    lone: Lone = "miss",
) -> float:
    """mAP@R: the mean over rows of (1/R) Σ_{m ≤ R} P(m) rel(m), R the number of other rows of the row's class.

    P(m) is the share of its class among the nearest m, rel(m) is 1 where the m-th belongs to it, else 0 (Musgrave et
    al., A Metric Learning Reality Check). A row with R = 0 counts as 0, or with lone="skip" not at all.
    """
    sides = ranks.sides(embeddings, labels, gallery, gallery_labels)
    return mean_of(np.where(sides.relevant > 0, ranks.average_precision_at_r(sides), np.nan), lone)


def checked(ks: Iterable[int]) -> tuple[int, ...]:
    """The k of R@k, each once, ascending."""
    try:
        wanted = tuple(dict.fromkeys(ks))
    except TypeError:
        raise InputError(f"ks: expected whole numbers ≥ 1, such as (1, 2, 4, 8), got {ks!r}") from None
    wrong = [k for k in wanted if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1]
    if wrong or not wanted:
        raise InputError(
            f"ks: expected whole numbers ≥ 1, got {wrong[0]!r}" if wrong else "ks: expected some, got none"
        )
    return tuple(sorted(int(k) for k in wanted))


def mean_of(scores: Floats, lone: Lone) -> float:
    """The mean over rows; NaN marks those whose class has no other row."""
    if lone not in ("miss", "skip"):
        raise InputError(f'lone: expected "miss" or "skip", got {lone!r}')
    if np.isnan(scores).all():
        raise InputError("labels: no row has another one of its class, so nothing can be found; give two a class")
    return float(np.nanmean(scores) if lone == "skip" else np.nan_to_num(scores).mean())


# ---------------------------------------------------------------------------------------------------------- clustering


def clusters(embeddings: ArrayLike, k: int, *, seed: int = 0) -> Index:
    """The cluster (n,) of each row, 0 … k − 1, by k-means on the unit rows: FAISS, all rows, 20 rounds, one start.

    The start is k rows drawn by `seed`, as in the papers; compare figures over several seeds.
    """
    import faiss

    X = ranks.unit(embeddings)
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= len(X):
        raise InputError(f"k: expected a whole number from 1 to {len(X)}, the number of rows, got {k!r}")
    # FAISS would else draw 256 rows a cluster, and warn where there are fewer than 39
    every = {"min_points_per_centroid": 1, "max_points_per_centroid": len(X)}
    means = faiss.Kmeans(X.shape[1], int(k), niter=ITERATIONS, seed=int(seed), **every)
    means.train(X)
    found: Index = means.index.search(X, 1)[1][:, 0].astype(np.int64)
    return found


def nmi(embeddings: ArrayLike, labels: ArrayLike, *, seed: int = 0, found: ArrayLike | None = None) -> float:
    """Normalised mutual information 2 I(A; B) / (H(A) + H(B)) of classes and clusters, as many clusters as classes.

    The clusters are those of `clusters`, or `found` where they are known already.
    """
    from sklearn.metrics import normalized_mutual_info_score

    y, A = _clustered(embeddings, labels, seed, found)
    return float(normalized_mutual_info_score(y, A))


def f1(embeddings: ArrayLike, labels: ArrayLike, *, seed: int = 0, found: ArrayLike | None = None) -> float:
    """F1 = 2 P R / (P + R) over pairs of rows: P of the pairs in one cluster, how many are of one class, R the reverse.

    Clusters as for `nmi`; 0 where no pair is of one class and in one cluster.
    """
    from sklearn.metrics.cluster import pair_confusion_matrix

    y, A = _clustered(embeddings, labels, seed, found)
    (_, wrong), (missed, right) = pair_confusion_matrix(y, A).tolist()
    return 2 * right / (2 * right + wrong + missed) if right else 0.0


def _clustered(embeddings: ArrayLike, labels: ArrayLike, seed: int, found: ArrayLike | None) -> tuple[Index, Index]:
    names = ranks.names_of(labels, "labels")
    rows = len(np.asarray(embeddings)) if found is None else len(np.asarray(found))
    if len(names) != rows:
        raise ShapeError(f"labels: expected {rows}, one a row, got {len(names)}")
    classes, y = np.unique(names, return_inverse=True)
    A = clusters(embeddings, len(classes), seed=seed) if found is None else np.asarray(found)
    return y.astype(np.int64), A.astype(np.int64)


# ------------------------------------------------------------------------------------------------------------ spectrum


def spectrum(embeddings: ArrayLike) -> Floats:
    """The min(n, d) singular values of the unit rows, not centred, over their sum, descending [DiVA Fig. 5]."""
    X = ranks.unit(embeddings)
    R = np.empty((0, X.shape[1]))
    with ranks.one_thread():
        for s in range(0, len(X), ROWS):
            R = np.asarray(np.linalg.qr(np.vstack([R, X[s : s + ROWS].astype(np.float64)]), mode="r"))
        values = np.linalg.svd(R, compute_uv=False)
    return np.asarray(values / values.sum())


def spectral_decay(embeddings: ArrayLike) -> float:
    """How unevenly directions are used: KL(uniform ‖ s) = −log k − (1/k) Σ log s_i of `spectrum` [DiVA Fig. 5].

    0 where all are used alike, larger the fewer carry the embedding. A direction that no row has (below the resolution
    of float32) makes it infinite. With fewer rows than dimensions there are only as many directions as rows.
    """
    return decay_of(spectrum(embeddings))


def decay_of(values: Floats) -> float:
    """The spectral decay of a spectrum that is known already."""
    k = len(values)
    if values[-1] <= values[0] * np.finfo(np.float32).eps:
        return float("inf")
    return float(-np.log(k) - np.log(values).mean())
