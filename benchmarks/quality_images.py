"""DiVA against the margin baseline on CUB-200-2011, classes 101–200 never seen.

    python benchmarks/quality.py images                    every experiment; finished runs are kept and gone on with
    python benchmarks/quality.py images --only short       frozen, margin, DiVA and controls after 240 steps
    python benchmarks/quality.py images --only race        20 epochs with curves of train, validation and test R@1
    python benchmarks/quality.py images --only characters  Omniglot from random weights, a hundred epochs
    python benchmarks/quality.py images --only tasks       the table of task subsets (also: structure, rivals)

The paper's split: classes 1–100 to train on, of which 81–100 are kept for validation and choose every setting, 101–200
to test on. 128-px centre crops of photos with a shortest side of 144 px, EfficientNet-Lite0, total dimension 512, 20 ×
4 pictures a batch. `short`, `tasks`, `structure` and `rivals` train the end of the network on kept crops of the frozen
beginning (stem and blocks 0–10); `race` does so, too, and `race-full` trains everything. Every variant has the same
seeds, steps and batches; differences to margin are paired by seed.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

import images_figures
from likewise.images import ablation, metrics
from likewise.images.ablation import Variant, mean_error, mean_error_over_classes, slug
from likewise.images.config import Config
from likewise.images.dataset import Dataset
from likewise.images.layouts import cub200, omniglot
from likewise.io import cache_folder, write_text
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
LARGEST = Variant("DiVA, α 0.3, ρ 0.02", {**DIVA, **dict.fromkeys(LARGER_ALPHA, 0.3), "rho": 0.02})
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


@dataclass(frozen=True)
class Birds:
    """The three parts of CUB-200-2011, and where runs are kept."""

    training: Dataset
    validation: Dataset
    test: Dataset
    folder: Path
    seeds: tuple[int, ...]
    finished: bool = False
    """Whether only runs that have come to their end are reported, and nothing is trained."""

    @classmethod
    def read(cls, data: Path, folder: Path, seeds: int, finished: bool = False) -> Birds:
        """Classes 1–80, 81–100 and 101–200."""
        training, validation = cub200(data / "cub200", "train").split(0.2, last=True)
        return cls(training, validation, cub200(data / "cub200", "test"), folder, tuple(range(seeds)), finished)


def frozen(birds: Birds, size: int = 128, shortest: int = 144) -> dict[str, Any]:
    """R@1 of the pretrained feature without any training; found once."""
    from likewise.backbones import EfficientNetLite0
    from likewise.images.model import Embedder

    file = birds.folder / f"frozen-{size}-{shortest}.json"
    if file.exists():
        return dict(json.loads(file.read_text()))
    model = Embedder(EfficientNetLite0.pretrained().fold(), name="frozen", dim=1280, size=size, shortest=shortest)
    row: dict[str, Any] = {"variant": "frozen ImageNet feature", "seeds": 1}
    for name, part in (("validation", birds.validation), ("test", birds.test)):
        for model.mirror, words in ((True, ", mirrored"), (False, "")):
            rows = model.embed(part.items)
            row[f"{name} R@1{words}"] = metrics.recall_at_k(rows, part.labels, ks=(1,))[1]
    row["spectral decay"] = metrics.spectral_decay(rows)
    write_text(file, json.dumps(row) + "\n")
    return row


# ----------------------------------------------------------------------------------------------------------- runs


def run(birds: Birds, variant: Variant, config: Config, seed: int, group: str) -> dict[str, Any]:
    """The curves of one training, watched on classes that it learns from and on those it never sees."""
    from likewise.engine.runs import Run

    chosen = variant.configs(config, seed)[0]
    folder = _folder(birds, variant, config, seed, group)
    if not (folder / "figures.json").exists():
        write_text(folder / "figures.json", json.dumps(_trained(birds, chosen, folder)) + "\n")
    lines = [line for line in Run.open(folder).metrics() if "test_r1" in line]
    steps = sorted({line["step"] for line in lines})
    last = {line["step"]: line for line in lines}  # a step that was evaluated twice around a resume counts once
    curves = {name: [last[s][f"{name}_r1"] for s in steps] for name in ("train", "validation", "test")}
    return {"steps": steps, **curves, "figures": json.loads((folder / "figures.json").read_text())}


def _folder(birds: Birds, variant: Variant, config: Config, seed: int, group: str) -> Path:
    """Where a run is kept: experiments that train the same thing, under whatever name, share it."""
    asked = variant.configs(config, seed)
    same = next((v for v in CANDIDATES if v.configs(config, seed) == asked), variant)
    return birds.folder / group / slug(same.name) / f"seed-{seed}"


def _trained(birds: Birds, config: Config, folder: Path) -> dict[str, Any]:
    """Train, or go on with it; the figures of the last network on new classes."""
    from likewise.engine.runs import Run
    from likewise.engine.world import World
    from likewise.images.training import Training

    began = time.process_time()
    said = json.loads(json.dumps(dataclasses.asdict(config)))
    watch = {"test": birds.test, "train": _some(birds.training)}
    cache = birds.folder / "frozen"
    problem = Training(birds.training, birds.validation, watch, config, world=World(), cache=cache)
    model = problem.fitted(Run.create(folder, said, seed=config.seed, resume=True), resume=True)
    test = problem.examined["test"]
    rows = test.rows(model.network)
    return {
        "R@1": metrics.recall_at_k(rows, test.labels, ks=(1, 2, 4, 8)),
        "mAP@R": metrics.map_at_r(rows, test.labels),
        "NMI": metrics.nmi(rows, test.labels),
        "spectral decay": metrics.spectral_decay(rows),
        "CPU s": time.process_time() - began,
    }


def _some(data: Dataset, every: int = 3) -> Dataset:
    """Each third picture of the training classes: enough to see overfitting."""
    return data.subset(np.arange(0, len(data), every))


def summary(name: str, runs: dict[int, dict[str, Any]], base: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """The last step of every seed, the step that validation chose, and the best on test (which decides nothing).

    Differences are those of the seeds that both have.
    """
    both, them = [s for s in runs if s in base], list(runs.values())
    paired = mean_error(np.array([_last(runs[s]) - _last(base[s]) for s in both]))
    picked = mean_error(np.array([_picked(runs[s]) - _picked(base[s]) for s in both]))
    row: dict[str, Any] = {"variant": name, "seeds": len(runs), "steps": them[0]["steps"][-1]}
    row |= _spread("test R@1", np.array([_last(r) for r in them]))
    row |= {"difference": paired[0], "difference s.e.": _number(paired[1])}
    row |= _spread("test R@1, step by validation", np.array([_picked(r) for r in them]))
    row |= {"difference, step by validation": picked[0], "its s.e.": _number(picked[1])}
    row |= {"best test R@1 on the way": float(np.mean([max(r["test"]) for r in them]))}
    row |= _spread("validation R@1", np.array([r["validation"][-1] for r in them]))
    row |= {"train R@1": float(np.mean([r["train"][-1] for r in them]))}
    row |= {k: float(np.mean([r["figures"][k] for r in them])) for k in ("mAP@R", "NMI", "spectral decay")}
    return row | {"test by seed": [_last(r) for r in them], "validation by seed": [r["validation"][-1] for r in them]}


def _last(one: dict[str, Any]) -> float:
    return float(one["test"][-1])


def _picked(one: dict[str, Any]) -> float:
    """R@1 on test at the step that was best on validation."""
    return float(one["test"][int(np.argmax(one["validation"]))])


def _spread(name: str, values: np.ndarray[Any, Any]) -> dict[str, Any]:
    mean, error = mean_error(values)
    return {name: mean, f"{name} s.e.": _number(error)}


def _number(x: float) -> float | None:
    return None if math.isnan(x) else x


def compared(birds: Birds, variants: Iterable[Variant], config: Config, group: str) -> tuple[Rows, dict[str, Any]]:
    """Every variant for every seed; rows, and curves by variant."""
    rows: Rows = []
    curves: dict[str, Any] = {}
    base: dict[int, dict[str, Any]] = {}
    for variant in variants:
        runs: dict[int, dict[str, Any]] = {}
        for seed in birds.seeds:
            if birds.finished and not (_folder(birds, variant, config, seed, group) / "figures.json").exists():
                continue
            runs[seed] = run(birds, variant, config, seed, group)
            click.echo(f"{group}: {variant.name}, seed {seed}: test R@1 {runs[seed]['test'][-1]:.4f}", err=True)
        if not runs:
            continue
        base = base or runs
        rows.append(summary(variant.name, runs, base))
        curves[variant.name] = [{k: r[k] for k in ("steps", "train", "validation", "test")} for r in runs.values()]
    return rows, curves


COLUMNS = (
    "variant", "seeds", "steps", "test R@1", "test R@1 s.e.", "difference", "difference s.e.", "validation R@1",
    "train R@1", "spectral decay", "test R@1, mirrored",
)  # fmt: skip
BY_VALIDATION = ("test R@1, step by validation", "difference, step by validation", "its s.e.")
"""Where there are curves: the same at the step that was best on validation."""


def short(birds: Birds) -> None:
    """240 steps: the bars of margin and DiVA, the controls, and the authors' settings."""
    rows, _ = compared(birds, (*CANDIDATES, *OTHERS), SHORT, "short")
    _record("short", [frozen(birds), *rows], SHORT)


