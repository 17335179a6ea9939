"""lw.compare: each kind of thing is told, each pair gets its level and a reason, each refusal names its argument."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import likewise as lw
from likewise import media
from likewise.compare import MOST, AutoComparison, choose
from likewise.distributions import Bank, Generator, Normal, harvest
from likewise.distributions.bank import About
from likewise.images.compare import ImageComparison
from likewise.inputs import Input, classify
from likewise.pixels.compare import PixelComparison
from likewise.sets.compare import SetComparison
from worlds.aligners import Shifted
from worlds.contract import ContractOfALevel
from worlds.layouts import film
from worlds.scenes import moved, texture

PHOTO, OTHER = texture(0, 96, 128), moved(texture(0, 96, 128), 3, -2)


def colours(images: torch.Tensor) -> torch.Tensor:
    """Features that need no network: the mean colour of each image."""
    assert images.shape[1] == 3
    return images.mean((2, 3))


def means(files: list[Path]) -> np.ndarray:
    return np.stack([media.read_array(p).reshape(-1, 3).mean(axis=0) / 255 for p in files])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Photos, two albums, an empty folder, text, features: a folder with something of each kind."""
    monkeypatch.chdir(tmp_path)
    media.write_image("a.png", PHOTO)
    media.write_image("b.png", OTHER)
    for album, count in (("one", 3), ("two", 2)):
        for i in range(count):
            media.write_image(Path(album) / f"{i}.png", texture(10 * count + i, 24, 24))
    Path("empty").mkdir()
    Path("notes.txt").write_text("not a picture")
    np.save("rows.npy", np.random.default_rng(0).normal(size=(9, 3)))
    np.savez("sets.npz", left=np.eye(3), right=np.eye(3)[:2] + 1)
    return tmp_path


# ── what is it? ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("item", "kind", "count"),
    [
        ("a.png", "photo", 1),
        (Path("a.png"), "photo", 1),
        (PHOTO, "photo", 1),
        (PHOTO[..., 0], "photo", 1),
        (torch.rand(3, 70, 70), "photo", 1),
        (Image.new("RGB", (70, 70)), "photo", 1),
        ("one", "photos", 3),
        (["a.png", "b.png"], "photos", 2),
        ([PHOTO, OTHER], "photos", 2),
        (np.stack([PHOTO, OTHER]), "photos", 2),
        ("rows.npy", "features", 9),
        ("sets.npz#left", "features", None),
        (np.zeros((5, 3)), "features", 5),
        ((np.zeros((5, 3)), np.ones(5)), "features", 5),
        ([[0.0, 1.0], [2.0, 3.0]], "features", 2),
        (lw.Signature(np.zeros((4, 2))), "features", 4),
        ("fashion", "generator", None),
        ("mine.py:generator", "generator", None),
    ],
)
def test_a_thing_is_told(item: Any, kind: str, count: int | None) -> None:
    result = classify(item)
    assert (result.kind, result.count) == (kind, count)
    assert result.words


def test_generators_and_banks_are_told() -> None:
    generator = Generator(lambda z: z @ torch.eye(2), Normal(2))
    assert classify(generator).kind == "generator"
    assert classify(harvest(generator, 4, progress=False)).words == "a bank of a generator"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("item", "said"),
    [
        ("nowhere.jpg", r"b: nowhere.jpg: no such file or folder"),
        ("a\0b", r"b: .*no such file"),
        ("x" * 5000, r"b: .*no such file"),
        ("", r"b: expected a path, got an empty one"),
        ("empty", r"b: empty: no image in this folder"),
        ("notes.txt", r"b: notes.txt is neither an image nor a video"),
        ("sets.npz#", r"b: "),
        (3, r"b: expected a photo, .*got int"),
        (None, r"b: expected a photo, .*got NoneType"),
        (b"bytes", r"b: expected a photo, .*got bytes"),
        ([], r"b: expected at least one image"),
        (["a.png", 3], r"b: item 1 is no image"),
        (np.zeros(3), r"b: expected an image .* got shape \(3,\)"),
        (np.zeros((1, 1, 1, 1, 1)), r"b: expected an image"),
    ],
)
def test_what_is_nothing_is_refused_by_name(item: Any, said: str) -> None:
    with pytest.raises(lw.LikewiseError, match=said):
        lw.compare("a.png", item)


