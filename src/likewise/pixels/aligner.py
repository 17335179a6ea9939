"""The aligner: two photos in, where every pixel went, both ways, and how sure that is.

Matches of the two give a homography and the points that agree with it or with a fundamental matrix. b is warped to a by
the homography, and the network refines what is left, reading correlations in a window around it; at twice the size once
more. Only where there are no such matches are all pairs of cells compared.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from likewise import inputs
from likewise.errors import InputError
from likewise.pixels import matching, robust
from likewise.pixels.geometry import (
    Size,
    carried,
    compose,
    follow,
    grid,
    homography_flow,
    inside,
    rescale_homography,
    resize,
    resize_flow,
    resize_points,
    sample,
    scaling,
    size_of,
    transform,
    warp,
)
from likewise.pixels.life import ALPHA, BETA, cycle
from likewise.pixels.life.network import CENTRE, MULTIPLE, STRIDE, Network, Start, at_pixels, smoothed
from likewise.pixels.raft.correlation import Correlation
from likewise.store.checkpoint import load
from likewise.types import Image

SMALLEST = 64
"""Pixels that an image must have on its shorter side."""
WIDEST = 1024
"""The widest network that is made of a file; the shipped one is 64 wide."""
CONSISTENT = 0.9
"""The cycle consistency from which on a seed is not compared with all pairs of cells."""
NOISE = 0.2
"""Cells: moves of the recurrence away from a first flow that was nearly right are shrunk by this much noise."""
FLAT = (3.0, 0.8)
"""Matches are of one plane where this share of them is within so many pixels of its homography."""
BELIEVED = (0.1, math.inf)
"""Cells by which a flow may miss its start after a round trip for its moves to be believed: where the matches are of
one plane, which then says more than the network of what lies far from them; and where they show depth."""
RIM = 0.5
"""Pixels beyond the centres of b's outermost pixels that still belong to it."""
RETURNED = 3.0
"""Pixels, at the working resolution, within which a pixel that went there and back has returned."""
WORSE = 2.0
"""How much less alike a and b may look under one homography than under the flow, which was fitted to their looks."""
POLISHED = 3.0
"""Corrections of more pixels than this are not believed."""
CUES = 6
CALIBRATION = ((-1.0, -0.3, 2.5, -0.7, -2.0, 1.5), (-0.5, -1.5, 4.0, -0.6, -0.3, 2.0))
"""Weights of the confidence's cues, of a network that was not calibrated, where the matches are of one plane and where
they are not: 1, log(1 + d) of the round-trip error d, height and distance of the correlation's peak, log of how far the
seed's homography may be off there, log of the tolerance."""
WEIGHTS = Path(__file__).parents[1] / "weights" / "pixels-aligner.safetensors"


@dataclass(frozen=True)
class Aligned:
    """Both flows between images of sizes (h, w) and (h2, w2), without a batch, and what was done to get them.

    Where a homography stands for the flow, `free` is the flow it was fitted to: a homography and its inverse return
    all pixels, which says nothing of how well it fits. `sure` (h, w) is the probability that a pixel of a is within
    3 px of its place, of b's own or, where b was made smaller, at the working size; without it, it is guessed from the
    round trip alone.
    """

    ab: Float[Tensor, "h w 2"]
    ba: Float[Tensor, "h2 w2 2"]
    steps: tuple[str, ...] = ()
    free: Aligned | None = None
    sure: Float[Tensor, "h w"] | None = None

    def errors(self) -> tuple[Float[Tensor, "h w"], Bool[Tensor, "h w"]]:
        """How far each pixel of a misses its place after going to b and back, and whether it was inside b.

        Under a homography: that of the flow it was fitted to, or how far the two lie apart, whichever is more.
        """
        kept = inside(follow(self.ab), *size_of(self.ba[..., 0]), margin=RIM)
        if self.free is None:
            return cycle(self.ab[None], self.ba[None])[0][0], kept
        apart = torch.linalg.vector_norm(self.ab - self.free.ab, dim=-1)
        return torch.maximum(self.free.errors()[0], apart), kept

    def cycle_consistency(self) -> float:
        """The share of a's pixels that return within RETURNED pixels, or 5 % of their way."""
        d, kept = self.errors()
        return float((kept & (d <= self._limit())).float().mean())

    def confidences(self) -> tuple[Float[Tensor, "h w"], Float[Tensor, "h2 w2"]]:
        """The probability that a pixel's flow is right to 3 px, of a's pixels and of b's; 0 outside the other image.

        A pixel of b is as sure as the pixel of a that it lands on, where it returns. Of flows that are not the
        aligner's own, exp(−(d / max(3, 5 % of the way))²) of the round-trip error d.
        """
        other = self.swapped()
        if self.sure is None:
            return self._from_round_trip(), other._from_round_trip()
        back = sample(self.sure[None, None], follow(self.ba)[None], padding="zeros")[0, 0]
        d, kept = other.errors()
        return self.sure, torch.where(kept & (d <= 2 * other._limit()), back, torch.zeros_like(back))

    def _limit(self) -> Float[Tensor, "h w"]:
        length: Tensor = torch.linalg.vector_norm(self.ab, dim=-1)
        return (BETA * length).clamp_min(ALPHA)

    def _from_round_trip(self) -> Float[Tensor, "h w"]:
        d, kept = self.errors()
        return torch.where(kept, torch.exp(-((d / self._limit()) ** 2)), torch.zeros_like(d))

    def swapped(self) -> Aligned:
        """The same from b's side."""
        free = None if self.free is None else self.free.swapped()
        return replace(self, ab=self.ba, ba=self.ab, free=free, sure=None)


