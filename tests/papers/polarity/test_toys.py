"""The toys: their exact volumes against autograd, their densities against what polarity sampling draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from likewise.distributions import harvest, polarity
from likewise.errors import InputError, ShapeError
from likewise.papers.polarity import toys

TOYS = {
    "stairs": toys.stairs(),
    "moons": toys.mosaic("moons"),
    "rings": toys.mosaic("rings"),
    "grid": toys.mosaic("grid"),
    "bump": toys.bump(),
    "linear": toys.linear(),
}


def latents(toy: toys.Toy, n: int, seed: int = 0) -> np.ndarray:
    return toy.latent.sample(n, np.random.default_rng(seed)).astype(np.float64)


def autograd_volume(toy: toys.Toy, z: np.ndarray) -> np.ndarray:
    """Σ log σ of one row at a time, from the Jacobian that autograd gives."""
    found = []
    for row in torch.from_numpy(z):
        J = torch.autograd.functional.jacobian(lambda r: toy(r[None])[0], row)
        found.append(float(torch.linalg.svdvals(J).log().sum()))
    return np.array(found)


@pytest.mark.parametrize("name", list(TOYS))
def test_the_volume_is_that_of_the_jacobian(name: str) -> None:
    toy = TOYS[name]
    z = latents(toy, 60)
    np.testing.assert_allclose(toy.log_volume(z), autograd_volume(toy, z), atol=1e-9)


def test_stairs_by_hand() -> None:
    toy = toys.stairs((1.0, 3.0))
    u = torch.tensor([[0.0], [0.25], [0.5], [0.75], [1.0]], dtype=torch.float64)
    np.testing.assert_allclose(toy(u)[:, 0].numpy(), [0, 0.25, 0.5, 1.25, 2.0])
    np.testing.assert_allclose(toy.log_volume(u[[1, 3]].numpy()), np.log([1.0, 3.0]))


def test_a_mosaic_by_hand() -> None:
    """Left half three times as heavy; in it the upper cell has all, on the right both have the same."""
    toy = toys.mosaic([[0.0, 3.0], [0.5, 0.5]])
    u = torch.tensor([[0.375, 0.5], [0.875, 0.25], [0.875, 0.75]], dtype=torch.float64)
    np.testing.assert_allclose(toy(u).numpy(), [[0.25, 0.75], [0.75, 0.25], [0.75, 0.75]])
    np.testing.assert_allclose(toy.log_volume(u.numpy()), -np.log([3.0, 0.5, 0.5]))
    np.testing.assert_allclose(toy.polarised(1.0), [[0.0, 4 / 3], [4 / 3, 4 / 3]])


@pytest.mark.parametrize("name", ["moons", "rings", "grid"])
def test_a_mosaic_has_the_density_of_its_table(name: str) -> None:
    """χ² over 8 × 8 blocks of cells; the same test refuses another mosaic's table."""
    toy = TOYS[name]
    x = toy(torch.from_numpy(latents(toy, 20000))).numpy()
    assert chi2(x, toy.table) > 1e-3
    other = TOYS["rings" if name != "rings" else "grid"]
    assert chi2(x, other.table) < 1e-12


@pytest.mark.parametrize("rho", [-0.5, 0.0, 0.5, 1.0])
def test_polarity_turns_a_mosaics_density_into_its_power(rho: float) -> None:
    """Drawn ∝ exp(ρ v): p^(1−ρ), even at ρ = 1 [Polarity Eq. 7]; ρ with the wrong sign is refused."""
    toy = TOYS["grid"]
    u = latents(toy, 40000, seed=1)
    log_w = polarity.log_weights(toy.log_volume(u)[:, None], rho)
    x = toy(torch.from_numpy(u)).numpy()
    assert chi2(x, toy.polarised(rho), log_w) > 1e-3
    if rho != 0:
        assert chi2(x, toy.polarised(-rho), log_w) < 1e-12


