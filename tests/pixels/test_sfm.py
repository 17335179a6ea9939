"""Structure from motion and its pairs: a room of three textured planes, seen by cameras that are known exactly."""

from __future__ import annotations

import functools
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from tests.pixels.test_features import texture

from likewise import media
from likewise.errors import FileError, InputError, LikewiseError, MissingExtra
from likewise.pixels import metrics, robust, sfm
from likewise.pixels.sfm import Pairs, Photo, Survey

SIZE = (240, 320)
EARTH = 6_378_137.0
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
    arrays, _ = Pairs.of(room, 50)
    np.savez(out / "pairs.npz", names=np.array([p.name for p in room.photos]), **arrays)
    return out


# --------------------------------------------------------------------------------------------------------------- pairs


def test_pairs_of_exact_cameras_have_exact_f() -> None:
    room = survey()
    arrays, errors = Pairs.of(room, 50)
    assert len(arrays["F"]) == 6
    assert errors.max() < 1e-8
    for k, (i, j) in enumerate(zip(arrays["a"], arrays["b"], strict=True)):
        a, b = room.photos[i], room.photos[j]
        assert np.allclose(arrays["R"][k] @ a.R, b.R)
        assert np.allclose(arrays["R"][k] @ a.t + arrays["t"][k], b.t)
        assert np.linalg.norm(arrays["F"][k]) == pytest.approx(1)
    assert len(Pairs.of(room, 10_000)[0]["F"]) == 0
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
    """The images, too: SIFT matches of a view agree with its F."""
    from likewise.pixels.matching import raw

    views = Pairs.open(folder).views(2, (240, 320), 4)
    for a, b, F in zip(views.a, views.b, views.F, strict=True):
        found = raw(a, b, ratio=0.7)
        assert len(found) > 60
        assert np.median(robust.epipolar_errors(F.numpy(), found.a, found.b)) < 0.4


def test_views_are_a_function_of_the_seed(folder: Path) -> None:
    pairs = Pairs.open(folder)
    one, two, other = pairs.views(4, (48, 64), 7), Pairs.open(folder).views(4, (48, 64), 7), pairs.views(4, (48, 64), 8)
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


def test_metres_by_gps() -> None:
    pytest.importorskip("pycolmap", reason="pycolmap is not installed (extra sfm)")
    room = survey(6)
    unit = 40.0
    places = {}
    for p in room.photos:
        x, y, z = p.centre * unit
        north, east = np.degrees(y / EARTH), np.degrees(x / EARTH) / np.cos(np.radians(50))
        places[p.name] = (50 + north, 8 + east, z)
    told = sfm.measure_scale(room, places)
    assert told is not None
    assert told["scale"] == pytest.approx(unit, rel=5e-3)
    assert told["error"] < 0.5
    assert sfm.measure_scale(room, dict(list(places.items())[:4])) is None
    assert sfm.measure_scale(room, dict.fromkeys(places, (50.0, 8.0, 0.0))) is None


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
    true = np.stack([-camera(k)[0].T @ camera(k)[1] for k in range(6)])
    fit = pytest.importorskip("pycolmap").estimate_sim3d(np.stack([p.centre for p in room.photos]), true)
    s, R, t = fit.scale, fit.rotation.matrix(), fit.translation
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


@pytest.mark.parametrize("binary", [False, True])
def test_a_model_is_read_with_pixels_at_integers(tmp_path: Path, binary: bool) -> None:
    pytest.importorskip("pycolmap", reason="pycolmap is not installed (extra sfm)")
    from worlds import scenes

    world = scenes.world(cameras=3, points=60)
    room = Survey.read(scenes.colmap(tmp_path, world, binary=binary) / "sparse")
    assert [p.name for p in room.photos] == ["p0.png", "p1.png", "p2.png"]
    for k, photo in enumerate(room.photos):
        seen, ids = world.seen(k)
        np.testing.assert_allclose(photo.K, world.K, atol=1e-9)
        np.testing.assert_allclose(np.column_stack([photo.R, photo.t]), world.poses[k][:3], atol=1e-9)
        np.testing.assert_allclose(photo.points, seen, atol=1e-9)
        np.testing.assert_allclose(room.points[photo.shows], world.points[ids], atol=1e-9)


@pytest.mark.slow
def test_a_damaged_model_is_refused_at_once(tmp_path: Path) -> None:
    """COLMAP itself goes on for minutes over a count that it believes."""
    from worlds import scenes

    root = scenes.colmap(tmp_path, scenes.world(cameras=2, points=40), binary=True) / "sparse"
    whole = (root / "points3D.bin").read_bytes()
    for data in (struct.pack("<Q", 2**60), whole[:-9], whole[:8] + struct.pack("<Q3d", 7, np.nan, 0, 0) + whole[40:]):
        (root / "points3D.bin").write_bytes(data)
        with pytest.raises(FileError, match=r"not a readable COLMAP model|a point is nowhere"):
            Survey.read(root)
