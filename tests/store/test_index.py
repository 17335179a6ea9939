"""The index on disk: what a dictionary would hold, in exact order, whatever was added, removed, killed or forged."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from likewise.errors import FileError, InputError, ShapeError
from likewise.store import index as stored
from likewise.store.index import About, Candidates, Filter, Index, Record, label_of, ranked, unit

SOURCE = Path(__file__).resolve().parents[2] / "src"


def about(kind: str = "flat", dim: int = 8, recall: float = 0.99, **more: Any) -> About:
    return About("/nowhere", "m", "d", dim, kind, recall, **more)


def draw(seed: int, n: int, dim: int = 8) -> np.ndarray:
    return kept_as(np.random.default_rng(seed).normal(size=(n, dim)))


def kept_as(x: np.ndarray) -> np.ndarray:
    """Unit rows that 16 bits can tell: what an index gives back is what was put, to the bit."""
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float16).astype(np.float32)


def expected(kept: dict[str, np.ndarray], query: np.ndarray, k: int) -> list[str]:
    """The k nearest names by a sort of all pairs, in float64."""
    q = unit(query[None])[0]
    order = sorted((float(np.linalg.norm(unit(row[None])[0] - q)), name) for name, row in kept.items())
    return [name for _, name in order[:k]]


def named(index: Index, queries: np.ndarray, k: int, which: Filter = stored.EVERYTHING) -> list[list[str]]:
    return [[name for name, _ in hits] for hits in index.nearest(queries, k, which)]


def records(n: int, first: int = 0) -> list[Record]:
    return [Record(f"k{i % 5}/n{i:05d}", 1, 1) for i in range(first, first + n)]


def filled(path: Path, rows: np.ndarray, kind: str = "flat", recall: float = 0.95, **more: Any) -> Index:
    index = Index.create(path, about(kind, rows.shape[1], recall, **more))
    index.put(records(len(rows)), rows)
    index.settle()
    return index


# ----------------------------------------------------------------------------------------------------- what is kept


@given(st.lists(st.tuples(st.sampled_from("aaro"), st.integers(0, 30)), min_size=1, max_size=14), st.integers(0, 9999))
@settings(max_examples=15, deadline=None)
def test_any_history_leaves_what_a_dictionary_would_hold(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], seed: int
) -> None:
    """Put (a), remove (r) and open again (o) in any order, with rows that repeat: the same names in the same order."""
    path, rng = tmp_path_factory.mktemp("index") / "i", np.random.default_rng(seed)
    index, watcher, few = Index.create(path, about()), Index(path), draw(seed, 6)
    kept: dict[str, np.ndarray] = {}
    for what, n in steps:
        if what == "a":
            names = [f"k{i % 3}/n{i}" for i in rng.choice(40, size=n % 7 + 1, replace=False)]
            rows = few[rng.integers(6, size=len(names))]
            index.put([Record(name, 1, n) for name in names], rows)
            kept |= dict(zip(names, rows, strict=True))
        elif what == "r":
            gone = [name for i, name in enumerate(sorted(kept)) if i % 4 == n % 4]
            assert index.remove([*gone, "none"]) == len(gone)
            kept = {name: row for name, row in kept.items() if name not in gone}
        else:
            index.close()
            index = Index(path)
        named(index, few[:1], 3)  # vectors are in memory from here on
    watcher.refresh()
    for seen in (index, watcher, Index(path)):
        assert (len(seen), set(seen.names())) == (len(kept), set(kept))
        assert set(seen.stamps([*kept, "none"])) == set(kept)
        assert all((row == kept[name]).all() for name, row in seen.vectors(list(kept)).items())
        for which in (Filter(), Filter(label="k1"), Filter(under="k2")):
            taking_part = {name: row for name, row in kept.items() if which(name)}
            for k in (1, 5):
                assert named(seen, few[:2], k, which) == [expected(taking_part, q, k) for q in few[:2]]
        seen.close()
    with closing(Index(path)) as again:
        assert again.check() == []


def test_names_labels_and_filters() -> None:
    assert [label_of(n) for n in ("a/b/c.png", "c.png", "/x/c.png")] == ["b", "", "x"]
    assert [Filter(under="a")(n) for n in ("a/b/c.png", "ab/c.png", "a")] == [True, False, False]
    assert [Filter(under="")(n) for n in ("c.png", "/x/c.png")] == [True, False]
    assert Filter("/x")("/x/c.png")
    assert not Filter("a", "c")("a/b/c.png")


def test_candidates_are_fetched_until_no_tie_can_be_unseen() -> None:
    """An engine whose float32 distances cannot tell 50 equal rows apart: more is asked for until they are all seen."""
    row, names, asked = np.eye(4, dtype=np.float32)[:1], [f"n{i:02d}" for i in range(50)], list[int]()

    def fetch(queries: np.ndarray, many: int) -> list[Candidates]:
        asked.append(many)
        few = names[::-1][:many]
        return [(few, np.repeat(row, len(few), axis=0), np.inf if many >= 50 else 0.0)]

    assert [name for name, _ in ranked(row, 3, fetch)[0]] == ["n00", "n01", "n02"]
    assert asked == [11, 44, 176]
    with pytest.raises(FileError, match="not numbers"):
        ranked(row, 1, lambda q, m: [(["x"], np.full((1, 4), np.nan, np.float32), np.inf)])


def test_what_would_bar_an_index_from_being_opened_is_not_put(tmp_path: Path) -> None:
    with closing(Index.create(tmp_path / "i", about())) as index:
        with pytest.raises(ShapeError, match=r"vectors of shape \(1, 9\); expected \(1, 8\), as the index has"):
            index.put(records(1), draw(0, 1, 9))
        for name in ["../../etc/passwd", "a/../../b", "", ".", "a//b", "a/./b", "x\0y", "/../x", "a/", "//x"]:
            with pytest.raises(FileError, match="no plain path below the root"):
                index.put([Record(name, 1, 1)], draw(0, 1))
        odd = [os.fsdecode(b"gr\xfc\xdfe \"'%.png"), "..a/b../...c", "/abs/x.png", "new\nline/..\n"]
        index.put([Record(name, 1, 2**62, mark=-(2**63), digest=2**63 - 1) for name in odd], draw(0, len(odd)))
        assert set(Index(tmp_path / "i").names()) == set(odd)
        assert index.stamps(odd[:1]) == {odd[0]: (1, 2**62, -(2**63), 2**63 - 1)}


def test_a_batch_is_kept_whole_or_not_at_all(tmp_path: Path) -> None:
    with closing(filled(tmp_path / "i", draw(0, 5))) as index:
        with pytest.raises(FileError, match="UNIQUE"):
            index.put([*records(4, 3), Record("k3/n00003", 1, 1)], draw(1, 5))
        assert (len(index), len(Index(tmp_path / "i")), index.check()) == (5, 5, [])


def test_features_and_what_a_camera_told_stay_with_their_names(tmp_path: Path) -> None:
    rows, told = (
        draw(0, 4),
        [("2023-06-01T12:30:05+02:00", (47.5, -8.25)), ("", None), ("1999", (-90.0, 180.0)), ("", None)],
    )
    put = [Record(f"k/{i}", i, 2, *one) for i, one in enumerate(told)]
    data = {record.name: bytes([i]) * 40_000 for i, record in enumerate(put)}
    with closing(Index.create(tmp_path / "i", about())) as index:
        index.put(put, rows, list(data.values()))
        index.put([Record("k/5", 5, 2)], rows[:1])
        assert index.features([*data, "k/5", "none"]) == data
        again = Record("k/0", 9, 9, "2024", (1.0, 2.0))
        index.put([again], rows[:1], [b"new"])
        assert index.remove(["k/1"]) == 1
    with closing(Index(tmp_path / "i")) as index:
        assert index.features([*data, "k/5"]) == {"k/0": b"new", "k/2": data["k/2"], "k/3": data["k/3"]}
        assert list(index.records()) == [again, *put[2:], Record("k/5", 5, 2)]
        assert index.check() == []


def test_vectors_are_kept_in_16_bits(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    with closing(filled(tmp_path / "i", rows)) as index:
        kept = index.vectors([r.name for r in records(30)])
        assert {row.dtype for row in kept.values()} == {np.dtype(np.float32)}
        np.testing.assert_array_equal(np.stack([kept[r.name] for r in records(30)]), rows.astype(np.float16))
        assert named(index, rows, 1) == [[r.name] for r in records(30)]


def test_foreign_files_are_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "i").mkdir()
    (tmp_path / "i" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"out: .* holds something else \('thesis.tex'\)"):
        Index.create(tmp_path / "i", about())
    with pytest.raises(InputError, match="is a file"):
        Index.create(tmp_path / "i" / "thesis.tex", about())
    (tmp_path / "i" / "thesis.tex").rename(tmp_path / "t")
    index = filled(tmp_path / "i", draw(0, 5))
    shutil.copy(tmp_path / "t", tmp_path / "i" / "thesis.tex")
    index.drop()
    assert os.listdir(tmp_path / "i") == ["thesis.tex"]
    with pytest.raises(FileError, match="holds no index"):
        Index(tmp_path / "i")


def test_what_was_removed_leaves_the_disk(tmp_path: Path) -> None:
    with closing(filled(tmp_path / "i", draw(0, 2000, 256))) as index:
        index.remove([r.name for r in records(1900)])
    with closing(Index(tmp_path / "i")) as index:
        assert (len(index), index.check()) == (100, [])
    assert (tmp_path / "i" / stored.FILE).stat().st_size < 2000 * 256 * 2 / 4


def test_without_shared_memory_a_journal_takes_the_place_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(filled(tmp_path / "i", draw(0, 50))) as index:
        assert index._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    monkeypatch.setattr(stored, "VFS", "&vfs=unix-dotfile")  # SQLite's own file system that cannot share memory
    rows = draw(1, 50)
    with closing(filled(tmp_path / "j", rows)) as index, closing(Index(tmp_path / "j")) as reader:
        assert index._db.execute("PRAGMA journal_mode").fetchone() == ("truncate",)
        index.put(records(1, 50), rows[:1])
        assert named(index, rows[:1], 2) == [["k0/n00000", "k0/n00050"]]
        assert (len(reader), reader.check(), len(reader)) == (50, [], 51)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="needs a folder that cannot be written")
def test_a_read_only_folder_is_searched(tmp_path: Path) -> None:
    filled(tmp_path / "i", draw(0, 5)).close()
    (tmp_path / "i").chmod(0o500)
    try:
        assert named(Index(tmp_path / "i"), draw(0, 1), 1) == [["k0/n00000"]]
    finally:
        (tmp_path / "i").chmod(0o700)


# ------------------------------------------------------------------------------------------------ readers and writers


def test_a_reader_keeps_its_view_until_it_is_refreshed(tmp_path: Path) -> None:
    rows = draw(0, 100)
    with closing(filled(tmp_path / "i", rows)) as writer, closing(Index(tmp_path / "i")) as reader:
        before = reader.nearest(rows[:3], 100)
        writer.remove([r.name for r in records(60)])
        writer.put(records(10, 200), draw(1, 10))
        assert reader.nearest(rows[:3], 100) == before
        reader.refresh()
        assert len(reader) == 50
        assert reader.nearest(rows[:3], 100) == writer.nearest(rows[:3], 100)


def test_a_second_writer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "PATIENCE", 0.1)
    rows = draw(0, 5)
    filled(tmp_path / "i", rows).close()
    code = "import sqlite3, sys, time; sqlite3.connect(sys.argv[1], isolation_level=None).execute('BEGIN IMMEDIATE')\n"
    words = [sys.executable, "-c", code + "print('held', flush=True); time.sleep(60)", tmp_path / "i" / stored.FILE]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as holder, closing(Index(tmp_path / "i")) as index:
        assert holder.stdout is not None
        holder.stdout.readline()
        for change in (lambda: index.put(records(1), rows[:1]), lambda: index.remove(["k0/n00000"])):
            with pytest.raises(FileError, match="another process is writing to this index; try again"):
                change()
        assert named(index, rows[:1], 1) == [["k0/n00000"]], "reading waits for nobody"
        holder.kill()
    with closing(Index(tmp_path / "i")) as index:
        assert index.remove(["k0/n00000"]) == 1


def test_many_threads_share_an_index(tmp_path: Path) -> None:
    rows, wrong = draw(0, 200), list[BaseException]()
    with closing(filled(tmp_path / "i", rows)) as index:

        def work(n: int) -> None:
            try:
                for i in range(10):
                    index.put([Record(f"z/{n}-{i}", 1, 1)], rows[n : n + 1])
                    assert named(index, rows[n : n + 1], 1) == [[f"k{n % 5}/n{n:05d}"]]
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (wrong, len(index), index.check()) == ([], 240, [])


KILLED = """
import os, random, signal, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import numpy as np
from likewise.store.index import Index, Record

