"""`likewise images train`: an embedder from labelled pictures, with a run directory that can be gone on with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from likewise.cli.terminal import check_writable, remark, result
from likewise.errors import InputError
from likewise.images.config import Config
from likewise.images.presets import PRESETS, settings
from likewise.train.options import add_options, build, list_options

LAYOUTS = ("auto", "folder", "cub200", "cars196", "sop", "omniglot")


@click.command()
@click.argument("data", type=click.Path())
@click.option("--out", default="run", show_default=True, type=click.Path(), help="the run directory")
@click.option("--layout", default="auto", show_default=True, type=click.Choice(LAYOUTS), help="how DATA is laid out")
@click.option("--resume/--no-resume", default=True, show_default=True, help="go on with a run that was stopped")
@click.option("--preset", type=click.Choice(list(PRESETS)), help="the settings of one of the paper's runs; flags win")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:1 …")
@add_options(Config)
@click.option("--json", "as_json", is_flag=True, help="print the result as JSON")
def train(
    data: str, out: str, layout: str, resume: bool, preset: str | None, device: str, as_json: bool, **given: Any
) -> None:
    """Train an embedder on the classes of DATA: a folder for each class, or a published data set.

    Some classes are set aside; R@1 on them is told as it goes and chooses the weights. Writes RUN/model.safetensors,
    metrics.jsonl and curves.png. A stopped run goes on with the same command. Several processes:
    torchrun --nproc-per-node 2 -m likewise.cli images train …
    """
    from likewise.images import layouts
    from likewise.images.training import train as trained
    from likewise.train.distributed import ProcessGroup

    folder = Path(out)
    if (folder / "result.json").exists():
        raise InputError(f"out: {folder} holds a finished run already; use another --out")
    check_writable(folder.parent)
    config = configured(preset, given)
    dataset = layouts.read(data, layout=layout, split="train")
    first = ProcessGroup.current().first
    if first:
        remark(f"{dataset}")
    model = trained(dataset, config, out=folder, resume=resume, device=device)
    if not first:
        return
    picture = draw(folder)
    figures = {k: round(v, 4) for k, v in model.figures.items()}
    told = ", ".join(f"{k.removesuffix('_r1')} R@1 {v:.3f}" for k, v in figures.items() if k.endswith("_r1"))
    record = {"model": str(folder / "model.safetensors"), "run": str(folder), "figures": figures}
    result(f"{model.name}: {told or 'trained'}; {folder / 'model.safetensors'}", record, as_json)
    if picture is not None:
        remark(f"see {picture}")


def configured(preset: str | None, given: Mapping[str, Any]) -> Config:
    """The configuration of the flags; with a preset, its settings where no flag was given."""
    values = {k.name: given[k.name] for k in list_options(Config)}
    if preset is not None:
        source = click.get_current_context().get_parameter_source
        silent = {name for name in values if source(name) is ParameterSource.DEFAULT}
        values |= {name: value for name, value in settings(preset).items() if name in silent}
    return build(Config, values)


def draw(folder: Path) -> Path | None:
    """The curves of a run directory, beside it: loss, and R@1 of all that was watched."""
    from likewise.store.run import Run

    return curves(Run.open(folder).metrics(), folder / "curves.png")


def curves(lines: Sequence[dict[str, Any]], path: Path) -> Path | None:
    """R@1 over steps, a line for each collection; None where nothing was evaluated."""
    from likewise import plot

    names = sorted({k for line in lines for k in line if k.endswith("_r1")})
    if not names:
        return None
    shown = {n.removesuffix("_r1"): [(line["step"], line[n]) for line in lines if n in line] for n in names}
    series = {n: ([s for s, _ in points], [r for _, r in points]) for n, points in shown.items()}
    figure = plot.curves(series, xlabel="step", ylabel="R@1", title="recall as training goes on")
    return plot.save(figure, path)
