"""Perceptual path length: how fast pictures change along a path between two latents [Polarity C.5].

PPL = E d(G(p(t)), G(p(t + ε))) / ε² over pairs of latents and t, with a squared perceptual distance d. ε = 1e-4 is the
usual step; `step=0.3` measures the same over three tenths of a path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from likewise.distributions.metrics import Figure
from likewise.errors import InputError, ShapeError
from likewise.nn.features import PhotoFeatures, as_net
from likewise.types import Array

if TYPE_CHECKING:
    from torch import Tensor

STEP, LONG = 1e-4, 0.3
"""The step of the measure as it is used everywhere, and that of the paper's longer paths [Polarity C.5]."""
SHARE = 0.01
"""The share of the smallest and of the largest distances that `trim=True` leaves out, as StyleGAN's own code does."""
BATCH = 64

Distance = Callable[["Tensor", "Tensor"], Any]
Latents = NDArray[np.floating]


def slerp(a: Any, b: Any, t: Any) -> Array:
    """The great circle from the direction of a to that of b, at t, with the lengths in between.

    p(t) = r(t) (sin((1 − t) θ) â + sin(t θ) b̂) / sin θ, θ the angle between a and b, r(t) = (1 − t) ‖a‖ + t ‖b‖: a
    path between normal latents stays as long as they are. Opposite directions have no one great circle: an InputError.
    """
    A, B, s = _rows(a, "a"), _rows(b, "b"), np.asarray(t, dtype=np.float64).reshape(-1, 1)
    long_a, long_b = _lengths(A, "a"), _lengths(B, "b")
    A, B = A / long_a, B / long_b
    # atan2 of difference and sum: exact where arccos loses half of its digits
    angle = 2 * np.arctan2(np.linalg.norm(A - B, axis=1), np.linalg.norm(A + B, axis=1))[:, None]
    if (angle > np.pi - 1e-6).any():
        raise InputError("a, b: two latents point in opposite directions; there is no one great circle between them")
    near = angle < 1e-8
    sine = np.where(near, 1.0, np.sin(angle))
    left = np.where(near, 1 - s, np.sin((1 - s) * angle) / sine)
    right = np.where(near, s, np.sin(s * angle) / sine)
    return np.asarray(((1 - s) * long_a + s * long_b) * (left * A + right * B))


def lerp(a: Any, b: Any, t: Any) -> Array:
    """The straight line from a to b, at t: (1 − t) a + t b."""
    A, B, s = _rows(a, "a"), _rows(b, "b"), np.asarray(t, dtype=np.float64).reshape(-1, 1)
    return np.asarray((1 - s) * A + s * B)


PATHS: dict[str, Callable[[Any, Any, Any], Array]] = {"slerp": slerp, "lerp": lerp}


@dataclass(frozen=True, eq=False, repr=False)
class PathLength:
    """A path length and the distances d / ε² (n,) that it is the mean of."""

    value: Figure
    distances: Array

    def __float__(self) -> float:
        return float(self.value)

    def __repr__(self) -> str:
        return f"PathLength({self.value!r})"


def path_length(
    generator: Any,
    n: int = 1000,
    *,
    kind: Literal["full", "end"] = "full",
    step: float = STEP,
    path: Literal["auto", "slerp", "lerp"] = "auto",
    mapping: Callable[[Tensor], Tensor] | None = None,
    latents: Any = None,
    labels: Any = None,
    distance: Distance | None = None,
    features: Any = None,
    trim: bool = False,
    seed: int = 0,
) -> PathLength:
    """E d(G(p(t)), G(p(t + ε))) / ε² over n pairs of latents [Polarity C.5].

    kind: "full" draws t from [0, 1 − ε], "end" is t = 0. path: "auto" is slerp for latents without bounds and lerp
    otherwise. With `mapping` (z → w) the path is a straight line in w and `generator` is the synthesis w → x.
    latents (2n, dim) replace those drawn of the generator's own density (a Bank's at some ρ); pair i is row i and
    row n + i. distance(x, y) → (n,), squared; without one ‖φ(x) − φ(y)‖² with φ = `features`, a callable of tensors
    (an embedder rounds to 8 bits, in which small steps are lost); by default PhotoFeatures, EfficientNet-Lite0.
    """
    _check(n, kind, step)
    rng = np.random.default_rng(seed)
    z = _latents(generator, n, latents, rng)
    n = len(z) // 2
    t = np.zeros(n) if kind == "end" else rng.uniform(0, 1 - step, n)
    y = _classes(generator, n, labels, rng)
    measure, net = _measure(distance, features, step)
    walk = _walk(generator, z, t, step, path, mapping)
    parts = []
    for start in range(0, n, BATCH):
        rows = slice(start, min(start + BATCH, n))
        pictures = [_made(generator, ends, None if y is None else y[rows]) for ends in walk(rows)]
        parts.append(_checked(measure(*pictures), pictures[0].shape[0]) / step**2)
    return _result(np.concatenate(parts), f"ppl {kind}, step {step:g}", net, trim)


def _result(values: Array, name: str, net: str, trim: bool) -> PathLength:
    if trim:
        low, high = np.quantile(values, [SHARE, 1 - SHARE], method="lower")
        values = values[(values >= low) & (values <= high)]
        name += ", trimmed"
    error = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
    return PathLength(Figure(float(values.mean()), measure=name, net=net, n_fake=len(values), error=error), values)