index, seed, moment = Index(Path(sys.argv[2])), int(sys.argv[3]), sys.argv[4]
draw, events = random.Random(seed), [0]
limit = draw.randrange(1, 40 if moment == "statement" else 400)

def event(*_):
    events[0] += 1
    if events[0] == limit:
        os.kill(os.getpid(), signal.SIGKILL)
    return 0

if moment == "statement":  # before a statement: BEGIN, each INSERT, COMMIT
    index._db.set_trace_callback(event)
else:  # within one, between two steps of SQLite's own machine
    index._db.set_progress_handler(event, 50)
for batch in range(1000):
    names = [f"s{seed}/b{batch}/{i}" for i in range(20)] + [f"again/{i}" for i in range(5)]
    rows = np.random.default_rng([seed, batch]).normal(size=(25, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    index.put([Record(n, seed, batch) for n in names], rows)
    print(batch, flush=True)
    if batch % 3 == 2:
        index.remove([f"s{seed}/b{batch - 1}/{i}" for i in range(20)])
        print(-batch, flush=True)
"""


def survives(path: Path, seeds: range) -> None:
    """Children are killed −9 while they write; whatever they had told of is there, and nothing is half there."""
    Index.create(path, about()).close()
    kept: set[str] = set()
    for seed in seeds:
        moment = ("statement", "step")[seed % 2]
        words = [sys.executable, "-c", textwrap.dedent(KILLED), str(SOURCE), str(path), str(seed), moment]
        run = subprocess.run(words, capture_output=True, text=True, check=False)
        assert run.returncode == -signal.SIGKILL, run.stderr
        told = [int(line) for line in run.stdout.split()]
        for batch in told:
            names = {f"s{seed}/b{abs(batch) - (batch < 0)}/{i}" for i in range(20)}
            kept = kept - names if batch < 0 else kept | names
        with closing(Index(path)) as index:
            assert index.check() == []
            names = {n for n in index.names() if not n.startswith("again/")}
            folders = {n.rpartition("/")[0] for n in names}
            assert len(names) == 20 * len(folders), "a batch is there whole or not at all"
            last = max((b for b in told if b >= 0), default=-1)
            begun = {f"s{seed}/b{last}/{i}" for i in range(20)} if last % 3 == 2 else set()
            unsure = {f"s{seed}/b{last + 1}/{i}" for i in range(20)} | {
                f"s{seed}/b{last - 1}/{i}" for i in range(20) if begun
            }
            assert kept - names <= unsure - {f"s{seed}/b{last + 1}/{i}" for i in range(20)}
            assert names - kept <= unsure
            kept = names
            stamps = set(index.stamps([f"again/{i}" for i in range(5)]).values())
            assert len(stamps) <= 1, "what is put again is the old or the new"


@pytest.mark.parametrize("moments", [2, pytest.param(40, marks=pytest.mark.slow)])
def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path: Path, moments: int) -> None:
    survives(tmp_path / "i", range(moments))


# ------------------------------------------------------------------------------------------------- approximate search


@pytest.fixture(scope="module")
def crowd() -> np.ndarray:
    """3000 rows around 60 centres in 16 dimensions."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(60, 16))[rng.integers(60, size=3000)] + 0.4 * rng.normal(size=(3000, 16))
    return kept_as(x)


@pytest.mark.slow
def test_an_index_reaches_the_recall_that_it_says(tmp_path: Path, crowd: np.ndarray) -> None:
    """Its stored figure is on rows it had not seen; fresh queries from the same crowd find as much."""
    index = filled(tmp_path / "i", crowd[:2500], "ivf")
    facts = index.describe()["index"]
    assert (index.describe()["kind"], facts["queries"], facts["rows"]) == ("ivf", 128, 2500)
    assert facts["recall"] >= 0.9
    rows = stored.unit(crowd.astype(np.float16))  # as they are kept
    kept = {r.name: row for r, row in zip(records(2500), rows, strict=False)}
    answers = Index(tmp_path / "i").nearest(crowd[2900:], 10)
    want = [expected(kept, q, 10) for q in crowd[2900:]]
    recall = np.mean([len({n for n, _ in one} & set(w)) / 10 for one, w in zip(answers, want, strict=True)])
    assert recall >= facts["recall"] - 0.05
    for one, q in zip(answers, crowd[2900:], strict=True):
        distances = [float(np.linalg.norm(kept[n] - stored.unit(q[None])[0])) for n, _ in one]
        np.testing.assert_allclose([d for _, d in one], distances, atol=1e-6)
        assert distances == sorted(distances)
    some = {name: row for name, row in kept.items() if name.startswith("k3")}
    exact = named(index, crowd[2900:2920], 10, Filter(label="k3"))
    assert exact == [expected(some, q, 10) for q in crowd[2900:2920]], "with a filter a search is exact"


def test_recall_is_tuned_on_rows_that_were_held_out(crowd: np.ndarray) -> None:
    (low, _), (high, inner) = (stored.build(crowd, np.arange(3000), r) for r in (0.5, 0.999))
    assert low.effort < high.effort
    assert low.recall < high.recall
    everything = stored.search_cache(inner, crowd[:5], 3000, 1)
    assert (np.sort(everything, axis=1) == np.arange(3000)).all(), "all rows, the held-out ones too, are in it once"


def test_rows_that_came_are_found_and_those_that_went_are_not(tmp_path: Path, crowd: np.ndarray) -> None:
    index = filled(tmp_path / "i", crowd[:2500], "ivf")
    sha = index.describe()["index"]["sha256"]
    index.put([Record("late", 1, 1)], crowd[2999:])
    index.remove(["k0/n00000"])
    index.settle()
    for seen in (index, Index(tmp_path / "i")):
        assert seen.describe()["index"]["sha256"] == sha, "a few rows are no reason to build an index again"
        assert seen.nearest(crowd[2999:], 3)[0][0] == ("late", 0.0)
        assert "k0/n00000" not in named(seen, crowd[:1], 50)[0]
        assert len(named(seen, crowd[:1], 2500)[0]) == 2500, "more than an index is tuned for: every row"
    stale = Index(tmp_path / "i")
    index.remove([r.name for r in records(2000, 1) if int(r.name[-5:]) % 3])
    hits = named(stale, crowd[3:4], 5)
    assert hits == named(index, crowd[3:4], 5), "what another process has moved is found where it is now"
    index.put(records(2000, 1), crowd[1:2001])
    index.put([Record(f"more{i}", 1, 1) for i in range(400)], crowd[2500:2900])
    index.settle()
    assert index.describe()["index"]["rows"] == 2900
    assert index.check() == []
    index.set_kind("flat", 0.95)
    index.settle()
    assert not (tmp_path / "i" / stored.CACHE).exists()
    assert Index(tmp_path / "i").describe()["kind"] == "flat"


def test_a_small_index_of_any_kind_is_flat_and_auto_turns_at_a_size(tmp_path: Path) -> None:
    assert filled(tmp_path / "i", draw(0, 200), "ivf").describe()["kind"] == "flat"
    sizes = (stored.FLAT_UNTIL, stored.FLAT_UNTIL + 1)
    assert [stored.chosen_kind("auto", n) for n in sizes] == ["flat", "ivf"]
    assert [stored.chosen_kind("ivf", n) for n in (999, 1000)] == ["flat", "ivf"]


def test_a_cache_that_is_damaged_is_told_of_and_made_again(
    tmp_path: Path, crowd: np.ndarray, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path / "i", crowd[:1500], "ivf").close()
    file = tmp_path / "i" / stored.CACHE
    file.write_bytes(b"IwSq" + os.urandom(200))
    monkeypatch.setattr(stored.faiss, "read_index", lambda *_: pytest.fail("a stranger's bytes went to FAISS"))
    index = Index(tmp_path / "i")
    assert "missing, damaged" in index.check()[0]
    kept = {r.name: row for r, row in zip(records(1500), crowd, strict=False)}
    assert named(index, crowd[:1], 10) == [expected(kept, crowd[0], 10)]
    assert "searching every vector instead" in caplog.text
    index.settle()
    monkeypatch.undo()
    again = Index(tmp_path / "i")
    assert (again.describe()["kind"], again.check()) == ("ivf", [])


@pytest.mark.parametrize("change", [{"effort": 0}, {"effort": 2**62}, {"rows": 7}, {"rows": "x"}, {"sha256": 3}])
def test_facts_that_cannot_be_do_no_harm(tmp_path: Path, crowd: np.ndarray, change: dict[str, Any]) -> None:
    filled(tmp_path / "i", crowd[:1500], "ivf").close()
    forge(tmp_path / "i", "cache", lambda facts: facts.update(change))
    assert named(Index(tmp_path / "i"), crowd[:1], 1) == [["k0/n00000"]]


def test_another_index_under_its_name_is_refused(tmp_path: Path, crowd: np.ndarray) -> None:
    index = filled(tmp_path / "i", crowd[:1500], "ivf")
    flat = faiss.IndexIDMap2(faiss.IndexFlatL2(16))
    flat.add_with_ids(crowd[:1500], np.arange(1500))
    faiss.write_index(flat, str(tmp_path / "i" / stored.CACHE))
    forge(tmp_path / "i", "cache", lambda f: f.update(sha256=stored._sha256(tmp_path / "i" / stored.CACHE)))
    assert "not an index that likewise would write" in index.check()[0]


def test_it_is_searched_beside_pytorch_metric_learning(tmp_path: Path) -> None:
    """faiss.contrib.torch_utils, which that library imports, replaces functions of FAISS for the whole process."""
    pytest.importorskip("pytorch_metric_learning")
    program = f"""
    import pytorch_metric_learning.utils.inference, faiss.contrib.torch_utils
    import numpy as np
    from pathlib import Path
    from likewise.store.index import About, Index, Record
    assert faiss.Index.search.__name__.startswith("torch_replacement")
    rows = np.random.default_rng(0).normal(size=(1200, 8)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    for kind in ("flat", "ivf"):
        index = Index.create(Path({str(tmp_path)!r}, kind), About("/", "m", "d", 8, kind, 0.9))
        index.put([Record(str(i), 1, 1) for i in range(1200)], rows)
        index.settle()
        for seen in (index, Index(index.path)):
            assert [hits[0][0] for hits in seen.nearest(rows[:5], 3)] == list("01234")
    """
    words = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)]
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


