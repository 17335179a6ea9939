"""`likewise weights`: the files that ship and the published ones by name: listed, fetched, added, checked."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from likewise.cli import Command, terminal
from likewise.cli.terminal import json_flag
from likewise.errors import FileError

if TYPE_CHECKING:
    from likewise.nn.download import Progress


@click.command("list", cls=Command)
@json_flag
def list_weights(as_json: bool) -> None:
    """List the weights that come with likewise and the published ones: size, licence, what each is for, where it is.

    \b
    likewise weights list
    """
    from likewise.nn.download import places
    from likewise.nn.published import ENTRIES

    rows = [{**card, "place": "likewise"} for card in _cards()]
    for e in ENTRIES:
        place, file = next(((place, str(file)) for place, file in places(e)), (None, None))
        size = e.size or (Path(file).stat().st_size if file else None)
        row = {"name": e.name, "about": e.purpose, "file": file, "place": place, "expected": e.sha256, "bytes": size}
        rows.append({**row, "licence": e.licence, "restriction": e.restriction, "url": e.url})
    cells = [(r["name"], _megabytes(r["bytes"]), r["place"] or "not here") for r in rows]
    words = [f"{r['about']} ({_licence(r)})" for r in rows]
    lines = [f"{row}  {word}" for row, word in zip(terminal.columns(cells), words, strict=True)]
    terminal.result(lines, {"weights": rows}, as_json)


@click.command("fetch", cls=Command)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
def fetch_weights(names: tuple[str, ...]) -> None:
    """Download published weights into the cache; a download that was stopped resumes.

    \b
    likewise weights fetch aliked-n16 aliked-lightglue
    """
    from likewise.nn.download import fetch
    from likewise.nn.published import find_entry

    for entry in [find_entry(name) for name in names]:
        _tell_licence(entry)
        with _progress(entry.name) as progress:
            file = fetch(entry.name, progress)
        terminal.result(f"{entry.name}: {file}", {}, as_json=False)


@click.command("add", cls=Command)
@click.argument("name")
@click.argument("file", type=click.Path())
def add_weights(name: str, file: str) -> None:
    """Copy a file of published weights into the cache, if it is the right one.

    \b
    likewise weights add raft-small models/raft-small.pth
    """
    from likewise.nn.download import add, digest
    from likewise.nn.published import find_entry

    entry = find_entry(name)
    _tell_licence(entry)
    copy = add(name, file)
    note = "" if entry.sha256 else f" (no digest is published; SHA-256 {digest(copy)})"
    terminal.result(f"{name}: {copy}{note}", {}, as_json=False)


@click.command("check", cls=Command)
@json_flag
def check_weights(as_json: bool) -> None:
    """Compare every file of weights that is here with its SHA-256; exit 2 where one differs.

    \b
    likewise weights check
    """
    from likewise.nn.download import digest, places
    from likewise.nn.published import ENTRIES, difference

    cards, wrong = _cards(), []
    for card in cards:
        if card["sha256"] != card["expected"]:
            said = f"{card['file']}: SHA-256 {card['sha256'][:12]}… is not that of its card, {card['expected'][:12]}…"
            wrong.append(f"{said}; install likewise again")
    for entry in ENTRIES:
        for place, file in places(entry):
            sha256 = digest(file)
            said = difference(entry, file, sha256)
            if said and place == "torch.hub":
                continue  # a file of somebody else under the same name, never taken
            wrong += [said] * bool(said)
            cards.append({"name": entry.name, "file": str(file), "sha256": sha256, "expected": entry.sha256})
    if wrong:
        raise FileError(wrong[0] + (f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""))
    terminal.result(f"{len(cards)} files have the SHA-256 they should", {"weights": cards}, as_json)


def _tell_licence(entry: Any) -> None:
    from likewise.nn.published import licence_notice

    if words := licence_notice(entry):
        terminal.warn(words)


def _megabytes(size: int | None) -> str:
    return "–" if size is None else f"{size / 1e6:.2f} MB"


def _licence(row: dict[str, Any]) -> str:
    """The licence in a few words; a card has a sentence about its pictures first, and that of the weights last."""
    if "restriction" not in row:
        return str(row["licence"]).rstrip(".").split()[-1]
    return f"{row['licence']}: {row['restriction']}" if row["restriction"] else str(row["licence"])


@contextmanager
def _progress(name: str) -> Iterator[Progress | None]:
    """A bar on stderr where somebody watches."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda here, total: bar.update(task, completed=here, total=total)


def _cards() -> list[dict[str, Any]]:
    """What the model cards say, and the size and digest of the file beside each."""
    folder = Path(str(resources.files("likewise") / "weights"))
    cards = []
    for card in sorted(folder.glob("*.md")):
        text = card.read_text(encoding="utf-8")
        file = next(f for f in sorted(folder.glob(f"{card.stem}.*")) if f.suffix != ".md")
        data = file.read_bytes()
        said = re.search(r"\*\*SHA-256\.\*\* `([0-9a-f]{64})`", text)
        licence = re.search(r"\*\*Licence\.\*\* (.+?)(?=\n\*\*|\n<!--|\Z)", text, re.S)
        found = {"name": card.stem, "about": text.splitlines()[0].partition(": ")[2], "file": str(file)}
        found |= {"sha256": hashlib.sha256(data).hexdigest(), "expected": said[1] if said else ""}
        licence_words = " ".join(licence[1].split()) if licence else ""
        cards.append({**found, "bytes": len(data), "licence": licence_words})
    return cards
