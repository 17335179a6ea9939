"""DCGANs, VAE decoders and ProGAN: plain chains from a latent to an image, read off the shapes of their weights.

Each layer of a chain is linear, a transposed convolution or a convolution, normalised where the state dict has
statistics, and activated but for the last. What weights do not say (strides, paddings, the activation) must be given,
but for the two layouts of public examples that are known as a whole.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from likewise.distributions.formats import (
    GIVEN,
    OUTPUTS,
    Network,
    check_given,
    count,
    one_hot,
    pixel_norm,
    upsampled,
)
from likewise.errors import InputError


class Unit(NamedTuple):
    """A layer of a chain: where it stands, its kind ("linear", "up", "conv"), the shape of its weight, its grid."""

    path: str
    kind: str
    shape: tuple[int, ...]
    bias: bool
    norm: str | None
    stride: int = 1
    padding: int = 0
    extra: int = 0

    @property
    def into(self) -> int:
        """Features or channels that go in."""
        return self.shape[0] if self.kind == "up" else self.shape[1]

    @property
    def out(self) -> int:
        """Features or channels that come out."""
        return self.shape[1] if self.kind == "up" else self.shape[0]

    def module(self) -> nn.Module:
        """The layer itself."""
        if self.kind == "linear":
            return nn.Linear(self.into, self.out, bias=self.bias)
        k = (self.shape[2], self.shape[3])
        if self.kind == "conv":
            return nn.Conv2d(self.into, self.out, k, self.stride, self.padding, bias=self.bias)
        return nn.ConvTranspose2d(self.into, self.out, k, self.stride, self.padding, self.extra, bias=self.bias)


class Layout(NamedTuple):
    """Which weights are layers (a regular expression); of a layout that is known the rest, too.

    `grid`: transposed convolutions of 3 × 3 double, convolutions keep the size.
    """

    layers: str
    slope: float = GIVEN
    output: str = GIVEN
    plain: tuple[str, ...] = ()
    grid: bool = False


class Decoder(Network):
    """A chain of units. Before the first (transposed) convolution, features are laid out as channels of a square."""

    def __init__(self, units: Sequence[Unit], layout: Layout, colours: int | None = None) -> None:
        super().__init__()
        if layout.output not in OUTPUTS:
            raise InputError(f"output: expected one of {', '.join(OUTPUTS)}, got {layout.output!r}")
        self.units, self.slope, self.output, self.plain = tuple(units), layout.slope, layout.output, layout.plain
        self.dim, self.colours = units[0].into, colours
        for unit in self.units:
            _place(self, unit.path, unit.module())
            if unit.norm is not None:
                kind = nn.BatchNorm1d if unit.kind == "linear" else nn.BatchNorm2d
                _place(self, unit.norm, kind(unit.out))

    @classmethod
    def _layout(cls, state: Mapping[str, Tensor]) -> Layout:
        raise NotImplementedError

    @classmethod
    def _shaped(
        cls,
        state: Mapping[str, Tensor],
        *,
        kinds: Sequence[str] | None = None,
        strides: Sequence[int] | None = None,
        paddings: Sequence[int] | None = None,
        extras: Sequence[int] | None = None,
        slope: float | None = None,
        output: str | None = None,
        colours: int | None = None,
    ) -> Self:
        layout = cls._layout(state)
        keys = (key for key in state if key.endswith(".weight") and re.match(layout.layers, key))
        units = _units(state, [key.removesuffix(".weight") for key in keys])
        slope = layout.slope if slope is None else slope
        layout = layout._replace(slope=slope, output=output or layout.output)
        known = strides is not None or layout.grid or all(unit.kind == "linear" for unit in units)
        check_given(cls.family, strides=strides if known else GIVEN, slope=slope, output=layout.output)
        grid = {"kinds": kinds, "strides": strides, "paddings": paddings, "extras": extras}
        return cls(_gridded(units, grid), layout, colours)

    @property
    def settings(self) -> dict[str, Any]:
        """Grids, activation, squashing, and which layers are not activated."""
        ups = [unit for unit in self.units if unit.kind != "linear"]
        grid = {"kinds": "kind", "strides": "stride", "paddings": "padding", "extras": "extra"}
        columns = {name: [getattr(unit, field) for unit in ups] for name, field in grid.items()}
        return {**columns, "slope": self.slope, "output": self.output, "colours": self.colours}

    def preactivation(self, z: Float[Tensor, "n z"], y: Int[Tensor, " n"] | None = None) -> Float[Tensor, "n c h w"]:
        """What goes into the last squashing."""
        x = self.psi * z
        for i, unit in enumerate(self.units):
            if unit.kind != "linear" and x.ndim == 2:
                x = _square(x, unit.into, unit.path)
            x = self.get_submodule(unit.path)(x)
            if unit.norm is not None:
                x = self.get_submodule(unit.norm)(x)
            if i + 1 < len(self.units) and unit.path not in self.plain:
                x = nn.functional.leaky_relu(x, self.slope)
        return _square(x, self.colours or _colours(x.shape[1]), "the last layer") if x.ndim == 2 else x


def _square(x: Float[Tensor, "n d"], channels: int, where: str) -> Float[Tensor, "n c s s"]:
    side = math.isqrt(x.shape[1] // channels)
    if channels * side**2 != x.shape[1]:
        raise InputError(f"state: {x.shape[1]} features cannot be a square of {channels} channels before {where}")
    return x.reshape(len(x), channels, side, side)


def _colours(features: int) -> int:
    """1 for a square number of features, 3 for three times one."""
    for colours in (1, 3):
        if features % colours == 0 and math.isqrt(features // colours) ** 2 == features // colours:
            return colours
    raise InputError(f"state: {features} outputs are neither a grey nor a coloured square; give colours=")


def _place(root: nn.Module, path: str, module: nn.Module) -> None:
    """Put a module at a dotted path, with empty modules on the way."""
    *parents, name = path.split(".")
    for parent in parents:
        if parent not in root._modules:
            root.add_module(parent, nn.Module())
        root = root.get_submodule(parent)
    root.add_module(name, module)


# ------------------------------------------------------------------------------------------------ from weights to units


def _order(path: str) -> tuple[Any, ...]:
    """Sorts decoder_input before decoder before final_layer, and numbers as numbers."""
    head, *rest = path.split(".")
    first = {"decoder_input": 0, "final_layer": 2}.get(head, 1)
    return (first, head, *((int(p), "") if p.isdigit() else (-1, p) for p in rest))


def _units(state: Mapping[str, Tensor], chosen: Sequence[str]) -> list[Unit]:
    """Units in their order, normalisations attached to the layer before them; grids are still to be set."""
    units: list[Unit] = []
    for path in sorted(chosen, key=_order):
        weight = state[f"{path}.weight"]
        if weight.ndim == 1:
            if not units or units[-1].norm is not None:
                raise InputError(f"state: {path} normalises, but no layer stands before it")
            units[-1] = units[-1]._replace(norm=path)
        else:
            bias = f"{path}.bias" in state
            before = units[-1] if units else None
            units.append(Unit(path, _kind(state, path, before), tuple(weight.shape), bias, None))
    if not units:
        raise InputError("state: no layer of a decoder was found")
    if units[-1].norm is not None:
        raise InputError(
            f"state: the chain ends with {units[-1].norm}, which normalises; the layer after it is missing"
        )
    return units


def _kind(state: Mapping[str, Tensor], path: str, before: Unit | None) -> str:
    """What a weight is, by its axes and the channels that reach and leave it; a tie is a transposed convolution."""
    weight = state[f"{path}.weight"]
    if weight.ndim == 2:
        return "linear"
    if weight.ndim != 4:
        raise InputError(f"state: {path}.weight has {weight.ndim} axes; expected a linear layer or a 2-D convolution")
    bias = state.get(f"{path}.bias")
    leaves = None if bias is None else len(bias)
    reaches = before.out if before is not None and before.kind != "linear" else None
    is_up = leaves in (None, weight.shape[1]) and reaches in (None, weight.shape[0])
    return "up" if is_up else "conv"


def _gridded(units: Sequence[Unit], given: Mapping[str, Sequence[Any] | None]) -> list[Unit]:
    """The units with the grid that was given, torch's own 0 where paddings are not; or that of the known layout."""
    places = [i for i, unit in enumerate(units) if unit.kind != "linear"]
    for name, values in given.items():
        if values is not None and len(values) != len(places):
            raise InputError(f"{name}: expected {len(places)}, one a convolution, got {len(values)}")
    done = list(units)
    for j, i in enumerate(places):
        told = {name: values[j] for name, values in given.items() if values is not None}
        unit = units[i]._replace(kind=told.get("kinds", units[i].kind))
        known = (1, unit.shape[-1] // 2, 0) if unit.kind == "conv" else (2, 1, 1)
        stride, padding, extra = (told["strides"], 0, 0) if "strides" in told else known
        done[i] = unit._replace(stride=stride, padding=told.get("paddings", padding), extra=told.get("extras", extra))
    return _chained(done)


def _chained(units: list[Unit]) -> list[Unit]:
    """The units, if what leaves each one is what the next one takes."""
    for before, after in pairwise(units):
        turns = before.kind == "linear" and after.kind != "linear"
        fits = before.out % after.into == 0 if turns else before.out == after.into
        if not fits:
            raise InputError(f"state: {before.path} gives {before.out} and {after.path} takes {after.into}")
    return units


class DCGAN(Decoder):
    """A DCGAN of transposed convolutions and tanh, by keys main.{i}.* (PyTorch's example) or gen.{i}.{j}.*."""

    family = "dcgan"
    signs = (r"(main|gen|net|model|layers)(\.\d+)+\.weight",)

    @classmethod
    def _layout(cls, state: Mapping[str, Tensor]) -> Layout:
        return Layout(r"[A-Za-z_]\w*(\.\d+)+\.weight$", output="tanh")


class VAE(Decoder):
    """A VAE's decoder, by keys fc3, fc4 (PyTorch's example), decoder.{i}.*, or decoder_input, decoder, final_layer.

    Keys of the encoder are left aside. The first and the last of these are known; of the second all must be given.
    """

    family = "vae"
    signs = (r"(fc3\.weight|decoder_input\.weight|decoder(\.\d+)+\.weight)",)

    @classmethod
    def _layout(cls, state: Mapping[str, Tensor]) -> Layout:
        if any(key.startswith("decoder_input.") for key in state):
            return Layout(r"(decoder|final_layer)", 0.01, "tanh", ("decoder_input",), grid=True)
        if any(key.startswith("decoder") for key in state):
            return Layout(r"(decoder|final_layer)")
        return Layout(r"fc[34]\.", 0.0, "sigmoid")

    def _ignores(self, key: str) -> bool:
        return not re.match(r"decoder|final_layer|fc[34]\.", key)


# ------------------------------------------------------------------------------------------------------ doubled pixels


EPS = 0.8
"""ε of the inner batch normalisations: this layout's authors passed their momentum in its place."""


class UpsamplingDCGAN(Network):
    """Linear, BN, then twice: double, convolve, BN, activate; a last convolution, tanh.

    With classes, latent and embedding of the class go in side by side. Files of this layout exist in both orders, and
    their keys do not tell which: `latent_first` must be given. `slope` is that of the activation's negative side, 0 for
    ReLU.
    """

    family = "upsampling_dcgan"
    signs = ("l1.0.weight", "conv_blocks.0.running_mean")

    def __init__(
        self,
        dim: int,
        widths: tuple[int, int, int, int],
        side: int,
        *,
        slope: float,
        classes: tuple[int, int] | None = None,
        latent_first: bool = True,
    ) -> None:
        super().__init__()
        first, second, third, colours = widths
        self.dim, self.side, self.slope, self.latent_first = dim, side, slope, latent_first
        if classes is not None:
            self.labels = classes[0]
            self.label_emb = nn.Embedding(*classes)
        self.l1 = nn.Sequential(nn.Linear(dim + (classes[1] if classes else 0), first * side**2))
        self.conv_blocks = nn.Sequential(
            nn.BatchNorm2d(first),
            *_doubled(first, second, slope),
            *_doubled(second, third, slope),
            nn.Conv2d(third, colours, 3, padding=1),
        )

    @classmethod
    def _shaped(cls, state: Mapping[str, Tensor], *, slope: float = GIVEN, latent_first: bool = GIVEN) -> Self:
        flat, into = state["l1.0.weight"].shape
        first = len(state["conv_blocks.0.weight"])
        second, third, colours = (len(state[f"conv_blocks.{i}.weight"]) for i in (2, 6, 9))
        side = math.isqrt(flat // first)
        if first * side**2 != flat:
            raise InputError(f"state: l1 gives {flat} numbers, which is no square of {first} channels")
        embedding = state.get("label_emb.weight")
        classes = None if embedding is None else (int(embedding.shape[0]), int(embedding.shape[1]))
        dim = int(into) - (classes[1] if classes else 0)
        order = {} if classes is None else {"latent_first": latent_first}
        check_given(cls.family, slope=slope, **order)
        widths = (first, second, third, colours)
        return cls(dim, widths, side, slope=slope, classes=classes, latent_first=latent_first)

    @property
    def settings(self) -> dict[str, Any]:
        """The slope of the activation and the order of latent and class."""
        return {"slope": self.slope, "latent_first": self.latent_first}

    def preactivation(self, z: Float[Tensor, "n z"], y: Int[Tensor, " n"] | None = None) -> Float[Tensor, "n c h w"]:
        """What goes into tanh."""
        x = self.psi * z
        if self.labels is not None:
            shares = one_hot(y, self.labels, z) @ self.label_emb.weight
            x = torch.cat([x, shares] if self.latent_first else [shares, x], 1)
        out: Tensor = self.conv_blocks(self.l1(x).reshape(len(z), -1, self.side, self.side))
        return out


def _doubled(into: int, out: int, slope: float) -> list[nn.Module]:
    """Twice the size by repeating pixels, convolved, normalised, activated."""
    convolution = nn.Conv2d(into, out, 3, padding=1)
    return [nn.Upsample(scale_factor=2), convolution, nn.BatchNorm2d(out, EPS), nn.LeakyReLU(slope)]


# -------------------------------------------------------------------------------------------------------------- ProGAN


class Equalised(nn.Module):
    """c (W x + b), c = √(2 / fan-in), linear or a convolution that keeps the size: this layout scales the bias, too."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(*shape))
        self.bias = nn.Parameter(torch.zeros(shape[0]))
        self.gain = math.sqrt(2.0 / math.prod(shape[1:]))

    def forward(self, x: Tensor) -> Tensor:
        """The map."""
        weight, bias = self.weight * self.gain, self.bias * self.gain
        if weight.ndim == 2:
            return nn.functional.linear(x, weight, bias)
        return nn.functional.conv2d(x, weight, bias, padding=weight.shape[2] // 2)


class ProGAN(Network):
    """A fully grown progressive GAN: pixel norm, equalised learning rate, the image of the largest scale.

    The latent is normalised to a sphere first: scaling it changes nothing, so truncation is refused, and its Jacobian
    has at most dim − 1 directions. The output is linear; "pixel" cuts it off at the ends of [−1, 1].
    """

    family = "progan"
    signs = (r"formatLayer(\.module)?\.weight",)
    output = "clamp"

    def __init__(self, dim: int, widths: list[int], *, colours: int = 3, group: int = 1) -> None:
        super().__init__()
        self.dim = dim
        self.formatLayer = Equalised(16 * widths[0], dim)
        self.groupScale0 = nn.ModuleList(Equalised(widths[0], widths[0], 3, 3) for _ in range(group))
        self.scaleLayers = nn.ModuleList(
            nn.ModuleList([Equalised(out, into, 3, 3), Equalised(out, out, 3, 3)]) for into, out in pairwise(widths)
        )
        self.toRGBLayers = nn.ModuleList(Equalised(colours, width, 1, 1) for width in widths)

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor], **settings: object) -> Self:
        """The network of a state dict; newer files put .module. before weight and bias, older ones do not."""
        return super().from_state({key.replace(".module.", "."): value for key, value in state.items()}, **settings)

    @classmethod
    def _shaped(cls, state: Mapping[str, Tensor]) -> Self:
        scales = count(state, "toRGBLayers.{}.weight")
        widths = [int(state[f"toRGBLayers.{i}.weight"].shape[1]) for i in range(scales)]
        colours = int(state["toRGBLayers.0.weight"].shape[0])
        dim = int(state["formatLayer.weight"].shape[1])
        return cls(dim, widths, colours=colours, group=count(state, "groupScale0.{}.weight"))

    def truncated(self, psi: float) -> Self:
        """Refused, but for ψ = 1."""
        if psi != 1:
            raise InputError(
                "psi: a ProGAN normalises its latents, so ψ z gives the image of z; truncate the density instead, "
                "latent=TruncatedNormal(dim, psi)"
            )
        return super().truncated(psi)

    def preactivation(self, z: Float[Tensor, "n z"], y: Int[Tensor, " n"] | None = None) -> Float[Tensor, "n c h w"]:
        """The image as the network gives it, nominally in [−1, 1]."""
        x = _activated(self.formatLayer(pixel_norm(z)).reshape(len(z), -1, 4, 4))
        for layer in self.groupScale0:
            x = _activated(layer(x))
        for scale in self.scaleLayers:
            x = upsampled(x)
            for layer in scale.children():
                x = _activated(layer(x))
        image: Tensor = self.toRGBLayers[-1](x)
        return image


def _activated(x: Tensor) -> Tensor:
    return pixel_norm(nn.functional.leaky_relu(x, 0.2))
