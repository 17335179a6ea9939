"""What the sets level reads: signatures from features, folders, videos and .npz files.

The readers of public layouts (`layouts`) and the features that need no network (`features`) are reachable from here.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likewise.errors import FileError, InputError, ShapeError
from likewise.sets.features import Describe as Describe
from likewise.sets.features import block_hog as block_hog
from likewise.sets.features import block_lbp as block_lbp
from likewise.sets.features import describe_with as describe_with
from likewise.sets.features import grey_pixels as grey_pixels
from likewise.sets.features import motion_window as motion_window
from likewise.sets.layouts import FilePath, Index, children, folder
from likewise.sets.layouts import Kinship as Kinship
from likewise.sets.layouts import ReId as ReId
from likewise.sets.layouts import Sets as Sets
from likewise.sets.layouts import Traffic as Traffic
from likewise.sets.layouts import TrainTest as TrainTest
from likewise.sets.layouts import ilids_vid as ilids_vid
from likewise.sets.layouts import japanese_vowels as japanese_vowels
from likewise.sets.layouts import kinfacew as kinfacew
from likewise.sets.layouts import lomo as lomo
from likewise.sets.layouts import lookup as lookup
from likewise.sets.layouts import prid2011 as prid2011
from likewise.sets.layouts import read_ts as read_ts
from likewise.sets.layouts import time_series as time_series
from likewise.sets.layouts import ucsd_traffic as ucsd_traffic
from likewise.types import Array, Signature

VIDEO_NAMES = frozenset({".avi", ".mp4", ".mov", ".mkv", ".webm", ".mpg", ".mpeg", ".m4v", ".wmv"})
"""File name endings that are taken for videos in a collection."""


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
    from sklearn.cluster import KMeans

    with _threads().limit(limits=1):
        return np.asarray(KMeans(k, n_init=4, random_state=seed).fit(points).labels_, dtype=np.int64)


@cache
def _threads() -> Any:
    """The thread pools of the libraries under k-means; looked up once, since that takes as long as k-means."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def _nearest_member(points: Array, members: NDArray[np.bool_], centre: Array) -> int:
    rows = np.flatnonzero(members)
    return int(rows[((points[rows] - centre) ** 2).sum(axis=1).argmin()])


def from_images(
    paths: Sequence[FilePath], describe: Describe, k: int | None = 8, *, seed: int = 0, level: Hashable = None
) -> Signature:
    """The signature of some picture files: `describe` makes (n, d) of their paths; names are the files."""
    if len(paths) == 0:
        raise InputError("paths: expected at least one picture, got none")
    rows = _described(describe, list(paths))
    return signature(rows, k, seed, names=[str(p) for p in paths], level=level)


def from_folder(
    path: FilePath, describe: Describe, k: int | None = 8, *, seed: int = 0, level: Hashable = None
) -> Signature:
    """The signature of all pictures in a folder; `describe` is any embedder, paths → (n, d)."""
    from likewise.media import images

    found = images(path)
    if not found:
        raise FileError(f"{path}: no pictures in this folder")
    return from_images(found, describe, k, seed=seed, level=level)


def from_video(
    path: FilePath,
    describe: Describe,
    k: int | None = 8,
    *,
    every: int = 1,
    most: int | None = None,
    seed: int = 0,
    level: Hashable = None,
    batch: int = 64,
) -> Signature:
    """The signature of each `every`-th frame of a video; `describe` gets lists of up to `batch` uint8 (h, w, 3) frames.

    Names are "path#n" with n the number of the frame, counted from 0.
    """
    from likewise.media import frames

    stream = iter(frames(path, every=every, most=most))
    rows: list[Array] = []
    while pictures := list(islice(stream, batch)):
        rows.append(_described(describe, pictures))
    if not rows:
        raise FileError(f"{path}: no frames in this video")
    stacked = np.concatenate(rows)
    return signature(stacked, k, seed, names=[f"{path}#{i * every}" for i in range(len(stacked))], level=level)


def _described(describe: Describe, pictures: list[Any]) -> Array:
    rows = np.asarray(describe(pictures), dtype=np.float64)
    if rows.ndim != 2 or len(rows) != len(pictures):
        raise ShapeError(f"describe: expected ({len(pictures)}, d), one row a picture, got shape {rows.shape}")
    return rows


