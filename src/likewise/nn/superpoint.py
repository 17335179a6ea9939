"""SuperPoint: points of an image from cells of 8 × 8 pixels, and descriptors between them.

DeTone et al. 2018, "SuperPoint: Self-Supervised Interest Point Detection and Description". The layout of keys is that
of the published weights, conv1a to convDb; descriptors are read as LightGlue's weights for SuperPoint expect them.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

LAYERS = {
    **{"conv1a": (1, 64), "conv1b": (64, 64), "conv2a": (64, 64), "conv2b": (64, 64)},
    **{"conv3a": (64, 128), "conv3b": (128, 128), "conv4a": (128, 128), "conv4b": (128, 128)},
}
"""Channels in and out of the trunk's convolutions; the second of each pair but the last is pooled by 2."""
CELL = 8
RADIUS = 4
"""Of points nearer than this to each other in x and in y the weaker ones go, and so do those at the rim."""
LEAST = 0.005
"""The least probability of a point, as published."""


class SuperPoint(nn.Module):
    """Descriptors (b, 256, h/8, w/8) of unit length and the probability of a point (b, h, w) of grey images in [0, 1].

    Sides are cut to multiples of 8.

    Examples
    --------
    >>> import torch
    >>> descriptors, probability = SuperPoint().eval()(torch.rand(1, 1, 40, 50))
    >>> descriptors.shape, probability.shape
    (torch.Size([1, 256, 5, 6]), torch.Size([1, 40, 48]))
    """

    def __init__(self) -> None:
        super().__init__()
        for name, (before, channels) in LAYERS.items():
            self.add_module(name, nn.Conv2d(before, channels, 3, padding=1))
        self.convPa, self.convPb = nn.Conv2d(128, 256, 3, padding=1), nn.Conv2d(256, CELL**2 + 1, 1)
        self.convDa, self.convDb = nn.Conv2d(128, 256, 3, padding=1), nn.Conv2d(256, 256, 1)

    def forward(self, grey: Float[Tensor, "b 1 h w"]) -> tuple[Float[Tensor, "b 256 i j"], Float[Tensor, "b h8 w8"]]:
        """Descriptors of cells, and the probability of a point at each pixel."""
        x = grey
        for name in LAYERS:
            x = functional.relu(self.get_submodule(name)(x))
            if name in ("conv1b", "conv2b", "conv3b"):
                x = functional.max_pool2d(x, 2)
        cells = self.convPb(functional.relu(self.convPa(x))).softmax(dim=1)[
            :, :-1
        ]  # the last channel: no point in this cell
        descriptors = functional.normalize(self.convDb(functional.relu(self.convDa(x))), dim=1)
        return descriptors, functional.pixel_shuffle(cells, CELL)[:, 0]

    def points(
        self, image: Float[Tensor, "1 h w"], most: int
    ) -> tuple[Float[Tensor, "n 2"], Float[Tensor, "n 256"], Float[Tensor, " n"]]:
        """Points, their descriptors and probabilities, the `most` probable ones first."""
        descriptors, probability = self(image[None])
        kept = suppress(probability[0])
        kept[:RADIUS] = kept[-RADIUS:] = kept[:, :RADIUS] = kept[:, -RADIUS:] = False
        y, x = kept.nonzero(as_tuple=True)
        scores = probability[0, y, x]
        best = torch.argsort(scores, descending=True, stable=True)[:most]
        xy = torch.stack([x, y], dim=1)[best].to(probability)
        return xy, sample(descriptors[0], xy), scores[best]


def suppress(scores: Float[Tensor, "h w"], radius: int = RADIUS, least: float = LEAST) -> Bool[Tensor, "h w"]:
    """Which pixels above `least` stay when the best is kept, its neighbours go, the next best is kept, and so on."""
    width, left = 2 * radius + 1, scores.masked_fill(scores <= least, -torch.inf)
    kept = torch.zeros_like(scores, dtype=torch.bool)
    while True:
        fresh = (left == functional.max_pool2d(left[None], width, 1, radius)[0]) & (left > -torch.inf)
        if not bool(fresh.any()):
            return kept
        kept |= fresh
        near = functional.max_pool2d(fresh[None].to(scores), width, 1, radius)[0] > 0
        left = left.masked_fill(near, -torch.inf)


def sample(descriptors: Float[Tensor, "d i j"], xy: Float[Tensor, "n 2"]) -> Float[Tensor, "n d"]:
    """Descriptors at pixels, bilinear between cells, of unit length.

    Pixel x of an image w cells wide is read at (x − 3.5)(w − 1)/(8 w − 4.5): off the middle of the first cell as it is,
    and stretched by the end of the last; the weights of LightGlue were trained so.
    """
    size = xy.new_tensor([descriptors.shape[2], descriptors.shape[1]])
    first = (CELL - 1) / 2
    grid = 2 * (xy - first) / (CELL * size - 1 - first) - 1
    rows = functional.grid_sample(descriptors[None], grid[None, None], mode="bilinear", align_corners=True)[0, :, 0].T
    return functional.normalize(rows, dim=1)
