"""Photos indexed by other processes: the same index as one process makes, whoever dies."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from likewise.errors import FileError, InputError, ShardError
from likewise.search import Collection, collection
from likewise.store import checkpoint
from likewise.store.index import Record
from worlds.galleries import Patches, album, detect_once, paint

Kept = dict[str, tuple[Record, bytes, bytes]]


class Mortal(Patches):
    """Patches whose process is killed, once, by the first picture named so; each that it takes it journals."""

    def __init__(self, folder: Path, name: str = "p2.png") -> None:
        super().__init__()
        self.folder, self.mortal = str(folder), name

    def embed(self, images: Any, *, on_error: str = "raise") -> np.ndarray:
        items = list(images)
        for item in items:
            Path(self.folder, f"{item.name.replace('/', '_')} {os.getpid()}").touch()
            if item.name.endswith(self.mortal):
                try:
                    Path(self.folder, "died").touch(exist_ok=False)
                except FileExistsError:
                    continue
                os.kill(os.getpid(), signal.SIGKILL)
        return super().embed(items, on_error=on_error)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Ten pictures and a damaged one."""
    folder = album(tmp_path / "photos", classes=2, each=5)
    (folder / "kind0" / "p9.png").write_bytes((folder / "kind0" / "p0.png").read_bytes()[:60])
    return folder


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    detect_once(monkeypatch)
    monkeypatch.setattr(collection, "BLOCK", 4)


def kept(photos: Collection) -> Kept:
    """What an index holds of each photo: record, and the bytes of vector and features."""
    assert photos.check() == []
    names = list(photos.index.names())
    rows, features = photos.index.vectors(names), photos.index.features(names)
    return {r.name: (r, rows[r.name].tobytes(), features[r.name]) for r in photos.index.records()}


@functools.cache
def alone(folder: Path, out: Path) -> Kept:
    with Collection.build(folder, out, model=Patches()) as built:
        assert len(built.report.skipped) == 1
        return kept(built)


@pytest.fixture
def expected(photos: Path, tmp_path: Path) -> Kept:
    result = alone(photos, tmp_path / "alone")
    assert len(result) == 10
    return result


