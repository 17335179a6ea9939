"""Pictures, video frames and arrays in and out. Every untrusted byte enters here.

A file is judged by its first bytes, never by its name; its pixels are counted before they are decoded; whatever is
wrong with it ends in one FileError that names it. Files go out through a temporary sibling that is synced and renamed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import importlib.util
import io
import math
import os
import pickle
import pickletools
import re
import secrets
import shutil
import stat
import struct
import sys
import tempfile
import threading
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from likewise import bounded
from likewise.bounded import fcntl
from likewise.errors import FileError, InputError, MissingExtra, ShapeError

if TYPE_CHECKING:
    from jaxtyping import Float, UInt8
    from PIL import Image
    from torch import Tensor

MOST_PIXELS = 200_000_000
"""A picture that declares more pixels than this is refused before it is decoded."""

MOST_BYTES = 1 << 30
"""A picture file longer than this is refused before it is read."""

MOST_BLOWN_UP, BLOWN_UP = 1 << 28, 100
"""Bytes that compressed arrays may declare whatever their file's length; and beyond that, how many times this length.
Features and labels pack to a half or a tenth; zeros to a thousandth, which no more than this is believed of."""

MOST_ARRAY_BYTES = 4 << 30
"""Arrays that declare more bytes than this, all members together, are refused before they are read."""

SAMPLE = 1 << 14
"""Bytes of each of the 16 places of a file that `digest` reads."""

BAND = 256
"""Rows of a picture that are converted at a time."""

MOST_FRAMES = 1_000_000
"""A video is left with an error after this many decoded frames."""

_MAGIC = {
    "JPEG": rb"\xff\xd8\xff",
    "PNG": rb"\x89PNG\r\n\x1a\n",
    "WebP": rb"RIFF.{4}WEBP",
    "GIF": rb"GIF8[79]a",
    "BMP": rb"BM.{12}[\x0c\x10\x28\x34\x38\x40\x6c\x7c]\0\0\0",  # the lengths of header that there are
    "RAW": rb"II\*\0\x10\0{3}CR|II(U\0|R[OS])|MMOR|FUJIFILMCCD-RAW|FOVb|.{4}ftypcrx ",  # Canon, Panasonic, Olympus …
    "TIFF": rb"II[*+]\0|MM\0[*+]",
    "PPM": rb"P[1-6]\s+[\d#]",
    "AVIF": rb".{4}ftyp(avi[fs]|m[is]f1.{4}(.{4})*avi[fs])",
    "HEIC": rb".{4}ftyp(he[iv][cmsx]|m[is]f1)",
}
"""How files begin that are decoded: raster formats, none that runs a program or opens another file. Most RAW files
(DNG, NEF, ARW, PEF) begin as TIFF does; `_is_raw` tells them apart."""

PREVIEW = 480
"""Longest side, in pixels, from which on the picture inside a RAW file is a preview; below, it is a thumbnail."""

_SUFFIXES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP", ".tif": "TIFF", ".tiff": "TIFF"}

_VIDEO_FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,flv,mpeg,mpegts,mpegvideo,ogg,asf,gif,h264,hevc,m4v,ivf,nut"
"""Demuxers that read only the file they are given: no playlists, no concatenations, no devices."""


# ---------------------------------------------------------------------------------------------------- pictures in


def read(path: str | os.PathLike[str]) -> Float[Tensor, "3 h w"]:
    """Read an image file, upright and RGB.

    Parameters
    ----------
    path : str or PathLike
        JPEG, PNG, WebP, GIF (its first frame), BMP, TIFF, PPM or AVIF, judged by its first bytes; HEIC with the extra
        `heic`, and the preview inside a camera's RAW file with the extra `raw`.

    Returns
    -------
    Tensor (3, h, w)
        float32 in [0, 1]; transparency laid over white, EXIF orientation applied.

    Raises
    ------
    FileError
        It is missing, damaged, too large, or no image.
    MissingExtra
        It is HEIC or RAW, and what reads that is not installed.

    Examples
    --------
    >>> import likewise as lw, numpy as np, PIL.Image
    >>> PIL.Image.fromarray(np.zeros((4, 6, 3), np.uint8)).save("black.png")
    >>> lw.read("black.png").shape
    torch.Size([3, 4, 6])
    """
    import torch  # here: who reads arrays never pays for it

    array = read_array(path)
    return torch.from_numpy(array).permute(2, 0, 1).contiguous().to(torch.float32).div_(255.0)


def read_array(
    path: str | os.PathLike[str], *, most_pixels: int = MOST_PIXELS, side: int | None = None
) -> UInt8[np.ndarray, "h w 3"]:
    """The picture at `path` as uint8 (h, w, 3), upright, RGB.

    Transparency is laid over white, CMYK made RGB, 16 bits scaled to 8 (grey is rounded, of colour the decoder keeps
    the high byte), EXIF orientation applied, the first frame taken of many; colour profiles are not applied. Of a RAW
    file it is the preview that the camera made, or half the sensor's size where there is none. With `side`, a JPEG may
    come at 1/2, 1/4 or 1/8 of its size as long as its shortest side stays ≥ `side`: several times faster when it is to
    be made small anyway.
    """
    _check_whole(most_pixels=most_pixels, side=side)
    with _regular(path) as stream:
        if os.fstat(stream.fileno()).st_size > MOST_BYTES:
            raise FileError(f"{path}: longer than {MOST_BYTES >> 20} MB, too long for a picture")
        _kind(stream.read(32), str(path))
    place, name = os.path.abspath(path), str(path)
    array: UInt8[np.ndarray, "h w 3"] = bounded.call(
        "likewise.media:_read_array", place, name, most_pixels, side, name=name
    )
    return array


def _read_array(place: str, name: str, most_pixels: int, side: int | None) -> UInt8[np.ndarray, "h w 3"]:
    with _regular(place) as stream:
        return _decode(stream, name, most_pixels, side)


def decode(
    data: bytes, *, name: str = "picture", most_pixels: int = MOST_PIXELS, side: int | None = None
) -> UInt8[np.ndarray, "h w 3"]:
    """A picture that is already in memory, by the same rules as `read_array`; `name` stands for it in errors."""
    _check_whole(most_pixels=most_pixels, side=side)
    _kind(data[:32], name)
    array: UInt8[np.ndarray, "h w 3"] = bounded.call(
        "likewise.media:_decode_bytes", data, name, most_pixels, side, name=name
    )
    return array


def _decode_bytes(data: bytes, name: str, most_pixels: int, side: int | None) -> UInt8[np.ndarray, "h w 3"]:
    return _decode(io.BytesIO(data), name, most_pixels, side)


def from_pillow(im: Image.Image) -> UInt8[np.ndarray, "h w 3"]:
    """A Pillow image by the same rules: any mode, upright, RGB, transparency over white."""
    try:
        with _quiet_pillow():
            im.load()
            return _rgb(_upright(im))
    except Exception as error:  # it may be lazy, and its file damaged
        raise FileError(f"{getattr(im, 'filename', '') or 'Pillow image'}: {error or type(error).__name__}") from error


def as_uint8(array: np.ndarray[Any, Any], *, where: str = "array") -> np.ndarray[Any, Any]:
    """(h, w) or (h, w, 3) as uint8: taken as it is, or rounded from floats in [0, 1]."""
    if array.ndim not in (2, 3) or array.size == 0 or (array.ndim == 3 and array.shape[2] != 3):
        raise ShapeError(f"{where}: expected (h, w) or (h, w, 3), got shape {array.shape}")
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    if not np.issubdtype(array.dtype, np.floating):
        raise InputError(f"{where}: expected uint8, or floats in [0, 1], got {array.dtype}")
    if not (array.min() >= 0 and array.max() <= 1):
        raise InputError(f"{where}: expected floats in [0, 1], got {array.min():g} to {array.max():g}")
    return np.ascontiguousarray(np.rint(array * 255).astype(np.uint8))


PICTURE_NAMES = frozenset(
    {".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".avif", ".heic", ".heif"}
    | {".hif", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2", ".pef", ".srw"}
)
"""How names of pictures end: a file so named that cannot be read is told of, any other is passed over."""


VIDEO_NAMES = frozenset({".avi", ".mp4", ".mov", ".mkv", ".webm", ".mpg", ".mpeg", ".m4v", ".wmv"})
"""How names of files end that are taken for videos."""


def images(
    path: str | os.PathLike[str], *, recursive: bool = True, unreadable: list[OSError] | None = None
) -> list[Path]:
    """The pictures in a folder, in natural order (2 before 10), told by their first bytes; hidden ones are left out.

    A subfolder that cannot be read is a FileError, or else is passed over and added to `unreadable`.
    """
    root = Path(path)
    return sorted(filter(is_image, files(root, recursive, unreadable)), key=lambda p: natural(p.relative_to(root)))


def files(path: str | os.PathLike[str], recursive: bool = True, unreadable: list[OSError] | None = None) -> list[Path]:
    """The files in a folder, in no particular order, hidden ones left out; `unreadable` is that of `images`."""
    root, found, failed = Path(path), list[Path](), list[OSError]()
    if not root.is_dir():
        why = "not a folder; give the folder that holds the pictures" if root.exists() else "no such folder"
        raise FileError(f"{root}: {why}")
    for folder, inner, names in os.walk(root, onerror=failed.append):
        try:  # of a folder that may be read but not entered there are the names, and no file
            os.lstat(os.path.join(folder, names[0] if names else ""))
        except FileNotFoundError:
            pass
        except OSError as error:
            failed.append(OSError(error.errno, error.strerror, folder))
        inner[:] = [d for d in inner if recursive and not d.startswith(".")]
        found += [Path(folder, n) for n in names if not n.startswith(".")]
    for one in failed:
        if unreadable is None or one.filename == os.fspath(root):
            raise FileError(f"{one.filename}: {one.strerror}")
        unreadable.append(one)
    return found


def is_image(path: str | os.PathLike[str]) -> bool:
    """Whether the first bytes of a file are those of a picture that `read` takes."""
    try:
        with _regular(path) as stream:
            return _sniff(stream.read(32)) is not None
    except FileError:
        return False


def is_file(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file of this name; one that no file system takes (too long, a NUL) is the name of none."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def size_and_time(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Bytes of a file and when it was changed, in ns: whether it is the same as before. (−1, −1) where it is gone."""
    return stamp(path)[:2]


