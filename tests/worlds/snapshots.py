"""Snapshots as the official training code writes them, made of our own small networks; what is inside raises if run."""

from __future__ import annotations

import io
import pickle
import sys
import types
from collections import OrderedDict
from typing import Any

import numpy as np
from torch import nn

from likewise.distributions.formats.stylegan import (
    AliasFreeLayer,
    Dense,
    Fourier,
    SkipBlock,
    SkipLayer,
    StyleGAN2,
    StyleMapping,
    ToRGB,
)

SOURCE = 'raise RuntimeError("a reader must never execute this")'


def _rebuild(meta: Any) -> None:
    raise RuntimeError("a reader must never execute this")


class _Persistent:
    """Pickles as an object of torch_utils.persistence does."""

    def __init__(self, meta: dict[str, Any]) -> None:
        self.meta = meta

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.meta,)


class EasyDict(dict[str, Any]):
    """What the official code keeps its options in."""


def record(module: nn.Module, kind: str, said: dict[str, Any], modules: dict[str, Any]) -> _Persistent:
    """A module as a persistent object: its tensors, attributes and modules in one table."""
    state: dict[str, Any] = {"training": False, "_non_persistent_buffers_set": set(), "_forward_hooks": OrderedDict()}
    state |= {"_parameters": dict(module._parameters), "_buffers": dict(module._buffers), "_modules": modules}
    state |= {**said, "_init_args": (), "_init_kwargs": EasyDict(said)}
    return _Persistent({"type": "class", "version": 6, "module_src": SOURCE, "class_name": kind, "state": state})


def dense(layer: Dense) -> _Persistent:
    said = {"weight_gain": np.float64(layer.gain), "bias_gain": layer.rate}
    return record(layer, "FullyConnectedLayer", {**said, "activation": "lrelu" if layer.activate else "linear"}, {})


def mapping(net: StyleMapping) -> _Persistent:
    parts = {name: dense(part) for name, part in net.named_children()}  # type: ignore[arg-type]
    return record(net, "MappingNetwork", {"z_dim": net.z, "w_avg_beta": 0.998}, parts)


def skip_layer(layer: SkipLayer | ToRGB) -> _Persistent:
    said: dict[str, Any] = {"conv_clamp": layer.clamp}
    if isinstance(layer, SkipLayer):
        said |= {"activation": "lrelu", "act_gain": np.sqrt(2), "up": 2 if layer.up else 1, "padding": 1}
    kind = "SynthesisLayer" if isinstance(layer, SkipLayer) else "ToRGBLayer"
    return record(layer, kind, said, {"affine": dense(layer.affine)})


def block(part: SkipBlock) -> _Persistent:
    layers = {name: skip_layer(layer) for name, layer in part.named_children()}  # type: ignore[arg-type]
    return record(part, "SynthesisBlock", {"architecture": "skip", "use_fp16": False}, layers)


def fourier(part: Fourier) -> _Persistent:
    said = {"size": np.array([part.size] * 2), "sampling_rate": np.float64(part.rate), "bandwidth": part.cutoff}
    return record(part, "SynthesisInput", said, {"affine": dense(part.affine)})


def alias_free(layer: AliasFreeLayer, fine: int, rates: tuple[int, int]) -> _Persistent:
    said = {"conv_clamp": layer.clamp, "up_factor": layer.up, "down_factor": layer.down, "is_torgb": layer.last}
    said |= {"padding": [*layer.pad, *layer.pad], "tmp_sampling_rate": fine, "use_fp16": np.False_}
    said |= {"in_sampling_rate": rates[0], "out_sampling_rate": rates[1]}
    return record(layer, "SynthesisLayer", said, {"affine": dense(layer.affine)})


def generator(net: Any) -> _Persistent:
    """G_ema of a StyleGAN2 or 3 of ours."""
    synthesis = net.synthesis
    if isinstance(net, StyleGAN2):
        made = record(synthesis, "SynthesisNetwork", {}, {n: block(p) for n, p in synthesis.named_children()})
    else:
        parts, rate = {"input": fourier(synthesis.input)}, synthesis.input.rate
        for name in synthesis.names:
            layer = synthesis.get_submodule(name)
            fine = rate * layer.up
            parts[name] = alias_free(layer, fine, (rate, fine // layer.down))
            rate = fine // layer.down
        said = {"layer_names": list(synthesis.names), "output_scale": synthesis.scale, "margin_size": net.design.margin}
        made = record(synthesis, "SynthesisNetwork", said, parts)
    return record(net, "Generator", {"z_dim": net.dim}, {"synthesis": made, "mapping": mapping(net.mapping)})


def snapshot(held: Any, protocol: int = 4) -> bytes:
    """The pickle of something with persistent objects in it."""
    places = {"torch_utils": None, "torch_utils.persistence": ("_reconstruct_persistent_obj", _rebuild)}
    places |= {"dnnlib": None, "dnnlib.util": ("EasyDict", EasyDict)}
    kept = {place: sys.modules.get(place) for place in places}
    named = {thing: (thing.__module__, thing.__qualname__) for thing in (_rebuild, EasyDict)}
    try:
        for place, inside in places.items():
            sys.modules[place] = types.ModuleType(place)
            if inside is not None:
                name, thing = inside
                setattr(sys.modules[place], name, thing)
                thing.__module__, thing.__qualname__ = place, name
                thing.__name__ = name
        out = io.BytesIO()
        pickle.dump(held, out, protocol=protocol)
        return out.getvalue()
    finally:
        for thing, (module, qualname) in named.items():
            thing.__module__, thing.__qualname__, thing.__name__ = module, qualname, qualname
        for place, module in kept.items():
            sys.modules.pop(place)
            if module is not None:
                sys.modules[place] = module


def whole(net: Any, other: Any | None = None, protocol: int = 4) -> bytes:
    """The file of a training: G, D, G_ema, augmentation and options."""
    ours = generator(net)
    held = {"training_set_kwargs": EasyDict(path="x.zip"), "G": generator(other or net), "D": None, "G_ema": ours}
    return snapshot({**held, "augment_pipe": None}, protocol)
