"""What the data decides: start, ρ and rule on inner folds; whitening and its shrinkage; scores that compare metrics."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from likewise import numeric
from likewise.sets import selection
from likewise.sets.lmnn import WassersteinLMNN
from likewise.sets.objective import Task
from likewise.sets.transport import solvers as transport
from likewise.types import Signature

CELLS = [(start, rho) for start in selection.STARTS for rho in selection.RHOS]


def correlated(seed, classes=4, per_class=6, d=10, points=5):
    """Classes apart along quiet axes; members of a class differ along loud ones, the same for all classes."""
    rng = np.random.default_rng(77)
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    centre = np.zeros((classes, d))
    centre[:, :3] = rng.normal(0, 0.6, (classes, 3))
    loud = np.r_[np.full(3, 0.15), np.full(d - 3, 3.0)]
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(classes), per_class)
    X = [(centre[c] + loud * rng.normal(size=d) + 0.3 * loud * rng.normal(size=(points, d))) @ turn for c in y]
    return X, y


# ── whitening ─────────────────────────────────────────────────────────────────────────────────────────────────────


def same_pairs(y):
    i, j = np.triu_indices(len(y), 1)
    return np.stack([i, j], axis=1)[y[i] == y[j]]


def test_the_spread_of_one_point_sets_is_the_covariance_within_classes():
    rng = np.random.default_rng(0)
    rows, y = rng.normal(size=(30, 4)), np.repeat([0, 1, 2], 10)
    result = selection.spread(transport.pack([Signature(r) for r in rows]), same_pairs(y), 0.1)
    within = np.mean([np.cov(rows[y == c].T) for c in range(3)], axis=0)
    np.testing.assert_allclose(result, within, atol=1e-10)


def test_the_spread_by_a_loop_over_plans():
    rng = np.random.default_rng(1)
    X = transport.pack([Signature(rng.normal(size=(m, 3)), rng.random(m) + 0.1) for m in (2, 4, 3)])
    S = np.array([[0, 1], [2, 0]])
    solved = transport.solve_pairs(X, X, S[:, 0], S[:, 1], 0.2, plans=True)
    expected = np.zeros((3, 3))
    for k, (i, j) in enumerate(S):
        for a, p in enumerate(X.points[X.rows(i)]):
            for b, q in enumerate(X.points[X.rows(j)]):
                expected += solved.plan(k)[a, b] * np.outer(p - q, p - q) / 4
    np.testing.assert_allclose(selection.spread(X, S, 0.2), expected, atol=1e-10)


def test_shrinkage_by_the_likelihood_of_left_out_groups():
    """Against SciPy's normal log-density, differences drawn one by one."""
    from scipy.stats import multivariate_normal

    rng = np.random.default_rng(2)
    turn = rng.normal(size=(5, 5))
    groups = [rng.normal(size=(n, 5)) @ turn for n in (6, 9, 4)]
    counts = np.array([6.0, 9.0, 4.0])
    parts = np.stack([Z.T @ Z / len(Z) for Z in groups])
    likelihood = []
    for s in selection.SHRINKAGES:
        total = 0.0
        for g, Z in enumerate(groups):
            others = np.concatenate([groups[h] for h in range(3) if h != g])
            density = multivariate_normal(np.zeros(5), selection.shrunk(others.T @ others / len(others), s))
            total += density.logpdf(Z).sum()
        likelihood.append(total)
    assert selection.shrinkage(parts, counts) == selection.SHRINKAGES[int(np.argmax(likelihood))]
    assert selection.shrinkage(parts[:1], counts[:1]) == 1.0


@settings(max_examples=30)
@given(st.integers(0, 10_000), st.integers(2, 6), st.integers(1, 5))  # on one axis every shrinkage is the same
def test_shrinkage_does_not_depend_on_units_or_axes(seed, d, groups):
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(groups, 7, d)) * rng.uniform(0.1, 3, d)
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    counts = np.full(groups, 7.0)
    one, two = (np.einsum("gni,gnj->gij", A, A) for A in (Z, 50 * Z @ turn))
    assert selection.shrinkage(one, counts) == selection.shrinkage(two, counts)


