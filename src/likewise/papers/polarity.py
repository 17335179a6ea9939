"""Polarity Sampling: quality and diversity control of pre-trained generators.

The measures of its supplement, maps whose density is known, and its tables on a generator of one's own: each figure
is a mean ± s.e. over independent banks. Volumes are measured in the features that also measure quality, unless a table
says otherwise: EfficientNet-Lite0, or the small classifier of clothes for the generators that come with likewise.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from numpy.typing import ArrayLike
from torch import Tensor, nn

from likewise.distributions import metrics
from likewise.distributions.bank import Bank
from likewise.distributions.data import HIDDEN, decoder, fashion_features, fill, load, read_shipped
from likewise.distributions.generator import Generator
from likewise.distributions.harvesting import harvest
from likewise.distributions.latents import Uniform
from likewise.distributions.metrics import Figure
from likewise.errors import InputError, ShapeError
from likewise.inputs import GENERATORS
from likewise.nn.features import Features, PhotoFeatures, channels_of, extract
from likewise.nn.pretrained import feature_network
from likewise.papers import Record, Table, mean_error
from likewise.train.options import option
from likewise.types import Array

STEP, LONG = 1e-4, 0.3
"""The step of path length as it is used everywhere, and that of the paper's longer paths [Polarity C.5]."""
BATCH = 64
GRID = 4096
RHOS = (-1.0, -0.5, -0.2, 0.0, 0.2, 0.5, 1.0)
SPACES = ("pixel", "preactivation", "feature")
Numbers = dict[str, float]

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
    mean, error = mean_error(np.concatenate(parts))
    net = str(getattr(features, "name", None) or type(features).__qualname__)
    return Figure(mean, measure=f"ppl, step {step:g}", net=net, n_fake=n, error=error)


# -------------------------------------------------------------------------------------------------------- likelihood


