"""Planted copies: what each kind is, how groups are scored, the hash against its loop, and both tables on noise."""

from __future__ import annotations

import json
import math
import os
import shutil
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from likewise import media
from likewise.errors import InputError
from likewise.papers.places import copies
from likewise.papers.places.copies import KINDS, Options, gather, grow, phash, plant, planted_copies, scenes, score
from likewise.search.collection import Collection
from likewise.search.local import Local
from worlds.galleries import glue_plainly


def photo(seed: int, h: int = 90, w: int = 120) -> np.ndarray:
    """Smooth colours with some edges, another for each seed."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (7, 9, 3), np.uint8))
    image = np.array(small.resize((w, h), Image.Resampling.BICUBIC))
    image[h // 4 : h // 2, w // 3 : w // 2] = rng.integers(0, 256, 3)
    return image


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty photos of five collections in their layouts; kudamm's query 50 is at its reference 0."""
    root = tmp_path_factory.mktemp("data")
    names = [f"places/campus/{side}/{n:03d}.jpg" for side in ("query", "reference") for n in range(0, 24, 3)]
    names += [f"places/webcams/query/{n:03d}.jpg" for n in (34, 82, 83, 84)]
    names += ["places/kudamm/reference/000.jpg", "places/kudamm/reference/070.jpg", "places/kudamm/query/050.jpg"]
    names += [f"lund/{n:02d}.jpg" for n in range(5)]
    names += [f"cub200-232/{c:03d}.Bird/{n}.jpg" for c in (1, 2, 3) for n in range(4)]
    for i, name in enumerate(names):
        media.write_image(root / name, photo(i))
    (root / "places/kudamm/truth.csv").write_text("query,reference\n114,000\n", encoding="utf-8")
    return root


@pytest.fixture(scope="session")
def planted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("planted")
    return folder, plant(data, folder, 40, 3, seed=5)


def test_photos_are_drawn_from_every_collection_by_the_seed(data: Path) -> None:
    assert gather(data, 14, seed=1) == gather(data, 14, seed=1) != gather(data, 14, seed=2)
    tops = {"/".join(n.split("/")[: 1 + n.startswith("places")]) for n in gather(data, 5)}
    assert tops == {"places/campus", "places/webcams", "places/kudamm", "lund", "cub200-232"}
    assert len(gather(data, 999)) == len(set(gather(data, 999))) == 40


@pytest.mark.parametrize(
    ("a", "b", "different"),
    [
        ("places/campus/query/003.jpg", "places/campus/reference/012.jpg", False),  # 9 apart
        ("places/campus/query/003.jpg", "places/campus/reference/015.jpg", True),
        ("places/webcams/query/083.jpg", "places/webcams/query/084.jpg", True),
        ("places/webcams/query/034.jpg", "places/webcams/query/082.jpg", False),  # twins
        ("places/kudamm/query/050.jpg", "places/kudamm/reference/000.jpg", False),  # by truth.csv, which is 64 off
        ("places/kudamm/query/050.jpg", "places/kudamm/reference/070.jpg", True),
        ("cub200-232/001.Bird/0.jpg", "cub200-232/001.Bird/1.jpg", False),
        ("cub200-232/001.Bird/0.jpg", "cub200-232/002.Bird/0.jpg", True),
        ("lund/00.jpg", "places/campus/query/000.jpg", True),
    ],
)
def test_which_photos_show_different_scenes(data: Path, a: str, b: str, different: bool) -> None:
    row = score([[a, b]], {"photos": scenes(data, gather(data, 999)), "copies": {}})
    assert (row["false groups"], row["same scene"]) == (different, not different)


def test_planting_depends_on_the_seed_alone(data: Path, planted, tmp_path: Path) -> None:
    folder, truth = planted
    assert plant(data, tmp_path / "a", 40, 3, seed=5) == truth
    for name in truth["copies"]:
        assert (tmp_path / "a" / name).read_bytes() == (folder / name).read_bytes()
    other = plant(data, tmp_path / "b", 40, 3, seed=6)
    assert [c["source"] for c in other["copies"].values()] != [c["source"] for c in truth["copies"].values()]
    with pytest.raises(InputError, match="photos: expected at least 520 below"):
        plant(data, tmp_path / "c", 40, 40)


