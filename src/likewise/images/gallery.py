"""Gallery: pictures that can be searched by likeness, kept in a folder (FAISS) or on a Milvus server."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from likewise import media
from likewise.errors import FileError, InputError, ShapeError
from likewise.images import data, embedding
from likewise.images.model import DEFAULT, Embedder, Skipped, default
from likewise.images.stores import About, Filter, Record, Store, folders_of, label_of, places
from likewise.images.stores.indexes import KINDS
from likewise.store import run as runs
from likewise.types import Hit

if TYPE_CHECKING:
    from jaxtyping import Int8

    from likewise.images.compare import Embeds
    from likewise.images.data import Picture

    Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


@dataclass(frozen=True)
class Added:
    """What an addition did: pictures added, embedded anew as their files had changed, left as they were, unreadable."""

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    skipped: tuple[Skipped, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        return f"{self.added} added, {self.updated} updated, {self.unchanged} unchanged, {len(self.skipped)} unreadable"


class Gallery:
    """Pictures with their rows, searched by likeness: `Gallery.build` makes one, `Gallery.open` opens one.

    A search gives the k nearest by distance, equal distances in the order of paths. It is exact, save in a gallery of
    kind "ivf" or "hnsw" ("auto" becomes "ivf" above 100,000 pictures), whose recall was measured when its index was
    built (`describe()`); with a filter it is exact always. What `add` has taken survives whatever kills the process.
    """

    def __init__(self, store: Store, model: Embeds | None = None) -> None:
        self.store, self._model = store, model
        self.report = Added()
        if model is not None:
            self._fits(model)

    @classmethod
    def build(
        cls,
        model: Embeds | None,
        folder: str | os.PathLike[str],
        out: str | os.PathLike[str],
        *,
        kind: str = "auto",
        recall: float = 0.99,
        parts: bool = False,
        progress: bool = False,
    ) -> Self:
        """Embed every picture below `folder` into a gallery at `out`: a folder, or milvus://host:port/collection.

        `model` is an embedder, or None for `likewise.images.default()`. `kind` is "flat" (exact), "ivf", "hnsw", or
        "auto"; `recall` is the recall@10 that an index is tuned to. With `parts`, what each picture shows where is kept
        beside its row (5.5 kB a picture, no extra time), where the model has it; a server keeps none. A build that was
        interrupted is gone on with.
        """
        _check_options(kind, recall)
        root = Path(folder).absolute()
        if not root.is_dir():
            raise FileError(f"{root}: not a folder; give the folder that holds the pictures")
        embedder = default() if model is None else model
        name, digest = embedding.model_name(embedder), embedding.digest_of(embedder)
        cells, width = _part_shape(embedder, os.fspath(out)) if parts else (0, 0)
        about = About(os.path.normpath(root), name, digest, _dim(embedder), kind, recall, cells, width)
        gallery = cls(places.created(os.fspath(out), about, embedder), embedder)
        gallery.add(root, progress=progress)
        if not len(gallery):
            tried = len(gallery.report.skipped)
            why = f"can be read ({tried} were tried)" if tried else "was found"
            places.discard(gallery.store)
            raise FileError(f"{root}: no picture in this folder {why}")
        return gallery

    @classmethod
    def open(cls, path: str | os.PathLike[str], model: Embeds | None = None) -> Self:
        """The gallery at a path or milvus:// address; without `model`, its own is loaded when it is first needed."""
        return cls(places.opened(os.fspath(path)), model)

    # ── what is in it ─────────────────────────────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        return len(self.store)

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str | os.PathLike) and self._kept(path) is not None

    def __iter__(self) -> Iterator[str]:
        """The path of every picture, in no particular order."""
        return (self.path_of(name) for name in self.store.names())

    def __repr__(self) -> str:
        return f"Gallery({len(self)} pictures, {self.store.about.model}, {self.describe()['kind']})"

    @property
    def root(self) -> Path:
        """The folder that names are relative to."""
        return Path(self.store.about.root)

    @property
    def model(self) -> Embeds:
        """The model that made the rows: the one given, the one stored with the gallery, or the default one."""
        if self._model is None:
            self._model = self._own_model()
            self._fits(self._model)
        return self._model

    def describe(self) -> dict[str, Any]:
        """Root, model, kind, number of pictures, and the recall that was measured of the index, where there is one."""
        about = self.store.about
        return {"root": about.root, "model": about.model, "digest": about.digest, **self.store.describe()}

    def check(self) -> list[str]:
        """What is wrong with what is stored, every byte read; empty when all is well."""
        return self.store.check()

    # ── changing it ───────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, paths: Paths, *, progress: bool = False) -> Added:
        """Add pictures, or all in a folder; those whose files (size, time) have not changed are left as they are.

        Rows are kept every 512 pictures: a process that is killed loses what came after, nothing else.
        """
        found, odd = self._files(paths)
        with self.store.writing():
            todo, new, unchanged = self._todo(found)
            skipped = [*odd, *self._embed(todo, progress)]
            self.store.settle()
        unreadable = {os.fspath(s.name) for s in skipped}
        done = [r.name for p, r in todo if os.fspath(p) not in unreadable]
        added = sum(name in new for name in done)
        self.report = Added(added, len(done) - added, unchanged, tuple(skipped))
        return self.report

    def remove(self, paths: Paths) -> int:
        """Take pictures, or all below a folder, out of the gallery; how many there were. No file is touched."""
        with self.store.writing():
            count = self.store.remove({name for path in _listed(paths) for name in self._named(path)})
            self.store.settle()
        return count

    def prune(self) -> int:
        """Take out the pictures whose files are gone; how many there were."""
        if not self.root.is_dir():
            raise FileError(f"{self.root}: the folder of the pictures is not there; nothing was taken out")
        with self.store.writing():
            names = list(self.store.names())
            gone = [n for n in names if not os.path.exists(self.path_of(n))]
            if gone and len(gone) == len(names) and not embedding.listing(self.root)[0]:
                raise FileError(
                    f"{self.root}: holds no picture any more, as where a disk is away; nothing was taken out (remove "
                    "does that, if it is meant)"
                )
            count = self.store.remove(gone)
            self.store.settle()
        return count

    def reindex(self, kind: str, recall: float = 0.99) -> None:
        """Search in another way from now on: exactly, or with an index of a kind that is tuned to a recall."""
        _check_options(kind, recall)
        with self.store.writing():
            self.store.choose(kind, recall)
            self.store.settle()

    def _named(self, path: str | os.PathLike[str]) -> list[str]:
        """The name of a picture that is in the gallery, or all names below a folder."""
        name = self._kept(path)
        if name is not None:
            return [name]
        below = self.name_of(path)
        below = below if self.store.matches(Filter(below)) else self._folder(path)
        return [n for n in self.store.names() if below in folders_of(n)]

    def _files(self, paths: Paths) -> tuple[list[Path], list[Skipped]]:
        found, odd = list[Path](), list[Skipped]()
        for path in map(Path, _listed(paths)):
            pictures, others = embedding.listing(path) if path.is_dir() else ([path], [])
            found, odd = found + pictures, odd + others
        return found, odd

    def _todo(self, paths: Sequence[Path]) -> tuple[list[tuple[Path, Record]], set[str], int]:
        """What must be embedded, which names of it are new, and how many are as they were."""
        records: dict[str, tuple[Path, Record]] = {}
        for path in paths:
            name = self.name_of(path)
            records[name] = (path, Record(name, *media.size_and_time(path)))
        known = self.store.known(list(records))
        todo = [(p, r) for p, r in records.values() if known.get(r.name) != (r.size, r.mtime)]
        return todo, set(records) - set(known), len(records) - len(todo)

    def _embed(self, todo: Sequence[tuple[Path, Record]], progress: bool) -> list[Skipped]:
        skipped: list[Skipped] = []
        with runs.progress(len(todo), "embedding", show=progress) as advance:
            for start in range(0, len(todo), embedding.CHUNK):
                some = todo[start : start + embedding.CHUNK]
                rows, parts, kept, bad = self._described([p for p, _ in some], advance)
                skipped += bad
                if kept:
                    self.store.put([some[i][1] for i in kept], rows, parts)
        return skipped

    def _described(self, paths: list[Path], advance: Callable[[], None]) -> tuple[Any, Any, list[int], list[Skipped]]:
        """Rows, parts where they are kept, and which of the pictures could be read."""
        if self.store.about.cells and isinstance(self.model, Embedder):
            return embedding.embed_files_with_parts(self.model, paths, advance)
        rows, kept, bad = embedding.embed_files(self.model, paths, advance)
        return rows, None, kept, bad

    # ── searching it ──────────────────────────────────────────────────────────────────────────────────────────────

    def search(
        self,
        query: Picture | Sequence[Picture],
        k: int = 10,
        *,
        under: str | os.PathLike[str] | None = None,
        label: str | None = None,
    ) -> Any:
        """The k pictures most like the query, nearest first: a list of Hit(path, distance, rank).

        Many queries (a list, a batch of arrays, a folder) give a list of such lists. `under` takes only pictures below
        a folder, `label` only those whose own folder has that name. The distance is that of `likewise.images.compare`.
        """
        single = _is_single(query)
        pictures = list(data.pictures(query))
        rows = embedding.embed_pictures(self.model, pictures) if pictures else self._no_rows()
        found = self.search_rows(rows, k, under=under, label=label)
        return found[0] if single else found

    def search_rows(
        self,
        rows: Any,
        k: int = 10,
        *,
        under: str | os.PathLike[str] | None = None,
        label: str | None = None,
    ) -> list[list[Hit]]:
        """The same search for rows (n, dim) that are at hand already."""
        if not isinstance(k, int) or isinstance(k, bool) or k < 1:
            raise InputError(f"k: expected a whole number ≥ 1, got {k!r}")
        queries = embedding.floats(rows, "rows: got")
        if queries.ndim != 2 or queries.shape[1] != self.store.about.dim:
            raise ShapeError(f"rows: expected (n, {self.store.about.dim}), got shape {queries.shape}")
        which = Filter(None if under is None else self._folder(under), label)
        if not len(self.store) or not len(queries):
            return [[] for _ in queries]
        if which != Filter() and not self.store.matches(which):
            raise InputError(self._nothing(which, under))
        units = embedding.unit_rows(queries, len(queries), "rows: got")
        found = self.store.nearest(units, min(k, len(self.store)), which)
        return [[Hit(self.path_of(n), d, i) for i, (n, d) in enumerate(one, 1)] for one in found]

    def parts(self, paths: Sequence[str | os.PathLike[str]]) -> Int8[np.ndarray, "n cells width"] | None:
        """What pictures of the gallery show where (`likewise.images.parts`): as kept, or made now from their files.

        None where the model has no such map. A file that cannot be read any more gives zeros.
        """
        model = self.model
        shape = model.part_shape if isinstance(model, Embedder) else None
        if shape is None:
            return None
        names = [self.name_of(p) for p in paths]
        kept = self.store.parts(names)
        found = np.stack([kept.get(n, np.zeros(shape, np.int8)) for n in names]) if names else np.empty((0, *shape))
        missing = [i for i, n in enumerate(names) if n not in kept]
        if missing:
            files = [Path(paths[i]) for i in missing]
            _, made, read, _ = embedding.embed_files_with_parts(model, files)  # type: ignore[arg-type]
            found[[missing[i] for i in read]] = made
        return found.astype(np.int8, copy=False)

    def _no_rows(self) -> Any:
        return np.empty((0, self.store.about.dim), dtype=np.float32)

    def _nothing(self, which: Filter, under: object) -> str:
        """What to say of a filter that leaves no picture."""
        names = list(self.store.names())
        if which.under is not None and not self.store.matches(Filter(which.under)):
            some = sorted({folders_of(n)[-2] for n in names if len(folders_of(n)) > 1})
            return f"under: no picture of the gallery lies below {os.fspath(str(under))!r}; {_known(which.under, some)}"
        labels = sorted({label_of(n) for n in names} - {""})
        return f"label: no picture that takes part has the label {which.label!r}; {_known(str(which.label), labels)}"

    # ── paths and names ───────────────────────────────────────────────────────────────────────────────────────────

    def name_of(self, path: str | os.PathLike[str]) -> str:
        """The name under which a path is kept: relative to the root where it lies below it, absolute where not."""
        given, root = os.path.abspath(os.fspath(path)), self.store.about.root
        for whole, base in ((given, root), (_real(given), os.path.realpath(root))):
            if whole == base or whole.startswith(base.rstrip(os.sep) + os.sep):
                return "" if whole == base else PurePosixPath(Path(whole).relative_to(base)).as_posix()
        return Path(given).as_posix()

    def path_of(self, name: str) -> str:
        """The path of a name."""
        return os.path.join(self.store.about.root, *PurePosixPath(name).parts)

    def _kept(self, path: str | os.PathLike[str]) -> str | None:
        """The name of a path that is in the gallery: as a path from here, or else as one from the root."""
        names = [self.name_of(path), PurePosixPath(Path(path)).as_posix()]
        known = self.store.known(names)
        return next((n for n in names if n in known), None)

    def _folder(self, under: str | os.PathLike[str]) -> str:
        """A folder as names spell it: given from the root, or as a path from here."""
        plain = os.path.normpath(os.fspath(under))
        if not os.path.isabs(plain) and not plain.startswith(".."):
            below = "" if plain == "." else PurePosixPath(Path(plain)).as_posix()
            if self.store.matches(Filter(below)):
                return below
        return self.name_of(plain)

    # ── the model ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _own_model(self) -> Embeds:
        model: Embeds | None = places.own_model(self.store)
        if model is not None:
            return model
        if self.store.about.model == DEFAULT:
            return default()
        raise InputError(f"model: the gallery's rows were made by {self.store.about.model}; open it with model=…")

    def _fits(self, model: Embeds) -> None:
        """Refuse a model that is not the one that made the rows."""
        about, digest, name = self.store.about, embedding.digest_of(model), embedding.model_name(model)
        if digest != about.digest:
            raise InputError(
                f"model: the gallery was built with another model ({about.model} {about.digest[:8]}… ≠ {name} "
                f"{digest[:8]}…); open it without a model to use its own, or build it again"
            )

    # ── opening and closing ───────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Let go of files and connections."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _check_options(kind: object, recall: object) -> None:
    if kind not in KINDS:
        raise InputError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    if not isinstance(recall, float) or not 0 < recall <= 1:
        raise InputError(f"recall: expected a number above 0 and up to 1, got {recall!r}")


