"""R2D2: a dense network of descriptors, reliability and repeatability, and points at several sizes of an image.

Revaud et al. 2019, "R2D2: Repeatable and Reliable Detector and Descriptor". The layout of keys is that of the published
weights (Quad-L2-Net with two heads); no image is made smaller inside, steps are taken by dilation instead.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LAYERS = (
    *((32, 3, 1), (32, 3, 1), (64, 3, 1), (64, 3, 2), (128, 3, 2), (128, 3, 4)),
    *((128, 2, 4), (128, 2, 8), (128, 2, 16)),
)
"""Channels, kernel and dilation of each convolution; the three last ones stand for one of 8 × 8 and have no ReLU."""
STEP = 2**0.25
SMALLEST, LARGEST = 256, 1024
"""Points are sought at each size, a factor STEP apart, whose longest side lies between these, in pixels."""
SURE = 0.7
"""The least reliability and the least repeatability of a point, as published."""


class R2D2(nn.Module):
    """Descriptors (b, 128, h, w) of unit length, reliability and repeatability (b, h, w) of images in [0, 1].

    Examples
    --------
    >>> import torch
    >>> descriptors, reliability, repeatability = R2D2().eval()(torch.rand(1, 3, 40, 48))
    >>> descriptors.shape, reliability.shape
    (torch.Size([1, 128, 40, 48]), torch.Size([1, 40, 48]))
    """

    def __init__(self) -> None:
        super().__init__()
        self.ops, before = nn.ModuleList(), 3
        for number, (channels, kernel, dilation) in enumerate(LAYERS):
            padding = (kernel - 1) * dilation // 2
            self.ops.append(nn.Conv2d(before, channels, kernel, padding=padding, dilation=dilation))
            if number < len(LAYERS) - 1:
                self.ops.append(nn.BatchNorm2d(channels, affine=False))
            if kernel == 3:
                self.ops.append(nn.ReLU(inplace=True))
            before = channels
        self.clf, self.sal = nn.Conv2d(before, 2, 1), nn.Conv2d(before, 1, 1)

    def forward(
        self, images: Float[Tensor, "b 3 h w"]
    ) -> tuple[Float[Tensor, "b 128 h w"], Float[Tensor, "b h w"], Float[Tensor, "b h w"]]:
        """Descriptors, reliability and repeatability of every pixel."""
        mean, std = (images.new_tensor(v)[:, None, None] for v in (MEAN, STD))
        x = (images - mean) / std
        for layer in self.ops:
            x = layer(x)
        squares = x**2
        salience = functional.softplus(self.sal(squares))[:, 0]
        return functional.normalize(x, dim=1), self.clf(squares).softmax(dim=1)[:, 1], salience / (1 + salience)

    def points(
        self, image: Float[Tensor, "3 h w"], most: int
    ) -> tuple[Float[Tensor, "n 2"], Float[Tensor, "n 128"], Float[Tensor, " n"]]:
        """Points of all sizes, their descriptors, and reliability × repeatability, the `most` best ones first."""
        h, w = image.shape[-2:]
        shown, scale, parts = image[None], 1.0, []
        # An image smaller than SMALLEST is looked at once, at its own size.
        while scale == 1.0 or scale * max(h, w) >= SMALLEST - 1:
            if scale * max(h, w) <= LARGEST + 1:
                parts.append(self._maxima(shown, (h, w)))
            scale /= STEP
            size = max(1, round(h * scale)), max(1, round(w * scale))
            shown = functional.interpolate(shown, size, mode="bilinear", align_corners=False)
        xy, descriptors, scores = (torch.cat(part) for part in zip(*parts, strict=True))
        best = torch.argsort(scores, descending=True, stable=True)[:most]
        return xy[best], descriptors[best], scores[best]

    def _maxima(self, image: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        """The sure pixels of one size that no neighbour is more repeatable than, in pixels of the image itself."""
        descriptors, reliability, repeatability = self(image)
        top = functional.max_pool2d(repeatability, 3, 1, 1)
        kept = (repeatability == top) & (repeatability >= SURE) & (reliability >= SURE)
        y, x = kept[0].nonzero(as_tuple=True)
        ratio = image.new_tensor([size[1] / image.shape[-1], size[0] / image.shape[-2]])
        xy = (torch.stack([x, y], dim=1) + 0.5) * ratio - 0.5  # pixel centres are at integers, at every size
        return xy, descriptors[0, :, y, x].T, (reliability * repeatability)[0, y, x]
