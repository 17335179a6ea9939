"""DiVA against the margin baseline on CUB-200-2011, classes 101–200 never seen.

    python benchmarks/quality.py images                    every experiment; finished runs are kept and gone on with
    python benchmarks/quality.py images --only start       the pretrained feature; nothing is trained
    python benchmarks/quality.py images --only short       margin, DiVA, controls, the authors' settings; 240 steps
    python benchmarks/quality.py images --only race-full   20 epochs, everything trained (race: half-frozen), curves
    python benchmarks/quality.py images --only differences what the race's differences may owe to seeds and to classes
    python benchmarks/quality.py images --only mirror      the race's networks with mirror images
    python benchmarks/quality.py images --only tasks       the table of task subsets (also: structure, rivals)

    … --only race-full --variant margin --seed 1           trains that one and writes no table: for a core of its own
    … --only race-full --finished                          the table of what has come to its end; trains nothing

The paper's split: classes 1–100 to train on, of which 81–100 are kept for validation and choose every setting, 101–200
to test on. 128-px centre crops of photos with a shortest side of 144 px, EfficientNet-Lite0, total dimension 512, 20 ×
4 pictures a batch. `short`, `tasks`, `structure` and `rivals` train the end of the network on kept crops of the frozen
beginning (stem and blocks 0–10); `race` does so, too, and `race-full` trains everything. Every variant has the same
seeds, steps and batches; differences to margin are paired by seed. Runs are kept as images_runs.py says.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

import images_figures
from images_runs import CURVES, UNSEEN, Birds, Cell
from likewise.images import ablation, metrics
from likewise.images.ablation import Variant, mean_error, mean_error_over_classes
from likewise.images.config import Config
from likewise.media import cache_folder, write_text
from record import record

FROZEN = 12
"""Parts of EfficientNet-Lite0 that are kept as they are in half-frozen training: the stem and blocks 0 to 10."""
SHORT = Config(frozen=FROZEN, steps=240, epochs=4.0, evaluate_every=120, keep="last", mirror=False)
FULL = dataclasses.replace(SHORT, frozen=0, steps=0, epochs=20.0, evaluate_every=236)
"""The long race."""
DIVA = {"tasks": "disc,shared,intra,dance"}
MARGIN = Variant("margin", {"tasks": "disc"})
SMALL_ALPHA = {"alpha_shared": 0.03, "alpha_intra": 0.03, "alpha_sample": 0.03}
LARGER_ALPHA = {"alpha_shared": 0.1, "alpha_intra": 0.1, "alpha_sample": 0.1}
FOUR = {"tasks": "disc,disc,disc,disc"}
SMALL = Variant("DiVA, α 0.03", {**DIVA, **SMALL_ALPHA})
LARGER = Variant("DiVA, α 0.1", {**DIVA, **LARGER_ALPHA})
FOUR_HEADS = Variant("four discriminative heads", FOUR)
UNTRAINED = Variant("three untrained heads", {"tasks": "disc,none,none,none"})
RACERS = (MARGIN, SMALL, FOUR_HEADS, UNTRAINED)
CANDIDATES = (
    MARGIN,
    SMALL,
    FOUR_HEADS,
    UNTRAINED,
    Variant("DiVA, α 0.03, ρ 0.02", {**DIVA, **SMALL_ALPHA, "rho": 0.02}),
    LARGER,
    Variant("margin, averaged weights", {"tasks": "disc", "ema": 0.98}),
    Variant("four discriminative heads, averaged weights", {**FOUR, "ema": 0.98}),
    Variant("DiVA, α 0.03, averaged weights", {**DIVA, **SMALL_ALPHA, "ema": 0.98}),
)
"""What was considered; validation R@1 chooses among them, and the library's default is what it chose."""
OTHERS = (
    Variant(
        "DiVA, released settings",
        {**DIVA, "alpha_shared": 0.3, "alpha_intra": 0.3, "alpha_sample": 0.3, "rho": 1500 / 128**2, "tau": 0.01}
        | {"shared": "random"},
    ),
    Variant("margin, heads from random weights", {"tasks": "disc", "start": "random", "head_lr": 1e-3}),
)
"""How the authors' runs are set: measured, not considered."""
Rows = list[dict[str, Any]]
Runs = dict[int, dict[str, Any]]
"""What trainings came to, by seed."""
Figure = Callable[[dict[str, Any]], float]


@dataclass(frozen=True)
class Trained:
    """What an experiment trains: variants of a configuration, kept under the name of a group."""

    variants: tuple[Variant, ...]
    config: Config
    group: str


