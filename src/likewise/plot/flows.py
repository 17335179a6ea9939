"""Flow and matches: the colour wheel, one image warped to another, and lines between matching points."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import cv2
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray

from likewise.errors import InputError, ShapeError
from likewise.plot.style import FAINT, INK, PALETTE, QUIET, RGB, as_array, as_rgb, figure, fit
from likewise.types import Flow, Matches

Floats: TypeAlias = NDArray[np.float64]

ARCS = (15, 6, 4, 11, 13, 6)
"""Steps from red to yellow, green, cyan, blue, magenta and back to red on Middlebury's wheel (Baker et al., 2011)."""
SHOWN_PIXELS = 900
"""Images are drawn with their longest side at most this long."""
STAGES = {1: (PALETTE[0], "near the flow"), 2: (PALETTE[4], "elsewhere")}
LONGEST = 36
"""Letters of an image's name that fit below it."""
SURE = 0.5
"""Pixels of a lower confidence are not drawn where b is warped to a."""
NOWHERE = 217
"""The grey of what a warped image does not cover."""


# ── the colours ───────────────────────────────────────────────────────────────────────────────────────────────────


def wheel(flow: Any, *, largest: float | None = None) -> RGB:
    """Colour a flow by Middlebury's wheel: hue is direction, white is no motion, black is unknown.

    Parameters
    ----------
    flow : Flow or array (h, w, 2)
        Vectors in pixels, x then y.
    largest : float, optional
        The length that has the full colour; longer vectors are darker. By default the 99th percentile of the lengths,
        so that a few runaways do not bleach the rest.

    Returns
    -------
    array (h, w, 3) of uint8
        The colours.

    Raises
    ------
    ShapeError
        If the flow is not (h, w, 2).
    InputError
        If largest is not above 0.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.plot.wheel([[[1.0, 0.0], [0.0, 0.0]]], largest=1.0).tolist()  # to the right, and none
    [[[255, 0, 0], [255, 255, 255]]]
    """
    vectors, known = _vectors(flow)
    scale = longest(flow) if largest is None else float(largest)
    if not scale > 0:
        raise InputError(f"largest: expected a length in pixels > 0, got {largest!r}")
    r = np.hypot(vectors[..., 0], vectors[..., 1])[..., None] / scale
    # 0 … 1, from right clockwise on the image; Middlebury's own code has both signs, which decides the last bit
    turn = (np.arctan2(-vectors[..., 1], -vectors[..., 0]) / np.pi + 1) / 2
    hues = _hues()
    at = turn * (len(hues) - 1)
    low = np.floor(at).astype(int)
    share = (at - low)[..., None]
    hue = (1 - share) * hues[low] + share * hues[(low + 1) % len(hues)]
    colour = np.where(r <= 1, 1 - r * (1 - hue), 0.75 * hue)
    return np.where(known[..., None], np.floor(255 * colour), 0).astype(np.uint8)


def disc(side: int = 128) -> RGB:
    """Draw the key to `wheel`: each point in the colour of the vector from the middle to it, white outside.

    Parameters
    ----------
    side : int
        Pixels, at least 8.

    Returns
    -------
    array (side, side, 3) of uint8
        The key.

    Raises
    ------
    InputError
        If side is below 8.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.plot.disc(64)[0, 0].tolist()
    [255, 255, 255]
    """
    if side < 8:
        raise InputError(f"side: expected at least 8 pixels, got {side!r}")
    y, x = (np.mgrid[:side, :side] + 0.5) * 2 / side - 1
    return np.where((np.hypot(x, y) <= 1)[..., None], wheel(np.stack([x, y], axis=2), largest=1.0), np.uint8(255))


def longest(flow: Any) -> float:
    """The 99th percentile of the lengths of the known vectors in pixels; 1 where nothing moves."""
    vectors, known = _vectors(flow)
    lengths = np.hypot(vectors[..., 0], vectors[..., 1])[known]
    return (float(np.percentile(lengths, 99)) if lengths.size else 0.0) or 1.0


@cache
def _hues() -> Floats:
    """The colours (55, 3) of the wheel in [0, 1]: between two neighbouring hues one channel rises or falls."""
    corners = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 1, 1], [0, 0, 1], [1, 0, 1]], dtype=np.float64)
    arcs = []
    for i, steps in enumerate(ARCS):
        start, end = corners[i], corners[(i + 1) % 6]
        share = np.floor(255 * np.arange(steps) / steps)[:, None] / 255
        arcs.append(np.where(end >= start, start + share * (end - start), 1 - share))
    return np.concatenate(arcs)


def _vectors(flow: Any) -> tuple[Floats, NDArray[np.bool_]]:
    """Vectors as float64, 0 where they are not known, and where they are."""
    vectors = np.asarray(flow if isinstance(flow, Flow) else as_array(flow), dtype=np.float64)
    if vectors.ndim != 3 or vectors.shape[2] != 2 or vectors.size == 0:
        raise ShapeError(f"flow: expected (h, w, 2), got shape {vectors.shape}")
    known = np.asarray(np.isfinite(vectors).all(axis=2))
    if isinstance(flow, Flow) and flow.valid is not None:
        known = known & flow.valid
    return np.where(known[..., None], vectors, 0.0), known


