"""Which images are like this one? Torch is imported when a picture is first embedded, not before."""

from __future__ import annotations

from likewise.images.compare import ImageComparison, compare
from likewise.images.model import Embedder, Skipped, default

__all__ = ["Embedder", "ImageComparison", "Skipped", "compare", "default"]
