"""Local features of a photo as an index keeps them, and the vector by which it is found.

A photo is looked at once, its longest side at 640 px: up to 1,000 points of XFeat, their descriptors in 4 bits a number
(36 kB). Between photos of the same places in other seasons and light these find a geometry as often as 8 bits do (1.0,
.92, .86 of 50 pairs each of campus, nordland and webcams; 8 bits .98, .92, .84), and far more often than half as many
points in 8 bits of the same size (.86, .84, .66).

The vector has two blocks of equal weight: the embedding, and a VLAD [Jégou et al. 2010] of the descriptors: the sum of
what each lacks to its nearest of 64 centres, each sum and then all of it at length 1, on 512 principal axes. Of both
the largest axes are half whitened: what all photos share says little about which are of one place.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from likewise import inputs
from likewise.errors import FileError
from likewise.images import embedding
from likewise.images.embedder import Skipped, in_threads
from likewise.nn.backbone import DECODED_SIDE
from likewise.nn.pretrained import DEFAULT
from likewise.pixels.features import Features, detect_as_is
from likewise.types import Image

Floats = NDArray[np.float32]
Wide = NDArray[np.float64]
Size = tuple[int, int]
Box = tuple[float, float, float, float]

SIDE, MOST = 640, 1000
"""The longest side at which a photo is looked at, in pixels, and the most points that are kept of it.

XFeat takes .03 CPU-s a photo there; at 480 px two thirds of that, and .63 instead of .70 of true pairs of campus have a
geometry with 500 points; at 800 px half as much again, for .65."""
STEPS = 7
"""A number of a descriptor is one of −7 … 7, the largest of each at ±7."""
FRACTION = 64
"""Points are kept to 1/64 px."""
THUMB = 16
"""Side of the grey thumbnail that is kept, too: turned and mirrored copies of whole photos are found by it."""
ALIKE = 0.85
"""The least cosine of two features that are each other's nearest and count as local similarity. Of .8, .85 and .9, with
60 queries each, the first hit is right in .98, .98, .92 (campus), .70, .78, .72 (nordland), .78, .78, .70 (webcams)."""
ROWS = 250
"""Features that are compared with all of another photo at once: a product of 4 MB is given back to the system each
time and faulted in again, which makes it four times slower."""
WEIGHTS = Path(__file__).parents[1] / "weights" / "search-places.safetensors"
HEAD = struct.Struct("<HHIIH")
BATCH = 16
"""Photos that are decoded at the same time."""


@dataclass(frozen=True, eq=False)
class Local:
    """The local features of a photo.

    Attributes
    ----------
    points : array (n, 2)
        Strongest first, in pixels of `size`, x then y.
    codes : array (n, 64) of int8
        Descriptors, −7 … 7.
    size, original : (h, w)
        Of the photo as it was looked at, and of its file.
    thumb : array (16, 16) of uint8
        The photo in grey.
    """

    points: Floats
    codes: NDArray[np.int8]
    size: Size
    original: Size
    thumb: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.points)

    @functools.cached_property
    def descriptors(self) -> Floats:
        """Unit rows (n, 64)."""
        return unit(self.codes.astype(np.float32))

    def features(self, points: Floats | None = None) -> Features:
        """As a matcher takes them, at other points where these are given."""
        at = self.points if points is None else points
        return Features(at, self.descriptors, np.arange(len(at), 0, -1), binary=False, name="xfeat")

    def to_bytes(self) -> bytes:
        """As an index keeps it."""
        head = HEAD.pack(*self.size, *self.original, len(self))
        nibbles = (self.codes + 8).astype(np.uint8)
        at = np.clip(np.rint(self.points * FRACTION), 0, 65_535).astype("<u2")
        return b"".join([head, self.thumb.tobytes(), at.tobytes(), (nibbles[:, ::2] << 4 | nibbles[:, 1::2]).tobytes()])

    @classmethod
    def from_bytes(cls, data: bytes, where: object = "features") -> Local:
        """What `to_bytes` gave; a stranger's bytes are refused where they do not fit."""
        thumb = THUMB * THUMB
        try:
            h, w, height, width, n = HEAD.unpack_from(data)
        except struct.error:
            raise FileError(f"{where}: damaged: local features of {len(data)} bytes") from None
        if n > MOST or not min(h, w, height, width) or len(data) != HEAD.size + thumb + n * 36:
            raise FileError(f"{where}: damaged: {len(data)} bytes are not the local features of {n} points")
        grey, at, packed = (
            np.frombuffer(data, kind, count, HEAD.size + start)
            for kind, count, start in ((np.uint8, thumb, 0), ("<u2", 2 * n, thumb), (np.uint8, 32 * n, thumb + 4 * n))
        )
        codes = np.stack([packed >> 4, packed & 15], -1).reshape(n, 64).astype(np.int8) - np.int8(8)
        points = np.minimum(at.reshape(n, 2).astype(np.float32) / FRACTION, (w - 1, h - 1)).astype(np.float32)
        return cls(points, codes, (h, w), (height, width), grey.reshape(THUMB, THUMB))


