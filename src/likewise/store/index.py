"""An index on disk: images by name, with vectors and local features, in one SQLite file; FAISS searches it in memory.

index.sqlite   everything that is kept, in transactions: what `put` returned from survives whatever kills the process
index.faiss    an approximate index, where there is one: a cache, with its sha256 in the SQLite file, built again when
               it is stale, damaged or gone

A reader sees the index as it was when it was opened, or last refreshed. Rows are never changed in place: an image that
is put again gets a new id, and ids only grow, so that a view is brought up to date by what came after its last id.
Vectors lie in chunks of consecutive ids, so that opening is a sequential read. One that is removed stays in its chunk
until half of that is gone; then the rest is written again, under new ids.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import faiss as faiss_stubs
import numpy as np
from numpy.typing import NDArray

from likewise import media
from likewise.errors import FileError, InputError, ShapeError

Vectors: TypeAlias = NDArray[np.float32]
Places: TypeAlias = NDArray[np.int64]
Nearest: TypeAlias = list[tuple[str, float]]
"""Names with their distances, nearest first; equal distances in the order of names."""

FILE, CACHE = "index.sqlite", "index.faiss"
OURS = (FILE, f"{FILE}-wal", f"{FILE}-shm", f"{FILE}-journal", CACHE)
"""What an index writes, and all that it ever deletes: it begins in an empty folder."""
FORMAT = 4
"""What `About` says; the layout of the tables is SCHEMA, to the letter: of another one nothing is read."""
KINDS = ("auto", "flat", "ivf")

SCHEMA = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE images (id INTEGER PRIMARY KEY, name BLOB UNIQUE NOT NULL, size INTEGER, mtime INTEGER, taken TEXT,"
    " latitude REAL, longitude REAL, mark INTEGER, digest INTEGER)",
    "CREATE TABLE vectors (first INTEGER PRIMARY KEY, data BLOB, crc INTEGER)",
    "CREATE TABLE features (id INTEGER PRIMARY KEY REFERENCES images ON DELETE CASCADE ON UPDATE CASCADE, data BLOB,"
    " crc INTEGER)",
)
"""Vectors and features apart from names: a scan of one does not read the others. A name is a file's bytes, not text. A
chunk holds the vectors of the ids from `first` on, 16 bits a number: a search reads them as float32."""
STORED = np.dtype("<f2")
CHUNK_OF = "SELECT first, {} FROM vectors WHERE first <= ? ORDER BY first DESC LIMIT 1"
CHUNK = 2**18
"""Bytes of a chunk, at most. A million rows of 512 floats are then read at the pace of a copy, and the few that settle
the order of an approximate search still come one by one from disk."""

PAGE = 4_096
"""Bytes of a page: of 16,384 the features of a photo, 36 kB, would leave a fifth empty."""
PATIENCE = 10.0
"""Seconds to wait for another process that is writing."""
VFS = ""
"""Appended to SQLite's address of the file; tests name a file system without shared memory here."""
MOST_DIM, MOST_TEXT = 65_536, 2**20
"""The longest vector, and the longest JSON, that a stranger's file is believed to hold."""

FLAT_UNTIL = 100_000
"""Up to this many rows "auto" is flat: exact, nothing to build, 28 ms a query at 1280 dimensions on one core. Above it
is IVF, 0.2 to 0.3 ms a query. (HNSW costs the same a query and takes twice as long to build: it is not offered.)"""
LEAST_ROWS, MOST_SOUGHT = 1_000, 512
"""Below this many rows, and for more neighbours than this, a search is flat: an approximate index is tuned for few."""
STALE_SHARE = 0.10
"""An approximate index is built again when this share of the rows came or went since: its recall was measured then."""
AT, HELD_OUT = 10, 256
"""Recall is measured at 10, on this many rows that the index has not seen: half to tune on, half to report."""
PER_LIST, ROUNDS = 40, 10
"""IVF: rows that a list is trained on, and rounds of k-means."""
SLACK, TOLERANCE = 8, 1e-5
"""Candidates beyond k that are fetched at first; and how far a squared distance between unit vectors in float32 may be
off, ten times what was seen at 1280 dimensions."""

ODD = re.compile(r"(?:^|\0)/?+\.{0,2}(?:/|\0|\Z)|/\.{0,2}(?:/|\0|\Z)")
"""What no name has, of many with NULs between them: between two slashes nothing, "." or ".."."""

