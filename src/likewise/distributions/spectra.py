"""The largest singular values of a function's Jacobian, sample by sample, from no more of it than is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from likewise.distributions import jacobian as modes
from likewise.distributions import spectra_through as through
from likewise.distributions import spectra_values as numbers
from likewise.distributions.jacobian import Jacobian, Map, NotFinite
from likewise.distributions.spectra_through import Composite as Composite
from likewise.errors import InputError, ShapeError
from likewise.types import Array

if TYPE_CHECKING:
    from torch import Tensor

Method = Literal["auto", "gram", "left", "subspace", "sketch", "through", "fd"]

VJPS, JVPS = 18, 4
"""Passes of `left` beyond k: backward passes are many and find the subspace, forward passes are few and measure it."""

EXACT = 4
"""`auto` takes the exact method up to this many times the passes of `left`."""


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The top singular values σ_1 ≥ … ≥ σ_k of the Jacobian at n latents.

    values (n, k) float64, 0 beyond the numerical rank; rank (n,) how many of the k lie above the noise floor (see
    `_spectra_values.floor`); method as it was carried out; cost in passes of one row through f, a sample.
    """

    values: Array
    rank: NDArray[np.int64]
    method: str
    cost: float

    @property
    def log_values(self) -> Array:
        """log σ_i (n, k); −inf beyond the numerical rank."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.values))

    @property
    def log_volume(self) -> Array:
        """v_k = Σ_{i≤k} log σ_i (n,) [Polarity Eq. 5]; −inf where the rank is below k."""
        return np.asarray(self.log_values.sum(axis=1))

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        n, k = self.values.shape
        return f"Spectrum({n} × {k} singular values, {self.method}, {self.cost:.1f} passes a sample)"


def spectrum(
    f: Map,
    z: Any,
    k: int,
    *,
    method: Method = "auto",
    seed: int = 0,
    chunk: int | None = None,
    power: int = 1,
    rows: int = 128,
    basis: Any = None,
    tail: float = 1e-3,
) -> Spectrum:
    """The k largest singular values of the Jacobian of f at each row of z (n, d) [Polarity Eq. 5; A.4].

    f is any callable (m, d) → (m, …) for every m, deterministic, its rows independent. Methods::

        gram      exact: all d columns J e_i by forward mode (or all D rows, if fewer), Gram matrix in float64
        left      k + 18 VJPs of a Gaussian sketch that all samples share, their k + 4 leading directions Q, then
                  σ(J Q) by JVPs; with `basis` (d, r), directions known beforehand (`pilot`): r JVPs, then r VJPs of
                  the range, σ(Uᵀ J)
        subspace  `left` with `power` further rounds of VJPs and JVPs
        sketch    as the paper: σ(W J) √(D / rows), W semi-orthogonal with `rows` rows, by VJPs
        through   for a Composite(inner, outer), exact up to `tail`: JVPs of outer only, along the singular vectors
                  of the cheap inner Jacobian, longest first, until the rest cannot change σ_k by more than ½ tail²
        fd        exact up to the differences: central differences along all d axes, 2 d calls; for black boxes
        auto      through for a Composite; gram while d is at most four times the passes of left, else left; fd
                  where nothing else works

    Where an operation of f has no forward mode J t is had by two backward passes (double-VJP), and where it has no
    derivative by central differences; `.method` says so. chunk: rows in one pass through f.
    """
    z = _latents(z)
    _check(z, k, method, seed, chunk, power, rows)
    if method == "auto" and isinstance(f, Composite):
        method = "through"
    settings = Settings(k, seed, power, rows, None if basis is None else _directions(basis, z, k), _tail(tail))
    with _refusing():
        J = _linearised(f, z, chunk, method)
        if k > J.size:
            raise InputError(f"k: expected at most the {J.size} numbers that f gives for a latent, got {k}")
        how = _resolve(method, J, z, settings)
        return _measured(J, z, how, settings)


@contextmanager
def _refusing() -> Iterator[None]:
    """A row that is not finite is an InputError that names it."""
    try:
        yield
    except NotFinite as error:
        what = f"f: {error.what} of row {error.row} is NaN or infinite"
        raise InputError(f"{what}; leave that latent out or mend f") from None


def _linearised(f: Map, z: Tensor, chunk: int | None, method: Method) -> Jacobian:
    """The Jacobian to be asked: that of f, or of its outer part alone."""
    import torch

    if method != "through":
        return modes.linearise(f, z, chunk, mode="fd" if method == "fd" else None)
    if not isinstance(f, Composite):
        raise InputError("f: method 'through' needs a Composite(inner, outer), got a plain callable")
    modes.linearise(f, z, chunk, mode="fd")
    with torch.no_grad():
        w = f.inner(z[:2])
    if not isinstance(w, torch.Tensor) or w.ndim != 2:
        raise ShapeError(f"f.inner: expected a tensor (n, m), got {type(w).__name__} {tuple(np.shape(w))}")
    return replace(modes.linearise(f.outer, w, chunk), whole=f, dim=z.shape[1])


def pilot(f: Map, z: Any, r: int, *, chunk: int | None = None) -> Tensor:
    """r directions (d, r) that are large on average over some latents: a start that `left` reuses for all others.

    The leading eigenvectors of mean_i JᵢᵀJᵢ / ‖Jᵢ‖². A few dozen latents of the same density are enough.
    """
    import torch

    z = _latents(z)
    _check(z, r, "gram", 0, chunk, 0, 1, name="r")
    mean = torch.zeros(z.shape[1], z.shape[1], dtype=torch.float64, device=z.device)
    with _refusing():
        J = modes.linearise(f, z, chunk)
        for rows in modes.slices(len(z), max(1, J.chunk // J.dim)):
            with modes.counted_from(rows.start):
                A = _columns(J, z[rows]).double()
                modes.finite(A, "Jacobian")
            G = A @ A.mT
            mean += (G / G.diagonal(dim1=1, dim2=2).sum(1)[:, None, None].clamp_min(1e-300)).sum(0)
    leading: Tensor = torch.linalg.eigh(mean)[1].flip(1)[:, :r].to(z.dtype)
    return leading


# ── methods: each gives a stack (n, r, ·) whose singular values are those asked for ───────────────────────────────


@dataclass(frozen=True)
class Settings:
    """What the methods are told."""

    k: int
    seed: int
    power: int
    rows: int
    basis: Tensor | None
    tail: float


def _resolve(method: Method, J: Jacobian, z: Tensor, settings: Settings) -> str:
    """The method that will be carried out: auto decided, what costs more than exact made exact, fd where it must be."""
    if method == "through":
        return method
    if J.mode == "fd":
        return "fd"
    vjps, jvps = min(settings.k + VJPS, J.dim), min(settings.k + JVPS, J.dim)
    small = min(J.dim, J.size)
    if method == "auto":
        method = "gram" if small <= EXACT * (vjps + jvps) else "left"
    if method in ("left", "subspace") and settings.basis is None and vjps >= small:
        method = "gram"
    if method == "sketch" and settings.rows >= J.size:
        method = "gram"
    needs = method != "gram" or J.size < J.dim
    if needs and not J.pulls(z):
        return "columns"
    return "rows" if method == "gram" and J.size < J.dim else "columns" if method == "gram" else method


def _measured(J: Jacobian, z: Tensor, how: str, settings: Settings) -> Spectrum:
    import torch

    stack = {"columns": _columns, "fd": _columns, "rows": _rows}.get(how)
    samples = 1 if how == "through" else max(1, J.chunk // J.dim) if stack else J.chunk
    parts, dtype = [], z.dtype
    for rows in modes.slices(len(z), samples):
        with modes.counted_from(rows.start):
            A = stack(J, z[rows]) if stack else _SKETCHES[how](J, z[rows], settings)
            modes.finite(A, "Jacobian")
        parts.append(_padded(numbers.singular_values(A, settings.k), settings.k))
        dtype = A.dtype
    values = torch.cat(parts)
    if how == "sketch":
        values *= (J.size / settings.rows) ** 0.5
    low = numbers.floor(values[:, :1], J.size, J.dim, dtype, differences=J.mode == "fd")
    kept = np.asarray(torch.where(values > low, values, 0.0).cpu().numpy())
    return Spectrum(kept, (kept > 0).sum(axis=1), _name(how, J.mode), J.passes / len(z))


def _padded(values: Tensor, k: int) -> Tensor:
    """k columns: what fewer directions than k cannot reach is 0."""
    import torch

    return torch.nn.functional.pad(values, (0, k - values.shape[1]))


def _name(how: str, mode: str) -> str:
    """The method with the way in which the Jacobian was applied, where it is not the usual one."""
    ways = {"repeat": " (repeated rows)", "reverse": " (double-VJP)"}
    plain = "gram" if how in ("columns", "rows") else how
    return plain + (ways.get(mode, "") if how not in ("rows", "sketch") else "")


def _columns(J: Jacobian, z: Tensor) -> Tensor:
    """Jᵀ, all of it, by its columns J e_i: (n, d, D)."""
    import torch

    axes = torch.eye(J.dim, dtype=z.dtype, device=z.device)
    return J.push(z, axes[:, None].expand(-1, len(z), -1)).transpose(0, 1)


def _rows(J: Jacobian, z: Tensor) -> Tensor:
    """J, all of it, by its rows Jᵀ e_j, for an output smaller than the latent: (n, D, d)."""
    import torch

    return J.pull(z, torch.eye(J.size, dtype=z.dtype, device=z.device)).transpose(0, 1)


def _left(J: Jacobian, z: Tensor, settings: Settings, power: int = 0) -> Tensor:
    """σ(J Q), Q the leading directions of Jᵀ Ω for a Gaussian Ω that all samples share; with a basis, σ(Uᵀ J)."""
    if settings.basis is not None:
        A = J.push(z, settings.basis.T[:, None].expand(-1, len(z), -1))
        for _ in range(power):
            A = J.push(z, _orthonormal(J.pull(z, _orthonormal(A))))
        return J.pull(z, _orthonormal(A)).transpose(0, 1)
    Y = J.pull(z, _gaussian(settings.k + VJPS, J.size, z, settings.seed))
    A = J.push(z, _orthonormal(Y, settings.k + JVPS))
    for _ in range(power):
        A = J.push(z, _orthonormal(J.pull(z, _orthonormal(A))))
    return A.transpose(0, 1)


def _subspace(J: Jacobian, z: Tensor, settings: Settings) -> Tensor:
    return _left(J, z, settings, settings.power)


def _sketch(J: Jacobian, z: Tensor, settings: Settings) -> Tensor:
    """W J by VJPs, W semi-orthogonal (rows, D) [Polarity A.4]."""
    import torch

    W = torch.linalg.qr(_gaussian(settings.rows, J.size, z, settings.seed).double().T)[0].T
    return J.pull(z, W.to(z.dtype)).transpose(0, 1)


def _through(J: Jacobian, z: Tensor, settings: Settings) -> Tensor:
    if not isinstance(J.whole, Composite):
        raise InputError("f: method 'through' needs a Composite(inner, outer)")
    return through.stack(J, J.whole, z, settings.k, settings.tail)


_SKETCHES = {"left": _left, "subspace": _subspace, "sketch": _sketch, "through": _through}


def _gaussian(count: int, size: int, z: Tensor, seed: int) -> Tensor:
    """count codirections of a standard normal, the same for a seed on every device."""
    import torch

    drawn = torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    codirections: Tensor = drawn.to(z)
    return codirections


def _orthonormal(A: Tensor, r: int | None = None) -> Tensor:
    """An orthonormal basis of each sample's vectors A[:, i], of the r leading directions if r is given."""
    import torch

    wide = A.permute(1, 2, 0).double()
    Q = torch.linalg.qr(wide)[0] if r is None else torch.linalg.svd(wide, full_matrices=False)[0][..., :r]
    basis: Tensor = Q.permute(2, 0, 1).to(A.dtype)
    return basis


