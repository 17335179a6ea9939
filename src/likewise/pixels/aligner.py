"""The aligner: two photos in, where every pixel went, both ways."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from likewise import inputs
from likewise.errors import InputError
from likewise.pixels.geometry import Size, scaling
from likewise.pixels.life.inference import (
    SIMILAR,
    SLANTED,
    Aligned,
    align_once,
    align_under_homography,
    fit_homography,
    polish,
    rank_views,
    refine_tiles,
    resize,
    resize_flows,
    shrink,
    snap_to_homography,
)
from likewise.pixels.life.network import Network
from likewise.store.checkpoint import load

TRIED = 240
"""Longest side, in pixels, at which turned, scaled and slanted views are tried."""
SMALLEST = 64
"""Pixels that an image must have on its shorter side."""
WIDEST = 1024
"""The widest network that is made of a file; the shipped one is 96 wide."""
WEIGHTS = Path(__file__).parents[1] / "weights" / "pixels-aligner.safetensors"


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
    detail : int
        Longest side up to which flows of larger images are corrected tile by tile; 0: they are only enlarged.

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
    detail: int = 0


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
        if o.detail > o.work and "one plane" not in aligned.steps:
            aligned = refine_tiles(self.network, one, two, aligned, o.detail)
        return resize_flows(aligned, _size(one), _size(two))

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
        options = AlignerOptions(**header["options"])
        return cls(network, options, name=header["name"], recipe=header["recipe"], figures=header["figures"])


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
    one, two = shrink(a, TRIED), shrink(b, TRIED)
    best = align_once(network, one, two, options.iters)
    score, step = best.cycle_consistency(), ""
    for candidates, words in ((SIMILAR, "turned and scaled"), (SLANTED, "seen aslant")):
        if score >= options.enough:
            break
        for H in rank_views(network, one, two, candidates):
            tried = _repeat(network, one, two, align_under_homography(network, one, two, H, options.iters), options)
            share = tried.cycle_consistency()
            if share > score:
                best, score, step = tried, share, words
    fitted, _ = fit_homography(best)
    if fitted is None or not step:
        return None, ""
    up = [scaling(_size(s), _size(x)).float() for s, x in ((one, a), (two, b))]
    return up[1] @ fitted @ torch.linalg.inv(up[0]), step


def _repeat(network: Network, a: Tensor, b: Tensor, aligned: Aligned, options: AlignerOptions) -> Aligned:
    """Further passes, each with b warped to a by the homography fitted to the last, while consistency grows."""
    score = aligned.cycle_consistency()
    for _ in range(1, options.passes):
        H, _ = fit_homography(aligned)
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
    h, w = _size(x)
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


def _size(x: Tensor) -> Size:
    return int(x.shape[-2]), int(x.shape[-1])
