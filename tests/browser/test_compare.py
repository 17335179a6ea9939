"""The tab Compare, as a person uses it: the verdict and its evidence, photos of one's own, every pixel, one point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.browser.visits import Visit


def across(v: Visit, side: str) -> float:
    """The x of the point that is shown in a or b."""
    return float(v.reading(f"in {side}", "compare").split(",")[0])


def test_the_samples_are_judged_with_their_matches(visit: Any) -> None:
    v = visit("compare")
    v.wait("#panel-compare[data-pair]", heavy=True)
    assert v.page.locator("#panel-compare .verdict").inner_text().startswith("same")
    assert "matches are inliers" in v.page.locator(".said-words").inner_text()
    v.until("Number(document.querySelector('.duo-lines').dataset.count) > 50")
    v.page.get_by_role("button", name="nothing in common").click()
    v.wait("#panel-compare .verdict.different", heavy=True)
    assert v.page.get_by_role("radio", name="Wipe").is_disabled()  # nothing is warped that is not the same
    assert v.page.get_by_role("button", name="Lines").is_disabled()
    v.page.locator("#tab-runs").click()
    v.wait("#panel-runs h1")
    v.page.go_back()
    assert v.wait("#panel-compare .verdict.different")  # what was done is there after another tab


def test_two_photos_of_ones_own_and_where_a_point_went(visit: Any, photos: dict[str, Path]) -> None:
    """b is a, moved by 12 px: what is clicked in a is found 12 px further in b."""
    v = visit("compare", width=390)
    v.wait("#panel-compare[data-pair]", heavy=True)
    v.choose("button[aria-label='Choose photo a']", photos["a"])
    v.until("document.querySelector('.duo-pane[data-side=a] .tag').textContent.includes('a.png')")
    v.drop(".duo-pane[data-side=b]", photos["b"])
    v.until("document.querySelector('.duo-pane[data-side=b] .tag').textContent.includes('b.png')")
    v.wait("#panel-compare[data-pair] .verdict.same", heavy=True)
    v.page.get_by_role("button", name="Align every pixel").click()
    v.wait("#panel-compare .work:not([hidden]) button:has-text('Cancel')").click()
    v.page.locator("#panel-compare .work:not([hidden]) button:has-text('Start again')").click()
    v.wait("#panel-compare[data-key]", heavy=True)
    v.wait("[data-reading='in b']")
    box = v.box(".duo-pane[data-side=a]")
    v.page.mouse.click(box["x"] + 0.3 * box["width"], box["y"] + 0.5 * box["height"])
    v.soon(lambda: across(v, "a") == pytest.approx(0.3 * 256, abs=12), "the point is where the click was")
    assert across(v, "b") - across(v, "a") == pytest.approx(12, abs=0.6)
    marks = [v.page.locator(f"[data-mark={side}]").bounding_box() for side in ("a", "b")]
    assert marks[0]["y"] < marks[1]["y"]  # on a phone b stands below a
    assert v.sideways() <= 0
    v.page.get_by_role("radio", name="Wipe").check()
    v.until("document.querySelector('.duo-pane[data-side=warp] img').naturalWidth === 256")


def test_a_pair_is_opened_by_its_address(visit: Any) -> None:
    v = visit("duplicates")
    v.wait("#panel-duplicates[data-state=done]", heavy=True)
    v.page.locator(".copy:not(.kept) .hit-picture").first.click()
    v.wait(".lightbox[data-shown]", heavy=True)
    v.page.get_by_role("button", name="Open in Compare").click()
    v.wait("#panel-compare[data-pair] .verdict.same", heavy=True)
    assert v.page.evaluate("location.hash").startswith("#compare/")
