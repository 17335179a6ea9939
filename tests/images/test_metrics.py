"""Measures of embeddings: hand cases, naive loops over every order of ties, properties, duplicates, errors."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from likewise.errors import InputError, ShapeError
from likewise.images import metrics
from likewise.images.metrics import clusters, f1, hits_at_k, map_at_r, nmi, recall_at_k, spectral_decay, spectrum

SEEDS = st.integers(0, 2**32 - 1)
FEW = settings(max_examples=15)
KS = (1, 2, 4, 8)


def angles(*degrees):
    """Unit rows in the plane."""
    a = np.radians(degrees)
    return np.stack([np.cos(a), np.sin(a)], axis=1)


def blobs(seed, n=60, d=8, classes=6, noise=0.6):
    """Classes around random centres, a few rows repeated with their own and with another label."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    y[: 2 * classes] = np.repeat(np.arange(classes), 2)
    X = (rng.normal(size=(classes, d))[y] + noise * rng.normal(size=(n, d))).astype(np.float32)
    X[-3:] = X[:3]
    return X, y


def lattice(seed, n=7, classes=2):
    """Rows of which many are equal: every similarity is tied with others."""
    rng = np.random.default_rng(seed)
    X = np.eye(2, dtype=np.float32)[rng.integers(0, 2, n)]
    X[rng.random(n) < 0.3] = [0.5, 0.5]
    y = rng.integers(0, classes, n)
    y[:2] = 0
    return X, y


def naive(X, y, score, gallery=None, gallery_labels=None):
    """Mean over rows of the mean of `score(sorted same-class flags, R)` over every order of tied rows; NaN if lone."""
    X = metrics.unit_rows(X)
    Y = X if gallery is None else metrics.unit_rows(gallery)
    z = y if gallery is None else gallery_labels
    scores = []
    for i in range(len(X)):
        others = [j for j in range(len(Y)) if gallery is not None or j != i]
        s = {j: round(float(X[i].astype(np.float64) @ Y[j].astype(np.float64)), 12) for j in others}
        R = sum(z[j] == y[i] for j in others)
        if R == 0:
            scores.append(np.nan)
            continue
        if len(others) > 7:  # too many to permute: these must not tie
            assert len(set(s.values())) == len(others)
            orders = [sorted(others, key=lambda j, s=s: -s[j])]
        else:
            orders = [p for p in permutations(others) if all(s[a] >= s[b] for a, b in pairwise(p))]
        scores.append(np.mean([score([z[j] == y[i] for j in order], R) for order in orders]))
    return np.array(scores)


def hit(k):
    return lambda flags, R: float(any(flags[:k]))


def average_precision(flags, R):
    return sum(sum(flags[: m + 1]) / (m + 1) for m in range(R) if flags[m]) / R


def nan_as_miss(scores):
    return np.nan_to_num(scores).mean()


