"""From images, videos, folders and rows of features to signatures, and collections of them on disk.

Besides networks there are two features that need none, by name: "pixels" and "lbp".
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray
from skimage.feature import local_binary_pattern
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.cluster import KMeans
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import ThreadpoolController

from likewise import inputs, media
from likewise.errors import FileError, InputError, LikewiseError
from likewise.nn.features import Net, extract
from likewise.sets.transport.solvers import Index
from likewise.types import Array, Signature

FilePath = str | PathLike[str]
FEATURES = ("embed", "pixels", "lbp")
"""embed: 1280 numbers of a network; pixels: the image, grey, 20 × 20; lbp: 8 × 8 histograms of local patterns."""
LBP_BINS = 59
"""Uniform patterns of 8 neighbours: 58 with at most two changes around the circle, and one for all others."""


def signature(
    features: ArrayLike,
    k: int | None = 8,
    seed: int = 0,
    *,
    names: Sequence[str] | None = None,
    level: Hashable = None,
) -> Signature:
    """A signature of many features: k-means centres, weighted by cluster size, the largest cluster first.

    Parameters
    ----------
    features : array (n, d)
        One row a member of the set: an image, a frame, a patch.
    k : int or None, default 8
        How many centres. With k ≥ n, or None, the rows themselves are the points; with at most k distinct rows, those.
    seed : int, default 0
        Seed of k-means: the same features and seed give the same bytes.
    names : sequence of str, optional
        What each row stands for; a centre takes the name of the row nearest to it.
    level : hashable, optional
        Under which level's metric the set is compared.

    Returns
    -------
    Signature
        At most k points (k, d), and weights that sum to 1.

    Raises
    ------
    InputError
        k is below 1, or the features are empty or not finite.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.sets.signature([[0.0, 0.0], [0.0, 1.0], [9.0, 9.0], [0.0, 0.5]], k=2).weights
    array([0.75, 0.25])
    """
    whole = Signature(features, names=None if names is None else list(names), level=level, where="features")
    if k is None or k >= len(whole):
        return whole
    if k < 1:
        raise InputError(f"k: expected at least 1 centre, got {k}")
    labels = _clusters(whole.points, k, seed)
    order = np.argsort(-np.bincount(labels), kind="stable")
    order = order[np.bincount(labels)[order] > 0]
    centres = np.stack([whole.points[labels == c].mean(axis=0) for c in order])
    nearest = [_nearest_member(whole.points, labels == c, m) for c, m in zip(order, centres, strict=True)]
    chosen = None if whole.names is None else [whole.names[i] for i in nearest]
    return Signature(centres, np.bincount(labels)[order], level, chosen)


class PointTransformer(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A scikit-learn transformer of rows, for sets: fitted on the points of all, so that a Pipeline takes ragged sets.

    Parameters
    ----------
    transformer : estimator
        Any transformer of rows: `StandardScaler()`, `PCA(50)`.

    Attributes
    ----------
    transformer_ : estimator
        A copy of it, fitted.

    Examples
    --------
    >>> import likewise as lw
    >>> import numpy as np
    >>> from sklearn.preprocessing import StandardScaler
    >>> bags = [np.array([[0.0, 10], [2, 30]]), np.array([[4.0, 20]])]
    >>> lw.sets.PointTransformer(StandardScaler()).fit_transform(bags)[1].points.round(2)
    array([[1.22, 0.  ]])
    """

    def __init__(self, transformer: Any) -> None:
        self.transformer = transformer

    def fit(self, X: Any, y: Any = None) -> PointTransformer:
        """Fit a copy of the transformer on the points of all sets, each counted once.

        Raises
        ------
        InputError
            X is no sequence of sets.
        """
        self.transformer_ = clone(self.transformer).fit(np.concatenate([s.points for s in inputs.signatures(X)]))
        return self

    def transform(self, X: Any) -> list[Signature]:
        """The sets with their points transformed; weights, levels and names stay."""
        check_is_fitted(self, "transformer_")
        return [
            Signature(self.transformer_.transform(s.points), s.weights, s.level, s.names) for s in inputs.signatures(X)
        ]


def _clusters(points: Array, k: int, seed: int) -> Index:
    """A cluster number a point: the distinct points if there are at most k, else k-means (one thread: same bytes)."""
    distinct, first, labels = np.unique(points, axis=0, return_index=True, return_inverse=True)
    if len(distinct) <= k:
        return np.argsort(np.argsort(first))[labels.ravel()].astype(np.int64)
    with _threads().limit(limits=1):
        return np.asarray(KMeans(k, n_init=4, random_state=seed).fit(points).labels_, dtype=np.int64)


