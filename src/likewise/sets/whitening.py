"""Where learning starts: the identity, or the metric under which matched points of one class differ alike everywhere.

The pull of J on M alone is ⟨M, Σ⟩ with Σ the spread of matched points of one class; held by −log det M it is least at
M = Σ⁻¹, the Mahalanobis metric of transport. Learning in coordinates Σ^(−½) p starts there, and its regulariser holds
it there. For sets of one point, Σ is the covariance within classes.
"""

from __future__ import annotations

import numpy as np

from likewise.sets.learning import scale_of
from likewise.sets.transport import solvers as transport
from likewise.sets.transport.solvers import Index, Pack
from likewise.types import Array

SHRINKAGES = (0.003, 0.01, 0.03, 0.1, 0.3, 0.6, 1.0)
"""What the shrinkage of Σ is chosen from."""
GROUPS = 5
"""Classes are dealt into at most so many groups, each left out once."""


def spread(sets: Pack, S: Index, gamma: float, *, tol: float = 1e-6, n_jobs: int = 1) -> Array:
    """Σ = 1/2|S| Σ_(i,j)∈S Σ_ab F_ab (p_a − q_b)(p_a − q_b)ᵀ, F the plan of sets i and j at M = I [MLML Eq. 15]."""
    left, right = S[:, 0], S[:, 1]
    solved = transport.solve_pairs(sets, sets, left, right, gamma, tol=tol, plans=True, n_jobs=n_jobs)
    return transport.scatter(sets, sets, left, right, solved, np.full(len(S), 0.5 / max(len(S), 1)))


def shrunk(covariance: Array, s: float) -> Array:
    """(1 − s) Σ + s (tr Σ / d) I."""
    d = len(covariance)
    return np.asarray((1 - s) * covariance + s * float(np.trace(covariance)) / d * np.eye(d))


def shrinkage(parts: Array, counts: Array) -> float:
    """The s of SHRINKAGES under which the spread of other classes predicts that of a class best.

    s minimises Σ_g n_g (log det Σ₋g(s) + tr Σ₋g(s)⁻¹ Σ_g), the negative log-likelihood of the differences in group g
    under the shrunk spread of all others; `parts` are the Σ_g (g, d, d), `counts` their numbers of pairs. 1 for a
    single group, which nothing else predicts.
    """
    whole, losses = np.tensordot(counts, parts, 1), np.zeros(len(SHRINKAGES))
    if len(parts) < 2:
        return 1.0
    for part, n in zip(parts, counts, strict=True):
        w, V = np.linalg.eigh((whole - n * part) / (counts.sum() - n))
        own = np.einsum("ij,ik,kj->j", V, part, V)
        for k, s in enumerate(SHRINKAGES):
            shrunken = np.maximum((1 - s) * np.maximum(w, 0) + s * w.mean(), 1e-300)
            losses[k] += n * float((np.log(shrunken) + own / shrunken).sum())
    return SHRINKAGES[int(losses.argmin())]


def whitening(sets: Pack, S: Index, y: Index, gamma: float, *, tol: float = 1e-6, n_jobs: int = 1) -> Array:
    """A (d, d), symmetric and invertible: in coordinates A p the spread of matched points is about a multiple of I.

    A = Σ_s^(−½), Σ_s the spread, shrunk as far as predicts left-out classes best; scaled so that the median squared
    ground distance of the sets stays what it was.
    """
    group = np.unique(y, return_inverse=True)[1][S[:, 0]] % GROUPS
    chosen = [S[group == g] for g in np.unique(group)]
    parts = np.stack([spread(sets, pairs, gamma, tol=tol, n_jobs=n_jobs) for pairs in chosen])
    counts = np.array([float(len(pairs)) for pairs in chosen])
    covariance = np.tensordot(counts / counts.sum(), parts, 1)
    if not np.trace(covariance) > 0:
        return np.eye(sets.dim)
    A = inverse_root(shrunk(covariance, shrinkage(parts, counts)))
    return np.asarray(A * (scale_of(sets) / scale_of(sets.project(A))))


def inverse_root(covariance: Array) -> Array:
    """Σ^(−½), symmetric; directions of no spread count as a millionth of the widest."""
    w, V = np.linalg.eigh((covariance + covariance.T) / 2)
    return np.asarray((V / np.sqrt(np.maximum(w, 1e-6 * w[-1]))) @ V.T)
