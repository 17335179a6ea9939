"""The estimator: what it learns, how it decides, what it refuses, scikit-learn, files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError as NotFittedByScikitLearn
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import likewise as lw
from likewise import numeric
from likewise.errors import ConfigError, InputError, LikewiseError, NotFittedError, ShapeError
from likewise.sets import objective as ml
from likewise.sets import selection
from likewise.sets.data import PointTransformer
from likewise.sets.lmnn import WassersteinLMNN, principal_axes
from likewise.sets.transport import solvers as transport
from likewise.store import checkpoint
from likewise.train.options import list_options
from likewise.types import Signature

FIXED = {"rho0": 0.3, "rhot": 0.3, "start": "identity"}
QUICK = {"max_iter": 8, "rounds": 2, **FIXED}


def planted(seed=0, classes=4, per_class=8, d=8, noise=1.5, shared=False):
    """Sets that agree within a class in two coordinates only: its own two, or the same two for all if `shared`."""
    rng = np.random.default_rng(1000)
    where = [np.array([0, 1]) if shared else np.array([2 * c, 2 * c + 1]) % d for c in range(classes)]
    centre = rng.normal(0, 1.5, (classes, 2))
    rng = np.random.default_rng(seed)
    X, y = [], []
    for c in range(classes):
        for _ in range(per_class):
            m = rng.integers(3, 7)
            points = rng.normal(0, noise, (m, d)) + rng.normal(0, noise, d)
            points[:, where[c]] = centre[c] + rng.normal(0, 0.2, (m, 2))
            X.append(points)
            y.append(f"class {c}")
    return X, np.array(y)


@pytest.fixture(scope="module")
def train():
    return planted(0)


@pytest.fixture(scope="module")
def test():
    return planted(1, per_class=12)


@pytest.fixture(scope="module")
def fitted(train):
    return WassersteinLMNN(**QUICK).fit(*train)


@pytest.fixture(scope="module")
def world_with_relations():
    """Families of two, in two relations; a relation's members resemble each other in its own coordinates."""
    rng = np.random.default_rng(5)
    X, families, relations = [], [], []
    for f in range(24):
        relation = f % 2
        face = rng.normal(0, 1, 2)
        for _ in range(2):
            points = rng.normal(0, 1.0, (4, 6))
            points[:, 2 * relation : 2 * relation + 2] = face + rng.normal(0, 0.15, (4, 2))
            X.append(points)
            families.append(f)
            relations.append(("fs", "md")[relation])
    return X, families, relations


# ── learning ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_learned_beats_unlearned_and_levels_beat_global_where_classes_differ(train, test):
    """The planted world: each class agrees in coordinates of its own, which one shared metric cannot express."""
    scores = {}
    for name, options_ in {
        "none": {"max_iter": 0, "multilevel": False, "start": "identity"},
        "global": {"multilevel": False},
        "levels": {},
    }.items():
        scores[name] = WassersteinLMNN(**options_).fit(*train).score(*test)
    assert scores["levels"] >= scores["none"] + 0.1
    assert scores["levels"] >= scores["global"] + 0.05


def test_global_finds_the_shared_subspace():
    train, test = planted(0, shared=True, noise=2.5), planted(1, shared=True, noise=2.5)
    learned = WassersteinLMNN(multilevel=False).fit(*train)
    unlearned = WassersteinLMNN(multilevel=False, max_iter=0, start="identity").fit(*train)
    assert learned.score(*test) >= unlearned.score(*test) + 0.1
    planted_energy = np.trace(learned.M0_[:2, :2]) / np.trace(learned.M0_)
    assert planted_energy > 0.5  # 2 of 8 coordinates have more than half of the metric


def test_fit_leaves_what_it_promises(fitted, train):
    d = train[0][0].shape[1]
    assert fitted.M0_.shape == (d, d)
    assert list(fitted.Mt_) == fitted.levels_ == sorted(set(train[1].tolist()))
    for M in [fitted.M0_, *fitted.Mt_.values()]:
        numeric.psd(M, dim=d)
    assert fitted.classes_.tolist() == sorted(set(train[1].tolist()))
    assert fitted.rule_ == "gallery"
    assert fitted.n_features_in_ == d
    for record in fitted.history_:
        assert {"round", "iteration", "objective", "active", "triplets", "step", "seconds"} <= set(record)
    assert fitted.history_[-1]["objective"] < fitted.history_[0]["objective"]


