"""Map a function over numbered shards: in this process, in joblib processes or on a Dask cluster.

    out/
      manifest.json               what the job is (`key`), how many shards it has, versions
      shard-000000.safetensors    what `work` gave for shard 0, with the job's digest and a checksum inside
      .lock                       held by the one process that runs the job

A shard is finished when its file is there: files are written to a temporary name, synced and renamed, so whatever is
killed, and whenever, what is finished stays finished and the next `run` goes on from there.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import json
import logging
import os
import pickle
import socket
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from likewise import media
from likewise.errors import FileError, InputError, LikewiseError, MissingExtra
from likewise.store import checkpoint
from likewise.store import run as runs
from likewise.store.checkpoint import JSON, Arrays

Shard = JSON
"""What `work` is given: a number, or any JSON value that says which part of the job it is."""

FORMAT = 1
MOST_SHARDS = 1_000_000
"""A job, or a manifest, of more shards than this is refused."""
MOST_FAILURES = 20
"""After this many failed shards the rest is not tried: the fault is in the work, not in a shard."""

log = logging.getLogger(__name__)


class ShardError(LikewiseError):
    """Some shards could not be done. `failures` says why, by shard number; what is finished stays finished."""

    def __init__(self, message: str, failures: Mapping[int, str]) -> None:
        super().__init__(message)
        self.failures = dict(failures)


def run(
    work: Callable[[Any], Mapping[str, Any]],
    shards: Sequence[Shard] | int,
    out: str | Path,
    *,
    executor: Any = None,
    n_jobs: int = 1,
    resume: bool = True,
    progress: bool = True,
    key: Mapping[str, JSON] = MappingProxyType({}),
) -> ShardStore:
    """Do work(shard) for every shard, and keep the arrays that it gives in the folder `out`.

    `shards` is a number n (work gets 0 … n − 1) or a sequence of JSON values (work gets each of them). `executor` is
    None (this process, or joblib processes with n_jobs > 1), any concurrent.futures.Executor, a dask.distributed
    Client, the address of a Dask scheduler, or "dask" for a cluster of n_jobs processes on this machine. Workers write
    the files themselves: on a cluster, `out` must lie on a file system that they share. `work` is sent with each
    shard: let it hold the path of large inputs, not the inputs.

    `key` says what the job is. A folder with another key is refused unless resume=False, which begins anew. The same
    work gives the same bytes with any executor and after any number of interruptions.
    """
    if isinstance(shards, int) and shards < 0:
        raise InputError(f"shards: expected a number ≥ 0, or a sequence, got {shards}")
    if (shards if isinstance(shards, int) else len(shards)) > MOST_SHARDS:
        raise InputError(f"shards: at most {MOST_SHARDS:,}, got more; let a shard do more")
    items = list(range(shards)) if isinstance(shards, int) else list(shards)
    check_executor(executor, n_jobs)
    store = ShardStore(Path(out), _manifest(key, items))
    with locked(store.path):
        store._begin(resume)
        todo = store._unfinished()
        task = _Task(work, store.path.absolute(), store.digest)
        with (
            runs.progress(len(store), store.path.name, show=progress, done=len(store) - len(todo)) as advance,
            contextlib.closing(_outcomes(task, [(i, items[i]) for i in todo], executor, n_jobs)) as outcomes,
        ):
            failures = _failures(outcomes, store, advance)
        if failures:
            raise _failed(store, failures)
    return store


def check_executor(executor: Any, n_jobs: int) -> None:
    """An InputError or MissingExtra if `run` could not take these, before anything is written."""
    _jobs(n_jobs)
    if executor is None or isinstance(executor, Executor):
        return
    address = isinstance(executor, str) and (executor == "dask" or "://" in executor)
    if not address and not type(executor).__module__.startswith("distributed"):
        raise InputError(
            "executor: expected None, a concurrent.futures.Executor, a dask.distributed.Client, 'dask' or the address "
            f"of a scheduler (tcp://…), got {executor!r}"
        )
    _distributed()


class ShardStore:
    """The finished shards of a job, to be read: `ShardStore.open(path)`, `store.load(i)`, `for arrays in store`."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path, self.manifest = path, manifest

    @classmethod
    def open(cls, path: str | Path) -> ShardStore:
        """The store in a folder that `run` has written to."""
        path = Path(path)
        manifest = runs.read_json(path / "manifest.json")
        if manifest.get("format") != FORMAT or not _well_formed(manifest):
            raise FileError(f"{path / 'manifest.json'} is not the manifest of a shard store of format {FORMAT}")
        return cls(path, manifest)

    @property
    def key(self) -> dict[str, JSON]:
        """What the job is."""
        return dict(self.manifest["key"])

    @property
    def digest(self) -> str:
        """The sha256 of the key and of the list of shards: stands in every shard's header."""
        return str(self.manifest["digest"])

    def __len__(self) -> int:
        """The number of shards of the job, finished or not."""
        return int(self.manifest["shards"])

    def file(self, i: int) -> Path:
        """Where shard i is, or will be."""
        return self.path / _file(i)

    def load(self, i: int) -> Arrays:
        """The arrays of shard i, checked against their checksum."""
        if not 0 <= i < len(self):
            raise InputError(f"i: expected a shard from 0 to {len(self) - 1}, got {i}")
        return _load(self.file(i), self.digest, i)

    def __iter__(self) -> Iterator[Arrays]:
        """The arrays of every shard, in order; one that is missing is a FileError."""
        return (self.load(i) for i in range(len(self)))

    def missing(self) -> list[int]:
        """The shards that have no file."""
        there = self._names()
        return [i for i in range(len(self)) if _file(i) not in there]

    def _names(self) -> set[str]:
        """What lies in the folder: asked once, not once a shard."""
        return {entry.name for entry in os.scandir(self.path)} if self.path.is_dir() else set()

    def verify(self) -> dict[int, str]:
        """Read every shard that has a file; what is wrong, by shard number. Empty when all is well."""
        wrong, there = {}, self._names()
        for i in range(len(self)):
            if _file(i) in there:
                try:
                    self.load(i)
                except FileError as error:
                    wrong[i] = str(error)
        return wrong

    def __repr__(self) -> str:
        return f"ShardStore({str(self.path)!r}, {len(self) - len(self.missing())} of {len(self)} shards)"

    def _begin(self, resume: bool) -> None:
        """Make the folder this job's own: clear away what dead processes left, and another job's work if told to."""
        for pattern in (".shard-*.tmp.safetensors", ".manifest.*.tmp.json"):
            _remove(self.path.glob(pattern))
        file = self.path / "manifest.json"
        if file.exists() and resume:
            old = ShardStore.open(self.path)
            if old.digest != self.digest:
                difference = runs.differing(old._described(), self._described())
                raise InputError(
                    f"out: {self.path} was made by another job ({difference}); use another folder or resume=False"
                )
            changed = runs.differing(old.manifest["versions"], self.manifest["versions"])
            if changed:
                log.warning("%s was begun with other versions (%s) and is gone on with", self.path, changed)
            return
        if not resume:
            _remove(self.path.glob("shard-*.safetensors"))
        media.write_text(file, json.dumps(self.manifest, ensure_ascii=False, indent=2, sort_keys=True) + "\n")

    def _kept(self) -> str:
        return f"{len(self) - len(self.missing())} of {len(self)} shards are finished and kept in {self.path}"

    def _described(self) -> dict[str, JSON]:
        return {**self.key, "shards": len(self), "list of shards": self.manifest["items"]}

    def _unfinished(self) -> list[int]:
        """The shards still to be done; a damaged one is named in the log, removed, and among them."""
        wrong = self.verify()
        for i, why in wrong.items():
            log.warning("%s; shard %d is done again", why, i)
            self.file(i).unlink(missing_ok=True)
        return self.missing()


