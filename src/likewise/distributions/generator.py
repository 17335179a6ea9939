"""A generator: any callable from latents to images, with the density of its latents and the space of its volumes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from likewise.distributions.latents import Latent, check_whole
from likewise.distributions.spectra import Composite, as_latents
from likewise.errors import InputError, ShapeError
from likewise.nn.features import fingerprint
from likewise.nn.pretrained import NETWORKS, feature_network

BATCH = 64
"""How many latents go through the network at a time."""

Space = str | Callable[[Any], Any]
Map = Callable[..., Any]
"""(z, y) → a tensor of n rows; y is None for a generator without labels."""
PIXEL, PREACTIVATION, STYLE = "pixel", "preactivation", "style"
SPACES = (PIXEL, PREACTIVATION, STYLE)


class Generator:
    """A network G with the density p_z of its latents.

    Parameters
    ----------
    net : callable
        z → x, or (z, y) → x where there are classes; z is a tensor (n, dim), y a tensor (n,) of class numbers. A torch
        module is put into evaluation mode: its rows must not depend on each other. Three attributes of it are used
        where it has them: `spaces`, named maps (z, y) → tensor in which volumes can be measured, `sample(z, y)`, which
        makes the images where they have noise that volumes have not, and `truncated(psi)`, the network truncated to
        ψ. Without the latter, latents are drawn towards their centre c: z → c + ψ (z − c).
    latent : Latent
        The density of the latents: `Normal`, `Uniform`, `TruncatedNormal`, or an object with their methods.
    labels : int, optional
        The number of classes.
    space : str or callable, default "pixel"
        Where volumes are measured [Polarity A.5]: "pixel", "preactivation" (what goes into the last tanh or sigmoid),
        "style", a name of `net.spaces`, the name of a network with published weights ("inception", "vgg16", "lpips"
        …), or a callable that maps images to features.
    name : str, optional
        What it is called in tables and messages.
    device : str or torch.device, optional
        Where a module is moved; by default it stays where it is.
    batch : int, default 64
        Latents that go through the network at a time.

    Raises
    ------
    InputError
        Where an argument is not what is described above; a space that the generator does not have is one.

    Examples
    --------
    >>> import likewise as lw
    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 5))
    >>> generator = lw.distributions.Generator(net, lw.distributions.Normal(2))
    >>> generator
    Generator(Sequential, Normal(dim=2), space pixel)
    >>> generator.draw(3, seed=0).shape
    torch.Size([3, 5])
    """

    def __init__(
        self,
        net: Callable[..., Any],
        latent: Latent,
        *,
        labels: int | None = None,
        space: Space = PIXEL,
        name: str | None = None,
        device: str | torch.device | None = None,
        batch: int = BATCH,
    ) -> None:
        if not callable(net):
            raise InputError(f"net: expected a callable z → x, got {type(net).__name__}")
        if not isinstance(latent, Latent):
            raise InputError(f"latent: expected Normal(dim), Uniform(dim) or the like, got {type(latent).__name__}")
        if labels is not None:
            check_whole("labels", labels)
        check_whole("batch", batch)
        self.net, self.latent, self.labels, self.batch = net, latent, labels, batch
        self.name = name or getattr(net, "__qualname__", None) or type(net).__name__
        self.psi = 1.0
        self.device = _prepare(net, device)
        self._space, self._map = space, self._resolve(space)

    def _resolve(self, space: Space) -> Map:
        """The map from latents to a space; an InputError lists the spaces that this generator has."""
        if not isinstance(space, str):
            if not callable(space):
                raise InputError(f"space: expected a name or a callable of images, got {space!r}")
            return lambda z, y=None: _as_tensor(space(self._pixels(z, y)), z)
        own = getattr(self.net, "spaces", {})
        last = None if PREACTIVATION in own else _squashing(self.net)
        known: dict[str, Map] = {PIXEL: self._pixels, **own}
        if last is not None:
            known[PREACTIVATION] = lambda z, y=None: _before(last, self._pixels, z, y)
        if space in NETWORKS and space not in known:
            network = feature_network(space, str(self.device))
            return lambda z, y=None: _as_tensor(network(self._pixels(z, y)), z)
        if space not in known:
            have = ", ".join([PIXEL, *sorted(known.keys() - {PIXEL})])
            nets = ", ".join(NETWORKS)
            raise InputError(
                f"space: this generator has {have}, or takes a callable of images or one of {nets}; got {space!r}"
            )
        return known[space]

    def __getstate__(self) -> dict[str, Any]:
        """All but the map, which is a closure: it is made again where the generator is sent."""
        return {name: value for name, value in vars(self).items() if name != "_map"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._map = self._resolve(self._space)

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
        """The name of the space in which volumes are measured: its own, or that of the callable behind it."""
        if isinstance(self._space, str):
            return self._space
        names = (getattr(self._space, name, None) for name in ("name", "__qualname__"))
        return str(next(filter(None, names), type(self._space).__qualname__))

    def in_space(self, space: Space) -> Self:
        """The same generator, its volumes measured in another space."""
        return self._copy(self.net, space, self.psi)

    def truncated(self, psi: float) -> Self:
        """The same generator truncated to ψ: 1 is the model, 0 its centre. It takes the same latents."""
        if not (isinstance(psi, int | float) and np.isfinite(psi) and psi >= 0):
            raise InputError(f"psi: expected a number ≥ 0, got {psi!r}")
        if psi == 1:
            return self._copy(self.net, self._space, self.psi)
        if self.psi != 1:
            raise InputError(f"psi: the generator is truncated to {self.psi:g} already; truncate the original")
        own = getattr(self.net, "truncated", None)
        net = _Shrunk(self.net, _centre(self.latent), float(psi)) if own is None else own(psi)
        return self._copy(net, self._space, float(psi))

    def _copy(self, net: Callable[..., Any], space: Space, psi: float) -> Self:
        options: Any = {name: getattr(self, name) for name in ("labels", "name", "device", "batch")}
        made = type(self)(net, self.latent, space=space, **options)
        made.psi = psi
        return made

    # ── images ────────────────────────────────────────────────────────────────────────────────────────────────────

    def __call__(self, z: Any, y: Any = None) -> Tensor:
        """The images of latents, without gradients, in batches: (n, …)."""
        z, y = self.latents(z), self.classes(y, len(z))
        draw = getattr(self.net, "sample", self.net)
        with torch.no_grad():
            parts = [
                self._pixels(z[i : i + self.batch], None if y is None else y[i : i + self.batch], draw)
                for i in range(0, len(z), self.batch)
            ]
        x = torch.cat(parts)
        if not bool(torch.isfinite(x).all()):
            row = int((~torch.isfinite(x.flatten(1)).all(1)).nonzero()[0])
            raise InputError(f"net: {self.name} gave NaN or infinity for latent {row}")
        return x

    def draw(self, n: int, *, seed: int = 0, label: int | None = None) -> Tensor:
        """n images of the model itself (ρ = 0), of one class where `label` is given."""
        rng = np.random.default_rng(seed)
        z = self.latent.sample(n, rng)
        if label is None and self.labels is not None:
            return self(z, rng.integers(self.labels, size=n))
        return self(z, None if label is None else np.full(n, label))

    def function(self, y: Any = None) -> Callable[..., Tensor]:
        """z (n, dim) → (n, D) in the generator's space, differentiable where the network is.

        For `spectrum`, which calls it with any number of rows, y must be one class for all of them; `by_class` takes
        the classes with the rows.
        """
        if self.labels is not None and y is None:
            raise InputError(f"y: {self.name} has {self.labels} classes; give a class number for each latent")
        f = self.by_class()

        def of(part: Map) -> Callable[[Tensor], Tensor]:
            return lambda z: part(z, None if y is None else self.classes(y, len(z)))

        return Composite(of(f.inner), f.outer) if isinstance(f, Composite) else of(f)

    def by_class(self) -> Callable[..., Tensor]:
        """(z, y) → (n, D) in the generator's space, a class a row: for `spectrum(…, y=labels)`."""

        def flat(part: Map) -> Callable[..., Tensor]:
            return lambda *rows: part(*rows).flatten(1)

        # two functions, so that the Jacobian can be had through the cheap one
        f = self._map
        return Composite(flat(f.inner), flat(f.outer)) if isinstance(f, Composite) else flat(f)

    def latents(self, z: Any) -> Tensor:
        """Latents as a tensor (n, dim) on the generator's device; anything else is refused."""
        rows = as_latents(z, self.dim, self.device)
        return rows if rows.is_floating_point() else rows.to(torch.float32)

    def classes(self, y: Any, n: int) -> Tensor | None:
        """Class numbers as a tensor (n,), one number standing for all; None for a generator without classes."""
        if self.labels is None:
            if y is not None:
                raise InputError(f"y: {self.name} has no classes; leave labels away")
            return None
        if y is None:
            raise InputError(f"y: {self.name} has {self.labels} classes; give a class number for each latent")
        numbers = torch.as_tensor(y, device=self.device)
        if numbers.ndim == 0:
            numbers = numbers.expand(n)
        if numbers.shape != (n,) or numbers.is_floating_point() or numbers.dtype == torch.bool:
            said = f"{numbers.dtype} {tuple(numbers.shape)}"
            raise ShapeError(f"y: expected ({n},) class numbers, one a latent, got {said}")
        if bool((numbers < 0).any()) or bool((numbers >= self.labels).any()):
            raise InputError(f"y: expected class numbers from 0 to {self.labels - 1}")
        return numbers.to(torch.int64)

    def _pixels(self, z: Tensor, y: Tensor | None = None, net: Map | None = None) -> Tensor:
        net = net or self.net
        x = _as_tensor(net(z) if y is None else net(z, y), z)
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
    """net ∘ (z → c + ψ (z − c)), its own spaces likewise; `module` is the network whose layers are looked at."""

    def __init__(self, net: Callable[..., Any], centre: float, psi: float) -> None:
        self.net, self.centre, self.psi = net, centre, psi

    @property
    def module(self) -> Any:
        return self.net

    @property
    def spaces(self) -> dict[str, Map]:
        own = getattr(self.net, "spaces", {})
        return {name: _Shrunk(part, self.centre, self.psi) for name, part in own.items()}

    def __call__(self, z: Tensor, *y: Any) -> Any:
        return self.net(self.centre + self.psi * (z - self.centre), *y)