faiss: Any = faiss_stubs  # its stubs lack most of what it has
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class About:
    """What an index is: the root of its relative names, the model that made its vectors, how it is searched.

    `dim` numbers make a vector, the first `width` of them the embedding. `beside` is the root as seen from the index's
    folder: both may be moved together.
    """

    root: str
    model: str
    digest: str
    dim: int
    kind: str = "auto"
    recall: float = 0.99
    width: int = 0
    beside: str = ""
    format: int = FORMAT

    @classmethod
    def from_json(cls, text: Any, where: object) -> About:
        """What stands in an index, a stranger's for all we know."""
        about: About | None = _parsed(cls, text)
        if about is None or about.format != FORMAT or about.kind not in KINDS or not 0 < about.recall <= 1:
            raise FileError(f"{where}: not an index that this likewise writes, or damaged")
        if not 0 <= about.width <= about.dim < MOST_DIM or not about.dim:
            raise FileError(f"{where}: damaged: vectors of {about.dim} numbers, {about.width} of an embedding")
        return about


@dataclass(frozen=True)
class Record:
    """An image as an index knows it: its name (below the root, or absolute), and its file's size and time in ns.

    `taken` is when it was taken, as ISO 8601, "" where no camera told; `place` is (latitude, longitude). `mark` and
    `digest` are those of `media.stamp` and `media.digest`.
    """

    name: str
    size: int
    mtime: int
    taken: str = ""
    place: tuple[float, float] | None = None
    mark: int = 0
    digest: int = 0


@dataclass(frozen=True)
class Filter:
    """Which names take part: those below a folder, those with a label; None is all."""

    under: str | None = None
    label: str | None = None

    def __call__(self, name: str) -> bool:
        """Whether a name takes part."""
        if self.label is not None and label_of(name) != self.label:
            return False
        if self.under == "":
            return not name.startswith("/")
        return self.under is None or name.startswith(self.under.rstrip("/") + "/")


EVERYTHING = Filter()


def label_of(name: str) -> str:
    """The label of an image: the name of the folder that it lies in; "" right below the root."""
    return name.rpartition("/")[0].rpartition("/")[2]


def check_put(records: Sequence[Record], vectors: Vectors, dim: int) -> None:
    """Refuse what, once kept, would bar an index from being opened: names out of the root, vectors of another size."""
    for record in records:
        check_name(record.name, "paths")
    if vectors.shape != (len(records), dim):
        raise ShapeError(
            f"model: its embed gave vectors of shape {vectors.shape}; expected {(len(records), dim)}, as the index has"
        )


def check_name(name: str, where: object) -> str:
    """Refuse a name that leads out of the root: "..", a drive, a NUL; an absolute one must be plain."""
    if "\0" in name or ODD.search(name):
        raise FileError(f"{where}: holds the name {name[:80]!r}, which is no plain path below the root")
    return name


