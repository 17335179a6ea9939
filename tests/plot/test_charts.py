"""Charts: curves, spectra, frontiers, maps of points; plans whose lines carry the masses and whose orders untangle."""

from __future__ import annotations

import itertools
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.patches import PathPatch
from PIL import Image

from likewise import plot
from likewise.errors import InputError, ShapeError
from likewise.plot import charts
from likewise.types import Signature


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


def test_a_spectrum_is_drawn_by_its_median_and_dead_values_are_left_out() -> None:
    rows = np.log(np.array([[3.0, 2.0, 1.0], [5.0, 2.0, 1.0], [4.0, 2.0, 0.5]]))
    rows = np.vstack([rows, [np.log(4.0), np.log(2.0), -np.inf]])
    fig = plot.spectrum({"ρ = 0": rows})
    line = fig.axes[0].lines[0]
    np.testing.assert_array_equal(line.get_xdata(), [1, 2, 3])
    np.testing.assert_allclose(line.get_ydata(), np.log([4.0, 2.0, 1.0]))


def test_curves_have_one_line_each() -> None:
    x = np.arange(1, 11)
    ax = plot.curves({"a": (x, x / 10), "b": (x, x / 20)}, title="t").axes[0]
    assert [line.get_label() for line in ax.lines] == ["a", "b"]
    assert np.array_equal(ax.lines[0].get_ydata(), x / 10)
    plain = plot.curves({str(i): ([0, 1], [0, i]) for i in range(10)}, xlabel="x", ylabel="y")
    assert len({(line.get_color(), line.get_linestyle()) for line in plain.axes[0].lines}) == 10


def plan(F: Any, **options: Any) -> Any:
    return plot.plan(bag(2), bag(2, 1), F, **options)


@pytest.mark.parametrize(
    ("draw", "items", "error", "message"),
    [
        (plan, (np.ones((3, 2)),), ShapeError, "F: expected \\(2, 2\\)"),
        (plan, (-np.ones((2, 2)),), InputError, "masses ≥ 0"),
        (plan, (np.full((2, 2), np.nan),), InputError, "masses ≥ 0"),
        (partial(plan, most=0), (np.ones((2, 2)),), InputError, "most"),
        (partial(plan, thumbnails=([None], None)), (np.ones((2, 2)),), ShapeError, "thumbnails of P: expected 2"),
        (partial(plan, thumbnails=([np.zeros(3)] * 2, None)), (np.ones((2, 2)),), ShapeError, "thumbnails: expected"),
        (plot.curves, ({"a": ([0, 1], [0])},), ShapeError, "curve 'a'"),
        (plot.curves, ({},), InputError, "at least one curve"),
        (plot.spectrum, ({"a": [[np.nan]]},), ShapeError, "group 'a'"),
        (plot.spectrum, ({},), InputError, "at least one"),
        (plot.frontier, ([],), InputError, "at least one"),
        (plot.frontier, ([{"rho": 0, "psi": 1, "precision": 0.5}],), InputError, "cell 0 has no finite 'recall'"),
        (plot.cover_map, (np.zeros((9, 2)), np.zeros((7, 2)), np.zeros(4, bool)), ShapeError, "uncovered"),
        (plot.cover_map, (np.zeros((9, 2)), np.zeros((7, 3)), np.zeros(9, bool)), ShapeError, "fake"),
    ],
)
def test_what_cannot_be_drawn(draw: Any, items: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        draw(*items)


# ── transport plans ───────────────────────────────────────────────────────────────────────────────────────────────


def bag(m: int, seed: int = 0, **kwargs: object) -> Signature:
    draw = np.random.default_rng(seed)
    return Signature(draw.normal(size=(m, 2)), draw.uniform(0.2, 1.0, m), **kwargs)


def random_plan(m: int, n: int, seed: int = 0) -> np.ndarray:
    F = np.random.default_rng(seed).uniform(size=(m, n)) ** 3
    return F / F.sum()


def lines(fig) -> list[PathPatch]:
    return [p for p in fig.axes[0].patches if isinstance(p, PathPatch)]


def words(fig) -> str:
    return " | ".join(t.get_text() for t in fig.axes[0].texts)


def crossings_by_loops(F: np.ndarray) -> float:
    total = 0.0
    for i, k in itertools.combinations(range(len(F)), 2):
        for j in range(F.shape[1]):
            for l in range(j):
                total += F[i, j] * F[k, l]
    return total


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 50))
def test_crossings_are_those_of_the_loops(m: int, n: int, seed: int) -> None:
    F = random_plan(m, n, seed)
    assert charts.crossings(F) == pytest.approx(crossings_by_loops(F), abs=1e-12)


