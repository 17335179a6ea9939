"""WassersteinLMNN: a metric learned so that sets of one class lie close and others far; a scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sklearn.exceptions
from sklearn.base import BaseEstimator, ClassifierMixin

from likewise import inputs, numeric
from likewise.errors import InputError, NotFittedError, ShapeError
from likewise.sets import labels, transport
from likewise.sets import objective as ml
from likewise.sets.compare import Gamma, SetComparison, compare
from likewise.sets.learning import (
    STARTS,
    Remember,
    Task,
    Watch,
    learn,
    place_at_start,
    problem,
    scale_of,
    scaled,
    unwatched,
    without_memo,
)
from likewise.sets.selection import RULES, Gallery, choose
from likewise.sets.transport.solvers import Index, Pack, Value
from likewise.train.options import build, check
from likewise.types import Array, Signature


class NotFitted(NotFittedError, sklearn.exceptions.NotFittedError):  # type: ignore[misc]
    """Asked before fit: caught as likewise's error and as scikit-learn's."""


@dataclass(eq=False, repr=False)
class WassersteinLMNN(ClassifierMixin, BaseEstimator, ml.LMNNOptions):  # type: ignore[misc]
    """Nearest-neighbour classification of sets under a learned smoothed Wasserstein distance [MLML Eq. 9–16].

    The ground cost is C = (p − q)ᵀ (M0 + Mt) (p − q): one shared metric M0 and one Mt a level, learned so that the
    `k_targets` nearest sets of the same class come closer than any other class by a margin of 1. The level of a set is
    what `fit(levels=)` says, else its `Signature.level`, else its class. X is a sequence of Signature,
    (points, weights) or (m, d) arrays, or one 2-D array whose rows are one-point sets.

    Parameters
    ----------
    multilevel : bool, default True
        Learn one metric a level on top of the shared one; False learns M0 alone [MLML Eq. 9].
    gamma : float or "auto", default "auto"
        Smoothing of the plan, in units of the ground cost; "auto" is 0.05 × its median at the start.
    value : {"kl", "paper", "divergence"}, default "kl"
        Which number of the plan is the distance; see `likewise.sets.distances`. "sharp" cannot be trained.
    k_targets : int, default 5
        Nearest sets of the same class that are pulled closer.
    k_impostors : int, default 40
        Nearest sets of other classes that are pushed away.
    mu : float in [0, 1], default 0.5
        Weight of pushing against pulling.
    rho0, rhot : float or "auto", default "auto"
        How strongly M0 is held to the start, and each Mt to zero; "auto" chooses one of four by inner folds.
    normalize : bool, default True
        Means instead of the paper's sums, and points scaled to a median squared distance of 1.
    start : {"whitened", "identity", "auto"}, default "whitened"
        The metric that learning starts from and is held to: that of the matched points of one class, or I.
    init : {"identity", "paper"}, default "identity"
        Mt starts at 0.01 I, or at I as printed (erratum 4).
    solver : {"auto", "lbfgs", "fista"}, default "auto"
        "auto" is L-BFGS on factors for the global model, else accelerated projected gradients.
    rule : {"gallery", "energy", "global", "mean", "auto"}, default "gallery"
        Whose metric decides at test time (erratum 7); see `predict`. "auto" chooses by inner folds.
    max_iter : int, default 20
        Iterations a round; 0 learns nothing and leaves the start.
    rounds : int, default 3
        Rounds; each finds the impostors again under the metric so far.
    tol : float, default 1e-6
        Marginal error at which a transport problem counts as solved.
    n_neighbors : int, default 1
        Neighbours that vote.
    n_jobs : int, default 1
        Threads that solve transport problems; -1 is all cores. The result does not depend on it.
    seed : int, default 0
        Seed of the inner folds that choose what is "auto".
    verbose : bool, default False
        Print a line a round.
    n_components : int or None, default None
        Learn on so many principal axes of the training points: faster, and less to learn from few sets.

    Attributes
    ----------
    M0_ : ndarray (d, d)
        The shared metric, in the units of the input (on the axes, where `n_components` is given), so that
        `distances(X, metric=M0_ + Mt_[t], gamma=gamma_)` is the learned distance.
    Mt_ : dict of level → ndarray (d, d)
        What each level adds; empty for the global model.
    classes_, levels_ : ndarray, list
        The labels and the levels seen.
    gamma_, rho_, start_, rule_
        As used: chosen where they were "auto". rho_ is (ρ0, ρt).
    axes_ : ndarray (features, d) or None
        Orthonormal columns: the principal axes that `project` puts points on.
    scale_, frame_ : float, ndarray (d, d)
        The length by which points were divided, and A / scale_ with A the whitening or I: the regulariser sees the
        metric in coordinates frame_ᵀ p.
    history_ : list of dict
        A record an iteration: round, objective (plans re-solved), active triplets, step, seconds.
    source_ : dict
        How the sets were made of images, for whoever makes more: features, k, every, seed. Empty unless told.

    Examples
    --------
    >>> import likewise as lw
    >>> import numpy as np
    >>> draw = np.random.default_rng(0)
    >>> y = np.repeat(["left", "right"], 6)
    >>> X = [draw.normal([4 * (label == "right"), 0], 1, size=(draw.integers(4, 9), 2)) for label in y]
    >>> model = lw.sets.WassersteinLMNN(multilevel=False, rho0=0.3, max_iter=5, rounds=1).fit(X, y)
    >>> model.predict([draw.normal([4, 0], 1, size=(6, 2))])
    array(['right'], dtype='<U5')
    >>> model.M0_.shape
    (2, 2)
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
        """Learn M0 and every Mt.

        Parameters
        ----------
        X : sequence of sets
            The training sets.
        y : sequence of labels
            A label a set; every class needs two members.
        levels : sequence of hashables, optional
            Under which level's metric each set is compared; default: `Signature.level`, else its class.
        watch : callable, optional
            Called with a record after every trial and every iteration.
        remember : callable, optional
            `remember(name, make)` gives back what a stopped fit of the same sets and options left under a name, or
            calls make() and keeps what it gives (arrays and JSON): a stopped fit then resumes.

        Returns
        -------
        WassersteinLMNN
            The estimator itself, fitted.

        Raises
        ------
        InputError
            Sets, labels or levels do not fit together, or a class has one member.
        ConfigError
            An option is out of its bounds.
        """
        check(self)
        sets = inputs.signatures(X)
        self.classes_, codes = labels.read_labels(y, len(sets))
        self.levels_, level = labels.number_levels(labels.read_levels(sets, self.classes_[codes], levels))
        self.source_: dict[str, Any] = {}
        self.n_features_in_, self.axes_ = sets[0].dim, None
        sets = self._read(sets, "X")
        if self.n_components is not None:
            self.axes_ = principal_axes(sets, self.n_components)
            sets = self._read(sets, "X")
        raw = transport.pack(sets)
        self.scale_ = scale_of(raw) if self.normalize else 1.0
        unit = scaled(raw, 1 / self.scale_)
        gamma = transport.auto_gamma(unit) if self.gamma == "auto" else float(self.gamma)
        task = Task(self, unit, codes, level, len(self.levels_) if self.multilevel else 0, gamma)
        with transport.one_blas_thread():  # matrices of d × d: threads inside BLAS would wait for each other
            chosen = choose(task, len(self.classes_), watch or unwatched, remember or without_memo)
            self.start_, self.rho_, self.rule_ = chosen.start, chosen.rho, chosen.rule
            A, task = place_at_start(task, self.start_)
            learned = learn(task, self.rho_, watch or unwatched, remember or without_memo)
        self.frame_, self.gamma_ = A / self.scale_, task.gamma
        self.history_, self.n_iter_ = learned.history, max(1, len(learned.history))
        blocks = self.frame_ @ learned.blocks @ self.frame_.T  # in the units of the input
        self._keep(raw, codes, level, (blocks + blocks.transpose(0, 2, 1)) / 2, learned.targets)
        return self

    def _keep(self, sets: Pack, y: Index, level: Index, blocks: Array, targets: Index) -> None:
        """Put what was learned where predict looks for it."""
        self.M0_, *parts = blocks
        self.Mt_ = dict(zip(self.levels_, parts, strict=False))
        self._gallery = Gallery(self, sets, y, level, len(self.classes_), blocks, self.gamma_, targets)

    def project(self, X: Any) -> list[Signature]:
        """Sets on the axes that the metric was learned on: as they are, or on the principal axes of `n_components`."""
        self._fitted()
        return self._read(X, "X")

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
            own = self._gallery
            codes = own.level if levels is None else self._codes_of(levels, len(own.sets))
            return own.matrix(P, own.sets, codes, self.rule_)
        sets = self._read(Y, "Y")
        codes = self._codes_of([s.level for s in sets] if levels is None else levels, len(sets))
        return self._gallery.matrix(P, transport.pack(sets), codes, self.rule_)

    def pair_distance(self, pairs: Iterable[Any], levels: Sequence[Hashable] | Hashable = None) -> Array:
        """Learned distance of each (p, q); `levels` is one level for all or one a pair, else what the signatures say.

        A known level is measured under its own metric (unless rule_ is "global" or "mean"), none under M0 + mean Mt.
        """
        self._fitted()
        sides = labels.read_pairs(pairs)
        if not sides:
            return np.empty(0)
        sets = self._read(sides, "pairs")
        left, right = np.arange(0, len(sets), 2), np.arange(1, len(sets), 2)
        codes = self._codes_of(labels.read_pair_levels(sets, levels), len(left))
        both = transport.pack(sets)
        return self._gallery.distances(both, both, left, right, codes, self.rule_)

    def compare(
        self, p: Any, q: Any, *, level: Hashable = None, gamma: Gamma = "auto", value: Value | None = None
    ) -> SetComparison:
        """Compare two sets under the learned metric; γ "auto" and no value are those of the training."""
        self._fitted()
        a, b = self._read([p, q], "p, q")
        own = labels.read_pair_levels([a, b], None if level is None else [level])
        metric = self._gallery.metric(int(self._codes_of(own, 1)[0]), self.rule_)
        g = self.gamma_ if gamma == "auto" else gamma
        return compare(a, b, gamma=g, metric=metric, value=value or self.value, tol=self.tol)

    def transport_plan(self, p: Any, q: Any, level: Hashable = None) -> Array:
        """The plan F (m, n) between two sets under the learned metric; rows and columns of weight zero are zero."""
        return self.compare(p, q, level=level).plan

    def objective(self, X: Any, y: Any, levels: Sequence[Hashable] | None = None) -> float:
        """J of the learned metrics on labelled sets, with their own targets and impostors, hinge not smoothed."""
        self._fitted()
        sets = self._read(X, "X")
        classes, codes = labels.read_labels(y, len(sets))
        names = labels.read_levels(sets, classes[codes], levels)
        level = self._codes_of(names, len(sets)) if self.Mt_ else np.zeros(len(sets), dtype=np.int64)
        inner = transport.pack(sets).project(self.frame_)
        inverse = np.linalg.inv(self.frame_)
        blocks = inverse @ self._gallery.blocks @ inverse.T
        J, _ = problem(Task(self, inner, codes, level, len(self.Mt_), self.gamma_), blocks, self.rho_)
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
        own = self._gallery
        arrays = {
            "blocks": own.blocks,
            "points": own.sets.points,
            "weights": own.sets.weights,
            "offsets": own.sets.offsets,
            "codes": own.y,
            "level": own.level,
            "targets": own.targets,
            "frame": self.frame_,
            **({} if self.axes_ is None else {"axes": self.axes_}),
        }
        classes = [labels.to_json(c, "y") for c in self.classes_]
        header = {
            "options": self.get_params(),
            "classes": {"dtype": self.classes_.dtype.str, "values": classes},
            "levels": [labels.to_json(t, "levels") for t in self.levels_],
            "scale": self.scale_,
            "gamma": self.gamma_,
            "rho": list(self.rho_),
            "rule": self.rule_,
            "start": self.start_,
            "history": self.history_,
            "source": self.source_,
        }
        return arrays, header

    @classmethod
    def from_state(cls, arrays: dict[str, Any], header: dict[str, Any]) -> WassersteinLMNN:
        """The model that `state` described; what does not fit together is an InputError."""
        model = build(cls, header["options"])
        model.classes_ = labels.classes_from_json(header["classes"])
        model.levels_ = [labels.from_json(t) for t in header["levels"]]
        model.rho_ = (float(header["rho"][0]), float(header["rho"][1]))
        model.scale_, model.gamma_ = float(header["scale"]), float(header["gamma"])
        model.start_, model.rule_, model.source_ = header["start"], header["rule"], header["source"]
        model.history_, model.n_iter_ = list(header["history"]), max(1, len(header["history"]))
        blocks = np.stack([numeric.psd(M, where="blocks") for M in arrays["blocks"]])
        d = blocks.shape[1]
        model.axes_ = _finite(arrays["axes"], d, "axes") if "axes" in arrays else None
        model.n_features_in_ = d if model.axes_ is None else len(model.axes_)
        model.frame_ = _finite(arrays["frame"], d, "frame")
        model._check_state(len(blocks) - 1)
        sets = _read_pack(arrays, d)
        n = len(sets)
        y = _read_indices(arrays["codes"], (n,), len(model.classes_), "codes")
        level = _read_indices(arrays["level"], (n,), len(model.levels_), "level")
        targets = _read_indices(arrays["targets"], (len(arrays["targets"]), 2), n, "targets")
        model._keep(sets, y, level, blocks, targets)
        return model

    def _check_state(self, parts: int) -> None:
        """Refuse numbers and words that no fit leaves."""
        if not (self.scale_ > 0 and self.gamma_ > 0 and np.isfinite([self.scale_, self.gamma_, *self.rho_]).all()):
            raise InputError(f"scale, gamma, rho: expected numbers > 0, got {self.scale_}, {self.gamma_}, {self.rho_}")
        if self.start_ not in STARTS or self.rule_ not in RULES:
            raise InputError(f"start, rule: expected words of a fitted model, got {self.start_!r}, {self.rule_!r}")
        if not isinstance(self.source_, dict) or not all(
            isinstance(v, str | int | None) for v in self.source_.values()
        ):
            raise InputError(f"source: expected words and whole numbers by name, got {self.source_!r}")
        if parts not in (0, len(self.levels_)):
            raise ShapeError(f"blocks: expected M0 and {len(self.levels_)} matrices, one a level, got {parts}")
        if self.frame_.shape[0] != self.frame_.shape[1] or not np.linalg.cond(self.frame_) < 1e12:
            raise InputError("frame: the matrix is not invertible")

    # ── what comes in ─────────────────────────────────────────────────────────────────────────────────────────────

    def _fitted(self) -> None:
        if not hasattr(self, "M0_"):
            raise NotFitted("this WassersteinLMNN is not fitted yet; call fit(X, y) first")

    def _read(self, X: Any, where: str) -> list[Signature]:
        sets = inputs.signatures(X, where=where)
        for k, s in enumerate(sets):
            if s.dim != self.n_features_in_:
                raise ShapeError(
                    f"X has {s.dim} features, but WassersteinLMNN is expecting {self.n_features_in_} features as input"
                    f" ({where}[{k}])"
                )
        if self.axes_ is None:
            return sets
        return [Signature(s.points @ self.axes_, s.weights, s.level, s.names) for s in sets]

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
        return np.array([self._level_code(labels.plain(t)) for t in levels], dtype=np.int64)


