"""The four stages: each changes the ranking as it should, switched off it is the shortlist's; forms of a query."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import likewise as lw
from likewise import samples
from likewise.errors import FileError, InputError
from likewise.images import default
from likewise.media import read_array, write_image
from likewise.search import Collection, Verifier, pair, verify
from likewise.search.duplicates import alignment, copies, same_frame
from likewise.search.shortlist import local_distances, nearest_shots, shots
from likewise.search.verdict import Judge, judge, measured, word
from worlds.layouts import film


def turned(photo: np.ndarray, degrees: float = 12.0, scale: float = 0.85, light: float = 0.6) -> np.ndarray:
    """The photo turned, smaller and darker."""
    h, w = photo.shape[:2]
    matrix = cv2.getRotationMatrix2D((w / 2, h / 2), degrees, scale)
    moved = cv2.warpAffine(photo, matrix, (w, h), borderMode=cv2.BORDER_REFLECT_101)
    return (moved * light).astype(np.uint8)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight sample photographs at 320 px, and a copy of one of them, saved again."""
    folder = tmp_path_factory.mktemp("photos")
    for name in samples.names()[:8]:
        photo = samples.photograph(name)
        scale = 320 / max(photo.shape[:2])
        write_image(folder / f"{name}.jpg", cv2.resize(photo, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA))
    first = samples.names()[0]
    write_image(folder / "copy.jpg", read_array(folder / f"{first}.jpg"), quality=50)
    return folder