def untrained(birds: Birds, size: int = 128, shortest: int = 144) -> Rows:
    """R@1 of the pretrained feature, and of its principal axes, with which training starts; found once."""
    file = birds.kept / f"untrained-{size}-{shortest}.json"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(_untrained(birds, size, shortest), ensure_ascii=False) + "\n")
    return list(json.loads(file.read_text(encoding="utf-8")))


def _untrained(birds: Birds, size: int, shortest: int) -> Rows:
    from likewise.images.model import Embedder
    from likewise.images.training import Training
    from likewise.nn import named
    from likewise.train.distributed import ProcessGroup

    plain = named("efficientnet-lite0").fold()
    config = dataclasses.replace(SHORT, frozen=0, size=size, shortest=shortest, **MARGIN.changes)
    models = {
        "frozen ImageNet feature": Embedder(plain, name="frozen", dim=plain.dim, size=size, shortest=shortest),
        "its principal axes, before training": Training(
            birds.training, None, {}, config, processes=ProcessGroup()
        ).embedder(),
    }
    rows: Rows = []
    for name, model in models.items():
        row: dict[str, Any] = {"variant": name, "seeds": 1}
        for part, data in birds.unseen.items():
            for model.mirror, words in ((True, ", mirrored"), (False, "")):
                found = model.embed(data.items)
                row[f"{part} R@1{words}"] = metrics.recall_at_k(found, data.labels, ks=(1,))[1]
        rows.append(row | {"spectral decay": metrics.spectral_decay(found)})
    return rows


def cell(birds: Birds, variant: Variant, config: Config, seed: int, group: str) -> Cell:
    """One training: experiments that train the same thing, under whatever name, share it."""
    asked = variant.configs(config, seed)
    same = next((v for v in CANDIDATES if v.configs(config, seed) == asked), variant)
    return Cell(birds, same, config, seed, group)


def summary(name: str, runs: Runs, base: Runs) -> dict[str, Any]:
    """The last step of every seed, the step that validation chose, and the best on test (which decides nothing).

    Differences are those of the seeds that both have.
    """
    them = list(runs.values())
    row: dict[str, Any] = {"variant": name, "seeds": len(runs), "steps": them[0]["steps"][-1]}
    row |= _measured("test R@1", "difference", _last, runs, base)
    row |= _measured("test R@1, step by validation", "difference, step by validation", _picked, runs, base)
    row |= {"best test R@1 on the way": float(np.mean([max(r["test"]) for r in them]))}
    row |= _spread("validation R@1", np.array([r["validation"][-1] for r in them]))
    row |= {"train R@1": float(np.mean([r["train"][-1] for r in them]))}
    row |= {k: float(np.mean([r["figures"][k] for r in them])) for k in ("mAP@R", "NMI", "spectral decay")}
    row |= {"test by seed": [_last(r) for r in them], "validation by seed": [r["validation"][-1] for r in them]}
    return row | {"commits of the runs": sorted({r["commit"] for r in them})}


def _measured(name: str, difference: str, figure: Figure, runs: Runs, base: Runs) -> dict[str, Any]:
    """A figure's mean over seeds, and that of its differences to the baseline, each with its error."""
    paired = np.array([figure(runs[seed]) - figure(base[seed]) for seed in runs if seed in base])
    row = _spread(name, np.array([figure(r) for r in runs.values()]))
    return row | (_spread(difference, paired) if len(paired) else {})


def _last(one: dict[str, Any]) -> float:
    return float(one["test"][-1])


def _picked(one: dict[str, Any]) -> float:
    """R@1 on test at the step that was best on validation."""
    return float(one["test"][int(np.argmax(one["validation"]))])


def _mirrored(one: dict[str, Any]) -> float:
    return float(one["mirrored"]["test"])


def _spread(name: str, values: np.ndarray[Any, Any]) -> dict[str, Any]:
    mean, error = mean_error(values)
    return {name: mean, f"{name} s.e.": _number(error)}


def _number(x: float) -> float | None:
    return None if math.isnan(x) else x


def compared(birds: Birds, what: Trained) -> tuple[Rows, dict[str, Any]]:
    """Every variant for every seed; rows, and curves by variant."""
    rows: Rows = []
    curves: dict[str, Any] = {}
    base: Runs = {}
    for variant in what.variants:
        cells = {seed: cell(birds, variant, what.config, seed, what.group) for seed in birds.seeds}
        cells = {seed: one for seed, one in cells.items() if one.done or not birds.finished}
        runs = {seed: one.result() for seed, one in cells.items()}
        if not runs:
            continue
        base = base or runs
        rows.append(summary(variant.name, runs, base))
        curves[variant.name] = [{k: r[k] for k in ("steps", *CURVES)} for r in runs.values()]
        click.echo(f"{what.group}: {variant.name}: test R@1 {rows[-1]['test by seed']}", err=True)
    return rows, curves


