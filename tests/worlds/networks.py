"""Small networks of the real structures, every weight and statistic random, for the tests of formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from likewise.distributions.formats import Network
from likewise.distributions.formats.biggan import Attention, BigGANDeep
from likewise.distributions.formats.biggan import Block as BigBlock
from likewise.distributions.formats.decoders import DCGAN, VAE, ProGAN, UpsamplingDCGAN
from likewise.distributions.formats.stylegan import Design, StyleGAN2, StyleGAN3, StyleMapping, grids


def filled(net: Network, seed: int = 0) -> Network:
    """The network with random biases, noises and statistics, so that a value that is not used is noticed."""
    draws = torch.Generator().manual_seed(seed)
    for name, value in net.state_dict().items():
        last = name.rsplit(".", 1)[-1]
        if not value.is_floating_point() or last in ("resample_filter", "up_filter", "down_filter", "transform"):
            continue
        noise = torch.randn(value.shape, generator=draws)
        if last in ("running_var", "running_vars", "magnitude_ema"):
            value.copy_(0.5 + noise.abs())
        elif last in ("bias", "noise_strength", "w_avg", "running_mean", "running_means", "gamma"):
            value.add_(0.3 * noise)
    return net.eval().requires_grad_(False)


def stylegan2(classes: int | None = None) -> Network:
    torch.manual_seed(1)
    mapping = StyleMapping(8, 12, 3, classes=classes, embedding=6 if classes else 0)
    return filled(StyleGAN2(mapping, [10, 8, 6], clamp=256.0))


def stylegan3(*, radial: bool = False) -> Network:
    torch.manual_seed(2)
    rows = grids([(36, 6), (36, 6), (52, 4), (52, 2), (32, 2), (32, 3)], 10)
    filters: list[list[Tensor | None]] = []
    for before, after in zip((rows[0], *rows[:-2]), rows[:-1], strict=True):
        fine = 2 * max(before.rate, after.rate)
        filters.append([_smooth(6 * fine // before.rate), _smooth(6 * fine // after.rate, radial=radial)])
    kernel = 1 if radial else 3
    filters.append([None, None])
    design = Design(256.0, 2.0, 0.25, 2, 10)
    return filled(StyleGAN3(StyleMapping(8, 12, 2), rows, entry=6, kernel=kernel, filters=filters, design=design))


def _smooth(taps: int, *, radial: bool = False) -> Tensor:
    """A symmetric low-pass filter that sums to 1; as a square it is no outer product."""
    f = torch.hann_window(taps + 2, periodic=False)[1:-1]
    x = torch.linspace(-1, 1, taps)
    f = torch.outer(f, f) * (1 + 0.3 * torch.hypot(x[:, None], x[None])) if radial else f
    return f / f.sum()


def biggan(steps: int = 5) -> Network:
    torch.manual_seed(3)
    layers = nn.ModuleList(
        [
            BigBlock(64, 64, 10, steps, up=False, middle=16),
            BigBlock(64, 32, 10, steps, up=True, middle=16),
            Attention(32, 4, 16),
            BigBlock(32, 32, 10, steps, up=False, middle=8),
            BigBlock(32, 4, 10, steps, up=True, middle=8),
        ]
    )
    return filled(BigGANDeep(6, 4, 3, 4, layers, steps))


def progan() -> Network:
    torch.manual_seed(4)
    return filled(ProGAN(8, [10, 8, 6]))


def upsampling(classes: int | None = 3) -> Network:
    torch.manual_seed(6)
    given = None if classes is None else (classes, 4)
    return filled(UpsamplingDCGAN(5, (8, 8, 6, 1), 3, slope=0.0, classes=given, latent_first=False))


def example_dcgan(z: int = 7, width: int = 4) -> nn.Sequential:
    """The generator of PyTorch's DCGAN example, at a small width: 64 × 64."""
    torch.manual_seed(7)
    layers: list[nn.Module] = [nn.ConvTranspose2d(z, width * 8, 4, 1, 0, bias=False)]
    for into, out in ((8, 4), (4, 2), (2, 1)):
        layers += [nn.BatchNorm2d(width * into), nn.ReLU()]
        layers += [nn.ConvTranspose2d(width * into, width * out, 4, 2, 1, bias=False)]
    layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False), nn.Tanh()]
    return _shaken(nn.Sequential(*layers))


def example_vae() -> nn.Module:
    """The VAE of PyTorch's MNIST example, at a small width: 8 × 8."""
    torch.manual_seed(8)
    net = nn.Module()
    shapes = {"fc1": (64, 20), "fc21": (20, 5), "fc22": (20, 5), "fc3": (5, 20), "fc4": (20, 64)}
    for name, shape in shapes.items():
        net.add_module(name, nn.Linear(*shape))
    return net.eval()


def framed_vae() -> nn.ModuleDict:
    """A convolutional VAE's decoder: decoder_input, decoder.{i}.{0,1}, final_layer.{0,1,3}."""
    torch.manual_seed(9)
    parts = {
        "decoder_input": nn.Linear(5, 8 * 4),
        "decoder": nn.Sequential(_doubling(8, 6), _doubling(6, 6)),
        "final_layer": nn.Sequential(
            nn.ConvTranspose2d(6, 6, 3, 2, 1, 1), nn.BatchNorm2d(6), nn.LeakyReLU(), nn.Conv2d(6, 3, 3, padding=1)
        ),
        "encoder": nn.Sequential(nn.Linear(3, 3)),
        "fc_mu": nn.Linear(3, 5),
    }
    return _shaken(nn.ModuleDict(parts))


def _doubling(into: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.ConvTranspose2d(into, out, 3, 2, 1, 1), nn.BatchNorm2d(out), nn.LeakyReLU())


def _shaken(net: Any) -> Any:
    """Statistics as after some training."""
    for m in net.modules():
        if isinstance(m, nn.BatchNorm2d):
            nn.init.normal_(m.running_mean, std=0.05)
            nn.init.uniform_(m.running_var, 0.01, 0.05)
            nn.init.normal_(m.bias, std=0.3)
    return net.eval().requires_grad_(False)


EXAMPLE: dict[str, Any] = {"strides": [1, 2, 2, 2, 2], "paddings": [0, 1, 1, 1, 1], "slope": 0.0}
"""What the weights of PyTorch's DCGAN example do not say."""


def dcgan() -> Network:
    return DCGAN.from_state({f"main.{key}": value for key, value in example_dcgan().state_dict().items()}, **EXAMPLE)


def vae() -> Network:
    return VAE.from_state(example_vae().state_dict())


def vae_convolutional() -> Network:
    return VAE.from_state(framed_vae().state_dict())


ALL: dict[str, Callable[[], Network]] = {
    "stylegan2": stylegan2,
    "stylegan2 with classes": lambda: stylegan2(4),
    "stylegan3 t": stylegan3,
    "stylegan3 r": lambda: stylegan3(radial=True),
    "biggan_deep": biggan,
    "progan": progan,
    "upsampling_dcgan": upsampling,
    "upsampling_dcgan without classes": lambda: upsampling(None),
    "dcgan": dcgan,
    "vae": vae,
    "vae, convolutional": vae_convolutional,
}


def latents(net: Network, n: int = 3, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor | None]:
    """Latents and, where the network has them, classes."""
    z = torch.randn(n, net.dim, generator=torch.Generator().manual_seed(11)).to(dtype)
    return z, None if net.labels is None else torch.arange(n) % net.labels
