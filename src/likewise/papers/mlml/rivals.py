"""What the paper compares with: metrics learned on vectors, set distances that learn nothing, the printed algorithm.

A metric on vectors has `fit(X, y)` or `fit_pairs(A, B, same)`, then `.metric_` (d, d) ⪰ 0 and squared distances.
`Classifier` is one of scikit-learn, which learns classes or what pairs are the same. `OfVectors` turns either into a
method on signatures, by their means; `Unlearned` needs no training. PCA, where wanted, is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigh
from scipy.optimize import minimize
from scipy.special import expit

from likewise import numeric
from likewise.errors import InputError, NotFittedError, ShapeError
from likewise.sets import transport
from likewise.types import Array, Signature

Index = NDArray[np.int64]
Flags = NDArray[np.bool_]
Labels = Sequence[Any] | NDArray[Any]
SHRINKAGE = 0.01
"""How far second moments are shrunk towards a multiple of I, so that they can be inverted."""

# ── what they share ───────────────────────────────────────────────────────────────────────────────────────────────


class Metric:
    """A squared Mahalanobis distance (a − b)ᵀ M (a − b) whose M is `metric_`."""

    metric_: Array

    def distance(self, A: ArrayLike, B: ArrayLike) -> Array:
        """Squared distances (n,) of row i of A to row i of B."""
        return np.asarray((((np.asarray(A) - np.asarray(B)) @ numeric.factor(self._fitted())) ** 2).sum(axis=1))

    def pairwise(self, A: ArrayLike, B: ArrayLike) -> Array:
        """Squared distances (n, m) of all rows of A to all rows of B."""
        return numeric.mahalanobis(np.asarray(A), np.asarray(B), self._fitted())

    def _fitted(self) -> Array:
        if not hasattr(self, "metric_"):
            raise NotFittedError(f"{type(self).__name__} is not fitted; call fit first")
        return self.metric_


class PairMetric(Metric):
    """A metric that learns from the differences of pairs that are known to be of the same class or not."""

    def fit(self, X: ArrayLike, y: Labels) -> PairMetric:
        """Learn from all pairs of the same class and as many drawn pairs of different classes."""
        x = np.asarray(X, dtype=np.float64)
        i, j, same = draw_pairs(_codes(y))
        return self.fit_pairs(x[i], x[j], same)

    def fit_pairs(self, A: ArrayLike, B: ArrayLike, same: ArrayLike) -> PairMetric:
        """Learn from pairs (row i of A, row i of B) that are of the same class where same[i]."""
        flags = np.asarray(same).astype(bool)
        if flags.all() or not flags.any():
            raise InputError(f"same: expected both kinds of pairs, got {int(flags.sum())} same of {len(flags)}")
        self.metric_ = self._learn(np.asarray(A, dtype=np.float64) - np.asarray(B, dtype=np.float64), flags)
        return self

    def _learn(self, differences: Array, same: Flags) -> Array:
        raise NotImplementedError


def draw_pairs(y: Labels, *, most: int = 20_000, seed: int = 0) -> tuple[Index, Index, Flags]:
    """(i, j, same): all pairs i < j of one class, at most `most`, and as many of different classes."""
    labels, rng = np.asarray(y), np.random.default_rng(seed)
    i, j = np.triu_indices(len(labels), 1)
    same = labels[i] == labels[j]

    def some(indices: Index, most: int) -> Index:
        return indices if len(indices) <= most else np.sort(rng.choice(indices, most, replace=False))

    positive = some(np.flatnonzero(same), most)
    keep = np.concatenate([positive, some(np.flatnonzero(~same), max(1, len(positive)))])
    return i[keep], j[keep], same[keep]


def _codes(y: Labels) -> Index:
    """A number a class; at least two classes, and a class with two members."""
    codes = np.unique(np.asarray(y), return_inverse=True)[1].ravel().astype(np.int64)
    counts = np.bincount(codes)
    if len(counts) < 2 or counts.max() < 2:
        raise InputError("y: expected at least two classes, and a class with two members")
    return codes


def _shrunk(S: Array, shrinkage: float) -> Array:
    """(1 − s) S + s (tr S / d) I: invertible where S is not; s I where S is zero."""
    d = len(S)
    return np.asarray((1 - shrinkage) * S + shrinkage * (float(np.trace(S)) / d or 1.0) * np.eye(d))


def _precision(differences: Array, shrinkage: float) -> Array:
    """The inverse of the shrunk second moment of differences."""
    return np.asarray(np.linalg.inv(_shrunk(differences.T @ differences / len(differences), shrinkage)))


def _laplacian(X: Array, W: Array) -> Array:
    """½ Σ_ij W_ij (x_i − x_j)(x_i − x_j)ᵀ = Xᵀ (diag(W̄ 1) − W̄) X with W̄ = (W + Wᵀ) / 2."""
    W = (W + W.T) / 2
    return np.asarray((X * W.sum(axis=1)[:, None]).T @ X - X.T @ W @ X)


# ── closed forms ──────────────────────────────────────────────────────────────────────────────────────────────────


class Euclid(PairMetric):
    """M = I: nothing is learned."""

    def _learn(self, differences: Array, same: Flags) -> Array:
        return np.eye(differences.shape[1])


@dataclass(eq=False)
class Mahalanobis(PairMetric):
    """M = Σ_S⁻¹, the inverse second moment of the differences of same pairs."""

    shrinkage: float = SHRINKAGE

    def _learn(self, differences: Array, same: Flags) -> Array:
        return numeric.project_psd(_precision(differences[same], self.shrinkage))


@dataclass(eq=False)
class KISSME(PairMetric):
    """M = [Σ_S⁻¹ − Σ_D⁻¹]₊, the log-likelihood ratio of differences being of a same or of a different pair.

    Köstinger et al., CVPR 2012. Both moments are shrunk towards a multiple of I.
    """

    shrinkage: float = SHRINKAGE

    def _learn(self, differences: Array, same: Flags) -> Array:
        S, D = (_precision(differences[which], self.shrinkage) for which in (same, ~same))
        return numeric.project_psd(S - D)


@dataclass(eq=False)
class Discriminant(Metric):
    """M = T diag(λ) Tᵀ of S_b t = λ S_w t over the λ > 0, S_w and S_b scatters of two graphs."""

    shrinkage: float = SHRINKAGE

    def fit(self, X: ArrayLike, y: Labels) -> Discriminant:
        """Learn from vectors X (n, d) and labels y."""
        x = np.asarray(X, dtype=np.float64)
        within, between = self.graphs(x, _codes(y))
        values, vectors = eigh(_laplacian(x, between), _shrunk(_laplacian(x, within), self.shrinkage))
        T = vectors * np.sqrt(np.clip(values, 0, None))
        self.metric_ = np.asarray(T @ T.T)
        return self

    def graphs(self, x: Array, codes: Index) -> tuple[Array, Array]:
        """The weights (n, n) of the two graphs."""
        raise NotImplementedError


@dataclass(eq=False)
class LFDA(Discriminant):
    """Local Fisher discriminant analysis.

    S_w = ½ Σ W_ij (x_i − x_j)(x_i − x_j)ᵀ with W_ij = A_ij / n_c in a class c and 0 else; S_b likewise with
    A_ij (1/n − 1/n_c) in a class and 1/n else; A_ij = exp(−‖x_i − x_j‖² / (σ_i σ_j)), σ_i the distance to the
    `neighbours`-th nearest of the class. Sugiyama, JMLR 2007.
    """

    neighbours: int = 7

    def graphs(self, x: Array, codes: Index) -> tuple[Array, Array]:
        """W of S_w and of S_b."""
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
class MFA(Discriminant):
    """Marginal Fisher analysis: scatters ½ Σ W_ij (x_i − x_j)(x_i − x_j)ᵀ with W_ij 0 or 1.

    S_w joins each point to its k_same nearest of its class, S_b each class to its k_other nearest pairs that lead
    out of it. Yan et al., TPAMI 2007.
    """

    k_same: int = 5
    k_other: int = 20

    def graphs(self, x: Array, codes: Index) -> tuple[Array, Array]:
        """The intrinsic and the penalty graph."""
        D = numeric.squared_distances(x, x)
        intrinsic, penalty = np.zeros_like(D), np.zeros_like(D)
        intrinsic[targets(x, codes, self.k_same)] = 1
        for c in range(int(codes.max()) + 1):
            inside, outside = np.flatnonzero(codes == c), np.flatnonzero(codes != c)
            nearest = np.argsort(D[np.ix_(inside, outside)], axis=None, kind="stable")[: self.k_other]
            penalty[inside[nearest // len(outside)], outside[nearest % len(outside)]] = 1
        return np.maximum(intrinsic, intrinsic.T), np.maximum(penalty, penalty.T)


# ── by descent ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(eq=False)
class Descent(PairMetric):
    """M = L Lᵀ by L-BFGS on the mean of ℓ_β(s (‖Lᵀz‖² − b)) over pairs, ℓ_β(t) = log(1 + exp(β t)) / β.

    s is 1 for same pairs and −1 for others; the differences z are divided by their root mean square first. b is 1 at
    the start, and learned where `learns_bias`.
    """

    beta: float = 1.0
    max_iter: int = 100
    learns_bias = False

    def _learn(self, differences: Array, same: Flags) -> Array:
        scale = 1.0 / np.sqrt(max(float((differences**2).sum(axis=1).mean()), 1e-300))
        Z, sign = differences * scale, np.where(same, 1.0, -1.0)
        first, most = np.append(self.first(Z).ravel(), 1.0), {"maxiter": self.max_iter}
        best = minimize(self.objective, first, (Z, sign), "L-BFGS-B", True, options=most)
        L, self.bias_ = best.x[:-1].reshape(Z.shape[1], -1), float(best.x[-1])
        return numeric.project_psd(scale**2 * L @ L.T)

    def first(self, Z: Array) -> Array:
        """L (d, r) where the descent starts."""
        raise NotImplementedError

    def objective(self, x: Array, Z: Array, sign: Array) -> tuple[float, Array]:
        """The mean over pairs and its gradient in x = (L, b)."""
        P = Z @ x[:-1].reshape(Z.shape[1], -1)
        t = self.beta * sign * ((P**2).sum(axis=1) - x[-1])
        slope = sign * expit(t) / len(Z)
        gradient = 2.0 * Z.T @ (P * slope[:, None])
        bias = -slope.sum() if self.learns_bias else 0.0
        return float(np.logaddexp(0.0, t).mean() / self.beta), np.append(gradient.ravel(), bias)


class LDML(Descent):
    """Logistic discriminant metric learning: P(same) = σ(b − d_M), M and b of the greatest likelihood, from L = I.

    Guillaumin et al., ICCV 2009.
    """

    learns_bias = True

    def first(self, Z: Array) -> Array:
        """I."""
        return np.eye(Z.shape[1])


@dataclass(eq=False)
class PCCA(Descent):
    """Pairwise constrained component analysis: L (d, rank) that brings same pairs within distance 1, others beyond.

    From the principal axes. Mignon and Jurie, CVPR 2012.
    """

    rank: int = 30
    beta: float = 3.0

    def first(self, Z: Array) -> Array:
        """The principal axes of the differences."""
        return np.linalg.eigh(Z.T @ Z)[1][:, ::-1][:, : min(self.rank, Z.shape[1])]


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
    regulariser: Literal["none", "capped", "fantope"] = "none"
    strength: float = 0.01
    cap: float = 0.1
    rank: int | None = None
    max_iter: int = 100
    history_: list[float] = field(default_factory=list, init=False)

    def fit(self, X: ArrayLike, y: Labels) -> LMNN:
        """Learn from vectors X (n, d) and labels y."""
        if self.regulariser not in ("none", "capped", "fantope"):
            raise InputError(f"regulariser: expected 'none', 'capped' or 'fantope', got {self.regulariser!r}")
        x, codes = np.asarray(X, dtype=np.float64), _codes(y)
        scale = 1.0 / np.sqrt(max(2 * float(x.var(axis=0).sum()), 1e-300))
        x = (x - x.mean(axis=0)) * scale
        self.metric_ = scale**2 * self._descend(x, codes, *targets(x, codes, self.k))
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
    i, j = np.repeat(np.arange(len(x)), order.shape[1]), order.ravel()
    near = np.isfinite(D[i, j])
    return i[near], j[near]


@dataclass(eq=False)
class Classifier:
    """A classifier of scikit-learn: of vectors by class, or of |a − b| into pairs of the same and of different ones."""

    model: Any

    def fit(self, X: ArrayLike, y: Labels) -> Classifier:
        """Learn the classes of vectors."""
        self.model.fit(X, y)
        return self

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The classes of vectors."""
        return np.asarray(self.model.predict(X))

    def fit_pairs(self, A: ArrayLike, B: ArrayLike, same: ArrayLike) -> Classifier:
        """Learn which pairs (row i of A, row i of B) are of the same class: those where same[i]."""
        return self.fit(np.abs(np.asarray(A) - np.asarray(B)), np.asarray(same, dtype=bool))

    def distance(self, A: ArrayLike, B: ArrayLike) -> Array:
        """How different row i of A and row i of B are taken to be: the negative margin, or the probability."""
        gaps = np.abs(np.asarray(A) - np.asarray(B))
        if hasattr(self.model, "decision_function"):
            return -np.asarray(self.model.decision_function(gaps))
        return np.asarray(self.model.predict_proba(gaps)[:, 0])

    def pairwise(self, A: ArrayLike, B: ArrayLike) -> Array:
        """The same (n, m) of all rows of A and all rows of B."""
        return np.stack([self.distance(a, B) for a in np.asarray(A)])


