"""Strangers' bytes are decoded by other processes, under limits of time and memory: what a decoder does ends with them.

A worker is a Python that calls one named function of likewise after the other. What goes and comes is JSON with raw
numbers behind it, never a pickle, and what comes is believed as little as a file. One that takes too long, too much or
crashes is a FileError, and the next call has a new one. With `trust` the functions are called in this process, as where
there are no such limits (Windows) or no process can be made: with the same limits on sizes, and none on time.

>>> from likewise import bounded
>>> bounded.call("math:hypot", 3, 4, name="a triangle")
5.0
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.util
import json
import logging
import math
import os
import signal
import struct
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Generator, Iterator
from contextvars import ContextVar
from typing import IO, Any

import numpy as np

from likewise import errors
from likewise.errors import FileError, LikewiseError, MissingExtra


def _module(name: str) -> Any:
    """A module of Unix; None on Windows."""
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


fcntl, resource = _module("fcntl"), _module("resource")
SECONDS = 30.0
"""CPU time for a picture, or for each frame of a video: 200 Mpx of AVIF, the slowest, are 20 s."""
WALL, PATIENCE = 60.0, 10.0
"""By the clock so long, and so many times the CPU time more: a machine may be busy, or a disk far away."""
MEMORY = 3 << 30
"""Address space of a worker: 200 Mpx in colour need 7 bytes each, and Python with NumPy 0.4 GB."""
IDLE = min(4, os.cpu_count() or 1)
"""Workers that are kept for the next call."""
MOST_WORDS = 1 << 20
"""Bytes of what a worker says besides arrays."""
PIPE = 1 << 20
"""Bytes that a pipe holds: with Linux' own 64 kB a picture takes twice as long to come."""

TRUST = "LIKEWISE_TRUST"
trust = bool(os.environ.get(TRUST))
"""Decode in this process: for files of one's own."""
log = logging.getLogger(__name__)


def call(target: str, *args: Any, name: str, seconds: float = SECONDS, memory: int = MEMORY) -> Any:
    """What the function "module:name" gives: an array, a plain value, or a tuple of these.

    `name` stands for the file in errors.
    """
    if trust:
        return _find(target)(*args)
    (value,) = _results(target, args, name, seconds, memory)
    return value


def stream(target: str, *args: Any, name: str, seconds: float = SECONDS, memory: int = MEMORY) -> Iterator[Any]:
    """What the generator "module:name" yields, one after the other, None left out; `seconds` are for each."""
    results = _find(target)(*args) if trust else _results(target, args, name, seconds, memory)
    with contextlib.closing(results):
        yield from (value for value in results if value is not None)


@contextlib.contextmanager
def trusted() -> Iterator[None]:
    """Within it, files are decoded in this process, and in those that it starts."""
    global trust
    before, trust = trust, True
    said = os.environ.get(TRUST)
    os.environ[TRUST] = "1"
    try:
        yield
    finally:
        trust = before
        os.environ.pop(TRUST)
        os.environ.update({} if said is None else {TRUST: said})


@contextlib.contextmanager
def cancellable() -> Iterator[Callable[[], None]]:
    """Calls within it, in threads of this context too, end in a FileError once what it gives is called."""
    calls = _Calls()
    ours = _cancellable.set(calls)
    try:
        yield calls.cancel
    finally:
        _cancellable.reset(ours)


