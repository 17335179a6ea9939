"""`likewise images`: what comes in, what goes out, what is left out, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import likewise as lw
from likewise import inputs, media
from likewise.errors import LikewiseError
from likewise.images import Skipped, evaluation
from likewise.store import checkpoint
from worlds.command import Runner, formats
from worlds.galleries import Patches, album
from worlds.shapes import stripes

PREFIX = ("images",)
RGB = {"red": (220, 40, 40), "green": (40, 220, 40), "blue": (40, 40, 220)}
SMALL = (
    *("--backbone", "convnet", "--size", "32", "--dim", "32", "--classes", "3"),
    *("--steps", "4"),
)


class Colours:
    """An image's mean colour, in the place of a network."""

    name = "colours"

    def embed(self, images, *, batch_size=32, progress=False, on_error="raise"):
        rows, skipped = [], []
        for i, item in enumerate(images):
            try:
                rows.append(inputs.image(item).pixels.mean((0, 1)) + 1)
            except LikewiseError as error:
                skipped.append(Skipped(i, getattr(item, "name", str(item)), str(error)))
        self.skipped = tuple(skipped)
        return np.array(rows)


def paint(root: Path, classes: dict[str, tuple[int, int, int]], n: int = 5, spread: float = 30) -> Path:
    rng = np.random.default_rng(0)
    for name, tint in classes.items():
        for i in range(n):
            colour = np.clip(np.array(tint) + spread * rng.normal(size=3), 0, 255).astype(np.uint8)
            media.write_image(root / name / f"{i}.png", np.tile(colour, (8, 8, 1)))
    return root


@pytest.fixture
def photos(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with class folders, where no network runs."""
    monkeypatch.setattr("likewise.images.default", Colours)
    monkeypatch.setattr(evaluation, "SHOWN", 3)
    return paint(here / "photos", RGB)


# ── evaluate ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_figures_words_json_and_figures(run: Runner, photos: Path) -> None:
    ran = run.good("evaluate", "photos", "--ks", "1,4")
    assert ran.err == ""
    first, names, numbers = ran.out.splitlines()[:3]
    assert first == "photos: 15 images of 3 classes, colours"
    assert names.split() == ["R@1", "R@4", "mAP@R", "NMI", "F1", "decay"]
    record = json.loads(Path("evaluate/evaluate.json").read_text())
    assert numbers.split()[0] == f"{record['R@1']:.3f}"
    assert [row["class"] for row in record["per_class"]]
    assert formats("evaluate") == {"rankings.png": "PNG", "spectrum.png": "PNG"}
    expected = evaluation.evaluate(Colours(), photos, ks=(1, 4))
    assert {k: record[k] for k in expected} == expected
    again = run.good("evaluate", "photos", "--ks", "1,4", "--json", "--out", "again")
    assert again.json == record
    for name in ("evaluate.json", "rankings.png", "spectrum.png"):
        assert Path("evaluate", name).read_bytes() == Path("again", name).read_bytes()


def test_unreadable_images_are_named_and_counted(run: Runner, photos: Path) -> None:
    (photos / "red" / "torn.png").write_bytes((photos / "red" / "0.png").read_bytes()[:40])
    ran = run.good("evaluate", "photos", "--no-nmi", "--json")
    assert ran.err.startswith("likewise: 1 unreadable image left out:\n")
    assert "torn.png" in ran.err
    assert ran.json["n"] == 15
    assert "nmi" not in ran.json
    assert [s["name"] for s in ran.json["skipped"]] == ["photos/red/torn.png"]


def test_the_lone_are_counted_and_an_infinite_decay_is_null(run: Runner, photos: Path) -> None:
    paint(photos, {"alone": (250, 250, 250)}, n=1)
    ran = run.good("evaluate", "photos")
    assert ran.out.endswith("1 alone in their class, counted as misses\n")
    paint(Path("grey"), {"dark": (60, 60, 60), "light": (200, 200, 200)}, spread=0)
    assert run.good("evaluate", "grey", "--json").json["spectral_decay"] is None


# ── train, embed ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def classes(here: Path) -> Path:
    data = stripes(6, 5)
    for i, (item, label) in enumerate(zip(data.items, data.labels, strict=True)):
        media.write_image(here / "classes" / f"class-{label}" / f"{i}.png", np.asarray(item))
    return here / "classes"


def test_train_then_use(run: Runner, classes: Path) -> None:
    done = run.good("train", classes, "--out", "made", *SMALL, "--validation", "0.34", "--json")
    assert 0 <= done.json["figures"]["validation_r1"] <= 1
    assert formats("made")["curves.png"] == "PNG"
    assert json.loads(Path("made/result.json").read_text())["steps"] == 4
    run("train", classes, "--out", "made", *SMALL).refused("finished run already")
    run.prefix = ()
    image = next(iter(sorted(classes.rglob("*.png"))))
    words = ("compare", image, image, "--level", "images", "--model", "made/model.safetensors", "--json")
    compared = run.good(*words)
    assert compared.json["distance"] == pytest.approx(0.0, abs=1e-3)
    assert "trained on" in compared.json["model"]


def test_embed_writes_rows_and_names(run: Runner, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(checkpoint._CLASSES, "test.Patches", "worlds.galleries:Patches")
    album(here / "photos")
    lw.save(Patches(), "model.safetensors")
    Path("photos/torn.png").write_bytes(Path("photos/kind0/p0.png").read_bytes()[:60])
    words = ("embed", "photos", "--model", "model.safetensors")
    ran = run.good(*words, "--out", "rows.npz")
    assert "24 × 12 rows of patches in rows.npz" in ran.out
    assert "1 unreadable image left out" in ran.err
    arrays = media.load_arrays("rows.npz")
    assert "kind0/p0.png" in arrays["names"]
    files = [f"photos/{name}" for name in arrays["names"]]
    np.testing.assert_array_equal(arrays["rows"], Patches().embed(files))
    ran = run.good(*words, "--out", "again.npz", "--json")
    assert (ran.json["rows"], ran.json["dim"], len(ran.json["skipped"])) == (24, 12, 1)
    run(*words, "--out", "rows.txt").refused("ends in .npz")
    run(*words, "--out", "rows.npz", "--executor", "spark").refused("executor: expected")


# ── what is wrong ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("evaluate", "nowhere"), "nowhere"),
        (("evaluate", "photos", "--ks", "1,x"), "ks: expected numbers with commas between"),
        (("evaluate", "photos", "--ks", "0"), "ks: expected whole numbers ≥ 1"),
        (("evaluate", "photos", "--out", "photos/red/0.png"), "cannot be written to"),
        (("evaluate", "photos", "--model", "no.safetensors"), "no.safetensors"),
        (("evaluate", "photos/red"), "no class folders"),
        (("evaluate", "ones"), "no row has another one of its class"),
        (("train", "nowhere"), "nowhere"),
        (("train", "photos", "--tasks", "disk"), "tasks: expected disc"),
        (("train", "photos", *SMALL, "--validation", "0", "--classes", "50"), "classes: expected at most"),
        (("export", "nowhere.safetensors"), "nowhere.safetensors"),
    ],
)
def test_refusals_are_one_line(run: Runner, photos: Path, words: tuple[str, ...], said: str) -> None:
    paint(Path("ones"), RGB, n=1)
    run(*words).refused(said)
