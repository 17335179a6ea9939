"""Baselines: closed forms against naive loops, gradients against finite differences, a world with a known answer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import approx_fprime

from likewise import numeric
from likewise.errors import InputError, NotFittedError, ShapeError
from likewise.papers.mlml import METRICS
from likewise.papers.mlml import rivals as b
from likewise.types import Signature
from worlds.vectors import planted, planted_sets

SEEDS = st.integers(0, 2**32 - 1)
LEARNED = [
    b.Mahalanobis(),
    b.KISSME(),
    b.LFDA(),
    b.MFA(),
    b.LDML(),
    b.PCCA(),
    b.LMNN(),
    b.LMNN(regulariser="capped"),
    b.LMNN(regulariser="fantope", rank=3),
]


def fresh_accuracy(method):
    """1-NN accuracy on fresh draws."""
    X, y = planted(1)
    X_test, y_test = planted(2)
    method.fit(X, y)
    return (y[method.pairwise(X_test, X).argmin(axis=1)] == y_test).mean()


class TestEveryMetric:
    @pytest.mark.parametrize("method", LEARNED, ids=lambda m: f"{type(m).__name__}-{getattr(m, 'regulariser', '')}")
    def test_beats_euclid_where_noise_is_louder_than_signal(self, method):
        assert fresh_accuracy(method) >= fresh_accuracy(b.Euclid()) + 0.1

    @pytest.mark.parametrize("method", LEARNED, ids=lambda m: f"{type(m).__name__}-{getattr(m, 'regulariser', '')}")
    def test_metric_is_psd_and_distances_agree(self, method):
        X, y = planted(3, each=6)
        method.fit(X, y)
        numeric.psd(method.metric_)
        naive = [(x - z) @ method.metric_ @ (x - z) for x, z in zip(X[:5], X[5:10], strict=True)]
        assert method.distance(X[:5], X[5:10]) == pytest.approx(naive)
        assert np.diag(method.pairwise(X[:5], X[5:10])) == pytest.approx(naive)

    @pytest.mark.parametrize("method", LEARNED, ids=lambda m: f"{type(m).__name__}-{getattr(m, 'regulariser', '')}")
    def test_refusals(self, method):
        X, _ = planted(3, each=4)
        for bad, labels, message in [
            (X, np.zeros(len(X)), "at least two classes"),
            (X, np.arange(len(X)), "a class with two members"),
        ]:
            with pytest.raises(InputError, match=message):
                method.fit(bad, labels)
        with pytest.raises(NotFittedError):
            type(method)().pairwise(X, X)


class TestClosedForms:
    @given(SEEDS)
    def test_kissme_against_naive_loops(self, seed):
        rng = np.random.default_rng(seed)
        A, B, same = rng.normal(size=(20, 3)), rng.normal(size=(20, 3)), np.arange(20) % 2 == 0
        moments = []
        for kind in (True, False):
            S = np.zeros((3, 3))
            for x, z, s in zip(A, B, same, strict=True):
                if s == kind:
                    S += np.outer(x - z, x - z) / 10
            moments.append(0.9 * S + 0.1 * np.trace(S) / 3 * np.eye(3))
        M = np.linalg.inv(moments[0]) - np.linalg.inv(moments[1])
        w, V = np.linalg.eigh(M)
        expected = sum(max(v, 0) * np.outer(u, u) for v, u in zip(w, V.T, strict=True))
        assert b.KISSME(shrinkage=0.1).fit_pairs(A, B, same).metric_ == pytest.approx(expected, abs=1e-9)
        assert b.Mahalanobis(shrinkage=0.1).fit_pairs(A, B, same).metric_ == pytest.approx(np.linalg.inv(moments[0]))

    def test_kissme_hand_case(self):
        """One coordinate: same pairs differ by 1, others by 2: 1/1 − 1/4."""
        fitted = b.KISSME(shrinkage=0).fit_pairs([[0.0], [0.0]], [[1.0], [2.0]], [True, False])
        assert fitted.metric_ == pytest.approx(np.array([[0.75]]))

    def test_lfda_scatters_against_naive_loops(self):
        X, y = planted(4, classes=3, each=5, dim=4)
        within, between = b.LFDA(neighbours=2).graphs(X, y)
        n, S_w, S_b = len(X), np.zeros((4, 4)), np.zeros((4, 4))
        sigma = [np.sort([np.linalg.norm(X[i] - X[j]) for j in range(n) if y[j] == y[i]])[2] for i in range(n)]
        for i in range(n):
            for j in range(n):
                outer = np.outer(X[i] - X[j], X[i] - X[j])
                affinity = np.exp(-((X[i] - X[j]) ** 2).sum() / (sigma[i] * sigma[j]))
                S_w += 0.5 * (affinity / 5 if y[i] == y[j] else 0) * outer
                S_b += 0.5 * (affinity * (1 / n - 1 / 5) if y[i] == y[j] else 1 / n) * outer
        assert b._laplacian(X, within) == pytest.approx(S_w)
        assert b._laplacian(X, between) == pytest.approx(S_b)
        fitted = b.LFDA(neighbours=2, shrinkage=0).fit(X, y)
        w, V = np.linalg.eig(np.linalg.solve(S_w, S_b))
        T = V.real / np.sqrt(np.diag(V.real.T @ S_w @ V.real))
        assert fitted.metric_ == pytest.approx(T @ np.diag(np.clip(w.real, 0, None)) @ T.T)

    def test_mfa_graphs_against_naive_loops(self):
        X, y = planted(5, classes=3, each=4, dim=3)
        intrinsic, penalty = b.MFA(k_same=1, k_other=2).graphs(X, y)
        distance = lambda i, j: ((X[i] - X[j]) ** 2).sum()  # noqa: E731
        joined = set()
        for i in range(12):
            own = [j for j in range(12) if y[j] == y[i] and j != i]
            joined.add(frozenset((i, min(own, key=lambda j, i=i: distance(i, j)))))
        assert {frozenset(p) for p in zip(*np.nonzero(intrinsic), strict=True)} == joined
        out = set()
        for c in range(3):
            pairs = [(i, j) for i in range(12) for j in range(12) if y[i] == c and y[j] != c]
            out |= {frozenset(p) for p in sorted(pairs, key=lambda p: distance(*p))[:2]}
        assert {frozenset(p) for p in zip(*np.nonzero(penalty), strict=True)} == out

    def test_rank_is_kept(self):
        assert np.linalg.matrix_rank(b.PCCA(rank=2).fit(*planted(6)).metric_, tol=1e-9) == 2


class TestDescent:
    @pytest.mark.parametrize("rank", [2, 4])
    def test_gradients_of_ldml_and_pcca(self, rank):
        rng = np.random.default_rng(0)
        Z, sign = rng.normal(size=(15, 4)), np.sign(rng.normal(size=15))
        x = 0.5 * rng.normal(size=4 * rank + 1)
        P = Z @ x[:-1].reshape(4, rank)
        for method, beta, bias in ((b.LDML(), 1, x[-1]), (b.PCCA(), 3, 1.0)):
            at = np.append(x[:-1], bias)
            value, gradient = method.objective(at, Z, sign)
            numeric = approx_fprime(at, lambda v, m=method: m.objective(v, Z, sign)[0], 1e-7)
            assert gradient[:-1] == pytest.approx(numeric[:-1], abs=1e-6)
            assert gradient[-1] == pytest.approx(numeric[-1] if beta == 1 else 0.0, abs=1e-6)
            losses = [np.log(1 + np.exp(beta * s * (p @ p - bias))) / beta for s, p in zip(sign, P, strict=True)]
            assert value == pytest.approx(np.mean(losses))

    def test_ldml_finds_the_threshold(self):
        """One coordinate, same pairs differ by ≤ 1 and others by ≥ 2: the learned bias must lie between."""
        gap = np.array([0.2, 0.5, 1.0, 2.0, 2.5, 3.0])
        fitted = b.LDML().fit_pairs(np.zeros((6, 1)), gap[:, None], [1, 1, 1, 0, 0, 0])
        assert fitted.metric_[0, 0] * 1.0 < fitted.bias_ < fitted.metric_[0, 0] * 4.0

    @pytest.mark.parametrize("regulariser", ["none", "capped", "fantope"])
    def test_lmnn_gradient_value_and_descent(self, regulariser):
        X, y = planted(8, classes=3, each=4, dim=4)
        X = X / 4
        method = b.LMNN(k=2, regulariser=regulariser, strength=0.3, cap=0.9, rank=2)
        i, j = b.targets(X, y, 2)
        A = np.random.default_rng(1).normal(size=(4, 4))
        M = A @ A.T / 4
        value, gradient = method.objective(M, X, y, i, j)
        symmetric = lambda m: m.reshape(4, 4) / 2 + m.reshape(4, 4).T / 2  # noqa: E731
        numeric = approx_fprime(M.ravel(), lambda m: method.objective(symmetric(m), X, y, i, j)[0], 1e-7)
        assert gradient.ravel() == pytest.approx(numeric, abs=2e-5)
        assert value == pytest.approx(self.naive(method, M, X, y))
        history = method.fit(X, y).history_
        assert len(history) > 3
        assert (np.diff(history) < 0).all()

    @staticmethod
    def naive(method, M, X, y):
        d = lambda i, j: (X[i] - X[j]) @ M @ (X[i] - X[j])  # noqa: E731
        pull, push = [], []
        for i in range(len(X)):
            own = sorted(
                (j for j in range(len(X)) if y[j] == y[i] and j != i), key=lambda j: ((X[i] - X[j]) ** 2).sum()
            )
            for j in own[:2]:
                pull.append(d(i, j))
                push += [max(0, 1 + d(i, j) - d(i, l)) for l in range(len(X)) if y[l] != y[i]]
        w = np.linalg.eigvalsh(M)
        extra = {"none": 0, "capped": np.minimum(w, 0.9).sum(), "fantope": w[:2].sum()}[method.regulariser]
        return 0.5 * np.mean(pull) + 0.5 * np.mean(push) + 0.3 * extra

    def test_low_rank_regularisers_lower_the_rank(self):
        """Eight classes spread over six coordinates: plain LMNN keeps four of them, the Fantope the two it may keep."""
        rng = np.random.default_rng(0)
        y = np.repeat(np.arange(8), 6)
        X = rng.normal(size=(8, 6))[y] + 0.3 * rng.normal(size=(48, 6))
        ranks = []
        for method in (b.LMNN(), b.LMNN(regulariser="fantope", rank=2, strength=0.1)):
            w = np.linalg.eigvalsh(method.fit(X, y).metric_)
            ranks.append(int((w > 1e-3 * w.max()).sum()))
        assert ranks == [4, 2]
        with pytest.raises(InputError, match="regulariser"):
            b.LMNN(regulariser="trace").fit(X, y)


class TestPairs:
    @given(SEEDS)
    def test_all_same_pairs_and_as_many_others(self, seed):
        y = np.random.default_rng(seed).integers(0, 3, 12)
        y[:3] = [0, 0, 1]
        i, j, same = b.draw_pairs(y, seed=seed)
        assert (i < j).all()
        assert ((y[i] == y[j]) == same).all()
        assert same.sum() == sum(y[p] == y[q] for p in range(12) for q in range(p + 1, 12))
        assert (~same).sum() == min(same.sum(), 66 - same.sum())
        assert len({*zip(i, j, strict=True)}) == len(i)

    def test_only_one_kind_of_pair_is_refused(self):
        with pytest.raises(InputError, match="both kinds"):
            b.KISSME().fit_pairs([[0.0]], [[1.0]], [True])


class TestOnSignatures:
    @pytest.mark.parametrize("kind", ["sinkhorn", "emd"])
    def test_unlearned_of_single_points_is_the_squared_distance(self, kind):
        X = [Signature([[0.0, 0]]), Signature([[3.0, 4]])]
        method = b.Unlearned(kind).fit(X, [0, 1])
        assert method.pairwise(X, X) == pytest.approx(np.array([[0, 25], [25, 0]]), abs=1e-6)
        assert method.pair_distance([(X[0], X[1])]) == pytest.approx([25])
        assert method.predict(X).tolist() == [0, 1]

    def test_emd_hand_case(self):
        p, q = Signature([[0.0], [1.0]], [1, 3]), Signature([[0.0], [1.0]], [3, 1])
        method = b.Unlearned("emd").fit([p, q], [0, 1])
        assert method.pair_distance([(p, q), (p, p)]) == pytest.approx([0.5, 0])

    def test_emd_and_sinkhorn_against_pot(self):
        ot = pytest.importorskip("ot")
        X, y = planted_sets(0, each=2, dim=3)
        exact = b.Unlearned("emd").fit(X, y)
        smooth = b.Unlearned("sinkhorn", value="sharp").fit(X, y)
        D, S = exact.pairwise(X[:2], X[2:5]), smooth.pairwise(X[:2], X[2:5])
        for i in range(2):
            for j in range(3):
                p, q = X[i], X[2 + j]
                C = ot.dist(p.points, q.points)
                assert D[i, j] == pytest.approx(ot.emd2(p.weights, q.weights, C))
                plan = ot.sinkhorn(p.weights, q.weights, C, smooth.gamma_, method="sinkhorn_log", stopThr=1e-10)
                assert S[i, j] == pytest.approx((plan * C).sum(), rel=1e-4)

    @pytest.mark.parametrize(
        "model", [b.KISSME(), b.LFDA(), METRICS["kNN"](), METRICS["SVM"]()], ids=["KISSME", "LFDA", "kNN", "SVM"]
    )
    def test_methods_on_vectors_classify_sets(self, model):
        X, y = planted_sets(1, noise=0.5)
        X_test, y_test = planted_sets(3, noise=0.5)
        assert (b.OfVectors(model).fit(X, y).predict(X_test) == y_test).mean() > 0.95

    def test_of_vectors_from_pairs(self):
        X, y = planted_sets(1, each=4)
        i, j, same = b.draw_pairs(y)
        pairs = [(X[p], X[q]) for p, q in zip(i, j, strict=True)]
        method = b.OfVectors(b.KISSME()).fit_pairs(pairs, same)
        assert method.learns_from_pairs
        assert not b.OfVectors(b.LFDA()).learns_from_pairs
        expected = np.diag(method.pairwise([p for p, _ in pairs], [q for _, q in pairs]))
        assert method.pair_distance(pairs) == pytest.approx(expected)
        with pytest.raises(NotFittedError):
            method.predict(X)

    @pytest.mark.parametrize("name", ["SVM", "kNN"])
    def test_classifiers_tell_pairs_by_their_gaps(self, name):
        """Same pairs differ in the second coordinate alone: a gap of the first makes a pair different, either way."""
        rng = np.random.default_rng(0)
        A, gaps = rng.normal(size=(40, 2)), rng.normal(size=(40, 2)) * [0.1, 1]
        same = np.arange(40) % 2 == 0
        gaps[~same, 0] += rng.choice([-2, 2], 20)
        method = METRICS[name]().fit_pairs(A, A + gaps, same)
        D = method.pairwise([[0, 0], [2, 1]], [[0, 1], [2, 0], [-2, 0.5]])
        assert (D.argmin(axis=1) == [0, 1]).all()
        assert (D[0, 1:] > D[0, 0]).all()
        assert method.distance([[2, 1]], [[0, 1]]) == pytest.approx(D[1, :1])

    def test_vectors(self):
        s = Signature([[0.0, 2], [4, 2]], [1, 3])
        assert b.mean_vectors([s]).tolist() == [[3, 2]]
        assert b.flat_vectors([s]).tolist() == [[0, 2, 4, 2]]
        with pytest.raises(ShapeError, match="one shape"):
            b.flat_vectors([s, Signature([[1.0, 2]])])

    def test_refusals(self):
        with pytest.raises(InputError, match="kind"):
            b.Unlearned("cosine").fit([Signature([[1.0]])], [0])
        with pytest.raises(NotFittedError, match="not fitted"):
            b.Unlearned().predict([Signature([[1.0]])])
