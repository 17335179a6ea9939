"""What every backbone is: images (b, 3, h, w) in [0, 1] to vectors (b, dim), in parts that follow one another.

Also here: how a photo is brought to the size that a backbone expects, `as_backbone` for a network of one's own, and the
smallest backbone, `ConvNet`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Protocol, Self, cast, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from likewise.errors import InputError, ShapeError

SHORTEST, CROP = 256, 224
"""The shortest side of a photo in pixels, and the side of the square that is cut from its middle."""

DECODED_SIDE = 2 * SHORTEST
"""A large JPEG is decoded no smaller than this, so that the resampling, not the decoder, decides the result."""

if hasattr(os, "register_at_fork"):
    # the threads of OpenMP are not there in a process that was forked, which waits for them for ever
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


# ----------------------------------------------------------------------------------------------------- the contract


class Backbone(nn.Module):
    """A network that gives each image a vector of `dim` numbers; what `lw.nn.named` and `lw.nn.as_backbone` return.

    Attributes
    ----------
    dim : int
        Length of the vector.
    size : int
        Side of the square images that its weights expect, in pixels.
    frozen_bn : bool
        Normalisations stay in evaluation mode under `train()`: fine-tuning on small batches then cannot spoil their
        statistics. Call `train()` on the network, not on a part of it.

    Examples
    --------
    >>> import likewise as lw, torch
    >>> net = lw.nn.named("convnet")
    >>> net.dim, net.features(torch.zeros(2, 3, 32, 32)).shape
    (64, torch.Size([2, 64]))
    >>> len(net.parts())  # normalised pixels, four blocks, the mean over the map
    6
    """

    dim: int
    size: int
    frozen_bn: bool
    classifier_name = ""

    def parts(self) -> list[nn.Module]:
        """Modules that share this network's weights; one after the other is `features`, so the first k can be kept."""
        raise NotImplementedError

    def features(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b d"]:
        """The pooled vector of each image in [0, 1]."""
        for part in self.parts():
            x = part(x)
        return x

    def forward(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b n"]:
        """The logits of the classes; of a network without a classifier, the same as `features`."""
        y = self.features(x)
        return cast(Tensor, getattr(self, self.classifier_name)(y)) if self.classifier_name else y

    def train(self, mode: bool = True) -> Self:
        """Training mode, with the normalisations left in evaluation mode where `frozen_bn`."""
        super().train(mode)
        if self.frozen_bn:
            freeze_norms(self)
        return self

    def fold(self) -> Self:
        """A copy for inference without gradients, every normalisation inside its convolution, once.

        Of the modules that one module holds, a convolution and the normalisation right after it belong together.
        """
        folded = copy.deepcopy(self).eval()
        for owner in folded.modules():
            for (name, conv), (after, bn) in pairwise(list(owner.named_children())):
                if isinstance(conv, nn.Conv2d) and isinstance(bn, nn.BatchNorm2d):
                    setattr(owner, name, fuse(conv, bn))
                    setattr(owner, after, nn.Identity())
        return folded.requires_grad_(False)

    def settle(self, frozen_bn: bool) -> None:
        """The end of a backbone's `__init__`: channels-last weights (two to three times faster on a CPU), eval mode."""
        self.frozen_bn = frozen_bn
        nn.Module.to(self, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.eval()


def freeze_norms(module: nn.Module) -> None:
    """Batch normalisations in evaluation mode: they use their statistics, and learn nothing from a batch."""
    for m in module.modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm):
            m.eval()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random weights that depend on the seed alone; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


class Pixels(nn.Module):
    """The first step of a backbone: (255 x − mean) / std of pixels x in [0, 1], channel by channel, channels-last.

    `mean` and `std` are in units of 0 … 255 and in the order that the weights want, which with `bgr` is blue first.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float], *, bgr: bool = False) -> None:
        super().__init__()
        scale, shift = [255.0 / s for s in std], [-m / s for m, s in zip(mean, std, strict=True)]
        self.bgr = bgr
        self.register_buffer("scale", torch.tensor(scale).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("shift", torch.tensor(shift).view(1, -1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The normalised pixels; a wrong shape or whole numbers are an error that names `x`."""
        check_images(x)
        x = x.flip(1) if self.bgr else x
        return (x * self.scale + self.shift).contiguous(memory_format=torch.channels_last)


class Pool(nn.Module):
    """The last step of a backbone: (b, d, h, w) averaged over the map, (b, d) as it is; anything else is an error."""

    def forward(self, y: Tensor) -> Tensor:
        """One vector an image."""
        if not isinstance(y, Tensor):
            raise InputError(
                f"module: expected a tensor from its forward, got {type(y).__name__}; wrap what it returns"
            )
        if y.ndim not in (2, 4):
            raise ShapeError(f"module: expected (b, d) or (b, d, h, w) from its forward, got shape {tuple(y.shape)}")
        return y if y.ndim == 2 else y.mean(dim=(2, 3))


class Step(nn.Module):
    """A convolution, its normalisation and a ReLU that stand elsewhere in a network, as one module."""

    def __init__(self, conv: nn.Conv2d, bn: nn.Module) -> None:
        super().__init__()
        self.conv, self.bn = conv, bn

    def forward(self, x: Tensor) -> Tensor:
        """max(bn(w ∗ x), 0)."""
        return convolve(x, self.conv, self.bn).relu_()


def convolve(x: Tensor, conv: nn.Conv2d, bn: nn.Module, padding: tuple[int, int] | None = None) -> Tensor:
    """bn(w ∗ x); where bn is in evaluation mode, (w γ/√(σ² + ε)) ∗ x + (β − μ γ/√(σ² + ε)) [BN Alg. 2].

    Frozen statistics make a normalisation a scale and a shift, which move into the convolution: half the passes over
    memory, the same function, the same gradients of w, γ and β. `padding` stands for the convolution's own.
    """
    around: Any = conv.padding if padding is None else padding
    frozen = isinstance(bn, nn.BatchNorm2d) and not bn.training
    weight, bias = _scaled(conv, cast(nn.BatchNorm2d, bn)) if frozen else (conv.weight, conv.bias)
    y = nn.functional.conv2d(x, weight, bias, cast(Any, conv.stride), around, 1, conv.groups)
    return y if frozen else cast(Tensor, bn(y))


def _scaled(conv: nn.Conv2d, bn: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    mean, variance = cast(Tensor, bn.running_mean), cast(Tensor, bn.running_var)
    scale = bn.weight * torch.rsqrt(variance + bn.eps)
    offset = -mean if conv.bias is None else conv.bias - mean
    return conv.weight * scale.view(-1, 1, 1, 1), bn.bias + offset * scale


def fuse(conv: nn.Conv2d, bn: nn.BatchNorm2d) -> nn.Conv2d:
    """The convolution with the normalisation inside, computed in float64 and laid out channels-last."""
    kind = conv.weight.dtype
    fused = nn.utils.fuse_conv_bn_eval(conv.double().eval(), bn.double().eval())
    return fused.to(kind).to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def check_images(x: Tensor) -> None:
    """(b, 3, h, w) of floats, or an error that names `x`."""
    if x.ndim != 4 or x.shape[1] != 3 or min(x.shape[2:]) < 1:
        raise ShapeError(f"x: expected (b, 3, h, w), got shape {tuple(x.shape)}")
    if not x.is_floating_point():
        raise InputError(f"x: expected floats in [0, 1], got {x.dtype}; divide by 255")


# --------------------------------------------------------------------------------------- a photo at the size it wants


def crop(array: UInt8[np.ndarray, "h w 3"], size: int = CROP, shortest: int = SHORTEST) -> UInt8[np.ndarray, "s s 3"]:
    """The centre size × size of the image with its shortest side at `shortest`: antialiased bicubic, in one step."""
    height, width = array.shape[:2]
    half = min(height, width) * size / shortest / 2
    return resize(array, (size, size), (width / 2 - half, height / 2 - half, width / 2 + half, height / 2 + half))


def resize(
    array: UInt8[np.ndarray, "h w 3"], size: tuple[int, int], box: tuple[float, float, float, float] | None = None
) -> UInt8[np.ndarray, "H W 3"]:
    """An image, or its part (left, top, right, bottom), at another size (width, height): antialiased bicubic."""
    return np.asarray(Image.fromarray(array).resize(size, Image.Resampling.BICUBIC, box=box))


def as_tensor(arrays: NDArray[np.uint8], device: str | torch.device = "cpu") -> Tensor:
    """Images (…, h, w, 3) uint8 as (…, 3, h, w) in [0, 1], laid out channels-last."""
    return torch.from_numpy(arrays).to(device).movedim(-1, -3).to(torch.float32).div_(255.0)


# ---------------------------------------------------------------------------------------------- a network of one's own


@runtime_checkable
class IsBackbone(Protocol):
    """What the levels ask of a backbone."""

    dim: int

    def features(self, x: Tensor) -> Tensor:
        """(b, 3, h, w) in [0, 1] to (b, dim)."""

    def parts(self) -> list[nn.Module]:
        """Modules whose composition is `features`."""


class Wrapped(Backbone):
    """A module that maps (b, 3, h, w) in [0, 1] to (b, d) or (b, d, h, w), with what the levels ask of a backbone."""

    def __init__(self, module: nn.Module, dim: int, size: int, *, frozen_bn: bool = False) -> None:
        super().__init__()
        self.module, self.vectors, self.frozen_bn = module, Pool(), frozen_bn
        self.dim, self.size = dim, size
        self.train(module.training)

    def features(self, x: Tensor) -> Tensor:
        """The module's vector of each image, of `dim` numbers."""
        check_images(x)
        y = super().features(x)
        if y.shape != (len(x), self.dim):
            raise ShapeError(f"module: expected ({len(x)}, {self.dim}) for {len(x)} images, got {tuple(y.shape)}")
        return y

    def fold(self) -> Self:
        """A copy as it is: which normalisation follows which convolution is not known of a stranger's module."""
        return copy.deepcopy(self).eval().requires_grad_(False)

    def parts(self) -> list[nn.Module]:
        """The layers of a Sequential one by one, anything else in one piece; then the mean over the map."""
        inner = list(self.module) if type(self.module) is nn.Sequential else [self.module]
        return [*inner, self.vectors]


def as_backbone(module: nn.Module, dim: int | None = None, size: int = CROP, *, frozen_bn: bool = False) -> IsBackbone:
    """Any torch module as a backbone, for `lw.images.train(..., backbone=...)` and as a feature network.

    Parameters
    ----------
    module : torch.nn.Module
        Maps images (b, 3, h, w) in [0, 1] to vectors (b, d) or to maps (b, d, h, w), which are averaged. A backbone
        is returned as it is. The layers of an `nn.Sequential` become parts that can be frozen one by one.
    dim : int, optional
        d; found with one black image where it is not given.
    size : int, default 224
        Side in pixels of the images that it wants, and of the black image that tells what it gives.
    frozen_bn : bool, default False
        Keep batch normalisations in evaluation mode while the network is trained.

    Returns
    -------
    IsBackbone
        Has `.dim`, `.size`, `.features(x)` and `.parts()`.

    Raises
    ------
    InputError
        If it is not a module, or does not take an image of that size.
    ShapeError
        If it does not give one vector an image, or not of length `dim`.

    Examples
    --------
    >>> import likewise as lw, torch
    >>> mine = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3, stride=2), torch.nn.ReLU())
    >>> net = lw.nn.as_backbone(mine, size=64)
    >>> net.dim, net.features(torch.zeros(1, 3, 64, 64)).shape
    (16, torch.Size([1, 16]))
    """
    if isinstance(module, IsBackbone):
        return module
    if not isinstance(module, nn.Module):
        raise InputError(f"module: expected a torch.nn.Module, got {type(module).__name__}")
    if not isinstance(size, int) or size < 1:
        raise InputError(f"size: expected a whole number ≥ 1, got {size!r}")
    actual = _probe(module, size)
    if dim not in (None, actual):
        raise ShapeError(f"dim: the module gives vectors of {actual} numbers, got dim={dim}")
    return Wrapped(module, actual, size, frozen_bn=frozen_bn)


def _probe(module: nn.Module, size: int) -> int:
    """How many numbers the module gives an image; it is left in the mode in which it came."""
    first = next(module.parameters(), torch.empty(0))
    modes = [(m, m.training) for m in module.modules()]
    try:
        module.eval()
        with torch.no_grad():
            y = Pool()(module(torch.zeros(1, 3, size, size, device=first.device, dtype=first.dtype)))
    except (RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        line = " ".join(str(error).split())[:200]
        raise InputError(f"module: it does not take an image (1, 3, {size}, {size}): {line}; name its size") from error
    finally:
        for m, mode in modes:
            m.training = mode
    if len(y) != 1:
        raise ShapeError(f"module: expected one vector for one image, got {len(y)}")
    return int(y.shape[1])


# ---------------------------------------------------------------------------------------------------- the smallest one

MIDDLE = 127.5
"""Pixels become (v − 127.5) / 127.5, from −1 to 1."""


class _Block(nn.Module):
    """3 × 3 convolution, batch normalisation, ReLU, and the maximum of each 2 × 2."""

    def __init__(self, into: int, width: int) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(into, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        nn.init.kaiming_normal_(self.conv.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        if min(x.shape[2:]) < 2:
            raise ShapeError(f"x: the images are too small: a map of {x.shape[2]} × {x.shape[3]} cannot be halved")
        return nn.functional.max_pool2d(convolve(x, self.conv, self.bn).relu_(), 2)


class ConvNet(Backbone):
    """Four blocks of width 64, then the mean over the map: the network of much few-shot learning, from random weights.

    For images of 16 to 64 px (Omniglot, MNIST). Its normalisations learn their statistics unless `frozen_bn`.

    Parameters
    ----------
    width : int, default 64
        Channels of each block, and the length of the vector.
    blocks : int, default 4
        How often the map is halved.
    size : int, default 32
        Side of the images in pixels, at least 2**blocks.
    frozen_bn : bool, default False
        Keep the normalisations in evaluation mode under `train()`.
    seed : int, default 0
        Of the random weights (He's start).

    Raises
    ------
    InputError
        If the images are smaller than the blocks can halve.

    Examples
    --------
    >>> import likewise as lw, torch
    >>> lw.nn.ConvNet(width=8).features(torch.zeros(3, 3, 32, 32)).shape
    torch.Size([3, 8])
    """

    def __init__(
        self, *, width: int = 64, blocks: int = 4, size: int = 32, frozen_bn: bool = False, seed: int = 0
    ) -> None:
        super().__init__()
        for name, value in (("width", width), ("blocks", blocks), ("size", size)):
            if not isinstance(value, int) or value < 1:
                raise InputError(f"{name}: expected a whole number ≥ 1, got {value!r}")
        if size < 2**blocks:
            raise InputError(
                f"size: {blocks} blocks halve an image {blocks} times and need ≥ {2**blocks} px, got {size}"
            )
        self.dim, self.size = width, size
        self.pixels, self.pool = Pixels([MIDDLE] * 3, [MIDDLE] * 3), Pool()
        with seeded(seed):
            self.blocks = nn.ModuleList(_Block(width if i else 3, width) for i in range(blocks))
        self.settle(frozen_bn)

    def parts(self) -> list[nn.Module]:
        """The pixels' normalisation, each block, and the mean over the map."""
        return [self.pixels, *self.blocks, self.pool]
