"""From a folder of photos to pairs with fundamental matrices, by structure from motion (COLMAP through pycolmap).

This is LIFE's own supervision: no flow is known, but where a point may go. Photos are decoded by likewise's reader,
made upright and small, and handed to COLMAP as files of our own. COLMAP puts the centre of the first pixel at (½, ½);
everything that leaves this module has it at (0, 0), and X_camera = R X + t.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import cv2
import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy import sparse
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
        photos, places = media.read_colmap(path, seconds=SECONDS, memory=memory)
        if not np.isfinite(places).all():
            raise FileError(f"{path}: a point is nowhere; it is damaged")
        return cls(tuple(sorted((_photo(path, *row) for row in photos), key=lambda p: p.name)), places)

    def overlaps(self, least: int) -> Index:
        """The pairs (n, 2) of photos, i < j, with at least so many points in common."""
        if isinstance(least, bool) or not isinstance(least, int | np.integer) or least < 1:
            raise InputError(f"least: expected a whole number of points ≥ 1, got {least!r}")
        n, counts = len(self.photos), [len(p.shows) for p in self.photos]
        at = np.repeat(np.arange(n), counts), np.concatenate([np.empty(0, np.int64), *(p.shows for p in self.photos)])
        # of bools: a point that a photo shows twice counts once
        seen = sparse.csr_array((np.ones(sum(counts), bool), at), shape=(n, len(self.points))).astype(np.int64)
        common = sparse.triu(seen @ seen.T, k=1).tocoo()
        pairs = np.stack(common.coords, axis=1)[common.data >= least].astype(np.int64)
        return np.asarray(pairs[np.lexsort(pairs.T[::-1])])

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
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise FileError(f"{path}: names {name!r}, which is outside of its folder")
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


class Pairs:
    """Pairs of undistorted photos in a folder that `reconstruct` made: LIFE's training data, in batches of any size.

    `numbers` (n, 2) are the photos of each pair, i < j: those that show at least `least` points in common.
    """

    def __init__(self, folder: str | os.PathLike[str], survey: Survey, least: int) -> None:
        self.folder, self.survey, self.numbers = Path(folder), survey, survey.overlaps(least)
        if not len(self.numbers):
            raise FileError(f"{folder}: no two photos share {least} points; ask for fewer (overlap)")
        self.photo = lru_cache(KEPT)(lambda name: media.read_array(self.folder / "images" / name))

    @classmethod
    def open(cls, out: str | os.PathLike[str]) -> Pairs:
        """The pairs in a folder."""
        settings = runs.read_json(Path(out) / "config.json")
        return cls(out, Survey.read(Path(out) / "model"), settings.get("overlap", 0))

    def __len__(self) -> int:
        return len(self.numbers)

    def __repr__(self) -> str:
        return f"Pairs({len(self)} of {len(self.survey.photos)} photos in {self.folder})"

    def errors(self) -> Floats:
        """The epipolar errors, in pixels, of the points that the photos of pairs have in common."""
        known = [(self.survey.cameras(i, j)["F"], *self.survey.common(i, j)[1:]) for i, j in self.numbers]
        return np.concatenate([robust.epipolar_errors(*pair) for pair in known])

    def views(self, n: int, size: Size, seed: int | Sequence[int]) -> Views:
        """n random pairs, half of them the other way round, cut to the proportions of `size` (h, w) around what both
        show, and resized to it; a function of the seed alone. F goes along by the half-pixel rule."""
        if n < 1 or len(size) != 2 or min(size) < 8:
            raise InputError(f"n, size: expected n ≥ 1 and (h, w) of 8 px at least, got {n} and {tuple(size)}")
        rng = np.random.default_rng(seed if isinstance(seed, int) else list(seed))
        drawn, turned = self.numbers[rng.integers(len(self), size=n)], rng.integers(2, size=(n, 1))
        made = [self.view(int(i), int(j), size) for i, j in np.where(turned, drawn[:, ::-1], drawn)]
        a, b = (torch.from_numpy(np.stack([m[i] for m in made])).permute(0, 3, 1, 2) / 255 for i in range(2))
        return Views(a.contiguous(), b.contiguous(), torch.from_numpy(np.stack([m[2] for m in made])))

    def view(self, i: int, j: int, size: Size) -> tuple[NDArray[np.uint8], NDArray[np.uint8], Floats]:
        """Pieces of photos i and j, and the F between them."""
        _, *places = self.survey.common(i, j)
        (a, Sa), (b, Sb) = (
            _window(self.photo(self.survey.photos[k].name), np.median(at, axis=0), size)
            for k, at in zip((i, j), places, strict=True)
        )
        moved = np.linalg.inv(Sb).T @ self.survey.cameras(i, j)["F"] @ np.linalg.inv(Sa)
        return a, b, moved / np.linalg.norm(moved)


def _window(photo: NDArray[np.uint8], centre: Floats, size: Size) -> tuple[NDArray[np.uint8], Floats]:
    """The largest piece with the proportions of `size`, as near to `centre` as the frame allows, resized, and the map
    p ↦ (p − corner + ½) s − ½ of points as a matrix (3, 3)."""
    whole = photo.shape[:2]
    share = min(whole[0] / size[0], whole[1] / size[1])
    h, w = (min(m, max(1, round(share * n))) for n, m in zip(size, whole, strict=True))
    top, left = (int(np.clip(round(c - n / 2), 0, m - n)) for c, n, m in zip(centre[::-1], (h, w), whole, strict=True))
    how = cv2.INTER_AREA if h >= size[0] else cv2.INTER_LINEAR
    piece = cv2.resize(photo[top : top + h, left : left + w], size[::-1], interpolation=how)
    sx, sy = size[1] / w, size[0] / h
    rows = [[sx, 0.0, (0.5 - left) * sx - 0.5], [0.0, sy, (0.5 - top) * sy - 0.5], [0.0, 0.0, 1.0]]
    return np.asarray(piece), np.array(rows)


# ------------------------------------------------------------------------------------------------------ reconstruction


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
        Gets images/ (undistorted), model/ (COLMAP's binary files), summary.json, and work/ with what the steps
        need. Copies, features, matches and models that are there are kept when it is called again.
    size : int
        The longest side of a photo, in pixels.
    matcher : {"exhaustive", "sequential"}
        Every two photos, or neighbours: the frames of a walk.
    camera : {"auto", "single", "each"}
        Who shares intrinsics: photos of one make, focal length and size; all of one size; none.
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
    for name, value, least in (("size", size, 64), ("features", features, 64), ("overlap", overlap, 8)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(f"{name}: expected a whole number ≥ {least}, got {value!r}")
    if matcher not in ("exhaustive", "sequential"):
        raise InputError(f"matcher: expected 'exhaustive' or 'sequential', got {matcher!r}")
    if camera not in ("auto", "single", "each"):
        raise InputError(f"camera: expected 'auto', 'single' or 'each', got {camera!r}")
    settings = {"photos": os.path.abspath(photos), "size": size, "matcher": matcher, "camera": camera}
    settings |= {"features": features, "overlap": overlap, "seed": seed}
    job = _Job(Path(out), settings, require_pycolmap(), threads)
    runs.Run.create(job.out, settings, seed=seed, resume=True)
    steps = {"photos": job.copy, "features": job.extract, "matches": job.match, "model": job.map, "pairs": job.finish}
    with _quiet(job.pycolmap):
        for name, step in {} if (job.out / "summary.json").exists() else steps.items():
            started = time.perf_counter()
            line = step()
            if report is not None:
                report(f"{name}: {line} ({time.perf_counter() - started:.0f} s)")
    return Pairs.open(job.out)


@contextmanager
def _quiet(pycolmap: Any) -> Iterator[None]:
    """COLMAP writes what it does to stderr; only errors are let through, and the setting is put back."""
    before, pycolmap.logging.minloglevel = pycolmap.logging.minloglevel, int(pycolmap.logging.ERROR)
    try:
        yield
    finally:
        pycolmap.logging.minloglevel = before


class _Job:
    """The steps. Each leaves a file or folder under its final name only when it is finished; what is there is kept.

    COLMAP's database resumes matching by itself: pairs that it holds are not matched again.
    """

    def __init__(self, out: Path, settings: dict[str, Any], pycolmap: Any, threads: int) -> None:
        self.out, self.settings, self.pycolmap, self.threads = out, settings, pycolmap, threads
        self.work = out / "work"
        self.database, self.model = self.work / "database.db", self.work / "model"
        self.photos: list[dict[str, Any]] = []

    def copy(self) -> str:
        """Upright copies with the longest side at `size`, under numbered names, and what EXIF tells of each."""
        file = self.work / "photos.json"
        if not file.exists():
            kept, skipped = list[dict[str, Any]](), list[str]()
            for path in media.images(self.settings["photos"]):
                try:
                    kept.append(self._copy(path, len(kept)))
                except FileError as error:
                    skipped.append(str(error))
            if len(kept) < 2:
                why = "".join(f"; {s}" for s in skipped[:1])
                where = self.settings["photos"]
                raise InputError(f"photos: {where} holds {len(kept)} photos that can be read, 2 needed{why}")
            runs.write_json(file, {"photos": kept, "skipped": skipped})
        told = runs.read_json(file)
        self.photos = told["photos"]
        return f"{len(self.photos)} read, {len(told['skipped'])} unreadable"

    def _copy(self, path: Path, number: int) -> dict[str, Any]:
        photo, size = Image(path), self.settings["size"]
        array = geometry.shrink(photo.reduced(size), longest=size)
        name = f"{number:04d}_{''.join(c if c.isalnum() or c in '-_' else '_' for c in path.stem)[:60]}.jpg"
        media.write_image(self.work / "photos" / name, array, quality=97)
        where = path.relative_to(self.settings["photos"]).as_posix()
        return {"name": name, "from": where, "size": list(array.shape[:2]), **vars(photo.exif)}

    def extract(self) -> str:
        """COLMAP's SIFT of every photo, one call for each camera that photos share."""
        if not self.database.exists():
            groups: dict[Any, list[dict[str, Any]]] = {}
            for i, p in enumerate(self.photos):
                shared = {"auto": (p["make"], p["focal"], *p["size"]), "single": tuple(p["size"]), "each": i}
                groups.setdefault(shared[self.settings["camera"]], []).append(p)
            with media.atomic(self.database) as sibling:
                for photos in groups.values():
                    self._extract(sibling, photos)
        with closing(self.pycolmap.Database.open(self.database)) as db:
            counts = [int(db.num_keypoints_for_image(i.image_id)) for i in db.read_all_images()]
        if max(counts) == 0:
            raise LikewiseError(f"photos: no features in any of the {len(counts)} photos; they are blank or blurred")
        return f"{int(np.median(counts))} a photo in the median"

    def _extract(self, database: Path, photos: list[dict[str, Any]]) -> None:
        (h, w), names = photos[0]["size"], [p["name"] for p in photos]
        focal = next((p["focal"] for p in photos if p["focal"] is not None), None)
        reader = self.pycolmap.ImageReaderOptions()
        reader.camera_model = "SIMPLE_RADIAL"
        if focal is not None:
            reader.camera_params = f"{focal * max(h, w)},{w / 2},{h / 2},0"
        options = self.pycolmap.FeatureExtractionOptions()
        options.num_threads, options.max_image_size = self.threads, self.settings["size"]
        options.sift.max_num_features = self.settings["features"]
        mode, device = self.pycolmap.CameraMode.SINGLE, self.pycolmap.Device.cpu
        self.pycolmap.extract_features(database, self.work / "photos", names, mode, reader, options, device)

    def match(self) -> str:
        """Mutual nearest features of every two photos (or of neighbours), verified by a two-view geometry."""
        options, checks = self.pycolmap.FeatureMatchingOptions(), self.pycolmap.TwoViewGeometryOptions()
        options.num_threads, checks.ransac.random_seed = self.threads, self.settings["seed"]
        run = getattr(self.pycolmap, f"match_{self.settings['matcher']}")
        run(self.database, matching_options=options, verification_options=checks, device=self.pycolmap.Device.cpu)
        with closing(self.pycolmap.Database.open(self.database)) as db:
            _, inliers = db.read_two_view_geometry_num_inliers()
        verified = sum(int(n) >= int(checks.min_num_inliers) for n in inliers)
        if not verified:
            raise LikewiseError("photos: no two photos show enough of the same; take more, from nearer spots")
        return f"{verified} pairs of photos verified"

    def map(self) -> str:
        """Incremental mapping, tried in ways that suit different walks until most photos are placed.

        COLMAP's own way starts from two photos that see each other's content from the side. A walk straight ahead has
        none, and leaves the focal length nearly free: then such starts are allowed, EXIF's cameras held fixed, and at
        last points taken that only two photos show.
        """
        total, focals = len(self.photos), {p["name"]: p["focal"] for p in self.photos}
        best, rank = None, (False, 0, 0)
        for way in () if self.model.is_dir() else WAYS if any(focals.values()) else WAYS[:2]:
            for made in self._map(way):
                own = (believable(made, focals), int(made.num_reg_images()), int(made.num_points3D()))
                best, rank = (made, own) if own > rank else (best, rank)
            if rank[0] and rank[1] >= ENOUGH * total:
                break
        if best is not None and rank[1] >= LEAST:
            best.write(fresh(self.work / "unfinished"))
            os.replace(self.work / "unfinished", self.model)
        if not self.model.is_dir():
            advice = "take more photos from more spots, with more overlap"
            raise LikewiseError(f"photos: {rank[1]} of {total} photos could be placed, {LEAST} needed; {advice}")
        model = self.pycolmap.Reconstruction(self.model)
        return f"{model.num_reg_images()} of {total} photos placed, {model.num_points3D()} points"

    def _map(self, way: str) -> list[Any]:
        """The model with most photos that COLMAP makes in one way, if it makes any."""
        self.pycolmap.set_random_seed(self.settings["seed"])
        options = self.pycolmap.IncrementalPipelineOptions()
        options.num_threads, options.random_seed, options.min_model_size = self.threads, self.settings["seed"], LEAST
        if way != "sideways":
            options.mapper.init_max_forward_motion, options.mapper.init_min_tri_angle = 1.0, 4.0
        if "points of two photos" in way:
            options.triangulation.ignore_two_view_tracks = False
            options.mapper.init_min_tri_angle, options.mapper.abs_pose_min_num_inliers = 2.0, 15
        if "cameras fixed" in way:
            options.ba_refine_focal_length = options.ba_refine_extra_params = False
            options.mapper.abs_pose_refine_focal_length = options.mapper.abs_pose_refine_extra_params = False
        where = fresh(self.work / "sparse")
        models = self.pycolmap.incremental_mapping(self.database, self.work / "photos", where, options)
        return sorted(models.values(), key=lambda m: -m.num_reg_images())[:1]

    def finish(self) -> str:
        """images/ and model/: the photos as a camera without distortion would have taken them; and summary.json."""
        made = fresh(self.work / "undistorted")
        self.pycolmap.undistort_images(made, self.model, self.work / "photos", jpeg_quality=95)
        for name, final in (("images", "images"), ("sparse", "model")):
            shutil.rmtree(self.out / final, ignore_errors=True)
            os.replace(made / name, self.out / final)
        shutil.rmtree(made)
        survey = Survey.read(self.out / "model")
        pairs, names = Pairs(self.out, survey, self.settings["overlap"]), {p.name for p in survey.photos}
        error = self.pycolmap.Reconstruction(self.model).compute_mean_reprojection_error()
        summary = {
            "photos": len(self.photos),
            "registered": len(names),
            "left out": [p["from"] for p in self.photos if p["name"] not in names],
            "points": len(survey.points),
            "reprojection error": float(error),
            "metres a unit": measure_scale(survey, {p["name"]: p["place"] for p in self.photos}),
            "names": {p["name"]: p["from"] for p in self.photos},
            "pairs": len(pairs),
            "epipolar error": float(np.median(pairs.errors())),
        }
        runs.write_json(self.out / "summary.json", summary)
        return f"{summary['pairs']}, epipolar error {summary['epipolar error']:.2f} px in the median"


def believable(model: Any, focals: dict[str, float | None]) -> bool:
    """Whether no camera of a model strays: f within 20 % of what EXIF told, where it did, and little distortion."""
    for number in model.reg_image_ids():
        camera, told = model.image(number).camera, focals.get(model.image(number).name)
        share = camera.focal_length / max(camera.width, camera.height)
        if camera.has_bogus_params(0.3, 10.0, STRAY) or (told is not None and abs(share / told - 1) > 0.2):
            return False
    return True


def fresh(folder: Path) -> Path:
    """An empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
