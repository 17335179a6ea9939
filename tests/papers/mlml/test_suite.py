"""The suite that decides the defaults of sets: what its collections are made of, and how its tables are read."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from likewise.errors import InputError
from likewise.papers import mlml
from likewise.papers.mlml import TABLES, suite
from likewise.sets.data import SetCollection, named_feature
from likewise.train.options import build
from likewise.types import Signature
from worlds import layouts


def run(name, **given):
    table = next(t for t in TABLES if t.name == name)
    return table.run(build(table.options, {"data": "nowhere", **given}))


def toy(name, shift, seed=0):
    """A collection of two classes of single points, `shift` apart."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(["a", "b"], 12)
    sets = [Signature(rng.normal(size=(2, 3)) + shift * (label == "b")) for label in labels]
    return suite._drawn(name, SetCollection(sets, labels=labels), 6, 0, 2)


@pytest.fixture
def toys(monkeypatch):
    made = {"far": partial(toy, "far", 20.0), "near": partial(toy, "near", 0.0), "mid": partial(toy, "mid", 2.0)}
    monkeypatch.setattr(suite, "collections", lambda *_: made)


def test_a_row_a_collection_with_errors_and_the_mean_of_all(toys):
    made = run("suite", methods="Euclid; Sinkhorn, unlearned")
    assert made.columns == ["collection", "Euclid", "Sinkhorn, unlearned"]
    assert [row["collection"] for row in made.rows] == ["far", "near", "mid", "mean"]
    assert made.rows[0]["Euclid"] == "1.000 ± 0.000"
    for method in made.columns[1:]:
        each = [float(row[method].split(" ± ")[0]) for row in made.rows[:-1]]
        assert made.rows[-1][method] == pytest.approx(np.mean(each), abs=1e-3)
    only = run("suite", methods="Euclid", only="near; mid")
    assert [row["collection"] for row in only.rows] == ["near", "mid", "mean"]
    with pytest.raises(InputError, match="only: expected some of far; near; mid, got 'none'"):
        run("suite", methods="Euclid", only="none")


def test_a_setting_is_chosen_by_the_other_collections(toys, monkeypatch):
    """Setting A is best on far and mid, B on near alone: near must be given A, and never what is best on it."""
    one, two = "γ 0.2, unlearned", "γ 1, ρ 0.3"
    figures = {one: {"far": 0.9, "near": 0.2, "mid": 0.9}, two: {"far": 0.6, "near": 0.8, "mid": 0.6}}

    def cell(o, column, name, model):
        return {column.name: figures.get(name, {}).get(column.name, 0.0)}

    monkeypatch.setattr(mlml, "_cell", cell)
    rows = {row["collection"]: row for row in run("settings").rows}
    assert (rows["near"]["the others choose"], rows["near"]["accuracy"]) == (one, 0.2)
    assert (rows["near"]["best"], rows["near"]["its accuracy"]) == (two, 0.8)
    assert rows["far"]["the others choose"] == two  # 0.8 + 0.6 of the others against 0.2 + 0.9
    assert rows["mean"]["accuracy"] == pytest.approx((0.6 + 0.2 + 0.6) / 3, abs=1e-4)
    assert rows["mean"][one] == pytest.approx(2.0 / 3, abs=1e-4)


def test_settings_are_learned_as_they_are_named(toys, monkeypatch):
    seen = {}

    def cell(o, column, name, model):
        seen[name] = (model.gamma, model.rho0, model.max_iter, model.start, model.multilevel)
        return {column.name: 0.5}

    monkeypatch.setattr(mlml, "_cell", cell)
    run("settings")
    assert len(seen) == len(mlml.GAMMAS) * len(mlml.RHOS)
    assert seen["γ 0.2, ρ 0.3"] == (0.2, 0.3, 20, "identity", False)
    assert seen["γ 1, unlearned"] == (1.0, "auto", 0, "identity", False)


def test_a_test_part_is_cut_class_by_class():
    labels = np.array(["a"] * 5 + ["b"] * 3)
    few = suite._few(np.arange(8), labels, 4, 0)
    assert (labels[few] == "a").sum() == 4
    assert (labels[few] == "b").sum() == 3
    assert few.tolist() == sorted(set(few.tolist()))


def test_ink_has_a_place_and_a_direction():
    image = np.zeros((40, 40))
    image[20, 5:35] = 1.0  # a horizontal stroke: intensity changes across it, along y
    x, y, along, across = suite._ink(image)[len(range(5, 35)) // 2]
    assert abs(x) < 0.2
    assert y == pytest.approx(0.0)
    assert along == pytest.approx(-0.5, abs=0.05)
    assert across == pytest.approx(0.0, abs=0.05)
    upright = suite._ink(image.T)[15]
    assert upright[2] == pytest.approx(0.5, abs=0.05)
    turned = suite._ink(np.eye(40))[20]
    assert abs(turned[3]) == pytest.approx(0.5, abs=0.05)


def test_a_digit_is_a_bag_of_patches_with_their_places():
    sets = suite._digits()
    assert len(sets) == 1797
    assert {s.points.shape for s in sets.signatures} == {(36, 11)}
    places = sets.signatures[0].points[:, 9:]
    assert {tuple(p) for p in places.tolist()} == {(2.0 * r, 2.0 * c) for r in range(6) for c in range(6)}


def test_photos_are_described_once(tmp_path: Path, monkeypatch):
    files = []
    for k in range(3):
        files.append(tmp_path / f"{k}.png")
        Image.fromarray(np.full((24, 24, 3), 40 * k, np.uint8)).save(files[-1])
    rows = suite._features(files, "pixels", tmp_path / "cells", "some photos")
    assert rows.shape == (3, 400)
    monkeypatch.setattr(suite, "extract", lambda *_: pytest.fail("described again"))
    np.testing.assert_allclose(suite._features(files, "pixels", tmp_path / "cells", "some photos"), rows, atol=1e-6)


def test_objects_and_walks_of_made_up_folders(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(suite, "named_feature", lambda _: named_feature("pixels"))
    unlearned = mlml.ON_SETS["Sinkhorn, unlearned"]()
    made = suite._objects("objects", layouts.views(tmp_path / "views", objects=7), None, None, 0, 2)
    assert made.measure(unlearned)["accuracy"] == (1.0, 1.0)  # a class is a brightness
    for k in range(32):
        for side in ("reference", "query"):
            (tmp_path / side).mkdir(exist_ok=True)
            shade = np.full((24, 24, 3), 30 * (k // 4), np.uint8)
            shade[k % 4 :: 4] += 5
            Image.fromarray(shade).save(tmp_path / side / f"{k:03d}.png")
    walk = suite._places(tmp_path, None, 0, 2)
    assert walk.measure(unlearned)["rank 1"] == (1.0, 1.0)


@pytest.mark.slow
def test_every_collection_is_there_where_its_data_is(data: Path, tmp_path: Path):
    if find_spec("aeon") is None:
        pytest.skip("pip install --no-deps aeon: series in its wheel")
    for name, make in suite.collections(data, tmp_path, 0, 1).items():
        if name in ("cub200", "eth80 embedded", "campus"):  # minutes of embedding
            continue
        made = make()
        assert made.name.startswith(name)
        values = next(iter(made.measure(mlml.rivals.OfVectors(mlml.METRICS["Euclid"](), made.vectors)).values()))
        assert all(0 < v <= 1 for v in values), name
