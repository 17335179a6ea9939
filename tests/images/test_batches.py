"""Balanced batches: distinct pictures, the right number of each class, a turn for every picture, the same each time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from likewise.errors import InputError, ShapeError
from likewise.images.batches import BalancedBatches


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
    for batch in epoch:
        assert batch.dtype == np.int64
        assert len(np.unique(batch)) == len(batch) == batches.batch_size == classes * per_class
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
    assert not np.array_equal(np.stack(first), np.stack(second))
    assert not np.array_equal(np.stack(first), np.stack(other))
    met = [[tuple(sorted(set(labels[b]))) for b in epoch] for epoch in (first, second)]
    assert len({*met[0], *met[1]}) > 4  # not the same classes together again and again
    assert met[0] != met[1]
    hands = [{frozenset(h) for b in epoch for h in b.reshape(4, 3).tolist()} for epoch in (first, second)]
    assert len(hands[0] & hands[1]) < 8  # nor the same pictures


def test_places_that_stay_empty_are_filled_with_other_pictures_each_time() -> None:
    """7 hands in 4 batches of 2: one hand more, of one class or another, not always the same pictures of it."""
    batches = BalancedBatches(np.repeat([0, 1, 2], [2, 6, 6]), 2, 2)
    seen = [np.bincount(np.concatenate(batches.epoch(e)), minlength=14) for e in range(20)]
    assert all(counts.min() == 1 and counts.max() == 2 and counts.sum() == 16 for counts in seen)
    assert len({tuple(np.flatnonzero(counts == 2)) for counts in seen}) > 3


def test_small_classes_are_spread_over_the_epoch() -> None:
    labels = np.repeat(np.arange(10), [40] * 5 + [8] * 5)
    batches = BalancedBatches(labels, 3, 4)
    places = [t for e in range(20) for t, b in enumerate(batches.epoch(e)) if (labels[b] >= 5).any()]
    assert np.mean(places) / (len(batches) - 1) == pytest.approx(0.5, abs=0.06)


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


@pytest.mark.parametrize("classes", [2, 5])
def test_classes_appear_by_their_size(classes: int) -> None:
    labels = np.repeat(np.arange(10), [40] * 5 + [8] * 5)
    drawn = np.concatenate([b for e in range(6) for b in BalancedBatches(labels, classes, 4).epoch(e)])
    per_picture = np.bincount(drawn, minlength=len(labels)) / 6
    assert per_picture[:200].mean() == pytest.approx(1, abs=0.05)
    assert per_picture[200:].mean() == pytest.approx(1, abs=0.05)


def test_small_classes_are_left_out_and_named() -> None:
    batches = BalancedBatches([0, 0, 0, 1, 2, 2, 3, 3], 3, 2)
    assert batches.left_out == (1,)
    assert 3 not in np.concatenate([b for e in range(5) for b in batches.epoch(e)])


def test_labels_need_not_count_from_zero() -> None:
    batches = BalancedBatches([7, 7, -2, -2, 90, 90], 2, 2)
    assert all(len(b) == 4 for b in batches.epoch(0))
    assert BalancedBatches([7, 7, -2], 1, 2).left_out == (-2,)


def test_refusals_name_the_argument_and_the_fix() -> None:
    with pytest.raises(InputError, match=r"classes: expected at most 2, the classes of 3 that have 2 or more"):
        BalancedBatches([0, 0, 1, 1, 2], 3, 2)
    with pytest.raises(InputError, match="per_class: expected a whole number ≥ 1, got 0"):
        BalancedBatches([0, 0], 1, 0)
    with pytest.raises(InputError, match=r"seed: .* got -1"):
        BalancedBatches([0, 0], 1, 1, seed=-1)
    with pytest.raises(InputError, match="labels: expected whole numbers, got float64"):
        BalancedBatches([0.5, 1.0], 1, 1)
    with pytest.raises(ShapeError, match=r"labels: expected \(n,\)"):
        BalancedBatches([], 1, 1)
    with pytest.raises(InputError, match="e: expected a whole number ≥ 0"):
        BalancedBatches([0, 0], 1, 1).epoch(-1)


def test_thousands_of_small_classes() -> None:
    """The shape of SOP: 11,000 classes of about five; half of the pictures' hands fit no batch evenly."""
    counts = np.random.default_rng(0).integers(2, 9, 2000)
    batches = BalancedBatches(np.repeat(np.arange(2000), counts), 50, 2)
    epoch = batches.epoch(0)
    assert len(epoch) == pytest.approx(counts.sum() / 100, rel=0.2)
    assert len(np.unique(np.concatenate(epoch))) == counts.sum()
