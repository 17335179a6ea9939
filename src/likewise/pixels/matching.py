"""Matches of two pictures: any features, found again with the help of the flow between them [LIFE §3.2].

Stage 1: each feature of a is compared with the features of b within a radius of the place that the flow gives it, the
nearest descriptor is taken, and the same from b to a; those that choose each other are matches. Stage 2: features that
are left over are compared without the flow.
"""

from __future__ import annotations

import io as streams
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree

from likewise import media, pixels, types
from likewise.errors import FileError, InputError, MissingExtra, ShapeError
from likewise.pixels import robust
from likewise.pixels.features import MOST, Detector, Features, as_features, detect
from likewise.pixels.metrics import at
from likewise.pixels.pictures import Picture, picture
from likewise.pixels.robust import Model, Pose
from likewise.types import Flow
from likewise.types import Matches as PlainMatches

Named: TypeAlias = "tuple[str, str, PlainMatches]"
"""The names of two pictures, and their matches."""

HALF = 0.5
DIMENSIONS = 128
"""COLMAP's feature files have descriptors of 128 bytes; matches that are given need none, so they are 0."""
FOCAL = 1.2
"""COLMAP's guess of an unknown focal length: this times the longest side."""


def write_arrays(path: str | os.PathLike[str], matches: Matches) -> Path:
    """An .npz with a, b, stage, score, reason and, where they are known, sizes."""
    arrays: dict[str, Any] = {n: getattr(matches, n) for n in ("a", "b", "stage", "score")}
    arrays["reason"] = np.array(matches.reason)
    if matches.sizes is not None:
        arrays["sizes"] = np.array(matches.sizes, dtype=np.int64)
    buffer = streams.BytesIO()
    np.savez(buffer, **arrays)
    return media.write_bytes(path, buffer.getvalue())


# --------------------------------------------------------------------------------------------------- features by number


@dataclass
class _Points:
    """The features of one picture, each once, with the number that COLMAP knows it by."""

    numbers: dict[tuple[float, float], int] = field(default_factory=dict)
    size: tuple[int, int] | None = None

    def add(self, points: NDArray[np.float64]) -> list[int]:
        return [self.numbers.setdefault((float(x), float(y)), len(self.numbers)) for x, y in points]

    @property
    def table(self) -> NDArray[np.float32]:
        """(n, 2) as COLMAP counts pixels."""
        return np.array(list(self.numbers), dtype=np.float32).reshape(-1, 2) + np.float32(HALF)


def _numbered(pairs: Sequence[Named]) -> tuple[dict[str, _Points], list[tuple[str, str, NDArray[np.uint32]]]]:
    """The features of each picture, and the matches of each pair by their numbers."""
    pictures: dict[str, _Points] = {}
    lists = []
    for a, b, matches in pairs:
        _check_names(a, b)
        ends = [pictures.setdefault(n, _Points()).add(p) for n, p in ((a, matches.a), (b, matches.b))]
        lists.append((a, b, np.array(ends, dtype=np.uint32).reshape(2, -1).T))
        for name, size in zip((a, b), getattr(matches, "sizes", None) or (None, None), strict=True):
            pictures[name].size = size or pictures[name].size
    return pictures, lists


def _check_names(a: str, b: str) -> None:
    for name in (a, b):
        if not name or any(c.isspace() for c in name) or PurePath(name).is_absolute() or ".." in PurePath(name).parts:
            raise InputError(f"names: expected relative names without spaces, as COLMAP's lists have, got {name!r}")
    if a == b:
        raise InputError(f"names: expected two different pictures, got {a!r} twice")


# ---------------------------------------------------------------------------------------------------------------- text


def write_lists(path: str | os.PathLike[str], pairs: Sequence[Named]) -> Path:
    """COLMAP's text: the matches of each pair (`matches_importer --match_type raw`), and beside the file one
    `<name>.txt` a picture with its features (`feature_importer`)."""
    pictures, lists = _numbered(pairs)
    target = Path(path)
    for name, points in pictures.items():
        rest = " 1 0" + " 0" * DIMENSIONS
        lines = [f"{len(points.table)} {DIMENSIONS}", *(f"{x:.4f} {y:.4f}{rest}" for x, y in points.table)]
        media.write_text(target.parent / f"{name}.txt", "\n".join(lines) + "\n")
    blocks = ["\n".join([f"{a} {b}", *(f"{i} {j}" for i, j in numbers)]) for a, b, numbers in lists]
    return media.write_text(target, "\n\n".join(blocks) + "\n\n")


