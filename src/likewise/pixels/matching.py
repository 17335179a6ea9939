"""Matches of two images: any features, found again with the help of the flow between them [LIFE §3.2].

Stage 1: each feature of a is compared with the features of b within a radius of the place that the flow gives it, the
nearest descriptor is taken, and the same from b to a; those that choose each other are matches. Stage 2: features that
are left over are compared without the flow.

All distances of descriptors are squared Euclidean; binary ones are read as ±1, of which ‖x − y‖² is four times
Hamming's distance. Of equal distances the feature that comes first wins.
"""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree

from likewise import inputs, media, pixels, types
from likewise.errors import FileError, InputError, ShapeError
from likewise.pixels import robust
from likewise.pixels.features import MOST, Detector, Features, as_features, detect
from likewise.pixels.geometry import Size, resize_points
from likewise.pixels.metrics import at, plain
from likewise.pixels.robust import Model
from likewise.types import Flow, Image

Rows: TypeAlias = NDArray[np.float32]
Index: TypeAlias = NDArray[np.int64]
Places: TypeAlias = NDArray[np.float64]
Given: TypeAlias = str | Detector | tuple[Any, ...]
"""A detector's name or function, (features_a, features_b), or (points_a, descriptors_a, points_b, descriptors_b)."""

RADIUS = 5.0
"""Pixels, at the flow's own resolution, within which a feature is looked for: flow is known to about 2 px there."""
TILE = 1024
"""Rows of descriptors that are compared with all of the other image at once."""
PAIRS = 1 << 16
"""Pairs of near features whose distances are computed at once, at most."""


