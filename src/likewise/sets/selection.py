"""What the data decides: start, ρ and rule, chosen on inner folds of the training sets; each fold is learned once.

A rule says which metric decides at test time: gallery, energy, global or mean (erratum 7: the paper gives no rule).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from likewise import numeric
from likewise.sets import objective as ml
from likewise.sets.learning import (
    STARTS,
    Kept,
    Remember,
    Rho,
    Task,
    Watch,
    place_at_start,
    problem,
    target_neighbors,
    unwatched,
    without_memo,
)
from likewise.sets.transport.solvers import Index, Pack
from likewise.types import Array

RULES = ("gallery", "energy", "global", "mean")
"""The rules at test time; of equally good ones the first is taken."""
RHOS = (1.0, 0.3, 0.1, 0.03)
"""What ρ "auto" is chosen from when the objective is normalised."""
USUAL_RHO = 0.3
FOLDS = 3
FEW = 100
"""With fewer sets than this the folds are drawn twice."""
TRIAL = 10
"""Iterations a trial of one ρ in one fold; each starts where the last, stronger one ended."""
LOOSE = 1e-4
"""The tolerance to which the distances to held-out sets are solved."""

Cell = tuple[str, float | None]
"""A start and a ρ; None stands for a ρ that needs no choice."""


@dataclass(frozen=True, eq=False)
class Gallery:
    """Labelled sets and the metrics learned from them: blocks (1 + T, d, d), M0 first; all in one set of units.

    A level's code is its place among the T metrics; −1 stands for no level.
    """

    options: ml.LMNNOptions
    sets: Pack
    y: Index
    level: Index
    classes: int
    blocks: Array
    gamma: float
    targets: Index

    def metric(self, code: int, rule: str) -> Array:
        """M0 + Mt for a level's code; M0 + mean Mt for none or under rule="mean"; M0 under rule="global"."""
        if len(self.blocks) == 1 or rule == "global":
            return np.asarray(self.blocks[0])
        if rule == "mean" or code < 0:
            return np.asarray(self.blocks[0] + self.blocks[1:].mean(axis=0))
        return ml.metric(self.blocks, code)

    def distances(
        self, X: Pack, Y: Pack, left: Index, right: Index, codes: Index, rule: str, tol: float | None = None
    ) -> Array:
        """The distance of each pair (X[left], Y[right]) under the metric of its code."""
        if len(self.blocks) == 1 or rule in ("global", "mean"):
            codes = np.full(len(left), -1)
        k, out = self.options, np.empty(len(left))
        for code in np.unique(codes):
            at, root = np.flatnonzero(codes == code), numeric.factor(self.metric(int(code), rule))
            P, Q = X.project(root), Y.project(root)
            out[at] = ml.distances(P, Q, left[at], right[at], self.gamma, k.value, tol=tol or k.tol, n_jobs=k.n_jobs)
        return out

    def matrix(self, X: Pack, Y: Pack, codes: Index, rule: str, tol: float | None = None) -> Array:
        """Distances of all X to all Y, column j under the metric of codes[j]."""
        i, j = np.indices((len(X), len(Y))).reshape(2, -1)
        return self.distances(X, Y, i, j, codes[j], rule, tol).reshape(len(X), len(Y))

    def decide(self, X: Pack, own: Index, rule: str) -> Index:
        """The class of each set of X; `own` is the code of its level where that is known."""
        if rule == "energy":
            return np.asarray(np.argmin(self.energies(X, own), axis=1), dtype=np.int64)
        return vote(self.matrix(X, self.sets, self.level, rule), self.y, self.options.n_neighbors, self.classes)

    def energies(self, X: Pack, own: Index) -> Array:
        """E (n, classes): by how much the objective grows when set x joins the training sets with label c.

        E = (1−μ) Σ_j W_c(x, j) + μ/k Σ_jl φ(1 + W_c(x, j) − W_c(x, l))
            + μ/k Σ_{S, y_i ≠ c} φ(1 + W_i(i, j) − W_i(i, x)):
        its own targets j, its own k impostors l, and the targets of others that it would come between.
        W_c is under the level of x where it is known, else under the commonest level of class c.
        """
        many = len(self.blocks) > 1
        used = np.unique(np.concatenate([self.level, own[own >= 0]])) if many else [0]
        D = {int(t): self.matrix(X, self.sets, np.full(len(self.sets), t), "energy") for t in used}
        push = self.options.mu / self.options.k_impostors
        between = self._between(D) * push
        E = np.empty((len(X), self.classes))
        home = [int(np.bincount(self.level[self.y == c]).argmax()) if many else 0 for c in range(self.classes)]
        for x in range(len(X)):
            for c in range(self.classes):
                W = D[int(own[x]) if many and own[x] >= 0 else home[c]][x]
                E[x, c] = self._own_energy(W, self.y == c, push) + between[x].sum() - between[x, c]
        return E

    def _own_energy(self, W: Array, same: Any, push: float) -> float:
        k = self.options
        near, far = np.sort(W[same])[: k.k_targets], np.sort(W[~same])[: k.k_impostors]
        invaded = np.maximum(ml.MARGIN + near[:, None] - far[None, :], 0).sum()
        return float(((1 - k.mu) * near.sum() + push * invaded) * k.k_targets / len(near))

    def _between(self, D: dict[int, Array]) -> Array:
        """(n, classes): Σ φ(1 + W(i, j) − W(i, x)) over the targets (i, j) of each class."""
        i, j = self.targets.T
        reach = self.distances(self.sets, self.sets, i, j, self.level[i], "energy")
        t = self.level[i] if len(self.blocks) > 1 else np.zeros(len(i), dtype=np.int64)
        out = np.zeros((len(next(iter(D.values()))), self.classes))
        for s in range(len(i)):
            out[:, self.y[i[s]]] += np.maximum(ml.MARGIN + reach[s] - D[int(t[s])][:, i[s]], 0)
        return out