def _walk(
    generator: Any, z: Latents, t: Array, step: float, path: str, mapping: Callable[[Tensor], Tensor] | None
) -> Callable[[slice], tuple[Any, Any]]:
    """Both ends of the steps of some pairs, as float32 rows."""
    import torch

    along = PATHS[_path(generator, path, mapping)]
    ends = z[: len(t)], z[len(t) :]

    def mapped(rows: Latents) -> Any:
        if mapping is None:
            return rows
        with torch.no_grad():
            return mapping(torch.as_tensor(rows, dtype=torch.float32)).flatten(1).double().numpy()

    def pair(rows: slice) -> tuple[Any, Any]:
        a, b = (mapped(side[rows]) for side in ends)
        return tuple(torch.as_tensor(along(a, b, s), dtype=torch.float32) for s in (t[rows], t[rows] + step))  # type: ignore[return-value]

    return pair


def _path(generator: Any, path: str, mapping: object) -> str:
    if path != "auto":
        if path not in PATHS:
            raise InputError(f"path: expected auto, {', '.join(PATHS)}, got {path!r}")
        return path
    latent = getattr(generator, "latent", None)
    bounded = latent is not None and latent.support() is not None
    return "lerp" if mapping is not None or bounded else "slerp"


def _measure(distance: Distance | None, features: Any, step: float) -> tuple[Distance, str]:
    if distance is not None:
        if not callable(distance):
            raise InputError(f"distance: expected a callable of two batches, got {type(distance).__name__}")
        name = getattr(distance, "name", None) or getattr(distance, "__qualname__", type(distance).__qualname__)
        return distance, str(name)
    if features is None:
        return _photo_distance, PhotoFeatures().name
    net = as_net(features)
    if net.takes_any_size and step < 0.01:
        raise InputError(
            f"features: {net.name} sees pictures of 8 bits, in which a step of {step:g} is lost; give a callable of "
            "tensors, or distance="
        )

    def squared(x: Tensor, y: Tensor) -> Array:
        rows = [np.asarray(net(side, where="pictures"), dtype=np.float64) for side in (x, y)]
        return np.asarray(((rows[0] - rows[1]) ** 2).sum(axis=1))

    return squared, net.name


def _photo_distance(x: Tensor, y: Tensor) -> Array:
    """‖φ(x) − φ(y)‖² under the default net, of pictures in [0, 1], or in [−1, 1] where any value is below −0.01."""
    import torch

    net = PhotoFeatures(-1.0 if min(float(x.min()), float(y.min())) < -0.01 else 0.0)
    with torch.no_grad():
        return np.asarray((net(x).double() - net(y).double()).square().sum(1).cpu())


def _made(generator: Any, z: Any, y: Any) -> Tensor:
    import torch

    with torch.no_grad():
        x: Tensor = generator(z) if y is None else generator(z, y)
    if x.shape[0] != len(z):
        raise ShapeError(f"generator: expected {len(z)} pictures, one a latent, got shape {tuple(x.shape)}")
    return x


def _checked(values: Any, n: int) -> Array:
    array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values, dtype=np.float64).reshape(-1)
    if array.shape != (n,):
        raise ShapeError(f"distance: expected ({n},), one a pair of pictures, got {array.size} numbers")
    if not np.isfinite(array).all() or (array < 0).any():
        raise InputError("distance: gave NaN, infinity or a negative number")
    return array


def _latents(generator: Any, n: int, latents: Any, rng: np.random.Generator) -> Latents:
    if latents is None:
        if not hasattr(generator, "latent"):
            raise InputError("latents: the generator has no density of its own; give latents (2n, dim)")
        return np.asarray(generator.latent.sample(2 * n, rng))
    rows = _rows(latents, "latents")
    if len(rows) < 2 or len(rows) % 2:
        raise ShapeError(f"latents: expected (2n, dim), two ends a path, got shape {rows.shape}")
    return rows


def _classes(generator: Any, n: int, labels: Any, rng: np.random.Generator) -> Any:
    """One class a path: both ends are pictures of the same one."""
    count: int | None = getattr(generator, "labels", None)
    if labels is not None:
        return np.array(np.broadcast_to(np.asarray(labels), (n,)))
    return None if count is None else rng.integers(count, size=n)


def _rows(z: Any, where: str) -> Array:
    try:
        array = np.asarray(z.detach().cpu() if hasattr(z, "detach") else z, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: expected latents (n, dim): {error}") from None
    if array.ndim != 2 or array.size == 0 or not np.isfinite(array).all():
        raise ShapeError(f"{where}: expected finite latents (n, dim), got shape {array.shape}")
    return array


def _lengths(rows: Array, where: str) -> Array:
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    if (length == 0).any():
        raise InputError(f"{where}: latent {int((length == 0).argmax())} is 0, which has no direction")
    return np.asarray(length)


def _check(n: int, kind: str, step: float) -> None:
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise InputError(f"n: expected a whole number ≥ 1, got {n!r}")
    if kind not in ("full", "end"):
        raise InputError(f'kind: expected "full" or "end", got {kind!r}')
    if not (np.isfinite(step) and 0 < step < 1):
        raise InputError(f"step: expected a number above 0 and below 1, got {step!r}")