@dataclass(frozen=True, eq=False)
class Collection:
    """Sets on disk: item i is a folder of pictures or a video; labels[i] is its class (None: there are no classes)."""

    items: tuple[Path, ...]
    labels: tuple[str, ...] | None

    def __len__(self) -> int:
        return len(self.items)

    def signatures(self, describe: Describe, k: int | None = 8, *, every: int = 1, seed: int = 0) -> list[Signature]:
        """One signature an item, by `from_folder` or `from_video`."""
        return [
            from_folder(p, describe, k, seed=seed) if p.is_dir() else from_video(p, describe, k, every=every, seed=seed)
            for p in self.items
        ]


def collection(path: FilePath) -> Collection:
    """Read class/object/views (ETH-80, or your own): each object is a folder of pictures, or a video file.

    Without the class folders (object/views directly) the labels are None. Natural order: 2 before 10.
    """
    root = folder(path)
    below = {child: _sets_in(child) for child in children(root) if child.is_dir()}
    if any(below.values()):
        pairs = [(item, child.name) for child, items in below.items() for item in items]
        return Collection(tuple(item for item, _ in pairs), tuple(label for _, label in pairs))
    items = _sets_in(root)
    if not items:
        raise FileError(f"{root}: no sets found; expected class/object/pictures, object/pictures, or videos")
    return Collection(tuple(items), None)


def _sets_in(folder: Path) -> list[Path]:
    """The sub-folders that hold pictures, and the videos, of one folder."""
    from likewise.media import is_image

    def holds_pictures(child: Path) -> bool:
        return child.is_dir() and any(p.is_file() and is_image(p) for p in sorted(child.iterdir()))

    return [c for c in children(folder) if c.suffix.lower() in VIDEO_NAMES or holds_pictures(c)]


def save_npz(path: FilePath, signatures: Sequence[Signature], labels: Sequence[Any] | None = None) -> None:
    """Write signatures to one .npz: points (P, d), weights (P,), offsets (n + 1,); where given labels, levels, names.

    Set i is rows offsets[i] to offsets[i + 1]. Labels and levels are integers or strings: nothing that needs pickle.
    """
    from likewise.media import atomic
    from likewise.sets.transport.solvers import pack

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
    with atomic(path) as temporary, open(temporary, "wb") as stream:
        np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]


def _plain(values: Sequence[Any], where: str) -> NDArray[Any]:
    """Integers or strings as an array that needs no pickle."""
    array = np.asarray(values)
    kinds = {type(v) for v in np.asarray(values, dtype=object).ravel()}
    if array.ndim != 1 or array.dtype.kind not in "iuUb" or (array.dtype.kind == "U" and not kinds <= {str, np.str_}):
        raise InputError(f"{where}: expected all integers or all strings, got {sorted(t.__name__ for t in kinds)}")
    return array


def load_npz(path: FilePath) -> Sets:
    """Read signatures from a .npz: as `save_npz` writes them, or one array (m, d) a signature under any other names.

    In the second form the names of the arrays, in their order, become the names of the sets: Sets.labels.
    """
    from likewise.media import load_arrays

    arrays = load_arrays(path)
    if not arrays:
        raise FileError(f"{path}: no arrays in this file")
    if "offsets" not in arrays:
        keys = list(arrays)
        return Sets(tuple(Signature(arrays[key], where=f"{path}: {key}") for key in keys), np.asarray(keys))
    return _unpacked(path, arrays)


def _unpacked(path: FilePath, arrays: dict[str, NDArray[Any]]) -> Sets:
    if "points" not in arrays:
        raise FileError(f"{path}: has offsets but no points; expected points (P, d) and offsets (n + 1,)")
    points, offsets = arrays["points"], arrays["offsets"]
    rising = offsets.ndim == 1 and offsets.dtype.kind in "iu" and len(offsets) >= 2 and (np.diff(offsets) > 0).all()
    if points.ndim != 2 or not rising or offsets[0] != 0 or offsets[-1] != len(points):
        raise FileError(f"{path}: offsets must rise from 0 to the number of points ({len(points)})")
    n = len(offsets) - 1
    for key, wanted in (("weights", len(points)), ("names", len(points)), ("labels", n), ("levels", n)):
        if key in arrays and arrays[key].shape != (wanted,):
            raise FileError(f"{path}: {key} has shape {arrays[key].shape}, expected ({wanted},)")
    weights, names, levels = (arrays.get(key) for key in ("weights", "names", "levels"))

    def one(i: int) -> Signature:
        rows = slice(int(offsets[i]), int(offsets[i + 1]))
        return Signature(
            points[rows],
            None if weights is None else weights[rows],
            None if levels is None else levels[i].item(),
            None if names is None else [str(s) for s in names[rows]],
            where=f"{path}: signature {i}",
        )

    return Sets(tuple(one(i) for i in range(n)), arrays.get("labels"))
