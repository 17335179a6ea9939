"""`likewise compare A B`: one line with the level and why, a figure, a JSON; wrong input is one line on stderr."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import likewise as lw
from likewise import media
from likewise.cli.pixels import model_at
from likewise.cli.terminal import labels_of
from likewise.sets import data
from likewise.types import Signature
from worlds import layouts as worlds
from worlds.aligners import Shifted
from worlds.command import Runner, formats
from worlds.scenes import moved, texture

PREFIX = ("compare",)

NET = """
import torch
from likewise.distributions import Generator, Normal


def colours(x):
    return torch.cat([x.mean((2, 3)), x.std((2, 3))], 1)


colours.name = "colours"
points = Generator(lambda z: 2 * z, Normal(2))
number = 3
"""


@pytest.fixture
def world(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two photos, two albums, an empty folder and a module, where the aligner does not run."""
    # Where it is used, not where it is made: a module first imported under the patch would keep it for good.
    monkeypatch.setattr("likewise.pixels.default", Shifted)
    monkeypatch.setattr(importlib.import_module("likewise.pixels.compare"), "default", Shifted)
    monkeypatch.syspath_prepend(here)
    first = texture(0, 96, 128)
    media.write_image("a.png", first)
    media.write_image("b.png", moved(first, 3, -2))
    for album, count in (("one", 3), ("two", 2)):
        for i in range(count):
            media.write_image(Path(album) / f"{i}.png", texture(10 * count + i, 48, 48))
    Path("empty").mkdir()
    name = f"nets_{here.parent.name.replace('-', '_')}"
    Path(f"{name}.py").write_text(NET)
    return Path(name)


# ── photos ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_two_photos(run: Runner, world: Path) -> None:
    ran = run.good("a.png", "b.png", "--flow")
    assert ran.err == ""
    record = json.loads(Path("compare/compare.json").read_text())
    aligned = (96 - 2) * (128 - 3) / (96 * 128)
    inliers = int(re.search(r"(\d+) of \d+ matches", ran.out)[1])
    assert 0.9 * record["matches"]["matches"] <= inliers <= record["matches"]["matches"]
    assert record["evidence"]["inliers"] == inliers
    assert record["verdict"] == "same"
    assert ran.out == (
        f"pixels, because both are single photos: same (> 99%); "
        f"{inliers} of {record['matches']['matches']} matches are inliers of one homography; same frame; "
        f"round-trip error 0.00 px, {aligned:.0%} of a.png is aligned with b.png; "
        f"image distance {record['images']['distance']:.3f}\n"
    )
    names = ("compare", "confidence", "matches", "warp", "wheel")
    assert formats("compare") == {f"{name}.png": "PNG" for name in names}
    np.testing.assert_array_equal(
        np.asarray(lw.pixels.read_flow("compare/flow.flo")), np.tile([3.0, -2.0], (96, 128, 1))
    )
    a, warped = media.read_array("a.png").astype(int), media.read_array("compare/warp.png").astype(int)
    assert np.abs(a - warped)[2:, :-3].max() == 0  # what the flow knows of b is a again
    sure = media.read_array("compare/confidence.png")[..., 0]
    assert (sure[2:, :-3].min(), sure[0].max()) == (255, 0)


def test_two_photos_without_an_alignment(run: Runner, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Shifted, "both", lambda self, a, b: (20 * self.flow(a, b), self.flow(b, a)))
    ran = run.good("a.png", "b.png", "--out", "lost", "--json")
    assert ran.json["reason"]
    assert ran.json["aligned"] == 0
    assert f"no alignment: {ran.json['reason']}; " in run.good("a.png", "b.png", "--out", "lost").out


def test_models_come_from_files_and_runs(here: Path) -> None:
    """Saved by likewise, in a run directory, or in RAFT's published layout."""
    raft = lw.pixels.RAFT("tiny", seed=3)
    lw.save(raft, "raft.safetensors")
    lw.save(raft, "run/model.safetensors")
    torch.save({f"module.{k}": v for k, v in lw.pixels.RAFT("small", seed=3).state_dict().items()}, "small.pth")
    for name, size in (("raft.safetensors", "tiny"), ("run", "tiny"), ("small.pth", "small")):
        own, read = lw.pixels.RAFT(size, seed=3).state_dict(), model_at(name).state_dict()
        assert own.keys() == read.keys()
        assert all(torch.equal(own[k], read[k]) for k in own)


def test_a_level_that_is_asked_for(run: Runner, world: Path) -> None:
    ran = run.good("a.png", "b.png", "--level", "images")
    assert ran.out.startswith("images, because --level says so: distance 0.")
    assert formats("compare") == {"compare.png": "PNG"}


# ── sets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_two_albums(run: Runner, world: Path) -> None:
    Path("one/torn.png").write_bytes(Path("one/0.png").read_bytes()[:300])
    ran = run.good("one", "two", "--out", "found", "--json")
    assert "torn.png" in ran.err
    assert (ran.json["level"], ran.json["why"]) == ("sets", "both hold at most 200 images (4 and 2)")
    assert len(ran.json["plan"]) == 3
    assert ran.json == json.loads(Path("found/compare.json").read_text())
    assert formats("found") == {"compare.png": "PNG"}
    assert [Path(s["name"]).name for s in ran.json["skipped"]] == ["torn.png"]
    scale = ran.json["scale"]
    assert scale["reference"]
    assert f"; {scale['sentence']} (" in run.good("one", "two", "--out", "found").out
    run("one", "two", "--reference", "nowhere").refused("nowhere: holds no index")


