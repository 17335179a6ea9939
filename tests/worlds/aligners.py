"""Models of flow with known answers, in the place of a trained network."""

from __future__ import annotations

import torch
from torch import Tensor


class Shifted:
    """b is a moved right by dx and down by dy: the flow there, and its opposite back."""

    name = "shifted"

    def __init__(self, dx: float = 3.0, dy: float = -2.0) -> None:
        self.vector = torch.tensor([float(dx), float(dy)])
        self.calls = 0

    def flow(self, a: Tensor, b: Tensor) -> Tensor:
        self.calls += 1
        return self.vector.expand(int(a.shape[-2]), int(a.shape[-1]), 2).clone()

    def both(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return self.flow(a, b), -self.flow(b, a)
