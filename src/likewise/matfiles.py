"""MATLAB files in: numbers, text, cells and structs of versions 4 to 7, every length checked before it is believed.

What is made is what SciPy's `loadmat` makes of the same file by default: cells are arrays of objects, structs arrays
with a field of objects each, text is an array of strings; only truth values are bool here, bytes there. SciPy's own
reader is compiled code that a damaged file can crash; this one is plain Python. Objects, functions and sparse matrices
are refused; no file can run anything.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from likewise.errors import FileError
from likewise.media import MOST_ARRAY_BYTES

DEEPEST = 16
"""Cells within cells and structs within structs are followed this far."""

_MATRIX, _COMPRESSED = 14, 15
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
"""How numbers lie in the file, by the number of their type."""
_TEXT = {1: "latin1", 2: "latin1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
_CELL, _STRUCT, _CHAR = 1, 2, 4
_NUMBERS = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
"""The dtype of an array, by the number of its class."""
_OLD = ("f8", "f4", "i4", "i2", "u2", "u1")
"""The types of version 4."""


def variables(
    path: str | os.PathLike[str], names: Iterable[str], *, most_bytes: int = MOST_ARRAY_BYTES
) -> dict[str, NDArray[Any]]:
    """Those of the named variables that a MATLAB file holds; whatever is wrong with it is a FileError."""
    file = Path(path)
    try:
        if os.stat(file).st_size > most_bytes:
            raise FileError(f"{file}: longer than {most_bytes:,} bytes, too long for a MATLAB file")
        data = file.read_bytes()
    except FileNotFoundError:
        raise FileError(f"{file}: no such file") from None
    except FileError:
        raise
    except (OSError, ValueError) as error:
        raise FileError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        return _old(data, set(names)) if 0 in data[:4] else _new(data, set(names), most_bytes)
    except (ValueError, TypeError, struct.error, zlib.error, MemoryError, OverflowError) as error:
        raise FileError(f"{file}: not a readable MATLAB file: {error or type(error).__name__}") from None


# ------------------------------------------------------------------------------------------------------- version 5 to 7


@dataclass
class _Bytes:
    """Bytes that are taken from the front; asking for more than there are is a ValueError."""

    data: memoryview
    order: str
    at: int = 0

    def take(self, n: int) -> memoryview:
        if n > len(self.data) - self.at:
            raise ValueError("it ends before what it announces")
        self.at += n
        return self.data[self.at - n : self.at]

    def element(self) -> tuple[int, memoryview]:
        """The type and the content of the next element; one of up to four bytes lies within its own tag."""
        (first,) = struct.unpack(f"{self.order}I", self.take(4))
        if first >> 16:
            if first >> 16 > 4:
                raise ValueError("a short element of more than four bytes")
            return first & 0xFFFF, self.take(4)[: first >> 16]
        (size,) = struct.unpack(f"{self.order}I", self.take(4))
        content = self.take(size)
        if first != _COMPRESSED:
            self.at = min(len(self.data), self.at + -size % 8)
        return int(first), content

    def __bool__(self) -> bool:
        return len(self.data) - self.at >= 8


def _new(data: bytes, names: set[str], most_bytes: int) -> dict[str, NDArray[Any]]:
    order = {b"IM": "<", b"MI": ">"}.get(data[126:128])
    if order is None:
        raise ValueError("it has no header")
    (version,) = struct.unpack(f"{order}H", data[124:126])
    if version >> 8 == 2:
        raise ValueError("is a MATLAB 7.3 (HDF5) file; save it again with -v7")
    rest, found = _Bytes(memoryview(data), order, 128), {}
    while rest:
        kind, content = rest.element()
        if kind == _COMPRESSED:
            kind, content = _Bytes(memoryview(_unpacked(content, most_bytes)), order).element()
        if kind != _MATRIX:
            raise ValueError(f"an element of type {kind} where a variable was expected")
        matrix = _Matrix(content, order)
        if matrix.name in names:
            found[matrix.name] = matrix.value(0)
    return found


def _unpacked(content: memoryview, most_bytes: int) -> bytes:
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(content, most_bytes)
    if unpacker.unconsumed_tail:
        raise ValueError(f"a variable unpacks to more than {most_bytes:,} bytes")
    return data


class _Matrix:
    """One array: its class, flags, shape and name; its content is read when it is asked for."""

    def __init__(self, content: memoryview, order: str) -> None:
        self.rest = _Bytes(content, order)
        flags = self._integers("u4")
        self.kind, self.flags = (int(flags[0]) & 0xFF, int(flags[0]) >> 8 & 0xFF) if len(flags) else (0, 0)
        self.shape = tuple(int(n) for n in self._integers("i4"))
        if any(n < 0 for n in self.shape) or len(self.shape) > 32:
            raise ValueError(f"an array of shape {self.shape}")
        self.size = math.prod(self.shape)
        self.name = bytes(self.rest.element()[1]).decode("latin1")

    def _integers(self, wanted: str) -> NDArray[Any]:
        kind, content = self.rest.element()
        if _STORED.get(kind) != wanted:
            raise ValueError(f"an element of type {kind} where the description of an array was expected")
        return np.frombuffer(content, dtype=self.rest.order + wanted)

    def value(self, depth: int) -> NDArray[Any]:
        """The array itself."""
        if depth > DEEPEST:
            raise ValueError(f"arrays within arrays, more than {DEEPEST} deep")
        if self.kind == _CELL:
            return self._cells(depth)
        if self.kind == _STRUCT:
            return self._struct(depth)
        if self.kind == _CHAR:
            return self._text()
        if self.kind not in _NUMBERS:
            raise ValueError(f"{self.name!r} is of class {self.kind}; numbers, text, cells and structs are read")
        return self._numbers()

    def _numbers(self) -> NDArray[Any]:
        real = self._stored()
        if self.flags & 0x08:
            real = real + 1j * self._stored()
        else:
            real = real.astype(np.bool_ if self.flags & 0x02 else _NUMBERS[self.kind])
        return real.reshape(self.shape, order="F")

    def _stored(self) -> NDArray[Any]:
        kind, content = self.rest.element()
        if kind not in _STORED:
            raise ValueError(f"numbers of type {kind}")
        flat = np.frombuffer(content, dtype=self.rest.order + _STORED[kind])
        if len(flat) != self.size:
            raise ValueError(f"{len(flat)} numbers for the shape {self.shape}")
        return flat

    def _text(self) -> NDArray[Any]:
        """A string a row; of several rows each has as many letters as there are columns."""
        kind, content = self.rest.element()
        if kind not in _TEXT:
            raise ValueError(f"text of type {kind}")
        wide = kind in (4, 17, 18)
        ending = ("-be" if self.rest.order == ">" else "-le") if wide else ""
        letters = bytes(content).decode(_TEXT[kind] + ending, "replace")
        if len(self.shape) == 2 and self.shape[0] == 1:
            return np.array([letters])
        if len(letters) != self.size:
            raise ValueError(f"{len(letters)} letters for the shape {self.shape}")
        table = np.array(list(letters), dtype="U1").reshape(self.shape, order="F")
        rows = ["".join(row) for row in table.reshape(-1, self.shape[-1] if self.shape else 1)] if self.size else []
        return np.array(rows, dtype=None if rows else "U1").reshape(self.shape[:-1] if rows else (0,))

    def _children(self, n: int, depth: int) -> list[Any]:
        if n * 8 > len(self.rest.data) - self.rest.at:
            raise ValueError(f"{n:,} parts, more than it can hold")
        return [self._child(depth) for _ in range(n)]

    def _child(self, depth: int) -> NDArray[Any]:
        kind, content = self.rest.element()
        if kind != _MATRIX:
            raise ValueError(f"an element of type {kind} where an array was expected")
        return _Matrix(content, self.rest.order).value(depth + 1) if len(content) else np.empty((0, 0))

    def _cells(self, depth: int) -> NDArray[Any]:
        children = self._children(self.size, depth)
        flat = np.empty(self.size, dtype=object)
        for i, child in enumerate(children):
            flat[i] = child
        return flat.reshape(self.shape, order="F")

    def _struct(self, depth: int) -> NDArray[Any]:
        length = int(self._integers("i4")[0])
        raw = bytes(self.rest.element()[1])
        if length < 1 or len(raw) % length:
            raise ValueError("a struct whose fields have no names")
        fields = [raw[i : i + length].split(b"\0")[0].decode("latin1") for i in range(0, len(raw), length)]
        if not fields or len(set(fields)) < len(fields):
            raise ValueError("a struct without fields, or with two of one name")
        children = self._children(self.size * len(fields), depth)
        out = np.empty(self.size, dtype=[(f, object) for f in fields])
        for i in range(self.size):
            out[i] = tuple(children[i * len(fields) : (i + 1) * len(fields)])
        return out.reshape(self.shape, order="F")


# ------------------------------------------------------------------------------------------------------------ version 4


def _old(data: bytes, names: set[str]) -> dict[str, NDArray[Any]]:
    """Matrices of numbers, one after the other: type, rows, columns, complex, length of the name, name, numbers."""
    rest, found = memoryview(data), {}
    order = "<" if len(data) >= 4 and int.from_bytes(data[:4], "little") < 1000 else ">"
    source = _Bytes(rest, order)
    while source.at < len(rest):
        code, rows, columns, imaginary, length = struct.unpack(f"{order}5i", source.take(20))
        if min(rows, columns, length) < 0 or code not in range(1000 * (order == ">"), 1000 * (order == ">") + 60, 10):
            raise ValueError(f"a matrix of type {code}, {rows} × {columns}; numbers are read")
        name = bytes(source.take(length)).split(b"\0")[0].decode("latin1")
        kind = np.dtype(order + _OLD[code % 100 // 10])
        parts = [
            np.frombuffer(source.take(rows * columns * kind.itemsize), dtype=kind) for _ in range(1 + bool(imaginary))
        ]
        if name in names:
            flat = parts[0] + 1j * parts[1] if imaginary else parts[0].astype(kind.newbyteorder("="))
            found[name] = flat.reshape((rows, columns), order="F")
    return found
