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
            from likewise.media import write_text

            write_text(path, text + "\n")
        return text


@dataclass(frozen=True)
class Hit:
    """A picture that a search found: its path, its distance ‖x − y‖ from the query's unit row, its rank from 1 on."""

    path: str
    distance: float
    rank: int


@dataclass(frozen=True, eq=False, repr=False)
class Flow:
    """Where each pixel of a picture went: `vectors` (h, w, 2) float32 in pixels, x then y, and where that is known.

    Pixel p goes to p + vectors[p]. `valid` (h, w) bool says where the vector is known, None everywhere; what stands
    where it is not known is 0. `np.asarray(flow)` gives the vectors.
    """

    vectors: NDArray[np.float32]
    valid: NDArray[np.bool_] | None = None

    def __init__(self, vectors: Any, valid: Any = None) -> None:
        v = _plain(vectors, np.float32, "vectors")
        if v.ndim != 3 or v.shape[2] != 2 or v.size == 0:
            raise ShapeError(f"vectors: expected (h, w, 2), got shape {v.shape}")
        known = None if valid is None else _known(valid, v.shape[:2])
        finite = np.isfinite(v).all(axis=2)
        if not (finite if known is None else finite | ~known).all():
            raise InputError("vectors: NaN or infinity where the flow is known; mark such pixels as False in valid")
        object.__setattr__(self, "vectors", v if known is None else np.where(known[..., None], v, np.float32(0)))
        object.__setattr__(self, "valid", known)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.vectors, dtype=dtype) if copy else np.asarray(self.vectors, dtype=dtype)

    @property
    def height(self) -> int:
        """The number h of rows."""
        return int(self.vectors.shape[0])

    @property
    def width(self) -> int:
        """The number w of columns."""
        return int(self.vectors.shape[1])

    def magnitude(self) -> NDArray[np.float32]:
        """The length of each vector in pixels, (h, w); 0 where it is not known."""
        return np.asarray(np.hypot(self.vectors[..., 0], self.vectors[..., 1]), dtype=np.float32)

    def to_dict(self) -> dict[str, Any]:
        """Size, share of known pixels, and the lengths of their vectors: a summary as plain Python values."""
        known = np.ones((self.height, self.width), dtype=bool) if self.valid is None else self.valid
        lengths = self.magnitude()[known].astype(np.float64)
        measures = (("mean", np.mean), ("median", np.median), ("largest", np.max)) if len(lengths) else ()
        return {
            "height": self.height,
            "width": self.width,
            "known": float(known.mean()),
            "length": {name: float(measure(lengths)) for name, measure in measures},
        }

    def __repr__(self) -> str:
        summary = self.to_dict()
        length = f", {summary['length']['mean']:.2f} px in the mean" if summary["length"] else ""
        known = "" if self.valid is None else f", known at {summary['known']:.0%}"
        return f"Flow({self.height} × {self.width}{length}{known})"


def _plain(values: Any, dtype: Any, name: str) -> NDArray[Any]:
    """An array or a tensor of any device as a NumPy array of its own."""
    given = values.detach().cpu().numpy() if hasattr(values, "detach") else values
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # what the type cannot hold is found by those who ask
            return np.array(given, dtype=dtype, order="C")
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected an array of numbers, got {type(values).__name__} ({error})") from None


def _known(valid: Any, size: tuple[int, ...]) -> NDArray[np.bool_]:
    mask = _plain(valid, None, "valid")
    if mask.dtype != np.bool_:
        raise InputError(f"valid: expected booleans, got {mask.dtype}")
    if mask.shape != size:
        raise ShapeError(f"valid: expected {size}, as the vectors have, got shape {mask.shape}")
    return mask


@dataclass(frozen=True, eq=False, repr=False)
class Matches:
    """Points `a` (n, 2) of one picture and `b` (n, 2) of another that belong together, in pixels, x then y.

    `stage` (n,) int8 says where a match comes from: 1 found near the flow, 2 found among what stage 1 left over.
    `score` (n,) float32 is the similarity of the two features, larger is more alike. By default all are of stage 1
    with score 1. There may be none.
    """

    a: Array
    b: Array
    stage: NDArray[np.int8]
    score: NDArray[np.float32]

    def __init__(self, a: Any, b: Any, stage: Any = None, score: Any = None) -> None:
        left, right = _pairs(a, "a"), _pairs(b, "b")
        n = len(left)
        if len(right) != n:
            raise ShapeError(f"b: expected {n} points, one for each of a, got {len(right)}")
        stages = np.ones(n, np.int8) if stage is None else _each(stage, np.int8, n, "stage")
        if not np.isin(stages, (1, 2)).all():
            raise InputError(f"stage: expected 1 or 2, got {sorted(set(stages.tolist()) - {1, 2})[0]}")
        scores = np.ones(n, np.float32) if score is None else _each(score, np.float32, n, "score")
        for field, value in (("a", left), ("b", right), ("stage", stages), ("score", scores)):
            object.__setattr__(self, field, value)

    def __len__(self) -> int:
        return len(self.a)

    def take(self, which: ArrayLike) -> Matches:
        """These matches, by a mask (n,) or by their places."""
        chosen = np.asarray(which)
        chosen = chosen if chosen.size else chosen.astype(np.int64)
        return Matches(self.a[chosen], self.b[chosen], self.stage[chosen], self.score[chosen])

    def of_stage(self, stage: int) -> Matches:
        """The matches that this stage found."""
        return self.take(self.stage == stage)

    def to_dict(self) -> dict[str, Any]:
        """How many there are, of which stage, and how far apart: a summary as plain Python values."""
        apart = np.linalg.norm(self.b - self.a, axis=1)
        return {
            "matches": len(self),
            "stage 1": int((self.stage == 1).sum()),
            "stage 2": int((self.stage == 2).sum()),
            "median length": float(np.median(apart)) if len(self) else None,
        }

    def __repr__(self) -> str:
        counts = self.to_dict()
        return f"Matches({len(self)}: {counts['stage 1']} near the flow, {counts['stage 2']} elsewhere)"


def _pairs(points: Any, name: str) -> Array:
    p = _plain(points, np.float64, name)
    if p.size == 0:
        p = p.reshape(0, 2)
    if p.ndim != 2 or p.shape[1] != 2:
        raise ShapeError(f"{name}: expected points (n, 2), x then y, got shape {p.shape}")
    if not np.isfinite(p).all():
        raise InputError(f"{name}: points contain NaN or infinity")
    return p


def _each(values: Any, dtype: Any, n: int, name: str) -> NDArray[Any]:
    """One value a match; a number that the type cannot hold is refused."""
    given = _plain(values, None, name)
    if given.shape != (n,):
        raise ShapeError(f"{name}: expected ({n},), one a match, got shape {given.shape}")
    kept = _plain(given, dtype, name)
    if not np.isfinite(kept).all() or (kept.dtype.kind == "i" and (kept != given).any()):
        raise InputError(f"{name}: expected finite numbers that {np.dtype(dtype).name} holds, got {given.dtype}")
    return kept
