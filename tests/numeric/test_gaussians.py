"""The Fréchet distance: closed forms, scipy's matrix square root, torchmetrics, singular covariances, properties."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

from likewise import numeric
from likewise.errors import ShapeError


def random_covariance(d: int, rank: int, seed: int) -> np.ndarray:
    L = np.random.default_rng(seed).normal(size=(d, rank))
    return L @ L.T


def frechet(a: np.ndarray, S: np.ndarray, b: np.ndarray, T: np.ndarray) -> float:
    """From factors, as samples are compared."""
    return numeric.frechet_of_factors(np.asarray(a), numeric.factor(np.asarray(S)), np.asarray(b), numeric.factor(T))


def by_square_root(a: np.ndarray, S: np.ndarray, b: np.ndarray, T: np.ndarray) -> float:
    """As the formula is written: Tr (S T)^½ by Schur decomposition."""
    return float(((a - b) ** 2).sum() + np.trace(S + T - 2 * scipy.linalg.sqrtm(S @ T).real))


def test_by_hand() -> None:
    assert frechet([0.0], [[4.0]], [3.0], np.eye(1)) == pytest.approx(9 + (2 - 1) ** 2)
    diagonal = frechet([1, 0], np.diag([4.0, 9.0]), [0, 0], np.diag([1.0, 16.0]))
    assert diagonal == pytest.approx(1 + (2 - 1) ** 2 + (3 - 4) ** 2)


@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_formula(seed: int) -> None:
    r = np.random.default_rng(seed)
    a, b, S, T = r.normal(size=6), r.normal(size=6), random_covariance(6, 9, seed), random_covariance(6, 9, seed + 50)
    assert frechet(a, S, b, T) == pytest.approx(by_square_root(a, S, b, T), rel=1e-9)


def test_parity_with_torchmetrics() -> None:
    fid = pytest.importorskip("torchmetrics.image.fid", reason="pip install torchmetrics")
    torch = pytest.importorskip("torch")
    r = np.random.default_rng(1)
    given_ = (r.normal(size=5), random_covariance(5, 8, 1), r.normal(size=5), random_covariance(5, 8, 2))
    theirs = fid._compute_fid(*(torch.as_tensor(x) for x in given_))
    assert frechet(*given_) == pytest.approx(float(theirs), rel=1e-9)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 200))
def test_it_is_symmetric_and_zero_only_for_the_same(d: int, rank: int, seed: int) -> None:
    r = np.random.default_rng(seed)
    a, b, S, T = r.normal(size=d), r.normal(size=d), random_covariance(d, rank, seed), random_covariance(d, d, seed + 1)
    forth, back = frechet(a, S, b, T), frechet(b, T, a, S)
    assert forth == pytest.approx(back, rel=1e-9)
    assert forth >= ((a - b) ** 2).sum() - 1e-9
    assert frechet(a, S, a, S) <= 1e-12 * np.trace(S)


@given(st.integers(2, 5), st.integers(0, 100), st.floats(0.1, 10))
def test_it_scales_with_the_square_and_ignores_rotations(d: int, seed: int, scale: float) -> None:
    r = np.random.default_rng(seed)
    a, b, S, T = r.normal(size=d), r.normal(size=d), random_covariance(d, d, seed), random_covariance(d, d, seed + 1)
    Q = np.linalg.qr(r.normal(size=(d, d)))[0] * scale
    turned = frechet(Q @ a, Q @ S @ Q.T, Q @ b, Q @ T @ Q.T)
    assert turned == pytest.approx(scale**2 * frechet(a, S, b, T), rel=1e-6)


def test_nearly_singular_covariances_keep_their_digits() -> None:
    """A spectrum like that of features, over 12 decades; eigenvalues of the product would be wrong at 1e-9."""
    r = np.random.default_rng(0)
    Q = np.linalg.qr(r.normal(size=(40, 40)))[0]
    spread = np.logspace(0, -12, 40)
    S = (Q * spread) @ Q.T
    zero = np.zeros(40)
    assert frechet(zero, S, zero, S) < 1e-14
    expected = ((np.sqrt(spread) - np.sqrt(4 * spread)) ** 2).sum()
    assert frechet(zero, S, zero, 4 * S) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("chunk", [1, 3, 1000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_moments_are_numpys(chunk: int, dtype: type) -> None:
    X = (np.random.default_rng(0).normal(size=(25, 4)) * [1, 2, 3, 4] + 100).astype(dtype)
    mean, covariance = numeric.moments(X, chunk=chunk)
    np.testing.assert_allclose(mean, X.astype(np.float64).mean(0), rtol=1e-12)
    np.testing.assert_allclose(covariance, np.cov(X.astype(np.float64).T), rtol=1e-9)


@pytest.mark.parametrize("n", [2, 5, 6, 7, 30])
def test_a_fit_has_the_covariance_whether_there_are_few_rows_or_many(n: int) -> None:
    X = np.random.default_rng(n).normal(size=(n, 6))
    mean, A = numeric.fitted(X)
    np.testing.assert_allclose(A @ A.T, np.cov(X.T), atol=1e-12)
    np.testing.assert_allclose(mean, X.mean(0))


def test_one_row_has_no_covariance() -> None:
    with pytest.raises(ShapeError, match="two rows"):
        numeric.moments(np.ones((1, 3)))
    with pytest.raises(ShapeError, match="two rows"):
        numeric.fitted(np.ones((1, 3)))
