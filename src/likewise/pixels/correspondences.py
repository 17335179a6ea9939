"""Pairs with sparse truth: lists of matching points (RobotCar, MegaDepth's test pairs), and MegaDepth's scene index."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from likewise.errors import FileError, InputError
from likewise.pixels.data import FlowDataset, FlowPair
from likewise.pixels.layouts import within
from likewise.pixels.objectarrays import object_arrays

FilePath: TypeAlias = str | os.PathLike[str]
Floats: TypeAlias = NDArray[np.float64]

COLUMNS = ("source_image", "target_image", "scene", "XA", "YA", "XB", "YB")
"""The columns of a list: the first picture and its points XA, YA; the second and its points XB, YB."""
MOST_LINE = 64 << 20
"""A line of a list that is longer than this many bytes is refused before it is read."""


# ------------------------------------------------------------------------------------------------- lists of points


def is_list(path: Path) -> bool:
    """Whether this is a list of matching points, or a folder that holds one."""
    try:
        return _list_in(path) is not None
    except FileError:
        return False


def listed(path: FilePath, *, pictures: FilePath | None = None) -> FlowDataset:
    """A list of matching points, as RANSAC-Flow published them: RobotCar (test6511.csv), MegaDepth (test1600Pairs.csv).

    The columns source_image, target_image, scene, XA, YA, XB, YB stand in any order; the points of a pair are numbers
    with ";" between, in pixels, XA, YA in the source and XB, YB in the target. Pictures lie in `pictures`, or in img/,
    imgs/, images/ or a folder named as the list, beside it, each under its scene ("/" for none). As in that protocol
    flow goes from the target (a) to the source (b). Points are read when a pair is loaded: the list has gigabytes.
    """
    file = _list_in(Path(path))
    if file is None:
        raise FileError(f"{path}: no list of matching points (.csv with the columns {', '.join(COLUMNS)})")
    folder = Path(pictures) if pictures is not None else _pictures(file)
    items = [_listed_pair(file, folder, row) for row in _rows(file)]
    if not items:
        raise FileError(f"{file}: lists no pair")
    return FlowDataset(tuple(items), file.stem)


def _list_in(path: Path) -> Path | None:
    files = [path] if path.is_file() else sorted(path.glob("*.csv")) if path.is_dir() else []
    return next((f for f in files if f.suffix == ".csv" and set(COLUMNS) <= set(_header(f))), None)


def _header(file: Path) -> list[str]:
    try:
        with open(file, "rb") as stream:
            return _cells(stream.readline(4096))
    except OSError as error:
        raise FileError(f"{file}: cannot be read: {error.strerror}") from None


def _cells(line: bytes) -> list[str]:
    """The cells of a line; no cell of such a list holds a comma."""
    try:
        return [cell.strip().strip('"') for cell in line.decode("utf-8").rstrip("\r\n").split(",")]
    except UnicodeDecodeError:
        return []


def _pictures(file: Path) -> Path:
    places = [file.parent / d for d in (file.stem, "img", "imgs", "images")]
    found = next((p for p in places if p.is_dir()), None)
    if found is None:
        raise FileError(f"{file}: no folder {', '.join(p.name for p in places)} beside it; say where its pictures are")
    return found


def _rows(file: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """The place in the file of each line, and its cells by column without the points."""
    columns = _header(file)
    with open(file, "rb") as stream:
        stream.readline()
        place = stream.tell()
        for number, line in enumerate(iter(lambda: stream.readline(MOST_LINE), b""), 2):
            if line.strip():
                yield place, _named_cells(file, number, columns, line, ("source_image", "target_image", "scene"))
            place = stream.tell()


def _named_cells(file: Path, number: int, columns: list[str], line: bytes, wanted: tuple[str, ...]) -> dict[str, str]:
    cells = _cells(line)
    if len(cells) != len(columns):
        raise FileError(f"{file}: line {number} has {len(cells)} cells; expected {len(columns)}, one a column")
    return {name: cells[columns.index(name)] for name in wanted}


def _listed_pair(file: Path, folder: Path, row: tuple[int, dict[str, str]]) -> FlowPair:
    place, cells = row
    scene = cells["scene"].strip("/")
    source, target = (
        folder / within(f"{scene}/{cells[name]}" if scene else cells[name], file)
        for name in ("source_image", "target_image")
    )
    name = f"{target.stem} – {source.stem}"
    return FlowPair(target, source, name, scene or file.stem, points=lambda: _points(file, place))


def _points(file: Path, place: int) -> tuple[Floats, Floats]:
    """The points of one pair, of its target and of its source."""
    with open(file, "rb") as stream:
        stream.seek(place)
        cells = _named_cells(file, 0, _header(file), stream.readline(MOST_LINE), ("XA", "YA", "XB", "YB"))
    try:
        xa, ya, xb, yb = (np.array(cells[c].split(";"), dtype=np.float64) for c in ("XA", "YA", "XB", "YB"))
    except ValueError as error:
        raise FileError(f"{file}: points that are not numbers: {error}") from None
    if not len(xa) == len(ya) == len(xb) == len(yb):
        raise FileError(f"{file}: a pair with {len(xa)}, {len(ya)}, {len(xb)} and {len(yb)} coordinates")
    return np.stack([xb, yb], axis=1), np.stack([xa, ya], axis=1)


# ----------------------------------------------------------------------------------------------- MegaDepth's index

_INDEX = ("image_paths", "intrinsics", "poses", "pair_infos", "overlap_matrix")


def is_index(path: Path) -> bool:
    """Whether this is MegaDepth's folder with scene_info/, or such a file."""
    return bool(_scenes(path))


