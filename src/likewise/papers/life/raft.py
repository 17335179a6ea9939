"""RAFT-small from the authors' weights, trained on by LIFE's losses: the paper's own setting within minutes of a CPU.

The recipe is the paper's (SED, BiT and adaptive cycle with weight 1, triplets A, B, B′, no change of light from B to
B′), with small images and few steps. A and B are rendered places under two lights, or photos of one place with
fundamental matrices by structure from motion; bent photos, steps and seeds are the same for both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from likewise.errors import InputError
from likewise.media import cache_folder
from likewise.papers import Record, data_folder, kept, mean_error, slug
from likewise.papers.life import layouts
from likewise.papers.life.places import webcams_with_homographies
from likewise.papers.life.rivals import RECIPE
from likewise.pixels.data import FlowDataset, Photos, rendered
from likewise.pixels.evaluation import evaluate
from likewise.pixels.geometry import resize, resize_flow, size_of
from likewise.pixels.raft import RAFT
from likewise.pixels.rendering import held_out_pairs
from likewise.pixels.training import MODEL, Config, train
from likewise.store.checkpoint import load
from likewise.train.options import option

SIZE = 480
ITERS = 32
"""Iterations of an evaluation, as the authors have them on Sintel."""
SMALL = 192
"""An image whose shorter side is less is enlarged threefold: on the rendered places, 96 × 128 px, the published network
errs by 1.60 px as they are, by 0.95 px at twice and by 0.73 px at three times the size (24 pairs)."""
FIGURES = ("AEPE", "Acc@1", "Acc@3", "Acc@5")
CHANGES = {figure: (f"{figure}, change", f"{figure}, change, s.e.") for figure in ("AEPE", "Acc@5")}
PUBLISHED = "published"


@dataclass(frozen=True)
class Options:
    """What the table is made of."""

    data: str = option("", "folder of real data, with weights/raft-small.pth; default: $LIKEWISE_DATA")
    photos: str = option("", "folder of training photos")
    sfm: str = option("", "folder that likewise pixels sfm wrote; default: no such arm")
    steps: int = option(150, "steps of each training", low=1)
    seeds: int = option(1, "trainings of each arm", low=1)
    places: int = option(60, "rendered pairs, and webcams", low=1)
    cells: str = option("", "folder where finished trainings are kept")


class Enlarging:
    """The flow of a RAFT after 32 iterations; of small images, at three times their size."""

    def __init__(self, network: RAFT) -> None:
        self.network = network

    def flow(self, a: Tensor, b: Tensor) -> Tensor:
        """The flow a→b in pixels of b."""
        sizes, factor = (size_of(a), size_of(b)), 3 if min(size_of(a)) < SMALL else 1
        large = [(factor * h, factor * w) for h, w in sizes]
        one, two = (resize(x, size).clamp(0, 1) for x, size in zip((a, b), large, strict=True))
        return resize_flow(self.network.flow(one, two, ITERS), sizes[0], (large[1], sizes[1]))


def _recipe(steps: int, seed: int) -> Config:
    """The paper's recipe with RAFT-small, 160 × 224 px, two bent photos and two triplets in a batch."""
    every = max(1, steps // 8)
    small = replace(RECIPE, network="small", joint=steps, height=160, width=224, pairs=2, scenes=2, iters=6, seed=seed)
    return replace(small, refine_lr=1e-4, warmup=steps // 10, evaluate_every=every, keep="last")


def raft(options: Options) -> Record:
    """A row a data set and training: errors over pairs, and how they change from the published weights' on them.

    Parameters
    ----------
    options : Options
        Where data, photos and pairs of structure from motion are, steps and seeds.

    Returns
    -------
    Record
        AEPE in px and Acc in per cent. Changes are of the same pairs, a pair's mean over seeds, with standard errors
        over pairs. Where a flow diverges, its AEPE says little, and Acc says more.

    Raises
    ------
    InputError, FileError
        Where photos are not given, or the weights are not in the data.

    Examples
    --------
    >>> raft(Options(data="data", photos="photos", sfm="pairs")).columns  # doctest: +SKIP
    """
    if not options.photos:
        raise InputError("photos: expected a folder of photos to bend, got none")
    folder = Path(options.cells) if options.cells else cache_folder() / "benchmarks" / "life-raft"
    data = data_folder(options.data)
    start = RAFT.from_official(data / "weights" / "raft-small.pth")
    sets = _sets(data, options.places)

    def cells(name: str, network: Callable[[], RAFT]) -> dict[str, Any]:
        files = {key: folder / f"{name}-{slug(key)}-{options.places}.json" for key in sets}
        model = start if all(file.is_file() for file in files.values()) else network()
        return {key: kept(file, partial(_measure, model, sets[key])) for key, file in files.items()}

    runs = {PUBLISHED: [cells(PUBLISHED, lambda: start)]}
    for arm, scenes in {"rendered": "rendered", "SfM": options.sfm}.items():
        for seed in range(options.seeds if scenes else 0):
            name = f"{slug(arm)}-{options.steps}-{seed}"
            made = cells(name, partial(_trained, start, options, scenes, seed, folder / name))
            runs.setdefault(f"LIFE, {arm} triplets", []).append(made)
    rows = [
        _row(name, arm, [run[name] for run in trained], before)
        for name, before in runs[PUBLISHED][0].items()
        for arm, trained in runs.items()
    ]
    note = (
        f"{options.steps} steps, seeds: {options.seeds}; {_recipe(options.steps, 0).iters} iterations in training, "
        f"{ITERS} here; standard errors of a change are over pairs and leave out how seeds differ"
    )
    return Record(["data", "training", "pairs", *FIGURES, *sum(CHANGES.values(), ())], rows, note)


def _trained(start: RAFT, options: Options, scenes: str, seed: int, out: Path) -> RAFT:
    """What a training gives; one that was stopped resumes, one that is there is read."""
    if not (out / MODEL).is_file():
        photos = Photos.folder(options.photos, shortest=400)
        train(photos, _recipe(options.steps, seed), scenes=scenes, start=start, out=out, resume=True)
    model: RAFT = load(out / MODEL)
    return model


def _measure(network: RAFT, pairs: FlowDataset) -> dict[str, list[float]]:
    """The figures of every pair; shares are from 0 to 1."""
    rows = evaluate(Enlarging(network), pairs, size=SIZE)["pairs"]
    return {figure: [row[figure.lower()] for row in rows] for figure in FIGURES}


def _row(data: str, arm: str, runs: list[dict[str, list[float]]], before: dict[str, list[float]]) -> dict[str, Any]:
    """Means over seeds and pairs, and the changes of both figures from before."""
    row: dict[str, Any] = {"data": data, "training": arm, "pairs": len(before["AEPE"]), "seeds": len(runs)}
    for figure in FIGURES:
        values, unit = np.mean([run[figure] for run in runs], axis=0), 1 if figure == "AEPE" else 100
        row[figure] = unit * float(values.mean())
        if figure in CHANGES and arm != PUBLISHED:
            row |= zip(CHANGES[figure], mean_error(unit * (values - before[figure])), strict=True)
    return row


def _sets(data: Path, n: int) -> dict[str, FlowDataset]:
    """The data sets: light stays in the first two and changes in the others."""
    return {
        "RubberWhale": layouts.read(data / "middlebury"),
        "graf + wall": layouts.hpatches(data / "oxford", part="viewpoint", levels=(2, 4, 6)),
        "leuven + H": layouts.hpatches(data / "oxford", part="illumination", generated=True),
        "webcams + H": webcams_with_homographies(data / "places", n),
        "rendered": rendered(held_out_pairs(n)),
    }