@pytest.mark.parametrize("dies", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_two_processes_also_where_one_is_killed(photos: Path, expected: Kept, tmp_path: Path, dies: bool) -> None:
    journal = tmp_path / "journal"
    journal.mkdir()
    model = Mortal(journal, "p2.png" if dies else "none")
    with Collection.build(photos, tmp_path / "index", model=model, n_jobs=2) as built:
        assert kept(built) == expected
        assert [Path(s.name).name for s in built.report.skipped] == ["p9.png"]
        assert (built.report.added, built.report.updated) == (10, 0)
    seen = os.listdir(journal)
    assert ("died" in seen) == dies
    assert not [name for name in seen if name.endswith(f" {os.getpid()}")]  # this process described none


def test_add_and_update_take_workers_and_give_them_what_changed(
    photos: Path, expected: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model goes packed, and is unpacked once a process."""
    made: list[str] = []

    def unpacked(arrays: dict[str, Any], header: dict[str, Any]) -> Patches:
        made.append(header["name"])
        return Patches(header["name"], header["digest"])

    monkeypatch.setitem(checkpoint._CLASSES, "test.Patches", "worlds.galleries:Patches")
    monkeypatch.setattr(Patches, "from_state", unpacked)
    collection._unpacked.cache_clear()
    model, steps = Patches(), list[int]()
    monkeypatch.setattr(collection.runs, "progress", counting(steps))
    with ThreadPoolExecutor(2) as pool, Collection.build(photos, tmp_path / "i", model=model, executor=pool) as built:
        assert kept(built) == expected
        assert (model.seen, made, len(steps)) == ([], ["patches"], 11)
        paint(photos / "kind0" / "p0.png", 77)
        report = built.update(executor=pool)
        assert (report.added, report.updated, report.unchanged, len(report.skipped)) == (0, 1, 9, 1)
        paint(photos / "kind0" / "p7.png", 78)
        assert built.add([photos / "kind0" / "p7.png"], executor=pool).added == 1
        assert [name for name, row in kept(built).items() if expected.get(name) != row] == [
            "kind0/p0.png",
            "kind0/p7.png",
        ]
        assert (model.seen, made) == ([], ["patches"])


def counting(steps: list[int]) -> Any:
    @contextlib.contextmanager
    def progress(total: int, what: str, *, show: bool = True) -> Iterator[Callable[[], None]]:
        yield lambda: steps.append(total)

    return progress


class Broken(Patches):
    def embed(self, images: Any, *, on_error: str = "raise") -> np.ndarray:
        items = list(images)
        if any(item.name.endswith("p4.png") for item in items):
            raise MemoryError("no room")
        return super().embed(items, on_error=on_error)


def test_an_error_on_a_worker_is_named_and_the_rest_is_kept(photos: Path, expected: Kept, tmp_path: Path) -> None:
    said = r"the photos from .*MemoryError: no room; \d photos are in the index .*: mend the cause and run again"
    with ThreadPoolExecutor(2) as pool:
        with pytest.raises(ShardError, match=said):
            Collection.build(photos, tmp_path / "i", model=Broken(), executor=pool)
        with Collection.open(tmp_path / "i", Patches()) as left:
            before = kept(left)
        assert 0 < len(before) < 10
        assert before.items() <= expected.items()
        with Collection.build(photos, tmp_path / "i", model=Patches(), executor=pool) as built:
            assert built.report.unchanged == len(before)
            assert kept(built) == expected


def test_a_worker_that_does_not_see_the_photos_is_no_damaged_photo(photos: Path) -> None:
    block = [(photos / "away" / f"{i}.jpg", Record(f"{i}.jpg", 1, 1)) for i in range(3)]
    with pytest.raises(FileError, match=r"0\.jpg is not there on .*: workers must see the photos"):
        collection._Describing(Patches())(block)


def test_wrong_executors_are_refused_before_anything_is_written(photos: Path, tmp_path: Path) -> None:
    for keywords, said in (({"executor": "spark"}, "executor: expected"), ({"n_jobs": 0}, "n_jobs: expected")):
        with pytest.raises(InputError, match=said):
            Collection.build(photos, tmp_path / "i", model=Patches(), **keywords)
    assert not (tmp_path / "i").exists()


CHILD = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from likewise.search import Collection, collection
from worlds.galleries import Patches

class Slow(Patches):
    def embed(self, images, **how):
        time.sleep(0.2)
        return super().embed(images, **how)

collection.BLOCK = 2
with ThreadPoolExecutor(1) as pool:
    Collection.build(sys.argv[1], sys.argv[2], model=Slow(), executor=pool)
"""


def test_the_process_that_writes_is_killed_and_runs_again(photos: Path, expected: Kept, tmp_path: Path) -> None:
    out = tmp_path / "index"
    words = [sys.executable, "-c", CHILD, str(photos), str(out)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(words, env=environment) as child:
        while child.poll() is None and not (Collection.exists(out) and in_it(out)):
            time.sleep(0.01)
        child.kill()
    with Collection.open(out, Patches()) as left:
        before = kept(left)
    assert 0 < len(before) < 10
    assert before.items() <= expected.items()
    with ThreadPoolExecutor(2) as pool, Collection.build(photos, out, model=Patches(), executor=pool) as built:
        assert (built.report.added, built.report.unchanged) == (10 - len(before), len(before))
        assert kept(built) == expected


def in_it(out: Path) -> int:
    with Collection.open(out) as there:
        return len(there)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_dask_worker_that_is_killed_loses_nothing(photos: Path, expected: Kept, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    (tmp_path / "journal").mkdir()
    quiet = {"dashboard_address": ":0", "silence_logs": logging.CRITICAL}
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, **quiet) as cluster,
        distributed.Client(cluster) as client,
    ):
        model = Mortal(tmp_path / "journal")
        with Collection.build(photos, tmp_path / "index", model=model, executor=client) as built:
            assert kept(built) == expected
        assert (tmp_path / "journal" / "died").exists()
        with Collection.build(photos, tmp_path / "again", model=Patches(), executor=cluster.scheduler_address) as again:
            assert kept(again) == expected
