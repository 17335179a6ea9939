"""A folder of pictures to rows in a file: order, names, what cannot be read, going on after a kill."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from likewise import media
from likewise.errors import FileError, InputError, ShapeError
from likewise.images import embedding
from likewise.images.embedding import embed_folder
from likewise.store import checkpoint
from likewise.store.job import Job
from worlds.galleries import DIM, Patches, album, paint

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return album(tmp_path / "photos", classes=3, each=12)


def test_rows_stand_in_natural_order_beside_their_names(photos: Path, tmp_path: Path) -> None:
    result = embed_folder(photos, tmp_path / "rows.npz", Patches(), chunk=7)
    paths = media.images(photos)
    assert result.names == tuple(str(p.relative_to(photos)) for p in paths)
    assert result.names.index("kind0/p2.png") < result.names.index("kind0/p10.png")
    np.testing.assert_array_equal(result.rows, Patches().embed(paths))
    with np.load(tmp_path / "rows.npz", allow_pickle=False) as stored:
        np.testing.assert_array_equal(stored["rows"], result.rows)
        assert tuple(stored["names"]) == result.names
        assert len(stored["skipped"]) == len(stored["reasons"]) == 0
    assert not (tmp_path / "rows.npz.parts").exists()


def test_unreadable_files_are_named_counted_and_never_fatal(photos: Path, tmp_path: Path) -> None:
    (photos / "torn.png").write_bytes((photos / "kind0" / "p0.png").read_bytes()[:60])
    (photos / "empty.jpg").touch()
    (photos / "notes.txt").write_text("passed over")
    result = embed_folder(photos, tmp_path / "rows.npz", Patches(), chunk=5)
    assert len(result) == 36
    said = {Path(s.name).name: s.reason for s in result.skipped}
    assert set(said) == {"torn.png", "empty.jpg"}
    assert "torn.png: damaged" in said["torn.png"]
    with np.load(tmp_path / "rows.npz", allow_pickle=False) as stored:
        assert {Path(s).name for s in stored["skipped"]} == set(said)
        assert stored["rows"].shape == (36, DIM)


def test_a_folder_of_which_nothing_can_be_read_gives_no_rows(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "x.png").write_bytes(b"\x89PNG\r\n\x1a\nrubbish")
    result = embed_folder(tmp_path / "bad", tmp_path / "rows.npz", Patches())
    assert (result.rows.shape, len(result.skipped)) == ((0, DIM), 1)


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from likewise.images.embedding import embed_folder
from worlds.galleries import Patches

class Killed(Patches):
    def embed(self, images, *, on_error="raise"):
        if len(self.seen) >= int(sys.argv[4]):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().embed(images, on_error=on_error)

embed_folder(sys.argv[2], sys.argv[3], Killed(), chunk=5)
"""


def test_after_kill_9_it_goes_on_and_gives_the_same_bytes(photos: Path, tmp_path: Path) -> None:
    out, model = tmp_path / "rows.npz", Patches()
    words = [sys.executable, "-c", textwrap.dedent(KILLED), str(ROOT), str(photos), str(out), "20"]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    assert not out.exists()
    embed_folder(photos, out, model, chunk=5)
    assert len(model.seen) == 16, "twenty of the thirty-six were on disk"
    embed_folder(photos, tmp_path / "once.npz", Patches(), chunk=9)
    assert [a.tobytes() for a in media.load_arrays(out).values()] == [
        a.tobytes() for a in media.load_arrays(tmp_path / "once.npz").values()
    ]


def interrupted(photos: Path, out: Path) -> None:
    class Stopped(Patches):
        def embed(self, images: object, *, on_error: str = "raise") -> np.ndarray:
            if len(self.seen) >= 20:
                raise KeyboardInterrupt
            return super().embed(images, on_error=on_error)

    with pytest.raises(KeyboardInterrupt):
        embed_folder(photos, out, Stopped(), chunk=5)


