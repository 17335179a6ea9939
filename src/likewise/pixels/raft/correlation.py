"""How alike each point of one feature map is to the points of another around a place: what RAFT looks up.

The correlation of all pairs is c(p, q) = ⟨fa(p), fb(q)⟩ / √C, and level l of its pyramid is the mean of c over cells of
2^l × 2^l points q [RAFT Sec. 3.2]. A lookup reads, at every level, a window of (2r + 1)² places around p's guess,
between the points by bilinear interpolation, zero outside.

Two ways give the same numbers. All pairs are held as a pyramid of h² w² numbers, which carries gradients fastest. On
demand only feature maps are held and a window is computed when it is asked for, because the mean of products is the
product with the mean: h w (2r + 1)² numbers. All samples of a window share one fractional offset, so that (2r + 2)²
whole places and two linear interpolations are enough.

The window is transposed, as in the original: the offset that varies slowest is added to x, not to y. Published
weights were trained so. Our own network's features are of unit length, and its cells stand at the middle of what they
cover: for them (`centred`) products are not scaled, a last odd row is a cell of its own when maps are halved, the
place p is (p + ½) / 2^l − ½ on level l, and the window is not transposed.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator,misc,attr-defined"
# The arguments of jitted functions are numba's to type.

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypeAlias

import numba
import numpy as np
import torch
from jaxtyping import Float
from numba import njit
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from likewise.errors import InputError, ShapeError
from likewise.media import cache_folder
from likewise.pixels.geometry import size_of

MOST = 1 << 30
"""Bytes that the pyramid of all pairs may take before windows are computed on demand."""
BLOCK = 1 << 25
"""Numbers that a differentiable lookup on demand gathers at a time: 128 MB of float32."""
SHARE = 2048
"""The fewest points that are worth a thread."""

Kind: TypeAlias = Literal["auto", "all", "demand"]


class Correlation:
    """Feature maps fa, fb (b, c, h, w) of two images, ready for lookups around guesses of fa's points [RAFT Eq. 1–2].

    `kind` is "all" (pairs in memory), "demand", or "auto": on demand where numba computes it (a CPU, no gradients) or
    where all pairs would take more than `most` bytes. With `centred`, as our own network has it, not as RAFT.
    """

    def __init__(
        self,
        fa: Float[Tensor, "b c h w"],
        fb: Float[Tensor, "b c h2 w2"],
        *,
        levels: int = 4,
        radius: int = 3,
        kind: Kind = "auto",
        most: int = MOST,
        centred: bool = False,
    ) -> None:
        _check(fa, fb, levels, radius, kind, centred)
        self.levels, self.radius, self.centred = levels, radius, centred
        self.shape = (fa.shape[0], *fa.shape[2:])
        maps = pooled(fb, levels, whole=centred)
        self.sizes = [size_of(f) for f in maps]
        self.rows = _rows(fa) if centred else _rows(fa) / fa.shape[1] ** 0.5
        cells = sum(h * w for h, w in self.sizes)
        large = len(self.rows) * cells * fa.element_size() > most
        self.demand = kind == "demand" or (kind == "auto" and (large or _compiles(fa, fb)))
        if self.demand:
            self.maps = [_rows(f) for f in maps]
        else:
            rows = self.rows.view(len(fa), -1, fa.shape[1])
            self.maps = [torch.matmul(rows, f.flatten(2)).flatten(0, 1) for f in maps]

    @property
    def planes(self) -> int:
        """How many numbers a lookup gives a point: levels × (2r + 1)²."""
        return self.levels * (2 * self.radius + 1) ** 2

    def lookup(self, points: Float[Tensor, "b h w 2"]) -> Float[Tensor, "b planes h w"]:
        """The windows of every level around `points`, x then y, in pixels of fb; channels-last in memory."""
        if points.shape != (*self.shape, 2):
            raise ShapeError(f"points: expected {(*self.shape, 2)}, got shape {tuple(points.shape)}")
        b, h, w = self.shape
        flat, half = points.reshape(-1, 2), 0.5 if self.centred else 0.0
        places = [(flat + half) / 2**level - half for level in range(self.levels)]
        if self.demand and _compiles(points, self.rows, *self.maps):
            windows = self._compiled(places)
        elif self.demand:
            windows = torch.stack([self._computed(at, level) for level, at in enumerate(places)], dim=1)
        else:
            windows = torch.stack([self._read(at, level) for level, at in enumerate(places)], dim=1)
        windows = windows.mT if self.centred else windows
        return windows.reshape(b, h, w, self.planes).permute(0, 3, 1, 2)

    def _read(self, points: Tensor, level: int) -> Tensor:
        """(2r + 1)² samples of each row's own image around its point, x slowest, 0 outside."""
        index, inside = whole_places(points, self.sizes[level], self.radius)
        return between(self.maps[level].gather(1, index.flatten(1)).view_as(index) * inside, points)

    def _computed(self, points: Tensor, level: int) -> Tensor:
        """The products of a window by torch operations that carry gradients, on any device, some points at a time."""
        index, inside = whole_places(points, self.sizes[level], self.radius)
        n, each = len(points), len(points) // self.shape[0]
        batch = torch.arange(n, device=points.device) // each
        index = index + (batch * (len(self.maps[level]) // self.shape[0]))[:, None, None]
        some = max(1, BLOCK // (index[0].numel() * self.rows.shape[1]))
        parts = [
            torch.einsum("nc,nijc->nij", self.rows[k : k + some], self.maps[level][index[k : k + some]])
            for k in range(0, n, some)
        ]
        return between(torch.cat(parts) * inside, points)

    def _compiled(self, places: list[Tensor]) -> Tensor:
        """The same by numba, on as many threads as torch would use, each with SHARE of the points at least."""
        n, side = len(places[0]), 2 * self.radius + 1
        out = places[0].new_empty(n, self.levels, side, side)
        maps = [_array(m.view(self.shape[0], *size, -1)) for m, size in zip(self.maps, self.sizes, strict=True)]
        arrays = list(zip(maps, map(_array, places), range(self.levels), strict=True))

        def work(first: int, last: int) -> None:
            for features, at, level in arrays:
                _compute(_array(self.rows), features, at, self.radius, _array(out)[:, level], first, last)

        threads = min(torch.get_num_threads(), max(1, n // SHARE))
        bounds = np.linspace(0, n, threads + 1).astype(int).tolist()
        with ThreadPoolExecutor(threads, "likewise") as pool:
            list(pool.map(work, bounds[:-1], bounds[1:]))
        return out


def pooled(f: Float[Tensor, "b c h w"], levels: int, *, whole: bool = False) -> list[Tensor]:
    """The map and its means over 2 × 2, 4 × 4 …; a last odd row or column is left out unless `whole`."""
    maps = [f]
    for _ in range(levels - 1):
        maps.append(functional.avg_pool2d(maps[-1], 2, ceil_mode=whole, count_include_pad=False))
    return maps


def whole_places(points: Tensor, size: tuple[int, int], radius: int) -> tuple[Tensor, Tensor]:
    """Flat indices (n, 2r + 2, 2r + 2) of the whole places around points (n, 2), x slowest, and which are inside."""
    h, w = size
    offsets = torch.arange(-radius, radius + 2, device=points.device)
    far = max(h, w) + 2 * radius + 2  # a runaway guess stays a number that fits, and stays outside
    x, y = points.detach().floor().clamp(-far, far).long().unbind(1)
    columns, rows = (x[:, None] + offsets)[:, :, None], (y[:, None] + offsets)[:, None, :]
    inside = (columns >= 0) & (columns < w) & (rows >= 0) & (rows < h)
    return rows.clamp(0, h - 1) * w + columns.clamp(0, w - 1), inside


def between(values: Tensor, points: Tensor) -> Tensor:
    """(n, 2r + 2, 2r + 2) at whole places to (n, 2r + 1, 2r + 1) at the points: linear in x, then in y."""
    fx, fy = (points - points.detach().floor()).unsqueeze(-1).unsqueeze(-1).unbind(1)
    values = values[:, :-1] + fx * (values[:, 1:] - values[:, :-1])
    return values[:, :, :-1] + fy * (values[:, :, 1:] - values[:, :, :-1])


def _compiles(*tensors: Tensor) -> bool:
    """Whether nothing needs a gradient and all is on a machine and of a kind that numba compiles for."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return False
    kinds = {t.dtype for t in tensors}
    return all(t.device.type == "cpu" for t in tensors) and kinds in ({torch.float32}, {torch.float64})


def _array(t: Tensor) -> NDArray[Any]:
    """The same numbers for numba, in rows."""
    array: NDArray[Any] = t.detach().contiguous().numpy()
    return array


def _rows(f: Tensor) -> Tensor:
    """(b h w, c), a point's features side by side."""
    return f.permute(0, 2, 3, 1).reshape(-1, f.shape[1]).contiguous()


def _check(fa: Tensor, fb: Tensor, levels: int, radius: int, kind: str, centred: bool) -> None:
    if kind not in ("auto", "all", "demand"):
        raise InputError(f'kind: expected "auto", "all" or "demand", got {kind!r}')
    if fa.ndim != 4 or fb.ndim != 4 or fa.shape[:2] != fb.shape[:2]:
        shapes = f"{tuple(fa.shape)} and {tuple(fb.shape)}"
        raise ShapeError(f"fa, fb: expected (b, c, h, w) with the same b and c, got {shapes}")
    if levels < 1 or radius < 0:
        raise InputError(f"levels, radius: expected levels ≥ 1 and radius ≥ 0, got {levels} and {radius}")
    if not centred and min(fb.shape[2:]) >> (levels - 1) < 1:
        least, got = 1 << (levels - 1), tuple(fb.shape[2:])
        raise ShapeError(f"fb: expected at least {least} × {least} cells for {levels} levels, got {got}")


# ------------------------------------------------------------------------------------------------------------- kernels


def cached(function: Any) -> Any:
    """njit without the GIL, its machine code kept in the user's cache folder."""
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(cache_folder() / "numba")
    try:
        fast = {"reassoc", "contract", "nsz"}
        return njit(cache=True, nogil=True, error_model="numpy", boundscheck=False, fastmath=fast)(function)
    finally:
        numba.config.CACHE_DIR = before


@njit(inline="always")
def _place(value, size, radius):
    """The whole place below a coordinate, and how far beyond it; one that is far outside stays a number that fits."""
    low = np.floor(value)
    far = size + 2 * radius + 2
    if not (low > -far):
        return -far, value - low
    if low > far:
        return far, value - low
    return int(low), value - low


@njit(inline="always")
def _blend(window, side, fx, fy, out):
    """Interpolate a window (x slowest) at whole places in x, then in y, into one of the output."""
    for i in range(side):
        for j in range(side):
            low = window[i, j] + fx * (window[i + 1, j] - window[i, j])
            high = window[i, j + 1] + fx * (window[i + 1, j + 1] - window[i, j + 1])
            out[i, j] = low + fy * (high - low)


@njit(inline="always")
def _one(u, v):
    total = u.dtype.type(0)
    for i in range(len(u)):
        total += u[i] * v[i]
    return total


@njit(inline="always")
def _four(u, places, at):
    """Four dot products at a time: u is read once for all of them."""
    p, q, r, s = places[at], places[at + 1], places[at + 2], places[at + 3]
    a = b = c = d = u.dtype.type(0)
    for i in range(len(u)):
        a += u[i] * p[i]
        b += u[i] * q[i]
        c += u[i] * r[i]
        d += u[i] * s[i]
    return a, b, c, d


@cached
def _compute(rows, features, points, radius, out, first, last):
    """Windows of ⟨rows[n], features⟩ for features (b, h, w, c) around points (n, 2) into out (n, 2r + 1, 2r + 1)."""
    h, w = features.shape[1:3]
    side, each = 2 * radius + 1, len(points) // len(features)
    window = np.empty((side + 1, side + 1), features.dtype)
    for k in range(first, last):
        picture = k // each
        x, fx = _place(points[k, 0], w, radius)
        y, fy = _place(points[k, 1], h, radius)
        window[:] = 0
        left, right = max(x - radius, 0), min(x + radius + 2, w)
        for row in range(max(y - radius, 0), min(y + radius + 2, h)):
            j = row - y + radius
            column = left
            while column + 4 <= right:
                i = column - x + radius
                places = features[picture, row]
                window[i, j], window[i + 1, j], window[i + 2, j], window[i + 3, j] = _four(rows[k], places, column)
                column += 4
            for rest in range(column, right):
                window[rest - x + radius, j] = _one(rows[k], features[picture, row, rest])
        _blend(window, side, fx, fy, out[k])
