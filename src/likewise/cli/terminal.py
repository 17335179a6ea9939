"""What a command says: results on stdout, remarks on stderr, JSON in files."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

DRAWN = (".png", ".svg", ".pdf", ".jpg")
"""How the name of a picture may end that a command draws."""
NAMED = 5
"""How many unreadable pictures are named on the terminal; the JSON names all."""


def result(line: str, record: Mapping[str, Any], as_json: bool) -> None:
    """The result on stdout: one line for people, or the record as JSON."""
    text = json.dumps(record, ensure_ascii=False, indent=2, allow_nan=False) if as_json else line
    click.echo(text.encode("utf-8", "backslashreplace").decode())  # names may hold bytes of no encoding


def remark(text: str) -> None:
    """A line on stderr for somebody who watches; nothing where stderr is no terminal."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def warn(text: str) -> None:
    """A line on stderr that must be seen."""
    print(f"likewise: {text}", file=sys.stderr)


def tell_left_out(skipped: Sequence[tuple[str, str]]) -> None:
    """Say on stderr which pictures could not be read, each with the reason."""
    if not skipped:
        return
    warn(f"{len(skipped)} unreadable picture{'s' if len(skipped) > 1 else ''} left out:")
    for name, reason in skipped[:NAMED]:
        print(f"  {reason if reason.startswith(name) else f'{name}: {reason}'}", file=sys.stderr)
    if len(skipped) > NAMED:
        print(f"  and {len(skipped) - NAMED} more", file=sys.stderr)


def labels_of(a: str, b: str) -> tuple[str, str]:
    """What to call two paths: their last names, and as many folders before as tell them apart."""
    left, right = Path(a).absolute().parts, Path(b).absolute().parts
    count = next((n for n in range(1, 4) if left[-n:] != right[-n:]), 1)
    one, two = ("/".join(parts[-count:]) for parts in (left, right))
    return _short(one), _short(two)


def _short(name: str) -> str:
    return name if len(name) <= 28 else "…" + name[-27:]


def write_json(path: Path, record: Mapping[str, Any]) -> Path:
    """A record as a JSON file, atomically."""
    from likewise.media import write_text

    return write_text(path, json.dumps(record, ensure_ascii=False, indent=2, allow_nan=False) + "\n")


def check_writable(folder: Path) -> None:
    """Make the folder of the results now: a FileError before the work is better than one after it."""
    import tempfile

    from likewise.errors import FileError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise FileError(f"{folder}: cannot be written to: {error.strerror or error}") from None


def target(path: str | None, option: str, suffixes: tuple[str, ...]) -> Path | None:
    """A file that will be written: its name must end as it should and its folder be writable, before any work."""
    if path is None:
        return None
    place = Path(path)
    if place.suffix.lower() not in suffixes:
        from likewise.errors import InputError

        raise InputError(f"{option}: expected a name that ends in {' or '.join(suffixes)}, got {path!r}")
    check_writable(place.absolute().parent)
    return place
