"""Duplicates: photos that are copies of one another, by what they share: the frame or a part of it, turned or mirrored.

Candidates of each photo are those whose vectors are near, and those whose grey thumbnails agree in one of the eight
ways to lay a photo down. A pair is a copy where stored features that are alike are inliers of a plane that only turns,
scales and shifts, and where one photo, warped to the other by it, correlates with it: a webcam months later has the
frame, but not the light and the things. Photos without features are copies where their thumbnails are the same. Groups
are closed around the photo to keep: each member is a copy of that one, so that chains do not form.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import faiss as faiss_stubs
import numpy as np
from numpy.typing import NDArray

from likewise import media
from likewise.errors import LikewiseError
from likewise.search.local import Floats, Local, unit
from likewise.search.verify import PLAIN, Evidence, Verifier, View
from likewise.store import run as runs
from likewise.types import Image

if TYPE_CHECKING:
    from likewise.search.collection import Collection

faiss: Any = faiss_stubs

NEIGHBOURS, BLOCK, FLAT = 8, 256, 20_000
"""Candidates of each photo by vectors, photos that are looked up at a time, and up to how many each is compared with
all. Of 156 planted copies the source was among the nearest four of all that were not laid down another way."""
SAME_THUMB, EQUAL_THUMB = 0.15, 0.08
"""Distance of normalised thumbnails up to which two photos are candidates, and up to which they are copies where they
have no features. Turned and mirrored copies were within 0.02."""
PROMISING, LEAST = 40, 12
"""Features alike from which on a pair is fitted, and inliers of a copy, at least: planted copies had 85 and 24."""
EQUAL, DETAIL, WINDOW, FLAT_GREY = 0.95, 96, 9, 9.0
"""The median correlation, from which on two photos, one warped to the other, show the same light on the same things: in
windows of 9 px where the longer side has 96, whose variance in one of them is above 9. Planted copies had 0.97 at
least, captions, light and JPEG included; webcams months apart and neighbours on a path 0.93 at most."""
LAID = tuple(View(turn, mirror) for mirror in (False, True) for turn in range(4))
"""The eight ways to lay a photo down."""


@dataclass(frozen=True)
class Copy:
    """A photo of a group, and what it is to the one to keep.

    Attributes
    ----------
    path : str
    what : str
        "exact copy", "crop 62 %, mirrored", "resized to 160 × 120" …
    why : str
        What shows it.
    size : (h, w)
    bytes : int
    taken : str
        ISO 8601, "" where no camera told.

    Examples
    --------
    >>> Copy("a.jpg", "exact copy", "the same bytes", (480, 640), 31_000).to_dict()["what"]
    'exact copy'
    """

    path: str
    what: str
    why: str
    size: tuple[int, int]
    bytes: int
    taken: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As plain Python values."""
        return {**self.__dict__, "size": list(self.size)}


@dataclass(frozen=True, eq=False)
class Group:
    """Copies of one photo: a sequence of their paths, the one to keep first.

    Attributes
    ----------
    copies : tuple of Copy
        The one to keep (the largest, then the most bytes, then the oldest), then the others.

    Examples
    --------
    >>> group = Group((Copy("a.jpg", "keep", "", (2, 2), 9), Copy("b.jpg", "exact copy", "", (2, 2), 9)))
    >>> list(group), group.keep
    (['a.jpg', 'b.jpg'], 'a.jpg')
    """

    copies: tuple[Copy, ...]

    @property
    def keep(self) -> str:
        """The path of the photo that is suggested to be kept."""
        return self.copies[0].path

    def __len__(self) -> int:
        return len(self.copies)

    def __iter__(self) -> Iterator[str]:
        return (copy.path for copy in self.copies)

    def __getitem__(self, i: int) -> str:
        return self.copies[i].path

    def to_dict(self) -> dict[str, Any]:
        """As plain Python values."""
        return {"keep": self.keep, "copies": [copy.to_dict() for copy in self.copies]}


