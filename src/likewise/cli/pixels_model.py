"""Which network the commands of `likewise pixels` ask for flow, and what they say while it works."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from likewise.errors import FileError

F = TypeVar("F", bound=Callable[..., Any])

OFFICIAL = (".pth", ".pt")
"""How files of RAFT's published weights end."""


def with_model(function: F) -> F:
    """--model, a file that `likewise pixels train` or `likewise.save` wrote, or RAFT's published weights."""
    words = "a run, a model of likewise, or RAFT's published weights (.pth); by default the one that ships"
    return click.option("--model", type=click.Path(), help=words)(function)


def model_at(path: str | None) -> Any:
    """The network in a file or a run directory, or the one that ships; it has .flow(a, b) and .both(a, b)."""
    if path is None:
        from likewise.pixels.aligner import default

        return default()
    place = Path(path) / "model.safetensors" if Path(path).is_dir() else Path(path)
    if place.suffix.lower() in OFFICIAL:
        from likewise.pixels.raft import RAFT

        return RAFT.from_official(place)
    from likewise.store.checkpoint import load

    found = load(place)
    if not hasattr(found, "both"):
        raise FileError(f"{path}: holds a {type(found).__name__}, which does not align pictures")
    return found


@contextmanager
def working(words: str) -> Iterator[Callable[[str], None]]:
    """Something turns on stderr while a step of unknown length is done; nothing where that is no terminal.

    Yields what changes the words.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status(words) as status:
        yield status.update
