"""Collections of different kinds, each with five resamples, on which the defaults of `WassersteinLMNN` are settled.

A default may be chosen on all collections but one and is then read off the one that was left out. What each is made
of is said beside it; features of photos are computed once and kept with the other finished figures.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from sklearn.datasets import load_digits

from likewise import media
from likewise.nn.features import extract
from likewise.papers.mlml import layouts, protocols, rivals
from likewise.papers.mlml.protocols import Figures
from likewise.sets.data import SetCollection, block_lbp, children, list_sets, named_feature, signature
from likewise.types import Array, Signature

RESAMPLES = 5
PCA = 50
"""Principal axes of the training part, for features of more coordinates than that."""
CENTRES = 10
"""Points of a set of views: as many k-means centres."""


@dataclass(frozen=True)
class Collection:
    """A collection of the suite: how a method is measured on it, a value a resample; what metrics on vectors see."""

    name: str
    measure: Callable[[Any], Figures]
    vectors: Callable[[Sequence[Signature]], Array] = rivals.mean_vectors


def collections(
    data: Path, cells: Path | None = None, seed: int = 0, resamples: int = RESAMPLES
) -> dict[str, Callable[[], Collection]]:
    """How to make each collection of the suite, by its name."""
    made: dict[str, Callable[[], Collection]] = {
        "kinfacew2": lambda: _faces(data / "kinfacew2", seed),
        "eth80 pixels": lambda: _objects("eth80 pixels", data / "eth80", "pixels", cells, seed, resamples),
        "eth80 embedded": lambda: _objects("eth80 embedded", data / "eth80", None, cells, seed, resamples),
        "JapaneseVowels": lambda: _series("JapaneseVowels", 12, seed, resamples),
        "BasicMotions": lambda: _series("BasicMotions", 10, seed, resamples, every=4),
        "ArrowHead": lambda: _series("ArrowHead", 12, seed, resamples, window=16),
        "PickupGestureWiimoteZ": lambda: _series("PickupGestureWiimoteZ", 5, seed, resamples, window=16),
        "digits": lambda: _drawn("digits", _digits(), 10, seed, resamples, test=30),
        "cub200": lambda: _birds(data / "cub200-232", cells, seed, resamples),
        "omniglot": lambda: _drawn("omniglot", _characters(data / "omniglot"), 5, seed, resamples),
        "campus": lambda: _places(data / "places" / "campus", cells, seed, resamples),
    }
    return made


# ── one of each kind ──────────────────────────────────────────────────────────────────────────────────────────────


def _drawn(
    name: str, sets: SetCollection, train: int, seed: int, resamples: int, *, test: int | None = None
) -> Collection:
    """Accuracy on drawn splits, `train` sets a class to learn from, all others (or `test` a class) to predict."""
    labels = np.asarray(sets.labels)
    splits = protocols.object_splits(labels, train, resamples, seed)
    if test is not None:
        splits = [(a, _few(b, labels, test, seed + k)) for k, (a, b) in enumerate(splits)]
    axes = PCA if sets.signatures[0].dim > PCA else None
    return Collection(name, partial(protocols.classification, sets, splits, pca=axes))


def _few(part: Any, labels: Any, count: int, seed: int) -> Any:
    """At most `count` of each class."""
    order = np.random.default_rng(seed).permutation(part)
    chosen = [order[labels[order] == label][:count] for label in np.unique(labels[part])]
    return np.sort(np.concatenate(chosen))


def _faces(path: Path, seed: int) -> Collection:
    """Kinship of faces, 1 − EER a fold: a face is a point of LBP and one of HOG; levels are the four relations."""
    dataset = layouts.kinfacew(path)
    lbp = np.stack([block_lbp(face, root=True).ravel() for face in dataset.paths])
    hog = np.stack([layouts.block_hog(face).ravel() for face in dataset.paths])

    def measure(method: Any) -> Figures:
        figures = protocols.kinship(dataset, method, (lbp, hog), pca=PCA, seed=seed)
        return {"1 − EER": list(figures.values())[-1]}

    return Collection("kinfacew2", measure, rivals.flat_vectors)


def _objects(name: str, path: Path, features: Any, cells: Path | None, seed: int, resamples: int) -> Collection:
    """Objects of eight classes, each the set of its views; five objects a class to learn from."""
    folders, classes = list_sets(path)
    files = [[f for f in children(folder) if media.is_image(f)] for folder in folders]
    rows = _features([f for each in files for f in each], features, cells, name)
    ends = np.cumsum([len(each) for each in files])[:-1]
    return _drawn(
        name,
        SetCollection([signature(p, CENTRES) for p in np.split(rows, ends)], labels=np.asarray(classes)),
        5,
        seed,
        resamples,
    )


def _series(name: str, train: int, seed: int, resamples: int, window: int = 0, every: int = 1) -> Collection:
    """Time series of aeon's wheel: a point each `every` moments or, of one channel, a point a window of so many."""
    sets, _ = layouts.shipped_series(name)
    if every > 1:
        sets = SetCollection([Signature(s.points[::every]) for s in sets.signatures], labels=sets.labels)
    if window:
        cut = [sliding_window_view(s.points[:, 0], window)[:: window // 2] for s in sets.signatures]
        sets = SetCollection([Signature(np.ascontiguousarray(w)) for w in cut], labels=sets.labels)
    return _drawn(name, sets, train, seed, resamples, test=30)


def _digits() -> SetCollection:
    """Handwritten digits of scikit-learn, each a bag of its 3 × 3 patches with their places."""
    digits = load_digits()
    rows, columns = (g.reshape(-1, 1) for g in np.indices((6, 6)))
    bags = [
        Signature(np.hstack([sliding_window_view(image, (3, 3)).reshape(36, 9), 2.0 * rows, 2.0 * columns]))
        for image in digits.images
    ]
    return SetCollection(bags, labels=np.asarray(digits.target))


def _characters(path: Path) -> SetCollection:
    """Thirty characters of omniglot, each drawing a signature of 16 places of its ink, with the stroke's direction."""
    bags, labels = [], []
    with zipfile.ZipFile(path / "images_background_small1.zip") as held:
        names = sorted(n for n in held.namelist() if n.endswith(".png"))
        wanted = list(dict.fromkeys(n.rpartition("/")[0] for n in names))[:30]
        for name in (n for n in names if n.rpartition("/")[0] in wanted):
            ink = 1.0 - media.decode(held.read(name))[..., 0] / 255.0
            bags.append(signature(_ink(ink), 16))
            labels.append(name.rpartition("/")[0])
    return SetCollection(bags, labels=np.asarray(labels))


def _ink(ink: Array) -> Array:
    """(x, y, cos 2θ, sin 2θ) of each pixel of ink: its place about the middle, in shares of the size, and direction."""
    y, x = np.nonzero(ink > 0.5)
    dy, dx = np.gradient(np.pad(ink, 2))
    xx, yy, xy = (sliding_window_view(g, (5, 5)).sum((2, 3))[y, x] for g in (dx * dx, dy * dy, dx * dy))
    length = np.maximum(np.hypot(xx - yy, 2 * xy), 1e-9)
    places = (np.column_stack([x, y]) - [x.mean(), y.mean()]) / max(ink.shape)
    return np.column_stack([4 * places, 0.5 * (xx - yy) / length, xy / length])


def _birds(path: Path, cells: Path | None, seed: int, resamples: int) -> Collection:
    """Thirty species as sets of three photos' embeddings; four sets a species to learn from."""
    folders = [f for f in children(path) if f.is_dir()][:30]
    files = [sorted(f for f in children(folder) if media.is_image(f))[:36] for folder in folders]
    rows = _features([f for each in files for f in each], None, cells, "cub200")
    ends = np.cumsum([len(each) for each in files])[:-1]
    sets = [
        (Signature(own[k : k + 3]), folder.name)
        for folder, own in zip(folders, np.split(rows, ends), strict=True)
        for k in range(0, len(own) - 2, 3)
    ]
    return _drawn(
        "cub200", SetCollection([s for s, _ in sets], labels=np.asarray([n for _, n in sets])), 4, seed, resamples
    )


def _places(path: Path, cells: Path | None, seed: int, resamples: int) -> Collection:
    """Stretches of four photos of a walk, by snow and in autumn: each found again among those not learned from."""
    sides = []
    for side in ("reference", "query"):
        files = [f for f in children(path / side) if media.is_image(f)]
        rows = _features(files, None, cells, f"campus-{side}")
        sides.append([Signature(rows[k : k + 4]) for k in range(0, len(rows) - 3, 4)])
    names = tuple(f"{k:03d}" for k in range(len(sides[0])))
    dataset = layouts.ReId(names, ((),) * len(names), ((),) * len(names))

    def measure(method: Any) -> Figures:
        figures = protocols.reid(dataset, method, sides, splits=resamples, pca=PCA, seed=seed)
        return {"rank 1": figures["rank 1"]}

    return Collection("campus", measure)


def _features(files: Sequence[Path], features: Any, cells: Path | None, name: str) -> Array:
    """Features of images, kept beside the cells."""
    file = None if cells is None else cells / f"{name.replace(' ', '-')}.npy"
    if file is not None and file.is_file():
        return np.asarray(np.load(file, allow_pickle=False), dtype=np.float64)
    rows = np.asarray(extract(list(files), named_feature(features)).rows, dtype=np.float64)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with media.atomic(file) as temporary, open(temporary, "wb") as out:
            np.save(out, rows.astype(np.float32))
    return rows
