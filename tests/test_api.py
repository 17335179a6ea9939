"""The public surface: every exported name is documented as a user reads it, and its examples run."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import inspect
import re
from typing import Any

import numpy as np
import pytest

import likewise as lw
from likewise.train.options import list_options

PACKAGES = (
    "likewise",
    "likewise.pixels",
    "likewise.images",
    "likewise.sets",
    "likewise.distributions",
    "likewise.search",
)


def exported() -> dict[str, Any]:
    """Functions and classes that a user can name, each once, by the shortest name."""
    names: dict[str, Any] = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if (inspect.isfunction(value) or inspect.isclass(value)) and value not in names.values():
                names[f"{package}.{name}"] = value
    return names


EXPORTED = exported()


def parameters(value: Any) -> list[str]:
    """The names that a caller can give, by the signature."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [p.name for p in signature.parameters.values() if p.kind not in kinds and not p.name.startswith("_")]


@pytest.mark.parametrize("name", EXPORTED)
def test_an_exported_name_is_documented(name: str) -> None:
    """Errors aside, everything; what a caller can give stands under Parameters, fields of a result under Attributes."""
    value = EXPORTED[name]
    text = inspect.getdoc(value) or ""
    assert text, f"{name} says nothing"
    data = dataclasses.is_dataclass(value)
    if (inspect.isclass(value) and issubclass(value, BaseException)) or (
        data and "Attributes\n" not in text and list_options(value)
    ):
        return  # an option's help is its documentation
    kinds = "Parameters|Attributes" if data else "Parameters"
    told = "".join(re.findall(rf"^(?:{kinds})\n-+\n(.*?)(?=^\w+\n-+\n|\Z)", text, re.MULTILINE | re.DOTALL))
    missing = [p for p in parameters(value) if not re.search(rf"\b{re.escape(p)}\b", told)]
    assert not missing, f"{name} does not tell what {', '.join(missing)} is"
    returns = inspect.signature(value).return_annotation if inspect.isfunction(value) else None
    if returns not in (None, "None"):
        assert re.search(r"^Returns\n-+\n", text, re.MULTILINE), f"{name} does not say what it returns"
    assert re.search(r"^Examples\n-+\n", text, re.MULTILINE), f"{name} has no example"


@pytest.mark.parametrize("name", EXPORTED)
def test_its_examples_run(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    value = EXPORTED[name]
    members = [value, *(m for m in vars(value).values() if callable(m))] if inspect.isclass(value) else [value]
    finder = doctest.DocTestFinder(recurse=False)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    tests = [
        t for m in members if inspect.getdoc(m) for t in finder.find(m, name, globs={"lw": lw, "np": np, **scope(m)})
    ]
    for test in tests:
        runner.run(test)
    assert runner.failures == 0


def scope(value: Any) -> dict[str, Any]:
    """What a docstring's own module defines: a class may name itself."""
    module = inspect.getmodule(value)
    return {} if module is None else {k: v for k, v in vars(module).items() if not k.startswith("__")}
