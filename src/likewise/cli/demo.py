"""`likewise demo`: what likewise does, on real pictures that come with its dependencies; every figure is computed here.

demo/
  report.html      the page: everything below in one file
  demo.png         the panels side by side
  alignment.png, search.png, plan.png, albums.png, light.png, coverage.png, polarity.png, verified.png, demo.json
  index/           the places, indexed; search.html, search.json: the first search
  place/, albums/, places/, queries/ …   the pictures that were compared, to try the commands on
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from likewise.cli.terminal import check_writable, write_json

if TYPE_CHECKING:
    from likewise.plot.report import Section


ROWS = (("alignment", "search"), ("plan", "polarity"), ("verified",))
"""The pictures that stand in demo.png."""
WORDS = {
    "alignment": "pixels: where did this point go?",
    "search": "images: which are like this one?",
    "plan": "sets: how alike are these?",
    "polarity": "distributions: what does it draw, from modes to anti-modes?",
    "verified": "search: all levels together, with the reasons",
}


@click.command()
@click.option("--out", default="demo", show_default=True, type=click.Path(), help="the folder to write to")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="seed of crops, light and draws")
def demo(out: str, seed: int) -> None:
    """See what likewise does, on pictures that come with it: about a minute, no download.

    Writes report.html, demo.png, the pictures of its panels and their figures as JSON.
    """
    folder = Path(out)
    check_writable(folder)
    began = time.perf_counter()
    from likewise.cli.demo_distributions import coverage_panel, polarity_panel
    from likewise.cli.demo_images import places_panel
    from likewise.cli.demo_pixels import pixels_panel
    from likewise.cli.demo_search import search_panel
    from likewise.cli.demo_sets import albums_panel, light_panel, matrix_panel

    levels = (pixels_panel, places_panel, albums_panel, matrix_panel, light_panel, coverage_panel, polarity_panel)
    panels = [make(folder, seed) for make in (*levels, search_panel)]
    seconds = time.perf_counter() - began
    shown = [[(WORDS[name], folder / f"{name}.png") for name in row] for row in ROWS]
    beside(shown, folder / "demo.png", few=True)
    figures = {p.name: p.figures for p in panels}
    write_json(folder / "demo.json", {"seed": seed, "seconds": round(seconds, 1), **figures})
    page = _page(panels, folder, seconds, seed)
    click.echo(f"\n{page.absolute()}")


@dataclass(frozen=True)
class Panel:
    """One thing shown: its picture, its figures, and its part of the page."""

    name: str
    picture: str
    figures: dict[str, Any]
    fact: tuple[str, str]
    section: Section


@contextmanager
def step(words: str) -> Iterator[list[str]]:
    """A line that says what is being done, then what came of it and how long it took."""
    began = time.perf_counter()
    said: list[str] = []
    click.echo(f"{words} … ", nl=False)
    yield said
    click.echo(f"{' '.join(said)} ({time.perf_counter() - began:.0f} s)")


# ── what is written ───────────────────────────────────────────────────────────────────────────────────────────────


def beside(
    rows: Sequence[Sequence[tuple[str, Path]]], target: Path, *, few: bool = False, width: int = 1600, gap: int = 40
) -> None:
    """Pictures under their words, rows of one width below each other; in `few` colours, dithered, for a README."""
    import io

    from PIL import Image

    from likewise.media import write_bytes

    strips = [_strip_of(row, width, gap) for row in rows]
    height = sum(strip.height for strip in strips) + gap * (len(strips) - 1)
    whole, top = Image.new("RGB", (width, height), "white"), 0
    for strip in strips:
        whole.paste(strip, (0, top))
        top += strip.height + gap
    buffer = io.BytesIO()
    (_few_colours(whole) if few else whole).save(buffer, "PNG", optimize=True)
    write_bytes(target, buffer.getvalue())


def _few_colours(whole: Any) -> Any:
    """The picture in 255 colours, dithered, and white; Pillow dithers only towards a palette that it is given."""
    import numpy as np
    from PIL import Image

    few = whole.quantize(255)
    numbers = np.array(whole.quantize(palette=few, dither=Image.Dither.FLOYDSTEINBERG))
    numbers[(np.asarray(whole) == 255).all(axis=2)] = 255
    found = Image.fromarray(numbers)
    found.putpalette([*(few.getpalette() or [])[: 3 * 255], 255, 255, 255])
    return found


def _strip_of(row: Sequence[tuple[str, Path]], width: int, gap: int) -> Any:
    """Pictures of one height beside each other, as wide as is asked for, their words above."""
    from PIL import Image, ImageDraw

    from likewise import plot
    from likewise.media import read_array

    panels = [Image.fromarray(read_array(file)) for _, file in row]
    height = round((width - gap * (len(panels) - 1)) / sum(p.width / p.height for p in panels))
    head = 44 if any(words for words, _ in row) else 0
    strip, left = Image.new("RGB", (width, head + height), "white"), 0
    for (words, _), p in zip(row, panels, strict=True):
        small = p.resize((round(p.width * height / p.height), height), Image.Resampling.LANCZOS)
        strip.paste(small, (left, head))
        ImageDraw.Draw(strip).text((left + 16, 8), words, fill=plot.INK, font=_font(26))
        left += small.width + gap
    return strip


def _font(size: int) -> Any:
    """The typeface that comes with matplotlib, in which the panels are set."""
    from matplotlib import get_data_path
    from PIL import ImageFont

    return ImageFont.truetype(str(Path(get_data_path(), "fonts", "ttf", "DejaVuSans-Bold.ttf")), size)


def _page(panels: Sequence[Panel], folder: Path, seconds: float, seed: int) -> Path:
    from likewise import __version__
    from likewise.plot.report import Page, Section
    from likewise.store.run import versions

    albums = folder / "albums"
    own = Section(
        "With your own pictures",
        (
            "The pictures of this page are on your disk, and so is the index that was searched. `compare` picks the "
            "level from what it is given and says why; `likewise studio` shows all of it in the browser.",
        ),
        code=f"likewise compare {folder / 'place' / 'day.png'} {folder / 'place' / 'night.png'}\n"
        f"likewise compare {albums / 'monday'} {albums / 'friday'}\n"
        f"likewise search {folder / 'queries' / 'cat' / '1-other-light.jpg'} --index {folder / 'index'}\n"
        f"likewise index {folder / 'places'}\n"
        f"likewise pixels match {folder / 'place' / 'day.png'} {folder / 'place' / 'night.png'}\n"
        f"likewise sets distances {albums / 'scenes'} --out distances.npy\n"
        f"likewise sets fit {albums / 'scenes'} --out model.safetensors\n"
        f"likewise distributions compare {folder / 'collections' / 'first'} {folder / 'collections' / 'second'}\n"
        "likewise distributions harvest fashion --n 2000",
    )
    used = versions()
    end = (
        f"likewise {__version__}, seed {seed}, {seconds:.0f} s on {used['platform']}, Python {used['python']}, "
        f"torch {used.get('torch', '?')}. Photographs: scikit-image and scikit-learn. "
        "Methods: LIFE, 2021; DiVA, ECCV 2020; Multi-Level Metric Learning via Smoothed Wasserstein Distance, IJCAI "
        "2018; Polarity Sampling, CVPR 2022."
    )
    page = Page(
        "likewise",
        "A comparison is a number and the correspondence that justifies it. Every figure on this page was computed "
        "when it was made.",
        dict(p.fact for p in panels),
        [*(p.section for p in panels), own],
        end,
    )
    return page.write(folder / "report.html")
