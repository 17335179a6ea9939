"""Whatever is killed, and whenever: run again it comes to the same, and nothing of it is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="runs are forked")
@pytest.mark.parametrize("name", ["index", "embed", "harvest", "distances", "sets fit", "images train"])
def test_a_command_that_is_killed_at_an_event_of_the_file_system_comes_to_the_same(name: str, tmp_path: Path) -> None:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, "-m", "tests.worlds.killed", name, str(tmp_path / "place"), "40", "20"]
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    child = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr[-2000:]
    said = json.loads(child.stdout.splitlines()[-1])
    assert said["kills"] >= 60
    assert said["wrong"] == []