# ------------------------------------------------------------------------------------------------------------- database


def write_database(path: str | os.PathLike[str], pairs: Sequence[Named]) -> Path:
    """A new COLMAP database: a camera, an image and its features a picture, and the matches, not yet verified."""
    try:
        import pycolmap
    except ImportError:
        raise MissingExtra("pycolmap", "sfm") from None
    pictures, lists = _numbered(pairs)
    for name, points in pictures.items():
        if points.size is None:
            raise InputError(f"sizes: COLMAP's database needs the size of {name}; give Matches(…, sizes=((h, w), …))")
    try:
        with media.atomic(path) as sibling:
            _fill(pycolmap.Database.open(sibling), pycolmap, pictures, lists)
    except (OSError, RuntimeError) as error:
        raise FileError(f"{path}: cannot be written: {error}") from None
    return Path(path)


def _fill(database: Any, pycolmap: Any, pictures: dict[str, _Points], lists: Any) -> None:
    ids = {}
    for name, points in pictures.items():
        h, w = points.size or (0, 0)
        camera = pycolmap.Camera.create_from_model_name(0, "SIMPLE_RADIAL", FOCAL * max(h, w), w, h)
        ids[name] = database.write_image(pycolmap.Image(name=name, camera_id=database.write_camera(camera)))
        database.write_keypoints(ids[name], points.table)
    for a, b, numbers in lists:
        database.write_matches(ids[a], ids[b], numbers)
    database.close()


Size: TypeAlias = tuple[int, int]


@dataclass(frozen=True, eq=False, repr=False)
class Matches(types.Matches):
    """Matches a ↔ b (n, 2) with their stage and score, which give models, and know why there are none.

    `sizes` are (h, w) of the two pictures where they are known; `reason` says why there is no match, and is empty where
    there is one.
    """

    sizes: tuple[Size, Size] | None = None
    reason: str = ""

    def __init__(
        self,
        a: Any,
        b: Any,
        stage: Any = None,
        score: Any = None,
        *,
        sizes: tuple[Size, Size] | None = None,
        reason: str = "",
    ) -> None:
        super().__init__(a, b, stage, score)
        object.__setattr__(self, "sizes", sizes)
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

    def essential(self, Ka: Any, Kb: Any, px: float = 1.0, *, seed: int = robust.SEED) -> Model:
        """E, for cameras Ka and Kb (3, 3)."""
        return robust.essential(self.a, self.b, Ka, Kb, px, seed=seed)

    def pose(self, Ka: Any, Kb: Any, px: float = 1.0, *, seed: int = robust.SEED) -> Pose:
        """R, t with X_b = R X_a + t, t of unit length, for cameras Ka and Kb (3, 3)."""
        return robust.pose(self.a, self.b, Ka, Kb, px, seed=seed)

    # ── parts ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, which: ArrayLike) -> Matches:
        """These matches, by a mask (n,) or by their places."""
        some = super().take(which)
        reason = self.reason or "none of the matches was chosen"
        return Matches(some.a, some.b, some.stage, some.score, sizes=self.sizes, reason=reason)

    def stage1(self) -> Matches:
        """The matches that were found near the flow."""
        return self.take(self.stage == 1)

    def to_dict(self) -> dict[str, Any]:
        """A summary as plain Python values."""
        sizes = None if self.sizes is None else [list(s) for s in self.sizes]
        return super().to_dict() | {"sizes": sizes, "reason": self.reason}

    def __repr__(self) -> str:
        return super().__repr__() if len(self) else f"Matches(none: {self.reason or 'empty'})"

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def save(self, path: str | os.PathLike[str], *, names: tuple[str, str] = ("a.jpg", "b.jpg")) -> Path:
        """Write the matches: .npz (arrays), .txt (COLMAP's match list), or .db (COLMAP's database, pycolmap).

        COLMAP puts the centre of the first pixel at (½, ½), so ½ is added to points there. A .txt names the features by
        number; they are written beside it as COLMAP's feature files, `<name>.txt`, to be imported first. `names` are
        those of the pictures, which COLMAP goes by.
        """
        suffix = Path(path).suffix.lower()
        if suffix not in (".npz", ".txt", ".db"):
            raise InputError(f"path: expected a name that ends in .npz, .txt or .db, got {os.fspath(path)!r}")
        if suffix == ".npz":
            return write_arrays(path, self)
        write = write_lists if suffix == ".txt" else write_database
        return write(path, [(*names, self)])

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Matches:
        """Matches that were saved as .npz."""
        arrays = media.load_arrays(path)
        missing = {"a", "b", "stage", "score"} - set(arrays)
        if missing:
            raise FileError(f"{path}: not a file of matches; it lacks {', '.join(sorted(missing))}")
        sizes = arrays.get("sizes")
        known = sizes is not None and sizes.shape == (2, 2) and sizes.dtype.kind in "iu"
        kept = tuple((int(h), int(w)) for h, w in sizes) if known and sizes is not None else None
        reason = str(arrays["reason"]) if "reason" in arrays else ""
        return cls(*(arrays[n] for n in ("a", "b", "stage", "score")), sizes=kept, reason=reason)  # type: ignore[arg-type]