def test_history_has_the_true_objective(train):
    X, y = train
    model = WassersteinLMNN(max_iter=5, rounds=1, **FIXED).fit(X, y)
    unit = selection.scaled(model._gallery.sets, 1 / model.scale_)
    task = ml.Task(model, unit, model._gallery.y, model._gallery.level, 4, model.gamma_)
    J, _ = ml.problem(task, ml.start(unit.dim, 4), model.rho_)  # its R is at the start, that of the only round
    blocks = np.stack([model.M0_, *model.Mt_.values()]) * model.scale_**2
    assert J(blocks).objective == pytest.approx(model.history_[-1]["objective"], rel=1e-6)


def test_gamma_auto_is_in_the_units_of_the_start(train):
    points = np.concatenate(train[0])
    C = numeric.squared_distances(points, points)[np.triu_indices(len(points), 1)]
    for options, scale, gamma in (({}, np.sqrt(np.median(C)), 0.2), ({"normalize": False}, 1, 0.2 * np.median(C))):
        model = WassersteinLMNN(max_iter=0, **options).fit(*train)
        assert (model.scale_, model.gamma_) == pytest.approx((scale, gamma), rel=1e-9)


def test_scale_of_the_input_does_not_matter(train, test):
    X, y = train
    a = WassersteinLMNN(**QUICK).fit(X, y)
    b = WassersteinLMNN(**QUICK).fit([1000 * x for x in X], y)
    np.testing.assert_allclose(a.M0_, b.M0_ * 1e6, rtol=1e-3, atol=1e-5)
    assert (a.predict(test[0]) == b.predict([1000 * x for x in test[0]])).mean() > 0.95


@pytest.mark.parametrize("multilevel", [True, False])
def test_the_printed_solver_lowers_the_objective(train, multilevel):
    raw = WassersteinLMNN.paper(k_targets=2, k_impostors=3, multilevel=multilevel, max_iter=8, rounds=2).fit(*train)
    assert raw.rho_ == (1.0, 0.25 if multilevel else 1.0)
    assert all(np.linalg.eigvalsh(M)[0] > -1e-9 for M in raw.Mt_.values())
    model = WassersteinLMNN.paper(multilevel=multilevel, normalize=True, init="identity", **QUICK).fit(*train)
    start = WassersteinLMNN(multilevel=multilevel, max_iter=0, **FIXED).fit(*train)
    assert model.objective(*train) < start.objective(*train)


def test_divergence_can_be_trained(train, test):
    model = WassersteinLMNN(value="divergence", **QUICK).fit(*train)
    assert model.score(*test) > 0.5
    x = train[0][0]
    assert model.pair_distance([(x, x)])[0] == pytest.approx(0, abs=1e-6)


def test_more_dimensions_than_sets():
    rng = np.random.default_rng(0)
    X = [rng.normal(size=(3, 40)) + 2 * (i % 2) * np.eye(40)[0] for i in range(8)]
    model = WassersteinLMNN(**QUICK).fit(X, np.arange(8) % 2)
    assert np.isfinite(model.M0_).all()
    numeric.psd(model.M0_)


@pytest.mark.slow
def test_rho_auto_learns_where_there_is_much_to_learn(train):
    told = WassersteinLMNN(max_iter=1, rounds=1).fit(*train).selection_["rho"]
    assert told["scores"]["0.3"] > told["scores"]["inf"] + 0.02
    assert told["chosen"] in ("0.3", "0.1", "0.03")
    assert WassersteinLMNN(max_iter=1, rounds=1, rho0=0.7).fit(*train).rho_[0] == 0.7


def test_same_seed_same_bytes(train):
    a, b = (WassersteinLMNN(rule="auto", max_iter=4, rounds=1, seed=3, **FIXED).fit(*train) for _ in range(2))
    assert a.M0_.tobytes() == b.M0_.tobytes()
    assert all(a.Mt_[t].tobytes() == b.Mt_[t].tobytes() for t in a.levels_)
    assert a.rule_ == b.rule_


