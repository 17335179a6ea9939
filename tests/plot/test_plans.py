"""Plans: their lines carry the masses, their orders untangle, their files are whole and repeatable."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.patches import PathPatch
from PIL import Image

from likewise import plot
from likewise.errors import InputError, ShapeError
from likewise.plot import plans
from likewise.types import Signature


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
    assert plans.crossings(F) == pytest.approx(crossings_by_loops(F), abs=1e-12)


@given(st.integers(2, 9), st.integers(0, 50))
def test_a_shuffled_matching_is_untangled(m: int, seed: int) -> None:
    """A band of masses around the diagonal, shuffled: the order found crosses no more than the band."""
    draw = np.random.default_rng(seed)
    band = np.eye(m) + 0.3 * np.eye(m, k=1)
    F = band[np.ix_(draw.permutation(m), draw.permutation(m))]
    rows, columns = plans.untangle(F)
    assert sorted(rows) == sorted(columns) == list(range(m))
    assert plans.crossings(F[np.ix_(rows, columns)]) <= plans.crossings(band) + 1e-12


def test_width_is_in_proportion_to_mass_and_opacity_rises_with_it() -> None:
    F = np.array([[0.4, 0.1], [0.2, 0.3]])
    drawn = sorted(lines(plot.plan(bag(2), bag(2, 1), F)), key=lambda p: p.get_linewidth())
    widths = np.array([p.get_linewidth() for p in drawn])
    alphas = [p.get_alpha() for p in drawn]
    assert widths / widths.sum() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert alphas == sorted(alphas)
    assert alphas[0] < alphas[-1]


def test_only_masses_that_can_be_seen_are_drawn() -> None:
    F = np.array([[0.9, 0.001], [0.0, 0.099]])
    assert len(lines(plot.plan(bag(2), bag(2, 1), F))) == 2
    many = random_plan(30, 30)
    assert len(lines(plot.plan(bag(30), bag(30, 1), many))) <= 3 * 60


def test_a_large_set_is_cut_to_its_heaviest_points_and_says_so() -> None:
    weights = np.array([0.05, 0.5, 0.05, 0.4])
    p = Signature(np.zeros((4, 2)), weights)
    fig = plot.plan(p, bag(2), random_plan(4, 2), most=2)
    assert "2 light points left out" in words(fig)
    assert "50 %" in words(fig)
    assert "40 %" in words(fig)
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
    assert grey.axes[0].images[0].get_array().shape == (160, 160)
    with pytest.raises(ShapeError, match="thumbnails of P: expected 2"):
        plot.plan(bag(2), bag(1), random_plan(2, 1), thumbnails=([red], None))
    with pytest.raises(ShapeError, match="expected images"):
        plot.plan(bag(1), bag(1), np.ones((1, 1)), thumbnails=([np.zeros(3)], None))


@pytest.mark.parametrize(
    ("F", "error", "message"),
    [
        (np.ones((3, 2)), ShapeError, "F: expected \\(2, 2\\)"),
        (-np.ones((2, 2)), InputError, "masses ≥ 0"),
        (np.full((2, 2), np.nan), InputError, "masses ≥ 0"),
    ],
)
def test_a_wrong_plan_is_refused(F: np.ndarray, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        plot.plan(bag(2), bag(2, 1), F)
    with pytest.raises(InputError, match="most"):
        plot.plan(bag(2), bag(2, 1), np.ones((2, 2)), most=0)


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf", ".jpg"])
def test_the_same_figure_gives_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    files = []
    for name in ("a", "b"):
        fig = plot.plan(bag(3), bag(4, 1), random_plan(3, 4), title="twice")
        files.append(plot.save(fig, tmp_path / (name + suffix)).read_bytes())
    assert files[0] == files[1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a" + suffix, "b" + suffix]


def test_an_unknown_suffix_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ends in \.png"):
        plot.save(plot.curves({"a": ([0, 1], [0, 1])}), tmp_path / "a.exe")
    assert list(tmp_path.iterdir()) == []


def test_drawing_never_imports_pyplot() -> None:
    code = (
        "import sys; from likewise import plot; assert 'matplotlib' not in sys.modules;"
        "plot.curves({'a': ([0, 1], [0, 1])}); assert 'matplotlib.figure' in sys.modules;"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
