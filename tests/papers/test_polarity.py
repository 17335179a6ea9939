"""Polarity Sampling: measures by hand and in closed form, maps of known density, and its tables in seconds."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from likewise.distributions import Generator, Normal, Uniform, fashion_features, harvest, polarity, pretrained
from likewise.distributions.data import decoder
from likewise.errors import InputError
from likewise.papers.polarity import (
    LONG,
    STEP,
    TABLES,
    Likelihood,
    MarchenkoPastur,
    Mosaic,
    Options,
    lerp,
    marchenko_pastur,
    path_length,
    slerp,
)

# ------------------------------------------------------------------------------------------------------- path length


def test_slerp_by_hand() -> None:
    a, b = np.array([[2.0, 0.0]]), np.array([[0.0, 4.0]])
    np.testing.assert_allclose(slerp(a, b, 0.5), [[3 / math.sqrt(2), 3 / math.sqrt(2)]])
    np.testing.assert_allclose(slerp(a, b, [0.0]), a)
    np.testing.assert_allclose(slerp(a, b, [1.0]), b, atol=1e-12)
    np.testing.assert_allclose(slerp(a, a * (1 + 1e-12), 0.3), a)
    np.testing.assert_allclose(lerp(a, b, 0.25), [[1.5, 1.0]])
    for bad, words in ((-a, "opposite directions"), (0 * a, "is 0")):
        with pytest.raises(InputError, match=words):
            slerp(a, bad, 0.5)


@given(st.integers(2, 6), st.integers(0, 1000), st.floats(0, 1))
def test_slerp_keeps_length_and_walks_at_constant_speed(d: int, seed: int, t: float) -> None:
    a, b = np.random.default_rng(seed).normal(size=(2, 1, d))
    a, b = a / np.linalg.norm(a), b / np.linalg.norm(b)
    p = slerp(a, b, t)
    assert np.linalg.norm(p) == pytest.approx(1, abs=1e-9)
    whole = math.acos(float(np.clip((a * b).sum(), -1, 1)))
    assert math.acos(float(np.clip((a * p).sum(), -1, 1))) == pytest.approx(t * whole, abs=1e-6)


def same(x: torch.Tensor) -> torch.Tensor:
    return x


@pytest.mark.parametrize("step", [STEP, LONG])
def test_a_linear_generator_on_straight_paths_has_the_length_of_its_ends(step: float) -> None:
    A = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    generator = Generator(lambda z: z.double() @ A.T, Uniform(4))
    z = generator.latent.sample(40, np.random.default_rng(0))
    length = path_length(generator, z, same, step=step)
    ends = (z[:20] - z[20:]).astype(np.float64) @ A.numpy().T
    assert length == pytest.approx(float((ends**2).sum(1).mean()), rel=2e-2 if step == STEP else 1e-4)
    assert (length.n_fake, length.net) == (20, "function")


def test_a_great_circle_of_the_identity_has_the_squared_angle_times_length() -> None:
    z = np.array([[3.0, 0.0], [0.0, 3.0]])
    generator = Generator(same, Normal(2))
    assert path_length(generator, z, same, step=1e-2) == pytest.approx((3 * math.pi / 2) ** 2, rel=1e-3)


def test_a_path_keeps_its_class() -> None:
    generator = Generator(lambda z, y: z + 100.0 * y[:, None], Normal(2), labels=5)
    z = generator.latent.sample(60, np.random.default_rng(1))
    assert path_length(generator, z, same, step=LONG) < 100


@pytest.mark.parametrize(
    ("z", "step", "name"),
    [
        (np.ones((3, 2)), STEP, "latents"),
        (np.full((2, 2), np.nan), STEP, "latents"),
        (np.ones((2, 2)), 0.0, "step"),
        (np.ones((2, 2)), 1.0, "step"),
    ],
)
def test_wrong_arguments_are_named(z: np.ndarray, step: float, name: str) -> None:
    with pytest.raises(InputError, match=name):
        path_length(Generator(same, Normal(2)), z, same, step=step)


# -------------------------------------------------------------------------------------------------------- likelihood


class Wide(torch.nn.Module):
    """q(z | x) = N(0, e^0.5): anything that covers the posterior will do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tensor([[0.0, 0.5]]).expand(len(x), 2)


