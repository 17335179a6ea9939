"""The loader: threads do not matter, views differ, the same step gives the same bytes, bad files are replaced."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from likewise import media
from likewise.errors import FileError, InputError, ShapeError
from likewise.images import data as reading
from likewise.images.augment import Augment, centre
from likewise.images.batches import BalancedBatches
from likewise.images.layouts import cub200
from likewise.images.loading import LOOKAHEAD, Loader

SMALL = Augment(size=16, shortest=20)
STILL = Augment(size=16, mode="none", shortest=20)


def scene(seed: int, height: int = 40, width: int = 50) -> np.ndarray:
    small = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return np.array(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


ARRAYS = [scene(i) for i in range(12)]
LABELS = np.repeat(np.arange(3), 4)


@pytest.fixture
def album(tmp_path: Path) -> list[Path]:
    """Twelve JPEGs, three classes of four."""
    return [media.write_image(tmp_path / f"{i}.jpg", a) for i, a in enumerate(ARRAYS)]


def spoil(path: Path) -> None:
    """Cut a file in half."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


# ---------------------------------------------------------------------------------------------------------- the bytes


@given(
    st.lists(st.integers(0, 11), min_size=1, max_size=6),
    st.integers(0, 3),
    st.integers(0, 5),
    st.integers(0, 10**6),
    st.sampled_from([None, 8, 24, 100]),
)
def test_bytes_are_a_function_of_seed_step_index_and_view(
    indices: list[int], workers: int, seed: int, step: int, keep_side: int | None
) -> None:
    loader = Loader(ARRAYS, LABELS, SMALL, views=2, seed=seed, workers=workers, keep_side=keep_side)
    batch = loader.load(indices, step)
    assert batch.shape == (2, len(indices), 16, 16, 3)
    alone = Loader(ARRAYS, LABELS, SMALL, views=2, seed=seed, workers=0, keep_side=keep_side)
    for k, i in enumerate(indices):
        np.testing.assert_array_equal(batch[:, k], alone.load([i], step)[:, 0])


def test_views_steps_seeds_and_pictures_differ() -> None:
    loader = Loader(ARRAYS, LABELS, SMALL, views=3)
    one = loader.load([0, 1], 0)
    crops = [*one[:, 0], one[0, 1], loader.load([0], 1)[0, 0], Loader(ARRAYS, LABELS, SMALL, seed=1).load([0], 0)[0, 0]]
    assert len({c.tobytes() for c in crops}) == len(crops)


def test_an_untouched_crop_is_the_evaluation_crop(album: list[Path]) -> None:
    batch = Loader(album, LABELS, STILL, views=2).load([3, 5], 9)
    for k, i in enumerate((3, 5)):
        for view in batch[:, k]:
            np.testing.assert_array_equal(view, centre(media.read_array(album[i]), 16, 20))


def test_every_kind_of_item_is_read() -> None:
    grey = np.ascontiguousarray(ARRAYS[0][:, :, 0])
    items = [grey, Image.fromarray(ARRAYS[1]), ARRAYS[2]]
    batch = Loader(items, [0, 0, 0], STILL).load([0, 1, 2], 0)[0]  # type: ignore[arg-type]
    for got, item in zip(batch, items, strict=True):
        np.testing.assert_array_equal(got, centre(reading.picture(item), 16, 20))  # type: ignore[arg-type]


def test_grey_alpha_cmyk_and_turned_pictures_come_as_they_look(tmp_path: Path) -> None:
    base = Image.fromarray(ARRAYS[4])
    exif = Image.Exif()
    exif[0x0112] = 6
    base.convert("L").save(tmp_path / "grey.png")
    base.convert("CMYK").save(tmp_path / "cmyk.tif")
    base.convert("RGBA").save(tmp_path / "alpha.png")
    base.save(tmp_path / "turned.png", exif=exif.tobytes())
    files = [tmp_path / n for n in ("grey.png", "cmyk.tif", "alpha.png", "turned.png")]
    grey, cmyk, alpha, turned = Loader(files, [0] * 4, STILL).load([0, 1, 2, 3], 0)[0].astype(int)
    upright = centre(ARRAYS[4], 16, 20).astype(int)
    assert np.ptp(grey, axis=2).max() == 0
    assert np.abs(cmyk - upright).mean() < 3
    np.testing.assert_array_equal(alpha, upright)
    np.testing.assert_array_equal(turned, centre(np.ascontiguousarray(np.rot90(ARRAYS[4], -1)), 16, 20))


