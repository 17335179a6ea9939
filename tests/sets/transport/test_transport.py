"""Smoothed transport: hand cases, a plain oracle, properties, exact limits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sets.transport.oracles import cost, ragged, smoothed

import likewise as lw
from likewise import numeric
from likewise.sets.transport import batched
from likewise.sets.transport import solvers as transport
from likewise.types import Signature

PACK = [lw.Signature(*s) for s in ragged(21, seed=1)]


def solve(sets, gamma, **options):
    return transport.solve_all(transport.pack(sets), None, gamma, **options)


@pytest.mark.parametrize("gamma", [5.0, 0.3, pytest.param(0.03, marks=pytest.mark.slow)])
def test_every_pair_equals_the_textbook_iteration(gamma):
    fast = solve(PACK, gamma, tol=1e-10)
    assert fast.converged.all()
    for i in range(0, 21, 9):
        for j in range(0, 21, 5):  # a few pairs: at a small γ the textbook takes seconds for each
            p, q = PACK[i], PACK[j]
            value, _ = smoothed(cost(p.points, q.points), p.weights, q.weights, gamma)
            assert fast.value[i, j] == pytest.approx(value, rel=1e-7, abs=1e-8)


def test_pairs_and_plans_equal_the_textbook_iteration():
    X = transport.pack(PACK)
    left, right = np.arange(20), np.arange(20) + 1
    result = transport.solve_pairs(X, X, left, right, 0.2, plans=True, tol=1e-10)
    for k in range(20):
        p, q = PACK[k], PACK[k + 1]
        value, F = smoothed(cost(p.points, q.points), p.weights, q.weights, 0.2)
        np.testing.assert_allclose(result.plan(k), F, atol=1e-9)
        assert result.value[k] == pytest.approx(value, rel=1e-8)
        f, g = (x[o[k] : o[k + 1]] for x, o in ((result.f, result.f_offsets), (result.g, result.g_offsets)))
        again = np.exp((f[:, None] + g - cost(p.points, q.points)) / 0.2) * np.outer(p.weights, q.weights)
        np.testing.assert_allclose(again, F, atol=1e-9)


@given(st.integers(0, 10_000), st.floats(0.003, 30.0))
@settings(max_examples=60, deadline=None)
def test_marginals_hold_and_lists_agree_with_tables(seed, gamma):
    sets = [lw.Signature(*s) for s in ragged(9, seed=seed, high=6)]
    X = transport.pack(sets)
    i, j = np.triu_indices(9)
    pairs, table = transport.solve_pairs(X, X, i, j, gamma, plans=True), solve(sets, gamma)
    assert pairs.converged.all()
    assert table.converged.all()
    np.testing.assert_allclose(table.value[i, j], pairs.value, rtol=1e-6, atol=1e-7)
    for k in range(len(i)):
        F = pairs.plan(k)
        assert np.abs(F.sum(1) - sets[i[k]].weights).sum() <= 1.01e-6
        np.testing.assert_allclose(F.sum(0), sets[j[k]].weights, atol=1e-12)
        assert (F >= 0).all()


@given(st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_symmetry_permutation_and_padding(seed):
    r = np.random.default_rng(seed)
    P, a = ragged(1, seed=seed, low=2)[0]
    Q, b = ragged(1, seed=seed + 1, low=2)[0]
    order = r.permutation(len(P))
    plain = lw.sets.compare((P, a), (Q, b), gamma=0.5, tol=1e-9)
    swapped = lw.sets.compare((Q, b), (P, a), gamma=0.5, tol=1e-9)
    shuffled = lw.sets.compare((P[order], a[order]), (Q, b), gamma=0.5, tol=1e-9)
    inert = lw.sets.compare(
        (np.vstack([P, r.normal(size=(1, 3)) * 100]), np.append(a, 0.0)), (Q, b), gamma=0.5, tol=1e-9
    )
    for other in (swapped, shuffled, inert):
        assert other.distance == pytest.approx(plain.distance, rel=1e-8)
    np.testing.assert_allclose(swapped.plan.T, plain.plan, atol=1e-8)
    np.testing.assert_allclose(shuffled.plan, plain.plan[order], atol=1e-8)
    assert (inert.plan[-1] == 0).all()


@pytest.mark.parametrize("gamma", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize("value", ["kl", "paper", "sharp"])
def test_one_point_against_one_point_is_the_squared_mahalanobis_distance_for_every_gamma(gamma, value):
    M = np.array([[2.0, 0.5], [0.5, 1.0]])
    p, q = np.array([[1.0, 2.0]]), np.array([[0.0, -1.0]])
    expected = (p - q)[0] @ M @ (p - q)[0]
    assert lw.sets.compare(p, q, gamma=gamma, metric=M, value=value).distance == pytest.approx(expected, rel=1e-12)


def test_gamma_to_zero_tends_to_exact_transport():
    X = transport.pack(PACK)
    left, right = np.arange(20), np.arange(20) + 1
    exact = [
        transport.exact(cost(PACK[k].points, PACK[k + 1].points), PACK[k].weights, PACK[k + 1].weights)[0]
        for k in range(20)
    ]
    gaps = []
    for gamma in (1.0, 0.1, 0.01, 1e-4):
        result = transport.solve_pairs(X, X, left, right, gamma, value="sharp")
        assert result.converged.all()
        gaps.append(np.abs(result.value - exact).max())
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 1e-4


def test_exact_by_hand_and_by_assignment():
    value, F = transport.exact(np.array([[0.0, 2.0], [2.0, 0.0]]), np.array([0.75, 0.25]), np.array([0.5, 0.5]))
    assert value == pytest.approx(0.5)
    np.testing.assert_allclose(F, [[0.5, 0.25], [0.0, 0.25]], atol=1e-12)
    C = np.random.default_rng(0).uniform(size=(6, 6))
    same = np.full(6, 1 / 6)
    nearly = same + np.array([1e-9, -1e-9, 0, 0, 0, 0])
    assert transport.exact(C, same, same)[0] == pytest.approx(transport.exact(C, nearly, same)[0], abs=1e-7)


def test_divergence_is_zero_for_identical_sets_and_positive_else():
    D = lw.sets.distances(PACK, value="divergence", gamma=0.5)
    assert np.abs(np.diag(D)).max() < 1e-7
    assert (D[~np.eye(21, dtype=bool)] > 1e-4).all()


@pytest.mark.parametrize("fraction", [1e-2, 1e-4, 1e-6])
def test_small_gammas_converge_and_say_so(fraction):
    X = transport.pack(PACK)
    result = transport.solve_all(X, None, transport.auto_gamma(X, fraction=fraction))
    assert result.converged.all()
    assert np.isfinite(result.value).all()


def test_costs_spread_over_many_orders_of_magnitude():
    r = np.random.default_rng(3)
    sets = [lw.Signature(r.normal(size=(5, 2)) * 10.0 ** r.integers(-4, 5)) for _ in range(10)]
    result = solve(sets, 0.01)
    assert result.converged.all()
    assert np.isfinite(result.value).all()


def test_warm_starts_reach_the_same_answer_sooner():
    X = transport.pack(PACK)
    left, right = np.arange(20), np.arange(20) + 1
    cold = transport.solve_pairs(X, X, left, right, 0.05)
    warm = transport.solve_pairs(X, X, left, right, 0.05, start=cold)
    np.testing.assert_allclose(warm.value, cold.value, rtol=1e-7)
    assert warm.iterations.sum() < cold.iterations.sum()


@pytest.mark.parametrize("fraction", [1.0, 0.05, 1e-3])
def test_a_pair_by_itself_is_solved_without_kernels_unless_it_is_hard(monkeypatch, fraction):
    X, one = transport.pack(PACK), np.array([3])
    gamma = transport.auto_gamma(X, fraction=fraction)
    both = transport.solve_pairs(X, X, np.array([3, 3]), np.array([7, 7]), gamma, plans=True)
    results = [transport.solve_pairs(X, X, one, one + 4, gamma, plans=True)]
    monkeypatch.setattr(transport, "ALONE", 1)
    results += [transport.solve_pairs(X, X, one, one + 4, gamma, plans=True)]
    monkeypatch.setattr(transport.panels, "solve_pairs", lambda *_: None)
    assert not transport.solve_pairs(X, X, one, one + 4, gamma).converged.any()
    monkeypatch.setattr(transport, "ALONE", 200)
    results += [transport.solve_pairs(X, X, one, one + 4, gamma, plans=True)] if fraction >= 0.05 else []
    for result in results:
        assert result.converged.all()
        np.testing.assert_allclose(result.value, both.value[:1], rtol=1e-6)
        np.testing.assert_allclose(result.plan(0), both.plan(0), atol=1e-5)


def test_large_sets_take_the_other_road_to_the_same_place():
    r = np.random.default_rng(0)
    P, Q = r.normal(size=(300, 2)), r.normal(size=(280, 2)) + 1
    result = lw.sets.compare(P, Q, gamma=0.3, value="kl", tol=1e-9)
    value, F = smoothed(cost(P[:, :], Q), np.full(300, 1 / 300), np.full(280, 1 / 280), 0.3, tol=1e-10)
    assert result.distance == pytest.approx(value, rel=1e-8)
    np.testing.assert_allclose(result.plan, F, atol=1e-9)
    table = lw.sets.distances([P, Q, P[:5]], gamma=0.3, value="kl", tol=1e-9)
    assert table[0, 1] == pytest.approx(value, rel=1e-7)


@pytest.mark.parametrize("n_jobs", [-1, 3])
def test_all_cores_and_more_give_the_same_list(n_jobs):
    X = transport.pack([lw.Signature(*s) for s in ragged(40, seed=8)])
    i, j = np.triu_indices(40)
    one = transport.solve_pairs(X, X, i, j, 0.2, plans=True)
    many = transport.solve_pairs(X, X, i, j, 0.2, plans=True, n_jobs=n_jobs)
    both = [transport.solve_all(X, None, 0.2, n_jobs=n).value.tobytes() for n in (1, n_jobs)]
    assert both[0] == both[1]
    assert one.value.tobytes() == many.value.tobytes()
    assert one.plans.tobytes() == many.plans.tobytes()


@pytest.mark.parametrize("value", ["kl", "paper", "divergence", "sharp"])
def test_the_torch_backend_equals_the_kernels(value):
    fast, slow = (
        lw.sets.distances(ragged(6, seed=5), gamma=0.2, value=value, tol=1e-8, backend=b) for b in ("numba", "torch")
    )
    np.testing.assert_allclose(slow, fast, rtol=1e-5, atol=1e-6)


def test_a_torch_batch_makes_every_tensor_on_the_device_it_was_given(monkeypatch):
    X, Y = (transport.pack([Signature(*s) for s in ragged(9, seed=seed, high=6)]) for seed in (5, 6))
    monkeypatch.setattr(batched, "finish", lambda *_, **__: None)
    with torch.device("meta"):  # a tensor made without a device would be one of no data
        square, oblong = (batched.solve_all(X, other, 0.3, device="cpu") for other in (None, Y))
    assert square.converged.all()
    np.testing.assert_array_equal(square.value, square.value.T)
    np.testing.assert_allclose(oblong.value, transport.solve_all(X, Y, 0.3).value, rtol=1e-7)


def test_what_a_torch_batch_leaves_unsolved_is_solved_by_the_kernels():
    sets = [Signature(*s) for s in ragged(12, seed=3, high=6)]
    gamma = transport.auto_gamma(transport.pack(sets), fraction=1e-4)
    slow = batched.solve_all(transport.pack(sets), None, gamma)
    assert slow.converged.all()
    np.testing.assert_allclose(slow.value, solve(sets, gamma).value, rtol=1e-6, atol=1e-9)


# ── large sets ────────────────────────────────────────────────────────────────────────────────────────────────────


def clouds(*sizes, d=3, seed=0):
    r = np.random.default_rng(seed)
    return [Signature(r.normal(size=(m, d)) + r.normal(size=d), r.uniform(0.2, 1.0, m)) for m in sizes]


@pytest.mark.parametrize(("d", "fraction"), [(2, 0.05), (2, 1.0), (64, 0.05), (64, 0.2)])
def test_sets_of_every_size_equal_the_plain_iteration(d, fraction):
    sets = clouds(1, 3, 9, 28, 29, 41, 90, d=d)
    X = transport.pack(sets)
    gamma = transport.auto_gamma(X, fraction=fraction)
    table = transport.solve_all(X, None, gamma)
    i, j = np.triu_indices(len(sets))
    pairs = transport.solve_pairs(X, X, i, j, gamma, plans=True)
    again = transport.solve_pairs(X, X, i, j, gamma, start=pairs)
    assert all(solved.converged.all() for solved in (table, pairs, again))
    np.testing.assert_allclose(table.value[i, j], pairs.value, rtol=1e-6, atol=1e-6 * gamma)
    np.testing.assert_allclose(again.value, pairs.value, rtol=1e-6, atol=1e-6 * gamma)
    assert again.iterations.sum() < pairs.iterations.sum()
    for k in range(0, len(i), 4):
        p, q = sets[i[k]], sets[j[k]]
        f, g, F, *_ = transport.sinkhorn(
            numeric.squared_distances(p.points, q.points), p.weights, q.weights, gamma, tol=1e-9
        )
        value = p.weights @ f + q.weights @ g
        assert pairs.value[k] == pytest.approx(value, rel=1e-6, abs=1e-6 * gamma)
        np.testing.assert_allclose(pairs.plan(k), F, atol=1e-6)
        np.testing.assert_allclose(pairs.plan(k).sum(0), q.weights, atol=1e-12)
        assert np.abs(pairs.plan(k).sum(1) - p.weights).sum() <= 1.01e-6


def test_large_sets_tend_to_exact_transport_and_their_sharp_value_is_that_of_the_plan():
    X = transport.pack(clouds(60, 55, d=2))
    one, P, Q = np.array([0, 0]), X.rows(0), X.rows(1)
    C = cost(X.points[P], X.points[Q])
    right = transport.exact(C, X.weights[P], X.weights[Q])[0]
    gaps = []
    for fraction in (0.1, 1e-2, 1e-3):
        gamma = transport.auto_gamma(X, fraction=fraction)
        result = transport.solve_pairs(X, X, one, one + 1, gamma, value="sharp", plans=True)
        assert result.converged.all()
        assert result.value[0] == pytest.approx((C * result.plan(0)).sum(), rel=1e-6)
        gaps.append(result.value[0] - right)
    assert gaps == sorted(gaps, reverse=True)
    assert -1e-5 < gaps[-1] < 2e-3 * right


@pytest.mark.parametrize("sizes", [(6, 7), (40, 45)])
def test_convergence_is_told_as_it_is(sizes):
    X = transport.pack(clouds(*sizes, *sizes, d=2))
    gamma = transport.auto_gamma(X, fraction=1e-3)
    left, right = np.array([0, 0]), np.array([1, 3])
    short = transport.solve_pairs(X, X, left, right, gamma, max_iter=7, tol=1e-12, plans=True)
    for k in range(2):
        error = np.abs(short.plan(k).sum(1) - X.weights[X.rows(left[k])]).sum()
        assert error <= short.residual[k] * (1 + 1e-6) + 1e-12
        assert bool(short.converged[k]) == bool(short.residual[k] <= 1e-12)


def test_single_precision_is_used_only_where_its_rounding_is_within_the_tolerance():
    X = transport.pack(clouds(5, 9, d=32))
    far = transport.pack(
        [Signature(s + shift) for s, shift in zip((X.points[:5], X.points[5:]), (0.0, 1e3), strict=True)]
    )
    kind = transport.panels.product_type
    assert kind(X, X, 5.0, 1e-6) == np.float32
    assert {kind(X, X, 5.0, 1e-7), kind(far, far, 5.0, 1e-6), kind(X, X, 1e-3, 1e-6)} == {np.float64}


@given(st.integers(0, 10_000), st.sampled_from([0.02, 0.2, 1.0]), st.sampled_from([2, 20]))
@settings(max_examples=25, deadline=None)
def test_the_divergence_is_symmetric_not_negative_and_zero_on_itself(seed, fraction, d):
    r = np.random.default_rng(seed)
    sets = clouds(*r.integers(1, 8, 6), 33, d=d, seed=seed)
    sets += [Signature(sets[0].points, sets[0].weights), Signature(sets[6].points[::-1], sets[6].weights[::-1])]
    gamma = transport.auto_gamma(transport.pack(sets), fraction=fraction)
    D = lw.sets.distances(sets, gamma=gamma, value="divergence")
    np.testing.assert_array_equal(D, D.T)
    assert not np.diag(D).any()
    assert D.min() > -1e-6 * gamma
    assert abs(D[0, 7]) < 1e-6 * gamma
    assert abs(D[6, 8]) < 1e-6 * gamma
    np.testing.assert_allclose(
        lw.sets.distances(sets, sets[:3], gamma=gamma, value="divergence"), D[:, :3], atol=2e-6 * gamma
    )


@pytest.mark.parametrize("gamma", [0.0, -1.0, float("nan"), float("inf"), 1e300, 5e-324, 1e-200])
def test_a_gamma_beyond_reason_is_refused_by_name(gamma, tmp_path):
    for call in (
        lambda: lw.sets.distances(PACK[:2], gamma=gamma),
        lambda: lw.sets.compare(PACK[0], PACK[1], gamma=gamma),
        lambda: lw.sets.compare([[1.0]], [[1.0]], gamma=gamma),
        lambda: lw.sets.distance_matrix(PACK[:2], gamma=gamma, out=tmp_path, progress=False),
    ):
        with pytest.raises(lw.InputError, match="gamma"):
            call()


def test_scatter_is_the_sum_over_pairs_of_the_gradient():
    X = transport.pack(PACK)
    left, right, c = np.array([0, 1, 2, 5]), np.array([3, 4, 5, 0]), np.array([0.5, -1.0, 2.0, 0.3])
    result = transport.solve_pairs(X, X, left, right, 0.3, plans=True)
    expected = np.zeros((3, 3))
    for k in range(4):
        p, q, F = PACK[left[k]].points, PACK[right[k]].points, result.plan(k)
        for i in range(len(p)):
            for j in range(len(q)):
                expected += c[k] * F[i, j] * np.outer(p[i] - q[j], p[i] - q[j])
    np.testing.assert_allclose(transport.scatter(X, X, left, right, result, c), expected, atol=1e-10)


def test_scatter_is_the_derivative_of_the_value_in_the_metric():
    X = transport.pack(PACK)
    left, right = np.array([0, 1, 7]), np.array([3, 4, 2])
    r = np.random.default_rng(0)
    M, D = np.diag([1.0, 2.0, 0.5]), r.normal(size=(3, 3))
    D = D + D.T

    def total(A):
        L = np.linalg.cholesky(A)
        return transport.solve_pairs(X.project(L), X.project(L), left, right, 0.3, tol=1e-11).value.sum()

    L = np.linalg.cholesky(M)
    result = transport.solve_pairs(X.project(L), X.project(L), left, right, 0.3, plans=True, tol=1e-11)
    slope = (transport.scatter(X, X, left, right, result, np.ones(3)) * D).sum()
    h = 1e-5
    assert slope == pytest.approx((total(M + h * D) - total(M - h * D)) / (2 * h), rel=1e-6)


def test_the_kernel_is_compiled_for_one_signature_only():
    from likewise.sets.transport import kernels as _kernels

    lw.sets.distances(PACK[:3])
    lw.sets.compare(PACK[0], PACK[1])
    lw.sets.distances(PACK[:3], PACK[:2], value="sharp", tol=1e-7)
    for kernel in (_kernels.solve_panels, _kernels.gather_pairs, _kernels.scatter_pairs):
        assert len(kernel.signatures) == 1


def test_gamma_auto_is_a_share_of_the_median_cost_of_all_points_the_same_either_way_round():
    P, Q = PACK[0], PACK[1]

    def median(sets):
        points = np.vstack([s.points for s in sets])
        return np.median(cost(points, points)[np.triu_indices(len(points), 1)])

    assert lw.sets.compare(P, Q).gamma == pytest.approx(transport.BLUR * median([P, Q]))
    assert transport.auto_gamma(transport.pack(PACK)) == pytest.approx(transport.BLUR * median(PACK))
    wide, near = transport.pack([Signature(9 * s.points) for s in PACK]), transport.pack(PACK[:2])
    assert transport.auto_gamma(wide, near) == pytest.approx(transport.auto_gamma(near, wide), rel=1e-12)
    there, back = lw.sets.distances(PACK, PACK[:2]), lw.sets.distances(PACK[:2], PACK)
    np.testing.assert_allclose(there, back.T, rtol=1e-6, atol=1e-6)
    assert lw.sets.compare([[1.0, 1.0]], [[1.0, 1.0]]).gamma > 0
