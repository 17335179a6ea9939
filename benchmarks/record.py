"""The one writer of measured speed: a line a run in benchmarks/results/NAME.jsonl.

docs/tables.py fills README and docs from the last line of each; the lines before it are the history.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from likewise.errors import InputError
from likewise.papers import Record

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
    """Append one line: the rows, with the commit, the machine, the command and the date that made them.

    A row may carry more than the columns (they are kept); a column that no row has is a mistake.
    """
    if not name.replace("-", "_").isidentifier():
        raise InputError(f"name: expected letters, digits, - or _, got {name!r}")
    line = Record(columns, rows, note).to_dict(name, command)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f"{name}.jsonl", "a", encoding="utf-8") as stream:
        stream.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
    return folder / f"{name}.jsonl"