def test_gamma_value_k_and_features_are_the_library_s(run: Runner, world: Path) -> None:
    ran = run.good("one", "two", "--gamma", 2.5, "--value", "divergence", "--k", 2, "--features", "pixels", "--json")
    p, q = (data.describe(folder, "pixels", 2) for folder in ("one", "two"))
    assert ran.json["gamma"] == 2.5
    assert ran.json["distance"] == lw.sets.compare(p, q, gamma=2.5, value="divergence").distance


def test_videos_show_the_frame_nearest_to_each_centre(run: Runner, here: Path) -> None:
    pytest.importorskip("av", reason="pip install 'likewise[video]'")
    a, b = (worlds.video(here / f"{n}.avi", step=s) for n, s in (("a", 4), ("b", 2)))
    ran = run.good(a, b, "--every", 2, "--k", 3, "--features", "pixels", "--json")
    assert formats("compare") == {"compare.png": "PNG"}
    numbers = [int(name.rpartition("#")[2]) for name in ran.json["names"][0]]
    assert len(numbers) == 3
    assert all(n % 2 == 0 and n < 8 for n in numbers)


def test_arrays_are_sets_and_one_of_many_is_named(run: Runner, here: Path) -> None:
    draw = np.random.default_rng(0)
    sets = {"x": draw.normal(size=(5, 3)), "y": draw.normal(size=(4, 3))}
    np.savez("many.npz", **sets)
    assert run.good("many.npz#x", "many.npz#y", "--json").json["distance"] == pytest.approx(
        lw.sets.compare(sets["x"], sets["y"]).distance, rel=1e-12
    )
    run("many.npz", "many.npz#x").refused("holds 2 sets", "#x")
    run("many.npz#z", "many.npz#x").refused("'z'", "x")


def test_a_learned_metric_and_its_levels(run: Runner, here: Path) -> None:
    draw = np.random.default_rng(0)
    y = np.repeat(["a", "b"], 6)
    shifts = [np.array([float(label == "b"), 0.0, 4 * draw.random()]) for label in y]
    X = [Signature(draw.normal(0, 0.2, (4, 3)) + shift) for shift in shifts]
    worlds.stack_sets("sets.npz", X)
    model = lw.sets.WassersteinLMNN(rho0=0.1, rhot=0.1, rounds=1, max_iter=2).fit(X, y)
    lw.save(model, "m.safetensors")
    words = ("sets.npz#0", "sets.npz#9", "--metric", "m.safetensors", "--json")
    want = [model.pair_distance([(X[0], X[9])], levels=level)[0] for level in (None, "a")]
    assert run.good(*words).json["distance"] == pytest.approx(float(want[0]), rel=1e-9)
    assert run.good(*words, "--metric-level", "a").json["distance"] == pytest.approx(float(want[1]), rel=1e-9)
    run(*words, "--metric-level", "z").refused("no level 'z'", "a, b")
    run(*words[:2], "--metric-level", "a").refused("--metric")
    Path("odd.safetensors").write_bytes(b"nothing")
    run(*words[:2], "--metric", "odd.safetensors").refused("odd.safetensors")


def test_two_paths_of_one_name_are_told_apart() -> None:
    assert labels_of("x/1", "y/1") == ("x/1", "y/1")
    assert labels_of("x/one", "x/two") == ("one", "two")
    assert labels_of("x/a\nb.jpg", "x/\x1b[31m.jpg") == (r"a\nb.jpg", r"\x1b[31m.jpg")


# ── distributions ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.filterwarnings("default")
def test_a_folder_and_a_generator(run: Runner, world: Path) -> None:
    ran = run.good("two", "fashion", "--k", 1, "--n", 3)
    assert "far too large" in ran.err
    assert ran.out.startswith("distributions, because B is the generator fashion: Fréchet distance ")
    assert ran.out.endswith("of the 2 of two are uncovered by the 3 of fashion\n")
    assert formats("compare") == {"compare.png": "PNG"}


@pytest.mark.filterwarnings("default")
def test_collections_under_a_net_of_one_s_own(run: Runner, world: Path) -> None:
    ran = run.good("one", "two", "--level", "distributions", "--features", f"{world}:colours", "--k", 1, "--json")
    assert (ran.json["n_real"], ran.json["n_fake"], ran.json["net"]) == (3, 2, "colours")
    np.save("x.npy", np.random.default_rng(0).normal(size=(50, 2)) * 2)
    assert run.good("x.npy", f"{world}:points", "--json").json["n_fake"] == 50


# ── what is wrong ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("a.png", "nowhere.png"), "B: nowhere.png: no such file or folder"),
        (("empty", "one"), "A: empty: no image"),
        (("one", "a.png", "--level", "pixels"), "A: pixels compares two single photos, got a folder of 3 images"),
        (("one", "two", "--rho", "1"), "rho: not an option of the level sets"),
        (("one", "two", "--flow"), "flow: not an option of the level sets; it is one of pixels"),
        (("a.png", "b.png", "--metric", "m"), "metric: not an option of the level pixels; it is one of sets"),
        (("one", "two", "--level", "words"), "Invalid value for '--level'"),
        (("one",), "Missing argument 'B'"),
        (("a.png", "b.png", "--out", "a.png/x"), "a.png/x: cannot be written to"),
        (("a.png", "b.png", "--model", "none.safetensors"), "none.safetensors"),
        (("a.png", "b.png", "--device", "tpu:9"), "device: shifted runs on the CPU only"),
        (("one", "no_such_module:thing"), "no_such_module:thing: there is no module no_such_module"),
        (("one", "two", "--features", "magic"), "features: expected"),
        (("a.png", "b.png", "--colour"), "No such option"),
    ],
)
def test_what_is_wrong_is_one_line(run: Runner, world: Path, words: tuple[str, ...], said: str) -> None:
    run(*words).refused(said)
