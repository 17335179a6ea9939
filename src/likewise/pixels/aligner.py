"""The aligner: two photos in, where every pixel went, both ways.

A pass of the network gives both flows. Where few pixels return to their place, views of b are tried; then b is warped
to a by the homography fitted to the flow, and aligned once more. What a step gains is measured by cycle consistency; a
step that gains nothing is undone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from likewise import inputs
from likewise.errors import InputError
from likewise.pixels.geometry import (
    Size,
    carried,
    compose,
    fitted,
    follow,
    grid,
    homography_flow,
    inside,
    rescale_homography,
    resize,
    resize_flow,
    sample,
    size_of,
    transform,
    warp,
)
from likewise.pixels.life import cycle
from likewise.pixels.life.network import Network, at_pixels, starts
from likewise.store.checkpoint import load

TRIED = 240
"""Longest side, in pixels, at which turned, scaled and slanted views are tried."""
SEARCHED = 192
"""Longest side at which the most promising of them are chosen."""
SMALLEST = 64
"""Pixels that an image must have on its shorter side."""
WIDEST = 1024
"""The widest network that is made of a file; the shipped one is 96 wide."""
RIM = 0.5
"""Pixels beyond the centres of b's outermost pixels that still belong to it."""
RETURNED = 3.0
"""Pixels, at the working resolution, within which a pixel that went there and back has returned."""
WORSE = 2.0
"""How much less alike a and b may look under one homography than under the flow, which was fitted to their looks."""
POLISHED = 3.0
"""Corrections of more pixels than this are not believed."""
WEIGHTS = Path(__file__).parents[1] / "weights" / "pixels-aligner.safetensors"


@dataclass(frozen=True)
class Aligned:
    """Both flows between images of sizes (h, w) and (h2, w2), without a batch, and what was done to get them.

    Where a homography stands for the flow, `free` is the flow it was fitted to: a homography and its inverse return
    all pixels, which says nothing of how well it fits.
    """

    ab: Float[Tensor, "h w 2"]
    ba: Float[Tensor, "h2 w2 2"]
    steps: tuple[str, ...] = ()
    free: Aligned | None = None

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
        limit = (0.05 * torch.linalg.vector_norm(self.ab, dim=-1)).clamp_min(RETURNED)
        return float((kept & (d <= limit)).float().mean())

    def swapped(self) -> Aligned:
        """The same from b's side."""
        return replace(self, ab=self.ba, ba=self.ab, free=None if self.free is None else self.free.swapped())


