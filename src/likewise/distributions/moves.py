"""Moves of latents that leave their density p_z as it is, so that only the tilt ρ v decides on acceptance.

Each is reversible with respect to p_z, and a random choice among them that does not look at the state is, too:
normal      z′ = √(1 − b²) z + b ξ, ξ ~ N(0, 1)     (preconditioned Crank–Nicolson; truncated: refused outside)
uniform     z′ = z + b (high − low) / 2 · ξ, folded back into [low, high] at the bounds
any         z′ ~ p_z, a fresh latent
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float32, Float64

from likewise.distributions.latents import Normal, TruncatedNormal, Uniform

if TYPE_CHECKING:
    from likewise.distributions.latents import Latent

Z = Float32[np.ndarray, "n dim"]
V = Float64[np.ndarray, " n"]
FRESH = 1.0
"""The step that is a fresh latent."""
STEPS = (0.1, 0.3, 0.6)
"""Small to large: which of them suits depends on the size of the latent, so all take part."""


@dataclass
class State:
    """Chains: where each is, z (n, dim), and its tilt ρ v(z) (n,)."""

    z: Z
    tilt: V


def schedule(latent: Latent, steps: int, rng: np.random.Generator) -> list[float]:
    """The step size of each move: a fresh latent every third time, otherwise one of STEPS at random."""
    local = isinstance(latent, Normal | TruncatedNormal | Uniform)
    return [float(rng.choice(STEPS)) if local and i % 3 else FRESH for i in range(steps)]


def step(
    state: State,
    size: float,
    tilt: Callable[[Z], V],
    latent: Latent,
    rng: np.random.Generator,
    *,
    beta: float = 1.0,
) -> int:
    """One Metropolis–Hastings move of every chain towards p_z exp(β tilt), in place; how many were accepted.

    A chain at z goes to z′ with probability min(1, exp(β (tilt(z′) − tilt(z)))).
    """
    z = propose(state.z, size, latent, rng)
    found = tilt(z)
    with np.errstate(invalid="ignore"):  # −∞ − (−∞): from nowhere to nowhere, stays
        ratio = beta * (found - state.tilt)
    accept = np.log1p(-rng.random(len(z))) < np.where(np.isneginf(found), -np.inf, ratio)
    state.z[accept], state.tilt[accept] = z[accept], found[accept]
    return int(accept.sum())


def propose(z: Z, size: float, latent: Latent, rng: np.random.Generator) -> Z:
    """A proposal for each row, by a kernel that is reversible with respect to p_z inside its support."""
    if size == FRESH:
        return np.asarray(latent.sample(len(z), rng), dtype=np.float32)
    noise = rng.standard_normal(z.shape)
    if isinstance(latent, Uniform):
        return _folded(z + size * (latent.high - latent.low) / 2 * noise, latent.low, latent.high)
    scale = latent.scale if isinstance(latent, TruncatedNormal) else 1.0
    return np.asarray(np.sqrt(1 - size**2) * z + size * scale * noise, dtype=np.float32)


def _folded(z: Float64[np.ndarray, "n dim"], low: float, high: float) -> Z:
    """Reflected at both bounds as often as needed."""
    width = high - low
    turn = np.mod(z - low, 2 * width)
    inside = low + np.where(turn > width, 2 * width - turn, turn)
    return np.asarray(np.clip(inside, low, high), dtype=np.float32)
