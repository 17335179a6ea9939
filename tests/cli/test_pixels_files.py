"""`likewise pixels render | video | sfm | localize`: what they leave on the disk, what they keep, what they refuse."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import likewise as lw
from likewise import cli, media
from worlds.aligners import Shifted
from worlds.command import Ran
from worlds.scenes import moved, texture


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], here: Path):
    def go(*words: str) -> Ran:
        capsys.readouterr()
        code = cli.main(["pixels", *words])
        return Ran(code, *capsys.readouterr())

    return go


# ── render ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_render_writes_what_the_renderer_gives(run, here: Path) -> None:
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
    with Image.open(here / "r" / "sheet.png") as im:
        assert im.size == (4 * (64 + 6) + 6, 2 * (48 + 6) + 6)


def test_render_keeps_what_is_there_and_refuses_other_settings(run, here: Path) -> None:
    assert run("render", "--out", "r", "--pairs", "1", "--size", "48x64").code == 0
    before = (here / "r" / "00000" / "a.png").stat().st_mtime_ns
    assert run("render", "--out", "r", "--pairs", "2", "--size", "48x64").code == 0
    assert (here / "r" / "00000" / "a.png").stat().st_mtime_ns == before
    assert (here / "r" / "00001" / "F.json").exists()
    ran = run("render", "--out", "r", "--pairs", "2", "--size", "48x64", "--motion", "2")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "motion 1.0 ≠ 2.0" in ran.err


def test_render_paints_with_a_folder(run, here: Path) -> None:
    media.write_image("photos/p.png", texture(0, 96, 96))
    ran = run("render", "--out", "r", "--pairs", "1", "--size", "48x64", "--textures", "photos", "--json")
    assert ran.code == 0, ran.err
    assert json.loads((here / "r" / "config.json").read_text())["textures"] == ["p.png"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--size", "96"), "size: expected height x width in pixels, such as 240x320, got '96'"),
        (("--size", "4x4"), "size: expected (h, w)"),
        (("--motion", "9"), "motion"),
        (("--textures", "none"), "none"),
    ],
)
def test_render_refuses_in_one_line(run, words: tuple[str, ...], said: str) -> None:
    ran = run("render", "--pairs", "1", *words)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert said in ran.err


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
    monkeypatch.setattr("likewise.pixels.aligner.default", lambda: model)
    return model


def test_video_writes_a_flow_a_frame_and_goes_on(run, here: Path, clip: Shifted) -> None:
    ran = run("video", "clip.mp4", "--most", "3", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert (ran.json["flows"], ran.json["computed"], ran.json["largest"]) == (2, 2, 3.0)
    assert clip.calls == 2
    again = run("video", "clip.mp4")
    assert clip.calls == 3  # the two that were there are kept, the third frame is new
    assert again.out == "3 flows of clip.mp4, 2 as they were; full colour is 3 px; flow\n"
    for k in range(3):
        assert np.asarray(lw.pixels.read_flow(f"flow/flow/{k:06d}.flo"))[5, 5].tolist() == [3.0, 0.0]
        assert media.read_array(f"flow/wheel/{k:06d}.png").shape == (64, 96, 3)


def test_video_in_kittis_format_made_small_and_every_second(run, here: Path, clip: Shifted) -> None:
    ran = run("video", "clip.mp4", "--every", "2", "--format", "png", "--size", "72", "--out", "k", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["flows"] == 1
    assert np.asarray(lw.pixels.read_flow("k/flow/000000.png")).shape == (48, 72, 2)


@pytest.mark.parametrize("name", ["film.mp4", "film.gif"])
def test_films_show_frames_beside_colours(run, here: Path, clip: Shifted, name: str) -> None:
    assert run("video", "clip.mp4", "--film", name).code == 0
    if name.endswith(".gif"):
        with Image.open(name) as im:
            assert (im.n_frames, im.size) == (3, (192, 64))
        return
    frames = list(media.frames(name))
    assert [f.shape for f in frames] == [(64, 192, 3)] * 3
    source = next(iter(media.frames("clip.mp4"))).astype(int)
    assert np.abs(frames[0][:, :96].astype(int) - source).mean() < 12


def test_another_model_is_refused_in_the_same_folder(run, here: Path, clip: Shifted) -> None:
    assert run("video", "clip.mp4").code == 0
    ran = run("video", "clip.mp4", "--every", "2")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "every 1 ≠ 2" in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("none.mp4",), "none.mp4: no such file"),
        (("clip.mp4", "--every", "9"), "file: expected two frames at least"),
        (("clip.mp4", "--film", "x.avi"), "film: expected a name that ends in .mp4 or .gif"),
        (("clip.mp4", "--largest", "0"), "largest: expected a length in pixels > 0"),
    ],
)
def test_video_refuses_in_one_line(run, clip: Shifted, words: tuple[str, ...], said: str) -> None:
    ran = run("video", *words)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert said in ran.err


def test_a_missing_extra_has_its_pip_line(run, here: Path, clip: Shifted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    ran = run("video", "clip.mp4")
    assert ran.code == 2
    assert ran.err == "likewise: av is not installed; pip install 'likewise[video]'\n"


def test_frames_are_not_searched_for_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    from likewise.cli.pixels_video import unsearched
    from likewise.pixels.aligner import Aligner, AlignerOptions
    from likewise.pixels.life.network import Network

    given = Aligner(Network(dim=8, hidden=8), AlignerOptions(search="always", iters=2), name="n")
    made = unsearched(given)
    assert (made.options.search, made.options.iters, made.name) == ("never", 2, "n")
    assert given.options.search == "always"
    other = Shifted()
    assert unsearched(other) is other


# ── sfm, localize ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_sfm_hands_every_option_over_and_tells_the_summary(run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    ran = run("sfm", "photos", "--out", "o", "--size", "640", "--camera", "each", "--matcher", "sequential",
              "--features", "512", "--overlap", "20", "--threads", "1", "--seed", "7")  # fmt: skip
    assert (ran.code, ran.err) == (0, "")
    assert asked.pop("report") is not None
    assert asked == {
        "photos": "photos", "size": 640, "camera": "each", "matcher": "sequential", "features": 512, "overlap": 20,
        "threads": 1, "seed": 7,
    }  # fmt: skip
    assert ran.out.splitlines() == [
        "4 of 6 photos placed, 1,234 points, reprojection error 0.71 px",
        "3 pairs, epipolar error 0.23 px in the median; o",
        "not placed: x.jpg, y.jpg",
        "by GPS, a unit is 2.50 m; the two disagree by 3.2 m",
    ]
    assert run("sfm", "photos", "--out", "o", "--json").json == summary | {"out": "o"}


def test_defaults_of_sfm_are_the_functions_own() -> None:
    import inspect

    from likewise.cli.pixels_sfm import sfm
    from likewise.pixels.sfm import reconstruct

    own = inspect.signature(reconstruct).parameters
    shared = [o for o in sfm.params if o.name in own and own[o.name].default is not inspect.Parameter.empty]
    assert len(shared) == 7
    assert {o.name: o.default for o in shared} == {o.name: own[o.name].default for o in shared}


def test_sfm_of_nothing_is_one_line(run, here: Path) -> None:
    pytest.importorskip("pycolmap", reason="pip install 'likewise[sfm]'")
    (here / "photos").mkdir()
    for place in ("photos", "none"):
        ran = run("sfm", place, "--out", f"o-{place}")
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err


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
    monkeypatch.setattr("likewise.pixels.aligner.default", Shifted)
    return made


def test_localize_says_where_or_why_not(run, atlas: Atlas) -> None:
    ran = run("localize", "m", "q.jpg", "dark.jpg", "--retrieve", "2", "--px", "4")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        "q.jpg: at (1.000, 2.000, 3.000) (2 m a unit); 3 of 4 matches agree",
        "dark.jpg: not placed: 4 features match points",
    ]
    assert isinstance(atlas.asked[0]["model"], Shifted)
    assert {k: atlas.asked[0][k] for k in ("retrieve", "px", "guided", "features", "describe", "seed")} == {
        "retrieve": 2, "px": 4.0, "guided": True, "features": "sift", "describe": None, "seed": 0,
    }  # fmt: skip
    record = run("localize", "m", "q.jpg", "dark.jpg", "--json").json
    assert record["queries"][0]["centre"] == [1.0, 2.0, 3.0]
    assert record["queries"][1]["R"] is None
    assert (record["photos"], record["points"], record["metres a unit"]) == (3, 9, 2.0)


def test_localize_without_the_flow_asks_no_network(run, atlas: Atlas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("likewise.pixels.aligner.default", None)
    assert run("localize", "m", "q.jpg", "--raw").code == 0
    assert atlas.asked[0]["model"] is None


def test_localize_builds_a_map(run, atlas: Atlas, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    monkeypatch.setattr(
        "likewise.pixels.localize.Map.build", lambda photos, out, **_: built.append((photos, out)) or atlas
    )
    ran = run("localize", "m", "--build", "photos")
    assert ran.code == 0, ran.err
    assert built == [("photos", "m")]
    assert ran.out == "Map(3 photos, 9 points) in m\n"


@pytest.mark.parametrize(
    ("words", "said"), [(("m",), "query: expected a photo at least"), (("m", "q.jpg"), "m: not a map")]
)
def test_localize_refuses_in_one_line(run, words: tuple[str, ...], said: str) -> None:
    pytest.importorskip("pycolmap", reason="pip install 'likewise[sfm]'")
    ran = run("localize", *words)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert said in ran.err
