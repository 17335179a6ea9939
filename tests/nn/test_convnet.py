"""The small network: its equations, its sizes, and that it learns."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from likewise.errors import InputError, ShapeError
from likewise.nn import ConvNet
from nn.layers import Contract, convolution, normalisation, randomised


class TestConvNet(Contract):
    size = 28

    def make(self, **options: object) -> ConvNet:
        return ConvNet(**options)

    @pytest.mark.parametrize("grey", [False, True])
    def test_the_network_is_its_equations(self, grey: bool) -> None:
        model = ConvNet(width=6, blocks=3, grey=grey, size=16)
        w = randomised(model)
        x = self.pictures()
        y = (x.mean(1, keepdim=True) if grey else x) * 2 - 1
        for i in range(3):
            y = functional.max_pool2d(
                normalisation(w, convolution(w, y, f"blocks.{i}.conv"), f"blocks.{i}.bn").relu(), 2
            )
        with torch.no_grad():
            torch.testing.assert_close(model.features(x), y.mean(dim=(2, 3)), atol=1e-10, rtol=1e-9)

    @pytest.mark.parametrize("side", [16, 28, 64])
    def test_sizes_from_16_to_64(self, side: int) -> None:
        model = ConvNet()
        assert model.dim == 64
        assert model.features(torch.rand(3, 3, side, side)).shape == (3, 64)

    def test_too_small_is_named(self) -> None:
        with pytest.raises(ShapeError, match="too small"):
            ConvNet().features(torch.rand(1, 3, 12, 12))
        with pytest.raises(InputError, match="size: 5 blocks"):
            ConvNet(blocks=5, size=28)
        with pytest.raises(InputError, match="width: expected"):
            ConvNet(width=0)

    def test_it_learns_to_tell_stripes_apart(self) -> None:
        """Upright against level stripes of random phase: a linear layer on its vector fits in a few steps."""
        g = torch.Generator().manual_seed(0)
        phase = torch.rand(24, 1, 1, generator=g) * 6
        wave = torch.sin(torch.arange(28.0)[None, :, None] + phase).expand(24, 28, 28) / 2 + 0.5
        labels = torch.arange(24) % 2
        x = torch.where(labels[:, None, None] == 0, wave, wave.transpose(1, 2))[:, None].expand(-1, 3, -1, -1)
        model = ConvNet(width=8, blocks=3, grey=True).train()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            head = torch.nn.Linear(8, 2)
        optimiser = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=0.02)
        losses = []
        for _ in range(25):
            loss = functional.cross_entropy(head(model.features(x)), labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
        assert losses[-1] < 0.1 < losses[0]
