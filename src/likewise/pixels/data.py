"""What the level reads: pairs of images with what is true of them, loaded when they are asked for.

A pair can be loaded at any size; what is true of it is brought along by the half-pixel rule: an image resized by s
moves the point p to (p + ½) s − ½.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn import functional

from likewise import inputs, media
from likewise.errors import InputError, ShapeError
from likewise.pixels.geometry import (
    grid,
    rescale_fundamental,
    rescale_homography,
    rescale_intrinsics,
    sample,
    transform,
)
from likewise.pixels.metrics import project
from likewise.types import Flow, read_flow

Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
Size: TypeAlias = tuple[int, int]
Points: TypeAlias = tuple[Floats, Floats]

JUMP = 3.0
"""Neighbouring vectors that differ by more than this many pixels belong to two surfaces: none is made between them."""


# --------------------------------------------------------------------------------------------------------------- flows


def homography_truth(H: ArrayLike, a: Size, b: Size, *, seen_through: ArrayLike | None = None) -> Flow:
    """The flow H p − p on the (h, w) frame of a, known where it ends inside the frame of b and before the camera.

    Where b was drawn by a homography G (`seen_through`), G⁻¹ H p must also lie inside the image that was drawn.
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
    """The flow between both images resized: a to size `a`, b from `b_old` to `b`.

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
    """(p + ½) s − ½: points of an image of size `old` in the image resized to `new`."""
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
    """The sizes (h, w) of both images as they are on disk and as they are compared."""

    a_old: Size
    a: Size
    b_old: Size
    b: Size


def dense(flow: Any, name: str, sizes: Sizes) -> Flow:
    """A Flow, vectors, or a flow file, at the sizes at which its pair is compared."""
    given = read_flow(flow) if isinstance(flow, str | os.PathLike) else flow
    truth = given if isinstance(given, Flow) else Flow(given)
    if (truth.height, truth.width) != sizes.a_old:
        words = "{} × {}, a vector a pixel of a".format(*sizes.a_old)
        raise ShapeError(f"flow of {name}: expected {words}, got {truth.height} × {truth.width}")
    return resized_flow(truth, sizes.a, sizes.b_old, sizes.b)


def hidden(occluded: Any, name: str, sizes: Sizes) -> Mask:
    """The pixels of a that b does not show: a mask, or an image that is not black there."""
    if isinstance(occluded, str | os.PathLike):
        mask = np.asarray(media.read_array(occluded).max(axis=2) > 0)
    else:
        mask = plain(occluded).astype(bool)
    if mask.shape != sizes.a_old:
        words = "{} × {}".format(*sizes.a_old)
        raise ShapeError(f"occluded of {name}: expected {words}, as a has, got shape {mask.shape}")
    return resized_mask(mask, sizes.a)


def sparse(points: Any, name: str, sizes: Sizes) -> Points:
    """Matching points of a and of b (or a function that gives them) in the images resized."""
    a, b = (plain(p).astype(np.float64).reshape(-1, 2) for p in (points() if callable(points) else points))
    if len(a) != len(b):
        raise ShapeError(f"points of {name}: expected as many in b as in a, got {len(a)} and {len(b)}")
    return moved(a, sizes.a_old, sizes.a), moved(b, sizes.b_old, sizes.b)


def homography(H: Any, name: str, sizes: Sizes) -> Floats:
    """A homography between the images resized, S_b H S_a⁻¹."""
    given = torch.from_numpy(matrix(H, f"homography of {name}"))
    return np.asarray(rescale_homography(given, sizes.a_old, sizes.a, sizes.b_old, sizes.b).numpy())


def fundamental(F: Any, name: str, sizes: Sizes) -> Floats:
    """A fundamental matrix between the images resized, S_b⁻ᵀ F S_a⁻¹, of unit norm."""
    given = torch.from_numpy(matrix(F, f"F of {name}"))
    scaled = rescale_fundamental(given, sizes.a_old, sizes.a, sizes.b_old, sizes.b).numpy()
    return np.asarray(scaled / np.linalg.norm(scaled))


def camera(K: Any, name: str, old: Size, new: Size) -> Floats:
    """The intrinsics S K of the image resized."""
    return np.asarray(rescale_intrinsics(torch.from_numpy(matrix(K, name)), old, new).numpy())


def plain(values: Any) -> NDArray[Any]:
    """An array, or a tensor of any device, as a NumPy array."""
    return np.asarray(values.detach().cpu().numpy() if hasattr(values, "detach") else values)


def matrix(values: Any, where: str) -> Floats:
    """A finite matrix (3, 3) as float64, a copy."""
    array = np.array(plain(values), dtype=np.float64)
    if array.shape != (3, 3) or not np.isfinite(array).all():
        raise ShapeError(f"{where}: expected a finite matrix (3, 3), got shape {array.shape}")
    return array


Side: TypeAlias = Literal["shortest", "longest"]


# ---------------------------------------------------------------------------------------------------------------- pairs


@dataclass(frozen=True, eq=False, repr=False)
class FlowPair:
    """Two images and what is known to be true of them; files are read by `load`, not before.

    Parameters
    ----------
    a, b : image
        In any form that `likewise.inputs` takes.
    name, group : str
        What results call the pair, and the part of the data set that it counts to.
    flow : Flow, array (h, w, 2) or path, optional
        The dense flow a→b, or a flow file.
    occluded : array (h, w) or path, optional
        The pixels of a that b does not show, or an image that is not black there.
    homography, F : array (3, 3), optional
        The homography a→b; the fundamental matrix, [y, 1] F [x, 1]ᵀ = 0.
    points : tuple of two arrays (n, 2), or a function that gives them, optional
        Matching points of a and of b.
    Ka, Kb, R, t : arrays, optional
        The cameras, X_b = R X_a + t.
    seen_through : array (3, 3), or a function of b's size, optional
        A homography G: the image b is drawn by it, and the pair's homography, which it needs, becomes G H.

    Raises
    ------
    InputError
        Where `seen_through` is given for a pair of which more, or less, than a homography is known.

    Examples
    --------
    >>> import numpy as np
    >>> import likewise as lw
    >>> image = np.random.default_rng(0).integers(0, 255, (48, 64, 3), np.uint8)
    >>> pair = lw.pixels.FlowPair(image, image, "still", homography=np.eye(3))
    >>> pair.load(24).flow
    Flow(24 × 32, 0.00 px in the mean)
    """

    a: Any
    b: Any
    name: str = ""
    group: str = ""
    flow: Any = None
    occluded: Any = None
    homography: Any = None
    points: Points | Callable[[], Points] | None = None
    F: Any = None
    Ka: Any = None
    Kb: Any = None
    R: Any = None
    t: Any = None
    seen_through: Any = None

    def __post_init__(self) -> None:
        if self.seen_through is not None and self.truths != ("homography",):
            raise InputError(f"seen_through: expected a pair of which the homography is known, alone, got {self!r}")

    @property
    def truths(self) -> tuple[str, ...]:
        """What is known of the pair: any of flow, homography, points, F, pose."""
        known = [n for n in ("flow", "homography", "points", "F") if getattr(self, n) is not None]
        return (*known, "pose") if self.R is not None and self.t is not None else tuple(known)

    def load(self, size: int | None = None, *, side: Side = "shortest") -> Sample:
        """Both images with their shortest (or longest) side at most `size`, and what is true of them there.

        Each is made smaller by its own factor, and never enlarged; None leaves them as they are.
        """
        _check(size, side)
        first, second = inputs.image(self.a, where="a").tensor, inputs.image(self.b, where="b").tensor
        G = None if self.seen_through is None else self._drawing(_size_of(second))
        drawn = second if G is None else _through(second, G)
        a, b = _sized(first, size, side), _sized(drawn, size, side)
        return _sample(self, a, b, G, Sizes(_size_of(first), _size_of(a), _size_of(second), _size_of(b)))

    def truth(self, size: int | None = None, *, side: Side = "shortest") -> Flow | None:
        """The dense flow a→b at this size, or None where only points or cameras are known."""
        return self.load(size, side=side).flow

    def _drawing(self, size: Size) -> Floats:
        given = self.seen_through(size) if callable(self.seen_through) else self.seen_through
        return matrix(given, f"seen_through of {self.name}")

    def __repr__(self) -> str:
        return f"FlowPair({self.name or 'a, b'}: {', '.join(self.truths) or 'nothing'} known)"


@dataclass(frozen=True, eq=False, repr=False)
class Sample:
    """A pair as it is compared: tensors a and b (3, h, w) in [0, 1], and what is true of them at their sizes."""

    a: Float[Tensor, "3 h w"]
    b: Float[Tensor, "3 h2 w2"]
    name: str = ""
    group: str = ""
    flow: Flow | None = None
    occluded: Mask | None = None
    homography: Floats | None = None
    points: Points | None = None
    F: Floats | None = None
    Ka: Floats | None = None
    Kb: Floats | None = None
    R: Floats | None = None
    t: Floats | None = None

    def __repr__(self) -> str:
        a, b = ("{} × {}".format(*x.shape[-2:]) for x in (self.a, self.b))
        return f"Sample({self.name or 'a, b'}, {a} and {b})"


@dataclass(frozen=True, eq=False, repr=False)
class FlowDataset:
    """Pairs of images with something true of each; nothing is read before a pair is loaded.

    Parameters
    ----------
    items : sequence of FlowPair
        The pairs, one at least.
    name : str
        What results call the data set.

    Raises
    ------
    InputError
        Where there is no pair.

    Examples
    --------
    >>> import numpy as np
    >>> import likewise as lw
    >>> image = np.zeros((48, 64, 3), np.uint8)
    >>> lw.pixels.FlowDataset([lw.pixels.FlowPair(image, image, homography=np.eye(3))], "mine")
    FlowDataset(mine: 1 pairs in 1 groups)
    """

    items: tuple[FlowPair, ...]
    name: str = "pairs"

    def __post_init__(self) -> None:
        object.__setattr__(self, "items", tuple(self.items))
        if not self.items:
            raise InputError(f"items: {self.name} has no pair; expected one at least")

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> FlowPair:
        return self.items[index]

    def __iter__(self) -> Iterator[FlowPair]:
        return iter(self.items)

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups of its pairs, in the order in which they first appear."""
        return tuple(dict.fromkeys(pair.group for pair in self.items))

    def of_groups(self, *groups: str) -> FlowDataset:
        """The pairs of these groups."""
        unknown = [g for g in groups if g not in self.groups]
        if unknown or not groups:
            raise InputError(f"groups: expected some of {', '.join(self.groups)}, got {', '.join(unknown) or 'none'}")
        return FlowDataset(tuple(p for p in self.items if p.group in groups), self.name)

    def subset(self, indices: ArrayLike) -> FlowDataset:
        """These pairs in this order, by their places or by a mask (n,)."""
        chosen = np.arange(len(self))[np.asarray(indices)]
        return FlowDataset(tuple(self.items[i] for i in chosen), self.name)

    def __repr__(self) -> str:
        return f"FlowDataset({self.name}: {len(self):,} pairs in {len(self.groups)} groups)"


