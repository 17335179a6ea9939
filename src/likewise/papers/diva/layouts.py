"""CUB200, CARS196, SOP and Omniglot as they are published, split as in the paper into classes to train and test on."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from likewise import media
from likewise.errors import FileError, InputError
from likewise.images.data import Dataset, folder, label_by_name

FilePath: TypeAlias = str | os.PathLike[str]
Split: TypeAlias = Literal["train", "test"]


def read(path: FilePath, layout: str = "auto", split: Split | None = None) -> Dataset:
    """The images at `path` in a published layout or in class folders, detected by what is there under "auto".

    `split` is "train" or "test", each with classes of its own, or None for both. Of class folders it is the subfolder
    of that name; where there is neither, all is for training.
    """
    if layout != "auto" and layout not in LAYOUTS:
        raise InputError(f"layout: expected auto, {', '.join(LAYOUTS)}, got {layout!r}")
    if split not in (None, "train", "test"):
        raise InputError(f'split: expected "train", "test" or None, got {split!r}')
    root = _root(path)
    return LAYOUTS[_detect(root) if layout == "auto" else layout](root, split)


def cub200(path: FilePath, split: Split | None = None) -> Dataset:
    """CUB-200-2011: classes 1–100 train, 101–200 test.

    The published archive (images.txt, image_class_labels.txt, images/) or its class folders alone (001.… to 200.…).
    """
    root = _inner(_root(path), "CUB_200_2011", "images.txt")
    if (root / "images.txt").is_file():
        files, numbers = _cub_lists(root)
    else:
        files = media.images(root / "images" if (root / "images").is_dir() else root)
        numbers = [_leading_number(f.parent.name, f) for f in files]
    if not files:
        raise FileError(f"{root}: neither images.txt nor class folders 001.… to 200.…; give the folder of CUB-200-2011")
    return _halves(files, [f.parent.name for f in files], numbers, 100, split, "cub200")


def _cub_lists(root: Path) -> tuple[list[Path], list[int]]:
    names = {row[0]: row[1] for row in _rows(root / "images.txt", 2)}
    numbers = {row[0]: row[1] for row in _rows(root / "image_class_labels.txt", 2)}
    if names.keys() != numbers.keys():
        raise FileError(f"{root}: images.txt and image_class_labels.txt do not list the same images")
    files = [root / "images" / _within(name, root / "images.txt") for name in names.values()]
    _all_there(files, root / "images.txt")
    return files, [_number(numbers[i], root / "image_class_labels.txt") for i in names]


def _leading_number(name: str, file: Path) -> int:
    number = re.match(r"(\d+)\.", name)
    if number is None:
        raise FileError(f"{file}: not in a class folder of CUB-200-2011 (001.… to 200.…); layout='folder' reads any")
    return int(number[1])


def cars196(path: FilePath, split: Split | None = None) -> Dataset:
    """CARS196: the first 98 classes train, the last 98 test.

    The published files (cars_annos.mat, car_ims/) or one folder a class, in the order of their names.
    """
    root = _root(path)
    if (root / "cars_annos.mat").is_file():
        files, names, numbers = _cars_list(root / "cars_annos.mat")
        return _halves(files, names, numbers, 98, split, "cars196")
    whole = folder(root)
    if len(whole.classes) != 196:
        raise FileError(f"{root}: neither cars_annos.mat nor 196 class folders, but {len(whole.classes)} classes")
    chosen = {None: range(196), "train": range(98), "test": range(98, 196)}[split]
    part = whole.of_classes(list(chosen))
    return Dataset(part.items, part.labels, part.classes, "cars196")


def _cars_list(file: Path) -> tuple[list[Path], list[str], list[int]]:
    held = media.read_mat(file, ["annotations", "class_names"])
    try:
        rows = held["annotations"].ravel()
        paths, numbers = [str(_single(p)) for p in rows["relative_im_path"]], [int(_single(c)) for c in rows["class"]]
        names = [str(_single(n)) for n in held["class_names"].ravel()]
        labels = [names[c - 1] for c in numbers if 1 <= c <= len(names)]
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise FileError(f"{file}: not the annotations of CARS196: {error or type(error).__name__}") from None
    if len(labels) != len(numbers):
        raise FileError(f"{file}: not the annotations of CARS196: a image is of a class that has no name")
    files = [file.parent / _within(p, file) for p in paths]
    _all_there(files, file)
    return files, labels, numbers


def _single(cell: Any) -> Any:
    """What a MATLAB cell of one element holds."""
    return np.asarray(cell).item()


def sop(path: FilePath, split: Split | None = None) -> Dataset:
    """Stanford Online Products by its own lists, Ebay_train.txt (11,318 classes) and Ebay_test.txt (11,316)."""
    root = _inner(_root(path), "Stanford_Online_Products", "Ebay_train.txt")
    pairs = [pair for s in _both(split) for pair in _products(root / f"Ebay_{s}.txt")]
    return label_by_name([file for file, _ in pairs], [name for _, name in pairs], "sop")


def _products(source: Path) -> list[tuple[Path, str]]:
    """The images of one list with their classes, "bicycle_final/1" for class 1 of the bicycles."""
    rows = [row for row in _rows(source, 4) if row[0].isdecimal()]  # the first line is a heading
    if not rows:
        raise FileError(f"{source}: names no image; expected lines of image_id class_id super_class_id path")
    files = [source.parent / _within(row[3], source) for row in rows]
    _all_there(files, source)
    return [(file, f"{file.parent.name}/{row[1]}") for file, row in zip(files, rows, strict=True)]


def omniglot(path: FilePath, split: Split | None = None) -> Dataset:
    """Omniglot, a class a character of an alphabet, black ink on white, as arrays from the zips or as unpacked files.

    With images_background and images_evaluation: train and test. With the two small sets: train is small1, test is
    small2 without Greek and Latin, which small1 has, too.
    """
    root = _root(path)
    parts, without = _omniglot_parts(root), {"train": (), "test": ("Greek", "Latin")}
    pairs = [pair for s in _both(split) for pair in _characters(root, parts[s], without[s])]
    if not pairs:
        raise FileError(f"{root}: the alphabets of {' and '.join(parts[s] for s in _both(split))} hold no image")
    return label_by_name([item for item, _ in pairs], [name for _, name in pairs], "omniglot")


_OMNIGLOT = (
    {"train": "images_background", "test": "images_evaluation"},
    {"train": "images_background_small1", "test": "images_background_small2"},
)


def _omniglot_parts(root: Path) -> dict[str, str]:
    for parts in _OMNIGLOT:
        if any((root / name).is_dir() or (root / f"{name}.zip").is_file() for name in parts.values()):
            return parts
    raise FileError(
        f"{root}: no images_background….zip nor its folder; give the folder that holds the sets of Omniglot"
    )


def _characters(root: Path, part: str, without: Sequence[str]) -> list[tuple[Any, str]]:
    """The images of one set with their classes "alphabet/character", from its folder or else from its zip."""
    if (root / part).is_dir():
        files = media.images(root / part)
        pairs: list[tuple[Any, str]] = [(f, f.parent.relative_to(root / part).as_posix()) for f in files]
    elif (root / f"{part}.zip").is_file():
        pairs = _zipped(root / f"{part}.zip", without)
    else:
        raise FileError(f"{root}: neither {part}.zip nor a folder {part}")
    return [(item, name) for item, name in pairs if name.split("/")[0] not in without]


def _zipped(file: Path, without: Sequence[str]) -> list[tuple[Any, str]]:
    """The images of a zip set/alphabet/character/*.png as uint8 (h, w), unpacked in memory only."""
    try:
        with zipfile.ZipFile(file) as archive:
            total = sum(m.file_size for m in archive.infolist())
            if total > media.MOST_ARRAY_BYTES:
                raise FileError(f"{file}: declares {total:,} bytes, more than the {media.MOST_ARRAY_BYTES:,} allowed")
            names = sorted(n for n in archive.namelist() if re.fullmatch(r"[^/]+/[^/]+/[^/]+/[^/]+\.png", n))
            kept = [(n, *n.split("/")[1:3]) for n in names if n.split("/")[1] not in without]
            return [(_grey(archive.read(n), f"{file}: {n}"), f"{alphabet}/{one}") for n, alphabet, one in kept]
    except FileError:
        raise
    except Exception as error:  # a damaged archive can raise anything
        raise FileError(f"{file}: damaged zip: {error or type(error).__name__}") from error


def _grey(data: bytes, name: str) -> NDArray[np.uint8]:
    array: NDArray[np.uint8] = np.ascontiguousarray(media.decode(data, name=name)[:, :, 0])
    return array


LAYOUTS: dict[str, Callable[[FilePath, Split | None], Dataset]] = {
    "folder": folder,
    "cub200": cub200,
    "cars196": cars196,
    "sop": sop,
    "omniglot": omniglot,
}


def _detect(root: Path) -> str:
    """Which layout this is: a published one by the files or folders that only it has, or else class folders."""
    if (root / "cars_annos.mat").is_file():
        return "cars196"
    if any((root / d / "Ebay_train.txt").is_file() for d in (".", "Stanford_Online_Products")):
        return "sop"
    if any((root / d / "image_class_labels.txt").is_file() for d in (".", "CUB_200_2011")) or _is_cub(root):
        return "cub200"
    names = [name for parts in _OMNIGLOT for name in parts.values()]
    if any((root / name).is_dir() or (root / f"{name}.zip").is_file() for name in names):
        return "omniglot"
    return "folder"


def _is_cub(root: Path) -> bool:
    """Class folders 001.… to 200.…, all of them."""
    numbers = [re.match(r"(\d{3})\.", d.name) for d in root.iterdir() if d.is_dir()]
    return sorted(int(m[1]) for m in numbers if m) == list(range(1, 201))


def _root(path: FilePath) -> Path:
    root = Path(path)
    if not root.is_dir():
        raise FileError(f"{root}: {'not a folder' if root.exists() else 'no such folder'}")
    return root


def _inner(root: Path, name: str, file: str) -> Path:
    """The folder that the published archive unpacks to, where its parent was given."""
    return root / name if not (root / file).is_file() and (root / name / file).is_file() else root


def _both(split: Split | None) -> tuple[Split, ...]:
    return ("train", "test") if split is None else (split,)


def _rows(file: Path, columns: int) -> list[tuple[str, ...]]:
    """The lines of a text list, split at blanks into so many columns (the last one may hold blanks)."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    rows = [tuple(line.split(maxsplit=columns - 1)) for line in lines if line.strip()]
    wrong = [i for i, row in enumerate(rows, 1) if len(row) != columns]
    if wrong:
        raise FileError(f"{file}: line {wrong[0]} has {len(rows[wrong[0] - 1])} columns; expected {columns}")
    return rows


def _number(text: str, file: Path) -> int:
    if not text.isdecimal():
        raise FileError(f"{file}: expected the number of a class, got {text!r}")
    return int(text)


def _within(name: str, file: Path) -> PurePosixPath:
    """A relative path out of a list, which must stay below the folder of the list."""
    path = PurePosixPath(name.strip())
    if path.is_absolute() or ".." in path.parts:
        raise FileError(f"{file}: names {name!r}, which is outside of its folder")
    return path


def _all_there(files: Sequence[Path], source: Path) -> None:
    missing = [f for f in files if not media.is_file(f)]
    if missing:
        raise FileError(f"{source}: names {missing[0]}, but there is no such file ({len(missing):,} missing)")


def _halves(
    files: Sequence[Path], names: Sequence[str], numbers: Sequence[int], first: int, split: Split | None, name: str
) -> Dataset:
    """Classes 1 … first are "train", the others "test"; in the order of their numbers."""
    low, high = {None: (0, np.inf), "train": (0, first), "test": (first, np.inf)}[split]
    rows = sorted((c, i) for i, c in enumerate(numbers) if low < c <= high)
    if not rows:
        raise FileError(f"split: {name} has no image of a class for {split!r}")
    return label_by_name([files[i] for _, i in rows], [names[i] for _, i in rows], name)