@given(st.integers(2, 9), st.integers(0, 50))
def test_a_shuffled_matching_is_untangled(m: int, seed: int) -> None:
    """A band of masses around the diagonal, shuffled: the order found crosses no more than the band."""
    draw = np.random.default_rng(seed)
    band = np.eye(m) + 0.3 * np.eye(m, k=1)
    F = band[np.ix_(draw.permutation(m), draw.permutation(m))]
    rows, columns = charts.untangle(F)
    assert sorted(rows) == sorted(columns) == list(range(m))
    assert charts.crossings(F[np.ix_(rows, columns)]) <= charts.crossings(band) + 1e-12


def test_width_is_in_proportion_to_mass_and_opacity_rises_with_it() -> None:
    F = np.array([[0.4, 0.1], [0.2, 0.3]])
    drawn = sorted(lines(plot.plan(bag(2), bag(2, 1), F)), key=lambda p: p.get_linewidth())
    widths, alphas = np.array([p.get_linewidth() for p in drawn]), [p.get_alpha() for p in drawn]
    assert widths / widths.sum() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert sorted(set(alphas)) == alphas


def test_only_masses_that_can_be_seen_are_drawn() -> None:
    F = np.array([[0.9, 0.001], [0.0, 0.099]])
    assert len(lines(plot.plan(bag(2), bag(2, 1), F))) == 2
    assert len(lines(plot.plan(bag(20), bag(20, 1), random_plan(20, 20)))) <= 3 * 40


def test_a_large_set_is_cut_to_its_heaviest_points_and_says_so() -> None:
    weights = np.array([0.05, 0.5, 0.05, 0.4])
    p = Signature(np.zeros((4, 2)), weights)
    fig = plot.plan(p, bag(2), random_plan(4, 2), most=2)
    assert all(said in words(fig) for said in ("2 light points left out", "50 %", "40 %"))
    assert "5 %" not in words(fig).replace("50 %", "")
    assert "left out" not in words(plot.plan(p, bag(2), random_plan(4, 2)))


def test_thumbnails_come_from_names_from_arrays_and_from_files(tmp_path: Path) -> None:
    red = np.zeros((40, 60, 3), dtype=np.uint8)
    red[..., 0] = 255
    Image.fromarray(red).save(tmp_path / "red.png")
    named = bag(2, names=[str(tmp_path / "red.png"), "frame 7"])
    fig = plot.plan(named, bag(1), random_plan(2, 1))
    assert [im.get_array().shape for im in fig.axes[0].images] == [(40, 40, 3)]
    handed = plot.plan(
        bag(2), bag(1), random_plan(2, 1), thumbnails=([red, tmp_path / "red.png"], [red.transpose(2, 0, 1)])
    )
    assert len(handed.axes[0].images) == 3
    grey = plot.plan(
        bag(1), bag(1), np.ones((1, 1)), thumbnails=([np.linspace(0, 1, 300 * 200).reshape(300, 200)], None)
    )
    assert grey.axes[0].images[0].get_array().shape == (160, 160, 3)


def test_the_same_figure_gives_the_same_bytes_and_an_unknown_suffix_is_refused(tmp_path: Path) -> None:
    one, two = (plot.plan(bag(3), bag(4, 1), random_plan(3, 4), title="twice") for _ in range(2))
    for suffix in (".png", ".svg", ".pdf", ".jpg"):
        files = [plot.save(fig, tmp_path / (name + suffix)) for name, fig in (("a", one), ("b", two))]
        assert files[0].read_bytes() == files[1].read_bytes()
    with pytest.raises(InputError, match=r"ends in \.png"):
        plot.save(one, tmp_path / "a.exe")
    assert len(list(tmp_path.iterdir())) == 8


def test_drawing_never_imports_pyplot() -> None:
    code = (
        "import sys; from likewise import plot; assert 'matplotlib' not in sys.modules;"
        "plot.curves({'a': ([0, 1], [0, 1])}); assert 'matplotlib.figure' in sys.modules;"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
