"""The images of a session, and files that a browser sends.

Everything lies in a temporary folder that goes with the server, bounded in number and bytes. An image that was sent is
kept as a working copy of at most SIDE pixels; one of the user's own folders stays where it is, and only its name is
known. Ids are random: who has not been given one cannot ask for it. An upload is written to disk as it comes and
counted on the way; nothing is decoded before the last byte has come and the header has said how many pixels there are.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request

from likewise import bounded, media
from likewise.errors import FileError, MissingExtra, RequestError
from likewise.plot.style import fit
from likewise.studio.requests import not_found

SIDE, THUMB = 1600, 256
"""The longest side of an image as it is shown and worked on, and of its thumbnail."""
LOSSLESS = 640 * 640
"""Working copies of up to so many pixels are PNG: small images are tests and icons, whose pixels matter."""
MAX_FILES, MAX_BYTES = 6000, 1 << 30
"""Files of a session, and bytes of them; the least recently used go."""
MAX_LINKS = 20_000
"""Images of the user's folders that are known by an id."""
MAX_IMAGE, MAX_VIDEO = 40 << 20, 200 << 20
"""Bytes of an image and of a video that are sent."""
MAX_PIXELS = 60_000_000
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

T = TypeVar("T")
RGB = NDArray[np.uint8]


def new_id() -> str:
    """An id that nobody can guess: 128 random bits."""
    return secrets.token_urlsafe(16)


def evenly(items: Sequence[T], limit: int) -> list[T]:
    """All items, or `limit` of them, evenly spaced."""
    if len(items) <= limit:
        return list(items)
    return [items[i] for i in np.linspace(0, len(items) - 1, limit).round().astype(int)]


def written(folder: Path, write: Callable[[Path], Any]) -> Path:
    """A folder of samples that `write` has written to its end, now or before."""
    done = folder.with_suffix(".done")
    if not done.exists():
        write(folder)
        media.write_text(done, "every image is written\n")
    return folder


class Recent(Generic[T]):
    """A few things by id; when there are too many, the least recently used goes."""

    def __init__(self, limit: int, what: str) -> None:
        self.limit, self.what = limit, what
        self._lock, self._items = threading.Lock(), OrderedDict[str, T]()

    def put(self, item: T, key: str = "") -> str:
        """Keep something; its id."""
        key = key or new_id()
        with self._lock:
            self._items[key] = item
            self._items.move_to_end(key)
            while len(self._items) > self.limit:
                self._items.popitem(last=False)
        return key

    def find(self, key: str) -> T | None:
        """What is kept under an id; None where nothing is."""
        with self._lock:
            if key in self._items:
                self._items.move_to_end(key)
            return self._items.get(key)

    def get(self, key: str) -> T:
        """What is kept under an id; an error 404 where nothing is."""
        item = self.find(key)
        if item is None:
            raise not_found(self.what)
        return item


@dataclass(frozen=True)
class SessionImage:
    """An image by its id: its name, its own size, and the file that it is read from; `ours` if we wrote that file."""

    id: str
    name: str
    width: int
    height: int
    path: Path
    ours: bool = True

    def to_dict(self) -> dict[str, Any]:
        """As the page gets it."""
        base = f"api/pictures/{self.id}"
        size = {"width": self.width, "height": self.height}
        return {"id": self.id, "name": self.name, **size, "url": f"{base}/view", "thumb": f"{base}/thumb"}


class ImageStore:
    """Every image and file that a session keeps."""

    def __init__(self, max_files: int = MAX_FILES, max_bytes: int = MAX_BYTES) -> None:
        self._open = contextlib.ExitStack()
        self.folder = self._open.enter_context(media.scratch("likewise-studio-"))
        self.max_files, self.max_bytes, self.total, self.uploading = max_files, max_bytes, 0, 0
        self._lock, self._sizes = threading.Lock(), OrderedDict[str, int]()
        self._images: Recent[SessionImage] = Recent(MAX_LINKS, "this image")
        self._ids: Recent[str] = Recent(MAX_LINKS, "this image")

    def close(self) -> None:
        """Remove the folder and all that is in it."""
        self._open.close()

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def write(self, image: NDArray[Any], name: str) -> Path:
        """Write a file of this name, which says its format; the least recently used make room for it."""
        path = media.write_image(self.folder / name, image, quality=90)
        size = path.stat().st_size
        with self._lock:
            self.total += size - self._sizes.pop(name, 0)
            self._sizes[name] = size
            while len(self._sizes) > 1 and (len(self._sizes) > self.max_files or self.total > self.max_bytes):
                old, length = self._sizes.popitem(last=False)
                self.total -= length
                (self.folder / old).unlink(missing_ok=True)
        return path

    def publish(self, image: NDArray[Any], suffix: str = ".jpg") -> str:
        """Write an image and return the address at which the page can load it."""
        return f"api/files/{self.write(image, f'{new_id()}{suffix}').name}"

    def file(self, name: str) -> Path:
        """The file of a name that was written here; an error 404 where there is none."""
        with self._lock:
            if name not in self._sizes:
                raise not_found("this file")
            self._sizes.move_to_end(name)
        return self.folder / name

    # ── images ────────────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, image: RGB, name: str, size: tuple[int, int] | None = None) -> SessionImage:
        """Keep an image that was sent or made, at no more than SIDE pixels.

        `size` is its own width and height, where the array was decoded at a fraction of them.
        """
        width, height = size or (image.shape[1], image.shape[0])
        small, key = fit(image, SIDE), new_id()
        suffix = ".png" if small.shape[0] * small.shape[1] <= LOSSLESS else ".jpg"
        path = self.write(small, f"{key}{suffix}")
        self.write(fit(small, THUMB), f"{key}-thumb.jpg")
        added = SessionImage(key, name, width, height, path)
        self._images.put(added, key)
        return added

    def link(self, path: str | Path, name: str | None = None) -> SessionImage:
        """An image of the user's own folders: the same id each time; nothing of it is decoded yet."""
        known = self._images.find(self._ids.find(str(path)) or "")
        if known is None:
            known = SessionImage(new_id(), name or Path(path).name, *read_size(path), Path(path), ours=False)
            self._images.put(known, known.id)
            self._ids.put(known.id, str(path))
        return known

    def get(self, key: str) -> SessionImage:
        """The image of an id; an error 404 where there is none, or where its file had to make room."""
        image = self._images.get(key)
        if image.ours:
            self.file(image.path.name)
        return image

    def read(self, key: str, side: int = SIDE) -> RGB:
        """The pixels (h, w, 3) of an image, its longest side at most `side`."""
        image = self.get(key)
        try:
            return np.asarray(fit(media.read_array(image.path, side=side), side))
        except FileError:
            if not image.path.exists():
                raise not_found(image.name) from None
            raise

    def view(self, key: str, size: str) -> Path:
        """The file that shows an image at the size "thumb" or "view", made when it is first asked for."""
        if size not in ("thumb", "view"):
            raise not_found("this size of an image")
        image, name = self.get(key), f"{key}-{size}.jpg"
        if image.ours and size == "view":
            return image.path
        if not (self.folder / name).exists():
            self.write(self.read(key, THUMB if size == "thumb" else SIDE), name)
        return self.file(name)


