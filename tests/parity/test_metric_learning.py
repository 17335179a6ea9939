"""Against pytorch-metric-learning and scikit-learn, on the same embeddings."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import adjusted_mutual_info_score, average_precision_score, normalized_mutual_info_score
from sklearn.neighbors import NearestNeighbors

from likewise.images import metrics

torch = pytest.importorskip("torch")


def world(seed: int, n: int = 400, d: int = 32, classes: int = 20, noise: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Unit rows of classes of different sizes that overlap; every class has two rows or more."""
    r = np.random.default_rng(seed)
    y = np.concatenate(
        [np.repeat(np.arange(classes), 2), r.choice(classes, n - 2 * classes, p=r.dirichlet([1] * classes))]
    )
    X = r.normal(size=(classes, d))[y] + noise * r.normal(size=(n, d))
    return (X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float32), y


def theirs(X: np.ndarray, y: np.ndarray, **options: object) -> dict[str, float]:
    calculator = pytest.importorskip(
        "pytorch_metric_learning.utils.accuracy_calculator", reason="pip install pytorch-metric-learning"
    )
    names = ("precision_at_1", "mean_average_precision_at_r", *options.pop("include", ()))
    measure = calculator.AccuracyCalculator(include=names, device=torch.device("cpu"), **options)
    return measure.get_accuracy(torch.from_numpy(X), torch.from_numpy(y))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("noise", [1.0, 1.8])
def test_recall_and_map_are_those_of_pytorch_metric_learning(seed: int, noise: float) -> None:
    X, y = world(seed, noise=noise)
    result = theirs(X, y)
    assert 0.05 < result["mean_average_precision_at_r"] < 0.95
    assert metrics.recall_at_k(X, y, [1])[1] == pytest.approx(result["precision_at_1"], abs=1e-12)
    # theirs orders by float32 distances: now and then it swaps two rows that differ in the eighth digit
    assert metrics.map_at_r(X, y) == pytest.approx(result["mean_average_precision_at_r"], abs=1e-5)


def test_classes_of_one_are_misses_here_and_skipped_there() -> None:
    X, y = world(9)
    y[::50] = 100 + np.arange(len(y[::50]))
    result = theirs(X, y)
    share = np.isfinite(metrics.hits_at_k(X, y, [1])[1]).mean()
    assert share == 1 - len(y[::50]) / len(y)
    assert metrics.recall_at_k(X, y, [1])[1] == pytest.approx(share * result["precision_at_1"], abs=1e-12)
    assert metrics.map_at_r(X, y) == pytest.approx(share * result["mean_average_precision_at_r"], abs=1e-5)


def test_with_a_gallery_as_there() -> None:
    X, y = world(3)
    q, g = slice(0, 400, 4), np.arange(400) % 4 != 0
    calculator = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator")
    measure = calculator.AccuracyCalculator(
        include=("precision_at_1", "mean_average_precision_at_r"), device=torch.device("cpu")
    )
    a, b, c, d = (torch.from_numpy(v.copy()) for v in (X[q], y[q], X[g], y[g]))
    result = measure.get_accuracy(a, b, c, d, ref_includes_query=False)
    given = {"gallery": X[g], "gallery_labels": y[g]}
    assert metrics.recall_at_k(X[q], y[q], [1], **given)[1] == pytest.approx(result["precision_at_1"], abs=1e-12)
    assert metrics.map_at_r(X[q], y[q], **given) == pytest.approx(result["mean_average_precision_at_r"], abs=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_nmi_is_that_of_pytorch_metric_learning_on_the_same_clusters(seed: int) -> None:
    X, y = world(seed, noise=0.8)

    def cluster(x: torch.Tensor, k: int) -> torch.Tensor:
        return torch.from_numpy(metrics.clusters(x.numpy(), k, seed=seed))

    result = theirs(X, y, include=("NMI",), kmeans_func=cluster)
    assert metrics.nmi(X, y, seed=seed) == pytest.approx(result["NMI"], abs=1e-12)
    assert 0.2 < result["NMI"] < 0.99


def test_clusters_are_as_good_as_those_of_scikit_learn_from_one_random_start() -> None:
    """The mean inertia of eight seeds is within 4 % of scikit-learn's, which starts from random rows, too."""
    from sklearn.cluster import KMeans

    X, _ = world(0, n=600, noise=1.0)

    def inertia(result: np.ndarray) -> float:
        means = {c: X[result == c].mean(0) for c in np.unique(result)}
        return float(sum(((x - means[c]) ** 2).sum() for x, c in zip(X, result, strict=True)))

    ours = np.mean([inertia(metrics.clusters(X, 20, seed=s)) for s in range(8)])
    other = np.mean([inertia(KMeans(20, init="random", n_init=1, random_state=s).fit_predict(X)) for s in range(8)])
    assert ours == pytest.approx(other, rel=0.04)
    assert ours < 0.9 * inertia(np.arange(600) % 20)


@pytest.mark.parametrize("seed", range(3))
def test_recall_is_that_of_scikit_learns_neighbours(seed: int) -> None:
    X, y = world(seed)
    near = NearestNeighbors(n_neighbors=8).fit(X.astype(np.float64)).kneighbors(return_distance=False)
    for k, value in metrics.recall_at_k(X, y, [1, 2, 4, 8]).items():
        assert value == pytest.approx((y[near[:, :k]] == y[:, None]).any(axis=1).mean(), abs=1e-12)


def test_a_perfect_order_is_average_precision_of_scikit_learn() -> None:
    """Where all R relevant rows are the nearest, mAP@R is average precision; both are 1, and both fall below it."""
    X, y = world(1, n=120, noise=0.05)
    D = -(X @ X.T).astype(np.float64)
    keep = ~np.eye(len(X), dtype=bool)
    full = [average_precision_score((y == y[i])[keep[i]], -D[i][keep[i]]) for i in range(len(X))]
    assert np.mean(full) == pytest.approx(metrics.map_at_r(X, y)) == pytest.approx(1.0)
    X, y = world(1, noise=1.0)
    assert metrics.map_at_r(X, y) < 0.9


def test_nmi_does_not_forgive_chance_as_adjusted_information_does() -> None:
    """NMI of random clusters is far from 0 where classes are small: the reason why papers compare it at one size."""
    r = np.random.default_rng(0)
    y, result = np.repeat(np.arange(50), 4), r.integers(0, 50, 200)
    value = metrics.nmi(np.ones((200, 2)), y, clustering=result)
    assert value == pytest.approx(normalized_mutual_info_score(y, result))
    assert value > 0.5
    assert abs(adjusted_mutual_info_score(y, result)) < 0.1
