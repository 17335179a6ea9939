"""Pictures that come with likewise: they are there, the same for the same seed, and show what they say."""

from __future__ import annotations

import hashlib
from pathlib import Path

import cv2
import numpy as np
import pytest

from likewise import samples
from likewise.errors import FileError, InputError
from likewise.media import read_array


@pytest.mark.parametrize("name", samples.names())
def test_every_photograph_is_installed(name: str) -> None:
    photo = samples.photograph(name)
    assert photo.dtype == np.uint8
    assert photo.shape[2] == 3
    assert min(photo.shape[:2]) >= 256


def test_a_name_that_is_none_and_a_package_that_is_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"name: expected one of cat, .* got 'dog'"):
        samples.photograph("dog")
    monkeypatch.setitem(samples.PHOTOS, "cat", ("no_such_package_here", "chelsea.png"))
    with pytest.raises(FileError, match="no_such_package_here"):
        samples.photograph("cat")


@pytest.mark.parametrize("seed", [-1, 1.5, True, "0"])
def test_a_seed_is_a_whole_number(seed: object) -> None:
    with pytest.raises(InputError, match="seed"):
        samples.pair(seed)  # type: ignore[arg-type]


# ── folders ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer pictures, the same road."""
    monkeypatch.setattr(samples, "PHOTOS", {n: samples.PHOTOS[n] for n in ("cat", "coffee", "temple", "motorcycle")})
    monkeypatch.setattr(samples, "SCENES", {n: samples.SCENES[n] for n in ("cat", "temple")})
    monkeypatch.setattr(samples, "MONDAY", {"cat": 2, "coffee": 1})
    monkeypatch.setattr(samples, "FRIDAY", {"cat": 1, "temple": 1})
    monkeypatch.setattr(samples, "PLACES", 2)


def bytes_below(folder: Path) -> dict[str, str]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.mark.usefixtures("fewer")
@pytest.mark.parametrize("name", ["albums", "scenes", "gallery", "queries", "archive"])
def test_the_same_seed_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    make = getattr(samples, name)
    for folder, seed in (("one", 3), ("two", 3), ("other", 4)):
        make(tmp_path / folder, seed=seed)
    one, two, other = (bytes_below(tmp_path / folder) for folder in ("one", "two", "other"))
    assert one == two
    assert set(one) == set(other)
    assert make in (samples.gallery, samples.archive) or not set(one.values()) & set(other.values())


@pytest.mark.usefixtures("fewer")
def test_albums_are_the_files_that_are_named(tmp_path: Path) -> None:
    monday, friday = samples.albums(tmp_path)
    assert [p.name for p in monday] == ["cat-1.jpg", "cat-2.jpg", "coffee-1.jpg"]
    assert [p.name for p in friday] == ["cat-1.jpg", "temple-1.jpg"]
    assert set(monday + friday) == set(tmp_path.rglob("*.jpg"))
    assert all(read_array(p).shape == (240, 240, 3) for p in monday)


@pytest.mark.usefixtures("fewer")
def test_queries_name_pictures_of_the_gallery(tmp_path: Path) -> None:
    made, asked = samples.gallery(tmp_path / "g"), samples.queries(tmp_path / "q")
    assert len(asked) == len(samples.CHANGES) * len(made)
    assert {tmp_path / "g" / q.place for q in asked} == set(made)
    assert {q.change for q in asked} == set(samples.CHANGES)
    assert all(q.path.exists() for q in asked)
    assert asked[0].path == tmp_path / "q" / "cat" / "1-other-light.jpg"


# ── places ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", samples.names())
def test_places_do_not_overlap_and_lie_inside(name: str) -> None:
    photo = samples.photograph(name)
    result = np.array(samples.spots(photo, np.random.default_rng(0)))
    assert 4 <= len(result) <= samples.PLACES
    apart = np.abs(result[:, None] - result[None]).max(axis=2)[~np.eye(len(result), dtype=bool)]
    assert apart.min() >= samples.SIDE
    assert (result >= samples.SIDE / 2).all()
    assert (result <= np.array(photo.shape[1::-1]) - samples.SIDE / 2).all()


