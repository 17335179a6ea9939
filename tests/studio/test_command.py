"""`likewise studio` as a person runs it: one line, then the page, then Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from likewise.cli import main
from likewise.studio.app import Given

from .conftest import encoded, scene

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


@contextlib.contextmanager
def begun(tmp_path: Path, *words: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A studio with folders of its own, once it has printed its address; and that."""
    env = {**os.environ, "LIKEWISE_CACHE": str(tmp_path / "cache"), "TMPDIR": str(tmp_path), **variables}
    command = [sys.executable, "-m", "likewise.cli", "studio", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as child:
        assert child.stdout is not None
        try:
            yield child, child.stdout.readline().strip()
        finally:
            child.kill()


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="no terminals that hang up")
def test_a_terminal_that_is_closed_leaves_no_photo_behind_and_a_kill_until_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "likewise-studio-of-somebody").mkdir()
    with begun(tmp_path, "--no-open") as (killed, _):
        (left,) = tmp_path.glob("likewise-studio-????????")
        killed.kill()
        killed.wait(30)
    assert left.exists()
    with begun(tmp_path, "--no-open") as (child, address):
        assert not left.exists(), "that of a process which is no more is swept"
        (own,) = tmp_path.glob("likewise-studio-????????")
        sent = httpx.post(f"{address}api/pictures", content=encoded(scene()), headers={"X-Name": "a.png"})
        assert sent.status_code == 200
        child.send_signal(signal.SIGHUP)
        child.wait(30)
    assert not own.exists()
    assert (tmp_path / "likewise-studio-of-somebody").exists(), "not one of ours"


@pytest.mark.skipif(os.name != "posix", reason="a browser that is a script")
def test_no_list_of_processes_shows_the_token_and_the_browser_is_led_to_the_page(tmp_path: Path) -> None:
    script = tmp_path / "browser"
    script.write_text(f'#!/bin/sh\nps -eo args > "{tmp_path}/ps"\necho "$1" > "{tmp_path}/given"\n')
    script.chmod(0o755)
    with begun(tmp_path, "--open", BROWSER=str(script)) as (_, address):
        token = address.rstrip("/").rpartition("/")[2]
        until = time.monotonic() + 20
        while not (tmp_path / "given").exists() and time.monotonic() < until:
            time.sleep(0.02)
        given = (tmp_path / "given").read_text().strip()
        assert token not in given
        assert token not in (tmp_path / "ps").read_text()
        file = Path(given.removeprefix("file://"))
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.parent.stat().st_mode & 0o777 == 0o700
        assert f"url={address}" in file.read_text()


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
