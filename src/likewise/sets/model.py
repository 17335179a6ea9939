"""WassersteinLMNN: a metric learned so that sets of one class lie close and others far; a scikit-learn classifier."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sklearn.exceptions
from sklearn.base import BaseEstimator, ClassifierMixin

from likewise.core import linalg, transport
from likewise.core.transport import Index, Pack
from likewise.engine.config import build, check
from likewise.errors import ConfigError, InputError, NotFittedError, ShapeError
from likewise.sets import multilevel as ml
from likewise.sets.compare import signature_of
from likewise.types import Array, Signature

RULES = ("gallery", "energy", "global", "mean")
RHOS = (1.0, 0.3, 0.1, 0.03)
"""What ρ "auto" chooses from, by inner folds of the training sets, when the objective is normalised."""
USUAL_RHO = 0.3
TRIAL = 10
"""Iterations a trial of one ρ in one fold; each starts where the last, stronger one ended."""


class NotFitted(NotFittedError, sklearn.exceptions.NotFittedError):  # type: ignore[misc]
    """Asked before fit: caught as likewise's error and as scikit-learn's."""


@dataclass(eq=False, repr=False)
class WassersteinLMNN(ClassifierMixin, BaseEstimator, ml.LMNNKnobs):  # type: ignore[misc]
    """Nearest-neighbour classification of sets under a learned smoothed Wasserstein distance [MLML Eq. 9–16].

    C = (p − q)ᵀ (M0 + Mt) (p − q): one shared metric M0 and one Mt a level, learned so that the `k_targets` nearest
    sets of the same class come closer than any other class by a margin of 1. Every class needs two members.

    X is a sequence of Signature, (points, weights) or (m, d) arrays, or one 2-D array whose rows are one-point sets.
    The level of a set is what `fit(levels=)` says, else its `Signature.level`, else its class.

    After fit: `M0_` (d, d) and `Mt_` (a dict, level → (d, d)), in the units of the input, so that
    `distances(X, metric=M0_ + Mt_[t], gamma=gamma_)` is the learned distance; `scale_`, the length by which points
    were divided (the regulariser sees scale_² M); `classes_`, `levels_`, `gamma_`; `rho_` (ρ0, ρt) and `rule_` as used
    (chosen if "auto"); `history_`, a record an iteration: round, objective (plans re-solved), active triplets, step,
    seconds.
    """

    # ── learning ──────────────────────────────────────────────────────────────────────────────────────────────────

    def fit(self, X: Any, y: Any, levels: Sequence[Hashable] | None = None) -> WassersteinLMNN:
        """Learn M0 and every Mt from sets X with labels y; `levels` says under which metric each set is compared."""
        check(self)
        if self.value == "sharp":
            raise ConfigError("value: 'sharp' cannot be trained, its gradient is not the plan's; use 'kl'")
        sets = read_sets(X)
        labels = _labels(y, len(sets))
        self.__dict__.pop("rho_", None)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        _check_classes(self.classes_, codes)
        names = _levels(sets, labels, levels)
        self.levels_ = _distinct(names)
        which = _positions(names, self.levels_)
        self.n_features_in_ = sets[0].dim
        raw = transport.pack(sets)
        self.scale_ = _scale(raw) if self.normalize else 1.0
        with transport.one_blas_thread():  # matrices of d × d: threads inside BLAS would wait for each other
            learned = self._learn(raw, codes, which)
            self._keep(raw, codes, which, learned)
            self.rule_ = self._choose_rule(raw, codes, which) if self.rule == "auto" else self.rule
        self.history_: list[ml.Record] = learned.history
        self.n_iter_ = max(1, len(learned.history))
        return self

    def _learn(self, raw: Pack, y: Index, level: Index) -> Learned:
        unit = _scaled(raw, 1 / self.scale_)
        self.gamma_ = transport.auto_gamma(unit) if self.gamma == "auto" else float(self.gamma)
        if not hasattr(self, "rho_"):
            self.rho_ = choose_rho(self, unit, y, level, self.gamma_)
        return learn(self, unit, y, level, len(self.levels_) if self.multilevel else 0, self.gamma_, self.rho_)

    def _keep(self, raw: Pack, y: Index, level: Index, learned: Learned) -> None:
        """Put what was learned where predict looks for it, in the units of the input."""
        blocks = (learned.blocks + learned.blocks.transpose(0, 2, 1)) / (2 * self.scale_**2)
        self.M0_, parts = blocks[0], blocks[1:]
        self.Mt_: dict[Hashable, Array] = dict(zip(self.levels_, parts, strict=False))
        self._raw, self._codes, self._level = raw, y.astype(np.int64), level
        self._targets = S = learned.targets
        self._reach = self._pair_values(raw, raw, S[:, 0], S[:, 1], level[S[:, 0]], "gallery")

    def _choose_rule(self, raw: Pack, y: Index, level: Index) -> str:
        """The rule with the best accuracy over inner stratified folds, each fold fitted once; the first on a tie."""
        folds = inner_folds(y, self.seed)
        if not folds:
            return self._choose_rule_by_pairs(raw, y, level)
        hits = dict.fromkeys(RULES, 0)
        for held in folds:
            twin, rest = self._without(held, raw, y, level), ml.subset(raw, held)
            for rule in RULES:
                hits[rule] += int((twin._decide(rest, np.full(len(held), -1), rule) == y[held]).sum())
        return max(RULES, key=lambda rule: hits[rule])

    def _choose_rule_by_pairs(self, raw: Pack, y: Index, level: Index) -> str:
        """Where no class has a member to spare: whole classes are held out, and pairs of one level ranked by distance.

        The rule with the greatest area under the ROC curve of same against different; levels that are classes cannot
        be held out and leave the choice between "global" and "mean".
        """
        shared = len(np.unique(np.stack([y, level]), axis=1).T) > len(self.levels_)
        rules = ("gallery", "global", "mean") if shared else ("global", "mean")
        areas = dict.fromkeys(rules, 0.0)
        for held in class_folds(y, level, self.seed):
            twin, rest = self._without(held, raw, y, level), ml.subset(raw, held)
            i, j = np.triu_indices(len(held), 1)
            alike = (level[held][i] == level[held][j]) if shared else np.ones(len(i), dtype=bool)
            i, j = i[alike].astype(np.int64), j[alike].astype(np.int64)
            same = y[held][i] == y[held][j]
            for rule in rules:
                areas[rule] += area(twin._pair_values(rest, rest, i, j, level[held][i], rule), same)
        return max(rules, key=lambda rule: areas[rule])

    def _without(self, held: Index, raw: Pack, y: Index, level: Index) -> WassersteinLMNN:
        """A twin that has learned from all sets but those held out."""
        twin = type(self)(**{**self.get_params(), "rule": "gallery"})
        for name in ("classes_", "levels_", "scale_", "rho_", "n_features_in_"):
            setattr(twin, name, getattr(self, name))
        kept = np.setdiff1d(np.arange(len(y)), held)
        part = ml.subset(raw, kept)
        twin._keep(part, y[kept], level[kept], twin._learn(part, y[kept], level[kept]))
        return twin

    # ── distances ─────────────────────────────────────────────────────────────────────────────────────────────────

    def metric(self, level: Hashable = None, *, rule: str | None = None) -> Array:
        """The matrix under which sets of a level are compared; without a level, M0 or the mean over levels by rule."""
        self._fitted()
        return self._metric(self._level_code(level, rule), rule)

    def _metric(self, code: int, rule: str | None = None) -> Array:
        """M0 + Mt for a level's code; −1 stands for no level: M0 + mean Mt, or M0 under rule="global"."""
        rule = rule or self.rule_
        if not self.Mt_ or rule == "global":
            return np.asarray(self.M0_)
        if rule == "mean" or code < 0:
            return np.asarray(self.M0_ + np.mean(list(self.Mt_.values()), axis=0))
        return np.asarray(self.M0_ + self.Mt_[self.levels_[code]])

    def pairwise(self, X: Any, Y: Any = None, levels: Sequence[Hashable] | None = None) -> Array:
        """Learned distances (n, m) of sets X to sets Y (default: the training sets).

        A column is measured under the metric of its set's level: `levels` (one a set of Y), else `Signature.level`,
        else no level, which means M0 + mean Mt. With rule_ "global" or "mean" every column is measured alike.
        """
        self._fitted()
        P = transport.pack(self._read(X, "X"))
        if Y is None:
            return self._matrix(P, self._raw, self._level if levels is None else self._codes_of(levels, len(self._raw)))
        sets = self._read(Y, "Y")
        named = [s.level for s in sets] if levels is None else levels
        return self._matrix(P, transport.pack(sets), self._codes_of(named, len(sets)))

    def pair_distance(self, pairs: Iterable[Any], levels: Sequence[Hashable] | Hashable = None) -> Array:
        """Learned distance of each (p, q); `levels` is one level for all or one a pair, else what the signatures say.

        A known level is measured under its own metric (unless rule_ is "global" or "mean"), none under M0 + mean Mt.
        """
        self._fitted()
        listed = [_pair(item, k) for k, item in enumerate(pairs)]
        if not listed:
            return np.empty(0)
        sets = self._read([side for pair in listed for side in pair], "pairs")
        left, right = np.arange(0, len(sets), 2), np.arange(1, len(sets), 2)
        named = _pair_levels(sets, len(listed), levels)
        both = transport.pack(sets)
        return self._pair_values(both, both, left, right, self._codes_of(named, len(listed)))

    def transport_plan(self, p: Any, q: Any, level: Hashable = None) -> Array:
        """The plan F (m, n) between two sets under the learned metric; rows and columns of weight zero are zero."""
        self._fitted()
        sets = self._read([p, q], "p, q")
        named = _pair_levels(sets, 1, None if level is None else [level])
        root = linalg.factor(self._metric(int(self._codes_of(named, 1)[0])))
        X, Y = (transport.pack([s]).project(root) for s in sets)
        zero = np.zeros(1, dtype=np.int64)
        found = transport.solve_pairs(X, Y, zero, zero, self.gamma_, tol=self.tol, plans=True)
        F = np.zeros((len(sets[0]), len(sets[1])))
        F[np.ix_(sets[0].weights > 0, sets[1].weights > 0)] = found.plan(0)
        return F

    def objective(self, X: Any, y: Any, levels: Sequence[Hashable] | None = None) -> float:
        """J of the learned metrics on labelled sets, with their own targets and impostors, hinge not smoothed."""
        self._fitted()
        sets = self._read(X, "X")
        labels = _labels(y, len(sets))
        classes, codes = np.unique(labels, return_inverse=True)
        _check_classes(classes, codes)
        names = _levels(sets, labels, levels)
        code = self._codes_of(names, len(sets)) if self.Mt_ else np.zeros(len(sets), dtype=np.int64)
        unit = _scaled(transport.pack(sets), 1 / self.scale_)
        blocks = np.stack([self.M0_, *self.Mt_.values()]) * self.scale_**2
        J, _ = problem(self, unit, codes.astype(np.int64), code, blocks, self.gamma_, self.rho_)
        return J(blocks).objective

    def _matrix(self, X: Pack, Y: Pack, codes: Index, rule: str | None = None) -> Array:
        """Distances of all X to all Y, column j under the metric of codes[j]."""
        i, j = (side.ravel() for side in np.meshgrid(np.arange(len(X)), np.arange(len(Y)), indexing="ij"))
        return self._pair_values(X, Y, i, j, codes[j], rule).reshape(len(X), len(Y))

    def _pair_values(self, X: Pack, Y: Pack, left: Index, right: Index, codes: Index, rule: str | None = None) -> Array:
        rule = rule or getattr(self, "rule_", "gallery")
        if not self.Mt_ or rule in ("global", "mean"):
            codes = np.full(len(left), -1)
        out = np.empty(len(left))
        for code in np.unique(codes):
            at = np.flatnonzero(codes == code)
            root = linalg.factor(self._metric(int(code), rule))
            out[at] = ml.distances(
                X.project(root),
                Y.project(root),
                left[at],
                right[at],
                self.gamma_,
                self.value,
                tol=self.tol,
                n_jobs=self.n_jobs,
            )
        return out

    # ── prediction ────────────────────────────────────────────────────────────────────────────────────────────────

    def predict(self, X: Any) -> Any:
        """The label of each set by the rule of `rule_` (erratum 7: the paper gives no rule for test time).

        gallery: nearest training sets, each under its own level's metric. energy: the label under which the set would
        raise the objective least. global: nearest under M0. mean: nearest under M0 + mean Mt.
        """
        self._fitted()
        sets = self._read(X, "X")
        own = self._codes_of([s.level for s in sets], len(sets)) if self.rule_ == "energy" else np.full(len(sets), -1)
        return self.classes_[self._decide(transport.pack(sets), own, self.rule_)]

    def _decide(self, X: Pack, own: Index, rule: str) -> Index:
        if rule == "energy":
            return np.asarray(np.argmin(self._energies(X, own), axis=1), dtype=np.int64)
        return vote(self._matrix(X, self._raw, self._level, rule), self._codes, self.n_neighbors, len(self.classes_))

    def _energies(self, X: Pack, own: Index) -> Array:
        """E (n, classes): by how much the objective grows when set x joins the training sets with label c.

        E = (1−μ) Σ_j W_c(x, j) + μ/k Σ_jl φ(1 + W_c(x, j) − W_c(x, l))
            + μ/k Σ_{S, y_i ≠ c} φ(1 + W_i(i, j) − W_i(i, x)):
        its own targets j, its own k impostors l, and the targets of others that it would come between.
        W_c is under the level of x where it is known, else under the commonest level of class c.
        """
        used = np.unique(np.concatenate([self._level, own[own >= 0]]))
        D = {int(t): self._matrix(X, self._raw, np.full(len(self._raw), t)) for t in (used if self.Mt_ else [0])}
        push = self.mu / self.k_impostors
        between = self._between(D) * push
        E = np.empty((len(X), len(self.classes_)))
        home = [int(np.bincount(self._level[self._codes == c]).argmax()) for c in range(len(self.classes_))]
        for x in range(len(X)):
            for c in range(len(self.classes_)):
                W = D[(int(own[x]) if own[x] >= 0 else home[c]) if self.Mt_ else 0][x]
                E[x, c] = self._own_energy(W, self._codes == c, push) + between[x].sum() - between[x, c]
        return E

    def _own_energy(self, W: Array, same: Any, push: float) -> float:
        near = np.sort(W[same])[: self.k_targets]
        far = np.sort(W[~same])[: self.k_impostors]
        invaded = np.maximum(ml.MARGIN + near[:, None] - far[None, :], 0).sum()
        return float(((1 - self.mu) * near.sum() + push * invaded) * self.k_targets / len(near))

    def _between(self, D: dict[int, Array]) -> Array:
        """(n, classes): Σ φ(1 + W(i, j) − W(i, x)) over the targets (i, j) of each class."""
        i = self._targets[:, 0]
        t = self._level[i] if self.Mt_ else np.zeros(len(i), dtype=np.int64)
        n = len(next(iter(D.values())))
        out = np.zeros((n, len(self.classes_)))
        for s in range(len(i)):
            out[:, self._codes[i[s]]] += np.maximum(ml.MARGIN + self._reach[s] - D[int(t[s])][:, i[s]], 0)
        return out

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The arrays and the JSON header from which `from_state` makes an equal model: for lw.save, without pickle."""
        self._fitted()
        parts = np.stack(list(self.Mt_.values())) if self.Mt_ else np.empty((0, *self.M0_.shape))
        arrays = {
            "M0": self.M0_,
            "Mt": parts,
            "points": self._raw.points,
            "weights": self._raw.weights,
            "offsets": self._raw.offsets,
            "codes": self._codes,
            "level": self._level,
            "targets": self._targets,
            "reach": self._reach,
        }
        header = {
            "knobs": self.get_params(),
            "classes": {"dtype": self.classes_.dtype.str, "values": [_written(_plain(c), "y") for c in self.classes_]},
            "levels": [_written(t, "levels") for t in self.levels_],
            "scale": self.scale_,
            "gamma": self.gamma_,
            "rho": list(self.rho_),
            "rule": self.rule_,
            "history": self.history_,
        }
        return arrays, header

    @classmethod
    def from_state(cls, arrays: dict[str, Any], header: dict[str, Any]) -> WassersteinLMNN:
        """The model that `state` described; what does not fit together is an InputError."""
        model = build(cls, header["knobs"])
        model.classes_ = _read_classes(header["classes"])
        model.levels_ = [_unwritten(t) for t in header["levels"]]
        model.scale_, model.gamma_ = (_positive(header[k], k) for k in ("scale", "gamma"))
        model.rho_ = (float(header["rho"][0]), float(header["rho"][1]))
        model.n_iter_ = max(1, len(header["history"]))
        model.rule_, model.history_ = _known_rule(header["rule"]), list(header["history"])
        model.M0_ = linalg.psd(arrays["M0"], where="M0")
        model.n_features_in_ = d = len(model.M0_)
        parts = [linalg.psd(M, dim=d, where="Mt") for M in arrays["Mt"]]
        if len(parts) not in (0, len(model.levels_)):
            raise ShapeError(f"Mt: expected {len(model.levels_)} matrices, one a level, got {len(parts)}")
        model.Mt_ = dict(zip(model.levels_, parts, strict=False))
        model._raw = _read_pack(arrays, d)
        n = len(model._raw)
        model._codes = _indices(arrays["codes"], (n,), len(model.classes_), "codes")
        model._level = _indices(arrays["level"], (n,), len(model.levels_), "level")
        model._targets = _indices(arrays["targets"], (len(arrays["reach"]), 2), n, "targets")
        model._reach = np.asarray(arrays["reach"], dtype=np.float64)
        return model

    # ── what comes in ─────────────────────────────────────────────────────────────────────────────────────────────

    def _fitted(self) -> None:
        if not hasattr(self, "M0_"):
            raise NotFitted("this WassersteinLMNN is not fitted yet; call fit(X, y) first")

    def _read(self, X: Any, where: str) -> list[Signature]:
        sets = read_sets(X, where)
        for k, s in enumerate(sets):
            if s.dim != self.n_features_in_:
                raise ShapeError(
                    f"X has {s.dim} features, but WassersteinLMNN is expecting {self.n_features_in_} features as input"
                    f" ({where}[{k}])"
                )
        return sets

    def _level_code(self, level: Hashable, rule: str | None = None) -> int:
        if level is None or not self.Mt_:
            return -1
        if level in self.Mt_:
            return list(self.Mt_).index(level)
        if (rule or self.rule_) in ("global", "mean"):
            return -1
        known = ", ".join(map(repr, list(self.Mt_)[:8]))
        raise InputError(
            f"level {level!r} was not seen in training (seen: {known}); "
            "give a seen one, or fit with rule='global' or 'mean'"
        )

    def _codes_of(self, levels: Sequence[Hashable], n: int) -> Index:
        if len(levels) != n:
            raise ShapeError(f"levels: expected {n}, one a set or pair, got {len(levels)}")
        return np.array([self._level_code(_plain(t)) for t in levels], dtype=np.int64)


# ── learning, outside of the estimator ────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class Learned:
    """What learning gives: blocks (1 + T, d, d) in scaled units, S, and the history."""

    blocks: Array
    targets: Index
    history: list[ml.Record]


def learn(
    k: ml.LMNNKnobs, sets: Pack, y: Index, level: Index, levels: int, gamma: float, rho: tuple[float, float]
) -> Learned:
    """Rounds of: find the impostors under the metric so far, then minimise J with the chosen solver."""
    blocks = ml.start(sets.dim, levels, k.init)
    solver = k.solver if k.solver != "auto" else ("fista" if levels else "lbfgs")
    history: list[ml.Record] = []
    S: Index | None = None
    before: Index | None = None
    for turn in range(k.rounds):
        J, (S, R) = problem(k, sets, y, level, blocks, gamma, rho, S, width=0.0 if solver == "paper" else ml.HUBER)
        if before is not None and np.array_equal(R, before):
            break
        before = R
        for moved, record in ml.SOLVERS[solver](J, blocks, k.max_iter):
            blocks = moved
            history.append({"round": turn, "iteration": len(history), "triplets": len(R), **record})
        if k.verbose and history:
            last = history[-1]
            print(f"round {turn}: J = {last['objective']:.5g}, {last['active']} of {len(R)} triplets active")
    return Learned(blocks, S if S is not None else np.empty((0, 2), dtype=np.int64), history)


def problem(
    k: ml.LMNNKnobs,
    sets: Pack,
    y: Index,
    level: Index,
    blocks: Array,
    gamma: float,
    rho: tuple[float, float],
    S: Index | None = None,
    width: float = 0.0,
) -> tuple[ml.Objective, tuple[Index, Index]]:
    """J with S at M = I and R at the blocks given; S and R themselves."""
    levels = len(blocks) - 1
    level = level if levels else np.zeros_like(level)
    value: transport.Value = k.value

    def under(root: Array | None) -> Callable[[Index, Index], Array]:
        Z = sets if root is None else sets.project(root)
        return lambda i, j: ml.distances(Z, Z, i, j, gamma, value, tol=k.tol, n_jobs=k.n_jobs)

    if S is None:
        S = ml.targets(y, k.k_targets, under(None))
    means = _means(sets)
    found = []
    for t in np.unique(level):
        root = linalg.factor(ml.metric(blocks, int(t)))
        found.append(ml.impostors(y, k.k_impostors, means @ root, under(root), np.flatnonzero(level == t)))
    R = ml.triplets(S, np.concatenate(found))
    c = ml.Coefficients.of(*rho, k.mu, len(S), len(R), sets.dim, k.normalize)
    pairs = ml.pairs_of(S, R, level, own=value == "divergence")
    J = ml.Objective(sets, pairs, levels, c, gamma, value=value, width=width, tol=k.tol, n_jobs=k.n_jobs)
    return J, (S, R)


def choose_rho(k: ml.LMNNKnobs, sets: Pack, y: Index, level: Index, gamma: float) -> tuple[float, float]:
    """ρ0 and ρt: as given; "auto" is 1 and 1/C for the paper's sums, else the best of RHOS.

    Best is the highest score on inner folds of the training sets: the share of held-out sets that lie nearer to their
    own class than to another, softly counted; where classes have no member to spare, the area under the ROC curve
    over pairs of held-out classes. 0.3 stays unless another is better by more than the standard error of the gain.
    """
    levels = len(np.unique(level)) if k.multilevel else 0
    auto = (1.0, 1.0 / max(levels, 1))
    if k.normalize and "auto" in (k.rho0, k.rhot) and k.max_iter > 0:
        folds = _rho_folds(y, level, k.seed)
        scores = [_rho_scores(k, sets, y, level, gamma, held, whole) for held, whole in folds]
        auto = (_clearly_best(np.concatenate(scores, axis=1)) if scores else USUAL_RHO,) * 2
    return (auto[0] if k.rho0 == "auto" else float(k.rho0)), (auto[1] if k.rhot == "auto" else float(k.rhot))


def _clearly_best(scores: Array) -> float:
    """The ρ with the best mean score (ρ × trials), or the usual one if the gain over it is within its noise."""
    best, usual = int(scores.mean(axis=1).argmax()), RHOS.index(USUAL_RHO)
    gain = scores[best] - scores[usual]
    clear = gain.mean() > gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else False
    return RHOS[best] if clear else USUAL_RHO


def _rho_folds(y: Index, level: Index, seed: int) -> list[tuple[Index, bool]]:
    """Up to three held-out parts, and whether they are whole classes."""
    folds = inner_folds(y, seed, 3)
    return [(f, False) for f in folds] if folds else [(f, True) for f in class_folds(y, level, seed)]


def _rho_scores(k: ml.LMNNKnobs, sets: Pack, y: Index, level: Index, gamma: float, held: Index, whole: bool) -> Array:
    """(ρ, trials): the scores on one held-out part of models learned from the rest, from the strongest ρ down."""
    kept = np.setdiff1d(np.arange(len(y)), held)
    part, rest = ml.subset(sets, kept), ml.subset(sets, held)
    unseen = not np.isin(level[held], level[kept]).all()
    levels = int(level.max()) + 1 if k.multilevel and not unseen else 0
    blocks, S, scores = ml.start(sets.dim, levels), None, []
    for rho in RHOS:
        J, (S, _) = problem(k, part, y[kept], level[kept], blocks, gamma, (rho, rho), S, width=ml.HUBER)
        for moved, _ in ml.lbfgs(J, blocks, TRIAL):
            blocks = moved
        if whole:
            scores.append(_pair_score(k, rest, y[held], level[held], blocks, gamma))
        else:
            scores.append(_soft_hits(k, rest, part, y[held], y[kept], level[kept], blocks, gamma))
    return np.stack(scores)


def _pair_score(k: ml.LMNNKnobs, X: Pack, y: Index, level: Index, blocks: Array, gamma: float) -> Array:
    """The area under the ROC curve over the pairs of one level in X (of any level in the global model)."""
    i, j = (side.astype(np.int64) for side in np.triu_indices(len(X), 1))
    code = level if len(blocks) > 1 else np.zeros_like(level)
    alike = code[i] == code[j]
    i, j = i[alike], j[alike]
    return np.array([area(_under(k, X, X, i, j, code[i], blocks, gamma), y[i] == y[j])])


def _soft_hits(
    k: ml.LMNNKnobs, X: Pack, Y: Pack, y: Index, z: Index, level: Index, blocks: Array, gamma: float
) -> Array:
    """For each set of X how surely the nearest of Y is of its own class, columns under the metric of their level."""
    i, j = np.indices((len(X), len(Y))).reshape(2, -1).astype(np.int64)
    code = level if len(blocks) > 1 else np.zeros_like(level)
    D = _under(k, X, Y, i, j, code[j], blocks, gamma).reshape(len(X), len(Y))
    same = y[:, None] == z[None, :]
    near, far = np.where(same, D, np.inf).min(axis=1), np.where(same, np.inf, D).min(axis=1)
    contrast = (far - near) / np.maximum(np.abs(far) + np.abs(near), 1e-300)
    return np.asarray(1 / (1 + np.exp(-contrast / SOFTNESS)))


def _under(k: ml.LMNNKnobs, X: Pack, Y: Pack, i: Index, j: Index, code: Index, blocks: Array, gamma: float) -> Array:
    """Distances of pairs (X[i], Y[j]), each under the metric of its level's code."""
    out = np.empty(len(i))
    for t in np.unique(code):
        at, root = np.flatnonzero(code == t), linalg.factor(ml.metric(blocks, int(t)))
        P, Q = X.project(root), Y.project(root)
        out[at] = ml.distances(P, Q, i[at], j[at], gamma, k.value, tol=max(k.tol, 1e-4), n_jobs=k.n_jobs)
    return out


