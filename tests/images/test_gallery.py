"""Gallery in a folder: results equal to a loop over all pairs, whatever was added, removed or killed before."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import likewise as lw
from likewise import media
from likewise.errors import FileError, InputError, ShapeError
from likewise.images import embedding
from likewise.images.gallery import Added, Gallery
from likewise.images.stores import About, Filter, Record, folders_of, indexes, label_of, manifest, segments
from likewise.images.stores.folder import FolderStore
from likewise.images.stores.ranking import Candidates, distances, ranked
from likewise.store import job as shards
from likewise.types import Hit
from worlds.galleries import DIM, Patches, album, brute, paint

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return album(tmp_path / "photos")


@pytest.fixture
def gallery(photos: Path, tmp_path: Path) -> Gallery:
    return Gallery.build(Patches(), photos, tmp_path / "gallery")


def files(root: Path) -> list[Path]:
    return sorted(root.rglob("*.png"))


# ------------------------------------------------------------------------------------------------------- the search


def test_a_search_is_the_loop_over_all_pairs(gallery: Gallery, photos: Path) -> None:
    query = paint(photos.parent / "query.png", 99)
    hits = gallery.search(query, 7)
    want = brute(Patches(), query, files(photos), 7)
    assert [h.path for h in hits] == [p for p, _ in want]
    np.testing.assert_allclose([h.distance for h in hits], [d for _, d in want], atol=1e-7)
    assert [h.rank for h in hits] == list(range(1, 8))
    assert gallery.search(files(photos)[0])[0] == Hit(str(files(photos)[0]), 0.0, 1)


def test_the_distance_is_that_of_compare(gallery: Gallery, photos: Path) -> None:
    a, b = files(photos)[3], files(photos)[11]
    found = {h.path: h.distance for h in gallery.search(a, 24)}
    assert found[str(b)] == pytest.approx(lw.images.compare(a, b, model=gallery.model).distance, abs=1e-7)


def test_equal_distances_come_in_the_order_of_paths_and_none_is_cut_off(gallery: Gallery, photos: Path) -> None:
    one = files(photos)[0]
    for name in ("z", "a", "m", *(f"n{i:02d}" for i in range(30))):
        shutil.copy(one, photos / f"{name}.png")
    gallery.add(photos)
    want = [str(p) for p in sorted([one, *photos.glob("*.png")])]
    for k in (1, 3, 20, 34):
        hits = gallery.search(one, k)
        assert [h.path for h in hits] == want[:k]
        assert {h.distance for h in hits} == {0.0}


def test_many_queries_at_once(gallery: Gallery, photos: Path) -> None:
    some = files(photos)[:5]
    assert gallery.search(some, 4) == [gallery.search(p, 4) for p in some]
    assert gallery.search(photos / "kind0", 4) == [gallery.search(p, 4) for p in sorted((photos / "kind0").iterdir())]
    arrays = np.stack([media.read_array(p) for p in some])
    assert gallery.search(arrays, 4) == gallery.search(some, 4)
    assert gallery.search(arrays[0], 4) == gallery.search(some[0], 4)
    assert gallery.search([], 4) == []
    assert gallery.search_rows(Patches().embed(some), 4) == gallery.search(some, 4)


def test_filters_are_exact(gallery: Gallery, photos: Path) -> None:
    query = paint(photos.parent / "query.png", 99)
    model = Patches()
    for keywords, inside in (
        ({"label": "kind1"}, photos / "deep" / "kind1"),
        ({"under": "deep"}, photos / "deep"),
        ({"under": photos / "deep"}, photos / "deep"),
        ({"under": "."}, photos),
        ({"under": "deep", "label": "kind3"}, photos / "deep" / "kind3"),
    ):
        want = brute(model, query, files(inside), 9)
        assert [h.path for h in gallery.search(query, 9, **keywords)] == [p for p, _ in want], keywords


def test_a_filter_that_leaves_nothing_says_what_there_is(gallery: Gallery, photos: Path) -> None:
    query = files(photos)[0]
    with pytest.raises(InputError, match=r"label: no picture .* 'kind7'; did you mean 'kind"):
        gallery.search(query, label="kind7")
    with pytest.raises(InputError, match="under: no picture of the gallery lies below 'elsewhere'; there are: deep"):
        gallery.search(query, under="elsewhere")
    with pytest.raises(InputError, match="label"):
        gallery.search(query, under="deep", label="kind0")
    with pytest.raises(InputError, match="under"):
        gallery.search(query, under="dee")  # a prefix of a name is not a folder


def test_more_than_there_are_is_all_there_are(gallery: Gallery, photos: Path) -> None:
    assert len(gallery.search(files(photos)[0], 1000)) == 24
    assert len(gallery.search(files(photos)[0], 1000, label="kind0")) == 6


def test_wrong_arguments_are_named(gallery: Gallery, photos: Path, tmp_path: Path) -> None:
    for k in (0, 1.5, True):
        with pytest.raises(InputError, match="k: expected a whole number"):
            gallery.search(files(photos)[0], k)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"rows: expected \(n, 12\)"):
        gallery.search_rows(np.ones((2, 5)))
    with pytest.raises(InputError, match="zero or not finite"):
        gallery.search_rows(np.zeros((1, DIM)))
    with pytest.raises(FileError, match="no such file"):
        gallery.search(tmp_path / "none.png")
    with pytest.raises(InputError, match="kind: expected one of auto, flat"):
        Gallery.build(Patches(), photos, tmp_path / "x", kind="tree")
    with pytest.raises(InputError, match="recall"):
        Gallery.build(Patches(), photos, tmp_path / "x", recall=1.5)
    with pytest.raises(FileError, match="not a folder"):
        Gallery.build(Patches(), photos / "none", tmp_path / "x")
    with pytest.raises(FileError, match="holds no gallery"):
        Gallery.open(photos)
    with pytest.raises(InputError, match="holds something else"):
        Gallery.build(Patches(), photos, photos / "kind0")
    assert not (tmp_path / "x").exists()


# ------------------------------------------------------------------------------------------------------- the model


def test_another_model_is_refused(gallery: Gallery, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="built with another model"):
        Gallery.open(tmp_path / "gallery", Patches(digest="d2"))
    reopened = Gallery.open(tmp_path / "gallery")
    assert len(reopened) == 24
    with pytest.raises(InputError, match=r"made by patches; open it with model="):
        reopened.search(files(photos)[0])
    with pytest.raises(InputError, match="holds another gallery"):
        Gallery.build(Patches(digest="d2"), photos, tmp_path / "gallery")


def test_a_model_that_says_nothing_of_itself_is_normalised_and_known_by_its_name(photos: Path, tmp_path: Path) -> None:
    class Plain:
        def embed(self, images: list[np.ndarray]) -> np.ndarray:
            return 7.0 * np.stack([Patches.row(a) for a in images])

    (photos / "broken.png").write_bytes(files(photos)[0].read_bytes()[:60])
    made = Gallery.build(Plain(), photos, tmp_path / "plain")
    assert (len(made), len(made.report.skipped)) == (24, 1)
    good = [p for p in files(photos) if p.name != "broken.png"]
    assert [h.path for h in made.search(good[0], 5)] == [p for p, _ in brute(Patches(), good[0], good, 5)]
    assert Gallery.open(tmp_path / "plain", Plain()).check() == []


def test_the_default_model_is_found_again(tmp_path: Path) -> None:
    folder = album(tmp_path / "photos", classes=2, each=2)
    Gallery.build(None, folder, tmp_path / "gallery")
    again = Gallery.open(tmp_path / "gallery")
    a, b = files(folder)[:2]
    found = {h.path: h.distance for h in again.search(a)}
    assert found[str(a)] == pytest.approx(0, abs=1e-5)
    assert found[str(b)] == pytest.approx(lw.images.compare(a, b).distance, abs=1e-5)


# ----------------------------------------------------------------------------------------------- adding and removing


def test_adding_again_embeds_only_what_changed(gallery: Gallery, photos: Path) -> None:
    model = gallery.model
    assert gallery.report == Added(24, 0, 0)
    model.seen.clear()
    assert gallery.add(photos) == Added(0, 0, 24)
    assert model.seen == []
    paint(files(photos)[2], 1234)
    paint(photos / "new.png", 77)
    assert gallery.add(photos) == Added(1, 1, 23)
    assert sorted(model.seen) == sorted(map(str, (files(photos)[2], photos / "new.png")))
    query = files(photos)[2]
    assert [h.path for h in gallery.search(query, 25)] == [p for p, _ in brute(Patches(), query, files(photos), 25)]
    assert len(gallery) == 25
    assert gallery.check() == []


def test_remove_a_picture_a_folder_and_what_is_gone(gallery: Gallery, photos: Path) -> None:
    one = photos / "kind0" / "p0.png"
    assert one in gallery
    assert gallery.remove(one) == 1
    assert one not in gallery
    assert gallery.remove(one) == 0
    assert gallery.remove(photos / "deep") == 12
    assert str(photos / "deep" / "kind1" / "p0.png") not in [h.path for h in gallery.search(one, 100)]
    (photos / "kind2" / "p3.png").unlink()
    assert gallery.prune() == 1
    left = [p for p in files(photos) if "deep" not in p.parts and p != one]
    assert sorted(gallery) == sorted(map(str, left))
    assert [h.path for h in gallery.search(one, 100)] == [p for p, _ in brute(Patches(), one, left, 100)]
    assert gallery.add(photos).added == 13


def test_nothing_is_pruned_while_the_folder_is_away(gallery: Gallery, photos: Path) -> None:
    photos.rename(photos.parent / "unmounted")
    with pytest.raises(FileError, match="is not there; nothing was taken out"):
        gallery.prune()
    assert len(gallery) == 24


def test_nothing_is_pruned_while_the_folder_is_empty_as_a_mount_point(gallery: Gallery, photos: Path) -> None:
    photos.rename(photos.parent / "unmounted")
    photos.mkdir()
    with pytest.raises(FileError, match="holds no picture any more"):
        gallery.prune()
    assert len(gallery) == 24
    paint(photos / "another.png", 77)  # the folder is there, with other pictures
    assert gallery.prune() == 24


def test_a_reader_whose_segments_were_merged_before_its_first_search(gallery: Gallery, photos: Path) -> None:
    reader, query = Gallery.open(gallery.store.path, Patches()), files(photos)[-1]
    want = brute(Patches(), query, files(photos), 5)
    gallery.remove(files(photos)[:12])
    assert not (gallery.store.path / "segment-000000.npy").exists()
    assert [h.path for h in reader.search(query, 5)] == [p for p, _ in want]


def test_rows_of_another_length_are_refused_before_they_are_kept(gallery: Gallery, photos: Path) -> None:
    class Longer(Patches):
        def embed(self, images, *, on_error="raise"):
            return np.pad(super().embed(images, on_error=on_error), ((0, 0), (0, 4)))

    paint(photos / "new.png", 77)
    with pytest.raises(ShapeError, match=r"rows of shape \(1, 16\); expected \(1, 12\), as the gallery has"):
        Gallery.open(gallery.store.path, Longer()).add(photos)
    assert len(Gallery.open(gallery.store.path, Patches())) == 24


def test_a_folder_without_pictures_leaves_no_gallery(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="no picture in this folder was found"):
        Gallery.build(Patches(), tmp_path / "empty", tmp_path / "g")
    assert not (tmp_path / "g").exists()
    assert len(Gallery.build(Patches(), photos, tmp_path / "g")) == 24


@pytest.mark.parametrize(
    ("rows", "words"),
    [([[1, 2], [3]], "rows: got rows of different lengths"), (np.full((1, DIM), np.nan), "rows: got rows that are")],
)
def test_rows_that_cannot_be_searched_with_are_named(gallery: Gallery, rows: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        gallery.search_rows(rows)


def test_the_kind_can_be_changed(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "LEAST_ROWS", 20)
    gallery.reindex("ivf", 0.9)
    assert gallery.describe()["index"]["wanted"] == 0.9
    assert Gallery.open(gallery.store.path).describe()["kind"] == "ivf"
    gallery.reindex("flat")
    assert gallery.describe()["index"] is None
    assert not list(gallery.store.path.glob("*.faiss"))
    with pytest.raises(InputError, match="kind"):
        gallery.reindex("tree")


def test_names_may_be_given_from_here_or_from_the_root(
    gallery: Gallery, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos / "deep")
    assert "kind1/p0.png" in gallery
    assert "deep/kind1/p0.png" in gallery
    assert "p0.png" not in gallery
    assert 5 not in gallery
    assert gallery.remove(["kind1/p0.png", "deep/kind1/p1.png"]) == 2
    assert gallery.remove("deep/kind1") == 4
    assert gallery.remove("kind3") == 6


def test_pictures_from_elsewhere_keep_their_whole_path(gallery: Gallery, tmp_path: Path) -> None:
    other = paint(tmp_path / "other" / "x.png", 5)
    assert gallery.add([other]) == Added(1, 0, 0)
    assert gallery.search(other)[0] == Hit(str(other), 0.0, 1)
    assert gallery.search(other, label="other")[0].path == str(other)


def test_a_gallery_moves_with_its_pictures_and_without_them(gallery: Gallery, photos: Path, tmp_path: Path) -> None:
    model, there = Patches(), tmp_path / "elsewhere"
    there.mkdir()
    shutil.copytree(tmp_path / "gallery", there / "gallery")
    assert Gallery.open(there / "gallery", model).search(files(photos)[0])[0].path == str(files(photos)[0])
    shutil.move(photos, there / "photos")
    moved = Gallery.open(there / "gallery", model)
    assert moved.search(files(there)[0])[0].path == str(files(there)[0])
    assert moved.add(there / "photos") == Added(0, 0, 24)


def test_unreadable_pictures_are_named_and_counted(photos: Path, tmp_path: Path) -> None:
    (photos / "torn.png").write_bytes(files(photos)[0].read_bytes()[:60])
    (photos / "empty.jpg").touch()
    (photos / "notes.txt").write_text("no picture, and not named like one")
    made = Gallery.build(Patches(), photos, tmp_path / "gallery")
    assert sorted(Path(s.name).name for s in made.report.skipped) == ["empty.jpg", "torn.png"]
    assert (made.report.added, len(made)) == (24, 24)
    assert str(made.report) == "24 added, 0 updated, 0 unchanged, 2 unreadable"
    assert made.add([tmp_path / "none.png"]).skipped[0].reason.endswith("no such file")
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "x.png").write_bytes(b"\x89PNG\r\n\x1a\nrubbish")
    with pytest.raises(FileError, match="no picture in this folder can be read"):
        Gallery.build(Patches(), tmp_path / "bare", tmp_path / "g2")


def test_a_file_that_cannot_be_read_any_more_keeps_its_old_row(gallery: Gallery, photos: Path) -> None:
    torn = files(photos)[0]
    torn.write_bytes(torn.read_bytes()[:60])
    done = gallery.add(photos)
    assert (done.updated, len(done.skipped), len(gallery)) == (0, 1, 24)
    assert torn in gallery


def test_names_that_are_not_utf8_are_kept(photos: Path, tmp_path: Path) -> None:
    odd = photos / os.fsdecode(b"gr\xfc\xdfe \"'%.png")
    shutil.copy(files(photos)[0], odd)
    made = Gallery.build(Patches(), photos, tmp_path / "gallery")
    again = Gallery.open(tmp_path / "gallery", Patches())
    assert odd in made
    assert odd in again
    assert os.path.exists(again.search(odd)[0].path)


# -------------------------------------------------------------------------------------------------- the store itself


def about(root: Path, kind: str = "flat", dim: int = 8, recall: float = 0.99) -> About:
    return About(str(root), "m", "d", dim, kind, recall)


def unit(rng: np.random.Generator, n: int, dim: int = 8) -> np.ndarray:
    x = rng.normal(size=(n, dim)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def expected(kept: dict[str, np.ndarray], query: np.ndarray, k: int) -> list[str]:
    names = list(kept)
    order = sorted(zip(distances(query, np.stack(list(kept.values()))), names, strict=True)) if names else []
    return [name for _, name in order[:k]]


@given(st.lists(st.tuples(st.sampled_from("aard"), st.integers(0, 30)), min_size=1, max_size=14), st.integers(0, 9999))
@settings(max_examples=15)
def test_any_history_leaves_what_a_dictionary_would_hold(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], seed: int
) -> None:
    """Put (a), remove (r) and merge (d) in any order, with rows that repeat: the same names in the same order."""
    path = tmp_path_factory.mktemp("store")
    store, rng = FolderStore.create(path / "g", about(path)), np.random.default_rng(seed)
    few, kept = unit(rng, 6), dict[str, np.ndarray]()
    for what, n in steps:
        with store.writing():
            if what == "a":
                names = [f"k{i % 3}/n{i}" for i in rng.choice(40, size=n % 7 + 1, replace=False)]
                rows = few[rng.integers(6, size=len(names))]
                store.put([Record(name, 1, n) for name in names], rows)
                kept |= dict(zip(names, rows, strict=True))
            elif what == "r":
                gone = [name for i, name in enumerate(sorted(kept)) if i % 4 == n % 4]
                assert store.remove([*gone, "none"]) == len(gone)
                kept = {k: v for k, v in kept.items() if k not in gone}
            else:
                store.settle()
    for seen in (store, FolderStore.open(path / "g")):
        assert len(seen) == len(kept)
        assert set(seen.names()) == set(kept)
        assert seen.check() == []
        for which in (Filter(), Filter(label="k1"), Filter(under="k2")):
            taking_part = {k: v for k, v in kept.items() if which(k)}
            for k in (1, 5):
                found = seen.nearest(few[:2], k, which)
                assert [[name for name, _ in one] for one in found] == [expected(taking_part, q, k) for q in few[:2]]


def test_names_labels_and_folders() -> None:
    assert [label_of(n) for n in ("a/b/c.png", "c.png", "/x/c.png")] == ["b", "", "x"]
    assert folders_of("a/b/c.png") == ["a/b", "a", ""]
    assert Filter(under="a")("a/b/c.png")
    assert not Filter(under="a")("ab/c.png")


def test_candidates_are_fetched_until_no_tie_can_be_unseen() -> None:
    """An engine whose float32 distances cannot tell 50 equal rows apart: more is asked for until they are all seen."""
    row, names, asked = np.eye(4, dtype=np.float32)[:1], [f"n{i:02d}" for i in range(50)], list[int]()

    def fetch(queries: np.ndarray, many: int) -> list[Candidates]:
        asked.append(many)
        few = names[::-1][:many]
        return [Candidates(few, np.repeat(row, len(few), axis=0), np.inf if many >= 50 else 0.0)]

    assert [name for name, _ in ranked(row, 3, fetch)[0]] == ["n00", "n01", "n02"]
    assert asked == [11, 44, 176]
    with pytest.raises(FileError, match="not numbers"):
        ranked(row, 1, lambda q, m: [Candidates(["x"], np.full((1, 4), np.nan, np.float32), np.inf)])


def test_exact_search_over_parts_is_one_sort() -> None:
    rng = np.random.default_rng(0)
    X, queries = unit(rng, 500), unit(rng, 30)
    ids, mask = np.arange(500) * 3, rng.random(500) < 0.7
    parts = [(ids[a:b], X[a:b], mask[a:b]) for a, b in ((0, 100), (100, 101), (101, 500))]
    rows = indexes.Gathered(parts)
    D, I = indexes.exact(rows.blocks(), queries, 12)
    full = ((queries[:, None].astype(float) - X[mask][None]) ** 2).sum(axis=2)
    order = np.argsort(full, axis=1)[:, :12]
    np.testing.assert_array_equal(I, ids[mask][order])
    np.testing.assert_allclose(D, np.take_along_axis(full, order, axis=1), atol=1e-5)
    some = np.array([0, 5, 60, 71, 72, 200])
    np.testing.assert_array_equal(rows.take(some), X[mask][some])
    np.testing.assert_array_equal(indexes.exact(rows.blocks(), queries[:1], len(rows) + 5)[1][0, -5:], -1)


# ------------------------------------------------------------------------------------------------ approximate indexes


@pytest.fixture(scope="module")
def crowd() -> np.ndarray:
    """3000 rows around 60 centres in 16 dimensions."""
    rng = np.random.default_rng(1)
    return (lambda x: x / np.linalg.norm(x, axis=1, keepdims=True))(
        rng.normal(size=(60, 16))[rng.integers(60, size=3000)] + 0.4 * rng.normal(size=(3000, 16))
    ).astype(np.float32)


def filled(path: Path, rows: np.ndarray, kind: str, recall: float = 0.95) -> FolderStore:
    store = FolderStore.create(path, about(path, kind, rows.shape[1], recall))
    with store.writing():
        store.put([Record(f"k{i % 5}/n{i:05d}", 1, 1) for i in range(len(rows))], rows)
        store.settle()
    return store


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_an_index_reaches_the_recall_that_it_says(tmp_path: Path, crowd: np.ndarray, kind: str) -> None:
    """Its stored figure is on rows it had not seen; fresh queries from the same crowd find as much."""
    store = filled(tmp_path / "g", crowd[:2500], kind)
    facts = store.describe()["index"]
    assert facts["kind"] == kind
    assert facts["recall"] >= 0.9
    kept = {f"k{i % 5}/n{i:05d}": row for i, row in enumerate(crowd[:2500])}
    found = FolderStore.open(tmp_path / "g").nearest(crowd[2900:], 10, Filter())
    want = [expected(kept, q, 10) for q in crowd[2900:]]
    recall = np.mean([len({n for n, _ in one} & set(w)) / 10 for one, w in zip(found, want, strict=True)])
    assert recall >= facts["recall"] - 0.05
    for one, q in zip(found, crowd[2900:], strict=True):
        assert [d for _, d in one] == sorted(d for _, d in one)
        np.testing.assert_allclose(
            [d for _, d in one], [np.linalg.norm(kept[n].astype(float) - q) for n, _ in one], atol=1e-6
        )
    exact = store.nearest(crowd[2900:2920], 10, Filter(label="k3"))
    some = {k: v for k, v in kept.items() if k.startswith("k3")}
    assert [[n for n, _ in one] for one in exact] == [expected(some, q, 10) for q in crowd[2900:2920]]


def test_recall_is_tuned_and_measured_on_rows_that_were_held_out(crowd: np.ndarray) -> None:
    ids = np.arange(len(crowd))
    rows = indexes.Gathered([(ids, crowd, np.ones(len(crowd), bool))])
    low, high = (indexes.build("ivf", rows, r) for r in (0.5, 0.999))
    assert low.facts.effort < high.facts.effort
    assert low.facts.recall < high.facts.recall
    assert (high.facts.queries, high.facts.rows, high.inner.ntotal) == (128, 3000, 3000)
    everything = high.search(crowd[:5], 3000)[1]
    assert (np.sort(everything, axis=1) == ids).all(), "all rows, the held-out ones too, are in the index once"


def test_rows_added_after_the_index_are_found_and_removed_ones_are_not(tmp_path: Path, crowd: np.ndarray) -> None:
    store = filled(tmp_path / "g", crowd[:2500], "hnsw")
    number = store.state.index["number"]
    with store.writing():
        store.put([Record("late", 1, 1)], crowd[2999:])
        store.remove(["k0/n00000"])
        store.settle()
    assert store.state.index["number"] == number, "a few rows are no reason to build an index anew"
    assert store.nearest(crowd[2999:], 3, Filter())[0][0] == ("late", 0.0)
    assert "k0/n00000" not in [n for n, _ in store.nearest(crowd[:1], 50, Filter())[0]]
    assert len(store.nearest(crowd[:1], 2500, Filter())[0]) == 2500, "more than an index is tuned for: every row"
    with store.writing():
        store.put([Record(f"more{i}", 1, 1) for i in range(400)], crowd[2500:2900])
        store.settle()
    assert store.state.index["number"] > number
    assert store.describe()["index"]["rows"] == 2900
    assert store.check() == []


def test_a_small_gallery_of_any_kind_is_flat_and_auto_turns_at_a_size(tmp_path: Path, crowd: np.ndarray) -> None:
    assert filled(tmp_path / "g", crowd[:200], "hnsw").describe()["kind"] == "flat"
    sizes = (indexes.FLAT_UNTIL, indexes.FLAT_UNTIL + 1)
    assert [indexes.chosen_kind("auto", n) for n in sizes] == ["flat", "ivf"]
    assert [indexes.chosen_kind("ivf", n) for n in (999, 1000)] == ["flat", "ivf"]


def test_an_index_file_of_a_stranger_is_never_given_to_faiss(
    tmp_path: Path, crowd: np.ndarray, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import faiss

    file = next(filled(tmp_path / "g", crowd[:1500], "ivf").path.glob("index-*.faiss"))
    file.write_bytes(b"IxFI" + os.urandom(200))
    monkeypatch.setattr(faiss, "read_index", lambda *_: pytest.fail("a stranger's bytes went to FAISS"))
    store = FolderStore.open(tmp_path / "g")
    assert "index" in store.check()[0]
    kept = {f"k{i % 5}/n{i:05d}": row for i, row in enumerate(crowd[:1500])}
    assert [n for n, _ in store.nearest(crowd[:1], 10, Filter())[0]] == expected(kept, crowd[0], 10)
    assert "searching every row instead" in caplog.text
    with store.writing():
        store.settle()
    monkeypatch.undo()
    assert FolderStore.open(tmp_path / "g").describe()["kind"] == "ivf"
    assert store.check() == []
    assert not file.exists()


# ------------------------------------------------------------------------------------------------------ merging


def test_many_small_additions_become_one_segment(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows, store = unit(rng, 40), FolderStore.create(tmp_path / "g", about(tmp_path))
    for i, row in enumerate(rows):
        with store.writing():
            store.put([Record(f"n{i:02d}", 1, 1)], row[None])
            store.settle()
    assert len(store.state.segments) <= segments.SCATTERED + 1
    assert len(list((tmp_path / "g").glob("segment-*.npy"))) == len(store.state.segments)
    kept = {f"n{i:02d}": row for i, row in enumerate(rows)}
    assert [n for n, _ in store.nearest(rows[:1], 9, Filter())[0]] == expected(kept, rows[0], 9)


def test_removed_rows_leave_the_disk(tmp_path: Path) -> None:
    store = filled(tmp_path / "g", unit(np.random.default_rng(0), 100), "flat")
    with store.writing():
        store.remove([f"k{i % 5}/n{i:05d}" for i in range(50)])
        assert store.describe()["removed"] == 50
        store.settle()
    assert store.describe()["removed"] == 0
    assert np.load(next((tmp_path / "g").glob("*.npy")), allow_pickle=False).shape == (50, 8)
    with store.writing():
        store.remove(list(store.names()))
        store.settle()
    assert (len(store), len(FolderStore.open(tmp_path / "g"))) == (0, 0)
    assert store.nearest(unit(np.random.default_rng(0), 1), 3, Filter()) == [[]]


def test_a_reader_keeps_its_view_while_a_writer_merges(tmp_path: Path) -> None:
    rows = unit(np.random.default_rng(0), 100)
    writer = filled(tmp_path / "g", rows, "flat")
    reader = FolderStore.open(tmp_path / "g")
    before = reader.nearest(rows[:3], 100, Filter())
    with writer.writing():
        writer.remove([f"k{i % 5}/n{i:05d}" for i in range(60)])
        writer.settle()
    assert reader.nearest(rows[:3], 100, Filter()) == before
    with reader.writing():
        assert len(reader) == 40, "a writer first reads what others wrote"


# ------------------------------------------------------------------------------------------------ crashes and locks

KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from likewise.images import embedding
from likewise.images.gallery import Gallery
from worlds.galleries import Patches

embedding.CHUNK, count, real = 3, 0, os.replace

def replace(a, b):
    global count
    count += 1
    if count == int(sys.argv[4]):
        if int(sys.argv[4]) % 2:
            real(a, b)
        os.kill(os.getpid(), signal.SIGKILL)
    return real(a, b)

os.replace = replace
Gallery.open(sys.argv[2], Patches()).add(sys.argv[3])
"""