def _find(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _called(target: str, args: tuple[Any, ...]) -> Iterator[Any]:
    result = _find(target)(*args)
    return result if isinstance(result, types.GeneratorType) else iter([result])


def _results(target: str, args: tuple[Any, ...], name: str, seconds: float, memory: int) -> Generator[Any, None, None]:
    """What a worker gives; it is kept for the next call if it came to the end of this one."""
    worker = _pool.take()
    if worker is None:
        yield from _called(target, args)
        return
    whole, calls = False, _cancellable.get()
    try:
        calls.begin(worker)
        yield from worker.ask((target, args, name, seconds, memory), seconds, memory)
        whole = True
    except LikewiseError:
        whole = True
        raise
    except EOFError:
        raise FileError(f"{name}: {_why(worker.end(), seconds)}") from None
    finally:
        calls.finish(worker)
        if whole:
            _pool.give_back(worker)
        else:
            worker.end()


def _why(code: int, seconds: float) -> str:
    """What became of a worker that ended, by its exit code."""
    if code == -signal.SIGXCPU:
        return f"takes more than {seconds:g} s of CPU time to decode"
    if code == -signal.SIGKILL:
        return "takes too long to decode, or too much memory"
    return f"damaged: its decoder crashed ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})"


# ── here ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Pool:
    """The workers that wait for a call. A call that finds none makes one: videos may be under way meanwhile."""

    def __init__(self) -> None:
        self.idle, self.lock, self.possible = list[_Worker](), threading.Lock(), resource is not None
        self.forgotten = list[list[_Worker]]()

    def take(self) -> _Worker | None:
        """A worker, or None where none can be made."""
        with self.lock:
            worker = next((w for w in iter(lambda: self.idle.pop() if self.idle else None, None) if w.alive()), None)
        if worker is not None or not self.possible:
            return worker
        try:
            return _Worker()
        except (OSError, EOFError) as error:
            self.possible = False
            log.warning("no process can be made to decode in (%s): files are decoded in this one", error)
            return None

    def give_back(self, worker: _Worker) -> None:
        """Keep a worker for the next call, if not enough are kept."""
        with self.lock:
            if kept := len(self.idle) < IDLE:
                self.idle.append(worker)
        if not kept:
            worker.end()

    def close(self) -> None:
        """End those that wait."""
        with self.lock:
            while self.idle:
                self.idle.pop().end()

    def forget(self) -> None:
        """In a process that was forked: these are its parent's."""
        self.forgotten.append(self.idle)
        self.idle, self.lock = list[_Worker](), threading.Lock()


class _Worker:
    """A process that decodes; it ends with us, or with its pipe."""

    def __init__(self) -> None:
        code = f"import sys; sys.path[:] = {sys.path!r}; from likewise import bounded; bounded.serve()"
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **one},
            start_new_session=True,  # Ctrl-C is ours to hear
        )
        self.requests, self.answers = _pipe(self.process.stdin), _pipe(self.process.stdout)
        try:
            with self._limited(60):
                self._hear(0)
        except EOFError:
            raise EOFError(f"it ended with exit code {self.end()}") from None

    def alive(self) -> bool:
        """Whether it waits; of one that does not, everything is closed."""
        return self.process.poll() is None or self.end() is None

    def ask(self, request: Any, seconds: float, memory: int) -> Iterator[Any]:
        """What comes of a request, one after the other; EOFError where the process ends, or says what is no answer."""
        try:
            _say(self.requests, request)
        except OSError:
            raise EOFError from None
        while True:
            with self._limited(WALL + seconds * PATIENCE):
                said = self._hear(memory)
            if "value" not in said:
                return
            yield said["value"]

    def _hear(self, memory: int) -> dict[str, Any]:
        try:
            said = _heard(self.answers, memory)
            kind = getattr(errors, said["error"], FileError) if "error" in said else None
            words = [str(word) for word in said.get("words", ())]
        except (ValueError, TypeError, KeyError, AttributeError, OSError, MemoryError, struct.error):
            raise EOFError from None
        if kind is not None:
            raise kind(*words)
        return {"value": said["value"]} if "value" in said else {}

    @contextlib.contextmanager
    def _limited(self, seconds: float) -> Iterator[None]:
        timer = threading.Timer(seconds, self.process.kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def end(self) -> int:
        """Let it go; what it ended with. One that has ended says why, before it is killed."""
        for pipe in (self.requests, self.answers):
            with contextlib.suppress(OSError):
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(0.2)
        self.process.kill()
        return self.process.wait()


class _Calls:
    """The workers that are busy for somebody who may leave, also while a worker is being made."""

    def __init__(self) -> None:
        self.workers, self.lock, self.cancelled = list[_Worker](), threading.Lock(), False

    def begin(self, worker: _Worker) -> None:
        """A worker is about to be asked; it is killed at once where nobody waits any more."""
        with self.lock:
            self.workers.append(worker)
            if self.cancelled:
                worker.process.kill()

    def finish(self, worker: _Worker) -> None:
        """It is no longer busy: what it does next is of others."""
        with self.lock:
            self.workers.remove(worker)

    def cancel(self) -> None:
        """End all calls, and those that come."""
        with self.lock:
            self.cancelled = True
            for worker in self.workers:
                worker.process.kill()


_cancellable: ContextVar[_Calls] = ContextVar("cancellable", default=_Calls())  # noqa: B039 - those of nobody


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    """One end of a pipe, made to hold more where that can be."""
    if stream is None:
        raise EOFError("no pipe")
    with contextlib.suppress(OSError, AttributeError):  # only Linux has this
        fcntl.fcntl(stream.fileno(), fcntl.F_SETPIPE_SZ, PIPE)
    return stream


_pool = _Pool()
atexit.register(_pool.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.forget)


# ── between ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _say(stream: IO[bytes], value: Any) -> None:
    """Write a value: its description as JSON, then the numbers of its arrays."""
    arrays: list[np.ndarray[Any, Any]] = []
    said = json.dumps(_described(value, arrays)).encode()
    stream.write(struct.pack("<I", len(said)) + said)
    for array in arrays:
        stream.write(array.reshape(-1).view(np.uint8).data)
    stream.flush()


def _described(value: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    """A value as JSON, its arrays apart."""
    if isinstance(value, bytes):
        return {"bytes": _described(np.frombuffer(value, np.uint8), arrays)}
    if isinstance(value, np.ndarray):
        arrays.append(np.ascontiguousarray(value))
        return {"array": value.dtype.str, "shape": value.shape}
    if isinstance(value, tuple):
        return {"tuple": [_described(one, arrays) for one in value]}
    if isinstance(value, dict):
        return {"dict": [[key, _described(one, arrays)] for key, one in value.items()]}
    return value


def _heard(stream: IO[bytes], memory: int) -> Any:
    """What `_say` wrote; EOFError at the end, and any error of a value where it is not that."""
    (size,) = struct.unpack("<I", _read(stream, 4))
    return _value(json.loads(_read(stream, min(size, MOST_WORDS))), stream, memory)


def _value(said: Any, stream: IO[bytes], memory: int) -> Any:
    if not isinstance(said, dict):
        return said
    if "bytes" in said:
        return bytes(_value(said["bytes"], stream, memory))
    if "tuple" in said:
        return tuple(_value(one, stream, memory) for one in said["tuple"])
    if "dict" in said:
        return {str(key): _value(one, stream, memory) for key, one in said["dict"]}
    kind, shape = np.dtype(str(said["array"])), tuple(int(n) for n in said["shape"])
    if kind.kind not in "uifb" or min(shape, default=0) < 0 or math.prod(shape) * kind.itemsize > memory:
        raise ValueError
    array = np.empty(shape, kind)
    _fill(stream, array.reshape(-1).view(np.uint8).data)
    return array


def _read(stream: IO[bytes], count: int) -> bytearray:
    data = bytearray(count)
    _fill(stream, memoryview(data))
    return data


def _fill(stream: IO[bytes], into: memoryview) -> None:
    while len(into):
        count = stream.readinto(into)  # type: ignore[attr-defined]
        if not count:
            raise EOFError
        into = into[count:]


# ── there ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def serve() -> None:
    """What a worker does: call what it is asked to, until its pipe is closed."""
    global trust
    trust, requests = True, sys.stdin.buffer
    with os.fdopen(os.dup(1), "wb") as answers, contextlib.suppress(EOFError):
        os.dup2(2, 1)  # what a decoder prints is no answer
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _say(answers, {"value": "ready"})
        while True:
            target, args, name, seconds, memory = _heard(requests, sys.maxsize)
            try:
                _limit(seconds, memory)
                for value in _called(target, args):
                    _say(answers, {"value": value})
                    _limit(seconds, memory)
                _say(answers, {})
            except MissingExtra as error:
                _say(answers, {"error": "MissingExtra", "words": [error.package, error.extra]})
            except LikewiseError as error:
                _say(answers, {"error": type(error).__name__, "words": [str(error)]})
            except MemoryError:
                _say(answers, {"error": "FileError", "words": [f"{name}: not enough memory to decode it"]})
            except Exception as error:
                why = f"{name}: damaged: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
                _say(answers, {"error": "FileError", "words": [why]})


def _limit(seconds: float, memory: int) -> None:
    """From now on so many seconds of CPU time, and no more memory than that."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    for kind, most in (
        (resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime + seconds)),
        (resource.RLIMIT_AS, memory),
    ):
        hard = resource.getrlimit(kind)[1]
        with contextlib.suppress(OSError, ValueError):  # macOS has no limit of the address space
            resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
