"""Spectra and log-volumes: densities of samples, and singular values by their number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from likewise.errors import InputError, ShapeError
from likewise.plot.charts import xy
from likewise.plot.style import FAINT, INK, PALETTE, axes, legend, ranks
from likewise.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def histogram(
    groups: Mapping[str, ArrayLike],
    *,
    weights: Mapping[str, ArrayLike] | None = None,
    curve: tuple[ArrayLike, ArrayLike] | None = None,
    bins: int = 60,
    title: str | None = None,
    xlabel: str = "log σ",
) -> Figure:
    """Densities of named samples as outlines over common bins, with a curve (x, density) of a law where given."""
    if not groups:
        raise InputError("groups: expected at least one sample, got none")
    values = {name: np.asarray(v, dtype=np.float64).ravel() for name, v in groups.items()}
    finite = np.concatenate([v[np.isfinite(v)] for v in values.values()])
    if finite.size == 0:
        raise InputError("groups: expected finite values, got none")
    edges = np.histogram_bin_edges(finite, bins=bins)
    fig, ax = axes(5.8, 4.2, title)
    for n, (name, v) in enumerate(values.items()):
        w = None if weights is None or name not in weights else np.asarray(weights[name], dtype=np.float64).ravel()
        _outline(ax, v, w, edges, name, PALETTE[n % len(PALETTE)])
    if curve is not None:
        ax.plot(*xy("curve", *curve), color=INK, lw=1.1, ls=(0, (4, 2)), label="law")
    ax.set_xlabel(xlabel, size=9, color=INK)
    ax.set_ylabel("density", size=9, color=INK)
    ax.set_ylim(bottom=0)
    legend(ax, 8.5)
    return fig


def _outline(ax: Axes, v: Array, w: Array | None, edges: Array, name: str, colour: str) -> None:
    if w is not None and w.shape != v.shape:
        raise ShapeError(f"weights of {name!r}: expected {v.size}, one a value, got {w.size}")
    good = np.isfinite(v)
    share = np.ones(v.size) if w is None else w
    heights = np.histogram(v[good], edges, weights=share[good])[0] / (share.sum() * np.diff(edges))
    ax.stairs(heights, edges, color=colour, lw=1.4, label=name)
    ax.stairs(heights, edges, color=colour, fill=True, alpha=0.08)


def spectrum(
    groups: Mapping[str, ArrayLike], *, title: str | None = None, ylabel: str = "log σ", band: float = 0.8
) -> Figure:
    """Spectra (n, k) against the number of the singular value: the median of each group, and the middle `band`."""
    if not groups:
        raise InputError("groups: expected at least one group of spectra, got none")
    fig, ax = axes(5.8, 4.2, title)
    for n, (name, given) in enumerate(groups.items()):
        rows = np.atleast_2d(np.asarray(given, dtype=np.float64))
        if rows.ndim != 2 or rows.size == 0 or np.isnan(rows).any():
            raise ShapeError(f"group {name!r}: expected spectra (n, k) without NaN, got shape {rows.shape}")
        rows = np.where(np.isfinite(rows), rows, np.nan)
        low, middle, high = np.nanquantile(rows, [(1 - band) / 2, 0.5, (1 + band) / 2], axis=0)
        at, colour = np.arange(1, rows.shape[1] + 1), PALETTE[n % len(PALETTE)]
        ax.plot(at, middle, color=colour, lw=1.6, label=name)
        ax.fill_between(at, low, high, color=colour, alpha=0.12, lw=0)
    ax.set_xlabel("number of the singular value", size=9, color=INK)
    ax.set_ylabel(ylabel, size=9, color=INK)
    ax.grid(True, axis="y", color=FAINT, lw=0.5)
    legend(ax, 8.5)
    ranks(ax)
    return fig
