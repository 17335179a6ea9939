"""Placing a photo in a map: exact correspondences, a room whose cameras are known, queries without an answer."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation
from tests.pixels.test_sfm import SIZE, K, camera, cast, shot

from likewise import media
from likewise.errors import FileError, InputError
from likewise.pixels import metrics
from likewise.pixels.features import detect
from likewise.pixels.geometry import shrink
from likewise.pixels.localize import Map, lift, make_camera, place
from likewise.pixels.sfm import Photo, Survey
from likewise.types import Image

pycolmap = pytest.importorskip("pycolmap", reason="pycolmap is not installed (extra sfm)")

MAPPED = (0, 1, 3, 4)
HELD_OUT = 2


class Known:
    """A model that knows the room: the exact flow between the query (camera 2) and the photo that it is shown."""

    def __init__(self, pictures: dict[int, torch.Tensor]) -> None:
        self.pictures, self.asked = pictures, list[int]()

    def both(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        which = next(k for k, p in self.pictures.items() if torch.equal(p, b))
        self.asked.append(which)
        return flow(HELD_OUT, which), flow(which, HELD_OUT)


def flow(i: int, j: int) -> torch.Tensor:
    y, x = np.mgrid[: SIZE[0], : SIZE[1]]
    points = np.column_stack([x.ravel(), y.ravel()]).astype(np.float64)
    X, _ = cast(*camera(i), points)
    R, t = camera(j)
    there = (X @ R.T + t) @ K.T
    return torch.from_numpy((there[:, :2] / there[:, 2:] - points).reshape(*SIZE, 2))


def dark(picture: np.ndarray, seed: int = 0, share: float = 1 / 3) -> np.ndarray:
    """As by night: a gamma of 2.2 at a share of the light, and noise."""
    light = share * (picture / 255.0) ** 2.2 + np.random.default_rng(seed).normal(0, 0.01, picture.shape)
    return np.rint(255 * np.clip(light, 0, 1)).astype(np.uint8)


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Map:
    """A map whose poses and points are exact: SIFT's points of each photo, followed to the walls."""
    folder, photos, places = tmp_path_factory.mktemp("map"), [], []
    for k in MAPPED:
        media.write_image(folder / "images" / f"{k}.png", shot(*camera(k)))
        points = detect(media.read(folder / "images" / f"{k}.png"), most=600).points.astype(np.float64)
        X, _ = cast(*camera(k), points)
        shows = np.arange(len(points)) + sum(map(len, places))
        photos.append(Photo(f"{k}.png", SIZE, K, *camera(k), points, shows))
        places.append(X)
    return Map(folder, Survey(tuple(photos), np.concatenate(places)))


@pytest.fixture(scope="module")
def query() -> np.ndarray:
    return shot(*camera(HELD_OUT))


# ----------------------------------------------------------------------------------------------------------------- pose


def exact(n: int, wrong: float = 0.0, noise: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    R, t = Rotation.from_rotvec([0.1, -0.4, 0.2]).as_matrix(), np.array([0.3, -0.2, 1.0])
    X = rng.uniform([-2, -2, 3], [2, 2, 9], (n, 3))
    x = (X @ R.T + t) @ K.T
    points = x[:, :2] / x[:, 2:] + rng.normal(0, noise, (n, 2))
    bad = rng.random(n) < wrong
    points[bad] = rng.uniform(0, 300, (int(bad.sum()), 2))
    return points, X, R, t


def known(given: np.ndarray | None = K):
    return make_camera(Image(np.zeros(SIZE, np.uint8)), given)


def test_exact_correspondences_give_the_exact_pose() -> None:
    points, X, R, t = exact(50)
    located = place(points, X, known())
    assert max(located.error(R, t)) < 1e-5
    assert located.n == 50
    assert np.allclose(located.centre, -R.T @ t, atol=1e-5)
    assert np.allclose(located.K, K)
    assert "50 of 50" in repr(located)


def test_the_focal_length_is_located_along_with_the_pose() -> None:
    points, X, R, t = exact(120)
    guessed = known(None)
    assert guessed.focal_length == 1.2 * 320
    located = place(points, X, guessed)
    assert located.K[0, 0] == pytest.approx(K[0, 0], rel=1e-3)
    assert max(located.error(R, t)) < 0.02


def test_outliers_are_left_out_and_the_seed_decides() -> None:
    points, X, R, t = exact(200, wrong=0.5, noise=0.5)
    one, two = (place(points, X, known(), seed=3) for _ in range(2))
    distance, angle = one.error(R, t)
    assert distance < 0.05
    assert angle < 0.3
    assert 80 <= one.n <= 125
    assert np.array_equal(one.R, two.R)


def test_too_few_and_nonsense_are_told() -> None:
    points, X, R, t = exact(5)
    few = place(points, X, known())
    assert few.R is None
    assert few.reason == "5 features match points of the map, 6 needed"
    assert few.error(R, t) == (float("inf"), float("inf"))
    assert few.to_dict()["centre"] is None
    rng = np.random.default_rng(0)
    lost = place(rng.uniform(0, 300, (12, 2)), rng.normal(size=(12, 3)), known(), px=0.5)
    assert lost.R is None
    assert "no pose agrees" in lost.reason


def test_points_are_lifted_to_the_nearest_that_the_map_knows() -> None:
    photo = Photo("x", SIZE, K, np.eye(3), np.zeros(3), np.array([[10.0, 10], [50, 50]]), np.array([7, 3]))
    at, shows = lift(np.array([[10.5, 10.0], [49.0, 48.0], [51.0, 50.0], [200.0, 9.0]]), photo, 2.0)
    assert at.tolist() == [0, 2]
    assert shows.tolist() == [7, 3]
    assert len(lift(np.empty((0, 2)), photo, 2.0)[0]) == 0


# ------------------------------------------------------------------------------------------------------------------ map


def test_a_query_is_placed_in_the_room(room: Map, query: np.ndarray) -> None:
    located = room.localize(query, guide="never", K=K, retrieve=2)
    distance, angle = located.error(*camera(HELD_OUT))
    assert distance < 0.03
    assert angle < 0.3
    assert len(located.photos) == 2


def test_flow_guides_the_matches_of_a_dark_query(room: Map, query: np.ndarray) -> None:
    pictures = {k: room.image(f"{k}.png").tensor for k in MAPPED}
    model = Known(pictures)
    night = dark(query)
    plain, guided = room.localize(night, guide="never", K=K), room.localize(night, guide=model, K=K)
    assert sorted(model.asked) == list(MAPPED)
    assert guided.n > plain.n
    distance, angle = guided.error(*camera(HELD_OUT))
    assert distance < 0.05
    assert angle < 0.5


def test_a_blank_query_says_why(room: Map) -> None:
    located = room.localize(np.zeros((120, 160), np.uint8), guide="never")
    assert located.R is None
    assert located.reason.startswith("0 features match")
    with pytest.raises(InputError, match="retrieve"):
        room.localize(np.zeros((120, 160), np.uint8), retrieve=0)


def test_what_is_no_map_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="not a map; make one with"):
        Map.open(tmp_path)
    (tmp_path / "model").mkdir()
    with pytest.raises(FileError, match="no COLMAP model"):
        Map.open(tmp_path)
    for name in ("cameras.bin", "images.bin", "points3D.bin"):
        (tmp_path / "model" / name).write_bytes(b"\xff" * 9)
    with pytest.raises(FileError, match=r"not a readable COLMAP model"):
        Map.open(tmp_path)


