"""What the level reads: pairs of images with what is true of them, loaded when they are asked for, and bent photos.

A pair can be loaded at any size; what is true of it is brought along by the half-pixel rule: an image resized by s
moves the point p to (p + ½) s − ½. Bent photos are pairs made of single ones, each image under a light of its own: the
B, B′ = T(B) of LIFE's third loss. Both are cut from a larger piece of the photo, so that what the bend brings into the
frame is real.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import cv2
import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn import functional

from likewise import inputs, media
from likewise.errors import InputError, ShapeError
from likewise.pixels.geometry import (
    Side,
    Size,
    Warp,
    fitted,
    grid,
    inside,
    random_warp,
    rescale_fundamental,
    rescale_homography,
    rescale_intrinsics,
    resize,
    resize_points,
    sample,
    shrink,
    size_of,
    transform,
)
from likewise.pixels.metrics import at, matrix, plain, project
from likewise.types import Flow, read_flow

Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
Points: TypeAlias = tuple[Floats, Floats]

JUMP = 3.0
"""Neighbouring vectors that differ by more than this many pixels belong to two surfaces: none is made between them."""
MARGIN = 0.35
"""The piece of a photo that is bent is larger than the frame by this share of it on every side."""
LUMA = (0.299, 0.587, 0.114)
DOUBLE = torch.zeros((), dtype=torch.float64)


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
    points: Any = None
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

    def load(self, size: int | None = None, *, side: Side = "shortest") -> FlowPair:
        """The pair with both images as tensors, their shortest (or longest) side at most `size`, and its truth there.

        Each is made smaller by its own factor, and never enlarged; None leaves them as they are. The flow is also made
        of a homography.
        """
        _check(size, side)
        first, second = inputs.image(self.a, where="a").tensor, inputs.image(self.b, where="b").tensor
        given = self.seen_through(size_of(second)) if callable(self.seen_through) else self.seen_through
        G = None if given is None else matrix(f"seen_through of {self.name}", given)
        a, b = _sized(first, size, side), _sized(second if G is None else _through(second, G), size, side)
        sizes = size_of(first), size_of(a), size_of(second), size_of(b)
        H = self.homography if G is None else G @ matrix(f"homography of {self.name}", self.homography)
        H = self._rescaled("homography", H, rescale_homography, *sizes)
        F = self._rescaled("F", self.F, rescale_fundamental, *sizes)
        drawn = self._rescaled("seen_through", G, rescale_homography, *sizes[2:], *sizes[2:])
        exact = None if H is None else homography_truth(H, sizes[1], sizes[3], seen_through=drawn)
        return replace(
            self,
            a=a,
            b=b,
            flow=exact if self.flow is None else self._dense(*sizes),
            occluded=None if self.occluded is None else self._hidden(*sizes[:2]),
            homography=H,
            points=None if self.points is None else self._sparse(*sizes),
            F=None if F is None else F / np.linalg.norm(F),
            Ka=self._rescaled("Ka", self.Ka, rescale_intrinsics, *sizes[:2]),
            Kb=self._rescaled("Kb", self.Kb, rescale_intrinsics, *sizes[2:]),
            R=None if self.R is None else matrix(f"R of {self.name}", self.R),
            t=None if self.t is None else plain(self.t).astype(np.float64).reshape(3),
            seen_through=None,
        )

    def _rescaled(self, what: str, M: Any, change: Callable[..., Tensor], *sizes: Size) -> Floats | None:
        """A matrix between images of other sizes, as `change` brings it there."""
        return None if M is None else change(torch.from_numpy(matrix(f"{what} of {self.name}", M)), *sizes).numpy()

    def _dense(self, a_old: Size, a: Size, b_old: Size, b: Size) -> Flow:
        given = read_flow(self.flow) if isinstance(self.flow, str | os.PathLike) else self.flow
        truth = given if isinstance(given, Flow) else Flow(given)
        if (truth.height, truth.width) != a_old:
            words = "{} × {}, a vector a pixel of a".format(*a_old)
            raise ShapeError(f"flow of {self.name}: expected {words}, got {truth.height} × {truth.width}")
        return resized_flow(truth, a, b_old, b)

    def _hidden(self, old: Size, new: Size) -> Mask:
        """The pixels of a that b does not show, each as the one that its centre lies in."""
        path = isinstance(self.occluded, str | os.PathLike)
        mask = media.read_array(self.occluded).max(axis=2) > 0 if path else plain(self.occluded).astype(bool)
        if mask.shape != old:
            words = "{} × {}".format(*old)
            raise ShapeError(f"occluded of {self.name}: expected {words}, as a has, got shape {mask.shape}")
        return np.asarray(mask[_nearest(resize_points(grid(*new, like=DOUBLE), new, old).numpy(), old)])

    def _sparse(self, a_old: Size, a: Size, b_old: Size, b: Size) -> Points:
        given = self.points() if callable(self.points) else self.points
        p, q = (torch.from_numpy(plain(x).astype(np.float64).reshape(-1, 2)) for x in given)
        if len(p) != len(q):
            raise ShapeError(f"points of {self.name}: expected as many in b as in a, got {len(p)} and {len(q)}")
        return resize_points(p, a_old, a).numpy(), resize_points(q, b_old, b).numpy()

    def __repr__(self) -> str:
        return f"FlowPair({self.name or 'a, b'}: {', '.join(self.truths) or 'nothing'} known)"


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

    def __repr__(self) -> str:
        return f"FlowDataset({self.name}: {len(self):,} pairs in {len(self.groups)} groups)"


def rendered(pairs: Sequence[Any], name: str = "rendered") -> FlowDataset:
    """Pairs of the renderer as a data set; the flow counts where b shows the point (inside, not occluded)."""
    items = [
        FlowPair(p.a, p.b, f"{name} {i}", name, Flow(p.flow, p.visible), F=p.F, Ka=p.Ka, Kb=p.Kb, R=p.R, t=p.t)
        for i, p in enumerate(pairs)
    ]
    return FlowDataset(tuple(items), name)


# ------------------------------------------------------------------------------------------------- what is true of them


def homography_truth(H: ArrayLike, a: Size, b: Size, *, seen_through: ArrayLike | None = None) -> Flow:
    """The flow H p − p on the (h, w) frame of a, known where it ends inside the frame of b and before the camera.

    Where b was drawn by a homography G (`seen_through`), G⁻¹ H p must also lie inside the image that was drawn.
    """
    start = grid(*a, like=DOUBLE).reshape(-1, 2).numpy()
    ends = project(H, start)
    known = inside(torch.from_numpy(ends), *b).numpy()
    if seen_through is not None:
        before = project(np.linalg.inv(np.asarray(seen_through)) @ np.asarray(H), start)
        known &= inside(torch.from_numpy(before), *b).numpy()
    vectors = np.where(known[:, None], ends - start, 0.0)
    return Flow(vectors.reshape(*a, 2), None if known.all() else known.reshape(a))


def resized_flow(flow: Flow, a: Size, b_old: Size, b: Size) -> Flow:
    """The flow between both images resized: a to size `a`, b from `b_old` to `b`.

    Between four known pixels whose vectors differ by at most 3 px it is bilinear; elsewhere (sparse truth, edges of
    things) it is the nearest pixel's, known where that is.
    """
    old = flow.height, flow.width
    if a == old and b == b_old:
        return flow
    new = grid(*a, like=DOUBLE)
    places = resize_points(new, a, old)
    vectors, known = _between(flow, places.numpy())
    moved = resize_points(places + torch.from_numpy(vectors), b_old, b) - new
    return Flow(np.where(known[..., None], moved.numpy(), 0.0), None if known.all() else known)


def _between(flow: Flow, places: Floats) -> tuple[Floats, Mask]:
    """Vectors at places (h, w, 2) between the pixels, and whether they are known."""
    h, w = flow.height, flow.width
    known = np.ones((h, w), dtype=bool) if flow.valid is None else flow.valid
    left, top = (np.floor(np.clip(places[..., k], 0, n - 1)).astype(int) for k, n in ((0, w), (1, h)))
    right, low = np.minimum(left + 1, w - 1), np.minimum(top + 1, h - 1)
    corners = ((top, left), (top, right), (low, left), (low, right))
    values = np.stack([flow.vectors[c] for c in corners])
    smooth = np.all([known[c] for c in corners], axis=0) & (np.ptp(values, axis=0) <= JUMP).all(axis=-1)
    mixed = at(flow, places.reshape(-1, 2)).reshape(places.shape)
    nearest = _nearest(places, (h, w))
    return np.where(smooth[..., None], mixed, flow.vectors[nearest]), np.asarray(smooth | known[nearest])


def _nearest(places: Floats, size: Size) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row and column of the pixel that a place lies in."""
    cells = np.floor(places + 0.5).astype(np.int64)
    return np.clip(cells[..., 1], 0, size[0] - 1), np.clip(cells[..., 0], 0, size[1] - 1)


