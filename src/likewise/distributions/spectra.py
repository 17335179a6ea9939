"""The largest singular values of a function's Jacobian, sample by sample, from no more of it than is needed.

A Jacobian is applied to directions in one of four ways, from the cheapest to the one that always works:

    vmap      forward mode, all directions of a sample at once: the sample itself is computed once for all of them
    repeat    forward mode on repeated rows: for operations that vmap does not know; twice the cost
    reverse   J t as the derivative of u ↦ Jᵀ u (double-VJP): for operations without forward mode
    fd        central differences: for black boxes

Rows of f are independent, so Jacobians of n samples are applied at once; directions are (c, n, d), images (c, n, D).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, cast, get_args
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import jvp, vmap

from likewise.distributions.latents import check_whole
from likewise.errors import InputError, LikewiseError, ShapeError
from likewise.types import Array

Map = Callable[..., Any]
Mode = Literal["vmap", "repeat", "reverse", "fd"]
Method = Literal["auto", "gram", "left", "subspace", "sketch", "through", "fd"]

VJPS, JVPS = 18, 4
"""Passes of `left` beyond k: backward passes are many and find the subspace, forward passes are few and measure it."""

EXACT = 4
"""Of a few latents `auto` takes the exact method up to this many times the passes of `left`."""

ACCURACY = 0.03
"""The scatter of v_k about the exact one that `auto` allows, as a share of its spread over latents.

Eight latents tell the scatter to about a third: `left` on the trained DCGAN of digits, 1.8 %, should pass."""

FEW, TRIED = 64, 8
"""From so many latents on `auto` tries the methods on so many of them, and takes the fastest that is accurate."""

NARROW = 1e-4
"""σ_k / σ_1 below which squaring a float64 matrix would cost digits: the SVD takes over there."""

COUPLED = 1e-2
"""How much a row of f may change, relative to its size, when another row joins the batch."""

PASS = 2**18
"""Output numbers in one pass: more leave the processor's cache. Between 16 and 256 rows a pass."""

UNIT = 2.0**-20
"""What a class number is multiplied with where it goes along with a latent: small beside it, and exact."""

BLOCK = 2**14
"""Columns that are widened to float64 at a time."""


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The top singular values σ_1 ≥ … ≥ σ_k of the Jacobian at n latents: what `spectrum` gives.

    Attributes
    ----------
    values : ndarray (n, k) float64
        Singular values, descending, 0 beyond the numerical rank.
    rank : ndarray (n,)
        How many of the k lie above the noise floor, ε √max(D, d) σ_1.
    method : str
        The method as it was carried out.
    cost : float
        Passes of one row through f, a sample.

    Examples
    --------
    >>> import likewise as lw
    >>> import torch
    >>> spectrum = lw.distributions.spectrum(lambda z: 2 * z, torch.zeros(3, 4), 2)
    >>> spectrum.log_volume.round(4).tolist()
    [1.3863, 1.3863, 1.3863]
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


@dataclass(frozen=True)
class Composite:
    """z → outer(inner(z)), as in style generators: inner maps z to w (n, m) cheaply, outer draws the image.

    A callable like any other; `spectrum` also sees its parts. Further arguments (a class) go to inner.

    Parameters
    ----------
    inner, outer : callable
        The two steps, each of tensors with a row a sample.

    Examples
    --------
    >>> import likewise as lw
    >>> import torch
    >>> f = lw.distributions.Composite(lambda z: z @ torch.ones(2, 6), lambda w: torch.sin(w))
    >>> lw.distributions.spectrum(f, torch.zeros(1, 2), 1).method
    'through'
    """

    inner: Map
    outer: Map

    def __call__(self, z: Tensor, *y: Any) -> Any:
        return self.outer(self.inner(z, *y))


