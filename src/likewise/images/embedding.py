"""A folder of images to embeddings on disk: resumable, on one machine or a cluster; what cannot be read is named.

While it runs, finished parts lie in the folder `<out>.parts`; killed, it resumes there. What comes out is an .npz:

    rows (n, d) float32, names (n,), skipped (m,), reasons (m,)          np.load(…, allow_pickle=False)
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np

from likewise import inputs, media
from likewise.errors import FileError, InputError, LikewiseError, ShapeError
from likewise.images.embedder import Skipped, batched, default, name_of
from likewise.nn.backbone import DECODED_SIDE
from likewise.store import checkpoint
from likewise.store import job as jobs
from likewise.store import run as runs
from likewise.store.job import Job

if TYPE_CHECKING:
    from jaxtyping import Float32

    from likewise.images.embedder import Embeds

MODEL = "model.safetensors"
CHUNK = 512
"""Images between two moments at which work is safe on disk."""


@dataclass(frozen=True, eq=False)
class Embedded:
    """Rows (n, d) of unit length with the names of their images below the folder, and what could not be read."""

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
    """Embed every image below a folder, in natural order, and write the rows to `out`, an .npz file.

    `executor` and `n_jobs` are those of `likewise.store.job.Job.run`. With them the model goes to the workers as a
    file: they must see the images and the folder of `out`. One process uses all cores.
    """
    target, embedder = Path(out), default() if model is None else model
    if target.suffix != ".npz":
        raise InputError(f"out: expected a name that ends in .npz, got {os.fspath(out)!r}")
    jobs.check_executor(executor, n_jobs)
    paths, odd = listing(folder)
    if not paths:
        raise FileError(f"{folder}: no image in this folder" + (f"; {len(odd)} only have the name" if odd else ""))
    items = [[str(p.relative_to(folder)) for p in paths[i : i + chunk]] for i in range(0, len(paths), chunk)]
    name, digest = model_name(embedder), digest_of(embedder)
    identity = {"what": "embedding of a folder", "model": name, "digest": digest, "files": stamp(paths), "chunk": chunk}
    parts = target.with_name(target.name + ".parts")
    alone = executor is None and n_jobs == 1
    with (
        Job.begin(parts, identity, resume=resume, on_change="restart") as job,
        runs.progress(len(paths), "embedding", show=progress and alone) as advance,
    ):
        work = _Work(str(Path(folder).absolute()), embedder, digest, advance)
        if not alone:  # the model goes to the workers as a file, not with every part
            checkpoint.save(embedder, parts / MODEL)  # type: ignore[arg-type]
            work = _Work(work.folder, str((parts / MODEL).absolute()), digest)
        job.run(work, items, executor=executor, n_jobs=n_jobs, progress=progress and not alone)
        whole = _join(job, items, odd, name)
        _write(whole, target)
        (parts / MODEL).unlink(missing_ok=True)
        jobs.remove(parts)
    return whole


def listing(folder: str | os.PathLike[str]) -> tuple[list[Path], list[Skipped]]:
    """The images below a folder in natural order; the files that only have an image's name, and unreadable folders."""
    unreadable: list[OSError] = []
    images = media.images(folder, unreadable=unreadable)
    odd = [Skipped(-1, str(path), "empty, or not an image") for path in inputs.misnamed(folder)]
    return images, odd + [Skipped(-1, str(e.filename), f"cannot be read: {e.strerror}") for e in unreadable]


class Made(NamedTuple):
    """What a model made of images: unit rows of those that can be read, their places, and the others."""

    rows: Float32[np.ndarray, "n d"]
    kept: list[int]
    skipped: list[Skipped]


def embed_images(
    model: Embeds,
    items: Sequence[Any],
    *,
    on_error: Literal["raise", "skip"] = "skip",
    advance: Callable[[], None] | None = None,
    **options: Any,
) -> Made:
    """Unit rows of images by any model: one that names what it has `skipped`, as ours do, or one that takes arrays.

    The latter is given 512 at a time. `advance` is called after each image; `options` are those of `Embedder.embed`.
    """
    each = items if advance is None else _counted(items, advance)
    ours, skipped = cast(Any, model), cast(Sequence[Skipped], ())
    if not hasattr(model, "skipped"):
        rows, skipped = _embed_arrays(model, each, on_error)
    else:
        rows, skipped = ours.embed(each, on_error=on_error, **options), ours.skipped
    bad = {s.index for s in skipped}
    kept = [i for i in range(len(items)) if i not in bad]
    return Made(unit_rows(rows, len(kept)), kept, list(skipped))


