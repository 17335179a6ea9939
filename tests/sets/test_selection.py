"""What the data decides: start, ρ and rule on inner folds; whitening and its shrinkage; scores that compare metrics."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import likewise as lw
from likewise import numeric
from likewise.sets import selection
from likewise.sets.lmnn import WassersteinLMNN
from likewise.sets.objective import Task
from likewise.sets.selection import Choice, Start
from likewise.sets.transport import solvers as transport
from likewise.types import Signature


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


def task_of(X, y, **options):
    sets = transport.pack([Signature(x) for x in X])
    return Task(WassersteinLMNN(k_targets=len(y), **options), sets, y, y, 0, 0.1)


def test_whitened_the_matched_points_of_a_class_differ_alike_everywhere():
    X, y = correlated(0, per_class=60, points=1)
    task, S = task_of(X, y), same_pairs(y)
    condition = {}
    for power in (0.5, 1.0):
        A = selection.whitening(task, Start(power, 0.001))
        np.testing.assert_allclose(A, A.T, atol=1e-12)
        w = np.linalg.eigvalsh(selection.spread(task.sets.project(A), S, 0.1))
        condition[power] = w[-1] / w[0]
        assert selection.scale_of(task.sets.project(A)) == pytest.approx(selection.scale_of(task.sets))
    before = np.linalg.eigvalsh(selection.spread(task.sets, S, 0.1))
    assert before[-1] / before[0] > 100
    assert condition[1.0] < 2
    assert condition[0.5] == pytest.approx(np.sqrt(before[-1] / before[0]), rel=0.3)  # half of the way, in logarithms


@pytest.mark.parametrize("start", [selection.IDENTITY, Start(1.0, 1.0), Start(0.5, 1.0)])
def test_shrunk_all_the_way_or_to_the_power_0_the_start_is_the_identity(start):
    X, y = correlated(0)
    np.testing.assert_allclose(selection.whitening(task_of(X, y), start), np.eye(10), atol=1e-9)


@settings(max_examples=15)
@given(st.integers(0, 10_000), st.sampled_from([Start(1.0, 0.5), Start(1.0, 0.1), Start(0.5, 0.1)]))
def test_a_whitening_turns_and_scales_with_the_axes(seed, start):
    rng = np.random.default_rng(seed)
    X, y = [rng.normal(size=(3, 4)) * rng.uniform(0.3, 3, 4) for _ in range(8)], np.repeat([0, 1], 4)
    turn = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    one, two = task_of(X, y), task_of([5 * x @ turn for x in X], y)
    A, B = selection.whitening(one, start), selection.whitening(replace(two, gamma=one.gamma * 25), start)
    np.testing.assert_allclose(turn @ B @ turn.T, A, rtol=1e-4, atol=1e-6)


def test_without_any_spread_nothing_is_whitened():
    task = task_of([[[0.0, 1.0]], [[0.0, 1.0]], [[2.0, 3.0]], [[2.0, 3.0]]], np.array([0, 0, 1, 1]))
    np.testing.assert_array_equal(selection.whitening(task, Start(1.0, 0.1)), np.eye(2))


# ── the start ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_whitened_start_sees_past_loud_axes_that_all_classes_share():
    train, test = correlated(0), correlated(1, per_class=15)
    scores = {
        start: WassersteinLMNN(start=start, rho0=0.3, rhot=0.3).fit(*train).score(*test) for start in selection.STARTS
    }
    assert scores["whitened"] >= scores["identity"] + 0.1
    auto = WassersteinLMNN(multilevel=False).fit(*train)
    assert auto.start_ in selection.STARTS["whitened"]
    assert auto.score(*test) >= scores["identity"] + 0.1
    told = auto.selection_["start"]
    assert told["usual"] == "power 0, shrinkage 1"
    assert told["gain"] > told["error"] > 0
    assert told["gain"] == pytest.approx(told["scores"][told["chosen"]] - told["scores"][told["usual"]], abs=2e-4)


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
    D = transport.solve_all(P, None, model.gamma_, value="divergence").value
    np.testing.assert_allclose(model.pairwise(X[:4], X[:4], levels=[1] * 4), D, rtol=1e-5, atol=1e-6)
    twin = WassersteinLMNN.from_state(*model.state())
    assert twin.start_ == model.start_
    assert model.start_ in selection.STARTS["whitened"]
    assert twin.selection_ == model.selection_
    assert twin.objective(X, y) == pytest.approx(model.objective(X, y))


# ── the choice ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_usual_stays_unless_another_is_clearly_better():
    scores = np.full((8, 9), 0.5)
    scores[6] += 0.1
    assert selection.clearly_best(scores, 3) == 6
    scores[6] += np.linspace(-2, 2, 9)
    assert selection.clearly_best(scores, 3) == 3
    assert selection.clearly_best(scores[:, :1], 3) == 3  # one value has no error


def chosen(X, y, levels=0, **options):
    estimator = WassersteinLMNN(**options)
    sets = transport.pack([Signature(x) for x in X])
    codes = np.unique(y, return_inverse=True)[1]
    return selection.choose(Task(estimator, sets, codes, codes, levels, 0.1), len(np.unique(y)))


def test_only_what_is_auto_is_chosen():
    X, y = correlated(0)
    all_open = chosen(X, y)
    assert list(all_open.told["start"]["scores"]) == [
        f"power {power:g}, shrinkage {shrinkage:g}" for power, shrinkage in ((0, 1), (1, 0.5), (1, 0.1), (0.5, 0.1))
    ]
    assert list(all_open.told["gamma"]["scores"]) == ["0.2", "0.05", "1"]
    assert list(all_open.told["rho"]["scores"]) == ["inf", "1", "0.3", "0.1", "0.03"]
    given_all = chosen(X, y, start="whitened", gamma=0.1, rho0=0.1, rhot=0.2)
    assert given_all.blur is None
    assert given_all.rho == (0.1, 0.2)
    assert "rho" not in given_all.told
    closed = chosen(X, y, start="identity", gamma=0.1, rho0=0.1, rhot=0.2)
    assert closed == Choice(selection.IDENTITY, None, (0.1, 0.2), "gallery", closed.told)
    assert closed.told["folds"] == 0
    assert "rho" not in chosen(X, y, max_iter=0).told
    paper = chosen(X, y, normalize=False, rule="gallery")
    assert (paper.start, paper.blur, paper.rho) == (selection.IDENTITY, selection.BLURS[0], (1.0, 1.0))


def test_with_few_sets_a_class_the_usual_stays():
    X, y = correlated(0, per_class=selection.ENOUGH - 1)
    few = chosen(X, y)
    assert (few.start, few.blur, few.rho[0]) == (selection.IDENTITY, selection.BLUR, selection.USUAL_RHO)
    assert not few.told["enough"]
    assert not {"gamma", "start", "rho"} & set(few.told)
    X, y = correlated(0, per_class=2)  # nobody can be held out but whole classes, and they are few
    assert np.isinf(chosen(X, y).rho[0])
    assert np.isinf(WassersteinLMNN().fit(X, y).rho_[0])


def test_where_labels_mean_nothing_no_choice_gains_much():
    rng = np.random.default_rng(3)
    X, y = [rng.normal(size=(4, 6)) for _ in range(60)], np.repeat(np.arange(3), 20)
    told = chosen(X, y).told
    assert abs(told["rho"]["gain"]) < 0.1
    assert told["rho"]["scores"]["inf"] == pytest.approx(0.5, abs=0.1)


def test_a_model_that_learns_nothing_is_the_unlearned_distance_and_can_be_kept():
    X, y = correlated(0, per_class=2)
    model = WassersteinLMNN().fit(X, y)
    assert model.history_ == []
    D = lw.sets.distances(X, metric=model.M0_, gamma=model.gamma_)
    np.testing.assert_allclose(model.M0_ * model.scale_**2, np.eye(10), atol=1e-12)
    np.testing.assert_allclose(model.pairwise(X, levels=y), D, rtol=1e-5, atol=1e-6)
    arrays, header = model.state()
    twin = WassersteinLMNN.from_state(arrays, json.loads(json.dumps(header, allow_nan=False)))
    assert twin.rho_ == model.rho_
    np.testing.assert_array_equal(twin.pairwise(X, levels=y), model.pairwise(X, levels=y))


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
    place, held = (Start(1.0, 0.1), 0.2), np.arange(0, len(y), 3)
    A, *_ = selection.Fold(task_of(X, y), 4, held, False).place(place)
    moved = [x + 100.0 * (i in held) for i, x in enumerate(X)]
    B, *_ = selection.Fold(task_of(moved, y), 4, held, False).place(place)
    np.testing.assert_array_equal(A, B)
    C, *_ = selection.Fold(task_of(moved, y), 4, held[1:], False).place(place)
    assert not np.allclose(A, C)


def test_of_many_sets_a_draw_decides():
    rng = np.random.default_rng(0)
    sizes = np.array([100, 40, 8, 2])
    y = np.repeat(np.arange(4), sizes)
    task = task_of(list(rng.normal(size=(150, 1, 2))), y)
    assert selection.thinned(task, 150) is task
    some = selection.thinned(task, 60)
    assert np.bincount(some.y).tolist() == [40, 16, 4, 2]
    whole = {tuple(p): c for p, c in zip(task.sets.points, task.y, strict=True)}
    assert [whole[tuple(p)] for p in some.sets.points] == some.y.tolist()
    pairs = selection.thinned(task_of(list(rng.normal(size=(200, 1, 2))), np.repeat(np.arange(100), 2)), 40)
    assert set(np.bincount(pairs.y).tolist()) == {0, 2}  # whole classes
    assert 40 <= len(pairs.y) <= 60


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
