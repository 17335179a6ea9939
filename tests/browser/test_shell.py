"""The shell: tabs by key, by link and by the back button; colours; widths; a server that goes away."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.browser.visits import Visit, cpu, crowd, started, stopped

TABS = ("find", "duplicates", "compare", "albums", "generators", "runs")
INKS = (
    *(("ink", ground) for ground in ("surface", "ground", "sunken")),
    *(("quiet", ground) for ground in ("surface", "ground", "sunken")),
    *((tone, ground) for tone in ("accent", "different") for ground in ("surface", f"{tone}-soft")),
    *((verdict, f"{verdict}-soft") for verdict in ("same", "unsure")),
    ("on-accent", "accent"),
)
"""Which inks words are set in, on which grounds."""
CLIPPED = """[...document.querySelectorAll("[role=tab]")]
  .filter(t => t.getBoundingClientRect().right > innerWidth || t.scrollWidth > t.clientWidth + 1).map(t => t.id)"""
NAMELESS = """() => {
  const pressed = "button, select, input:not([hidden]), [role=slider], [tabindex='0'], img";
  const named = e => e.getAttribute("aria-label") || e.title || e.innerText?.trim()
    || e.closest("label")?.textContent.trim() || (e.id && document.querySelector(`label[for="${e.id}"]`))
    || (e.tagName === "IMG" && e.hasAttribute("alt"));
  return [...document.querySelectorAll(pressed)].filter(e => !named(e)).map(e => e.outerHTML.slice(0, 120));
}"""


def chosen(visit: Visit) -> str:
    return str(visit.page.locator("[role=tab][aria-selected=true]").inner_text().lower())


def test_tabs_follow_the_arrow_keys_and_the_back_button(visit: Any) -> None:
    v = visit("runs")
    v.wait("#panel-runs h1")
    v.page.locator("#tab-runs").focus()
    v.page.keyboard.press("ArrowLeft")
    v.until("document.activeElement.id === 'tab-generators'")
    v.soon(lambda: chosen(v) == "generators", "the arrow chooses the tab before")
    v.page.keyboard.press("End")
    v.soon(lambda: chosen(v) == "runs", "End chooses the last tab")  # the change of the address is told a moment later
    v.page.keyboard.press("ArrowRight")  # around
    v.until("document.activeElement.id === 'tab-find'")
    assert v.page.locator("[role=tab][tabindex='0']").count() == 1  # one stop of Tab for all six
    v.page.go_back()
    v.until("document.querySelector('#panel-runs').hidden === false")
    assert chosen(v) == "runs"
    assert v.page.title().startswith("Runs")
    wrong = visit("nothing-of-that-name")
    wrong.wait("#panel-find h1")
    assert chosen(wrong) == "find"  # the first


def test_colours_follow_the_system_and_then_the_person(visit: Any) -> None:
    v = visit("runs", colours="dark")
    v.wait("#panel-runs h1")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    dark = v.page.evaluate(ground)
    v.page.locator("#theme").click()
    assert v.page.locator("#theme").get_attribute("aria-label") == "Colours: light"
    light = v.page.evaluate(ground)
    assert dark != light
    v.page.reload()
    v.wait("#panel-runs h1")
    assert v.page.evaluate(ground) == light  # remembered, though the system is dark
    v.page.locator("#theme").click()
    assert v.page.evaluate(ground) == dark
    v.page.locator("#theme").click()
    assert v.page.locator("#theme").get_attribute("aria-label") == "Colours: as the system has them"


def luminance(colour: str) -> float:
    """WCAG's relative luminance of a colour as a browser computes it, rgb(r, g, b)."""
    channels = [int(c) / 255 for c in re.findall(r"\d+", colour)[:3]]
    r, g, b = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_words_stand_out_from_their_ground(visit: Any, colours: str) -> None:
    """WCAG's contrast of at least 4.5 for the inks that words are set in."""
    v = visit("runs", colours=colours)
    v.wait("#panel-runs h1")
    names = sorted({name for pair in INKS for name in pair})
    values = v.page.evaluate(
        """async names => {
          const { ink } = await import("./dom.js");
          return names.map(name => ink(document.body, name));
        }""",
        names,
    )
    light = dict(zip(names, map(luminance, values), strict=True))
    contrast = {pair: (max(light[n] for n in pair) + 0.05) / (min(light[n] for n in pair) + 0.05) for pair in INKS}
    assert {pair: round(ratio, 2) for pair, ratio in contrast.items() if ratio < 4.5} == {}


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_no_tab_is_wider_than_its_window_and_what_is_pressed_has_a_name(visit: Any, width: int, colours: str) -> None:
    v = visit("runs", width=width, colours=colours)
    for tab in TABS:
        v.page.evaluate("tab => { location.hash = tab; }", tab)
        v.wait(f"#panel-{tab} h1")
        v.page.wait_for_timeout(150)
        assert v.sideways() <= 0, tab
    assert (v.page.evaluate(CLIPPED), v.page.evaluate(NAMELESS)) == ([], [])


