"""What polarity and truncation trade: precision against recall, and the Fréchet distance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from likewise.errors import InputError
from likewise.plot.style import FAINT, INK, PALETTE, QUIET, figure, legend, quiet
from likewise.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def frontier(cells: Sequence[Mapping[str, float]], *, title: str | None = None) -> Figure:
    """What ρ and truncation ψ do: precision against recall, and the Fréchet distance against ρ, a curve a ψ.

    Each cell has rho, psi, precision, recall, frechet; a standard error where it has frechet_error. Points that no
    other beats in both precision and recall are filled. Truncation alone (ρ = 0, all ψ) is the dashed line.
    """
    table = _cells(cells)
    fig = figure(10.6, 4.6, layout="constrained")
    left, right = (quiet(ax) for ax in fig.subplots(1, 2))
    psis = sorted({cell["psi"] for cell in table}, reverse=True)
    best = _unbeaten(np.array([(cell["precision"], cell["recall"]) for cell in table]))
    for n, psi in enumerate(psis):
        own = sorted((i for i, cell in enumerate(table) if cell["psi"] == psi), key=lambda i: table[i]["rho"])
        rows, name = [table[i] for i in own], f"ρ at ψ = {psi:g}"
        _along(left, rows, ("recall", "precision"), name, PALETTE[n % len(PALETTE)], best[own])
        _along(right, rows, ("rho", "frechet"), name, PALETTE[n % len(PALETTE)], np.ones(len(own), dtype=bool))
        _mark(left, rows, "rho", PALETTE[n % len(PALETTE)])
    alone = sorted((cell for cell in table if cell["rho"] == 0), key=lambda cell: cell["psi"])
    if len(alone) > 1:
        left.plot(
            *_columns(alone, "recall", "precision"), color=QUIET, lw=1.1, ls=(0, (4, 2)), label="ψ at ρ = 0", zorder=1
        )
    _say_axes(left, "recall (diversity)", "precision (quality)")
    _say_axes(right, "polarity ρ", "Fréchet distance")
    if title:
        fig.suptitle(title, size=11.5, color=INK, x=0.01, ha="left", parse_math=False)
    return fig


def _cells(cells: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    if len(cells) == 0:
        raise InputError("cells: expected at least one, got none")
    for i, cell in enumerate(cells):
        for name in ("rho", "psi", "precision", "recall", "frechet"):
            if name not in cell or not np.isfinite(cell[name]):
                raise InputError(f"cells: cell {i} has no finite {name!r}")
    return list(cells)


def _columns(rows: Sequence[Mapping[str, float]], *names: str) -> list[Array]:
    return [np.array([float(row[name]) for row in rows]) for name in names]


def _along(
    ax: Axes,
    rows: list[Mapping[str, float]],
    names: tuple[str, str],
    label: str,
    colour: str,
    filled: NDArray[np.bool_],
) -> None:
    x, y = _columns(rows, *names)
    ax.plot(x, y, color=colour, lw=1.4, label=label, marker="o", ms=5.5, mec=colour, mfc="white", zorder=2)
    ax.plot(x[filled], y[filled], "o", ms=5.5, color=colour, zorder=3)
    spread = f"{names[1]}_error"
    if all(spread in row for row in rows):
        ax.errorbar(
            x, y, yerr=_columns(rows, spread)[0], fmt="none", ecolor=colour, elinewidth=0.8, capsize=2, zorder=1
        )


def _mark(ax: Axes, rows: list[Mapping[str, float]], name: str, colour: str) -> None:
    for row in rows:
        at = (float(row["recall"]), float(row["precision"]))
        ax.annotate(f"{row[name]:g}", at, xytext=(4, 4), textcoords="offset points", size=7, color=colour)


def _unbeaten(points: Array) -> NDArray[np.bool_]:
    """Which rows no other row is at least as large as in every column and larger in one: the Pareto frontier."""
    as_good = np.all(points[None, :, :] >= points[:, None, :], axis=2)
    better = np.any(points[None, :, :] > points[:, None, :], axis=2)
    return np.asarray(~np.any(as_good & better, axis=1))


def _say_axes(ax: Axes, x: str, y: str) -> None:
    ax.set_xlabel(x, size=9, color=INK)
    ax.set_ylabel(y, size=9, color=INK)
    ax.grid(True, color=FAINT, lw=0.5)
    ax.margins(0.08)
    legend(ax, 8)
