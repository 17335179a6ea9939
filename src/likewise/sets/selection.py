"""What the data decides: the start, ρ and the rule, the last two (and which start) on inner folds, each learned once.

The pull of J on M alone is ⟨M, Σ⟩ with Σ the spread of matched points of one class; held by −log det M it is least at
M = Σ⁻¹, the Mahalanobis metric of transport. Learning in coordinates Σ^(−½) p starts there, and its regulariser holds
it there. For sets of one point, Σ is the covariance within classes.

A rule says which metric decides at test time: gallery, global or mean (erratum 7: the paper gives no rule).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product

import numpy as np

from likewise import numeric
from likewise.sets import objective as ml
from likewise.sets import transport
from likewise.sets.metrics import roc
from likewise.sets.objective import Kept, Remember, Rho, Task, Watch, problem, target_neighbors, unwatched, without_memo
from likewise.sets.transport.solvers import Index, Pack
from likewise.types import Array

STARTS = ("whitened", "identity")
"""Where learning may start; the first stays unless the second is clearly better."""
SHRINKAGES = (0.003, 0.01, 0.03, 0.1, 0.3, 0.6, 1.0)
"""What the shrinkage of Σ is chosen from."""
GROUPS = 5
"""Classes are dealt into at most so many groups, each left out once."""
RULES = ("gallery", "global", "mean")
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


# ── what was learned ──────────────────────────────────────────────────────────────────────────────────────────────


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
            how = {"value": k.value, "tol": tol or k.tol, "n_jobs": k.n_jobs}
            out[at] = ml.distances(P, Q, left[at], right[at], self.gamma, **how)
        return out

    def matrix(self, X: Pack, Y: Pack, codes: Index, rule: str, tol: float | None = None) -> Array:
        """Distances of all X to all Y, column j under the metric of codes[j]."""
        i, j = np.indices((len(X), len(Y))).reshape(2, -1)
        return self.distances(X, Y, i, j, codes[j], rule, tol).reshape(len(X), len(Y))

    def decide(self, X: Pack, rule: str) -> Index:
        """The class of each set of X."""
        return vote(self.matrix(X, self.sets, self.level, rule), self.y, self.options.n_neighbors, self.classes)


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


# ── the choice ────────────────────────────────────────────────────────────────────────────────────────────────────


def choose(
    task: Task, classes: int, watch: Watch = unwatched, remember: Remember = without_memo
) -> tuple[str, Rho, str]:
    """Start, (ρ0, ρt) and rule: as given; what is "auto", by the best score on inner folds.

    The score of a start and a ρ is the share of held-out sets that lie nearer to their own class than to another,
    softly counted; where classes have no member to spare, the area under the ROC curve over pairs of held-out classes.
    The usual stays unless another is better by more than the standard error of the gain. The rule is then the one with
    the most held-out sets right (the greatest area) under the trial models of that choice; the first on a tie.
    Without learning (max_iter=0), or for the paper's own sums, "auto" means the whitened start, and ρ = 1 and 1/C.
    """
    k, cells = task.options, candidates(task.options)
    if len(cells) == 1 and k.rule != "auto":
        return cells[0][0], _rho(k, cells[0], task.levels), k.rule
    folds = [Fold(task, classes, held, whole) for held, whole in held_out(task.y, task.level, k.seed)]
    trials = [fold.trials(cells, f"choice-{n}", watch, remember) for n, fold in enumerate(folds)]
    best = clearly_best(np.concatenate([scores for scores, _ in trials], axis=1), cells) if folds else usual(cells)
    tried = [(fold, blocks[best]) for fold, (_, blocks) in zip(folds, trials, strict=True)]
    rule = best_rule([fold.tally(cells[best][0], blocks) for fold, blocks in tried]) if k.rule == "auto" else k.rule
    return cells[best][0], _rho(k, cells[best], task.levels), rule


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
        sets, y, level = self.all.sets.take(kept), self.all.y[kept], self.all.level[kept]
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
        A, t, _ = self.place(start)
        learned = Gallery(t.options, t.sets, t.y, t.level, self.classes, blocks, t.gamma)
        return learned, self.all.sets.take(self.held).project(A)

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
            y = self.all.y[self.held]
            return {rule: float((learned.decide(rest, rule) == y).sum()) for rule in RULES}
        levels = self.all.level
        shared = len(np.unique(np.stack([self.all.y, levels]), axis=1).T) > len(np.unique(levels))
        return {rule: self._area(learned, rest, rule) for rule in RULES if shared or rule != "gallery"}

    def _area(self, learned: Gallery, rest: Pack, rule: str) -> float:
        """The area under the ROC curve over held-out pairs of one level, in the global model of any; ½ for one kind."""
        y, level = self.all.y[self.held], self.all.level[self.held]
        level = level if len(learned.blocks) > 1 else np.zeros_like(level)
        i, j = np.triu_indices(len(self.held), 1)
        alike = level[i] == level[j]
        i, j = i[alike], j[alike]
        same = y[i] == y[j]
        if same.all() or not same.any():
            return 0.5
        return roc(learned.distances(rest, rest, i, j, level[i], rule, LOOSE), same).auc


def soft_hits(D: Array, same: Array) -> Array:
    """For each row how surely its nearest column is of its own class, ½ where own and other are equally near.

    1 / (1 + exp(−c / c̄)), c the relative gap between the nearest other and the nearest own column and c̄ its median
    size: what counts is who is nearer, not how far a metric spreads its distances.
    """
    near, far = np.where(same, D, np.inf).min(axis=1), np.where(same, np.inf, D).min(axis=1)
    contrast = (far - near) / np.maximum(np.abs(far) + np.abs(near), 1e-300)
    usual_gap = max(float(np.median(np.abs(contrast))), 1e-12)
    return np.asarray(1 / (1 + np.exp(-np.clip(contrast / usual_gap, -30, 30))))
