"""The four stages: each changes the ranking as it should, switched off it is the shortlist's; forms of a query."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from skimage import data as photographs

from likewise import samples
from likewise.errors import FileError, InputError
from likewise.media import read_array, write_image
from likewise.papers.places.ranking import SENSE
from likewise.search import Collection, Verifier, local, pair, verify
from likewise.search.local import Local, alike, extract, joined, projection, upright, vlad
from likewise.search.shortlist import shots
from likewise.search.verdict import PARTS, Judge, judge, measured, word
from likewise.search.verify import View, captions, seen_from
from likewise.types import Image
from worlds.galleries import detect_once
from worlds.layouts import film


def turned(photo: np.ndarray, degrees: float = 12.0, scale: float = 0.85, light: float = 0.6) -> np.ndarray:
    """The photo turned, smaller and darker."""
    h, w = photo.shape[:2]
    matrix = cv2.getRotationMatrix2D((w / 2, h / 2), degrees, scale)
    moved = cv2.warpAffine(photo, matrix, (w, h), borderMode=cv2.BORDER_REFLECT_101)
    return (moved * light).astype(np.uint8)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    detect_once(monkeypatch)


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
    own = collection.nearest(collection.vectors([query]), 9)[0]
    assert [(h.path, h.distance, h.rank) for h in found] == [(h.path, h.distance, h.rank) for h in own]
    assert list(found.seconds) == ["shortlist"]
    assert all(h.evidence is None for h in found)


def test_reranking_orders_by_the_features_alike(collection: Collection, query: np.ndarray) -> None:
    found = collection.search(query, 9, verify=0)
    assert [h.probability for h in found] == sorted((h.probability for h in found), reverse=True)
    own = {path: extract(Image(path)) for path in collection}
    plain = [h for h in found if not h.turns]
    assert [h.alike for h in plain] == [alike(extract(Image(query)), own[h.path]) for h in plain]
    assert {h.path for h in found} == set(collection)


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
    scale = 640 / max(h, w)  # evidence is of photos at 640 px
    back = ((agreed.b + 0.5) / scale - 0.5) @ truth[:, :2].T + truth[:, 2]
    assert np.median(np.linalg.norm(back - ((agreed.a + 0.5) / scale - 0.5), axis=1)) < 1.5


def test_a_wrong_first_is_put_behind_one_that_holds(collection: Collection, query: np.ndarray) -> None:
    """Without re-ranking, of the farthest as of the nearest, verification puts the right one first."""
    far = collection.search(255 - query, 9, rerank=False, verify=0)
    mended = collection.search(query, 9, rerank=False, verify=9)
    assert Path(mended[0].path).stem == samples.names()[1]
    assert [h.rank for h in mended] == list(range(1, 10))
    assert {h.path for h in far} == {h.path for h in mended}


def test_a_query_on_its_side_and_a_part_of_it_are_found(collection: Collection, photos: Path) -> None:
    photo = read_array(photos / f"{samples.names()[3]}.jpg")
    h, w = photo.shape[:2]
    asked = {"turned by 90°": np.rot90(photo).copy(), "turned by 180°": np.rot90(photo, 2).copy()}
    asked["mirrored"] = photo[:, ::-1].copy()
    for words, query in asked.items():
        first = collection.search(query, 1, verify=3)[0]
        assert Path(first.path).stem == samples.names()[3], words
        assert (first.verdict, first.evidence.relation) == ("same", words)
    part = collection.search(photo[h // 5 : h // 5 + h // 2, w // 4 : w // 4 + w // 2].copy(), 1, verify=3)[0]
    assert Path(part.path).stem == samples.names()[3]
    assert part.evidence.shared[0] > 0.9
    assert part.evidence.shared[1] == pytest.approx(0.25, abs=0.05)


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


def test_a_model_of_ones_own_is_joined_with_vlad(photos: Path, tmp_path: Path) -> None:
    class Mean:
        name, dim = "mean-colour", 3

        def embed(self, images: Any) -> np.ndarray:
            return np.stack([np.asarray(x, np.float32).reshape(-1, 3).mean(0) for x in images])

    with Collection.build(photos, tmp_path / "i", model=Mean()) as found:
        assert (found.about.dim, found.about.width) == (3 + projection().dim, 3)
        result = found.search(photos / "copy.jpg", 2, verify=0)
        assert {Path(hit.path).name for hit in result} == {"copy.jpg", f"{samples.names()[0]}.jpg"}


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


def test_several_shots_take_the_nearest_for_each_hit(collection: Collection, photos: Path, query: np.ndarray) -> None:
    other = read_array(photos / f"{samples.names()[3]}.jpg")
    found = collection.search([query, other], 9, rerank=False, verify=0)
    alone = [collection.search(q, 9, rerank=False, verify=0) for q in (query, other)]
    for hit in found:
        values = [next(h.distance for h in one if h.path == hit.path) for one in alone]
        assert hit.distance == pytest.approx(min(values))
        assert hit.shot == int(np.argmin(values))


# ------------------------------------------------------------------------------------------------------ local features


def test_local_features_survive_their_bytes(photos: Path) -> None:
    local = extract(Image(photos / "copy.jpg"))
    again = Local.from_bytes(local.to_bytes())
    assert len(local.to_bytes()) < 37_000
    np.testing.assert_allclose(again.points, local.points, atol=1 / 128 + 1e-6)
    assert (again.codes == local.codes).all()
    assert np.abs(local.codes).max() == 7
    assert (again.size, again.original) == (local.size, local.original)
    assert local.original == read_array(photos / "copy.jpg").shape[:2]
    assert (again.thumb == local.thumb).all()
    assert again.to_bytes() == local.to_bytes()


@pytest.mark.parametrize("spoil", [lambda b: b[:-1], lambda b: b[:9], lambda b: b"", lambda b: b"\0\0" + b[2:]])
def test_damaged_features_are_refused_in_a_line(photos: Path, spoil: Any) -> None:
    with pytest.raises(FileError, match="damaged"):
        Local.from_bytes(spoil(extract(Image(photos / "copy.jpg")).to_bytes()))


def test_alike_counts_mutual_nearest_features() -> None:
    draw = np.random.default_rng(0)
    codes = [draw.integers(-7, 8, (n, 64)).astype(np.int8) for n in (30, 40)]
    codes[1][5:17] = codes[0][3:15]
    a, b = (Local(draw.uniform(0, 9, (len(c), 2)).astype(np.float32), c, (9, 9), (9, 9), np.zeros((16, 16), np.uint8))
            for c in codes)  # fmt: skip
    naive = 0
    for i, x in enumerate(a.descriptors):
        j = int(np.argmax([float(x @ y) for y in b.descriptors]))
        back = int(np.argmax([float(b.descriptors[j] @ z) for z in a.descriptors]))
        naive += back == i and float(x @ b.descriptors[j]) >= 0.85
    assert alike(a, b) == alike(b, a) == naive == 12


def test_of_equally_alike_features_the_first_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    own = (7 * np.eye(7, 64)).astype(np.int8)  # their cosines are 0 and 1, without rounding
    monkeypatch.setattr(local, "ROWS", 3)
    at, thumb = np.zeros((9, 2), np.float32), np.zeros((16, 16), np.uint8)
    a, b = (
        Local(at[: len(c)], c, (9, 9), (9, 9), thumb) for c in (own[[0, 1, 1, 2, 3, 1]], own[[4, 1, 0, 1, 0, 5, 2]])
    )
    i, j = local.alike_pairs(a, b)
    assert (i.tolist(), j.tolist()) == ([0, 1, 3], [2, 1, 6])
    assert local.alike_pairs(a, Local(at[:0], own[:0], (9, 9), (9, 9), thumb))[0].size == 0


def test_vlad_is_the_naive_sum_of_residuals(photos: Path) -> None:
    local, centres = extract(Image(photos / "copy.jpg")), projection().centres
    sums = np.zeros_like(centres)
    for row in local.descriptors:
        k = int(np.argmin(((centres - row) ** 2).sum(1)))
        sums[k] += row - centres[k]
    sums = np.array([s / max(np.linalg.norm(s), 1e-9) for s in sums]).ravel()
    np.testing.assert_allclose(vlad(local, centres), sums / np.linalg.norm(sums), atol=1e-5)
    half = vlad(local, centres, (0.0, 0.0, 0.5, 1.0))
    left = local.points[:, 0] + 0.5 <= local.size[1] / 2
    part = Local(local.points[left], local.codes[left], local.size, local.original, local.thumb)
    np.testing.assert_allclose(half, vlad(part, centres), atol=1e-6)


def test_a_photo_without_features_still_has_a_vector() -> None:
    rows = joined(np.eye(2, 1280, dtype=np.float32), np.zeros((2, 4096), np.float32), "other")
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-3)
    assert (rows[:, 1280:] == 0).all()


@pytest.mark.parametrize("view", [View(turn, mirror) for turn in range(4) for mirror in (False, True)])
def test_points_of_a_view_are_where_they_are_in_the_photo(view: View) -> None:
    h, w = 30, 50
    photo = np.arange(h * w).reshape(h, w)
    seen = np.rot90(photo[:, ::-1] if view.mirror else photo, view.turn)
    y, x = np.divmod(np.arange(0, seen.size, 7), seen.shape[1])
    points = np.column_stack([x, y]).astype(np.float32)
    back = upright(points, (h, w), view.turn, view.mirror).astype(int)
    assert (photo[back[:, 1], back[:, 0]] == seen[y, x]).all()
    local = Local(
        back.astype(np.float32), np.zeros((len(back), 64), np.int8), (h, w), (h, w), np.zeros((16, 16), np.uint8)
    )
    again, size = seen_from(local, view)
    assert size == seen.shape
    np.testing.assert_array_equal(again, points)


# ---------------------------------------------------------------------------------------------------- evidence, verdict


def test_evidence_for_one_thing_and_against_another(photos: Path, query: np.ndarray) -> None:
    look = Verifier(query)
    same, other = (look(photos / f"{samples.names()[i]}.jpg") for i in (1, 4))
    assert same.n > 4 * max(other.n, 1)
    assert (other.kind, other.n, other.share) == (None, 0, 0.0)
    assert same.kind == "homography"
    overlay = same.overlay()
    assert overlay is not None
    assert overlay.shape[:2] == same.sizes[0]
    assert same.to_dict()["inliers"] == len(same.to_dict()["points"]) == same.n


@pytest.mark.parametrize("size", [(70, 400), (8, 8), (64, 64)])
def test_odd_pictures_give_evidence_or_none(query: np.ndarray, size: tuple[int, int]) -> None:
    draw = np.random.default_rng(0)
    faint = draw.integers(100, 103, (*size, 3), dtype=np.uint8)
    for picture in (np.zeros((*size, 3), np.uint8), faint, draw.integers(0, 255, (*size, 3), dtype=np.uint8)):
        found = verify(query, picture)
        assert (found.kind, found.n) == (None, 0)
        assert judge().probability(1.3, 5, found) < 0.1  # what unrelated photos have in the median


def test_a_pair_is_judged_as_a_hit_is(collection: Collection, query: np.ndarray, photos: Path) -> None:
    for hit in collection.search(query, 9, verify=9):
        alone = pair(query, hit.path)
        assert (alone.path, alone.verdict) == (hit.path, hit.verdict)
        assert alone.distance == pytest.approx(hit.distance, abs=1e-3)
        assert alone.evidence.to_dict() == hit.evidence.to_dict(), "one evidence, whoever asks"
        assert alone.probability == pytest.approx(hit.probability, abs=0.01)
    blank = pair(query, np.zeros((80, 80, 3), np.uint8))
    assert (blank.verdict, blank.evidence.few) == ("unsure", True), "what shows nothing is not different"


def test_a_caption_is_no_evidence(photos: Path) -> None:
    """Two photos of different things with the same words below them."""
    one, two = (cv2.resize(read_array(photos / f"{samples.names()[i]}.jpg"), (640, 480)) for i in (1, 4))
    for photo in (one, two):
        photo[440:] = 255
        cv2.putText(photo, "(c) City archive of Lichtenau, photo 4711", (8, 470), 0, 0.8, (0, 0, 0), 2)
    hit = pair(one, two)
    assert hit.evidence.kind is None
    assert hit.verdict != "same"
    a = np.array([[10.0, 470], [10, 400], [10, 400], [10, 240], [10, 470]])
    b = np.array([[40.0, 465], [14, 400], [30, 400], [10, 240], [10, 10]])
    assert captions(a, b, (480, 640), (480, 640)).tolist() == [True, True, False, False, False]
    low = np.array([[10.0, 340], [12, 300]])  # the second photo is lower: at the same share of it, and moved
    assert captions(a[1:3], low, (480, 640), (400, 640)).tolist() == [True, False]


def test_repetitive_textures_are_not_the_same(tmp_path: Path) -> None:
    """Two walls of one pattern: parts that do not overlap, and a drawn lattice."""
    brick = np.repeat(photographs.brick()[..., None], 3, 2)
    walls = [brick[:250, :250], brick[262:, 262:]]
    tile = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    lattice = np.tile(cv2.GaussianBlur(tile, (0, 0), 2), (12, 16, 1))
    noisy = [np.clip(lattice[y : y + 400, x : x + 520] + np.random.default_rng(x).normal(0, 12, (400, 520, 3)), 0, 255)
             .astype(np.uint8) for x, y in ((0, 0), (57, 33))]  # fmt: skip
    for one, two in (walls, noisy):
        assert pair(one.copy(), two.copy()).verdict != "same"


def test_the_verdict_is_the_logistic_of_what_was_measured(query: np.ndarray, photos: Path) -> None:
    evidence = verify(query, photos / f"{samples.names()[1]}.jpg")
    parts = {"verified": [-1.0, 2.0, 0.5, 0.25, 0.7, 0.1], "quick": [0.5, -1.0, 0.2]}
    logit = -1 + 2 + 0.5 * np.log(max(evidence.distinct, 15) / 15) + 0.25 * np.log(max(evidence.log_nfa / -3, 1))
    assert Judge(parts).probability(0.3, 7, evidence) == pytest.approx(1 / (1 + np.exp(-logit)))
    assert Judge(parts).probability(0.9, 0, evidence) == Judge(parts).probability(0.3, 7, evidence), "evidence alone"
    bare = replace(evidence, kind=None, log_nfa=-1.5)
    logit = -1 + 0.7 * 0.5 + 0.1 * np.log1p(len(evidence.matches))
    assert Judge(parts).probability(0.3, 7, bare) == pytest.approx(1 / (1 + np.exp(-logit)))
    assert Judge(parts).probability(0.3, 0) == pytest.approx(1 / (1 + np.exp(-0.2)))
    assert measured(0.3, 0, None) == ("quick", [0.3, 0.0])
    chances = (0.95, 0.85, 0.5, 0.1, 0.0)
    assert [word(p, evidence) for p in chances] == ["same", "same", "unsure", "different", "different"]
    assert [word(p, None) for p in chances] == ["unsure"] * 3 + ["different"] * 2, "nothing is the same without proof"
    assert [word(p, replace(evidence, features=(39, 900))) for p in (0.95, 0.1)] == ["same", "unsure"]
    assert word(0.95, replace(evidence, distinct=0)) == "unsure", "a pattern that repeats"


def test_more_evidence_never_makes_it_less_probable() -> None:
    """The shipped coefficients act in the right direction."""
    assert {name: len(values) - 1 for name, values in judge().parts.items()} == PARTS
    for name, values in judge().parts.items():
        assert all(v * s >= 0 for v, s in zip(values[1:], SENSE[name], strict=True)), name


# ----------------------------------------------------------------------------------------------------------- duplicates


def test_copies_are_grouped_and_others_are_not(collection: Collection, photos: Path) -> None:
    (group,) = collection.duplicates()
    first = str(photos / f"{samples.names()[0]}.jpg")
    assert list(group) == [first, str(photos / "copy.jpg")], "more bytes are kept"
    assert group.keep == group[0] == first
    assert [copy.what for copy in group.copies] == ["keep", "saved again"]
    assert "inliers of one homography" in group.copies[1].why
    assert group.to_dict()["copies"][1]["size"] == list(read_array(first).shape[:2])


def test_each_copy_says_what_it_is(photos: Path, tmp_path: Path) -> None:
    photo = read_array(photos / f"{samples.names()[1]}.jpg")
    h, w = photo.shape[:2]
    copies = {
        "crop 64%": photo[h // 10 : h // 10 + round(0.8 * h), w // 10 : w // 10 + round(0.8 * w)],
        "turned by 90°": np.rot90(photo),
        "mirrored": photo[:, ::-1],
        f"resized to 160 × {round(160 * h / w)}": cv2.resize(
            photo, (160, round(160 * h / w)), interpolation=cv2.INTER_AREA
        ),
        "saved again": (photo * 0.6).astype(np.uint8),
    }
    write_image(tmp_path / "a.png", photo)
    for i, copy in enumerate(copies.values()):
        write_image(tmp_path / f"{i}.jpg", np.ascontiguousarray(copy))
    (tmp_path / "same.png").write_bytes((tmp_path / "a.png").read_bytes())
    write_image(tmp_path / "other.jpg", read_array(photos / f"{samples.names()[4]}.jpg"))
    told: list[tuple[int, int]] = []
    with Collection.build(tmp_path, tmp_path / "i") as made:
        (group,) = made.duplicates(on_progress=lambda done, total: told.append((done, total)))
    said = {Path(copy.path).name: copy.what for copy in group.copies}
    assert said == {"a.png": "keep", "same.png": "exact copy", **{f"{i}.jpg": what for i, what in enumerate(copies)}}
    assert told[-1][0] == told[-1][1] > 0


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
        assert result[0].verdict == "same", "its features are in the index"
        with pytest.raises(FileError):
            result[0].evidence.plot()
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
        there, here = found.search(query, 5, verify=1), collection.search(query, 5, verify=1)
        assert [h.path for h in there] == [h.path for h in here]
        assert [h.evidence and h.evidence.to_dict() for h in there] == [
            h.evidence and h.evidence.to_dict() for h in here
        ]
        assert [list(group) for group in found.duplicates()] == [list(group) for group in collection.duplicates()]
    manager.server_manager_instance.release_all()
