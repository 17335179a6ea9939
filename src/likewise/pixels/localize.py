"""Where was this photo taken? A map made from photos by structure from motion, and queries placed in it.

A query is matched to the photos of the map that are most like it, by flow-guided matches; each match to a point that
the map knows in space is a 2-D–3-D correspondence; the pose follows by P3P in a robust search (pycolmap).
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from likewise import inputs
from likewise.errors import FileError, InputError
from likewise.pixels import metrics, robust, sfm
from likewise.pixels.features import MOST, Detector, Features, detect
from likewise.pixels.matching import RADIUS, match
from likewise.pixels.sfm import HALF, Photo, Survey, require_pycolmap
from likewise.store import run as runs
from likewise.types import Image

Floats: TypeAlias = NDArray[np.float64]

LIFT = 2.0
"""A matched point of a map's photo takes over the point in space of the SfM keypoint this near, in pixels."""
FOCAL = 1.2
"""COLMAP's guess of an unknown focal length: this times the longest side."""
SHORT = 1024
"""The features a photo by which the shortlist is made."""
LEAST = 6
"""Fewer correspondences than this give no pose."""


@dataclass(frozen=True, eq=False, repr=False)
class Located:
    """A query's pose: X_camera = R X + t in the map's frame and units, or None and the reason.

    `points` (n, 2) of the query and `places` (n, 3) of the map that were matched, which of them agree (`inliers`), the
    photos of the map that they come from, and the camera K (3, 3) that was used or found.
    """

    R: Floats | None
    t: Floats | None
    points: Floats
    places: Floats
    inliers: NDArray[np.bool_]
    photos: tuple[str, ...]
    K: Floats
    reason: str = ""

    @property
    def centre(self) -> Floats | None:
        """Where the camera stood, −Rᵀ t."""
        return None if self.R is None or self.t is None else np.asarray(-self.R.T @ self.t)

    @property
    def n(self) -> int:
        """How many correspondences agree."""
        return int(self.inliers.sum())

    def error(self, R: Any, t: Any) -> tuple[float, float]:
        """Distance of the centre from the true one, in the map's units, and degrees between the rotations."""
        return metrics.camera_error(self.R, self.t, R, t)

    def to_dict(self) -> dict[str, Any]:
        """The pose as plain Python values."""
        known = {"R": self.R, "t": self.t, "centre": self.centre, "K": self.K}
        about = {"inliers": self.n, "matches": len(self.points), "photos": list(self.photos), "reason": self.reason}
        return {name: None if v is None else v.tolist() for name, v in known.items()} | about

    def __repr__(self) -> str:
        if self.R is None:
            return f"Located(not placed: {self.reason})"
        return f"Located({self.n} of {len(self.points)} matches agree, to {len(self.photos)} photos)"


class Map:
    """Photos whose poses are known, and points in space that they show.

    `Map.build` makes one from a folder of photos, `Map.open` opens one, `.localize(query)` places a photo in it.

    Parameters
    ----------
    folder : Path
        Where images/ lies.
    survey : Survey
        The photos' cameras, and the points.
    metres : float, optional
        How long a unit of the map is, by the photos' GPS.

    Raises
    ------
    MissingExtra
        Without pycolmap (the extra `sfm`).

    Examples
    --------
    >>> import likewise as lw
    >>> place = lw.pixels.Map.build("photos/", "map/")                 # doctest: +SKIP
    >>> place.localize("query.jpg").centre                             # doctest: +SKIP
    array([0.41, -0.02, 1.73])
    """

    def __init__(self, folder: Path, survey: Survey, metres: float | None = None) -> None:
        self.folder, self.survey, self.metres = folder, survey, metres
        self._images: dict[str, Image] = {}

    @classmethod
    def build(cls, photos: str | os.PathLike[str], out: str | os.PathLike[str], **options: Any) -> Map:
        """A map of the photos in a folder, by `sfm.reconstruct` with its options; one that is finished is opened."""
        sfm.reconstruct(photos, out, **options)
        return cls.open(out)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Map:
        """The map in a folder that `build` or `sfm.reconstruct` made."""
        folder = Path(path)
        if not (folder / "model").is_dir():
            raise FileError(f"{folder}: not a map; make one with Map.build(photos, {str(folder)!r})")
        survey = Survey.read(folder / "model")
        if not survey.photos or not len(survey.points):
            raise FileError(f"{folder}: its model holds no photo or no point")
        return cls(folder, survey, _scale(folder / "summary.json"))

    def __len__(self) -> int:
        return len(self.survey.photos)

    def __repr__(self) -> str:
        unit = "" if self.metres is None else f", {self.metres:.3g} m a unit by GPS"
        return f"Map({len(self)} photos, {len(self.survey.points)} points{unit})"

    def localize(
        self,
        query: Any,
        *,
        guide: Any = "auto",
        retrieve: int = 5,
        features: str | Detector = "sift",
        radius: float = RADIUS,
        most: int = MOST,
        K: Any = None,
        px: float = 8.0,
        seed: int = 0,
    ) -> Located:
        """The pose of a query photo in the map.

        Parameters
        ----------
        query : image
            The photo, in any form that `likewise.inputs` takes.
        guide : {"auto", "never"} or model
            As for `likewise.pixels.match`: the flow that guides the matches.
        retrieve : int
            How many photos of the map are matched: those with the most mutual nearest features.
        features, radius, most
            As for `likewise.pixels.match`.
        K : array (3, 3), optional
            The query's camera; without it f comes from EXIF (a path) or is found along with the pose.
        px : float
            The reprojection error, in pixels, of an inlier.
        """
        if retrieve < 1:
            raise InputError(f"retrieve: expected a whole number ≥ 1, got {retrieve!r}")
        photo = inputs.image(query, where="query")
        own = detect(photo, features, most)
        points, places, used = [np.empty((0, 2))], [np.empty((0, 3))], []
        for known in self._shortlist(photo, own, features, retrieve):
            other = self.image(known.name)
            given = features if isinstance(features, str) else (own, detect(other, features, most))
            matches = match(photo, other, features=given, guide=guide, radius=radius, most=most)
            at, shows = lift(matches.b, known, LIFT)
            points.append(matches.a[at])
            places.append(self.survey.points[shows])
            used += [known.name] if len(at) else []
        both = np.unique(np.hstack([np.concatenate(points), np.concatenate(places)]), axis=0)
        located = place(both[:, :2], both[:, 2:], make_camera(photo, K), px=px, seed=seed)
        return replace(located, photos=tuple(used))

    def _shortlist(self, query: Image, own: Features, features: Any, retrieve: int) -> list[Photo]:
        images = [self.image(p.name) for p in self.survey.photos]
        if retrieve >= len(images):
            return list(self.survey.photos)
        few, others = own.strongest(SHORT), [detect(image, features, SHORT) for image in images]
        near: dict[str, Any] = {"matcher": "ratio", "ratio": 0.9, "guide": "never"}
        scores = np.array([len(match(query, query, features=(few, other), **near)) for other in others])
        return [self.survey.photos[i] for i in np.argsort(-scores, kind="stable")[:retrieve]]

    def image(self, name: str) -> Image:
        """A photo of the map, which keeps its features."""
        return self._images.setdefault(name, Image(self.folder / "images" / name))


