"""`likewise pixels`: what each verb leaves on the disk, what it keeps, what it refuses."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import likewise as lw
from likewise import media
from likewise.cli import pixels as module
from likewise.cli.terminal import finite
from likewise.pixels.matching import Matches
from likewise.pixels.training import Config
from worlds.aligners import Shifted
from worlds.command import Runner, formats
from worlds.scenes import moved, texture

PREFIX = ("pixels",)
DX, DY = 3, -2


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("likewise.pixels.default", Shifted)


@pytest.fixture
def pair(here: Path) -> None:
    """Two images, the second moved."""
    first = texture(0, 96, 128)
    media.write_image("a.png", first)
    media.write_image("b.png", moved(first, DX, DY))


# ── match ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_match_counts_stages_and_finds_the_homography(run: Runner, pair: None) -> None:
    ran = run.good("match", "a.png", "b.png", "--features", "sift", "--guide", "--json")
    assert ran.json["matches"] == ran.json["stage 1"] + ran.json["stage 2"]
    assert ran.json["stage 1"] > 20
    H = np.array(ran.json["model"]["matrix"])
    assert ran.json["model"]["inliers"] > 0.9 * ran.json["stage 1"]
    np.testing.assert_allclose(H, [[1, 0, DX], [0, 1, DY], [0, 0, 1]], atol=0.05)
    lines = run("match", "a.png", "b.png", "--features", "sift", "--guide").out.splitlines()
    assert lines[0].startswith(f"{ran.json['matches']} matches: {ran.json['stage 1']} near the flow")
    assert lines[1] == f"{ran.json['model']['inliers']} of {ran.json['matches']} matches are inliers of a homography"
    assert np.allclose(np.array([line.split() for line in lines[2:]], dtype=float), H, atol=1e-4)
    assert Path("matches.png").read_bytes().startswith(b"\x89PNG")


def test_match_saves_arrays_and_a_database_for_colmap(run: Runner, pair: None) -> None:
    count = run("match", "a.png", "b.png", "--save", "m.npz", "--json")
    assert len(Matches.open("m.npz")) == count.json["matches"]
    pytest.importorskip("pycolmap", reason="pip install 'likewise[sfm]'")


def test_raw_matches_ask_no_network(run: Runner, pair: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise AssertionError("asked")

    monkeypatch.setattr("likewise.pixels.default", fail)
    assert run.good("match", "a.png", "b.png", "--raw", "--json").json["stage 1"] == 0


def test_options_of_match_are_the_functions_own() -> None:
    """The choices and defaults of the command are those of Python."""
    from likewise.pixels import features, matching

    assert set(module.FEATURES) == {"sift", *features.LEARNED}
    own = inspect.signature(matching.match).parameters
    for option in module.match.params:
        if option.name in ("features", "radius", "most"):
            assert option.default == own[option.name].default


def test_no_features_is_a_result_that_says_why(run: Runner, pair: None) -> None:
    smooth = np.linspace(0, 255, 96).astype(np.uint8)[:, None, None].repeat(128, 1).repeat(3, 2)
    media.write_image("smooth.png", smooth)
    ran = run("match", "a.png", "smooth.png", "--features", "sift")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("no matches: no sift features in b")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("match", "a.png", "b.png", "--matcher", "best"), "'best' is not one of"),
        (("match", "a.png", "b.png", "--features", "surf"), "'surf' is not one of"),
        (("match", "a.png", "b.png", "--save", "m.csv"), "save: expected a name that ends in .npz"),
        (("match", "a.png", "b.png", "--model", "other.safetensors"), "which does not align images"),
        (("video", "none.mp4"), "none.mp4: no such file"),
        (("video", "none.mp4", "--film", "x.avi"), "film: expected a name that ends in .mp4"),
        (("render", "--size", "96"), "size: expected height x width in pixels, such as 240x320, got '96'"),
        (("render", "--size", "4x4"), "size: expected (h, w)"),
        (("render", "--textures", "none"), "none"),
        (("evaluate", "nowhere"), "nowhere: no such folder"),
        (("evaluate", "empty"), "empty: no pair in it"),
        (("localize", "m"), "query: expected a photo at least"),
        (("train", "nowhere"), "nowhere"),
        (("train", "empty"), "holds no photo"),
        (("train", "photos", "--steps", "-1"), "steps: expected integer ≥ 0, got -1"),
        (("train", "photos", "--network", "huge"), "network: expected"),
    ],
)
def test_refusals_are_one_line(
    run: Runner, pair: None, words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("empty").mkdir()
    monkeypatch.setattr("likewise.store.checkpoint.load", lambda _: object())
    run(*words).refused(said)


# ── video ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def clip(here: Path, monkeypatch: pytest.MonkeyPatch) -> Shifted:
    """clip.mp4 of four frames, and a model that counts how often it is asked."""
    av = pytest.importorskip("av", reason="pip install 'likewise[video]'")
    first, model = texture(0, 64, 96), Shifted(3, 0)
    with av.open("clip.mp4", "w") as container:
        stream: Any = container.add_stream("mpeg4", rate=Fraction(10))
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = 96, 64, "yuv420p", 2_000_000
        for k in range(4):
            frame = av.VideoFrame.from_ndarray(moved(first, 3 * k, 0), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    monkeypatch.setattr("likewise.pixels.default", lambda: model)
    return model


def test_video_writes_a_flow_a_frame_and_resumes(run: Runner, here: Path, clip: Shifted) -> None:
    ran = run("video", "clip.mp4", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert (ran.json["flows"], ran.json["computed"], ran.json["largest"]) == (3, 3, 3.0)
    Path("flow/flow/000001.flo").unlink()
    again = run("video", "clip.mp4")
    assert clip.calls == 4  # the two that are there are kept
    assert again.out == "3 flows of clip.mp4, 2 as they were; full colour is 3 px; flow\n"
    for k in range(3):
        assert np.asarray(lw.pixels.read_flow(f"flow/flow/{k:06d}.flo"))[5, 5].tolist() == [3.0, 0.0]
        assert media.read_array(f"flow/wheel/{k:06d}.png").shape == (64, 96, 3)


def test_video_in_kittis_format_made_small_and_every_second(run: Runner, here: Path, clip: Shifted) -> None:
    words = ("--every", "2", "--format", "png", "--size", "72", "--out", "k")
    assert run.good("video", "clip.mp4", *words, "--json").json["flows"] == 1
    assert np.asarray(lw.pixels.read_flow("k/flow/000000.png")).shape == (48, 72, 2)


def test_a_film_shows_frames_beside_colours(run: Runner, here: Path, clip: Shifted) -> None:
    run.good("video", "clip.mp4", "--film", "film.mp4")
    frames = list(media.frames("film.mp4"))
    assert [f.shape for f in frames] == [(64, 192, 3)] * 3
    source = next(iter(media.frames("clip.mp4"))).astype(int)
    assert np.abs(frames[0][:, :96].astype(int) - source).mean() < 12


def test_another_setting_in_the_same_folder_and_a_missing_extra_are_refused(
    run: Runner, here: Path, clip: Shifted, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.good("video", "clip.mp4")
    run("video", "clip.mp4", "--every", "2").refused("every 1 ≠ 2")
    monkeypatch.setitem(sys.modules, "av", None)
    run("video", "clip.mp4").refused("av is not installed; pip install 'likewise[video]'")


# ── train and evaluate ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def asked(here: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What train is called with, on a folder of two photos; nothing is trained."""
    from likewise.store.run import Run

    for s in range(2):
        media.write_image(f"photos/{s}.png", texture(s, 240, 300))
    given: dict[str, Any] = {}

    def train(photos: Any, config: Config, **words: Any) -> Any:
        given.update(words, photos=photos, config=config)
        made = Run.create(words["out"], {}, resume=True)
        made.log(1, bent=4.0, bent_start=5.0)
        made.finish(steps=1, bent=4.0, bent_start=5.0)
        return type("Trained", (), {"name": "trained aligner"})()

    monkeypatch.setattr(importlib.import_module("likewise.pixels.training"), "train", train)
    return given


