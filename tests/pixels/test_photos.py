"""Bent photos: the bend explains the second image, light moves nothing, and a part is a part of the whole."""

import numpy as np
import pytest
import torch

from likewise.errors import InputError
from likewise.media import write_image
from likewise.pixels.data import Photos, relit
from likewise.pixels.geometry import grid, sample
from likewise.pixels.life.network import log_dual
from likewise.pixels.rendering import textures
from likewise.pixels.training import cell_truth, contrast


@pytest.fixture(scope="module")
def photos():
    return Photos([np.asarray(x) for x in textures.procedural(0, 5, side=160)])


def test_the_bend_explains_the_second_picture(photos):
    bent = photos.bent(3, (64, 80), (0,), light=0.0)
    points = bent.warp.backward(grid(64, 80)[None])
    seen = sample(bent.b, points)
    inside = ((points > 1) & (points < torch.tensor([78.0, 62.0]))).all(-1)[:, None].expand_as(seen)
    assert (seen - bent.bent)[inside].abs().mean() < 0.02
    assert (bent.b - bent.bent)[inside].abs().mean() > 0.05


def test_a_pair_depends_on_its_number_alone(photos):
    whole, part = photos.bent(4, (64, 64), (3, 1)), photos.bent(4, (64, 64), (3, 1), part=slice(1, 3))
    assert torch.equal(whole.b[1:3], part.b)
    assert torch.equal(whole.bent[1:3], part.bent)
    points = grid(8, 8)[None]
    assert torch.equal(whole.warp.backward(points)[1:3], part.warp.backward(points))


def test_the_same_seed_gives_the_same_bytes_and_another_another(photos):
    one, two, other = (photos.bent(2, (64, 64), s) for s in ((1, 2), (1, 2), (1, 3)))
    assert torch.equal(one.bent, two.bent)
    assert not torch.equal(one.bent, other.bent)


def test_light_stays_in_range_and_moves_nothing():
    """Relit twice, an image with one bright column still has its largest step there."""
    x = torch.full((6, 3, 48, 48), 0.25)
    x[:, :, :, 24:] = 0.75
    y = relit(x, torch.Generator().manual_seed(0), night=0.0)
    assert y.min() >= 0
    assert y.max() <= 1
    edge = (y[..., 1:] - y[..., :-1]).abs().mean((1, 2)).argmax(-1)
    assert ((edge - 23).abs() <= 1).float().mean() > 0.8
    assert torch.equal(relit(x, torch.Generator(), strength=0.0), x)


def test_night_is_dark():
    x = torch.rand(40, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    day = relit(x, torch.Generator().manual_seed(1), night=0.0).mean((1, 2, 3))
    dark = relit(x, torch.Generator().manual_seed(1), night=1.0).mean((1, 2, 3))
    assert dark.median() < day.median()


def test_the_truth_of_cells_against_the_warp(photos):
    warp = photos.bent(2, (64, 80), (5,)).warp
    truth = cell_truth(warp, 16, 20)
    for i, j in ((3, 4), (8, 15)):
        there, _ = warp.forward(torch.tensor([[[4.0 * j + 1, 4.0 * i + 1]]]))
        wanted = (there[:, 0] - 1) / 4 - torch.tensor([j, i])
        assert torch.allclose(truth.there[:, i, j], wanted, atol=1e-3)


def test_contrast_is_least_for_the_truth(photos):
    """Similarities that single out the true cells cost less than any shuffled ones; hand case: −log P."""
    warp = photos.bent(1, (64, 64), (6,), strength=0.0).warp  # nothing moves
    truth = cell_truth(warp, 16, 16)
    right = 20 * torch.eye(256)[None]
    wrong = right[:, torch.randperm(256, generator=torch.Generator().manual_seed(0))]
    assert contrast(log_dual(right), truth) < 0.01
    assert contrast(log_dual(wrong), truth) > 5
    flat = contrast(log_dual(torch.zeros(1, 256, 256)), truth)
    assert float(flat) == pytest.approx(2 * np.log(256), rel=1e-3)


def test_a_folder_is_read_and_small_photos_are_left_out(tmp_path):
    rng = np.random.default_rng(0)
    write_image(tmp_path / "large.png", rng.integers(0, 255, (300, 400, 3), dtype=np.uint8))
    write_image(tmp_path / "small.png", rng.integers(0, 255, (50, 60, 3), dtype=np.uint8))
    found = Photos.folder(tmp_path, shortest=200)
    assert len(found) == 1
    assert min(found.pictures[0].shape[:2]) == 200
    with pytest.raises(InputError, match="photos"):
        Photos.folder(tmp_path, shortest=2000)
    with pytest.raises(InputError, match="too few"):
        found.split(0.5)
