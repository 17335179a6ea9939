"""In which order the points of a plan stand, so that few of its lines cross."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from likewise.types import Array


def untangle(F: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Orders of the rows and columns of a plan in which little mass crosses.

    The start is the order of the plan's second singular vectors (correspondence analysis); then each side in turn is
    sorted by the barycentre of its partners, and the best order seen is kept.
    """
    rows, columns = _spectral_orders(F)
    best, fewest = (rows, columns), crossings(F[np.ix_(rows, columns)])
    for turn in range(12):
        G = F[np.ix_(rows, columns)]
        if turn % 2 == 0:
            columns = columns[np.argsort(_barycentres(G.T), kind="stable")]
        else:
            rows = rows[np.argsort(_barycentres(G), kind="stable")]
        crossed = crossings(F[np.ix_(rows, columns)])
        if crossed < fewest:
            best, fewest = (rows, columns), crossed
    return best


def crossings(F: Array) -> float:
    """Σ F_ij F_kl over the pairs of lines that cross: i < k and j > l."""
    below = np.cumsum(F[::-1], axis=0)[::-1]
    later = np.vstack([below[1:], np.zeros((1, F.shape[1]))])
    before = np.cumsum(later, axis=1)
    return float((F[:, 1:] * before[:, :-1]).sum())


def _spectral_orders(F: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    a, b = np.maximum(F.sum(1), 1e-150), np.maximum(F.sum(0), 1e-150)
    if min(F.shape) < 2:
        return np.argsort(-a, kind="stable"), np.argsort(-b, kind="stable")
    U, _, V = np.linalg.svd(F / np.sqrt(a[:, None] * b[None, :]))
    u, v = U[:, 1] / np.sqrt(a), V[1] / np.sqrt(b)
    sign = 1.0 if u[np.argmax(np.abs(u))] > 0 else -1.0
    return np.argsort(sign * u, kind="stable"), np.argsort(sign * v, kind="stable")


def _barycentres(F: Array) -> Array:
    """Where the partners of each row lie, on average; a row without mass stays where it is."""
    mass = F.sum(1)
    at = np.arange(F.shape[1]) / max(F.shape[1] - 1, 1)
    own = np.arange(len(F)) / max(len(F) - 1, 1)
    return np.where(mass > 0, F @ at / np.maximum(mass, 1e-300), own)