def megadepth(
    path: FilePath,
    *,
    overlap: tuple[float, float] = (0.1, 1.0),
    most: int | None = None,
    points: bool = False,
    pictures: FilePath | None = None,
    seed: int = 0,
) -> FlowDataset:
    """MegaDepth by its scene index: scene_info/*.npz beside Undistorted_SfM/, as D2-Net or LoFTR made it.

    Both have image_paths, intrinsics and poses (world to camera, 4 × 4) of a scene; D2-Net's has overlap_matrix, and
    points3D_id_to_2D, which with `points` gives matching points; LoFTR's has pair_infos ((i, j), overlap, …). Pairs
    whose overlap lies in `overlap` are taken, with `most` so many a scene, drawn by `seed`. F follows from the cameras,
    whose principal points and points are moved by half a pixel, since COLMAP has the first pixel's centre at (½, ½). A
    group is a scene. Index files hold pickled objects; they are read as plain data, and nothing in them is called.
    """
    files = _scenes(Path(path))
    if not files:
        raise FileError(f"{path}: no scene_info/*.npz; give MegaDepth's folder, or one such file")
    low, high = overlap
    if not 0 <= low < high:
        raise InputError(f"overlap: expected two shares, the least and the most, got {overlap}")
    root = Path(pictures) if pictures is not None else _root(Path(path))
    items: list[FlowPair] = []
    for number, file in enumerate(files):
        scene = _Scene(file, root, points)
        pairs = scene.pairs(low, high)
        if most is not None and len(pairs) > most:
            pairs = pairs[np.sort(np.random.default_rng((seed, number)).choice(len(pairs), most, replace=False))]
        items += [scene.pair(int(i), int(j)) for i, j in pairs]
    if not items:
        raise FileError(f"{path}: no pair overlaps by {low:g} to {high:g}")
    return FlowDataset(tuple(items), "megadepth")


