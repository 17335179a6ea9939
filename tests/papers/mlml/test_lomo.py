"""LOMO by hand, against naive loops, and under what it is meant to ignore."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest

from likewise.errors import InputError
from likewise.papers.mlml import lomo as m

RNG = np.random.default_rng(0)
PERSON = RNG.integers(0, 256, (128, 48, 3)).astype(np.uint8)
COLOURS = 512 * (24 + 11 + 5)


def naive(image):
    """The feature by its definition: every window, pixel by pixel."""
    rgb, parts = image / 255, ([], [])
    for _ in range(3):
        h, w = rgb.shape[:2]
        grey = 0.299 * rgb[..., 0] + 0.587 * rgb[..., 1] + 0.114 * rgb[..., 2]
        shades = np.empty((h, w), int)
        textures = {r: np.zeros((h, w), int) for r in (3, 5)}
        for y in range(h):
            for x in range(w):
                hue, saturation, value = (min(int(8 * v + 1e-9), 7) for v in colorsys.rgb_to_hsv(*rgb[y, x]))
                shades[y, x] = 64 * hue + 8 * saturation + value
                for r, codes in textures.items():
                    for k, (dy, dx) in enumerate([(0, r), (r, 0), (0, -r), (-r, 0)]):
                        near = grey[min(max(y + dy, 0), h - 1), min(max(x + dx, 0), w - 1)]
                        digit = 1 if near > 1.3 * grey[y, x] + 1e-9 else 2 if near < 0.7 * grey[y, x] - 1e-9 else 0
                        codes[y, x] += digit * 3**k
        for out, codes, bins in ((0, shades, 512), (1, textures[3], 81), (1, textures[5], 81)):
            for y in range(0, h - 9, 5):
                windows = [codes[y : y + 10, x : x + 10].ravel() for x in range(0, w - 9, 5)]
                parts[out].append(np.max([np.bincount(v, minlength=bins) for v in windows], axis=0))
        rgb = (rgb[::2, ::2] + rgb[1::2, ::2] + rgb[::2, 1::2] + rgb[1::2, 1::2]) / 4
    logs = [np.log(1 + np.concatenate(part)) for part in parts]
    return np.concatenate([part / np.sqrt((part**2).sum()) for part in logs])


def smooth(shape=(128, 48)):
    """Colours that change slowly, so that patterns of all kinds and few bins occur."""
    y, x = np.indices(shape)
    waves = np.stack([np.sin(x / 5 + y / 9), np.cos(x / 3 - y / 7), np.sin(y / 4)], axis=2)
    return np.round(127 + 120 * waves).astype(np.uint8)


def test_it_has_26_960_numbers_in_two_parts_of_unit_length():
    feature = m.lomo(PERSON)
    assert feature.shape == (26_960,)
    assert np.linalg.norm(feature[:COLOURS]) == pytest.approx(1)
    assert np.linalg.norm(feature[COLOURS:]) == pytest.approx(1)


@pytest.mark.parametrize("image", [PERSON, smooth()], ids=["noise", "waves"])
def test_it_is_its_definition(image):
    assert m.lomo(image) == pytest.approx(naive(image), abs=1e-12)


def test_siltp_by_hand():
    """Of the middle: right 14 > 13 is 1, below 6 < 7 is 2, left 13 is not above 13, above 7 is not below 7."""
    patch = np.array([[0.0, 7, 0], [13, 10, 14], [0, 6, 0]])
    assert m.siltp(patch, 1)[1, 1] == 1 + 3 * 2
    # Of the upper middle, 7: right 0 and left 0 are 2, below 10 > 9.1 is 1, above is itself beyond the border.
    assert m.siltp(patch, 1)[0, 1] == 2 + 3 * 1 + 9 * 2
    assert m.siltp(patch, 1, tau=0.5)[1, 1] == 0


def test_a_tie_is_no_difference_and_begins_a_bin():
    """Grey 130 is 1.3 times 100, and 70 is 0.7 times: neither differs. A saturation of ½ is in the upper bin."""
    row = np.array([[70.0, 100, 130]]) / 255
    assert m.siltp(row, 1)[0, 1] == 0
    for value in (50, 100, 98, 202):
        colour = np.full((128, 48, 3), (value, value // 2, value // 2), np.uint8)
        assert np.flatnonzero(m.lomo(colour)[:512]).tolist() == [8 * 4 + value * 8 // 255]


def test_a_window_counts_what_it_holds_and_a_row_of_windows_the_most():
    """Ones fill the left 10 × 10 pixels; of two rows of windows the second holds half of them."""
    codes = np.zeros((15, 20), dtype=np.int64)
    codes[:10, :10] = 1
    assert m.maximal_occurrence(codes, 3).tolist() == [[100, 100, 0], [100, 50, 0]]


def test_textures_do_not_see_the_brightness():
    dark = (smooth() // 2) * 2
    assert m.lomo(dark)[COLOURS:] == pytest.approx(m.lomo(dark // 2)[COLOURS:], abs=1e-12)
    assert np.abs(m.lomo(dark)[:COLOURS] - m.lomo(dark // 2)[:COLOURS]).max() > 0.01


def test_colours_do_not_see_where_in_a_strip_they_stand_but_see_the_height():
    """A patch moves 20 pixels, a whole number of windows at each scale, to the side or down."""
    images = np.full((3, 128, 48, 3), 90, np.uint8)
    for image, (y, x) in zip(images, ((20, 0), (20, 20), (40, 0)), strict=True):
        image[y : y + 20, x : x + 20] = PERSON[:20, :20]
    first, aside, below = (m.lomo(image)[:COLOURS] for image in images)
    assert first == pytest.approx(aside, abs=1e-12)
    assert np.abs(first - below).max() > 0.01


def test_other_sizes_and_refusals():
    assert m.lomo(PERSON[::2], (40, 40)).shape == ((512 + 162) * (7 + 3 + 1),)
    assert m.lomo(PERSON[:100, :30]).shape == (26_960,)
    with pytest.raises(InputError, match="size: expected at least 40 pixels a side"):
        m.lomo(PERSON, (128, 39))
