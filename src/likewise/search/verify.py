"""The evidence of a pair: matches of stored features, the geometry of the inliers, and what part of each is shared.

It is made once, from the local features that an index keeps. Features do not turn with a photo, so a query is also
looked at turned, mirrored, at half and at twice its size; the view with most features alike is matched by LighterGlue.
Matches at the same border of both photos may be a caption or a frame, and are no evidence.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from likewise import inputs, plot
from likewise.errors import LikewiseError
from likewise.images.embedder import default, in_threads
from likewise.pixels import matching, robust
from likewise.pixels.features import turned
from likewise.search.local import Floats, Local, Size, alike, alike_pairs, describe, extract
from likewise.search.result import Hit
from likewise.search.verdict import CHANCE, judge
from likewise.types import Matches

Photo = NDArray[np.uint8]
Pairs = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]


class View(NamedTuple):
    """How a query is looked at: mirrored, then turned by `turn` · 90° to the left, then scaled."""

    turn: int = 0
    mirror: bool = False
    scale: float = 1.0


PLAIN = View()
VIEWS = (PLAIN, View(1), View(2), View(3), View(mirror=True), View(scale=0.5), View(scale=2.0))
"""What is tried: a photo that lies on its side or upside down, one that is mirrored, a part of a photo and a photo of
which the query shows a part."""
CLEAR = 80
"""Features alike in the plain view from which on no other is tried: of the nearest 100 of each query of places/ those
of other places have 2 in the median, 39 at the 99th percentile and 92 at the 99.9th."""
MORE, TIMES = 6, 1.5
"""So many features more, and so many times as many as in the plain view, must be alike in another to be matched
instead. With the second, 28 instead of 35 of 210 pairs of places/ are matched in another view, most of these twice; of
56 true ones, turned or mirrored, the right view is chosen as often (214 of 224; with twice as many, 211)."""
BORDER, OVERLAY, STILL = 0.12, 0.2, 8.0
"""Captions and logos: matches in this share of the height, from the top or the bottom of both photos; and in this one,
where they move by so many pixels at most. Of 2,750 pairs of different webcams, many of one operator, 64 had a geometry
where only still ones in the outer 12 % were left out; 18 with all of these left out; 6 with both; 5 with 25 or 30 %,
which cost 2 and 5 of the 77 % of true pairs that keep theirs."""
FIRST, SOME = 300, 6
"""Of the strongest so many features so many must be alike, before all are compared: of 156 planted copies those least
alike had 12, 85 % of other candidates have fewer."""
FEW = 40
"""A photo with fewer features than this shows too little to be called different from another."""
BENT = 0.03
"""How far, in shares of the longer side, corners may lie from where turning, scaling and shifting takes them, if one
photo is to be a copy of the other."""
AWAY, DISTINCT = 40.0, 0.4
"""A match is distinct where no feature farther than so many pixels from its end is more alike; where fewer inliers than
this share are, a pattern repeats. Parts of a brick wall that do not overlap had .37 and .52, a lattice .24; campus .48
to .97, mostly .9."""
WHOLE = 0.93
"""From this share of a photo on, all of it is seen."""


@dataclass(frozen=True, eq=False, repr=False)
class Evidence:
    """What speaks for two photos showing the same: matches, the geometry they are inliers of, and what is shared.

    Attributes
    ----------
    matches : Matches
        Features of a found again in b, in pixels of the photos as they were compared.
    kind : "homography", "fundamental" or None
        A plane or a camera that only turned, or two views: whichever has more inliers.
    matrix : array (3, 3) or None
    inliers : array (n,) of bool
        Which matches fit the matrix.
    sizes : ((h, w), (h, w))
        Of the photos as they were compared: their longest side at 640 px.
    reason : str
        Why there is no geometry, where there is none.
    log_nfa : float
        log₁₀ of how many models as good chance gives a pair.
    alike : int
        How many features are each other's nearest, and alike.
    distinct : int
        How many inliers have no other feature in b that is more alike: few where a pattern repeats.
    features : (int, int)
        How many features each photo has.
    sources : (image, image)
        Where the photos are, to be drawn.

    Examples
    --------
    >>> import likewise as lw
    >>> from likewise import samples
    >>> cat = samples.photograph("cat")[:200, :240]
    >>> evidence = lw.search.verify(cat, cat[:, ::-1])
    >>> evidence.kind, evidence.relation
    ('homography', 'mirrored')
    """

    matches: Matches
    kind: str | None
    matrix: NDArray[np.float64] | None
    inliers: NDArray[np.bool_]
    sizes: tuple[Size, Size]
    reason: str = ""
    log_nfa: float = 0.0
    alike: int = 0
    distinct: int = 0
    features: tuple[int, int] = (0, 0)
    sources: tuple[Any, Any] = field(repr=False, default=(None, None))

    @property
    def n(self) -> int:
        """How many matches are inliers."""
        return int(self.inliers.sum())

    @property
    def share(self) -> float:
        """The share of matches that are inliers; 0 where there is none."""
        return float(self.inliers.mean()) if len(self.inliers) else 0.0

    @property
    def repetitive(self) -> bool:
        """Whether a pattern that repeats may explain the geometry."""
        return self.kind is not None and (self.distinct < CHANCE or self.distinct < DISTINCT * self.n)

    @property
    def few(self) -> bool:
        """Whether one of the photos shows too little to say that it is different."""
        return min(self.features) < FEW

    @functools.cached_property
    def shared(self) -> tuple[float, float]:
        """The share of each photo that the other shows: by the plane, or the hull of the inliers of two views."""
        if self.kind is None or self.matrix is None:
            return 0.0, 0.0
        if self.kind == "homography":
            back = np.asarray(np.linalg.inv(self.matrix), np.float64)
            return _covered(self.matrix, *self.sizes), _covered(back, *self.sizes[::-1])
        some = self.matches.take(self.inliers)
        areas = [cv2.contourArea(cv2.convexHull(side.astype(np.float32))) for side in (some.a, some.b)]
        return areas[0] / float(np.prod(self.sizes[0])), areas[1] / float(np.prod(self.sizes[1]))

    @functools.cached_property
    def similarity(self) -> tuple[float, float, bool, float] | None:
        """(scale, degrees to the left, mirrored, how much it bends) of b in terms of a; None where there is no plane.

        The scale is of the photos as they were compared; the bend is how far corners lie from the similarity, in shares
        of b's longer side.
        """
        if self.kind != "homography" or self.matrix is None:
            return None
        h, w = self.sizes[0]
        some = self.matches.take(self.inliers).a
        low, high = some.min(axis=0), some.max(axis=0)  # where it is known: beyond, a plane may bend as it likes
        corners = np.array([low, (high[0], low[1]), high, (low[0], high[1])], np.float64)
        moved = cv2.perspectiveTransform(corners[None], self.matrix)[0]
        x, y = corners - corners.mean(axis=0), moved - moved.mean(axis=0)
        U, d, Vt = np.linalg.svd(y.T @ x)
        R = U @ Vt
        mirrored = bool(np.linalg.det(R) < 0)
        scale = float(d.sum() / max((x**2).sum(), 1e-9))
        bend = float(np.abs(y - scale * x @ R.T).max() / max(scale * max(h, w), 1e-9))
        straight = R @ np.diag([-1.0, 1.0]) if mirrored else R
        return scale, float(-np.degrees(np.arctan2(straight[1, 0], straight[0, 0]))), mirrored, bend

    @property
    def copy(self) -> bool:
        """Whether one is the other, turned, mirrored, scaled or cropped, but not seen from elsewhere."""
        return self.similarity is not None and self.similarity[3] <= BENT

    @property
    def relation(self) -> str:
        """What b is to a, in words."""
        if self.kind is None:
            return ""
        a, b = self.shared
        if not self.copy or self.similarity is None:
            return f"{a:.0%} of it seen from elsewhere" if a < WHOLE else "seen from elsewhere"
        _, degrees, mirrored, _ = self.similarity
        said = []
        if a < WHOLE and b >= WHOLE:
            said.append(f"crop {a:.0%}")
        elif b < WHOLE:
            said.append(f"{b:.0%} of it" if a >= WHOLE else f"overlap {min(a, b):.0%}")
        if abs(degrees) > 1:
            said.append(f"turned by {abs(round(degrees))}°")
        return ", ".join([*said, *(["mirrored"] if mirrored else [])]) or "same frame"

    @property
    def images(self) -> tuple[Photo, Photo]:
        """The two as they were compared."""
        one, two = (np.asarray(inputs.image(s).reduced(max(z))) for s, z in zip(self.sources, self.sizes, strict=True))
        return _at(one, self.sizes[0]), _at(two, self.sizes[1])

    def __repr__(self) -> str:
        return f"Evidence({self.words()})"

    def words(self) -> str:
        """What was seen, in a line."""
        if self.kind is None:
            return self.reason or "no geometry that matches fit"
        return f"{self.n} of {len(self.matches)} matches are inliers of one {self.kind}"

    def to_dict(self) -> dict[str, Any]:
        """Counts, the matrix, what is shared, and the inliers, as plain Python values."""
        inliers = self.matches.take(self.inliers)
        scale, degrees, mirrored, _ = self.similarity or (1.0, 0.0, False, 0.0)
        return {
            "matches": len(self.matches),
            "inliers": self.n,
            "model": self.kind,
            "matrix": None if self.matrix is None else self.matrix.tolist(),
            "sizes": [list(s) for s in self.sizes],
            "reason": self.reason,
            "alike": self.alike,
            "distinct": self.distinct,
            "features": list(self.features),
            "shared": [round(x, 4) for x in self.shared],
            "turn": round(degrees) % 360,
            "mirrored": mirrored,
            "scale": round(scale, 4),
            "relation": self.relation,
            "points": np.round(np.concatenate([inliers.a, inliers.b], axis=1), 2).tolist(),
        }

    def plot(self, path: str | Path | None = None, *, title: str | None = None) -> Any:
        """Both images with the inliers between them. A matplotlib Figure."""
        figure = plot.matches(*self.images, self.matches.take(self.inliers), title=title or self.words())
        if path is not None:
            plot.save(figure, path)
        return figure

    def warp(self) -> tuple[Photo, Photo] | None:
        """b warped to a by the homography, and where it is seen (0 or 255); None where there is no homography."""
        if self.kind != "homography" or self.matrix is None:
            return None
        a, b = self.images
        size, flags = (a.shape[1], a.shape[0]), cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        warped = cv2.warpPerspective(b, self.matrix, size, flags=flags)
        seen = cv2.warpPerspective(np.full(b.shape[:2], 255, np.uint8), self.matrix, size, flags=flags)
        return np.asarray(warped, np.uint8), np.asarray(seen, np.uint8)

    def overlay(self) -> Photo | None:
        """b warped to a, half and half where both are seen; None where there is no homography."""
        both = self.warp()
        if both is None:
            return None
        a, (warped, seen) = self.images[0], both
        return np.where(seen[..., None] > 127, a // 2 + warped // 2, a // 3 + 170).astype(np.uint8)


class Verifier:
    """Verifies one query against many candidates: the features of the query are found once.

    Parameters
    ----------
    query : image
        A path, array, Pillow image or tensor.

    Examples
    --------
    >>> import likewise as lw
    >>> from likewise import samples
    >>> cat = samples.photograph("cat")[:200, :240]
    >>> verifier = lw.search.Verifier(cat)
    >>> verifier(cat[10:, 10:]).n > 30
    True
    """

    def __init__(self, query: Any) -> None:
        self.image = inputs.image(query)  # it keeps its features

    def __call__(self, candidate: Any, local: Local | None = None, *, views: Sequence[View] = VIEWS) -> Evidence:
        """The evidence for a candidate, whose features may be known."""
        other = extract(inputs.image(candidate)) if local is None else local
        counts = {PLAIN: alike(extract(self.image), other)}
        if counts[PLAIN] < CLEAR:
            counts |= {view: alike(self.look(view), other) for view in views if view != PLAIN}
        best = max(counts, key=lambda view: counts[view])
        if counts[best] < max(counts[PLAIN] + MORE, TIMES * counts[PLAIN]):
            best = PLAIN
        evidence = self.weigh(candidate, other, best, counts[best])
        if evidence.kind is None and best != PLAIN:
            evidence = self.weigh(candidate, other, PLAIN, counts[PLAIN])
        return evidence

    def look(self, view: View) -> Local:
        """The features of the query in a view, at their places in it as it is."""
        return extract(self.image, turn=view.turn, mirror=view.mirror, scale=view.scale)

    def weigh(self, candidate: Any, other: Local, view: View, count: int) -> Evidence:
        """The evidence in one view, in which so many features are alike."""
        own = self.look(view)
        known: dict[str, Any] = {
            "sizes": (own.size, other.size),
            "alike": count,
            "features": (len(extract(self.image)), len(other)),
            "sources": (self.image, candidate),
        }
        if not len(own) or not len(other):
            none = matching.Matches([], [])
            bare = "the query" if not len(own) else "the photo"
            return Evidence(
                none, None, None, np.zeros(0, bool), reason=f"no feature in {bare}: blank or blurred", **known
            )
        seen, size = seen_from(own, view)
        i, j, score = matching.glued("xfeat", own.features(seen), other.features(), size, other.size)
        return _evidence(own, other, view, (i, j, score), known)

    def glance(self, candidate: Any, other: Local, view: View) -> Evidence | None:
        """A plane through features that are alike, as those of copies are; None where hardly any are."""
        own = self.look(view)
        if len(alike_pairs(own, other, FIRST)[0]) < SOME:
            return None
        i, j = alike_pairs(own, other)
        known = {
            "sizes": (own.size, other.size),
            "alike": len(i),
            "features": (len(own), len(other)),
            "sources": (self.image, candidate),
        }
        return _evidence(own, other, view, (i, j, np.ones(len(i), np.float32)), known, copies=True)


def _evidence(
    own: Local, other: Local, view: View, pairs: Pairs, known: dict[str, Any], *, copies: bool = False
) -> Evidence:
    """The evidence of features i ↔ j of two photos, with what else is known; of copies a plane, captions too."""
    i, j, score = pairs
    a, b = own.points[i], other.points[j]
    kept = np.ones(len(a), bool) if copies else ~captions(a, b, own.size, other.size)
    reason = f"no feature of the query ({len(own)}) and of the photo ({len(other)}) chose each other"
    stage = np.full(int(kept.sum()), 2, np.int8)
    matches = matching.Matches(a[kept], b[kept], stage, score[kept], reason=reason, sizes=known["sizes"])
    flip = np.diag([-1.0, 1.0, 1.0]) if view.mirror else np.eye(3)
    flip[0, 2] = own.size[1] - 1 if view.mirror else 0
    # robust searches take no plane that is seen from behind: a mirrored photo is fitted as it was looked at
    fit = robust.homography if copies else robust.geometry
    model = fit(matches.a @ flip[:2, :2].T + flip[:2, 2], matches.b, sizes=known["sizes"])
    if not model:
        why = model.reason if len(matches) or not len(a) else "only a caption or a frame in common"
        return Evidence(matches, None, None, np.zeros(len(matches), bool), reason=why, log_nfa=model.log_nfa, **known)
    distinct = count_distinct(own, other, i[kept][model.inliers], j[kept][model.inliers])
    matrix = np.asarray(model.matrix) @ flip
    return Evidence(
        matches, model.kind, matrix, model.inliers, log_nfa=model.log_nfa, **(known | {"distinct": distinct})
    )


def seen_from(local: Local, view: View) -> tuple[Floats, Size]:
    """Where points of a photo are in a view of it, and the view's size (h, w)."""
    h, w = local.size
    points = local.points * (-1, 1) + (w - 1, 0) if view.mirror else local.points
    return turned(points, (h, w), view.turn).astype(np.float32), (h, w) if view.turn % 2 == 0 else (w, h)


