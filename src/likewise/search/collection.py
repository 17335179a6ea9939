"""Collection: photos that can be searched in four stages, shortlist → re-rank → verify → explain.

shortlist   the nearest by embedding and VLAD, in a folder's index (SQLite + FAISS) or on a Milvus server
re-rank     by local similarity: how many features two photos have alike
verify      the best few, by LighterGlue's matches and a geometry that they are inliers of
explain     every hit carries its evidence and a calibrated verdict
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from likewise import media
from likewise.errors import FileError, InputError, LikewiseError, ShapeError
from likewise.images import embedding
from likewise.images.embedder import Skipped, default
from likewise.nn.pretrained import DEFAULT
from likewise.search import duplicates
from likewise.search.local import Local, describe, extract, projection
from likewise.search.result import Hit, IndexReport, Result
from likewise.search.shortlist import rerank_hits, shortlist_hits, shots
from likewise.search.verdict import judge
from likewise.search.verify import verify_hits
from likewise.store import checkpoint, milvus
from likewise.store import job as jobs
from likewise.store import run as runs
from likewise.store.index import KINDS, About, Filter, Index, Record, batches, label_of
from likewise.store.milvus import MilvusIndex
from likewise.types import Image

if TYPE_CHECKING:
    from likewise.images.embedder import Embeds
    from likewise.search.duplicates import Group

    Place = str | os.PathLike[str]
    Paths = Place | Iterable[Place]

PLACE = "likewise-index"
"""Where an index is made and looked for when no place is given: a folder in the current one."""
SHORTLIST, VERIFY = 100, 10
"""How many candidates are re-ranked, at 1 to 2 CPU-ms each, and how many of the best are verified, at .1 to .2 CPU-s
each: the more, the busier the machine."""

ONE_AT_A_TIME = threading.Lock()
"""A model says after each call what it skipped: workers that are threads take turns."""
BLOCK = 64
"""Photos that a worker is given at a time, some 7 CPU-s: a multiple of `local.BATCH`, so that vectors are the same."""

Stamp = tuple[int, int]
Files = Sequence[tuple[Path, Record]]
OnStage = Callable[[str, Sequence[Hit]], None]


class Collection:
    """A folder of photos with its index: `Collection.build` makes one, `Collection.open` opens one.

    A shortlist gives the k nearest by distance, equal distances in the order of paths. It is exact, save in
    an index of kind "ivf" ("auto" becomes that above 100,000 photos), whose recall was measured when it was built
    (`describe()`); with a filter it is exact always. What `add` has taken survives whatever kills the process.

    Parameters
    ----------
    index : Index or MilvusIndex
        What is kept, open.
    place : str
        Where that is.
    model : object with .embed, optional
        What made the embeddings; by default the index's own, loaded when it is first needed.

    Attributes
    ----------
    report : IndexReport
        What the last `build`, `update` or `add` did.
    place : str
        Where the index is.

    Examples
    --------
    >>> import likewise as lw, tempfile, numpy as np
    >>> from likewise.media import write_image
    >>> home = tempfile.TemporaryDirectory()
    >>> for name, shade in (("dark", 40), ("grey", 128), ("light", 220)):
    ...     _ = write_image(f"{home.name}/photos/{name}.png", np.full((32, 32, 3), shade, np.uint8))
    >>> with lw.search.Collection.build(f"{home.name}/photos", f"{home.name}/index") as photos:
    ...     hits = photos.search(f"{home.name}/photos/grey.png", 2, rerank=False, verify=0)
    ...     print(photos.report, hits[0].name, round(hits[0].distance, 3))
    3 added, 0 updated, 0 unchanged, 0 removed, 0 unreadable grey.png 0.0
    >>> home.cleanup()
    """

    def __init__(self, index: Index | MilvusIndex, place: str, model: Embeds | None = None) -> None:
        self.index, self.place, self._model = index, place, model
        self.report = IndexReport()
        if model is not None:
            self._check_model(model)

    @classmethod
    def build(
        cls,
        folder: Place,
        out: Place = PLACE,
        *,
        model: Embeds | None = None,
        kind: str | None = None,
        recall: float | None = None,
        executor: Any = None,
        n_jobs: int = 1,
        progress: bool = False,
    ) -> Self:
        """Index every photo below a folder; an index that is there already is brought up to date.

        New photos are added, changed ones embedded again, deleted ones taken out. One that was interrupted resumes.

        Parameters
        ----------
        folder : path
            The folder that holds the photos.
        out : path or str
            Where the index is kept: a new or empty folder, or milvus://host:port/collection.
        model : object with .embed, optional
            What makes the embeddings; by default `likewise.images.default()`.
        kind : "auto", "flat" or "ivf", optional
            How embeddings are searched: exactly, or in lists whose recall was measured. "auto" is flat up to 100,000.
        recall : float, optional
            The recall@10 that an "ivf" index is tuned to, by default 0.99.
        executor : Executor, Client, "dask" or address, optional
            Where photos are decoded and described: by default in this process, or with `n_jobs` above 1 in so many.
            Others are a concurrent.futures.Executor, a dask.distributed.Client, the address of a Dask scheduler, or
            "dask" for a cluster of `n_jobs` processes here. Workers must see the photos; only this process writes.
        n_jobs : int
            Processes; −1 is one a core.
        progress : bool
            Show a bar on a terminal.

        Returns
        -------
        Collection
            Its `report` says what was done.

        Raises
        ------
        FileError
            Where `folder` is none, or holds no image that can be read.
        InputError
            Where `out` holds something else, or the index was made with another model.
        ShardError
            Where workers fail; what was indexed is kept, and the next run resumes.
        """
        if not Path(folder).is_dir():
            raise FileError(f"{os.fspath(folder)}: not a folder; give the folder that holds the photos")
        _check_kind(kind, recall)
        jobs.check_executor(executor, n_jobs)
        if cls.exists(out):
            collection = cls.open(out, model)
        else:
            collection = cls._create(os.path.abspath(folder), os.fspath(out), model or default(), kind, recall)
        try:
            known = len(collection)
            how: Any = {"executor": executor, "n_jobs": n_jobs, "progress": progress}
            collection.update(folder, **how) if known else collection.add(folder, **how)
            if not known and not len(collection):
                tried = len(collection.report.skipped)
                collection.index.drop()  # its place is free for another
                why = f"can be read ({tried} were tried)" if tried else "was found"
                raise FileError(f"{os.fspath(folder)}: no image in this folder {why}")
            about = collection.about
            wanted = kind or about.kind, about.recall if recall is None else recall
            if wanted != (about.kind, about.recall):
                collection.index.set_kind(*wanted)
                collection.index.settle()
        except BaseException:
            collection.close()
            raise
        return collection

    @classmethod
    def _create(cls, root: str, out: str, model: Embeds, kind: str | None, recall: float | None) -> Self:
        name, digest, width = embedding.model_name(model), embedding.digest_of(model), _dim(model)
        about = About(root, name, digest, width + projection().dim, kind or "auto", recall or 0.99, width)
        packed = None
        with contextlib.suppress(InputError):  # a network of somebody's own: the index is opened with it
            packed = checkpoint.pack(model)  # type: ignore[arg-type]
        return cls(_store(out).create(out, about, packed), out, model)

    @classmethod
    def open(cls, place: Place = PLACE, model: Embeds | None = None) -> Self:
        """The collection at a place.

        Parameters
        ----------
        place : path or str
            A folder that `build` made, or milvus://host:port/collection.
        model : object with .embed, optional
            The model that made the embeddings; by default the index's own, loaded when it is first needed.

        Returns
        -------
        Collection

        Raises
        ------
        FileError
            Where there is no index, or it is damaged.
        InputError
            Where `model` is not the one that made the embeddings.
        """
        where = os.fspath(place)
        return cls(_store(where)(where), where, model)

    @classmethod
    def exists(cls, place: Place = PLACE) -> bool:
        """Whether there is an index at a place."""
        return _store(os.fspath(place)).exists(os.fspath(place))

    # ── what is in it ─────────────────────────────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        return len(self.index)

    def __iter__(self) -> Iterator[str]:
        """The path of every photo, in no particular order."""
        return (self.path_of(name) for name in self.index.names())

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str | os.PathLike) and bool(self.index.stamps(self._spellings(path)))

    def __repr__(self) -> str:
        return f"Collection({len(self)} photos of {self.root}, {self.about.model})"

    @property
    def about(self) -> About:
        """Root, model, dimension and kind of the index."""
        return self.index.about

    @property
    def root(self) -> Path:
        """The folder that names are relative to."""
        return Path(self.about.root)

    @property
    def model(self) -> Embeds:
        """The model that made the embeddings: the one given, the one kept in the index, or the default one."""
        if self._model is None:
            packed = self.index.model()
            if packed is None and self.about.model != DEFAULT:
                raise InputError(f"model: the embeddings were made by {self.about.model}; open the index with model=…")
            model = default() if packed is None else checkpoint.unpack(packed, self.place)
            self._check_model(model)
            self._model = model
        return self._model

    def _check_model(self, model: Embeds) -> None:
        """Refuse a model that is not the one that made the embeddings."""
        about, digest, name = self.about, embedding.digest_of(model), embedding.model_name(model)
        if digest != about.digest:
            raise InputError(
                f"model: the index was built with another model ({about.model} {about.digest[:8]}… ≠ {name} "
                f"{digest[:8]}…); open it without a model to use its own, or build it again"
            )

    def describe(self) -> dict[str, Any]:
        """Root, model, kind, number of photos, and the measured recall where it is not 1."""
        about = self.about
        return {"root": about.root, "model": about.model, "digest": about.digest, **self.index.describe()}

    def check(self) -> list[str]:
        """What is wrong with what is stored, every byte read; empty when all is well."""
        return self.index.check()

    def close(self) -> None:
        """Let go of files and connections."""
        self.index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # ── changing it ───────────────────────────────────────────────────────────────────────────────────────────────

    def update(
        self, folder: Place | None = None, *, executor: Any = None, n_jobs: int = 1, progress: bool = False
    ) -> IndexReport:
        """Bring the index up to date with a folder, by default the one it was made of, on workers as `build` does.

        Raises
        ------
        FileError
            Where the folder is not there, or is empty as where a disk is away: then nothing is taken out.
        """
        self.index.refresh()
        names = list(self.index.names())
        if not self.root.is_dir():
            raise FileError(f"{self.root}: the folder of the photos is not there; nothing was taken out")
        gone = [name for name in names if media.is_gone(self.path_of(name))]
        if gone and len(gone) == len(names) and not media.images(self.root, unreadable=[]):
            raise FileError(
                f"{self.root}: holds no image any more, as where a disk is away; nothing was taken out (remove does "
                "that, if it is meant)"
            )
        removed = self.index.remove(gone) if gone else 0
        how: Any = {"executor": executor, "n_jobs": n_jobs, "progress": progress}
        self.report = replace(self.add(self.root if folder is None else folder, **how), removed=removed)
        return self.report

    def watch(self, *, interval: float = 2.0, stop: threading.Event | None = None) -> Iterator[IndexReport]:
        """Bring the index up to date whenever photos come, change or go from now on; a report each time.

        The folder is looked through every `interval` seconds, or less often, so that this takes a tenth of the time at
        most. A file named as a picture is counts once its size and time are the same at two looks: what is still being
        written waits. A folder that is empty is taken for a disk that is away. `stop` ends it.
        """
        ended, done, before = stop or threading.Event(), dict[str, Stamp](), dict[str, Stamp]()
        while not ended.is_set():
            began = time.monotonic()
            now = _stamps(self.root)
            spent = time.monotonic() - began
            whole = {path: stamp for path, stamp in now.items() if before.get(path) == stamp}
            changed = dict(whole.items() - done.items())
            gone = {path for path in done.keys() - now.keys() if media.is_gone(path)} if now else set()
            if changed or gone:
                removed = self.remove(gone) if gone else 0
                self.report = replace(self.add(sorted(changed)), removed=removed)
                done = {**{path: done[path] for path in done.keys() - gone}, **changed}
                if self.report.added or self.report.updated or removed:
                    yield self.report
            before = now
            ended.wait(max(interval, 10 * spent))

    def add(self, paths: Paths, *, executor: Any = None, n_jobs: int = 1, progress: bool = False) -> IndexReport:
        """Add photos, or all in a folder; those whose files have not changed are left as they are.

        What is made of them is kept every 512 photos, of workers (as in `build`) every 64: a process that is killed
        loses what came after, nothing else.
        """
        jobs.check_executor(executor, n_jobs)
        files, skipped = _listed(paths)
        self.index.refresh()
        records = {r.name: (p, r) for p in files for r in [_record(self.name_of(p), p)]}
        known = self.index.stamps(list(records))
        todo = [(p, r) for p, r in records.values() if r.name not in known or _is_changed(p, r, known[r.name])]
        done: list[str] = []

        def keep(made: Made) -> None:
            skipped.extend(made.skipped)
            if made.records:
                self.index.put(made.records, made.rows, made.features)
                done.extend(record.name for record in made.records)

        with runs.progress(len(todo), "indexing", show=progress) as advance:
            if executor is None and jobs.count_jobs(n_jobs) == 1:
                for some in batches(todo, embedding.CHUNK):
                    keep(_made(self.model, some, advance))
            elif todo:
                self._add_by_workers(todo, keep, advance, executor, n_jobs)
        self.index.settle()
        added = sum(name not in known for name in done)
        self.report = IndexReport(added, len(done) - added, len(records) - len(todo), 0, tuple(skipped))
        return self.report

    def _add_by_workers(
        self, todo: Files, keep: Callable[[Made], None], advance: Callable[[], None], executor: Any, n_jobs: int
    ) -> None:
        """Blocks of photos described by workers, kept here in the order in which they come."""
        model: Any = self.model
        with contextlib.suppress(InputError):  # a network of somebody's own goes as it is
            model = checkpoint.pack(model)
        blocks = list(batches(todo, BLOCK))

        def take(i: int, made: Made) -> None:
            keep(made)
            for _ in blocks[i]:
                advance()

        jobs.spread(
            _Describing(model),
            dict(enumerate(blocks)),
            take,
            kept=lambda: f"{len(self):,} photos are in the index {self.place}",
            what=lambda i: f"the photos from {blocks[i][0][0]} on",
            executor=executor,
            n_jobs=n_jobs,
        )

    def remove(self, paths: Paths) -> int:
        """Take photos, or all below a folder, out of the index; how many there were. No file is touched."""
        self.index.refresh()
        names: set[str] = set()
        for path in _several(paths):
            spelled = self._spellings(path)
            kept = [name for name in spelled if name in self.index.stamps(spelled)][:1]
            below = Filter(self._folder(path))
            names |= set(kept or filter(below, self.index.names()))
        count = self.index.remove(names)
        self.index.settle()
        return count

    # ── paths and names ───────────────────────────────────────────────────────────────────────────────────────────

    def name_of(self, path: Place) -> str:
        """The name under which a path is kept: relative to the root where it lies below it, absolute where not."""
        given, root = os.path.abspath(os.fspath(path)), self.about.root
        folder, file = os.path.split(given)  # links in its folders are followed, but not one that the file itself is
        for whole, base in ((given, root), (os.path.join(os.path.realpath(folder), file), os.path.realpath(root))):
            if whole == base or whole.startswith(base.rstrip(os.sep) + os.sep):
                return "" if whole == base else Path(whole).relative_to(base).as_posix()
        return Path(given).as_posix()

    def path_of(self, name: str) -> str:
        """The path of a name."""
        return os.path.join(self.about.root, *name.split("/")) if not name.startswith("/") else name

    def _spellings(self, path: Place) -> list[str]:
        """What a path may be called: as a path from here, or else as one from the root."""
        plain = Path(os.path.normpath(path)).as_posix()
        return [self.name_of(path), "" if plain == "." else plain]

    def _folder(self, path: Place) -> str:
        """A folder as names spell it."""
        spelled = self._spellings(path)
        return next((name for name in spelled if self.index.has(Filter(name))), spelled[0])

    # ── searching ─────────────────────────────────────────────────────────────────────────────────────────────────

    def search(
        self,
        query: Any,
        k: int = 10,
        *,
        shortlist: int = SHORTLIST,
        rerank: bool = True,
        verify: int = VERIFY,
        under: Place | None = None,
        label: str | None = None,
        leave_out: Sequence[Place] = (),
        on_stage: OnStage | None = None,
    ) -> Result:
        """The k photos that most probably show what the query shows, each with its reasons.

        With rerank=False and verify=0 this is the ranking of the shortlist, by vectors alone.

        Parameters
        ----------
        query : image, list of images, folder or video
            What is looked for; several images are of the same thing.
        k : int
            How many hits are given.
        shortlist : int
            How many candidates are found by vectors.
        rerank : bool
            Look also for turns and parts of the query, and order candidates by the features they have alike with it.
        verify : int
            How many of the best are verified by matches, and ordered by how probable it is that they show the same.
        under : path, optional
            Only photos below this folder.
        label : str, optional
            Only photos whose own folder has this name.
        leave_out : sequence of paths
            Photos that are no answer, such as the query's own file.
        on_stage : callable, optional
            Called as on_stage(name, hits) after each stage.

        Returns
        -------
        Result
            The hits, best first.

        Raises
        ------
        InputError
            Where a number is out of its bounds, or a filter leaves no photo.
        """
        for name, value, least in (("k", k, 1), ("shortlist", shortlist, 1), ("verify", verify, 0)):
            _check_number(name, value, least)
        asked, seconds, notes = shots(query), dict[str, float](), list[str]()
        if asked.of > len(asked):
            notes.append(f"query: {len(asked)} of its {asked.of} images, evenly taken")
        tell: OnStage = on_stage or (lambda name, hits: None)
        with _timed(seconds, "shortlist"):
            many = max(k, shortlist if rerank or verify else k)
            hits = shortlist_hits(self, asked, many, views=rerank, under=under, label=label, leave_out=leave_out)
        tell("shortlist", hits)
        features: dict[str, Local] = {}
        if rerank and hits:
            with _timed(seconds, "re-rank"):
                features = self.features([hit.path for hit in hits])
                hits = rerank_hits(asked, hits, features)
            tell("re-rank", hits)
        hits = [hit.judged(judge()) for hit in hits]
        if verify and hits:
            with _timed(seconds, "verify"):
                features = features or self.features([hit.path for hit in hits[:verify]])
                hits, note = verify_hits(asked.shots, hits, verify, features)
            notes += note
            tell("verify", hits)
        best = (replace(hit, rank=i, **_exif_fields(Path(hit.path))) for i, hit in enumerate(hits[:k], start=1))
        return Result(asked, tuple(best), self.place, seconds, tuple(notes))

    def nearest(
        self, vectors: Any, k: int = 10, *, under: Place | None = None, label: str | None = None
    ) -> list[list[Hit]]:
        """The k photos nearest to each of some vectors (n, dim), such as `vectors` gives."""
        _check_number("k", k, 1)
        queries, dim = embedding.floats(vectors, "vectors: got"), self.about.dim
        if queries.ndim != 2 or queries.shape[1] != dim:
            raise ShapeError(f"vectors: expected (n, {dim}), got shape {queries.shape}")
        which = Filter(None if under is None else self._folder(under), label)
        if not len(self) or not len(queries):
            return [[] for _ in queries]
        if not self.index.has(which):
            raise InputError(self._nothing(which))
        units = embedding.unit_rows(queries, len(queries), "vectors: got")
        answers = self.index.nearest(units, min(k, len(self)), which)
        return [[Hit(self.path_of(n), i, d) for i, (n, d) in enumerate(one, 1)] for one in answers]

    def vectors(self, images: Sequence[Any]) -> Any:
        """The vectors (n, dim) of images in any form, as the index has them: embedding and VLAD, of length 1."""
        made = describe(self.model, list(images))
        if made.skipped:
            raise InputError(f"images: {made.skipped[0].name}: {made.skipped[0].reason}")
        return made.rows

    def embeddings(self, names: Sequence[str]) -> dict[str, Any]:
        """The embeddings of names that are kept, as the default model made them: brought back, no photo is opened."""
        kept = self.index.vectors(names)
        whitened = np.stack([*kept.values()])[:, : self.about.width]
        return dict(zip(kept, projection().embeddings(whitened), strict=True))

    def features(self, paths: Sequence[Place]) -> dict[str, Local]:
        """The local features of photos: as kept, or made now from their files; those that cannot be read are absent."""
        names = {self.name_of(p): os.fspath(p) for p in paths}
        kept = {names[n]: Local.from_bytes(data, self.place) for n, data in self.index.features(list(names)).items()}
        for path in names.values():
            if path not in kept:
                with contextlib.suppress(LikewiseError):
                    kept[path] = extract(Image(path))
        return kept

    def duplicates(
        self, *, progress: bool = False, on_progress: Callable[[int, int], None] | None = None
    ) -> list[Group]:
        """Groups of photos that are copies of one another: saved again, resized, cropped, turned, mirrored, relit …

        Parameters
        ----------
        progress : bool
            Show a bar on a terminal.
        on_progress : callable, optional
            Called as on_progress(done, total).

        Returns
        -------
        list of Group
            Each iterates over its paths, the one to keep first, and says what each copy is. No file is touched.
        """
        return duplicates.groups(self, progress=progress, on_progress=on_progress)

    def _nothing(self, which: Filter) -> str:
        """What to say of a filter that leaves no photo."""
        names = list(self.index.names())
        if which.under is not None and not self.index.has(Filter(which.under)):
            folders = sorted({n.partition("/")[0] for n in names if "/" in n.removeprefix("/")})
            return f"under: no photo of the index lies below {which.under!r}; {_known(folders)}"
        labels = sorted({label_of(n) for n in names} - {""})
        return f"label: no photo that takes part has the label {which.label!r}; {_known(labels)}"


def _known(names: Sequence[str]) -> str:
    shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    return f"there are: {shown}" if names else "there are none"


def _store(place: str) -> type[Index | MilvusIndex]:
    """What keeps the index of a place: a server, or a folder."""
    return MilvusIndex if place.startswith(milvus.SCHEME) else Index


def _check_kind(kind: str | None, recall: float | None) -> None:
    if kind is not None and kind not in KINDS:
        raise InputError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    if recall is not None and (not isinstance(recall, float) or not 0 < recall <= 1):
        raise InputError(f"recall: expected a number above 0 and up to 1, got {recall!r}")


def _check_number(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{name}: expected a whole number ≥ {least}, got {value!r}")


def _exif_fields(path: Path) -> dict[str, Any]:
    """When and where a photo was taken, as an index keeps it."""
    told = media.taken_at(path)
    place = None if told["latitude"] is None else (told["latitude"], told["longitude"])
    return {"taken": told["taken"] or "", "place": place}


def _dim(model: Embeds) -> int:
    """The length of a model's embeddings; a model that does not say is tried on a grey square."""
    said = getattr(model, "dim", None)
    return said if isinstance(said, int) else int(np.shape(model.embed([np.full((8, 8, 3), 127, np.uint8)]))[-1])


