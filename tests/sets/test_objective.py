"""The mathematics of the learned metric: naive loops, finite differences, and one test an erratum."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from likewise import numeric
from likewise.errors import InputError
from likewise.sets import objective as ml
from likewise.sets.transport import solvers as transport
from likewise.types import Signature

GAMMA = 0.3


def world(seed=0, classes=3, per_class=4, d=3, sizes=(2, 5)):
    """Small ragged weighted sets of a few classes: (Pack, y)."""
    rng = np.random.default_rng(seed)
    sets, y = [], []
    for c in range(classes):
        centre = rng.normal(0, 1, d)
        for _ in range(per_class):
            m = rng.integers(*sizes)
            sets.append(Signature(centre + rng.normal(0, 0.7, (m, d)), rng.uniform(0.2, 1, m)))
            y.append(c)
    return transport.pack(sets), np.array(y, dtype=np.int64)


def random_psd(rng, d, scale=1.0):
    A = rng.normal(size=(d, d + 1))
    return scale * A @ A.T / d


def random_blocks(seed, levels, d):
    rng = np.random.default_rng(seed)
    return np.stack([random_psd(rng, d)] + [random_psd(rng, d, 0.3) for _ in range(levels)])


def S_and_R(X, y, k=2, impostors=3):
    def distance(i, j):
        return ml.distances(X, X, i, j, GAMMA)

    S = ml.targets(y, k, distance)
    return S, ml.triplets(S, ml.impostors(y, impostors, X.points[X.offsets[:-1]], distance, np.arange(len(y))))


def build(X, y, *, levels=3, value="kl", width=0.0, tol=1e-9, mu=0.4, normalize=True):
    S, R = S_and_R(X, y)
    c = ml.Coefficients.of(0.3, 0.7, mu, len(S), len(R), X.dim, normalize)
    level = y if levels else np.zeros_like(y)
    pairs = ml.pairs_of(S, R, level, own=value == "divergence")
    return ml.Objective(X, pairs, levels, c, GAMMA, value=value, width=width, tol=tol), S, R


def naive_kl(P, a, Q, b, M, gamma, steps=20000):
    """⟨C, F⟩ + γ KL(F ‖ abᵀ) by plain loops over a plain Sinkhorn."""
    C = np.array([[(p - q) @ M @ (p - q) for q in Q] for p in P])
    K = np.exp(-C / gamma)
    u, v = np.ones(len(a)), np.ones(len(b))
    for _ in range(steps):
        u, before = 1 / (K @ (b * v)), u
        v = 1 / (K.T @ (a * u))
        if np.abs(u / before - 1).max() < 1e-7:
            break
    F = (a * u)[:, None] * K * (b * v)[None, :]
    return float((C * F).sum() + gamma * (F * np.log(F / np.outer(a, b))).sum()), F


def naive_objective(X, y, S, R, blocks, c, value="kl", levels=True):
    """J as the formula reads, one pair after the other."""

    @cache
    def kl(i, j, t):
        p, q, M = X.rows(i), X.rows(j), blocks[0] + blocks[1 + t] if levels else blocks[0]
        return naive_kl(X.points[p], X.weights[p], X.points[q], X.weights[q], M, GAMMA)[0]

    def W(i, j, t):
        if value == "divergence":
            return kl(i, j, t) - kl(i, i, t) / 2 - kl(j, j, t) / 2
        if value == "paper":
            entropy = sum(float(w @ np.log(w)) for w in (X.weights[X.rows(i)], X.weights[X.rows(j)]))
            return kl(i, j, t) + GAMMA * entropy
        return kl(i, j, t)

    total = c.hold * ((blocks[0] - np.eye(X.dim)) ** 2).sum()
    if levels:
        total += c.levels * (blocks[1:] ** 2).sum()
    total += c.pull * sum(W(i, j, y[i]) for i, j in S)
    total += c.push * sum(max(0.0, 1 + W(i, j, y[i]) - W(i, k, y[i])) for i, j, k in R)
    return total


# ── neighbours ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_targets_and_impostors_are_the_nearest_of_the_same_class_and_of_others():
    X, y = world()
    S, _ = S_and_R(X, y, k=2)
    every = np.arange(len(y))
    D = ml.distances(X, X, np.repeat(every, len(y)), np.tile(every, len(y)), GAMMA).reshape(len(y), -1)
    near = ml.impostors(y, 3, ml.means(X), lambda i, j: D[i, j], every)
    for i in every:
        nearest = [j for j in sorted(every, key=lambda j: D[i, j]) if j != i]
        assert S[S[:, 0] == i, 1].tolist() == [j for j in nearest if y[j] == y[i]][:2]
        assert near[near[:, 0] == i, 1].tolist() == [j for j in nearest if y[j] != y[i]][:3]


def test_triplets_join_every_target_with_every_impostor_of_its_anchor():
    S = np.array([[0, 1], [1, 0], [2, 3]])
    near = np.array([[2, 0], [0, 2], [0, 3], [1, 3]])
    assert {tuple(r) for r in ml.triplets(S, near)} == {(0, 1, 2), (0, 1, 3), (1, 0, 3), (2, 3, 0)}


def test_a_pair_that_several_triplets_share_is_solved_once():
    S = np.array([[0, 1], [1, 0]])
    R = np.array([[0, 1, 2], [0, 1, 3], [1, 0, 2]])
    p = ml.pairs_of(S, R, np.array([0, 0, 1, 1]))
    assert len(p) == 4  # (0,1) (0,2) (0,3) (1,2), all of level 0
    assert p.targets[0] == p.targets[1] == p.near[0]


# ── objective and gradient ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("value", ["kl", "paper", "divergence"])
@pytest.mark.parametrize("levels", [0, 3])
@pytest.mark.parametrize("normalize", [True, False])
def test_objective_is_the_formula(value, levels, normalize):
    X, y = world(per_class=2 if value == "divergence" else 3)  # its self-terms triple the naive loop
    J, S, R = build(X, y, levels=levels, value=value, normalize=normalize)
    blocks = random_blocks(1, levels, X.dim)
    expected = naive_objective(X, y, S, R, blocks, J.coefficients, value, levels > 0)
    assert J(blocks).objective == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("value", ["kl", "paper", "divergence"])
@pytest.mark.parametrize("width", [0.0, ml.HUBER])
def test_gradient_is_the_finite_difference_in_every_block(value, width):
    """[MLML Eq. 15] within 1e-5 at tolerance 1e-6, along random symmetric directions in M0 and in each Mt."""
    X, y = world()
    J, *_ = build(X, y, value=value, width=width, tol=1e-6)
    blocks, rng = random_blocks(2, 3, X.dim), np.random.default_rng(3)
    gradient = J(blocks).gradient
    for b in range(4):
        for _ in range(3):
            E = np.zeros_like(blocks)
            A = rng.normal(size=(X.dim, X.dim))
            E[b] = (A + A.T) / np.linalg.norm(A + A.T)
            h = 1e-4
            difference = (J(blocks + h * E).smooth - J(blocks - h * E).smooth) / (2 * h)
            assert abs(difference - (gradient * E).sum()) <= 1e-5 * max(1.0, abs(difference))


@pytest.mark.parametrize("levels", [0, 3])
def test_gradient_in_the_factors_is_the_finite_difference(levels):
    X, y = world()
    J, *_ = build(X, y, levels=levels, width=ml.HUBER, tol=1e-6)
    rng = np.random.default_rng(4)
    L = rng.normal(0, 0.6, (1 + levels, X.dim, X.dim))
    gradient = J.at_factors(L).gradient
    for _ in range(8):
        E = rng.normal(size=L.shape)
        E /= np.linalg.norm(E)
        difference = (J.at_factors(L + 1e-4 * E).smooth - J.at_factors(L - 1e-4 * E).smooth) / 2e-4
        assert abs(difference - (gradient * E).sum()) <= 1e-5 * max(1.0, abs(difference))


def test_factors_and_metrics_agree():
    X, y = world()
    J, *_ = build(X, y)
    L = np.random.default_rng(5).normal(0, 0.5, (4, X.dim, X.dim))
    assert J.at_factors(L).objective == pytest.approx(J(L @ L.transpose(0, 2, 1)).objective, rel=1e-8)


def test_a_warm_start_changes_nothing():
    X, y = world()
    warm, *_ = build(X, y)
    cold, *_ = build(X, y)
    a, b = random_blocks(6, 3, X.dim), random_blocks(7, 3, X.dim)
    warm(a)
    assert warm(b).objective == pytest.approx(cold(b).objective, rel=1e-9)


def test_sharp_is_rejected():
    X, y = world()
    with pytest.raises(InputError, match="sharp"):
        build(X, y, value="sharp")


@given(st.floats(-3, 3), st.floats(0.05, 1))
def test_ramp_is_smooth_and_below_the_hinge(z, width):
    v, slope = ml.ramp(np.array([z]), width)
    assert max(z, 0) - width / 2 - 1e-12 <= v[0] <= max(z, 0) + 1e-12
    h = 1e-6
    difference = (ml.ramp(np.array([z + h]), width)[0] - ml.ramp(np.array([z - h]), width)[0])[0] / (2 * h)
    assert slope[0] == pytest.approx(difference, abs=1e-4)


# ── projections ───────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(0, 10_000), st.integers(1, 5))
def test_projection_is_the_nearest_psd_matrix_of_each_block(seed, d):
    """[MLML Eq. 16]: idempotent, PSD, and no random PSD matrix is nearer."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(3, d, d))
    A = A + A.transpose(0, 2, 1)
    B = ml.project(A)
    np.testing.assert_allclose(ml.project(B), B, atol=1e-10)
    for a, b in zip(A, B, strict=True):
        assert np.linalg.eigvalsh(b)[0] >= -1e-10
        assert np.linalg.norm(a - b) <= np.linalg.norm(a - random_psd(rng, d)) + 1e-10


