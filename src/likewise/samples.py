"""Pictures that come with likewise: two photos of its own, and those that scikit-image and scikit-learn install.

names, photograph            the photographs themselves
roofs, archive               roofs by day, and made night, from two spots; a folder of places to find them in
pair, views                  a workshop by day and by night, turned; with the truth, where each pixel went
albums, scenes               albums of views of the photographs: two that share scenes, many of one scene
gallery, queries             places cut out of the photographs, and the same places in other light, turned, cut anew

What is drawn is drawn from the seed alone: the same seed, the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import cv2
import numpy as np
from jaxtyping import UInt8
from numpy.typing import NDArray

from likewise.errors import FileError, InputError
from likewise.media import load_arrays, read_array, write_image

Picture: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float64]

Folder: TypeAlias = str | os.PathLike[str]
Point: TypeAlias = tuple[float, float]

SCENES = {
    "cat": ("skimage.data", "chelsea.png"),
    "coffee": ("skimage.data", "coffee.png"),
    "flower": ("sklearn.datasets", "images/flower.jpg"),
    "temple": ("sklearn.datasets", "images/china.jpg"),
    "rocket": ("skimage.data", "rocket.jpg"),
    "portrait": ("skimage.data", "astronaut.png"),
    "galaxies": ("skimage.data", "hubble_deep_field.jpg"),
    "tissue": ("skimage.data", "ihc.png"),
}
"""Photographs in colour, a scene each: the package that brings it, and the file there."""

MORE = {
    "brick": ("skimage.data", "brick.png"),
    "cameraman": ("skimage.data", "camera.png"),
    "coins": ("skimage.data", "coins.png"),
    "grass": ("skimage.data", "grass.png"),
    "gravel": ("skimage.data", "gravel.png"),
    "moon": ("skimage.data", "moon.png"),
    "motorcycle": ("skimage.data", "motorcycle_left.png"),
    "retina": ("skimage.data", "retina.jpg"),
}
"""Further photographs; half of them are textures or nearly so."""

PHOTOS = {**SCENES, **MORE}

MONDAY = {"cat": 3, "coffee": 2, "flower": 2, "rocket": 1}
FRIDAY = {"cat": 2, "coffee": 2, "flower": 2, "temple": 2}
"""How many pictures of each scene stand in the two albums."""

ALBUMS, PICTURES = 3, 3
"""Albums a scene, and pictures an album, of `scenes`."""

PLACES, SIDE, EDGE = 6, 140, 160
"""Places of a photograph, at most; the side of one in pixels of the photograph, and of its picture."""

OTHER, APART = "motorcycle_right.png", "motorcycle_disp.npz"
"""The workshop from a camera beside, and how far apart each point lies in the two pictures (Middlebury 2014)."""

ROOFS = ("likewise", "photos/roofs-1.jpg"), ("likewise", "photos/roofs-2.jpg")
"""Roofs of Venice from two spots (VLFeat, BSD-2-Clause; photos/README.md)."""

COPIED = "motorcycle"
"""The photograph of which the place with the most to see lies in `archive` thrice."""

WIDTH, TURN, ZOOM = 320, 20.0, 0.9
"""The pair: its width in pixels; degrees and size by which the second camera is turned and zoomed."""


def names() -> tuple[str, ...]:
    """The names of the photographs."""
    return tuple(PHOTOS)


def photograph(name: str) -> UInt8[np.ndarray, "h w 3"]:
    """The photograph of that name, uint8 (h, w, 3)."""
    if name not in PHOTOS:
        raise InputError(f"name: expected one of {', '.join(PHOTOS)}, got {name!r}")
    return read_array(_installed(*PHOTOS[name]))


def _installed(package: str, file: str) -> Path:
    """Where a file lies that is installed with a package."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise FileError(f"{file}: comes with {package}, which is not installed; pip install scikit-image scikit-learn")
    return Path(spec.origin).parent / file


def _draw(seed: int, stream: int) -> np.random.Generator:
    """The generator of one kind of pictures: each kind has its own stream, so that none depends on another."""
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed: expected a whole number ≥ 0, got {seed!r}")
    return np.random.default_rng([seed, stream])


