"""The settings of the paper's runs by data set and backbone [DiVA Tab. 1], as the authors' sample runs give them.

They are made for a GPU and hundreds of epochs. Two things differ on purpose: four pictures a class, as three distinct
ones make a triplet within a class (the released runs take two), and ρ in units of D² c. The backbone's weights are the
user's to give.
"""

from __future__ import annotations

import difflib
from typing import Any

from likewise.errors import ConfigError
from likewise.images.config import Config

HEAD = 128
"""Dimensions of a head in the paper: four of them make 512."""


def _run(backbone: str, alpha: float, rho: float, drop: float, epoch: int, epochs: int, batches: int) -> dict[str, Any]:
    """A row of the table; `batches` is the length of the queue in batches of 112."""
    return {
        "backbone": backbone,
        "size": 224,
        "shortest": 256,
        "dim": 4 * HEAD,
        "tasks": "disc,shared,intra,dance",
        "alpha_shared": alpha,
        "alpha_intra": alpha,
        "alpha_sample": alpha,
        "shared": "random",
        "rho": rho / HEAD**2,
        "tau": 0.01,
        "queue": 112 * batches,
        "momentum": 0.9,
        "norm": "frozen" if backbone == "resnet50" else "trained",
        "start": "random",
        "classes": 28,
        "per_class": 4,
        "epochs": float(epochs),
        "schedule": "drop",
        "drop_at": epoch / epochs,
        "drop": drop,
        "lr": 1e-5,
        "head_lr": 1e-5,
        "psi_lr": 1e-5,
        "weight_decay": 4e-4,
        "smallest": 0.16,
        "mirror": False,
    }


PRESETS: dict[str, dict[str, Any]] = {
    "cub200-resnet50": _run("resnet50", 0.3, 1500, 0.2, 55, 350, 30),
    "cub200-inception-bn": _run("inception-bn", 0.1, 300, 0.3, 70, 350, 30),
    "cars196-resnet50": _run("resnet50", 0.15, 100, 0.2, 70, 350, 30),
    "cars196-inception-bn": _run("inception-bn", 0.15, 100, 0.3, 160, 350, 30),
    "sop-resnet50": _run("resnet50", 0.2, 150, 0.3, 70, 150, 70),
    "sop-inception-bn": _run("inception-bn", 0.1, 150, 0.3, 80, 150, 70),
}


def preset(name: str, **changes: Any) -> Config:
    """The configuration of one of the paper's runs, with changes."""
    return Config(**{**settings(name), **changes})


def settings(name: str) -> dict[str, Any]:
    """What a preset sets."""
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"preset: expected one of {', '.join(PRESETS)}, got {name!r}{hint}")
    return dict(PRESETS[name])
