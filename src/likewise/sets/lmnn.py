"""WassersteinLMNN: a metric learned so that sets of one class lie close and others far; a scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import sklearn.exceptions
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from likewise import __version__, inputs, numeric
from likewise.errors import InputError, NotFittedError, ShapeError
from likewise.sets import objective as ml
from likewise.sets import transport
from likewise.sets.compare import Gamma, SetComparison, compare
from likewise.sets.objective import Remember, Task, Watch, learn, problem, unwatched, without_memo
from likewise.sets.selection import RULES, Gallery, Start, choose, nearest_of_each, place_at_start, scale_of, scaled
from likewise.sets.transport.solvers import Index, Pack, Value
from likewise.train.options import build, check
from likewise.types import Array, Signature


class NotFitted(NotFittedError, sklearn.exceptions.NotFittedError):  # type: ignore[misc]
    """Asked before fit: caught as likewise's error and as scikit-learn's."""


@dataclass(eq=False, repr=False)
class WassersteinLMNN(ClassifierMixin, TransformerMixin, BaseEstimator, ml.LMNNOptions):  # type: ignore[misc]
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
        Smoothing of the plan, in units of the ground cost; "auto" is 0.2 × its median, or 0.05 or 1 × where inner folds
        clearly say so.
    value : {"divergence", "kl", "paper"}, default "divergence"
        Which number of the plan is the distance; see `likewise.sets.distances`. "sharp" cannot be trained.
    k_targets : int, default 5
        Nearest sets of the same class that are pulled closer.
    k_impostors : int, default 40
        Nearest sets of other classes that are pushed away.
    mu : float in [0, 1], default 0.5
        Weight of pushing against pulling.
    rho0, rhot : float or "auto", default "auto"
        How strongly M0 is held to the start, and each Mt to zero; "auto" chooses ρ0 by inner folds, and ρt by how far
        levels differ beyond chance; at ∞ nothing is learned, or no level has a metric of its own.
    normalize : bool, default True
        Means instead of the paper's sums, and points scaled to a median squared distance of 1.
    start : {"auto", "identity", "whitened"}, default "auto"
        The metric that learning starts from and is held to: I, or one that whitens how matched points of one class
        differ, by a power and a shrinkage; "auto" is I unless inner folds clearly say otherwise.
    init : {"identity", "paper"}, default "identity"
        Mt starts at 0.01 I, or at I as printed (erratum 4).
    solver : {"auto", "lbfgs", "fista", "paper"}, default "auto"
        "auto" is L-BFGS on factors for the global model, else accelerated projected gradients; "paper" is Algorithm 1.
    rule : {"gallery", "global", "mean", "auto"}, default "gallery"
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
        As used: chosen where they were "auto". rho_ is (ρ0, ρt), start_ (power, shrinkage): (0, 1) is I.
    selection_ : dict
        What was compared on inner folds, by "gamma", "start", "rho" and "levels": mean scores, what was chosen, and by
        how much it beat the usual, with its standard error.
    axes_ : ndarray (features, d) or None
        Orthonormal columns: the principal axes that `project` puts points on.
    scale_, frame_ : float, ndarray (d, d)
        The length by which points were divided, and A / scale_ with A the whitening or I: the regulariser sees the
        metric in coordinates frame_ᵀ p.
    history_ : list of dict
        A record an iteration: round, objective (plans re-solved), active triplets, step, seconds (not kept in a file).
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

    @classmethod
    def paper(cls, **options: Any) -> WassersteinLMNN:
        """The estimator as the paper prints it: Algorithm 1 on its own sums, all blocks started at I, ρ = 1 and 1/C.

        Parameters
        ----------
        **options
            What is to differ; γ is not in print.

        Returns
        -------
        WassersteinLMNN
            Not fitted yet.

        Examples
        --------
        >>> import likewise as lw
        >>> lw.sets.WassersteinLMNN.paper(max_iter=5).solver
        'paper'
        """
        printed = {"normalize": False, "start": "identity", "init": "paper", "value": "paper", "solver": "paper"}
        return cls(**{**printed, **options})

    # ── learning ──────────────────────────────────────────────────────────────────────────────────────────────────

    def fit(
        self,
        X: Any,
        y: Any,
        levels: Sequence[Hashable] | None = None,
        *,
        watch: Watch = unwatched,
        remember: Remember = without_memo,
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
        self.classes_, codes = _read_labels(y, len(sets))
        self.levels_, level = _number_levels(_read_levels(sets, self.classes_[codes], levels))
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
            chosen = choose(task, len(self.classes_), watch, remember)
            self.start_, self.rho_, self.rule_, self.selection_ = chosen.start, chosen.rho, chosen.rule, chosen.told
            A, task = place_at_start(task, chosen.start, chosen.blur)
            blocks, self.history_ = learn(task, self.rho_, watch, remember)
        self.frame_, self.gamma_ = A / self.scale_, task.gamma
        blocks = self.frame_ @ blocks @ self.frame_.T  # in the units of the input
        self._keep(raw, codes, level, (blocks + blocks.transpose(0, 2, 1)) / 2)
        return self

    def _keep(self, sets: Pack, y: Index, level: Index, blocks: Array) -> None:
        """Put what was learned where predict looks for it."""
        self.M0_, *parts = blocks
        self.Mt_ = dict(zip(self.levels_, parts, strict=False))
        self.n_iter_ = max(1, len(self.history_))
        self._gallery = Gallery(self, sets, y, level, len(self.classes_), blocks, self.gamma_)

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
        P = self._pack(X)
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
        sides = _read_pairs(pairs)
        if not sides:
            return np.empty(0)
        sets = self._read(sides, "pairs")
        left, right = np.arange(0, len(sets), 2), np.arange(1, len(sets), 2)
        codes = self._codes_of(_read_pair_levels(sets, levels), len(left))
        both = transport.pack(sets)
        return self._gallery.distances(both, both, left, right, codes, self.rule_)

    def compare(
        self, p: Any, q: Any, *, level: Hashable = None, gamma: Gamma = "auto", value: Value | None = None
    ) -> SetComparison:
        """Compare two sets under the learned metric; γ "auto" and no value are those of the training."""
        self._fitted()
        a, b = self._read([p, q], "p, q")
        own = _read_pair_levels([a, b], None if level is None else [level])
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
        classes, codes = _read_labels(y, len(sets))
        names = _read_levels(sets, classes[codes], levels)
        level = self._codes_of(names, len(sets)) if self.Mt_ else np.zeros(len(sets), dtype=np.int64)
        inner = transport.pack(sets).project(self.frame_)
        inverse = np.linalg.inv(self.frame_)
        blocks = inverse @ self._gallery.blocks @ inverse.T
        rho0, rhot = (0.0 if np.isinf(rho) else rho for rho in self.rho_)  # at ∞ nothing moved, and ‖·‖² is 0
        J, _ = problem(Task(self, inner, codes, level, len(self.Mt_), self.gamma_), blocks, (rho0, rhot))
        return J(blocks).objective

    # ── prediction ────────────────────────────────────────────────────────────────────────────────────────────────

    def predict(self, X: Any) -> Any:
        """The label of each set by the rule of `rule_` (erratum 7: the paper gives no rule for test time).

        gallery: nearest training sets, each under its own level's metric. global: nearest under M0. mean: nearest under
        M0 + mean Mt.
        """
        self._fitted()
        return self.classes_[self._gallery.decide(self._pack(X), self.rule_)]

    def kneighbors(self, X: Any = None, n_neighbors: int | None = None, return_distance: bool = True) -> Any:
        """The nearest training sets of each set, by the learned distance.

        Parameters
        ----------
        X : sequence of sets, optional
            Default: the training sets, none a neighbour of itself.
        n_neighbors : int, optional
            How many; default: `n_neighbors` of the estimator.
        return_distance : bool, default True

        Returns
        -------
        ndarray (n, k) or (ndarray (n, k), ndarray (n, k))
            Distances, the nearest first, if wanted; and the places of those sets in what was fitted.

        Raises
        ------
        InputError
            There are fewer training sets than neighbours asked for.
        """
        self._fitted()
        own, k = self._gallery, self.n_neighbors if n_neighbors is None else n_neighbors
        most = len(own.sets) - (X is None)
        if not 1 <= k <= most:
            raise InputError(f"n_neighbors: expected 1 to {most}, the training sets to choose from, got {k}")
        D = own.matrix(own.sets if X is None else self._pack(X), own.sets, own.level, self.rule_)
        if X is None:
            np.fill_diagonal(D, np.inf)
        near = np.argsort(D, axis=1, kind="stable")[:, :k]
        return (np.take_along_axis(D, near, axis=1), near) if return_distance else near

    def decision_function(self, X: Any) -> Array:
        """How near each set is to each class (n, classes): minus the learned distance to its nearest training set.

        Of two classes the second less the first (n,), as scikit-learn has it. One unit is the margin of the training.
        """
        scores = self._scores(X)
        return np.asarray(scores[:, 1] - scores[:, 0]) if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any) -> Array:
        """A probability a class (n, classes): e^−(distance to its nearest training set), divided by the sum.

        With `n_neighbors` 1 the most probable class is that of `predict`. Not calibrated.
        """
        return np.asarray(softmax(self._scores(X), axis=1))

    def _scores(self, X: Any) -> Array:
        self._fitted()
        own = self._gallery
        D = own.matrix(self._pack(X), own.sets, own.level, self.rule_)
        return -nearest_of_each(D, own.y, len(self.classes_))

    def transform(self, X: Any, level: Hashable = None) -> Any:
        """The sets in coordinates in which the learned ground cost is Euclidean.

        `distances(model.transform(X), gamma=model.gamma_)` are those of `pairwise` under the metric of the level given,
        else under M0 + mean Mt.

        Returns
        -------
        list of Signature
            Or an array (n, d) where X is rows, one-point sets.
        """
        self._fitted()
        root = numeric.factor(self.metric(level))
        moved = [Signature(s.points @ root, s.weights, s.level, s.names) for s in self._read(X, "X")]
        rows = hasattr(X, "__array__") or (not isinstance(X[0], Signature | tuple) and np.ndim(X[0]) == 1)
        return np.concatenate([s.points for s in moved]) if rows and all(len(s) == 1 for s in moved) else moved

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The arrays and the JSON header from which `from_state` makes an equal model: for lw.save, without pickle."""
        self._fitted()
        own = self._gallery
        arrays = {
            "blocks": own.blocks,
            **own.sets.arrays,
            "codes": own.y,
            "level": own.level,
            "frame": self.frame_,
            **({} if self.axes_ is None else {"axes": self.axes_}),
        }
        header = {
            "options": self.get_params(),
            "classes": {"dtype": self.classes_.dtype.str, "values": self.classes_.tolist()},
            "levels": self.levels_,
            "scale": self.scale_,
            "gamma": self.gamma_,
            "rho": [None if np.isinf(rho) else rho for rho in self.rho_],
            "rule": self.rule_,
            "start": list(self.start_),
            "selection": self.selection_,
            # without times: the same fit is the same bytes
            "history": [{k: v for k, v in line.items() if k != "seconds"} for line in self.history_],
            "source": self.source_,
        }
        return arrays, header

    @classmethod
    def from_state(cls, arrays: dict[str, Any], header: dict[str, Any]) -> WassersteinLMNN:
        """The model that `state` described; what does not fit together is an InputError."""
        model = build(cls, header["options"])
        model.classes_ = _classes_from_json(header["classes"])
        model.levels_ = [_from_json(t) for t in header["levels"]]
        rho0, rhot = (np.inf if rho is None else float(rho) for rho in header["rho"])
        model.rho_ = rho0, rhot
        model.scale_, model.gamma_ = float(header["scale"]), float(header["gamma"])
        model.start_, model.rule_, model.source_ = _start(header["start"]), header["rule"], header["source"]
        model.selection_ = dict(header["selection"])
        model.history_ = list(header["history"])
        positive = model.scale_ > 0 and model.gamma_ > 0 and np.isfinite([model.scale_, model.gamma_]).all()
        if not positive or not all(rho >= 0 for rho in model.rho_):
            raise InputError(
                f"scale, gamma, rho: expected numbers > 0, got {model.scale_}, {model.gamma_}, {model.rho_}"
            )
        if not np.isfinite(model.start_).all() or model.rule_ not in RULES:
            raise InputError(f"start, rule: expected those of a fitted model, got {model.start_!r}, {model.rule_!r}")
        source = model.source_
        if not isinstance(source, dict) or not all(isinstance(v, str | int | None) for v in source.values()):
            raise InputError(f"source: expected words and whole numbers by name, got {model.source_!r}")
        count = 1 + len(model.levels_) if model.multilevel else 1
        blocks = np.stack([numeric.psd(M, where="blocks") for M in _stored(arrays, "blocks", (count, None, None))])
        d = blocks.shape[1]
        model.frame_ = _stored(arrays, "frame", (d, d))
        if not np.linalg.cond(model.frame_) < 1e12:
            raise InputError("frame: the matrix is not invertible")
        model.axes_ = _stored(arrays, "axes", (None, d)) if "axes" in arrays else None
        model.n_features_in_ = d if model.axes_ is None else len(model.axes_)
        points = _stored(arrays, "points", (None, d))
        offsets = _stored(arrays, "offsets", (None,), below=len(points) + 1)
        sets, n = Pack(points, _stored(arrays, "weights", (len(points),)), offsets), len(offsets) - 1
        if n < 1 or offsets[0] != 0 or offsets[-1] != len(points) or sets.sizes.min() < 1 or sets.weights.min() <= 0:
            raise InputError("the stored sets are damaged: an empty set, or a weight ≤ 0")
        if np.abs(np.add.reduceat(sets.weights, offsets[:-1]) - 1).max() > 1e-6:
            raise InputError("the stored sets are damaged: the weights of a set do not sum to 1")
        y = _stored(arrays, "codes", (n,), below=len(model.classes_))
        model._keep(sets, y, _stored(arrays, "level", (n,), below=len(model.levels_)), blocks)
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

    def _pack(self, X: Any) -> Pack:
        return transport.pack(self._read(X, "X"))

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


