"""The pictures and files of a session: in a temporary folder that goes with the server, bounded in number and bytes.

A picture that was sent is kept as a working copy of at most SIDE pixels; a picture of the user's own folders stays
where it is, and only its name is known. Ids are random: who has not been given one cannot ask for it.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from likewise import media
from likewise.errors import FileError
from likewise.studio.asked import Gone

SIDE, THUMB = 1600, 256
"""The longest side of a picture as it is shown and worked on, and of its thumbnail."""
MOST_FILES, MOST_BYTES = 6000, 1 << 30
"""Files of a session, and bytes of them; the oldest unused go."""
MOST_NAMES = 20_000
"""Pictures of the user's folders that are known by an id."""

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
"""Of which a header is read; io reads the same."""

T = TypeVar("T")
RGB = NDArray[np.uint8]


def fresh() -> str:
    """An id that nobody can guess: 128 random bits."""
    return secrets.token_urlsafe(16)


class Recent(Generic[T]):
    """A few things by id; when there are too many, that which was not used for longest goes."""

    def __init__(self, most: int, what: str, dropped: Callable[[T], None] | None = None) -> None:
        self.most, self.what, self._dropped = most, what, dropped
        self._lock, self._items = threading.Lock(), OrderedDict[str, T]()

    def put(self, item: T, key: str | None = None) -> str:
        """Keep something; its id."""
        key = key or fresh()
        with self._lock:
            self._items[key] = item
            self._items.move_to_end(key)
            gone = [self._items.popitem(last=False)[1] for _ in range(len(self._items) - self.most)]
        for old in gone if self._dropped else ():
            self._dropped(old)  # type: ignore[misc]
        return key

    def get(self, key: str) -> T:
        """What is kept under an id; Gone where nothing is."""
        with self._lock:
            if key not in self._items:
                raise Gone(self.what)
            self._items.move_to_end(key)
            return self._items[key]

    def items(self) -> list[tuple[str, T]]:
        """What is kept, with the ids, that which was used last at the end."""
        with self._lock:
            return list(self._items.items())

    def __len__(self) -> int:
        return len(self._items)


@dataclass(frozen=True)
class Picture:
    """A picture by its id: its name, its own size, and the file that it is read from."""

    id: str
    name: str
    width: int
    height: int
    path: Path
    whole: bool = True

    def to_dict(self) -> dict[str, Any]:
        """As the page gets it."""
        base = f"api/pictures/{self.id}"
        sizes = {"width": self.width, "height": self.height}
        return {"id": self.id, "name": self.name, **sizes, "url": f"{base}/view", "thumb": f"{base}/thumb"}


class Store:
    """Everything that a session keeps."""

    def __init__(self, most_files: int = MOST_FILES, most_bytes: int = MOST_BYTES) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="likewise-studio-"))
        self.most_files, self.most_bytes = most_files, most_bytes
        self._lock = threading.Lock()
        self._sizes, self._total = OrderedDict[str, int](), 0
        self._pictures: Recent[Picture] = Recent(MOST_NAMES, "this picture")
        self._ids: Recent[str] = Recent(MOST_NAMES, "this picture")

    def close(self) -> None:
        """Remove the folder and all that is in it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def write(self, image: NDArray[Any], suffix: str = ".jpg", *, name: str | None = None) -> str:
        """Keep an image as a file; its name, which is what the page asks for."""
        name = f"{fresh()}{suffix}" if name is None else name
        path = self.folder / name
        media.write_image(path, image, quality=90)
        self._kept(name, path.stat().st_size)
        return name

    def file(self, name: str) -> Path:
        """The file of a name; Gone where there is none."""
        with self._lock:
            if name not in self._sizes:
                raise Gone("this file")
            self._sizes.move_to_end(name)
        return self.folder / name

    @property
    def total(self) -> int:
        """Bytes of the files that are kept."""
        return self._total

    def _kept(self, name: str, size: int) -> None:
        with self._lock:
            self._total += size - self._sizes.pop(name, 0)
            self._sizes[name] = size
            while len(self._sizes) > 1 and (len(self._sizes) > self.most_files or self._total > self.most_bytes):
                old, length = self._sizes.popitem(last=False)
                self._total -= length
                (self.folder / old).unlink(missing_ok=True)

    # ── pictures ──────────────────────────────────────────────────────────────────────────────────────────────────

    def keep(self, image: RGB, name: str, size: tuple[int, int] | None = None) -> Picture:
        """Keep a picture that was sent or made, at no more than SIDE pixels; without loss where it is small.

        `size` is its own width and height, where the array was decoded at a fraction of them.
        """
        width, height = size or (image.shape[1], image.shape[0])
        small = fitted(image, SIDE)
        key, suffix = fresh(), ".png" if small.shape[0] * small.shape[1] <= 640 * 640 else ".jpg"
        file = self.write(small, suffix, name=f"{key}{suffix}")
        self.write(fitted(small, THUMB), name=f"{key}-thumb.jpg")
        picture = Picture(key, name, width, height, self.folder / file)
        self._pictures.put(picture, key)
        return picture

    def sample(self, name: str, make: Callable[[], RGB]) -> Picture:
        """A picture that the studio itself brings: made when it is first asked for, or when it had to make room."""
        try:
            return self.picture(self._ids.get(f"sample {name}"))
        except Gone:
            picture = self.keep(make(), name)
            self._ids.put(picture.id, f"sample {name}")
            return picture

    def known(self, path: str | Path, name: str | None = None) -> Picture:
        """A picture of the user's own folders: the same id each time; nothing of it is decoded yet."""
        where = str(path)
        try:
            return self._pictures.get(self._ids.get(where))
        except Gone:
            width, height = size_of(path)
            picture = Picture(fresh(), name or Path(path).name, width, height, Path(path), whole=False)
            self._pictures.put(picture, picture.id)
            self._ids.put(picture.id, where)
            return picture

    def picture(self, key: str) -> Picture:
        """The picture of an id; Gone where there is none, or where its file had to make room."""
        picture = self._pictures.get(key)
        if picture.whole:
            self.file(picture.path.name)
        return picture

    def array(self, key: str, side: int = SIDE) -> RGB:
        """A picture (h, w, 3), its longest side at most `side`."""
        picture = self.picture(key)
        try:
            return fitted(media.read_array(picture.path, side=side), side)
        except FileError:
            if not picture.path.exists():
                raise Gone(picture.name) from None
            raise

    def shown(self, key: str, thumb: bool) -> Path:
        """The file that shows a picture, made when it is first asked for."""
        picture, name = self.picture(key), f"{key}-{'thumb' if thumb else 'view'}.jpg"
        if picture.whole and not thumb:
            return picture.path
        try:
            return self.file(name)
        except Gone:
            self.write(self.array(key, THUMB if thumb else SIDE), name=name)
            return self.file(name)


def fitted(image: RGB, side: int) -> RGB:
    """A picture with its longest side at most `side`, averaged over areas."""
    import cv2

    height, width = image.shape[:2]
    share = side / max(height, width)
    if share >= 1:
        return image
    size = max(1, round(share * width)), max(1, round(share * height))
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def size_of(path: str | Path) -> tuple[int, int]:
    """Width and height of a picture file as it is shown, from its header; 0, 0 where that cannot be read."""
    from PIL import Image

    if not media.is_image(path):
        return 0, 0
    try:
        with Image.open(path, formats=FORMATS) as picture:
            turned = picture.getexif().get(0x0112, 1) in (5, 6, 7, 8)
            return picture.size[::-1] if turned else picture.size
    except Exception:  # a damaged header can make a decoder raise anything
        return 0, 0
