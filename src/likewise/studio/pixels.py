"""The tab Pixels: two photos aligned, and their matches computed again at every move of the radius."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from likewise import plot, samples
from likewise.pixels import compare, default, match
from likewise.pixels.features import detect
from likewise.pixels.metrics import at
from likewise.plot.flows import longest
from likewise.plot.report import fit
from likewise.search import pair
from likewise.studio.jobs import Work, watch
from likewise.studio.requests import Fields, number, text
from likewise.studio.uploads import RGB, ImageStore, Recent, evenly

SIDE = 1024
"""The longest side at which two photos are compared here."""
KEPT, SHOWN = 6, 600
"""Comparisons that are kept for further questions, and matches that are sent to be drawn."""
RADII = (0.5, 100.0)
FAR = 1e6
"""Coordinates beyond this are nonsense, whatever the image."""


@dataclass(frozen=True, eq=False)
class Kept:
    """A comparison with the features of both images, so that only the matching is repeated."""

    comparison: Any
    features: tuple[Any, Any]


class PixelsTab:
    """What the tab asks for."""

    def __init__(self, store: ImageStore) -> None:
        self.store = store
        self._kept: Recent[Kept] = Recent(KEPT, "this comparison")

    def samples(self) -> list[dict[str, Any]]:
        """Pairs to begin with."""
        pair_of, photo = functools.cache(samples.pair), samples.photograph
        pairs = [
            (
                "day and night",
                "A workshop by day; and by the light of one lamp, from a spot beside, the camera turned.",
                {"workshop, day": lambda: pair_of()[0], "workshop, night": lambda: pair_of()[1]},
            ),
            (
                "a camera that turned",
                "A temple, and the same from a turned and tilted camera in dimmer, warmer light.",
                {"temple": lambda: photo("temple"), "temple, turned": lambda: turn(photo("temple"))},
            ),
            (
                "nothing in common",
                "A cat and a cup of coffee: what the studio says where there is nothing to find.",
                {"cat": lambda: photo("cat"), "coffee": lambda: photo("coffee")},
            ),
        ]
        return [
            {"name": name, "words": words}
            | {side: self.store.sample(*item).to_dict() for side, item in zip("ab", sides.items(), strict=True)}
            for name, words, sides in pairs
        ]

    def compare(self, work: Work, fields: Fields) -> dict[str, Any]:
        """Align b to a; both flows, the warp and the confidence as images; then, whether both show the same."""
        work.report("reading both photos")
        a, b = (self.store.read(text(fields, name), SIDE) for name in ("a", "b"))
        work.report("aligning")
        with watch(default(), work):
            comparison = compare(a, b)
        work.report("detecting features", 0.8)
        features = detect(a), detect(b)
        work.report("drawing", 0.9)
        said = comparison.to_dict()
        result = {
            "key": self._kept.put(Kept(comparison, features)),
            **{name: said[name] for name in ("distance", "home", "model", "steps", "size_a", "size_b", "motion")},
            "largest": longest(comparison.flow),
            "images": self._images(comparison),
        }
        work.partial(result)
        work.report("judging whether both show the same", 0.95)
        hit = pair(a, b)
        return {**result, "verdict": hit.verdict, "probability": hit.probability}

    def _images(self, comparison: Any) -> dict[str, str]:
        """a, b, the flow, b warped to a and the confidence as files; all but b in a's frame."""
        a, b = comparison.pictures
        grey = np.rint(np.clip(comparison.confidence, 0, 1) * 255).astype(np.uint8)
        photos = {"a": a, "b": b, "warp": comparison.warp()}
        drawings = {
            "flow": plot.wheel(comparison.flow),
            "wheel": plot.disc(144),
            "confidence": cv2.applyColorMap(grey, cv2.COLORMAP_CIVIDIS)[..., ::-1],
        }
        files = {name: self.store.publish(image) for name, image in photos.items()}
        return files | {name: self.store.publish(image, ".png") for name, image in drawings.items()}

    def match(self, fields: Fields) -> dict[str, Any]:
        """The matches within a radius of the flow, and the geometry of their inliers [LIFE §3.2].

        Matches are sent as [xa, ya, xb, yb, stage, inlier].
        """
        kept = self._kept.get(text(fields, "key"))
        radius = number(fields, "radius", *RADII, default=5.0)
        both = kept.comparison
        matches = match(
            *both.pictures,
            features=kept.features,
            flows=(both.flow, both.back),
            radius=radius,
            flow_size=default().work,
        )
        model = matches.geometry()
        inliers: NDArray[np.bool_] = np.asarray(model.inliers, dtype=bool)
        rows = np.column_stack([matches.a, matches.b]).round(2)
        reason = matches.reason or ("" if model.n else "no plane and no epipolar geometry has enough inliers")
        return {
            "matches": [
                [*rows[i].tolist(), int(matches.stage[i]), int(inliers[i])] for i in evenly(range(len(rows)), SHOWN)
            ],
            "total": len(matches),
            "stage1": int((matches.stage == 1).sum()),
            "stage2": int((matches.stage == 2).sum()),
            "inliers": int(inliers.sum()),
            "kind": model.kind if model.n else None,
            "reason": reason,
        }

    def point(self, fields: Fields) -> dict[str, Any]:
        """Where a point of a is in b, with the confidence and the round-trip error."""
        comparison = self._kept.get(text(fields, "key")).comparison
        sizes = [np.array(image.shape[1::-1]) for image in comparison.pictures]
        start = np.clip([[number(fields, name, -FAR, FAR) for name in ("x", "y")]], 0, sizes[0] - 1)
        end = start + at(np.asarray(comparison.flow, dtype=np.float64), start)
        column, row = (int(n) for n in np.rint(start[0]))
        return {
            "x": float(end[0, 0]),
            "y": float(end[0, 1]),
            "inside": bool((end >= -0.5).all() and (end <= sizes[1] - 0.5).all()),
            "confidence": float(comparison.confidence[row, column]),
            "error": float(comparison.missed[row, column]),
        }


def turn(photo: RGB) -> RGB:
    """A photo from a camera that turned by 14° and tilted, in dimmer, warmer light."""
    small = fit(photo, 560)
    h, w = small.shape[:2]
    rotation = np.vstack([cv2.getRotationMatrix2D((w / 2, h / 2), 14, 0.85), [0.0, 0.0, 1.0]])
    tilt = np.array([[1.0, 0.04, 0.0], [0.02, 1.0, 0.0], [2.5e-4, 1.5e-4, 1.0]])
    warped = cv2.warpPerspective(small, tilt @ rotation, (w, h), flags=cv2.INTER_LINEAR)
    return np.asarray(np.rint(warped * np.array([0.62, 0.52, 0.4])), dtype=np.uint8)
