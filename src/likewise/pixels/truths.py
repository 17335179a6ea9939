"""What is true of a pair, brought to the sizes at which it is compared.

A picture resized by s moves the point p to (p + ½) s − ½; flows, points, homographies, fundamental matrices and
cameras follow.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likewise import media
from likewise.errors import ShapeError
from likewise.flowfiles import read_flow
from likewise.pixels.metrics import project
from likewise.types import Flow

Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
Size: TypeAlias = tuple[int, int]
Points: TypeAlias = tuple[Floats, Floats]

JUMP = 3.0
"""Neighbouring vectors that differ by more than this many pixels belong to two surfaces: none is made between them."""


# --------------------------------------------------------------------------------------------------------------- flows


def homography_truth(H: ArrayLike, a: Size, b: Size, *, seen_through: ArrayLike | None = None) -> Flow:
    """The flow H p − p on the (h, w) frame of a, known where it ends inside the frame of b and before the camera.

    Where b was drawn by a homography G (`seen_through`), G⁻¹ H p must also lie inside the picture that was drawn.
    """
    start = _grid(a).reshape(-1, 2)
    ends = project(H, start)
    known = _inside(ends, b)
    if seen_through is not None:
        known &= _inside(project(np.linalg.inv(np.asarray(seen_through)) @ np.asarray(H), start), b)
    vectors = np.where(known[:, None], ends - start, 0.0)
    return Flow(vectors.reshape(*a, 2), None if known.all() else known.reshape(a))


def _grid(size: Size) -> Floats:
    y, x = np.mgrid[: size[0], : size[1]].astype(np.float64)
    return np.stack([x, y], axis=2)


def _inside(points: Floats, size: Size) -> Mask:
    h, w = size
    x, y = points[:, 0], points[:, 1]
    return np.asarray((x >= 0) & (x <= w - 1) & (y >= 0) & (y <= h - 1))  # NaN is not


def resized_flow(flow: Flow, a: Size, b_old: Size, b: Size) -> Flow:
    """The flow between both pictures resized: a to size `a`, b from `b_old` to `b`.

    Between four known pixels whose vectors differ by at most 3 px it is bilinear; elsewhere (sparse truth, edges of
    things) it is the nearest pixel's, known where that is.
    """
    old = flow.height, flow.width
    if a == old and b == b_old:
        return flow
    new = _grid(a)
    places = moved(new, a, old)
    vectors, known = _between(flow, places)
    ends = moved(places + vectors, b_old, b)
    return Flow(np.where(known[..., None], ends - new, 0.0), None if known.all() else known)


def moved(points: Floats, old: Size, new: Size) -> Floats:
    """(p + ½) s − ½: points of a picture of size `old` in the picture resized to `new`."""
    scale = np.array([new[1] / old[1], new[0] / old[0]])
    return np.asarray((points + 0.5) * scale - 0.5)


def _between(flow: Flow, places: Floats) -> tuple[Floats, Mask]:
    """Vectors at places (…, 2) between the pixels, and whether they are known."""
    h, w = flow.height, flow.width
    known = np.ones((h, w), dtype=bool) if flow.valid is None else flow.valid
    x, y = np.clip(places[..., 0], 0, w - 1), np.clip(places[..., 1], 0, h - 1)
    left, top = np.floor(x).astype(int), np.floor(y).astype(int)
    right, low = np.minimum(left + 1, w - 1), np.minimum(top + 1, h - 1)
    u, v = (x - left)[..., None], (y - top)[..., None]
    corners = ((top, left), (top, right), (low, left), (low, right))
    values = np.stack([flow.vectors[c] for c in corners]).astype(np.float64)
    smooth = np.all([known[c] for c in corners], axis=0) & (np.ptp(values, axis=0) <= JUMP).all(axis=-1)
    mixed = (1 - v) * ((1 - u) * values[0] + u * values[1]) + v * ((1 - u) * values[2] + u * values[3])
    nearest = _nearest(places, (h, w))
    return np.where(smooth[..., None], mixed, flow.vectors[nearest]), np.asarray(smooth | known[nearest])


def _nearest(places: Floats, size: Size) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row and column of the pixel that a place lies in."""
    cells = np.floor(places + 0.5).astype(np.int64)
    return np.clip(cells[..., 1], 0, size[0] - 1), np.clip(cells[..., 0], 0, size[1] - 1)


