"""Online samplers: what they report, what they cost, what they refuse. That they are right is in test_exact."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from scipy import stats

import likewise as lw
from likewise.distributions import Bank, Generator, Normal, OnlineSampler, TruncatedNormal, Uniform, harvest, online
from likewise.errors import BudgetError, DegeneracyWarning
from worlds.generators import Classes, Folded, HalfDead, Linear, Stairs, stairs

ALGORITHMS = ("mh", "paper")


@functools.cache
def bank(n: int = 200) -> Bank:
    return harvest(stairs(), n, seed=1, shard_size=n)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_draw_and_its_report(algorithm: str) -> None:
    sampler = OnlineSampler(stairs(), bank(), 0.5, algorithm=algorithm)  # type: ignore[arg-type]
    z, info = sampler.draw(20, seed=3)
    assert z.shape == (20, 1)
    assert z.dtype == np.float32
    assert np.isfinite(Uniform(1).log_density(z)).all()
    assert 0 < info["acceptance"] <= 1
    assert info["jacobians_per_sample"] > 0
    assert info["ess"] == pytest.approx(bank().ess(0.5))
    assert info["largest"] == pytest.approx(bank().largest(0.5))
    assert (info["algorithm"], info["rho"], info["k"]) == (algorithm, 0.5, 1)
    again, _ = sampler.draw(20, seed=3)
    np.testing.assert_array_equal(z, again)
    assert not np.array_equal(z, sampler.draw(20, seed=4)[0])
    assert np.isin(z, bank().latents).mean() < 0.2  # fresh, unlike the bank's own samples


def test_jacobians_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count is that of the latents whose spectrum was in fact taken."""
    seen: list[int] = []
    plain = online.measure

    def counted(generator: Any, z: Any, *rest: Any) -> Any:
        seen.append(len(z))
        return plain(generator, z, *rest)

    monkeypatch.setattr(online, "measure", counted)
    for algorithm in ALGORITHMS:
        seen.clear()
        _, info = OnlineSampler(stairs(), bank(), 0.5, algorithm=algorithm).draw(10)  # type: ignore[arg-type]
        assert sum(seen) == pytest.approx(10 * info["jacobians_per_sample"])
    seen.clear()
    OnlineSampler(stairs(), bank(), 0.5, steps=7).draw(10)
    assert sum(seen) == 70  # a spectrum a move, none for the start


def test_a_budget_is_kept() -> None:
    generator = Generator(Folded(), Normal(2))
    b = harvest(generator, 300)
    with pytest.raises(BudgetError, match=r"paper: \d+ of \d+ proposals were accepted, and 3 spectra a sample are"):
        OnlineSampler(generator, b, 1.0, algorithm="paper", budget=3).draw(50)


# ── errata ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("n", [10, 50])
def test_erratum_algorithm_2_accepts_one_draw_in_n_plus_one(n: int) -> None:
    """Read literally, a draw competes with the sum over all N: for equal volumes it wins once in N + 1 times."""
    generator = Generator(Linear(), Normal(4))
    _, info = OnlineSampler(generator, harvest(generator, n), -0.7, algorithm="paper").draw(200)
    proposals = round(info["jacobians_per_sample"] * 200)
    accepted = info["acceptance"] * proposals
    assert stats.binomtest(round(accepted), proposals, 1 / (n + 1)).pvalue > 1e-3
    assert info["reference"] == n


def test_erratum_algorithm_2_has_the_exponent_rho() -> None:
    """Pieces of slope 1 and 4 at ρ = −1: a draw of the first is accepted four times, not a quarter, as often."""
    generator = Generator(Stairs((1.0, 4.0)), Uniform(1))
    z, _ = OnlineSampler(generator, harvest(generator, 100), -1.0, algorithm="paper").draw(600)
    shallow = int((z < 0).sum())
    assert stats.binomtest(shallow, 600, 0.8).pvalue > 1e-3  # (1, 1/4) normalised
    assert stats.binomtest(shallow, 600, 0.2).pvalue < 1e-6  # the exponent 1


# ── chains ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_chains_that_begin_at_next_to_nothing_are_told_once() -> None:
    generator = Generator(Folded(), Normal(2))
    b = harvest(generator, 600)
    sampler = OnlineSampler(generator, b, 60.0, steps=1)
    with pytest.warns(DegeneracyWarning, match=r"at ρ = 60, k = 2 an effective 0\.\d+% of the bank") as caught:
        [sampler.draw(2, seed=seed) for seed in range(2)]
    assert len(caught) == 1


LATENTS = (Normal(3), Uniform(3, -0.5, 2.0), TruncatedNormal(3, 1.5), TruncatedNormal(3, 2.0, 0.5))


