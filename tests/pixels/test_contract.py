"""The pixels level keeps the contract of a level; an image compared with itself stays where it is."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch

import likewise as lw
from likewise import media
from likewise.pixels.aligner import WEIGHTS, Aligner, AlignerOptions
from likewise.pixels.compare import compare
from likewise.pixels.data import Photos
from likewise.pixels.life.network import Network
from worlds.aligners import Shifted
from worlds.contract import ContractOfALevel
from worlds.scenes import moved, texture


@functools.cache
def small() -> Aligner:
    """ImageNet's features on their principal axes and a recurrence that has learned nothing: no training, seconds."""
    torch.manual_seed(0)
    network = Network(dim=16, hidden=16)
    network.encoder.begin()
    network.encoder.principal(
        Photos([texture(s, 160, 200) for s in range(4)]).pieces(8, (96, 128), np.random.default_rng(0))
    )
    return Aligner(network, AlignerOptions(least=64, iters=2, search="never", passes=1), name="small")


class TestPixels(ContractOfALevel):
    def pair(self):
        return texture(0, 72, 96), texture(1, 72, 96)

    def model(self):
        return small()

    def careful(self):
        """The same network, given more pixels and steps."""
        return Aligner(small().network, AlignerOptions(search="never", passes=1))

    def compare(self, x, y):
        return compare(x, y, model=self.model())

    def wrong(self):
        x, y = self.pair()
        torn = torch.rand(3, 96, 128)
        torn[0, 0, 0] = float("nan")
        return [
            (lambda: compare(x[:40], y), "a: 96 × 40 pixels are too few"),
            (lambda: compare(x, np.zeros((72, 96, 3), np.uint8)), "b: the image is blank"),
            (lambda: compare(x, 3), "b"),
            (lambda: compare(torch.rand(5, 96, 128), y), "a"),
            (lambda: compare(torch.rand(3, 96, 128) * 255, y), "a: expected floats in"),
            (lambda: compare(torn, y), "a: expected floats in"),
            (lambda: compare(x, np.zeros((72, 96, 7), np.uint8)), "b"),
        ]

    def test_an_image_stays_where_it_is(self):
        x, _ = self.pair()
        found = self.compare(x, x)
        assert np.abs(np.asarray(found.flow)).max() < 0.05
        assert found.cycle_consistency > 0.95  # a pixel of the rim may lie 1e-6 px outside

    def test_a_moved_picture_is_laid_back(self):
        """An image moved by (6, −4) px: the flow says so, and what is laid onto a is a again."""
        x = texture(2, 120, 160)
        found = compare(x, moved(x, 6, -4), model=self.careful())
        inner = np.asarray(found.flow)[16:-16, 16:-16]
        assert np.median(np.linalg.norm(inner - [6, -4], axis=-1)) < 0.5
        laid = found.warp()[16:-16, 16:-16].astype(float)
        assert np.abs(laid - x[16:-16, 16:-16]).mean() < 6
        assert np.abs(moved(x, 6, -4).astype(float) - x)[16:-16, 16:-16].mean() > 20

    def test_saved_and_loaded_it_answers_the_same(self, tmp_path: Path):
        """Weights are kept in half precision: the loaded one is the one that counts, and it is stable."""
        x, y = self.pair()
        lw.save(self.model(), tmp_path / "one.safetensors")
        once = lw.load(tmp_path / "one.safetensors")
        lw.save(once, tmp_path / "two.safetensors")
        twice = lw.load(tmp_path / "two.safetensors")
        assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "two.safetensors").read_bytes()
        assert compare(x, y, model=once).to_json() == compare(x, y, model=twice).to_json()
        assert np.abs(np.asarray(compare(x, x, model=once).flow)).max() < 0.05

    def test_sizes_may_differ_and_pictures_come_in_any_form(self, tmp_path: Path):
        x, y = texture(0, 96, 128), texture(1, 80, 150)
        found = self.compare(x, y)
        assert np.asarray(found.flow).shape == (96, 128, 2)
        assert np.asarray(found.back).shape == (80, 150, 2)
        assert found.confidence.shape == (96, 128)
        media.write_image(tmp_path / "x.png", x)
        tensor = torch.from_numpy(x).permute(2, 0, 1) / 255
        grey = x[..., 0]
        same = [self.compare(form, y).distance for form in (tmp_path / "x.png", tensor)]
        assert same == [found.distance] * 2
        assert self.compare(grey, np.repeat(grey[..., None], 3, 2)).cycle_consistency > 0.95


def test_the_cycle_error_and_what_comes_home_by_hand():
    """Flows that miss by 4 px everywhere: the cycle error is 4, and 4 > max(3, 5 % of the way) does not come home."""

    class Off(Shifted):
        def both(self, a, b):
            there = self.flow(a, b)
            return there, -there + torch.tensor([0.0, 4.0])

    x = texture(0, 96, 128)
    right, off = (compare(x, x, model=m) for m in (Shifted(0, 0), Off(0, 0)))
    assert (right.distance, right.cycle_consistency) == (0.0, 1.0)
    assert off.distance == pytest.approx(4.0)
    assert off.cycle_consistency == 0.0
    assert off.confidence.max() == pytest.approx(np.exp(-((4 / 3) ** 2)), rel=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(not WEIGHTS.exists(), reason="the weights that ship are not in this tree")
class TestShipped(TestPixels):
    """The same of the network that ships, with all that it does to a pair."""

    def model(self):
        return lw.pixels.default()

    def careful(self):
        return lw.pixels.default()
