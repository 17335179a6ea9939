"""`likewise studio` as a person runs it: one line, then the page, then Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from likewise.cli import main
from likewise.studio.app import Given

LINE = re.compile(r"http://127\.0\.0\.1:(\d+)/([A-Za-z0-9_-]{43,})/\n")


def test_one_line_then_the_page_then_an_orderly_end(tmp_path: Path) -> None:
    env = {**os.environ, "LIKEWISE_CACHE": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "likewise.cli", "studio", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as child:
        assert child.stdout is not None
        try:
            line = child.stdout.readline()
            result = LINE.fullmatch(line)
            assert result, line
            page = httpx.get(line.strip())
            assert page.status_code == 200
            assert page.headers["content-type"].startswith("text/html")
            for name in re.findall(r'(?:src|href)="([^"#:]+)"', page.text):
                assert httpx.get(line.strip() + name).status_code == 200, name
            assert list(tmp_path.glob("likewise-studio-*"))
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=30)
        finally:
            child.kill()
    assert child.returncode in (0, 130)
    assert out == ""
    assert "Traceback" not in err
    assert not list(tmp_path.glob("likewise-studio-*"))


def test_without_the_extra_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["studio", "--no-open"]) == 2
    assert capsys.readouterr().err == "likewise: uvicorn is not installed; pip install 'likewise[studio]'\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["/nowhere/photos"], "/nowhere/photos: no such folder"),
        (["--runs", "/nowhere/runs"], "/nowhere/runs: no such folder"),
        (["--real", "/nowhere/real"], "/nowhere/real: no such folder"),
        (["--generator", "nothing.safetensors"], "nothing.safetensors: no such file"),
        (["--port", "70000"], "70000 is not in the range"),
        (["--port", "{port}"], "port: {port} cannot be used"),  # another studio has it
    ],
)
def test_what_cannot_be_is_said_before_anything_is_served(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], port: int
) -> None:
    assert main(["studio", "--no-open", *(word.format(port=port) for word in words)]) == 2
    captured = capsys.readouterr()
    assert said.format(port=port) in captured.err
    assert captured.out == ""


def test_what_may_be_a_generator_or_an_index_is_not_opened_yet() -> None:
    for name in ("fashion", "some.module:attribute", __file__):
        assert Given(folders=("milvus://host:1/x",), generator=name).generator == name