def _check(size: object, side: object) -> None:
    if side not in ("shortest", "longest"):
        raise InputError(f"side: expected shortest or longest, got {side!r}")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 8):
        raise InputError(f"size: expected a whole number ≥ 8, the {side} side in pixels, got {size!r}")


def _sized(image: Float[Tensor, "3 h w"], px: int | None, side: Side) -> Float[Tensor, "3 h2 w2"]:
    """The image made small, antialiased bicubic."""
    return resize(image, fitted(size_of(image), px, side), mode="bicubic").clamp(0, 1)


def _through(image: Float[Tensor, "3 h w"], G: Floats) -> Float[Tensor, "3 h w"]:
    """The image drawn by G on a frame of its own size: drawn[G p] = image[p]; black where nothing falls."""
    back = transform(torch.from_numpy(np.linalg.inv(G)), grid(*size_of(image), like=DOUBLE))
    return sample(image[None], back[None].float())[0]


# ---------------------------------------------------------------------------------------------------------- bent photos


@dataclass(frozen=True)
class Bent:
    """Images B, B′ (n, 3, h, w) and the bend T between them."""

    b: Tensor
    bent: Tensor
    warp: Warp

    def to(self, device: str) -> Bent:
        """The images on another device."""
        return Bent(self.b.to(device), self.bent.to(device), self.warp)