def stamp(path: str | os.PathLike[str]) -> tuple[int, int, int]:
    """`size_and_time`, and a mark that no change of the file leaves as it was, whatever its time was set to.

    The mark is made of inode and ctime, which copying the file changes, too: then `digest` tells. −1 where it is gone.
    """
    try:
        about = os.stat(path)
    except OSError:
        return -1, -1, -1
    return about.st_size, about.st_mtime_ns, _number(b"%d %d" % (about.st_ino, about.st_ctime_ns))


def digest(path: str | os.PathLike[str]) -> int:
    """64 bits of a file's beginning, its end and 14 places between: they tell two pictures of one size apart.

    0.2 ms of a photo of 4 MB, where all of it takes 4. 0 where it cannot be read.
    """
    try:
        with open(path, "rb") as stream:
            last, data = max(0, os.fstat(stream.fileno()).st_size - SAMPLE), b""
            for i in range(16):
                stream.seek(last * i // 15)
                data += stream.read(SAMPLE)
    except OSError:
        return 0
    return _number(data)


def _number(data: bytes) -> int:
    """A hash as the signed number of 64 bits that databases hold."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), signed=True)


def is_gone(path: str | os.PathLike[str]) -> bool:
    """Whether a file is not there any more: ENOENT in a folder that can be read, or that is gone itself.

    What may not be looked at, an error of the disk and a network that is away say nothing of the file.
    """
    try:
        os.lstat(path)
    except FileNotFoundError:
        folder = os.path.dirname(os.path.abspath(path))
    except (OSError, ValueError):
        return False
    else:
        return False
    try:
        os.scandir(folder).close()
    except FileNotFoundError:
        return folder != os.path.dirname(folder) and is_gone(folder)
    except OSError:
        return False
    return True


def natural(path: Path) -> tuple[tuple[tuple[int, int, str], ...], ...]:
    """A sorting key under which frame2 comes before frame10; ties are settled by the exact spelling."""

    def part(text: str) -> tuple[tuple[int, int, str], ...]:
        pieces = re.split(r"(\d+)", text)
        return tuple((0, int(s), s) if s.isdecimal() else (1, 0, s.casefold()) for s in pieces if s)

    return (*(part(p) for p in path.parts), ((2, 0, str(path)),))


@contextlib.contextmanager
def _regular(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a regular file that is not empty: a folder, a pipe or a device is refused, and never waited for."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise FileError(f"{path}: is a folder, not a file")
        if not stat.S_ISREG(mode):
            raise FileError(f"{path}: not a regular file")
        stream = open(path, "rb")  # noqa: SIM115
    except FileError:
        raise
    except FileNotFoundError:
        raise FileError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise FileError(f"{path}: cannot be opened: {getattr(error, 'strerror', None) or error}") from None
    with stream:
        if os.fstat(stream.fileno()).st_size == 0:
            raise FileError(f"{path}: the file is empty")
        yield stream


def _sniff(head: bytes) -> str | None:
    """The format that the first 32 bytes of a file announce, or None."""
    return next((kind for kind, magic in _MAGIC.items() if re.match(magic, head, re.DOTALL)), None)


def _decode(stream: IO[bytes], name: str, most_pixels: int, side: int | None) -> UInt8[np.ndarray, "h w 3"]:
    with _started(stream, name, most_pixels) as im:
        _count(im.size, name, most_pixels)
        if im.format == "JPEG":
            _count_scans(stream, im.size, name)
        if side is not None and im.format == "JPEG":
            im.draft("", (side, side))
        im.load()
        if im.mode == "CMYK" and im.format == "JPEG" and "adobe" not in im.info:
            from PIL import ImageChops  # Pillow takes every CMYK JPEG for Adobe's, which stores ink upside down

            im, info = ImageChops.invert(im), im
            im.info = info.info
        return _rgb(_upright(im))


def _kind(head: bytes, name: str) -> str:
    kind = _sniff(head)
    if kind is None:
        raise FileError(f"{name}: not a picture ({', '.join(_MAGIC)} are read); it starts with {head[:8]!r}")
    return kind


@contextlib.contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[Image.Image]:
    """The picture at `path` with its header parsed by the one decoder of its format; no pixel is decoded yet.

    Python parses most headers. Those that a library parses must first have passed in a worker.
    """
    with _regular(path) as stream:
        if _kind(stream.read(32), str(path)) in ("WebP", "AVIF", "HEIC", "RAW"):
            bounded.call("likewise.media:_parse", os.path.abspath(path), str(path), name=str(path))
        stream.seek(0)
        with _started(stream, str(path), MOST_PIXELS) as im:
            yield im


def _parse(place: str, name: str) -> tuple[int, int]:
    with _regular(place) as stream, _started(stream, name, MOST_PIXELS) as im:
        im.getexif()
        return im.size


@contextlib.contextmanager
def _started(stream: IO[bytes], name: str, most_pixels: int) -> Iterator[Image.Image]:
    """The picture in a stream, its header parsed by the one decoder of its format; whatever goes on inside ends well
    or in a FileError."""
    head = stream.read(32)
    stream.seek(0)
    kind = _kind(head, name)
    if kind == "WebP":  # its decoder makes room for the picture as soon as it is started
        _count(_webp_size(head), name, most_pixels)
    if kind == "TIFF" and _is_raw(stream):
        kind = "RAW"
    try:
        with _quiet_pillow():
            yield _start_raw(stream, name, most_pixels) if kind == "RAW" else _start(kind, stream)
    except (FileError, MissingExtra):
        raise
    except MemoryError:
        raise FileError(f"{name}: not enough memory to decode it") from None
    except Exception as error:  # a damaged file can make a decoder raise anything
        said = error.args[0] if error.args else ""
        why = said.decode("ascii", "replace") if isinstance(said, bytes) else error  # LibRaw speaks in bytes
        raise FileError(f"{name}: damaged or unsupported {kind}: {why or type(error).__name__}") from error


def _start(kind: str, stream: IO[bytes]) -> Image.Image:
    """Parse the header with this one decoder; no pixel is decoded yet."""
    if kind == "HEIC":
        heic: Image.Image = _extra("pillow_heif", "heic").HeifImageFile(stream)
        return heic
    name = kind if kind == "WebP" else kind.capitalize()
    try:
        plugin = importlib.import_module(f"PIL.{name}ImagePlugin")
    except ImportError:
        raise OSError(f"this Pillow cannot read {kind}; pip install --upgrade pillow") from None
    opened: Image.Image = getattr(plugin, f"{name}ImageFile")(stream)
    return opened


def _extra(package: str, extra: str) -> Any:
    """An optional package; it is imported when a file first needs it."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise MissingExtra(package.replace("_", "-"), extra) from None


def _is_raw(stream: IO[bytes]) -> bool:
    """Whether what begins as TIFF is a camera's: it has a DNG version, its first picture is a reduced one of others
    below, or it holds the mosaic of a sensor."""
    head = stream.read(8)
    order = "<" if head[:2] == b"II" else ">"
    stream.seek(struct.unpack(f"{order}I", head[4:].ljust(4, b"\0"))[0])
    rows = stream.read(2)
    rows = stream.read(12 * struct.unpack(f"{order}H", rows.ljust(2, b"\0"))[0])
    stream.seek(0)
    tags = dict[int, int]()
    for at in range(0, len(rows) - 11, 12):
        tag, kind = struct.unpack_from(f"{order}HH", rows, at)
        tags[tag] = struct.unpack_from(f"{order}{'H' if kind == 3 else 'I'}", rows, at + 8)[0]
    return 50706 in tags or (330 in tags and tags.get(254) == 1) or tags.get(262) in (32803, 34892)


def _start_raw(stream: IO[bytes], name: str, most_pixels: int) -> Image.Image:
    """The preview inside a camera's file, its header parsed; where there is none, the sensor at half its size."""
    from PIL import Image

    rawpy = _extra("rawpy", "raw")
    with rawpy.RawPy() as raw:
        raw.open_buffer(stream)
        size = raw.sizes
        _count((size.raw_width, size.raw_height), name, most_pixels)
        quarters = {3: 2, 5: 1, 6: 3}.get(size.flip, 0)
        try:
            thumb = raw.extract_thumb()
        except (rawpy.LibRawNoThumbnailError, rawpy.LibRawUnsupportedThumbnailError):
            thumb = None
        if thumb is not None and thumb.format == rawpy.ThumbFormat.JPEG:
            im = _start("JPEG", io.BytesIO(thumb.data))
        elif thumb is not None:
            im = Image.fromarray(np.rot90(thumb.data, quarters))
        if thumb is None or max(im.size) < min(PREVIEW, max(size.width, size.height) // 2):
            im = Image.fromarray(raw.postprocess(half_size=True, use_camera_wb=True))
    return im


def _check_whole(**given: object) -> None:
    for argument, value in given.items():
        if value is not None and not (isinstance(value, int) and value >= 1):
            raise InputError(f"{argument}: expected a whole number ≥ 1, got {value!r}")


def _count(size: tuple[int, int], name: str, most_pixels: int) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise FileError(f"{name}: declares {width} × {height} pixels; there is nothing to see")
    if width * height > most_pixels:
        raise FileError(
            f"{name}: declares {width} × {height} pixels, more than {most_pixels:,}; raise most_pixels to read it"
        )


MOST_SCANS, SCANNED = 32, 1_200_000_000
"""Scans of a JPEG that are decoded: 32, or more where they pass over fewer pixels than this in all, 10 s of CPU time.
Cameras and encoders write at most 12."""
_MARKER = re.compile(rb"\xff+([^\x00\xd0-\xd7\xff])")


def _count_scans(stream: IO[bytes], size: tuple[int, int], name: str) -> None:
    """Refuse a JPEG of hundreds of scans: each costs as much as a whole picture, and a few bytes."""
    stream.seek(0)
    data, at, scans, parts = stream.read(), 0, 0, 0
    stream.seek(0)
    most = max(MOST_SCANS, SCANNED // max(1, size[0] * size[1]))
    while (found := _MARKER.search(data, at)) and found[1] != b"\xd9":
        kind, length = found[1][0], int.from_bytes(data[found.end() : found.end() + 2])
        if kind in (0xC0, 0xC1):  # not progressive: of the picture as a whole there is one scan
            parts = data[found.end() + 7] if found.end() + 7 < len(data) else 0
        if kind == 0xDA:
            scans += 1
            if parts and data[found.end() + 2 : found.end() + 3] == bytes([parts]):
                return
        if scans > most:
            raise FileError(f"{name}: a JPEG of more than {most} scans of {size[0]} × {size[1]} pixels; save it anew")
        at = found.end() + (0 if kind in (0x01, 0xD8) else length)


def _webp_size(head: bytes) -> tuple[int, int]:
    """Width and height from a WebP header, as its three layouts store them."""
    head = head.ljust(30, b"\0")
    chunk = head[12:16]
    if chunk == b"VP8X":
        return 1 + int.from_bytes(head[24:27], "little"), 1 + int.from_bytes(head[27:30], "little")
    if chunk == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = struct.unpack("<HH", head[26:30])
    return width & 0x3FFF, height & 0x3FFF


def _upright(im: Image.Image) -> Image.Image:
    """Undo the EXIF orientation; damaged EXIF counts as upright."""
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(im) if im.getexif().get(0x0112, 1) != 1 else im
    except MemoryError:
        raise
    except Exception:  # damaged EXIF can raise anything
        return im


def _rgb(im: Image.Image) -> UInt8[np.ndarray, "h w 3"]:
    """Any Pillow mode as 8-bit RGB."""
    if im.mode.startswith("I") or im.mode == "F":
        return np.repeat(_grey8(np.asarray(im))[:, :, None], 3, axis=2)
    if im.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in im.info:
        return over_white(np.asarray(im if im.mode == "RGBA" else im.convert("RGBA")))
    out = np.empty((im.height, im.width, 3), np.uint8)
    for top in range(0, im.height, BAND):  # in one piece it would need as much again, twice
        band = im.crop((0, top, im.width, min(top + BAND, im.height)))
        out[top : top + BAND] = np.asarray(band if im.mode == "RGB" else band.convert("RGB"))
    return out


def _grey8(values: np.ndarray[Any, Any]) -> UInt8[np.ndarray, "h w"]:
    """Deep grey as 8 bits: integers from 16 (or 31) bits, floats from [0, 1] or else from their own range."""
    if np.issubdtype(values.dtype, np.integer):
        if values.dtype == np.uint16 or values.max() <= 65535:
            return np.asarray((np.clip(values, 0, 65535).astype(np.uint32) + 128) // 257, dtype=np.uint8)
        v = values.astype(np.float64) / (2**31 - 1)
    else:
        v = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)
        finite = v[np.isfinite(v)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
        if low < 0 or high > 1:
            v = (v - low) / max(high - low, np.finfo(np.float64).tiny)
    grey: UInt8[np.ndarray, "h w"] = np.rint(np.clip(v, 0.0, 1.0) * 255).astype(np.uint8)
    return grey


def over_white(rgba: UInt8[np.ndarray, "h w 4"]) -> UInt8[np.ndarray, "h w 3"]:
    """Lay a transparent image over white: c α + 255 (1 − α), rounded."""
    mixed = np.empty((*rgba.shape[:2], 3), dtype=np.uint8)
    for top in range(0, len(rgba), BAND):  # a large picture would need eight times its own memory
        band = rgba[top : top + BAND]
        alpha = band[:, :, 3:].astype(np.uint32)
        mixed[top : top + BAND] = (band[:, :, :3] * alpha + 255 * (255 - alpha) + 127) // 255
    return mixed


class _QuietPillow:
    """Mutes Pillow's warnings about odd metadata while any thread is decoding, and only then.

    `warnings.catch_warnings` swaps a list that all threads share; this adds one entry to it and takes the same one out.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._depth = 0
        self._entry: Any = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if self._depth == 0 or self._entry not in warnings.filters:
                warnings.filterwarnings("ignore", module=r"PIL\.")
                self._entry = warnings.filters[0]
            self._depth += 1
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1
                if self._depth == 0 and isinstance(warnings.filters, list):
                    with contextlib.suppress(ValueError):
                        warnings.filters.remove(self._entry)


_quiet_pillow = _QuietPillow()


# ------------------------------------------------------------------------------------------------------- video in


def frames(
    path: str | os.PathLike[str], *, every: int = 1, most: int | None = None, most_pixels: int = MOST_PIXELS
) -> Iterator[UInt8[np.ndarray, "h w 3"]]:
    """Frames 0, every, 2·every … of a video as uint8 (h, w, 3), at most `most`, turned as a player turns them."""
    _check_whole(every=every, most=most, most_pixels=most_pixels)
    if importlib.util.find_spec("av") is None:
        raise MissingExtra("av", "video")
    with _regular(path):
        pass
    given = os.path.realpath(path), str(path), every, most, most_pixels
    return bounded.stream("likewise.media:_frames", *given, name=str(path))


def _frames(
    place: str, path: str, every: int, most: int | None, most_pixels: int
) -> Iterator[UInt8[np.ndarray, "h w 3"] | None]:
    """The frames, and None for each that is left out: a worker's time is counted between two."""
    av = _extra("av", "video")
    whitelist, given = {"format_whitelist": _VIDEO_FORMATS, "protocol_whitelist": "file"}, 0
    try:
        with av.open(place, options=whitelist, metadata_errors="ignore") as container:
            if not container.streams.video:
                raise FileError(f"{path}: has no video stream")
            stream = container.streams.video[0]
            if stream.codec_context is None:
                raise FileError(f"{path}: its video is of a kind that this FFmpeg does not decode")
            _count((stream.codec_context.width, stream.codec_context.height), path, most_pixels)
            stream.thread_type = "AUTO"
            for i, frame in enumerate(container.decode(stream)):
                _count((frame.width, frame.height), path, most_pixels)
                if i >= MOST_FRAMES:
                    raise FileError(f"{path}: more than {MOST_FRAMES:,} frames; cut the video")
                yield None if i % every else _picture(frame)
                given += i % every == 0
                if given == most:
                    return
    except FileError:
        raise
    except Exception as error:  # besides FFmpeg's own errors: whatever a damaged stream leads the bindings to
        why = getattr(error, "strerror", None) or error or type(error).__name__
        raise FileError(f"{path}: damaged or unsupported video: {why}") from error
    if given == 0:
        raise FileError(f"{path}: holds no frame that can be decoded")


def _picture(frame: Any) -> UInt8[np.ndarray, "h w 3"]:
    array: UInt8[np.ndarray, "h w 3"] = frame.to_ndarray(format="rgb24")
    quarter = round(getattr(frame, "rotation", 0) / 90) % 4
    return np.ascontiguousarray(np.rot90(array, quarter)) if quarter else array


# ------------------------------------------------------------------------------------------------------ arrays in


def load_arrays(path: str | os.PathLike[str], *, most_bytes: int = MOST_ARRAY_BYTES) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an .npz by name, or the one of an .npy as "arr_0".

    Nothing is unpickled, and declared sizes are checked before anything is read.
    """
    with _arrays_in(path) as (stream, head):
        if head == b"\x93NUMPY":
            return {"arr_0": _load_npy(stream, f"{path}", os.fstat(stream.fileno()).st_size, most_bytes)}
        if not head.startswith(b"PK"):
            raise FileError(f"{path}: neither .npy nor .npz; it starts with {head!r}")
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        with zipfile.ZipFile(stream) as archive:
            declared, size = sum(m.file_size for m in archive.infolist()), os.fstat(stream.fileno()).st_size
            _check_declared(declared, f"{path}", min(most_bytes, max(MOST_BLOWN_UP, BLOWN_UP * size)))
            for m in archive.infolist():
                key = m.filename.removesuffix(".npy")
                if key in arrays:
                    raise FileError(f"{path}: holds two arrays named {key!r}")
                with archive.open(m) as inner:
                    arrays[key] = _load_npy(inner, f"{path}: array {key!r}", m.file_size, most_bytes)
        return arrays


def map_array(path: str | os.PathLike[str]) -> np.ndarray[Any, Any]:
    """The array of an .npy, mapped into memory to be read: checked as `load_arrays` checks it, but not loaded."""
    with _arrays_in(path) as (stream, _):
        size = os.fstat(stream.fileno()).st_size
        if not _check_npy(stream, f"{path}", size, size):
            return _load_npy(stream, f"{path}", size, size)
        mapped: np.ndarray[Any, Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        return mapped


@contextlib.contextmanager
def _arrays_in(path: str | os.PathLike[str]) -> Iterator[tuple[IO[bytes], bytes]]:
    """A file and its first six bytes; whatever NumPy or zipfile makes of the rest, a FileError tells of it."""
    with _regular(path) as stream:
        head = stream.read(6)
        stream.seek(0)
        try:
            yield stream, head
        except FileError:
            raise
        except Exception as error:  # NumPy reads a header with Python's own parser, which can raise anything
            raise FileError(f"{path}: damaged: {error or type(error).__name__}") from error


def _load_npy(stream: IO[bytes], name: str, size: int, most_bytes: int) -> np.ndarray[Any, Any]:
    """One array, read only after its header has been found to agree with the number of bytes that follow it."""
    _check_npy(stream, name, size, most_bytes)
    stream.seek(0)
    array: np.ndarray[Any, Any] = np.lib.format.read_array(stream, allow_pickle=False)
    if not is_text(array.ravel(order="K")):
        raise FileError(f"{name}: holds text that is not Unicode; it is damaged")
    return array


def _check_npy(stream: IO[bytes], name: str, size: int, most_bytes: int) -> int:
    """The number of bytes that an array declares, if it holds plain values and they fit into `size` bytes."""
    stream.seek(0)
    if stream.read(6) != b"\x93NUMPY":
        raise FileError(f"{name}: not a NumPy array")
    version = tuple(stream.read(2))
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise FileError(f"{name}: NumPy format {version} is not read; save it with format 1.0 or 2.0")
    shape, _, dtype = readers[version](stream)
    if dtype.hasobject:
        raise FileError(f"{name}: holds Python objects, which would have to be unpickled; save plain numbers")
    if dtype.names is not None or dtype.subdtype is not None:
        raise FileError(f"{name}: holds records ({dtype}); save plain arrays")
    if any(n < 0 for n in shape):
        raise FileError(f"{name}: declares the shape {shape}")
    declared = math.prod(shape) * dtype.itemsize
    _check_declared(declared, name, most_bytes)
    if declared > size - stream.tell():
        raise FileError(f"{name}: declares {declared:,} bytes of data in {size:,}; it is truncated")
    return declared


def _check_declared(declared: int, name: str, most_bytes: int) -> None:
    if declared > most_bytes:
        raise FileError(
            f"{name}: declares {declared:,} bytes, more than {most_bytes:,} allowed; raise most_bytes to read it"
        )


def is_text(array: np.ndarray[Any, Any]) -> bool:
    """Whether a flat array that NumPy takes for text is text: NumPy itself does not look, and Python breaks on it."""
    if array.dtype.kind != "U" or not array.size:
        return True
    codes = array.view(array.dtype.byteorder.replace("|", "=") + "u4") if array.dtype.itemsize else array[:0]
    return not ((codes > 0x10FFFF) | ((codes >= 0xD800) & (codes <= 0xDFFF))).any()


# ----------------------------------------------------------------------------------------- flow files in and out

FLO_MAGIC = struct.pack("<f", 202021.25)
"""The first four bytes of a .flo file, which read "PIEH"."""
UNKNOWN_FLOW, LARGEST_FLOW = 1e10, 1e9
"""Middlebury marks an unknown vector by 1e10; whatever is larger than 1e9 counts as unknown."""
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


def decode_flow(path: str | os.PathLike[str]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Vectors (h, w, 2) float32 and where they are known (h, w), from a .flo or KITTI's PNG."""
    with _regular(path) as stream:
        if os.fstat(stream.fileno()).st_size > MOST_BYTES:
            raise FileError(f"{path}: longer than {MOST_BYTES >> 20} MB, too long for a flow file")
        data = stream.read()
    if data.startswith(FLO_MAGIC):
        return _decode_flo(data, str(path))
    if data.startswith(PNG_MAGIC):
        vectors, known = bounded.call("likewise.media:_decode_kitti", data, str(path), name=str(path))
        return vectors, known
    raise FileError(f"{path}: neither .flo nor a PNG of KITTI; it starts with {data[:8]!r}")


def encode_flow(path: str | os.PathLike[str], vectors: np.ndarray[Any, Any], valid: np.ndarray[Any, Any]) -> Path:
    """Write vectors (h, w, 2), known where `valid`, in the format of the suffix: .flo, or .png as KITTI has it."""
    import cv2

    suffix, (height, width) = Path(path).suffix.lower(), valid.shape
    if suffix == ".flo":
        if (np.abs(vectors) > LARGEST_FLOW).any():
            raise InputError("flow: a component above 1e9 px means unknown in a .flo; mark such pixels False in valid")
        known = np.where(valid[..., None], vectors, np.float32(UNKNOWN_FLOW)).astype("<f4")
        return write_bytes(path, FLO_MAGIC + struct.pack("<ii", width, height) + known.tobytes())
    if suffix != ".png":
        raise InputError(f"path: expected a name that ends in .flo or .png, got {os.fspath(path)!r}")
    steps = np.rint(vectors.astype(np.float64) * 64) + 32768
    if ((steps < 0) | (steps > 65535)).any():
        extremes = f"{vectors.min():g} to {vectors.max():g}"
        raise InputError(f"flow: KITTI's PNG holds vectors from −512 to 511.98 px, got {extremes}; write a .flo")
    rgb = np.concatenate([steps * valid[..., None], valid[..., None]], axis=2).astype(np.uint16)
    return write_bytes(path, cv2.imencode(".png", rgb[..., ::-1])[1].tobytes())


def _decode_flo(data: bytes, name: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Magic, width and height as int32, then u and v of each pixel as float32, row by row, little-endian."""
    if len(data) < 12:
        raise FileError(f"{name}: ends within its header; it is truncated")
    width, height = struct.unpack("<ii", data[4:12])
    _count((width, height), name, MOST_PIXELS)
    if len(data) - 12 != 8 * width * height:
        raise FileError(
            f"{name}: {width} × {height} vectors are {8 * width * height:,} bytes, and it holds {len(data) - 12:,}"
        )
    raw = np.frombuffer(data, dtype="<f4", offset=12).reshape(height, width, 2)
    known = (np.abs(raw) <= LARGEST_FLOW).all(axis=2)  # NaN is not, either
    return np.where(known[..., None], raw, np.float32(0)).astype(np.float32), known


def _decode_kitti(data: bytes, name: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(value − 2^15) / 64 of the red and the green channel; blue is 1 where the flow is known, else 0."""
    import cv2

    if len(data) < 33 or data[12:16] != b"IHDR":
        raise FileError(f"{name}: a PNG without a header; it is damaged")
    width, height, bits, colour, *rest = struct.unpack(">IIBBBBB", data[16:29])
    _count((width, height), name, MOST_PIXELS)
    if (bits, colour, *rest) != (16, 2, 0, 0, 0):
        raise FileError(f"{name}: {bits} bits, colour type {colour}; KITTI's flow is a plain PNG of 16 bits in RGB")
    _check_png(data, height * (1 + 6 * width), name)
    values = cv2.imdecode(np.frombuffer(data, dtype=np.uint8), cv2.IMREAD_UNCHANGED)
    if values is None or values.dtype != np.uint16 or values.shape != (height, width, 3):
        raise FileError(f"{name}: damaged: its data cannot be decoded")
    vectors = (values[..., 2:0:-1].astype(np.float32) - np.float32(32768)) / np.float32(64)
    return vectors, values[..., 0] > 0


def _check_png(data: bytes, size: int, name: str) -> None:
    """Refuse a PNG whose chunks do not end in IEND or whose data does not unpack to exactly `size` bytes.

    libpng fills what is missing with zeros, which would pass for flow.
    """
    at, packed, kind = 8, [], b""
    while kind != b"IEND":
        length, kind = int.from_bytes(data[at : at + 4], "big"), data[at + 4 : at + 8]
        content = data[at + 8 : at + 8 + length]
        check = data[at + 8 + length : at + 12 + length]
        if len(check) != 4 or zlib.crc32(kind + content) != int.from_bytes(check, "big"):
            raise FileError(f"{name}: a chunk is cut off or its checksum wrong; it is truncated or damaged")
        packed += [content] if kind == b"IDAT" else []
        at += 12 + length
    unpacker = zlib.decompressobj()
    try:
        unpacked = len(unpacker.decompress(b"".join(packed), size + 1))
    except zlib.error as error:
        raise FileError(f"{name}: damaged: {error}") from None
    if unpacked != size or not unpacker.eof or unpacker.unused_data:
        raise FileError(f"{name}: its size asks for {size:,} bytes, and it holds others; it is damaged")


# ------------------------------------------------------------------------------- arrays of objects, MATLAB files


class _Counted(np.ndarray[Any, Any]):
    """An array that is filled from a pickle only where it brings as many values as its shape asks for."""

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, _, values = state
        size = len(values) if dtype.hasobject else len(values) // max(dtype.itemsize, 1)
        if math.prod(shape) != size:
            raise FileError(f"declares an array of shape {shape} and brings {size:,} values")
        super().__setstate__(state)


def _make_array(*_: Any) -> Any:
    """What NumPy's `_reconstruct` does: an empty array, whatever size is asked for, to be filled from its state."""
    return np.ndarray.__new__(_Counted, (0,), dtype=np.int8)


def _make_scalar(dtype: np.dtype[Any], value: bytes) -> Any:
    return np.frombuffer(value, dtype=dtype, count=1)[0]


def _encode(text: str, codec: str = "latin1") -> bytes:
    """Bytes as Python 2's protocols write them: as Latin-1 text."""
    if codec != "latin1":
        raise FileError(f"holds text in {codec!r}, which arrays do not need")
    return text.encode("latin1")


def _empty() -> bytes:
    """How protocol 2 writes no bytes."""
    return b""


class _ArrayUnpickler(pickle.Unpickler):
    """Rebuilds NumPy arrays, numbers, text and plain containers; any other name is refused, never called."""

    ALLOWED = {  # noqa: RUF012
        "multiarray._reconstruct": _make_array,
        "multiarray.scalar": _make_scalar,
        "_codecs.encode": _encode,
        "__builtin__.bytes": _empty,
        "builtins.bytes": _empty,
        "numpy.ndarray": np.ndarray,
        "numpy.dtype": np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        """One of the few names that arrays are made of; NumPy's own makers are replaced by ours, which count."""
        short = f"{module.removeprefix('numpy.core.').removeprefix('numpy._core.')}.{name}"
        if short not in self.ALLOWED:
            raise FileError(f"names {module}.{name}, which arrays do not need; nothing was run")
        return self.ALLOWED[short]


def _as_plain(value: Any) -> Any:
    """The same with arrays of NumPy's own class, at whatever depth."""
    if isinstance(value, list | tuple):
        return type(value)(_as_plain(v) for v in value)
    if isinstance(value, dict):
        return {k: _as_plain(v) for k, v in value.items()}
    if not isinstance(value, np.ndarray):
        return value
    plain = value.view(np.ndarray)
    for part in [plain[name] for name in plain.dtype.names or ()] or [plain]:
        if part.dtype == object:
            for i in range(part.size):
                part.flat[i] = _as_plain(part.flat[i])
    return plain


def unpickle_arrays(data: bytes, name: str) -> Any:
    """Arrays of Python objects from a pickle of a stranger: data is rebuilt, nothing else is ever called."""
    try:
        for opcode, place, _ in pickletools.genops(data):
            if opcode.name.endswith("BINPUT") and int(place or 0) > len(data):  # Python makes room up to that place
                raise FileError("remembers more things than it can hold; it is damaged")
        return _as_plain(_ArrayUnpickler(io.BytesIO(data)).load())
    except RecursionError:
        raise FileError(f"{name}: holds itself, or is nested too deeply") from None
    except FileError as error:
        raise FileError(f"{name}: {error}") from None
    except Exception as error:  # a damaged stream can raise anything
        raise FileError(f"{name}: damaged: {error or type(error).__name__}") from None


def read_mat(
    path: str | os.PathLike[str], names: Iterable[str], *, most_bytes: int = MOST_ARRAY_BYTES
) -> dict[str, np.ndarray[Any, Any]]:
    """Those of the named variables that a MATLAB file (version 7 or older) holds, as `scipy.io.loadmat` gives them.

    SciPy reads it in a child process with limits, so that a hostile file can end nothing but that.
    """
    with _regular(path) as stream:
        if os.fstat(stream.fileno()).st_size > most_bytes:
            raise FileError(f"{path}: longer than {most_bytes:,} bytes, too long for a MATLAB file")
    given = os.path.abspath(path), str(path), list(names)
    data = bounded.call(
        "likewise.media:_read_mat", *given, name=str(path), seconds=60, memory=2 * most_bytes + (2 << 30)
    )
    if len(data) > 2 * most_bytes:
        raise FileError(f"{path}: not a readable MATLAB file: its variables are too large")
    values: dict[str, np.ndarray[Any, Any]] = unpickle_arrays(data.tobytes(), str(path))
    return values


def _read_mat(place: str, path: str, names: list[str]) -> UInt8[np.ndarray, "..."]:
    """The variables as a pickle, which holds arrays of objects and is read as a stranger's."""
    try:
        values = importlib.import_module("scipy.io").loadmat(place, variable_names=names, appendmat=False)
    except Exception as error:  # a damaged file can make it raise anything
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"
        raise FileError(f"{path}: not a readable MATLAB file: {why}") from None
    return np.frombuffer(pickle.dumps({k: v for k, v in values.items() if k in names}, protocol=4), np.uint8)


def read_colmap(path: str | os.PathLike[str], *, seconds: float, memory: int) -> Any:
    """A model of COLMAP in a folder, as pycolmap reads it: a tuple for each photo, and the points (n, 3)."""
    target, given = "likewise.media:_read_colmap", (os.path.abspath(path), str(path))
    data = bounded.call(target, *given, name=str(path), seconds=seconds, memory=memory)
    return unpickle_arrays(data.tobytes(), str(path))


def _read_colmap(place: str, path: str) -> UInt8[np.ndarray, "..."]:
    """A model of COLMAP as plain arrays in a pickle, which is read as a stranger's."""
    pycolmap = _extra("pycolmap", "sfm")
    pycolmap.logging.minloglevel = 3
    try:
        model = pycolmap.Reconstruction(place)
        numbers = {int(k): i for i, k in enumerate(model.points3D)}
        photos = []
        for i in model.reg_image_ids():
            image = model.image(i)
            camera, pose = image.camera, image.cam_from_world()
            seen = [(*p.xy, numbers[int(p.point3D_id)]) for p in image.points2D if p.has_point3D()]
            K = np.array(camera.calibration_matrix() if camera.is_undistorted() else np.zeros((3, 3)))
            said = image.name, camera.model_name, int(camera.height), int(camera.width), K
            where = np.array(pose.rotation.matrix()), np.array(pose.translation), np.array(seen).reshape(-1, 3)
            photos.append((*said, *where))
        places = np.array([p.xyz for p in model.points3D.values()]).reshape(-1, 3)
    except Exception as error:  # a damaged file can make it raise anything
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise FileError(f"{path}: not a readable COLMAP model: {why[:200]}") from None
    return np.frombuffer(pickle.dumps((photos, places), protocol=4), np.uint8)


# ------------------------------------------------------------------------------------------------------------ EXIF

FILM_WIDTH = 36.0
"""The width of the film, in mm, that "focal length in 35 mm film" is told for."""


@dataclass(frozen=True)
class Exif:
    """What a camera wrote into a photo; None where it is not told.

    `focal` is the focal length over the longest side, `place` (latitude, longitude, altitude), `time` and its
    `zone` as written; `taken` is both as a datetime, without a zone where the camera did not tell it.
    """

    make: str = ""
    focal: float | None = None
    place: tuple[float, float, float] | None = None
    time: str | None = None
    zone: str | None = None

    @property
    def taken(self) -> datetime | None:
        """When the photo was taken; None where that is not told, or no time that there is."""
        parts = re.match(r"(\d{4})\D(\d\d?)\D(\d\d?)\D(\d\d?)\D(\d\d)(?:\D(\d\d))?", self.time or "")
        offset = re.fullmatch(r"([+-])([01]\d):?([0-5]\d)", self.zone or "")
        ahead = timedelta(hours=int(offset[1] + offset[2]), minutes=int(offset[1] + offset[3])) if offset else None
        try:
            zone = None if ahead is None else timezone(ahead)
            return datetime(*(int(n or 0) for n in parts.groups()), tzinfo=zone) if parts else None  # type: ignore
        except ValueError:  # 0000:00:00, as cameras write that were never set
            return None


def read_exif(path: str | os.PathLike[str]) -> Exif:
    """The EXIF of a photo; whatever is missing or damaged counts as not told."""
    if not is_image(path):
        raise FileError(f"{path}: not an image")
    try:
        with _exif(path) as exif:
            details, gps = exif.get_ifd(0x8769), exif.get_ifd(0x8825)
            make = " ".join(str(exif.get(tag, "")).strip() for tag in (0x010F, 0x0110)).strip()
            time = str(details.get(0x9003) or exif.get(0x0132) or "").strip("\0 ") or None
            zone = str(details.get(0x9011 if details.get(0x9003) else 0x9010) or "").strip("\0 ")
    except Exception:  # damaged EXIF can raise anything
        return Exif()
    return Exif(make, _focal(details.get(0xA405)), _place(gps), time, zone or None)


def taken_at(path: str | os.PathLike[str]) -> dict[str, Any]:
    """When (ISO 8601) and where (degrees) a photo was taken, by name; None where that is not told, or it is gone."""
    try:
        exif = read_exif(path)
    except FileError:
        exif = Exif()
    latitude, longitude, _ = exif.place or (None, None, None)
    return {"taken": exif.taken and exif.taken.isoformat(), "latitude": latitude, "longitude": longitude}


@contextlib.contextmanager
def _exif(path: str | os.PathLike[str]) -> Iterator[Image.Exif]:
    """The tags of a photo; of a RAW file that is a TIFF its own, which need no decoder and say more than a preview."""
    with _regular(path) as stream:
        head = stream.read(32)
        stream.seek(0)
        if head[:4] in (b"II*\0", b"MM\0*") and (_sniff(head) == "RAW" or _is_raw(stream)):
            from PIL import Image

            tags = Image.Exif()
            with _quiet_pillow():
                tags.load_from_fp(stream)
                yield tags
                return
    with opened(path) as image:
        yield image.getexif()


def _focal(film: Any) -> float | None:
    """f₃₅ / 36 mm: the focal length as a share of the longest side."""
    try:
        value = float(film)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None
    return value / FILM_WIDTH if 5.0 <= value <= 2000.0 else None


def _place(gps: Any) -> tuple[float, float, float] | None:
    try:
        north, east = (
            signs[str(gps[mark]).strip("\0 ")[:1]] * sum(float(v) / 60.0**k for k, v in enumerate(gps[tag][:3]))
            for mark, tag, signs in ((1, 2, {"N": 1.0, "S": -1.0}), (3, 4, {"E": 1.0, "W": -1.0}))
        )
        height = float(gps.get(6, 0.0)) * (-1.0 if gps.get(5, b"\0") in (1, b"\1") else 1.0)
        height = height if math.isfinite(height) else 0.0  # phones that do not know it write 0/0
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None
    known = np.isfinite([north, east]).all() and abs(north) <= 90 and abs(east) <= 180 and (north or east)
    return (north, east, height) if known else None


# ------------------------------------------------------------------------------------------------------- files out


TEMPORARY = re.compile(r"\..*\.[0-9a-f]{12}\.tmp(\.[^.]*)?")
"""How a file is named that is not whole yet: only `atomic` makes such names, and only `sweep` deletes them."""
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}
_swept: set[Path] = set()


@contextlib.contextmanager
def atomic(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary sibling of `path` to write to; on leaving it is synced and renamed, on an error it is removed.

    A reader sees the old file or the new one, never half of either. Parent folders are made; the suffix is kept. What
    a killed process left is swept by the next one that writes to the folder.
    """
    target = Path(path)
    if target.is_dir():
        raise FileError(f"{target}: is a folder; give the name of a file")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{target.parent}: cannot be made: {error.strerror}") from None
    if target.parent.absolute() not in _swept:
        _swept.add(target.parent.absolute())
        sweep(target.parent)
    sibling = target.with_name(f".{target.stem[:100]}.{secrets.token_hex(6)}.tmp{target.suffix}")
    held = hold(sibling) if sys.platform == "linux" or target.suffix != ".db" else None  # SQLite locks it elsewhere
    try:
        yield sibling
        if not sibling.exists() or (held is not None and sibling.stat().st_mtime == 0):
            raise FileError(f"{target}: nothing was written to {sibling.name}")
        _sync(sibling)
        os.replace(sibling, target)
        _sync(target.parent)
    except OSError as error:
        full = error.errno in FULL or "requested and" in str(error)  # NumPy's words, without a number
        if not full or isinstance(error, FileError):
            raise
        why = error.strerror or "the disk is full, or a limit on the length of files is reached"
        raise FileError(f"{target}: cannot be written: {why}") from error
    finally:
        with contextlib.suppress(OSError):
            sibling.unlink(missing_ok=True)
        if held is not None:
            os.close(held)


def hold(path: Path) -> int | None:
    """Make a file that is locked while this process has it open: so another one sees whether its owner is alive.

    Its time is 0 until something is written. None where files are not locked (Windows).
    """
    if fcntl is None:
        return None
    while True:
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):  # a file system without locks: then nothing is swept there, either
            fcntl.flock(number, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):  # swept between the two lines above
            os.utime(path, (0, 0))
            return number
        os.close(number)


def sweep(folder: Path) -> None:
    """Delete the temporary files of processes that are no more; one that is being written is locked by its owner."""
    try:
        left = [name for name in os.listdir(folder) if TEMPORARY.fullmatch(name)] if fcntl is not None else []
    except OSError:
        return
    for name in left:
        with contextlib.suppress(OSError), taken_over(folder / name):
            (folder / name).unlink()


@contextlib.contextmanager
def taken_over(path: Path) -> Iterator[None]:
    """Hold a file that `hold` made and whose owner is no more; an OSError where it is alive, or another user's."""
    number = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        about = os.fstat(number)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "not one of ours", str(path))
        yield
    finally:
        os.close(number)


HELD = ".held"


@contextlib.contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """A temporary folder of this user's alone, deleted on leaving; those of dead processes are swept before."""
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if stat.S_ISDIR(os.lstat(left).st_mode) and fcntl is not None and os.stat(left / HELD).st_mtime == 0:
                with taken_over(left / HELD):
                    shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    held = hold(folder / HELD)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if held is not None:
            os.close(held)


def _sync(path: Path) -> None:
    """Have the disk hold what was written; folders cannot be synced on Windows, and some file systems refuse it."""
    if path.is_dir() and sys.platform == "win32":
        return
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError:
        if not path.is_dir():
            raise
    finally:
        os.close(number)


def write_bytes(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write bytes to `path`, atomically; returns the path."""
    try:
        with atomic(path) as sibling:
            sibling.write_bytes(data)
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror or error}") from None
    return Path(path)


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write text to `path` as UTF-8, atomically; returns the path.

    What UTF-8 lacks, such as a byte of a file's name that is in no encoding, is written as JSON does: \\udce4.
    """
    return write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_image(path: str | os.PathLike[str], array: np.ndarray[Any, Any], *, quality: int = 95) -> Path:
    """Write (h, w) or (h, w, 3), uint8 or floats in [0, 1], in the format of the suffix: .png, .jpg, .webp, .tif."""
    from PIL import Image

    kind = _SUFFIXES.get(Path(path).suffix.lower())
    if kind is None:
        raise InputError(f"path: expected a name that ends in {', '.join(_SUFFIXES)}, got {os.fspath(path)!r}")
    picture = Image.fromarray(as_uint8(np.asarray(array)))
    buffer = io.BytesIO()
    picture.save(buffer, kind, **({"quality": quality} if kind in ("JPEG", "WEBP") else {}))
    return write_bytes(path, buffer.getvalue())


def cache_folder() -> Path:
    """Where likewise keeps what it can make again: $LIKEWISE_CACHE, or the user's cache folder of the platform.

    The folder need not exist yet; `atomic` and the writers above make it.
    """
    if named := os.environ.get("LIKEWISE_CACHE"):
        return Path(named).expanduser().absolute()
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "likewise"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local")) / "likewise" / "Cache"
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (xdg if xdg.is_absolute() else home / ".cache") / "likewise"
