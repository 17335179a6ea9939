"""Textures: what the wheels carry, a folder, made-up patterns, and how the kernels read them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from likewise.errors import FileError, InputError, ShapeError
from likewise.pixels.rendering import kernels as _raycast
from likewise.pixels.rendering import textures
from likewise.pixels.rendering.textures import (
    HELD_OUT,
    LEVELS,
    Textures,
    collected,
    folder,
    held_out,
    procedural,
)


def test_bundled_photos_are_there_and_have_detail() -> None:
    found = held_out()
    assert found.names == HELD_OUT
    assert len(found) == 12
    assert held_out() is found
    for name, photo in zip(found.names, found, strict=True):
        assert min(photo.shape[:2]) >= 200, name
        assert min(photo.shape[:2]) <= textures.SHORTEST, name
        assert photo.std() > 15, name
        assert textures.detailed(photo) > textures.DETAIL, name


def test_detail_by_hand() -> None:
    columns = np.tile(np.array([0, 10], np.uint8), 48)
    stripes = np.repeat(np.tile(columns, (96, 1))[..., None], 3, axis=2)
    assert textures.detailed(stripes) == pytest.approx(10)  # a step of 10 along x, of 0 along y
    assert textures.detailed(np.full((96, 96, 3), 77, np.uint8)) == 0


def test_a_folder_is_read_and_shrunk(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "inner").mkdir()
    Image.fromarray(rng.integers(0, 255, (300, 500, 3), dtype=np.uint8)).save(tmp_path / "large.png")
    Image.fromarray(rng.integers(0, 255, (100, 80), dtype=np.uint8)).save(tmp_path / "inner" / "grey.png")
    Image.fromarray(rng.integers(0, 255, (20, 80, 3), dtype=np.uint8)).save(tmp_path / "small.png")
    (tmp_path / "notes.txt").write_text("not an image")
    found = folder(tmp_path, shortest=120)
    assert dict(zip(found.names, (p.shape for p in found), strict=True)) == {
        "inner/grey.png": (100, 80, 3),
        "large.png": (120, 200, 3),
    }
    with pytest.raises(FileError, match="holds no image of at least 200 px"):
        folder(tmp_path, shortest=120, least=200)
    ramp = np.linspace(0, 255, 200 * 300).reshape(200, 300).astype(np.uint8)
    Image.fromarray(ramp).save(tmp_path / "smooth.png")
    assert "smooth.png" not in folder(tmp_path).names
    assert "smooth.png" in folder(tmp_path, detail=0).names
    with pytest.raises(FileError, match="no such folder"):
        folder(tmp_path / "missing")


def test_patterns_come_from_their_seed() -> None:
    one, again, other = procedural(1, 12, side=64), procedural(1, 12, side=64), procedural(2, 12, side=64)
    assert len(one) == 12
    for p, q, r in zip(one, again, other, strict=True):
        assert p.shape == (64, 64, 3)
        assert np.array_equal(p, q)
        assert not np.array_equal(p, r)
        assert p.std() > 8
    assert {n.split()[0] for n in one.names} == {name for name, _ in textures.PATTERNS}
    assert np.array_equal(procedural(1, 3, side=64).photos[2], one.photos[2])
    with pytest.raises(InputError, match="n ≥ 1"):
        procedural(0, 0)


def test_arrays_become_textures() -> None:
    grey, colour = np.linspace(0, 1, 64).reshape(8, 8), np.zeros((9, 7, 3), np.uint8)
    found = collected([grey, colour], ["grey", "black"])
    assert [p.shape for p in found] == [(8, 8, 3), (9, 7, 3)]
    assert found.photos[0][0, 1, 2] == round(255 / 63)
    assert (found + found).names == ("grey", "black", "grey", "black")
    assert "2: grey, black" in repr(found)
    assert collected(found) is found
    assert len(collected(None)) > 5
    with pytest.raises(InputError, match="at least one"):
        collected([])
    with pytest.raises(InputError, match="read a folder by folder"):
        collected("photos/")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="texture 0"):
        collected([np.zeros((3, 3, 4), np.uint8)])
    with pytest.raises(InputError, match="names: expected 1"):
        Textures((colour,), ())
    with pytest.raises(ShapeError, match="expected uint8"):
        Textures((colour.astype(float),), ("x",))


def test_levels_halve_and_keep_the_mean_light() -> None:
    photo = np.random.default_rng(0).integers(0, 255, (96, 160, 3), dtype=np.uint8)
    texels, table = Textures((photo, photo[:50]), ("a", "b")).pyramid
    assert table.shape == (2, LEVELS, 3)
    curve = textures.reflectance()
    for k in range(LEVELS):
        at, w, h = table[0, k]
        assert (w, h) == (max(160 >> k, 1), max(96 >> k, 1))
        level = curve[texels[at : at + w * h]].mean(0)
        if 96 % 2**k == 0:
            np.testing.assert_allclose(level, curve[photo].mean((0, 1)), atol=4e-3)
    at, w, h = table[1, 0]
    assert np.array_equal(texels[at : at + w * h].reshape(h, w, 3), photo[:50])
    assert table[1, -1, 0] + 1 == len(texels)


def naive(photo: np.ndarray, u: float, v: float) -> np.ndarray:
    """Bilinear linear light at (u, v) in units of the shorter side, mirrored beyond the borders."""
    light = textures.reflectance()[photo]
    at = []
    for value, size in ((u, photo.shape[1]), (v, photo.shape[0])):
        x = math.fmod(value * min(photo.shape[:2]), 2 * size)
        x = x + 2 * size if x < 0 else x
        x = 2 * size - x if x > size else x
        at.append(min(max(x - 0.5, 0), size - 1))
    x, y = at
    i, j = min(int(x), photo.shape[1] - 2), min(int(y), photo.shape[0] - 2)
    f, g = x - i, y - j
    top = light[j, i] * (1 - f) + light[j, i + 1] * f
    low = light[j + 1, i] * (1 - f) + light[j + 1, i + 1] * f
    return np.asarray(top * (1 - g) + low * g)


PHOTO = np.random.default_rng(1).integers(0, 255, (12, 20, 3), dtype=np.uint8)
PYRAMID = Textures((PHOTO,), ("x",)).pyramid


@given(st.floats(-5, 5), st.floats(-5, 5))
def test_a_near_texture_is_bilinear_and_mirrored(u: float, v: float) -> None:
    out = np.empty(5)
    _raycast.sampled(*PYRAMID, 0, u, v, 1e-3, out)
    np.testing.assert_allclose(out[:3], naive(PHOTO, u, v), atol=1e-9)


@given(st.floats(-3, 3), st.floats(-3, 3), st.floats(-2, 5))
def test_a_far_texture_is_between_two_levels(u: float, v: float, level: float) -> None:
    texels, table = PYRAMID
    out = np.empty(5)
    _raycast.sampled(texels, table, 0, u, v, 2.0**level / 12, out)
    k = min(max(level, 0.0), LEVELS - 1.001)
    found = []
    for n in (int(k), int(k) + 1):
        at, w, h = table[0, n]
        small = texels[at : at + w * h].reshape(h, w, 3)
        small = np.pad(small, ((0, int(h == 1)), (0, int(w == 1)), (0, 0)), "edge")
        # the same place in the smaller image: (u, v) folded at the full size, then scaled
        fold = [abs((x * 12 / s + 1) % 2 - 1) for x, s in ((u, 20), (v, 12))]
        x, y = (min(max(f * s - 0.5, 0), s - 1) for f, s in zip(fold, (w, h), strict=True))
        i, j = min(int(x), max(w - 2, 0)), min(int(y), max(h - 2, 0))
        light = textures.reflectance()[small]
        top = light[j, i] + (x - i) * (light[j, i + 1] - light[j, i])
        low = light[j + 1, i] + (x - i) * (light[j + 1, i + 1] - light[j + 1, i])
        found.append(top + (y - j) * (low - top))
    expected = found[0] + (k - int(k)) * (found[1] - found[0])
    np.testing.assert_allclose(out[:3], expected, atol=1e-7)


@given(st.floats(-3, 3), st.floats(-3, 3))
def test_slopes_are_those_of_the_texture(u: float, v: float) -> None:
    """Green's slope a texel, with the sign of the mirrored direction."""
    out, step = np.empty(5), 1e-6 / 12
    _raycast.sampled(*PYRAMID, 0, u, v, 1e-3, out)
    for axis, (du, dv) in enumerate(((step, 0.0), (0.0, step))):
        ahead, behind = (naive(PHOTO, u + s * du, v + s * dv)[1] for s in (1, -1))
        size = (20, 12)[axis]
        place = abs(((u, v)[axis] * 12 / size + 1) % 2 - 1) * size - 0.5
        if abs(place - round(place)) > 1e-4 and 0 < place < size - 1:
            assert out[3 + axis] == pytest.approx((ahead - behind) / 2e-6, abs=1e-3)
