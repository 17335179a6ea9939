"""The pictures of README, docs/index.md and docs/studio.md: the place, and the studio used as a person would.

    python docs/screenshots.py [SCENE …]
    python docs/screenshots.py --look FOLDER [SCENE …]

The second also writes each scene of the studio at 1400 and 390 px, light and dark, into a folder to look at. Needs
Playwright and a Chromium; writes studio-SCENE.png into docs/_static, each at most 300 kB, and place.jpg.
All photos are those of `likewise.samples`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.browser.visits import Visit, started, stopped  # noqa: E402

from likewise import pixels, plot, samples, search  # noqa: E402
from likewise.cli.demo import place_figure  # noqa: E402
from likewise.media import write_bytes, write_image  # noqa: E402

STATIC = ROOT / "docs" / "_static"
MOST_BYTES = 300_000
WIDTHS = (1200, 1120, 1040, 960, 880, 800)
LOOKS = [(w, c) for w in (1400, 390) for c in ("light", "dark")]
NIGHT = "roofs by night (made).jpg"


def archive(folder: Path) -> Path:
    """A folder of photos: the samples, the roofs by day, copies of three; beside it the roofs by night."""
    photos, (day, night) = folder / "archive", samples.roofs()
    whole = {name: samples.photograph(name) for name in samples.names()} | {"roofs by day": day}
    h, w = day.shape[:2]
    copies = {
        "roofs, cropped": day[h // 5 :, : 4 * w // 5],
        "temple, mirrored": whole["temple"][:, ::-1],
        "temple, small": whole["temple"][::2, ::2],
        "cat, turned": np.rot90(whole["cat"]),
    }
    for name, photo in {**whole, **copies}.items():
        write_image(photos / f"{name}.jpg", np.ascontiguousarray(photo), quality=88)
    write_image(folder / NIGHT, night, quality=92)
    return photos


def find(v: Visit) -> None:
    """The roofs by night are dropped, and found by day."""
    v.wait("[aria-label=Gallery] .thumb", heavy=True)
    v.until("document.querySelector('.collection .collection-bar')?.textContent.includes('21 photos.')", heavy=True)
    v.drop("#panel-find .collection", NIGHTS[0])
    v.until("document.querySelector('.answer[data-state=done]:not(.stale)') !== null", heavy=True)
    # how long it took says more of what else this machine did
    summary = v.page.locator(".summary")
    words = summary.inner_text()
    summary.evaluate("(e, words) => { e.textContent = words; }", re.sub(r", in [^,]* s(?=\.)", "", words))


def lightbox(v: Visit) -> None:
    """Why the best hit is the same."""
    find(v)
    v.page.locator(".hit:has-text('roofs by day') [data-why]").click()
    v.wait(".lightbox[data-shown]", heavy=True)


def duplicates(v: Visit) -> None:
    """The groups, when all were compared."""
    v.wait("#panel-duplicates[data-state=done]", heavy=True)


def compare(v: Visit) -> None:
    """The roofs by night and by day, with the verdict."""
    v.wait("#panel-compare[data-pair] .verdict", heavy=True)
    day = NIGHTS[0].parent / "archive" / "roofs by day.jpg"
    for side, file in (("a", NIGHTS[0]), ("b", day)):
        v.drop(f".duo-pane[data-side={side}]", file)
        words = "([s, n]) => document.querySelector(`.duo-pane[data-side=${s}] .tag`).textContent.includes(n)"
        v.until(words, [side, file.stem])
    v.wait("#panel-compare[data-pair] .verdict.same", heavy=True)


def albums(v: Visit) -> None:
    """The sample albums under the learned metric, nothing chosen."""
    v.wait("#panel-albums[data-gamma]", heavy=True)
    v.until("document.querySelector('#panel-albums .work').hidden", heavy=True)
    v.wait(".band")


def generators(v: Visit) -> None:
    """A little towards the modes, with the curve."""
    v.wait(".grid-picture:not([hidden])", heavy=True)
    v.until("document.querySelector('#panel-generators .work').hidden", heavy=True)
    v.slide("#panel-generators .slider:has-text('ρ') input", "-1")
    v.until("document.querySelector('#panel-generators').textContent.includes('measured here')", heavy=True)


def runs(v: Visit) -> None:
    """The sample run, a while after its start."""
    if v.page.get_by_role("button", name="Start the sample run").is_visible():
        v.page.get_by_role("button", name="Start the sample run").click()
    v.until("Number(document.querySelector('#panel-runs .chart-line')?.dataset.points ?? 0) >= 12", heavy=True)


NIGHTS: list[Path] = []
"""Where the photo by night was written."""
SCENES: dict[str, tuple[str, Callable[[Visit], None]]] = {
    "find": ("find", find),
    "lightbox": ("find", lightbox),
    "duplicates": ("duplicates", duplicates),
    "pixels": ("compare", compare),
    "albums": ("albums", albums),
    "generators": ("generators", generators),
    "runs": ("runs", runs),
}
"""What is shown by name: its tab, and what a person does there."""


def place(folder: Path) -> None:
    """place.jpg, the first picture: roofs by night, found by day, and why."""
    photos, night = samples.archive(folder)
    with search.Collection.build(photos, folder / "index") as collection:
        result, count = collection.search(night), len(collection)
    plot.save(place_figure(result[0], pixels.compare(night, result[0].path), count), STATIC / "place.jpg")


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


def take(v: Visit, name: str, look: Path | None) -> None:
    """A scene of the studio for the docs; and to be looked at, both widths and colours."""
    SCENES[name][1](v)
    v.page.mouse.move(0, 0)
    for width, colours in LOOKS if look else LOOKS[:1]:
        v.page.emulate_media(color_scheme=colours, reduced_motion="reduce")
        v.page.set_viewport_size({"width": width, "height": 900})
        v.page.wait_for_timeout(1500)
        v.page.evaluate("scrollTo(0, 0)")
        shot = v.page.screenshot(full_page=name != "lightbox")
        if (width, colours) == LOOKS[0]:
            print(name, f"{write_bytes(STATIC / f'studio-{name}.png', small(shot)).stat().st_size:,} bytes")
        if look:
            write_bytes(look / f"{name}-{width}-{colours}.png", shot)


def main(words: list[str] | None = None) -> None:
    """Take the pictures of these scenes."""
    parser = argparse.ArgumentParser(description="The pictures of README and docs.")
    parser.add_argument("scenes", nargs="*", help=f"some of place, {', '.join(SCENES)}; all of them, if none")
    parser.add_argument("--look", type=Path, metavar="FOLDER", help="all widths and colours too, into a folder")
    asked = parser.parse_args(words)
    scenes = asked.scenes or ["place", *SCENES]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as p:
        if "place" in scenes:
            place(Path(folder))
        photos = archive(Path(folder))
        NIGHTS[:] = [Path(folder) / NIGHT]
        browser = p.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
        process, address = started([sys.executable, "-m", "likewise.cli"], Path(folder), photos)
        try:
            for name in (name for name in scenes if name != "place"):
                with Visit(browser, address, SCENES[name][0]) as v:
                    take(v, name, asked.look)
        finally:
            stopped(process)
            browser.close()


if __name__ == "__main__":
    main()
