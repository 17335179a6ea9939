"""How large the house is: the bars that the design sets, counted anew. `python tools/house.py [--json]`."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HOUSE = ROOT / "src" / "likewise"
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}

BARS = {
    "lines of code in src": 26_500,
    "files in src": 140,
    "most files in a folder": 20,
    "imports inside functions": 80,
    "files that comparing two photos walks through": 35,
    "command-line options": 250,
    "lines of code in tests": 22_000,
    "CPU-seconds of likewise --help": 0.35,
}


def lines_of_code(source: str) -> int:
    """Lines that hold code: blank ones, comments and docstrings do not count."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for child in body if isinstance(body, list) else []:
            value = child.value if isinstance(child, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                documented |= set(range(child.lineno, (child.end_lineno or child.lineno) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SILENT:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - documented)


def count_lines(folder: Path) -> int:
    """Lines of code of all modules below a folder."""
    return sum(lines_of_code(file.read_text(encoding="utf-8")) for file in folder.rglob("*.py"))


def count_inner_imports(folder: Path) -> Counter[str]:
    """Imports inside functions by file, without `__init__` and the command line, where laziness lives."""
    counts: Counter[str] = Counter()
    for file in folder.rglob("*.py"):
        if file.name == "__init__.py" or file.relative_to(folder).parts[0] == "cli":
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
        lines = {
            inner.lineno
            for function in functions
            for inner in ast.walk(function)
            if isinstance(inner, ast.Import | ast.ImportFrom)
        }
        if lines:
            counts[str(file.relative_to(folder))] = len(lines)
    return counts


def count_options() -> int:
    """Options over the whole tree of commands, without --help; those of a paper's tables count once a paper."""
    import click

    from likewise.cli import command
    from likewise.cli.papers import make_command, tables
    from likewise.papers import PAPERS

    def below(one: click.Command) -> int:
        context = click.Context(one)
        own = sum(isinstance(p, click.Option) and "--help" not in p.opts for p in one.get_params(context))
        if not isinstance(one, click.Group):
            return own
        inner = (one.get_command(context, name) for name in one.list_commands(context))
        return own + sum(below(child) for child in inner if child is not None)

    def of(paper: str) -> set[str]:
        commands = [make_command(paper, table) for table in tables(paper)]
        return {p.opts[0] for c in commands for p in c.params if isinstance(p, click.Option)}

    return below(command) + sum(len(of(paper)) for paper in PAPERS)


WALK = """
import sys
from pathlib import Path
import numpy as np
from skimage import data
seen = set()
def watch(frame, event, _):
    if event == "call":
        name = frame.f_code.co_filename
        if "/likewise/" in name and name.endswith(".py") and frame.f_code.co_name != "<module>":
            seen.add(name)
import likewise as lw
import likewise.compare  # what only defines things is not walked through
from likewise import media
folder = Path(sys.argv[1])
cat = data.chelsea()
a = media.write_image(folder / "a.png", cat[60:204, 100:292])
b = media.write_image(folder / "b.png", (cat[66:210, 108:300] * 0.7).astype(np.uint8))
import threading
threading.setprofile(watch)
sys.setprofile(watch)
lw.compare(a, b)
sys.setprofile(None)
print(len(seen))
print("\\n".join(sorted(seen)), file=sys.stderr)
"""


def count_walk() -> int:
    """Files of ours in which a function runs while two photos are compared."""
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run([sys.executable, "-c", WALK, folder], capture_output=True, text=True, check=True)
    if "--files" in sys.argv:
        print(run.stderr)
    return int(run.stdout)


def time_help() -> float:
    """CPU-seconds of `likewise --help`, the best of five."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "likewise.cli", "--help"], stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return round(min(times), 3)


def measure() -> dict[str, Any]:
    """Every bar's figure."""
    files = list(HOUSE.rglob("*.py"))
    return {
        "lines of code in src": count_lines(HOUSE),
        "files in src": len(files),
        "most files in a folder": max(Counter(f.parent for f in HOUSE.rglob("*.*") if f.suffix != ".pyc").values()),
        "imports inside functions": sum(count_inner_imports(HOUSE).values()),
        "files that comparing two photos walks through": count_walk(),
        "command-line options": count_options(),
        "lines of code in tests": count_lines(ROOT / "tests"),
        "CPU-seconds of likewise --help": time_help(),
    }


def main() -> None:
    """Print the figures beside their bars."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    figures = measure()
    if "--json" in sys.argv:
        print(json.dumps(figures, indent=1))
        return
    for name, value in figures.items():
        print(f"{value:>10,} of {BARS[name]:>7,}  {'' if value <= BARS[name] else 'OVER  '}{name}")
    if "--imports" in sys.argv:
        with contextlib.suppress(BrokenPipeError):
            for file, n in count_inner_imports(HOUSE).most_common():
                print(f"{n:>5} {file}")
    short = [f for f in HOUSE.rglob("*.py") if f.name != "__init__.py" and len(f.read_text().splitlines()) < 60]
    for one in short:
        print(f"{len(one.read_text().splitlines()):>10} lines only: {one.relative_to(HOUSE)}")


if __name__ == "__main__":
    main()