def killed(gallery: Path, folder: Path, moment: int) -> int:
    """Add a folder in another process that is killed −9 at the n-th file that it puts in place: before it or after."""
    words = [sys.executable, "-c", textwrap.dedent(KILLED), str(ROOT), str(gallery), str(folder), str(moment)]
    return subprocess.run(words, capture_output=True, check=False).returncode


def assert_rows_belong_to_their_files(gallery: Gallery) -> None:
    """A record that says it is of this file, by size and time, has the row of this file."""
    store = gallery.store
    assert isinstance(store, FolderStore)
    for name, (number, i) in store._where.items():
        segment, path = store._by_number[number], Path(gallery.path_of(name))
        if (segment.records[i].size, segment.records[i].mtime) == (path.stat().st_size, path.stat().st_mtime_ns):
            np.testing.assert_array_equal(segment.rows[i], Patches().embed([path])[0])


def survives(tmp_path: Path, moments: list[int]) -> None:
    photos = album(tmp_path / "photos", classes=2, each=3)
    Gallery.build(Patches(), photos, tmp_path / "start")
    before = set(Gallery.open(tmp_path / "start", Patches()))
    album(photos, classes=4, each=6, first=50)  # the first six are changed, eighteen are new
    for moment in moments:
        shutil.copytree(tmp_path / "start", tmp_path / f"g{moment}")
        assert killed(tmp_path / f"g{moment}", photos, moment) == -signal.SIGKILL
        after = Gallery.open(tmp_path / f"g{moment}", Patches())
        assert after.check() == []
        assert before <= set(after), "nothing that was added before is lost"
        assert_rows_belong_to_their_files(after)
        done = after.add(photos)
        assert (len(after), done.skipped) == (24, ())
        query = paint(tmp_path / "q.png", 3)
        assert [h.path for h in after.search(query, 24)] == [p for p, _ in brute(Patches(), query, files(photos), 24)]
        left = {p.name for p in (tmp_path / f"g{moment}").iterdir()}
        assert not [name for name in left if ".tmp" in name], "what the killed process left is swept away"


