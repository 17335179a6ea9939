"""A segment: rows that were added together, in files that are written once and never changed.

segment-000007.npy     the rows, (n, d) float32, mapped into memory when read
segment-000007.json    [id, name, size, time] of each; ids grow from segment to segment
segment-000007.parts.npy   where a gallery keeps them: the parts, (n, cells, width) int8, mapped when they are asked for

The manifest holds the checksum of each. Names are small and checked when a segment is opened, rows when they are first
scanned as a whole, parts by `Gallery.check` alone: a search reads a few of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from likewise import media
from likewise.errors import FileError, ShapeError
from likewise.images.stores import About, Parts, Record, Rows

BLOCK, CHECKED = 1 << 22, 16_384
"""Bytes that are hashed and rows that are checked at a time."""

SMALL, LARGE, SCATTERED = 8_192, 32_768, 8
"""Segments below SMALL rows are merged, up to LARGE, when more than SCATTERED of them lie side by side."""

DEAD_SHARE = 0.25
"""A segment is written anew when this share of it is removed."""


@dataclass(eq=False)
class Segment:
    """Rows with their ids and records; `alive` says which of them have not been removed or replaced."""

    number: int
    ids: NDArray[np.int64]
    records: list[Record]
    rows: Rows
    alive: NDArray[np.bool_]
    sums: tuple[str, ...]
    path: Path
    parts: Parts | None = None
    verified: bool = field(default=False)

    def __len__(self) -> int:
        return len(self.ids)

    def scan(self) -> Rows:
        """The rows, checked against their checksum the first time: as they are mapped, for a writer may have merged
        the segment since, and deleted its file."""
        if not self.verified:
            if _mapped_sum(self.rows, self.path) != self.sums[0]:
                raise FileError(f"{self.path}: damaged, its contents do not match the checksum in the manifest")
            self.verified = True
        return self.rows

    def entry(self) -> dict[str, Any]:
        """What the manifest says of it."""
        dead = np.flatnonzero(~self.alive).tolist()
        return {"number": self.number, "rows": len(self), "sha256": list(self.sums), "dead": dead}


def write(
    folder: Path, number: int, ids: Sequence[int], records: Sequence[Record], rows: Rows, parts: Parts | None = None
) -> Segment:
    """A new segment, its files on disk before this returns."""
    listed = [[int(i), r.name, r.size, r.mtime] for i, r in zip(ids, records, strict=True)]
    path, text = folder / f"{_stem(number)}.npy", json.dumps(listed).encode()
    sums = [_saved(path, np.ascontiguousarray(rows, dtype=np.float32)), hashlib.sha256(text).hexdigest()]
    if parts is not None:
        sums.append(_saved(parts_file(path), np.ascontiguousarray(parts, dtype=np.int8)))
    media.write_bytes(path.with_suffix(".json"), text)
    alive, kept = np.ones(len(listed), dtype=bool), None if parts is None else _mapped(parts_file(path), np.int8, 3)
    return Segment(
        number, np.asarray(ids, dtype=np.int64), list(records), _mapped(path), alive, tuple(sums), path, kept
    )


def _saved(path: Path, array: NDArray[Any]) -> str:
    """Write an array; its file's checksum."""
    with media.atomic(path) as sibling:
        np.save(sibling, array, allow_pickle=False)
        return sha256(sibling)


def parts_file(path: Path) -> Path:
    """The file of the parts that belong to a file of rows."""
    return path.with_suffix(".parts.npy")


def read(folder: Path, entry: Any, about: About) -> Segment:
    """The segment that an entry of the manifest tells of; whatever does not fit is a FileError."""
    number, count, sums, dead = _entry(entry, folder)
    path, dim = folder / f"{_stem(number)}.npy", about.dim
    ids, records = _records(path.with_suffix(".json"), sums[1])
    rows = _mapped(path)
    if (len(sums) > 2) != bool(about.cells):
        raise FileError(f"{folder / 'gallery.json'}: damaged, segment {number} and the gallery differ about parts")
    parts = _mapped(parts_file(path), np.int8, 3) if about.cells else None
    if rows.shape != (count, dim) or len(ids) != count:
        raise FileError(f"{path}: holds rows {rows.shape} and {len(ids)} names, expected {count} of {dim} numbers")
    if parts is not None and parts.shape != (count, about.cells, about.width):
        raise FileError(f"{parts_file(path)}: holds parts {parts.shape}, expected {(count, about.cells, about.width)}")
    if any(not 0 <= i < count for i in dead):
        raise FileError(f"{folder / 'gallery.json'}: names removed rows that segment {number} does not have")
    alive = np.ones(count, dtype=bool)
    alive[dead] = False
    return Segment(number, ids, records, rows, alive, sums, path, parts)


