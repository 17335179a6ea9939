"""Cells stand where they say they do, and the encoder's parts compute what their formulas say."""

import pytest
import torch

from likewise.errors import ShapeError
from likewise.nn import named
from likewise.pixels.life.network import AROUND, CENTRE, STRIDE, TAPS, Encoder, cells, place, unit


@pytest.fixture(scope="module")
def encoder():
    made = Encoder(dim=24)
    made.begin()
    made.principal(torch.rand(2, 3, 64, 80, generator=torch.Generator().manual_seed(0)))
    return made.eval().requires_grad_(False)


def test_maps_are_those_of_the_backbone(encoder):
    x = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    base = named("efficientnet-lite0").fold()
    padded = torch.nn.functional.pad(x, (AROUND, AROUND + 12, AROUND, AROUND + 12), mode="replicate")  # to 144
    for found, (block, channels, stride) in zip(encoder.maps(x), TAPS, strict=True):
        before = base.features(padded, block - 1)
        wanted = base.blocks[block].expand(before)
        assert found.shape == (1, channels, 144 // stride, 144 // stride)
        assert torch.allclose(found, wanted, atol=1e-4)


@pytest.mark.parametrize("stride", [4, 8, 16])
def test_a_map_is_read_at_the_cells_places(stride):
    """A map whose value is the pixel at which its cell stands gives the cells' own pixels."""
    n = 24
    at = stride * torch.arange(n, dtype=torch.float64) + stride - 1 - AROUND
    ramp = torch.stack([at.expand(n, n), at[:, None].expand(n, n)])[None]
    h = w = 8
    found = place(ramp, stride, h, w)
    wanted = STRIDE * torch.arange(8, dtype=torch.float64) + CENTRE
    assert torch.allclose(found[0, 0], wanted.expand(8, 8))
    assert torch.allclose(found[0, 1], wanted[:, None].expand(8, 8))


def test_a_shift_by_a_stride_shifts_the_cells(encoder):
    """A photo moved by 16 px gives the same cells four further on, away from the borders."""
    g = torch.Generator().manual_seed(2)
    coarse = torch.rand(1, 3, 24, 30, generator=g)
    photo = torch.nn.functional.interpolate(coarse, (192, 240), mode="bicubic").clamp(0, 1)
    one, two = encoder(photo[:, :, :160, :192]), encoder(photo[:, :, :160, 16:208])
    inner = (slice(None), slice(None), slice(12, 28))
    here, there = one[..., 18:36][inner], two[..., 14:32][inner]
    agree = (here * there).sum(1)
    apart = (one[..., 14:32][inner] * there).sum(1)
    assert agree.mean() > 0.9
    assert agree.mean() > apart.mean() + 0.1


def test_rows_are_of_unit_length_and_sized_by_four(encoder):
    found = encoder(torch.rand(2, 3, 66, 81, generator=torch.Generator().manual_seed(3)))
    assert found.shape == (2, 24, 17, 21)
    assert torch.allclose(found.square().sum(1), torch.ones(2, 17, 21), atol=1e-3)


def test_unit_normalises_channels_then_cells():
    x = torch.randn(2, 5, 4, 6, generator=torch.Generator().manual_seed(4))
    y = (x - x.mean((2, 3), keepdim=True)) / (x.var((2, 3), unbiased=False, keepdim=True) + 1e-5).sqrt()
    wanted = y / (y.square().sum(1, keepdim=True) + 1e-6).sqrt()
    assert torch.allclose(unit(x), wanted, atol=1e-5)


def test_the_axes_are_principal(encoder):
    """No other projection to as many dimensions keeps more of the variance: the Gram matrix of the axes is one."""
    axes = torch.cat([p.weight[:, :, 0, 0] for p in encoder.project], 1)
    assert torch.allclose(axes @ axes.T, torch.eye(24), atol=1e-4)


def test_a_wrong_shape_is_told():
    with pytest.raises(ShapeError, match="images"):
        cells(torch.zeros(3, 64, 64))