@dataclass(frozen=True)
class AlignerOptions:
    """How an aligner works.

    Parameters
    ----------
    work : int
        Longest side, in pixels, at which images are aligned; the flow is brought to their own size afterwards.
    least : int
        Shortest side up to which smaller images are enlarged first, at most twice.
    iters : int
        Steps of the recurrence.
    search : {"auto", "always", "never"}
        Try 24 turns and sizes of b, then 18 slants: where the round trip is consistent for few pixels, always, never.
    enough : float
        The cycle consistency from which on nothing is searched.
    passes : int
        Passes over the pair; from the second on, b is warped to a by the homography fitted to the last.
    polish : bool
        A last correction of fractions of a pixel on the grey of a and of b warped to it.
    snap : float
        The share of inliers from which on a single homography stands for the whole flow; above 1: never.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.pixels.AlignerOptions(work=320, search="never").iters
    6
    """

    work: int = 480
    least: int = 144
    iters: int = 6
    search: Literal["auto", "always", "never"] = "auto"
    enough: float = 0.5
    passes: int = 3
    polish: bool = True
    snap: float = 0.85


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

    Examples
    --------
    >>> import likewise as lw
    >>> from likewise import samples
    >>> a, b = samples.pair()
    >>> quick = lw.pixels.Aligner(lw.pixels.default().network, lw.pixels.AlignerOptions(search="never", passes=1))
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
    ) -> None:
        self.network = network.eval().requires_grad_(False)
        self.options = options or AlignerOptions()
        self.name, self.recipe, self.figures = name, recipe or {}, figures or {}

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
        one, two = check_image(a, "a"), check_image(b, "b")
        o = self.options if iters is None else replace(self.options, iters=iters)
        aligned = align(self.network, working_image(one, o), working_image(two, o), o)
        return resize_flows(aligned, size_of(one), size_of(two))

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Weights in half precision, and the header."""
        arrays = {k: v.detach().cpu().numpy().astype(np.float16) for k, v in self.network.state_dict().items()}
        header = {
            "dim": self.network.dim, "hidden": self.network.hidden, "name": self.name,
            "options": vars(self.options), "recipe": self.recipe, "figures": self.figures,
        }  # fmt: skip
        return arrays, header

    @classmethod
    def from_state(cls, arrays: dict[str, Any], header: dict[str, Any]) -> Aligner:
        """The aligner that `state` described."""
        sizes = int(header["dim"]), int(header["hidden"])
        if not 1 <= min(sizes) <= max(sizes) <= WIDEST:  # a header may name any size, and memory is taken for it
            raise InputError(f"dim, hidden: expected 1 to {WIDEST}, got {sizes[0]} and {sizes[1]}")
        network = Network(*sizes)
        network.load_state_dict({k: torch.from_numpy(np.asarray(v, dtype=np.float32)) for k, v in arrays.items()})
        options = {k: v for k, v in header["options"].items() if k != "detail"}  # an option of files before 0.3
        return cls(
            network, AlignerOptions(**options), name=header["name"], recipe=header["recipe"], figures=header["figures"]
        )


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


def align(network: Network, a: Float[Tensor, "3 h w"], b: Float[Tensor, "3 h2 w2"], options: AlignerOptions) -> Aligned:
    """One pass; views of b if that is not consistent; passes with b warped to a; polish; one plane where it fits.

    In this order because each step needs flows that the one before made nearly right; a step that brings fewer pixels
    back to their place than the flow so far is undone.
    """
    aligned = align_once(network, a, b, options.iters)
    score = aligned.cycle_consistency()
    if options.search == "always" or (options.search == "auto" and score < options.enough):
        H, step = _search(network, a, b, options)
        if H is not None:
            aligned, score = _better(aligned, score, align_under_homography(network, a, b, H, options.iters), step)
    aligned = _repeat(network, a, b, aligned, options)
    if options.polish:
        aligned = polish(aligned, a, b)
    return snap_to_homography(aligned, a, b, share=options.snap) if options.snap <= 1 else aligned


def _search(network: Network, a: Tensor, b: Tensor, options: AlignerOptions) -> tuple[Tensor | None, str]:
    """The homography a → b to begin with, found on small images among turned, scaled and slanted views of b."""
    one, two = _small(a, TRIED), _small(b, TRIED)
    best = align_once(network, one, two, options.iters)
    score, step = best.cycle_consistency(), ""
    for candidates, words in ((SIMILAR, "turned and scaled"), (SLANTED, "seen aslant")):
        if score >= options.enough:
            break
        for view in rank_views(network, one, two, candidates):
            tried = _repeat(network, one, two, align_under_homography(network, one, two, view, options.iters), options)
            share = tried.cycle_consistency()
            if share > score:
                best, score, step = tried, share, words
    H = fit_homography(best) if step else None
    if H is None:
        return None, ""
    return rescale_homography(H, size_of(one), size_of(a), size_of(two), size_of(b)), step


def _repeat(network: Network, a: Tensor, b: Tensor, aligned: Aligned, options: AlignerOptions) -> Aligned:
    """Further passes, each with b warped to a by the homography fitted to the last, while consistency grows."""
    score = aligned.cycle_consistency()
    for _ in range(1, options.passes):
        H = fit_homography(aligned)
        if H is None:
            break
        before = score
        again = align_under_homography(network, a, b, H, options.iters)
        aligned, score = _better(aligned, score, again, "bent by a homography")
        if score <= before + 0.01:  # a hundredth of the pixels: less than a further pass is worth
            break
    return aligned


def _better(old: Aligned, score: float, new: Aligned, step: str) -> tuple[Aligned, float]:
    """The one of which more pixels return."""
    share = new.cycle_consistency()
    return (replace(new, steps=(*old.steps, step)), share) if share > score else (old, score)


def working_image(x: Float[Tensor, "3 h w"], options: AlignerOptions) -> Float[Tensor, "3 h2 w2"]:
    """An image at the size at which it is aligned."""
    h, w = size_of(x)
    share = min(options.work / max(h, w), max(1.0, min(2.0, options.least / min(h, w))))
    return resize(x, (max(32, round(share * h)), max(32, round(share * w))))


def check_image(x: Any, where: str) -> Float[Tensor, "3 h w"]:
    """An image in any form as a tensor (3, h, w) in [0, 1], large enough and with something to see."""
    y: Tensor = inputs.image(x, where=where).tensor
    if min(y.shape[-2:]) < SMALLEST:
        raise InputError(f"{where}: {y.shape[-1]} × {y.shape[-2]} pixels are too few; at least {SMALLEST} are needed")
    if float(y.max() - y.min()) < 2 / 255:
        raise InputError(f"{where}: the image is blank; there is nothing to align")
    return y


@torch.no_grad()
def align_once(network: Network, a: Float[Tensor, "3 h w"], b: Float[Tensor, "3 h2 w2"], iters: int) -> Aligned:
    """One pass of the network."""
    there, back = network(*network.features(a[None], b[None]), iters=iters)
    return Aligned(at_pixels(there[-1], *size_of(a))[0], at_pixels(back[-1], *size_of(b))[0])


@torch.no_grad()
def align_under_homography(
    network: Network, a: Float[Tensor, "3 h w"], b: Float[Tensor, "3 h2 w2"], H: Float[Tensor, "3 3"], iters: int
) -> Aligned:
    """One pass on a and on b warped to a's frame by H, which takes points of a to points of b; flows to b itself."""
    base, other = grid(*size_of(a)), grid(*size_of(b))
    bent = sample(b[None], transform(H, base)[None], padding="border")[0]
    seen = align_once(network, a, bent, iters)
    before = transform(torch.linalg.inv(H), other)
    return Aligned(transform(H, base + seen.ab) - base, before + carried(seen.ba, before) - other)