COLUMNS = (
    "variant", "seeds", "steps", "test R@1", "test R@1 s.e.", "difference", "difference s.e.", "validation R@1",
    "train R@1", "spectral decay",
)  # fmt: skip
BY_VALIDATION = (
    "test R@1, step by validation", "difference, step by validation", "difference, step by validation s.e.",
)  # fmt: skip
"""Where there are curves: the same at the step that was best on validation."""


def start(birds: Birds) -> None:
    """The pretrained feature and its principal axes, alone and with mirror images."""
    columns = ("variant", *(f"{part} R@1{how}" for part in UNSEEN for how in ("", ", mirrored")), "spectral decay")
    command = "python benchmarks/quality.py images --only start"
    record("quality-images-start", columns, untrained(birds), command, "New classes; nothing is trained")


def short(birds: Birds) -> None:
    """240 steps: margin and DiVA, the controls, and the authors' settings."""
    rows, _ = compared(birds, TRAININGS["short"])
    _record("short", [untrained(birds)[0], *rows], SHORT)


def race(birds: Birds) -> None:
    """Twenty epochs of half-frozen training: does the baseline overfit, and does DiVA cross it?"""
    rows, curves = compared(birds, TRAININGS["race"])
    _record("race", rows, TRAININGS["race"].config, curves, BY_VALIDATION)


def race_full(birds: Birds) -> None:
    """Twenty epochs with everything trained, on crops that are made anew."""
    rows, curves = compared(birds, TRAININGS["race-full"])
    _record("race-full", rows, FULL, curves, BY_VALIDATION)
    images_figures.draw(curves, FULL.epochs)


def mirror(birds: Birds) -> None:
    """The last networks of the long race, looking at pictures and their mirror images; nothing is trained."""
    rows: Rows = []
    base: Runs = {}
    for variant in RACERS:
        cells = {seed: cell(birds, variant, FULL, seed, "race-full") for seed in birds.seeds}
        runs = {seed: one.result() | {"mirrored": one.mirrored()} for seed, one in cells.items() if one.done}
        runs = {seed: run for seed, run in runs.items() if run["mirrored"]}
        if not runs:
            continue
        base = base or runs
        row: dict[str, Any] = {"variant": variant.name, "seeds": len(runs)}
        for part in UNSEEN:
            row |= {f"{part} R@1, alone": float(np.mean([run[part][-1] for run in runs.values()]))}
            row |= _spread(f"{part} R@1, mirrored", np.array([run["mirrored"][part] for run in runs.values()]))
        rows.append(row | _measured("test R@1, mirrored", "difference, mirrored", _mirrored, runs, base))
    columns = ["variant", "seeds", *(f"{part} R@1, {how}" for part in UNSEEN for how in ("alone", "mirrored"))]
    columns += ["test R@1, mirrored s.e.", "difference, mirrored", "difference, mirrored s.e."]
    columns = [c for c in columns if any(row.get(c) is not None for row in rows)]
    command = "python benchmarks/quality.py images --only mirror"
    note = "The last networks of the long race that are at hand; differences to margin of the same seeds"
    record("quality-images-mirror", columns, rows, command, note)


def differences(birds: Birds) -> None:
    """The race's differences between last networks, with what may have made them by chance: the seeds, the classes.

    Paired by seed, and over classes by picture: as if other classes had been drawn, for the seeds whose hits are kept.
    """
    rows = []
    for variant, base in ((SMALL, MARGIN), (UNTRAINED, MARGIN), (SMALL, UNTRAINED), (FOUR_HEADS, MARGIN)):
        pairs = [[cell(birds, v, FULL, seed, "race-full") for v in (variant, base)] for seed in birds.seeds]
        pairs = [pair for pair in pairs if all(one.done for one in pair)]
        if not pairs:
            continue
        row: dict[str, Any] = {"difference": f"{variant.name} − {base.name}", "seeds": len(pairs)}
        for part in UNSEEN:
            by_seed = np.array([one.result()[part][-1] - two.result()[part][-1] for one, two in pairs])
            row |= {part: float(by_seed.mean()), f"{part} s.e. over seeds": _number(mean_error(by_seed)[1])}
            row |= {f"{part} s.e. over classes": _over_classes(pairs, part), f"{part} by seed": by_seed.tolist()}
        rows.append(row)
        click.echo(f"differences: {row}", err=True)
    errors = ("", " s.e. over seeds", " s.e. over classes")
    columns = ["difference", "seeds", *(f"{part}{error}" for part in UNSEEN for error in errors)]
    columns = [c for c in columns if any(row[c] is not None for row in rows)]
    command = "python benchmarks/quality.py images --only differences"
    note = (
        "R@1 of the last networks of the long race, paired by seed; over classes, of the mean of the seeds whose hits"
    )
    record("quality-images-differences", columns, rows, command, f"{note} were kept, paired by picture")


