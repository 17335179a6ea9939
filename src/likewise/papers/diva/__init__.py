"""DiVA: Diverse Visual Feature Aggregation for Deep Metric Learning (Milbich et al., ECCV 2020).

Its tables and figures at a chosen scale: variants × seeds, trained alike and tested on classes never seen. `layouts`
reads CUB200, CARS196 and SOP as they are published, `rivals` has the tasks that the paper compares with and its own
settings.

The data are CUB-200-2011 as in the paper (classes 1–100 to train on, of which 81–100 choose every setting, 101–200 to
test on), another published layout, or class folders, of which the last third is tested on. Every variant has the same
seeds, steps and batches; differences are paired by seed to the first variant, one discriminative head of the same
total dimension. What is compared is the last network, never the best on test.

Each (variant, seed) is a training in `out`, which resumes, and a small file of its result. Tables are made from those
files, so seeds add up over machines: train some here and some there, and put the files together.

    likewise papers diva tab2                              every set of tasks, 240 steps
    likewise papers diva long --first-seed 2 --seeds 1     one more seed of the long training
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from likewise.errors import FileError, InputError
from likewise.images import metrics
from likewise.images.config import Config
from likewise.images.data import Dataset
from likewise.images.embedder import Embedder
from likewise.images.training import Training, train
from likewise.nn.pretrained import named
from likewise.papers import Record, Table, data_folder, kept, mean_error, slug
from likewise.papers.diva import layouts
from likewise.papers.diva.rivals import PRESETS, preset
from likewise.store.run import Run, differing
from likewise.train.distributed import ProcessGroup
from likewise.train.options import option

Floats = NDArray[np.float64]
Results = dict[int, dict[str, Any]]
"""Results of trainings by seed."""

FROZEN = 12
"""Parts of EfficientNet-Lite0 that stay as they are in short trainings: the stem and blocks 0 to 10."""
SHORT: dict[str, Any] = {"frozen": FROZEN, "steps": 240, "epochs": 4.0, "evaluate_every": 120}
LONG: dict[str, Any] = {"frozen": 0, "steps": 0, "epochs": 20.0, "evaluate_every": 236}
PARTS = ("train", "validation", "test")
UNSEEN = PARTS[1:]


@dataclass(frozen=True)
class Options:
    """What can be chosen of every table."""

    data: str = option("", "folder of the images; by default $LIKEWISE_DATA/cub200")
    out: str = option("diva", "folder of trainings and their results; run again to resume")
    seeds: int = option(3, "how many seeds", low=1)
    first_seed: int = option(0, "the first of them", low=0)
    variant: str = option("", "only the variants whose names contain this")
    settings: str = option("", "changes of the recipe: steps=120,size=96")
    preset: str = option("cub200-resnet50", "tab1: the paper's run", choices=tuple(PRESETS))
    finished: bool = option(False, "report finished trainings and start none")
    device: str = option("cpu", "where to train: cpu, cuda …")


# ------------------------------------------------------------------------------------------------------------ variants


@dataclass(frozen=True)
class Variant:
    """A change of the recipe by name; `separate` trains every task in a network of its own."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    separate: bool = False

    def configs(self, config: Config, seed: int) -> list[Config]:
        """What is trained for it: one configuration, or one for each task, with weight 1."""
        whole = dataclasses.replace(config, seed=seed, **self.changes)
        if not self.separate:
            return [whole]
        alone: dict[str, dict[str, Any]] = {"shared": {"alpha_shared": 1.0}, "intra": {"alpha_intra": 1.0}, "disc": {}}
        dim = whole.dim // len(whole.heads)
        return [
            dataclasses.replace(whole, tasks=task, dim=dim, rho=0.0, **alone.get(task, {"alpha_sample": 1.0}))
            for task in whole.heads
        ]


OTHERS = ("shared", "intra", "dance")
DIVA = {"tasks": "disc,shared,intra,dance"}
MARGIN = Variant("margin", {"tasks": "disc"})
FOUR_HEADS = Variant("four discriminative heads", {"tasks": "disc,disc,disc,disc"})
UNTRAINED = Variant("three untrained heads", {"tasks": "disc,none,none,none"})


def _alpha(alpha: float) -> dict[str, float]:
    return dict.fromkeys(("alpha_shared", "alpha_intra", "alpha_sample"), alpha)


SMALL = Variant("DiVA, α 0.03", {**DIVA, **_alpha(0.03)})


