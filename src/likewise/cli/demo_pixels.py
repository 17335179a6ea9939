"""The demo's panel on pixels: a place by day and by night, from two spots, the camera turned; aligned and measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from likewise.cli.demo import Panel, photograph, step

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from likewise.cli.report import Section
    from likewise.pixels.compare import PixelComparison

    Picture = NDArray[np.uint8]
    Floats = NDArray[np.float64]

PLACE = ("skimage.data", "motorcycle_left.png")
OTHER, APART = "motorcycle_right.png", "motorcycle_disp.npz"
"""A workshop seen by two cameras, and how far apart each point lies in their pictures (Middlebury 2014)."""
WIDTH, TURN, ZOOM = 320, 20.0, 0.9
"""Width of the pictures in pixels; degrees and size by which the second camera is turned and zoomed."""
WITHIN = 3.0
"""Pixels within which a pixel counts as found."""


def pixels_panel(folder: Path, seed: int) -> Panel:
    """Two photographs of a place, the second from another spot, turned, by night: where did every pixel go?"""
    import numpy as np

    from likewise.io import write_image
    from likewise.pixels import compare

    with step("a place by day and by night, aligned") as said:
        truth = views(np.random.default_rng([seed, 7]))
        a, b = folder / "place" / "day.png", folder / "place" / "night.png"
        write_image(a, truth.day), write_image(b, truth.night)
        found = compare(a, b)
        figures = scores(truth, found)
        _draw(found, figures, folder / "alignment.png")
        ours, theirs = figures["likewise"], figures["DIS on equalised grey"]
        said.append(f"{ours['right']:.0%} of the pixels found to {WITHIN:g} px, {theirs['right']:.0%} by DIS")
    fact = (f"of pixels found again at night, {theirs['right']:.0%} by classical flow", f"{ours['right']:.0%}")
    return Panel("pixels", "alignment.png", figures, fact, _section(folder / "alignment.png", found, figures))


# ── two views ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class Views:
    """Two pictures (h, w, 3) of a place, where each pixel of the first lies in the second, and where that is known."""

    day: Picture
    night: Picture
    flow: Floats
    known: NDArray[np.bool_]


def views(draw: np.random.Generator) -> Views:
    """The workshop by day from the left; from the right, turned, by the light of a lamp."""
    import cv2
    import numpy as np

    left, right = (_small(photograph(PLACE[0], name)) for name in (PLACE[1], OTHER))
    h, w = left.shape[:2]
    turn = np.vstack([cv2.getRotationMatrix2D(((w - 1) / 2, (h - 1) / 2), TURN, ZOOM), [0.0, 0.0, 1.0]])
    night = cv2.warpPerspective(dark(right, draw), turn, (w, h))
    flow, known = _truth(turn, (h, w))
    return Views(left, np.asarray(night, dtype=np.uint8), flow, known)


def dark(photo: Picture, draw: np.random.Generator) -> Picture:
    """The same by night: one warm lamp, a little blue from outside, the noise of a sensor, in linear light."""
    import numpy as np

    h, w = photo.shape[:2]
    y, x = np.mgrid[:h, :w] / np.array([h, w]).reshape(2, 1, 1)
    lamp = 0.05 + 0.5 * np.exp(-((x - 0.62) ** 2 + (y - 0.35) ** 2) / 0.06)
    linear = (photo / 255.0) ** 2.2
    lit = linear * (lamp[..., None] * [1.0, 0.75, 0.45] + np.array([0.012, 0.018, 0.03]))
    seen = np.clip(lit + draw.normal(0, 0.004, lit.shape), 0, 1) ** (1 / 2.2)
    return np.asarray(np.rint(255 * seen), dtype=np.uint8)


def _small(photo: Picture) -> Picture:
    import cv2
    import numpy as np

    size = (WIDTH, round(photo.shape[0] * WIDTH / photo.shape[1]))
    return np.asarray(cv2.resize(photo, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def _truth(turn: Floats, size: tuple[int, int]) -> tuple[Floats, NDArray[np.bool_]]:
    """p ↦ turn (p − d, 0) as a flow, and where d is known and the point inside: d is what the cameras are apart."""
    import numpy as np

    d = _disparity(size)
    h, w = size
    y, x = np.mgrid[:h, :w].astype(np.float64)
    ends = np.stack([x - d, y, np.ones_like(x)], axis=2) @ turn.T
    ends = ends[..., :2] / ends[..., 2:]
    known = np.isfinite(d) & (x - d >= 0) & (ends >= 0).all(axis=2) & (ends <= [w - 1, h - 1]).all(axis=2)
    return np.where(known[..., None], ends - np.stack([x, y], axis=2), 0.0), known


def _disparity(size: tuple[int, int]) -> Floats:
    """How far left of its place in the left picture a point lies in the right one; NaN where it was not measured."""
    from importlib.util import find_spec

    import cv2
    import numpy as np

    from likewise.errors import FileError
    from likewise.io import load_arrays

    spec = find_spec(PLACE[0])
    if spec is None or spec.origin is None:
        raise FileError(f"{APART}: comes with {PLACE[0]}, which is not installed")
    whole = load_arrays(Path(spec.origin).parent / APART)["arr_0"].astype(np.float64)
    near = cv2.resize(whole, size[::-1], interpolation=cv2.INTER_NEAREST) * size[1] / whole.shape[1]
    return np.where(np.isfinite(near), near, np.nan)


# ── what came of it ───────────────────────────────────────────────────────────────────────────────────────────────


def scores(truth: Views, found: PixelComparison) -> dict[str, Any]:
    """Mean and median error in pixels and the share within WITHIN, of likewise and of what else there is."""
    import torch

    from likewise.pixels.baselines import DIS, SiftHomography

    a, b = (torch.from_numpy(x).permute(2, 0, 1).float() / 255 for x in (truth.day, truth.night))
    flows: dict[str, Any] = {"likewise": found.flow}
    flows |= {model.name: model.flow(a, b).numpy() for model in (DIS(), DIS(equalized=True), SiftHomography())}
    measured = {name: _errors(truth, flow) for name, flow in flows.items()}
    return {**measured, "cycle_error": found.distance, "home": found.home}


def _draw(found: PixelComparison, figures: dict[str, Any], path: Path) -> None:
    """Both pictures, one laid onto the other, a checkerboard, the flow and its confidence."""
    from likewise import plot

    words = f"by day, by night, turned: {figures['likewise']['right']:.0%} of the pixels found to {WITHIN:g} px"
    plot.save(plot.alignment(*found.pictures, found.flow, found.confidence, title=words), path)


def _errors(truth: Views, flow: Any) -> dict[str, float]:
    import numpy as np

    e = np.linalg.norm(np.asarray(flow, dtype=np.float64) - truth.flow, axis=2)[truth.known]
    return {"mean": float(e.mean()), "median": float(np.median(e)), "right": float((e <= WITHIN).mean())}


def _section(picture: Path, found: PixelComparison, figures: dict[str, Any]) -> Section:
    from likewise.cli.report import Section, Table

    ours = figures["likewise"]
    text = (
        "A workshop by day; and by the light of one lamp, from a spot beside, the camera turned by "
        f"{TURN:.0f}°. Where did every pixel go? The two cameras are real, and what lies between them was measured by "
        "those who made the pictures; night and turn are ours. So each pixel's error is known.",
        f"The network that comes with likewise finds {ours['right']:.0%} of the pixels to {WITHIN:g} px, with a median "
        f"error of {ours['median']:.1f} px. It also says by itself where to trust it: {figures['home']:.0%} of the "
        "pixels that go there and back come home.",
    )
    rows = [
        (name, f"{row['median']:.1f} px", f"{row['mean']:.1f} px", f"{row['right']:.0%}")
        for name, row in figures.items()
        if isinstance(row, dict)
    ]
    return Section(
        "Where did this point go?",
        text,
        picture,
        "A motorcycle in a workshop by day, and the same at night from a turned camera; the night picture laid onto "
        "the day picture; both in turn as a checkerboard; the flow in colours; its confidence.",
        "b laid onto a is what the flow makes of the night picture. In the checkerboard, lines go on from one square "
        f"to the next where it is right. {found.model}; photographs: Middlebury 2014, in scikit-image.",
        Table(("flow by", "median error", "mean error", f"within {WITHIN:g} px"), rows, best=0),
    )
