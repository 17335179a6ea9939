"""Learning, outside of the estimator: where it starts, the problem of a round, and rounds after each other.

The pull of J on M alone is ⟨M, Σ⟩ with Σ the spread of matched points of one class; held by −log det M it is least at
M = Σ⁻¹, the Mahalanobis metric of transport. Learning in coordinates Σ^(−½) p starts there, and its regulariser holds
it there. For sets of one point, Σ is the covariance within classes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from likewise import __version__, numeric
from likewise.sets import objective as ml
from likewise.sets import transport
from likewise.sets.transport.solvers import Index, Pack
from likewise.store import checkpoint
from likewise.types import Array, Signature

STARTS = ("whitened", "identity")
"""Where learning may start; the first stays unless the second is clearly better."""
SHRINKAGES = (0.003, 0.01, 0.03, 0.1, 0.3, 0.6, 1.0)
"""What the shrinkage of Σ is chosen from."""
GROUPS = 5
"""Classes are dealt into at most so many groups, each left out once."""

Rho = tuple[float, float]
Watch = Callable[[ml.Record], None]
"""Told of every step: `stage` says of what ("choice", "learning", "rule"), the rest are its figures."""
Kept = tuple[dict[str, Any], dict[str, Any]]
"""Arrays and JSON: what a finished part of a fit leaves."""
Remember = Callable[[str, Callable[[], Kept]], Kept]
"""Gives what a part of a fit left before under this name, or makes it and keeps it: a stopped fit then goes on."""


def unwatched(record: ml.Record) -> None:
    """Tell nobody."""


def without_memo(name: str, make: Callable[[], Kept]) -> Kept:
    """Make it anew each time."""
    return make()


NO_MATTER = ("n_jobs", "verbose", "n_neighbors")
"""Options that leave what is learned as it is."""


def fit_identity(sets: Sequence[Signature], labels: Any, options: dict[str, Any]) -> dict[str, Any]:
    """All that decides what a fit learns, as the identity of a job that keeps its parts: `fit(remember=job.keep)`."""
    packed = transport.pack(sets)
    arrays = {"points": packed.points, "weights": packed.weights, "offsets": packed.offsets}
    return {
        "what": "fit of WassersteinLMNN",
        "sets": hashlib.sha256(checkpoint.encode(arrays, {"levels": [str(s.level) for s in sets]})).hexdigest(),
        "labels": [str(label) for label in np.asarray(labels).tolist()],
        "options": {k: v for k, v in options.items() if k not in NO_MATTER},
        "likewise": __version__,
    }


@dataclass(frozen=True, eq=False)
class Task:
    """What is learned from: sets in coordinates whose identity is the start, classes, levels (0: the global model)."""

    options: ml.LMNNOptions
    sets: Pack
    y: Index
    level: Index
    levels: int
    gamma: float


@dataclass(frozen=True, eq=False)
class Learned:
    """What learning gives: blocks (1 + T, d, d) in the coordinates of the task, S, and the history."""

    blocks: Array
    targets: Index
    history: list[ml.Record]


def learn(task: Task, rho: Rho, watch: Watch = unwatched, remember: Remember = without_memo) -> Learned:
    """Rounds of: find the impostors under the metric so far, then minimise J with the chosen solver."""
    blocks = ml.start(task.sets.dim, task.levels, task.options.init)
    S = target_neighbors(task)
    history: list[ml.Record] = []
    before = np.empty((0, 3), dtype=np.int64)
    for turn in range(task.options.rounds):

        def one(turn: int = turn, at: Array = blocks, before: Index = before, count: int = len(history)) -> Kept:
            return _round(task, rho, at, S, before, turn, count, watch)

        arrays, said = remember(f"round-{turn}", one)
        history += said["history"]
        if said["settled"]:
            break
        blocks, before = np.asarray(arrays["blocks"]), np.asarray(arrays["triplets"])
    return Learned(blocks, S, history)


def _round(task: Task, rho: Rho, blocks: Array, S: Index, before: Index, turn: int, count: int, watch: Watch) -> Kept:
    """One round; settled, with nothing learned, if its triplets are those of the round before."""
    k = task.options
    J, R = problem(task, blocks, rho, S, width=ml.HUBER)
    if turn and np.array_equal(R, before):
        return {}, {"history": [], "settled": True}
    history: list[ml.Record] = []

    def heard(record: ml.Record) -> None:
        history.append({"round": turn, "iteration": count + len(history), "triplets": len(R), **record})
        watch({"stage": "learning", **history[-1]})

    J.watch = heard
    for moved, _ in k.minimise(J, blocks):
        blocks = moved
    if k.verbose and history:
        last = history[-1]
        print(f"round {turn}: J = {last['objective']:.5g}, {last['active']} of {len(R)} triplets active")
    return {"blocks": blocks, "triplets": R}, {"history": history, "settled": False}


def target_neighbors(task: Task) -> Index:
    """S (s, 2): the k_targets nearest of the same class at the start."""
    return ml.targets(task.y, task.options.k_targets, distance_in(task, task.sets))


def problem(
    task: Task, blocks: Array, rho: Rho, S: Index | None = None, width: float = 0.0
) -> tuple[ml.Objective, Index]:
    """J with the targets S (default: those at the start) and the triplets R of the blocks given; R itself."""
    k, level = task.options, task.level if len(blocks) > 1 else np.zeros_like(task.level)
    S = target_neighbors(task) if S is None else S
    R = ml.triplets(S, _impostors(task, blocks, level))
    c = ml.Coefficients.of(*rho, k.mu, len(S), len(R), task.sets.dim, k.normalize)
    pairs = ml.pairs_of(S, R, level, own=k.value == "divergence")
    J = ml.Objective(
        task.sets, pairs, len(blocks) - 1, c, task.gamma, value=k.value, width=width, tol=k.tol, n_jobs=k.n_jobs
    )
    return J, R


def _impostors(task: Task, blocks: Array, level: Index) -> Index:
    """The nearest sets of other classes, each set's under the metric of its own level."""
    centres, found = means(task.sets), []
    for t in np.unique(level):
        root = numeric.factor(ml.metric(blocks, int(t)))
        distance = distance_in(task, task.sets.project(root))
        rows = np.flatnonzero(level == t)
        found.append(ml.impostors(task.y, task.options.k_impostors, centres @ root, distance, rows))
    return np.concatenate(found)


