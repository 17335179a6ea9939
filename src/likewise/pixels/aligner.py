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

from likewise.errors import InputError
from likewise.pixels.geometry import scaling
from likewise.pixels.life.inference import (
    ASLANT,
    SIMILAR,
    Aligned,
    agreed,
    detailed,
    enlarged,
    look,
    look_through,
    polished,
    resized,
    searched,
    shrunk,
    snapped,
)
from likewise.pixels.life.network import Network
from likewise.pixels.pictures import Picture, picture
from likewise.store.checkpoint import load

TRIED = 240
"""Longest side, in pixels, at which turned, scaled and slanted views are looked at."""

SMALLEST = 64
"""Pixels that a picture must have on its shorter side."""


@dataclass(frozen=True)
class Manner:
    """How an aligner goes about its work."""

    work: int = 480
    """Longest side, in pixels, at which pictures are aligned; the flow is brought to their own size afterwards."""
    least: int = 144
    """Shortest side up to which smaller pictures are enlarged first, at most twice."""
    iters: int = 6
    """Steps of the recurrence."""
    search: Literal["auto", "always", "never"] = "auto"
    """Try 24 turns and sizes of b, then 18 slants: where few pixels come home, always, or never."""
    enough: float = 0.5
    """The share of pixels coming home from which on nothing is searched."""
    passes: int = 3
    """Looks at the pair; from the second on, b is bent onto a by what the last look agreed on."""
    polish: bool = True
    """A last correction of fractions of a pixel on the grey of a and of b bent onto it."""
    snap: float = 0.85
    """The share of agreement from which on a single homography stands for the whole flow; above 1: never."""
    detail: int = 0
    """Longest side up to which flows of larger pictures are corrected tile by tile; 0: they are only enlarged."""