SOFTNESS = 0.05
"""The relative gap between own and other class at which a held-out set counts as 73 % right."""


def _means(X: Pack) -> Array:
    return np.asarray(np.add.reduceat(X.points * X.weights[:, None], X.offsets[:-1], axis=0))


def _scaled(X: Pack, by: float) -> Pack:
    return Pack(X.points * by, X.weights, X.offsets)


def _scale(X: Pack) -> float:
    """√(median squared ground distance) of the points, so that margin 1 means the same on every collection."""
    median = transport.auto_gamma(X, fraction=1.0)
    return float(np.sqrt(median)) if median > 1e-12 else 1.0


def vote(D: Array, y: Index, k: int, classes: int) -> Index:
    """The commonest class among the k nearest; of equals, the one whose nearest member is nearest."""
    k = min(k, D.shape[1])
    near = np.argsort(D, axis=1, kind="stable")[:, :k]
    ballots = np.zeros((len(D), classes))
    for r in range(k):
        ballots[np.arange(len(D)), y[near[:, r]]] += 1 + (k - r) * 1e-6 / k
    return np.asarray(ballots.argmax(axis=1), dtype=np.int64)


def inner_folds(y: Index, seed: int, most: int = 5) -> list[Index]:
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


def class_folds(y: Index, level: Index, seed: int, count: int = 3) -> list[Index]:
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
    from scipy.stats import rankdata

    n = int(same.sum())
    if n == 0 or n == len(same):
        return 0.5
    ranks = rankdata(-distances)
    return float((ranks[same].sum() - n * (n + 1) / 2) / (n * (len(same) - n)))


