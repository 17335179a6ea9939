"""One pass for convolution and frozen normalisation: the same function and the same gradients as the two, exactly."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from likewise.nn import convolution, efficientnet, named
from likewise.nn.convolution import convolve, folded

TIGHT = {"atol": 1e-10, "rtol": 1e-9}


def pair(channels: int, out: int, kernel: int, **options: object) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """A convolution and a normalisation with statistics far from 0 and 1, in float64."""
    torch.manual_seed(kernel)
    conv, bn = nn.Conv2d(channels, out, kernel, **options).double(), nn.BatchNorm2d(out).double()
    bn.running_mean.normal_()
    bn.running_var.uniform_(0.1, 3)
    nn.init.normal_(bn.weight)
    nn.init.normal_(bn.bias)
    return conv.train(), bn.eval()


def gradients(y: torch.Tensor, *inputs: torch.Tensor) -> list[torch.Tensor]:
    slope = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(1))
    return list(torch.autograd.grad(y, inputs, slope))


def same_as_two_steps(x: torch.Tensor, conv: nn.Conv2d, bn: nn.BatchNorm2d) -> None:
    inputs = [t for t in (x, conv.weight, conv.bias, bn.weight, bn.bias) if t is not None]
    got, want = convolve(x, conv, bn), bn(conv(x))
    torch.testing.assert_close(got, want, **TIGHT)
    for mine, theirs in zip(gradients(got, *inputs), gradients(want, *inputs), strict=True):
        torch.testing.assert_close(mine, theirs, **TIGHT)


@settings(deadline=None, max_examples=60)
@given(
    kernel=st.sampled_from([1, 3, 5]),
    stride=st.integers(1, 2),
    height=st.integers(2, 18),
    width=st.integers(2, 18),
    depthwise=st.booleans(),
    bias=st.booleans(),
    last=st.booleans(),
)
def test_values_and_all_gradients_are_those_of_the_two_steps(
    kernel: int, stride: int, height: int, width: int, depthwise: bool, bias: bool, last: bool
) -> None:
    conv, bn = pair(6, 6, kernel, stride=stride, padding=kernel // 2, groups=6 if depthwise else 1, bias=bias)
    x = torch.randn(3, 6, height, width, dtype=torch.float64)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    same_as_two_steps(x.requires_grad_(), conv, bn)


@pytest.mark.parametrize(("stride", "padding"), [(1, 2), (1, 0), (2, 2), (2, 0), (1, 1)])
def test_the_depthwise_weight_gradient_by_explicit_loops(stride: int, padding: int) -> None:
    x = torch.randn(2, 3, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    conv, bn = pair(3, 3, 5, stride=stride, padding=padding, groups=3)
    bn.weight.data.fill_(1.0)
    bn.running_var.fill_(1.0 - bn.eps)
    y = convolve(x, conv, bn)
    g = torch.randn(y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    got = torch.autograd.grad(y, conv.weight, g)[0]
    want = torch.zeros_like(got)
    for n in range(2):
        for c in range(3):
            for i in range(y.shape[2]):
                for j in range(y.shape[3]):
                    for a in range(5):
                        for b in range(5):
                            r, q = i * stride + a - padding, j * stride + b - padding
                            if 0 <= r < 7 and 0 <= q < 6:
                                want[c, 0, a, b] += g[n, c, i, j] * x[n, c, r, q]
    torch.testing.assert_close(got, want, **TIGHT)


def test_blocks_of_pictures_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    conv, bn = pair(4, 4, 5, padding=2, groups=4)
    x = torch.randn(5, 4, 6, 6, dtype=torch.float64)
    whole = torch.autograd.grad(convolve(x, conv, bn).sum(), conv.weight)[0]
    monkeypatch.setattr(convolution, "BLOCK", 2 * x[0].numel())  # two, two and one
    torch.testing.assert_close(torch.autograd.grad(convolve(x, conv, bn).sum(), conv.weight)[0], whole, **TIGHT)


def test_own_gradients_are_used_in_training_and_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen by breaking them: a gradient that is wrong on purpose shows in training and nowhere else."""
    monkeypatch.setattr(convolution, "depthwise_gradient", lambda x, g, shape, ctx: torch.zeros(shape, dtype=x.dtype))
    conv, bn = pair(4, 4, 5, padding=2, groups=4)
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    assert not torch.autograd.grad(convolve(x, conv, bn).sum(), conv.weight)[0].any()
    conv.eval()
    assert torch.autograd.grad(convolve(x, conv, bn).sum(), conv.weight)[0].any()


def test_a_normalisation_in_training_mode_keeps_learning_its_statistics() -> None:
    conv, bn = pair(4, 4, 3)
    other = nn.BatchNorm2d(4).double()
    other.load_state_dict(bn.state_dict())
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    torch.testing.assert_close(convolve(x, conv, bn.train()), other(functional.conv2d(x, conv.weight, conv.bias)))
    assert torch.equal(bn.running_mean, other.running_mean)


def test_folded_is_the_same_map() -> None:
    conv, bn = pair(4, 6, 3, padding=1)
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    want = bn(conv(x))
    torch.testing.assert_close(folded(conv, bn)(x), want, **TIGHT)


def test_a_training_step_of_the_network_is_that_of_plain_layers() -> None:
    """EfficientNet-Lite0 at 64 px in float64: every gradient equals the one through conv2d and batch_norm."""

    def plain(x: torch.Tensor, conv: nn.Conv2d, bn: nn.Module, padding: tuple[int, int]) -> torch.Tensor:
        return bn(functional.conv2d(x, conv.weight, conv.bias, conv.stride, padding, 1, conv.groups))

    model = named("efficientnet-lite0").double().train()
    x = torch.rand(2, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights = [p for n, p in model.named_parameters() if not n.startswith("classifier")]
    got = gradients(model.features(x), *weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(efficientnet, "convolve", plain)
        want = gradients(model.features(x), *weights)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-8, rtol=1e-7)


def test_jacobian_vector_products_pass_through() -> None:
    """The spectrum of a generator seen through features asks a network for them, forward mode."""
    model = named("efficientnet-lite0").double()
    x = torch.rand(1, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    v = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    forward = torch.func.jvp(model.features, (x,), (v,))[1]
    y, backward = torch.func.vjp(model.features, x)
    u = torch.randn(y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close((u * forward).sum(), (backward(u)[0] * v).sum(), atol=1e-10, rtol=1e-8)
    assert float(forward.detach().abs().max()) > 0.01
