"""The methods that the paper compares with: metrics learned on vectors, and set distances that learn nothing.

A metric on vectors has `fit(X, y)` or `fit_pairs(A, B, same)`, then `.metric_` (d, d) ⪰ 0 and squared distances.
`OfVectors` turns one into a method on signatures, by their means; `Unlearned` needs no training. PCA, where wanted,
is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from likewise import numeric
from likewise.errors import InputError, NotFittedError, ShapeError
from likewise.sets.metrics import one_nn
from likewise.sets.transport import solvers as transport
from likewise.types import Array, Signature

Index = NDArray[np.int64]
Flags = NDArray[np.bool_]

# ---------------------------------------------------------------------------------------------- what they share


class Metric:
    """A squared Mahalanobis distance (a − b)ᵀ M (a − b) whose M is `metric_`."""

    metric_: Array

    def distance(self, A: ArrayLike, B: ArrayLike) -> Array:
        """Squared distances (n,) of row i of A to row i of B."""
        a, b = self._rows(A, "A"), self._rows(B, "B")
        if a.shape != b.shape:
            raise ShapeError(f"A and B: expected the same shape, got {a.shape} and {b.shape}")
        return np.asarray((((a - b) @ numeric.factor(self.metric_)) ** 2).sum(axis=1))

    def pairwise(self, A: ArrayLike, B: ArrayLike) -> Array:
        """Squared distances (n, m) of all rows of A to all rows of B."""
        return numeric.mahalanobis(self._rows(A, "A"), self._rows(B, "B"), self.metric_)

    def _rows(self, A: ArrayLike, where: str) -> Array:
        if not hasattr(self, "metric_"):
            raise NotFittedError(f"{type(self).__name__} is not fitted; call fit first")
        rows = _vectors(A, where)
        if rows.shape[1] != len(self.metric_):
            raise ShapeError(f"{where}: expected {len(self.metric_)} columns, as fitted, got {rows.shape[1]}")
        return rows


class PairMetric(Metric):
    """A metric that learns from pairs that are known to be of the same class or not."""

    seed: int = 0

    def fit(self, X: ArrayLike, y: Sequence[Any] | NDArray[Any]) -> PairMetric:
        """Learn from all pairs of the same class and as many drawn pairs of different classes."""
        x, labels = _labelled(X, y)
        i, j, same = draw_pairs(labels, seed=self.seed)
        return self.fit_pairs(x[i], x[j], same)

    def fit_pairs(self, A: ArrayLike, B: ArrayLike, same: ArrayLike) -> PairMetric:
        """Learn from pairs (row i of A, row i of B) that are of the same class where same[i]."""
        a, b, flags = _vectors(A, "A"), _vectors(B, "B"), np.asarray(same)
        if a.shape != b.shape or flags.shape != (len(a),):
            raise ShapeError(f"A, B and same: expected (n, d), (n, d), (n,), got {a.shape}, {b.shape}, {flags.shape}")
        flags = flags.astype(bool)
        if flags.all() or not flags.any():
            raise InputError(f"same: expected both kinds of pairs, got {int(flags.sum())} same of {len(flags)}")
        self.metric_ = self._learn(a - b, flags)
        return self

    def _learn(self, differences: Array, same: Flags) -> Array:
        raise NotImplementedError


def draw_pairs(
    y: Sequence[Any] | NDArray[Any], *, ratio: float = 1.0, most: int = 20_000, seed: int = 0
) -> tuple[Index, Index, Flags]:
    """(i, j, same): all pairs i < j of one class, at most `most`, and `ratio` times as many of different classes."""
    labels = np.unique(np.asarray(y), return_inverse=True)[1].ravel()
    rng = np.random.default_rng(seed)
    i, j = np.triu_indices(len(labels), 1)
    same = labels[i] == labels[j]
    if same.all() or not same.any():
        raise InputError("y: expected at least two classes, and a class with two members")
    positive = _some(np.flatnonzero(same), most, rng)
    negative = _some(np.flatnonzero(~same), max(1, round(ratio * len(positive))), rng)
    keep = np.concatenate([positive, negative])
    return i[keep], j[keep], same[keep]


def _some(indices: Index, most: int, rng: np.random.Generator) -> Index:
    return indices if len(indices) <= most else np.sort(rng.choice(indices, most, replace=False))


def _vectors(X: ArrayLike, where: str) -> Array:
    try:
        rows = np.asarray(X, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{where}: expected numbers (n, d), {error}") from None
    if rows.ndim != 2 or 0 in rows.shape:
        raise ShapeError(f"{where}: expected (n, d), got shape {rows.shape}")
    if not np.isfinite(rows).all():
        raise InputError(f"{where} contains NaN or infinity")
    return rows


def _labelled(X: ArrayLike, y: Sequence[Any] | NDArray[Any]) -> tuple[Array, Index]:
    x, labels = _vectors(X, "X"), np.asarray(y)
    if labels.shape != (len(x),):
        raise ShapeError(f"y: expected ({len(x)},), one a row of X, got shape {labels.shape}")
    codes = np.unique(labels, return_inverse=True)[1].ravel().astype(np.int64)
    counts = np.bincount(codes)
    if len(counts) < 2 or counts.max() < 2:
        raise InputError("y: expected at least two classes, and a class with two members")
    return x, codes


def _shrunk(S: Array, shrinkage: float) -> Array:
    """(1 − s) S + s (tr S / d) I: invertible where S is not."""
    d = len(S)
    return np.asarray((1 - shrinkage) * S + shrinkage * max(float(np.trace(S)) / d, 1e-300) * np.eye(d))


def _inverse(S: Array) -> Array:
    return np.asarray(np.linalg.inv(S), dtype=np.float64)


def _laplacian(X: Array, W: Array) -> Array:
    """½ Σ_ij W_ij (x_i − x_j)(x_i − x_j)ᵀ = Xᵀ (diag(W̄ 1) − W̄) X with W̄ = (W + Wᵀ) / 2."""
    W = (W + W.T) / 2
    return np.asarray((X * W.sum(axis=1)[:, None]).T @ X - X.T @ W @ X)


def _minimise(objective: Callable[[Array], tuple[float, Array]], start: Array, max_iter: int) -> Array:
    from scipy.optimize import minimize

    return np.asarray(minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": max_iter}).x)


# ---------------------------------------------------------------------------------------------- closed forms


@dataclass(eq=False)
class Euclid(PairMetric):
    """M = I: nothing is learned."""

    seed: int = 0

    def _learn(self, differences: Array, same: Flags) -> Array:
        return np.eye(differences.shape[1])


@dataclass(eq=False)
class Mahalanobis(PairMetric):
    """M = Σ_S⁻¹, the inverse second moment of the differences of same pairs."""

    shrinkage: float = 0.01
    seed: int = 0

    def _learn(self, differences: Array, same: Flags) -> Array:
        D = differences[same]
        return numeric.project_psd(_inverse(_shrunk(D.T @ D / len(D), self.shrinkage)))


@dataclass(eq=False)
class KISSME(PairMetric):
    """M = [Σ_S⁻¹ − Σ_D⁻¹]₊, the log-likelihood ratio of differences being of a same or of a different pair.

    Köstinger et al., CVPR 2012. Both moments are shrunk towards a multiple of I.
    """

    shrinkage: float = 0.01
    seed: int = 0

    def _learn(self, differences: Array, same: Flags) -> Array:
        S, D = (_shrunk(Z.T @ Z / len(Z), self.shrinkage) for Z in (differences[same], differences[~same]))
        return numeric.project_psd(_inverse(S) - _inverse(D))


@dataclass(eq=False)
class LFDA(Metric):
    """Local Fisher discriminant analysis: M = T diag(λ) Tᵀ of S_b t = λ S_w t, the `rank` largest λ.

    S_w = ½ Σ W_ij (x_i − x_j)(x_i − x_j)ᵀ with W_ij = A_ij / n_c in a class c and 0 else; S_b likewise with
    A_ij (1/n − 1/n_c) in a class and 1/n else; A_ij = exp(−‖x_i − x_j‖² / (σ_i σ_j)), σ_i the distance to the
    `neighbours`-th nearest of the class. Sugiyama, JMLR 2007.
    """

    rank: int | None = None
    neighbours: int = 7
    shrinkage: float = 0.01

    def fit(self, X: ArrayLike, y: Sequence[Any] | NDArray[Any]) -> LFDA:
        """Learn from vectors X (n, d) and labels y."""
        x, codes = _labelled(X, y)
        within, between = self._weights(x, codes)
        S_w, S_b = _shrunk(_laplacian(x, within), self.shrinkage), _laplacian(x, between)
        self.metric_ = _discriminant(S_b, S_w, self.rank)
        return self

    def _weights(self, x: Array, codes: Index) -> tuple[Array, Array]:
        n = len(x)
        within, between = np.zeros((n, n)), np.full((n, n), 1.0 / n)
        for c in range(int(codes.max()) + 1):
            rows = np.flatnonzero(codes == c)
            D = numeric.squared_distances(x[rows], x[rows])
            sigma = np.sqrt(np.sort(D, axis=1)[:, min(self.neighbours, len(rows) - 1)])
            A = np.exp(-D / np.maximum(np.outer(sigma, sigma), 1e-12))
            within[np.ix_(rows, rows)] = A / len(rows)
            between[np.ix_(rows, rows)] = A * (1.0 / n - 1.0 / len(rows))
        return within, between


@dataclass(eq=False)
class MFA(Metric):
    """Marginal Fisher analysis: M = T diag(λ) Tᵀ of S_p t = λ S_i t, the `rank` largest λ.

    S_i joins each point to its k_same nearest of its class, S_p each class to its k_other nearest pairs that lead
    out of it: scatters ½ Σ W_ij (x_i − x_j)(x_i − x_j)ᵀ with W_ij 0 or 1. Yan et al., TPAMI 2007.
    """

    rank: int | None = None
    k_same: int = 5
    k_other: int = 20
    shrinkage: float = 0.01

    def fit(self, X: ArrayLike, y: Sequence[Any] | NDArray[Any]) -> MFA:
        """Learn from vectors X (n, d) and labels y."""
        x, codes = _labelled(X, y)
        intrinsic, penalty = self._graphs(x, codes)
        self.metric_ = _discriminant(
            _laplacian(x, penalty), _shrunk(_laplacian(x, intrinsic), self.shrinkage), self.rank
        )
        return self

    def _graphs(self, x: Array, codes: Index) -> tuple[Array, Array]:
        D = numeric.squared_distances(x, x)
        intrinsic, penalty = np.zeros_like(D), np.zeros_like(D)
        intrinsic[targets(x, codes, self.k_same)] = 1
        for c in range(int(codes.max()) + 1):
            inside, outside = np.flatnonzero(codes == c), np.flatnonzero(codes != c)
            nearest = np.argsort(D[np.ix_(inside, outside)], axis=None, kind="stable")[: self.k_other]
            penalty[inside[nearest // len(outside)], outside[nearest % len(outside)]] = 1
        return np.maximum(intrinsic, intrinsic.T), np.maximum(penalty, penalty.T)


def _discriminant(large: Array, small: Array, rank: int | None) -> Array:
    """T diag(λ) Tᵀ of the generalised problem large t = λ small t, tᵀ small t = 1, over the `rank` largest λ > 0."""
    from scipy.linalg import eigh

    if rank is not None and rank < 1:
        raise InputError(f"rank: expected at least 1, got {rank}")
    values, vectors = eigh(large, small)
    keep = np.argsort(values)[::-1][: rank or len(values)]
    T = vectors[:, keep] * np.sqrt(np.clip(values[keep], 0, None))
    return np.asarray(T @ T.T)


# ---------------------------------------------------------------------------------------------- by descent


@dataclass(eq=False)
class LDML(PairMetric):
    """Logistic discriminant metric learning: P(same) = σ(b − d_M), M = L Lᵀ and b of the greatest likelihood.

    The mean of log(1 + exp(∓(b − d_M))) is minimised by L-BFGS from L ∝ I. Guillaumin et al., ICCV 2009.
    """

    max_iter: int = 100
    seed: int = 0
    bias_: float = field(default=float("nan"), init=False)

    def _learn(self, differences: Array, same: Flags) -> Array:
        d = differences.shape[1]
        scale = 1.0 / np.sqrt(max(float((differences**2).sum(axis=1).mean()), 1e-300))
        Z, sign = differences * scale, np.where(same, 1.0, -1.0)
        x = _minimise(lambda x: ldml_objective(x, Z, sign), np.append(np.eye(d).ravel(), 1.0), self.max_iter)
        L, self.bias_ = x[:-1].reshape(d, d), float(x[-1])
        return numeric.project_psd(scale**2 * L @ L.T)


def ldml_objective(x: Array, Z: Array, sign: Array) -> tuple[float, Array]:
    """mean log(1 + exp(−s (b − ‖Lᵀz‖²))) and its gradient, x = (L, b); s = 1 for same pairs, −1 for different."""
    L = x[:-1].reshape(Z.shape[1], -1)
    P = Z @ L
    margin = sign * (x[-1] - (P**2).sum(axis=1))
    slope = -sign / (1.0 + np.exp(np.clip(margin, -700, 700))) / len(Z)
    gradient = -2.0 * Z.T @ (P * slope[:, None])
    return float(np.logaddexp(0.0, -margin).mean()), np.append(gradient.ravel(), slope.sum())


@dataclass(eq=False)
class PCCA(PairMetric):
    """Pairwise constrained component analysis: L (d, rank) that brings same pairs within distance 1, others beyond.

    The mean of ℓ_β(s (‖Lᵀz‖² − 1)), ℓ_β(t) = log(1 + exp(β t)) / β, is minimised by L-BFGS from the principal axes.
    Mignon and Jurie, CVPR 2012.
    """

    rank: int = 30
    beta: float = 3.0
    max_iter: int = 100
    seed: int = 0

    def _learn(self, differences: Array, same: Flags) -> Array:
        d = differences.shape[1]
        scale = 1.0 / np.sqrt(max(float((differences**2).sum(axis=1).mean()), 1e-300))
        Z, sign = differences * scale, np.where(same, 1.0, -1.0)
        axes = np.linalg.eigh(Z.T @ Z)[1][:, ::-1][:, : min(self.rank, d)]
        x = _minimise(lambda x: pcca_objective(x, Z, sign, self.beta), axes.ravel(), self.max_iter)
        L = x.reshape(d, -1)
        return numeric.project_psd(scale**2 * L @ L.T)


def pcca_objective(x: Array, Z: Array, sign: Array, beta: float) -> tuple[float, Array]:
    """mean ℓ_β(s (‖Lᵀz‖² − 1)) and its gradient in L."""
    P = Z @ x.reshape(Z.shape[1], -1)
    t = beta * sign * ((P**2).sum(axis=1) - 1.0)
    slope = sign / (1.0 + np.exp(np.clip(-t, -700, 700))) / len(Z)
    return float(np.logaddexp(0.0, t).mean() / beta), (2.0 * Z.T @ (P * slope[:, None])).ravel()


Regulariser = Literal["none", "capped", "fantope"]


@dataclass(eq=False)
class LMNN(Metric):
    """Large margin nearest neighbours, plain or of low rank: M ⪰ 0 that minimises

    (1 − μ) mean_ij d_ij + μ mean_ijl [1 + d_ij − d_il]₊ + λ R(M), j the k nearest of i's class, l of other classes.

    R is 0, or "capped": Σ min(σ, cap), the capped trace norm (Huo et al. 2016), or "fantope": the sum of the d − rank
    smallest eigenvalues (Law et al. 2014). Projected gradient steps that are taken only when the objective falls.
    Differences are divided by their root mean square first. Weinberger and Saul, JMLR 2009.
    """

    k: int = 3
    mu: float = 0.5
    regulariser: Regulariser = "none"
    strength: float = 0.01
    cap: float = 0.1
    rank: int | None = None
    max_iter: int = 100
    history_: list[float] = field(default_factory=list, init=False)

    def fit(self, X: ArrayLike, y: Sequence[Any] | NDArray[Any]) -> LMNN:
        """Learn from vectors X (n, d) and labels y."""
        if self.regulariser not in ("none", "capped", "fantope"):
            raise InputError(f"regulariser: expected 'none', 'capped' or 'fantope', got {self.regulariser!r}")
        x, codes = _labelled(X, y)
        scale = 1.0 / np.sqrt(max(2 * float(x.var(axis=0).sum()), 1e-300))
        x = (x - x.mean(axis=0)) * scale
        i, j = targets(x, codes, self.k)
        M = self._descend(x, codes, i, j)
        self.metric_ = scale**2 * M
        return self

    def _descend(self, x: Array, codes: Index, i: Index, j: Index) -> Array:
        M, step = np.eye(x.shape[1]), 1.0
        value, gradient = self.objective(M, x, codes, i, j)
        self.history_ = [value]
        for _ in range(self.max_iter):
            while step > 1e-10:
                trial = numeric.project_psd(M - step * gradient)
                new, new_gradient = self.objective(trial, x, codes, i, j)
                if new < value:
                    break
                step /= 2
            else:
                break
            stalled = value - new < 1e-6 * abs(value)
            M, value, gradient, step = trial, new, new_gradient, 1.5 * step
            self.history_.append(value)
            if stalled:
                break
        return M

    def objective(self, M: Array, x: Array, codes: Index, i: Index, j: Index) -> tuple[float, Array]:
        """The objective and its (sub)gradient in M, for targets (i, j)."""
        D = numeric.mahalanobis(x, x, M)
        pull = D[i, j]
        other = codes[i][:, None] != codes[None, :]
        hinge = np.where(other, 1.0 + pull[:, None] - D[i], 0.0)
        active = hinge > 0
        n, triplets = len(i), max(int(other.sum()), 1)
        value = (1 - self.mu) * float(pull.mean()) + self.mu * float(hinge[active].sum()) / triplets
        W = np.zeros_like(D)
        np.add.at(W, (i, j), (1 - self.mu) / n + self.mu * active.sum(axis=1) / triplets)
        np.add.at(W, i, -self.mu * active / triplets)
        regular, slope = self._regularity(M)
        return value + regular, 2.0 * _laplacian(x, W) + slope

    def _regularity(self, M: Array) -> tuple[float, Array]:
        if self.regulariser == "none":
            return 0.0, np.zeros_like(M)
        w, V = np.linalg.eigh((M + M.T) / 2)
        if self.regulariser == "capped":
            low, value = w < self.cap, float(np.minimum(w, self.cap).sum())
        else:
            keep = len(w) // 2 if self.rank is None else self.rank
            low = np.arange(len(w)) < len(w) - keep
            value = float(w[low].sum())
        return self.strength * value, self.strength * V[:, low] @ V[:, low].T


def targets(x: Array, codes: Index, k: int) -> tuple[Index, Index]:
    """(i, j): the k nearest of the same class, for each point that has one; fewer where the class is smaller."""
    D = numeric.squared_distances(x, x)
    np.fill_diagonal(D, np.inf)
    D[codes[:, None] != codes[None, :]] = np.inf
    order = np.argsort(D, axis=1, kind="stable")[:, :k]
    i = np.repeat(np.arange(len(x)), order.shape[1])
    j = order.ravel()
    near = np.isfinite(D[i, j])
    return i[near], j[near]


# ---------------------------------------------------------------------------------------------- classifiers


def nearest_neighbours(k: int = 1) -> Any:
    """scikit-learn's k-nearest-neighbour classifier."""
    from sklearn.neighbors import KNeighborsClassifier

    return KNeighborsClassifier(k)


