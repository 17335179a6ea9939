"""The distributions level keeps the contract of a level, and agrees with the others where they meet."""

from __future__ import annotations

import numpy as np
import pytest

import likewise as lw
from likewise import media, numeric
from likewise.distributions.compare import compare
from likewise.nn.features import extract
from likewise.sets.transport import solvers as transport
from worlds.contract import ContractOfALevel


def sample(n: int, seed: int, shift: float = 0.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 3)) + shift


class TestDistributions(ContractOfALevel):
    def pair(self):
        return sample(40, 0), sample(40, 1, 0.5)

    def compare(self, x, y):
        return compare(x, y)

    def wrong(self):
        x, y = self.pair()
        return [
            (lambda: compare(x, np.full((9, 3), np.nan)), "fake"),
            (lambda: compare(3, y), "real"),
            (lambda: compare(x, y[:, :2]), "fake"),
            (lambda: compare(x, y, k=0), "k"),
            (lambda: compare(x, y, k=40), "k"),
            (lambda: compare(x, y, features="lenet"), "features"),
            (lambda: compare(np.zeros((3, 2, 2, 2, 2)), y), "real"),
            (lambda: compare(np.array([["a", "b"]] * 9), y), "real"),
        ]

    def test_features_are_compared_as_they_are_when_kept_and_read_again(self, tmp_path):
        """The learned part of a comparison is its features: saved and loaded they give the same answer."""
        x, y = self.pair()
        np.save(tmp_path / "x.npy", x)
        np.savez(tmp_path / "y.npz", rows=y)
        again = compare(tmp_path / "x.npy", str(tmp_path / "y.npz"))
        assert again.to_json() == compare(x, y).to_json()

    def test_every_figure_is_least_or_greatest_for_the_same(self):
        x, y = self.pair()
        same, other = compare(x, x), compare(x, y)
        assert same.distance < other.distance
        assert same.kid < other.kid
        assert same.precision == same.recall == same.coverage == 1.0
        assert same.uncovered == ()
        assert other.precision < same.precision


def test_the_frechet_distance_of_samples_is_w2_of_their_gaussians_and_exact_transport_tends_to_it():
    r = np.random.default_rng(0)
    spread, mean = np.array([2.0, 0.5]), np.array([1.0, 0.0])
    P, Q = r.normal(size=(700, 2)), r.normal(size=(700, 2)) * spread + mean
    closed = numeric.frechet_of_factors(np.zeros(2), np.eye(2), mean, np.diag(spread))
    result = compare(P, Q).distance
    same = np.full(700, 1 / 700)
    exact = transport.exact(((P[:, None] - Q[None]) ** 2).sum(-1), same, same)[0]
    assert float(result) == pytest.approx(closed, rel=0.15)
    assert exact == pytest.approx(float(result), rel=0.1)


def test_the_default_net_gives_the_rows_of_the_images_level(tmp_path):
    """Levels do not import each other; that both mean the same net is held here."""
    r = np.random.default_rng(0)
    paths = []
    for i, (h, w) in enumerate(((300, 200), (64, 64), (90, 260))):
        smooth = np.kron(r.integers(0, 256, (h // 10 + 1, w // 10 + 1, 3)), np.ones((10, 10, 1)))[:h, :w]
        paths.append(media.write_image(tmp_path / f"{i}.png", smooth.astype(np.uint8)))
    own, theirs = extract(paths), lw.images.default()
    np.testing.assert_allclose(own.rows, theirs.embed(paths), atol=1e-6)
    assert own.net == theirs.name
    assert extract(paths, theirs).net == own.net
    np.testing.assert_allclose(extract(tmp_path, theirs).rows, own.rows, atol=1e-6)
