"""The tables of MLML run on made-up files in the public layouts, and resume."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from likewise.errors import FileError, InputError
from likewise.papers.mlml import EVERY, TABLES
from likewise.train.options import build
from worlds import layouts

PLAIN = "Euclid; Sinkhorn, unlearned"


def run(name, data, **given):
    table = next(t for t in TABLES if t.name == name)
    return table.run(build(table.options, {"data": str(data), "methods": PLAIN, "pca": 0, "resamples": 2, **given}))


def test_image_sets_resume_from_their_cells(tmp_path):
    root, cells = layouts.views(tmp_path / "views"), tmp_path / "cells"
    first = run("image-sets", root, train_objects=2, cells=str(cells))
    assert first.columns == ["method", "accuracy", "accuracy ±"]
    assert [row["method"] for row in first.rows] == ["Euclid", "Sinkhorn, unlearned"]
    assert [row["accuracy"] for row in first.rows] == [1.0, 1.0]
    assert len(list(cells.iterdir())) == 2
    again = run("image-sets", root, train_objects=2, cells=str(cells))
    assert again.rows == first.rows  # seconds, too: nothing was measured again


def test_kinship_has_the_four_relations(tmp_path):
    made = run("kinship", layouts.kinfacew(tmp_path), pca=10)
    assert made.columns[1::2] == ["fs", "fd", "ms", "md", "mean"]
    assert all(0 <= row["mean"] <= 1 for row in made.rows)


@pytest.mark.parametrize("layout", ["prid", "ilids"])
def test_people_are_found_again(tmp_path, layout):
    """A person's images are the same in both cameras of these worlds, so rank 1 is certain."""
    made = run("re-identification", getattr(layouts, layout)(tmp_path))
    assert [row["rank 1"] for row in made.rows] == [1.0, 1.0]
    assert {"rank 1", "PUR"} <= set(made.columns)


@pytest.mark.slow
def test_traffic_and_time_series(tmp_path):
    made = run("traffic", layouts.traffic(tmp_path / "t", ("light", "heavy", "heavy") * 2), k=3)
    assert all(0 <= row["accuracy"] <= 1 for row in made.rows)
    head = layouts.TS.split("@data")[0] + "@data\n"
    train, test = "1,2:5,6:up|1,1:5,5:up|9,9:1,2:down|8,9:1,1:down", "1,2:5,5:up|9,8:2,1:down"
    for part, lines in (("TRAIN", train), ("TEST", test)):
        (tmp_path / f"Toy_{part}.ts").write_text(head + lines.replace("|", "\n") + "\n")
    assert [row["accuracy"] for row in run("classification", tmp_path).rows] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("table", "world", "methods", "figure", "pictures"),
    [
        ("image-sets", layouts.views, "all", "accuracy", ["accuracy"]),
        (
            "kinship",
            layouts.kinfacew,
            "Euclid; svm; KISSME",
            "mean",
            [f"roc-{r}" for r in ("fd", "fs", "md", "mean", "ms")],
        ),
        ("re-identification", partial(layouts.prid, both=8), "all", "rank 1", ["cmc"]),
    ],
    ids=["image-sets", "kinship", "re-identification"],
)
def test_every_method_runs_by_its_name(tmp_path, table, world, methods, figure, pictures):
    """These worlds are easy; ROC and CMC rise to 1 and are drawn."""
    given = {"methods": methods, "pca": 4, "resamples": 1, "train_objects": 2, "plot": str(tmp_path / "drawn")}
    made = run(table, world(tmp_path / "data"), **given)
    assert [row["method"] for row in made.rows] == (list(EVERY) if methods == "all" else ["Euclid", "SVM", "KISSME"])
    for row in made.rows:
        assert 0.6 < row[figure] <= 1, row
        for _, x, y in row.get("curves", {}).values():
            assert len(x) == len(y)
            assert (np.diff(y) >= 0).all()
            assert y[-1] == 1
    assert sorted(p.stem for p in (tmp_path / "drawn").glob("*.png")) == pictures


def test_unknown_methods_are_refused_before_any_data_is_read(tmp_path, monkeypatch):
    for words in ("magic", "Euclid; magic", ""):
        with pytest.raises(InputError, match=r"methods: expected some of Euclid; .*; kNN; .*; as printed"):
            run("image-sets", tmp_path, methods=words)
    with pytest.raises(FileError, match="expected NAME_TRAIN"):
        run("classification", tmp_path)
    monkeypatch.delenv("LIKEWISE_DATA", raising=False)
    with pytest.raises(InputError, match="data: expected"):
        run("suite", "")
