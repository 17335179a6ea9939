"""Commands that are killed at every event of the file system, and run again: they come to what they would have.

    python -m tests.worlds.killed index /tmp/place 40 20

One process imports everything and forks for every run, so that a run costs what it does and not what it imports. The
n-th event (an open for writing, a rename, a removal, a write, an fsync, a statement of SQLite) kills the run with
SIGKILL before it happens; others are killed at a random time. Each is then run again to its end.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.worlds.galleries import Patches, paint
from tests.worlds.shapes import stripes

import likewise as lw
from likewise import bounded, media
from likewise.cli import main
from likewise.distributions import Bank, Generator, Normal, harvest
from likewise.images import training
from likewise.images.config import Config
from likewise.images.embedding import embed_folder
from likewise.images.training import train
from likewise.pixels.features import Features
from likewise.search import Collection, local
from likewise.store.run import Run

SMALL = Config(
    tasks="disc", backbone="convnet", size=24, shortest=24, dim=8, classes=2, per_class=2, steps=3, evaluate_every=2,
    workers=1, save_every=0.0, validation=0.25,
)  # fmt: skip
FIXED = ("--rho0", "0.1", "--rhot", "0.1", "--json")
EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "sqlite3.connect"}


def twice(z: Any) -> Any:
    return z * 2


def index(place: Path) -> bytes:
    with Collection.build(place / "photos", place / "index", model=Patches()) as collection:
        assert collection.check() == []
        return b"".join(
            row.tobytes() for _, row in sorted(collection.index.vectors([*collection.index.names()]).items())
        )


def embed(place: Path) -> bytes:
    return bytes(embed_folder(place / "photos", place / "rows.npz", Patches(), chunk=2).rows.tobytes())


def harvested(place: Path) -> bytes:
    harvest(Generator(twice, Normal(3), name="twice"), 8, out=place / "bank", shard_size=2, progress=False)
    return bytes(np.ascontiguousarray(Bank.open(place / "bank").latents).tobytes())


def distances(place: Path) -> bytes:
    with np.load(place / "sets.npz") as sets:
        lw.sets.distance_matrix(list(sets.values()), out=place / "D", block=3, progress=False)
    return bytes(np.load(place / "D" / "distances.npy").tobytes())


def fit(place: Path) -> bytes:
    os.chdir(place)
    os.environ["MPLBACKEND"] = "agg"
    words, whole = ["sets", "fit", "labelled.npz", "--out", "m.safetensors", *FIXED], Path("m.safetensors").exists()
    code = main(words)
    if code == 2 and whole:  # a model that is there is overwritten where that is said
        code = main([*words, "--overwrite"])
    assert code == 0
    return Path("m.safetensors").read_bytes()


def trained(place: Path) -> bytes:
    out = place / "run"
    if not (out / "result.json").exists():
        train(stripes(4, 4), SMALL, out=out, resume=True)
        steps = [m["step"] for m in Run.open(out).metrics() if "loss" in m]
        assert steps == [0, 1, 2], steps
    return (out / training.MODEL).read_bytes()


WORK: dict[str, Callable[[Path], bytes]] = {
    "index": index, "embed": embed, "harvest": harvested, "distances": distances, "sets fit": fit,
    "images train": trained,
}  # fmt: skip


def prepare(place: Path) -> None:
    """What the commands read, and a file of somebody's that is in none of their records."""
    for i in range(5):
        paint(place / "photos" / f"{i}.png", i)
    rng = np.random.default_rng(0)
    np.savez(place / "sets.npz", **{f"s{i}": rng.normal(size=(3, 2)) for i in range(7)})
    points, labels = rng.normal(size=(24, 2)), np.repeat([0, 1], 4)
    points[12:] += 2
    np.savez(place / "labelled.npz", points=points, offsets=np.arange(0, 25, 3), labels=labels)
    (place / "mine.tmp").write_bytes(b"somebody's")


