"""`likewise distributions`: harvest a generator's volumes once, then dial quality against diversity with ρ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from likewise.cli import LazyGroup
from likewise.cli.terminal import check_writable, remark, result, write_json
from likewise.errors import InputError
from likewise.train.options import add_options, option

if TYPE_CHECKING:
    from likewise.distributions.bank import Bank
    from likewise.distributions.generator import Generator

F = TypeVar("F", bound=Callable[..., Any])


@click.group(
    cls=LazyGroup,
    lazy={
        "compare": (
            "likewise.cli.distributions_compare:compare",
            "What does one collection cover of another? Figures, and what is left uncovered.",
        ),
    },
)
def distributions() -> None:
    """What does a generator or a collection cover? A generator is `module:attribute`, or a file of weights."""


@dataclass(frozen=True)
class Volumes:
    """How volumes are measured."""

    k: int | None = option(None, "singular values kept of each Jacobian; by default the largest 30", low=1)
    space: str = option("pixel", "where volumes are measured: pixel, preactivation, style, or module:attribute")
    method: Literal["auto", "gram", "left", "subspace", "sketch", "fd"] = option(
        "auto", "how singular values are computed; auto: exact where it is cheap"
    )


@dataclass(frozen=True)
class Dial:
    """How latents are drawn from a bank."""

    top: int | None = option(None, "singular values in a volume; by default all that the bank keeps", low=1)
    target: Literal["latent", "uniform"] = option(
        "latent", "keep the density of the latents, or make it uniform on its bounded domain"
    )
    scheme: Literal["multinomial", "systematic", "without"] = option(
        "multinomial", "drawing with replacement, systematically, or without replacement"
    )
    seed: int = option(0, "seed of the draw", low=0)


def family(function: F) -> F:
    """--family, for weights whose keys do not tell."""
    return click.option("--family", help="the kind of network in a file of weights, where its keys do not tell")(
        function
    )


def named(function: F) -> F:
    """BANK GENERATOR --space --family: a bank and the generator that it came from."""
    for decorate in (
        family,
        click.option("--space", help="module:attribute, where the bank's volumes are measured in features"),
        click.argument("generator"),
        click.argument("bank", type=click.Path()),
    ):
        function = decorate(function)
    return function


def generator_at(name: str, family: str | None, space: str) -> Generator:
    """The generator that a word on the command line means, in a space."""
    from likewise.distributions.data import load, load_object

    found = load(name, family=family)
    return found.in_space(load_object(space) if ":" in space else space)


def bank_at(path: str, name: str, family: str | None, space: str | None) -> tuple[Bank, Generator]:
    """A bank, and the generator in the space in which the bank measured its volumes."""
    from likewise.distributions.bank import Bank
    from likewise.distributions.generator import SPACES

    bank = Bank.open(path)
    there = bank.about.space
    if space is None and there not in SPACES:
        raise InputError(f"space: {path} measured volumes in {there}; give it with --space module:attribute")
    generator = generator_at(name, family, space or there)
    bank.check(generator)
    return bank, generator


# ── harvest ───────────────────────────────────────────────────────────────────────────────────────────────────────


@distributions.command()
@click.argument("generator")
@click.option("--n", default=10_000, show_default=True, type=click.IntRange(1), help="latents")
@click.option("--out", default="bank", show_default=True, type=click.Path(), help="the folder of the bank")
@add_options(Volumes)
@family
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="seed of the latents")
@click.option("--n-jobs", default=1, show_default=True, help="processes; -1 is all cores")
@click.option("--executor", help="dask (a cluster on this machine), or the address of a Dask scheduler (tcp://…)")
@click.option("--resume/--no-resume", default=True, show_default=True, help="go on with what an interrupted run left")
@click.option("--json", "as_json", is_flag=True, help="print what the bank is as JSON")
def harvest(
    generator: str,
    n: int,
    out: str,
    family: str | None,
    seed: int,
    n_jobs: int,
    executor: str | None,
    resume: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Measure the volumes of a GENERATOR at n latents, once; every ρ and k is then a matter of weights.

    GENERATOR is module:attribute (a Generator, or a function that gives one), or a file: a state dict (.pth, .pt,
    .safetensors), an ONNX network, or a checkpoint of likewise. An interrupted harvest is gone on with.
    """
    from likewise.distributions.bank import harvest
    from likewise.store.job import check_executor

    check_executor(executor, n_jobs)
    check_writable(Path(out).parent)
    source = generator_at(generator, family, given["space"])
    bank = harvest(
        source,
        n,
        k=given["k"],
        out=out,
        seed=seed,
        method=given["method"],
        executor=executor,
        n_jobs=n_jobs,
        resume=resume,
        progress=True,
    )
    record = {**asdict(bank.about), "n": len(bank), "k": bank.k, "dead": float(bank.dead().mean()), "out": out}
    result(f"{bank!r} in {out}", record, as_json)


