"""Trainings on CUB-200-2011, one for each variant and seed, and what is kept of them with the results.

A run is trained in a cache folder, where it can be gone on with. What it came to (curves, figures, which pictures
found one of their class) is written to benchmarks/results/runs/images, with the commit and the machine that trained
it: tables are made from these files, on whatever machine, and a run that has one is not trained again.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from likewise.errors import InputError
from likewise.images import metrics
from likewise.images.ablation import Variant, slug
from likewise.images.config import Config
from likewise.images.dataset import Dataset
from likewise.images.layouts import cub200
from likewise.media import write_text
from likewise.store.run import differing, read_json
from record import RESULTS, commit, machine

KEPT = RESULTS / "runs" / "images"
CURVES = ("train", "validation", "test")
UNSEEN = ("validation", "test")


@dataclass(frozen=True)
class Birds:
    """The three parts of CUB-200-2011, which runs are wanted, and where they are trained and kept."""

    training: Dataset
    validation: Dataset
    test: Dataset
    folder: Path
    seeds: tuple[int, ...]
    finished: bool = False
    """Whether only runs that have come to their end are reported, and nothing is trained."""
    kept: Path = KEPT

    @classmethod
    def read(cls, data: Path, folder: Path, seeds: tuple[int, ...], finished: bool = False) -> Birds:
        """Classes 1–80, 81–100 and 101–200."""
        training, validation = cub200(data / "cub200", "train").split(0.2, last=True)
        return cls(training, validation, cub200(data / "cub200", "test"), folder, seeds, finished)

    @property
    def unseen(self) -> dict[str, Dataset]:
        """The parts that nothing is learned from, by name."""
        return {"validation": self.validation, "test": self.test}


@dataclass(frozen=True)
class Cell:
    """One training: a variant of a configuration under a seed, in a group of experiments that may share it."""

    birds: Birds
    variant: Variant
    config: Config
    seed: int
    group: str

    @property
    def asked(self) -> dict[str, Any]:
        """The whole configuration, as JSON holds it."""
        return dict(json.loads(json.dumps(dataclasses.asdict(self.variant.configs(self.config, self.seed)[0]))))

    @property
    def name(self) -> Path:
        """Its place in a folder of runs."""
        return Path(self.group, slug(self.variant.name), f"seed-{self.seed}")

    @property
    def folder(self) -> Path:
        """Where it is trained."""
        return self.birds.folder / self.name

    @property
    def file(self) -> Path:
        """Where what it came to is kept."""
        return self.birds.kept / self.name.with_suffix(".json")

    @property
    def done(self) -> bool:
        """Whether it has come to its end, here or elsewhere."""
        return self.file.exists()

    def result(self) -> dict[str, Any]:
        """What it came to; trained, or gone on with, if that is not known yet."""
        if not self.done:
            self._write(self._trained())
        found = read_json(self.file)
        difference = differing(found["config"], self.asked)
        if difference:
            raise InputError(f"{self.file} is of another configuration ({difference}); delete it to train anew")
        return found

    def mirrored(self) -> dict[str, float] | None:
        """R@1 of the last network looking at pictures and their mirror images; None where it is not at hand."""
        from likewise.store.checkpoint import load

        found = self.result()
        if "mirrored" not in found and (self.folder / "model.safetensors").exists():
            model = load(self.folder / "model.safetensors")
            model.mirror = True
            found["mirrored"] = {
                name: metrics.recall_at_k(model.embed(part.items), part.labels, ks=(1,))[1]
                for name, part in self.birds.unseen.items()
            }
            self._write(found)
        return found.get("mirrored")

    def hits(self, part: str) -> NDArray[np.float64] | None:
        """Whether each picture's nearest is of its class, under the last network; None where that was not kept."""
        found = self.result().get("hits")
        return None if found is None else np.array(found[part], dtype=np.float64)

    def _write(self, found: dict[str, Any]) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.file, json.dumps(found, ensure_ascii=False) + "\n")

    def _trained(self) -> dict[str, Any]:
        """Train, or go on with it; what the last network is worth on new classes."""
        from likewise.images.training import Training
        from likewise.store.run import Run
        from likewise.train.distributed import ProcessGroup

        birds = self.birds
        config = self.variant.configs(self.config, self.seed)[0]
        run = Run.create(self.folder, self.asked, seed=self.seed, resume=True)
        by = self.folder / "commit"
        if not by.exists():
            write_text(by, commit() + "\n")
        watch = {"test": birds.test, "train": birds.training.subset(np.arange(0, len(birds.training), 3))}
        problem = Training(
            birds.training, birds.validation, watch, config, processes=ProcessGroup(), cache=birds.folder / "frozen"
        )
        model = problem.fitted(run, resume=True)
        rows = {name: problem.examined[name].rows(model.network) for name in UNSEEN}
        labels = {name: problem.examined[name].labels for name in UNSEEN}
        return {
            "variant": self.variant.name,
            "seed": self.seed,
            "commit": by.read_text().strip(),
            "machine": machine(),
            "config": self.asked,
            **_curves(run.metrics()),
            "figures": {
                "mAP@R": metrics.map_at_r(rows["test"], labels["test"]),
                "NMI": metrics.nmi(rows["test"], labels["test"]),
                "spectral decay": metrics.spectral_decay(rows["test"]),
            },
            "hits": {name: _whole(metrics.hits_at_k(rows[name], labels[name], ks=(1,))[1]) for name in UNSEEN},
        }


def _curves(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """R@1 on each part of the data by steps; a step that was evaluated twice around a resume counts once."""
    last = {line["step"]: line for line in lines if "test_r1" in line}
    steps = sorted(last)
    return {"steps": steps, **{name: [last[s][f"{name}_r1"] for s in steps] for name in CURVES}}


def _whole(values: NDArray[np.float64]) -> list[float]:
    """Numbers with those that are whole as such: shorter files."""
    return [int(v) if v == int(v) else float(v) for v in values]
