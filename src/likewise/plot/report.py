"""One self-contained HTML page: images inlined, no script, nothing from the network; light, dark and paper.

`likewise demo` and the results of a search are written with it: a `Page` holds `Section`s, a section holds paragraphs,
figures, cards, code, or details that open on a click. All text is escaped.
"""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure as MatplotlibFigure
from PIL import Image

from likewise import media
from likewise.plot.style import fit

STYLE = """
:root { color-scheme: light dark; --page: #fcfcfa; --ink: #1d1f21; --quiet: #63676c; --line: #e2e2dd; --card: #fff;
  --code: #f3f3ef; --same: #00734f; --unsure: #8a6100; --different: #6d6f73; }
@media (prefers-color-scheme: dark) { :root { --page: #16181a; --ink: #e6e6e3; --quiet: #9b9fa4; --line: #303438;
  --card: #1d2023; --code: #202326; --same: #4fd0a2; --unsure: #e2b34d; --different: #9b9fa4; }
  figure img { filter: brightness(.94); } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.55 ui-sans-serif, system-ui, -apple-system,
  "Segoe UI", Roboto, "Helvetica Neue", sans-serif; font-variant-numeric: tabular-nums; }
main { max-width: 76rem; margin: 0 auto; padding: 3.5rem 1.5rem 3rem; }
header, section > *, footer { max-width: 44rem; margin-left: auto; margin-right: auto; }
.wide header, .wide section > *, section > figure, .cards, .strip { max-width: none; }
h1 { font-size: 2.3rem; line-height: 1.1; font-weight: 650; letter-spacing: -.015em; margin: 0 0 .6rem; }
h2 { font-size: 1.35rem; line-height: 1.25; font-weight: 600; margin: 3.6rem auto .7rem; }
p { margin: 0 auto 1rem; }
.lead, figcaption, footer, dt { color: var(--quiet); }
.lead { font-size: 1.15rem; margin: 0 0 2rem; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: 1.4rem; margin: 0;
  padding: 1.4rem 0; border-top: 1px solid var(--line); border-bottom: 1px solid var(--line); }
.facts div { display: flex; flex-direction: column-reverse; justify-content: flex-end; }
.facts dd { margin: 0; font-size: 1.75rem; line-height: 1.15; font-weight: 600; letter-spacing: -.02em; }
.facts dt { font-size: .8rem; line-height: 1.35; margin-top: .3rem; }
figure { margin: 1.8rem 0 1.2rem; }
figure img { display: block; width: 100%; height: auto; max-width: var(--wide, 52rem); margin: 0 auto; background: #fff;
  border: 1px solid var(--line); border-radius: 6px; }
figcaption { max-width: 44rem; margin: .7rem auto 0; font-size: .85rem; line-height: 1.5; }
.strip { display: flex; gap: .6rem; flex-wrap: wrap; margin-bottom: 1rem; }
.strip img { height: 11rem; width: auto; border-radius: 6px; border: 1px solid var(--line); }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: 1rem; list-style: none;
  padding: 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; overflow: hidden; }
.card > img { display: block; width: 100%; height: 11rem; object-fit: contain; background: #0001; }
.card > div { padding: .6rem .8rem .8rem; }
.card b { display: block; overflow-wrap: anywhere; margin-top: .35rem; }
.badge { display: inline-block; font-size: .82rem; font-weight: 650; padding: .05rem .5rem; border-radius: 99px;
  border: 1.5px solid currentColor; }
.same { color: var(--same); } .unsure { color: var(--unsure); } .different { color: var(--different); }
.card dl { display: grid; grid-template-columns: auto auto; gap: .05rem .8rem; margin: .5rem 0 0; font-size: .85rem; }
.card dd { margin: 0; text-align: right; }
details { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1rem;
  margin-top: 1rem; }
summary { cursor: pointer; font-weight: 600; } summary:focus-visible { outline: 2px solid; outline-offset: 3px; }
pre, code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: .85em; background: var(--code); border-radius: 4px; }
code { padding: .1em .3em; overflow-wrap: anywhere; } pre { padding: .9rem 1.1rem; overflow-x: auto; }
pre code { padding: 0; overflow-wrap: normal; }
footer { margin-top: 4rem; padding-top: 1.2rem; border-top: 1px solid var(--line); font-size: .8rem; }
@media (max-width: 40rem) { main { padding: 2rem 1.1rem; } h1 { font-size: 1.9rem; } h2 { margin-top: 2.6rem; }
  .facts { grid-template-columns: 1fr 1fr; gap: 1.1rem; } .facts dd { font-size: 1.4rem; }
  .strip img { height: 8rem; } }
@media print { @page { margin: 18mm 16mm; }
  :root { --page: #fff; --ink: #000; --quiet: #444; --line: #bbb; --code: #f4f4f4; }
  body { font-size: 10.5pt; } main { padding: 0; max-width: none; }
  figure img { filter: none; max-height: 12.5cm; width: auto; max-width: 100%; }
  figure, pre, .facts, .card { break-inside: avoid; } h2 { break-after: avoid; margin-top: 2rem; } }
"""

