"""Decoding in workers: what a decoder does ends with its worker, and what is decoded is the same as in this process."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from likewise import bounded, media
from likewise.errors import FileError, InputError, MissingExtra

pytestmark = pytest.mark.skipif(bounded.resource is None, reason="no limits on this platform")


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[bounded._Pool]:
    """A pool of this test's own, whose workers find the stand-ins below."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent))
    made = bounded._Pool()
    monkeypatch.setattr(bounded, "_pool", made)
    yield made
    made.close()


# ---------------------------------------------------------------------------------------------- stand-ins for decoders


def refusing() -> None:
    raise InputError("side: expected more")


def missing() -> None:
    raise MissingExtra("rawpy", "raw")


def breaking() -> None:
    raise KeyError("what nobody thought of")


def talking() -> int:
    os.write(1, b"a library that prints")
    print("on stdout")
    return 1


def spinning() -> None:
    while True:
        pass


def counting(n: int) -> Iterator[int | None]:
    for i in range(n):
        yield i if i % 2 else None


def here(name: str) -> str:
    return f"tests.test_bounded:{name}"


# ------------------------------------------------------------------------------------------------------------- answers


def test_arrays_values_and_tuples_come_back_as_they_were(pool: bounded._Pool) -> None:
    a = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    for array in (a, a.T, a.astype(np.float32), np.zeros((0, 2)), np.array(True), a[::-1]):
        back = bounded.call("numpy:copy", array, name="x")
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(back, array)
        back.flat[:1] = 1  # it is ours to write to
    assert bounded.call("builtins:divmod", 7, 2, name="x") == (3, 1)
    assert bounded.call("os:fsdecode", b"\xff.jpg", name="x") == "\udcff.jpg"
    assert bounded.call(here("talking"), name="x") == 1
    assert list(bounded.stream(here("counting"), 6, name="x")) == [1, 3, 5]
    assert len(pool.idle) == 1, "one worker has done it all"


def test_errors_come_back_as_they_were_and_what_is_none_of_ours_is_a_file_error(pool: bounded._Pool) -> None:
    for name, kind, said in (
        ("refusing", InputError, "side: expected more"),
        ("missing", MissingExtra, r"rawpy is not installed; pip install 'likewise\[raw\]'"),
        ("breaking", FileError, "x.jpg: damaged: KeyError: 'what nobody thought of'"),
    ):
        with pytest.raises(kind, match=said):
            bounded.call(here(name), name="x.jpg")
    assert len(pool.idle) == 1


@pytest.mark.parametrize(
    ("target", "args", "limits", "said"),
    [
        ("os:abort", (), {}, r"its decoder crashed \(SIGABRT\)"),
        ("signal:raise_signal", (11,), {}, r"its decoder crashed \(SIGSEGV\)"),
        ("os:_exit", (3,), {}, r"its decoder crashed \(exit code 3\)"),
        (here("spinning"), (), {"seconds": 1}, "more than 1 s of CPU time"),
        ("time:sleep", (60,), {"seconds": 0.02}, "takes too long"),
        ("numpy:ones", (10**9,), {"memory": 2 << 30}, "not enough memory"),
    ],
)
def test_a_decoder_that_crashes_or_takes_too_much_is_one_file_error(
    pool: bounded._Pool,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    args: tuple[object, ...],
    limits: dict[str, float],
    said: str,
) -> None:
    monkeypatch.setattr(bounded, "WALL", 0.1 if target == "time:sleep" else 60)
    with pytest.raises(FileError, match=rf"^x\.jpg: .*{said}"):
        bounded.call(target, *args, name="x.jpg", **limits)  # type: ignore[arg-type]
    assert bounded.call("math:hypot", 3, 4, name="x") == 5, "the next call has another one"


def test_a_stream_that_is_left_ends_its_worker(pool: bounded._Pool) -> None:
    frames = bounded.stream(here("counting"), 10**9, name="x")
    assert [next(frames), next(frames)] == [1, 3]
    other = bounded.stream(here("counting"), 4, name="y")  # two at a time, in one thread
    assert list(other) == [1, 3]
    frames.close()  # type: ignore[attr-defined]
    assert len(pool.idle) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b'{"dict": [["value", {"array": "O", "shape": [1]}]]}',
        b'{"dict": [["value", {"array": "u1", "shape": [9999999999999]}]]}',
        b'{"dict": [["value", {"array": "u1", "shape": [-1]}]]}',
        b'{"dict": [["value", {"array": "u1", "shape": [9]}]]}',
        b'{"dict": [["value", {"no": 1}]]}',
        b"3",
        b"[",
        b"[1]",
        b'{"dict": [["error", "os"], ["words", []]]}',
    ],
)
def test_what_a_worker_says_is_not_believed(answer: bytes) -> None:
    worker = object.__new__(bounded._Worker)
    worker.answers = io.BytesIO(struct.pack("<I", len(answer)) + answer)
    with pytest.raises((EOFError, FileError)):
        worker._hear(1 << 20)


def test_threads_have_workers_of_their_own(pool: bounded._Pool) -> None:
    results: list[float] = []
    each = [threading.Thread(target=lambda: results.append(bounded.call("math:hypot", 3, 4, name="x"))) for _ in "1234"]
    for one in each:
        one.start()
    for one in each:
        one.join()
    assert results == [5.0] * 4
    assert len(pool.idle) <= bounded.IDLE


