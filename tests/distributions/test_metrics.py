"""Measures: by hand, against loops, as properties; and figures that refuse to be compared."""

from __future__ import annotations

import json
import operator
import pickle
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from likewise.distributions import metrics
from likewise.distributions.metrics import Figure, SmallSampleWarning
from likewise.errors import InputError
from likewise.nn.features import Features


def sample(n: int, d: int = 3, seed: int = 0, shift: float = 0.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d)) + shift


def figure(value: float = 1.0, **changed: object) -> Figure:
    return Figure(value, **{"measure": "frechet", "net": "lenet", "n_real": 10, "n_fake": 20, "k": None, **changed})


# --------------------------------------------------------------------------------------------------------- figures


def test_a_figure_is_a_float_that_knows_its_circumstances() -> None:
    f = figure(41.3, error=0.8)
    assert isinstance(f, float)
    assert repr(f) == "Figure(frechet=41.3 ± 0.8, lenet, 10 real, 20 fake)"
    assert json.loads(json.dumps([f])) == [41.3]
    about = {"measure": "frechet", "net": "lenet", "n_real": 10, "n_fake": 20, "k": None, "error": 0.8}
    assert f.to_dict() == {"value": 41.3, **about} == {"value": 41.3, **vars(pickle.loads(pickle.dumps(f)))}


def test_like_figures_are_ordered_and_subtracted() -> None:
    a, b = figure(1.0), figure(2.5, error=0.1)
    assert [op(a, b) for op in (operator.lt, operator.le, operator.gt, operator.ge)] == [True, True, False, False]
    assert (b - a, 3 - a, a < 1.5, a > 7) == (1.5, 2.0, True, False)
    assert max(a, b) is b


@pytest.mark.parametrize(
    "changed",
    [{"net": "other"}, {"n_real": 11}, {"n_fake": 21}, {"k": 5}, {"measure": "kid"}],
    ids=lambda c: next(iter(c)),
)
def test_unlike_figures_refuse_to_be_compared(changed: dict[str, object]) -> None:
    a, b = figure(1.0), figure(2.0, **changed)
    ordered = (operator.lt, operator.gt, operator.le, operator.ge, min, max, lambda a, b: sorted([a, b]))
    counted = (
        operator.add,
        operator.sub,
        operator.mul,
        operator.truediv,
        operator.floordiv,
        operator.mod,
        operator.pow,
    )
    arrays = (np.minimum, np.subtract, np.divide, lambda a, b: np.argmin(np.array([a, b], dtype=object)))
    for compared in (*ordered, *counted, *arrays):
        with pytest.raises(InputError, match=f"differ in {next(iter(changed))}"):
            compared(a, b)
    assert float(b) - float(a) == 1.0


