"""Jobs: the same arrays whoever computes them, and nothing finished is lost whoever dies."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joblib.externals.loky import process_executor

import likewise as lw
from likewise.errors import ShardError
from likewise.store import job as jobs
from likewise.store import run as runs
from likewise.store.job import FILE, Job

SQUARES = {"what": "squares"}


def squares(i: int) -> dict[str, Any]:
    """A shard with a float and an integer array."""
    return {"x": np.random.default_rng(i).normal(size=(5, i % 3)), "i": np.array([i, i * i])}


def slow_squares(i: int, *, seconds: float, journal: str) -> dict[str, Any]:
    """The same, slowly, leaving a line in a journal each time it is begun."""
    descriptor = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{i} {os.getpid()}\n".encode())
    os.close(descriptor)
    time.sleep(seconds)
    return squares(i)


def fails_on(i: int, *, bad: tuple[int, ...]) -> dict[str, Any]:
    if i in bad:
        raise ZeroDivisionError(f"{i} is bad")
    return squares(i)


def dies_on(i: int, *, bad: int) -> dict[str, Any]:
    if i == bad:
        time.sleep(0.5)
        os._exit(9)
    return squares(i)


def run(work: Any, shards: Any, out: Path, *, identity: Any = SQUARES, resume: bool = True, **how: Any) -> Job:
    with Job.begin(out, identity, resume=resume) as job:
        job.run(work, shards, **{"progress": False, **how})
    return job


def blobs(folder: Path) -> dict[Any, bytes]:
    """The bytes of every shard."""
    with sqlite3.connect(folder / FILE) as database:
        measured = dict(database.execute("SELECT name, data FROM shards").fetchall())
    database.close()
    return measured


def put(folder: Path, name: Any, data: Any) -> None:
    """A shard as a stranger, or a bad disk, left it; None takes it away."""
    with sqlite3.connect(folder / FILE) as database:
        database.execute("DELETE FROM shards WHERE name = ?", (name,))
        if data is not None:
            database.execute("INSERT INTO shards VALUES (?, 0, ?)", (name, data))
    database.close()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, bytes]:
    """Twelve shards, made in this process without interruption."""
    folder = tmp_path_factory.mktemp("expected") / "out"
    run(squares, 12, folder)
    assert [p.name for p in sorted(folder.iterdir())] == [".lock", FILE]
    assert len(blobs(folder)) == 12
    return blobs(folder)


# ── what is kept ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    job = run(squares, 4, tmp_path / "out", notes={"n": 7})
    assert len(job) == 4
    for i, arrays in enumerate(Job.open(tmp_path / "out")):
        assert set(arrays) == {"x", "i"}
        np.testing.assert_array_equal(arrays["x"], squares(i)["x"])
        np.testing.assert_array_equal(job.load(i)["i"], [i, i * i])
    assert (job.identity, Job.open(tmp_path / "out").notes) == (SQUARES, {"n": 7})
    assert "4 of 4" in repr(job)
    with pytest.raises(lw.FileError, match="shard 4 is missing"):
        job.load(4)


def test_items_are_handed_to_work(tmp_path: Path) -> None:
    job = run(lambda pair: {"sum": np.array(sum(pair))}, [(0, 1), (2, 3)], tmp_path / "out")
    assert [int(a["sum"]) for a in job] == [1, 5]
    assert list(run(squares, 0, tmp_path / "none")) == []


def test_finished_shards_are_kept_and_more_may_be_added(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    work = partial(slow_squares, seconds=0, journal=str(journal))
    run(work, 4, tmp_path / "out")
    put(tmp_path / "out", 2, None)
    assert Job.open(tmp_path / "out").missing() == [2]
    run(work, 4, tmp_path / "out")
    run(work, 5, tmp_path / "out")
    assert len(run(work, 2, tmp_path / "out")) == 5  # fewer than there are: nothing to do, and nothing is taken away
    assert [line.split()[0] for line in journal.read_text().splitlines()] == ["0", "1", "2", "3", "2", "4"]


def test_named_parts_are_made_once(tmp_path: Path) -> None:
    made = []

    def make() -> tuple[dict[str, Any], dict[str, Any]]:
        made.append(1)
        return {"a": np.arange(3.0)}, {"n": 1}

    for expected_count in (1, 1):
        with Job.begin(tmp_path, SQUARES) as job:
            arrays, said = job.keep("part", make)
        assert (arrays["a"].tolist(), said, len(made)) == ([0, 1, 2], {"n": 1}, expected_count)
    assert job.resumed == ["part"]
    put(tmp_path, "part", blobs(tmp_path)["part"][:-3])
    with Job.begin(tmp_path, SQUARES) as job:
        assert job.keep("part", make)[0]["a"].tolist() == [0, 1, 2]
    assert (len(made), job.resumed) == (2, [])


def test_another_identity_is_refused_or_begun_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    out = tmp_path / "bank"
    run(squares, 3, out, identity={"gamma": 0.1, "tol": 1e-6})
    before = blobs(out)
    with pytest.raises(lw.InputError, match=r"bank was made by another job \(gamma 0\.1 ≠ 0\.2\); use another folder"):
        run(squares, 3, out, identity={"gamma": 0.2, "tol": 1e-6})
    assert blobs(out) == before
    assert len(run(squares, 2, out, identity={"what": "a", "gamma": 0.2}, resume=False)) == 2
    assert set(blobs(out)) == {0, 1}
    with Job.begin(out, {"what": "a", "gamma": 0.3}, on_change="restart") as job:
        assert (len(job), job.finished()) == (0, {})
    assert "its inputs have changed (gamma 0.2 ≠ 0.3)" in caplog.text
    with pytest.raises(lw.InputError, match="another job"), Job.begin(out, {"what": "b"}, on_change="restart"):
        pass


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    run(squares, 2, tmp_path)
    run(squares, 3, tmp_path, resume=False)
    jobs.remove(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
    run(squares, 2, tmp_path / "own")
    jobs.remove(tmp_path / "own")
    assert not (tmp_path / "own").exists()


def test_other_versions_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    run(squares, 2, tmp_path)
    versions = runs.versions() | {"likewise": "9.9"}
    monkeypatch.setattr(runs, "versions", lambda: versions)
    run(squares, 2, tmp_path)
    assert len(caplog.messages) == 1
    assert "≠ 9.9" in caplog.messages[0]


# ── damage ────────────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.sampled_from(["flip", "cut", "empty", "text"]))
def test_any_damage_to_a_shard_is_seen_named_and_mended(
    tmp_path_factory: pytest.TempPathFactory, expected: dict[Any, bytes], at: int, kind: str
) -> None:
    folder = tmp_path_factory.mktemp("damage")
    run(squares, 12, folder)
    data = bytearray(expected[7])
    at %= len(data)
    if kind == "flip":
        data[at] ^= 0x80
    else:
        del data[at if kind == "cut" else 0 :]
    put(folder, 7, "text" if kind == "text" else bytes(data))
    job = Job.open(folder)
    assert list(job.verify()) == [7]
    with pytest.raises(lw.FileError, match="shard 7"):
        job.load(7)
    run(squares, 12, folder)
    assert blobs(folder) == expected
    assert job.verify() == {}


def test_a_strangers_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(lw.FileError, match="does not exist"):
        Job.open(tmp_path)
    (tmp_path / FILE).write_bytes(b"no database at all, but long enough to be taken for one" * 40)
    with pytest.raises(lw.FileError, match="not a database"):
        Job.open(tmp_path)
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x AS json FROM c"
    for script in (
        f"CREATE VIEW about AS {endless}; CREATE TABLE shards (name, time, data)",
        "CREATE TABLE about (json)",
    ):
        (tmp_path / FILE).unlink()
        database = sqlite3.connect(tmp_path / FILE)
        database.executescript(script)
        database.close()
        with pytest.raises(lw.FileError, match="not the record of a job"):
            Job.open(tmp_path)


@pytest.mark.parametrize(
    "change", [{"shards": 10**18}, {"shards": -1}, {"shards": "3"}, {"identity": []}, {"format": 9}, {"notes": None}]
)
def test_a_record_that_says_nonsense_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    run(squares, 2, tmp_path)
    database = sqlite3.connect(tmp_path / FILE)
    said = json.loads(database.execute("SELECT json FROM about").fetchone()[0])
    with database:
        database.execute("UPDATE about SET json = ?", (json.dumps({**said, **change}),))
    database.close()
    with pytest.raises(lw.FileError, match="not the record of a job"):
        Job.open(tmp_path)


# ── who computes ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_same_bytes_with_joblib_and_executors(tmp_path: Path, expected: dict[Any, bytes]) -> None:
    run(squares, 12, tmp_path / "joblib", n_jobs=2)
    with ThreadPoolExecutor(4) as pool:
        run(squares, 12, tmp_path / "threads", executor=pool)
        assert pool.submit(int, "3").result() == 3  # not ours to shut down
    assert blobs(tmp_path / "joblib") == blobs(tmp_path / "threads") == expected


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_failing_shard_is_named_and_the_others_are_kept(
    tmp_path: Path, expected: dict[Any, bytes], n_jobs: int
) -> None:
    with pytest.raises(ShardError, match=r"shard 5: ZeroDivisionError: 5 is bad; 11 of 12") as caught:
        run(partial(fails_on, bad=(5,)), 12, tmp_path / "out", n_jobs=n_jobs)
    assert caught.value.failures == {5: "ZeroDivisionError: 5 is bad"}
    assert "in fails_on" in caught.value.__notes__[0]
    assert Job.open(tmp_path / "out").missing() == [5]
    run(squares, 12, tmp_path / "out", n_jobs=n_jobs)
    assert blobs(tmp_path / "out") == expected


def test_work_that_always_fails_is_given_up(tmp_path: Path) -> None:
    begun = []

    def broken(i: int) -> dict[str, Any]:
        begun.append(i)
        raise RuntimeError("broken")

    with pytest.raises(ShardError, match="20 shards failed, the first is shard 0: RuntimeError: broken"):
        run(broken, 1000, tmp_path / "out")
    assert len(begun) == jobs.MOST_FAILURES
    with pytest.raises(ShardError, match=r"shard 0: InputError: array 'x'"):
        run(lambda i: {"x": np.array(["text"])}, 1, tmp_path / "other")


class InPlace(Executor):
    """Computes when it is given a shard, and breaks at the ninth."""

    def __init__(self) -> None:
        self.count = 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.count += 1
        if self.count == 9:
            raise RuntimeError("stopped")
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def test_what_is_done_is_written_before_the_next_is_given_out(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="stopped"):
        run(squares, 12, tmp_path, executor=InPlace())
    assert Job.open(tmp_path).missing() == [8, 9, 10, 11]


def test_a_dead_joblib_worker(tmp_path: Path, expected: dict[Any, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its shards are given to others, unless these die of them, too."""
    monkeypatch.setattr(jobs, "MOST_DEATHS", 1)
    with pytest.raises(ShardError, match=r"a worker process died.*of 12 shards are finished.*run again to resume"):
        run(partial(dies_on, bad=6), 12, tmp_path / "out", n_jobs=2)
    job = Job.open(tmp_path / "out")
    assert 6 in job.missing()
    assert len(job.missing()) < 12
    run(squares, 12, tmp_path / "out", n_jobs=2)
    assert blobs(tmp_path / "out") == expected