def test_where_no_process_can_be_made_files_are_decoded_in_this_one(
    pool: bounded._Pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert bounded.call("math:hypot", 3, 4, name="x") == 5
    assert list(bounded.stream(here("counting"), 4, name="x")) == [1, 3]
    assert caplog.text.count("no process can be made") == 1


def test_a_process_that_forks_leaves_its_workers_alone(pool: bounded._Pool) -> None:
    bounded.call("math:hypot", 3, 4, name="x")
    before = list(pool.idle)
    pool.forget()
    assert pool.idle == []
    assert before[0].alive()
    before[0].end()


LEFT = """
from likewise import bounded
bounded.call("math:hypot", 3, 4, name="x")
print(bounded._pool.idle[0].process.pid, flush=True)
import os
os.kill(os.getpid(), 9)
"""


def test_a_worker_ends_with_the_process_that_made_it() -> None:
    said = subprocess.run([sys.executable, "-c", LEFT], capture_output=True, text=True, check=False)
    pid, until = int(said.stdout), time.monotonic() + 20
    while is_there(pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert not is_there(pid)


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# ------------------------------------------------------------------------------------------------------------ pictures


def scans(count: int, side: int = 64, mode: str = "RGB") -> bytes:
    """A progressive JPEG whose last scan is there many times."""
    stream = io.BytesIO()
    Image.new(mode, (side, side), 99).save(stream, "JPEG", progressive=True)
    data = stream.getvalue()
    at = data.rindex(b"\xff\xda")
    return data[:-2] + data[at:-2] * count + b"\xff\xd9"


def test_a_jpeg_of_hundreds_of_scans_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    (tmp_path / "x.jpg").write_bytes(scans(400, 2048))
    began = time.perf_counter()
    with pytest.raises(FileError, match=r"x\.jpg: a JPEG of more than 286 scans of 2048 × 2048 pixels"):
        media.read_array(tmp_path / "x.jpg")
    assert time.perf_counter() - began < 5
    for whole in (scans(0), scans(20), scans(20, mode="L")):
        assert media.decode(whole).shape == (64, 64, 3)


def test_scans_are_counted_in_the_picture_alone() -> None:
    """A thumbnail, a comment and what a phone puts behind the picture hold the same bytes."""
    plain = scans(0)
    many = b"\xff\xda" * 30_000
    inside = plain[:2] + b"\xff\xfe" + struct.pack(">H", len(many) + 2) + many + plain[2:] + many
    np.testing.assert_array_equal(media.decode(inside), media.decode(plain))
    stream = io.BytesIO()
    Image.new("RGB", (9, 9)).save(stream, "JPEG")
    assert media.decode(stream.getvalue() + many).shape == (9, 9, 3)


def png(side: int) -> bytes:
    """A white picture of one bit a pixel."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = zlib.compress((b"\0" + b"\xff" * ((side + 7) // 8)) * side, 9)
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


PEAK = """
import sys
from pathlib import Path
from likewise import bounded, media
bounded.trust = True
media.read_array(sys.argv[1])
print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")))
"""
"""Not ru_maxrss: that is the parent's, too, where it is larger."""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_small_file_of_many_pixels_needs_what_its_pixels_need(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(png(14_000))
    assert (tmp_path / "x.png").stat().st_size < 60_000
    said = subprocess.run([sys.executable, "-c", PEAK, tmp_path / "x.png"], capture_output=True, text=True, check=True)
    assert int(said.stdout) / 1e6 < 1.0  # GB, of 0.8 for 196 Mpx; it was 2.2


def test_bands_are_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    rgb = np.random.default_rng(0).integers(0, 255, (700, 40, 3), np.uint8)
    for image in (Image.fromarray(rgb), Image.fromarray(rgb).convert("L"), Image.fromarray(rgb).quantize(8)):
        np.testing.assert_array_equal(media.from_pillow(image), np.asarray(image.convert("RGB")))


def test_zeros_that_unpack_to_gigabytes_are_not_unpacked(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(40_000_000))
    with pytest.raises(FileError, match=r"declares 320,000,128 bytes, more than 268,435,456 allowed"):
        media.load_arrays(tmp_path / "x.npz")
    np.savez_compressed(tmp_path / "y.npz", a=np.zeros(1_000_000))
    assert media.load_arrays(tmp_path / "y.npz")["a"].shape == (1_000_000,)


@pytest.mark.parametrize("name", ["x.png", "x.jpg", "x.webp", "x.tif", "x.gif"])
def test_a_picture_is_the_same_from_a_worker_as_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    rng = np.random.default_rng(0)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(rng.integers(0, 255, (90, 60, 3), np.uint8)).save(tmp_path / name, exif=exif)
    monkeypatch.chdir(tmp_path)  # after the worker began: a path may be relative
    there = media.read_array(name), media.read_array(name, side=20), media.decode(Path(name).read_bytes())
    with monkeypatch.context() as trusting:
        trusting.setattr(bounded, "trust", True)
        mine = media.read_array(name), media.read_array(name, side=20), media.decode(Path(name).read_bytes())
    for a, b in zip(there, mine, strict=True):
        np.testing.assert_array_equal(a, b)


def test_who_leaves_while_a_worker_is_made_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client went before the worker was there: the call ends at once, and so do those that follow."""
    with bounded.cancellable() as cancel:
        take = bounded._pool.take

        def late() -> Any:
            worker = take()
            cancel()
            return worker

        monkeypatch.setattr(bounded._pool, "take", late)
        began = time.monotonic()
        for _ in range(2):
            with pytest.raises(FileError):
                bounded.call("time:sleep", 60, name="x")
        assert time.monotonic() - began < 30