# ── reading what the user gave ────────────────────────────────────────────────────────────────────────────────────


def read_sets(X: Any, where: str = "X") -> list[Signature]:
    """X as signatures: Signature, (points, weights), (m, d) arrays; the rows of one 2-D array are one-point sets."""
    if hasattr(X, "toarray"):
        raise InputError(f"{where} is sparse; give X.toarray()")
    if hasattr(X, "to_numpy"):
        X = X.to_numpy()
    if not isinstance(X, np.ndarray | Sequence) and hasattr(X, "__array__"):
        X = np.asarray(X)
    if isinstance(X, np.ndarray) and X.dtype == object and X.ndim == 2:
        X = _numeric(X, where)
    if isinstance(X, np.ndarray) and X.dtype != object:
        if X.ndim == 1:
            raise ShapeError(
                f"{where}: expected sets or a 2-D array, got a 1-D array. Reshape your data: X.reshape(-1, 1)"
            )
        if np.iscomplexobj(X):
            raise InputError(f"{where}: Complex data not supported")
        if X.ndim == 2 and X.shape[1] == 0:
            raise ShapeError(f"{where}: 0 feature(s) (shape={X.shape}) while a minimum of 1 is required.")
        X = list(X)
    try:
        items = list(X)
    except TypeError:
        raise InputError(f"{where}: expected a sequence of sets, got {type(X).__name__}") from None
    if not items:
        raise ShapeError(f"{where}: Found array with 0 sample(s); expected at least one set")
    sets = [signature_of(item, where=f"{where}[{k}]") for k, item in enumerate(items)]
    for k, s in enumerate(sets):
        if s.dim != sets[0].dim:
            raise ShapeError(f"{where}[{k}] has {s.dim} dimensions where {where}[0] has {sets[0].dim}")
    return sets


