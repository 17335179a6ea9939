"""Charts: curves, matrices, spectra, frontiers, maps of points."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from likewise import plot
from likewise.errors import InputError, ShapeError


def cells() -> list[dict[str, float]]:
    return [
        {"rho": rho, "psi": psi, "precision": 0.6 - 0.1 * rho, "recall": 0.5 + 0.1 * rho * psi, "frechet": 40 + rho**2}
        for rho in (0.5, -0.5, 0.0)
        for psi in (1.0, 0.5)
    ]


def texts(ax) -> list[str]:
    return [t.get_text() for t in ax.texts]


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


def test_curves_have_one_line_each() -> None:
    x = np.arange(1, 11)
    fig = plot.curves({"a": (x, x / 10), "b": (x, x / 20)}, kind="cmc", title="t")
    ax = fig.axes[0]
    assert [line.get_label() for line in ax.lines] == ["a", "b"]
    assert ax.get_xlim() == (1, 10)
    assert ax.get_xticks()[0] == 1
    assert np.array_equal(ax.lines[0].get_ydata(), x / 10)
    roc = plot.curves({"a": ([0, 0.5, 1], [0, 0.9, 1])}, kind="roc")
    assert roc.axes[0].get_xlabel() == "false accept rate"
    plain = plot.curves({str(i): ([0, 1], [0, i]) for i in range(10)}, xlabel="x", ylabel="y")
    assert len({(line.get_color(), line.get_linestyle()) for line in plain.axes[0].lines}) == 10
    plot.curves({"one": ([1], [0.5])}, kind="cmc")
    with pytest.raises(ShapeError, match="curve 'a'"):
        plot.curves({"a": ([0, 1], [0])})
    with pytest.raises(InputError, match="at least one curve"):
        plot.curves({})


def test_a_heatmap_brings_equal_labels_together() -> None:
    D = np.array([[0, 5, 1], [5, 0, 6], [1, 6, 0]])
    fig = plot.heatmap(D, ["cow", "cup", "cow"])
    assert np.array_equal(fig.axes[0].images[0].get_array(), [[0, 1, 5], [1, 0, 6], [5, 6, 0]])
    assert [t.get_text() for t in fig.axes[0].get_yticklabels()] == ["cow", "cup"]
    plot.heatmap(np.zeros((2, 3)))
    with pytest.raises(ShapeError, match="labels"):
        plot.heatmap(D, ["a"])
    with pytest.raises(ShapeError, match="D:"):
        plot.heatmap([1, 2])