# ── a place by day and by night ───────────────────────────────────────────────────────────────────────────────────


def roofs(seed: int = 0) -> tuple[UInt8[np.ndarray, "h w 3"], UInt8[np.ndarray, "h w 3"]]:
    """Roofs by day; and made night, from a spot beside, the camera turned. Both photos are real, the night is ours.

    Parameters
    ----------
    seed : int
        Of the noise of the night.

    Returns
    -------
    (day, night) : arrays (478, 640, 3) of uint8

    Raises
    ------
    InputError
        If seed is no whole number ≥ 0.

    Examples
    --------
    >>> from likewise import samples
    >>> day, night = samples.roofs()
    >>> day.shape, day.mean() > 2 * night.mean()
    ((478, 640, 3), True)
    """
    day, beside = (read_array(_installed(*file)) for file in ROOFS)
    return day, dark(beside, _draw(seed, 6), glow=0.2, sky=(0.04, 0.055, 0.09))


def archive(folder: Folder, seed: int = 0) -> tuple[Path, Path]:
    """Write an archive, folder/photos: `gallery`, the roofs by day, copies of a place; and folder/night.jpg, a query.

    Parameters
    ----------
    folder : path
        Where to write.
    seed : int
        Of what is drawn.

    Returns
    -------
    (photos, night) : paths
        The folder to index, and the roofs made night, which are not in it.

    Raises
    ------
    InputError
        If seed is no whole number ≥ 0.

    Examples
    --------
    >>> import tempfile
    >>> from likewise import samples
    >>> with tempfile.TemporaryDirectory() as home:
    ...     photos, night = samples.archive(home)
    ...     sum(1 for _ in photos.rglob("*.jpg")), night.name
    (97, 'night.jpg')
    """
    photos, (day, night) = Path(folder) / "photos", roofs(seed)
    whole = max((f for f in gallery(photos, seed) if f.parent.name == COPIED), key=lambda f: f.stat().st_size)
    copied = read_array(whole)
    for name, copy in (("mirrored", copied[:, ::-1]), ("turned", np.rot90(copied))):
        write_image(whole.with_name(f"{name}.jpg"), np.ascontiguousarray(copy), quality=80)
    write_image(photos / "roofs" / "day.jpg", day, quality=92)
    return photos, write_image(Path(folder) / "night.jpg", night, quality=92)


# ── albums ────────────────────────────────────────────────────────────────────────────────────────────────────────


def albums(folder: Folder, seed: int = 0) -> tuple[list[Path], list[Path]]:
    """Write two albums that share three of their scenes, `monday` and `friday`; the files of each."""
    draw = _draw(seed, 1)
    one = album(Path(folder) / "monday", MONDAY, draw)
    return one, album(Path(folder) / "friday", FRIDAY, draw)


def scenes(folder: Folder, seed: int = 0) -> list[list[Path]]:
    """Write some albums of each scene, folder/scene/number; the files of each album."""
    draw = _draw(seed, 2)
    each = [(name, str(i + 1)) for name in SCENES for i in range(ALBUMS)]
    return [album(Path(folder) / name / number, {name: PICTURES}, draw) for name, number in each]


def album(folder: Path, contents: dict[str, int], draw: np.random.Generator) -> list[Path]:
    """Write so many views of each scene into a folder; the files, named scene-number.jpg."""
    return [
        write_image(folder / f"{name}-{i + 1}.jpg", view(photo, draw), quality=90)
        for name, count in contents.items()
        for photo in (photograph(name),)
        for i in range(count)
    ]


def view(photo: Picture, draw: np.random.Generator) -> Picture:
    """Another view of a scene: a square of 60 to 85 % of it, maybe mirrored, in other light, 240 pixels wide."""
    h, w = photo.shape[:2]
    side = int(min(h, w) * draw.uniform(0.6, 0.85))
    top, left = (int(draw.triangular(0, (n - side) / 2, n - side)) for n in (h, w))
    cut = photo[top : top + side, left : left + side]
    if draw.random() < 0.5:
        cut = cut[:, ::-1]
    small = cv2.resize(np.ascontiguousarray(cut), (240, 240), interpolation=cv2.INTER_AREA)
    tint = draw.uniform(0.65, 1.25) * draw.uniform(0.92, 1.08, size=3)
    return np.asarray(np.clip(np.rint(small * tint), 0, 255), dtype=np.uint8)


