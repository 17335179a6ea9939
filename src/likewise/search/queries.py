"""A query: one picture, several of the same thing, or a video; each becomes a few shots."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from likewise import media
from likewise.errors import FileError, InputError
from likewise.images import data
from likewise.media import VIDEO_NAMES

SHOTS = 16
"""Frames of a video, and pictures of a query, at most."""


@dataclass(frozen=True, eq=False)
class Query:
    """The shots of a query: pictures that a level reads, what each is called, and of how many they were taken."""

    shots: tuple[Any, ...]
    names: tuple[str, ...]
    of: int = 0

    def __len__(self) -> int:
        return len(self.shots)


def shots(query: Any, most: int = SHOTS) -> Query:
    """A picture (path, array, Pillow image, tensor), a list of them, a folder, or a video, as shots, `most` at most.

    Of more pictures, or of a longer video, shots are taken evenly from the first to the last.
    """
    if isinstance(query, Query):
        return query
    if isinstance(query, str | os.PathLike):
        return _at(Path(query), most)
    if isinstance(query, Iterable) and not _is_picture(query):
        parts = [shots(one, most) for one in query]
        if not parts:
            raise InputError("query: expected at least one picture, got none")
        pictures = [(s, n) for part in parts for s, n in zip(part.shots, part.names, strict=True)]
        whole = sum(max(part.of, len(part)) for part in parts)
        return replace(_evenly([p for p, _ in pictures], [n for _, n in pictures], most), of=whole)
    return Query((data.picture(query, where="query"),), ("query",))


def _is_picture(query: Any) -> bool:
    """Whether something that can be iterated over is one picture all the same: an array or tensor, a Pillow image."""
    if hasattr(query, "ndim"):
        return bool(query.ndim in (2, 3))
    return hasattr(query, "getexif")


def _at(path: Path, most: int) -> Query:
    if path.is_dir():
        files = media.images(path)
        if not files:
            raise FileError(f"{path}: no picture in this folder to search with")
        return _evenly(list(files), [str(f) for f in files], most)
    if not path.exists():
        raise FileError(f"{path}: no such file or folder")
    if media.is_image(path):
        return Query((path,), (str(path),))
    if path.suffix.lower() in media.PICTURE_NAMES:
        raise FileError(f"{path}: is named like a picture, but is none that can be read")
    if path.suffix.lower() not in VIDEO_NAMES:
        raise FileError(f"{path}: is neither a picture nor a video")
    return _video(path, most)


def _video(path: Path, most: int) -> Query:
    """Frames of a video from its first to its last: every n-th is kept, n doubling while there are too many."""
    kept: list[tuple[int, Any]] = []
    every = 1
    for number, frame in enumerate(media.frames(path)):
        if number % every == 0:
            kept.append((number, frame))
        if len(kept) > 4 * most:
            kept, every = kept[::2], 2 * every
    return _evenly([f for _, f in kept], [f"{path}#{n}" for n, _ in kept], most)


def _evenly(pictures: list[Any], names: list[str], most: int) -> Query:
    if len(pictures) <= most:
        return Query(tuple(pictures), tuple(names))
    at = np.unique(np.linspace(0, len(pictures) - 1, most).round().astype(int))
    return Query(tuple(pictures[i] for i in at), tuple(names[i] for i in at), len(pictures))
