"""Numbers: curves (CMC, ROC), matrices, spectra, the frontier of quality and diversity, and maps of points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import ArrayLike, NDArray

from likewise.errors import InputError, ShapeError
from likewise.plot.style import FAINT, INK, PALETTE, QUIET, axes, figure, finish, quiet, ranks
from likewise.types import Array

_AXES = {"cmc": ("rank", "matched up to this rank"), "roc": ("false accept rate", "true accept rate")}
_DASHES = ("-", (0, (5, 1.6)), (0, (1.5, 1.2)))
_PALE = "#B9C4CC"


def curves(
    lines: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    kind: Literal["cmc", "roc"] | None = None,
    title: str | None = None,
    xlabel: str = "",
    ylabel: str = "",
) -> Figure:
    """Draw named curves (x, y) in one figure.

    Parameters
    ----------
    lines : mapping of str to (array, array)
        x and y of each curve.
    kind : "cmc" or "roc", optional
        CMC (x = rank) and ROC (x = false accepts, y = true accepts) have axes of their own, in per cent.
    title, xlabel, ylabel : str, optional
        What stands above and at the axes.

    Returns
    -------
    Figure
        One axes.

    Raises
    ------
    InputError
        If there is no curve.
    ShapeError
        If x and y of a curve differ in length.

    Examples
    --------
    >>> import likewise as lw
    >>> figure = lw.plot.curves({"loss": ([1, 2, 3], [0.9, 0.5, 0.4])}, xlabel="epoch")
    >>> figure.axes[0].get_xlabel()
    'epoch'
    """
    _at_least_one(lines, "lines", "curve")
    fig, ax = axes(5.4, 4.2, title)
    for n, (name, (x, y)) in enumerate(lines.items()):
        xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
        if xs.ndim != 1 or xs.shape != ys.shape or xs.size == 0:
            raise ShapeError(f"curve {name!r}: expected x and y of one length, got shapes {xs.shape} and {ys.shape}")
        dash = _DASHES[n // len(PALETTE) % 3]
        ax.plot(xs, ys, color=_colour(n), ls=dash, lw=1.7, label=name, clip_on=False)
    if kind is not None:
        ax.set_ylim(0, 1)
        ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    if kind == "roc":
        ax.plot([0, 1], [0, 1], color=FAINT, lw=0.9, zorder=0)
        ax.set_xlim(0, 1)
        ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    if kind == "cmc":
        ranks(ax)
    finish(ax, *(_AXES[kind] if kind else (xlabel, ylabel)), loc="lower right" if kind else "best")
    return fig


def _at_least_one(given: Any, where: str, unit: str) -> None:
    if not len(given):
        raise InputError(f"{where}: expected at least one {unit}, got none")


def _colour(n: int) -> str:
    return PALETTE[n % len(PALETTE)]


def heatmap(
    D: ArrayLike, labels: Sequence[Any] | None = None, *, title: str | None = None, unit: str = "distance"
) -> Figure:
    """Draw a matrix of distances, near dark and far light.

    Parameters
    ----------
    D : array (n, m)
        The matrix.
    labels : sequence, optional
        Of a square matrix: items of one label stand together and are named.
    title : str, optional
        Stands above.
    unit : str
        What the numbers are.

    Returns
    -------
    Figure
        The matrix and its scale.

    Raises
    ------
    ShapeError
        If D is no matrix, or labels are not one a row of a square one.

    Examples
    --------
    >>> import likewise as lw
    >>> figure = lw.plot.heatmap([[0, 5, 1], [5, 0, 6], [1, 6, 0]], ["cow", "cup", "cow"])
    >>> [text.get_text() for text in figure.axes[0].get_yticklabels()]
    ['cow', 'cup']
    """
    A = np.asarray(D, dtype=np.float64)
    if A.ndim != 2 or A.size == 0:
        raise ShapeError(f"D: expected a matrix, got shape {A.shape}")
    if labels is not None and (len(labels) != len(A) or A.shape[0] != A.shape[1]):
        raise ShapeError(f"labels: expected {len(A)} for a square matrix, got {len(labels)} for shape {A.shape}")
    fig, ax = axes(5.6, 4.9, title)
    if labels is not None:
        names = list(dict.fromkeys(labels))
        codes = np.array([names.index(label) for label in labels])
        order = np.argsort(codes, kind="stable")
        A = A[np.ix_(order, order)]
        _name_groups(ax, [str(name) for name in names], np.bincount(codes))
    shown = ax.imshow(A, cmap="cividis", interpolation="nearest" if max(A.shape) < 600 else "antialiased")
    ax.tick_params(length=0, labelsize=8, colors=QUIET)
    ax.spines[:].set_visible(False)
    bar = fig.colorbar(shown, ax=ax, fraction=0.04, pad=0.03)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=8, colors=QUIET)
    bar.set_label(unit, size=8.5, color=QUIET)
    return fig


def _name_groups(ax: Axes, names: list[str], sizes: NDArray[np.int64]) -> None:
    """Each group's name at its middle, and white lines between the groups."""
    ends = np.cumsum(sizes)
    ax.set_yticks(ends - (sizes + 1) / 2, names)
    long = max(map(len, names)) * len(names) > 45
    turned: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if long else {}
    ax.set_xticks(ends - (sizes + 1) / 2, names, **turned)
    for end in ends[:-1]:
        ax.axhline(end - 0.5, color="white", lw=0.9)
        ax.axvline(end - 0.5, color="white", lw=0.9)


