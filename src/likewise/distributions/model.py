"""A generator: any callable from latents to pictures, with the density of its latents and the space of its volumes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from likewise.distributions import spaces
from likewise.distributions.latents import Latent
from likewise.distributions.spaces import Map, Space
from likewise.errors import InputError, ShapeError
from likewise.nn.features import fingerprint

if TYPE_CHECKING:
    import torch
    from torch import Tensor

BATCH = 64
"""How many latents go through the network at a time."""


class Generator:
    """A network G with the density p_z of its latents.

    `net` is any callable z → x, or (z, y) → x where `labels` is the number of classes; z is a tensor (n, dim), y a
    tensor (n,) of class numbers. A torch module is put into evaluation mode: its rows must not depend on each other.
    `space` says in which space volumes are measured: a name ("pixel", "preactivation", "style") or a callable that
    describes pictures. `spaces` adds named spaces as callables (z, y) → tensor. `truncate` gives, for a ψ, the
    network truncated to it; without one, latents are drawn towards their centre: z → c + ψ (z − c).
    """

    def __init__(
        self,
        net: Callable[..., Any],
        latent: Latent,
        *,
        labels: int | None = None,
        space: Space = spaces.PIXEL,
        spaces: Mapping[str, Map] | None = None,
        truncate: Callable[[float], Callable[..., Any]] | None = None,
        name: str | None = None,
        device: str | torch.device | None = None,
        batch: int = BATCH,
    ) -> None:
        if not callable(net):
            raise InputError(f"net: expected a callable z → x, got {type(net).__name__}")
        if not isinstance(latent, Latent):
            raise InputError(f"latent: expected Normal(dim), Uniform(dim) or the like, got {type(latent).__name__}")
        if labels is not None and (isinstance(labels, bool) or not isinstance(labels, int) or labels < 1):
            raise InputError(f"labels: expected None or the number of classes, got {labels!r}")
        if not isinstance(batch, int) or batch < 1:
            raise InputError(f"batch: expected a whole number ≥ 1, got {batch!r}")
        self.net, self.latent, self.labels, self.batch = net, latent, labels, batch
        self.name = name or getattr(net, "__qualname__", None) or type(net).__name__
        self._spaces, self._truncate = dict(spaces or {}), truncate
        self.psi = 1.0
        self.device = _prepared(net, device)
        self._set_space(space)

    def _set_space(self, space: Space) -> None:
        self._space = space
        self._map = spaces.resolve(space, self.net, self._pixels, self._spaces)

    def __getstate__(self) -> dict[str, Any]:
        """All but the map, which is a closure: it is made again where the generator is sent."""
        return {name: value for name, value in vars(self).items() if name != "_map"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._set_space(self._space)

    def __repr__(self) -> str:
        classes = "" if self.labels is None else f", {self.labels} classes"
        cut = "" if self.psi == 1 else f", ψ = {self.psi:g}"
        return f"Generator({self.name}, {self.latent.name}{classes}, space {self.space}{cut})"

    @property
    def dim(self) -> int:
        """The size K of a latent."""
        return self.latent.dim

    @property
    def space(self) -> str:
        """The name of the space in which volumes are measured."""
        return spaces.name_of(self._space)

    def in_space(self, space: Space) -> Self:
        """The same generator, its volumes measured in another space."""
        return self._copy(space=space)

    def truncated(self, psi: float) -> Self:
        """The same generator truncated to ψ: 1 is the model, 0 its centre. It takes the same latents."""
        if not (isinstance(psi, int | float) and np.isfinite(psi) and psi >= 0):
            raise InputError(f"psi: expected a number ≥ 0, got {psi!r}")
        if psi == 1:
            return self._copy()
        if self.psi != 1:
            raise InputError(f"psi: the generator is truncated to {self.psi:g} already; truncate the original")
        net = _Shrunk(self.net, _centre(self.latent), float(psi)) if self._truncate is None else self._truncate(psi)
        shrunk = {name: _Shrunk(f, _centre(self.latent), float(psi)) for name, f in self._spaces.items()}
        made = self._copy(net=net, spaces=shrunk if self._truncate is None else getattr(net, "spaces", {}))
        made.psi = float(psi)
        return made

    def _copy(self, **changed: Any) -> Self:
        settings = {
            "labels": self.labels,
            "space": self._space,
            "spaces": self._spaces,
            "truncate": self._truncate,
            "name": self.name,
            "device": self.device,
            "batch": self.batch,
        }
        net = changed.pop("net", self.net)
        made = type(self)(net, self.latent, **{**settings, **changed})
        made.psi = self.psi
        return made

    # ── pictures ──────────────────────────────────────────────────────────────────────────────────────────────────

    def __call__(self, z: Any, y: Any = None) -> Tensor:
        """The pictures of latents, without gradients, in batches: (n, …)."""
        import torch

        z, y = self.latents(z), self.classes(y, len(z))
        with torch.no_grad():
            parts = [
                self._pixels(z[i : i + self.batch], None if y is None else y[i : i + self.batch])
                for i in range(0, len(z), self.batch)
            ]
        x = torch.cat(parts)
        if not bool(torch.isfinite(x).all()):
            row = int((~torch.isfinite(x.flatten(1)).all(1)).nonzero()[0])
            raise InputError(f"net: {self.name} gave NaN or infinity for latent {row}")
        return x

    def draw(self, n: int, *, seed: int = 0, label: int | None = None) -> Tensor:
        """n pictures of the model itself (ρ = 0), of one class where `label` is given."""
        rng = np.random.default_rng(seed)
        z = self.latent.sample(n, rng)
        if self.labels is None:
            return self(z, None if label is None else np.full(n, label))
        return self(z, rng.integers(self.labels, size=n) if label is None else np.full(n, label))

    def function(self, y: Any = None) -> Callable[[Tensor], Tensor]:
        """z (n, dim) → (n, D) in the generator's space, differentiable where the network is.

        For `spectrum`, which calls it with any number of rows, y must be one class for all of them.
        """

        def flat(z: Tensor) -> Tensor:
            x = self._map(z, None if y is None else self.classes(y, len(z)))
            return x.flatten(1)

        if self.labels is not None and y is None:
            raise InputError(f"y: {self.name} has {self.labels} classes; give a class number for each latent")
        return self._through(self._map, y) if isinstance(self._map, spaces.Composed) else flat

    def _through(self, parts: spaces.Composed, y: Any) -> Callable[[Tensor], Tensor]:
        """A map in two steps, as two functions, so that its Jacobian can be had through the cheap one."""
        from likewise.distributions.spectra import Composite

        def inner(z: Tensor) -> Tensor:
            return parts.inner(z, None if y is None else self.classes(y, len(z)))

        def outer(w: Tensor) -> Tensor:
            x = parts.outer(w)
            return x.flatten(1)

        return Composite(inner, outer)

    def latents(self, z: Any) -> Tensor:
        """Latents as a tensor (n, dim) on the generator's device; anything else is refused."""
        import torch

        try:
            found = torch.as_tensor(z, device=self.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"z: expected latents (n, {self.dim}), got {type(z).__name__}: {error}") from None
        if found.ndim != 2 or found.shape[1] != self.dim or len(found) == 0:
            raise ShapeError(f"z: expected latents (n, {self.dim}), got shape {tuple(found.shape)}")
        if not bool(torch.isfinite(found).all()):
            raise InputError("z: latents contain NaN or infinity")
        return found if found.is_floating_point() else found.to(torch.float32)

    def classes(self, y: Any, n: int) -> Tensor | None:
        """Class numbers as a tensor (n,), one number standing for all; None for a generator without classes."""
        import torch

        if self.labels is None:
            if y is not None:
                raise InputError(f"y: {self.name} has no classes; leave labels away")
            return None
        if y is None:
            raise InputError(f"y: {self.name} has {self.labels} classes; give a class number for each latent")
        found = torch.as_tensor(y, device=self.device)
        if found.ndim == 0:
            found = found.expand(n)
        if found.shape != (n,) or found.is_floating_point() or found.dtype == torch.bool:
            raise ShapeError(f"y: expected ({n},) class numbers, one a latent, got {found.dtype} {tuple(found.shape)}")
        if bool((found < 0).any()) or bool((found >= self.labels).any()):
            raise InputError(f"y: expected class numbers from 0 to {self.labels - 1}")
        return found.to(torch.int64)

    def _pixels(self, z: Tensor, y: Tensor | None) -> Tensor:
        x = spaces.as_tensor(self.net(z) if y is None else self.net(z, y), z)
        if x.ndim < 2 or x.shape[0] != z.shape[0]:
            raise ShapeError(f"net: expected ({len(z)}, …), one output a latent, got shape {tuple(x.shape)}")
        return x

    # ── identity ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def digest(self) -> str:
        """sha256 of the network's weights and structure, the latent's density, the classes, the space and ψ."""
        about = [self.latent.to_dict(), self.labels, self.space, self.psi]
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
        for part in (self.net, None if isinstance(self._space, str) else self._space):
            digest.update(fingerprint(part))
        return digest.hexdigest()


class _Shrunk:
    """net ∘ (z → c + ψ (z − c)); `module` is the network whose layers are looked at."""

    def __init__(self, net: Callable[..., Any], centre: float, psi: float) -> None:
        self.net, self.centre, self.psi = net, centre, psi

    @property
    def module(self) -> Any:
        return self.net

    def __call__(self, z: Tensor, *y: Any) -> Any:
        return self.net(self.centre + self.psi * (z - self.centre), *y)


def _centre(latent: Latent) -> float:
    bounds = latent.support()
    return 0.0 if bounds is None else (bounds[0] + bounds[1]) / 2


def _prepared(net: Any, device: str | torch.device | None) -> torch.device:
    """The device of a network; a module is put into evaluation mode, and moved where a device is named."""
    import torch

    if not isinstance(net, torch.nn.Module):
        return torch.device("cpu" if device is None else device)
    net.eval()
    if device is not None:
        net.to(device)
    first = next(net.parameters(), next(net.buffers(), None))
    return first.device if first is not None else torch.device("cpu" if device is None else device)
