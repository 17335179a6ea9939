"""One self-contained HTML page: pictures inlined, no script, nothing from the network; light, dark and paper."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

STYLE = """
:root { color-scheme: light dark; --page: #fcfcfa; --ink: #1d1f21; --quiet: #63676c; --line: #e2e2dd; --card: #ffffff;
  --code: #f3f3ef; --accent: #0b62a0; }
@media (prefers-color-scheme: dark) {
  :root { --page: #16181a; --ink: #e6e6e3; --quiet: #9b9fa4; --line: #303438; --card: #ffffff; --code: #202326;
    --accent: #7db8e8; }
  img { filter: brightness(.94); }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 17px/1.6 Charter, "Bitstream Charter", Cambria,
  Georgia, serif; text-rendering: optimizeLegibility; }
main { max-width: 62rem; margin: 0 auto; padding: 4.5rem 1.5rem 3rem; }
header, section > *, footer { max-width: 42rem; margin-left: auto; margin-right: auto; }
section > figure { max-width: none; }
h1 { font-size: 2.5rem; line-height: 1.1; font-weight: 600; letter-spacing: -.015em; margin: 0 0 .6rem; }
h2 { font-size: 1.45rem; line-height: 1.25; font-weight: 600; letter-spacing: -.005em; margin: 4.2rem auto .7rem; }
p { margin: 0 auto 1rem; }
.lead { font-size: 1.2rem; color: var(--quiet); margin: 0 0 2rem; }
.facts, figcaption, th, td, footer, pre, code, dt { font-family: ui-sans-serif, system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", sans-serif; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: 1.4rem; margin: 0;
  padding: 1.4rem 0; border-top: 1px solid var(--line); border-bottom: 1px solid var(--line); }
.facts div { margin: 0; display: flex; flex-direction: column-reverse; justify-content: flex-end; }
.facts dd { margin: 0; font-size: 1.75rem; line-height: 1.15; font-weight: 600; font-variant-numeric: tabular-nums;
  letter-spacing: -.02em; }
.facts dt { font-size: .8rem; line-height: 1.35; color: var(--quiet); margin-top: .3rem; }
figure { margin: 1.8rem 0 1.2rem; }
figure a { display: block; }
img { display: block; width: 100%; height: auto; max-width: var(--wide, 52rem); margin: 0 auto; background: var(--card);
  border: 1px solid var(--line); border-radius: 6px; }
figcaption { max-width: 42rem; margin: .7rem auto 0; font-size: .85rem; line-height: 1.5; color: var(--quiet); }
table { border-collapse: collapse; width: 100%; margin: 1.2rem auto; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .42rem .9rem .42rem 0; border-bottom: 1px solid var(--line); }
th { font-weight: 500; color: var(--quiet); } td:not(:first-child), th:not(:first-child) { text-align: right; }
tr.best td { font-weight: 650; }
pre, code { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: .85em; }
code { background: var(--code); border-radius: 3px; padding: .1em .3em; overflow-wrap: anywhere; }
pre { background: var(--code); border-radius: 6px; padding: .9rem 1.1rem; overflow-x: auto;
  line-height: 1.65; font-size: .82rem; }
pre code { background: none; padding: 0; font-size: inherit; overflow-wrap: normal; }
footer { margin-top: 4.5rem; padding-top: 1.2rem; border-top: 1px solid var(--line); font-size: .8rem;
  color: var(--quiet); }
@media (max-width: 40rem) {
  body { font-size: 16px; } main { padding: 2.4rem 1.1rem 2rem; } h1 { font-size: 2rem; } h2 { margin-top: 3rem; }
  .facts { grid-template-columns: 1fr 1fr; gap: 1.1rem; } .facts dd { font-size: 1.4rem; }
  section > figure { margin-left: -1.1rem; margin-right: -1.1rem; } img { border-radius: 0; border-width: 1px 0; }
  figcaption { padding: 0 1.1rem; }
}
@media print {
  @page { margin: 18mm 16mm; }
  :root { --page: #fff; --ink: #000; --quiet: #444; --line: #bbb; --code: #f4f4f4; --accent: #000; }
  body { font-size: 10.5pt; } main { padding: 0; max-width: none; }
  img { filter: none; max-height: 12.5cm; width: auto; max-width: 100%; }
  figure, table, pre, .facts { break-inside: avoid; } h2 { break-after: avoid; margin-top: 2rem; }
}
"""


@dataclass(frozen=True)
class Table:
    """Rows under a head; `best` is the row that is set bold."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: int | None = None


@dataclass(frozen=True)
class Section:
    """A heading, paragraphs, and a picture with what it shows (`alt`, for who cannot see it) and a caption."""

    title: str
    paragraphs: Sequence[str] = ()
    picture: Path | None = None
    alt: str = ""
    caption: str = ""
    table: Table | None = None
    code: str = ""
    wide: str = "52rem"


@dataclass(frozen=True)
class Page:
    """A report: title, one sentence, a row of figures, sections, and a line at the end."""

    title: str
    lead: str
    facts: Mapping[str, str] = field(default_factory=dict)
    sections: Sequence[Section] = ()
    end: str = ""

    def html(self) -> str:
        """The whole page. Text is escaped; `backticks` become code."""
        parts = [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{html.escape(self.title)}</title><style>{STYLE}</style></head><body><main>",
            f'<header><h1>{_text(self.title)}</h1><p class="lead">{_text(self.lead)}</p>{_facts(self.facts)}</header>',
            *(_section(s) for s in self.sections),
            f"<footer><p>{_text(self.end)}</p></footer></main></body></html>",
        ]
        return "\n".join(parts) + "\n"


def data_uri(path: Path) -> str:
    """A PNG file as a data: address."""
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii")


def _text(words: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(words))


def _facts(facts: Mapping[str, str]) -> str:
    if not facts:
        return ""
    rows = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in facts.items())
    return f'<dl class="facts">{rows}</dl>'


def _section(s: Section) -> str:
    parts = [f"<section><h2>{_text(s.title)}</h2>", *(f"<p>{_text(p)}</p>" for p in s.paragraphs)]
    if s.picture is not None:
        image = f'<img src="{data_uri(s.picture)}" alt="{html.escape(s.alt)}" style="--wide: {html.escape(s.wide)}">'
        parts.append(f"<figure>{image}<figcaption>{_text(s.caption)}</figcaption></figure>")
    if s.table is not None:
        parts.append(_table(s.table))
    if s.code:
        parts.append(f"<pre><code>{html.escape(s.code)}</code></pre>")
    return "\n".join([*parts, "</section>"])


def _table(t: Table) -> str:
    head = "".join(f'<th scope="col">{_text(cell)}</th>' for cell in t.head)
    rows = []
    for i, row in enumerate(t.rows):
        mark = ' class="best"' if i == t.best else ""
        rows.append(f"<tr{mark}>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
