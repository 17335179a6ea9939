"""Any network of the user's own as a backbone."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from likewise.errors import InputError, ShapeError
from likewise.nn.network import Backbone, check_pictures

PROBE = 224
"""The side in pixels of the black picture that tells what a network gives, where no other is named."""


@runtime_checkable
class IsBackbone(Protocol):
    """What the levels ask of a backbone."""

    dim: int

    def features(self, x: Tensor) -> Tensor:
        """(b, 3, h, w) in [0, 1] to (b, dim)."""

    def parts(self) -> list[nn.Module]:
        """Modules whose composition is `features`."""


class Vectors(nn.Module):
    """(b, d) as it is, (b, d, h, w) averaged over the map; anything else is an error that says what came."""

    def forward(self, y: Tensor) -> Tensor:
        """One vector a picture."""
        if not isinstance(y, Tensor):
            raise InputError(
                f"module: expected a tensor from its forward, got {type(y).__name__}; wrap what it returns"
            )
        if y.ndim not in (2, 4):
            raise ShapeError(f"module: expected (b, d) or (b, d, h, w) from its forward, got shape {tuple(y.shape)}")
        return y if y.ndim == 2 else y.mean(dim=(2, 3))


class Wrapped(Backbone):
    """A module that maps (b, 3, h, w) in [0, 1] to (b, d) or (b, d, h, w), with what the levels ask of a backbone."""

    def __init__(self, module: nn.Module, dim: int, size: int, *, frozen_bn: bool = False) -> None:
        super().__init__()
        self.module, self.vectors, self.frozen_bn = module, Vectors(), frozen_bn
        self.dim, self.size = dim, size
        self.train(module.training)

    def forward(self, x: Tensor) -> Tensor:
        """The same as `features`."""
        return self.features(x)

    def features(self, x: Tensor) -> Tensor:
        """The module's vector of each picture, of `dim` numbers."""
        check_pictures(x)
        y = super().features(x)
        if y.shape != (len(x), self.dim):
            raise ShapeError(f"module: expected ({len(x)}, {self.dim}) for {len(x)} pictures, got {tuple(y.shape)}")
        return y

    def parts(self) -> list[nn.Module]:
        """The layers of a Sequential one by one, anything else in one piece; then the mean over the map."""
        inner = list(self.module) if type(self.module) is nn.Sequential else [self.module]
        return [*inner, self.vectors]


def as_backbone(
    module: nn.Module, dim: int | None = None, size: int | None = None, *, frozen_bn: bool = False
) -> IsBackbone:
    """Any module that maps (b, 3, h, w) in [0, 1] to (b, d) or (b, d, h, w) as a backbone; a backbone as it is.

    `size` is the side of the pictures that it wants (224). `dim` is d, found with one black picture where not given.
    """
    if isinstance(module, IsBackbone):
        return module
    if not isinstance(module, nn.Module):
        raise InputError(f"module: expected a torch.nn.Module, got {type(module).__name__}")
    for name, value in (("dim", dim), ("size", size)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise InputError(f"{name}: expected a whole number ≥ 1, got {value!r}")
    size = PROBE if size is None else size
    found = _probe(module, size)
    if dim not in (None, found):
        raise ShapeError(f"dim: the module gives vectors of {found} numbers, got dim={dim}")
    return Wrapped(module, found, size, frozen_bn=frozen_bn)


def _probe(module: nn.Module, size: int) -> int:
    """How many numbers the module gives a picture; it is left in the mode in which it came."""
    first = next(module.parameters(), torch.empty(0))
    modes = [(m, m.training) for m in module.modules()]
    try:
        module.eval()
        with torch.no_grad():
            y = Vectors()(module(torch.zeros(1, 3, size, size, device=first.device, dtype=first.dtype)))
    except (RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        line = " ".join(str(error).split())[:200]
        raise InputError(f"module: it does not take a picture (1, 3, {size}, {size}): {line}; name its size") from error
    finally:
        for m, mode in modes:
            m.training = mode
    if len(y) != 1:
        raise ShapeError(f"module: expected one vector for one picture, got {len(y)}")
    return int(y.shape[1])
