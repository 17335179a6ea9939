"""The measures of what a model or collection covers, each a Figure that knows its net and its sample sizes.

Every function takes sources as `likewise.nn.features.extract` does: folders, images, generators, rows (n, d).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from likewise import numeric
from likewise.distributions.latents import check_whole
from likewise.errors import InputError, ShapeError, SmallSampleWarning
from likewise.inputs import count as count_images
from likewise.inputs import is_generator
from likewise.nn.features import PLAIN, SAMPLES, Features, channels_of, extract
from likewise.numeric import Covered, Index
from likewise.store.run import progress as show_progress
from likewise.types import Array

K = 3
"""The neighbour that sets the radius of a ball, as in improved precision and recall."""
BLOCKS = 10
"""Blocks of samples that are left out in turn for the standard error of KID."""
TILE = 2048
"""Rows whose kernel is held at a time."""


class Figure(float):
    """A measured number that remembers what it measures, under which net, on how many samples, with which k.

    It is a float. Two of them are ordered, added, subtracted, multiplied or divided only where all of these agree, also
    by NumPy's functions of two numbers and in arrays of objects: a Fréchet distance of 1,000 images is not comparable
    with one of 50,000, nor one net's with another's. `error` is its standard error.
    """

    measure: str
    net: str
    n_real: int | None
    n_fake: int | None
    k: int | None
    error: float | None

    def __new__(
        cls,
        value: float,
        *,
        measure: str,
        net: str,
        n_real: int | None = None,
        n_fake: int | None = None,
        k: int | None = None,
        error: float | None = None,
    ) -> Figure:
        made = super().__new__(cls, value)
        made.measure, made.net, made.n_real, made.n_fake, made.k, made.error = measure, net, n_real, n_fake, k, error
        return made

    def to_dict(self) -> dict[str, Any]:
        """Value and circumstances, as plain Python values."""
        return {"value": float(self), **vars(self)}

    def __getnewargs_ex__(self) -> tuple[tuple[float], dict[str, Any]]:
        return (float(self),), dict(vars(self))

    def __repr__(self) -> str:
        error = "" if self.error is None else f" ± {self.error:.2g}"
        sizes = [f"{n} {what}" for n, what in ((self.n_real, "real"), (self.n_fake, "fake")) if n is not None]
        k = [] if self.k is None else [f"k={self.k}"]
        return f"Figure({self.measure}={float(self):.4g}{error}, {', '.join([self.net, *sizes, *k])})"

    def check_beside(self, other: Any) -> None:
        """An InputError where the other is a figure that this one may not be compared with."""
        for what in ("measure", "net", "n_real", "n_fake", "k") if isinstance(other, Figure) else ():
            mine, theirs = getattr(self, what), getattr(other, what)
            if mine != theirs:
                raise InputError(
                    f"figures differ in {what} ({mine} and {theirs}), so their values cannot be compared; "
                    "measure both alike, or compare float(figure) if you know why"
                )

    def __array_ufunc__(self, ufunc: Any, method: str, *given: Any, **options: Any) -> Any:
        figures = [one for one in given if isinstance(one, Figure)]
        for one in figures[1:]:
            figures[0].check_beside(one)
        plain = [float(one) if isinstance(one, Figure) else one for one in given]
        return getattr(ufunc, method)(*plain, **options)


def _guarded(name: str) -> Callable[[Figure, Any], Any]:
    """float's operator, after the other is checked."""
    plain = getattr(float, name)

    def between(self: Figure, other: Any) -> Any:
        self.check_beside(other)
        return plain(self, other)

    return between


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    for _one in (f"__{_name}__", f"__r{_name}__"):
        setattr(Figure, _one, _guarded(_one))
for _name in ("lt", "le", "gt", "ge"):
    setattr(Figure, f"__{_name}__", _guarded(f"__{_name}__"))


# ------------------------------------------------------------------------------------------------------- two sides


