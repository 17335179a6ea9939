"""R2D2 against its layers written out, and its points against loops over pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from likewise.nn import r2d2
from likewise.nn.r2d2 import R2D2
from nn.layers import randomised


@pytest.fixture(scope="module")
def network() -> R2D2:
    """Random weights whose heads are moved to where about half of the pixels are sure."""
    made = R2D2().eval()
    randomised(made)
    seen: list[torch.Tensor] = []
    handle = made.ops[-1].register_forward_hook(lambda layer, given, out: seen.append(out**2))
    with torch.no_grad():
        made(image(32, 40)[None])
        for head, middle in ((made.clf, [-0.8, 0.8]), (made.sal, [2.3])):
            head.weight /= head(seen[0]).std()
            head.bias += torch.tensor(middle) - head(seen[0]).mean(dim=(0, 2, 3))
    handle.remove()
    return made


def image(h: int, w: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(3, h, w, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_maps_layer_by_layer(network: R2D2) -> None:
    """Dilation stands for stride: 1, 1, 1, 2, 2, 4, then kernels of 2 at 4, 8 and 16; no step changes the size."""
    w, x = network.state_dict(), image(20, 24)[None]
    x = (x - torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)) / torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    for n, dilation in enumerate((1, 1, 1, 2, 2, 4)):
        x = functional.conv2d(x, w[f"ops.{3 * n}.weight"], w[f"ops.{3 * n}.bias"], padding=dilation, dilation=dilation)
        mean, var = (w[f"ops.{3 * n + 1}.running_{k}"].view(-1, 1, 1) for k in ("mean", "var"))
        x = ((x - mean) / (var + 1e-5).sqrt()).relu()
    for n, dilation in ((18, 4), (20, 8), (22, 16)):
        x = functional.conv2d(x, w[f"ops.{n}.weight"], w[f"ops.{n}.bias"], padding=dilation // 2, dilation=dilation)
        if n < 22:
            mean, var = (w[f"ops.{n + 1}.running_{k}"].view(-1, 1, 1) for k in ("mean", "var"))
            x = (x - mean) / (var + 1e-5).sqrt()
    rel = torch.einsum("oc,bchw->bohw", w["clf.weight"][..., 0, 0], x * x) + w["clf.bias"].view(2, 1, 1)
    rep = torch.einsum("oc,bchw->bohw", w["sal.weight"][..., 0, 0], x * x) + w["sal.bias"].view(1, 1, 1)
    soft = (1 + rep.exp()).log()
    with torch.inference_mode():
        descriptors, reliability, repeatability = network(image(20, 24)[None])
    assert torch.allclose(descriptors, x / x.norm(dim=1, keepdim=True), atol=1e-5)
    assert torch.allclose(reliability, (rel[:, 1].exp() / rel.exp().sum(dim=1)), atol=1e-5)
    assert torch.allclose(repeatability, (soft / (1 + soft))[:, 0], atol=1e-5)


def test_the_layout_is_the_published_one() -> None:
    shapes = {name: tuple(value.shape) for name, value in R2D2().state_dict().items()}
    assert len(shapes) == 46
    assert shapes["ops.0.weight"] == (32, 3, 3, 3)
    assert shapes["ops.18.weight"] == (128, 128, 2, 2)
    assert shapes["ops.21.running_var"] == (128,)
    assert {"ops.22.bias", "clf.weight", "sal.bias"} <= set(shapes)


def test_points_are_the_sure_maxima_of_each_size(network: R2D2, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(r2d2, "SMALLEST", 30)
    shown, expected = image(32, 40), []
    with torch.inference_mode():
        xy, descriptors, scores = network.points(shown, 10_000)
        part = shown[None]
        for size in ((32, 40), (27, 34)):  # a step of 2^¼ down; 29 would be below 30
            part = part if size == (32, 40) else functional.interpolate(part, size, mode="bilinear")
            d, rel, rep = (m[0].numpy() for m in network(part))
            for y in range(size[0]):
                for x in range(size[1]):
                    near = rep[max(0, y - 1) : y + 2, max(0, x - 1) : x + 2]
                    if rep[y, x] == near.max() and rep[y, x] >= 0.7 and rel[y, x] >= 0.7:
                        at = (x + 0.5) * 40 / size[1] - 0.5, (y + 0.5) * 32 / size[0] - 0.5
                        expected.append((rel[y, x] * rep[y, x], *at, d[:, y, x]))
    assert 20 < len(expected) == len(xy)
    expected.sort(key=lambda row: -row[0])
    assert np.allclose(scores, [row[0] for row in expected], atol=1e-6)
    assert np.allclose(xy, [row[1:3] for row in expected], atol=1e-4)
    assert np.allclose(descriptors, np.stack([row[3] for row in expected]), atol=1e-5)
    with torch.inference_mode():
        few = network.points(shown, 5)
    assert torch.equal(few[0], xy[:5])


def test_small_images_are_looked_at_once_and_large_ones_from_the_largest_size_on(
    network: R2D2, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[tuple[int, int]] = []

    def forward(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sizes.append((x.shape[-2], x.shape[-1]))
        return torch.zeros(1, 128, *x.shape[-2:]), torch.zeros(1, *x.shape[-2:]), torch.zeros(1, *x.shape[-2:])

    monkeypatch.setattr(network, "forward", forward)
    assert len(network.points(image(20, 30), 9)[0]) == 0
    assert sizes == [(20, 30)]
    sizes.clear()
    network.points(image(40, 2048), 9)
    assert [w for _, w in sizes] == [1024, 861, 724, 609, 512, 431, 362, 304, 256]
