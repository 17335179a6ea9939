"""Pictures of the distributions level: coverage, frontiers, grids, spectra."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from likewise import plot
from likewise.errors import InputError, ShapeError


def noise(n: int, seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).uniform(size=(n, 8, 8)))


def cells() -> list[dict[str, float]]:
    return [
        {"rho": rho, "psi": psi, "precision": 0.6 - 0.1 * rho, "recall": 0.5 + 0.1 * rho * psi, "frechet": 40 + rho**2}
        for rho in (0.5, -0.5, 0.0)
        for psi in (1.0, 0.5)
    ]


def texts(ax) -> list[str]:
    return [t.get_text() for t in ax.texts]


def test_coverage_draws_each_pair_and_says_how_many_there_are() -> None:
    a, b = noise(11), noise(11, 1)
    pairs = [(x, y, float(i)) for i, (x, y) in enumerate(zip(a, b, strict=True))]
    fig = plot.coverage(pairs[:9], pairs[9:], counts=(40, 60), labels=("summer", "winter"), figures={"recall": "0.6"})
    ax = fig.axes[0]
    assert len(ax.images) == 22
    said = texts(ax)
    assert "in summer, but not covered by winter: 40 of 100" in said
    assert "in summer, and covered by winter: 60 of 100" in said
    assert said.count("nearest in\nwinter") == 3
    assert {"recall", "0.6", "0", "8"} <= set(said)
    bottom = min(im.get_extent()[2] for im in ax.images)
    assert 0 < bottom < ax.get_ylim()[1]
    with pytest.raises(InputError, match="columns"):
        plot.coverage([], [], columns=0)
    assert texts(plot.coverage([], []).axes[0]).count("none") == 2


def test_names_with_dollars_are_not_read_as_formulas(tmp_path: Path) -> None:
    fig = plot.coverage([], [], labels=("a$b", "c$d"), title="x$y$z^{", figures={"$": "$^{"})
    plot.save(fig, tmp_path / "a.png")
    same = [[0.0, 1.0]], [[1.0, 0.0]], [True]
    plot.save(plot.cover_map(*same, labels=("a$b^{$", "c"), title="$^{$", figures={"$": "^{$"}), tmp_path / "b.png")


def test_a_map_has_its_three_kinds_of_points() -> None:
    r = np.random.default_rng(0)
    out = np.arange(10) < 3
    fig = plot.cover_map(r.normal(size=(10, 2)), r.normal(size=(7, 2)), out, labels=("A", "B"), title="t")
    assert [len(c.get_offsets()) for c in fig.axes[0].collections] == [7, 7, 3]
    with pytest.raises(ShapeError, match="uncovered"):
        plot.cover_map(r.normal(size=(10, 2)), r.normal(size=(7, 2)), out[:4])
    with pytest.raises(ShapeError, match="fake"):
        plot.cover_map(r.normal(size=(10, 2)), r.normal(size=(7, 3)), out)


def test_a_frontier_has_a_curve_a_truncation_in_the_order_of_rho() -> None:
    fig = plot.frontier(cells(), title="lenet")
    left, right = fig.axes
    named = {line.get_label(): line for line in left.lines if not line.get_label().startswith("_")}
    assert set(named) == {"ρ at ψ = 1", "ρ at ψ = 0.5", "ψ at ρ = 0"}
    np.testing.assert_allclose(named["ρ at ψ = 1"].get_xdata(), [0.45, 0.5, 0.55])
    np.testing.assert_allclose(named["ρ at ψ = 1"].get_ydata(), [0.65, 0.6, 0.55])
    assert texts(left)[:3] == ["-0.5", "0", "0.5"]
    np.testing.assert_allclose(right.lines[0].get_xdata(), [-0.5, 0, 0.5])
    np.testing.assert_allclose(right.lines[0].get_ydata(), [40.25, 40, 40.25])


def test_only_what_no_other_beats_is_filled() -> None:
    table = [
        {"rho": float(i), "psi": 1.0, "precision": p, "recall": q, "frechet": 1.0}
        for i, (p, q) in enumerate([(0.9, 0.1), (0.5, 0.5), (0.4, 0.4), (0.1, 0.9)])
    ]
    filled = plot.frontier(table).axes[0].lines[1]
    np.testing.assert_allclose(filled.get_ydata(), [0.9, 0.5, 0.1])


def test_errors_are_drawn_where_cells_have_them_and_bad_cells_are_refused() -> None:
    with_errors = [{**cell, "frechet_error": 0.5} for cell in cells()]
    assert len(plot.frontier(with_errors).axes[1].collections) == 2
    with pytest.raises(InputError, match="at least one"):
        plot.frontier([])
    with pytest.raises(InputError, match="cell 0 has no finite 'recall'"):
        plot.frontier([{"rho": 0.0, "psi": 1.0, "precision": 0.5, "frechet": 1.0}])


def test_a_grid_has_rows_with_labels(tmp_path: Path) -> None:
    fig = plot.grid([noise(3), noise(2)], ["ρ = −1", "ρ = 1"], title="t", captions=[["a", "b", "c"], ["d"]])
    ax = fig.axes[0]
    assert len(ax.images) == 5
    tops = [im.get_extent()[3] for im in ax.images]
    assert tops[0] == tops[2] > tops[3]
    assert {"ρ = −1", "ρ = 1", "t", "a", "d"} <= set(texts(ax))
    plot.save(plot.grid([noise(1)]), tmp_path / "one.png")
    with pytest.raises(ShapeError, match="labels: expected 2"):
        plot.grid([noise(1), noise(1)], ["a"])
    with pytest.raises(InputError, match="at least one picture"):
        plot.grid([[]])


def test_a_histogram_has_mass_one_weighted_or_not() -> None:
    values = np.random.default_rng(0).normal(size=500)
    w = np.where(values > 0, 3.0, 1.0)
    fig = plot.histogram({"a": values, "b": values}, weights={"b": w}, curve=([-1, 0, 1], [0, 1, 0]), bins=20)
    steps = [patch.get_data() for patch in fig.axes[0].patches[::2]]
    for heights, edges, _ in steps:
        assert (heights * np.diff(edges)).sum() == pytest.approx(1.0)
    np.testing.assert_allclose(steps[1][0], np.histogram(values, steps[1][1], weights=w, density=True)[0])
    assert not np.allclose(steps[0][0], steps[1][0])
    with pytest.raises(ShapeError, match="weights of 'a'"):
        plot.histogram({"a": values}, weights={"a": w[:3]})
    with pytest.raises(InputError, match="finite"):
        plot.histogram({"a": [-np.inf]})
    with pytest.raises(InputError, match="at least one"):
        plot.histogram({})


def test_a_spectrum_is_drawn_by_its_median_and_dead_values_are_left_out() -> None:
    rows = np.log(np.array([[3.0, 2.0, 1.0], [5.0, 2.0, 1.0], [4.0, 2.0, 0.5]]))
    rows = np.vstack([rows, [np.log(4.0), np.log(2.0), -np.inf]])
    fig = plot.spectrum({"ρ = 0": rows})
    line = fig.axes[0].lines[0]
    np.testing.assert_array_equal(line.get_xdata(), [1, 2, 3])
    np.testing.assert_allclose(line.get_ydata(), np.log([4.0, 2.0, 1.0]))
    with pytest.raises(ShapeError, match="group 'a'"):
        plot.spectrum({"a": [[np.nan]]})
    with pytest.raises(InputError, match="at least one"):
        plot.spectrum({})
