"""The tab Compare: pairs to begin with, and the dense flow between two photos, asked point by point.

Whether both show the same is said by the evidence of the pair, which the tab Find gives too (`images.Tab.why`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np

from likewise import media, pixels, plot, samples
from likewise.plot.flows import longest
from likewise.studio.app import Given
from likewise.studio.requests import Fields, Work, number, text, watch
from likewise.studio.uploads import ImageStore, Recent, written

SIDE = 1024
"""The longest side at which two photos are aligned here."""
KEPT = 6
"""Alignments that are kept for further questions."""
SAID = ("distance", "aligned", "reason", "cycle_consistency", "model", "steps")
"""What the page shows of an alignment as it is."""
SURE, UNSURE = 0.5, 0.35
"""The confidence from which on a pixel is warped, and the brightness of those that are not."""
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
        self._kept: Recent[Any] = Recent(KEPT, "this comparison")

    def samples(self) -> list[dict[str, Any]]:
        """Pairs to begin with."""
        folder = written(self.cache / "pairs", write_pairs)
        images = {
            name: self.store.link(folder / f"{name}.png", name).to_dict() for _, _, *names in PAIRS for name in names
        }
        return [{"name": name, "words": words, "a": images[a], "b": images[b]} for name, words, a, b in PAIRS]

    def compare(self, work: Work, fields: Fields) -> dict[str, Any]:
        """Align b to a, pixel by pixel: the flow, the warp and the confidence as images."""
        work.report("reading both photos")
        a, b = (self.store.read(text(fields, name), SIDE) for name in ("a", "b"))
        work.report("aligning every pixel")
        with watch(pixels.default(), work):
            comparison = pixels.compare(a, b)
        work.report("drawing", 0.9)
        said = comparison.to_dict()
        return {
            "key": self._kept.put(comparison),
            **{name: said[name] for name in SAID},
            "sizes": [list(image.shape[:2]) for image in comparison.images],
            "largest": longest(comparison.flow),
            "images": self._images(comparison),
        }

    def _images(self, comparison: Any) -> dict[str, str]:
        """The flow, the confidence, and b warped to a as files, all in a's frame; what is not sure is grey."""
        confidence = np.clip(comparison.confidence, 0, 1)
        warped = comparison.warp()
        unsure = np.broadcast_to((UNSURE * warped.mean(axis=2, keepdims=True) + 80).astype(np.uint8), warped.shape)
        drawings = {
            "flow": plot.wheel(comparison.flow),
            "wheel": plot.disc(144),
            "confidence": cv2.applyColorMap(np.rint(confidence * 255).astype(np.uint8), cv2.COLORMAP_CIVIDIS)[
                ..., ::-1
            ],
        }
        files = {"warp": self.store.publish(np.where(confidence[..., None] >= SURE, warped, unsure))}
        return files | {name: self.store.publish(image, ".png") for name, image in drawings.items()}

    def point(self, fields: Fields) -> dict[str, Any]:
        """Where a point of a is in b, with the confidence and the round-trip error."""
        comparison = self._kept.get(text(fields, "key"))
        sizes = [np.array(image.shape[1::-1]) for image in comparison.images]
        start = np.clip([[number(fields, name, -FAR, FAR) for name in ("x", "y")]], 0, sizes[0] - 1)
        end = start + pixels.metrics.at(np.asarray(comparison.flow, dtype=np.float64), start)
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
