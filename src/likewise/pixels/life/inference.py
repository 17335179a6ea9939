"""From a network that knows small motions to photos as people take them.

A pass gives both flows. Where few pixels return to their place, views of b are tried; then b is warped to a by the
homography fitted to the flow, and aligned once more. What a step gains is measured by cycle consistency; a step that
gains nothing is undone. Flows of large photos are carried to ever larger sizes and corrected there tile by tile: b is
warped to a by the flow so far, and the recurrence finds what is left, in the memory of one tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import cv2
import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from likewise.pixels.geometry import (
    Size,
    carried,
    compose,
    grid,
    inside,
    resize_flow,
    sample,
    scaling,
    transform,
)
from likewise.pixels.life import cycle
from likewise.pixels.life.network import Network, Start, at_pixels, starts

RIM = 0.5
"""Pixels beyond the centres of b's outermost pixels that still belong to it."""

RETURNED = 3.0
"""Pixels, at the working resolution, within which a pixel that went there and back has returned."""

SEARCHED = 192
"""Longest side at which candidates are tried."""


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
        h, w = (int(n) for n in self.ba.shape[:2])
        kept = inside(grid(int(self.ab.shape[0]), int(self.ab.shape[1])) + self.ab, h, w, margin=RIM)
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


@torch.no_grad()
def align_once(network: Network, a: Float[Tensor, "3 h w"], b: Float[Tensor, "3 h2 w2"], iters: int) -> Aligned:
    """One pass of the network."""
    there, back = network(*network.features(a[None], b[None]), iters=iters)
    sizes = [(int(x.shape[-2]), int(x.shape[-1])) for x in (a, b)]
    return Aligned(at_pixels(there.last, *sizes[0])[0], at_pixels(back.last, *sizes[1])[0])


@torch.no_grad()
def align_under_homography(
    network: Network, a: Float[Tensor, "3 h w"], b: Float[Tensor, "3 h2 w2"], H: Float[Tensor, "3 3"], iters: int
) -> Aligned:
    """One pass on a and on b warped to a's frame by H, which takes points of a to points of b; flows to b itself."""
    h, w = int(a.shape[-2]), int(a.shape[-1])
    base = grid(h, w)
    bent = sample(b[None], transform(H, base)[None], padding="border")[0]
    seen = align_once(network, a, bent, iters)
    ab = transform(H, base + seen.ab) - base
    other = grid(int(b.shape[-2]), int(b.shape[-1]))
    before = transform(torch.linalg.inv(H), other)
    ba = before + carried(seen.ba[None], before[None])[0] - other
    return Aligned(ab, ba)