def test_kill_9_during_add_loses_nothing_added_before(tmp_path: Path) -> None:
    survives(tmp_path, [1, 2, 3, 8])


@pytest.mark.slow
def test_kill_9_at_every_file_that_is_put_in_place(tmp_path: Path) -> None:
    survives(tmp_path, list(range(4, 24)))


@pytest.mark.slow
def test_kill_9_from_outside_at_any_time(tmp_path: Path) -> None:
    photos = album(tmp_path / "photos", classes=6, each=40)
    Gallery.build(Patches(), photos / "kind0", tmp_path / "g")
    words = [sys.executable, "-c", textwrap.dedent(KILLED), str(ROOT), str(tmp_path / "g"), str(photos), "100000"]
    for delay in np.linspace(0.6, 1.6, 12):
        with subprocess.Popen(words, stderr=subprocess.DEVNULL) as child:
            time.sleep(float(delay))
            child.kill()
        after = Gallery.open(tmp_path / "g", Patches())
        assert after.check() == []
        assert len(after) >= 40
    after.add(photos)
    assert len(after) == 240


def test_two_writers_one_is_told(gallery: Gallery, photos: Path, tmp_path: Path) -> None:
    code = "import sys, time; from likewise.engine import shards\n"
    code += "with shards.locked(sys.argv[1]): print('held', flush=True); time.sleep(30)"
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "gallery")], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        for change in (gallery.add, gallery.remove):
            with pytest.raises(InputError, match=f"in use by process {holder.pid}"):
                change(photos)
        assert len(gallery.search(files(photos)[0])) == 10, "reading needs no lock"
        holder.kill()
    assert gallery.add(photos).unchanged == 24