def _over_classes(pairs: list[list[Cell]], part: str) -> float | None:
    """The error of a difference, given the classes that were drawn."""
    gains = [
        one - two for one, two in ([c.hits(part) for c in pair] for pair in pairs) if not (one is None or two is None)
    ]
    if not gains:
        return None
    return float(mean_error_over_classes(np.mean(gains, axis=0), pairs[0][0].birds.unseen[part].labels)[1])


def study(name: str) -> Callable[[Birds], None]:
    """One of the library's own studies, `likewise images ablate`, at 240 steps."""

    def measure(birds: Birds) -> None:
        rows, _ = compared(birds, TRAININGS[name])
        _record(name, rows, SHORT)

    return measure


TRAININGS = {
    "short": Trained((*CANDIDATES, *OTHERS), SHORT, "short"),
    "race": Trained(RACERS, dataclasses.replace(SHORT, steps=0, epochs=20.0, evaluate_every=118), "race"),
    "race-full": Trained(RACERS, FULL, "race-full"),
    **{
        name: Trained(tuple(v for v in ablation.STUDIES[name](SHORT) if not v.separate), SHORT, "short")
        for name in ("tasks", "structure", "rivals")
    },
}
EXPERIMENTS: dict[str, Callable[[Birds], None]] = {
    "start": start,
    "short": short,
    "race": race,
    "race-full": race_full,
    "differences": differences,
    "mirror": mirror,
    "tasks": study("tasks"),
    "structure": study("structure"),
    "rivals": study("rivals"),
}


def _record(
    name: str, rows: Rows, config: Config, curves: dict[str, Any] | None = None, more: tuple[str, ...] = ()
) -> None:
    changed = {k: v for k, v in dataclasses.asdict(config).items() if v != getattr(Config(), k)}
    commits = sorted({commit for row in rows for commit in row.get("commits of the runs", ())})
    note = f"New classes; runs of {', '.join(commits)}; settings beside the defaults: {json.dumps(changed)}"
    if curves:
        rows[0] |= {"curves": curves}
    columns = [c for c in (*COLUMNS, *more) if any(row.get(c) is not None for row in rows)]
    record(f"quality-images-{name}", columns, rows, f"python benchmarks/quality.py images --only {name}", note)


@click.command()
@click.option("--only", type=click.Choice(list(EXPERIMENTS)), help="one experiment")
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1), help="how many, from 0 on")
@click.option("--cells", type=click.Path(path_type=Path), help="where runs are trained  [default: the cache folder]")
@click.option("--finished", is_flag=True, help="report the runs that have come to their end; train nothing")
@click.option("--variant", "variants", multiple=True, help="train only this one of the experiment; no table is written")
@click.option("--seed", "chosen", multiple=True, type=int, help="train only with this seed; no table is written")
def images(
    only: str | None,
    seeds: int,
    cells: Path | None,
    finished: bool,
    variants: tuple[str, ...],
    chosen: tuple[int, ...],
) -> None:
    """Margin against DiVA on CUB-200-2011."""
    import torch

    torch.set_num_threads(1)
    folder = cells or cache_folder() / "quality-images"
    birds = Birds.read(Path(os.environ["LIKEWISE_DATA"]), folder, chosen or tuple(range(seeds)), finished)
    names = [only] if only else list(EXPERIMENTS)
    if not (variants or chosen):
        for name in names:
            EXPERIMENTS[name](birds)
        return
    if only not in TRAININGS:
        raise click.UsageError(f"--variant and --seed go with --only and one of {', '.join(TRAININGS)}")
    what = TRAININGS[only]
    known = [v.name for v in what.variants]
    if unknown := set(variants) - set(known):
        raise click.UsageError(f"--variant: {only} has {'; '.join(known)}; got {'; '.join(unknown)}")
    for variant in what.variants:
        for seed in birds.seeds if variant.name in (variants or known) else ():
            found = cell(birds, variant, what.config, seed, what.group).result()
            click.echo(f"{only}: {variant.name}, seed {seed}: test R@1 {found['test']}", err=True)
