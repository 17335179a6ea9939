"""Fill the tables of README and docs from docs/results/*.json (quality) and benchmarks/results/*.jsonl (speed).

Quality is what `likewise papers … --out` writes; of speed, with a line a run, the last line counts.

A table stands between `<!-- table:NAME -->` and `<!-- /table -->`; NAME is a file of results. A long one is turned by
`<!-- table:NAME; rows: A; columns: B, C; cell: D -->`: a row for each A, a column for each B with C, D in the cells.
A figure inside a page's own table is `<!-- figure:NAME:ROW:COLUMN -->…<!-- /figure -->`, ROW being the value in the
row's first column, or the first two, "A, B". `--check` changes nothing and fails if a page is stale.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from likewise.media import write_text

ROOT = Path(__file__).resolve().parent.parent
TABLE = re.compile(r"(<!-- table:([\w-]+)((?:; [^;>]+)*) -->\n).*?(<!-- /table -->)", re.DOTALL)
FIGURE = re.compile(r"(<!-- figure:([\w-]+):([^:>]+):([^:>]+) -->).*?(<!-- /figure -->)", re.DOTALL)
RESULTS = ("docs/results", "benchmarks/results")
ABSENT = "not measured yet"


def main(words: list[str] | None = None, root: Path = ROOT) -> int:
    """Fill every page, or with --check say which are stale; the exit code is the number of stale pages (at most 1)."""
    parser = argparse.ArgumentParser(description="Fill the tables of README and docs from their results.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a table is stale")
    check = parser.parse_args(words).check
    stale = [page for page in pages(root) if refresh(page, [root / folder for folder in RESULTS], write=not check)]
    for page in stale:
        print(f"{page.relative_to(root)}: {'stale; python docs/tables.py fills it' if check else 'filled'}")
    return int(check and bool(stale))


def pages(root: Path) -> Iterator[Path]:
    """Every page that may hold a table."""
    yield from (p for p in (root / "README.md", *sorted((root / "docs").glob("*.md"))) if p.exists())


def refresh(page: Path, results: list[Path], *, write: bool) -> bool:
    """Whether the page was stale; with `write` it no longer is."""
    before = page.read_text(encoding="utf-8")
    after = fill(before, results)
    if write and after != before:
        write_text(page, after)
    return after != before


def fill(text: str, results: list[Path]) -> str:
    """The text with every table and figure made anew."""
    text = TABLE.sub(lambda m: m[1] + table(turned(load(results, m[2]), m[3])) + m[4], text)
    return FIGURE.sub(lambda m: m[1] + figure(load(results, m[2]), m[3], m[4]) + m[5], text)


def load(results: list[Path], name: str) -> dict[str, Any] | None:
    """The results of that name, or None if they were never measured."""
    for folder in results:
        for file in (folder / f"{name}.json", folder / f"{name}.jsonl"):
            if file.exists():
                text = file.read_text(encoding="utf-8")
                loaded: dict[str, Any] = json.loads(text if file.suffix == ".json" else text.splitlines()[-1])
                return loaded
    return None


def turned(result: dict[str, Any] | None, how: str) -> dict[str, Any] | None:
    """The results with one row for each value of a column, and one column for each value of others."""
    if result is None or not how:
        return result
    asked = dict(part.split(": ", 1) for part in how.strip("; ").split("; "))
    down, across, inside = asked["rows"], asked["columns"].split(", "), asked["cell"]
    grid: dict[str, dict[str, Any]] = {}
    heads: dict[str, None] = {}
    for row in result["rows"]:
        head = ", ".join(cell(row[c]) for c in across)
        heads[head] = None
        grid.setdefault(row[down], {down: row[down]})[head] = row[inside]
    note = f"{inside} by {' and '.join(across)}. {result['note']}".rstrip(". ")
    return {**result, "columns": [down, *heads], "rows": list(grid.values()), "note": note}


def table(result: dict[str, Any] | None) -> str:
    """A Markdown table with its rows, and under it how it was made."""
    if result is None:
        return f"| |\n|---|\n| {ABSENT} |\n"
    columns = result["columns"]
    right = [all(_number(row.get(c)) or row.get(c) is None for row in result["rows"]) for c in columns]
    lines = [_line(columns), _line(["---:" if r else "---" for r in right])]
    lines += [_line([cell(row.get(c)) for c in columns]) for row in result["rows"]]
    note = result.get("note", "").rstrip(".")
    note = f"{note[0].upper()}{note[1:]}. " if note else ""
    made = f"{note}`{result['command']}`, commit {result['commit']}, {result['date']}; {result['machine']}."
    return "\n".join(lines) + f"\n\n<sub>{made}</sub>\n"


def figure(result: dict[str, Any] | None, row: str, column: str) -> str:
    """One cell of the results."""
    if result is None:
        return ABSENT
    for candidate in result["rows"]:
        first, second = (str(candidate.get(c)) for c in (*result["columns"], "")[:2])
        if row in (first, f"{first}, {second}"):
            return cell(candidate.get(column)) or ABSENT
    raise SystemExit(f"results/{result['name']}.json has no row {row!r}; its pages ask for it")


def cell(value: Any) -> str:
    """A value as it is printed: integers and large numbers with thousands, others with three significant digits."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or (isinstance(value, float) and abs(value) >= 1000):
        return f"{value:,.0f}"
    return f"{value:.3g}" if isinstance(value, float) else str(value).replace("|", "\\|")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