def principal_axes(sets: Sequence[Signature], most: int) -> Array:
    """At most `most` principal axes (features, r) of all points, each counted once; those of no spread go."""
    points = np.concatenate([s.points for s in sets])
    _, spread, rows = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
    rank = max(1, int((spread > 1e-10 * max(float(spread[0]), 1e-300)).sum()))
    return np.ascontiguousarray(rows[: min(most, rank)].T)


# ── what a stranger's file says ───────────────────────────────────────────────────────────────────────────────────


def _finite(array: Any, dim: int, where: str) -> Array:
    """A matrix of finite numbers with so many columns, and no fewer rows."""
    A = np.asarray(array, dtype=np.float64)
    if A.ndim != 2 or A.shape[1] != dim or len(A) < dim or not np.isfinite(A).all():
        raise ShapeError(f"{where}: expected finite numbers (n, {dim}), got shape {A.shape}")
    return A


def _read_pack(arrays: dict[str, Any], dim: int) -> Pack:
    """The training sets, if their parts fit together."""
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


def _read_indices(array: Any, shape: tuple[int, ...], below: int, where: str) -> Index:
    """Integers of a shape, from 0 to below − 1."""
    indices = np.asarray(array)
    if indices.shape != shape or indices.dtype.kind not in "iu":
        raise ShapeError(f"{where}: expected integers of shape {shape}, got {indices.dtype} of shape {indices.shape}")
    if indices.size and (indices.min() < 0 or indices.max() >= below):
        raise InputError(f"{where}: expected 0 to {below - 1}, got {indices.min()} to {indices.max()}")
    return indices.astype(np.int64)
