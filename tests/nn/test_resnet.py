"""ResNet-50 against its equations, written out on the state dict, and against torchvision's published layout."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from likewise.nn import ResNet50
from nn.layers import Contract, State, convolution, normalisation, randomised

DEPTHS = {1: 3, 2: 4, 3: 6, 4: 3}


def oracle(w: State, x: torch.Tensor, *, stride_in: str = "conv2") -> torch.Tensor:
    """The pooled feature, layer after layer."""

    def unit(x: torch.Tensor, conv: str, bn: str, stride: int = 1) -> torch.Tensor:
        return normalisation(w, convolution(w, x, conv, stride), bn)

    mean, std = (torch.tensor(v, dtype=x.dtype)[:, None, None] for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    x = functional.max_pool2d(unit((x - mean) / std, "conv1", "bn1", 2).relu(), 3, 2, 1)
    for stage, depth in DEPTHS.items():
        for i in range(depth):
            p, stride = f"layer{stage}.{i}.", 2 if stage > 1 and i == 0 else 1
            y = unit(x, p + "conv1", p + "bn1", stride if stride_in == "conv1" else 1).relu()
            y = unit(y, p + "conv2", p + "bn2", stride if stride_in == "conv2" else 1).relu()
            y = unit(y, p + "conv3", p + "bn3")
            x = (y + (unit(x, p + "downsample.0", p + "downsample.1", stride) if i == 0 else x)).relu()
    return x.mean(dim=(2, 3))


def published() -> dict[str, tuple[int, ...]]:
    """Keys and shapes of torchvision's file, from its table: 53 convolutions, 53 normalisations, one linear layer."""
    result: dict[str, tuple[int, ...]] = {}

    def layer(conv: str, bn: str, out: int, into: int, kernel: int) -> None:
        result[f"{conv}.weight"] = (out, into, kernel, kernel)
        result.update({f"{bn}.{k}": (out,) for k in ("weight", "bias", "running_mean", "running_var")})
        result[f"{bn}.num_batches_tracked"] = ()

    layer("conv1", "bn1", 64, 3, 7)
    into = 64
    for stage, depth in DEPTHS.items():
        width = 32 * 2**stage
        for i in range(depth):
            p = f"layer{stage}.{i}."
            layer(p + "conv1", p + "bn1", width, into, 1)
            layer(p + "conv2", p + "bn2", width, width, 3)
            layer(p + "conv3", p + "bn3", 4 * width, width, 1)
            if i == 0:
                layer(p + "downsample.0", p + "downsample.1", 4 * width, into, 1)
            into = 4 * width
    return result | {"fc.weight": (1000, 2048), "fc.bias": (1000,)}


class TestResNet50(Contract):
    size = 32

    def make(self, **options: object) -> ResNet50:
        return ResNet50(classes=5, **options)

    def test_keys_shapes_and_parameters_are_the_published_ones(self) -> None:
        model = ResNet50()
        ours = {k: tuple(v.shape) for k, v in model.state_dict().items()}
        assert len(ours) == 320
        assert ours == published()
        assert sum(p.numel() for p in model.parameters()) == 25_557_032

    @pytest.mark.parametrize("size", [(32, 32), (33, 47)])
    def test_the_network_is_the_oracle_at_even_and_odd_sizes(self, size: tuple[int, int]) -> None:
        model = self.make()
        w = randomised(model)
        x = torch.rand(2, 3, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            want = oracle(w, x)
            torch.testing.assert_close(model.features(x), want, atol=1e-6, rtol=1e-6)
            torch.testing.assert_close(model(x), want @ w["fc.weight"].T + w["fc.bias"], atol=1e-6, rtol=1e-6)
            older = oracle(w, x, stride_in="conv1")
        assert (older - want).abs().max() > 0.01, "the comparison can tell v1.5 from v1"
