"""Compare what two collections or models cover: the figures, and which pictures of one nothing in the other is like."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from likewise.types import Comparison

if TYPE_CHECKING:
    from likewise.distributions.metrics import Figure, Support
    from likewise.nn.features import Features
    from likewise.numeric import Index

MEASURES = ("distance", "kid", "precision", "recall", "density", "coverage")
DRAWN = 2000
"""Points of each side in the map that stands for pictures where there are none."""


@dataclass(frozen=True, eq=False, repr=False)
class DistributionComparison(Comparison):
    """Two samples: `distance` is Fréchet's; the correspondence is which sample lies in whose k-NN ball (`support`).

    `uncovered` are the samples of `real` that no ball of `fake` holds, the farthest out first: paths where they are
    files, else indices; 1 − recall of them. Every figure carries its net, its sample sizes and k.
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
        """The net that described the pictures."""
        return self.distance.net

    def __repr__(self) -> str:
        shares = f"precision {float(self.precision):.3f}, recall {float(self.recall):.3f}"
        left = f"{len(self.uncovered)} of {len(self.real)} uncovered by {len(self.fake)}"
        return f"DistributionComparison(distance={float(self.distance):.4g}, {shares}, {left}, {self.net})"

    def to_dict(self) -> dict[str, Any]:
        """The figures with their circumstances, and the uncovered samples with how far out each is."""
        found = self.support
        margin = found.real.margin[found.uncovered]
        return {
            "level": "distributions",
            "distance": float(self.distance),
            "figures": {_name(name): getattr(self, name).to_dict() for name in MEASURES},
            "net": self.net,
            "n_real": len(self.real),
            "n_fake": len(self.fake),
            "features": self.real.dim,
            "k": self.k,
            "uncovered": [
                {"sample": sample, "beyond": float(m), "nearest": _sample(self.fake, int(found.real.index[i]))}
                for sample, i, m in zip(self.uncovered, found.uncovered, margin, strict=True)
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
        """The figures, and the uncovered pictures beside covered ones, each with its nearest of the other side.

        Without pictures, a map of the samples on their two main axes.
        """
        from likewise import plot

        pictured = self._pairs(most) if most > 0 and self._has_pictures() else None
        if pictured is None:
            figure = plot.cover_map(*self._map(), title=self._title(), figures=self._words(), labels=labels)
        else:
            figure = plot.coverage(
                *pictured, counts=self._counts(), title=self._title(), figures=self._words(), labels=labels
            )
        if path is not None:
            plot.save(figure, path)
        return figure

    def _title(self) -> str:
        return f"Fréchet distance {float(self.distance):.4g}"

    def _counts(self) -> tuple[int, int]:
        return len(self.uncovered), len(self.real) - len(self.uncovered)

    def _words(self) -> dict[str, str]:
        """The figures as a picture says them."""
        error = "" if self.kid.error is None else f" ± {self.kid.error:.2g}"
        shares = {name: f"{float(getattr(self, name)):.3f}" for name in MEASURES[2:]}
        sizes = f"{len(self.real):,} and {len(self.fake):,} samples"
        return {"KID": f"{float(self.kid):.3g}{error}", **shares, "k": str(self.k), self.net: sizes}

    def _has_pictures(self) -> bool:
        sides = (self.real.images, self.fake.images)
        return all(pictures is not None and len(pictures([0])) == 1 for pictures in sides)

    def _pairs(self, most: int) -> tuple[list[Any], list[Any]]:
        """(picture, its nearest of the other side, distance) of uncovered samples, and of typical covered ones."""
        found = self.support
        inside = np.flatnonzero(found.real.inside > 0)
        order = inside[np.argsort(found.real.margin[inside], kind="stable")]
        typical = order[np.linspace(0, len(order) - 1, min(most // 2, len(order))).astype(np.int64)]
        return self._pictured(found.uncovered[:most]), self._pictured(typical)

    def _pictured(self, which: Index) -> list[Any]:
        if self.real.images is None or self.fake.images is None or len(which) == 0:
            return []
        found = self.support.real
        mine, theirs = self.real.images(which.tolist()), self.fake.images(found.index[which].tolist())
        return list(zip(mine, theirs, found.distance[which].tolist(), strict=True))

    def _map(self) -> tuple[Any, Any, Any]:
        """Both samples on the two main axes of their features, and which of the real ones are uncovered."""
        rng = np.random.default_rng(0)
        a, b = (np.sort(rng.permutation(len(side))[:DRAWN]) for side in (self.real, self.fake))
        rows = np.concatenate([self.real.rows[a], self.fake.rows[b]]).astype(np.float64)
        flat = rows if self.real.dim <= 2 else (rows - rows.mean(0)) @ _axes(rows)
        flat = np.column_stack([flat, np.zeros(len(flat))]) if flat.shape[1] == 1 else flat
        return flat[: len(a)], flat[len(a) :], self.support.real.inside[a] == 0


def _axes(rows: Any) -> Any:
    """The two directions of largest variance; each points to where its largest entry is positive."""
    from scipy.sparse.linalg import svds

    centred = rows - rows.mean(0)
    if min(centred.shape) <= 2:
        V = np.linalg.svd(centred, full_matrices=False)[2][:2]
    else:
        _, s, V = svds(centred, k=2, v0=np.ones(min(centred.shape)))
        V = V[np.argsort(-s)]
    return (V * np.sign(V[np.arange(len(V)), np.abs(V).argmax(1)])[:, None]).T


def _name(field: str) -> str:
    return "frechet" if field == "distance" else field


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
    """Compare what two collections cover: .distance .kid .precision .recall .density .coverage .uncovered .plot().

    Each side is a folder of pictures, a list of files or arrays, a batch of pictures, features (n, d), or a Generator,
    of which `n` pictures are drawn (by default as many as the other side has). `features`: any callable of pictures
    (tensors (b, c, h, w) → (b, …)) or an embedder with .embed; by default EfficientNet-Lite0. k sets the balls.
    """
    from likewise.distributions import metrics

    a, b = metrics.both(real, fake, features, n=n, seed=seed, on_error=on_error, progress=progress)
    found = metrics.support(a, b, k=k)
    return DistributionComparison(
        distance=metrics.frechet(a, b),
        kid=metrics.kid(a, b),
        precision=found.precision,
        recall=found.recall,
        density=found.density,
        coverage=found.coverage,
        uncovered=tuple(_sample(a, int(i)) for i in found.uncovered),  # type: ignore[arg-type]
        support=found,
    )