@contextlib.contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Hold `folder` for this process; a second holder gets an InputError. The lock dies with the process."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, inode = _taken(folder)
    except OSError as error:
        raise FileError(f"out: {folder} cannot be written to: {error.strerror}") from None
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode())
        yield
    finally:
        with _GUARD:
            _HELD.discard(inode)
            os.close(descriptor)


def holder(folder: str | Path) -> int | None:
    """The number of the process that holds a folder; None where none does, or one on another machine."""
    path = Path(folder) / ".lock"
    try:
        with _GUARD:
            if _inode(os.stat(path)) in _HELD:
                return os.getpid()
            descriptor = os.open(path, os.O_RDWR)
            try:
                said = [] if _lock(descriptor) else os.read(descriptor, 200).decode(errors="replace").split()
            finally:
                os.close(descriptor)
    except OSError:
        return None
    ours = len(said) == 2 and said[1] == socket.gethostname() and said[0].isascii() and said[0].isdigit()
    return int(said[0]) if ours and int(said[0]) > 1 else None


_HELD: set[tuple[int, int]] = set()
_GUARD = threading.Lock()


def _taken(folder: Path) -> tuple[int, tuple[int, int]]:
    """The locked file of a folder, open, and which file it is.

    POSIX locks are a process's own: among its threads, a set says who holds. It is asked before the file is opened,
    because a process that closes any descriptor of a file loses its lock on it.
    """
    path = folder / ".lock"
    with _GUARD:
        if path.exists() and _inode(os.stat(path)) in _HELD:
            raise InputError(f"out: {folder} is in use by this process; wait for it, or use another folder")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if not _lock(descriptor):
            time.sleep(0.05)  # somebody may only have asked for the holder
            if not _lock(descriptor):
                said = os.read(descriptor, 200).decode(errors="replace").split()
                os.close(descriptor)
                by = f"process {said[0]} on {said[1]}" if len(said) == 2 else "another process"
                raise InputError(f"out: {folder} is in use by {by}; wait for it, or use another folder")
        inode = _inode(os.fstat(descriptor))
        _HELD.add(inode)
        return descriptor, inode


