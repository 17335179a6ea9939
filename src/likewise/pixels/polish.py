"""Fractions of a pixel: DIS on the equalised grey of a and of b bent onto it, trusted where it is small and returns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from likewise.pixels.geometry import carried, compose, grid, sample
from likewise.pixels.inference import Aligned

FARTHEST = 3.0
"""Corrections of more pixels than this are not believed."""


def polished(found: Aligned, a: Float[Tensor, "3 h w"], b: Float[Tensor, "3 h2 w2"]) -> Aligned:
    """Both flows, corrected."""
    ab, ba = _corrected(found.ab, a, b), _corrected(found.ba, b, a)
    return replace(found, ab=ab, ba=ba)


def _corrected(flow: Float[Tensor, "h w 2"], a: Tensor, b: Tensor) -> Float[Tensor, "h w 2"]:
    """f(x) → f(x + c(x)) + c(x), with c the residual flow from a to b bent onto a, where c is small and comes home."""
    import cv2

    made: Any = cv2
    size = (int(a.shape[-2]), int(a.shape[-1]))
    bent = sample(b[None], (grid(*size) + flow)[None], padding="border")[0]
    search = made.DISOpticalFlow_create(made.DISOPTICAL_FLOW_PRESET_MEDIUM)
    search.setFinestScale(0)
    one, two = _grey(a), _grey(bent)
    there = torch.from_numpy(search.calc(one, two, None))
    back = torch.from_numpy(search.calc(two, one, None))
    home = torch.linalg.vector_norm(there + carried(back[None], (grid(*size) + there)[None])[0], dim=-1)
    trusted = (torch.linalg.vector_norm(there, dim=-1) <= FARTHEST) & (home <= 0.5)
    share = _softened(trusted.float())
    return compose((share[..., None] * there)[None], flow[None])[0]


def _softened(x: Float[Tensor, "h w"]) -> Float[Tensor, "h w"]:
    import cv2

    return torch.from_numpy(cv2.blur(x.numpy(), (5, 5)))


def _grey(x: Float[Tensor, "3 h w"]) -> np.ndarray[Any, Any]:
    import cv2

    rgb = (x.permute(1, 2, 0).numpy() * 255).round().astype(np.uint8)
    return np.asarray(cv2.equalizeHist(cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)))