@dataclass(frozen=True)
class AlignerOptions:
    """How an aligner works.

    Parameters
    ----------
    work : int
        Longest side, in pixels, at which images are aligned; the flow is brought to their own size afterwards.
    least : int
        Shortest side up to which smaller images are enlarged first, at most three times.
    iters : int
        Steps of the recurrence.
    matches : bool
        Begin with the geometry of sparse matches; otherwise with all pairs of cells.
    fine : bool
        Refine once more at twice the size.
    polish : bool
        A last correction of fractions of a pixel on the grey of a and of b warped to it.
    snap : float
        The share of inliers from which on a single homography stands for the whole flow; above 1: never.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.pixels.AlignerOptions(work=320, fine=False).iters
    6
    """

    work: int = 480
    least: int = 288
    iters: int = 6
    matches: bool = True
    fine: bool = True
    polish: bool = True
    snap: float = 0.85


@dataclass(frozen=True)
class Seed:
    """A homography a → b to begin with, and points (n, 2) of a and b that are known to belong together."""

    H: Float[Tensor, "3 3"]
    a: Float[Tensor, "n 2"]
    b: Float[Tensor, "n 2"]
    steps: tuple[str, ...] = ()

    @property
    def flat(self) -> bool:
        """Whether the homography explains nearly all points: a plane, or a camera that only turned."""
        off = torch.linalg.vector_norm(transform(self.H, self.a) - self.b, dim=-1)
        return len(off) > 0 and float((off <= FLAT[0]).float().mean()) >= FLAT[1]

    @property
    def limit(self) -> float:
        """Cells by which a flow from this seed may miss its start after a round trip."""
        return BELIEVED[0] if self.flat else BELIEVED[1]


