"""The demo's panel on pixels: a place by day and by night, from two spots, the camera turned; aligned and measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from likewise import samples
from likewise.cli.demo import Panel, step

if TYPE_CHECKING:
    from likewise.pixels.compare import PixelComparison
    from likewise.plot.report import Section
    from likewise.samples import Views

WITHIN = 3.0
"""Pixels within which a pixel counts as found."""


def pixels_panel(folder: Path, seed: int) -> Panel:
    """Two photographs of a place, the second from another spot, turned, by night: where did every pixel go?"""
    from likewise.media import write_image
    from likewise.pixels import compare

    with step("a place by day and by night, aligned") as said:
        truth = samples.views(seed)
        a, b = folder / "place" / "day.png", folder / "place" / "night.png"
        write_image(a, truth.day), write_image(b, truth.night)
        found = compare(a, b)
        figures = scores(truth, found)
        _draw(found, figures, folder / "alignment.png")
        ours, theirs = figures["likewise"], figures["DIS on equalised grey"]
        said.append(f"{ours['right']:.0%} of the pixels found to {WITHIN:g} px, {theirs['right']:.0%} by DIS")
    fact = (f"of pixels found again at night, {theirs['right']:.0%} by classical flow", f"{ours['right']:.0%}")
    return Panel("pixels", "alignment.png", figures, fact, _section(folder / "alignment.png", found, figures))


# ── what came of it ───────────────────────────────────────────────────────────────────────────────────────────────


def scores(truth: Views, found: PixelComparison) -> dict[str, Any]:
    """Mean and median error in pixels and the share within WITHIN, of likewise and of what else there is."""
    import torch

    from likewise.papers.life.rivals import DIS, SiftHomography

    a, b = (torch.from_numpy(x).permute(2, 0, 1).float() / 255 for x in (truth.day, truth.night))
    flows: dict[str, Any] = {"likewise": found.flow}
    flows |= {model.name: model.flow(a, b).numpy() for model in (DIS(), DIS(equalized=True), SiftHomography())}
    measured = {name: _errors(truth, flow) for name, flow in flows.items()}
    return {**measured, "cycle_error": found.distance, "cycle_consistency": found.cycle_consistency}


def _draw(found: PixelComparison, figures: dict[str, Any], path: Path) -> None:
    """Both pictures, one laid onto the other, a checkerboard, the flow and its confidence."""
    from likewise import plot

    words = f"by day, by night, turned: {figures['likewise']['right']:.0%} of the pixels found to {WITHIN:g} px"
    plot.save(plot.alignment(*found.images, found.flow, found.confidence, title=words), path)


def _errors(truth: Views, flow: Any) -> dict[str, float]:
    import numpy as np

    e = np.linalg.norm(np.asarray(flow, dtype=np.float64) - truth.flow, axis=2)[truth.known]
    return {"mean": float(e.mean()), "median": float(np.median(e)), "right": float((e <= WITHIN).mean())}


def _section(picture: Path, found: PixelComparison, figures: dict[str, Any]) -> Section:
    from likewise.plot.report import Section, Table

    ours = figures["likewise"]
    text = (
        "A workshop by day; and by the light of one lamp, from a spot beside, the camera turned by "
        f"{samples.TURN:.0f}°. Where did every pixel go? The two cameras are real, and what lies between them was "
        "measured by those who made the pictures; night and turn are ours. So each pixel's error is known.",
        f"The network that comes with likewise finds {ours['right']:.0%} of the pixels to {WITHIN:g} px, with a median "
        f"error of {ours['median']:.1f} px. It also says by itself where to trust it: "
        f"{figures['cycle_consistency']:.0%} of the pixels return to their place when they go there and back.",
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
