"""Shards: the same bytes however they were made, and nothing finished is lost whoever dies."""

from __future__ import annotations

import errno
import json
import logging
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import likewise as lw
from likewise.store import job as shards
from likewise.store import run as runs
from likewise.store.job import ShardStore


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


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but the lock, by name: also temporary ones, if there are any left."""
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.name != ".lock"}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Twelve shards, made in this process without interruption."""
    folder = tmp_path_factory.mktemp("expected") / "out"
    shards.run(squares, 12, folder, key={"what": "squares"})
    found = contents(folder)
    assert len(found) == 13
    return found


run = partial(shards.run, progress=False, key={"what": "squares"})


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    store = run(squares, 4, tmp_path / "out")
    assert len(store) == 4
    for i, arrays in enumerate(ShardStore.open(tmp_path / "out")):
        assert set(arrays) == {"x", "i"}
        np.testing.assert_array_equal(arrays["x"], squares(i)["x"])
        np.testing.assert_array_equal(store.load(i)["i"], [i, i * i])
    assert store.key == {"what": "squares"}
    assert "4 of 4" in repr(store)
    with pytest.raises(lw.InputError, match="from 0 to 3, got 4"):
        store.load(4)


def test_items_are_handed_to_work(tmp_path: Path) -> None:
    store = run(lambda pair: {"sum": np.array(sum(pair))}, [(0, 1), (2, 3)], tmp_path / "out")
    assert [int(a["sum"]) for a in store] == [1, 5]
    with pytest.raises(lw.InputError, match="list of shards"):
        run(lambda pair: {"sum": np.array(sum(pair))}, [(0, 1), (2, 4)], tmp_path / "out")


def test_no_shards(tmp_path: Path) -> None:
    assert list(run(squares, 0, tmp_path / "out")) == []
    with pytest.raises(lw.InputError, match="shards: expected a number ≥ 0"):
        run(squares, -1, tmp_path / "out")


def test_same_bytes_with_joblib(tmp_path: Path, expected: dict[str, bytes]) -> None:
    run(squares, 12, tmp_path / "out", n_jobs=4)
    assert contents(tmp_path / "out") == expected


def test_same_bytes_with_executors(tmp_path: Path, expected: dict[str, bytes]) -> None:
    with ThreadPoolExecutor(4) as pool:
        run(squares, 12, tmp_path / "threads", executor=pool)
        assert pool.submit(int, "3").result() == 3  # not ours to shut down
    assert contents(tmp_path / "threads") == expected


def test_finished_shards_are_kept(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    work = partial(slow_squares, seconds=0, journal=str(journal))
    run(work, 5, tmp_path / "out")
    (tmp_path / "out" / "shard-000002.safetensors").unlink()
    assert ShardStore.open(tmp_path / "out").missing() == [2]
    run(work, 5, tmp_path / "out")
    assert [line.split()[0] for line in journal.read_text().splitlines()] == ["0", "1", "2", "3", "4", "2"]


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.sampled_from(["flip", "cut", "empty"]))
def test_any_damage_is_seen_named_and_mended(
    tmp_path_factory: pytest.TempPathFactory, expected: dict[str, bytes], at: int, kind: str
) -> None:
    folder = tmp_path_factory.mktemp("damage")
    for name, good in expected.items():
        (folder / name).write_bytes(good)
    file = folder / "shard-000007.safetensors"
    data = bytearray(file.read_bytes())
    at %= len(data)
    if kind == "flip":
        data[at] ^= 0x80
    else:
        del data[at if kind == "cut" else 0 :]
    file.write_bytes(data)
    store = ShardStore.open(folder)
    assert list(store.verify()) == [7]
    assert "shard-000007" in store.verify()[7]
    with pytest.raises(lw.FileError, match="shard-000007"):
        store.load(7)
    run(squares, 12, folder)
    assert contents(folder) == expected
    assert store.verify() == {}


def test_damage_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(squares, 3, tmp_path / "out")
    (tmp_path / "out" / "shard-000001.safetensors").write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        run(squares, 3, tmp_path / "out")
    assert len(caplog.messages) == 1
    assert "shard-000001.safetensors" in caplog.messages[0]
    assert "shard 1 is done again" in caplog.messages[0]


def test_a_shard_under_anothers_name_is_seen(tmp_path: Path, expected: dict[str, bytes]) -> None:
    run(squares, 12, tmp_path / "out")
    (tmp_path / "out" / "shard-000003.safetensors").write_bytes(expected["shard-000004.safetensors"])
    assert "shard 4 under another's name" in ShardStore.open(tmp_path / "out").verify()[3]
    shards.run(squares, 12, tmp_path / "other", key={"what": "other"})
    (tmp_path / "out" / "shard-000003.safetensors").write_bytes(
        (tmp_path / "other" / "shard-000003.safetensors").read_bytes()
    )
    assert "belongs to another job" in ShardStore.open(tmp_path / "out").verify()[3]


