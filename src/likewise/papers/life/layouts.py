"""Pairs in published layouts: HPatches, KITTI, Sintel, Middlebury, lists of points, MegaDepth's index, COLMAP."""

from __future__ import annotations

import io
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from likewise import media
from likewise.errors import FileError, InputError
from likewise.papers import all_there, read_text, within
from likewise.pixels.data import FlowDataset, FlowPair
from likewise.pixels.sfm import Survey, relative

FilePath: TypeAlias = str | os.PathLike[str]
Floats: TypeAlias = NDArray[np.float64]

LEVELS = ("I", "II", "III", "IV", "V")
"""HPatches' pairs 1–2, 1–3 … 1–6."""

PERTURBATION = 0.08
"""How far a generated homography moves a corner, at most, as a share of the sides: 29 px in the mean at 480 × 720."""


# ----------------------------------------------------------------------------------------------------- any data set


def read(path: FilePath, layout: str = "auto", **options: Any) -> FlowDataset:
    """The pairs at `path` in a published layout, told by what is there under "auto"; `options` go to its reader."""
    root = Path(path)
    if layout != "auto" and layout not in LAYOUTS:
        raise InputError(f"layout: expected auto, {', '.join(LAYOUTS)}, got {layout!r}")
    if not root.exists():
        raise FileError(f"{root}: no such file or folder")
    chosen = layout if layout != "auto" else next((name for name, (_, test) in LAYOUTS.items() if test(root)), None)
    if chosen is None:
        raise FileError(f"{root}: none of the layouts {', '.join(LAYOUTS)} is to be found there")
    return LAYOUTS[chosen][0](path, **options)


# ------------------------------------------------------------------------------------------------------------ HPatches


def hpatches(
    path: FilePath,
    *,
    part: Literal["all", "viewpoint", "illumination"] = "all",
    levels: Iterable[int] = range(2, 7),
    generated: bool = False,
    seed: int = 0,
) -> FlowDataset:
    """HPatches: folders v_… (viewpoint) and i_… (illumination) with 1.ppm (.jpg, .png) … 6.ppm and H_1_2 … H_1_6.

    Groups are "viewpoint I" … "illumination V", I for the pair 1–2. Under another light nothing moves, so LIFE draws
    the second image of an illumination pair by a random homography; `generated` does so, with one for each pair that
    depends on nothing but `seed`, sequence, level and size.
    """
    root, kinds = Path(path), {"all": ("v", "i"), "viewpoint": ("v",), "illumination": ("i",)}
    if part not in kinds:
        raise InputError(f"part: expected {', '.join(kinds)}, got {part!r}")
    wanted = tuple(levels)
    if not wanted or not all(isinstance(k, int | np.integer) and 2 <= k <= 6 for k in wanted):
        raise InputError(f"levels: expected numbers of the second image, 2 to 6, got {wanted}")
    folders = [f for f in _sequences(root) if f.name[0] in kinds[part]]
    if not folders:
        raise FileError(f"{root}: no folder v_… or i_… of HPatches for part={part!r}; give the folder that holds them")
    items = [_hpatch(f, k, generated and f.name[0] == "i", seed) for f in folders for k in wanted]
    return FlowDataset(tuple(items), "hpatches")


def _sequences(root: Path) -> list[Path]:
    """The folders v_… and i_… that have homographies, sorted; the one itself where it was given."""
    if not root.is_dir():
        return []
    inside = [root] if re.match(r"[iv]_", root.name) else sorted(root.iterdir())
    return [f for f in inside if re.match(r"[iv]_", f.name) and (f / "H_1_2").is_file()]


def _hpatch(folder: Path, level: int, generated: bool, seed: int) -> FlowPair:
    one, other = _picture(folder, "1"), _picture(folder, str(level))
    H = matrix(folder / f"H_1_{level}")
    kind = {"v": "viewpoint", "i": "illumination"}[folder.name[0]]
    name, group = f"{folder.name} 1–{level}", f"{kind} {LEVELS[level - 2]}"
    if not generated:
        return FlowPair(one, other, name, group, homography=H)
    key = seed, zlib.crc32(f"{folder.name} {level}".encode())
    return FlowPair(one, other, name, group, homography=H, seen_through=lambda size: random_homography(size, seed=key))


