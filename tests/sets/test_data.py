"""What the level reads: signatures, features, public layouts on made-up files, .npz, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.io import savemat

from likewise.errors import FileError, InputError, LikewiseError, ShapeError
from likewise.sets import data as d
from likewise.sets import features as f
from likewise.types import Signature
from worlds import layouts

SEEDS = st.integers(0, 2**32 - 1)


def means(pictures):
    """The simplest embedder: the mean colour of each picture."""
    from likewise.media import read_array

    return np.stack([(p if isinstance(p, np.ndarray) else read_array(p)).reshape(-1, 3).mean(axis=0) for p in pictures])


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
    def test_folder_of_pictures(self, tmp_path):
        for i in (1, 2, 10):
            layouts.picture(tmp_path / f"view{i}.png", i)
        s = d.from_folder(tmp_path, means)
        assert [n.rsplit("/", 1)[1] for n in s.names] == ["view1.png", "view2.png", "view10.png"]
        assert len(d.from_folder(tmp_path, means, k=2)) == 2

    def test_empty_folder_is_refused(self, tmp_path):
        with pytest.raises(FileError, match="no pictures"):
            d.from_folder(tmp_path, means)

    def test_describe_of_the_wrong_length_is_refused(self, tmp_path):
        layouts.picture(tmp_path / "a.png", 0)
        with pytest.raises(ShapeError, match=r"describe: expected \(1, d\)"):
            d.from_folder(tmp_path, lambda pictures: np.zeros((2, 3)))

    def test_video(self, tmp_path):
        path = layouts.video(tmp_path / "v.avi", frames=7)
        s = d.from_video(path, means, k=None, every=3, batch=2)
        assert s.names == tuple(f"{path}#{i}" for i in (0, 3, 6))
        assert s.points == pytest.approx(s.points[0][None].repeat(3, 0), abs=3)

    def test_classes_of_objects(self, tmp_path):
        c = d.collection(layouts.views(tmp_path, classes=2, objects=11, shots=2))
        assert [p.name for p in c.items[:11]] == [str(i) for i in range(1, 12)]
        assert c.labels == ("1",) * 11 + ("2",) * 11
        assert [len(s) for s in c.signatures(means, k=None)] == [2] * 22

    def test_objects_without_classes_and_videos(self, tmp_path):
        layouts.picture(tmp_path / "album" / "a.png", 1)
        layouts.video(tmp_path / "film.avi")
        c = d.collection(tmp_path)
        assert [p.name for p in c.items] == ["album", "film.avi"]
        assert c.labels is None
        assert [len(s) for s in c.signatures(means, k=4, every=4)] == [1, 2]

    def test_nothing_there(self, tmp_path):
        with pytest.raises(FileError, match="no sets found"):
            d.collection(tmp_path)
        with pytest.raises(FileError, match="no such folder"):
            d.collection(tmp_path / "absent")


class TestNpz:
    def test_round_trip(self, tmp_path):
        sets = [
            Signature([[1.0, 2], [3, 4]], [1, 3], "left", ["a", "b"]),
            Signature([[5.0, 6]], None, "right", ["c"]),
        ]
        d.save_npz(tmp_path / "s.npz", sets, ["x", "y"])
        read = d.load_npz(tmp_path / "s.npz")
        assert read.labels.tolist() == ["x", "y"]
        for a, b in zip(sets, read.signatures, strict=True):
            assert np.array_equal(a.points, b.points)
            assert np.array_equal(a.weights, b.weights)
            assert (a.level, a.names) == (b.level, b.names)

    def test_one_array_a_signature(self, tmp_path):
        np.savez(tmp_path / "s.npz", s2=np.zeros((2, 3)), s10=np.ones((4, 3)))
        read = d.load_npz(tmp_path / "s.npz")
        assert [len(s) for s in read.signatures] == [2, 4]
        assert read.labels.tolist() == ["s2", "s10"]

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
            d.load_npz(tmp_path / "s.npz")

    def test_never_unpickles(self, tmp_path):
        np.savez(tmp_path / "s.npz", bad=np.array([{"a": 1}], dtype=object))
        with pytest.raises(FileError):
            d.load_npz(tmp_path / "s.npz")

    def test_labels_that_need_pickle_are_refused(self, tmp_path):
        with pytest.raises(InputError, match="labels: expected all integers or all strings"):
            d.save_npz(tmp_path / "s.npz", [Signature([[1.0]])], [("a", "b")[0:1]])
        with pytest.raises(InputError, match="levels: expected"):
            d.save_npz(tmp_path / "s.npz", [Signature([[1.0]], level="a"), Signature([[1.0]])])
        assert list(tmp_path.iterdir()) == []


class TestFeatures:
    def test_lbp_of_a_flat_picture_is_one_pattern(self):
        histograms = f.block_lbp(np.full((16, 16), 7, np.uint8), (2, 2))
        assert histograms.shape == (4, 59)
        assert (histograms == histograms[0]).all()
        assert histograms.sum(axis=1) == pytest.approx(1)

    def test_lbp_against_a_naive_loop(self):
        """Blocks of one picture are told apart, and each is the histogram of its own pixels' patterns."""
        from skimage.feature import local_binary_pattern

        image = np.random.default_rng(0).integers(0, 256, (13, 11)).astype(np.uint8)
        codes = local_binary_pattern(np.pad(image, 1, mode="edge"), 8, 1, method="nri_uniform").astype(int)[1:-1, 1:-1]
        expected = np.zeros((6, 59))
        for y in range(13):
            for x in range(11):
                expected[(y * 3 // 13) * 2 + x * 2 // 11, codes[y, x]] += 1
        expected /= expected.sum(axis=1, keepdims=True)
        assert f.block_lbp(image, (3, 2)) == pytest.approx(expected)
        assert f.block_lbp(image, (3, 2), root=True) == pytest.approx(np.sqrt(expected))

    def test_lbp_does_not_see_brightness(self):
        image = np.random.default_rng(1).integers(50, 100, (16, 16)).astype(np.uint8)
        assert np.array_equal(f.block_lbp(image), f.block_lbp(image + 100))

    def test_hog_sees_orientation(self):
        """Brightening to the right puts all gradient in one orientation, brightening downwards in another."""
        ramp = np.tile(np.linspace(0, 1, 32), (32, 1))
        across, down = f.block_hog(ramp, (2, 2)), f.block_hog(ramp.T, (2, 2))
        assert across.shape == (4, 9)
        assert np.linalg.norm(across, axis=1) == pytest.approx(1, abs=1e-3)
        assert (across.argmax(axis=1) != down.argmax(axis=1)).all()
        assert (across.max(axis=1) > 0.99).all()

    def test_motion_window_follows_the_motion(self):
        frames = np.zeros((5, 60, 80))
        for t in range(5):
            frames[t, 40:50, 60 + 2 * t : 70 + 2 * t] = 1
        window = f.motion_window(list(frames))
        assert window.shape == (5, 48, 48)
        assert window.sum(axis=(1, 2)) == pytest.approx(frames.sum(axis=(1, 2)))
        still = np.zeros((60, 80))
        still[0, 0] = 1
        assert f.motion_window([still, still])[0, 0, 0] == 1

    def test_grey_pixels_and_describe_with(self, tmp_path):
        path = layouts.picture(tmp_path / "a.png", 0)
        rows = f.describe_with(f.grey_pixels, size=(4, 5))([path, path])
        assert rows.shape == (2, 20)
        flat = np.full((8, 8, 3), 51, np.uint8)
        assert f.grey_pixels(flat, (2, 2)) == pytest.approx(np.full((1, 4), 0.2))

    @pytest.mark.parametrize("feature", [f.block_lbp, f.block_hog])
    def test_refusals(self, feature):
        with pytest.raises(InputError, match="grid"):
            feature(np.zeros((4, 4), np.uint8), (8, 8))
        with pytest.raises(ShapeError, match="picture"):
            feature(np.zeros((4, 4, 2)))
        with pytest.raises(InputError, match="NaN"):
            feature(np.full((9, 9), np.nan))


class TestKinFaceW:
    def test_layout(self, tmp_path):
        k = d.kinfacew(layouts.kinfacew(tmp_path))
        assert len(k.paths) == 80
        assert len(k.pairs) == 80
        assert sorted(set(k.folds)) == [1, 2, 3, 4, 5]
        for (parent, child), kin in zip(k.pairs, k.kin, strict=True):
            assert k.paths[parent].name.endswith("_1.png")
            assert k.paths[child].name.endswith("_2.png")
            assert (k.families[parent] == k.families[child]) == kin
            assert k.relations[parent] == k.relations[child]
        assert set(k.pair_relations) == {"fs", "fd", "ms", "md"}

    def test_one_relation(self, tmp_path):
        k = d.kinfacew(layouts.kinfacew(tmp_path), ["ms"])
        assert set(k.relations) == {"ms"}
        with pytest.raises(InputError, match="relations: expected"):
            d.kinfacew(tmp_path, ["uncle"])

    def test_a_name_that_leaves_the_folder_is_refused(self, tmp_path):
        layouts.kinfacew(tmp_path)
        rows = [[1, 1, "../../fs_001_1.png", "fs_001_2.png"]]
        savemat(tmp_path / "meta_data" / "fs_pairs.mat", {"pairs": layouts.cells(rows)})
        with pytest.raises(FileError, match="expected one like fs_001_1"):
            d.kinfacew(tmp_path)

    def test_missing_picture_and_damaged_file(self, tmp_path):
        layouts.kinfacew(tmp_path)
        (tmp_path / "images" / "father-son" / "fs_001_1.png").unlink()
        with pytest.raises(FileError, match="1 missing"):
            d.kinfacew(tmp_path)
        (tmp_path / "meta_data" / "fs_pairs.mat").write_bytes(b"MATLAB 5.0 MAT-file" + b"\0" * 40)
        with pytest.raises(FileError, match="not a readable MATLAB file"):
            d.kinfacew(tmp_path)

    def test_real_files(self, data):
        k = d.kinfacew(data / "kinfacew2")
        assert (len(k.paths), len(k.pairs), int(k.kin.sum())) == (2000, 2000, 1000)
        for relation in d.kinfacew(data / "kinfacew2").pair_relations[::500]:
            assert np.bincount(k.folds[k.pair_relations == relation]).tolist() == [0, 100, 100, 100, 100, 100]


class TestReId:
    def test_prid_multi_shot(self, tmp_path):
        r = d.prid2011(layouts.prid(tmp_path))
        assert r.persons == tuple(f"person_{i:04d}" for i in range(1, 5))
        assert [len(t) for t in r.a + r.b] == [3] * 8
        assert all("cam_a" in str(p) for t in r.a for p in t)
        assert all("cam_b" in str(p) for t in (*r.b, *r.extra) for p in t)
        assert len(r.extra) == 2
        assert r.splits == ()

    def test_prid_single_shot_and_short_tracklets(self, tmp_path):
        layouts.prid(tmp_path)
        assert [len(t) for t in d.prid2011(tmp_path, shots="single_shot").a] == [1] * 4
        (tmp_path / "multi_shot" / "cam_b" / "person_0002" / "0001.png").unlink()
        assert "person_0002" not in d.prid2011(tmp_path, least=3).persons
        with pytest.raises(InputError, match="shots"):
            d.prid2011(tmp_path, shots="some")

    def test_ilids_splits_count_folders(self, tmp_path):
        r = d.ilids_vid(layouts.ilids(tmp_path))
        assert r.persons == ("person001", "person003", "person004", "person009", "person010", "person012")
        assert len(r.splits) == 10
        train, test = r.splits[0]
        row = np.random.default_rng(0).permutation(6) + 1
        assert test.tolist() == sorted((row[:3] - 1).tolist())
        assert sorted([*train, *test]) == list(range(6))
        assert [len(t) for t in d.ilids_vid(tmp_path, pictures="images").b] == [1] * 6

    def test_ilids_split_that_forgets_someone_is_refused(self, tmp_path):
        layouts.ilids(tmp_path)
        file = tmp_path / "train-test people splits" / "train_test_splits_ilidsvid.mat"
        savemat(file, {"ls_set": np.array([[1, 2, 3, 4, 5, 5]])})
        with pytest.raises(FileError, match="each of the 6 people once"):
            d.ilids_vid(tmp_path)

    def test_lomo(self, tmp_path):
        r = d.prid2011(layouts.prid(tmp_path / "prid"))
        paths = [p for t in (*r.a, *r.b, *r.extra) for p in t]
        descriptors = np.random.default_rng(0).normal(size=(7, len(paths)))
        savemat(tmp_path / "lomo.mat", {"descriptors": descriptors})
        rows = d.lomo(tmp_path / "lomo.mat", len(paths))
        assert np.array_equal(rows, descriptors.T)
        a, b, extra = r.signatures(d.lookup(paths, rows), k=None)
        assert np.array_equal(a[1].points, descriptors.T[3:6])
        assert (len(a), len(b), len(extra)) == (4, 4, 2)
        with pytest.raises(FileError, match=r"expected \(d, 5\)"):
            d.lomo(tmp_path / "lomo.mat", 5)
        with pytest.raises(InputError, match="has no row"):
            d.lookup(paths, rows)(["elsewhere.png"])

    def test_missing_camera(self, tmp_path):
        with pytest.raises(FileError, match="no such folder"):
            d.prid2011(tmp_path)


class TestTraffic:
    @pytest.mark.parametrize("matlab", [False, True])
    def test_layout(self, tmp_path, matlab):
        t = d.ucsd_traffic(layouts.traffic(tmp_path, matlab=matlab))
        assert t.labels == ("light", "heavy", "light", "heavy")
        assert [[p.tolist() for p in split] for split in t.splits] == [[[0, 2], [1, 3]], [[1, 3], [0, 2]]]
        sets = t.signatures(k=3)
        assert [s.dim for s in sets] == [48 * 48] * 4
        assert [len(s) for s in sets] == [3] * 4

    def test_refusals(self, tmp_path):
        layouts.traffic(tmp_path)
        (tmp_path / "EvalSet_test").write_text("1,99\n2,4\n")
        with pytest.raises(FileError, match="names video 99"):
            d.ucsd_traffic(tmp_path)
        (tmp_path / "ImageMaster").write_text("1\t../../secret\tlight\n")
        with pytest.raises(FileError, match="is not the name of a video"):
            d.ucsd_traffic(tmp_path)


class TestTimeSeries:
    def test_ts(self, tmp_path):
        (tmp_path / "toy.ts").write_text(layouts.TS)
        series, labels = d.read_ts(tmp_path / "toy.ts")
        assert [s.tolist() for s in series] == [[[1, 10], [2, 20], [3, 30]], [[4, 40], [5, 50]]]
        assert labels == ["up", "down"]

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("4,5:", "4,?:", "line 11.*missing"),
            ("4,5:", "4,x:", "line 11"),
            ("4,5:", "4:", "different lengths"),
            ("4,5:40,50:", "4,5:", "different numbers of channels"),
            ("@timeStamps false", "@timeStamps true", "time stamps"),
            ("@classLabel true up down", "@classLabel false", "without class labels"),
            ("@data", "@dada", "no series"),
        ],
    )
    def test_refusals(self, tmp_path, old, new, message):
        (tmp_path / "toy.ts").write_text(layouts.TS.replace(old, new))
        with pytest.raises(FileError, match=message):
            d.read_ts(tmp_path / "toy.ts")

    def test_japanese_vowels(self):
        import sys
        from importlib.util import find_spec

        if find_spec("aeon") is None:
            pytest.skip("aeon is not installed: its wheel carries JapaneseVowels")
        t = d.japanese_vowels()
        assert (len(t.train), len(t.test)) == (270, 370)
        assert {s.dim for s in (*t.train.signatures, *t.test.signatures)} == {12}
        assert (min(len(s) for s in t.train.signatures), max(len(s) for s in t.test.signatures)) == (7, 29)
        assert np.unique(t.train.labels, return_counts=True)[1].tolist() == [30] * 9
        assert "aeon" not in sys.modules


def test_splits_that_are_not_whole_numbers_are_refused(tmp_path) -> None:
    root = layouts.ilids(tmp_path)
    file = root / "train-test people splits" / "train_test_splits_ilidsvid.mat"
    for table in (np.array([["a", "b"]]), np.array([[np.nan] * 6]), np.array([[1.5] * 6])):
        savemat(file, {"ls_set": table})
        with pytest.raises(FileError, match="not a list of whole numbers"):
            d.ilids_vid(root)
