"""The demo: figures that are computed, a page that stands alone, pictures that are pictures."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from likewise import samples
from likewise.cli import demo_distributions as distributions
from likewise.cli import demo_images as images
from likewise.cli import demo_pixels as pixels
from likewise.cli import demo_search as search
from likewise.cli import demo_sets as sets
from likewise.cli.demo import beside, demo
from likewise.cli.demo_sets import pages, same_scene
from likewise.plot import report
from likewise.search import Hit


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


# ── the page ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_page_stands_alone_and_escapes(tmp_path: Path) -> None:
    section = report.Section(
        "a <b>", ["x & `y<z`"], picture(tmp_path / "p.png"), 'an "alt"', "c", report.Table(["m", "n"], [["1", "2"]], 0)
    )
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


# ── what it is made of ────────────────────────────────────────────────────────────────────────────────────────────


def test_same_scene_by_hand() -> None:
    F = np.array([[0.25, 0.0, 0.25], [0.0, 0.5, 0.0]])
    kept, possible = same_scene(F, ["x/cat-1.jpg", "x/cup-1.jpg"], ["y/cat-9.jpg", "y/cup-3.jpg", "y/sea-1.jpg"])
    assert kept == pytest.approx(0.75)
    assert possible == pytest.approx(0.75)  # cat: min(.5, .25), cup: min(.5, .5), sea: min(0, .25)


def test_same_scene_names_may_have_hyphens_and_the_plan_may_miss() -> None:
    kept, possible = same_scene(
        np.array([[0.5, 0.0], [0.0, 0.5]]), ["old-cat-1.jpg", "b-1.jpg"], ["b-2.jpg", "old-cat-2.jpg"]
    )
    assert kept == 0
    assert possible == 1


def test_light_is_one_plane_a_page() -> None:
    """Take the ink away and what is left of a page is a·x + b·y + c, the same for each of its digits."""
    made = pages(np.zeros((100, 8, 8)), np.arange(100) % 10, 20, np.random.default_rng(0))
    assert made.pictures.shape == (20, sets.PAGE, 8, 8)
    assert made.pictures.min() >= 0
    assert made.pictures.max() <= 1
    x, y = np.meshgrid(np.arange(8), np.arange(8))
    design = np.stack([x.ravel(), y.ravel(), np.ones(64)], axis=1)
    for page in made.pictures:
        assert np.ptp(page, axis=0).max() < 1e-12
        _, residual, _, _ = np.linalg.lstsq(design, page[0].ravel(), rcond=None)
        assert residual[0] < 1e-20
    assert len({float(page[0, 0, 0]) for page in made.pictures}) == 20


def test_a_page_holds_different_writings_of_its_digit() -> None:
    images = np.arange(100)[:, None, None] * np.ones((1, 8, 8)) / 100
    made = pages(images, np.arange(100) % 10, 30, np.random.default_rng(0))
    for page in made.pictures:
        ink = page[:, 0, 0] * 3.5
        which = np.rint((ink - ink[0]) * 100).astype(int)
        assert len(set(which)) == sets.PAGE
        assert (which % 10 == 0).all()
    assert sorted(set(made.labels)) == list(range(10))


# ── places ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_scores_by_hand() -> None:
    first, second = (samples.Query(Path("q"), f"p/{i}.jpg", c) for i, c in enumerate(("turned", "other light")))
    hits = [[Hit("p/0.jpg", 1, 0.1), Hit("p/1.jpg", 2, 0.2)], [Hit("x/0.jpg", 1, 0.1), Hit("p/1.jpg", 2, 0.3)]]
    found = images.scores([first, second], hits)
    assert (found["queries"], found["first"], found["among_five"]) == (2, 1, 2)
    assert found["first_is_of_the_photograph"] == 1
    assert found["first_by_change"] == {"other light": [0, 1], "turned": [1, 1], "another crop": [0, 0]}


def test_searches_that_are_drawn_are_of_different_photographs() -> None:
    queries = [samples.Query(Path("q"), f"{p}/1.jpg", c) for p in range(9) for c in samples.CHANGES]
    chosen = images._chosen(queries, np.random.default_rng(0))
    assert [queries[i].change for i in chosen] == [c for c in samples.CHANGES for _ in range(2)]
    assert len({queries[i].place for i in chosen}) == images.ROWS


# ── pixels ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_scores_of_pixels_by_hand() -> None:
    flow = np.zeros((4, 5, 2))
    known = np.ones((4, 5), bool)
    known[0] = False
    truth = samples.Views(np.zeros((4, 5, 3), np.uint8), np.zeros((4, 5, 3), np.uint8), flow, known)
    guess = np.zeros((4, 5, 2))
    guess[0] = 99  # not known, so it does not count
    guess[1, :, 0] = 4
    guess[2, :, 1] = 1
    assert pixels._errors(truth, guess) == pytest.approx({"mean": 5 / 3, "median": 1.0, "right": 2 / 3})


# ── side by side ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_pictures_stand_beside_each_other_under_their_words(tmp_path: Path) -> None:
    files = [("words", picture(tmp_path / "a.png", (300, 100))), ("", picture(tmp_path / "b.png", (100, 100)))]
    beside([files, files[1:]], tmp_path / "c.png", width=440, gap=40)
    with Image.open(tmp_path / "c.png") as im:
        whole = np.asarray(im.convert("RGB")).astype(int)
    assert whole.shape[1] == 440
    red = (whole == [255, 0, 0]).all(axis=2)
    assert red[44:144, :300].all()  # 3 : 1 and 1 : 1 at one height, the gap between them
    assert red[44:144, 340:440].all()
    assert not red[:, 300:340][:144].any()
    assert (whole[:44].min(axis=(1, 2)) < 100).any()  # the words
    assert red[184:624].all()


def test_few_colours_keep_white_white(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 255, size=(60, 90, 3), dtype=np.uint8)
    noise[:, :30] = 255
    Image.fromarray(noise).save(tmp_path / "a.png")
    beside([[("", tmp_path / "a.png")]], tmp_path / "b.png", width=90, few=True)
    with Image.open(tmp_path / "b.png") as im:
        assert im.mode == "P"
        assert (np.asarray(im.convert("RGB"))[:, :30] == 255).all()


# ── search ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_misses_are_of_different_photographs_and_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queries = [samples.Query(Path("q"), f"{p}/{i}.jpg", "turned") for p in range(9) for i in range(3)]
    hits = [[Hit(q.place if q.place.endswith("0.jpg") else "x/1.jpg", 1, 0.1)] for q in queries]
    monkeypatch.setattr(images, "searched", lambda folder, seed: (queries, hits, 27, "m"))
    found = search.misses(tmp_path, 0)
    assert len({q.place.partition("/")[0] for q in found}) == len(found) == search.AGAIN
    assert not any(q.place.endswith("0.jpg") for q in found)
    assert [q.place for q in search.misses(tmp_path, 0)] == [q.place for q in found]


# ── the whole ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A smaller demo: fewer scenes and draws, the same road."""
    with pytest.MonkeyPatch.context() as patch:
        names = ("cat", "coffee", "flower", "temple", "rocket")
        patch.setattr(samples, "SCENES", {k: samples.SCENES[k] for k in names})
        patch.setattr(samples, "PHOTOS", {k: samples.PHOTOS[k] for k in (*names, "motorcycle")})
        patch.setattr(samples, "ALBUMS", 2)
        patch.setattr(samples, "PICTURES", 2)
        patch.setattr(samples, "PLACES", 2)
        patch.setattr(samples, "VIEWS", 8)
        patch.setattr(sets, "RESAMPLES", 2)
        patch.setattr(sets, "TEST_PAGES", 60)
        patch.setattr(distributions, "LATENTS", 120)
        folder = tmp_path_factory.mktemp("demo")
        run = CliRunner().invoke(demo, ["--out", str(folder / "d")], catch_exceptions=False)
    assert run.exit_code == 0
    return folder / "d", run.output


