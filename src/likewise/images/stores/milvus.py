"""A gallery on a Milvus server, or in a file of milvus-lite: the same calls as a folder, the same results.

milvus://host:port/collection                 a server; milvus://user:password@host:port/collection with a login
milvus:///folder/file.db/collection           a file of milvus-lite on this machine

The index is flat and reads are strongly consistent: results are exact, filtered or not. Names, labels and folders are
looked up by their hashes, so that no name can be read as part of a query. A batch is one upsert.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from likewise.errors import FileError, InputError, MissingExtra
from likewise.images.stores import About, Filter, Found, Parts, Record, Rows, folders_of, label_of
from likewise.images.stores.ranking import Candidates, ranked
from likewise.images.stores.segments import check_name, check_rows

PATIENCE = 30
"""Seconds to wait for a server."""

PROPERTY = "likewise.about"
FORMAT = 1
BATCH, MOST, MOST_FOLDERS = 256, 16_384, 256
"""Rows in one request, the most that a server gives for one search, the deepest path."""


class MilvusStore:
    """Rows in a collection; see the module."""

    def __init__(self, client: Any, collection: str, about: About, where: str) -> None:
        self.client, self.collection, self.about, self.where = client, collection, about, where

    @classmethod
    def exists(cls, address: str) -> bool:
        """Whether the collection is there."""
        uri = parse(address)[0]
        if not uri.startswith("http") and not os.path.exists(uri):
            return False
        client, collection, where = _connected(address)
        with _said(where):
            found = bool(client.has_collection(collection))
        client.close()
        return found

    @classmethod
    def create(cls, address: str, about: About) -> MilvusStore:
        """An empty collection."""
        _check_kind(about.kind)
        client, collection, where = _connected(address)
        said = json.dumps({"format": FORMAT, **asdict(about)})
        with _said(where):
            index = client.prepare_index_params()
            index.add_index("row", index_type="FLAT", metric_type="L2")
            client.create_collection(
                collection,
                schema=_schema(client, about.dim, said),
                index_params=index,
                consistency_level="Strong",
                properties={PROPERTY: said},
            )
        return cls(client, collection, about, where)

    @classmethod
    def open(cls, address: str) -> MilvusStore:
        """The gallery in a collection."""
        client, collection, where = _connected(address)
        with _said(where):
            if not client.has_collection(collection):
                raise FileError(f"{where}: no such collection")
            found = client.describe_collection(collection)
            client.load_collection(collection)
        said = found.get("properties", {}).get(PROPERTY) or found.get("description")
        return cls(client, collection, _about(said, where), where)

    # ── what is kept ──────────────────────────────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        return self._count("")

    def names(self) -> Iterator[str]:
        """Every name, in no particular order."""
        with _said(self.where):
            pages = self.client.query_iterator(self.collection, batch_size=1000, filter="", output_fields=["name"])
            try:
                while page := pages.next():
                    yield from (_name(one["name"], self.where) for one in page)
            finally:
                pages.close()

    def known(self, names: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        """Size and time of those names that are kept."""
        by_key = {_key(name): name for name in names}
        found = {}
        for keys in _slices(list(by_key)):
            with _said(self.where):
                rows = self.client.get(self.collection, ids=keys, output_fields=["id", "size", "mtime"])
            found.update({by_key[r["id"]]: (int(r["size"]), int(r["mtime"])) for r in rows})
        return found

    def rows(self, names: Sequence[str]) -> Mapping[str, Rows]:
        """The row of those names that are kept."""
        by_key = {_key(name): name for name in names}
        found = {}
        for keys in _slices(list(by_key)):
            with _said(self.where):
                entries = self.client.get(self.collection, ids=keys, output_fields=["id", "row"])
            found.update({by_key[e["id"]]: np.asarray(e["row"], dtype=np.float32) for e in entries})
        return found

    def _count(self, where: str) -> int:
        with _said(self.where):
            found = self.client.query(self.collection, filter=where, output_fields=["count(*)"])
        return int(found[0]["count(*)"])

    # ── writing ───────────────────────────────────────────────────────────────────────────────────────────────────

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """The server keeps writers apart; an upsert is one step."""
        yield

    def parts(self, names: Sequence[str]) -> Mapping[str, Parts]:
        """None are kept on a server: they are made again from the pictures where they are needed."""
        return {}

    def put(self, records: Sequence[Record], rows: Rows, parts: Parts | None = None) -> None:
        """Keep these; a name that is kept already gets the new row."""
        for record in records:
            check_name(record.name, "paths")
        check_rows(rows, records, self.about.dim)
        entries = [_entry(record, row) for record, row in zip(records, rows, strict=True)]
        for some in _slices(entries):
            with _said(self.where):
                self.client.upsert(self.collection, some)

    def remove(self, names: Iterable[str]) -> int:
        """Drop these; how many there were."""
        gone = list(self.known(list(names)))
        for some in _slices([_key(name) for name in gone]):
            with _said(self.where):
                self.client.delete(self.collection, ids=some)
        return len(gone)

    def choose(self, kind: str, recall: float) -> None:
        """There is one kind only."""
        _check_kind(kind)

    def settle(self) -> None:
        """Have what was written on disk."""
        with _said(self.where):
            self.client.flush(self.collection)

    # ── searching ─────────────────────────────────────────────────────────────────────────────────────────────────

    def matches(self, which: Filter) -> bool:
        """Whether any picture takes part."""
        return self._count(_expression(which)) > 0

    def nearest(self, rows: Rows, k: int, which: Filter) -> list[Found]:
        """The k nearest to each row, by distance and name; exact."""
        if k > MOST - 1:
            raise InputError(f"k: Milvus gives at most {MOST - 1:,} at a time, got {k:,}")
        return ranked(rows, k, lambda queries, many: self._fetch(queries, many, which))

    def _fetch(self, queries: Rows, many: int, which: Filter) -> list[Candidates]:
        asked = min(many, MOST)
        with _said(self.where):
            found = self.client.search(
                self.collection,
                data=list(queries),
                limit=asked,
                filter=_expression(which),
                output_fields=["name", "row"],
                consistency_level="Strong",
            )
        return [self._candidates(one, asked) for one in found]

    def _candidates(self, found: Any, asked: int) -> Candidates:
        names = [_name(hit["entity"]["name"], self.where) for hit in found]
        rows = np.asarray([hit["entity"]["row"] for hit in found], np.float32).reshape(len(names), self.about.dim)
        whole = len(names) < asked or asked == MOST
        return Candidates(names, rows, np.inf if whole else float(found[-1]["distance"]))

    # ── health ────────────────────────────────────────────────────────────────────────────────────────────────────

    def check(self) -> list[str]:
        """Read every entry: keys that belong to their names, rows that are unit vectors."""
        odd = off = 0
        with _said(self.where):
            fields = ["id", "name", "row"]
            pages = self.client.query_iterator(self.collection, batch_size=BATCH, filter="", output_fields=fields)
            while page := pages.next():
                odd += sum(one["id"] != _key(json.loads(one["name"])) for one in page)
                norms = np.linalg.norm(np.asarray([one["row"] for one in page], np.float32), axis=1)
                off += int((~(np.abs(norms - 1) < 1e-3)).sum())
            pages.close()
        problems = [(odd, "entries stand under another's key"), (off, "rows are not unit vectors")]
        return [f"{self.where}: {count} {what}" for count, what in problems if count]

    def describe(self) -> dict[str, Any]:
        """Kind, number of pictures, address."""
        return {"kind": "milvus flat", "pictures": len(self), "address": self.where, "index": None}

    def close(self) -> None:
        """Close the connection."""
        self.client.close()

    def drop(self) -> None:
        """Delete the collection."""
        with _said(self.where):
            self.client.drop_collection(self.collection)
        self.close()


def _check_kind(kind: str) -> None:
    if kind not in ("auto", "flat"):
        raise InputError(f"kind: a gallery on Milvus is flat, and exact; expected auto or flat, got {kind!r}")


def _connected(address: str) -> tuple[Any, str, str]:
    """A client, the collection's name, and the address without a password."""
    uri, token, collection, where = parse(address)
    try:
        pymilvus: Any = importlib.import_module("pymilvus")
    except ImportError:
        raise MissingExtra("pymilvus", "milvus") from None
    if token is None and not uri.startswith("http"):
        _lite(uri)
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs each error that it also raises, with a trace
    with _said(where):
        return (
            pymilvus.MilvusClient(uri, **({} if token is None else {"token": token}), timeout=PATIENCE),
            collection,
            where,
        )


