"""Nothing is deleted or overwritten but what is our own, and what cannot be looked at is not gone."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import likewise as lw
from likewise import inputs, media
from likewise.search import Collection
from worlds.galleries import Patches, album, detect_once, paint


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    detect_once(monkeypatch)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every user may enter: pytest's own are closed to the user that root turns into below."""
    folder = Path(tempfile.mkdtemp(prefix="likewise-test-"))
    folder.chmod(0o777)
    yield folder
    for below in [folder, *(p for p in folder.rglob("*") if p.is_dir() and not p.is_symlink())]:
        below.chmod(0o700)
    shutil.rmtree(folder)


@contextlib.contextmanager
def without_override() -> Iterator[None]:
    """For root, what is forbidden is forbidden meanwhile."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def two_folders(root: Path) -> Path:
    for i in range(4):
        paint(root / f"kind{i % 2}" / f"{i}.png", i)
    return root


def shared(root: Path) -> Path:
    """A folder with its files given to that user."""
    for path in (root, *root.rglob("*")):
        os.chown(path, 65534, -1) if not os.geteuid() else None
    return root


# ------------------------------------------------------------------------------------------------- what is not ours


@pytest.mark.parametrize("name", ["model.safetensors", "index.faiss", "index.sqlite.new", "index.sqlite-wal"])
@pytest.mark.parametrize("photos", [0, 2])
def test_an_index_leaves_a_folder_alone_that_holds_a_file_of_somebody_else(
    tmp_path: Path, name: str, photos: int
) -> None:
    source = album(tmp_path / "photos", classes=1, each=photos) if photos else tmp_path / "photos"
    source.mkdir(exist_ok=True)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / name).write_bytes(b"trained for a week")
    with pytest.raises(lw.InputError, match="holds something else"):
        Collection.build(source, tmp_path / "m", model=Patches())
    assert [(p.name, p.read_bytes()) for p in (tmp_path / "m").iterdir()] == [(name, b"trained for a week")]


def test_an_index_of_no_photo_takes_its_folder_away_again_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "new", tmp_path / "there"):
        with pytest.raises(lw.FileError, match="no image in this folder was found"):
            Collection.build(tmp_path / "empty", out, model=Patches())
        assert not out.exists()
        (tmp_path / "there").mkdir(exist_ok=True)


# ------------------------------------------------------------------------------------------------------ what is gone


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other permissions")
@pytest.mark.parametrize("mode", [0o000, 0o400])
def test_photos_of_a_folder_that_cannot_be_read_stay_in_the_index(place: Path, mode: int) -> None:
    photos = shared(two_folders(place / "photos"))
    closed = photos / "kind1"
    with without_override(), Collection.build(photos, place / "index", model=Patches()) as collection:
        os.unlink(next((photos / "kind0").iterdir()))
        closed.chmod(mode)
        report = collection.update()
        assert (report.removed, report.unchanged, len(collection)) == (1, 1, 3), "only what is gone was taken out"
        assert [(s.name, s.reason) for s in report.skipped] == [(str(closed), "cannot be read: Permission denied")]
        assert [path for path in collection if not media.is_gone(path)] == list(collection)
        closed.chmod(0o700)
        assert (collection.update().removed, len(collection)) == (0, 3)
        shutil.rmtree(closed)
        assert (collection.update().removed, len(collection)) == (2, 1), "the folder itself is gone"


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE, errno.ENODEV, errno.ENOTCONN])
def test_an_error_of_the_disk_does_not_say_that_a_file_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    photos = two_folders(tmp_path / "photos")
    bad = str(photos / "kind1")

    def failing(real: Callable[..., object]) -> Callable[..., object]:
        def call(path: object = ".", *args: object, **kwargs: object) -> object:
            if isinstance(path, str | os.PathLike) and os.fspath(path).startswith(bad):
                raise OSError(number, os.strerror(number), os.fspath(path))
            return real(path, *args, **kwargs)

        return call

    with Collection.build(photos, tmp_path / "index", model=Patches()) as collection:
        with monkeypatch.context() as broken:
            for name in ("lstat", "stat", "scandir"):
                broken.setattr(os, name, failing(getattr(os, name)))
            report = collection.update()
        assert (report.removed, len(collection), [s.name for s in report.skipped]) == (0, 4, [bad])


def test_what_is_gone_is_gone(tmp_path: Path) -> None:
    (tmp_path / "here").write_bytes(b"x")
    (tmp_path / "dangling").symlink_to("nowhere")
    for path, gone in (("here", False), ("dangling", False), ("no", True), ("no/such/folder", True), ("x\0y", False)):
        assert media.is_gone(tmp_path / path) == gone, path
    assert not media.is_gone(tmp_path / "here" / "below"), "a file in the place of a folder says nothing of it"


def test_files_named_as_pictures_are_told_of_whatever_cannot_be_entered(place: Path) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o000)
    (place / "note.png").write_bytes(b"no picture")
    with without_override():
        assert inputs.misnamed(place) == [place / "note.png"]
        with pytest.raises(lw.FileError, match=f"{closed}: Permission denied"):
            media.images(place)


# ---------------------------------------------------------------------------------------- what is the same and is not


def test_another_file_of_the_same_size_and_time_is_described_again(tmp_path: Path) -> None:
    photos = album(tmp_path / "photos", classes=1, each=3)
    a, b, c = sorted(photos.rglob("*.png"))
    length = 20_000
    for one in (a, b, c):
        one.write_bytes(one.read_bytes().ljust(length, b"\0"))
        os.utime(one, ns=(10**18, 10**18))
    with Collection.build(photos, tmp_path / "index", model=Patches()) as collection:
        a.write_bytes(b.read_bytes())  # as a clock that was put back
        shutil.copy2(b, tmp_path / "new")
        os.replace(tmp_path / "new", c)  # as rsync -t
        for one in (a, c):
            os.utime(one, ns=(10**18, 10**18))
        report = collection.update()
        assert (report.updated, report.unchanged) == (2, 1)
        assert [hit.distance for hit in collection.search(b, 3, rerank=False, verify=0)] == pytest.approx(
            [0, 0, 0], abs=1e-6
        )
        shutil.copy2(a, tmp_path / "new")
        os.replace(tmp_path / "new", a)  # another inode, the same photo
        assert collection.update().unchanged == 3


def test_a_file_is_told_from_another_by_its_ends_and_places_between(tmp_path: Path) -> None:
    data = bytearray(os.urandom(1 << 20))
    (tmp_path / "a").write_bytes(data)
    first = media.digest(tmp_path / "a")
    assert first == media.digest(tmp_path / "a")
    for at in (0, len(data) // 15, len(data) - 1):
        other = bytes(data[:at]) + bytes([data[at] ^ 1]) + bytes(data[at + 1 :])
        (tmp_path / "b").write_bytes(other)
        assert media.digest(tmp_path / "b") != first, at
    assert media.digest(tmp_path / "none") == 0


# ------------------------------------------------------------------------------------------------------ what is left

HALF = """
import os, signal, sys
from pathlib import Path
from likewise import media
with media.atomic(sys.argv[1]) as sibling:
    sibling.write_bytes(b"half")
    print("written", flush=True)
    sys.stdin.read() if sys.argv[2] == "wait" else os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="files are not locked there")