def test_levels_given_by_the_user(world_with_relations):
    X, y, relations = world_with_relations
    model = WassersteinLMNN(**QUICK).fit(X, y, levels=relations)
    assert model.levels_ == ["fs", "md"]
    by_signature = WassersteinLMNN(**QUICK).fit([Signature(x, level=t) for x, t in zip(X, relations, strict=True)], y)
    np.testing.assert_array_equal(model.M0_, by_signature.M0_)
    own = {t: np.diag(model.metric(t)) for t in model.levels_}
    assert own["fs"][:2].sum() > own["md"][:2].sum()
    assert own["md"][2:4].sum() > own["fs"][2:4].sum()


def test_imbalanced_classes():
    X, y = planted(0)
    keep = [i for i in range(len(y)) if y[i] != "class 0" or i < 2]
    model = WassersteinLMNN(**QUICK).fit([X[i] for i in keep], y[keep])
    Xt, yt = planted(1)
    assert "class 0" in model.predict(Xt)
    assert model.score(Xt, yt) > 0.5


# ── principal axes ────────────────────────────────────────────────────────────────────────────────────────────────


def test_axes_are_those_of_scikit_learn():
    draw = np.random.default_rng(0)
    sets = [Signature(draw.normal(size=(m, 6)) * [5, 4, 3, 2, 1, 0.5]) for m in (4, 7, 5)]
    peer = PCA(3).fit(np.concatenate([s.points for s in sets]))
    np.testing.assert_allclose(np.abs(peer.components_ @ principal_axes(sets, 3)), np.eye(3), atol=1e-9)


@pytest.mark.parametrize("points", [np.outer(np.arange(4.0), [1, 2, 3]), np.ones((3, 3))])
def test_axes_without_spread_go(points):
    assert principal_axes([Signature(points)], 3).shape == (3, 1)


def test_learning_on_axes_is_learning_on_projected_sets(train, test):
    X, y = train
    model = WassersteinLMNN(n_components=5, **QUICK).fit(X, y)
    assert (model.n_features_in_, model.M0_.shape, model.axes_.shape) == (8, (5, 5), (8, 5))
    plain = WassersteinLMNN(**QUICK).fit([x @ model.axes_ for x in X], y)
    np.testing.assert_allclose(model.M0_, plain.M0_, rtol=1e-9, atol=1e-12)
    assert model.predict(test[0]).tolist() == plain.predict(model.project(test[0])).tolist()
    alike = model.compare(X[0], X[9], level="class 1")
    assert alike.distance == pytest.approx(model.pair_distance([(X[0], X[9])], levels=["class 1"])[0], rel=1e-9)
    assert model.compare(X[0], X[9], gamma=2.0, value="sharp").value == "sharp"
    twin = WassersteinLMNN.from_state(*stored(model))
    np.testing.assert_array_equal(twin.pairwise(test[0][:2]), model.pairwise(test[0][:2]))


# ── distances ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_point_sets_are_the_squared_mahalanobis_distance(train):
    """Exactly, for every γ and every level."""
    rng = np.random.default_rng(0)
    rows, y = rng.normal(size=(12, 3)), np.arange(12) % 3
    for gamma in ("auto", 0.01, 10.0):
        model = WassersteinLMNN(gamma=gamma, **QUICK).fit(rows, y)
        D = model.pairwise(rows, rows, levels=y.tolist())
        for j in range(12):
            M = model.M0_ + model.Mt_[int(y[j])]
            np.testing.assert_allclose(
                D[:, j], numeric.mahalanobis(rows, rows[j : j + 1], M)[:, 0], rtol=1e-9, atol=1e-12
            )


@settings(max_examples=10)
@given(st.integers(0, 1000))
def test_order_of_sets_and_points_and_zero_weights_do_not_matter(fitted, seed):
    rng = np.random.default_rng(seed)
    p, q = rng.normal(size=(4, 8)), rng.normal(size=(5, 8))
    a = fitted.pair_distance([(p, q)])
    shuffled = rng.permutation(4)
    padded = (np.vstack([q, 9 * np.ones((2, 8))]), np.r_[np.full(5, 0.2), 0, 0])
    np.testing.assert_allclose(fitted.pair_distance([(p[shuffled], padded), (q, p)]), [a[0]] * 2, rtol=1e-6)


def test_the_plan_has_the_marginals(fitted):
    rng = np.random.default_rng(0)
    p = Signature(rng.normal(size=(3, 8)), [0.5, 0, 0.5])
    F = fitted.transport_plan(p, rng.normal(size=(4, 8)), level="class 2")
    assert F.shape == (3, 4)
    np.testing.assert_allclose(F.sum(1), [0.5, 0, 0.5], atol=1e-6)
    np.testing.assert_allclose(F.sum(0), np.full(4, 0.25), atol=1e-6)


