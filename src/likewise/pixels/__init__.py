"""Where did this point go? Lighting-invariant flow between two images, and matches guided by it."""

from __future__ import annotations

from likewise._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
