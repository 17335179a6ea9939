"""Networks whose weights come from elsewhere. They know no level; torch is imported when a network is asked for."""

from __future__ import annotations

from likewise._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
