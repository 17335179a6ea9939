"""Figures, ticks and curves as the page writes them, by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.browser.visits import Visit


@pytest.fixture(scope="module")
def page(visits: Any) -> Iterator[Visit]:
    with visits("runs") as v:
        v.wait("#panel-runs h1")
        yield v


def called(v: Visit, module: str, name: str, *arguments: Any) -> Any:
    """What a function of one of the page's modules gives."""
    words = "async ([module, name, given]) => (await import(`./${module}.js`))[name](...given)"
    return v.page.evaluate(words, [module, name, list(arguments)])


@pytest.mark.parametrize(
    ("name", "value", "written"),
    [
        ("figure", 0.37919, "0.379"),
        ("figure", 12.345, "12.3"),
        ("figure", -0.5, "\u22120.500"),
        ("figure", 12345, "12\u202f345"),
        ("figure", 0, "0"),
        ("figure", 1.5e-6, "1.50 e\u22126"),
        ("figure", None, "–"),
        ("share", 1, "100 %"),
        ("share", 0.9999, "> 99.9 %"),
        ("share", 0.0001, "< 0.1 %"),
        ("whole", 1234567, "1\u202f234\u202f567"),
        ("seconds", 0.0123, "12 ms"),
        ("bytes", 1234567, "1.23 MB"),
    ],
)
def test_figures_are_written_as_people_read_them(page: Visit, name: str, value: Any, written: str) -> None:
    assert called(page, "numbers", name, value) == written


def test_ticks_are_round_and_inside(page: Visit) -> None:
    assert called(page, "chart", "ticks", 0, 1, 5) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert called(page, "chart", "ticks", -5, 5, 4) == [-5, -2.5, 0, 2.5, 5]
    assert called(page, "chart", "ticks", 0.013, 0.019, 3) == [0.014, 0.016, 0.018]
    assert called(page, "chart", "powers", 0.5, 700) == [1, 10, 100]
    assert called(page, "chart", "powers", 8, 90) == [10, 20, 50]


def test_a_curve_is_read_between_its_points_and_not_beyond(page: Visit) -> None:
    curve = {"points": [[0, 1], [2, 5], [3, None], [4, 9]]}
    assert called(page, "chart", "valueAt", curve, 1) == 3
    assert called(page, "chart", "valueAt", curve, 3) == 7  # what is not known is bridged
    assert called(page, "chart", "valueAt", curve, 0) == 1
    assert called(page, "chart", "valueAt", curve, 5) is None
