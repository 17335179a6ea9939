"""What the Polarity paper says of likelihood, on a map whose density is known."""

import numpy as np
import pytest

from likewise.distributions import harvest, toys


def test_erratum_5_only_anti_modes_are_less_likely_than_the_model():
    toy = toys.mosaic("moons", cells=16)
    bank = harvest(toy.generator(), 4000, progress=False)
    exact = {rho: expected(toy, rho) for rho in (-0.5, 0.0, 0.5)}
    found = {rho: -toy.log_volume(bank.sample(4000, rho, seed=1)).mean() for rho in exact}
    for rho, log_likelihood in exact.items():  # log p(G(z)) = log p_z(z) − v(z), and p_z = 1
        assert found[rho] == pytest.approx(log_likelihood, abs=0.1), rho
    assert found[-0.5] > found[0.0] > found[0.5]


def expected(toy, rho):
    """Mean log-density of the model under polarity ρ, from the table: Σ p^(1−ρ) log p / Σ p^(1−ρ)."""
    p = toy.table[toy.table > 0]
    weights = p ** (1 - rho)
    return float((weights * np.log(p)).sum() / weights.sum())