# ── arguments ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _latents(z: Any) -> Tensor:
    import torch

    try:
        z = torch.as_tensor(z)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"z: expected latents (n, d), got {type(z).__name__}: {error}") from None
    if z.ndim != 2 or 0 in z.shape:
        raise ShapeError(f"z: expected latents (n, d), got shape {tuple(z.shape)}")
    if z.dtype not in (torch.float32, torch.float64):
        raise InputError(f"z: expected float32 or float64, got {z.dtype}; z.float() makes it so")
    if not bool(torch.isfinite(z).all()):
        raise InputError("z: latents contain NaN or infinity")
    latents: Tensor = z.detach()
    return latents


def _check(
    z: Tensor, k: int, method: str, seed: int, chunk: int | None, power: int, rows: int, *, name: str = "k"
) -> None:
    if method not in get_args(Method):
        raise InputError(f"method: expected one of {', '.join(get_args(Method))}, got {method!r}")
    _whole(name, k, 1)
    if k > z.shape[1]:
        raise InputError(f"{name}: expected at most the latent size {z.shape[1]}, got {k}")
    _whole("chunk", 1 if chunk is None else chunk, 1)
    _whole("seed", seed, 0)
    _whole("power", power, 0)
    _whole("rows", rows, 1)
    if method == "sketch" and rows < k:
        raise InputError(f"rows: expected at least k = {k}, got {rows}; a sketch has no more singular values than rows")


def _whole(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{name}: expected a whole number ≥ {least}, got {value!r}")


def _tail(tail: float) -> float:
    if isinstance(tail, bool) or not isinstance(tail, int | float) or not 0 <= tail < 1:
        raise InputError(f"tail: expected a number from 0 to below 1, got {tail!r}")
    return float(tail)


def _directions(basis: Any, z: Tensor, k: int) -> Tensor:
    import torch

    found: Tensor = torch.as_tensor(basis).to(z)
    if found.ndim != 2 or found.shape[0] != z.shape[1] or found.shape[1] < k:
        raise ShapeError(f"basis: expected ({z.shape[1]}, r) with r ≥ k = {k}, got shape {tuple(found.shape)}")
    return found