# ── methods on signatures ─────────────────────────────────────────────────────────────────────────────────────────


def mean_vectors(X: Sequence[Signature]) -> Array:
    """Σ a_i p_i of each signature, (n, d)."""
    return np.stack([s.weights @ s.points for s in X])


def flat_vectors(X: Sequence[Signature]) -> Array:
    """All points of a signature one after the other, (n, m·d): for sets whose points stand in one order (blocks)."""
    sizes = {s.points.shape for s in X}
    if len(sizes) > 1:
        raise ShapeError(f"X: expected signatures of one shape, got {len(sizes)} shapes; use mean_vectors")
    return np.stack([s.points.ravel() for s in X])


class OnSignatures:
    """A method that measures signatures, and predicts by the nearest of the gallery that `fit` saw."""

    gallery_: list[Signature]
    y_: NDArray[Any]

    def fit(self, X: Sequence[Signature], y: Labels, levels: Sequence[Any] | None = None) -> OnSignatures:
        """Keep the gallery; levels are not used."""
        self.gallery_, self.y_ = list(X), np.asarray(y)
        return self

    def pairwise(self, X: Sequence[Signature], Y: Sequence[Signature]) -> Array:
        """Distances (n, m)."""
        raise NotImplementedError

    def predict(self, X: Sequence[Signature]) -> NDArray[Any]:
        """The label of the nearest set of the gallery."""
        if not hasattr(self, "gallery_"):
            raise NotFittedError(f"{type(self).__name__} is not fitted on classes; call fit first")
        return np.asarray(self.y_[self.pairwise(X, self.gallery_).argmin(axis=1)])