class Aligner:
    """Flow between two photos under any light; `network` may be any that this package trains.

    `flow(a, b)` and `both(a, b)` take pictures in any form and of any two sizes of at least 64 pixels. `recipe` and
    `figures` say how the network was trained and how well that went.
    """

    def __init__(
        self,
        network: Network,
        manner: Manner | None = None,
        *,
        name: str = "aligner",
        recipe: dict[str, Any] | None = None,
        figures: dict[str, Any] | None = None,
    ) -> None:
        self.network = network.eval().requires_grad_(False)
        self.manner = manner or Manner()
        self.name, self.recipe, self.figures = name, recipe or {}, figures or {}

    def __repr__(self) -> str:
        return f"Aligner({self.name})"

    @property
    def work(self) -> int:
        """The longest side at which pictures are aligned."""
        return self.manner.work

    def flow(self, a: Picture, b: Picture, iters: int | None = None) -> Float[Tensor, "h w 2"]:
        """Where each pixel of a goes in b, in pixels, x then y."""
        return self.aligned(a, b, iters).ab

    def both(self, a: Picture, b: Picture, iters: int | None = None) -> tuple[Tensor, Tensor]:
        """The flows a→b (h, w, 2) and b→a (h2, w2, 2)."""
        found = self.aligned(a, b, iters)
        return found.ab, found.ba

    def aligned(self, a: Picture, b: Picture, iters: int | None = None) -> Aligned:
        """Both flows and what was done to find them."""
        one, two = alignable(a, "a"), alignable(b, "b")
        m = self.manner if iters is None else replace(self.manner, iters=iters)
        found = align(self.network, worked(one, m), worked(two, m), m)
        if m.detail > m.work and "one plane" not in found.notes:
            found = detailed(self.network, one, two, found, m.detail)
        sizes = [(int(x.shape[-2]), int(x.shape[-1])) for x in (one, two)]
        return enlarged(found, sizes[0], sizes[1])

    # ---------------------------------------------------------------------------------------------------- storage

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Weights in half precision, and the header."""
        arrays = {k: v.detach().cpu().numpy().astype(np.float16) for k, v in self.network.state_dict().items()}
        header = {
            "dim": self.network.dim, "hidden": self.network.hidden, "name": self.name,
            "manner": vars(self.manner), "recipe": self.recipe, "figures": self.figures,
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
        return cls(
            network, Manner(**header["manner"]), name=header["name"], recipe=header["recipe"], figures=header["figures"]
        )


WIDEST = 1024
"""The widest network that is made of a file; the shipped one is 96 wide."""
WEIGHTS = Path(__file__).parents[1] / "weights" / "pixels-aligner.safetensors"


@functools.cache
def default() -> Aligner:
    """The network that ships with the package; how it was trained stands in its card, weights/pixels-aligner.md."""
    model: Aligner = load(WEIGHTS)
    return model


def align(network: Network, a: Float[Tensor, "3 h w"], b: Float[Tensor, "3 h2 w2"], manner: Manner) -> Aligned:
    """Look; turn, scale and slant b if little comes home; bend b onto a and look again; polish."""
    found = look(network, a, b, manner.iters)
    score = found.home()
    if manner.search == "always" or (manner.search == "auto" and score < manner.enough):
        H, note = _searched(network, a, b, manner)
        if H is not None:
            found, score = _better(found, score, look_through(network, a, b, H, manner.iters), note)
    found = _again(network, a, b, found, manner)
    if manner.polish:
        found = polished(found, a, b)
    return snapped(found, a, b, share=manner.snap) if manner.snap <= 1 else found


def _searched(network: Network, a: Tensor, b: Tensor, manner: Manner) -> tuple[Tensor | None, str]:
    """The homography a → b to begin with, found on small pictures among turned, scaled and slanted views of b."""
    one, two = shrunk(a, TRIED), shrunk(b, TRIED)
    best = look(network, one, two, manner.iters)
    score, note = best.home(), ""
    for candidates, words in ((SIMILAR, "turned and scaled"), (ASLANT, "seen aslant")):
        if score >= manner.enough:
            break
        for H in searched(network, one, two, candidates):
            tried = _again(network, one, two, look_through(network, one, two, H, manner.iters), manner)
            share = tried.home()
            if share > score:
                best, score, note = tried, share, words
    agreement, _ = agreed(best)
    if agreement is None or not note:
        return None, ""
    up = [scaling(_size(s), _size(x)).float() for s, x in ((one, a), (two, b))]
    return up[1] @ agreement @ torch.linalg.inv(up[0]), note


def _size(x: Tensor) -> tuple[int, int]:
    return int(x.shape[-2]), int(x.shape[-1])


def _again(network: Network, a: Tensor, b: Tensor, found: Aligned, manner: Manner) -> Aligned:
    """Further looks, each with b bent onto a by the homography that the last agreed on, as long as more comes home."""
    score = found.home()
    for _ in range(1, manner.passes):
        H, _ = agreed(found)
        if H is None:
            break
        before = score
        found, score = _better(found, score, look_through(network, a, b, H, manner.iters), "bent by a homography")
        if score <= before + 0.01:
            break
    return found


def _better(old: Aligned, score: float, new: Aligned, note: str) -> tuple[Aligned, float]:
    """The one from which more pixels come home."""
    share = new.home()
    return (replace(new, notes=(*old.notes, note)), share) if share > score else (old, score)


def worked(x: Float[Tensor, "3 h w"], manner: Manner) -> Float[Tensor, "3 h2 w2"]:
    """A picture at the size that is worked at."""
    h, w = int(x.shape[-2]), int(x.shape[-1])
    share = min(manner.work / max(h, w), max(1.0, min(2.0, manner.least / min(h, w))))
    return resized(x, (max(32, round(share * h)), max(32, round(share * w))))


def alignable(x: Picture, where: str) -> Float[Tensor, "3 h w"]:
    """A picture in any form as a tensor (3, h, w) in [0, 1], large enough and with something to see."""
    y = picture(x, where=where)
    if min(y.shape[-2:]) < SMALLEST:
        raise InputError(f"{where}: {y.shape[-1]} × {y.shape[-2]} pixels are too few; at least {SMALLEST} are needed")
    if float(y.max() - y.min()) < 2 / 255:
        raise InputError(f"{where}: the picture is blank; there is nothing to align")
    return y
