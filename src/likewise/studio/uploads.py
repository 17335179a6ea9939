"""Files that a browser sends: written to disk as they come, counted on the way, judged by their content.

Nothing is decoded before the last byte has come and the header has said how many pixels there are.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request

from likewise import media
from likewise.errors import FileError, MissingExtra
from likewise.studio.asked import Refused
from likewise.studio.store import SIDE, Picture, Store, fitted, size_of

MOST_PICTURE, MOST_VIDEO = 40 << 20, 200 << 20
"""Bytes of a picture and of a video."""
MOST_PIXELS = 60_000_000
FRAMES, FRAME_SIDE = 24, 960
"""Frames that are taken of a video, and their longest side."""
DECODING = 60.0
"""Seconds after which the rest of a video is left alone."""
PATIENCE, LONGEST = 10.0, 300.0
"""Seconds without a byte, and in all, after which an upload is given up."""
GRACE, LEAST_RATE = 5.0, 4096
"""Seconds after which an upload must have brought so many bytes a second; slower ones hold a place for nothing."""
AT_ONCE = 40
"""Uploads that may be under way."""


class Arrivals:
    """Uploads under way, each in a file of its own in the session's folder."""

    def __init__(self, store: Store) -> None:
        self.store, self._under_way = store, 0

    @contextlib.asynccontextmanager
    async def received(self, request: Request, most: int) -> AsyncIterator[Path]:
        """The body of a request as a file, gone on leaving; 413 as soon as it is too long, 408 if it does not come."""
        if self._under_way >= AT_ONCE:
            raise Refused(503, f"{AT_ONCE} uploads are under way already; try again when one of them is done")
        self._under_way += 1
        number, path = tempfile.mkstemp(prefix="upload-", dir=self.store.folder)
        try:
            with os.fdopen(number, "wb") as file:
                await _copied(request, file.write, most)
            yield Path(path)
        finally:
            self._under_way -= 1
            Path(path).unlink(missing_ok=True)


async def _copied(request: Request, write: Callable[[bytes], Any], most: int) -> None:
    """Every chunk to `write`, the running count held below `most`."""
    too_long = Refused(413, f"the file is longer than {most >> 20} MB; make it smaller")
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > most:
        raise too_long
    stream, total, began = request.stream(), 0, time.monotonic()
    try:
        async with asyncio.timeout(LONGEST):
            while chunk := await asyncio.wait_for(_following(stream), PATIENCE):
                total += len(chunk)
                if total > most:
                    raise too_long
                _quick_enough(total, time.monotonic() - began)
                write(chunk)
    except TimeoutError:
        raise Refused(408, "the file did not come in time; send it again") from None


def _quick_enough(total: int, seconds: float) -> None:
    if seconds > GRACE and total < LEAST_RATE * seconds:
        raise TimeoutError


async def _following(stream: AsyncIterator[bytes]) -> bytes:
    """The next chunk that is not empty; empty at the end."""
    async for chunk in stream:
        if chunk:
            return chunk
    return b""


def picture_in(file: Path, name: str, store: Store) -> Picture:
    """The picture that a file holds, kept; 422 where it holds none, a damaged one, or one of too many pixels."""
    with _said_of(file, name):
        image = media.read_array(file, most_pixels=MOST_PIXELS, side=SIDE)
    width, height = size_of(file)
    return store.keep(image, name, (width, height) if width else None)


def frames_in(file: Path, name: str, store: Store) -> list[Picture]:
    """Evenly spaced frames of a video, kept: at most FRAMES."""
    kept: list[tuple[int, NDArray[np.uint8]]] = []
    step, until = 1, time.monotonic() + DECODING
    with _said_of(file, name):
        for i, frame in enumerate(media.frames(file, most_pixels=MOST_PIXELS)):
            if i % step == 0:
                kept.append((i, fitted(frame, FRAME_SIDE)))
            if time.monotonic() > until:
                break
            if len(kept) == 2 * FRAMES:  # twice as many as wanted: every other one goes
                kept, step = kept[::2], 2 * step
    chosen = np.unique(np.linspace(0, len(kept) - 1, min(FRAMES, len(kept))).round().astype(int))
    return [store.keep(kept[k][1], f"{name} #{kept[k][0]}") for k in chosen]


@contextlib.contextmanager
def _said_of(file: Path, name: str) -> Iterator[None]:
    """Errors speak of the name that the file was sent under, and are 422."""
    try:
        yield
    except MissingExtra as error:
        raise Refused(422, str(error)) from None
    except FileError as error:
        words = str(error).replace(str(file), name).replace(str(file.resolve()), name)
        raise Refused(422, words.replace("; raise most_pixels to read it", "; make it smaller")) from None


def name_of(request: Request) -> str:
    """The name that a file was sent under, without folders and control characters."""
    given = unquote(request.headers.get("x-name", ""), errors="replace").replace("\\", "/").rpartition("/")[2]
    plain = "".join(c for c in given if c.isprintable()).strip()
    return plain[:120] or "picture"