def random_homography(size: tuple[int, int], *, seed: int | tuple[int, ...]) -> Floats:
    """The homography that moves each corner of an (h, w) image by a share drawn from ±PERTURBATION of its sides."""
    h, w = size
    corners = np.array([[0, 0], [w - 1, 0], [w - 1, h - 1], [0, h - 1]], dtype=np.float64)
    drawn = np.random.default_rng(seed).uniform(-PERTURBATION, PERTURBATION, (4, 2))
    return _through_corners(corners, corners + drawn * (w, h))


def _through_corners(start: Floats, end: Floats) -> Floats:
    """The H with H start_i ~ end_i for four points: eight linear equations in its entries, the last of which is 1."""
    rows, right = [], []
    for (x, y), (u, v) in zip(start, end, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        right += [u, v]
    entries = np.linalg.solve(np.array(rows), np.array(right))
    return np.append(entries, 1.0).reshape(3, 3)


def _picture(folder: Path, stem: str) -> Path:
    for suffix in (".ppm", ".jpg", ".png", ".jpeg"):
        if (folder / f"{stem}{suffix}").is_file():
            return folder / f"{stem}{suffix}"
    raise FileError(f"{folder}: no image {stem}.ppm (.jpg, .png)")


def matrix(path: Path) -> Floats:
    """A text file of nine numbers as a matrix (3, 3)."""
    try:
        values = np.array([float(word) for word in read_text(path).split()])
    except ValueError as error:
        raise FileError(f"{path}: not a matrix of numbers: {error}") from None
    if len(values) != 9 or not np.isfinite(values).all():
        raise FileError(f"{path}: expected nine numbers, got {len(values)}")
    return values.reshape(3, 3)


# --------------------------------------------------------------------------------------------------------------- KITTI

_KITTI = (("image_2", "kitti2015"), ("colored_0", "kitti2012"), ("image_0", "kitti2012"))
"""The folders of images: 2015's, then 2012's in colour and in grey."""


def kitti(path: FilePath) -> FlowDataset:
    """KITTI 2012, 2015: training/{image_2 | colored_0 | image_0}/000000_10.png, …_11.png and flow_occ/000000_10.png."""
    found = _kitti_part(Path(path))
    if found is None:
        raise FileError(f"{path}: no training/ with image_2, colored_0 or image_0 and flow_occ; give KITTI's folder")
    root, pictures, name = found
    items = []
    for truth in sorted((root / "flow_occ").glob("*_10.png")):
        first, second = all_there([root / pictures / f"{truth.name[:-7]}_{n}.png" for n in (10, 11)], truth)
        items.append(FlowPair(first, second, f"{name} {truth.name[:-7]}", name, flow=truth))
    if not items:
        raise FileError(f"{root}: no flow 000000_10.png in flow_occ")
    return FlowDataset(tuple(items), name)


def _kitti_part(root: Path) -> tuple[Path, str, str] | None:
    for folder in (root / "training", root):
        for pictures, name in _KITTI:
            if (folder / pictures).is_dir() and (folder / "flow_occ").is_dir():
                return folder, pictures, name
    return None


# -------------------------------------------------------------------------------------------------------------- Sintel

_PASSES = ("clean", "final")


def sintel(path: FilePath) -> FlowDataset:
    """MPI Sintel: training/{clean, final}/scene/frame_0001.png, flow/scene/frame_0001.flo, occlusions/ where there are.

    A group is a pass. What occlusions/ marks is counted and also told apart.
    """
    root = _sintel_part(Path(path))
    if root is None:
        raise FileError(f"{path}: no training/ with clean or final and flow; give Sintel's folder")
    truths, passes = sorted((root / "flow").glob("*/frame_*.flo")), [d for d in _PASSES if (root / d).is_dir()]
    items = [_sintel_pair(root, which, truth) for which in passes for truth in truths]
    if not items:
        raise FileError(f"{root}: no flow/scene/frame_0001.flo for {', '.join(passes)}")
    return FlowDataset(tuple(items), "sintel")


def _sintel_part(root: Path) -> Path | None:
    parts = (root / "training", root)
    return next((p for p in parts if (p / "flow").is_dir() and any((p / d).is_dir() for d in _PASSES)), None)


def _sintel_pair(root: Path, which: str, truth: Path) -> FlowPair:
    scene, digits = truth.parent.name, truth.stem.removeprefix("frame_")
    if not digits.isdecimal():
        raise FileError(f"{truth}: expected a name such as frame_0001.flo")
    number = int(digits)
    first, second = all_there([root / which / scene / f"frame_{n:04d}.png" for n in (number, number + 1)], truth)
    hidden = root / "occlusions" / scene / f"frame_{number:04d}.png"
    name = f"{which} {scene} {number}"
    return FlowPair(first, second, name, which, flow=truth, occluded=hidden if hidden.is_file() else None)


# ---------------------------------------------------------------------------------------------------------- Middlebury


def middlebury(path: FilePath) -> FlowDataset:
    """Middlebury: scene/frame10.png, frame11.png and flow10.flo, in one folder or under other-data/, other-gt-flow/."""
    scenes = _middlebury_scenes(Path(path))
    if not scenes:
        raise FileError(f"{path}: no folder with frame10.png, frame11.png and flow10.flo; give Middlebury's")
    items = [FlowPair(d / "frame10.png", d / "frame11.png", d.name, "middlebury", flow=f) for d, f in scenes]
    return FlowDataset(tuple(items), "middlebury")


def _middlebury_scenes(root: Path) -> list[tuple[Path, Path]]:
    """Folders of images with their flow."""
    if not root.is_dir():
        return []
    data = next((root / d for d in ("other-data", "other-color-twoframes") if (root / d).is_dir()), root)
    truths = root / "other-gt-flow"
    places = [(d, (truths / d.name if truths.is_dir() else d) / "flow10.flo") for d in (root, *sorted(data.iterdir()))]
    return [(d, f) for d, f in places if f.is_file() and all((d / f"frame{n}.png").is_file() for n in (10, 11))]


COLUMNS = ("source_image", "target_image", "scene", "XA", "YA", "XB", "YB")
"""The columns of a list: the first image and its points XA, YA; the second and its points XB, YB."""
MOST_LINE = 64 << 20
"""A line of a list that is longer than this many bytes is refused before it is read."""


# ------------------------------------------------------------------------------------------------- lists of points


def listed(path: FilePath) -> FlowDataset:
    """A list of matching points, as RANSAC-Flow published them: RobotCar (test6511.csv), MegaDepth (test1600Pairs.csv).

    The columns source_image, target_image, scene, XA, YA, XB, YB stand in any order; the points of a pair are numbers
    with ";" between, in pixels, XA, YA in the source and XB, YB in the target. Images lie in img/,
    imgs/, images/ or a folder named as the list, beside it, each under its scene ("/" for none). As in that protocol
    flow goes from the target (a) to the source (b). Points are read when a pair is loaded: the list has gigabytes.
    """
    file = _list_in(Path(path))
    if file is None:
        raise FileError(f"{path}: no list of matching points (.csv with the columns {', '.join(COLUMNS)})")
    folder = _first_folder([file.parent / d for d in (file.stem, "img", "imgs", "images")], file)
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
    return [cell.strip().strip('"') for cell in line.decode("utf-8", "replace").rstrip("\r\n").split(",")]


def _first_folder(places: list[Path], source: Path) -> Path:
    """Where the images of a list or model are."""
    found = next((p for p in places if p.is_dir()), None)
    if found is None:
        names = ", ".join(dict.fromkeys(p.name for p in places))
        raise FileError(f"{source}: no folder {names} beside it, where its images are")
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


def object_arrays(path: FilePath, names: Iterable[str], *, most_bytes: int = media.MOST_ARRAY_BYTES) -> dict[str, Any]:
    """Those of the named arrays that an .npz holds, those of Python objects, too; nothing in it is ever called."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {m.filename.removesuffix(".npy"): m for m in archive.infolist()}
            chosen = {k: m for k, m in members.items() if k in set(names)}
            total = sum(m.file_size for m in chosen.values())
            if total > most_bytes:
                raise FileError(f"{path}: declares {total:,} bytes, more than {most_bytes:,} allowed")
            return {k: _member(archive.read(m), f"{path}: {k}") for k, m in chosen.items()}
    except FileError:
        raise
    except Exception as error:  # there is no such file, or a damaged archive can raise anything
        raise FileError(f"{path}: cannot be read as plain arrays: {error or type(error).__name__}") from None


def _member(data: bytes, where: str) -> NDArray[Any]:
    """One array of an .npz: NumPy's own format, or, of objects, a header and a pickle."""
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    if not reader(stream)[2].hasobject:
        return np.asarray(np.lib.format.read_array(io.BytesIO(data), allow_pickle=False))
    array = media.unpickle_arrays(stream.read(), where)
    if not isinstance(array, np.ndarray):
        raise FileError(f"{where}: a {type(array).__name__} where an array was expected")
    return array


_INDEX = ("image_paths", "intrinsics", "poses", "pair_infos", "overlap_matrix")


def megadepth(path: FilePath, *, overlap: tuple[float, float] = (0.1, 1.0)) -> FlowDataset:
    """MegaDepth by its scene index: scene_info/*.npz beside Undistorted_SfM/, as D2-Net or LoFTR made it.

    Both have image_paths, intrinsics and poses (world to camera, 4 × 4) of a scene; D2-Net's has overlap_matrix,
    LoFTR's has pair_infos ((i, j), overlap, …). Pairs whose overlap lies in `overlap` are taken. F follows from the
    cameras, whose principal points are moved by half a pixel, since COLMAP has the first pixel's centre at (½, ½). A
    group is a scene. Index files hold pickled objects; they are read as plain data, and nothing in them is called.
    """
    files = _scenes(Path(path))
    if not files:
        raise FileError(f"{path}: no scene_info/*.npz; give MegaDepth's folder, or one such file")
    low, high = overlap
    if not 0 <= low < high:
        raise InputError(f"overlap: expected two shares, the least and the most, got {overlap}")
    scenes = [_Scene(file) for file in files]
    items = [scene.pair(int(i), int(j)) for scene in scenes for i, j in scene.pairs(low, high)]
    if not items:
        raise FileError(f"{path}: no pair overlaps by {low:g} to {high:g}")
    return FlowDataset(tuple(items), "megadepth")


def _scenes(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if path.suffix == ".npz" else []
    folders = [f for f in sorted(path.glob("scene_info*")) if f.is_dir()] if path.is_dir() else []
    folders = folders or ([path] if path.name.startswith("scene_info") else [])
    return [file for folder in folders for file in sorted(folder.glob("*.npz"))]


class _Scene:
    """One file of the index; its paths start from the folder that holds scene_info."""

    def __init__(self, file: Path) -> None:
        folder = file.parent
        self.root = folder.parent if folder.name.startswith("scene_info") else folder
        self.file, self.held = file, object_arrays(file, _INDEX)
        missing = [n for n in ("image_paths", "intrinsics", "poses") if n not in self.held]
        if missing or not {"pair_infos", "overlap_matrix"} & set(self.held):
            raise FileError(f"{file}: has no {', '.join(missing) or 'pair_infos or overlap_matrix'}; no scene index")

    def pairs(self, low: float, high: float) -> NDArray[np.int64]:
        """The pairs (n, 2) of images that are there and overlap enough."""
        there = [isinstance(p, str) and p for p in np.atleast_1d(self.held["image_paths"])]
        try:
            found = self._overlapping(low, high)
        except (TypeError, ValueError, IndexError, KeyError, OverflowError) as error:
            raise FileError(f"{self.file}: its pairs are not (i, j), overlap: {error}") from None
        if any(not 0 <= k < len(there) for pair in found for k in pair):
            raise FileError(f"{self.file}: names an image that it does not list")
        return np.array([p for p in found if there[p[0]] and there[p[1]]], dtype=np.int64).reshape(-1, 2)

    def _overlapping(self, low: float, high: float) -> list[tuple[int, int]]:
        if "pair_infos" in self.held:
            return [(int(info[0][0]), int(info[0][1])) for info in self.held["pair_infos"] if low <= info[1] <= high]
        shares = np.asarray(self.held["overlap_matrix"], dtype=np.float64)
        return [(int(i), int(j)) for i, j in np.argwhere((shares >= low) & (shares <= high)) if i != j]

    def pair(self, i: int, j: int) -> FlowPair:
        """Two images with their cameras."""
        (Ki, Ti), (Kj, Tj) = self._camera(i), self._camera(j)
        moved = Tj @ np.linalg.inv(Ti)
        a, b = (self.root / within(str(self.held["image_paths"][k]), self.file) for k in (i, j))
        name = f"{a.stem} – {b.stem}"
        return FlowPair(a, b, name, self.file.stem, **relative(Ki, Kj, moved[:3, :3], moved[:3, 3]))

    def _camera(self, k: int) -> tuple[Floats, Floats]:
        try:
            K = np.array(self.held["intrinsics"][k], dtype=np.float64).reshape(3, 3)
            T = np.eye(4)
            pose = np.array(self.held["poses"][k], dtype=np.float64)
            T[: pose.shape[0]] = pose
            np.linalg.inv(T), np.linalg.inv(K)
        except (ValueError, TypeError, IndexError) as error:
            raise FileError(f"{self.file}: image {k} has no camera: {error}") from None
        if not (np.isfinite(K).all() and np.isfinite(T).all()):
            raise FileError(f"{self.file}: image {k} has no camera: a number is not finite")
        K[:2, 2] -= 0.5
        return K, T


LEAST = 30
"""Points that two photos must share, unless asked otherwise."""


def colmap(path: FilePath, *, least: int = LEAST) -> FlowDataset:
    """A COLMAP model of undistorted photos: pairs that share `least` 3-D points, with F, cameras and those points.

    `path` is the folder of cameras, images and points3D (.txt or .bin), or one that holds it as sparse/ or sparse/0;
    photos lie in images/ beside it. Cameras with
    distortion are refused: colmap image_undistorter makes them pinholes.
    """
    folder = _model(Path(path))
    if folder is None:
        raise FileError(f"{path}: no cameras and images (.txt or .bin) of COLMAP, there or in sparse/ or sparse/0")
    survey, places = Survey.read(folder), (Path(path), folder, folder.parent, folder.parent.parent)
    root = _first_folder([p / "images" for p in places], folder)
    pairs = survey.overlaps(least)
    if not len(pairs):
        raise FileError(f"{folder}: no two of {len(survey.photos)} photos share {least} points; ask for fewer")
    items = [_colmap_pair(survey, folder, root, int(i), int(j)) for i, j in pairs]
    return FlowDataset(tuple(items), Path(path).resolve().name)


def _colmap_pair(survey: Survey, folder: Path, root: Path, i: int, j: int) -> FlowPair:
    a, b = (root / within(survey.photos[k].name, folder) for k in (i, j))
    name = f"{a.stem} – {b.stem}"
    return FlowPair(a, b, name, "colmap", points=lambda: survey.common(i, j)[1:], **survey.cameras(i, j))


def _model(path: Path) -> Path | None:
    places = (path, path / "sparse", path / "sparse" / "0", path / "dense" / "sparse")
    return next((p for p in places if any((p / f"cameras.{s}").is_file() for s in ("bin", "txt"))), None)


LAYOUTS: dict[str, tuple[Callable[..., FlowDataset], Callable[[Path], bool]]] = {
    "robotcar": (listed, lambda root: _list_in(root) is not None),
    "megadepth": (megadepth, lambda root: bool(_scenes(root))),
    "colmap": (colmap, lambda root: _model(root) is not None),
    "kitti": (kitti, lambda root: _kitti_part(root) is not None),
    "sintel": (sintel, lambda root: _sintel_part(root) is not None),
    "hpatches": (hpatches, lambda root: bool(_sequences(root))),
    "middlebury": (middlebury, lambda root: bool(_middlebury_scenes(root))),
}
"""The readers by name, each with the test by which "auto" tells it, in this order."""
