"""One job of each queue at a time, a few that wait, and nobody works for those who have gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from likewise.errors import InputError, RequestError
from likewise.studio import requests as jobs
from likewise.studio.app import Session
from likewise.studio.requests import Jobs, Task, Work

from .conftest import answering


@pytest.fixture
def queue() -> Iterator[Jobs]:
    made = Jobs()
    yield made
    made.close()


async def _lines(job: Work) -> list[dict[str, Any]]:
    return [json.loads(line) async for line in job.lines()]


def _run(queue: Jobs, task: Task) -> list[dict[str, Any]]:
    async def run() -> list[dict[str, Any]]:
        return await _lines(queue.submit(task, asyncio.get_running_loop()))

    return asyncio.run(run())


def test_a_job_reports_what_it_does_and_its_result(queue: Jobs) -> None:
    def task(work: Work) -> int:
        work.partial(1)
        work.report("adding", 0.5)
        return 2

    lines = [line for line in _run(queue, task) if line["state"] not in ("waiting", "working")]
    assert lines == [{"state": "partial", "result": 1}, {"state": "done", "result": 2}]


@pytest.mark.parametrize(
    ("error", "said"),
    [(InputError("a: expected b"), "a: expected b"), (RuntimeError("secret"), jobs.UNEXPECTED)],
)
def test_a_job_that_fails_says_one_sentence(queue: Jobs, error: Any, said: str) -> None:
    def task(_: Work) -> Any:
        raise error

    assert _run(queue, task)[-1] == {"state": "failed", "error": said}


def test_one_works_the_others_wait_in_order_and_hear_how_many_are_ahead(queue: Jobs) -> None:
    free, order = threading.Event(), list[int]()

    def blocking(number: int) -> Task:
        def task(_: Work) -> int:
            order.append(number)
            free.wait(20)
            return number

        return task

    async def run() -> list[list[dict[str, Any]]]:
        loop = asyncio.get_running_loop()
        first = queue.submit(blocking(0), loop)
        while not order:
            await asyncio.sleep(0.01)
        waiting = [queue.submit(blocking(i), loop) for i in range(1, 9)]
        with pytest.raises(RequestError) as refused:
            queue.submit(blocking(9), loop)
        assert refused.value.status == 503
        queue.cancel(waiting.pop(2))
        free.set()
        return [await _lines(job) for job in (first, *waiting)]

    told = asyncio.run(run())
    assert order == [0, 1, 2, 4, 5, 6, 7, 8]
    assert [lines[-1]["result"] for lines in told] == order
    ahead = [line["ahead"] for line in told[-1] if line["state"] == "waiting"]
    assert (ahead[:2], ahead) == ([8, 7], sorted(ahead, reverse=True))


# ── over a connection ─────────────────────────────────────────────────────────────────────────────────────────────


class Stages:
    """A job that goes from stage to stage until nobody listens."""

    def __init__(self) -> None:
        self.begun, self.ended, self.count = threading.Event(), threading.Event(), 0

    def __call__(self, work: Work, fields: Any) -> int:
        self.begun.set()
        try:
            while self.count < 2000:
                self.count += 1
                work.report(f"stage {self.count}")
                time.sleep(0.01)
        finally:
            self.ended.set()
        return self.count


@pytest.fixture
def stages() -> Iterator[tuple[httpx.Client, Session, Stages, Stages]]:
    """A studio of its own in which two kinds of jobs go from stage to stage."""
    session, one, other = Session(), Stages(), Stages()
    session.tab("sets").compare, session.tab("images").search = one, other
    session.tab("pixels").compare = lambda work, fields: "aligned"
    with answering(session) as client:
        yield client, session, one, other
    assert not session.store.folder.exists()


@contextlib.contextmanager
def running(client: httpx.Client, job: Stages) -> Iterator[None]:
    """While somebody listens to a job that has begun; the job ends when nobody does."""
    with client.stream("POST", "api/sets/compare", json={}) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()  # held: a stream whose lines nobody holds is closed
        while json.loads(next(lines))["state"] != "working":
            pass
        assert job.begun.wait(10)
        yield
    assert job.ended.wait(10)


def test_closing_the_connection_stops_a_running_job_at_its_next_stage(stages: Any) -> None:
    client, _, job, _ = stages
    with running(client, job):
        pass
    assert job.count < 1000


def test_closing_the_connection_takes_a_waiting_job_out(stages: Any) -> None:
    client, session, job, other = stages
    with running(client, job):
        with client.stream("POST", "api/images/search", json={}) as waiting:
            lines = waiting.iter_lines()
            assert json.loads(next(lines)) == {"state": "waiting", "ahead": 1}
        until = time.monotonic() + 10
        while session.jobs._waiting and time.monotonic() < until:
            time.sleep(0.01)
        assert not session.jobs._waiting
    assert not other.begun.wait(0.3)


def test_what_takes_long_and_what_is_looked_at_do_not_wait_for_each_other(stages: Any) -> None:
    client, _, job, _ = stages
    with running(client, job):
        lines = client.post("api/pixels/compare", json={}).text.splitlines()
        assert json.loads(lines[-1]) == {"state": "done", "result": "aligned"}


def test_light_requests_do_not_wait_and_the_tenth_job_is_503(stages: Any) -> None:
    client, _, job, _ = stages
    with running(client, job), contextlib.ExitStack() as held:
        others = [held.enter_context(client.stream("POST", "api/sets/compare", json={})) for _ in range(8)]
        assert {s.status_code for s in others} == {200}
        refused = client.post("api/sets/compare", json={})
        assert (refused.status_code, refused.json()["error"]) == (503, jobs.BUSY)
        began = time.perf_counter()
        assert client.get("api/images/sources").status_code == 200
        assert time.perf_counter() - began < 3


def test_the_server_ends_while_a_job_runs(stages: Any) -> None:
    client, session, job, _ = stages
    with running(client, job):
        session.jobs.stop()
        assert job.ended.wait(10)
        assert client.post("api/sets/compare", json={}).status_code == 503
