"""The run directory: enough to repeat a run, and nothing lost when the run is killed."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import likewise as lw
from likewise.store import run as runs
from likewise.store.run import Run


def test_a_run_says_how_to_repeat_it(tmp_path: Path) -> None:
    Run.create(tmp_path / "run", {"gamma": 0.1, "levels": (1, 2)}, seed=7, command="likewise sets fit x")
    run = Run.open(tmp_path / "run")
    assert run.config == {"gamma": 0.1, "levels": [1, 2]}
    assert (run.about["seed"], run.about["command"]) == (7, "likewise sets fit x")
    assert {"python", "likewise", "numpy", "torch", "platform"} <= set(run.about["versions"])
    assert run.metrics() == []
    assert run.result is None


def test_log_and_metrics(tmp_path: Path) -> None:
    run = Run.create(tmp_path, {})
    run.log(0, loss=np.float32(0.5), phase="warm-up", ok=True)
    run.log(1, loss=float("nan"), worst=-math.inf, best=np.inf, count=np.int64(3))
    first, second = Run.open(tmp_path).metrics()
    assert (first["step"], first["loss"], first["phase"], first["ok"]) == (0, 0.5, "warm-up", True)
    assert math.isnan(second["loss"])
    assert (second["worst"], second["best"], second["count"]) == (-math.inf, math.inf, 3)
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def test_tensors_are_figures(tmp_path: Path) -> None:
    import torch

    run = Run.create(tmp_path, {})
    run.log(0, loss=torch.tensor(0.25, requires_grad=True))
    assert run.metrics()[0]["loss"] == 0.25
    for bad in (np.zeros(2), torch.zeros(2), [1], None):
        with pytest.raises(lw.InputError, match="loss: expected a number"):
            run.log(1, loss=bad)
    assert len(run.metrics()) == 1


def test_a_torn_last_line_is_ignored_and_not_grown_onto(tmp_path: Path) -> None:
    run = Run.create(tmp_path, {"a": 1})
    run.log(0, loss=1.0)
    whole = (tmp_path / "metrics.jsonl").read_bytes()
    for keep in range(1, len(whole)):
        (tmp_path / "metrics.jsonl").write_bytes(whole + whole[:keep])
        assert [m["step"] for m in Run.open(tmp_path).metrics()] == [0]
        again = Run.create(tmp_path, {"a": 1}, resume=True)
        again.log(5, loss=2.0)
        assert [m["step"] for m in again.metrics()] == [0, 5]


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    run = Run.create(tmp_path, {})
    for bad in (b'{"step": 1, \n', b"[1]\n", b"[" * 100_000 + b"\n"):
        (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 0}\n' + bad + b'{"step": 2}\n')
        with pytest.raises(lw.FileError, match=r"metrics\.jsonl, line 2 is damaged"):
            run.metrics()


def test_a_killed_run_keeps_its_lines(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom likewise.store.run import Run\n"
        "run = Run.create(sys.argv[1], {})\n"
        "for step in range(10**9):\n    run.log(step, loss=1 / (step + 1))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "run")])
    deadline = time.monotonic() + 30
    while not (tmp_path / "run" / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    metrics = Run.open(tmp_path / "run").metrics()
    assert [m["step"] for m in metrics] == list(range(len(metrics)))
    assert len(metrics) > 1


def test_a_folder_with_a_run_is_not_taken_over(tmp_path: Path) -> None:
    Run.create(tmp_path, {"gamma": 0.1, "tol": 1e-6})
    with pytest.raises(lw.InputError, match="holds a run already"):
        Run.create(tmp_path, {"gamma": 0.1, "tol": 1e-6})
    with pytest.raises(lw.InputError, match=r"gamma 0\.1 ≠ 0\.2"):
        Run.create(tmp_path, {"gamma": 0.2, "tol": 1e-6}, resume=True)
    assert Run.create(tmp_path, {"gamma": 0.1, "tol": 1e-6}, resume=True).config["gamma"] == 0.1


def test_finish(tmp_path: Path) -> None:
    run = Run.create(tmp_path, {})
    assert "not finished" in repr(run)
    run.finish(accuracy=0.9, worst=math.nan)
    assert Run.open(tmp_path).result is not None
    assert Run.open(tmp_path).result["accuracy"] == 0.9  # type: ignore[index]
    assert "not finished" not in repr(run)


def test_damaged_and_missing_runs(tmp_path: Path) -> None:
    with pytest.raises(lw.FileError, match="does not exist"):
        Run.open(tmp_path / "none")
    Run.create(tmp_path, {})
    for bad in (b"{", b"[1]", b"\xff"):
        (tmp_path / "config.json").write_bytes(bad)
        with pytest.raises(lw.FileError, match=r"config\.json is damaged"):
            Run.open(tmp_path)
    with pytest.raises(lw.InputError, match="config is not JSON"):
        Run.create(tmp_path / "other", {"x": object()})


def test_differing() -> None:
    assert runs.differing({"a": 1}, {"a": 1}) == ""
    assert runs.differing({"a": 1, "b": 2}, {"a": 1, "c": 3}) == "b 2 ≠ nothing, c nothing ≠ 3"
    assert runs.differing(dict.fromkeys("abcde", 1), {}).endswith("and 2 more")


def test_progress_is_silent_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with runs.progress(3, "blocks") as advance:
        advance()
    assert capfd.readouterr() == ("", "")


def test_progress_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with runs.progress(3, "blocks", done=1) as advance:
        advance()
    assert "2/3" in capsys.readouterr().err
    with runs.progress(3, "blocks", show=False) as advance:
        advance()
    assert capsys.readouterr().err == ""


SLEEPING = (
    "import signal, sys, time\nfrom likewise.store.run import Run\n"
    "signal.signal(signal.SIGINT, signal.SIG_IGN if sys.argv[2:] else signal.default_int_handler)\n"
    "run = Run.create(sys.argv[1], {})\n"
    "try:\n    print('begun', flush=True)\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    sys.exit(130)\n"
)


@pytest.mark.parametrize(("deaf", "code"), [(False, 130), (True, -signal.SIGTERM)])
def test_a_run_tells_whether_its_process_is_alive_and_can_interrupt_it(tmp_path: Path, deaf: bool, code: int) -> None:
    """One that does not hear an interrupt, as a shell leaves what it starts in the background, is asked to end."""
    if deaf and not Path("/proc/self/status").exists():
        pytest.skip("only Linux tells which signals are ignored")
    words = [sys.executable, "-c", SLEEPING, str(tmp_path), *(["deaf"] if deaf else [])]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begun\n"
        run = Run.open(tmp_path)
        assert run.state == "running"
        assert run.interrupt()
        assert child.wait(20) == code
    assert run.state == "stopped"
    assert not run.interrupt()
    run.finish(loss=1.0)
    assert run.state == "finished"


def test_a_run_never_interrupts_a_process_that_only_has_its_number(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        try:
            run = Run.create(tmp_path, {})
            said = json.loads((tmp_path / "process.json").read_text())
            for wrong in ({"pid": other.pid}, {"began": None}, {"pid": "1"}, {"pid": -1}, {"pid": True}, {"host": "x"}):
                (tmp_path / "process.json").write_text(json.dumps({**said, **wrong}))
                assert run.state == "stopped", wrong
                assert not run.interrupt(), wrong
            (tmp_path / "process.json").write_text("[")
            assert run.state == "stopped"
            assert other.poll() is None
        finally:
            other.kill()


def test_a_run_never_interrupts_a_process_that_does_not_hold_it(tmp_path: Path) -> None:
    """All that a file says of it may be true: number, machine and when it began."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        try:
            run = Run.create(tmp_path / "held", {})
            Run.create(tmp_path / "free", {}).finish()
            (tmp_path / "free" / "result.json").unlink()
            named = {"pid": other.pid, "host": platform.node(), "began": runs._began(other.pid)}
            for folder in ("held", "free"):
                run = Run.open(tmp_path / folder)
                (run.path / "process.json").write_text(json.dumps(named))
                assert (run.state, run.interrupt()) == ("stopped", False), folder
            assert other.poll() is None
        finally:
            other.kill()


