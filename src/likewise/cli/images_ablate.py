"""`likewise images ablate`: DiVA's tables and figures at the chosen scale, with seeds and standard errors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from likewise.cli.images_train import LAYOUTS
from likewise.cli.terminal import check_writable, remark, result, write_json
from likewise.errors import FileError
from likewise.images.config import Config
from likewise.train.options import add_options, build, list_options

STUDIES = ("tasks", "structure", "rivals")


@click.command()
@click.argument("data", type=click.Path())
@click.option(
    "--study",
    default="tasks",
    show_default=True,
    type=click.Choice(STUDIES),
    help="every set of tasks (Tab. 2); decorrelation, separate models, controls (Tab. 4); DaNCE's rivals (Fig. 1, 4)",
)
@click.option(
    "--test", "test_data", type=click.Path(), help="classes to test on; by default the data set's own, or a third"
)
@click.option("--layout", default="auto", show_default=True, type=click.Choice(LAYOUTS), help="how DATA is laid out")
@click.option("--out", default="ablation", show_default=True, type=click.Path(), help="the folder of runs and pictures")
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1), help="seeds, paired over variants")
@add_options(Config, *(k.name for k in list_options(Config) if k.name not in ("seed", "keep")))
@click.option("--json", "as_json", is_flag=True, help="print the table as JSON")
def ablate(
    data: str, study: str, test_data: str | None, layout: str, out: str, seeds: int, as_json: bool, **given: Any
) -> None:
    """Train every variant of a study on the classes of DATA and test it on others.

    Writes OUT/STUDY.json, STUDY.png (R@1 with standard errors) and STUDY-spectra.png (Fig. 5). Finished runs are kept:
    the same command goes on with an ablation that was stopped.
    """
    from likewise.images.ablation import STUDIES as STUDIES_OF
    from likewise.images.ablation import ablate as ablated

    folder = Path(out)
    check_writable(folder.parent)
    config = build(Config, given)
    training, test = _parts(data, test_data, layout)
    remark(f"{training}; tested on {len(test):,} pictures of {len(test.classes)} other classes")
    variants = STUDIES_OF[study](config)
    found = ablated(training, test, variants, config, out=folder, seeds=range(seeds), study=study, tell=remark)
    found.plot(folder / f"{study}.png")
    found.plot_spectra(folder / f"{study}-spectra.png")
    rows = [{name: _held(value) for name, value in row.items()} for row in found.records()]
    record = {"study": study, "data": data, "rows": rows}
    write_json(folder / f"{study}.json", record)
    result("\n".join(_line(row) for row in rows), record, as_json)
    remark(f"see {folder / f'{study}.png'} and {folder / f'{study}-spectra.png'}")


def _parts(data: str, test_data: str | None, layout: str) -> tuple[Any, Any]:
    """Classes to train on and others to test on: as published, as given, or the last third of the classes."""
    from likewise.images import layouts

    if test_data is not None:
        return layouts.read(data, layout=layout, split="train"), layouts.unseen(test_data, layout)[0]
    try:
        return layouts.read(data, layout=layout, split="train"), layouts.read(data, layout=layout, split="test")
    except FileError:  # class folders that nobody has divided
        whole = layouts.read(data, layout=layout)
        return whole.split(1 / 3, last=True)


def _held(value: Any) -> Any:
    """What JSON holds: an infinite decay is null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _line(row: dict[str, Any]) -> str:
    spread = "" if row["r1_se"] is None else f" ± {row['r1_se']:.4f}"
    paired = "" if row["difference_se"] is None else f" ± {row['difference_se']:.4f}"
    return f"{row['variant']:<34} R@1 {row['r1']:.4f}{spread}   {row['difference']:+.4f}{paired}"