# ── places ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Query:
    """A picture of a place: `place` is what the gallery calls the place, `change` what was changed."""

    path: Path
    place: str
    change: str


@dataclass(frozen=True, eq=False)
class Place:
    """A place in a photograph: the name of its file, its picture, and a picture for each change."""

    name: str
    picture: Picture
    changed: dict[str, Picture]


def gallery(folder: Folder, seed: int = 0) -> list[Path]:
    """Write a picture of every place, folder/photograph/number.jpg; the files."""
    return [write_image(Path(folder) / p.name, p.picture, quality=92) for p in places(seed)]


def queries(folder: Folder, seed: int = 0) -> list[Query]:
    """Write a picture of every place for each change, folder/photograph/number-change.jpg; what each shows."""
    made = []
    for place in places(seed):
        stem = Path(folder) / Path(place.name).with_suffix("")
        for change, picture in place.changed.items():
            file = stem.with_name(f"{stem.name}-{change.replace(' ', '-')}.jpg")
            made.append(Query(write_image(file, picture, quality=92), place.name, change))
    return made


def places(seed: int = 0) -> Iterator[Place]:
    """The places of every photograph, one after another."""
    draw = _draw(seed, 5)
    for name in PHOTOS:
        photo = photograph(name)
        for number, centre in enumerate(spots(photo, draw), start=1):
            changed = {change: make(photo, centre, draw) for change, make in CHANGES.items()}
            yield Place(f"{name}/{number}.jpg", cut(photo, centre), changed)