# ------------------------------------------------------------------------------------------------------------- ahead


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_ahead_gives_what_load_gives_in_order(workers: int) -> None:
    batches = [[0, 4, 8], [1, 5], [11, 0, 3], [7], [2, 2]]
    loader = Loader(ARRAYS, LABELS, SMALL, views=2, workers=workers)
    seen = list(loader.ahead(batches, start=7))
    assert [step for step, _, _ in seen] == [7, 8, 9, 10, 11]
    for (step, indices, arrays), batch in zip(seen, batches, strict=True):
        assert indices.tolist() == batch
        assert indices.dtype == np.int64
        np.testing.assert_array_equal(arrays, loader.load(batch, step))
    assert list(loader.ahead([])) == []


def test_a_pass_over_everything_at_one_step() -> None:
    loader = Loader(ARRAYS, LABELS, SMALL)
    parts = [range(5), range(5, 12)]
    seen = list(loader.ahead([list(p) for p in parts], start=4, stride=0))
    assert [step for step, _, _ in seen] == [4, 4]
    np.testing.assert_array_equal(np.concatenate([x for _, _, x in seen], axis=1), loader.load(np.arange(12), 4))


def test_resuming_in_the_middle_gives_the_same_bytes() -> None:
    batches = BalancedBatches(LABELS, 2, 2, seed=3)
    epoch = batches.epoch(0)
    whole = list(Loader(ARRAYS, LABELS, SMALL, seed=3).ahead(epoch))
    rest = list(Loader(ARRAYS, LABELS, SMALL, seed=3, keep_side=None).ahead(epoch[2:], start=2))
    for (_, _, want), (_, _, got) in zip(whole[2:], rest, strict=True):
        np.testing.assert_array_equal(got, want)


def test_batches_are_asked_for_a_little_ahead_and_without_end() -> None:
    asked = []

    def forever() -> object:
        while True:
            asked.append(len(asked))
            yield [len(asked) % 12]

    batches = Loader(ARRAYS, LABELS, SMALL).ahead(forever())  # type: ignore[arg-type]
    for k in range(5):
        assert next(batches)[0] == k
        assert len(asked) == k + 1 + LOOKAHEAD
    batches.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("likewise-load")]


