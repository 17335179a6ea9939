"""Generators in one to three dimensions whose volumes and densities are known exactly [Polarity Fig. 11].

What polarity sampling does to each can be written down, so samplers are checked against it and plots can show it:

stairs   u ↦ a line with a few slopes: outputs ∝ slope^ρ on each step
mosaic   the unit square ↦ the unit square with any density p: a table of cells, outputs ∝ p^(1−ρ)
bump     the plane ↦ a sheet with a hill in R³: at ρ = 1 the sheet is covered evenly
linear   z ↦ A z: ρ changes nothing
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from numpy.typing import ArrayLike
from torch import Tensor

from likewise.distributions.generator import Generator
from likewise.distributions.latents import Latent, Normal, Uniform
from likewise.errors import InputError, ShapeError
from likewise.types import Array


@dataclass(frozen=True, eq=False)
class Toy:
    """A map with the density of its latents and its exact log-volume; calling it maps latents (torch, differentiable).

    `log_volume(z)` is Σ log σ over all singular values of the Jacobian, at latents (n, dim). `table` is, for a mosaic,
    the density of its outputs in each cell.
    """

    name: str
    latent: Latent
    map: Callable[[Tensor], Tensor] = field(repr=False)
    log_volume: Callable[[Any], Float64[np.ndarray, " n"]] = field(repr=False)
    table: Array | None = field(default=None, repr=False)

    def __call__(self, z: Tensor) -> Tensor:
        return self.map(z)

    def generator(self) -> Generator:
        """The toy as a generator, for `harvest` and all that follows from it."""
        return Generator(self.map, self.latent, name=self.name)

    def polarised(self, rho: float) -> Array:
        """The density of a mosaic's outputs under polarity ρ, in each cell: ∝ p^(1−ρ) [Polarity Eq. 7].

        A cell of density p is the image of cells of total latent area ∝ p, in each of which the volume is 1/p.
        """
        if self.table is None:
            raise InputError(f"polarised: the outputs of {self.name} do not lie in a table; only a mosaic's do")
        logs = np.full(self.table.shape, -np.inf)
        np.log(self.table, out=logs, where=self.table > 0)
        powers = np.where(self.table > 0, np.exp((1 - rho) * np.where(self.table > 0, logs, 0)), 0.0)
        density: Array = powers / powers.mean()
        return density


def stairs(slopes: Sequence[float] = (0.2, 3.0, 1.0, 8.0, 0.5)) -> Toy:
    """A continuous piecewise-affine map of [0, 1] with these slopes on steps of equal length.

    σ(u) is the slope of u's step; under polarity ρ step i has probability slopes_i^ρ / Σ_j slopes_j^ρ.
    """
    s = np.asarray(slopes, dtype=np.float64)
    if s.ndim != 1 or len(s) == 0 or not (np.isfinite(s).all() and (s > 0).all()):
        raise InputError(f"slopes: expected numbers > 0, got {slopes!r}")
    starts = np.concatenate([[0.0], np.cumsum(s) / len(s)])

    def up(u: Tensor) -> Tensor:
        i = _bins(u, len(s))
        return _like(starts, u)[i] + _like(s, u)[i] * (u - i / len(s))

    def log_volume(u: Any) -> Float64[np.ndarray, " n"]:
        rows = _rows(u, 1)
        return np.asarray(np.log(s)[_array_bins(rows[:, 0], len(s))])

    return Toy("stairs", Uniform(1, 0.0, 1.0), up, log_volume)


def mosaic(density: str | ArrayLike = "moons", cells: int = 64) -> Toy:
    """A map of the unit square onto itself whose outputs have a given density, constant in each cell of a table.

    `density` is a non-negative table (rows along x_0, columns along x_1), or one of "moons", "rings", "grid". The map
    is the quantile function of x_0, then that of x_1 within x_0's row (Rosenblatt): its Jacobian is diagonal, with
    determinant 1 / p(x). It jumps at the edges of rows, a set of measure zero.
    """
    table = _table(density, cells)
    rows = table.mean(1)
    inside = table / np.where(rows > 0, rows, 1.0)[:, None]
    name = density if isinstance(density, str) else "mosaic"
    outer = _edges(rows)
    inner = np.stack([_edges(row) for row in inside])

    def place(u: Tensor) -> Tensor:
        i, first = _quantile(u[:, 0], _like(outer, u)[None], _like(rows, u)[None])
        _, second = _quantile(u[:, 1], _like(inner, u)[i], _like(inside, u)[i])
        return torch.stack([first, second], 1)

    def log_volume(u: Any) -> Float64[np.ndarray, " n"]:
        latents = _rows(u, 2)
        i = _array_find(latents[:, 0], outer[None].repeat(len(latents), 0))
        j = _array_find(latents[:, 1], inner[i])
        return np.asarray(-np.log(table[i, j]))

    return Toy(name, Uniform(2, 0.0, 1.0), place, log_volume, table)


def bump(height: float = 3.0, width: float = 0.5, reach: float = 2.0) -> Toy:
    """A sheet with a hill: z ↦ (z_0, z_1, h e^(−|z|² / 2w²)) on [−reach, reach]².

    The area element is √(1 + |∇|²), |∇| = |z| h e^(−|z|² / 2w²) / w²: at ρ = 1 the flanks get their due.
    """
    for name, value in (("height", height), ("width", width), ("reach", reach)):
        if not (np.isfinite(value) and value > 0):
            raise InputError(f"{name}: expected a number > 0, got {value!r}")

    def rise(z: Tensor) -> Tensor:
        hill = height * (z.square().sum(1, keepdim=True) / (-2 * width**2)).exp()
        return torch.cat([z, hill], 1)

    def log_volume(z: Any) -> Float64[np.ndarray, " n"]:
        squared = np.square(_rows(z, 2)).sum(1)
        slope_squared = squared * (height / width**2) ** 2 * np.exp(-squared / width**2)
        return np.asarray(0.5 * np.log1p(slope_squared))

    return Toy("bump", Uniform(2, -reach, reach), rise, log_volume)


def linear(matrix: ArrayLike = ((2.0, 0.0), (0.5, 1.0), (0.0, 0.3))) -> Toy:
    """z ↦ A z with Gaussian z: one volume everywhere, so every ρ draws alike."""
    A = np.asarray(matrix, dtype=np.float64)
    if A.ndim != 2 or A.shape[0] < A.shape[1]:
        raise ShapeError(f"matrix: expected (D, K) with D ≥ K, got shape {A.shape}")
    volume = float(np.log(np.linalg.svd(A, compute_uv=False)).sum())

    def log_volume(z: Any) -> Float64[np.ndarray, " n"]:
        return np.full(len(_rows(z, A.shape[1])), volume)

    return Toy("linear", Normal(A.shape[1]), lambda z: z @ _like(A, z).T, log_volume)


# ------------------------------------------------------------------------------------------------- tables and edges


def _table(density: str | ArrayLike, cells: int) -> Array:
    """The density in each cell, of mean 1; every row and column may hold zeros, not every cell."""
    if isinstance(density, str):
        if density not in _DENSITIES:
            raise InputError(f"density: expected {', '.join(_DENSITIES)} or a table, got {density!r}")
        side = (np.arange(cells) + 0.5) / cells
        table = _DENSITIES[density](*np.meshgrid(side, side, indexing="ij"))
    else:
        table = np.asarray(density, dtype=np.float64)
    if table.ndim != 2 or table.size == 0:
        raise ShapeError(f"density: expected a table with two axes, got shape {table.shape}")
    if not np.isfinite(table).all() or (table < 0).any() or not (table > 0).any():
        raise InputError("density: expected finite numbers ≥ 0, some of them > 0")
    scaled: Array = table / table.mean()
    return scaled


def _moons(x: Array, y: Array) -> Array:
    """Two half circles, one three times as heavy as the other, over a faint ground."""
    upper = np.hypot(x - 0.38, y - 0.42) - 0.26
    lower = np.hypot(x - 0.62, y - 0.58) - 0.26
    heavy = np.exp(-0.5 * (upper / 0.03) ** 2) / (1 + np.exp(-(y - 0.40) / 0.015))
    light = np.exp(-0.5 * (lower / 0.03) ** 2) / (1 + np.exp((y - 0.60) / 0.015))
    return np.asarray(3 * heavy + light + 0.02)


def _rings(x: Array, y: Array) -> Array:
    """A disc and a ring about it."""
    r = np.hypot(x - 0.5, y - 0.5)
    return np.asarray(4 * np.exp(-0.5 * (r / 0.06) ** 2) + np.exp(-0.5 * ((r - 0.33) / 0.04) ** 2) + 0.02)


def _grid(x: Array, y: Array) -> Array:
    """Nine blobs, heavier from one corner to the other."""
    weights = np.geomspace(1, 12, 9).reshape(3, 3)
    total = np.full(x.shape, 0.02)
    for (i, j), w in np.ndenumerate(weights):
        total += w / 4 * np.exp(-0.5 * ((x - (i + 1) / 4) ** 2 + (y - (j + 1) / 4) ** 2) / 0.04**2)
    return total


_DENSITIES: dict[str, Callable[[Array, Array], Array]] = {"moons": _moons, "rings": _rings, "grid": _grid}


def _edges(density: Array) -> Array:
    """The distribution function at the edges of cells: 0, …, 1; a row without mass is taken as even."""
    mass = density if density.sum() > 0 else np.ones_like(density)
    total = np.concatenate([[0.0], np.cumsum(mass)])
    edges: Array = total / total[-1]
    return edges


def _quantile(u: Tensor, edges: Tensor, density: Tensor) -> tuple[Tensor, Tensor]:
    """The cell that u falls into, and the place within [0, 1] at which the distribution function reaches u."""
    cells = density.shape[1]
    fixed = u.detach()[:, None].contiguous()
    i = torch.searchsorted(edges.expand(len(u), -1).contiguous(), fixed, right=True).sub(1).clamp(0, cells - 1)
    start = edges.expand(len(u), -1).gather(1, i)[:, 0]
    height = density.expand(len(u), -1).gather(1, i)[:, 0]
    return i[:, 0], i[:, 0] / cells + (u - start) / height


def _array_find(u: Array, edges: Array) -> Any:
    """The cell of each u in its own row of edges."""
    return np.clip((edges <= u[:, None]).sum(1) - 1, 0, edges.shape[1] - 2)


def _array_bins(u: Array, n: int) -> Any:
    return np.clip(np.floor(u * n).astype(np.int64), 0, n - 1)


def _bins(u: Tensor, n: int) -> Tensor:
    return (u.detach() * n).floor().long().clamp(0, n - 1)


def _rows(z: Any, dim: int) -> Float64[np.ndarray, "n dim"]:
    rows = np.asarray(z, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] != dim:
        raise ShapeError(f"z: expected latents (n, {dim}), got shape {rows.shape}")
    return rows


def _like(values: Array, z: Tensor) -> Tensor:
    return torch.as_tensor(values, dtype=z.dtype, device=z.device)
