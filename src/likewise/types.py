"""The plain types that levels hand to each other, to plots and to files. Shapes are documented here, once."""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likewise.errors import InputError, ShapeError

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Signature:
    """A bag of features: points (m, d) with weights (m,) ≥ 0 that sum to 1.

    `level` says under which level's metric it is compared (a class, a kin relation, a camera);
    `names` says what each point stands for (a file name a point), so that a plan can be drawn.
    Weights are normalised here; points of weight zero are kept but take no part.
    """

    points: Array
    weights: Array
    level: Hashable = None
    names: tuple[str, ...] | None = None

    def __init__(
        self,
        points: ArrayLike,
        weights: ArrayLike | None = None,
        level: Hashable = None,
        names: tuple[str, ...] | list[str] | None = None,
        *,
        where: str = "signature",
    ) -> None:
        p = _points(points, where)
        w = _weights(weights, len(p), where)
        if names is not None and len(names) != len(p):
            raise ShapeError(f"names of {where}: expected {len(p)}, one a point, got {len(names)}")
        for field, value in (("points", p), ("weights", w), ("level", level)):
            object.__setattr__(self, field, value)
        object.__setattr__(self, "names", None if names is None else tuple(names))

    def __len__(self) -> int:
        return len(self.points)

    @property
    def dim(self) -> int:
        """The number d of coordinates of a point."""
        return int(self.points.shape[1])

    def __repr__(self) -> str:
        level = "" if self.level is None else f", level={self.level!r}"
        return f"Signature({len(self)} points in {self.dim} dimensions{level})"


def _points(points: ArrayLike, where: str) -> Array:
    try:
        p = np.ascontiguousarray(points, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"points of {where} are not numbers in an (m, d) array: {error}") from None
    if p.ndim == 1:
        p = p[None, :]
    if p.ndim != 2:
        raise ShapeError(f"points of {where}: expected (m, d), got shape {p.shape}")
    if p.shape[0] == 0:
        raise ShapeError(f"points of {where}: the set is empty; give at least one point")
    if p.shape[1] == 0:
        raise ShapeError(f"points of {where}: expected at least one coordinate, got shape {p.shape}")
    if not np.isfinite(p).all():
        raise InputError(f"points of {where} contain NaN or infinity")
    return p


def _weights(weights: ArrayLike | None, m: int, where: str) -> Array:
    if weights is None:
        return np.full(m, 1.0 / m)
    try:
        w = np.ascontiguousarray(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"weights of {where} are not numbers: {error}") from None
    if w.shape != (m,):
        raise ShapeError(f"weights of {where}: expected ({m},), one a point, got shape {w.shape}")
    if not np.isfinite(w).all():
        raise InputError(f"weights of {where} contain NaN or infinity")
    if (w < 0).any():
        raise InputError(f"weights of {where}: the smallest is {w.min():g}; weights must be ≥ 0")
    total = w.sum()
    if total <= 0:
        raise InputError(f"weights of {where} sum to 0; give at least one positive weight")
    normalised: Array = w / total
    return normalised


@dataclass(frozen=True, eq=False)
class Comparison:
    """What every comparison gives: a number, the correspondence that justifies it, a picture, a JSON."""

    distance: float

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw the correspondence; with `path`, also write it there. Returns a matplotlib Figure."""
        raise InputError(f"{type(self).__name__} has no picture")

    def to_dict(self) -> dict[str, Any]:
        """Everything that `to_json` writes, as plain Python values."""
        return {"distance": self.distance}

    def to_json(self, path: str | Path | None = None) -> str:
        """The comparison as JSON; with `path`, also written there, atomically."""
        text = json.dumps(self.to_dict(), ensure_ascii=False, indent=2, allow_nan=False)
        if path is not None:
            from likewise.io import write_text

            write_text(path, text + "\n")
        return text


@dataclass(frozen=True)
class Hit:
    """A picture that a search found: its path, its distance ‖x − y‖ from the query's unit row, its rank from 1 on."""

    path: str
    distance: float
    rank: int
