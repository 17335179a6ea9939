"""Flow and matches: the colour wheel, one picture laid onto another, and lines between matching points."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from likewise.errors import InputError, ShapeError
from likewise.plot.style import FAINT, INK, PALETTE, QUIET, figure
from likewise.types import Flow, Matches

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RGB: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float64]

ARCS = (15, 6, 4, 11, 13, 6)
"""Steps from red to yellow, green, cyan, blue, magenta and back to red on Middlebury's wheel (Baker et al., 2011)."""
SHOWN_PIXELS = 900
"""Pictures are drawn with their longest side at most this long."""
STAGES = {1: (PALETTE[0], "near the flow"), 2: (PALETTE[4], "elsewhere")}
LONGEST = 36
"""Letters of a picture's name that fit below it."""
NOWHERE = 217
"""The grey of what a picture that was laid onto another does not cover."""


# ---------------------------------------------------------------------------------------------------------- the colours


def wheel(flow: Any, *, largest: float | None = None) -> RGB:
    """A flow (h, w, 2) as colours (h, w, 3) on Middlebury's wheel: hue is direction, white is no motion.

    Vectors of length `largest` have the full colour (by default the 99th percentile of the lengths, so that a few
    runaways do not bleach the rest), longer ones are darker. Unknown vectors are black.
    """
    vectors, known = _vectors(flow)
    scale = longest(flow) if largest is None else float(largest)
    if not scale > 0:
        raise InputError(f"largest: expected a length in pixels > 0, got {largest!r}")
    r = np.hypot(vectors[..., 0], vectors[..., 1]) / scale
    turn = (
        np.arctan2(-vectors[..., 1], -vectors[..., 0]) / np.pi + 1
    ) / 2  # 0 … 1, from right clockwise on the picture
    hues = _hues()
    place = turn * (len(hues) - 1)
    low = np.floor(place).astype(int)
    share = (place - low)[..., None]
    hue = (1 - share) * hues[low] + share * hues[(low + 1) % len(hues)]
    colour = np.where(r[..., None] <= 1, 1 - r[..., None] * (1 - hue), 0.75 * hue)
    return np.where(known[..., None], np.floor(255 * colour), 0).astype(np.uint8)


def disc(side: int = 128) -> RGB:
    """The key to `wheel`: each point in the colour of the vector from the middle to it, white outside."""
    if side < 8:
        raise InputError(f"side: expected at least 8 pixels, got {side!r}")
    y, x = (np.mgrid[:side, :side] + 0.5) * 2 / side - 1
    colours = wheel(np.stack([x, y], axis=2), largest=1.0)
    return np.where((np.hypot(x, y) <= 1)[..., None], colours, np.uint8(255))


def longest(flow: Any) -> float:
    """The 99th percentile of the lengths of the known vectors in pixels; 1 where nothing moves."""
    vectors, known = _vectors(flow)
    lengths = np.hypot(vectors[..., 0], vectors[..., 1])[known]
    found = float(np.percentile(lengths, 99)) if lengths.size else 0.0
    return found if found > 0 else 1.0


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
    given = flow if isinstance(flow, Flow) else _array(flow)
    vectors = np.asarray(given, dtype=np.float64)
    if vectors.ndim != 3 or vectors.shape[2] != 2 or vectors.size == 0:
        raise ShapeError(f"flow: expected (h, w, 2), got shape {vectors.shape}")
    known = np.asarray(np.isfinite(vectors).all(axis=2))
    if isinstance(flow, Flow) and flow.valid is not None:
        known = known & flow.valid
    return np.where(known[..., None], vectors, 0.0), known


# ----------------------------------------------------------------------------------------------------------- alignments


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
    """What the flow a→b does: a, b, b laid onto a, a and b laid onto it as a checkerboard, the flow, its confidence.

    Pictures are files, arrays (h, w), (h, w, 3) or (3, h, w); `confidence` (h, w) in [0, 1] is of a's size, or None.
    """
    one, two = shown(a, "a"), shown(b, "b")
    vectors, known = _vectors(flow)
    if vectors.shape[:2] != one.shape[:2]:
        raise ShapeError(f"flow: expected a vector a pixel of a, {one.shape[:2]}, got {vectors.shape[:2]}")
    warped = laid(two, np.where(known[..., None], vectors, np.inf))
    board = checkerboard(one, warped, tiles)
    panels: list[tuple[str, NDArray[Any]]] = [
        (_called("a", names[0]), one),
        (_called("b", names[1]), two),
        ("b laid onto a", warped),
        ("a and b in turn", board),
    ]
    panels.append(("flow", wheel(flow)))
    if confidence is not None:
        panels.append(("confidence, dark 0 to bright 1", _confidence(confidence, one.shape[:2])))
    fig = _panels(panels, title)
    _key(fig.axes[4], longest(flow))
    return fig