# ── errata ────────────────────────────────────────────────────────────────────────────────────────────────────────


def literal_eq_13(X, S, R, levels, c):
    """Eq. 13 as printed: every triplet counts for every t. Built by repeating all pairs once a level."""
    many = [ml.pairs_of(S, R, np.full(len(X), t)) for t in range(levels)]
    n = len(many[0])
    stack = {
        name: np.concatenate(
            [getattr(p, name) + (t * n if name in ("targets", "near", "far") else 0) for t, p in enumerate(many)]
        )
        for name in ("left", "right", "level", "targets", "near", "far")
    }
    return ml.Objective(X, ml.Pairs(**stack), levels, c, GAMMA, width=ml.HUBER)


def test_erratum_1_the_literal_sum_makes_all_levels_equal():
    X, y = world()
    S, R = S_and_R(X, y)
    c = ml.Coefficients.of(0.1, 0.1, 0.5, 3 * len(S), 3 * len(R), X.dim, True)
    first = ml.start(X.dim, 3)
    *_, (literal, _) = ml.fista(literal_eq_13(X, S, R, 3, c), first, 20)
    np.testing.assert_allclose(literal[1], literal[2], atol=1e-10)
    np.testing.assert_allclose(literal[2], literal[3], atol=1e-10)
    restricted, *_ = build(X, y, width=ml.HUBER)
    *_, (ours, _) = ml.fista(restricted, first, 20)
    assert np.abs(ours[1] - ours[2]).max() > 1e-2