def spectrum(
    groups: Mapping[str, ArrayLike], *, title: str | None = None, ylabel: str = "log σ", band: float = 0.8
) -> Figure:
    """Draw spectra against the number of the singular value: the median of each group, and its middle.

    Parameters
    ----------
    groups : mapping of str to array (n, k)
        Spectra; values that are not finite are left out.
    title, ylabel : str, optional
        What stands above and beside.
    band : float
        The share of the spectra that the band holds.

    Returns
    -------
    Figure
        One axes.

    Raises
    ------
    InputError
        If there is no group.
    ShapeError
        If a group is not (n, k), or has NaN.

    Examples
    --------
    >>> import likewise as lw
    >>> figure = lw.plot.spectrum({"ρ = 0": [[3.0, 2.0, 1.0], [5.0, 2.0, 1.0]]})
    >>> figure.axes[0].lines[0].get_ydata().tolist()
    [4.0, 2.0, 1.0]
    """
    _at_least_one(groups, "groups", "group of spectra")
    fig, ax = axes(5.8, 4.2, title)
    for n, (name, given) in enumerate(groups.items()):
        rows = np.atleast_2d(np.asarray(given, dtype=np.float64))
        if rows.ndim != 2 or rows.size == 0 or np.isnan(rows).any():
            raise ShapeError(f"group {name!r}: expected spectra (n, k) without NaN, got shape {rows.shape}")
        rows = np.where(np.isfinite(rows), rows, np.nan)
        low, middle, high = np.nanquantile(rows, [(1 - band) / 2, 0.5, (1 + band) / 2], axis=0)
        at = np.arange(1, rows.shape[1] + 1)
        ax.plot(at, middle, color=_colour(n), lw=1.6, label=name)
        ax.fill_between(at, low, high, color=_colour(n), alpha=0.12, lw=0)
    finish(ax, "number of the singular value", ylabel)
    ranks(ax)
    return fig


def frontier(cells: Sequence[Mapping[str, float]], *, title: str | None = None) -> Figure:
    """Draw what ρ and truncation ψ do: precision against recall, and the Fréchet distance against ρ.

    There is a curve a ψ. Points that no other beats in both precision and recall are filled. Truncation alone
    (ρ = 0, all ψ) is the dashed line.

    Parameters
    ----------
    cells : sequence of mappings
        Each has rho, psi, precision, recall, frechet; and frechet_error where its standard error is known.
    title : str, optional
        Stands above.

    Returns
    -------
    Figure
        Two axes.

    Raises
    ------
    InputError
        If there is no cell, or one lacks a finite number.

    Examples
    --------
    >>> import likewise as lw
    >>> cell = {"rho": 0.0, "psi": 1.0, "precision": 0.6, "recall": 0.5, "frechet": 40.0}
    >>> len(lw.plot.frontier([cell, {**cell, "rho": -0.5, "precision": 0.7}]).axes)
    2
    """
    _at_least_one(cells, "cells", "cell")
    for i, cell in enumerate(cells):
        for name in ("rho", "psi", "precision", "recall", "frechet"):
            if name not in cell or not np.isfinite(cell[name]):
                raise InputError(f"cells: cell {i} has no finite {name!r}")
    table = sorted(cells, key=lambda cell: (-cell["psi"], cell["rho"]))
    psi, rho, recall, precision, frechet = _columns(table, "psi", "rho", "recall", "precision", "frechet")
    best = _unbeaten(np.stack([precision, recall], axis=1))
    fig = figure(10.6, 4.6, layout="constrained")
    left, right = (quiet(ax) for ax in fig.subplots(1, 2))
    for n, value in enumerate(dict.fromkeys(psi.tolist())):
        own, colour = psi == value, _colour(n)
        style: dict[str, Any] = {"color": colour, "lw": 1.4, "marker": "o", "ms": 5.5, "label": f"ρ at ψ = {value:g}"}
        left.plot(recall[own], precision[own], mfc="white", **style)
        left.plot(recall[own & best], precision[own & best], "o", ms=5.5, color=colour, zorder=3)
        right.plot(rho[own], frechet[own], **style)
        rows = [cell for cell, mine in zip(table, own, strict=True) if mine]
        if all("frechet_error" in cell for cell in rows):
            spread = _columns(rows, "frechet_error")[0]
            right.errorbar(rho[own], frechet[own], yerr=spread, fmt="none", ecolor=colour, elinewidth=0.8, capsize=2)
        for x, y, words in zip(recall[own], precision[own], rho[own], strict=True):
            left.annotate(f"{words:g}", (x, y), xytext=(4, 4), textcoords="offset points", size=7, color=colour)
    if (alone := rho == 0).sum() > 1:
        left.plot(recall[alone], precision[alone], color=QUIET, lw=1.1, ls=(0, (4, 2)), label="ψ at ρ = 0", zorder=1)
    finish(left, "recall (diversity)", "precision (quality)")
    finish(right, "polarity ρ", "Fréchet distance")
    if title:
        fig.suptitle(title, size=11.5, color=INK, x=0.01, ha="left", parse_math=False)
    return fig


