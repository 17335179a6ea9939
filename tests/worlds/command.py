"""A run of the command line in this process, as tests look at it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from likewise import cli


class Ran:
    """An exit code and what was said."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def refused(self, *words: str) -> None:
        """Exit 2, nothing on stdout, one line on stderr that says these words."""
        assert (self.code, self.out, self.err.count("\n")) == (2, "", 1), self.err
        assert self.err.startswith("likewise: ")
        for word in words:
            assert word in self.err, self.err


class Runner:
    """Runs words after a prefix such as `pixels`, and gives what came of it."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys
        self.prefix: tuple[str, ...] = ()

    def __call__(self, *words: object) -> Ran:
        self.capsys.readouterr()
        code = cli.main([*self.prefix, *map(str, words)])
        return Ran(code, *self.capsys.readouterr())

    def good(self, *words: object) -> Ran:
        """A run that must come to its end."""
        ran = self(*words)
        assert ran.code == 0, ran.err
        return ran


def formats(folder: str | Path) -> dict[str, str]:
    """The images in a folder that can be decoded, and their formats."""
    read = {}
    for path in sorted(Path(folder).glob("*.png")):
        with Image.open(path) as im:
            im.load()
            read[path.name] = im.format or ""
    return read
