"""The paper's recipe for a GPU [LIFE], by the name of a preset; the default `Config` is ours, for a CPU.

What the paper says: RAFT as published, both directions with shared weights, SED on pairs of SfM, the adaptive cycle on
them, BiT on single photos, all at once; no change of light but the one that real pairs have. What it does not give:
the weights of the losses (here 1 each), α and β of the adaptive cycle (3 px, 0.05), the strength of T (1: turns of up
to 30°). Rates, decay, clipping, steps, γ and iterations are those of RAFT's published training on FlyingThings, the
size is that of its training on FlyingChairs, and a batch holds as many pairs of views as bent photos: what LIFE itself
ran with was not found, and no run of ours is that long.
"""

from __future__ import annotations

import difflib
from typing import Any

from likewise.errors import ConfigError
from likewise.pixels.config import Config

PRESETS: dict[str, dict[str, Any]] = {
    "life": {
        "network": "large",
        "warm": 0,
        "refine": 0,
        "joint": 100_000,
        "height": 368,
        "width": 496,
        "pairs": 6,
        "share": 1.0,
        "scenes": 6,
        "iters": 12,
        "bend": 1.0,
        "light": 0.0,
        "night": 0.0,
        "sed": 1.0,
        "bit": 1.0,
        "cycle": 1.0,
        "contrast": 0.0,
        "cycle_mode": "adaptive",
        "alpha": 3.0,
        "beta": 0.05,
        "gamma": 0.8,
        "refine_lr": 1.25e-4,
        "weight_decay": 1e-4,
        "clip": 1.0,
        "schedule": "linear",
        "warmup": 5_000,
        "evaluate_every": 1_000,
    },
}


def preset(name: str, **changes: Any) -> Config:
    """The configuration of a preset, with changes."""
    return Config(**{**settings(name), **changes})


def settings(name: str) -> dict[str, Any]:
    """What a preset sets."""
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"preset: expected one of {', '.join(PRESETS)}, got {name!r}{hint}")
    return dict(PRESETS[name])
