"""What the level reads: pairs of pictures with what is true of them, loaded when they are asked for.

A pair can be loaded at any size; what is true of it is brought along by the half-pixel rule: a picture resized by s
moves the point p to (p + ½) s − ½.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from likewise.errors import InputError
from likewise.pixels import truths
from likewise.pixels.pictures import Picture, picture
from likewise.pixels.truths import Floats, Mask, Points, Size, Sizes
from likewise.types import Flow

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

Side: TypeAlias = Literal["shortest", "longest"]


# ---------------------------------------------------------------------------------------------------------------- pairs


@dataclass(frozen=True, eq=False, repr=False)
class FlowPair:
    """Two pictures and what is known to be true of them; files are read by `load`, not before.

    flow: a Flow, vectors (h, w, 2), or a flow file, a→b; occluded: the pixels (h, w) of a that b does not show, or a
    picture that is not black there; homography: (3, 3), a→b; points: matching points (n, 2) of a and of b, or a
    function that gives them; F: (3, 3); Ka, Kb (3, 3), R (3, 3), t (3,): the cameras, X_b = R X_a + t.
    `seen_through` is a homography G, or a function of b's size (h, w) that gives it: the picture b is drawn by it, and
    the pair's homography, which it needs, becomes G H.
    """

    a: Picture
    b: Picture
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
        """Both pictures with their shortest (or longest) side at most `size`, and what is true of them there.

        Each is made smaller by its own factor, and never enlarged; None leaves them as they are.
        """
        _check(size, side)
        first, second = picture(self.a, where="a"), picture(self.b, where="b")
        G = None if self.seen_through is None else self._drawing(_size_of(second))
        drawn = second if G is None else _through(second, G)
        a, b = _sized(first, size, side), _sized(drawn, size, side)
        return _sample(self, a, b, G, Sizes(_size_of(first), _size_of(a), _size_of(second), _size_of(b)))

    def truth(self, size: int | None = None, *, side: Side = "shortest") -> Flow | None:
        """The dense flow a→b at this size, or None where only points or cameras are known."""
        return self.load(size, side=side).flow

    def _drawing(self, size: Size) -> Floats:
        given = self.seen_through(size) if callable(self.seen_through) else self.seen_through
        return truths.matrix(given, f"seen_through of {self.name}")

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
    """Pairs of pictures with something true of each; nothing is read before a pair is loaded."""

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


# ------------------------------------------------------------------------------------------------------------- pictures


def fitted(size: Size, px: int | None, side: Side = "shortest") -> Size:
    """The size (h, w) of a picture whose shortest (or longest) side is at most `px`; it is never enlarged."""
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
    """The picture made small, antialiased bicubic."""
    from torch.nn import functional

    new = fitted(_size_of(image), px, side)
    if new == _size_of(image):
        return image
    small = functional.interpolate(image[None], new, mode="bicubic", align_corners=False, antialias=True)
    return small[0].clamp(0, 1)


def _through(image: Float[Tensor, "3 h w"], G: Floats) -> Float[Tensor, "3 h w"]:
    """The picture drawn by G on a frame of its own size: drawn[G p] = picture[p]; black where nothing falls."""
    import torch

    from likewise.pixels.geometry import transform
    from likewise.pixels.resampling import grid, sample

    h, w = image.shape[1:]
    back = transform(torch.from_numpy(np.linalg.inv(G)), grid(h, w, like=torch.empty(0, dtype=torch.float64)))
    return sample(image[None], back[None].float())[0]


# ---------------------------------------------------------------------------------------------------------------- truth


def _sample(pair: FlowPair, a: Tensor, b: Tensor, G: Floats | None, sizes: Sizes) -> Sample:
    """What is true of a pair once its pictures have these sizes."""
    name = pair.name
    H = None if pair.homography is None else truths.matrix(pair.homography, f"homography of {name}")
    H = None if H is None else truths.homography(H if G is None else G @ H, name, sizes)
    return Sample(
        a,
        b,
        name,
        pair.group,
        flow=_dense(pair, H, G, sizes),
        occluded=None if pair.occluded is None else truths.hidden(pair.occluded, name, sizes),
        homography=H,
        points=None if pair.points is None else truths.sparse(pair.points, name, sizes),
        F=None if pair.F is None else truths.fundamental(pair.F, name, sizes),
        Ka=None if pair.Ka is None else truths.camera(pair.Ka, f"Ka of {name}", sizes.a_old, sizes.a),
        Kb=None if pair.Kb is None else truths.camera(pair.Kb, f"Kb of {name}", sizes.b_old, sizes.b),
        R=None if pair.R is None else truths.matrix(pair.R, f"R of {name}"),
        t=None if pair.t is None else truths.plain(pair.t).astype(np.float64).reshape(3),
    )


def _dense(pair: FlowPair, H: Floats | None, G: Floats | None, sizes: Sizes) -> Flow | None:
    if pair.flow is not None:
        return truths.dense(pair.flow, pair.name, sizes)
    if H is None:
        return None
    drawn = None if G is None else truths.homography(G, pair.name, Sizes(sizes.b_old, sizes.b, sizes.b_old, sizes.b))
    return truths.homography_truth(H, sizes.a, sizes.b, seen_through=drawn)