def none(reason: str, sizes: tuple[Size, Size] | None = None) -> Matches:
    """No matches, and why."""
    return Matches(np.empty((0, 2)), np.empty((0, 2)), sizes=sizes, reason=reason)


Rows: TypeAlias = NDArray[np.float32]
Index: TypeAlias = NDArray[np.int64]

TILE = 1024
"""Rows that are compared with all columns at once."""
PAIRS = 1 << 16
"""Pairs of near features whose distances are computed at once."""
DENSE = 0.02
"""With more than this share of all pairs near, all are compared: matrix products are that much faster."""


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


# -------------------------------------------------------------------------------------------------------- mutual, all


def mutual(x: Rows, y: Rows, ratio: float | None = None) -> tuple[Index, Index]:
    """The pairs (i, j) that are each other's nearest; with `ratio`, d₁ < ratio · d₂ both ways (Lowe's test)."""
    if not len(x) or not len(y):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    there, back = _Best(len(x)), _Best(len(y))
    for rows, D in _tiles(x, y):
        there.along_rows(rows, D, second=ratio is not None)
        back.along_columns(rows.start, D, second=ratio is not None)
    i = np.flatnonzero(back.index[there.index] == np.arange(len(x)))
    j = there.index[i]
    kept = np.ones(len(i), dtype=bool) if ratio is None else there.clear(ratio)[i] & back.clear(ratio)[j]
    return i[kept], j[kept]


class _Best:
    """The nearest and second nearest seen so far of each of n rows."""

    def __init__(self, n: int) -> None:
        self.index = np.zeros(n, dtype=np.int64)
        self.first, self.second = np.full(n, np.inf, np.float32), np.full(n, np.inf, np.float32)

    def along_rows(self, rows: slice, D: Rows, *, second: bool) -> None:
        """See whole rows of distances."""
        at = D.argmin(axis=1)
        self.index[rows], self.first[rows] = at, D[np.arange(len(D)), at]
        if second:
            self.second[rows] = _without(D, (np.arange(len(D)), at), axis=1)

    def along_columns(self, start: int, D: Rows, *, second: bool) -> None:
        """See some rows of every column, which begin at `start`; only columns with something nearer are searched."""
        low = D.min(axis=0)
        better = np.flatnonzero(low < self.first)
        at = D[:, better].argmin(axis=0)
        if second:
            places = D.argmin(axis=0), np.arange(D.shape[1])
            runner = np.minimum(self.second, _without(D, places, axis=0))
            self.second = np.minimum(runner, np.maximum(self.first, low))
        self.index[better], self.first[better] = at + start, low[better]

    def clear(self, ratio: float) -> NDArray[np.bool_]:
        """d₁ < ratio · d₂, in squares; where there is no second, it passes."""
        return np.asarray(self.first < np.float32(ratio**2) * self.second)


def _without(D: Rows, places: tuple[Index, Index], axis: int) -> Rows:
    """The least along an axis but for one place each; infinite where there is no other."""
    kept = D[places]
    D[places] = np.inf
    least = D.min(axis=axis)
    D[places] = kept
    return np.asarray(least)


def _tiles(x: Rows, y: Rows) -> Iterator[tuple[slice, Rows]]:
    """‖x_i − y_j‖² of some rows i and all j."""
    own = np.einsum("nd,nd->n", y, y)
    for start in range(0, len(x), TILE):
        part = x[start : start + TILE]
        D = part @ y.T
        D *= -2.0
        D += np.einsum("nd,nd->n", part, part)[:, None]
        D += own
        yield slice(start, start + len(part)), np.maximum(D, 0.0, out=D)