def _called(side: str, name: str) -> str:
    """Which side a picture is, with its name where it has one of its own."""
    return side if name == side else f"{side}: {name if len(name) <= LONGEST else '…' + name[1 - LONGEST :]}"


def laid(b: RGB, flow: Floats) -> RGB:
    """b[p + flow[p]] for each pixel p of the flow, bilinear, grey where it leaves b or is not known (infinite)."""
    import cv2

    h, w = flow.shape[:2]
    y, x = np.mgrid[:h, :w].astype(np.float32)
    ends = np.stack([x, y], axis=2) + np.clip(flow, -1e6, 1e6).astype(np.float32)
    grey = (NOWHERE,) * 3
    warped = cv2.remap(b, ends, None, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT, borderValue=grey)  # type: ignore[call-overload]
    inside = (ends >= 0).all(axis=2) & (ends[..., 0] <= b.shape[1] - 1) & (ends[..., 1] <= b.shape[0] - 1)
    return np.where(inside[..., None], warped, np.uint8(NOWHERE)).astype(np.uint8)


def checkerboard(a: RGB, b: RGB, tiles: int = 8) -> RGB:
    """Squares of a and of b in turn, `tiles` along the longer side."""
    if a.shape != b.shape:
        raise ShapeError(f"b: expected the shape of a, {a.shape}, got {b.shape}")
    if isinstance(tiles, bool) or not isinstance(tiles, int | np.integer) or tiles < 2:
        raise InputError(f"tiles: expected a whole number ≥ 2, got {tiles!r}")
    side = max(1, -(-max(a.shape[:2]) // tiles))
    y, x = np.mgrid[: a.shape[0], : a.shape[1]] // side
    return np.where(((x + y) % 2 == 0)[..., None], a, b)


def _confidence(values: Any, size: tuple[int, ...]) -> Floats:
    c = np.asarray(_array(values), dtype=np.float64)
    if c.shape != size:
        raise ShapeError(f"confidence: expected {size}, a value a pixel of a, got shape {c.shape}")
    return np.clip(np.nan_to_num(c), 0.0, 1.0)


def _panels(panels: list[tuple[str, NDArray[Any]]], title: str | None, *, columns: int = 3) -> Figure:
    """Pictures with their names below, three in a row, each row as high as its highest."""
    rows = [panels[i : i + columns] for i in range(0, len(panels), columns)]
    width, gap, below, head = 3.2, 0.12, 0.3, 0.55 if title else 0.12
    heights = [max(min(2.0, p.shape[0] / p.shape[1]) for _, p in row) * width for row in rows]
    total = (columns * (width + gap) + gap, head + sum(heights) + len(rows) * below)
    fig, top = figure(*total), total[1] - head
    if title:
        fig.text(gap / total[0], 1 - 0.3 / total[1], title, size=11.5, color=INK, va="center", parse_math=False)
    for row, height in zip(rows, heights, strict=True):
        for c, (name, picture) in enumerate(row):
            left = gap + c * (width + gap)
            ax = fig.add_axes((left / total[0], (top - height) / total[1], width / total[0], height / total[1]))
            _picture(ax, picture)
            fig.text(
                left / total[0],
                (top - height - 0.15) / total[1],
                name,
                size=8.5,
                color=QUIET,
                va="center",
                parse_math=False,
            )
        top -= height + below
    return fig


def _picture(ax: Axes, picture: NDArray[Any]) -> None:
    """A picture without axes, at the top of its place; one channel is drawn in cividis from 0 to 1."""
    ax.imshow(small(picture), cmap="cividis", vmin=0, vmax=1, interpolation="antialiased")
    ax.set_anchor("N")
    ax.axis("off")


def _key(ax: Axes, length: float) -> None:
    """The colour disc in a corner, and which length its rim stands for."""
    key = ax.inset_axes((0.79, 0.02, 0.19, 0.19 * _aspect(ax)))
    key.imshow(disc(96))
    key.set_xticks([])
    key.set_yticks([])
    for spine in key.spines.values():
        spine.set(color=FAINT, linewidth=0.8)
    key.set_title(f"{length:.3g} px", size=6.5, color=INK, pad=2, backgroundcolor="white")


def _aspect(ax: Axes) -> float:
    """Width over height of the picture that axes hold."""
    shape = ax.get_images()[0].get_size()
    return float(shape[1] / shape[0])


# ------------------------------------------------------------------------------------------------------------- matches


def matches(a: Any, b: Any, found: Matches, *, most: int = 200, title: str | None = None, seed: int = 0) -> Figure:
    """Two pictures side by side with a line for each match, coloured by the stage that found it.

    Of more than `most` so many are drawn at random, by `seed`; the words count all.
    """
    from matplotlib.collections import LineCollection

    one, two = shown(a, "a"), shown(b, "b")
    _check_points(found, one, two)
    width, head = 9.0, 0.6 if title else 0.3
    gap = 0.02 * one.shape[1]
    frame = (one.shape[1] + gap + two.shape[1], max(one.shape[0], two.shape[0]))
    height = width * frame[1] / frame[0]
    fig = figure(width, height + head + 0.1)
    ax = fig.add_axes((0.0, 0.1 / (height + head + 0.1), 1.0, height / (height + head + 0.1)))
    for picture, left in ((one, 0.0), (two, one.shape[1] + gap)):
        h, w = picture.shape[:2]
        ax.imshow(small(picture), extent=(left - 0.5, left + w - 0.5, h - 0.5, -0.5), interpolation="antialiased")
    for stage, (colour, _) in STAGES.items():
        part = _some(found, most, seed).of_stage(stage)
        ends = np.stack([part.a, part.b + np.array([one.shape[1] + gap, 0.0])], axis=1)
        ax.add_collection(LineCollection(list(ends), colors=colour, linewidths=0.7, alpha=0.75))
        ax.scatter(ends[..., 0], ends[..., 1], s=3.5, color=colour, linewidths=0)
    ax.set(xlim=(-0.5, frame[0] - 0.5), ylim=(frame[1] - 0.5, -0.5))
    ax.axis("off")
    _words(fig, found, most, title, height + head + 0.1)
    return fig


def _check_points(found: Matches, one: RGB, two: RGB) -> None:
    """Refuse points that lie far outside of their pictures: the pictures are of another size than was matched."""
    for name, points, picture in (("a", found.a, one), ("b", found.b, two)):
        h, w = picture.shape[:2]
        if len(points) and not ((points >= -1).all() and (points <= [w, h]).all()):
            raise InputError(f"matches: points of {name} lie outside of its {h} × {w} pixels; draw what was matched")


def _some(found: Matches, most: int, seed: int) -> Matches:
    if len(found) <= most:
        return found
    return found.take(np.sort(np.random.default_rng(seed).choice(len(found), most, replace=False)))


def _words(fig: Figure, found: Matches, most: int, title: str | None, height: float) -> None:
    """The title, and below it how many matches there are of each stage, in its colour."""
    if title:
        fig.text(0.01, 1 - 0.2 / height, title, size=11.5, color=INK, va="center", parse_math=False)
    x, y = 0.01, 1 - (0.47 if title else 0.17) / height
    for stage, (colour, words) in STAGES.items():
        text = f"{int((found.stage == stage).sum()):,} {words}"
        fig.text(x, y, f"■ {text}", size=8.5, color=colour, va="center")
        x += 0.022 + 0.0085 * len(text)
    if len(found) > most:
        fig.text(x, y, f"{most:,} of {len(found):,} drawn", size=8.5, color=QUIET, va="center")


# -------------------------------------------------------------------------------------------------------------- pieces


def _array(values: Any) -> NDArray[Any]:
    """An array, or a tensor of any device, as a NumPy array."""
    return np.asarray(values.detach().cpu().numpy() if hasattr(values, "detach") else values)


def shown(picture: Any, where: str) -> RGB:
    """A file, an array (h, w), (h, w, 3) or (3, h, w), or a tensor, as uint8 (h, w, 3)."""
    from likewise.media import as_uint8, read_array

    if isinstance(picture, str | os.PathLike):
        return read_array(picture)
    array = _array(picture)
    if array.ndim == 3 and array.shape[0] == 3 and array.shape[2] != 3:
        array = np.moveaxis(array, 0, 2)
    array = np.clip(array, 0, 1) if array.dtype.kind == "f" else array
    rgb = as_uint8(array, where=where)
    return rgb if rgb.ndim == 3 else np.repeat(rgb[:, :, None], 3, axis=2)


def small(picture: NDArray[Any]) -> NDArray[Any]:
    """The picture with its longest side at most SHOWN_PIXELS."""
    import cv2

    h, w = picture.shape[:2]
    scale = SHOWN_PIXELS / max(h, w)
    if scale >= 1:
        return picture
    size = max(1, round(w * scale)), max(1, round(h * scale))
    return np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA))
