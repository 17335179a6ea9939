"""`likewise pixels train`: a network from a folder of photos, with a run directory that can be gone on with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from likewise.cli.pixels_model import model_at
from likewise.cli.terminal import check_writable, remark, result
from likewise.errors import InputError
from likewise.papers.life.rivals import PRESETS, settings
from likewise.pixels.training import Config
from likewise.train.options import add_options, build, list_options

OPTIONS = {k.name: k for k in list_options(Config)}
WATCHED = {"bent": "after the last step", "bent_start": "at the start"}
"""The errors that an evaluation notes, as the curves name them."""


@click.command()
@click.argument("photos", type=click.Path())
@click.option("--out", default="run", show_default=True, type=click.Path(), help="the run directory")
@click.option(
    "--scenes",
    "source",
    default="rendered",
    show_default=True,
    help="pairs with fundamental matrices: rendered, none, or a folder that likewise pixels sfm wrote",
)
@click.option("--start", type=click.Path(), help="a trained model to go on from")
@click.option("--resume/--no-resume", default=True, show_default=True, help="go on with a run that was stopped")
@click.option("--preset", type=click.Choice(list(PRESETS)), help="life: the paper's recipe, for a GPU; flags win")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda, cuda:1 …")
@click.option(
    "--scene-pairs",
    "scenes",
    default=OPTIONS["scenes"].default,
    show_default=True,
    type=click.IntRange(0),
    help=OPTIONS["scenes"].help,
)
@add_options(Config, *(name for name in OPTIONS if name != "scenes"))
@click.option("--json", "as_json", is_flag=True, help="print the result as JSON")
def train(
    photos: str,
    out: str,
    source: str,
    start: str | None,
    resume: bool,
    preset: str | None,
    device: str,
    as_json: bool,
    **given: Any,
) -> None:
    """Train a network that aligns photos, from a folder of any PHOTOS: no flow need be known.

    The defaults are for a CPU. Some photos are set aside; the error on their bent selves is told as it goes and chooses
    the weights. Writes RUN/model.safetensors, metrics.jsonl and curves.png. A stopped run goes on with the same
    command. Several processes: torchrun --nproc-per-node 2 -m likewise.cli pixels train …
    """
    folder = Path(out)
    if (folder / "result.json").exists():
        raise InputError(f"out: {folder} holds a finished run already; use another --out")
    check_writable(folder.absolute().parent)
    config = configured(preset, given, source)
    model, first = _trained(photos, config, folder, source, start, resume, device)
    if first:
        _tell(model, folder, as_json)


def configured(preset: str | None, given: Mapping[str, Any], source: str = "rendered") -> Config:
    """The configuration of the flags; with a preset, its settings where no flag was given; without scenes, none."""
    values = {name: given[name] for name in OPTIONS}
    if preset is not None:
        asked = click.get_current_context().get_parameter_source
        silent = {name for name in values if asked(name) is ParameterSource.DEFAULT}
        values |= {name: value for name, value in settings(preset).items() if name in silent}
    if source == "none":
        values["scenes"] = 0
    return build(Config, values)


def _trained(
    photos: str, config: Config, folder: Path, source: str, start: str | None, resume: bool, device: str
) -> tuple[Any, bool]:
    """The network, and whether this process is the one that speaks."""
    from likewise.pixels.life.pairs import Photos
    from likewise.pixels.training import train as trained
    from likewise.train.distributed import ProcessGroup

    first = ProcessGroup.current().first
    pictures = Photos.folder(photos)
    if first:
        remark(f"{len(pictures)} photos, {config.steps or config.total} steps")
    begun = None if start is None else model_at(start)
    scenes = None if source == "none" else source
    model = trained(pictures, config, scenes=scenes, out=folder, resume=resume, start=begun, device=device)
    return model, first


def _tell(model: Any, folder: Path, as_json: bool) -> None:
    from likewise.store.run import Run

    run = Run.open(folder)
    picture = curves(run.metrics(), folder / "curves.png")
    figures = {k: round(v, 4) for k, v in (run.result or {}).items() if isinstance(v, int | float)}
    errors = [f"{figures[k]:.2f} px {WATCHED[k]}" for k in WATCHED if k in figures]
    told = f"bent photos are off by {', '.join(errors)}" if errors else "trained"
    file = str(folder / "model.safetensors")
    name = getattr(model, "name", type(model).__name__)
    result(f"{name}: {told}; {file}", {"model": file, "run": str(folder), "figures": figures}, as_json)
    if picture is not None:
        remark(f"see {picture}")


def curves(lines: Sequence[Mapping[str, Any]], path: Path) -> Path | None:
    """End-point errors on photos set aside over steps; None where nothing was evaluated."""
    from likewise import plot

    series = {}
    for key, name in WATCHED.items():
        points = [(line["step"], line[key]) for line in lines if key in line]
        if points:
            series[name] = ([s for s, _ in points], [e for _, e in points])
    if not series:
        return None
    figure = plot.curves(series, xlabel="step", ylabel="error on bent photos, px", title="as training goes on")
    return plot.save(figure, path)