def _several(paths: Paths) -> list[Place]:
    return [paths] if isinstance(paths, str | os.PathLike) else list(paths)


def _listed(paths: Paths) -> tuple[list[Path], list[Any]]:
    """The images among files and below folders, and what only has an image's name."""
    files, odd = list[Path](), list[Any]()
    for path in map(Path, _several(paths)):
        images, others = embedding.listing(path) if path.is_dir() else ([path], [])
        files, odd = files + images, odd + others
    return files, odd


class Made(NamedTuple):
    """What an index keeps of a block of photos, and which could not be read."""

    records: list[Record]
    rows: Any
    features: list[bytes]
    skipped: list[Skipped]


def _made(model: Any, block: Files, advance: Callable[[], None] | None = None) -> Made:
    """A block of photos described, with when and where each was taken."""
    made = describe(model, [p for p, _ in block], advance)
    records = [replace(block[i][1], digest=media.digest(block[i][0]), **_exif_fields(block[i][0])) for i in made.kept]
    return Made(records, made.rows, [one.to_bytes() for one in made.features], made.skipped)


@dataclass(frozen=True)
class _Describing:
    """Describes a block on a worker, by a model that comes as it is, or packed to be unpacked once a process."""

    model: Any

    def __call__(self, block: Files) -> Made:
        if not any(os.path.lexists(path) for path, _ in block):
            raise FileError(f"{block[0][0]} is not there on {platform.node()}: workers must see the photos")
        with ONE_AT_A_TIME:
            return _made(_unpacked(self.model) if isinstance(self.model, bytes) else self.model, block)


@functools.lru_cache(maxsize=1)
def _unpacked(packed: bytes) -> Any:
    return checkpoint.unpack(packed, "model")


def _record(name: str, path: Path) -> Record:
    """A photo by what its file says of itself before it is read: of what changes meanwhile the next update learns."""
    size, mtime, mark = media.stamp(path)
    return Record(name, size, mtime, mark=mark)


def _is_changed(path: Path, record: Record, known: Sequence[int]) -> bool:
    """Whether a photo is not what is kept; where another file has its size and time, what both hold decides."""
    size, mtime, mark, digest = known
    return (record.size, record.mtime) != (size, mtime) or (record.mark != mark and media.digest(path) != digest)


def _stamps(root: Path) -> dict[str, Stamp]:
    """Size and time of every file below a folder that is named as a picture is, hidden ones left out."""
    stamps: dict[str, Stamp] = {}
    for folder, inner, names in os.walk(root):
        inner[:] = [d for d in inner if not d.startswith(".")]
        pictures = [n for n in names if Path(n).suffix.lower() in media.PICTURE_NAMES and not n.startswith(".")]
        stamps |= {path: media.size_and_time(path) for n in pictures for path in [os.path.join(folder, n)]}
    return stamps


@contextlib.contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - began
