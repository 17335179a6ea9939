"""What the sets level reads: signatures of images, videos, folders and features, and collections of them on disk."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.cluster import KMeans
from threadpoolctl import ThreadpoolController

from likewise import inputs, media
from likewise.errors import FileError, InputError, LikewiseError, ShapeError
from likewise.nn.features import extract
from likewise.sets.features import named
from likewise.sets.layouts import FilePath, Index, children, folder
from likewise.sets.transport.solvers import pack
from likewise.types import Array, Signature


def signature(
    features: ArrayLike,
    k: int | None = 8,
    seed: int = 0,
    *,
    names: Sequence[str] | None = None,
    level: Hashable = None,
) -> Signature:
    """A signature of features (n, d): k-means centres, weights by cluster size, largest cluster first.

    With k ≥ n, or k = None, the points themselves; with at most k distinct points, those. `names` (one a row) become
    the name of the member nearest to each centre. The same features and seed give the same bytes.
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


def _clusters(points: Array, k: int, seed: int) -> Index:
    """A cluster number a point: the distinct points if there are at most k, else k-means (one thread: same bytes)."""
    distinct, first, labels = np.unique(points, axis=0, return_index=True, return_inverse=True)
    if len(distinct) <= k:
        return np.argsort(np.argsort(first))[labels.ravel()].astype(np.int64)
    with _threads().limit(limits=1):
        return np.asarray(KMeans(k, n_init=4, random_state=seed).fit(points).labels_, dtype=np.int64)


@cache
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
    where: str = "set",
) -> Signature:
    """The signature of anything that `inputs` takes: images are described by `features`, rows are taken as they are.

    Of a video each `every`-th frame counts. Names are those of the files, or "path#n" of the n-th frame. What could not
    be read, with on_error="skip", is added to `skipped`.
    """
    given = inputs.classify(source, where)
    if given.kind == "features":
        own = inputs.signature(given.item, where=where)
        return own if isinstance(given.item, Signature | tuple) else signature(own.points, k, seed, level=level)
    rows = extract(given.item, named(features), every=every, on_error=on_error, where=where)
    if skipped is not None:
        skipped += rows.skipped
    return signature(rows.rows, k, seed, names=rows.names, level=level)


@dataclass(frozen=True, eq=False)
class SetCollection:
    """Many sets: their signatures, names and, where the source has classes, labels; and what could not be read.

    `described` says whether images were described; it is False for numbers out of a file.
    """

    signatures: list[Signature]
    names: list[str]
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


def save_npz(path: FilePath, signatures: Sequence[Signature], labels: Sequence[Any] | None = None) -> None:
    """Write signatures to one .npz: points (P, d), weights (P,), offsets (n + 1,); where given labels, levels, names.

    Set i is rows offsets[i] to offsets[i + 1]. Labels and levels are integers or strings: nothing that needs pickle.
    """
    if labels is not None and len(labels) != len(signatures):
        raise ShapeError(f"labels: expected {len(signatures)}, one a signature, got {len(labels)}")
    pack(signatures)  # refuses an empty list and sets of different dimension
    sizes = [len(s) for s in signatures]
    arrays: dict[str, NDArray[Any]] = {
        "points": np.concatenate([s.points for s in signatures]),
        "weights": np.concatenate([s.weights for s in signatures]),
        "offsets": np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
    }
    if labels is not None:
        arrays["labels"] = _plain(labels, "labels")
    if any(s.level is not None for s in signatures):
        arrays["levels"] = _plain([s.level for s in signatures], "levels")
    if all(s.names is not None for s in signatures):
        arrays["names"] = _plain([n for s in signatures for n in s.names or ()], "names")
    with media.atomic(path) as temporary, open(temporary, "wb") as stream:
        np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]


def _plain(values: Sequence[Any], where: str) -> NDArray[Any]:
    """Integers or strings as an array that needs no pickle."""
    array = np.asarray(values)
    kinds = {type(v) for v in np.asarray(values, dtype=object).ravel()}
    if array.ndim != 1 or array.dtype.kind not in "iuUb" or (array.dtype.kind == "U" and not kinds <= {str, np.str_}):
        raise InputError(f"{where}: expected all integers or all strings, got {sorted(t.__name__ for t in kinds)}")
    return array
