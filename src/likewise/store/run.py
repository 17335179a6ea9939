"""The run directory of a training: what was asked, with which versions and seed, and what was measured on the way.

run/
  config.json     the configuration, as given
  run.json        command, seed, versions, when it began
  metrics.jsonl   one line a `log`; appended, so a killed run keeps every line but at most the one being written
  result.json     written by `finish`: the run came to its end
  process.json    which process works on it, so that others can see whether it still does, and interrupt it
  .lock           held by that process: what a file says of a process is believed of its holder alone
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import math
import os
import platform
import re
import shlex
import signal
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from likewise import media
from likewise.bounded import fcntl
from likewise.errors import FileError, InputError
from likewise.store.checkpoint import canonical

_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""How numbers that JSON lacks are written in metrics.jsonl."""


class Run:
    """A run directory: `Run.create` makes one or resumes one, `Run.open` reads one."""

    def __init__(self, path: Path, config: dict[str, Any], about: dict[str, Any]) -> None:
        self.path, self.config, self.about = path, config, about

    @classmethod
    def create(
        cls,
        out: str | Path,
        config: Mapping[str, Any],
        *,
        seed: int | None = None,
        command: str | None = None,
        resume: bool = False,
    ) -> Run:
        """Begin a run in `out`; with resume=True, resume the one that is there if its configuration is the same."""
        path = Path(out)
        plain: dict[str, Any] = json.loads(canonical(dict(config), "config"))
        if (path / "config.json").exists():
            return cls._resume(path, plain, resume)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise InputError(f"out: {path} is a file, or below one; a run needs a folder") from None
        about = {
            "command": shlex.join(sys.argv) if command is None else command,
            "seed": seed,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": versions(),
        }
        sign(path)
        write_json(path / "run.json", about)
        write_json(path / "config.json", plain)
        return cls(path, plain, about)

    @classmethod
    def _resume(cls, path: Path, config: dict[str, Any], resume: bool) -> Run:
        if not resume:
            raise InputError(f"out: {path} holds a run already; use another folder, or resume=True to resume it")
        run = cls.open(path)
        difference = differing(run.config, config)
        if difference:
            raise InputError(f"out: {path} is a run with another configuration ({difference}); use another folder")
        sign(path)
        if _is_first():
            _drop_torn_line(path / "metrics.jsonl")
        return run

    @classmethod
    def open(cls, out: str | Path) -> Run:
        """The run in `out`, to be read or resumed."""
        path = Path(out)
        return cls(path, read_json(path / "config.json"), read_json(path / "run.json"))

    def log(self, step: int, **figures: Any) -> None:
        """Append one line of figures: numbers (NaN too) or short strings."""
        line: dict[str, Any] = {"step": int(step), "time": round(time.time(), 3)}
        line |= {name: _figure(name, value) for name, value in figures.items()}
        data = (json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n").encode()
        # One write of a whole line to a file opened for appending: what is written outlives a killed process.
        descriptor = os.open(self.path / "metrics.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            if os.write(descriptor, data) < len(data):  # the next line would grow onto half of one
                os.ftruncate(descriptor, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise FileError(f"{self.path / 'metrics.jsonl'}: cannot be written: {error.strerror}") from None
        finally:
            os.close(descriptor)

    def logged(self) -> int:
        """How many bytes of lines there are: where a state that is saved now resumes."""
        return max(0, media.size_and_time(self.path / "metrics.jsonl")[0])

    def rewind(self, size: int) -> None:
        """Forget the lines after `logged` bytes: a training that resumes there logs them again."""
        if size < self.logged():
            os.truncate(self.path / "metrics.jsonl", size)

    def metrics(self) -> list[dict[str, Any]]:
        """Every line that was logged; a torn last line is left out."""
        file = self.path / "metrics.jsonl"
        lines = file.read_bytes().split(b"\n") if file.exists() else [b""]
        return [_with_words(parse_json(line, f"{file}, line {number}")) for number, line in enumerate(lines[:-1], 1)]

    def finish(self, **figures: Any) -> None:
        """Write the final figures: the run came to its end."""
        write_json(self.path / "result.json", {name: _figure(name, value) for name, value in figures.items()})
        if _is_first():
            release(self.path)

    @property
    def result(self) -> dict[str, Any] | None:
        """The final figures, or None while the run is not finished."""
        file = self.path / "result.json"
        return _with_words(read_json(file)) if file.exists() else None

    @property
    def state(self) -> Literal["finished", "running", "stopped"]:
        """finished: it came to its end; running: its process is alive, on this machine; stopped: neither."""
        if (self.path / "result.json").exists():
            return "finished"
        return "stopped" if worker(self.path) is None else "running"

    def interrupt(self) -> bool:
        """Interrupt the process that works on the run, as Ctrl-C does; whether there was one on this machine.

        A process that only has the number of the one that began the run is left alone.
        """
        return interrupt(worker(self.path))

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {'finished' if (self.path / 'result.json').exists() else 'not finished'})"


# ── which process works on a folder ───────────────────────────────────────────────────────────────────────────────


LOCK = ".lock"
RESERVED = 0x40000001
"""The byte of its file that SQLite locks for the one who writes."""
_held: dict[str, tuple[tuple[int, int], int, sqlite3.Connection]] = {}
"""The locks of this process by folder: device and inode, the process (one that forks from it holds none), the lock. To
open such a file once more, and close it, would let go of it."""


def lock(folder: Path) -> bool:
    """Hold `folder` for this process until `release`, or its end; False where it does already, InputError if another's.

    The lock is SQLite's, on an empty database beside the record: it works among threads, among processes, on Windows
    and on the network file systems that have locks at all.
    """
    if _own(folder):
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        holder = sqlite3.connect(folder / LOCK, timeout=0, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.OperationalError) as error:
        raise FileError(f"out: {folder} cannot be written to: {error}") from None
    try:
        holder.execute("PRAGMA journal_mode = MEMORY")  # nothing is written to it, so nothing need be undone
        holder.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        holder.close()
        if "locked" not in str(error):
            raise FileError(f"out: {folder} cannot be locked: {error}") from None
        said: dict[str, Any] = {}
        with contextlib.suppress(FileError):
            said = read_json(folder / "process.json")
        by = f"process {said.get('pid')} on {said.get('host')}"
        raise InputError(f"out: {folder} is in use by {by}; wait for it, or use another folder") from None
    release(folder)  # of a folder of this name that was deleted meanwhile
    about = os.stat(folder / LOCK)
    _held[os.path.realpath(folder)] = (about.st_dev, about.st_ino), os.getpid(), holder
    return True


def release(folder: Path) -> None:
    """Let go of a folder that `lock` took."""
    if held := _held.pop(os.path.realpath(folder), None):
        held[2].close()


@atexit.register
def _release_all() -> None:
    for folder in list(_held):
        release(Path(folder))


def _own(folder: Path) -> int | None:
    """The process that holds a folder, if it is this one, or the one that it was forked from."""
    try:
        about = os.stat(folder / LOCK)
    except OSError:
        return None
    return next((pid for known, pid, _ in _held.values() if known == (about.st_dev, about.st_ino)), None)


def _holder(folder: Path) -> int | None:
    """The process on this machine that holds a folder; the kernel says so, no file. None where it cannot (Windows)."""
    if pid := _own(folder):
        return pid
    if fcntl is None:
        return None
    apple = sys.platform == "darwin"  # (start, length, pid, type, whence), or as Linux has it
    asked = (RESERVED, 1, 0, fcntl.F_WRLCK, 0) if apple else (fcntl.F_WRLCK, 0, RESERVED, 1, 0)
    layout = "qqihh" if apple else "hhqqi0q"
    try:
        number = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        said = struct.unpack(layout, fcntl.fcntl(number, fcntl.F_GETLK, struct.pack(layout, *asked)))
    except OSError:
        return None
    finally:
        os.close(number)
    kind, holder = (said[3], said[2]) if apple else (said[0], said[4])
    return None if kind == fcntl.F_UNLCK else int(holder)


def sign(folder: Path) -> None:
    """Take a folder for this process, and say so; of the processes of torchrun, the first does."""
    if _is_first():
        lock(folder)
        pid = os.getpid()
        write_json(folder / "process.json", {"pid": pid, "host": platform.node(), "began": _began(pid)})


def worker(folder: str | Path) -> int | None:
    """The process that works on a folder: named there, alive on this machine, the same one still, and its holder."""
    try:
        said = read_json(Path(folder) / "process.json")
    except FileError:
        return None
    pid, began = said.get("pid"), said.get("began")
    if isinstance(pid, bool) or not isinstance(pid, int) or pid <= 1 or not isinstance(began, str):
        return None
    here = said.get("host") == platform.node() and began == _began(pid)
    return pid if here and _holder(Path(folder)) == pid else None


def interrupt(pid: int | None) -> bool:
    """Interrupt another process as Ctrl-C does; whether there was one.

    One that a shell has started in the background does not hear Ctrl-C: it is asked to end, and loses what came after
    its last checkpoint.
    """
    if pid is None or pid == os.getpid():
        return False
    try:
        os.kill(pid, signal.SIGTERM if _ignores_interrupts(pid) else signal.SIGINT)
    except OSError:  # it has just ended, or it is somebody else's
        return False
    return True


def _is_first() -> bool:
    """Whether this is the only process, or the first of torchrun's."""
    return os.environ.get("RANK", "0") == "0"


def _ignores_interrupts(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    ignored = re.search(r"^SigIgn:\s*([0-9a-f]+)", status, re.MULTILINE)
    return ignored is not None and bool(int(ignored[1], 16) >> (signal.SIGINT - 1) & 1)


def _began(pid: int) -> str | None:
    """When a process began, in words that no other process of that number shares; None where there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        state, *fields = stat.rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return None if state == "Z" else f"{boot} {fields[18]}"
    except (OSError, IndexError, ValueError):
        return None if Path("/proc/self/stat").exists() else _began_by_ps(pid)


def _began_by_ps(pid: int) -> str | None:
    """The same where there is no /proc."""
    try:
        said = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout.strip() or None


# ── versions, progress, JSON ──────────────────────────────────────────────────────────────────────────────────────


def versions() -> dict[str, str]:
    """What decides a result besides its inputs: Python, platform and the packages that compute; imports none."""
    known = {"python": platform.python_version(), "platform": f"{sys.platform}-{platform.machine()}"}
    for package in ("likewise", "numpy", "scipy", "numba", "torch"):
        with contextlib.suppress(PackageNotFoundError):
            known[package] = version(package)
    return known


@contextlib.contextmanager
def progress(total: int, what: str, *, show: bool = True, done: int = 0) -> Iterator[Callable[[], None]]:
    """A progress bar with the time left, on stderr; silent when that is no terminal. Yields what advances it by one."""
    if not (show and sys.stderr.isatty()):
        yield lambda: None
        return
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        # the name of a folder: no markup, and no command to the terminal
        plain = "".join(c if c.isprintable() else "?" for c in what)
        task = bar.add_task(escape(plain), total=total, completed=done)
        yield lambda: bar.advance(task)


def differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Where two JSON objects differ, for a message: "gamma 0.05 ≠ 0.1, tol 1e-06 ≠ 1e-05"; empty if nowhere."""
    pairs = [(k, old.get(k, "nothing"), new.get(k, "nothing")) for k in sorted({*old, *new})]
    others = [f"{k} {_shorten(a)} ≠ {_shorten(b)}" for k, a, b in pairs if a != b]
    return ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or a FileError that says what is wrong with it."""
    try:
        return parse_json(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise FileError(f"{path} does not exist") from None
    except FileError:
        raise
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror}") from None


def parse_json(data: bytes | str, where: str) -> dict[str, Any]:
    """A JSON object from a stranger's bytes; `where` begins the FileError."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{where} is damaged: {error}") from None
    if not isinstance(value, dict):
        raise FileError(f"{where} is damaged: expected a JSON object, got {type(value).__name__}")
    return value


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """A JSON object to a file, atomically."""
    media.write_text(path, json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n")


def _figure(name: str, value: Any) -> Any:
    """A figure as JSON takes it."""
    if isinstance(value, (bool, str)):
        return value
    try:
        number = value.item() if hasattr(value, "item") else value
    except (TypeError, ValueError, RuntimeError):  # an array or a tensor of more than one number
        number = None
    if not isinstance(number, (bool, int, float)):
        raise InputError(f"{name}: expected a number or a string, got {type(value).__name__}")
    if isinstance(number, float) and not math.isfinite(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    return number


def _with_words(line: dict[str, Any]) -> dict[str, Any]:
    """The figures, with the numbers that JSON lacks put back."""
    return {k: _WORDS.get(v, v) if isinstance(v, str) else v for k, v in line.items()}


def _drop_torn_line(file: Path) -> None:
    """Cut what follows the last newline, so that the next line does not grow onto a torn one."""
    if file.exists():
        data = file.read_bytes()
        os.truncate(file, data.rfind(b"\n") + 1)


def _shorten(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else text[:12] + "…"