@pytest.mark.slow
def test_a_map_is_built_from_photos_and_places_one_that_it_lacks(tmp_path: Path) -> None:
    mapped = (0, 1, 3, 4, 5)
    for k in mapped:
        media.write_image(tmp_path / "photos" / f"{k}.png", shot(*camera(k)))
    built = Map.build(tmp_path / "photos", tmp_path / "map", size=320, threads=1)
    opened = Map.open(tmp_path / "map")
    assert len(opened) == len(built) == 5
    located = opened.localize(dark(shot(*camera(HELD_OUT))), guide="never", retrieve=5)
    truth = np.stack([-camera(k)[0].T @ camera(k)[1] for k in mapped])
    fit = pycolmap.estimate_sim3d(np.stack([p.centre for p in opened.survey.photos]), truth)
    R_true, t_true = camera(HELD_OUT)
    assert np.linalg.norm(fit * located.centre + R_true.T @ t_true) < 0.15
    assert metrics.rotation_angle(located.R @ fit.rotation.matrix().T, R_true) < 2.0


@pytest.mark.slow
def test_a_real_photo_held_out_and_darkened_is_placed(data: Path, tmp_path: Path) -> None:
    """Its pose at an eighth of the light is the one that structure from motion gives it by day: ≤ 0.25 m, 0.5°."""
    if not (data / "lund").is_dir():
        pytest.skip("the folder of real data sets has no lund/")
    paths = media.images(data / "lund")[5:14]
    held = paths[4]
    for name, some in (("all", paths), ("most", [p for p in paths if p != held])):
        (tmp_path / name).mkdir()
        for path in some:
            shutil.copy(path, tmp_path / name)
    whole, built = (Map.build(tmp_path / n, tmp_path / f"map of {n}", threads=1) for n in ("all", "most"))
    truth, there = ({p.name.split("_", 1)[1]: p for p in m.survey.photos} for m in (whole, built))
    true = truth.pop(f"{held.stem}.jpg")
    # The cameras stand nearly on a line, about which their centres leave the rotation free: 1.9° instead of 0.08°
    # between the same photos of both maps. So it is the mean of the photos' own rotations.
    turn = Rotation.from_matrix([truth[n].R.T @ there[n].R for n in truth]).mean().as_matrix()
    x, y = (np.stack([m[n].centre for n in truth]) for m in (there, truth))
    across, along = x.mean(axis=0), (x - x.mean(axis=0)) @ turn.T
    scale = (along * (y - y.mean(axis=0))).sum() / (along**2).sum()
    day = shrink(media.read_array(held), longest=1000)
    lens = there[f"{paths[3].stem}.jpg"].K.copy()
    lens[:2, 2] = (day.shape[1] - 1) / 2, (day.shape[0] - 1) / 2
    located = built.localize(dark(day, share=1 / 8), K=lens)
    centre = scale * turn @ (located.centre - across) + y.mean(axis=0)
    assert whole.metres is not None
    assert whole.metres * np.linalg.norm(centre - true.centre) <= 0.25
    assert metrics.rotation_angle(located.R @ turn.T, true.R) <= 0.5