# ── erratum 7: rules at test time ─────────────────────────────────────────────────────────────────────────────────


def test_rule_gallery_is_the_nearest_under_its_own_metric(fitted, test, train):
    X, y = test[0][:6], train[1]
    D = np.array([[fitted.pair_distance([(x, g)], levels=[t])[0] for g, t in zip(train[0], y, strict=True)] for x in X])
    np.testing.assert_allclose(fitted.pairwise(X), D, rtol=1e-6)
    assert fitted.predict(X).tolist() == y[D.argmin(axis=1)].tolist()


@pytest.mark.parametrize("rule", ["global", "mean"])
def test_rules_global_and_mean_use_one_metric(train, test, rule):
    model = WassersteinLMNN(rule=rule, **QUICK).fit(*train)
    M = model.M0_ + (np.mean(list(model.Mt_.values()), axis=0) if rule == "mean" else 0)
    X = [Signature(x) for x in test[0][:5]]
    L = numeric.factor(M)
    P, G = transport.pack(X).project(L), transport.pack([Signature(x) for x in train[0]]).project(L)
    i, j = (a.ravel() for a in np.meshgrid(np.arange(5), np.arange(len(G)), indexing="ij"))
    D = transport.solve_pairs(P, G, i, j, model.gamma_, value="divergence").value.reshape(5, -1)
    np.testing.assert_allclose(model.pairwise(X), D, rtol=1e-6)
    assert model.predict(X).tolist() == train[1][D.argmin(axis=1)].tolist()


def test_metric_follows_the_rule(fitted):
    parts = list(fitted.Mt_.values())
    np.testing.assert_array_equal(fitted.metric("class 1"), fitted.M0_ + fitted.Mt_["class 1"])
    np.testing.assert_array_equal(fitted.metric("class 1", rule="mean"), fitted.M0_ + np.mean(parts, axis=0))
    np.testing.assert_array_equal(fitted.metric("class 1", rule="global"), fitted.M0_)
    np.testing.assert_array_equal(fitted.metric(), fitted.M0_ + np.mean(parts, axis=0))


def test_rule_auto_takes_the_best_of_the_inner_folds(train, monkeypatch):
    X, y = train
    first = WassersteinLMNN(max_iter=0).fit(X, y)
    unit = selection.scaled(first._gallery.sets, 1 / first.scale_).project(np.eye(8))
    known = {unit.points[unit.rows(i)].tobytes(): int(label[-1]) for i, label in enumerate(y)}
    for best in selection.RULES:

        def decide(self, P, rule, best=best):
            right = np.array([known[P.points[P.rows(i)].tobytes()] for i in range(len(P))])
            return right if rule == best else (right + 1) % 4

        monkeypatch.setattr(selection.Gallery, "decide", decide)
        assert WassersteinLMNN(rule="auto", max_iter=0, start="identity").fit(X, y).rule_ == best


def test_inner_folds_leave_two_of_every_class():
    y = np.repeat([0, 1, 2], [2, 3, 11])
    parts = selection.inner_folds(y, seed=0)
    held = np.concatenate(parts)
    assert len(held) == len(set(held.tolist())) == 14  # the class of two is never held out
    for fold in parts:
        assert np.bincount(np.delete(y, fold), minlength=3).min() >= 2
    assert selection.inner_folds(np.array([0, 0, 1, 1]), seed=0) == []


def test_rule_auto_with_families_of_two_holds_out_families(world_with_relations):
    X, y, relations = world_with_relations
    model = WassersteinLMNN(rule="auto", **QUICK).fit(X, y, levels=relations)
    assert model.rule_ in ("gallery", "global", "mean")
    assert WassersteinLMNN(rule="auto", max_iter=2, rounds=1, **FIXED).fit(X, y).rule_ in ("global", "mean")


def test_an_unseen_level_is_refused_unless_the_rule_needs_none(fitted, train):
    X, uncle = train[0], Signature(train[0][1], level="uncle")
    for ask in (lambda: fitted.pair_distance([(X[0], uncle)]), lambda: fitted.pairwise(X[:1], [uncle])):
        with pytest.raises(InputError, match=r"level 'uncle' was not seen.*class 0.*rule='global'"):
            ask()
    for rule in ("global", "mean"):
        model = WassersteinLMNN(rule=rule, max_iter=0).fit(*train)
        assert model.pair_distance([(X[0], X[1])], levels=["uncle"])[0] > 0


