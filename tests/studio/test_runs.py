"""Runs: what their directories say, live; and the sample that trains in a process of its own."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from likewise.distributions import Generator, Normal, harvest
from likewise.errors import InputError, RequestError
from likewise.store import checkpoint
from likewise.store.job import FILE, locked
from likewise.store.run import Run
from likewise.studio.app import Given
from likewise.studio.requests import to_json
from likewise.studio.runs import Tab, below
from likewise.studio.uploads import ImageStore


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Tab]:
    store = ImageStore()
    yield Tab(store, tmp_path, Given(runs=[tmp_path]))
    store.close()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = Run.create(tmp_path / "group" / "one", {"steps": 10}, command="/usr/bin/likewise images train x")
    for step in range(4):
        made.log(step, loss=1 / (step + 1), score=float("nan"), phase="warm")
    return made


def test_runs_are_found_and_summed_up_with_their_checkpoints(runs: Tab, run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / ".hidden").mkdir()
    (result,) = runs.list()
    told = ("name", "kind", "state", "step", "steps")
    assert [result[k] for k in told] == ["group/one", "images train", "running", 3, 10]
    assert abs(result["updated"] - time.time()) < 60
    assert [p.name for p in below(run.path)] == ["one"]
    checkpoint.write(run.path / "state.safetensors", {"x": np.zeros(3)}, {"step": 7})
    (run.path / "torn.safetensors").write_bytes(b"\xff" * 40)
    kept = runs.read({"id": result["id"], "since": 0})["checkpoints"]
    assert [c["name"] for c in kept] == ["state.safetensors", "torn.safetensors"]
    assert kept[1]["bytes"] == 40


def test_lines_are_read_from_where_one_left_off(runs: Tab, run: Run, tmp_path: Path) -> None:
    key = runs.list()[0]["id"]
    first = runs.read({"id": key, "since": 0})
    assert ([line["step"] for line in first["lines"]], first["next"]) == ([0, 1, 2, 3], 4)
    assert first["lines"][0]["score"] == "NaN"
    assert first["config"] == {"steps": 10}
    json.dumps(first, allow_nan=False)
    with (run.path / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 4, "lo')  # torn: being written
    assert runs.read({"id": key, "since": 4})["lines"] == []
    with (run.path / "metrics.jsonl").open("a") as stream:
        stream.write('ss": 0.1}\n')
    later = runs.read({"id": key, "since": 4})
    assert (later["lines"], later["next"]) == ([{"step": 4, "loss": 0.1}], 5)
    for since in (-1, 1e12):
        with pytest.raises(InputError, match="since"):
            runs.read({"id": key, "since": since})
    with pytest.raises(RequestError):
        runs.read({"id": "x", "since": 0})


def test_a_run_that_ended_is_finished_and_a_killed_one_stopped(runs: Tab, run: Run, tmp_path: Path) -> None:
    (run.path / "process.json").unlink()
    assert runs.list()[0]["state"] == "stopped"
    run.finish(loss=0.1)
    assert runs.list()[0]["state"] == "finished"
    assert runs.cancel({"id": runs.list()[0]["id"]}) == {"state": "finished"}


def test_damaged_runs_are_passed_over(runs: Tab, run: Run, tmp_path: Path) -> None:
    for name, text in (("a", "{"), ("b", "[]"), ("c", '{"command": 3}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(text)
        (tmp_path / name / "config.json").write_text("{}")
    (run.path / "metrics.jsonl").write_text("nonsense\n[1]\n" + "x" * 200_000 + "\n")
    result = {r["name"]: r for r in runs.list()}
    assert set(result) == {"c", "group/one"}
    assert result["group/one"]["step"] == 0


def test_one_odd_run_does_not_empty_the_list(runs: Tab, run: Run, tmp_path: Path) -> None:
    for i, line in enumerate(
        ('{"step":1e400}', '{"step":' + "9" * 4000 + "}", '{"step":1,"loss":1e999,"x":{"y":[1e400]}}')
    ):
        odd = Run.create(tmp_path / f"odd {i}", {"steps": 10**400})
        (odd.path / "metrics.jsonl").write_text(line + "\n")
    listed = json.loads(to_json(runs.list()), parse_constant=pytest.fail)
    assert {r["name"] for r in listed} == {"group/one", "odd 0", "odd 1", "odd 2"}
    for one in runs.list():
        json.loads(to_json(runs.read({"id": one["id"], "since": 0})), parse_constant=pytest.fail)


def test_a_run_that_cannot_be_summed_up_is_passed_over(
    runs: Tab, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Run.create(tmp_path / "bad", {})
    real = Tab._summary

    def summary(self: Tab, key: str, one: Any) -> dict[str, Any]:
        if one.path.name == "bad":
            raise RuntimeError("what nobody thought of")
        return real(self, key, one)

    monkeypatch.setattr(Tab, "_summary", summary)
    assert [r["name"] for r in runs.list()] == ["group/one"]
    assert "bad: passed over" in caplog.text


def test_a_harvest_is_a_run_too(runs: Tab, tmp_path: Path) -> None:
    def net(z: Any) -> Any:
        return z * 2

    harvest(Generator(net, Normal(3), name="twice"), 12, out=tmp_path / "bank", shard_size=4, progress=False)
    (result,) = runs.list()
    assert (result["kind"], result["state"], result["step"], result["steps"]) == (
        "distributions harvest",
        "finished",
        3,
        3,
    )
    lines = runs.read({"id": result["id"], "since": 1})["lines"]
    assert [line["latents"] for line in lines] == [8, 12]
    with sqlite3.connect(tmp_path / "bank" / FILE) as database:
        database.execute("DELETE FROM shards WHERE name = 2")
    database.close()
    assert runs.list()[0]["state"] == "stopped"  # a shard is missing, and nobody works on it
    assert runs.cancel({"id": result["id"]}) == {"state": "stopped"}
    (tmp_path / "bank" / "process.json").write_text('{"pid": 7, "host": "another-machine"}')
    assert runs.list()[0]["state"] == "running"  # the last was written just now, elsewhere
    with pytest.raises(InputError, match="not on this machine"):
        runs.cancel({"id": result["id"]})
    with locked(tmp_path / "bank"):
        assert runs.list()[0]["state"] == "running"
        with pytest.raises(InputError, match="not on this machine"):
            runs.cancel({"id": result["id"]})  # by this very process


TRAINING = (
    "import signal, sys, time\nfrom likewise.store.run import Run\n"
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "run = Run.create(sys.argv[1], {})\nfor step in range(600):\n    run.log(step, loss=1)\n    time.sleep(0.1)\n"
)
HARVEST = (
    "import signal, sys, time\nfrom likewise.distributions import Generator, Normal, harvest\n"
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "def net(z):\n    time.sleep(0.05)\n    return z * 2\n"
    "harvest(Generator(net, Normal(3), name='twice'), 4000, out=sys.argv[1], shard_size=4, progress=False)\n"
)


@pytest.mark.slow
@pytest.mark.parametrize("program", [TRAINING, HARVEST])
def test_cancel_interrupts_the_process_of_a_run(runs: Tab, tmp_path: Path, program: str) -> None:
    until = time.monotonic() + 120
    command = [sys.executable, "-c", program, str(tmp_path / "out")]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as child:
        while time.monotonic() < until and not any(run["step"] >= 2 for run in runs.list()):
            time.sleep(0.1)
        (result,) = runs.list()
        assert result["state"] == "running"
        # a child that nobody has waited for yet is a zombie, which counts as gone
        assert runs.cancel({"id": result["id"]}) == {"state": "stopped"}
        assert child.wait(60) != 0
    assert runs.read({"id": result["id"]})["step"] >= 2


@pytest.mark.slow
def test_the_sample_run_trains_and_can_be_cancelled(client: httpx.Client) -> None:
    answer = client.post("api/runs/sample", json={})
    assert answer.status_code == 200, answer.text
    key, until = answer.json(), time.monotonic() + 60
    while not (said := client.post("api/runs/read", json=key).json())["lines"] and time.monotonic() < until:
        time.sleep(0.5)
    assert said["state"] == "running"
    assert said["lines"][0]["loss"] > 0
    assert client.post("api/runs/cancel", json=key).json() == {"state": "stopped"}
