"""Labelled images: class folders and splits, crops, balanced batches, and a loader whose threads do not matter."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from likewise import media
from likewise.errors import FileError, InputError, ShapeError
from likewise.images.data import LOOKAHEAD, Augment, BalancedBatches, Dataset, Loader, folder, sample
from likewise.nn.backbone import crop
from worlds.shapes import names_of, put

# ---------------------------------------------------------------------------------------------------------- data sets


@st.composite
def labelled(draw: st.DrawFn) -> Dataset:
    counts = draw(st.lists(st.integers(1, 5), min_size=4, max_size=15))
    labels = np.random.default_rng(draw(st.integers(0, 9))).permutation(np.repeat(np.arange(len(counts)), counts))
    return Dataset(tuple(f"{i}.jpg" for i in range(len(labels))), labels, tuple(f"c{i}" for i in range(len(counts))))


@given(labelled(), st.floats(0.01, 0.99), st.integers(0, 50), st.booleans())
def test_a_split_is_complete_and_shares_no_class(dataset: Dataset, share: float, seed: int, last: bool) -> None:
    train, validation = dataset.split(share, seed, last=last)
    assert not set(train.classes) & set(validation.classes)
    assert set(train.classes) | set(validation.classes) == set(dataset.classes)
    assert sorted(names_of(train) + names_of(validation)) == sorted(names_of(dataset))
    assert len(validation.classes) == min(max(round(share * len(dataset.classes)), 2), len(dataset.classes) - 2)
    assert names_of(dataset.split(share, seed, last=last)[1]) == names_of(validation)


@given(labelled(), st.data())
def test_a_subset_keeps_its_order_and_renumbers_its_classes(dataset: Dataset, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(dataset) - 1), min_size=1, unique=True))
    part = dataset.subset(chosen)
    assert names_of(part) == [names_of(dataset)[i] for i in chosen]
    assert set(part.labels.tolist()) == set(range(len(part.classes)))
    assert part.counts.sum() == len(chosen) == len(part)


def test_the_last_classes_are_cubs_validation() -> None:
    dataset = Dataset([f"{i}" for i in range(100)], np.arange(100), tuple(f"{i + 1:03d}" for i in range(100)))  # type: ignore[arg-type]
    train, validation = dataset.split(0.2, last=True)
    assert (train.classes[0], train.classes[-1]) == ("001", "080")
    assert validation.classes == tuple(f"{i:03d}" for i in range(81, 101))
    assert dataset.split(20, last=True)[1].classes == validation.classes
    drawn = dataset.split(0.2)[1].classes
    assert drawn != validation.classes
    assert drawn != dataset.split(0.2, seed=1)[1].classes


FOUR = Dataset(tuple("abcd"), np.arange(4))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Dataset(tuple("ab"), np.array([0]), ("x",)), "labels: expected 2, one an image, got 1"),
        (lambda: Dataset(tuple("ab"), np.array([0, 1]), ("x",)), "labels: expected numbers in 0 … 0, got 0 to 1"),
        (lambda: Dataset((), np.array([])), "labels: expected .* got shape"),
        *((lambda share=share: FOUR.split(share), "expected a share") for share in (0.0, 1.0, 0, 1, 3, True, -0.5)),
        (lambda: Dataset(tuple("abc"), np.arange(3)).split(), "validation: 3 classes cannot be divided"),
        (lambda: FOUR.of_classes([0, 4]), "indices: expected numbers in 0 … 3, got 0 to 4"),
        (lambda: FOUR.subset([]), "indices: "),
        (lambda: FOUR.subset([True, False]), "indices: expected whole numbers, got bool"),
    ],
)
def test_data_sets_that_cannot_be_are_refused(call, said) -> None:
    with pytest.raises(InputError, match=said):
        call()


def test_classes_without_pictures_are_not_divided() -> None:
    """Nobody is left to validate on where the classes drawn are empty ones."""
    dataset = Dataset(tuple("abcd"), np.array([0, 2, 4, 6]), tuple("ABCDEFG"))
    for seed in range(10):
        train, validation = dataset.split(0.5, seed)
        assert sorted(train.classes + validation.classes) == ["A", "C", "E", "G"]
        assert len(validation.classes) == 2


# ------------------------------------------------------------------------------------------------------ class folders


def test_class_folders_nested_and_in_natural_order(tmp_path: Path) -> None:
    put(tmp_path, "b/p10.png", "b/p2.png", "birds/gull/x.png", "birds/x.png", "c10/x.png", "c9/x.png")
    (tmp_path / "b" / "notes.txt").write_text("not a picture")
    (tmp_path / "b" / ".hidden.png").write_bytes((tmp_path / "b" / "p2.png").read_bytes())
    dataset = folder(tmp_path)
    assert set(dataset.classes) == {"b", "birds", "birds/gull", "c9", "c10"}
    assert dataset.classes.index("c9") < dataset.classes.index("c10")
    assert [f for c, f in names_of(dataset) if c == "b"] == ["p2.png", "p10.png"]
    assert dataset.name == tmp_path.name


def test_subfolders_train_and_test_are_the_split(tmp_path: Path) -> None:
    put(tmp_path, "train/a/x.png", "train/b/x.png", "test/c/x.png")
    assert folder(tmp_path, split="train").classes == ("a", "b")
    assert folder(tmp_path, split="test").classes == ("c",)


def test_without_such_subfolders_all_is_for_training(tmp_path: Path) -> None:
    put(tmp_path, "a/x.png", "b/x.png")
    assert folder(tmp_path, split="train").classes == ("a", "b")
    with pytest.raises(FileError, match=r"no folder 'test' in it; read it whole, and divide it by class with \.split"):
        folder(tmp_path, split="test")


def test_folders_that_cannot_be_read_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no image in this folder or below it"):
        folder(tmp_path)
    put(tmp_path, "x.png", "y.png")
    with pytest.raises(FileError, match="2 images and no class folders; move those of each class into a folder"):
        folder(tmp_path)
    put(tmp_path, "a/z.png")
    with pytest.raises(FileError, match=r"x\.png: lies beside the class folders \(2 such\); move it into one of them"):
        folder(tmp_path)
    with pytest.raises(FileError, match="no such folder"):
        folder(tmp_path / "nowhere")
    with pytest.raises(FileError, match="not a folder"):
        folder(tmp_path / "x.png")
    with pytest.raises(InputError, match='split: expected "train", "test" or None'):
        folder(tmp_path, split="val")  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------------------------------- crops


SIDES = st.integers(1, 90)


def colours(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Smooth colours, so that resampling is not judged on noise."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return np.array(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(SIDES, SIDES, st.booleans(), st.integers(0, 99))
def test_any_picture_gives_a_part_of_it_at_the_size_asked_for_and_the_same_bytes_again(
    height: int, width: int, random: bool, seed: int
) -> None:
    augment = Augment(size=9, random=random, shortest=11)
    left, top, right, bottom = augment.box(height, width, rng(seed))
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    array = rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    one, two = augment(array, rng(seed)), augment(array, rng(seed))
    assert one.shape == (9, 9, 3)
    assert one.dtype == np.uint8
    assert one.flags.c_contiguous
    assert one.tobytes() == two.tobytes()


def test_a_picture_too_long_for_any_draw_gives_its_middle() -> None:
    """1000 × 10 with shapes up to 4 : 3: the largest such part is 13 × 10."""
    assert Augment(smallest=1.0).box(10, 1000, rng()) == (493, 0, 506, 10)
    assert Augment(smallest=1.0).box(1000, 10, rng()) == (0, 493, 10, 506)


def test_half_are_mirrored_and_none_without_flip() -> None:
    """A picture that is dark on the left: a mirrored crop of nearly all of it is dark on the right."""
    array = np.zeros((40, 40, 3), dtype=np.uint8)
    array[:, 20:] = 255
    for flip, low, high in ((True, 0.4, 0.6), (False, 0.0, 0.0)):
        augment, stream = Augment(size=16, smallest=0.9, flip=flip), rng(2)
        share = np.mean([augment(array, stream)[:, 0].mean() > 128 for _ in range(300)])
        assert low <= share <= high


def test_a_mirrored_crop_is_the_mirror_of_the_crop() -> None:
    array = colours(60, 80)
    plain = Augment(size=32, flip=False)
    for seed in range(8):
        one, either = plain(array, rng(seed)), Augment(size=32)(array, rng(seed))
        assert np.array_equal(one, either) or np.abs(one[:, ::-1].astype(int) - either).max() <= 1


def test_none_is_the_evaluation_crop_whatever_the_seed() -> None:
    array = colours(70, 50)
    augment = Augment(size=24, random=False, shortest=30)
    np.testing.assert_array_equal(augment(array, rng(0)), augment(array, rng(1)))
    np.testing.assert_array_equal(augment(array, rng(0)), crop(array, 24, 30))


@pytest.mark.parametrize(("height", "width", "size"), [(60, 45, 128), (200, 180, 64), (333, 250, 128), (20, 300, 32)])
def test_sample_is_pillows_antialiased_bicubic(height: int, width: int, size: int) -> None:
    part = colours(height, width, seed=3)
    want = np.asarray(Image.fromarray(part).resize((size, size), Image.Resampling.BICUBIC)).astype(int)
    assert np.abs(sample(part, size) - want).max() <= 2
    assert np.abs(sample(part, size) - want).mean() < 0.1


@pytest.mark.parametrize("smallest", [0.16, 0.5, 1.0])
def test_the_decoder_may_stop_where_the_smallest_crop_still_has_its_pixels(smallest: float) -> None:
    side = Augment(size=100, smallest=smallest).decoded_side
    assert math.sqrt(smallest) * side == pytest.approx(100, abs=1)
    assert Augment(size=224, random=False).decoded_side == 512


def test_areas_are_uniform_and_ratios_are_even_in_logarithm() -> None:
    augment, stream = Augment(smallest=0.1), rng(5)
    boxes = np.array([augment.box(400, 400, stream) for _ in range(3000)], dtype=float)
    w, h = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    areas, logs = w * h / 400**2, np.log(w / h)
    small = areas < 0.5  # larger ones may not fit in every shape
    assert np.quantile(areas[small], [0.25, 0.5, 0.75]) == pytest.approx([0.2, 0.3, 0.4], abs=0.025)
    assert np.quantile(logs[small], [0.25, 0.5, 0.75]) == pytest.approx([-0.144, 0, 0.144], abs=0.03)
    assert ((boxes[:, 0] + boxes[:, 2]) / 2).mean() == pytest.approx(200, abs=4)
    assert boxes[:, 0].min() <= 2
    assert boxes[:, 2].max() >= 398


# ------------------------------------------------------------------------------------------------------------ batches


def labels_of(counts: list[int], seed: int = 0) -> np.ndarray:
    """So many pictures of each class, in no order."""
    labels = np.repeat(np.arange(len(counts)), counts)
    return np.random.default_rng(seed).permutation(labels)


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, int, int]:
    """Labels with at least as many classes of enough pictures as a batch needs, small classes among them."""
    per_class = draw(st.integers(1, 5))
    counts = draw(st.lists(st.integers(1, 24), min_size=2, max_size=9))
    eligible = sum(c >= per_class for c in counts)
    if eligible < 2:
        counts, eligible = [*counts, per_class, per_class + 1], eligible + 2
    return labels_of(counts, draw(st.integers(0, 99))), draw(st.integers(1, eligible)), per_class


@given(problems(), st.integers(0, 1000), st.integers(0, 20))
def test_batches_are_balanced_distinct_and_class_by_class(
    problem: tuple[np.ndarray, int, int], seed: int, e: int
) -> None:
    labels, classes, per_class = problem
    batches = BalancedBatches(labels, classes, per_class, seed=seed)
    epoch = batches.epoch(e)
    assert len(epoch) == len(batches)
    np.testing.assert_array_equal(batches.batch(e * len(epoch)), epoch[0])
    for batch in epoch:
        assert batch.dtype == np.int64
        assert len(np.unique(batch)) == len(batch) == classes * per_class
        rows = labels[batch].reshape(classes, per_class)
        assert (rows == rows[:, :1]).all()
        assert len(np.unique(rows[:, 0])) == classes


@given(problems(), st.integers(0, 1000))
def test_every_picture_has_its_turn(problem: tuple[np.ndarray, int, int], seed: int) -> None:
    """Within as many epochs as the largest class needs for a pass, each picture of each eligible class was seen."""
    labels, classes, per_class = problem
    batches = BalancedBatches(labels, classes, per_class, seed=seed)
    hands = -(-np.bincount(labels).max() // per_class)
    seen = np.concatenate([b for e in range(-(-hands // len(batches))) for b in batches.epoch(e)])
    eligible = np.isin(labels, batches.left_out, invert=True)
    assert set(seen.tolist()) == set(np.flatnonzero(eligible).tolist())


@given(problems(), st.integers(0, 1000), st.integers(0, 5))
def test_an_epoch_is_a_function_of_seed_and_number(problem: tuple[np.ndarray, int, int], seed: int, e: int) -> None:
    labels, classes, per_class = problem
    one, two = (BalancedBatches(labels, classes, per_class, seed=seed) for _ in range(2))
    one.epoch(e + 1)
    np.testing.assert_array_equal(np.stack(one.epoch(e)), np.stack(two.epoch(e)))


def test_epochs_and_seeds_shuffle_anew() -> None:
    labels = labels_of([12] * 8)
    batches = BalancedBatches(labels, 4, 3)
    first, second, other = batches.epoch(0), batches.epoch(1), BalancedBatches(labels, 4, 3, seed=1).epoch(0)
    assert not np.array_equal(np.stack(first), np.stack(other))
    met = [[tuple(sorted(set(labels[b]))) for b in epoch] for epoch in (first, second)]
    assert len({*met[0], *met[1]}) > 4  # not the same classes together again and again
    assert met[0] != met[1]


def test_where_it_divides_an_epoch_is_a_permutation() -> None:
    """6 classes of 8, batches of 3 × 4: 12 hands in 4 batches, each picture once."""
    batches = BalancedBatches(labels_of([8] * 6), 3, 4)
    assert len(batches) == 4
    assert sorted(np.concatenate(batches.epoch(3)).tolist()) == list(range(48))


def test_by_hand_a_last_hand_is_filled_up_from_its_own_class() -> None:
    """2 classes of 5, batches of 2 × 4: two hands a class, the second with the one left over and three seen before."""
    batches = BalancedBatches([0] * 5 + [1] * 5, 2, 4)
    a, b = batches.epoch(0)
    for members in (range(5), range(5, 10)):
        ours = [set(x.tolist()) & set(members) for x in (a, b)]
        assert [len(x) for x in ours] == [4, 4]
        assert ours[0] | ours[1] == set(members)


def test_a_class_that_outnumbers_the_others_goes_on_in_the_next_epoch() -> None:
    """100 of one class and 4 of three others: 28 hands make 7 batches of 4; the large class needs 25 of its own."""
    labels = np.repeat([0, 1, 2, 3], [100, 4, 4, 4])
    batches = BalancedBatches(labels, 4, 4)
    assert len(batches) == 7
    seen = [np.concatenate(batches.epoch(e)) for e in range(4)]
    large = [x[labels[x] == 0] for x in seen]
    assert [len(x) for x in large] == [28] * 4
    assert len(np.unique(np.concatenate(large[:3]))) == 84  # no picture twice before all have been seen
    assert len(np.unique(np.concatenate(large))) == 100


def test_small_classes_are_left_out_and_named() -> None:
    batches = BalancedBatches([0, 0, 0, 1, 2, 2, 3, 3], 3, 2)
    assert batches.left_out == (1,)
    assert 3 not in np.concatenate([b for e in range(5) for b in batches.epoch(e)])


def test_too_few_classes_are_refused_with_the_fix() -> None:
    with pytest.raises(InputError, match=r"classes: expected at most 2, the classes of 3 that have 2 or more"):
        BalancedBatches([0, 0, 1, 1, 2], 3, 2)


# ------------------------------------------------------------------------------------------------------------ loading


SMALL = Augment(size=16, shortest=20)
STILL = Augment(size=16, random=False, shortest=20)


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
    st.integers(1, 3),
    st.integers(0, 5),
    st.integers(0, 10**6),
    st.sampled_from([None, 8, 24, 100]),
)
def test_bytes_are_a_function_of_seed_step_index_and_view(
    indices: list[int], workers: int, seed: int, step: int, keep_side: int | None
) -> None:
    loader = Loader(ARRAYS, LABELS, SMALL, views=2, seed=seed, workers=workers, keep_side=keep_side)
    ((_, _, batch),) = loader.ahead([indices], step)
    assert batch.shape == (2, len(indices), 16, 16, 3)
    alone = Loader(ARRAYS, LABELS, SMALL, views=2, seed=seed, keep_side=keep_side)
    for k, i in enumerate(indices):
        np.testing.assert_array_equal(batch[:, k], alone.load([i], step)[1][:, 0])


def test_an_untouched_crop_is_the_evaluation_crop(album: list[Path]) -> None:
    batch = Loader(album, LABELS, STILL, views=2).load([3, 5], 9)[1]
    for k, i in enumerate((3, 5)):
        for view in batch[:, k]:
            np.testing.assert_array_equal(view, crop(media.read_array(album[i]), 16, 20))


# ------------------------------------------------------------------------------------------------------------- ahead


@pytest.mark.parametrize("workers", [1, 3])
def test_ahead_gives_what_load_gives_in_order(workers: int) -> None:
    batches = [[0, 4, 8], [1, 5], [11, 0, 3], [7], [2, 2]]
    loader = Loader(ARRAYS, LABELS, SMALL, views=2, workers=workers)
    seen = list(loader.ahead(batches, start=7))
    assert [step for step, _, _ in seen] == [7, 8, 9, 10, 11]
    for (step, indices, arrays), batch in zip(seen, batches, strict=True):
        assert indices.tolist() == batch
        assert indices.dtype == np.int64
        np.testing.assert_array_equal(arrays, loader.load(batch, step)[1])
    assert list(loader.ahead([])) == []


def test_batches_are_asked_for_a_little_ahead_and_without_end() -> None:
    asked = []

    def forever() -> object:
        while True:
            asked.append(len(asked))
            yield [len(asked) % 12]

    before = set(threading.enumerate())  # loaders of other tests may still wait for the garbage collector
    batches = Loader(ARRAYS, LABELS, SMALL).ahead(forever())  # type: ignore[arg-type]
    for k in range(5):
        assert next(batches)[0] == k
        assert len(asked) == k + 1 + LOOKAHEAD
    assert set(threading.enumerate()) - before
    batches.close()
    assert not set(threading.enumerate()) - before


# --------------------------------------------------------------------------------------------------- what is kept


def test_kept_pictures_are_decoded_once_and_are_the_same(album: list[Path]) -> None:
    fresh = Loader(album, LABELS, SMALL, keep_side=24).load(np.arange(12), 5)[1]
    loader = Loader(album, LABELS, SMALL, keep_side=24)
    loader.load(np.arange(12), 0)[1]
    for path in album:
        path.unlink()
    np.testing.assert_array_equal(loader.load(np.arange(12), 5)[1], fresh)
    assert loader.skipped == ()


def test_kept_pictures_have_the_side_asked_for_and_are_never_blown_up() -> None:
    """40 × 50 kept at 20: its centre crop is that of the picture at 25 × 20; kept at 100 it is the picture's own."""
    small = np.asarray(Image.fromarray(ARRAYS[0]).resize((25, 20), Image.Resampling.BICUBIC))
    kept = Loader(ARRAYS, LABELS, STILL, keep_side=20).load([0], 0)[1][0, 0]
    np.testing.assert_array_equal(kept, crop(small, 16, 20))
    whole = Loader(ARRAYS, LABELS, STILL, keep_side=100).load([0], 0)[1][0, 0]
    np.testing.assert_array_equal(whole, crop(ARRAYS[0], 16, 20))


