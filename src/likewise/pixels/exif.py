"""What a camera wrote into a photo's EXIF about itself: its focal length, and where it stood."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from likewise import media
from likewise.errors import FileError

FILM = 36.0
"""The width of the film, in mm, that "focal length in 35 mm film" is told for."""
EARTH = 6_378_137.0
"""The radius of the earth at the equator, in metres."""


@dataclass(frozen=True)
class Shot:
    """The make of the camera, f over the longest side, and (latitude, longitude, altitude); None where not told."""

    make: str = ""
    focal: float | None = None
    place: tuple[float, float, float] | None = None


def shot(path: str | os.PathLike[str]) -> Shot:
    """The EXIF of a photo that io can read; whatever is missing or damaged counts as not told."""
    if not media.is_image(path):
        raise FileError(f"{path}: not a picture")
    try:
        with media.opened(path) as picture:
            exif = picture.getexif()
            details, gps = exif.get_ifd(0x8769), exif.get_ifd(0x8825)
            make = " ".join(str(exif.get(tag, "")).strip() for tag in (0x010F, 0x0110)).strip()
    except Exception:  # damaged EXIF can raise anything
        return Shot()
    return Shot(make, _focal(details.get(0xA405)), _place(gps))


def _focal(film: Any) -> float | None:
    """f₃₅ / 36 mm: the focal length as a share of the longest side."""
    try:
        value = float(film)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None
    return value / FILM if 5.0 <= value <= 2000.0 else None


def _place(gps: Any) -> tuple[float, float, float] | None:
    try:
        north, east = (
            (1.0 if str(gps[mark]) in "NE" else -1.0) * sum(float(v) / 60.0**k for k, v in enumerate(gps[tag][:3]))
            for mark, tag in ((1, 2), (3, 4))
        )
        height = float(gps.get(6, 0.0)) * (-1.0 if gps.get(5, b"\0") in (1, b"\1") else 1.0)
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None
    known = np.isfinite([north, east, height]).all() and abs(north) <= 90 and abs(east) <= 180 and (north or east)
    return (north, east, height) if known else None


def metres(places: list[tuple[float, float, float]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Places (n) as metres east, north and up (n, 3) of their mean; good to some parts in a thousand within 10 km."""
    table = np.array(places, dtype=np.float64).reshape(-1, 3)
    centre = table.mean(axis=0)
    turns = np.radians(table[:, :2] - centre[:2]) * EARTH
    east = turns[:, 1] * np.cos(np.radians(centre[0]))
    return np.column_stack([east, turns[:, 0], table[:, 2] - centre[2]])
