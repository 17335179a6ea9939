"""Maps from latents whose volumes are known in closed form: the worlds in which polarity sampling has one answer."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from likewise.distributions import Generator, Uniform

SLOPES = (0.2, 3.0, 1.0, 8.0, 0.5)


class Stairs(nn.Module):
    """A continuous piecewise affine map of [−1, 1] with the given slopes on pieces of equal length."""

    def __init__(self, slopes: tuple[float, ...] = SLOPES) -> None:
        super().__init__()
        self.slopes = slopes
        s = np.asarray(slopes)
        knots = np.linspace(-1, 1, len(s) + 1)[:-1]
        self.register_buffer("bend", torch.tensor(np.diff(s, prepend=0.0), dtype=torch.float32))
        self.register_buffer("knots", torch.tensor(knots, dtype=torch.float32))

    def forward(self, z: Tensor) -> Tensor:
        """Σ_j (s_j − s_{j−1}) · max(z − knot_j, 0)."""
        return (torch.relu(z - self.knots) * self.bend).sum(1, keepdim=True)

    def cdf(self, x: np.ndarray, rho: float) -> np.ndarray:
        """Of G(z) where z has the density ∝ s(z)^ρ: piecewise linear, its steps ∝ s^ρ at the images of the knots."""
        s = np.asarray(self.slopes)
        ends = np.concatenate([[0.0], np.cumsum(s * 2 / len(s))])
        mass = np.concatenate([[0.0], np.cumsum(s**rho)])
        return np.interp(x, ends, mass / mass[-1])


class Folded(nn.Module):
    """An injective piecewise affine map R² → R⁵: x = A (z + U max(W z + b, 0)), ‖U‖ ‖W‖ < 1, A of rank 2."""

    def __init__(self, seed: int = 0, hidden: int = 12, strength: float = 0.9) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        W, U = rng.normal(size=(hidden, 2)), rng.normal(size=(2, hidden))
        U *= strength / (np.linalg.norm(U, 2) * np.linalg.norm(W, 2))
        for name, value in (("W", W), ("U", U), ("b", rng.uniform(-1, 1, hidden)), ("A", rng.normal(size=(5, 2)))):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float32))

    def forward(self, z: Tensor) -> Tensor:
        return (z + torch.relu(z @ self.W.T + self.b) @ self.U.T) @ self.A.T

    def log_volume(self, z: np.ndarray) -> np.ndarray:
        """½ log det JᵀJ, J = A (I + U diag(1[W z + b > 0]) W)."""
        W, U, b, A = (getattr(self, name).double().numpy() for name in "WUbA")
        on = (z @ W.T + b > 0).astype(float)
        inner = np.eye(2) + np.einsum("ih,nh,hj->nij", U, on, W)
        return np.log(np.abs(np.linalg.det(inner))) + 0.5 * np.linalg.slogdet(A.T @ A)[1]


class Linear(nn.Module):
    """x = A z: every latent has the same volume."""

    def __init__(self, dim: int = 4, out: int = 9, seed: int = 0) -> None:
        super().__init__()
        A = np.random.default_rng(seed).normal(size=(out, dim))
        self.register_buffer("A", torch.tensor(A, dtype=torch.float32))

    def forward(self, z: Tensor) -> Tensor:
        return z @ self.A.T


class HalfDead(nn.Module):
    """(z₁, z₂) → (2 z₁, max(z₂, 0)): where z₂ < 0 only one direction moves the output."""

    def forward(self, z: Tensor) -> Tensor:
        return torch.stack([2 * z[:, 0], torch.relu(z[:, 1])], 1)


class Classes(nn.Module):
    """A staircase a class, with slopes of its own: class c is e^c times as steep, and has other steps."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.stairs = nn.ModuleList(
            Stairs(tuple(float(np.exp(c)) * s for s in SLOPES[c:] + SLOPES[:c])) for c in range(classes)
        )

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        every = torch.stack([stairs(z) for stairs in self.stairs])
        return every[y, torch.arange(len(z))]


def stairs(dim: int = 1) -> Generator:
    """The staircase with its uniform latent."""
    return Generator(Stairs(), Uniform(dim))


def cells(z: np.ndarray, low: float, high: float, side: int = 8) -> np.ndarray:
    """How many latents fall into each of side × side cells of the square [low, high]²."""
    edges = np.linspace(low, high, side + 1)
    return np.histogram2d(z[:, 0], z[:, 1], bins=(edges, edges))[0].ravel()


def cell_masses(net: Folded, rho: float, low: float, high: float, side: int = 8, fine: int = 100) -> np.ndarray:
    """∫ exp(ρ v) over each cell, by the midpoint rule on fine² points a cell, normalised."""
    at = low + (np.arange(side * fine) + 0.5) * (high - low) / (side * fine)
    z = np.stack(np.meshgrid(at, at, indexing="ij"), -1).reshape(-1, 2)
    density = np.exp(rho * net.log_volume(z)).reshape(side, fine, side, fine).sum((1, 3))
    return (density / density.sum()).ravel()