@dataclass(frozen=True, eq=False, repr=False)
class Matches(types.Matches):
    """Matches a ↔ b (n, 2) with their stage and score, which give models, and know why there are none.

    Parameters
    ----------
    a, b : array (n, 2)
        Points of the first and second image, x then y, in pixels.
    stage : array (n,), optional
        1: found near the flow, 2: without it.
    score : array (n,), optional
        How alike the descriptors are, 1 where they are equal.
    reason : str
        Why there is no match; empty where there is one.

    Raises
    ------
    ShapeError
        Where a and b are not as many points.

    Examples
    --------
    >>> import numpy as np
    >>> import likewise as lw
    >>> a = np.random.default_rng(0).uniform(0, 100, (50, 2))
    >>> matches = lw.pixels.Matches(a, a + [3.0, -2.0])
    >>> matches.homography().matrix.round(3)[:2, 2].tolist()
    [3.0, -2.0]
    """

    reason: str = ""

    def __init__(self, a: Any, b: Any, stage: Any = None, score: Any = None, *, reason: str = "") -> None:
        super().__init__(a, b, stage, score)
        object.__setattr__(self, "reason", reason if len(self) == 0 else "")

    # ── geometry ──────────────────────────────────────────────────────────────────────────────────────────────────

    def homography(self, px: float = 3.0, *, seed: int = robust.SEED) -> Model:
        """H, for a plane or a camera that only turned: .matrix, .inliers, .n, .reason."""
        return robust.homography(self.a, self.b, px, seed=seed)

    def fundamental(self, px: float = 1.0, *, seed: int = robust.SEED) -> Model:
        """F, for cameras of which nothing is known."""
        return robust.fundamental(self.a, self.b, px, seed=seed)

    def geometry(self, plane: float = 3.0, line: float = 1.0, *, seed: int = robust.SEED) -> Model:
        """H or F, whichever more matches agree with (F must find a fifth more): .kind says which."""
        return robust.geometry(self.a, self.b, plane, line, seed=seed)

    def pose(self, Ka: Any, Kb: Any, px: float = 1.0, *, seed: int = robust.SEED) -> Model:
        """E as .matrix, and its .R, .t with X_b = R X_a + t, t of unit length, for cameras Ka and Kb (3, 3)."""
        return robust.pose(self.a, self.b, Ka, Kb, px, seed=seed)

    # ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, which: ArrayLike) -> Matches:
        """These matches, by a mask (n,) or by their places."""
        some = super().take(which)
        reason = self.reason or "none of the matches was chosen"
        return Matches(some.a, some.b, some.stage, some.score, reason=reason)

    def to_dict(self) -> dict[str, Any]:
        """A summary as plain Python values."""
        return super().to_dict() | {"reason": self.reason}

    def __repr__(self) -> str:
        return super().__repr__() if len(self) else f"Matches(none: {self.reason or 'empty'})"

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the matches to a .npz of arrays."""
        if Path(path).suffix.lower() != ".npz":
            raise InputError(f"path: expected a name that ends in .npz, got {os.fspath(path)!r}")
        arrays: dict[str, Any] = {n: getattr(self, n) for n in ("a", "b", "stage", "score")}
        arrays["reason"] = np.array(self.reason)
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)
        return media.write_bytes(path, buffer.getvalue())

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Matches:
        """Matches that were saved as .npz."""
        arrays = media.load_arrays(path)
        missing = {"a", "b", "stage", "score"} - set(arrays)
        if missing:
            raise FileError(f"{path}: not a file of matches; it lacks {', '.join(sorted(missing))}")
        reason = str(arrays["reason"]) if "reason" in arrays else ""
        return cls(*(arrays[n] for n in ("a", "b", "stage", "score")), reason=reason)


# ------------------------------------------------------------------------------------------------------------ matching


def match(
    a: Any,
    b: Any,
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

    Parameters
    ----------
    a, b : image
        In any form that `likewise.inputs` takes; an `Image` keeps its features.
    features : str, callable or tuple
        A detector by name ("sift", "xfeat", …, see `likewise.pixels.features.detect`), one of OpenCV, a function of the
        image, or the features themselves: (features_a, features_b), (points_a, descriptors_a, points_b, descriptors_b).
    model : object with .both(a, b) or .flow(a, b), optional
        What gives the flow; by default `likewise.pixels.default()`.
    radius : float
        Pixels, at the resolution the flow was found at, within which a feature is looked for in stage 1; in an image
        s times larger the radius is s times as large.
    search : {"all", "left"}
        In stage 2 the nearest is looked for among all features of the other image ("all", as the text has it; it must
        be left over itself, or a feature would be matched twice) or only among those left over ("left": more matches,
        less sure).
    ratio : float, optional
        Lowe's test, d₁ < ratio · d₂ both ways, among what stage 2 searches; in stage 1 the flow takes its place.
    most : int
        The most features of an image, the strongest ones.
    flows : tuple of two arrays (h, w, 2), optional
        The flows a→b and b→a where they are known already, on grids that may be coarser than the images.
    flow_size : int, optional
        The longest side at which the flow was found; by default the grid's, or the model's `work`.

    Returns
    -------
    Matches
        Points .a ↔ .b (n, 2), .stage (1: near the flow, 2: without it) and .score; it gives `.homography()` and other
        models, and where there is no match it says the `.reason`.

    Raises
    ------
    InputError
        Where an option is out of its range, or an image or its features cannot be used.

    Examples
    --------
    >>> import likewise as lw
    >>> from likewise import samples
    >>> matches = lw.pixels.match(*samples.pair())
    >>> matches.homography().n <= len(matches)
    True
    """
    _check(radius, search, ratio)
    one, two = inputs.image(a, where="a"), inputs.image(b, where="b")
    fa, fb = _features(one, two, features, most)
    if not len(fa) or not len(fb):
        return Matches([], [], reason=_bare(fa, fb, features))
    there, back, scales = guided_places(fa, fb, one, two, model=model, flows=flows, flow_size=flow_size)
    x, y = comparable(fa, fb)
    forward = guided(x, there, y, fb.points.astype(np.float64), radius * scales[0])
    backward = guided(y, back, x, fa.points.astype(np.float64), radius * scales[1])
    i = np.flatnonzero((forward >= 0) & (backward[forward] == np.arange(len(x))))
    j = forward[i]
    left_i, left_j = _left_over(x, y, i, j, search, ratio)
    stage = np.concatenate([np.ones(len(i), np.int8), np.full(len(left_i), 2, np.int8)])
    return _matches(fa, fb, (x, y), (np.concatenate([i, left_i]), np.concatenate([j, left_j])), stage)


def raw(a: Any, b: Any, *, features: Given = "sift", ratio: float | None = None, most: int = MOST) -> Matches:
    """Matches of a and b without a flow: features that are each other's nearest. All are of stage 2."""
    _check(RADIUS, "all", ratio)
    one, two = inputs.image(a, where="a"), inputs.image(b, where="b")
    fa, fb = _features(one, two, features, most)
    if not len(fa) or not len(fb):
        return Matches([], [], reason=_bare(fa, fb, features))
    x, y = comparable(fa, fb)
    i, j = mutual(x, y, ratio)
    return _matches(fa, fb, (x, y), (i, j), np.full(len(i), 2, np.int8))