def both(
    real: Any,
    fake: Any,
    features: Any = None,
    *,
    n: int | None = None,
    seed: int = 0,
    progress: bool = False,
    **options: Any,
) -> tuple[Features, Features]:
    """The features of two sources under one net; of a generator as many are drawn as the other side has."""
    first, second = (real, fake) if is_generator(fake) else (fake, real)
    names = ("real", "fake") if is_generator(fake) else ("fake", "real")
    options = {"planes": channels_of(real) or channels_of(fake), **options}
    total = sum(n or SAMPLES if is_generator(side) else count_images(side) or 0 for side in (real, fake))
    with show_progress(total, "features", show=progress) as advance:
        options["progress"] = lambda done: [advance() for _ in range(done)]
        one = extract(first, features, n=n, seed=seed, where=names[0], **options)
        count = n if n is not None else (SAMPLES if is_generator(first) else len(one))
        two = extract(second, features, n=count, seed=seed + is_generator(first), where=names[1], **options)
    a, b = (one, two) if is_generator(fake) else (two, one)
    _check_pair(a, b)
    return a, b


def _check_pair(real: Features, fake: Features) -> None:
    if real.dim != fake.dim:
        raise ShapeError(
            f"fake: expected {real.dim} features an image as in real, got {fake.dim}; use one net for both"
        )
    if real.net != fake.net and PLAIN not in (real.net, fake.net):
        raise InputError(f"fake: features of {fake.net}, but real of {real.net}; use one net for both")
    for where, side in (("real", real), ("fake", fake)):
        if len(side) < 2:
            raise ShapeError(f"{where}: expected at least two samples, got {len(side)}")


def _figure(name: str, value: float, real: Features, fake: Features, **more: Any) -> Figure:
    net = fake.net if real.net == PLAIN else real.net
    return Figure(value, measure=name, net=net, n_real=len(real), n_fake=len(fake), **more)


# ---------------------------------------------------------------------------------------------------------- Fréchet


def frechet(real: Any, fake: Any, *, features: Any = None, n: int | None = None, seed: int = 0) -> Figure:
    """The Fréchet distance of two samples: ‖μ_r − μ_f‖² + Tr(Σ_r + Σ_f − 2 (Σ_r Σ_f)^½) of their features.

    Covariances with n − 1, nothing shrunk. It is biased upwards by about 1/n; a sample not larger than the number of
    features gives a SmallSampleWarning.
    """
    a, b = both(real, fake, features, n=n, seed=seed)
    smallest = min(len(a), len(b))
    if smallest <= a.dim:
        warnings.warn(
            f"Fréchet distance of {len(a)} real and {len(b)} fake samples in {a.dim} features: with no more samples "
            "than features it is far too large; compare it only with others of the same sizes",
            SmallSampleWarning,
            stacklevel=2,
        )
    value = numeric.frechet_of_factors(*numeric.fitted(a.rows), *numeric.fitted(b.rows))
    return _figure("frechet", value, a, b)


# ------------------------------------------------------------------------------------------------------------- KID


