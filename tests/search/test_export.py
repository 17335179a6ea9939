"""Results for other programs: read back by csv, by COLMAP itself, and field by field as FiftyOne names them."""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import likewise as lw
from likewise.errors import InputError
from likewise.search.duplicates import Copy, Group
from likewise.search.export import COLUMNS, export
from likewise.search.result import Hit, Result
from likewise.search.shortlist import shots

TOLD = {"matches": 40, "inliers": 31, "model": "homography", "reason": ""}
EVIDENCE: Any = SimpleNamespace(to_dict=lambda: TOLD, few=False, repetitive=False)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Four photos in two folders; b tells when and where it was taken."""
    exif = Image.Exif()
    exif.get_ifd(0x8769).update({0x9003: "2023:06:01 12:30:05", 0x9011: "+02:00"})
    exif.get_ifd(0x8825).update({1: "N", 2: (47, 30, 0), 3: "W", 4: (8, 15, 0)})
    for name in ("asked/a.jpg", "asked/d.jpg", "kept/b.jpg", "kept/c.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        given = {"exif": exif} if name == "kept/b.jpg" else {}
        Image.fromarray(np.full((8, 8, 3), ord(name[-5]), np.uint8)).save(tmp_path / name, **given)
    return tmp_path


def result(root: Path, query: str, *hits: tuple[str, float]) -> Result:
    """A search that gave these photos with these probabilities; those above one half were verified."""
    made = [
        Hit(str(root / name), rank, 0.25 * rank, probability=p, evidence=EVIDENCE if p > 0.5 else None)
        for rank, (name, p) in enumerate(hits, 1)
    ]
    return Result(shots(str(root / query)), tuple(made), "index", {})


@pytest.fixture
def results(photos: Path) -> list[Result]:
    return [
        result(photos, "asked/a.jpg", ("kept/b.jpg", 0.97), ("kept/c.jpg", 0.6), ("asked/a.jpg", 1.0)),
        result(photos, "asked/d.jpg", ("kept/b.jpg", 0.05), ("asked/a.jpg", 0.95)),
    ]


# ── tables ────────────────────────────────────────────────────────────────────────────────────────────────────────


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_table_has_a_row_a_hit(photos: Path, results: list[Result]) -> None:
    rows = rows_of(export(results, photos / "out.csv"))
    assert [(Path(r["query"]).name, r["rank"], Path(r["path"]).name) for r in rows] == [
        ("a.jpg", "1", "b.jpg"), ("a.jpg", "2", "c.jpg"), ("a.jpg", "3", "a.jpg"),
        ("d.jpg", "1", "b.jpg"), ("d.jpg", "2", "a.jpg"),
    ]  # fmt: skip
    assert tuple(rows[0]) == COLUMNS
    told = {"verdict": "same", "probability": "0.97", "distance": "0.25", "inliers": "31", "matches": "40"}
    told |= {"model": "homography", "taken": "2023-06-01T12:30:05+02:00", "latitude": "47.5", "longitude": "-8.25"}
    assert {name: rows[0][name] for name in told} == told
    assert (rows[3]["verdict"], rows[3]["inliers"], rows[1]["taken"]) == ("different", "", "")
    assert rows_of(export(results[0], photos / "one.csv")) == rows[:3]
    assert rows_of(export([], photos / "none.csv")) == []


@pytest.mark.parametrize("name", ['=cmd|"x"!A1', "+1", "-1", "@x", "\t=1", "＝1", 'a,"b"\n=c', "ä ü", "plain"])
def test_no_cell_is_a_formula_and_no_name_breaks_a_row(tmp_path: Path, name: str) -> None:
    (row,) = rows_of(export([[name]], tmp_path / "x.csv"))
    assert not row["path"].startswith(tuple("=+-@\t＝"))
    assert row["path"].removeprefix("'") == name


@pytest.mark.skipif(sys.platform != "linux", reason="names are bytes on Linux alone")
def test_a_name_that_is_not_utf8_is_written(photos: Path) -> None:
    odd = os.fsdecode(os.fsencode(photos) + b"/kept/\xe4.jpg")
    os.rename(photos / "kept" / "b.jpg", odd)
    made = [[str(photos / "kept" / "c.jpg"), odd]]
    assert rows_of(export(made, photos / "x.csv"))[1]["path"].endswith(r"\udce4.jpg")
    assert (export(made, photos / "x.colmap") / "pairs.txt").read_bytes() == b"c.jpg \xe4.jpg\n"
    with pytest.raises(InputError, match="UTF-8"):
        export(made, photos / "x.fiftyone")


def test_groups_bring_what_they_say_of_each_photo(photos: Path) -> None:
    b, c = (str(photos / "kept" / f"{n}.jpg") for n in "bc")
    group = Group((Copy(b, "keep", "", (8, 8), 9), Copy(c, "crop 64%", "12 inliers", (6, 6), 5)))
    table = rows_of(export([["x.jpg", "y.jpg"], group], photos / "x.csv"))
    assert [(r["group"], Path(r["path"]).name, r["what"], r["why"]) for r in table] == [
        ("1", "x.jpg", "", ""), ("1", "y.jpg", "", ""), ("2", "b.jpg", "keep", ""),
        ("2", "c.jpg", "crop 64%", "12 inliers"),
    ]  # fmt: skip
    assert table[2]["latitude"] == "47.5"


# ── COLMAP ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_colmap_reads_the_pairs(photos: Path, results: list[Result]) -> None:
    pycolmap = pytest.importorskip("pycolmap", reason="pip install 'likewise[sfm]'")
    made = export(results, photos / "out.colmap")
    names = (made / "images.txt").read_text().split()
    assert names == ["asked/a.jpg", "kept/b.jpg", "asked/d.jpg"]
    ids = {}
    with pycolmap.Database.open(":memory:") as database:
        camera = database.write_camera(pycolmap.Camera(model="SIMPLE_PINHOLE", width=8, height=8, params=[10, 4, 4]))
        for name in names:
            ids[database.write_image(pycolmap.Image(name=name, camera_id=camera))] = name
        options = pycolmap.ImportedPairingOptions()
        options.match_list_path = str(made / "pairs.txt")
        pairs = pycolmap.ImportedPairGenerator(options, database).all_pairs()
    assert {frozenset(ids[i] for i in pair) for pair in pairs} == {
        frozenset({"asked/a.jpg", "kept/b.jpg"}), frozenset({"asked/d.jpg", "asked/a.jpg"}),
    }  # fmt: skip


def test_pairs_follow_the_probability_the_root_and_the_groups(photos: Path, results: list[Result]) -> None:
    def lines(*given: Any, **options: Any) -> list[str]:
        return (export(*given, photos / "x", format="colmap", **options) / "pairs.txt").read_text().splitlines()

    assert lines(results) == ["asked/a.jpg kept/b.jpg", "asked/d.jpg asked/a.jpg"]
    assert lines(results, least=0.5)[1] == "asked/a.jpg kept/c.jpg"
    assert lines(results[0], root=photos.parent)[0].split("/")[0] == photos.name
    assert lines([[str(photos / f"kept/{n}.jpg") for n in "bc"], [str(photos / "asked/a.jpg")]]) == ["b.jpg c.jpg"]
    assert lines([]) == []
    with pytest.raises(InputError, match="outside of root"):
        lines(results, root=photos / "kept")
    with pytest.raises(InputError, match="query is no file"):
        lines(Result(shots(np.zeros((8, 8, 3), np.uint8)), results[0].hits, "index", {}))
    (photos / "kept" / "b.jpg").rename(photos / "kept" / "b b.jpg")
    with pytest.raises(InputError, match=r"'kept/b b\.jpg' cannot stand .* a space"):
        lines(result(photos, "asked/a.jpg", ("kept/b b.jpg", 0.95)))


# ── FiftyOne, and what is refused ─────────────────────────────────────────────────────────────────────────────────


def test_fiftyone_gets_a_sample_a_photo_with_its_searches(photos: Path, results: list[Result]) -> None:
    """What is asserted here was imported by FiftyOne 1.22: fields, tags, labels with their attributes, places."""
    made = export(results, photos / "out.fiftyone")
    samples = {Path(s["filepath"]).name: s for s in json.loads((made / "samples.json").read_text())["samples"]}
    assert json.loads((made / "metadata.json").read_text())["media_type"] == "image"
    assert {name: sorted(s["tags"]) for name, s in samples.items()} == {
        "a.jpg": ["hit", "query"], "b.jpg": ["hit"], "c.jpg": ["hit"], "d.jpg": ["query"],
    }  # fmt: skip
    b = samples["b.jpg"]
    assert b["location"] == {"_cls": "GeoLocation", "point": [-8.25, 47.5]}
    assert b["taken"] == "2023-06-01T12:30:05+02:00"
    assert b["hits"]["_cls"] == "Classifications"
    told = [(c["_cls"], c["label"], c["confidence"], c["rank"]) for c in b["hits"]["classifications"]]
    assert told == [("Classification", "same", 0.97, 1), ("Classification", "different", 0.05, 1)]
    grouped = export([[str(photos / "kept" / "b.jpg")]], photos / "g.fiftyone")
    (one,) = json.loads((grouped / "samples.json").read_text())["samples"]
    assert one["groups"]["classifications"] == [{"_cls": "Classification", "label": "group 1"}]


def test_what_is_wrong_is_named(tmp_path: Path, results: list[Result]) -> None:
    for path, given in (("x.xlsx", {}), ("x", {}), ("x.csv", {"format": "json"})):
        with pytest.raises(InputError, match="format: expected one of csv, colmap, fiftyone"):
            export(results, tmp_path / path, **given)
    with pytest.raises(InputError, match="least: expected a probability"):
        export(results, tmp_path / "x.colmap", least=2.0)
    assert lw.search.export is export
