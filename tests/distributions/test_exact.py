"""Polarity sampling where its answer is known: exact distributions, with checks that the tests could fail."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from scipy import stats

from likewise.distributions import Bank, Generator, Normal, OnlineSampler, TruncatedNormal, Uniform, harvest
from worlds.generators import Folded, Linear, Stairs, cell_masses, cells, stairs

N = 12_000
DRAWN = 4_000
SEEDS = range(3)


@functools.cache
def bank(kind: str) -> Bank:
    """The bank of a world, harvested once."""
    return harvest(GENERATORS[kind](), N if kind != "stairs" else 20_000, seed=3, shard_size=4000)


GENERATORS = {
    "stairs": stairs,
    "uniform": lambda: Generator(Folded(), Uniform(2, -2.0, 2.0)),
    "normal": lambda: Generator(Folded(), Normal(2)),
    "truncated": lambda: Generator(Folded(), TruncatedNormal(2, 2.0)),
    "linear": lambda: Generator(Linear(), Normal(4)),
}


# ── one dimension: a staircase ────────────────────────────────────────────────────────────────────────────────────


def ks(z: np.ndarray, rho: float, effective: float) -> float:
    """The p-value of the outputs' Kolmogorov–Smirnov distance to the exact CDF.

    Draws from a bank scatter by their own number and by the bank's effective one: 1 / (1/n + 1/ESS) independent ones.
    """
    net = Stairs()
    x = net(torch.from_numpy(np.ascontiguousarray(z))).numpy().ravel().astype(np.float64)
    distance = stats.kstest(x, lambda at: net.cdf(at, rho)).statistic
    return float(stats.kstwo.sf(distance, round(1 / (1 / len(z) + 1 / effective))))


@pytest.mark.parametrize("rho", [-1.0, 0.0, 1.0, 2.0])
@pytest.mark.parametrize("scheme", ["multinomial", "systematic"])
def test_outputs_follow_the_exact_cdf(rho: float, scheme: str) -> None:
    b = bank("stairs")
    effective = b.ess(rho) * len(b)
    for seed in SEEDS:
        assert ks(b.sample(DRAWN, rho, scheme=scheme, seed=seed), rho, effective) > 1e-3  # type: ignore[arg-type]


@pytest.mark.parametrize("rho", [-1.0, 0.0, 1.0, 2.0])
def test_it_would_be_seen_if_they_did_not(rho: float) -> None:
    """Power: the same draws against a ρ that is off by 0.6, and draws of another ρ against this one."""
    b = bank("stairs")
    effective = b.ess(rho) * len(b)
    assert ks(b.sample(DRAWN, rho), rho + 0.6, effective) < 1e-6
    assert ks(b.sample(DRAWN, rho - 0.6), rho, effective) < 1e-6


# ── two dimensions in five ────────────────────────────────────────────────────────────────────────────────────────


def chi2(b: Bank, rho: float, *, low: float = -2.0, high: float = 2.0, seed: int = 0, **how) -> float:
    """The p-value of χ² over 8 × 8 cells, its statistic divided by (1 + M / ESS): draws and bank both scatter."""
    z = b.sample(DRAWN, rho, seed=seed, **how)
    how.pop("scheme", None)
    expected = cell_masses(rho, low, high) * len(z)
    statistic = ((cells(z, low, high) - expected) ** 2 / expected).sum()
    effective = b.ess(rho, **how) * len(b)
    return float(stats.chi2.sf(statistic / (1 + len(z) / effective), 63))


def test_the_map_folds_and_its_volumes_are_known() -> None:
    """What the tests below rest on: volumes that differ, in closed form, and that the spectra agree with."""
    b = bank("uniform")
    exact = Folded().log_volume(b.latents.astype(np.float64))
    assert exact.max() - exact.min() > 1.0
    close = np.abs(b.log_volume() - exact) < 1e-4
    assert close.mean() > 0.999  # a latent on a fold may fall to either side


@pytest.mark.parametrize("rho", [-2.0, -1.0, 0.5, 1.0])
def test_uniform_latents_pass(rho: float) -> None:
    assert min(chi2(bank("uniform"), rho, seed=s) for s in SEEDS) > 1e-3


def test_gaussian_latents_with_the_uniform_target_pass() -> None:
    for s in SEEDS:
        assert chi2(bank("truncated"), 1.0, target="uniform", seed=s) > 1e-3
        assert chi2(bank("truncated"), -1.0, target="uniform", seed=s) > 1e-3


def test_erratum_gaussian_latents_at_one_are_not_uniform_on_the_manifold() -> None:
    """Power, and the erratum: without dividing by p_z, ρ = 1 is not uniform unless the latents are."""
    for kind in ("normal", "truncated"):
        assert chi2(bank(kind), 1.0) < 1e-6


def test_another_rho_fails() -> None:
    assert chi2(bank("uniform"), 0.0) > 1e-3
    expected = cell_masses(1.0, -2.0, 2.0) * DRAWN
    counts = cells(bank("uniform").sample(DRAWN, 0.0), -2.0, 2.0)
    assert stats.chi2.sf(((counts - expected) ** 2 / expected).sum() / (1 + DRAWN / N), 63) < 1e-6


# ── no dimension at all: what ρ must not change ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("rho", [-3.0, -0.5, 0.0, 1.0, 2.0])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_a_linear_generator_ignores_rho(rho: float, k: int) -> None:
    b = bank("linear")
    np.testing.assert_allclose(b.log_weights(rho, k), -np.log(len(b)), atol=1e-4)
    assert b.ess(rho, k) > 1 - 1e-8


def test_zero_is_drawn_as_every_other_rho_is() -> None:
    """Equal weights, the same scheme and seed: a ρ next to 0 draws nearly the same latents."""
    b = bank("uniform")
    np.testing.assert_array_equal(b.log_weights(0.0), np.full(len(b), -np.log(len(b))))
    np.testing.assert_array_equal(b.sample(len(b), 0.0, seed=5), b.latents)
    for scheme in ("multinomial", "systematic", "without"):
        zero, near = (b.draw(500, rho, scheme=scheme, seed=3).indices for rho in (0.0, 1e-9))  # type: ignore[arg-type]
        assert len(np.intersect1d(zero, near)) > 490
        assert not np.array_equal(zero, np.arange(500))
    counts = np.bincount(b.draw(2 * len(b) + 7, 0.0).indices)
    assert set(counts.tolist()) == {2, 3}


# ── online ────────────────────────────────────────────────────────────────────────────────────────────────────────


@functools.cache
def small(kind: str, n: int = 3000) -> Bank:
    return harvest(GENERATORS[kind](), n, seed=11, shard_size=n)


@pytest.mark.parametrize("rho", [-1.0, 1.0])
def test_online_outputs_follow_the_exact_cdf(rho: float) -> None:
    b = small("stairs")
    z, info = OnlineSampler(stairs(), b, rho).draw(1500, seed=1)
    assert info["jacobians_per_sample"] > 1
    effective = b.ess(rho) * len(b)  # starts scatter with the bank and are moved from there
    assert ks(z, rho, effective) > 1e-3
    assert ks(z, 0.0, effective) < 1e-6  # it has the power


@pytest.mark.parametrize("kind", ["uniform", "normal", "truncated"])
def test_online_latents_keep_their_density(kind: str) -> None:
    """Against the bank's own weights in the cells: a move that is not reversible for p_z drifts away from them."""
    big, few = bank(kind), small(kind)
    z, info = OnlineSampler(GENERATORS[kind](), few, 1.0).draw(1000, seed=2)
    inside = np.abs(z).max(1) <= 2
    counts = cells(z[inside], -2, 2)
    weights = np.exp(big.log_weights(1.0))
    edges = np.linspace(-2, 2, 9)
    masses = np.histogram2d(*big.latents.T, bins=(edges, edges), weights=weights)[0].ravel()
    expected = masses / masses.sum() * counts.sum()
    effective = 1 / (1 / (big.ess(1.0) * len(big)) + 1 / (few.ess(1.0) * len(few)))
    statistic = ((counts - expected) ** 2 / expected).sum() / (1 + len(z) / effective)
    assert stats.chi2.sf(statistic, 63) > 1e-3
    assert info["acceptance"] > 0.2


def test_chains_forget_where_they_began() -> None:
    """Started from the model (a bank that weights nothing), the moves alone bring the chains to ρ = 1."""
    b = small("stairs")
    flat = Bank(b.latents, np.zeros_like(b.log_sigma), log_density=b.log_density, about=b.about)
    sampler = OnlineSampler(stairs(), flat, 1.0, steps=40)
    z, _ = sampler.draw(1500, seed=3)
    assert ks(z, 1.0, np.inf) > 1e-3
    few, _ = OnlineSampler(stairs(), flat, 1.0, steps=1).draw(1500, seed=3)
    assert ks(few, 1.0, np.inf) < 1e-6