def chi2(x: np.ndarray, table: np.ndarray, log_w: np.ndarray | None = None) -> float:
    """The p-value of the counts in 8 × 8 blocks under a table's density; weighted counts by their own variances."""
    w = np.full(len(x), 1 / len(x)) if log_w is None else np.exp(log_w)
    block = np.minimum((x * 8).astype(int), 7) @ [8, 1]
    mass = np.bincount(block, w, 64)
    expected = table.reshape(8, table.shape[0] // 8, 8, -1).mean((1, 3)).ravel() / 64
    squares = np.array([(w**2 * ((block == b) - expected[b]) ** 2).sum() for b in range(64)])
    statistic = (((mass - expected) ** 2 / squares) * (1 - expected)).sum()
    return float(stats.chi2.sf(statistic, 63))


def test_the_flanks_of_the_bump_get_their_due() -> None:
    """At ρ = 1 each of two parts of the sheet has probability ∝ its area, by the surface integral."""
    toy = TOYS["bump"]
    z = latents(toy, 40000, seed=2)
    w = np.exp(polarity.log_weights(toy.log_volume(z)[:, None], 1.0))
    inner = np.hypot(*z.T) < 1
    side = (np.arange(800) + 0.5) / 800 * 4 - 2
    cells = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
    area = np.exp(toy.log_volume(cells))
    share = area[np.hypot(*cells.T) < 1].sum() / area.sum()
    assert w[inner].sum() == pytest.approx(share, abs=0.015)
    assert share > np.pi / 16 + 0.1  # not so without polarity


@given(st.lists(st.floats(0.05, 20), min_size=1, max_size=8), st.floats(-2, 2))
def test_stairs_weigh_steps_by_their_slopes(slopes: list[float], rho: float) -> None:
    toy = toys.stairs(slopes)
    middles = (np.arange(len(slopes))[:, None] + 0.5) / len(slopes)
    w = np.exp(polarity.log_weights(toy.log_volume(middles)[:, None], rho))
    expected = np.array(slopes) ** rho
    np.testing.assert_allclose(w, expected / expected.sum(), rtol=1e-9)


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: toys.stairs((1.0, 0.0)), InputError, "slopes: expected numbers > 0"),
        (lambda: toys.mosaic("stars"), InputError, "density: expected moons, rings, grid or a table, got 'stars'"),
        (lambda: toys.mosaic([1.0, 2.0]), ShapeError, "density: expected a table"),
        (lambda: toys.mosaic([[1.0, -1.0]]), InputError, "density: expected finite numbers ≥ 0"),
        (lambda: toys.bump(width=0.0), InputError, "width: expected a number > 0, got 0"),
        (lambda: toys.linear([[1.0, 2.0]]), ShapeError, r"matrix: expected \(D, K\) with D ≥ K"),
        (lambda: toys.bump().polarised(1.0), InputError, "only a mosaic's do"),
        (lambda: toys.bump().log_volume(np.zeros((3, 1))), ShapeError, r"z: expected latents \(n, 2\)"),
    ],
)
def test_wrong_arguments_are_named(make, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make()


def test_erratum_5_only_anti_modes_are_less_likely_than_the_model() -> None:
    """The mean log-density of the model under polarity ρ, from the table: Σ p^(1−ρ) log p / Σ p^(1−ρ)."""
    toy = toys.mosaic("moons", cells=16)
    bank = harvest(toy.generator(), 4000, progress=False)
    p = toy.table[toy.table > 0]
    drawn = {}
    for rho in (-0.5, 0.0, 0.5):
        weights = p ** (1 - rho)
        drawn[rho] = -toy.log_volume(bank.sample(4000, rho, seed=1)).mean()
        # log p(G(z)) = log p_z(z) − v(z), and p_z = 1
        assert drawn[rho] == pytest.approx((weights * np.log(p)).sum() / weights.sum(), abs=0.1), rho
    assert drawn[-0.5] > drawn[0.0] > drawn[0.5]
