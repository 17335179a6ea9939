"""`likewise pixels compare | match`: what comes in, what goes out, what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import likewise as lw
from likewise import cli, media
from likewise.cli.pixels_model import model_at
from likewise.pixels.matching import Matches
from worlds.aligners import Shifted
from worlds.command import Ran
from worlds.scenes import moved, texture

DX, DY = 3, -2


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two pictures, the second moved, in a folder in which no network runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("likewise.pixels.aligner.default", Shifted)
    first = texture(0, 96, 128)
    media.write_image("a.png", first)
    media.write_image("b.png", moved(first, DX, DY))
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], here: Path):
    def go(*words: str) -> Ran:
        capsys.readouterr()
        code = cli.main(["pixels", *words])
        return Ran(code, *capsys.readouterr())

    return go


# ── compare ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_compare_says_one_line_and_draws(run, here: Path) -> None:
    ran = run("compare", "a.png", "b.png")
    assert (ran.code, ran.err) == (0, "")
    home = (96 - 2) * (128 - 3) / (96 * 128)
    assert ran.out == f"round-trip error 0.00 px; {home:.0%} of a.png returns from b.png (one pass; shifted)\n"
    with Image.open("alignment.png") as im:
        assert im.format == "PNG"
    assert {p.name for p in here.iterdir()} == {"a.png", "b.png", "alignment.png"}


def test_compare_writes_flow_warp_wheel_and_confidence(run, here: Path) -> None:
    files = {"--flow": "f.flo", "--warp": "w.png", "--wheel": "c.png", "--confidence": "k.png", "--out": "sub/x.png"}
    ran = run("compare", "a.png", "b.png", "--json", *(word for pair in files.items() for word in pair))
    assert ran.code == 0, ran.err
    assert set(ran.json["files"].values()) == set(files.values())
    assert ran.json["level"] == "pixels"
    np.testing.assert_array_equal(np.asarray(lw.pixels.read_flow("f.flo")), np.tile([3.0, -2.0], (96, 128, 1)))
    a, warped = media.read_array("a.png").astype(int), media.read_array("w.png").astype(int)
    assert np.abs(a - warped)[2:, :-3].max() == 0  # what the flow knows of b is a again
    assert warped[:2].max() == 0  # and what it does not know is black
    sure = media.read_array("k.png")[..., 0]
    assert sure[2:, :-3].min() == 255
    assert sure[0].max() == 0
    assert len(np.unique(media.read_array("c.png").reshape(-1, 3), axis=0)) == 1  # one motion, one colour


def test_a_kitti_flow_is_written_by_its_suffix(run, here: Path) -> None:
    assert run("compare", "a.png", "b.png", "--flow", "f.png").code == 0
    assert np.asarray(lw.pixels.read_flow("f.png"))[0, 0].tolist() == [3.0, -2.0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("none.png", "b.png"), "none.png: no such file"),
        (("a.png", "b.png", "--flow", "f.exr"), "flow: expected a name that ends in .flo or .png, got 'f.exr'"),
        (("a.png", "b.png", "--warp", "w.bmp"), "warp: expected a name"),
        (("a.png", "b.png", "--out", "x.doc"), "out: expected a name"),
        (("a.png", "tiny.png"), "b: 60 × 40 pixels are too few; at least 64 are needed"),
        (("blank.png", "b.png"), "a: the image is blank"),
        (("a.png", "b.png", "--model", "a.png"), "a.png is truncated, or not a safetensors file"),
        (("a.png", "b.png", "--model", "none.safetensors"), "none.safetensors does not exist"),
        (("a.png", "b.png", "--model", "none.pth"), "none.pth"),
        (("a.png",), "Missing argument 'B'"),
        (("a.png", "b.png", "--colour"), "No such option"),
    ],
)
def test_what_compare_refuses_is_one_line(run, here: Path, words: tuple[str, ...], said: str) -> None:
    media.write_image("tiny.png", texture(1, 40, 60))
    media.write_image("blank.png", np.full((80, 80, 3), 128, np.uint8))
    ran = run("compare", *words)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.count("\n") == 1
    assert ran.err.startswith("likewise: ")
    assert said in ran.err
    assert not Path("alignment.png").exists()


def test_models_come_from_files_and_runs(run, here: Path) -> None:
    """Saved by likewise, in a run directory, or in RAFT's published layout."""
    raft = lw.pixels.RAFT("tiny", seed=3)
    lw.save(raft, "raft.safetensors")
    lw.save(raft, "run/model.safetensors")
    torch.save({f"module.{k}": v for k, v in lw.pixels.RAFT("small", seed=3).state_dict().items()}, "small.pth")
    for name, size in (("raft.safetensors", "tiny"), ("run", "tiny"), ("small.pth", "small")):
        own, found = lw.pixels.RAFT(size, seed=3).state_dict(), model_at(name).state_dict()
        assert own.keys() == found.keys()
        assert all(torch.equal(own[k], found[k]) for k in own)
    ran = run("compare", "a.png", "b.png", "--json", "--model", "run")
    assert (ran.code, ran.json["model"]) == (0, "RAFT")


