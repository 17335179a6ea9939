"""A folder of pictures to rows on disk: resumable, on one machine or a cluster; what cannot be read is named.

While it runs, finished parts lie in the folder `<out>.parts`; killed, it goes on from there. What comes out:

    rows.npz     rows (n, d) float32, names (n,), skipped (m,), reasons (m,)          np.load(…, allow_pickle=False)
    rows.npy     the rows alone, and beside them rows.json with names, skipped, model
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise import media
from likewise.errors import FileError, InputError, LikewiseError, ShapeError
from likewise.images import data
from likewise.images.model import Embedder, Skipped, default
from likewise.store import checkpoint
from likewise.store import job as jobs
from likewise.store import run as runs
from likewise.store.job import Job
from likewise.types import Image

if TYPE_CHECKING:
    from jaxtyping import Float32, Int8

    from likewise.images.compare import Embeds
    from likewise.images.data import Picture

WHAT = "embedding of a folder"
MODEL = "model.safetensors"
CHUNK = 512
"""Pictures between two moments at which work is safe on disk."""


@dataclass(frozen=True, eq=False)
class Embedded:
    """Rows (n, d) of unit length with the names of their pictures below the folder, and what could not be read."""

    rows: Float32[np.ndarray, "n d"] = field(repr=False)
    names: tuple[str, ...] = field(repr=False)
    skipped: tuple[Skipped, ...]
    model: str

    def __len__(self) -> int:
        return len(self.names)


def embed_folder(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    model: Embeds | None = None,
    *,
    executor: Any = None,
    n_jobs: int = 1,
    resume: bool = True,
    progress: bool = False,
    chunk: int = CHUNK,
) -> Embedded:
    """Embed every picture below a folder and write the rows to `out`, an .npz or .npy file.

    Pictures are taken in natural order. `executor` and `n_jobs` are those of `likewise.store.job.Job.run`: with them
    the model goes to the workers as a file, and `out` must lie where they can write. One process uses all cores.
    """
    target, embedder = _target(out), default() if model is None else model
    jobs.check_executor(executor, n_jobs)
    found, odd = listing(folder)
    if not found:
        raise FileError(f"{folder}: no picture in this folder" + (f"; {len(odd)} only have the name" if odd else ""))
    items = [[str(p.relative_to(folder)) for p in found[i : i + chunk]] for i in range(0, len(found), chunk)]
    name, digest = model_name(embedder), digest_of(embedder)
    identity = {"what": WHAT, "model": name, "digest": digest, "files": _stamp(found), "chunk": chunk}
    parts = target.with_name(target.name + ".parts")
    alone = executor is None and n_jobs == 1
    with (
        Job.begin(parts, identity, resume=resume, on_change="restart") as job,
        runs.progress(len(found), "embedding", show=progress and alone) as advance,
    ):
        work = _Work(str(Path(folder).absolute()), embedder, digest, advance)
        if not alone:  # the model goes to the workers as a file, not with every part
            checkpoint.save(embedder, parts / MODEL)  # type: ignore[arg-type]
            work = _Work(work.folder, str((parts / MODEL).absolute()), digest)
        job.run(work, items, executor=executor, n_jobs=n_jobs, progress=progress and not alone)
        whole = _join(job, items, odd, name)
        write_rows(whole, target)
        (parts / MODEL).unlink(missing_ok=True)
        jobs.remove(parts)
    return whole


def listing(folder: str | os.PathLike[str]) -> tuple[list[Path], list[Skipped]]:
    """The pictures below a folder in natural order, and the files that only have a picture's name."""
    root = Path(folder)
    found = media.images(root)
    known = set(found)
    odd = []
    for where, inner, names in os.walk(root):
        inner[:] = [d for d in inner if not d.startswith(".")]
        odd += [
            path
            for path in (Path(where, n) for n in sorted(names) if not n.startswith("."))
            if path.suffix.lower() in media.PICTURE_NAMES and path not in known and path.is_file()
        ]
    return found, [Skipped(-1, str(p), "empty, or not a picture") for p in odd]