class Index:
    """The index in a folder: `Index.create` makes one, `Index(folder)` opens one; `MilvusIndex` has the same calls.

    Every method may be called from any thread. Another process that is writing is waited for a while, then told of in
    a FileError; with WAL, readers are never kept waiting.
    """

    about: About

    def __init__(self, place: str | Path) -> None:
        folder = Path(place)
        self.path, self.file, self._lock = folder, folder / FILE, threading.RLock()
        if not self.file.is_file():
            raise FileError(f"{folder}: holds no index ({FILE} is missing)")
        self._root = ""
        self._deletions: Any = None
        self._facts: Facts | None = None
        self._inner: tuple[Facts | None, Any, int] = (None, None, 0)
        writable = os.access(folder, os.W_OK) and os.access(self.file, os.W_OK)
        with _one_line(self.file):
            # WAL writes files beside its own, even to read: a read-only medium is taken as it is
            self._db = _connect(self.file, "rw" if writable else "ro&immutable=1")
            try:
                if writable:
                    _keep_journal(self._db)
                self.refresh()
            except BaseException:
                self._db.close()
                raise

    @classmethod
    def exists(cls, place: str | Path) -> bool:
        """Whether there is one in this folder."""
        return Path(place, FILE).is_file()

    @classmethod
    def create(cls, place: str | Path, about: About, model: bytes | None = None) -> Index:
        """An empty index in a new folder, or in an empty one.

        `model` is the model itself (`checkpoint.pack`), where it can be kept with its vectors.
        """
        folder = Path(place)
        if folder.exists() and not folder.is_dir():
            raise InputError(f"out: {folder} is a file; give the name of a folder for the index")
        if folder.is_dir():
            media.sweep(folder)
            if foreign := os.listdir(folder):
                raise InputError(f"out: {folder} holds something else ({min(foreign)!r}); use another place")
        meta = [("about", json.dumps(asdict(replace(about, beside=_from(about.root, folder))))), ("next", 1)]
        meta += [("deletions", 0), *([] if model is None else [("model", model)])]
        with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
            # FULL: pages of what is removed are given back to the disk
            for step in (f"PRAGMA page_size = {PAGE}", "PRAGMA auto_vacuum = FULL", "BEGIN", *SCHEMA):
                db.execute(step)
            db.executemany("INSERT INTO meta VALUES (?, ?)", meta)
            db.commit()
            media.write_bytes(folder / FILE, db.serialize())  # whole or not at all, as everything after it
        return cls(folder)

    def model(self) -> bytes | None:
        """The model that is kept with its vectors, or None."""
        with self._transaction("DEFERRED") as db:
            row = db.execute("SELECT value FROM meta WHERE key = 'model'").fetchone()
        return row[0] if row and isinstance(row[0], bytes) else None

    # ── the view ──────────────────────────────────────────────────────────────────────────────────────────────────

    def refresh(self, *, load: bool = False) -> None:
        """See what has been written since this index was opened or last refreshed; `load` reads vectors, too."""
        with self._transaction("DEFERRED") as db:
            # other tables are not ours; views and triggers would run a stranger's SQL
            tables = {sql for (sql,) in db.execute("SELECT sql FROM sqlite_schema WHERE sql NOT NULL LIMIT 9")}
            if tables != set(SCHEMA):
                raise FileError(f"{self.file}: not an index of likewise, or an older one; use another place")
            meta = dict(db.execute("SELECT key, value FROM meta WHERE key != 'model' LIMIT 9"))
            about, self._facts = About.from_json(meta.get("about"), self.file), _parsed(Facts, meta.get("cache"))
            if meta.get("deletions") != self._deletions:  # of what is left nothing is known: begin anew
                self._names, self._ids, self._deletions = list[str](), np.empty(0, np.int64), meta.get("deletions")
                self._rows, self._read = np.empty((0, about.dim), np.float32), 0
            self._masks: dict[Filter, Places] = {}
            self._read_names(db)
            self._root = self._root or self._find_root(about)
            self.about = replace(about, root=self._root)
            if self._read or load:
                self._read_vectors(db)

    def _read_names(self, db: sqlite3.Connection) -> None:
        """Ids and names after the last one that is known."""
        last = int(self._ids[-1]) if len(self._ids) else 0
        rows = db.execute(
            "SELECT id, name FROM images WHERE id > ? ORDER BY id LIMIT ?", (last, self._most())
        ).fetchall()
        ids, blobs = np.array([i for i, _ in rows], np.int64).reshape(len(rows)), [name for _, name in rows]
        if (np.diff(np.concatenate([[last], ids])) <= 0).any() or not set(map(type, blobs)) <= {bytes}:
            raise FileError(f"{self.file}: damaged: ids that do not grow, or names that are none")
        text = os.fsdecode(b"\0".join(blobs))  # all at once: a second for a million, one by one three
        names = text.split("\0") if blobs else []
        if len(names) != len(blobs) or (names and ODD.search(text)):
            check_name(next((name for name in names if ODD.search(name)), "\0"), self.file)
        self._names += names
        self._ids = np.concatenate([self._ids, ids])

    def _read_vectors(self, db: sqlite3.Connection) -> None:
        """The vectors of every id that is known and not yet read, into one array with room to grow."""
        new = slice(self._read, len(self._ids))
        if len(self._rows) < new.stop:
            grown = np.empty((new.stop + new.stop // 8 + 512, self.about.dim), np.float32)
            grown[: self._read] = self._rows[: self._read]
            self._rows = grown
        rows = self._rows[new]
        if not self._fill(db, self._ids[new], rows).all():
            raise FileError(f"{self.file}: damaged: images and vectors do not belong together")
        if not (np.abs(np.einsum("ij,ij->i", rows, rows) - 1) < 1e-2).all():
            raise FileError(f"{self.file}: damaged: vectors not of length 1; check() says more")
        self._read = new.stop

    def _fill(self, db: sqlite3.Connection, ids: Places, rows: Vectors) -> NDArray[np.bool_]:
        """Write the vectors of ascending ids to rows, each chunk read once; which of them there are."""
        known, at = np.zeros(len(ids), bool), 0
        while at < len(ids):
            first, data = db.execute(CHUNK_OF.format("data"), (int(ids[at]),)).fetchone() or (0, b"")
            chunk = self._decoded(data)
            stop = max(at + 1, int(np.searchsorted(ids, first + len(chunk))))
            known[at:stop] = ids[at] < first + len(chunk)
            if known[at]:
                rows[at:stop] = chunk[ids[at:stop] - first]
            at = stop
        return known

    def _decoded(self, data: Any) -> NDArray[np.float16]:
        """A chunk as an array (n, dim). Checksums are read by `check` alone: a third of the time of opening."""
        if not isinstance(data, bytes) or len(data) % self._row:
            raise FileError(f"{self.file}: damaged: a row that is not {self._row} bytes long")
        return np.frombuffer(data, STORED).reshape(-1, self.about.dim)

    @property
    def _row(self) -> int:
        """Bytes of a vector."""
        return STORED.itemsize * self.about.dim

    def _most(self) -> int:
        """The most rows that the file can hold: one whose pages lead in a circle gives them without end."""
        return sum(f.stat().st_size for f in (self.file, self.path / f"{FILE}-wal") if f.exists()) // 8

    def _find_root(self, about: About) -> str:
        """Where the images are: in their old place beside the index, if both were moved, or where they were."""
        moved = os.path.normpath(self.path.absolute() / about.beside)
        first = self._names[0] if self._names else ""
        return next((r for r in (moved, about.root) if os.path.exists(os.path.join(r, first))), about.root)

    @contextlib.contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
        with self._lock, _one_line(self.file):
            self._db.execute(f"BEGIN {kind}")
            try:
                yield self._db
                self._db.commit()
            except BaseException:
                self._db.rollback()
                raise

    # ── what is kept ──────────────────────────────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        return len(self._ids)

    def names(self) -> Iterator[str]:
        """Every name, in no particular order."""
        return iter(list(self._names))

    def stamps(self, names: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
        """Size, time, mark and digest of those names that are kept."""
        with self._transaction("DEFERRED") as db:
            rows = self._rows_of(db, "size, mtime, mark, digest FROM images", names)
            return {name: (size, mtime, mark, digest) for name, size, mtime, mark, digest in rows}

    def vectors(self, names: Sequence[str]) -> Mapping[str, Vectors]:
        """The vector of those names that are kept."""
        with self._transaction("DEFERRED") as db:
            kept = sorted((i, name) for name, i in self._rows_of(db, "id FROM images", names))
            rows = np.empty((len(kept), self.about.dim), np.float32)
            known = self._fill(db, np.array([i for i, _ in kept], np.int64), rows)
        return {name: row for (_, name), row, there in zip(kept, rows, known, strict=True) if there}

    def features(self, names: Sequence[str]) -> Mapping[str, bytes]:
        """The local features of those names that are kept, as they were put."""
        with self._transaction("DEFERRED") as db:
            rows = self._rows_of(db, "data FROM images JOIN features USING (id)", names)
            return {name: data for name, data in rows if isinstance(data, bytes)}

    def records(self) -> Iterator[Record]:
        """What is known of every image besides its vector, in the order of names."""
        with self._transaction("DEFERRED") as db:
            what = "SELECT name, size, mtime, taken, latitude, longitude FROM images ORDER BY name LIMIT ?"
            rows = db.execute(what, (self._most(),)).fetchall()
        return (_record(*row) for row in rows if isinstance(row[0], bytes))

    def _rows_of(self, db: sqlite3.Connection, what: str, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Columns of some names, each row after its name."""
        for some in batches([os.fsencode(n) for n in names], 500):
            for name, *rest in db.execute(f"SELECT name, {what} WHERE name IN ({', '.join('?' * len(some))})", some):
                if not isinstance(name, bytes):
                    raise FileError(f"{self.file}: damaged: a name that is none")
                yield os.fsdecode(name), *rest

    def put(self, records: Sequence[Record], vectors: Vectors, features: Sequence[bytes] = ()) -> None:
        """Keep these, all or none of them; a name that is kept already gets the new vector in the same step."""
        check_put(records, vectors, self.about.dim)
        with self._transaction() as db:
            self._delete(db, [r.name for r in records])
            ids = self._append(db, vectors)
            rows = [
                (i, os.fsencode(r.name), r.size, r.mtime, r.taken, *(r.place or (None, None)), r.mark, r.digest)
                for i, r in zip(ids, records, strict=True)
            ]
            db.executemany("INSERT INTO images VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
            for i, data in zip(ids, features, strict=False):
                _insert(db, "features", i, data)
        self.refresh()

    def _append(self, db: sqlite3.Connection, vectors: Vectors) -> range:
        """Write vectors in chunks of their own; the ids that are theirs."""
        first = int(db.execute("SELECT value FROM meta WHERE key = 'next'").fetchone()[0])
        ids = range(first, first + len(vectors))
        for some in batches(ids, max(1, CHUNK // self._row)):
            rows = np.ascontiguousarray(vectors[some.start - first : some.stop - first], STORED)
            _insert(db, "vectors", some.start, rows.tobytes())
        db.execute("UPDATE meta SET value = ? WHERE key = 'next'", (ids.stop,))
        return ids

    def remove(self, names: Iterable[str]) -> int:
        """Drop these; how many there were."""
        with self._transaction() as db:
            count = self._delete(db, list(names))
        self.refresh()
        return count

    def _delete(self, db: sqlite3.Connection, names: Sequence[str]) -> int:
        """Drop these; what is left of a chunk that is half gone is written again, under new ids."""
        drop = "DELETE FROM images WHERE name = ? RETURNING id"
        gone = [i for name in names for (i,) in db.execute(drop, (os.fsencode(name),))]
        if gone:
            db.execute("UPDATE meta SET value = value + 1 WHERE key = 'deletions'")
        chunks = {db.execute(CHUNK_OF.format("length(data)"), (i,)).fetchone() for i in gone}
        for first, size in filter(None, chunks):
            count = size // self._row
            left = [i for (i,) in db.execute("SELECT id FROM images WHERE id >= ? LIMIT ?", (first, count))]
            left = [i for i in left if i < first + count]
            if 2 * len(left) <= count:
                rows = np.empty((len(left), self.about.dim), np.float32)
                self._fill(db, np.array(left, np.int64), rows)
                db.execute("DELETE FROM vectors WHERE first = ?", (first,))
                moved = zip(self._append(db, rows), left, strict=True)
                db.executemany("UPDATE images SET id = ? WHERE id = ?", moved)
        return len(gone)

    # ── searching ─────────────────────────────────────────────────────────────────────────────────────────────────

    def has(self, which: Filter) -> bool:
        """Whether any image takes part."""
        return which == EVERYTHING or len(self._places(which)) > 0

    def _places(self, which: Filter) -> Places:
        """Which places take part; of the last few filters that is remembered."""
        if which not in self._masks:
            places = np.flatnonzero(np.fromiter(map(which, self._names), bool, len(self._names)))
            self._masks = {**dict(list(self._masks.items())[-7:]), which: places}
        return self._masks[which]

    def nearest(self, queries: Vectors, k: int, which: Filter = EVERYTHING) -> list[Nearest]:
        """The k nearest to each query, by distance and name; exact, save where the cache answers (no filter)."""
        with self._lock:
            return ranked(queries, k, lambda some, many: self._candidates(some, many, k, which))

    def _candidates(self, queries: Vectors, many: int, k: int, which: Filter) -> list[Candidates]:
        whole = which == EVERYTHING
        inner = self._approximate() if whole and len(self) and many <= MOST_SOUGHT else None
        if inner is not None and self._facts is not None:
            kept = [self._kept(ids) for ids in search_cache(inner, queries, many, self._facts.effort)]
            if all(whole for _, _, whole in kept):
                enough = min(k, len(self))
                return [self._seen(at, rows, np.inf if len(at) >= enough else -1.0) for at, rows, _ in kept]
            self._deletions = None  # another process has removed or moved some of them since
        if not self._read or self._deletions is None:
            self.refresh(load=True)
        at = None if whole else self._places(which)
        total = len(self) if at is None else len(at)
        D, I = exact(self._rows[: self._read], queries, min(many, total), at)
        last = np.full(len(D), np.inf) if many >= total else D[:, -1]
        return [self._seen(i, self._rows[i], float(d)) for i, d in zip(I, last, strict=True)]

    def _seen(self, places: Places, rows: Vectors, last: float) -> Candidates:
        return [self._names[i] for i in places], rows, last

    def _kept(self, ids: Places) -> tuple[Places, Vectors, bool]:
        """The places of those ids that are in view, and their vectors: from memory, or else from disk.

        What another process has removed since has none there: the last value is whether all have.
        """
        places = np.sort(np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1))
        places = places[np.isin(self._ids[places], ids)]
        if self._read:
            return places, self._rows[places], True
        rows = np.empty((len(places), self.about.dim), np.float32)
        with self._transaction("DEFERRED") as db:
            known = self._fill(db, self._ids[places], rows)
        return places[known], rows[known], bool(known.all())

    # ── the approximate index ─────────────────────────────────────────────────────────────────────────────────────

    def set_kind(self, kind: str, recall: float) -> None:
        """Be searched in another way, tuned to another recall, from the next `settle` on."""
        self._set_meta("about", asdict(replace(self.about, kind=kind, recall=recall)))
        self.refresh()

    def _set_meta(self, key: str, value: dict[str, Any]) -> None:
        with self._transaction() as db:
            db.execute("REPLACE INTO meta VALUES (?, ?)", (key, json.dumps(value)))

    def settle(self) -> None:
        """After writing: build the approximate index where kind and size want one and it is stale or gone."""
        if chosen_kind(self.about.kind, len(self)) == "flat":
            if self._facts is not None:
                self._set_meta("cache", {})
                (self.path / CACHE).unlink(missing_ok=True)
                self.refresh()
            return
        if self._approximate() is not None and not self._stale():
            return
        self.refresh(load=True)
        facts, inner = build(self._rows[: self._read], self._ids, self.about.recall)
        with media.atomic(self.path / CACHE) as sibling:
            try:
                faiss.write_index(inner, str(sibling))
            except RuntimeError as error:
                raise FileError(f"{self.path / CACHE}: cannot be written: {str(error)[-100:]}") from None
            facts = replace(facts, sha256=_sha256(sibling))
        self._set_meta("cache", asdict(facts))
        self._inner = facts, inner, facts.covered
        self.refresh()

    def _stale(self) -> bool:
        facts = self._facts
        if facts is None or facts.wanted != self.about.recall:
            return True
        within = int((self._ids <= facts.covered).sum())
        return (facts.rows - within) + (len(self) - within) > STALE_SHARE * facts.rows

    def _approximate(self) -> Any:
        """The approximate index with every row that came since; a damaged one is told of once and left aside."""
        if self._facts is None:
            return None
        facts, inner, last = self._inner
        if facts != self._facts:
            try:
                inner, last = read_cache(self.path / CACHE, self._facts, self.about.dim), self._facts.covered
            except FileError as error:
                log.warning("%s; searching every vector instead: the next update makes it again", error)
                self._facts = None
                return None
        places, rows, _ = self._kept(self._ids[self._ids > last])
        if len(places):
            inner.add_with_ids(rows, self._ids[places])
        self._inner = self._facts, inner, max(last, int(self._ids[-1]) if len(self) else 0)
        return inner

    # ── health ────────────────────────────────────────────────────────────────────────────────────────────────────

    def check(self) -> list[str]:
        """Read everything: the file's own structure, checksums, unit vectors, the approximate index."""
        wrong: list[str] = []
        try:
            self.refresh()
            with self._transaction("DEFERRED") as db:
                said = [str(message)[:200] for (message,) in db.execute("PRAGMA integrity_check(5)")]
                said += ["features without an image" for _ in db.execute("PRAGMA foreign_key_check")]
                for table in ("vectors", "features"):
                    rows = db.execute(f"SELECT data, crc FROM {table} LIMIT {self._most()}")
                    off = sum(not isinstance(data, bytes) or zlib.crc32(data) != crc for data, crc in rows)
                    said += [f"{off} {table} are damaged"] if off else []
            wrong += [f"{self.file}: {message}" for message in said if message != "ok"]
            self._deletions = None  # everything is read anew
            self.refresh(load=True)
            if self._facts is not None:
                read_cache(self.path / CACHE, self._facts, self.about.dim)
        except FileError as error:
            wrong.append(str(error))
        return wrong

    def describe(self) -> dict[str, Any]:
        """Kind, number of images, and what was measured of the approximate index."""
        facts = None if self._facts is None else asdict(self._facts)
        return {"kind": "flat" if facts is None else "ivf", "images": len(self), "index": facts}

    def close(self) -> None:
        """Let go of the file and of what is in memory."""
        with self._lock:
            self._db.close()
            self._rows, self._read, self._inner = self._rows[:0], 0, (None, None, 0)

    def drop(self) -> None:
        """Delete what an index writes, and the folder, where nothing else lies in it."""
        self.close()
        for name in OURS:
            (self.path / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()


# ── SQLite ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _connect(file: Path, mode: str) -> sqlite3.Connection:
    address = f"{file.absolute().as_uri()}?mode={mode}{VFS}"
    db = sqlite3.connect(address, uri=True, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
    # FULL: what is acknowledged is on the disk. The others: a stranger's schema runs nothing, its pages are checked.
    for setting in ("synchronous = FULL", "foreign_keys = ON", "trusted_schema = OFF", "cell_size_check = ON"):
        try:
            db.execute(f"PRAGMA {setting}")
        except UnicodeDecodeError:  # SQLite's complaint quotes a damaged schema
            raise sqlite3.DatabaseError("malformed database schema") from None
    return db


def _keep_journal(db: sqlite3.Connection) -> None:
    """Write ahead, so that readers and a writer do not wait for each other; by a journal where memory is not shared."""
    with contextlib.suppress(sqlite3.OperationalError):
        if db.execute("PRAGMA journal_mode = WAL").fetchone()[0] == "wal":
            return
    db.execute("PRAGMA journal_mode = TRUNCATE")


@contextlib.contextmanager
def _one_line(file: Path) -> Iterator[None]:
    """Whatever SQLite complains of, as a FileError in one line that starts with the file."""
    try:
        yield
    except sqlite3.Error as error:
        if "locked" in str(error):
            raise FileError(f"{file}: another process is writing to this index; try again when it is done") from None
        if "full" in str(error):
            raise FileError(f"{file}: cannot be written: the disk is full; what was there before is kept") from None
        raise FileError(f"{file}: damaged, or not an index: {str(error)[:200]}") from None


def _insert(db: sqlite3.Connection, table: str, key: int, blob: bytes) -> None:
    """One blob with its checksum."""
    db.execute(f"INSERT INTO {table} VALUES (?, ?, ?)", (key, blob, zlib.crc32(blob)))


def _record(name: Any, size: Any, mtime: Any, taken: Any, latitude: Any, longitude: Any) -> Record:
    """A row of a stranger's file: what is not of its kind was not told."""
    told = all(isinstance(x, float) and abs(x) <= 180 for x in (latitude, longitude))
    text = taken if isinstance(taken, str) and len(taken) < 64 else ""
    return Record(os.fsdecode(name), size, mtime, text, (latitude, longitude) if told else None)


def _parsed(cls: Any, text: Any) -> Any:
    """A dataclass of plain values from the JSON in a file; None where that is not what stands there."""
    try:
        made = cls(**json.loads(text if len(text) < MOST_TEXT else ""))
        kinds = {"str": str, "int": int, "float": float}
        fits = all(type(getattr(made, f.name)) is kinds[f.type] for f in cls.__dataclass_fields__.values())
    except (TypeError, ValueError, AttributeError, RecursionError):
        return None
    return made if fits else None


def _from(root: str, folder: Path) -> str:
    try:
        return os.path.relpath(root, folder.absolute())
    except ValueError:  # another drive
        return root


def batches(items: Sequence[Any], size: int) -> Iterator[Any]:
    """Items, `size` at a time."""
    return (items[i : i + size] for i in range(0, len(items), size))


# ── exact order ───────────────────────────────────────────────────────────────────────────────────────────────────


Candidates: TypeAlias = tuple[Sequence[str], Vectors, float]
"""What a search saw for one query: names, vectors (m, d), and the largest squared distance that it looked at, infinite
where there is nothing further to be found."""


def ranked(queries: Vectors, k: int, fetch: Callable[[Vectors, int], list[Candidates]]) -> list[Nearest]:
    """The k nearest of each query by (distance, name); more is fetched where a tie could reach beyond what was seen."""
    hits: list[Nearest] = [[] for _ in queries]
    unsettled, many = list(range(len(queries))), k + SLACK
    while unsettled:
        again = []
        for i, candidates in zip(unsettled, fetch(queries[unsettled], many), strict=True):
            hits[i], settled = _ordered(queries[i], candidates, k)
            if not settled:
                again.append(i)
        unsettled, many = again, 4 * many
    return hits


def _ordered(query: Vectors, candidates: Candidates, k: int) -> tuple[Nearest, bool]:
    """The first k of the candidates, and whether nothing unseen can be among them."""
    names, rows, last = candidates
    distances = np.linalg.norm(unit(rows) - unit(query[None]), axis=1)
    if not np.isfinite(distances).all():
        raise FileError("the index holds vectors that are not numbers: it is damaged; check() says where")
    order = sorted(range(len(distances)), key=lambda i: (distances[i], names[i]))[:k]
    hits = [(names[i], float(distances[i])) for i in order]
    return hits, last == np.inf or (len(hits) == k and hits[-1][1] ** 2 + TOLERANCE < last)


def unit(rows: NDArray[np.floating]) -> NDArray[np.float64]:
    """Rows of length 1 in float64: ‖x − y‖ of two of them is 0 (same) to 2 (opposite)."""
    wide = np.asarray(rows, dtype=np.float64)
    return np.asarray(wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), np.finfo(np.float64).tiny))


def exact(rows: Vectors, queries: Vectors, k: int, at: Places | None = None) -> tuple[NDArray[np.float32], Places]:
    """The k nearest rows to each query, of those at some places: squared distances (q, k) ascending, and places."""
    some = rows if at is None else rows[at]
    if not len(some):
        return np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
    # plain arrays: what others patch into FAISS (faiss.contrib.torch_utils) does not take a memory map for one
    D, I = faiss.knn(np.ascontiguousarray(queries, np.float32), np.ascontiguousarray(some), k)
    return D, I if at is None else at[I]


# ── FAISS ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Facts:
    """What is known of an approximate index: its rows, how many lists a search looks at (`effort`), its recall.

    `recall` is at 10, measured on `queries` rows that it had not seen; `wanted` is what it was tuned to. `covered` is
    the last id in it, `sha256` that of its file.
    """

    rows: int
    effort: int
    recall: float
    wanted: float
    queries: int
    covered: int
    sha256: str = ""


def chosen_kind(kind: str, rows: int) -> str:
    """The kind that `kind` means for this many rows."""
    least = FLAT_UNTIL + 1 if kind == "auto" else LEAST_ROWS
    return "flat" if kind == "flat" or rows < least else "ivf"


def build(rows: Vectors, ids: Places, recall: float, *, seed: int = 0) -> tuple[Facts, Any]:
    """An IVF index, tuned until recall@10 on rows that it has not seen reaches `recall`; then these join it.

    It keeps 16 bits a number: the vectors themselves settle the order.
    """
    rng, n = np.random.default_rng(seed), len(rows)
    held = np.sort(rng.choice(n, min(HELD_OUT, n // 4), replace=False))
    rest = np.delete(np.arange(n), held)
    lists = max(1, min(int(4 * np.sqrt(len(rest))), len(rest) // PER_LIST))
    centres, d = faiss.IndexFlatL2(rows.shape[1]), rows.shape[1]
    inner = faiss.IndexIVFScalarQuantizer(centres, d, lists, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_L2, False)
    inner.cp.niter, inner.cp.min_points_per_centroid = ROUNDS, 1
    inner.train(rows[np.sort(rng.choice(rest, min(len(rest), PER_LIST * lists), replace=False))])
    inner.add_with_ids(rows[rest], ids[rest])
    queries, truth = rows[held], ids[exact(rows, rows[held], AT, rest)[1]]

    def measured(half: slice, effort: int) -> float:
        seen = _search(inner, queries[half], AT, effort)
        return float(np.mean([len(np.intersect1d(a, b)) / AT for a, b in zip(seen, truth[half], strict=True)]))

    effort = 1
    while effort < lists and measured(slice(0, None, 2), effort) < recall:
        effort = min(2 * effort, lists)
    report = slice(1, None, 2)
    facts = Facts(n, effort, measured(report, effort), float(recall), len(queries[report]), int(ids[-1]))
    inner.add_with_ids(queries, ids[held])
    return facts, inner


def search_cache(inner: Any, queries: Vectors, k: int, effort: int) -> list[Places]:
    """Ids of about the k nearest to each query; more lists are looked at where they hold fewer than k."""
    while ((ids := _search(inner, queries, k, effort)) < 0).any() and effort < inner.nlist:
        effort = 2 * max(effort, 1)
    return [row[row >= 0] for row in ids]


def _search(inner: Any, queries: Vectors, k: int, effort: int) -> Places:
    """Ids (q, k) of the nearest in so many lists; −1 where they hold fewer."""
    x, params = (
        np.ascontiguousarray(queries, np.float32),
        faiss.SearchParametersIVF(nprobe=min(max(effort, 1), inner.nlist)),
    )
    D, I = np.empty((len(x), k), dtype=np.float32), np.empty((len(x), k), dtype=np.int64)
    # search_c, not search: faiss.contrib.torch_utils replaces Index.search for the whole process by one that takes no
    # params, and pytorch-metric-learning imports it
    inner.search_c(len(x), faiss.swig_ptr(x), k, faiss.swig_ptr(D), faiss.swig_ptr(I), params)
    return I


def read_cache(path: Path, facts: Facts, dim: int) -> Any:
    """The approximate index in a file; FAISS is given no byte whose checksum is not the recorded one."""
    if not path.is_file() or _sha256(path) != facts.sha256:
        raise FileError(f"{path}: missing, damaged or not the one that this index wrote")
    try:
        inner = faiss.read_index(str(path))
    except (RuntimeError, MemoryError) as error:
        raise FileError(f"{path}: cannot be read by this FAISS: {(str(error) or 'memory')[:200]}") from None
    fits = isinstance(inner, faiss.IndexIVFScalarQuantizer) and inner.is_trained and inner.d == inner.quantizer.d == dim
    fits = fits and inner.sq.qtype == faiss.ScalarQuantizer.QT_fp16 and inner.ntotal == facts.rows and inner.nlist > 0
    if not fits or not inner.nlist == inner.quantizer.ntotal == inner.invlists.nlist:
        raise FileError(f"{path}: damaged, or not an index that likewise would write")
    return inner


def _sha256(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