def read_size(path: str | Path) -> tuple[int, int]:
    """Width and height of an image file as it is shown, from its header; 0, 0 where that cannot be read."""
    try:
        with media.opened(path) as image:
            turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
            return image.size[::-1] if turned else image.size
    except Exception:  # a damaged header can make a decoder raise anything
        return 0, 0


# ── uploads ───────────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.asynccontextmanager
async def receive(request: Request, store: ImageStore, limit: int) -> AsyncIterator[Path]:
    """The body of a request as a file, gone on leaving; 413 as soon as it is too long, 408 if it does not come."""
    if store.uploading >= AT_ONCE:
        raise RequestError(503, f"{AT_ONCE} uploads are under way already; try again when one of them is done")
    store.uploading += 1
    number, path = tempfile.mkstemp(prefix="upload-", dir=store.folder)
    try:
        with os.fdopen(number, "wb") as file:
            await copy(request, file.write, limit)
        yield Path(path)
    finally:
        store.uploading -= 1
        Path(path).unlink(missing_ok=True)


async def copy(request: Request, write: Callable[[bytes], Any], limit: int) -> None:
    """Write every chunk of a request, the running count held below `limit`."""
    too_long = RequestError(413, f"the file is longer than {limit >> 20} MB; make it smaller")
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > limit:
        raise too_long
    stream, total, began = aiter(request.stream()), 0, time.monotonic()
    try:
        async with asyncio.timeout(LONGEST):
            while (chunk := await asyncio.wait_for(anext(stream, None), PATIENCE)) is not None:
                total += len(chunk)
                if total > limit:
                    raise too_long
                seconds = time.monotonic() - began
                if seconds > GRACE and total < LEAST_RATE * seconds:
                    raise TimeoutError
                write(chunk)
    except TimeoutError:
        raise RequestError(408, "the file did not come in time; send it again") from None


@contextlib.asynccontextmanager
async def while_there(request: Request) -> AsyncIterator[None]:
    """Whatever is decoded within it ends when the client goes: nobody waits for it any more."""
    with bounded.cancellable() as cancel:

        async def follow() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            cancel()

        following = asyncio.create_task(follow())
        try:
            yield
        finally:
            following.cancel()


def add_image(file: Path, name: str, store: ImageStore) -> list[SessionImage]:
    """Keep the image that a file holds; 422 where it holds none, a damaged one, or one of too many pixels."""
    with _explain(file, name):
        image = media.read_array(file, most_pixels=MAX_PIXELS, side=SIDE)
    width, height = read_size(file)
    return [store.add(image, name, (width, height) if width else None)]


def add_frames(file: Path, name: str, store: ImageStore) -> list[SessionImage]:
    """Keep evenly spaced frames of a video: at most FRAMES."""
    kept: list[tuple[int, RGB]] = []
    step, until = 1, time.monotonic() + DECODING
    with _explain(file, name):
        for i, frame in enumerate(media.frames(file, most_pixels=MAX_PIXELS)):
            if i % step == 0:
                kept.append((i, fit(frame, FRAME_SIDE)))
            if time.monotonic() > until:
                break
            if len(kept) == 2 * FRAMES:  # twice as many as wanted: every other one goes
                kept, step = kept[::2], 2 * step
    return [store.add(frame, f"{name} #{i}") for i, frame in evenly(kept, FRAMES)]


@contextlib.contextmanager
def _explain(file: Path, name: str) -> Iterator[None]:
    """Errors speak of the name that the file was sent under, and are 422."""
    try:
        yield
    except (FileError, MissingExtra) as error:
        words = str(error).replace(str(file), name).replace(str(file.resolve()), name)
        raise RequestError(422, words.replace("; raise most_pixels to read it", "; make it smaller")) from None


def name_of(request: Request) -> str:
    """The name that a file was sent under, without folders and control characters."""
    given = unquote(request.headers.get("x-name", ""), errors="replace").replace("\\", "/").rpartition("/")[2]
    plain = "".join(c for c in given if c.isprintable()).strip()
    return plain[:120] or "image"
