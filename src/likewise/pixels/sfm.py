"""From a folder of photos to pairs with fundamental matrices, by structure from motion (COLMAP through pycolmap).

This is LIFE's own supervision: no flow is known, but where a point may go. Photos are decoded by likewise's reader,
made upright and small, and handed to COLMAP as files of our own. COLMAP puts the centre of the first pixel at (½, ½);
everything that leaves this module has it at (0, 0).
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import cv2
import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from likewise import media
from likewise.errors import FileError, InputError, LikewiseError, MissingExtra
from likewise.papers.life.layouts import BinaryFile, Camera, View, cameras_of, views_of
from likewise.pixels import robust
from likewise.store import run as runs

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


Size: TypeAlias = tuple[int, int]

FIELDS = {"a": "i", "b": "i", "F": "f", "Ka": "f", "Kb": "f", "R": "f", "t": "f", "overlap": "i", "angle": "f",
          "centre_a": "f", "centre_b": "f"}  # fmt: skip
KEPT = 256
"""Decoded photos that stay in memory."""


@dataclass(frozen=True)
class Views:
    """Pictures a, b (n, 3, h, w) in [0, 1] and F (n, 3, 3) float64 of unit norm with [y, 1] F [x, 1]ᵀ = 0."""

    a: Float[Tensor, "n 3 h w"]
    b: Float[Tensor, "n 3 h w"]
    F: Float[Tensor, "n 3 3"]


class Pairs:
    """Pairs of undistorted photos in a folder that `reconstruct` made.

    names[a[k]] and names[b[k]] are the photos of pair k; F, Ka, Kb, R, t (X_b = R X_a + t) are for their full size;
    overlap (k,) counts the points of the place that both show, angle (k,) is the median angle in degrees under which
    these see the two cameras; centre_a, centre_b (k, 2) are the medians of these points in the photos.
    """

    def __init__(self, folder: str | os.PathLike[str], names: Sequence[str], arrays: dict[str, NDArray[Any]]) -> None:
        self.folder, self.names = Path(folder), tuple(names)
        _check_pairs(arrays, len(self.names), str(self.folder))
        self.arrays = arrays
        self._photos: OrderedDict[int, NDArray[np.uint8]] = OrderedDict()

    @classmethod
    def open(cls, out: str | os.PathLike[str]) -> Pairs:
        """The pairs in a folder."""
        arrays = media.load_arrays(Path(out) / "pairs.npz")
        names = arrays.pop("names", np.empty(0, dtype="U1"))
        if names.ndim != 1 or names.dtype.kind != "U" or not len(names):
            raise FileError(f"{out}/pairs.npz: holds no names of photos")
        if any(Path(n).name != n or n.startswith(".") for n in names.tolist()):
            raise FileError(f"{out}/pairs.npz: a name leads out of the folder")
        return cls(out, names.tolist(), arrays)

    def __len__(self) -> int:
        return len(self.arrays["F"])

    def __repr__(self) -> str:
        return f"Pairs({len(self)} of {len(self.names)} photos in {self.folder})"

    def path(self, photo: int) -> Path:
        """The file of a photo by its number."""
        return self.folder / "images" / self.names[photo]

    def __call__(self, n: int, size: Size, seed: int | Sequence[int]) -> Views:
        """The same as `views`."""
        return self.views(n, size, seed)

    def views(self, n: int, size: Size, seed: int | Sequence[int]) -> Views:
        """n random pairs, half of them the other way round, cut to the proportions of `size` (h, w) around what both
        show, and resized to it; a function of the seed alone. F goes along by the half-pixel rule."""
        if n < 1 or len(size) != 2 or min(size) < 8:
            raise InputError(f"n, size: expected n ≥ 1 and (h, w) of 8 px at least, got {n} and {tuple(size)}")
        rng = np.random.default_rng(seed if isinstance(seed, int) else list(seed))
        made = [self._view(int(k), bool(turn), size) for k, turn in zip(*self._draw(rng, n), strict=True)]
        pictures = [np.stack([m[i] for m in made]).transpose(0, 3, 1, 2) for i in range(2)]
        a, b = (torch.from_numpy(np.ascontiguousarray(p)).float().div_(255) for p in pictures)
        return Views(a, b, torch.from_numpy(np.stack([m[2] for m in made])))

    def _draw(self, rng: np.random.Generator, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return rng.integers(len(self), size=n), rng.integers(2, size=n)

    def _view(self, k: int, turned: bool, size: Size) -> tuple[NDArray[np.uint8], NDArray[np.uint8], Floats]:
        ends = ("b", "a") if turned else ("a", "b")
        F = self.arrays["F"][k].T if turned else self.arrays["F"][k]
        cut = [_window(self.photo(int(self.arrays[e][k])), self.arrays[f"centre_{e}"][k], size) for e in ends]
        (a, Sa), (b, Sb) = cut
        moved = np.linalg.inv(Sb).T @ F @ np.linalg.inv(Sa)
        return a, b, moved / np.linalg.norm(moved)

    def photo(self, number: int) -> NDArray[np.uint8]:
        """A photo (h, w, 3) by its number, the last few kept in memory."""
        if number not in self._photos:
            self._photos[number] = media.read_array(self.path(number))
            if len(self._photos) > KEPT:
                self._photos.popitem(last=False)
        self._photos.move_to_end(number)
        return self._photos[number]


def _window(photo: NDArray[np.uint8], centre: Floats, size: Size) -> tuple[NDArray[np.uint8], Floats]:
    """The largest piece with the proportions of `size`, as near to `centre` as the frame allows, resized, and the map
    p ↦ (p − corner + ½) s − ½ of points as a matrix (3, 3)."""
    whole = photo.shape[:2]
    share = min(whole[0] / size[0], whole[1] / size[1])
    h, w = (min(m, max(1, round(share * n))) for n, m in zip(size, whole, strict=True))
    left, top = (
        int(np.clip(round(c - n / 2), 0, m - n)) for c, n, m in ((centre[0], w, whole[1]), (centre[1], h, whole[0]))
    )
    shrinking = h >= size[0]
    piece = cv2.resize(
        photo[top : top + h, left : left + w],
        (size[1], size[0]),
        interpolation=cv2.INTER_AREA if shrinking else cv2.INTER_LINEAR,
    )
    sx, sy = size[1] / w, size[0] / h
    rows = [[sx, 0.0, (0.5 - left) * sx - 0.5], [0.0, sy, (0.5 - top) * sy - 0.5], [0.0, 0.0, 1.0]]
    return np.asarray(piece), np.array(rows)


def _check_pairs(arrays: dict[str, NDArray[Any]], photos: int, where: str) -> None:
    """A FileError unless every field is there, as long as F, finite, and names photos that exist."""
    missing = set(FIELDS) - set(arrays)
    if missing:
        raise FileError(f"{where}: its pairs lack {', '.join(sorted(missing))}")
    k = len(arrays["F"])
    shapes = {"F": (3, 3), "Ka": (3, 3), "Kb": (3, 3), "R": (3, 3), "t": (3,), "centre_a": (2,), "centre_b": (2,)}
    for name, kind in FIELDS.items():
        array = arrays[name]
        if array.shape != (k, *shapes.get(name, ())) or array.dtype.kind not in kind or not np.isfinite(array).all():
            raise FileError(f"{where}: {name} of its pairs is damaged ({array.dtype} {array.shape})")
    if k == 0:
        raise FileError(f"{where}: holds no pair of photos that show the same points")
    ends = np.concatenate([arrays["a"], arrays["b"]])
    if ends.min() < 0 or ends.max() >= photos:
        raise FileError(f"{where}: a pair names a photo that is not there")


Report: TypeAlias = Callable[[str], None]
STEPS = ("photos", "features", "matches", "model", "undistorted", "pairs")
FOCAL = 1.2
"""The focal length of a camera of which nothing is known, over the longest side, as COLMAP guesses it."""
WAYS = ("sideways", "ahead", "ahead, cameras fixed", "ahead, cameras fixed, points of two photos")
"""How mapping is tried, in this order; the last two only where EXIF tells focal lengths."""
STRAY = 0.5
"""A coefficient of radial distortion beyond this is no lens."""
ENOUGH = 0.8
"""The share of photos with which a model is taken without trying another way."""
LEAST = 3
"""Fewer registered photos than this are no reconstruction."""


@dataclass(frozen=True)
class Settings:
    """What a reconstruction depends on; a folder is gone on with only under the same settings."""

    photos: str
    size: int
    matcher: str
    camera: str
    features: int
    overlap: int
    seed: int


def reconstruct(
    photos: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    size: int = 1000,
    matcher: Literal["exhaustive", "sequential"] = "exhaustive",
    camera: Literal["auto", "single", "each"] = "auto",
    features: int = 4096,
    overlap: int = 30,
    seed: int = 0,
    threads: int = -1,
    report: Report | None = None,
) -> Pairs:
    """Structure from motion of a folder of photos into a folder of pairs with F, which is returned.

    `size` is the longest side, `features` the most a photo; "sequential" is for the frames of a walk. `camera` says who
    shares intrinsics: "auto" (photos of one make, focal length and size), "single", or "each" has its own. Pairs show
    `overlap` common points at least. In `out`: images/ (undistorted), model/ (COLMAP's binary files, for them),
    pairs.npz, summary.json, and work/ with what the steps need. Steps that are finished are kept when it is called
    again. With one thread the result is a function of the seed; with more, COLMAP's sums may be ordered differently.
    """
    settings = Settings(os.path.abspath(photos), size, matcher, camera, features, overlap, seed)
    _check(settings)
    job = _Job(Path(out), settings, _pycolmap(), threads, report or _silent)
    runs.Run.create(job.out, vars(settings), seed=seed, resume=True)
    with job.quiet():
        for name in STEPS:
            job.step(name)
    return Pairs.open(job.out)


class _Job:
    """The steps, each of which leaves a marker when it is finished."""

    def __init__(self, out: Path, settings: Settings, pycolmap: Any, threads: int, report: Report) -> None:
        self.out, self.settings, self.pycolmap, self.threads, self.report = out, settings, pycolmap, threads, report
        self.work = out / "work"
        self.database = self.work / "database.db"
        self.results: dict[str, dict[str, Any]] = {}

    def step(self, name: str) -> None:
        """Do a step, or take its result from where an earlier call left it."""
        marker = self.work / f"{name}.json"
        if marker.exists():
            self.results[name] = runs.read_json(marker)
            self.report(f"{name}: as it was ({self.results[name]['line']})")
            return
        started = time.perf_counter()
        found = getattr(self, f"_{name}")()
        found["seconds"] = round(time.perf_counter() - started, 2)
        self.results[name] = found
        media.write_text(marker, json.dumps(found, ensure_ascii=False, indent=2, allow_nan=False) + "\n")
        self.report(f"{name}: {found['line']} ({found['seconds']:.0f} s)")

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """COLMAP writes what it does to stderr; only errors are let through, and the setting is put back."""
        log = self.pycolmap.logging
        before, log.minloglevel = log.minloglevel, int(log.ERROR)
        try:
            yield
        finally:
            log.minloglevel = before

    # ── photos ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _photos(self) -> dict[str, Any]:
        """Upright copies with the longest side at `size`, under numbered names, and what EXIF tells of each."""
        paths = media.images(self.settings.photos)
        kept: list[dict[str, Any]] = []
        skipped: list[str] = []
        for path in paths:
            try:
                kept.append(self._copied(path, len(kept)))
            except FileError as error:
                skipped.append(str(error))
        if len(kept) < 2:
            why = f"; {skipped[0]}" if skipped else ""
            raise InputError(f"photos: {self.settings.photos} holds {len(kept)} photos that can be read, 2 needed{why}")
        return {"line": f"{len(kept)} read, {len(skipped)} unreadable", "photos": kept, "skipped": skipped}

    def _copied(self, path: Path, number: int) -> dict[str, Any]:
        told = shot(path)
        array = shrunk(media.read_array(path, side=self.settings.size), self.settings.size)
        name = f"{number:04d}_{''.join(c if c.isalnum() or c in '-_' else '_' for c in path.stem)[:60]}.jpg"
        media.write_image(self.work / "photos" / name, array, quality=97)
        where = path.relative_to(self.settings.photos).as_posix()
        return {"name": name, "from": where, "size": list(array.shape[:2]), **vars(told)}

    # ── features and matches ──────────────────────────────────────────────────────────────────────────────────────

    def _features(self) -> dict[str, Any]:
        """COLMAP's SIFT of every photo, one call for each camera that photos share."""
        self.database.unlink(missing_ok=True)
        for focal, size, names in self._cameras():
            self._extract(names, focal, size)
        counts = self._counted()
        if not counts or max(counts) == 0:
            raise LikewiseError(f"photos: no features in any of the {len(counts)} photos; they are blank or blurred")
        return {"line": f"{int(np.median(counts))} a photo in the median", "counts": counts}

    def _cameras(self) -> list[tuple[float | None, tuple[int, int], list[str]]]:
        """Focal length (or None), size and photos of each camera that photos share."""
        groups: dict[Any, list[dict[str, Any]]] = {}
        for i, p in enumerate(self.results["photos"]["photos"]):
            told = (p["make"], p["focal"], tuple(p["size"]))
            groups.setdefault({"auto": told, "single": 0, "each": i}[self.settings.camera], []).append(p)
        return [_camera(photos) for photos in groups.values()]

    def _extract(self, names: list[str], focal: float | None, size: tuple[int, int]) -> None:
        reader = self.pycolmap.ImageReaderOptions()
        reader.camera_model = "SIMPLE_RADIAL"
        if focal is not None:
            reader.camera_params = f"{focal * max(size)},{size[1] / 2},{size[0] / 2},0"
        options = self.pycolmap.FeatureExtractionOptions()
        options.num_threads, options.max_image_size = self.threads, self.settings.size
        options.sift.max_num_features = self.settings.features
        mode = self.pycolmap.CameraMode.SINGLE
        self.pycolmap.extract_features(
            self.database, self.work / "photos", names, mode, reader, options, self.pycolmap.Device.cpu
        )

    def _counted(self) -> list[int]:
        with opened(self.pycolmap, self.database) as db:
            return [int(db.num_keypoints_for_image(i.image_id)) for i in db.read_all_images()]

    def _matches(self) -> dict[str, Any]:
        """Mutual nearest features of every two photos (or of neighbours), verified by a two-view geometry."""
        with opened(self.pycolmap, self.database) as db:
            db.clear_matches()
            db.clear_two_view_geometries()
        options, checks = self.pycolmap.FeatureMatchingOptions(), self.pycolmap.TwoViewGeometryOptions()
        options.num_threads, checks.ransac.random_seed = self.threads, self.settings.seed
        run = getattr(self.pycolmap, f"match_{self.settings.matcher}")
        run(self.database, matching_options=options, verification_options=checks, device=self.pycolmap.Device.cpu)
        with opened(self.pycolmap, self.database) as db:
            _, inliers = db.read_two_view_geometry_num_inliers()
        verified = sum(int(n) >= int(checks.min_num_inliers) for n in inliers)
        if not verified:
            raise LikewiseError("photos: no two photos show enough of the same; take more, from nearer spots")
        return {"line": f"{verified} pairs of photos verified", "verified": verified}

    # ── model ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _model(self) -> dict[str, Any]:
        """Incremental mapping, tried in ways that suit different walks until most photos are placed.

        COLMAP's own way starts from two photos that see each other's content from the side. A walk straight ahead has
        none, and leaves the focal length nearly free: then such starts are allowed, EXIF's cameras held fixed, and at
        last points taken that only two photos show.
        """
        total = len(self.results["photos"]["photos"])
        focals = {p["name"]: p["focal"] for p in self.results["photos"]["photos"]}
        best, rank, tried = None, (False, 0, 0), list[str]()
        for way in WAYS if any(focals.values()) else WAYS[:2]:
            found = self._mapped(way)
            if found is None:
                tried.append(f"{way}: none placed")
                continue
            own = (believable(found, focals), int(found.num_reg_images()), int(found.num_points3D()))
            tried.append(f"{way}: {own[1]} placed{'' if own[0] else ', cameras beyond belief'}")
            best, rank = (found, own) if own > rank else (best, rank)
            if rank[0] and rank[1] >= ENOUGH * total:
                break
        if best is None or rank[1] < LEAST:
            raise LikewiseError(self._why_little(rank[1], total))
        best.write(fresh(self.work / "chosen"))
        registered = sorted(best.image(i).name for i in best.reg_image_ids())
        return {
            "line": f"{len(registered)} of {total} photos placed, {best.num_points3D()} points",
            "tried": tried,
            "registered": registered,
            "points": int(best.num_points3D()),
            "reprojection": float(best.compute_mean_reprojection_error()),
            "cameras": [[float(v) for v in c.params] for c in best.cameras.values()],
        }

    def _mapped(self, way: str) -> Any:
        """The model with most photos that COLMAP makes in one way, or None."""
        self.pycolmap.set_random_seed(self.settings.seed)
        options = self.pycolmap.IncrementalPipelineOptions()
        options.num_threads, options.random_seed, options.min_model_size = self.threads, self.settings.seed, LEAST
        if way != "sideways":
            options.mapper.init_max_forward_motion, options.mapper.init_min_tri_angle = 1.0, 4.0
        if "points of two photos" in way:
            options.triangulation.ignore_two_view_tracks = False
            options.mapper.init_min_tri_angle, options.mapper.abs_pose_min_num_inliers = 2.0, 15
        if "cameras fixed" in way:
            options.ba_refine_focal_length = options.ba_refine_extra_params = False
            options.mapper.abs_pose_refine_focal_length = options.mapper.abs_pose_refine_extra_params = False
        sparse = fresh(self.work / "sparse")
        models = self.pycolmap.incremental_mapping(self.database, self.work / "photos", sparse, options)
        return max(models.values(), key=lambda m: m.num_reg_images(), default=None)

    def _why_little(self, count: int, total: int) -> str:
        features = int(np.median(self.results["features"]["counts"]))
        return (
            f"photos: {count} of {total} photos could be placed, {LEAST} needed; {self.results['matches']['verified']} "
            f"pairs show the same, with a median of {features} features a photo: take more photos from more spots, "
            f"with more overlap"
        )

    def _undistorted(self) -> dict[str, Any]:
        """images/ and model/: the photos as a camera without distortion would have taken them, and their model."""
        made = fresh(self.work / "undistorted")
        self.pycolmap.undistort_images(made, self.work / "chosen", self.work / "photos", jpeg_quality=95)
        for name, final in (("images", "images"), ("sparse", "model")):
            shutil.rmtree(self.out / final, ignore_errors=True)
            os.replace(made / name, self.out / final)
        shutil.rmtree(made, ignore_errors=True)
        return {"line": f"{len(self.results['model']['registered'])} photos"}

    def _pairs(self) -> dict[str, Any]:
        """pairs.npz and summary.json."""
        survey = Survey.read(self.out / "model")
        names, arrays, errors = pairs(survey, self.settings.overlap)
        if not len(arrays["F"]):
            raise LikewiseError(f"overlap: no two photos share {self.settings.overlap} points; make it smaller")
        with media.atomic(self.out / "pairs.npz") as sibling:
            np.savez(sibling, **{"names": np.array(names), **arrays})  # type: ignore[arg-type]
        figures = {"pairs": len(arrays["F"]), "epipolar error": float(np.median(errors))}
        summary = self._summary(survey) | figures
        media.write_text(self.out / "summary.json", json.dumps(summary, ensure_ascii=False, indent=2) + "\n")
        return {
            "line": f"{figures['pairs']}, epipolar error {figures['epipolar error']:.2f} px in the median",
            **figures,
        }

    def _summary(self, survey: Survey) -> dict[str, Any]:
        photos, model = self.results["photos"]["photos"], self.results["model"]
        places = {p["name"]: p["place"] for p in photos if p["place"] is not None}
        return {
            "photos": len(photos),
            "registered": len(model["registered"]),
            "left out": [p["from"] for p in photos if p["name"] not in set(model["registered"])],
            "points": model["points"],
            "reprojection error": model["reprojection"],
            "metres a unit": metres_a_unit(survey, places),
            "seconds": {name: r["seconds"] for name, r in self.results.items()},
            "names": {p["name"]: p["from"] for p in photos},
        }


# -------------------------------------------------------------------------------------------------------------- pieces


def _camera(photos: list[dict[str, Any]]) -> tuple[float | None, tuple[int, int], list[str]]:
    """The camera that took these photos, and their names."""
    sizes = {(int(p["size"][0]), int(p["size"][1])) for p in photos}
    if len(sizes) > 1:
        raise InputError(f"camera: 'single' needs photos of one size, got {len(sizes)}; take 'auto'")
    focal = next((float(p["focal"]) for p in photos if p["focal"] is not None), None)
    return focal, sizes.pop(), [p["name"] for p in photos]


def believable(model: Any, focals: dict[str, float | None]) -> bool:
    """Whether no camera of a model strays: f within 20 % of what EXIF told, where it did, and little distortion."""
    for number in model.reg_image_ids():
        photo = model.image(number)
        f, _, _, k = photo.camera.params
        share = f / max(photo.camera.width, photo.camera.height)
        told = focals.get(photo.name)
        if abs(k) > STRAY or not 0.3 < share < 10 or (told is not None and abs(share / told - 1) > 0.2):
            return False
    return True


def shrunk(array: NDArray[np.uint8], longest: int) -> NDArray[np.uint8]:
    """A picture (h, w, 3) with its longest side at most `longest`."""
    share = longest / max(array.shape[:2])
    if share >= 1:
        return array
    size = (max(1, round(array.shape[1] * share)), max(1, round(array.shape[0] * share)))
    return np.asarray(cv2.resize(array, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def fresh(folder: Path) -> Path:
    """An empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


@contextmanager
def opened(pycolmap: Any, path: Path) -> Iterator[Any]:
    """A database of COLMAP, closed again whatever happens."""
    database = pycolmap.Database.open(path)
    try:
        yield database
    finally:
        database.close()


def _pycolmap() -> Any:
    try:
        import pycolmap
    except ImportError:
        raise MissingExtra("pycolmap", "sfm") from None
    return pycolmap


def _silent(_: str) -> None:
    return None


def _check(s: Settings) -> None:
    for name, value, least in (("size", s.size, 64), ("features", s.features, 64), ("overlap", s.overlap, 8)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(f"{name}: expected a whole number ≥ {least}, got {value!r}")
    if s.matcher not in ("exhaustive", "sequential"):
        raise InputError(f"matcher: expected 'exhaustive' or 'sequential', got {s.matcher!r}")
    if s.camera not in ("auto", "single", "each"):
        raise InputError(f"camera: expected 'auto', 'single' or 'each', got {s.camera!r}")
