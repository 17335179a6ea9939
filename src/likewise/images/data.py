"""Labelled images, and how training sees them: class folders, splits, crops, balanced batches, decoding ahead."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import math
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import ArrayLike, NDArray

from likewise import inputs, media
from likewise.errors import FileError, InputError, LikewiseError, ShapeError
from likewise.images.embedder import Skipped, name_of, read_ahead
from likewise.nn.backbone import CROP, SHORTEST, crop, resize

Index: TypeAlias = NDArray[np.int64]
Pixels: TypeAlias = NDArray[np.uint8]
Split: TypeAlias = Literal["train", "test"]
Box: TypeAlias = tuple[int, int, int, int]
"""Left, top, right, bottom: a part of an image in whole pixels, never empty."""

LOOKAHEAD = 2
"""Batches, at least, that are prepared while the network is busy with another."""
ATTEMPTS = 10
"""How often an area and a shape are drawn before the largest part that fits is taken instead."""
RATIO = (3 / 4, 4 / 3)
"""Width to height of a random crop."""

_PASS, _PLAN, _FILL, _LOAD = 0, 1, 2, 0x10AD
"""What a stream of random numbers is for, so that no two purposes share one."""


# ------------------------------------------------------------------------------------------------------ labelled images


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Images with their classes: what `lw.images.train` learns from and `lw.images.evaluate` measures on.

    Parameters
    ----------
    items : sequence of n images
        Paths, arrays (h, w, 3), Pillow images or tensors (3, h, w).
    labels : array (n,)
        The class of each: numbers 0 … C − 1 with `classes`, or without it anything that can be sorted.
    classes : sequence of C strings, optional
        Their names.
    name : str, default "images"
        What the data are called in results.

    Raises
    ------
    InputError, ShapeError
        If there is not one label an image, or a label has no class.

    Examples
    --------
    >>> import likewise as lw
    >>> data = lw.images.Dataset(["a.jpg", "b.jpg", "c.jpg"], ["cat", "dog", "cat"])
    >>> data, data.classes, data.counts.tolist()
    (Dataset(images: 3 images of 2 classes), ('cat', 'dog'), [2, 1])
    >>> data.of_classes([0]).items
    ('a.jpg', 'c.jpg')
    """

    items: tuple[Any, ...]
    labels: Index
    classes: tuple[str, ...] = ()
    name: str = "images"

    def __post_init__(self) -> None:
        labels, classes = _number(np.asarray(self.labels), tuple(self.classes))
        for field, value in (("items", tuple(self.items)), ("labels", labels), ("classes", classes)):
            object.__setattr__(self, field, value)
        if len(self.items) != len(labels):
            raise ShapeError(f"labels: expected {len(self.items)}, one an image, got {len(labels)}")

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        return f"Dataset({self.name}: {len(self):,} images of {len(self.classes):,} classes)"

    @property
    def counts(self) -> Index:
        """How many images each class has, (C,)."""
        return np.bincount(self.labels, minlength=len(self.classes)).astype(np.int64)

    @property
    def digest(self) -> str:
        """What tells this data from other: sha256 of the names (of arrays, the bytes) and classes of all images."""
        sha = hashlib.sha256(repr((self.name, self.classes)).encode())
        sha.update(np.ascontiguousarray(self.labels).tobytes())
        for item in self.items:
            named = isinstance(item, str | os.PathLike)
            sha.update(os.fsencode(os.path.abspath(item)) + b"\0" if named else np.asarray(item).tobytes())
        return sha.hexdigest()

    def subset(self, indices: ArrayLike) -> Dataset:
        """These images in this order; the classes are renumbered to those present."""
        chosen = _within("indices", indices, len(self))
        present, labels = np.unique(self.labels[chosen], return_inverse=True)
        items = tuple(self.items[i] for i in chosen)
        return Dataset(items, labels.astype(np.int64), tuple(self.classes[c] for c in present), self.name)

    def of_classes(self, indices: ArrayLike) -> Dataset:
        """The images of these classes, in the order in which they stand."""
        chosen = _within("indices", indices, len(self.classes))
        return self.subset(np.flatnonzero(np.isin(self.labels, chosen)))

    def split(self, validation: float = 0.2, seed: int = 0, *, last: bool = False) -> tuple[Dataset, Dataset]:
        """Training and validation parts that share no class.

        `validation` is the share of the classes, or with a whole number their count; they are drawn by `seed`, or with
        `last` taken from the end (of CUB200's training classes 1–100, the last 0.2 are 81–100).
        """
        present = np.flatnonzero(self.counts)
        kept = len(present) - _validation_classes(validation, len(present))
        order = present if last else np.random.default_rng(seed).permutation(present)
        return self.of_classes(order[:kept]), self.of_classes(order[kept:])


