"""The plain types that levels hand to each other, to plots and to files. Shapes are documented here, once."""

from __future__ import annotations

import base64
import html
import io
import json
import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likewise import media
from likewise.errors import InputError, ShapeError

Array = NDArray[np.float64]


ROUNDING = 1e-4
"""How far resampled floats may lie beyond [0, 1] and still count as an image: what bicubic filters overshoot."""


TURNED = 0x112
"""The tag of EXIF that says how a camera was held."""


class Image:
    """One image, decoded at most once; while it is in use it keeps what was computed from it.

    Parameters
    ----------
    source : str, PathLike, Pillow image, array or Tensor
        A file; any Pillow image; an array (h, w), (h, w, 1), (h, w, 3) or (h, w, 4) or a tensor (h, w) or (c, h, w) as
        uint8, uint16 or floats in [0, 1]. Grey is repeated, transparency laid over white.
    name : str, optional
        What it is called in results; by default its path, or "" for what came from memory.
    where : str
        What it is called in errors.

    Examples
    --------
    >>> import numpy as np
    >>> image = Image(np.zeros((4, 6), np.uint8), name="black")
    >>> image.pixels.shape, tuple(image.tensor.shape)
    ((4, 6, 3), (3, 4, 6))
    """

    def __init__(self, source: Any, *, name: str | None = None, where: str = "image") -> None:
        self.path = Path(source) if isinstance(source, str | os.PathLike) else None
        self.where = where
        array = hasattr(source, "shape") and self.path is None  # NumPy's strings have a shape, too
        self._source = _channels_last(source, where) if array else source
        if self.path is None and not array and not hasattr(source, "getexif"):
            raise InputError(
                f"{where}: expected a path, an array, a Pillow image or a tensor, got {type(source).__name__}"
            )
        own = str(getattr(source, "filename", "") if self.path is None else self.path)
        self.name = own if name is None else name
        self._kept: dict[Hashable, Any] = {}

    def __repr__(self) -> str:
        return f"Image({self.name or 'from memory'})"

    @property
    def pixels(self) -> NDArray[np.uint8]:
        """uint8 (h, w, 3), upright, RGB; decoded when first asked for."""
        return np.asarray(self.remember("pixels", self._decode))

    @property
    def tensor(self) -> Any:
        """A float32 tensor (3, h, w) in [0, 1]; deep arrays and floats keep their precision."""
        import torch  # here: who compares sets of numbers never pays for it

        deep = isinstance(self._source, np.ndarray) and self._source.dtype != np.uint8
        values = _unit_rgb(self._source) if deep else self.pixels.astype(np.float32) / np.float32(255)
        return torch.from_numpy(np.ascontiguousarray(np.moveaxis(values, -1, 0)))

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        h, w = self.pixels.shape[:2]
        return int(h), int(w)

    @property
    def original_size(self) -> tuple[int, int]:
        """Height and width in pixels, upright, without decoding a file that is not decoded yet."""
        if self.path is None or "pixels" in self._kept:
            return self.size
        with media.opened(self.path) as header:
            w, h = header.size
            aside = header.getexif().get(TURNED, 1) >= 5  # 5 to 8 lie on their side
        return (w, h) if aside else (h, w)

    @property
    def exif(self) -> media.Exif:
        """What the camera wrote: its make, focal length, place and time, each None where it is not told."""
        nothing = media.Exif()
        return cast(media.Exif, self.remember("exif", lambda: media.read_exif(self.path) if self.path else nothing))

    def reduced(self, side: int, *, keep: bool = True) -> NDArray[np.uint8]:
        """The pixels, or, of a large JPEG that is not decoded yet, a fraction whose shortest side is still ≥ `side`.

        keep=False does not hold on to what it decodes: for one pass through many files.
        """
        key, path = ("reduced", side), str(self.path)
        if self.path is None or "pixels" in self._kept:
            return self.pixels
        if not keep and key not in self._kept:
            return media.read_array(path, side=side)
        return np.asarray(self.remember(key, lambda: media.read_array(path, side=side)))

    def known(self, key: Hashable) -> Any:
        """What is remembered under a key; None where nothing is."""
        return self._kept.get(key)

    def remember(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What `make` gives, computed once for this image and key."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def _decode(self) -> NDArray[np.uint8]:
        if self.path is not None:
            return media.read_array(self.path)
        if not isinstance(self._source, np.ndarray):
            return media.from_pillow(self._source)
        if self._source.dtype != np.uint8:
            return np.asarray(np.rint(_unit_rgb(self._source) * 255), dtype=np.uint8)
        if self._source.shape[2] == 4:
            return media.over_white(self._source)
        return np.ascontiguousarray(np.broadcast_to(self._source, (*self._source.shape[:2], 3)))


def _channels_last(source: Any, where: str) -> NDArray[Any]:
    """An array or a tensor of one image as (h, w, 1 | 3 | 4), its type and range checked."""
    tensor = hasattr(source, "detach")
    values = _plain(source.float() if tensor and source.dtype.itemsize == 2 else source, None, where)
    if values.ndim == 2:
        values = values[..., None]
    elif tensor and values.ndim == 3:
        values = np.moveaxis(values, 0, -1)
    if values.ndim != 3 or values.shape[2] not in (1, 3, 4) or values.size == 0:
        wanted = "a tensor (h, w) or (3, h, w)" if tensor else "(h, w), (h, w, 3) or (h, w, 4)"
        raise ShapeError(f"{where}: expected {wanted}, got shape {tuple(source.shape)}")
    if values.dtype in (np.uint8, np.uint16):
        return values
    if not np.issubdtype(values.dtype, np.floating):
        raise InputError(f"{where}: expected uint8, uint16, or floats in [0, 1], got {values.dtype}")
    if not (values.min() >= -ROUNDING and values.max() <= 1 + ROUNDING):
        raise InputError(f"{where}: expected floats in [0, 1], got {values.min():g} to {values.max():g}")
    return values


def _unit_rgb(values: NDArray[Any]) -> NDArray[np.float32]:
    """(h, w, 1 | 3 | 4) of any depth as float32 (h, w, 3) in [0, 1], transparency over white."""
    top = np.iinfo(values.dtype).max if values.dtype.kind == "u" else 1
    unit = np.clip(values.astype(np.float32) / np.float32(top), 0, 1)
    if unit.shape[2] == 4:
        alpha = unit[..., 3:]
        unit = unit[..., :3] * alpha + (1 - alpha)
    return np.repeat(unit, 3, axis=2) if unit.shape[2] == 1 else unit


@dataclass(frozen=True, eq=False, repr=False)
class Signature:
    """A bag of features: points (m, d) with weights (m,) ≥ 0 that sum to 1.

    Parameters
    ----------
    points : array (m, d)
        The features; one vector (d,) is a set of one point.
    weights : array (m,), optional
        How much each point counts, ≥ 0; they are normalised. By default all count alike. Points of weight zero are kept
        but take no part.
    level : hashable, optional
        Under which level's metric it is compared: a class, a kin relation, a camera.
    names : sequence of str, optional
        What each point stands for, a file name a point, so that a plan can be drawn.
    where : str
        What it is called in errors.

    Raises
    ------
    ShapeError
        The set is empty, or weights or names are not one a point.
    InputError
        Points or weights are not finite numbers, or the weights sum to 0.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.Signature([[0.0, 1.0], [2.0, 3.0]], weights=[1, 3]).weights
    array([0.25, 0.75])
    """

    points: Array
    weights: Array
    level: Hashable = None
    names: tuple[str, ...] | None = None

    def __init__(
        self,
        points: ArrayLike,
        weights: ArrayLike | None = None,
        level: Hashable = None,
        names: tuple[str, ...] | list[str] | None = None,
        *,
        where: str = "signature",
    ) -> None:
        p = _points(points, where)
        w = _weights(weights, len(p), where)
        if names is not None and len(names) != len(p):
            raise ShapeError(f"names of {where}: expected {len(p)}, one a point, got {len(names)}")
        for field, value in (("points", p), ("weights", w), ("level", level)):
            object.__setattr__(self, field, value)
        object.__setattr__(self, "names", None if names is None else tuple(names))

    def __len__(self) -> int:
        return len(self.points)

    @property
    def dim(self) -> int:
        """The number d of coordinates of a point."""
        return int(self.points.shape[1])

    def __repr__(self) -> str:
        level = "" if self.level is None else f", level={self.level!r}"
        return f"Signature({len(self)} points in {self.dim} dimensions{level})"


def _points(points: ArrayLike, where: str) -> Array:
    try:
        given = np.asarray(points)
        p = np.ascontiguousarray(given.real, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"points of {where} are not numbers in an (m, d) array: {error}") from None
    if np.iscomplexobj(given):
        raise InputError(f"points of {where}: expected real numbers, got {given.dtype}")
    if p.ndim == 1:
        p = p[None, :]
    if p.ndim != 2:
        raise ShapeError(f"points of {where}: expected (m, d), got shape {p.shape}")
    if p.shape[0] == 0:
        raise ShapeError(f"points of {where}: the set is empty; give at least one point")
    if p.shape[1] == 0:
        raise ShapeError(f"points of {where}: expected at least one coordinate, got shape {p.shape}")
    if not np.isfinite(p).all():
        raise InputError(f"points of {where} contain NaN or infinity")
    return p


def _weights(weights: ArrayLike | None, m: int, where: str) -> Array:
    if weights is None:
        return np.full(m, 1.0 / m)
    try:
        w = np.ascontiguousarray(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"weights of {where} are not numbers: {error}") from None
    if w.shape != (m,):
        raise ShapeError(f"weights of {where}: expected ({m},), one a point, got shape {w.shape}")
    if not np.isfinite(w).all():
        raise InputError(f"weights of {where} contain NaN or infinity")
    if (w < 0).any():
        raise InputError(f"weights of {where}: the smallest is {w.min():g}; weights must be ≥ 0")
    total = w.sum()
    if total <= 0:
        raise InputError(f"weights of {where} sum to 0; give at least one positive weight")
    normalised: Array = w / total
    return normalised


@dataclass(frozen=True, eq=False)
class Comparison:
    """What every comparison gives: a number, the correspondence that justifies it, a plot, a JSON.

    Attributes
    ----------
    distance : float
        Smaller is closer, at every level.

    Examples
    --------
    >>> import likewise as lw
    >>> result = lw.sets.compare([[0.0], [1.0]], [[0.0], [3.0]])
    >>> isinstance(result, lw.Comparison), result.distance > 0
    (True, True)
    """

    distance: float

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw the correspondence; with `path`, also write it there. Returns a matplotlib Figure."""
        raise InputError(f"{type(self).__name__} has no picture")

    def to_dict(self) -> dict[str, Any]:
        """Everything that `to_json` writes, as plain Python values."""
        return {"distance": self.distance}

    def to_json(self, path: str | Path | None = None) -> str:
        """The comparison as JSON; with `path`, also written there, atomically."""
        text = json.dumps(self.to_dict(), ensure_ascii=False, indent=2, allow_nan=False)
        if path is not None:
            media.write_text(path, text + "\n")
        return text

    def _repr_html_(self) -> str:
        """What a notebook shows: the words and the picture."""
        words = f"<pre>{html.escape(repr(self))}</pre>"
        try:
            figure = self.plot()
        except InputError:  # it has none
            return words
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=80)
        return f'{words}<img alt="" src="data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}">'


@dataclass(frozen=True, eq=False, repr=False)
class Flow:
    """Where each pixel of a picture went: `vectors` (h, w, 2) float32 in pixels, x then y, and where that is known.

    Pixel p goes to p + vectors[p]. `valid` (h, w) bool says where the vector is known, None everywhere; what stands
    where it is not known is 0. `np.asarray(flow)` gives the vectors.
    """

    vectors: NDArray[np.float32]
    valid: NDArray[np.bool_] | None = None

    def __init__(self, vectors: Any, valid: Any = None) -> None:
        v = _plain(vectors, np.float32, "vectors")
        if v.ndim != 3 or v.shape[2] != 2 or v.size == 0:
            raise ShapeError(f"vectors: expected (h, w, 2), got shape {v.shape}")
        known = None if valid is None else _known(valid, v.shape[:2])
        finite = np.isfinite(v).all(axis=2)
        if not (finite if known is None else finite | ~known).all():
            raise InputError("vectors: NaN or infinity where the flow is known; mark such pixels as False in valid")
        object.__setattr__(self, "vectors", v if known is None else np.where(known[..., None], v, np.float32(0)))
        object.__setattr__(self, "valid", known)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.vectors, dtype=dtype) if copy else np.asarray(self.vectors, dtype=dtype)

    @property
    def height(self) -> int:
        """The number h of rows."""
        return int(self.vectors.shape[0])

    @property
    def width(self) -> int:
        """The number w of columns."""
        return int(self.vectors.shape[1])

    def magnitude(self) -> NDArray[np.float32]:
        """The length of each vector in pixels, (h, w); 0 where it is not known."""
        return np.asarray(np.hypot(self.vectors[..., 0], self.vectors[..., 1]), dtype=np.float32)

    def to_dict(self) -> dict[str, Any]:
        """Size, share of known pixels, and the lengths of their vectors: a summary as plain Python values."""
        known = np.ones((self.height, self.width), dtype=bool) if self.valid is None else self.valid
        lengths = self.magnitude()[known].astype(np.float64)
        measures = (("mean", np.mean), ("median", np.median), ("largest", np.max)) if len(lengths) else ()
        return {
            "height": self.height,
            "width": self.width,
            "known": float(known.mean()),
            "length": {name: float(measure(lengths)) for name, measure in measures},
        }

    def __repr__(self) -> str:
        summary = self.to_dict()
        length = f", {summary['length']['mean']:.2f} px in the mean" if summary["length"] else ""
        known = "" if self.valid is None else f", known at {summary['known']:.0%}"
        return f"Flow({self.height} × {self.width}{length}{known})"


def _plain(values: Any, dtype: Any, name: str) -> NDArray[Any]:
    """An array or a tensor of any device as a NumPy array of its own."""
    given = values.detach().cpu().numpy() if hasattr(values, "detach") else values
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # what the type cannot hold is found by those who ask
            return np.array(given, dtype=dtype, order="C")
    except (TypeError, ValueError) as error:
        raise InputError(f"{name}: expected an array of numbers, got {type(values).__name__} ({error})") from None


def _known(valid: Any, size: tuple[int, ...]) -> NDArray[np.bool_]:
    mask = _plain(valid, None, "valid")
    if mask.dtype != np.bool_:
        raise InputError(f"valid: expected booleans, got {mask.dtype}")
    if mask.shape != size:
        raise ShapeError(f"valid: expected {size}, as the vectors have, got shape {mask.shape}")
    return mask


def read_flow(path: str | os.PathLike[str]) -> Flow:
    """Read a flow file: Middlebury's .flo or KITTI's 16-bit PNG, judged by its first bytes.

    Parameters
    ----------
    path : str or PathLike
        The file.

    Returns
    -------
    Flow
        Unknown pixels (in .flo a component above 1e9 or NaN, in a PNG a third channel of 0) are False in `valid`, which
        is None where every vector is known.

    Raises
    ------
    FileError
        It is missing, damaged, or of another kind.

    Examples
    --------
    >>> import likewise as lw, numpy as np
    >>> lw.pixels.write_flow("flow.flo", np.zeros((2, 3, 2))).name
    'flow.flo'
    >>> lw.pixels.read_flow("flow.flo")
    Flow(2 × 3, 0.00 px in the mean)
    """
    vectors, valid = media.decode_flow(path)
    return Flow(vectors, None if valid.all() else valid)


def write_flow(path: str | os.PathLike[str], flow: Any, valid: Any = None) -> Path:
    """Write a flow as Middlebury's .flo or KITTI's .png, by the suffix, atomically.

    Parameters
    ----------
    path : str or PathLike
        A .flo keeps float32 as it is; a .png rounds to 1/64 px and holds −512 … 511.98.
    flow : Flow or array (h, w, 2)
        Pixels, x then y.
    valid : array (h, w) of bool, optional
        Where vectors are known; a Flow has its own.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    InputError
        The suffix is another, or the format cannot hold the vectors.

    Examples
    --------
    >>> import likewise as lw, numpy as np
    >>> lw.pixels.write_flow("flow.flo", np.zeros((2, 3, 2))).name
    'flow.flo'
    """
    if isinstance(flow, Flow) and valid is not None:
        raise InputError("valid: the Flow has its own; give either a Flow or vectors with valid")
    given = flow if isinstance(flow, Flow) else Flow(flow, valid)
    known = np.ones((given.height, given.width), dtype=bool) if given.valid is None else given.valid
    return media.encode_flow(path, given.vectors, known)


@dataclass(frozen=True, eq=False, repr=False)
class Matches:
    """Points `a` (n, 2) of one picture and `b` (n, 2) of another that belong together, in pixels, x then y.

    `stage` (n,) int8 says where a match comes from: 1 found near the flow, 2 found among what stage 1 left over.
    `score` (n,) float32 is the similarity of the two features, larger is more alike. By default all are of stage 1
    with score 1. There may be none.
    """

    a: Array
    b: Array
    stage: NDArray[np.int8]
    score: NDArray[np.float32]

    def __init__(self, a: Any, b: Any, stage: Any = None, score: Any = None) -> None:
        left, right = _pairs(a, "a"), _pairs(b, "b")
        n = len(left)
        if len(right) != n:
            raise ShapeError(f"b: expected {n} points, one for each of a, got {len(right)}")
        stages = np.ones(n, np.int8) if stage is None else _each(stage, np.int8, n, "stage")
        if not np.isin(stages, (1, 2)).all():
            raise InputError(f"stage: expected 1 or 2, got {sorted(set(stages.tolist()) - {1, 2})[0]}")
        scores = np.ones(n, np.float32) if score is None else _each(score, np.float32, n, "score")
        for field, value in (("a", left), ("b", right), ("stage", stages), ("score", scores)):
            object.__setattr__(self, field, value)

    def __len__(self) -> int:
        return len(self.a)

    def take(self, which: ArrayLike) -> Matches:
        """These matches, by a mask (n,) or by their places."""
        chosen = np.asarray(which)
        chosen = chosen if chosen.size else chosen.astype(np.int64)
        return Matches(self.a[chosen], self.b[chosen], self.stage[chosen], self.score[chosen])

    def of_stage(self, stage: int) -> Matches:
        """The matches that this stage found."""
        return self.take(self.stage == stage)

    def to_dict(self) -> dict[str, Any]:
        """How many there are, of which stage, and how far apart: a summary as plain Python values."""
        apart = np.linalg.norm(self.b - self.a, axis=1)
        return {
            "matches": len(self),
            "stage 1": int((self.stage == 1).sum()),
            "stage 2": int((self.stage == 2).sum()),
            "median length": float(np.median(apart)) if len(self) else None,
        }

    def __repr__(self) -> str:
        counts = self.to_dict()
        return f"Matches({len(self)}: {counts['stage 1']} near the flow, {counts['stage 2']} elsewhere)"


def _pairs(points: Any, name: str) -> Array:
    p = _plain(points, np.float64, name)
    if p.size == 0:
        p = p.reshape(0, 2)
    if p.ndim != 2 or p.shape[1] != 2:
        raise ShapeError(f"{name}: expected points (n, 2), x then y, got shape {p.shape}")
    if not np.isfinite(p).all():
        raise InputError(f"{name}: points contain NaN or infinity")
    return p


def _each(values: Any, dtype: Any, n: int, name: str) -> NDArray[Any]:
    """One value a match; a number that the type cannot hold is refused."""
    given = _plain(values, None, name)
    if given.shape != (n,):
        raise ShapeError(f"{name}: expected ({n},), one a match, got shape {given.shape}")
    kept = _plain(given, dtype, name)
    if not np.isfinite(kept).all() or (kept.dtype.kind == "i" and (kept != given).any()):
        raise InputError(f"{name}: expected finite numbers that {np.dtype(dtype).name} holds, got {given.dtype}")
    return kept
