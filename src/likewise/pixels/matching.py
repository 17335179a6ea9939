"""Matches of two pictures: any features, found again with the help of the flow between them [LIFE §3.2].

Stage 1: each feature of a is compared with the features of b within a radius of the place that the flow gives it, the
nearest descriptor is taken, and the same from b to a; those that choose each other are matches. Stage 2: features that
are left over are compared without the flow.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from likewise.errors import InputError, ShapeError
from likewise.pixels import nearest
from likewise.pixels.features import MOST, Detector, Features, as_features, detect
from likewise.pixels.matches import Matches, none
from likewise.pixels.pictures import Picture, picture
from likewise.types import Flow

__all__ = ["Matches", "guided_places", "match", "raw"]

Places: TypeAlias = NDArray[np.float64]
Size: TypeAlias = tuple[int, int]
Given: TypeAlias = str | Detector | tuple[Any, ...]
"""A detector's name or function, (features_a, features_b), or (points_a, descriptors_a, points_b, descriptors_b)."""

RADIUS = 5.0
"""Pixels, at the flow's own resolution, within which a feature is looked for: flow is known to about 2 px there."""


def match(
    a: Picture,
    b: Picture,
    *,
    features: Given = "sift",
    model: Any = None,
    radius: float = RADIUS,
    search: Literal["all", "left"] = "all",
    ratio: float | None = None,
    most: int = MOST,
    flows: tuple[Any, Any] | None = None,
    flow_size: int | None = None,
) -> Matches:
    """Matches of a and b guided by their flow [LIFE §3.2, Eq. 4].

    `search`: in stage 2 the nearest is looked for among all features of the other picture ("all", as the text has it;
    it must be left over itself, or a feature would be matched twice) or only among those left over ("left": more
    matches, less sure). `ratio` is Lowe's test, d₁ < ratio · d₂ both ways, among what stage 2 searches; in stage 1 the
    flow takes its place.

    The flow comes from `model` (anything with .both(a, b), or .flow(a, b); None: `likewise.pixels.default()`), or is
    given as `flows` (a→b, b→a), on grids that may be coarser than the pictures. `radius` is in pixels at the resolution
    the flow was found at: `flow_size`, its longest side, is by default the grid's or the model's `work`; in a picture s
    times larger the radius is s times as large.
    """
    _check(radius, search, ratio)
    one, two = picture(a, where="a"), picture(b, where="b")
    sizes = _size(one), _size(two)
    fa, fb = _features(one, two, features, most)
    if not len(fa) or not len(fb):
        return none(_bare(fa, fb, features), sizes)
    there, back, scales = guided_places(fa, fb, one, two, model=model, flows=flows, flow_size=flow_size)
    return _staged(fa, fb, there, back, (radius * scales[0], radius * scales[1]), search, ratio, sizes)


def raw(a: Picture, b: Picture, *, features: Given = "sift", ratio: float | None = None, most: int = MOST) -> Matches:
    """Matches of a and b without a flow: features that are each other's nearest. All are of stage 2."""
    _check(RADIUS, "all", ratio)
    one, two = picture(a, where="a"), picture(b, where="b")
    sizes = _size(one), _size(two)
    fa, fb = _features(one, two, features, most)
    if not len(fa) or not len(fb):
        return none(_bare(fa, fb, features), sizes)
    x, y = nearest.comparable(fa, fb)
    i, j = nearest.mutual(x, y, ratio)
    return _matches(fa, fb, (x, y), (i, j), np.full(len(i), 2, np.int8), sizes)


# ------------------------------------------------------------------------------------------------------------- stages


def _staged(
    fa: Features,
    fb: Features,
    there: Places,
    back: Places,
    radii: tuple[float, float],
    search: str,
    ratio: float | None,
    sizes: tuple[Size, Size],
) -> Matches:
    """Both stages; `radii` are those in b and in a."""
    x, y = nearest.comparable(fa, fb)
    forward = nearest.guided(x, there, y, fb.points.astype(np.float64), radii[0])
    backward = nearest.guided(y, back, x, fa.points.astype(np.float64), radii[1])
    i = np.flatnonzero((forward >= 0) & (backward[forward] == np.arange(len(x))))
    j = forward[i]
    left_i, left_j = _left_over(x, y, i, j, search, ratio)
    stage = np.concatenate([np.ones(len(i), np.int8), np.full(len(left_i), 2, np.int8)])
    return _matches(fa, fb, (x, y), (np.concatenate([i, left_i]), np.concatenate([j, left_j])), stage, sizes)