@pytest.mark.parametrize("latent", LATENTS, ids=lambda x: x.name)
@pytest.mark.parametrize("size", [*online.STEPS, online.FRESH])
def test_moves_leave_the_latents_density(latent: Any, size: float) -> None:
    """Ten moves without a tilt, from latents of p_z: each coordinate is still p_z's."""
    rng = np.random.default_rng(5)
    z, tilt = latent.sample(3000, rng), np.zeros(3000)
    start = z.copy()

    def inside(z: Any) -> Any:
        return np.where(np.isfinite(latent.log_density(z)), 0.0, -np.inf)

    for _ in range(10):
        online.step(z, tilt, size, inside, latent, rng)
    assert (z != start).any(1).mean() > 0.95
    fresh = latent.sample(3000, np.random.default_rng(6))
    for j in range(3):
        assert stats.ks_2samp(z[:, j], fresh[:, j]).pvalue > 1e-4
    assert abs(np.corrcoef(z.T) - np.eye(3)).max() < 0.1


def test_a_latent_of_ones_own_gets_fresh_moves_only() -> None:
    class Two:
        dim, name = 1, "two points"

        def support(self) -> None:
            return None

        def sample(self, n: int, rng: np.random.Generator) -> Any:
            return rng.choice(np.array([-0.9, 0.9], dtype=np.float32), size=(n, 1))

        def log_density(self, z: Any) -> Any:
            return np.where(np.isin(z[:, 0], np.array([-0.9, 0.9], dtype=np.float32)), -np.log(2), -np.inf)

        def to_dict(self) -> dict[str, Any]:
            return {"kind": "two"}

    generator = Generator(Stairs(), Two())
    z, info = OnlineSampler(generator, harvest(generator, 50), 1.0).draw(100)
    assert set(np.unique(z).tolist()) <= {np.float32(-0.9), np.float32(0.9)}
    assert stats.binomtest(int((z < 0).sum()), 100, 0.2 / 0.7).pvalue > 1e-3
    assert info["jacobians_per_sample"] == 12


# ── classes, dead latents, ρ = 0 ──────────────────────────────────────────────────────────────────────────────────


def test_classes_take_turns_and_keep_to_their_own_map() -> None:
    generator = Generator(Classes(), Uniform(1), labels=3)
    b = harvest(generator, 300, seed=4)
    z, info = OnlineSampler(generator, b, 1.0, steps=2).draw(31)
    assert np.bincount(info["labels"]).tolist() == [11, 10, 10]
    assert len(z) == 31
    alone, told = OnlineSampler(generator, b, 1.0, label=1).draw(300)
    assert set(told["labels"].tolist()) == {1}
    slopes = np.array(generator.net.stairs[1].slopes)
    steepest = int(slopes.argmax())
    inside = (alone[:, 0] > -1 + 0.4 * steepest) & (alone[:, 0] < -0.6 + 0.4 * steepest)
    assert inside.mean() == pytest.approx(slopes.max() / slopes.sum(), abs=0.12)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_dead_latents_are_never_drawn(algorithm: str) -> None:
    generator = Generator(HalfDead(), Normal(2))
    b = harvest(generator, 60)
    z, _ = OnlineSampler(generator, b, -1.0, algorithm=algorithm).draw(80)  # type: ignore[arg-type]
    assert (z[:, 1] > 0).all()
    one, _ = OnlineSampler(generator, b, -1.0, 1, algorithm=algorithm).draw(80)  # type: ignore[arg-type]
    assert (one[:, 1] < 0).any()


def test_zero_is_the_model() -> None:
    z, info = OnlineSampler(stairs(), bank(), 0.0).draw(1500)
    assert stats.kstest(z[:, 0], stats.uniform(-1, 2).cdf).pvalue > 1e-3
    assert info["acceptance"] == 1.0


# ── bad input ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"algorithm": "gibbs"}, "algorithm: expected mh, paper, got 'gibbs'"),
        ({"rho": np.nan}, "rho: expected a finite number"),
        ({"k": 2}, "k: expected a whole number from 1 to 1"),
        ({"steps": 0}, "steps: expected"),
        ({"budget": -1}, "budget: expected"),
        ({"label": 0}, "label: this bank has no classes"),
        ({"generator": Generator(Stairs((1.0, 2.0)), Uniform(1))}, "was harvested from another generator"),
        ({"bank": Bank(np.zeros((3, 1)), np.zeros((3, 1)))}, "nothing says which generator"),
    ],
)
def test_bad_arguments(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(lw.InputError, match=words):
        OnlineSampler(**{"generator": stairs(), "bank": bank(), "rho": 1.0, **changed})
