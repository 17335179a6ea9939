"""Every reader of strangers' bytes meets mutated files: a result or a LikewiseError, in 5 s of CPU time, nothing else.

    python benchmarks/fuzz.py --files 10000 --seed 0                 all readers, the same number of files each
    python benchmarks/fuzz.py --only tiff --files 200                one reader
    python benchmarks/fuzz.py --only tiff --case 17                  one file again: what became of it, with its trace

Files are read in worker processes (address space limited to 4 GB), so that a crash or a hang is caught and named with
the number that repeats it. The mutations and the readers are those of tests/fuzz.
"""

from __future__ import annotations

import json
import os
import queue
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.record import record
from tests.fuzz import cases
from tests.fuzz.readers import READERS, missing

MEMORY = 4 << 30
"""The address space of a worker, in bytes."""
START = 120.0
"""Seconds of CPU time that a worker may take to import what it needs and to make a valid input."""
BY_NAME = {reader.name: reader for reader in READERS}


# --------------------------------------------------------------------------------------------------------------- worker


def work(name: str, seed: int, first: int, last: int) -> None:
    """Read cases first … last − 1; a line of JSON before and after each."""
    reader = BY_NAME[name]
    with tempfile.TemporaryDirectory() as scratch:
        bench = cases.Bench(reader, Path(scratch) / "case")
        cases.judged(reader, bench.folder)  # what is imported when it is first needed is no case's time
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        for number in range(first, last):
            tell({"begin": number})
            reset_peak()
            before = peak()
            outcome = bench.run(seed, number)
            tell({"end": number, **vars(outcome), "memory": max(0, peak() - before)})
    tell({"done": True})


def tell(line: dict[str, Any]) -> None:
    """One line to the parent, in one write."""
    os.write(1, (json.dumps(line) + "\n").encode())


def reset_peak() -> None:
    """Let the kernel forget the peak of resident memory; where it cannot, the peak is that of all cases so far."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak() -> int:
    """The peak of resident memory in bytes since it was last forgotten."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


# --------------------------------------------------------------------------------------------------------------- parent


@dataclass
class Tally:
    """What became of a reader's files."""

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    slowest: tuple[float, int] = (0.0, -1)
    memory: tuple[int, int] = (0, -1)
    defects: list[str] = field(default_factory=list)

    def see(self, number: int, kind: str, said: str, seconds: float, memory: int = 0) -> None:
        """Count one file; what is neither accepted nor refused is kept by its number."""
        self.counts[kind] += 1
        self.slowest = max(self.slowest, (seconds, number))
        self.memory = max(self.memory, (memory, number))
        if kind not in ("accepted", "refused"):
            self.defects.append(f"{number}: {kind} {said}")

    def row(self) -> dict[str, Any]:
        """A row of the table."""
        kinds = ("accepted", "refused", "other", "crash", "hang")
        return {
            "reader": self.name,
            "files": sum(self.counts.values()),
            **{kind: self.counts[kind] for kind in kinds},
            "slowest s": round(self.slowest[0], 3),
            "peak MB": self.memory[0] >> 20,
            "defects": self.defects[:20],
        }


def fuzzed(name: str, seed: int, files: int) -> Tally:
    """All files of a reader; after a crash or a hang a new worker goes on with the next file."""
    tally, first = Tally(name), 0
    while first < files:
        first = _one_worker(tally, name, seed, first, files)
    return tally


def _one_worker(tally: Tally, name: str, seed: int, first: int, last: int) -> int:
    """Run one worker until it is done, dead or stuck; the number of the next file."""
    words = [sys.executable, __file__, "--worker", name, "--seed", str(seed), "--span", str(first), str(last)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, env=environment)
        lines, watch, under_way = _lines(process), Watch(process.pid), -1
        while True:
            try:
                line = lines.get(timeout=0.5)
            except queue.Empty:
                if not watch.stuck():
                    continue
                process.kill()
                process.wait()
                if under_way < 0:
                    raise SystemExit(f"{name}: its worker did not come to its first file") from None
                tally.see(under_way, "hang", f"longer than {cases.SECONDS:g} s", cases.SECONDS)
                return under_way + 1
            if line is None:
                process.wait()
                if under_way < 0:
                    raise SystemExit(f"{name}: its worker did not start:\n{_tail(errors)}")
                tally.see(under_way, "crash", _signal(process.returncode) + " " + _tail(errors), 0.0)
                return under_way + 1
            if "begin" in line:
                under_way = line["begin"]
                watch.begin()
            elif "end" in line:
                tally.see(line["end"], _late(line), line["said"], line["seconds"], line["memory"])
            else:
                process.wait()
                return last


