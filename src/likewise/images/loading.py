"""Pictures for training: decoded, cropped and mirrored in threads, a few batches ahead of the network."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likewise import media
from likewise.errors import FileError, InputError, LikewiseError, ShapeError
from likewise.images import data
from likewise.images.dataset import whole, within
from likewise.images.model import Skipped
from likewise.nn.backbone import resize

if TYPE_CHECKING:
    from likewise.images.augment import Augment
    from likewise.images.data import Picture

Index: TypeAlias = NDArray[np.int64]
Pixels: TypeAlias = NDArray[np.uint8]
Start: TypeAlias = Callable[..., Callable[[], bool]]

LOOKAHEAD = 2
"""Batches that are prepared while the network is busy with another."""

_PURPOSE = 0x10AD
"""Sets the loader's random numbers apart from those of another who has the same seed."""


class Loader:
    """Augmented pictures by index: the bytes depend on (seed, step, index, view), never on the threads.

    `keep_side` keeps each decoded picture, its shortest side brought down to so many pixels, in memory (about 85 kB a
    picture at 144), or in a temporary file in the folder `keep_in`: it is decoded once. A picture that cannot be read
    is named in `.skipped` and replaced by the next one of its class that can be read and is not in the batch.
    """

    def __init__(
        self,
        items: Sequence[Picture],
        labels: ArrayLike,
        augment: Augment,
        *,
        views: int = 1,
        seed: int = 0,
        workers: int = 2,
        keep_side: int | None = None,
        keep_in: str | os.PathLike[str] | None = None,
    ) -> None:
        for name, value, least in (("views", views, 1), ("seed", seed, 0), ("workers", workers, 0)):
            whole(name, value, least)
        self.items, self.labels, self.augment = tuple(items), np.asarray(labels), augment
        if self.labels.shape != (len(self.items),):
            raise ShapeError(f"labels: expected ({len(self.items)},), one a picture, got shape {self.labels.shape}")
        self.views, self.seed, self.workers, self.keep_side = views, seed, workers, keep_side
        self._kept = _store(keep_side, keep_in)
        self._bad: dict[int, Skipped] = {}

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """The pictures that could not be read so far, in order."""
        found = self._bad.copy()
        return tuple(found[i] for i in sorted(found))

    def leave_out(self, unreadable: Iterable[Skipped]) -> None:
        """Take these for unreadable, as was found before."""
        self._bad.update({s.index: s for s in unreadable})

    def load(self, indices: ArrayLike, step: int) -> Pixels:
        """These pictures as they are seen at this step: uint8 (views, n, size, size, 3)."""
        with contextlib.closing(self.ahead([indices], start=step)) as batches:
            return next(batches)[2]

    def ahead(
        self, batches: Iterable[ArrayLike], start: int = 0, *, stride: int = 1
    ) -> Generator[tuple[int, Index, Pixels]]:
        """(step, indices, arrays) of each batch, steps start, start + stride, …; the next are prepared meanwhile.

        The indices are those of the pictures that are really there, after the unreadable ones have been replaced.
        """
        whole("start", start, 0)
        whole("stride", stride, 0)
        numbered = zip(itertools.count(start, stride), batches)
        if self.workers == 0:
            yield from (self._finish(self._begin(b, step, functools.partial)) for step, b in numbered)
            return
        pool = ThreadPoolExecutor(self.workers, "likewise-load")
        try:
            begun = (self._begin(b, step, lambda *a: pool.submit(*a).result) for step, b in numbered)
            yield from (self._finish(batch) for batch in _in_advance(begun, LOOKAHEAD))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _begin(self, indices: ArrayLike, step: int, start: Start) -> _Batch:
        """One task a picture; each writes its views to its own place in the batch."""
        chosen = within("indices", indices, len(self.items))
        size = self.augment.size
        arrays = np.empty((self.views, len(chosen), size, size, 3), dtype=np.uint8)
        done = [start(self._show, int(i), step, arrays[:, k]) for k, i in enumerate(chosen)]
        return _Batch(step, chosen, arrays, done)

    def _finish(self, batch: _Batch) -> tuple[int, Index, Pixels]:
        failed = [k for k, done in enumerate(batch.done) if not done()]
        for k in failed:
            batch.indices[k] = self._replace(batch, k)
        return batch.step, batch.indices, batch.arrays

    def _show(self, i: int, step: int, out: Pixels) -> bool:
        """Write the views of picture i to `out`; False where it cannot be read, which is noted once."""
        if i in self._bad:
            return False
        try:
            array = self._source(i)
        except LikewiseError as error:
            self._bad[i] = Skipped(i, data.name_of(self.items[i]) or f"image {i}", str(error))
            return False
        for view in range(self.views):
            out[view] = self.augment(array, np.random.default_rng([self.seed, step, i, view, _PURPOSE]))
        return True

    def _source(self, i: int) -> Pixels:
        """Picture i, as it is kept or freshly decoded."""
        if self.keep_side is None:
            return _decoded(self.items[i], i, self.augment.decoded_side)
        kept = self._kept.get(i)
        if kept is None:
            kept = _at_most(_decoded(self.items[i], i, 2 * self.keep_side), self.keep_side)
            self._kept.put(i, kept)
        return kept

    def _replace(self, batch: _Batch, k: int) -> int:
        for j in self._substitutes(int(batch.indices[k]), {int(i) for i in batch.indices}):
            if self._show(j, batch.step, batch.arrays[:, k]):
                return j
        raise FileError(f"none of the {len(self.items)} pictures can be read; the first: {self.skipped[0].reason}")

    def _substitutes(self, i: int, taken: set[int]) -> Iterator[int]:
        """Those after i, around the end: of its class before others, and of each those first that are not `taken`."""
        order = np.roll(np.arange(len(self.items)), -(i + 1))
        same = self.labels[order] == self.labels[i]
        for part in (order[same], order[~same]):
            yield from (int(j) for j in part if j not in taken)
            yield from (int(j) for j in part if j in taken)