def _scenes(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if path.suffix == ".npz" else []
    folders = [f for f in sorted(path.glob("scene_info*")) if f.is_dir()] if path.is_dir() else []
    folders = folders or ([path] if path.name.startswith("scene_info") else [])
    return [file for folder in folders for file in sorted(folder.glob("*.npz"))]


def _root(path: Path) -> Path:
    """The folder that the paths of an index start from."""
    folder = path.parent if path.is_file() else path
    return folder.parent if folder.name.startswith("scene_info") else folder


class _Scene:
    """One file of the index."""

    def __init__(self, file: Path, root: Path, points: bool) -> None:
        names = (*_INDEX, "points3D_id_to_2D") if points else _INDEX
        self.file, self.root, self.held = file, root, object_arrays(file, names)
        missing = [n for n in ("image_paths", "intrinsics", "poses") if n not in self.held]
        if missing or not {"pair_infos", "overlap_matrix"} & set(self.held):
            raise FileError(f"{file}: has no {', '.join(missing) or 'pair_infos or overlap_matrix'}; no scene index")

    def pairs(self, low: float, high: float) -> NDArray[np.int64]:
        """The pairs (n, 2) of pictures that are there and overlap enough."""
        there = [isinstance(p, str) and p for p in np.atleast_1d(self.held["image_paths"])]
        try:
            found = self._overlapping(low, high)
        except (TypeError, ValueError, IndexError, KeyError, OverflowError) as error:
            raise FileError(f"{self.file}: its pairs are not (i, j), overlap: {error}") from None
        if any(not 0 <= k < len(there) for pair in found for k in pair):
            raise FileError(f"{self.file}: names a picture that it does not list")
        return np.array([p for p in found if there[p[0]] and there[p[1]]], dtype=np.int64).reshape(-1, 2)

    def _overlapping(self, low: float, high: float) -> list[tuple[int, int]]:
        if "pair_infos" in self.held:
            return [(int(info[0][0]), int(info[0][1])) for info in self.held["pair_infos"] if low <= info[1] <= high]
        shares = np.asarray(self.held["overlap_matrix"], dtype=np.float64)
        return [(int(i), int(j)) for i, j in np.argwhere((shares >= low) & (shares <= high)) if i != j]

    def pair(self, i: int, j: int) -> FlowPair:
        """Two pictures with their cameras, and with their common points where they were asked for."""
        (Ki, Ti), (Kj, Tj) = self._camera(i), self._camera(j)
        relative = Tj @ np.linalg.inv(Ti)
        a, b = (self.root / within(str(self.held["image_paths"][k]), self.file) for k in (i, j))
        R, t = relative[:3, :3], relative[:3, 3]
        return FlowPair(
            *(a, b, f"{a.stem} – {b.stem}", self.file.stem),
            points=(lambda: self._common(i, j)) if "points3D_id_to_2D" in self.held else None,
            **between(Ki, Kj, R, t),
        )

    def _camera(self, k: int) -> tuple[Floats, Floats]:
        try:
            K = np.array(self.held["intrinsics"][k], dtype=np.float64).reshape(3, 3)
            T = np.eye(4)
            pose = np.array(self.held["poses"][k], dtype=np.float64)
            T[: pose.shape[0]] = pose
            np.linalg.inv(T), np.linalg.inv(K)
        except (ValueError, TypeError, IndexError) as error:
            raise FileError(f"{self.file}: picture {k} has no camera: {error}") from None
        if not (np.isfinite(K).all() and np.isfinite(T).all()):
            raise FileError(f"{self.file}: picture {k} has no camera: a number is not finite")
        K[:2, 2] -= 0.5
        return K, T

    def _common(self, i: int, j: int) -> tuple[Floats, Floats]:
        try:
            one, two = self.held["points3D_id_to_2D"][i], self.held["points3D_id_to_2D"][j]
            shared = [k for k in one if k in two]
            a, b = (np.array([at[k] for k in shared], dtype=np.float64).reshape(-1, 2) - 0.5 for at in (one, two))
        except (TypeError, ValueError, IndexError, KeyError) as error:
            raise FileError(f"{self.file}: the points of pictures {i} and {j} are damaged: {error}") from None
        return a, b


def between(Ka: Floats, Kb: Floats, R: Floats, t: Floats) -> dict[str, Any]:
    """The cameras of a pair and the fundamental matrix that follows from them, as FlowPair takes them."""
    import torch

    from likewise.pixels.geometry import fundamental

    cameras = [torch.from_numpy(np.ascontiguousarray(m)) for m in (Ka, Kb, R, t)]
    F = fundamental(*cameras).numpy() if float(np.linalg.norm(t)) > 0 else None
    return {"F": F, "Ka": Ka, "Kb": Kb, "R": R, "t": t}
