"""Labels, levels and pairs of sets: as the user gives them, and as a file holds them; refusals name the argument."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from likewise.errors import InputError, ShapeError
from likewise.sets.transport.solvers import Index
from likewise.types import Signature


def read_labels(y: Any, n: int) -> tuple[Any, Index]:
    """The classes, and the number of its class for each of n sets; at least two classes, of two members each."""
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
    classes, codes = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise InputError(f"y: expected at least two classes, got 1 class ({plain(classes[0])!r})")
    lone = [repr(plain(classes[c])) for c in np.flatnonzero(np.bincount(codes) < 2)]
    if lone:
        raise InputError(
            f"y: class {', '.join(lone[:5])} has one member; each class needs two to learn from: "
            "add one or leave the class out"
        )
    return classes, codes.astype(np.int64)


def read_levels(sets: list[Signature], labels: Any, levels: Sequence[Hashable] | None) -> list[Hashable]:
    """The level of each set: as given, else as its signature says (if all do), else its class."""
    if levels is not None:
        if len(levels) != len(sets):
            raise ShapeError(f"levels: expected {len(sets)}, one a set, got {len(levels)}")
        if any(t is None for t in levels):
            raise InputError("levels: None is not a level; name the level of every set")
        return [plain(t) for t in levels]
    own = [plain(s.level) for s in sets]
    return own if all(t is not None for t in own) else [plain(c) for c in labels]


def number_levels(names: list[Hashable]) -> tuple[list[Hashable], Index]:
    """Each level once, sorted where they can be, else in order of appearance; and where each name stands there."""
    once = list(dict.fromkeys(names))
    with suppress(TypeError):
        once = sorted(once)  # type: ignore[type-var]
    at = {name: k for k, name in enumerate(once)}
    return once, np.array([at[name] for name in names], dtype=np.int64)


def plain(value: Any) -> Hashable:
    """A NumPy scalar as the Python value it stands for, so that 1 and np.int64(1) are one level."""
    inner: Hashable = value.item() if isinstance(value, np.generic) else value
    return inner


def read_pairs(pairs: Iterable[Any]) -> list[Any]:
    """The sets of pairs one after the other: p0, q0, p1, q1 …"""
    sides: list[Any] = []
    for k, pair in enumerate(pairs):
        try:
            p, q = pair
        except (TypeError, ValueError):
            raise InputError(f"pairs[{k}]: expected two sets (p, q), got {type(pair).__name__}") from None
        sides += [p, q]
    return sides


def read_pair_levels(sets: list[Signature], levels: Any) -> list[Hashable]:
    """The level of each pair (sets[2k], sets[2k + 1]): one for all, one a pair, or what the two sets say."""
    if levels is not None:
        single = isinstance(levels, str) or not isinstance(levels, Iterable)
        return [levels] * (len(sets) // 2) if single else list(levels)
    own = [(sets[k].level, sets[k + 1].level) for k in range(0, len(sets), 2)]
    for k, (p, q) in enumerate(own):
        if p is not None and q is not None and p != q:
            raise InputError(f"pairs[{k}]: the two sets are of levels {p!r} and {q!r}; say which with levels=")
    return [q if p is None else p for p, q in own]


# ── in a file ─────────────────────────────────────────────────────────────────────────────────────────────────────


def to_json(label: Any, where: str) -> Any:
    """A label as JSON: text, a number, a truth value; a tuple as {"tuple": […]}."""
    value = plain(label)
    if isinstance(value, tuple):
        return {"tuple": [to_json(v, where) for v in value]}
    if isinstance(value, str | int | float | bool):
        return value
    raise InputError(f"{where}: a label of type {type(value).__name__} cannot be saved; use text or numbers as labels")


def from_json(value: Any) -> Hashable:
    """The label that `to_json` wrote."""
    return tuple(from_json(v) for v in value["tuple"]) if isinstance(value, dict) else plain(value)


def classes_from_json(said: dict[str, Any]) -> Any:
    """The classes in their own dtype."""
    kind = np.dtype(str(said["dtype"]))
    if kind.kind not in "biufUO":
        raise InputError(f"classes: expected numbers or text, got dtype {kind}")
    out = np.empty(len(said["values"]), dtype=kind)
    out[:] = [from_json(v) for v in said["values"]]
    return out
