"""`likewise distributions compare`: what comes in, what goes out, what is left out, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from likewise import cli

NET = """
import torch
from likewise.distributions.latents import Normal
from likewise.distributions.generator import Generator

def colours(x):
    return torch.cat([x.mean((2, 3)), x.std((2, 3))], 1)

colours.name = "colours"
model = Generator(lambda z: torch.sigmoid(z)[:, :, None, None].expand(-1, 3, 4, 4), Normal(3))
points = Generator(lambda z: 2 * z, Normal(2))
number = 3
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two collections and a module with a net and generators."""
    (tmp_path / "nets_here.py").write_text(NET)
    r = np.random.default_rng(0)
    for name, tint, n in (("old", 0.4, 20), ("new", 0.6, 24)):
        (tmp_path / name).mkdir()
        for i in range(n):
            array = np.clip(tint + 0.1 * r.normal(size=3) + 0.05 * r.normal(size=(8, 8, 3)), 0, 1)
            Image.fromarray((array * 255).astype(np.uint8)).save(tmp_path / name / f"{i}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], here: Path):
    """Run the command in that folder, in this process."""

    def go(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.main(["distributions", "compare", *words])
        return code, *capsys.readouterr()

    return go


def test_two_folders(run, here: Path) -> None:
    code, out, err = run("old", "new", "--describe", "nets_here:colours", "--out", "found")
    assert code == 0, err
    assert out.startswith("DistributionComparison(distance=")
    assert out.count("\n") == 1
    assert (here / "found" / "compare.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads((here / "found" / "compare.json").read_text())
    assert (record["n_real"], record["n_fake"], record["net"], record["k"]) == (20, 24, "colours", 3)
    assert (record["a"], record["b"]) == ("old", "new")
    assert all(row["sample"].startswith("old") for row in record["uncovered"])
    assert err == ""


def test_json_is_what_is_written(run, here: Path) -> None:
    code, out, _ = run("old", "new", "--describe", "nets_here:colours", "--json", "--k", "2")
    assert code == 0
    assert json.loads(out) == json.loads((here / "compare" / "compare.json").read_text())
    assert json.loads(out)["k"] == 2


def test_unreadable_pictures_are_named_counted_and_left_out(run, here: Path) -> None:
    for i in range(6):
        (here / "old" / f"bad{i}.jpg").write_bytes(b"\xff\xd8\xff broken" if i else b"")
    code, out, err = run("old", "new", "--describe", "nets_here:colours")
    assert code == 0
    assert "6 unreadable pictures left out" in err
    assert "bad0.jpg" in err
    assert "and 1 more" in err
    record = json.loads((here / "compare" / "compare.json").read_text())
    assert {Path(s["name"]).name for s in record["skipped"]} == {f"bad{i}.jpg" for i in range(6)}
    assert record["n_real"] == 20
    assert "of 20 uncovered" in out


def test_generators_and_features(run, here: Path) -> None:
    code, out, err = run("old", "nets_here:model", "--describe", "nets_here:colours", "--n", "30", "--json")
    assert code == 0, err
    assert json.loads(out)["n_fake"] == 30
    np.save(here / "x.npy", np.random.default_rng(0).normal(size=(50, 2)) * 2)
    code, out, err = run("x.npy", "nets_here:points", "--json")
    assert code == 0, err
    assert json.loads(out)["net"] == "features"
    assert json.loads(out)["n_fake"] == 50


@pytest.mark.filterwarnings("always::likewise.errors.SmallSampleWarning")
def test_the_default_net_describes_photos_and_few_are_warned_of(run, here: Path) -> None:
    code, out, err = run("old", "new", "--json")
    assert code == 0, err
    assert json.loads(out)["net"] == "efficientnet-lite0-imagenet"
    assert "warning: Fréchet distance of 20 real and 24 fake samples in 1280 features" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("old", "gone"), "gone: no such folder or file"),
        (("old", "nets_here:number"), "nets_here:number"),
        (("old", "nets_here:nothing"), "nothing"),
        (("old", "new", "--describe", "nets_here:number"), "describe: expected a callable"),
        (("old", "new", "--describe", "nets_here:colours", "--k", "20"), "k: expected a whole number from 1 to 19"),
        (("old", "new", "--k", "0"), "0 is not in the range"),
        (("old", "new", "--out", "nets_here.py"), "nets_here.py: cannot be written to"),
    ],
)
def test_errors_are_one_line(run, words: tuple[str, ...], message: str) -> None:
    code, out, err = run(*words)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert err.startswith("likewise: ")