@functools.cache
def _threads() -> Any:
    """The thread pools of the libraries under k-means; looked up once, since that takes as long as k-means."""
    return ThreadpoolController()


def _nearest_member(points: Array, members: NDArray[np.bool_], centre: Array) -> int:
    rows = np.flatnonzero(members)
    return int(rows[((points[rows] - centre) ** 2).sum(axis=1).argmin()])


def describe(
    source: Any,
    features: Any = None,
    k: int | None = 8,
    *,
    every: int = 1,
    seed: int = 0,
    level: Hashable = None,
    on_error: Literal["raise", "skip"] = "raise",
    skipped: list[tuple[str, str]] | None = None,
    counts: list[int] | None = None,
    where: str = "set",
) -> Signature:
    """The signature of anything that `inputs` takes: images are described by `features`, rows are taken as they are.

    Of a video each `every`-th frame counts. Names are those of the files, or "path#n" of the n-th frame. What could not
    be read, with on_error="skip", is added to `skipped`; how many images were read, to `counts`.
    """
    given = inputs.classify(source, where)
    if given.kind == "features":
        own = inputs.signature(given.item, where=where)
        return own if isinstance(given.item, Signature | tuple) else signature(own.points, k, seed, level=level)
    rows = extract(given.item, named_feature(features), every=every, on_error=on_error, where=where)
    if skipped is not None:
        skipped += rows.skipped
    if counts is not None:
        counts.append(len(rows))
    return signature(rows.rows, k, seed, names=rows.names, level=level)


@dataclass(frozen=True, eq=False)
class SetCollection:
    """Many sets: their signatures, names and, where the source has classes, labels; and what could not be read.

    `described` says whether images were described; it is False for numbers out of a file.
    """

    signatures: list[Signature]
    names: list[str] = field(default_factory=list)
    labels: NDArray[Any] | None = None
    described: bool = True
    skipped: tuple[tuple[str, str], ...] = ()

    def __len__(self) -> int:
        return len(self.signatures)


def read_sets(
    path: FilePath,
    features: Any = None,
    k: int | None = 8,
    *,
    every: int = 1,
    seed: int = 0,
    on_error: Literal["raise", "skip"] = "raise",
    progress: Callable[[], Any] | None = None,
) -> SetCollection:
    """The sets at a path: class/object/images (ETH-80, or your own), object/images, videos, or an .npz of many sets."""
    place = Path(path)
    if place.is_file():
        sets, labels = inputs.load_signatures(place)
        own = "offsets" in media.load_arrays(place)
        names = [str(i) for i in range(len(sets))] if own or labels is None else [str(label) for label in labels]
        return SetCollection(sets, names, np.asarray(labels) if own and labels is not None else None, described=False)
    items, classes = list_sets(place)
    skipped: list[tuple[str, str]] = []
    kept: list[tuple[int, Signature]] = []
    for i, item in enumerate(items):
        try:
            signed = describe(item, features, k, every=every, seed=seed, on_error=on_error, skipped=skipped)
            kept.append((i, signed))
        except LikewiseError as error:
            if on_error == "raise":
                raise
            skipped.append((str(item), str(error)))
        if progress:
            progress()
    if not kept:
        raise FileError(f"{place}: no image in its {len(items)} sets can be read; the first: {skipped[0][1]}")
    return SetCollection(
        [s for _, s in kept],
        [str(items[i].relative_to(place)) for i, _ in kept],
        None if classes is None else np.asarray([classes[i] for i, _ in kept]),
        skipped=tuple(skipped),
    )


def list_sets(path: FilePath) -> tuple[list[Path], list[str] | None]:
    """The sets below a folder, each a folder of images or a video, and their classes.

    class/object/images; without the class folders (object/images directly) there are no classes. Natural order.
    """
    root = folder(path)
    below = {child: _sets_in(child) for child in children(root) if child.is_dir()}
    if any(below.values()):
        pairs = [(item, child.name) for child, items in below.items() for item in items]
        return [item for item, _ in pairs], [label for _, label in pairs]
    items = _sets_in(root)
    if not items:
        raise FileError(f"{root}: no sets found; expected class/object/images, object/images, or videos")
    return items, None


def _sets_in(folder: Path) -> list[Path]:
    """The sub-folders that hold images, and the videos, of one folder."""

    def holds_images(child: Path) -> bool:
        return child.is_dir() and any(p.is_file() and media.is_image(p) for p in sorted(child.iterdir()))

    return [c for c in children(folder) if inputs.is_video(c) or holds_images(c)]