def coordinates() -> np.ndarray:
    """A photograph that tells its own coordinates: red is x, green is y."""
    y, x = np.mgrid[:250, :250]
    return np.stack([x, y, 0 * x], axis=2).astype(np.uint8)


def test_a_cut_is_the_square_around_its_centre() -> None:
    """The middle of the cut is the point, its edges are half a side away."""
    photo = coordinates()
    middle, half = samples.EDGE // 2, samples.SIDE / 2
    whole = samples.cut(photo, (120.0, 100.0)).astype(float)
    assert whole[middle, middle, :2] == pytest.approx([120, 100], abs=1)
    assert whole[0, 0, :2] == pytest.approx([120 - half, 100 - half], abs=1.5)
    assert whole[-1, -1, :2] == pytest.approx([120 + half, 100 + half], abs=1.5)
    quarter = samples.cut(photo, (120.0, 100.0), turn=90.0).astype(float)
    assert quarter[middle, middle, :2] == pytest.approx([120, 100], abs=1.5)
    assert quarter[0, 0, :2] == pytest.approx([120 + half, 100 - half], abs=2)  # turned left: the right side is above


def test_changes_are_of_the_same_place() -> None:
    """Another crop shows at most a quarter of a side beyond its square and its scale; turned keeps the middle."""
    photo, middle = coordinates(), samples.EDGE // 2
    for seed in range(20):
        draw = np.random.default_rng(seed)
        moved = samples.shifted(photo, (125.0, 125.0), draw)[middle, middle, :2].astype(float)
        assert np.abs(moved - 125).max() <= samples.SIDE / 4 + 1.5
        still = samples.turned(photo, (125.0, 125.0), draw)
        assert still[middle, middle, :2].astype(float) == pytest.approx([125, 125], abs=1.5)
        angle = np.degrees(np.arctan2(*(still[middle, -1, 1::-1].astype(float) - 125)))
        assert 18 <= abs(angle) <= 47
    lit = samples.lit(np.full((250, 250, 3), 100, np.uint8), (125.0, 125.0), np.random.default_rng(0)).astype(float)
    assert lit[middle, middle].max() < 70 or lit[middle, middle].max() > 110


def test_an_archive_has_the_roofs_by_day_a_place_thrice_and_not_the_query(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samples, "PLACES", 1)
        photos, night = samples.archive(tmp_path)
    assert night.parent == tmp_path
    assert night not in set(photos.rglob("*"))
    one, *copies = (read_array(photos / "motorcycle" / f"{name}.jpg") for name in ("1", "mirrored", "turned"))
    for copy, back in zip(copies, (copies[0][:, ::-1], np.rot90(copies[1], -1)), strict=True):
        assert np.abs(back.astype(float) - one).mean() < 6 < np.abs(copy.astype(float) - one).mean()
    day, made = samples.roofs()
    assert np.abs(read_array(photos / "roofs" / "day.jpg").astype(float) - day).mean() < 6
    assert np.abs(read_array(night).astype(float) - made).mean() < 6
    assert made.mean() < 0.5 * day.mean()


# ── the pair ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_two_views_of_the_place_agree_where_the_truth_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without night, what the truth lays onto the day is the day again."""
    monkeypatch.setattr(samples, "dark", lambda photo, _: photo)
    views = samples.views()
    assert 0.7 < views.known.mean() < 0.95
    y, x = np.mgrid[: views.day.shape[0], : views.day.shape[1]]
    ends = (np.stack([x, y], axis=2) + views.flow).astype(np.float32)
    laid = cv2.remap(views.night, ends, None, cv2.INTER_LINEAR).astype(float)
    right = np.abs(laid - views.day)[views.known]
    off = np.abs(views.night.astype(float) - views.day)[views.known]
    assert np.median(right) < 6
    assert np.median(off) > 4 * np.median(right)


def test_the_pair_is_what_the_views_are_and_night_is_dark() -> None:
    made, (day, night) = samples.views(2), samples.pair(2)
    np.testing.assert_array_equal(made.day, day)
    np.testing.assert_array_equal(made.night, night)
    assert (night != samples.pair(3)[1]).any()
    assert night.mean() < 0.5 * day.mean()