def _numeric(X: Any, where: str) -> Any:
    """A 2-D object array as numbers: its rows are one-point sets."""
    try:
        return X.astype(np.float64)
    except TypeError as error:
        raise NotNumbers(f"{where}: argument must be a string or a number: {error}") from None
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None


class NotNumbers(InputError, TypeError):
    """A value of a type that is no number: an InputError that is a TypeError, too, as scikit-learn expects."""


def _labels(y: Any, n: int) -> Any:
    if y is None:
        raise InputError("requires y to be passed, but the target y is None: one label a set")
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        warnings.warn(
            "A column-vector y was passed when a 1d array was expected; its one column is taken",
            sklearn.exceptions.DataConversionWarning,
            stacklevel=3,
        )
        labels = labels.ravel()
    if labels.ndim != 1:
        raise ShapeError(f"y: expected one label a set, ({n},), got shape {labels.shape}")
    if len(labels) != n:
        raise ShapeError(f"y: expected {n} labels, one a set, got {len(labels)}")
    if labels.dtype.kind == "f":
        if not np.isfinite(labels).all():
            raise InputError("y contains NaN or infinity; give a label a set")
        if (labels != np.round(labels)).any():
            raise InputError("Unknown label type: continuous; y must hold class labels, not measurements")
    if labels.dtype == object and len({type(v) for v in labels}) > 1:
        raise InputError("y: labels are of several types; give all of one type (all text, or all integers)")
    return labels