@pytest.fixture(scope="module")
def collection(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Collection.build(photos, tmp_path_factory.mktemp("index") / "i") as found:
        yield found


@pytest.fixture(scope="module")
def query(photos: Path) -> np.ndarray:
    return turned(read_array(photos / f"{samples.names()[1]}.jpg"))


# ------------------------------------------------------------------------------------------------------------- stages


def test_switched_off_it_is_the_shortlists_own_ranking(collection: Collection, query: np.ndarray) -> None:
    found = collection.search(query, 9, rerank=False, verify=0)
    own = collection.nearest(collection.model.embed([query]), 9)[0]
    assert [(h.path, h.distance, h.rank) for h in found] == [(h.path, h.distance, h.rank) for h in own]
    assert list(found.seconds) == ["shortlist"]
    assert all(h.local_distance is None and h.evidence is None for h in found)


def test_reranking_orders_by_local_distance(collection: Collection, query: np.ndarray) -> None:
    found = collection.search(query, 9, verify=0)
    values = [h.local_distance for h in found]
    assert values == sorted(values)
    assert {h.path for h in found} == set(collection)
    own = {h.path: h.distance for h in collection.search(query, 9, rerank=False, verify=0)}
    assert all(h.distance == own[h.path] for h in found)


def test_verification_finds_the_place_and_says_why(collection: Collection, query: np.ndarray, photos: Path) -> None:
    told: list[str] = []
    found = collection.search(query, 4, verify=2, on_stage=lambda name, hits: told.append(name))
    first = found[0]
    assert Path(first.path).stem == samples.names()[1]
    assert first.verdict == "same"
    assert first.evidence is not None
    assert first.evidence.n >= 30
    assert told == ["shortlist", "re-rank", "verify"] == list(found.seconds)
    assert found[3].evidence is None
    agreed = first.evidence.matches.take(first.evidence.inliers)
    h, w = query.shape[:2]
    truth = cv2.getRotationMatrix2D((w / 2, h / 2), 12.0, 0.85)
    back = agreed.b @ truth[:, :2].T + truth[:, 2]
    assert np.median(np.linalg.norm(back - agreed.a, axis=1)) < 1.5


def test_a_wrong_first_is_put_behind_one_that_holds(collection: Collection, query: np.ndarray) -> None:
    """Under a metric that knows only one number of the parts, re-ranking is poor; verification mends it."""
    metric = np.zeros((112, 112))
    metric[5, 5] = 1.0
    poor = collection.search(query, 9, verify=0, metric=metric)
    place = 1 + [Path(h.path).stem for h in poor].index(samples.names()[1])
    assert place > 1
    mended = collection.search(query, 9, verify=place, metric=metric)
    assert Path(mended[0].path).stem == samples.names()[1]
    assert [h.rank for h in mended] == list(range(1, 10))
    assert {h.path for h in poor} == {h.path for h in mended}


def test_under_a_metric_the_verdict_goes_by_what_it_was_fitted_on(collection: Collection, query: np.ndarray) -> None:
    width = collection.about.width
    metrics = [c * np.eye(width) for c in (0.1, 10.0)]
    one, two = (collection.search(query, 3, metric=M, verify=0) for M in metrics)
    assert [h.path for h in one] == [h.path for h in two]
    assert [h.local_distance for h in two] != pytest.approx([h.local_distance for h in one], rel=0.5)
    for result, M in ((one, metrics[0]), (two, metrics[1])):
        for hit in result:
            assert hit.probability == judge().probability(hit.distance)
            assert hit.plan().distance == pytest.approx(hit.local_distance, rel=1e-4)  # both solved to their tolerance
            assert np.array_equal(hit.metric, M)


def test_a_query_that_is_too_narrow_to_be_verified_is_still_found(collection: Collection) -> None:
    result = collection.search(np.tile(np.arange(20, dtype=np.uint8)[None, :, None], (6000, 1, 3)), 2, verify=2)
    assert len(result) == 2
    assert all(hit.evidence is None for hit in result)
    assert len(result.notes) == 2
    assert "not verified: query: image: 20 × 6000 pixels are too narrow" in result.notes[0]


def test_a_metric_is_learned_from_what_reranking_compares(collection: Collection, query: np.ndarray) -> None:
    paths = sorted(collection)[:6]
    sets = collection.signatures(paths)
    assert {s.points.shape for s in sets} == {(49, 112)}
    learner = lw.sets.WassersteinLMNN(multilevel=False, start="identity", rho0=1.0, max_iter=1, rounds=1)
    model = learner.fit(sets, [0, 0, 0, 1, 1, 1])
    hits = collection.search(query, 3, metric=model, verify=0)
    assert all(hit.metric is not None and hit.local_distance is not None for hit in hits)


def test_a_long_query_is_thinned_and_says_so(collection: Collection, query: np.ndarray) -> None:
    result = collection.search([query] * 20, 1, rerank=False, verify=0)
    assert len(result.query) == 16
    assert result.notes == ("query: 16 of its 20 images, evenly taken",)
    assert collection.search([query] * 16, 1, rerank=False, verify=0).notes == ()


def test_the_same_search_gives_the_same_bytes(collection: Collection, query: np.ndarray) -> None:
    one, two = (collection.search(query, 3, verify=1).to_dict() for _ in range(2))
    assert json.dumps({**one, "seconds": 0}) == json.dumps({**two, "seconds": 0})


def test_the_query_itself_can_be_left_out(collection: Collection, photos: Path, tmp_path: Path) -> None:
    one = photos / f"{samples.names()[0]}.jpg"
    whole = collection.search(one, 9, rerank=False, verify=0)
    assert Path(whole[0].path) == one
    (tmp_path / "link").symlink_to(photos)
    others = collection.search(one, 9, rerank=False, verify=0, leave_out=[tmp_path / "link" / one.name])
    assert [h.path for h in others] == [h.path for h in whole][1:]
    assert [h.rank for h in others] == list(range(1, 9))
    assert len(collection.search(one, 3, verify=0, shortlist=3, leave_out=[one, "nowhere.jpg"])) == 3


@pytest.mark.parametrize("word", ["k", "shortlist", "verify"])
@pytest.mark.parametrize("value", [-1, 1.5, True, "3"])
def test_wrong_numbers_are_named(collection: Collection, query: np.ndarray, word: str, value: Any) -> None:
    with pytest.raises(InputError, match=word):
        collection.search(query, **{word: value})


def test_a_model_without_parts_is_not_reranked_and_says_so(photos: Path, tmp_path: Path) -> None:
    class Mean:
        name, dim = "mean-colour", 3

        def embed(self, images: Any) -> np.ndarray:
            return np.stack([np.asarray(x, np.float32).reshape(-1, 3).mean(0) for x in images])

    with Collection.build(photos, tmp_path / "i", model=Mean()) as found:
        result = found.search(photos / "copy.jpg", 2, verify=0)
        assert "not re-ranked" in result.notes[0]
        assert Path(result[0].path).name in ("copy.jpg", f"{samples.names()[0]}.jpg")


# ------------------------------------------------------------------------------------------------------------- queries


def test_forms_of_a_query(photos: Path, query: np.ndarray, tmp_path: Path) -> None:
    from PIL import Image

    files = sorted(photos.glob("*.jpg"))
    assert len(shots(query)) == len(shots(Image.fromarray(query))) == len(shots(files[0])) == 1
    assert len(shots(files)) == len(files)
    assert len(shots(photos)) == len(files)
    assert len(shots([query, files[0]])) == 2
    assert len(shots(files, most=4)) == 4
    assert shots(files, most=4).names[0] == str(files[0])
    assert shots(files, most=4).names[-1] == str(files[-1])
    for wrong in ([], tmp_path):
        with pytest.raises((InputError, FileError)):
            shots(wrong)
    (tmp_path / "odd.mp4").write_bytes(b"nothing of the kind")
    with pytest.raises(FileError):
        shots(tmp_path / "odd.mp4")


def test_a_video_is_a_query(collection: Collection, photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("av")
    photo = cv2.resize(read_array(photos / f"{samples.names()[2]}.jpg"), (160, 120))
    film(tmp_path / "v.mp4", [turned(photo, i - 15, 1.0, 0.9) for i in range(30)])
    asked = shots(tmp_path / "v.mp4", most=5)
    assert asked.names[0].endswith("#0")
    assert len(asked) == 5
    found = collection.search(asked, 2, verify=0)
    assert Path(found[0].path).stem == samples.names()[2]


def test_several_shots_take_the_best_for_each_hit(collection: Collection, photos: Path, query: np.ndarray) -> None:
    other = read_array(photos / f"{samples.names()[3]}.jpg")
    found = collection.search([query, other], 9, verify=0)
    alone = [collection.search(q, 9, verify=0) for q in (query, other)]
    for hit in found:
        values = [next(h.local_distance for h in one if h.path == hit.path) for one in alone]
        assert hit.local_distance == pytest.approx(min(values))
        assert hit.shot == int(np.argmin(values))


# --------------------------------------------------------------------------------------------------------------- parts


def test_an_index_keeps_parts_through_updates_and_removal(photos: Path, tmp_path: Path) -> None:
    files = sorted(map(str, photos.glob("*.jpg")))
    names = [Path(file).name for file in files]
    truth = default().embed_with_parts(files)[1]
    with Collection.build(photos, tmp_path / "i") as made:
        assert made.about.cells == 49
        assert (made.parts(files) == truth).all()
        made.remove(files[:5])
        assert (made.parts(files[5:]) == truth[5:]).all()
        assert (made.parts(files[2:4]) == truth[2:4]).all(), "what is not kept is made from the files"
        assert (made.parts([files[0], str(photos / "gone.png")])[1] == 0).all()
        made.add(files[:2])
    with Collection.open(tmp_path / "i") as made:
        assert made.check() == []
        assert set(made.index.parts(names)) == {names[i] for i in (0, 1, 5, 6, 7, 8)}
        order = [6, 0, 8]
        assert (made.parts([files[i] for i in order]) == truth[order]).all()


def test_local_distances_are_those_of_the_level_sets() -> None:
    from likewise.images.embedder import directions
    from likewise.sets import compare

    draw = np.random.default_rng(0)
    q, c = draw.integers(-127, 127, (4, 6)).astype(np.int8), draw.integers(-127, 127, (3, 4, 6)).astype(np.int8)
    found = local_distances(q, c)
    naive = [compare(directions(q), directions(one), gamma=0.02, tol=1e-3).distance for one in c]
    np.testing.assert_allclose(found, naive, rtol=1e-3)  # to the tolerance of a solve
    M = np.diag([1.0, 2, 3, 4, 5, 6])
    naive = [compare(directions(q), directions(one), gamma=0.02, tol=1e-3, metric=M).distance for one in c]
    np.testing.assert_allclose(local_distances(q, c, M), naive, rtol=1e-3)


def test_parts_that_are_not_known_are_infinitely_far() -> None:
    draw = np.random.default_rng(0)
    q, c = draw.integers(-127, 127, (2, 4, 6)).astype(np.int8), draw.integers(-127, 127, (3, 4, 6)).astype(np.int8)
    c[1] = 0
    values, which = nearest_shots(q, c)
    assert np.isinf(values[1])
    assert np.isfinite(values[[0, 2]]).all()
    assert which[0] == int(np.argmin([local_distances(one, c)[0] for one in q]))


# ---------------------------------------------------------------------------------------------------- evidence, verdict


def test_evidence_for_one_thing_and_against_another(photos: Path, query: np.ndarray) -> None:
    look = Verifier(query)
    same, other = (look(photos / f"{samples.names()[i]}.jpg") for i in (1, 4))
    assert same.n > 4 * max(other.n, 1)
    assert same.cycle_consistency is None, "there is no flow in a search"
    assert "round-trip" not in repr(same)
    assert (other.kind, other.n, other.share) == (None, 0, 0.0)
    assert same.kind == "homography"
    overlay = same.overlay()
    assert overlay is not None
    assert overlay.shape == look.image.pixels.shape
    assert same.to_dict()["inliers"] == len(same.to_dict()["points"]) == same.n


@pytest.mark.parametrize("size", [(70, 400), (8, 8), (64, 64)])
def test_odd_pictures_give_evidence_or_none(query: np.ndarray, size: tuple[int, int]) -> None:
    draw = np.random.default_rng(0)
    faint = draw.integers(100, 103, (*size, 3), dtype=np.uint8)
    for picture in (np.zeros((*size, 3), np.uint8), faint, draw.integers(0, 255, (*size, 3), dtype=np.uint8)):
        found = verify(query, picture)
        assert (found.kind, found.n) == (None, 0)
        assert judge().probability(1.1, 1.4, found) < 0.1  # the median distances of unrelated photos


def test_a_pair_is_judged_as_a_hit_is(collection: Collection, query: np.ndarray, photos: Path) -> None:
    for hit in collection.search(query, 9, verify=9):
        alone = pair(query, hit.path)
        assert (alone.path, alone.verdict) == (hit.path, hit.verdict)
        np.testing.assert_allclose(
            [alone.distance, alone.local_distance], [hit.distance, hit.local_distance], atol=1e-5
        )
        assert alone.probability == pytest.approx(hit.probability, abs=1e-4)
    assert pair(query, np.zeros((80, 80, 3), np.uint8)).verdict == "different"


def test_the_verdict_is_the_logistic_of_what_was_measured(query: np.ndarray, photos: Path) -> None:
    evidence = verify(query, photos / "copy.jpg")
    parts = {"transport+evidence": [-1.0, -2.0, -3.0, 0.5, 0.25], "distance": [0.5, -1.0], "matches": [-9.0, 0, 0]}
    logit = -1 - 2 * 0.3 - 3 * 0.2 + 0.5 * np.log(max(evidence.n, 15) / 15) + 0.25 * evidence.share
    assert Judge(parts).probability(0.3, 0.2, evidence) == pytest.approx(1 / (1 + np.exp(-logit)))
    assert Judge(parts).probability(0.3) == pytest.approx(1 / (1 + np.exp(-0.2)))
    assert measured(0.3, float("nan"), None) == ("distance", [0.3])
    assert [word(p) for p in (0.95, 0.9, 0.5, 0.1, 0.0)] == ["same", "same", "unsure", "different", "different"]


def test_matches_that_are_sure_are_not_outvoted(photos: Path) -> None:
    photo = read_array(photos / f"{samples.names()[1]}.jpg")
    evidence = verify(photo, np.ascontiguousarray(np.rot90(photo)))
    far = {"distance+evidence": [-9.0, 0, 0, 0], "matches": [-5.0, 2.0, 6.0]}
    alone = 1 / (1 + np.exp(5 - 2 * np.log(max(evidence.n, 15) / 15) - 6 * evidence.share))
    assert alone > 0.9
    assert Judge(far).probability(1.4, None, evidence) == pytest.approx(alone)
    unsure = {**far, "matches": [-90.0, 2.0, 6.0]}
    assert Judge(unsure).probability(1.4, None, evidence) == pytest.approx(1 / (1 + np.exp(9)))


def test_more_evidence_never_makes_it_less_probable() -> None:
    """The shipped coefficients act in the right direction."""
    for name, values in judge().parts.items():
        signs = [-1] * (2 if "transport" in name else 1) + [1] * (2 if "evidence" in name else 0)
        signs = [1, 1] if name == "matches" else signs
        assert all(v * s >= 0 for v, s in zip(values[1:], signs, strict=True)), name


# ----------------------------------------------------------------------------------------------------------- duplicates


def test_copies_are_grouped_and_others_are_not(collection: Collection, photos: Path) -> None:
    first = f"{samples.names()[0]}.jpg"
    assert collection.duplicates() == [sorted([str(photos / "copy.jpg"), str(photos / first)])]


def test_a_cropped_or_relit_copy_is_one_a_turned_one_is_not(photos: Path, tmp_path: Path) -> None:
    photo = read_array(photos / f"{samples.names()[1]}.jpg")
    h, w = photo.shape[:2]
    write_image(tmp_path / "a.jpg", photo)
    write_image(tmp_path / "cropped.jpg", photo[h // 14 :, : w - w // 14])
    write_image(tmp_path / "dark.jpg", (photo * 0.6).astype(np.uint8))
    write_image(tmp_path / "half.jpg", photo[:, : w // 2])
    with Collection.build(tmp_path, tmp_path / "i") as made:
        assert copies(made, str(tmp_path / "a.jpg"), str(tmp_path / "cropped.jpg"))
        assert copies(made, str(tmp_path / "a.jpg"), str(tmp_path / "dark.jpg"))
        assert not copies(made, str(tmp_path / "a.jpg"), str(tmp_path / "half.jpg"))
    assert not same_frame(photo, turned(photo, 90, 0.5, 1.0))
    assert alignment(np.eye(4, dtype=np.int8)[None].repeat(2, 0)[0], np.eye(4, dtype=np.int8)) == pytest.approx(1)


# ---------------------------------------------------------------------------------------------------------- page, plots


def test_the_page_is_self_contained_and_escapes_names(photos: Path, tmp_path: Path, query: np.ndarray) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "<img src=x onerror=alert(1)>.jpg").write_bytes((photos / f"{samples.names()[1]}.jpg").read_bytes())
    with Collection.build(folder, tmp_path / "i") as found:
        result = found.search(query, 1, verify=1)
        text = result.page(tmp_path / "page.html").read_text()
        result.plot(tmp_path / "hits.png")
    assert "<img src=x" not in text
    assert "http://" not in text
    assert "https://" not in text
    assert "<script" not in text
    assert "inliers" in text
    assert text.count("data:image/") >= 3
    assert (tmp_path / "hits.png").stat().st_size > 1000


def test_a_hit_whose_file_has_gone_is_still_shown(photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("copy.jpg", f"{samples.names()[1]}.jpg"):
        (folder / name).write_bytes((photos / name).read_bytes())
    with Collection.build(folder, tmp_path / "i") as found:
        (folder / "copy.jpg").unlink()
        result = found.search(photos / "copy.jpg", 2, verify=2)
        assert any("not verified" in note for note in result.notes)
        assert "copy.jpg" in result.page(tmp_path / "p.html").read_text()
        result.plot(tmp_path / "p.png")


# -------------------------------------------------------------------------------------------------------------- Milvus


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:pymilvus", "ignore::DeprecationWarning:milvus_lite")
def test_a_collection_on_milvus_is_searched_in_the_same_way(
    collection: Collection, photos: Path, query: np.ndarray, tmp_path: Path
) -> None:
    manager = pytest.importorskip("milvus_lite.server_manager")
    place = f"milvus://{tmp_path / 'store.db'}/photos"
    with Collection.build(photos, place) as found:
        assert found.report.added == len(collection)
        assert found.describe()["parts"] is False
        there, here = found.search(query, 5, verify=1), collection.search(query, 5, verify=1)
        assert [h.path for h in there] == [h.path for h in here]
        assert [h.local_distance for h in there] == pytest.approx([h.local_distance for h in here])
        assert found.duplicates() == collection.duplicates()
    manager.server_manager_instance.release_all()
