"""Features: points that can be found again, each with a descriptor, by name or in any form that others give them.

Points are (x, y) in pixels with pixel centres at integers. Not all detectors keep to that: SIFT's points are off by
¼ px unless its first octave is upscaled precisely, as here; kornia's XFeat counts from the corners of pixels where it
resizes (up to ½ px at a side of 63, 0.02 px at 600, corrected here); those of other detectors are taken as they come
(OpenCV's ORB is off by (s − 1)/2 px on a level that is s times coarser).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import cv2
import kornia.feature as kornia
import numpy as np
import torch
from jaxtyping import Float, UInt8
from kornia.feature.xfeat import BasicLayer
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

from likewise import inputs
from likewise.errors import InputError, LikewiseError, ShapeError
from likewise.nn.pretrained import load_state, read_state, weights_file
from likewise.nn.r2d2 import R2D2
from likewise.nn.superpoint import SuperPoint
from likewise.pixels.geometry import Size, resize_points, size_of
from likewise.types import Image

Floats: TypeAlias = NDArray[np.float32]
CV: Any = cv2
"""OpenCV, whose stubs lack what its versions disagree on."""

NAMES = ("xfeat", "sift", "aliked", "disk", "superpoint", "r2d2")
"""The features that have a name."""
MOST = 4096
"""The most features that are kept of an image, the strongest ones."""
LONGEST = 1024
"""The longest side, in pixels, at which networks look at an image: about the size that they were trained at."""
ENLARGED = 960
"""The longest side, in pixels, up to which XFeat has images enlarged, twice at most.

It was trained on crops of 800 px, and finds points at whole pixels. Photos of 480 px, 1,024 points, share of true pairs
with more inliers of H than any of 120 unrelated ones: campus 0.90 → 1.0, nordland 0.90 → 1.0, webcams 0.80 → 0.93 (of
30 each; 0.93, 0.97, 0.87 at 800 px). MMA@3 of graf 71 → 83, wall 81 → 85. With that, points between pixels, read off
the heat map, added nothing.
"""
SHORTEST = 16
"""Networks find nothing in images of a shorter side: their cells are 8 pixels wide."""
BRIGHT, DARK = 99.5, 0.5
"""An image whose percentile BRIGHT is below DARK is lit up before OpenCV's detectors see it."""
SCORES = ("scores", "keypoint_scores", "detection_scores", "responses")
"""What the strengths of points are called by those who give them."""


@dataclass(frozen=True, eq=False, repr=False)
class Features:
    """Points of an image with their descriptors.

    Parameters
    ----------
    points : array (n, 2)
        In pixels, x then y, pixel centres at integers.
    descriptors : array (n, d)
        Numbers, compared by Euclid's distance, or `binary` ones: bytes, eight bits each, compared by Hamming's.
    scores : array (n,), optional
        Larger is more distinct.
    binary : bool, optional
        By default whether descriptors are bytes.
    name : str
        One of NAMES where they are such: it says which LightGlue was trained for them.

    Raises
    ------
    ShapeError
        Where descriptors and scores are not one a point.

    Examples
    --------
    >>> Features([[1, 2], [3, 4]], [[1.0, 0.0], [0.0, 1.0]])
    Features(2 points with 2 numbers each)
    """

    points: Floats
    descriptors: NDArray[Any]
    scores: Floats
    binary: bool = False
    name: str = ""

    def __init__(
        self, points: Any, descriptors: Any, scores: Any = None, binary: bool | None = None, name: str = ""
    ) -> None:
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
        for field, value in (fields | {"name": name}).items():
            object.__setattr__(self, field, value)

    def __len__(self) -> int:
        return len(self.points)

    def take(self, which: Any) -> Features:
        """These features, by a mask (n,) or by their places."""
        return Features(self.points[which], self.descriptors[which], self.scores[which], self.binary, self.name)

    def strongest(self, most: int) -> Features:
        """The `most` with the largest scores, in that order; equal scores stay as they are."""
        return self.take(np.argsort(-self.scores, kind="stable")[:most])

    def __repr__(self) -> str:
        kind = f"{8 * self.descriptors.shape[1]} bits" if self.binary else f"{self.descriptors.shape[1]} numbers"
        return f"Features({len(self)} points with {kind} each)"


