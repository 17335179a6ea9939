"""What the level reads: signatures of features, folders and videos, .npz, features without a network, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skimage.feature import local_binary_pattern

from likewise.errors import FileError, InputError, LikewiseError
from likewise.inputs import load_signatures
from likewise.sets import data as d
from likewise.types import Signature
from worlds import layouts

SEEDS = st.integers(0, 2**32 - 1)


def means(images):
    """The simplest embedder: the mean colour of each image."""
    return images.mean(dim=(2, 3))


class TestSignature:
    def test_two_heaps(self):
        points = np.array([[0.0, 0], [0, 1], [9, 9], [0, 0.5]])
        s = d.signature(points, 2, names=["a", "b", "far", "middle"])
        assert s.points == pytest.approx(np.array([[0, 0.5], [9, 9]]))
        assert s.weights == pytest.approx([0.75, 0.25])
        assert s.names == ("middle", "far")

    def test_k_at_least_n_gives_the_points(self):
        points = np.arange(6.0).reshape(3, 2)
        for k in (3, 8, None):
            s = d.signature(points, k, names=["a", "b", "c"])
            assert np.array_equal(s.points, points)
            assert s.names == ("a", "b", "c")

    def test_few_distinct_points_are_kept_as_they_are(self):
        s = d.signature([[2.0], [1.0], [2.0], [2.0], [1.0]], 3)
        assert s.points.tolist() == [[2.0], [1.0]]
        assert s.weights == pytest.approx([0.6, 0.4])

    @given(SEEDS)
    def test_means_of_their_members_and_same_bytes(self, seed):
        points = np.random.default_rng(seed).normal(size=(30, 3))
        s, again = d.signature(points, 5, seed=1), d.signature(points, 5, seed=1)
        assert s.points.tobytes() == again.points.tobytes()
        assert s.weights @ s.points == pytest.approx(points.mean(axis=0))
        assert (np.diff(s.weights) <= 0).all()
        nearest = ((points[:, None] - s.points[None]) ** 2).sum(axis=2).argmin(axis=1)
        assert np.bincount(nearest, minlength=5) / 30 == pytest.approx(s.weights)

    @pytest.mark.parametrize(
        ("features", "k", "message"),
        [
            ([[np.nan, 1.0]], 8, "features contain NaN"),
            (np.zeros((0, 3)), 8, "empty"),
            (np.zeros((5, 3)), 0, "k: expected at least 1"),
        ],
    )
    def test_refusals(self, features, k, message):
        with pytest.raises(InputError, match=message):
            d.signature(features, k)


class TestFolders:
    def test_folder_of_images(self, tmp_path):
        for i in (1, 2, 10):
            layouts.picture(tmp_path / f"view{i}.png", i)
        s = d.describe(tmp_path, means, None)
        assert [n.rsplit("/", 1)[1] for n in s.names] == ["view1.png", "view2.png", "view10.png"]
        assert len(d.describe(tmp_path, means, k=2)) == 2

    def test_video(self, tmp_path):
        path = layouts.video(tmp_path / "v.avi", frames=7)
        s = d.describe(path, means, None, every=3)
        assert s.names == tuple(f"{path}#{i}" for i in (0, 3, 6))
        assert s.points == pytest.approx(s.points[0][None].repeat(3, 0), abs=3 / 255)
        assert [f.shape for f in d.thumbnails(s)] == [(120, 160, 3)] * 3

    def test_classes_of_objects(self, tmp_path):
        root = layouts.views(tmp_path, classes=2, objects=11, shots=2)
        items, labels = d.list_sets(root)
        assert [p.name for p in items[:11]] == [str(i) for i in range(1, 12)]
        assert labels == ["1"] * 11 + ["2"] * 11
        assert [len(s) for s in d.read_sets(root, means, None).signatures] == [2] * 22

    def test_objects_without_classes_and_videos(self, tmp_path):
        layouts.picture(tmp_path / "album" / "a.png", 1)
        layouts.video(tmp_path / "film.avi")
        sets = d.read_sets(tmp_path, means, 4, every=4)
        assert (sets.names, sets.labels) == (["album", "film.avi"], None)
        assert [len(s) for s in sets.signatures] == [1, 2]

    def test_what_cannot_be_read_is_named(self, tmp_path):
        root = layouts.views(tmp_path, classes=2, objects=2, shots=2)
        broken = root / "1" / "1" / "000.png"
        broken.write_bytes(broken.read_bytes()[:60])
        sets = d.read_sets(root, means, None, on_error="skip")
        assert [len(s) for s in sets.signatures] == [1, 2, 2, 2]
        assert [name for name, _ in sets.skipped] == [str(broken)]

    def test_nothing_there(self, tmp_path):
        with pytest.raises(FileError, match="no sets found"):
            d.list_sets(tmp_path)
        with pytest.raises(FileError, match="no such folder"):
            d.list_sets(tmp_path / "absent")


class TestNpz:
    def test_round_trip(self, tmp_path):
        sets = [
            Signature([[1.0, 2], [3, 4]], [1, 3], "left", ["a", "b"]),
            Signature([[5.0, 6]], None, "right", ["c"]),
        ]
        layouts.stack_sets(tmp_path / "s.npz", sets, labels=["x", "y"], levels=["left", "right"], names=["a", "b", "c"])
        signatures, labels = load_signatures(tmp_path / "s.npz")
        assert labels == ["x", "y"]
        for a, b in zip(sets, signatures, strict=True):
            assert np.array_equal(a.points, b.points)
            assert np.array_equal(a.weights, b.weights)
            assert (a.level, a.names) == (b.level, b.names)

    def test_one_array_a_signature(self, tmp_path):
        np.savez(tmp_path / "s.npz", s2=np.zeros((2, 3)), s10=np.ones((4, 3)))
        signatures, labels = load_signatures(tmp_path / "s.npz")
        assert [len(s) for s in signatures] == [2, 4]
        assert labels == ["s2", "s10"]
        assert d.read_sets(tmp_path / "s.npz").names == ["s2", "s10"]

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ({"offsets": [0, 2]}, "no points"),
            ({"offsets": [0, 5], "points": np.zeros((2, 3))}, "rise from 0"),
            ({"offsets": [0, 2, 2], "points": np.zeros((2, 3))}, "rise from 0"),
            ({"offsets": [0, 2], "points": np.zeros((2, 3)), "labels": [1, 2]}, "labels has shape"),
            ({"offsets": [0, 2], "points": np.full((2, 3), np.nan)}, "signature 0 contain NaN"),
        ],
    )
    def test_damaged_files(self, tmp_path, arrays, message):
        np.savez(tmp_path / "s.npz", **arrays)
        with pytest.raises(LikewiseError, match=message):
            load_signatures(tmp_path / "s.npz")


class TestFeatures:
    def test_lbp_against_a_naive_loop(self):
        """Blocks of one picture are told apart, and each is the histogram of its own pixels' patterns."""
        image = np.random.default_rng(0).integers(0, 256, (13, 11)).astype(np.uint8)
        codes = local_binary_pattern(np.pad(image, 1, mode="edge"), 8, 1, method="nri_uniform").astype(int)[1:-1, 1:-1]
        expected = np.zeros((6, 59))
        for y in range(13):
            for x in range(11):
                expected[(y * 3 // 13) * 2 + x * 2 // 11, codes[y, x]] += 1
        expected /= expected.sum(axis=1, keepdims=True)
        assert d.block_lbp(image, (3, 2)) == pytest.approx(expected)
        assert d.block_lbp(image, (3, 2), root=True) == pytest.approx(np.sqrt(expected))

    def test_lbp_does_not_see_brightness(self):
        image = np.random.default_rng(1).integers(50, 100, (16, 16)).astype(np.uint8)
        assert np.array_equal(d.block_lbp(image), d.block_lbp(image + 100))

    def test_grey_pixels(self, tmp_path):
        path = layouts.picture(tmp_path / "a.png", 0)
        assert d.describe([path, path], "pixels", None).points.shape == (2, 400)
        assert d.grey_pixels(path, (4, 5)).shape == (1, 20)
        flat = np.full((8, 8, 3), 51, np.uint8)
        assert d.grey_pixels(flat, (2, 2)) == pytest.approx(np.full((1, 4), 0.2))

    def test_refusals(self):
        with pytest.raises(InputError, match="grid"):
            d.block_lbp(np.zeros((4, 4), np.uint8), (8, 8))
        with pytest.raises(InputError, match="image"):
            d.block_lbp(np.zeros((4, 4, 2)))
        with pytest.raises(InputError, match="one row an image"):
            d.describe(np.zeros((1, 4, 4, 3), np.uint8), lambda images: np.zeros((2, 3)))
        with pytest.raises(InputError, match="embed, pixels, lbp"):
            d.describe(np.zeros((4, 4, 3), np.uint8), "sift")