class TestRecall:
    def test_hand_case(self):
        X, y = angles(0, 10, 25, 100, 108), [0, 1, 0, 1, 1]
        # nearest others by angle, and whether they share the class:
        # 0: 10 no, 25 yes; 10: 0 no, 25 no, 100 yes; 25: 10 no, 0 yes; 100: 108 yes; 108: 100 yes
        assert recall_at_k(X, y, (1, 2, 3)) == pytest.approx({1: 0.4, 2: 0.8, 3: 1.0})

    def test_a_row_is_left_out_by_its_place_not_as_the_first_of_its_neighbours(self):
        """A copy with another label stands before the row itself; dropping the first column would drop the copy."""
        X, y = angles(0, 0, 60, 61), ["a", "b", "a", "b"]
        sorted_ = np.argsort(-(X @ X.T), axis=1, kind="stable")[:, 1:]
        dropping = np.mean([y[i] in np.array(y)[row[:1]] for i, row in enumerate(sorted_)])
        assert dropping > 0
        assert recall_at_k(X, y, [1]) == {1: 0.0}

    def test_ties_score_as_chance(self):
        same = np.ones((5, 3))
        assert recall_at_k(same, [0, 0, 1, 1, 1], [1, 2, 3, 4]) == pytest.approx(
            {1: (2 * 1 / 4 + 3 * 2 / 4) / 5, 2: (2 * 1 / 2 + 3 * (1 - 1 / 6)) / 5, 3: (2 * 3 / 4 + 3) / 5, 4: 1.0}
        )

    @FEW
    @given(SEEDS)
    def test_naive_loop_over_every_order_of_ties(self, seed):
        X, y = lattice(seed)
        for k, recall in recall_at_k(X, y, (1, 2, 3, 6)).items():
            assert recall == pytest.approx(nan_as_miss(naive(X, y, hit(k))))

    @FEW
    @given(SEEDS, st.sampled_from([1, 40, 300, 4096]))
    def test_naive_loop_whatever_the_panels(self, seed, panel):
        X, y = blobs(seed, n=30)
        X[-3:] += np.float32(0.01) * np.random.default_rng(seed).normal(size=(3, 8)).astype(np.float32)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(metrics, "PANEL", panel)
            patch.setattr(metrics, "BLOCK", 3)
            result = hits_at_k(X, y, KS)
            score = map_at_r(X, y)
        for k in KS:
            assert_allclose(result[k], naive(X, y, hit(k)))
        assert score == pytest.approx(nan_as_miss(naive(X, y, average_precision)))

    @FEW
    @given(SEEDS)
    def test_with_a_gallery(self, seed):
        X, y = blobs(seed, n=40)
        q, g = np.arange(15), np.arange(15, 37)
        result = hits_at_k(X[q], y[q], KS, gallery=X[g], gallery_labels=y[g])
        for k in KS:
            assert_allclose(result[k], naive(X[q], y[q], hit(k), X[g], y[g]))
        expected = naive(X[q], y[q], average_precision, X[g], y[g])
        assert map_at_r(X[q], y[q], gallery=X[g], gallery_labels=y[g]) == pytest.approx(nan_as_miss(expected))

    def test_a_gallery_is_not_searched_without_the_row_of_the_same_place(self):
        X = angles(0, 90)
        assert recall_at_k(X, [0, 1], [1], gallery=X, gallery_labels=[0, 1]) == {1: 1.0}

    @FEW
    @given(SEEDS)
    def test_order_of_rows_changes_no_bit(self, seed):
        X, y = blobs(seed)
        p = np.random.default_rng(seed).permutation(len(X))
        permuted = hits_at_k(X[p], y[p], KS)
        for k, hits in hits_at_k(X, y, KS).items():
            np.testing.assert_array_equal(hits[p], permuted[k])
        assert map_at_r(X, y) == pytest.approx(map_at_r(X[p], y[p]), abs=1e-14)

    @FEW
    @given(SEEDS)
    def test_rotation_and_length_change_nothing(self, seed):
        rng = np.random.default_rng(seed)
        X, y = blobs(seed)
        X[-3:] = rng.normal(size=(3, 8))  # copies may differ by a rounding after a rotation
        Q = np.linalg.qr(rng.normal(size=(8, 8)))[0]
        turned = (X.astype(np.float64) @ Q) * rng.uniform(0.1, 10, size=(len(X), 1))
        assert recall_at_k(turned, y) == pytest.approx(recall_at_k(X, y))
        assert map_at_r(turned, y) == pytest.approx(map_at_r(X, y))
        assert_allclose(spectrum(turned), spectrum(X), atol=1e-6)

    @FEW
    @given(SEEDS)
    def test_monotone_in_k_and_one_at_the_end(self, seed):
        X, y = blobs(seed, n=20)
        values = list(recall_at_k(X, y, range(1, 20)).values())
        assert all(a <= b + 1e-15 for a, b in pairwise(values))
        assert values[-1] == 1.0
        assert recall_at_k(X, y, [1000]) == {1000: 1.0}
        assert 0 <= map_at_r(X, y) <= 1

    def test_perfect_clusters(self):
        X, y = blobs(4, noise=1e-3, d=16)
        X[-3:] = X[:3]
        y[-3:] = y[:3]
        assert set(recall_at_k(X, y).values()) == {1.0}
        assert map_at_r(X, y) == pytest.approx(1.0)

    def test_a_class_of_one_is_a_miss(self):
        X, y = angles(0, 1, 90, 91, 200), ["a", "a", "b", "b", "alone"]
        assert recall_at_k(X, y, [1, 4]) == pytest.approx({1: 0.8, 4: 0.8})
        assert map_at_r(X, y) == pytest.approx(0.8)
        assert np.isnan(hits_at_k(X, y, [1])[1]).tolist() == [False] * 4 + [True]

    def test_names_and_numbers_are_the_same_classes(self):
        X, y = blobs(3)
        assert recall_at_k(X, y) == recall_at_k(X, [f"class {c}" for c in y]) == recall_at_k(X, y * 7 - 3)


