"""One picture, however it is given, as the tensor (3, h, w) in [0, 1] that the level works on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from likewise import inputs

if TYPE_CHECKING:
    from jaxtyping import Float, UInt8
    from torch import Tensor

Picture: TypeAlias = Any
"""A path, a tensor (3, h, w) in [0, 1] or uint8, or an array (h, w), (h, w, 1), (h, w, 3) or (h, w, 4)."""


def picture(image: Picture, *, where: str = "image") -> Float[Tensor, "3 h w"]:
    """Any image as a float32 tensor (3, h, w) in [0, 1]."""
    tensor: Tensor = inputs.image(image, where=where).tensor
    return tensor


def luma(image: Float[Tensor, "3 h w"]) -> Float[np.ndarray, "h w"]:
    """0.299 R + 0.587 G + 0.114 B, float32 in [0, 1]."""
    r, g, b = image.detach().cpu().numpy()
    return np.asarray(np.clip(0.299 * r + 0.587 * g + 0.114 * b, 0, 1), dtype=np.float32)


def grey(image: Float[Tensor, "3 h w"]) -> UInt8[np.ndarray, "h w"]:
    """Luma, rounded to 8 bits."""
    return np.asarray(np.rint(luma(image) * 255), dtype=np.uint8)
