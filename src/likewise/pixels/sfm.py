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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from likewise import media
from likewise.errors import FileError, InputError, LikewiseError, MissingExtra
from likewise.pixels import surveys
from likewise.pixels.exif import shot
from likewise.pixels.views import Pairs
from likewise.store import run as runs

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
        survey = surveys.Survey.read(self.out / "model")
        names, arrays, errors = surveys.pairs(survey, self.settings.overlap)
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

    def _summary(self, survey: surveys.Survey) -> dict[str, Any]:
        photos, model = self.results["photos"]["photos"], self.results["model"]
        places = {p["name"]: p["place"] for p in photos if p["place"] is not None}
        return {
            "photos": len(photos),
            "registered": len(model["registered"]),
            "left out": [p["from"] for p in photos if p["name"] not in set(model["registered"])],
            "points": model["points"],
            "reprojection error": model["reprojection"],
            "metres a unit": surveys.metres_a_unit(survey, places),
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
    import cv2

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
