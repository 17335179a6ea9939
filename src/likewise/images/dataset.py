"""Pictures with their classes, and how they are divided."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likewise.errors import InputError, ShapeError

if TYPE_CHECKING:
    from likewise.images.data import Picture

Index = NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Pictures `items` (paths, or uint8 arrays), their `labels` int64 (n,) in 0 … C − 1, and the C names `classes`.

    Without `classes`, the labels may be anything that can be sorted (names, other numbers): they become the names.
    """

    items: tuple[Picture, ...]
    labels: Index
    classes: tuple[str, ...] = ()
    name: str = "pictures"

    def __post_init__(self) -> None:
        labels, classes = _numbered(np.asarray(self.labels), tuple(self.classes))
        for field, value in (("items", tuple(self.items)), ("labels", labels), ("classes", classes)):
            object.__setattr__(self, field, value)
        if len(self.items) != len(labels):
            raise ShapeError(f"labels: expected {len(self.items)}, one a picture, got {len(labels)}")

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        return f"Dataset({self.name}: {len(self):,} pictures of {len(self.classes):,} classes)"

    @property
    def counts(self) -> Index:
        """How many pictures each class has, (C,)."""
        return np.bincount(self.labels, minlength=len(self.classes)).astype(np.int64)

    @property
    def digest(self) -> str:
        """What tells this data from other: sha256 of the names (of arrays, the bytes) and classes of all pictures."""
        found = hashlib.sha256(repr((self.name, self.classes)).encode())
        found.update(np.ascontiguousarray(self.labels).tobytes())
        for item in self.items:
            named = isinstance(item, str | os.PathLike)
            found.update(os.fsencode(os.path.abspath(item)) + b"\0" if named else np.asarray(item).tobytes())
        return found.hexdigest()

    def rare(self, least: int = 2) -> tuple[str, ...]:
        """The classes with fewer than `least` pictures: no batch of `least` a class can hold them."""
        return tuple(c for c, n in zip(self.classes, self.counts, strict=True) if n < least)

    def subset(self, indices: ArrayLike) -> Dataset:
        """These pictures in this order; the classes are renumbered to those present."""
        chosen = within("indices", indices, len(self))
        present, labels = np.unique(self.labels[chosen], return_inverse=True)
        items = tuple(self.items[i] for i in chosen)
        return Dataset(items, labels.astype(np.int64), tuple(self.classes[c] for c in present), self.name)

    def of_classes(self, indices: ArrayLike) -> Dataset:
        """The pictures of these classes, in the order in which they stand."""
        chosen = within("indices", indices, len(self.classes))
        return self.subset(np.flatnonzero(np.isin(self.labels, chosen)))

    def split(self, validation: float = 0.2, seed: int = 0, *, last: bool = False) -> tuple[Dataset, Dataset]:
        """Training and validation parts that share no class.

        `validation` is the share of the classes, or with a whole number their count; they are drawn by `seed`, or with
        `last` taken from the end (of CUB200's training classes 1–100, the last 0.2 are 81–100).
        """
        whole("seed", seed, 0)
        present = np.flatnonzero(self.counts)
        kept = len(present) - _validation_classes(validation, len(present))
        order = present if last else np.random.default_rng(seed).permutation(present)
        return self.of_classes(order[:kept]), self.of_classes(order[kept:])


def whole(argument: str, value: object, least: int) -> None:
    """Refuse what is not a whole number ≥ `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{argument}: expected a whole number ≥ {least}, got {value!r}")


def within(argument: str, indices: ArrayLike, n: int) -> Index:
    """Indices (m,) of n things as int64, a copy; refused where empty, not whole or out of range."""
    array = np.array(indices)
    if array.ndim != 1 or len(array) == 0:
        raise ShapeError(f"{argument}: expected (m,) with m ≥ 1, got shape {array.shape}")
    if not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"{argument}: expected whole numbers, got {array.dtype}")
    if array.min() < 0 or array.max() >= n:
        raise InputError(f"{argument}: expected numbers in 0 … {n - 1}, got {array.min()} to {array.max()}")
    return array.astype(np.int64)


def _numbered(labels: NDArray[Any], classes: tuple[str, ...]) -> tuple[Index, tuple[str, ...]]:
    if classes:
        return within("labels", labels, len(classes)), classes
    if labels.ndim != 1 or len(labels) == 0:
        raise ShapeError(f"labels: expected (n,) with n ≥ 1, one a picture, got shape {labels.shape}")
    names, numbers = np.unique(labels, return_inverse=True)
    return numbers.astype(np.int64), tuple(str(n) for n in names)


def _validation_classes(validation: float, n: int) -> int:
    """How many of n classes are for validation; with one class in a part, nothing could be ranked there."""
    if n < 4:
        raise InputError(f"validation: {n} classes cannot be divided, as both parts need two; give four or more")
    if isinstance(validation, int) and not isinstance(validation, bool) and 2 <= validation <= n - 2:
        return validation
    if isinstance(validation, float) and 0 < validation < 1:
        return min(max(round(validation * n), 2), n - 2)
    raise InputError(f"validation: expected a share in (0, 1), or 2 to {n - 2} classes, got {validation!r}")
