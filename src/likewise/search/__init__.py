"""Find the same thing again: shortlist by images, re-rank by sets, verify by pixels, and say why."""

from __future__ import annotations

from likewise._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
