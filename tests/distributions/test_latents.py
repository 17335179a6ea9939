"""Latents: densities that integrate to one, samples inside their support and from the seed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import likewise as lw
from likewise.distributions import Latent, Normal, TruncatedNormal, Uniform

EVERY = (Normal(1), Uniform(1, -2, 0.5), TruncatedNormal(1, 0.7), TruncatedNormal(1, 2.0, scale=0.4))


@pytest.mark.parametrize("latent", EVERY, ids=str)
def test_density_integrates_to_one(latent):
    grid = np.linspace(-9, 9, 36_001)
    assert np.exp(latent.log_density(grid[:, None])).sum() * (grid[1] - grid[0]) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("latent", "peer"),
    [
        (Normal(1), stats.norm()),
        (Uniform(1, -2, 0.5), stats.uniform(-2, 2.5)),
        (TruncatedNormal(1, 0.7), stats.truncnorm(-0.7, 0.7)),
        (TruncatedNormal(1, 2.0, scale=0.4), stats.truncnorm(-2, 2, scale=0.4)),
    ],
    ids=["normal", "uniform", "truncated", "truncated and scaled"],
)
def test_density_and_sample_agree_with_scipy(latent, peer):
    z = latent.sample(4000, np.random.default_rng(0))[:, 0].astype(np.float64)
    np.testing.assert_allclose(latent.log_density(z[:, None]), peer.logpdf(z), rtol=1e-6)
    assert stats.kstest(z, peer.cdf).pvalue > 1e-3
    assert stats.kstest(z + 0.2, peer.cdf).pvalue < 1e-3  # the test can fail


def test_rows_are_independent_coordinates():
    z = np.array([[0.0, 1.0], [2.0, -1.0]])
    expected = stats.norm.logpdf(z).sum(1)
    np.testing.assert_allclose(Normal(2).log_density(z), expected)


@given(st.floats(1e-3, 30), st.floats(1e-3, 10))
def test_no_rounded_sample_lies_outside(psi, scale):
    latent = TruncatedNormal(3, psi, scale)
    z = latent.sample(200, np.random.default_rng(1))
    assert z.dtype == np.float32
    assert np.isfinite(latent.log_density(z)).all()


def test_the_seed_decides():
    for latent in EVERY:
        one, two = (latent.sample(5, np.random.default_rng(3)) for _ in range(2))
        assert one.tobytes() == two.tobytes()
        # the first rows of a longer draw are those of a shorter one
        assert latent.sample(9, np.random.default_rng(3))[:5].tobytes() == one.tobytes()


def test_they_are_latents_and_say_what_they_are():
    assert all(isinstance(latent, Latent) for latent in EVERY)
    assert TruncatedNormal(4, 0.5).to_dict() == {"kind": "TruncatedNormal", "dim": 4, "psi": 0.5, "scale": 1.0}


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Normal(0), "dim"),
        (lambda: Normal(2.5), "dim"),
        (lambda: Uniform(2, 1, 1), "low"),
        (lambda: Uniform(2, 0, np.inf), "high"),
        (lambda: TruncatedNormal(2, 0), "psi"),
        (lambda: TruncatedNormal(2, 1, -1), "scale"),
        (lambda: Normal(2).log_density([[1, 2, 3]]), "z"),
    ],
)
def test_wrong_arguments_are_named(make, name):
    with pytest.raises(lw.InputError, match=name):
        make()
