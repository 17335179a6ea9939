"""A COLMAP model in plain arrays, by likewise's conventions: cameras, poses, points and who sees them.

K, points and centres have the first pixel at (0, 0), where COLMAP has it at (½, ½); X_camera = R X + t.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from likewise.errors import FileError
from likewise.pixels import robust
from likewise.pixels.exif import metres
from likewise.pixels.reconstructions import BinaryFile, Camera, View, cameras_of, views_of

Floats: TypeAlias = NDArray[np.float64]
Index: TypeAlias = NDArray[np.int64]

HALF = 0.5


@dataclass(frozen=True)
class Photo:
    """One registered photo: name, (h, w), K (3, 3), R (3, 3), t (3,), and its observed points (m, 2) with the numbers
    (m,) of what they show."""

    name: str
    size: tuple[int, int]
    K: Floats
    R: Floats
    t: Floats
    points: Floats
    shows: Index

    @property
    def centre(self) -> Floats:
        """Where the camera stands, −Rᵀ t."""
        return np.asarray(-self.R.T @ self.t)


@dataclass(frozen=True)
class Survey:
    """The photos of a model, by name, and its points (n, 3)."""

    photos: tuple[Photo, ...]
    points: Floats

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Survey:
        """A model without distortion from COLMAP's binary files, read here: damage can keep COLMAP busy forever."""
        path = Path(folder)
        if not all((path / f"{name}.bin").is_file() for name in ("cameras", "images", "points3D")):
            raise FileError(f"{path}: holds no COLMAP model (cameras.bin, images.bin or points3D.bin is missing)")
        cameras, views = cameras_of(path), views_of(path)
        ids, xyz = _points(path / "points3D.bin")
        numbers = {k: i for i, k in enumerate(ids)}
        return cls(tuple(_seen(path, view, cameras, numbers) for view in views), xyz)

    @classmethod
    def of(cls, model: Any) -> Survey:
        """A reconstruction of pycolmap."""
        numbers = {int(k): i for i, k in enumerate(model.points3D)}
        xyz = np.array([p.xyz for p in model.points3D.values()], dtype=np.float64).reshape(-1, 3)
        shot = [_photo(model.image(i), numbers) for i in model.reg_image_ids()]
        return cls(tuple(sorted(shot, key=lambda p: p.name)), xyz)

    @property
    def centres(self) -> Floats:
        """Where the cameras stand, (n, 3)."""
        return np.stack([p.centre for p in self.photos])

    @property
    def spread(self) -> float:
        """The root mean square distance of the cameras from their mean."""
        c = self.centres
        return float(np.sqrt(((c - c.mean(axis=0)) ** 2).sum(axis=1).mean()))


def _points(file: Path) -> tuple[list[int], Floats]:
    """Numbers and places of the points: id, x y z, colour, error, and who sees it, which the pictures tell, too."""
    ids, places = [], []
    with BinaryFile(file) as reader:
        for _ in range(reader.count(51)):
            number, *place = reader.take("<Q3d3Bd")[:4]
            reader.bytes(8 * reader.count(8))
            ids.append(int(number))
            places.append(place)
    xyz = np.array(places, dtype=np.float64).reshape(-1, 3)
    if not np.isfinite(xyz).all():
        raise FileError(f"{file}: a point is nowhere; it is damaged")
    return ids, xyz


def _seen(folder: Path, view: View, cameras: Mapping[int, Camera], numbers: Mapping[int, int]) -> Photo:
    if view.camera not in cameras:
        raise FileError(f"{folder}: {view.name} has a camera that is not listed")
    unknown = [k for k in view.ids.tolist() if k not in numbers]
    if unknown:
        raise FileError(f"{folder}: {view.name} shows point {unknown[0]}, which is not listed")
    camera = cameras[view.camera]
    shows = np.array([numbers[k] for k in view.ids.tolist()], dtype=np.int64)
    return Photo(view.name, camera.size, camera.K, view.R, view.t, view.points, shows)