def found_once() -> None:
    """Features of a picture without a network: the same few for each."""
    shape = torch.zeros(1, 2), torch.zeros(1), torch.nn.functional.normalize(torch.ones(1, 64))
    features = local.detect_as_is(torch.zeros(3, 32, 32), "xfeat", 8)
    assert isinstance(features, Features), shape
    local.detect_as_is = lambda *_: features  # type: ignore[assignment]


# ------------------------------------------------------------------------------------------------------------ killing


@contextlib.contextmanager
def counted(place: Path, last: int) -> Iterator[Callable[[], int]]:
    """Count the events below a place from now on; before the `last` one happens, this process is killed."""
    count = 0

    def event() -> None:
        nonlocal count
        count += 1
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def heard(name: str, args: tuple[Any, ...]) -> None:
        if name == "open" and isinstance(args[0], str) and isinstance(args[2], int):
            if args[2] & (os.O_WRONLY | os.O_RDWR) and args[0].startswith(str(place)):
                event()
        elif name in EVENTS:
            event()

    def counting(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            event()
            return real(*args, **kwargs)

        return call

    class Counting(sqlite3.Connection):
        execute = counting(sqlite3.Connection.execute)
        commit = counting(sqlite3.Connection.commit)

    sys.addaudithook(heard)
    os.fsync, os.write, os.replace = counting(os.fsync), counting(os.write), counting(os.replace)
    sqlite3.connect = functools.partial(sqlite3.connect, factory=Counting)  # type: ignore[assignment]
    yield lambda: count


def forked(place: Path, name: str, last: int = 0, after: float | None = None) -> tuple[int, str]:
    """One run in a process of its own: its exit code (negative: the signal), and what it said."""
    said, pid = place.parent / "said", os.fork()
    if not pid:
        code = 1
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            media._swept.clear()  # as in a process that has just begun
            with counted(place, last) as events:
                result = WORK[name](place)
            said.write_text(f"{hashlib.sha256(result).hexdigest()} {events()}")
            code = 0
        finally:
            os._exit(code)
    if after is not None:
        time.sleep(after)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, said.read_text() if code == 0 else ""


def left(place: Path) -> list[str]:
    """Temporary files that nobody swept."""
    return [str(p) for p in place.rglob("*") if media.TEMPORARY.fullmatch(p.name)]


def killed(name: str, root: Path, events: int, times: int) -> dict[str, Any]:
    """Kill a command so many times, and what went wrong."""
    world = root / "world"
    world.mkdir(parents=True)
    prepare(world)

    def fresh() -> Path:
        shutil.rmtree(root / "place", ignore_errors=True)
        return Path(shutil.copytree(world, root / "place"))

    WORK[name](fresh())  # what is imported and compiled when it is first needed is not every run's time
    began = time.monotonic()
    code, said = forked(fresh(), name)
    seconds = time.monotonic() - began
    assert code == 0, f"{name} itself fails"
    whole, total = said.split()
    chosen = sorted({round(i) for i in np.linspace(1, int(total), events)})
    draw, wrong = random.Random(0), list[str]()
    cuts: list[dict[str, Any]] = [{"last": n} for n in chosen]
    cuts += [{"after": draw.uniform(0, seconds)} for _ in range(times)]
    for cut in cuts:
        place = fresh()
        first, _ = forked(place, name, **cut)
        if first not in (-signal.SIGKILL, 0):
            wrong.append(f"{cut}: ended with {first}")
        code, said = forked(place, name)
        if code or said.split()[0] != whole:
            wrong.append(f"{cut}: then ended with {code}, {'with another result' if code == 0 else ''}")
        wrong += [f"{cut}: left {file}" for file in left(place)]
        if (place / "mine.tmp").read_bytes() != b"somebody's":
            wrong.append(f"{cut}: took somebody's file")
    return {"events": int(total), "kills": len(cuts), "wrong": wrong, "seconds": time.monotonic() - began}


if __name__ == "__main__":
    bounded.trust = True
    torch.set_num_threads(1)
    found_once()
    print(json.dumps(killed(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))
