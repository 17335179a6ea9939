"""A backbone, its frozen beginning and its trained end, and one projection that all heads share."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from likewise.errors import InputError, ShapeError

WHOLE = 1 << 30
"""A chunk that holds any batch."""
MOST_NUMBERS = 65_536
"""Rows longer than this are refused: no file makes the network take gigabytes."""


class Tail(nn.Module):
    """What is trained: the end of a backbone, then a projection to `heads` × D unit rows."""

    def __init__(
        self,
        parts: Sequence[nn.Module],
        into: int,
        total: int,
        heads: int,
        *,
        chunk: int = 20,
        frozen_norm: bool = True,
    ) -> None:
        super().__init__()
        if total % heads:
            raise InputError(f"total: {total} dimensions cannot be shared evenly by {heads} heads")
        self.trunk = nn.Sequential(*parts)
        self.projection = nn.Linear(into, total)
        self.heads, self.chunk, self.frozen_norm = heads, chunk, frozen_norm

    def train(self, mode: bool = True) -> Tail:
        """Training mode; with `frozen_norm` normalisations stay as in evaluation, small batches cannot spoil them."""
        super().train(mode)
        if self.frozen_norm:
            for m in self.modules():
                if isinstance(m, nn.modules.batchnorm._BatchNorm):
                    m.eval()
        return self

    def forward(self, x: Float[Tensor, "b ..."]) -> Float[Tensor, "b h D"]:
        """Unit rows of each head; the batch goes through in chunks that fit the processor's cache."""
        parts = [x] if self.chunk == WHOLE else torch.split(x, self.chunk)
        return self.projected(torch.cat([self.trunk(part) for part in parts]))

    def projected(self, features: Float[Tensor, "b f"]) -> Float[Tensor, "b h D"]:
        """Unit rows of each head for what the backbone's end gave."""
        return nn.functional.normalize(self.projection(features).unflatten(1, (self.heads, -1)), dim=2)

    @torch.no_grad()
    def begin(self, features: NDArray[Any], *, seed: int) -> None:
        """Start the projection from principal axes of the backbone's features."""
        weight, bias = principal(features, self.projection.out_features, seed=seed)
        self.projection.weight.copy_(torch.from_numpy(weight))
        self.projection.bias.copy_(torch.from_numpy(bias))


class Network(nn.Module):
    """Pictures to embeddings: stem (frozen), tail, and the heads' rows side by side at length 1."""

    def __init__(self, stem: Sequence[nn.Module], tail: Tail, *, weights: Sequence[float] | None = None) -> None:
        super().__init__()
        self.stem = nn.Sequential(*stem).requires_grad_(False)
        self.tail = tail
        share = torch.ones(tail.heads) if weights is None else torch.as_tensor(weights, dtype=torch.float32)
        if share.shape != (tail.heads,) or bool((share < 0).any()) or not bool(share.any()):
            raise InputError(f"weights: expected {tail.heads} numbers ≥ 0, one a head, got {weights}")
        self.register_buffer("weights", share / share.norm())

    @property
    def dim(self) -> int:
        """Dimensions of an embedding."""
        return self.tail.projection.out_features

    def train(self, mode: bool = True) -> Network:
        """Training mode, with the frozen stem left in evaluation mode."""
        super().train(mode)
        self.stem.eval()
        return self

    def features(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b dim"]:
        """Every head's unit row times its weight, side by side: unit rows."""
        return self.joined(self.tail(self.stem(x)))

    def forward(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b dim"]:
        """`features`."""
        return self.features(x)

    def finished(self, features: Float[Tensor, "b f"]) -> Float[Tensor, "b dim"]:
        """The embedding of what the backbone's end gave."""
        return self.joined(self.tail.projected(features))

    def joined(self, rows: Float[Tensor, "b h D"]) -> Float[Tensor, "b dim"]:
        """Heads side by side, each times its weight."""
        weights: Tensor = self.weights  # type: ignore[assignment]
        return (rows * weights[None, :, None]).flatten(1)


def assemble(backbone: Any, *, frozen: int, total: int, heads: int, norm: str = "folded", chunk: int = 20) -> Network:
    """The network of a backbone whose first `frozen` parts stay as they are.

    norm: "folded" moves normalisations into their convolutions, where the backbone can do that; "frozen" keeps them as
    they are in evaluation; "trained" lets them see the batches (then all of a batch goes through in one piece).
    """
    if not 1 <= total <= MOST_NUMBERS:
        raise InputError(f"total: expected 1 to {MOST_NUMBERS:,} numbers a picture, got {total}")
    backbone = backbone.fold() if norm == "folded" and hasattr(backbone, "fold") else copy.deepcopy(backbone)
    parts = list(backbone.requires_grad_(True).parts())
    if not 0 <= frozen <= len(parts):
        raise InputError(f"frozen: the backbone has {len(parts)} parts, got {frozen}")
    whole = norm == "trained"
    tail = Tail(parts[frozen:], backbone.dim, total, heads, chunk=WHOLE if whole else chunk, frozen_norm=not whole)
    return Network(parts[:frozen], tail).eval()  # a module of the user's own comes as it was left


def principal(features: NDArray[Any], total: int, *, seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Weight (total, F) and bias of R Λ^(−1/4) Vᵀ (x − μ): centred principal axes, half whitened, turned at random.

    The turn R has orthonormal columns, so that every head of a later split sees a share of every axis.
    """
    x = np.asarray(features, dtype=np.float64)
    if x.ndim != 2 or len(x) < 2:
        raise ShapeError(f"features: expected at least two rows (n, F), got shape {x.shape}")
    mean = x.mean(axis=0)
    _, singular, axes = np.linalg.svd(x - mean, full_matrices=False)
    variance = singular**2 / (len(x) - 1)
    most = min(total, int((variance > 1e-9 * variance[0]).sum()) if variance[0] > 0 else 0)
    if most < 1:
        raise InputError("features: all rows are equal; principal axes need rows that differ")
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(total, most)))[0]
    weight = turn @ (variance[:most, None] ** -0.25 * axes[:most])
    return weight.astype(np.float32), (-weight @ mean).astype(np.float32)
