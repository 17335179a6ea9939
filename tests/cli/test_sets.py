"""`likewise sets`: what comes in, what goes out, what is refused, and that it resumes where it was."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import likewise as lw
from likewise import cli
from likewise.sets import data
from likewise.store.job import Job
from likewise.store.run import Run
from likewise.types import Signature
from worlds import layouts as worlds
from worlds.command import Runner, formats

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
    worlds.stack_sets(path, sets, labels=y)
    return path


@pytest.fixture(scope="module")
def fitted(vectors: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the vectors, with its JSON, picture and run directory."""
    out = tmp_path_factory.mktemp("fitted") / "m.safetensors"
    assert cli.main(["sets", "fit", str(vectors), "--out", str(out), *HELD]) == 0
    return out


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
    ran = run.good("distances", views, "--out", "D", "--block", "5", "--json", *PIXELS)
    sets = data.read_sets(views, "pixels").signatures
    np.testing.assert_allclose(np.load("D/distances.npy", allow_pickle=False), lw.sets.distances(sets), rtol=1e-4)
    assert ran.json == json.loads(Path("D/distances.json").read_text())
    assert ran.json["names"][:2] == ["1/1", "1/2"]
    assert ran.json["labels"] == ["1"] * 4 + ["2"] * 4 + ["3"] * 4


def test_one_readable_set_has_no_distances(run: Runner, views: Path, tmp_path: Path) -> None:
    root = tmp_path / "one"
    shutil.copytree(views / "1" / "1", root / "whole")
    (root / "torn").mkdir()
    (root / "torn" / "a.png").write_bytes(next((root / "whole").iterdir()).read_bytes()[:60])
    ran = run("distances", root, "--out", "D", *PIXELS)
    assert ran.code == 2
    assert "two sets or more" in ran.err
    assert "cannot be read" in ran.err
    shutil.rmtree(root / "whole")
    run("distances", root, "--out", "D", *PIXELS).refused("no image in its 1 sets can be read")
    assert not Path("D/distances.npy").exists()


def test_a_folder_of_videos_has_distances(run: Runner, tmp_path: Path) -> None:
    for i in range(3):
        worlds.video(tmp_path / "v" / f"{i}.avi", step=i + 2)
    assert run("distances", tmp_path / "v", *PIXELS).out.startswith("3×3 distances, divergence, gamma=")


def test_a_finished_matrix_is_looked_up_and_another_is_refused(run: Runner, vectors: Path) -> None:
    run.good("distances", vectors, "--out", "D")
    before = Path("D/distances.json").read_text()
    again = run.good("distances", vectors, "--out", "D", "--json").json
    assert again["seconds"] == json.loads(before)["seconds"]
    run("distances", vectors, "--out", "D", "--value", "sharp").refused("D holds another", "value", "--no-resume")
    assert Path("D/distances.json").read_text() == before
    run.good("distances", vectors, "--out", "D", "--value", "sharp", "--no-resume")
    assert json.loads(Path("D/distances.json").read_text())["key"]["value"] == "sharp"


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
    words = ["sets", "distances", str(vectors), "--out", "D", "--block", "6"]
    killed = subprocess.run([sys.executable, "-c", KILLED, *words], capture_output=True, text=True, check=False)
    assert killed.returncode == -9
    assert not Path("D/distances.npy").exists()
    job = Job.open("D")
    assert (len(job), len(job.missing())) == (10, 7)
    written, write = [], Job._write
    monkeypatch.setattr(Job, "_write", lambda self, name, data: written.append(name) or write(self, name, data))
    assert run(*words[1:]).code == 0
    assert written == list(range(3, 10))
    want = lw.sets.distances(data.read_sets(vectors).signatures)
    np.testing.assert_allclose(np.load("D/distances.npy"), want, rtol=1e-4)


def test_joblib_gives_the_same_matrix(run: Runner, vectors: Path) -> None:
    for out, jobs in (("one", 1), ("two", 2)):
        run.good("distances", vectors, "--out", out, "--block", "8", "--n-jobs", jobs)
    assert Path("one/distances.npy").read_bytes() == Path("two/distances.npy").read_bytes()


def test_fit_writes_a_model_figures_a_picture_and_a_run(fitted: Path) -> None:
    said = json.loads((fitted.parent / "fit.json").read_text())
    assert said["classes"] == {"a": 8, "b": 8, "c": 8}
    assert said["objective"] < said["objective_at_start"]
    assert formats(fitted.parent) == {"fit.png": "PNG"}
    made = Run.open(fitted.with_suffix(".run"))
    assert made.result is not None
    assert made.result["objective"] == said["objective"]
    assert len([line for line in made.metrics() if line["stage"] == "learning"]) == said["iterations"] > 0


def test_a_fitted_model_takes_images_again(run: Runner, views: Path) -> None:
    words = ("--features", "pixels", "--k", "2", "--pca", "5", "--max-iter", "3", *HELD)
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("distances", "{vectors}", "--executor", "slurm"), ("executor", "dask")),
        (("distances", "{vectors}", "--gamma", "-1"), ("gamma", "-1")),
        (("distances", "{vectors}", "--metric-level", "a"), ("level", "--metric")),
        (("distances", "{views}/1/1", *PIXELS), ("no sets found",)),
        (("fit", "{views}/1", *PIXELS), ("no classes",)),
        (("fit", "one", *PIXELS), ("two classes",)),
        (("fit", "few", *PIXELS), ("one member",)),
        (("fit", "{views}", "--out", "model.pickle"), (".safetensors",)),
        (("fit", "{views}", "--max-iter", "-1"), ("max_iter", "-1")),
        (("fit", "none"), ("no such file or folder",)),
    ],
)
def test_refusals_are_one_line(run: Runner, vectors: Path, views: Path, words: tuple[str, ...], said: Any) -> None:
    shutil.copytree(views / "1", "one/1")
    for c in "12":
        shutil.copytree(views / c / "1", f"few/{c}/1")
    run(*(word.format(vectors=vectors, views=views) for word in words)).refused(*said)
    assert not Path("model.safetensors").exists()
    assert not Path("distances/distances.npy").exists()


def test_an_earlier_model_is_only_replaced_when_told(run: Runner, vectors: Path) -> None:
    assert run("fit", vectors, *HELD, "--max-iter", "3").code == 0
    first = Path("model.safetensors").read_bytes()
    run("fit", vectors, *HELD, "--max-iter", "1").refused("model.safetensors", "--overwrite")
    assert Path("model.safetensors").read_bytes() == first
    assert run("fit", vectors, *HELD, "--max-iter", "1", "--overwrite", "--json").json["options"]["max_iter"] == 1
    assert Path("model.safetensors").read_bytes() != first
    steps = [json.loads(line)["step"] for line in Path("model.run/metrics.jsonl").read_text().splitlines()]
    assert steps == [0, *range(1, len(steps))]  # the first run's lines are gone


def test_a_run_that_failed_does_not_stand_in_the_way(run: Runner, vectors: Path, views: Path) -> None:
    run("fit", views / "1", *PIXELS).refused("no classes")
    assert Path("model.run").exists()
    assert run("fit", vectors, *HELD, "--max-iter", "2").code == 0
