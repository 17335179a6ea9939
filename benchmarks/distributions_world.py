"""What the experiments on polarity sampling are made on: generators, real pictures, features, and their banks.

A bank of the experiments holds the spectra in three spaces at once, and the features of its pictures: one
forward-mode pass through (before the squashing, pixels, features) gives the three Jacobians for the price of one.
The first rows are checked against `likewise.distributions.spectrum`, which goes through each space by itself.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import train_generators as training
from likewise.distributions import Normal, TruncatedNormal, adapters
from likewise.distributions.model import Generator
from likewise.distributions.networks.network import squashed
from likewise.distributions.shipped import describer, shipped
from likewise.store import checkpoint

SPACES = ("pixel", "preactivation", "feature")
CHUNK = 8
"""Latents whose Jacobians are in memory at a time."""
SHARD = 500
"""Latents a file."""
AGREE = 2e-3
"""How far, in nats, a singular value among the checked ones may be from the library's own."""


@dataclass(frozen=True)
class Subject:
    """A generator under test: its body up to the squashing, the pixels in [0, 1], the describing net, real pictures."""

    name: str
    dim: int
    before: Callable[..., Tensor]
    squash: Callable[[Tensor], Tensor]
    describe: nn.Module
    real: Tensor
    labels: int | None = None

    def pixels(self, z: Tensor, *y: Tensor) -> Tensor:
        """Pictures in [0, 1]."""
        return self.squash(self.before(z, *y))

    def generator(self, space: str = "pixel") -> Generator:
        """The same for the library."""
        known = {"preactivation": lambda z, y: self.before(z, *(() if y is None else (y,)))}
        chosen = self.describe if space == "feature" else space
        made = Generator(self.pixels, Normal(self.dim), labels=self.labels, spaces=known, space=chosen, name=self.name)
        return made

    def draw(self, n: int, seed: tuple[int, ...], psi: float | None = None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Latents and labels from a counter seed; classes in turn."""
        latent = Normal(self.dim) if psi is None else TruncatedNormal(self.dim, psi)
        z = torch.from_numpy(latent.sample(n, np.random.default_rng((17, *seed))))
        return z, () if self.labels is None else (torch.arange(n) % self.labels,)


# ------------------------------------------------------------------------------------------------------- subjects


class Stores:
    """Where data, trained networks and banks are."""

    def __init__(self, data: Path, cells: Path, fashion: Path = training.FASHION) -> None:
        self.data, self.cells, self.fashion = data, cells, fashion

    @functools.cached_property
    def digits(self) -> Tensor:
        """The half of MNIST's test digits that nothing was trained on."""
        return training.halves(self.data / "mnist")[1][0]

    @functools.cached_property
    def digits_net(self) -> nn.Module:
        """The classifier trained on the other half, without its last layer."""
        return self.trained("digits-features")["features"]

    @functools.cached_property
    def clothes(self) -> Tensor:
        """5,000 of Fashion-MNIST's test pictures."""
        return training.pictures(self.fashion, "t10k")[0][:5000]

    @functools.cache  # noqa: B019 (one object a run)
    def trained(self, name: str) -> dict[str, nn.Module]:
        """The networks of a recipe, trained now if they never were."""
        return training.made(name, self.cells / "training", self.fashion, self.data)[0]


def dcgan(stores: Stores) -> Subject:
    """The DCGAN of digits, z = 64."""
    return _digits("dcgan", "dcgan_mnist_z64.pth", stores)


def cwgan(stores: Stores) -> Subject:
    """The conditional WGAN of digits, z = 10; its batch statistics tell that z comes before the class."""
    return _digits("cwgan", "cwgan_mnist_z10.pth", stores)


def _digits(name: str, file: str, stores: Stores) -> Subject:
    net: Any = adapters.dcgan(stores.data / "generators" / file).net
    squash = functools.partial(squashed, output=net.output)
    return Subject(name, net.dim, net.preactivation, squash, stores.digits_net, stores.digits, labels=net.labels)


def fashion(stores: Stores) -> Subject:
    """The GAN of clothes that is shipped."""
    return _ours("fashion", stores)


def fashion_vae(stores: Stores) -> Subject:
    """The VAE of clothes that is shipped."""
    return _ours("fashion-vae", stores)


def _ours(name: str, stores: Stores) -> Subject:
    net, describe = shipped(name).net, describer("fashion")
    return Subject(name, net[0].in_features, net[:-1], torch.sigmoid, describe, stores.clothes)


SUBJECTS: dict[str, Callable[[Stores], Subject]] = {
    "dcgan": dcgan,
    "cwgan": cwgan,
    "fashion": fashion,
    "fashion-vae": fashion_vae,
}


# ---------------------------------------------------------------------------------------------------------- banks


@dataclass(frozen=True)
class Harvest:
    """N latents, their labels, log σ (N, K) in each space, and the features (N, d) of their pictures."""

    z: NDArray[np.float32]
    y: NDArray[np.int64] | None
    log_sigma: dict[str, NDArray[np.float64]]
    features: NDArray[np.float32]


def harvest(subject: Subject, n: int, seed: int, folder: Path, *, psi: float | None = None) -> Harvest:
    """The first n latents of a seed's bank, from the folder as far as they are there; kept shard by shard."""
    shards = [_shard(subject, seed, part, folder, psi) for part in range(-(-n // SHARD))]
    whole = {key: np.concatenate([shard[key] for shard in shards])[:n] for key in shards[0]}
    logs = {space: whole[f"log_sigma.{space}"] for space in SPACES}
    return Harvest(whole["z"], whole.get("y"), logs, whole["features"])


def _shard(subject: Subject, seed: int, part: int, folder: Path, psi: float | None) -> dict[str, Any]:
    about = {"subject": subject.name, "seed": seed, "part": part, "psi": psi, "net": identity(subject), "code": code()}
    file = folder / f"bank-{subject.name}-{seed}{'' if psi is None else f'-{psi:g}'}-{part}.safetensors"
    if file.is_file():
        arrays, header = checkpoint.read(file)
        if header == about:
            return arrays
    arrays = _harvested(subject, seed, part, psi)
    checkpoint.write(file, arrays, about)
    return arrays


def code() -> str:
    """A digest of the sources that decide what is in a bank."""
    parts = (Subject.draw, Subject.pixels, _harvested, spectra, _log_sigma)
    return hashlib.sha256("".join(inspect.getsource(part) for part in parts).encode()).hexdigest()[:12]


def _harvested(subject: Subject, seed: int, part: int, psi: float | None) -> dict[str, Any]:
    z, y = subject.draw(SHARD, (seed, part), psi)
    found: dict[str, list[Any]] = {}
    for i in range(0, SHARD, CHUNK):
        values, feature = spectra(subject, z[i : i + CHUNK], *(one[i : i + CHUNK] for one in y))
        found.setdefault("features", []).append(feature.numpy().astype(np.float32))
        for space in SPACES:
            found.setdefault(f"log_sigma.{space}", []).append(values[space])
    labels = {"y": y[0].numpy()} if y else {}
    return {"z": z.numpy(), **labels, **{key: np.concatenate(parts) for key, parts in found.items()}}


def spectra(subject: Subject, z: Tensor, *y: Tensor) -> tuple[dict[str, NDArray[np.float64]], Tensor]:
    """log σ in every space, from one forward-mode pass a latent direction, and the features."""

    def three(latents: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        before = subject.before(latents, *y)
        pixels = subject.squash(before)
        return before.flatten(1), pixels.flatten(1), subject.describe(pixels).flatten(1)

    directions = torch.eye(subject.dim)[:, None, :].expand(-1, len(z), -1)
    with torch.no_grad():
        push = torch.func.vmap(lambda t: torch.func.jvp(three, (z,), (t,))[1])
        before, pixel, feature = push(directions)
        described = three(z)[2]
    found = {"preactivation": before, "pixel": pixel, "feature": feature}
    return {space: _log_sigma(columns) for space, columns in found.items()}, described


def _log_sigma(columns: Tensor) -> NDArray[np.float64]:
    """log σ, descending, of Jacobians given as columns (K, n, D), through the Gram matrix in float64."""
    J = columns.permute(1, 0, 2).double()
    squares = torch.linalg.eigvalsh(J @ J.mT).flip(-1)
    floor = squares[:, :1] * 1e-14
    return np.asarray(0.5 * torch.log(torch.maximum(squares, floor)))


def check(subject: Subject, bank: Harvest, rows: int = 8) -> float:
    """The largest difference, in nats, of the first rows from the library's own spectra; a large one stops all."""
    from likewise.distributions import spectrum

    k, worst = min(10, subject.dim), 0.0
    for space, row in ((space, row) for space in SPACES for row in range(rows)):
        y = None if bank.y is None else int(bank.y[row])
        own = spectrum(subject.generator(space).function(y), torch.from_numpy(bank.z[row : row + 1]), k, method="gram")
        worst = max(worst, float(np.abs(own.log_values[0] - bank.log_sigma[space][row, :k]).max()))
    if not worst <= AGREE:
        raise SystemExit(f"{subject.name}: log σ differ by {worst:.2g} nats from the library's own")
    return worst


def identity(subject: Subject) -> str:
    """What tells one subject from another: its pictures and features of fixed latents."""
    z, y = subject.draw(16, (99,))
    with torch.no_grad():
        x = subject.pixels(z, *y)
        told = [round(float(v), 3) for v in (x.sum(), x.square().sum(), subject.describe(x).square().sum())]
    return json.dumps(told)


def describe(net: nn.Module, x: Tensor) -> NDArray[np.float32]:
    """Features (n, d) of pictures, in batches."""
    with torch.no_grad():
        return np.concatenate([net(part).numpy() for part in x.split(500)]).astype(np.float32)
