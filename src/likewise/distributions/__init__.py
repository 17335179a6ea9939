"""What does this model or collection cover? Polarity sampling of any generator, and coverage of any two collections."""

from __future__ import annotations

from likewise._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