# ------------------------------------------------------------------------------------------------------ hostile files


def forge(folder: Path, key: str, change: Callable[[Any], Any]) -> None:
    """Change a JSON in the index, as a stranger could."""
    with closing(sqlite3.connect(folder / stored.FILE)) as db:
        said = json.loads(db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()[0])
        change(said)
        db.execute("UPDATE meta SET value = ? WHERE key = ?", (json.dumps(said), key))
        db.commit()


@pytest.mark.parametrize(
    "change",
    [
        {"dim": 4},
        {"dim": "8"},
        {"dim": 0},
        {"dim": 2**40},
        {"width": 9},
        {"width": -1},
        {"extra": 1},
        {"format": 9},
        {"root": 5},
        {"kind": "tree"},
        {"recall": 7.0},
    ],
)
def test_a_forged_description_is_a_file_error(tmp_path: Path, change: dict[str, Any]) -> None:
    filled(tmp_path / "i", draw(0, 5)).close()
    forge(tmp_path / "i", "about", lambda said: said.update(change))
    with pytest.raises(FileError, match=r"index\.sqlite: (not an index|damaged)"):
        Index(tmp_path / "i").nearest(draw(0, 1), 1)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("UPDATE images SET name = x'2e2e2f78' WHERE id = 2", "no plain path below the root"),
        ("UPDATE images SET name = x'610062' WHERE id = 2", "no plain path below the root"),
        ("UPDATE images SET name = 'text' WHERE id = 2", "names that are none"),
        ("UPDATE images SET name = 7 WHERE id = 2", "names that are none"),
        ("UPDATE images SET id = 99 WHERE id = 2", "do not belong together"),
        ("UPDATE vectors SET data = x'00'", "16 bytes"),
        ("UPDATE vectors SET data = NULL", "16 bytes"),
        ("UPDATE vectors SET data = zeroblob(80)", "not of length 1"),
        ("UPDATE vectors SET data = x''", "do not belong together"),
        ("UPDATE vectors SET data = substr(data, 1, 64)", "do not belong together"),
        ("UPDATE vectors SET first = 3", "do not belong together"),
        ("UPDATE vectors SET first = -9223372036854775807", "do not belong together"),
        ("DELETE FROM vectors", "do not belong together"),
        ("DELETE FROM meta", "not an index"),
        ("CREATE TABLE more (x)", "not an index of likewise"),
        ("CREATE TRIGGER t AFTER DELETE ON images BEGIN DELETE FROM images; END", "not an index of likewise"),
        ("DROP TABLE vectors", "not an index of likewise"),
        ("ALTER TABLE images RENAME TO i; CREATE VIEW images AS SELECT * FROM i", "not an index of likewise"),
    ],
)
def test_forged_rows_and_tables_are_a_file_error(tmp_path: Path, sql: str, said: str) -> None:
    filled(tmp_path / "i", draw(0, 5)).close()
    with closing(sqlite3.connect(tmp_path / "i" / stored.FILE)) as db:
        db.executescript(sql)
    with pytest.raises(FileError, match=said):
        Index(tmp_path / "i").nearest(draw(0, 1), 3)


