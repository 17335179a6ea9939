"""What the data decides: start, ρ and rule, chosen on inner folds of the training sets; each fold is learned once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np

from likewise.sets import multilevel as ml
from likewise.sets.folds import area, class_folds, inner_folds
from likewise.sets.learning import Kept, Remember, Rho, Task, Watch, forgetful, near_ones, problem, unwatched
from likewise.sets.rules import RULES, Gallery
from likewise.sets.transport import solvers as transport
from likewise.sets.transport.solvers import Index, Pack
from likewise.sets.whitening import whitening
from likewise.types import Array

STARTS = ("whitened", "identity")
"""The first stays unless the second is clearly better."""
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


@dataclass(frozen=True)
class Choice:
    """Where learning starts, (ρ0, ρt), and the rule at test time."""

    start: str
    rho: Rho
    rule: str


def choose(task: Task, classes: int, watch: Watch = unwatched, remember: Remember = forgetful) -> Choice:
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


def placed(task: Task, start: str) -> tuple[Array, Task]:
    """(A, task): the map A to coordinates whose identity is the start, and the task in them; γ "auto" follows."""
    k = task.options
    if start == "identity":
        return np.eye(task.sets.dim), task
    A = whitening(task.sets, near_ones(task), task.y, task.gamma, tol=k.tol, n_jobs=k.n_jobs)
    sets = task.sets.project(A)
    return A, replace(task, sets=sets, gamma=transport.auto_gamma(sets) if k.gamma == "auto" else task.gamma)


@dataclass(frozen=True, eq=False)
class Fold:
    """One held-out part of the training sets (`whole`: of whole classes), and what is learned without it."""

    all: Task
    classes: int
    held: Index
    whole: bool

    @cached_property
    def kept(self) -> Task:
        """The task without the held-out part; global if that has a level of its own."""
        kept = np.setdiff1d(np.arange(len(self.all.y)), self.held)
        unseen = not np.isin(self.all.level[self.held], self.all.level[kept]).all()
        sets, y, level = ml.subset(self.all.sets, kept), self.all.y[kept], self.all.level[kept]
        return replace(self.all, sets=sets, y=y, level=level, levels=0 if unseen else self.all.levels)

    @cached_property
    def places(self) -> dict[str, tuple[Array, Task]]:
        """For each start that was asked for: the map to its coordinates, found without the held-out part; the task."""
        return {}

    def place(self, start: str) -> tuple[Array, Task]:
        """The map and the task of a start."""
        if start not in self.places:
            self.places[start] = placed(self.kept, start)
        return self.places[start]

    def trials(self, cells: list[Cell], name: str, watch: Watch, remember: Remember) -> tuple[Array, Array]:
        """(scores, blocks) of a short trial of each cell: (cells, held-out sets) and (cells, 1 + T, d, d)."""
        arrays, _ = remember(name, lambda: self._tried(cells, name, watch))
        return np.asarray(arrays["scores"]), np.asarray(arrays["blocks"])

    def _tried(self, cells: list[Cell], name: str, watch: Watch) -> Kept:
        scores, found = [], []
        for start in dict.fromkeys(start for start, _ in cells):
            task = self.place(start)[1]
            S, blocks = near_ones(task), ml.start(task.sets.dim, task.levels, task.options.init)
            for cell in (c for c in cells if c[0] == start):
                J, _ = problem(task, blocks, _rho(task.options, cell, task.levels), S, width=ml.HUBER)
                for moved, _ in ml.lbfgs(J, blocks, TRIAL if task.options.max_iter else 0):
                    blocks = moved
                found.append(blocks)
                scores.append(self.score(start, blocks))
                told = {"fold": name, "start": start, "rho": cell[1] or 0.0, "score": float(scores[-1].mean())}
                watch({"stage": "choice", **told})
        return {"scores": np.stack(scores), "blocks": np.stack(found)}, {}

    def _gallery(self, start: str, blocks: Array) -> tuple[Gallery, Pack]:
        """What was learned, and the held-out sets, in the coordinates of the start."""
        A, t = self.place(start)
        learned = Gallery(t.options, t.sets, t.y, t.level, self.classes, blocks, t.gamma, near_ones(t))
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