# ── sample ────────────────────────────────────────────────────────────────────────────────────────────────────────


@distributions.command()
@named
@click.option("--rho", type=float, help="polarity: below 0 modes, 0 the model, above 0 anti-modes")
@click.option("--ess", type=float, help="instead of --rho: as far as this effective share of the bank allows")
@click.option("--sign", type=click.Choice(["-1", "1"]), default="-1", show_default=True, help="with --ess: which way")
@click.option("--n", default=64, show_default=True, type=click.IntRange(1), help="pictures")
@click.option("--psi", default=1.0, show_default=True, type=click.FloatRange(0), help="truncation; 1 is none")
@click.option("--label", type=click.IntRange(0), help="only of this class")
@add_options(Dial)
@click.option("--out", default="samples", show_default=True, type=click.Path(), help="folder for pictures and JSON")
@click.option("--json", "as_json", is_flag=True, help="print sample.json")
def sample(
    bank: str,
    generator: str,
    rho: float | None,
    ess: float | None,
    sign: str,
    n: int,
    psi: float,
    label: int | None,
    space: str | None,
    family: str | None,
    out: str,
    as_json: bool,
    **given: Any,
) -> None:
    """Draw pictures of a GENERATOR with polarity ρ from its BANK.

    Writes pictures/, grid.png, latents.npy and sample.json (ρ, the effective share of the bank, the largest weight).
    """
    import numpy as np

    if (rho is None) == (ess is None):
        raise InputError("rho: give --rho, or --ess and its --sign; one of the two")
    check_writable(Path(out))
    store, source = bank_at(bank, generator, family, space)
    if rho is None:
        rho = store.rho_for_ess(ess or 0.0, k=given["top"], sign=int(sign), label=label)
    drawn = store.draw(n, rho, given.pop("top"), label=label, **given)
    x = source.truncated(psi)(drawn.latents, drawn.labels)
    record = {name: getattr(drawn, name) for name in ("rho", "k", "ess", "largest", "dead")}
    record |= {"n": n, "psi": psi, "label": label, "distinct": len(np.unique(drawn.indices)), **given}
    record |= {"bank": bank, "generator": generator, "rows": drawn.indices.tolist()}
    _written(x, Path(out), f"ρ = {rho:.3g}")
    _save_array(Path(out) / "latents.npy", drawn.latents)
    write_json(Path(out) / "sample.json", record)
    share = f"ESS {drawn.ess:.1%} of {len(store)}, {record['distinct']} distinct"
    result(f"{n} pictures, ρ = {rho:.4g}, {share}, in {out}", record, as_json)


def _written(x: Any, folder: Path, title: str) -> None:
    """Each picture of a batch, and all of them in a grid; what is not a picture is kept as numbers."""
    from likewise import plot
    from likewise.media import write_image
    from likewise.nn.features import to_uint8

    if x.ndim != 4:
        _save_array(folder / "samples.npy", x.numpy())
        return
    pictures = to_uint8(x)
    for i, picture in enumerate(pictures):
        write_image(folder / "pictures" / f"{i:05d}.png", picture)
    across = max(1, min(16, round(len(pictures) ** 0.5)))
    rows = [pictures[i : i + across] for i in range(0, len(pictures), across)]
    plot.save(plot.grid(rows, [""] * len(rows), title=title), folder / "grid.png")
    remark(f"see {folder / 'grid.png'}")


def _save_array(path: Path, array: Any) -> None:
    import io

    import numpy as np

    from likewise.media import write_bytes

    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    write_bytes(path, buffer.getvalue())