def test_every_copy_has_a_source_of_its_own(data: Path, planted) -> None:
    folder, truth = planted
    sources = [c["source"] for c in truth["copies"].values()]
    assert len(set(sources)) == len(sources) == 3 * len(KINDS)
    assert {c["kind"] for c in truth["copies"].values()} == set(KINDS)
    there = {p.relative_to(folder).as_posix() for p in media.images(folder)}
    assert there == set(truth["photos"]) | set(truth["copies"])
    for name in truth["photos"]:
        assert (folder / name).read_bytes() == (data / name).read_bytes()


def made(kind: str, i: int, image: np.ndarray) -> np.ndarray:
    return np.asarray(KINDS[kind](Image.fromarray(image), np.random.default_rng(i), i))


def test_kinds_are_what_they_say() -> None:
    image = photo(0, 300, 600)
    h, w = image.shape[:2]
    assert made("resized", 0, image).shape == (160, 320, 3)
    assert made("resized", 0, photo(0, 232, 300)).shape == (155, 200, 3), "a small one gets smaller, too"
    assert [made("160 px and below", i, image).shape[1] for i in range(3)] == [160, 128, 96]
    grey = made("grey", 0, image)
    assert grey.shape == image.shape
    assert (np.ptp(grey, axis=2) == 0).all()
    lights = [made("brightened", i, image).mean() > image.mean() for i in range(4)]
    assert lights == [True, False, True, False]
    assert np.array_equal(made("mirrored", 0, image), image[:, ::-1])
    for i, k in enumerate((1, 2, 3)):
        assert np.array_equal(made("turned 90°", i, image), np.rot90(image, k))
    for share in (80, 60):
        crops = [made(f"crop {share} %", i, image) for i in range(4)]
        assert {c.shape for c in crops} == {(h * share // 100, w * share // 100, 3)}
        assert len({c.tobytes() for c in crops}) > 1, "at random places"
        assert all(cv2.matchTemplate(image, c, cv2.TM_CCOEFF_NORMED).max() > 0.9999 for c in crops)
    for i, colour in enumerate((255, 0)):
        out = made("bordered", i, image)
        edge = (out.shape[0] - h) // 2
        assert 0.05 * w - 1 <= edge <= 0.15 * w + 1
        assert np.array_equal(out[edge:-edge, edge:-edge], image)
        assert (out[:edge] == colour).all()
    assert len(np.unique(made("bordered", 2, image)[0], axis=0)) == 1


def test_captions_cover_an_edge_and_leave_the_rest() -> None:
    image = photo(1, 300, 400)
    for i in range(4):
        out = made("captioned", i, image)
        changed = (out[:300] != image).any((1, 2))
        assert out.shape[0] == 300 if i < 3 else 329 < out.shape[0] < 349
        assert (~changed).sum() >= 250
        assert changed.any() == (i < 3)
        assert not changed[250 if i == 1 else 0 : 300 if i == 1 else 250].any()
    assert not (made("captioned", 3, image)[300:] == 0).all(), "words in the bar"


def test_a_turn_by_five_degrees_is_one() -> None:
    ramp = np.repeat(np.arange(200, dtype=np.uint8)[:, None, None], 300, 1).repeat(3, 2) + 28
    whole, part = made("turned 5°", 0, ramp), made("turned 5°", 1, ramp)
    assert whole.shape[0] > 200
    assert whole.shape[1] > 300
    assert (whole[0, 0] == 0).all(), "filled"
    assert part.shape[0] < 200
    assert part.shape[1] / part.shape[0] == pytest.approx(1.5, abs=0.05)
    assert part.min() >= 28, "no filled corner is left"
    slope = np.polyfit(np.arange(part.shape[1]), part[part.shape[0] // 2, :, 0].astype(float), 1)[0]
    assert abs(slope) == pytest.approx(math.sin(math.radians(5)), abs=0.01)


def test_written_copies_are_their_sources(data: Path, planted) -> None:
    folder, truth = planted
    sizes: dict[str, list[float]] = {}
    for name, copy in truth["copies"].items():
        source = folder / copy["source"]
        if copy["kind"] == "exact":
            assert (folder / name).read_bytes() == source.read_bytes()
        sizes.setdefault(copy["kind"], []).append((folder / name).stat().st_size / source.stat().st_size)
    assert max(sizes["recompressed"]) < 0.75 < min(sizes["exact"])


def test_scoring_by_hand() -> None:
    photos = {"a": ("lund", 0.0), "b": ("lund", 0.0), "c": ("campus", 0.0), "d": ("campus", 0.9), "e": ("campus", 1.8)}
    planted = {
        "a1": ("grey", "a"),
        "b1": ("grey", "b"),
        "c1": ("exact", "c"),
        "d1": ("exact", "d"),
        "e1": ("mirrored", "e"),
    }
    truth = {"photos": photos, "copies": {n: {"kind": k, "source": s} for n, (k, s) in planted.items()}}
    row = score([["a", "a1"], ["b", "b1"]], truth)
    assert (row["grey"], row["exact"], row["found"], row["of"], row["groups"]) == (2, 0, 2, 5, 2)
    assert (row["false groups"], row["same scene"], row["chains"], row["largest group"]) == (0, 0, 0, 2)
    assert row["missed"] == ["c1", "d1", "e1"]
    row = score([["a1", "b1"], ["c", "d", "c1"]], truth)
    assert row["found"] == 1, "two copies without their sources are not found"
    assert (row["false groups"], row["same scene"], row["chains"]) == (0, 2, 1)
    row = score([["c", "d", "e"], ["a", "c1"]], truth)
    assert (row["false groups"], row["same scene"], row["chains"], row["largest group"]) == (2, 0, 1, 3)
    assert row["joined wrongly"] == [["c", "d", "e"], ["a", "c1"]], "c and d are near, d and e, too; c and e are not"
    row = score([], truth)
    assert (row["found"], row["groups"], row["largest group"]) == (0, 0, 0)
    assert score(iter([iter(["a", "a1"])]), truth)["found"] == 1, "any iterables"


def test_the_hash_is_its_loop() -> None:
    image = photo(3, 32, 32)
    grey = np.rint(image @ np.array([0.299, 0.587, 0.114]))

    def wave(k: int, n: int) -> float:
        return math.cos(math.pi * (2 * n + 1) * k / 64) * (math.sqrt(0.5) if k == 0 else 1)

    low = [
        [sum(grey[y, x] * wave(u, y) * wave(v, x) for y in range(32) for x in range(32)) for v in range(8)]
        for u in range(8)
    ]
    expected = np.array(low).ravel() > np.median(low)
    assert (phash(image)[0] == expected).mean() >= 62 / 64, "grey values are rounded otherwise"


def test_what_the_hash_does_not_see() -> None:
    image = photo(4, 240, 320)
    first = phash(image)[0]
    assert (phash(np.asarray(Image.fromarray(image).resize((160, 120))))[0] != first).sum() <= 4
    assert (phash((0.7 * image + 20).astype(np.uint8))[0] != first).sum() <= 4
    assert (phash(photo(5, 240, 320))[0] != first).sum() > 12
    turns = phash(image, turned=True)
    assert turns.shape == (8, 64)
    square = photo(6, 256, 256)
    views = [np.ascontiguousarray(np.rot90(side, k)) for side in (square, square[:, ::-1]) for k in range(4)]
    for bits, view in zip(phash(square, turned=True), views, strict=True):
        assert np.array_equal(bits, phash(view)[0])


def test_hashes_join_within_the_radius_and_over_others() -> None:
    bits = np.zeros((5, 1, 64), bool)
    bits[1, 0, :8] = bits[2, 0, :16] = True  # 0, 8, 16: a chain
    bits[3, 0, 32:], bits[4, 0, 33:] = True, True
    assert copies.hashed_groups(bits, 8) == [[0, 1, 2], [3, 4]]
    assert copies.hashed_groups(bits, 7) == [[3, 4]]
    assert copies.hashed_groups(bits, 0) == []
    turned = np.concatenate([bits, ~bits], 1)
    turned[0, 1] = bits[3, 0]
    assert copies.hashed_groups(turned, 1) == [[0, 3, 4]], "one of a photo's orientations is enough"


def test_the_table_of_copies(data: Path, planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    glue_plainly(monkeypatch)
    options = Options(str(data), photos=40, each=3, seed=5, cells=str(tmp_path), methods="ours,phash,phash-turned")
    record = planted_copies(options)
    ours, plain, turned = record.rows
    assert [r["method"] for r in record.rows] == ["likewise", "pHash, radius 8", "pHash in 8 orientations, radius 8"]
    assert set(KINDS) < set(record.columns)
    assert ours["exact"] == plain["exact"] == 3
    assert plain["mirrored"] == plain["turned 90°"] == 0
    assert turned["mirrored"] == turned["turned 90°"] == 3
    assert all(r["found"] == sum(r[k] for k in KINDS) and r["of"] == 39 and r["photos"] == 40 for r in record.rows)
    assert "missed" not in record.columns
    assert len(plain["missed"]) == 39 - plain["found"]
    file = tmp_path / "planted-40-3-5" / "truth.json"
    assert json.loads(file.read_text()) == planted[1]
    written = file.stat().st_mtime_ns
    again = planted_copies(replace(options, methods="phash")).rows[0]
    assert file.stat().st_mtime_ns == written, "what is planted is used again"
    assert {k: again[k] for k in KINDS} == {k: plain[k] for k in KINDS}
    with pytest.raises(InputError, match="methods: expected of ours, phash"):
        planted_copies(Options(data=str(data), methods="phash,dhash"))


def test_an_index_grows_by_photos_that_differ(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    glue_plainly(monkeypatch)
    shutil.copytree(data / "lund", tmp_path / "photos")
    with Collection.build(tmp_path / "photos", tmp_path / "index") as collection:
        pairs = grow(collection, 60)
        assert len(collection) == 60
        assert pairs == [("made/0000023.jpg", "made/0000024.jpg"), ("made/0000043.jpg", "made/0000044.jpg")]
        names = sorted(collection.index.names())
        rows, features = collection.index.vectors(names), collection.index.features(names)
        locals_ = {name: Local.from_bytes(data) for name, data in features.items()}
        points = {name: local.points for name, local in locals_.items()}
        thumbs = {name: local.thumb for name, local in locals_.items()}
        for kept in (rows, points, thumbs):
            assert {(a, b) for a, b in combinations(names, 2) if np.array_equal(kept[a], kept[b])} == set(pairs)
        np.testing.assert_allclose(np.linalg.norm(list(rows.values()), axis=1), 1, atol=1e-3)
        root = str(collection.root)
        groups = [{os.path.relpath(path, root) for path in group} for group in collection.duplicates()]
        assert sorted(map(sorted, groups)) == sorted(map(list, pairs)), "the same features elsewhere are no copy"


@pytest.mark.slow
def test_the_table_of_growth(data: Path) -> None:
    record = copies.growth(Options(data=str(data), sizes="90,30"))
    first, second = record.rows
    assert (first["photos"], second["photos"], second["copies"]) == (30, 90, 3)
    assert second["exponent"] == pytest.approx(math.log(second["CPU-s"] / first["CPU-s"]) / math.log(3))
    assert "exponent" not in first
    assert second["found"] == 3
    with pytest.raises(InputError, match="sizes: expected whole numbers > 1"):
        copies.growth(Options(data=str(data), sizes="10,many"))
