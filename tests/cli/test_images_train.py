"""`likewise images train`, `ablate`, `compare`: a folder of classes to a model that other commands take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from likewise import cli
from worlds.command import Ran
from worlds.shapes import stripes

SMALL = (
    *("--backbone", "convnet", "--size", "32", "--shortest", "36", "--dim", "32", "--classes", "3", "--per-class", "4"),
    *("--steps", "4", "--queue", "32", "--workers", "1", "--norm", "trained"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("classes")
    data = stripes(6, 5)
    for i, (item, label) in enumerate(zip(data.items, data.labels, strict=True)):
        target = root / f"class-{label}" / f"{i}.png"
        target.parent.mkdir(exist_ok=True)
        Image.fromarray(item).save(target)
    return root


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run `likewise images …` in an empty folder, in this process."""
    monkeypatch.chdir(tmp_path)

    def call(*words: object) -> Ran:
        code = cli.main(["images", *map(str, words)])
        said = capsys.readouterr()
        return Ran(code, said.out, said.err)

    return call


def test_train_then_use(run, folder: Path, tmp_path: Path) -> None:
    done = run("train", folder, "--out", "made", *SMALL, "--validation", "0.34", "--json")
    assert done.code == 0, done.err
    assert 0 <= done.json["figures"]["validation_r1"] <= 1
    assert (tmp_path / "made" / "curves.png").stat().st_size > 5000
    assert json.loads((tmp_path / "made" / "result.json").read_text())["steps"] == 4
    pictures = sorted(folder.rglob("*.png"))
    compared = run("compare", pictures[0], pictures[0], "--model", "made/model.safetensors", "--json")
    assert compared.code == 0, compared.err
    assert compared.json["distance"] == pytest.approx(0.0, abs=1e-3)
    assert "trained on" in compared.json["model"]
    again = run("train", folder, "--out", "made", *SMALL)
    assert again.code == 2
    assert "finished run already" in again.err


def test_ablate_goes_on(run, folder: Path, tmp_path: Path) -> None:
    words = ("ablate", folder, "--study", "rivals", "--seeds", "2", *SMALL, "--validation", "0", "--json")
    first = run(*words)
    assert first.code == 0, first.err
    rows = {row["variant"]: row for row in first.json["rows"]}
    assert {"margin", "DaNCE", "RotNet", "DeepCluster", "discriminative ensemble"} <= set(rows)
    assert rows["margin"]["difference"] == 0.0
    assert all(row["seeds"] == 2 and 0 <= row["r1"] <= 1 for row in rows.values())
    files = {f: f.stat().st_mtime_ns for f in (tmp_path / "ablation").rglob("figures.json")}
    assert len(files) == 2 * len(rows)
    assert run(*words).json == first.json
    assert files == {f: f.stat().st_mtime_ns for f in files}
    assert (tmp_path / "ablation" / "rivals-spectra.png").exists()
    other = run(*words[:-1], "--lr", "0.5")
    assert other.code == 2
    assert "another configuration" in other.err


def test_refusals_are_one_line(run, folder: Path, tmp_path: Path) -> None:
    for words, said in (
        (("train", tmp_path / "nowhere"), "nowhere"),
        (("train", folder, "--tasks", "disk"), "tasks: expected disc"),
        (("train", folder, *SMALL, "--classes", "50"), "classes: expected at most"),
        (("compare", folder / "class-0", tmp_path / "no.png"), ""),
    ):
        done = run(*words)
        assert done.code == 2
        assert said in done.err
        assert len(done.err.strip().splitlines()) <= 2, done.err