def parse(address: str) -> tuple[str, str | None, str, str]:
    """(uri, token, collection, the address without a password) of milvus://host:port/collection or milvus:///file/…."""
    parts = urlsplit(address)
    path, _, collection = unquote(parts.path).rpartition("/")
    if parts.scheme != "milvus" or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,254}", collection):
        raise InputError(
            "out: expected milvus://host:port/collection or milvus:///folder/file.db/collection (letters, digits and _ "
            f"in the collection's name), got {address.rpartition('@')[2]!r}"
        )
    if not parts.hostname:
        if not path.endswith(".db"):
            raise InputError(f"out: expected a file of milvus-lite that ends in .db, got {path!r}")
        return path, None, collection, address
    token = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else None
    try:
        host = f"{parts.hostname}:{parts.port or 19530}"
    except ValueError:
        raise InputError(f"out: expected a port between 0 and 65535, got {parts.netloc.rpartition('@')[2]!r}") from None
    return f"http://{host}{path}", token, collection, f"milvus://{host}{path}/{collection}"


def _lite(file: str) -> None:
    """Make ready for a file of milvus-lite: the package, and the file's folder."""
    if importlib.util.find_spec("milvus_lite") is None:
        raise MissingExtra("milvus-lite", "milvus")
    try:
        os.makedirs(os.path.dirname(file), exist_ok=True)
    except OSError as error:
        raise FileError(f"{os.path.dirname(file)}: cannot be made: {error.strerror}") from None