def groups(
    collection: Collection, *, progress: bool = False, on_progress: Callable[[int, int], None] | None = None
) -> list[Group]:
    """The groups of copies, in the order of the paths to keep."""
    paths = sorted(collection)
    near = candidates(collection, paths)
    pairs = sorted({(min(i, j), max(i, j)) for i, some in near.items() for j in some})
    by_first: dict[int, list[int]] = {}
    for i, j in pairs:
        by_first.setdefault(i, []).append(j)
    found: dict[tuple[int, int], Relation] = {}
    with runs.progress(len(by_first), "duplicates", show=progress) as advance:
        for done, (i, others) in enumerate(by_first.items(), 1):
            found |= {(i, j): relation for j, relation in _compare(collection, paths, i, others, near)}
            advance()
            if on_progress is not None:
                on_progress(done, len(by_first))
    return _grouped(collection, paths, found)


# ── candidates ────────────────────────────────────────────────────────────────────────────────────────────────────


def candidates(collection: Collection, paths: Sequence[str]) -> dict[int, dict[int, View]]:
    """For each photo those that may be its copies, each with the way that it would have to be laid down."""
    place = {collection.name_of(path): i for i, path in enumerate(paths)}
    names = list(place)
    rows = np.zeros((len(paths), collection.about.dim), np.float16)
    thumbs = np.zeros((len(paths), 256), np.float32)
    for start in range(0, len(names), BLOCK):
        some = names[start : start + BLOCK]
        for name, row in collection.index.vectors(some).items():
            rows[place[name]] = row
        for name, data in collection.index.features(some).items():
            thumbs[place[name]] = normalised(Local.from_bytes(data, collection.place).thumb)
    near: dict[int, dict[int, View]] = {i: {} for i in range(len(paths))}
    for i, j in _vector_pairs(rows):
        near[i][j] = PLAIN
    for i, j, view in _thumb_pairs(thumbs):
        near[i][j] = view if view != PLAIN else near[i].get(j, PLAIN)
    return near


def _vector_pairs(rows: NDArray[np.float16]) -> Iterator[tuple[int, int]]:
    """Pairs (i, j) where j is among the nearest of i."""
    if len(rows) < 2:
        return
    index = _neighbours(rows)
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK].astype(np.float32)
        I = index.search(block, min(NEIGHBOURS, len(rows)))[1]
        kept = (I >= 0) & (np.arange(start, start + len(block))[:, None] != I) & block.any(axis=1, keepdims=True)
        for i, k in zip(*np.nonzero(kept), strict=True):
            yield start + int(i), int(I[i, k])


def normalised(thumb: NDArray[np.uint8]) -> Floats:
    """A thumbnail as a unit vector without its mean: light and contrast do not count; zero where it is blank."""
    values = thumb.astype(np.float32).ravel()
    values -= values.mean()
    return unit(values) if np.abs(values).max() > 3 else values * 0


def _thumb_pairs(thumbs: Floats) -> Iterator[tuple[int, int, View]]:
    """Pairs (i, j) where i, laid down in some way, has the thumbnail of j."""
    if len(thumbs) < 2:
        return
    index = _neighbours(thumbs)
    for view in LAID:
        seen = thumbs.reshape(-1, 16, 16)[:, :, ::-1] if view.mirror else thumbs.reshape(-1, 16, 16)
        laid = np.ascontiguousarray(np.rot90(seen, view.turn, (1, 2)).reshape(len(thumbs), -1))
        D, I = index.search(laid, min(NEIGHBOURS, len(thumbs)))
        near = (D <= SAME_THUMB**2) & (I >= 0) & np.any(laid, axis=1, keepdims=True)
        for i, k in zip(*np.nonzero(near), strict=True):
            if (j := int(I[i, k])) != i and thumbs[j].any():
                yield int(i), j, view


