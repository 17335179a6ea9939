"""Packages whose names load when they are first touched, as the package's stub (`__init__.pyi`) lists them."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """A package in which a public name wins over the submodule of that name.

    Importing `likewise.sets.compare` makes Python set `likewise.sets.compare` to the module; whoever imported it first
    would decide whether `lw.sets.compare` is the function.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and self.__dict__.get("_homes", {}).get(name) == value.__name__:
            value = getattr(value, name, value)
        super().__setattr__(name, value)


def attach(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, from the imports in its stub.

    >>> __getattr__, __dir__, __all__ = attach(__name__)  # doctest: +SKIP
    """
    module = sys.modules[package]
    homes = _listed(Path(str(module.__file__)).with_suffix(".pyi"))
    module.__dict__["_homes"] = homes
    module.__class__ = _Package

    def getattribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = importlib.import_module(homes[name])
        value = home if homes[name] == f"{package}.{name}" and not hasattr(home, name) else getattr(home, name)
        module.__dict__[name] = value
        return value

    return getattribute, lambda: sorted(homes), sorted(homes)


def _listed(stub: Path) -> dict[str, str]:
    """Name → the module that it is imported from; a submodule that is exported itself is its own home."""
    homes: dict[str, str] = {}
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                submodule = stub.parent / f"{alias.name}.py", stub.parent / alias.name / "__init__.py"
                own = _package_of(stub) == node.module and any(p.exists() for p in submodule)
                homes[alias.asname or alias.name] = f"{node.module}.{alias.name}" if own else str(node.module)
    return homes


def _package_of(stub: Path) -> str:
    root = Path(__file__).parent
    return ".".join(["likewise", *stub.parent.relative_to(root).parts])
