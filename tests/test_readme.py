"""The Python of the README and of the docs runs as printed, and what they name exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import click
import pytest

from likewise import cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: p.name)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for k, block in enumerate(blocks(page, "python")):
        exec(compile(block, f"{page.name}, block {k + 1}", "exec"), names)


def test_the_readme_shows_what_its_python_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    first = blocks(ROOT / "README.md", "python")[0]
    exec(compile(first, "README.md", "exec"), {})
    printed = capsys.readouterr().out.strip()
    shape = re.escape("SetComparison(distance=…, plan 8×11, converged in … iterations)").replace("…", r"[\d.e-]+")
    assert re.fullmatch(shape, printed), printed
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def command_lines() -> list[str]:
    found = []
    for page in PAGES:
        for block in blocks(page, "sh"):
            found += [line.split("#")[0].strip() for line in block.splitlines() if line.startswith("likewise ")]
    return sorted(set(found))


@pytest.mark.parametrize("line", command_lines())
def test_the_commands_of_a_page_exist(line: str) -> None:
    found: click.Command | None = cli.command
    for word in line.split()[1:]:
        if not isinstance(found, click.Group):
            break
        found = found.get_command(click.Context(found), word)
        assert found is not None, f"{line}: likewise has no {word}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_and_pictures_of_a_page_exist(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} points to {target}"


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_names_of_the_library_in_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for dotted in re.findall(r"`(likewise(?:\.\w+)+)`", text) + re.findall(r"`lw((?:\.\w+)+)", text):
        _resolve(dotted if dotted.startswith("likewise") else "likewise" + dotted)


def _resolve(dotted: str) -> object:
    """A dotted name, as a module or as what a module holds."""
    try:
        return importlib.import_module(dotted)
    except ModuleNotFoundError:
        home, _, name = dotted.rpartition(".")
        return getattr(_resolve(home), name)


def test_a_name_that_does_not_exist_is_found() -> None:
    with pytest.raises(AttributeError):
        _resolve("likewise.core.linalg.no_such_thing")


def test_every_target_that_a_page_names_is_in_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"`?\bmake ([a-z-]+)`", page.read_text(encoding="utf-8")):
            assert target in targets, f"{page.name}: make {target}"
