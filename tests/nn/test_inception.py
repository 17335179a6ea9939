"""Inception-BN against its equations, written out on the state dict, and against the published layout."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from likewise.errors import ShapeError
from likewise.nn import InceptionBN
from nn.layers import Contract, State, convolution, normalisation, randomised

OUTPUTS = {
    "3a": 256,
    "3b": 320,
    "3c": 576,
    "4a": 576,
    "4b": 576,
    "4c": 608,
    "4d": 608,
    "4e": 1056,
    "5a": 1024,
    "5b": 1024,
}
"""Channels after each block, as the paper's table has them."""


def oracle(w: State, x: torch.Tensor, *, bgr: bool = True, last: str = "max") -> torch.Tensor:
    """The pooled feature, layer after layer."""

    def unit(x: torch.Tensor, name: str, stride: int = 1) -> torch.Tensor:
        return normalisation(w, convolution(w, x, name, stride), f"{name}_bn").relu()

    def halve(x: torch.Tensor) -> torch.Tensor:
        return functional.max_pool2d(x, 3, 2, ceil_mode=True)

    x = 255 * (x[:, [2, 1, 0]] if bgr else x) - torch.tensor([104.0, 117.0, 128.0], dtype=x.dtype)[:, None, None]
    x = halve(unit(x, "conv1_7x7_s2", 2))
    x = halve(unit(unit(x, "conv2_3x3_reduce"), "conv2_3x3"))
    for block, channels in OUTPUTS.items():
        p, s = f"inception_{block}_", 2 if block in ("3c", "4e") else 1
        three = unit(unit(x, p + "3x3_reduce"), p + "3x3", s)
        double = unit(unit(unit(x, p + "double_3x3_reduce"), p + "double_3x3_1"), p + "double_3x3_2", s)
        if s == 2:
            x = torch.cat([three, double, halve(x)], 1)
        else:
            mean = functional.avg_pool2d(x, 3, 1, 1)  # zeros beyond the edge count
            pooled = functional.max_pool2d(x, 3, 1, 1) if block == "5b" and last == "max" else mean
            x = torch.cat([unit(x, p + "1x1"), three, double, unit(pooled, p + "pool_proj")], 1)
        assert x.shape[1] == channels
    return x.mean(dim=(2, 3))


class TestInceptionBN(Contract):
    size = 32

    def make(self, **options: object) -> InceptionBN:
        return InceptionBN(classes=5, **options)

    def test_keys_and_parameters_are_the_published_ones(self) -> None:
        model = InceptionBN()
        state = model.state_dict()
        assert sum(p.numel() for p in model.parameters()) == 11_295_240
        assert len(state) == 69 * 7 + 2
        assert {k.rsplit(".", 1)[1] for k in state if not k.split(".")[0].endswith("_bn")} == {"weight", "bias"}
        convolutions = {k.split(".")[0] for k in state} - {"last_linear"}
        assert {
            n for n in convolutions if n.startswith(("conv", "inception_3a", "inception_4e")) and "_bn" not in n
        } == {
            *("conv1_7x7_s2", "conv2_3x3_reduce", "conv2_3x3"),
            *("inception_3a_1x1", "inception_3a_3x3_reduce", "inception_3a_3x3", "inception_3a_double_3x3_reduce"),
            *("inception_3a_double_3x3_1", "inception_3a_double_3x3_2", "inception_3a_pool_proj"),
            *("inception_4e_3x3_reduce", "inception_4e_3x3", "inception_4e_double_3x3_reduce"),
            *("inception_4e_double_3x3_1", "inception_4e_double_3x3_2"),
        }
        assert all(f"{n}_bn" in convolutions for n in convolutions if not n.endswith("_bn"))
        assert state["last_linear.weight"].shape == (1000, 1024)

    @pytest.mark.parametrize("size", [(64, 32), (31, 32)])
    def test_the_network_is_the_oracle(self, size: tuple[int, int]) -> None:
        model = self.make()
        w = randomised(model)
        x = torch.rand(2, 3, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            want = oracle(w, x)
            torch.testing.assert_close(model.features(x), want, atol=1e-7, rtol=1e-7)
            torch.testing.assert_close(
                model(x), want @ w["last_linear.weight"].T + w["last_linear.bias"], rtol=1e-6, atol=1e-6
            )
            for wrong in (oracle(w, x, bgr=False), oracle(w, x, last="mean")):
                assert (wrong - want).abs().max() > 1e-3, "the comparison can tell the alternatives apart"

    def test_the_map_of_each_block_at_224(self) -> None:
        model, sides = self.make(), []
        with torch.no_grad():
            x = torch.rand(1, 3, 224, 224)
            for part in model.parts()[:-1]:
                x = part(x)
                sides.append((x.shape[1], x.shape[2]))
        assert sides[:2] == [(64, 56), (192, 28)]
        assert [c for c, _ in sides[2:]] == list(OUTPUTS.values())
        assert [s for _, s in sides[2:]] == [28, 28, 14, 14, 14, 14, 14, 7, 7, 7]

    def test_a_side_that_cannot_be_halved_is_named(self) -> None:
        with pytest.raises(ShapeError, match="multiples of 32"):
            self.make().features(torch.rand(1, 3, 72, 72))
