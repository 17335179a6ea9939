"""Features: points that can be found again, each with a descriptor. SIFT, ORB, AKAZE of OpenCV; learned ones of kornia.

Points are (x, y) in pixels with pixel centres at integers. OpenCV's own points are not quite: SIFT's are off by ¼ px
unless its first octave is upscaled precisely, and ORB's by (s − 1)/2 px on a level that is s times coarser; both are
put right here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import cv2
import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from likewise import inputs
from likewise.errors import InputError, LikewiseError, MissingExtra, ShapeError

Floats: TypeAlias = NDArray[np.float32]
CV: Any = cv2
"""OpenCV, whose stubs lack what its versions disagree on."""

MOST = 4096
"""The most features that are kept of an image, the strongest ones."""
BRIGHT, DARK = 99.5, 0.5
"""An image whose percentile BRIGHT is below DARK is lit up before features are sought."""
ORB_SCALE = 1.2
"""How much coarser each level of ORB's pyramid is than the one before."""


@dataclass(frozen=True, eq=False, repr=False)
class Features:
    """Points (n, 2) of an image, x then y, descriptors (n, d) and scores (n,), larger is more distinct.

    `scale` (n,) in pixels and `angle` (n,) in degrees where the detector gives them. `binary` descriptors are bytes,
    eight bits each, and compared by Hamming's distance; others are numbers and compared by Euclid's.
    """

    points: Floats
    descriptors: NDArray[Any]
    scores: Floats
    scale: Floats | None = None
    angle: Floats | None = None
    binary: bool = False

    def __init__(
        self,
        points: Any,
        descriptors: Any,
        scores: Any = None,
        scale: Any = None,
        angle: Any = None,
        binary: bool | None = None,
    ) -> None:
        p = _array(points, "points", np.float32).reshape(-1, 2) if np.size(points) == 0 else _array(points, "points")
        if p.ndim != 2 or p.shape[1] != 2:
            raise ShapeError(f"points: expected (n, 2), x then y, got shape {p.shape}")
        d = _array(descriptors, "descriptors", None)
        bits = d.dtype == np.uint8 if binary is None else binary
        fields = {"points": p, "descriptors": _descriptors(d, len(p), bits), "binary": bits}
        fields["scores"] = np.ones(len(p), np.float32) if scores is None else _each(scores, len(p), "scores")
        fields["scale"], fields["angle"] = (
            None if v is None else _each(v, len(p), name) for name, v in (("scale", scale), ("angle", angle))
        )
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.points)

    def take(self, which: Any) -> Features:
        """These features, by a mask (n,) or by their places."""
        scores, scale, angle = (None if v is None else v[which] for v in (self.scores, self.scale, self.angle))
        return Features(self.points[which], self.descriptors[which], scores, scale, angle, self.binary)

    def strongest(self, most: int) -> Features:
        """The `most` with the largest scores, in that order; equal scores stay as they are."""
        return self.take(np.argsort(-self.scores, kind="stable")[:most])

    def __repr__(self) -> str:
        kind = f"{8 * self.descriptors.shape[1]} bits" if self.binary else f"{self.descriptors.shape[1]} numbers"
        return f"Features({len(self)} points with {kind} each)"


Detector: TypeAlias = Callable[["Tensor"], Any]
"""A function of an image (3, h, w) in [0, 1] that gives Features, or points (n, 2) and descriptors (n, d)."""


def detect(image: Any, features: str | Features | Detector = "sift", most: int = MOST) -> Features:
    """The features of an image, the `most` strongest of them, strongest first.

    `features` is a name: "sift" (RootSIFT: descriptors √(d / Σd), whose Euclidean distance is Hellinger's; without a
    flow it finds more matches, and more right ones, than plain SIFT), "sift-l2" (plain), "orb", "akaze" (where this
    OpenCV has it), or one that kornia has: "disk", "aliked", "xfeat", "keynet"; or a function of the tensor (3, h, w)
    (R2D2 or SuperPoint of one's own); or Features, taken as they are. OpenCV's see a dark image brightened
    (`brighten`). An `Image` keeps the features of each name.
    """
    if isinstance(features, Features):
        return features
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise InputError(f"most: expected a whole number ≥ 1, got {most!r}")
    photo = inputs.image(image)
    if callable(features):
        return as_features(features(photo.tensor)).strongest(most)
    if features not in CLASSIC and features not in LEARNED:
        known = ", ".join((*CLASSIC, *LEARNED))
        raise InputError(
            f"features: expected {known}, Features, or a function of the image, got {features!r}"
            + ("; give a function that runs it" if str(features) in OUTSIDE else "")
        )

    def compute() -> Features:
        if features in CLASSIC:
            return CLASSIC[features](brighten(luma(photo.tensor)), most).strongest(most)
        with torch.inference_mode():
            return LEARNED[features][1](_network(features), photo.tensor[None], most).strongest(most)

    kept: Features = photo.remember(("features", features, most), compute)
    return kept