def resized_mask(mask: Mask, size: Size) -> Mask:
    """A mask (h, w) at another size: each pixel as the one that its centre lies in."""
    old = mask.shape[0], mask.shape[1]
    return mask if size == old else np.asarray(mask[_nearest(moved(_grid(size), size, old), old)])


# ------------------------------------------------------------------------------------------------------- what is given


@dataclass(frozen=True)
class Sizes:
    """The sizes (h, w) of both pictures as they are on disk and as they are compared."""

    a_old: Size
    a: Size
    b_old: Size
    b: Size


def dense(flow: Any, name: str, sizes: Sizes) -> Flow:
    """A Flow, vectors, or a flow file, at the sizes at which its pair is compared."""
    given = read_flow(flow) if isinstance(flow, str | os.PathLike) else flow
    found = given if isinstance(given, Flow) else Flow(given)
    if (found.height, found.width) != sizes.a_old:
        words = "{} × {}, a vector a pixel of a".format(*sizes.a_old)
        raise ShapeError(f"flow of {name}: expected {words}, got {found.height} × {found.width}")
    return resized_flow(found, sizes.a, sizes.b_old, sizes.b)


def hidden(occluded: Any, name: str, sizes: Sizes) -> Mask:
    """The pixels of a that b does not show: a mask, or a picture that is not black there."""
    if isinstance(occluded, str | os.PathLike):
        mask = np.asarray(media.read_array(occluded).max(axis=2) > 0)
    else:
        mask = plain(occluded).astype(bool)
    if mask.shape != sizes.a_old:
        words = "{} × {}".format(*sizes.a_old)
        raise ShapeError(f"occluded of {name}: expected {words}, as a has, got shape {mask.shape}")
    return resized_mask(mask, sizes.a)


def sparse(points: Any, name: str, sizes: Sizes) -> Points:
    """Matching points of a and of b (or a function that gives them) in the pictures resized."""
    a, b = (plain(p).astype(np.float64).reshape(-1, 2) for p in (points() if callable(points) else points))
    if len(a) != len(b):
        raise ShapeError(f"points of {name}: expected as many in b as in a, got {len(a)} and {len(b)}")
    return moved(a, sizes.a_old, sizes.a), moved(b, sizes.b_old, sizes.b)


def homography(H: Any, name: str, sizes: Sizes) -> Floats:
    """A homography between the pictures resized, S_b H S_a⁻¹."""
    import torch

    from likewise.pixels.geometry import rescale_homography

    given = torch.from_numpy(matrix(H, f"homography of {name}"))
    return np.asarray(rescale_homography(given, sizes.a_old, sizes.a, sizes.b_old, sizes.b).numpy())


def fundamental(F: Any, name: str, sizes: Sizes) -> Floats:
    """A fundamental matrix between the pictures resized, S_b⁻ᵀ F S_a⁻¹, of unit norm."""
    import torch

    from likewise.pixels.geometry import rescale_fundamental

    given = torch.from_numpy(matrix(F, f"F of {name}"))
    scaled = rescale_fundamental(given, sizes.a_old, sizes.a, sizes.b_old, sizes.b).numpy()
    return np.asarray(scaled / np.linalg.norm(scaled))


def camera(K: Any, name: str, old: Size, new: Size) -> Floats:
    """The intrinsics S K of the picture resized."""
    import torch

    from likewise.pixels.geometry import rescale_intrinsics

    return np.asarray(rescale_intrinsics(torch.from_numpy(matrix(K, name)), old, new).numpy())


def plain(values: Any) -> NDArray[Any]:
    """An array, or a tensor of any device, as a NumPy array."""
    return np.asarray(values.detach().cpu().numpy() if hasattr(values, "detach") else values)


def matrix(values: Any, where: str) -> Floats:
    """A finite matrix (3, 3) as float64, a copy."""
    found = np.array(plain(values), dtype=np.float64)
    if found.shape != (3, 3) or not np.isfinite(found).all():
        raise ShapeError(f"{where}: expected a finite matrix (3, 3), got shape {found.shape}")
    return found
