"""`likewise pixels evaluate`: tables by group, JSON, pictures of the worst pairs, baselines by name, refusals."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
from PIL import Image

from likewise import cli
from likewise.cli import pixels_evaluate as module
from worlds import scenes
from worlds.aligners import Shifted
from worlds.command import Ran


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("likewise.pixels.aligner.default", Shifted)
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], here: Path):
    def go(*words: str) -> Ran:
        capsys.readouterr()
        code = cli.main(["pixels", "evaluate", *words])
        return Ran(code, *capsys.readouterr())

    return go


def test_a_row_a_group_a_json_and_the_worst_pairs(run, here: Path) -> None:
    """Picture k of v_door lies k px to the right; zero flow is off by exactly that."""
    scenes.hpatches(here / "hp")
    ran = run("hp", "--model", "zero", "--levels", "2,4", "--worst", "2")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0] == "hpatches: 4 pairs at shortest side 480 px, zero flow"
    assert lines[1].split() == ["n", "aepe", "acc@1", "acc@3", "acc@5", "fl", "seconds"]
    assert [(line[:16].strip(), line.split()[-6]) for line in lines[2:]] == [
        ("illumination I", "0.00"),
        ("illumination III", "0.00"),
        ("viewpoint I", "2.00"),
        ("viewpoint III", "4.00"),
        ("all", "1.50"),
    ]
    record = json.loads((here / "evaluate" / "evaluate.json").read_text())
    assert record["groups"]["viewpoint III"]["aepe"] == pytest.approx(4.0)
    assert len(record["pairs"]) == 4
    assert [Path(p).name for p in record["pictures"]] == ["worst-1.png", "worst-2.png"]
    assert not (here / "evaluate" / "worst-3.png").exists()
    with Image.open(here / "evaluate" / "worst-1.png") as im:
        im.load()


def test_json_is_what_stands_in_the_file(run, here: Path) -> None:
    scenes.middlebury(here / "mb")
    ran = run("mb", "--json", "--full-size", "--worst", "0", "--out", "x")
    assert ran.code == 0, ran.err
    assert ran.json == json.loads((here / "x" / "evaluate.json").read_text())
    assert ran.json["model"] == "shifted"
    assert ran.json["size"] is None
    assert ran.json["aepe"] == pytest.approx(13**0.5)  # (3, −2) where the truth is (1, 1)


def test_layouts_are_told_or_asked_for(run, here: Path) -> None:
    """KITTI's pairs move as the model says, so that its error is 0."""
    scenes.kitti(here / "kitti")
    for words in ((), ("--layout", "kitti")):
        ran = run("kitti", "--worst", "0", "--json", *words)
        assert ran.code == 0, ran.err
        assert (ran.json["dataset"], ran.json["aepe"], ran.json["fl"]) == ("kitti2015", 0.0, 0.0)


def test_sparse_points_are_ranked_by_how_many_are_right(run, here: Path) -> None:
    scenes.robotcar(here / "car")
    ran = run("car/test6511.csv", "--model", "zero", "--worst", "1")
    assert ran.code == 0, ran.err
    assert "sparse@5" in ran.out.splitlines()[1]
    assert (here / "evaluate" / "worst-1.png").exists()


def test_matching_is_measured_too(run, here: Path) -> None:
    scenes.hpatches(here / "hp", names=("v_door",))
    ran = run("hp", "--model", "sift-h", "--levels", "2", "--matching", "--worst", "0", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["matches"] > 0
    assert {"mma@3", "stage 1 mma@3", "corners@5", "failures"} <= set(ran.json)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("zero", "zero flow"),
        ("dis", "DIS"),
        ("dis-equalized", "DIS on equalised grey"),
        ("sift-h", "SIFT + MAGSAC homography"),
    ],
)
def test_baselines_have_names(name: str, said: str) -> None:
    assert module.model_named(name).name == said


def test_the_held_out_set_has_a_name(run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def made(n: int) -> list[object]:
        from likewise.pixels.rendering import Renderer
        from likewise.pixels.rendering.textures import procedural

        asked.append(n)
        return [Renderer(procedural(0, 4, side=64), (64, 64)).pair(s) for s in range(n)]

    monkeypatch.setattr(importlib.import_module("likewise.pixels.rendering"), "held_out_pairs", made)
    ran = run("rendered", "--pairs", "2", "--model", "zero", "--worst", "0", "--json")
    assert ran.code == 0, ran.err
    assert asked == [2]
    assert ran.json["n"] == 2


def test_the_worst_come_first_by_hand() -> None:
    rows = [{"name": n, "aepe": e} for n, e in (("x", 1.0), ("y", 3.0), ("z", 2.0))]
    assert module.worst_of(rows) == [("y", "AEPE 3.00 px"), ("z", "AEPE 2.00 px"), ("x", "AEPE 1.00 px")]
    points = [{"name": n, "sparse@5": s} for n, s in (("x", 0.9), ("y", 0.1))]
    assert [name for name, _ in module.worst_of(points)] == ["y", "x"]
    assert module.worst_of([{"name": "x", "matches": 3}]) == []


def test_numbers_that_json_lacks_are_null() -> None:
    assert module._plain({"a": float("inf"), 5.0: [float("nan"), 1], "s": "x"}) == {
        "a": None,
        "5.0": [None, 1],
        "s": "x",
    }


def test_layouts_of_the_command_are_those_of_the_level() -> None:
    from likewise.papers.life import layouts

    assert set(module.LAYOUTS) == {"auto", *layouts.LAYOUTS}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere",), "nowhere: no such file or folder"),
        (("empty",), "none of the layouts"),
        (("empty", "--levels", "2,x"), "levels: expected whole numbers with commas between, such as 2,4,6, got '2,x'"),
        (("hp", "--levels", "9"), "levels: expected numbers of the second picture, 2 to 6"),
        (("hp", "--layout", "kitti", "--generated"), "generated: only for the layout hpatches, got kitti"),
        (("hp", "--model", "raft"), "raft does not exist"),
    ],
)
def test_refusals_are_one_line(run, here: Path, words: tuple[str, ...], said: str) -> None:
    (here / "empty").mkdir()
    scenes.hpatches(here / "hp", names=("v_door",))
    ran = run(*words)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert said in ran.err