def _inode(about: os.stat_result) -> tuple[int, int]:
    return about.st_dev, about.st_ino


def _lock(descriptor: int) -> bool:
    try:
        import fcntl
    except ImportError:  # not POSIX: only this process's own threads are kept apart
        return True
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        log.warning("this file system has no locks (%s): take care that no other process uses the folder", error)
    return True


@dataclass(frozen=True)
class _Outcome:
    """What became of a shard: nothing to say, or an error with its trace."""

    index: int
    error: str | None = None
    trace: str = ""
    host: str = ""


_Outcomes = Generator[_Outcome, None, None]


@dataclass(frozen=True)
class _Task:
    """What is sent to a worker, beside a shard."""

    work: Callable[[Any], Mapping[str, Any]]
    out: Path
    digest: str

    def __call__(self, index: int, item: Shard) -> _Outcome:
        """Do one shard, unless a worker that died later has done it already."""
        host = socket.gethostname()
        try:
            if not self._finished(index):
                arrays = self.work(item)
                self._still_ours()
                checkpoint.write(self.out / _file(index), arrays, {"job": self.digest, "shard": index})
        except Exception as error:  # one shard's failure is told at the end and must not take the others with it
            return _Outcome(index, f"{type(error).__name__}: {error}", traceback.format_exc(), host)
        return _Outcome(index, host=host)

    def _finished(self, index: int) -> bool:
        try:
            _load(self.out / _file(index), self.digest, index)
        except FileError:
            return False
        return True

    def _still_ours(self) -> None:
        """A worker may outlive its job; it must not write into the next one's folder."""
        if runs.read_json(self.out / "manifest.json").get("digest") != self.digest:
            raise FileError(f"{self.out} has been taken over by another job")


def _outcomes(task: _Task, todo: list[tuple[int, Shard]], executor: Any, n_jobs: int) -> _Outcomes:
    """The outcomes of all shards, as they come."""
    n_jobs = _jobs(n_jobs)
    if not todo:
        return
    with _pool(executor, n_jobs) as pool:
        if pool is not None:
            yield from _futures(task, todo, pool)
        elif n_jobs == 1:
            yield from (task(i, item) for i, item in todo)
        else:
            yield from _joblib(task, todo, n_jobs)


@contextlib.contextmanager
def _pool(executor: Any, n_jobs: int) -> Iterator[Executor | None]:
    """Any kind of executor as a concurrent.futures one; None for none. What is opened here is closed here."""
    if executor is None or isinstance(executor, Executor):
        yield executor
        return
    distributed = _distributed()
    if executor == "dask":
        cluster = distributed.LocalCluster(n_workers=n_jobs, threads_per_worker=1, dashboard_address=":0")
        with cluster, distributed.Client(cluster) as client:
            yield client.get_executor(pure=False)
    elif isinstance(executor, str):
        with _connected(distributed, executor) as client:
            yield client.get_executor(pure=False)
    else:
        yield executor.get_executor(pure=False)


def _distributed() -> Any:
    try:
        return importlib.import_module("distributed")
    except ImportError:
        raise MissingExtra("dask.distributed", "cluster") from None


def _connected(distributed: Any, address: str) -> Any:
    try:
        return distributed.Client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise InputError(f"executor: no Dask scheduler answers at {address}: {error}") from None


def _jobs(n_jobs: int) -> int:
    """The number of processes; −1 is one a core, −2 one fewer, as in scikit-learn."""
    if not isinstance(n_jobs, int) or n_jobs == 0:
        raise InputError(f"n_jobs: expected a number of processes, or −1 for one a core, got {n_jobs!r}")
    if n_jobs > 0:
        return n_jobs
    from joblib import cpu_count

    return max(1, int(cpu_count()) + 1 + n_jobs)