def test_a_folder_that_was_deleted_and_made_again_is_held_anew(tmp_path: Path) -> None:
    for _ in range(2):
        run = Run.create(tmp_path / "run", {})
        assert run.state == "running"
        shutil.rmtree(tmp_path / "run")


def test_a_line_that_does_not_fit_on_the_disk_leaves_no_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, real = Run.create(tmp_path, {}), os.write
    run.log(0, loss=1.0)
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda number, data: real(number, data[:9]))
        with pytest.raises(lw.FileError, match=r"metrics\.jsonl: cannot be written: No space left on device"):
            run.log(1, loss=1.0)
    run.log(2, loss=1.0)
    assert [m["step"] for m in run.metrics()] == [0, 2]


def test_a_run_of_this_process_is_running_and_does_not_interrupt_itself(tmp_path: Path) -> None:
    run = Run.create(tmp_path, {"a": 1})
    assert run.state == "running"
    assert not run.interrupt()
    (tmp_path / "process.json").unlink()
    assert run.state == "stopped"
    assert Run.create(tmp_path, {"a": 1}, resume=True).state == "running"


def test_two_processes_do_not_work_on_one_run(tmp_path: Path) -> None:
    words = "import sys, time; from likewise.store.run import Run; Run.create(sys.argv[1], {'a': 1}); print()"
    words += "; sys.stdout.flush(); time.sleep(60)"
    other = subprocess.Popen([sys.executable, "-c", words, str(tmp_path / "run")], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(lw.InputError, match=f"is in use by process {other.pid} on"):
            Run.create(tmp_path / "run", {"a": 1}, resume=True)
        assert runs.read_json(tmp_path / "run" / "process.json")["pid"] == other.pid
    finally:
        other.kill()
        other.communicate()
    assert Run.create(tmp_path / "run", {"a": 1}, resume=True).state == "running"  # by this one now
    Run.create(tmp_path / "run", {"a": 1}, resume=True)


def test_a_run_where_a_file_is(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(lw.InputError, match="a run needs a folder"):
            Run.create(place, {})
