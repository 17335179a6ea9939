"""Augmentation: crops stay within the picture, shapes and areas are those asked for, the same seed the same bytes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from likewise.errors import ConfigError, ShapeError
from likewise.images.augment import Augment, centre, sampled
from likewise.nn import backbone as preparation

SIDES = st.integers(1, 90)


def scene(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Smooth colours, so that resampling is not judged on noise."""
    small = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return np.array(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(SIDES, SIDES, st.integers(0, 99), st.sampled_from(["random-resized", "crop"]))
def test_a_box_is_within_the_picture_and_not_empty(height: int, width: int, seed: int, mode: str) -> None:
    left, top, right, bottom = Augment(size=12, mode=mode, shortest=16).box(height, width, rng(seed))  # type: ignore[arg-type]
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height


@given(SIDES, SIDES, st.sampled_from(["random-resized", "crop", "none"]), st.integers(0, 99))
def test_any_picture_gives_the_size_asked_for_and_the_same_bytes_again(
    height: int, width: int, mode: str, seed: int
) -> None:
    augment = Augment(size=9, mode=mode, shortest=11)  # type: ignore[arg-type]
    array = rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    one, two = augment(array, rng(seed)), augment(array, rng(seed))
    assert one.shape == (9, 9, 3)
    assert one.dtype == np.uint8
    assert one.flags.c_contiguous
    assert one.tobytes() == two.tobytes()


@given(st.integers(0, 99), st.floats(0.05, 0.9))
def test_random_resized_has_the_area_and_the_shape_asked_for(seed: int, low: float) -> None:
    left, top, right, bottom = Augment(scale=(low, 1.0), ratio=(0.75, 4 / 3)).box(600, 600, rng(seed))
    w, h = right - left, bottom - top
    assert low * 0.98 <= w * h / 600**2 <= 1
    assert 0.74 <= w / h <= 1.35


def test_areas_are_uniform_and_ratios_are_even_in_logarithm() -> None:
    augment, stream = Augment(scale=(0.1, 0.5)), rng(5)
    boxes = np.array([augment.box(400, 400, stream) for _ in range(3000)], dtype=float)
    w, h = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    areas, logs = w * h / 400**2, np.log(w / h)
    assert np.quantile(areas, [0.25, 0.5, 0.75]) == pytest.approx([0.2, 0.3, 0.4], abs=0.02)
    assert np.quantile(logs, [0.25, 0.5, 0.75]) == pytest.approx([-0.144, 0, 0.144], abs=0.03)
    centres = (boxes[:, 0] + boxes[:, 2]) / 2
    assert centres.mean() == pytest.approx(200, abs=4)
    assert boxes[:, 0].min() <= 2
    assert boxes[:, 2].max() >= 398


def test_a_picture_too_long_for_any_draw_gives_its_middle() -> None:
    """1000 × 10 with shapes up to 4 : 3: the largest such part is 13 × 10."""
    assert Augment(scale=(1.0, 1.0)).box(10, 1000, rng()) == (493, 0, 506, 10)
    assert Augment(scale=(1.0, 1.0)).box(1000, 10, rng()) == (0, 493, 10, 506)


def test_crop_takes_squares_of_the_share_asked_for_from_everywhere() -> None:
    augment, stream = Augment(size=224, mode="crop", shortest=256), rng(1)
    boxes = np.array([augment.box(256, 512, stream) for _ in range(800)])
    assert set(boxes[:, 2] - boxes[:, 0]) == set(boxes[:, 3] - boxes[:, 1]) == {224}
    assert boxes[:, 0].min() <= 3
    assert boxes[:, 0].max() >= 285
    assert {boxes[:, 1].min(), boxes[:, 1].max()} == {0, 32}


def test_half_are_mirrored_and_none_without_flip() -> None:
    """A picture that is dark on the left: a mirrored crop of nearly all of it is dark on the right."""
    array = np.zeros((40, 40, 3), dtype=np.uint8)
    array[:, 20:] = 255
    for flip, low, high in ((True, 0.4, 0.6), (False, 0.0, 0.0)):
        augment, stream = Augment(size=16, scale=(0.9, 1.0), ratio=(1.0, 1.0), flip=flip), rng(2)
        share = np.mean([augment(array, stream)[:, 0].mean() > 128 for _ in range(300)])
        assert low <= share <= high


def test_a_mirrored_crop_is_the_mirror_of_the_crop() -> None:
    array = scene(60, 80)
    plain = Augment(size=32, flip=False)
    for seed in range(8):
        crop, either = plain(array, rng(seed)), Augment(size=32)(array, rng(seed))
        same = np.array_equal(crop, either)
        assert same or np.abs(crop[:, ::-1].astype(int) - either).max() <= 1


def test_none_is_the_evaluation_crop_whatever_the_seed() -> None:
    array = scene(70, 50)
    augment = Augment(size=24, mode="none", shortest=30)
    np.testing.assert_array_equal(augment(array, rng(0)), augment(array, rng(1)))
    np.testing.assert_array_equal(augment(array, rng(0)), centre(array, 24, 30))


def test_centre_is_the_backbones_crop_and_the_middle() -> None:
    array = scene(300, 400)
    np.testing.assert_array_equal(centre(array), preparation.crop(array))
    exact = scene(30, 40)  # shortest 30 → 30, the 24 in the middle, nothing resampled
    np.testing.assert_array_equal(centre(exact, 24, 30), exact[3:27, 8:32])


@pytest.mark.parametrize(("height", "width", "size"), [(60, 45, 128), (200, 180, 64), (333, 250, 128), (20, 300, 32)])
def test_sampled_is_pillows_antialiased_bicubic(height: int, width: int, size: int) -> None:
    part = scene(height, width, seed=3)
    want = np.asarray(Image.fromarray(part).resize((size, size), Image.Resampling.BICUBIC)).astype(int)
    assert np.abs(sampled(part, size) - want).max() <= 2
    assert np.abs(sampled(part, size) - want).mean() < 0.1


def test_sampling_down_is_antialiased() -> None:
    """Single-pixel stripes average to grey; picking pixels would leave stripes."""
    stripes = np.zeros((128, 128, 3), dtype=np.uint8)
    stripes[:, ::2] = 255
    small = sampled(stripes, 32).astype(int)
    assert np.abs(small[:, 4:-4] - 127.5).max() < 4


def test_strided_and_read_only_parts_are_taken() -> None:
    array = scene(40, 40)
    array.flags.writeable = False
    np.testing.assert_array_equal(sampled(array[4:30, 5:25], 16), sampled(array[4:30, 5:25].copy(), 16))


@pytest.mark.parametrize("smallest", [0.16, 0.5, 1.0])
def test_the_decoder_may_stop_where_the_smallest_crop_still_has_its_pixels(smallest: float) -> None:
    side = Augment(size=100, scale=(smallest, 1.0)).decoded_side
    assert math.sqrt(smallest) * side == pytest.approx(100, abs=1)
    assert Augment(size=224, mode="crop").decoded_side == 512


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"mode": "zoom"}, "mode: expected one of random-resized, crop, none, got 'zoom'"),
        ({"size": 0}, "size: expected a whole number ≥ 1, got 0"),
        ({"mode": "crop", "size": 300}, "shortest: expected a whole number ≥ 300, got 256"),
        ({"scale": (0.0, 1.0)}, "scale: .* got"),
        ({"scale": (0.5, 0.2)}, "scale: .* low ≤ high"),
        ({"ratio": (2.0, 1.0)}, "ratio: "),
    ],
)
def test_wrong_options_are_named(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Augment(**wrong)  # type: ignore[arg-type]


def test_wrong_arrays_are_named() -> None:
    for wrong in (np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3)), np.zeros((0, 4, 3), np.uint8), [[1]]):
        for call in (lambda a: centre(a, 4, 4), lambda a: Augment(size=4)(a, rng())):
            with pytest.raises(ShapeError, match=r"array: expected uint8 \(h, w, 3\), got"):
                call(wrong)
    with pytest.raises(ConfigError, match="shortest: expected a whole number ≥ 8, got 4"):
        centre(scene(9, 9), 8, 4)