def test_erratum_2_the_outer_sum_belongs_to_M0_alone():
    """∇M0 is the sum of the level parts; ∇Mt has only its own level's pairs."""
    X, y = world()
    J, S, R = build(X, y)
    blocks = random_blocks(8, 3, X.dim)
    gradient = J(blocks).gradient
    gradient[0] -= 2 * J.coefficients.hold * (blocks[0] - np.eye(X.dim))
    gradient[1:] -= 2 * J.coefficients.levels * blocks[1:]
    np.testing.assert_allclose(gradient[0], gradient[1:].sum(axis=0), atol=1e-10)
    expected = np.zeros((X.dim, X.dim))  # level 0, by a loop over its own pairs and triplets

    def W_and_G(i, j):
        p, q = X.rows(i), X.rows(j)
        value, F = naive_kl(X.points[p], X.weights[p], X.points[q], X.weights[q], blocks[0] + blocks[1], GAMMA)
        away = X.points[p][:, None] - X.points[q][None]
        return value, np.einsum("ij,ijk,ijl->kl", F, away, away)

    for i, j in S[y[S[:, 0]] == 0]:
        expected += J.coefficients.pull * W_and_G(i, j)[1]
    for i, j, k in R[y[R[:, 0]] == 0]:
        (near, G), (far, H) = W_and_G(i, j), W_and_G(i, k)
        if 1 + near - far > 0:
            expected += J.coefficients.push * (G - H)
    np.testing.assert_allclose(gradient[1], expected, atol=1e-7)


def test_erratum_3_convex_with_the_plans_frozen():
    X, y = world()
    J, *_ = build(X, y)
    frozen = ml.Frozen(J, random_blocks(9, 3, X.dim))
    for seed in range(20):
        a, b = random_blocks(seed, 3, X.dim), 3 * random_blocks(seed + 100, 3, X.dim)
        middle = frozen((a + b) / 2).objective
        assert middle <= (frozen(a).objective + frozen(b).objective) / 2 + 1e-9