def _check_classes(classes: Any, codes: Index) -> None:
    if len(classes) < 2:
        raise InputError(f"y: expected at least two classes, got 1 class ({_plain(classes[0])!r})")
    sizes = np.bincount(codes)
    if sizes.min() < 2:
        lone = [repr(_plain(classes[c])) for c in np.flatnonzero(sizes < 2)]
        raise InputError(
            f"y: class {', '.join(lone[:5])} has one member; each class needs two to learn from: "
            "add one or leave the class out"
        )


def _levels(sets: list[Signature], labels: Any, levels: Sequence[Hashable] | None) -> list[Hashable]:
    """The level of each set: as given, else as its signature says (if all do), else its class."""
    if levels is not None:
        if len(levels) != len(sets):
            raise ShapeError(f"levels: expected {len(sets)}, one a set, got {len(levels)}")
        if any(t is None for t in levels):
            raise InputError("levels: None is not a level; name the level of every set")
        return [_plain(t) for t in levels]
    own = [_plain(s.level) for s in sets]
    if all(t is not None for t in own):
        return own
    return [_plain(c) for c in labels]


def _plain(value: Any) -> Hashable:
    """A NumPy scalar as the Python value it stands for, so that 1 and np.int64(1) are one level."""
    plain: Hashable = value.item() if isinstance(value, np.generic) else value
    return plain


