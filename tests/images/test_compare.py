"""compare(a, b) of the images level: the number, its JSON, its picture."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import arrays

import likewise as lw
from likewise import media
from likewise.errors import FileError, InputError, ShapeError


class Mean:
    """An embedder with an answer known by hand: the mean colour of a picture, not of unit length."""

    name = "mean colour"

    def embed(self, images: list[np.ndarray]) -> np.ndarray:
        return np.stack([a.reshape(-1, 3).mean(axis=0) for a in images])


def flat(*colour: int) -> np.ndarray:
    return np.full((4, 6, 3), colour, np.uint8)


def test_distance_by_hand() -> None:
    c = lw.images.compare(flat(200, 0, 0), flat(0, 90, 0), model=Mean())
    assert c.distance == pytest.approx(np.sqrt(2))
    assert c.cosine == 0
    assert lw.images.compare(flat(200, 0, 0), flat(10, 0, 0), model=Mean()).distance == pytest.approx(0, abs=1e-12)


@given(a=arrays(np.uint8, (2, 2, 3)), b=arrays(np.uint8, (2, 2, 3)))
def test_distance_is_symmetric_and_follows_the_cosine(a: np.ndarray, b: np.ndarray) -> None:
    a[0, 0], b[0, 0] = 255, 255  # so that no mean is zero
    c, d = lw.images.compare(a, b, model=Mean()), lw.images.compare(b, a, model=Mean())
    assert c.distance == d.distance
    assert c.distance**2 == pytest.approx(2 - 2 * c.cosine, abs=1e-12)
    assert 0 <= c.distance <= 2


def test_a_picture_with_itself_is_the_smallest_and_files_are_named(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in "ab":
        media.write_image(tmp_path / f"{name}.png", rng.integers(0, 256, (50, 60, 3), dtype=np.uint8))
    same = lw.images.compare(tmp_path / "a.png", tmp_path / "a.png")
    other = lw.images.compare(tmp_path / "a.png", tmp_path / "b.png")
    assert same.distance <= 1e-6 < other.distance
    assert repr(other).startswith("ImageComparison(distance=")
    assert "a.png ↔ b.png, efficientnet-lite0-imagenet)" in repr(other)
    rows = lw.images.default().embed([tmp_path / "a.png", tmp_path / "b.png"]).astype(float)
    assert other.distance == pytest.approx(float(np.linalg.norm(rows[0] - rows[1])), abs=1e-6)


def test_json_and_picture_are_written(tmp_path: Path) -> None:
    c = lw.images.compare(flat(200, 10, 0), flat(0, 90, 0), model=Mean())
    assert isinstance(c, lw.Comparison)
    written = json.loads(c.to_json(tmp_path / "c.json"))
    assert written == json.loads((tmp_path / "c.json").read_text()) == c.to_dict()
    assert written == {
        "level": "images",
        "distance": c.distance,
        "cosine": c.cosine,
        "a": "a",
        "b": "b",
        "model": "mean colour",
    }
    figure = c.plot(tmp_path / "c.png")
    shown = [axes.images[0].get_array() for axes in figure.axes]
    np.testing.assert_array_equal(shown[0], flat(200, 10, 0))
    np.testing.assert_array_equal(shown[1], flat(0, 90, 0))
    assert f"{c.distance:.3f}" in figure.get_suptitle()
    assert media.read_array(tmp_path / "c.png").shape[2] == 3
    assert sorted(p.name for p in tmp_path.iterdir()) == ["c.json", "c.png"]


def test_names_with_dollar_signs_can_be_drawn(tmp_path: Path) -> None:
    media.write_image(tmp_path / "$x^{.png", flat(1, 2, 3))
    lw.images.compare(tmp_path / "$x^{.png", flat(3, 2, 1), model=Mean()).plot(tmp_path / "c.png")


def test_wrong_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="b: expected a path"):
        lw.images.compare(flat(1, 2, 3), 7, model=Mean())  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="a: expected"):
        lw.images.compare(np.zeros((3, 4, 4, 4), np.uint8), flat(1, 2, 3), model=Mean())
    with pytest.raises(FileError, match="folder"):
        lw.images.compare(tmp_path, flat(1, 2, 3), model=Mean())

    class Odd:
        def embed(self, images: list[np.ndarray]) -> np.ndarray:
            return np.zeros(3)

    with pytest.raises(ShapeError, match=r"model: its embed gave shape \(3,\)"):
        lw.images.compare(flat(1, 2, 3), flat(1, 2, 3), model=Odd())