def _left_over(x: Rows, y: Rows, i: Index, j: Index, search: str, ratio: float | None) -> tuple[Index, Index]:
    """Stage 2: mutual nearest among all features with both ends left over, or among the left over alone."""
    free_x, free_y = np.ones(len(x), dtype=bool), np.ones(len(y), dtype=bool)
    free_x[i], free_y[j] = False, False
    if search == "all":
        p, q = mutual(x, y, ratio)
        kept = free_x[p] & free_y[q]
        return p[kept], q[kept]
    rows, columns = np.flatnonzero(free_x), np.flatnonzero(free_y)
    p, q = mutual(x[rows], y[columns], ratio)
    return rows[p], columns[q]


def _matches(fa: Features, fb: Features, rows: Any, pairs: Any, stage: Any) -> Matches:
    (x, y), (i, j) = rows, pairs
    reason = f"no feature of a ({len(fa)}) and of b ({len(fb)}) chose each other"
    return Matches(fa.points[i], fb.points[j], stage, similarity(x[i], y[j]), reason=reason)


# -------------------------------------------------------------------------------------------------------- flowed places


def guided_places(
    fa: Features,
    fb: Features,
    a: Image,
    b: Image,
    *,
    model: Any = None,
    flows: Any = None,
    flow_size: int | None = None,
) -> tuple[Places, Places, tuple[float, float]]:
    """Where the flow takes the features of a in b, and those of b in a, and how coarse it is there, in pixels.

    A grid (h, w) of the flow stands for the whole image: the point p of an image s times larger is (p + ½)/s − ½ on
    it. NaN where the flow is not known.
    """
    if flows is None:
        chosen = pixels.default() if model is None else model
        flows = _flows(chosen, a, b)
        flow_size = getattr(chosen, "work", None) if flow_size is None else flow_size
    ab, ba = _field(flows[0], "flow a→b"), _field(flows[1], "flow b→a")
    grids, sizes = (ab[1].shape, ba[1].shape), (a.size, b.size)
    there = _carried(fa.points, ab, (sizes[0], grids[0]), (sizes[1], grids[1]))
    back = _carried(fb.points, ba, (sizes[1], grids[1]), (sizes[0], grids[0]))
    return there, back, (_coarse(sizes[1], grids[1], flow_size), _coarse(sizes[0], grids[0], flow_size))


def _carried(
    points: NDArray[np.float32], flow: tuple[Places, Any], own: tuple[Size, Size], other: tuple[Size, Size]
) -> Places:
    """Points of one image in the other: onto the flow's grid, along its vectors, and off the other grid."""
    vectors, known = flow
    p = resize_points(torch.from_numpy(points.astype(np.float64)), *own)
    vectors_at = torch.from_numpy(at(np.where(np.isfinite(vectors), vectors, 0.0), p))
    q = resize_points(p + vectors_at, other[1], other[0]).numpy()
    h, w = vectors.shape[:2]
    x, y = (np.clip(np.rint(p[:, k].numpy()), 0, n - 1).astype(np.int64) for k, n in ((0, w), (1, h)))
    return np.where(known[y, x][:, None], q, np.nan)


def _coarse(size: Size, grid: Size, flow_size: int | None) -> float:
    """How many pixels of the image one pixel of the flow covers, 1 at least."""
    return max(1.0, max(size) / (max(grid) if flow_size is None else flow_size))


def _flows(model: Any, a: Image, b: Image) -> tuple[Any, Any]:
    if not hasattr(model, "both") and not hasattr(model, "flow"):
        raise InputError(f"model: expected something with .both(a, b) or .flow(a, b), got {type(model).__name__}")
    one, two = a.tensor, b.tensor
    with torch.inference_mode():
        if hasattr(model, "both"):
            there, back = model.both(one, two)
            return there, back
        return model.flow(one, two), model.flow(two, one)


def _field(flow: Any, name: str) -> tuple[Places, NDArray[np.bool_]]:
    """Vectors (h, w, 2) and where they are known."""
    valid = flow.valid if isinstance(flow, Flow) else None
    vectors = plain(flow).astype(np.float64)
    if vectors.ndim != 3 or vectors.shape[2] != 2 or vectors.size == 0:
        raise ShapeError(f"{name}: expected (h, w, 2), got shape {vectors.shape}")
    finite = np.asarray(np.isfinite(vectors).all(axis=2))
    return vectors, finite if valid is None else np.logical_and(finite, valid)


# ------------------------------------------------------------------------------------------------- nearest descriptors


def comparable(a: Features, b: Features) -> tuple[Rows, Rows]:
    """The descriptors of both as float32 rows whose Euclidean distance orders as their own does."""
    if a.binary != b.binary or a.descriptors.shape[1] != b.descriptors.shape[1]:
        raise InputError(f"features: those of a and b cannot be compared, got {a!r} and {b!r}")
    if not a.binary:
        return a.descriptors, b.descriptors
    one, two = (2.0 * np.unpackbits(f.descriptors, axis=1) - 1.0 for f in (a, b))
    return one.astype(np.float32), two.astype(np.float32)