# ── alignments ────────────────────────────────────────────────────────────────────────────────────────────────────


def alignment(
    a: Any,
    b: Any,
    flow: Any,
    confidence: Any = None,
    *,
    names: tuple[str, str] = ("a", "b"),
    title: str | None = None,
    tiles: int = 8,
) -> Figure:
    """Draw what the flow a→b does: a, b, b warped to a, the checkerboard of both, the flow, its confidence.

    Parameters
    ----------
    a, b : image
        Files, arrays (h, w), (h, w, 3) or (3, h, w), or tensors.
    flow : Flow or array (h, w, 2)
        A vector a pixel of a.
    confidence : array (h, w), optional
        In [0, 1], of a's size.
    names : (str, str)
        What the images are called.
    title : str, optional
        Stands above.
    tiles : int
        Squares of the checkerboard along its longer side.

    Returns
    -------
    Figure
        An axes a panel.

    Raises
    ------
    ShapeError
        If flow or confidence are not of a's size.

    Examples
    --------
    >>> import likewise as lw
    >>> import numpy as np
    >>> len(lw.plot.alignment(np.zeros((8, 9)), np.ones((8, 9)), np.zeros((8, 9, 2))).axes)
    5
    """
    one, two = as_rgb(a, "a"), as_rgb(b, "b")
    vectors, known = _vectors(flow)
    if vectors.shape[:2] != one.shape[:2]:
        raise ShapeError(f"flow: expected a vector a pixel of a, {one.shape[:2]}, got {vectors.shape[:2]}")
    c = None if confidence is None else np.clip(np.nan_to_num(np.asarray(as_array(confidence), np.float64)), 0.0, 1.0)
    if c is not None and c.shape != one.shape[:2]:
        raise ShapeError(f"confidence: expected {one.shape[:2]}, a value a pixel of a, got shape {c.shape}")
    sure = known if c is None else known & (c >= SURE)
    warped = warp(two, np.where(sure[..., None], vectors, np.inf))
    titles = [side if name == side else f"{side}: {_short(name)}" for side, name in zip("ab", names, strict=True)]
    panels: list[tuple[str, NDArray[Any]]] = [
        (titles[0], one),
        (titles[1], two),
        ("b warped to a" if c is None else "b warped to a, where it is sure", warped),
        ("checkerboard of a and b", checkerboard(one, warped, tiles)),
        ("flow", wheel(flow)),
    ]
    if c is not None:
        panels.append(("confidence, dark 0 to bright 1", c))
    fig = _panels(panels, title)
    _key(fig.axes[4], longest(flow))
    return fig


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else "…" + name[1 - LONGEST :]


def warp(b: RGB, flow: Floats) -> RGB:
    """b[p + flow[p]] for each pixel p of the flow, bilinear, grey where it leaves b or is not known (infinite)."""
    h, w = flow.shape[:2]
    y, x = np.mgrid[:h, :w].astype(np.float32)
    ends = np.stack([x, y], axis=2) + np.clip(flow, -1e6, 1e6).astype(np.float32)
    grey = (NOWHERE,) * 3
    warped = cv2.remap(b, ends, None, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT, borderValue=grey)  # type: ignore[call-overload]
    inside = (ends >= 0).all(axis=2) & (ends[..., 0] <= b.shape[1] - 1) & (ends[..., 1] <= b.shape[0] - 1)
    return np.where(inside[..., None], warped, np.uint8(NOWHERE)).astype(np.uint8)