Detector: TypeAlias = Callable[["Tensor"], Any]
"""A function of an image (3, h, w) in [0, 1] that gives features in any form of `as_features`."""
TAKEN = (
    f"{', '.join(NAMES)}, a function of the image (3, h, w), a detector of OpenCV or kornia, or features themselves: "
    "Features, (points, descriptors[, scores]), a dict with keypoints and descriptors, or cv2.KeyPoints and descriptors"
)


def detect(image: Any, features: Any = "sift", most: int = MOST) -> Features:
    """The features of an image, the `most` strongest of them, strongest first.

    Parameters
    ----------
    image : image
        In any form that `likewise.inputs` takes; an `Image` keeps the features of each name.
    features : str, callable, cv2.Feature2D, Module or features
        "xfeat"; "sift" (RootSIFT: descriptors √(d / Σd), whose Euclidean distance is Hellinger's; without a flow it
        finds more matches, and more right ones, than plain SIFT); "aliked", "disk", "superpoint" and "r2d2", whose
        weights `likewise weights` fetches; a detector of OpenCV (`cv2.ORB_create()`), which sees dark images
        brightened; a module of kornia or like them, which gets a batch of one; a function of the tensor (3, h, w); or
        the features themselves, in any form of `as_features`, taken as they are.
    most : int
        The most features that are kept.

    Returns
    -------
    Features
        Points, descriptors and scores.

    Raises
    ------
    InputError
        Where `features` is nothing of that, or what it gives is no features.
    FileError
        Where the weights of a network are not there.

    Examples
    --------
    >>> from likewise import samples
    >>> detect(samples.pair()[0], "xfeat", most=100)
    Features(100 points with 64 numbers each)
    """
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise InputError(f"most: expected a whole number ≥ 1, got {most!r}")
    if not is_detector(features):
        return as_features(features)
    return detect_view(inputs.image(image), features, most)


def is_detector(features: Any) -> bool:
    """Whether features are found in an image by this, rather than being features themselves."""
    if isinstance(features, str) and features not in NAMES:
        raise InputError(f"features: expected {TAKEN}; got {features!r}")
    return isinstance(features, str | cv2.Feature2D) or hasattr(features, "detectAndCompute") or callable(features)


def name_of(features: Any) -> str:
    """Which of NAMES a detector is; empty for others."""
    own = next((name for name, kind in LEARNED.items() if isinstance(features, kind)), "")
    return features if isinstance(features, str) else own


def detect_view(image: Image, features: Any, most: int, turn: int = 0, scale: float = 1.0) -> Features:
    """The features of an image turned by `turn` · 90° to the left and scaled, at their places in it as it is."""

    def compute() -> Features:
        whole = torch.rot90(image.tensor, turn, (1, 2))
        size, name = size_of(whole), name_of(features)
        work = working_size(size, name, scale)
        if min(work) < SHORTEST and name in LEARNED:
            return Features([], np.empty((0, WIDTHS[name]), np.float32), name=name)
        shown = whole
        if work != size:
            # antialias: without it, half of a photo's size is another texture
            shown = functional.interpolate(whole[None], work, mode="bilinear", align_corners=False, antialias=True)[0]
        result = _run(features, name, shown, most)
        points = turned(resize_points(torch.from_numpy(result.points), work, size).numpy(), size, -turn)
        return Features(points, result.descriptors, result.scores, result.binary, name).strongest(most)

    if not isinstance(features, str):
        return compute()
    kept: Features = image.remember(("features", features, most, turn % 4, scale), compute)
    return kept


def detect_as_is(image: Float[Tensor, "3 h w"], name: str, most: int) -> Features:
    """The features of a name of an image at the size that it has, strongest first."""
    found = _run(name, name, image, most)
    return Features(found.points, found.descriptors, found.scores, found.binary, name).strongest(most)


def turned(points: NDArray[Any], size: Size, turn: int) -> NDArray[Any]:
    """Where points of an image (h, w) are after it is turned by `turn` · 90° to the left (`torch.rot90`)."""
    (h, w), x, y = size, points[:, 0], points[:, 1]
    return np.column_stack([(x, y), (y, w - 1 - x), (w - 1 - x, h - 1 - y), (h - 1 - y, x)][turn % 4])


def working_size(size: Size, name: str, scale: float = 1.0) -> Size:
    """The size (h, w) at which features of this name are sought in an image of this size, times `scale`."""
    least, largest = (ENLARGED if name == "xfeat" else 0, LONGEST) if name in LEARNED else (0, max(size))
    factor = scale * min(largest / max(size), max(1.0, min(2.0, least / max(size))))
    return max(1, round(size[0] * factor)), max(1, round(size[1] * factor))