def test_whitened_the_matched_points_of_a_class_differ_alike_everywhere():
    X, y = correlated(0, per_class=60, points=1)
    sets = transport.pack([Signature(x) for x in X])
    S = same_pairs(y)
    A = selection.whitening(sets, S, y, 0.1)
    np.testing.assert_allclose(A, A.T, atol=1e-12)
    w = np.linalg.eigvalsh(selection.spread(sets.project(A), S, 0.1))
    before = np.linalg.eigvalsh(selection.spread(sets, S, 0.1))
    assert before[-1] / before[0] > 100
    assert w[-1] / w[0] < 10
    assert selection.scale_of(sets.project(A)) == pytest.approx(selection.scale_of(sets))


def test_without_any_spread_nothing_is_whitened():
    sets = transport.pack([Signature([[0.0, 1.0]]), Signature([[0.0, 1.0]]), Signature([[2.0, 3.0]])])
    np.testing.assert_array_equal(selection.whitening(sets, np.array([[0, 1]]), np.array([0, 0, 1]), 0.1), np.eye(2))


# ── the start ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_whitened_start_sees_past_loud_axes_that_all_classes_share():
    train, test = correlated(0), correlated(1, per_class=15)
    scores = {
        start: WassersteinLMNN(start=start, rho0=0.3, rhot=0.3).fit(*train).score(*test) for start in selection.STARTS
    }
    assert scores["whitened"] >= scores["identity"] + 0.1
    auto = WassersteinLMNN(multilevel=False, start="auto").fit(*train)
    assert auto.start_ == "whitened"
    assert auto.score(*test) >= scores["identity"] + 0.1


def test_before_any_step_the_metric_is_the_start():
    X, y = correlated(0)
    plain = WassersteinLMNN(start="identity", max_iter=0, multilevel=False).fit(X, y)
    np.testing.assert_allclose(plain.M0_ * plain.scale_**2, np.eye(10), atol=1e-12)
    white = WassersteinLMNN(start="whitened", max_iter=0, multilevel=False).fit(X, y)
    np.testing.assert_allclose(white.M0_, white.frame_ @ white.frame_.T, atol=1e-12)
    assert np.linalg.cond(white.M0_) > 10


def test_a_strong_regulariser_holds_the_metric_to_its_start():
    X, y = correlated(0)
    for start in selection.STARTS:
        held = WassersteinLMNN(start=start, rho0=1e4, multilevel=False).fit(X, y)
        np.testing.assert_allclose(held.M0_, held.frame_ @ held.frame_.T, rtol=0.02, atol=1e-4 * np.abs(held.M0_).max())


def test_the_objective_of_the_start_is_the_same_in_its_own_coordinates():
    """J is computed in the coordinates of the start: at the start its regulariser is 0, whatever ρ is."""
    X, y = correlated(0)
    a, b = (WassersteinLMNN(start="whitened", max_iter=0, multilevel=False, rho0=r).fit(X, y) for r in (0.1, 100.0))
    assert a.objective(X, y) == pytest.approx(b.objective(X, y), rel=1e-9)


def test_distances_of_a_whitened_model_are_those_of_transport_under_its_metric():
    X, y = correlated(0)
    model = WassersteinLMNN(start="whitened", rho0=0.3, rhot=0.3, max_iter=3, rounds=1).fit(X, y)
    P = transport.pack([Signature(x) for x in X[:4]]).project(numeric.factor(model.M0_ + model.Mt_[1]))
    D = transport.solve_all(P, None, model.gamma_).value
    np.testing.assert_allclose(model.pairwise(X[:4], X[:4], levels=[1] * 4), D, rtol=1e-5, atol=1e-7)
    twin = WassersteinLMNN.from_state(*model.state())
    assert twin.start_ == "whitened"
    assert twin.objective(X, y) == pytest.approx(model.objective(X, y))