def test_erratum_3_not_convex_with_the_plans_re_solved():
    """W is a minimum of linear functions of M, so concave: the pull alone has a midpoint above the chord."""
    points = [np.array([[0.0, 0.0], [1.0, 1.0]]), np.array([[0.0, 1.0], [1.0, 0.0]])]
    X = transport.pack([Signature(p) for p in points])
    S, R = np.array([[0, 1]]), np.empty((0, 3), dtype=np.int64)
    pairs = ml.pairs_of(S, R, np.zeros(2, dtype=np.int64))
    J = ml.Objective(X, pairs, 0, ml.Coefficients(0.0, 0.0, 1.0, 0.0), 0.01)
    a, b = np.diag([1.0, 0.0])[None], np.diag([0.0, 1.0])[None]
    assert J((a + b) / 2).objective > (J(a).objective + J(b).objective) / 2 + 0.1


def test_erratum_3_a_frozen_plan_flatters_the_impostor_term():
    """Frozen, W can only be too large, so a hinge that holds an impostor's W can be too small."""
    X, y = world()
    J, *_ = build(X, y, mu=1.0)
    a, b = random_blocks(10, 3, X.dim), random_blocks(11, 3, X.dim)
    frozen = ml.Frozen(J, a)
    np.testing.assert_allclose(frozen.values(a), J.solve([numeric.factor(ml.metric(a, t.level)) for t in J.bundles]))
    frozen = ml.Frozen(J, a).values(b)
    true = J.solve([numeric.factor(ml.metric(b, bundle.level)) for bundle in J.bundles])
    assert (frozen >= true - 1e-7).all()
    assert (frozen > true + 1e-3).any()


def test_erratum_3_alternation_need_not_descend_where_the_default_does():
    rises = 0
    for seed in range(3):
        X, y = world(seed, d=2, sizes=(3, 6))
        J, *_ = build(X, y, mu=0.9, width=0.0)
        printed = [r["objective"] for _, r in ml.alternation(J, ml.start(2, 3), 12)]
        rises += any(after > before + 1e-9 for before, after in pairwise(printed))
        J, *_ = build(X, y, mu=0.9, width=ml.HUBER)
        ours = [r["smooth"] for _, r in ml.fista(J, ml.start(2, 3), 20)]
        assert all(after <= before + 1e-9 for before, after in pairwise(ours))
    assert rises > 0


def test_erratum_4_the_start():
    ours, printed = ml.start(3, 2), ml.start(3, 2, "paper")
    np.testing.assert_array_equal(ml.metric(ours, 0), 1.01 * np.eye(3))
    np.testing.assert_array_equal(ml.metric(printed, 1), 2 * np.eye(3))


def test_erratum_6_nu_is_the_margin():
    """The triplets that R′ of Eq. 15 keeps are those with 1 + W(i, j) − W(i, k) > 0."""
    X, y = world()
    J, _, R = build(X, y, levels=0)
    result = J(np.eye(X.dim)[None])
    W = {}
    for i, j in {(i, j) for i, j, _ in R} | {(i, k) for i, _, k in R}:
        W[i, j] = ml.distances(X, X, np.array([i]), np.array([j]), GAMMA)[0]
    assert ml.MARGIN == 1.0
    assert result.active == sum(1 + W[i, j] - W[i, k] > 0 for i, j, k in R)
    assert 0 < result.active < len(R)


# ── solvers ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("levels", [0, 3])
@pytest.mark.parametrize("solver", ["lbfgs", "fista"])
def test_solvers_lower_the_objective_and_stay_psd(solver, levels):
    X, y = world()
    J, *_ = build(X, y, levels=levels, width=ml.HUBER, mu=0.8)
    first = ml.start(X.dim, levels)
    steps = list(getattr(ml, solver)(J, first, 40))
    assert steps[-1][1]["smooth"] < J(first).smooth - 1e-3
    assert all(np.linalg.eigvalsh(M)[0] >= -1e-10 for M in steps[-1][0])
    fresh, *_ = build(X, y, levels=levels, width=ml.HUBER, mu=0.8)
    assert steps[-1][1]["objective"] == pytest.approx(fresh(steps[-1][0]).objective, rel=1e-6)


def test_lbfgs_and_fista_find_the_same_global_metric():
    X, y = world()
    ends = []
    for solver in (ml.lbfgs, ml.fista):
        J, *_ = build(X, y, levels=0, width=ml.HUBER)
        *_, (blocks, record) = solver(J, ml.start(X.dim, 0), 300)
        ends.append((blocks, record["smooth"]))
    assert ends[0][1] == pytest.approx(ends[1][1], rel=1e-3)
    np.testing.assert_allclose(ends[0][0], ends[1][0], atol=0.1)