def thumbnails(s: Signature) -> list[Any] | None:
    """The image of each point: a file, or a frame of a video; None where the points stand for nothing on disk."""
    if s.names is None:
        return None
    shown: list[Any] = [None] * len(s)
    wanted: dict[str, dict[int, list[int]]] = {}
    for i, name in enumerate(s.names):
        video, mark, number = name.rpartition("#")
        if mark and number.isdecimal() and media.is_file(video) and not media.is_file(name):
            wanted.setdefault(video, {}).setdefault(int(number), []).append(i)
        elif media.is_image(name):
            shown[i] = name
    for video, places in wanted.items():
        for at, frame in enumerate(media.frames(video, most=max(places) + 1)):
            for i in places.get(at, []):
                shown[i] = frame
    return shown if any(image is not None for image in shown) else None


def children(folder: Path) -> list[Path]:
    """What a folder holds, in natural order (2 before 10), without hidden names."""
    return sorted((p for p in folder.iterdir() if not p.name.startswith(".")), key=media.natural)


def folder(path: FilePath, *tried: str) -> Path:
    """The folder at `path`, or its sub-folder of one of the names `tried`."""
    root = Path(path)
    for candidate in (*(root / name for name in tried), root):
        if candidate.is_dir():
            return candidate
    raise FileError(f"{root}: no such folder")


# ── features that need no network ─────────────────────────────────────────────────────────────────────────────────


def named_feature(features: Any) -> Any:
    """The net that a name of FEATURES stands for; anything else is taken as it is."""
    if not isinstance(features, str):
        return features
    if features not in FEATURES:
        raise InputError(f"features: expected one of {', '.join(FEATURES)}, got {features!r}")
    return None if features == "embed" else Net(functools.partial(_rows, features), features, takes_any_size=True)


def _rows(name: str, images: Sequence[Any], where: str) -> Array:
    """One row an image, by a feature that needs no network; files are decoded at full size, as patterns need it."""
    return np.stack([(grey_pixels(i) if name == "pixels" else block_lbp(i, root=True)).ravel() for i in images])


def grey(image: Any) -> Array:
    """An image, in any form that `inputs` takes, as grey (h, w) in [0, 1] by the luma weights .299, .587, .114."""
    return np.asarray(inputs.image(image).pixels.astype(np.float64) / 255.0 @ (0.299, 0.587, 0.114))


def grey_pixels(image: Any, size: tuple[int, int] = (20, 20)) -> Array:
    """The image itself, grey, resized to (h, w) by area means, as one row (1, h·w)."""
    return resize(grey(image), size).reshape(1, -1)


def resize(image: Array, size: tuple[int, int]) -> Array:
    """A grey image at another size, by area means."""
    return np.asarray(cv2.resize(image, (size[1], size[0]), interpolation=cv2.INTER_AREA), dtype=np.float64)


def block_lbp(image: Any, grid: tuple[int, int] = (8, 8), *, root: bool = False) -> Array:
    """Histograms (blocks, 59) of uniform local binary patterns, one a block of the grid, row by row; each sums to 1.

    A pixel's pattern tells which of its 8 neighbours are at least as bright (beyond the border the nearest pixel stands
    in). `root` takes square roots, under which the Euclidean distance is Hellinger's.
    """
    padded = np.pad(np.round(grey(image) * 255).astype(np.uint8), 1, mode="edge")
    patterns: Any = local_binary_pattern  # scikit-image leaves it untyped
    codes = np.asarray(patterns(padded, P=8, R=1, method="nri_uniform"), dtype=np.int64)[1:-1, 1:-1]
    block, blocks = block_index(codes.shape, grid), grid[0] * grid[1]
    counts = np.bincount((block * LBP_BINS + codes).ravel(), minlength=blocks * LBP_BINS).reshape(blocks, LBP_BINS)
    histograms: Array = counts / counts.sum(axis=1, keepdims=True)
    return np.sqrt(histograms) if root else histograms


def block_index(shape: tuple[int, ...], grid: tuple[int, int]) -> Index:
    """Which block of the grid each pixel lies in, (h, w)."""
    h, w = shape
    if min(grid) < 1 or grid[0] > h or grid[1] > w:
        raise InputError(f"grid: expected 1 to {h} rows and 1 to {w} columns of blocks, got {grid}")
    rows, columns = np.arange(h) * grid[0] // h, np.arange(w) * grid[1] // w
    return np.asarray(rows[:, None] * grid[1] + columns[None, :], dtype=np.int64)
