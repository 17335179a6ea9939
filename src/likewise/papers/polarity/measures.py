"""Measures of the supplement: path length [Polarity C.5], a VAE's likelihood [C.4], the law of spectra [Fig. 13]."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from numpy.typing import ArrayLike
from torch import Tensor, nn

from likewise import numeric
from likewise.distributions.generator import Generator
from likewise.distributions.metrics import Figure, both
from likewise.distributions.pretrained import HIDDEN, decoder, fill, read
from likewise.errors import InputError, ShapeError
from likewise.types import Array

STEP, LONG = 1e-4, 0.3
"""The step of the measure as it is used everywhere, and that of the paper's longer paths [Polarity C.5]."""
BATCH = 64
GRID = 4096

# ------------------------------------------------------------------------------------------------------- path length


def slerp(a: Any, b: Any, t: Any) -> Array:
    """The great circle from the direction of a to that of b, at t, with the lengths in between.

    p(t) = r(t) (sin((1 − t) θ) â + sin(t θ) b̂) / sin θ, θ the angle between a and b, r(t) = (1 − t) ‖a‖ + t ‖b‖: a
    path between normal latents stays as long as they are. Opposite directions have no one great circle: an InputError.
    """
    A, B, s = (np.asarray(x, dtype=np.float64) for x in (a, b, np.reshape(t, (-1, 1))))
    long_a, long_b = (np.linalg.norm(side, axis=1, keepdims=True) for side in (A, B))
    if (long_a == 0).any() or (long_b == 0).any():
        raise InputError("a, b: a latent is 0, which has no direction")
    A, B = A / long_a, B / long_b
    # atan2 of difference and sum: exact where arccos loses half of its digits
    angle = 2 * np.arctan2(np.linalg.norm(A - B, axis=1), np.linalg.norm(A + B, axis=1))[:, None]
    if (angle > np.pi - 1e-6).any():
        raise InputError("a, b: two latents point in opposite directions; there is no one great circle between them")
    near = angle < 1e-8
    sine = np.where(near, 1.0, np.sin(angle))
    left = np.where(near, 1 - s, np.sin((1 - s) * angle) / sine)
    right = np.where(near, s, np.sin(s * angle) / sine)
    return np.asarray(((1 - s) * long_a + s * long_b) * (left * A + right * B))


def lerp(a: Any, b: Any, t: Any) -> Array:
    """The straight line from a to b, at t: (1 − t) a + t b."""
    A, B, s = (np.asarray(x, dtype=np.float64) for x in (a, b, np.reshape(t, (-1, 1))))
    return np.asarray((1 - s) * A + s * B)


def path_length(
    generator: Generator, latents: Any, features: Callable[[Tensor], Tensor], *, step: float = STEP, seed: int = 0
) -> Figure:
    """PPL = E ‖φ(G(p(t))) − φ(G(p(t + ε)))‖² / ε² over pairs of latents and t from [0, 1 − ε] [Polarity C.5].

    Pair i is rows i and n + i of `latents` (2n, dim); φ = `features` takes images as tensors. Paths are great circles
    for latents without bounds and straight lines otherwise; a class is drawn for each where there are any.
    """
    z = np.asarray(latents, dtype=np.float64)
    if z.ndim != 2 or len(z) < 2 or len(z) % 2 or not np.isfinite(z).all():
        raise ShapeError(f"latents: expected finite (2n, dim), two ends a path, got shape {z.shape}")
    if not (np.isfinite(step) and 0 < step < 1):
        raise InputError(f"step: expected a number above 0 and below 1, got {step!r}")
    rng = np.random.default_rng(seed)
    n = len(z) // 2
    t = rng.uniform(0, 1 - step, n)
    y = None if generator.labels is None else rng.integers(generator.labels, size=n)
    path = slerp if generator.latent.support() is None else lerp
    ends = [path(z[:n], z[n:], s).astype(np.float32) for s in (t, t + step)]
    parts = []
    for start in range(0, n, BATCH):
        few = slice(start, start + BATCH)
        with torch.no_grad():
            a, b = (features(generator(end[few], None if y is None else y[few])).double() for end in ends)
        parts.append(np.asarray((a - b).square().flatten(1).sum(1)) / step**2)
    values = np.concatenate(parts)
    error = float(values.std(ddof=1) / np.sqrt(n)) if n > 1 else None
    net = str(getattr(features, "name", None) or type(features).__qualname__)
    return Figure(float(values.mean()), measure=f"ppl, step {step:g}", net=net, n_fake=n, error=error)


# -------------------------------------------------------------------------------------------- copies, likelihood


@dataclass(frozen=True, eq=False)
class Nearest:
    """Each fake sample's nearest training sample: `distance` (m,), `index` (m,) [Polarity Fig. 15].

    `own` (n,) is each training sample's distance to the nearest other one: a model that copies has distances far below.
    """

    distance: Array
    index: Any
    own: Array


def nearest_training(real: Any, fake: Any, **options: Any) -> Nearest:
    """How far each fake sample is from its nearest real one: min_i ‖φ(x_i) − φ(y_j)‖ [Polarity Fig. 15]."""
    a, b = both(real, fake, **options)
    distance, index = numeric.nearest(b.rows, a.rows)
    return Nearest(distance[:, 0], index[:, 0], numeric.nearest(a.rows)[0][:, 0])