NO_MATTER = ("n_jobs", "verbose", "n_neighbors")
"""Options that leave what is learned as it is."""


def fit_identity(sets: Sequence[Signature], labels: Any, options: dict[str, Any]) -> dict[str, Any]:
    """All that decides what a fit learns, as the identity of a job that keeps its parts: `fit(remember=job.keep)`."""
    return {
        "what": "fit of WassersteinLMNN",
        "sets": transport.digest(transport.pack(sets).arrays),
        "levels": [str(s.level) for s in sets],
        "labels": [str(label) for label in np.asarray(labels).tolist()],
        "options": {k: v for k, v in options.items() if k not in NO_MATTER},
        "likewise": __version__,
    }


def principal_axes(sets: Sequence[Signature], most: int) -> Array:
    """At most `most` principal axes (features, r) of all points, each counted once; those of no spread go."""
    points = np.concatenate([s.points for s in sets])
    _, spread, rows = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
    rank = max(1, int((spread > 1e-10 * max(float(spread[0]), 1e-300)).sum()))
    return np.ascontiguousarray(rows[: min(most, rank)].T)


# ── labels, levels and pairs as they are given ────────────────────────────────────────────────────────────────────


def _read_labels(y: Any, n: int) -> tuple[Any, Index]:
    """The classes, and the number of its class for each of n sets; at least two classes, of two members each."""
    if y is None:
        raise InputError("requires y to be passed, but the target y is None: one label a set")
    try:
        labels = column_or_1d(y, warn=True)
        assert_all_finite(labels, input_name="y")
        check_classification_targets(labels)
    except ValueError as error:  # scikit-learn's words: its own checks look for them
        raise InputError(f"y: {error}") from None
    if len(labels) != n:
        raise ShapeError(f"y: expected {n} labels, one a set, got {len(labels)}")
    classes, codes = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise InputError(f"y: expected at least two classes, got 1 class ({_plain(classes[0])!r})")
    lone = [repr(_plain(classes[c])) for c in np.flatnonzero(np.bincount(codes) < 2)]
    if lone:
        raise InputError(
            f"y: class {', '.join(lone[:5])} has one member; each class needs two to learn from: "
            "add one or leave the class out"
        )
    return classes, codes.astype(np.int64)