def extract(image: Image, *, turn: int = 0, mirror: bool = False, scale: float = 1.0) -> Local:
    """The local features of a photo, remembered by it; of it turned by `turn` · 90° to the left, mirrored or scaled.

    Points are at their places in the photo as it is, at the size that it has at scale 1.
    """

    def compute() -> Local:
        plain = image.reduced(DECODED_SIDE) if scale <= 1 else image.pixels
        size = _fitted(plain.shape[:2], SIDE)
        work = _fitted(plain.shape[:2], round(SIDE * scale))
        shown = _resized(plain, work)
        seen = np.rot90(shown[:, ::-1] if mirror else shown, turn)
        pixels = torch.from_numpy(np.ascontiguousarray(np.moveaxis(seen, -1, 0))).float() / 255
        some = detect_as_is(pixels, "xfeat", MOST)
        points = upright(some.points, work, turn, mirror)
        points = (points + 0.5) * (np.array(size[::-1]) / np.array(work[::-1])) - 0.5
        top = np.maximum(np.abs(some.descriptors).max(axis=1, keepdims=True), 1e-9)
        codes = np.rint(some.descriptors * (STEPS / top)).astype(np.int8)
        inside = np.clip(np.rint(points * FRACTION) / FRACTION, 0, np.array(size[::-1]) - 1).astype(np.float32)
        grey = np.asarray(cv2.cvtColor(_resized(plain, (THUMB, THUMB)), cv2.COLOR_RGB2GRAY), np.uint8)
        return Local(inside, codes, size, image.original_size, grey)

    kept: Local = image.remember(("local", turn % 4, mirror, scale), compute)
    return kept


def upright(points: NDArray[Any], size: Size, turn: int, mirror: bool) -> NDArray[Any]:
    """Where points of an image (h, w) that was mirrored, then turned by `turn` · 90° to the left, are in it."""
    (h, w), x, y = size, points[:, 0], points[:, 1]
    x, y = [(x, y), (w - 1 - y, x), (w - 1 - x, h - 1 - y), (y, h - 1 - x)][turn % 4]
    return np.column_stack([w - 1 - x if mirror else x, y])


def _fitted(size: Sequence[int], side: int) -> Size:
    factor = side / max(size)
    return max(8, round(size[0] * factor)), max(8, round(size[1] * factor))


def _resized(image: NDArray[np.uint8], size: Size) -> NDArray[np.uint8]:
    if image.shape[:2] == size:
        return image
    smaller = size[0] < image.shape[0]
    return np.asarray(
        cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA if smaller else cv2.INTER_LINEAR), np.uint8
    )


def alike_pairs(a: Local, b: Local, most: int = MOST) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which features are each other's nearest, and alike, of the strongest `most` of both: places in a and in b."""
    one, two = (x.descriptors if most >= MOST else unit(x.codes[:most].astype(np.float32)) for x in (a, b))
    places, cosines = [np.empty((2, 0), np.int64)], [np.empty(0, np.float32)]
    for start in range(0, len(one), ROWS):
        # torch's product, as NumPy's starts threads of its own in each of ours
        similar = torch.mm(torch.from_numpy(one[start : start + ROWS]), torch.from_numpy(two).T).numpy()
        rows = np.flatnonzero(similar.max(axis=1, initial=-1) >= ALIKE)
        i, j = np.nonzero(similar[rows] >= ALIKE)
        places.append(np.array([rows[i] + start, j]))
        cosines.append(similar[rows[i], j])
    i, j = np.concatenate(places, axis=1)
    order = np.argsort(-np.concatenate(cosines), kind="stable")[::-1]  # of what is written twice the last stays
    there, back = np.full(len(one), -1), np.full(len(two), -1)
    there[i[order]], back[j[order]] = j[order], i[order]
    i = np.unique(i)
    i = i[back[there[i]] == i]
    return i, there[i]


def alike(a: Local, b: Local) -> int:
    """How many features are each other's nearest, and alike: what two photos have in common, in 1 to 2 CPU-ms."""
    return len(alike_pairs(a, b)[0])


