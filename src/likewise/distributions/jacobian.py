"""Four ways to apply a Jacobian to directions, from the cheapest to the one that always works.

    vmap      forward mode, all directions of a sample at once: the sample itself is computed once for all of them
    repeat    forward mode on repeated rows: for operations that vmap does not know; twice the cost
    reverse   J t as the derivative of u ↦ Jᵀ u (double-VJP): for operations without forward mode
    fd        central differences: for black boxes

Rows of f are independent, so Jacobians of n samples are applied at once; directions are (c, n, d), images (c, n, D).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import jvp, vmap

from likewise.errors import InputError, LikewiseError, ShapeError

Map = Callable[..., Any]
Mode = Literal["vmap", "repeat", "reverse", "fd"]
MODES: tuple[Mode, ...] = ("vmap", "repeat", "reverse", "fd")

COUPLED = 1e-2
"""How much a row of f may change, relative to its size, when another row joins the batch."""

PASS = 2**18
"""Output numbers in one pass: more leave the processor's cache. Between 16 and 256 rows a pass."""


@dataclass
class Jacobian:
    """The Jacobians of f at rows of latents, as linear maps; counts what it costs in passes of one row through f."""

    f: Map
    mode: Mode
    dim: int
    size: int
    chunk: int
    passes: float = 0.0
    whole: Map | None = None

    def push(self, z: Tensor, directions: Tensor) -> Tensor:
        """J t for every direction t: (c, n, d) → (c, n, D)."""
        parts = []
        for rows in slices(len(z), max(1, self.chunk // len(directions))):
            with counted_from(rows.start):
                parts.append(torch.cat([self._push(z[rows], t[:, rows]) for t in torch.split(directions, self.chunk)]))
        return torch.cat(parts, dim=1)

    def _push(self, z: Tensor, t: Tensor) -> Tensor:
        c, n = t.shape[:2]
        self.passes += {"vmap": c + 1, "repeat": 2 * c, "reverse": c + 2, "fd": 2 * c}[self.mode] * n
        return _PUSHES[self.mode](self.f, z, t)

    def pull(self, z: Tensor, codirections: Tensor) -> Tensor:
        """Jᵀ u for every codirection u, shared (c, D) or one a sample (c, n, D): → (c, n, d)."""
        parts = []
        for rows in slices(len(z), self.chunk):
            u = codirections if codirections.ndim == 2 else codirections[:, rows]
            self.passes += (len(u) + 1) * len(z[rows])
            with counted_from(rows.start):
                parts.append(_pull(self.f, z[rows], u))
        return torch.cat(parts, dim=1)

    def pulls(self, z: Tensor) -> bool:
        """Whether f has a backward pass, tried on the first latent."""
        return self.mode != "fd" and _works(lambda: _pull(self.f, z[:1], torch.ones(1, self.size).to(z)))


def slices(n: int, step: int) -> Iterator[slice]:
    """0 … n in steps."""
    return (slice(i, min(i + step, n)) for i in range(0, n, step))


# ── the ways ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _by_vmap(f: Map, z: Tensor, t: Tensor, *, strict: bool = False) -> Tensor:
    """All directions at once: what does not depend on the direction, f(z) itself, is computed once."""

    def along(one: Tensor) -> Any:
        return jvp(lambda x: _flat(f(x)), (z,), (one,), strict=strict)

    outs: Any = (None, 0)
    with torch.no_grad():
        y, dy = vmap(along, out_dims=outs)(t)
    finite(y, "output")
    images: Tensor = dy
    return images


def _by_repeat(f: Map, z: Tensor, t: Tensor) -> Tensor:
    """Rows repeated, one direction each."""
    fw: Any = forward_ad
    c, n = t.shape[:2]
    with torch.no_grad(), fw.dual_level():
        y, dy = fw.unpack_dual(_flat(f(fw.make_dual(z.repeat(c, 1), t.reshape(c * n, -1)))))
    if dy is None:
        raise RuntimeError("the output of f does not follow its input in forward mode")
    finite(y[:n], "output")
    images: Tensor = dy.reshape(c, n, -1)
    return images


def _by_reverse(f: Map, z: Tensor, t: Tensor) -> Tensor:
    """J t = ∂/∂u ⟨Jᵀ u, t⟩: two backward passes, the first shared by all directions."""
    with torch.enable_grad():
        x = z.detach().clone().requires_grad_()
        y = _flat(f(x))
        u = torch.zeros_like(y, requires_grad=True)
        (pulled,) = torch.autograd.grad(y, x, u, create_graph=True)
        images = [torch.autograd.grad(pulled, u, one, retain_graph=True)[0] for one in t]
    finite(y, "output")
    return torch.stack(images)


def _by_differences(f: Map, z: Tensor, t: Tensor) -> Tensor:
    """(f(z + h t) − f(z − h t)) / 2h with h = ε^{1/3} max(1, |z|∞) / |t|."""
    c, n = t.shape[:2]
    length = t.norm(dim=2, keepdim=True).clamp_min(torch.finfo(z.dtype).tiny)
    h = torch.finfo(z.dtype).eps ** (1 / 3) * z.abs().amax(1, keepdim=True).clamp_min(1) / length
    with torch.no_grad():
        ends = [_flat(f((z + sign * h * t).reshape(c * n, -1))) for sign in (1, -1)]
    for y in ends:
        finite(y.reshape(c, n, -1).sum(0), "output")
    images: Tensor = (ends[0] - ends[1]).reshape(c, n, -1) / (2 * h).to(ends[0].dtype)
    return images


_PUSHES: dict[Mode, Callable[[Map, Tensor, Tensor], Tensor]] = {
    "vmap": _by_vmap,
    "repeat": _by_repeat,
    "reverse": _by_reverse,
    "fd": _by_differences,
}


def _pull(f: Map, z: Tensor, u: Tensor) -> Tensor:
    """Backward passes over one recorded forward pass, a codirection each."""
    with torch.enable_grad():
        x = z.detach().clone().requires_grad_()
        y = _flat(f(x))
        pulled = [torch.autograd.grad(y, x, one.expand_as(y), retain_graph=True)[0] for one in u]
    finite(y, "output")
    return torch.stack(pulled)


def _flat(y: Any) -> Tensor:
    """One row a sample, whatever shape and library f answers in."""
    if not isinstance(y, Tensor):
        y = torch.as_tensor(np.asarray(y))
    rows: Tensor = y.flatten(1)
    return rows


class NotFinite(Exception):
    """A row of the current pass is NaN or infinite; `spectrum` turns it into an InputError with the row's number."""

    def __init__(self, what: str, row: int) -> None:
        super().__init__(what, row)
        self.what, self.row = what, row


def finite(y: Tensor, what: str) -> None:
    """Raise NotFinite for the first row of y that is not."""
    good = torch.isfinite(y).flatten(1).all(dim=1)
    if not bool(good.all()):
        raise NotFinite(what, int((~good).nonzero()[0]))


@contextmanager
def counted_from(start: int) -> Iterator[None]:
    """Rows that are not finite are numbered from `start`."""
    try:
        yield
    except NotFinite as error:
        raise NotFinite(error.what, error.row + start) from None


# ── which way ─────────────────────────────────────────────────────────────────────────────────────────────────────


def linearise(f: Map, z: Tensor, chunk: int | None, *, mode: Mode | None = None) -> Jacobian:
    """f's Jacobian in the first of the four ways that works, tried on the first latent."""
    y = _checked(f, z)
    dim, size = z.shape[1], y.shape[1]
    rows = max(16, min(256, PASS // size)) if chunk is None else chunk
    ways: tuple[Mode, ...] = MODES if mode is None else (mode,)
    best = next((way for way in ways[:-1] if _pushes(way, f, z[:1])), ways[-1])
    return Jacobian(f, best, dim, size, rows)


def _pushes(mode: Mode, f: Map, z: Tensor) -> bool:
    t = torch.ones_like(z)[None]
    return _works(lambda: _by_vmap(f, z, t, strict=True) if mode == "vmap" else _PUSHES[mode](f, z, t))


def _works(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except (LikewiseError, NotFinite):
        raise
    except Exception:  # f itself works (it was called before): whatever is raised here is missing differentiation
        return False
    return True


def _checked(f: Map, z: Tensor) -> Tensor:
    """f of the first latent, after its shape, kind and the independence of its rows are checked."""
    with torch.no_grad():
        two = _output(f, z[:2])
        one = _output(f, z[:1])
    finite(two, "output")
    scale = float(two[0].abs().max())
    moved = float((one[0] - two[0]).abs().max())
    if moved > COUPLED * scale:
        raise InputError(
            f"f: the first row changed by {moved:.2g} (its largest number is {scale:.2g}) when called again without "
            "the second; rows must be independent and f deterministic: put the network into evaluation mode, fix noise"
        )
    return one


def _output(f: Map, z: Tensor) -> Tensor:
    y = f(z)
    shape = tuple(np.shape(y))
    if len(shape) < 2 or shape[0] != len(z) or 0 in shape:
        raise ShapeError(f"f: expected ({len(z)}, …), one output a latent, got shape {shape}")
    y = _flat(y)
    if not y.is_floating_point() or y.dtype in (torch.float16, torch.bfloat16):
        raise InputError(f"f: expected outputs in float32 or float64, got {y.dtype}; its Jacobian would be noise")
    return y
