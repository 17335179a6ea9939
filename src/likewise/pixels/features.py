"""Features: points that can be found again, each with a descriptor. SIFT of OpenCV, learned ones of kornia, or any.

Points are (x, y) in pixels with pixel centres at integers. OpenCV's own points are not quite: SIFT's are off by ¼ px
unless its first octave is upscaled precisely, as here; those of other detectors of OpenCV are taken as they come (ORB's
are off by (s − 1)/2 px on a level that is s times coarser).
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


@dataclass(frozen=True, eq=False, repr=False)
class Features:
    """Points (n, 2) of an image, x then y, descriptors (n, d) and scores (n,), larger is more distinct.

    `binary` descriptors are bytes, eight bits each, and compared by Hamming's distance; others are numbers and compared
    by Euclid's.
    """

    points: Floats
    descriptors: NDArray[Any]
    scores: Floats
    binary: bool = False

    def __init__(self, points: Any, descriptors: Any, scores: Any = None, binary: bool | None = None) -> None:
        p, d = _array(points, "points"), _array(descriptors, "descriptors", None)
        p = p.reshape(-1, 2) if p.size == 0 else p
        if p.ndim != 2 or p.shape[1] != 2:
            raise ShapeError(f"points: expected (n, 2), x then y, got shape {p.shape}")
        if d.ndim != 2 or len(d) != len(p) or d.shape[1] == 0:
            raise ShapeError(f"descriptors: expected ({len(p)}, d), one a point, got shape {d.shape}")
        bits = d.dtype == np.uint8 if binary is None else binary
        if bits and d.dtype != np.uint8:
            raise InputError(f"descriptors: expected bytes (uint8) as they are binary, got {d.dtype}")
        each = np.ones(len(p), np.float32) if scores is None else _array(scores, "scores")
        if each.shape != (len(p),):
            raise ShapeError(f"scores: expected ({len(p)},), one a point, got shape {each.shape}")
        fields = {"points": p, "descriptors": d if bits else d.astype(np.float32), "scores": each, "binary": bits}
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.points)

    def take(self, which: Any) -> Features:
        """These features, by a mask (n,) or by their places."""
        return Features(self.points[which], self.descriptors[which], self.scores[which], self.binary)

    def strongest(self, most: int) -> Features:
        """The `most` with the largest scores, in that order; equal scores stay as they are."""
        return self.take(np.argsort(-self.scores, kind="stable")[:most])

    def __repr__(self) -> str:
        kind = f"{8 * self.descriptors.shape[1]} bits" if self.binary else f"{self.descriptors.shape[1]} numbers"
        return f"Features({len(self)} points with {kind} each)"


Detector: TypeAlias = Callable[["Tensor"], Any]
"""A function of an image (3, h, w) in [0, 1] that gives Features, or points (n, 2) and descriptors (n, d)."""


def detect(image: Any, features: str | Features | Detector | cv2.Feature2D = "sift", most: int = MOST) -> Features:
    """The features of an image, the `most` strongest of them, strongest first.

    `features` is a name: "sift" (RootSIFT: descriptors √(d / Σd), whose Euclidean distance is Hellinger's; without a
    flow it finds more matches, and more right ones, than plain SIFT), or one that kornia has: "disk", "aliked",
    "xfeat"; or a detector of OpenCV (`cv2.ORB_create()`); or a function of the tensor (3, h, w) (R2D2 or SuperPoint of
    one's own); or Features, taken as they are. OpenCV's see a dark image brightened (`brighten`). An `Image` keeps the
    features of each name.
    """
    if isinstance(features, Features):
        return features
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise InputError(f"most: expected a whole number ≥ 1, got {most!r}")
    photo = inputs.image(image)
    if callable(features):
        return as_features(features(photo.tensor)).strongest(most)
    if isinstance(features, cv2.Feature2D):
        return _opencv(features, photo.tensor).strongest(most)
    if features != "sift" and features not in LEARNED:
        known = ", ".join(("sift", *LEARNED))
        given = f"{known}, a detector of OpenCV, Features, or a function of the image"
        raise InputError(f"features: expected {given}, got {features!r}")

    def compute() -> Features:
        if features == "sift":
            plain = _opencv(CV.SIFT_create(nfeatures=most, enable_precise_upscale=True), photo.tensor)
            return Features(plain.points, root(plain.descriptors), plain.scores).strongest(most)
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


def root(descriptors: Floats) -> Floats:
    """√(d / Σd) of each row, RootSIFT (Arandjelović and Zisserman 2012): of unit length; a row of 0 stays."""
    total = np.abs(descriptors).sum(axis=1, keepdims=True)
    return np.asarray(np.sqrt(descriptors / np.maximum(total, np.finfo(np.float32).tiny)), dtype=np.float32)


def _opencv(detector: Any, image: Float[Tensor, "3 h w"]) -> Features:
    """What a detector of OpenCV finds in an image, which may be nothing."""
    try:
        keys, rows = detector.detectAndCompute(brighten(luma(image)), None)
    except cv2.error as error:  # a detector of one's own may need larger images than this one
        raise LikewiseError(f"features: OpenCV's {type(detector).__name__} failed on this image ({error})") from None
    if rows is None or not len(keys):
        binary = detector.descriptorType() == cv2.CV_8U
        rows = np.empty((0, detector.descriptorSize()), np.uint8 if binary else np.float32)
    table = np.array([(*k.pt, k.response) for k in keys], dtype=np.float32).reshape(-1, 3)
    return Features(table[:, :2], rows, table[:, 2])


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


LEARNED: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any, int], Features]]] = {
    "disk": (lambda kornia: kornia.DISK.from_pretrained("depth"), _disk),
    "aliked": (lambda kornia: kornia.ALIKED.from_pretrained(), _aliked),
    "xfeat": (lambda kornia: kornia.XFeat.from_pretrained(), _xfeat),
}
"""How kornia's networks are made, and how they are run."""
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
