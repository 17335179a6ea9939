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
from likewise.sets import objective as ml
from likewise.sets import reading, transport
from likewise.sets.compare import Gamma, SetComparison, compare
from likewise.sets.learning import (
    STARTS,
    Learned,
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
        sets = reading.of_one_dimension(inputs.signatures(X), "X")
        labels = reading.labels_of(y, len(sets))
        self.classes_, codes = np.unique(labels, return_inverse=True)
        reading.check_classes(self.classes_, codes)
        names = reading.levels_of(sets, labels, levels)
        self.levels_ = reading.distinct(names)
        self.n_features_in_ = sets[0].dim
        self.axes_ = None if self.n_components is None else principal_axes(sets, self.n_components)
        self.source_: dict[str, Any] = {}
        raw = transport.pack(self._read(sets, "X"))
        self.scale_ = scale_of(raw) if self.normalize else 1.0
        task = self._task(raw, codes.astype(np.int64), reading.positions(names, self.levels_))
        with transport.one_blas_thread():  # matrices of d × d: threads inside BLAS would wait for each other
            chosen = choose(task, len(self.classes_), watch or unwatched, remember or without_memo)
            self.start_, self.rho_, self.rule_ = chosen.start, chosen.rho, chosen.rule
            A, task = place_at_start(task, self.start_)
            learned = learn(task, self.rho_, watch or unwatched, remember or without_memo)
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

    def compare(
        self, p: Any, q: Any, *, level: Hashable = None, gamma: Gamma = "auto", value: Value | None = None
    ) -> SetComparison:
        """Compare two sets under the learned metric; γ "auto" and no value are those of the training."""
        self._fitted()
        a, b = self._read([p, q], "p, q")
        named = reading.pair_levels([a, b], 1, None if level is None else [level])
        metric = self._gallery.metric(int(self._codes_of(named, 1)[0]), self.rule_)
        g = self.gamma_ if gamma == "auto" else gamma
        return compare(a, b, gamma=g, metric=metric, value=value or self.value, tol=self.tol)

    def transport_plan(self, p: Any, q: Any, level: Hashable = None) -> Array:
        """The plan F (m, n) between two sets under the learned metric; rows and columns of weight zero are zero."""
        return self.compare(p, q, level=level).plan

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
        if self.axes_ is not None:
            arrays["axes"] = self.axes_
        classes = [_label_to_json(reading.plain(c), "y") for c in self.classes_]
        header = {
            "options": self.get_params(),
            "classes": {"dtype": self.classes_.dtype.str, "values": classes},
            "levels": [_label_to_json(t, "levels") for t in self.levels_],
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
        model.classes_ = _read_classes(header["classes"])
        model.levels_ = [_label_from_json(t) for t in header["levels"]]
        model.scale_, model.gamma_ = (_positive(header[k], k) for k in ("scale", "gamma"))
        model.rho_ = (float(header["rho"][0]), float(header["rho"][1]))
        model.rule_ = _one_of(header["rule"], RULES, "rule")
        model.start_ = _one_of(header.get("start", "identity"), STARTS, "start")
        model.history_, model.n_iter_ = list(header["history"]), max(1, len(header["history"]))
        model.M0_ = numeric.psd(arrays["M0"], where="M0")
        d = len(model.M0_)
        model.axes_ = _read_axes(arrays["axes"], d) if "axes" in arrays else None
        model.n_features_in_ = d if model.axes_ is None else len(model.axes_)
        model.source_ = _read_source(header["source"])
        model.frame_ = _read_frame(arrays.get("frame", np.eye(d) / model.scale_), d)
        parts = [numeric.psd(M, dim=d, where="Mt") for M in arrays["Mt"]]
        if len(parts) not in (0, len(model.levels_)):
            raise ShapeError(f"Mt: expected {len(model.levels_)} matrices, one a level, got {len(parts)}")
        model.Mt_ = dict(zip(model.levels_, parts, strict=False))
        model._raw = _read_pack(arrays, d)
        n = len(model._raw)
        model._codes = _read_indices(arrays["codes"], (n,), len(model.classes_), "codes")
        model._level = _read_indices(arrays["level"], (n,), len(model.levels_), "level")
        model._targets = _read_indices(arrays["targets"], (len(arrays["targets"]), 2), n, "targets")
        return model

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
        return np.array([self._level_code(reading.plain(t)) for t in levels], dtype=np.int64)


def principal_axes(sets: Sequence[Signature], most: int) -> Array:
    """At most `most` principal axes (features, r) of all points, each counted once; those of no spread go."""
    points = np.concatenate([s.points for s in sets])
    _, spread, rows = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
    rank = max(1, int((spread > 1e-10 * max(float(spread[0]), 1e-300)).sum()))
    return np.ascontiguousarray(rows[: min(most, rank)].T)


# ── what a stranger's file says ───────────────────────────────────────────────────────────────────────────────────


def _label_to_json(value: Any, where: str) -> Any:
    """A label as JSON: text, a number, a truth value; a tuple as {"tuple": […]}."""
    if isinstance(value, tuple):
        return {"tuple": [_label_to_json(v, where) for v in value]}
    if isinstance(value, str | int | float | bool):
        return value
    raise InputError(f"{where}: a label of type {type(value).__name__} cannot be saved; use text or numbers as labels")


def _label_from_json(value: Any) -> Hashable:
    """The label that `_label_to_json` wrote."""
    if isinstance(value, dict):
        return tuple(_label_from_json(v) for v in value["tuple"])
    plain: Hashable = value
    return plain


def _read_classes(said: dict[str, Any]) -> Any:
    """The classes in their own dtype."""
    kind = np.dtype(str(said["dtype"]))
    if kind.kind not in "biufUO":
        raise InputError(f"classes: expected numbers or text, got dtype {kind}")
    out = np.empty(len(said["values"]), dtype=kind)
    out[:] = [_label_from_json(v) for v in said["values"]]
    return out


def _positive(value: Any, where: str) -> float:
    """A finite number above 0."""
    number = float(value)
    if not (np.isfinite(number) and number > 0):
        raise InputError(f"{where}: expected a number > 0, got {value!r}")
    return number


def _one_of(value: Any, known: tuple[str, ...], where: str) -> str:
    """One of the words known."""
    if value not in known:
        raise InputError(f"{where}: expected one of {', '.join(known)}, got {value!r}")
    return str(value)


def _read_frame(array: Any, dim: int) -> Array:
    """An invertible matrix (d, d)."""
    A = np.asarray(array, dtype=np.float64)
    if A.shape != (dim, dim) or not np.isfinite(A).all():
        raise ShapeError(f"frame: expected finite numbers ({dim}, {dim}), got shape {A.shape}")
    if not np.linalg.cond(A) < 1e12:
        raise InputError("frame: the matrix is not invertible")
    return A


def _read_source(said: Any) -> dict[str, Any]:
    """How sets were made of images: words and whole numbers by name."""
    if not isinstance(said, dict) or not all(isinstance(v, str | int | None) for v in said.values()):
        raise InputError(f"source: expected words and whole numbers by name, got {said!r}")
    return dict(said)


def _read_axes(array: Any, dim: int) -> Array:
    """Axes (features, d), finite numbers."""
    A = np.asarray(array, dtype=np.float64)
    if A.ndim != 2 or A.shape[1] != dim or len(A) < dim or not np.isfinite(A).all():
        raise ShapeError(f"axes: expected finite numbers (features, {dim}), got shape {A.shape}")
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
