"""An index on a Milvus server, or in a file of milvus-lite: the same calls as `Index`, the same results.

milvus://host:port/collection                 a server; milvus://user:password@host:port/collection with a login
milvus:///folder/file.db/collection           a file of milvus-lite on this machine

The index is flat and reads are strongly consistent: results are exact, filtered or not. Names, labels and folders are
looked up by their hashes, so that no name can be read as part of a query. A batch is one upsert. Local features lie in
a second collection, NAME_features, as text: Milvus keeps no bytes.
"""

from __future__ import annotations

import base64
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
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np

from likewise.errors import FileError, InputError, MissingExtra
from likewise.store import index as stored
from likewise.store.index import EVERYTHING, About, Candidates, Filter, Nearest, Record, Vectors, batches

SCHEME = "milvus://"
PATIENCE = 30
"""Seconds to wait for a server."""
PROPERTY = "likewise.about"
BESIDE = "_features"
STAMP = ("size", "mtime", "mark", "digest")
"""What is known of the file of a photo."""
BATCH, MOST, MOST_FOLDERS = 256, 16_384, 256
"""Rows in one request, the most that a server gives for one search, the deepest path."""


class MilvusIndex:
    """Vectors in a collection of a Milvus server; see the module, and `likewise.store.index.Index` for the calls."""

    def __init__(self, address: str) -> None:
        self._client, self.collection, self.where = _connect(address)
        with _one_line(self.where):
            if not self._client.has_collection(self.collection):
                raise FileError(f"{self.where}: no such collection")
            said = self._client.describe_collection(self.collection)
        self.about = About.from_json(said.get("properties", {}).get(PROPERTY) or said.get("description"), self.where)
        with _one_line(self.where):
            for name in (self.collection, self._beside):
                self._client.load_collection(name)

    @classmethod
    def exists(cls, address: str) -> bool:
        """Whether the collection is there."""
        uri = parse(address)[0]
        if not uri.startswith("http") and not os.path.exists(uri):
            return False
        client, collection, where = _connect(address)
        with _one_line(where), contextlib.closing(client):
            return bool(client.has_collection(collection))

    @classmethod
    def create(cls, address: str, about: About, model: bytes | None = None) -> MilvusIndex:
        """An empty collection; the model is not kept in it."""
        _check_kind(about.kind)
        kinds, said = importlib.import_module("pymilvus").DataType, json.dumps(asdict(about))
        client, collection, where = _connect(address)
        with _one_line(where), contextlib.closing(client):
            schema = client.create_schema(auto_id=False, enable_dynamic_field=False, description=said)
            schema.add_field("id", kinds.VARCHAR, is_primary=True, max_length=64)
            schema.add_field("name", kinds.VARCHAR, max_length=65_535)
            schema.add_field("label", kinds.VARCHAR, max_length=64)
            schema.add_field(
                "folders", kinds.ARRAY, element_type=kinds.VARCHAR, max_capacity=MOST_FOLDERS, max_length=64
            )
            for field in STAMP:
                schema.add_field(field, kinds.INT64)
            schema.add_field("vector", kinds.FLOAT_VECTOR, dim=about.dim)
            index = client.prepare_index_params()
            index.add_index("vector", index_type="FLAT", metric_type="L2")
            options = {"schema": schema, "index_params": index, "consistency_level": "Strong"}
            client.create_collection(collection, **options, properties={PROPERTY: said})
            beside = client.create_schema(auto_id=False, enable_dynamic_field=False)
            beside.add_field("id", kinds.VARCHAR, is_primary=True, max_length=64)
            beside.add_field("data", kinds.VARCHAR, max_length=65_535)
            beside.add_field("vector", kinds.FLOAT_VECTOR, dim=2)  # a collection must have one
            plain = {"schema": beside, "index_params": index, "consistency_level": "Strong"}
            client.create_collection(f"{collection}{BESIDE}", **plain)
        return cls(address)

    @property
    def _beside(self) -> str:
        return f"{self.collection}{BESIDE}"

    def refresh(self, *, load: bool = False) -> None:
        """A server is always up to date."""

    def model(self) -> bytes | None:
        """None is kept on a server."""
        return None

    # ── what is kept ──────────────────────────────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        return self._count(EVERYTHING)

    def names(self) -> Iterator[str]:
        """Every name, in no particular order."""
        return (_name(entry["name"], self.where) for entry in self._entries(["name"]))

    def stamps(self, names: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
        """Size, time, mark and digest of those names that are kept."""
        return {name: tuple(int(e[field]) for field in STAMP) for name, e in self._get(names, [*STAMP])}

    def vectors(self, names: Sequence[str]) -> Mapping[str, Vectors]:
        """The vector of those names that are kept."""
        return {name: np.asarray(e["vector"], dtype=np.float32) for name, e in self._get(names, ["vector"])}

    def features(self, names: Sequence[str]) -> Mapping[str, bytes]:
        """The local features of those names that are kept, as they were put."""
        return {name: _bytes(e["data"], self.where) for name, e in self._get(names, ["data"], self._beside)}

    def records(self) -> Iterator[Record]:
        """Names, sizes and times of every image; when and where it was taken is not kept on a server."""
        for entry in self._entries(["name", "size", "mtime"]):
            yield Record(_name(entry["name"], self.where), int(entry["size"]), int(entry["mtime"]))

    def _get(self, names: Sequence[str], fields: list[str], collection: str = "") -> Iterator[tuple[str, Any]]:
        by_key = {_key(name): name for name in names}
        for keys in batches(list(by_key), BATCH):
            with _one_line(self.where):
                entries = self._client.get(collection or self.collection, ids=keys, output_fields=["id", *fields])
            yield from ((by_key[entry["id"]], entry) for entry in entries)

    def _entries(self, fields: list[str]) -> Iterator[Any]:
        with _one_line(self.where):
            pages = self._client.query_iterator(self.collection, batch_size=BATCH, filter="", output_fields=fields)
            with contextlib.closing(pages):
                while page := pages.next():
                    yield from page

    def _count(self, which: Filter) -> int:
        with _one_line(self.where):
            said = self._client.query(self.collection, filter=_expression(which), output_fields=["count(*)"])
        return int(said[0]["count(*)"])

    def put(self, records: Sequence[Record], vectors: Vectors, features: Sequence[bytes] = ()) -> None:
        """Keep these; a name that is kept already gets the new vector. Features go first: a vector without is found."""
        stored.check_put(records, vectors, self.about.dim)
        beside = [
            {"id": _key(r.name), "data": base64.b85encode(data).decode(), "vector": [0.0, 0.0]}
            for r, data in zip(records, features, strict=False)
        ]
        entries = [_entry(record, row) for record, row in zip(records, vectors, strict=True)]
        for collection, each in ((self._beside, beside), (self.collection, entries)):
            for some in batches(each, BATCH):
                with _one_line(self.where):
                    self._client.upsert(collection, some)

    def remove(self, names: Iterable[str]) -> int:
        """Drop these; how many there were."""
        gone = list(self.stamps(list(names)))
        for some in batches([_key(name) for name in gone], BATCH):
            with _one_line(self.where):
                for collection in (self.collection, self._beside):
                    self._client.delete(collection, ids=some)
        return len(gone)

    def set_kind(self, kind: str, recall: float) -> None:
        """There is one kind only."""
        _check_kind(kind)

    def settle(self) -> None:
        """Have what was written on disk."""
        with _one_line(self.where):
            for collection in (self.collection, self._beside):
                self._client.flush(collection)

    # ── searching ─────────────────────────────────────────────────────────────────────────────────────────────────

    def has(self, which: Filter) -> bool:
        """Whether any image takes part."""
        return self._count(which) > 0

    def nearest(self, queries: Vectors, k: int, which: Filter = EVERYTHING) -> list[Nearest]:
        """The k nearest to each query, by distance and name; exact."""
        if k > MOST - 1:
            raise InputError(f"k: Milvus gives at most {MOST - 1:,} at a time, got {k:,}")
        return stored.ranked(queries, k, lambda some, many: self._candidates(some, min(many, MOST), which))

    def _candidates(self, queries: Vectors, many: int, which: Filter) -> list[Candidates]:
        options = {"filter": _expression(which), "output_fields": ["name", "vector"], "consistency_level": "Strong"}
        with _one_line(self.where):
            answers = self._client.search(self.collection, data=list(queries), limit=many, **options)
        return [self._seen(hits, len(hits) < many or many == MOST) for hits in answers]

    def _seen(self, hits: Any, whole: bool) -> Candidates:
        names = [_name(hit["entity"]["name"], self.where) for hit in hits]
        rows = np.asarray([hit["entity"]["vector"] for hit in hits], np.float32).reshape(len(names), self.about.dim)
        return names, rows, np.inf if whole else float(hits[-1]["distance"])

    # ── health ────────────────────────────────────────────────────────────────────────────────────────────────────

    def check(self) -> list[str]:
        """Read every entry: keys that belong to their names, vectors of length 1."""
        odd = off = 0
        for entry in self._entries(["id", "name", "vector"]):
            odd += entry["id"] != _key(json.loads(entry["name"]))
            off += not abs(float(np.linalg.norm(np.asarray(entry["vector"], np.float32))) - 1) < 1e-3
        problems = [(odd, "entries stand under another's key"), (off, "vectors are not of length 1")]
        return [f"{self.where}: {count} {what}" for count, what in problems if count]

    def describe(self) -> dict[str, Any]:
        """Kind, number of images, address."""
        return {"kind": "milvus flat", "images": len(self), "address": self.where, "index": None}

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def drop(self) -> None:
        """Delete the collection."""
        with _one_line(self.where):
            for collection in (self.collection, self._beside):
                self._client.drop_collection(collection)
        self.close()


def _check_kind(kind: str) -> None:
    if kind not in ("auto", "flat"):
        raise InputError(f"kind: an index on Milvus is flat, and exact; expected auto or flat, got {kind!r}")


def _connect(address: str) -> tuple[Any, str, str]:
    """A client, the collection's name, and the address without a password."""
    uri, token, collection, where = parse(address)
    lite = not uri.startswith("http")
    for package in ("pymilvus", *(["milvus_lite"] if lite else [])):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package.replace("_", "-"), "milvus")
    if lite:
        try:
            os.makedirs(os.path.dirname(uri), exist_ok=True)
        except OSError as error:
            raise FileError(f"{os.path.dirname(uri)}: cannot be made: {error.strerror}") from None
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs each error that it also raises, with a trace
    with _one_line(where):
        client = importlib.import_module("pymilvus").MilvusClient
        return client(uri, **({} if token is None else {"token": token}), timeout=PATIENCE), collection, where


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