def _columns(rows: Sequence[Mapping[str, float]], *names: str) -> list[Array]:
    return [np.array([float(row[name]) for row in rows]) for name in names]


def _unbeaten(points: Array) -> NDArray[np.bool_]:
    """Which rows no other row is at least as large as in every column and larger in one: the Pareto frontier."""
    as_good = np.all(points[None, :, :] >= points[:, None, :], axis=2)
    better = np.any(points[None, :, :] > points[:, None, :], axis=2)
    return np.asarray(~np.any(as_good & better, axis=1))


def cover_map(
    real: ArrayLike,
    fake: ArrayLike,
    uncovered: ArrayLike,
    *,
    figures: Mapping[str, str] | None = None,
    title: str | None = None,
    labels: tuple[str, str] = ("A", "B"),
) -> Figure:
    """Draw two samples of points over each other; those of the first that the second does not cover stand out.

    Parameters
    ----------
    real, fake : array (n, 2), (m, 2)
        The points of A and of B.
    uncovered : array (n,) of bool
        Which points of A are not covered.
    figures : mapping of str to str, optional
        Names and values that stand above.
    title : str, optional
        Stands above.
    labels : (str, str)
        What A and B are called.

    Returns
    -------
    Figure
        One axes.

    Raises
    ------
    ShapeError
        If points are not (n, 2), or uncovered is not one a point.

    Examples
    --------
    >>> import likewise as lw
    >>> figure = lw.plot.cover_map([[0, 0], [1, 1]], [[0, 0.1]], [False, True])
    >>> [len(points.get_offsets()) for points in figure.axes[0].collections]
    [1, 1, 1]
    """
    P, Q, out = np.asarray(real, np.float64), np.asarray(fake, np.float64), np.asarray(uncovered, bool)
    for name, points in (("real", P), ("fake", Q)):
        if points.ndim != 2 or points.shape[1] != 2 or len(points) == 0:
            raise ShapeError(f"{name}: expected points (n, 2), got shape {points.shape}")
    if out.shape != (len(P),):
        raise ShapeError(f"uncovered: expected ({len(P)},), one a point of real, got shape {out.shape}")
    fig, ax = axes(6.4, 6.0, None)
    # Many points are drawn small, so that they do not hide each other.
    size = float(np.clip(6000 / max(len(P), len(Q)), 5, 28))
    for points, colour, name in (
        (Q, _PALE, labels[1]),
        (P[~out], PALETTE[0], f"{labels[0]}, covered"),
        (P[out], PALETTE[1], f"{labels[0]}, not covered by {labels[1]}"),
    ):
        ax.scatter(points[:, 0], points[:, 1], s=size, c=colour, lw=0, alpha=0.85, label=name)
    ax.set_aspect("equal", adjustable="datalim")
    values = [f"{name} {value}" for name, value in (figures or {}).items()]
    half = len(values) // 2
    lines = ["   ".join(part) for part in (values[:half], values[half:]) if part]
    fig.suptitle(title or "", size=12.5, color=INK, x=0.03, ha="left", parse_math=False)
    ax.set_title("\n".join(lines), size=8, color=QUIET, loc="left", parse_math=False)
    finish(ax, "", "", grid=False)
    return fig
