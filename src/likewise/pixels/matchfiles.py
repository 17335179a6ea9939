"""Matches in files: arrays, COLMAP's lists of features and matches, COLMAP's database.

COLMAP puts the centre of the first pixel at (½, ½); here it is (0, 0). So ½ is added to points on the way there.
"""

from __future__ import annotations

import io as streams
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from likewise import media
from likewise.errors import FileError, InputError, MissingExtra
from likewise.types import Matches as PlainMatches

if TYPE_CHECKING:
    from likewise.pixels.matches import Matches

Named: TypeAlias = "tuple[str, str, PlainMatches]"
"""The names of two pictures, and their matches."""

HALF = 0.5
DIMENSIONS = 128
"""COLMAP's feature files have descriptors of 128 bytes; matches that are given need none, so they are 0."""
FOCAL = 1.2
"""COLMAP's guess of an unknown focal length: this times the longest side."""


def write_arrays(path: str | os.PathLike[str], matches: Matches) -> Path:
    """An .npz with a, b, stage, score, reason and, where they are known, sizes."""
    arrays: dict[str, Any] = {n: getattr(matches, n) for n in ("a", "b", "stage", "score")}
    arrays["reason"] = np.array(matches.reason)
    if matches.sizes is not None:
        arrays["sizes"] = np.array(matches.sizes, dtype=np.int64)
    buffer = streams.BytesIO()
    np.savez(buffer, **arrays)
    return media.write_bytes(path, buffer.getvalue())


# --------------------------------------------------------------------------------------------------- features by number


@dataclass
class _Points:
    """The features of one picture, each once, with the number that COLMAP knows it by."""

    numbers: dict[tuple[float, float], int] = field(default_factory=dict)
    size: tuple[int, int] | None = None

    def add(self, points: NDArray[np.float64]) -> list[int]:
        return [self.numbers.setdefault((float(x), float(y)), len(self.numbers)) for x, y in points]

    @property
    def table(self) -> NDArray[np.float32]:
        """(n, 2) as COLMAP counts pixels."""
        return np.array(list(self.numbers), dtype=np.float32).reshape(-1, 2) + np.float32(HALF)


def _numbered(pairs: Sequence[Named]) -> tuple[dict[str, _Points], list[tuple[str, str, NDArray[np.uint32]]]]:
    """The features of each picture, and the matches of each pair by their numbers."""
    pictures: dict[str, _Points] = {}
    lists = []
    for a, b, matches in pairs:
        _check_names(a, b)
        ends = [pictures.setdefault(n, _Points()).add(p) for n, p in ((a, matches.a), (b, matches.b))]
        lists.append((a, b, np.array(ends, dtype=np.uint32).reshape(2, -1).T))
        for name, size in zip((a, b), getattr(matches, "sizes", None) or (None, None), strict=True):
            pictures[name].size = size or pictures[name].size
    return pictures, lists


def _check_names(a: str, b: str) -> None:
    for name in (a, b):
        if not name or any(c.isspace() for c in name) or PurePath(name).is_absolute() or ".." in PurePath(name).parts:
            raise InputError(f"names: expected relative names without spaces, as COLMAP's lists have, got {name!r}")
    if a == b:
        raise InputError(f"names: expected two different pictures, got {a!r} twice")


# ---------------------------------------------------------------------------------------------------------------- text


def write_lists(path: str | os.PathLike[str], pairs: Sequence[Named]) -> Path:
    """COLMAP's text: the matches of each pair (`matches_importer --match_type raw`), and beside the file one
    `<name>.txt` a picture with its features (`feature_importer`)."""
    pictures, lists = _numbered(pairs)
    target = Path(path)
    for name, points in pictures.items():
        rest = " 1 0" + " 0" * DIMENSIONS
        lines = [f"{len(points.table)} {DIMENSIONS}", *(f"{x:.4f} {y:.4f}{rest}" for x, y in points.table)]
        media.write_text(target.parent / f"{name}.txt", "\n".join(lines) + "\n")
    blocks = ["\n".join([f"{a} {b}", *(f"{i} {j}" for i, j in numbers)]) for a, b, numbers in lists]
    return media.write_text(target, "\n\n".join(blocks) + "\n\n")


# ------------------------------------------------------------------------------------------------------------- database


def write_database(path: str | os.PathLike[str], pairs: Sequence[Named]) -> Path:
    """A new COLMAP database: a camera, an image and its features a picture, and the matches, not yet verified."""
    try:
        import pycolmap
    except ImportError:
        raise MissingExtra("pycolmap", "sfm") from None
    pictures, lists = _numbered(pairs)
    for name, points in pictures.items():
        if points.size is None:
            raise InputError(f"sizes: COLMAP's database needs the size of {name}; give Matches(…, sizes=((h, w), …))")
    try:
        with media.atomic(path) as sibling:
            _fill(pycolmap.Database.open(sibling), pycolmap, pictures, lists)
    except (OSError, RuntimeError) as error:
        raise FileError(f"{path}: cannot be written: {error}") from None
    return Path(path)


def _fill(database: Any, pycolmap: Any, pictures: dict[str, _Points], lists: Any) -> None:
    ids = {}
    for name, points in pictures.items():
        h, w = points.size or (0, 0)
        camera = pycolmap.Camera.create_from_model_name(0, "SIMPLE_RADIAL", FOCAL * max(h, w), w, h)
        ids[name] = database.write_image(pycolmap.Image(name=name, camera_id=database.write_camera(camera)))
        database.write_keypoints(ids[name], points.table)
    for a, b, numbers in lists:
        database.write_matches(ids[a], ids[b], numbers)
    database.close()
