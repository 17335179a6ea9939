"""The tab of images, as a person uses it: the gallery, a query, why, the map, duplicates, a photo of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser.visits import Visit

DONE = """id => {
  const hits = document.querySelector(".hits");
  return hits?.dataset.state === "done" && (!id || hits.dataset.query === id);
}"""


@pytest.fixture(scope="module")
def window(visits: Any) -> Iterator[Visit]:
    with visits("images") as v:
        v.wait(".gallery .thumb", heavy=True)
        v.until(DONE, heavy=True)
        yield v


@pytest.fixture
def gallery(window: Visit) -> Visit:
    """The window with its gallery, no dialogue open, whatever another test has left."""
    window.page.keyboard.press("Escape")
    window.page.get_by_role("radio", name="Gallery").check()
    return window


def searched(v: Visit, thumb: Any) -> list[dict[str, str]]:
    """Click a picture of the collection and read its neighbours."""
    key = thumb.get_attribute("data-id")
    thumb.click()
    v.until(DONE, key, heavy=True)
    return hits(v)


def hits(v: Visit) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = v.page.evaluate(
        """[...document.querySelectorAll('.hit')].map(hit => ({
          rank: hit.dataset.rank, name: hit.querySelector('.hit-name').textContent,
          distance: hit.querySelectorAll('dd')[0].textContent, transport: hit.querySelectorAll('dd')[1].textContent,
          verdict: hit.querySelector('.verdict').textContent}))"""
    )
    return rows


def test_a_picture_of_the_gallery_finds_its_neighbours(gallery: Visit) -> None:
    result = searched(gallery, gallery.page.locator(".gallery .thumb").nth(3))
    assert [row["rank"] for row in result] == [str(n) for n in range(1, len(result) + 1)]
    assert len(result) >= 5
    assert all(float(row["distance"]) >= 0 for row in result)
    words = {row["verdict"].split()[0] for row in result}
    assert words & {"same", "different", "unsure"}
    assert "shortlist" in gallery.page.locator(".hits-card .card-head").inner_text()
    assert gallery.page.locator(".thumb[aria-current=true]").count() == 1
    gallery.page.locator(".tries .thumb").first.click()  # a place of the gallery in other light
    gallery.until("document.querySelector('.hits').classList.contains('stale')")
    gallery.until(DONE, gallery.page.locator(".tries .thumb").first.get_attribute("data-id"), heavy=True)
    assert any(row["verdict"].startswith("same") for row in hits(gallery))


def test_arrow_keys_and_enter_search_too(gallery: Visit) -> None:
    first = gallery.page.locator(".gallery .thumb").first
    first.focus()
    gallery.page.keyboard.press("ArrowRight")
    key = gallery.page.evaluate("document.activeElement.dataset.id")
    assert key
    assert key != first.get_attribute("data-id")
    gallery.page.keyboard.press("Enter")
    gallery.until(DONE, key, heavy=True)
    assert hits(gallery)


def test_why_opens_the_matches(gallery: Visit) -> None:
    gallery.page.locator("[data-why]").first.click()
    assert gallery.wait("dialog.why[open]").is_visible()
    gallery.wait("dialog.why .why-words .verdict", heavy=True)
    gallery.until("[...document.querySelectorAll('dialog.why .why-picture')].some(i => i.naturalWidth > 100)")
    assert int(gallery.page.locator("dialog.why .why-words").get_attribute("data-matches")) > 0
    gallery.drag("dialog.why .wipe", 0.5, 0.1)
    assert 8 <= int(gallery.page.locator("dialog.why .wipe-handle").get_attribute("aria-valuenow")) <= 12
    gallery.page.keyboard.press("Escape")
    gallery.page.locator("dialog.why").wait_for(state="hidden")
    gallery.until("document.activeElement.matches('[data-why]')")  # the focus is where it was


def test_the_map_is_zoomed_moved_and_clicked(gallery: Visit) -> None:
    gallery.page.get_by_role("radio", name="Map").check()
    canvas = gallery.wait(".map canvas")
    box = gallery.box(".map canvas")
    gallery.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    gallery.page.mouse.wheel(0, -400)
    gallery.until("Number(document.querySelector('.map canvas').dataset.zoom) > 1.2")
    centre = canvas.get_attribute("data-centre")
    gallery.drag(".map canvas", 0.5, 0.3)
    gallery.until("was => document.querySelector('.map canvas').dataset.centre !== was", centre)
    canvas.focus()
    gallery.page.keyboard.press("0")
    gallery.until("Number(document.querySelector('.map canvas').dataset.zoom) === 1")
    gallery.page.keyboard.press("+")
    gallery.until("Number(document.querySelector('.map canvas').dataset.zoom) === 1.5")
    gallery.page.keyboard.press("0")
    for key in ("ArrowRight", "ArrowLeft", "ArrowDown", "ArrowUp"):
        gallery.page.keyboard.press(key)
    assert gallery.wait(".map-peek img").is_visible()
    name = gallery.page.locator(".map-said b").inner_text()
    gallery.page.keyboard.press("Enter")
    gallery.until("name => document.querySelector('.query-name').textContent === name", name)
    gallery.until(DONE, heavy=True)


def test_duplicates_are_looked_for(gallery: Visit) -> None:
    gallery.page.get_by_role("radio", name="Duplicates").check()
    gallery.wait(".duplicates .group, .duplicates .empty", heavy=True)
    for group in gallery.page.locator(".duplicates .group").all():
        assert group.locator(".thumb").count() >= 2


@pytest.mark.parametrize("way", ["chooser", "drop"])
def test_a_photo_of_ones_own_is_searched(gallery: Visit, photos: dict[str, Path], way: str) -> None:
    file = photos["a" if way == "chooser" else "b"]
    if way == "chooser":
        gallery.choose("button[aria-label='Search with a photo of your own']", file)
    else:
        gallery.drop("#panel-images .hits-card", file)
    gallery.until("name => document.querySelector('.query-name')?.textContent === name", file.name)
    gallery.until("document.querySelector('.hits').classList.contains('stale') === false", heavy=True)
    gallery.until(DONE, heavy=True)
    assert len(hits(gallery)) >= 5
    assert gallery.page.locator(".thumb[aria-current=true]").count() == 0


def test_on_a_phone_a_tap_leads_to_the_neighbours(visit: Any) -> None:
    v = visit("images", width=390, colours="dark", touch=True)
    v.until(DONE, heavy=True)
    thumb = v.page.locator("[aria-label=Gallery] .thumb").nth(2)
    key = thumb.get_attribute("data-id")
    thumb.tap()
    v.until(DONE, key, heavy=True)
    v.until("document.querySelector('[data-results]').getBoundingClientRect().top < innerHeight / 2")
    assert v.sideways() <= 0
