"""A gallery in a folder: segments that are written once, one manifest that says which of them count.

gallery.json            the manifest: model, root, segments, removed rows, index; replaced atomically
segment-000000.npy/json rows and names that were added together, and .parts.npy, where parts are kept
index-000004.faiss      an approximate index, where there is one; derived, and made again when it is damaged
model.safetensors       the model, where it can be saved
.lock                   held by the one process that writes

Whatever is killed, and whenever: a segment counts from the moment at which the manifest names it.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from likewise.errors import FileError, InputError
from likewise.images.stores import About, Filter, Found, Parts, Record, Rows, indexes, manifest, segments
from likewise.images.stores.indexes import Gathered, Ids, Index
from likewise.images.stores.manifest import MANIFEST, State
from likewise.images.stores.ranking import Candidates, ranked
from likewise.images.stores.segments import Segment
from likewise.store import job as shards

MODEL = "model.safetensors"

SEGMENTS = 64
"""More of them than this are merged in the middle of a long addition, too."""

STALE_SHARE = 0.10
"""An index is made anew when this share of the rows is not in it, or in it though removed."""

_NAMES = r"segment-\d{6}(\.parts)?|gallery|index-\d{6}|model"
"""What stands before the temporary part in the name of a file that a killed writer left."""

log = logging.getLogger(__name__)


class FolderStore:
    """Rows in a folder; see the module. `FolderStore.create` makes one, `FolderStore.open` opens one."""

    def __init__(self, path: Path, about: About, state: State) -> None:
        self.path, self.about, self.state = path, about, state
        self._loaded: Index | None = None
        self._become(state)

    @classmethod
    def create(cls, path: Path, about: About) -> FolderStore:
        """An empty store in a new folder, or in an empty one."""
        store = cls(path, about, State())
        with shards.locked(path):
            if (path / MANIFEST).exists():
                raise InputError(f"out: {path} holds a gallery already; open it")
            store._commit(State())
        return store

    @classmethod
    def open(cls, path: Path) -> FolderStore:
        """The store in a folder; damage that can be seen without reading every row is a FileError."""
        if not (path / MANIFEST).is_file():
            raise FileError(f"{path}: holds no gallery ({MANIFEST} is missing)")
        for attempt in range(4):
            said = manifest.read(path)
            try:
                return cls(path, *manifest.parsed(path, said))
            except FileError:  # a writer may have merged segments between the two reads
                if attempt == 3 or manifest.read(path) == said:
                    raise
        raise FileError(f"{path}: is being rewritten too fast to be read; try again")

    def _become(self, state: State, where: dict[str, tuple[int, int]] | None = None) -> None:
        """Take a state over; `where` is the place of each name, if that is known already."""
        if state.index != self.state.index:
            self._loaded = None
        self.state = state
        self._by_number = {s.number: s for s in state.segments}
        self._where = where if where is not None else state.places()
        self._ids = np.concatenate([np.empty(0, np.int64), *(s.ids for s in state.segments)])
        self._alive = np.concatenate([np.empty(0, bool), *(s.alive for s in state.segments)])
        self._starts = np.cumsum([0, *(len(s) for s in state.segments)])

    # ── what is kept ──────────────────────────────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        return len(self._where)

    def names(self) -> Iterator[str]:
        """Every name, in no particular order."""
        return iter(self._where)

    def known(self, names: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        """Size and time of those names that are kept."""
        found = {}
        for name in names:
            if name in self._where:
                number, i = self._where[name]
                record = self._by_number[number].records[i]
                found[name] = (record.size, record.mtime)
        return found

    # ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the folder; what another process wrote meanwhile is read first, what a killed one left is removed."""
        with shards.locked(self.path):
            said = manifest.read(self.path)
            if said != manifest.body(self.path, self.about, self.state):
                self.about, state = manifest.parsed(self.path, said, self.about.root)
                self._become(state)
            self._sweep()
            yield

    def rows(self, names: Sequence[str]) -> Mapping[str, Rows]:
        """The row of those names that are kept."""
        places = {name: self._where[name] for name in names if name in self._where}
        return {name: self._by_number[number].rows[i] for name, (number, i) in places.items()}

    def parts(self, names: Sequence[str]) -> Mapping[str, Parts]:
        """The parts of those names of which some are kept."""
        found = {}
        for name in names:
            number, i = self._where.get(name, (-1, 0))
            kept = self._by_number[number].parts if number >= 0 else None
            if kept is not None:
                found[name] = np.asarray(kept[i])
        return found

    def put(self, records: Sequence[Record], rows: Rows, parts: Parts | None = None) -> None:
        """Keep these in a new segment; a name that is kept already gets the new row in the same step."""
        for record in records:
            segments.check_name(record.name, "paths")
        segments.check_rows(rows, records, self.about.dim)
        state = self.state
        ids = range(state.next_id, state.next_id + len(records))
        added = segments.write(self.path, state.next_file, ids, records, rows, parts)
        kept = self._without(r.name for r in records)
        after = replace(state, next_id=ids.stop, next_file=state.next_file + 1, gathered={})
        places = {r.name: (added.number, i) for i, r in enumerate(added.records)}
        self._commit(replace(after, segments=(*kept, added)), places)
        if len(self.state.segments) > SEGMENTS:
            self._merge()

    def remove(self, names: Iterable[str]) -> int:
        """Drop these; how many there were. Their rows go when segments are next merged."""
        gone = set(names) & set(self._where)
        if gone:
            self._commit(replace(self.state, segments=self._without(gone), gathered={}))
        return len(gone)

    def _without(self, names: Iterable[str]) -> tuple[Segment, ...]:
        """The segments with the rows of these names marked as removed; those that change are copies."""
        dead: dict[int, list[int]] = {}
        for name in names:
            if name in self._where:
                number, i = self._where[name]
                dead.setdefault(number, []).append(i)
        return tuple(segments.marked(s, dead[s.number]) if s.number in dead else s for s in self.state.segments)

    def _commit(self, state: State, added: dict[str, tuple[int, int]] | None = None) -> None:
        """Make a change; `added` says where names are that came or moved, if nothing else has changed its place."""
        manifest.write(self.path, self.about, state)
        self._become(state, None if added is None else self._where | added)

    def _sweep(self) -> None:
        """Delete the files that the manifest does not name: what killed writers left, and what was merged."""
        kept = {f"segment-{s.number:06d}" for s in self.state.segments}
        if self.state.index is not None:
            kept.add(f"index-{self.state.index['number']:06d}")
        for file in self.path.iterdir():
            ours = re.fullmatch(r"(segment|index)-\d{6}\.(npy|json|faiss|parts\.npy)", file.name)
            torn = re.fullmatch(
                r"\.(segment-\d{6}(\.parts)?|gallery|index-\d{6}|model)\.[0-9a-f]{12}\.tmp\.\w+", file.name
            )
            if torn or (ours and file.name.partition(".")[0] not in kept):
                file.unlink(missing_ok=True)

    def choose(self, kind: str, recall: float) -> None:
        """Be of another kind, tuned to another recall, from the next `settle` on."""
        self.about = replace(self.about, kind=kind, recall=recall)
        self._commit(self.state)

    # ── settling ──────────────────────────────────────────────────────────────────────────────────────────────────

    def settle(self) -> None:
        """Merge small segments, drop removed rows, and build the index where one is due."""
        self._merge()
        self._renew()
        self._sweep()

    def _merge(self) -> None:
        groups = list(segments.groups(self.state.segments))
        if not any(segments.worth(group) for group in groups):
            return
        merged: list[Segment] = []
        number = self.state.next_file
        for group in groups:
            if not segments.worth(group):
                merged += group
                continue
            rows = Gathered((s.ids, s.scan(), s.alive) for s in group)
            if len(rows):
                records = [r for s in group for r, alive in zip(s.records, s.alive, strict=True) if alive]
                whole = rows.take(np.arange(len(rows)))
                parts = _kept_parts(group, self.about)
                merged.append(segments.write(self.path, number, rows.ids.tolist(), records, whole, parts))
                number += 1
        self._commit(replace(self.state, segments=tuple(merged), next_file=number, gathered={}))
        self._sweep()

    def _renew(self) -> None:
        """Drop the index, keep it, or build it anew, as kind and size want it."""
        kind = indexes.chosen_kind(self.about.kind, len(self))
        if kind == "flat":
            if self.state.index is not None:
                self._commit(replace(self.state, index=None))
            return
        if self._index() is not None and not self._stale(kind):
            return
        built = indexes.build(kind, self._gathered(Filter()), self.about.recall)
        number = self.state.next_file
        checksum = built.write(self.path / f"index-{number:06d}.faiss")
        entry = {"number": number, "sha256": checksum, "covered": self.state.next_id, "facts": built.entry()}
        self._commit(replace(self.state, next_file=number + 1, index=entry))
        self._loaded = built

    def _stale(self, kind: str) -> bool:
        """Whether an index is of another kind, was tuned to another recall, or lacks too many rows."""
        index = self._index()
        if index is None or self.state.index is None:
            return True
        within = int(sum((s.alive & (s.ids < self.state.index["covered"])).sum() for s in self.state.segments))
        off = (index.facts.rows - within) + (len(self) - within)
        other = index.facts.kind != kind or index.facts.wanted != self.about.recall
        return other or off > STALE_SHARE * index.facts.rows

    def _index(self) -> Index | None:
        """The index, read when it is first needed; a damaged one is told and left aside."""
        entry = self.state.index
        if self._loaded is None and entry is not None:
            path = self.path / f"index-{entry['number']:06d}.faiss"
            try:
                self._loaded = Index.read(path, entry["sha256"], entry["facts"])
                if self._loaded.inner.d != self.about.dim:
                    self._loaded = None
                    raise FileError(f"{path}: is an index of rows of another length")
            except FileError as error:
                log.warning("%s; searching every row instead: the next add makes it again", error)
                self._become(replace(self.state, index=None))
        return self._loaded

    # ── searching ─────────────────────────────────────────────────────────────────────────────────────────────────

    def matches(self, which: Filter) -> bool:
        """Whether any picture takes part."""
        return any(which(name) for name in self._where)

    def nearest(self, rows: Rows, k: int, which: Filter) -> list[Found]:
        """The k nearest to each row, by distance and name; exact, save where an index answers (never with a filter)."""
        if which == Filter() and self._index() is not None:
            return ranked(rows, k, lambda queries, many: self._approximate(queries, many, k))
        return ranked(rows, k, lambda queries, many: self._flat(queries, many, which))

    def _flat(self, queries: Rows, many: int, which: Filter) -> list[Candidates]:
        taking_part = self._gathered(which)
        many = min(many, len(taking_part))
        D, I = indexes.exact(taking_part.blocks(), queries, many)
        whole = many == len(taking_part)
        return [self._candidates(i, np.inf if whole else float(d[-1])) for d, i in zip(D, I, strict=True)]

    def _approximate(self, queries: Rows, many: int, k: int) -> list[Candidates]:
        """What the index finds, and the nearest of the rows that were added since."""
        index, covered = self._index(), self.state.index["covered"] if self.state.index else 0
        if index is None or many > indexes.MOST_SOUGHT:
            return self._flat(queries, many, Filter())
        I = index.search(queries, many)[1]
        late = [s for s in self.state.segments if s.ids[-1] >= covered]
        tail = Gathered((s.ids, s.scan(), s.alive & (s.ids >= covered)) for s in late)
        if len(tail):
            I = np.concatenate([I, indexes.exact(tail.blocks(), queries, min(many, len(tail)))[1]], axis=1)
        found = [self._candidates(self._living(i), np.inf) for i in I]
        for one in found:
            one.last = np.inf if len(one.names) >= min(k, len(self)) else -1.0
        return found

    def _living(self, ids: Ids) -> Ids:
        """Those of the ids that are kept."""
        at = np.searchsorted(self._ids, ids)
        at, ids = at[at < len(self._ids)], ids[at < len(self._ids)]
        kept: Ids = ids[(self._ids[at] == ids) & self._alive[at]]
        return kept

    def _candidates(self, ids: Ids, last: float) -> Candidates:
        at = np.searchsorted(self._ids, ids)
        parts = np.searchsorted(self._starts, at, side="right") - 1
        places = [(self.state.segments[p], int(i)) for p, i in zip(parts, at - self._starts[parts], strict=True)]
        rows = np.stack([s.rows[i] for s, i in places]) if places else np.empty((0, self.about.dim), np.float32)
        return Candidates([s.records[i].name for s, i in places], rows, last)

    def _gathered(self, which: Filter) -> Gathered:
        """The rows that take part; those of the last few filters are remembered."""
        known = self.state.gathered
        if which not in known:
            if len(known) > 8:
                known.clear()
            known[which] = Gathered((s.ids, s.scan(), _chosen(s, which)) for s in self.state.segments)
        return known[which]

    # ── health ────────────────────────────────────────────────────────────────────────────────────────────────────

    def check(self) -> list[str]:
        """Read everything: checksums, rows that are unit vectors, ids and names that occur once, the index."""
        try:
            _, state = manifest.parsed(self.path, manifest.read(self.path))
        except FileError as error:
            return [str(error)]
        wrong = [problem for s in state.segments for problem in segments.problems(s)]
        names = [r.name for s in state.segments for r, alive in zip(s.records, s.alive, strict=True) if alive]
        if len(set(names)) < len(names):
            wrong.append(f"{self.path / MANIFEST}: {len(names) - len(set(names))} names are kept twice")
        if state.index is not None:
            try:
                Index.read(
                    self.path / f"index-{state.index['number']:06d}.faiss", state.index["sha256"], state.index["facts"]
                )
            except FileError as error:
                wrong.append(f"{error}; add() makes it again")
        return wrong

    def describe(self) -> dict[str, Any]:
        """Kind, number of pictures, removed rows still on disk, and what was measured of the index."""
        facts = None if self.state.index is None else dict(self.state.index["facts"])
        return {
            "kind": "flat" if facts is None else facts["kind"],
            "pictures": len(self),
            "removed": int(sum((~s.alive).sum() for s in self.state.segments)),
            "segments": len(self.state.segments),
            "index": facts,
        }

    def close(self) -> None:
        """Let go of the mapped files."""
        self._become(State())

    def drop(self) -> None:
        """Delete everything that is kept, and the folder, where nothing else lies in it."""
        with shards.locked(self.path):
            self.close()
            for name in (MANIFEST, MODEL):
                (self.path / name).unlink(missing_ok=True)
            self._sweep()
        (self.path / ".lock").unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()


def _chosen(segment: Segment, which: Filter) -> NDArray[np.bool_]:
    if which == Filter():
        return segment.alive
    named = np.fromiter((which(r.name) for r in segment.records), bool, len(segment))
    chosen: NDArray[np.bool_] = segment.alive & named
    return chosen


def _kept_parts(group: Sequence[Segment], about: About) -> Parts | None:
    """The parts of what is left of some segments; None where none are kept."""
    if not about.cells:
        return None
    return np.concatenate([s.parts[np.flatnonzero(s.alive)] for s in group if s.parts is not None])
