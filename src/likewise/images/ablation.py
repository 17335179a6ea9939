"""Which part of the recipe does what: variants trained with equal data, steps and dimension, over paired seeds.

Each (variant, seed) is a run directory of `train`, so that a stopped ablation goes on where it was. Test classes are
looked at only after training; what is compared is the last network, never the best on test.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise import media
from likewise.errors import InputError
from likewise.images.config import Config
from likewise.store.run import read_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from likewise.images.dataset import Dataset

OTHERS = ("shared", "intra", "dance")
DIVA = ",".join(("disc", *OTHERS))
BASE = "margin"
"""The variant that all others are compared with: one discriminative head of the same total dimension."""


@dataclass(frozen=True)
class Variant:
    """A change of the recipe by name; `separate` trains every task in a network of its own."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    separate: bool = False

    def configs(self, config: Config, seed: int) -> list[Config]:
        """What is trained for it: one configuration, or one for each task."""
        whole = dataclasses.replace(config, seed=seed, **self.changes)
        if not self.separate:
            return [whole]
        dim = whole.dim // len(whole.heads)
        return [dataclasses.replace(whole, tasks=task, dim=dim, **_alone(task)) for task in whole.heads]


def _alone(task: str) -> dict[str, Any]:
    """A task in a network of its own has weight 1."""
    weight = {"shared": "alpha_shared", "intra": "alpha_intra", "disc": ""}.get(task, "alpha_sample")
    return {weight: 1.0, "rho": 0.0} if weight else {"rho": 0.0}


def subsets() -> list[Variant]:
    """Every set of tasks with the discriminative one [DiVA Tab. 2]."""
    chosen = itertools.chain.from_iterable(itertools.combinations(OTHERS, n) for n in range(1, len(OTHERS) + 1))
    return [Variant(BASE, {"tasks": "disc"})] + [
        Variant("+ ".join(("disc ", *(f"{t} " for t in others))).strip(), {"tasks": _dealt(others)})
        for others in chosen
    ]


def _dealt(others: Sequence[str]) -> str:
    """Four heads: a task that is left out leaves its head to the discriminative one."""
    return ",".join(["disc", *others, *["disc"] * (len(OTHERS) - len(others))])


def structure(config: Config) -> list[Variant]:
    """No decorrelation, some, between all pairs, and separate models [DiVA Tab. 4]; the controls beside them."""
    rho = config.rho or 0.01
    return [
        Variant(BASE, {"tasks": "disc"}),
        Variant("DiVA, no decorrelation", {"tasks": DIVA, "rho": 0.0}),
        Variant("DiVA, decorrelated", {"tasks": DIVA, "rho": rho}),
        Variant("DiVA, all pairs decorrelated", {"tasks": DIVA, "rho": rho, "decorrelate": "all"}),
        Variant("DiVA, learned temperature", {"tasks": DIVA, "learn_tau": True}),
        Variant("DiVA, shared by dealt labels", {"tasks": DIVA, "shared": "random"}),
        Variant("separate models", {"tasks": DIVA}, separate=True),
        Variant("four discriminative heads", {"tasks": "disc,disc,disc,disc"}),
        Variant("three untrained heads", {"tasks": "disc,none,none,none"}),
    ]


def rivals(config: Config) -> list[Variant]:
    """The sample-specific task against its rivals, and a purely discriminative ensemble [DiVA Fig. 1, 4]."""
    names = {"dance": "DaNCE", "moco": "NCE with a queue (MoCo)", "instance": "instance discrimination"}
    names |= {"cluster": "DeepCluster"} if config.frozen else {"cluster": "DeepCluster", "rotation": "RotNet"}
    return [
        Variant(BASE, {"tasks": "disc"}),
        Variant("discriminative ensemble", {"tasks": "disc,disc"}),
        *(Variant(name, {"tasks": f"disc,{task}"}) for task, name in names.items()),
    ]


STUDIES: dict[str, Callable[[Config], list[Variant]]] = {
    "tasks": lambda config: subsets(),
    "structure": structure,
    "rivals": rivals,
}


@dataclass(frozen=True, eq=False)
class Row:
    """A variant's figures: each a value for every seed."""

    name: str
    figures: Mapping[str, NDArray[np.float64]]
    spectrum: NDArray[np.float64]

    def mean(self, figure: str) -> tuple[float, float]:
        """Mean and standard error over seeds."""
        return mean_error(self.figures[figure])