# ── which level? ──────────────────────────────────────────────────────────────────────────────────────────────────


def side(kind: Any, count: int | None, where: str) -> Input:
    return Input(None, kind, f"{kind} of {count}", where, count)


@pytest.mark.parametrize(
    ("a", "b", "level", "why"),
    [
        (("photo", 1), ("photo", 1), "pixels", "both are single photos"),
        (("photos", 8), ("photos", MOST), "sets", f"both hold at most {MOST} images (8 and {MOST})"),
        (("photos", MOST + 1), ("photos", 5000), "distributions", f"both hold more than {MOST} ({MOST + 1} and 5,000)"),
        (("photos", 5000), ("photos", MOST), "sets", "b is photos of 200, too few for a distribution"),
        (("photo", 1), ("photos", 5000), "sets", "a is photo of 1, too few for a distribution"),
        (("video", None), ("video", None), "sets", "both are videos"),
        (("video", None), ("photos", 5000), "sets", "a is video"),
        (("photo", 1), ("video", None), "sets", "a is photo of 1 and b video of None"),
        (("features", 9), ("features", 9), "sets", "both are sets of features"),
        (("features", 900), ("features", 900), "distributions", "both hold more than"),
        (("generator", None), ("photos", 9), "distributions", "a is generator"),
        (("features", 3), ("generator", None), "distributions", "b is generator"),
    ],
)
def test_a_pair_has_its_level_and_a_reason(a: Any, b: Any, level: str, why: str) -> None:
    result, reason = choose(side(*a, "a"), side(*b, "b"))
    assert result == level
    assert reason.startswith(why)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("pair", "level", "said"),
    [
        (("one", "a.png"), "pixels", "a: pixels compares two single photos, got a folder of 3 images"),
        (("a.png", "one"), "images", "b: images compares two single photos"),
        (("one", "fashion"), "sets", "b: a set is finite, got the generator fashion"),
        (("a.png", "one"), "distributions", "a: a single photo has no distribution"),
        (("a.png", "b.png"), "volumes", "level: expected auto, pixels, images, sets, distributions, got 'volumes'"),
    ],
)
def test_a_level_that_does_not_fit_is_refused(pair: tuple[str, str], level: str, said: str) -> None:
    with pytest.raises(lw.InputError, match=said):
        lw.compare(*pair, level=level)


@pytest.mark.usefixtures("here")
def test_an_option_of_another_level_is_refused() -> None:
    with pytest.raises(lw.InputError, match="gamma: not an option of the level pixels; it is one of sets"):
        lw.compare("a.png", "b.png", gamma=1.0)
    with pytest.raises(lw.InputError, match="rho: only a bank"):
        lw.compare("one", "fashion", rho=-1.0)
    with pytest.raises(lw.InputError, match="on_error"):
        lw.compare("one", "two", on_error="ignore")


