"""From a folder of photos to pairs with fundamental matrices, by structure from motion (COLMAP through pycolmap).

This is LIFE's own supervision: no flow is known, but where a point may go. Photos are decoded by likewise's reader,
made upright and small, and handed to COLMAP as files of our own. COLMAP puts the centre of the first pixel at (½, ½);
everything that leaves this module has it at (0, 0), and X_camera = R X + t.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import cv2
import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor

from likewise import media
from likewise.errors import FileError, InputError, LikewiseError, MissingExtra
from likewise.pixels import geometry, robust
from likewise.store import run as runs
from likewise.types import Image

Floats: TypeAlias = NDArray[np.float64]
Index: TypeAlias = NDArray[np.int64]
Size: TypeAlias = tuple[int, int]
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
HALF = 0.5
"""What COLMAP's coordinates of pixels are larger by."""
KEPT = 256
"""Decoded photos that stay in memory."""
SECONDS = 300
"""CPU time after which the reading of a model is given up: damage can keep COLMAP busy forever."""


def require_pycolmap() -> Any:
    """pycolmap, or the error that says which extra brings it."""
    try:
        import pycolmap
    except ImportError:
        raise MissingExtra("pycolmap", "sfm") from None
    return pycolmap


# ---------------------------------------------------------------------------------------------------- COLMAP's models


@dataclass(frozen=True)
class Photo:
    """One registered photo: name, (h, w), K (3, 3), R (3, 3), t (3,), and its observed points (m, 2) with the numbers
    (m,) of what they show."""

    name: str
    size: Size
    K: Floats
    R: Floats
    t: Floats
    points: Floats
    shows: Index

    @property
    def centre(self) -> Floats:
        """Where the camera stands, −Rᵀ t."""
        return np.asarray(-self.R.T @ self.t)


_READ_MODEL = """
import pickle, resource, sys
import numpy as np
import pycolmap
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[2]), int(sys.argv[2])))
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[3]), int(sys.argv[3])))
pycolmap.logging.minloglevel = 3
model = pycolmap.Reconstruction(sys.argv[1])
numbers = {int(k): i for i, k in enumerate(model.points3D)}
photos = []
for i in model.reg_image_ids():
    image = model.image(i)
    camera, pose = image.camera, image.cam_from_world()
    seen = [(*p.xy, numbers[int(p.point3D_id)]) for p in image.points2D if p.has_point3D()]
    K = camera.calibration_matrix() if camera.is_undistorted() else np.zeros((3, 3))
    photos.append((image.name, camera.model_name, int(camera.height), int(camera.width), np.array(K),
                   np.array(pose.rotation.matrix()), np.array(pose.translation), np.array(seen).reshape(-1, 3)))
places = np.array([p.xyz for p in model.points3D.values()]).reshape(-1, 3)
sys.stdout.buffer.write(pickle.dumps((photos, places), protocol=4))
"""
"""A program: a model of COLMAP as plain arrays, read by pycolmap under limits of time and memory."""


