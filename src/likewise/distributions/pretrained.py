"""The small networks that come with likewise: generators of clothes and the features that measure them.

Their weights, and a card for each with data, recipe, licence and figures, are in likewise/weights;
tools/train_generators.py made them.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import likewise
from likewise.distributions.generator import Generator
from likewise.distributions.latents import Normal
from likewise.errors import InputError
from likewise.inputs import GENERATORS
from likewise.store import checkpoint

HIDDEN = 256


def pretrained(name: str = "fashion", *, device: str | torch.device | None = None) -> Generator:
    """A generator that comes with likewise.

    Parameters
    ----------
    name : {"fashion", "fashion-vae"}, default "fashion"
        A GAN of clothes, or the VAE that it began as; 24 latent coordinates, 28 × 28 grey images in [0, 1].
    device : str or torch.device, optional
        Where it runs.

    Returns
    -------
    Generator
        With normal latents.

    Raises
    ------
    InputError
        Where there is no generator of this name.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.distributions.pretrained("fashion").draw(2).shape
    torch.Size([2, 1, 28, 28])
    """
    if name not in GENERATORS:
        raise InputError(f"name: expected one of {', '.join(GENERATORS)}, got {name!r}")
    arrays, header = read(name)
    net = fill(decoder(header["dim"], header["channels"]), arrays, "decoder")
    return Generator(net, Normal(header["dim"]), name=f"likewise-{name}", device=device)


def fashion_features(*, device: str | torch.device | None = None) -> nn.Sequential:
    """The network that measures images of clothes: (n, 1, 28, 28) in [0, 1] → features (n, 64).

    Parameters
    ----------
    device : str or torch.device, optional
        Where it runs.

    Returns
    -------
    Module
        For `features=` of `compare` and `sweep`, and as a space of `Generator`.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.distributions.fashion_features()(lw.distributions.pretrained().draw(2)).shape
    torch.Size([2, 64])
    """
    arrays, header = read("fashion-features")
    net = fill(features(header["size"]), arrays, "features").to(device)
    net.name = "likewise-fashion-lenet"  # type: ignore[assignment]
    return net


# --------------------------------------------------------------------------------------------------------- networks


def decoder(dim: int, channels: int, planes: int = 1) -> nn.Sequential:
    """A generator of 28 × 28 images: z → 256 → 7 × 7 → 14 × 14 → 28 × 28, normalised, a sigmoid last.

    Maps are enlarged by repeating pixels, then convolved: transposed convolutions leave a chequerboard.
    """
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
    convolution = nn.Conv2d(into, out, 3, padding=1, bias=False)
    return [nn.Upsample(scale_factor=2), convolution, nn.BatchNorm2d(out), nn.ReLU()]


def features(size: int, planes: int = 1) -> nn.Sequential:
    """A LeNet without its last layer: images (n, 1, 28, 28) in [0, 1] → features (n, size), before their ReLU."""
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
def read(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays and header of a file in likewise/weights."""
    return checkpoint.read(Path(likewise.__file__).parent / "weights" / f"{name}.safetensors")


def fill(net: nn.Sequential, arrays: dict[str, Any], part: str) -> nn.Sequential:
    """The network with the weights of a part of a file, for evaluation only."""
    state = {key.removeprefix(f"{part}."): value for key, value in arrays.items() if key.startswith(f"{part}.")}
    net.load_state_dict({key: torch.from_numpy(np.array(value)) for key, value in state.items()})
    return net.eval().requires_grad_(False)
