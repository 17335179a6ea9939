"""The lanes compute what numpy computes."""

from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from likewise.sets.transport import simd as simd


@njit
def _apply(x, y, which):
    for i in range(0, len(x), 8):
        a = simd.load(x, i)
        if which == 0:
            simd.store(y, i, simd.exp(a))
        elif which == 1:
            simd.store(y, i, simd.log(a))
        elif which == 2:
            simd.store(y, i, simd.magnitude(a))
        elif which == 3:
            simd.store(y, i, simd.where_positive(a, a, simd.splat(7.0)))
        elif which == 4:
            simd.store(y, i, simd.smaller(a, simd.splat(0.5)))
        elif which == 5:
            simd.store(y, i, simd.larger(a, simd.splat(0.5)))
        elif which == 6:
            simd.store(y, i, simd.load_fma(x, i, a, simd.splat(1.0)))


def apply(x, which):
    y = np.empty_like(x)
    _apply(x, y, which)
    return y


def test_exp_to_two_units_in_the_last_place():
    x = np.linspace(-707, 707, 80_000)
    np.testing.assert_allclose(apply(x, 0), np.exp(x), rtol=5e-16)
    assert (apply(np.array([-710.0, -1e4, -1e30, -np.inf] * 2), 0) < 1e-307).all()


def test_log():
    x = np.concatenate([np.geomspace(1e-300, 1e300, 40_000), np.linspace(0.5, 2, 40_000)])
    np.testing.assert_allclose(apply(x, 1), np.log(x), rtol=1e-15, atol=2e-16)


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        (2, np.abs),
        (3, lambda x: np.where(x > 0, x, 7.0)),
        (4, lambda x: np.minimum(x, 0.5)),
        (5, lambda x: np.maximum(x, 0.5)),
        (6, lambda x: x * x + 1),
    ],
)
def test_lane_by_lane(which, expected):
    x = np.linspace(-2, 2, 64)
    np.testing.assert_allclose(apply(x, which), expected(x), rtol=1e-15)


@njit
def _all(x, bound):
    return simd.all_at_most(simd.load(x, 0), simd.splat(bound))


def test_all_at_most_sees_every_lane_and_nan():
    for lane in range(8):
        x = np.zeros(8)
        assert _all(x, 0.5)
        x[lane] = 1.0
        assert not _all(x, 0.5)
        x[lane] = np.nan
        assert not _all(x, 0.5)
