"""Compare what two collections or models cover: the figures, and which images of one nothing in the other is like."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from sklearn.decomposition import PCA

from likewise import plot
from likewise.distributions import metrics
from likewise.distributions.metrics import Figure, Support
from likewise.nn.features import Features
from likewise.numeric import Index
from likewise.types import Comparison

MEASURES = ("distance", "kid", "precision", "recall", "density", "coverage")
DRAWN = 2000
"""Points of each side in the map that stands for images where there are none."""


@dataclass(frozen=True, eq=False, repr=False)
class DistributionComparison(Comparison):
    """Two samples and what each covers of the other: what `compare` gives.

    `distance` is Fréchet's; the correspondence is which sample lies in whose k-NN ball (`support`).

    Attributes
    ----------
    distance, kid, precision, recall, density, coverage : Figure
        Numbers that carry their net, their sample sizes and k, and are compared only with others of the same.
    uncovered : tuple of str or int
        The samples of `real` that no ball of `fake` holds, the farthest out first: paths where they are files, else
        indices; 1 − recall of them.
    support : Support
        Both samples' features and balls.

    Examples
    --------
    >>> import likewise as lw
    >>> import numpy as np
    >>> rows = np.random.default_rng(0).normal(size=(2, 60, 3))
    >>> result = lw.distributions.compare(*rows)
    >>> len(result.uncovered) == round((1 - result.recall) * 60)
    True
    """

    distance: Figure
    kid: Figure
    precision: Figure
    recall: Figure
    density: Figure
    coverage: Figure
    uncovered: tuple[str, ...] | tuple[int, ...]
    support: Support

    @property
    def real(self) -> Features:
        """The features of the real side."""
        return self.support.a

    @property
    def fake(self) -> Features:
        """The features of the fake side."""
        return self.support.b

    @property
    def k(self) -> int:
        """The neighbour that sets the radius of a ball."""
        return self.support.k

    @property
    def net(self) -> str:
        """The net whose features are compared."""
        return self.distance.net

    def __repr__(self) -> str:
        shares = f"precision {float(self.precision):.3f}, recall {float(self.recall):.3f}"
        left = f"{len(self.uncovered)} of {len(self.real)} uncovered by {len(self.fake)}"
        return f"DistributionComparison(distance={float(self.distance):.4g}, {shares}, {left}, {self.net})"

    def to_dict(self) -> dict[str, Any]:
        """The figures with their circumstances, and the uncovered samples with how far out each is."""
        balls = self.support
        margin = balls.real.margin[balls.uncovered]
        return {
            "level": "distributions",
            "distance": float(self.distance),
            "figures": {figure.measure: figure.to_dict() for figure in (getattr(self, name) for name in MEASURES)},
            "net": self.net,
            "n_real": len(self.real),
            "n_fake": len(self.fake),
            "features": self.real.dim,
            "k": self.k,
            "uncovered": [
                {"sample": sample, "beyond": float(m), "nearest": _sample(self.fake, int(balls.real.index[i]))}
                for sample, i, m in zip(self.uncovered, balls.uncovered, margin, strict=True)
            ],
            "skipped": [
                {"side": side, "name": name, "reason": reason}
                for side, features in (("real", self.real), ("fake", self.fake))
                for name, reason in features.skipped
            ],
        }

    def plot(
        self, path: str | Path | None = None, *, labels: tuple[str, str] = ("real", "fake"), most: int = 16
    ) -> Any:
        """The figures, and the uncovered images beside covered ones, each with its nearest of the other side.

        Without images, a map of the samples on their two main axes.
        """
        words = {"title": f"Fréchet distance {float(self.distance):.4g}", "figures": self._words(), "labels": labels}
        if most > 0 and self._has_images():
            counts = len(self.uncovered), len(self.real) - len(self.uncovered)
            figure = plot.coverage(*self._pairs(most), counts=counts, **words)  # type: ignore[arg-type]
        else:
            figure = plot.cover_map(*self._map(), **words)  # type: ignore[arg-type]
        if path is not None:
            plot.save(figure, path)
        return figure

    def _words(self) -> dict[str, str]:
        """The figures as the plot says them."""
        error = "" if self.kid.error is None else f" ± {self.kid.error:.2g}"
        shares = {name: f"{float(getattr(self, name)):.3f}" for name in MEASURES[2:]}
        sizes = f"{len(self.real):,} and {len(self.fake):,} samples"
        return {"KID": f"{float(self.kid):.3g}{error}", **shares, "k": str(self.k), self.net: sizes}

    def _has_images(self) -> bool:
        sides = (self.real.images, self.fake.images)
        return all(images is not None and len(images([0])) == 1 for images in sides)

    def _pairs(self, most: int) -> tuple[list[Any], list[Any]]:
        """(image, its nearest of the other side, distance) of uncovered samples, and of typical covered ones."""
        near = self.support.real
        inside = np.flatnonzero(near.inside > 0)
        order = inside[np.argsort(near.margin[inside], kind="stable")]
        typical = order[np.linspace(0, len(order) - 1, min(most // 2, len(order))).astype(np.int64)]

        def pairs(which: Index) -> list[Any]:
            if self.real.images is None or self.fake.images is None or len(which) == 0:
                return []
            own, others = self.real.images(which.tolist()), self.fake.images(near.index[which].tolist())
            return list(zip(own, others, near.distance[which].tolist(), strict=True))

        return pairs(self.support.uncovered[:most]), pairs(typical)

    def _map(self) -> tuple[Any, Any, Any]:
        """Both samples on the two main axes of their features, and which of the real ones are uncovered."""
        rng = np.random.default_rng(0)
        a, b = (np.sort(rng.permutation(len(side))[:DRAWN]) for side in (self.real, self.fake))
        rows = np.concatenate([self.real.rows[a], self.fake.rows[b]]).astype(np.float64)
        solver = "arpack" if min(rows.shape) > 2 else "full"
        flat = rows if self.real.dim <= 2 else PCA(2, svd_solver=solver, random_state=0).fit_transform(rows)
        flat = np.column_stack([flat, np.zeros(len(flat))]) if flat.shape[1] == 1 else flat
        return flat[: len(a)], flat[len(a) :], self.support.real.inside[a] == 0


def _sample(side: Features, index: int) -> str | int:
    return index if side.names is None else side.names[index]


def compare(
    real: Any,
    fake: Any,
    *,
    features: Any = None,
    k: int = 3,
    n: int | None = None,
    seed: int = 0,
    on_error: Literal["raise", "skip"] = "raise",
    progress: bool = False,
) -> DistributionComparison:
    """Compare what two collections cover of each other, and name what is left uncovered.

    Parameters
    ----------
    real, fake : any
        A folder of images, a list of files or arrays, a batch of images, features (n, d), a file of those, or a
        `Generator`.
    features : callable or embedder, optional
        The net whose features are compared: a callable of tensors (b, c, h, w) → (b, …), or an object with `.embed`.
        By default EfficientNet-Lite0 with ImageNet weights.
    k : int, default 3
        The neighbour that sets the radius of a ball.
    n : int, optional
        Images that are drawn of a generator; by default as many as the other side has.
    seed : int, default 0
        Of those draws.
    on_error : {"raise", "skip"}
        What happens with files that cannot be read; skipped ones are named in `to_dict()`.
    progress : bool, default False
        Show a bar.

    Returns
    -------
    DistributionComparison
        `.distance` (Fréchet), `.kid`, `.precision`, `.recall`, `.density`, `.coverage`, `.uncovered`, `.plot()`.

    Raises
    ------
    InputError
        Where a side cannot be read, or k is not below the number of samples of each.
    FileError
        Where a file is damaged and `on_error` is "raise".

    Examples
    --------
    >>> import likewise as lw
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> result = lw.distributions.compare(rng.normal(size=(80, 2)), rng.normal(size=(80, 2)) + [1, 0])
    >>> 0 < result.precision < 1, result.distance > 0.5
    (True, True)
    """
    a, b = metrics.both(real, fake, features, n=n, seed=seed, on_error=on_error, progress=progress)
    balls = metrics.support(a, b, k=k)
    return DistributionComparison(
        distance=metrics.frechet(a, b),
        kid=metrics.kid(a, b),
        **{name: getattr(balls, name) for name in MEASURES[2:]},
        uncovered=tuple(_sample(a, int(i)) for i in balls.uncovered),  # type: ignore[arg-type]
        support=balls,
    )