def dies_once(i: int, *, marker: str) -> dict[str, Any]:
    if i == 6 and not os.path.exists(marker):
        Path(marker).touch()
        os._exit(9)
    return squares(i)


def test_what_a_dead_joblib_worker_had_is_given_to_another(tmp_path: Path, expected: dict[Any, bytes]) -> None:
    run(partial(dies_once, marker=str(tmp_path / "died")), 12, tmp_path / "out", n_jobs=2)
    assert (tmp_path / "died").exists()
    assert blobs(tmp_path / "out") == expected


def stops_after_a_few(i: int) -> dict[str, Any]:
    """Squares, in a worker that takes every growth of its memory for a leak, and so ends after a shard or two."""
    process_executor._MAX_MEMORY_LEAK_SIZE = -(1 << 60)
    process_executor._MEMORY_LEAK_CHECK_DELAY = -1.0
    return squares(i)


def test_a_joblib_worker_that_ends_is_replaced(tmp_path: Path, expected: dict[Any, bytes]) -> None:
    """joblib warns of it in a thread of its own, which must outlive the warning: it hung for good."""
    run(stops_after_a_few, 12, tmp_path, n_jobs=2)
    assert blobs(tmp_path) == expected


def test_work_that_cannot_be_sent(tmp_path: Path) -> None:
    lock = threading.Lock()
    with pytest.raises(lw.InputError, match="work: cannot be sent"):
        run(lambda i: {"x": np.array(lock.locked())}, 4, tmp_path / "out", n_jobs=2)


