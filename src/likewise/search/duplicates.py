"""Near-duplicates: photos that are copies of one another, saved again, resized, slightly cropped or relit.

Pairs whose rows are near are candidates. Their parts are compared place by place: the mean over cells of the cosine of
part i of one and part i of the other. From EQUAL on they are copies, below UNLIKE they are not. Between, features
decide: most matches are inliers of a homography that only scales and shifts, and keeps the frame in its place; another
view of the same thing bends it. Images that hardly have features are copies from ALIKE on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import cv2
import numpy as np
from numpy.typing import NDArray

from likewise.errors import LikewiseError
from likewise.images.embedder import directions
from likewise.pixels.matching import match
from likewise.search.verify import comparable
from likewise.store import run as runs

if TYPE_CHECKING:
    from likewise.search.collection import Collection

NEAR = 0.65
"""Rows farther apart than this are not of copies."""
EQUAL, ALIKE = 0.985, 0.93
"""Mean cosine of parts in the same places from which on nothing more is asked; and where there are no features."""
BENT = 0.02
"""How far, in shares of the longer side, corners may lie from where scaling and shifting alone would take them; and how
much the scales along both sides may differ."""
UNLIKE = 0.6
"""Mean cosine below which features are not asked."""
OVERLAP, INLIERS, LEAST = 0.75, 0.5, 15
"""By features: the share of both frames that the other covers, of matches that are inliers, and the fewest of these."""
SIDE, MOST, RATIO = 320, 500, 0.85
"""Longest side at which features are found, how many, and Lowe's test between them: copies pass it with ease."""
NEIGHBOURS, BLOCK = 16, 256
"""Candidates of each photo, and photos that are looked up at a time."""


def groups(collection: Collection, *, progress: bool = False) -> list[list[str]]:
    """The groups of copies, each and all in the order of paths."""
    paths = sorted(collection)
    place = {path: i for i, path in enumerate(paths)}
    joined = np.arange(len(paths))
    with runs.progress(len(paths), "near-duplicates", show=progress) as advance:
        for path, near in _neighbours(collection, paths):
            for other in near:
                i, j = place[path], place.get(other, place[path])
                if joined[i] != joined[j] and copies(collection, path, other):
                    joined[joined == joined[j]] = joined[i]
            advance()
    by_number: dict[int, list[str]] = {}
    for path, number in zip(paths, joined.tolist(), strict=True):
        by_number.setdefault(number, []).append(path)
    return sorted(group for group in by_number.values() if len(group) > 1)


def _neighbours(collection: Collection, paths: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Each photo with those whose rows are near, itself left out."""
    for start in range(0, len(paths), BLOCK):
        some = paths[start : start + BLOCK]
        kept = collection.index.vectors([collection.name_of(p) for p in some])
        some = [p for p in some if collection.name_of(p) in kept]
        rows = np.stack([kept[collection.name_of(p)] for p in some]) if some else np.empty((0, collection.about.dim))
        for path, hits in zip(some, collection.nearest(rows, NEIGHBOURS), strict=True):
            yield path, [h.path for h in hits if h.path != path and h.distance <= NEAR]


def copies(collection: Collection, a: str, b: str) -> bool:
    """Whether two photos are copies of one another."""
    kept = collection.parts([a, b])
    if kept is not None:
        cosine = alignment(kept[0], kept[1])
        if cosine >= EQUAL:
            return True
        if cosine < UNLIKE:
            return False
    try:
        one, two = comparable(a, SIDE), comparable(b, SIDE)
        said = same_frame(one, two)
    except LikewiseError:
        return False
    return said if said is not None else kept is not None and cosine >= ALIKE


def alignment(a: NDArray[np.int8], b: NDArray[np.int8]) -> float:
    """The mean over cells i of the cosine between part i of a and part i of b."""
    return float((directions(a) * directions(b)).sum(axis=-1).mean())


def same_frame(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> bool | None:
    """Whether matches say that one image is the other, scaled and shifted a little; None where they are too few."""
    matches = match(a, b, features="sift", matcher="ratio", guide="never", ratio=RATIO, most=MOST)
    if len(matches) < LEAST:
        return None
    model = matches.homography(px=2.0)
    if model.matrix is None or model.n < LEAST or model.n < INLIERS * len(matches):
        return False
    H, sizes = np.asarray(model.matrix), (a.shape[:2], b.shape[:2])
    if abs(np.linalg.det(H)) < 1e-9:
        return False
    back = np.asarray(np.linalg.inv(H), dtype=np.float64)
    return min(_covered(H, *sizes), _covered(back, *sizes[::-1])) >= OVERLAP and _bend(H, a.shape[:2]) <= BENT


def _bend(H: NDArray[np.float64], size: tuple[int, ...]) -> float:
    """How far H takes the corners of a frame from the best (s x + t_x, s′ y + t_y), in shares of its longer side, or
    |ln s / s′|, whichever is larger."""
    h, w = size
    corners = np.array([[0, 0], [w - 1, 0], [w - 1, h - 1], [0, h - 1]], dtype=np.float64)
    moved = cv2.perspectiveTransform(corners[None], H)[0]
    lines = [np.polyfit(corners[:, k], moved[:, k], 1) for k in (0, 1)]
    off = [moved[:, k] - np.polyval(lines[k], corners[:, k]) for k in (0, 1)]
    along, down = (max(float(line[0]), 1e-9) for line in lines)
    apart = float(np.abs(off).max()) / (max(h, w) * float(np.sqrt(along * down)))
    return max(apart, float(abs(np.log(along / down))))


def _covered(H: NDArray[np.float64], size: tuple[int, ...], other: tuple[int, ...]) -> float:
    """The share of points of one frame that H takes into the other."""
    y, x = np.meshgrid(*(np.linspace(0, n - 1, 16) for n in size), indexing="ij")
    p = np.stack([x, y, np.ones_like(x)], -1).reshape(-1, 3) @ H.T
    with np.errstate(divide="ignore", invalid="ignore"):
        q = p[:, :2] / p[:, 2:]
    inside = (q >= -0.5).all(1) & (q[:, 0] <= other[1] - 0.5) & (q[:, 1] <= other[0] - 0.5) & (p[:, 2] * p[0, 2] > 0)
    return float(inside.mean())