def test_the_likelihood_against_numerical_integration() -> None:
    """A VAE of one latent: log ∫ p(x | z) p(z) dz by quadrature; the bound lies below and, with many draws, near."""
    density = Likelihood(samples=1500)
    torch.manual_seed(0)
    density.decoder, density.encoder = decoder(1, 4).eval(), Wide()  # type: ignore[assignment]
    density.log_spread = 0.0
    x = torch.rand(2, 1, 28, 28)
    z = torch.linspace(-8, 8, 1001)[:, None]
    with torch.no_grad():
        error = (x[:, None].double() - density.decoder(z)[None].double()).flatten(2).square().sum(2)
    log_joint = -0.5 * error - 392 * math.log(2 * math.pi) - 0.5 * z[:, 0].double() ** 2 - 0.5 * math.log(2 * math.pi)
    exact = torch.logsumexp(log_joint, 1) + math.log(16 / 1000)
    np.testing.assert_allclose(density(x), exact.numpy(), atol=0.05)


def test_more_draws_tighten_the_bound_and_clothes_are_likelier_than_noise() -> None:
    x = pretrained("fashion-vae").draw(40, seed=3)
    few, many = (Likelihood(samples=s)(x) for s in (1, 32))
    assert few.mean() < many.mean()
    noise = torch.rand(20, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    assert many.min() > Likelihood(samples=4)(noise).max()
    with pytest.raises(InputError, match="samples: expected a whole number ≥ 1, got 0"):
        Likelihood(samples=0)


# ---------------------------------------------------------------------------------------------------- Marchenko–Pastur


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.99, 1.0, 3.0])
def test_the_law_has_mass_one_its_mean_and_its_variance(ratio: float) -> None:
    law = MarchenkoPastur(1.7, ratio)
    low, high = law.support
    x = np.linspace(0, 1, 400_001)[1:-1] ** 4 * (high - low) + low
    mass, mean, square = (np.trapezoid(law.density(x) * x**p, x) for p in (0, 1, 2))
    assert mass == pytest.approx(min(1.0, 1 / ratio), abs=2e-3)
    assert mean == pytest.approx(1.7, rel=1e-3)
    assert square - mean**2 == pytest.approx(1.7**2 * ratio, rel=5e-3)
    assert law.cdf(high) == pytest.approx(1.0, abs=1e-3)
    assert law.cdf(-0.1) == 0


def test_a_random_matrix_follows_the_law_and_a_power_law_does_not() -> None:
    r = np.random.default_rng(0)
    law, distance = marchenko_pastur(np.linalg.svd(r.normal(size=(6, 400, 100)) * np.sqrt(1.5 / 400), compute_uv=False))
    assert (law.scale, law.ratio) == (pytest.approx(1.5, rel=0.02), pytest.approx(0.25, rel=0.05))
    assert distance < 0.02
    assert marchenko_pastur(np.arange(1, 101) ** -1.5)[1] > 0.2
    dead = np.zeros((5, 200))  # directions that move nothing are the law's mass at 0
    dead[:, :100] = np.linalg.svd(r.normal(size=(5, 100, 200)) / 10, compute_uv=False)
    law, distance = marchenko_pastur(dead)
    assert law.ratio == pytest.approx(2.0, rel=0.05)
    assert distance < 0.03


@pytest.mark.parametrize("sigma", [[1.0], [1.0, 1.0], [1.0, -1.0], [1.0, np.nan]])
def test_what_cannot_be_fitted_is_refused(sigma: list[float]) -> None:
    with pytest.raises(InputError, match="sigma"):
        marchenko_pastur(sigma)


# -------------------------------------------------------------------------------------------- densities that are known


MOSAICS = {name: Mosaic(name) for name in ("moons", "rings", "grid")}