def test_a_thread_that_writes_keeps_another_out(gallery: Gallery, photos: Path) -> None:
    inside, go = threading.Event(), threading.Event()

    class Slow(Patches):
        def embed(self, images: object, *, on_error: str = "raise") -> np.ndarray:
            inside.set()
            go.wait(10)
            return super().embed(images, on_error=on_error)

    paint(photos / "new.png", 5)
    worker = threading.Thread(target=Gallery.open(gallery.store.path, Slow()).add, args=(photos,))
    worker.start()
    inside.wait(10)
    with pytest.raises(InputError, match="in use by this process"):
        gallery.add(photos)
    go.set()
    worker.join()
    assert gallery.add(photos) == Added(0, 0, 25)


# ------------------------------------------------------------------------------------------------------ hostile files


def test_a_manifest_edited_by_hand_is_refused(gallery: Gallery, tmp_path: Path) -> None:
    file = tmp_path / "gallery" / "gallery.json"
    whole = file.read_text()
    for old, new in ((str(DIM), "13"), ('"dead": []', '"dead": [1]'), ("patches", "other")):
        assert old in whole
        file.write_text(whole.replace(old, new, 1))
        with pytest.raises(FileError, match="damaged or edited by hand"):
            Gallery.open(tmp_path / "gallery")
        assert "edited by hand" in gallery.check()[0]
    for text, said in (("{", "damaged"), ("[]", "damaged"), ('{"format": 9}', "format 9"), ("{}", "format None")):
        file.write_text(text)
        with pytest.raises(FileError, match=said):
            Gallery.open(tmp_path / "gallery")


