"""Structure from motion and its pairs: a room of three textured planes, seen by cameras that are known exactly."""

from __future__ import annotations

import functools
import json
import struct
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from tests.pixels.test_features import texture

from likewise import media
from likewise.errors import FileError, InputError, LikewiseError, MissingExtra
from likewise.pixels import metrics, robust, sfm
from likewise.pixels import sfm as exif
from likewise.pixels import sfm as surveys
from likewise.pixels.sfm import Pairs, Photo, Survey

SIZE = (240, 320)
K = np.array([[300.0, 0, 159.5], [0, 300, 119.5], [0, 0, 1]])
PLANES = (  # a normal n and an offset d of n · X = d, and two axes that a texture is laid along
    (np.array([0, 0, 1.0]), 6.0, np.array([1.0, 0, 0]), np.array([0, 1.0, 0])),
    (np.array([0, 1.0, 0]), 1.3, np.array([1.0, 0, 0]), np.array([0, 0, 1.0])),
    (np.array([1.0, 0, 0.3]), 2.6, np.array([0, 1.0, 0]), np.array([-0.3, 0, 1.0])),
)


def camera(k: int) -> tuple[np.ndarray, np.ndarray]:
    """R, t of the k-th camera of a walk along the room."""
    R = Rotation.from_rotvec([0.04 * np.sin(k), -0.10 * (k - 2.5), 0.02 * np.cos(2 * k)]).as_matrix()
    centre = np.array([0.45 * (k - 2.5), 0.15 * np.sin(1.7 * k), 0.1 * k])
    return R, -R @ centre