def mean_error(values: NDArray[np.float64]) -> tuple[float, float]:
    """Mean, and its standard error (NaN for one value)."""
    n = len(values)
    return float(values.mean()), float(values.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan


def mean_error_over_classes(values: NDArray[np.float64], labels: NDArray[np.int64]) -> tuple[float, float]:
    """Mean of a value a picture, and its standard error where whole classes were drawn: the ratio estimator.

    √(C / (C − 1) Σ_c (s_c − m n_c)²) / Σ n_c, with s_c the sum over the n_c pictures of a class and m the mean.
    """
    count = np.bincount(labels)
    sums, n = np.bincount(labels, values)[count > 0], count[count > 0]
    if len(n) < 2:
        return float(np.mean(values)), math.nan
    mean = sums.sum() / n.sum()
    spread = float(((sums - mean * n) ** 2).sum()) * len(n) / (len(n) - 1)
    return float(mean), math.sqrt(spread) / float(n.sum())


@dataclass(frozen=True, eq=False)
class Ablation:
    """The rows of a study; the first is what the others are compared with, seed by seed."""

    study: str
    rows: tuple[Row, ...]

    def records(self) -> list[dict[str, Any]]:
        """A row a variant: means, standard errors, and the paired difference of R@1 to the first."""
        return [self._record(row) for row in self.rows]

    def _record(self, row: Row) -> dict[str, Any]:
        record: dict[str, Any] = {"variant": row.name, "seeds": len(row.figures["r1"])}
        for name in row.figures:
            mean, error = row.mean(name)
            record |= {name: mean, f"{name}_se": None if math.isnan(error) else error}
        mean, error = mean_error(row.figures["r1"] - self.rows[0].figures["r1"])
        return record | {"difference": mean, "difference_se": None if math.isnan(error) else error}

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """R@1 of every variant as bars with standard errors."""
        from likewise import plot

        means = {row.name: row.mean("r1")[0] for row in self.rows}
        errors = {row.name: _or_zero(row.mean("r1")[1]) for row in self.rows}
        figure = plot.bars(means, errors=errors, title=f"R@1 on new classes: {self.study}")
        if path is not None:
            plot.save(figure, path)
        return figure

    def plot_spectra(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Normalised singular values of every variant's embeddings [DiVA Fig. 5]."""
        from likewise import plot

        lines = {row.name: (np.arange(1, len(row.spectrum) + 1), row.spectrum) for row in self.rows}
        figure = plot.curves(lines, xlabel="rank", ylabel="share of a singular value", title="spectra of embeddings")
        figure.axes[0].set_yscale("log")
        if path is not None:
            plot.save(figure, path)
        return figure


def _or_zero(error: float) -> float:
    return 0.0 if math.isnan(error) else error


def ablate(
    training: Dataset,
    test: Dataset,
    variants: Iterable[Variant],
    config: Config,
    *,
    out: str | os.PathLike[str],
    seeds: Sequence[int] = (0, 1, 2),
    validation: Dataset | None = None,
    study: str = "ablation",
    tell: Callable[[str], None] | None = None,
) -> Ablation:
    """Train every variant for every seed and evaluate it on classes that none has seen."""
    chosen = list(variants)
    if not chosen or not seeds:
        raise InputError("variants: expected at least one variant and one seed")
    if len({v.name for v in chosen}) < len(chosen):
        raise InputError("variants: expected different names")
    rows = []
    for variant in chosen:
        cells = [_cell(training, test, variant, config, seed, Path(out), validation) for seed in seeds]
        names = [k for k in cells[0] if k != "spectrum"]
        figures = {k: np.array([cell[k] for cell in cells], dtype=np.float64) for k in names}
        rows.append(Row(variant.name, figures, np.mean([cell["spectrum"] for cell in cells], axis=0)))
        if tell is not None:
            mean, error = rows[-1].mean("r1")
            tell(f"{variant.name}: R@1 {mean:.3f}" + ("" if math.isnan(error) else f" ± {error:.3f}"))
    return Ablation(study, tuple(rows))


def _cell(
    training: Dataset, test: Dataset, variant: Variant, config: Config, seed: int, out: Path, validation: Dataset | None
) -> dict[str, Any]:
    """The figures of a variant and a seed, from its folder where they are known already."""
    folder = out / slug(variant.name) / f"seed-{seed}"
    configs = variant.configs(dataclasses.replace(config, keep="last"), seed)
    asked = json.loads(json.dumps([dataclasses.asdict(c) for c in configs]))
    data = [None if part is None else part.digest for part in (training, test, validation)]
    file = folder / "figures.json"
    if file.exists():
        known = read_json(file)
        if known["configs"] != asked:
            raise InputError(f"out: {folder} holds another configuration of {variant.name!r}; use another folder")
        if known.get("data") != data:
            raise InputError(f"out: {folder} holds figures of other pictures or classes; use another folder")
        return dict(known["figures"])
    figures = _measured(training, test, configs, folder, out / "cache", validation)
    media.write_text(file, json.dumps({"configs": asked, "data": data, "figures": figures}) + "\n")
    return figures


def _measured(
    training: Dataset, test: Dataset, configs: Sequence[Config], folder: Path, cache: Path, validation: Dataset | None
) -> dict[str, Any]:
    from likewise.images import metrics
    from likewise.images.training import train

    parts = []
    for number, config in enumerate(configs):
        model = train(
            training, config, out=folder / str(number), resume=True, validation=validation, watch={}, cache=cache
        )
        parts.append(model.embed(test.items, on_error="skip"))
        read = np.ones(len(test), dtype=np.bool_)
        read[[bad.index for bad in model.skipped]] = False
    rows = np.concatenate(parts, axis=1) / math.sqrt(len(parts))
    values = metrics.spectrum(rows)
    return {
        "r1": metrics.recall_at_k(rows, test.labels[read], ks=(1,))[1],
        "map_at_r": metrics.map_at_r(rows, test.labels[read]),
        "spectral_decay": metrics.decay_of(values),
        "spectrum": (values / values.sum()).tolist(),
    }


def slug(name: str) -> str:
    """A name as that of a folder."""
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())