def mirror(birds: Birds) -> None:
    """A picture alone against it with its mirror image, as trained embedders look at it; nothing is trained."""
    rows: Rows = []
    base: dict[int, float] = {}
    long = [(variant, FULL, "race-full") for variant in (MARGIN, SMALL, UNTRAINED)]
    for variant, config, group in [(MARGIN, SHORT, "short"), *long]:
        folders = {seed: _folder(birds, variant, config, seed, group) for seed in birds.seeds}
        folders = {seed: folder for seed, folder in folders.items() if (folder / "figures.json").exists()}
        if not folders:
            continue
        alone = [run(birds, variant, config, seed, group) for seed in folders]
        seen = {seed: _mirrored(birds, folder) for seed, folder in folders.items()}
        training = "240 steps, half-frozen" if config is SHORT else "20 epochs, everything"
        row: dict[str, Any] = {"variant": f"{variant.name}, {training}", "seeds": len(folders)}
        for part in ("validation", "test"):
            both = np.array([found[f"{part} R@1, mirrored"] for found in seen.values()])
            row |= {f"{part} R@1, alone": float(np.mean([r[part][-1] for r in alone]))}
            row |= _spread(f"{part} R@1, mirrored", both) | {f"{part} by seed": both.tolist()}
        test = {seed: found["test R@1, mirrored"] for seed, found in seen.items()}
        base = base or (test if config is FULL else {})
        paired = [test[s] - base[s] for s in test if s in base]
        if paired:
            mean, error = mean_error(np.array(paired))
            row |= {"test difference, mirrored": mean, "its s.e.": _number(error)}
        rows.append(row)
        click.echo(f"mirror: {row}", err=True)
    columns = ["variant", "seeds", *(f"{part} R@1, {how}" for part in ("validation", "test") for how in SEEN)]
    columns += ["test R@1, mirrored s.e.", "test difference, mirrored", "its s.e."]
    note = "The last networks of the runs above; differences to margin after 20 epochs, paired by seed"
    record("quality-images-mirror", columns, rows, "python benchmarks/quality.py images --only mirror", note)


