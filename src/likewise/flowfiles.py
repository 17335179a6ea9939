"""Flow files in and out: Middlebury's .flo and KITTI's 16-bit PNG.

A file is judged by its first bytes; its pixels are counted, and the bytes that they need, before memory is taken;
whatever is wrong with it ends in one FileError that names it. What a format cannot hold is refused, not bent.
"""

from __future__ import annotations

import os
import stat
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from likewise.errors import FileError, InputError
from likewise.media import MOST_BYTES, MOST_PIXELS, write_bytes
from likewise.types import Flow

MAGIC = struct.pack("<f", 202021.25)
"""The first four bytes of a .flo file, which read "PIEH"."""

UNKNOWN, LIMIT = 1e10, 1e9
"""Middlebury marks an unknown vector by 1e10; whatever is larger than 1e9 counts as unknown."""

PNG = b"\x89PNG\r\n\x1a\n"
PIECE = 1 << 20
"""Bytes that are unpacked at a time while a PNG's data is checked."""


def read_flow(path: str | os.PathLike[str], *, most_pixels: int = MOST_PIXELS) -> Flow:
    """The flow at `path`: Middlebury's .flo, or KITTI's PNG of 16 bits, told apart by their first bytes.

    Unknown pixels (in .flo a component above 1e9 or NaN, in a PNG a third channel of 0) are False in `valid`, which is
    None where every vector is known.
    """
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode):
            raise FileError(f"{path}: {'is a folder' if stat.S_ISDIR(mode) else 'not a regular file'}, not a flow file")
        with open(path, "rb") as stream:
            return _read(stream, str(path), most_pixels)
    except FileNotFoundError:
        raise FileError(f"{path}: no such file") from None
    except FileError:
        raise
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def write_flow(path: str | os.PathLike[str], flow: Any, valid: Any = None) -> Path:
    """Write a Flow, or vectors (h, w, 2) with `valid` (h, w), as Middlebury's .flo or KITTI's .png, by the suffix.

    A .flo keeps float32 as it is; a PNG rounds to 1/64 px and holds −512 … 511.98. Both are written atomically.
    """
    if isinstance(flow, Flow) and valid is not None:
        raise InputError("valid: the Flow has its own; give either a Flow or vectors with valid")
    given = flow if isinstance(flow, Flow) else Flow(flow, valid)
    suffix = Path(path).suffix.lower()
    if suffix not in (".flo", ".png"):
        raise InputError(f"path: expected a name that ends in .flo or .png, got {os.fspath(path)!r}")
    return write_bytes(path, _flo_bytes(given) if suffix == ".flo" else _kitti_bytes(given))


def _read(stream: IO[bytes], name: str, most_pixels: int) -> Flow:
    head = stream.read(8)
    if head.startswith(MAGIC):
        return _read_flo(stream, head, name, most_pixels)
    if head == PNG:
        return _read_kitti(stream, name, most_pixels)
    if not head:
        raise FileError(f"{name}: the file is empty")
    raise FileError(f"{name}: neither .flo nor a PNG of KITTI; it starts with {head!r}")


def _count(width: int, height: int, name: str, most_pixels: int) -> None:
    if width < 1 or height < 1:
        raise FileError(f"{name}: declares {width} × {height} pixels; there is no flow in it")
    if width * height > most_pixels:
        fix = "raise most_pixels to read it"
        raise FileError(f"{name}: declares {width} × {height} pixels, more than {most_pixels:,}; {fix}")


def _flow(vectors: NDArray[np.float32], valid: NDArray[np.bool_]) -> Flow:
    return Flow(vectors, None if valid.all() else valid)


# ---------------------------------------------------------------------------------------------------------------- .flo


def _read_flo(stream: IO[bytes], head: bytes, name: str, most_pixels: int) -> Flow:
    """Magic 202021.25, width and height as int32, then u and v of each pixel as float32, row by row, little-endian."""
    sizes = (head + stream.read(4))[4:]
    if len(sizes) != 8:
        raise FileError(f"{name}: ends within its header; it is truncated")
    width, height = struct.unpack("<ii", sizes)
    _count(width, height, name, most_pixels)
    declared, held = 8 * width * height, os.fstat(stream.fileno()).st_size - 12
    if held != declared:
        what = "it is truncated" if held < declared else "something else follows the flow"
        raise FileError(f"{name}: {width} × {height} vectors are {declared:,} bytes, and it holds {held:,}; {what}")
    raw = np.frombuffer(stream.read(declared), dtype="<f4").reshape(height, width, 2)
    known = (np.abs(raw) <= LIMIT).all(axis=2)  # NaN is not, either
    return _flow(np.where(known[..., None], raw, np.float32(0)).astype(np.float32), known)


def _flo_bytes(flow: Flow) -> bytes:
    vectors = flow.vectors
    if (np.abs(vectors) > LIMIT).any():
        raise InputError("flow: a component above 1e9 px means unknown in a .flo; mark such pixels as False in valid")
    if flow.valid is not None:
        vectors = np.where(flow.valid[..., None], vectors, np.float32(UNKNOWN))
    return MAGIC + struct.pack("<ii", flow.width, flow.height) + vectors.astype("<f4").tobytes()


