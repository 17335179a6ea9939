"""Mutations that know a format, so that they get past its gates: lengths and checksums are made anew after the edit."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sqlite3
import struct
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from tests.fuzz.mutations import EXTREMES, WORDS, Mutation, Rng, bytewise, edited, pick, text, to_json

from likewise.store import checkpoint

# ----------------------------------------------------------------------------------------------------------------- PNG


def png(data: bytes, rng: Rng) -> bytes:
    """Chunks edited, dropped, doubled, swapped; pixel data unpacked, edited and packed; every checksum right."""
    chunks = list(_chunks(data))
    if not chunks:
        return bytewise(data, rng)
    i, j = (int(k) for k in rng.integers(0, len(chunks), 2))
    kind, content = chunks[i]
    what = rng.random()
    if what < 0.2:
        chunks.insert(j, chunks[i])
    elif what < 0.3:
        del chunks[i]
    elif what < 0.4:
        chunks[i], chunks[j] = chunks[j], chunks[i]
    elif kind == b"IDAT" and what < 0.9:
        chunks[i] = kind, _repacked(content, rng)
    else:
        chunks[i] = (
            (pick(rng, (b"IDAT", b"tRNS", b"PLTE", b"eXIf", b"iCCP", b"zTXt")) if what > 0.95 else kind),
            bytewise(content or b"\0", rng),
        )
    return data[:8] + b"".join(_chunk(*c) for c in chunks)


def _chunks(data: bytes) -> Any:
    at = 8
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        yield data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        at += 12 + length


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _repacked(content: bytes, rng: Rng) -> bytes:
    try:
        return zlib.compress(bytewise(zlib.decompress(content), rng))
    except zlib.error:
        return bytewise(content, rng)


# ----------------------------------------------------------------------------------------------------- arrays, archives


def npy(data: bytes, rng: Rng) -> bytes:
    """The header of an array as the literal that it is, its length set right; or the numbers behind it."""
    if data[:6] != b"\x93NUMPY" or rng.random() < 0.3:
        return bytewise(data, rng)
    size = int.from_bytes(data[8:10], "little")
    header, body = data[10 : 10 + size], data[10 + size :]
    if rng.random() < 0.2:
        return data[: 10 + size] + bytewise(body or b"\0", rng)
    new = _npy_header(header, rng)
    return data[:8] + struct.pack("<H", min(len(new), 65535)) + new[:65535] + body


_SHAPES = ((2**40,), (-1,), (2**31, 2**33), (0, 2**62), (), (1,) * 70, (3, -2), (2.5,), "x", (True,))
_PLAIN = ("<f8", ">f4", "|O", "<U99999999", "|V0", "<c16", "|b1", "<i8", "<u1", "<f2", "|S3", "<M8[ns]", "x", 3, None)
_KINDS = (*_PLAIN, [("a", "<f4"), ("b", "|O")], [("a", "<f8", (2**40,))], [("a", "<f4")], "<U1", "<U2")


def _npy_header(header: bytes, rng: Rng) -> bytes:
    try:
        said = ast.literal_eval(header.decode("latin1").strip())
    except (ValueError, SyntaxError):
        return text(header, rng)
    what = rng.random()
    if what < 0.4:
        said["shape"] = pick(rng, (*_SHAPES, *[said["shape"][::-1]] * 4))
    elif what < 0.8:
        said["descr"] = pick(rng, _KINDS)
    elif what < 0.9:
        said["fortran_order"] = pick(rng, (True, 1, "yes", None))
    else:
        return text(header, rng)
    return (repr(said) + "\n").encode("latin1")


def zipped(inner: Mutation) -> Mutation:
    """An archive with members edited by `inner`, renamed, dropped or doubled; packed anew, so checksums are right."""

    def mutate(data: bytes, rng: Rng) -> bytes:
        if rng.random() < 0.15:
            return bytewise(data, rng)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(m.filename, archive.read(m)) for m in archive.infolist()]
        i = int(rng.integers(len(members)))
        name, content = members[i]
        what = rng.random()
        if what < 0.08:
            del members[i]
        elif what < 0.14:
            members.append((name, inner(content or b"\0", rng)))
        elif what < 0.22:
            members[i] = pick(rng, [w for w in WORDS if w and "\ud800" not in w]) + ".npy", content
        else:
            members[i] = name, inner(content or b"\0", rng)
        return _packed(members, pick(rng, (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)))

    return mutate


def _packed(members: Sequence[tuple[str, bytes]], how: int) -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a name that is there twice, which is meant
        with zipfile.ZipFile(out, "w", how) as archive:
            for name, content in members:
                archive.writestr(zipfile.ZipInfo(name[:60_000]), content, how)
    return out.getvalue()


def pickled(data: bytes, rng: Rng) -> bytes:
    """A pickle, or what else is in torch's archive: names of other callables put in, or any bytes edited."""
    names = [b"ctorch._utils\n_rebuild_tensor_v2\n", b"ccollections\nOrderedDict\n", b"ctorch\nFloatStorage\n"]
    there = [n for n in names if n in data]
    if there and rng.random() < 0.5:
        others = (b"cos\nsystem\n", b"cbuiltins\neval\n", b"csubprocess\nPopen\n", b"ctorch\nload\n", b"cnumpy\nload\n")
        return data.replace(pick(rng, there), pick(rng, others))
    return bytewise(data, rng)