def test_votes():
    D = np.array([[3.0, 1.0, 2.0, 4.0], [1.0, 2.0, 3.0, 4.0]])
    y = np.array([0, 1, 0, 0])
    assert selection.vote(D, y, 1, 2).tolist() == [1, 0]
    assert selection.vote(D, y, 3, 2).tolist() == [0, 0]
    assert selection.vote(D, y, 2, 2).tolist() == [1, 0]  # one vote each: the nearer wins
    assert selection.vote(D, y, 99, 2).tolist() == [0, 0]


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────────────────


def good():
    X, y = planted(0, per_class=3)
    return X, y.tolist()


def replaced(value):
    X, y = good()
    X[1] = value
    return X, y


BAD = {
    "NaN": (replaced(np.full((2, 8), np.nan)), r"X\[1\].*NaN"),
    "other dimension": (replaced(np.ones((2, 7))), r"7 features, .* expecting 8 features as input \(X\[1\]\)"),
    "no sets": (([], []), "X: .*at least one"),
    "short y": ((good()[0], good()[1][:-1]), "y: expected 12 labels.*got 11"),
    "one class": ((good()[0], ["a"] * 12), "two classes"),
    "one member": ((good()[0], ["lone"] + ["a"] * 5 + ["b"] * 6), "'lone' has one member"),
    "measurements": ((good()[0], np.linspace(0, 1, 12)), "continuous"),
    "mixed labels": ((good()[0], np.array([1, "a"] * 6, dtype=object)), "Unknown label type"),
    "not a sequence": ((7, [1]), "sequence"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_with_a_reason(case):
    (X, y), words = BAD[case]
    model = WassersteinLMNN(**QUICK)
    with pytest.raises(InputError, match=words):
        model.fit(X, y)
    assert not hasattr(model, "M0_")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("gamma", 0),
        ("gamma", "small"),
        ("mu", 1.5),
        ("rule", "best"),
        ("value", "sharp"),
        ("tol", 0),
        ("init", "zero"),
    ],
)
def test_bad_options_are_refused(train, option, value):
    with pytest.raises(ConfigError, match=option):
        WassersteinLMNN(**{option: value}).fit(*train)


def test_bad_questions_are_refused(fitted, train):
    (X, y), new = train, WassersteinLMNN()
    a, b = Signature(X[0], level="class 0"), Signature(X[1], level="class 1")
    for ask, kind, words in (
        (lambda: new.predict(X), NotFittedError, "fit"),
        (lambda: new.state(), NotFittedError, "fit"),
        (lambda: new.fit(X, y, levels=["a"]), ShapeError, "levels: expected 32"),
        (lambda: new.fit(X, y, levels=[None] * 32), InputError, "None is not a level"),
        (lambda: fitted.predict([np.ones((2, 5))]), ShapeError, r"5 features.*expecting 8"),
        (lambda: fitted.pair_distance([X[0][:1]]), InputError, r"pairs\[0\]"),
        (lambda: fitted.pair_distance([(a, X[1])], levels=["class 0", "x"]), ShapeError, "levels: expected 1"),
        (lambda: fitted.pair_distance([(a, b)]), InputError, r"'class 0' and 'class 1'.*levels="),
    ):
        with pytest.raises(kind, match=words):
            ask()
    assert fitted.pair_distance([]).shape == (0,)


# ── scikit-learn ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_params_are_the_options():
    model = clone(WassersteinLMNN(gamma=0.2, k_targets=2))
    assert set(model.get_params()) == {k.name for k in list_options(ml.LMNNOptions)}
    assert repr(model).startswith("WassersteinLMNN(gamma=0.2")


def test_cross_val_score_on_lists_and_object_arrays(train):
    X, y = train
    ragged = np.empty(len(X), dtype=object)
    ragged[:] = X
    pairs = [(x, np.full(len(x), 1 / len(x))) for x in X]
    scores = [cross_val_score(WassersteinLMNN(max_iter=2, rounds=1, **FIXED), Z, y, cv=3) for Z in (X, ragged, pairs)]
    np.testing.assert_array_equal(scores[0], scores[1])
    np.testing.assert_array_equal(scores[0], scores[2])
    assert scores[0].mean() > 0.3


