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
from tests.browser.visits import Visit, started, stopped

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
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`likewise studio`, as a person starts it, in a folder of its own: its process and its address."""
    process, address = started([sys.executable, "-m", "likewise.cli"], tmp_path_factory.mktemp("studio"))
    yield process, address
    stopped(process)


@pytest.fixture(scope="session")
def visits(chromium: Any, server: tuple[Any, str]) -> Visits:
    """Open a tab in a window of its own: with visits("pixels", width=390, colours="dark") as v: …"""
    return functools.partial(Visit, chromium, server[1])


@pytest.fixture
def visit(visits: Visits) -> Iterator[Visits]:
    """The same, closed and checked after the test: only the server was asked, nothing was complained of."""
    with contextlib.ExitStack() as windows:
        yield lambda *given, **named: windows.enter_context(visits(*given, **named))


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two photos of a cup: in `b` everything lies 12 px further to the right than in `a`; and files that are none."""
    from PIL import Image
    from skimage import data

    folder = tmp_path_factory.mktemp("photos")
    cup = data.coffee()
    Image.fromarray(cup[60:252, 112:368]).save(folder / "a.png")
    Image.fromarray(cup[60:252, 100:356]).save(folder / "b.png")
    (folder / "words.jpg").write_text("these are words")
    return {"a": folder / "a.png", "b": folder / "b.png", "words": folder / "words.jpg"}