def rendered(pairs: Sequence[Any], name: str = "rendered") -> FlowDataset:
    """Pairs of the renderer as a data set; the flow counts where b shows the point (inside, not occluded)."""
    items = [
        FlowPair(p.a, p.b, f"{name} {i}", name, Flow(p.flow, p.visible), F=p.F, Ka=p.Ka, Kb=p.Kb, R=p.R, t=p.t)
        for i, p in enumerate(pairs)
    ]
    return FlowDataset(tuple(items), name)


# ------------------------------------------------------------------------------------------------------------- images


def fitted(size: Size, px: int | None, side: Side = "shortest") -> Size:
    """The size (h, w) of an image whose shortest (or longest) side is at most `px`; it is never enlarged."""
    scale = 1.0 if px is None else min(1.0, px / (min(size) if side == "shortest" else max(size)))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _check(size: object, side: object) -> None:
    if side not in ("shortest", "longest"):
        raise InputError(f"side: expected shortest or longest, got {side!r}")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 8):
        raise InputError(f"size: expected a whole number ≥ 8, the {side} side in pixels, got {size!r}")


def _size_of(image: Tensor) -> Size:
    return int(image.shape[-2]), int(image.shape[-1])


def _sized(image: Float[Tensor, "3 h w"], px: int | None, side: Side) -> Float[Tensor, "3 h2 w2"]:
    """The image made small, antialiased bicubic."""
    new = fitted(_size_of(image), px, side)
    if new == _size_of(image):
        return image
    small = functional.interpolate(image[None], new, mode="bicubic", align_corners=False, antialias=True)
    return small[0].clamp(0, 1)


