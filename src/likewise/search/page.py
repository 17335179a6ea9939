"""The results of searches as one page: pictures inlined, no script, nothing from the network; light and dark."""

from __future__ import annotations

import base64
import html
import io as buffers
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from likewise.errors import LikewiseError
from likewise.search.result import Found, Result

EDGE = 320
"""Longest side of a picture on the page, in pixels; of one that explains, twice that."""

STYLE = """
:root { color-scheme: light dark; --page: #fbfbf9; --ink: #1d1f21; --quiet: #63676c; --line: #e0e0da; --card: #fff;
  --same: #00734f; --unsure: #8a6100; --different: #6d6f73; --accent: #0b62a0; }
@media (prefers-color-scheme: dark) { :root { --page: #16181a; --ink: #e6e6e3; --quiet: #9b9fa4; --line: #303438;
  --card: #1d2023; --same: #4fd0a2; --unsure: #e2b34d; --different: #9b9fa4; --accent: #7db8e8; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI",
  Roboto, "Helvetica Neue", sans-serif; font-variant-numeric: tabular-nums; }
main { max-width: 76rem; margin: 0 auto; padding: 2.5rem 1.25rem; }
h1 { font-size: 1.6rem; font-weight: 650; letter-spacing: -.01em; margin: 0 0 .2rem; }
h2 { font-size: 1.05rem; font-weight: 600; margin: 2.2rem 0 .8rem; }
p { color: var(--quiet); margin: 0 0 1rem; }
.shots { display: flex; gap: .6rem; flex-wrap: wrap; margin-bottom: 1rem; }
.shots img { height: 11rem; width: auto; border-radius: 6px; border: 1px solid var(--line); }
.hits { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: 1rem; list-style: none;
  margin: 0; padding: 0; }
.hit { background: var(--card); border: 1px solid var(--line); border-radius: 8px; overflow: hidden; }
.hit > img { display: block; width: 100%; height: 11rem; object-fit: contain; background: #0001; }
.hit > div { padding: .6rem .8rem .8rem; }
.name { font-weight: 600; overflow-wrap: anywhere; margin-top: .35rem; }
.verdict { display: inline-block; font-size: .82rem; font-weight: 650; padding: .05rem .5rem; border-radius: 99px;
  border: 1.5px solid currentColor; }
.same { color: var(--same); } .unsure { color: var(--unsure); } .different { color: var(--different); }
dl { display: grid; grid-template-columns: auto auto; gap: .05rem .8rem; margin: .5rem 0 0; font-size: .85rem; }
dt { color: var(--quiet); } dd { margin: 0; text-align: right; }
.why { grid-column: 1 / -1; background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: .8rem 1rem; }
.why summary { cursor: pointer; font-weight: 600; }
.why summary:focus-visible { outline: 2px solid var(--accent); outline-offset: 3px; }
.why figure { margin: .8rem 0 0; } .why img { max-width: 100%; border-radius: 4px; background: #fff; }
figcaption { color: var(--quiet); font-size: .85rem; margin-top: .3rem; }
@media (max-width: 40rem) { main { padding: 1.4rem 1rem; } .shots img { height: 8rem; } }
"""


def write(results: Sequence[Result], path: Path) -> Path:
    """Write the page of some results."""
    from likewise.media import write_text

    return write_text(path, page(results))


def page(results: Sequence[Result]) -> str:
    """The page of some results."""
    body = "\n".join(_result(r) for r in results)
    return (
        "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n"
        '<meta name=viewport content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; img-src data:; style-src "
        "'unsafe-inline'\">\n"
        f"<title>likewise search</title>\n<style>{STYLE}</style>\n<main>\n<h1>likewise search</h1>\n{body}\n</main>\n"
    )


def _result(result: Result) -> str:
    same = sum(h.verdict == "same" for h in result.hits)
    spent = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in result.seconds.items())
    head = f"{len(result.hits)} hits in {_e(result.place)}, {same} of them the same; {spent}."
    shots = "".join(_image(s, EDGE, n) for s, n in list(zip(result.query.shots, result.query.names, strict=True))[:4])
    names = ", ".join(Path(n).name for n in result.query.names[:4]) + ("…" if len(result.query) > 4 else "")
    cards = "\n".join(_card(h) for h in result.hits)
    reasons = "\n".join(_why(h, result) for h in result.hits if h.evidence is not None)
    notes = "".join(f"<p>{_e(n)}</p>" for n in result.notes)
    return (
        f"<h2>{_e(names)}</h2>\n<p>{head}</p>{notes}\n<div class=shots>{shots}</div>\n<ol class=hits>\n{cards}\n</ol>\n"
        f"<h2>Why</h2>\n<div class=hits>\n{reasons}\n</div>"
    )