# ── the choice ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_where_classes_share_no_spread_the_whitened_start_is_the_identity():
    """The spread of other classes then predicts a class worse than a ball does, and all is shrunk away."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 8)
    own = np.eye(8)[[2 * y, 2 * y + 1]].sum(axis=0) * -0.9 + 1.0
    X = [rng.normal(size=(4, 8)) * o for o in own]
    A = selection.whitening(transport.pack([Signature(x) for x in X]), same_pairs(y), y, 0.5)
    np.testing.assert_allclose(A, np.eye(8), atol=1e-9)


def test_the_usual_stays_unless_another_is_clearly_better():
    scores = np.full((8, 9), 0.5)
    scores[6] += 0.1
    assert selection.clearly_best(scores, CELLS) == 6
    scores[6] += np.linspace(-2, 2, 9)
    assert CELLS[selection.clearly_best(scores, CELLS)] == ("whitened", selection.USUAL_RHO)
    plain = [("identity", rho) for rho in selection.RHOS]
    assert plain[selection.usual(plain)] == ("identity", selection.USUAL_RHO)
    assert selection.usual([("identity", None)]) == 0


def test_only_what_is_auto_is_chosen():
    def cells(**options):
        return selection.candidates(WassersteinLMNN(**options))

    assert cells(start="auto") == CELLS
    assert cells() == [("whitened", rho) for rho in selection.RHOS]
    assert cells(rho0=0.1, rhot=0.2) == [("whitened", None)]
    assert cells(start="auto", rho0=0.1, rhot=0.2) == [("whitened", None), ("identity", None)]
    assert cells(max_iter=0, start="auto") == cells(normalize=False) == [("whitened", None)]
    assert cells(start="identity", normalize=False) == [("identity", None)]


def test_soft_hits_ask_who_is_nearer_not_by_how_much_a_metric_spreads():
    same = np.array([[True, False], [True, False], [True, False]])
    D = np.array([[1.0, 2.0], [1.0, 3.0], [2.0, 1.0]])
    result = selection.soft_hits(D, same)
    assert (result > 0.5).tolist() == [True, True, False]
    np.testing.assert_allclose(selection.soft_hits(7 * D, same), result)
    narrow = selection.soft_hits(100 + 1e-3 * D, same)
    assert narrow.mean() == pytest.approx(result.mean(), abs=0.1)
    assert selection.soft_hits(np.ones((2, 2)), same[:2]).tolist() == [0.5, 0.5]


def test_a_fold_s_whitening_has_not_seen_what_is_held_out():
    X, y = correlated(0)
    sets = transport.pack([Signature(x) for x in X])
    task = Task(WassersteinLMNN(), sets, y, y, 0, 0.5)
    held = np.arange(0, len(y), 3)
    A, *_ = selection.Fold(task, 4, held, False).place("whitened")
    moved = [Signature(x + 100.0 * (i in held)) for i, x in enumerate(X)]
    elsewhere = Task(WassersteinLMNN(), transport.pack(moved), y, y, 0, 0.5)
    B, *_ = selection.Fold(elsewhere, 4, held, False).place("whitened")
    np.testing.assert_array_equal(A, B)


def test_folds_of_few_sets_are_drawn_twice():
    y = np.repeat([0, 1, 2], 6)
    parts = [held for held, whole in selection.held_out(y, y, 0) if not whole]
    assert len(parts) == 2 * selection.FOLDS
    for own in (parts[: selection.FOLDS], parts[selection.FOLDS :]):
        assert sorted(np.concatenate(own).tolist()) == list(range(18))
    assert not np.array_equal(parts[0], parts[selection.FOLDS])
    many = np.repeat([0, 1, 2], selection.FEW)
    assert len(list(selection.held_out(many, many, 0))) == selection.FOLDS
    assert all(whole for _, whole in selection.held_out(np.repeat(np.arange(8), 2), np.zeros(16, dtype=int), 0))