def _through(image: Float[Tensor, "3 h w"], G: Floats) -> Float[Tensor, "3 h w"]:
    """The image drawn by G on a frame of its own size: drawn[G p] = image[p]; black where nothing falls."""
    h, w = image.shape[1:]
    back = transform(torch.from_numpy(np.linalg.inv(G)), grid(h, w, like=torch.empty(0, dtype=torch.float64)))
    return sample(image[None], back[None].float())[0]


# ---------------------------------------------------------------------------------------------------------------- truth


def _sample(pair: FlowPair, a: Tensor, b: Tensor, G: Floats | None, sizes: Sizes) -> Sample:
    """What is true of a pair once its images have these sizes."""
    name = pair.name
    H = None if pair.homography is None else matrix(pair.homography, f"homography of {name}")
    H = None if H is None else homography(H if G is None else G @ H, name, sizes)
    return Sample(
        a,
        b,
        name,
        pair.group,
        flow=_dense(pair, H, G, sizes),
        occluded=None if pair.occluded is None else hidden(pair.occluded, name, sizes),
        homography=H,
        points=None if pair.points is None else sparse(pair.points, name, sizes),
        F=None if pair.F is None else fundamental(pair.F, name, sizes),
        Ka=None if pair.Ka is None else camera(pair.Ka, f"Ka of {name}", sizes.a_old, sizes.a),
        Kb=None if pair.Kb is None else camera(pair.Kb, f"Kb of {name}", sizes.b_old, sizes.b),
        R=None if pair.R is None else matrix(pair.R, f"R of {name}"),
        t=None if pair.t is None else plain(pair.t).astype(np.float64).reshape(3),
    )


def _dense(pair: FlowPair, H: Floats | None, G: Floats | None, sizes: Sizes) -> Flow | None:
    if pair.flow is not None:
        return dense(pair.flow, pair.name, sizes)
    if H is None:
        return None
    drawn = None if G is None else homography(G, pair.name, Sizes(sizes.b_old, sizes.b, sizes.b_old, sizes.b))
    return homography_truth(H, sizes.a, sizes.b, seen_through=drawn)