def _entry(entry: Any, folder: Path) -> tuple[int, int, tuple[str, ...], list[int]]:
    try:
        found = (entry["number"], entry["rows"], tuple(entry["sha256"]), entry["dead"])
        whole = [found[0], found[1], *found[3]]
        if not all(type(n) is int and n >= 0 for n in whole) or not all(isinstance(s, str) for s in found[2]):
            raise TypeError
        if len(found[2]) not in (2, 3):
            raise TypeError
    except (KeyError, TypeError, ValueError):
        raise FileError(f"{folder / 'gallery.json'}: damaged, one of its segments is not described") from None
    return found


def _mapped(path: Path, dtype: Any = np.float32, ndim: int = 2) -> Any:
    if not path.exists():
        raise FileError(f"{path}: is missing")
    rows = media.map_array(path)
    if rows.ndim != ndim or rows.dtype != dtype or not rows.flags.c_contiguous:
        raise FileError(f"{path}: damaged: expected an array of {np.dtype(dtype).name} with {ndim} axes")
    return rows


def _records(path: Path, checksum: str) -> tuple[NDArray[np.int64], list[Record]]:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise FileError(f"{path}: is missing") from None
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from None
    if hashlib.sha256(text).hexdigest() != checksum:
        raise FileError(f"{path}: damaged, its contents do not match the checksum in the manifest")
    try:
        listed = json.loads(text)
        records = [Record(str(name), int(size), int(mtime)) for _, name, size, mtime in listed]
        ids = np.asarray([one[0] for one in listed], dtype=np.int64).reshape(len(records))
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError):
        raise FileError(f"{path}: damaged: expected [id, name, size, time] of each row") from None
    if (np.diff(ids) <= 0).any():
        raise FileError(f"{path}: damaged: ids do not grow")
    for record in records:
        check_name(record.name, path)
    return ids, records


def check_name(name: str, path: Path | str) -> None:
    """Refuse a name that leads out of the root: "..", a drive, a NUL; an absolute one must be plain."""
    pure = PurePosixPath(name)
    if not name or "\0" in name or ".." in pure.parts or str(pure) != name or name == ".":
        raise FileError(f"{path}: holds the name {name[:80]!r}, which is no plain path below the root")


def check_rows(rows: Rows, records: Sequence[Record], dim: int) -> None:
    """Refuse rows of another length than a store's: kept, they would bar it from being opened."""
    if rows.shape != (len(records), dim):
        raise ShapeError(
            f"model: its embed gave rows of shape {rows.shape}; expected {(len(records), dim)}, as the gallery has"
        )


def sha256(path: Path) -> str:
    """The checksum of a file, read in blocks."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb", buffering=0) as stream:
            while block := stream.read(BLOCK):
                digest.update(block)
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror}") from None
    return digest.hexdigest()


def _mapped_sum(rows: Rows, path: Path) -> str:
    """The checksum of a mapped file, whether or not its name is still there."""
    whole = getattr(rows, "_mmap", None)
    if whole is None:
        return sha256(path)
    digest = hashlib.sha256()
    with memoryview(whole) as view:
        for start in range(0, len(view), BLOCK):
            digest.update(view[start : start + BLOCK])
    return digest.hexdigest()


# ── merging and checking ──────────────────────────────────────────────────────────────────────────────────────────


def marked(segment: Segment, dead: list[int]) -> Segment:
    """The same segment with some rows marked as removed; this one stays as it is."""
    alive = segment.alive.copy()
    alive[dead] = False
    return replace(segment, alive=alive)


def groups(found: Sequence[Segment]) -> Iterator[list[Segment]]:
    """Segments side by side that could be one; a large one that is mostly alive stands for itself."""
    group: list[Segment] = []
    size = 0
    for s in found:
        living = int(s.alive.sum())
        alone = living >= SMALL and living > (1 - DEAD_SHARE) * len(s)
        if group and (alone or size + living > LARGE):
            yield group
            group, size = [], 0
        group, size = [*group, s], size + living
        if alone:
            yield group
            group, size = [], 0
    if group:
        yield group


def worth(group: Sequence[Segment]) -> bool:
    """Whether a group should be written anew."""
    living, whole = sum(int(s.alive.sum()) for s in group), sum(len(s) for s in group)
    return len(group) > SCATTERED or living <= (1 - DEAD_SHARE) * whole


def problems(segment: Segment) -> list[str]:
    """What is wrong with the rows: another checksum, or not unit vectors; or with the parts: another checksum."""
    try:
        rows = segment.scan()
        if segment.parts is not None and sha256(parts_file(segment.path)) != segment.sums[2]:
            raise FileError(f"{parts_file(segment.path)}: damaged, its contents do not match the checksum")
    except FileError as error:
        return [str(error)]
    off = 0
    for start in range(0, len(rows), CHECKED):
        norms = np.linalg.norm(rows[start : start + CHECKED], axis=1)
        off += int((~(np.abs(norms - 1) < 1e-3)).sum())
    return [f"{segment.path}: {off} of its rows are not unit vectors"] if off else []


def _stem(number: int) -> str:
    return f"segment-{number:06d}"