def test_grid_search_and_pipeline(train):
    X, y = train
    steps = make_pipeline(
        FunctionTransformer(lambda Z: [2 * x for x in Z]), WassersteinLMNN(max_iter=2, rounds=1, **FIXED)
    )
    search = GridSearchCV(steps, {"wassersteinlmnn__rule": ["gallery", "global"]}, cv=2).fit(X, y)
    assert search.best_estimator_.score(X, y) > 0.5


def test_a_pipeline_scales_and_projects_the_points_of_ragged_sets(train, test):
    X, y = train
    loud = np.r_[1000.0, np.ones(7)]
    model = WassersteinLMNN(max_iter=2, rounds=1, **FIXED)
    steps = make_pipeline(PointTransformer(StandardScaler()), PointTransformer(PCA(6)), model)
    steps.fit([x * loud for x in X], y)
    rows = np.concatenate(X) * loud
    scaled = [Signature((x * loud - rows.mean(0)) / rows.std(0)) for x in X]
    np.testing.assert_allclose(steps[0].transform([X[0] * loud])[0].points, scaled[0].points)
    assert steps[1].transform(scaled)[3].points.shape == (len(X[3]), 6)
    weighted = Signature(X[0], np.arange(1.0, len(X[0]) + 1), level="t", names=[str(k) for k in range(len(X[0]))])
    kept = steps[0].transform([weighted])[0]
    assert (kept.level, list(kept.names)) == ("t", list(weighted.names))
    np.testing.assert_allclose(kept.weights, weighted.weights)
    plain = clone(model).fit([x * loud for x in X], y)
    assert steps.score([x * loud for x in test[0]], test[1]) > plain.score([x * loud for x in test[0]], test[1])
    with pytest.raises(NotFittedByScikitLearn):
        PointTransformer(PCA(2)).transform(X)


def test_neighbors_scores_and_probabilities_agree_with_prediction(fitted, train, test):
    X = test[0]
    D = fitted.pairwise(X)
    distance, near = fitted.kneighbors(X, 3)
    np.testing.assert_array_equal(np.sort(D, axis=1)[:, :3], distance)
    np.testing.assert_array_equal(np.take_along_axis(D, near, axis=1), distance)
    np.testing.assert_array_equal(fitted.kneighbors(X, return_distance=False), near[:, :1])
    np.testing.assert_array_equal(train[1][near[:, 0]], fitted.predict(X))
    scores, share = fitted.decision_function(X), fitted.predict_proba(X)
    by_hand = np.array(
        [[-min(d for d, label in zip(row, train[1], strict=True) if label == c) for c in fitted.classes_] for row in D]
    )
    np.testing.assert_array_equal(scores, by_hand)
    np.testing.assert_allclose(share, np.exp(by_hand) / np.exp(by_hand).sum(1, keepdims=True))
    np.testing.assert_array_equal(fitted.classes_[share.argmax(1)], fitted.predict(X))
    own = fitted.kneighbors(n_neighbors=2, return_distance=False)
    assert (own != np.arange(len(own))[:, None]).all()
    for k in (0, len(train[0]) + 1):
        with pytest.raises(InputError, match=f"n_neighbors: expected 1 to 32.*got {k}"):
            fitted.kneighbors(X, k)
    with pytest.raises(InputError, match="1 to 31"):
        fitted.kneighbors(n_neighbors=32)


@pytest.mark.parametrize("level", [None, "class 2"])
def test_transformed_the_learned_ground_cost_is_euclidean(fitted, test, level):
    X = test[0][:5]
    moved = fitted.transform(X, level)
    D = lw.sets.distances(moved, gamma=fitted.gamma_)
    expected = fitted.pairwise(X, X, None if level is None else [level] * 5)
    np.testing.assert_allclose(D, np.maximum(expected, 0), rtol=1e-4, atol=1e-5)
    rows = np.stack([x[0] for x in X])
    np.testing.assert_allclose(fitted.transform(rows)[3], fitted.transform([rows[3:4]])[0].points[0])


def test_complex_points_are_refused(fitted):
    for X in (np.ones((3, 8)) * 1j, [np.ones((2, 8)) * 1j]):
        with pytest.raises(InputError, match=r"[Cc]omplex"):
            fitted.predict(X)
        with pytest.raises(InputError, match=r"[Cc]omplex"):
            lw.sets.distances(X)