@pytest.mark.slow
def test_it_says_where_the_page_is(made: tuple[Path, str]) -> None:
    folder, output = made
    assert output.splitlines()[-1] == str(folder / "report.html")


@pytest.mark.slow
def test_pictures_are_pngs_with_a_json(made: tuple[Path, str]) -> None:
    folder, _ = made
    names = ("alignment", "search", "plan", "albums", "light", "coverage", "polarity", "verified", "demo")
    for name in (f"{n}.png" for n in names):
        with Image.open(folder / name) as im:
            assert im.format == "PNG"
            im.load()
    with Image.open(folder / "demo.png") as im:
        assert im.width == 1600
    assert (folder / "demo.png").stat().st_size < 800_000
    assert not list(folder.rglob("*.tmp*"))


@pytest.mark.slow
def test_figures_on_the_page_are_those_of_the_json(made: tuple[Path, str]) -> None:
    folder, _ = made
    figures, text = json.loads((folder / "demo.json").read_text()), (folder / "report.html").read_text()
    for name in ("mean", "unlearned", "learned"):
        assert figures["light"][name]["mean"] == pytest.approx(np.mean(figures["light"][name]["draws"]))
        assert f"{figures['light'][name]['mean']:.1%}" in text
    assert f"{figures['albums']['distance']:.3f}" in text
    assert f"{figures['albums']['same_scene_mass']:.1%}" in text
    assert f"{figures['places']['first']} of the {figures['places']['queries']} queries" in text
    plan = json.loads((folder / "plan.json").read_text())
    assert plan["distance"] == figures["albums"]["distance"]


