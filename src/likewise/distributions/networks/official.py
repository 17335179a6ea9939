"""A style generator that the user already holds as a module: anything with the official mapping and synthesis calls."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any, Self

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from likewise.distributions.latents import Normal
from likewise.distributions.networks.network import one_hot, squashed
from likewise.errors import InputError


class OfficialStyleGAN(nn.Module):
    """G.mapping(z, c, truncation_psi=ψ) and G.synthesis(ws, noise_mode="const"), with the spaces of `StyleGAN2`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        for name in ("mapping", "synthesis", "z_dim"):
            if not hasattr(module, name):
                raise InputError(f"module: expected mapping, synthesis and z_dim, as StyleGAN2 and 3 have; no {name}")
        self.module, self.psi, self.output = module, 1.0, "clamp"
        self.dim = int(module.z_dim)  # type: ignore[arg-type]
        self.labels = int(getattr(module, "c_dim", 0) or 0) or None

    @property
    def latent(self) -> Normal:
        """The density that style generators are trained with."""
        return Normal(self.dim)

    @property
    def spaces(self) -> dict[str, Callable[..., Tensor]]:
        """Before the cut to [0, 1], and the style w."""
        return {"preactivation": self.preactivation, "style": self.style}

    def truncated(self, psi: float) -> Self:
        """The same module, truncated to ψ by its own mapping."""
        cut = copy.copy(self)
        cut.psi = float(psi)
        return cut

    def _styles(self, z: Tensor, y: Tensor | None) -> Tensor:
        """One w for each layer, (n, layers, w)."""
        condition = None if self.labels is None else one_hot(y, self.labels, z)
        ws: Tensor = self.module.mapping(z, condition, truncation_psi=self.psi)  # type: ignore[operator]
        return ws

    def style(self, z: Float[Tensor, "n z"], y: Int[Tensor, " n"] | None = None) -> Float[Tensor, "n w"]:
        """w of the first layer; without style mixing and a cut-off of ψ they are all the same."""
        ws = self._styles(z, y)
        return ws[:, 0] if ws.ndim == 3 else ws

    def preactivation(self, z: Float[Tensor, "n z"], y: Int[Tensor, " n"] | None = None) -> Float[Tensor, "n c h w"]:
        """The picture as the module gives it, nominally in [−1, 1], its noise held constant."""
        synthesis: Any = self.module.synthesis
        x: Tensor = synthesis(self._styles(z, y), **_taken(synthesis, noise_mode="const", force_fp32=True))
        return x

    def forward(self, z: Float[Tensor, "n z"], y: Int[Tensor, " n"] | None = None) -> Float[Tensor, "n c h w"]:
        """Pictures in [0, 1]."""
        return squashed(self.preactivation(z, y), self.output)

    def extra_repr(self) -> str:
        """What tells one from another besides its weights."""
        return f"dim={self.dim}, labels={self.labels}, psi={self.psi}"


def _taken(call: Any, **options: Any) -> dict[str, Any]:
    """The options that a call takes, by name or by **kwargs."""
    target = call.forward if isinstance(call, torch.nn.Module) else call
    parameters = inspect.signature(target).parameters.values()
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return options
    return {name: value for name, value in options.items() if name in {p.name for p in parameters}}
