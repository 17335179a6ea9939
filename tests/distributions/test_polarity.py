"""Weights in log space, their honesty figures, the root of ρ for an effective size, and the three ways to draw."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

import likewise as lw
from likewise.distributions import polarity
from likewise.distributions.polarity import dead, ess, largest, log_volume, log_weights, resample, rho_for_ess

LOG2 = math.log(2)


def spectra(seed: int, n: int = 40, K: int = 5, spread: float = 1.0) -> np.ndarray:
    """Descending rows of log-singular values."""
    return -np.sort(-np.random.default_rng(seed).normal(scale=spread, size=(n, K)), axis=1)


rows = hnp.arrays(np.float64, st.tuples(st.integers(2, 30), st.integers(1, 6)), elements=st.floats(-3, 3))
polarities = st.floats(-3, 3)


# ── weights ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_weights_by_hand() -> None:
    logs = np.log([[4.0, 2.0], [2.0, 1.0], [8.0, 0.5]])  # volumes 8, 2, 4
    np.testing.assert_allclose(np.exp(log_weights(logs, 1.0)), [8 / 14, 2 / 14, 4 / 14])
    np.testing.assert_allclose(np.exp(log_weights(logs, -1.0)), np.array([1 / 8, 1 / 2, 1 / 4]) / (7 / 8))
    np.testing.assert_allclose(np.exp(log_weights(logs, 2.0, k=1)), np.array([16, 4, 64]) / 84)
    np.testing.assert_allclose(log_volume(logs, 1), np.log([4, 2, 8]))


def naive(logs: np.ndarray, rho: float, k: int) -> list[float]:
    raw = []
    for row in logs:
        product = 1.0
        for value in row[:k]:
            product *= math.exp(value)
        raw.append(product**rho)
    return [r / sum(raw) for r in raw]


@given(rows, polarities, st.data())
def test_weights_are_the_products_of_the_paper(logs: np.ndarray, rho: float, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, logs.shape[1]))
    result = log_weights(logs, rho, k)
    assert np.logaddexp.reduce(result) == pytest.approx(0, abs=1e-10)
    np.testing.assert_allclose(np.exp(result), naive(logs, rho, k), rtol=1e-9, atol=1e-15)


@given(rows, polarities, st.floats(-500, 500))
def test_a_generator_that_is_scaled_has_the_same_weights(logs: np.ndarray, rho: float, scale: float) -> None:
    """Also where the products of σ^ρ leave the range of floats."""
    np.testing.assert_allclose(log_weights(logs + scale, rho), log_weights(logs, rho), atol=1e-8)


def test_the_reference_clip_is_far_from_the_weights() -> None:
    """[spec] σ products clipped to [1e-200, 1e200] at k = 30, ρ = −2: a total variation that is nearly 1."""
    logs = spectra(0, n=500, K=30, spread=0.6) + 9
    with np.errstate(over="ignore", under="ignore"):
        clipped = np.clip(np.exp(log_volume(logs)) ** -2.0, 1e-200, 1e200)
    clipped /= clipped.sum()
    distance = 0.5 * np.abs(clipped - np.exp(log_weights(logs, -2.0))).sum()
    assert distance > 0.9


def test_zero_is_the_model_dead_latents_and_all() -> None:
    logs = spectra(1)
    logs[3, 2:] = -np.inf
    np.testing.assert_array_equal(log_weights(logs, 0.0), np.full(40, -math.log(40)))


@pytest.mark.parametrize("rho", [-1.0, -1e-9, 1e-9, 1.0])
def test_dead_latents_are_left_out_not_favoured(rho: float) -> None:
    logs = spectra(2)
    logs[[3, 5], 2:] = -np.inf
    assert np.flatnonzero(dead(logs)).tolist() == [3, 5]
    assert not dead(logs, 2).any()
    w = log_weights(logs, rho)
    assert np.isneginf(w[[3, 5]]).all()
    alive = np.setdiff1d(np.arange(40), [3, 5])
    np.testing.assert_allclose(w[alive], log_weights(logs[alive], rho))
    assert ess(w) <= 38 / 40 + 1e-12


def test_the_uniform_target_divides_by_the_density() -> None:
    logs, density = spectra(5, n=3), np.log([0.5, 0.25, 0.125])
    np.testing.assert_allclose(np.exp(log_weights(logs, 0.0, log_density=density)), np.array([2, 4, 8]) / 14)
    density[1] = -np.inf  # outside the domain
    assert np.isneginf(log_weights(logs, 1.0, log_density=density)[1])


def test_classes_keep_their_share() -> None:
    logs, groups = spectra(6), np.arange(40) % 3
    w = polarity.grouped(logs, -0.7, members=polarity.partition(groups))
    assert np.logaddexp.reduce(w) == pytest.approx(0, abs=1e-12)
    for g in range(3):
        mine = groups == g
        assert np.exp(w[mine]).sum() == pytest.approx(mine.mean())
        np.testing.assert_allclose(w[mine] - np.log(mine.mean()), log_weights(logs[mine], -0.7))
    logs[groups == 2] = -np.inf
    with pytest.raises(lw.InputError, match="class 2: k: all 13 latents are dead"):
        polarity.grouped(logs, -0.7, members=polarity.partition(groups))


# ── the errata ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_erratum_top_k_is_not_a_density() -> None:
    """Π_{i ≤ k} σ_i with k < K does not change with coordinates as a density must; the whole product does.

    Halving one latent axis (z₂ → z₂ / 2) is the same generator on a domain of half the size: every density on the
    domain doubles, everywhere. v_K falls by log 2 everywhere; v_1 does so only where z₂'s direction leads.
    """
    before = np.log([[3.0, 1.0], [3.0, 1.0]])  # σ along (z₁, z₂) = (3, 1) at one latent, (1, 3) at the other
    after = np.log([[3.0, 0.5], [1.5, 1.0]])
    np.testing.assert_allclose(log_volume(after) - log_volume(before), [-LOG2, -LOG2])
    np.testing.assert_allclose(log_volume(after, 1) - log_volume(before, 1), [0, -LOG2])
    np.testing.assert_allclose(log_weights(after, 1.0), log_weights(before, 1.0))
    assert not np.allclose(log_weights(after, 1.0, 1), log_weights(before, 1.0, 1))


# ── honesty figures ───────────────────────────────────────────────────────────────────────────────────────────────


def test_effective_size_by_hand() -> None:
    assert ess(np.zeros(8)) == 1.0
    assert ess([0.0, -np.inf, -np.inf, -np.inf]) == pytest.approx(0.25)
    assert ess(np.log([0.5, 0.25, 0.25])) == pytest.approx(1 / (0.25 + 0.0625 + 0.0625) / 3)
    assert largest(np.log([0.5, 0.25, 0.25])) == pytest.approx(0.5)
    assert largest(np.log([6.0, 2.0])) == pytest.approx(0.75)  # need not be normalised


@given(rows, polarities)
def test_effective_size_is_the_formula_and_within_its_bounds(logs: np.ndarray, rho: float) -> None:
    w = np.exp(log_weights(logs, rho))
    result = ess(log_weights(logs, rho))
    assert result == pytest.approx(1 / sum(x * x for x in w) / len(w), rel=1e-9)
    assert 1 / len(w) - 1e-12 <= result <= 1
    assert largest(log_weights(logs, rho)) == pytest.approx(max(w), rel=1e-9)
    assert result <= 1 / (len(w) * largest(log_weights(logs, rho)) ** 2) + 1e-9


@given(rows, st.floats(0.01, 2), st.floats(1.01, 4), st.sampled_from([-1, 1]))
def test_effective_size_falls_with_rho(logs: np.ndarray, rho: float, factor: float, sign: int) -> None:
    assert ess(log_weights(logs, sign * rho * factor)) <= ess(log_weights(logs, sign * rho)) + 1e-9


@given(st.integers(0, 2**31), st.floats(0.1, 0.999), st.sampled_from([-1, 1]), st.sampled_from([1e-3, 1.0, 30.0]))
def test_rho_for_ess_is_the_root(seed: int, fraction: float, sign: int, spread: float) -> None:
    logs = spectra(seed, spread=spread)
    rho = rho_for_ess(logs, fraction, sign=sign)
    assert rho * sign > 0
    assert ess(log_weights(logs, rho)) == pytest.approx(fraction, rel=1e-6)


def test_rho_for_ess_within_classes() -> None:
    logs, groups = spectra(7, n=60), np.arange(60) % 4
    logs[:, 0] += 5.0 * groups  # classes of very different volume: their shares must not move
    rho = rho_for_ess(logs, 0.3, sign=-1, groups=groups)
    w = polarity.grouped(logs, rho, members=polarity.partition(groups))
    assert ess(w) == pytest.approx(0.3, rel=1e-6)
    assert abs(rho) > 2 * abs(rho_for_ess(logs, 0.3, sign=-1))


def test_rho_for_ess_where_many_are_dead() -> None:
    logs = spectra(8)
    logs[:20, 4] = -np.inf
    assert rho_for_ess(logs, 0.6) == 0.0  # any ρ ≠ 0 leaves at most half
    assert rho_for_ess(logs, 0.3) < 0


# ── drawing ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("scheme", ["multinomial", "systematic"])
def test_draws_are_in_proportion(scheme: str) -> None:
    log_w = log_weights(spectra(9, n=12), 0.5)
    counts = np.zeros(12)
    for seed in range(200):
        counts += np.bincount(resample(log_w, 50, scheme, np.random.default_rng(seed)), minlength=12)  # type: ignore[arg-type]
    expected = 200 * 50 * np.exp(log_w)
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert statistic < stats.chi2.ppf(0.999, 11)
    assert ((counts - 200 * 50 / 12) ** 2 / (200 * 50 / 12)).sum() > stats.chi2.ppf(0.999, 11)  # it has the power


@given(rows, polarities, st.integers(1, 100), st.integers(0, 2**31))
def test_systematic_counts_are_floor_or_ceiling(logs: np.ndarray, rho: float, n: int, seed: int) -> None:
    log_w = log_weights(logs, rho)
    result = resample(log_w, n, "systematic", np.random.default_rng(seed))
    counts, exact = np.bincount(result, minlength=len(log_w)), n * np.exp(log_w)
    assert (np.diff(result) >= 0).all()
    assert (counts >= np.floor(exact - 1e-9)).all()
    assert (counts <= np.ceil(exact + 1e-9)).all()


def test_systematic_loses_no_class_where_classes_stand_in_turn() -> None:
    classes = np.arange(1000) % 10
    drawn = polarity.resample(np.zeros(1000), 500, "systematic", np.random.default_rng(0))
    assert np.bincount(classes[drawn], minlength=10).min() > 25


@given(rows, st.floats(0.1, 3), st.integers(0, 2**31), st.data())
def test_without_replacement_nothing_comes_twice(logs: np.ndarray, rho: float, seed: int, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, len(logs)))
    result = resample(log_weights(logs, rho), n, "without", np.random.default_rng(seed))
    assert len(set(result.tolist())) == n


def test_without_replacement_has_the_probabilities_of_successive_draws() -> None:
    """Every ordered pair of 4 by enumeration: w_i · w_j / (1 − w_i)."""
    w = np.array([0.5, 0.3, 0.15, 0.05])
    pairs = list(itertools.permutations(range(4), 2))
    expected = np.array([w[i] * w[j] / (1 - w[i]) for i, j in pairs])
    rng = np.random.default_rng(0)
    drawn = [tuple(resample(np.log(w), 2, "without", rng).tolist()) for _ in range(20_000)]
    counts = np.array([drawn.count(pair) for pair in pairs])
    assert stats.chisquare(counts, expected * len(drawn)).pvalue > 1e-3


@pytest.mark.parametrize("scheme", ["multinomial", "systematic", "without"])
def test_weight_zero_is_never_drawn(scheme: str) -> None:
    log_w = np.array([-np.inf, 0.0, -np.inf, -1.0, -np.inf])
    for seed in range(50):
        assert set(resample(log_w, 2, scheme, np.random.default_rng(seed)).tolist()) <= {1, 3}  # type: ignore[arg-type]


class _Edge(np.random.Generator):
    """A generator whose uniform numbers are the largest below 1."""

    def random(self, *args: object, **_: object) -> np.ndarray:  # type: ignore[override]
        return np.full(args[0] if args else (), np.nextafter(1.0, 0.0))


def test_the_last_uniform_number_draws_the_last_weight() -> None:
    log_w = np.concatenate([np.log(np.full(10, 0.1)), [-np.inf]])
    rng = _Edge(np.random.PCG64(0))
    assert resample(log_w, 3, "multinomial", rng).tolist() == [9, 9, 9]
    assert resample(log_w, 1, "systematic", rng)[0] < 10  # in a random order; the last has no weight


# ── bad input ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: log_weights(x, math.nan), "rho: expected a finite number"),
        (lambda x: log_weights(x, "high"), "rho: expected a finite number"),
        (lambda x: log_weights(x, 1.0, 6), "k: expected a whole number from 1 to 5.*got 6"),
        (lambda x: log_weights(x, 1.0, 0), "k: expected"),
        (lambda x: log_weights(x[0], 1.0), "log_sigma: expected"),
        (lambda x: log_weights(np.where(x > 0, np.nan, x), 1.0), r"log_sigma: row \d+ contains NaN"),
        (lambda x: log_weights(x, 1.0, log_density=np.zeros(3)), "log_density: expected"),
        (lambda x: log_weights(x, 1.0, log_density=np.full(40, np.nan)), "log_density contains NaN"),
        (lambda x: log_weights(x, 1.0, log_density=np.full(40, -np.inf)), "no latent has any weight"),
        (lambda x: rho_for_ess(x, 0.0), "fraction: expected a share"),
        (lambda x: rho_for_ess(x, 1.5), "fraction: expected a share"),
        (lambda x: rho_for_ess(x, 0.5, sign=0), "sign: expected"),
        (
            lambda x: rho_for_ess(x, 0.05, groups=np.arange(40) % 4),
            "each of 4 classes of 40 latents keeps one",
        ),
        (lambda x: rho_for_ess(np.zeros((5, 2)), 0.5), "the log-volumes are the same"),
        (lambda x: log_weights(np.where(np.arange(5) > 2, -np.inf, x), -1.0), r"all 40 latents are dead.*use k ≤ 3"),
        (lambda x: resample(x[:, 0], 0, "multinomial", np.random.default_rng(0)), "n: expected"),
        (lambda x: resample(x[:, 0], 3, "sorted", np.random.default_rng(0)), "scheme: expected multinomial"),
        (lambda x: resample(np.full(3, -np.inf), 3, "multinomial", np.random.default_rng(0)), "log_w: expected"),
    ],
)
def test_bad_input(call, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(lw.InputError, match=words):
        call(spectra(0))
