"""The tab Pixels: two photos aligned, and their matches computed again at every move of the radius."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from likewise import media, plot, samples
from likewise.pixels import compare, default, match
from likewise.pixels.features import detect
from likewise.pixels.matching import FEW
from likewise.pixels.metrics import at
from likewise.plot.flows import longest
from likewise.search import pair
from likewise.studio.app import Given
from likewise.studio.requests import Fields, Work, number, text, watch
from likewise.studio.uploads import ImageStore, Recent, evenly, written
from likewise.types import Flow

SIDE = 1024
"""The longest side at which two photos are compared here."""
KEPT, SHOWN = 6, 600
"""Comparisons that are kept for further questions, and matches that are sent to be drawn."""
SAID = ("distance", "aligned", "reason", "cycle_consistency", "model", "steps", "size_a", "size_b")
"""What the page shows of a comparison as it is."""
RADII = (0.5, 100.0)
FAR = 1e6
"""Coordinates beyond this are nonsense, whatever the image."""


PAIRS = (
    (
        "day and night",
        "A workshop by day; and by the light of one lamp, from a spot beside, the camera turned.",
        *("workshop, day", "workshop, night"),
    ),
    (
        "a camera that turned",
        "A place in a photograph, and the same from a camera that turned.",
        *("place", "place, turned"),
    ),
    (
        "nothing in common",
        "A cat and a cup of coffee: what the studio says where there is nothing to find.",
        *("cat", "coffee"),
    ),
)
"""What the pairs are called, what they show, and the names of their two photos."""


class Tab:
    """What the tab asks for."""

    def __init__(self, store: ImageStore, cache: Path, given: Given) -> None:
        self.store, self.cache = store, cache
        # Comparisons with the features of both images, so that only the matching is repeated.
        self._kept: Recent[tuple[Any, tuple[Any, Any]]] = Recent(KEPT, "this comparison")

    def samples(self) -> list[dict[str, Any]]:
        """Pairs to begin with."""
        folder = written(self.cache / "pairs", write_pairs)
        images = {
            name: self.store.link(folder / f"{name}.png", name).to_dict() for _, _, *names in PAIRS for name in names
        }
        return [{"name": name, "words": words, "a": images[a], "b": images[b]} for name, words, a, b in PAIRS]

    def compare(self, work: Work, fields: Fields) -> dict[str, Any]:
        """Align b to a; both flows, the warp and the confidence as images; then, whether both show the same."""
        work.report("reading both photos")
        a, b = (self.store.read(text(fields, name), SIDE) for name in ("a", "b"))
        work.report("aligning")
        with watch(default(), work):
            comparison = compare(a, b)
        work.report("detecting features", 0.8)
        features = detect(a, "xfeat", FEW), detect(b, "xfeat", FEW)
        work.report("drawing", 0.9)
        said = comparison.to_dict()
        result = {
            "key": self._kept.put((comparison, features)),
            **{name: said[name] for name in SAID},
            "largest": longest(comparison.flow),
            "images": self._images(comparison),
        }
        work.partial(result)
        work.report("judging whether both show the same", 0.95)
        hit = pair(a, b)
        return {**result, "verdict": hit.verdict, "probability": hit.probability}

    def _images(self, comparison: Any) -> dict[str, str]:
        """a, b, the flow, b warped to a and the confidence as files; all but b in a's frame."""
        a, b = comparison.images
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
        pair, features = self._kept.get(text(fields, "key"))
        radius = number(fields, "radius", *RADII, default=5.0)
        flows = Flow(pair.flow, pair.confidence >= 0.5), pair.back
        matches = match(*pair.images, features=features, guide=flows, radius=radius, flow_size=default().work)
        model = matches.geometry()
        inliers: NDArray[np.bool_] = np.asarray(model.inliers, dtype=bool)
        rows = np.column_stack([matches.a, matches.b]).round(2)
        shown = evenly(range(len(rows)), SHOWN)
        return {
            "matches": [[*rows[i].tolist(), int(matches.stage[i]), int(inliers[i])] for i in shown],
            "total": len(matches),
            "inliers": int(inliers.sum()),
            "kind": model.kind if model else None,
            "reason": "" if model else matches.reason or model.reason,
        }

    def point(self, fields: Fields) -> dict[str, Any]:
        """Where a point of a is in b, with the confidence and the round-trip error."""
        comparison = self._kept.get(text(fields, "key"))[0]
        sizes = [np.array(image.shape[1::-1]) for image in comparison.images]
        start = np.clip([[number(fields, name, -FAR, FAR) for name in ("x", "y")]], 0, sizes[0] - 1)
        end = start + at(np.asarray(comparison.flow, dtype=np.float64), start)
        column, row = (int(n) for n in np.rint(start[0]))
        return {
            "x": float(end[0, 0]),
            "y": float(end[0, 1]),
            "inside": bool((end >= -0.5).all() and (end <= sizes[1] - 0.5).all()),
            "confidence": float(comparison.confidence[row, column]),
            "error": float(comparison.cycle_error[row, column]),
        }


def write_pairs(folder: Path) -> None:
    """The photos of PAIRS."""
    place, (day, night) = next(samples.places()), samples.pair()
    photos = {"workshop, day": day, "workshop, night": night}
    photos |= {"place": place.picture, "place, turned": place.changed["turned"]}
    photos |= {name: samples.photograph(name) for name in ("cat", "coffee")}
    for name, photo in photos.items():
        media.write_image(folder / f"{name}.png", photo)