def test_wrong_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in ("spark", 3, object()):
        with pytest.raises(lw.InputError, match="executor: expected None"):
            jobs.check_executor(bad, 1)
    for wrong in (0, 1.5):
        with pytest.raises(lw.InputError, match="n_jobs"):
            jobs.check_executor(None, wrong)  # type: ignore[arg-type]
    with pytest.raises(lw.InputError, match="identity is not JSON"):
        run(squares, 2, tmp_path / "out", identity={"x": object()})
    assert list(tmp_path.iterdir()) == []
    for count in (-1, jobs.MOST_SHARDS + 1):
        with pytest.raises(lw.InputError, match="shards: expected a number from 0 to 1,000,000"):
            run(squares, count, tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(lw.FileError, match="cannot be written to"):
        run(squares, 2, tmp_path / "file")
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(lw.MissingExtra, match=r"likewise\[cluster\]"):
        run(squares, 2, tmp_path / "out", executor="dask")


# ── one process at a time ─────────────────────────────────────────────────────────────────────────────────────────

HOLDS = (
    "import sys, time\nfrom likewise.store.job import locked\n"
    "with locked(sys.argv[1]):\n    print('held', flush=True)\n    time.sleep(float(sys.argv[2]))\n"
)


def test_two_processes_cannot_share_a_folder(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLDS, str(tmp_path), "60"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            with pytest.raises(lw.InputError, match=f"in use by process {process.pid} on "):
                run(squares, 2, tmp_path)
            assert runs.worker(tmp_path) == process.pid
            assert not (tmp_path / FILE).exists()
        finally:
            process.kill()
    assert runs.worker(tmp_path) is None
    assert len(run(squares, 2, tmp_path)) == 2  # the lock died with its process


def test_nor_can_two_threads(tmp_path: Path) -> None:
    with jobs.locked(tmp_path):
        for _ in range(2):
            with pytest.raises(lw.InputError, match="in use by this process"):
                run(squares, 2, tmp_path)
        assert runs.worker(tmp_path) == os.getpid()
        # a thread that was refused has not let go of the lock
        words = [sys.executable, "-c", HOLDS, str(tmp_path), "0"]
        other = subprocess.run(words, capture_output=True, text=True, check=False)
        assert f"in use by process {os.getpid()} on" in other.stderr
    assert len(run(squares, 2, tmp_path)) == 2


# ── whoever dies ──────────────────────────────────────────────────────────────────────────────────────────────────

CHILD = """
import sys, time
import numpy as np
from likewise.store.job import Job

out, n_jobs, journal, seconds = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])

def work(i):
    with open(journal, "a") as stream:
        stream.write(f"{i}\\n")
    time.sleep(seconds)
    return {"x": np.random.default_rng(i).normal(size=(5, i % 3)), "i": np.array([i, i * i])}

with Job.begin(out, {"what": "squares"}) as job:
    job.run(work, 12, n_jobs=n_jobs)
"""
HEARS_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
"""A job that a shell started in the background inherits SIGINT ignored, and so would its children."""


def done(out: Path) -> int:
    try:
        return len(Job.open(out).finished())
    except lw.FileError:
        return 0


def test_a_real_ctrl_c(tmp_path: Path, expected: dict[Any, bytes]) -> None:
    out, journal = tmp_path / "out", tmp_path / "journal"
    journal.touch()
    words = [sys.executable, "-c", f"{HEARS_CTRL_C}\n{CHILD}", str(out), "2", str(journal), "0.25"]
    with subprocess.Popen(words, start_new_session=True, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and done(out) < 2:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        assert "KeyboardInterrupt" in process.communicate(timeout=60)[1]
    assert 2 <= done(out) < 12
    run(squares, 12, out)
    assert blobs(out) == expected


@pytest.mark.parametrize("n_jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_at_any_moment_and_resumed(tmp_path: Path, expected: dict[Any, bytes], n_jobs: int) -> None:
    out, journal = tmp_path / "out", tmp_path / "journal"
    journal.touch()
    arguments = [sys.executable, "-c", CHILD, str(out), str(n_jobs), str(journal), "0.05"]
    moments, finished = random.Random(n_jobs), 0
    for kills in range(1, 100):
        begun = journal.stat().st_size
        process = subprocess.Popen(arguments, start_new_session=True)
        while process.poll() is None and journal.stat().st_size == begun:
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.1))
        # Every second time joblib's workers outlive their parent for a while.
        os.killpg(process.pid, signal.SIGKILL) if kills % 2 else os.kill(process.pid, signal.SIGKILL)
        process.wait()
        job = Job.open(out)
        assert job.verify() == {}  # what is there is whole …
        assert len(job.finished()) >= finished  # … and stays there
        finished = len(job.finished())
        if kills >= 4 or finished > 8:
            break
    assert kills >= 2
    assert subprocess.run(arguments, check=False).returncode == 0
    assert blobs(out) == expected


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
class TestDask:
    def test_a_killed_worker_loses_nothing_finished(self, tmp_path: Path, expected: dict[Any, bytes]) -> None:
        distributed = pytest.importorskip("distributed")
        out, journal = tmp_path / "out", tmp_path / "journal"
        work = partial(slow_squares, seconds=0.25, journal=str(journal))
        quiet = {"dashboard_address": ":0", "silence_logs": logging.CRITICAL}
        with (
            distributed.LocalCluster(n_workers=2, threads_per_worker=1, **quiet) as cluster,
            distributed.Client(cluster) as client,
        ):
            kept: list[str] = []
            killer = threading.Thread(target=_kill_a_worker, args=(out, journal, kept), daemon=True)
            killer.start()
            run(work, 12, out, executor=client)
            killer.join(timeout=30)
            assert client.submit(int, "3").result() == 3  # not ours to close
            lines = [line.split()[0] for line in journal.read_text().splitlines()]
            run(squares, 12, tmp_path / "again", executor=cluster.scheduler_address)
        assert len(kept) >= 2
        assert len(lines) > 12  # the killed worker's own shard was begun again …
        assert [n for n in kept if lines.count(n) != 1] == []  # … but none that was finished when it died
        assert blobs(out) == blobs(tmp_path / "again") == expected

    @pytest.mark.slow
    def test_a_cluster_of_its_own(self, tmp_path: Path, expected: dict[Any, bytes]) -> None:
        pytest.importorskip("distributed")
        run(squares, 12, tmp_path / "out", executor="dask", n_jobs=1)
        assert blobs(tmp_path / "out") == expected

    def test_no_scheduler(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        distributed = pytest.importorskip("distributed")

        def nobody(*_: Any, **__: Any) -> None:
            raise OSError("Timed out trying to connect")

        monkeypatch.setattr(distributed, "Client", type("Client", (), {"__init__": nobody}))
        with pytest.raises(lw.InputError, match="no Dask scheduler answers at tcp://nowhere:1"):
            run(squares, 2, tmp_path / "out", executor="tcp://nowhere:1")


def _kill_a_worker(out: Path, journal: Path, kept: list[str]) -> None:
    """Once three shards are finished, kill the worker that begins the next; notes what was finished then."""
    while done(out) < 3:
        time.sleep(0.005)
    begun = journal.read_text()
    while journal.read_text() == begun:
        time.sleep(0.005)
    kept += [str(name) for name in Job.open(out).finished()]
    os.kill(int(journal.read_text().split()[-1]), signal.SIGKILL)