def luma(image: Float[Tensor, "3 h w"]) -> Float[np.ndarray, "h w"]:
    """0.299 R + 0.587 G + 0.114 B, float32 in [0, 1]."""
    r, g, b = image.detach().cpu().numpy()
    return np.asarray(np.clip(0.299 * r + 0.587 * g + 0.114 * b, 0, 1), dtype=np.float32)


def as_features(given: Any) -> Features:
    """Features as they are, or points and descriptors as such."""
    if isinstance(given, Features):
        return given
    if isinstance(given, tuple | list) and 2 <= len(given) <= 3:
        return Features(*given)
    raise InputError(f"features: expected Features, or (points, descriptors[, scores]), got {type(given).__name__}")


# --------------------------------------------------------------------------------------------------------------- OpenCV


def brighten(shade: Float[np.ndarray, "h w"]) -> UInt8[np.ndarray, "h w"]:
    """Luma as 8 bits; of a dark image, whose 99.5th percentile p is below ½, √(x / p).

    Descriptors do not mind a dark image, but detectors do: their thresholds are in grey levels. A photo at an eighth
    of its light (γ 2.2, noise of 0.02) gave 5 SIFT features as it was, 2,619 lit up, 168 instead of 1 rightly matched.
    """
    top = float(np.percentile(shade, BRIGHT))
    lighter = shade if top >= DARK else np.sqrt(np.clip(shade / max(top, 1e-3), 0, 1))
    return np.asarray(np.rint(lighter * 255), dtype=np.uint8)


def _sift(shown: UInt8[np.ndarray, "h w"], most: int) -> Features:
    plain = _sift_l2(shown, most)
    return Features(plain.points, root(plain.descriptors), plain.scores, plain.scale, plain.angle)


def root(descriptors: Floats) -> Floats:
    """√(d / Σd) of each row, RootSIFT (Arandjelović and Zisserman 2012): of unit length; a row of 0 stays."""
    total = np.abs(descriptors).sum(axis=1, keepdims=True)
    return np.asarray(np.sqrt(descriptors / np.maximum(total, np.finfo(np.float32).tiny)), dtype=np.float32)


def _sift_l2(shown: UInt8[np.ndarray, "h w"], most: int) -> Features:
    detector = CV.SIFT_create(nfeatures=most, enable_precise_upscale=True)
    keys, rows = detector.detectAndCompute(shown, None)
    return _collected(keys, rows, 128, np.float32)


def _orb(shown: UInt8[np.ndarray, "h w"], most: int) -> Features:
    if min(shown.shape) < 64:  # its border of 31 px leaves nothing, and its pyramid can fail
        return _collected((), None, 32, np.uint8)
    detector = CV.ORB_create(nfeatures=most, scaleFactor=ORB_SCALE, fastThreshold=10)
    keys, rows = detector.detectAndCompute(shown, None)
    plain = _collected(keys, rows, 32, np.uint8)
    levels = np.array([k.octave for k in keys], dtype=np.int64)
    points = _orb_points(plain.points, levels, shown.shape[:2])
    return Features(points, plain.descriptors, plain.scores, plain.scale, plain.angle, True)


def _orb_points(points: Floats, levels: NDArray[np.int64], size: tuple[int, ...]) -> Floats:
    """(x + ½) w / w_k − ½ for the place x on level k, whose image is w_k = round(w / 1.2ᵏ) wide; OpenCV: x 1.2ᵏ."""
    factor = ORB_SCALE ** levels[:, None].astype(np.float64)
    full = np.array([size[1], size[0]], dtype=np.float64)
    own = points / factor
    return np.asarray((own + 0.5) * (full / np.rint(full / factor)) - 0.5, dtype=np.float32)


def _akaze(shown: UInt8[np.ndarray, "h w"], most: int) -> Features:
    create = getattr(CV, "AKAZE_create", None) or getattr(getattr(CV, "xfeatures2d", None), "AKAZE_create", None)
    if create is None:
        advice = "pip install opencv-contrib-python-headless, or opencv-python-headless below 5"
        raise LikewiseError(f"features: OpenCV {CV.__version__} has no AKAZE; {advice}, or take 'sift' or 'orb'")
    keys, rows = create(max_points=most).detectAndCompute(shown, None)
    return _collected(keys, rows, 61, np.uint8)


