"""The tab Albums, as a person uses it: γ, metrics, one photo's lines, albums of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser.visits import Visit
from tests.worlds.layouts import video


@pytest.fixture(scope="module")
def window(visits: Any) -> Iterator[tuple[Visit, float]]:
    """The tab, and the γ that it takes by itself."""
    with visits("albums") as v:
        v.wait("#panel-albums[data-gamma]", heavy=True)
        v.until("document.querySelector('#panel-albums .work').hidden", heavy=True)  # the metric is learned, too
        yield v, drawn(v)


@pytest.fixture
def albums(window: tuple[Visit, float]) -> Visit:
    """The window under the learned metric at that γ, whatever another test has left."""
    v, automatic = window
    v.page.get_by_role("radio", name="learned").check()
    v.page.get_by_role("button", name="Automatic γ").click()
    v.until("document.querySelector('#panel-albums [data-reading=metric]').textContent === 'learned'", heavy=True)
    v.soon(lambda: drawn(v) == pytest.approx(automatic), "the plan is that of the automatic γ")
    return v


def bands(v: Visit) -> dict[tuple[str, str], float]:
    """The mass of each band that is drawn."""
    rows = v.page.evaluate(
        "[...document.querySelectorAll('.bands path')].map(p => [p.dataset.from, p.dataset.to, p.dataset.mass])"
    )
    return {(i, j): float(mass) for i, j, mass in rows}


def distance(v: Visit) -> float:
    return float(v.page.locator("#panel-albums .headline-figure").inner_text().replace("\u2212", "-"))


def drawn(v: Visit) -> float:
    """The γ of the plan that is drawn."""
    return float(v.page.locator("#panel-albums").get_attribute("data-gamma"))


def asked(v: Visit) -> float:
    """The γ that was asked for last."""
    return float([body["gamma"] for path, body in v.bodies if path == "sets/plan" and body["gamma"]][-1])


def test_the_bands_carry_all_the_mass(albums: Visit) -> None:
    assert sum(bands(albums).values()) == pytest.approx(1, abs=0.02)
    assert int(albums.page.locator(".bands").get_attribute("data-bands")) == len(bands(albums))
    assert albums.reading("converged", "albums") == "yes"


def test_gamma_is_dragged_and_the_lines_change(albums: Visit) -> None:
    before, gamma = bands(albums), albums.page.locator("#panel-albums").get_attribute("data-gamma")
    albums.drag("#panel-albums input[type=range]", 0.5, 0.97)
    albums.until("was => document.querySelector('#panel-albums').dataset.gamma !== was", gamma)
    albums.until("was => document.querySelectorAll('.band').length > was", len(before))  # smooth: more pairs share mass
    albums.soon(lambda: drawn(albums) == pytest.approx(asked(albums)), "the plan is that of the last γ asked for")
    assert max(bands(albums).values()) < max(before.values())
    albums.page.get_by_role("button", name="Automatic γ").click()
    albums.until("was => document.querySelector('#panel-albums').dataset.gamma === was", gamma)
    albums.soon(lambda: bands(albums) == before, "the plan is the first one again")


def test_the_metric_is_switched(albums: Visit) -> None:
    before = distance(albums)
    for name in ("identity", "learned"):
        albums.page.get_by_role("radio", name=name).check()
        albums.until("name => document.querySelector('#panel-albums [data-reading=metric]').textContent === name", name)
        assert (distance(albums) == before) == (name == "learned")


def test_one_photo_shows_only_its_lines_with_their_masses(albums: Visit) -> None:
    tile = albums.page.locator(".album[data-side=a] .tile").first
    tile.hover()
    mine = albums.wait(".band.mine")
    assert mine.is_visible()
    count = albums.page.locator(".band.mine").count()
    assert count + albums.page.locator(".band.off").count() == len(bands(albums))
    shares = [t for t in albums.page.locator(".album[data-side=b] .tile-mass").all_inner_texts() if t]
    assert sum(float(t.strip("<> %")) for t in shares) == pytest.approx(100, abs=3)
    albums.page.locator("h1:visible").hover()
    albums.until("document.querySelectorAll('.band.mine').length === 0")
    tile.focus()
    albums.wait(".band.mine")
    albums.page.keyboard.press("ArrowDown")
    albums.until("document.activeElement === document.querySelectorAll('.album[data-side=a] .tile')[1]")
    albums.page.keyboard.press("ArrowRight")
    albums.until("document.activeElement.closest('.album')?.dataset.side === 'b'")
    assert albums.page.locator("#panel-albums .partners li").count() >= 1


def test_albums_of_ones_own(visit: Any, photos: dict[str, Path]) -> None:
    v = visit("albums", width=390, colours="dark")
    v.wait(".album[data-side=a] .tile")
    v.choose("button[aria-label='Choose photos for album a']", photos["a"], photos["b"])
    v.until("document.querySelectorAll('.album[data-side=a] .tile').length === 2")
    v.drop(".album[data-side=b]", photos["b"])
    v.until("document.querySelectorAll('.album[data-side=b] .tile').length === 1")
    v.until("document.querySelectorAll('.bands path').length === 2", heavy=True)
    assert list(bands(v).values()) == pytest.approx([0.5, 0.5])
    assert v.sideways() <= 0


def test_a_video_is_an_album_of_its_frames_and_a_bad_file_is_left_out(
    visit: Any, photos: dict[str, Path], tmp_path: Path
) -> None:
    pytest.importorskip("av")
    v = visit("albums")
    v.wait(".album[data-side=a] .tile")
    film = video(tmp_path / "film.mp4", frames=6)
    v.choose("button[aria-label='Choose photos for album b']", film, photos["words"], photos["a"])
    v.until("document.querySelectorAll('.album[data-side=b] .tile').length === 7")
    v.wait("#panel-albums .left-out")
    words = v.page.locator("#panel-albums .left-out").inner_text()
    assert words.startswith("One file was left out of album b:")
    assert v.refusal(photos["words"]) in words
    v.until("document.querySelectorAll('.bands path').length > 0", heavy=True)
    assert sum(bands(v).values()) == pytest.approx(1, abs=0.02)
    v.page.get_by_role("button", name="Samples").click()
    v.until("!document.querySelector('#panel-albums .left-out')")
    v.forgive("422")