@dataclass(eq=False)
class OfVectors(OnSignatures):
    """A method on signatures from one on vectors: a metric of this module, or a scikit-learn classifier."""

    model: Any
    vectors: Callable[[Sequence[Signature]], Array] = mean_vectors

    def fit(self, X: Sequence[Signature], y: Labels, levels: Sequence[Any] | None = None) -> OfVectors:
        """Fit the model on the vectors of X; levels are not used."""
        super().fit(X, y)
        self.model.fit(self.vectors(X), self.y_)
        return self

    def fit_pairs(self, pairs: Sequence[tuple[Signature, Signature]], same: ArrayLike) -> OfVectors:
        """Fit the model on pairs."""
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
        return super().predict(X)


@dataclass(eq=False)
class Unlearned(OnSignatures):
    """Set distances that learn nothing: "sinkhorn" (smoothed) and "emd" (exact transport).

    γ "auto" is 0.2 × the median ground cost of what `fit` saw; `fit` otherwise only keeps the gallery for `predict`.
    """

    kind: Literal["sinkhorn", "emd"] = "sinkhorn"
    gamma: float | Literal["auto"] = "auto"
    value: transport.Value = "divergence"

    def fit(self, X: Sequence[Signature], y: Labels, levels: Sequence[Any] | None = None) -> Unlearned:
        """Keep the gallery and set γ."""
        if self.kind not in ("sinkhorn", "emd"):
            raise InputError(f"kind: expected 'sinkhorn' or 'emd', got {self.kind!r}")
        super().fit(X, y)
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

    def _solve(self, X: Sequence[Signature], Y: Sequence[Signature], left: Index, right: Index) -> Array:
        if not hasattr(self, "gamma_"):
            raise NotFittedError("Unlearned is not fitted; call fit first, it sets γ")
        P, Q = transport.pack(X), transport.pack(Y)
        if self.kind == "sinkhorn":
            return transport.solve_pairs(P, Q, left, right, self.gamma_, value=self.value).value
        rows = ((P.rows(int(i)), Q.rows(int(j))) for i, j in zip(left, right, strict=True))
        costs = ((numeric.squared_distances(P.points[a], Q.points[b]), P.weights[a], Q.weights[b]) for a, b in rows)
        return np.array([transport.exact(*each)[0] for each in costs])
