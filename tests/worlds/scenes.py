"""Pairs of pictures with known truth, as small made-up files in the layouts in which data sets are published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from scipy.spatial.transform import Rotation

from likewise import media
from likewise.types import Flow, write_flow

Floats = NDArray[np.float64]

SHIFT = np.array([[1.0, 0.0, 3.0], [0.0, 1.0, -2.0], [0.0, 0.0, 1.0]])


def texture(seed: int, h: int = 48, w: int = 64) -> NDArray[np.uint8]:
    """A smooth random picture (h, w, 3) with something to find everywhere."""
    noise = np.random.default_rng(seed).normal(size=(h, w, 3))
    smooth = gaussian_filter(noise, (1.5, 1.5, 0)) + gaussian_filter(noise, (4, 4, 0)) * 3
    spread = (smooth - smooth.min()) / np.ptp(smooth)
    return np.rint(spread * 255).astype(np.uint8)


def moved(picture: NDArray[np.uint8], dx: int, dy: int) -> NDArray[np.uint8]:
    """The picture moved right by dx and down by dy; what comes in is what went out."""
    return np.roll(picture, (dy, dx), axis=(0, 1))


# ------------------------------------------------------------------------------------------------------------- folders


def hpatches(root: Path, names: Sequence[str] = ("v_door", "i_lamp"), suffix: str = ".png") -> Path:
    """Sequences in which picture k lies k pixels to the right of the first one (v_…), or on it, darker (i_…)."""
    for n, name in enumerate(names):
        first = texture(n)
        for k in range(1, 7):
            right = k if name.startswith("v") else 0
            picture = moved(first, right, 0) if right else (first * (1 - 0.1 * k)).astype(np.uint8)
            media.write_image(root / name / f"{k}{suffix}", first if k == 1 else picture)
            if k > 1:
                (root / name / f"H_1_{k}").write_text(f"2 0 {2 * right}\n0 2 0\n0 0 2\n")  # of any scale
    return root


def kitti(root: Path, year: int = 2015, pairs: int = 2) -> Path:
    """Every pixel moves by (3, −2); the truth lacks a quarter of them."""
    folder = {2015: "image_2", 2012: "colored_0"}[year]
    for i in range(pairs):
        first = texture(10 + i)
        for number, picture in ((10, first), (11, moved(first, 3, -2))):
            media.write_image(root / "training" / folder / f"{i:06d}_{number}.png", picture)
        vectors = np.full((48, 64, 2), (3.0, -2.0))
        known = np.ones((48, 64), dtype=bool)
        known[::2, ::2] = False
        write_flow(root / "training" / "flow_occ" / f"{i:06d}_10.png", Flow(vectors, known))
    return root


def sintel(root: Path, scenes: Sequence[str] = ("alley_1", "cave_2"), frames: int = 3) -> Path:
    """A picture that moves right by two pixels a frame; the last two columns are marked as occluded."""
    for s, scene in enumerate(scenes):
        first = texture(20 + s)
        for k in range(1, frames + 1):
            for which, light in (("clean", 1.0), ("final", 0.7)):
                picture = (moved(first, 2 * (k - 1), 0) * light).astype(np.uint8)
                media.write_image(root / "training" / which / scene / f"frame_{k:04d}.png", picture)
            if k < frames:
                write_flow(root / "training" / "flow" / scene / f"frame_{k:04d}.flo", np.full((48, 64, 2), (2.0, 0.0)))
                hidden = np.zeros((48, 64), dtype=np.uint8)
                hidden[:, -2:] = 255
                media.write_image(root / "training" / "occlusions" / scene / f"frame_{k:04d}.png", hidden)
    return root


def middlebury(root: Path, *, apart: bool = False) -> Path:
    """Two scenes; with `apart` pictures and flow lie under other-data and other-gt-flow, as they are published."""
    for s, scene in enumerate(("Dimetrodon", "Venus")):
        pictures, truth = (root / "other-data", root / "other-gt-flow") if apart else (root, root)
        first = texture(30 + s)
        media.write_image(pictures / scene / "frame10.png", first)
        media.write_image(pictures / scene / "frame11.png", moved(first, 1, 1))
        write_flow(truth / scene / "flow10.flo", np.ones((48, 64, 2)))
    return root


def robotcar(root: Path, pairs: int = 3) -> Path:
    """Two seasons; a point of the target lies two pixels left of where it is in the source."""
    rows = ["source_image,target_image,scene,XA,YA,XB,YB"]
    for i in range(pairs):
        first, scene = texture(40 + i), ("dusk", "night")[i % 2]
        media.write_image(root / "img" / scene / f"s{i}.png", moved(first, 2, 0))
        media.write_image(root / "img" / scene / f"t{i}.png", first)
        x, y = np.random.default_rng(i).uniform(5, 40, (2, 4 + i)).round(2)
        cells = (";".join(map(str, values)) for values in (x + 2, y, x, y))
        rows.append(",".join((f"s{i}.png", f"t{i}.png", scene, *cells)))
    (root / "test6511.csv").write_text("\n".join(rows) + "\n")
    return root


# ------------------------------------------------------------------------------------------------------ reconstructions


@dataclass(frozen=True)
class World:
    """Points in space, cameras that see them: what a reconstruction would say of four pictures, without error.

    Pixels here have their centres at integers; COLMAP's files add half a pixel.
    """

    K: Floats
    poses: tuple[Floats, ...]
    points: Floats
    size: tuple[int, int] = (48, 64)

    def seen(self, k: int) -> tuple[Floats, NDArray[np.int64]]:
        """Where camera k sees the points, and which."""
        local = self.points @ self.poses[k][:3, :3].T + self.poses[k][:3, 3]
        pixels = (local @ self.K.T)[:, :2] / (local @ self.K.T)[:, 2:]
        h, w = self.size
        inside = (local[:, 2] > 0.1) & (pixels >= 0).all(axis=1) & (pixels <= [w - 1, h - 1]).all(axis=1)
        return pixels[inside], np.flatnonzero(inside)


def world(seed: int = 0, cameras: int = 4, points: int = 120) -> World:
    """Cameras in a row that look at a cloud of points before them, each a little turned."""
    rng = np.random.default_rng(seed)
    poses = []
    for k in range(cameras):
        pose = np.eye(4)
        pose[:3, :3] = Rotation.from_euler("yxz", [6 * k, 2 * k, -3 * k], degrees=True).as_matrix()
        pose[:3, 3] = [-0.4 * k, 0.1 * k, 0.15 * k]
        poses.append(pose)
    cloud = rng.uniform([-1.5, -1, 3], [1.5, 1, 6], (points, 3))
    return World(np.array([[60.0, 0, 31.2], [0, 58.0, 23.1], [0, 0, 1]]), tuple(poses), cloud)


def colmap(root: Path, given: World, *, binary: bool = False, model: str = "PINHOLE") -> Path:
    """sparse/ and images/ of a world, one point in each picture without a 3-D point."""
    (root / "sparse").mkdir(parents=True)
    for k in range(len(given.poses)):
        media.write_image(root / "images" / f"p{k}.png", texture(50 + k))
    _text(root / "sparse", given, model)
    if binary:
        model_of = pytest.importorskip("pycolmap", reason="pip install 'likewise[sfm]'").Reconstruction(root / "sparse")
        for file in (root / "sparse").glob("*.txt"):
            file.unlink()
        model_of.write_binary(root / "sparse")
    return root


def _table(given: World, k: int) -> tuple[Floats, list[int]]:
    pixels, ids = given.seen(k)
    return np.vstack([[[1.0, 2.0]], pixels + 0.5]), [-1, *(int(i) + 7 for i in ids)]


def _quaternion(pose: Floats) -> list[float]:
    x, y, z, w = Rotation.from_matrix(pose[:3, :3]).as_quat()
    return [w, x, y, z]


def _text(folder: Path, given: World, model: str) -> None:
    h, w = given.size
    fx, fy, cx, cy = given.K[0, 0], given.K[1, 1], given.K[0, 2] + 0.5, given.K[1, 2] + 0.5
    words = {"PINHOLE": [fx, fy, cx, cy], "OPENCV": [fx, fy, cx, cy, 0.1, 0, 0, 0], "FISHEYE": [fx]}[model]
    (folder / "cameras.txt").write_text(f"# made up\n3 {model} {w} {h} {' '.join(map(repr, map(float, words)))}\n")
    lines = ["# made up"]
    for k, pose in enumerate(given.poses):
        numbers = [*_quaternion(pose), *pose[:3, 3]]
        lines.append(f"{k + 1} {' '.join(repr(float(n)) for n in numbers)} 3 p{k}.png")
        points, ids = _table(given, k)
        lines.append(" ".join(f"{float(x)!r} {float(y)!r} {i}" for (x, y), i in zip(points, ids, strict=True)))
    (folder / "images.txt").write_text("\n".join(lines) + "\n")
    tracks: dict[int, list[str]] = {}
    for k in range(len(given.poses)):
        for place, number in enumerate(_table(given, k)[1]):
            tracks.setdefault(number, []).append(f"{k + 1} {place}")
    rows = [
        f"{i} {' '.join(repr(float(x)) for x in given.points[i - 7])} 0 0 0 0 {' '.join(track)}"
        for i, track in tracks.items()
        if i >= 0
    ]
    (folder / "points3D.txt").write_text("\n".join(rows) + "\n")


def megadepth(root: Path, given: World, kind: str = "loftr") -> Path:
    """scene_info/0000.npz of a world as LoFTR or D2-Net wrote it, with arrays of objects; the last picture lacks."""
    n = len(given.poses)
    paths: list[str | None] = [f"Undistorted_SfM/0000/images/p{k}.png" for k in range(n)]
    for k, path in enumerate(paths):
        media.write_image(root / str(path), texture(50 + k))
    K = given.K.copy()
    K[:2, 2] += 0.5
    held = {
        "image_paths": objects([*paths, None]),
        "depth_paths": objects([*paths, None]),
        "intrinsics": objects([K] * n + [None]),
        "poses": objects([*given.poses, None]),
    }
    if kind == "loftr":
        infos = [((0, 1), 0.6, objects([1.0])), ((1, 2), np.float64(0.4), None), ((0, 3), 0.05, None)]
        held["pair_infos"] = objects([*infos, ((0, n), 0.9, None)])
    else:
        shares = np.full((n + 1, n + 1), -1.0)
        shares[0, 1], shares[1, 2], shares[0, 3], shares[0, n] = 0.6, 0.4, 0.05, 0.9
        held["overlap_matrix"] = shares
        held["scale_ratio_matrix"] = np.ones((n + 1, n + 1))
    (root / "scene_info").mkdir()
    np.savez(root / "scene_info" / "0000.npz", **held)  # type: ignore[arg-type]
    return root


def objects(items: Sequence[object]) -> NDArray[np.object_]:
    """An array of objects, whatever they are."""
    array = np.empty(len(items), dtype=object)
    for i, item in enumerate(items):
        array[i] = item
    return array
