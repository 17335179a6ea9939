"""How alike are two bags of features? The smoothed Wasserstein distance, its plan, and metrics learned under it."""

from __future__ import annotations

from likewise._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
