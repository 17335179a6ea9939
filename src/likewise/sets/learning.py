"""Learning, outside of the estimator: the problem of a round, and rounds after each other, watched and resumable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from likewise import numeric
from likewise.sets import multilevel as ml
from likewise.sets.transport import solvers as transport
from likewise.sets.transport.solvers import Index, Pack
from likewise.types import Array

Rho = tuple[float, float]
Watch = Callable[[ml.Record], None]
"""Told of every step: `stage` says of what ("choice", "learning", "rule"), the rest are its figures."""
Kept = tuple[dict[str, Any], dict[str, Any]]
"""Arrays and JSON: what a finished part of a fit leaves."""
Remember = Callable[[str, Callable[[], Kept]], Kept]
"""Gives what a part of a fit left before under this name, or makes it and keeps it: a stopped fit then goes on."""


def unwatched(record: ml.Record) -> None:
    """Tell nobody."""


def forgetful(name: str, make: Callable[[], Kept]) -> Kept:
    """Make it anew each time."""
    return make()


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


def learn(task: Task, rho: Rho, watch: Watch = unwatched, remember: Remember = forgetful) -> Learned:
    """Rounds of: find the impostors under the metric so far, then minimise J with the chosen solver."""
    blocks = ml.start(task.sets.dim, task.levels, task.options.init)
    S = near_ones(task)
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
    solver = k.solver if k.solver != "auto" else ("fista" if task.levels else "lbfgs")
    J, R = problem(task, blocks, rho, S, width=0.0 if solver == "paper" else ml.HUBER)
    if turn and np.array_equal(R, before):
        return {}, {"history": [], "settled": True}
    history: list[ml.Record] = []

    def heard(record: ml.Record) -> None:
        history.append({"round": turn, "iteration": count + len(history), "triplets": len(R), **record})
        watch({"stage": "learning", **history[-1]})

    J.watch = heard
    for moved, _ in ml.SOLVERS[solver](J, blocks, k.max_iter):
        blocks = moved
    if k.verbose and history:
        last = history[-1]
        print(f"round {turn}: J = {last['objective']:.5g}, {last['active']} of {len(R)} triplets active")
    return {"blocks": blocks, "triplets": R}, {"history": history, "settled": False}


def near_ones(task: Task) -> Index:
    """S (s, 2): the k_targets nearest of the same class at the start."""
    return ml.targets(task.y, task.options.k_targets, distance_in(task, task.sets))


def problem(
    task: Task, blocks: Array, rho: Rho, S: Index | None = None, width: float = 0.0
) -> tuple[ml.Objective, Index]:
    """J with the targets S (default: those at the start) and the triplets R of the blocks given; R itself."""
    k, level = task.options, task.level if len(blocks) > 1 else np.zeros_like(task.level)
    S = near_ones(task) if S is None else S
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