def _distinct(names: list[Hashable]) -> list[Hashable]:
    """Each level once, sorted where they can be, else in order of appearance."""
    once = list(dict.fromkeys(names))
    try:
        return sorted(once)  # type: ignore[type-var]
    except TypeError:
        return once


def _positions(names: list[Hashable], once: list[Hashable]) -> Index:
    at = {name: k for k, name in enumerate(once)}
    return np.array([at[name] for name in names], dtype=np.int64)


def _pair(item: Any, k: int) -> tuple[Any, Any]:
    try:
        p, q = item
    except (TypeError, ValueError):
        raise InputError(f"pairs[{k}]: expected two sets (p, q), got {type(item).__name__}") from None
    return p, q


def _pair_levels(sets: list[Signature], n: int, levels: Any) -> list[Hashable]:
    if levels is None:
        return [_common(sets[2 * k], sets[2 * k + 1], k) for k in range(n)]
    if isinstance(levels, str) or not isinstance(levels, Iterable):
        return [levels] * n
    return list(levels)


def _common(p: Signature, q: Signature, k: int) -> Hashable:
    if p.level is not None and q.level is not None and p.level != q.level:
        raise InputError(f"pairs[{k}]: the two sets are of levels {p.level!r} and {q.level!r}; say which with levels=")
    return p.level if p.level is not None else q.level