class Aligner:
    """Flow between two photos under any light.

    Parameters
    ----------
    network : Network
        Any that `likewise.pixels.train` makes.
    options : AlignerOptions, optional
        How it works.
    name : str
        What results call it.
    recipe, figures : dict, optional
        How the network was trained, and how well that went.
    calibration : array (2, 6)
        Weights of the cues that confidence is made of, of one plane and in depth.

    Examples
    --------
    >>> import likewise as lw
    >>> from likewise import samples
    >>> a, b = samples.pair()
    >>> quick = lw.pixels.Aligner(lw.pixels.default().network, lw.pixels.AlignerOptions(fine=False, polish=False))
    >>> quick.flow(a, b).shape[-1]
    2
    """

    def __init__(
        self,
        network: Network,
        options: AlignerOptions | None = None,
        *,
        name: str = "aligner",
        recipe: dict[str, Any] | None = None,
        figures: dict[str, Any] | None = None,
        calibration: Sequence[Sequence[float]] = CALIBRATION,
    ) -> None:
        self.network = network.eval().requires_grad_(False)
        self.options = options or AlignerOptions()
        self.name, self.recipe, self.figures = name, recipe or {}, figures or {}
        self.calibration = torch.as_tensor(calibration, dtype=torch.float32)
        if self.calibration.shape != (2, CUES):
            raise InputError(f"calibration: expected weights (2, {CUES}), got shape {tuple(self.calibration.shape)}")

    def __repr__(self) -> str:
        return f"Aligner({self.name})"

    @property
    def work(self) -> int:
        """The longest side at which images are aligned."""
        return self.options.work

    def flow(self, a: Any, b: Any, iters: int | None = None) -> Float[Tensor, "h w 2"]:
        """Where each pixel of a goes in b, in pixels, x then y."""
        return self.align(a, b, iters).ab

    def both(self, a: Any, b: Any, iters: int | None = None) -> tuple[Tensor, Tensor]:
        """The flows a→b (h, w, 2) and b→a (h2, w2, 2)."""
        aligned = self.align(a, b, iters)
        return aligned.ab, aligned.ba

    def align(self, a: Any, b: Any, iters: int | None = None) -> Aligned:
        """Both flows and the steps that led to them."""
        one, two = inputs.image(a, where="a"), inputs.image(b, where="b")
        sizes = size_of(check_image(one, "a")), size_of(check_image(two, "b"))
        o = self.options if iters is None else replace(self.options, iters=iters)
        aligned, seen = align(self.network, one, two, o)
        sure = torch.zeros_like(aligned.ab[..., 0])
        if seen is not None:
            weights = self.calibration[0 if seen.flat else 1]
            sure = torch.where(aligned.errors()[1], torch.sigmoid(seen.values @ weights), sure)
        return resize_flows(replace(aligned, sure=sure), *sizes)

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Weights in half precision, and the header."""
        state = {k: v.half() if v.is_floating_point() else v for k, v in self.network.state_dict().items()}
        arrays = {k: v.cpu().numpy() for k, v in state.items()}  # numbers of batches are beyond half's 65,504
        header = {
            "hidden": self.network.hidden, "name": self.name,
            "options": vars(self.options), "recipe": self.recipe, "figures": self.figures,
            "calibration": [[round(float(x), 4) for x in row] for row in self.calibration],
        }  # fmt: skip
        return arrays, header

    @classmethod
    def from_state(cls, arrays: dict[str, Any], header: dict[str, Any]) -> Aligner:
        """The aligner that `state` described."""
        hidden = int(header["hidden"])
        if not 1 <= hidden <= WIDEST:  # a header may name any size, and memory is taken for it
            raise InputError(f"hidden: expected 1 to {WIDEST}, got {hidden}")
        network = Network(hidden)
        network.load_state_dict({k: torch.from_numpy(np.asarray(v, dtype=np.float32)) for k, v in arrays.items()})
        given = {k: header[k] for k in ("name", "recipe", "figures", "calibration")}
        return cls(network, AlignerOptions(**header["options"]), **given)


@functools.cache
def default() -> Aligner:
    """The network that comes with the package; its card, weights/pixels-aligner.md, says how it was trained.

    Returns
    -------
    Aligner
        The same object at every call.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.pixels.default()
    Aligner(likewise aligner)
    """
    model: Aligner = load(WEIGHTS)
    return model


@dataclass(frozen=True)
class Cues:
    """What the confidence of each pixel of a is made of (see CALIBRATION), and whether the matches are of one plane."""

    values: Float[Tensor, "h w 6"]
    flat: bool


@torch.no_grad()
def align(network: Network, a: Any, b: Any, options: AlignerOptions) -> tuple[Aligned, Cues | None]:
    """The flows of two images at the working size, and the cues of confidence; None where no geometry beats chance.

    Seed, refinement there and at twice the size, polish, one plane where it fits: in this order because each step needs
    flows that the one before made nearly right.
    """
    o, photos = options, (inputs.image(a, where="a"), inputs.image(b, where="b"))
    one, two = (working_image(photo.tensor, options) for photo in photos)
    tolerance = RETURNED * max(1.0, max(size_of(two)) / max(photos[1].size))  # pixels of b itself, if it was enlarged
    seed = match_seed(*photos, one, two) if o.matches else None
    if seed is None:
        work = from_all_pairs(network, one, two, o.iters)
        seed = flow_seed(work.aligned) if o.matches else None
        if seed is None:
            return work.aligned, None if o.matches else cues(work, tolerance)
    work = from_seed(network, one, two, seed, o.iters)
    if o.matches and not seed.flat and work.aligned.cycle_consistency() < CONSISTENT:
        work = max(work, from_all_pairs(network, one, two, o.iters), key=lambda w: w.aligned.cycle_consistency())
    if o.fine:
        work = refine_twice_as_large(network, photos[0].tensor, photos[1].tensor, work, max(1, o.iters // 2))
    if o.polish:
        work = replace(work, aligned=polish(work.aligned, one, two))
    if o.snap <= 1:
        work = replace(work, aligned=snap_to_homography(work.aligned, one, two, share=o.snap))
    return work.aligned, cues(work, tolerance)


@dataclass(frozen=True)
class Work:
    """Flows at the working size: under which homography, from which seed, and what is left between a and b warped by it
    (2, h, w, 2), there and back, with height and distance of the correlation's peaks (2, h8, w8)."""

    aligned: Aligned
    seed: Seed
    left: Float[Tensor, "2 h w 2"]
    peaks: Float[Tensor, "2 h8 w8"]


