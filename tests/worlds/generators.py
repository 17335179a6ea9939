"""Maps from latents whose volumes are known in closed form: the worlds in which polarity sampling has one answer."""

from __future__ import annotations

import functools

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
    """An injective piecewise affine map R² → R⁵: three residual folds z ← z ± s Wᵀ max(W z + b, 0), then A of rank 2.

    s ‖W‖² < 1, so that each fold moves two points by less than their distance, and can be undone.
    """

    SIGNS = (1.0, -1.0, 1.0)

    def __init__(self, seed: int = 0, hidden: int = 6, strength: float = 0.8) -> None:
        super().__init__()
        rng = np.random.default_rng(seed)
        W = rng.normal(size=(3, hidden, 2))
        W *= np.sqrt(strength) / np.linalg.norm(W, 2, axis=(1, 2))[:, None, None]
        for name, value in (("W", W), ("b", rng.uniform(-0.5, 0.5, (3, hidden))), ("A", rng.normal(size=(5, 2)))):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float32))

    def forward(self, z: Tensor) -> Tensor:
        for W, b, sign in zip(self.W, self.b, self.SIGNS, strict=True):
            z = z + sign * torch.relu(z @ W.T + b) @ W
        return z @ self.A.T

    def log_volume(self, z: np.ndarray) -> np.ndarray:
        """½ log det AᵀA + Σ over folds of log |det (I ± Wᵀ diag(1[W z + b > 0]) W)|."""
        A = self.A.double().numpy()
        total = np.full(len(z), 0.5 * np.linalg.slogdet(A.T @ A)[1])
        for W, b, sign in zip(self.W.double().numpy(), self.b.double().numpy(), self.SIGNS, strict=True):
            reach = z @ W.T + b
            inner = np.eye(2) + sign * np.einsum("hi,nh,hj->nij", W, (reach > 0).astype(float), W)
            total += np.log(np.abs(np.linalg.det(inner)))
            z = z + sign * np.maximum(reach, 0) @ W
        return total


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


@functools.cache
def cell_masses(rho: float, low: float, high: float, side: int = 8, fine: int = 50) -> np.ndarray:
    """∫ exp(ρ v) of the folded map over each cell, by the midpoint rule on fine² points a cell, normalised."""
    at = low + (np.arange(side * fine) + 0.5) * (high - low) / (side * fine)
    z = np.stack(np.meshgrid(at, at, indexing="ij"), -1).reshape(-1, 2)
    density = np.exp(rho * Folded().log_volume(z)).reshape(side, fine, side, fine).sum((1, 3))
    return (density / density.sum()).ravel()