def checkerboard(a: RGB, b: RGB, tiles: int = 8) -> RGB:
    """Compose squares of a and of b by turns.

    Parameters
    ----------
    a, b : array (h, w, 3)
        Two images of one shape.
    tiles : int
        Squares along the longer side, at least 2.

    Returns
    -------
    array (h, w, 3)
        The board; a stands in its first square.

    Raises
    ------
    ShapeError
        If the shapes differ.
    InputError
        If tiles is below 2.

    Examples
    --------
    >>> import likewise as lw
    >>> import numpy as np
    >>> lw.plot.checkerboard(np.zeros((2, 2, 1)), np.ones((2, 2, 1)), 2)[..., 0].tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    if a.shape != b.shape:
        raise ShapeError(f"b: expected the shape of a, {a.shape}, got {b.shape}")
    if isinstance(tiles, bool) or not isinstance(tiles, int | np.integer) or tiles < 2:
        raise InputError(f"tiles: expected a whole number ≥ 2, got {tiles!r}")
    side = max(1, -(-max(a.shape[:2]) // tiles))
    y, x = np.mgrid[: a.shape[0], : a.shape[1]] // side
    return np.where(((x + y) % 2 == 0)[..., None], a, b)


def _panels(panels: list[tuple[str, NDArray[Any]]], title: str | None, *, columns: int = 3) -> Figure:
    """Images with their names below, three in a row, each row as high as its highest."""
    rows = [panels[i : i + columns] for i in range(0, len(panels), columns)]
    side, gap, below, head = 3.2, 0.12, 0.3, 0.55 if title else 0.12
    heights = [max(min(2.0, p.shape[0] / p.shape[1]) for _, p in row) * side for row in rows]
    width, height = columns * (side + gap) + gap, head + sum(heights) + len(rows) * below
    fig, top = figure(width, height), height - head
    if title:
        fig.text(gap / width, 1 - 0.3 / height, title, size=11.5, color=INK, va="center", parse_math=False)
    for row, tall in zip(rows, heights, strict=True):
        for c, (name, image) in enumerate(row):
            left = (gap + c * (side + gap)) / width
            ax = fig.add_axes((left, (top - tall) / height, side / width, tall / height))
            ax.imshow(fit(image, SHOWN_PIXELS), cmap="cividis", vmin=0, vmax=1, interpolation="antialiased")
            ax.set_anchor("N")
            ax.axis("off")
            y = (top - tall - 0.15) / height
            fig.text(left, y, name, size=8.5, color=QUIET, va="center", parse_math=False)
        top -= tall + below
    return fig


def _key(ax: Axes, length: float) -> None:
    """The colour disc in a corner, and which length its rim stands for."""
    h, w = ax.get_images()[0].get_size()
    key = ax.inset_axes((0.79, 0.02, 0.19, 0.19 * w / h))
    key.imshow(disc(96))
    key.set(xticks=[], yticks=[])
    key.spines[:].set(color=FAINT, linewidth=0.8)
    key.set_title(f"{length:.3g} px", size=6.5, color=INK, pad=2, backgroundcolor="white")


# ── matches ───────────────────────────────────────────────────────────────────────────────────────────────────────


def matches(a: Any, b: Any, found: Matches, *, most: int = 200, title: str | None = None, seed: int = 0) -> Figure:
    """Draw two images side by side with a line for each match, coloured by the stage that found it.

    Parameters
    ----------
    a, b : image
        The images as they were matched.
    found : Matches
        The matches, in their pixels.
    most : int
        Of more so many are drawn at random; the words count all.
    title : str, optional
        Stands above.
    seed : int
        Of that draw.

    Returns
    -------
    Figure
        One axes.

    Raises
    ------
    InputError
        If matches lie outside of the images.

    Examples
    --------
    >>> import likewise as lw
    >>> import numpy as np
    >>> from likewise.types import Matches
    >>> figure = lw.plot.matches(np.zeros((8, 9)), np.ones((8, 9)), Matches([[1, 2]], [[3, 4]]))
    >>> figure.texts[0].get_text()
    '■ 1 near the flow'
    """
    one, two = as_rgb(a, "a"), as_rgb(b, "b")
    for name, points, (h, w) in (("a", found.a, one.shape[:2]), ("b", found.b, two.shape[:2])):
        if len(points) and not ((points >= -1).all() and (points <= [w, h]).all()):
            raise InputError(f"matches: points of {name} lie outside of its {h} × {w} pixels; draw what was matched")
    drawn = found
    if len(found) > most:
        drawn = found.take(np.sort(np.random.default_rng(seed).choice(len(found), most, replace=False)))
    offset = 1.02 * one.shape[1]  # b stands at the right of a, 2 % of a's width apart
    frame = (offset + two.shape[1], max(one.shape[0], two.shape[0]))
    tall = 9.0 * frame[1] / frame[0]
    guided = bool((found.stage == 1).any())
    height = tall + 0.1 + 0.3 * bool(title) + 0.3 * (guided or len(found) > most)
    fig = figure(9.0, height)
    ax = fig.add_axes((0.0, 0.1 / height, 1.0, tall / height))
    for image, left in ((one, 0.0), (two, offset)):
        h, w = image.shape[:2]
        ax.imshow(
            fit(image, SHOWN_PIXELS), extent=(left - 0.5, left + w - 0.5, h - 0.5, -0.5), interpolation="antialiased"
        )
    ax.set(xlim=(-0.5, frame[0] - 0.5), ylim=(frame[1] - 0.5, -0.5))
    ax.axis("off")
    if title:
        fig.text(0.01, 1 - 0.2 / height, title, size=11.5, color=INK, va="center", parse_math=False)
    x, y = 0.01, 1 - (0.47 if title else 0.17) / height
    for stage, (colour, words) in STAGES.items():
        part = drawn.of_stage(stage)
        ends = np.stack([part.a, part.b + np.array([offset, 0.0])], axis=1)
        ax.add_collection(LineCollection(list(ends), colors=colour, linewidths=0.7, alpha=0.75))
        ax.scatter(ends[..., 0], ends[..., 1], s=3.5, color=colour, linewidths=0)
        if not guided:  # no flow was asked: nothing is elsewhere
            continue
        text = f"{int((found.stage == stage).sum()):,} {words}"
        fig.text(x, y, f"■ {text}", size=8.5, color=colour, va="center")
        x += 0.022 + 0.0085 * len(text)
    if len(found) > most:
        fig.text(x, y, f"{most:,} of {len(found):,} drawn", size=8.5, color=QUIET, va="center")
    return fig
