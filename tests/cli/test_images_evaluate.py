"""`likewise images evaluate`: what comes in, what goes out, what is left out, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from likewise import cli
from likewise.images import evaluation
from worlds.command import Ran


class Colours:
    """A picture's mean colour, in the place of a network."""

    name = "colours"

    def embed(self, images, *, batch_size=32, progress=False, on_error="raise"):
        from likewise.errors import LikewiseError
        from likewise.images import data
        from likewise.images.model import Skipped

        rows, skipped = [], []
        for i, item in enumerate(images):
            try:
                rows.append(data.picture(item).mean((0, 1)) + 1)
            except LikewiseError as error:
                skipped.append(Skipped(i, str(item), str(error)))
        self.skipped = tuple(skipped)
        return np.array(rows)


def paint(root: Path, classes: dict[str, tuple[int, int, int]], n: int = 5) -> Path:
    rng = np.random.default_rng(0)
    for name, tint in classes.items():
        (root / name).mkdir(parents=True)
        for i in range(n):
            colour = np.clip(np.array(tint) + 30 * rng.normal(size=3), 0, 255).astype(np.uint8)
            Image.fromarray(np.tile(colour, (8, 8, 1))).save(root / name / f"{i}.png")
    return root


RGB = {"red": (220, 40, 40), "green": (40, 220, 40), "blue": (40, 40, 220)}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with class folders, in which no network runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("likewise.images.model.default", Colours)
    monkeypatch.setattr(evaluation, "SHOWN", 3)
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], here: Path):
    def go(*words: str) -> Ran:
        capsys.readouterr()
        code = cli.main(["images", "evaluate", *words])
        return Ran(code, *capsys.readouterr())

    return go


def test_figures_words_json_and_pictures(run, here: Path) -> None:
    paint(here / "photos", RGB)
    ran = run("photos", "--ks", "1,4")
    assert ran.code == 0, ran.err
    assert ran.err == ""
    first, names, numbers = ran.out.splitlines()[:3]
    assert first == "photos: 15 pictures of 3 classes, colours"
    assert names.split() == ["R@1", "R@4", "mAP@R", "NMI", "F1", "decay"]
    record = json.loads((here / "evaluate" / "evaluate.json").read_text())
    assert numbers.split()[0] == f"{record['R@1']:.3f}"
    assert record["split"] == "all"
    assert [row["class"] for row in record["per_class"]]
    for name in ("rankings.png", "spectrum.png"):
        with Image.open(here / "evaluate" / name) as picture:
            assert picture.width > 300
    expected = evaluation.evaluate(Colours(), here / "photos", ks=(1, 4))
    assert {k: record[k] for k in expected} == expected


def test_json_on_stdout_is_the_file(run, here: Path) -> None:
    paint(here / "photos", RGB)
    ran = run("photos", "--json", "--out", "found/there", "--no-nmi")
    assert ran.json == json.loads((here / "found" / "there" / "evaluate.json").read_text())
    assert "nmi" not in ran.json
    assert ran.json["model"] == "colours"


def test_the_same_command_gives_the_same_bytes(run, here: Path) -> None:
    paint(here / "photos", RGB)
    run("photos", "--out", "a", "--seed", "3")
    run("photos", "--out", "b", "--seed", "3")
    for name in ("evaluate.json", "rankings.png", "spectrum.png"):
        assert (here / "a" / name).read_bytes() == (here / "b" / name).read_bytes()


def test_unreadable_pictures_are_named_and_counted(run, here: Path) -> None:
    paint(here / "photos", RGB)
    torn = here / "photos" / "red" / "torn.png"
    torn.write_bytes((here / "photos" / "red" / "0.png").read_bytes()[:40])
    ran = run("photos", "--json")
    assert ran.code == 0, ran.err
    assert ran.err.startswith("likewise: 1 unreadable picture left out:\n")
    assert "torn.png" in ran.err
    assert ran.json["n"] == 15
    assert [s["name"] for s in ran.json["skipped"]] == ["photos/red/torn.png"]


def test_confusions_worst_classes_and_the_lone(run, here: Path) -> None:
    paint(here / "photos", {**RGB, "crimson": (215, 45, 45)})
    paint(here / "photos", {"alone": (250, 250, 250)}, n=1)
    ran = run("photos")
    assert "taken for crimson" in ran.out or "taken for red" in ran.out
    assert "found worst (R@1 of 4 classes)" in ran.out
    assert "1 alone in their class, counted as misses" in ran.out


def test_perfect_classes_have_no_confusions(run, here: Path) -> None:
    paint(here / "photos", {"red": (255, 0, 0), "blue": (0, 0, 255)})
    ran = run("photos")
    assert ran.out.splitlines()[2].split()[0] == "1.000"
    assert ran.out.endswith("most often taken for another\n  none\n")


def test_the_test_part_is_taken_where_there_is_one(run, here: Path) -> None:
    paint(here / "photos" / "train", RGB)
    paint(here / "photos" / "test", {"cyan": (0, 200, 200), "rose": (250, 150, 150)})
    taken = {split: run("photos", "--split", split, "--json").json for split in ("auto", "test", "train", "all")}
    assert {s: (r["split"], r["n"]) for s, r in taken.items()} == {
        "auto": ("test", 10),
        "test": ("test", 10),
        "train": ("train", 15),
        "all": ("all", 25),
    }


def test_a_saved_model_is_loaded(run, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paint(here / "photos", RGB)
    asked = []

    def load(path: str) -> Colours:
        asked.append(path)
        return Colours()

    monkeypatch.setattr("likewise.store.checkpoint.load", load)
    assert run("photos", "--model", "mine.safetensors").code == 0
    assert asked == ["mine.safetensors"]


def test_an_infinite_decay_is_null(run, here: Path) -> None:
    paint(here / "photos", {"dark": (60, 60, 60), "light": (200, 200, 200)})
    for file in (here / "photos").rglob("*.png"):
        with Image.open(file) as picture:
            grey = picture.convert("L")
        grey.save(file)
    ran = run("photos", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["spectral_decay"] is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere",), "nowhere: no such folder"),
        (("photos", "--ks", "1,x"), "ks: expected whole numbers with commas between"),
        (("photos", "--ks", "0"), "ks: expected whole numbers ≥ 1"),
        (("photos", "--ks", ","), "ks: expected some"),
        (("photos", "--split", "test"), "no folder 'test'"),
        (("photos", "--layout", "sop"), "Ebay"),
        (("photos", "--out", "photos/red/0.png"), "cannot be written to"),
        (("photos", "--model", "no.safetensors"), "no.safetensors"),
        (("loose",), "no class folders"),
        (("ones",), "no row has another one of its class"),
    ],
)
def test_errors_are_one_line(run, here: Path, words: tuple[str, ...], message: str) -> None:
    paint(here / "photos", RGB)
    paint(here, {"loose": (1, 2, 3)}, n=2)
    paint(here / "ones", RGB, n=1)
    ran = run(*words)
    assert ran.code == 2
    assert ran.out == ""
    assert message in ran.err
    assert ran.err.count("\n") == 1
    assert ran.err.startswith("likewise: ")
