"""What the data decides: where learning starts, γ, ρ, what levels add, and the rule; each on inner folds.

The pull of J on M alone is ⟨M, Σ⟩ with Σ the spread of matched points of one class; held by −log det M it is least at
M = Σ⁻¹, the Mahalanobis metric of transport. Learning in coordinates Σ^(−½) p starts there, and its regulariser holds
it there; a start is a point between that and the identity. For sets of one point, Σ is the covariance within classes.

A rule says which metric decides at test time: gallery, global or mean (erratum 7: the paper gives no rule).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from likewise import numeric
from likewise.sets import objective as ml
from likewise.sets import transport
from likewise.sets.metrics import roc
from likewise.sets.objective import Kept, Remember, Rho, Task, Watch, problem, target_neighbors, unwatched, without_memo
from likewise.sets.transport.solvers import BLUR, Index, Pack
from likewise.types import Array


class Start(NamedTuple):
    """Where learning starts: coordinates Σ_s^(−power/2) p, Σ_s the spread of matched points, shrunk by s to a ball."""

    power: float
    shrinkage: float


IDENTITY = Start(0.0, 1.0)
STARTS = {"identity": (IDENTITY,), "whitened": (Start(1.0, 0.5), Start(1.0, 0.1), Start(0.5, 0.1))}
"""The starts that each word allows; "auto" is all, the identity first."""
BLURS = (BLUR, 0.05, 1.0)
"""What γ "auto" is chosen from, in units of the median ground cost; the first is the usual."""
RULES = ("gallery", "global", "mean")
"""The rules at test time; of equally good ones the first is taken."""
RHOS = (np.inf, 1.0, 0.3, 0.1, 0.03)
"""What ρ "auto" is chosen from when the objective is normalised; at ∞ nothing is learned."""
USUAL_RHO = 0.3
"""What ρ is unless folds say otherwise: the best of RHOS on average over the other collections of the suite."""
ENOUGH = 4
"""With fewer sets a class than this (in the median) folds choose nothing; what is usual stays."""
MANY = 50
"""Where classes have no member to spare: with fewer of them nothing is learned or chosen."""
CLEAR = 1.0
"""By how many standard errors of the gain another choice must be better than the usual one."""
FOLDS = 3
FEW = 100
"""With fewer sets than this the folds are drawn twice."""
MOST = 600
"""Of more sets than about this, choices are made on a draw: they change little, and cost no more than two fits."""
TRIAL = 6
"""Iterations a trial of one ρ in one fold; each starts where the last, stronger one ended."""
LOOSE = 1e-4
"""The tolerance to which the distances to held-out sets are solved."""


def scaled(X: Pack, by: float) -> Pack:
    """The same sets, their points multiplied by a number."""
    return Pack(X.points * by, X.weights, X.offsets)


def scale_of(X: Pack) -> float:
    """√(median squared ground distance) of the points, so that margin 1 means the same on every collection."""
    median = transport.auto_gamma(X, fraction=1.0)
    return float(np.sqrt(median)) if median > 1e-12 else 1.0


# ── where learning starts ─────────────────────────────────────────────────────────────────────────────────────────


def place_at_start(task: Task, start: Start, blur: float | None = None) -> tuple[Array, Task]:
    """(A, task): the map A to coordinates whose identity is the start, and the task in them, γ by `blur` if given."""
    A = whitening(task, start)
    sets = task.sets.project(A) if start.power else task.sets
    gamma = task.gamma if blur is None else transport.auto_gamma(sets, fraction=blur)
    return A, replace(task, sets=sets, gamma=gamma)


def spread(sets: Pack, S: Index, gamma: float, *, tol: float = 1e-6, n_jobs: int = 1) -> Array:
    """Σ = 1/2|S| Σ_(i,j)∈S Σ_ab F_ab (p_a − q_b)(p_a − q_b)ᵀ, F the plan of sets i and j at M = I [MLML Eq. 15]."""
    left, right = S[:, 0], S[:, 1]
    solved = transport.solve_pairs(sets, sets, left, right, gamma, tol=tol, plans=True, n_jobs=n_jobs)
    return transport.scatter(sets, sets, left, right, solved, np.full(len(S), 0.5 / max(len(S), 1)))


def shrunk(covariance: Array, s: float) -> Array:
    """(1 − s) Σ + s (tr Σ / d) I."""
    d = len(covariance)
    return np.asarray((1 - s) * covariance + s * float(np.trace(covariance)) / d * np.eye(d))


def whitening(task: Task, start: Start) -> Array:
    """A (d, d), symmetric and invertible: Σ_s^(−power/2), Σ_s the spread of the task's target neighbours, shrunk.

    Scaled so that the median squared ground distance of the sets stays what it was.
    """
    identity = np.eye(task.sets.dim)
    if start.power == 0:
        return identity
    k = task.options
    covariance = spread(task.sets, target_neighbors(task), task.gamma, tol=k.tol, n_jobs=k.n_jobs)
    if not np.trace(covariance) > 0:
        return identity
    w, V = np.linalg.eigh(shrunk(covariance, start.shrinkage))
    A = (V * np.maximum(w, 1e-6 * w[-1]) ** (-start.power / 2)) @ V.T
    return np.asarray(A * (scale_of(task.sets) / scale_of(task.sets.project(A))))


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


def nearest_of_each(D: Array, y: Index, classes: int) -> Array:
    """(rows, classes): the distance to the nearest column of each class."""
    return np.stack([D[:, y == c].min(axis=1) for c in range(classes)], axis=1)


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


Place = tuple[Start, float | None]
"""A start and a γ in units of the median ground cost; None stands for a γ that needs no choice."""


@dataclass(frozen=True)
class Choice:
    """What was chosen; `told` says by what figures."""

    start: Start
    blur: float | None
    rho: Rho
    rule: str
    told: dict[str, Any]


def choose(task: Task, classes: int, watch: Watch = unwatched, remember: Remember = without_memo) -> Choice:
    """Start and γ, then (ρ0, ρt), then the rule: as given; what is "auto", by the best score on inner folds.

    The score is the share of held-out sets that lie nearer to their own class than to another, softly counted; where
    classes have no member to spare, the area under the ROC curve over pairs of held-out classes. γ, then the start, are
    compared where nothing is learned yet, then ρ at the best of them, ρ = ∞ (nothing is learned) among its values;
    then levels, with as much strength as their evidence has, against none. What is usual stays unless another is
    better by more than CLEAR standard errors of the gain, and there are ENOUGH sets a class to tell (or MANY classes).
    For the paper's own sums "auto" means the identity, and ρ = 1 and 1/C.
    """
    k = task.options
    starts = sum(STARTS.values(), ()) if k.start == "auto" else STARTS[k.start]
    blurs: tuple[float | None, ...] = BLURS if k.gamma == "auto" else (None,)
    if not k.normalize:
        starts, blurs = starts[:1], blurs[:1]
    learns = k.normalize and k.max_iter > 0
    open_rho, open_levels = learns and k.rho0 == "auto", learns and k.rhot == "auto" and task.levels > 0
    asked = len(starts) * len(blurs) > 1 or open_rho or open_levels or k.rule == "auto"
    some = thinned(task, MOST) if asked else task
    folds = [Fold(some, classes, *part) for part in held_out(some.y, some.level, k.seed)] if asked else []
    pairs_only, each = all(fold.whole for fold in folds), float(np.median(np.bincount(task.y)))
    enough = classes >= MANY if pairs_only else each >= ENOUGH
    told: dict[str, Any] = {"folds": len(folds), "classes": classes, "sets a class": each, "enough": enough}
    start, blur = starts[0], blurs[0]
    if enough and folds and len(blurs) > 1:
        scores = _unlearned(folds, [(start, b) for b in blurs], "gamma", watch, remember)
        at = clearly_best(scores, 0)
        blur, told["gamma"] = blurs[at], _tell([f"{b:g}" for b in blurs if b], scores, at, 0)
    if enough and folds and len(starts) > 1:
        scores = _unlearned(folds, [(s, blur) for s in starts], "start", watch, remember)
        at = clearly_best(scores, 0)
        names = [f"power {s.power:g}, shrinkage {s.shrinkage:g}" for s in starts]
        start, told["start"] = starts[at], _tell(names, scores, at, 0)
    place, blocks = (start, blur), [ml.start(task.sets.dim, 0) for _ in folds]
    rho0 = USUAL_RHO if learns else 1.0
    if k.rho0 != "auto":
        rho0 = float(k.rho0)
    elif learns and pairs_only and not enough:
        rho0 = np.inf
    if enough and folds and (open_rho or open_levels):
        rhos = RHOS if open_rho else (rho0,)
        tried = [f.trials(place, rhos, f"rho-{n}", watch, remember) for n, f in enumerate(folds)]
        scores, usual = _joined(scores for scores, _ in tried), rhos.index(rho0)
        best = clearly_best(scores, usual)
        told["rho"] = _tell([f"{rho:g}" for rho in rhos], scores, best, usual)
        rho0, blocks = rhos[best], [trial[best] for _, trial in tried]
    rhot = (1.0 / max(task.levels, 1) if not learns else np.inf) if k.rhot == "auto" else float(k.rhot)
    if enough and folds and open_levels and np.isfinite(rho0):
        rhot, blocks = _levels(folds, place, rho0, blocks, told, watch, remember)
    rule: str = k.rule
    if rule == "auto":
        rule = best_rule([fold.tally(place, b) for fold, b in zip(folds, blocks, strict=True)])
    return Choice(*place, (rho0, rhot), rule, told)


def thinned(task: Task, most: int) -> Task:
    """About `most` of the sets, as many of each class as its share asks for, but four; else of fewer classes."""
    if len(task.y) <= most:
        return task
    rng, sizes = np.random.default_rng(task.options.seed), np.bincount(task.y)
    wanted = np.minimum(sizes, np.maximum(np.ceil(most * sizes / len(task.y)).astype(np.int64), 4))
    order = rng.permutation(len(sizes))
    wanted[order[np.cumsum(wanted[order]) > most * 1.5]] = 0
    members = [rng.permutation(np.flatnonzero(task.y == c))[:n] for c, n in enumerate(wanted)]
    chosen = np.sort(np.concatenate(members))
    return replace(task, sets=task.sets.take(chosen), y=task.y[chosen], level=task.level[chosen])


def _levels(
    folds: Sequence[Fold],
    place: Place,
    rho0: float,
    blocks: list[Array],
    told: dict[str, Any],
    watch: Watch,
    remember: Remember,
) -> tuple[float, list[Array]]:
    """ρt by the evidence of the levels, ∞ (none is used) where that is no better on held-out sets; and the blocks."""
    usable = [(n, f, b) for n, (f, b) in enumerate(zip(folds, blocks, strict=True)) if f.kept.levels]
    if not usable:
        return np.inf, blocks
    evidence = float(np.mean([f.evidence(place, b) for _, f, b in usable]))
    told["levels"] = {"evidence": round(evidence, 4)}
    if evidence <= 0:
        return np.inf, blocks
    rhot = rho0 * min(max((1 - evidence) / evidence, 0.1), 100.0)
    tried = [f.with_levels(place, (rho0, rhot), b, f"levels-{n}", watch, remember) for n, f, b in usable]
    scores = _joined(scores for scores, _ in tried)
    best = clearly_best(scores, 0)
    told["levels"] |= _tell(["none", f"{rhot:.3g}"], scores, best, 0)
    if best == 0:
        return np.inf, blocks
    return rhot, [b for _, b in tried]


def _unlearned(folds: Sequence[Fold], places: list[Place], what: str, watch: Watch, remember: Remember) -> Array:
    """The scores (places, held-out sets) where nothing is learned."""
    return _joined(f.unlearned(places, f"{what}-{n}", watch, remember) for n, f in enumerate(folds))


def _joined(parts: Any) -> Array:
    """Scores (cells, held-out sets) of all folds side by side."""
    return np.concatenate(list(parts), axis=1)


def _tell(names: Sequence[str], scores: Array, best: int, usual: int) -> dict[str, Any]:
    """What was compared, with its mean scores; what was chosen, and by how much it is better than the usual."""
    gain = scores[best] - scores[usual]
    error = float(gain.std(ddof=1) / np.sqrt(len(gain))) if len(gain) > 1 else 0.0
    return {
        "chosen": names[best],
        "usual": names[usual],
        "gain": round(float(gain.mean()), 4),
        "error": round(error, 4),
        "scores": {name: round(float(row.mean()), 4) for name, row in zip(names, scores, strict=True)},
    }


def clearly_best(scores: Array, usual: int) -> int:
    """The cell of the best mean score (cells × held-out), or the usual one if the gain over it is within its noise."""
    best = int(scores.mean(axis=1).argmax())
    gain = scores[best] - scores[usual]
    if len(gain) < 2:
        return usual
    clear = gain.mean() > CLEAR * gain.std(ddof=1) / np.sqrt(len(gain))
    return best if clear else usual


def best_rule(tallies: list[dict[str, float]]) -> str:
    """The rule with the greatest sum over folds; the first on a tie, "gallery" where there is no fold."""
    rules = [rule for rule in RULES if all(rule in tally for tally in tallies)]
    return max(rules, key=lambda rule: sum(tally[rule] for tally in tallies))


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
    places: dict[Any, tuple[Array, Task, Index]] = field(default_factory=dict)
    """for each place that was asked for: the map to its coordinates, made without the held-out part; the task; its S"""

    @cached_property
    def kept(self) -> Task:
        """The task without the held-out part; global if that has a level of its own."""
        kept = np.setdiff1d(np.arange(len(self.all.y)), self.held)
        unseen = not np.isin(self.all.level[self.held], self.all.level[kept]).all()
        sets, y, level = self.all.sets.take(kept), self.all.y[kept], self.all.level[kept]
        return replace(self.all, sets=sets, y=y, level=level, levels=0 if unseen else self.all.levels)

    def place(self, place: Place) -> tuple[Array, Task, Index]:
        """The map of a start, the task in its coordinates, and the target neighbours there; each found once."""
        if place not in self.places:
            A, task = place_at_start(self.kept, *place)
            self.places[place] = A, task, target_neighbors(task)
        return self.places[place]

    def unlearned(self, places: list[Place], name: str, watch: Watch, remember: Remember) -> Array:
        """(places, held-out sets): the scores of each place where nothing is learned."""

        def make() -> Kept:
            scores = []
            for place in places:
                A, task = place_at_start(self.kept, *place)
                scores.append(self.score((A, task), ml.start(task.sets.dim, 0)))
                step = {"power": place[0].power, "shrinkage": place[0].shrinkage, "blur": place[1] or 0.0}
                watch({"stage": "start", "fold": name, **step, "score": float(scores[-1].mean())})
            return {"scores": np.stack(scores)}, {}

        return np.asarray(remember(name, make)[0]["scores"])

    def trials(
        self, place: Place, rhos: Sequence[float], name: str, watch: Watch, remember: Remember
    ) -> tuple[Array, Array]:
        """(scores, blocks) of a short trial of the global model at each ρ: (ρ, held-out sets) and (ρ, 1, d, d)."""

        def make() -> Kept:
            A, task, S = self.place(place)
            task, scores, metrics = replace(task, levels=0), [], []
            blocks = ml.start(task.sets.dim, 0)
            for rho in rhos:
                blocks = self._few_steps(task, blocks, (rho, rho), S) if np.isfinite(rho) else blocks
                metrics.append(blocks)
                scores.append(self.score((A, task), blocks))
                watch({"stage": "choice", "fold": name, "rho": rho, "score": float(scores[-1].mean())})
            return {"scores": np.stack(scores), "blocks": np.stack(metrics)}, {}

        arrays, _ = remember(name, make)
        return np.asarray(arrays["scores"]), np.asarray(arrays["blocks"])

    def with_levels(
        self, place: Place, rho: Rho, blocks: Array, name: str, watch: Watch, remember: Remember
    ) -> tuple[Array, Array]:
        """(scores, blocks): those of the global model and, after a short trial from there, of one with levels."""

        def make() -> Kept:
            A, task, S = self.place(place)
            begun = np.concatenate([blocks, ml.SMALL * ml.start(task.sets.dim, task.levels, "paper")[1:]])
            learned = self._few_steps(task, begun, rho, S)
            scores = [self.score((A, replace(task, levels=0)), blocks), self.score((A, task), learned)]
            watch({"stage": "levels", "fold": name, "rho": rho[1], "score": float(scores[-1].mean())})
            return {"scores": np.stack(scores), "blocks": learned}, {}

        arrays, _ = remember(name, make)
        return np.asarray(arrays["scores"]), np.asarray(arrays["blocks"])

    def evidence(self, place: Place, blocks: Array) -> float:
        """How far the levels of the kept sets ask for metrics of their own; see `objective.level_evidence`."""
        _, task, S = self.place(place)
        return ml.level_evidence(task, blocks, S)

    @staticmethod
    def _few_steps(task: Task, blocks: Array, rho: Rho, S: Index) -> Array:
        J, _ = problem(task, blocks, rho, S, width=ml.HUBER)
        for moved, _ in ml.lbfgs(J, blocks, TRIAL):
            blocks = moved
        return blocks

    def _gallery(self, at: tuple[Array, Task], blocks: Array) -> tuple[Gallery, Pack]:
        """What was learned, and the held-out sets, in the coordinates of a place."""
        A, t = at
        learned = Gallery(t.options, t.sets, t.y, t.level, self.classes, blocks, t.gamma)
        return learned, self.all.sets.take(self.held).project(A)

    def score(self, at: tuple[Array, Task], blocks: Array) -> Array:
        """How surely each held-out set is nearest to its own class; one area under the ROC curve for whole classes."""
        learned, rest = self._gallery(at, blocks)
        if self.whole:
            return np.array([self._area(learned, rest, "gallery")])
        D = learned.matrix(rest, learned.sets, learned.level, "gallery", LOOSE)
        return soft_hits(D, self.all.y[self.held][:, None] == learned.y[None, :])

    def tally(self, place: Place, blocks: Array) -> dict[str, float]:
        """Each rule's hits on the held-out sets, or its area under the ROC curve.

        Levels that are classes cannot be held out, and leave the choice between "global" and "mean".
        """
        learned, rest = self._gallery(self.place(place)[:2], blocks)
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
