"""Inception-BN in plain torch, under the names of its published weights (Caffe's, kept by `pretrainedmodels`).

Ioffe and Szegedy 2015: the network of much of the metric-learning literature. It was trained in Caffe, which fixes the
rest: blue first, pixels in 0 … 255 less a mean and not scaled, convolutions with a bias before their normalisation,
poolings that round their output size up.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from likewise.errors import ShapeError
from likewise.nn.backbone import Backbone, Pixels, Pool, Step, seeded

MEAN_BGR = (104.0, 117.0, 128.0)
CLASSES, OUT = 1000, 1024


class Mixed(NamedTuple):
    """A row of the architecture's table: widths of the four branches; no 1 × 1 and no projection where it halves."""

    name: str
    into: int
    one: int
    three_reduce: int
    three: int
    double_reduce: int
    double: int
    project: int

    @property
    def halves(self) -> bool:
        """Whether it halves the map: stride 2 in two branches, the third a pooling of the input itself."""
        return self.one == 0


MIXED = (
    Mixed("inception_3a", 192, 64, 64, 64, 64, 96, 32),
    Mixed("inception_3b", 256, 64, 64, 96, 64, 96, 64),
    Mixed("inception_3c", 320, 0, 128, 160, 64, 96, 0),
    Mixed("inception_4a", 576, 224, 64, 96, 96, 128, 128),
    Mixed("inception_4b", 576, 192, 96, 128, 96, 128, 128),
    Mixed("inception_4c", 576, 160, 128, 160, 128, 160, 128),
    Mixed("inception_4d", 608, 96, 128, 192, 160, 192, 128),
    Mixed("inception_4e", 608, 0, 128, 192, 192, 256, 0),
    Mixed("inception_5a", 1056, 352, 192, 320, 160, 224, 128),
    Mixed("inception_5b", 1024, 352, 192, 320, 192, 224, 128),
)

LAST = MIXED[-1].name
"""The one block whose pooling branch takes the maximum at stride 1; the others take the mean."""


class Layer(NamedTuple):
    """A convolution by its name: widths, kernel, stride; padded to keep the map."""

    name: str
    into: int
    out: int
    kernel: int
    stride: int = 1


STEM = (Layer("conv1_7x7_s2", 3, 64, 7, 2), Layer("conv2_3x3_reduce", 64, 64, 1), Layer("conv2_3x3", 64, 192, 3))


def _layers(row: Mixed) -> list[Layer]:
    """The convolutions of a block, in the order of the published file."""
    stride = 2 if row.halves else 1
    layers = [
        Layer(f"{row.name}_1x1", row.into, row.one, 1),
        Layer(f"{row.name}_3x3_reduce", row.into, row.three_reduce, 1),
        Layer(f"{row.name}_3x3", row.three_reduce, row.three, 3, stride),
        Layer(f"{row.name}_double_3x3_reduce", row.into, row.double_reduce, 1),
        Layer(f"{row.name}_double_3x3_1", row.double_reduce, row.double, 3),
        Layer(f"{row.name}_double_3x3_2", row.double, row.double, 3, stride),
        Layer(f"{row.name}_pool_proj", row.into, row.project, 1),
    ]
    return [layer for layer in layers if layer.out]


LAYERS = (*STEM, *(layer for row in MIXED for layer in _layers(row)))


class Branches(nn.Module):
    """One block: its branches side by side on the same map, their channels one after the other."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """[branch(x) for each branch] along the channels."""
        maps = [branch(x) for branch in self.branches]
        if len({(int(y.shape[2]), int(y.shape[3])) for y in maps}) > 1:
            raise ShapeError(
                f"x: Inception-BN cannot halve a map of {x.shape[2]} × {x.shape[3]}; give sides in multiples of 32 px"
            )
        return torch.cat(maps, dim=1)


class InceptionBN(Backbone):
    """Inception-BN: images (b, 3, h, w) in [0, 1] to logits, or to the 1024-vector before them.

    `lw.nn.named("inception-bn", "file.pth")` loads published weights; the weights of this class are random. Sides
    that are multiples of 32 px fit; of others, some do.

    Parameters
    ----------
    classes : int, default 1000
        Logits of the classifier.
    frozen_bn : bool, default True
        Keep the normalisations in evaluation mode under `train()`.
    seed : int, default 0
        Of the random weights.

    Examples
    --------
    >>> import likewise as lw, torch
    >>> lw.nn.InceptionBN(classes=5).features(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 1024])
    """

    dim, size, classifier_name = OUT, 224, "last_linear"

    def __init__(self, *, classes: int = CLASSES, frozen_bn: bool = True, seed: int = 0) -> None:
        super().__init__()
        self.pixels, self.pool = Pixels(MEAN_BGR, (1.0, 1.0, 1.0), bgr=True), Pool()
        with seeded(seed):
            for name, into, out, kernel, stride in LAYERS:
                self.add_module(name, nn.Conv2d(into, out, kernel, stride, kernel // 2))
                self.add_module(f"{name}_bn", nn.BatchNorm2d(out))
            self.last_linear = nn.Linear(OUT, classes)
        self.settle(frozen_bn)

    def parts(self) -> list[nn.Module]:
        """The stem in two, each with its pooling, the ten blocks, and the mean over the map."""
        first, *second = (self._step(layer.name) for layer in STEM)
        return [
            nn.Sequential(self.pixels, first, _halve()),
            nn.Sequential(*second, _halve()),
            *(self._block(row) for row in MIXED),
            self.pool,
        ]

    def _step(self, name: str) -> nn.Module:
        return Step(cast(nn.Conv2d, getattr(self, name)), getattr(self, f"{name}_bn"))

    def _block(self, row: Mixed) -> nn.Module:
        def steps(*ends: str) -> nn.Sequential:
            return nn.Sequential(*(self._step(f"{row.name}_{end}") for end in ends))

        three, double = steps("3x3_reduce", "3x3"), steps("double_3x3_reduce", "double_3x3_1", "double_3x3_2")
        if row.halves:
            return Branches(three, double, _halve())
        pool = nn.MaxPool2d(3, 1, 1, ceil_mode=True) if row.name == LAST else nn.AvgPool2d(3, 1, 1, ceil_mode=True)
        return Branches(steps("1x1"), three, double, nn.Sequential(pool, steps("pool_proj")))


def _halve() -> nn.Module:
    return nn.MaxPool2d(3, 2, ceil_mode=True)
