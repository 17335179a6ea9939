"""What stands in the file of a learned metric, read back with suspicion: labels, sets, indices."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from likewise.errors import InputError, ShapeError
from likewise.sets.transport.solvers import Index, Pack
from likewise.types import Array


def written(value: Any, where: str) -> Any:
    """A label as JSON: text, a number, a truth value; a tuple as {"tuple": […]}."""
    if isinstance(value, tuple):
        return {"tuple": [written(v, where) for v in value]}
    if isinstance(value, str | int | float | bool):
        return value
    raise InputError(f"{where}: a label of type {type(value).__name__} cannot be saved; use text or numbers as labels")


def unwritten(value: Any) -> Hashable:
    """The label that `written` wrote."""
    if isinstance(value, dict):
        return tuple(unwritten(v) for v in value["tuple"])
    plain: Hashable = value
    return plain


def read_classes(said: dict[str, Any]) -> Any:
    """The classes in their own dtype."""
    kind = np.dtype(str(said["dtype"]))
    if kind.kind not in "biufUO":
        raise InputError(f"classes: expected numbers or text, got dtype {kind}")
    out = np.empty(len(said["values"]), dtype=kind)
    out[:] = [unwritten(v) for v in said["values"]]
    return out


def positive(value: Any, where: str) -> float:
    """A finite number above 0."""
    number = float(value)
    if not (np.isfinite(number) and number > 0):
        raise InputError(f"{where}: expected a number > 0, got {value!r}")
    return number


def one_of(value: Any, known: tuple[str, ...], where: str) -> str:
    """One of the words known."""
    if value not in known:
        raise InputError(f"{where}: expected one of {', '.join(known)}, got {value!r}")
    return str(value)


def frame(array: Any, dim: int) -> Array:
    """An invertible matrix (d, d)."""
    A = np.asarray(array, dtype=np.float64)
    if A.shape != (dim, dim) or not np.isfinite(A).all():
        raise ShapeError(f"frame: expected finite numbers ({dim}, {dim}), got shape {A.shape}")
    if not np.linalg.cond(A) < 1e12:
        raise InputError("frame: the matrix is not invertible")
    return A


def source(said: Any) -> dict[str, Any]:
    """How sets were made of images: words and whole numbers by name."""
    if not isinstance(said, dict) or not all(isinstance(v, str | int | None) for v in said.values()):
        raise InputError(f"source: expected words and whole numbers by name, got {said!r}")
    return dict(said)


def axes(array: Any, dim: int) -> Array:
    """Axes (features, d), finite numbers."""
    A = np.asarray(array, dtype=np.float64)
    if A.ndim != 2 or A.shape[1] != dim or len(A) < dim or not np.isfinite(A).all():
        raise ShapeError(f"axes: expected finite numbers (features, {dim}), got shape {A.shape}")
    return A


def read_pack(arrays: dict[str, Any], dim: int) -> Pack:
    """The training sets, if their parts fit together."""
    points, weights = (np.ascontiguousarray(arrays[k], dtype=np.float64) for k in ("points", "weights"))
    offsets = np.ascontiguousarray(arrays["offsets"], dtype=np.int64)
    fits = points.ndim == 2 and points.shape[1] == dim and weights.shape == (len(points),)
    if not fits or offsets.ndim != 1 or len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(points):
        raise ShapeError("points, weights and offsets do not fit together")
    if (np.diff(offsets) < 1).any() or not (weights > 0).all() or not np.isfinite(points).all():
        raise InputError("the stored sets are damaged: an empty set, a weight ≤ 0 or a point that is not finite")
    sums = np.add.reduceat(weights, offsets[:-1])
    if np.abs(sums - 1).max() > 1e-6:
        raise InputError("the stored sets are damaged: the weights of a set do not sum to 1")
    return Pack(points, weights, offsets)


def indices(array: Any, shape: tuple[int, ...], below: int, where: str) -> Index:
    """Integers of a shape, from 0 to below − 1."""
    found = np.asarray(array)
    if found.shape != shape or found.dtype.kind not in "iu":
        raise ShapeError(f"{where}: expected integers of shape {shape}, got {found.dtype} of shape {found.shape}")
    if found.size and (found.min() < 0 or found.max() >= below):
        raise InputError(f"{where}: expected 0 to {below - 1}, got {found.min()} to {found.max()}")
    return found.astype(np.int64)