def _run(features: Any, name: str, image: Float[Tensor, "3 h w"], most: int) -> Features:
    """What a detector gives for an image as it is."""
    if features == "sift":
        plain = _opencv(CV.SIFT_create(nfeatures=most, enable_precise_upscale=True), image)
        return Features(plain.points, root(plain.descriptors), plain.scores)
    if isinstance(features, cv2.Feature2D):
        return _opencv(features, image)
    if not isinstance(features, str | nn.Module):
        run = features if callable(features) else features.detectAndCompute
        return as_features(run(image))
    with torch.inference_mode():
        return _forward(network(features) if isinstance(features, str) else features, name, image[None], most)


def luma(image: Float[Tensor, "3 h w"]) -> Float[np.ndarray, "h w"]:
    """0.299 R + 0.587 G + 0.114 B, float32 in [0, 1]."""
    r, g, b = image.detach().cpu().numpy()
    return np.asarray(np.clip(0.299 * r + 0.587 * g + 0.114 * b, 0, 1), dtype=np.float32)


# ----------------------------------------------------------------------------------------------------- forms of others


def as_features(given: Any) -> Features:
    """Features of one image in the form that detectors give them.

    Parameters
    ----------
    given : Features, tuple, Mapping or object
        (points, descriptors[, scores]), as arrays or tensors; (cv2.KeyPoints, descriptors); keypoints, descriptors and
        scores under these names (also keypoint_scores, detection_scores) in a dict or as attributes; kornia's (lafs,
        responses, descriptors) and (keypoints, scores, descriptors). A batch of one is one; descriptors (d, n) of n ≠ d
        points are turned round, and so are keypoints (2, n).

    Returns
    -------
    Features

    Raises
    ------
    InputError
        Where it is nothing of that, or more than one image's.

    Examples
    --------
    >>> as_features({"keypoints": [[[1, 2], [3, 4], [5, 6]]], "descriptors": [[[0, 1], [1, 0], [1, 1]]]})
    Features(3 points with 2 numbers each)
    """
    if isinstance(given, Features):
        return given
    if isinstance(given, Mapping):
        return _named(given, given.get)
    if hasattr(given, "keypoints") and hasattr(given, "descriptors"):
        return _named(dir(given), lambda name: getattr(given, name, None))
    if isinstance(given, tuple | list) and len(given) == 1:
        return as_features(given[0])
    if isinstance(given, tuple | list) and 2 <= len(given) <= 3 and not hasattr(given[0], "pt"):
        points, *rest = given
        if len(rest) == 2 and _depth(rest[1]) > _depth(rest[0]):  # kornia has the scores before the descriptors
            rest = rest[::-1]
        return _features(points, *rest)
    raise InputError(f"features: expected {TAKEN}; got {described(given)}")


def _named(names: Any, get: Callable[[str], Any]) -> Features:
    points = next((get(n) for n in ("keypoints", "lafs", "points") if n in names), None)
    if points is None or "descriptors" not in names:
        known = ", ".join(sorted(str(n) for n in names)[:6])
        raise InputError(f"features: expected keypoints and descriptors in a dict, got {known or 'an empty one'}")
    return _features(points, get("descriptors"), next((get(n) for n in SCORES if get(n) is not None), None))


def _features(points: Any, descriptors: Any, scores: Any = None) -> Features:
    if isinstance(points, tuple | list) and len(points) and hasattr(points[0], "pt"):
        scores = [k.response for k in points] if scores is None else scores
        points = [k.pt for k in points]
    p, d = _array(points, "keypoints"), _array([] if descriptors is None else descriptors, "descriptors", None)
    s = None if scores is None else _array(scores, "scores")
    if p.shape[-2:] == (2, 3) and p.ndim in (3, 4):  # local affine frames; detectors fill up with frames of 0
        p = _single(p, 3)
        filled = np.asarray(p.any(axis=(1, 2)))
        d, s = _single(d, 2)[filled], None if s is None else s.reshape(len(filled), -1)[filled, 0]
        p = p[filled, :, 2]
    p, d = _single(p, 2), _single(d, 2)
    if p.size == 0:
        return Features([], np.empty((0, max(1, *d.shape)), d.dtype))
    if p.ndim == 2 and p.shape[0] == 2 and p.shape[1] != 2:
        p = p.T
    if d.ndim == 2 and d.shape[1] == len(p) != d.shape[0]:
        d = d.T
    return Features(p, d, None if s is None else s.reshape(-1) if s.size == len(p) else s)