def test_batches_to_come_are_prepared_while_the_caller_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    augment = Augment.__call__

    def slow(self: Augment, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        time.sleep(0.01)
        done.append(threading.get_ident())
        return augment(self, array, rng)

    monkeypatch.setattr(Augment, "__call__", slow)
    batches = Loader(ARRAYS, LABELS, SMALL, workers=2).ahead([[0, 1], [2, 3], [4, 5]])
    next(batches)
    deadline = time.monotonic() + 10
    while len(done) < 6 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(done) == 6  # all three, although one was asked for
    assert threading.get_ident() not in done
    batches.close()


def test_an_abandoned_generator_leaves_no_thread() -> None:
    loader = Loader(ARRAYS, LABELS, SMALL)
    for _ in loader.ahead([[0], [1], [2], [3]]):
        break
    loader.load([0], 0)
    assert not [t for t in threading.enumerate() if t.name.startswith("likewise-load")]


# --------------------------------------------------------------------------------------------------- what is kept


@pytest.mark.parametrize("in_file", [False, True])
def test_kept_pictures_are_decoded_once_and_are_the_same(album: list[Path], tmp_path: Path, in_file: bool) -> None:
    keep_in = tmp_path if in_file else None
    fresh = Loader(album, LABELS, SMALL, keep_side=24, workers=0).load(np.arange(12), 5)
    loader = Loader(album, LABELS, SMALL, keep_side=24, keep_in=keep_in)
    loader.load(np.arange(12), 0)
    for path in album:
        path.unlink()
    np.testing.assert_array_equal(loader.load(np.arange(12), 5), fresh)
    assert loader.skipped == ()


def test_a_full_disk_only_costs_time(album: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    want = Loader(album, LABELS, SMALL, keep_side=24).load(np.arange(12), 1)
    loader = Loader(album, LABELS, SMALL, keep_side=24, keep_in=tmp_path)
    loader._kept._file.close()  # type: ignore[attr-defined]

    class Full:
        def seek(self, *_: object) -> int:
            return 0

        def write(self, data: bytes) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(loader._kept, "_file", Full())
    for _ in range(2):
        np.testing.assert_array_equal(loader.load(np.arange(12), 1), want)
    assert loader.skipped == ()


def test_kept_pictures_have_the_side_asked_for_and_are_never_blown_up() -> None:
    """40 × 50 kept at 20: its centre crop is that of the picture at 25 × 20; kept at 100 it is the picture's own."""
    small = np.asarray(Image.fromarray(ARRAYS[0]).resize((25, 20), Image.Resampling.BICUBIC))
    kept = Loader(ARRAYS, LABELS, STILL, keep_side=20).load([0], 0)[0, 0]
    np.testing.assert_array_equal(kept, centre(small, 16, 20))
    whole = Loader(ARRAYS, LABELS, STILL, keep_side=100).load([0], 0)[0, 0]
    np.testing.assert_array_equal(whole, centre(ARRAYS[0], 16, 20))


def test_a_large_jpeg_is_decoded_no_larger_than_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = media.write_image(tmp_path / "large.jpg", scene(1, 800, 1000))
    sizes, read_array = [], media.read_array

    def watched(*args: object, **kwargs: object) -> np.ndarray:
        sizes.append((array := read_array(*args, **kwargs)).shape)  # type: ignore[arg-type]
        return array

    monkeypatch.setattr(media, "read_array", watched)
    near = Loader([path], [0], STILL, keep_side=50).load([0], 0)[0, 0]
    assert sizes == [(100, 125, 3)]
    want = centre(read_array(path), 16, 20).astype(int)
    assert np.abs(near - want).mean() < 2


# ---------------------------------------------------------------------------------------------------------- bad files


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_file_is_named_counted_and_replaced_from_its_class(album: list[Path], workers: int) -> None:
    spoil(album[1])
    album[6].unlink()
    loader = Loader(album, LABELS, SMALL, views=2, workers=workers)
    ((_, indices, arrays),) = loader.ahead([[0, 1, 4, 6]], start=3)
    assert indices.tolist() == [0, 2, 4, 7]
    np.testing.assert_array_equal(arrays, loader.load([0, 2, 4, 7], 3))
    assert [s.index for s in loader.skipped] == [1, 6]
    assert [Path(s.name).name for s in loader.skipped] == ["1.jpg", "6.jpg"]
    assert "truncated" in loader.skipped[0].reason
    assert "no such file" in loader.skipped[1].reason


def test_a_bad_file_is_opened_once(album: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(album[0])
    opened, read_array = [], media.read_array
    monkeypatch.setattr(media, "read_array", lambda p, **k: (opened.append(p), read_array(p, **k))[1])
    loader = Loader(album, LABELS, SMALL)
    for step in range(3):
        loader.load([0, 4], step)
    assert opened.count(album[0]) == 1
    assert len(loader.skipped) == 1


def test_replacements_are_distinct_as_long_as_the_class_allows(album: list[Path]) -> None:
    for i in (0, 1):
        spoil(album[i])
    loader = Loader(album, LABELS, STILL)
    ((_, indices, _),) = loader.ahead([[0, 1]])
    assert sorted(indices.tolist()) == [2, 3]
    ((_, indices, _),) = loader.ahead([[0, 2, 3]])  # the two that can be read are in the batch already
    assert LABELS[indices].tolist() == [0, 0, 0]
    assert indices[0] in (2, 3)


def test_a_class_without_any_readable_file_is_replaced_by_others_with_their_own_labels(album: list[Path]) -> None:
    for i in range(4):
        spoil(album[i])
    loader = Loader(album, LABELS, STILL)
    ((_, indices, arrays),) = loader.ahead([[0, 1, 4]])
    assert set(LABELS[indices]) <= {1, 2}
    assert len(set(indices.tolist())) == 3
    for i, got in zip(indices, arrays[0], strict=True):
        np.testing.assert_array_equal(got, centre(media.read_array(album[i]), 16, 20))
    assert len(loader.skipped) == 4


@given(st.sets(st.integers(0, 11), max_size=9), st.permutations(range(12)), st.integers(0, 3))
def test_whatever_is_bad_threads_do_not_matter(bad: set[int], order: list[int], workers: int) -> None:
    items = [np.zeros(3) if i in bad else a for i, a in enumerate(ARRAYS)]  # a vector is no picture
    batches = [order[:5], order[5:9], order[:3]]
    seen = list(Loader(items, LABELS, STILL, workers=workers).ahead(batches))
    want = list(Loader(items, LABELS, STILL, workers=0).ahead(batches))
    for (_, i, x), (_, j, y) in zip(seen, want, strict=True):
        np.testing.assert_array_equal(i, j)
        np.testing.assert_array_equal(x, y)
        assert not set(i.tolist()) & bad


def test_when_nothing_can_be_read_it_says_so(album: list[Path]) -> None:
    for path in album:
        spoil(path)
    with pytest.raises(FileError, match=r"none of the 12 pictures can be read; the first: .*0\.jpg: damaged"):
        Loader(album, LABELS, SMALL).load([0, 5], 0)


def test_errors_that_are_not_the_pictures_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> np.ndarray:
        raise MemoryError("full")

    monkeypatch.setattr(Augment, "__call__", broken)
    with pytest.raises(MemoryError, match="full"):
        Loader(ARRAYS, LABELS, SMALL).load([0], 0)


def test_refusals_name_the_argument(tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match=r"labels: expected \(12,\), one a picture, got shape \(3,\)"):
        Loader(ARRAYS, [0, 1, 2], SMALL)
    for option in ("views", "seed", "workers", "keep_side"):
        with pytest.raises(InputError, match=f"{option}: expected a whole number"):
            Loader(ARRAYS, LABELS, SMALL, **{option: -1})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="keep_side: expected with keep_in"):
        Loader(ARRAYS, LABELS, SMALL, keep_in=tmp_path)
    with pytest.raises(FileError, match="cannot keep pictures here"):
        Loader(ARRAYS, LABELS, SMALL, keep_side=9, keep_in=tmp_path / "nowhere")
    loader = Loader(ARRAYS, LABELS, SMALL)
    with pytest.raises(InputError, match="indices: expected numbers in 0 … 11, got 0 to 12"):
        loader.load([0, 12], 0)
    with pytest.raises(ShapeError, match="indices: "):
        loader.load([], 0)
    with pytest.raises(InputError, match="start: expected a whole number ≥ 0"):
        loader.load([0], -1)


# ----------------------------------------------------------------------------------------------------------- the real


def test_the_real_cub_in_a_balanced_batch(data: Path) -> None:
    dataset = cub200(data / "cub200", "train")
    batch = BalancedBatches(dataset.labels, 10, 2).epoch(0)[0]
    loader = Loader(dataset.items, dataset.labels, Augment(size=128, shortest=144), views=2, keep_side=144)
    arrays = loader.load(batch, 0)
    assert arrays.shape == (2, 20, 128, 128, 3)
    assert loader.skipped == ()
    assert len({a.tobytes() for a in arrays.reshape(40, -1)}) == 40
