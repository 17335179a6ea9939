"""`likewise distributions`: what comes in, what goes out, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import likewise as lw
from likewise.store.job import Job
from worlds import networks, snapshots
from worlds.command import Ran, Runner

MODULE = """
import torch
from likewise.distributions import Generator, Normal


def paint(z):
    ramp = torch.linspace(-1, 2, 64).view(1, 1, 8, 8)
    return torch.sigmoid(z[:, :1, None, None].exp() * ramp + z[:, 1:, None, None])


generator = Generator(paint, Normal(2), name="ramps")
classes = Generator(lambda z, y: paint(z) * (0.5 + 0.5 * y.view(-1, 1, 1, 1)), Normal(2), labels=2)


def flat(x):
    return x.flatten(1)


def broken():
    return Generator(lambda z: z * float("nan"), Normal(2))
"""


PREFIX = ("distributions",)


class Named:
    """Runs the commands with `mine:` standing for a module of generators in the folder."""

    def __init__(self, run: Runner, here: Path) -> None:
        self.run, self.name = run, f"painted_{here.parent.name.replace('-', '_')}"
        (here / f"{self.name}.py").write_text(MODULE)

    def __call__(self, *words: object) -> Ran:
        return self.run(*(str(w).replace("mine:", f"{self.name}:") for w in words))

    def good(self, *words: object) -> Ran:
        ran = self(*words)
        assert ran.code == 0, ran.err
        return ran


@pytest.fixture
def mine(run: Runner, here: Path, monkeypatch: pytest.MonkeyPatch) -> Named:
    monkeypatch.syspath_prepend(here)
    return Named(run, here)


@pytest.fixture
def bank(mine: Named) -> Path:
    mine.good("harvest", "mine:generator", "--n", 200, "--out", "bank")
    return Path("bank")


def test_harvest_writes_a_bank_that_opens(mine: Named):
    ran = mine.good("harvest", "mine:generator", "--n", 120, "--k", 2, "--out", "bank", "--json")
    assert (ran.json["n"], ran.json["k"], ran.json["name"]) == (120, 2, "ramps")
    assert len(lw.distributions.Bank.open("bank")) == 120


def test_harvest_of_a_snapshot_and_of_weights_that_do_not_say_all(mine: Named):
    Path("x.pkl").write_bytes(snapshots.whole(networks.stylegan2(4)))
    ran = mine.good("harvest", "x.pkl", "--n", 8, "--k", 2, "--noise", "none", "--out", "bank", "--json")
    assert (ran.json["name"], ran.json["labels"]) == ("x", 4)
    torch.save(networks.dcgan().state_dict(), "g.pth")
    words = ("harvest", "g.pth", "--n", 4, "--k", 2, "--json")
    mine(*words, "--out", "refused").refused("strides: the weights of a dcgan do not say strides, slope; give them")
    grid = ("--padding", "0,1,1,1,1", "--slope", 0)
    one = mine.good(*words, "--stride", "1,2,2,2,2", *grid, "--out", "one")
    two = mine.good(*words, "--set", "strides=[1,2,2,2,2]", *grid, "--out", "two")
    assert one.json["generator"] == two.json["generator"]
    mine(*words, "--set", "strides", "--out", "refused").refused("set: expected NAME=VALUE, got 'strides'")


def test_harvest_goes_on_with_what_is_there(mine: Named, bank: Path):
    before = Job.open(bank).finished()
    mine.good("harvest", "mine:generator", "--n", 200, "--out", "bank")
    assert Job.open(bank).finished() == before


def test_sample_writes_pictures_latents_and_figures(mine: Named, bank: Path):
    ran = mine.good("sample", bank, "mine:generator", "--rho", -0.5, "--n", 9, "--json")
    assert len(list(Path("samples/images").glob("*.png"))) == 9
    z = np.load("samples/latents.npy", allow_pickle=False)
    store = lw.distributions.Bank.open(bank)
    np.testing.assert_array_equal(z, store.latents[ran.json["rows"]])
    assert ran.json["ess"] == pytest.approx(store.ess(-0.5))
    assert json.loads(Path("samples/sample.json").read_text()) == ran.json


def test_sample_as_far_as_an_effective_share_allows(mine: Named, bank: Path):
    ran = mine.good("sample", bank, "mine:generator", "--ess", 0.3, "--json")
    assert ran.json["ess"] == pytest.approx(0.3, abs=1e-6)
    assert ran.json["rho"] > 0


def test_sample_of_a_class(mine: Named):
    mine.good("harvest", "mine:classes", "--n", 60, "--out", "bank")
    ran = mine.good("sample", "bank", "mine:classes", "--rho", 0.2, "--label", 1, "--n", 5, "--json")
    assert set(lw.distributions.Bank.open("bank").labels[ran.json["rows"]].tolist()) == {1}


def test_a_class_at_a_truncation_is_harvested_and_swept(mine: Named, bank: Path):
    words = ("--psi", 0.5, "--chunk", 8, "--basis", 2, "--k", 2)
    ran = mine.good("harvest", "mine:generator", "--n", 200, *words, "--out", "cut", "--json")
    assert (ran.json["psi"], ran.json["method"]) == (0.5, "left")
    ran = mine.good("sample", "cut", "mine:generator", "--rho", 0.2, "--n", 4, "--json")
    assert ran.json["psi"] == 0.5
    mine.good("sample", bank, "mine:generator", "--rho", 0, "--n", 80, "--out", "real")
    words = ("--real", "real/images", "--features", "mine:flat", "--rhos", "0,0.2", "--psis", "1,0.5", "--also", "cut")
    ran = mine.good("sweep", bank, "mine:generator", *words, "--draws", 2, "--json")
    assert [c["volumes"] for c in ran.json["cells"]] == [1, 1, 0.5, 0.5]
    assert all(c["errors"]["precision"] >= 0 and 0 < c["ess"] <= 1 for c in ran.json["cells"])
    mine.good("harvest", "mine:classes", "--n", 20, "--label", 1, "--out", "one")
    assert set(lw.distributions.Bank.open("one").labels.tolist()) == {1}
    np.savez("r.npz", latents=np.zeros((3, 2, 2)), svds=np.ones((3, 2, 2)))
    mine.good("sample", "r.npz", "mine:generator", "--rho", 0.5, "--space", "pixel", "--n", 3)


def test_a_space_of_features_is_named_again(mine: Named):
    mine.good("harvest", "mine:generator", "--n", 50, "--space", "mine:flat", "--out", "bank")
    mine("sample", "bank", "mine:generator", "--rho", 0.1).refused("--space module:attribute")
    mine.good("sample", "bank", "mine:generator", "--rho", 0.1, "--space", "mine:flat")


def test_sweep_writes_table_frontier_and_grid(mine: Named, bank: Path):
    mine.good("sample", bank, "mine:generator", "--rho", 0, "--n", 80, "--out", "real")
    words = ("--real", "real/images", "--features", "mine:flat", "--rhos", "-0.5,0")
    ran = mine.good("sweep", bank, "mine:generator", *words)
    assert ran.out.count("\n") == 4  # a table of two rows
    kept = json.loads(Path("sweep/sweep.json").read_text())
    assert [c["rho"] for c in kept["cells"]] == [-0.5, 0]
    for name in ("sweep.md", "frontier.png", "grid.png"):
        assert (Path("sweep") / name).stat().st_size > 100, name


def test_modes_are_drawn(mine: Named, bank: Path):
    ran = mine.good("modes", bank, "mine:generator", "--n", 5, "--json")
    assert max(ran.json["modes"]["log_volume"]) < min(ran.json["anti_modes"]["log_volume"])
    assert Path("modes/modes.png").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("harvest", "nowhere:thing"), "nowhere"),
        (("harvest", "mine:nothing"), "nothing"),
        (("harvest", "missing.pth"), "missing.pth"),
        (("harvest", "mine:generator", "--k", "3"), "k: expected a whole number from 1 to 2"),
        (("harvest", "mine:generator", "--space", "style"), "space"),
        (("harvest", "mine:broken"), "NaN"),
        (("sample", "bank", "mine:generator"), "rho"),
        (("sample", "bank", "mine:generator", "--rho", "1", "--ess", "0.5"), "rho"),
        (("sample", "nobank", "mine:generator", "--rho", "1"), "nobank"),
        (("sample", "bank", "mine:classes", "--rho", "1"), "another generator"),
        (("sweep", "bank", "mine:generator", "--real", "bank", "--rhos", "a,b"), "rhos"),
        (("modes", "bank", "mine:generator", "--n", "500"), "n: expected"),
    ],
)
def test_refusals_are_one_line(mine: Named, bank: Path, words, said):
    mine(*words).refused(said)