def test_train_without_flags_is_the_default_recipe(run: Runner, asked: dict[str, Any]) -> None:
    ran = run.good("train", "photos")
    assert asked["config"] == Config()
    assert len(asked["photos"]) == 2
    assert (asked["scenes"], asked["resume"], asked["start"], asked["device"]) == ("rendered", True, None, "cpu")
    told = "trained aligner: error on bent photos, px: 4 after the last step, 5 at the start; "
    assert ran.out == told + "run/model.safetensors\n"
    assert formats("run") == {"curves.png": "PNG"}
    run("train", "photos").refused("holds a finished run already")


def test_train_hands_flags_scenes_and_a_start_over(run: Runner, asked: dict[str, Any]) -> None:
    run.good("train", "photos", "--out", "a", "--steps", 3, "--network", "tiny", "--seed", 5, "--scenes", "none")
    assert asked["config"] == Config(steps=3, network="tiny", scenes=0, seed=5)
    assert asked["scenes"] is None
    lw.save(lw.pixels.RAFT("tiny"), "start.safetensors")
    run.good("train", "photos", "--start", "start.safetensors", "--scenes", "place", "--no-resume")
    assert isinstance(asked["start"], lw.pixels.RAFT)
    assert (asked["scenes"], asked["resume"]) == ("place", False)