def words32(data: bytes, rng: Rng) -> bytes:
    """Aligned fields of four bytes at their limits, as formats of tags and lengths have them; or any bytes."""
    if rng.random() < 0.4:
        return bytewise(data, rng)
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(max(1, len(out) // 4))) * 4
        out[at : at + 4] = (pick(rng, (*EXTREMES, *range(1, 20))) % 2**32).to_bytes(4, "little")
    return bytes(out)


def unpacked(inner: Mutation) -> Mutation:
    """MATLAB's compressed elements: one unpacked, edited by `inner`, packed again and its length set right."""

    def mutate(data: bytes, rng: Rng) -> bytes:
        at, elements = 128, []
        while at + 8 <= len(data):
            kind, size = struct.unpack("<II", data[at : at + 8])
            elements.append((kind, data[at + 8 : at + 8 + size]))
            at += 8 + size
        packed = [k for k, (kind, _) in enumerate(elements) if kind == 15]
        if not packed or rng.random() < 0.1:
            return inner(data, rng)
        i = pick(rng, packed)
        elements[i] = 15, zlib.compress(inner(zlib.decompress(elements[i][1]), rng))
        return data[:128] + b"".join(struct.pack("<II", k, len(c)) + c for k, c in elements)

    return mutate


# --------------------------------------------------------------------------------------------------------- safetensors


def safetensors(data: bytes, rng: Rng) -> bytes:
    """The JSON header edited and its length set right, or the bytes behind it."""
    length = int.from_bytes(data[:8], "little")
    header, body = data[8 : 8 + length], data[8 + length :]
    what = rng.random()
    if what < 0.2:
        return bytewise(data, rng)
    if what < 0.3:
        return data[: 8 + length] + bytewise(body or b"\0", rng)
    said = json.loads(header)
    if what < 0.6:
        said = _tensors(said, rng)
    new = to_json(said if what < 0.6 else edited(said, rng))
    return struct.pack("<Q", len(new)) + new + body


def _tensors(said: dict[str, Any], rng: Rng) -> dict[str, Any]:
    """One tensor of another type, shape or place."""
    names = [n for n in said if n != "__metadata__"]
    if not names:
        return edited(said, rng)
    name = pick(rng, names)
    one = dict(said[name])
    which = pick(rng, ("dtype", "shape", "data_offsets"))
    if which == "dtype":
        one["dtype"] = pick(
            rng, ("F64", "F32", "F16", "BF16", "I64", "U8", "BOOL", "F8_E4M3", "F4", "C64", "E8M0", "U16")
        )
    elif which == "shape":
        one["shape"] = pick(rng, (one["shape"][::-1], [], [0], [2**40], [-1], [2**32, 2**32], [1, *one["shape"]]))
    else:
        a, b = one["data_offsets"]
        one["data_offsets"] = pick(rng, ([b, a], [a, b + 4], [a + 1, b], [0, 0], [2**62, 2**63], [a]))
    return {**said, name: one}


def sealed(data: bytes, rng: Rng) -> bytes:
    """A file of likewise with its header or its arrays edited and its checksum made anew; now and then without that."""
    if rng.random() < 0.2:
        return safetensors(data, rng)
    arrays, header = checkpoint.decode(data, "seed")
    what = rng.random()
    new: Any = edited(header, rng) if what < 0.6 or not arrays else header
    if what > 0.5 and arrays:
        arrays = _other_arrays(arrays, rng)
    with contextlib.suppress(Exception):
        return checkpoint.encode(arrays, new)
    return bytewise(data, rng)


def job(data: bytes, rng: Rng) -> bytes:
    """The record of a job, sound as a database: what it says of itself edited, or one of its shards."""
    database = sqlite3.connect(":memory:")
    try:
        database.deserialize(data)
        shards = dict(database.execute("SELECT name, data FROM shards").fetchall())
        if rng.random() < 0.5 or not shards:
            said = json.loads(database.execute("SELECT json FROM about").fetchone()[0])
            database.execute("UPDATE about SET json = ?", (to_json(edited(said, rng)).decode(),))
        else:
            name = pick(rng, list(shards))
            database.execute("UPDATE shards SET data = ? WHERE name = ?", (sealed(shards[name], rng), name))
        database.commit()
        return database.serialize()
    except (sqlite3.Error, UnicodeError):
        return bytewise(data, rng)
    finally:
        database.close()


def _other_arrays(arrays: dict[str, Any], rng: Rng) -> dict[str, Any]:
    """One array dropped, renamed, of another shape, type or length, or with other numbers in it."""
    name = pick(rng, list(arrays))
    rest = {k: v for k, v in arrays.items() if k != name}
    array = np.array(arrays[name])
    what = int(rng.integers(8))
    if what == 0:
        return rest
    if what == 1:
        return {**rest, pick(rng, ("other", "", *list(rest)[:1])): array}
    changed: Any = {
        2: lambda: array.reshape(-1),
        3: lambda: array.astype(pick(rng, (np.float64, np.int64, np.uint8, np.float16, bool))),
        4: lambda: array[: len(array) // 2] if array.ndim else array,
        5: lambda: np.concatenate([array, array]) if array.ndim else array[None],
        6: lambda: np.full_like(array, pick(rng, (0, 1)) if array.dtype.kind in "bu" else pick(rng, (0, -1, 100))),
        7: lambda: _sprinkled(array, rng),
    }[what]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # casts that lose what they are meant to lose
        return {**rest, name: changed()}


def _sprinkled(array: Any, rng: Rng) -> Any:
    """One number at a limit of its type."""
    if not array.size:
        return array
    kind = array.dtype.kind
    ends = np.iinfo(array.dtype) if kind in "iu" else np.finfo(array.dtype) if kind == "f" else None
    flat = array.reshape(-1).copy()
    if ends is not None:
        flat[int(rng.integers(len(flat)))] = pick(
            rng, (ends.max, ends.min, 0, *((np.nan, np.inf) if kind == "f" else ()))
        )
    return flat.reshape(array.shape)
