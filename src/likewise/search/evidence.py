"""Does this picture show what that one shows? One look of the aligner, matches near its flow, a model they agree on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from likewise import inputs
from likewise.errors import InputError
from likewise.types import Matches

T = TypeVar("T")
R = TypeVar("R")
Photo = NDArray[np.uint8]

SIDE = 640
"""Longest side, in pixels, at which pictures are verified."""
LOOK = 240
"""Longest side at which the aligner looks: small is quick, and here also finds more (larger motions fit in)."""
MOST = 1500
"""Features of a picture."""
BLANK = 3
"""A picture whose brightest and darkest values lie no farther apart shows nothing."""
SMALLEST = 64
"""Pixels of the shorter side; smaller pictures are enlarged to it."""


@dataclass(frozen=True, eq=False, repr=False)
class Evidence:
    """What speaks for two pictures showing the same: matches, the model they agree on, and what of a comes home.

    Points are pixels of the pictures as they were compared, `sizes` (h, w) each, their longest side at 640 px.
    `inliers` (n,) says which matches agree with `matrix`, a homography (a plane, or a camera that only turned) or a
    fundamental matrix, whichever more of them agree with; `home` is the share of a's pixels that the flow takes to b
    and back to their place. `pictures` are the two as they were compared.
    """

    matches: Matches
    kind: str | None
    matrix: NDArray[np.float64] | None
    inliers: NDArray[np.bool_]
    home: float
    sizes: tuple[tuple[int, int], tuple[int, int]]
    reason: str = ""
    pictures: tuple[Photo, Photo] = field(repr=False, default=None)  # type: ignore[assignment]

    @property
    def n(self) -> int:
        """How many matches agree."""
        return int(self.inliers.sum())

    @property
    def share(self) -> float:
        """The share of matches that agree; 0 where there is none."""
        return float(self.inliers.mean()) if len(self.inliers) else 0.0

    def __repr__(self) -> str:
        model = f"{self.n} of {len(self.matches)} matches agree on a {self.kind}" if self.kind else self.reason
        return f"Evidence({model}, {self.home:.0%} comes home)"

    def to_dict(self) -> dict[str, Any]:
        """Counts, the matrix, and the matches that agree, as plain Python values."""
        agreed = self.matches.take(self.inliers)
        return {
            "matches": len(self.matches),
            "inliers": self.n,
            "model": self.kind,
            "matrix": None if self.matrix is None else self.matrix.tolist(),
            "home": self.home,
            "sizes": [list(s) for s in self.sizes],
            "reason": self.reason,
            "points": np.round(np.concatenate([agreed.a, agreed.b], axis=1), 2).tolist(),
        }

    def plot(self, path: str | Path | None = None, *, title: str | None = None) -> Any:
        """Both pictures with the matches that agree between them. A matplotlib Figure."""
        from likewise import plot

        figure = plot.matches(*self.pictures, self.matches.take(self.inliers), title=title or self._words())
        if path is not None:
            plot.save(figure, path)
        return figure

    def _words(self) -> str:
        if self.kind is None:
            return self.reason or "no geometry that matches agree on"
        return f"{self.n} of {len(self.matches)} matches agree on one {self.kind}"

    def overlay(self) -> Photo | None:
        """b laid onto a by the homography, half and half where both are seen; None where there is no homography."""
        import cv2

        if self.kind != "homography" or self.matrix is None:
            return None
        a, b = self.pictures
        size, flags = (a.shape[1], a.shape[0]), cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        laid = cv2.warpPerspective(b, self.matrix, size, flags=flags)
        seen = cv2.warpPerspective(np.full(b.shape[:2], 255, np.uint8), self.matrix, size, flags=flags)
        return np.where(seen[..., None] > 127, a // 2 + laid // 2, a // 3 + 170).astype(np.uint8)


class Verifier:
    """Verifies one query against many candidates: what is known of the query is found once.

    `aligner` is anything with .both(a, b) that gives flows at the pictures' own size; by default one look of the
    network that comes with likewise, at 240 px. `thorough` takes its time: views are searched, passes repeated.
    """

    def __init__(self, query: Any, *, aligner: Any = None, thorough: bool = False) -> None:
        from likewise.pixels.features import detect

        self.picture = comparable(query)
        self.aligner = one_look(thorough) if aligner is None else aligner
        self.features = detect(self.picture, most=MOST)

    def __call__(self, candidate: Any) -> Evidence:
        """The evidence for a candidate."""
        from likewise.pixels import matching
        from likewise.pixels.features import detect

        other = comparable(candidate)
        found = detect(other, most=MOST)
        sizes = _size(self.picture), _size(other)
        if min(int(np.ptp(p)) for p in (self.picture, other)) <= BLANK:
            return _nothing("one of the pictures is blank", sizes, (self.picture, other))
        flows = self.aligner.both(self.picture, other)
        look = getattr(self.aligner, "work", None)
        matches = matching.match(
            self.picture, other, features=(self.features, found), flows=flows, flow_size=look, most=MOST
        )
        return _weighed(matches, _home(flows), sizes, (self.picture, other))


def verified(a: Any, b: Any, *, aligner: Any = None, thorough: bool = False) -> Evidence:
    """What speaks for a and b showing the same; pictures are paths, arrays, Pillow images or tensors."""
    return Verifier(a, aligner=aligner, thorough=thorough)(b)


def in_parallel(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """function of each item, as many at a time as torch has threads, each with one of them."""
    import torch

    from likewise.images.model import in_threads

    if torch.get_num_threads() == 1 or len(items) < 2:
        return [function(x) for x in items]
    return in_threads(function, items)


@functools.cache
def one_look(thorough: bool = False) -> Any:
    """The aligner that verifies: one look at 240 px; thorough: the whole search of the level's default."""
    from likewise.pixels.aligner import Aligner, Manner, default

    shipped = default()
    if thorough:
        return shipped
    return Aligner(
        shipped.network, Manner(work=LOOK, passes=1, search="never", polish=False, snap=2.0), name="one look"
    )