def _neighbours(rows: Any) -> Any:
    """An index of rows (n, d): exact for few, in lists and 16 bits for many, so that time grows a little faster than n.

    Copies are so much nearer than all else that few lists have to be looked through.
    """
    n, d = rows.shape
    if n < FLAT:
        index = faiss.IndexFlatL2(d)
    else:
        half = faiss.ScalarQuantizer.QT_fp16
        lists = int(4 * np.sqrt(n))
        index = faiss.IndexIVFScalarQuantizer(faiss.IndexFlatL2(d), d, lists, half, faiss.METRIC_L2, False)
        index.cp.min_points_per_centroid = 1
        index.train(np.ascontiguousarray(rows[:: max(1, n // (40 * lists))], np.float32))
        index.nprobe = 8
    for start in range(0, n, 8192):
        index.add(np.ascontiguousarray(rows[start : start + 8192], np.float32))
    return index


# ── pairs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Relation:
    """What the second photo of a pair is to the first, by evidence where there is any."""

    what: str
    why: str
    evidence: Evidence | None = None


def _compare(
    collection: Collection, paths: Sequence[str], i: int, others: Sequence[int], near: dict[int, dict[int, View]]
) -> Iterator[tuple[int, Relation]]:
    """Those of the others that are copies of photo i."""
    features = collection.features([paths[k] for k in (i, *others)])
    own = features.get(paths[i])
    if own is None:
        return
    image = Image(paths[i])
    image.remember(("local", 0, False, 1.0), lambda: own)
    verifier = Verifier(image)
    for j in others:
        other = features.get(paths[j])
        if other is None:
            continue
        if _same_bytes(paths[i], paths[j]):
            yield j, Relation("exact copy", "the same bytes")
            continue
        views = {near[i].get(j, PLAIN), *_reverse(near[j].get(i, PLAIN))} - {PLAIN}
        try:
            relation = compare(verifier, paths[j], own, other, tuple(views))
        except LikewiseError:  # a file that is gone, or cannot be read any more
            continue
        if relation is not None:
            yield j, relation


def _reverse(view: View) -> tuple[View, ...]:
    """How j must be laid down where i is, given the other way round."""
    return (view if view.mirror else View(-view.turn % 4, False),)


def compare(verifier: Verifier, path: str, own: Local, other: Local, views: Sequence[View] = ()) -> Relation | None:
    """What the photo at a path is to the verifier's own; None where it is no copy."""
    if min(len(own), len(other)) < LEAST:
        apart = float(np.linalg.norm(normalised(own.thumb) - normalised(other.thumb)))
        blank = not normalised(own.thumb).any() or not normalised(other.thumb).any()
        alike_enough = apart <= EQUAL_THUMB and not blank
        return (
            Relation("same picture", f"hardly any features; thumbnails differ by {apart:.2f}") if alike_enough else None
        )
    for view in (*views, PLAIN):
        evidence = verifier.glance(Path(path), other, view)
        if evidence is not None and evidence.alike >= PROMISING and is_copy(evidence):
            matched = verifier.weigh(Path(path), other, view, evidence.alike)  # what a search would say of both
            evidence = matched if matched.copy else evidence
            return Relation(evidence.relation, evidence.words(), evidence)
    return None


def is_copy(evidence: Evidence) -> bool:
    """Whether evidence is that of a copy: one frame, or a part of it, and the same light on the same things."""
    if not evidence.copy or evidence.n < LEAST or max(evidence.shared) < 0.9:
        return False
    return correlation(evidence) >= EQUAL


def correlation(evidence: Evidence) -> float:
    """The median correlation of small windows of both photos, the second warped to the first; 0 where nothing is seen.

    Gain and offset of a window do not count, and a caption is less than half of them.
    """
    both = evidence.warp()
    if both is None:
        return 0.0
    a, (b, seen) = evidence.images[0], both
    size = [max(WINDOW, round(n * DETAIL / max(a.shape[:2]))) for n in a.shape[1::-1]]
    x, y = (
        np.asarray(cv2.resize(cv2.cvtColor(p, cv2.COLOR_RGB2GRAY), size, interpolation=cv2.INTER_AREA), np.float64)
        for p in (a, b)
    )
    whole = (cv2.resize(seen, size, interpolation=cv2.INTER_AREA) > 250).astype(np.uint8)
    inside = cv2.erode(whole, np.ones((WINDOW, WINDOW), np.uint8), borderValue=0) > 0

    def mean(z: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(cv2.boxFilter(z, -1, (WINDOW, WINDOW)))

    xx, yy, xy = mean(x * x) - mean(x) ** 2, mean(y * y) - mean(y) ** 2, mean(x * y) - mean(x) * mean(y)
    inside &= np.maximum(xx, yy) > FLAT_GREY
    values = xy[inside] / np.sqrt(np.maximum(xx * yy, 1e-6)[inside])
    return float(np.median(values)) if len(values) else 0.0


def _same_bytes(a: str, b: str) -> bool:
    try:
        if os.path.getsize(a) != os.path.getsize(b):
            return False
        with open(a, "rb") as one, open(b, "rb") as two:
            return one.read() == two.read()
    except OSError:
        return False


# ── groups ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _grouped(collection: Collection, paths: Sequence[str], found: dict[tuple[int, int], Relation]) -> list[Group]:
    """Groups around the photo to keep: the best first takes its copies that no better one has taken."""
    partners: dict[int, set[int]] = {}
    for i, j in found:
        partners.setdefault(i, set()).add(j)
        partners.setdefault(j, set()).add(i)
    quality = {i: _quality(paths[i]) for i in partners}
    taken, made = set[int](), list[Group]()
    for i in sorted(partners, key=lambda i: (*quality[i][0], paths[i])):
        rest = sorted(partners[i] - taken, key=lambda j: (*quality[j][0], paths[j]))
        if i in taken or not rest:
            continue
        copies = [_copy(paths[i], quality[i], "keep", "")]
        for j in rest:
            relation = found.get((i, j)) or found[j, i]
            what, why = _described(relation, (i, j) in found, quality[i], quality[j]), relation.why
            copies.append(_copy(paths[j], quality[j], what, why))
        taken |= {i, *rest}
        made.append(Group(tuple(copies)))
    return sorted(made, key=lambda group: group.keep)


Quality = tuple[tuple[int, int, str], tuple[int, int], int, str]


def _quality(path: str) -> Quality:
    """What sorts the best photo first, and its size (h, w), bytes and time."""
    try:
        size, many = Image(path).original_size, os.path.getsize(path)
    except (LikewiseError, OSError):
        size, many = (0, 0), 0
    taken = media.taken_at(path)["taken"] or ""
    return (-size[0] * size[1], -many, taken or "9999"), size, many, taken


def _copy(path: str, quality: Quality, what: str, why: str) -> Copy:
    return Copy(path, what, why, *quality[1:])


def _described(relation: Relation, forward: bool, keep: Quality, copy: Quality) -> str:
    """What a copy is to the one to keep, in words."""
    if relation.evidence is None:
        return relation.what
    evidence = relation.evidence if forward else turned_round(relation.evidence)
    said = "" if evidence.relation == "same frame" else evidence.relation
    (h, w), (height, width) = keep[1], copy[1]
    smaller = not said and max(height, width) < 0.97 * max(h, w)
    resized = f"resized to {width} × {height}" if smaller else ""
    return ", ".join(filter(None, (said, resized))) or "saved again"


def turned_round(evidence: Evidence) -> Evidence:
    """The evidence of b and a."""
    matches = evidence.matches
    matrix = None if evidence.matrix is None else np.asarray(np.linalg.inv(evidence.matrix), np.float64)
    swapped = type(matches)(matches.b, matches.a, matches.stage, matches.score)
    return Evidence(
        swapped, evidence.kind, matrix, evidence.inliers, evidence.sizes[::-1], features=evidence.features[::-1],
        sources=evidence.sources[::-1],
    )  # fmt: skip