def _task_subsets(config: Config) -> list[Variant]:
    """Every set of tasks with the discriminative one [DiVA Tab. 2]: a task left out leaves its head to that one."""
    chosen = itertools.chain.from_iterable(itertools.combinations(OTHERS, n) for n in (1, 2, 3))
    return [MARGIN] + [
        Variant(" + ".join(("disc", *others)), {"tasks": ",".join(["disc", *others, *["disc"] * (3 - len(others))])})
        for others in chosen
    ]


def _structures(config: Config) -> list[Variant]:
    """No decorrelation, some, between all pairs, and separate models [DiVA Tab. 4]; the controls beside them."""
    rho = config.rho or 0.01
    return [
        MARGIN,
        Variant("DiVA, no decorrelation", {**DIVA, "rho": 0.0}),
        Variant("DiVA, decorrelated", {**DIVA, "rho": rho}),
        Variant("DiVA, all pairs decorrelated", {**DIVA, "rho": rho, "decorrelate": "all"}),
        Variant("DiVA, learned temperature", {**DIVA, "learn_tau": True}),
        Variant("DiVA, shared by permuted labels", {**DIVA, "shared": "random"}),
        Variant("separate models", DIVA, separate=True),
        FOUR_HEADS,
        UNTRAINED,
    ]


def _rivals(config: Config) -> list[Variant]:
    """The sample-specific task against its rivals, and a purely discriminative ensemble [DiVA Fig. 1, 4]."""
    names = {"dance": "DaNCE", "moco": "NCE with a queue (MoCo)", "instance": "instance discrimination"}
    names["cluster"] = "DeepCluster"
    pairs = [Variant(name, {"tasks": f"disc,{task}"}) for task, name in names.items()]
    return [MARGIN, Variant("discriminative ensemble", {"tasks": "disc,disc"}), *pairs]


def _candidates(config: Config) -> list[Variant]:
    """What was considered, of which validation chose the library's default; and how the authors' runs are set."""
    released = {**DIVA, **_alpha(0.3), "rho": 1500 / 128**2, "tau": 0.01, "shared": "random"}
    averaged = [Variant(f"{v.name}, averaged weights", {**v.changes, "ema": 0.98}) for v in (MARGIN, FOUR_HEADS, SMALL)]
    return [
        MARGIN,
        SMALL,
        FOUR_HEADS,
        UNTRAINED,
        Variant("DiVA, α 0.03, ρ 0.02", {**SMALL.changes, "rho": 0.02}),
        Variant("DiVA, α 0.1", {**DIVA, **_alpha(0.1)}),
        *averaged,
        Variant("DiVA, released settings", released),
        Variant("margin, heads from random weights", {"tasks": "disc", "start": "random", "head_lr": 1e-3}),
    ]


# ----------------------------------------------------------------------------------------------------------- trainings


@dataclass(frozen=True)
class Study:
    """The parts of the data, and where trainings of a table are kept."""

    name: str
    options: Options
    config: Config
    data: dict[str, Dataset]

    @classmethod
    def open(cls, name: str, options: Options, config: Config) -> Study:
        """Read the data and apply the changes of the recipe."""
        return cls(name, options, dataclasses.replace(config, **_settings(options.settings)), _read(options.data))

    def results(self, variant: Variant) -> Results:
        """The results of a variant by seed: known ones from their files, the others by training."""
        seeds = range(self.options.first_seed, self.options.first_seed + self.options.seeds)
        return {seed: result for seed in seeds if (result := self.result(variant, seed)) is not None}

    def result(self, variant: Variant, seed: int) -> dict[str, Any] | None:
        """One training's result; None where it is not finished and nothing is to be trained."""
        folder = Path(self.options.out, self.name, slug(variant.name), f"seed-{seed}")
        configs = variant.configs(self.config, seed)
        asked = {
            "config": json.loads(json.dumps([dataclasses.asdict(c) for c in configs])),
            "data": [part.digest for part in self.data.values()],
        }
        file = folder.with_suffix(".json")
        if self.options.finished and not file.exists():
            return None
        known = kept(file, lambda: {"variant": variant.name, "seed": seed, **asked, **self._train(configs, folder)})
        if "data" in known and (difference := differing({k: known[k] for k in asked}, asked)):
            raise InputError(f"{file} is of another recipe or other images ({difference}); use another --out")
        return known

    def _train(self, configs: Sequence[Config], folder: Path) -> dict[str, Any]:
        """Train, or resume; what the last networks are worth on new classes, several side by side."""
        data, rows = self.data, dict[str, list[Floats]]()
        watch = {"test": data["test"], "train": data["train"].subset(np.arange(0, len(data["train"]), 3))}
        for number, config in enumerate(configs):
            out = folder / str(number)
            model = train(
                data["train"], config, out=out, resume=True, validation=data["validation"], watch=watch,
                cache=Path(self.options.out, "cache"), device=self.options.device,
            )  # fmt: skip
            for part, model.mirror in itertools.product(UNSEEN, (False, True)):
                rows.setdefault(f"{part} {model.mirror}", []).append(model.embed(data[part].items))
        joined = {key: np.concatenate(sides, axis=1) for key, sides in rows.items()}
        hits = {k: metrics.hits_at_k(x, data[k.split()[0]].labels, ks=(1, 2, 4, 8)) for k, x in joined.items()}
        test, labels = joined["test False"], data["test"].labels
        decay = metrics.spectral_decay(test)
        return {
            **_curves(Run.open(folder / "0").metrics()),
            "hits": {part: np.nan_to_num(hits[f"{part} False"][1]).tolist() for part in UNSEEN},
            "mirrored": {part: metrics.mean_score(hits[f"{part} True"][1]) for part in UNSEEN},
            "figures": {f"R@{k}": metrics.mean_score(hits["test False"][k]) for k in (2, 4, 8)}
            | {
                "mAP@R": metrics.map_at_r(test, labels),
                "NMI": metrics.nmi(test, labels),
                "spectral decay": decay if math.isfinite(decay) else None,
            },
        }


