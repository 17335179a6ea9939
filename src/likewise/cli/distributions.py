"""`likewise distributions`: harvest a generator's volumes once, then trade quality against diversity with ρ."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from likewise.cli import Command, terminal
from likewise.cli.terminal import cluster_flags, count, device_flag, flag, json_flag, out_flag, seed_flag
from likewise.errors import InputError

if TYPE_CHECKING:
    from likewise.distributions.bank import Bank
    from likewise.distributions.generator import Generator

F = TypeVar("F", bound=Callable[..., Any])

WEIGHTS = "Weights (what a file of them does not say)"
top_flag = count("--top", help="singular values in a volume; by default all that the bank keeps")


def settings(_: Any, __: click.Parameter, given: Sequence[str]) -> dict[str, Any]:
    """The callback of --set: NAME=VALUE as JSON, or as text where it is none."""
    told: dict[str, Any] = {}
    for one in given:
        name, equals, text = one.partition("=")
        if not (name and equals):
            raise InputError(f"set: expected NAME=VALUE, got {one!r}")
        try:
            told[name] = json.loads(text)
        except ValueError:
            told[name] = text
    return told


def with_weights(function: Callable[..., None]) -> Callable[..., None]:
    """--family, --stride, --padding, --slope, --noise and --set, as the options of `load` in `weights`."""

    @functools.wraps(function)
    def run(family: str | None, strides: Any, paddings: Any, slope: Any, noise: Any, told: Any, **given: Any) -> None:
        named = {"family": family, "strides": strides, "paddings": paddings, "slope": slope, "noise": noise}
        function(weights={**told, **{k: v for k, v in named.items() if v is not None}}, **given)

    def whole(context: Any, parameter: click.Parameter, text: str | None) -> Any:
        return None if text is None else terminal.numbers(int)(context, parameter, text)

    command: Callable[..., None] = run
    for decorate in (
        flag("--set", "told", multiple=True, callback=settings, group=WEIGHTS, help="any other setting, NAME=VALUE"),
        flag("--noise", group=WEIGHTS, help="of StyleGAN2: const (the default), none or random"),
        flag("--slope", type=float, group=WEIGHTS, help="of the leaky ReLU; 0 is ReLU"),
        flag("--padding", "paddings", callback=whole, group=WEIGHTS, help="of each convolution: 0,1,1"),
        flag("--stride", "strides", callback=whole, group=WEIGHTS, help="of each convolution: 1,2,2"),
        flag("--family", group=WEIGHTS, help="the kind of network, where the keys do not tell"),
    ):
        command = decorate(command)
    return command


def with_bank(function: Callable[..., None]) -> Callable[..., None]:
    """BANK GENERATOR --space --device and flags of weights: a bank and the generator that it came from, opened."""

    @with_weights
    @functools.wraps(function)
    def run(
        bank: str, generator: str, weights: dict[str, Any], space: str | None, device: str, out: str, **given: Any
    ) -> None:
        folder = terminal.check_writable(Path(out))
        function(*bank_at(bank, generator, weights, space, device), folder, **given)

    command: Callable[..., None] = run
    for decorate in (
        device_flag,
        flag("--space", help="module:attribute, where the bank's volumes are measured in features"),
        click.argument("generator"),
        click.argument("bank", type=click.Path()),
    ):
        command = decorate(command)
    return command


def generator_at(name: str, weights: dict[str, Any], space: str, device: str = "cpu") -> Generator:
    """The generator that a word on the command line means, in a space, on a device."""
    from likewise.distributions.data import load, load_object

    generator = load(name, **weights, **({} if device == "cpu" else {"device": device}))
    return generator.in_space(load_object(space) if ":" in space else space)


def bank_at(path: str, name: str, weights: dict[str, Any], space: str | None, device: str) -> tuple[Bank, Generator]:
    """A bank, and the generator in the space in which the bank measured its volumes."""
    from likewise.distributions.bank import Bank
    from likewise.distributions.generator import SPACES
    from likewise.nn.pretrained import NETWORKS

    bank = Bank.open(path)
    there = bank.about.space
    if space is None and there not in (*SPACES, *NETWORKS):
        raise InputError(f"space: {path} measured volumes in {there}; give it with --space module:attribute")
    generator = generator_at(name, weights, space or there, device)
    bank.check(generator)
    return bank, generator


@click.command(cls=Command)
@click.argument("generator")
@count("--n", default=10_000, help="latents")
@out_flag("bank", "the folder of the bank")
@count("--k", help="singular values kept of each Jacobian; by default the largest 30")
@flag(
    "--psi", default=1.0, type=click.FloatRange(0), help="truncation of the map whose volumes are measured; 1 is none"
)
@count("--label", least=0, help="only latents of this class")
@count("--chunk", help="rows in one pass through the network: fewer need less memory")
@count("--basis", help="measure along so many directions that a pilot finds, by the method left")
@flag(
    "--space",
    default="pixel",
    help="where volumes are measured: pixel, preactivation, style, inception, vgg16, lpips, or module:attribute",
)
@with_weights
@device_flag
@seed_flag
@cluster_flags
@json_flag
def harvest(
    generator: str,
    n: int,
    out: str,
    space: str,
    psi: float,
    weights: dict[str, Any],
    device: str,
    as_json: bool,
    **given: Any,
) -> None:
    """Measure the volumes of a GENERATOR at n latents, once; every ρ and k is then a matter of weights.

    GENERATOR is a name (fashion), module:attribute (a Generator, or a function that gives one; it runs that code), or a
    file: a snapshot of StyleGAN2-ada-pytorch or StyleGAN3 (.pkl; nothing in it is run), a state dict (.pth, .pt,
    .safetensors) or a checkpoint of likewise. An interrupted harvest resumes.

    \b
    likewise distributions harvest fashion --n 2000 --out bank
    """
    from likewise.distributions.harvesting import harvest as measure
    from likewise.store.job import check_executor

    check_executor(given["executor"], given["n_jobs"])
    terminal.check_writable(Path(out).parent)
    source = generator_at(generator, weights, space, device).truncated(psi)
    bank = measure(source, n, out=out, progress=True, **given)
    record = {**asdict(bank.about), "n": len(bank), "k": bank.k, "dead": float(bank.dead().mean()), "out": out}
    terminal.result(f"{bank!r} in {out}", record, as_json)


@click.command(cls=Command)
@with_bank
@flag("--rho", type=float, help="polarity: below 0 modes, 0 the model, above 0 anti-modes")
@flag("--ess", type=float, help="instead of --rho: as far as this effective share of the bank allows, below 0 modes")
@count("--n", default=64, help="images")
@flag("--psi", type=click.FloatRange(0), help="truncation; 1 is none, by default that of the bank")
@count("--label", least=0, help="only of this class")
@top_flag
@seed_flag
@out_flag("samples", "folder for images and JSON")
@json_flag
def sample(
    store: Bank, source: Generator, folder: Path, n: int, psi: float | None, as_json: bool, **given: Any
) -> None:
    """Draw images of a GENERATOR with polarity ρ from its BANK.

    Writes images/, grid.png, latents.npy and sample.json (ρ, the effective share of the bank, the largest weight).

    \b
    likewise distributions sample bank fashion --rho -0.5
    """
    import numpy as np

    rho, ess, label, top = (given.pop(name) for name in ("rho", "ess", "label", "top"))
    if (rho is None) == (ess is None):
        raise InputError("rho: give --rho or --ess; one of the two")
    if rho is None:
        share = float(ess or 0.0)
        rho = store.rho_for_ess(abs(share), k=top, sign=-1 if share < 0 else 1, label=label)
    drawn = store.draw(n, rho, top, label=label, **given)
    psi = store.about.psi if psi is None else psi
    x = source.truncated(psi)(drawn.latents, drawn.labels).cpu()
    record = {name: getattr(drawn, name) for name in ("rho", "k", "ess", "largest", "dead")}
    record |= {"n": n, "psi": psi, "label": label, "distinct": len(np.unique(drawn.indices)), **given}
    record |= {"generator": source.name, "rows": drawn.indices.tolist()}
    _write_samples(x, folder, f"ρ = {rho:.3g}")
    _save_array(folder / "latents.npy", drawn.latents)
    terminal.write_json(folder / "sample.json", record)
    share_words = f"ESS {drawn.ess:.1%} of {len(store)}, {record['distinct']} distinct"
    terminal.result(f"{n} images, ρ = {rho:.4g}, {share_words}, in {folder}", record, as_json)


def _write_samples(x: Any, folder: Path, title: str) -> None:
    """Each image of a batch, and all of them in a grid; what is no image is kept as numbers."""
    from likewise import plot
    from likewise.media import write_image
    from likewise.nn.features import to_uint8

    if x.ndim != 4:
        _save_array(folder / "samples.npy", x.numpy())
        return
    images = to_uint8(x)
    for i, image in enumerate(images):
        write_image(folder / "images" / f"{i:05d}.png", image)
    across = max(1, min(16, round(len(images) ** 0.5)))
    plot.save(
        plot.grid([images[i : i + across] for i in range(0, len(images), across)], title=title), folder / "grid.png"
    )
    terminal.remark(f"see {folder / 'grid.png'}")


def _save_array(path: Path, array: Any) -> None:
    import numpy as np

    from likewise.media import atomic

    with atomic(path) as sibling, sibling.open("wb") as stream:
        np.save(stream, array, allow_pickle=False)


@click.command(cls=Command)
@with_bank
@flag("--real", required=True, help="real images (a folder), or their features (.npy, .npz)")
@flag("--rhos", default="-1,-0.5,-0.2,0,0.2,0.5,1", callback=terminal.numbers(float), help="polarities")
@flag("--psis", default="1", callback=terminal.numbers(float), help="truncations; 1 is none")
@flag("--also", multiple=True, type=click.Path(), help="a bank at a ψ of its own (harvest --psi); as often as needed")
@top_flag
@count("--n", least=2, help="images of each draw; by default as many as are real, at most half of the bank")
@count("--draws", least=2, default=3, help="draws of each setting, for mean and standard error")
@flag("--features", help="what embeds images: inception, vgg16 … or module:attribute; by default EfficientNet-Lite0")
@seed_flag
@out_flag("sweep", "folder for figures and table")
@json_flag
def sweep(store: Bank, source: Generator, folder: Path, rhos: list[float], as_json: bool, **given: Any) -> None:
    """Measure quality and diversity of a GENERATOR over ρ × ψ against real images, from its BANK.

    Volumes at ψ are those of the bank that was harvested at it, BANK or one of --also, else those of BANK; the table
    says which. Writes sweep.json, sweep.md (the table), frontier.png, and grid.png (a row of images for each ρ).

    \b
    likewise distributions sweep bank fashion --real clothes/ --rhos -0.5,0,0.5
    """
    from likewise.distributions.data import load_object
    from likewise.distributions.sweep import sweep as measure
    from likewise.media import write_text

    features, top = given.pop("features"), given.pop("top")
    net = load_object(features) if features is not None and ":" in features else features
    banks = [store, *(type(store).open(path) for path in given.pop("also"))]
    table = measure(source, banks, rhos, features=net, k=top, progress=True, **given)
    table.to_json(folder / "sweep.json")
    write_text(folder / "sweep.md", table.table() + "\n")
    table.plot(folder / "frontier.png")
    if table.images:
        table.grid(folder / "grid.png", psi=given["psis"][0])
    terminal.result(table.table().splitlines(), table.to_dict(), as_json)
    terminal.remark(f"see {folder / 'frontier.png'}")


@click.command(cls=Command)
@with_bank
@count("--n", default=32, help="images of each")
@top_flag
@out_flag("modes", "folder for modes.png and modes.json")
@json_flag
def modes(store: Bank, source: Generator, folder: Path, n: int, top: int | None, as_json: bool) -> None:
    """Show the modes and anti-modes of a GENERATOR: where its density on its manifold is greatest and least.

    \b
    likewise distributions modes bank fashion
    """
    from likewise.distributions.sweep import modes as find_modes

    least, greatest = find_modes(source, store, n, k=top)
    volume = store.log_volume(top)
    ends = {"modes": least, "anti_modes": greatest}
    rows = {name: {"rows": r.tolist(), "log_volume": volume[r].tolist()} for name, r in ends.items()}
    record = {"k": store.k if top is None else top, **rows}
    _draw_modes(source, store, (least, greatest), folder / "modes.png")
    terminal.write_json(folder / "modes.json", record)
    spread = volume[greatest[0]] - volume[least[0]]
    terminal.result(
        f"{n} modes and {n} anti-modes of {len(store)} latents, {spread:.1f} nats apart, in {folder}", record, as_json
    )


def _draw_modes(generator: Generator, bank: Bank, ends: Sequence[Any], path: Path) -> None:
    from likewise import plot
    from likewise.nn.features import to_uint8

    rows, labels = [], []
    for name, chosen in zip(("modes", "anti-modes"), ends, strict=True):
        x = generator(bank.latents[chosen], None if bank.labels is None else bank.labels[chosen]).cpu()
        if x.ndim != 4:
            terminal.remark("what this generator makes is no image: modes.json has the rows of the bank")
            return
        images = to_uint8(x)
        rows += [images[i : i + 16] for i in range(0, len(images), 16)]
        labels += [name, *[""] * ((len(images) - 1) // 16)]
    plot.save(plot.grid(rows, labels), path)
    terminal.remark(f"see {path}")
