"""Who trains on what, and what is scored: kinship, image sets, re-identification, traffic, official splits.

A method has fit(X, y, levels=None) and predict(X), pairwise(X, Y) or pair_distance(pairs, levels=None); one whose
`learns_from_pairs` is true gets fit_pairs(pairs, same) where the protocol knows pairs. It is copied for each fold, so
nothing leaks from one to the next; projections are fitted on the training part alone. All seeded. Each protocol gives
its figures by name, one value a fold, and what can be drawn of them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from likewise.errors import InputError, ShapeError
from likewise.papers.mlml.layouts import Kinship, ReId, Split
from likewise.sets.data import SetCollection
from likewise.sets.metrics import eer, match_density, pur_of_density, roc
from likewise.sets.transport import Index
from likewise.types import Array, Signature

Method: TypeAlias = Any
Features: TypeAlias = "Sequence[Signature] | tuple[Array, ...]"
Figures: TypeAlias = dict[str, tuple[float, ...]]
RANKS, DRAWN = (1, 5, 10, 20), 50
"""The ranks of CMC that are reported, and how many are drawn, as far as the gallery goes."""
NEGATIVES = 5
"""Pairs of different people that a pair method gets for each pair of one."""
STEPS = np.linspace(0, 1, 101)
"""The false positive rates at which the curves of folds are averaged."""


class Curve(NamedTuple):
    """A mean over the folds, and the figure that sums it up."""

    label: str
    x: Array
    y: Array


class Scores(dict[str, tuple[float, ...]]):
    """Figures, and by name the curves behind them."""

    def __init__(self, figures: Figures, curves: dict[str, Curve]) -> None:
        super().__init__(figures)
        self.curves = curves


def _fitted(
    method: Method,
    X: list[Signature],
    pairs: Index,
    same: NDArray[np.bool_],
    labels: Sequence[Any],
    levels: Sequence[Any] | None = None,
) -> Method:
    """A copy of the method, fitted on the pairs if it learns from pairs, else on the members of the same ones.

    Labels and levels are those of the members, pair by pair.
    """
    fitted = copy.deepcopy(method)
    if getattr(fitted, "learns_from_pairs", False):
        return fitted.fit_pairs([(X[p], X[q]) for p, q in pairs], same)
    return fitted.fit([X[i] for i in pairs[same].ravel()], labels, levels=levels)


# ── kinship ───────────────────────────────────────────────────────────────────────────────────────────────────────


def kinship(dataset: Kinship, method: Method, features: Features, *, pca: int | None = 100, seed: int = 0) -> Scores:
    """Kinship verification on the official folds: 1 − EER and ROC for each relation and their mean, one value a fold.

    `features` has an entry an image: signatures, or a tuple of arrays (n, d), each of which gets a PCA of its own and
    gives a point of the set (LBP and HOG, say), put to unit length. Class = family, level = relation. Training sees the
    related pairs of the other folds; pair methods also get an unrelated (parent, child) pair for each, drawn within
    those folds. The official unrelated pairs only score.
    """
    entries = features[0] if isinstance(features, tuple) else features
    if len(entries) != len(dataset.paths):
        raise ShapeError(f"features: expected {len(dataset.paths)} entries, got {len(entries)}")
    relations, folds = dataset.pair_relations, sorted(set(dataset.folds.tolist()))
    distances = np.full(len(dataset.pairs), np.nan)
    for fold in folds:
        train = training_pairs(dataset, fold)
        sets = projected(features, np.unique(dataset.pairs[train]), pca, unit=True)
        pairs, same = draw_pairs(dataset, train, np.random.default_rng([seed, int(fold), 0]))
        images = dataset.pairs[train].ravel()
        families, levels = [dataset.families[i] for i in images], [dataset.relations[i] for i in images]
        fitted = _fitted(method, sets, pairs, same, families, levels)
        test = np.flatnonzero(dataset.folds == fold)
        shown = [(sets[p], sets[q]) for p, q in dataset.pairs[test]]
        distances[test] = fitted.pair_distance(shown, levels=relations[test].tolist())
    figures: Figures = {}
    rates: dict[str, Array] = {}
    for kind in dict.fromkeys(relations.tolist()):
        rows = [np.flatnonzero((relations == kind) & (dataset.folds == fold)) for fold in folds]
        figures[kind] = tuple(1.0 - eer(distances[r], dataset.kin[r]) for r in rows)
        each = [roc(distances[r], dataset.kin[r]) for r in rows]
        rates[kind] = np.mean([np.interp(STEPS, curve.fpr, curve.tpr) for curve in each], axis=0)
    figures["mean"] = tuple(float(np.mean(values)) for values in zip(*figures.values(), strict=True))
    rates["mean"] = np.mean(list(rates.values()), axis=0)
    labels = {kind: f"EER {1 - np.mean(values):.3f}" for kind, values in figures.items()}
    return Scores(figures, {f"ROC {kind}": Curve(labels[kind], STEPS, rate) for kind, rate in rates.items()})


def training_pairs(dataset: Kinship, fold: int) -> Index:
    """The related pairs of the other folds, without images that the pairs of `fold` show."""
    shown = np.unique(dataset.pairs[dataset.folds == fold])
    return np.flatnonzero(dataset.kin & (dataset.folds != fold) & ~np.isin(dataset.pairs, shown).any(axis=1))


def draw_pairs(dataset: Kinship, train: Index, rng: np.random.Generator) -> tuple[Index, NDArray[np.bool_]]:
    """(pairs, same): the related pairs `train`, and for each a pair of its parent with another's child.

    The other child is of the same relation, of another family, and itself in `train`.
    """
    related, family = dataset.pairs[train], np.asarray(dataset.families)
    pairs = [related]
    for relation in dict.fromkeys(dataset.pair_relations[train]):
        own = related[dataset.pair_relations[train] == relation]
        order = rng.permutation(len(own))
        drawn = np.stack([own[order, 0], own[np.roll(order, -1), 1]], axis=1)
        pairs.append(drawn[family[drawn[:, 0]] != family[drawn[:, 1]]])
    both = np.concatenate(pairs)
    return both, np.arange(len(both)) < len(related)


# ── classification ────────────────────────────────────────────────────────────────────────────────────────────────


def classification(
    dataset: SetCollection, splits: Sequence[Split], method: Method, *, pca: int | None = None
) -> Figures:
    """Accuracy on the test part of each split (train, test) after training on its training part."""
    if dataset.labels is None:
        raise InputError("dataset: the sets have no labels")
    labels = np.asarray(dataset.labels)

    def one(train: Index, test: Index) -> float:
        X = projected(dataset.signatures, train, pca)
        fitted = copy.deepcopy(method).fit([X[i] for i in train], labels[train])
        return float((np.asarray(fitted.predict([X[i] for i in test])) == labels[test]).mean())

    return {"accuracy": tuple(one(train, test) for train, test in splits)}


def object_splits(labels: NDArray[Any], train_objects: int, resamples: int, seed: int = 0) -> list[Split]:
    """`resamples` times (train, test): `train_objects` drawn sets of each class, and all others."""
    return [_object_split(labels, train_objects, np.random.default_rng([seed, r])) for r in range(resamples)]


def _object_split(labels: NDArray[Any], train_objects: int, rng: np.random.Generator) -> Split:
    train = []
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        if not 1 <= train_objects < len(own):
            raise InputError(f"train_objects: class {label} has {len(own)} sets, so 1 to {len(own) - 1} can train")
        train.append(rng.choice(own, train_objects, replace=False))
    chosen = np.sort(np.concatenate(train))
    return chosen, np.setdiff1d(np.arange(len(labels)), chosen)


# ── re-identification ─────────────────────────────────────────────────────────────────────────────────────────────


def reid(
    dataset: ReId,
    method: Method,
    features: Sequence[Sequence[Signature]],
    *,
    splits: int = 5,
    pca: int | None = 100,
    seed: int = 0,
) -> Scores:
    """Re-identification from camera A to camera B: CMC and PUR over `splits` half splits of the people.

    `features` are the signatures of camera A and of camera B. The official splits are used where the data set has them,
    else seeded halves. Class = level = person. Test people are not seen in training: a multi-level method needs rule
    "global" or "mean".
    """
    n = len(dataset.persons)
    if [len(side) for side in features] != [n, n]:
        raise ShapeError(f"features: expected {n} entries a camera, got {[len(side) for side in features]}")
    densities = []
    for number, (train, test) in enumerate(_halves(dataset, splits, seed)):
        both = np.stack([train, train + n], axis=1)
        X = projected([*features[0], *features[1]], both.T.ravel(), pca)
        shifts = np.random.default_rng([seed, number]).permutation(np.arange(1, len(train)))[:NEGATIVES]
        others = [np.stack([train, np.roll(train, s) + n], axis=1) for s in shifts]
        pairs = np.concatenate([both, *others])
        labels = [dataset.persons[i % n] for i in both.ravel()]
        fitted = _fitted(method, X, pairs, np.arange(len(pairs)) < len(both), labels)
        D = fitted.pairwise([X[i] for i in test], [X[n + i] for i in test])
        densities.append(match_density(D, np.arange(len(test)), np.arange(len(test))))
    curves = np.minimum(np.stack(densities).cumsum(axis=1), 1.0)
    figures = {f"rank {r}": tuple(curves[:, r - 1].tolist()) for r in RANKS if r <= curves.shape[1]}
    figures["PUR"] = tuple(pur_of_density(m) for m in densities)
    found = curves.mean(axis=0)[:DRAWN]
    return Scores(figures, {"CMC": Curve(f"PUR {np.mean(figures['PUR']):.3f}", np.arange(1.0, len(found) + 1), found)})


def _halves(dataset: ReId, splits: int, seed: int) -> Iterator[Split]:
    """The first official splits, or seeded halves of the people."""
    n = len(dataset.persons)
    if n < 4:
        raise InputError(f"dataset: expected at least 4 people to split in halves, got {n}")
    if dataset.splits:
        yield from dataset.splits[:splits]
        return
    for number in range(splits):
        order = np.random.default_rng([seed, number]).permutation(n)
        yield np.sort(order[: n // 2]), np.sort(order[n // 2 :])


# ── projections ───────────────────────────────────────────────────────────────────────────────────────────────────


def projected(features: Features, train: Index, pca: int | None, *, unit: bool = False) -> list[Signature]:
    """Each entry as a signature: centred and put on `pca` principal axes of the training entries, then to unit length.

    A tuple of arrays (n, d) gives sets with a point an array, which keep coordinates of their own (`side_by_side`):
    on the same ones, as in the paper, transport may match the first axis of one feature with the first axis of another.
    Signatures share the axes of all their training points. pca = None leaves the coordinates as they are.
    """
    if isinstance(features, tuple):
        parts = [_axes(part[train], pca, unit)(part) for part in features]
        points = side_by_side(parts, train) if len(parts) > 1 else parts[0][:, None]
        return [Signature(each) for each in points]
    move = _axes(np.concatenate([features[i].points for i in train]), pca, unit)
    return [Signature(move(s.points), s.weights, s.level, s.names) for s in features]


def side_by_side(parts: Sequence[Array], train: Index) -> Array:
    """Points (n, parts, Σ d + parts): part k fills its own block of coordinates, zero elsewhere, and carries a mark.

    The mark, a coordinate a part, is the root mean square norm of the training points: two points of one part cost what
    they cost in its own space, two of different parts ‖x‖² + ‖y‖² + 2 mark², so that like is matched with like.
    """
    starts = np.concatenate([[0], np.cumsum([part.shape[1] for part in parts])])
    mark = np.sqrt(np.mean([(part[train] ** 2).sum(axis=1).mean() for part in parts]))
    points = np.zeros((len(parts[0]), len(parts), int(starts[-1]) + len(parts)))
    for k, part in enumerate(parts):
        points[:, k, starts[k] : starts[k + 1]] = part
        points[:, k, starts[-1] + k] = mark
    return points


def _axes(train: Array, pca: int | None, unit: bool) -> Callable[[Array], Array]:
    """What puts rows on the axes of the training rows."""
    axes = None if pca is None else PCA(min(pca, *train.shape), random_state=0).fit(train)

    def move(rows: Array) -> Array:
        moved = rows if axes is None else axes.transform(rows)
        return np.asarray(moved / np.maximum(np.linalg.norm(moved, axis=1, keepdims=True), 1e-12) if unit else moved)

    return move
