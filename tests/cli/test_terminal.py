"""What is printed: names of files are a stranger's, and a terminal obeys what it is sent."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from likewise import bounded
from likewise.cli import main, terminal
from likewise.store import run as runs
from worlds.galleries import paint

ODD = "a\x1b[31m\x9b2J\nlikewise: 3 photos\r\u202egpj.b"
"""Colours, a screen that is cleared, a line that is not ours, a name that reads backwards."""


def plain(text: str) -> str:
    """The text, in which nothing but its own newlines is left that a terminal obeys."""
    bad = [c for c in text if not c.isprintable() and c != "\n"]
    assert not bad, bad
    return text


def test_lines_of_a_result_are_lines_whatever_names_are_in_them(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.result(f"1 photo in {ODD}", {}, False)
    assert plain(capsys.readouterr().out).count("\n") == 1
    terminal.result([ODD, "two"], {}, False)
    assert plain(capsys.readouterr().out).count("\n") == 2
    terminal.result("", {"name": ODD, "byte": "\udcff"}, True)
    assert json.loads(plain(capsys.readouterr().out)) == {"name": ODD, "byte": "\udcff"}
    terminal.warn(ODD)
    terminal.tell_left_out([(ODD, f"{ODD}: damaged")])
    assert plain(capsys.readouterr().err).count("\n") == 3


def test_a_bar_shows_the_name_of_a_folder_as_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with runs.progress(1, "[blink]x[/blink]\x1b]0;title\x07") as advance:
        advance()
    said = capsys.readouterr().err
    assert "[blink]x" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said)
    assert "\x1b]0" not in said


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such names")
def test_an_index_in_a_folder_of_an_odd_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = tmp_path / ODD.replace("/", "")
    paint(photos / "x.png", 1)
    (photos / f"{ODD}.png").write_bytes(b"no picture")
    assert main(["index", str(photos), "--out", str(photos / "index")]) == 0
    captured = capsys.readouterr()
    assert plain(captured.out).count("\n") == 1
    assert plain(captured.err).count("\n") == 2


def test_trust_is_for_one_line_and_for_what_it_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[tuple[bool, bool]] = []
    monkeypatch.setattr(bounded, "_results", lambda *_: pytest.fail("a worker was asked"))
    monkeypatch.setattr(bounded, "_find", lambda target: seen.append((bounded.trust, bounded.TRUST in runs.os.environ)))
    monkeypatch.delenv(bounded.TRUST, raising=False)
    photo = str(paint(tmp_path / "x.png", 1))
    assert main(["compare", photo, photo, "--trust", "--out", str(tmp_path / "out")]) == 2
    assert seen[0] == (True, True)
    assert not bounded.trust
    assert bounded.TRUST not in runs.os.environ