# ---------------------------------------------------------------------------------------------------------- bad files


@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_file_is_named_counted_and_replaced_from_its_class(album: list[Path], workers: int) -> None:
    spoil(album[1])
    album[6].unlink()
    loader = Loader(album, LABELS, SMALL, views=2, workers=workers)
    ((_, indices, arrays),) = loader.ahead([[0, 1, 4, 6]], start=3)
    assert indices.tolist() == [0, 2, 4, 7]
    np.testing.assert_array_equal(arrays, loader.load([0, 2, 4, 7], 3)[1])
    assert [s.index for s in loader.skipped] == [1, 6]
    assert [Path(s.name).name for s in loader.skipped] == ["1.jpg", "6.jpg"]
    assert "truncated" in loader.skipped[0].reason
    assert "no such file" in loader.skipped[1].reason


def test_a_bad_file_is_opened_once(album: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(album[0])
    opened, read_array = [], media.read_array
    monkeypatch.setattr(media, "read_array", lambda p, **k: (opened.append(Path(p)), read_array(p, **k))[1])
    loader = Loader(album, LABELS, SMALL)
    for step in range(3):
        loader.load([0, 4], step)[1]
    assert opened.count(album[0]) == 1
    assert len(loader.skipped) == 1


def test_a_class_without_any_readable_file_is_replaced_by_others_with_their_own_labels(album: list[Path]) -> None:
    for i in range(4):
        spoil(album[i])
    loader = Loader(album, LABELS, STILL)
    ((_, indices, arrays),) = loader.ahead([[0, 1, 4]])
    assert set(LABELS[indices]) <= {1, 2}
    assert len(set(indices.tolist())) == 3
    for i, got in zip(indices, arrays[0], strict=True):
        np.testing.assert_array_equal(got, crop(media.read_array(album[i]), 16, 20))
    assert len(loader.skipped) == 4


@given(st.sets(st.integers(0, 11), max_size=9), st.permutations(range(12)), st.integers(1, 3))
def test_whatever_is_bad_threads_do_not_matter(bad: set[int], order: list[int], workers: int) -> None:
    items = [np.zeros(3) if i in bad else a for i, a in enumerate(ARRAYS)]  # a vector is no picture
    batches = [order[:5], order[5:9], order[:3]]
    seen = list(Loader(items, LABELS, STILL, workers=workers).ahead(batches))
    alone = Loader(items, LABELS, STILL)
    want = [alone.load(batch, step) for step, batch in enumerate(batches)]
    for (_, i, x), (j, y) in zip(seen, want, strict=True):
        np.testing.assert_array_equal(i, j)
        np.testing.assert_array_equal(x, y)
        assert not set(i.tolist()) & bad


def test_when_nothing_can_be_read_it_says_so(album: list[Path]) -> None:
    for path in album:
        spoil(path)
    with pytest.raises(FileError, match=r"none of the 12 images can be read; the first: .*0\.jpg: damaged"):
        Loader(album, LABELS, SMALL).load([0, 5], 0)[1]


def test_errors_that_are_not_the_pictures_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> np.ndarray:
        raise MemoryError("full")

    monkeypatch.setattr(Augment, "__call__", broken)
    with pytest.raises(MemoryError, match="full"):
        Loader(ARRAYS, LABELS, SMALL).load([0], 0)[1]


def test_indices_out_of_range_are_named() -> None:
    loader = Loader(ARRAYS, LABELS, SMALL)
    with pytest.raises(InputError, match="indices: expected numbers in 0 … 11, got 0 to 12"):
        loader.load([0, 12], 0)[1]
    with pytest.raises(ShapeError, match="indices: "):
        loader.load([], 0)[1]
