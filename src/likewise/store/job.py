"""Resumable work: a function mapped over numbered shards, in this process, in joblib processes or on a Dask cluster.

    out/
      job.sqlite      what the job is (its identity), how many shards it has, versions, and every finished shard
      process.json    the process that works on it
      .lock           held by that process

Workers compute and send arrays back; the one process that runs the job writes them, each shard in a transaction of
SQLite's. So a shard is finished when it is in the file, whatever is killed, and whenever, and workers need not share
a disk with it.

>>> import tempfile
>>> import numpy as np
>>> from likewise.store.job import Job
>>> with tempfile.TemporaryDirectory() as out, Job.begin(out, {"what": "squares"}) as job:
...     job.run(lambda i: {"square": np.array(i * i)}, 4, progress=False)
...     [int(arrays["square"]) for arrays in job]
[0, 1, 4, 9]
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import pickle
import platform
import sqlite3
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from joblib import cpu_count
from joblib.externals.loky import ProcessPoolExecutor

from likewise.errors import FileError, InputError, MissingExtra, ShardError
from likewise.store import checkpoint
from likewise.store import run as runs
from likewise.store.checkpoint import JSON, Arrays

Work = Callable[[Any], Mapping[str, Any]]
"""Arrays by name, from an item that says which part of the job it is."""
Name = int | str

FILE = "job.sqlite"
FORMAT = 1
MOST_SHARDS = 1_000_000
"""A job, or a record, of more shards than this is refused: it would be counted through, one by one."""
MOST_FAILURES = 20
"""After this many failed shards the rest is not tried: the fault is in the work, not in a shard."""
MOST_DEATHS = 3
"""So often in a run joblib processes that died are replaced; Dask tries a shard as often."""
AT_ONCE = 500
"""Shards that are given out at a time: more than a cluster has cores, few enough for their results to be held."""
PATIENCE = 60.0
"""Seconds for which a reader waits for a writer's transaction, and a writer for readers."""

WRITE = "BEGIN IMMEDIATE"

_SCHEMA = (
    "CREATE TABLE about (json TEXT NOT NULL)",
    "CREATE TABLE shards (name PRIMARY KEY, time REAL NOT NULL, data BLOB NOT NULL)",
)

log = logging.getLogger(__name__)


