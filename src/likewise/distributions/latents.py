"""Where latents come from: densities that can be sampled from a counter seed and evaluated in log space."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float32, Float64
from scipy.special import ndtr, ndtri

from likewise.errors import InputError, ShapeError


@runtime_checkable
class Latent(Protocol):
    """A density p_z on R^dim: what a class of one's own needs to be a latent.

    Examples
    --------
    >>> import likewise as lw
    >>> isinstance(lw.distributions.Normal(3), lw.distributions.Latent)
    True
    """

    @property
    def dim(self) -> int:
        """The number of coordinates."""

    @property
    def name(self) -> str:
        """What it is called in tables and messages."""

    def support(self) -> tuple[float, float] | None:
        """The interval in which every coordinate lies; None where it is unbounded."""

    def sample(self, n: int, rng: np.random.Generator) -> Float32[np.ndarray, "n dim"]:
        """n latents, in the order of the seed."""

    def log_density(self, z: Any) -> Float64[np.ndarray, " n"]:
        """log p_z of each row; −∞ outside the support."""

    def to_dict(self) -> dict[str, Any]:
        """What it is, for a manifest."""


class _Independent:
    """What the latents below share: coordinates are drawn independently from one density on a line."""

    dim: int

    @property
    def name(self) -> str:
        """What it is called in tables and messages."""
        return repr(self)

    def support(self) -> tuple[float, float] | None:
        """The interval in which every coordinate lies; None where it is unbounded."""
        raise NotImplementedError

    def _log_coordinate(self, z: Float64[np.ndarray, "n dim"]) -> Float64[np.ndarray, "n dim"]:
        raise NotImplementedError

    def log_density(self, z: Any) -> Float64[np.ndarray, " n"]:
        """log p_z of each row; −∞ outside the support."""
        rows = np.asarray(z, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.dim:
            raise ShapeError(f"z: expected latents (n, {self.dim}), got shape {rows.shape}")
        logs = self._log_coordinate(rows)
        bounds = self.support()
        if bounds is not None:
            logs = np.where((rows >= bounds[0]) & (rows <= bounds[1]), logs, -np.inf)
        return np.asarray(logs.sum(1))

    def to_dict(self) -> dict[str, Any]:
        """What it is, for a manifest."""
        return {"kind": type(self).__name__, **asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True)
class Normal(_Independent):
    """Each coordinate from N(0, 1).

    Parameters
    ----------
    dim : int
        The number of coordinates.

    Raises
    ------
    InputError
        Where it is not a whole number ≥ 1.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.distributions.Normal(2).log_density([[0.0, 0.0]]).round(4).tolist()
    [-1.8379]
    """

    dim: int

    def __post_init__(self) -> None:
        check_whole("dim", self.dim)

    def support(self) -> None:
        """Unbounded."""
        return None

    def sample(self, n: int, rng: np.random.Generator) -> Float32[np.ndarray, "n dim"]:
        """n latents, in the order of the seed."""
        return np.asarray(rng.standard_normal((n, self.dim), dtype=np.float32))

    def _log_coordinate(self, z: Float64[np.ndarray, "n dim"]) -> Float64[np.ndarray, "n dim"]:
        return np.asarray(-0.5 * z * z - 0.5 * math.log(2 * math.pi))


@dataclass(frozen=True)
class Uniform(_Independent):
    """Each coordinate uniform on [low, high].

    Parameters
    ----------
    dim : int
        The number of coordinates.
    low, high : float, default −1 and 1
        The bounds.

    Raises
    ------
    InputError
        Where the bounds are not finite and in order.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.distributions.Uniform(2, 0, 4).support()
    (0, 4)
    """

    dim: int
    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        check_whole("dim", self.dim)
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise InputError(f"low, high: expected two finite numbers, low < high, got {self.low} and {self.high}")

    def support(self) -> tuple[float, float]:
        """[low, high]."""
        return self.low, self.high

    def sample(self, n: int, rng: np.random.Generator) -> Float32[np.ndarray, "n dim"]:
        """n latents, in the order of the seed."""
        unit = rng.random((n, self.dim), dtype=np.float32)
        z: Float32[np.ndarray, "n dim"] = (self.low + (self.high - self.low) * unit).astype(np.float32)
        return _cut(z, self.low, self.high)

    def _log_coordinate(self, z: Float64[np.ndarray, "n dim"]) -> Float64[np.ndarray, "n dim"]:
        return np.full(z.shape, -math.log(self.high - self.low))


@dataclass(frozen=True)
class TruncatedNormal(_Independent):
    """Each coordinate scale · N(0, 1), cut to scale · [−psi, psi] (BigGAN: psi=2, its truncation as scale).

    Parameters
    ----------
    dim : int
        The number of coordinates.
    psi : float
        Where the normal is cut.
    scale : float, default 1
        What it is multiplied with afterwards.

    Raises
    ------
    InputError
        Where psi or scale is not a number > 0.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.distributions.TruncatedNormal(3, 2.0, scale=0.5).support()
    (-1.0, 1.0)
    """

    dim: int
    psi: float
    scale: float = 1.0

    def __post_init__(self) -> None:
        check_whole("dim", self.dim)
        for name, value in (("psi", self.psi), ("scale", self.scale)):
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{name}: expected a number > 0, got {value}")

    def support(self) -> tuple[float, float]:
        """scale · [−psi, psi]."""
        return -self.scale * self.psi, self.scale * self.psi

    def sample(self, n: int, rng: np.random.Generator) -> Float32[np.ndarray, "n dim"]:
        """n latents by the inverse of the distribution function, so each draw is used: in the order of the seed."""
        low = ndtr(-self.psi)
        z: Float32[np.ndarray, "n dim"] = ndtri(low + (1 - 2 * low) * rng.random((n, self.dim))).astype(np.float32)
        return _cut(np.float32(self.scale) * z, *self.support())

    def _log_coordinate(self, z: Float64[np.ndarray, "n dim"]) -> Float64[np.ndarray, "n dim"]:
        mass = math.erf(self.psi / math.sqrt(2))
        return -0.5 * (z / self.scale) ** 2 - 0.5 * math.log(2 * math.pi) - math.log(self.scale * mass)


def _cut(z: Float32[np.ndarray, "n dim"], low: float, high: float) -> Float32[np.ndarray, "n dim"]:
    """Latents within [low, high]: the bounds are rounded inwards, so that no float32 lies outside of them."""
    first, last = np.float32(low), np.float32(high)
    first = np.nextafter(first, np.float32(np.inf)) if float(first) < low else first
    last = np.nextafter(last, np.float32(-np.inf)) if float(last) > high else last
    return np.asarray(np.clip(z, first, last))


def check_whole(name: str, value: Any, least: int = 1, most: int | None = None, note: str = "") -> int:
    """The argument as an int; an InputError unless it is a whole number within its bounds. `note` explains `most`."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        bounds = f"≥ {least}" if most is None else f"from {least} to {most}{note}"
        raise InputError(f"{name}: expected a whole number {bounds}, got {value!r}")
    return int(value)