def cast(R: np.ndarray, t: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What rays through points (n, 2) hit: places (n, 3) and the numbers of the planes (n,)."""
    rays, centre = robust.rays(K, points) @ R, -R.T @ t
    depths = np.stack([(d - n @ centre) / (rays @ n) for n, d, _, _ in PLANES])
    depths[depths <= 0] = np.inf
    which = depths.argmin(axis=0)
    return centre + rays * depths.min(axis=0)[:, None], which


@functools.cache
def papered(k: int) -> np.ndarray:
    """What the k-th plane is papered with."""
    return texture(k + 20, (1000, 1000), blur=1.6).astype(np.float32)


def shot(R: np.ndarray, t: np.ndarray) -> np.ndarray:
    """The room as a camera sees it, uint8 (h, w)."""
    import cv2

    y, x = np.mgrid[: SIZE[0], : SIZE[1]]
    places, which = cast(R, t, np.column_stack([x.ravel(), y.ravel()]).astype(np.float64))
    shown = np.zeros(x.size, np.float32)
    for k, (_, _, u, v) in enumerate(PLANES):
        at = [(70 * (places @ axis) + 400).reshape(SIZE).astype(np.float32) for axis in (u, v)]
        wall = papered(k)
        drawn = cv2.remap(wall, at[0], at[1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT).ravel()
        shown[which == k] = drawn[which == k]
    return shown.reshape(SIZE).round().astype(np.uint8)


def survey(n: int = 4, points: int = 400, seed: int = 0) -> Survey:
    """The room's cameras with exact points that all of them see."""
    R, t = camera(n // 2)
    X, _ = cast(R, t, np.random.default_rng(seed).uniform([60, 50], [260, 190], (points, 2)))
    photos = []
    for k in range(n):
        R, t = camera(k)
        x = (X @ R.T + t) @ K.T
        at = x[:, :2] / x[:, 2:]
        seen = np.flatnonzero(((at >= 0) & (at <= [SIZE[1] - 1, SIZE[0] - 1])).all(axis=1))
        photos.append(Photo(f"{k:04d}.png", SIZE, K, R, t, at[seen], seen))
    return Survey(tuple(photos), X)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `reconstruct` leaves, made from exact cameras: images/ and pairs.npz."""
    out = tmp_path_factory.mktemp("room")
    room = survey()
    for k, photo in enumerate(room.photos):
        media.write_image(out / "images" / photo.name, shot(*camera(k)))
    names, arrays, _ = surveys.pairs(room, 50)
    np.savez(out / "pairs.npz", names=np.array(names), **arrays)
    return out


# --------------------------------------------------------------------------------------------------------------- pairs


def test_pairs_of_exact_cameras_have_exact_f() -> None:
    room = survey()
    names, arrays, errors = surveys.pairs(room, 50)
    assert names == [p.name for p in room.photos]
    assert len(arrays["F"]) == 6
    assert errors.max() < 1e-8
    for k, (i, j) in enumerate(zip(arrays["a"], arrays["b"], strict=True)):
        a, b = room.photos[i], room.photos[j]
        assert np.allclose(arrays["R"][k] @ a.R, b.R)
        assert np.allclose(arrays["R"][k] @ a.t + arrays["t"][k], b.t)
        assert np.linalg.norm(arrays["F"][k]) == pytest.approx(1)
    assert len(surveys.pairs(room, 10_000)[1]["F"]) == 0
    assert 1 < arrays["angle"].min() < arrays["angle"].max() < 40


@pytest.mark.parametrize("size", [(96, 128), (60, 120), (128, 96), (240, 320), (300, 400)])
def test_views_carry_f_along_exactly(folder: Path, size: tuple[int, int]) -> None:
    """Every pixel of a view is followed through the room: its ray, the place that it hits, and that place in b."""
    pairs = Pairs.open(folder)
    drawn, turned = pairs._draw(np.random.default_rng([1, 2]), 5)
    views = pairs.views(5, size, (1, 2))
    assert views.a.shape == views.b.shape == (5, 3, *size)
    for k in range(5):
        ends = ("b", "a") if turned[k] else ("a", "b")
        i, j = (int(pairs.arrays[e][drawn[k]]) for e in ends)
        share = min(SIZE[0] / size[0], SIZE[1] / size[1])
        assert float(np.linalg.norm(views.F[k])) == pytest.approx(1)
        y, x = np.mgrid[5 : size[0] : 17, 5 : size[1] : 17]
        small = np.column_stack([x.ravel(), y.ravel()]).astype(np.float64)
        corner = [corner_of(views_end, pairs, drawn[k], e, size) for views_end, e in zip((i, j), ends, strict=True)]
        scale = [np.array(c[1]) for c in corner]
        full = (small + 0.5) / scale[0] - 0.5 + corner[0][0]
        X, _ = cast(*camera(i), full)
        R, t = camera(j)
        there = (X @ R.T + t) @ K.T
        goal = (there[:, :2] / there[:, 2:] - corner[1][0] + 0.5) * scale[1] - 0.5
        assert robust.epipolar_errors(views.F[k].numpy(), small, goal).max() < 1e-6
        assert share > 0


def corner_of(photo: int, pairs: Pairs, pair: int, end: str, size: tuple[int, int]) -> tuple[np.ndarray, list[float]]:
    """Where the piece begins in the photo, x then y, and by how much it is scaled: told again in words of its own."""
    share = min(SIZE[0] / size[0], SIZE[1] / size[1])
    w, h = min(SIZE[1], round(share * size[1])), min(SIZE[0], round(share * size[0]))
    x, y = pairs.arrays[f"centre_{end}"][pair]
    left, top = (int(min(max(round(c - n / 2), 0), m - n)) for c, n, m in ((x, w, SIZE[1]), (y, h, SIZE[0])))
    return np.array([left, top], dtype=np.float64), [size[1] / w, size[0] / h]


def test_views_show_what_f_says(folder: Path) -> None:
    """The pictures, too: SIFT matches of a view agree with its F."""
    from likewise.pixels.matching import raw

    views = Pairs.open(folder).views(2, (240, 320), 4)
    for a, b, F in zip(views.a, views.b, views.F, strict=True):
        found = raw(a, b, ratio=0.7)
        assert len(found) > 60
        assert np.median(robust.epipolar_errors(F.numpy(), found.a, found.b)) < 0.4


def test_views_are_a_function_of_the_seed(folder: Path) -> None:
    pairs = Pairs.open(folder)
    one, two, other = pairs.views(4, (48, 64), 7), Pairs.open(folder)(4, (48, 64), 7), pairs.views(4, (48, 64), 8)
    assert np.array_equal(one.a, two.a)
    assert np.array_equal(one.F, two.F)
    assert not np.array_equal(one.F, other.F)
    with pytest.raises(InputError, match="n, size: expected"):
        pairs.views(0, (48, 64), 7)


def test_damaged_pairs_are_refused(folder: Path, tmp_path: Path) -> None:
    good = dict(np.load(folder / "pairs.npz", allow_pickle=False))
    for change, words in (
        ({"F": None}, "lack F"),
        ({"F": good["F"][:, :2]}, "F of its pairs is damaged"),
        ({"a": good["a"] + 90}, "not there"),
        ({"names": np.array(["../../x", *good["names"][1:]])}, "leads out of the folder"),
        ({"names": np.zeros(3)}, "no names"),
        ({n: v[:0] for n, v in good.items() if n != "names"}, "no pair"),
    ):
        np.savez(tmp_path / "pairs.npz", **{n: v for n, v in (good | change).items() if v is not None})
        with pytest.raises(FileError, match=words):
            Pairs.open(tmp_path)
    with pytest.raises(FileError, match="no such file"):
        Pairs.open(tmp_path / "nowhere")


# --------------------------------------------------------------------------------------------------- EXIF, GPS, scale


def test_similarity_is_found_exactly() -> None:
    rng = np.random.default_rng(0)
    x, R, t = rng.normal(size=(9, 3)), Rotation.random(random_state=1).as_matrix(), rng.normal(size=3)
    s, found, shift = surveys.similarity(x, 2.5 * x @ R.T + t)
    assert s == pytest.approx(2.5)
    assert np.allclose(found, R)
    assert np.allclose(shift, t)
    flat = x * [1, 1, 0]
    s, found, _ = surveys.similarity(flat, 3 * flat)
    assert s == pytest.approx(3)
    assert np.linalg.det(found) == pytest.approx(1)


def test_metres_by_gps() -> None:
    room = survey(6)
    unit = 40.0
    places = {}
    for p in room.photos:
        x, y, z = p.centre * unit
        north, east = np.degrees(y / exif.EARTH), np.degrees(x / exif.EARTH) / np.cos(np.radians(50))
        places[p.name] = (50 + north, 8 + east, z)
    told = surveys.metres_a_unit(room, places)
    assert told is not None
    assert told["scale"] == pytest.approx(unit, rel=1e-3)
    assert told["error"] < 0.1
    assert surveys.metres_a_unit(room, dict(list(places.items())[:4])) is None
    assert surveys.metres_a_unit(room, dict.fromkeys(places, (50.0, 8.0, 0.0))) is None


def test_exif_of_a_photo(tmp_path: Path) -> None:
    from PIL import Image

    picture = Image.fromarray(texture(size=(60, 80)))
    data = Image.Exif()
    data[0x010F] = "Maker"
    data.get_ifd(0x8769)[0xA405] = 27
    data.get_ifd(0x8825).update({1: "S", 2: (10.0, 30.0, 36.0), 3: "W", 4: (20.0, 0.0, 0.0), 6: 12.5})
    picture.save(tmp_path / "x.jpg", exif=data)
    found = exif.shot(tmp_path / "x.jpg")
    assert found.make == "Maker"
    assert found.focal == pytest.approx(0.75)
    assert found.place == pytest.approx((-10.51, -20.0, 12.5))
    picture.save(tmp_path / "y.jpg")
    assert exif.shot(tmp_path / "y.jpg") == exif.Shot()
    (tmp_path / "z.jpg").write_text("no picture")
    with pytest.raises(FileError, match="not a picture"):
        exif.shot(tmp_path / "z.jpg")


# -------------------------------------------------------------------------------------------------- COLMAP's convention


def test_a_model_of_colmap_moves_by_half_a_pixel() -> None:
    pose = SimpleNamespace(rotation=SimpleNamespace(matrix=lambda: np.eye(3)), translation=np.array([1.0, 2, 3]))
    lens = SimpleNamespace(
        height=240, width=320, calibration_matrix=lambda: np.array([[9.0, 0, 160], [0, 9, 120], [0, 0, 1]])
    )
    seen = [SimpleNamespace(xy=np.array([10.5, 20.5]), point3D_id=77, has_point3D=lambda: True)]
    seen += [SimpleNamespace(xy=np.array([1.0, 1.0]), point3D_id=0, has_point3D=lambda: False)]
    image = SimpleNamespace(name="x.jpg", camera=lens, points2D=seen, cam_from_world=lambda: pose)
    model = SimpleNamespace(
        points3D={77: SimpleNamespace(xyz=np.array([0.0, 0, 5]))}, reg_image_ids=lambda: [3], image=lambda i: image
    )
    found = Survey.of(model)
    photo = found.photos[0]
    assert photo.K[:2, 2].tolist() == [159.5, 119.5]
    assert photo.points.tolist() == [[10.0, 20.0]]
    assert photo.shows.tolist() == [0]
    assert photo.centre.tolist() == [-1.0, -2.0, -3.0]
    assert found.points.tolist() == [[0.0, 0.0, 5.0]]


# ----------------------------------------------------------------------------------------------------------- the whole


def walk(path: Path, n: int) -> Path:
    for k in range(n):
        media.write_image(path / f"{k}.png", shot(*camera(k)))
    return path


def test_wrong_arguments_and_bad_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pycolmap", reason="pycolmap is not installed (extra sfm)")
    with pytest.raises(InputError, match="matcher: expected"):
        sfm.reconstruct(tmp_path, tmp_path / "o", matcher="best")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="size: expected"):
        sfm.reconstruct(tmp_path, tmp_path / "o", size=3)
    with pytest.raises(InputError, match="camera: expected"):
        sfm.reconstruct(tmp_path, tmp_path / "o", camera="two")  # type: ignore[arg-type]
    with pytest.raises(FileError, match="no such folder"):
        sfm.reconstruct(tmp_path / "nowhere", tmp_path / "o1")
    (tmp_path / "few").mkdir()
    media.write_image(tmp_path / "few" / "1.png", np.zeros((64, 64), np.uint8))
    with pytest.raises(InputError, match="holds 1 photos that can be read, 2 needed"):
        sfm.reconstruct(tmp_path / "few", tmp_path / "o2")
    monkeypatch.setitem(__import__("sys").modules, "pycolmap", None)
    with pytest.raises(MissingExtra, match="pycolmap is not installed"):
        sfm.reconstruct(tmp_path / "few", tmp_path / "o3")


def test_blank_photos_say_that_they_have_no_features(tmp_path: Path) -> None:
    pytest.importorskip("pycolmap", reason="pycolmap is not installed (extra sfm)")
    for k in range(3):
        media.write_image(tmp_path / "blank" / f"{k}.png", np.full((70, 90), 40 * k, np.uint8))
    with pytest.raises(LikewiseError, match="no features in any of the 3 photos"):
        sfm.reconstruct(tmp_path / "blank", tmp_path / "out", threads=1)


@pytest.mark.slow
def test_a_room_is_reconstructed_and_kept(tmp_path: Path) -> None:
    pytest.importorskip("pycolmap", reason="pycolmap is not installed (extra sfm)")
    photos, lines = walk(tmp_path / "photos", 6), list[str]()
    pairs = sfm.reconstruct(photos, tmp_path / "out", size=320, threads=1, report=lines.append)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["registered"] == 6
    assert summary["epipolar error"] < 0.5
    assert len(pairs) >= 8
    room = Survey.read(tmp_path / "out" / "model")
    s, R, t = surveys.similarity(room.centres, np.stack([-camera(k)[0].T @ camera(k)[1] for k in range(6)]))
    for k, photo in enumerate(room.photos):
        true = camera(k)
        apart, angle = metrics.camera_error(photo.R @ R.T, s * photo.t - photo.R @ R.T @ t, *true)
        assert apart < 0.1
        assert angle < 1.0
    again = list[str]()
    sfm.reconstruct(photos, tmp_path / "out", size=320, threads=1, report=again.append)
    assert len(again) == len(sfm.STEPS)
    assert all("as it was" in line for line in again)
    with pytest.raises(InputError, match="another configuration"):
        sfm.reconstruct(photos, tmp_path / "out", size=300, threads=1)


@pytest.mark.slow
def test_photos_of_a_real_place(data: Path, tmp_path: Path) -> None:
    import shutil

    pytest.importorskip("pycolmap", reason="pycolmap is not installed (extra sfm)")
    if not (data / "lund").is_dir():
        pytest.skip("the folder of real data sets has no lund/")
    (tmp_path / "photos").mkdir()
    for path in media.images(data / "lund")[:6]:
        shutil.copy(path, tmp_path / "photos")
    pairs = sfm.reconstruct(tmp_path / "photos", tmp_path / "out", size=640, features=2048)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["registered"] >= 5
    assert summary["epipolar error"] < 0.6
    assert len(pairs) >= 6


def test_a_model_is_read_as_colmap_reads_it(tmp_path: Path) -> None:
    pycolmap = pytest.importorskip("pycolmap", reason="pycolmap is not installed (extra sfm)")
    from worlds import scenes

    root = scenes.colmap(tmp_path, scenes.world(cameras=3, points=60))
    theirs = pycolmap.Reconstruction()
    theirs.read_text(root / "sparse")
    (root / "binary").mkdir()
    theirs.write_binary(root / "binary")
    ours, expected = Survey.read(root / "binary"), Survey.of(theirs)
    assert [p.name for p in ours.photos] == [p.name for p in expected.photos]
    for one, other in zip(ours.photos, expected.photos, strict=True):
        assert one.size == other.size
        for field in ("K", "R", "t", "points"):
            np.testing.assert_allclose(getattr(one, field), getattr(other, field), atol=1e-9)
        np.testing.assert_allclose(ours.points[one.shows], expected.points[other.shows])


def test_a_damaged_model_is_refused_at_once(tmp_path: Path) -> None:
    """COLMAP itself goes on for minutes over a count that it believes."""
    from worlds import scenes

    root = scenes.colmap(tmp_path, scenes.world(cameras=2, points=40), binary=True) / "sparse"
    row = struct.pack("<Q3d3BdQ", 7, 0.0, 0.0, 1.0, 0, 0, 0, 0.0, 0)
    for data, words in (
        (struct.pack("<Q", 2**60), "more than it can hold"),
        (struct.pack("<Q", 1) + row[:-8] + struct.pack("<Q", 2**50), "more than it can hold"),
        (struct.pack("<Q", 1) + row.replace(struct.pack("<d", 1.0), struct.pack("<d", np.nan)), "a point is nowhere"),
        (struct.pack("<Q", 1) + row, "shows point .* which is not listed"),
    ):
        (root / "points3D.bin").write_bytes(data)
        with pytest.raises(FileError, match=words):
            Survey.read(root)


def test_gps_of_too_many_numbers_is_not_told(tmp_path: Path) -> None:
    from PIL import Image

    data = Image.Exif()
    data.get_ifd(0x8825).update({1: "N", 2: tuple([1.0] * 400), 3: "E", 4: (20.0, 0.0, 0.0)})
    Image.fromarray(texture(size=(60, 80))).save(tmp_path / "x.jpg", exif=data)
    found = exif.shot(tmp_path / "x.jpg")
    assert found.place is None or found.place[:2] == pytest.approx((1 + 1 / 60 + 1 / 3600, 20.0))
