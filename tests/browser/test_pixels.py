"""The tab of pixels, as a person uses it: samples, uploads, the edge, a point, matches and their radius."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser.visits import Visit


@pytest.fixture(scope="module")
def sample(visits: Any) -> Iterator[Visit]:
    """The first visit: the first sample is compared by itself."""
    with visits("pixels") as v:
        v.wait("#panel-pixels[data-key]", heavy=True)
        v.wait(".legend button")
        yield v


def lines(v: Visit) -> dict[str, int]:
    """How many matches are drawn of each kind."""
    groups = v.page.locator(".pair-lines g[data-group]")
    return {g.get_attribute("data-group"): int(g.get_attribute("data-count")) for g in groups.all()}


def test_the_figures_of_the_sample_are_read(sample: Visit) -> None:
    assert 0 < float(sample.page.locator("#panel-pixels .headline-figure").inner_text()) < 5
    assert re.fullmatch(r"\d+ %", sample.reading("round-trip consistency", "pixels"))
    sample.soon(lambda: sample.reading("both show the same?", "pixels").startswith("same"), "the verdict is there")
    assert sample.page.locator("#panel-pixels .steps li").count() >= 1
    assert sample.page.locator(".wheel-disc").is_visible()


def test_the_edge_between_before_and_after_is_dragged_and_typed(sample: Visit) -> None:
    handle = sample.page.locator(".wipe-handle")
    sample.drag(".wipe", 0.5, 0.2)
    assert 18 <= int(handle.get_attribute("aria-valuenow")) <= 22
    handle.focus()
    sample.page.keyboard.press("ArrowRight")
    assert 20 <= int(handle.get_attribute("aria-valuenow")) <= 24
    sample.page.keyboard.press("End")
    assert handle.get_attribute("aria-valuenow") == "100"
    assert "100%" in sample.page.locator(".wipe-after").evaluate("e => e.style.clipPath")
    sample.page.keyboard.press("Home")
    assert handle.get_attribute("aria-valuenow") == "0"
    sample.page.get_by_role("radio", name="confidence").check()
    sample.until("document.querySelector('.wipe .tag-right').textContent.startsWith('confidence')")


def across(v: Visit) -> float:
    """The x of the point that is shown in a."""
    return float(v.reading("in a", "pixels").split(",")[0])


def test_a_point_is_clicked_and_moved_by_keys(sample: Visit) -> None:
    box = sample.box(".frame[data-side=a] img")
    sample.page.mouse.click(box["x"] + 0.3 * box["width"], box["y"] + 0.6 * box["height"])
    width = int(sample.reading("size of a", "pixels").split()[0])
    sample.soon(lambda: across(sample) == pytest.approx(0.3 * width, abs=1.5), "the point is where the click was")
    assert "%" in sample.reading("confidence", "pixels")
    assert sample.page.locator("[data-mark=asked]").is_visible()
    sample.page.locator(".frame[data-side=a] .frame-stage").focus()
    sample.page.keyboard.press("Shift+ArrowRight")
    sample.soon(lambda: across(sample) == pytest.approx(0.35 * width, abs=2.5), "the key has moved the point")


def test_the_radius_changes_the_matches_while_it_is_dragged(sample: Visit) -> None:
    before = lines(sample)
    words = "document.querySelector('[data-total]').dataset.total"
    total = sample.page.evaluate(words)
    sample.slide("#panel-pixels .under input[type=range]", "1")
    sample.until(f"was => {words} !== was", total)
    assert lines(sample) != before
    assert lines(sample)["stage1"] > 0
    asked = [body["radius"] for path, body in sample.bodies if path == "pixels/match"]
    assert asked[-1] == pytest.approx(1, abs=0.5)


def test_kinds_of_matches_are_hidden_and_shown(sample: Visit) -> None:
    sample.page.locator(".legend button[data-group=outlier]").click()
    assert not sample.page.locator("g[data-group=outlier]").is_visible()
    sample.page.locator(".legend button[data-group=outlier]").click()
    assert "off" not in sample.page.locator("g[data-group=outlier]").get_attribute("class")


def test_what_was_done_is_there_after_another_tab(sample: Visit) -> None:
    key = sample.page.locator("#panel-pixels").get_attribute("data-key")
    sample.page.locator("#tab-runs").click()
    sample.wait("#panel-runs h1")
    sample.page.go_back()
    sample.wait(".pair")
    assert sample.page.locator("#panel-pixels").get_attribute("data-key") == key
    assert lines(sample)["stage1"] > 0


def test_two_photos_of_ones_own_by_the_chooser_and_by_a_drop(visit: Any, photos: dict[str, Path]) -> None:
    """b is a, moved by 12 px: what is clicked in a is found 12 px further in b."""
    v = visit("pixels", width=390)
    v.wait(".frame[data-side=a] img:not([hidden])")
    v.choose("button[aria-label='Choose photo a']", photos["a"])
    v.until("document.querySelector('.frame[data-side=a] figcaption').textContent.includes('a.png')")
    v.drop(".frame[data-side=b]", photos["b"])
    v.until("document.querySelector('.frame[data-side=b] figcaption').textContent.includes('b.png')")
    v.until("document.querySelector('[data-reading=\"size of a\"]')?.textContent === '256 × 192'", heavy=True)
    v.wait("[data-mark=found]")
    x, y = (float(c) for c in v.reading("in a", "pixels").split(","))
    x2, y2 = (float(c) for c in v.reading("in b", "pixels").split(","))
    assert (x2 - x, y2 - y) == pytest.approx((12, 0), abs=0.5)
    marks = [v.page.locator(f"[data-mark={m}]") for m in ("asked", "found")]
    v.soon(lambda: all(m.bounding_box() for m in marks), "both marks are drawn")
    a, b = (m.bounding_box() for m in marks)
    assert b["y"] > a["y"]  # on a phone b stands below a
    assert v.sideways() <= 0
    v.page.locator(".work button", has_text="Cancel").wait_for(state="hidden")


def test_a_comparison_is_cancelled_and_started_again(visit: Any) -> None:
    v = visit("pixels")
    v.wait("#panel-pixels .work button:has-text('Cancel')").click()
    v.wait("#panel-pixels .work:has-text('Cancelled')")
    assert v.page.locator("#panel-pixels").get_attribute("data-key") is None
    v.page.locator("#panel-pixels .work button:has-text('Start again')").click()
    v.wait("#panel-pixels[data-key]", heavy=True)