class Likelihood:
    """The log-likelihood of images under "fashion-vae": the importance-weighted bound, in nats [Polarity C.4].

    log p(x) ≥ E log 1/S Σ_s p(x | z_s) p(z_s) / q(z_s | x), z_s ~ q(· | x), with p(x | z) = N(G(z), s²) in each pixel.
    """

    def __init__(self, *, samples: int = 64, seed: int = 0) -> None:
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
            raise InputError(f"samples: expected a whole number ≥ 1, got {samples!r}")
        arrays, header = read_shipped("fashion-vae")
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
    return nn.Sequential(
        nn.Conv2d(planes, channels // 2, 4, 2, 1),
        nn.ReLU(),
        nn.Conv2d(channels // 2, channels, 4, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(channels * 49, HIDDEN),
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


# -------------------------------------------------------------------------------------------- densities that are known


class Mosaic:
    """A map of the unit square onto itself whose outputs have a given density, constant in each cell of a table.

    `density` is a non-negative table (rows along x_0, columns along x_1), or one of "moons", "rings", "grid". The map
    is the quantile function of x_0, then that of x_1 within x_0's row (Rosenblatt): its Jacobian is diagonal, with
    determinant 1 / p(x). It jumps at the edges of rows, a set of measure zero. What polarity sampling does to it can be
    written down [Polarity Fig. 11]; `table` is the density of its outputs in each cell, of mean 1.
    """

    def __init__(self, density: str | ArrayLike = "moons", cells: int = 64) -> None:
        self.name = density if isinstance(density, str) else "mosaic"
        self.table = _table(density, cells)
        self.rows = self.table.mean(1)
        self.inside = self.table / np.where(self.rows > 0, self.rows, 1.0)[:, None]
        self.outer, self.inner = _edges(self.rows), np.stack([_edges(row) for row in self.inside])

    def __call__(self, u: Tensor) -> Tensor:
        """Latents (n, 2) to places (n, 2), differentiable."""
        return self._place(u)[2]

    def log_volume(self, u: Any) -> Float64[np.ndarray, " n"]:
        """Σ log σ of the Jacobian at latents (n, 2): −log p of the cells that they go to."""
        latents = np.asarray(u, dtype=np.float64)
        if latents.ndim != 2 or latents.shape[1] != 2:
            raise ShapeError(f"u: expected latents (n, 2), got shape {latents.shape}")
        i, j, _ = self._place(torch.from_numpy(latents))
        return np.asarray(-np.log(self.table[i.numpy(), j.numpy()]))

    def generator(self) -> Generator:
        """The map as a generator, for `harvest` and all that follows from it."""
        return Generator(self, Uniform(2, 0.0, 1.0), name=self.name)

    def polarised(self, rho: float) -> Array:
        """The density of the outputs under polarity ρ, in each cell: ∝ p^(1−ρ) [Polarity Eq. 7].

        A cell of density p is the image of cells of total latent area ∝ p, in each of which the volume is 1/p.
        """
        powers = np.zeros_like(self.table)
        np.power(self.table, 1 - rho, out=powers, where=self.table > 0)
        return np.asarray(powers / powers.mean())

    def _place(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Row and column of the cell that each latent goes to, and its place there."""
        outer, rows, inner, inside = (
            torch.as_tensor(v).to(u) for v in (self.outer, self.rows, self.inner, self.inside)
        )
        i, first = _quantile(u[:, 0], outer[None], rows[None])
        j, second = _quantile(u[:, 1], inner[i], inside[i])
        return i, j, torch.stack([first, second], 1)


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


# ------------------------------------------------------------------------------------------------------------ tables


@dataclass(frozen=True)
class Options:
    """What a table of Polarity Sampling is made of."""

    generator: str = option("fashion", "generator: a name, module:attribute or a file of weights")
    real: str = option("", "real images: a folder, or features (n, d) in a .npy file")
    n: int = option(1000, "latents of a bank", low=8)
    banks: int = option(5, "independent banks", low=2)
    k: int = option(3, "singular values in a volume", low=1)
    features: str = option("", "inception, vgg16, lpips …; by default Lite0, or the small classifier of clothes")


class Setup:
    """The generator, its features and its banks, each harvested once a table."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.generator = load(options.generator)
        own = fashion_features if options.generator in GENERATORS else PhotoFeatures
        self.features: Any = feature_network(options.features) if options.features else own()
        self.bank = functools.cache(self._bank)

    @functools.cached_property
    def real(self) -> Features:
        """The features of the real side."""
        if not self.options.real:
            raise InputError("real: expected a folder of images, or features in a .npy file; this table needs them")
        return extract(self.options.real, self.features, where="real", planes=channels_of(self.generator))

    def _bank(self, seed: int, space: str = "feature", psi: float = 1.0) -> tuple[Generator, Bank]:
        generator = self.generator.truncated(psi).in_space(self.features if space == "feature" else space)
        return generator, harvest(generator, self.options.n, seed=seed, progress=False)

    def measure(self, generator: Generator, bank: Bank, rho: float, k: int, seed: int, n: int | None = None) -> Numbers:
        """Quality and diversity of half as many images as the bank holds, drawn at ρ."""
        draw = bank.draw(n or len(bank) // 2, rho, k, seed=seed)
        fake = extract(generator(draw.latents, draw.labels), self.features, where="generator")
        figures = {name: float(value) for name, value in metrics.measures(self.real, fake).items()}
        few = {name: figures[name] for name in ("frechet", "precision", "recall")}
        return {"ess": draw.ess, "distinct": len(np.unique(draw.indices)) / len(draw.indices), **few}

    def latents(self, rho: float, seed: int, n: int) -> tuple[Generator, Any, float]:
        """The generator in pixels, n latents of one of its banks at ρ, in random order, and the effective share."""
        generator, bank = self.bank(seed)
        draw = bank.draw(n, rho, self.options.k, seed=seed)
        return generator, np.random.default_rng(seed).permutation(draw.latents), draw.ess


Measure = Callable[..., Numbers]


def tabulate(options: Options, variants: Iterable[Mapping[str, Any]], measure: Measure) -> Record:
    """A row for each variant: what `measure(seed, **variant)` gives, mean and standard error over the banks."""
    rows = []
    for variant in variants:
        runs = [measure(seed, **variant) for seed in range(options.banks)]
        row: dict[str, Any] = dict(variant)
        for name in runs[0]:
            row[name], row[f"{name} ±"] = mean_error([run[name] for run in runs])
        rows.append(row)
    note = f"mean ± s.e. over {options.banks} independent banks; ess: effective share of the bank"
    return Record(list(rows[0]), rows, note)


def precision_recall(options: Options) -> Record:
    """Precision, recall and Fréchet distance along ρ, in each space and for several k [Polarity A.5]."""
    setup = Setup(options)
    ks = sorted({min(k, setup.generator.dim) for k in (1, options.k, 10)})
    variants = ({"space": s, "k": k, "rho": rho} for s in SPACES for k in ks for rho in RHOS)

    def measure(seed: int, space: str, k: int, rho: float) -> Numbers:
        return setup.measure(*setup.bank(seed, space), rho, k, seed)

    return tabulate(options, variants, measure)


def truncation(options: Options) -> Record:
    """ρ ≥ 0 under truncation, by volumes of the truncated map and by those of the whole one [Polarity C.3].

    Does recall come back? And may a bank at ψ = 1 serve for ψ < 1?
    """
    setup = Setup(options)

    def measure(seed: int, psi: float, volumes: float, rho: float) -> Numbers:
        generator, bank = setup.bank(seed, "feature", volumes)
        return setup.measure(generator if psi == volumes else generator.truncated(psi), bank, rho, options.k, seed)

    places = [(psi, volumes) for psi in (0.5, 0.75, 1.0) for volumes in sorted({psi, 1.0})]
    variants = ({"psi": p, "volumes": v, "rho": rho} for p, v in places for rho in (0.0, 0.2, 0.5, 1.0))
    return tabulate(options, variants, measure)


def sizes(options: Options) -> Record:
    """One draw of a quarter of N from banks that grow to N [Polarity Tab. 3]."""
    setup = Setup(options)

    def measure(seed: int, N: int, rho: float) -> Numbers:
        generator, bank = setup.bank(seed)
        return setup.measure(generator, bank.first(N), rho, options.k, seed, options.n // 4)

    variants = ({"rho": rho, "N": options.n // part} for rho in (-0.5, 0.5) for part in (4, 2, 1))
    return tabulate(options, variants, measure)


def likelihood(options: Options) -> Record:
    """−log p of images drawn at ρ under the VAE that drew them, in bits a pixel (the importance-weighted bound)."""
    if options.generator != "fashion-vae":
        raise InputError("generator: only fashion-vae gives a likelihood; pass --generator fashion-vae")
    setup, density = Setup(options), Likelihood(samples=16)

    def measure(seed: int, rho: float) -> Numbers:
        generator, z, ess = setup.latents(rho, seed, min(300, options.n))
        x = generator(z)
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)) * math.exp(density.log_spread)
        return {"ess": ess, "bits a pixel": float(-density(x + noise).mean() / (x[0].numel() * math.log(2)))}

    return tabulate(options, ({"rho": rho} for rho in RHOS), measure)


def path_lengths(options: Options) -> Record:
    """Perceptual path length between latents drawn at ρ, in steps of 1e-4 and of 0.3 [Polarity C.5]."""
    setup = Setup(options)

    def measure(seed: int, rho: float) -> Numbers:
        generator, z, ess = setup.latents(rho, seed, 2 * min(400, options.n // 2))
        half = len(z) // 2
        z = z[np.tile(~(z[:half] == z[half:]).all(1), 2)]  # a path from a latent to itself has no length
        steps = {f"step {step:g}": float(path_length(generator, z, setup.features, step=step)) for step in (STEP, LONG)}
        return {"ess": ess, **steps}

    return tabulate(options, ({"rho": rho} for rho in RHOS), measure)


def spectra(options: Options) -> Record:
    """The singular values of draws at ρ, and how far σ² is from the law of Marchenko and Pastur [Polarity Fig. 13]."""
    setup = Setup(options)

    def measure(seed: int, rho: float) -> Numbers:
        bank = setup.bank(seed, "pixel")[1]
        draw = bank.draw(options.n // 2, rho, options.k, seed=seed)
        logs = bank.log_sigma[draw.indices]
        sigma = np.exp(logs[np.isfinite(logs).all(1)])
        _, distance = marchenko_pastur(sigma / np.sqrt((sigma**2).mean(1, keepdims=True)))  # each of mean square 1
        return {"ess": draw.ess, "mean log σ": float(np.log(sigma).mean()), "distance to law": distance}

    return tabulate(options, ({"rho": rho} for rho in RHOS), measure)


def known_answers(options: Options) -> Record:
    """How far draws at ρ are from the exact density of toys: total variation over 8 × 8 cells [Polarity Fig. 11]."""

    @functools.cache
    def bank(toy: str, seed: int) -> Bank:
        return harvest(Mosaic(toy, cells=32).generator(), options.n, seed=seed, progress=False)

    def measure(seed: int, toy: str, rho: float) -> Numbers:
        mosaic = Mosaic(toy, cells=32)
        draw = bank(toy, seed).draw(options.n, rho, seed=seed)
        x = mosaic(torch.from_numpy(draw.latents)).numpy()
        share = np.histogram2d(x[:, 0], x[:, 1], bins=8, range=[(0, 1)] * 2)[0] / len(x)
        exact = mosaic.polarised(rho).reshape(8, 4, 8, 4).mean((1, 3)) / 64
        return {"ess": draw.ess, "total variation": float(np.abs(share - exact).sum() / 2)}

    variants = ({"toy": toy, "rho": rho} for toy in ("moons", "rings", "grid") for rho in (-0.5, 0.0, 0.5, 1.0))
    return tabulate(options, variants, measure)


TABLES: tuple[Table, ...] = (
    Table("precision-recall", "quality and diversity along ρ, by space and k", Options, precision_recall),
    Table("tab3", "the size of the bank", Options, sizes),
    Table("c3", "ρ under truncation", Options, truncation),
    Table("c4", "likelihood along ρ", Options, likelihood),
    Table("c5", "path lengths along ρ", Options, path_lengths),
    Table("fig11", "toys whose density is known", Options, known_answers),
    Table("fig13", "singular values against Marchenko–Pastur", Options, spectra),
)
