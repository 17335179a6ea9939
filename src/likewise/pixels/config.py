"""What can be set of a training of the level pixels: one declaration an option; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from likewise.train.options import LoopOptions, option


@dataclass(frozen=True)
class Config(LoopOptions):
    """The recipe of `likewise.pixels.train`; its defaults are for one CPU and a folder of photos."""

    network: Literal["cells", "tiny", "light", "small", "large"] = option(
        "cells", "the aligner's own network on cells, or a RAFT of this size"
    )
    warm: int = option(1200, "steps of contrast between cells; the encoder and its projection learn", low=0)
    refine: int = option(800, "steps of BiT; the recurrence learns, the encoder stays", low=0)
    joint: int = option(1200, "steps of SED, BiT and cycle together", low=0)
    height: int = option(144, "height of training pictures in pixels", low=64)
    width: int = option(192, "width of training pictures in pixels", low=64)
    pairs: int = option(8, "photos, each with its bent self, in a batch", low=1)
    share: float = option(0.5, "share of them that the recurrence learns from", above=0, high=1)
    small: float = option(0.75, "size of pictures in the warm stage, relative to the later ones", low=0.3, high=1)
    scenes: int = option(2, "pairs with a fundamental matrix in a batch of the joint stage", low=0)
    dim: int = option(96, "dimensions of a cell's feature", low=8)
    hidden: int = option(48, "width of the recurrence", low=8)
    iters: int = option(3, "steps of the recurrence in training", low=1)
    bend: float = option(1.2, "strength of the bends T: 1 turns by up to 30°, scales by up to 1.4", low=0)
    light: float = option(1.0, "strength of the change of light between B and B′; 0: none", low=0)
    night: float = option(0.3, "share of the pictures that fall dark", low=0, high=1)
    sed: float = option(0.5, "weight of the epipolar loss", low=0)
    bit: float = option(1.0, "weight of the loss of bent photos", low=0)
    cycle: float = option(0.1, "weight of the cycle loss", low=0)
    contrast: float = option(0.3, "weight of the contrast between cells in the joint stage", low=0)
    one_way: bool = option(False, "BiT in the direction B→B′ only, T(B′B) of the paper's Tab. 6")
    cycle_mode: Literal["adaptive", "full"] = option("adaptive", "which pixels the cycle loss keeps")
    alpha: float = option(3.0, "cycle errors in pixels up to which a pixel is kept", low=0)
    beta: float = option(0.05, "and as a share of its displacement", low=0)
    sed_scale: float = option(5.0, "pixels from which on the epipolar loss grows slowly", above=0)
    bit_scale: float = option(4.0, "pixels from which on BiT grows slowly", above=0)
    gamma: float = option(0.8, "weight of an iteration's loss relative to the next one's", above=0, high=1)
    lr: float = option(2e-4, "learning rate of the encoder", low=0)
    head_lr: float = option(1e-3, "learning rate of its projection", low=0)
    refine_lr: float = option(1e-3, "learning rate of the recurrence", low=0)
    validation: float = option(0.1, "share of the photos kept for validation", above=0, high=0.9)
    keep: Literal["best", "last"] = option("best", "weights that are given back: best on validation, or the last")
    seed: int = option(0, "seed of every draw", low=0)

    @property
    def total(self) -> int:
        """Steps of all stages."""
        return self.warm + self.refine + self.joint

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of training pictures."""
        return self.height, self.width

    def stage(self, step: int) -> str:
        """What is learned at a step: warm, refine or joint."""
        return "warm" if step < self.warm else "refine" if step < self.warm + self.refine else "joint"
