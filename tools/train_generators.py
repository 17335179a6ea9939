"""Train the small networks that likewise ships, and those that its experiments need: minutes each, on one core.

    python tools/train_generators.py fashion-vae       the VAE of clothes that is shipped
    python tools/train_generators.py fashion           the GAN of clothes that is shipped: the VAE, made sharp
    python tools/train_generators.py fashion-features  the classifier whose features describe clothes
    python tools/train_generators.py digits-features   the same for digits (not shipped; the experiments use it)
    python tools/train_generators.py colours-vae       a VAE of coloured digits (not shipped; experiment C.1)

Fashion-MNIST (MIT) comes from Debian's dataset-fashion-mnist; MNIST's test digits from LIKEWISE_DATA/mnist.
Every step draws from its own counter seed, so a killed run goes on where it was and ends in the same weights.
"""

from __future__ import annotations

import gzip
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.utils.parametrizations import spectral_norm

import likewise
from likewise import media
from likewise.distributions.data import GENERATORS, decoder, features
from likewise.papers.polarity import encoder
from likewise.store import checkpoint

FASHION = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package puts Fashion-MNIST; --fashion names another folder."""
RUNS = media.cache_folder() / "train-generators"
WEIGHTS = Path(likewise.__file__).parent / "weights"


# ----------------------------------------------------------------------------------------------------------- data


def idx(file: Path) -> np.ndarray[Any, Any]:
    """The array of bytes in a gzipped idx file, the format of MNIST."""
    data = gzip.decompress(file.read_bytes())
    axes = data[3]
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes)]
    return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape)


def pictures(folder: Path, part: str) -> tuple[Tensor, Tensor]:
    """Pictures (n, 1, 28, 28) in [0, 1] and labels (n,) of the part "train" or "t10k"."""
    if not folder.is_dir():
        raise click.UsageError(f"{folder} does not exist; apt-get install dataset-fashion-mnist, or set LIKEWISE_DATA")
    x = torch.from_numpy(idx(folder / f"{part}-images-idx3-ubyte.gz").copy())[:, None].float().div_(255)
    return x, torch.from_numpy(idx(folder / f"{part}-labels-idx1-ubyte.gz").astype(np.int64))


def halves(folder: Path, *, seed: int = 0) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """MNIST's 10,000 test digits cut into two fixed halves: one to learn features from, one to measure on."""
    x, y = pictures(folder, "t10k")
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(x)))
    first, second = order[: len(x) // 2], order[len(x) // 2 :]
    return (x[first], y[first]), (x[second], y[second])


LARGE = 1024
"""Arrays of more numbers than this are shipped in half precision."""
SPREAD = 0.6
"""The standard deviation of a pixel about a VAE's picture of it."""
HUES = ((1.0, 0.15, 0.15), (0.1, 0.8, 1.0))
"""Red and cyan, as factors of grey."""


def coloured(x: Tensor, share: float, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Digits (n, 3, 28, 28) in two hues, `share` of them cyan, and which are."""
    cyan = torch.from_numpy(np.random.default_rng(seed).random(len(x)) < share)
    tint = torch.tensor(HUES)[cyan.long()]
    return x * tint[:, :, None, None], cyan


# ------------------------------------------------------------------------------------------------------- the loop


@dataclass
class Recipe:
    """What is trained: modules and optimisers by name, one step, and what remains at the end."""

    name: str
    steps: int
    modules: dict[str, nn.Module]
    optimisers: dict[str, torch.optim.Optimizer]
    step: Callable[[int], dict[str, float]]
    finish: Callable[[], tuple[dict[str, nn.Module], dict[str, Any]]]
    look: Callable[[], Tensor] | None = None
    settings: dict[str, Any] = field(default_factory=dict)


def train(recipe: Recipe, folder: Path, *, every: int = 250) -> tuple[dict[str, nn.Module], dict[str, Any]]:
    """Run the steps that are left, keeping the state `every` so many steps; then what the recipe makes of it."""
    folder.mkdir(parents=True, exist_ok=True)
    state = folder / f"{recipe.name}.pt"
    began, first = time.perf_counter(), _resume(recipe, state)
    for step in range(first, recipe.steps):
        torch.manual_seed(step + 1_000_003)  # a counter seed: a step is the same, resumed or not
        figures = recipe.step(step)
        if (step + 1) % every == 0 or step + 1 == recipe.steps:
            _keep(recipe, state, step + 1)
            _tell(recipe, folder, step + 1, figures, time.perf_counter() - began)
    return recipe.finish()


def _resume(recipe: Recipe, state: Path) -> int:
    if not state.is_file():
        return 0
    held = torch.load(state, weights_only=True)
    if held["settings"] != recipe.settings:
        raise click.UsageError(f"{state} is of a run with other settings; remove it or choose another --runs")
    for name, one in {**recipe.modules, **recipe.optimisers}.items():
        one.load_state_dict(held["states"][name])
    return int(held["step"])


def _keep(recipe: Recipe, state: Path, step: int) -> None:
    states = {name: one.state_dict() for name, one in {**recipe.modules, **recipe.optimisers}.items()}
    with media.atomic(state) as temporary:
        torch.save({"step": step, "settings": recipe.settings, "states": states}, temporary)


def _tell(recipe: Recipe, folder: Path, step: int, figures: dict[str, float], seconds: float) -> None:
    said = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
    click.echo(f"{recipe.name} {step}/{recipe.steps}  {said}  {seconds:.0f} s")
    if recipe.look is not None:
        media.write_image(folder / f"{recipe.name}.png", grid(recipe.look()))


def grid(x: Tensor, columns: int = 12) -> np.ndarray[Any, Any]:
    """Pictures (n, c, h, w) in [0, 1] side by side, as (H, W, 3) bytes."""
    x = x[: len(x) // columns * columns].expand(-1, 3, -1, -1)
    n, c, h, w = x.shape
    sheet = x.reshape(n // columns, columns, c, h, w).permute(0, 3, 1, 4, 2).reshape(n // columns * h, columns * w, c)
    return np.asarray((sheet.clamp(0, 1) * 255).round().byte())


def batches(x: Tensor, y: Tensor, size: int, seed: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    """The batch of a step: each epoch its own order, from a counter seed."""
    per_epoch = len(x) // size

    def batch(step: int) -> tuple[Tensor, Tensor]:
        epoch, i = divmod(step, per_epoch)
        order = np.random.default_rng((seed, epoch)).permutation(len(x))[i * size : (i + 1) * size]
        return x[order], y[order]

    return batch


# -------------------------------------------------------------------------------------------------------- recipes


class Critic(nn.Module):
    """Convolutions under spectral norm: a score of the whole picture, with the batch's spread, and of its parts."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        c = channels
        self.first = spectral_norm(nn.Conv2d(1, c, 4, 2, 1))
        self.second = spectral_norm(nn.Conv2d(c, 2 * c, 4, 2, 1))
        self.parts = spectral_norm(nn.Conv2d(2 * c, 1, 1))
        self.hidden = spectral_norm(nn.Linear(2 * c * 49 + 1, 128))
        self.whole = spectral_norm(nn.Linear(128, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = F.leaky_relu(self.first(x), 0.2)
        h = F.leaky_relu(self.second(h), 0.2)
        spread = h.var(0).add(1e-6).sqrt().mean().expand(len(h), 1)
        hidden = F.leaky_relu(self.hidden(torch.cat([h.flatten(1), spread], 1)), 0.2)
        return self.whole(hidden), self.parts(h).flatten(1)


def gan(x: Tensor, y: Tensor, start: nn.Module, *, steps: int, dim: int, channels: int, batch: int = 40) -> Recipe:
    """A GAN that begins as a VAE's decoder: hinge loss, spectral norm in the critic, averaged weights.

    From nothing, this many steps leave blots; the decoder has the shapes already, and is only made sharp.
    """
    torch.manual_seed(0)
    net, mean = decoder(dim, channels), decoder(dim, channels)
    net.load_state_dict(start.state_dict())
    mean.load_state_dict(start.state_dict())
    critic = Critic(48)
    opt_net = torch.optim.Adam(net.parameters(), 2e-4, (0.0, 0.99))
    opt_critic = torch.optim.Adam(critic.parameters(), 4e-4, (0.0, 0.99))
    draw = batches(x, y, batch, 0)

    def step(i: int) -> dict[str, float]:
        rest = min(1.0, 2 * (1 - i / steps))
        real, fake = draw(i)[0], net(torch.randn(batch, dim))
        scores = zip(critic(real), critic(fake.detach()), strict=True)
        loss = sum((F.relu(1 - r).mean() + F.relu(1 + f).mean() for r, f in scores), torch.zeros(()))
        _descend(loss, opt_critic, 4e-4 * rest)
        critic.requires_grad_(False)
        score = sum((-f.mean() for f in critic(fake)), torch.zeros(()))
        _descend(score, opt_net, 2e-4 * rest * min(1.0, i / 200))
        critic.requires_grad_(True)
        _average(mean, net, 0.996)
        return {"critic": loss.item(), "generator": score.item()}

    def finish() -> tuple[dict[str, nn.Module], dict[str, Any]]:
        _settle(mean, dim)
        return {"decoder": mean.eval()}, {"dim": dim, "channels": channels}

    modules = {"net": net, "mean": mean, "critic": critic}
    settings = {"steps": steps, "dim": dim, "channels": channels, "batch": batch}
    look = _look(mean, dim)
    return Recipe("gan", steps, modules, {"net opt": opt_net, "critic opt": opt_critic}, step, finish, look, settings)


def vae(
    x: Tensor, y: Tensor, *, steps: int, dim: int = 24, channels: int = 64, batch: int = 96, planes: int = 1
) -> Recipe:
    """A VAE with Gaussian pixels of one spread, so that its likelihood is a density of pictures.

    A learnt spread falls to .1 and leaves the latents so informed that draws from N(0, 1) are blots; .6 does not.
    """
    torch.manual_seed(1)
    generator, reader = decoder(dim, channels, planes), encoder(dim, channels, planes)
    opt = torch.optim.Adam([*generator.parameters(), *reader.parameters()], 1e-3, (0.9, 0.99))
    draw = batches(x, y, batch, 1)

    def step(i: int) -> dict[str, float]:
        real = draw(i)[0]
        centre, log_scale = reader(real).chunk(2, 1)
        log_scale = log_scale.clamp(-6, 3)
        z = centre + log_scale.exp() * torch.randn_like(centre)
        error = 0.5 * ((real - generator(z)) / SPREAD).square()
        kl = 0.5 * (centre.square() + (2 * log_scale).exp() - 1) - log_scale
        loss = error.flatten(1).sum(1).mean() + min(1.0, i / 500) * kl.sum(1).mean()
        _descend(loss, opt, 1.5e-3 * min(1.0, 2 * (1 - i / steps)))
        return {"loss": loss.item(), "kl": kl.sum(1).mean().item()}

    def finish() -> tuple[dict[str, nn.Module], dict[str, Any]]:
        header = {"dim": dim, "channels": channels, "planes": planes, "log_spread": math.log(SPREAD)}
        return {"decoder": generator.eval(), "encoder": reader.eval()}, header

    modules = {"decoder": generator, "encoder": reader}
    settings = {"steps": steps, "dim": dim, "channels": channels, "batch": batch, "planes": planes, "spread": SPREAD}
    return Recipe("vae", steps, modules, {"opt": opt}, step, finish, _look(generator, dim), settings)


def classifier(x: Tensor, y: Tensor, *, steps: int, size: int = 64, batch: int = 128) -> Recipe:
    """A LeNet-like classifier, shifted pictures as augmentation; its last hidden layer describes pictures."""
    torch.manual_seed(2)
    body, head = features(size), nn.Sequential(nn.ReLU(), nn.Dropout(0.2), nn.Linear(size, 10))
    opt = torch.optim.Adam([*body.parameters(), *head.parameters()], 1e-3)
    draw = batches(x, y, batch, 2)

    def step(i: int) -> dict[str, float]:
        real, label = draw(i)
        shift = np.random.default_rng((7, i)).integers(-2, 3, 2)
        real = torch.roll(real, tuple(int(s) for s in shift), (2, 3))
        scores = head(body(real))
        loss = F.cross_entropy(scores, label)
        _descend(loss, opt, 1e-3 * (1 - i / steps))
        return {"loss": loss.item(), "accuracy": (scores.argmax(1) == label).float().mean().item()}

    def finish() -> tuple[dict[str, nn.Module], dict[str, Any]]:
        return {"features": body.eval(), "head": head.eval()}, {"size": size}

    settings = {"steps": steps, "size": size, "batch": batch}
    return Recipe("features", steps, {"body": body, "head": head}, {"opt": opt}, step, finish, None, settings)


def _descend(loss: Tensor, opt: torch.optim.Optimizer, rate: float | None = None) -> None:
    for group in opt.param_groups if rate is not None else ():
        group["lr"] = rate
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()


@torch.no_grad()
def _average(mean: nn.Module, net: nn.Module, keep: float) -> None:
    for slow, fast in zip(mean.parameters(), net.parameters(), strict=True):
        slow.lerp_(fast, 1 - keep)


@torch.no_grad()
def _settle(net: nn.Module, dim: int, rounds: int = 50) -> None:
    """Batch statistics of the averaged weights, from fresh latents."""
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over the rounds
    net.train()
    draws = torch.Generator().manual_seed(3)
    for _ in range(rounds):
        net(torch.randn(200, dim, generator=draws))
    net.eval()


def _look(net: nn.Module, dim: int) -> Callable[[], Tensor]:
    """A sheet of 96 pictures of fixed latents, batch statistics from themselves."""

    @torch.no_grad()
    def look() -> Tensor:
        held = {name: value.clone() for name, value in net.state_dict().items()}
        z = torch.randn(96, dim, generator=torch.Generator().manual_seed(4))
        x = net.train()(z)
        net.load_state_dict(held)
        return x

    return look


# ------------------------------------------------------------------------------------------------------- commands


def made(name: str, runs: Path, fashion: Path, digits: Path | None) -> tuple[dict[str, nn.Module], dict[str, Any]]:
    """The trained modules of that name and their header, from the folder of runs if they were trained before."""
    recipe = _sharpened(runs, fashion) if name == "fashion" else RECIPES[name](fashion, digits)
    modules, header = train(recipe, runs / name)
    return modules, {"kind": name, **header, "recipe": {"steps": recipe.steps, **recipe.settings}}


def _sharpened(runs: Path, fashion: Path) -> Recipe:
    """The GAN, begun as the VAE of the same folder of runs, which is trained first where it is not there."""
    modules, header = made("fashion-vae", runs, fashion, None)
    settings = {"dim": header["dim"], "channels": header["channels"]}
    return gan(*pictures(fashion, "train"), modules["decoder"], steps=1600, **settings)


def _digits(folder: Path | None) -> Path:
    if folder is None:
        raise click.UsageError("digits: set LIKEWISE_DATA, or --data, to the folder that holds mnist/")
    return folder / "mnist"


RECIPES: dict[str, Callable[[Path, Path | None], Recipe]] = {
    "fashion-vae": lambda fashion, _: vae(*pictures(fashion, "train"), steps=2200),
    "fashion-features": lambda fashion, _: classifier(*pictures(fashion, "train"), steps=3000),
    "digits-features": lambda _, folder: classifier(*halves(_digits(folder))[0], steps=1000),
    "colours-vae": lambda _, folder: vae(*_biased(_digits(folder)), steps=1500, channels=32, planes=3),
}


def _biased(folder: Path) -> tuple[Tensor, Tensor]:
    x, y = halves(folder)[0]
    return coloured(x, 0.2, seed=5)[0], y


def arrays(modules: dict[str, nn.Module]) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Every parameter and buffer as an array, named module.key; large ones in half precision, to keep files small."""
    for name, module in modules.items():
        for key, value in module.state_dict().items():
            array = value.detach().numpy()
            yield f"{name}.{key}", array.astype(np.float16) if array.size > LARGE else array


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(["fashion", *RECIPES]), required=True)
@click.option("--data", "folder", envvar="LIKEWISE_DATA", type=click.Path(path_type=Path))
@click.option("--fashion", default=FASHION, type=click.Path(path_type=Path), show_default=True)
@click.option("--runs", default=RUNS, type=click.Path(path_type=Path), help="states of runs, to go on from")
@click.option("--out", default=WEIGHTS, type=click.Path(path_type=Path), show_default="the package's weights/")
def main(names: tuple[str, ...], folder: Path | None, fashion: Path, runs: Path, out: Path) -> None:
    """Train the networks NAMES; the shipped ones are written to --out."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    for name in names:
        modules, header = made(name, runs, fashion, folder)
        if name in (*GENERATORS, "fashion-features"):
            file = out / f"{name}.safetensors"
            checkpoint.write(file, dict(arrays(modules)), header)
            click.echo(f"written: {file.name}, {file.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
