"""The sets level keeps the contract of a level, and agrees with the others where they meet."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from tests.sets.transport.oracles import ragged

import likewise as lw
from likewise.sets.transport import solvers as transport
from worlds.contract import ContractOfALevel


class TestSets(ContractOfALevel):
    def pair(self):
        return ragged(2, seed=4, low=3)

    def compare(self, x, y):
        return lw.sets.compare(x, y, gamma=0.3, value="divergence")

    def wrong(self):
        x, y = self.pair()
        return [
            (lambda: lw.sets.compare(x, np.full((2, 3), np.nan)), "q"),
            (lambda: lw.sets.compare([["x"]], y), "p"),
            (lambda: lw.sets.compare(x, y, gamma=-1), "gamma"),
            (lambda: lw.sets.compare(x, y, metric=np.eye(9)), "metric"),
        ]


def test_exact_w2_of_growing_samples_tends_to_the_frechet_distance_of_the_gaussians():
    r = np.random.default_rng(0)
    mean, spread = np.array([1.0, 0.0]), np.array([2.0, 0.5])
    frechet = (mean**2).sum() + ((1 - spread) ** 2).sum()
    gaps = []
    for n in (20, 100, 600):
        result = []
        for _ in range(4):
            P, Q = r.normal(size=(n, 2)), r.normal(size=(n, 2)) * spread + mean
            same = np.full(n, 1 / n)
            result.append(transport.exact(((P[:, None] - Q[None]) ** 2).sum(-1), same, same)[0])
        gaps.append(abs(np.mean(result) - frechet))
    assert gaps[2] < gaps[0]
    assert gaps[2] == pytest.approx(0, abs=0.25)


def test_a_metric_on_axes_gives_the_same_answer_in_a_process_that_has_not_seen_it(tmp_path):
    sets = ragged(12, seed=3, low=2, high=4)
    model = lw.sets.WassersteinLMNN(max_iter=2, n_components=2).fit(sets, [0, 1] * 6)
    model.source_ = {"features": "pixels", "k": 8}
    lw.save(model, tmp_path / "m.safetensors")
    code = (
        "import sys, likewise as lw; m = lw.load(sys.argv[1]); print(m.pairwise([[[1.0, 2, 3]]]).tobytes(), m.source_)"
    )
    ran = [sys.executable, "-c", code, str(tmp_path / "m.safetensors")]
    done = subprocess.run(ran, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{model.pairwise([[[1, 2, 3]]]).tobytes()} {model.source_}"