def linear_svm(C: float = 1.0, seed: int = 0) -> Any:
    """scikit-learn's linear support vector machine, on standardised features."""
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import LinearSVC

    return make_pipeline(StandardScaler(), LinearSVC(C=C, random_state=seed, max_iter=20_000))


# ---------------------------------------------------------------------------------------------- methods on signatures


def mean_vectors(X: Sequence[Signature]) -> Array:
    """Σ a_i p_i of each signature, (n, d)."""
    return np.stack([s.weights @ s.points for s in X])


def flat_vectors(X: Sequence[Signature]) -> Array:
    """All points of a signature one after the other, (n, m·d): for sets whose points stand in one order (blocks)."""
    sizes = {s.points.shape for s in X}
    if len(sizes) > 1:
        raise ShapeError(f"X: expected signatures of one shape, got {len(sizes)} shapes; use mean_vectors")
    return np.stack([s.points.ravel() for s in X])


@dataclass(eq=False)
class OfVectors:
    """A method on signatures from one on vectors: a metric of this module, or a scikit-learn classifier."""

    model: Any
    vectors: Callable[[Sequence[Signature]], Array] = mean_vectors

    def fit(self, X: Sequence[Signature], y: Sequence[Any], levels: Sequence[Any] | None = None) -> OfVectors:
        """Fit the model on the vectors of X; levels are not used."""
        self.gallery_, self.y_ = self.vectors(X), np.asarray(y)
        self.model.fit(self.gallery_, self.y_)
        return self

    def fit_pairs(
        self,
        pairs: Sequence[tuple[Signature, Signature]],
        same: Sequence[bool] | Flags,
        levels: Sequence[Any] | None = None,
    ) -> OfVectors:
        """Fit the model on pairs; levels are not used."""
        self.model.fit_pairs(self.vectors([p for p, _ in pairs]), self.vectors([q for _, q in pairs]), same)
        return self

    @property
    def learns_from_pairs(self) -> bool:
        """Whether the model takes pairs: one that does not is fitted on classes."""
        return hasattr(self.model, "fit_pairs")

    def pairwise(self, X: Sequence[Signature], Y: Sequence[Signature]) -> Array:
        """Distances (n, m)."""
        return np.asarray(self.model.pairwise(self.vectors(X), self.vectors(Y)))

    def pair_distance(self, pairs: Sequence[tuple[Signature, Signature]], levels: Sequence[Any] | None = None) -> Array:
        """Distances (n,) of pairs; levels are not used."""
        left, right = self.vectors([p for p, _ in pairs]), self.vectors([q for _, q in pairs])
        return np.asarray(self.model.distance(left, right))

    def predict(self, X: Sequence[Signature]) -> NDArray[Any]:
        """The model's own prediction, or the label of the nearest training vector."""
        if hasattr(self.model, "predict"):
            return np.asarray(self.model.predict(self.vectors(X)))
        if not hasattr(self, "gallery_"):
            raise NotFittedError("OfVectors is not fitted on classes; call fit first")
        return one_nn(self.model.pairwise(self.vectors(X), self.gallery_), self.y_)


