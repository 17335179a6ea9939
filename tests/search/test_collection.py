"""A collection: results equal to a loop over all pairs, whatever was added, removed or moved before."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

import likewise as lw
from likewise.errors import FileError, InputError, ShapeError
from likewise.images import embedding
from likewise.search import Collection, IndexReport, Result
from likewise.store import index as stored
from worlds.galleries import DIM, WHOLE, Patches, album, brute, detect_once, paint


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    detect_once(monkeypatch)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return album(tmp_path / "photos")


@pytest.fixture
def collection(photos: Path, tmp_path: Path) -> Collection:
    return Collection.build(photos, tmp_path / "index", model=Patches())


def files(root: Path) -> list[Path]:
    return sorted(root.rglob("*.png"))


def nearest(collection: Collection, query: object, k: int = 10, **keywords: object) -> Result:
    return collection.search(query, k, rerank=False, verify=0, **keywords)


def paths(hits: Result) -> list[str]:
    return [hit.path for hit in hits]


# ------------------------------------------------------------------------------------------------------- the search


def test_a_search_is_the_loop_over_all_pairs(collection: Collection, photos: Path) -> None:
    query = paint(photos.parent / "query.png", 99)
    hits = nearest(collection, query, 7)
    want = brute(Patches(), query, files(photos), 7)
    assert paths(hits) == [p for p, _ in want]
    np.testing.assert_allclose([h.distance for h in hits], [d for _, d in want], atol=1e-7)
    assert [h.rank for h in hits] == list(range(1, 8))
    first = nearest(collection, files(photos)[0])[0]
    assert (first.path, first.rank) == (str(files(photos)[0]), 1)
    assert first.distance == pytest.approx(0, abs=1e-7)
    rows = collection.vectors(files(photos)[:3])
    listed = [[(h.path, h.distance) for h in hits] for hits in collection.nearest(rows, 4)]
    assert listed == [[(h.path, h.distance) for h in nearest(collection, p, 4)] for p in files(photos)[:3]]


def test_the_first_half_of_a_vector_is_the_embedding(collection: Collection, photos: Path) -> None:
    a, b = [p for p in files(photos) if len(collection.features([p])[str(p)])][3:5]
    rows = collection.vectors([a, b])
    assert (rows.shape, collection.about.width, collection.about.dim) == ((2, WHOLE), DIM, WHOLE)
    np.testing.assert_allclose(np.linalg.norm(rows[:, :DIM], axis=1), 0.5**0.5, atol=1e-3)
    apart = float(np.linalg.norm(rows[0, :DIM] - rows[1, :DIM])) * 2**0.5
    assert apart == pytest.approx(lw.images.compare(a, b, model=collection.model).distance, abs=1e-3)
    distances = {h.path: h.distance for h in nearest(collection, a, 24)}
    assert distances[str(b)] == pytest.approx(float(np.linalg.norm(rows[0] - rows[1])), abs=1e-3)
    kept = collection.index.vectors([collection.name_of(p) for p in (a, b)])
    np.testing.assert_array_equal(rows, np.stack(list(kept.values())))


def test_equal_distances_come_in_the_order_of_paths_and_none_is_cut_off(collection: Collection, photos: Path) -> None:
    one = files(photos)[0]
    for name in ("z", "a", "m", *(f"n{i:02d}" for i in range(30))):
        shutil.copy(one, photos / f"{name}.png")
    collection.add(photos)
    want = [str(p) for p in sorted([one, *photos.glob("*.png")])]
    for k in (1, 3, 20, 34):
        hits = nearest(collection, one, k)
        assert paths(hits) == want[:k]
        assert list({h.distance for h in hits}) == pytest.approx([0], abs=1e-7), "one distance, to the bit"


def test_filters_are_exact(collection: Collection, photos: Path) -> None:
    query = paint(photos.parent / "query.png", 99)
    for keywords, inside in (
        ({"label": "kind1"}, photos / "deep" / "kind1"),
        ({"under": "deep"}, photos / "deep"),
        ({"under": photos / "deep"}, photos / "deep"),
        ({"under": "."}, photos),
        ({"under": "deep", "label": "kind3"}, photos / "deep" / "kind3"),
    ):
        want = brute(Patches(), query, files(inside), 9)
        assert paths(nearest(collection, query, 9, **keywords)) == [p for p, _ in want], keywords
    assert len(nearest(collection, query, 1000)) == 24
    assert len(nearest(collection, query, 1000, label="kind0")) == 6


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"label": "kind7"}, r"label: no photo .* 'kind7'; there are: kind0, kind1"),
        ({"under": "elsewhere"}, "under: no photo of the index lies below .*elsewhere'; there are: deep"),
        ({"under": "deep", "label": "kind0"}, "label"),
        ({"under": "dee"}, "under"),  # a prefix of a name is not a folder
    ],
)
def test_a_filter_that_leaves_nothing_says_what_there_is(
    collection: Collection, photos: Path, keywords: dict[str, str], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        nearest(collection, files(photos)[0], **keywords)


def test_wrong_arguments_are_named(collection: Collection, photos: Path, tmp_path: Path) -> None:
    rows = {
        "shape": np.ones((2, 5)),
        "ragged": [[1, 2], [3]],
        "zero": np.zeros((1, WHOLE)),
        "nan": np.full((1, WHOLE), np.nan),
    }
    for name, words in (
        ("shape", rf"expected \(n, {WHOLE}\)"),
        ("ragged", "different lengths"),
        ("zero", "zero"),
        ("nan", "zero"),
    ):
        with pytest.raises((ShapeError, InputError), match=f"vectors: .*{words}"):
            collection.nearest(rows[name])
    with pytest.raises(FileError, match="no such file"):
        nearest(collection, tmp_path / "none.png")
    for keywords, said in (({"kind": "tree"}, "kind: expected one of auto, flat"), ({"recall": 1.5}, "recall")):
        with pytest.raises(InputError, match=said):
            Collection.build(photos, tmp_path / "x", model=Patches(), **keywords)
    for place, said in ((photos / "none", "not a folder"), (files(photos)[0], "not a folder")):
        with pytest.raises(FileError, match=said):
            Collection.build(place, tmp_path / "x", model=Patches())
    with pytest.raises(FileError, match="holds no index"):
        Collection.open(photos)
    with pytest.raises(InputError, match="holds something else"):
        Collection.build(photos, photos / "kind0", model=Patches())
    assert not (tmp_path / "x").exists()


# ------------------------------------------------------------------------------------------------------- the model


def test_another_model_is_refused(collection: Collection, photos: Path, tmp_path: Path) -> None:
    for use in (
        lambda m: Collection.open(tmp_path / "index", m),
        lambda m: Collection.build(photos, tmp_path / "index", model=m),
    ):
        with pytest.raises(InputError, match="built with another model"):
            use(Patches(digest="d2"))
    again = Collection.open(tmp_path / "index")
    assert len(again) == 24
    with pytest.raises(InputError, match=r"made by patches; open the index with model="):
        nearest(again, files(photos)[0])


def test_a_model_that_says_nothing_of_itself_is_normalised_and_known_by_its_name(photos: Path, tmp_path: Path) -> None:
    class Plain:
        def embed(self, images: list[np.ndarray]) -> np.ndarray:
            return 7.0 * np.stack([Patches.row(a) for a in images])

    (photos / "broken.png").write_bytes(files(photos)[0].read_bytes()[:60])
    made = Collection.build(photos, tmp_path / "plain", model=Plain())
    assert (len(made), len(made.report.skipped)) == (24, 1)
    good = [p for p in files(photos) if p.name != "broken.png"]
    assert paths(nearest(made, good[0], 5)) == [p for p, _ in brute(Patches(), good[0], good, 5)]
    assert Collection.open(tmp_path / "plain", Plain()).check() == []


def test_the_model_is_kept_in_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = album(tmp_path / "photos", classes=2, each=2)
    Collection.build(folder, tmp_path / "index").close()
    a, b = files(folder)[:2]
    distances = {h.path: h.distance for h in nearest(Collection.open(tmp_path / "index"), a)}
    assert distances[str(a)] == pytest.approx(0, abs=1e-5)
    assert distances[str(b)] == pytest.approx(lw.search.pair(a, b).distance, abs=1e-3)
    monkeypatch.setitem(lw.store.checkpoint._CLASSES, "test.Patches", "worlds.galleries:Patches")
    Collection.build(folder, tmp_path / "own", model=Patches(digest="mine")).close()
    assert Collection.open(tmp_path / "own").model.digest == "mine"


def test_vectors_of_another_length_are_refused_before_they_are_kept(collection: Collection, photos: Path) -> None:
    class Longer(Patches):
        def embed(self, images, *, on_error="raise"):
            return np.pad(super().embed(images, on_error=on_error), ((0, 0), (0, 4)))

    paint(photos / "new.png", 77)
    with pytest.raises(ShapeError, match=rf"vectors of shape \(1, {WHOLE + 4}\); expected \(1, {WHOLE}\)"):
        Collection.open(collection.place, Longer()).add(photos)
    assert len(Collection.open(collection.place)) == 24


# ----------------------------------------------------------------------------------------------- adding and removing


def test_adding_again_embeds_only_what_changed(collection: Collection, photos: Path) -> None:
    model = collection.model
    assert collection.report == IndexReport(24)
    model.seen.clear()
    assert collection.add(photos) == IndexReport(0, 0, 24)
    assert model.seen == []
    paint(files(photos)[2], 1234)
    paint(photos / "new.png", 77)
    assert collection.add(photos) == IndexReport(1, 1, 23)
    assert sorted(model.seen) == sorted(map(str, (files(photos)[2], photos / "new.png")))
    query = files(photos)[2]
    assert paths(nearest(collection, query, 25)) == [p for p, _ in brute(Patches(), query, files(photos), 25)]
    assert (len(collection), collection.check()) == (25, [])


def test_remove_a_photo_a_folder_and_what_is_gone(collection: Collection, photos: Path) -> None:
    one = photos / "kind0" / "p0.png"
    assert one in collection
    assert [collection.remove(one), one in collection, collection.remove(one)] == [1, False, 0]
    assert collection.remove(photos / "deep") == 12
    (photos / "kind2" / "p3.png").unlink()
    left = [p for p in files(photos) if "deep" not in p.parts and p != one]
    report = collection.update(photos / "kind2")
    assert (report.removed, report.added, report.unchanged) == (1, 0, 5)
    assert sorted(collection) == sorted(map(str, left))
    assert paths(nearest(collection, one, 100)) == [p for p, _ in brute(Patches(), one, left, 100)]
    assert collection.add(photos).added == 13


def test_nothing_is_taken_out_while_the_folder_is_away_or_empty_as_a_mount_point(
    collection: Collection, photos: Path
) -> None:
    photos.rename(photos.parent / "unmounted")
    with pytest.raises(FileError, match="is not there; nothing was taken out"):
        collection.update()
    photos.mkdir()
    with pytest.raises(FileError, match="holds no image any more"):
        collection.update()
    assert len(collection) == 24
    paint(photos / "another.png", 77)  # the folder is there, with other photos
    report = collection.update()
    assert (report.removed, report.added) == (24, 1)


def test_names_may_be_given_from_here_or_from_the_root(
    collection: Collection, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos / "deep")
    assert "kind1/p0.png" in collection
    assert "deep/kind1/p0.png" in collection
    assert "p0.png" not in collection
    assert 5 not in collection
    assert collection.remove(["kind1/p0.png", "deep/kind1/p1.png"]) == 2
    assert collection.remove("deep/kind1") == 4
    assert collection.remove("kind3") == 6


def test_photos_from_elsewhere_keep_their_whole_path(collection: Collection, tmp_path: Path) -> None:
    other = paint(tmp_path / "other" / "x.png", 5)
    assert collection.add([other]) == IndexReport(1)
    assert paths(nearest(collection, other, 1)) == paths(nearest(collection, other, 1, label="other")) == [str(other)]


def test_an_index_moves_with_its_photos_and_without_them(collection: Collection, photos: Path, tmp_path: Path) -> None:
    collection.close()
    there = tmp_path / "elsewhere"
    shutil.copytree(tmp_path / "index", there / "index")
    assert nearest(Collection.open(there / "index", Patches()), files(photos)[0])[0].path == str(files(photos)[0])
    shutil.move(photos, there / "photos")
    moved = Collection.open(there / "index", Patches())
    assert nearest(moved, files(there)[0])[0].path == str(files(there)[0])
    assert moved.add(there / "photos") == IndexReport(0, 0, 24)


def test_unreadable_photos_are_named_and_counted(photos: Path, tmp_path: Path) -> None:
    (photos / "torn.png").write_bytes(files(photos)[0].read_bytes()[:60])
    (photos / "empty.jpg").touch()
    (photos / "notes.txt").write_text("no image, and not named like one")
    made = Collection.build(photos, tmp_path / "index", model=Patches())
    assert sorted(Path(s.name).name for s in made.report.skipped) == ["empty.jpg", "torn.png"]
    assert str(made.report) == "24 added, 0 updated, 0 unchanged, 0 removed, 2 unreadable"
    assert made.add([tmp_path / "none.png"]).skipped[0].reason.endswith("no such file")
    good = files(photos)[0]
    good.write_bytes(good.read_bytes()[:60])
    done = made.add(photos)
    assert (done.updated, len(done.skipped), len(made), good in made) == (0, 3, 24, True), "it keeps its old row"


@pytest.mark.parametrize(("content", "said"), [(None, "was found"), (b"\x89PNG\r\n\x1a\nrubbish", "can be read")])
def test_a_folder_without_photos_leaves_no_index(
    photos: Path, tmp_path: Path, content: bytes | None, said: str
) -> None:
    (tmp_path / "bare").mkdir()
    if content:
        (tmp_path / "bare" / "x.png").write_bytes(content)
    with pytest.raises(FileError, match=f"no image in this folder {said}"):
        Collection.build(tmp_path / "bare", tmp_path / "i", model=Patches())
    assert not (tmp_path / "i").exists()
    assert len(Collection.build(photos, tmp_path / "i", model=Patches())) == 24


def test_names_that_are_not_utf8_are_kept(photos: Path, tmp_path: Path) -> None:
    odd = photos / os.fsdecode(b"gr\xfc\xdfe \"'%.png")
    shutil.copy(files(photos)[0], odd)
    made = Collection.build(photos, tmp_path / "index", model=Patches())
    again = Collection.open(tmp_path / "index", Patches())
    assert odd in made
    assert odd in again
    hits = nearest(again, odd, 2)
    assert str(odd) in paths(hits)
    hits.to_json(tmp_path / "hits.json")
    hits.page(tmp_path / "hits.html")


def test_an_interrupted_build_resumes(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "CHUNK", 5)

    class Stopped(Patches):
        def embed(self, images: object, *, on_error: str = "raise") -> np.ndarray:
            if len(self.seen) >= 10:
                raise KeyboardInterrupt
            return super().embed(images, on_error=on_error)

    with pytest.raises(KeyboardInterrupt):
        Collection.build(photos, tmp_path / "i", model=Stopped())
    assert len(Collection.open(tmp_path / "i")) == 10
    model = Patches()
    again = Collection.build(photos, tmp_path / "i", model=model)
    assert (len(again), len(model.seen), again.report.unchanged) == (24, 14, 10)


def test_the_kind_is_changed_where_another_is_asked_for(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "LEAST_ROWS", 20)
    for kind, recall, wanted in (
        (None, None, "flat"),
        ("ivf", 0.9, "ivf"),
        (None, None, "ivf"),
        ("flat", None, "flat"),
    ):
        with Collection.build(photos, tmp_path / "i", model=Patches(), kind=kind, recall=recall) as made:
            assert made.describe()["kind"] == wanted
            assert wanted == "flat" or made.describe()["index"]["wanted"] == 0.9
            assert len(nearest(made, files(photos)[0], 24)) == 24


def test_a_folder_is_watched(collection: Collection, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is being written waits; what is whole, changed or gone is taken in; a disk that is away changes nothing."""
    new, other, whole = photos / "new.png", paint(photos.parent / "other.png", 99), files(photos)[0].read_bytes()
    stop, looks = threading.Event(), [0]

    def between(_: float) -> None:
        """What happens after each look."""
        looks[0] += 1
        match looks[0]:
            case 2 | 3:
                new.write_bytes(whole[: 20 * looks[0]])
            case 4:
                new.write_bytes(whole)
            case 7:
                shutil.copy(other, new)
                files(photos)[1].unlink()
            case 9:
                photos.rename(photos.with_name("away"))
            case 11:
                stop.set()

    monkeypatch.setattr(stop, "wait", between)
    reports = [(looks[0], r.added, r.updated, r.removed) for r in collection.watch(stop=stop)]
    assert reports == [(5, 1, 0, 0), (7, 0, 0, 1), (8, 0, 1, 0)]
    assert len(collection) == 24