def count_distinct(own: Local, other: Local, i: NDArray[np.int64], j: NDArray[np.int64]) -> int:
    """How many matches i ↔ j are more alike than i and any feature of the other photo away from j."""
    similar = own.descriptors[i] @ other.descriptors.T
    ends = similar[np.arange(len(i)), j]
    apart = np.linalg.norm(other.points[j][:, None] - other.points[None], axis=2)
    return int((ends > np.where(apart < AWAY, -1, similar).max(axis=1, initial=-1)).sum())


def captions(a: Floats, b: Floats, one: Size, two: Size) -> NDArray[np.bool_]:
    """Which matches may be of a caption or a logo: at the upper or lower border of both, or near it and still."""
    sides = np.array([one[::-1], two[::-1]], np.float64)
    at, to = a / sides[0], b / sides[1]
    high = [
        ((at[:, 1] < share) & (to[:, 1] < share)) | ((at[:, 1] > 1 - share) & (to[:, 1] > 1 - share))
        for share in (BORDER, OVERLAY)
    ]
    moved = np.minimum(np.abs(a - b).max(axis=1, initial=0), (np.abs(at - to) * sides[0]).max(axis=1, initial=0))
    return np.asarray(high[0] | (high[1] & (moved <= STILL)))


def verify(a: Any, b: Any) -> Evidence:
    """What speaks for a and b showing the same.

    Parameters
    ----------
    a, b : image
        Paths, arrays, Pillow images or tensors.

    Returns
    -------
    Evidence

    Raises
    ------
    InputError
        Where one of them is no image.

    Examples
    --------
    >>> import likewise as lw
    >>> from likewise import samples
    >>> cat = samples.photograph("cat")[:200, :240]
    >>> lw.search.verify(cat, cat).kind
    'homography'
    """
    return Verifier(a)(inputs.image(b))


