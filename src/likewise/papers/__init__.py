"""The four papers: data layouts, rivals, protocols, presets and tables. Only `likewise papers` uses it.

Each of `life`, `diva`, `mlml` and `polarity` has `TABLES`: what can be made anew, named after the paper's own tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from likewise.errors import InputError

PAPERS = ("life", "diva", "mlml", "polarity")
"""The papers, by the names of their folders."""


@dataclass(frozen=True)
class Record:
    """What a table holds: its columns in order, one mapping a row, and what has to be known to make it again.

    A row may lack a column; a number that is not finite is refused, because JSON cannot hold it.
    """

    columns: Sequence[str]
    rows: Sequence[Mapping[str, Any]]
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.columns or not self.rows:
            raise InputError("a table needs at least one column and one row")
        for name in self.columns:
            if not any(name in row for row in self.rows):
                raise InputError(f"columns: no row has {name!r}")
        for row in self.rows:
            for name, value in row.items():
                if isinstance(value, float) and not math.isfinite(value):
                    raise InputError(f"{name}: expected a finite number, got {value}")

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        return {"about": dict(self.about), "columns": list(self.columns), "rows": [dict(row) for row in self.rows]}


@dataclass(frozen=True)
class Table:
    """A table or figure of a paper that a command makes: its name, a title, its options and what runs it.

    `options` is a dataclass whose fields `train.options` declares; `run` gets one of them.
    """

    name: str
    title: str
    options: type
    run: Callable[[Any], Record]