def from_seed(network: Network, a: Tensor, b: Tensor, seed: Seed, iters: int) -> Work:
    """The flows refined from what a seed gives."""
    left, peaks = refine(network, a, b, seed.H, lambda fa, fb: first_flows(seed, size_of(a)), iters, NOISE, seed.limit)
    return Work(compose_flows(seed, left, size_of(b)), seed, left, peaks)


def from_all_pairs(network: Network, a: Tensor, b: Tensor, iters: int) -> Work:
    """The flows refined from all pairs of cells; nothing is known but the sizes."""
    none = torch.zeros(0, 2)
    seed = Seed(scaling(size_of(a), size_of(b), like=a), none, none, ("all pairs of cells",))

    def starts(fa: Tensor, fb: Tensor) -> Tensor:
        return torch.cat([start.flow for start in network.starts(fa, fb)])

    left, peaks = refine(network, a, b, seed.H, starts, iters)
    return Work(compose_flows(seed, left, size_of(b)), seed, left, peaks)


def refine_twice_as_large(network: Network, a: Tensor, b: Tensor, work: Work, iters: int) -> Work:
    """Refined once more with both images twice as large, where a cell covers a quarter."""
    sizes = size_of(work.aligned.ab[..., 0]), size_of(work.aligned.ba[..., 0])
    one, two = (resize(x, (2 * h, 2 * w)) for x, (h, w) in zip((a, b), sizes, strict=True))
    H = rescale_homography(work.seed.H, sizes[0], size_of(one), sizes[1], size_of(two))
    starts = in_cells(resize_flow(work.left, size_of(one)))
    left, peaks = refine(network, one, two, H, lambda fa, fb: starts, iters, NOISE, work.seed.limit)
    left = resize_flow(left, sizes[0])
    return Work(compose_flows(work.seed, left, sizes[1]), work.seed, left, peaks)


def cues(work: Work, tolerance: float) -> Cues:
    """The cues of flows of which errors up to `tolerance`, in pixels of the working size, count as right."""
    d, seed = work.aligned.errors()[0], work.seed
    ones = torch.ones_like(d)
    off = torch.log(0.1 + plane_errors(seed, size_of(d))) if len(seed.a) >= 4 else torch.zeros(1, 1)
    height, reach, unsure = (_at_pixels(x, size_of(d)) for x in (*work.peaks, off))
    return Cues(torch.stack([ones, torch.log1p(d), height, reach, unsure, math.log(tolerance) * ones], -1), seed.flat)


