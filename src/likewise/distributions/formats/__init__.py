"""Generators of seven families in plain torch, by the keys of their public state dicts; shapes come from the weights.

Every network here maps latents (n, dim) to images (n, c, h, w) in [0, 1], is built of operations that have a forward
mode and a batching rule, draws no noise, and treats its rows independently. This file is what they share: the way from
weights to a network, from latents to images, and truncation. Mapping tanh's [−1, 1] to [0, 1] halves every singular
value: the log-volume of k values is k log 2 lower for every latent alike, so weights, ρ and samples stay the same.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from likewise.distributions.latents import Latent, Normal
from likewise.errors import InputError, LikewiseError

OUTPUTS = ("tanh", "sigmoid", "clamp")
GIVEN: Any = object()
"""The default of a setting that weights do not say and that no rule can tell."""


def check_given(family: str, **settings: Any) -> None:
    """An InputError that names the settings that were not given."""
    missing = [name for name, value in settings.items() if value is GIVEN]
    if missing:
        names = ", ".join(missing)
        raise InputError(
            f"{missing[0]}: the weights of a {family} do not say {names}; give them ({missing[0]}=…, on the command "
            f"line --set {missing[0]}=…), or the network as module:attribute"
        )


class Network(nn.Module):
    """A generator whose shapes were read from its weights.

    `preactivation` is what the network computes before its last squashing, `output` names that squashing, `settings`
    is what the state dict does not say; `from_state(state, **settings)` makes the network again. `signs` are keys, as
    regular expressions, by which a state dict of the family is recognised.
    """

    family: ClassVar[str] = ""
    signs: ClassVar[tuple[str, ...]] = ()
    dim: int
    labels: int | None = None
    output: str = "tanh"
    psi: float = 1.0

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor], **settings: Any) -> Self:
        """The network of a state dict, in evaluation mode; an InputError names the keys that do not fit."""
        try:
            net = cls._shaped(state, **settings)
        except LikewiseError:
            raise
        except (KeyError, IndexError, ValueError, TypeError, AttributeError, RuntimeError) as error:
            what = f"the key {error} is missing" if isinstance(error, KeyError) else str(error)
            raise InputError(f"state: not the weights of a {cls.family}: {what}") from error
        return net.load(state)

    @classmethod
    def _shaped(cls, state: Mapping[str, Tensor], *_: Any, **settings: Any) -> Self:
        """A network of the shapes that the state dict has, its values still to be loaded."""
        raise NotImplementedError

    def load(self, state: Mapping[str, Tensor]) -> Self:
        """Take all values of a state dict: no key missing, none left over, every shape the same."""
        own = self.state_dict()
        ignored = {key for key in state if key not in own and self._ignores(key)}
        given = {key: value for key, value in state.items() if key not in ignored}
        for what, odd in (
            ("missing", sorted(own.keys() - given.keys())),
            ("unexpected", sorted(given.keys() - own.keys())),
            ("of another shape", sorted(k for k in own.keys() & given.keys() if own[k].shape != given[k].shape)),
        ):
            if odd:
                rest = f" and {len(odd) - 3} more" if len(odd) > 3 else ""
                raise InputError(f"state: keys {what} for a {self.family}: {', '.join(odd[:3])}{rest}")
        self.load_state_dict(given)
        return self.eval().requires_grad_(False)

    def _ignores(self, key: str) -> bool:
        """Whether a key belongs to a part that is not needed, such as an encoder."""
        return False

    @property
    def settings(self) -> dict[str, Any]:
        """What `from_state` needs besides the state dict, as JSON."""
        return {}

    @property
    def latent(self) -> Latent:
        """The density that the network was trained with."""
        return Normal(self.dim)

    @property
    def spaces(self) -> dict[str, Callable[..., Tensor]]:
        """The spaces of its own in which a volume can be measured [Polarity A.5]."""
        return {"preactivation": self.preactivation}

    def preactivation(self, z: Float[Tensor, "n dim"], y: Int[Tensor, " n"] | None = None) -> Float[Tensor, "n c h w"]:
        """What goes into the last squashing."""
        raise NotImplementedError

    def forward(self, z: Float[Tensor, "n dim"], y: Int[Tensor, " n"] | None = None) -> Float[Tensor, "n c h w"]:
        """Images in [0, 1]."""
        return squashed(self.preactivation(z, y), self.output)

    def truncated(self, psi: float) -> Self:
        """The network truncated to ψ, on the same weights: z → ψ z where the family has no way of its own."""
        cut = copy.copy(self)
        cut.psi = float(psi)
        return cut

    def extra_repr(self) -> str:
        """What tells one network from another besides its weights."""
        return f"dim={self.dim}, labels={self.labels}, output={self.output}, psi={self.psi}, {self.settings}"


def squashed(a: Tensor, output: str) -> Tensor:
    """Images in [0, 1]: (1 + tanh a)/2, the logistic of a, or (1 + a)/2 cut off at 0 and 1."""
    if output == "tanh":
        return 0.5 + 0.5 * torch.tanh(a)
    if output == "sigmoid":
        return torch.sigmoid(a)
    return (0.5 + 0.5 * a).clamp(0.0, 1.0)


def one_hot(y: Int[Tensor, " n"] | None, classes: int, like: Tensor) -> Float[Tensor, "n classes"]:
    """Class numbers as rows of the identity."""
    if y is None:
        raise InputError(f"y: the network has {classes} classes; give a class number for each latent")
    return (torch.arange(classes, device=like.device) == y[:, None]).to(like.dtype)


def pixel_norm(x: Tensor, eps: float = 1e-8) -> Tensor:
    """x / √(mean over channels of x² + ε)."""
    return x * (x.square().mean(1, keepdim=True) + eps).rsqrt()


def upsampled(x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c h2 w2"]:
    """Every pixel four times."""
    return nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")


def count(keys: Mapping[str, Tensor], pattern: str) -> int:
    """How many of pattern.format(0), pattern.format(1) … are keys."""
    return next(n for n in itertools.count() if pattern.format(n) not in keys)