def _photo(image: Any, numbers: Mapping[int, int]) -> Photo:
    pose = image.cam_from_world() if callable(image.cam_from_world) else image.cam_from_world
    seen = [(p.xy, numbers[int(p.point3D_id)]) for p in image.points2D if p.has_point3D()]
    K = np.array(image.camera.calibration_matrix(), dtype=np.float64)
    K[:2, 2] -= HALF
    return Photo(
        image.name,
        (int(image.camera.height), int(image.camera.width)),
        K,
        np.array(pose.rotation.matrix(), dtype=np.float64),
        np.array(pose.translation, dtype=np.float64),
        np.array([s[0] for s in seen], dtype=np.float64).reshape(-1, 2) - HALF,
        np.array([s[1] for s in seen], dtype=np.int64),
    )


# --------------------------------------------------------------------------------------------------------------- pairs


def pairs(survey: Survey, least: int) -> tuple[list[str], dict[str, NDArray[Any]], Floats]:
    """Names of photos, the fields of `views.Pairs`, and the epipolar errors in pixels of all common points."""
    rows, errors = [], [np.empty(0)]
    for i, a in enumerate(survey.photos):
        for j in range(i + 1, len(survey.photos)):
            b = survey.photos[j]
            both, at_a, at_b = np.intersect1d(a.shows, b.shows, return_indices=True)
            if len(both) < least:
                continue
            rows.append({"a": i, "b": j, **_pair(survey, a, b, both, at_a, at_b)})
            errors.append(robust.epipolar_errors(rows[-1]["F"], a.points[at_a], b.points[at_b]))
    names = [p.name for p in survey.photos]
    return names, _columns(rows), np.concatenate(errors)


def _pair(survey: Survey, a: Photo, b: Photo, both: Index, at_a: Index, at_b: Index) -> dict[str, Any]:
    R = b.R @ a.R.T
    t = b.t - R @ a.t
    x = survey.points[both]
    rays = [(p.centre - x) / np.linalg.norm(p.centre - x, axis=1, keepdims=True) for p in (a, b)]
    angles = np.degrees(np.arccos(np.clip(np.einsum("ni,ni->n", *rays), -1, 1)))
    return {
        "F": fundamental(a.K, b.K, R, t),
        "Ka": a.K,
        "Kb": b.K,
        "R": R,
        "t": t,
        "overlap": len(both),
        "angle": float(np.median(angles)),
        "centre_a": np.median(a.points[at_a], axis=0),
        "centre_b": np.median(b.points[at_b], axis=0),
    }


def fundamental(Ka: Floats, Kb: Floats, R: Floats, t: Floats) -> Floats:
    """F = Kb⁻ᵀ [t]ₓ R Ka⁻¹ of unit norm."""
    x, y, z = t
    cross = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    F = np.linalg.inv(Kb).T @ cross @ R @ np.linalg.inv(Ka)
    return np.asarray(F / np.linalg.norm(F))


def _columns(rows: list[dict[str, Any]]) -> dict[str, NDArray[Any]]:
    from likewise.pixels.views import FIELDS

    return {n: np.array([r[n] for r in rows], dtype=np.int64 if k == "i" else np.float64) for n, k in FIELDS.items()}


# ----------------------------------------------------------------------------------------------------------- alignment


def similarity(x: Floats, y: Floats) -> tuple[float, Floats, Floats]:
    """s, R, t that minimise Σ ‖s R x + t − y‖² (Umeyama 1991)."""
    mx, my = x.mean(axis=0), y.mean(axis=0)
    U, S, Vt = np.linalg.svd((y - my).T @ (x - mx) / len(x))
    sign = np.array([1.0, 1.0, np.sign(np.linalg.det(U) * np.linalg.det(Vt)) or 1.0])
    R = (U * sign) @ Vt
    s = float((S * sign).sum() / ((x - mx) ** 2).sum(axis=1).mean())
    return s, R, my - s * R @ mx


def metres_a_unit(survey: Survey, places: Mapping[str, Any]) -> dict[str, float] | None:
    """How long a unit of the model is, by the photos' GPS, and how far the two disagree, in metres; None without.

    A fit of the cameras' centres to their places; at least five are needed, and GPS errs by metres.
    """
    told = [p for p in survey.photos if places.get(p.name) is not None]
    if len(told) < 5:
        return None
    x, y = np.stack([p.centre for p in told]), metres([tuple(places[p.name]) for p in told])
    if np.ptp(y[:, :2], axis=0).max() < 1.0:
        return None
    s, R, t = similarity(x, y)
    apart = np.linalg.norm(s * x @ R.T + t - y, axis=1)
    return {"scale": s, "error": float(np.sqrt((apart**2).mean())), "photos": len(told)}