def fit_homography(aligned: Aligned, *, most: int = 4000, px: float = 2.0) -> tuple[Tensor | None, float]:
    """The homography a → b fitted to the pixels that return, and the share of inliers."""
    d, kept = aligned.errors()
    sure = torch.nonzero(kept & (d <= RETURNED))
    if len(sure) < 40:
        return None, 0.0
    chosen = sure[:: max(1, len(sure) // most)]
    x = chosen.flip(1).float()
    y = x + aligned.ab[chosen[:, 0], chosen[:, 1]]
    cv2.setRNGSeed(0)
    H, mask = cv2.findHomography(x.numpy(), y.numpy(), cv2.USAC_MAGSAC, px, maxIters=2000, confidence=0.999)
    if H is None or not np.isfinite(H).all() or not _plausible(H, aligned):
        return None, 0.0
    return torch.from_numpy(H).float(), float(mask.mean())


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


def about_centres(A: Float[Tensor, "2 2"], a: tuple[int, int], b: tuple[int, int]) -> Float[Tensor, "3 3"]:
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
    small = [shrink(x, SEARCHED) for x in (a, b)]
    sizes = [(int(x.shape[-2]), int(x.shape[-1])) for x in small]
    fa = network.encoder(small[0][None])
    base = grid(*sizes[0])
    scores = []
    for k, A in enumerate(candidates):
        points = transform(about_centres(A, sizes[0], sizes[1]), base)
        seen = inside(points, *sizes[1]).float().mean()
        bent = sample(small[1][None], points[None], padding="border")
        there, _ = starts(fa, network.encoder(bent), network.log_tau.exp(), smooth=False)
        scores.append((float(there.confidence.mean() * seen.sqrt()), k))
    full = [(int(x.shape[-2]), int(x.shape[-1])) for x in (a, b)]
    up = [scaling(s, f).float() for s, f in zip(sizes, full, strict=True)]
    chosen = [about_centres(candidates[k], sizes[0], sizes[1]) for _, k in sorted(scores, reverse=True)[:best]]
    return [up[1] @ H @ torch.linalg.inv(up[0]) for H in chosen]


def shrink(x: Float[Tensor, "3 h w"], longest: int) -> Float[Tensor, "3 h2 w2"]:
    """A image with its longest side at `longest` pixels or fewer, averaged over areas."""
    h, w = int(x.shape[-2]), int(x.shape[-1])
    share = longest / max(h, w)
    return x if share >= 1 else resize(x, (max(8, round(share * h)), max(8, round(share * w))))


def resize(x: Float[Tensor, "3 h w"], size: tuple[int, int]) -> Float[Tensor, "3 h2 w2"]:
    """A image at another size; half-pixel rule, averaged over areas where it shrinks."""
    if tuple(x.shape[-2:]) == size:
        return x
    y = torch.nn.functional.interpolate(x[None], size, mode="bilinear", align_corners=False, antialias=True)
    return y[0]


def resize_flows(aligned: Aligned, a: tuple[int, int], b: tuple[int, int]) -> Aligned:
    """Flows between images of other sizes than those aligned: goals are scaled by b's change, places by a's."""
    free = None if aligned.free is None else resize_flows(aligned.free, a, b)
    return replace(
        aligned, ab=_between(aligned.ab, a, aligned.ba, b), ba=_between(aligned.ba, b, aligned.ab, a), free=free
    )


def _between(flow: Tensor, size: Size, other: Tensor, goal: Size) -> Tensor:
    old, target = _size(flow[..., 0]), _size(other[..., 0])
    alike = old[0] * goal[0] == size[0] * target[0] and old[1] * goal[1] == size[1] * target[1]
    return resize_flow(flow, size, None if alike else (target, goal))


def _size(x: Tensor) -> Size:
    return int(x.shape[-2]), int(x.shape[-1])


def snap_to_homography(
    aligned: Aligned, a: Float[Tensor, "3 h w"], b: Float[Tensor, "3 h2 w2"], *, share: float = 0.85, px: float = 1.5
) -> Aligned:
    """The flow of a homography where nearly all that returns agrees with it: one plane, or a camera that turned.

    b warped to a by it must also look as much like a, to WORSE, as by the flow: small motions in depth agree with a
    plane to a pixel or so, but they do not look like one.
    """
    H, _ = fit_homography(aligned, px=px)
    if H is None:
        return aligned
    base = grid(int(aligned.ab.shape[0]), int(aligned.ab.shape[1]))
    flat = transform(H, base) - base
    d, kept = aligned.errors()
    sure = kept & (d <= RETURNED)
    near = torch.linalg.vector_norm(flat - aligned.ab, dim=-1) <= px
    if float(near[sure].float().mean()) < share:
        return aligned
    H = refine_ecc(H, a, b)
    flat = transform(H, base) - base
    if photometric_error(a, b, flat, sure) > WORSE * photometric_error(a, b, aligned.ab, sure):
        return aligned
    other = grid(int(aligned.ba.shape[0]), int(aligned.ba.shape[1]))
    back = transform(torch.linalg.inv(H), other) - other
    return replace(aligned, ab=flat, ba=back, steps=(*aligned.steps, "one plane"), free=aligned)


WORSE = 2.0
"""How much less alike a and b may look under one homography than under the flow, which was fitted to their looks."""


def photometric_error(
    a: Float[Tensor, "3 h w"], b: Float[Tensor, "3 h2 w2"], flow: Float[Tensor, "h w 2"], where: Bool[Tensor, "h w"]
) -> float:
    """Mean difference of a and b warped to it, in grey of which local mean and contrast were taken away."""
    bent = sample(b[None], (grid(int(a.shape[-2]), int(a.shape[-1])) + flow)[None], padding="border")[0]
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


POLISHED = 3.0
"""Corrections of more pixels than this are not believed."""


def polish(aligned: Aligned, a: Float[Tensor, "3 h w"], b: Float[Tensor, "3 h2 w2"]) -> Aligned:
    """Both flows, corrected."""
    ab, ba = _corrected(aligned.ab, a, b), _corrected(aligned.ba, b, a)
    return replace(aligned, ab=ab, ba=ba)


def _corrected(flow: Float[Tensor, "h w 2"], a: Tensor, b: Tensor) -> Float[Tensor, "h w 2"]:
    """f(x) → f(x + c(x)) + c(x), with c the residual flow from a to b warped to a, where c is small and returns."""
    made: Any = cv2
    size = (int(a.shape[-2]), int(a.shape[-1]))
    bent = sample(b[None], (grid(*size) + flow)[None], padding="border")[0]
    search = made.DISOpticalFlow_create(made.DISOPTICAL_FLOW_PRESET_MEDIUM)
    search.setFinestScale(0)
    one, two = _grey(a), _grey(bent)
    there = torch.from_numpy(search.calc(one, two, None))
    back = torch.from_numpy(search.calc(two, one, None))
    missed = torch.linalg.vector_norm(there + carried(back[None], (grid(*size) + there)[None])[0], dim=-1)
    trusted = (torch.linalg.vector_norm(there, dim=-1) <= POLISHED) & (missed <= 0.5)
    share = _softened(trusted.float())
    return compose((share[..., None] * there)[None], flow[None])[0]


def _softened(x: Float[Tensor, "h w"]) -> Float[Tensor, "h w"]:
    return torch.from_numpy(cv2.blur(x.numpy(), (5, 5)))


def _grey(x: Float[Tensor, "3 h w"]) -> np.ndarray[Any, Any]:
    rgb = (x.permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
    return np.asarray(cv2.equalizeHist(cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)))


TILE, OVERLAP = 256, 32
"""Pixels of a tile, and how many of them it shares with each neighbour."""

FARTHEST = 8.0
"""Corrections of more pixels than this are not believed: the flow so far stands."""


def sizes(small: tuple[int, int], whole: tuple[int, int], detail: int) -> Iterator[tuple[int, int]]:
    """The sizes between the one worked at and `detail` px on the longest side, each at most twice the last."""
    goal = min(1.0, detail / max(whole))
    share = max(small) / max(whole)
    while share < goal * 0.999:
        share = min(goal, 2 * share)
        yield round(share * whole[0]), round(share * whole[1])


@torch.no_grad()
def refine_tiles(
    network: Network,
    a: Float[Tensor, "3 h w"],
    b: Float[Tensor, "3 h2 w2"],
    aligned: Aligned,
    detail: int,
    iters: int = 3,
) -> Aligned:
    """Both flows at `detail` pixels on the longest side, or the images' own size where that is smaller."""
    whole = [(int(x.shape[-2]), int(x.shape[-1])) for x in (a, b)]
    start = [(int(f.shape[0]), int(f.shape[1])) for f in (aligned.ab, aligned.ba)]
    steps = [list(sizes(s, w, detail)) for s, w in zip(start, whole, strict=True)]
    for k in range(max(len(s) for s in steps)):
        size_a, size_b = (s[min(k, len(s) - 1)] if s else t for s, t in zip(steps, start, strict=True))
        aligned = resize_flows(aligned, size_a, size_b)
        one, two = resize(a, size_a), resize(b, size_b)
        ab = corrected(network, one, two, aligned.ab, iters)
        aligned = Aligned(ab, corrected(network, two, one, aligned.ba, iters), aligned.steps)
    return aligned


def corrected(
    network: Network, a: Float[Tensor, "3 h w"], b: Float[Tensor, "3 h2 w2"], flow: Float[Tensor, "h w 2"], iters: int
) -> Float[Tensor, "h w 2"]:
    """x + f(x) → f(x + c(x)) + c(x), with c what the recurrence finds between a and b warped to it."""
    h, w = int(a.shape[-2]), int(a.shape[-1])
    total, weight = torch.zeros(h, w, 2), torch.zeros(h, w, 1)
    for top in _places(h):
        for left in _places(w):
            rows, columns = slice(top, min(top + TILE, h)), slice(left, min(left + TILE, w))
            c, trust = _tile(network, a[:, rows, columns], b, flow, top, left, iters)
            total[rows, columns] += trust * c
            weight[rows, columns] += trust
    return total / weight


def _places(n: int) -> list[int]:
    """Where tiles begin so that they cover n pixels and overlap."""
    if n <= TILE:
        return [0]
    step = TILE - OVERLAP
    count = -(-(n - OVERLAP) // step)
    return [round(i * (n - TILE) / (count - 1)) for i in range(count)]


def _tile(
    network: Network, a: Tensor, b: Tensor, flow: Tensor, top: int, left: int, iters: int
) -> tuple[Float[Tensor, "h w 2"], Float[Tensor, "h w 1"]]:
    """The corrected flow of a tile of a, and how much it counts at each pixel: less towards its border."""
    h, w = int(a.shape[-2]), int(a.shape[-1])
    base = grid(h, w)
    own = flow[top : top + h, left : left + w]
    corner = torch.tensor([float(left), float(top)])
    bent = sample(b[None], (base + corner + own)[None], padding="border")
    fa, fb = network.features(a[None], bent)
    n, m = int(fa.shape[-2]), int(fa.shape[-1])
    start = Start(torch.zeros(1, n, m, 2), torch.full((1, n, m), 0.5))
    c = at_pixels(network.towards(fa, fb, start, iters).last, h, w)[0]
    c = torch.where(torch.linalg.vector_norm(c, dim=-1, keepdim=True) <= FARTHEST, c, torch.zeros_like(c))
    moved = c + carried(flow[None], (base + corner + c)[None])[0]
    rise = [(torch.minimum(torch.arange(k), torch.arange(k).flip(0)) + 1.0).clamp_max(OVERLAP) for k in (h, w)]
    return moved, (rise[0][:, None] * rise[1][None, :])[..., None]