def folder(path: str | os.PathLike[str], split: Split | None = None) -> Dataset:
    """Class folders: each folder that holds images, at any depth, is a class, named by its path within `path`.

    Parameters
    ----------
    path : path
        The folder of the class folders.
    split : {"train", "test"}, optional
        The subfolder of that name; where there is neither, all is for training.

    Returns
    -------
    Dataset
        Classes and files in natural order.

    Raises
    ------
    FileError
        If there is no such folder, no image, or an image beside the class folders.

    Examples
    --------
    >>> import likewise as lw, numpy as np, pathlib, tempfile
    >>> from PIL import Image
    >>> root = pathlib.Path(tempfile.mkdtemp(), "pets")
    >>> for name in ("cat/1.png", "cat/2.png", "dog/1.png"):
    ...     (root / name).parent.mkdir(parents=True, exist_ok=True)
    ...     Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(root / name)
    >>> lw.images.folder(root)
    Dataset(pets: 3 images of 2 classes)
    """
    if split not in (None, "train", "test"):
        raise InputError(f'split: expected "train", "test" or None, got {split!r}')
    root = Path(path)
    if not root.is_dir():
        raise FileError(f"{root}: {'not a folder' if root.exists() else 'no such folder'}")
    if split is not None and (root / split).is_dir():
        root /= split
    elif split == "test" or (split == "train" and (root / "test").is_dir()):
        raise FileError(f"{root}: no folder {split!r} in it; read it whole, and divide it by class with .split()")
    files = media.images(root)
    loose = [f for f in files if f.parent == root]
    if not files:
        raise FileError(f"{root}: no image in this folder or below it")
    if len(loose) == len(files):
        fix = "move those of each class into a folder of their own (embed and search need no classes)"
        raise FileError(f"{root}: {len(files)} images and no class folders; {fix}")
    if loose:
        raise FileError(f"{loose[0]}: lies beside the class folders ({len(loose)} such); move it into one of them")
    return label_by_name(files, [f.parent.relative_to(root).as_posix() for f in files], root.resolve().name)


def label_by_name(items: Sequence[Any], names: Sequence[str], name: str) -> Dataset:
    """Images by the names of their classes, which keep the order in which they first appear."""
    where = {c: i for i, c in enumerate(dict.fromkeys(names))}
    return Dataset(tuple(items), np.array([where[c] for c in names], dtype=np.int64), tuple(where), name)


def as_dataset(dataset: Dataset | str | os.PathLike[str], split: Split | None = None) -> Dataset:
    """A Dataset as it is, or the class folders at a path."""
    if isinstance(dataset, str | os.PathLike):
        return folder(dataset, split)
    if not isinstance(dataset, Dataset):
        raise InputError(f"dataset: expected a Dataset or the path of a folder, got {type(dataset).__name__}")
    return dataset


def _within(argument: str, indices: ArrayLike, n: int) -> Index:
    """Indices (m,) of n things as int64, a copy; refused where empty, not whole or out of range."""
    array = np.array(indices)
    if array.ndim != 1 or len(array) == 0:
        raise ShapeError(f"{argument}: expected (m,) with m ≥ 1, got shape {array.shape}")
    if not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"{argument}: expected whole numbers, got {array.dtype}")
    if array.min() < 0 or array.max() >= n:
        raise InputError(f"{argument}: expected numbers in 0 … {n - 1}, got {array.min()} to {array.max()}")
    return array.astype(np.int64)


