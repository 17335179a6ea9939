"""What a command says: results on stdout, remarks on stderr, JSON in files."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click


def result(line: str, record: Mapping[str, Any], as_json: bool) -> None:
    """The result on stdout: one line for people, or the record as JSON."""
    click.echo(json.dumps(record, ensure_ascii=False, indent=2, allow_nan=False) if as_json else line)


def remark(text: str) -> None:
    """A line on stderr for somebody who watches; nothing where stderr is no terminal."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def warn(text: str) -> None:
    """A line on stderr that must be seen."""
    print(f"likewise: {text}", file=sys.stderr)


def write_json(path: Path, record: Mapping[str, Any]) -> Path:
    """A record as a JSON file, atomically."""
    from likewise.io import write_text

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