# ── at its level ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_two_photos_are_pixels_with_the_image_distance_beside() -> None:
    model = Shifted(3, -2)
    result = lw.compare(PHOTO, OTHER, model=model)
    assert (result.level, result.why) == ("pixels", "both are single photos")
    assert isinstance(result.own, PixelComparison)
    assert result.distance == 0
    assert model.calls == 2
    np.testing.assert_array_equal(np.asarray(result.flow)[5, 5], [3, -2])  # an attribute of the level's own
    assert result.beside is not None
    assert result.beside.distance == lw.images.compare(PHOTO, OTHER).distance
    assert result.matches is result.pair.evidence.matches
    assert len(result.matches) > 10
    inliers, scale = result.matches.take(result.pair.evidence.inliers), 640 / 128
    assert np.abs((inliers.b - inliers.a) / scale - [3, -2]).max() < 2
    record = json.loads(result.to_json())
    assert record["images"]["distance"] == result.beside.distance
    assert record["matches"]["matches"] == len(result.matches)
    assert result.verdict == record["verdict"] == "same"
    assert "because both are single photos: same (" in repr(result)
    assert "PixelComparison(distance=0 px" in repr(result)
    assert record["evidence"] == result.pair.evidence.to_dict() == lw.search.verify(PHOTO, OTHER).to_dict()
    assert lw.compare(np.eye(3), np.eye(3)[:2]).verdict is None


