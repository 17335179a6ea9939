"""Instance normalisation with what follows it, ReLU and the residual, in as few passes over memory as there can be.

torch's own takes most of an encoder's time on a CPU: its statistics are slow on channels-last maps. With gradients, or
on another device, torch's operations are used; the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

EPS = 1e-5
"""Added to variances, as torch does."""


class InstanceNorm(nn.Module):
    """(x − mean) / √(variance + ε) of each picture's channel; no weights, as in the original."""

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """x s − mean s with s = 1/√(variance + ε)."""
        variance, mean = torch.var_mean(x, (2, 3), correction=0, keepdim=True)
        scale = torch.rsqrt(variance + EPS)
        return torch.addcmul(-mean * scale, x, scale)

    def finish(
        self, x: Float[Tensor, "b c h w"], *, relu: bool = True, add: Float[Tensor, "b c h w"] | None = None
    ) -> Float[Tensor, "b c h w"]:
        """n(x), relu(n(x)), or with a residual relu(add + relu(n(x))); x is overwritten where no gradient needs it."""
        if _compiled(x, add):
            return _in_place(x, relu, add)
        y = self.forward(x)
        y = y.relu_() if relu else y
        return y if add is None else (y + add).relu_()


def _compiled(x: Tensor, add: Tensor | None) -> bool:
    """Whether the kernels can take it: float32 in channels-last on a CPU, no gradient wanted."""
    tensors = [x] if add is None else [x, add]
    grad = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    return not grad and all(_plain(t) for t in tensors)


def _plain(t: Tensor) -> bool:
    last = t.is_contiguous(memory_format=torch.channels_last)
    return t.device.type == "cpu" and t.dtype == torch.float32 and last and t.numel() > 0


def _in_place(x: Tensor, relu: bool, add: Tensor | None) -> Tensor:
    from likewise.pixels import normalisation

    pictures = _rows(x)
    others = pictures if add is None else _rows(add)

    def work(i: int) -> None:
        normalisation.normalise(pictures[i], others[i], EPS, relu, add is not None)

    _each(work, len(pictures))
    return x


def _rows(x: Tensor) -> Any:
    """(b, h w, c) on the same memory."""
    return x.detach().permute(0, 2, 3, 1).flatten(1, 2).numpy()


def _each(work: Callable[[int], None], count: int) -> None:
    threads = min(torch.get_num_threads(), count)
    if threads == 1:
        for i in range(count):
            work(i)
        return
    with ThreadPoolExecutor(threads, "likewise-norm") as pool:
        list(pool.map(work, range(count)))
