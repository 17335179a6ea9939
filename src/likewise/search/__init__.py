"""Find the same thing again: shortlist by images, re-rank by sets, verify by pixels, and say why."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from likewise.search.collection import Collection as Collection
    from likewise.search.collection import Updated as Updated
    from likewise.search.evidence import Evidence as Evidence
    from likewise.search.evidence import Verifier as Verifier
    from likewise.search.evidence import verified as verified
    from likewise.search.pairs import pair as pair
    from likewise.search.result import Found as Found
    from likewise.search.result import Result as Result
    from likewise.search.verdict import Judge as Judge

_HOMES = {
    "Collection": "likewise.search.collection",
    "Updated": "likewise.search.collection",
    "Evidence": "likewise.search.evidence",
    "Verifier": "likewise.search.evidence",
    "verified": "likewise.search.evidence",
    "pair": "likewise.search.pairs",
    "Found": "likewise.search.result",
    "Result": "likewise.search.result",
    "Judge": "likewise.search.verdict",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'likewise.search' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
