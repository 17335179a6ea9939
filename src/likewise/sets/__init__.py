"""How alike are two bags of features? The smoothed Wasserstein distance, its plan, and metrics learned under it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# At once, not lazily: the function must win over the module of the same name, whoever imports that first.
from likewise.sets.compare import SetComparison, compare, distances
from likewise.types import Signature

if TYPE_CHECKING:
    from likewise.sets.data import signature as signature
    from likewise.sets.matrix import distance_matrix as distance_matrix
    from likewise.sets.metrics import cmc as cmc
    from likewise.sets.metrics import eer as eer
    from likewise.sets.metrics import pur as pur
    from likewise.sets.metrics import roc as roc
    from likewise.sets.model import WassersteinLMNN as WassersteinLMNN

_HOMES = {
    "signature": "likewise.sets.data",
    "distance_matrix": "likewise.sets.matrix",
    "cmc": "likewise.sets.metrics",
    "eer": "likewise.sets.metrics",
    "pur": "likewise.sets.metrics",
    "roc": "likewise.sets.metrics",
    "WassersteinLMNN": "likewise.sets.model",
}

__all__ = ["SetComparison", "Signature", "compare", "distances", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'likewise.sets' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
