"""The tabs Find and Duplicates, as a person uses them: a photo, what shows the same, why, when, where; and copies."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser.visits import Visit

DONE = "id => document.querySelector(`.answer[data-state=done]${id ? `[data-query='${id}']` : ''}`) !== null"
READY = "document.querySelector('.collection .collection-bar')?.textContent.includes('15 photos.')"
ZOOM = "Number(document.querySelector('.lightbox .duo').dataset.zoom)"
MOVES = "[...document.querySelectorAll('.lightbox .duo-pane:not([hidden]) img')].map(i => i.style.transform)"


@pytest.fixture(scope="module")
def window(visits: Any) -> Iterator[Visit]:
    with visits("find") as v:
        v.wait("[aria-label=Gallery] .thumb")
        assert v.page.locator(".results").is_hidden()
        v.until(READY, heavy=True)
        assert not [path for path, _ in v.bodies if path in ("images/search", "images/map")]  # nobody has asked
        yield v


@pytest.fixture
def find(window: Visit) -> Visit:
    """The window with its gallery and all dates, no dialogue open, whatever another test has left."""
    window.page.keyboard.press("Escape")
    window.page.get_by_role("radio", name="Gallery").check()
    if window.page.locator(".dates button").is_visible():
        window.page.locator(".dates button").click()
        window.until(DONE, heavy=True)
    return window


def search(v: Visit, name: str) -> list[dict[str, Any]]:
    """Click a photo of the gallery, and read the cards."""
    thumb = v.page.locator(f"[aria-label=Gallery] .thumb[title='{name}']")
    thumb.click()
    v.until(DONE, thumb.get_attribute("data-id"), heavy=True)
    return cards(v)


def cards(v: Visit) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = v.page.evaluate(
        """[...document.querySelectorAll('.hit')].map(hit => ({
          name: hit.querySelector('.hit-name').textContent, verdict: hit.querySelector('.verdict').textContent,
          words: hit.querySelector('.hit-words')?.textContent, section: hit.closest('section, details').ariaLabel}))"""
    )
    return rows


def test_a_photo_finds_the_same_and_says_whether_that_is_verified(find: Visit) -> None:
    result = search(find, "places/cup.jpg")
    same = [row for row in result if row["section"] == "The same"]
    assert {row["name"] for row in same} == {"cup, copy.jpg", "cup, moved.jpg"}  # basenames, and nothing else
    assert result[: len(same)] == same
    assert all(row["verdict"].startswith("same") for row in same)
    rest = [row for row in result if row["section"] == "Similar, not verified"]
    assert rest
    assert {row["verdict"] for row in rest} == {"not verified"}
    assert "2 photos show the same" in find.page.locator(".summary").inner_text()
    assert find.page.locator(".others").get_attribute("open") is None  # what is different is not painted on the wall
    find.page.locator("[aria-label=Gallery] .thumb").first.focus()
    find.page.keyboard.press("ArrowRight")
    key = find.page.evaluate("document.activeElement.dataset.id")
    find.page.keyboard.press("Enter")
    find.until(DONE, key, heavy=True)


def test_why_opens_what_the_card_says_zoomed_as_one_and_wiped(find: Visit) -> None:
    card = next(row for row in search(find, "places/cup.jpg") if row["name"] == "cup, moved.jpg")
    find.page.locator(".hit:has-text('cup, moved.jpg') [data-why]").click()
    find.wait(".lightbox[data-shown]", heavy=True)
    assert find.page.locator(".lightbox .verdict").text_content() == card["verdict"]
    inliers = card["words"].split()[0] if "inliers" in card["words"] else ""
    assert inliers in find.page.locator(".lightbox-words").inner_text()
    find.until("Number(document.querySelector('.lightbox .duo-lines').dataset.count) >= 15")
    before = find.page.evaluate(MOVES)
    box = find.box(".lightbox .duo")
    find.page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.6 * box["height"])
    find.page.mouse.wheel(0, -600)
    find.until(f"{ZOOM} > 2")
    near = find.page.evaluate(MOVES)
    assert [a != b for a, b in zip(before, near, strict=True)] == [True, True]  # both, at once
    find.drag(".lightbox .duo", 0.3, 0.2)
    assert [a != b for a, b in zip(near, find.page.evaluate(MOVES), strict=True)] == [True, True]
    find.page.get_by_role("button", name="Lines").click()
    assert find.page.locator(".lightbox .duo-lines path.line").count() == 0
    find.page.keyboard.press("0")
    find.page.get_by_role("radio", name="Wipe").check()
    find.until("document.querySelector('.lightbox [data-side=warp] img').naturalWidth > 100")
    find.drag(".lightbox .duo", 0.5, 0.1)
    handle = find.page.locator(".lightbox .wipe-handle")
    assert 8 <= int(handle.get_attribute("aria-valuenow")) <= 12
    find.page.keyboard.press("End")
    assert handle.get_attribute("aria-valuenow") == "100"
    assert "100" in find.page.locator(".lightbox [data-side=warp]").evaluate("e => e.style.clipPath")
    find.page.keyboard.press("Escape")
    find.until("document.activeElement.matches('[data-why]')")  # the focus is where it was


def test_a_hit_that_was_not_verified_is_verified_when_it_is_opened(find: Visit) -> None:
    search(find, "places/cup.jpg")
    button = find.page.locator("[data-why]:has-text('Verify')").first
    key = button.get_attribute("data-why")
    button.click()
    find.wait(f".lightbox[data-shown$='{key}']", heavy=True)
    said = find.page.locator(".lightbox .verdict").text_content()
    find.page.keyboard.press("Escape")
    assert find.page.locator(f".hit[data-id='{key}'] .verdict").text_content() == said


def test_dates_leave_out_what_was_taken_at_other_times(find: Visit) -> None:
    search(find, "places/cup.jpg")
    find.page.get_by_label("Taken from").fill("2024-06-01")
    find.soon(lambda: bool(find.bodies[-1][1].get("since")), "the search knows the date")
    find.until(DONE, heavy=True)
    assert {row["name"] for row in cards(find)} == {"cup, moved.jpg"}
    assert find.page.locator("[aria-label=Gallery] [role=listitem]:not([hidden])").count() == 1
    assert "12 have no date" in find.page.locator(".collection-bar").inner_text()


@pytest.mark.parametrize("view", ["Map", "Places"])
def test_maps_are_zoomed_moved_and_searched_by_key(find: Visit, view: str) -> None:
    find.page.get_by_role("radio", name=view).check()
    canvas = find.wait(".map canvas:visible")
    find.soon(lambda: int(canvas.get_attribute("data-shown") or 0) >= 2, "photos are drawn", heavy=True)
    if view == "Places":
        assert canvas.get_attribute("data-scale").endswith(" m")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    find.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    find.page.mouse.wheel(0, -400)
    find.soon(lambda: float(canvas.get_attribute("data-zoom")) > 1.2, "the wheel zooms")
    canvas.focus()
    find.page.keyboard.press("0")
    find.soon(lambda: float(canvas.get_attribute("data-zoom")) == 1, "0 shows the whole map")
    for key in ("ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp"):
        find.page.keyboard.press(key)
    name = find.page.locator(".map-said:visible b").inner_text()
    find.page.keyboard.press("Enter")
    find.until("name => document.querySelector('.query-name').title === name", name)
    find.until(DONE, heavy=True)


@pytest.mark.parametrize("way", ["chooser", "drop"])
def test_a_photo_of_ones_own_is_searched(find: Visit, photos: dict[str, Path], way: str) -> None:
    file = photos["a" if way == "chooser" else "b"]
    if way == "chooser":
        find.choose(".ask button", file)
    else:
        find.drop("#panel-find .collection", file)
    find.until("name => document.querySelector('.query-name')?.textContent === name", file.name)
    find.until("document.querySelector('.answer').dataset.state === 'done'", heavy=True)
    find.until("!document.querySelector('.answer').classList.contains('stale')", heavy=True)
    assert cards(find)[0]["verdict"].startswith("same")


def test_on_a_phone_the_result_comes_before_the_controls(visit: Any) -> None:
    v = visit("find", width=390, colours="dark", touch=True)
    v.until(READY, heavy=True)
    v.page.locator("[aria-label=Gallery] .thumb[title='places/cup.jpg']").tap()
    v.until(DONE, heavy=True)
    v.until("document.querySelector('.results').getBoundingClientRect().top < innerHeight / 2")
    assert v.box(".answer")["y"] < v.box(".ask")["y"]
    v.page.locator(".hit-picture").first.tap()
    v.wait(".lightbox[data-shown]", heavy=True)
    panes = [v.page.locator(f".lightbox [data-side={side}]").bounding_box() for side in ("a", "b")]
    assert panes[0]["y"] < panes[1]["y"]
    assert v.sideways() <= 0


def test_copies_are_grouped_looked_at_and_saved(visit: Any, tmp_path: Path) -> None:
    v = visit("duplicates")
    v.wait("#panel-duplicates[data-state=done]", heavy=True)
    group = v.page.locator(".group:has-text('cup, copy.jpg')")
    kept, other = group.locator(".copy.kept"), group.locator(".copy:not(.kept)").first
    assert "keep" in kept.inner_text()
    assert "kB" in other.inner_text()
    name = other.locator(".hit-name").inner_text()
    other.locator(".hit-picture").click()
    v.wait(".lightbox[data-shown] .verdict.same", heavy=True)
    v.page.keyboard.press("Escape")
    other.get_by_role("button", name="Keep this one").click()
    assert kept.locator(".hit-name").inner_text() == name
    with v.page.expect_download() as saved:
        v.page.get_by_role("button", name="CSV").click()
    saved.value.save_as(tmp_path / "list.csv")
    with open(tmp_path / "list.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [Path(row["path"]).name for row in rows if row["keep"] == "true" and "cup" in row["path"]] == [name]
    assert all(Path(row["path"]).is_file() for row in rows)  # full paths; and no file was touched
