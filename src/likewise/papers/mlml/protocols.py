"""Who trains on what, and what is scored: kinship, image sets, re-identification, traffic, official splits.

A method has fit(X, y, levels=None) and predict(X), pairwise(X, Y) or pair_distance(pairs, levels=None); one whose
`learns_from_pairs` is true gets fit_pairs(pairs, same, levels=None) where the protocol knows pairs. It is copied for
each fold, so nothing leaks from one to the next; projections are fitted on the training part alone. All seeded.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from likewise.errors import InputError, ShapeError
from likewise.papers.mlml.layouts import Kinship, ReId, Split
from likewise.sets.data import SetCollection
from likewise.sets.metrics import Roc, eer, match_density, pur_of_density, roc
from likewise.sets.transport import Index
from likewise.types import Array, Signature

Method: TypeAlias = Any
Features: TypeAlias = "Sequence[Signature] | Array | tuple[Array, ...]"


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """What a protocol measured: figures by name, one value a fold (`folds` says of what kind), and curves to draw."""

    protocol: str
    folds: str
    figures: Mapping[str, tuple[float, ...]]
    rocs: Mapping[str, Roc] = field(default_factory=dict)
    cmc: Array | None = None

    def mean(self, name: str) -> float:
        """The mean of a figure over the folds."""
        return float(np.mean(self.figures[name]))

    def se(self, name: str) -> float | None:
        """The standard error of that mean; None where there is one fold."""
        values = self.figures[name]
        return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None

    def __repr__(self) -> str:
        def one(name: str) -> str:
            error = self.se(name)
            return f"{name} {self.mean(name):.3f}" + ("" if error is None else f" ± {error:.3f}")

        count = len(next(iter(self.figures.values())))
        return f"{self.protocol} over {count} {self.folds}: " + ", ".join(one(name) for name in self.figures)


# ── kinship ───────────────────────────────────────────────────────────────────────────────────────────────────────


def kinship(
    dataset: Kinship,
    method: Method,
    features: Features,
    *,
    pca: int | None = 100,
    unit: bool = True,
    paper_form: bool = False,
    together: bool = True,
    negatives: int = 1,
    seed: int = 0,
) -> Result:
    """Kinship verification on the official folds: 1 − EER for each relation and their mean, one value a fold.

    `features` has an entry an image: signatures, an array (n, d) (sets of one point), or a tuple of arrays, each of
    which gets a PCA of its own and gives a point of the set (LBP and HOG, say; `paper_form` as in `projected`).
    Class = family, level = relation.
    Training sees the related pairs of the other folds; pair methods also get `negatives` unrelated (parent, child)
    pairs for each, drawn within those folds. The official unrelated pairs only score. `together` fits all relations at
    once, otherwise one model a relation. `rocs` pool the folds.
    """
    entries = features[0] if isinstance(features, tuple) else features
    if len(entries) != len(dataset.paths):
        raise ShapeError(f"features: expected {len(dataset.paths)} entries, got {len(entries)}")
    relations, kinds = dataset.pair_relations, list(dict.fromkeys(dataset.pair_relations.tolist()))
    folds = sorted(set(dataset.folds.tolist()))
    distances = np.full(len(dataset.pairs), np.nan)
    for fold in folds:
        train = training_pairs(dataset, fold)
        sets = projected(features, np.unique(dataset.pairs[train]), pca, unit, paper_form=paper_form)
        for group in [kinds] if together else [[kind] for kind in kinds]:
            rng = np.random.default_rng([seed, int(fold), kinds.index(group[0])])
            fitted = _fit_kin(method, dataset, train[np.isin(relations[train], group)], sets, negatives, rng)
            test = np.flatnonzero((dataset.folds == fold) & np.isin(relations, group))
            pairs = [(sets[p], sets[q]) for p, q in dataset.pairs[test]]
            distances[test] = fitted.pair_distance(pairs, levels=relations[test].tolist())
    figures: dict[str, tuple[float, ...]] = {}
    for kind in kinds:
        rows = [np.flatnonzero((relations == kind) & (dataset.folds == fold)) for fold in folds]
        figures[kind] = tuple(1.0 - eer(distances[r], dataset.kin[r]) for r in rows)
    figures["mean"] = tuple(float(np.mean(values)) for values in zip(*figures.values(), strict=True))
    curves = {kind: roc(distances[relations == kind], dataset.kin[relations == kind]) for kind in kinds}
    return Result("kinship 1 − EER", "official folds", figures, curves)


def training_pairs(dataset: Kinship, fold: int) -> Index:
    """The related pairs of the other folds, without images that the pairs of `fold` show."""
    shown = np.unique(dataset.pairs[dataset.folds == fold])
    return np.flatnonzero(dataset.kin & (dataset.folds != fold) & ~np.isin(dataset.pairs, shown).any(axis=1))


def draw_pairs(
    dataset: Kinship, train: Index, negatives: int, rng: np.random.Generator
) -> tuple[Index, NDArray[np.bool_]]:
    """(pairs, same): the related pairs `train`, and for each `negatives` pairs of its parent with another's child.

    The other child is of the same relation, of another family, and itself in `train`.
    """
    pairs, same = [dataset.pairs[train]], [np.ones(len(train), dtype=bool)]
    family = np.asarray(dataset.families)
    for relation in dict.fromkeys(dataset.pair_relations[train]):
        own = dataset.pairs[train[dataset.pair_relations[train] == relation]]
        order = rng.permutation(len(own))
        for shift in range(1, min(negatives, len(own) - 1) + 1):
            drawn = np.stack([own[order, 0], own[np.roll(order, -shift), 1]], axis=1)
            drawn = drawn[family[drawn[:, 0]] != family[drawn[:, 1]]]
            pairs.append(drawn)
            same.append(np.zeros(len(drawn), dtype=bool))
    return np.concatenate(pairs), np.concatenate(same)


def _fit_kin(
    method: Method, dataset: Kinship, train: Index, sets: list[Signature], negatives: int, rng: np.random.Generator
) -> Method:
    fitted = copy.deepcopy(method)
    if getattr(fitted, "learns_from_pairs", False):
        pairs, same = draw_pairs(dataset, train, negatives, rng)
        levels = [dataset.relations[p] for p, _ in pairs]
        return fitted.fit_pairs([(sets[p], sets[q]) for p, q in pairs], same, levels=levels)
    images = dataset.pairs[train].ravel()
    families, levels = [dataset.families[i] for i in images], [dataset.relations[i] for i in images]
    return fitted.fit([sets[i] for i in images], families, levels=levels)


# ── classification ────────────────────────────────────────────────────────────────────────────────────────────────


def classification(
    dataset: SetCollection, splits: Sequence[Split], method: Method, *, pca: int | None = None, unit: bool = False
) -> Result:
    """Accuracy on the test part of each split (train, test) after training on its training part."""
    if dataset.labels is None:
        raise InputError("dataset: the sets have no labels")
    labels = np.asarray(dataset.labels)

    def one(train: Index, test: Index) -> float:
        X = projected(dataset.signatures, train, pca, unit)
        fitted = copy.deepcopy(method).fit([X[i] for i in train], labels[train])
        return float((np.asarray(fitted.predict([X[i] for i in test])) == labels[test]).mean())

    return Result("accuracy", "splits", {"accuracy": tuple(one(train, test) for train, test in splits)})


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
    features: tuple[Sequence[Signature], ...],
    *,
    splits: int = 5,
    pca: int | None = 100,
    unit: bool = False,
    cameras_as_levels: bool = False,
    negatives: int = 5,
    seed: int = 0,
) -> Result:
    """Re-identification from camera A to camera B: CMC and PUR over `splits` half splits of the people.

    `features` are the signatures of camera A, of camera B and, if they are to lengthen the gallery, of the people seen
    by B alone. The official splits are used where the data set has them, else seeded halves. Class = person; the level
    is the class, too, unless `cameras_as_levels`. Test people are not seen in training: a multi-level method needs
    rule "global" or "mean", or cameras as levels.
    """
    n, levels = len(dataset.persons), ("A", "B", "B") if cameras_as_levels else (None, None, None)
    if len(features[0]) != n or len(features[1]) != n:
        raise ShapeError(f"features: expected {n} entries a camera, got {[len(side) for side in features[:2]]}")
    pool = [Signature(s.points, s.weights, t, s.names) for side, t in zip(features, levels, strict=False) for s in side]
    densities = []
    for number, (train, test) in enumerate(_halves(dataset, splits, seed)):
        X = projected(pool, np.concatenate([train, train + n]), pca, unit)
        rng = np.random.default_rng([seed, number])
        fitted = _fit_reid(method, dataset, X, train, cameras_as_levels, negatives, rng)
        D = fitted.pairwise([X[i] for i in test], [X[n + i] for i in test] + X[2 * n :])
        ids = np.arange(len(test))
        densities.append(match_density(D, ids, np.append(ids, np.full(len(X) - 2 * n, -1))))
    curves = np.minimum(np.stack(densities).cumsum(axis=1), 1.0)
    ranks = [r for r in (1, 5, 10, 20) if r <= curves.shape[1]]
    figures = {f"rank {r}": tuple(curves[:, r - 1].tolist()) for r in ranks}
    figures["PUR"] = tuple(pur_of_density(m) for m in densities)
    kind = "official splits" if dataset.splits else "half splits"
    return Result("re-identification", kind, figures, cmc=curves.mean(axis=0))


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


def _fit_reid(
    method: Method,
    dataset: ReId,
    X: list[Signature],
    train: Index,
    cameras: bool,
    negatives: int,
    rng: np.random.Generator,
) -> Method:
    fitted, n = copy.deepcopy(method), len(dataset.persons)
    if getattr(fitted, "learns_from_pairs", False):
        moved = [np.roll(np.arange(len(train)), s) for s in rng.permutation(np.arange(1, len(train)))[:negatives]]
        same = [(X[i], X[n + i]) for i in train]
        other = [(X[train[k]], X[n + train[m[k]]]) for m in moved for k in range(len(train))]
        return fitted.fit_pairs(same + other, np.arange(len(same) + len(other)) < len(same))
    rows = np.concatenate([train, train + n])
    levels = ["A"] * len(train) + ["B"] * len(train) if cameras else None
    return fitted.fit([X[i] for i in rows], [dataset.persons[i % n] for i in rows], levels=levels)


# ── projections ───────────────────────────────────────────────────────────────────────────────────────────────────


def projected(
    features: Features, train: Index, pca: int | None, unit: bool, *, paper_form: bool = False
) -> list[Signature]:
    """Each entry as a signature: centred and put on `pca` principal axes of the training entries, then to unit length.

    An array (n, d) gives sets of one point; a tuple of arrays gives sets with a point an array; signatures share the
    axes of all their training points. pca = None leaves the coordinates as they are. The points of a tuple keep
    coordinates of their own (see `side_by_side`); `paper_form` lays them on the same ones, as the paper does, where
    transport may match the first axis of one feature with the first axis of another.
    """
    if isinstance(features, np.ndarray):
        features = (features,)
    if isinstance(features, tuple) and all(isinstance(part, np.ndarray) for part in features):
        parts = [_axes(np.asarray(part), np.asarray(part)[train], pca, unit) for part in features]
        if len(parts) > 1 and not paper_form:
            return [Signature(points) for points in side_by_side(parts, train)]
        if len({part.shape for part in parts}) > 1:
            raise ShapeError(f"features: the arrays give points of {sorted({p.shape[1] for p in parts})} coordinates")
        return [Signature(points) for points in np.stack(parts, axis=1)]
    sets: list[Signature] = list(features)  # type: ignore[arg-type]
    rows = np.concatenate([s.points for s in sets])
    moved = _axes(rows, np.concatenate([sets[i].points for i in train]), pca, unit)
    ends = np.cumsum([len(s) for s in sets])[:-1]
    return [
        Signature(points, s.weights, s.level, s.names) for points, s in zip(np.split(moved, ends), sets, strict=True)
    ]


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


def _axes(rows: Array, train: Array, pca: int | None, unit: bool) -> Array:
    if pca is not None:
        rows = PCA(min(pca, *train.shape), random_state=0).fit(train).transform(rows)
    if unit:
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return np.asarray(rows, dtype=np.float64)
