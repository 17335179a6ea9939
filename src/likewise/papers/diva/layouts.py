"""CUB200, CARS196 and SOP as they are published, split as in the paper into classes to train and test on."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from likewise import media
from likewise.errors import FileError, InputError
from likewise.images.data import Dataset, folder, label_by_name
from likewise.papers import all_there, read_text, within

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

    The published archive, or its class folders alone (001.… to 200.…), which number the classes.
    """
    root = _root(path)
    files = media.images(next(d for d in (root / "CUB_200_2011" / "images", root / "images", root) if d.is_dir()))
    numbers = [re.match(r"(\d+)\.", f.parent.name) for f in files]
    if not files or None in numbers:
        raise FileError(f"{root}: expected class folders 001.… to 200.… of CUB-200-2011; layout='folder' reads any")
    return _halves(files, [f.parent.name for f in files], [int(n[1]) for n in numbers if n], 100, split, "cub200")


def cars196(path: FilePath, split: Split | None = None) -> Dataset:
    """CARS196: the first 98 classes train, the last 98 test.

    The published files (cars_annos.mat, car_ims/) or one folder a class, in the order of their names.
    """
    root = _root(path)
    if (root / "cars_annos.mat").is_file():
        return _halves(*_cars_list(root / "cars_annos.mat"), 98, split, "cars196")
    whole = folder(root)
    if len(whole.classes) != 196:
        raise FileError(f"{root}: neither cars_annos.mat nor 196 class folders, but {len(whole.classes)} classes")
    names, numbers = [whole.classes[c] for c in whole.labels], (whole.labels + 1).tolist()
    return _halves(whole.items, names, numbers, 98, split, "cars196")


def _cars_list(file: Path) -> tuple[Sequence[Path], list[str], list[int]]:
    held = media.read_mat(file, ["annotations", "class_names"])
    try:
        rows = held["annotations"].ravel()
        paths, numbers = [str(p.item()) for p in rows["relative_im_path"]], [int(c.item()) for c in rows["class"]]
        names = [str(n.item()) for n in held["class_names"].ravel()]
        labels = [names[c - 1] for c in numbers if 1 <= c <= len(names)]
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise FileError(f"{file}: not the annotations of CARS196: {error or type(error).__name__}") from None
    if len(labels) != len(numbers):
        raise FileError(f"{file}: not the annotations of CARS196: an image is of a class that has no name")
    return all_there([file.parent / within(p, file) for p in paths], file), labels, numbers


def sop(path: FilePath, split: Split | None = None) -> Dataset:
    """Stanford Online Products by its own lists, Ebay_train.txt (11,318 classes) and Ebay_test.txt (11,316)."""
    root = _root(path)
    root = root / "Stanford_Online_Products" if (root / "Stanford_Online_Products").is_dir() else root
    splits = ("train", "test") if split is None else (split,)
    pairs = [pair for s in splits for pair in _products(root / f"Ebay_{s}.txt")]
    return label_by_name([file for file, _ in pairs], [name for _, name in pairs], "sop")


def _products(source: Path) -> list[tuple[Path, str]]:
    """The images of one list with their classes, "bicycle_final/1" for class 1 of the bicycles."""
    rows = [line.split(maxsplit=3) for line in read_text(source).splitlines() if line.strip()]
    wrong = [i for i, row in enumerate(rows, 1) if len(row) != 4]
    if wrong:
        raise FileError(f"{source}: line {wrong[0]} has {len(rows[wrong[0] - 1])} columns; expected 4")
    rows = [row for row in rows if row[0].isdecimal()]  # the first line is a heading
    if not rows:
        raise FileError(f"{source}: names no image; expected lines of image_id class_id super_class_id path")
    files = all_there([source.parent / within(row[3], source) for row in rows], source)
    return [(file, f"{file.parent.name}/{row[1]}") for file, row in zip(files, rows, strict=True)]


LAYOUTS: dict[str, Callable[[FilePath, Split | None], Dataset]] = {
    "folder": folder,
    "cub200": cub200,
    "cars196": cars196,
    "sop": sop,
}


def _detect(root: Path) -> str:
    """Which layout this is: a published one by the files or folders that only it has, or else class folders."""
    if (root / "cars_annos.mat").is_file():
        return "cars196"
    if any((root / d / "Ebay_train.txt").is_file() for d in (".", "Stanford_Online_Products")):
        return "sop"
    if any((root / d / "image_class_labels.txt").is_file() for d in (".", "CUB_200_2011")) or _is_cub(root):
        return "cub200"
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


def _halves(
    files: Sequence[Any], names: Sequence[str], numbers: Sequence[int], first: int, split: Split | None, name: str
) -> Dataset:
    """Classes 1 … first are "train", the others "test"; in the order of their numbers."""
    low, high = {None: (0, np.inf), "train": (0, first), "test": (first, np.inf)}[split]
    rows = sorted((c, i) for i, c in enumerate(numbers) if low < c <= high)
    if not rows:
        raise FileError(f"split: {name} has no image of a class for {split!r}")
    return label_by_name([files[i] for _, i in rows], [names[i] for _, i in rows], name)