# --------------------------------------------------------------------------------------------------------- KITTI's PNG


def _read_kitti(stream: IO[bytes], name: str, most_pixels: int) -> Flow:
    """(value − 2^15) / 64 of the red and the green channel; blue is 1 where the flow is known, else 0."""
    chunks = _chunks(stream, name)
    kind, header = next(chunks, (b"", b""))
    if kind != b"IHDR" or len(header) != 13:
        raise FileError(f"{name}: a PNG without a header; it is damaged")
    width, height, bits, colour, compression, filtering, interlace = struct.unpack(">IIBBBBB", header)
    _count(width, height, name, most_pixels)
    if (bits, colour) != (16, 2):
        raise FileError(f"{name}: {_said(bits, colour)}; KITTI's flow is a PNG of 16 bits in three channels")
    if (compression, filtering, interlace) != (0, 0, 0):
        raise FileError(f"{name}: an interlaced or unusual PNG; KITTI's flow is a plain one")
    data = b"".join(content for kind, content in chunks if kind == b"IDAT")
    _check_unpacked(data, height * (1 + 6 * width), name)
    values = _decoded(header, data, (height, width), name)
    known = values[..., 2] > 0
    return _flow((values[..., :2].astype(np.float32) - np.float32(32768)) / np.float32(64), known)


def _said(bits: int, colour: int) -> str:
    channels = {0: "grey", 2: "three channels", 3: "a palette", 4: "grey with alpha", 6: "four channels"}
    return f"a PNG of {bits} bits in {channels.get(colour, f'colour type {colour}')}"


def _chunks(stream: IO[bytes], name: str) -> Iterator[tuple[bytes, bytes]]:
    """Kind and content of each chunk up to IEND, its length held against the file's and its checksum checked."""
    size = os.fstat(stream.fileno()).st_size
    if size > MOST_BYTES:
        raise FileError(f"{name}: longer than {MOST_BYTES >> 20} MB, too long for a picture of flow")
    while True:
        head = stream.read(8)
        if len(head) < 8:
            raise FileError(f"{name}: ends before its last chunk; it is truncated")
        length, kind = int.from_bytes(head[:4], "big"), head[4:]
        if length > size - stream.tell() - 4:
            raise FileError(f"{name}: a chunk of {length:,} bytes does not fit into the file; it is truncated")
        content, check = stream.read(length), stream.read(4)
        if zlib.crc32(kind + content) != int.from_bytes(check, "big"):
            raise FileError(f"{name}: the checksum of a chunk is wrong; it is damaged")
        if kind == b"IEND":
            return
        yield kind, content


def _check_unpacked(data: bytes, size: int, name: str) -> None:
    """Refuse data that does not unpack to exactly `size` bytes; nothing is kept, and no more than that is unpacked."""
    unpacker, found, rest = zlib.decompressobj(), 0, data
    try:
        while found <= size and not unpacker.eof:
            piece = unpacker.decompress(rest, PIECE)
            rest, found = unpacker.unconsumed_tail, found + len(piece)
            if not piece and not rest:
                break
    except zlib.error as error:
        raise FileError(f"{name}: damaged: {error}") from None
    if found != size or not unpacker.eof or unpacker.unused_data:
        what = "more" if found > size or unpacker.unused_data else f"{found:,}{'' if unpacker.eof else ' and no end'}"
        raise FileError(f"{name}: its size asks for {size:,} bytes, and it holds {what}; it is damaged")


def _decoded(header: bytes, data: bytes, size: tuple[int, int], name: str) -> NDArray[np.uint16]:
    """The values (h, w, 3), red first; OpenCV sees only what was checked: header, data, end."""
    import cv2

    checked = PNG + b"".join(_chunk(*part) for part in ((b"IHDR", header), (b"IDAT", data), (b"IEND", b"")))
    values = cv2.imdecode(np.frombuffer(checked, dtype=np.uint8), cv2.IMREAD_UNCHANGED)
    if values is None or values.dtype != np.uint16 or values.shape != (*size, 3):
        raise FileError(f"{name}: damaged: its data cannot be decoded")
    return np.asarray(values[..., ::-1])


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _kitti_bytes(flow: Flow) -> bytes:
    """Rows without a filter, packed by zlib: the same flow gives the same bytes under any version of OpenCV."""
    known = np.ones((flow.height, flow.width), dtype=bool) if flow.valid is None else flow.valid
    steps = np.rint(flow.vectors.astype(np.float64) * 64) + 32768
    if ((steps < 0) | (steps > 65535)).any():
        found = f"{flow.vectors.min():g} to {flow.vectors.max():g}"
        raise InputError(f"flow: KITTI's PNG holds vectors from −512 to 511.98 px, got {found}; write a .flo")
    values = np.concatenate([steps * known[..., None], known[..., None]], axis=2).astype(">u2")
    rows = np.zeros((flow.height, 1 + 6 * flow.width), dtype=np.uint8)
    rows[:, 1:] = values.reshape(flow.height, -1).view(np.uint8)
    header = struct.pack(">IIBBBBB", flow.width, flow.height, 16, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b""))
    return PNG + b"".join(_chunk(*part) for part in parts)