class TestExactness:
    """float32 products only filter: what they cannot order is decided in float64."""

    def test_differences_below_the_rounding_of_float32_are_seen(self):
        """300 rows that all but coincide: the nearest in float64 is of the class, and float32 takes another for it."""
        rng = np.random.default_rng(0)
        gallery = metrics.unit_rows(rng.normal(size=512) + 1e-6 * rng.normal(size=(300, 512)))
        queries = metrics.unit_rows(rng.normal(size=(20, 512)))
        exact = metrics._sides(queries, [0] * 20, gallery, [0] * 300).exact
        misled = 0
        for q in range(20):
            similar = exact(np.full(300, q), np.arange(300))
            best = int(similar.argmax())
            assert np.count_nonzero(similar == similar[best]) == 1
            misled += int((gallery @ queries[q]).argmax()) != best
            result = recall_at_k(
                queries[q : q + 1], [True], [1], gallery=gallery, gallery_labels=np.arange(300) == best
            )
            assert result == {1: 1.0}
            score = map_at_r(queries[q : q + 1], [True], gallery=gallery, gallery_labels=np.arange(300) == best)
            assert score == 1.0
        assert misled > 3

    @FEW
    @given(SEEDS, st.sampled_from([3, 17, 64]))
    def test_copies_tie_exactly_wherever_they_stand(self, seed, d):
        """Each row five times, labels at random: the hits are those of the counts, not of rounding."""
        rng = np.random.default_rng(seed)
        X = np.repeat(rng.normal(size=(9, d)).astype(np.float32), 5, axis=0)
        y = rng.integers(0, 3, len(X))
        p = rng.permutation(len(X))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(metrics, "PANEL", 7)
            result = hits_at_k(X[p], y[p], [1])[1]
        back = np.empty(len(X))
        back[p] = result
        for i in range(len(X)):
            group = [j for j in range(5 * (i // 5), 5 * (i // 5) + 5) if j != i]
            share = np.mean([y[j] == y[i] for j in group])
            if share > 0:
                assert back[i] == pytest.approx(share)

    def test_the_bound_holds(self):
        """float32 products of unit rows differ from float64 ones by less than `rounding`."""
        rng = np.random.default_rng(0)
        for d in (1, 3, 64, 1280):
            X = rng.normal(size=(200, d)) if d > 1 else rng.choice([-1.0, 1.0], size=(200, 1))
            s = metrics._sides(X, [0] * 200, None, None)
            error = np.abs((s.X @ s.X.T).astype(np.float64) - s.X.astype(np.float64) @ s.X.T.astype(np.float64))
            assert error.max() < s.rounding < 1e-4

    @FEW
    @given(SEEDS, st.sampled_from([2, 5]))
    def test_threads_change_no_bit(self, seed, threads):
        X, y = blobs(seed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(metrics, "PANEL", 200)
            alone = hits_at_k(X, y, KS), map_at_r(X, y)
            patch.setattr(metrics, "threadpool_info", lambda: [{"user_api": "blas", "num_threads": threads}])
            together = hits_at_k(X, y, KS), map_at_r(X, y)
        np.testing.assert_equal(together, alone)

    def test_an_error_in_a_thread_comes_out(self, monkeypatch):
        monkeypatch.setattr(metrics, "_ranked", lambda s, part, depth: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            recall_at_k(*blobs(1))

    def test_memory_is_that_of_tiles(self):
        """8,000 rows: one matrix would be 256 MB in float32."""
        import tracemalloc

        rng = np.random.default_rng(0)
        X, y = rng.normal(size=(8000, 8)).astype(np.float32), rng.integers(0, 2000, 8000)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(metrics, "PANEL", 1 << 20)
            tracemalloc.start()
            recall_at_k(X, y)
            map_at_r(X, y)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 60e6


class TestMeanAveragePrecision:
    def test_hand_case(self):
        X, y = angles(0, 10, 25, 100, 108), [0, 1, 0, 1, 1]
        # 0: R=1, first is wrong: 0; 10: R=2: no, no: 0; 25: R=1: 0; 100: R=2, yes, no: 1/2; 108: yes, then 25: 1/2
        assert map_at_r(X, y) == pytest.approx((0 + 0 + 0 + 0.5 + 0.5) / 5)

    @FEW
    @given(SEEDS)
    def test_naive_loop_over_every_order_of_ties(self, seed):
        X, y = lattice(seed)
        assert map_at_r(X, y) == pytest.approx(nan_as_miss(naive(X, y, average_precision)))


class TestClustering:
    def test_hand_case(self):
        result, y = [0, 0, 1, 1], [0, 0, 0, 1]
        # pairs of one class: 3; pairs of one cluster: 2; both: 1 → P = 1/2, R = 1/3
        assert f1(np.ones((4, 2)), y, clustering=result) == pytest.approx(2 * (1 / 2) * (1 / 3) / (1 / 2 + 1 / 3))
        entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
        information = 0.5 * np.log(0.5 / (0.75 * 0.5)) + 0.25 * np.log(0.25 / (0.75 * 0.5)) + 0.25 * np.log(2.0)
        assert nmi(np.ones((4, 2)), y, clustering=result) == pytest.approx(2 * information / (entropy + np.log(2)))

    @given(SEEDS)
    def test_naive_pairs(self, seed):
        rng = np.random.default_rng(seed)
        y, result = rng.integers(0, 4, 25), rng.integers(0, 5, 25)
        pairs = [(i, j) for i in range(25) for j in range(i)]
        right = sum(y[i] == y[j] and result[i] == result[j] for i, j in pairs)
        P = right / sum(result[i] == result[j] for i, j in pairs)
        R = right / sum(y[i] == y[j] for i, j in pairs)
        assert f1(np.ones((25, 2)), y, clustering=result) == pytest.approx(2 * P * R / (P + R) if right else 0.0)

    def test_perfect_clusters_and_none(self):
        X, y = blobs(1, noise=1e-3, d=16)
        X[-3:], y[-3:] = X[:3], y[:3]
        assert max(nmi(X, y, seed=s) for s in range(5)) == pytest.approx(1.0)
        assert max(f1(X, y, seed=s) for s in range(5)) == pytest.approx(1.0)
        assert f1(X, np.arange(len(X)), clustering=np.zeros(len(X))) == 0.0

    def test_the_same_seed_gives_the_same_clusters(self, capfd):
        X, _ = blobs(2, n=200)
        np.testing.assert_array_equal(clusters(X, 7, seed=3), clusters(X, 7, seed=3))
        assert (clusters(X, 7, seed=3) != clusters(X, 7, seed=4)).any()
        assert set(clusters(X, 7)) <= set(range(7))
        assert capfd.readouterr() == ("", "")


class TestSpectrum:
    def test_hand_case(self):
        X = np.repeat(np.eye(2), [16, 9], axis=0)  # singular values 4 and 3
        assert_allclose(spectrum(X), [4 / 7, 3 / 7])
        assert spectral_decay(X) == pytest.approx(0.5 * np.log(0.5 * 7 / 4) + 0.5 * np.log(0.5 * 7 / 3))

    def test_alike_in_all_directions_is_zero_and_a_dead_direction_infinite(self):
        assert spectral_decay(np.eye(5)) == pytest.approx(0.0, abs=1e-12)
        rng = np.random.default_rng(0)
        X = rng.normal(size=(50, 4))
        X[:, 3] = 0
        assert spectral_decay(X) == float("inf")

    def test_it_is_not_centred(self):
        X = np.random.default_rng(0).normal(size=(100, 3)) + 10
        unit = X / np.linalg.norm(X, axis=1, keepdims=True)
        values = np.linalg.svd(unit, compute_uv=False)
        assert_allclose(spectrum(X), values / values.sum(), rtol=1e-5)
        assert spectrum(X)[0] > 0.8


class TestErrors:
    X = np.eye(4)

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda X: recall_at_k(X, [0, 0, 1]), "labels: expected 4, one a row, got 3"),
            (lambda X: recall_at_k(X[:1], [0]), "at least two rows"),
            (lambda X: recall_at_k(X[0], [0, 0, 1, 1]), r"expected rows \(n, d\), got shape \(4,\)"),
            (lambda X: recall_at_k(X * 0, [0, 0, 1, 1]), "row 0 is all zeros"),
            (lambda X: recall_at_k(X * np.nan, [0, 0, 1, 1]), "row 0 contains NaN or infinity"),
            (lambda X: recall_at_k([["a"]], [0]), "rows .* of numbers"),
            (lambda X: recall_at_k(X, [0, 0, 1, 1], []), r"ks: .* got \[\]"),
            (lambda X: recall_at_k(X, [0, 0, 1, 1], [0]), r"ks: .* got \[0\]"),
            (lambda X: recall_at_k(X, [0, 0, 1, 1], [True]), r"ks: .* got \[True\]"),
            (lambda X: recall_at_k(X, [0, 0, 1, 1], 3), "ks: .* got 3"),
            (lambda X: recall_at_k(X, [0, 1, 2, 3]), "no row has another one of its class"),
            (lambda X: map_at_r(X, [0, 1, 2, 3]), "no row has another one of its class"),
            (lambda X: recall_at_k(X, [0.5, 0, 1, 1]), "labels: expected whole numbers or strings"),
            (lambda X: recall_at_k(X, [0, 0, 1, 1], gallery=X), "gallery_labels"),
            (lambda X: recall_at_k(X, [0, 0, 1, 1], gallery=X[:, :2], gallery_labels=[0] * 4), "row 2 is all zeros"),
            (lambda X: recall_at_k(X, [0, 0, 1, 1], gallery=np.eye(3), gallery_labels=[0] * 3), "rows of 4 numbers"),
            (lambda X: clusters(X, 5), "k: expected a whole number from 1 to 4"),
            (lambda X: nmi(X, [0, 1]), "labels: expected 4, one a row, got 2"),
            (lambda X: spectral_decay(X[:0]), r"got shape \(0, 4\)"),
        ],
    )
    def test_a_wrong_argument_is_named(self, call, message):
        with pytest.raises((InputError, ShapeError), match=message):
            call(self.X)

    def test_the_input_is_not_changed(self):
        X = np.full((4, 3), 2.0, dtype=np.float32)
        recall_at_k(X, [0, 0, 1, 1])
        assert (X == 2.0).all()
