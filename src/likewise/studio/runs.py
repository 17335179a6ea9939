"""The tab Runs: trainings and harvests, read from their directories while others write them; a sample run to watch."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from likewise import media, samples
from likewise.errors import InputError, LikewiseError
from likewise.store import job as jobs
from likewise.store.job import Job
from likewise.store.run import Run, interrupt, read_json, worker
from likewise.studio.app import Given
from likewise.studio.requests import Fields, not_found, text, whole
from likewise.studio.uploads import ImageStore, new_id

MAX_RUNS, DEPTH = 300, 4
"""Runs that are listed, and how deep below a folder they are searched for."""
MAX_LINES, TAIL = 2000, 1 << 16
"""Lines of an answer, and bytes at the end of a log that are read for a summary."""
QUIET = 60.0
"""Seconds without a new shard after which a harvest counts as stopped."""
SAMPLES_AT_ONCE = 2
log = logging.getLogger("likewise.studio")


class Training(Run):
    """A run directory of `likewise.store.run`."""

    def __init__(self, path: Path, config: dict[str, Any], about: dict[str, Any]) -> None:
        super().__init__(path, config, about)
        steps = config.get("steps")
        self.steps = steps if isinstance(steps, int) and steps > 0 else None
        command = [Path(word).name for word in str(about.get("command", "")).split()]
        levels = [i for i, word in enumerate(command) if word in ("pixels", "images", "sets", "distributions")]
        self.kind = " ".join(command[levels[0] : levels[0] + 2]) if levels else "run"

    def lines(self, since: int) -> list[dict[str, Any]]:
        """What was logged from a line on."""
        try:
            with (self.path / "metrics.jsonl").open("rb") as stream:
                some = list(itertools.islice(stream, since, since + MAX_LINES))
        except OSError:
            return []
        return [_object(line) for line in some if line.endswith(b"\n")]

    def step(self) -> int:
        """The last step that was logged."""
        try:
            with (self.path / "metrics.jsonl").open("rb") as stream:
                stream.seek(max(0, os.fstat(stream.fileno()).st_size - TAIL))
                some = [_object(line).get("step") for line in stream.read().split(b"\n")[:-1]]
        except OSError:
            return 0
        return next((step for step in reversed(some) if isinstance(step, int)), 0)


class Harvest(Job):
    """The folder of a bank, a shard at a time: a step is a shard."""

    kind = "distributions harvest"

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        super().__init__(path, about)
        if self.identity.get("what") != "bank":
            raise InputError(f"{path}: not a bank")
        self.steps = len(self)
        self.config = {k: v for k, v in self.identity.items() if isinstance(v, str | int | float | bool)}

    @property
    def state(self) -> str:
        """finished when every shard is there, running while they come."""
        if not self.missing():
            return "finished"
        return "running" if worker(self.path) is not None or self._elsewhere() else "stopped"

    def _elsewhere(self) -> bool:
        """Whether a process of another machine wrote to it a moment ago."""
        try:
            host = read_json(self.path / "process.json").get("host")
        except LikewiseError:
            return False
        return host != socket.gethostname() and time.time() - updated(self.path) < QUIET

    def lines(self, since: int) -> list[dict[str, Any]]:
        """A line a shard: how many latents there are, and how many come a second."""
        stated, lines = self.identity.get("shard_size"), list[dict[str, Any]]()
        size, times = stated if isinstance(stated, int) else 1, [at for at, _ in self.finished().values()]
        for i, now in enumerate(times):
            rate = {"latents a second": size / max(now - times[i - 1], 1e-3)} if i else {}
            lines.append({"step": i + 1, "time": round(now, 3), "latents": (i + 1) * size, **rate})
        return lines[since : since + MAX_LINES]

    def step(self) -> int:
        """How many shards are there."""
        return len(self.finished())

    def interrupt(self) -> bool:
        """Interrupt the process that harvests, if it is on this machine; every finished shard stays."""
        return interrupt(worker(self.path))


class Tab:
    """What the tab asks for."""

    def __init__(self, store: ImageStore, cache: Path, given: Given) -> None:
        self.store, self.roots = store, given.runs
        self._ids: dict[Path, str] = {}
        self._lock = threading.Lock()
        self._children: dict[Path, subprocess.Popen[bytes]] = {}

    def list(self) -> list[dict[str, Any]]:
        """Every run, that which was written last first."""
        every = itertools.chain.from_iterable(below(root) for root in (*self.roots, self.store.folder / "runs"))
        paths = itertools.islice(dict.fromkeys(every), MAX_RUNS)
        return sorted(filter(None, map(self._summed_up, paths)), key=lambda summary: -summary["updated"])

    def _summed_up(self, path: Path) -> dict[str, Any] | None:
        """What the list says of a directory; whatever a damaged one leads to, the others are listed."""
        try:
            run = _open(path)
            return None if run is None else self._summary(self._id(path), run)
        except Exception:
            log.exception("%s: passed over", path)
            return None

    def _id(self, path: Path) -> str:
        with self._lock:
            return self._ids.setdefault(path, new_id())

    def _run(self, key: str) -> Training | Harvest:
        with self._lock:
            path = next((p for p, i in self._ids.items() if i == key), None)
        run = None if path is None else _open(path)
        if run is None:
            raise not_found("this run")
        return run

    def _summary(self, key: str, run: Training | Harvest) -> dict[str, Any]:
        return {
            "id": key,
            "name": self._name(run.path),
            "kind": run.kind,
            "state": self._state(run),
            "step": run.step(),
            "steps": run.steps,
            "updated": updated(run.path),
        }

    def _name(self, path: Path) -> str:
        for root in self.roots:
            if path != root and path.is_relative_to(root):
                return path.relative_to(root).as_posix()
        return path.name

    def _state(self, run: Training | Harvest) -> str:
        """What the directory says; of our own children, whether they failed, too."""
        child = self._children.get(run.path)
        if child is None or run.state == "finished":
            return run.state
        code = child.poll()
        return "running" if code is None else "stopped" if code in (130, -2, -15) else "failed"

    def read(self, fields: Fields) -> dict[str, Any]:
        """One run: its configuration, what was logged from a line on, its checkpoints."""
        key, since = text(fields, "id"), whole(fields, "since", 0, 10**9, 0)
        run = self._run(key)
        lines, summary = run.lines(since), self._summary(key, run)
        error = self._last_error(run.path) if summary["state"] == "failed" else None
        log = {"lines": lines, "next": since + len(lines)}
        files = sorted(run.path.glob("*.safetensors"))[:50]
        kept = [{"name": f.name, "bytes": media.size_and_time(f)[0], "updated": _time(f)} for f in files]
        return {**summary, "config": run.config, **log, "checkpoints": kept, "error": error}

    def _last_error(self, path: Path) -> str:
        """The last line that a child of ours wrote to stderr."""
        with contextlib.suppress(OSError, IndexError):
            errors = path.with_suffix(".err").read_text(encoding="utf-8", errors="replace").strip()
            return errors.splitlines()[-1][:300]
        return "it ended without a message"

    def cancel(self, fields: Fields) -> dict[str, str]:
        """Interrupt the process of a run, and wait a little for it to stop."""
        run = self._run(text(fields, "id"))
        if self._state(run) != "running":
            return {"state": self._state(run)}
        child = self._children.get(run.path)
        if child is not None:
            child.terminate()
        elif not run.interrupt():
            raise InputError("this run's process is not on this machine, or does not say which it is; stop it there")
        until = time.monotonic() + 3
        while self._state(run) == "running" and time.monotonic() < until:
            time.sleep(0.1)
        return {"state": self._state(run)}

    def sample(self, fields: Fields) -> dict[str, str]:
        """Begin a small real training in a process of its own; it ends with the server, if not before."""
        if sum(child.poll() is None for child in self._children.values()) >= SAMPLES_AT_ONCE:
            raise InputError(f"{SAMPLES_AT_ONCE} sample runs are under way already; cancel one of them first")
        images, folder = self.store.folder / "lessons", self.store.folder / "runs"
        if not images.exists():
            samples.queries(images)  # a class for each photograph: its places in other light, turned, cropped
        folder.mkdir(exist_ok=True)
        out = folder / f"sample {len(self._children) + 1}"
        with out.with_suffix(".err").open("wb") as errors:
            command = [sys.executable, "-m", "likewise.cli", "images", "train", str(images), "--out", str(out)]
            self._children[out] = subprocess.Popen(
                [*command, *SAMPLE], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, cwd=folder
            )
        self._wait_for(out)
        return {"id": self._id(out)}

    def _wait_for(self, out: Path, seconds: float = 30.0) -> None:
        """Until the run directory is there: Python itself takes a few seconds to begin."""
        child, until = self._children[out], time.monotonic() + seconds
        while not (out / "run.json").exists() and child.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        if not (out / "run.json").exists():
            child.kill()
            raise InputError(f"the sample run could not begin: {self._last_error(out)}")

    def close(self) -> None:
        """End our own children."""
        for child in self._children.values():
            child.terminate()
        for child in self._children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(3)
            child.kill()
            child.wait()


SAMPLE = (
    *("--steps", "150", "--evaluate-every", "15", "--classes", "12", "--size", "96"),
    *("--frozen", "12", "--dim", "128", "--lr", "5e-4"),
)
"""A training that takes about a minute, logged at every step."""


def below(root: Path, depth: int = DEPTH) -> Iterator[Path]:
    """The run directories at and below a folder; what is inside one is passed over."""
    if (root / "run.json").is_file() or (root / jobs.FILE).is_file():
        yield root
        return
    if depth == 0:
        return
    try:
        inner = sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith(".") and not p.is_symlink())
    except OSError:
        return
    for folder in inner:
        yield from below(folder, depth - 1)


def _open(path: Path) -> Training | Harvest | None:
    """The run of a directory; None where it is none, or damaged."""
    kind: type[Training | Harvest] = Training if (path / "run.json").is_file() else Harvest
    try:
        return cast("Training | Harvest", kind.open(path))
    except (LikewiseError, OSError):
        return None


def _object(line: bytes) -> dict[str, Any]:
    """A line of a log; an empty object for one that is damaged, null for numbers that JSON lacks."""
    try:
        value = json.loads(line, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def updated(folder: Path) -> float:
    """When something was last written in a folder, in seconds since 1970."""
    return max((_time(file) for file in folder.iterdir()), default=0.0)


def _time(file: Path) -> float:
    """When a file was written, in seconds since 1970; 0 where it is gone."""
    return max(0, media.size_and_time(file)[1]) / 1e9
