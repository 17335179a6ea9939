"""The tab Pixels: two photos aligned, and their matches found again at every move of the radius."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from likewise.studio.asked import Fields, identity, number
from likewise.studio.drawing import heat
from likewise.studio.jobs import Work
from likewise.studio.store import RGB, Picture, Recent, Store, fitted
from likewise.studio.watching import aligning

SIDE = 1024
"""The longest side at which two photos are compared here."""
KEPT, SHOWN = 6, 600
"""Comparisons that are kept for further questions, and matches that are sent to be drawn."""
RADII = (0.5, 100.0)


@dataclass(frozen=True, eq=False)
class Compared:
    """A comparison, with the features of both pictures, so that only the matching is done anew."""

    found: Any
    features: tuple[Any, Any]
    flow_size: int


class Pixels:
    """What the tab asks for."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._kept: Recent[Compared] = Recent(KEPT, "this comparison")

    # ── samples ───────────────────────────────────────────────────────────────────────────────────────────────────

    def samples(self) -> list[dict[str, Any]]:
        """Pairs to begin with."""
        from likewise import samples

        def shown(name: str, words: str, a: Picture, b: Picture) -> dict[str, Any]:
            return {"name": name, "words": words, "a": a.to_dict(), "b": b.to_dict()}

        keep, pair = self.store.sample, functools.cache(samples.pair)
        return [
            shown(
                "day and night",
                "A workshop by day; and by the light of one lamp, from a spot beside, the camera turned.",
                keep("workshop, day", lambda: pair()[0]),
                keep("workshop, night", lambda: pair()[1]),
            ),
            shown(
                "a camera that turned",
                "A temple, and the same from a turned and tilted camera in dimmer, warmer light.",
                keep("temple", lambda: samples.photograph("temple")),
                keep("temple, turned", lambda: turned(samples.photograph("temple"))),
            ),
            shown(
                "nothing in common",
                "A cat and a cup of coffee: what the studio says where there is nothing to find.",
                keep("cat", lambda: samples.photograph("cat")),
                keep("coffee", lambda: samples.photograph("coffee")),
            ),
        ]

    # ── the comparison ────────────────────────────────────────────────────────────────────────────────────────────

    def compare(self, work: Work, fields: Fields) -> dict[str, Any]:
        """Align b to a; both flows, the warp and the confidence as images; then, whether both show the same."""
        from likewise.pixels import compare, default
        from likewise.pixels.features import detect
        from likewise.plot.flows import longest
        from likewise.search import pair

        work.say("reading both photos")
        a, b = (self.store.array(identity(fields, name), SIDE) for name in ("a", "b"))
        work.say("aligning")
        with aligning(work):
            found = compare(a, b)
        work.say("finding features", 0.8)
        features = detect(a), detect(b)
        work.say("drawing", 0.9)
        key = self._kept.put(Compared(found, features, default().work))
        answer = {"key": key, **described(found), "largest": longest(found.flow), "images": self._images(found)}
        work.partial(answer)
        work.say("looking whether both show the same", 0.95)
        judged = pair(a, b)
        return {**answer, "verdict": judged.verdict, "probability": judged.probability}

    def _images(self, found: Any) -> dict[str, str]:
        """a, b, the flow, b laid onto a and the confidence as files; all but b in a's frame."""
        from likewise.plot import wheel

        a, b = found.pictures
        drawn = {"a": a, "b": b, "flow": wheel(found.flow), "warp": found.warp(), "confidence": heat(found.confidence)}
        suffixes = {"flow": ".png", "confidence": ".png"}
        return {name: f"api/files/{self.store.write(im, suffixes.get(name, '.jpg'))}" for name, im in drawn.items()}

    # ── further questions ─────────────────────────────────────────────────────────────────────────────────────────

    def match(self, fields: Fields) -> dict[str, Any]:
        """The matches within a radius of the flow, and the geometry that most of them agree with [LIFE §3.2]."""
        from likewise.pixels import match

        kept = self._kept.get(identity(fields, "key"))
        radius = number(fields, "radius", *RADII, default=5.0)
        found, flows = kept.found, (kept.found.flow, kept.found.back)
        matches = match(*found.pictures, features=kept.features, flows=flows, radius=radius, flow_size=kept.flow_size)
        return matched(matches)

    def point(self, key: str, x: float, y: float) -> dict[str, Any]:
        """Where a point of a went in b, how sure that is, and how far it misses its place when it comes back."""
        from likewise.pixels.metrics import at

        found = self._kept.get(key).found
        h, w = found.pictures[0].shape[:2]
        start = np.clip([[x, y]], 0, [w - 1, h - 1])
        there = start + at(np.asarray(found.flow, dtype=np.float64), start)
        high, wide = found.pictures[1].shape[:2]
        inside = bool((there >= -0.5).all() and (there <= [wide - 0.5, high - 0.5]).all())
        row, column = (int(n) for n in np.rint(start[0, ::-1]))
        return {
            "x": float(there[0, 0]),
            "y": float(there[0, 1]),
            "inside": inside,
            "confidence": float(found.confidence[row, column]),
            "missed": float(found.missed[row, column]),
        }


def described(found: Any) -> dict[str, Any]:
    """A comparison in numbers and words."""
    said = found.to_dict()
    names = ("distance", "home", "model", "steps", "size_a", "size_b", "motion")
    return {name: said[name] for name in names}


def matched(matches: Any) -> dict[str, Any]:
    """Matches as the page draws them: [xa, ya, xb, yb, stage, inlier], the robust model's kind, and the counts."""
    model = matches.geometry()
    inliers, found = np.asarray(model.inliers, dtype=bool), model.n > 0
    rows = np.column_stack([matches.a, matches.b]).round(2)
    shown = _some(len(matches), SHOWN)
    drawn = [[*rows[i].tolist(), int(matches.stage[i]), int(inliers[i])] for i in shown]
    reason = matches.reason or ("" if found else "no plane and no epipolar geometry agrees with enough")
    return {
        "matches": drawn,
        "total": len(matches),
        "stage1": int((matches.stage == 1).sum()),
        "stage2": int((matches.stage == 2).sum()),
        "inliers": int(inliers.sum()),
        "kind": model.kind if found else None,
        "reason": reason,
    }


def _some(n: int, most: int) -> NDArray[np.int64]:
    """Which of n are shown: all, or `most` of them at random, always the same."""
    if n <= most:
        return np.arange(n)
    return np.sort(np.random.default_rng(0).permutation(n)[:most])


def turned(photo: RGB) -> RGB:
    """A photo from a camera that turned by 14° and tilted, in dimmer, warmer light."""
    import cv2

    small = fitted(photo, 560)
    h, w = small.shape[:2]
    turn = np.vstack([cv2.getRotationMatrix2D((w / 2, h / 2), 14, 0.85), [0.0, 0.0, 1.0]])
    tilt = np.array([[1.0, 0.04, 0.0], [0.02, 1.0, 0.0], [2.5e-4, 1.5e-4, 1.0]])
    bent = cv2.warpPerspective(small, tilt @ turn, (w, h), flags=cv2.INTER_LINEAR)
    return np.asarray(np.rint(bent * np.array([0.62, 0.52, 0.4])), dtype=np.uint8)
