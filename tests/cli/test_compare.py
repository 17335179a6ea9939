"""`likewise compare A B`: one line with the level and why, a picture, a JSON; wrong input is one line on stderr."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from PIL import Image

from likewise import cli, media
from worlds.aligners import Shifted
from worlds.command import Ran
from worlds.scenes import moved, texture


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two photos, two albums, an empty folder, in a folder in which the aligner does not run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("likewise.pixels.aligner.default", Shifted)
    monkeypatch.setattr("likewise.search.verify.one_pass", lambda thorough: Shifted())
    first = texture(0, 96, 128)
    media.write_image("a.png", first)
    media.write_image("b.png", moved(first, 3, -2))
    for album, count in (("one", 3), ("two", 2)):
        for i in range(count):
            media.write_image(Path(album) / f"{i}.png", texture(10 * count + i, 48, 48))
    Path("empty").mkdir()
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], here: Path):
    def go(*words: str) -> Ran:
        capsys.readouterr()
        code = cli.main(["compare", *words])
        return Ran(code, *capsys.readouterr())

    return go


def pictures(folder: str) -> dict[str, str]:
    """The pictures in a folder that can be decoded, and their formats."""
    found = {}
    for path in sorted(Path(folder).glob("*.png")):
        with Image.open(path) as im:
            im.load()
            found[path.name] = im.format or ""
    return found


def test_two_photos(run) -> None:
    ran = run("a.png", "b.png")
    assert (ran.code, ran.err) == (0, "")
    record = json.loads(Path("compare/compare.json").read_text())
    home = (96 - 2) * (128 - 3) / (96 * 128)
    count = int(re.search(r"(\d+) of \d+ matches", ran.out)[1])
    assert 0.9 * record["matches"]["matches"] <= count <= record["matches"]["matches"]
    assert record["verdict"] == "same"
    assert record["probability"] >= 0.9
    assert ran.out == (
        f"pixels, because both are single photos: same ({record['probability']:.0%}); "
        f"round-trip error 0.00 px, {home:.0%} of a.png returns from b.png, "
        f"{count} of {record['matches']['matches']} matches agree on one geometry; "
        f"image distance {record['images']['distance']:.3f}\n"
    )
    assert pictures("compare") == {"compare.png": "PNG", "warp.png": "PNG", "matches.png": "PNG"}
    assert record["why"] == "both are single photos"
    assert sorted(record["files"]) == ["compare/compare.png", "compare/matches.png", "compare/warp.png"]


def test_two_albums(run) -> None:
    Path("one/torn.png").write_bytes(Path("one/0.png").read_bytes()[:300])
    ran = run("one", "two", "--out", "found", "--json")
    assert ran.code == 0
    assert "torn.png" in ran.err
    assert ran.json["level"] == "sets"
    assert ran.json["why"] == "both hold at most 200 pictures (4 and 2)"
    assert len(ran.json["plan"]) == 3
    assert ran.json == json.loads(Path("found/compare.json").read_text())
    assert pictures("found") == {"compare.png": "PNG"}
    assert [Path(s["name"]).name for s in ran.json["skipped"]] == ["torn.png"]


def test_a_level_that_is_asked_for(run) -> None:
    ran = run("a.png", "b.png", "--level", "images")
    assert ran.code == 0
    assert ran.out.startswith("images, because --level says so: distance 0.")
    assert pictures("compare") == {"compare.png": "PNG"}


@pytest.mark.filterwarnings("default")
def test_a_folder_and_a_generator(run) -> None:
    ran = run("two", "fashion", "--k", "1", "--n", "3")
    assert ran.code == 0
    assert "far too large" in ran.err
    assert ran.out.startswith("distributions, because B is the generator fashion: Fréchet distance ")
    assert ran.out.endswith("of the 2 of two are uncovered by the 3 of fashion\n")
    assert pictures("compare") == {"compare.png": "PNG"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("a.png", "nowhere.png"), "B: nowhere.png: no such file or folder, nor a generator (fashion, fashion-vae, "),
        (("empty", "one"), "A: empty: no picture in this folder"),
        (("one", "a.png", "--level", "pixels"), "A: pixels compares two single photos, got a folder of 3 pictures"),
        (("one", "two", "--rho", "1"), "rho: not an option of the level sets"),
        (("one", "two", "--level", "words"), "Invalid value for '--level'"),
        (("one",), "Missing argument 'B'"),
        (("a.png", "b.png", "--out", "a.png/x"), "a.png/x: cannot be written to"),
        (("one", "no_such_module:thing"), "no_such_module:thing: there is no module no_such_module"),
    ],
)
def test_what_is_wrong_is_one_line(run, words: tuple[str, ...], said: str) -> None:
    ran = run(*words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"likewise: {said}")
    assert ran.err.count("\n") == 1
    assert not Path("compare").exists() or said.startswith("no_such_module")  # found out when it is loaded
