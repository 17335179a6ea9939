"""Sweeps: the table agrees with its parts, the frontier is unbeaten, modes are the ends of the volumes."""

import json

import numpy as np
import pytest
import torch

import likewise as lw
from likewise.distributions import Generator, Normal, harvest, metrics
from likewise.distributions.sweep import MEASURES, Cell, Sweep, modes, sweep

RHOS = (-0.5, 0.0, 0.5)


def bent(z):
    """A curved sheet in R^3: volumes differ from place to place."""
    return torch.stack([z[:, 0], z[:, 1], torch.exp(z[:, 0])], 1)


def pictures(z):
    """4 × 4 pictures in [0, 1] of two latents."""
    return torch.sigmoid(z[:, :1, None, None] * torch.linspace(-1, 2, 16).view(1, 1, 4, 4) + z[:, 1:, None, None])


@pytest.fixture(scope="module")
def world():
    generator = Generator(bent, Normal(2), name="bent")
    return generator, harvest(generator, 400, progress=False)


@pytest.fixture(scope="module")
def real(world):
    return world[0].draw(150, seed=9)


@pytest.fixture(scope="module")
def swept(world, real):
    return sweep(*world, RHOS, real=real, psis=(1.0, 0.5), n=150)


def test_every_setting_has_a_cell(swept):
    assert [(c.rho, c.psi) for c in swept] == [(r, p) for p in (1.0, 0.5) for r in RHOS]
    assert swept.at(0.5, 0.5) is swept[5]
    with pytest.raises(lw.InputError, match="was not swept"):
        swept.at(0.3)


def test_a_cell_is_what_its_parts_say(world, real, swept):
    generator, bank = world
    cell, found = swept.at(0.5, 0.5), []
    for seed in range(3):
        drawn = bank.draw(150, 0.5, seed=seed)
        found.append(metrics.measures(real.numpy(), generator.truncated(0.5)(drawn.latents).numpy(), k=3))
    for name in MEASURES:
        values = [float(one[name]) for one in found]
        assert getattr(cell, name) == pytest.approx(np.mean(values)), name
        assert cell.errors[name] == pytest.approx(np.std(values, ddof=1) / np.sqrt(3)), name
    assert (cell.ess, cell.largest) == (bank.ess(0.5), bank.largest(0.5))
    assert swept.at(-0.5).ess < swept.at(0.0).ess == 1  # the model itself has every latent
    assert (cell.n, cell.n_real) == (150, 150)


def test_frontier_and_best():
    def cell(rho, precision, recall, frechet):
        return Cell(rho, 1.0, frechet, precision, recall, 1.0, 1.0, 1.0, 0.1, 9, 9, 1.0, {})

    cells = (cell(-1, 0.9, 0.1, 3.0), cell(0, 0.5, 0.5, 2.0), cell(0.5, 0.4, 0.4, 1.0), cell(1, 0.2, 0.7, 4.0))
    made = Sweep(cells, "net", "pixel", 2, 3, 3, 0, {})
    assert [c.rho for c in made.frontier()] == [-1, 0, 1]
    assert made.best().rho == 0.5
    assert made.best("recall").rho == 1
    with pytest.raises(lw.InputError, match="measure"):
        made.best("beauty")
    with pytest.raises(lw.InputError, match="no images"):
        made.grid()


def test_table_and_json_say_the_same(swept, tmp_path):
    lines = swept.table().splitlines()
    assert len(lines) == 2 + len(swept)
    kept = json.loads(swept.to_json(tmp_path / "sweep.json"))
    assert kept == json.loads((tmp_path / "sweep.json").read_text())
    assert [c["frechet"] for c in kept["cells"]] == [c.frechet for c in swept]
    assert "\n" not in repr(swept)


def test_pictures_make_a_grid_and_a_plot(tmp_path):
    generator = Generator(pictures, Normal(2), name="pictures")
    bank = harvest(generator, 60, progress=False)
    real = generator.draw(30, seed=5)
    result = sweep(generator, bank, RHOS, real=real, features=lambda x: x.flatten(1), n=30)
    result.plot(tmp_path / "frontier.png")
    result.grid(tmp_path / "grid.png")
    assert len(result.images) == len(RHOS)
    assert result.images[0.0, 1.0][0].dtype == np.uint8
    assert (tmp_path / "grid.png").stat().st_size > 1000


def test_modes_are_the_ends_of_the_volumes(world):
    generator, bank = world
    least, greatest = modes(generator, bank, 5)
    volume = bank.log_volume()
    np.testing.assert_array_equal(np.sort(volume)[:5], volume[least])
    np.testing.assert_array_equal(np.sort(volume)[::-1][:5], volume[greatest])
    # here the volume is √(1 + e^{2x}): modes are where x is least
    assert bank.latents[least, 0].max() < bank.latents[greatest, 0].min()


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"rhos": ()}, "rhos"),
        ({"rhos": (0.0, 0.0)}, "rhos"),
        ({"rhos": ("much",)}, "rhos"),
        ({"rhos": (np.nan,)}, "rhos"),
        ({"psis": ()}, "psis"),
        ({"n": 2}, "^n:"),
        ({"k": 3}, "k"),
        ({"generator": Generator(lambda z: 2 * bent(z), Normal(2))}, "another generator"),
    ],
)
def test_wrong_arguments_are_named(world, real, change, name):
    with pytest.raises(lw.InputError, match=name):
        sweep(**{"generator": world[0], "bank": world[1], "rhos": RHOS, "real": real, **change})
    with pytest.raises(lw.InputError, match=r"n: .* 400"):
        modes(*world, 401)


def test_next_to_zero_nothing_jumps(world, real):
    """ρ = 1e-9 has the weights of ρ = 0, and so its figures: both are drawn alike."""
    table = sweep(*world, (0.0, 1e-9), real=real, n=150)
    for name in MEASURES:
        assert abs(getattr(table[0], name) - getattr(table[1], name)) <= 0.02 * abs(getattr(table[0], name)), name
    assert table[0].ess == pytest.approx(table[1].ess)


def test_volumes_are_those_of_the_bank_at_its_psi(world, real):
    generator, bank = world
    own = harvest(generator.truncated(0.5), 300, seed=1, progress=False)
    assert own.about.psi == 0.5
    table = sweep(generator, [bank, own], (-0.5,), real=real, psis=(1.0, 0.5, 0.3), n=150)
    assert [c.volumes for c in table] == [1.0, 0.5, 1.0]
    assert [c.ess for c in table] == [bank.ess(-0.5), own.ess(-0.5), bank.ess(-0.5)]
    assert "| volumes at ψ |" in table.table()
    assert "±" in table.table()
    with pytest.raises(lw.InputError, match="bank: expected banks, each at another ψ, got 2 at 1"):
        sweep(generator, [bank, bank], (0.0,), real=real)
    with pytest.raises(lw.InputError, match="harvested from another generator"):
        sweep(Generator(lambda z: z, Normal(2)), own, (0.0,), real=real)
    with pytest.raises(lw.InputError, match="draws: expected a whole number ≥ 2"):
        sweep(generator, bank, (0.0,), real=real, draws=1)
