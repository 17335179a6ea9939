"""The four papers: data layouts, rivals, protocols, presets and tables. Only `likewise papers` uses it.

Each of `life`, `diva`, `mlml` and `polarity` has `TABLES`: what can be made anew, named after the paper's own tables;
those of `places` are of no paper: what search makes of real photos.
What they share is here: the record of a table and where it was made, and the pieces of published layouts.
"""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from likewise import media
from likewise.errors import FileError, InputError
from likewise.store.run import read_json, versions

PAPERS = ("life", "diva", "mlml", "polarity", "places")
"""The papers, by the names of their folders, and what is measured beside them."""

# ── a table and its record ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Record:
    """What a table holds: its columns in order, one mapping a row, and a note to be read under it.

    A row may lack a column, and may carry more than the columns; a number that is not finite is refused, because JSON
    cannot hold it.
    """

    columns: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    note: str = ""

    def __post_init__(self) -> None:
        if not self.columns or not self.rows:
            raise InputError("rows: expected at least one column and one row, got none")
        for name in self.columns:
            if not any(name in row for row in self.rows):
                raise InputError(f"columns: no row has {name!r}")
        for row in self.rows:
            for name, value in row.items():
                if isinstance(_plain(value), float) and not math.isfinite(value):
                    raise InputError(f"{name}: expected a finite number, got {value}")

    def to_dict(self, name: str, command: str) -> dict[str, Any]:
        """Everything as plain values for JSON, with the command, the commit, the date and the machine that made it."""
        return {
            "name": name,
            "commit": commit(),
            "machine": machine(),
            "command": command,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "note": self.note,
            "columns": list(self.columns),
            "rows": [{key: _plain(value) for key, value in row.items()} for row in self.rows],
        }


@dataclass(frozen=True)
class Table:
    """A table or figure of a paper that a command makes: its name, a title, its options and what runs it.

    `options` is a dataclass whose fields `train.options` declares; `run` gets one of them.
    """

    name: str
    title: str
    options: type
    run: Callable[[Any], Record]


def commit() -> str:
    """The commit of this checkout, with `+` where its sources have changes that it does not hold; else the version."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():  # installed: a repository around the environment is not ours
        return f"likewise {version('likewise')}"
    head = _git(root, "rev-parse", "--short=12", "HEAD")
    changes = _git(root, "status", "--porcelain", "--", "src", "benchmarks/*.py")
    return f"{head or 'unknown'}{'+' if changes else ''}"


def _git(root: Path, *words: str) -> str:
    try:
        return subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=False
        ).stdout.strip()
    except OSError:  # no git
        return ""


def machine() -> str:
    """Processor, cores and the versions that matter; never a host name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].split() for line in lines if line.startswith("model name")]
    processor = " ".join(names[0]) if names else platform.processor() or platform.machine()
    known = versions()
    packages = ", ".join(f"{p} {known[p]}" for p in ("numpy", "numba", "torch") if p in known)
    return f"{processor}, {os.cpu_count()} cores, Python {known['python']}, {packages}"


def _plain(value: Any) -> Any:
    """NumPy's scalars as Python's own."""
    return value.item() if hasattr(value, "item") and not isinstance(value, str) else value


# ── what tables are made of ───────────────────────────────────────────────────────────────────────────────────────


def data_folder(given: str) -> Path:
    """The folder of the data that a table reads: the one that was given, or else $LIKEWISE_DATA."""
    place = given or os.environ.get("LIKEWISE_DATA", "")
    if not place:
        raise InputError("data: expected the folder of the data set; give it, or set LIKEWISE_DATA")
    return Path(place)


def kept(file: Path | None, measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """What an earlier run left in the file; else what is measured now, which is left there, so that a run resumes."""
    if file is not None and file.is_file():
        return read_json(file)
    figures = dict(measure())
    if file is not None:
        media.write_text(file, json.dumps(figures, ensure_ascii=False) + "\n")
    return figures


def slug(name: str) -> str:
    """The name of a variant as that of a file."""
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def mean_error(values: ArrayLike) -> tuple[float, float | None]:
    """Mean, and its standard error; None for one value."""
    x = np.asarray(values, dtype=np.float64)
    return float(x.mean()), float(x.std(ddof=1) / math.sqrt(len(x))) if len(x) > 1 else None


# ── pieces of published layouts ───────────────────────────────────────────────────────────────────────────────────


def read_text(path: Path) -> str:
    """The text of a list; what is not UTF-8 in it is replaced."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror or error}") from None


def within(name: str, source: str | os.PathLike[str]) -> PurePosixPath:
    """A relative path out of a list, which must stay below the folder of the list."""
    path = PurePosixPath(name.strip().replace("\\", "/"))
    if not name.strip() or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise FileError(f"{source}: names {name!r}, which is outside of its folder")
    return path


def all_there(files: Sequence[Path], source: Path) -> Sequence[Path]:
    """The files that a list names, if all of them exist."""
    missing = [f for f in files if not media.is_file(f)]
    if missing:
        raise FileError(f"{source}: names {missing[0]}, but there is no such file ({len(missing):,} missing)")
    return files