def fit_homography(aligned: Aligned, *, most: int = 4000, px: float = 2.0) -> Tensor | None:
    """The homography a → b fitted to the pixels that return; None where there is no plausible one."""
    d, kept = aligned.errors()
    sure = torch.nonzero(kept & (d <= RETURNED))
    if len(sure) < 40:
        return None
    chosen = sure[:: max(1, len(sure) // most)]
    x = chosen.flip(1).float()
    y = x + aligned.ab[chosen[:, 0], chosen[:, 1]]
    cv2.setRNGSeed(0)
    H, _ = cv2.findHomography(x.numpy(), y.numpy(), cv2.USAC_MAGSAC, px, maxIters=2000, confidence=0.999)
    if H is None or not np.isfinite(H).all() or not _plausible(H, aligned):
        return None
    return torch.from_numpy(H).float()


def _plausible(H: np.ndarray[Any, Any], aligned: Aligned) -> bool:
    """Whether a homography keeps the frame in front of the camera and does not shrink or blow it up beyond reason."""
    h, w = (int(n) for n in aligned.ab.shape[:2])
    corners = np.array([[0, 0, 1], [w - 1, 0, 1], [w - 1, h - 1, 1], [0, h - 1, 1.0]])
    z = corners @ H[2]
    if (z * z[0] <= 0).any() or np.linalg.det(H) * z[0] ** 3 <= 0:
        return False
    p = (corners @ H.T)[:, :2] / z[:, None]
    area = 0.5 * abs(sum(p[i - 1, 0] * p[i, 1] - p[i, 0] * p[i - 1, 1] for i in range(4)))
    return bool(0.02 * h * w <= area <= 50 * h * w)


def turned(turn: float, size: float, tilt: float = 1.0, along: float = 0.0) -> Float[Tensor, "2 2"]:
    """size · R(turn) · R(along) diag(√tilt, 1/√tilt) R(−along), angles in degrees: turned, scaled, seen aslant."""
    t, a = math.radians(turn), math.radians(along)
    squeeze = torch.diag(torch.tensor([math.sqrt(tilt), 1 / math.sqrt(tilt)]))
    return size * _rotation(t) @ _rotation(a) @ squeeze @ _rotation(-a)


def _rotation(angle: float) -> Float[Tensor, "2 2"]:
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[c, -s], [s, c]])


def about_centres(A: Float[Tensor, "2 2"], a: Size, b: Size) -> Float[Tensor, "3 3"]:
    """The map of a's points to b's that is A and takes centre to centre."""
    ca, cb = (torch.tensor([(n[1] - 1) / 2, (n[0] - 1) / 2]) for n in (a, b))
    H = torch.eye(3)
    H[:2, :2], H[:2, 2] = A, cb - A @ ca
    return H


SIMILAR = [turned(t, z) for t, z in product((0, 45, 90, 135, 180, 225, 270, 315), (0.6, 1.0, 1.67))]
"""Turns and sizes that are tried first."""
SLANTED = [turned(t, 1.0, tilt, along) for t, tilt, along in product((-45, 0, 45), (2.2,), range(0, 180, 30))]
"""Slanted views that are tried where none of those will do."""


@torch.no_grad()
def rank_views(
    network: Network,
    a: Float[Tensor, "3 h w"],
    b: Float[Tensor, "3 h2 w2"],
    candidates: Sequence[Tensor],
    *,
    best: int = 2,
) -> list[Tensor]:
    """The maps a → b, of the candidates, under which most cells find their like; tried on small images."""
    one, two = _small(a, SEARCHED), _small(b, SEARCHED)
    views = [about_centres(A, size_of(one), size_of(two)) for A in candidates]
    fa = network.encoder(one[None])
    base = grid(*size_of(one))
    scores = []
    for k, H in enumerate(views):
        points = transform(H, base)
        seen = inside(points, *size_of(two)).float().mean()
        bent = sample(two[None], points[None], padding="border")
        there, _ = starts(fa, network.encoder(bent), network.log_tau.exp(), smooth=False)
        scores.append((float(there.confidence.mean() * seen.sqrt()), k))
    sizes = size_of(one), size_of(a), size_of(two), size_of(b)
    return [rescale_homography(views[k], *sizes) for _, k in sorted(scores, reverse=True)[:best]]


def _small(x: Float[Tensor, "3 h w"], longest: int) -> Float[Tensor, "3 h2 w2"]:
    return resize(x, fitted(size_of(x), longest, "longest", least=8))


def resize_flows(aligned: Aligned, a: Size, b: Size) -> Aligned:
    """Flows between images of other sizes than those aligned: goals are scaled by b's change, places by a's."""
    free = None if aligned.free is None else resize_flows(aligned.free, a, b)
    return replace(
        aligned, ab=_between(aligned.ab, a, aligned.ba, b), ba=_between(aligned.ba, b, aligned.ab, a), free=free
    )


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