def test_what_a_stranger_says_of_times_and_places_was_not_told(tmp_path: Path) -> None:
    with closing(Index.create(tmp_path / "i", about())) as index:
        index.put([Record("a", 1, 1, "2023", (1.0, 2.0))], draw(0, 1), [b"features"])
    for sql, record in (
        ("latitude = 'x'", Record("a", 1, 1, "2023")),
        ("longitude = NULL", Record("a", 1, 1, "2023")),
        ("latitude = 9e999, longitude = 2.0", Record("a", 1, 1, "2023")),
        ("latitude = 1.0, taken = 7, longitude = x'00'", Record("a", 1, 1, "7")),
        ("taken = x'00'", Record("a", 1, 1)),
        ("taken = printf('%.99c', 'x')", Record("a", 1, 1)),
    ):
        with closing(sqlite3.connect(tmp_path / "i" / stored.FILE)) as db:
            db.executescript(f"UPDATE images SET {sql}; UPDATE features SET data = 7")
        with closing(Index(tmp_path / "i")) as index:
            assert list(index.records()) == [record]
            assert index.features(["a"]) == {}


def test_flipped_bits_are_found_by_check(tmp_path: Path) -> None:
    rows = draw(0, 50)
    index = Index.create(tmp_path / "i", about())
    index.put(records(50), rows, [f"features of photo {i}".encode() for i in range(50)])
    index.close()
    whole = (tmp_path / "i" / stored.FILE).read_bytes()
    for blob in (rows[7].astype("<f2").tobytes(), b"features of photo 7"):
        at = whole.find(blob)
        assert at > 0
        (tmp_path / "i" / stored.FILE).write_bytes(whole[: at + 2] + bytes([whole[at + 2] ^ 1]) + whole[at + 3 :])
        with closing(Index(tmp_path / "i")) as damaged:
            assert "are damaged" in damaged.check()[0]
    for data in (whole[: len(whole) // 2], whole[:100], b"SQLite format 3\0", b"no database at all" * 100):
        (tmp_path / "i" / stored.FILE).write_bytes(data)
        with pytest.raises(FileError, match=r"index\.sqlite: (damaged|not an index)"):
            Index(tmp_path / "i").nearest(rows[:1], 1)