# ── what stands in a file ─────────────────────────────────────────────────────────────────────────────────────────


def _written(value: Any, where: str) -> Any:
    """A label as JSON: text, a number, a truth value; a tuple as {"tuple": […]}."""
    if isinstance(value, tuple):
        return {"tuple": [_written(v, where) for v in value]}
    if isinstance(value, str | int | float | bool):
        return value
    raise InputError(f"{where}: a label of type {type(value).__name__} cannot be saved; use text or numbers as labels")


def _unwritten(value: Any) -> Hashable:
    if isinstance(value, dict):
        return tuple(_unwritten(v) for v in value["tuple"])
    plain: Hashable = value
    return plain


def _read_classes(said: dict[str, Any]) -> Any:
    kind = np.dtype(str(said["dtype"]))
    if kind.kind not in "biufUO":
        raise InputError(f"classes: expected numbers or text, got dtype {kind}")
    out = np.empty(len(said["values"]), dtype=kind)
    out[:] = [_unwritten(v) for v in said["values"]]
    return out


def _positive(value: Any, where: str) -> float:
    number = float(value)
    if not (np.isfinite(number) and number > 0):
        raise InputError(f"{where}: expected a number > 0, got {value!r}")
    return number


def _known_rule(rule: Any) -> str:
    if rule not in RULES:
        raise InputError(f"rule: expected one of {', '.join(RULES)}, got {rule!r}")
    return str(rule)


