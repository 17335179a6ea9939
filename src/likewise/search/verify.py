"""The third stage: do two images show the same? Their matches, without a flow, and the geometry of the inliers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from likewise import inputs, plot
from likewise.errors import InputError, LikewiseError
from likewise.images.embedder import default, in_threads
from likewise.pixels import matching
from likewise.search.result import Hit
from likewise.search.shortlist import local_distances
from likewise.search.verdict import judge
from likewise.types import Image, Matches

Photo = NDArray[np.uint8]

SIDE = 640
"""Longest side, in pixels, at which images are verified."""
BLANK = 3
"""An image whose brightest and darkest values lie no farther apart shows nothing."""
SMALLEST = 64
"""Pixels of the shorter side; smaller images are enlarged to it."""


@dataclass(frozen=True, eq=False, repr=False)
class Evidence:
    """What speaks for two images showing the same: matches, and the geometry they are inliers of.

    Attributes
    ----------
    matches : Matches
        Features of a found again in b, in pixels of the images as they were compared.
    kind : "homography", "fundamental" or None
        A plane or a camera that only turned, or two views: whichever has more inliers.
    matrix : array (3, 3) or None
    inliers : array (n,) of bool
        Which matches fit the matrix.
    sizes : ((h, w), (h, w))
        Of the images as they were compared: in a search, their longest side at 640 px.
    reason : str
        Why there is no geometry, where there is none.
    cycle_consistency : float or None
        The share of a's pixels that the flow takes to b and back to their place; None where, as in a search, there is
        no flow.
    images : (array, array)
        The two as they were compared.

    Examples
    --------
    >>> import likewise as lw
    >>> from likewise import samples
    >>> cat = samples.photograph("cat")[:200, :240]
    >>> evidence = lw.search.verify(cat, cat[:, ::-1].copy()[:, ::-1])
    >>> evidence.kind, evidence.share > 0.9
    ('homography', True)
    """

    matches: Matches
    kind: str | None
    matrix: NDArray[np.float64] | None
    inliers: NDArray[np.bool_]
    sizes: tuple[tuple[int, int], tuple[int, int]]
    reason: str = ""
    cycle_consistency: float | None = None
    images: tuple[Photo, Photo] = field(repr=False, default=None)  # type: ignore[assignment]

    @property
    def n(self) -> int:
        """How many matches are inliers."""
        return int(self.inliers.sum())

    @property
    def share(self) -> float:
        """The share of matches that are inliers; 0 where there is none."""
        return float(self.inliers.mean()) if len(self.inliers) else 0.0

    def __repr__(self) -> str:
        consistent = self.cycle_consistency
        return f"Evidence({self._words()}{'' if consistent is None else f', round-trip consistency {consistent:.0%}'})"

    def to_dict(self) -> dict[str, Any]:
        """Counts, the matrix, and the inliers, as plain Python values."""
        inliers = self.matches.take(self.inliers)
        return {
            "matches": len(self.matches),
            "inliers": self.n,
            "model": self.kind,
            "matrix": None if self.matrix is None else self.matrix.tolist(),
            "cycle_consistency": self.cycle_consistency,
            "sizes": [list(s) for s in self.sizes],
            "reason": self.reason,
            "points": np.round(np.concatenate([inliers.a, inliers.b], axis=1), 2).tolist(),
        }

    def plot(self, path: str | Path | None = None, *, title: str | None = None) -> Any:
        """Both images with the inliers between them. A matplotlib Figure."""
        figure = plot.matches(*self.images, self.matches.take(self.inliers), title=title or self._words())
        if path is not None:
            plot.save(figure, path)
        return figure

    def _words(self) -> str:
        if self.kind is None:
            return self.reason or "no geometry that matches fit"
        return f"{self.n} of {len(self.matches)} matches are inliers of one {self.kind}"

    def overlay(self) -> Photo | None:
        """b warped to a by the homography, half and half where both are seen; None where there is no homography."""
        if self.kind != "homography" or self.matrix is None:
            return None
        a, b = self.images
        size, flags = (a.shape[1], a.shape[0]), cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        warped = cv2.warpPerspective(b, self.matrix, size, flags=flags)
        seen = cv2.warpPerspective(np.full(b.shape[:2], 255, np.uint8), self.matrix, size, flags=flags)
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
        self.image = Image(comparable(query))  # it keeps its features

    def __call__(self, candidate: Any) -> Evidence:
        """The evidence for a candidate."""
        other = Image(comparable(candidate))
        images = self.image.pixels, other.pixels
        if min(int(np.ptp(image)) for image in images) <= BLANK:
            return _no_geometry("one of the images is blank", images)
        return _weigh(matching.match(self.image, other, guide="never"), images)


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
        Where an image is too narrow to be verified.

    Examples
    --------
    >>> import likewise as lw
    >>> from likewise import samples
    >>> cat = samples.photograph("cat")[:200, :240]
    >>> lw.search.verify(cat, cat).kind
    'homography'
    """
    return Verifier(a)(b)