def test_the_page_is_forbidden_to_ask_elsewhere(visit: Any) -> None:
    """A request to another origin, tried from within the page, is stopped by the policy before it is made."""
    v = visit("runs")
    v.wait("#panel-runs h1")
    refused = v.page.evaluate("fetch('http://127.0.0.1:9/').then(() => false, () => true)")
    assert refused
    assert any("Content Security Policy" in c for c in v.complaints)
    v.forgive("Content Security Policy")
    v.forgive("127.0.0.1:9")
    v.asked = [url for url in v.asked if not url.startswith("http://127.0.0.1:9/")]


@pytest.mark.parametrize(
    ("tab", "target", "ready"),
    [
        ("compare", ".duo-pane[data-side=b]", "#panel-compare[data-pair]"),
        ("find", "#panel-find", ".gallery .thumb"),
        ("albums", ".album[data-side=b]", "#panel-albums[data-gamma]"),
    ],
)
def test_a_file_that_is_no_image_shows_the_sentence_of_the_server(
    visit: Any, photos: dict[str, Path], tab: str, target: str, ready: str
) -> None:
    v = visit(tab)
    v.wait(ready, heavy=True)
    v.wait(f"#panel-{tab} .work[hidden]", heavy=True, state="attached")  # or the sample's progress covers the sentence
    v.drop(target, photos["words"])
    v.complains(tab, v.refusal(photos["words"]))
    v.forgive("422")


def test_a_server_that_goes_away_is_said(chromium: Any, tmp_path: Path) -> None:
    process, address = started([sys.executable, "-m", "likewise.cli"], tmp_path)
    try:
        with Visit(chromium, address, "runs", width=390) as v:
            v.wait("#panel-runs h1")
            assert v.page.locator("#gone").is_hidden()
            process.send_signal(signal.SIGINT)
            process.wait(60)
            gone = v.wait("#gone")
            assert "does not answer" in gone.inner_text()
            assert "likewise studio" in gone.inner_text()
            v.forgive("net::ERR_")
            v.forgive("status of 50")  # a request that met the server on its way out
    finally:
        stopped(process)


USEFUL = {
    "find": ".gallery .thumb",
    "duplicates": "#panel-duplicates[data-state]",
    "compare": "#panel-compare[data-pair] .verdict",
    "albums": ".band",
    "generators": ".grid-picture:not([hidden])",
    "runs": "#panel-runs .run-list .empty",
}


@pytest.mark.parametrize("tab", USEFUL)
def test_each_tab_shows_something_useful_within_five_cpu_seconds(chromium: Any, tmp_path: Path, tab: str) -> None:
    """A newcomer, nothing in the cache, from the first line of Python on."""
    one = {"OMP_NUM_THREADS": "1"}  # threads that wait for each other count as CPU time
    process, address = started(
        [sys.executable, "-m", "likewise.cli"], tmp_path, LIKEWISE_CACHE=str(tmp_path / "cache"), **one
    )
    try:
        with Visit(chromium, address, tab) as v:
            v.wait(USEFUL[tab], heavy=True, state="attached")
            used = cpu(process)
    finally:
        stopped(process)
    print(f"{tab}: {used:.1f} CPU-s")
    assert used <= 5 * crowd()


def test_the_file_that_a_start_opens_leads_to_the_page_with_a_cookie(chromium: Any, tmp_path: Path) -> None:
    """From a file the way to the page crosses sites: a cookie that is strict would not come along on a redirect."""
    process, address = started([sys.executable, "-m", "likewise.cli"], tmp_path)
    try:
        way = tmp_path / "open.html"
        way.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}">')
        with contextlib.closing(chromium.new_context()) as window:
            page = window.new_page()
            page.goto(way.as_uri())
            page.locator("#panel-find").wait_for()
            token = address.rstrip("/").rpartition("/")[2]
            assert token not in page.url
            assert token not in page.evaluate("document.referrer + document.cookie")
            page.reload()
            page.locator("#panel-find").wait_for()
    finally:
        stopped(process)
