"""Mutated files for every reader: a result or a LikewiseError, in time, and nothing else happens.

benchmarks/fuzz.py reads many more of them, in processes of their own, and names the number that repeats a defect.
"""

from __future__ import annotations

import io
import pickle
import signal
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tests.fuzz import forms, mutations
from tests.fuzz.cases import SECONDS, Bench, Reader, judged
from tests.fuzz.readers import READERS, missing

from likewise.errors import LikewiseError
from likewise.store import checkpoint

SLOW = frozenset({"aligner", "learned metric", "generator", "raft", "embedder", "features", "ivf index", "matlab"})
"""Readers whose every file takes tens of milliseconds: few in the fast lane."""
FAST, FEW, MANY = 30, 5, 150
"""Files a reader."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """An error where what is within takes more CPU time; compiled code it cannot stop, but benchmarks/fuzz.py can."""

    def late(*_: object) -> None:
        raise TimeoutError(f"longer than {seconds:g} s")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def defects(reader: Reader, folder: Path, seed: int, count: int) -> list[str]:
    """What went wrong, by the number of the file."""
    made = Bench(reader, folder / "case")
    assert judged(reader, made.folder).kind != "refused", "the valid input itself is refused"
    result = []
    for number in range(count):
        with limited(SECONDS):
            outcome = made.run(seed, number)
        if outcome.kind == "other":
            result.append(f"{reader.name}, seed {seed}, {number}: {outcome.said}")
    return result


@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["few", "many"])
@pytest.mark.parametrize("reader", READERS, ids=lambda r: r.name)
def test_every_reader_reads_or_refuses(reader: Reader, many: bool, tmp_path: Path) -> None:
    if package := missing(reader):
        pytest.skip(f"{package} is not installed")
    counts = (FAST, MANY) if reader.name not in SLOW else (FEW, FAST)
    assert defects(reader, tmp_path, 1 + many, counts[many]) == []


# ----------------------------------------------------------------------------------------------- the fuzzer is tested


def bench(read: object, folder: Path) -> Bench:
    def make(folder: Path) -> None:
        (folder / "a.json").write_text('{"a": 1}')

    return Bench(Reader("made up", make, read, {"*": (mutations.as_json,)}), folder / "case")  # type: ignore[arg-type]


def refuses(_: Path) -> None:
    raise LikewiseError("no")


@pytest.mark.parametrize(
    ("read", "kind", "said"),
    [
        (lambda _: pickle.loads(b"cos\ngetcwd\n."), "other", "pickle.find_class"),
        (lambda _: subprocess.run(["true"], check=True), "other", "subprocess.Popen"),
        (lambda f: (f.parent / "elsewhere").write_text("x"), "other", "write to"),
        (lambda _: dict[str, int]()["x"], "other", "KeyError"),
        (lambda f: (f / "own").write_text("x"), "accepted", ""),
        (refuses, "refused", "no"),
    ],
)
def test_what_a_reader_must_not_do_is_seen(read: object, kind: str, said: str, tmp_path: Path) -> None:
    outcome = bench(read, tmp_path).run(0, 1)
    assert (outcome.kind, said in outcome.said) == (kind, True)
    left = {p.name: p.read_bytes() for p in (tmp_path / "case").iterdir()}
    assert left == {"a.json": b'{"a": 1}'}, "a case leaves the valid input behind"


def test_a_hang_is_seen() -> None:
    def busy() -> None:
        while True:
            pass

    with pytest.raises(TimeoutError, match=r"longer than 0\.05 s"), limited(0.05):
        busy()


def test_the_same_number_is_the_same_file(tmp_path: Path) -> None:
    files = []
    for name in ("one", "two"):
        made = Bench(next(r for r in READERS if r.name == "png"), tmp_path / name)
        files.append([made.edit(3, k).read_bytes() for k in range(20)])
    assert files[0] == files[1]
    assert len(set(files[0])) > 15


def test_edits_get_past_the_checksums() -> None:
    """Of edited files of likewise and archives most are still whole to those who only check sums."""
    rng = np.random.default_rng(0)
    whole = checkpoint.encode({"M": np.eye(3)}, {"note": "x", "size": 3})
    edits = [forms.sealed(whole, rng) for _ in range(200)]
    assert sum(data != whole for data in edits) > 190
    assert sum(_opens(data) for data in edits) > 100
    out = io.BytesIO()
    np.savez(out, a=np.arange(5), b=np.eye(3))
    archives = [forms.zipped(forms.npy)(out.getvalue(), rng) for _ in range(200)]
    assert sum(_unzips(data) for data in archives) > 150


def _opens(data: bytes) -> bool:
    try:
        checkpoint.decode(data, "x")
    except LikewiseError:
        return False
    return True


def _unzips(data: bytes) -> bool:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return archive.testzip() is None
    except Exception:  # a damaged archive can raise anything
        return False
