"""`likewise pixels train`: flags become the configuration, presets give way to them, a run leaves its files."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import likewise as lw
from likewise import cli, media
from likewise.cli.pixels_train import OPTIONS, curves
from likewise.papers.life.rivals import preset
from likewise.pixels.training import Config
from worlds.command import Ran


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of four speckled photos."""
    monkeypatch.chdir(tmp_path)
    for s in range(4):
        cells = np.random.default_rng(s).integers(0, 256, (41, 51, 3)).astype(np.uint8)
        media.write_image(f"photos/{s}.png", np.kron(cells, np.ones((6, 6, 1), np.uint8)))
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], here: Path):
    def go(*words: str) -> Ran:
        capsys.readouterr()
        code = cli.main(["pixels", "train", *words])
        return Ran(code, *capsys.readouterr())

    return go


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What train is called with; nothing is trained."""
    from likewise.store.run import Run

    found: dict[str, Any] = {}

    def train(photos: Any, config: Config, **words: Any) -> Any:
        found.update(words, photos=photos, config=config)
        made = Run.create(words["out"], {}, resume=True)
        made.log(1, bent=4.0, bent_start=5.0)
        made.finish(steps=1, bent=4.0, bent_start=5.0)
        return type("Trained", (), {"name": "trained aligner"})()

    monkeypatch.setattr(importlib.import_module("likewise.pixels.training"), "train", train)
    return found


def test_without_flags_it_is_the_default_recipe(run, asked: dict[str, Any]) -> None:
    ran = run("photos")
    assert (ran.code, ran.err) == (0, "")
    assert asked["config"] == Config()
    assert len(asked["photos"]) == 4
    assert (asked["scenes"], asked["resume"], asked["start"], asked["device"]) == ("rendered", True, None, "cpu")
    told = "trained aligner: bent photos are off by 4.00 px after the last step, 5.00 px at the start; "
    assert ran.out == told + "run/model.safetensors\n"
    with Image.open("run/curves.png") as im:
        assert im.format == "PNG"


def test_every_option_has_a_flag(run, asked: dict[str, Any]) -> None:
    words = [
        "--warm",
        "3",
        "--network",
        "tiny",
        "--scene-pairs",
        "5",
        "--one-way",
        "--cycle-mode",
        "full",
        "--sed",
        "0.25",
    ]
    assert run("photos", "--out", "a", *words).code == 0
    assert asked["config"] == Config(warm=3, network="tiny", scenes=5, one_way=True, cycle_mode="full", sed=0.25)
    from likewise.cli.pixels_train import train

    assert {*OPTIONS} <= {p.name for p in train.params}


def test_a_preset_gives_way_to_flags(run, asked: dict[str, Any]) -> None:
    assert run("photos", "--preset", "life", "--cycle", "0.3", "--joint", "7").code == 0
    assert asked["config"] == preset("life", cycle=0.3, joint=7)


def test_without_scenes_none_are_asked_for(run, asked: dict[str, Any]) -> None:
    assert run("photos", "--scenes", "none").code == 0
    assert asked["scenes"] is None
    assert asked["config"].scenes == 0


def test_a_start_and_a_folder_of_scenes_are_handed_over(run, asked: dict[str, Any]) -> None:
    lw.save(lw.pixels.RAFT("tiny"), "start.safetensors")
    assert run("photos", "--start", "start.safetensors", "--scenes", "place", "--no-resume").code == 0
    assert isinstance(asked["start"], lw.pixels.RAFT)
    assert (asked["scenes"], asked["resume"]) == ("place", False)


def test_a_finished_run_is_not_overwritten(run, asked: dict[str, Any]) -> None:
    assert run("photos").code == 0
    ran = run("photos")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert "holds a finished run already" in ran.err


@pytest.mark.slow
def test_a_real_run_leaves_a_model_that_compare_takes(run, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = run("photos", "--network", "tiny", "--warm", "0", "--refine", "2", "--joint", "0", "--scenes", "none",
              "--height", "64", "--width", "64", "--pairs", "1", "--iters", "1", "--json")  # fmt: skip
    assert ran.code == 0, ran.err
    files = {p.name for p in (here / "run").iterdir()}
    assert {
        "model.safetensors",
        "metrics.jsonl",
        "config.json",
        "result.json",
        "curves.png",
        "state.safetensors",
    } <= files
    assert ran.json["figures"]["bent"] > 0
    assert json.loads((here / "run" / "result.json").read_text())["steps"] == 2
    assert cli.main(["pixels", "compare", "photos/0.png", "photos/1.png", "--model", "run"]) == 0
    assert "RAFT" in capsys.readouterr().out


def test_curves_of_nothing_are_none(tmp_path: Path) -> None:
    assert curves([{"step": 1, "loss": 2.0}], tmp_path / "c.png") is None
    assert curves([{"step": 1, "bent": 2.0}, {"step": 2, "bent": 1.0}], tmp_path / "c.png") == tmp_path / "c.png"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere",), "nowhere"),
        (("empty",), "holds no photo"),
        (("photos", "--warm", "-1"), "warm: expected integer ≥ 0, got -1"),
        (("photos", "--network", "huge"), "network: expected"),
        (("photos", "--preset", "raft"), "'raft' is not"),
        (("photos", "--scenes", "nothing-there", "--warm", "0", "--refine", "0", "--joint", "1"), "nothing-there"),
    ],
)
def test_refusals_are_one_line(run, here: Path, words: tuple[str, ...], said: str) -> None:
    (here / "empty").mkdir()
    ran = run(*words)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
    assert said in ran.err