def _futures(task: _Task, todo: list[tuple[int, Shard]], pool: Executor) -> _Outcomes:
    futures: dict[Future[_Outcome], int] = {}
    try:
        for i, item in todo:
            futures[_submit(pool, task, i, item)] = i
        for future in as_completed(futures):
            yield _result(future, futures[future])
    finally:
        for future in futures:
            future.cancel()


def _submit(pool: Executor, task: _Task, index: int, item: Shard) -> Future[_Outcome]:
    try:
        return pool.submit(task, index, item)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise InputError(f"work: cannot be sent to another process: {error}") from error


def _result(future: Future[_Outcome], index: int) -> _Outcome:
    """A future's outcome; a shard that the executor gave up (Dask: its worker died again and again) has one, too."""
    try:
        return future.result()
    except BrokenExecutor:
        raise
    except Exception as error:
        return _Outcome(index, f"{type(error).__name__}: {error}", traceback.format_exc())


def _joblib(task: _Task, todo: list[tuple[int, Shard]], n_jobs: int) -> _Outcomes:
    from joblib import Parallel, delayed

    parallel = Parallel(n_jobs=n_jobs, return_as="generator_unordered", pre_dispatch="2*n_jobs")
    try:
        yield from parallel(delayed(task)(i, item) for i, item in todo)
    except pickle.PicklingError as error:
        raise InputError(f"work: cannot be sent to another process: {error}") from error


def _failures(outcomes: Iterable[_Outcome], store: ShardStore, advance: Callable[[], None]) -> dict[int, _Outcome]:
    """The outcomes that are failures; stops early where nearly everything fails."""
    failures: dict[int, _Outcome] = {}
    try:
        for outcome in outcomes:
            advance()
            if outcome.error is None and not store.file(outcome.index).exists():
                outcome = _unseen(outcome, store.path)
            if outcome.error is not None:
                failures[outcome.index] = outcome
            if len(failures) >= MOST_FAILURES:
                break
    except BrokenExecutor as error:
        why = f"a worker process died, killed or out of memory ({_first_line(error)})"
        raise ShardError(f"{why}; {store._kept()}: run again to go on", {}) from error
    return failures


def _unseen(outcome: _Outcome, out: Path) -> _Outcome:
    by = outcome.host or "a worker"
    return _Outcome(
        outcome.index, f"{by} wrote it where it cannot be seen; {out} must be on a file system that all share"
    )


def _failed(store: ShardStore, failures: Mapping[int, _Outcome]) -> ShardError:
    """One sentence on what failed, first of all the lowest shard; the worker's own trace goes along as a note."""
    first = min(failures)
    who = f"shard {first}" if len(failures) == 1 else f"{len(failures)} shards failed, the first is shard {first}"
    error = ShardError(
        f"{who}: {failures[first].error}; {store._kept()}: mend the cause and run again",
        {i: str(outcome.error) for i, outcome in sorted(failures.items())},
    )
    if failures[first].trace:
        error.add_note(failures[first].trace)
    return error


def _manifest(key: Mapping[str, JSON], items: Sequence[Shard]) -> dict[str, Any]:
    described = json.loads(checkpoint.canonical(dict(key), "key"))
    listed = hashlib.sha256(checkpoint.canonical(list(items), "shards").encode()).hexdigest()
    job = checkpoint.canonical({"key": described, "items": listed}, "key")
    return {
        "format": FORMAT,
        "key": described,
        "shards": len(items),
        "items": listed,
        "digest": hashlib.sha256(job.encode()).hexdigest(),
        "versions": runs.versions(),
    }


def _well_formed(manifest: Mapping[str, Any]) -> bool:
    kinds = {"key": dict, "shards": int, "items": str, "digest": str, "versions": dict}
    if not all(isinstance(manifest.get(name), kind) for name, kind in kinds.items()):
        return False
    return not isinstance(manifest["shards"], bool) and 0 <= manifest["shards"] <= MOST_SHARDS


def _file(i: int) -> str:
    return f"shard-{i:06d}.safetensors"


def _load(path: Path, digest: str, index: int) -> Arrays:
    arrays, header = checkpoint.read(path)
    if header.get("job") != digest:
        raise FileError(f"{path} belongs to another job")
    if header.get("shard") != index:
        raise FileError(f"{path} is shard {str(header.get('shard'))[:20]} under another's name")
    return arrays


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
