"""Labels, levels and pairs of sets as the user gave them; each refusal names the argument."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from likewise.errors import InputError, ShapeError
from likewise.sets.transport.solvers import Index
from likewise.types import Signature


def of_one_dimension(sets: list[Signature], where: str) -> list[Signature]:
    """The same sets, if all have as many coordinates as the first."""
    for k, s in enumerate(sets):
        if s.dim != sets[0].dim:
            raise ShapeError(f"{where}[{k}] has {s.dim} dimensions where {where}[0] has {sets[0].dim}")
    return sets


def labels_of(y: Any, n: int) -> Any:
    """One label a set, (n,)."""
    if y is None:
        raise InputError("requires y to be passed, but the target y is None: one label a set")
    try:
        labels = column_or_1d(y, warn=True)
        assert_all_finite(labels, input_name="y")
        check_classification_targets(labels)
    except ValueError as error:  # scikit-learn's words: its own checks look for them
        raise InputError(f"y: {error}") from None
    if len(labels) != n:
        raise ShapeError(f"y: expected {n} labels, one a set, got {len(labels)}")
    return labels


def check_classes(classes: Any, codes: Index) -> None:
    """At least two classes, of at least two members each."""
    if len(classes) < 2:
        raise InputError(f"y: expected at least two classes, got 1 class ({plain(classes[0])!r})")
    sizes = np.bincount(codes)
    if sizes.min() < 2:
        lone = [repr(plain(classes[c])) for c in np.flatnonzero(sizes < 2)]
        raise InputError(
            f"y: class {', '.join(lone[:5])} has one member; each class needs two to learn from: "
            "add one or leave the class out"
        )


def levels_of(sets: list[Signature], labels: Any, levels: Sequence[Hashable] | None) -> list[Hashable]:
    """The level of each set: as given, else as its signature says (if all do), else its class."""
    if levels is not None:
        if len(levels) != len(sets):
            raise ShapeError(f"levels: expected {len(sets)}, one a set, got {len(levels)}")
        if any(t is None for t in levels):
            raise InputError("levels: None is not a level; name the level of every set")
        return [plain(t) for t in levels]
    own = [plain(s.level) for s in sets]
    if all(t is not None for t in own):
        return own
    return [plain(c) for c in labels]


def plain(value: Any) -> Hashable:
    """A NumPy scalar as the Python value it stands for, so that 1 and np.int64(1) are one level."""
    inner: Hashable = value.item() if isinstance(value, np.generic) else value
    return inner


def distinct(names: list[Hashable]) -> list[Hashable]:
    """Each level once, sorted where they can be, else in order of appearance."""
    once = list(dict.fromkeys(names))
    try:
        return sorted(once)  # type: ignore[type-var]
    except TypeError:
        return once


def positions(names: list[Hashable], once: list[Hashable]) -> Index:
    """Where each name stands in the list of distinct ones."""
    at = {name: k for k, name in enumerate(once)}
    return np.array([at[name] for name in names], dtype=np.int64)


def pair_of(item: Any, k: int) -> tuple[Any, Any]:
    """The two sets of pair k."""
    try:
        p, q = item
    except (TypeError, ValueError):
        raise InputError(f"pairs[{k}]: expected two sets (p, q), got {type(item).__name__}") from None
    return p, q


def pair_levels(sets: list[Signature], n: int, levels: Any) -> list[Hashable]:
    """The level of each pair (sets[2k], sets[2k + 1]): one for all, one a pair, or what the two sets say."""
    if levels is None:
        return [_common(sets[2 * k], sets[2 * k + 1], k) for k in range(n)]
    if isinstance(levels, str) or not isinstance(levels, Iterable):
        return [levels] * n
    return list(levels)


def _common(p: Signature, q: Signature, k: int) -> Hashable:
    if p.level is not None and q.level is not None and p.level != q.level:
        raise InputError(f"pairs[{k}]: the two sets are of levels {p.level!r} and {q.level!r}; say which with levels=")
    return p.level if p.level is not None else q.level
