"""`likewise sets`: what comes in, what goes out, what is refused, and that it goes on where it was."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import likewise as lw
from likewise import cli
from likewise.cli.sources import Reader
from likewise.errors import InputError
from likewise.sets import data
from likewise.sets.data import thumbnails
from likewise.store.job import Job
from likewise.types import Signature
from worlds import layouts as worlds
from worlds.command import Ran

PIXELS = ("--features", "pixels")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run `likewise sets …` in an empty folder, in this process."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)

    def go(*words: str | Path) -> Ran:
        capsys.readouterr()
        code = cli.main(["sets", *map(str, words)])
        return Ran(code, *capsys.readouterr())

    return go


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """class/object/pictures: three classes of four objects."""
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
    assert cli.main(["sets", "fit", str(vectors), "--out", str(out), "--rho0", "0.1", "--rhot", "0.1"]) == 0
    return out


def is_png(path: Path) -> bool:
    with Image.open(path) as im:
        im.load()
        return im.format == "PNG"


def refused(ran: Ran, *words: str) -> None:
    """Exit 2, nothing on stdout, and a last line that says these words."""
    assert ran.code == 2
    assert ran.out == ""
    last = ran.err.splitlines()[-1]
    assert last.startswith("likewise: ")
    for word in words:
        assert word in last


# ── compare ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_compare_prints_one_line_and_writes_a_picture_and_a_json(run, views: Path) -> None:
    ran = run("compare", views / "1/1", views / "2/1", "--out", "o", *PIXELS)
    assert ran.code == 0
    assert ran.err == ""
    assert ran.out.startswith("SetComparison(distance=")
    assert ran.out.count("\n") == 1
    assert is_png(Path("o/compare.png"))
    said = json.loads(Path("o/compare.json").read_text())
    assert said["names"][0] == [str(views / "1/1" / f"{v:03d}.png") for v in range(3)]
    assert sorted(p.name for p in Path("o").iterdir()) == ["compare.json", "compare.png"]


def test_compare_json_on_stdout_is_the_file_and_the_library_s_number(run, views: Path) -> None:
    ran = run("compare", views / "1/1", views / "2/1", "--json", *PIXELS)
    assert ran.json == json.loads(Path("compare.json").read_text())
    p, q = (data.describe(views / f, "pixels") for f in ("1/1", "2/1"))
    assert ran.json["distance"] == lw.sets.compare(p, q).distance


def test_gamma_value_and_k_are_the_library_s(run, views: Path) -> None:
    ran = run(
        "compare", views / "1", views / "3", "--gamma", "2.5", "--value", "divergence", "--k", "4", "--json", *PIXELS
    )
    p, q = (data.describe(views / f, "pixels", 4) for f in ("1", "3"))
    assert ran.json["gamma"] == 2.5
    assert np.shape(ran.json["plan"]) == (4, 4)
    assert ran.json["distance"] == lw.sets.compare(p, q, gamma=2.5, value="divergence").distance


def test_pictures_are_embedded_by_default(run, views: Path) -> None:
    ran = run("compare", views / "1/1", views / "1/2", "--json")
    assert ran.json["features"] == "embed"
    paths = [sorted((views / f).iterdir()) for f in ("1/1", "1/2")]
    p, q = (lw.images.default().embed(files) for files in paths)
    assert ran.json["distance"] == pytest.approx(lw.sets.compare(p, q).distance, rel=1e-9)


def test_local_patterns_are_offered(run, views: Path) -> None:
    ran = run("compare", views / "1/1", views / "2/1", "--features", "lbp", "--json")
    assert ran.code == 0
    assert ran.json["features"] == "lbp"


def test_a_single_picture_is_a_set_of_one(run, views: Path) -> None:
    ran = run("compare", views / "1/1/000.png", views / "2/1/000.png", "--json", *PIXELS)
    a, b = (data.grey_pixels(views / f) for f in ("1/1/000.png", "2/1/000.png"))
    assert ran.json["distance"] == pytest.approx(float(((a - b) ** 2).sum()), rel=1e-12)


def test_videos_show_the_frame_nearest_to_each_centre(run, tmp_path: Path) -> None:
    a, b = (worlds.video(tmp_path / f"{n}.avi", step=s) for n, s in (("a", 4), ("b", 2)))
    ran = run("compare", a, b, "--every", "2", "--k", "3", "--json", *PIXELS)
    assert ran.code == 0
    assert is_png(Path("compare.png"))
    numbers = [int(name.rpartition("#")[2]) for name in ran.json["names"][0]]
    assert len(numbers) == 3
    assert all(n % 2 == 0 and n < 8 for n in numbers)


def test_each_point_of_a_video_is_named_by_its_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from likewise.cli import sources
    from likewise.media import frames

    monkeypatch.setattr(sources, "BATCH", 3)
    path = worlds.video(tmp_path / "a.avi", frames=10)
    s, every = Reader("pixels", k=20, every=2).one(path), list(frames(path))
    assert s.names == tuple(f"{path}#{n}" for n in (0, 2, 4, 6, 8))
    for point, number in zip(s.points, (0, 2, 4, 6, 8), strict=True):
        np.testing.assert_array_equal(point, data.grey_pixels(every[number])[0])


def test_thumbnails_of_a_video_are_its_own_frames(tmp_path: Path) -> None:
    from likewise.media import frames

    path = worlds.video(tmp_path / "a.avi")
    s = Signature(np.zeros((3, 1)), names=[f"{path}#5", f"{path}#0", f"{path}#5"])
    shown, every = thumbnails(s), list(frames(path))
    assert shown is not None
    for picture, number in zip(shown, (5, 0, 5), strict=True):
        np.testing.assert_array_equal(picture, every[number])


def test_points_without_pictures_have_no_thumbnails(tmp_path: Path) -> None:
    assert thumbnails(Signature([[0.0]])) is None
    assert thumbnails(Signature([[0.0]], names=["no such file.png"])) is None


def test_arrays_are_sets(run, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    P, Q, w = draw.normal(size=(5, 3)), draw.normal(size=(4, 3)), np.array([1.0, 2, 3, 4])
    np.savez(tmp_path / "p.npz", only=P)
    np.savez(tmp_path / "q.npz", points=Q, weights=w)
    ran = run("compare", tmp_path / "p.npz", tmp_path / "q.npz", "--json")
    assert ran.json["distance"] == lw.sets.compare(P, (Q, w)).distance


def test_one_set_of_many_is_chosen_by_name(run, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    sets = {"x": draw.normal(size=(5, 3)), "y": draw.normal(size=(4, 3))}
    np.savez(tmp_path / "many.npz", **sets)
    ran = run("compare", f"{tmp_path / 'many.npz'}#x", f"{tmp_path / 'many.npz'}#y", "--json")
    assert ran.json["distance"] == lw.sets.compare(sets["x"], sets["y"]).distance
    refused(run("compare", tmp_path / "many.npz", tmp_path / "many.npz"), "holds 2 sets", "#x")
    refused(run("compare", f"{tmp_path / 'many.npz'}#z", tmp_path / "many.npz"), "no set 'z'", "x, y")


def test_two_paths_of_one_name_are_told_apart(run, views: Path) -> None:
    from likewise.cli.terminal import labels_of

    assert labels_of("x/1", "y/1") == ("x/1", "y/1")
    assert labels_of("x/one", "x/two") == ("one", "two")


# ── unreadable pictures ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Two readable pictures, one truncated, one empty, one that is text, a hidden one and a text file."""
    folder = tmp_path / "damaged"
    for i in range(2):
        worlds.picture(folder / f"good{i}.png", i)
    whole = (folder / "good0.png").read_bytes()
    (folder / "torn.png").write_bytes(whole[:60])
    (folder / "empty.png").write_bytes(b"")
    (folder / "text.jpg").write_text("not a picture")
    (folder / ".hidden.png").write_text("x")
    (folder / "notes.txt").write_text("x")
    return folder