def test_another_key_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "bank"
    shards.run(squares, 3, out, key={"gamma": 0.1, "tol": 1e-6})
    before = contents(out)
    with pytest.raises(lw.InputError, match=r"bank was made by another job \(gamma 0\.1 ≠ 0\.2\); use another folder"):
        shards.run(squares, 3, out, key={"gamma": 0.2, "tol": 1e-6})
    with pytest.raises(lw.InputError, match=r"shards 3 ≠ 4"):
        shards.run(squares, 4, out, key={"gamma": 0.1, "tol": 1e-6})
    assert contents(out) == before
    store = shards.run(squares, 2, out, key={"gamma": 0.2}, resume=False)
    assert len(store) == 2
    assert set(contents(out)) == {"manifest.json", "shard-000000.safetensors", "shard-000001.safetensors"}


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    run(squares, 2, tmp_path)
    run(squares, 3, tmp_path, resume=False)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_what_a_dead_process_left_is_cleaned(tmp_path: Path, expected: dict[str, bytes]) -> None:
    run(squares, 12, tmp_path / "out")
    for name in (".shard-000003.0123456789ab.tmp.safetensors", ".manifest.0123456789ab.tmp.json"):
        (tmp_path / "out" / name).write_bytes(b"half")
    run(squares, 12, tmp_path / "out")
    assert contents(tmp_path / "out") == expected


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_a_failing_shard_is_named_and_the_others_are_kept(
    tmp_path: Path, expected: dict[str, bytes], n_jobs: int
) -> None:
    with pytest.raises(shards.ShardError, match=r"shard 5: ZeroDivisionError: 5 is bad; 11 of 12") as caught:
        run(partial(fails_on, bad=(5,)), 12, tmp_path / "out", n_jobs=n_jobs)
    assert caught.value.failures == {5: "ZeroDivisionError: 5 is bad"}
    assert "in fails_on" in caught.value.__notes__[0]
    assert ShardStore.open(tmp_path / "out").missing() == [5]
    run(squares, 12, tmp_path / "out", n_jobs=n_jobs)
    assert contents(tmp_path / "out") == expected


def test_work_that_always_fails_is_given_up(tmp_path: Path) -> None:
    journal = tmp_path / "journal"

    def broken(i: int) -> dict[str, Any]:
        with journal.open("a") as stream:
            stream.write("x")
        raise RuntimeError("broken")

    with pytest.raises(shards.ShardError, match="20 shards failed, the first is shard 0: RuntimeError: broken"):
        run(broken, 1000, tmp_path / "out")
    assert len(journal.read_text()) == shards.MOST_FAILURES


def test_arrays_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(shards.ShardError, match=r"shard 0: InputError: array 'x'"):
        run(lambda i: {"x": np.array(["text"])}, 1, tmp_path / "out")


def test_a_dead_joblib_worker(tmp_path: Path, expected: dict[str, bytes]) -> None:
    with pytest.raises(shards.ShardError, match="a worker process died"):
        run(partial(dies_on, bad=6), 12, tmp_path / "out", n_jobs=2)
    store = ShardStore.open(tmp_path / "out")
    assert 6 in store.missing()
    assert len(store.missing()) < 12
    assert store.verify() == {}
    run(squares, 12, tmp_path / "out", n_jobs=2)
    assert contents(tmp_path / "out") == expected


@pytest.mark.slow
def test_a_broken_process_pool(tmp_path: Path, expected: dict[str, bytes]) -> None:
    with (
        ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool,
        pytest.raises(shards.ShardError, match=r"a worker process died.*of 12 shards are finished.*run again to go on"),
    ):
        run(partial(dies_on, bad=6), 12, tmp_path / "out", executor=pool)
    assert 0 < len(ShardStore.open(tmp_path / "out").missing()) < 12
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        run(squares, 12, tmp_path / "out", executor=pool)
    assert contents(tmp_path / "out") == expected


def test_other_versions_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    run(squares, 2, tmp_path)
    versions = runs.versions() | {"likewise": "9.9"}
    monkeypatch.setattr(runs, "versions", lambda: versions)
    with caplog.at_level(logging.WARNING):
        run(squares, 2, tmp_path)
    assert len(caplog.messages) == 1
    assert "≠ 9.9" in caplog.messages[0]