class Photos:
    """Photos held in memory as 8 bits, `shortest` pixels on the shorter side."""

    def __init__(self, pictures: Sequence[UInt8[np.ndarray, "h w 3"]]) -> None:
        if not pictures:
            raise InputError("photos: expected at least one photo, got none")
        self.pictures = list(pictures)

    @classmethod
    def folder(cls, path: str | os.PathLike[str], *, shortest: int = 480) -> Photos:
        """Every photo of a folder whose shorter side has at least half of `shortest` pixels."""
        images = [shrink(media.read_array(p, side=shortest), shortest=shortest) for p in media.images(Path(path))]
        large = [x for x in images if min(x.shape[:2]) >= shortest // 2]
        if not large:
            raise InputError(f"photos: {path} holds no photo of {shortest // 2} px or more on its shorter side")
        return cls(large)

    def __len__(self) -> int:
        return len(self.pictures)

    def split(self, share: float, seed: int = 0) -> tuple[Photos, Photos]:
        """Photos to learn from, and a share that is set aside."""
        order = np.random.default_rng(seed).permutation(len(self))
        aside = max(1, round(share * len(self)))
        if aside >= len(self):
            raise InputError(f"photos: {len(self)} are too few to set some aside")
        return (Photos([self.pictures[i] for i in order[aside:]]), Photos([self.pictures[i] for i in order[:aside]]))

    def pieces(self, n: int, size: Size, rng: np.random.Generator) -> Float[Tensor, "n 3 h w"]:
        """Random pieces of random photos, half of them mirrored."""
        chosen = rng.integers(len(self), size=n)
        return torch.from_numpy(np.stack([_piece(self.pictures[i], size, rng) for i in chosen])).movedim(-1, 1) / 255.0

    def bent(
        self,
        n: int,
        size: Size,
        seed: Sequence[int],
        *,
        strength: float = 1.0,
        light: float = 1.0,
        night: float = 0.25,
        part: slice = slice(None),
    ) -> Bent:
        """n pairs, or a part of them; `strength` scales the bends, `light` the change of lighting.

        A pair is a function of the seed and of its number among the n, whatever the part.
        """
        rng = np.random.default_rng(list(seed))
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        border = (round(MARGIN * size[0]), round(MARGIN * size[1]))
        pieces = self.pieces(n, (size[0] + 2 * border[0], size[1] + 2 * border[1]), rng)
        made = bend(pieces, generator, border=border, strength=strength, light=light, night=night)
        return Bent(made.b[part], made.bent[part], made.warp.part(part))


def bend(
    images: Float[Tensor, "n 3 h w"],
    generator: torch.Generator,
    *,
    border: Size = (0, 0),
    strength: float = 1.0,
    light: float = 1.0,
    night: float = 0.25,
) -> Bent:
    """Images without their border as B, and B′ = T(B) for random T, which brings in what the border has."""
    n, h, w = len(images), images.shape[-2] - 2 * border[0], images.shape[-1] - 2 * border[1]
    warp = random_warp(
        *(n, h, w),
        generator=generator,
        rotation=30.0 * strength,
        scale=1.4**strength,
        shear=0.15 * strength,
        shift=0.1 * strength,
        strength=0.15 * strength,
    )
    frame = images[:, :, border[0] : border[0] + h, border[1] : border[1] + w]
    points = warp.backward(grid(h, w)[None]) + torch.tensor([border[1], border[0]])
    bent = sample(images, points, padding="border")
    one, two = (relit(x, generator, strength=light, night=night) for x in (frame, bent))
    return Bent(one, two, warp)


def _piece(picture: UInt8[np.ndarray, "h w 3"], size: Size, rng: np.random.Generator) -> UInt8[np.ndarray, "h2 w2 3"]:
    """A piece with the frame's proportions, between the frame's own size and all that the photo gives."""
    whole = min(picture.shape[0] / size[0], picture.shape[1] / size[1])
    share = whole * np.exp(rng.uniform(np.log(min(1.0, 1.0 / max(whole, 1.0))), 0.0))
    h, w = (min(round(share * n), m) for n, m in zip(size, picture.shape, strict=False))
    top, left = rng.integers(picture.shape[0] - h + 1), rng.integers(picture.shape[1] - w + 1)
    piece = cv2.resize(picture[top : top + h, left : left + w], size[::-1], interpolation=cv2.INTER_AREA)
    return np.ascontiguousarray(piece[:, ::-1]) if rng.random() < 0.5 else piece


# ---------------------------------------------------------------------------------------------------------------- light


def relit(
    x: Float[Tensor, "b 3 h w"], generator: torch.Generator, *, strength: float = 1.0, night: float = 0.25
) -> Float[Tensor, "b 3 h w"]:
    """Images, each under a light of its own; `night` is the share that falls dark; strength 0 changes none."""
    if strength <= 0:
        return x
    y = _toned(x, generator, strength)
    y = y * _field(x, generator, 0.7 * strength).exp()
    y = torch.where(_chosen(x, generator, night), _dark(y, generator), y)
    y = _blurred(y, generator, 0.3 * strength)
    sigma = 0.03 * strength * _uniform(x, generator, 0, 1) ** 2
    y = y + sigma * torch.randn(y.shape, generator=generator)
    return y.clamp(0, 1)


def _uniform(x: Tensor, generator: torch.Generator, low: float, high: float, channels: int = 1) -> Tensor:
    return low + (high - low) * torch.rand(len(x), channels, 1, 1, generator=generator)


def _chosen(x: Tensor, generator: torch.Generator, share: float) -> Tensor:
    return _uniform(x, generator, 0, 1) < share


def _toned(x: Tensor, g: torch.Generator, strength: float) -> Tensor:
    """Gamma, colour cast, contrast and saturation."""
    y = x.clamp_min(1e-4) ** (strength * _uniform(x, g, -0.8, 0.8)).exp()
    y = y * (strength * _uniform(x, g, -0.5, 0.5)).exp() * (strength * _uniform(x, g, -0.3, 0.3, 3)).exp()
    mean = y.mean((1, 2, 3), keepdim=True)
    y = mean + (y - mean) * (strength * _uniform(x, g, -0.5, 0.3)).exp()
    grey = (y * torch.tensor(LUMA).view(1, 3, 1, 1)).sum(1, keepdim=True)
    return torch.lerp(y, grey, strength * _uniform(x, g, -0.3, 1.0)).clamp(0, 1.5)


def _field(x: Tensor, g: torch.Generator, strength: float) -> Tensor:
    """A smooth field around 0, one in three with an edge in it as of a shadow; (b, 1, h, w)."""
    h, w = size_of(x)
    total = torch.zeros(len(x), 1, h, w)
    for cells in (2, 5):
        coarse = torch.randn(len(x), 1, cells, cells, generator=g) * _uniform(x, g, 0, 0.5)
        total = total + functional.interpolate(coarse, (h, w), mode="bicubic", align_corners=False)
    angle = _uniform(x, g, 0, 6.2832)
    rows = torch.linspace(-1, 1, h).view(1, 1, h, 1)
    columns = torch.linspace(-1, 1, w).view(1, 1, 1, w)
    side = angle.cos() * columns + angle.sin() * rows - _uniform(x, g, -0.7, 0.7)
    bend = 0.3 * torch.sin(4 * (angle.cos() * rows - angle.sin() * columns) + 3 * angle)
    shadow = torch.sigmoid((side + bend) * _uniform(x, g, 5, 60)) * _uniform(x, g, -1.4, 0)
    return strength * (total + torch.where(_chosen(x, g, 0.33), shadow, torch.zeros_like(shadow)))


def _dark(x: Tensor, g: torch.Generator) -> Tensor:
    """Night: little light, a blue or sodium cast, a few lamps that light what is near them, the sensor's gain."""
    h, w = size_of(x)
    ambient = (_uniform(x, g, -2.3, -0.7)).exp()
    rows = torch.linspace(-1, 1, h).view(1, 1, h, 1)
    columns = torch.linspace(-1, 1, w).view(1, 1, 1, w)
    warm = torch.tensor([1.0, 0.75, 0.4]).view(1, 3, 1, 1)
    cool = torch.tensor([0.7, 0.85, 1.1]).view(1, 3, 1, 1)
    light = ambient * torch.lerp(cool, torch.ones_like(cool), _uniform(x, g, 0, 1))
    glow = torch.zeros(len(x), 3, h, w)
    for _ in range(3):
        cx, cy, spread = _uniform(x, g, -1.1, 1.1), _uniform(x, g, -1.1, 1.1), _uniform(x, g, 0.15, 0.8)
        fall = 1 / (1 + ((columns - cx) ** 2 + (rows - cy) ** 2) / spread**2)
        on = _chosen(x, g, 0.6).float() * _uniform(x, g, 0.1, 0.9)
        light = light + on * fall**2 * torch.lerp(torch.ones_like(warm), warm, _uniform(x, g, 0, 1))
        glow = glow + 0.5 * on * (fall**12) * warm
    y = x * light + _chosen(x, g, 0.3).float() * glow
    gain = (_uniform(x, g, 0.25, 0.55) / y.mean((1, 2, 3), keepdim=True).clamp_min(0.02)).clamp(0.6, 4)
    y = y * torch.where(_chosen(x, g, 0.5), gain, torch.ones_like(gain))
    return y + 0.03 * _uniform(x, g, 0, 1) * torch.randn(y.shape, generator=g)


def _blurred(x: Tensor, g: torch.Generator, share: float) -> Tensor:
    soft = functional.avg_pool2d(functional.pad(x, (1, 1, 1, 1), mode="replicate"), 3, 1)
    return torch.where(_chosen(x, g, share), soft, x)
