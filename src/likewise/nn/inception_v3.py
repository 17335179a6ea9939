"""The InceptionV3 of the Fréchet inception distance: TensorFlow's network of 2015, under the keys of its PyTorch port.

It is what FID and KID are measured with (pytorch-fid, torch-fidelity): 8-bit images resized as TensorFlow 1 did,
means without the zeros of the padding, a maximum instead of a mean in the last block, 1008 classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from likewise.nn.backbone import check_images

SIDE, EPS = 299, 0.001
Kernel = int | tuple[int, int]
Step = tuple[int, Kernel] | tuple[int, Kernel, int]
"""A convolution: channels that come out, kernel, stride (1)."""
Chain = tuple[str, int, Sequence[Step | tuple[Step, Step]]]
"""A branch: its name, channels that go in, and its convolutions; a pair stands side by side at its end."""

STEM: tuple[tuple[str, int, int, int, int, int], ...] = (
    ("Conv2d_1a_3x3", 3, 32, 3, 2, 0), ("Conv2d_2a_3x3", 32, 32, 3, 1, 0), ("Conv2d_2b_3x3", 32, 64, 3, 1, 1),
    ("Conv2d_3b_1x1", 64, 80, 1, 1, 0), ("Conv2d_4a_3x3", 80, 192, 3, 1, 0),
)  # fmt: skip
"""Name, channels in and out, kernel, stride, padding; a halving follows the third and the last."""


def _a(into: int, pooled: int) -> list[Chain]:
    five, three = [(48, 1), (64, 5)], [(64, 1), (96, 3), (96, 3)]
    ends: list[Chain] = [("branch1x1", into, [(64, 1)]), ("branch5x5", into, five), ("branch3x3dbl", into, three)]
    return [*ends, ("branch_pool", into, [(pooled, 1)])]


def _c(width: int) -> list[Chain]:
    across, down = (1, 7), (7, 1)
    once: list[Step] = [(width, 1), (width, across), (192, down)]
    twice: list[Step] = [(width, 1), (width, down), (width, across), (width, down), (192, across)]
    ends: list[Chain] = [("branch1x1", 768, [(192, 1)]), ("branch7x7", 768, once), ("branch7x7dbl", 768, twice)]
    return [*ends, ("branch_pool", 768, [(192, 1)])]


def _e(into: int) -> list[Chain]:
    fork: tuple[Step, Step] = ((384, (1, 3)), (384, (3, 1)))
    once: Chain = ("branch3x3", into, [(384, 1), fork])
    twice: Chain = ("branch3x3dbl", into, [(448, 1), (384, 3), fork])
    return [("branch1x1", into, [(320, 1)]), once, twice, ("branch_pool", into, [(192, 1)])]


BLOCKS: dict[str, tuple[str, list[Chain]]] = {
    "Mixed_5b": ("mean", _a(192, 32)),
    "Mixed_5c": ("mean", _a(256, 64)),
    "Mixed_5d": ("mean", _a(288, 64)),
    "Mixed_6a": ("halve", [("branch3x3", 288, [(384, 3, 2)]), ("branch3x3dbl", 288, [(64, 1), (96, 3), (96, 3, 2)])]),
    **{f"Mixed_6{name}": ("mean", _c(width)) for name, width in zip("bcde", (128, 160, 160, 192), strict=True)},
    "Mixed_7a": (
        "halve",
        [("branch3x3", 768, [(192, 1), (320, 3, 2)]),
         ("branch7x7x3", 768, [(192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, 2)])],
    ),
    "Mixed_7b": ("mean", _e(1280)),
    "Mixed_7c": ("max", _e(2048)),
}  # fmt: skip
"""What the last branch pools with, and the branches."""


class Unit(nn.Module):
    """A convolution without bias, normalised, ReLU."""

    def __init__(self, into: int, out: int, kernel: Kernel, stride: int, padding: Any) -> None:
        super().__init__()
        self.conv = nn.Conv2d(into, out, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(out, EPS)

    def forward(self, x: Tensor) -> Tensor:
        """The layer."""
        return torch.relu(self.bn(self.conv(x)))


class Mixed(nn.Module):
    """A block: branches side by side, their channels one after the other."""

    def __init__(self, pool: str, chains: Sequence[Chain]) -> None:
        super().__init__()
        self.pool, self.branches = pool, [self._branch(*chain) for chain in chains]

    def _branch(self, name: str, into: int, steps: Sequence[Any]) -> list[list[str]]:
        """Make the units of a branch; their names, in turn, with those that stand side by side together."""
        made = []
        for i, step in enumerate(steps, 1):
            pair = step if isinstance(step[0], tuple) else (step,)
            ends = (
                [f"{name}_{i}{end}" for end in "ab"] if len(pair) == 2 else [name if len(steps) == 1 else f"{name}_{i}"]
            )
            for end, (out, kernel, *stride) in zip(ends, pair, strict=True):
                high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
                padding = 0 if stride else (high // 2, wide // 2)
                self.add_module(end, Unit(into, out, kernel, stride[0] if stride else 1, padding))
            made.append(ends)
            into = pair[0][0]
        return made

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d h2 w2"]:
        """The block."""
        outs = []
        for branch in self.branches:
            y = self._pooled(x) if branch[0][0] == "branch_pool" else x
            for ends in branch[:-1]:
                y = self.get_submodule(ends[0])(y)
            outs += [self.get_submodule(end)(y) for end in branch[-1]]
        return torch.cat([*outs, self._pooled(x)] if self.pool == "halve" else outs, 1)

    def _pooled(self, x: Tensor) -> Tensor:
        if self.pool == "mean":
            return nn.functional.avg_pool2d(x, 3, 1, 1, count_include_pad=False)
        return nn.functional.max_pool2d(x, 3, 2) if self.pool == "halve" else nn.functional.max_pool2d(x, 3, 1, 1)


class InceptionV3(nn.Module):
    """Images (b, 1 or 3, h, w) in [0, 1] to the 2048 numbers of FID; differentiable.

    `features="inception"` and `space="inception"` stand for it with its published weights; those of this class are
    random. `resize="tensorflow"` is TensorFlow 1's, as in torch-fidelity and the original FID, "torch" pytorch-fid's.

    Examples
    --------
    >>> import torch
    >>> from likewise.nn.inception_v3 import InceptionV3
    >>> InceptionV3().eval()(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 2048])
    """

    name = "inception-v3-fid"

    def __init__(self, *, resize: str = "tensorflow") -> None:
        super().__init__()
        self.resize = resize
        if resize != "tensorflow":
            self.name = f"inception-v3-fid-{resize}-resize"
        for name, into, out, kernel, stride, padding in STEM:
            self.add_module(name, Unit(into, out, kernel, stride, padding))
        for name, (pool, chains) in BLOCKS.items():
            self.add_module(name, Mixed(pool, chains))
        self.fc = nn.Linear(2048, 1008)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 2048"]:
        """The mean of the last map."""
        return self.taps(x)["2048"]

    def taps(self, x: Float[Tensor, "b c h w"]) -> dict[str, Tensor]:
        """The means of the maps of 192, 768 and 2048 channels; logits without their bias, as Inception Score does."""
        y, means = self._pixels(x), {}
        for i, (name, *_) in enumerate(STEM):
            y = self.get_submodule(name)(y)
            y = nn.functional.max_pool2d(y, 3, 2) if i in (2, 4) else y
        means["192"] = y.mean((2, 3))
        for name in BLOCKS:
            y = self.get_submodule(name)(y)
            if name == "Mixed_6e":
                means["768"] = y.mean((2, 3))
        means["2048"] = y.mean((2, 3))
        return {**means, "logits": nn.functional.linear(means["2048"], self.fc.weight)}

    def _pixels(self, x: Tensor) -> Tensor:
        """299 × 299 pixels, as the network was trained on them."""
        x = x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else x
        check_images(x)
        if self.resize == "tensorflow":
            return (255 * tensorflow_resize(x, SIDE) - 128) / 128
        return 2 * nn.functional.interpolate(x, (SIDE, SIDE), mode="bilinear", align_corners=False) - 1


def tensorflow_resize(x: Float[Tensor, "b c h w"], side: int) -> Float[Tensor, "b c s s"]:
    """Bilinear as in TensorFlow 1: pixel i of the result lies at i · h / side, corners are not centres."""
    high, wide = (_weights(size, side, x) for size in x.shape[2:])
    return high @ (x @ wide.T)


def _weights(size: int, side: int, like: Tensor) -> Float[Tensor, "side size"]:
    """The matrix of `tensorflow_resize` along one axis."""
    place = torch.arange(side, dtype=like.dtype, device=like.device) * (size / side)
    low = place.long().clamp_max(size - 1)
    columns = torch.arange(size, device=like.device)
    share = (place - low)[:, None]
    return (columns == low[:, None]) * (1 - share) + (columns == (low + 1).clamp_max(size - 1)[:, None]) * share