def test_a_model_that_does_not_align_is_refused(run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("other.safetensors").write_bytes(b"")
    monkeypatch.setattr("likewise.store.checkpoint.load", lambda _: object())
    ran = run("compare", "a.png", "b.png", "--model", "other.safetensors")
    assert ran.code == 2
    assert "holds a object, which does not align pictures" in ran.err


# ── match ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_match_counts_stages_and_finds_the_homography(run, here: Path) -> None:
    ran = run("match", "a.png", "b.png", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["matches"] == ran.json["stage 1"] + ran.json["stage 2"]
    assert ran.json["stage 1"] > 20
    H = np.array(ran.json["model"]["matrix"])
    assert ran.json["model"]["inliers"] > 0.9 * ran.json["stage 1"]
    np.testing.assert_allclose(H, [[1, 0, DX], [0, 1, DY], [0, 0, 1]], atol=0.05)
    lines = run("match", "a.png", "b.png").out.splitlines()
    assert lines[0].startswith(f"{ran.json['matches']} matches: {ran.json['stage 1']} near the flow")
    assert lines[1] == f"{ran.json['model']['inliers']} of {ran.json['matches']} matches agree on a homography"
    assert np.allclose(np.array([line.split() for line in lines[2:]], dtype=float), H, atol=1e-4)
    assert Path("matches.png").read_bytes().startswith(b"\x89PNG")


def test_match_saves_arrays_and_a_database_for_colmap(run, here: Path) -> None:
    count = run("match", "a.png", "b.png", "--save", "m.npz", "--model-kind", "none", "--json")
    assert count.json["model"] is None
    assert len(Matches.open("m.npz")) == count.json["matches"]
    ran = run("match", "a.png", "a.png", "--save", "same.db")
    assert (ran.code, ran.err.count("\n")) == (2, 1)


def test_raw_matches_ask_no_network(run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise AssertionError("asked")

    monkeypatch.setattr("likewise.pixels.aligner.default", fail)
    ran = run("match", "a.png", "b.png", "--raw", "--model-kind", "fundamental", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["stage 1"] == 0
    assert ran.json["model"]["kind"] == "fundamental"


def test_options_of_match_are_the_functions_own() -> None:
    """The choices and defaults of the command are those of Python."""
    import inspect

    from likewise.cli.pixels_match import FEATURES, match
    from likewise.pixels import features, matching

    assert set(FEATURES) == {*features.CLASSIC, *features.LEARNED}
    own = inspect.signature(matching.match).parameters
    for option in match.params:
        if option.name in ("features", "radius", "search", "most"):
            assert option.default == own[option.name].default


def test_no_features_is_a_result_that_says_why(run, here: Path) -> None:
    smooth = np.linspace(0, 255, 96).astype(np.uint8)[:, None, None].repeat(128, 1).repeat(3, 2)
    media.write_image("smooth.png", smooth)
    ran = run("match", "a.png", "smooth.png", "--features", "orb")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("no matches: no orb features in b")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--radius", "0"), "radius: expected a number of pixels > 0"),
        (("--ratio", "2"), "ratio"),
        (("--features", "surf"), "'surf' is not one of"),
        (("--save", "m.csv"), "save: expected a name that ends in .npz or .db"),
    ],
)
def test_what_match_refuses_is_one_line(run, here: Path, words: tuple[str, ...], said: str) -> None:
    ran = run("match", "a.png", "b.png", *words)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert said in ran.err


# ── the group ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_verb_is_listed_and_has_help(run) -> None:
    from likewise.cli.pixels import pixels

    assert list(pixels.lazy) == ["compare", "match", "train", "evaluate", "sfm", "localize", "render", "video"]
    for verb in pixels.lazy:
        ran = run(verb, "--help")
        assert ran.code == 0
        assert f"likewise pixels {verb}" in ran.out


def test_help_needs_no_torch() -> None:
    words = "import sys; from likewise.cli import main; code = main(['pixels', '{}', '--help']); " \
            "sys.exit(code or ('torch' in sys.modules))"  # fmt: skip
    for verb in ("compare", "match"):
        done = subprocess.run([sys.executable, "-c", words.format(verb)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr + done.stdout


def test_json_of_compare_is_json_alone(run, here: Path) -> None:
    ran = run("compare", "a.png", "b.png", "--json")
    assert json.loads(ran.out)["a"] == "a.png"
    assert ran.err == ""