def _read(path: str) -> dict[str, Dataset]:
    """Classes to train on, to choose by and to test on."""
    folder = Path(path) if path else data_folder("") / "cub200"
    try:
        known, test = layouts.read(folder, split="train"), layouts.read(folder, split="test")
    except FileError:  # class folders that nobody has divided
        known, test = layouts.read(folder).split(1 / 3, last=True)
    training, validation = known.split(0.2, last=True)
    return dict(zip(PARTS, (training, validation, test), strict=True))


def _settings(text: str) -> dict[str, Any]:
    """name=value pairs as the recipe's own types."""
    changes: dict[str, Any] = {}
    for pair in filter(None, text.split(",")):
        name, _, value = (word.strip() for word in pair.partition("="))
        if not hasattr(Config, name):
            raise InputError(f"settings: expected name=value of likewise.images.Config, got {pair!r}")
        kind = type(getattr(Config, name))
        changes[name] = value in ("1", "true", "True") if kind is bool else kind(value)
    return changes


def _curves(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """R@1 on each part of the data by steps; a step that was evaluated twice around a resume counts once."""
    last = {line["step"]: line for line in lines if "test_r1" in line}
    return {"steps": sorted(last), **{part: [last[s][f"{part}_r1"] for s in sorted(last)] for part in PARTS}}


# -------------------------------------------------------------------------------------------------------------- tables


def mean_error_over_classes(values: Floats, labels: NDArray[np.int64]) -> tuple[float, float]:
    """Mean of a value an image, and its standard error where whole classes were drawn: the ratio estimator.

    √(C / (C − 1) Σ_c (s_c − m n_c)²) / Σ n_c, with s_c the sum over the n_c images of a class and m the mean.
    """
    count = np.bincount(labels)
    sums, n = np.bincount(labels, values)[count > 0], count[count > 0]
    if len(n) < 2:
        return float(np.mean(values)), math.nan
    mean = sums.sum() / n.sum()
    spread = float(((sums - mean * n) ** 2).sum()) * len(n) / (len(n) - 1)
    return float(mean), math.sqrt(spread) / float(n.sum())


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    mean, error = mean_error(values)
    return {name: mean} | ({} if error is None else {f"{name} s.e.": error})


def _row(name: str, runs: Results, base: Results) -> dict[str, Any]:
    """The last step of every seed, and the step that validation chose; differences are of seeds that both have."""
    measures: dict[str, Callable[[dict[str, Any]], float]] = {
        "": lambda r: r["test"][-1],
        ", step by validation": lambda r: r["test"][int(np.argmax(r["validation"]))],
    }
    row: dict[str, Any] = {"variant": name, "seeds": len(runs), "steps": next(iter(runs.values()))["steps"][-1]}
    for words, measure in measures.items():
        row |= _spread(f"test R@1{words}", [measure(run) for run in runs.values()])
        if paired := [measure(run) - measure(base[seed]) for seed, run in runs.items() if seed in base]:
            row |= _spread(f"difference{words}", paired)
    row |= _spread("validation R@1", [run["validation"][-1] for run in runs.values()])
    row["train R@1"] = float(np.mean([run["train"][-1] for run in runs.values()]))
    if mirrored := [run["mirrored"]["test"] for run in runs.values() if run.get("mirrored")]:
        row["test R@1, mirrored"] = float(np.mean(mirrored))
    for figure in ("R@2", "R@4", "R@8", "mAP@R", "NMI", "spectral decay"):
        if values := [v for run in runs.values() if (v := run["figures"].get(figure)) is not None]:
            row[figure] = float(np.mean(values))
    return row


def _record(study: Study, rows: list[dict[str, Any]]) -> Record:
    if not rows:
        raise InputError(f"out: no training of {study.name} has finished in {study.options.out}")
    changed = {k: v for k, v in dataclasses.asdict(study.config).items() if v != getattr(Config(), k)}
    columns = list(dict.fromkeys(column for row in rows for column in row))
    return Record(columns, rows, f"new classes; settings beside the defaults: {json.dumps(changed)}")


def _compare(name: str, config: dict[str, Any], variants: Callable[[Config], list[Variant]], o: Options) -> Record:
    """The one loop: every variant, every seed."""
    recipe = preset(o.preset) if name == "tab1" else Config(**config)
    study = Study.open(name, o, dataclasses.replace(recipe, keep="last", mirror=False))
    rows: list[dict[str, Any]] = []
    base: Results = {}
    for variant in variants(study.config):
        if o.variant in variant.name and (runs := study.results(variant)):
            base = base or runs
            rows.append(_row(variant.name, runs, base))
    return _record(study, rows)


def _differences(o: Options) -> Record:
    """The long training's differences between last networks, with what may have made them by chance.

    Paired by seed, and over classes by image: as if other classes had been drawn, for the seeds whose hits are kept.
    """
    study = Study.open("long", dataclasses.replace(o, finished=True), Config(**LONG, keep="last", mirror=False))
    rows = []
    for variant, base in ((SMALL, MARGIN), (UNTRAINED, MARGIN), (SMALL, UNTRAINED), (FOUR_HEADS, MARGIN)):
        ones, twos = study.results(variant), study.results(base)
        pairs = [(one, twos[seed]) for seed, one in ones.items() if seed in twos]
        if not pairs:
            continue
        row: dict[str, Any] = {"difference": f"{variant.name} − {base.name}", "seeds": len(pairs)}
        for part in UNSEEN:
            row |= _spread(part, [one[part][-1] - two[part][-1] for one, two in pairs])
            hits = [
                np.subtract(one["hits"][part], two["hits"][part])
                for one, two in pairs
                if "hits" in one and "hits" in two
            ]
            if hits:
                error = mean_error_over_classes(np.mean(hits, axis=0), study.data[part].labels)[1]
                row[f"{part} s.e. over classes"] = error
        rows.append(row)
    return _record(study, rows)


def _start(o: Options) -> Record:
    """The pretrained feature, and its principal axes, with which training starts; nothing is trained."""
    study = Study.open("start", o, Config(tasks="disc", frozen=0))
    c, backbone = study.config, named(study.config.backbone).fold()
    problem = Training(study.data["train"], None, {}, c, processes=ProcessGroup(), device=o.device)
    models = {
        "frozen feature": Embedder(backbone, name="frozen", dim=backbone.dim, size=c.size, shortest=c.shortest),
        "its principal axes, before training": problem.embedder(),
    }
    rows: list[dict[str, Any]] = []
    for name, model in models.items():
        rows.append({"variant": name})
        for part, (model.mirror, words) in itertools.product(UNSEEN, ((False, ""), (True, ", mirrored"))):
            recall = metrics.recall_at_k(model.embed(study.data[part].items), study.data[part].labels, ks=(1,))
            rows[-1][f"{part} R@1{words}"] = recall[1]
    return _record(study, rows)


def _table(name: str, title: str, config: dict[str, Any], variants: Callable[[Config], list[Variant]]) -> Table:
    return Table(name, title, Options, partial(_compare, "short" if config is SHORT else name, config, variants))


TABLES = (
    _table("tab1", "R@k of margin and DiVA with the paper's own settings", {}, lambda c: [MARGIN, Variant("DiVA")]),
    _table("tab2", "which tasks help: every set of them", SHORT, _task_subsets),
    _table("tab4", "decorrelation, separate models, and controls", SHORT, _structures),
    _table("fig4", "the sample-specific task against its rivals", SHORT, _rivals),
    Table("start", "the pretrained feature before any training", Options, _start),
    _table("short", "240 steps: candidates, controls, the authors' settings", SHORT, _candidates),
    _table("long", "20 epochs, everything trained", LONG, lambda c: [MARGIN, SMALL, FOUR_HEADS, UNTRAINED]),
    Table("differences", "what the differences of `long` owe to seeds and to classes", Options, _differences),
)
