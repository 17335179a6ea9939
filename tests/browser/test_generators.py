"""The tabs Generators and Runs, as a person uses them: ρ and ψ are dragged, the sample run is watched."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.browser.visits import Visit, crowd

RHO = "#panel-generators .slider:has-text('ρ') input"
PSI = "#panel-generators .slider:has-text('ψ') input"
ALT = "document.querySelector('.grid-picture').alt"
POINTS = "Number(document.querySelector('#panel-runs .chart-line')?.dataset.points ?? 0)"
SOURCE = "document.querySelector('.grid-picture').src"


@pytest.fixture(scope="module")
def window(visits: Any) -> Iterator[Visit]:
    with visits("generators") as v:
        v.wait(".grid-picture:not([hidden])", heavy=True)
        yield v


@pytest.fixture
def generator(window: Visit) -> Visit:
    """The window at ρ = 0 and ψ = 1, whatever another test has left."""
    window.page.get_by_role("button", name="Plain sampling").click()
    window.until(f"({ALT}).includes('ρ = 0.0, ψ = 1.00')", heavy=True)
    return window


def ess(v: Visit) -> float:
    return float(v.page.locator(".gauge .headline-figure").inner_text().strip("<> %"))


def asked(v: Visit, what: str) -> float | None:
    """The ρ of which a grid or a point was asked for last."""
    return next((body["rho"] for path, body in reversed(v.bodies) if path == f"distributions/{what}"), None)


def test_plain_sampling_uses_the_whole_bank_and_resample_draws_others(generator: Visit) -> None:
    generator.until("document.querySelector('.grid-picture').naturalWidth > 50")
    assert generator.page.locator(".end img").count() == 2
    before = generator.page.evaluate(SOURCE)
    generator.page.get_by_role("button", name="Resample").click()
    generator.until(f"was => ({SOURCE}) !== was", before)
    assert ess(generator) == 100


def test_rho_is_dragged_and_the_grid_follows_within_a_second(generator: Visit) -> None:
    before, full = generator.page.evaluate(SOURCE), ess(generator)
    generator.slide(RHO, "-2")
    began = time.monotonic()
    generator.until(f"({ALT}).includes('ρ = \u22122')", heavy=True)
    took = time.monotonic() - began
    speed = generator.page.locator(".samples-card .card-head").inner_text().replace("\n", " ")
    print(f"the grid followed {took:.2f} s after the knob was let go; the server says {speed}")
    assert took < crowd()
    assert generator.page.evaluate(SOURCE) != before
    assert ess(generator) < full
    assert asked(generator, "grid") == pytest.approx(-2, abs=0.15)


def test_the_curves_come_and_the_place_is_measured(generator: Visit) -> None:
    generator.until("document.querySelector('#panel-generators .work').hidden", heavy=True)
    for name in ("precision", "recall", "Fréchet distance"):
        line = generator.page.locator(f".chart-line[data-series='{name}']")
        assert int(line.get_attribute("data-points")) >= 3
    generator.slide(RHO, "-0.5")
    # A measurement of the setting before may still be under way.
    generator.soon(lambda: asked(generator, "point") == pytest.approx(-0.5, abs=0.15), "ρ = −0.5 is asked", heavy=True)
    generator.until("document.querySelector('#panel-generators').textContent.includes('measured here')", heavy=True)
    assert generator.page.locator(".chart-now-ring").count() == 3
    assert 0 <= float(generator.reading("precision", "generators")) <= 1


def test_psi_by_keys_and_rho_by_a_click_on_a_curve(generator: Visit) -> None:
    before = generator.page.evaluate(SOURCE)
    generator.page.locator(PSI).focus()
    generator.page.keyboard.press("Home")
    generator.until(f"was => ({SOURCE}) !== was && !({ALT}).includes('ψ = 1.00')", before)
    box = generator.box(".chart.pickable")
    generator.page.mouse.click(box["x"] + 0.95 * box["width"], box["y"] + box["height"] / 2)
    generator.until("document.querySelector('.slider output').textContent.startsWith('4')")
    generator.until(f"({ALT}).includes('ρ = 4')")


def test_on_a_phone_the_grid_stands_above_the_sliders(visit: Any) -> None:
    v = visit("generators", width=390, colours="dark")
    v.wait(".grid-picture:not([hidden])", heavy=True)
    slider, grid = v.page.locator(RHO).bounding_box(), v.page.locator(".grid-frame").bounding_box()
    assert grid["y"] < slider["y"]
    assert v.sideways() <= 0


def test_the_sample_run_is_started_watched_and_cancelled(visit: Any) -> None:
    v = visit("runs")
    v.wait("#panel-runs h1")
    v.page.get_by_role("button", name="Start the sample run").click()
    v.wait(".run[data-state=running]", heavy=True)
    shown = "s => !document.querySelector(`.run-detail ${s}`).hidden"
    v.wait(".run-detail .card", heavy=True)
    assert v.page.evaluate(shown, ".nothing-logged") != v.page.evaluate(shown, ".chart-box")  # words or a curve
    v.until(f"{POINTS} >= 2", heavy=True)
    assert v.page.locator(".nothing-logged").is_hidden()
    first = v.page.evaluate(POINTS)
    v.until(f"was => {POINTS} > was", first, heavy=True)
    assert v.page.locator("#panel-runs .config tr").count() >= 3
    chosen = v.page.locator(".run[aria-selected=true]").get_attribute("data-run")
    assert v.page.evaluate("decodeURIComponent(location.hash)") == f"#runs/{chosen}"
    names = v.page.locator("#panel-runs select option").all_inner_texts()
    assert len(names) >= 1
    v.page.locator("#panel-runs select").select_option(names[-1])
    v.until("name => document.querySelector('#panel-runs .chart-line')?.dataset.series === name", names[-1])
    v.page.locator(".run-head button", has_text="Cancel").click()
    v.wait(f".run[data-run='{chosen}'][data-state=stopped]", heavy=True)
    v.wait(".run-head .badge.stopped")
    v.page.reload()  # the address leads to the run
    v.wait(f".run[data-run='{chosen}'][aria-selected=true]")
    v.until(f"{POINTS} >= 2")
