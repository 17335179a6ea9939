"""Structure from motion and its pairs: a room of three textured planes, seen by cameras that are known exactly."""

from __future__ import annotations

import functools
import json
import shutil
import sqlite3
import struct
import sys
from contextlib import closing
from pathlib import Path

import cv2
import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from tests.pixels.test_features import texture

from likewise import media
from likewise.errors import FileError, InputError, LikewiseError, MissingExtra
from likewise.pixels import metrics, robust, sfm
from likewise.pixels.matching import match
from likewise.pixels.sfm import Pairs, Photo, Survey
from worlds import scenes

needs_pycolmap = pytest.mark.skipif(sfm.importlib.util.find_spec("pycolmap") is None, reason="needs the extra sfm")

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
    y, x = np.mgrid[: SIZE[0], : SIZE[1]]
    places, which = cast(R, t, np.column_stack([x.ravel(), y.ravel()]).astype(np.float64))
    shown = np.zeros(x.size, np.float32)
    for k, (_, _, u, v) in enumerate(PLANES):
        at = [(70 * (places @ axis) + 400).reshape(SIZE).astype(np.float32) for axis in (u, v)]
        drawn = cv2.remap(papered(k), at[0], at[1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT).ravel()
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
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """What `reconstruct` leaves, made from exact cameras."""
    return Pairs(walk(tmp_path_factory.mktemp("room") / "images", 4).parent, survey(), 50)


def walk(path: Path, n: int) -> Path:
    for k in range(n):
        media.write_image(path / f"{k:04d}.png", shot(*camera(k)))
    return path


# --------------------------------------------------------------------------------------------------------------- pairs


def test_pairs_of_exact_cameras_have_exact_f(pairs: Pairs) -> None:
    assert pairs.numbers.tolist() == [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    assert pairs.errors().max() < 1e-8
    for i, j in pairs.numbers:
        a, b, known = pairs.survey.photos[i], pairs.survey.photos[j], pairs.survey.cameras(i, j)
        assert np.allclose(known["R"] @ a.R, b.R)
        assert np.allclose(known["R"] @ a.t + known["t"], b.t)
        assert np.linalg.norm(known["F"]) == pytest.approx(1)
    shows = [set(p.shows.tolist()) for p in pairs.survey.photos]
    for least in (1, len(shows[0] & shows[3]), len(shows[0] & shows[3]) + 1):  # a naive loop over sets
        every = [[i, j] for i in range(4) for j in range(i + 1, 4) if len(shows[i] & shows[j]) >= least]
        assert pairs.survey.overlaps(least).tolist() == every
    with pytest.raises(FileError, match="no two photos share 10000 points"):
        Pairs(pairs.folder, pairs.survey, 10_000)


@pytest.mark.parametrize("size", [(96, 128), (60, 120), (128, 96), (240, 320), (300, 400)])
def test_views_carry_f_along_exactly(pairs: Pairs, size: tuple[int, int]) -> None:
    """Every pixel of a view is followed through the room: its ray, the place that it hits, and that place in b."""
    for i, j in ((0, 3), (2, 1)):
        a, b, F = pairs.view(i, j, size)
        assert a.shape == b.shape == (*size, 3)
        y, x = np.mgrid[5 : size[0] : 17, 5 : size[1] : 17]
        small = np.column_stack([x.ravel(), y.ravel()]).astype(np.float64)
        places = pairs.survey.common(i, j)[1:]
        (corner_a, scale_a), (corner_b, scale_b) = (corner_of(np.median(at, axis=0), size) for at in places)
        X, _ = cast(*camera(i), (small + 0.5) / scale_a - 0.5 + corner_a)
        R, t = camera(j)
        there = (X @ R.T + t) @ K.T
        goal = (there[:, :2] / there[:, 2:] - corner_b + 0.5) * scale_b - 0.5
        assert robust.epipolar_errors(F, small, goal).max() < 1e-6


def corner_of(centre: np.ndarray, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Where the piece begins in the photo, x then y, and by how much it is scaled: told again in words of its own."""
    share = min(SIZE[0] / size[0], SIZE[1] / size[1])
    piece = np.minimum(SIZE[::-1], np.round(share * np.array(size[::-1])))
    return np.clip(np.round(centre - piece / 2), 0, SIZE[::-1] - piece), np.array(size[::-1]) / piece


def test_views_are_a_function_of_the_seed_and_show_what_f_says(pairs: Pairs) -> None:
    """SIFT matches of a view agree with its F."""
    one, two, other = (pairs.views(2, (240, 320), seed) for seed in (4, (4,), 8))
    assert one.a.shape == one.b.shape == (2, 3, 240, 320)
    for a, b, F in zip(one.a, one.b, one.F, strict=True):
        matches = match(a, b, features="sift", matcher="mutual", guide="never", ratio=0.7)
        assert len(matches) > 60
        assert np.median(robust.epipolar_errors(F.numpy(), matches.a, matches.b)) < 0.4
    assert np.array_equal(one.a, two.a)
    assert np.array_equal(one.F, two.F)
    assert not np.array_equal(one.F, other.F)
    with pytest.raises(InputError, match="n, size: expected"):
        pairs.views(0, (48, 64), 7)


@needs_pycolmap
def test_metres_by_gps() -> None:
    room, unit, places = survey(6), 40.0, {}
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


# --------------------------------------------------------------------------------------------------------------- models


@needs_pycolmap
@pytest.mark.parametrize("binary", [False, True])
def test_a_model_is_read_with_pixels_at_integers(tmp_path: Path, binary: bool) -> None:
    world = scenes.world(cameras=3, points=60)
    root = scenes.colmap(tmp_path, world, binary=binary)
    room = Survey.read(root / "sparse")
    assert [p.name for p in room.photos] == ["p0.png", "p1.png", "p2.png"]
    for k, photo in enumerate(room.photos):
        seen, ids = world.seen(k)
        np.testing.assert_allclose(photo.K, world.K, atol=1e-9)
        np.testing.assert_allclose(np.column_stack([photo.R, photo.t]), world.poses[k][:3], atol=1e-9)
        np.testing.assert_allclose(photo.points, seen, atol=1e-9)
        np.testing.assert_allclose(room.points[photo.shows], world.points[ids], atol=1e-9)
    if not binary:
        text = root / "sparse" / "images.txt"
        text.write_text(text.read_text().replace("p1.png", "../p1.png"))
        with pytest.raises(FileError, match="outside of its folder"):
            Survey.read(root / "sparse")


@pytest.mark.slow
@needs_pycolmap
def test_a_damaged_model_is_refused_at_once(tmp_path: Path) -> None:
    """COLMAP itself goes on for minutes over a count that it believes."""
    root = scenes.colmap(tmp_path, scenes.world(cameras=2, points=40), binary=True) / "sparse"
    whole = (root / "points3D.bin").read_bytes()
    for data in (struct.pack("<Q", 2**60), whole[:-9], whole[:8] + struct.pack("<Q3d", 7, np.nan, 0, 0) + whole[40:]):
        (root / "points3D.bin").write_bytes(data)
        with pytest.raises(FileError, match=r"not a readable COLMAP model|a point is nowhere"):
            Survey.read(root)


# ----------------------------------------------------------------------------------------------------------- the whole


@needs_pycolmap
@pytest.mark.parametrize(
    ("shades", "options", "error", "message"),
    [
        ((), {"matcher": "best"}, InputError, "matcher: expected"),
        ((), {"size": 3}, InputError, "size: expected"),
        ((), {"camera": "two"}, InputError, "camera: expected"),
        ((), {}, FileError, "no such folder"),
        ((0,), {}, InputError, "holds 1 photos that can be read, 2 needed"),
        ((0, 40, 80), {}, LikewiseError, "no features in any of the 3 photos"),
        ((0,), {"pycolmap": None}, MissingExtra, "pycolmap is not installed"),
    ],
)
def test_wrong_arguments_and_bad_folders(tmp_path, monkeypatch, shades, options, error, message) -> None:
    for k, shade in enumerate(shades):
        media.write_image(tmp_path / "photos" / f"{k}.png", np.full((70, 90), shade, np.uint8))
    if "pycolmap" in options:
        monkeypatch.setitem(sys.modules, "pycolmap", options.pop("pycolmap"))
    with pytest.raises(error, match=message):
        sfm.reconstruct(tmp_path / "photos", tmp_path / "out", threads=1, **options)


@pytest.mark.slow
@needs_pycolmap
def test_a_room_is_reconstructed_kept_and_resumed(tmp_path: Path) -> None:
    photos, out, lines = walk(tmp_path / "photos", 6), tmp_path / "out", list[str]()
    reconstruct = functools.partial(sfm.reconstruct, photos, out, threads=1, report=lines.append)
    pairs = reconstruct(size=320)
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["registered"], summary["pairs"]) == (6, len(pairs))
    assert summary["epipolar error"] < 0.5
    assert len(pairs) >= 8
    assert [line.split(":")[0] for line in lines] == ["photos", "features", "matches", "model", "pairs"]
    centres = np.stack([-camera(k)[0].T @ camera(k)[1] for k in range(6)])
    fit = pytest.importorskip("pycolmap").estimate_sim3d(np.stack([p.centre for p in pairs.survey.photos]), centres)
    for k, photo in enumerate(pairs.survey.photos):
        R = photo.R @ fit.rotation.matrix().T
        apart, angle = metrics.camera_error(R, fit.scale * photo.t - R @ fit.translation, *camera(k))
        assert apart < 0.1
        assert angle < 1.0
    again = reconstruct(size=320)
    assert len(lines) == 5  # nothing was done
    with pytest.raises(InputError, match="another configuration"):
        reconstruct(size=300)
    # as it is left by a stop in the midst of matching: the same comes out
    for path in (out / "images", out / "model", out / "work" / "model"):
        shutil.rmtree(path)
    (out / "summary.json").unlink()
    with closing(sqlite3.connect(out / "work" / "database.db")) as db:
        for table in ("matches", "two_view_geometries"):
            db.execute(f"DELETE FROM {table} WHERE pair_id % 2 = 0")
        db.commit()
    resumed = reconstruct(size=320)
    for i, j in again.numbers:
        assert np.array_equal(again.survey.cameras(i, j)["F"], resumed.survey.cameras(i, j)["F"])


@pytest.mark.slow
@needs_pycolmap
def test_photos_of_a_real_place(data: Path, tmp_path: Path) -> None:
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