def test_a_file_system_without_locks(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    def none(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.lockf", none)
    run(squares, 2, tmp_path)
    assert "no locks" in caplog.messages[0]


def test_work_that_cannot_be_sent(tmp_path: Path) -> None:
    lock = threading.Lock()
    with pytest.raises(lw.InputError, match="work: cannot be sent"):
        run(lambda i: {"x": np.array(lock.locked())}, 4, tmp_path / "out", n_jobs=2)


def test_ctrl_c_leaves_what_is_finished(tmp_path: Path, expected: dict[str, bytes]) -> None:
    def interrupted(i: int) -> dict[str, Any]:
        if i == 4:
            raise KeyboardInterrupt
        return squares(i)

    with pytest.raises(KeyboardInterrupt):
        run(interrupted, 12, tmp_path / "out")
    assert ShardStore.open(tmp_path / "out").missing() == list(range(4, 12))
    run(squares, 12, tmp_path / "out")
    assert contents(tmp_path / "out") == expected


HEARS_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
"""A job that a shell started in the background inherits SIGINT ignored, and so would its children."""


def test_a_real_ctrl_c(tmp_path: Path, expected: dict[str, bytes]) -> None:
    out, journal = tmp_path / "out", tmp_path / "journal"
    journal.touch()
    process = subprocess.Popen(
        [sys.executable, "-c", f"{HEARS_CTRL_C}\n{CHILD}", str(out), "2", str(journal), "0.25"],
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and len(list(out.glob("shard-*"))) < 2:
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=60)[1]
    store = ShardStore.open(out)
    assert 2 <= 12 - len(store.missing()) < 12
    assert store.verify() == {}
    run(squares, 12, out)
    assert contents(out) == expected


def test_two_processes_cannot_share_a_folder(tmp_path: Path) -> None:
    code = (
        "import sys, time\nfrom likewise.store.job import locked\n"
        "with locked(sys.argv[1]):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(lw.InputError, match=f"in use by process {process.pid} on "):
            run(squares, 2, tmp_path)
        assert shards.holder(tmp_path) == process.pid
        assert contents(tmp_path) == {}
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]
    assert shards.holder(tmp_path) is None
    assert len(run(squares, 2, tmp_path)) == 2  # the lock died with its process


def test_nor_can_two_threads(tmp_path: Path) -> None:
    with shards.locked(tmp_path), pytest.raises(lw.InputError, match="in use by this process"):
        run(squares, 2, tmp_path)
    assert len(run(squares, 2, tmp_path)) == 2


def test_a_refused_thread_does_not_open_the_folder_to_others(tmp_path: Path) -> None:
    """A process that closes any descriptor of a locked file loses its POSIX lock."""
    code = "import sys; from likewise.engine import shards\nwith shards.locked(sys.argv[1]): print('held')"
    with shards.locked(tmp_path):
        with pytest.raises(lw.InputError, match="in use by this process"), shards.locked(tmp_path):
            pass
        assert shards.holder(tmp_path) == os.getpid()  # asking does not let go of it, either
        other = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
    assert other.returncode != 0
    assert f"in use by process {os.getpid()} on" in other.stderr


def test_a_worker_that_outlives_its_job_writes_nothing(tmp_path: Path) -> None:
    old = run(squares, 2, tmp_path)
    task = shards._Task(squares, tmp_path, old.digest)
    shards.run(squares, 2, tmp_path, key={"what": "new"}, resume=False)
    before = contents(tmp_path)
    outcome = task(0, 0)
    assert outcome.error is not None
    assert "taken over by another job" in outcome.error
    assert contents(tmp_path) == before


def test_a_task_that_is_sent_twice_is_done_once(tmp_path: Path) -> None:
    """Dask sends a finished task again when its worker dies before the answer is fetched."""
    journal = tmp_path / "journal"
    store = run(squares, 0, tmp_path / "out")
    task = shards._Task(partial(slow_squares, seconds=0, journal=str(journal)), tmp_path / "out", store.digest)
    assert task(3, 3).error is None
    assert task(3, 3).error is None
    assert len(journal.read_text().splitlines()) == 1


CHILD = """
import os, sys, time
import numpy as np
from likewise.engine import shards

out, n_jobs, journal, seconds = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])

def work(i):
    with open(journal, "a") as stream:
        stream.write(f"{i}\\n")
    time.sleep(seconds)
    return {"x": np.random.default_rng(i).normal(size=(5, i % 3)), "i": np.array([i, i * i])}

shards.run(work, 12, out, n_jobs=n_jobs, key={"what": "squares"})
"""


@pytest.mark.parametrize("n_jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_at_any_moment_and_resumed(tmp_path: Path, expected: dict[str, bytes], n_jobs: int) -> None:
    out, journal = tmp_path / "out", tmp_path / "journal"
    journal.touch()
    arguments = [sys.executable, "-c", CHILD, str(out), str(n_jobs), str(journal), "0.05"]
    moments = random.Random(n_jobs)
    for kills in range(1, 100):
        begun = journal.stat().st_size
        process = subprocess.Popen(arguments, start_new_session=True)
        while process.poll() is None and journal.stat().st_size == begun:
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.1))
        # Every second time joblib's workers outlive their parent for a while.
        os.killpg(process.pid, signal.SIGKILL) if kills % 2 else os.kill(process.pid, signal.SIGKILL)
        process.wait()
        store = ShardStore.open(out)
        assert store.verify() == {}  # what has its name is whole
        if kills >= 4 or len(store.missing()) < 4:
            break
    assert kills >= 2
    assert subprocess.run(arguments, check=False).returncode == 0
    assert contents(out) == expected


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
class TestDask:
    def test_a_killed_worker_loses_nothing_finished(self, tmp_path: Path, expected: dict[str, bytes]) -> None:
        distributed = pytest.importorskip("distributed")
        out, journal = tmp_path / "out", tmp_path / "journal"
        work = partial(slow_squares, seconds=0.25, journal=str(journal))
        with (
            distributed.LocalCluster(
                n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=logging.CRITICAL
            ) as cluster,
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
        assert contents(out) == expected
        assert contents(tmp_path / "again") == expected

    @pytest.mark.slow
    def test_a_cluster_of_its_own(self, tmp_path: Path, expected: dict[str, bytes]) -> None:
        pytest.importorskip("distributed")
        run(squares, 12, tmp_path / "out", executor="dask", n_jobs=1)
        assert contents(tmp_path / "out") == expected

    def test_no_scheduler(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        distributed = pytest.importorskip("distributed")

        def nobody(*_: Any, **__: Any) -> None:
            raise OSError("Timed out trying to connect")

        monkeypatch.setattr(distributed, "Client", type("Client", (), {"__init__": nobody}))
        with pytest.raises(lw.InputError, match="no Dask scheduler answers at tcp://nowhere:1"):
            run(squares, 2, tmp_path / "out", executor="tcp://nowhere:1")


def _kill_a_worker(out: Path, journal: Path, kept: list[str]) -> None:
    """Once three shards are finished, kill the worker that begins the next; notes what was finished then."""
    while len(list(out.glob("shard-*"))) < 3:
        time.sleep(0.005)
    begun = journal.read_text()
    while journal.read_text() == begun:
        time.sleep(0.005)
    os.kill(int(journal.read_text().split()[-1]), signal.SIGKILL)
    kept += [str(int(p.stem.split("-")[1])) for p in out.glob("shard-*")]


def test_without_dask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(lw.MissingExtra, match=r"likewise\[cluster\]"):
        run(squares, 2, tmp_path / "out", executor="dask")


def test_wrong_arguments(tmp_path: Path) -> None:
    for bad in ("spark", 3, object()):
        with pytest.raises(lw.InputError, match="executor: expected None"):
            run(squares, 2, tmp_path / "out", executor=bad)
    for jobs in (0, 1.5):
        with pytest.raises(lw.InputError, match="n_jobs"):
            run(squares, 2, tmp_path / "out", n_jobs=jobs)  # type: ignore[arg-type]
    with pytest.raises(lw.InputError, match="key is not JSON"):
        shards.run(squares, 2, tmp_path / "out", key={"x": object()})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(lw.FileError, match="cannot be written to"):
        run(squares, 2, tmp_path / "file")


def test_open_refuses_what_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(lw.FileError, match="does not exist"):
        ShardStore.open(tmp_path)
    for bad in ("{", "{}", '{"format": 1, "key": {}, "shards": -1, "items": "", "digest": ""}'):
        (tmp_path / "manifest.json").write_text(bad)
        with pytest.raises(lw.FileError, match=r"manifest\.json"):
            ShardStore.open(tmp_path)


def test_a_manifest_of_too_many_shards_is_refused(tmp_path: Path) -> None:
    """It would be counted through, one by one."""
    shards.run(lambda i: {"x": np.full(2, i)}, 2, tmp_path / "job", progress=False)
    file = tmp_path / "job" / "manifest.json"
    said = json.loads(file.read_text())
    for count in (10**18, 2**64, True, shards.MOST_SHARDS + 1):
        file.write_text(json.dumps({**said, "shards": count}))
        with pytest.raises(lw.FileError, match="not the manifest of a shard store"):
            ShardStore.open(tmp_path / "job")
    with pytest.raises(lw.InputError, match="shards: at most 1,000,000"):
        shards.run(lambda i: {}, shards.MOST_SHARDS + 1, tmp_path / "other", progress=False)