SEEN = ("alone", "mirrored")


def _mirrored(birds: Birds, folder: Path) -> dict[str, float]:
    """R@1 of a network that looks at pictures and their mirror images; found once."""
    from likewise.engine.checkpoint import load

    file, found = folder / "mirror.json", dict[str, float]()
    if not file.exists():
        model = load(folder / "model.safetensors")
        model.mirror = True
        for name, part in (("validation", birds.validation), ("test", birds.test)):
            found[f"{name} R@1, mirrored"] = metrics.recall_at_k(model.embed(part.items), part.labels, ks=(1,))[1]
        write_text(file, json.dumps(found) + "\n")
    return dict(json.loads(file.read_text()))


def race(birds: Birds) -> None:
    """Twenty epochs of half-frozen training: does the baseline overfit, and does DiVA cross it?"""
    config = dataclasses.replace(SHORT, steps=0, epochs=20.0, evaluate_every=118)
    rows, curves = compared(birds, RACERS, config, "race")
    _record("race", rows, config, curves)


def race_full(birds: Birds) -> None:
    """Twenty epochs with everything trained, on crops that are made anew."""
    rows, curves = compared(birds, RACERS, FULL, "race-full")
    _record("race-full", rows, FULL, curves)
    images_figures.draw(curves, FULL.epochs)


