"""Every test of the command line runs in an empty folder, in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from worlds.command import Runner


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], here: Path, request: pytest.FixtureRequest) -> Runner:
    """Run a command; a module's PREFIX stands before its words."""
    runner = Runner(capsys)
    runner.prefix = tuple(getattr(request.module, "PREFIX", ()))
    return runner