@pytest.mark.slow
def test_what_the_demo_shows_is_so(made: tuple[Path, str]) -> None:
    figures = json.loads((made[0] / "demo.json").read_text())
    assert figures["albums"]["same_scene_mass"] > 0.9 * figures["albums"]["same_scene_possible"]
    assert figures["matrix"]["nearest_is_same_scene"] > 0.9
    assert figures["light"]["learned"]["mean"] > figures["light"]["unlearned"]["mean"] + 0.2
    aligned = figures["pixels"]
    assert aligned["likewise"]["right"] > aligned["DIS on equalised grey"]["right"] + 0.3
    assert aligned["likewise"]["right"] > aligned["SIFT + MAGSAC homography"]["right"] + 0.1
    assert aligned["likewise"]["median"] < 1.5
    searched = figures["places"]
    assert searched["places"] == 6 * 2 + 1  # and the workshop by day
    assert searched["queries"] == 6 * 2
    assert searched["first"] == sum(right for right, _ in searched["first_by_change"].values())
    assert searched["first"] > 0.75 * searched["queries"]  # by chance one in twelve
    covered = figures["coverage"]
    assert covered["uncovered_and_missing"] == covered["missing"]  # every picture of a missing scene is found
    assert covered["uncovered"] < 0.5 * 5 * 8  # and most pictures of the other scenes are covered
    found = figures["search"]
    assert (found["photos"], found["night_rank"]) == (13, 1)
    assert found["night_agree"] > 50
    assert found["asked_again"] <= searched["queries"] - searched["first"]
    assert found["put_right"] <= found["asked_again"]
    shares = figures["polarity"]["ess"]
    assert shares["0"] == 1
    assert shares["-1"] < shares["-0.5"] < 1 > shares["0.5"] > shares["1"]


@pytest.mark.slow
def test_the_page_has_an_alt_for_each_picture(made: tuple[Path, str]) -> None:
    tags = Tags((made[0] / "report.html").read_text())
    images = [attributes for tag, attributes in tags.found if tag == "img"]
    assert len(images) == 8
    assert all(len(str(i["alt"])) > 40 for i in images)
    assert tags.open == []


@pytest.mark.slow
def test_the_folders_it_leaves_are_what_the_commands_take(made: tuple[Path, str]) -> None:
    from likewise.sets.data import list_sets

    _, labels = list_sets(made[0] / "albums" / "scenes")
    assert labels == np.repeat(["cat", "coffee", "flower", "rocket", "temple"], 2).tolist()


@pytest.mark.slow
def test_the_places_it_leaves_can_be_searched(made: tuple[Path, str]) -> None:
    from likewise.search import Collection

    with Collection.open(made[0] / "index") as collection:
        found = collection.search(made[0] / "queries" / "cat" / "1-other-light.jpg", k=1, verify=1)
    assert Path(found[0].path).parts[-2:] == ("cat", "1.jpg")
    assert "<html" in (made[0] / "search.html").read_text()


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from likewise.cli import main

    (tmp_path / "file").write_text("")
    assert main(["demo", "--out", str(tmp_path / "file" / "x")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("likewise: ")
    assert err.count("\n") == 1
