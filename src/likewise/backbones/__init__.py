"""Networks whose weights come from elsewhere. They know no level; torch is imported when a network is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from likewise.backbones.efficientnet import EfficientNetLite0 as EfficientNetLite0

__all__ = ["EfficientNetLite0"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'likewise.backbones' has no attribute {name!r}")
    from likewise.backbones.efficientnet import EfficientNetLite0

    return EfficientNetLite0


def __dir__() -> list[str]:
    return __all__
