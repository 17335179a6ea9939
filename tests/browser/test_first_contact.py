"""First contact: a newcomer, nothing in the cache, a server just started: each tab shows something real soon.

The aim is ten seconds; how long it takes is printed (pytest -s), and only a minute fails: a test is no stopwatch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.browser.visits import Visit, crowd, started, stopped

REAL = {
    "pixels": "#panel-pixels[data-key]",
    "images": ".gallery .thumb",
    "sets": ".band",
    "distributions": ".grid-picture:not([hidden])",
    "runs": ".run[data-state=running]",
}


@pytest.mark.parametrize("tab", REAL)
def test_each_tab_shows_something_real_soon(chromium: Any, tmp_path: Path, tab: str) -> None:
    process, address = started([sys.executable, "-m", "likewise.cli"], tmp_path, LIKEWISE_CACHE=str(tmp_path / "cache"))
    before = crowd()
    v = Visit(chromium, address, tab, width=1400, colours="light", touch=False)
    try:
        if tab == "runs":
            v.page.get_by_role("button", name="Start the sample run").click()
        v.wait(REAL[tab], heavy=True, state="attached")
        took = v.seconds()
        print(f"{tab}: something real after {took:.1f} s, with {max(before, crowd()):.1f} programs a core")
        v.check()
    finally:
        v.close()
        stopped(process)
    assert took < 60 * max(before, crowd())