def differences(birds: Birds) -> None:
    """The race's differences between last networks, with what may have made them by chance: the seeds, the classes.

    Paired by seed and by picture. Over classes: of the mean over seeds, as if other classes had been drawn.
    """
    rows = []
    for variant, base in ((SMALL, MARGIN), (UNTRAINED, MARGIN), (SMALL, UNTRAINED), (SMALL, FOUR_HEADS)):
        pairs = [[_folder(birds, v, FULL, seed, "race-full") for v in (variant, base)] for seed in birds.seeds]
        pairs = [pair for pair in pairs if all((folder / "figures.json").exists() for folder in pair)]
        if not pairs:
            continue
        row: dict[str, Any] = {"difference": f"{variant.name} − {base.name}", "seeds": len(pairs)}
        for name, part in (("validation", birds.validation), ("test", birds.test)):
            gains = np.array([_hits(part, one, name) - _hits(part, two, name) for one, two in pairs])
            mean, over_classes = mean_error_over_classes(gains.mean(axis=0), part.labels)
            by_seed = gains.mean(axis=1)
            row |= {name: mean, f"{name} s.e. over seeds": _number(mean_error(by_seed)[1])}
            row |= {f"{name} s.e. over classes": over_classes, f"{name} by seed": by_seed.tolist()}
        rows.append(row)
        click.echo(f"differences: {row}", err=True)
    errors = ("", " s.e. over seeds", " s.e. over classes")
    columns = ["difference", "seeds", *(f"{part}{error}" for part in ("validation", "test") for error in errors)]
    columns = [c for c in columns if any(row[c] is not None for row in rows)]
    command = "python benchmarks/quality.py images --only differences"
    note = "R@1 of the last networks of the long race, paired by seed and by picture"
    record("quality-images-differences", columns, rows, command, note)


def _hits(part: Dataset, folder: Path, name: str) -> np.ndarray[Any, Any]:
    """Whether each picture's nearest is of its class, under the last network of a run; found once."""
    from likewise.engine.checkpoint import load

    file = folder / f"hits-{name}.json"
    if not file.exists():
        hits = metrics.hits_at_k(load(folder / "model.safetensors").embed(part.items), part.labels, ks=(1,))[1]
        write_text(file, json.dumps(np.asarray(hits).tolist()) + "\n")
    return np.array(json.loads(file.read_text()))


def characters(birds: Birds) -> None:
    """Omniglot from random weights for a hundred epochs: the regime in which a baseline can overfit, at low cost.

    Characters of images_background_small1 to train on, a fifth of them for validation; small2 without Greek and Latin
    to test on. A convnet of four blocks at 32 px.
    """
    folder = Path(os.environ["LIKEWISE_DATA"]) / "omniglot"
    training, validation = omniglot(folder, "train").split(0.2, seed=0)
    chars = dataclasses.replace(birds, training=training, validation=validation, test=omniglot(folder, "test"))
    config = Config(
        backbone="convnet", size=32, shortest=36, dim=128, norm="trained", start="random", crops="crop", flip=False,
        lr=1e-3, head_lr=1e-3, epochs=100.0, evaluate_every=270, keep="last",
    )  # fmt: skip
    rows, curves = compared(chars, (MARGIN, SMALL, LARGER, LARGEST, FOUR_HEADS), config, "characters")
    _record("characters", rows, config, curves)


def study(name: str) -> Callable[[Birds], None]:
    """One of the library's own studies, `likewise images ablate`, at 240 steps."""

    def measure(birds: Birds) -> None:
        variants = [v for v in ablation.STUDIES[name](SHORT) if not v.separate]
        rows, _ = compared(birds, variants, SHORT, "short")
        _record(name, rows, SHORT)

    return measure


EXPERIMENTS: dict[str, Callable[[Birds], None]] = {
    "short": short,
    "mirror": mirror,
    "race": race,
    "race-full": race_full,
    "differences": differences,
    "characters": characters,
    "tasks": study("tasks"),
    "structure": study("structure"),
    "rivals": study("rivals"),
}


def _record(name: str, rows: Rows, config: Config, curves: dict[str, Any] | None = None) -> None:
    changed = {k: v for k, v in dataclasses.asdict(config).items() if v != getattr(Config(), k)}
    note = f"New classes; settings beside the defaults: {json.dumps(changed)}"
    if curves:
        rows[0] |= {"curves": curves}
    wanted = (*COLUMNS, *(BY_VALIDATION if curves else ()))
    columns = [c for c in wanted if any(row.get(c) is not None for row in rows)]
    record(f"quality-images-{name}", columns, rows, f"python benchmarks/quality.py images --only {name}", note)


@click.command()
@click.option("--only", type=click.Choice(list(EXPERIMENTS)), help="one experiment")
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(1))
@click.option("--cells", type=click.Path(path_type=Path), help="where runs are kept  [default: the cache folder]")
@click.option("--finished", is_flag=True, help="report the runs that have come to their end; train nothing")
def images(only: str | None, seeds: int, cells: Path | None, finished: bool) -> None:
    """Margin against DiVA on CUB-200-2011."""
    import torch

    torch.set_num_threads(1)
    data = Path(os.environ["LIKEWISE_DATA"])
    birds = Birds.read(data, cells or cache_folder() / "quality-images", seeds, finished)
    for name in [only] if only else EXPERIMENTS:
        EXPERIMENTS[name](birds)
