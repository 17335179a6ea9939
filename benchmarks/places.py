"""Places with known answers: photos of them, other photos of them, and thousands that show something else.

    python benchmarks/places.py OUT --photos FOLDER         places made from photos: another view and light of each

A place is a part of a photo. `gallery/` gets one picture of each place, and parts of the same photo that do not touch
it; `queries/` gets another picture of each: from another side (a homography: turned, nearer or farther, slanted), in
other light (darker or brighter, of another tint, falling from one side, noisy), saved as a JPEG of another quality.
A query's file has the name of the gallery's file that shows its place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import cv2
import numpy as np
from numpy.typing import NDArray

from likewise import media

Photo = NDArray[np.uint8]
Point = tuple[float, float]
Matrix = NDArray[np.float64]
SHOWN = 0.15
"""The share of a query's pixels that a picture must show to count as one of its place."""
SHARE, EDGE = 0.46, 480
"""The part of a photo's sides that a place takes, and the longest side of its picture in pixels."""


@dataclass(frozen=True)
class Query:
    """A picture of a place, the files of the gallery that show it, and where both come from.

    `seen` are files that show a little of what the query shows: neither right nor wrong.
    """

    path: Path
    right: frozenset[Path]
    source: str
    seen: frozenset[Path] = frozenset()


def made(photos: Iterable[Path], out: Path, *, seed: int, source: str, each: int = 1) -> list[Query]:
    """Queries for `each` places of every photo; the gallery gets all its four quarters."""
    found = []
    for number, file in enumerate(photos):
        draw = np.random.default_rng([seed, number])
        photo = media.read_array(file)
        corners = [_corner(photo, i) for i in draw.permutation(4)]
        rights = [
            media.write_image(_name(out, "gallery", source, number, i), cut(photo, corner), quality=92)
            for i, corner in enumerate(corners)
        ]
        for i in range(each):
            path = _name(out, "queries", source, number, i)
            shares = _asked(path, photo, corners[i], SHARE, draw, corners)
            right = {file for file, share in zip(rights, shares, strict=True) if share >= SHOWN}
            seen = {file for file, share in zip(rights, shares, strict=True) if 0 < share < SHOWN}
            found.append(Query(path, frozenset(right | {rights[i]}), source, frozenset(seen - {rights[i]})))
    return found


def whole(photos: Iterable[Path], out: Path, *, seed: int, source: str) -> list[Query]:
    """Photos too small for parts: nearly all of each in the gallery, and as a query."""
    found = []
    for number, file in enumerate(photos):
        draw = np.random.default_rng([seed, number])
        photo = media.read_array(file)
        centre, share = (photo.shape[1] / 2, photo.shape[0] / 2), 0.85
        right = media.write_image(_name(out, "gallery", source, number, 0), cut(photo, centre, share), quality=92)
        path = _name(out, "queries", source, number, 0)
        _asked(path, photo, centre, share, draw, [centre])
        found.append(Query(path, frozenset([right]), source))
    return found


def _name(out: Path, kind: str, source: str, number: int, part: int) -> Path:
    return out / kind / source / f"{number:04d}-{'abcd'[part]}.jpg"


def _asked(
    path: Path, photo: Photo, centre: Point, share: float, draw: np.random.Generator, places: Iterable[Point]
) -> list[float]:
    """Write another view of a place in another light; the share of its pixels that each of some places shows."""
    picture, to_photo = another_view(photo, centre, draw, share)
    media.write_image(path, lit(picture, draw), quality=int(draw.integers(60, 92)))
    x, y = np.meshgrid(*(np.linspace(0, n, 40) for n in picture.shape[1::-1]))
    p = np.stack([x.ravel(), y.ravel(), np.ones(x.size)]) * 1.0
    q = to_photo @ p
    half = np.array([[photo.shape[1]], [photo.shape[0]]]) * share / 2
    return [float((np.abs(q[:2] / q[2] - np.array(c)[:, None]) <= half).all(0).mean()) for c in places]


