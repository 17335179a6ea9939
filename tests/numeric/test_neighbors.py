"""Tiles, neighbours, radii and balls: by hand, against loops, whatever the size of the tiles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from likewise import numeric
from likewise.errors import InputError, ShapeError

TILES = [1, 2, 3, 7, 2048]


def rows(n: int, d: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d))


def distances(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    return np.array([[np.sqrt(((x - y) ** 2).sum()) for y in Y] for x in X])


@pytest.mark.parametrize("tile", TILES)
def test_tiles_make_up_the_whole_matrix(tile: int) -> None:
    X, Y = rows(7), rows(5, seed=1)
    whole = np.full((7, 5), np.nan)
    for i, j, D in numeric.tiles(X, Y, tile=tile):
        whole[i, j] = D
    np.testing.assert_allclose(np.sqrt(whole), distances(X, Y), atol=1e-12)
    half = np.full((7, 7), np.nan)
    for i, j, D in numeric.tiles(X, tile=tile):
        half[i, j] = D
    upper = np.triu_indices(7)
    np.testing.assert_allclose(np.sqrt(half[upper]), distances(X, X)[upper], atol=1e-7)


@given(st.integers(2, 9), st.integers(1, 9), st.integers(1, 4), st.integers(0, 100), st.sampled_from(TILES))
def test_nearest_are_those_of_the_loops(n: int, m: int, k: int, seed: int, tile: int) -> None:
    X, Y = rows(n, seed=seed), rows(m, seed=seed + 1)
    k = min(k, m)
    distance, index = numeric.nearest(X, Y, k, tile=tile)
    D = distances(X, Y)
    np.testing.assert_allclose(distance, np.sort(D, axis=1)[:, :k], atol=1e-12)
    np.testing.assert_allclose(np.take_along_axis(D, index, axis=1), distance, atol=1e-12)


@given(st.integers(2, 9), st.integers(1, 4), st.integers(0, 100), st.sampled_from(TILES))
def test_a_row_is_not_its_own_neighbour(n: int, k: int, seed: int, tile: int) -> None:
    X = rows(n, seed=seed)
    k = min(k, n - 1)
    D = distances(X, X)
    np.fill_diagonal(D, np.inf)
    distance, index = numeric.nearest(X, k=k, tile=tile)
    np.testing.assert_allclose(distance, np.sort(D, axis=1)[:, :k], atol=1e-12)
    assert (index != np.arange(n)[:, None]).all()
    np.testing.assert_allclose(numeric.radii(X, k, tile=tile), np.sort(D, axis=1)[:, k - 1], atol=1e-12)


def test_by_hand() -> None:
    X = np.array([[0.0], [1.0], [3.0], [7.0]])
    np.testing.assert_allclose(numeric.radii(X, 1), [1, 1, 2, 4])
    np.testing.assert_allclose(numeric.radii(X, 2), [3, 2, 3, 6])
    distance, index = numeric.nearest(X, np.array([[2.4], [100.0]]))
    np.testing.assert_allclose(distance[:, 0], [2.4, 1.4, 0.6, 4.6])
    assert index[:, 0].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_rows_are_at_distance_zero_wherever_they_lie(offset: float, dtype: type) -> None:
    X = (np.random.default_rng(0).normal(size=(40, 300)) + offset).astype(dtype)
    both = np.concatenate([X, X])
    assert (numeric.radii(both, 1, tile=9) == 0).all()
    assert (numeric.nearest(X, X, tile=11)[0] == 0).all()
    assert (numeric.radii(both, 2, tile=9) > 1).all()


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 100), st.sampled_from(TILES))
def test_cover_is_that_of_the_loops(n: int, m: int, seed: int, tile: int) -> None:
    X, Y = rows(n, seed=seed), rows(m, seed=seed + 1)
    draw = np.random.default_rng(seed)
    rx, ry = draw.uniform(0, 2, n), draw.uniform(0, 2, m)
    left, right = numeric.cover(X, Y, rx, ry, tile=tile)
    D = distances(X, Y)
    for i in range(n):
        assert left.margin[i] == pytest.approx(min(D[i, j] - ry[j] for j in range(m)))
        assert left.inside[i] == sum(D[i, j] <= ry[j] for j in range(m))
        assert left.distance[i] == pytest.approx(D[i].min())
        assert left.index[i] == D[i].argmin()
    for j in range(m):
        assert right.margin[j] == pytest.approx(min(D[i, j] - rx[i] for i in range(n)))
        assert right.inside[j] == sum(D[i, j] <= rx[i] for i in range(n))
        assert right.distance[j] == pytest.approx(D[:, j].min())
        assert right.index[j] == D[:, j].argmin()


def test_a_ball_of_radius_zero_holds_its_centre() -> None:
    X = np.zeros((3, 2))
    left, right = numeric.cover(X, X, np.zeros(3), np.zeros(3))
    assert left.inside.tolist() == right.inside.tolist() == [3, 3, 3]
    assert (left.margin == 0).all()


def test_wrong_arguments_are_named() -> None:
    X = rows(4)
    with pytest.raises(ShapeError, match="Y: expected rows of 3"):
        numeric.nearest(X, rows(4, 2))
    with pytest.raises(ShapeError, match="X: expected rows"):
        list(numeric.tiles(np.zeros(3)))
    with pytest.raises(InputError, match="k: expected 1 to 3, the number of other rows"):
        numeric.radii(X, 4)
    with pytest.raises(InputError, match="k: expected 1 to 4"):
        numeric.nearest(X, X, 5)
    with pytest.raises(InputError, match="tile"):
        list(numeric.tiles(X, tile=0))
    with pytest.raises(ShapeError, match="radius_y"):
        numeric.cover(X, X, np.zeros(4), np.zeros(3))