def test_what_a_killed_process_left_is_swept_by_the_next_that_writes_there(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HALF, str(tmp_path / "rows.npz")]
    with subprocess.Popen([*command, "wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as alive:
        assert alive.stdout is not None
        alive.stdout.readline()
        assert subprocess.run([*command, "die"], stdout=subprocess.DEVNULL).returncode == -signal.SIGKILL
        (tmp_path / ".mine.tmp.npz").write_bytes(b"not named as we do")
        (tmp_path / ".link.0123456789ab.tmp.npz").symlink_to(tmp_path / ".mine.tmp.npz")
        before = set(os.listdir(tmp_path))
        assert len(before) == 4
        media.write_bytes(tmp_path / "other.txt", b"whole")
        media.write_bytes(tmp_path / "other.txt", b"whole")
        gone = before - set(os.listdir(tmp_path))
        assert len(gone) == 1, "that of the dead process, not of the one that is at work, and no link"
        alive.communicate(b"", timeout=30)
    assert (tmp_path / "rows.npz").read_bytes() == b"half"


def test_a_full_disk_is_told_of_in_a_line(tmp_path: Path) -> None:
    for said in (OSError(errno.ENOSPC, "No space left on device"), OSError("122880 requested and 99296 written")):
        known = pytest.raises(lw.FileError, match=r"rows\.npz: cannot be written: (No space left|the disk is full)")
        with known, media.atomic(tmp_path / "rows.npz") as sibling:
            sibling.write_bytes(b"half")
            raise said
        assert os.listdir(tmp_path) == []
    with pytest.raises(OSError, match="about the input"), media.atomic(tmp_path / "x"):
        raise OSError(errno.ENOENT, "about the input")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_numpys_word_for_a_full_disk_is_still_the_one_that_is_known() -> None:
    with pytest.raises(OSError, match="requested and") as caught, open("/dev/full", "wb") as full:
        np.zeros(10**6).tofile(full)
    assert caught.value.errno is None