class Likelihood:
    """The log-likelihood of images under "fashion-vae": the importance-weighted bound, in nats [Polarity C.4].

    log p(x) ≥ E log 1/S Σ_s p(x | z_s) p(z_s) / q(z_s | x), z_s ~ q(· | x), with p(x | z) = N(G(z), s²) in each pixel.
    """

    def __init__(self, *, samples: int = 64, seed: int = 0) -> None:
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
            raise InputError(f"samples: expected a whole number ≥ 1, got {samples!r}")
        arrays, header = read("fashion-vae")
        self.decoder = fill(decoder(header["dim"], header["channels"]), arrays, "decoder")
        self.encoder = fill(encoder(header["dim"], header["channels"]), arrays, "encoder")
        self.log_spread, self.samples, self.seed = float(header["log_spread"]), samples, seed

    def __call__(self, x: Tensor) -> Float64[np.ndarray, " n"]:
        """log p (n,) of images (n, 1, 28, 28) in [0, 1] [Polarity C.4]."""
        with torch.no_grad():
            draws = torch.Generator().manual_seed(self.seed)
            centre, log_scale = self.encoder(x).chunk(2, 1)
            parts = [self._ratio(x, centre, log_scale, draws) for _ in range(self.samples)]
            bound = torch.logsumexp(torch.stack(parts), 0) - math.log(self.samples)
        return np.asarray(bound, dtype=np.float64)

    def _ratio(self, x: Tensor, centre: Tensor, log_scale: Tensor, draws: torch.Generator) -> Tensor:
        """log p(x | z) p(z) / q(z | x) of one draw an image, in float64."""
        noise = torch.randn(centre.shape, generator=draws)
        z = centre + log_scale.exp() * noise
        error = ((x - self.decoder(z)).double() / math.exp(self.log_spread)).flatten(1)
        pixels = -0.5 * error.square().sum(1) - error.shape[1] * (self.log_spread + 0.5 * math.log(2 * math.pi))
        latents = 0.5 * (noise.double().square() - z.double().square()) + log_scale.double()
        total: Tensor = pixels + latents.sum(1)
        return total


def encoder(dim: int, channels: int, planes: int = 1) -> nn.Sequential:
    """What a VAE thinks of an image: the mean and the log of the spread of each latent, (n, 2 dim)."""
    c = channels
    return nn.Sequential(
        nn.Conv2d(planes, c // 2, 4, 2, 1),
        nn.ReLU(),
        nn.Conv2d(c // 2, c, 4, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(c * 49, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, 2 * dim),
    )


# ------------------------------------------------------------------------------------------------- Marchenko–Pastur


@dataclass(frozen=True)
class MarchenkoPastur:
    """The limit law of the eigenvalues x of WᵀW / D, W (D, K) with entries of variance `scale`, `ratio` λ = K / D.

    p(x) = √((x₊ − x)(x − x₋)) / (2π s λ x) on x₋ ≤ x ≤ x₊ = s (1 ± √λ)²; for λ > 1 a share 1 − 1/λ lies at 0.
    """

    scale: float
    ratio: float

    @property
    def support(self) -> tuple[float, float]:
        """x₋, x₊."""
        root = np.sqrt(self.ratio)
        return float(self.scale * (1 - root) ** 2), float(self.scale * (1 + root) ** 2)

    def density(self, x: ArrayLike) -> Array:
        """p(x) of the continuous part."""
        low, high = self.support
        v = np.asarray(x, dtype=np.float64)
        inside = (v > low) & (v < high) & (v > 0)
        safe = np.where(inside, v, 1.0)
        root = np.sqrt(np.where(inside, (high - safe) * (safe - low), 0.0))
        return np.asarray(np.where(inside, root / (2 * np.pi * self.scale * self.ratio * safe), 0.0))

    def cdf(self, x: ArrayLike) -> Array:
        """The share of eigenvalues ≤ x, by the midpoint rule in θ, x = x₋ + (x₊ − x₋) sin² θ, where p dx is smooth."""
        low, high = self.support
        theta = (np.arange(GRID) + 0.5) * (np.pi / 2 / GRID)
        at = low + (high - low) * np.sin(theta) ** 2
        steps = self.density(at) * (high - low) * np.sin(2 * theta) * (np.pi / 2 / GRID)
        edges = low + (high - low) * np.sin(np.arange(GRID + 1) * (np.pi / 2 / GRID)) ** 2
        at_zero = max(0.0, 1 - 1 / self.ratio)
        cumulative = at_zero + np.concatenate([[0.0], np.cumsum(steps)])
        v = np.asarray(x, dtype=np.float64)
        return np.asarray(np.where(v < 0, 0.0, np.where(v < low, at_zero, np.interp(v, edges, cumulative))))


def marchenko_pastur(sigma: ArrayLike) -> tuple[MarchenkoPastur, float]:
    """The law with the mean and variance of σ², s = E x, λ = Var x / (E x)², and its distance [Polarity Fig. 13].

    `sigma` are all singular values of one Jacobian, or of many, (n, K). The distance is the largest gap between the
    two distribution functions (Kolmogorov–Smirnov): small is a good fit. Of a cut spectrum (the k largest of K) the
    law is not that of Marchenko and Pastur: give all.
    """
    values = np.asarray(sigma, dtype=np.float64).ravel()
    if values.size < 2 or not np.isfinite(values).all() or (values < 0).any():
        raise InputError("sigma: expected at least two finite singular values ≥ 0")
    x = np.sort(values**2)
    mean, variance = float(x.mean()), float(x.var())
    if not variance > 0:
        raise InputError("sigma: all singular values are equal; there is no spread to fit")
    law = MarchenkoPastur(mean, variance / mean**2)
    cdf = law.cdf(x)
    upper, lower = (np.searchsorted(x, x, side=side) / len(x) for side in ("right", "left"))
    before = np.where(x > 0, cdf, 0.0)  # the law may jump at 0, and nowhere else
    return law, float(max(np.abs(upper - cdf).max(), np.abs(before - lower).max()))
