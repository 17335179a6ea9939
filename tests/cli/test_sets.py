"""`likewise sets`: what comes in, what goes out, what is refused, and that it resumes where it was."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import likewise as lw
from likewise import cli
from likewise.sets import data
from likewise.store.job import Job
from likewise.types import Signature
from worlds import layouts as worlds
from worlds.command import Runner

PREFIX = ("sets",)
PIXELS = ("--features", "pixels")
HELD = ("--rho0", "0.1", "--rhot", "0.1")


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """class/object/images: three classes of four objects."""
    return worlds.views(tmp_path_factory.mktemp("views"))


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A labelled .npz: 24 ragged sets of three classes that differ in one coordinate, behind noise in two others."""
    draw = np.random.default_rng(0)
    y = np.repeat(["a", "b", "c"], 8)
    shift = {"a": 0.0, "b": 1.0, "c": 2.0}
    sets = [
        Signature(draw.normal(0, 0.2, (draw.integers(3, 7), 4)) + np.array([shift[c], 0, *(6 * draw.random(2))]))
        for c in y
    ]
    path = tmp_path_factory.mktemp("vectors") / "sets.npz"
    data.save_npz(path, sets, y.tolist())
    return path


@pytest.fixture(scope="module")
def fitted(vectors: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the vectors, with its JSON, picture and run directory."""
    out = tmp_path_factory.mktemp("fitted") / "m.safetensors"
    assert cli.main(["sets", "fit", str(vectors), "--out", str(out), *HELD]) == 0
    return out


def is_png(path: Path) -> bool:
    with Image.open(path) as im:
        im.load()
        return im.format == "PNG"


@pytest.fixture
def damaged(views: Path, tmp_path: Path) -> Path:
    """class/object/images with an object of nothing but torn images, and others beside whole ones."""
    root = shutil.copytree(views, tmp_path / "damaged")
    for p in (root / "1" / "1").iterdir():
        p.write_bytes(p.read_bytes()[:50])
    (root / "2" / "1" / "empty.png").write_bytes(b"")
    (root / "2" / "1" / "text.jpg").write_text("not an image")
    return root


def test_unreadable_images_are_named_and_an_empty_set_is_left_out(run: Runner, damaged: Path) -> None:
    ran = run.good("distances", damaged, "--json", *PIXELS)
    assert ran.json["shape"] == [11, 11]
    assert "1/1" not in ran.json["names"]
    assert "unreadable images left out" in ran.err
    assert {"empty.png", "text.jpg"} <= {Path(entry["name"]).name for entry in ran.json["left_out"]}


def test_distances_are_the_library_s_and_rows_are_named(run: Runner, views: Path) -> None:
    ran = run("distances", views, "--out", "D.npy", "--block", "5", "--json", *PIXELS)
    D = np.load("D.npy", allow_pickle=False)
    sets = data.read_sets(views, "pixels").signatures
    np.testing.assert_allclose(D, lw.sets.distances(sets), rtol=1e-9)
    said = json.loads(Path("D.json").read_text())
    assert ran.json == said
    assert said["names"][:2] == ["1/1", "1/2"]
    assert said["labels"] == ["1"] * 4 + ["2"] * 4 + ["3"] * 4
    assert sorted(p.name for p in Path().iterdir()) == ["D.json", "D.npy"]


def test_a_folder_of_videos_has_distances(run: Runner, tmp_path: Path) -> None:
    for i in range(3):
        worlds.video(tmp_path / "v" / f"{i}.avi", step=i + 2)
    ran = run("distances", tmp_path / "v", *PIXELS)
    assert ran.out.startswith("3×3 distances, kl, gamma=")


def test_a_finished_matrix_is_looked_up_and_another_is_refused(run: Runner, vectors: Path) -> None:
    assert run("distances", vectors, "--out", "D.npy").code == 0
    before = Path("D.npy").stat().st_mtime_ns, Path("D.json").read_text()
    seconds = json.loads(before[1])["seconds"]
    assert run("distances", vectors, "--out", "D.npy", "--json").json["seconds"] == seconds
    run("distances", vectors, "--out", "D.npy", "--value", "sharp").refused("D.npy", "value", "--no-resume")
    assert Path("D.json").read_text() == before[1]
    assert not Path("D.parts").exists()
    assert run("distances", vectors, "--out", "D.npy", "--value", "sharp", "--no-resume").code == 0
    assert json.loads(Path("D.json").read_text())["key"]["value"] == "sharp"


KILLED = """
import os, sys
from likewise.cli import main
from likewise.store.job import Job
write, count = Job._write, 0
def counted(self, name, data):
    global count
    write(self, name, data)
    count += isinstance(name, int)
    if count == 3:
        os.kill(os.getpid(), 9)
Job._write = counted
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_killed_matrix_resumes(run: Runner, vectors: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["sets", "distances", str(vectors), "--out", "D.npy", "--block", "6"]
    killed = subprocess.run([sys.executable, "-c", KILLED, *words], capture_output=True, text=True, check=False)
    assert killed.returncode == -9
    assert not Path("D.npy").exists()
    job = Job.open("D.parts")
    assert (len(job), len(job.missing())) == (10, 7)
    written, write = [], Job._write
    monkeypatch.setattr(Job, "_write", lambda self, name, data: written.append(name) or write(self, name, data))
    assert run(*words[1:]).code == 0
    assert written == list(range(3, 10))
    np.testing.assert_allclose(np.load("D.npy"), lw.sets.distances(data.read_sets(vectors).signatures), rtol=1e-9)
    assert not Path("D.parts").exists()


def test_joblib_gives_the_same_matrix(run: Runner, vectors: Path) -> None:
    assert run("distances", vectors, "--out", "one.npy", "--block", "8").code == 0
    assert run("distances", vectors, "--out", "two.npy", "--block", "8", "--n-jobs", "2").code == 0
    assert Path("one.npy").read_bytes() == Path("two.npy").read_bytes()


def test_bad_settings_are_refused_before_any_work(run: Runner, vectors: Path, views: Path) -> None:
    run("distances", vectors, "--out", "D.txt").refused("out", ".npy")
    run("distances", vectors, "--executor", "slurm").refused("executor", "dask")
    run("distances", vectors, "--gamma", "-1").refused("gamma", "-1")
    run("distances", vectors, "--metric-level", "a").refused("level", "--metric")
    run("distances", views / "1" / "1", *PIXELS).refused("no sets found")
    assert list(Path().iterdir()) == []


def test_fit_writes_a_model_figures_a_picture_and_a_run(fitted: Path) -> None:
    from likewise.store.run import Run

    said = json.loads((fitted.parent / "fit.json").read_text())
    assert said["classes"] == {"a": 8, "b": 8, "c": 8}
    assert said["objective"] < said["objective_at_start"]
    assert said["leave_one_out"]["learned"] > said["leave_one_out"]["unlearned"] + 0.2
    assert is_png(fitted.parent / "fit.png")
    made = Run.open(fitted.with_suffix(".run"))
    assert made.result is not None
    assert made.result["leave_one_out_learned"] == said["leave_one_out"]["learned"]
    assert len(made.metrics()) == said["iterations"] > 0


def test_leave_one_out_is_a_naive_loop(fitted: Path, vectors: Path) -> None:
    said = json.loads((fitted.parent / "fit.json").read_text())["leave_one_out"]
    model, sets = lw.load(fitted), data.read_sets(vectors)
    X, y = sets.signatures, sets.labels
    D = lw.sets.distances(model.project(X))
    for name, matrix in (("unlearned", D), ("learned", model.pairwise(X))):
        hits = [y[min((j for j in range(len(X)) if j != i), key=lambda j: matrix[i, j])] == y[i] for i in range(len(X))]
        assert said[name] == pytest.approx(np.mean(hits))


def test_a_fitted_model_takes_images_again(run: Runner, views: Path) -> None:
    words = ("--features", "pixels", "--k", "2", "--pca", "5", "--rounds", "1", "--max-iter", "3", *HELD)
    ran = run.good("fit", views, "--out", "m.safetensors", *words, "--json")
    assert ran.json["dimensions"] == {"described": 400, "learned": 5}
    model = lw.load("m.safetensors")
    assert model.source_ == {"features": "pixels", "k": 2, "every": 1, "seed": 0}
    run.prefix = ()
    ran = run.good("compare", views / "1/1", views / "3/1", "--metric", "m.safetensors", "--json")
    assert np.shape(ran.json["plan"]) == (2, 2)
    p, q = (data.describe(views / f, "pixels", 2) for f in ("1/1", "3/1"))
    assert ran.json["distance"] == pytest.approx(float(model.pair_distance([(p, q)])[0]), rel=1e-9)
    assert run.good("sets", "distances", views, "--metric", "m.safetensors", "--json").json["names"][0] == "1/1"


def test_fit_refuses_what_it_cannot_learn_from(run: Runner, views: Path, tmp_path: Path) -> None:
    run("fit", views / "1", *PIXELS).refused("no classes")
    one = tmp_path / "one"
    shutil.copytree(views / "1", one / "1")
    run("fit", one, *PIXELS).refused("two classes")
    few = tmp_path / "few"
    for c in "12":
        shutil.copytree(views / c / "1", few / c / "1")
    run("fit", few, *PIXELS).refused("one member")
    run("fit", views, "--out", "model.pickle").refused(".safetensors")
    run("fit", views, "--rounds", "0").refused("rounds", "0")
    run("fit", tmp_path / "none").refused("no such file or folder")
    assert not Path("model.safetensors").exists()


def test_an_earlier_model_is_only_replaced_when_told(run: Runner, vectors: Path) -> None:
    quick = (*HELD, "--rounds", "1")
    assert run("fit", vectors, *quick, "--max-iter", "3").code == 0
    first = Path("model.safetensors").read_bytes()
    run("fit", vectors, *quick, "--max-iter", "1").refused("model.safetensors", "--overwrite")
    assert Path("model.safetensors").read_bytes() == first
    assert run("fit", vectors, *quick, "--max-iter", "1", "--overwrite", "--json").json["iterations"] == 1
    assert Path("model.safetensors").read_bytes() != first
    assert len(Path("model.run/metrics.jsonl").read_text().splitlines()) == 1


def test_a_run_that_failed_does_not_stand_in_the_way(run: Runner, vectors: Path, views: Path) -> None:
    run("fit", views / "1", *PIXELS).refused("no classes")
    assert Path("model.run").exists()
    assert run("fit", vectors, *HELD, "--rounds", "1", "--max-iter", "2").code == 0
