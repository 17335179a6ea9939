"""Heavy work, one piece at a time: a queue that holds a few, a thread that works, and a stream of lines for each.

A job is a function of its Work, by which it reports what it is doing and learns whether it was cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from torch import nn

from likewise.errors import LikewiseError, RequestError

MAX_WAITING = 8
BUSY = f"{MAX_WAITING} jobs are waiting already; try again when one of them is done"
ENDED = "likewise studio has been stopped"
UNEXPECTED = "an unexpected error; the terminal in which likewise studio runs has the details"
PROGRESS = ("waiting", "working")
"""States that only report progress: a newer line replaces an older one that nobody has read."""
log = logging.getLogger("likewise.studio")

Task = Callable[["Work"], Any]


class Cancelled(Exception):
    """Nobody waits for the result any more: ends a job from within, never seen by a caller."""


class Work:
    """One job: its task `report`s what it does, hands out `partial` results, and `check`s whether to go on.

    Lines are posted by threads and read by one event loop.
    """

    def __init__(self, task: Task, loop: asyncio.AbstractEventLoop) -> None:
        self.task, self._loop = task, loop
        self.cancelled = threading.Event()
        self._lock, self._lines, self._news = threading.Lock(), deque[tuple[str, bytes]](), asyncio.Event()

    def check(self) -> None:
        """Raise Cancelled where the reader has closed the connection."""
        if self.cancelled.is_set():
            raise Cancelled

    def report(self, words: str, done: float | None = None) -> None:
        """Report what is being done and, where it is known, which share of it is done."""
        self.check()
        self.post({"state": "working", "words": words, "done": done})

    def partial(self, result: Any) -> None:
        """Hand out what is known so far."""
        self.check()
        self.post({"state": "partial", "result": result})

    def post(self, line: dict[str, Any]) -> None:
        """Add a line; one that only reports progress replaces another such that nobody has read."""
        state, data = line["state"], json.dumps(line, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        with self._lock:
            if self._lines and self._lines[-1][0] in PROGRESS and state in PROGRESS:
                self._lines.pop()
            self._lines.append((state, data))
        try:
            self._loop.call_soon_threadsafe(self._news.set)
        except RuntimeError:  # the loop has closed: nobody reads any more
            self.cancelled.set()

    async def lines(self) -> AsyncIterator[bytes]:
        """The lines as they come, to the last."""
        while True:
            await self._news.wait()
            self._news.clear()
            with self._lock:
                some = list(self._lines)
                self._lines.clear()
            for state, data in some:
                yield data
                if state in ("done", "failed"):
                    return

    def run(self) -> None:
        """Do the work; whatever becomes of it is the last line."""
        try:
            self.report("starting")
            self.post({"state": "done", "result": self.task(self)})
        except Cancelled:
            self.post({"state": "failed", "error": "cancelled"})
        except LikewiseError as error:
            self.post({"state": "failed", "error": " ".join(str(error).split())})
        except Exception:
            log.exception("a job failed")
            self.post({"state": "failed", "error": UNEXPECTED})


class Jobs:
    """The queue and its one worker, which begins with the first job."""

    def __init__(self, limit: int = MAX_WAITING) -> None:
        self.limit = limit
        self._waiting = deque[Work]()
        self._running: Work | None = None
        self._change = threading.Condition()
        self._open, self._thread = True, threading.Thread(target=self._serve, name="studio-jobs", daemon=True)

    def submit(self, task: Task, loop: asyncio.AbstractEventLoop) -> Work:
        """Queue a piece of work; refused where too many wait."""
        job = Work(task, loop)
        with self._change:
            if len(self._waiting) >= self.limit or not self._open:
                raise RequestError(503, BUSY)
            if self._thread.ident is None:
                self._thread.start()
            self._waiting.append(job)
            self._report_queue()
            self._change.notify()
        return job

    def cancel(self, job: Work) -> None:
        """A job that waits never starts; one that runs stops at its next stage."""
        job.cancelled.set()
        with self._change:
            if job in self._waiting:
                self._waiting.remove(job)
                self._report_queue()

    def stop(self) -> None:
        """Cancel everything, end the streams of all who listen, and take nothing more."""
        with self._change:
            self._open = False
            left = [*self._waiting, *([self._running] if self._running else [])]
            self._waiting.clear()
            self._change.notify()
        for job in left:
            job.cancelled.set()
            job.post({"state": "failed", "error": ENDED})

    @property
    def busy(self) -> bool:
        """Whether the worker is still at work, though it was asked to stop."""
        return not self._open and self._thread.is_alive()

    def close(self, patience: float = 1.5) -> None:
        """Cancel everything and let the worker go."""
        self.stop()
        if self._thread.ident is not None:
            self._thread.join(patience)

    def _report_queue(self) -> None:
        """Tell each job that waits how many are ahead of it."""
        ahead = int(self._running is not None)
        for i, job in enumerate(self._waiting):
            job.post({"state": "waiting", "ahead": ahead + i})

    def _serve(self) -> None:
        while (job := self._next()) is not None:
            job.run()
            with self._change:
                self._running = None

    def _next(self) -> Work | None:
        with self._change:
            self._change.wait_for(lambda: self._waiting or not self._open)
            if not self._open:
                return None
            self._running = self._waiting.popleft()
            self._report_queue()
            return self._running


class Stream(Response):
    """The lines of a job as NDJSON, one write each; when the reader goes, the job is cancelled."""

    media_type = "application/x-ndjson"

    def __init__(self, jobs: Jobs, job: Work) -> None:
        self.jobs, self.job = jobs, job
        super().__init__()
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(_disconnect(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            self.jobs.cancel(self.job)
            sending.cancel()
            leaving.cancel()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for line in self.job.lines():
            await send({"type": "http.response.body", "body": line, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@contextlib.contextmanager
def watch(model: Any, work: Work, words: str = "", total: int = 0) -> Iterator[None]:
    """While inside, every module of a model's network first checks whether the work was cancelled.

    With `total`, the images that pass are counted and reported as so many of it: the module that is called first sees
    every one of them.
    """
    lock, seen, first = threading.Lock(), 0, list[Any]()

    def before(module: Any, inputs: tuple[Any, ...]) -> None:
        nonlocal seen
        work.check()
        with lock:
            if not first:
                first.append(module)
            if total and module is first[0]:
                seen += len(inputs[0])
                work.report(f"{words}, {min(seen, total)} of {total}", min(1.0, seen / total))

    network = getattr(model, "network", None)
    modules = list(network.modules()) if isinstance(network, nn.Module) else []
    hooks = [module.register_forward_pre_hook(before) for module in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