@contextlib.contextmanager
def _one_line(where: str) -> Iterator[None]:
    """Whatever Milvus complains of, as a FileError in one line that starts with the address."""
    exceptions: Any = importlib.import_module("pymilvus.exceptions")
    try:
        yield
    except exceptions.MilvusException as error:
        said = " ".join(str(getattr(error, "message", error)).split())[:300]
        raise FileError(f"{where}: {said}") from error


def _entry(record: Record, row: Vectors) -> dict[str, Any]:
    parents = [str(p) for p in PurePosixPath(record.name).parents]
    if len(parents) > MOST_FOLDERS:
        raise InputError(f"paths: {record.name[:80]!r}… lies {len(parents)} folders deep; at most {MOST_FOLDERS}")
    return {
        "id": _key(record.name),
        "name": json.dumps(record.name),
        "label": _key(stored.label_of(record.name)),
        "folders": [_key("" if p == "." else p) for p in parents],
        **{field: getattr(record, field) for field in STAMP},
        "vector": row,
    }


def _expression(which: Filter) -> str:
    """A filter in Milvus' words; only hexadecimal digits come from outside."""
    parts = [] if which.label is None else [f'label == "{_key(which.label)}"']
    if which.under is not None:
        parts.append(f'ARRAY_CONTAINS(folders, "{_key(which.under)}")')
    return " and ".join(parts)


def _key(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:40]


def _bytes(text: str, where: str) -> bytes:
    try:
        return base64.b85decode(text)
    except ValueError:
        raise FileError(f"{where}: holds features that no index of likewise wrote") from None


def _name(text: str, where: str) -> str:
    with contextlib.suppress(ValueError):
        if isinstance(name := json.loads(text), str):
            return stored.check_name(name, where)
    raise FileError(f"{where}: holds an entry that no index of likewise wrote")