class Watch:
    """Whether a process has used up the CPU time of a file, or sleeps; the clock alone would count other programs."""

    def __init__(self, pid: int) -> None:
        self.pid, self.began, self.used, self.limit = pid, time.monotonic(), 0.0, START

    def begin(self) -> None:
        """A file is begun."""
        self.began, self.used, self.limit = time.monotonic(), self._seconds(), cases.SECONDS + 1

    def stuck(self) -> bool:
        """Whether it has taken too long: its limit of CPU time, or twenty times that by the clock."""
        late = time.monotonic() - self.began
        return late > self.limit and (self._seconds() - self.used > self.limit or late > 20 * self.limit)

    def _seconds(self) -> float:
        try:
            words = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # no such file system: the clock has to do
            return time.monotonic()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _late(line: dict[str, Any]) -> str:
    return "hang" if line["seconds"] > cases.SECONDS else str(line["kind"])


def _lines(process: subprocess.Popen[bytes]) -> queue.Queue[dict[str, Any] | None]:
    """What a worker tells, line by line, and None at its end."""
    lines: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def follow() -> None:
        for raw in process.stdout or ():
            if raw.startswith(b"{"):
                lines.put(json.loads(raw))
        lines.put(None)

    threading.Thread(target=follow, daemon=True).start()
    return lines


def _signal(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _tail(errors: Any) -> str:
    errors.seek(0)
    text = errors.read().decode("utf-8", "replace")
    frames = [line.strip() for line in text.splitlines() if "likewise" in line or "Error" in line]
    return " | ".join(frames[-4:])[-600:]


def again(name: str, seed: int, number: int, keep: str | None) -> None:
    """One file again, in this process, with its trace; `keep` names a folder that gets a copy of the edited input."""
    import shutil

    with tempfile.TemporaryDirectory() as scratch:
        bench = cases.Bench(BY_NAME[name], Path(scratch) / "case")
        click.echo(f"edited: {bench.edit(seed, number).name}")
        if keep:
            shutil.copytree(bench.folder, keep, dirs_exist_ok=True)
        try:
            bench.reader.read(bench.folder)
            click.echo("accepted")
        except Exception:
            traceback.print_exc()


@click.command()
@click.option("--files", default=10_000, help="files in total, over all readers")
@click.option("--seed", default=0)
@click.option("--only", multiple=True, help="a reader's name; may be given several times")
@click.option("--case", type=int, help="one file again, with its trace")
@click.option("--keep", help="with --case: a folder that gets the edited input")
@click.option("--name", default="fuzz", help="the name of the results file; '' writes none")
@click.option("--worker", hidden=True)
@click.option("--span", nargs=2, type=int, hidden=True)
def main(files: int, seed: int, only: tuple[str, ...], case: int | None, keep: str | None, name: str,
         worker: str | None, span: tuple[int, int]) -> None:  # fmt: skip
    """Mutated files for every reader; exit code 1 where one is neither read nor refused."""
    if worker:
        return work(worker, seed, *span)
    chosen = [reader for reader in READERS if (not only or reader.name in only) and not missing(reader)]
    if case is not None:
        return again(chosen[0].name, seed, case, keep)
    rows = []
    for k, reader in enumerate(chosen):
        share = files // len(chosen) + (k < files % len(chosen))
        rows.append(fuzzed(reader.name, seed, share).row())
        click.echo("  ".join(f"{value}" for key, value in rows[-1].items() if key != "defects"))
        for defect in rows[-1]["defects"]:
            click.echo(f"    {defect}")
    if name and not only:
        columns = [c for c in rows[0] if c != "defects"]
        total = sum(row["files"] for row in rows)
        note = f"{total:,} files; limits: {cases.SECONDS:g} s a file, {MEMORY >> 30} GB of address space"
        record(name, columns, rows, f"python benchmarks/fuzz.py --files {files} --seed {seed}", note)
    sys.exit(any(row["other"] or row["crash"] or row["hang"] for row in rows))


if __name__ == "__main__":
    main()
