"""Sphinx: MyST pages, furo, and hooks that write what would otherwise go stale.

`<!-- options:module:Class -->` becomes the table of that class's options (train.options.table);
`<!-- commands -->` becomes the help of every command of the command line, read from click;
{cites}`MLML 4 5` becomes the functions whose docstrings cite these equations;
`<!-- api:package -->` becomes the names that a package exports, from its `__all__`, in the order of the alphabet;
`<!-- gallery -->` becomes the examples, each run once, with what it prints and draws;
{tests}`word` becomes the tests whose file or name has that word, and is a warning (an error, then) if there is none.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import click

project = "likewise"
author = "the likewise authors"
copyright = author
version = release = installed("likewise")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
napoleon_google_docstring = False
napoleon_use_rtype = False
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True}
autodoc_type_aliases = {
    name: name for name in ("ArrayLike", "Array", "NDArray", "Index", "Labels", "FilePath", "Value")
}
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True

suppress_warnings = ["ref.python"]  # attributes of many classes bear one name: images, k, dim

html_theme = "furo"
html_title = "likewise"
html_static_path = ["_static"]
html_css_files = ["likewise.css"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0072B2", "color-brand-content": "#0072B2"},
    "dark_css_variables": {"color-brand-primary": "#56B4E9", "color-brand-content": "#56B4E9"},
}
pygments_style = "friendly"

ROOT = Path(__file__).resolve().parent.parent
CITES = re.compile(r"\{cites\}`([^`]+)`")
TESTS = re.compile(r"\{tests\}`([^`]+)`")
OPTIONS = re.compile(r"<!-- options:([\w.]+):(\w+) -->")
API = re.compile(r"<!-- api:([\w.]+) -->")
GALLERY = ROOT / "docs" / "_static" / "gallery"


def fill(app: Any, name: str, source: list[str]) -> None:
    """Write the tables of options and the help of the commands into a page before it is parsed."""
    source[0] = OPTIONS.sub(lambda m: options_table(m[1], m[2]), source[0])
    source[0] = CITES.sub(lambda m: _listed(cites(m[1]), m[0], name), source[0])
    source[0] = TESTS.sub(lambda m: _listed(tests(m[1]), m[0], name), source[0])
    source[0] = API.sub(lambda m: api(m[1]), source[0])
    if "<!-- gallery -->" in source[0]:
        source[0] = source[0].replace("<!-- gallery -->", gallery())
    if "<!-- commands -->" in source[0]:
        source[0] = source[0].replace("<!-- commands -->", commands())


def api(package: str) -> str:
    """Directives for the functions and classes that a package exports; its modules are only named."""
    from likewise.train.options import table

    module = importlib.import_module(package)
    root = importlib.import_module("likewise")
    lines = ["```{eval-rst}"]
    for name in module.__all__:
        value = getattr(module, name)
        if package != "likewise" and name in root.__all__ and getattr(root, name) is value:
            continue  # it stands on the first page
        if inspect.isclass(value):
            lines += [f".. autoclass:: {package}.{name}", ""]
            if dataclasses.is_dataclass(value) and any("option" in f.metadata for f in dataclasses.fields(value)):
                lines += ["```", "", table(value), "", "```{eval-rst}"]
        elif callable(value):
            lines += [f".. autofunction:: {package}.{name}", ""]
    return "\n".join([*lines, "```"])


def gallery() -> str:
    """The examples as sections: the script, what it prints, and the images that it writes."""
    return "\n\n".join(_example(file) for file in sorted((ROOT / "examples").glob("*.py")))


def _example(file: Path) -> str:
    source = file.read_text(encoding="utf-8")
    place = GALLERY / f"{file.stem}-{hashlib.sha256(source.encode()).hexdigest()[:12]}"
    if not (place / "printed.txt").exists():  # run once for each version of the script
        place.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        run = subprocess.run(
            [sys.executable, str(file)], cwd=place, env=environment, capture_output=True, text=True, check=True
        )
        (place / "printed.txt").write_text(run.stdout, encoding="utf-8")
    title = (ast.get_docstring(ast.parse(source)) or file.stem).split("\n")[0]
    printed = (place / "printed.txt").read_text(encoding="utf-8").strip()
    images = [f"![{i.stem}](_static/gallery/{place.name}/{i.name})" for i in sorted(place.glob("*.png"))]
    return "\n".join(
        [f"## {title}", "", *images, "", "```python", source.strip(), "```", "", "```text", printed, "```"]
    )


def options_table(module: str, name: str) -> str:
    """The options of a class as a Markdown table."""
    from likewise.train.options import table

    return table(getattr(importlib.import_module(module), name))


def _listed(found: list[str], asked: str, page: str) -> str:
    from sphinx.util import logging

    if not found:
        logging.getLogger(__name__).warning("%s: nothing answers to %s", page, asked)
    return "<br>".join(_short(name) for name in found) or "none"


def _short(name: str) -> str:
    """A function without the package's name; a test as the sentence that its name is, and its file."""
    file, _, test = name.partition("::")
    if test:
        return f"{test.removeprefix('test_').replace('_', ' ')} (`{file.removeprefix('tests/')}`)"
    return f"`{name.removeprefix('likewise.').removeprefix('tests/')}`"