@pytest.mark.slow
def test_a_real_run_leaves_a_model_that_match_takes(run: Runner, pair: None) -> None:
    for s in range(4):
        media.write_image(f"photos/{s}.png", texture(s, 240, 300))
    words = ("--network", "tiny", "--steps", 2, "--scenes", "none", "--height", 64)
    ran = run.good("train", "photos", *words, "--width", 64, "--iters", 1, "--json")
    assert {"model.safetensors", "metrics.jsonl", "config.json", "result.json"} <= {
        p.name for p in Path("run").iterdir()
    }
    assert ran.json["figures"]["bent"] > 0
    assert run("match", "a.png", "b.png", "--model", "run").code == 0


def test_evaluate_measures_the_pairs_that_render_wrote(run: Runner, here: Path) -> None:
    run.good("render", "--out", "pairs", "--pairs", 3, "--size", "64x80")
    lines = run.good("evaluate", "pairs").out.splitlines()
    assert lines[0] == "pairs: 3 pairs at own size, shifted"
    assert lines[1].split() == ["n", "aepe", "acc@1", "acc@3", "acc@5", "fl", "seconds"]
    record = json.loads(Path("evaluate/evaluate.json").read_text())
    errors = []
    for i in range(3):
        flow, hidden = lw.pixels.read_flow(f"pairs/{i:05d}/flow.flo"), media.read_array(f"pairs/{i:05d}/occluded.png")
        y, x = np.mgrid[:64, :80]
        ends = np.asarray(flow) + np.stack([x, y], axis=2)
        inside = (ends >= 0).all(axis=2) & (ends <= [79, 63]).all(axis=2) & (hidden[..., 0] == 0)
        errors.append(np.linalg.norm(np.asarray(flow) - [3.0, -2.0], axis=2)[inside].mean())
    assert [row["aepe"] for row in record["pairs"]] == pytest.approx(errors, rel=0.2)
    assert run.good("evaluate", "pairs", "--size", 32, "--json").json["size"] == 32