def test_flows_that_do_not_return_are_no_alignment_and_guide_nothing() -> None:
    class Lost(Shifted):
        def both(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.flow(a, b), self.flow(b, a)

    result = lw.compare(PHOTO, OTHER, model=Lost(30, 20))
    assert "no alignment: " in repr(result)
    assert json.loads(result.to_json())["reason"] == result.own.reason != ""
    assert len(result.matches.of_stage(1)) == 0
    assert len(result.matches) > 10, "they are found without the flow"
    assert result.verdict == "same"


def test_the_level_images_can_be_asked_for() -> None:
    result = lw.compare(PHOTO, OTHER, level="images")
    assert isinstance(result.own, ImageComparison)
    assert result.why == "it was asked for"
    assert result.beside is None


class TestSets(ContractOfALevel):
    def pair(self):
        rng = np.random.default_rng(0)
        return rng.normal(size=(6, 3)), rng.normal(size=(7, 3)) + 1

    def compare(self, x, y):
        return lw.compare(x, y, value="divergence")

    def wrong(self):
        x, y = self.pair()
        return [(lambda: lw.compare(x, y[:, :2]), "q"), (lambda: lw.compare(x, y, gamma=-1.0), "gamma")]


@pytest.mark.usefixtures("here")
def test_two_folders_are_sets() -> None:
    result = lw.compare("one", "two", features=colours)
    assert result.level == "sets"
    assert isinstance(result.own, SetComparison)
    expected = lw.sets.compare(means(media.images("one")), means(media.images("two")))
    assert result.distance == pytest.approx(expected.distance, rel=1e-4)
    assert [Path(n).name for n in result.p.names] == ["0.png", "1.png", "2.png"]
    names, arrays = [str(p) for p in media.images("one")], [media.read_array(p) for p in media.images("two")]
    again = lw.compare(names, arrays, features=colours)
    assert again.distance == pytest.approx(result.distance)


@pytest.mark.usefixtures("here")
def test_a_photo_beside_a_folder_is_a_set_of_one() -> None:
    result = lw.compare("a.png", "two", features=colours)
    assert (result.level, result.plan.shape) == ("sets", (1, 2))
    assert result.why == "a is a single photo and b a folder of 2 images"


@pytest.mark.usefixtures("here")
def test_a_large_set_has_at_most_k_points() -> None:
    result = lw.compare(media.images("one"), media.images("two"), features=colours, k=2)
    assert result.plan.shape == (2, 2)


def test_videos_are_sets_of_frames(tmp_path: Path) -> None:
    pytest.importorskip("av", reason="needs the extra video")
    for name, shade in (("a.mp4", 40), ("b.mp4", 200)):
        film(tmp_path / name, [np.full((64, 64, 3), shade + 4 * i, np.uint8) for i in range(8)])
    result = lw.compare(tmp_path / "a.mp4", tmp_path / "b.mp4", features=colours, every=2)
    assert (result.level, result.why) == ("sets", "both are videos")
    assert result.plan.shape == (4, 4)
    assert [n.rpartition("#")[2] for n in result.p.names] == ["0", "2", "4", "6"]
    mixed = lw.compare(tmp_path / "a.mp4", [PHOTO], features=colours)
    assert mixed.why == "a is a video and b a list of one image"


@pytest.mark.usefixtures("here")
def test_unreadable_pictures_are_refused_or_left_out() -> None:
    whole = Path("one/0.png").read_bytes()
    Path("one/torn.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(lw.FileError, match=r"torn\.png"):
        lw.compare("one", "two")
    result = lw.compare("one", "two", on_error="skip")
    assert [Path(name).name for name, _ in result.skipped] == ["torn.png"]
    assert result.plan.shape == (3, 2)
    assert result.to_dict()["skipped"][0]["reason"]
    Path("torn").mkdir()
    Path("one/torn.png").rename("torn/torn.png")
    with pytest.raises(lw.FileError, match="b: none of 1 images can be read"):
        lw.compare("one", "torn", on_error="skip")


@pytest.mark.usefixtures("here")
def test_files_of_features_are_sets() -> None:
    result = lw.compare("sets.npz#left", "sets.npz#right")
    assert result.distance == pytest.approx(lw.sets.compare(np.eye(3), np.eye(3)[:2] + 1).distance)
    assert lw.compare("rows.npy", "sets.npz#left").plan.shape == (8, 3)
    with pytest.raises(lw.InputError, match=r"a: sets.npz holds 2 sets; say which, as in sets.npz#left"):
        lw.compare("sets.npz", "rows.npy")
    with pytest.raises(lw.InputError, match=r"a: sets.npz has no set 'middle'"):
        lw.compare("sets.npz#middle", "rows.npy")


class TestDistributions(ContractOfALevel):
    """Rows of features, more than MOST of them on both sides."""

    def pair(self):
        rng = np.random.default_rng(0)
        return rng.normal(size=(MOST + 1, 3)), rng.normal(size=(MOST + 1, 3)) + 0.5

    def compare(self, x, y):
        return lw.compare(x, y)

    def wrong(self):
        x, y = self.pair()
        return [(lambda: lw.compare(x, y[:, :2]), "fake"), (lambda: lw.compare(x, y, k=0), "k")]

    def test_it_is_the_levels_own(self):
        x, y = self.pair()
        result, own = lw.compare(x, y), lw.distributions.compare(x, y)
        assert result.level == "distributions"
        assert (result.distance, result.recall) == (own.distance, own.recall)


def test_a_generator_is_a_distribution_and_its_bank_at_rho_zero_too() -> None:
    generator = Generator(lambda z: z @ torch.tensor([[2.0, 0.0], [0.0, 1.0]]), Normal(2))
    real = np.random.default_rng(0).normal(size=(40, 2))
    result = lw.compare(real, generator)
    assert (result.level, result.why) == ("distributions", "b is a generator")
    assert len(result.fake) == 40
    bank = harvest(generator, 60, progress=False)
    drawn = lw.compare(real, bank, generator=generator, n=50)
    assert len(drawn.fake) == 50
    with pytest.raises(lw.InputError, match=r"generator: b is a bank of .*; give the generator"):
        lw.compare(real, bank)
    with pytest.raises(lw.InputError, match="generator"):
        lw.compare(real, bank, generator=Generator(lambda z: z[:, :1], Normal(2)))


def test_a_bank_of_a_shipped_generator_knows_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    about = About(None, "likewise-fashion", "pixel", None, False, None, "gram")
    Bank(rng.normal(size=(12, 24)).astype(np.float32), rng.normal(size=(12, 2)), about=about).save(tmp_path / "bank")
    assert classify(tmp_path / "bank").words == "a bank of a generator"
    rows = rng.normal(size=(6, 4))
    low, high = (lw.compare(rows, tmp_path / "bank", features=corner, rho=rho, n=12) for rho in (-3.0, 3.0))
    assert (low.level, len(low.fake)) == ("distributions", 12)
    assert (low.fake.rows != high.fake.rows).any()


def corner(pictures: torch.Tensor) -> torch.Tensor:
    """A describer that needs no network: four pixels."""
    return pictures[:, 0, 10:12, 10:12].flatten(1)


def test_what_the_choice_adds_does_not_hide_what_is_missing() -> None:
    result = lw.compare(np.eye(3), np.eye(3))
    with pytest.raises(AttributeError):
        result.no_such_thing  # noqa: B018
    assert AutoComparison.__doc__


# ── how unusual is it? ────────────────────────────────────────────────────────────────────────────────────────────


def test_albums_have_a_scale_in_words_and_in_json() -> None:
    pictures = [texture(i, 40, 48) for i in range(3)]
    result = lw.compare(pictures, [moved(p, 2, 1) for p in pictures])
    assert result.scale.percentile < 5
    assert str(result.scale) in repr(result)
    assert json.loads(result.to_json())["scale"] == result.scale.to_dict()
    again = lw.compare([moved(p, 2, 1) for p in pictures], pictures)
    assert again.scale.percentile == pytest.approx(result.scale.percentile, rel=1e-3)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("pair", "options", "reason"),
    [
        (("one", "two"), {"features": colours}, "only the default features"),
        (("one", "two"), {"features": "pixels"}, "only the default features"),
        (("one", "two"), {"k": 2}, "with the default k"),
        (("one", "two"), {"gamma": 0.1, "value": "sharp"}, "with the default gamma and value"),
        (("one", "a.png"), {}, "a single photo is no album"),
        (("rows.npy", "sets.npz#left"), {}, "features of your own"),
    ],
)
def test_where_there_is_no_scale_it_says_why(pair: tuple[str, str], options: dict[str, Any], reason: str) -> None:
    result = lw.compare(*pair, **options)
    assert not result.scale
    assert result.scale.percentile is None
    assert reason in result.scale.reason
    assert json.loads(result.to_json())["scale"]["reason"] == result.scale.reason
    assert "no scale" not in repr(result)


def test_an_index_of_ones_own_is_the_reference(tmp_path: Path) -> None:
    files = [
        media.write_image(tmp_path / f"p/{i}/{j}.png", texture(9 * i + j, 40, 48)) for i in range(12) for j in (0, 1)
    ]
    index = tmp_path / "index"
    with lw.search.Collection.build(tmp_path / "p", index) as collection:
        made = collection.embeddings([collection.name_of(f) for f in files[:3]])
        np.testing.assert_allclose(np.stack([*made.values()]), lw.images.default().embed(files[:3]), atol=2e-3)
    result = lw.compare(tmp_path / "p/0", tmp_path / "p/1", reference=index)
    assert result.scale.reference == f"90 pairs of 10 folders of {index}"
    assert result.scale.percentile > 5
    copy = lw.compare(tmp_path / "p/0", [moved(texture(j, 40, 48), 1, 0) for j in (0, 1)], reference=index)
    assert copy.scale.percentile == pytest.approx(100 / 111, abs=0.01)
    few = lw.compare(tmp_path / "p/0", files[:5], reference=index)
    assert few.scale.reason == "only 0 other folders of the index hold 5 photos, 10 are needed"
    assert "places, birds and objects" in few.scale.reference


def test_collections_are_beside_random_halves_of_themselves() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 300, 4))
    alike, apart = lw.compare(x, y).scale, lw.compare(x, y + 1).scale
    assert alike.sentence == "no farther apart than random halves of either are"
    assert lw.compare(x, x).scale.times == pytest.approx(1, abs=0.3)
    assert apart.times > 20
    assert apart.sentence == f"{apart.times:.2g} times as far apart as random halves of either are"
    assert apart.percentile is None
    assert lw.compare(y + 1, x).scale.times == pytest.approx(apart.times)
    assert lw.compare(x[:, :2], x[:3, :2], level="distributions", k=1).scale.reason.startswith(
        "halves of fewer than four"
    )