# ── sweep ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def numbers(_: Any, param: click.Parameter, text: str) -> list[float]:
    """Numbers parted by commas."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"expected numbers parted by commas, got {text!r}", param=param) from None


@distributions.command()
@named
@click.option("--real", required=True, help="real pictures (a folder), or their features (.npy, .npz)")
@click.option("--rhos", default="-1,-0.5,-0.2,0,0.2,0.5,1", show_default=True, callback=numbers, help="polarities")
@click.option("--psis", default="1", show_default=True, callback=numbers, help="truncations; 1 is none")
@click.option("--top", type=click.IntRange(1), help="singular values in a volume; by default all that the bank keeps")
@click.option("--n", type=click.IntRange(2), help="pictures of each cell; by default as many as are real")
@click.option("--neighbours", default=3, show_default=True, type=click.IntRange(1), help="k of the k-NN balls")
@click.option("--describe", help="module:attribute of what describes pictures; by default EfficientNet-Lite0")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="seed of the draws")
@click.option("--out", default="sweep", show_default=True, type=click.Path(), help="folder for pictures and table")
@click.option("--json", "as_json", is_flag=True, help="print sweep.json")
def sweep(
    bank: str,
    generator: str,
    real: str,
    rhos: list[float],
    psis: list[float],
    top: int | None,
    n: int | None,
    neighbours: int,
    describe: str | None,
    seed: int,
    space: str | None,
    family: str | None,
    out: str,
    as_json: bool,
) -> None:
    """Measure quality and diversity of a GENERATOR over ρ × ψ against real pictures, from its BANK.

    Writes sweep.json, sweep.md (the table), frontier.png, and grid.png (a row of pictures for each ρ).
    """
    from likewise.distributions.data import load_object
    from likewise.distributions.sweep import sweep
    from likewise.media import write_text

    folder = Path(out)
    check_writable(folder)
    store, source = bank_at(bank, generator, family, space)
    net = None if describe is None else load_object(describe)
    settings: dict[str, Any] = {"psis": psis, "k": top, "n": n, "neighbours": neighbours, "seed": seed}
    found = sweep(source, store, rhos, real=real, features=net, progress=True, **settings)
    found.to_json(folder / "sweep.json")
    write_text(folder / "sweep.md", found.table() + "\n")
    found.plot(folder / "frontier.png")
    if found.images:
        found.grid(folder / "grid.png", psi=psis[0])
    result(found.table(), found.to_dict(), as_json)
    remark(f"see {folder / 'frontier.png'}")


# ── modes ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@distributions.command()
@named
@click.option("--n", default=32, show_default=True, type=click.IntRange(1), help="pictures of each")
@click.option("--top", type=click.IntRange(1), help="singular values in a volume; by default all that the bank keeps")
@click.option("--out", default="modes", show_default=True, type=click.Path(), help="folder for modes.png and JSON")
@click.option("--json", "as_json", is_flag=True, help="print modes.json")
def modes(
    bank: str, generator: str, n: int, top: int | None, space: str | None, family: str | None, out: str, as_json: bool
) -> None:
    """Show the modes and anti-modes of a GENERATOR: where its density on its manifold is greatest and least."""
    from likewise.distributions.sweep import modes

    folder = Path(out)
    check_writable(folder)
    store, source = bank_at(bank, generator, family, space)
    least, greatest = modes(source, store, n, k=top)
    volume = store.log_volume(top)
    record = {
        "k": store.k if top is None else top,
        **{
            name: {"rows": rows.tolist(), "log_volume": volume[rows].tolist()}
            for name, rows in (("modes", least), ("anti_modes", greatest))
        },
    }
    _draw_modes(source, store, (least, greatest), folder / "modes.png")
    write_json(folder / "modes.json", record)
    spread = volume[greatest[0]] - volume[least[0]]
    result(f"{n} modes and {n} anti-modes of {len(store)} latents, {spread:.1f} nats apart, in {out}", record, as_json)


def _draw_modes(generator: Generator, bank: Bank, ends: Sequence[Any], path: Path) -> None:
    from likewise import plot
    from likewise.nn.features import to_uint8

    rows, labels = [], []
    for name, chosen in zip(("modes", "anti-modes"), ends, strict=True):
        x = generator(bank.latents[chosen], None if bank.labels is None else bank.labels[chosen])
        if x.ndim != 4:
            remark("what this generator makes is no picture: modes.json has the rows of the bank")
            return
        pictures = to_uint8(x)
        rows += [pictures[i : i + 16] for i in range(0, len(pictures), 16)]
        labels += [name, *[""] * ((len(pictures) - 1) // 16)]
    plot.save(plot.grid(rows, labels), path)
    remark(f"see {path}")
