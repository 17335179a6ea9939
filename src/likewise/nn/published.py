"""Published weights by name: where each file is from, its digest, its licence and what it is for.

published.toml lists the files; `likewise.nn.download` finds, fetches and adds them.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from likewise.errors import InputError


@dataclass(frozen=True)
class Published:
    """A file of published weights.

    Attributes
    ----------
    name, file : str
        What it is called here, and by those who publish it.
    purpose, licence, restriction : str
        What it is for; its licence; who may use it, where that is not everybody.
    sha256 : str, optional
        Its digest; None where no public one is known.
    size : int, optional
        Bytes.
    url : str, optional
        Where it can be downloaded; None where only an archive that holds it can, which `hint` names.
    wheel : str, optional
        The installed package, and the folder in it, that carries the file.
    also : tuple of str
        Other names of the same file in caches.
    hint : str
        How to come by a file that has no URL.
    """

    name: str
    file: str
    purpose: str
    licence: str
    sha256: str | None
    size: int | None = None
    url: str | None = None
    wheel: str | None = None
    restriction: str = ""
    also: tuple[str, ...] = ()
    hint: str = ""


def _read() -> Iterator[Published]:
    """The files that published.toml lists."""
    for said in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["file"]:
        yield Published(**said | {"also": tuple(said.get("also", ()))})


ENTRIES = tuple(_read())
PUBLISHED = {entry.name: entry for entry in ENTRIES}
"""The files of published weights by name."""


def find_entry(name: str) -> Published:
    """What is known about the weights of a name."""
    if name in PUBLISHED:
        return PUBLISHED[name]
    near = difflib.get_close_matches(name, PUBLISHED, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise InputError(f"weights: expected a name of `likewise weights list`, got {name!r}{hint}")


def difference(entry: Published, file: Path, sha256: str) -> str:
    """What is wrong with a file of this digest; nothing where it is the published one, or none is known."""
    if entry.sha256 in (None, sha256):
        return ""
    other = next((e.name for e in ENTRIES if e.sha256 == sha256), None)
    what = f" (it is {other})" if other else ""
    return f"{file}: SHA-256 {sha256[:12]}…{what} is not that of {entry.name}, {str(entry.sha256)[:12]}…"


_told: set[str] = set()


def licence_notice(entry: Published) -> str | None:
    """The sentence that says who may use the weights; None for free ones, and after the first time in a process."""
    if not entry.restriction or entry.name in _told:
        return None
    _told.add(entry.name)
    return f"the weights {entry.name} ({entry.licence}) are for {entry.restriction}"
