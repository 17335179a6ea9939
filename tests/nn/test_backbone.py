"""The small network, backbones by name, and any module of one's own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

from likewise import nn as backbones
from likewise.errors import InputError, ShapeError
from likewise.nn import ConvNet, EfficientNetLite0, InceptionBN, ResNet50, as_backbone, named
from nn.layers import Contract, convolution, normalisation, randomised


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
    for module, options, error, words in (
        (lambda x: x, {}, InputError, r"module: expected a torch\.nn\.Module, got function"),
        (net(nn.Flatten(2)), {}, ShapeError, r"expected \(b, d\) or \(b, d, h, w\).*\(1, 6, 12321\)"),
        (net(), {"dim": 7}, ShapeError, "gives vectors of 6 numbers, got dim=7"),
        (nn.Linear(3, 8), {}, InputError, r"take an image \(1, 3, 224, 224\).*name its size"),
        (net(nn.AdaptiveMaxPool2d(1, return_indices=True)), {}, InputError, "got tuple"),
        (net(), {"size": 0}, InputError, "size: expected a whole number"),
        (net(nn.Flatten(0, 1), nn.Flatten()), {}, ShapeError, "one vector for one image"),
    ):
        with pytest.raises(error, match=words):
            as_backbone(module, **options)


def test_a_vector_of_another_length_later_is_an_error() -> None:
    backbone = as_backbone(nn.Sequential(nn.Conv2d(3, 2, 3, stride=2), nn.Flatten()), size=16)
    with pytest.raises(ShapeError, match=r"expected \(1, 98\) for 1 images"):
        backbone.features(torch.rand(1, 3, 32, 32))
    with pytest.raises(InputError, match="divide by 255"):
        backbone.features(torch.zeros(1, 3, 16, 16, dtype=torch.uint8))


class TestConvNet(Contract):
    size = 28

    def make(self, **options: object) -> ConvNet:
        return ConvNet(**options)

    def test_the_network_is_its_equations(self) -> None:
        model = ConvNet(width=6, blocks=3, size=16)
        w = randomised(model)
        x = self.pictures()
        y = x * 2 - 1
        for i in range(3):
            y = functional.max_pool2d(
                normalisation(w, convolution(w, y, f"blocks.{i}.conv"), f"blocks.{i}.bn").relu(), 2
            )
        with torch.no_grad():
            torch.testing.assert_close(model.features(x), y.mean(dim=(2, 3)), atol=1e-10, rtol=1e-9)

    @pytest.mark.parametrize("side", [16, 28, 64])
    def test_sizes_from_16_to_64(self, side: int) -> None:
        model = ConvNet()
        assert model.dim == 64
        assert model.features(torch.rand(3, 3, side, side)).shape == (3, 64)

    def test_too_small_is_named(self) -> None:
        with pytest.raises(ShapeError, match="too small"):
            ConvNet().features(torch.rand(1, 3, 12, 12))
        with pytest.raises(InputError, match="size: 5 blocks"):
            ConvNet(blocks=5, size=28)
        with pytest.raises(InputError, match="width: expected"):
            ConvNet(width=0)


FORKED = """
import os, signal
import numpy as np, torch
from likewise.images import default
torch.set_num_threads(2)
model, images = default(), list(np.random.default_rng(0).integers(0, 255, (8, 224, 224, 3), np.uint8))
model.embed(images)
if pid := os.fork():
    os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) and 1)
signal.alarm(60)
model.embed(images)
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_process_that_is_forked_after_an_embedding_can_embed() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], env=environment, check=False).returncode == 0