def _read_pack(arrays: dict[str, Any], dim: int) -> Pack:
    points, weights = (np.ascontiguousarray(arrays[k], dtype=np.float64) for k in ("points", "weights"))
    offsets = np.ascontiguousarray(arrays["offsets"], dtype=np.int64)
    fits = points.ndim == 2 and points.shape[1] == dim and weights.shape == (len(points),)
    if not fits or offsets.ndim != 1 or len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != len(points):
        raise ShapeError("points, weights and offsets do not fit together")
    if (np.diff(offsets) < 1).any() or not (weights > 0).all() or not np.isfinite(points).all():
        raise InputError("the stored sets are damaged: an empty set, a weight ≤ 0 or a point that is not finite")
    sums = np.add.reduceat(weights, offsets[:-1])
    if np.abs(sums - 1).max() > 1e-6:
        raise InputError("the stored sets are damaged: the weights of a set do not sum to 1")
    return Pack(points, weights, offsets)


def _indices(array: Any, shape: tuple[int, ...], below: int, where: str) -> Index:
    found = np.asarray(array)
    if found.shape != shape or found.dtype.kind not in "iu":
        raise ShapeError(f"{where}: expected integers of shape {shape}, got {found.dtype} of shape {found.shape}")
    if found.size and (found.min() < 0 or found.max() >= below):
        raise InputError(f"{where}: expected 0 to {below - 1}, got {found.min()} to {found.max()}")
    return found.astype(np.int64)