def _read_levels(sets: list[Signature], labels: Any, levels: Sequence[Hashable] | None) -> list[Hashable]:
    """The level of each set: as given, else as its signature says (if all do), else its class."""
    if levels is not None:
        if len(levels) != len(sets):
            raise ShapeError(f"levels: expected {len(sets)}, one a set, got {len(levels)}")
        if any(t is None for t in levels):
            raise InputError("levels: None is not a level; name the level of every set")
        return [_plain(t) for t in levels]
    own = [_plain(s.level) for s in sets]
    return own if all(t is not None for t in own) else [_plain(c) for c in labels]


def _number_levels(names: list[Hashable]) -> tuple[list[Hashable], Index]:
    """Each level once, sorted where they can be, else in order of appearance; and where each name stands there."""
    once = list(dict.fromkeys(names))
    with suppress(TypeError):
        once = sorted(once)  # type: ignore[type-var]
    at = {name: k for k, name in enumerate(once)}
    return once, np.array([at[name] for name in names], dtype=np.int64)


def _plain(value: Any) -> Hashable:
    """A NumPy scalar as the Python value it stands for, so that 1 and np.int64(1) are one level."""
    inner: Hashable = value.item() if isinstance(value, np.generic) else value
    return inner


def _read_pairs(pairs: Iterable[Any]) -> list[Any]:
    """The sets of pairs one after the other: p0, q0, p1, q1 …"""
    sides: list[Any] = []
    for k, pair in enumerate(pairs):
        try:
            p, q = pair
        except (TypeError, ValueError):
            raise InputError(f"pairs[{k}]: expected two sets (p, q), got {type(pair).__name__}") from None
        sides += [p, q]
    return sides


