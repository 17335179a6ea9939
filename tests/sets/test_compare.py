"""compare and distances: what comes in, what comes out, what is refused."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from tests.sets.transport.oracles import ragged

import likewise as lw

SETS = ragged(6, seed=2, low=2)
P, Q = SETS[0], SETS[1]


def test_json_has_the_plan_and_reads_back(tmp_path):
    result = lw.sets.compare(P, Q)
    result.to_json(tmp_path / "a" / "compare.json")
    read = json.loads((tmp_path / "a" / "compare.json").read_text())
    np.testing.assert_allclose(read["plan"], result.plan)
    assert read["distance"] == result.distance
    assert read["gamma"] == result.gamma
    assert f"plan {len(P[0])}×{len(Q[0])}, converged in" in repr(result)


def test_rows_of_a_matrix_are_sets_of_one_point():
    X = np.random.default_rng(0).normal(size=(7, 3))
    D = lw.sets.distances(X, gamma=0.5)
    np.testing.assert_allclose(D, ((X[:, None] - X[None]) ** 2).sum(-1), atol=1e-9)


def test_a_metric_is_a_change_of_coordinates():
    L = np.random.default_rng(0).normal(size=(3, 2))
    plain = lw.sets.distances([(p @ L, a) for p, a in SETS], gamma=0.7)
    np.testing.assert_allclose(lw.sets.distances(SETS, gamma=0.7, metric=L @ L.T), plain, rtol=1e-6)


NAN = np.array([[0.0, np.nan]])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: lw.sets.compare(NAN, [[0.0, 1.0]]), "points of p contain NaN"),
        (lambda: lw.sets.compare([[0.0, 1.0]], ([[0.0, 1.0]], [-1.0])), "weights of q: the smallest is -1"),
        (lambda: lw.sets.compare([[0.0, 1.0]], ([[0.0, 1.0]], [0.0])), "sum to 0; give at least one positive"),
        (lambda: lw.sets.compare([[0.0, 1.0]], ([[0.0, 1.0]], [1.0, 1.0])), r"expected \(1,\), one a point"),
        (lambda: lw.sets.compare([[0.0, 1.0]], [[0.0, 1.0, 2.0]]), "expected points of 2 dimensions"),
        (lambda: lw.sets.compare(np.zeros((0, 2)), [[0.0, 1.0]]), "points of p: the set is empty"),
        (lambda: lw.sets.compare(np.zeros((2, 2, 2)), [[0.0, 1.0]]), r"expected \(m, d\), got shape \(2, 2, 2\)"),
        (lambda: lw.sets.compare(P, Q, gamma=0), "gamma: expected"),
        (lambda: lw.sets.compare(P, Q, gamma=np.nan), "gamma: expected"),
        (lambda: lw.sets.compare(P, Q, gamma="small"), "gamma: expected"),
        (lambda: lw.sets.compare(P, Q, value="emd"), "value: expected .kl. or .paper. or .divergence. or .sharp."),
        (lambda: lw.sets.compare(P, Q, metric=-np.eye(3)), "metric is not positive semi-definite"),
        (lambda: lw.sets.compare(P, Q, metric=np.eye(2)), r"metric: expected shape \(3, 3\), got \(2, 2\)"),
        (lambda: lw.sets.compare(P, Q, metric=np.triu(np.ones((3, 3)))), "metric is not symmetric"),
        (lambda: lw.sets.compare(P, Q, metric=np.full((3, 3), np.inf)), "metric contains NaN or infinity"),
        (lambda: lw.sets.compare(P, Q, tol=0), "tol: expected"),
        (lambda: lw.sets.distances([]), "X: expected at least one set"),
        (lambda: lw.sets.distances(5), "X: expected a sequence of sets"),
        (lambda: lw.sets.distances(lw.Signature([[1.0]])), "put it in a list"),
        (lambda: lw.sets.distances([P[0], np.zeros((2, 5))]), "signature 1 has 5 dimensions where signature 0 has 3"),
        (lambda: lw.sets.distances([P[0]], [np.zeros((2, 5))]), "Y: expected points of 3 dimensions"),
        (lambda: lw.sets.distances([P[0], NAN]), r"X\[1\] contain NaN"),
        (lambda: lw.sets.distances(SETS, n_jobs=0), "n_jobs"),
        (lambda: lw.sets.distances(SETS, n_jobs=1.5), "n_jobs"),
        (lambda: lw.sets.distances(SETS, backend="jax"), "backend: expected auto, numba or torch"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(lw.InputError, match=words):
        call()


def test_a_problem_that_does_not_converge_says_so_once(monkeypatch):
    from likewise.sets.transport import solvers as transport

    slow = transport.sinkhorn
    monkeypatch.setattr(transport.panels, "solve_pairs", lambda *_: None)
    monkeypatch.setattr(transport, "sinkhorn", lambda *a, **k: slow(*a, **{**k, "max_iter": 1, "tol": 1e-14}))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        result = lw.sets.compare(P, Q, gamma=1e-3, tol=1e-14)
    assert not result.converged
    assert "not converged" in repr(result)
    assert [w.category for w in seen] == [lw.ConvergenceWarning]


def test_the_function_wins_over_the_module_of_its_name():
    import likewise.sets.compare  # noqa: F401

    assert callable(lw.sets.compare)
