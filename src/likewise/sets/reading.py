"""Reading what the user gave: sets in all their forms, labels, levels, pairs; each refusal names the argument."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from likewise.errors import InputError, ShapeError
from likewise.sets.transport.solvers import Index
from likewise.types import Signature

Set = Signature | tuple[ArrayLike, ArrayLike] | ArrayLike
"""What counts as a set: a Signature, (points, weights), or an (m, d) array of equally weighted points."""


def signatures(X: Any, *, where: str = "X") -> list[Signature]:
    """X as a list of Signatures: Signature, (points, weights) or (m, d) arrays; a row of a 2-D array is one point."""
    if isinstance(X, Signature):
        raise InputError(f"{where}: expected several sets, got one Signature; put it in a list")
    held = _as_array(X, where)
    try:
        members = list(held)
    except TypeError:
        raise InputError(f"{where}: expected a sequence of sets, got {type(X).__name__}") from None
    if not members:
        raise ShapeError(f"{where}: expected at least one set, got none (Found array with 0 sample(s))")
    return [signature_of(member, where=f"{where}[{i}]") for i, member in enumerate(members)]


def signature_of(member: Any, *, where: str) -> Signature:
    """One set as a Signature."""
    if isinstance(member, Signature):
        return member
    if isinstance(member, tuple):
        if len(member) != 2:
            raise InputError(f"{where}: expected (points, weights), got a tuple of {len(member)}")
        return Signature(*member, where=where)
    return Signature(member, where=where)


def of_one_dimension(sets: list[Signature], where: str) -> list[Signature]:
    """The same sets, if all have as many coordinates as the first."""
    for k, s in enumerate(sets):
        if s.dim != sets[0].dim:
            raise ShapeError(f"{where}[{k}] has {s.dim} dimensions where {where}[0] has {sets[0].dim}")
    return sets


def _as_array(X: Any, where: str) -> Any:
    """Data frames and other containers as the array they hold, checked; lists as they are."""
    if hasattr(X, "toarray"):
        raise InputError(f"{where} is sparse; give X.toarray()")
    if hasattr(X, "to_numpy"):
        X = X.to_numpy()
    if not isinstance(X, np.ndarray | Sequence) and hasattr(X, "__array__"):
        X = np.asarray(X)
    if isinstance(X, np.ndarray):
        return X if X.dtype == object and X.ndim == 1 else _checked(_numeric(X, where), where)
    return X


def _checked(X: Any, where: str) -> Any:
    """An array of numbers (n, d) or (n, m, d); the words are those that scikit-learn's own checks look for."""
    if X.ndim == 1:
        raise ShapeError(f"{where}: expected sets or a 2-D array, got a 1-D array. Reshape your data: X.reshape(-1, 1)")
    if X.ndim not in (2, 3):
        raise ShapeError(f"{where}: expected a list of (m, d) sets, or (n, d) or (n, m, d); got shape {X.shape}")
    if np.iscomplexobj(X):
        raise InputError(f"{where}: Complex data not supported")
    if X.shape[-1] == 0:
        raise ShapeError(f"{where}: 0 feature(s) (shape={X.shape}) while a minimum of 1 is required.")
    return X


def _numeric(X: Any, where: str) -> Any:
    """An object array of two or more dimensions as numbers."""
    if X.dtype != object:
        return X
    try:
        return X.astype(np.float64)
    except TypeError as error:
        raise NotNumbers(f"{where}: argument must be a string or a number: {error}") from None
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None


class NotNumbers(InputError, TypeError):
    """A value of a type that is no number: an InputError that is a TypeError, too, as scikit-learn expects."""


def labels_of(y: Any, n: int) -> Any:
    """One label a set, (n,)."""
    if y is None:
        raise InputError("requires y to be passed, but the target y is None: one label a set")
    import sklearn.exceptions

    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        warnings.warn(
            "A column-vector y was passed when a 1d array was expected; its one column is taken",
            sklearn.exceptions.DataConversionWarning,
            stacklevel=3,
        )
        labels = labels.ravel()
    if labels.ndim != 1:
        raise ShapeError(f"y: expected one label a set, ({n},), got shape {labels.shape}")
    if len(labels) != n:
        raise ShapeError(f"y: expected {n} labels, one a set, got {len(labels)}")
    if labels.dtype.kind == "f":
        if not np.isfinite(labels).all():
            raise InputError("y contains NaN or infinity; give a label a set")
        if (labels != np.round(labels)).any():
            raise InputError("Unknown label type: continuous; y must hold class labels, not measurements")
    if labels.dtype == object and len({type(v) for v in labels}) > 1:
        raise InputError("y: labels are of several types; give all of one type (all text, or all integers)")
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
