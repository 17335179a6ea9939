"""Public layouts on made-up files, features of the paper's applications, and refusals."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import numpy as np
import pytest
from scipy.io import savemat

from likewise.errors import FileError, InputError, ShapeError
from likewise.papers.mlml import layouts as d
from worlds import layouts


class TestFeatures:
    def test_hog_sees_orientation(self):
        """Brightening to the right puts all gradient in one orientation, brightening downwards in another."""
        ramp = np.tile(np.linspace(0, 1, 32), (32, 1))
        across, down = d.block_hog(ramp, (2, 2)), d.block_hog(ramp.T, (2, 2))
        assert across.shape == (4, 9)
        assert np.linalg.norm(across, axis=1) == pytest.approx(1, abs=1e-3)
        assert (across.argmax(axis=1) != down.argmax(axis=1)).all()
        assert (across.max(axis=1) > 0.99).all()

    def test_motion_window_follows_the_motion(self):
        frames = np.zeros((5, 60, 80))
        for t in range(5):
            frames[t, 40:50, 60 + 2 * t : 70 + 2 * t] = 1
        window = d.motion_window(list(frames))
        assert window.shape == (5, 48, 48)
        assert window.sum(axis=(1, 2)) == pytest.approx(frames.sum(axis=(1, 2)))
        still = np.zeros((60, 80))
        still[0, 0] = 1
        assert d.motion_window([still, still])[0, 0, 0] == pytest.approx(1)

    def test_refusals(self):
        with pytest.raises(InputError, match="grid"):
            d.block_hog(np.zeros((4, 4), np.uint8), (8, 8))
        with pytest.raises(ShapeError, match="frames"):
            d.motion_window([])


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
        for relation in d.RELATIONS:
            assert np.bincount(k.folds[k.pair_relations == relation]).tolist() == [0, 100, 100, 100, 100, 100]


class TestReId:
    def test_prid_multi_shot(self, tmp_path):
        r = d.prid2011(layouts.prid(tmp_path))
        assert r.persons == tuple(f"person_{i:04d}" for i in range(1, 5))
        assert [len(t) for t in r.a + r.b] == [3] * 8
        assert all("cam_a" in str(p) for t in r.a for p in t)
        assert all("cam_b" in str(p) for t in r.b for p in t)
        assert r.splits == ()

    def test_ilids_splits_count_folders(self, tmp_path):
        r = d.ilids_vid(layouts.ilids(tmp_path))
        assert r.persons == ("person001", "person003", "person004", "person009", "person010", "person012")
        assert len(r.splits) == 10
        train, test = r.splits[0]
        row = np.random.default_rng(0).permutation(6) + 1
        assert test.tolist() == sorted((row[:3] - 1).tolist())
        assert sorted([*train, *test]) == list(range(6))

    @pytest.mark.parametrize(
        ("row", "words"),
        [
            ([1, 2, 3, 4, 5, 5], "each of the 6 people once"),
            (["a", "b"], "not a list of whole numbers"),
            ([np.nan] * 6, "not a list of whole numbers"),
            ([1.5] * 6, "not a list of whole numbers"),
        ],
    )
    def test_ilids_splits_that_cannot_be_are_refused(self, tmp_path, row, words):
        layouts.ilids(tmp_path)
        file = tmp_path / "train-test people splits" / "train_test_splits_ilidsvid.mat"
        savemat(file, {"ls_set": np.array([row])})
        with pytest.raises(FileError, match=words):
            d.ilids_vid(tmp_path)

    def test_missing_camera(self, tmp_path):
        with pytest.raises(FileError, match="no such folder"):
            d.prid2011(tmp_path)


class TestTraffic:
    def test_layout(self, tmp_path):
        t = d.ucsd_traffic(layouts.traffic(tmp_path))
        assert t.labels == ("light", "heavy", "light", "heavy")
        assert [[p.tolist() for p in split] for split in t.splits] == [[[0, 2], [1, 3]], [[1, 3], [0, 2]]]
        sets = t.sets(k=3).signatures
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
        if find_spec("aeon") is None:
            pytest.skip("aeon is not installed: its wheel carries JapaneseVowels")
        sets, (train, test) = d.shipped_series("JapaneseVowels")
        assert (len(train), len(test)) == (270, 370)
        assert {s.dim for s in sets.signatures} == {12}
        assert (min(len(s) for s in sets.signatures), max(len(s) for s in sets.signatures)) == (7, 29)
        assert np.unique(sets.labels[train], return_counts=True)[1].tolist() == [30] * 9
        assert "aeon" not in sys.modules
