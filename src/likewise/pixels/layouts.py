"""Pairs on disk in published layouts: HPatches, KITTI 2012 and 2015, Sintel, Middlebury; and which reader takes what.

COLMAP's models are read by `reconstructions`, MegaDepth's index and the lists of RobotCar by `correspondences`.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from likewise.errors import FileError, InputError
from likewise.pixels.data import FlowDataset, FlowPair

FilePath: TypeAlias = str | os.PathLike[str]
Floats: TypeAlias = NDArray[np.float64]

LEVELS = ("I", "II", "III", "IV", "V")
"""HPatches' pairs 1–2, 1–3 … 1–6."""

LARGE = frozenset(
    {"i_contruction", "i_crownnight", "i_dc", "i_pencils", "i_whitebuilding", "v_artisans", "v_astronautis", "v_talent"}
)
"""The sequences of HPatches with pictures above 1600 × 1200, which D2-Net's protocol leaves out (108 stay)."""

PERTURBATION = 0.08
"""How far a generated homography moves a corner, at most, as a share of the sides: 29 px in the mean at 480 × 720."""


# ----------------------------------------------------------------------------------------------------- any data set


def read(path: FilePath, layout: str = "auto", **options: Any) -> FlowDataset:
    """The pairs at `path` in a published layout, told by what is there under "auto"; `options` go to its reader."""
    if layout != "auto" and layout not in LAYOUTS:
        raise InputError(f"layout: expected auto, {', '.join(LAYOUTS)}, got {layout!r}")
    found = _detected(Path(path)) if layout == "auto" else layout
    return LAYOUTS[found](path, **options)


def _detected(root: Path) -> str:
    """Which layout this is, by the files or folders that only it has."""
    from likewise.pixels import correspondences, reconstructions

    tests: tuple[tuple[str, Callable[[Path], bool]], ...] = (
        ("robotcar", correspondences.is_list),
        ("megadepth", correspondences.is_index),
        ("colmap", reconstructions.is_model),
        ("kitti", lambda r: _kitti_part(r) is not None),
        ("sintel", lambda r: _sintel_part(r) is not None),
        ("hpatches", lambda r: bool(_sequences(r))),
        ("middlebury", lambda r: bool(_middlebury_scenes(r))),
    )
    if not root.exists():
        raise FileError(f"{root}: no such file or folder")
    for name, test in tests:
        if test(root):
            return name
    raise FileError(f"{root}: none of the layouts {', '.join(LAYOUTS)} is to be found there")


# ------------------------------------------------------------------------------------------------------------ HPatches


def hpatches(
    path: FilePath,
    *,
    part: Literal["all", "viewpoint", "illumination"] = "all",
    levels: Iterable[int] = range(2, 7),
    generated: bool = False,
    large: bool = True,
    seed: int = 0,
) -> FlowDataset:
    """HPatches: folders v_… (viewpoint) and i_… (illumination) with 1.ppm (.jpg, .png) … 6.ppm and H_1_2 … H_1_6.

    Groups are "viewpoint I" … "illumination V", I for the pair 1–2. Under another light nothing moves, so LIFE draws
    the second picture of an illumination pair by a random homography; `generated` does so, with one for each pair that
    depends on nothing but `seed`, sequence, level and size. large=False leaves out the eight sequences of
    large pictures, as D2-Net's protocol of matching does.
    """
    root, kinds = Path(path), {"all": ("v", "i"), "viewpoint": ("v",), "illumination": ("i",)}
    if part not in kinds:
        raise InputError(f"part: expected {', '.join(kinds)}, got {part!r}")
    wanted = tuple(levels)
    if not wanted or not all(isinstance(k, int | np.integer) and 2 <= k <= 6 for k in wanted):
        raise InputError(f"levels: expected numbers of the second picture, 2 to 6, got {wanted}")
    folders = [f for f in _sequences(root) if f.name[0] in kinds[part] and (large or f.name not in LARGE)]
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


def random_homography(
    size: tuple[int, int], *, seed: int | tuple[int, ...], perturbation: float = PERTURBATION
) -> Floats:
    """The homography that moves each corner of an (h, w) picture by a share drawn from ±perturbation of its sides."""
    h, w = size
    corners = np.array([[0, 0], [w - 1, 0], [w - 1, h - 1], [0, h - 1]], dtype=np.float64)
    drawn = np.random.default_rng(seed).uniform(-perturbation, perturbation, (4, 2))
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
    raise FileError(f"{folder}: no picture {stem}.ppm (.jpg, .png)")


def matrix(path: Path) -> Floats:
    """A text file of nine numbers as a matrix (3, 3)."""
    try:
        text = path.read_text(encoding="utf-8")
        values = np.array([float(word) for word in text.split()])
    except FileNotFoundError:
        raise FileError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: not a matrix of numbers: {error}") from None
    if len(values) != 9 or not np.isfinite(values).all():
        raise FileError(f"{path}: expected nine numbers, got {len(values)}")
    return values.reshape(3, 3)


# --------------------------------------------------------------------------------------------------------------- KITTI

_KITTI = (("image_2", "kitti2015"), ("colored_0", "kitti2012"), ("image_0", "kitti2012"))
"""The folders of pictures: 2015's, then 2012's in colour and in grey."""


