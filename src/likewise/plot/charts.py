"""Curves, matrices and bars: CMC and ROC, distances between labelled items, named numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likewise.errors import InputError, ShapeError
from likewise.plot.style import FAINT, INK, PALETTE, QUIET, axes, ranks
from likewise.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_AXES = {"cmc": ("rank", "matched up to this rank"), "roc": ("false accept rate", "true accept rate")}


def curves(
    lines: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    kind: Literal["cmc", "roc"] | None = None,
    title: str | None = None,
    xlabel: str = "",
    ylabel: str = "",
) -> Figure:
    """Named curves (x, y) in one picture: CMC (x = rank), ROC (x = false accepts, y = true accepts), or any."""
    if not lines:
        raise InputError("lines: expected at least one curve, got none")
    fig, ax = axes(5.4, 4.2, title)
    x_words, y_words = _AXES[kind] if kind else (xlabel, ylabel)
    for n, (name, (x, y)) in enumerate(lines.items()):
        xs, ys = xy(name, x, y)
        colour, dash = PALETTE[n % len(PALETTE)], ("-", (0, (5, 1.6)), (0, (1.5, 1.2)))[n // len(PALETTE) % 3]
        ax.plot(xs, ys, color=colour, ls=dash, lw=1.7, label=name, clip_on=False)
    if kind is not None:
        ax.set_ylim(0, 1)
        _percent(ax.yaxis)
    if kind == "roc":
        ax.plot([0, 1], [0, 1], color=FAINT, lw=0.9, zorder=0)
        ax.set_xlim(0, 1)
        _percent(ax.xaxis)
    if kind == "cmc":
        ranks(ax)
    ax.set_xlabel(x_words, size=9, color=INK)
    ax.set_ylabel(y_words, size=9, color=INK)
    ax.grid(True, axis="y", color=FAINT, lw=0.5)
    ax.legend(frameon=False, fontsize=8.5, labelcolor=INK, loc="lower right" if kind else "best")
    return fig


def xy(name: str, x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if xs.ndim != 1 or xs.shape != ys.shape or xs.size == 0:
        raise ShapeError(f"curve {name!r}: expected x and y of one length, got shapes {xs.shape} and {ys.shape}")
    return xs, ys


def heatmap(
    D: ArrayLike, labels: Sequence[Any] | None = None, *, title: str | None = None, unit: str = "distance"
) -> Figure:
    """A matrix of distances, near dark and far light; with labels, items of one label stand together and are named."""
    A = np.asarray(D, dtype=np.float64)
    if A.ndim != 2 or A.size == 0:
        raise ShapeError(f"D: expected a matrix, got shape {A.shape}")
    if labels is not None and (len(labels) != len(A) or A.shape[0] != A.shape[1]):
        raise ShapeError(f"labels: expected {len(A)} for a square matrix, got {len(labels)} for shape {A.shape}")
    fig, ax = axes(5.6, 4.9, title)
    groups: list[tuple[str, int, int]] = []
    if labels is not None:
        order, groups = _groups(labels)
        A = A[np.ix_(order, order)]
    shown = ax.imshow(A, cmap="cividis", interpolation="nearest" if max(A.shape) < 600 else "antialiased")
    _name_groups(ax, groups)
    ax.tick_params(length=0, labelsize=8, colors=QUIET)
    for spine in ax.spines.values():
        spine.set_visible(False)
    bar = fig.colorbar(shown, ax=ax, fraction=0.04, pad=0.03)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=8, colors=QUIET)
    bar.set_label(unit, size=8.5, color=QUIET)
    return fig


def _groups(labels: Sequence[Any]) -> tuple[NDArray[np.int64], list[tuple[str, int, int]]]:
    """The order that brings equal labels together (in order of first appearance), and each group's span."""
    names = list(dict.fromkeys(labels))
    code = np.array([names.index(label) for label in labels])
    order = np.argsort(code, kind="stable")
    ends = np.cumsum(np.bincount(code, minlength=len(names)))
    return order, [(str(n), int(e - c), int(e)) for n, e, c in zip(names, ends, np.diff(ends, prepend=0), strict=True)]


def _name_groups(ax: Axes, groups: list[tuple[str, int, int]]) -> None:
    if not groups:
        return
    middles = [(start + end - 1) / 2 for _, start, end in groups]
    ax.set_yticks(middles, [name for name, _, _ in groups])
    long = max(len(name) for name, _, _ in groups) * len(groups) > 45
    turned: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if long else {}
    ax.set_xticks(middles, [name for name, _, _ in groups], **turned)
    for _, start, _ in groups[1:]:
        ax.axhline(start - 0.5, color="white", lw=0.9)
        ax.axvline(start - 0.5, color="white", lw=0.9)


def bars(
    values: Mapping[str, float],
    *,
    errors: Mapping[str, float] | None = None,
    title: str | None = None,
    unit: str = "",
    highlight: str | None = None,
    form: Callable[[float], str] = "{:.3g}".format,
) -> Figure:
    """Named numbers as horizontal bars, each with its value at the end; `highlight` names the one that matters."""
    if not values:
        raise InputError("values: expected at least one, got none")
    if highlight is not None and highlight not in values:
        raise InputError(f"highlight: expected one of {', '.join(values)}, got {highlight!r}")
    fig, ax = axes(5.8, 0.36 * len(values) + (1.15 if title else 0.8), title)
    spread = errors or {}
    names, numbers = list(values), np.array([float(v) for v in values.values()])
    plus = [float(spread.get(name, 0.0)) for name in names]
    at = np.arange(len(names))
    tone = [PALETTE[0] if highlight in (None, name) else "#B9C4CC" for name in names]
    ax.barh(at, numbers, height=0.62, color=tone)
    reach = max(float(np.abs(numbers).max()), 1e-300)
    for y, name, number, error in zip(at, names, numbers, plus, strict=True):
        if error:
            ax.plot([number - error, number + error], [y, y], color=INK, lw=1.1, solid_capstyle="butt")
        words = form(float(number)) + (f" ± {form(error)}" if error else "")
        weight = "bold" if name == highlight else "normal"
        ax.text(
            max(float(number) + error, 0) + 0.015 * reach,
            float(y),
            words,
            size=8.5,
            color=INK,
            va="center",
            weight=weight,
        )
    ax.set_yticks(at, names, size=9)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlim(min(0.0, 1.1 * float(numbers.min())), (1.34 if any(plus) else 1.16) * (reach + max(plus)))
    ax.set_xlabel(unit, size=8.5, color=QUIET)
    ax.tick_params(axis="y", length=0, colors=INK)
    ax.spines["left"].set_visible(False)
    return fig


def _percent(axis: Any) -> None:
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
