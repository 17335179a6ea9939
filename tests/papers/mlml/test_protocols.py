"""Protocols: who sees what is checked by a method that only watches; figures by worlds with known answers."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from likewise.errors import InputError, ShapeError
from likewise.papers.mlml import layouts as d
from likewise.papers.mlml import protocols as p
from likewise.papers.mlml import rivals as b
from likewise.sets.data import SetCollection, block_lbp, read_sets
from likewise.sets.lmnn import WassersteinLMNN
from likewise.types import Signature
from worlds import layouts
from worlds.vectors import planted_sets


class Watcher(b.OfVectors):
    """Measures like Euclid, and notes what every fit and every score was given. Notes outlive the copies."""

    def __init__(self, notes, pairs=False):
        super().__init__(b.Euclid())
        self.notes, self.pairs = notes, pairs

    learns_from_pairs = property(lambda self: self.pairs)

    def __deepcopy__(self, memo):
        return Watcher(self.notes, self.pairs)

    def fit(self, X, y, levels=None):
        self.notes.append(("fit", list(X), list(y), levels))
        return super().fit(X, y)

    def fit_pairs(self, pairs, same):
        self.notes.append(("fit_pairs", list(pairs), list(same)))
        return super().fit_pairs(pairs, same)

    def pair_distance(self, pairs, levels=None):
        self.notes.append(("score", list(pairs), levels))
        return super().pair_distance(pairs)


class Reversed(b.OfVectors):
    """Takes near for far."""

    def pair_distance(self, pairs, levels=None):
        return -super().pair_distance(pairs)


EUCLID = b.OfVectors(b.Euclid())


@pytest.fixture(scope="module")
def kin(tmp_path_factory):
    return d.kinfacew(layouts.kinfacew(tmp_path_factory.mktemp("kin"), families=20))


def numbered(n):
    """Features named by the number of the image, so that a watcher can tell which image a set is."""
    return [Signature([[i + 1.0, 1.0]], names=[str(i)]) for i in range(n)]


def number(s):
    return int(s.names[0])


class TestKinship:
    def test_training_never_shows_a_test_image_nor_an_official_negative(self, kin):
        notes = []
        p.kinship(kin, Watcher(notes), numbered(len(kin.paths)), pca=None)
        assert [note[0] for note in notes] == ["fit", "score"] * 5
        scored = []
        for fit, score in zip(notes[::2], notes[1::2], strict=True):
            seen = {number(s) for s in fit[1]}
            shown = [(number(a), number(c)) for a, c in score[1]]
            assert len(seen) == 4 * 16 * 2
            assert not seen & {i for pair in shown for i in pair}
            assert fit[2] == [kin.families[number(s)] for s in fit[1]]
            assert fit[3] == [kin.relations[number(s)] for s in fit[1]]
            assert score[2] == [kin.relations[i] for i, _ in shown]
            scored += shown
        assert sorted(scored) == sorted(map(tuple, kin.pairs.tolist()))

    def test_pair_methods_get_negatives_from_the_training_folds(self, kin):
        notes = []
        p.kinship(kin, Watcher(notes, pairs=True), numbered(len(kin.paths)), pca=None)
        for fit, score in zip(notes[::2], notes[1::2], strict=True):
            assert fit[0] == "fit_pairs"
            shown = {number(s) for pair in score[1] for s in pair}
            assert len(fit[1]) == 2 * 64
            assert sum(fit[2]) == 64
            for (parent, child), same in zip(fit[1], fit[2], strict=True):
                i, j = number(parent), number(child)
                assert not {i, j} & shown
                assert (kin.families[i] == kin.families[j]) == same
                assert kin.relations[i] == kin.relations[j]
                assert kin.paths[i].stem.endswith("_1")
                assert kin.paths[j].stem.endswith("_2")

    def test_axes_come_from_the_training_folds_alone(self, kin):
        """Test images moved far away leave what the method is fitted on untouched."""
        rng = np.random.default_rng(0)
        features = rng.normal(size=(len(kin.paths), 6))
        moved = features.copy()
        moved[np.unique(kin.pairs[kin.folds == 1])] += 1000 * rng.normal(size=6)
        fits = []
        for f in (features, moved):
            notes = []
            p.kinship(kin, Watcher(notes), (f,), pca=3)
            fits.append(np.stack([s.points for s in notes[0][1]]))
        assert fits[0] == pytest.approx(fits[1])
        assert fits[0].shape[2] == 3
        assert np.linalg.norm(fits[0], axis=2) == pytest.approx(1)

    def test_perfect_features_score_one_and_reversed_zero(self, kin):
        families = sorted(set(kin.families))
        codes = np.eye(len(families))[[families.index(f) for f in kin.families]]
        result = p.kinship(kin, EUCLID, (codes,), pca=None)
        assert set(result) == {"fs", "fd", "ms", "md", "mean"}
        assert all(values == (1.0,) * 5 for values in result.values())
        assert p.kinship(kin, Reversed(b.Euclid()), (codes,), pca=None)["fd"] == (0.0,) * 5

    def test_an_image_that_a_fold_shows_is_not_trained_on_even_if_another_fold_owns_it(self):
        paths = tuple(Path(f"fs_{n:03d}_{w}.jpg") for n in (1, 2, 3) for w in (1, 2))
        families = ("fs_001", "fs_001", "fs_002", "fs_002", "fs_003", "fs_003")
        pairs = np.array([[0, 1], [2, 3], [4, 5], [0, 3]])
        crossing = d.Kinship(paths, families, ("fs",) * 6, pairs, np.array([1, 1, 1, 0], bool), np.array([1, 2, 3, 1]))
        assert p.training_pairs(crossing, 1).tolist() == [2]
        assert p.training_pairs(crossing, 2).tolist() == [0, 2]

    def test_figures_against_a_naive_computation(self, kin):
        features = np.random.default_rng(1).normal(size=(len(kin.paths), 3))
        features /= np.linalg.norm(features, axis=1, keepdims=True)
        result = p.kinship(kin, EUCLID, (features,), pca=None)
        rows = (kin.pair_relations == "ms") & (kin.folds == 4)
        distance = [((features[i] - features[j]) ** 2).sum() for i, j in kin.pairs[rows]]
        assert result["ms"][3] == pytest.approx(1 - p.eer(distance, kin.kin[rows]))
        means = [np.mean([result[r][f] for r in ("fs", "fd", "ms", "md")]) for f in range(5)]
        assert result["mean"] == pytest.approx(means)

    def test_points_of_two_features_cost_what_they_cost_in_their_own_space(self):
        rng = np.random.default_rng(0)
        first, second = rng.normal(size=(5, 4)), rng.normal(size=(5, 3))
        sets = p.projected((first, second), np.array([0, 1]), None)
        mark = (np.linalg.norm(first[:2]) ** 2 / 2 + np.linalg.norm(second[:2]) ** 2 / 2) / 2
        for i in range(5):
            for j in range(5):
                C = ((sets[i].points[:, None] - sets[j].points[None]) ** 2).sum(axis=2)
                crossed = (first[i] ** 2).sum() + (second[j] ** 2).sum() + 2 * mark
                assert C[0, 0] == pytest.approx(((first[i] - first[j]) ** 2).sum())
                assert C[1, 1] == pytest.approx(((second[i] - second[j]) ** 2).sum())
                assert C[0, 1] == pytest.approx(crossed)

    @pytest.mark.slow
    def test_learned_set_metric_and_pair_metric_run(self, kin):
        blocks = [Signature(block_lbp(path, (2, 1))) for path in kin.paths]
        learned = p.kinship(kin, WassersteinLMNN(max_iter=2, k_impostors=2, rule="gallery"), blocks, pca=5)
        pairs = p.kinship(kin, b.OfVectors(b.KISSME(), b.flat_vectors), blocks, pca=5)
        again = p.kinship(kin, b.OfVectors(b.KISSME(), b.flat_vectors), blocks, pca=5)
        assert all(0 <= v <= 1 for v in (*learned["mean"], *pairs["mean"]))
        assert pairs == again

    def test_refusals(self, kin):
        with pytest.raises(ShapeError, match="features: expected 160"):
            p.kinship(kin, b.Unlearned(), numbered(3))

    @pytest.mark.slow
    def test_real_faces(self, data):
        """Block-LBP, PCA, unit length, Euclid: seen fs .784 fd .700 ms .702 md .680; KISSME is well above."""
        real = d.kinfacew(data / "kinfacew2")
        rows = np.stack([block_lbp(path).ravel() for path in real.paths])
        plain = p.kinship(real, EUCLID, (rows,), pca=200)
        for relation, seen in {"fs": 0.784, "fd": 0.700, "ms": 0.702, "md": 0.680}.items():
            assert np.mean(plain[relation]) == pytest.approx(seen, abs=0.02)
        learned = p.kinship(real, b.OfVectors(b.KISSME()), (rows,))
        assert np.mean(learned["mean"]) > np.mean(plain["mean"]) + 0.03


def sets_of(X, y):
    return SetCollection(list(X), labels=np.asarray(y))


def drawn(sets, method, *, train_objects=5, resamples=10, seed=0, pca=None):
    splits = p.object_splits(sets.labels, train_objects, resamples, seed)
    return p.classification(sets, splits, method, pca=pca)


class TestClassification:
    def test_split_by_object(self):
        labels = np.repeat(["a", "b"], 4)
        ((train, test),) = p.object_splits(labels, 3, 1)
        assert sorted(np.concatenate([train, test])) == list(range(8))
        assert np.unique(labels[train], return_counts=True)[1].tolist() == [3, 3]
        with pytest.raises(InputError, match="class a has 4 sets, so 1 to 3"):
            p.object_splits(labels, 4, 1)

    def test_an_easy_world(self):
        result = drawn(sets_of(*planted_sets(0, each=6, noise=0.2)), EUCLID, resamples=4, pca=3)
        assert result["accuracy"] == (1.0,) * 4

    def test_resamples_differ_and_repeat_with_the_seed(self):
        sets = sets_of(*planted_sets(0, each=6, noise=3))
        runs = [drawn(sets, EUCLID, seed=s, resamples=6) for s in (0, 0, 1)]
        assert runs[0] == runs[1] != runs[2]
        assert len(set(runs[0]["accuracy"])) > 1

    def test_learning_beats_not_learning(self):
        sets = sets_of(*planted_sets(0, each=12, noise=2))
        plain, learned = (
            np.mean(drawn(sets, method, train_objects=9, resamples=3)["accuracy"])
            for method in (EUCLID, b.OfVectors(b.KISSME()))
        )
        assert learned > plain + 0.1

    def test_folders_end_to_end(self, tmp_path):
        sets = read_sets(layouts.views(tmp_path), "pixels", 2)
        result = drawn(sets, b.Unlearned("sinkhorn"), train_objects=2, resamples=2, pca=5)
        assert result["accuracy"] == (1.0, 1.0)

    def test_official_split(self):
        (X, y), (Z, w) = planted_sets(0, each=6, noise=0.2), planted_sets(5, each=2, noise=0.2)
        split = np.arange(len(X)), np.arange(len(X), len(X) + len(Z))
        result = p.classification(sets_of([*X, *Z], [*y, *w]), [split], b.Unlearned("emd"))
        assert result == {"accuracy": (1.0,)}
        with pytest.raises(InputError, match="no labels"):
            p.classification(SetCollection(list(X)), [split], b.Unlearned("emd"))

    def test_traffic_on_the_official_splits(self, tmp_path):
        videos = d.ucsd_traffic(layouts.traffic(tmp_path, ("light", "light", "heavy", "heavy", "light", "light")))
        sets = videos.sets(k=3)
        result = p.classification(sets, videos.splits, b.OfVectors(KNeighborsClassifier(1)))
        expected = []
        for train, test in videos.splits:
            means = b.mean_vectors(sets.signatures)
            nearest = [train[((means[train] - means[i]) ** 2).sum(axis=1).argmin()] for i in test]
            expected.append(np.mean([videos.labels[i] == videos.labels[j] for i, j in zip(test, nearest, strict=True)]))
        assert result["accuracy"] == pytest.approx(expected)

    def test_japanese_vowels_unlearned(self):
        if find_spec("aeon") is None:
            pytest.skip("aeon is not installed: its wheel carries JapaneseVowels")
        sets, split = d.shipped_series("JapaneseVowels")
        assert p.classification(sets, [split], EUCLID)["accuracy"][0] > 0.85


class TestReId:
    @staticmethod
    def people(n=12, noise=0.1, splits=()):
        """Person i lies at e_i in both cameras, but for noise."""
        rng = np.random.default_rng(0)
        sides = [[Signature(np.eye(n)[i] + noise * rng.normal(size=(3, n))) for i in range(n)] for _ in "AB"]
        return d.ReId(tuple(f"p{i}" for i in range(n)), ((),) * n, ((),) * n, splits), sides

    def test_perfect_and_hopeless(self):
        result = p.reid(*self.with_method(EUCLID), pca=None)
        assert result["rank 1"] == result["rank 5"] == (1.0,) * 5
        assert result["PUR"] == pytest.approx((1.0,) * 5)
        assert "rank 10" not in result  # six people are tested
        assert np.mean(p.reid(*self.with_method(EUCLID, noise=30), pca=None)["rank 1"]) < 0.5

    def with_method(self, method, **options):
        dataset, sides = self.people(**options)
        return dataset, method, sides

    def test_official_splits_come_first(self):
        notes, splits = [], ((np.arange(6), np.arange(6, 12)),) * 10
        p.reid(*self.with_method(Watcher(notes), splits=splits), pca=None, splits=3)
        assert [sorted(set(note[2])) for note in notes] == [[f"p{i}" for i in range(6)]] * 3
        assert [len(note[1]) for note in notes] == [12] * 3

    def test_halves_are_disjoint_and_differ(self):
        halves = list(p._halves(self.people()[0], 5, 0))
        for train, test in halves:
            assert sorted([*train, *test]) == list(range(12))
            assert len(train) == 6
        assert len({tuple(train) for train, _ in halves}) == 5

    def test_pairs_are_of_two_cameras_and_of_other_people(self):
        notes = []
        p.reid(*self.with_method(Watcher(notes, pairs=True)), pca=None, splits=1)
        _, pairs, same = notes[0]
        assert (len(pairs), sum(same)) == (6 * (1 + p.NEGATIVES), 6)
        nearest = [(a.points.mean(0).argmax(), c.points.mean(0).argmax()) for a, c in pairs]
        assert [i == j for i, j in nearest] == same
        assert len(set(nearest)) == len(nearest)

    def test_too_few_people(self):
        dataset, sides = self.people(n=3)
        with pytest.raises(InputError, match="at least 4 people"):
            p.reid(dataset, b.Unlearned(), sides)


class TestWhatStaysOutside:
    def test_axes_of_signatures_come_from_the_training_part_alone(self):
        X, _ = planted_sets(0, each=4, dim=6)
        train = np.arange(10)
        far = [Signature(s.points * [1, 1, 1, 1, 1, 100], s.weights) for s in X]
        expected = p.projected(X, train, 3, unit=True)
        moved = p.projected([*X[:10], *far[10:]], train, 3, unit=True)
        for i in train:
            assert moved[i].points == pytest.approx(expected[i].points)
        assert moved[11].points != pytest.approx(expected[11].points)
        assert np.array_equal(moved[0].weights, X[0].weights)

    def test_the_method_handed_in_is_never_fitted_itself(self, kin):
        X, y = planted_sets(0, each=4)
        people, sides = TestReId.people()
        for method in (EUCLID, b.OfVectors(b.KISSME())):
            p.kinship(kin, method, (np.random.default_rng(0).normal(size=(len(kin.paths), 3)),), pca=None)
            drawn(sets_of(X, y), method, train_objects=2, resamples=1)
            p.reid(people, method, sides, splits=1)
            assert not {"gamma_", "gallery_"} & set(vars(method))
            assert not hasattr(getattr(method, "model", None), "metric_")
