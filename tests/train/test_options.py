"""An option declared once behaves the same in Python, on the command line and in the docs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

import click
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import BaseEstimator

from likewise.errors import ConfigError
from likewise.train.options import add_options, build, check, list_options, option, table


@dataclass(frozen=True)
class Settings:
    gamma: float | str = option("auto", "smoothing of the plan", above=0, choices=("auto",))
    tol: float = option(1e-6, "marginal error", above=0, high=1)
    k: int = option(3, "neighbours", low=1)
    n_jobs: int | None = option(None, "processes", low=1)
    rule: str = option("gallery", "whose metric is used", choices=("gallery", "energy", "global"))
    value: Literal["kl", "paper"] = option("kl", "which number")
    title: str = option("", "a name")
    normalize: bool = option(True, "divide by the scale")

    def __post_init__(self) -> None:
        check(self)


@dataclass(eq=False, repr=False)
class Estimator(BaseEstimator):
    gamma: float | str = option("auto", "smoothing", above=0, choices=("auto",))
    k: int = option(3, "neighbours", low=1)


@pytest.mark.parametrize(
    "values",
    [
        {"gamma": 0.5},
        {"gamma": 1},
        {"gamma": np.float32(0.5)},
        {"gamma": "auto"},
        {"gamma": np.str_("auto")},
        {"k": np.int64(7)},
        {"tol": 1},
        {"n_jobs": 2},
        {"n_jobs": None},
        {"normalize": np.bool_(False)},
        {"value": "paper"},
        {"title": "anything"},
    ],
)
def test_right_values_pass(values: dict[str, object]) -> None:
    Settings(**values)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"gamma": 0}, "gamma: expected number > 0 or 'auto', got 0"),
        ({"gamma": float("nan")}, "got nan"),
        ({"gamma": float("inf")}, "got inf"),
        ({"gamma": "aut"}, "did you mean 'auto'?"),
        ({"gamma": True}, "got True"),
        ({"gamma": None}, "got None"),
        ({"tol": 1.5}, "tol: expected number > 0 and ≤ 1, got 1.5"),
        ({"k": 0}, "k: expected integer ≥ 1, got 0"),
        ({"k": 2.0}, "k: expected integer ≥ 1, got 2.0"),
        ({"k": "3"}, "got '3'"),
        ({"n_jobs": 0}, "n_jobs: expected integer ≥ 1 or None, got 0"),
        ({"rule": "galery"}, "did you mean 'gallery'?"),
        ({"rule": 3}, "expected 'gallery' or 'energy' or 'global', got 3"),
        ({"value": "sharp"}, "value: expected 'kl' or 'paper', got 'sharp'"),
        ({"normalize": 1}, "normalize: expected True or False, got 1"),
        ({"title": 1}, "title: expected text, got 1"),
    ],
)
def test_wrong_values_name_the_option_the_bound_and_the_value(values: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings(**values)
    assert words in str(caught.value)
    assert next(iter(values)) in str(caught.value)


def test_a_default_outside_its_own_bounds_is_refused() -> None:
    @dataclass
    class Wrong:
        k: int = option(0, "neighbours", low=1)

    with pytest.raises(ConfigError, match="k: expected integer ≥ 1, got 0"):
        list_options(Wrong)


@given(st.floats())
def test_a_number_passes_exactly_within_its_bounds(x: float) -> None:
    if 0 < x <= 1:
        assert Settings(tol=x).tol == x
    else:
        with pytest.raises(ConfigError):
            Settings(tol=x)


def test_build_refuses_an_unknown_name() -> None:
    assert build(Settings, {"k": 5}).k == 5
    with pytest.raises(ConfigError, match="gama: Settings has no such option; did you mean 'gamma'"):
        build(Settings, {"gama": 1.0})
    with pytest.raises(ConfigError, match="expected integer"):
        build(Estimator, {"k": -1})


@click.command()
@add_options(Settings)
def command(**values: object) -> None:
    click.echo(repr(Settings(**values)))


@click.command()
@add_options(Settings, "k", "rule")
def partial(**values: object) -> None:
    click.echo(repr(sorted(values)))


def test_flags_have_the_python_defaults_and_parse_to_the_python_values() -> None:
    line = "--gamma 0.5 --tol 1e-3 --k 4 --n-jobs 2 --rule energy --value paper --title x --no-normalize"
    for flags, wanted in (
        ("", Settings()),
        (line, Settings(0.5, 1e-3, 4, 2, "energy", "paper", "x", False)),
        ("--n-jobs none --gamma auto", Settings()),
    ):
        assert CliRunner().invoke(command, flags.split()).output.strip() == repr(wanted)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--gamma -1", "gamma: expected number > 0 or 'auto', got -1.0"),
        ("--gamma atuo", "did you mean 'auto'?"),
        ("--k 2.5", "k: expected integer ≥ 1, got '2.5'"),
        ("--rule mean", "rule: expected 'gallery' or 'energy' or 'global', got 'mean'"),
        ("--tol nan", "tol: expected number > 0 and ≤ 1, got nan"),
    ],
)
def test_flags_are_checked_by_the_same_code(line: str, words: str) -> None:
    run = CliRunner().invoke(command, line.split())
    assert run.exit_code == 2
    assert words in run.output


def test_help_says_default_and_bounds() -> None:
    text = " ".join(CliRunner().invoke(command, ["--help"]).output.split())
    assert "smoothing of the plan; number > 0 or 'auto' [default: auto]" in text
    assert "--normalize / --no-normalize" in text
    assert "--rule gallery|energy|global whose metric is used [default: gallery]" in text
    assert "NUMBER|auto" in text


def test_only_the_named_options_become_flags() -> None:
    assert CliRunner().invoke(partial, []).output.strip() == "['k', 'rule']"
    with pytest.raises(KeyError, match="nope"):
        add_options(Settings, "nope")(lambda: None)


def test_the_table_has_one_row_an_option() -> None:
    rows = table(Settings).splitlines()
    assert len(rows) == 2 + len(list_options(Settings))
    assert rows[2] == "| `gamma` | `'auto'` | number > 0 or 'auto' | smoothing of the plan |"


def test_importing_it_imports_nothing_heavy() -> None:
    heavy = ("numpy", "torch", "sklearn")
    code = f"import sys, likewise.train.options; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