@dataclass(frozen=True)
class _Batch:
    """A batch under way: calling each of `done` waits for its picture and says whether it could be read."""

    step: int
    indices: Index
    arrays: Pixels
    done: list[Callable[[], bool]]


def _in_advance(batches: Iterator[_Batch], count: int) -> Iterator[_Batch]:
    """The same batches, `count` further ones begun before each is given."""
    waiting = deque(itertools.islice(batches, count))
    for batch in batches:
        waiting.append(batch)
        yield waiting.popleft()
    yield from waiting


def _decoded(item: Picture, index: int, side: int) -> Pixels:
    """One picture as uint8 (h, w, 3); of a large JPEG no more pixels than are needed for a shortest side of `side`."""
    if isinstance(item, str | os.PathLike):
        return media.read_array(item, side=side)
    return data.picture(item, where=f"image {index}")


def _at_most(array: Pixels, side: int) -> Pixels:
    """The whole picture with its shortest side at most `side`: antialiased bicubic."""
    height, width = array.shape[:2]
    scale = side / min(height, width)
    if scale >= 1:
        return array
    size = (max(side, round(width * scale)), max(side, round(height * scale)))
    return resize(array, size, (0.0, 0.0, float(width), float(height)))


# ------------------------------------------------------------------------------------------------------ what is kept


class _Store(Protocol):
    def get(self, i: int) -> Pixels | None: ...

    def put(self, i: int, array: Pixels) -> None: ...


class _Memory:
    """Decoded pictures in a dictionary."""

    def __init__(self) -> None:
        self._arrays: dict[int, Pixels] = {}

    def get(self, i: int) -> Pixels | None:
        return self._arrays.get(i)

    def put(self, i: int, array: Pixels) -> None:
        self._arrays[i] = array


class _File:
    """Decoded pictures one after the other in a file without a name, which goes when the loader goes."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            self._file = tempfile.TemporaryFile(buffering=0, dir=folder)  # noqa: SIM115
        except OSError as error:
            raise FileError(f"{os.fspath(folder)}: cannot keep pictures here: {error.strerror or error}") from None
        weakref.finalize(self, self._file.close)
        self._places: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._lock = threading.Lock()

    def get(self, i: int) -> Pixels | None:
        with self._lock:
            if i not in self._places:
                return None
            place, shape = self._places[i]
            self._file.seek(place)
            return np.frombuffer(self._file.read(int(np.prod(shape))), dtype=np.uint8).reshape(shape)

    def put(self, i: int, array: Pixels) -> None:
        """Keep a picture; where the disk is full it is not kept, and will be decoded again."""
        with self._lock, contextlib.suppress(OSError):
            place = self._file.seek(0, os.SEEK_END)
            if self._file.write(array.tobytes()) == array.nbytes:
                self._places[i] = place, array.shape


def _store(keep_side: int | None, keep_in: str | os.PathLike[str] | None) -> _Store:
    if keep_side is not None:
        whole("keep_side", keep_side, 1)
    elif keep_in is not None:
        raise InputError("keep_side: expected with keep_in, the side at which pictures are kept in that folder")
    return _Memory() if keep_in is None else _File(keep_in)
