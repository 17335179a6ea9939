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

STYLE = "\n" + Path(__file__).with_suffix(".css").read_text(encoding="utf-8")

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
