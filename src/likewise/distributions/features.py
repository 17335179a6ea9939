"""Pictures to features: what a comparison is made of, wherever it comes from, and which net described it.

A source is a folder of pictures, a list of files or arrays, a batch of pictures, a generator (anything with `.latent`
that is callable), rows (n, d) that are features already, or a .npy / .npz file of such rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from likewise import media
from likewise.distributions.describers import Describe, Describer, describer, name_of, tensor_of
from likewise.distributions.pictures import as_pictures
from likewise.errors import FileError, InputError, LikewiseError, ShapeError

if TYPE_CHECKING:
    from torch import Tensor

Rows = NDArray[np.floating]
Indices = Sequence[int]

BATCH = 64
"""Pictures that are in memory at a time."""
LARGEST = float(np.finfo(np.float32).max)
"""The largest number in a feature: the fourth power of a larger one, which the Fréchet distance takes, is infinite."""
DRAWN = 5000
"""How many pictures are drawn of a generator where nothing else says it."""
PLAIN = "features"
"""The name of the net where rows came without one."""


@dataclass(frozen=True, eq=False, repr=False)
class Features:
    """Rows (n, d), float32 or float64, and the name of the net that made them.

    `names` says what each row stands for (a file); `pictures` gives those of some rows back, for a drawing;
    `skipped` names what could not be read, with the reason.
    """

    rows: Rows
    net: str = PLAIN
    names: tuple[str, ...] | None = None
    pictures: Callable[[Indices], list[Any]] | None = None
    skipped: tuple[tuple[str, str], ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def dim(self) -> int:
        """The number d of features of a picture."""
        return int(self.rows.shape[1])

    def __repr__(self) -> str:
        return f"Features({len(self)} rows of {self.dim}, {self.net})"


def features(
    source: Any,
    describe: Describe = None,
    *,
    n: int | None = None,
    seed: int = 0,
    where: str = "pictures",
    on_error: Literal["raise", "skip"] = "raise",
    progress: bool = False,
    planes: int | None = None,
) -> Features:
    """The features of a source: one row a picture.

    Rows (n, d) are taken as they are. A callable `describe` gets tensors (b, c, h, w): pictures from files and 8-bit
    arrays as floats in [0, 1], floats and what a generator gives as they are. `n` and `seed` say how many pictures are
    drawn of a generator, and which. With on_error="skip" files that cannot be read are left out, and in `.skipped`.
    planes=1 reads files as grey, for a callable that describes pictures of one plane.
    """
    if isinstance(source, Features):
        return source
    if on_error not in ("raise", "skip"):
        raise InputError(f'on_error: expected "raise" or "skip", got {on_error!r}')
    job = _Job(describer(describe), where, on_error == "skip", progress, planes)
    if is_generator(source):
        return _drawn(source, job, n, seed)
    if isinstance(source, str | os.PathLike):
        return _of_path(Path(source), job)
    if hasattr(source, "ndim") and hasattr(source, "shape"):
        return _of_array(source, job)
    return _of_list(source, job)


def is_generator(source: Any) -> bool:
    """Whether it can be drawn from: callable, with the density of its latents."""
    return callable(source) and hasattr(source, "latent")


def planes_of(source: Any) -> int | None:
    """How many planes the pictures of a generator or of a batch have; None where that is not known."""
    if is_generator(source):
        labels = getattr(source, "labels", None)
        one = source.latent.sample(1, np.random.default_rng(0))
        source = source(one) if labels is None else source(one, np.zeros(1, dtype=np.int64))
    shape = tuple(getattr(source, "shape", ()))
    return int(shape[1]) if len(shape) == 4 and shape[1] in (1, 3) else None


def _grey(picture: NDArray[Any]) -> NDArray[Any]:
    """An 8-bit picture (h, w, 3) as its brightness (h, w); what is grey stays as it is."""
    return np.asarray(np.rint(picture @ np.array([0.299, 0.587, 0.114])), dtype=np.uint8)


# ------------------------------------------------------------------------------------------------------- sources


def _of_path(path: Path, job: _Job) -> Features:

    if path.suffix.lower() in (".npy", ".npz") and path.is_file():
        arrays = media.load_arrays(path)
        if len(arrays) != 1:
            raise FileError(f"{path}: expected one array of features (n, d), got {len(arrays)}: {', '.join(arrays)}")
        return job.rows(next(iter(arrays.values())), str(path))
    if path.is_file():
        raise FileError(f"{path}: expected a folder of pictures, or a .npy or .npz file of features (n, d)")
    found = media.images(path)
    if not found:
        raise FileError(f"{path}: no pictures in this folder")
    job.skip_misnamed(path, found)
    return job.items(found)


def _of_array(source: Any, job: _Job) -> Features:
    if source.ndim == 2:
        return job.rows(_numpy(source), job.where)
    if source.ndim not in (3, 4) or 0 in tuple(source.shape):
        raise ShapeError(
            f"{job.where}: expected features (n, d), or pictures (n, h, w), (n, h, w, 3) or (n, c, h, w), "
            f"got shape {tuple(source.shape)}"
        )
    return job.batches(len(source), lambda which: tensor_of(source[which], where=job.where))


def _of_list(source: Any, job: _Job) -> Features:
    if isinstance(source, bytes) or not isinstance(source, Iterable):
        raise InputError(
            f"{job.where}: expected a folder, pictures, a generator or features (n, d), got {type(source).__name__}"
        )
    items = list(source)
    if not items:
        raise ShapeError(f"{job.where}: expected at least one picture, got none")
    if all(isinstance(item, str | os.PathLike) for item in items):
        return job.items([Path(item) for item in items])
    if all(getattr(item, "ndim", 0) in (2, 3) for item in items):
        return job.items(items)
    try:
        return _of_array(np.asarray(items, dtype=np.float64), job)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{job.where}: expected files, pictures or rows of numbers in the list") from None


def _drawn(generator: Any, job: _Job, n: int | None, seed: int) -> Features:
    """Pictures of a generator itself (ρ = 0), in the order of the seed; only latents are kept."""
    count = DRAWN if n is None else n
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 2:
        raise InputError(f"n: expected a whole number ≥ 2, got {n!r}")
    rng = np.random.default_rng(seed)
    z = generator.latent.sample(int(count), rng)
    labels = getattr(generator, "labels", None)
    y = None if labels is None else rng.integers(labels, size=int(count))

    def pictures(which: Any) -> Tensor:
        made: Tensor = generator(z[which]) if y is None else generator(z[which], y[which])
        return made

    if job.net.default and pictures([0]).ndim == 2:
        rows = [_numpy(pictures(slice(i, i + BATCH))) for i in range(0, int(count), BATCH)]
        return job.rows(np.concatenate(rows), job.where)
    return job.batches(int(count), pictures)


# ------------------------------------------------------------------------------------------------------ describing


@dataclass
class _Job:
    """How one source is described: by which net, what it is called in errors, whether bad files are skipped."""

    net: Describer
    where: str
    skip: bool
    progress: bool
    planes: int | None = None
    skipped: list[tuple[str, str]] = field(default_factory=list)
    parts: list[Rows] = field(default_factory=list)

    def rows(self, rows: NDArray[Any], where: str) -> Features:
        """Rows that are features already."""
        if rows.dtype.kind in "iub" or rows.dtype.itemsize > 8:
            rows = rows.astype(np.float64)
        if rows.ndim != 2 or 0 in rows.shape or rows.dtype.kind != "f":
            raise ShapeError(f"{where}: expected features (n, d) as numbers, got {rows.dtype} of shape {rows.shape}")
        rows = rows.astype(np.float32) if rows.dtype.itemsize < 4 else rows
        _check_finite(rows, where)
        return Features(rows, PLAIN if self.net.default else self.net.name)

    def batches(self, n: int, pictures: Callable[[Any], Tensor]) -> Features:
        """n pictures, of which `pictures` gives a slice, or a list of indices, as a tensor."""
        from likewise.store.run import progress

        with progress(n, f"describing {self.where}", show=self.progress) as advance:
            for start in range(0, n, BATCH):
                batch = pictures(slice(start, min(start + BATCH, n)))
                self._keep(self.net(batch, where=self.where), len(batch))
                for _ in range(len(batch)):
                    advance()
        return self._made(None, _drawable(pictures))

    def items(self, items: Sequence[Any]) -> Features:
        """Picture files or arrays, of any sizes: neighbours of one size go through the net together."""
        from likewise.store.run import progress

        kept: list[int] = []
        with (
            progress(len(items), f"describing {self.where}", show=self.progress) as advance,
            ThreadPoolExecutor(min(8, os.cpu_count() or 1), "likewise-decode") as pool,
        ):
            for start in range(0, len(items), BATCH):
                few = range(start, min(start + BATCH, len(items)))
                read = zip(few, pool.map(lambda i: self._read(items[i]), few), strict=True)
                kept += self._describe([(i, p) for i, p in read if self._readable(items[i], p)])
                for _ in few:
                    advance()
        if not kept:
            raise FileError(f"{self.where}: none of {len(items)} pictures can be read; the first: {self.skipped[0][1]}")
        names = tuple(str(items[i]) for i in kept) if isinstance(items[0], Path) else None
        return self._made(names, lambda which: [items[kept[i]] for i in which])

    def skip_misnamed(self, folder: Path, found: list[Path]) -> None:
        """Note files that are named like pictures and are none."""
        known = set(found)
        for p in sorted(folder.rglob("*")):
            hidden = any(part.startswith(".") for part in p.relative_to(folder).parts)
            if p.suffix.lower() in media.PICTURE_NAMES and p not in known and not hidden and p.is_file():
                if not self.skip:
                    raise FileError(f"{p}: empty, or not a picture; remove it, or skip it with on_error='skip'")
                self.skipped.append((str(p), "empty, or not a picture"))

    def _read(self, item: Any) -> Tensor | NDArray[Any] | LikewiseError:
        """One picture, or why there is none."""
        from likewise.media import read_array

        try:
            if isinstance(item, Path):
                picture = read_array(item, side=self.net.side)
                return _grey(picture) if self.planes == 1 and not self.net.takes_any_size else picture
            return tensor_of(item[None], where=self.where)[0]
        except LikewiseError as error:
            return error

    def _readable(self, item: Any, picture: Any) -> bool:
        if not isinstance(picture, LikewiseError):
            return True
        if not self.skip or not isinstance(item, Path):
            raise picture
        self.skipped.append((str(item), str(picture)))
        return False

    def _describe(self, read: list[tuple[int, Any]]) -> list[int]:
        if self.net.takes_any_size:
            groups = [read] if read else []
        else:
            groups = [list(group) for _, group in groupby(read, key=lambda one: tuple(one[1].shape))]
        for group in groups:
            self._keep(self.net([p for _, p in group], where=self.where), len(group))
        return [i for i, _ in read]

    def _keep(self, rows: Rows, n: int) -> None:
        if rows.ndim != 2 or len(rows) != n or rows.shape[1] == 0:
            raise ShapeError(f"describe: expected ({n}, …), one row a picture, got shape {rows.shape}")
        if self.parts and rows.shape[1] != self.parts[0].shape[1]:
            raise ShapeError(
                f"describe: gave {rows.shape[1]} features for one picture of {self.where} and "
                f"{self.parts[0].shape[1]} for another; it must pool over pictures of different sizes"
            )
        _check_finite(rows, f"describe, of {self.where},")
        self.parts.append(rows)

    def _made(self, names: tuple[str, ...] | None, pictures: Callable[[Indices], list[Any]]) -> Features:
        return Features(np.concatenate(self.parts), self.net.name, names, pictures, tuple(self.skipped))


def _drawable(pictures: Callable[[Any], Tensor]) -> Callable[[Indices], list[Any]]:
    """Pictures of some indices, 8 bits; none where what the source gives cannot be shown."""

    def some(which: Indices) -> list[Any]:
        if len(which) == 0:
            return []
        x = pictures(np.asarray(which, dtype=np.int64))
        return as_pictures(x) if x.ndim == 4 and x.shape[1] in (1, 3) else []

    return some


def _numpy(x: Any) -> NDArray[Any]:
    return np.asarray(x.detach().cpu() if hasattr(x, "detach") else x)


def _check_finite(rows: Rows, where: str) -> None:
    for start in range(0, len(rows), 4096):
        good = (np.abs(rows[start : start + 4096]) <= LARGEST).all(axis=1)  # NaN is not, either
        if not good.all():
            row = start + int((~good).argmax())
            what = f"a number beyond ±{LARGEST:.1e}" if np.isfinite(rows[row]).all() else "NaN or infinity"
            raise InputError(f"{where}: row {row} contains {what}")


__all__ = ["Features", "features", "is_generator", "name_of"]
