"""likewise compares visual data at four levels, and shows its reasons.

>>> import likewise as lw
>>> lw.sets.compare(P, Q)                                       # doctest: +SKIP
SetComparison(distance=0.413, plan 8×11, converged in 23 iterations)

Nothing heavy is imported here: levels load when first touched.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from likewise._lazy import attach

_load, __dir__, __all__ = attach(__name__)


def __getattr__(name: str) -> Any:
    return version("likewise") if name == "__version__" else _load(name)