def _number(labels: NDArray[Any], classes: tuple[str, ...]) -> tuple[Index, tuple[str, ...]]:
    if classes:
        return _within("labels", labels, len(classes)), classes
    if labels.ndim != 1 or len(labels) == 0:
        raise ShapeError(f"labels: expected (n,) with n ≥ 1, one an image, got shape {labels.shape}")
    names, numbers = np.unique(labels, return_inverse=True)
    return numbers.astype(np.int64), tuple(str(n) for n in names)


def _validation_classes(validation: float, n: int) -> int:
    """How many of n classes are for validation; with one class in a part, nothing could be ranked there."""
    if n < 4:
        raise InputError(
            f"validation: {n} classes cannot be divided in two and two; give more, or train with validation=0"
        )
    if isinstance(validation, int) and not isinstance(validation, bool) and 2 <= validation <= n - 2:
        return validation
    if isinstance(validation, float) and 0 < validation < 1:
        return min(max(round(validation * n), 2), n - 2)
    raise InputError(f"validation: expected a share in (0, 1), or 2 to {n - 2} classes, got {validation!r}")


# --------------------------------------------------------------------------------------------------------------- crops


@dataclass(frozen=True)
class Augment:
    """A random part of an image as uint8 (size, size, 3), mirrored half of the time where `flip`.

    The part's area is a share of the image's, at least `smallest`, and its width to height is between 3/4 and 4/3, both
    drawn (the ratio in logarithm). random=False is the crop for evaluation: the centre of the image with its shortest
    side at `shortest`, never mirrored.
    """

    size: int = CROP
    random: bool = True
    shortest: int = SHORTEST
    smallest: float = 0.16
    flip: bool = True

    def __call__(self, array: UInt8[np.ndarray, "h w 3"], rng: np.random.Generator) -> UInt8[np.ndarray, "s s 3"]:
        """One draw from `array`; the same state of `rng` gives the same bytes."""
        if not self.random:
            return crop(array, self.size, self.shortest)
        left, top, right, bottom = self.box(array.shape[0], array.shape[1], rng)
        part = array[top:bottom, left:right]
        return sample(part[:, ::-1] if self.flip and rng.random() < 0.5 else part, self.size)

    def box(self, height: int, width: int, rng: np.random.Generator) -> Box:
        """A random part of an image of this size, always within it."""
        for _ in range(ATTEMPTS):
            area = height * width * rng.uniform(self.smallest, 1.0)
            ratio = math.exp(rng.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
            h, w = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 1 <= h <= height and 1 <= w <= width:
                left, top = int(rng.integers(0, width - w + 1)), int(rng.integers(0, height - h + 1))
                return left, top, left + w, top + h
        # an image so long that no draw fits: the largest part in the middle whose shape is allowed
        h = max(1, min(height, round(width / RATIO[0])))
        w = max(1, min(width, round(height * RATIO[1])))
        left, top = (width - w) // 2, (height - h) // 2
        return left, top, left + w, top + h

    @property
    def decoded_side(self) -> int:
        """The shortest side at which a decoder may stop: of a square image the smallest crop still has `size` px."""
        return math.ceil(self.size / math.sqrt(self.smallest)) if self.random else 2 * self.shortest


def sample(part: UInt8[np.ndarray, "h w 3"], size: int) -> UInt8[np.ndarray, "s s 3"]:
    """A part of an image at size × size, antialiased bicubic like `nn.backbone.resize`, four times as fast."""
    x = torch.from_numpy(part[None].copy()).permute(0, 3, 1, 2)  # channels last, which has a kernel of its own
    y = torch.nn.functional.interpolate(x, (size, size), mode="bicubic", antialias=True)
    return np.ascontiguousarray(y.permute(0, 2, 3, 1)[0].numpy())


# ------------------------------------------------------------------------------------------------------------- batches


class BalancedBatches:
    """Batches of `classes` classes × `per_class` distinct images, class by class; epoch e is a function of (seed, e).

    In one pass the images of a class are shuffled and dealt in hands of `per_class`, the last hand filled up from the
    first, so that each image is dealt. An epoch of ⌈all hands / classes⌉ batches is one pass of every class; a class
    with more hands than there are batches goes on where it stopped in the next epoch, and empty places get hands of
    another shuffle. Classes with fewer than `per_class` images are in no batch and in `left_out`.
    """

    def __init__(self, labels: ArrayLike, classes: int, per_class: int, *, seed: int = 0) -> None:
        self.classes, self.per_class, self.seed = int(classes), int(per_class), int(seed)
        self.labels = np.asarray(labels).astype(np.int64)
        names, self._counts = np.unique(self.labels, return_counts=True)
        self.left_out = tuple(int(c) for c in names[self._counts < self.per_class])
        self._starts = np.cumsum(self._counts) - self._counts
        self._eligible = np.flatnonzero(self._counts >= self.per_class)
        if len(self._eligible) < self.classes:
            raise InputError(
                f"classes: expected at most {len(self._eligible)}, the classes of {len(names)} that have "
                f"{self.per_class} or more images, got {self.classes}; lower classes or per_class"
            )
        self._hands = -(-self._counts[self._eligible] // self.per_class)
        self._length = int(-(-self._hands.sum() // self.classes))
        self._share = np.minimum(self._hands, self._length)
        self._kept: tuple[int, list[Index]] = (-1, [])

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self._length

    def batch(self, step: int) -> Index:
        """The images of a step, int64 (classes · per_class,)."""
        epoch, place = divmod(step, len(self))
        if epoch != self._kept[0]:
            self._kept = epoch, self.epoch(epoch)
        return self._kept[1][place]

    def epoch(self, e: int) -> list[Index]:
        """The batches of epoch e = 0, 1, …, each int64 (classes · per_class,)."""
        fill = self._fill(e)
        dealt = self._dealt(e, fill)
        return [np.concatenate([next(dealt[c]) for c in chosen]) for chosen in self._plan(e, self._share + fill)]

    def _rng(self, *key: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *key])

    def _fill(self, e: int) -> Index:
        """How many further hands each class gives, so that all places are taken and none has more than one a batch."""
        fill = np.zeros_like(self._share)
        missing, rng = self._length * self.classes - int(self._share.sum()), self._rng(_FILL, e, 0)
        while missing > 0:
            room = np.flatnonzero(self._share + fill < self._length)
            chosen = rng.permutation(room)[:missing]
            fill[chosen] += 1
            missing -= len(chosen)
        return fill

    def _plan(self, e: int, remaining: Index) -> Iterator[Index]:
        """Which classes meet in which batch: drawn by what they have left, those that must appear in every one first.

        Held throughout: the hands left are (batches left) · classes, and no class has more than there are batches left.
        """
        left, rng = remaining.copy(), self._rng(_PLAN, e)
        for batches_left in range(self._length, 0, -1):
            keys = np.full(len(left), -np.inf)
            some = left > 0
            keys[some] = -rng.exponential(size=int(some.sum())) / left[some]  # weighted draw without replacement
            keys[left == batches_left] = 1.0
            chosen = np.argpartition(-keys, self.classes - 1)[: self.classes]
            left[chosen] -= 1
            yield rng.permutation(np.sort(chosen))

    def _dealt(self, e: int, fill: Index) -> list[Iterator[Index]]:
        """For each class, the hands of its share of epoch e, then those that fill up."""

        @functools.cache
        def order(*key: int) -> Index:
            return np.lexsort((self._rng(*key).random(len(self.labels)), self.labels)).astype(np.int64)

        def hands(c: int) -> Iterator[Index]:
            share, count = int(self._share[c]), int(self._hands[c])
            for t in range(e * share, (e + 1) * share):
                yield self._hand(c, t % count, order(_PASS, t // count))
            for t in range(int(fill[c])):
                yield self._hand(c, t % count, order(_FILL, e, 1 + t // count))

        return [hands(c) for c in range(len(fill))]

    def _hand(self, c: int, number: int, order: Index) -> Index:
        """Hand `number` of class c under a shuffle of everything: `per_class` places from there on, around the end."""
        k = int(self._eligible[c])
        places = (number * self.per_class + np.arange(self.per_class)) % self._counts[k]
        return np.asarray(order[self._starts[k] + places])


# ------------------------------------------------------------------------------------------------------------- loading


class Loader:
    """Augmented images by index: the bytes depend on (seed, step, index, view), never on the threads.

    `keep_side` keeps each decoded image, its shortest side brought down to so many pixels, in memory (about 85 kB an
    image at 144): it is decoded once. An image that cannot be read is named in `.skipped` and replaced by the next one
    of its class that can be read and is not in the batch.
    """

    def __init__(
        self,
        items: Sequence[Any],
        labels: ArrayLike,
        augment: Augment,
        *,
        views: int = 1,
        seed: int = 0,
        workers: int = 2,
        keep_side: int | None = None,
    ) -> None:
        self.items, self.labels, self.augment = tuple(items), np.asarray(labels), augment
        self.views, self.seed, self.workers, self.keep_side = views, seed, workers, keep_side
        self._kept: dict[int, Pixels] = {}
        self._bad: dict[int, Skipped] = {}

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """The images that could not be read so far, in order."""
        bad = self._bad.copy()
        return tuple(bad[i] for i in sorted(bad))

    def leave_out(self, unreadable: Iterable[Skipped]) -> None:
        """Take these for unreadable, as an earlier pass did."""
        self._bad.update({s.index: s for s in unreadable})

    def ahead(
        self, batches: Iterable[ArrayLike], start: int = 0, *, stride: int = 1
    ) -> Generator[tuple[int, Index, Pixels]]:
        """(step, indices, arrays) of each batch, steps start, start + stride, …; the next are prepared meanwhile."""
        numbered = zip(itertools.count(start, stride), batches)
        lookahead = max(LOOKAHEAD, self.workers) + 1
        made = read_ahead(numbered, lookahead, lambda one: self.load(one[1], one[0]), self.workers, "likewise-load")
        with contextlib.closing(made) as coming:
            for (step, _), future in coming:
                yield step, *future.result()

    def load(self, indices: ArrayLike, step: int) -> tuple[Index, Pixels]:
        """These images as they are seen at this step: uint8 (views, n, size, size, 3).

        The indices are those of the images that are really there, after the unreadable ones have been replaced.
        """
        chosen, size = _within("indices", indices, len(self.items)), self.augment.size
        arrays = np.empty((self.views, len(chosen), size, size, 3), dtype=np.uint8)
        for k in [k for k, i in enumerate(chosen) if not self._show(int(i), step, arrays[:, k])]:
            chosen[k] = self._replace(chosen, k, step, arrays[:, k])
        return chosen, arrays

    def _show(self, i: int, step: int, out: Pixels) -> bool:
        """Write the views of image i to `out`; False where it cannot be read, which is noted once."""
        if i in self._bad:
            return False
        try:
            array = self._source(i)
        except LikewiseError as error:
            self._bad[i] = Skipped(i, name_of(self.items[i], i), str(error))
            return False
        for view in range(self.views):
            out[view] = self.augment(array, np.random.default_rng([self.seed, step, i, view, _LOAD]))
        return True

    def _source(self, i: int) -> Pixels:
        """Image i, as it is kept or freshly decoded."""
        if i in self._kept:
            return self._kept[i]
        side = self.augment.decoded_side if self.keep_side is None else 2 * self.keep_side
        array = inputs.image(self.items[i], where=f"image {i}").reduced(side, keep=False)
        if self.keep_side is not None:
            array = self._kept[i] = _shrink(array, self.keep_side)
        return array

    def _replace(self, taken: Index, k: int, step: int, out: Pixels) -> int:
        """The next after an unreadable image, around the end: of its class first, and not in the batch."""
        i = int(taken[k])
        order = np.roll(np.arange(len(self.items)), -(i + 1))
        rank = 2 * (self.labels[order] != self.labels[i]) + np.isin(order, taken)
        for j in order[np.argsort(rank, kind="stable")]:
            if self._show(int(j), step, out):
                return int(j)
        raise FileError(f"none of the {len(self.items)} images can be read; the first: {self.skipped[0].reason}")


def _shrink(array: Pixels, side: int) -> Pixels:
    """The whole image with its shortest side at most `side`: antialiased bicubic."""
    height, width = array.shape[:2]
    scale = side / min(height, width)
    if scale >= 1:
        return array
    return resize(array, (max(side, round(width * scale)), max(side, round(height * scale))))