def _embed_arrays(model: Embeds, items: Iterable[Any], on_error: str) -> tuple[Any, list[Skipped]]:
    """Rows by a model that takes arrays only, and what could not be read."""
    parts, skipped = list[Any](), list[Skipped]()
    for some in batched(enumerate(items), CHUNK):
        arrays = []
        for i, item in some:
            try:
                image = inputs.image(item, where=f"image {i}")
                arrays.append(image.reduced(DECODED_SIDE, keep=image is item))
            except LikewiseError as error:
                if on_error == "raise":
                    raise
                skipped.append(Skipped(i, name_of(item, i), str(error)))
        if arrays:
            parts.append(unit_rows(model.embed(arrays), len(arrays)))
    return np.concatenate(parts) if parts else np.empty((0, getattr(model, "dim", 0))), skipped


def unit_rows(rows: Any, count: int, where: str = "model: its embed gave") -> Float32[np.ndarray, "n d"]:
    """What a model gave, as float32 rows of length 1; anything else is refused."""
    array = floats(rows, where)
    if array.ndim != 2 or len(array) != count:
        raise ShapeError(f"{where} shape {array.shape} for {count} images; expected ({count}, d)")
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
    own = getattr(model, "digest", None)
    if isinstance(own, str):
        return own
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
        made = embed_images(model, [Path(self.folder, n) for n in names], advance=self.advance)
        reasons = json.dumps([[s.index, s.reason] for s in made.skipped]).encode()
        return {"rows": made.rows, "kept": np.asarray(made.kept, np.int64), "skipped": np.frombuffer(reasons, np.uint8)}


@functools.lru_cache(maxsize=1)
def _loaded(path: str, digest: str) -> Embeds:
    """The model in a file, kept by a worker for its next part; `digest` tells it from another job's at that path."""
    model: Embeds = checkpoint.load(path)
    return model


def _counted(items: Iterable[Any], advance: Callable[[], None]) -> Iterator[Any]:
    for item in items:
        yield item
        advance()


def model_name(model: Embeds) -> str:
    """What a model is called."""
    return str(getattr(model, "name", type(model).__name__))


# ── parts and wholes ──────────────────────────────────────────────────────────────────────────────────────────────


def stamp(items: Iterable[Any]) -> str:
    """A digest of which images there are: files by name, length and time, others by their pixels."""
    sha = hashlib.sha256()
    for item in items:
        if isinstance(item, str | os.PathLike):
            sha.update(f"{os.fsencode(item)!r} {' '.join(map(str, media.size_and_time(item)))}\n".encode())
        else:
            array = np.asarray(item)
            sha.update(f"{array.shape} {array.dtype}\n".encode() + array.tobytes())
    return sha.hexdigest()


def _join(job: Job, items: Sequence[Sequence[str]], odd: Sequence[Skipped], model: str) -> Embedded:
    rows, names, skipped, start = [], list[str](), list[Skipped](), 0
    for arrays, item in zip(job, items, strict=True):
        rows.append(arrays["rows"])
        names += [item[i] for i in arrays["kept"]]
        skipped += [Skipped(start + i, item[i], why) for i, why in json.loads(arrays["skipped"].tobytes())]
        start += len(item)
    return Embedded(np.concatenate([r for r in rows if len(r)] or rows[:1]), tuple(names), (*skipped, *odd), model)


def _write(made: Embedded, path: Path) -> None:
    words = np.asarray([[s.name, s.reason] for s in made.skipped], dtype=str).reshape(-1, 2)
    with media.atomic(path) as sibling:
        np.savez(sibling, rows=made.rows, names=np.asarray(made.names, str), skipped=words[:, 0], reasons=words[:, 1])
