"""One case: a valid input of a reader, edited by a seed, read by the library; and what became of it."""

from __future__ import annotations

import os
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tests.fuzz.mutations import Mutation, emptied, pick

from likewise import bounded
from likewise.errors import LikewiseError

SECONDS = 5.0
"""A file that takes more CPU time than this to be read or refused is a hang; the clock would count other programs."""

FORBIDDEN = ("pickle.find_class", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect")
"""What no file may bring about, by the names of Python's audit events."""

CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate")
"""What a file may bring about within its own folder only."""


@dataclass(frozen=True)
class Reader:
    """Something that reads a stranger's bytes.

    `make` writes a valid input into a folder; `read` reads all of it; `edits` says by glob pattern which of its files
    are edited, and how; `seal` makes the checksums of the folder anew after an edit. `allowed` are beginnings of audit
    events that belong to how it is read: a child process with limits, the names that arrays are made of.
    """

    name: str
    make: Callable[[Path], object]
    read: Callable[[Path], object]
    edits: Mapping[str, tuple[Mutation, ...]]
    seal: Callable[[Path], None] | None = None
    needs: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()


@dataclass
class Outcome:
    """accepted, refused (a LikewiseError), or the defect: another exception, a write elsewhere, a hang."""

    kind: str
    said: str = ""
    seconds: float = 0.0


@dataclass
class Bench:
    """A folder with a reader's valid input, which is edited for a case and put back after it."""

    reader: Reader
    folder: Path
    files: dict[Path, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.reader.make(self.folder)
        self.files = {p: p.read_bytes() for p in sorted(self.folder.rglob("*")) if p.is_file()}

    def edit(self, seed: int, number: int) -> Path:
        """Edit one file as (reader, seed, number) says; which one."""
        rng = np.random.default_rng([seed, zlib.crc32(self.reader.name.encode()), number])
        pattern = pick(rng, list(self.reader.edits))
        file: Path = pick(rng, [p for p in self.files if p.relative_to(self.folder).match(pattern)])
        how = emptied if rng.random() < 0.01 else pick(rng, self.reader.edits[pattern])
        file.write_bytes(how(self.files[file], rng))
        if self.reader.seal is not None and rng.random() < 0.8:
            with suppress(Exception):  # what is too broken to be sealed stays unsealed
                self.reader.seal(self.folder)
        return file

    def restore(self) -> None:
        """Put every file back, and take away what was added."""
        for path in list(self.folder.rglob("*")):
            if path.is_file() and path not in self.files:
                path.unlink()
        for path, data in self.files.items():
            if not path.is_file() or path.stat().st_size != len(data) or path.read_bytes() != data:
                path.write_bytes(data)

    def run(self, seed: int, number: int) -> Outcome:
        """One case from its edit to its outcome."""
        edited = self.edit(seed, number)
        try:
            return judged(self.reader, self.folder, edited)
        finally:
            self.restore()


def judged(reader: Reader, folder: Path, edited: Path | None = None) -> Outcome:
    """Read a folder, or of files that stand for themselves the edited one alone, and say what became of it."""
    beside = sorted(p.name for p in folder.parent.iterdir())
    began = time.process_time()
    # in this process, so that a decoder's crash is one; but what is read under limits alone
    here = nullcontext() if "subprocess.Popen" in reader.allowed else bounded.trusted()
    with warnings.catch_warnings(), here, watched(folder) as seen:
        warnings.simplefilter("ignore")
        kind, said = _read(reader, folder, edited)
    seconds = time.process_time() - began
    seen = [event for event in seen if not event.startswith(reader.allowed)] if reader.allowed else seen
    if seen:
        kind, said = "other", f"forbidden: {seen[0]}"
    elif sorted(p.name for p in folder.parent.iterdir()) != beside:
        kind, said = "other", "a file was written outside of its folder"
    return Outcome(kind, said.replace(str(folder), folder.name), seconds)


def _read(reader: Reader, folder: Path, edited: Path | None) -> tuple[str, str]:
    alone = getattr(reader.read, "one", None)
    try:
        alone(edited) if alone is not None and edited is not None else reader.read(folder)
    except LikewiseError as error:
        return "refused", _line(error)
    except Exception as error:
        return "other", f"{type(error).__name__}: {_line(error)} at {_where(error)}"
    return "accepted", ""


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


def _where(error: BaseException) -> str:
    """The last line of likewise that the error went through."""
    result, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if "likewise" in file and "fuzz" not in file:
            result = f"{Path(file).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return result


# ------------------------------------------------------------------------------------------------------------- auditing

_watching: list[tuple[Path, list[str]]] = []
_hooked: list[bool] = []


@contextmanager
def watched(folder: Path) -> Iterator[list[str]]:
    """Note what Python is asked to do that a file must not bring about: unpickle, start a program, write elsewhere."""
    if not _hooked:
        sys.addaudithook(_heard)  # a hook cannot be taken away again; it does nothing while nothing is watched
        _hooked.append(True)
    seen: list[str] = []
    _watching.append((folder.resolve(), seen))
    try:
        yield seen
    finally:
        _watching.pop()


def _heard(event: str, args: tuple[Any, ...]) -> None:
    if not _watching:
        return
    folder, seen = _watching[-1]
    if event in FORBIDDEN:
        seen.append(f"{event} {args!r}"[:200])
    elif event == "open" and isinstance(args[1], str):
        if any(c in args[1] for c in "wax+"):
            _written(folder, seen, args[0])
    elif event in CHANGES:
        _written(folder, seen, args[0])


def _written(folder: Path, seen: list[str], name: Any) -> None:
    if not isinstance(name, str | bytes | os.PathLike):  # the number of a file that was opened, and heard of, before
        return
    path = Path(os.fsdecode(name)).absolute()
    harmless = "__pycache__" in path.parts or path.is_relative_to("/dev") or path.is_relative_to("/proc")
    if not harmless and not path.is_relative_to(folder):
        seen.append(f"write to {path}")
