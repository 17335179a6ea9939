"""Singular values of small stacks of Jacobians, and how many of them are more than rounding."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

NARROW = 1e-4
"""σ_k / σ_1 below which squaring a float64 matrix would cost digits: the SVD takes over there."""

BLOCK = 2**14
"""Columns that are widened to float64 at a time."""


def singular_values(A: Tensor, k: int) -> Tensor:
    """The k largest singular values of each A[i], (n, r, D) → (n, k) float64, descending.

    σ_i = √λ_i(A Aᵀ), the Gram matrix summed in float64; a float64 A with a wide spectrum goes through its SVD.
    """
    import torch

    scale = A.abs().amax(dim=(1, 2), keepdim=True).double()
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    values = torch.linalg.eigvalsh(_gram(A, scale)).flip(1)[:, :k].clamp_min(0).sqrt()
    if A.dtype == torch.float64:
        wide = values[:, -1] < NARROW * values[:, 0]
        if bool(wide.any()):
            values[wide] = torch.linalg.svdvals(A[wide] / scale[wide])[:, :k]
    found: Tensor = values * scale[:, 0]
    return found


def _gram(A: Tensor, scale: Tensor) -> Tensor:
    """(A / scale) (A / scale)ᵀ in float64, over blocks of columns."""
    import torch

    G = torch.zeros(A.shape[0], A.shape[1], A.shape[1], dtype=torch.float64, device=A.device)
    for block in torch.split(A, BLOCK, dim=2):
        wide = block.double() / scale
        G.baddbmm_(wide, wide.mT)
    return G


def floor(first: Tensor, size: int, dim: int, dtype: torch.dtype, *, differences: bool = False) -> Tensor:
    """The noise floor of a sample's singular values, ε √max(D, d) σ_1; ε is that of the dtype f computes in.

    The rounding of float32 networks whose rank is known was seen to leave values of 1 ε σ_1, whatever D: its errors
    are not aligned. √D keeps a distance of 10 to 100 from that, where the worst case D ε would discard good values of a
    wide output. Central differences lose more, and cross kinks: 10 ε^{2/3} takes the place of ε.
    """
    import torch

    eps = float(torch.finfo(dtype).eps)
    low: Tensor = (10 * eps ** (2 / 3) if differences else eps) * max(size, dim) ** 0.5 * first
    return low