def spots(photo: Picture, draw: np.random.Generator) -> list[Point]:
    """Centres of squares that do not overlap, spread over a photograph: PLACES of them, or all if there are fewer."""
    rows, columns = (n // SIDE for n in photo.shape[:2])
    high, wide = photo.shape[0] / rows, photo.shape[1] / columns
    every = [((c + 0.5) * wide, (r + 0.5) * high) for r in range(rows) for c in range(columns)]
    return [every[i] for i in sorted(draw.permutation(len(every))[:PLACES])]


def cut(photo: Picture, centre: Point, side: float = SIDE, turn: float = 0.0) -> Picture:
    """The square of a photograph around a point, turned by so many degrees; beyond its edge, a mirror."""
    matrix = np.asarray(cv2.getRotationMatrix2D(centre, turn, EDGE / side), dtype=np.float64)
    matrix[:, 2] += EDGE / 2 - np.asarray(centre)
    whole = cv2.warpAffine(photo, matrix, (EDGE, EDGE), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
    return np.asarray(whole, dtype=np.uint8)


def lit(photo: Picture, centre: Point, draw: np.random.Generator) -> Picture:
    """The same square, half as bright or half as bright again, of another tint, the light falling from one side."""
    across, down = np.meshgrid(*[np.linspace(-0.5, 0.5, EDGE)] * 2)
    angle = draw.uniform(0, 2 * np.pi)
    ramp = 1 + 0.8 * (np.cos(angle) * across + np.sin(angle) * down)
    strength = draw.uniform(0.3, 0.55) if draw.random() < 0.5 else draw.uniform(1.4, 1.8)
    light = strength * draw.uniform(0.8, 1.2, size=3) * ramp[..., None]
    return np.asarray(np.clip(np.rint(cut(photo, centre) * light), 0, 255), dtype=np.uint8)


def turned(photo: Picture, centre: Point, draw: np.random.Generator) -> Picture:
    """The square turned by 20 to 45 degrees, one way or the other."""
    return cut(photo, centre, turn=float(draw.choice([-1, 1]) * draw.uniform(20, 45)))


def shifted(photo: Picture, centre: Point, draw: np.random.Generator) -> Picture:
    """Another square: moved by up to a quarter of its side each way, 0.8 to 1.25 times as large."""
    x, y = (n + d * SIDE for n, d in zip(centre, draw.uniform(-0.25, 0.25, size=2), strict=True))
    return cut(photo, (x, y), side=SIDE * float(draw.uniform(0.8, 1.25)))


CHANGES: dict[str, Callable[[Any, Point, Any], Any]] = {
    "other light": lit,
    "turned": turned,
    "another crop": shifted,
}


# ── two views of one place ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class Views:
    """Two pictures (h, w, 3) of a place, where each pixel of the first lies in the second, and where that is known."""

    day: Picture
    night: Picture
    flow: Floats
    known: NDArray[np.bool_]


def pair(seed: int = 0) -> tuple[UInt8[np.ndarray, "h w 3"], UInt8[np.ndarray, "h w 3"]]:
    """A workshop by day; and by night, from a spot beside, the camera turned."""
    made = views(seed)
    return made.day, made.night


def views(seed: int = 0) -> Views:
    """The workshop by day from the left; from the right, turned, by the light of a lamp; and the truth."""
    files = _installed(*PHOTOS["motorcycle"]), _installed("skimage.data", OTHER)
    left, right = (_small(read_array(file)) for file in files)
    h, w = left.shape[:2]
    turn = np.vstack([cv2.getRotationMatrix2D(((w - 1) / 2, (h - 1) / 2), TURN, ZOOM), [0.0, 0.0, 1.0]])
    night = cv2.warpPerspective(dark(right, _draw(seed, 7)), turn, (w, h))
    flow, known = _truth(turn, (h, w))
    return Views(left, np.asarray(night, dtype=np.uint8), flow, known)


def dark(
    photo: Picture,
    draw: np.random.Generator,
    glow: float = 0.5,
    sky: tuple[float, float, float] = (0.012, 0.018, 0.03),
) -> Picture:
    """The same by night: one warm lamp, a little blue from outside, the noise of a sensor, in linear light."""
    h, w = photo.shape[:2]
    y, x = np.mgrid[:h, :w] / np.array([h, w]).reshape(2, 1, 1)
    lamp = 0.1 * glow + glow * np.exp(-((x - 0.62) ** 2 + (y - 0.35) ** 2) / 0.06)
    linear = (photo / 255.0) ** 2.2
    seen = linear * (lamp[..., None] * [1.0, 0.75, 0.45] + np.array(sky))
    noisy = np.clip(seen + draw.normal(0, 0.004, seen.shape), 0, 1) ** (1 / 2.2)
    return np.asarray(np.rint(255 * noisy), dtype=np.uint8)


def _small(photo: Picture) -> Picture:

    size = (WIDTH, round(photo.shape[0] * WIDTH / photo.shape[1]))
    return np.asarray(cv2.resize(photo, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def _truth(turn: Floats, size: tuple[int, int]) -> tuple[Floats, NDArray[np.bool_]]:
    """p ↦ turn (p − d, 0) as a flow, and where d is known and the point inside: d is what the cameras are apart."""
    d = _disparity(size)
    h, w = size
    y, x = np.mgrid[:h, :w].astype(np.float64)
    ends = np.stack([x - d, y, np.ones_like(x)], axis=2) @ turn.T
    ends = ends[..., :2] / ends[..., 2:]
    known = np.isfinite(d) & (x - d >= 0) & (ends >= 0).all(axis=2) & (ends <= [w - 1, h - 1]).all(axis=2)
    return np.where(known[..., None], ends - np.stack([x, y], axis=2), 0.0), known


def _disparity(size: tuple[int, int]) -> Floats:
    """How far left of its place in the left picture a point lies in the right one; NaN where it was not measured."""
    whole = load_arrays(_installed("skimage.data", APART))["arr_0"].astype(np.float64)
    near = cv2.resize(whole, size[::-1], interpolation=cv2.INTER_NEAREST) * size[1] / whole.shape[1]
    return np.where(np.isfinite(near), near, np.nan)
