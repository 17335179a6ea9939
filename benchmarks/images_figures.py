"""The figure of the long race, drawn from its table into docs/_static."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from likewise import plot
from likewise.plot.style import INK, QUIET, figure, quiet

STATIC = Path(__file__).parent.parent / "docs" / "_static"
PARTS = {"train": "classes it learns from", "validation": "validation classes", "test": "test classes, never seen"}


def race(curves: Mapping[str, Sequence[Mapping[str, Any]]], epochs: float) -> Figure:
    """R@1 over epochs on three parts of the data: a line a variant, the mean over seeds; each seed faint behind it."""
    fig = figure(9.6, 3.4, layout="constrained")
    for place, (part, words) in enumerate(PARTS.items(), start=1):
        ax = quiet(fig.add_subplot(1, len(PARTS), place))
        ax.set_title(words, size=9, color=INK, loc="left")
        ax.set_xlabel("epochs", size=8, color=QUIET)
        for (name, runs), colour in zip(curves.items(), plot.PALETTE, strict=False):
            x = np.array(runs[0]["steps"]) * epochs / runs[0]["steps"][-1]
            ys = np.array([run[part] for run in runs])
            for y in ys if len(ys) > 1 else ():
                ax.plot(x, y, color=colour, lw=0.8, alpha=0.35)
            ax.plot(x, ys.mean(axis=0), color=colour, lw=1.8, marker="o", ms=3.5, label=f"{name} ({_seeds(len(runs))})")
        if place == 1:
            ax.set_ylabel("R@1", size=8, color=QUIET)
            fig.legend(frameon=False, fontsize=8, labelcolor=INK, loc="outside lower center", ncols=len(curves))
    return fig


def _seeds(n: int) -> str:
    return "one seed" if n == 1 else f"{n} seeds"


def draw(curves: Mapping[str, Sequence[Mapping[str, Any]]], epochs: float, folder: Path = STATIC) -> None:
    """Write the figure."""
    plot.save(race(curves, epochs), folder / "images-race.png", dpi=100)