def cites(asked: str) -> list[str]:
    """The functions whose docstrings cite one of the equations, algorithms, figures or sections of a paper."""
    paper, *wanted = asked.split()
    return [name for name, text in _docstrings() if "._" not in name and set(wanted) & _cited(paper, text)]


def _cited(paper: str, text: str) -> set[str]:
    """What a docstring cites: `[MLML Eq. 4–7, 11]` is 4, 5, 6, 7 and 11; others are Algorithm-1, Fig-11, C.3."""
    found: set[str] = set()
    for words in re.findall(rf"\[{paper} ([^\]]*)\]", text):
        for numbers in re.findall(r"Eq\. ([\d–, ]+)", words):
            for first, last in re.findall(r"(\d+)(?:–(\d+))?", numbers):
                found |= {str(n) for n in range(int(first), int(last or first) + 1)}
        found |= {f"{kind}-{n}" for kind, n in re.findall(r"\b(Algorithm|Theorem|Fig|Tab)\.? (\d+)", words)}
        found |= set(re.findall(r"\b[A-C]\.\d\b", words))
    return found


@cache
def _docstrings() -> list[tuple[str, str]]:
    """Every class and function of the library that has a docstring, by its dotted name."""
    found = []
    for file in sorted((ROOT / "src" / "likewise").rglob("*.py")):
        module = ".".join(file.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
        found += _inside(ast.parse(file.read_text(encoding="utf-8")), module)
    return found


def _inside(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            name = f"{prefix}.{child.name}"
            if text := ast.get_docstring(child):
                yield name, text
            yield from _inside(child, name)


def tests(words: str) -> list[str]:
    """For each word: the test file of that path, or the tests whose names have that word."""
    return list(dict.fromkeys(name for word in words.split() for name in _tests(word)))


def _tests(word: str) -> list[str]:
    if word.endswith(".py"):
        return [f"tests/{word}"] if (ROOT / "tests" / word).exists() else []
    found = []
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        names = re.findall(rf"def (\w*{word}(?!\d)\w*)\(", file.read_text(encoding="utf-8"))
        found += [f"{file.relative_to(ROOT)}::{name}" for name in names if name.startswith("test_")]
    return found


def commands() -> str:
    """A section a command, with its --help."""
    from likewise.cli import command

    context = click.Context(command, info_name="likewise", **command.context_settings)
    return "\n".join(_sections(command, context, 2))


def _sections(command: click.Command, context: click.Context, depth: int) -> list[str]:
    help = command.get_help(context).rstrip()
    lines = [f"{'#' * depth} `{context.command_path}`", "", "```text", help, "```", ""]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None:
                lines += _sections(
                    inner,
                    click.Context(inner, parent=context, info_name=name, **inner.context_settings),
                    min(depth + 1, 4),
                )
    return lines


def plain_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings here are plain text with formulas; keep *, _ and | from being read as markup."""
    lines[:] = [re.sub(r"(?<!`)([*|])(?!`)", r"\\\1", line) if ">>>" not in line else line for line in lines]
    for i, line in enumerate(lines):
        lines[i] = re.sub(r"(?<=\w)_(?=\s|$|[).,;:…])", r"\\_", line)


def short_aliases(app: Any, what: str, name: str, obj: Any, options: Any, arguments: str, returns: str) -> Any:
    """Sphinx prints an alias inside a union as TypeAliasForwardRef('ArrayLike'); print ArrayLike."""
    return tuple(
        re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", words or "") or None for words in (arguments, returns)
    )


def skip_injected(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """scikit-learn adds set_score_request and the like to every estimator; they are its own."""
    return True if name.startswith("set_") and name.endswith("_request") else None


def setup(app: Any) -> None:
    app.connect("autodoc-skip-member", skip_injected)
    app.connect("autodoc-process-signature", short_aliases)
    app.connect("source-read", fill)
    app.connect("autodoc-process-docstring", plain_docstring)
