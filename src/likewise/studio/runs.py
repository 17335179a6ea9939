"""The tab Runs: trainings and harvests, read from their directories while others write them; a sample to watch."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from likewise.errors import InputError, LikewiseError
from likewise.store import job as shards
from likewise.store.job import ShardStore
from likewise.store.run import Run, interrupt
from likewise.studio.asked import Gone
from likewise.studio.store import Store, fresh

MOST_RUNS, DEPTH = 300, 4
"""Runs that are listed, and how deep below a folder they are looked for."""
MOST_LINES, TAIL = 2000, 1 << 16
"""Lines of an answer, and bytes at the end of a log that are read for a summary."""
QUIET = 60.0
"""Seconds without a new shard after which a harvest counts as stopped."""
SAMPLES_AT_ONCE = 2
NOT_FIGURES = ("step", "time")


class Training:
    """A run directory of `likewise.store.run`."""

    def __init__(self, path: Path) -> None:
        self.path, self.run = path, Run.open(path)

    @property
    def kind(self) -> str:
        """Level and verb of the command that began it."""
        words = [Path(w).name for w in str(self.run.about.get("command", "")).split()]
        named = [i for i, w in enumerate(words) if w in ("pixels", "images", "sets", "distributions")]
        return " ".join(words[named[0] : named[0] + 2]) if named else "run"

    @property
    def state(self) -> str:
        """finished, running or stopped."""
        return self.run.state

    @property
    def steps(self) -> int | None:
        """How many steps there will be, where the configuration says so."""
        said = self.run.config.get("steps")
        return said if isinstance(said, int) and said > 0 else None

    def config(self) -> dict[str, Any]:
        """What was asked for."""
        return self.run.config

    def lines(self, since: int) -> list[dict[str, Any]]:
        """What was logged from a line on."""
        try:
            with (self.path / "metrics.jsonl").open("rb") as stream:
                some = list(itertools.islice(stream, since, since + MOST_LINES))
        except OSError:
            return []
        return [_object(line) for line in some if line.endswith(b"\n")]

    def last(self) -> list[dict[str, Any]]:
        """The last lines of the log."""
        try:
            with (self.path / "metrics.jsonl").open("rb") as stream:
                stream.seek(max(0, os.fstat(stream.fileno()).st_size - TAIL))
                some = stream.read().split(b"\n")[:-1]
        except OSError:
            return []
        return [line for line in map(_object, some) if "step" in line]

    def updated(self) -> float:
        """When something was last written, in seconds since 1970."""
        return max(_time(self.path / name) for name in ("metrics.jsonl", "run.json", "result.json"))

    def checkpoints(self) -> list[dict[str, Any]]:
        """The files of weights, with the step that their headers name."""
        return [_checkpoint(file) for file in sorted(self.path.glob("*.safetensors"))[:50]]

    def interrupt(self) -> bool:
        """Stop it as Ctrl-C does."""
        return self.run.interrupt()


class Harvest:
    """The folder of a bank, a shard at a time: a step is a shard."""

    kind = "distributions harvest"

    def __init__(self, path: Path) -> None:
        store = ShardStore.open(path)
        if store.key.get("what") != "bank":
            raise InputError(f"{path}: not a bank")
        self.path, self.key, self.steps = path, store.key, len(store)

    def _shards(self) -> list[tuple[float, int]]:
        return sorted((_time(f), f.stat().st_size) for f in self.path.glob("shard-*.safetensors"))

    @property
    def state(self) -> str:
        """finished when every shard is there, running while they come."""
        if len(self._shards()) >= self.steps:
            return "finished"
        return "running" if self._holder() is not None or self._elsewhere() else "stopped"

    def _holder(self) -> int | None:
        """The process of this machine that harvests; more of a bank that was extended is in folders of its own."""
        folders = (self.path, *self.path.glob("more-*"))
        return next((pid for folder in folders if (pid := shards.holder(folder)) is not None), None)

    def _elsewhere(self) -> bool:
        """Whether a process of another machine wrote to it a moment ago."""
        try:
            host = (self.path / ".lock").read_text(errors="replace").split()[-1]
        except (OSError, IndexError):
            return time.time() - self.updated() < QUIET
        return host != socket.gethostname() and time.time() - self.updated() < QUIET

    def config(self) -> dict[str, Any]:
        """What the manifest says."""
        return {k: v for k, v in self.key.items() if isinstance(v, str | int | float | bool)}

    def lines(self, since: int) -> list[dict[str, Any]]:
        """A line a shard: how many latents there are, and how many come a second."""
        said = self.key.get("shard_size")
        size = said if isinstance(said, int) else 1
        times = [t for t, _ in self._shards()]
        rates = [None, *(size / max(b - a, 1e-3) for a, b in itertools.pairwise(times))]
        rows = zip(times, rates, strict=True) if times else iter(())
        told = [
            {"step": i, "time": round(t, 3), "latents": i * size, **({} if r is None else {"latents a second": r})}
            for i, (t, r) in enumerate(rows, 1)
        ]
        return told[since : since + MOST_LINES]

    def last(self) -> list[dict[str, Any]]:
        """The last lines."""
        return self.lines(max(0, len(self._shards()) - 2))

    def updated(self) -> float:
        """When the last shard was written."""
        return max([_time(self.path / "manifest.json"), *(t for t, _ in self._shards())])

    def checkpoints(self) -> list[dict[str, Any]]:
        """None: shards are the result itself."""
        return []

    def interrupt(self) -> bool:
        """Interrupt the process that harvests, if it is on this machine; every finished shard stays."""
        return interrupt(self._holder())


Watched = Training | Harvest


class Runs:
    """What the tab asks for."""

    def __init__(self, store: Store, roots: Sequence[Path] = ()) -> None:
        self.store, self.roots = store, list(roots)
        self._ids: dict[Path, str] = {}
        self._lock = threading.Lock()
        self._children: dict[Path, subprocess.Popen[bytes]] = {}

    # ── reading ───────────────────────────────────────────────────────────────────────────────────────────────────

    def list(self) -> list[dict[str, Any]]:
        """Every run, that which was written last first."""
        found = [(self._id(path), opened) for path in self._paths() if (opened := _opened(path)) is not None]
        return sorted((self._summary(i, run) for i, run in found), key=lambda r: -r["updated"])

    def _paths(self) -> Iterator[Path]:
        own = self.store.folder / "runs"
        every = itertools.chain.from_iterable(below(root) for root in (*self.roots, own))
        return itertools.islice(dict.fromkeys(every), MOST_RUNS)

    def _id(self, path: Path) -> str:
        with self._lock:
            return self._ids.setdefault(path, fresh())

    def _run(self, key: str) -> Watched:
        with self._lock:
            path = next((p for p, i in self._ids.items() if i == key), None)
        opened = None if path is None else _opened(path)
        if opened is None:
            raise Gone("this run")
        return opened

    def _summary(self, key: str, run: Watched) -> dict[str, Any]:
        last = run.last()
        figures = {name for line in last for name, value in line.items() if isinstance(value, int | float)}
        return {
            "id": key,
            "name": self._name(run.path),
            "kind": run.kind,
            "state": self._state(run),
            "step": last[-1]["step"] if last else 0,
            "steps": run.steps,
            "updated": run.updated(),
            "metrics": sorted(figures - {*NOT_FIGURES}),
        }

    def _name(self, path: Path) -> str:
        for root in self.roots:
            if path != root and path.is_relative_to(root):
                return path.relative_to(root).as_posix()
        return path.name

    def _state(self, run: Watched) -> str:
        """What the directory says; of our own children, whether they failed, too."""
        child = self._children.get(run.path)
        if child is None or run.state == "finished":
            return run.state
        code = child.poll()
        return "running" if code is None else "stopped" if code in (130, -2, -15) else "failed"

    def read(self, key: str, since: float) -> dict[str, Any]:
        """One run: its configuration, what was logged from a line on, its checkpoints."""
        if not 0 <= since < 1e9:
            raise InputError(f"since: expected a line ≥ 0, got {since:g}")
        run = self._run(key)
        lines = run.lines(int(since))
        answer = {**self._summary(key, run), "config": run.config(), "lines": lines, "next": int(since) + len(lines)}
        failed = answer["state"] == "failed"
        return {**answer, "checkpoints": run.checkpoints(), "error": self._complaint(run.path) if failed else None}

    def _complaint(self, path: Path) -> str:
        """What a child of ours said last."""
        with contextlib.suppress(OSError):
            said = path.with_suffix(".err").read_text(encoding="utf-8", errors="replace").strip().splitlines()
            if said:
                return said[-1][:300]
        return "it ended without a word"

    # ── acting ────────────────────────────────────────────────────────────────────────────────────────────────────

    def cancel(self, key: str) -> dict[str, str]:
        """Interrupt the process of a run, and wait a little for it to stop."""
        run = self._run(key)
        if self._state(run) != "running":
            return {"state": self._state(run)}
        if not run.interrupt() and run.path not in self._children:
            raise InputError("this run's process is not on this machine, or does not say which it is; stop it there")
        child = self._children.get(run.path)
        if child is not None:
            child.terminate()
        until = time.monotonic() + 3
        while self._state(run) == "running" and time.monotonic() < until:
            time.sleep(0.1)
        return {"state": self._state(run)}

    def sample(self) -> dict[str, str]:
        """Begin a small real training in a process of its own; it ends with the server, if not before."""
        from likewise import samples

        if sum(child.poll() is None for child in self._children.values()) >= SAMPLES_AT_ONCE:
            raise InputError(f"{SAMPLES_AT_ONCE} sample runs are under way already; cancel one of them first")
        pictures = self.store.folder / "lessons"
        if not pictures.exists():
            _write_lessons(pictures, samples)
        out = self._place()
        with out.with_suffix(".err").open("wb") as said:
            command = [sys.executable, "-m", "likewise.cli", "images", "train", str(pictures), "--out", str(out)]
            self._children[out] = subprocess.Popen(
                [*command, *LESSON], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said, cwd=out.parent
            )
        self._wait_for(out)
        return {"id": self._id(out)}

    def _place(self) -> Path:
        folder = self.store.folder / "runs"
        folder.mkdir(exist_ok=True)
        numbers = itertools.count(1)
        return next(p for n in numbers if not (p := folder / f"sample {n}").exists() and p not in self._children)

    def _wait_for(self, out: Path, seconds: float = 30.0) -> None:
        """Until the run directory is there: Python itself takes a few seconds to begin."""
        child, until = self._children[out], time.monotonic() + seconds
        while not (out / "run.json").exists() and child.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        if not (out / "run.json").exists():
            child.kill()
            raise InputError(f"the sample run could not begin: {self._complaint(out)}")

    def close(self) -> None:
        """End our own children."""
        for child in self._children.values():
            if child.poll() is None:
                child.terminate()
        for child in self._children.values():
            try:
                child.wait(3)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


LESSON = (
    *("--steps", "150", "--evaluate-every", "15", "--classes", "12", "--per-class", "3", "--size", "96"),
    *("--shortest", "112", "--frozen", "12", "--workers", "1", "--dim", "128", "--save-every", "10"),
    *("--views", "2", "--lr", "5e-4", "--head-lr", "2e-3"),
)
"""A training that takes about a minute, logged at every step."""


def _write_lessons(folder: Path, samples: Any) -> None:
    """Places in photographs, a folder each: the place as it is, in other light, turned, and cut anew."""
    import cv2

    making = folder.with_name(f"{folder.name}.making")
    for place in (p for p in samples.places(8) if p.name.partition("/")[0] in samples.SCENES):
        here = making / place.name.removesuffix(".jpg").replace("/", " ")
        here.mkdir(parents=True, exist_ok=True)
        for name, picture in {"as it is": place.picture, **place.changed}.items():
            cv2.imwrite(str(here / f"{name}.jpg"), picture[..., ::-1])
    making.rename(folder)


def below(root: Path, depth: int = DEPTH) -> Iterator[Path]:
    """The run directories at and below a folder; what is inside one is not looked at."""
    if (root / "run.json").is_file() or (root / "manifest.json").is_file():
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


def _opened(path: Path) -> Watched | None:
    """The run of a directory; None where it is none, or damaged."""
    kind = Training if (path / "run.json").is_file() else Harvest
    try:
        return kind(path)
    except (LikewiseError, OSError):
        return None


def _checkpoint(file: Path) -> dict[str, Any]:
    return {"name": file.name, "bytes": file.stat().st_size if file.exists() else 0, "step": _step_of(file)}


def _step_of(file: Path) -> int | None:
    """The step that a checkpoint's header names; only the header is read."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            words = json.loads(stream.read(length))["__metadata__"] if length <= 1 << 20 else {}
        inner = [json.loads(v) for v in words.values() if isinstance(v, str) and v.startswith("{")]
        found = [h.get("step", h.get("header", {}).get("step")) for h in inner if isinstance(h, dict)]
        return next((step for step in found if isinstance(step, int)), None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _object(line: bytes) -> dict[str, Any]:
    """A line of a log; an empty object for one that is damaged, null for numbers that JSON lacks."""
    try:
        found = json.loads(line, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _time(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0