def _collected(keys: Any, rows: NDArray[Any] | None, d: int, dtype: Any) -> Features:
    """OpenCV's keypoints and descriptors, of which there may be none."""
    if rows is None or not len(keys):
        return Features(np.empty((0, 2)), np.empty((0, d), dtype), binary=dtype == np.uint8)
    table = np.array([(*k.pt, k.response, k.size, k.angle) for k in keys], dtype=np.float32)
    scores, scale, angle = table.T[2:]
    return Features(table[:, :2], rows.astype(dtype), scores, scale, angle, dtype == np.uint8)


CLASSIC: dict[str, Callable[[Any, int], Features]] = {"sift": _sift, "sift-l2": _sift_l2, "orb": _orb, "akaze": _akaze}


# --------------------------------------------------------------------------------------------------------------- kornia


_NETWORKS: dict[str, Any] = {}


def _network(name: str) -> Any:
    """A network of kornia, whose weights kornia fetches once and keeps."""
    if name not in _NETWORKS:
        try:
            import kornia.feature as kornia
        except ImportError:
            raise MissingExtra("kornia", "features") from None
        try:
            _NETWORKS[name] = LEARNED[name][0](kornia).eval()
        except AttributeError:
            raise LikewiseError(f"features: this kornia has no {name}; pip install --upgrade kornia") from None
        except Exception as error:  # no network, no room, a damaged download: kornia and torch.hub raise anything
            raise LikewiseError(
                f"features: the weights of {name} cannot be loaded ({error}); kornia fetches them once from the "
                f"network: connect, or take 'sift', or give a function of the image"
            ) from error
    return _NETWORKS[name]


def _disk(network: Any, images: Tensor, most: int) -> Features:
    features = network(images, n=most, pad_if_not_divisible=True)[0]
    return Features(features.keypoints, features.descriptors, features.detection_scores, binary=False)


def _aliked(network: Any, images: Tensor, most: int) -> Features:
    features = network(images)[0]
    return Features(features.keypoints, features.descriptors, features.keypoint_scores, binary=False)


def _xfeat(network: Any, images: Tensor, most: int) -> Features:
    features = network.detectAndCompute(images, top_k=most)[0]
    return Features(features["keypoints"], features["descriptors"], features["scores"], binary=False)


def _keynet(network: Any, images: Tensor, most: int) -> Features:
    frames, scores, rows = network(images.mean(dim=1, keepdim=True))
    return Features(frames[0, :, :, 2], rows[0], scores[0].reshape(-1), binary=False)


LEARNED: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any, int], Features]]] = {
    "disk": (lambda kornia: kornia.DISK.from_pretrained("depth"), _disk),
    "aliked": (lambda kornia: kornia.ALIKED.from_pretrained(), _aliked),
    "xfeat": (lambda kornia: kornia.XFeat.from_pretrained(), _xfeat),
    "keynet": (lambda kornia: kornia.KeyNetAffNetHardNet(num_features=MOST), _keynet),
}
"""How kornia's networks are made, and how they are run."""
OUTSIDE = ("superpoint", "r2d2", "d2net", "dedode")
"""Known networks whose code is not at hand: their features are given by a function or as arrays."""


# -------------------------------------------------------------------------------------------------------------- pieces


def _array(values: Any, name: str, dtype: Any = np.float32) -> NDArray[Any]:
    given = values.detach().cpu().numpy() if hasattr(values, "detach") else values
    try:
        array = np.ascontiguousarray(given, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected an array of numbers, got {type(values).__name__} ({error})") from None
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name}: expected an array of numbers, got {array.dtype}")
    if not np.isfinite(array).all():
        raise InputError(f"{name} contain NaN or infinity")
    return array


def _descriptors(rows: NDArray[Any], n: int, bits: bool) -> NDArray[Any]:
    if rows.ndim != 2 or len(rows) != n or rows.shape[1] == 0:
        raise ShapeError(f"descriptors: expected ({n}, d), one a point, got shape {rows.shape}")
    if bits and rows.dtype != np.uint8:
        raise InputError(f"descriptors: expected bytes (uint8) as they are binary, got {rows.dtype}")
    return rows if bits else rows.astype(np.float32)


def _each(values: Any, n: int, name: str) -> Floats:
    array = _array(values, name)
    if array.shape != (n,):
        raise ShapeError(f"{name}: expected ({n},), one a point, got shape {array.shape}")
    return array
