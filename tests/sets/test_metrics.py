"""Measures: hand cases, naive loops, properties, parity with scikit-learn."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from likewise.errors import InputError, ShapeError
from likewise.sets.metrics import cmc, eer, match_density, pur, pur_of_density, roc

SEEDS = st.integers(0, 2**32 - 1)


def naive_density(D, queries, gallery):
    """Every order of the tied items, one by one."""
    density = np.zeros(len(gallery))
    for i, row in enumerate(D):
        orders = [p for p in permutations(range(len(gallery))) if all(row[a] <= row[b] for a, b in pairwise(p))]
        for order in orders:
            first = next(r for r, j in enumerate(order) if gallery[j] == queries[i])
            density[first] += 1 / len(orders) / len(D)
    return density


def ranking(seed, n=4, levels=4):
    rng = np.random.default_rng(seed)
    D = rng.integers(0, levels, size=(3, n)).astype(float)
    gallery = rng.integers(0, 3, size=n)
    gallery[:3] = [0, 1, 2]
    return D, np.array([0, 1, 2]), gallery


def pairs(seed, n=30, levels=8):
    rng = np.random.default_rng(seed)
    same = rng.random(n) < 0.5
    same[:2] = [True, False]
    return rng.integers(0, levels, n) - 1.5 * same, same


class TestRanking:
    def test_hand_case(self):
        D = [[0.1, 0.5, 0.9], [0.2, 0.3, 0.1], [0.9, 0.8, 0.7]]
        assert cmc(D, ["a", "b", "c"], ["a", "b", "c"]) == pytest.approx([2 / 3, 2 / 3, 1])

    @given(SEEDS)
    def test_naive_loop_over_every_order_of_ties(self, seed):
        D, queries, gallery = ranking(seed, n=5, levels=3)
        assert match_density(D, queries, gallery) == pytest.approx(naive_density(D, queries, gallery))

    @given(SEEDS)
    def test_monotone_transform_and_permutation_change_nothing(self, seed):
        D, queries, gallery = ranking(seed, n=7)
        expected = cmc(D, queries, gallery)
        order = np.random.default_rng(seed).permutation(7)
        assert cmc(np.exp(D) - 3, queries, gallery) == pytest.approx(expected)
        assert cmc(D[::-1][:, order], queries[::-1], gallery[order]) == pytest.approx(expected)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (([[np.nan, 1.0]], [0], [0, 1]), "D contains NaN"),
            (([1.0, 2.0], [0], [0, 1]), r"D: expected \(queries, gallery\)"),
            (([[1.0, 2.0]], [0, 1], [0, 1]), "query_ids"),
            (([[1.0, 2.0]], [0], [0]), "gallery_ids"),
            (([[1.0, 2.0]], [7], [0, 1]), "query 0 .* has no true match"),
        ],
    )
    def test_refusals(self, arguments, message):
        with pytest.raises(InputError, match=message):
            cmc(*arguments)


class TestPur:
    def test_perfect_is_one_and_chance_is_zero(self):
        assert pur(1 - np.eye(5), range(5), range(5)) == pytest.approx(1)
        assert pur(np.zeros((5, 5)), range(5), range(5)) == pytest.approx(0)

    def test_hand_case(self):
        assert pur_of_density([0.5, 0.5, 0, 0]) == pytest.approx(1 - np.log(2) / np.log(4))

    def test_erratum_5_cumulative_curve_gives_nonsense(self):
        """Chance must score 0; read with the cumulative curve, Eq. 17 gives −3.9 for a hundred identities."""
        curve = cmc(np.zeros((100, 100)), range(100), range(100))
        cumulative = 1 + (curve @ np.log(curve)) / np.log(100)
        assert cumulative < -3
        assert pur(np.zeros((100, 100)), range(100), range(100)) == pytest.approx(0, abs=1e-12)
        with pytest.raises(InputError, match="not the cumulative curve"):
            pur_of_density(curve)

    @given(SEEDS)
    def test_naive_loop_and_bounds(self, seed):
        D, queries, gallery = ranking(seed, n=5)
        total = sum(m * np.log(m) for m in naive_density(D, queries, gallery) if m > 0)
        assert pur(D, queries, gallery) == pytest.approx((np.log(5) + total) / np.log(5))
        assert -1e-12 <= pur(D, queries, gallery) <= 1 + 1e-12

    def test_one_rank_is_refused(self):
        with pytest.raises(ShapeError, match="at least two ranks"):
            pur([[1.0]], [0], [0])


class TestVerification:
    def test_hand_case(self):
        curve = roc([1, 2, 3, 4], [True, False, True, False])
        assert curve.fpr.tolist() == [0, 0, 0.5, 0.5, 1]
        assert curve.tpr.tolist() == [0, 0.5, 0.5, 1, 1]
        assert curve.thresholds.tolist() == [-np.inf, 1, 2, 3, 4]
        assert curve.auc == 0.75
        assert eer([1, 2, 3, 4], [True, False, True, False]) == 0.5

    def test_extremes(self):
        assert eer([1, 2, 8, 9], [1, 1, 0, 0]) == 0
        assert eer([1, 2, 8, 9], [0, 0, 1, 1]) == 1
        assert eer([5, 5, 5], [0, 1, 1]) == 0.5

    def test_crossing_is_interpolated(self):
        """Between (fpr 0, miss 1/3) and (fpr 1/2, miss 0) on one tied threshold: t/2 = (1 − t)/3 at t = 2/5."""
        assert eer([1, 1, 2, 2, 3], [1, 1, 1, 0, 0]) == pytest.approx(0.2)

    @given(SEEDS)
    def test_parity_with_scikit_learn(self, seed):
        distances, same = pairs(seed)
        curve = roc(distances, same)
        fpr, tpr, thresholds = roc_curve(same, -distances, drop_intermediate=False)
        np.testing.assert_allclose(curve.fpr, fpr)
        np.testing.assert_allclose(curve.tpr, tpr)
        np.testing.assert_allclose(curve.thresholds, -thresholds)
        assert curve.auc == pytest.approx(roc_auc_score(same, -distances))
        fine = np.linspace(0, len(fpr) - 1, 200_001)
        miss = 1 - np.interp(fine, np.arange(len(fpr)), tpr)
        accept = np.interp(fine, np.arange(len(fpr)), fpr)
        assert eer(distances, same) == pytest.approx(accept[np.abs(accept - miss).argmin()], abs=1e-3)

    @given(SEEDS)
    def test_naive_loop(self, seed):
        distances, same = pairs(seed)
        curve = roc(distances, same)
        for f, t, threshold in zip(curve.fpr, curve.tpr, curve.thresholds, strict=True):
            accepted = [d <= threshold for d in distances]
            assert t == pytest.approx(sum(a for a, s in zip(accepted, same, strict=True) if s) / sum(same))
            assert f == pytest.approx(sum(a for a, s in zip(accepted, same, strict=True) if not s) / sum(~same))

    @given(SEEDS)
    def test_monotone_transform_permutation_and_reversal(self, seed):
        distances, same = pairs(seed)
        order = np.random.default_rng(seed).permutation(len(same))
        expected = eer(distances, same)
        assert eer(np.exp(distances / 2), same) == pytest.approx(expected)
        assert eer(distances[order], same[order]) == pytest.approx(expected)
        assert eer(-distances, same) == pytest.approx(1 - expected)

    @pytest.mark.parametrize(
        ("distances", "same", "message"),
        [
            ([1.0, np.nan], [0, 1], "distances contains NaN"),
            ([1.0, 2.0], [0, 1, 1], "one shape"),
            ([1.0, 2.0], [1, 1], "both kinds"),
            ([1.0, 2.0], [0, 2], "True or False"),
            (["near", "far"], [0, 1], "expected numbers"),
        ],
    )
    def test_refusals(self, distances, same, message):
        for measure in (roc, eer):
            with pytest.raises(InputError, match=message):
                measure(distances, same)
