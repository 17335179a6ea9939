"""Which images are like this one? Torch is imported when a picture is first embedded, not before."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# At once, not lazily: the function must win over the module of the same name, whoever imports that first.
from likewise.images.compare import ImageComparison, compare
from likewise.images.config import Config
from likewise.images.model import Embedder, Skipped, default
from likewise.images.presets import preset

if TYPE_CHECKING:
    from likewise.images import diva as diva
    from likewise.images import metrics as metrics
    from likewise.images.dataset import Dataset as Dataset
    from likewise.images.evaluation import evaluate as evaluate
    from likewise.images.exporting import export as export
    from likewise.images.gallery import Gallery as Gallery
    from likewise.images.layouts import cars196 as cars196
    from likewise.images.layouts import cub200 as cub200
    from likewise.images.layouts import folder as folder
    from likewise.images.layouts import omniglot as omniglot
    from likewise.images.layouts import sop as sop
    from likewise.images.metrics import f1 as f1
    from likewise.images.metrics import map_at_r as map_at_r
    from likewise.images.metrics import nmi as nmi
    from likewise.images.metrics import recall_at_k as recall_at_k
    from likewise.images.metrics import spectral_decay as spectral_decay
    from likewise.images.training import train as train

_HOMES = {
    "Dataset": "dataset",
    "Gallery": "gallery",
    "cars196": "layouts",
    "cub200": "layouts",
    "evaluate": "evaluation",
    "export": "exporting",
    "f1": "metrics",
    "folder": "layouts",
    "map_at_r": "metrics",
    "nmi": "metrics",
    "omniglot": "layouts",
    "recall_at_k": "metrics",
    "sop": "layouts",
    "spectral_decay": "metrics",
    "train": "training",
}
_MODULES = ("diva", "metrics")

__all__ = [
    "Config",
    "Embedder",
    "ImageComparison",
    "Skipped",
    "compare",
    "default",
    "preset",
    *sorted([*_HOMES, *_MODULES]),
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"likewise.images.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'likewise.images' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"likewise.images.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