def _centre(latent: Latent) -> float:
    bounds = latent.support()
    return 0.0 if bounds is None else (bounds[0] + bounds[1]) / 2


def _prepare(net: Any, device: str | torch.device | None) -> torch.device:
    """The device of a network; a module is put into evaluation mode, and moved where a device is named."""
    if not isinstance(net, nn.Module):
        return torch.device("cpu" if device is None else device)
    net.eval()
    if device is not None:
        net.to(device)
    first = next(net.parameters(), next(net.buffers(), None))
    return first.device if first is not None else torch.device("cpu" if device is None else device)


def _as_tensor(x: Any, like: Tensor) -> Tensor:
    """What a network gave, as a tensor; an array of a black box becomes one."""
    return x if isinstance(x, Tensor) else torch.as_tensor(x, device=like.device)


def _squashing(net: Any) -> nn.Module | None:
    """The Tanh or Sigmoid with which a module ends, if it ends with one."""
    net = getattr(net, "module", net)
    if not isinstance(net, nn.Module):
        return None
    leaves = [m for m in net.modules() if not list(m.children())]
    while leaves and isinstance(leaves[-1], nn.Identity | nn.Flatten | nn.Unflatten | nn.Dropout):
        leaves.pop()
    last = leaves[-1] if leaves else None
    return last if isinstance(last, nn.Tanh | nn.Sigmoid) else None


def _before(layer: nn.Module, pixels: Map, z: Tensor, y: Tensor | None) -> Tensor:
    """What goes into `layer` when the images of z are made."""
    seen: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    try:
        pixels(z, y)
    finally:
        hook.remove()
    if not seen:
        raise InputError(f"space: the generator's last {type(layer).__name__} was never called")
    return seen[-1]