def _dim(model: Embeds) -> int:
    """The length of a model's rows; a model that does not say is tried on a grey square."""
    found = getattr(model, "dim", None)
    return found if isinstance(found, int) else int(np.shape(model.embed([np.full((8, 8, 3), 127, np.uint8)]))[-1])


def _part_shape(model: Embeds, out: str) -> tuple[int, int]:
    """Parts of a picture and numbers each that a gallery at this place can keep; (0, 0) where it keeps none."""
    found = model.part_shape if isinstance(model, Embedder) else None
    return (0, 0) if found is None or out.startswith(places.MILVUS) else found


def _listed(paths: Paths) -> list[str | os.PathLike[str]]:
    return [paths] if isinstance(paths, str | os.PathLike) else list(paths)


def _real(path: str) -> str:
    """The path with links in its folders followed, but not one that the file itself is."""
    folder, name = os.path.split(path)
    return os.path.join(os.path.realpath(folder), name)


def _is_single(query: Any) -> bool:
    if isinstance(query, str | os.PathLike):
        return not os.path.isdir(query)
    if isinstance(query, np.ndarray) or hasattr(query, "ndim"):
        return bool(query.ndim in (2, 3))
    return not isinstance(query, Iterable)


def _known(wanted: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(wanted, names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    return f"there are: {shown}" if names else "there are none"