def vote(D: Array, y: Index, k: int, classes: int) -> Index:
    """The commonest class among the k nearest; of equals, the one whose nearest member is nearest."""
    k = min(k, D.shape[1])
    near = np.argsort(D, axis=1, kind="stable")[:, :k]
    ballots = np.zeros((len(D), classes))
    for r in range(k):
        ballots[np.arange(len(D)), y[near[:, r]]] += 1 + (k - r) * 1e-6 / k
    return np.asarray(ballots.argmax(axis=1), dtype=np.int64)


# ── folds ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def inner_folds(y: Index, seed: int | tuple[int, ...], most: int = 5) -> list[Index]:
    """Disjoint held-out parts, stratified, that leave every class two members; [] if no class has three."""
    sizes = np.bincount(y)
    usable = sizes[sizes >= 3]
    if len(usable) == 0:
        return []
    count = int(np.clip(usable.min(), 3, most))
    rng = np.random.default_rng(seed)
    fold = np.full(len(y), -1)
    for c in np.flatnonzero(sizes >= 3):
        members = rng.permutation(np.flatnonzero(y == c))
        fold[members] = (np.arange(len(members)) + c) % count
    return [np.flatnonzero(fold == f) for f in range(count) if (fold == f).any()]


def class_folds(y: Index, level: Index, seed: int | tuple[int, ...], count: int = 3) -> list[Index]:
    """Disjoint held-out parts made of whole classes, spread over the levels; [] for fewer than four classes."""
    classes, first = np.unique(y, return_index=True)
    if len(classes) < 4:
        return []
    count = min(count, len(classes) // 2)
    shuffled = np.random.default_rng(seed).permutation(len(classes))
    order = shuffled[np.argsort(level[first][shuffled], kind="stable")]
    fold = np.empty(len(classes), dtype=np.int64)
    fold[order] = np.arange(len(classes)) % count
    return [np.flatnonzero(np.isin(y, classes[fold == f])) for f in range(count)]


def area(distances: Array, same: Any) -> float:
    """The area under the ROC curve: how often a same pair is closer than a different one; ½ if one kind is missing."""
    return 0.5 if same.all() or not same.any() else float(roc_auc_score(same, -distances))


# ── the choice ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Choice:
    """Where learning starts, (ρ0, ρt), and the rule at test time."""

    start: str
    rho: Rho
    rule: str


def choose(task: Task, classes: int, watch: Watch = unwatched, remember: Remember = without_memo) -> Choice:
    """Start, ρ and rule: as given; what is "auto", by the best score on inner folds.

    The score of a start and a ρ is the share of held-out sets that lie nearer to their own class than to another,
    softly counted; where classes have no member to spare, the area under the ROC curve over pairs of held-out classes.
    The usual stays unless another is better by more than the standard error of the gain. The rule is then the one with
    the most held-out sets right (the greatest area) under the trial models of that choice; the first on a tie.
    Without learning (max_iter=0), or for the paper's own sums, "auto" means the whitened start, and ρ = 1 and 1/C.
    """
    k, cells = task.options, candidates(task.options)
    if len(cells) == 1 and k.rule != "auto":
        return Choice(cells[0][0], _rho(k, cells[0], task.levels), k.rule)
    folds = [Fold(task, classes, held, whole) for held, whole in held_out(task.y, task.level, k.seed)]
    trials = [fold.trials(cells, f"choice-{n}", watch, remember) for n, fold in enumerate(folds)]
    best = clearly_best(np.concatenate([scores for scores, _ in trials], axis=1), cells) if folds else usual(cells)
    tried = [(fold, blocks[best]) for fold, (_, blocks) in zip(folds, trials, strict=True)]
    rule = best_rule([fold.tally(cells[best][0], blocks) for fold, blocks in tried]) if k.rule == "auto" else k.rule
    return Choice(cells[best][0], _rho(k, cells[best], task.levels), rule)


def candidates(k: ml.LMNNOptions) -> list[Cell]:
    """(start, ρ) to choose from, each start from its strongest ρ down."""
    learns = k.normalize and k.max_iter > 0
    starts = STARTS[: None if learns else 1] if k.start == "auto" else (k.start,)
    rhos: tuple[float | None, ...] = RHOS if learns and "auto" in (k.rho0, k.rhot) else (None,)
    return list(product(starts, rhos))


def usual(cells: list[Cell]) -> int:
    """What stays unless another is clearly better: the usual ρ at the first start."""
    return cells.index((cells[0][0], USUAL_RHO)) if (cells[0][0], USUAL_RHO) in cells else 0


def clearly_best(scores: Array, cells: list[Cell]) -> int:
    """The cell with the best mean score (cells × trials), or the usual one if the gain over it is within its noise."""
    best, stays = int(scores.mean(axis=1).argmax()), usual(cells)
    gain = scores[best] - scores[stays]
    clear = gain.mean() > gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else False
    return best if clear else stays


def best_rule(tallies: list[dict[str, float]]) -> str:
    """The rule with the greatest sum over folds; the first on a tie, "gallery" where there is no fold."""
    rules = [rule for rule in RULES if all(rule in tally for tally in tallies)]
    return max(rules, key=lambda rule: sum(tally[rule] for tally in tallies))


def _rho(k: ml.LMNNOptions, cell: Cell, levels: int) -> Rho:
    auto = (1.0, 1.0 / max(levels, 1)) if cell[1] is None else (cell[1], cell[1])
    return (auto[0] if k.rho0 == "auto" else float(k.rho0)), (auto[1] if k.rhot == "auto" else float(k.rhot))


def held_out(y: Index, level: Index, seed: int) -> Iterator[tuple[Index, bool]]:
    """Held-out parts, drawn once or, for FEW sets, twice; and whether they are whole classes."""
    for repeat in range(2 if len(y) < FEW else 1):
        members = inner_folds(y, (seed, repeat), FOLDS)
        whole = [] if members else class_folds(y, level, (seed, repeat), FOLDS)
        yield from ((held, not members) for held in members or whole)


@dataclass(frozen=True, eq=False)
class Fold:
    """One held-out part of the training sets (`whole`: of whole classes), and what is learned without it."""

    all: Task
    classes: int
    held: Index
    whole: bool
    places: dict[str, tuple[Array, Task, Index]] = field(default_factory=dict)
    """for each start that was asked for: the map to its coordinates, made without the held-out part; the task; its S"""

    @cached_property
    def kept(self) -> Task:
        """The task without the held-out part; global if that has a level of its own."""
        kept = np.setdiff1d(np.arange(len(self.all.y)), self.held)
        unseen = not np.isin(self.all.level[self.held], self.all.level[kept]).all()
        sets, y, level = ml.subset(self.all.sets, kept), self.all.y[kept], self.all.level[kept]
        return replace(self.all, sets=sets, y=y, level=level, levels=0 if unseen else self.all.levels)

    def place(self, start: str) -> tuple[Array, Task, Index]:
        """The map of a start, the task in its coordinates, and the target neighbours there; each found once."""
        if start not in self.places:
            A, task = place_at_start(self.kept, start)
            self.places[start] = A, task, target_neighbors(task)
        return self.places[start]

    def trials(self, cells: list[Cell], name: str, watch: Watch, remember: Remember) -> tuple[Array, Array]:
        """(scores, blocks) of a short trial of each cell: (cells, held-out sets) and (cells, 1 + T, d, d)."""
        arrays, _ = remember(name, lambda: self._try_cells(cells, name, watch))
        return np.asarray(arrays["scores"]), np.asarray(arrays["blocks"])

    def _try_cells(self, cells: list[Cell], name: str, watch: Watch) -> Kept:
        scores, metrics = [], []
        for start in dict.fromkeys(start for start, _ in cells):
            _, task, S = self.place(start)
            blocks = ml.start(task.sets.dim, task.levels, task.options.init)
            for cell in (c for c in cells if c[0] == start):
                J, _ = problem(task, blocks, _rho(task.options, cell, task.levels), S, width=ml.HUBER)
                for moved, _ in ml.lbfgs(J, blocks, TRIAL if task.options.max_iter else 0):
                    blocks = moved
                metrics.append(blocks)
                scores.append(self.score(start, blocks))
                step = {"fold": name, "start": start, "rho": cell[1] or 0.0, "score": float(scores[-1].mean())}
                watch({"stage": "choice", **step})
        return {"scores": np.stack(scores), "blocks": np.stack(metrics)}, {}

    def _gallery(self, start: str, blocks: Array) -> tuple[Gallery, Pack]:
        """What was learned, and the held-out sets, in the coordinates of the start."""
        A, t, S = self.place(start)
        learned = Gallery(t.options, t.sets, t.y, t.level, self.classes, blocks, t.gamma, S)
        return learned, ml.subset(self.all.sets, self.held).project(A)

    def score(self, start: str, blocks: Array) -> Array:
        """How surely each held-out set is nearest to its own class; one area under the ROC curve for whole classes."""
        learned, rest = self._gallery(start, blocks)
        if self.whole:
            return np.array([self._area(learned, rest, "gallery")])
        D = learned.matrix(rest, learned.sets, learned.level, "gallery", LOOSE)
        return soft_hits(D, self.all.y[self.held][:, None] == learned.y[None, :])

    def tally(self, start: str, blocks: Array) -> dict[str, float]:
        """Each rule's hits on the held-out sets, or its area under the ROC curve.

        Levels that are classes cannot be held out, and leave the choice between "global" and "mean".
        """
        learned, rest = self._gallery(start, blocks)
        if not self.whole:
            own, y = np.full(len(self.held), -1), self.all.y[self.held]
            return {rule: float((learned.decide(rest, own, rule) == y).sum()) for rule in RULES}
        levels = self.all.level
        shared = len(np.unique(np.stack([self.all.y, levels]), axis=1).T) > len(np.unique(levels))
        rules = ("gallery", "global", "mean") if shared else ("global", "mean")
        return {rule: self._area(learned, rest, rule) for rule in rules}

    def _area(self, learned: Gallery, rest: Pack, rule: str) -> float:
        """The area under the ROC curve over the held-out pairs of one level (of any where levels are classes)."""
        y, level = self.all.y[self.held], self.all.level[self.held]
        level = level if len(learned.blocks) > 1 else np.zeros_like(level)
        i, j = np.triu_indices(len(self.held), 1)
        alike = level[i] == level[j]
        i, j = i[alike], j[alike]
        return area(learned.distances(rest, rest, i, j, level[i], rule, LOOSE), y[i] == y[j])


def soft_hits(D: Array, same: Array) -> Array:
    """For each row how surely its nearest column is of its own class, ½ where own and other are equally near.

    1 / (1 + exp(−c / c̄)), c the relative gap between the nearest other and the nearest own column and c̄ its median
    size: what counts is who is nearer, not how far a metric spreads its distances.
    """
    near, far = np.where(same, D, np.inf).min(axis=1), np.where(same, np.inf, D).min(axis=1)
    contrast = (far - near) / np.maximum(np.abs(far) + np.abs(near), 1e-300)
    usual_gap = max(float(np.median(np.abs(contrast))), 1e-12)
    return np.asarray(1 / (1 + np.exp(-np.clip(contrast / usual_gap, -30, 30))))
