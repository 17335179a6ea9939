"""The manifest of a gallery in a folder: read and checked as a stranger's, replaced atomically."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from likewise import media
from likewise.errors import FileError
from likewise.images.stores import About, Filter, indexes, segments
from likewise.images.stores.indexes import Gathered
from likewise.images.stores.segments import Segment
from likewise.store.checkpoint import canonical
from likewise.store.run import read_json

FORMAT = 1
MANIFEST = "gallery.json"


@dataclass(frozen=True)
class State:
    """What the manifest says: which segments count, the next id and file number, and the index."""

    segments: tuple[Segment, ...] = ()
    next_id: int = 0
    next_file: int = 0
    index: Mapping[str, Any] | None = None
    gathered: dict[Filter, Gathered] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(sum(s.alive.sum() for s in self.segments))

    def places(self) -> dict[str, tuple[int, int]]:
        """Segment and row of each name that has not been removed."""
        return {r.name: (s.number, i) for s in self.segments for i, r in enumerate(s.records) if s.alive[i]}


def write(path: Path, about: About, state: State) -> None:
    """Replace the manifest: the moment at which a change is made."""
    said = body(path, about, state)
    media.write_text(path / MANIFEST, json.dumps({**said, "checksum": _checksum(said)}, indent=1) + "\n")


def body(path: Path, about: About, state: State) -> dict[str, Any]:
    """What the manifest says, without its checksum."""
    return {
        "format": FORMAT,
        "about": asdict(about),
        "beside": _beside(about.root, path),
        "segments": [s.entry() for s in state.segments],
        "next": [state.next_id, state.next_file],
        "index": None if state.index is None else dict(state.index),
    }


def read(path: Path) -> dict[str, Any]:
    """The manifest, if it is whole and as it was written."""
    file = path / MANIFEST
    manifest = read_json(file)
    if manifest.get("format") != FORMAT:
        raise FileError(f"{file}: is of format {str(manifest.get('format'))[:20]}; this likewise reads {FORMAT}")
    checksum = manifest.pop("checksum", None)
    if _checksum(manifest) != checksum:
        raise FileError(f"{file}: damaged or edited by hand, it does not match its checksum; build the gallery again")
    return manifest


def parsed(path: Path, manifest: Mapping[str, Any], root: str | None = None) -> tuple[About, State]:
    try:
        about = About(**manifest["about"])
        next_id, next_file = manifest["next"]
        index, entries, beside = manifest["index"], manifest["segments"], manifest["beside"]
        if not _well_formed(about, (next_id, next_file), index, entries):
            raise TypeError
    except (KeyError, TypeError, ValueError):
        raise FileError(f"{path / MANIFEST}: damaged, it is not the manifest of a gallery") from None
    if len({str(entry["number"]) for entry in entries}) < len(entries):
        raise FileError(f"{path / MANIFEST}: damaged, it names a segment twice")
    found = tuple(segments.read(path, entry, about) for entry in entries)
    ids = np.concatenate([np.empty(0, np.int64), *(s.ids for s in found)])
    if (np.diff(ids) <= 0).any() or (len(ids) and not 0 <= ids[0] <= ids[-1] < next_id):
        raise FileError(f"{path / MANIFEST}: damaged, the ids of its segments overlap")
    state = State(found, next_id, next_file, index)
    return replace(about, root=root or _root(path, about.root, beside, found)), state


def _well_formed(about: About, counters: tuple[Any, ...], index: Any, entries: Any) -> bool:
    words = (about.root, about.model, about.digest, about.kind)
    return (
        all(isinstance(w, str) for w in words)
        and all(type(n) is int and n >= 0 for n in (*counters, about.dim, about.cells, about.width))
        and isinstance(about.recall, float)
        and isinstance(entries, list)
        and all(isinstance(entry, dict) and "number" in entry for entry in entries)
        and (index is None or all(type(index[key]) is int and index[key] >= 0 for key in ("number", "covered")))
        and (index is None or (isinstance(index["sha256"], str) and indexes.known(index["facts"]) is not None))
    )


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(body, "manifest").encode()).hexdigest()


def _beside(root: str, path: Path) -> str:
    try:
        return os.path.relpath(root, path.absolute())
    except ValueError:  # another drive
        return root


def _root(path: Path, recorded: str, beside: Any, found: Sequence[Segment]) -> str:
    """Where the pictures are: in their old place beside the gallery, if both were moved, or where they were."""
    first = next((r.name for s in found for r, alive in zip(s.records, s.alive, strict=True) if alive), "")
    moved = os.path.normpath(path.absolute() / str(beside))
    there = [root for root in (moved, recorded) if os.path.exists(os.path.join(root, first))]
    return there[0] if there else recorded
