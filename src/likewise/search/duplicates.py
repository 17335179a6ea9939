"""Duplicates: photos that are copies of one another, by what they share: the frame or a part of it, turned or mirrored.

Candidates of each photo are those whose vectors are near, and those whose grey thumbnails agree in one of the eight
ways to lay a photo down. A pair is a copy where stored features say so: matches are inliers of a plane that only turns,
scales and shifts, and most features that both should show are alike: a webcam months later has the frame, but not the
features. Photos without features are copies where their thumbnails are the same. Groups are closed around the photo to
keep: each member is a copy of that one, so that chains do not form.
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
from likewise.search.local import Floats, Local, alike, unit
from likewise.search.verify import PLAIN, Evidence, Verifier, View
from likewise.store import run as runs
from likewise.types import Image

if TYPE_CHECKING:
    from likewise.search.collection import Collection

faiss: Any = faiss_stubs

NEIGHBOURS, BLOCK = 8, 256
"""Candidates of each photo by vectors, and photos that are looked up at a time. Of 156 planted copies the source was
among the nearest four of all that were not laid down another way."""
SAME_THUMB, EQUAL_THUMB = 0.15, 0.08
"""Distance of normalised thumbnails up to which two photos are candidates, and up to which they are copies where they
have no features. Turned and mirrored copies were within 0.02."""
PROMISING = 60
"""Features alike from which on a pair is matched: planted copies had 85 at least, 95 % of neighbours have fewer."""
LEAST, COMMON = 12, 0.25
"""Inliers of a copy, at least; and the share of features in the shared part that are inliers."""
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
    place = {path: i for i, path in enumerate(paths)}
    near: dict[int, dict[int, View]] = {i: {} for i in range(len(paths))}
    thumbs = np.zeros((len(paths), 256), np.float32)
    for start in range(0, len(paths), BLOCK):
        some = paths[start : start + BLOCK]
        names = [collection.name_of(p) for p in some]
        kept = collection.index.vectors(names)
        known = [(p, n) for p, n in zip(some, names, strict=True) if n in kept]
        rows = np.stack([kept[n] for _, n in known]) if known else np.empty((0, collection.about.dim))
        for (path, _), hits in zip(known, collection.nearest(rows, NEIGHBOURS), strict=True):
            for hit in hits:
                if hit.path != path and hit.path in place:
                    near[place[path]].setdefault(place[hit.path], PLAIN)
        for name, data in collection.index.features(names).items():
            thumbs[place[collection.path_of(name)]] = normalised(Local.from_bytes(data, collection.place).thumb)
    for i, j, view in _thumb_pairs(thumbs):
        near[i][j] = view if view != PLAIN else near[i].get(j, PLAIN)
    return near


def normalised(thumb: NDArray[np.uint8]) -> Floats:
    """A thumbnail as a unit vector without its mean: light and contrast do not count; zero where it is blank."""
    values = thumb.astype(np.float32).ravel()
    values -= values.mean()
    return unit(values) if np.abs(values).max() > 3 else values * 0


def _thumb_pairs(thumbs: Floats) -> Iterator[tuple[int, int, View]]:
    """Pairs (i, j) where i, laid down in some way, has the thumbnail of j."""
    if len(thumbs) < 2:
        return
    index = _thumb_index(thumbs)
    for view in LAID:
        seen = thumbs.reshape(-1, 16, 16)[:, :, ::-1] if view.mirror else thumbs.reshape(-1, 16, 16)
        laid = np.ascontiguousarray(np.rot90(seen, view.turn, (1, 2)).reshape(len(thumbs), -1))
        D, I = index.search(laid, min(NEIGHBOURS, len(thumbs)))
        near = (D <= SAME_THUMB**2) & (I >= 0) & np.any(laid, axis=1, keepdims=True)
        for i, k in zip(*np.nonzero(near), strict=True):
            if (j := int(I[i, k])) != i and thumbs[j].any():
                yield int(i), j, view


def _thumb_index(thumbs: Floats) -> Any:
    """Exact for few, in lists for many: time then grows a little faster than the number of photos."""
    if len(thumbs) < 20_000:
        index = faiss.IndexFlatL2(thumbs.shape[1])
    else:
        lists = int(4 * np.sqrt(len(thumbs)))
        index = faiss.IndexIVFFlat(faiss.IndexFlatL2(thumbs.shape[1]), thumbs.shape[1], lists)
        index.cp.min_points_per_centroid = 1
        index.train(thumbs[:: max(1, len(thumbs) // (40 * lists))])
        index.nprobe = 8
    index.add(np.ascontiguousarray(thumbs))
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
        count = alike(verifier.look(view), other)
        if count >= PROMISING:
            evidence = verifier.weigh(Path(path), other, view, count)
            if is_copy(evidence, own, other):
                return Relation(evidence.relation, evidence.words(), evidence)
    return None


def is_copy(evidence: Evidence, own: Local, other: Local) -> bool:
    """Whether evidence is that of a copy: one frame, or a part of it, and what it shows."""
    if not evidence.copy or evidence.n < LEAST or max(evidence.shared) < 0.9:
        return False
    return common(evidence, own, other) >= COMMON


def common(evidence: Evidence, own: Local, other: Local) -> float:
    """Of the features in what both show, the share that are inliers; of both photos the larger."""
    if evidence.matrix is None:
        return 0.0
    back = np.linalg.inv(evidence.matrix)
    shares = []
    for photo, H, size in ((own, evidence.matrix, other.size), (other, back, own.size)):
        at = cv2.perspectiveTransform(photo.points[None].astype(np.float64), H)[0]
        inside = ((at >= 0) & (at <= (size[1] - 1, size[0] - 1))).all(axis=1)
        shares.append(evidence.n / max(int(inside.sum()), 1))
    return max(shares)


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