def _corner(photo: Photo, i: int) -> Point:
    """The centre of a quarter of a photo."""
    h, w = photo.shape[:2]
    return w * (0.25 + 0.5 * (i % 2)), h * (0.25 + 0.5 * (i // 2))


def _size(photo: Photo, share: float) -> tuple[int, int]:
    h, w = (share * n for n in photo.shape[:2])
    scale = min(1.0, EDGE / max(h, w))
    return round(h * scale), round(w * scale)


def cut(photo: Photo, centre: Point, share: float = SHARE) -> Photo:
    """The part of a photo around a point, as it is."""
    h, w = _size(photo, share)
    scale = photo.shape[0] * share / h
    small = cv2.resize(photo, None, fx=1 / scale, fy=1 / scale, interpolation=cv2.INTER_AREA)
    left, top = round(centre[0] / scale - w / 2), round(centre[1] / scale - h / 2)
    return np.ascontiguousarray(small[max(top, 0) : max(top, 0) + h, max(left, 0) : max(left, 0) + w])


def another_view(photo: Photo, centre: Point, draw: np.random.Generator, share: float) -> tuple[Photo, Matrix]:
    """The part of a photo around a point from another side, and the homography from its pixels to the photo's.

    Turned, nearer or farther, shifted and slanted; mirrored beyond the photo's edge.
    """
    h, w = _size(photo, share)
    scale = photo.shape[0] * share / h
    size = scale * np.exp(draw.uniform(np.log(0.7), np.log(1.4)))
    turn = np.radians(draw.uniform(-25, 25))
    shift = draw.uniform(-0.15, 0.15, 2) * (w, h)
    slant = draw.uniform(-0.55, 0.55, 2) / (w, h)
    to_centre = np.array([[1, 0, -w / 2 + shift[0]], [0, 1, -h / 2 + shift[1]], [0, 0, 1.0]])
    bend = np.array([[1, 0, 0], [0, 1, 0], [slant[0], slant[1], 1.0]])
    c, s = size * np.cos(turn), size * np.sin(turn)
    place = np.array([[c, -s, centre[0]], [s, c, centre[1]], [0, 0, 1.0]])
    to_photo = place @ bend @ to_centre
    soft = cv2.GaussianBlur(photo, (0, 0), 0.4 * size) if size > 1.2 else photo
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    picture = cv2.warpPerspective(soft, to_photo, (w, h), flags=flags, borderMode=cv2.BORDER_REFLECT_101)
    return np.asarray(picture), to_photo


def lit(photo: Photo, draw: np.random.Generator) -> Photo:
    """The same in other light: dusk or glare, a tint, a lamp on one side, and the noise of a small sensor."""
    h, w = photo.shape[:2]
    x = (photo / 255.0) ** 2.2
    strength = np.exp(draw.uniform(np.log(0.06), np.log(1.6)))
    angle = draw.uniform(0, 2 * np.pi)
    across, down = np.meshgrid(np.linspace(-0.5, 0.5, w), np.linspace(-0.5, 0.5, h))
    ramp = np.exp(draw.uniform(0, 1.6) * (np.cos(angle) * across + np.sin(angle) * down))
    tint = np.exp(draw.uniform(-0.25, 0.25, 3))
    y = np.clip(x * strength * ramp[..., None] * tint, 0, 1) ** (1 / 2.2)
    noisy = y + draw.normal(0, draw.uniform(0.003, 0.02), y.shape)
    return np.asarray(np.clip(np.rint(noisy * 255), 0, 255), dtype=np.uint8)


# ------------------------------------------------------------------------------------------------ real sequences


def oxford(data: Path, out: Path) -> list[Query]:
    """The first picture of each sequence in the gallery, the five others of that place as queries."""
    found = []
    for folder in sorted((data / "oxford").iterdir()):
        right = linked(folder / "1.jpg", out / "gallery" / "oxford" / f"{folder.name}.jpg")
        for i in range(2, 7):
            query = linked(folder / f"{i}.jpg", out / "queries" / "oxford" / f"{folder.name}-{i}.jpg")
            found.append(Query(query, frozenset([right]), "oxford"))
    return found


def pairs(data: Path, out: Path) -> list[Query]:
    """Two pictures each of two places: RubberWhale's frames, and the motorcycle from both cameras."""
    from importlib.util import find_spec

    spec = find_spec("skimage.data")
    shown = Path(str(spec.origin)).parent if spec is not None else Path()
    whale = data / "middlebury" / "RubberWhale"
    two = {
        "whale": (whale / "frame10.png", whale / "frame11.png"),
        "motorcycle": (shown / "motorcycle_left.png", shown / "motorcycle_right.png"),
    }
    found = []
    for name, (a, b) in two.items():
        right = linked(a, out / "gallery" / "pairs" / f"{name}{a.suffix}")
        found.append(Query(linked(b, out / "queries" / "pairs" / f"{name}{b.suffix}"), frozenset([right]), "pairs"))
    return found


def lund(data: Path, out: Path, common: Any, *, every: int = 4) -> list[Query]:
    """Every fourth photo of the street in the gallery, the others as queries.

    `common` (29, 29) is how many points of the reconstruction two photos share; a query whose photo shares at least
    30 points with none of the gallery is left out, and those that share 30 show its place.
    """
    files = sorted((data / "lund").glob("*.jpg"))
    kept = {i: linked(files[i], out / "gallery" / "lund" / files[i].name) for i in range(0, len(files), every)}
    found = []
    for i, file in enumerate(files):
        right = frozenset(path for j, path in kept.items() if common[i, j] >= 30)
        if i not in kept and right:
            found.append(Query(linked(file, out / "queries" / "lund" / file.name), right, "lund"))
    return found


def linked(source: Path, path: Path) -> Path:
    """A link to a picture; nothing is copied."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.symlink_to(source.resolve())
    return path


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--photos", required=True, type=click.Path(path_type=Path), help="a folder of photos")
@click.option("--seed", default=0, show_default=True)
def main(out: Path, photos: Path, seed: int) -> None:
    """Make places from photos."""
    found = made(media.images(photos), out, seed=seed, source="made")
    click.echo(f"{out}: {len(found)} places")


if __name__ == "__main__":
    main()