NOT_FOR_SETS = {
    "check_classifiers_one_label": "one class cannot be learned from: refused with that reason",
    "check_classifiers_regression_target": "measurements as labels are refused",
}


def test_scikit_learn_s_own_checks():
    """All that hold for an estimator whose rows are one-point sets."""
    failed = []
    for estimator, check in estimator_checks_generator(WassersteinLMNN(max_iter=2, rounds=1, k_impostors=5, **FIXED)):
        name = getattr(check, "func", check).__name__
        if name in NOT_FOR_SETS:
            continue
        try:
            check(estimator)
        except Exception as error:
            if type(error).__name__ != "SkipTest":
                failed.append(f"{name}: {type(error).__name__}: {str(error)[:300]}")
    assert not failed, "\n".join(failed)


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def stored(model):
    arrays, header = model.state()
    return {k: v.copy() for k, v in arrays.items()}, json.loads(json.dumps(header))


@pytest.mark.parametrize("rule", ["gallery", "mean"])
@pytest.mark.parametrize("multilevel", [True, False])
def test_state_and_back(train, test, rule, multilevel):
    model = WassersteinLMNN(rule=rule, multilevel=multilevel, max_iter=3, rounds=1, **FIXED).fit(*train)
    twin = WassersteinLMNN.from_state(*stored(model))
    assert twin.get_params() == model.get_params()
    np.testing.assert_array_equal(twin.predict(test[0][:9]), model.predict(test[0][:9]))
    np.testing.assert_array_equal(twin.pairwise(test[0][:2]), model.pairwise(test[0][:2]))
    assert twin.history_ == [{k: v for k, v in line.items() if k != "seconds"} for line in model.history_]
    assert list(twin.Mt_) == list(model.Mt_)


@pytest.mark.parametrize("labels", [[1, 2], [True, False], [0.0, 1.0], ["é", "b"]])
def test_labels_keep_their_type(labels):
    X = [np.random.default_rng(i).normal(size=(2, 3)) for i in range(6)]
    model = WassersteinLMNN(max_iter=1, rounds=1, **FIXED).fit(X, labels * 3)
    twin = WassersteinLMNN.from_state(*stored(model))
    assert twin.classes_.dtype == model.classes_.dtype
    assert twin.predict(X).tolist() == model.predict(X).tolist()
    assert list(twin.Mt_) == list(model.Mt_)


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("blocks", lambda M: -M),
        ("blocks", lambda M: M[:2]),
        ("frame", lambda A: 0 * A),
        ("axes", lambda _: np.eye(8)[:, :-1]),
        ("offsets", lambda o: o[:-1]),
        ("offsets", lambda o: o[::-1].copy()),
        ("weights", lambda w: 2 * w),
        ("points", lambda p: p[:, :-1]),
        ("points", lambda p: np.nan * p),
        ("codes", lambda c: c + 100),
        ("codes", lambda c: c.astype(float)),
        ("level", lambda c: c - 1),
        ("source", lambda _: [1]),
        ("gamma", lambda _: 0),
        ("scale", lambda _: float("nan")),
        ("rule", lambda _: "auto"),
        ("rule", lambda _: "energy"),
        ("options", lambda _: {"surprise": 1}),
        ("classes", lambda _: {"dtype": "V8", "values": []}),
    ],
)
def test_a_damaged_state_is_refused(fitted, key, change):
    arrays, header = stored(fitted)
    part = header if key in header else arrays
    part[key] = change(part.get(key))
    with pytest.raises(LikewiseError):
        WassersteinLMNN.from_state(arrays, header)


def test_labels_that_json_cannot_hold_are_refused():
    X = [np.random.default_rng(i).normal(size=(2, 3)) for i in range(4)]
    model = WassersteinLMNN(max_iter=0).fit(X, [0, 0, 1, 1], levels=[frozenset("a"), frozenset("b")] * 2)
    with pytest.raises(InputError, match=r"not JSON: .*frozenset"):
        checkpoint.pack(model)
    model = WassersteinLMNN(max_iter=0).fit(X, [0, 0, 1, 1], levels=[("a", 1), ("b", 2)] * 2)
    assert list(WassersteinLMNN.from_state(*stored(model)).Mt_) == [("a", 1), ("b", 2)]