# The page may show images that it carries and its own style, nothing else: no file name can become a script.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def inline(image: Any, *, side: int | None = None) -> str:
    """An image as a `data:` address: a PNG file as it is, a matplotlib figure, or an array (h, w, 3) of uint8.

    `side` bounds the longest side of an array, in pixels.
    """
    if isinstance(image, Path):
        return "data:image/png;base64," + base64.b64encode(image.read_bytes()).decode()
    buffer = io.BytesIO()
    if isinstance(image, MatplotlibFigure):
        image.savefig(buffer, format="jpeg", dpi=100, pil_kwargs={"quality": 82})
    else:
        Image.fromarray(fit(np.asarray(image), side)).save(buffer, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


@dataclass(frozen=True)
class Picture:
    """An image with the words for who cannot see it; with a caption it is a figure. Without a `source`, only words."""

    source: str
    alt: str
    caption: str = ""
    wide: str = "52rem"

    def html(self) -> str:
        """As an image or a figure element."""
        if not self.source:
            return f"<p>{_text(self.alt)}</p>"
        image = f'<img src="{self.source}" alt="{html.escape(self.alt)}" style="--wide: {html.escape(self.wide)}">'
        return f"<figure>{image}<figcaption>{_text(self.caption)}</figcaption></figure>" if self.caption else image


@dataclass(frozen=True)
class Card:
    """An image with a badge (same, unsure or different), a title and named values."""

    image: Picture
    title: str
    badge: str
    tone: str
    values: Mapping[str, str]

    def html(self) -> str:
        """As an item of the list of cards."""
        rows = "".join(f"<dt>{_text(k)}</dt><dd>{_text(v)}</dd>" for k, v in self.values.items())
        badge = f'<span class="badge {html.escape(self.tone)}">{_text(self.badge)}</span>'
        return f'<li class="card">{self.image.html()}<div>{badge}<b>{_text(self.title)}</b><dl>{rows}</dl></div></li>'


@dataclass(frozen=True)
class Section:
    """A heading, paragraphs, an image with its `alt` and caption, and whatever else is given, in this order.

    `strip` is a row of small images, `details` maps a summary to the figures that open below it (the first is open).
    """

    title: str
    paragraphs: Sequence[str] = ()
    image: Path | None = None
    alt: str = ""
    caption: str = ""
    code: str = ""
    wide: str = "52rem"
    strip: Sequence[Picture] = ()
    cards: Sequence[Card] = ()
    details: Mapping[str, Sequence[Picture]] = field(default_factory=dict)

    def html(self) -> str:
        """As a section element."""
        parts = [f"<section><h2>{_text(self.title)}</h2>", *(f"<p>{_text(p)}</p>" for p in self.paragraphs)]
        if self.image is not None:
            parts.append(Picture(inline(self.image), self.alt, self.caption, self.wide).html())
        if self.code:
            parts.append(f"<pre><code>{html.escape(self.code)}</code></pre>")
        if self.strip:
            parts.append(f'<div class="strip">{"".join(p.html() for p in self.strip)}</div>')
        if self.cards:
            parts.append(f'<ol class="cards">{"".join(c.html() for c in self.cards)}</ol>')
        for i, (summary, figures) in enumerate(self.details.items()):
            shown = "".join(f.html() for f in figures)
            parts.append(f"<details{'' if i else ' open'}><summary>{_text(summary)}</summary>{shown}</details>")
        return "\n".join([*parts, "</section>"])


@dataclass(frozen=True)
class Page:
    """A report: title, one sentence, a row of facts, sections, and a line at the end; `wide` uses the whole width."""

    title: str
    lead: str
    facts: Mapping[str, str] = field(default_factory=dict)
    sections: Sequence[Section] = ()
    end: str = ""
    wide: bool = False

    def html(self) -> str:
        """The whole page. Text is escaped; `backticks` become code."""
        facts = "".join(f"<div><dt>{_text(k)}</dt><dd>{_text(v)}</dd></div>" for k, v in self.facts.items())
        facts = f'<dl class="facts">{facts}</dl>' if facts else ""
        parts = [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            f"<title>{html.escape(self.title)}</title><style>{STYLE}</style></head>",
            '<body class="wide"><main>' if self.wide else "<body><main>",
            f'<header><h1>{_text(self.title)}</h1><p class="lead">{_text(self.lead)}</p>{facts}</header>',
            *(section.html() for section in self.sections),
            f"<footer><p>{_text(self.end)}</p></footer></main></body></html>\n",
        ]
        return "\n".join(parts)

    def write(self, path: Path) -> Path:
        """Write the page, atomically."""
        return media.write_text(path, self.html())


def _text(words: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(words))
