"""Pairs out of a COLMAP model: cameras, poses and the points that two pictures share, from text or binary files."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from likewise.errors import FileError, InputError
from likewise.pixels.correspondences import between
from likewise.pixels.data import FlowDataset, FlowPair
from likewise.pixels.layouts import within

FilePath: TypeAlias = str | os.PathLike[str]
Floats: TypeAlias = NDArray[np.float64]
Index: TypeAlias = NDArray[np.int64]

MODELS = ("SIMPLE_PINHOLE", "PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV")
"""The camera models that are read, in the order of their numbers; those with distortion only where it is 0."""
_PARAMETERS = (3, 4, 4, 5, 8)
SHORTEST = 1e-9
"""A focal length below this many pixels, or anything of a camera beyond 1e9, belongs to none."""
MOST_NAME = 4096
"""A name of a picture that is longer than this many bytes is refused."""
LEAST = 30
"""Points that two pictures must share, unless asked otherwise."""


@dataclass(frozen=True, eq=False)
class Camera:
    """Size (h, w) and intrinsics, pixel centres at integers."""

    size: tuple[int, int]
    K: Floats


@dataclass(frozen=True, eq=False)
class View:
    """A picture of the model: X_camera = R X_world + t; points (n, 2) in pixels and the ids (n,) of their 3-D ones."""

    name: str
    camera: int
    R: Floats
    t: Floats
    points: Floats
    ids: Index


def colmap(
    path: FilePath,
    *,
    pictures: FilePath | None = None,
    least: int = LEAST,
    most: int | None = None,
    seed: int = 0,
) -> FlowDataset:
    """A COLMAP model of undistorted pictures: pairs that share `least` 3-D points, with F, cameras and those points.

    `path` is the folder of cameras, images (.txt or .bin), or one that holds it as sparse/ or sparse/0; pictures lie in
    `pictures`, or in images/ beside it. COLMAP has the centre of the first pixel at (½, ½): principal points and points
    are moved by half a pixel. With `most`, so many pairs are drawn by `seed`. Cameras with distortion are refused:
    colmap image_undistorter makes them pinholes.
    """
    folder = _model(Path(path))
    if folder is None:
        raise FileError(f"{path}: no cameras and images (.txt or .bin) of COLMAP, there or in sparse/ or sparse/0")
    cameras, views = cameras_of(folder), views_of(folder)
    root = Path(pictures) if pictures is not None else _pictures(Path(path), folder)
    pairs = shared(views, least)
    if most is not None and len(pairs) > most:
        pairs = pairs[np.sort(np.random.default_rng(seed).choice(len(pairs), most, replace=False))]
    if not len(pairs):
        raise FileError(f"{folder}: no two of {len(views)} pictures share {least} points; ask for fewer")
    return FlowDataset(tuple(_pair(folder, root, cameras, views[i], views[j]) for i, j in pairs), _name(Path(path)))


def is_model(path: Path) -> bool:
    """Whether this is the folder of a COLMAP model."""
    return _model(path) is not None


def _model(path: Path) -> Path | None:
    places = (path, path / "sparse", path / "sparse" / "0", path / "dense" / "sparse")
    return next((p for p in places if any((p / f"cameras.{s}").is_file() for s in ("bin", "txt"))), None)


def _pictures(path: Path, folder: Path) -> Path:
    places = [p / "images" for p in (path, folder, folder.parent, folder.parent.parent)]
    found = next((p for p in places if p.is_dir()), None)
    if found is None:
        raise FileError(f"{folder}: no images/ beside it; say where its pictures are")
    return found


def _name(path: Path) -> str:
    return path.resolve().name


def shared(views: list[View], least: int) -> Index:
    """The pairs (n, 2) of views with at least so many 3-D points in common."""
    from scipy.sparse import csr_matrix

    if isinstance(least, bool) or not isinstance(least, int | np.integer) or least < 1:
        raise InputError(f"least: expected a whole number of points ≥ 1, got {least!r}")
    _, columns = np.unique(np.concatenate([np.unique(v.ids) for v in views]), return_inverse=True)
    rows = np.repeat(np.arange(len(views)), [len(np.unique(v.ids)) for v in views])
    seen = csr_matrix((np.ones(len(rows), dtype=np.int64), (rows, columns)))
    common = (seen @ seen.T).tocoo()
    chosen = (common.row < common.col) & (common.data >= least)
    pairs = np.stack([common.row[chosen], common.col[chosen]], axis=1).astype(np.int64)
    return np.asarray(pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))])


def _pair(folder: Path, root: Path, cameras: dict[int, Camera], one: View, two: View) -> FlowPair:
    unknown = [v.name for v in (one, two) if v.camera not in cameras]
    if unknown:
        raise FileError(f"{folder}: {unknown[0]} has a camera that is not listed")
    R = two.R @ one.R.T
    a, b = (root / within(v.name, folder) for v in (one, two))
    geometry = between(cameras[one.camera].K, cameras[two.camera].K, R, two.t - R @ one.t)
    return FlowPair(a, b, f"{a.stem} – {b.stem}", "colmap", points=lambda: _common(one, two), **geometry)


def _common(one: View, two: View) -> tuple[Floats, Floats]:
    """Where two pictures see the same 3-D points; of one that is seen twice, the first place."""
    _, first, second = np.intersect1d(one.ids, two.ids, return_indices=True)
    return one.points[first], two.points[second]


# ------------------------------------------------------------------------------------------------------------- cameras


def cameras_of(folder: Path) -> dict[int, Camera]:
    """The cameras of a model by their numbers."""
    binary = folder / "cameras.bin"
    rows = _binary_cameras(binary) if binary.is_file() else _text_cameras(folder / "cameras.txt")
    return {number: _camera(folder, number, *row) for number, *row in rows}


def _camera(folder: Path, number: int, model: str, width: int, height: int, p: list[float]) -> Camera:
    if model not in MODELS:
        raise FileError(
            f"{folder}: camera {number} is {model}; undistort the pictures (colmap image_undistorter) first"
        )
    if len(p) != _PARAMETERS[MODELS.index(model)] or not np.isfinite(p).all():
        raise FileError(f"{folder}: camera {number} has {len(p)} parameters that do not make a {model}")
    single = model in ("SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL")
    fx, fy, cx, cy, *bent = [p[0], *p] if single else p
    if not (min(fx, fy) > SHORTEST and max(fx, fy, abs(cx), abs(cy)) < 1 / SHORTEST) or not min(width, height) >= 1:
        raise FileError(f"{folder}: camera {number} has {len(p)} parameters that do not make a {model}")
    if any(bent):
        raise FileError(f"{folder}: camera {number} has distortion; undistort the pictures (colmap image_undistorter)")
    return Camera((height, width), np.array([[fx, 0, cx - 0.5], [0, fy, cy - 0.5], [0, 0, 1.0]]))


def _text_cameras(file: Path) -> Iterator[tuple[Any, ...]]:
    """CAMERA_ID MODEL WIDTH HEIGHT PARAMS…"""
    for number, line in _lines(file):
        if not line:
            continue
        words = line.split()
        try:
            yield int(words[0]), words[1], int(words[2]), int(words[3]), [float(w) for w in words[4:]]
        except (ValueError, IndexError):
            raise FileError(f"{file}: line {number} is no camera: {line[:60]!r}") from None


def _binary_cameras(file: Path) -> Iterator[tuple[Any, ...]]:
    with BinaryFile(file) as reader:
        for _ in range(reader.count(32)):
            number, model, width, height = reader.take("<IiQQ")
            if not 0 <= model < len(MODELS):
                words = "undistort the pictures (colmap image_undistorter) first"
                raise FileError(f"{file}: camera {number} is of model {model}; {words}")
            yield number, MODELS[model], width, height, list(reader.take(f"<{_PARAMETERS[model]}d"))


# --------------------------------------------------------------------------------------------------------------- views


def views_of(folder: Path) -> list[View]:
    """The pictures of a model, sorted by name."""
    binary = folder / "images.bin"
    found = _binary_views(binary) if binary.is_file() else _text_views(folder / "images.txt")
    views = sorted(found, key=lambda v: v.name)
    if not views:
        raise FileError(f"{folder}: lists no picture")
    return views


def _view(file: Path, pose: list[float], camera: int, name: str, table: Floats) -> View:
    """A quaternion w x y z, a translation, and rows x y id (−1 for no 3-D point)."""
    if len(pose) != 7 or not np.isfinite(pose).all() or not 0 < np.linalg.norm(pose[:4]) < np.inf:
        raise FileError(f"{file}: {name} has no pose")
    known = (table[:, 2] >= 0) & (table[:, 2] < 2.0**63) & np.isfinite(table).all(axis=1)
    points, ids = table[known, :2] - 0.5, table[known, 2].astype(np.int64)
    return View(name, camera, rotation(np.array(pose[:4])), np.array(pose[4:7]), points, ids)


def rotation(q: Floats) -> Floats:
    """The rotation of a quaternion (w, x, y, z) of any length."""
    w, x, y, z = q / np.linalg.norm(q)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def _text_views(file: Path) -> Iterator[View]:
    """IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME, and on the next line X Y POINT3D_ID of each of its points."""
    lines = _lines(file)
    for number, line in lines:
        if not line:
            continue
        words = line.split(maxsplit=9)
        points = next(lines, (number, ""))[1]
        try:
            table = np.array(points.split(), dtype=np.float64).reshape(-1, 3)
            yield _view(file, [float(w) for w in words[1:8]], int(words[8]), words[9], table)
        except (ValueError, IndexError):
            raise FileError(f"{file}: line {number} is no picture with its points: {line[:60]!r}") from None


def _binary_views(file: Path) -> Iterator[View]:
    row = np.dtype([("x", "<f8"), ("y", "<f8"), ("id", "<i8")])
    with BinaryFile(file) as reader:
        for _ in range(reader.count(73)):
            _, *pose, camera = reader.take("<I7dI")
            name = reader.name()
            raw = np.frombuffer(reader.bytes(reader.count(row.itemsize) * row.itemsize), dtype=row)
            table = np.stack([raw["x"], raw["y"], raw["id"].astype(np.float64)], axis=1)
            yield _view(file, pose, camera, name, table)


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file with their numbers, without remarks; empty ones are kept."""
    try:
        with open(file, encoding="utf-8") as stream:
            for number, line in enumerate(stream, 1):
                if not line.startswith("#"):
                    yield number, line.strip()
    except FileNotFoundError:
        raise FileError(f"{file}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{file}: cannot be read: {error}") from None


class BinaryFile:
    """A little-endian file that never gives more than it holds."""

    def __init__(self, file: Path) -> None:
        self.file, self.size = file, file.stat().st_size
        self.stream: IO[bytes] = open(file, "rb")  # noqa: SIM115

    def __enter__(self) -> BinaryFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    def bytes(self, n: int) -> bytes:
        if n > self.size - self.stream.tell():
            raise FileError(f"{self.file}: ends before what it announces; it is truncated")
        return self.stream.read(n)

    def take(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(form, self.bytes(struct.calcsize(form)))

    def count(self, least: int) -> int:
        """A number of things of at least so many bytes each, which must fit into what is left."""
        (n,) = self.take("<Q")
        if n * least > self.size - self.stream.tell():
            raise FileError(f"{self.file}: announces {n:,} entries, more than it can hold; it is damaged")
        return int(n)

    def name(self) -> str:
        """Characters up to a zero."""
        start = self.stream.tell()
        letters, zero, _ = self.stream.read(MOST_NAME).partition(b"\0")
        if not zero:
            raise FileError(f"{self.file}: a name without an end; it is damaged")
        self.stream.seek(start + len(letters) + 1)
        return letters.decode("utf-8", "replace")