def plane_errors(seed: Seed, size: Size) -> Float[Tensor, "h8 w8"]:
    """Standard error, in pixels, of where the seed's homography puts each cell, by least squares of its inliers.

    To first order: σ² tr J (∑ JᵢᵀJᵢ)⁻¹ Jᵀ with the derivatives J by H's eight numbers, a from −1 to 1.
    Inliers of one square of 16 px err together and count once; σ² is that of their residuals, and ½² px more.
    """
    h, w = size
    middle, half = torch.tensor([w / 2, h / 2]), max(h, w) / 2
    off = (transform(seed.H, seed.a) - seed.b).double().square().sum(-1)
    near = off <= 4 * RETURNED**2
    a, off = (seed.a[near], off[near]) if int(near.sum()) >= 4 else (seed.a, off)
    _, square, count = torch.unique((a / 16).floor(), dim=0, return_inverse=True, return_counts=True)
    weight = 1 / count[square].double()
    variance = (weight @ off) / (2 * weight.sum()) + 0.25
    J = _derivatives((a - middle) / half)
    normal = torch.einsum("n,nij,nik->jk", weight, J, J) + 1e-4 * torch.eye(8, dtype=torch.float64)
    J = _derivatives((grid(h // STRIDE, w // STRIDE) * STRIDE + CENTRE - middle) / half)
    return torch.einsum("hwij,jk,hwik->hw", J, variance * torch.linalg.inv(normal), J).sqrt().float()


def _derivatives(p: Float[Tensor, "*n 2"]) -> Float[Tensor, "*n 2 8"]:
    """How a point moves with the eight numbers of a homography near the identity."""
    x, y = p.double().unbind(-1)
    one, none = torch.ones_like(x), torch.zeros_like(x)
    rows = [x, y, one, none, none, none, -x * x, -x * y], [none, none, none, x, y, one, -x * y, -y * y]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def _at_pixels(x: Float[Tensor, "h8 w8"], size: Size) -> Float[Tensor, "h w"]:
    return torch.nn.functional.interpolate(x[None, None], size, mode="bilinear", align_corners=False)[0, 0]


def working_image(x: Float[Tensor, "3 h w"], options: AlignerOptions) -> Float[Tensor, "3 h2 w2"]:
    """An image at the size at which it is aligned, its sides multiples of 32."""
    h, w = size_of(x)
    share = min(options.work / max(h, w), max(1.0, min(3.0, options.least / min(h, w))))
    return resize(x, (_multiple(share * h), _multiple(share * w)))


def _multiple(side: float) -> int:
    return max(1, round(side / MULTIPLE)) * MULTIPLE


def check_image(x: Any, where: str) -> Float[Tensor, "3 h w"]:
    """An image in any form as a tensor (3, h, w) in [0, 1], large enough and with something to see."""
    y: Tensor = inputs.image(x, where=where).tensor
    if min(y.shape[-2:]) < SMALLEST:
        raise InputError(f"{where}: {y.shape[-1]} × {y.shape[-2]} pixels are too few; at least {SMALLEST} are needed")
    if float(y.max() - y.min()) < 2 / 255:
        raise InputError(f"{where}: the image is blank; there is nothing to align")
    return y


# ---------------------------------------------------------------------------------------------------------------- seeds


def match_seed(one: Image, two: Image, a: Float[Tensor, "3 h w"], b: Float[Tensor, "3 h2 w2"]) -> Seed | None:
    """What matches of the images give, in pixels of a and b, the same at the working size, where chance does not
    explain their geometry; matched again under its homography. An `Image` keeps its features.

    The second matching finds more, and more exactly, where b is seen aslant, turned or from nearer: on graf and wall
    (pairs 1–2, 1–4, 1–6) 3.4 px become 0.8.
    """
    seen, sizes = matching.match(one, two, guide="never"), (size_of(a), size_of(b))
    points = (
        resize_points(torch.from_numpy(np.asarray(p, dtype=np.float64)), photo.size, size).numpy()
        for p, photo, size in zip((seen.a, seen.b), (one, two), sizes, strict=True)
    )
    matches = matching.Matches(*points, sizes=sizes)
    seed = _seed(matches, matches.geometry(), ("matches",))
    if seed is None:
        return None
    warped = sample(b[None], transform(seed.H, grid(*size_of(a)))[None])[0]
    again = matching.match(a, warped, matcher="lighterglue", guide="never")
    places = transform(seed.H, torch.from_numpy(np.asarray(again.b, dtype=np.float32))).numpy()
    closer = matching.Matches(again.a, places, sizes=sizes)
    better = _seed(closer, closer.geometry(), ("matches", "matched again under their homography"))
    return better if better is not None and len(better.a) >= len(seed.a) else seed


def flow_seed(aligned: Aligned) -> Seed | None:
    """The same from a flow: of cells whose round trip is consistent."""
    d, kept = aligned.errors()
    first = int(CENTRE)
    sure = torch.nonzero((kept & (d <= RETURNED))[first::STRIDE, first::STRIDE])
    at = first + STRIDE * sure
    p = at.flip(1).float()
    q = p + aligned.ab[at[:, 0], at[:, 1]]
    sizes = size_of(aligned.ab[..., 0]), size_of(aligned.ba[..., 0])
    matches = matching.Matches(p.numpy(), q.numpy(), sizes=sizes)
    return _seed(matches, matches.homography(), ("all pairs of cells",))


def _seed(matches: matching.Matches, model: robust.Model, steps: tuple[str, ...]) -> Seed | None:
    """The model as a homography (of a fundamental matrix, the plane nearest to its inliers), and the points that agree
    with it or with one of the other planes that the matches show."""
    if model.matrix is None:
        return None
    a, b = matches.a[model.inliers], matches.b[model.inliers]
    H = model.matrix if model.kind == "homography" else nearest_plane(a, b)
    if H is None:
        return None
    planes = robust.inlier_models(matches.a, matches.b, sizes=matches.sizes)
    kept = np.logical_or.reduce([model.inliers, *(plane.inliers for plane in planes)])
    a, b = matches.a[kept], matches.b[kept]
    p, q = (torch.from_numpy(np.ascontiguousarray(x)).float() for x in (a, b))
    return Seed(torch.from_numpy(np.asarray(H)).float(), p, q, steps)


def nearest_plane(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """A homography near most of the points, to a twentieth of their spread: b warped by it is at most that far off."""
    px = max(3.0, 0.05 * float(np.linalg.norm(np.ptp(b, axis=0))))
    H, _ = cv2.findHomography(a, b, cv2.USAC_MAGSAC, px, maxIters=2000, confidence=0.999)
    return None if H is None or not np.isfinite(H).all() else np.asarray(H)


def first_flows(seed: Seed, size: Size) -> Float[Tensor, "2 h8 w8 2"]:
    """What is left between a and b warped to it by the seed's H, in cells, there and back, from its points."""
    back = transform(torch.linalg.inv(seed.H), seed.b)
    return torch.stack([_scattered(seed.a, back - seed.a, size), _scattered(back, seed.a - back, size)])


def _scattered(points: Float[Tensor, "n 2"], moves: Float[Tensor, "n 2"], size: Size) -> Float[Tensor, "h8 w8 2"]:
    """Moves at points, in pixels, as a flow of cells: means of the points in a cell, filled in from around."""
    h, w = size[0] // STRIDE, size[1] // STRIDE
    cell = ((points - CENTRE) / STRIDE).round().long()
    kept = inside(cell.float(), h, w) & torch.isfinite(moves).all(-1)
    index, values = cell[kept, 1] * w + cell[kept, 0], moves[kept] / STRIDE
    count = torch.zeros(h * w).index_add_(0, index, torch.ones(len(index)))
    total = torch.zeros(h * w, 2).index_add_(0, index, values)
    flow = (total / count.clamp_min(1)[:, None]).view(1, h, w, 2)
    return smoothed(Start(flow, (count > 0).float().view(1, h, w))).flow[0]


# ----------------------------------------------------------------------------------------------------------- refinement


@torch.no_grad()
def refine(
    network: Network,
    a: Float[Tensor, "3 h w"],
    b: Float[Tensor, "3 h2 w2"],
    H: Float[Tensor, "3 3"],
    starts: Callable[[Tensor, Tensor], Float[Tensor, "2 h8 w8 2"]],
    iters: int,
    noise: float = 0.0,
    limit: float = math.inf,
) -> tuple[Float[Tensor, "2 h w 2"], Float[Tensor, "2 h8 w8"]]:
    """The flows between a and b warped to it by H, there and back, from first flows in cells; and, for the confidence
    of the first, height and distance (in cells) of the correlation's peak around where it ends."""
    warped = sample(b[None], transform(H, grid(*size_of(a)))[None], padding="border")
    fa, fb = network.features(a[None], warped)
    flows = first = starts(fa, fb)
    if iters:
        flows = network.towards(torch.cat([fa, fb]), torch.cat([fb, fa]), first, iters)[-1]
    if noise:
        moved = flows - first
        shrunk = moved * (1 - noise**2 / moved.square().sum(-1, keepdim=True).clamp_min(1e-12)).clamp_min(0)
        flows = first + believed(flows, limit)[..., None] * shrunk
    volume = Correlation(fa, fb, levels=network.refine.levels, radius=network.refine.radius, centred=True)
    goals, heights, _ = network.refine.peaks(volume.lookup(grid(*size_of(fa)) + flows[:1]))
    return at_pixels(flows, *size_of(a)), torch.stack([heights[0, 0], torch.linalg.vector_norm(goals[0, 0], dim=0)])


def believed(flows: Float[Tensor, "2 h8 w8 2"], limit: float) -> Float[Tensor, "2 h8 w8"]:
    """The share of cells around each one that return to within `limit` cells, there and back: what does not return is
    not moved away from what the matches say."""
    d, kept = cycle(flows, flows.flip(0))
    share = ((kept & (d <= limit)) | (limit == math.inf)).float()[:, None]
    return torch.nn.functional.avg_pool2d(share, 3, 1, 1, count_include_pad=False)[:, 0]


def compose_flows(seed: Seed, left: Float[Tensor, "2 h w 2"], size: Size) -> Aligned:
    """Flows between a and b itself, of size (h2, w2), from those between a and b warped to it by H."""
    base, other = grid(*size_of(left[0, ..., 0])), grid(*size)
    before = transform(torch.linalg.inv(seed.H), other)
    back = before + carried(left[1], before) - other
    return Aligned(transform(seed.H, base + left[0]) - base, back, steps=seed.steps)


def in_cells(flows: Float[Tensor, "b h w 2"]) -> Float[Tensor, "b h8 w8 2"]:
    """Flows of pixels at the cells, in cells: means over what a cell covers."""
    return torch.nn.functional.avg_pool2d(flows.movedim(-1, 1), STRIDE).movedim(1, -1) / STRIDE


def fit_homography(aligned: Aligned, *, most: int = 4000, px: float = 2.0) -> Tensor | None:
    """The homography a → b fitted to the pixels that return; None where there is none."""
    d, kept = aligned.errors()
    sure = torch.nonzero(kept & (d <= RETURNED))
    chosen = sure[:: max(1, len(sure) // most)]
    x = chosen.flip(1).float()
    y = x + aligned.ab[chosen[:, 0], chosen[:, 1]]
    H = robust.homography(x.numpy(), y.numpy(), px).matrix
    return None if H is None else torch.from_numpy(H).float()


def resize_flows(aligned: Aligned, a: Size, b: Size) -> Aligned:
    """Flows between images of other sizes than those aligned: goals are scaled by b's change, places by a's."""
    free = None if aligned.free is None else resize_flows(aligned.free, a, b)
    sure = None if aligned.sure is None else _at_pixels(aligned.sure, a)
    ab, ba = _between(aligned.ab, a, aligned.ba, b), _between(aligned.ba, b, aligned.ab, a)
    return replace(aligned, ab=ab, ba=ba, free=free, sure=sure)


def _between(flow: Tensor, size: Size, other: Tensor, goal: Size) -> Tensor:
    old, target = size_of(flow[..., 0]), size_of(other[..., 0])
    alike = old[0] * goal[0] == size[0] * target[0] and old[1] * goal[1] == size[1] * target[1]
    return resize_flow(flow, size, None if alike else (target, goal))


def snap_to_homography(
    aligned: Aligned, a: Float[Tensor, "3 h w"], b: Float[Tensor, "3 h2 w2"], *, share: float = 0.85, px: float = 1.5
) -> Aligned:
    """The flow of a homography where nearly all that returns agrees with it: one plane, or a camera that turned.

    b warped to a by it must also look as much like a, to WORSE, as by the flow: small motions in depth agree with a
    plane to a pixel or so, but they do not look like one.
    """
    H = fit_homography(aligned, px=px)
    if H is None:
        return aligned
    size = size_of(aligned.ab[..., 0])
    flat = homography_flow(H, *size)
    d, kept = aligned.errors()
    sure = kept & (d <= RETURNED)
    near = torch.linalg.vector_norm(flat - aligned.ab, dim=-1) <= px
    if float(near[sure].float().mean()) < share:
        return aligned
    H = refine_ecc(H, a, b)
    flat = homography_flow(H, *size)
    if photometric_error(a, b, flat, sure) > WORSE * photometric_error(a, b, aligned.ab, sure):
        return aligned
    back = homography_flow(torch.linalg.inv(H), *size_of(aligned.ba[..., 0]))
    return replace(aligned, ab=flat, ba=back, steps=(*aligned.steps, "one plane"), free=aligned)


def photometric_error(
    a: Float[Tensor, "3 h w"], b: Float[Tensor, "3 h2 w2"], flow: Float[Tensor, "h w 2"], where: Bool[Tensor, "h w"]
) -> float:
    """Mean difference of a and b warped to it, in grey of which local mean and contrast were taken away."""
    bent = warp(b[None], flow[None], "border")[0]
    difference = np.abs(_contrast(a) - _contrast(bent))
    return float(difference[where.numpy()].mean()) if bool(where.any()) else 0.0


def _contrast(x: Float[Tensor, "3 h w"], side: int = 9) -> np.ndarray[Any, Any]:
    """(x − m) / (s + ε) with mean m and standard deviation s of the square around a pixel."""
    grey = x.mean(0).numpy()
    mean = cv2.blur(grey, (side, side))
    spread = np.sqrt(np.maximum(cv2.blur(grey * grey, (side, side)) - mean * mean, 0.0))
    return np.asarray((grey - mean) / (spread + 0.02))


def refine_ecc(
    H: Float[Tensor, "3 3"], a: Float[Tensor, "3 h w"], b: Float[Tensor, "3 h2 w2"], *, farthest: float = 2.0
) -> Float[Tensor, "3 3"]:
    """A homography brought to fractions of a pixel by the correlation of grey values (Evangelidis and Psarakis).

    It stays as it was where that does not converge, or where a corner would move by more than `farthest` pixels.
    """
    one, two = (np.ascontiguousarray(x.mean(0).numpy()) for x in (a, b))
    stop = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_COUNT, 30, 1e-7)
    guess = np.ascontiguousarray((H / H[2, 2]).numpy().astype(np.float32))
    try:
        _, better = cv2.findTransformECC(one, two, guess, cv2.MOTION_HOMOGRAPHY, stop, None, 3)  # type: ignore[call-overload]
    except cv2.error:  # it did not converge
        return H
    new = torch.from_numpy(np.asarray(better, dtype=np.float32))
    h, w = one.shape
    corners = torch.tensor([[0.0, 0.0], [w - 1.0, 0.0], [w - 1.0, h - 1.0], [0.0, h - 1.0]])
    moved = torch.linalg.vector_norm(transform(new, corners) - transform(H, corners), dim=-1)
    return new if bool((moved <= farthest).all()) else H


def polish(aligned: Aligned, a: Float[Tensor, "3 h w"], b: Float[Tensor, "3 h2 w2"]) -> Aligned:
    """Both flows, corrected."""
    return replace(aligned, ab=_corrected(aligned.ab, a, b), ba=_corrected(aligned.ba, b, a))


def _corrected(flow: Float[Tensor, "h w 2"], a: Tensor, b: Tensor) -> Float[Tensor, "h w 2"]:
    """f(x) → f(x + c(x)) + c(x), with c the residual flow from a to b warped to a, where c is small and returns."""
    made: Any = cv2
    bent = warp(b[None], flow[None], "border")[0]
    search = made.DISOpticalFlow_create(made.DISOPTICAL_FLOW_PRESET_MEDIUM)
    search.setFinestScale(0)
    one, two = _grey(a), _grey(bent)
    there = torch.from_numpy(search.calc(one, two, None))
    back = torch.from_numpy(search.calc(two, one, None))
    missed = torch.linalg.vector_norm(compose(there, back), dim=-1)
    trusted = (torch.linalg.vector_norm(there, dim=-1) <= POLISHED) & (missed <= 0.5)
    share = torch.from_numpy(cv2.blur(trusted.float().numpy(), (5, 5)))
    return compose(share[..., None] * there, flow)


def _grey(x: Float[Tensor, "3 h w"]) -> np.ndarray[Any, Any]:
    rgb = (x.permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
    return np.asarray(cv2.equalizeHist(cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)))