def pair(a: Any, b: Any) -> Hit:
    """Do two images show the same? Their distance, evidence and the probability, as of a hit in a search.

    Parameters
    ----------
    a, b : image
        Paths, arrays, Pillow images or tensors. A `likewise.types.Image` remembers its embedding and features.

    Returns
    -------
    Hit
        b as a hit of the query a, verified.

    Examples
    --------
    >>> import likewise as lw
    >>> from likewise import samples
    >>> cat = samples.photograph("cat")[:200, :240]
    >>> lw.search.pair(cat, (cat * 0.7).astype("uint8")).verdict
    'same'
    """
    one, two = inputs.image(a, where="a"), inputs.image(b, where="b")
    seen = describe(default(), [one, two])
    for image, skipped in zip((one, two), seen.skipped, strict=False):
        raise LikewiseError(f"{image.name}: {skipped.reason}")
    distance = float(np.linalg.norm(seen.rows[0].astype(np.float64) - seen.rows[1]))
    return Hit(two.name or "b", 1, distance, alike=alike(*seen.features)).judged(judge(), verify(one, two))


def verify_hits(
    shots: Sequence[Any], hits: list[Hit], many: int, features: dict[str, Local]
) -> tuple[list[Hit], list[str]]:
    """The first `many` with their evidence, the most probable first, those not verified last; and notes."""
    chosen, verifiers = hits[:many], {shot: Verifier(shots[shot]) for shot in {hit.shot for hit in hits[:many]}}
    for verifier in verifiers.values():
        in_threads(verifier.look, VIEWS)  # once, not once a thread

    def look(hit: Hit) -> Evidence | str:
        try:
            return verifiers[hit.shot](Path(hit.path), features.get(hit.path))
        except LikewiseError as error:
            return f"{hit.path}: not verified: {error}"

    one = torch.get_num_threads() == 1 or len(chosen) < 2
    seen = [look(hit) for hit in chosen] if one else in_threads(look, chosen)
    judged = [h if isinstance(e, str) else h.judged(judge(), e) for h, e in zip(chosen, seen, strict=True)]
    judged.sort(key=lambda hit: (hit.evidence is None, -hit.probability))
    return [*judged, *hits[many:]], [e for e in seen if isinstance(e, str)]


def _at(image: Photo, size: Size) -> Photo:
    smaller = size[0] < image.shape[0]
    return np.asarray(cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA if smaller else cv2.INTER_LINEAR))


def _covered(H: NDArray[np.float64], size: Size, other: Size) -> float:
    """The share of points of one frame that H takes into the other."""
    y, x = np.meshgrid(*(np.arange(0.5, 128) / 128 * n - 0.5 for n in size), indexing="ij")
    p = np.stack([x, y, np.ones_like(x)], -1).reshape(-1, 3) @ H.T
    with np.errstate(divide="ignore", invalid="ignore"):
        q = p[:, :2] / p[:, 2:]
    inside = (q >= -0.5).all(1) & (q[:, 0] <= other[1] - 0.5) & (q[:, 1] <= other[0] - 0.5)
    return float((inside & (p[:, 2] * p[0, 2] > 0)).mean())
