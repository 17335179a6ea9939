"""How long a training lasts, how its learning rates fall, and how often it is looked at; imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from likewise.train import options as config
from likewise.train.options import knob


@dataclass(frozen=True)
class Fitting:
    """The knobs of a training loop."""

    steps: int = knob(0, "optimiser steps; 0: as many as the epochs make", low=0)
    schedule: Literal["cosine", "linear", "constant", "drop"] = knob(
        "cosine", "how learning rates fall over the steps; drop: once, as drop_at and drop say"
    )
    drop_at: float = knob(0.5, "share of the steps after which rates drop", low=0, high=1)
    drop: float = knob(0.3, "what rates are multiplied by then", above=0, high=1)
    warmup: int = knob(0, "steps over which rates rise from 0", low=0)
    weight_decay: float = knob(1e-4, "AdamW's weight decay of the network", low=0)
    clip: float = knob(0.0, "largest norm of the network's gradient; 0: no limit", low=0)
    ema: float = knob(0.0, "decay of averaged weights to evaluate with; 0: none", low=0, high=0.99999)
    evaluate_every: int = knob(0, "steps between two evaluations; 0: an epoch", low=0)
    save_every: float = knob(60.0, "seconds between two saved states", low=0)
    patience: int = knob(0, "evaluations without a better score before it stops; 0: never", low=0)

    def __post_init__(self) -> None:
        config.check(self)

    def rate(self, step: int) -> float:
        """The share of the full learning rates at a step."""
        rising = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        done = step / max(self.steps, 1)
        dropped = self.drop if done >= self.drop_at else 1.0
        cosine = 0.5 * (1 + math.cos(math.pi * done))
        falling = {"cosine": cosine, "linear": 1 - done, "constant": 1.0, "drop": dropped}
        return rising * falling[self.schedule]