# --------------------------------------------------------------------------------------------------- near some places


def guided(x: Rows, places: NDArray[np.float64], y: Rows, points: NDArray[np.float64], radius: float) -> Index:
    """For each row of x the nearest row of y among the points within `radius` of its place, −1 where none is near.

    argmin_j ‖x_i − y_j‖ over ‖points_j − places_i‖ ≤ radius [LIFE Eq. 4]. A place that is not finite has none near.
    """
    found = np.full(len(x), -1, dtype=np.int64)
    known = np.flatnonzero(np.isfinite(places).all(axis=1))
    if not len(known) or not len(points):
        return found
    tree = cKDTree(points)
    counts = np.asarray(tree.query_ball_point(places[known], radius, return_length=True), dtype=np.int64)
    if counts.sum() > DENSE * len(known) * len(points):
        found[known] = _dense(x[known], places[known], y, points, radius)
        return found
    known, counts = known[counts > 0], counts[counts > 0]
    for part in _parts(counts):
        rows = known[part]
        near = tree.query_ball_point(places[rows], radius, return_sorted=True)
        found[rows] = _sparse(x, rows, y, near, counts[part])
    return found


def _parts(counts: Index) -> Iterator[slice]:
    """Runs of rows with about PAIRS near ones together."""
    ends = np.searchsorted(np.cumsum(counts), np.arange(PAIRS, counts.sum() + PAIRS, PAIRS)) + 1
    start = 0
    for end in (*ends[:-1].tolist(), len(counts)):
        if end > start:
            yield slice(start, end)
            start = end


def _sparse(x: Rows, rows: Index, y: Rows, near: NDArray[np.object_], counts: Index) -> Index:
    """The nearest of the listed rows of y to each of these rows of x; every list holds one at least."""
    j = np.concatenate([np.asarray(n, dtype=np.int64) for n in near])
    gap = np.repeat(x[rows], counts, axis=0) - y[j]
    d = np.einsum("nd,nd->n", gap, gap)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    lowest = np.repeat(np.minimum.reduceat(d, starts), counts)
    first = np.where(d == lowest, np.arange(len(d)), len(d))
    return j[np.minimum.reduceat(first, starts)]


def _dense(x: Rows, places: NDArray[np.float64], y: Rows, points: NDArray[np.float64], radius: float) -> Index:
    found = np.empty(len(x), dtype=np.int64)
    for rows, D in _tiles(x, y):
        away = places[rows]
        far = (away[:, :1] - points[:, 0]) ** 2 + (away[:, 1:] - points[:, 1]) ** 2 > radius**2
        D[far] = np.inf
        at = D.argmin(axis=1)
        found[rows] = np.where(np.isfinite(D[np.arange(len(D)), at]), at, -1)
    return found


Places: TypeAlias = NDArray[np.float64]
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
    x, y = comparable(fa, fb)
    i, j = mutual(x, y, ratio)
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
    x, y = comparable(fa, fb)
    forward = guided(x, there, y, fb.points.astype(np.float64), radii[0])
    backward = guided(y, back, x, fa.points.astype(np.float64), radii[1])
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
        p, q = mutual(x, y, ratio)
        kept = free_x[p] & free_y[q]
        return p[kept], q[kept]
    rows, columns = np.flatnonzero(free_x), np.flatnonzero(free_y)
    p, q = mutual(x[rows], y[columns], ratio)
    return rows[p], columns[q]


def _matches(
    fa: Features, fb: Features, rows: Any, pairs: Any, stage: NDArray[np.int8], sizes: tuple[Size, Size]
) -> Matches:
    (x, y), (i, j) = rows, pairs
    reason = f"no feature of a ({len(fa)}) and of b ({len(fb)}) chose each other"
    score = similarity(x[i], y[j])
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
    flower = _chosen(model)
    with torch.inference_mode():
        if hasattr(flower, "both"):
            there, back = flower.both(a, b)
            return there, back
        return flower.flow(a, b), flower.flow(b, a)


def _chosen(model: Any) -> Any:
    """The model that is asked for flow: the one given, or the one that comes with the package."""
    if model is None:
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