def test_pictures_or_a_model_that_changed_meanwhile_begin_anew(
    photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "rows.npz"
    interrupted(photos, out)
    changed = Patches(digest="d2")
    embed_folder(photos, out, changed, chunk=5)
    assert len(changed.seen) == 36
    assert "its inputs have changed" in caplog.text
    interrupted(photos, out)
    paint(photos / "kind0" / "p0.png", 999)
    model = Patches()
    embed_folder(photos, out, model, chunk=5)
    assert len(model.seen) == 36
    interrupted(photos, out)
    anew = Patches()
    embed_folder(photos, out, anew, chunk=5, resume=False)
    assert len(anew.seen) == 36


def test_other_processes_give_the_same_rows(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through an executor the model goes as a file, by the name of a registered class."""
    from concurrent.futures import ThreadPoolExecutor

    monkeypatch.setitem(checkpoint._CLASSES, "test.Patches", "worlds.galleries:Patches")
    alone = embed_folder(photos, tmp_path / "a.npz", Patches(), chunk=8)
    with ThreadPoolExecutor(2) as pool:
        many = embed_folder(photos, tmp_path / "b.npz", Patches(), chunk=8, executor=pool)
    assert many.rows.tobytes() == alone.rows.tobytes()
    assert many.names == alone.names
    assert not (tmp_path / "b.npz.parts").exists()


@pytest.mark.slow
def test_joblib_and_dask_give_the_same_rows_as_one_process(tmp_path: Path) -> None:
    photos = album(tmp_path / "photos", classes=2, each=4)
    alone = embed_folder(photos, tmp_path / "a.npz", chunk=4)
    for name, keywords in (("joblib", {"n_jobs": 2}), ("dask", {"executor": "dask", "n_jobs": 2})):
        many = embed_folder(photos, tmp_path / f"{name}.npz", chunk=4, **keywords)
        np.testing.assert_allclose(many.rows, alone.rows, atol=1e-6)
        assert many.names == alone.names


def test_workers_that_outlive_a_job_take_the_next_jobs_model(photos: Path, tmp_path: Path) -> None:
    class Other(Patches):
        @classmethod
        def from_state(cls, arrays, header):
            return cls(header["name"], header["digest"])

        @staticmethod
        def row(array):
            return np.roll(Patches.row(array), 1)

    with ThreadPoolExecutor(2) as pool:
        for model in (Patches(), Other("other", "d2")):
            with mock.patch.object(embedding, "checkpoint", mock.Mock(load=mock.Mock(return_value=model))):
                result = embed_folder(photos, tmp_path / "rows.npz", model, executor=pool, chunk=4)
            np.testing.assert_allclose(result.rows, model.embed([photos / n for n in result.names]), atol=1e-6)


def test_a_file_that_vanishes_while_it_is_listed(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, odd = embedding.listing(photos)
    monkeypatch.setattr(embedding, "listing", lambda folder: ([*result, photos / "gone.png"], odd))
    done = embed_folder(photos, tmp_path / "rows.npz", Patches())
    assert len(done) == len(result)
    assert [s.name for s in done.skipped] == ["gone.png"]


def test_wrong_arguments_are_named_before_anything_is_done(photos: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"out: expected a name that ends in \.npz"):
        embed_folder(photos, tmp_path / "rows.txt", Patches())
    with pytest.raises(InputError, match="executor"):
        embed_folder(photos, tmp_path / "rows.npz", Patches(), executor=3)
    with pytest.raises(FileError, match="no such folder"):
        embed_folder(tmp_path / "none", tmp_path / "rows.npz", Patches())
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="no image in this folder"):
        embed_folder(tmp_path / "empty", tmp_path / "rows.npz", Patches())
    with Job.begin(tmp_path / "taken.npz.parts", {"what": "something else"}):
        pass
    with pytest.raises(InputError, match="made by another job"):
        embed_folder(photos, tmp_path / "taken.npz", Patches())
    assert not list(tmp_path.glob("*.npz"))


def test_rows_that_have_no_direction_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"gave shape \(2, 3\) for 3 images"):
        embedding.unit_rows(np.ones((2, 3)), 3)
    for bad in (np.zeros((1, 3)), np.full((1, 3), np.nan)):
        with pytest.raises(InputError, match="zero or not finite"):
            embedding.unit_rows(bad, 1)
    np.testing.assert_allclose(embedding.unit_rows([[3.0, 4.0]], 1), [[0.6, 0.8]], atol=1e-7)