def forged(folder: Path, change: object) -> None:
    """Change the manifest and give it a right checksum, as a stranger could."""
    body = manifest.read(folder)
    change(body)  # type: ignore[operator]
    text = json.dumps({**body, "checksum": manifest._checksum(body)})
    (folder / "gallery.json").write_text(text)


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b["segments"].append({"number": "../../x", "rows": 1, "sha256": ["", ""], "dead": []}),
        lambda b: b["segments"].append({}),
        lambda b: b["segments"].append(dict(b["segments"][0])),
        lambda b: b["segments"][0].update(rows=5),
        lambda b: b["segments"][0].update(dead=[99]),
        lambda b: b["segments"][0].update(dead=[-1]),
        lambda b: b["segments"][0].update(sha256=["0", "0"]),
        lambda b: b["about"].update(dim=4),
        lambda b: b["about"].update(dim="12"),
        lambda b: b["about"].update(extra=1),
        lambda b: b.update(index={"number": 1}),
        lambda b: b.update(next=[0, 0]),
        lambda b: b.pop("segments"),
    ],
)
def test_a_forged_manifest_is_a_file_error(gallery: Gallery, tmp_path: Path, change: object) -> None:
    forged(tmp_path / "gallery", change)
    with pytest.raises(FileError):
        Gallery.open(tmp_path / "gallery")


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/../../b", "", ".", "a//b", "a/./b", "x\0y", "/../x"])
def test_a_name_that_leads_out_of_the_root_is_refused(gallery: Gallery, tmp_path: Path, name: str) -> None:
    import hashlib

    folder = tmp_path / "gallery"
    file = next(folder.glob("segment-*.json"))
    listed = json.loads(file.read_text())
    listed[3][1] = name
    text = json.dumps(listed).encode()
    file.write_bytes(text)
    forged(folder, lambda b: b["segments"][0]["sha256"].__setitem__(1, hashlib.sha256(text).hexdigest()))
    with pytest.raises(FileError, match="no plain path below the root"):
        Gallery.open(folder)


