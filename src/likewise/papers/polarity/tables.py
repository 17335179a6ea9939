"""The tables of Polarity Sampling on a generator of one's own: each figure is a mean ± s.e. over independent banks.

Volumes are measured in the features that also measure quality, unless a table says otherwise: EfficientNet-Lite0, or
the small classifier of clothes for the generators that come with likewise.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from likewise.distributions import metrics
from likewise.distributions.bank import Bank, harvest
from likewise.distributions.data import load
from likewise.distributions.generator import Generator
from likewise.distributions.pretrained import fashion_features
from likewise.errors import InputError
from likewise.inputs import GENERATORS
from likewise.nn.features import Features, PhotoFeatures, channels_of, extract
from likewise.papers import Record, Table
from likewise.papers.polarity import toys
from likewise.papers.polarity.measures import LONG, STEP, Likelihood, marchenko_pastur, path_length
from likewise.train.options import option

RHOS = (-1.0, -0.5, -0.2, 0.0, 0.2, 0.5, 1.0)
SPACES = ("pixel", "preactivation", "feature")
Numbers = dict[str, float]


@dataclass(frozen=True)
class Options:
    """What a table of Polarity Sampling is made of."""

    generator: str = option("fashion", "generator: a name, module:attribute or a file of weights")
    real: str = option("", "real images: a folder, or features (n, d) in a .npy file")
    n: int = option(1000, "latents of a bank", low=8)
    banks: int = option(5, "independent banks", low=2)
    k: int = option(3, "singular values in a volume", low=1)


class Setup:
    """The generator, its features and its banks, each harvested once a table."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.generator = load(options.generator)
        self.features: Any = fashion_features() if options.generator in GENERATORS else PhotoFeatures()
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
        """Quality and diversity of half as many images as the bank holds, drawn systematically at ρ."""
        draw = bank.draw(n or len(bank) // 2, rho, k, scheme="systematic", seed=seed)
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
            values = np.array([run[name] for run in runs])
            row[name], row[f"{name} ±"] = float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values)))
        rows.append(row)
    return Record(list(rows[0]), rows, asdict(options))


def precision_recall(options: Options) -> Record:
    """Precision, recall and Fréchet distance along ρ, in each space and for several k [Polarity A.5]."""
    setup = Setup(options)
    ks = sorted({min(k, setup.generator.dim) for k in (1, options.k, 10)})
    variants = ({"space": s, "k": k, "rho": rho} for s in SPACES for k in ks for rho in RHOS)

    def measure(seed: int, space: str, k: int, rho: float) -> Numbers:
        return setup.measure(*setup.bank(seed, space), rho, k, seed)

    return tabulate(options, variants, measure)


def truncation(options: Options) -> Record:
    """ρ ≥ 0 under truncation, volumes those of the truncated map: does recall come back [Polarity C.3]?"""
    setup = Setup(options)

    def measure(seed: int, psi: float, rho: float) -> Numbers:
        return setup.measure(*setup.bank(seed, "feature", psi), rho, options.k, seed)

    variants = ({"psi": psi, "rho": rho} for psi in (0.5, 0.75, 1.0) for rho in (0.0, 0.2, 0.5, 1.0))
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
        draw = bank.draw(options.n // 2, rho, options.k, scheme="systematic", seed=seed)
        logs = bank.log_sigma[draw.indices]
        sigma = np.exp(logs[np.isfinite(logs).all(1)])
        _, distance = marchenko_pastur(sigma / np.sqrt((sigma**2).mean(1, keepdims=True)))  # each of mean square 1
        return {"ess": draw.ess, "mean log σ": float(np.log(sigma).mean()), "distance to law": distance}

    return tabulate(options, ({"rho": rho} for rho in RHOS), measure)


def known_answers(options: Options) -> Record:
    """How far draws at ρ are from the exact density of toys: total variation over 8 × 8 cells [Polarity Fig. 11]."""

    @functools.cache
    def bank(toy: str, seed: int) -> Bank:
        return harvest(toys.mosaic(toy, cells=32).generator(), options.n, seed=seed, progress=False)

    def measure(seed: int, toy: str, rho: float) -> Numbers:
        mosaic = toys.mosaic(toy, cells=32)
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
