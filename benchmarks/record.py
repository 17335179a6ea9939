"""The one writer of measured figures, benchmarks/results/NAME.json; docs/tables.py fills README and docs from them."""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from likewise.errors import InputError
from likewise.media import write_text

RESULTS = Path(__file__).parent / "results"


def record(
    name: str,
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    command: str,
    note: str = "",
    *,
    folder: Path = RESULTS,
) -> Path:
    """Write measured rows, with the commit, the machine, the command and the date that made them; atomic.

    A row may carry more than the columns (they are kept); a column that no row has is a mistake.
    """
    if not name.replace("-", "_").isidentifier():
        raise InputError(f"name: expected letters, digits, - or _, got {name!r}")
    if not rows:
        raise InputError(f"rows of {name}: expected at least one, got none; nothing is written")
    for column in columns:
        if not any(column in row for row in rows):
            raise InputError(f"columns of {name}: no row has {column!r}")
    result = {
        "name": name,
        "commit": commit(),
        "machine": machine(),
        "command": command,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "note": note,
        "columns": list(columns),
        "rows": [{key: plain(value) for key, value in row.items()} for row in rows],
    }
    return write_text(folder / f"{name}.json", json.dumps(result, ensure_ascii=False, indent=2, allow_nan=False) + "\n")


def remember(name: str, figures: Mapping[str, Any], command: str, *, folder: Path = RESULTS) -> None:
    """Append one line to history.jsonl: a run's figures, with the commit, the machine, the command and the date."""
    line = {
        "name": name,
        "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": machine(),
        "command": command,
        **{key: plain(value) for key, value in figures.items()},
    }
    with open(folder / "history.jsonl", "a", encoding="utf-8") as stream:
        stream.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """A value that JSON holds: NumPy scalars as Python's own; a number that is not finite is refused."""
    if hasattr(value, "item") and not isinstance(value, str):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"rows: expected finite numbers, got {value}")
    return value


def commit() -> str:
    """The commit that was measured; `+` says that the sources had changes that it does not hold."""
    here = Path(__file__).parent.parent
    head = _git(here, "rev-parse", "--short=12", "HEAD")
    if not head:
        return "unknown"
    return head + ("+" if _git(here, "status", "--porcelain", "--", "src", "benchmarks/*.py") else "")


def _git(folder: Path, *words: str) -> str:
    try:
        run = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return run.stdout.strip()


def machine() -> str:
    """Processor, cores and the versions that matter; never a host name."""
    versions = ", ".join(f"{p} {metadata.version(p)}" for p in ("numpy", "numba", "torch"))
    return f"{_processor()}, {os.cpu_count()} cores, Python {platform.python_version()}, {versions}"


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return " ".join(names[0].split()) if names else platform.machine()
