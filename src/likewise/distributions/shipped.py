"""The small networks that come with likewise: generators of clothes and the features that describe them.

Their weights, and a card for each with data, recipe, licence and figures, are in likewise/weights;
benchmarks/train_generators.py made them.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64

from likewise.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from likewise.distributions.model import Generator

GENERATORS = ("fashion", "fashion-vae")
"""The shipped generators: a GAN and a VAE of clothes, 28 × 28 pictures in [0, 1]."""
NAMES = (*GENERATORS, "fashion-features")
"""The shipped files."""


def shipped(name: str = "fashion", *, device: str | torch.device | None = None) -> Generator:
    """A generator that comes with likewise: "fashion" (a GAN) or "fashion-vae" (the VAE that it began as); z = 24."""
    from likewise.distributions.latents import Normal
    from likewise.distributions.model import Generator

    if name not in GENERATORS:
        raise InputError(f"name: expected one of {', '.join(GENERATORS)}, got {name!r}")
    arrays, header = _file(name)
    net = _filled(decoder(header["dim"], header["channels"]), arrays, "decoder")
    return Generator(net, Normal(header["dim"]), name=f"likewise-{name}", device=device)


def describer(name: str = "fashion", *, device: str | torch.device | None = None) -> nn.Sequential:
    """The network that describes the pictures of the shipped generators: (n, 1, 28, 28) in [0, 1] → (n, 64)."""
    if name != "fashion":
        raise InputError(f"name: expected fashion, got {name!r}")
    arrays, header = _file("fashion-features")
    net = _filled(features(header["size"]), arrays, "features").to(device)
    net.name = "likewise-fashion-lenet"  # type: ignore[assignment]
    return net


class Likelihood:
    """A VAE's log-likelihood of pictures, from below: the importance-weighted bound, in nats.

    log p(x) ≥ E log 1/S Σ_s p(x | z_s) p(z_s) / q(z_s | x), z_s ~ q(· | x), with p(x | z) = N(G(z), s²) in each pixel.
    """

    def __init__(self, name: str = "fashion-vae", *, samples: int = 64, seed: int = 0) -> None:
        if name != "fashion-vae":
            raise InputError(f"name: expected fashion-vae, which alone gives a likelihood, got {name!r}")
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
            raise InputError(f"samples: expected a whole number ≥ 1, got {samples!r}")
        arrays, header = _file(name)
        self.decoder = _filled(decoder(header["dim"], header["channels"]), arrays, "decoder")
        self.encoder = _filled(encoder(header["dim"], header["channels"]), arrays, "encoder")
        self.log_spread, self.samples, self.seed = float(header["log_spread"]), samples, seed

    def __call__(self, x: Tensor) -> Float64[np.ndarray, " n"]:
        """log p (n,) of pictures (n, 1, 28, 28) in [0, 1]."""
        import torch

        with torch.no_grad():
            draws = torch.Generator().manual_seed(self.seed)
            centre, log_scale = self.encoder(x).chunk(2, 1)
            parts = [self._ratio(x, centre, log_scale, draws) for _ in range(self.samples)]
            bound = torch.logsumexp(torch.stack(parts), 0) - math.log(self.samples)
        return np.asarray(bound, dtype=np.float64)

    def _ratio(self, x: Tensor, centre: Tensor, log_scale: Tensor, draws: torch.Generator) -> Tensor:
        """log p(x | z) p(z) / q(z | x) of one draw a picture, in float64."""
        import torch

        noise = torch.randn(centre.shape, generator=draws)
        z = centre + log_scale.exp() * noise
        error = ((x - self.decoder(z)).double() / math.exp(self.log_spread)).flatten(1)
        pixels = -0.5 * error.square().sum(1) - error.shape[1] * (self.log_spread + 0.5 * math.log(2 * math.pi))
        latents = 0.5 * (noise.double().square() - z.double().square()) + log_scale.double()
        total: Tensor = pixels + latents.sum(1)
        return total


# --------------------------------------------------------------------------------------------------------- networks


HIDDEN = 256


def decoder(dim: int, channels: int, planes: int = 1) -> nn.Sequential:
    """A generator of 28 × 28 pictures: z → 256 → 7 × 7 → 14 × 14 → 28 × 28, normalised, a sigmoid last.

    Maps are enlarged by repeating pixels, then convolved: transposed convolutions leave a chequerboard.
    """
    from torch import nn

    c = channels
    return nn.Sequential(
        nn.Linear(dim, HIDDEN, bias=False),
        nn.BatchNorm1d(HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, c * 49, bias=False),
        nn.Unflatten(1, (c, 7, 7)),
        nn.BatchNorm2d(c),
        nn.ReLU(),
        *_enlarged(c, c // 2),
        *_enlarged(c // 2, c // 4),
        nn.Conv2d(c // 4, planes, 3, padding=1),
        nn.Sigmoid(),
    )


def _enlarged(into: int, out: int) -> list[nn.Module]:
    from torch import nn

    convolution = nn.Conv2d(into, out, 3, padding=1, bias=False)
    return [nn.Upsample(scale_factor=2), convolution, nn.BatchNorm2d(out), nn.ReLU()]


def encoder(dim: int, channels: int, planes: int = 1) -> nn.Sequential:
    """What a VAE thinks of a picture: the mean and the log of the spread of each latent, (n, 2 dim)."""
    from torch import nn

    c = channels
    return nn.Sequential(
        nn.Conv2d(planes, c // 2, 4, 2, 1),
        nn.ReLU(),
        nn.Conv2d(c // 2, c, 4, 2, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(c * 49, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, 2 * dim),
    )


def features(size: int, planes: int = 1) -> nn.Sequential:
    """A LeNet without its last layer: pictures (n, 1, 28, 28) in [0, 1] → features (n, size), before their ReLU."""
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(planes, 16, 5, padding=2),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(16, 32, 5),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 25, 128),
        nn.ReLU(),
        nn.Linear(128, size),
    )


# ------------------------------------------------------------------------------------------------------------ files


@functools.cache
def _file(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays and header of a shipped file."""
    import likewise
    from likewise.store import checkpoint

    return checkpoint.read(Path(likewise.__file__).parent / "weights" / f"{name}.safetensors")


def _filled(net: nn.Sequential, arrays: dict[str, Any], part: str) -> nn.Sequential:
    """The network with the weights of a part of a file, for evaluation only."""
    import torch

    state = {key.removeprefix(f"{part}."): value for key, value in arrays.items() if key.startswith(f"{part}.")}
    net.load_state_dict({key: torch.from_numpy(np.array(value)) for key, value in state.items()})
    return net.eval().requires_grad_(False)