@pytest.mark.parametrize("features", ["pixels", "embed"])
def test_unreadable_pictures_are_named_counted_and_left_out(run, damaged: Path, features: str) -> None:
    ran = run("compare", damaged, damaged / "good1.png", "--features", features, "--json")
    assert ran.code == 0
    assert np.shape(ran.json["plan"]) == (2, 1)
    assert "3 unreadable pictures left out" in ran.err
    names = {Path(entry["name"]).name for entry in ran.json["left_out"]}
    assert names == {"torn.png", "empty.png", "text.jpg"}
    for name in names:
        assert name in ran.err


def test_a_folder_of_nothing_but_unreadable_pictures_is_refused(run, damaged: Path) -> None:
    for good in damaged.glob("good*"):
        good.unlink()
    refused(run("compare", damaged, damaged, *PIXELS), "no picture in it can be read", "of 3")
    assert not Path("compare.json").exists()


def test_empty_missing_and_foreign_folders_are_refused(run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("x")
    (tmp_path / "odd.avi").write_text("not a video")
    good = worlds.picture(tmp_path / "good" / "a.png", 0).parent
    refused(run("compare", tmp_path / "empty", good, *PIXELS), "empty", "no picture")
    refused(run("compare", good, tmp_path / "notes", *PIXELS), "notes", "no picture")
    refused(run("compare", good, tmp_path / "none", *PIXELS), "no such file or folder")
    refused(run("compare", good, tmp_path / "odd.avi", *PIXELS), "odd.avi")


def test_more_than_five_unreadable_pictures_are_not_all_named(run, damaged: Path) -> None:
    for i in range(6):
        (damaged / f"more{i}.png").write_bytes(b"")
    ran = run("compare", damaged, damaged, *PIXELS)
    assert "18 unreadable pictures" in ran.err
    assert "and 13 more" in ran.err


def test_a_set_of_which_nothing_is_left_is_left_out(run, views: Path, tmp_path: Path) -> None:
    root = shutil.copytree(views, tmp_path / "copy")
    for p in (root / "1" / "1").iterdir():
        p.write_bytes(p.read_bytes()[:50])
    ran = run("distances", root, "--json", *PIXELS)
    assert ran.code == 0
    assert ran.json["shape"] == [11, 11]
    assert "1/1" not in ran.json["names"]
    assert len(ran.json["left_out"]) == 3


def test_a_class_that_holds_pictures_but_no_sets_is_told(run, views: Path, tmp_path: Path) -> None:
    root = shutil.copytree(views, tmp_path / "mixed")
    worlds.picture(root / "loose" / "a.png", 0)
    ran = run("distances", root, *PIXELS)
    assert ran.code == 0
    assert "loose: passed over" in ran.err


# ── distances ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_distances_are_the_library_s_and_rows_are_named(run, views: Path) -> None:
    ran = run("distances", views, "--out", "D.npy", "--block", "5", "--json", *PIXELS)
    D = np.load("D.npy", allow_pickle=False)
    sets = data.read_sets(views, "pixels").signatures
    np.testing.assert_allclose(D, lw.sets.distances(sets), rtol=1e-9)
    said = json.loads(Path("D.json").read_text())
    assert ran.json == said
    assert said["names"][:2] == ["1/1", "1/2"]
    assert said["labels"] == ["1"] * 4 + ["2"] * 4 + ["3"] * 4
    assert sorted(p.name for p in Path().iterdir()) == ["D.json", "D.npy"]


def test_a_folder_of_videos_has_distances(run, tmp_path: Path) -> None:
    for i in range(3):
        worlds.video(tmp_path / "v" / f"{i}.avi", step=i + 2)
    ran = run("distances", tmp_path / "v", *PIXELS)
    assert ran.out.startswith("3×3 distances, kl, gamma=")


def test_a_finished_matrix_is_looked_up_and_another_is_refused(run, vectors: Path) -> None:
    assert run("distances", vectors, "--out", "D.npy").code == 0
    before = Path("D.npy").stat().st_mtime_ns, Path("D.json").read_text()
    seconds = json.loads(before[1])["seconds"]
    assert run("distances", vectors, "--out", "D.npy", "--json").json["seconds"] == seconds
    refused(run("distances", vectors, "--out", "D.npy", "--value", "sharp"), "D.npy", "value", "--no-resume")
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


def test_a_killed_matrix_resumes(run, vectors: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_joblib_gives_the_same_matrix(run, vectors: Path) -> None:
    assert run("distances", vectors, "--out", "one.npy", "--block", "8").code == 0
    assert run("distances", vectors, "--out", "two.npy", "--block", "8", "--n-jobs", "2").code == 0
    assert Path("one.npy").read_bytes() == Path("two.npy").read_bytes()


def test_bad_settings_are_refused_before_any_work(run, vectors: Path, views: Path) -> None:
    refused(run("distances", vectors, "--out", "D.txt"), "out", ".npy")
    refused(run("distances", vectors, "--executor", "slurm"), "executor", "dask")
    refused(run("distances", vectors, "--gamma", "-1"), "gamma", "-1")
    refused(run("distances", vectors, "--level", "a"), "level", "--metric")
    refused(run("distances", views / "1" / "1", *PIXELS), "no sets found")
    assert list(Path().iterdir()) == []


# ── fit ───────────────────────────────────────────────────────────────────────────────────────────────────────────


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
    assert made.config["rho0"] == 0.1
    assert is_png(made.path / "history.png")


def test_leave_one_out_is_a_naive_loop(fitted: Path, vectors: Path) -> None:
    said = json.loads((fitted.parent / "fit.json").read_text())["leave_one_out"]
    model, sets = lw.load(fitted), data.read_sets(vectors)
    X, y = sets.signatures, sets.labels
    D = lw.sets.distances(model.project(X))
    for name, matrix in (("unlearned", D), ("learned", model.pairwise(X))):
        hits = [y[min((j for j in range(len(X)) if j != i), key=lambda j: matrix[i, j])] == y[i] for i in range(len(X))]
        assert said[name] == pytest.approx(np.mean(hits))


def test_a_fitted_model_takes_pictures_again(run, views: Path) -> None:
    words = ("--features", "pixels", "--k", "2", "--pca", "5", "--rho0", "0.1", "--rhot", "0.1")
    ran = run("fit", views, "--out", "m.safetensors", *words, "--json")
    assert ran.json["dimensions"] == {"described": 400, "learned": 5}
    model = lw.load("m.safetensors")
    assert model.source_ == {"features": "pixels", "k": 2, "every": 1, "seed": 0}
    ran = run("compare", views / "1/1", views / "3/1", "--metric", "m.safetensors", "--json")
    assert ran.json["features"] == "pixels"
    assert np.shape(ran.json["plan"]) == (2, 2)
    p, q = (data.describe(views / f, "pixels", 2) for f in ("1/1", "3/1"))
    assert ran.json["distance"] == pytest.approx(float(model.pair_distance([(p, q)])[0]), rel=1e-9)
    assert run("distances", views, "--metric", "m.safetensors", "--json").json["names"][0] == "1/1"


def test_a_level_has_its_own_metric(run, fitted: Path, vectors: Path) -> None:
    a, b = f"{vectors}#0", f"{vectors}#9"
    model, sets = lw.load(fitted), data.read_sets(vectors).signatures
    for level in ("a", "b"):
        ran = run("compare", a, b, "--metric", fitted, "--level", level, "--json")
        want = model.pair_distance([(sets[0], sets[9])], levels=level)[0]
        assert ran.json["distance"] == pytest.approx(float(want), rel=1e-9)
    refused(run("compare", a, b, "--metric", fitted, "--level", "z"), "no level 'z'", "a, b, c")
    refused(run("compare", a, b, "--level", "a"), "--metric")


def test_fit_refuses_what_it_cannot_learn_from(run, views: Path, tmp_path: Path) -> None:
    refused(run("fit", views / "1", *PIXELS), "no classes")
    one = tmp_path / "one"
    shutil.copytree(views / "1", one / "1")
    refused(run("fit", one, *PIXELS), "two classes")
    few = tmp_path / "few"
    for c in "12":
        shutil.copytree(views / c / "1", few / c / "1")
    refused(run("fit", few, *PIXELS), "one member")
    refused(run("fit", views, "--out", "model.pickle"), ".safetensors")
    refused(run("fit", views, "--mu", "2"), "mu", "2")
    refused(run("fit", tmp_path / "none"), "no such file or folder")
    assert not Path("model.safetensors").exists()


def test_an_earlier_model_is_only_replaced_when_told(run, vectors: Path) -> None:
    quick = ("--rho0", "0.1", "--rhot", "0.1", "--rounds", "1")
    assert run("fit", vectors, *quick, "--max-iter", "3").code == 0
    first = Path("model.safetensors").read_bytes()
    refused(run("fit", vectors, *quick, "--max-iter", "1"), "model.safetensors", "--overwrite")
    assert Path("model.safetensors").read_bytes() == first
    assert run("fit", vectors, *quick, "--max-iter", "1", "--overwrite", "--json").json["iterations"] == 1
    assert Path("model.safetensors").read_bytes() != first
    assert len(Path("model.run/metrics.jsonl").read_text().splitlines()) == 1


def test_a_run_that_failed_does_not_stand_in_the_way(run, vectors: Path, views: Path) -> None:
    refused(run("fit", views / "1", *PIXELS), "no classes")
    assert Path("model.run").exists()
    assert run("fit", vectors, "--rho0", "0.1", "--rhot", "0.1", "--rounds", "1", "--max-iter", "2").code == 0


# ── models in files ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_model_of_numbers_compares_sets(vectors: Path, tmp_path: Path, run) -> None:
    sets = data.read_sets(vectors)
    bare = lw.sets.WassersteinLMNN(rho0=0.1, rhot=0.1, rounds=1, max_iter=2).fit(sets.signatures, sets.labels)
    lw.save(bare, tmp_path / "bare.safetensors")
    ran = run("compare", f"{vectors}#0", f"{vectors}#9", "--metric", tmp_path / "bare.safetensors", "--json")
    want = bare.pair_distance([(sets.signatures[0], sets.signatures[9])])[0]
    assert ran.json["distance"] == pytest.approx(float(want), rel=1e-9)


def test_a_model_that_is_none_is_refused(run, vectors: Path, tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(b"nothing")
    refused(run("compare", vectors, vectors, "--metric", tmp_path / "m.safetensors"), "m.safetensors")
    refused(run("compare", vectors, vectors, "--metric", tmp_path / "none"), "does not exist")


def test_a_reader_of_unknown_features_is_refused(views: Path) -> None:
    with pytest.raises(InputError, match="embed, pixels, lbp"):
        Reader("magic").one(views / "1" / "1")


# ── as a program ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_as_a_program_it_is_quiet_where_nobody_watches(views: Path, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "likewise.cli", "sets", "compare", str(views / "1/1"), str(views / "2/1"), *PIXELS]
    ran = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert ran.returncode == 0
    assert ran.stderr == ""
    assert ran.stdout.startswith("SetComparison(distance=")
    ran = subprocess.run([*line[:5], "nowhere", "nowhere"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr == "likewise: nowhere: no such file or folder\n"