def test_like_figures_are_counted_with() -> None:
    a, b = figure(1.0), figure(2.5, error=0.1)
    assert (a + b, b / a, a * b, 5 / b, b**2, -a, abs(-a), b // a, b % a) == (3.5, 2.5, 2.5, 2, 6.25, -1, 1, 2, 0.5)
    assert (np.minimum(a, b), np.sqrt(a), np.float64(1) + a, a + np.float64(1)) == (1, 1, 2, 2)
    assert (np.mean([a, b]), float(np.asarray([a, b])[1]), bool(np.isfinite(a))) == (1.75, 2.5, True)


# --------------------------------------------------------------------------------------------------------- Fréchet


def test_frechet_by_hand() -> None:
    X, Y = np.array([[0.0], [2.0]]), np.array([[5.0], [9.0], [13.0]])
    result = metrics.frechet(X, Y)
    assert result == pytest.approx((9 - 1) ** 2 + (4 - np.sqrt(2)) ** 2)
    assert (result.n_real, result.n_fake, result.net, result.measure) == (2, 3, "features", "frechet")


def test_few_samples_are_said_and_nothing_is_shrunk() -> None:
    X, Y = sample(6, 8), sample(7, 8, seed=1)
    with pytest.warns(SmallSampleWarning, match="6 real and 7 fake samples in 8 features"):
        few = metrics.frechet(X, Y)
    from tests.numeric.test_gaussians import by_square_root

    expected = by_square_root(X.mean(0), np.cov(X.T), Y.mean(0), np.cov(Y.T))
    assert few == pytest.approx(expected, rel=1e-4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metrics.frechet(sample(9, 8), sample(9, 8, seed=1))


# ------------------------------------------------------------------------------------------------------------- KID


def mmd_by_loops(X: np.ndarray, Y: np.ndarray) -> float:
    def k(x: np.ndarray, y: np.ndarray) -> float:
        return (x @ y / len(x) + 1) ** 3

    m, n = len(X), len(Y)
    xx = sum(k(X[i], X[j]) for i in range(m) for j in range(m) if i != j) / (m * (m - 1))
    yy = sum(k(Y[i], Y[j]) for i in range(n) for j in range(n) if i != j) / (n * (n - 1))
    return xx + yy - 2 * sum(k(x, y) for x in X for y in Y) / (m * n)


@given(st.integers(2, 12), st.integers(2, 12), st.integers(0, 50))
def test_kid_is_that_of_the_loops(m: int, n: int, seed: int) -> None:
    X, Y = sample(m, seed=seed), sample(n, seed=seed + 1, shift=0.5)
    assert float(metrics.kid(X, Y)) == pytest.approx(mmd_by_loops(X, Y), abs=1e-11)


def test_kid_is_unbiased_and_its_error_is_that_of_many_samples() -> None:
    same = [metrics.kid(sample(60, 4, s), sample(60, 4, s + 9000)) for s in range(150)]
    spread = np.std([float(f) for f in same])
    assert abs(np.mean([float(f) for f in same])) < 3 * spread / np.sqrt(len(same))
    assert np.median([f.error for f in same]) == pytest.approx(spread, rel=0.5)
    far = [metrics.kid(sample(60, 4, s), sample(80, 4, s + 9000, shift=0.7)) for s in range(150)]
    assert np.median([f.error for f in far]) == pytest.approx(np.std([float(f) for f in far]), rel=0.3)


def test_kid_of_few_samples_has_no_error_and_of_float32_the_same_value(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = sample(39), sample(39, seed=1)
    assert metrics.kid(X, Y).error is None
    X, Y = sample(300, 16), sample(280, 16, 1, 0.1)
    whole = metrics.kid(X, Y)
    assert float(metrics.kid(X.astype(np.float32), Y.astype(np.float32))) == pytest.approx(float(whole), abs=1e-6)
    monkeypatch.setattr(metrics, "TILE", 7)
    tiled = metrics.kid(X, Y)
    assert float(tiled) == pytest.approx(float(whole), abs=1e-12)
    assert tiled.error == pytest.approx(whole.error, rel=1e-9)


# ---------------------------------------------------------------------------- precision, recall, density, coverage


def by_loops(X: np.ndarray, Y: np.ndarray, k: int) -> dict[str, float]:
    def d(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.sqrt(((a - b) ** 2).sum()))

    def radii(Z: np.ndarray) -> list[float]:
        return [sorted(d(Z[i], Z[j]) for j in range(len(Z)) if j != i)[k - 1] for i in range(len(Z))]

    rx, ry = radii(X), radii(Y)
    return {
        "precision": float(np.mean([any(d(x, y) <= r for x, r in zip(X, rx, strict=True)) for y in Y])),
        "recall": float(np.mean([any(d(x, y) <= r for y, r in zip(Y, ry, strict=True)) for x in X])),
        "density": float(np.mean([sum(d(x, y) <= r for x, r in zip(X, rx, strict=True)) / k for y in Y])),
        "coverage": float(np.mean([any(d(x, y) <= r for y in Y) for x, r in zip(X, rx, strict=True)])),
    }


@given(st.integers(5, 12), st.integers(5, 12), st.integers(1, 4), st.integers(0, 100))
def test_the_four_are_those_of_the_loops(m: int, n: int, k: int, seed: int) -> None:
    X, Y = sample(m, seed=seed), sample(n, seed=seed + 1, shift=0.8)
    result = metrics.support(X, Y, k=k)
    for name, value in by_loops(X, Y, k).items():
        assert float(getattr(result, name)) == pytest.approx(value), name
        assert getattr(result, name).k == k
    wanted = {"frechet": float(metrics.frechet(X, Y)), **by_loops(X, Y, k)}
    assert {name: float(value) for name, value in metrics.measures(X, Y, k=k).items()} == pytest.approx(wanted)


def test_the_four_by_hand() -> None:
    """Real 0, 1, 2.5 (k = 1: radii 1, 1, 1.5); fake 0.5, 3, 30 (radii 2.5, 2.5, 27)."""
    result = metrics.support(np.array([[0.0], [1.0], [2.5]]), np.array([[0.5], [3.0], [30.0]]), k=1)
    assert float(result.precision) == pytest.approx(2 / 3)
    assert float(result.density) == pytest.approx(3 / 3)
    assert float(result.coverage) == 1.0
    assert float(result.recall) == 1.0


def test_the_uncovered_are_those_outside_every_fake_ball_the_farthest_first() -> None:
    """Fake 0, 1 (radii 1): the balls reach from −1 to 2."""
    result = metrics.support(np.array([[0.3], [5.0], [-1.5], [2.5], [9.0]]), np.array([[0.0], [1.0]]), k=1)
    assert result.uncovered.tolist() == [4, 1, 2, 3] or result.uncovered.tolist() == [4, 1, 3, 2]
    np.testing.assert_allclose(result.real.margin[[4, 1, 2, 3]], [7, 3, 0.5, 0.5])
    assert 1 - float(result.recall) == pytest.approx(len(result.uncovered) / 5)


@given(st.integers(4, 30), st.integers(1, 3), st.integers(0, 100), st.integers(1, 5))
def test_a_sample_covers_itself_even_with_duplicates(n: int, k: int, seed: int, copies: int) -> None:
    X = np.repeat(sample(n, seed=seed), copies, axis=0)
    result = metrics.support(X, X, k=k)
    assert float(result.precision) == float(result.recall) == float(result.coverage) == 1.0
    assert len(result.uncovered) == 0


def test_quality_and_diversity_are_told_apart() -> None:
    """A narrow model is precise and recalls little; a wide one recalls and is not precise."""
    X = sample(400)
    narrow, wide = (metrics.support(X, scale * sample(400, seed=1)) for scale in (0.4, 2.5))
    assert narrow.precision > wide.precision + 0.2
    assert wide.recall > narrow.recall + 0.2


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda X: metrics.support(X, X, k=0), "k"),
        (lambda X: metrics.support(X, X, k=len(X)), "k"),
        (lambda X: metrics.support(X, X[:3], k=3), "k"),
        (lambda X: metrics.frechet(X, X[:, :2]), "fake"),
        (lambda X: metrics.frechet(X[:1], X), "real"),
        (lambda X: metrics.frechet(X, np.full((5, 3), np.nan)), "fake"),
        (lambda X: metrics.kid(Features(X, "a"), Features(X, "b")), "features of b, but real of a"),
        (lambda X: metrics.kid(X, 3), "fake"),
        (lambda X: metrics.kid("/no/such/folder", X), "no such file or folder"),
        (lambda X: metrics.kid(X, X, features=3), "features"),
    ],
)
def test_wrong_arguments_are_named(call, name: str) -> None:
    with pytest.raises((InputError, OSError), match=name):
        call(sample(10))
