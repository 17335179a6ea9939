"""Against prdc (precision, recall, density, coverage) and torchmetrics (KID, FID), on the same features."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest

from likewise.distributions import metrics


def pair(n: int, m: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    r = np.random.default_rng(seed)
    mix = r.normal(size=(12, d))
    X = r.normal(size=(n, 12)) @ mix + 0.1 * r.normal(size=(n, d))
    Y = (0.9 * r.normal(size=(m, 12)) + 0.6) @ mix + 0.5 * r.normal(size=(m, d))
    return X.astype(np.float32), Y.astype(np.float32)


@pytest.mark.parametrize("k", [1, 3, 5, 10])
@pytest.mark.parametrize("seed", range(3))
def test_the_four_are_those_of_prdc(k: int, seed: int) -> None:
    prdc = pytest.importorskip("prdc", reason="pip install prdc")
    X, Y = (Z.astype(np.float64) for Z in pair(300, 220, 32, seed))
    with contextlib.redirect_stdout(io.StringIO()):
        theirs = prdc.compute_prdc(X, Y, k)
    ours = metrics.support(X, Y, k=k)
    assert 0.05 < theirs["precision"] < 1
    for name, value in theirs.items():
        assert float(getattr(ours, name)) == pytest.approx(value, abs=1e-12), name


@pytest.mark.parametrize("seed", range(3))
def test_kid_and_frechet_are_those_of_torchmetrics(seed: int) -> None:
    kid = pytest.importorskip("torchmetrics.image.kid", reason="pip install torchmetrics")
    fid = pytest.importorskip("torchmetrics.image.fid", reason="pip install torchmetrics")
    torch = pytest.importorskip("torch")
    X, Y = (Z.astype(np.float64) for Z in pair(150, 150, 12, seed))
    a, b = torch.as_tensor(X), torch.as_tensor(Y)
    assert float(metrics.kid(X, Y)) == pytest.approx(float(kid.poly_mmd(a, b)), rel=1e-9)
    theirs = fid._compute_fid(a.mean(0), torch.cov(a.T), b.mean(0), torch.cov(b.T))
    assert float(metrics.frechet(X, Y)) == pytest.approx(float(theirs), rel=1e-6)
