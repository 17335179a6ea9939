"""In which space a volume is measured [Polarity A.5]: pixels, before the last squashing, style, or features.

A space is a name that the generator knows, or any callable that describes pictures: x → features (n, …).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from likewise.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

Space = str | Callable[[Any], Any]
Map = Callable[["Tensor", "Tensor | None"], "Tensor"]
"""(z, y) → a tensor of n rows; y is None for a generator without labels."""


@dataclass(frozen=True)
class Composed:
    """A map in two steps, z → w → x, the first of them cheap: its volumes are measured through w."""

    inner: Map
    outer: Callable[[Tensor], Tensor]

    def __call__(self, z: Tensor, y: Tensor | None = None) -> Tensor:
        return self.outer(self.inner(z, y))


PIXEL, PREACTIVATION, STYLE = "pixel", "preactivation", "style"
NAMES = (PIXEL, PREACTIVATION, STYLE)


def name_of(space: Space) -> str:
    """A space's name: its own, or that of the callable behind it."""
    if isinstance(space, str):
        return space
    return str(getattr(space, "name", None) or getattr(space, "__qualname__", None) or type(space).__qualname__)


def resolve(space: Space, net: Any, pixels: Map, known: dict[str, Map]) -> Map:
    """The map from latents to a space; an InputError lists the spaces that this generator has."""
    if not isinstance(space, str):
        if not callable(space):
            raise InputError(f"space: expected a name or a callable that describes pictures, got {space!r}")
        return _described(space, pixels)
    if space == PIXEL:
        return pixels
    if space in known:
        return known[space]
    if space == PREACTIVATION:
        layer = squashing(net)
        if layer is not None:
            return _before(layer, pixels)
    have = [PIXEL, *sorted(known), *([PREACTIVATION] if PREACTIVATION not in known and squashing(net) else [])]
    raise InputError(f"space: this generator has {', '.join(have)}, or takes a callable of pictures; got {space!r}")


def _described(describe: Callable[[Any], Any], pixels: Map) -> Map:
    """z → describe(G(z)): the Jacobian of the describing network after the generator."""

    def features(z: Tensor, y: Tensor | None) -> Tensor:
        return as_tensor(describe(pixels(z, y)), z)

    return features


def squashing(net: Any) -> nn.Module | None:
    """The Tanh or Sigmoid with which a module ends, if it ends with one."""
    from torch import nn

    net = getattr(net, "module", net)
    if not isinstance(net, nn.Module):
        return None
    leaves = [m for m in net.modules() if not list(m.children())]
    while leaves and isinstance(leaves[-1], nn.Identity | nn.Flatten | nn.Unflatten | nn.Dropout):
        leaves.pop()
    last = leaves[-1] if leaves else None
    return last if isinstance(last, nn.Tanh | nn.Sigmoid) else None


def _before(layer: nn.Module, pixels: Map) -> Map:
    """z → what goes into `layer`."""

    def preactivation(z: Tensor, y: Tensor | None) -> Tensor:
        seen: list[Tensor] = []
        hook = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        try:
            pixels(z, y)
        finally:
            hook.remove()
        if not seen:
            raise InputError(f"space: the generator's last {type(layer).__name__} was never called")
        return seen[-1]

    return preactivation


def as_tensor(x: Any, like: Tensor) -> Tensor:
    """What a network gave, as a tensor; an array of a black box becomes one."""
    import torch

    return x if isinstance(x, torch.Tensor) else torch.as_tensor(x, device=like.device)