def similarity(x: Rows, y: Rows) -> Rows:
    """2 x·y / (‖x‖² + ‖y‖²) of each pair of rows: the cosine of unit rows, 1 where they are equal."""
    total = np.einsum("nd,nd->n", x, x) + np.einsum("nd,nd->n", y, y)
    both = 2.0 * np.einsum("nd,nd->n", x, y)
    return np.asarray(np.where(total > 0, both / np.where(total > 0, total, 1), 1), dtype=np.float32)


def mutual(x: Rows, y: Rows, ratio: float | None = None) -> tuple[Index, Index]:
    """The pairs (i, j) that are each other's nearest; with `ratio`, d₁ < ratio · d₂ both ways (Lowe's test)."""
    if not len(x) or not len(y):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    (there, sure), (back, sure_back) = _nearest(x, y, ratio), _nearest(y, x, ratio)
    i = np.flatnonzero(back[there] == np.arange(len(x)))
    j = there[i]
    kept = sure[i] & sure_back[j]
    return i[kept], j[kept]


def _nearest(x: Rows, y: Rows, ratio: float | None) -> tuple[Index, NDArray[np.bool_]]:
    """The nearest row of y for each of x, and whether it is nearer than `ratio` times the second, if there is one."""
    index, sure = np.empty(len(x), np.int64), np.ones(len(x), dtype=bool)
    own = np.einsum("nd,nd->n", y, y)
    for start in range(0, len(x), TILE):
        part = x[start : start + TILE]
        D = np.maximum(np.einsum("nd,nd->n", part, part)[:, None] - 2.0 * (part @ y.T) + own, 0.0)
        rows = np.arange(len(part))
        nearest = index[start : start + TILE] = D.argmin(axis=1)
        if ratio is not None and len(y) > 1:
            first = D[rows, nearest]
            D[rows, nearest] = np.inf
            sure[start : start + TILE] = first < np.float32(ratio**2) * D.min(axis=1)
    return index, sure


def guided(x: Rows, places: Places, y: Rows, points: Places, radius: float) -> Index:
    """For each row of x the nearest row of y among the points within `radius` of its place, −1 where none is near.

    argmin_j ‖x_i − y_j‖ over ‖points_j − places_i‖ ≤ radius [LIFE Eq. 4]. A place that is not finite has none near.
    """
    nearest = np.full(len(x), -1, dtype=np.int64)
    known = np.flatnonzero(np.isfinite(places).all(axis=1))
    if not len(known) or not len(points):
        return nearest
    tree = cKDTree(points)
    counts = np.asarray(tree.query_ball_point(places[known], radius, return_length=True), dtype=np.int64)
    known, counts = known[counts > 0], counts[counts > 0]
    step = max(1, PAIRS // int(counts.max(initial=1)))
    for start in range(0, len(known), step):
        rows = known[start : start + step]
        near = tree.query_ball_point(places[rows], radius, return_sorted=True)
        nearest[rows] = _sparse(x, rows, y, near, counts[start : start + step])
    return nearest


def _sparse(x: Rows, rows: Index, y: Rows, near: NDArray[np.object_], counts: Index) -> Index:
    """The nearest of the listed rows of y to each of these rows of x; every list holds one at least."""
    j = np.concatenate([np.asarray(n, dtype=np.int64) for n in near])
    gap = np.repeat(x[rows], counts, axis=0) - y[j]
    d = np.einsum("nd,nd->n", gap, gap)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    lowest = np.repeat(np.minimum.reduceat(d, starts), counts)
    first = np.where(d == lowest, np.arange(len(d)), len(d))
    return j[np.minimum.reduceat(first, starts)]


# ------------------------------------------------------------------------------------------------------------- options


def _features(a: Image, b: Image, features: Given, most: int) -> tuple[Features, Features]:
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


def _check(radius: float, search: str, ratio: float | None) -> None:
    if not (isinstance(radius, int | float) and np.isfinite(radius) and radius > 0):
        raise InputError(f"radius: expected a number of pixels > 0, got {radius!r}")
    if search not in ("all", "left"):
        raise InputError(f"search: expected 'all' or 'left', got {search!r}")
    if ratio is not None and not (isinstance(ratio, int | float) and 0 < ratio <= 1):
        raise InputError(f"ratio: expected a number above 0 and at most 1, or None, got {ratio!r}")