class Job:
    """A folder of finished shards: `Job.begin` to work on it, `Job.open` to read it."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path, self._about = path, about
        self.resumed: list[str] = []
        """names of the parts that `keep` found finished"""

    @classmethod
    @contextlib.contextmanager
    def begin(
        cls,
        out: str | Path,
        identity: Mapping[str, JSON],
        *,
        resume: bool = True,
        on_change: Literal["refuse", "restart"] = "refuse",
    ) -> Iterator[Job]:
        """Take the folder `out` for a job, for as long as the context lasts; a second process is refused.

        `identity` says all that decides what the shards hold. A folder that holds the shards of another identity is
        refused, or, with on_change="restart", begun again if `identity["what"]` at least is the same. resume=False
        always begins again.
        """
        path = Path(out)
        said = json.loads(checkpoint.canonical(dict(identity), "identity"))
        about = {"format": FORMAT, "identity": said, "shards": 0, "notes": {}, "versions": runs.versions()}
        with locked(path):
            job = cls.open(path) if resume and cls.begun(path) else None
            if job is not None and job.identity != said:
                job._refuse(said, on_change)
                job = None
            if job is None:
                job = cls(path, about)
                for file in (FILE, f"{FILE}-journal"):
                    (path / file).unlink(missing_ok=True)
                with _transaction(path, WRITE) as database:
                    for statement in _SCHEMA:
                        database.execute(statement)
                    database.execute("INSERT INTO about VALUES (?)", (json.dumps(about),))
            elif changed := runs.differing(job._about["versions"], about["versions"]):
                log.warning("%s was begun with other versions (%s) and is resumed", path, changed)
            yield job

    @staticmethod
    def begun(out: str | Path) -> bool:
        """Whether a folder holds a job: not one that was killed before its first record."""
        return _record(Path(out)) is not None

    @classmethod
    def open(cls, out: str | Path) -> Job:
        """The job in a folder, to be read, also while another process works on it."""
        path = Path(out)
        about = _record(path)
        if about is None:
            raise FileError(f"{path / FILE} does not exist")
        kinds = {"identity": dict, "shards": int, "notes": dict, "versions": dict}
        sound = all(isinstance(about.get(name), kind) for name, kind in kinds.items())
        if about.get("format") != FORMAT or not sound or not 0 <= about["shards"] <= MOST_SHARDS:
            raise FileError(f"{path / FILE} is not the record of a job of format {FORMAT}")
        return cls(path, about)

    @property
    def identity(self) -> dict[str, JSON]:
        """What the job is."""
        return dict(self._about["identity"])

    @property
    def notes(self) -> dict[str, JSON]:
        """What `run` was told to note beside the shards."""
        return dict(self._about["notes"])

    def __len__(self) -> int:
        """The number of shards of the job, finished or not."""
        return int(self._about["shards"])

    def __repr__(self) -> str:
        return f"Job({str(self.path)!r}, {len(self) - len(self.missing())} of {len(self)} shards)"

    def load(self, name: Name) -> Arrays:
        """The arrays of a shard, checked against their checksum."""
        return self._read(name)[0]

    def __iter__(self) -> Iterator[Arrays]:
        """The arrays of every shard, in order; one that is missing is a FileError."""
        return (self.load(i) for i in range(len(self)))

    def finished(self) -> dict[Name, tuple[float, int]]:
        """When each finished shard was written, in seconds since 1970, and its length in bytes."""
        with _transaction(self.path) as database:
            rows = database.execute(
                "SELECT name, CAST(time AS REAL), length(data) FROM shards ORDER BY time"
            ).fetchall()
        return {name: (float(at or 0), int(size or 0)) for name, at, size in rows}

    def missing(self) -> list[int]:
        """The shards that are not finished."""
        there = self.finished()
        return [i for i in range(len(self)) if i not in there]

    def verify(self) -> dict[int, str]:
        """Read every finished shard; what is wrong, by shard number. Empty when all is well."""
        wrong = {}
        for i in sorted(set(range(len(self))) - set(self.missing())):
            try:
                self.load(i)
            except FileError as error:
                wrong[i] = str(error)
        return wrong

    # ── work ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def run(
        self,
        work: Work,
        shards: Sequence[JSON] | int,
        *,
        executor: Any = None,
        n_jobs: int = 1,
        progress: bool = True,
        notes: Mapping[str, JSON] | None = None,
    ) -> None:
        """Do work(item) for every shard that is not finished, and keep the arrays that it gives.

        `shards` is a number n (work gets 0 … n − 1; a larger n than before adds to the job) or a sequence of items
        (work gets each of them; the identity must tell one list from another). `executor` is None (this process, or
        joblib processes with n_jobs > 1), any concurrent.futures.Executor, a dask.distributed Client, the address of
        a Dask scheduler, or "dask" for a cluster of n_jobs processes on this machine. `work` is sent with each shard
        (with Dask once a worker): let it hold the path of large inputs, not the inputs. The same work gives the same
        arrays with any executor and after any number of interruptions.
        """
        count = shards if isinstance(shards, int) else len(shards)
        if not 0 <= count <= MOST_SHARDS:
            raise InputError(f"shards: expected a number from 0 to {MOST_SHARDS:,}, or a sequence, got {count}")
        items = range(count) if isinstance(shards, int) else shards
        self._about |= {"shards": max(count, len(self)), "notes": {**self.notes, **(notes or {})}}
        with _transaction(self.path, WRITE) as database:
            database.execute("UPDATE about SET json = ?", (json.dumps(self._about),))
        wrong = self.verify()
        for i, why in wrong.items():
            log.warning("%s; shard %d is done again", why, i)
        todo = [i for i in sorted({*self.missing(), *wrong}) if i < count]
        with runs.progress(count, self.path.name, show=progress, done=count - len(todo)) as advance:

            def keep(i: int, data: bytes) -> None:
                advance()
                self._write(i, data)

            chosen = {i: items[i] for i in todo}
            spread(_Encoding(work), chosen, keep, kept=self._kept, executor=executor, n_jobs=n_jobs)

    def keep(self, name: str, make: Callable[[], tuple[Arrays, JSON]]) -> tuple[Arrays, JSON]:
        """The arrays and JSON kept under a name; else they are made and kept. What is damaged is made again."""
        with contextlib.suppress(FileError):
            kept = self._read(name)
            self.resumed.append(name)
            return kept
        made = make()
        self._write(name, checkpoint.encode(*made))
        return made

    def _read(self, name: Name) -> tuple[Arrays, JSON]:
        where = f"{self.path / FILE}, shard {name}"
        with _transaction(self.path) as database:
            row = database.execute("SELECT data FROM shards WHERE name = ?", (name,)).fetchone()
        if row is None:
            raise FileError(f"{where} is missing")
        if not isinstance(row[0], bytes):
            raise FileError(f"{where} is damaged: it is no blob")
        return checkpoint.decode(row[0], where)

    def _write(self, name: Name, data: bytes) -> None:
        with _transaction(self.path, WRITE) as database:
            database.execute("INSERT OR REPLACE INTO shards VALUES (?, ?, ?)", (name, time.time(), data))

    def _refuse(self, identity: dict[str, JSON], on_change: str) -> None:
        difference = runs.differing(self.identity, identity)
        if on_change == "refuse" or self.identity.get("what") != identity.get("what"):
            raise InputError(
                f"out: {self.path} was made by another job ({difference}); use another folder or resume=False"
            )
        log.warning("%s: its inputs have changed (%s); it begins again", self.path, difference)

    def _kept(self) -> str:
        return f"{len(self) - len(self.missing())} of {len(self)} shards are finished and kept in {self.path}"


def remove(folder: Path) -> None:
    """Delete the record of a job with its shards, and the folder if nothing else is in it."""
    for name in (FILE, "process.json", runs.LOCK):
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # something else lies there
        folder.rmdir()


# ── one process at a time ─────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Hold `folder` for this process; a second holder gets an InputError. The lock dies with the process."""
    folder = Path(folder)
    if not runs.lock(folder):
        raise InputError(f"out: {folder} is in use by this process; wait for it, or use another folder")
    try:
        runs.sign(folder)
        yield
    finally:
        (folder / "process.json").unlink(missing_ok=True)
        runs.release(folder)


