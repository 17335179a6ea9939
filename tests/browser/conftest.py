"""One studio and one Chromium for all browser tests; every visit records what the page asks for and complains of."""

from __future__ import annotations

import contextlib
import functools
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.browser.visits import Visit, started, stopped

from likewise import samples

Visits = Callable[..., Visit]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever lies in this folder is in the lane of the browser."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A headless Chromium that can reach this machine only."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    result = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if result is None:
        pytest.skip("no chromium on the PATH")
    only_here = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=result, args=["--no-sandbox", "--disable-gpu", only_here])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos of 13 things: of a cup one in May, its exact copy, and another view in July, each with its place."""
    folder = tmp_path_factory.mktemp("archive")
    place = folder / "places"
    place.mkdir()
    for name in sorted({*samples.names()} - {"coffee"})[:12]:
        Image.fromarray(samples.photograph(name)).convert("RGB").resize((320, 240)).save(place / f"{name}.jpg")
    cup = Image.fromarray(samples.photograph("coffee"))
    for name, left, month, north in (("cup", 60, 5, 55.0), ("cup, moved", 90, 7, 55.01)):
        exif = Image.Exif()
        exif[0x0132] = f"2024:{month:02}:01 12:00:00"
        exif.get_ifd(0x8825).update({1: "N", 2: (north, 0.0, 0.0), 3: "E", 4: (13.0, 0.0, 0.0)})
        cup.crop((left, 20, left + 480, 380)).save(place / f"{name}.jpg", exif=exif, quality=92)
    shutil.copy(place / "cup.jpg", place / "cup, copy.jpg")
    return folder


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, archive: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`likewise studio`, as a person starts it, on a folder of photos: its process and its address."""
    process, address = started([sys.executable, "-m", "likewise.cli"], tmp_path_factory.mktemp("studio"), archive)
    yield process, address
    stopped(process)


@pytest.fixture(scope="session")
def visits(chromium: Any, server: tuple[Any, str]) -> Visits:
    """Open a tab in a window of its own: with visits("find", width=390, colours="dark") as v: …"""
    return functools.partial(Visit, chromium, server[1])


@pytest.fixture
def visit(visits: Visits) -> Iterator[Visits]:
    """The same, closed and checked after the test: only the server was asked, nothing was complained of."""
    with contextlib.ExitStack() as windows:
        yield lambda *given, **named: windows.enter_context(visits(*given, **named))


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two photos of a cup: in `b` everything lies 12 px further to the right than in `a`; and files that are none."""
    folder = tmp_path_factory.mktemp("photos")
    cup = samples.photograph("coffee")
    Image.fromarray(cup[60:252, 112:368]).save(folder / "a.png")
    Image.fromarray(cup[60:252, 100:356]).save(folder / "b.png")
    (folder / "words.jpg").write_text("these are words")
    return {"a": folder / "a.png", "b": folder / "b.png", "words": folder / "words.jpg"}
