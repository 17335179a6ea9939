"""Convolution and batch normalisation as one step, with the weight gradients that torch is slow at on a CPU.

Frozen statistics make a normalisation a scale and a shift, which move into the convolution: half the passes over
memory, the same function, the same gradients. Of a depthwise convolution on a small map, oneDNN computes the weight
gradient ten times slower than its share of the work; here it is a depthwise convolution itself.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

SMALL = 16
"""The largest side of a map on which a 5 × 5 depthwise weight gradient is computed here."""

BLOCK = 1 << 19
"""Numbers of a map that are rearranged at a time: 2 MB, which stay in the cache."""


def convolve(x: Tensor, conv: nn.Conv2d, bn: nn.Module, padding: tuple[int, int] | None = None) -> Tensor:
    """bn(w ∗ x); where bn is in evaluation mode, (w γ/√(σ² + ε)) ∗ x + (β − μ γ/√(σ² + ε)) [BN Alg. 2], one pass.

    `padding` stands for the convolution's own. Gradients reach w, γ and β in either case.
    """
    around = _pair(conv.padding) if padding is None else padding
    frozen = isinstance(bn, nn.BatchNorm2d) and not bn.training
    weight, bias = _folded(conv, cast(nn.BatchNorm2d, bn)) if frozen else (conv.weight, conv.bias)
    y = _convolution(x, weight, bias, _pair(conv.stride), around, conv.groups, fast=conv.training)
    return y if frozen else cast(Tensor, bn(y))


class Step(nn.Module):
    """A convolution, its normalisation and a ReLU that stand elsewhere in a network, as one module."""

    def __init__(self, conv: nn.Conv2d, bn: nn.Module) -> None:
        super().__init__()
        self.conv, self.bn = conv, bn

    def forward(self, x: Tensor) -> Tensor:
        """max(bn(w ∗ x), 0)."""
        return convolve(x, self.conv, self.bn).relu_()


def fold_pair(owner: nn.Module, conv: str, bn: str) -> None:
    """Move a normalisation into its convolution, once: w ← w γ/√(σ² + ε), b ← (b − μ) γ/√(σ² + ε) + β."""
    norm = getattr(owner, bn)
    if isinstance(norm, nn.BatchNorm2d):
        setattr(owner, conv, folded(getattr(owner, conv), norm))
        setattr(owner, bn, nn.Identity())


def folded(conv: nn.Conv2d, bn: nn.BatchNorm2d) -> nn.Conv2d:
    """The convolution with the normalisation inside, computed in float64 and laid out channels-last."""
    kind = conv.weight.dtype
    fused = nn.utils.fuse_conv_bn_eval(conv.double().eval(), bn.double().eval())
    return fused.to(kind).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _folded(conv: nn.Conv2d, bn: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    mean, variance = cast(Tensor, bn.running_mean), cast(Tensor, bn.running_var)
    scale = bn.weight * torch.rsqrt(variance + bn.eps)
    offset = -mean if conv.bias is None else conv.bias - mean
    return conv.weight * scale.view(-1, 1, 1, 1), bn.bias + offset * scale


def _pair(value: Any) -> tuple[int, int]:
    return value[0], value[1]


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: tuple[int, int],
    padding: tuple[int, int],
    groups: int,
    *,
    fast: bool,
) -> Tensor:
    """w ∗ x + b; in training on a CPU, where it pays, with this module's own backward pass."""
    fast = fast and torch.is_grad_enabled() and weight.requires_grad and x.device.type == "cpu"
    if fast and (groups > 1 or weight.shape[2:] == (1, 1)):
        y: Tensor = _Convolution.apply(x, weight, bias, stride, padding, groups)  # type: ignore[no-untyped-call]
        return y
    return functional.conv2d(x, weight, bias, stride, padding, 1, groups)


class _Convolution(torch.autograd.Function):
    """conv2d whose weight gradient is a product of matrices (1 × 1) or a convolution (depthwise, small map)."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, groups: int) -> Tensor:
        """w ∗ x + b."""
        return functional.conv2d(x, weight, bias, stride, padding, 1, groups)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep what the gradients need."""
        x, weight, _, ctx.stride, ctx.padding, ctx.groups = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        """∂x by torch; ∂w = ∑ g x over images and places; ∂b = ∑ g (torch would compute ∂w a second time for it)."""
        x, weight = ctx.saved_tensors
        needs_x, needs_w, needs_b = ctx.needs_input_grad[:3]
        own = needs_w and (_pointwise(weight, ctx) or _slow(x, weight, ctx))
        gx = gw = None
        if needs_x or (needs_w and not own):
            mask = (needs_x, needs_w and not own, False)
            settings = (ctx.stride, ctx.padding, (1, 1), False, (0, 0), ctx.groups, mask)
            gx, gw, _ = torch.ops.aten.convolution_backward(g, x, weight, None, *settings)
        if own:
            gw = _matrix_gradient(x, g) if _pointwise(weight, ctx) else depthwise_gradient(x, g, weight.shape, ctx)
        return gx, gw, g.sum((0, 2, 3)) if needs_b else None, None, None, None


def _pointwise(weight: Tensor, ctx: Any) -> bool:
    return weight.shape[2:] == (1, 1) and ctx.groups == 1 and ctx.stride == (1, 1) and ctx.padding == (0, 0)


def _slow(x: Tensor, weight: Tensor, ctx: Any) -> bool:
    """Whether torch's weight gradient of this depthwise convolution is slow: 5 × 5, or a kernel beyond the map."""
    low, high, kernel = min(x.shape[2:]), max(x.shape[2:]), weight.shape[2]
    depthwise = ctx.groups == x.shape[1] == weight.shape[0]
    return depthwise and low >= 2 and high <= SMALL and (kernel == 5 or low < kernel)


def _matrix_gradient(x: Tensor, g: Tensor) -> Tensor:
    """∂w[o, i] = ∑ over images and places of g[o] x[i]."""
    rows, columns = (t.permute(0, 2, 3, 1).reshape(-1, t.shape[1]) for t in (g, x))
    return (rows.T @ columns)[:, :, None, None]


def depthwise_gradient(x: Tensor, g: Tensor, shape: torch.Size, ctx: Any) -> Tensor:
    """∂w[c, a, b] = ∑_n ∑_ij g[n, c, i, j] x[n, c, s i + a − p, s j + b − p].

    For each picture and channel that is x convolved with the kernel g, dilated by the stride s: a depthwise
    convolution of n · c channels, summed over n.
    """
    total = x.new_zeros(*shape[2:], x.shape[1])
    images = max(1, BLOCK // x[0].numel())
    for some, slopes in zip(torch.split(x, images), torch.split(g, images), strict=True):
        n, c, height, width = some.shape
        side_by_side = some.permute(2, 3, 0, 1).reshape(1, height, width, n * c).permute(0, 3, 1, 2)
        kernels = slopes.reshape(n * c, 1, *slopes.shape[2:])
        maps = functional.conv2d(side_by_side, kernels, None, 1, ctx.padding, ctx.stride, n * c)
        maps = maps[0, :, : shape[2], : shape[3]].permute(1, 2, 0)
        total += maps.reshape(*shape[2:], n, c).sum(2)
    return total.permute(2, 0, 1)[:, None]
