"""WassersteinLMNN: a metric learned so that sets of one class lie close and others far; a scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sklearn.exceptions
from sklearn.base import BaseEstimator, ClassifierMixin

from likewise import numeric
from likewise.errors import ConfigError, InputError, NotFittedError, ShapeError
from likewise.sets import multilevel as ml
from likewise.sets import reading, stored
from likewise.sets.learning import (
    Learned,
    Remember,
    Task,
    Watch,
    forgetful,
    learn,
    problem,
    scale_of,
    scaled,
    unwatched,
)
from likewise.sets.rules import RULES, Gallery
from likewise.sets.selection import STARTS, choose, placed
from likewise.sets.transport import solvers as transport
from likewise.sets.transport.solvers import Index, Pack
from likewise.train.options import build, check
from likewise.types import Array, Signature


class NotFitted(NotFittedError, sklearn.exceptions.NotFittedError):  # type: ignore[misc]
    """Asked before fit: caught as likewise's error and as scikit-learn's."""


@dataclass(eq=False, repr=False)
class WassersteinLMNN(ClassifierMixin, BaseEstimator, ml.LMNNOptions):  # type: ignore[misc]
    """Nearest-neighbour classification of sets under a learned smoothed Wasserstein distance [MLML Eq. 9–16].

    C = (p − q)ᵀ (M0 + Mt) (p − q): one shared metric M0 and one Mt a level, learned so that the `k_targets` nearest
    sets of the same class come closer than any other class by a margin of 1. Every class needs two members.

    X is a sequence of Signature, (points, weights) or (m, d) arrays, or one 2-D array whose rows are one-point sets.
    The level of a set is what `fit(levels=)` says, else its `Signature.level`, else its class.

    After fit: `M0_` (d, d) and `Mt_` (a dict, level → (d, d)), in the units of the input, so that
    `distances(X, metric=M0_ + Mt_[t], gamma=gamma_)` is the learned distance; `start_`, `rho_` (ρ0, ρt) and `rule_` as
    used (chosen if "auto"); `scale_`, the length by which points were divided, and `frame_` = A / scale_ with A the
    whitening or I: the regulariser sees the metric in coordinates frame_ᵀ p; `classes_`, `levels_`, `gamma_`;
    `history_`, a record an iteration: round, objective (plans re-solved), active triplets, step, seconds.
    """

    # ── learning ──────────────────────────────────────────────────────────────────────────────────────────────────

    def fit(
        self,
        X: Any,
        y: Any,
        levels: Sequence[Hashable] | None = None,
        *,
        watch: Watch | None = None,
        remember: Remember | None = None,
    ) -> WassersteinLMNN:
        """Learn M0 and every Mt from sets X with labels y; `levels` says under which metric each set is compared.

        `watch` is called with a record after every trial and every iteration. `remember(name, make)` may give back what
        a stopped fit of the same sets and options left under a name; else it calls make(): arrays and JSON, to be kept.
        """
        check(self)
        if self.value == "sharp":
            raise ConfigError("value: 'sharp' cannot be trained, its gradient is not the plan's; use 'kl'")
        sets = reading.of_one_dimension(reading.signatures(X), "X")
        labels = reading.labels_of(y, len(sets))
        self.classes_, codes = np.unique(labels, return_inverse=True)
        reading.check_classes(self.classes_, codes)
        names = reading.levels_of(sets, labels, levels)
        self.levels_ = reading.distinct(names)
        self.n_features_in_ = sets[0].dim
        raw = transport.pack(sets)
        self.scale_ = scale_of(raw) if self.normalize else 1.0
        task = self._task(raw, codes.astype(np.int64), reading.positions(names, self.levels_))
        with transport.one_blas_thread():  # matrices of d × d: threads inside BLAS would wait for each other
            chosen = choose(task, len(self.classes_), watch or unwatched, remember or forgetful)
            self.start_, self.rho_, self.rule_ = chosen.start, chosen.rho, chosen.rule
            A, task = placed(task, self.start_)
            learned = learn(task, self.rho_, watch or unwatched, remember or forgetful)
        self.frame_, self.gamma_ = A / self.scale_, task.gamma
        self._keep(raw, task, learned)
        return self

    def _task(self, raw: Pack, y: Index, level: Index) -> Task:
        unit = scaled(raw, 1 / self.scale_)
        gamma = transport.auto_gamma(unit) if self.gamma == "auto" else float(self.gamma)
        return Task(self, unit, y, level, len(self.levels_) if self.multilevel else 0, gamma)

    def _keep(self, raw: Pack, task: Task, learned: Learned) -> None:
        """Put what was learned where predict looks for it, in the units of the input."""
        blocks = self.frame_ @ learned.blocks @ self.frame_.T
        self.M0_, *parts = (blocks + blocks.transpose(0, 2, 1)) / 2
        self.Mt_: dict[Hashable, Array] = dict(zip(self.levels_, parts, strict=False))
        self._raw, self._codes, self._level, self._targets = raw, task.y, task.level, learned.targets
        self.history_: list[ml.Record] = learned.history
        self.n_iter_ = max(1, len(learned.history))

    @property
    def _gallery(self) -> Gallery:
        """The training sets with the metrics learned from them, in the units of the input."""
        blocks = np.stack([self.M0_, *self.Mt_.values()])
        count = len(self.classes_)
        return Gallery(self, self._raw, self._codes, self._level, count, blocks, self.gamma_, self._targets)

    # ── distances ─────────────────────────────────────────────────────────────────────────────────────────────────

    def metric(self, level: Hashable = None, *, rule: str | None = None) -> Array:
        """The matrix under which sets of a level are compared; without a level, M0 or the mean over levels by rule."""
        self._fitted()
        return self._gallery.metric(self._level_code(level, rule), rule or self.rule_)

    def pairwise(self, X: Any, Y: Any = None, levels: Sequence[Hashable] | None = None) -> Array:
        """Learned distances (n, m) of sets X to sets Y (default: the training sets).

        A column is measured under the metric of its set's level: `levels` (one a set of Y), else `Signature.level`,
        else no level, which means M0 + mean Mt. With rule_ "global" or "mean" every column is measured alike.
        """
        self._fitted()
        P = transport.pack(self._read(X, "X"))
        if Y is None:
            codes = self._level if levels is None else self._codes_of(levels, len(self._raw))
            return self._gallery.matrix(P, self._raw, codes, self.rule_)
        sets = self._read(Y, "Y")
        named = [s.level for s in sets] if levels is None else levels
        return self._gallery.matrix(P, transport.pack(sets), self._codes_of(named, len(sets)), self.rule_)

    def pair_distance(self, pairs: Iterable[Any], levels: Sequence[Hashable] | Hashable = None) -> Array:
        """Learned distance of each (p, q); `levels` is one level for all or one a pair, else what the signatures say.

        A known level is measured under its own metric (unless rule_ is "global" or "mean"), none under M0 + mean Mt.
        """
        self._fitted()
        listed = [reading.pair_of(item, k) for k, item in enumerate(pairs)]
        if not listed:
            return np.empty(0)
        sets = self._read([side for pair in listed for side in pair], "pairs")
        left, right = np.arange(0, len(sets), 2), np.arange(1, len(sets), 2)
        named = reading.pair_levels(sets, len(listed), levels)
        both = transport.pack(sets)
        return self._gallery.distances(both, both, left, right, self._codes_of(named, len(listed)), self.rule_)

    def transport_plan(self, p: Any, q: Any, level: Hashable = None) -> Array:
        """The plan F (m, n) between two sets under the learned metric; rows and columns of weight zero are zero."""
        self._fitted()
        sets = self._read([p, q], "p, q")
        named = reading.pair_levels(sets, 1, None if level is None else [level])
        root = numeric.factor(self._gallery.metric(int(self._codes_of(named, 1)[0]), self.rule_))
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
        labels = reading.labels_of(y, len(sets))
        classes, codes = np.unique(labels, return_inverse=True)
        reading.check_classes(classes, codes)
        names = reading.levels_of(sets, labels, levels)
        level = self._codes_of(names, len(sets)) if self.Mt_ else np.zeros(len(sets), dtype=np.int64)
        inner = transport.pack(sets).project(self.frame_)
        inverse = np.linalg.inv(self.frame_)
        blocks = inverse @ np.stack([self.M0_, *self.Mt_.values()]) @ inverse.T
        J, _ = problem(Task(self, inner, codes.astype(np.int64), level, len(self.Mt_), self.gamma_), blocks, self.rho_)
        return J(blocks).objective

    # ── prediction ────────────────────────────────────────────────────────────────────────────────────────────────

    def predict(self, X: Any) -> Any:
        """The label of each set by the rule of `rule_` (erratum 7: the paper gives no rule for test time).

        gallery: nearest training sets, each under its own level's metric. energy: the label under which the set would
        raise the objective least. global: nearest under M0. mean: nearest under M0 + mean Mt.
        """
        self._fitted()
        sets = self._read(X, "X")
        own = self._codes_of([s.level for s in sets], len(sets)) if self.rule_ == "energy" else np.full(len(sets), -1)
        return self.classes_[self._gallery.decide(transport.pack(sets), own, self.rule_)]

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
            "frame": self.frame_,
        }
        classes = [stored.written(reading.plain(c), "y") for c in self.classes_]
        header = {
            "options": self.get_params(),
            "classes": {"dtype": self.classes_.dtype.str, "values": classes},
            "levels": [stored.written(t, "levels") for t in self.levels_],
            "scale": self.scale_,
            "gamma": self.gamma_,
            "rho": list(self.rho_),
            "rule": self.rule_,
            "start": self.start_,
            "history": self.history_,
        }
        return arrays, header

    @classmethod
    def from_state(cls, arrays: dict[str, Any], header: dict[str, Any]) -> WassersteinLMNN:
        """The model that `state` described; what does not fit together is an InputError."""
        model = build(cls, header["options"])
        model.classes_ = stored.read_classes(header["classes"])
        model.levels_ = [stored.unwritten(t) for t in header["levels"]]
        model.scale_, model.gamma_ = (stored.positive(header[k], k) for k in ("scale", "gamma"))
        model.rho_ = (float(header["rho"][0]), float(header["rho"][1]))
        model.rule_ = stored.one_of(header["rule"], RULES, "rule")
        model.start_ = stored.one_of(header.get("start", "identity"), STARTS, "start")
        model.history_, model.n_iter_ = list(header["history"]), max(1, len(header["history"]))
        model.M0_ = numeric.psd(arrays["M0"], where="M0")
        model.n_features_in_ = d = len(model.M0_)
        model.frame_ = stored.frame(arrays.get("frame", np.eye(d) / model.scale_), d)
        parts = [numeric.psd(M, dim=d, where="Mt") for M in arrays["Mt"]]
        if len(parts) not in (0, len(model.levels_)):
            raise ShapeError(f"Mt: expected {len(model.levels_)} matrices, one a level, got {len(parts)}")
        model.Mt_ = dict(zip(model.levels_, parts, strict=False))
        model._raw = stored.read_pack(arrays, d)
        n = len(model._raw)
        model._codes = stored.indices(arrays["codes"], (n,), len(model.classes_), "codes")
        model._level = stored.indices(arrays["level"], (n,), len(model.levels_), "level")
        model._targets = stored.indices(arrays["targets"], (len(arrays["targets"]), 2), n, "targets")
        return model

    # ── what comes in ─────────────────────────────────────────────────────────────────────────────────────────────

    def _fitted(self) -> None:
        if not hasattr(self, "M0_"):
            raise NotFitted("this WassersteinLMNN is not fitted yet; call fit(X, y) first")

    def _read(self, X: Any, where: str) -> list[Signature]:
        sets = reading.signatures(X, where=where)
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
        return np.array([self._level_code(reading.plain(t)) for t in levels], dtype=np.int64)
