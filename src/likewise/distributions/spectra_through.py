"""A composite outer ∘ inner whose inner part is cheap: its Jacobian says what to ask the outer part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from likewise.distributions import jacobian as modes
from likewise.distributions import spectra_values as numbers
from likewise.distributions.jacobian import Jacobian, Map

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Composite:
    """z → outer(inner(z)), as in style generators: inner maps z to w (n, m) cheaply, outer draws the picture.

    A callable like any other; `spectrum` also sees its parts.
    """

    inner: Map
    outer: Map

    def __call__(self, z: Tensor) -> Any:
        return self.outer(self.inner(z))


def stack(J: Jacobian, f: Composite, z: Tensor, k: int, tail: float) -> Tensor:
    """J_outer U S (1, r, D) at one latent, J_inner = U S Vᵀ, its directions asked in the order of S while they matter.

    What is left away has singular values of at most s_{r+1} ‖J_outer‖; by Weyl the relative error of σ_i is at most
    ½ (s_{r+1} ‖J_outer‖ / σ_i)². Asking stops where that quotient is below `tail` for i = k, ‖J_outer‖ estimated by the
    largest ‖J_outer u_i‖ seen. J counts the passes through outer, where the cost is.
    """
    import torch

    w, steps = _inner(f, z)
    kept, gain = [], 0.0
    for rows in modes.slices(len(steps), max(16, min(J.chunk, 32))):
        block = J.push(w, steps[rows, None])
        kept.append(block)
        gain = max(gain, float(_ratios(block, steps[rows]).max()))
        rest = steps[rows.stop].norm() if rows.stop < len(steps) else torch.zeros(())
        if rows.stop >= k and float(rest) * gain <= tail * _kth(kept, k):
            break
    return torch.cat(kept).transpose(0, 1)


def _inner(f: Composite, z: Tensor) -> tuple[Tensor, Tensor]:
    """w = inner(z) and the rows s_i u_i of (U S)ᵀ, longest first, without those that are only rounding."""
    import torch

    inner = modes.linearise(f.inner, z, None)
    axes = torch.eye(inner.dim, dtype=z.dtype, device=z.device)
    M = inner.push(z, axes[:, None])[:, 0].double()
    _, s, U = torch.linalg.svd(M, full_matrices=False)
    low = numbers.floor(s[:1], inner.size, inner.dim, z.dtype)
    count = max(1, int((s > low).sum()))
    with torch.no_grad():
        w = f.inner(z)
    return w, (s[:count, None] * U[:count]).to(z.dtype)


def _ratios(block: Tensor, steps: Tensor) -> Tensor:
    lengths: Tensor = block[:, 0].norm(dim=1) / steps.norm(dim=1)
    return lengths


def _kth(kept: list[Tensor], k: int) -> float:
    import torch

    return float(numbers.singular_values(torch.cat(kept).transpose(0, 1), k)[0, -1])
