"""Positive semi-definite matrices: hand cases, naive loops, properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import likewise as lw
from likewise import numeric


def some_psd(seed, d=4, rank=4):
    L = np.random.default_rng(seed).normal(size=(d, rank))
    return L @ L.T


@given(st.integers(0, 1000), st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_factor_has_the_rank_and_gives_the_matrix_back(seed, rank):
    M = some_psd(seed, rank=rank)
    L = numeric.factor(M)
    assert L.shape == (4, rank)
    np.testing.assert_allclose(L @ L.T, M, atol=1e-10)


def test_factor_of_nothing_is_a_column_of_zeros():
    np.testing.assert_array_equal(numeric.factor(np.zeros((3, 3))), np.zeros((3, 1)))


def test_projection_by_hand():
    np.testing.assert_allclose(numeric.project_psd(np.diag([2.0, -3.0])), np.diag([2.0, 0.0]), atol=1e-15)


@given(st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_projection_is_nearest_and_leaves_the_positive_alone(seed):
    r = np.random.default_rng(seed)
    A = r.normal(size=(4, 4))
    A = A + A.T
    P = numeric.project_psd(A)
    assert np.linalg.eigvalsh(P)[0] > -1e-10
    np.testing.assert_allclose(numeric.project_psd(P), P, atol=1e-10)
    for k in range(5):
        assert np.linalg.norm(A - P) <= np.linalg.norm(A - some_psd(seed + k)) + 1e-12
    np.testing.assert_allclose(((A - P) * P).sum(), 0, atol=1e-9)


@given(st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_mahalanobis_is_its_double_loop(seed):
    r = np.random.default_rng(seed)
    P, Q, M = r.normal(size=(3, 4)), r.normal(size=(5, 4)) + 3, some_psd(seed, rank=3)
    loop = [[(p - q) @ M @ (p - q) for q in Q] for p in P]
    np.testing.assert_allclose(numeric.mahalanobis(P, Q, M), loop, atol=1e-9)
    np.testing.assert_allclose(numeric.mahalanobis(P, Q), ((P[:, None] - Q[None]) ** 2).sum(-1), atol=1e-10)


def test_far_from_the_origin_nothing_is_lost():
    P = np.array([[1e6, 1e6], [1e6 + 1e-3, 1e6]])
    np.testing.assert_allclose(numeric.squared_distances(P, P), [[0, 1e-6], [1e-6, 0]], atol=1e-12)


def test_square_root():
    M = some_psd(7)
    R = numeric.sqrt_psd(M)
    np.testing.assert_allclose(R @ R, M, atol=1e-10)
    np.testing.assert_allclose(R, R.T, atol=1e-12)


@pytest.mark.parametrize(
    ("M", "words"),
    [
        (np.ones((2, 3)), r"expected shape \(d, d\), got \(2, 3\)"),
        ([[1.0, np.nan], [0.0, 1.0]], "contains NaN"),
        ([[1.0, 0.5], [0.0, 1.0]], "not symmetric"),
        (np.diag([1.0, -0.1]), "not positive semi-definite: smallest eigenvalue -0.1"),
        ("metric", "not a matrix of numbers"),
    ],
)
def test_what_is_no_metric_is_told_why(M, words):
    with pytest.raises(lw.InputError, match=words):
        numeric.psd(M)


def test_rounding_below_zero_is_forgiven():
    np.testing.assert_array_equal(numeric.psd(np.diag([1.0, -1e-12])), np.diag([1.0, -1e-12]))