def _read_pair_levels(sets: list[Signature], levels: Any) -> list[Hashable]:
    """The level of each pair (sets[2k], sets[2k + 1]): one for all, one a pair, or what the two sets say."""
    if levels is not None:
        single = isinstance(levels, str) or not isinstance(levels, Iterable)
        return [levels] * (len(sets) // 2) if single else list(levels)
    own = [(sets[k].level, sets[k + 1].level) for k in range(0, len(sets), 2)]
    for k, (p, q) in enumerate(own):
        if p is not None and q is not None and p != q:
            raise InputError(f"pairs[{k}]: the two sets are of levels {p!r} and {q!r}; say which with levels=")
    return [q if p is None else p for p, q in own]


# ── what a stranger's file says ───────────────────────────────────────────────────────────────────────────────────


def _stored(arrays: dict[str, Any], name: str, shape: tuple[int | None, ...], *, below: int | None = None) -> Any:
    """The array of this shape (None: any length), of finite numbers; with `below`, of integers from 0 to below − 1."""
    array = np.asarray(arrays[name])
    fits = array.ndim == len(shape) and all(m in (None, n) for m, n in zip(shape, array.shape, strict=True))
    if not fits or array.dtype.kind not in ("f" if below is None else "iu"):
        kind = "numbers" if below is None else "integers"
        raise ShapeError(f"{name}: expected {kind} of shape {shape}, got {array.dtype} of shape {array.shape}")
    sound = np.isfinite(array) if below is None else (array >= 0) & (array < below)
    if not sound.all():
        raise InputError(f"{name}: expected {'finite numbers' if below is None else f'0 to {below - 1}'}")
    return np.ascontiguousarray(array, dtype=np.float64 if below is None else np.int64)


def _start(value: Any) -> Start:
    """The start that JSON holds as [power, shrinkage]."""
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(x, int | float) for x in value):
        raise InputError(f"start: expected [power, shrinkage], got {value!r}; fit again what an earlier version saved")
    return Start(*map(float, value))


def _from_json(value: Any) -> Hashable:
    """The label that JSON holds, where a tuple is a list."""
    return tuple(_from_json(v) for v in value) if isinstance(value, list) else _plain(value)


def _classes_from_json(said: dict[str, Any]) -> Any:
    """The classes in their own dtype."""
    kind = np.dtype(str(said["dtype"]))
    if kind.kind not in "biufUO":
        raise InputError(f"classes: expected numbers or text, got dtype {kind}")
    out = np.empty(len(said["values"]), dtype=kind)
    out[:] = [_from_json(v) for v in said["values"]]
    return out
