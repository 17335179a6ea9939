"""Every example runs, is short, and prints what its comments say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.py"))
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


def test_the_comparison_of_lines_can_fail() -> None:
    assert agrees("unlearned 0.54, learned 1.00", "unlearned 0.55, learned 1.00")
    assert not agrees("unlearned 0.54", "unlearned 0.60")
    assert not agrees("unlearned 0.54", "learned 0.54")
    assert not agrees("plan (5, 6)", "plan (5, 7)")
    assert expected("print(1)  # → 1\n# → two\n") == ["1", "two"]
