"""Public data sets as they are published, and what their images become: kinship, people, traffic, time series."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from skimage.feature import hog

from likewise import media
from likewise.errors import FileError, MissingExtra, ShapeError
from likewise.papers import all_there, read_text
from likewise.sets.data import FilePath, SetCollection, block_index, children, folder, grey, resize, signature
from likewise.sets.transport import Index
from likewise.types import Array, Signature

Split = tuple[Index, Index]


# ── features of the paper's applications ──────────────────────────────────────────────────────────────────────────


def block_hog(image: Any, grid: tuple[int, int] = (8, 8), *, orientations: int = 9) -> Array:
    """Histograms (blocks, orientations) of oriented gradients, one a block of the grid, row by row, of unit length."""
    pixels = grey(image)
    block_index(pixels.shape, grid)  # refuses a grid finer than the image
    h, w = pixels.shape[0] // grid[0], pixels.shape[1] // grid[1]
    cells = hog(
        pixels[: h * grid[0], : w * grid[1]],
        orientations=orientations,
        pixels_per_cell=(h, w),
        cells_per_block=(1, 1),
        block_norm="L2",
    )
    return np.asarray(cells, dtype=np.float64).reshape(grid[0] * grid[1], orientations)


def motion_window(frames: Sequence[Any]) -> Array:
    """The frames (n, 48, 48), grey, resized to 80 × 60, cut to the window in which they change most.

    Motion is Σ_t |x_{t+1} − x_t| over the window; of equal windows the first, from the top. One window a video.
    """
    if len(frames) == 0:
        raise ShapeError("frames: expected at least one frame, got none")
    small = np.stack([resize(grey(f), (60, 80)) for f in frames])
    T = np.pad(np.abs(np.diff(small, axis=0)).sum(axis=0), ((1, 0), (1, 0))).cumsum(axis=0).cumsum(axis=1)
    motion = T[48:, 48:] - T[:-48, 48:] - T[48:, :-48] + T[:-48, :-48]
    top, left = np.unravel_index(int(np.round(motion, 9).argmax()), motion.shape)
    return np.ascontiguousarray(small[:, top : top + 48, left : left + 48])


# ── kinship ───────────────────────────────────────────────────────────────────────────────────────────────────────

RELATIONS = {"fs": "father-son", "fd": "father-dau", "ms": "mother-son", "md": "mother-dau"}


@dataclass(frozen=True, eq=False)
class Kinship:
    """Faces and their official pairs: image i is paths[i] of families[i] ("fs_240") under relations[i] ("fs").

    Pair p is images pairs[p] (parent, child), related if kin[p], of fold folds[p] in 1 … 5.
    """

    paths: tuple[Path, ...]
    families: tuple[str, ...]
    relations: tuple[str, ...]
    pairs: Index
    kin: NDArray[np.bool_]
    folds: Index

    @property
    def pair_relations(self) -> NDArray[np.str_]:
        """The relation of each pair."""
        return np.asarray(self.relations)[self.pairs[:, 0]]


def kinfacew(path: FilePath) -> Kinship:
    """Read KinFaceW-I or -II: images/father-son/fs_001_1.jpg …, meta_data/fs_pairs.mat … with five official folds."""
    root = folder(path)
    rows = [(relation, row) for relation in RELATIONS for row in _kin_rows(root, relation)]
    names = sorted({(relation, name) for relation, (_, _, one, two) in rows for name in (one, two)})
    where = {name: i for i, (_, name) in enumerate(names)}
    return Kinship(
        tuple(all_there([root / "images" / RELATIONS[r] / name for r, name in names], root / "meta_data")),
        tuple(name[: name.rindex("_")] for _, name in names),
        tuple(relation for relation, _ in names),
        np.array([[where[one], where[two]] for _, (_, _, one, two) in rows], dtype=np.int64),
        np.array([kin for _, (_, kin, _, _) in rows], dtype=bool),
        np.array([fold for _, (fold, _, _, _) in rows], dtype=np.int64),
    )


def _kin_rows(root: Path, relation: str) -> list[tuple[int, bool, str, str]]:
    """fold, kin, first and second image of each official pair of one relation."""
    path = root / "meta_data" / f"{relation}_pairs.mat"
    table = _mat(path, "pairs")
    if table.ndim != 2 or table.shape[1] != 4:
        raise FileError(f"{path}: pairs has shape {table.shape}, expected (n, 4): fold, kin, image 1, image 2")
    try:
        rows = [(int(r[0].item()), bool(r[1].item()), str(r[2].item()), str(r[3].item())) for r in table]
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise FileError(f"{path}: a row is not fold, kin, image 1, image 2: {error}") from None
    for name in (name for row in rows for name in row[2:]):
        if not re.fullmatch(rf"{relation}_\d+_[12]\.\w+", name):
            raise FileError(f"{path}: image name {name!r}, expected one like {relation}_001_1.jpg")
    return rows


# ── people, seen by two cameras ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class ReId:
    """Tracklets of people seen by two cameras: a[i] and b[i] are the images of persons[i] from camera A and B.

    `splits` are the official (train, test) index pairs, empty where the data set has none.
    """

    persons: tuple[str, ...]
    a: tuple[tuple[Path, ...], ...]
    b: tuple[tuple[Path, ...], ...]
    splits: tuple[Split, ...] = ()


def prid2011(path: FilePath) -> ReId:
    """Read PRID 2011: multi_shot/cam_a/person_0001/*.png and cam_b."""
    root = folder(path, "prid_2011", "PRID2011") / "multi_shot"
    return _two_cameras(root / "cam_a", root / "cam_b")


def two_seasons(path: FilePath, shots: int = 4) -> ReId:
    """Read a walk that was taken twice, reference/*.jpg and query/*.jpg: stretches of so many photos instead of people.

    The n-th photo of one is the place of the n-th of the other; what is over at the end is left out.
    """
    a, b = (media.images(folder(path) / side) for side in ("reference", "query"))
    starts = range(0, len(a) - shots + 1, shots)
    if len(a) != len(b) or not starts:
        raise FileError(f"{path}: expected as many photos in reference/ as in query/, {shots} or more")
    first, second = (tuple(tuple(side[i : i + shots]) for i in starts) for side in (a, b))
    return ReId(tuple(a[i].stem for i in starts), first, second)


def ilids_vid(path: FilePath) -> ReId:
    """Read iLIDS-VID: i-LIDS-VID/sequences/cam1/person001/*.png, cam2, and the ten official splits of people.

    In the splits file the first half of each row tests and the rest trains (Wang et al. 2014); its numbers count the
    person folders from 1.
    """
    root = folder(path)
    inner = folder(root, "i-LIDS-VID") / "sequences"
    read = _two_cameras(inner / "cam1", inner / "cam2")
    file = root / "train-test people splits" / "train_test_splits_ilidsvid.mat"
    if not file.is_file():
        return read
    everyone = sorted({c.stem for camera in ("cam1", "cam2") for c in children(inner / camera)})
    place = {name: i for i, name in enumerate(read.persons)}
    return replace(read, splits=tuple(_ilids_split(file, row, everyone, place) for row in _mat(file, "ls_set")))


def _ilids_split(file: Path, row: NDArray[Any], everyone: list[str], place: dict[str, int]) -> Split:
    numbers = np.asarray(row).ravel()
    if numbers.dtype.kind not in "biuf" or not (np.isfinite(numbers) & (numbers == np.round(numbers))).all():
        raise FileError(f"{file}: a split is not a list of whole numbers")
    if sorted(numbers.tolist()) != list(range(1, len(everyone) + 1)):
        raise FileError(f"{file}: a split does not name each of the {len(everyone)} people once")
    names = [everyone[int(i) - 1] for i in numbers]
    half = len(names) // 2
    test, train = ([place[n] for n in part if n in place] for part in (names[:half], names[half:]))
    return np.array(sorted(train), dtype=np.int64), np.array(sorted(test), dtype=np.int64)


def _two_cameras(folder_a: Path, folder_b: Path) -> ReId:
    """The people that both cameras saw: a folder a person, with at least one image."""
    a, b = ({c.name: tuple(media.images(c)) for c in children(folder(d)) if c.is_dir()} for d in (folder_a, folder_b))
    both = [name for name in a if a[name] and b.get(name)]
    if not both:
        raise FileError(f"{folder_a}: no person is in both cameras")
    return ReId(tuple(both), tuple(a[n] for n in both), tuple(b[n] for n in both))


# ── traffic ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class Traffic:
    """Videos with labels (light, medium, heavy) and the official (train, test) splits."""

    videos: tuple[Path, ...]
    labels: tuple[str, ...]
    splits: tuple[Split, ...]

    def sets(self, k: int | None = 8, *, seed: int = 0) -> SetCollection:
        """One set a video: grey frames, 80 × 60, the 48 × 48 window of most motion, k-means centres of frames."""
        windows = (motion_window(list(media.frames(v))) for v in self.videos)
        signatures = [signature(w.reshape(len(w), -1), k, seed) for w in windows]
        return SetCollection(signatures, labels=np.asarray(self.labels))


def ucsd_traffic(path: FilePath) -> Traffic:
    """Read the UCSD traffic videos: video/*.avi, ImageMaster (number, name, class), EvalSet_train and EvalSet_test.

    The two EvalSet files have a line a split: numbers of ImageMaster with commas between.
    """
    root = folder(path, "trafficdb")
    master = _master(root / "ImageMaster")
    videos = all_there([root / "video" / f"{name}.avi" for name, _ in master.values()], root / "ImageMaster")
    place = {number: i for i, number in enumerate(master)}
    train, test = (_eval_set(root / f"EvalSet_{part}", place) for part in ("train", "test"))
    if len(train) != len(test):
        raise FileError(f"{root}: {len(train)} training splits but {len(test)} test splits")
    return Traffic(tuple(videos), tuple(label for _, label in master.values()), tuple(zip(train, test, strict=True)))


def _master(path: Path) -> dict[int, tuple[str, str]]:
    """Number → name and class of each video, in the order of the numbers."""
    lines = [line.split() for line in read_text(path).splitlines() if line.strip() and not line.startswith("#")]
    try:
        rows = {int(fields[0]): (fields[1], fields[2]) for fields in lines}
    except (IndexError, ValueError):
        raise FileError(f"{path}: expected lines of number, name, class") from None
    for name, _ in rows.values():
        if not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
            raise FileError(f"{path}: {name!r} is not the name of a video")
    if not rows:
        raise FileError(f"{path}: names no video")
    return dict(sorted(rows.items()))


def _eval_set(path: Path, place: dict[int, int]) -> list[Index]:
    """The videos of each split."""
    try:
        splits = [
            [int(n) for n in re.split(r"[,\s]+", line.strip(" ,\t\r"))]
            for line in read_text(path).splitlines()
            if line.strip()
        ]
    except ValueError:
        raise FileError(f"{path}: expected one line a split, numbers with commas between") from None
    unknown = [n for split in splits for n in split if n not in place]
    if unknown:
        raise FileError(f"{path}: a split names video {unknown[0]}, which is not in ImageMaster")
    return [np.array([place[n] for n in split], dtype=np.int64) for split in splits]


# ── time series ───────────────────────────────────────────────────────────────────────────────────────────────────


def time_series(train: FilePath, test: FilePath) -> tuple[SetCollection, Split]:
    """Two .ts files as sets and their split: each moment of a series is a point, with a coordinate a channel."""
    (first, y), (second, z) = (read_ts(path) for path in (train, test))
    sets = SetCollection([Signature(x) for x in first + second], labels=np.asarray(y + z))
    return sets, (np.arange(len(first)), np.arange(len(first), len(sets)))


def shipped_series(name: str) -> tuple[SetCollection, Split]:
    """A data set in the wheel of aeon by its name ("JapaneseVowels"), whose files are found without importing aeon."""
    spec = find_spec("aeon")
    if spec is None or spec.origin is None:
        raise MissingExtra("aeon", "bench")
    held = Path(spec.origin).parent / "datasets" / "data" / name
    return time_series(held / f"{name}_TRAIN.ts", held / f"{name}_TEST.ts")


def read_ts(path: FilePath) -> tuple[list[Array], list[str]]:
    """Read the .ts text format of the UEA and UCR archives: series (length, channels), and a label each.

    A line is channel:channel:…:label, a channel numbers with commas between. Missing values, time stamps are refused.
    """
    header: dict[str, str] = {}
    series: list[Array] = []
    labels: list[str] = []
    in_data = False
    for number, line in enumerate(read_text(Path(path)).splitlines(), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if in_data:
            points, label = _ts_line(text, f"{path}, line {number}")
            series.append(points)
            labels.append(label)
        elif text.lower() == "@data":
            in_data = True
            _check_ts(header, path)
        else:
            name, _, value = text.partition(" ")
            header[name.lower()] = value.strip().lower()
    if not series:
        raise FileError(f"{path}: no series; expected lines after @data")
    if len({s.shape[1] for s in series}) > 1:
        raise FileError(f"{path}: series have different numbers of channels")
    return series, labels


def _check_ts(header: dict[str, str], path: FilePath) -> None:
    if header.get("@timestamps", "false").startswith("true"):
        raise FileError(f"{path}: series with time stamps are not read")
    if not header.get("@classlabel", "false").startswith("true"):
        raise FileError(f"{path}: series without class labels are not read; expected @classLabel true …")


def _ts_line(text: str, where: str) -> tuple[Array, str]:
    *channels, label = text.split(":")
    if not channels or "?" in text:
        raise FileError(f"{where}: expected channels and a label, without missing values (?)")
    try:
        values = [np.array(channel.split(","), dtype=np.float64) for channel in channels]
    except ValueError as error:
        raise FileError(f"{where}: {error}") from None
    if len({len(v) for v in values}) > 1:
        raise FileError(f"{where}: channels of one series have different lengths")
    return np.stack(values, axis=1), label.strip()


def _mat(path: Path, key: str) -> NDArray[Any]:
    """One variable of a MATLAB file."""
    variables = media.read_mat(path, [key])
    if key not in variables:
        raise FileError(f"{path}: has no variable {key!r}")
    return variables[key]
