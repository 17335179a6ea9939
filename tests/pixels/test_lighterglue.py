"""LighterGlue in pieces: kornia's own network is the oracle, whatever the numbers of features."""

from __future__ import annotations

import kornia.feature as kornia
import numpy as np
import pytest
import torch

from likewise import samples
from likewise.pixels import features, lighterglue, matching
from likewise.pixels.features import Features, detect, fill
from likewise.pixels.lighterglue import STEP, LighterGlue


@pytest.fixture(scope="module")
def network() -> LighterGlue:
    return matching._lightglue("xfeat")


@pytest.fixture(scope="module")
def pair() -> tuple[Features, Features]:
    a, b = samples.pair()
    return detect(a, "xfeat", 400), detect(b, "xfeat", 300)


def data(a: Features, b: Features) -> dict[str, dict[str, torch.Tensor]]:
    return {f"image{k}": matching._glue_input(f, (2000, 3000), 0) for k, f in enumerate((a, b))}


def check(network: LighterGlue, given: dict[str, dict[str, torch.Tensor]]) -> int:
    """The number of matches, which are kornia's."""
    with torch.inference_mode():
        expected = network.network(given)
    i, j, score = network(given)
    assert np.array_equal(np.column_stack([i, j]), expected["matches"][0].numpy())
    assert np.allclose(score, expected["scores"][0].numpy(), atol=2e-3)  # six layers of float32
    return len(i)


@pytest.mark.parametrize("sizes", [(400, 300), (STEP, STEP + 1), (5, 200), (1, 1)])
def test_matches_are_kornias(network: LighterGlue, pair, sizes: tuple[int, int]) -> None:
    n = check(network, data(*(f.strongest(m) for f, m in zip(pair, sizes, strict=True))))
    assert n > 40 or sizes != (400, 300)


@pytest.mark.parametrize("least", [0.3, 0.6, 0.9999])
def test_features_that_are_pruned_count_no_more(network: LighterGlue, pair, monkeypatch, least: float) -> None:
    monkeypatch.setattr(network, "prune", least)
    monkeypatch.setattr(network.network.conf, "width_confidence", 1 - least)
    n = check(network, data(*pair))
    assert (n == 0) == (least > 0.99)


def test_without_onednn_the_matches_are_the_same(network: LighterGlue, pair, monkeypatch) -> None:
    given = data(*pair)
    expected = network(given)
    monkeypatch.setattr(lighterglue, "ONEDNN", False)
    for one, two in zip(expected, network(given), strict=True):
        assert np.allclose(one, two, atol=2e-3)


def test_xfeat_made_ready_finds_what_kornias_finds() -> None:
    plain = kornia.XFeat().eval()
    fill(plain.net, "xfeat")
    shown = torch.from_numpy(samples.pair()[0][:160, :224] / np.float32(255)).permute(2, 0, 1)[None]
    with torch.inference_mode():
        one, two = (net.detectAndCompute(shown, top_k=200)[0] for net in (plain, features.network("xfeat")))
    assert torch.equal(one["keypoints"], two["keypoints"])
    assert len(one["keypoints"]) > 50
    assert torch.allclose(one["descriptors"], two["descriptors"], atol=1e-4)
