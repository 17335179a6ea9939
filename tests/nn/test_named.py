"""Backbones by name, and any module of one's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from likewise import nn as backbones
from likewise.errors import FileError, InputError, ShapeError
from likewise.nn import ConvNet, EfficientNetLite0, InceptionBN, ResNet50, as_backbone, named


def test_every_name_gives_its_network() -> None:
    kinds = {
        "efficientnet-lite0": EfficientNetLite0,
        "resnet50": ResNet50,
        "inception-bn": InceptionBN,
        "convnet": ConvNet,
    }
    assert tuple(kinds) == backbones.NAMES
    for name, kind in kinds.items():
        model = named(name, seed=1)
        assert type(model) is kind
        assert isinstance(model, backbones.Backbone)
        assert model.size >= 16
    assert named("convnet", width=8).dim == 8
    assert not named("resnet50", frozen_bn=False).frozen_bn


def test_weights_are_read_where_a_path_is_given(tmp_path: Path) -> None:
    state = ConvNet(width=8, seed=8).state_dict()
    torch.save(state, tmp_path / "w.pth")
    assert all(torch.equal(v, state[k]) for k, v in named("convnet", tmp_path / "w.pth", width=8).state_dict().items())
    for name in ("convnet", "resnet50", "inception-bn", "efficientnet-lite0"):  # this one has width 64, or other keys
        with pytest.raises(FileError, match="do not fit"):
            named(name, tmp_path / "w.pth")


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(InputError, match="efficientnet-lite0, resnet50, inception-bn, convnet"):
        named("vgg")
    with pytest.raises(AttributeError, match="VGG"):
        _ = backbones.VGG


def test_the_package_is_light() -> None:
    code = "import sys, likewise.nn as b; dir(b); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def net(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), *layers)


def test_vectors_are_taken_and_maps_are_averaged() -> None:
    x = torch.rand(2, 3, 40, 40)
    maps = net()
    backbone = as_backbone(maps, size=40)
    assert (backbone.dim, backbone.size) == (6, 40)
    assert maps.training, "left in the mode in which it came"
    backbone.eval()
    torch.testing.assert_close(backbone.features(x), maps(x).mean(dim=(2, 3)))
    vectors = net(nn.AdaptiveAvgPool2d(2), nn.Flatten()).eval()
    assert as_backbone(vectors).dim == 24
    assert torch.equal(as_backbone(vectors).features(x), vectors(x))


def test_parts_of_a_sequential_are_its_layers_and_of_others_the_whole() -> None:
    class Own(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    x = torch.rand(2, 3, 40, 40)
    for module, count in ((net(), 3), (Own(*net()), 2)):
        backbone = as_backbone(module.eval())
        y = x
        for part in backbone.parts():
            y = part(y)
        assert len(backbone.parts()) == count
        assert torch.equal(y, backbone.features(x))
        assert len(backbone.state_dict()) == len(module.state_dict())


def test_frozen_normalisations_stay_in_evaluation_mode() -> None:
    module = net()
    as_backbone(module, frozen_bn=True).train()
    assert module[0].training
    assert not module[1].training
    as_backbone(module, frozen_bn=False).train()
    assert module[1].training


def test_a_backbone_is_left_as_it_is() -> None:
    model = ConvNet()
    assert as_backbone(model) is model


def test_what_is_no_backbone_is_refused_in_words() -> None:
    with pytest.raises(InputError, match=r"module: expected a torch\.nn\.Module, got function"):
        as_backbone(lambda x: x)
    with pytest.raises(ShapeError, match=r"expected \(b, d\) or \(b, d, h, w\).*\(1, 6, 12321\)"):
        as_backbone(net(nn.Flatten(2)))
    with pytest.raises(ShapeError, match="gives vectors of 6 numbers, got dim=7"):
        as_backbone(net(), dim=7)
    with pytest.raises(InputError, match=r"does not take a picture \(1, 3, 224, 224\).*name its size"):
        as_backbone(nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 8)))
    with pytest.raises(InputError, match="got tuple"):
        as_backbone(net(nn.AdaptiveMaxPool2d(1, return_indices=True)))
    with pytest.raises(InputError, match="size: expected a whole number"):
        as_backbone(net(), size=0)
    with pytest.raises(ShapeError, match="one vector for one picture"):
        as_backbone(net(nn.Flatten(0, 1), nn.Flatten()))


def test_a_vector_of_another_length_later_is_an_error() -> None:
    backbone = as_backbone(nn.Sequential(nn.Conv2d(3, 2, 3, stride=2), nn.Flatten()), size=16)
    with pytest.raises(ShapeError, match=r"expected \(1, 98\) for 1 pictures"):
        backbone.features(torch.rand(1, 3, 32, 32))
    with pytest.raises(InputError, match="divide by 255"):
        backbone.features(torch.zeros(1, 3, 16, 16, dtype=torch.uint8))
