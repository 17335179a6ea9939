"""The figures of one draw from a bank: Fréchet distance, precision, recall, effective size; and of its control.

The distances between all latents' features, and to the real pictures, are computed once a bank; a draw is then a
choice of rows. The control draws with the same weights dealt out to the latents at random: as many repetitions, as
small an effective size, nothing known of volumes. What ρ does beyond its control is what volumes do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributions_world import Harvest
from likewise import numeric
from likewise.distributions import metrics, polarity

K = metrics.K
"""The neighbour that sets the radius of a ball."""
RHOS = (-1.0, -0.5, -0.2, 0.0, 0.2, 0.5, 1.0)
KS = (1, 3, 5, 10, 30)
CONTROLLED = (3, 10)
"""Where the control is drawn, too."""
SHARES = (0.5, 0.25, 0.1)
"""Effective sizes at which settings are compared at equal cost, besides the grid of ρ."""

Array = NDArray[np.float64]


class Real:
    """The real side: features, the Gaussian fitted to them, the radii of their balls."""

    def __init__(self, rows: NDArray[np.float32]) -> None:
        self.rows = rows
        self.fitted = numeric.fitted(rows)
        self.radii = numeric.radii(rows, K)


class Measured:
    """A sample of pictures by their features, of which any rows can be measured as a draw."""

    def __init__(self, features: NDArray[np.float32], real: Real) -> None:
        self.features, self.real = features, real
        self.own = distances(features, features)
        self.to_real = distances(real.rows, features)
        self.good = (self.to_real <= real.radii[:, None]).any(0)

    def __call__(self, rows: NDArray[np.int64]) -> dict[str, float]:
        """Fréchet distance, precision and recall of the sample made of these rows, repetitions included."""
        radius = np.partition(self.own[np.ix_(rows, rows)], K, axis=1)[:, K]  # itself is the nearest, at 0
        recall = (self.to_real[:, rows] <= radius).any(1).mean()
        distance = numeric.frechet_of_factors(*self.real.fitted, *numeric.fitted(self.features[rows]))
        return {"frechet": distance, "precision": float(self.good[rows].mean()), "recall": float(recall)}


def distances(X: NDArray[np.float32], Y: NDArray[np.float32]) -> Array:
    """All distances, by the library's own tiles."""
    out = np.empty((len(X), len(Y)))
    for i, j, block in numeric.tiles(X, Y):
        out[i, j] = np.sqrt(block)
    return out


def agree(measured: Measured, rows: NDArray[np.int64]) -> None:
    """The shortcut above against the library's own measures, on one draw; a difference stops the experiment."""
    own = measured(rows)
    fake = measured.features[rows]
    precision, recall = metrics.precision_recall(measured.real.rows, fake, k=K)
    theirs = {"frechet": float(metrics.frechet(measured.real.rows, fake)), "precision": precision, "recall": recall}
    for name, value in theirs.items():
        if abs(own[name] - float(value)) > 1e-3 * max(1.0, abs(float(value))):
            raise SystemExit(f"{name}: {own[name]:.6g} here, {float(value):.6g} by likewise.distributions.metrics")


def weights(bank: Harvest, space: str, rho: float, k: int) -> Array:
    """log-weights, within each class for a conditional generator."""
    classes = np.zeros(len(bank.z), dtype=np.int64) if bank.y is None else bank.y
    return polarity.grouped(bank.log_sigma[space], rho, k, members=polarity.partition(classes))


def rho_of(bank: Harvest, space: str, k: int, share: float, sign: int) -> float:
    """The ρ that leaves this effective share."""
    return polarity.rho_for_ess(bank.log_sigma[space], share, k, sign=sign, groups=bank.y)


def draw(log_w: Array, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """n rows drawn systematically from a bank in random order: in its own, classes in turn, every other one is lost."""
    order = rng.permutation(len(log_w))
    return np.asarray(order[polarity.resample(log_w[order], n, "systematic", rng)], dtype=np.int64)


def cell(
    bank: Harvest, measured: Measured, space: str, k: int, rho: float, n: int, seed: int, *, control: bool = False
) -> dict[str, Any]:
    """One cell of the table: n latents drawn systematically at (space, k, ρ), and the control where asked."""
    log_w = weights(bank, space, rho, k)
    rng = np.random.default_rng((23, seed))
    rows = draw(log_w, n, rng)
    found: dict[str, Any] = {"space": space, "k": k, "rho": rho, "ess": polarity.ess(log_w)}
    found |= {"largest": polarity.largest(log_w), "distinct": len(np.unique(rows)) / n, **measured(rows)}
    if control:
        dealt = draw(_dealt(log_w, bank.y, rng), n, rng)
        found |= {f"control {name}": value for name, value in measured(dealt).items()}
    return found


def _dealt(log_w: Array, y: NDArray[np.int64] | None, rng: np.random.Generator) -> Array:
    """The same weights, dealt out anew within each class."""
    out = np.empty_like(log_w)
    for rows in polarity.partition(np.zeros(len(log_w), dtype=np.int64) if y is None else y).values():
        out[rows] = log_w[rng.permutation(rows)]
    return out


def sweep(bank: Harvest, measured: Measured, n: int, seed: int, ks: tuple[int, ...] = KS) -> list[dict[str, Any]]:
    """Every cell of a bank: space × k × (the grid of ρ, and ρ at given effective sizes)."""
    cells = []
    for space, logs in bank.log_sigma.items():
        for k in (k for k in ks if k <= logs.shape[1]):
            for rho in RHOS:
                one = cell(bank, measured, space, k, rho, n, seed, control=k in CONTROLLED)
                cells.append({"by": "rho", **one})
            for share, sign in ((s, sign) for s in SHARES for sign in (-1, 1)):
                rho = rho_of(bank, space, k, share, sign)
                cells.append({"by": f"{sign * share:g}", **cell(bank, measured, space, k, rho, n, seed)})
    return cells


def summary(values: list[float]) -> tuple[float, float]:
    """Mean and its standard error over seeds."""
    v = np.asarray(values, dtype=np.float64)
    return float(v.mean()), float(v.std(ddof=1) / np.sqrt(len(v)))
