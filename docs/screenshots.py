"""The screenshots of docs/studio.md: starts the studio, does in each tab what a person would, and takes one.

    python docs/screenshots.py [TAB …]

Needs Playwright and a Chromium; writes docs/_static/studio-TAB.png, each at most 300 kB.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.browser.visits import Visit, started, stopped  # noqa: E402

from likewise.media import write_bytes  # noqa: E402

MOST_BYTES = 300_000
WIDTHS = (1200, 1120, 1040, 960, 880, 800)


def pixels(v: Visit) -> None:
    """The sample, its edge in the middle, one point."""
    v.wait("#panel-pixels[data-key]", heavy=True)
    v.wait("[data-mark=found]")
    v.wait("#panel-pixels .verdict", heavy=True)


def images(v: Visit) -> None:
    """The second query, verified, beside the map."""
    v.wait(".hits[data-state=done]", heavy=True)
    v.page.locator(".tries .thumb").nth(1).click()
    v.wait(".hits.stale", state="attached")
    v.wait(".hits[data-state=done]:not(.stale)", heavy=True)
    v.page.get_by_role("radio", name="Map").check()


def sets(v: Visit) -> None:
    """The sample albums under the learned metric, nothing chosen."""
    v.wait("#panel-sets[data-gamma]", heavy=True)
    v.until("document.querySelector('#panel-sets .work').hidden", heavy=True)
    v.wait(".band")


def distributions(v: Visit) -> None:
    """A little towards the modes, with the curve."""
    v.wait(".grid-picture:not([hidden])", heavy=True)
    v.until("document.querySelector('#panel-distributions .work').hidden", heavy=True)
    v.slide("#panel-distributions .slider:has-text('ρ') input", "-1")
    v.until("document.querySelector('#panel-distributions').textContent.includes('measured here')", heavy=True)


def runs(v: Visit) -> None:
    """The sample run, a while after its start."""
    v.page.get_by_role("button", name="Start the sample run").click()
    v.until("Number(document.querySelector('#panel-runs .chart-line')?.dataset.points ?? 0) >= 12", heavy=True)


SCENES: dict[str, Callable[[Visit], None]] = {f.__name__: f for f in (pixels, images, sets, distributions, runs)}


def small(shot: bytes) -> bytes:
    """A screenshot as a PNG with a palette of 256 colours, dithered, as wide as fits."""
    whole = Image.open(BytesIO(shot)).convert("RGB")
    for width in WIDTHS:
        picture = whole.resize((width, round(whole.height * width / whole.width)), Image.Resampling.LANCZOS)
        buffer = BytesIO()
        picture.quantize(palette=palette_of(picture), dither=Image.Dither.FLOYDSTEINBERG).save(
            buffer, "PNG", optimize=True
        )
        if buffer.tell() <= MOST_BYTES:
            return buffer.getvalue()
    raise SystemExit(f"even {width} px wide the picture has {buffer.tell():,} bytes, more than {MOST_BYTES:,}")


def palette_of(picture: Image.Image, flat: int = 40) -> Image.Image:
    """A palette with the commonest colours as they are (the page's own), the rest from a median cut (its photos')."""
    counted: Any = picture.getcolors(picture.width * picture.height) or []
    common = [colour for _, colour in sorted(counted, reverse=True)[:flat]]
    cut = picture.quantize(256 - len(common)).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette([channel for colour in common for channel in colour] + cut[: 3 * (256 - len(common))])
    return palette


def main(tabs: list[str]) -> None:
    """Take the pictures of these tabs."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as p:
        browser = p.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        process, address = started([sys.executable, "-m", "likewise.cli"], Path(folder))
        try:
            for tab in tabs:
                with Visit(browser, address, tab) as v:
                    SCENES[tab](v)
                    v.page.mouse.move(0, 0)
                    v.page.wait_for_timeout(1500)
                    v.page.evaluate("scrollTo(0, 0)")
                    shot = small(v.page.screenshot(full_page=True))
                path = write_bytes(ROOT / "docs" / "_static" / f"studio-{tab}.png", shot)
                print(path.relative_to(ROOT), f"{path.stat().st_size:,} bytes")
        finally:
            stopped(process)
            browser.close()


if __name__ == "__main__":
    main(sys.argv[1:] or list(SCENES))