@dataclass(frozen=True)
class Survey:
    """The photos of a model, by name, and its points (n, 3)."""

    photos: tuple[Photo, ...]
    points: Floats

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Survey:
        """A model of undistorted photos from COLMAP's files, text or binary, read in a child process with limits."""
        path = Path(folder)
        files = [path / f"{name}{end}" for end in (".bin", ".txt") for name in ("cameras", "images", "points3D")]
        if not all(f.is_file() for f in files[:3]) and not all(f.is_file() for f in files[3:]):
            raise FileError(f"{path}: holds no COLMAP model (cameras, images and points3D, .bin or .txt)")
        if importlib.util.find_spec("pycolmap") is None:
            raise MissingExtra("pycolmap", "sfm")
        memory = (4 << 30) + 16 * sum(f.stat().st_size for f in files if f.is_file())
        command = [sys.executable, "-c", _READ_MODEL, str(path), str(SECONDS), str(memory)]
        child = subprocess.run(command, capture_output=True, check=False)
        if child.returncode:
            lines = child.stderr.decode("utf-8", "replace").strip().splitlines()
            why = lines[-1] if lines and child.returncode > 0 else "too long, too large or damaged"
            raise FileError(f"{path}: not a readable COLMAP model: {why[:200]}")
        photos, places = media.unpickle_arrays(child.stdout, str(path))
        if not np.isfinite(places).all():
            raise FileError(f"{path}: a point is nowhere; it is damaged")
        return cls(tuple(sorted((_photo(path, *row) for row in photos), key=lambda p: p.name)), places)

    def overlaps(self, least: int) -> Index:
        """The pairs (n, 2) of photos, i < j, with at least so many points in common."""
        if isinstance(least, bool) or not isinstance(least, int | np.integer) or least < 1:
            raise InputError(f"least: expected a whole number of points ≥ 1, got {least!r}")
        columns = [np.unique(p.shows) for p in self.photos]
        rows = np.repeat(np.arange(len(columns)), [len(c) for c in columns])
        ones, size = np.ones(len(rows), dtype=np.int64), (len(columns), len(self.points))
        seen = csr_matrix((ones, (rows, np.concatenate([np.empty(0, np.int64), *columns]))), shape=size)
        common = (seen @ seen.T).tocoo()
        chosen = (common.row < common.col) & (common.data >= least)
        pairs = np.stack([common.row[chosen], common.col[chosen]], axis=1).astype(np.int64)
        return np.asarray(pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))])

    def common(self, i: int, j: int) -> tuple[Index, Floats, Floats]:
        """The points that two photos show, and where; of one that is seen twice, the first place."""
        a, b = self.photos[i], self.photos[j]
        both, at_a, at_b = np.intersect1d(a.shows, b.shows, return_indices=True)
        return both, a.points[at_a], b.points[at_b]

    def cameras(self, i: int, j: int) -> dict[str, Floats]:
        """Ka, Kb, R, t of two photos, X_b = R X_a + t, and F of unit norm."""
        a, b = self.photos[i], self.photos[j]
        R = b.R @ a.R.T
        return relative(a.K, b.K, R, b.t - R @ a.t)


def relative(Ka: Floats, Kb: Floats, R: Floats, t: Floats) -> dict[str, Any]:
    """The cameras of a pair and the fundamental matrix that follows from them; None for two photos from one spot."""
    known = [torch.from_numpy(np.ascontiguousarray(m)) for m in (Ka, Kb, R, t)]
    F = geometry.fundamental(*known).numpy() if float(np.linalg.norm(t)) > 0 else None
    return {"F": F, "Ka": Ka, "Kb": Kb, "R": R, "t": t}


def _photo(path: Path, name: str, model: str, h: int, w: int, K: Floats, R: Floats, t: Floats, seen: Floats) -> Photo:
    if not K.any():
        raise FileError(f"{path}: the camera of {name} is {model}; undistort the photos (colmap image_undistorter)")
    usable = np.isfinite(K).all() and min(K[0, 0], K[1, 1]) > 1e-9 and np.abs(K).max() < 1e9 and min(h, w) >= 1
    if not usable or not (np.isfinite(R).all() and np.isfinite(t).all() and np.isfinite(seen).all()):
        raise FileError(f"{path}: {name} has no usable camera or pose; it is damaged")
    K[:2, 2] -= HALF
    return Photo(name, (h, w), K, R, t, seen[:, :2] - HALF, seen[:, 2].astype(np.int64))


def measure_scale(survey: Survey, places: Mapping[str, Any]) -> dict[str, float] | None:
    """How many metres a unit of the model is, by the photos' GPS, and how far the two disagree; None without.

    A fit of the cameras' centres to their places; at least five are needed, spread over a metre, and GPS errs by some.
    """
    told = [p for p in survey.photos if places.get(p.name) is not None]
    if len(told) < 5:
        return None
    pycolmap = require_pycolmap()
    globe = np.array([places[p.name] for p in told], dtype=np.float64)
    x, y = np.stack([p.centre for p in told]), pycolmap.GPSTransform().ellipsoid_to_enu(globe, *globe.mean(axis=0))
    if np.ptp(y[:, :2], axis=0).max() < 1.0:
        return None
    fit = pycolmap.estimate_sim3d(x, y)
    apart = np.linalg.norm(fit.scale * x @ fit.rotation.matrix().T + fit.translation - y, axis=1)
    return {"scale": float(fit.scale), "error": float(np.sqrt((apart**2).mean())), "photos": len(told)}