def spectrum(
    f: Map,
    z: Any,
    k: int,
    *,
    y: Any = None,
    method: Method = "auto",
    seed: int = 0,
    chunk: int | None = None,
    power: int = 1,
    rows: int = 128,
    basis: Any = None,
    tail: float = 1e-3,
    accuracy: float = ACCURACY,
) -> Spectrum:
    """The k largest singular values of the Jacobian of f at each row of z [Polarity Eq. 5; A.4].

    Parameters
    ----------
    f : callable
        (m, d) → (m, …) for every m, deterministic, its rows independent.
    z : Tensor or ndarray (n, d)
        Latents, float32 or float64.
    k : int
        How many singular values, at most d.
    y : Tensor or ndarray (n,), optional
        A class number for each row: f is then called as f(z, y), and all classes go through it together.
    method : str, default "auto"
        One of::

            gram      exact: all d columns J e_i by forward mode (or all D rows, if fewer), Gram matrix in float64
            left      k + 18 VJPs of a Gaussian sketch that all samples share, their k + 4 leading directions Q, then
                      σ(J Q) by JVPs; with `basis` (d, r), directions known beforehand (`pilot`): r JVPs, then r VJPs
                      of the range, σ(Uᵀ J)
            subspace  `left` with `power` further rounds of VJPs and JVPs
            sketch    as the paper: σ(W J) √(D / rows), W semi-orthogonal with `rows` rows, by VJPs
            through   for a Composite(inner, outer), exact up to `tail`: JVPs of outer only, along the singular vectors
                      of the cheap inner Jacobian, longest first, until the rest cannot change σ_k by more than ½ tail²
            fd        exact up to the differences: central differences along all d axes, 2 d calls; for black boxes
            auto      the fastest of gram (of a Composite through), left and subspace, as measured on the first 8
                      latents, whose v_k scatters about the exact one by no more than `accuracy` of its spread; f is
                      tried once. Of fewer than 64 latents: gram while d is at most four times the passes of left, else
                      left; for a Composite through. fd where nothing else works

    seed : int, default 0
        Of the sketches.
    chunk : int, optional
        Rows in one pass through f.
    power, rows, basis, tail, accuracy
        Of the methods "subspace", "sketch", "left", "through" and "auto", as above.

    Returns
    -------
    Spectrum
        `.values` (n, k) descending, `.log_volume`, `.rank`, `.method`. Where an operation of f has no forward mode, J t
        is had by two backward passes (double-VJP), and where it has no derivative by central differences; `.method`
        says so.

    Raises
    ------
    InputError
        Where an argument is out of range, f couples its rows, or a row of f or of its Jacobian is not finite.

    Examples
    --------
    >>> import likewise as lw
    >>> import torch
    >>> A = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
    >>> lw.distributions.spectrum(lambda z: z @ A, torch.zeros(1, 3), 2).values.round(4).tolist()
    [[3.0, 2.0]]
    """
    z = _latents(z)
    dim = z.shape[1]
    if method not in get_args(Method):
        raise InputError(f"method: expected one of {', '.join(get_args(Method))}, got {method!r}")
    check_whole("k", k, 1, z.shape[1], ", the latent size")
    passes = 1 if chunk is None else chunk
    for name, value, least in (("chunk", passes, 1), ("seed", seed, 0), ("power", power, 0), ("rows", rows, 1)):
        check_whole(name, value, least)
    if method == "sketch" and rows < k:
        raise InputError(f"rows: expected at least k = {k}, got {rows}; a sketch has no more singular values than rows")
    if isinstance(tail, bool) or not isinstance(tail, int | float) or not 0 <= tail < 1:
        raise InputError(f"tail: expected a number from 0 to below 1, got {tail!r}")
    if method == "auto" and basis is None and len(z) >= FEW:
        method = choose(f, z, k, y=y, accuracy=accuracy, seed=seed, chunk=chunk, power=power, tail=tail)
    if method == "auto" and isinstance(f, Composite):
        method = "through"
    options = Options(k, seed, power, rows, None if basis is None else _directions(basis, z, k), tail)
    if y is not None:
        f, z = _with_classes(f, dim), _beside(z, y)
    with _naming_rows():
        J = _linearise(f, z, chunk, method, dim)
        if k > J.size:
            raise InputError(f"k: expected at most the {J.size} numbers that f gives for a latent, got {k}")
        return _measure(J, z, _resolve(method, J, z, options), options)


_CHOSEN: WeakKeyDictionary[Any, dict[Any, Method]] = WeakKeyDictionary()
"""What `choose` found, by the function."""


def choose(f: Map, z: Any, k: int, *, y: Any = None, accuracy: float = ACCURACY, **options: Any) -> Method:
    """The fastest method that is accurate enough, as measured on the first few latents; of a function once."""
    setting = (k, accuracy, tuple(z.shape[1:]), str(z.dtype), *options.values())
    with suppress(TypeError):  # not everything callable can be remembered
        if setting in _CHOSEN.get(f, {}):
            return _CHOSEN[f][setting]
    chosen = _choose(f, z, k, y, accuracy, options)
    with suppress(TypeError):
        _CHOSEN.setdefault(f, {})[setting] = chosen
    return chosen