def kitti(path: FilePath, *, occluded: bool = True) -> FlowDataset:
    """KITTI 2012 and 2015: training/{image_2 | colored_0 | image_0}/000000_10.png, …_11.png and flow_occ/000000_10.png.

    With occluded=False the truth is flow_noc, without the pixels that leave the frame or are hidden.
    """
    found = _kitti_part(Path(path))
    if found is None:
        raise FileError(f"{path}: no training/ with image_2, colored_0 or image_0 and flow_occ; give KITTI's folder")
    root, pictures, name = found
    truths = sorted((root / ("flow_occ" if occluded else "flow_noc")).glob("*_10.png"))
    items = []
    for truth in truths:
        first, second = (root / pictures / f"{truth.name[:-7]}_{n}.png" for n in (10, 11))
        _there(truth, first, second)
        items.append(FlowPair(first, second, f"{name} {truth.name[:-7]}", name, flow=truth))
    if not items:
        raise FileError(f"{root}: no flow 000000_10.png in {'flow_occ' if occluded else 'flow_noc'}")
    return FlowDataset(tuple(items), name)


def _kitti_part(root: Path) -> tuple[Path, str, str] | None:
    for folder in (root / "training", root):
        for pictures, name in _KITTI:
            if (folder / pictures).is_dir() and any((folder / f).is_dir() for f in ("flow_occ", "flow_noc")):
                return folder, pictures, name
    return None


# -------------------------------------------------------------------------------------------------------------- Sintel


def sintel(path: FilePath, *, passes: Iterable[str] = ("clean", "final")) -> FlowDataset:
    """MPI Sintel: training/{clean, final}/scene/frame_0001.png, flow/scene/frame_0001.flo, occlusions/ where there are.

    A group is a pass. What occlusions/ marks is counted and also told apart.
    """
    root = _sintel_part(Path(path))
    if root is None:
        raise FileError(f"{path}: no training/ with clean or final and flow; give Sintel's folder")
    wanted = tuple(passes)
    if not wanted or not set(wanted) <= {"clean", "final", "albedo"}:
        raise InputError(f"passes: expected some of clean, final, albedo, got {wanted}")
    truths = sorted((root / "flow").glob("*/frame_*.flo"))
    items = [_sintel_pair(root, which, truth) for which in wanted if (root / which).is_dir() for truth in truths]
    if not items:
        raise FileError(f"{root}: no flow/scene/frame_0001.flo for {', '.join(wanted)}")
    return FlowDataset(tuple(items), "sintel")


def _sintel_part(root: Path) -> Path | None:
    parts = (root / "training", root)
    return next((p for p in parts if (p / "flow").is_dir() and any((p / d).is_dir() for d in ("clean", "final"))), None)


def _sintel_pair(root: Path, which: str, truth: Path) -> FlowPair:
    scene, number = truth.parent.name, _frame(truth)
    first, second = (root / which / scene / f"frame_{n:04d}.png" for n in (number, number + 1))
    _there(truth, first, second)
    hidden = root / "occlusions" / scene / f"frame_{number:04d}.png"
    name = f"{which} {scene} {number}"
    return FlowPair(first, second, name, which, flow=truth, occluded=hidden if hidden.is_file() else None)


def _frame(path: Path) -> int:
    found = re.fullmatch(r"frame_(\d+)", path.stem)
    if found is None:
        raise FileError(f"{path}: expected a name such as frame_0001{path.suffix}")
    return int(found[1])


# ---------------------------------------------------------------------------------------------------------- Middlebury


def middlebury(path: FilePath) -> FlowDataset:
    """Middlebury: scene/frame10.png, frame11.png and flow10.flo, in one folder or under other-data/, other-gt-flow/."""
    scenes = _middlebury_scenes(Path(path))
    if not scenes:
        raise FileError(f"{path}: no folder with frame10.png, frame11.png and flow10.flo; give Middlebury's")
    items = [FlowPair(d / "frame10.png", d / "frame11.png", d.name, "middlebury", flow=f) for d, f in scenes]
    return FlowDataset(tuple(items), "middlebury")


def _middlebury_scenes(root: Path) -> list[tuple[Path, Path]]:
    """Folders of pictures with their flow."""
    if not root.is_dir():
        return []
    data = next((root / d for d in ("other-data", "other-color-twoframes") if (root / d).is_dir()), root)
    truths = root / "other-gt-flow"
    places = [(d, (truths / d.name if truths.is_dir() else d) / "flow10.flo") for d in (root, *sorted(data.iterdir()))]
    return [(d, f) for d, f in places if f.is_file() and all((d / f"frame{n}.png").is_file() for n in (10, 11))]


# -------------------------------------------------------------------------------------------------------------- pieces


def _there(source: Path, *files: Path) -> None:
    for file in files:
        if not file.is_file():
            raise FileError(f"{source}: belongs to {file}, but there is no such file")


def within(name: str, source: FilePath) -> PurePosixPath:
    """A relative path out of a list, which must stay below the folder of the list."""
    path = PurePosixPath(name.strip().replace("\\", "/"))
    if not name.strip() or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise FileError(f"{source}: names {name!r}, which is outside of its folder")
    return path


def _colmap(path: FilePath, **options: Any) -> FlowDataset:
    from likewise.pixels.reconstructions import colmap

    return colmap(path, **options)


def _megadepth(path: FilePath, **options: Any) -> FlowDataset:
    from likewise.pixels.correspondences import megadepth

    return megadepth(path, **options)


def _robotcar(path: FilePath, **options: Any) -> FlowDataset:
    from likewise.pixels.correspondences import listed

    return listed(path, **options)


LAYOUTS: dict[str, Callable[..., FlowDataset]] = {
    "hpatches": hpatches,
    "kitti": kitti,
    "sintel": sintel,
    "middlebury": middlebury,
    "megadepth": _megadepth,
    "robotcar": _robotcar,
    "colmap": _colmap,
}