# ---------------------------------------------------------------------------------------------------------------- pose


def make_camera(photo: Image, K: Any = None) -> Any:
    """The query's camera as pycolmap's: as given, or with the focal length of its EXIF or a guess, to be refined."""
    h, w = photo.size
    f = (FOCAL if photo.exif.focal is None else photo.exif.focal) * max(h, w)
    model, params = "SIMPLE_PINHOLE", [f, w / 2, h / 2]
    if K is not None:
        K = robust.camera("K", K)
        model, params = "PINHOLE", [K[0, 0], K[1, 1], *(K[:2, 2] + HALF)]
    made = require_pycolmap().Camera(model=model, width=w, height=h, params=params)
    made.has_prior_focal_length = K is not None
    return made


def lift(points: Floats, photo: Photo, radius: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which of these points of a photo lie within `radius` px of one that it shows of the map, and which that is."""
    apart, which = cKDTree(photo.points).query(points, distance_upper_bound=radius)
    at = np.flatnonzero(np.isfinite(apart))
    return at, photo.shows[which[at]]


def place(points: Floats, places: Floats, camera: Any, *, px: float = 8.0, seed: int = 0) -> Located:
    """The pose under which most places (n, 3) of the map appear within px of their points (n, 2), refined; and f,
    unless the camera has a prior one."""
    pycolmap = require_pycolmap()
    search, polish = pycolmap.AbsolutePoseEstimationOptions(), pycolmap.AbsolutePoseRefinementOptions()
    search.estimate_focal_length = polish.refine_focal_length = not camera.has_prior_focal_length
    search.ransac.max_error, search.ransac.random_seed = px, seed
    estimate = pycolmap.estimate_and_refine_absolute_pose(points + HALF, places, camera, search, polish)
    K = np.array(camera.calibration_matrix(), dtype=np.float64)
    K[:2, 2] -= HALF
    if estimate is None or int(estimate["num_inliers"]) < LEAST:
        few = f"{len(points)} features match points of the map, {LEAST} needed"
        reason = few if len(points) < LEAST else f"no pose agrees with {LEAST} of {len(points)} matches to {px:g} px"
        return Located(None, None, points, places, np.zeros(len(points), dtype=bool), (), K, reason)
    pose, inliers = estimate["cam_from_world"], np.asarray(estimate["inlier_mask"], dtype=bool)
    R, t = np.array(pose.rotation.matrix(), dtype=np.float64), np.array(pose.translation, dtype=np.float64)
    return Located(R, t, points, places, inliers, (), K)


def _scale(file: Path) -> float | None:
    """Metres a unit, where the summary of a reconstruction tells them."""
    told = runs.read_json(file).get("metres a unit") if file.exists() else None
    if not told:
        return None
    scale = told.get("scale") if isinstance(told, dict) else None
    if not isinstance(scale, float) or not 0 < scale < math.inf:
        raise FileError(f"{file}: damaged: expected metres a unit > 0, got {str(scale)[:40]}")
    return scale
