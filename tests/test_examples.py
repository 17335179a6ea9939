"""Every example runs, is short, and prints what its comments say."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.py"))
NOTEBOOK = EXAMPLES[0].with_name("places.ipynb")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def expected(source: str) -> list[str]:
    """What the comments say is printed, in order: everything after `# → `."""
    return re.findall(r"# → (.*)$", source, re.MULTILINE)


def agrees(line: str, said: str, tolerance: float = 0.03) -> bool:
    """The same words, and the same numbers up to what another processor may round otherwise."""
    if NUMBER.sub("#", line) != NUMBER.sub("#", said):
        return False
    pairs = zip(NUMBER.findall(line), NUMBER.findall(said), strict=True)
    return all(abs(float(a) - float(b)) <= tolerance for a, b in pairs)


def test_there_are_examples() -> None:
    names = ["01_pixels.py", "02_images.py", "03_sets.py", "04_distributions.py", "05_search.py"]
    assert [e.name for e in EXAMPLES] == names


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)
def test_an_example_is_at_most_60_lines(example: Path) -> None:
    assert len(example.read_text(encoding="utf-8").splitlines()) <= 60


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)
def test_an_example_prints_what_its_comments_say(example: Path, tmp_path: Path) -> None:
    line = [sys.executable, "-W", "error", str(example)]
    run = subprocess.run(
        line, cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert run.returncode == 0, run.stderr
    printed, said = run.stdout.splitlines(), expected(example.read_text(encoding="utf-8"))
    assert said, f"{example.name} says nowhere what it prints"
    assert len(printed) == len(said), run.stdout
    assert [(p, s) for p, s in zip(printed, said, strict=True) if not agrees(p, s)] == []


# ── the notebook ──────────────────────────────────────────────────────────────────────────────────────────────────


def cells(kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def test_the_notebook_is_one_and_holds_no_outputs() -> None:
    told = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (told["nbformat"], told["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in told["cells"]]
    assert len(set(ids)) == len(ids) == len(cells("code")) + len(cells("markdown"))
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", one) for one in ids)
    assert [(c["outputs"], c["execution_count"]) for c in cells("code")] == [([], None)] * len(cells("code"))


@pytest.mark.slow
def test_the_cells_of_the_notebook_run_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    """Each cell, and its last line as Jupyter would show it."""
    names: dict[str, Any] = {}
    shown = []
    for number, cell in enumerate(cells("code"), 1):
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"cell {number}", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
            shown.append((value, getattr(value, "_repr_html_", str)()))
    (report, _), (result, page), *figures, _ = shown
    assert report.added == 97
    assert Path(result[0].path).name == "day.jpg"
    assert page.count("data:image/") >= 6, "the query, four hits, and why"
    assert len(figures) == 2
    assert all(figure.axes for figure, _ in figures), "the inliers, and the one warped to the other"
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("day.jpg same ")
    (group,) = (ast.literal_eval(line) for line in printed[1:-1])
    assert [what for _, what in group] == ["keep", "turned by 90°", "mirrored"]
    assert printed[-1].startswith("query,rank,path,verdict,probability")


def test_the_comparison_of_lines_can_fail() -> None:
    assert agrees("unlearned 0.54, learned 1.00", "unlearned 0.55, learned 1.00")
    assert not agrees("unlearned 0.54", "unlearned 0.60")
    assert not agrees("unlearned 0.54", "learned 0.54")
    assert not agrees("plan (5, 6)", "plan (5, 7)")
    assert expected("print(1)  # → 1\n# → two\n") == ["1", "two"]