@contextlib.contextmanager
def _said(where: str) -> Iterator[None]:
    """Whatever Milvus complains of, as a FileError in one line that starts with the address."""
    exceptions: Any = importlib.import_module("pymilvus.exceptions")
    try:
        yield
    except exceptions.MilvusException as error:
        said = " ".join(str(getattr(error, "message", error)).split())[:300]
        raise FileError(f"{where}: {said}") from error


def _schema(client: Any, dim: int, said: str) -> Any:
    kinds: Any = importlib.import_module("pymilvus").DataType
    schema = client.create_schema(auto_id=False, enable_dynamic_field=False, description=said)
    schema.add_field("id", kinds.VARCHAR, is_primary=True, max_length=64)
    schema.add_field("name", kinds.VARCHAR, max_length=65_535)
    schema.add_field("label", kinds.VARCHAR, max_length=64)
    schema.add_field("folders", kinds.ARRAY, element_type=kinds.VARCHAR, max_capacity=MOST_FOLDERS, max_length=64)
    schema.add_field("size", kinds.INT64)
    schema.add_field("mtime", kinds.INT64)
    schema.add_field("row", kinds.FLOAT_VECTOR, dim=dim)
    return schema


def _entry(record: Record, row: Rows) -> dict[str, Any]:
    folders = [_key(f) for f in folders_of(record.name)]
    if len(folders) > MOST_FOLDERS:
        raise InputError(f"paths: {record.name[:80]!r}… lies {len(folders)} folders deep; at most {MOST_FOLDERS}")
    return {
        "id": _key(record.name),
        "name": json.dumps(record.name),
        "label": _key(label_of(record.name)),
        "folders": folders,
        "size": record.size,
        "mtime": record.mtime,
        "row": row,
    }


def _expression(which: Filter) -> str:
    """A filter in Milvus' words; only hexadecimal digits come from outside."""
    parts = [] if which.label is None else [f'label == "{_key(which.label)}"']
    if which.under is not None:
        parts.append(f'ARRAY_CONTAINS(folders, "{_key(which.under)}")')
    return " and ".join(parts)


def _key(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:40]


def _name(stored: str, where: str) -> str:
    try:
        name = json.loads(stored)
    except ValueError:
        name = None
    if not isinstance(name, str):
        raise FileError(f"{where}: holds an entry that no gallery wrote")
    check_name(name, where)
    return name


def _about(said: Any, where: str) -> About:
    try:
        fields = json.loads(said)
        if fields.pop("format") != FORMAT:
            raise TypeError
        about = About(**fields)
        if not isinstance(about.dim, int) or not all(
            isinstance(w, str) for w in (about.root, about.model, about.digest)
        ):
            raise TypeError
    except (KeyError, TypeError, ValueError, AttributeError):
        raise FileError(f"{where}: the collection is not a gallery of likewise") from None
    return about


def _slices(items: list[Any]) -> Iterator[list[Any]]:
    return (items[i : i + BATCH] for i in range(0, len(items), BATCH))