# ── the vector ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class Projection:
    """Centres (64, 64) and axes of the VLAD, and the axes of the default embedding that are half whitened."""

    centres: Floats
    mean: Floats
    axes: Floats
    embedding_mean: Floats
    embedding_axes: Floats
    gains: Floats

    @property
    def dim(self) -> int:
        """Numbers of the projected VLAD."""
        return len(self.axes)

    def project(self, vlads: Floats) -> Floats:
        """Unit rows of VLADs (n, 4096); one that is zero stays zero."""
        # one by one: of a larger product the last bit depends on its size, and equal files must have equal vectors
        return unit(np.stack([self.axes @ (row - self.mean) if row.any() else np.zeros(self.dim) for row in vlads]))

    def whiten(self, embeddings: Floats) -> Floats:
        """Unit rows of default embeddings, the largest axes half whitened."""
        rows = []
        for x in embeddings - self.embedding_mean:
            rows.append(x + ((self.embedding_axes @ x) * (self.gains - 1)) @ self.embedding_axes)
        return unit(np.stack(rows))

    def embeddings(self, whitened: Floats) -> Wide:
        """The default embeddings, of length 1, of which `whiten` made these rows."""
        axes, mean = self.embedding_axes.astype(np.float64), self.embedding_mean.astype(np.float64)
        rows = np.linalg.solve(np.eye(axes.shape[1]) + (axes.T * (self.gains - 1)) @ axes, whitened.T).T
        # how long x − mean was is not kept, but that x has length 1: the positive root of |mean + s · row|² = 1
        square, along = (rows**2).sum(axis=1), rows @ mean
        scale = (np.sqrt(along**2 + square * (1 - mean @ mean)) - along) / square
        return np.asarray(mean + scale[:, None] * rows)


@functools.cache
def projection() -> Projection:
    """What ships: weights/search-places.md says what it was fitted on."""
    kept = load_file(WEIGHTS)
    axes = {name: kept[name].astype(np.float32) * kept[f"{name}_scale"] for name in ("axes", "embedding_axes")}
    plain = {name: kept[name].astype(np.float32) for name in ("centres", "mean", "embedding_mean", "gains")}
    return Projection(**plain, **axes)


def unit(rows: NDArray[Any]) -> Floats:
    """Rows of length 1; one that is zero stays zero."""
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-9), np.float32)


def vlad(photo: Local, centres: Floats, box: Box | None = None) -> Floats:
    """The VLAD of a photo, or of a part of it (left, top, right, bottom in shares of its sides)."""
    rows = photo.descriptors
    if box is not None:
        at = (photo.points + 0.5) / np.array(photo.size[::-1])
        rows = rows[((at >= box[:2]) & (at <= box[2:])).all(axis=1)]
    sums = np.zeros(centres.shape, np.float32)
    nearest = (rows @ centres.T - (centres**2).sum(axis=1) / 2).argmax(axis=1)
    np.add.at(sums, nearest, rows - centres[nearest])
    return unit(unit(sums).reshape(-1))


def joined(embeddings: Floats, vlads: Floats, model: str) -> Floats:
    """The vectors of photos, of length 1: embedding and VLAD, each at √½; in 16 bits, as an index keeps them."""
    p = projection()
    known = model == DEFAULT and embeddings.shape[1] == len(p.embedding_mean)
    both = [p.whiten(embeddings) if known else unit(embeddings), p.project(vlads)]
    return np.asarray(unit(np.concatenate(both, axis=1)).astype(np.float16), np.float32)


# ── photos ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Described(NamedTuple):
    """What an index keeps of photos: vectors and features of those that can be read, their places, and the others."""

    rows: Floats
    features: list[Local]
    kept: list[int]
    skipped: list[Skipped]


def describe(model: Any, items: Sequence[Any], advance: Callable[[], None] | None = None) -> Described:
    """Vector and local features of each photo, from one decoding."""
    rows, features, kept, skipped = list[Floats](), list[Local](), list[int](), list[Skipped]()
    for start in range(0, len(items), BATCH):
        images = [inputs.image(item, where=f"image {i}") for i, item in enumerate(items[start : start + BATCH], start)]
        made = embedding.embed_images(model, images, advance=advance)
        skipped += [Skipped(start + s.index, s.name, s.reason) for s in made.skipped]
        readable = [images[i] for i in made.kept]
        some = in_threads(extract, readable)
        if some:
            vlads = np.stack([vlad(one, projection().centres) for one in some])
            rows.append(joined(made.rows, vlads, embedding.model_name(model)))
        features += some
        kept += [start + i for i in made.kept]
    dim = rows[0].shape[1] if rows else 0
    return Described(np.concatenate(rows) if rows else np.empty((0, dim), np.float32), features, kept, skipped)
