"""What a network gives, as pictures that can be shown: 8 bits, (h, w, 3)."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import UInt8

from likewise.errors import ShapeError


def as_pictures(x: Any) -> list[UInt8[np.ndarray, "h w 3"]]:
    """A batch (n, 1 or 3, h, w) as 8-bit pictures.

    Values are taken to lie in [0, 1], or in [−1, 1] if any is below −0.01; what lies outside is cut.
    """
    batch = np.asarray(x.detach().cpu() if hasattr(x, "detach") else x, dtype=np.float32)
    if batch.ndim != 4 or batch.shape[1] not in (1, 3):
        raise ShapeError(f"pictures: expected (n, 1 or 3, h, w), got shape {batch.shape}")
    if batch.size and batch.min() < -0.01:
        batch = (batch + np.float32(1)) / np.float32(2)
    whole = np.rint(np.clip(batch, 0, 1) * 255).astype(np.uint8)
    return [np.ascontiguousarray(np.broadcast_to(p, (3, *p.shape[1:])).transpose(1, 2, 0)) for p in whole]