def embed_files(
    model: Embeds, paths: Sequence[Path], advance: Callable[[], None] = lambda: None
) -> tuple[Float32[np.ndarray, "n d"], list[int], list[Skipped]]:
    """Unit rows of the pictures that can be read, the places of those in `paths`, and the others with the reason."""
    if hasattr(model, "skipped"):
        embed: Any = model.embed
        rows = embed(_counted(paths, advance), on_error="skip")
        skipped: list[Skipped] = list(model.skipped)
    else:
        arrays, skipped = decoded(_counted(paths, advance))
        rows = model.embed(arrays) if arrays else np.empty((0, getattr(model, "dim", 0)))
    kept = readable(len(paths), skipped)
    return unit_rows(rows, len(kept)), kept, skipped


def embed_files_with_parts(
    model: Embedder, paths: Sequence[Path], advance: Callable[[], None] = lambda: None
) -> tuple[Float32[np.ndarray, "n d"], Int8[np.ndarray, "n cells w"], list[int], list[Skipped]]:
    """The same with the parts of each picture after its row."""
    rows, parts = model.embed_with_parts(_counted(paths, advance), on_error="skip")
    kept = readable(len(paths), model.skipped)
    return unit_rows(rows, len(kept)), parts, kept, list(model.skipped)


def readable(count: int, skipped: Sequence[Skipped]) -> list[int]:
    """The places of `count` pictures that were not skipped."""
    bad = {s.index for s in skipped}
    return [i for i in range(count) if i not in bad]


def embed_pictures(model: Embeds, pictures: Sequence[Picture]) -> Float32[np.ndarray, "n d"]:
    """Unit rows of pictures that must all be readable; a model that is not an embedder of ours is given arrays."""
    ours = hasattr(model, "skipped")
    rows = model.embed(pictures if ours else [data.picture(p, where=f"image {i}") for i, p in enumerate(pictures)])
    return unit_rows(rows, len(pictures))


def embed_once(model: Embedder, images: Sequence[Image]) -> list[tuple[Any, Any]]:
    """The embedding of each image with its parts (None where the model has no map); an Image remembers its own."""
    made: list[tuple[Any, Any]] = []

    def make(i: int) -> tuple[Any, Any]:
        if not made:  # all in one pass: the last bits of a network's output depend on what shares its batch
            if model.part_shape is None:
                made.extend((row, None) for row in model.embed(list(images)))
            else:
                made.extend(zip(*model.embed_with_parts(list(images)), strict=True))
        return made[i]

    return [one.remember(("embedding", model.digest), lambda i=i: make(i)) for i, one in enumerate(images)]  # type: ignore[misc]


def unit_rows(rows: Any, count: int, where: str = "model: its embed gave") -> Float32[np.ndarray, "n d"]:
    """What a model gave, as float32 rows of length 1; anything else is refused."""
    array = floats(rows, where)
    if array.ndim != 2 or len(array) != count:
        raise ShapeError(f"{where} shape {array.shape} for {count} pictures; expected ({count}, d)")
    norms = np.linalg.norm(array.astype(np.float64), axis=1)
    if not (np.isfinite(norms).all() and (norms > 0).all()):
        raise InputError(f"{where} rows that are zero or not finite; they have no direction")
    if (np.abs(norms - 1) > 1e-6).any():
        array = (array / norms[:, None]).astype(np.float32)
    return np.ascontiguousarray(array)


def floats(rows: Any, where: str) -> Float32[np.ndarray, "..."]:
    """An array of float32, whatever its shape."""
    try:
        return np.asarray(rows, dtype=np.float32)
    except (TypeError, ValueError):
        raise ShapeError(f"{where} rows of different lengths, or no numbers; expected (n, d)") from None


def digest_of(model: Embeds) -> str:
    """What tells a model from another: its own digest, or else its name and dimension."""
    found = getattr(model, "digest", None)
    if isinstance(found, str):
        return found
    return hashlib.sha256(f"{model_name(model)} {getattr(model, 'dim', '')}".encode()).hexdigest()