def test_evaluate_knows_the_held_out_set(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    rendering = importlib.import_module("likewise.pixels.rendering")
    made = [rendering.Renderer(None, (64, 64)).pair(s) for s in range(2)]
    monkeypatch.setattr(rendering, "held_out_pairs", lambda n: made[:n])
    assert run.good("evaluate", "rendered", "--json").json["n"] == 2


def test_numbers_that_json_lacks_are_null() -> None:
    given = {"a": float("inf"), 5.0: [float("nan"), 1], "s": "x"}
    assert finite(given) == {"a": None, "5.0": [None, 1], "s": "x"}


# ── render ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_render_writes_what_the_renderer_gives(run: Runner, here: Path) -> None:
    ran = run("render", "--out", "r", "--pairs", "2", "--size", "48x64", "--seed", "5")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "2 pairs of 48 × 64 px in r\n"
    pair = lw.pixels.Renderer(None, (48, 64)).pair(6)
    place = here / "r" / "00001"
    assert sorted(p.name for p in place.iterdir()) == ["F.json", "a.png", "b.png", "flow.flo", "occluded.png"]
    flow = lw.pixels.read_flow(place / "flow.flo")
    np.testing.assert_array_equal(np.asarray(flow), pair.flow.numpy().astype(np.float32))
    assert np.abs(media.read_array(place / "b.png") / 255 - pair.b.permute(1, 2, 0).numpy()).max() <= 0.5 / 255 + 1e-6
    np.testing.assert_array_equal(media.read_array(place / "occluded.png")[..., 0] > 0, pair.occluded.numpy())
    cameras = json.loads((place / "F.json").read_text())
    np.testing.assert_array_equal(cameras["F"], pair.F.numpy())
    assert cameras["seed"] == 6


def test_render_keeps_what_is_there_and_refuses_other_settings(run: Runner, here: Path) -> None:
    assert run("render", "--out", "r", "--pairs", "1", "--size", "48x64").code == 0
    before = (here / "r" / "00000" / "a.png").stat().st_mtime_ns
    assert run("render", "--out", "r", "--pairs", "2", "--size", "48x64").code == 0
    assert (here / "r" / "00000" / "a.png").stat().st_mtime_ns == before
    assert (here / "r" / "00001" / "F.json").exists()
    run("render", "--out", "r", "--pairs", "2", "--size", "48x64", "--seed", "2").refused("seed 0 ≠ 2")


def test_render_paints_with_a_folder(run: Runner, here: Path) -> None:
    media.write_image("photos/p.png", texture(0, 200, 200))
    run.good("render", "--out", "r", "--pairs", "1", "--size", "48x64", "--textures", "photos")
    assert json.loads((here / "r" / "config.json").read_text())["textures"] == str(here.resolve() / "photos")


# ── sfm and localize ──────────────────────────────────────────────────────────────────────────────────────────────


def test_sfm_hands_every_option_over_and_tells_the_summary(
    run: Runner, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    summary = {
        "registered": 4, "photos": 6, "points": 1234, "reprojection error": 0.714, "epipolar error": 0.226,
        "left out": ["photos/x.jpg", "photos/y.jpg"], "metres a unit": {"scale": 2.5, "error": 3.25, "photos": 5},
    }  # fmt: skip

    def reconstruct(photos: str, out: Path, **options: Any) -> list[int]:
        asked.update(options, photos=photos)
        options["report"]("a step")
        media.write_text(out / "summary.json", json.dumps(summary))
        return [1, 2, 3]

    monkeypatch.setattr("likewise.pixels.sfm.reconstruct", reconstruct)
    options = {"size": 640, "camera": "each", "matcher": "sequential", "seed": 7}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    ran = run("sfm", "photos", "--out", "o", *words)
    assert (ran.code, ran.err) == (0, "")
    assert asked.pop("report") is not None
    assert asked == {"photos": "photos", **options}
    assert ran.out.splitlines() == [
        "4 of 6 photos placed, 1,234 points, reprojection error 0.71 px",
        "3 pairs, epipolar error 0.23 px in the median; o",
        "not placed: x.jpg, y.jpg",
        "by GPS, a unit is 2.50 m; the two disagree by 3.2 m",
    ]
    assert run("sfm", "photos", "--out", "o", "--json").json == summary | {"out": "o"}


def test_defaults_of_sfm_are_the_functions_own() -> None:
    from likewise.pixels.sfm import reconstruct

    own = inspect.signature(reconstruct).parameters
    shared = [o for o in module.sfm.params if o.name in own and own[o.name].default is not inspect.Parameter.empty]
    assert len(shared) == 4
    assert {o.name: o.default for o in shared} == {o.name: own[o.name].default for o in shared}


class Atlas:
    """A map that places one photo and not the other, and notes how it is asked."""

    folder, metres = Path("m"), 2.0

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.survey = type("S", (), {"points": np.zeros((9, 3))})()

    def __len__(self) -> int:
        return 3

    def __repr__(self) -> str:
        return "Map(3 photos, 9 points)"

    def localize(self, query: str, **options: Any) -> Any:
        from likewise.pixels.localize import Located

        self.asked.append(options)
        some = np.zeros((4, 2)), np.zeros((4, 3))
        if "dark" in query:
            return Located(None, None, *some, np.zeros(4, bool), (), np.eye(3), "4 features match points")
        t = -np.array([1.0, 2.0, 3.0])
        return Located(np.eye(3), t, *some, np.array([1, 1, 1, 0], bool), ("p.jpg",), np.eye(3))


@pytest.fixture
def atlas(monkeypatch: pytest.MonkeyPatch) -> Atlas:
    made = Atlas()
    monkeypatch.setattr("likewise.pixels.localize.Map.open", lambda _: made)
    return made


def test_localize_says_where_or_why_not(run: Runner, atlas: Atlas) -> None:
    ran = run("localize", "m", "q.jpg", "dark.jpg")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        "q.jpg: at (1.000, 2.000, 3.000) (2 m a unit); 3 of 4 matches are inliers",
        "dark.jpg: not placed: 4 features match points",
    ]
    assert isinstance(atlas.asked[0]["guide"], Shifted)
    assert {k: atlas.asked[0][k] for k in ("features", "seed")} == {"features": "sift", "seed": 0}
    record = run("localize", "m", "q.jpg", "dark.jpg", "--json").json
    assert record["queries"][0]["centre"] == [1.0, 2.0, 3.0]
    assert record["queries"][1]["R"] is None
    assert (record["photos"], record["points"], record["metres a unit"]) == (3, 9, 2.0)


def test_localize_without_the_flow_asks_no_network(run: Runner, atlas: Atlas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("likewise.pixels.default", None)
    assert run("localize", "m", "q.jpg", "--raw").code == 0
    assert atlas.asked[0]["guide"] == "never"


def test_localize_builds_a_map(run: Runner, atlas: Atlas, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    monkeypatch.setattr(
        "likewise.pixels.localize.Map.build", lambda photos, out, **_: built.append((photos, out)) or atlas
    )
    ran = run("localize", "m", "--build", "photos")
    assert ran.code == 0, ran.err
    assert built == [("photos", "m")]
    assert ran.out == "Map(3 photos, 9 points) in m\n"