@contextlib.contextmanager
def _transaction(folder: Path, begin: str = "BEGIN") -> Iterator[sqlite3.Connection]:
    """The record of a job, open for one transaction, which an error undoes.

    SQLite's default journal is kept: it needs no shared memory, so that a network file system will do.
    """
    file = folder / FILE
    mode = "rw" if begin == "BEGIN" else "rwc"  # a reader makes no file, but may have to undo what a killed one began
    where = f"{file.absolute().as_uri()}?mode={mode}"
    try:
        with contextlib.closing(sqlite3.connect(where, PATIENCE, isolation_level=None, uri=True)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            database.execute(begin)
            yield database
            database.execute("COMMIT")
    except sqlite3.Error as error:
        why = (
            "cannot be written: the disk is full"
            if "full" in str(error)
            else "is damaged, or cannot be read or written"
        )
        raise FileError(f"{file} {why}: {error}") from None


def _record(folder: Path) -> dict[str, Any] | None:
    """What the file of a job says about it; None where there is none, or one that was killed before it was begun."""
    if not (folder / FILE).is_file():
        return None
    with _transaction(folder) as database:
        # A stranger's file may have views and triggers in it; only tables that are ours to the letter are read.
        schema = database.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name").fetchall()
        if not schema:
            return None
        ours = schema == [(sql,) for sql in _SCHEMA]
        rows = database.execute("SELECT json FROM about LIMIT 2").fetchall() if ours else []
    return runs.parse_json(str(rows[0][0]), str(folder / FILE)) if len(rows) == 1 else {}


# ── who computes ──────────────────────────────────────────────────────────────────────────────────────────────────


def spread(
    work: Callable[[Any], Any],
    items: Mapping[int, Any],
    keep: Callable[[int, Any], None],
    *,
    kept: Callable[[], str],
    what: Callable[[int], str] = "shard {}".format,
    executor: Any = None,
    n_jobs: int = 1,
) -> None:
    """Do work(item) for every numbered item, here or on workers, and keep(number, what it gave) here, as it comes.

    `executor` and `n_jobs` are those of `Job.run`. What a worker had that died is given to another. Items that fail are
    told of at the end in a ShardError, by `what` and with what is `kept`; where nearly all fail the rest is not tried.
    """
    failures: dict[int, _Outcome] = {}
    try:
        with contextlib.closing(_outcomes(work, items, executor, n_jobs)) as outcomes:
            for outcome in outcomes:
                if outcome.error is None:
                    keep(outcome.index, outcome.value)
                else:
                    failures[outcome.index] = outcome
                if len(failures) >= MOST_FAILURES:
                    break
    except BrokenExecutor as broken:
        why = f"a worker process died, killed or out of memory ({(str(broken).splitlines() or [''])[0]})"
        raise ShardError(f"{why}; {kept()}: run again to resume", {}) from broken
    if failures:
        first = min(failures)
        who = what(first) if len(failures) == 1 else f"{len(failures)} shards failed, the first is {what(first)}"
        said = f"{who}: {failures[first].error}; {kept()}: mend the cause and run again"
        error = ShardError(said, {i: str(failures[i].error) for i in sorted(failures)})
        error.add_note(failures[first].trace)  # the worker's own
        raise error


@dataclass(frozen=True)
class _Outcome:
    """What became of a shard: what its work gave, or an error with its trace."""

    index: int
    value: Any = None
    error: str | None = None
    trace: str = ""


_Outcomes = Generator[_Outcome, None, None]


@dataclass(frozen=True)
class _Encoding:
    """The arrays that `work` gives as bytes, made where they are computed."""

    work: Work

    def __call__(self, item: Any) -> bytes:
        return checkpoint.encode(self.work(item), {})


def _compute(work: Callable[[Any], Any], index: int, item: Any) -> _Outcome:
    """Do one shard, here or in a worker."""
    try:
        return _Outcome(index, work(item))
    except Exception as error:  # one shard's failure is told at the end and must not take the others with it
        return _Outcome(index, None, f"{type(error).__name__}: {error}", f"{platform.node()}: {traceback.format_exc()}")


def check_executor(executor: Any, n_jobs: int) -> None:
    """An InputError or MissingExtra if `Job.run` could not take these, before anything is written."""
    count_jobs(n_jobs)
    if executor is None or isinstance(executor, Executor):
        return
    address = isinstance(executor, str) and (executor == "dask" or "://" in executor)
    if not address and not type(executor).__module__.startswith("distributed"):
        raise InputError(
            "executor: expected None, a concurrent.futures.Executor, a dask.distributed.Client, 'dask' or the address "
            f"of a scheduler (tcp://…), got {executor!r}"
        )
    _distributed()


def count_jobs(n_jobs: int) -> int:
    """The number of processes; −1 is one a core, −2 one fewer, as in scikit-learn."""
    if not isinstance(n_jobs, int) or n_jobs == 0:
        raise InputError(f"n_jobs: expected a number of processes, or −1 for one a core, got {n_jobs!r}")
    return n_jobs if n_jobs > 0 else max(1, int(cpu_count()) + 1 + n_jobs)


def _outcomes(work: Callable[[Any], Any], items: Mapping[int, Any], executor: Any, n_jobs: int) -> _Outcomes:
    """The outcomes of all items, as they come; what a dead process of joblib's had is given to new ones."""
    check_executor(executor, n_jobs)
    if executor is None and count_jobs(n_jobs) == 1:
        yield from (_compute(work, i, item) for i, item in items.items())
        return
    left, deaths = dict(items), 0
    while left:
        try:
            yield from _on_workers(work, left, executor, count_jobs(n_jobs))
        except BrokenExecutor:
            deaths += 1
            if executor is not None or deaths > MOST_DEATHS:
                raise
            log.warning("a worker process died, killed or out of memory; what it had is given to another")


def _on_workers(work: Callable[[Any], Any], left: dict[int, Any], executor: Any, n_jobs: int) -> _Outcomes:
    """The outcomes of what is left, each taken from `left`."""
    futures: dict[Future[_Outcome], int] = {}
    with _pool(executor, n_jobs, work) as (pool, sent):
        try:
            for i, item in list(left.items()):
                with _sending():
                    futures[pool.submit(_compute, sent, i, item)] = i
                yield from _take(futures, AT_ONCE, left)
            yield from _take(futures, 0, left)
        finally:
            if executor is not None:  # a pool of our own is stopped, and its thread stumbles over a cancelled future
                for future in futures:
                    future.cancel()


def _take(futures: dict[Future[_Outcome], int], most: int, left: dict[int, Any]) -> _Outcomes:
    """The outcomes of those that are done; waits until at most `most` are not."""
    while futures:
        done, _ = wait(futures, None if len(futures) > most else 0, FIRST_COMPLETED)
        for future in done:
            outcome = _result(future, futures.pop(future))
            del left[outcome.index]
            yield outcome
        if not done:
            return


@contextlib.contextmanager
def _pool(executor: Any, n_jobs: int, work: Any) -> Iterator[tuple[Executor, Any]]:
    """Any kind of executor as a concurrent.futures one, and what it takes for the work. What is opened is closed."""
    if isinstance(executor, Executor):
        yield executor, work
    elif executor is None:
        # joblib's workers take closures; each gets its share of cores. The pool is this job's own: a job that met
        # workers of joblib's common pool while they ended (they do when idle for 10 s) waited for them for ever.
        threads = str(max(1, int(cpu_count()) // n_jobs))
        limits = {f"{name}_NUM_THREADS": threads for name in ("OMP", "MKL", "OPENBLAS", "NUMBA")}
        pool = ProcessPoolExecutor(n_jobs, timeout=60, env=limits)
        with warnings.catch_warnings():
            # said in the pool's own thread, where a warning that is an error would end the pool without a word
            warnings.filterwarnings("ignore", "A worker stopped while some jobs were given")
            try:
                yield pool, work
            finally:
                pool.shutdown(kill_workers=True)
    else:
        own = _connect(executor, n_jobs) if isinstance(executor, str) else contextlib.nullcontext(executor)
        with own as client, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")  # that it is large is why it is sent but once
            with _sending():  # as a task: workers hand its result on, and make it again where a dead one had it alone
                sent = client.submit(_itself, work, pure=False)
            yield client.get_executor(pure=False), sent


def _itself(work: Any) -> Any:
    return work


@contextlib.contextmanager
def _sending() -> Iterator[None]:
    try:
        yield
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise InputError(f"work: cannot be sent to another process: {error}") from error


@contextlib.contextmanager
def _connect(executor: str, n_jobs: int) -> Iterator[Any]:
    """A client of a Dask cluster: one of its own on this machine, or the one at an address."""
    local = {"n_workers": n_jobs, "threads_per_worker": 1, "dashboard_address": ":0"}
    try:
        client = _distributed().Client(**(local if executor == "dask" else {"address": executor, "timeout": 10}))
    except (OSError, ValueError) as error:
        raise InputError(f"executor: no Dask scheduler answers at {executor}: {error}") from None
    with client:
        yield client


def _distributed() -> Any:
    try:
        return importlib.import_module("distributed")
    except ImportError:
        raise MissingExtra("dask.distributed", "cluster") from None


def _result(future: Future[_Outcome], index: int) -> _Outcome:
    """A future's outcome; a shard that the executor gave up (Dask: its worker died again and again) has one, too."""
    try:
        return future.result()
    except BrokenExecutor:
        raise
    except pickle.PicklingError as error:
        raise InputError(f"work: cannot be sent to another process: {error}") from error
    except Exception as error:
        return _Outcome(index, None, f"{type(error).__name__}: {error}", traceback.format_exc())