# --------------------------------------------------------------------------------------------------------------- pairs


@dataclass(frozen=True)
class Views:
    """Images a, b (n, 3, h, w) in [0, 1] and F (n, 3, 3) float64 of unit norm with [y, 1] F [x, 1]ᵀ = 0."""

    a: Float[Tensor, "n 3 h w"]
    b: Float[Tensor, "n 3 h w"]
    F: Float[Tensor, "n 3 3"]


FIELDS: dict[str, tuple[int, ...]] = {
    "a": (), "b": (), "F": (3, 3), "Ka": (3, 3), "Kb": (3, 3), "R": (3, 3), "t": (3,), "overlap": (), "angle": (),
    "centre_a": (2,), "centre_b": (2,),
}  # fmt: skip
"""What pairs.npz says of each pair, and its shape; see `Pairs`."""


class Pairs:
    """Pairs of undistorted photos in a folder that `reconstruct` made: LIFE's training data, in batches of any size.

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

    @staticmethod
    def of(survey: Survey, least: int) -> tuple[dict[str, NDArray[Any]], Floats]:
        """The arrays of pairs.npz for the photos of a model, and the epipolar errors of all common points in pixels."""
        rows, errors = list[dict[str, Any]](), [np.empty(0)]
        for i, j in survey.overlaps(least).tolist():
            both, at_a, at_b = survey.common(i, j)
            rays = [survey.points[both] - survey.photos[k].centre for k in (i, j)]
            cosine = np.einsum("ni,ni->n", *(r / np.linalg.norm(r, axis=1, keepdims=True) for r in rays))
            angle = np.degrees(np.arccos(np.clip(cosine, -1, 1)))
            row = {"a": i, "b": j, "overlap": len(both), "angle": float(np.median(angle)), **survey.cameras(i, j)}
            rows.append(row | {"centre_a": np.median(at_a, axis=0), "centre_b": np.median(at_b, axis=0)})
            errors.append(robust.epipolar_errors(row["F"], at_a, at_b))
        kinds = {n: np.int64 if n in ("a", "b", "overlap") else np.float64 for n in FIELDS}
        return {n: np.array([r[n] for r in rows], dtype=kinds[n]) for n in FIELDS}, np.concatenate(errors)

    def __len__(self) -> int:
        return len(self.arrays["F"])

    def __repr__(self) -> str:
        return f"Pairs({len(self)} of {len(self.names)} photos in {self.folder})"

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
            self._photos[number] = media.read_array(self.folder / "images" / self.names[number])
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
    for name, shape in FIELDS.items():
        array, kind = arrays[name], "i" if name in ("a", "b", "overlap") else "f"
        if array.shape != (k, *shape) or array.dtype.kind != kind or not np.isfinite(array).all():
            raise FileError(f"{where}: {name} of its pairs is damaged ({array.dtype} {array.shape})")
    if k == 0:
        raise FileError(f"{where}: holds no pair of photos that show the same points")
    ends = np.concatenate([arrays["a"], arrays["b"]])
    if ends.min() < 0 or ends.max() >= photos:
        raise FileError(f"{where}: a pair names a photo that is not there")


# ------------------------------------------------------------------------------------------------------ reconstruction


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

    Parameters
    ----------
    photos : path
        A folder of photos.
    out : path
        Gets images/ (undistorted), model/ (COLMAP's binary files), pairs.npz, summary.json, and work/ with what the
        steps need. Steps that are finished are kept when it is called again.
    size : int
        The longest side of a photo, in pixels.
    matcher : {"exhaustive", "sequential"}
        Every two photos, or neighbours: the frames of a walk.
    camera : {"auto", "single", "each"}
        Who shares intrinsics: photos of one make, focal length and size; all; none.
    features : int
        The most features a photo.
    overlap : int
        The least points that the photos of a pair have in common.
    seed, threads : int
        With one thread the result is a function of the seed; with more, COLMAP's sums may be ordered differently.
    report : callable, optional
        Is told each step in a line.

    Returns
    -------
    Pairs
        The pairs with their fundamental matrices, as `train(scenes=out)` takes them.

    Raises
    ------
    MissingExtra
        Without pycolmap (the extra `sfm`).
    InputError
        Where the folder holds fewer than two photos, or too few show the same.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.pixels.reconstruct("photos/", "place/")                     # doctest: +SKIP
    Pairs(41 of 12 photos in place)
    """
    settings = Settings(os.path.abspath(photos), size, matcher, camera, features, overlap, seed)
    _check(settings)
    job = _Job(Path(out), settings, require_pycolmap(), threads, report or (lambda line: None))
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
        result = getattr(self, f"_{name}")()
        result["seconds"] = round(time.perf_counter() - started, 2)
        self.results[name] = result
        media.write_text(marker, json.dumps(result, ensure_ascii=False, indent=2, allow_nan=False) + "\n")
        self.report(f"{name}: {result['line']} ({result['seconds']:.0f} s)")

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
        photo = Image(path)
        array = geometry.shrink(photo.reduced(self.settings.size), longest=self.settings.size)
        name = f"{number:04d}_{''.join(c if c.isalnum() or c in '-_' else '_' for c in path.stem)[:60]}.jpg"
        media.write_image(self.work / "photos" / name, array, quality=97)
        where = path.relative_to(self.settings.photos).as_posix()
        return {"name": name, "from": where, "size": list(array.shape[:2]), **vars(photo.exif)}

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
        with closing(self.pycolmap.Database.open(self.database)) as db:
            return [int(db.num_keypoints_for_image(i.image_id)) for i in db.read_all_images()]

    def _matches(self) -> dict[str, Any]:
        """Mutual nearest features of every two photos (or of neighbours), verified by a two-view geometry."""
        with closing(self.pycolmap.Database.open(self.database)) as db:
            db.clear_matches()
            db.clear_two_view_geometries()
        options, checks = self.pycolmap.FeatureMatchingOptions(), self.pycolmap.TwoViewGeometryOptions()
        options.num_threads, checks.ransac.random_seed = self.threads, self.settings.seed
        run = getattr(self.pycolmap, f"match_{self.settings.matcher}")
        run(self.database, matching_options=options, verification_options=checks, device=self.pycolmap.Device.cpu)
        with closing(self.pycolmap.Database.open(self.database)) as db:
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
            mapped = self._mapped(way)
            if mapped is None:
                tried.append(f"{way}: none placed")
                continue
            own = (believable(mapped, focals), int(mapped.num_reg_images()), int(mapped.num_points3D()))
            tried.append(f"{way}: {own[1]} placed{'' if own[0] else ', cameras beyond belief'}")
            best, rank = (mapped, own) if own > rank else (best, rank)
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
        arrays, errors = Pairs.of(survey, self.settings.overlap)
        names = [p.name for p in survey.photos]
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
            "metres a unit": measure_scale(survey, places),
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


def fresh(folder: Path) -> Path:
    """An empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _check(s: Settings) -> None:
    for name, value, least in (("size", s.size, 64), ("features", s.features, 64), ("overlap", s.overlap, 8)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(f"{name}: expected a whole number ≥ {least}, got {value!r}")
    if s.matcher not in ("exhaustive", "sequential"):
        raise InputError(f"matcher: expected 'exhaustive' or 'sequential', got {s.matcher!r}")
    if s.camera not in ("auto", "single", "each"):
        raise InputError(f"camera: expected 'auto', 'single' or 'each', got {s.camera!r}")