def kid(real: Any, fake: Any, *, features: Any = None, n: int | None = None, seed: int = 0) -> Figure:
    """The kernel distance MMD² of two samples under (xᵀy / d + 1)³, unbiased: it may fall below 0.

    MMD² = Σ_{i≠j} k(x_i, x_j) / m(m−1) + Σ_{i≠j} k(y_i, y_j) / n(n−1) − 2 Σ k(x_i, y_j) / mn, over all pairs. Its
    `.error` is the jackknife over ten blocks of samples, left out in turn (None below 40 samples).
    """
    a, b = both(real, fake, features, n=n, seed=seed)
    blocks = min(BLOCKS, max(1, min(len(a), len(b)) // 4))
    xx, yy, xy = (_kernel_sums(X, Y, blocks) for X, Y in ((a.rows, None), (b.rows, None), (a.rows, b.rows)))
    sizes = [np.diff(_cuts(len(side), blocks)) for side in (a, b)]

    def mmd(keep: Index) -> float:
        """MMD² of some of the blocks."""
        (m, n), square = (int(size[keep].sum()) for size in sizes), np.ix_(keep, keep)
        within = xx[square].sum() / (m * (m - 1)) + yy[square].sum() / (n * (n - 1))
        return float(within - 2.0 * xy[square].sum() / (m * n))

    every, error = np.arange(blocks), None
    if blocks == BLOCKS:  # √((B − 1)/B Σ_b (θ_b − θ̄)²) of the values θ_b without block b
        error = float(np.sqrt((blocks - 1) * np.var([mmd(np.delete(every, b)) for b in every])))
    return _figure("kid", mmd(every), a, b, error=error)


def _cuts(n: int, blocks: int) -> Index:
    return np.asarray(np.arange(blocks + 1) * n // blocks, dtype=np.int64)


def _kernel_sums(X: NDArray[np.floating], Y: NDArray[np.floating] | None, blocks: int) -> Array:
    """Σ (xᵀy / d + 1)³ in float64 for each pair of blocks; of X to itself (Y = None) without the diagonal."""
    Z = X if Y is None else Y
    left, right = _cuts(len(X), blocks), _cuts(len(Z), blocks)
    total = np.zeros((blocks, blocks))
    for a in range(blocks):
        for b in range(a if Y is None else 0, blocks):
            for i in range(left[a], left[a + 1], TILE):
                kernel = X[i : min(i + TILE, left[a + 1])] @ Z[right[b] : right[b + 1]].T
                kernel /= X.shape[1]
                kernel += 1.0
                kernel = kernel * kernel * kernel
                total[a, b] += kernel.sum(dtype=np.float64)
                if Y is None and a == b:
                    total[a, b] -= np.trace(kernel, offset=i - left[a], dtype=np.float64)
    return total if Y is not None else np.triu(total) + np.triu(total, 1).T


# ---------------------------------------------------------------------------- precision, recall, density, coverage


@dataclass(frozen=True, eq=False)
class Support:
    """How two samples lie to each other's k-NN balls; the four measures are read off it."""

    a: Features
    b: Features
    k: int
    real: Covered
    fake: Covered
    real_radius: Array

    @property
    def precision(self) -> Figure:
        """The share of fake samples inside the ball of any real one."""
        return _figure("precision", float((self.fake.inside > 0).mean()), self.a, self.b, k=self.k)

    @property
    def recall(self) -> Figure:
        """The share of real samples inside the ball of any fake one."""
        return _figure("recall", float((self.real.inside > 0).mean()), self.a, self.b, k=self.k)

    @property
    def density(self) -> Figure:
        """How many real balls a fake sample lies in, on average, over k; may exceed 1."""
        return _figure("density", float(self.fake.inside.mean() / self.k), self.a, self.b, k=self.k)

    @property
    def coverage(self) -> Figure:
        """The share of real samples whose own ball holds a fake one."""
        return _figure("coverage", float((self.real.distance <= self.real_radius).mean()), self.a, self.b, k=self.k)

    @property
    def uncovered(self) -> Index:
        """The real samples that no fake ball holds, the farthest out first: 1 − recall of them."""
        outside = np.flatnonzero(self.real.inside == 0)
        return np.asarray(outside[np.argsort(-self.real.margin[outside], kind="stable")], dtype=np.int64)


def support(real: Any, fake: Any, *, k: int = K, features: Any = None, n: int | None = None, seed: int = 0) -> Support:
    """Both samples with the balls whose radius is the distance to the k-th nearest other sample of their own side.

    A ball holds its surface: a sample that stands k + 1 times in a collection still covers itself.
    """
    a, b = both(real, fake, features, n=n, seed=seed)
    most = min(len(a), len(b)) - 1
    k = check_whole("k", k, 1, most, ", fewer than the samples of each side")
    ra, rb = numeric.radii(a.rows, k), numeric.radii(b.rows, k)
    left, right = numeric.cover(a.rows, b.rows, ra, rb)
    return Support(a, b, k, left, right, ra)


def measures(real: Any, fake: Any, *, k: int = K, **options: Any) -> dict[str, Figure]:
    """frechet, precision, recall, density, coverage of one pair of samples, their features extracted once."""
    seen = both(real, fake, **options)
    balls = support(*seen, k=k)
    names = ("precision", "recall", "density", "coverage")
    return {"frechet": frechet(*seen), **{name: getattr(balls, name) for name in names}}