def test_truncated_and_changed_rows_are_told(gallery: Gallery, photos: Path, tmp_path: Path) -> None:
    file = next((tmp_path / "gallery").glob("segment-*.npy"))
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[-5] ^= 0x40
    file.write_bytes(bytes(flipped))
    damaged = Gallery.open(tmp_path / "gallery", Patches())
    with pytest.raises(FileError, match=r"segment-000000\.npy: damaged"):
        damaged.search(files(photos)[0])
    assert "damaged" in damaged.check()[0]
    for data in (whole[:-7], whole[:40], b"", b"\x93NUMPY\x01\x00\x10\x00" + b"{'descr': '|O'}\n"):
        file.write_bytes(data)
        with pytest.raises(FileError, match=r"segment-000000\.npy: .*(damaged|truncated|empty|too short|not an array)"):
            Gallery.open(tmp_path / "gallery")
    file.unlink()
    with pytest.raises(FileError, match="is missing"):
        Gallery.open(tmp_path / "gallery")


def test_rows_that_are_not_unit_vectors_are_found_by_check(tmp_path: Path) -> None:
    store = filled(tmp_path / "g", 2 * unit(np.random.default_rng(0), 50), "flat")
    assert store.check() == [f"{store.state.segments[0].path}: 50 of its rows are not unit vectors"]