def _single(array: NDArray[Any], dims: int) -> NDArray[Any]:
    """A batch of one without its axis."""
    if array.ndim == dims + 1 and array.shape[0] != 1:
        raise ShapeError(f"features: expected those of one image, got a batch of {array.shape[0]}")
    return array[0] if array.ndim == dims + 1 else array


def _depth(value: Any) -> int:
    return int(getattr(value, "ndim", None) or np.ndim(value))


def described(value: Any) -> str:
    """What something is, in a word or two, for errors."""
    return f"{len(value)} items" if isinstance(value, tuple | list) else type(value).__name__


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


# ------------------------------------------------------------------------------------------------------------- networks

LEARNED: dict[str, Any] = {
    **{"xfeat": kornia.XFeat, "aliked": kornia.ALIKED, "disk": kornia.DISK},
    **{"superpoint": SuperPoint, "r2d2": R2D2},
}
"""The networks that have a name."""
WIDTHS = {"xfeat": 64, "aliked": 128, "disk": 128, "superpoint": 256, "r2d2": 128}
"""How many numbers their descriptors have."""
FILES = {"aliked": "aliked-n16"}
"""The names of their weights, where these differ."""
DERIVED = ("num_batches_tracked", "hw_grid", "confidence_thresholds")
"""What a network computes by itself, and files may lack."""


@functools.cache
def network(name: str) -> Any:
    """A network with its published weights: one a process."""
    made = LEARNED[name]().eval()
    fill(made.net if name == "xfeat" else made, FILES.get(name, name))
    if name == "xfeat":  # the same points, 30 CPU-ms instead of 40 at 640 × 480
        layers: list[Any] = [part for part in made.net.modules() if isinstance(part, BasicLayer)]
        for convolution, norm, relu, layer in [(*layer.layer, layer) for layer in layers]:
            layer.layer = nn.Sequential(fuse_conv_bn_eval(convolution, norm), relu)
        made.net.to(memory_format=torch.channels_last)
    return made


def fill(module: nn.Module, weights: str, rename: Callable[[str], str] = str) -> None:
    """Load published weights into a module; keys of the file that it lacks belong to other modules."""
    own = module.state_dict()
    state = {rename(key): tensor for key, tensor in read_state(weights_file(weights)).items()}
    given = {key: tensor for key, tensor in state.items() if key in own}
    load_state(module, {k: v for k, v in own.items() if k.endswith(DERIVED)} | given, weights)


def _forward(module: Any, name: str, images: Float[Tensor, "1 3 h w"], most: int) -> Features:
    """What a network gives for a batch of one."""
    if name == "xfeat":
        found = module.detectAndCompute(images, top_k=most)[0]
        # A point i of the resized image is reported at i · s, s = side / resized side: its centre is at (i + ½) s − ½.
        s = images.new_tensor([side / max(32, side // 32 * 32) for side in (images.shape[-1], images.shape[-2])])
        return Features(found["keypoints"] + (s - 1) / 2, found["descriptors"], found["scores"], binary=False)
    if name == "disk":
        return as_features(module(images, n=most, pad_if_not_divisible=True))
    if name in ("superpoint", "r2d2"):
        shown = images[0] if name == "r2d2" else torch.from_numpy(luma(images[0]))[None]
        points, descriptors, scores = module.points(shown, most)
        return Features(points, descriptors, scores, binary=False)
    if isinstance(module, kornia.LocalFeature):  # its detectors and patches are of grey images
        return as_features(module(torch.from_numpy(luma(images[0]))[None, None]))
    run = module.detectAndCompute if hasattr(module, "detectAndCompute") else module
    return as_features(run(images))


# -------------------------------------------------------------------------------------------------------------- pieces


def _array(values: Any, name: str, dtype: Any = np.float32) -> NDArray[Any]:
    given = values.detach().cpu() if hasattr(values, "detach") else values
    try:
        given = given.float() if isinstance(given, Tensor) and given.dtype == torch.bfloat16 else given
        array = np.ascontiguousarray(given, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected an array of numbers, got {type(values).__name__} ({error})") from None
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name}: expected an array of numbers, got {array.dtype}")
    if not np.isfinite(array).all():
        raise InputError(f"{name} contain NaN or infinity")
    return array