def _card(hit: Found) -> str:
    rows = {"embedding distance": f"{hit.distance:.3f}"}
    if hit.transport is not None:
        rows["transport of parts"] = f"{hit.transport:.3f}"
    if hit.evidence is not None:
        rows["matches that agree"] = f"{hit.evidence.n} of {len(hit.evidence.matches)}"
        rows["pixels that come home"] = f"{hit.evidence.home:.0%}"
    else:
        rows["pixels"] = "not looked at"
    listed = "".join(f"<dt>{_e(k)}</dt><dd>{_e(v)}</dd>" for k, v in rows.items())
    return (
        f"<li class=hit>{_image(hit.path, EDGE, Path(hit.path).name)}<div>"
        f"<span class='verdict {hit.verdict}'>{hit.verdict} · {hit.probability:.0%}</span>"
        f"<div class=name title='{_e(hit.path)}'>{hit.rank}. {_e('/'.join(Path(hit.path).parts[-2:]))}</div>"
        f"<dl>{listed}</dl></div></li>"
    )


def _why(hit: Found, result: Result) -> str:
    figures = []
    evidence = hit.evidence
    if evidence is not None and evidence.n:
        figures.append((_drawn(evidence.plot(title=" ")), "Matches that agree on one " + str(evidence.kind)))
        overlay = evidence.overlay()
        if overlay is not None and hit.verdict != "different":
            figures.append((_data(_small(overlay, 2 * EDGE)), "The hit laid onto the query"))
    plan = _plan(hit, result)
    if plan:
        figures.append((plan, "What went where: each part of the hit in the colours of the query's parts it got"))
    if not figures:
        return ""
    drawn = "".join(
        f'<figure><img alt="{_e(words)}" src="{source}"><figcaption>{_e(words)}</figcaption></figure>'
        for source, words in figures
    )
    opened = " open" if hit.rank == 1 else ""
    return (
        f"<details class=why{opened}><summary>{hit.rank}. {_e(Path(hit.path).name)}: {_e(hit.words())}</summary>"
        f"{drawn}</details>"
    )


def _plan(hit: Found, result: Result) -> str:
    """The plan between the parts of the query and of a hit, as a picture; empty where there is none."""
    from likewise import plot
    from likewise.images import data
    from likewise.nn.preparation import crop

    found = hit.plan()
    if found is None:
        return ""
    try:
        a, b = (crop(data.picture(p)) for p in (result.query.shots[hit.shot], hit.path))
    except LikewiseError:
        return ""
    return _drawn(plot.parts(a, b, found.plan))


# ------------------------------------------------------------------------------------------------------------ pictures


def _image(given: Any, edge: int, words: str) -> str:
    from likewise.images import data

    try:
        source = _data(_small(data.picture(given), edge))
    except LikewiseError as error:
        return f"<p>{_e(str(error))}</p>"
    return f'<img alt="{_e(words)}" src="{source}">'


def _small(array: Any, edge: int) -> Any:
    import cv2

    scale = edge / max(array.shape[:2])
    if scale >= 1:
        return array
    size = (max(1, round(array.shape[1] * scale)), max(1, round(array.shape[0] * scale)))
    return cv2.resize(np.ascontiguousarray(array), size, interpolation=cv2.INTER_AREA)


def _data(array: Any) -> str:
    from PIL import Image

    held = buffers.BytesIO()
    Image.fromarray(np.asarray(array)).save(held, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(held.getvalue()).decode()


def _drawn(figure: Any) -> str:
    held = buffers.BytesIO()
    figure.savefig(held, format="jpeg", dpi=100, pil_kwargs={"quality": 82})
    return "data:image/jpeg;base64," + base64.b64encode(held.getvalue()).decode()


def _e(text: str) -> str:
    return html.escape(text)