def test_a_name_out_of_the_root_is_not_put(tmp_path: Path) -> None:
    store = FolderStore.create(tmp_path / "g", about(tmp_path))
    with store.writing(), pytest.raises(FileError, match="no plain path"):
        store.put([Record("../x", 1, 1)], unit(np.random.default_rng(0), 1))


def test_an_interrupted_build_is_gone_on_with(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "CHUNK", 5)

    class Stopped(Patches):
        def embed(self, images: object, *, on_error: str = "raise") -> np.ndarray:
            if len(self.seen) >= 10:
                raise KeyboardInterrupt
            return super().embed(images, on_error=on_error)

    with pytest.raises(KeyboardInterrupt):
        Gallery.build(Stopped(), photos, tmp_path / "g")
    assert len(Gallery.open(tmp_path / "g", Patches())) == 10
    model = Patches()
    again = Gallery.build(model, photos, tmp_path / "g")
    assert (len(again), len(model.seen), again.report.unchanged) == (24, 14, 10)
    with shards.locked(tmp_path / "g"):
        pass


def test_a_search_survives_what_others_patch_into_faiss(tmp_path: Path) -> None:
    """pytorch-metric-learning imports faiss.contrib.torch_utils, which replaces functions of FAISS in the process."""
    code = (
        "import numpy as np, faiss, faiss.contrib.torch_utils\n"
        "from likewise.images.stores import indexes\n"
        f"np.save({str(tmp_path / 'rows.npy')!r}, np.eye(4, dtype=np.float32))\n"
        f"rows = np.load({str(tmp_path / 'rows.npy')!r}, mmap_mode='r')\n"
        "print(indexes.exact([(np.arange(4), rows)], np.eye(4, dtype=np.float32)[2:3], 1)[1].tolist())\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]
    assert done.stdout.strip() == "[[2]]"