def latents(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(size=(n, 2))


@pytest.mark.parametrize("name", list(MOSAICS))
def test_the_volume_is_that_of_the_jacobian(name: str) -> None:
    mosaic, z = MOSAICS[name], latents(40)
    jacobians = [torch.autograd.functional.jacobian(lambda r: mosaic(r[None])[0], row) for row in torch.from_numpy(z)]
    exact = [float(torch.linalg.svdvals(J).log().sum()) for J in jacobians]
    np.testing.assert_allclose(mosaic.log_volume(z), exact, atol=1e-9)


def test_a_mosaic_by_hand() -> None:
    """Left half three times as heavy; in it the upper cell has all, on the right both have the same."""
    toy = Mosaic([[0.0, 3.0], [0.5, 0.5]])
    u = torch.tensor([[0.375, 0.5], [0.875, 0.25], [0.875, 0.75]], dtype=torch.float64)
    np.testing.assert_allclose(toy(u).numpy(), [[0.25, 0.75], [0.75, 0.25], [0.75, 0.75]])
    np.testing.assert_allclose(toy.log_volume(u.numpy()), -np.log([3.0, 0.5, 0.5]))
    np.testing.assert_allclose(toy.polarised(1.0), [[0.0, 4 / 3], [4 / 3, 4 / 3]])


@pytest.mark.parametrize("name", ["moons", "rings", "grid"])
def test_a_mosaic_has_the_density_of_its_table(name: str) -> None:
    """χ² over 8 × 8 blocks of cells; the same test refuses another mosaic's table."""
    toy = MOSAICS[name]
    x = toy(torch.from_numpy(latents(20000))).numpy()
    assert chi2(x, toy.table) > 1e-3
    other = MOSAICS["rings" if name != "rings" else "grid"]
    assert chi2(x, other.table) < 1e-12


@pytest.mark.parametrize("rho", [-0.5, 0.0, 0.5, 1.0])
def test_polarity_turns_a_mosaics_density_into_its_power(rho: float) -> None:
    """Drawn ∝ exp(ρ v): p^(1−ρ), even at ρ = 1 [Polarity Eq. 7]; ρ with the wrong sign is refused."""
    toy = MOSAICS["grid"]
    u = latents(40000, seed=1)
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


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Mosaic("stars"), "density: expected moons, rings, grid or a table, got 'stars'"),
        (lambda: Mosaic([1.0, 2.0]), "density: expected a table"),
        (lambda: Mosaic([[1.0, -1.0]]), "density: expected finite numbers ≥ 0"),
        (lambda: Mosaic().log_volume(np.zeros((3, 1))), r"u: expected latents \(n, 2\)"),
    ],
)
def test_wrong_densities_are_named(make, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()


def test_erratum_5_only_anti_modes_are_less_likely_than_the_model() -> None:
    """The mean log-density of the model under polarity ρ, from the table: Σ p^(1−ρ) log p / Σ p^(1−ρ)."""
    toy = Mosaic("moons", cells=16)
    bank = harvest(toy.generator(), 4000, progress=False)
    p = toy.table[toy.table > 0]
    drawn = {}
    for rho in (-0.5, 0.0, 0.5):
        weights = p ** (1 - rho)
        drawn[rho] = -toy.log_volume(bank.sample(4000, rho, seed=1)).mean()
        # log p(G(z)) = log p_z(z) − v(z), and p_z = 1
        assert drawn[rho] == pytest.approx((weights * np.log(p)).sum() / weights.sum(), abs=0.1), rho
    assert drawn[-0.5] > drawn[0.0] > drawn[0.5]


# ------------------------------------------------------------------------------------------------------------ tables


RUNS = {table.name: table.run for table in TABLES}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Features of images of another generator, as a file."""
    file = tmp_path_factory.mktemp("real") / "rows.npy"
    np.save(file, fashion_features()(pretrained("fashion-vae").draw(40, seed=7)).numpy())
    return file


@pytest.mark.filterwarnings("ignore::likewise.errors.SmallSampleWarning")
@pytest.mark.filterwarnings("ignore::likewise.errors.DegeneracyWarning")
@pytest.mark.parametrize(
    ("name", "rows", "column"),
    [
        ("tab3", 6, "frechet"),
        ("c3", 20, "recall"),
        pytest.param("c4", 7, "bits a pixel", marks=pytest.mark.slow),
        pytest.param("c5", 7, "step 0.3", marks=pytest.mark.slow),
        ("fig11", 12, "total variation"),
        ("fig13", 7, "distance to law"),
        pytest.param("precision-recall", 63, "precision", marks=pytest.mark.slow),
    ],
)
def test_a_table_has_its_rows_with_errors(name: str, rows: int, column: str, real: Path) -> None:
    generator = "fashion-vae" if name == "c4" else "fashion"
    record = RUNS[name](Options(generator=generator, real=str(real), n=16, banks=2))
    assert len(record.rows) == rows
    assert {column, f"{column} ±", "ess"} <= set(record.columns)
    assert all(0 < row["ess"] <= 1 for row in record.rows)
    plain = [row for row in record.rows if row["rho"] == 0]
    assert all(row["ess"] == 1 for row in plain)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(InputError, match="real: expected a folder"):
        RUNS["tab3"](Options(n=8, banks=2))
    with pytest.raises(InputError, match="only fashion-vae gives a likelihood"):
        RUNS["c4"](Options())