# ── one part ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class _Work:
    """Embeds one list of names: with the model itself in this process, with the model's file in another."""

    folder: str
    model: Embeds | str
    digest: str
    advance: Callable[[], None] = lambda: None

    def __call__(self, names: list[str]) -> Mapping[str, Any]:
        model = _loaded(self.model, self.digest) if isinstance(self.model, str) else self.model
        rows, kept, skipped = embed_files(model, [Path(self.folder, n) for n in names], self.advance)
        reasons = json.dumps([[s.index, s.reason] for s in skipped]).encode()
        return {"rows": rows, "kept": np.asarray(kept, np.int64), "skipped": np.frombuffer(reasons, np.uint8)}


@functools.lru_cache(maxsize=1)
def _loaded(path: str, digest: str) -> Embeds:
    """The model in a file, kept by a worker for its next part; `digest` tells it from another job's at that path."""
    model: Embeds = checkpoint.load(path)
    return model


def _counted(paths: Sequence[Path], advance: Callable[[], None]) -> Iterator[Path]:
    for path in paths:
        yield path
        advance()


def decoded(pictures: Iterable[Picture]) -> tuple[list[np.ndarray[Any, Any]], list[Skipped]]:
    """The pictures of a model that takes arrays only, and those that cannot be read."""
    arrays, skipped = [], []
    for i, picture in enumerate(pictures):
        try:
            arrays.append(data.picture(picture, where=f"image {i}"))
        except LikewiseError as error:
            skipped.append(Skipped(i, data.name_of(picture) or f"image {i}", str(error)))
    return arrays, skipped


def model_name(model: Embeds) -> str:
    """What a model is called."""
    return str(getattr(model, "name", type(model).__name__))


# ── parts and wholes ──────────────────────────────────────────────────────────────────────────────────────────────


def _stamp(paths: Sequence[Path]) -> str:
    """A digest of which files there are, how long and how old."""
    found = hashlib.sha256()
    for path in paths:
        size, time = media.size_and_time(path)
        found.update(f"{os.fsencode(path)!r} {size} {time}\n".encode())
    return found.hexdigest()


def _join(job: Job, items: Sequence[Sequence[str]], odd: Sequence[Skipped], model: str) -> Embedded:
    rows, names, skipped, start = [], list[str](), list[Skipped](), 0
    for arrays, item in zip(job, items, strict=True):
        rows.append(arrays["rows"])
        names += [item[i] for i in arrays["kept"]]
        skipped += [Skipped(start + i, item[i], why) for i, why in json.loads(arrays["skipped"].tobytes())]
        start += len(item)
    skipped += [Skipped(s.index, s.name, s.reason) for s in odd]
    return Embedded(np.concatenate([r for r in rows if len(r)] or rows[:1]), tuple(names), tuple(skipped), model)


def write_rows(found: Embedded, path: Path) -> None:
    """Rows and names to an .npz, or to an .npy with a .json beside it."""
    skipped = [[s.name, s.reason] for s in found.skipped]
    with media.atomic(path) as sibling:
        if path.suffix == ".npz":
            words = np.asarray(skipped, dtype=str).reshape(-1, 2)
            np.savez(
                sibling, rows=found.rows, names=np.asarray(found.names, str), skipped=words[:, 0], reasons=words[:, 1]
            )
        else:
            np.save(sibling, found.rows, allow_pickle=False)
    if path.suffix == ".npy":
        beside = {"model": found.model, "names": found.names, "skipped": skipped}
        media.write_text(path.with_suffix(".json"), json.dumps(beside, indent=1) + "\n")


def _target(out: str | os.PathLike[str]) -> Path:
    path = Path(out)
    if path.suffix not in (".npz", ".npy"):
        raise InputError(f"out: expected a name that ends in .npz or .npy, got {os.fspath(out)!r}")
    return path
