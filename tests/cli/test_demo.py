"""The demo: figures that are computed, a page that stands alone, images that are images."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from likewise import cli, samples
from likewise.cli import demo as module
from likewise.cli.demo import same_scene
from likewise.plot import report
from worlds.command import Runner, formats


class Tags(HTMLParser):
    """Every tag with its attributes, and which are left open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def picture(path: Path, size: tuple[int, int] = (8, 6)) -> Path:
    Image.new("RGB", size, "red").save(path)
    return path


def test_the_page_stands_alone_and_escapes(tmp_path: Path) -> None:
    section = report.Section("a <b>", ["x & `y<z`"], picture(tmp_path / "p.png"), 'an "alt"', "c")
    text = report.Page("t", "l", {"name": "1 < 2"}, [section], "end").html()
    tags = Tags(text)
    assert tags.open == []
    images = [attributes for tag, attributes in tags.found if tag == "img"]
    assert [i["alt"] for i in images] == ['an "alt"']
    assert str(images[0]["src"]).startswith("data:image/png;base64,")
    assert "a &lt;b&gt;" in text
    assert "<code>y&lt;z</code>" in text
    assert "1 &lt; 2" in text
    assert not {tag for tag, _ in tags.found} & {"script", "link", "iframe"}
    assert not re.search(r"https?://|url\(|@import", text)
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text


def test_same_scene_by_hand() -> None:
    F = np.array([[0.25, 0.0, 0.25], [0.0, 0.5, 0.0]])
    kept, possible = same_scene(F, ["x/cat-1.jpg", "x/cup-1.jpg"], ["y/cat-9.jpg", "y/cup-3.jpg", "y/sea-1.jpg"])
    assert kept == pytest.approx(0.75)
    assert possible == pytest.approx(0.75)  # cat: min(.5, .25), cup: min(.5, .5), sea: min(0, .25)


def test_the_closer_look_is_where_both_meet_and_much_is_seen() -> None:
    """Left half sure; below the middle a texture: the window straddles the edge, and lies as low as it can."""
    photo, sure = np.zeros((100, 120, 3), np.uint8), np.zeros((100, 120), bool)
    photo[50:, ::2], sure[:, :60] = 255, True
    rows, columns = module._closer(photo, sure, 0.4)
    assert (rows.stop - rows.start, columns.stop - columns.start) == (40, 48)
    assert abs((columns.start + columns.stop) / 2 - 60) <= 1
    assert rows.start >= 49


@pytest.mark.parametrize(("chance", "said"), [(1.0, "> 99.9 %"), (0.9974, "99.7 %"), (0.04, "4.0 %"), (0.0, "< 0.1 %")])
def test_nothing_is_said_to_be_certain(chance: float, said: str) -> None:
    assert module.percent(chance) == said


# ── the whole ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smaller demo: fewer places and latents, the same road."""
    folder = tmp_path_factory.mktemp("demo") / "d"
    with pytest.MonkeyPatch.context() as patch:
        names = ("cat", "coffee", "flower", "temple", "rocket", "motorcycle")
        patch.setattr(samples, "PHOTOS", {k: samples.PHOTOS[k] for k in names})
        patch.setattr(samples, "PLACES", 2)
        patch.setattr(module, "LATENTS", 120)
        assert cli.main(["demo", "--out", str(folder)]) == 0
    return folder


@pytest.mark.slow
def test_images_are_pngs_and_figures_on_the_page_are_those_of_the_json(made: Path) -> None:
    pictures = ("place", "search", "copies", "alignment", "plan", "polarity")
    assert set(formats(made)) == {f"{n}.png" for n in pictures}
    assert not list(made.rglob("*.tmp*"))
    figures, text = json.loads((made / "demo.json").read_text()), (made / "report.html").read_text()
    assert f"{figures['albums']['distance']:.3f}" in text
    assert f"{figures['albums']['same_scene_mass']:.1%}" in text
    assert f"{figures['pixels']['right']:.0%} of the pixels" in text
    assert "<html" in (made / "search.html").read_text()
    tags = Tags(text)
    alts = [str(attributes["alt"]) for tag, attributes in tags.found if tag == "img"]
    assert len(alts) == len(pictures)
    assert all(len(alt) > 40 for alt in alts)
    assert tags.open == []


@pytest.mark.slow
def test_what_the_demo_shows_is_so(made: Path) -> None:
    figures = json.loads((made / "demo.json").read_text())
    assert figures["albums"]["same_scene_mass"] > 0.9 * figures["albums"]["same_scene_possible"]
    assert figures["pixels"]["right"] > 0.6
    assert figures["pixels"]["median"] < 1.5
    place = figures["place"]
    assert (place["photos"], place["rank"], place["verdict"]) == (15, 1, "same")
    assert 50 < place["inliers"] < place["matches"]
    assert 0.2 < place["aligned"] < 0.6
    assert "same" not in figures["search"]["verdicts"][1:]
    assert [sorted(group) for group in figures["copies"]["groups"]] == [["mirrored", "turned by 90°"]]
    shares = figures["polarity"]["ess"]
    assert shares["0"] == 1
    assert shares["-1"] < shares["-0.5"] < 1 > shares["0.5"] > shares["1"]


def test_a_place_that_cannot_be_written_is_one_line(run: Runner, here: Path) -> None:
    (here / "file").write_text("")
    run("demo", "--out", "file/x").refused("file/x")
