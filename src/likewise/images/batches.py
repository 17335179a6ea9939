"""Class-balanced batches: so many classes, so many distinct pictures of each, and a turn for every picture."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likewise.errors import InputError, ShapeError
from likewise.images.dataset import whole

Index = NDArray[np.int64]

_PASS, _PLAN, _FILL = 0, 1, 2
"""What a stream of random numbers is for, so that no two purposes share one."""


class BalancedBatches:
    """Batches of `classes` classes × `per_class` distinct pictures, class by class; epoch e is a function of (seed, e).

    In one pass the pictures of a class are shuffled and dealt in hands of `per_class`, the last hand filled up from the
    first, so that each picture is dealt. An epoch of ⌈all hands / classes⌉ batches is one pass of every class; a class
    with more hands than there are batches goes on where it stopped in the next epoch, and empty places get hands of
    another shuffle. Classes with fewer than `per_class` pictures are in no batch and in `left_out`.
    """

    def __init__(self, labels: ArrayLike, classes: int, per_class: int, *, seed: int = 0) -> None:
        for name, value, least in (("classes", classes, 1), ("per_class", per_class, 1), ("seed", seed, 0)):
            whole(name, value, least)
        self.classes, self.per_class, self.seed = int(classes), int(per_class), int(seed)
        self.labels = _labels(labels)
        self._names, self._counts = np.unique(self.labels, return_counts=True)
        self._starts = np.cumsum(self._counts) - self._counts
        self._eligible = np.flatnonzero(self._counts >= self.per_class)
        self._enough()
        self._hands = -(-self._counts[self._eligible] // self.per_class)
        self._length = int(-(-self._hands.sum() // self.classes))
        self._share = np.minimum(self._hands, self._length)

    @property
    def left_out(self) -> tuple[int, ...]:
        """The labels with fewer than `per_class` pictures, which no batch holds."""
        return tuple(int(c) for c in self._names[self._counts < self.per_class])

    @property
    def batch_size(self) -> int:
        """Pictures in a batch."""
        return self.classes * self.per_class

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self._length

    def __repr__(self) -> str:
        return f"BalancedBatches({self.classes} classes × {self.per_class} pictures, {len(self)} batches an epoch)"

    def epoch(self, e: int) -> list[Index]:
        """The batches of epoch e = 0, 1, …, each int64 (classes · per_class,)."""
        whole("e", e, 0)
        fill = self._fill(int(e))
        dealt = self._dealt(int(e), fill)
        plan = self._plan(int(e), self._share + fill)
        return [np.concatenate([next(dealt[c]) for c in chosen]) for chosen in plan]

    def _rng(self, *key: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *key])

    def _enough(self) -> None:
        if len(self._eligible) < self.classes:
            raise InputError(
                f"classes: expected at most {len(self._eligible)}, the classes of {len(self._names)} that have "
                f"{self.per_class} or more pictures, got {self.classes}; lower classes or per_class"
            )

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

        return [self._hands_of(c, e, int(n), order) for c, n in enumerate(fill)]

    def _hands_of(self, c: int, e: int, fill: int, order: Callable[..., Index]) -> Iterator[Index]:
        share, hands = int(self._share[c]), int(self._hands[c])
        for t in range(e * share, (e + 1) * share):
            yield self._hand(c, t % hands, order(_PASS, t // hands))
        for t in range(fill):
            yield self._hand(c, t % hands, order(_FILL, e, 1 + t // hands))

    def _hand(self, c: int, number: int, order: Index) -> Index:
        """Hand `number` of class c under a shuffle of everything: `per_class` places from there on, around the end."""
        k = int(self._eligible[c])
        places = (number * self.per_class + np.arange(self.per_class)) % self._counts[k]
        return np.asarray(order[self._starts[k] + places])


def _labels(labels: ArrayLike) -> Index:
    array = np.asarray(labels)
    if array.ndim != 1 or len(array) == 0:
        raise ShapeError(f"labels: expected (n,), one a picture, got shape {array.shape}")
    if not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"labels: expected whole numbers, got {array.dtype}")
    return array.astype(np.int64)
