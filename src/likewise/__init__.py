"""likewise compares visual data at four levels, and shows its reasons.

>>> import likewise as lw
>>> lw.sets.compare(P, Q)                                       # doctest: +SKIP
SetComparison(distance=0.413, plan 8×11, converged in 23 iterations)

Nothing heavy is imported here: levels load when first touched.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from likewise import distributions as distributions
    from likewise import images as images
    from likewise import pixels as pixels
    from likewise import search as search
    from likewise import sets as sets
    from likewise.engine.checkpoint import load as load
    from likewise.engine.checkpoint import save as save
    from likewise.errors import ConfigError as ConfigError
    from likewise.errors import ConvergenceWarning as ConvergenceWarning
    from likewise.errors import FileError as FileError
    from likewise.errors import InputError as InputError
    from likewise.errors import LikewiseError as LikewiseError
    from likewise.errors import MissingExtra as MissingExtra
    from likewise.errors import NotFittedError as NotFittedError
    from likewise.errors import ShapeError as ShapeError
    from likewise.io import read as read
    from likewise.levels import compare as compare
    from likewise.types import Comparison as Comparison
    from likewise.types import Signature as Signature

_HOMES = {
    "distributions": "likewise.distributions",
    "images": "likewise.images",
    "pixels": "likewise.pixels",
    "search": "likewise.search",
    "compare": "likewise.levels:compare",
    "sets": "likewise.sets",
    "read": "likewise.io:read",
    "save": "likewise.engine.checkpoint:save",
    "load": "likewise.engine.checkpoint:load",
    "Signature": "likewise.types:Signature",
    "Comparison": "likewise.types:Comparison",
    **{
        name: f"likewise.errors:{name}"
        for name in (
            "LikewiseError",
            "InputError",
            "ShapeError",
            "ConfigError",
            "FileError",
            "NotFittedError",
            "MissingExtra",
            "ConvergenceWarning",
        )
    },
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("likewise")
    if name not in _HOMES:
        raise AttributeError(f"module 'likewise' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    value = importlib.import_module(module)
    return getattr(value, attribute) if attribute else value


def __dir__() -> list[str]:
    return __all__
