"""Where a gallery is: a folder, or a collection on a Milvus server."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from likewise.errors import InputError
from likewise.images.stores import About, Store
from likewise.images.stores.folder import MODEL, FolderStore
from likewise.images.stores.manifest import MANIFEST
from likewise.store import checkpoint
from likewise.store import run as runs

MILVUS = "milvus://"


def created(out: str, about: About, model: Any) -> Store:
    """A new store, or the one that an interrupted build left."""
    if exists(out):
        return _same(opened(out), about, out)
    if out.startswith(MILVUS):
        from likewise.images.stores.milvus import MilvusStore

        return MilvusStore.create(out, about)
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"out: {out} is a file; give the name of a folder for the gallery")
    if folder.is_dir() and not all(_ours(name) for name in os.listdir(folder)):
        raise InputError(f"out: {out} is a folder that holds something else; use another place")
    if hasattr(model, "state"):
        _save(model, folder / MODEL)
    return FolderStore.create(folder, about)


def exists(out: str | os.PathLike[str]) -> bool:
    """Whether there is a gallery at a path or milvus:// address."""
    text = os.fspath(out)
    if text.startswith(MILVUS):
        from likewise.images.stores.milvus import MilvusStore

        return MilvusStore.exists(text)
    return Path(text, MANIFEST).is_file()


def opened(out: str) -> Store:
    """The store at a path or milvus:// address."""
    if out.startswith(MILVUS):
        from likewise.images.stores.milvus import MilvusStore

        return MilvusStore.open(out)
    return FolderStore.open(Path(out))


def discard(store: Store) -> None:
    """Close a store that holds nothing, and leave nothing of it: its place is free for another."""
    if not len(store):
        store.drop()


def own_model(store: Store) -> Any:
    """The model that is kept with the rows, or None."""
    file = store.path / MODEL if isinstance(store, FolderStore) else None
    return checkpoint.load(file) if file is not None and file.is_file() else None


def _same(store: Store, about: About, out: str) -> Store:
    """The store, if it is the one that the build would have made."""
    names = ("root", "digest", "kind", "recall")
    old, new = ({n: getattr(a, n) for n in names} for a in (store.about, about))
    if old != new:
        store.close()
        said = runs.differing(old, new)
        raise InputError(f"out: {out} holds another gallery ({said}); open it and add to it, or use another place")
    return store


def _save(model: Any, path: Path) -> None:
    """Keep the model with its rows, if it can be kept in a file."""
    try:
        checkpoint.save(model, path)
    except InputError:  # a network of somebody's own: the gallery is opened with it
        return


def _ours(name: str) -> bool:
    """Whether a file may lie in the folder of a new gallery: what a build that was killed at once left."""
    return name in (".lock", MODEL) or re.fullmatch(r"\.(model|gallery)\.[0-9a-f]{12}\.tmp\.\w+", name) is not None