# ------------------------------------------------------------------------------------------------------------- pieces


def comparable(given: Any, side: int = SIDE) -> Photo:
    """A picture as uint8 (h, w, 3), its longest side at most `side` px, its shortest at least 64."""
    import cv2

    array = inputs.image(given).reduced(side)
    scale = min(1.0, side / max(array.shape[:2]))
    scale = max(scale, SMALLEST / min(array.shape[:2]))
    if scale == 1.0:
        return np.asarray(array)
    size = (max(SMALLEST, round(array.shape[1] * scale)), max(SMALLEST, round(array.shape[0] * scale)))
    if max(size) > 8 * SIDE:
        raise InputError(f"picture: {array.shape[1]} × {array.shape[0]} pixels are too narrow to be verified")
    return np.asarray(cv2.resize(array, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR))


def _weighed(matches: Any, home: float, sizes: Any, pictures: tuple[Photo, Photo]) -> Evidence:
    """What the matches agree on, at the tolerances that the verdict was fitted with."""
    model = matches.geometry(plane=4.0, line=1.5)
    if model.matrix is None:
        return _nothing(model.reason or matches.reason, sizes, pictures, matches, home)
    return Evidence(matches, model.kind, np.asarray(model.matrix), model.inliers, home, sizes, "", pictures)


def _nothing(reason: str, sizes: Any, pictures: Any, matches: Any = None, home: float = 0.0) -> Evidence:
    some = Matches(np.empty((0, 2)), np.empty((0, 2))) if matches is None else matches
    return Evidence(some, None, None, np.zeros(len(some), bool), home, sizes, reason, pictures)


def _home(flows: tuple[Any, Any]) -> float:
    """The share of a's pixels that come home."""
    from likewise.pixels.life.inference import Aligned

    return Aligned(*flows).home()


def _size(photo: Photo) -> tuple[int, int]:
    return int(photo.shape[0]), int(photo.shape[1])
