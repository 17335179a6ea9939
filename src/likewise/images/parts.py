"""What a picture shows where: a map inside the network, averaged over a grid, from the pass that gives the row.

The map is the last one of a sixteenth of the crop's side (14 × 14 for 224 px: 112 channels in EfficientNet-Lite0). A
picture's parts are the directions of its GRID × GRID means, row by row from the top left, kept in eight bits each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from jaxtyping import Float32, Int8
    from torch import Tensor, nn

GRID = 7
"""Parts along each side of the crop."""

STRIDE = 16
"""The map is the last one with at least 1/16 of the crop's pixels along a side."""


def walked(network: Any, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """The rows of pictures (b, 3, s, s), and the map (b, c, h, w) that was passed on the way; None if there is none."""
    steps = _steps(network)
    if steps is None:
        return network.features(x), None
    kept, least = None, -(-min(x.shape[2:]) // STRIDE)
    for step in steps:
        x = step(x)
        kept = x if x.ndim == 4 and min(x.shape[2:]) >= least else kept
    return (network.finished(x) if hasattr(network, "finished") else x), kept


def _steps(network: Any) -> list[nn.Module] | None:
    """The modules that a picture goes through, one after the other, where the network tells them."""
    from likewise.images.network import Network
    from likewise.nn.backbone import Backbone

    if isinstance(network, Network):
        return [*network.stem, *network.tail.trunk]
    return network.parts() if isinstance(network, Backbone) else None


def pooled(maps: Tensor, grid: int = GRID) -> Int8[np.ndarray, "b n d"]:
    """Directions of the means of a map over a grid, (b, grid², c), the largest number of each at ±127."""
    import torch

    means = torch.nn.functional.adaptive_avg_pool2d(maps, grid).flatten(2).transpose(1, 2)
    scale = means.abs().amax(dim=2, keepdim=True).clamp_min(torch.finfo(means.dtype).tiny)
    return np.asarray((means * (127 / scale)).round().to(torch.int8).cpu().numpy())


def directions(parts: NDArray[np.int8]) -> Float32[np.ndarray, "*n d"]:
    """Parts (…, d) as unit vectors; one that is zero stays zero."""
    values = parts.astype(np.float32)
    norms = np.linalg.norm(values, axis=-1, keepdims=True)
    return np.asarray(values / np.maximum(norms, 1e-12), dtype=np.float32)