@dataclass(eq=False)
class Unlearned:
    """Set distances that learn nothing: "sinkhorn" (smoothed), "emd" (exact transport), "euclid" (of the means).

    γ "auto" is 0.05 × the median ground cost of what `fit` saw; `fit` otherwise only keeps the gallery for `predict`.
    """

    kind: Literal["sinkhorn", "emd", "euclid"] = "sinkhorn"
    gamma: float | Literal["auto"] = "auto"
    value: transport.Value = "kl"
    tol: float = 1e-6

    def fit(self, X: Sequence[Signature], y: Sequence[Any], levels: Sequence[Any] | None = None) -> Unlearned:
        """Keep the gallery and set γ."""
        if self.kind not in ("sinkhorn", "emd", "euclid"):
            raise InputError(f"kind: expected 'sinkhorn', 'emd' or 'euclid', got {self.kind!r}")
        self.gallery_, self.y_ = list(X), np.asarray(y)
        self.gamma_ = transport.auto_gamma(transport.pack(self.gallery_)) if self.gamma == "auto" else self.gamma
        return self

    def pairwise(self, X: Sequence[Signature], Y: Sequence[Signature]) -> Array:
        """Distances (n, m)."""
        left, right = (g.ravel().astype(np.int64) for g in np.indices((len(X), len(Y))))
        return self._solve(X, Y, left, right).reshape(len(X), len(Y))

    def pair_distance(self, pairs: Sequence[tuple[Signature, Signature]], levels: Sequence[Any] | None = None) -> Array:
        """Distances (n,) of pairs; levels are not used."""
        each = np.arange(len(pairs), dtype=np.int64)
        return self._solve([p for p, _ in pairs], [q for _, q in pairs], each, each)

    def predict(self, X: Sequence[Signature]) -> NDArray[Any]:
        """The label of the nearest set of the gallery."""
        self._check_fitted()
        return one_nn(self.pairwise(X, self.gallery_), self.y_)

    def _check_fitted(self) -> None:
        if not hasattr(self, "gamma_"):
            raise NotFittedError("Unlearned is not fitted; call fit first, it sets γ")

    def _solve(self, X: Sequence[Signature], Y: Sequence[Signature], left: Index, right: Index) -> Array:
        self._check_fitted()
        if self.kind == "euclid":
            a, b = mean_vectors(X), mean_vectors(Y)
            return np.asarray(((a[left] - b[right]) ** 2).sum(axis=1))
        P, Q = transport.pack(X), transport.pack(Y)
        if self.kind == "sinkhorn":
            return transport.solve_pairs(P, Q, left, right, self.gamma_, value=self.value, tol=self.tol).value
        exact = _exact_solver()
        rows = ((P.rows(int(i)), Q.rows(int(j))) for i, j in zip(left, right, strict=True))
        costs = ((numeric.squared_distances(P.points[a], Q.points[b]), P.weights[a], Q.weights[b]) for a, b in rows)
        return np.array([exact(*each) for each in costs])


def _exact_solver() -> Callable[[Array, Array, Array], float]:
    """The value of exact transport: by POT's network simplex where POT is installed (faster), else core.transport's."""
    try:
        from ot import emd2
    except ImportError:
        return lambda C, a, b: transport.exact(C, a, b)[0]
    return lambda C, a, b: float(emd2(a, b / b.sum() * a.sum(), C, numItermax=1_000_000))