def distance_in(task: Task, Z: Pack) -> Callable[[Index, Index], Array]:
    """The distance of pairs of Z, as the options want it."""
    k = task.options
    return lambda i, j: ml.distances(Z, Z, i, j, task.gamma, k.value, tol=k.tol, n_jobs=k.n_jobs)


def means(X: Pack) -> Array:
    """The weighted mean of each set."""
    return np.asarray(np.add.reduceat(X.points * X.weights[:, None], X.offsets[:-1], axis=0))


def scaled(X: Pack, by: float) -> Pack:
    """The same sets, their points multiplied by a number."""
    return Pack(X.points * by, X.weights, X.offsets)


def scale_of(X: Pack) -> float:
    """√(median squared ground distance) of the points, so that margin 1 means the same on every collection."""
    median = transport.auto_gamma(X, fraction=1.0)
    return float(np.sqrt(median)) if median > 1e-12 else 1.0


# ── where learning starts ─────────────────────────────────────────────────────────────────────────────────────────


def place_at_start(task: Task, start: str) -> tuple[Array, Task]:
    """(A, task): the map A to coordinates whose identity is the start, and the task in them; γ "auto" follows."""
    k = task.options
    if start == "identity":
        return np.eye(task.sets.dim), task
    A = whitening(task.sets, target_neighbors(task), task.y, task.gamma, tol=k.tol, n_jobs=k.n_jobs)
    sets = task.sets.project(A)
    return A, replace(task, sets=sets, gamma=transport.auto_gamma(sets) if k.gamma == "auto" else task.gamma)


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