def _choose(f: Map, z: Any, k: int, y: Any, accuracy: float, options: dict[str, Any]) -> Method:
    exact: Method = "through" if isinstance(f, Composite) else "gram"

    def tried(method: Method) -> tuple[Spectrum, float]:
        classes = None if y is None else y[:TRIED]
        began = _clock(z)
        measured = spectrum(f, z[:TRIED], k, y=classes, method=method, **options)
        return measured, _clock(z) - began

    truth, limit = tried(exact)
    alive = np.isfinite(truth.log_volume)
    if truth.method == "fd" or alive.sum() < TRIED / 2 or 2 * k + VJPS + JVPS >= truth.cost:
        return exact
    spread = truth.log_volume[alive].std()
    for method in get_args(Method)[2:4]:
        measured, seconds = tried(method)
        if seconds >= limit or measured.method != method:
            return exact  # and the next is slower still
        if (measured.log_volume - truth.log_volume)[alive].std() <= accuracy * spread:
            return cast(Method, method)
    return exact


def _clock(z: Any) -> float:
    """Seconds: of the processor, which other programs do not lengthen; of the wall where another device works."""
    return time.process_time() if torch.as_tensor(z).device.type == "cpu" else time.perf_counter()


def pilot(f: Map, z: Any, r: int, *, y: Any = None, chunk: int | None = None) -> Tensor:
    """Directions that are large on average over some latents: a start that `left` reuses for all others.

    The leading eigenvectors of mean_i JᵢᵀJᵢ / ‖Jᵢ‖². A few dozen latents of the same density are enough.

    Parameters
    ----------
    f, z, y, chunk
        As for `spectrum`.
    r : int
        How many directions, at most d.

    Returns
    -------
    Tensor (d, r)
        Orthonormal columns, for `spectrum(…, method="left", basis=…)`.

    Raises
    ------
    InputError
        As `spectrum` does.

    Examples
    --------
    >>> import likewise as lw
    >>> import torch
    >>> A = torch.diag(torch.tensor([3.0, 2.0, 0.1]))
    >>> lw.distributions.pilot(lambda z: z @ A, torch.zeros(2, 3), 2).shape
    torch.Size([3, 2])
    """
    z = _latents(z)
    dim = z.shape[1]
    check_whole("r", r, 1, dim, ", the latent size")
    check_whole("chunk", 1 if chunk is None else chunk)
    mean = torch.zeros(dim, dim, dtype=torch.float64, device=z.device)
    dtype = z.dtype
    if y is not None:
        f, z = _with_classes(f, dim), _beside(z, y)
    with _naming_rows():
        J = linearise(f, z, chunk, dim=dim)
        for rows in slices(len(z), max(1, J.chunk // J.dim)):
            with counted_from(rows.start):
                A = _columns(J, z[rows]).double()
                finite(A, "Jacobian")
            G = A @ A.mT
            mean += (G / G.diagonal(dim1=1, dim2=2).sum(1)[:, None, None].clamp_min(1e-300)).sum(0)
    leading: Tensor = torch.linalg.eigh(mean)[1].flip(1)[:, :r].to(dtype)
    return leading


@contextmanager
def _naming_rows() -> Iterator[None]:
    """A row that is not finite is an InputError that names it."""
    try:
        yield
    except NotFinite as error:
        what = f"f: {error.what} of row {error.row} is NaN or infinite"
        raise InputError(f"{what}; leave that latent out or mend f") from None


def _with_classes(f: Map, dim: int) -> Map:
    """f(z, y) as a function of rows of z and one more number, which stands for the class and has no derivative."""
    if isinstance(f, Composite):
        return Composite(_with_classes(f.inner, dim), f.outer)
    return lambda rows: f(rows[:, :dim], (rows[:, dim].detach() / UNIT).round().long())


def _beside(z: Tensor, y: Any) -> Tensor:
    """Latents with their class as one more number."""
    numbers = torch.as_tensor(y).to(z)
    if numbers.shape != z.shape[:1]:
        raise ShapeError(f"y: expected ({len(z)},) class numbers, one a latent, got {tuple(numbers.shape)}")
    return torch.cat([z, numbers[:, None] * UNIT], 1)


def _linearise(f: Map, z: Tensor, chunk: int | None, method: Method, dim: int) -> Jacobian:
    """The Jacobian to be asked: that of f, or of its outer part alone."""
    if method != "through":
        return linearise(f, z, chunk, mode="fd" if method == "fd" else None, dim=dim)
    if not isinstance(f, Composite):
        raise InputError("f: method 'through' needs a Composite(inner, outer), got a plain callable")
    linearise(f, z, chunk, mode="fd")
    with torch.no_grad():
        w = f.inner(z[:2])
    if not isinstance(w, Tensor) or w.ndim != 2:
        raise ShapeError(f"f.inner: expected a tensor (n, m), got {type(w).__name__} {tuple(np.shape(w))}")
    return replace(linearise(f.outer, w, chunk), whole=f, dim=dim)


# ── methods: each gives a stack (n, r, ·) whose singular values are those asked for ───────────────────────────────


@dataclass(frozen=True)
class Options:
    """What the methods are told."""

    k: int
    seed: int
    power: int
    rows: int
    basis: Tensor | None
    tail: float


def _resolve(method: Method, J: Jacobian, z: Tensor, options: Options) -> str:
    """The method that will be carried out: auto decided, what costs more than exact made exact, fd where it must be."""
    if method == "through":
        return method
    if J.mode == "fd":
        return "fd"
    vjps, jvps = min(options.k + VJPS, J.dim), min(options.k + JVPS, J.dim)
    small = min(J.dim, J.size)
    if method == "auto":
        method = "gram" if small <= EXACT * (vjps + jvps) else "left"
    if method in ("left", "subspace") and options.basis is None and vjps >= small:
        method = "gram"
    if method == "sketch" and options.rows >= J.size:
        method = "gram"
    needs_pull = method != "gram" or J.size < J.dim
    if needs_pull and not J.pulls(z):
        return "columns"
    return "rows" if method == "gram" and J.size < J.dim else "columns" if method == "gram" else method


def _measure(J: Jacobian, z: Tensor, how: str, options: Options) -> Spectrum:
    stack = {"columns": _columns, "fd": _columns, "rows": _rows}.get(how)
    samples = 1 if how == "through" else max(1, J.chunk // J.dim) if stack else J.chunk
    parts, dtype = [], z.dtype
    for rows in slices(len(z), samples):
        with counted_from(rows.start):
            A = stack(J, z[rows]) if stack else _SKETCHES[how](J, z[rows], options)
            finite(A, "Jacobian")
        values = singular_values(A, options.k)
        # what fewer directions than k cannot reach is 0
        parts.append(torch.nn.functional.pad(values, (0, options.k - values.shape[1])))
        dtype = A.dtype
    values = torch.cat(parts)
    if how == "sketch":
        values *= (J.size / options.rows) ** 0.5
    low = floor(values[:, :1], J.size, J.dim, dtype, differences=J.mode == "fd")
    kept = np.asarray(torch.where(values > low, values, 0.0).cpu().numpy())
    return Spectrum(kept, (kept > 0).sum(axis=1), _name(how, J.mode), J.passes / len(z))


def _name(how: str, mode: str) -> str:
    """The method with the way in which the Jacobian was applied, where it is not the usual one."""
    ways = {"repeat": " (repeated rows)", "reverse": " (double-VJP)"}
    plain = "gram" if how in ("columns", "rows") else how
    return plain + (ways.get(mode, "") if how not in ("rows", "sketch") else "")


def _columns(J: Jacobian, z: Tensor) -> Tensor:
    """Jᵀ, all of it, by its columns J e_i: (n, d, D)."""
    axes = torch.eye(J.dim, dtype=z.dtype, device=z.device)
    return J.push(z, axes[:, None].expand(-1, len(z), -1)).transpose(0, 1)


def _rows(J: Jacobian, z: Tensor) -> Tensor:
    """J, all of it, by its rows Jᵀ e_j, for an output smaller than the latent: (n, D, d)."""
    return J.pull(z, torch.eye(J.size, dtype=z.dtype, device=z.device)).transpose(0, 1)


def _left(J: Jacobian, z: Tensor, options: Options, power: int = 0) -> Tensor:
    """σ(J Q), Q the leading directions of Jᵀ Ω for a Gaussian Ω that all samples share; with a basis, σ(Uᵀ J)."""
    if options.basis is not None:
        A = J.push(z, options.basis.T[:, None].expand(-1, len(z), -1))
    else:
        Y = J.pull(z, _gaussian(options.k + VJPS, J.size, z, options.seed))
        A = J.push(z, _orthonormal(Y, options.k + JVPS))
    for _ in range(power):
        A = J.push(z, _orthonormal(J.pull(z, _orthonormal(A))))
    return (A if options.basis is None else J.pull(z, _orthonormal(A))).transpose(0, 1)


def _sketch(J: Jacobian, z: Tensor, options: Options) -> Tensor:
    """W J by VJPs, W semi-orthogonal (rows, D) [Polarity A.4]."""
    W = torch.linalg.qr(_gaussian(options.rows, J.size, z, options.seed).double().T)[0].T
    return J.pull(z, W.to(z.dtype)).transpose(0, 1)


def _gaussian(count: int, size: int, z: Tensor, seed: int) -> Tensor:
    """count codirections of a standard normal, the same for a seed on every device."""
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(z)


def _orthonormal(A: Tensor, r: int | None = None) -> Tensor:
    """An orthonormal basis of each sample's vectors A[:, i], of the r leading directions if r is given."""
    wide = A.permute(1, 2, 0).double()
    Q = torch.linalg.qr(wide)[0] if r is None else torch.linalg.svd(wide, full_matrices=False)[0][..., :r]
    basis: Tensor = Q.permute(2, 0, 1).to(A.dtype)
    return basis


def _through(J: Jacobian, z: Tensor, options: Options) -> Tensor:
    """J_outer U S (1, r, D) at one latent, J_inner = U S Vᵀ, its directions asked in the order of S while they matter.

    What is left away has singular values of at most s_{r+1} ‖J_outer‖; by Weyl the relative error of σ_i is at most
    ½ (s_{r+1} ‖J_outer‖ / σ_i)². Asking stops where that quotient is below `tail` for i = k, ‖J_outer‖ estimated by the
    largest ‖J_outer u_i‖ seen. J counts the passes through outer, where the cost is.
    """
    if not isinstance(J.whole, Composite):
        raise InputError("f: method 'through' needs a Composite(inner, outer)")
    w, steps = _inner(J.whole, z, J.dim)
    kept: list[Tensor] = []
    gain = 0.0
    for rows in slices(len(steps), max(16, min(J.chunk, 32))):
        block = J.push(w, steps[rows, None])
        kept.append(block)
        gain = max(gain, float((block[:, 0].norm(dim=1) / steps[rows].norm(dim=1)).max()))
        rest = float(steps[rows.stop].norm()) if rows.stop < len(steps) else 0.0
        if rows.stop >= options.k:
            kth = float(singular_values(torch.cat(kept).transpose(0, 1), options.k)[0, -1])
            if rest * gain <= options.tail * kth:
                break
    return torch.cat(kept).transpose(0, 1)


def _inner(f: Composite, z: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """w = inner(z) and the rows s_i u_i of (U S)ᵀ, longest first, without those that are only rounding."""
    inner = linearise(f.inner, z, None, dim=dim)
    M = _columns(inner, z)[0].double()
    _, s, U = torch.linalg.svd(M, full_matrices=False)
    count = max(1, int((s > floor(s[:1], inner.size, inner.dim, z.dtype)).sum()))
    with torch.no_grad():
        w = f.inner(z)
    return w, (s[:count, None] * U[:count]).to(z.dtype)


_SKETCHES: dict[str, Callable[[Jacobian, Tensor, Options], Tensor]] = {
    "left": _left,
    "subspace": lambda J, z, options: _left(J, z, options, options.power),
    "sketch": _sketch,
    "through": _through,
}


# ── values ────────────────────────────────────────────────────────────────────────────────────────────────────────


def singular_values(A: Tensor, k: int) -> Tensor:
    """The k largest singular values of each A[i], (n, r, D) → (n, k) float64, descending.

    σ_i = √λ_i(A Aᵀ), the Gram matrix summed in float64; a float64 A with a wide spectrum goes through its SVD.
    """
    scale = A.abs().amax(dim=(1, 2), keepdim=True).double()
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    G = torch.zeros(A.shape[0], A.shape[1], A.shape[1], dtype=torch.float64, device=A.device)
    for block in torch.split(A, BLOCK, dim=2):
        wide = block.double() / scale
        G.baddbmm_(wide, wide.mT)
    values = torch.linalg.eigvalsh(G).flip(1)[:, :k].clamp_min(0).sqrt()
    if A.dtype == torch.float64:
        spread = values[:, -1] < NARROW * values[:, 0]
        if bool(spread.any()):
            values[spread] = torch.linalg.svdvals(A[spread] / scale[spread])[:, :k]
    largest: Tensor = values * scale[:, 0]
    return largest


def floor(first: Tensor, size: int, dim: int, dtype: torch.dtype, *, differences: bool = False) -> Tensor:
    """The noise floor of a sample's singular values, ε √max(D, d) σ_1; ε is that of the dtype f computes in.

    The rounding of float32 networks whose rank is known was seen to leave values of 1 ε σ_1, whatever D: its errors
    are not aligned. √D keeps a distance of 10 to 100 from that, where the worst case D ε would discard good values of a
    wide output. Central differences lose more, and cross kinks: 10 ε^{2/3} takes the place of ε.
    """
    eps = float(torch.finfo(dtype).eps)
    low: Tensor = (10 * eps ** (2 / 3) if differences else eps) * max(size, dim) ** 0.5 * first
    return low


# ── arguments ─────────────────────────────────────────────────────────────────────────────────────────────────────


def as_latents(z: Any, dim: int | None = None, device: torch.device | None = None) -> Tensor:
    """Latents (n, d) as a tensor, without NaN or infinity; anything else is refused."""
    shape = f"(n, {'d' if dim is None else dim})"
    try:
        rows = torch.as_tensor(z, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"z: expected latents {shape}, got {type(z).__name__}: {error}") from None
    if rows.ndim != 2 or 0 in rows.shape or dim not in (None, rows.shape[1]):
        raise ShapeError(f"z: expected latents {shape}, got shape {tuple(rows.shape)}")
    if not bool(torch.isfinite(rows).all()):
        raise InputError("z: latents contain NaN or infinity")
    return rows


def _latents(z: Any) -> Tensor:
    rows = as_latents(z).detach()
    if rows.dtype not in (torch.float32, torch.float64):
        raise InputError(f"z: expected float32 or float64, got {rows.dtype}; z.float() makes it so")
    return rows


def _directions(basis: Any, z: Tensor, k: int) -> Tensor:
    directions: Tensor = torch.as_tensor(basis).to(z)
    if directions.ndim != 2 or directions.shape[0] != z.shape[1] or directions.shape[1] < k:
        raise ShapeError(f"basis: expected ({z.shape[1]}, r) with r ≥ k = {k}, got shape {tuple(directions.shape)}")
    return directions


# ── Jacobians as linear maps ──────────────────────────────────────────────────────────────────────────────────────


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
        directions = _padded(directions, z)
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
                parts.append(_pull(self.f, z[rows], u)[..., : self.dim])
        return torch.cat(parts, dim=1)

    def pulls(self, z: Tensor) -> bool:
        """Whether f has a backward pass, tried on the first latent."""
        return self.mode != "fd" and _works(lambda: _pull(self.f, z[:1], torch.ones(1, self.size).to(z)))


def _padded(t: Tensor, z: Tensor) -> Tensor:
    """Directions with zeros for what goes along with a latent and is not moved."""
    return t if t.shape[-1] == z.shape[-1] else torch.nn.functional.pad(t, (0, z.shape[-1] - t.shape[-1]))


def slices(n: int, step: int) -> Iterator[slice]:
    """0 … n in steps."""
    return (slice(i, min(i + step, n)) for i in range(0, n, step))


# ── four ways ─────────────────────────────────────────────────────────────────────────────────────────────────────


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


def linearise(f: Map, z: Tensor, chunk: int | None, *, mode: Mode | None = None, dim: int | None = None) -> Jacobian:
    """f's Jacobian in the first `dim` numbers of a row, in the first of the four ways that works on the first row."""
    y = _checked(f, z)
    dim, size = dim or z.shape[1], y.shape[1]
    rows = max(16, min(256, PASS // size)) if chunk is None else chunk
    ways: tuple[Mode, ...] = get_args(Mode) if mode is None else (mode,)
    best = next((way for way in ways[:-1] if _pushes(way, f, z[:1], dim)), ways[-1])
    return Jacobian(f, best, dim, size, rows)


def _pushes(mode: Mode, f: Map, z: Tensor, dim: int) -> bool:
    t = _padded(torch.ones_like(z[:, :dim])[None], z)
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
