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


CURVE = {"points": [[0, 1], [2, 5], [3, None], [4, 9]]}


@pytest.mark.parametrize(
    ("function", "given", "expected"),
    [
        ("numbers.figure", [0.37919], "0.379"),
        ("numbers.figure", [12.345], "12.3"),
        ("numbers.figure", [-0.5], "\u22120.500"),
        ("numbers.figure", [12345], "12\u202f345"),
        ("numbers.figure", [0], "0"),
        ("numbers.figure", [1.5e-6], "1.50 e\u22126"),
        ("numbers.figure", [None], "–"),
        ("numbers.share", [1], "100 %"),
        ("numbers.share", [0.9999], "> 99.9 %"),
        ("numbers.share", [0.0001], "< 0.1 %"),
        ("numbers.whole", [1234567], "1\u202f234\u202f567"),
        ("numbers.seconds", [0.0123], "12 ms"),
        ("numbers.bytes", [1234567], "1.23 MB"),
        ("chart.ticks", [0, 1, 5], [0, 0.2, 0.4, 0.6, 0.8, 1]),
        ("chart.ticks", [-5, 5, 4], [-5, -2.5, 0, 2.5, 5]),
        ("chart.ticks", [0.013, 0.019, 3], [0.014, 0.016, 0.018]),
        ("chart.powers", [0.5, 700], [1, 10, 100]),
        ("chart.powers", [8, 90], [10, 20, 50]),
        ("chart.valueAt", [CURVE, 1], 3),
        ("chart.valueAt", [CURVE, 3], 7),  # what is not known is bridged
        ("chart.valueAt", [CURVE, 0], 1),
        ("chart.valueAt", [CURVE, 5], None),  # not beyond its ends
    ],
)
def test_figures_ticks_and_curves_by_hand(page: Visit, function: str, given: list[Any], expected: Any) -> None:
    words = "async ([module, name, given]) => (await import(`./${module}.js`))[name](...given)"
    assert page.page.evaluate(words, [*function.split("."), given]) == expected