def _left_over(
    x: NDArray[np.float32], y: NDArray[np.float32], i: Any, j: Any, search: str, ratio: float | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Stage 2: mutual nearest among all features with both ends left over, or among the left over alone."""
    free_x, free_y = np.ones(len(x), dtype=bool), np.ones(len(y), dtype=bool)
    free_x[i], free_y[j] = False, False
    if search == "all":
        p, q = nearest.mutual(x, y, ratio)
        kept = free_x[p] & free_y[q]
        return p[kept], q[kept]
    rows, columns = np.flatnonzero(free_x), np.flatnonzero(free_y)
    p, q = nearest.mutual(x[rows], y[columns], ratio)
    return rows[p], columns[q]


def _matches(
    fa: Features, fb: Features, rows: Any, pairs: Any, stage: NDArray[np.int8], sizes: tuple[Size, Size]
) -> Matches:
    (x, y), (i, j) = rows, pairs
    reason = f"no feature of a ({len(fa)}) and of b ({len(fb)}) chose each other"
    score = nearest.similarity(x[i], y[j])
    return Matches(fa.points[i], fb.points[j], stage, score, sizes=sizes, reason=reason)


# -------------------------------------------------------------------------------------------------------- flowed places


def guided_places(
    fa: Features, fb: Features, a: Any, b: Any, *, model: Any = None, flows: Any = None, flow_size: int | None = None
) -> tuple[Places, Places, tuple[float, float]]:
    """Where the flow takes the features of a in b, and those of b in a, and how coarse it is there, in pixels.

    A grid (h, w) of the flow stands for the whole picture: the point p of a picture s times larger is (p + ½)/s − ½ on
    it. NaN where the flow is not known.
    """
    if flows is None:
        flows = _flows(model, a, b)
        flow_size = getattr(_chosen(model), "work", None) if flow_size is None else flow_size
    ab, ba = _field(flows[0], "flow a→b"), _field(flows[1], "flow b→a")
    grids, sizes = (_size_of(ab[0]), _size_of(ba[0])), (_size(a), _size(b))
    there = _carried(fa.points, ab, (sizes[0], grids[0]), (sizes[1], grids[1]))
    back = _carried(fb.points, ba, (sizes[1], grids[1]), (sizes[0], grids[0]))
    return there, back, (_coarse(sizes[1], grids[1], flow_size), _coarse(sizes[0], grids[0], flow_size))


def _carried(
    points: NDArray[np.float32], flow: tuple[Places, Any], own: tuple[Size, Size], other: tuple[Size, Size]
) -> Places:
    """Points of one picture in the other: onto the flow's grid, along its vectors, and off the other grid."""
    from likewise.pixels.metrics import at

    vectors, known = flow
    p = _rescaled(points.astype(np.float64), *own)
    q = _rescaled(p + at(np.where(np.isfinite(vectors), vectors, 0.0), p), other[1], other[0])
    h, w = vectors.shape[:2]
    x, y = (np.clip(np.rint(p[:, k]), 0, n - 1).astype(np.int64) for k, n in ((0, w), (1, h)))
    return np.where(known[y, x][:, None], q, np.nan)


def _rescaled(points: Places, old: Size, new: Size) -> Places:
    """(p + ½) s − ½."""
    scale = np.array([new[1] / old[1], new[0] / old[0]])
    return np.asarray((points + 0.5) * scale - 0.5)


def _coarse(size: Size, grid: Size, flow_size: int | None) -> float:
    """How many pixels of the picture one pixel of the flow covers, 1 at least."""
    return max(1.0, max(size) / (max(grid) if flow_size is None else flow_size))


def _flows(model: Any, a: Any, b: Any) -> tuple[Any, Any]:
    import torch

    flower = _chosen(model)
    with torch.inference_mode():
        if hasattr(flower, "both"):
            there, back = flower.both(a, b)
            return there, back
        return flower.flow(a, b), flower.flow(b, a)


def _chosen(model: Any) -> Any:
    """The model that is asked for flow: the one given, or the one that comes with the package."""
    if model is None:
        from likewise import pixels

        return pixels.default()
    if not hasattr(model, "both") and not hasattr(model, "flow"):
        raise InputError(f"model: expected something with .both(a, b) or .flow(a, b), got {type(model).__name__}")
    return model


def _field(flow: Any, name: str) -> tuple[Places, NDArray[np.bool_]]:
    """Vectors (h, w, 2) and where they are known."""
    valid = flow.valid if isinstance(flow, Flow) else None
    vectors = np.asarray(flow.detach().cpu().numpy() if hasattr(flow, "detach") else flow, dtype=np.float64)
    if vectors.ndim != 3 or vectors.shape[2] != 2 or vectors.size == 0:
        raise ShapeError(f"{name}: expected (h, w, 2), got shape {vectors.shape}")
    finite = np.asarray(np.isfinite(vectors).all(axis=2))
    return vectors, finite if valid is None else np.logical_and(finite, valid)


# ------------------------------------------------------------------------------------------------------------- pieces


def _features(a: Any, b: Any, features: Given, most: int) -> tuple[Features, Features]:
    if not isinstance(features, tuple | list):
        return detect(a, features, most), detect(b, features, most)
    if len(features) == 2:
        return as_features(features[0]), as_features(features[1])
    if len(features) == 4:
        return Features(*features[:2]), Features(*features[2:])
    raise InputError(
        "features: expected a name, a function, (features_a, features_b), or "
        f"(points_a, descriptors_a, points_b, descriptors_b), got {len(features)} items"
    )


def _bare(fa: Features, fb: Features, features: Given) -> str:
    bare = " and ".join(n for n, f in (("a", fa), ("b", fb)) if not len(f))
    kind = features if isinstance(features, str) else "the given"
    return f"no {kind} features in {bare}: blank, blurred, or too small"


def _size(image: Any) -> Size:
    return int(image.shape[-2]), int(image.shape[-1])


def _size_of(vectors: Places) -> Size:
    return int(vectors.shape[0]), int(vectors.shape[1])


def _check(radius: float, search: str, ratio: float | None) -> None:
    if not (isinstance(radius, int | float) and np.isfinite(radius) and radius > 0):
        raise InputError(f"radius: expected a number of pixels > 0, got {radius!r}")
    if search not in ("all", "left"):
        raise InputError(f"search: expected 'all' or 'left', got {search!r}")
    if ratio is not None and not (isinstance(ratio, int | float) and 0 < ratio <= 1):
        raise InputError(f"ratio: expected a number above 0 and at most 1, or None, got {ratio!r}")
