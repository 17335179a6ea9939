"""Where did this point go? Lighting-invariant flow between two images, and matches guided by it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# At once, not lazily: the function must win over the module of the same name, whoever imports that first.
from likewise.pixels.compare import PixelComparison, compare
from likewise.pixels.config import Config

if TYPE_CHECKING:
    from likewise.flowfiles import read_flow as read_flow
    from likewise.flowfiles import write_flow as write_flow
    from likewise.pixels import life as life
    from likewise.pixels import metrics as metrics
    from likewise.pixels.baselines import DIS as DIS
    from likewise.pixels.baselines import SiftHomography as SiftHomography
    from likewise.pixels.baselines import Zero as Zero
    from likewise.pixels.data import FlowDataset as FlowDataset
    from likewise.pixels.data import FlowPair as FlowPair
    from likewise.pixels.evaluation import evaluate as evaluate
    from likewise.pixels.layouts import read as read
    from likewise.pixels.life import bit_loss as bit_loss
    from likewise.pixels.life import cycle_loss as cycle_loss
    from likewise.pixels.life import life_loss as life_loss
    from likewise.pixels.life import sed as sed
    from likewise.pixels.localize import Map as Map
    from likewise.pixels.matching import Matches as Matches
    from likewise.pixels.matching import match as match
    from likewise.pixels.model import Aligner as Aligner
    from likewise.pixels.model import Manner as Manner
    from likewise.pixels.model import default as default
    from likewise.pixels.raft import RAFT as RAFT
    from likewise.pixels.rendering import Renderer as Renderer
    from likewise.pixels.rendering import render as render
    from likewise.pixels.sfm import reconstruct as reconstruct
    from likewise.pixels.training import train as train

_HOMES = {
    "Aligner": "model",
    "DIS": "baselines",
    "FlowDataset": "data",
    "FlowPair": "data",
    "Manner": "model",
    "Map": "localize",
    "Matches": "matching",
    "RAFT": "raft",
    "Renderer": "rendering",
    "SiftHomography": "baselines",
    "Zero": "baselines",
    "bit_loss": "life",
    "cycle_loss": "life",
    "default": "model",
    "evaluate": "evaluation",
    "life_loss": "life",
    "match": "matching",
    "read": "layouts",
    "reconstruct": "sfm",
    "render": "rendering",
    "sed": "life",
    "train": "training",
}
_FILES = ("read_flow", "write_flow")
_MODULES = ("life", "metrics")

__all__ = ["Config", "PixelComparison", "compare", *sorted([*_HOMES, *_FILES, *_MODULES])]


def __getattr__(name: str) -> Any:
    if name in _FILES:
        return getattr(importlib.import_module("likewise.flowfiles"), name)
    if name in _MODULES:
        return importlib.import_module(f"likewise.pixels.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'likewise.pixels' has no attribute {name!r}")
    return getattr(importlib.import_module(f"likewise.pixels.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
