"""Readers of public data sets as they are published: kinship, re-identification, traffic, time series."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likewise import media
from likewise.errors import FileError, InputError, MissingExtra, ShapeError
from likewise.sets.features import Describe
from likewise.types import Array, Signature

Index = NDArray[np.int64]
Split = tuple[Index, Index]
FilePath = str | PathLike[str]


@dataclass(frozen=True, eq=False)
class Sets:
    """Signatures with their labels (n,), or labels None."""

    signatures: tuple[Signature, ...]
    labels: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.signatures)


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


def kinfacew(path: FilePath, relations: Sequence[str] = ("fs", "fd", "ms", "md")) -> Kinship:
    """Read KinFaceW-I or -II: images/father-son/fs_001_1.jpg …, meta_data/fs_pairs.mat … with five official folds."""
    root = folder(path)
    rows = [(relation, row) for relation in relations for row in _kin_rows(root, relation)]
    names = sorted({(relation, name) for relation, (_, _, one, two) in rows for name in (one, two)})
    where = {name: i for i, (_, name) in enumerate(names)}
    files = tuple(root / "images" / RELATIONS[relation] / name for relation, name in names)
    missing = [f for f in files if not media.is_file(f)]
    if missing:
        raise FileError(f"{missing[0]}: named in meta_data, but there is no such file ({len(missing)} missing)")
    return Kinship(
        files,
        tuple(name[: name.rindex("_")] for _, name in names),
        tuple(relation for relation, _ in names),
        np.array([[where[one], where[two]] for _, (_, _, one, two) in rows], dtype=np.int64),
        np.array([kin for _, (_, kin, _, _) in rows], dtype=bool),
        np.array([fold for _, (fold, _, _, _) in rows], dtype=np.int64),
    )


def _kin_rows(root: Path, relation: str) -> list[tuple[int, bool, str, str]]:
    """fold, kin, first and second image of each official pair of one relation."""
    if relation not in RELATIONS:
        raise InputError(f"relations: expected some of {', '.join(RELATIONS)}, got {relation!r}")
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


@dataclass(frozen=True, eq=False)
class ReId:
    """Tracklets of people seen by two cameras: a[i] and b[i] are the pictures of persons[i] from camera A and B.

    `extra` are tracklets of camera B whose person camera A never saw: distractors. `splits` are the official
    (train, test) index pairs, empty where the data set has none.
    """

    persons: tuple[str, ...]
    a: tuple[tuple[Path, ...], ...]
    b: tuple[tuple[Path, ...], ...]
    extra: tuple[tuple[Path, ...], ...] = ()
    splits: tuple[Split, ...] = ()

    def signatures(
        self, describe: Describe, k: int | None = 8, *, seed: int = 0
    ) -> tuple[list[Signature], list[Signature], list[Signature]]:
        """Signatures of camera A, of camera B, and of the distractors."""
        a, b, extra = ([from_images(t, describe, k, seed=seed) for t in side] for side in (self.a, self.b, self.extra))
        return a, b, extra


def prid2011(path: FilePath, *, shots: str = "multi_shot", least: int = 1) -> ReId:
    """Read PRID 2011: multi_shot/cam_a/person_0001/*.png and cam_b, or single_shot/cam_a/person_0001.png and cam_b.

    People with fewer than `least` pictures in a camera are left out of it (21 is usual for video re-identification).
    """
    if shots not in ("multi_shot", "single_shot"):
        raise InputError(f"shots: expected 'multi_shot' or 'single_shot', got {shots!r}")
    root = folder(path, "prid_2011", "PRID2011") / shots
    return _two_cameras(root / "cam_a", root / "cam_b", least)


def ilids_vid(path: FilePath, *, pictures: str = "sequences", least: int = 1) -> ReId:
    """Read iLIDS-VID: i-LIDS-VID/sequences/cam1/person001/*.png, cam2, and the ten official splits of people.

    `pictures` is "sequences" or "images" (one picture a camera). In the splits file the first half of each row tests
    and the rest trains (Wang et al. 2014); its numbers count the person folders from 1.
    """
    if pictures not in ("sequences", "images"):
        raise InputError(f"pictures: expected 'sequences' or 'images', got {pictures!r}")
    root = folder(path)
    inner = folder(root, "i-LIDS-VID") / pictures
    read = _two_cameras(inner / "cam1", inner / "cam2", least)
    file = root / "train-test people splits" / "train_test_splits_ilidsvid.mat"
    if not file.is_file():
        return read
    everyone = sorted({c.stem for camera in ("cam1", "cam2") for c in children(inner / camera)})
    place = {name: i for i, name in enumerate(read.persons)}
    splits = tuple(_ilids_split(file, row, everyone, place) for row in _mat(file, "ls_set"))
    return ReId(read.persons, read.a, read.b, read.extra, splits)


def _ilids_split(file: Path, row: NDArray[Any], everyone: list[str], place: dict[str, int]) -> Split:
    numbers = _whole(file, row)
    if sorted(numbers.tolist()) != list(range(1, len(everyone) + 1)):
        raise FileError(f"{file}: a split does not name each of the {len(everyone)} people once")
    names = [everyone[i - 1] for i in numbers]
    half = len(names) // 2
    test, train = ([place[n] for n in part if n in place] for part in (names[:half], names[half:]))
    return np.array(sorted(train), dtype=np.int64), np.array(sorted(test), dtype=np.int64)


def _two_cameras(folder_a: Path, folder_b: Path, least: int) -> ReId:
    a, b = _tracklets(folder_a, least), _tracklets(folder_b, least)
    both = [name for name in a if name in b]
    if not both:
        raise FileError(f"{folder_a}: no person is in both cameras")
    extra = tuple(b[name] for name in b if name not in a)
    return ReId(tuple(both), tuple(a[n] for n in both), tuple(b[n] for n in both), extra)


def _tracklets(camera: Path, least: int) -> dict[str, tuple[Path, ...]]:
    """Person → pictures: a folder a person, or a picture a person."""
    from likewise.media import images, is_image

    if not camera.is_dir():
        raise FileError(f"{camera}: no such folder")
    found: dict[str, tuple[Path, ...]] = {}
    for child in children(camera):
        if child.is_dir():
            found[child.name] = tuple(images(child))
        elif is_image(child):
            found[child.stem] = (child,)
    return {name: pictures for name, pictures in found.items() if len(pictures) >= max(least, 1)}


def lomo(path: FilePath, n: int, key: str = "descriptors") -> Array:
    """LOMO descriptors as published, a .mat with `descriptors` (26960, n), a column a picture; as rows (n, d)."""
    held = _mat(Path(path), key)
    if held.ndim != 2 or n not in held.shape or held.dtype.kind not in "biuf":
        raise FileError(f"{path}: {key} is {held.dtype} {held.shape}, expected (d, {n}) numbers, a column a picture")
    array = held.astype(np.float64)
    return np.ascontiguousarray(array.T if array.shape[1] == n else array)


def lookup(paths: Iterable[FilePath], rows: ArrayLike) -> Describe:
    """A `describe` that only looks up: rows[i] belongs to the i-th path. For features that somebody else computed."""
    names = [str(p) for p in paths]
    table = np.asarray(rows, dtype=np.float64)
    if table.ndim != 2 or len(table) != len(names):
        raise ShapeError(f"rows: expected ({len(names)}, d), one a path, got shape {table.shape}")
    place = {name: i for i, name in enumerate(names)}

    def describe(pictures: Sequence[Any]) -> Array:
        unknown = [p for p in pictures if str(p) not in place]
        if unknown:
            raise InputError(f"pictures: {unknown[0]} has no row of features")
        return np.asarray(table[[place[str(p)] for p in pictures]])

    return describe


@dataclass(frozen=True, eq=False)
class Traffic:
    """Videos with labels (light, medium, heavy) and the official (train, test) splits."""

    videos: tuple[Path, ...]
    labels: tuple[str, ...]
    splits: tuple[Split, ...]

    def signatures(self, k: int | None = 8, *, every: int = 1, seed: int = 0) -> list[Signature]:
        """One signature a video: grey frames, 80 × 60, the 48 × 48 window of most motion, k-means centres of frames."""
        from likewise.media import frames
        from likewise.sets.data import signature
        from likewise.sets.features import motion_window

        found = [motion_window(list(frames(v, every=every))) for v in self.videos]
        return [signature(w.reshape(len(w), -1), k, seed) for w in found]


def ucsd_traffic(path: FilePath) -> Traffic:
    """Read the UCSD traffic videos: video/*.avi, ImageMaster (number, name, class), EvalSet_train and EvalSet_test.

    The text files are read where they exist (a line a split, numbers of ImageMaster with commas between), else
    ImageMaster.mat (imagemaster{i}.root, .class) and EvalSet.mat (trainind, testind), whose numbers count from 1.
    """
    root = folder(path, "trafficdb")
    master = _master_text(root / "ImageMaster") if (root / "ImageMaster").is_file() else _master_mat(root)
    numbers = sorted(master)
    place = {number: i for i, number in enumerate(numbers)}
    videos = tuple(root / "video" / f"{master[i][0]}.avi" for i in numbers)
    missing = [v for v in videos if not media.is_file(v)]
    if missing:
        raise FileError(f"{missing[0]}: named in ImageMaster, but there is no such file ({len(missing)} missing)")
    if (root / "EvalSet_train").is_file():
        train, test = (_eval_text(root / f"EvalSet_{part}") for part in ("train", "test"))
    else:
        train, test = (_eval_mat(root / "EvalSet.mat", key) for key in ("trainind", "testind"))
    if len(train) != len(test):
        raise FileError(f"{root}: {len(train)} training splits but {len(test)} test splits")
    splits = tuple((_places(root, a, place), _places(root, b, place)) for a, b in zip(train, test, strict=True))
    return Traffic(videos, tuple(master[i][1] for i in numbers), splits)


def _places(root: Path, numbers: Sequence[int], place: dict[int, int]) -> Index:
    unknown = [n for n in numbers if n not in place]
    if unknown:
        raise FileError(f"{root}: a split names video {unknown[0]}, which is not in ImageMaster")
    return np.array([place[n] for n in numbers], dtype=np.int64)


def _master_text(path: Path) -> dict[int, tuple[str, str]]:
    lines = [line.split() for line in _text(path).splitlines() if line.strip() and not line.startswith("#")]
    try:
        rows = {int(fields[0]): (_video_name(path, fields[1]), fields[2]) for fields in lines}
    except (IndexError, ValueError):
        raise FileError(f"{path}: expected lines of number, name, class") from None
    if not rows:
        raise FileError(f"{path}: names no video")
    return rows


def _master_mat(root: Path) -> dict[int, tuple[str, str]]:
    path = root / "ImageMaster.mat"
    cells = _mat(path, "imagemaster").ravel()
    try:
        return {
            i: (_video_name(path, str(np.squeeze(c["root"]).item())), str(np.squeeze(c["class"]).item()))
            for i, c in enumerate((_inner(c) for c in cells), 1)
        }
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise FileError(f"{path}: an entry has no root and class: {error}") from None


def _inner(cell: Any) -> dict[str, Any]:
    """The fields of one MATLAB struct, however many one-element arrays it is wrapped in."""
    while isinstance(cell, np.ndarray) and cell.size == 1 and (cell.dtype.names is None or cell.ndim):
        cell = cell.ravel()[0]
    names = getattr(cell, "dtype", np.dtype(float)).names or ()
    return {name: _unwrapped(cell[name]) for name in names}


def _unwrapped(value: Any) -> Any:
    while isinstance(value, np.ndarray) and value.dtype == object and value.size == 1:
        value = value.ravel()[0]
    return value


def _video_name(path: Path, name: str) -> str:
    if not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
        raise FileError(f"{path}: {name!r} is not the name of a video")
    return name


def _eval_text(path: Path) -> list[list[int]]:
    try:
        return [
            [int(n) for n in re.split(r"[,\s]+", line.strip(" ,\t\r"))] for line in _text(path).splitlines() if line
        ]
    except ValueError:
        raise FileError(f"{path}: expected one line a split, numbers with commas between") from None


def _eval_mat(path: Path, key: str) -> list[list[int]]:
    return [[int(n) for n in _whole(path, cell)] for cell in _mat(path, key).ravel()]


def _whole(path: Path, row: Any) -> Index:
    """The whole numbers of a row or a cell."""
    numbers = np.asarray(row).ravel()
    if numbers.dtype.kind not in "biuf" or not (np.isfinite(numbers) & (numbers == np.round(numbers))).all():
        raise FileError(f"{path}: a split is not a list of whole numbers")
    return numbers.astype(np.int64)


@dataclass(frozen=True, eq=False)
class TrainTest:
    """Labelled sets in the official training and test part."""

    train: Sets
    test: Sets


def time_series(train: FilePath, test: FilePath) -> TrainTest:
    """Two .ts files as sets: each moment of a series is a point, with a coordinate a channel."""
    parts = (read_ts(path) for path in (train, test))
    first, second = (Sets(tuple(Signature(x) for x in series), np.asarray(labels)) for series, labels in parts)
    return TrainTest(first, second)


def japanese_vowels(folder: FilePath | None = None) -> TrainTest:
    """JapaneseVowels, 270 + 370 utterances of 9 speakers, 12 coordinates a frame: from `folder`, or the aeon wheel.

    The wheel's file is found without importing aeon.
    """
    if folder is None:
        from importlib.util import find_spec

        spec = find_spec("aeon")
        if spec is None or spec.origin is None:
            raise MissingExtra("aeon", "bench")
        folder = Path(spec.origin).parent / "datasets" / "data" / "JapaneseVowels"
    return time_series(Path(folder) / "JapaneseVowels_TRAIN.ts", Path(folder) / "JapaneseVowels_TEST.ts")


def read_ts(path: FilePath) -> tuple[list[Array], list[str]]:
    """Read the .ts text format of the UEA and UCR archives: series (length, channels), and a label each.

    A line is channel:channel:…:label, a channel numbers with commas between. Missing values, time stamps are refused.
    """
    header: dict[str, str] = {}
    series: list[Array] = []
    labels: list[str] = []
    in_data = False
    for number, line in enumerate(_text(Path(path)).splitlines(), 1):
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


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from None


def _mat(path: Path, key: str) -> NDArray[Any]:
    """One variable of a MATLAB file (version 7 or older; reading executes nothing)."""
    found = media.read_mat(path, [key])
    if key not in found:
        raise FileError(f"{path}: has no variable {key!r}")
    return found[key]


def children(folder: Path) -> list[Path]:
    """What a folder holds, in natural order, without hidden names."""

    def natural(p: Path) -> list[tuple[int, int, str]]:
        return [(0, int(s), "") if s.isdecimal() else (1, 0, s) for s in re.split(r"(\d+)", p.name) if s]

    return sorted((p for p in folder.iterdir() if not p.name.startswith(".")), key=natural)


def folder(path: FilePath, *tried: str) -> Path:
    """The folder at `path`, or its sub-folder of one of the names `tried`."""
    root = Path(path)
    for candidate in (*(root / name for name in tried), root):
        if candidate.is_dir():
            return candidate
    raise FileError(f"{root}: no such folder")


def from_images(
    paths: Sequence[FilePath], describe: Describe, k: int | None = 8, *, seed: int = 0, level: Any = None
) -> Signature:
    """The signature of some image files: `describe` makes (n, d) of their paths; names are the files."""
    from likewise.sets.data import signature

    if len(paths) == 0:
        raise InputError("paths: expected at least one image, got none")
    rows = np.asarray(describe(list(paths)), dtype=np.float64)
    if rows.ndim != 2 or len(rows) != len(paths):
        raise ShapeError(f"describe: expected ({len(paths)}, d), one row an image, got shape {rows.shape}")
    return signature(rows, k, seed, names=[str(p) for p in paths], level=level)