def pair(a: Any, b: Any, *, evidence: Evidence | None = None) -> Hit:
    """Do two images show the same? Their distances, evidence and the probability, as of a hit in a search.

    Parameters
    ----------
    a, b : image
        Paths, arrays, Pillow images or tensors. A `likewise.types.Image` remembers its embedding.
    evidence : Evidence, optional
        What the pixels say, where that is known already.

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
    (x, y), (p, q) = default().embed_with_parts([one, two])  # an Image remembers both
    distance, local = float(np.linalg.norm(x.astype(np.float64) - y)), float(local_distances(p, q[None])[0])
    hit = Hit(two.name or "b", 1, distance)
    if np.isfinite(local):
        hit = replace(hit, local_distance=local, parts=(p, q))
    seen = verify(one, two) if evidence is None else evidence
    return hit.judged(judge(), seen)


def verify_hits(shots: Sequence[Any], hits: list[Hit], many: int) -> tuple[list[Hit], list[str]]:
    """The first `many` with their evidence, the most probable first, those not verified last; and notes."""
    chosen, verifiers = hits[:many], dict[int, Verifier | LikewiseError]()
    for shot in {hit.shot for hit in chosen}:
        try:
            verifiers[shot] = Verifier(shots[shot])
        except LikewiseError as error:  # too narrow, say: then it is a hit, but not verified
            verifiers[shot] = error

    def look(hit: Hit) -> Evidence | str:
        verifier = verifiers[hit.shot]
        if isinstance(verifier, LikewiseError):
            return f"{hit.path}: not verified: query: {verifier}"
        try:
            return verifier(hit.path)
        except LikewiseError as error:
            return f"{hit.path}: not verified: {error}"

    one = torch.get_num_threads() == 1 or len(chosen) < 2
    seen = [look(hit) for hit in chosen] if one else in_threads(look, chosen)
    judged = [h if isinstance(e, str) else h.judged(judge(), e) for h, e in zip(chosen, seen, strict=True)]
    judged.sort(key=lambda hit: (hit.evidence is None, -hit.probability))
    return [*judged, *hits[many:]], [e for e in seen if isinstance(e, str)]


def comparable(given: Any, side: int = SIDE) -> Photo:
    """An image as uint8 (h, w, 3), its longest side at most `side` px, its shortest at least 64."""
    array = inputs.image(given).reduced(side)
    scale = min(1.0, side / max(array.shape[:2]))
    scale = max(scale, SMALLEST / min(array.shape[:2]))
    if scale == 1.0:
        return np.asarray(array)
    size = (max(SMALLEST, round(array.shape[1] * scale)), max(SMALLEST, round(array.shape[0] * scale)))
    if max(size) > 8 * SIDE:
        raise InputError(f"image: {array.shape[1]} × {array.shape[0]} pixels are too narrow to be verified")
    return np.asarray(cv2.resize(array, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR))


def _weigh(matches: Any, images: tuple[Photo, Photo], cycle_consistency: float | None = None) -> Evidence:
    """The geometry of the matches."""
    model = matches.geometry()
    if not model:
        return _no_geometry(model.reason or matches.reason, images, matches, cycle_consistency)
    matrix = np.asarray(model.matrix)
    return Evidence(matches, model.kind, matrix, model.inliers, _sizes(images), "", cycle_consistency, images)


def evidence_from(matches: Any, cycle_consistency: float, a: Photo, b: Photo) -> Evidence:
    """The evidence of matches that are known at the images' own size, as if they had been found at 640 px.

    The verdict was fitted on images of that size: a tolerance of 3 px means something else on a photo of 6000.
    """
    images = comparable(a), comparable(b)
    if min(int(np.ptp(image)) for image in images) <= BLANK:
        return _no_geometry("one of the images is blank", images)
    left, right = (
        (side + 0.5) * np.array([new[1] / old[1], new[0] / old[0]]) - 0.5  # pixel centres are at integers
        for side, old, new in zip((matches.a, matches.b), _sizes((a, b)), _sizes(images), strict=True)
    )
    reason, sizes = matches.reason, _sizes(images)
    small = matching.Matches(left, right, matches.stage, matches.score, reason=reason, sizes=sizes)
    return _weigh(small, images, cycle_consistency)


def _no_geometry(reason: str, images: Any, matches: Any = None, cycle_consistency: float | None = None) -> Evidence:
    some = Matches(np.empty((0, 2)), np.empty((0, 2))) if matches is None else matches
    return Evidence(some, None, None, np.zeros(len(some), bool), _sizes(images), reason, cycle_consistency, images)


def _sizes(images: tuple[Photo, Photo]) -> tuple[tuple[int, int], tuple[int, int]]:
    (h, w), (h2, w2) = (image.shape[:2] for image in images)
    return (h, w), (h2, w2)
