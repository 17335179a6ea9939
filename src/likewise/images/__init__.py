"""Which images are like this one? Torch is imported when a picture is first embedded, not before."""

from __future__ import annotations

from likewise._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
