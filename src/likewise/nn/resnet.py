"""ResNet-50 in plain torch, under torchvision's names, so that its published weights load by key.

He et al. 2016, in the variant that everyone trains (v1.5): the stride of a stage is in the 3 × 3 convolution of its
first bottleneck, not in the 1 × 1 before it. ImageNet mean and standard deviation are part of the network.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from likewise.nn.backbone import Backbone, Pixels, Pool, Step, convolve, seeded

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
"""Of ImageNet's pixels in 0 … 255: 255 × (0.485, 0.456, 0.406) and 255 × (0.229, 0.224, 0.225)."""

DEPTHS, WIDTHS = (3, 4, 6, 3), (64, 128, 256, 512)
EXPANSION, STEM, CLASSES = 4, 64, 1000


class Bottleneck(nn.Module):
    """relu(x + bn3(1 × 1 ∗ relu(bn2(3 × 3 ∗ relu(bn1(1 × 1 ∗ x)))))), x through `downsample` where shapes differ."""

    def __init__(self, into: int, width: int, stride: int) -> None:
        super().__init__()
        out = EXPANSION * width
        self.conv1, self.bn1 = nn.Conv2d(into, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or into != out:
            self.downsample = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        """The formula of the class."""
        y = convolve(x, self.conv1, self.bn1).relu_()
        y = convolve(y, self.conv2, self.bn2).relu_()
        y = convolve(y, self.conv3, self.bn3)
        if self.downsample is not None:
            conv, bn = self.downsample
            x = convolve(x, cast(nn.Conv2d, conv), bn)
        return (y + x).relu_()


class ResNet50(Backbone):
    """ResNet-50: images (b, 3, h, w) in [0, 1] to logits, or to the 2048-vector before them.

    `lw.nn.named("resnet50", "file.pth")` loads published weights; the weights of this class are random.

    Parameters
    ----------
    classes : int, default 1000
        Logits of the classifier.
    frozen_bn : bool, default True
        Keep the normalisations in evaluation mode under `train()`: right for weights that are fine-tuned, wrong for
        training from the start.
    seed : int, default 0
        Of the random weights.

    Examples
    --------
    >>> import likewise as lw, torch
    >>> lw.nn.ResNet50(classes=5).features(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 2048])
    """

    dim, size, classifier_name = EXPANSION * WIDTHS[-1], 224, "fc"

    def __init__(self, *, classes: int = CLASSES, frozen_bn: bool = True, seed: int = 0) -> None:
        super().__init__()
        self.pixels, self.pool = Pixels(MEAN, STD), Pool()
        with seeded(seed):
            self.conv1, self.bn1 = nn.Conv2d(3, STEM, 7, 2, 3, bias=False), nn.BatchNorm2d(STEM)
            self.layer1, self.layer2, self.layer3, self.layer4 = _stages()
            self.fc = nn.Linear(self.dim, classes)
            self.apply(_start)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.settle(frozen_bn)

    def parts(self) -> list[nn.Module]:
        """Stem with the pixels' normalisation, the 16 bottlenecks, and the mean over the map."""
        stem = nn.Sequential(self.pixels, Step(self.conv1, self.bn1), self.maxpool)
        return [stem, *self.layer1, *self.layer2, *self.layer3, *self.layer4, self.pool]


def _stages() -> list[nn.Sequential]:
    stages, into = [], STEM
    for number, (depth, width) in enumerate(zip(DEPTHS, WIDTHS, strict=True)):
        rows = []
        for i in range(depth):
            rows.append(Bottleneck(into, width, 2 if i == 0 and number > 0 else 1))
            into = EXPANSION * width
        stages.append(nn.Sequential(*rows))
    return stages


def _start(module: nn.Module) -> None:
    """He's start for convolutions, fan-out; normalisations start at 1 and 0 by themselves."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
