"""The tables of LIFE: flow and matches beside classical methods, the losses of Tab. 6, and any data in a known layout.

flow: end-point errors on version 2 of the held-out rendered places (96 × 128 px, textures that training never saw, over
visible pixels), on graf and wall (pairs 1–2, 1–4, 1–6, shorter side 480 px), on leuven (pairs 1–2 … 1–6, the second
image drawn by a generated homography), and on still webcams months apart, drawn the same way. matching: MMA with and
without the flow's guidance. tab6: the losses at equal steps. confidence: how often what is said to be right is right.
evaluate: a model on a data set in one of the published layouts. Real data is below $LIKEWISE_DATA.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from likewise.errors import FileError, InputError
from likewise.media import cache_folder
from likewise.papers import Record, Table, data_folder, kept, mean_error, slug
from likewise.papers.life import layouts, rivals
from likewise.papers.life.confidence import confidence
from likewise.papers.life.places import geometry, webcams_with_homographies
from likewise.papers.life.raft import Options as RaftOptions
from likewise.papers.life.raft import raft
from likewise.pixels.aligner import Aligner, AlignerOptions, default
from likewise.pixels.data import Photos, rendered
from likewise.pixels.evaluation import evaluate
from likewise.pixels.geometry import homography_flow
from likewise.pixels.matching import match
from likewise.pixels.metrics import mma
from likewise.pixels.raft import RAFT
from likewise.pixels.rendering import held_out_pairs
from likewise.pixels.training import Config, train
from likewise.store.checkpoint import load
from likewise.train.options import option

SIZE = 480
CONFIDENT = 0.25
"""The share of sure pixels from which on a flow counts as confident."""
PLAIN = AlignerOptions(matches=False, fine=False, polish=False, snap=2.0)
"""One pass of the network and nothing after it."""
BASE = Config(
    refine=0, joint=80, height=128, width=160, pairs=3, scenes=3, light=0.0, night=0.0, contrast=0.0,
    sed=0.0, bit=0.0, cycle=0.0, evaluate_every=1000, keep="last", schedule="linear", clip=20.0, ema=0.9, warmup=10,
)  # fmt: skip
"""No change of light and no contrast in any arm; encoder and recurrence are trained on from one warmed-up network."""
LOSSES: dict[str, dict[str, Any]] = {
    "T(B′B)": {"bit": 1.0, "one_way": True},
    "BiT": {"bit": 1.0},
    "SED": {"sed": 0.5},
    "SED + adaptive cycle": {"sed": 0.5, "cycle": 0.1},
    "SED + full cycle": {"sed": 0.5, "cycle": 0.1, "cycle_mode": "full"},
    "SED + BiT + adaptive cycle": {"sed": 0.5, "bit": 1.0, "cycle": 0.1},
}


@dataclass(frozen=True)
class Options:
    """What a table of LIFE is made of."""

    data: str = option("", "folder of real data; default: $LIKEWISE_DATA")
    layout: str = option("auto", "evaluate: the data's layout (hpatches, kitti, sintel, middlebury, megadepth …)")
    model: str = option("", "evaluate: a model's file, published weights of RAFT, zero, dis or sift; default: ours")
    size: int = option(SIZE, "evaluate: the shorter side in pixels; 0: as it is", low=0)
    places: int = option(100, "rendered pairs", low=1)
    webcams: int = option(60, "webcams under homographies", low=1)
    photos: str = option("", "tab6: folder of training photos")
    warm: str = option("", "tab6: the warmed-up network to begin with")
    seeds: int = option(3, "tab6: trainings of each arm", low=1)
    cells: str = option("", "tab6: folder where finished trainings are kept")


def _sets(options: Options) -> dict[str, tuple[Any, int | None]]:
    """The data sets and the size of their shorter side."""
    sets: dict[str, tuple[Any, int | None]] = {"rendered": (rendered(held_out_pairs(options.places)), None)}
    if options.data or "LIKEWISE_DATA" in os.environ:
        folder = data_folder(options.data)
        oxford = folder / "oxford"
        sets["graf + wall"] = (layouts.hpatches(oxford, part="viewpoint", levels=(2, 4, 6)), SIZE)
        sets["leuven + H"] = (layouts.hpatches(oxford, part="illumination", generated=True), SIZE)
        sets["RubberWhale"] = (layouts.read(folder / "middlebury"), None)
        sets["webcams + H"] = (webcams_with_homographies(folder / "places", options.webcams), None)
    return sets


def _errors(flow: Any, sample: Any) -> dict[str, float]:
    """End-point errors of one pair: where the truth is known and inside; with a homography also everywhere."""
    truth, valid = np.asarray(sample.flow), np.asarray(sample.flow.valid)
    d = np.linalg.norm(np.asarray(flow) - truth, axis=-1)
    row = {"AEPE": d[valid].mean(), "median": np.median(d[valid])} | {
        f"Acc@{px}": 100 * (d[valid] <= px).mean() for px in (1, 3, 5)
    }
    if sample.homography is not None:
        whole = homography_flow(torch.as_tensor(np.asarray(sample.homography)), *truth.shape[:2]).numpy()
        e = np.linalg.norm(np.asarray(flow) - whole, axis=-1)
        row |= {"AEPE, all pixels": e.mean(), "Acc@5, all pixels": 100 * (e <= 5).mean()}
    return {k: float(v) for k, v in row.items()}


def _mean(rows: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Means over pairs, each of the same weight, of what is a number."""
    listed = list(rows)
    return {k: float(np.mean([r[k] for r in listed])) for k, v in listed[0].items() if isinstance(v, int | float)}


def flow(options: Options) -> Record:
    """A row a data set and method."""
    ours = default()
    network, bare = ours.network, replace(ours.options, fine=False, polish=False, snap=2.0)
    methods = {m.name: m for m in rivals.baselines()} | {
        "aligner, from all pairs of cells": Aligner(network, PLAIN),
        "aligner, its matches alone": Aligner(network, replace(bare, iters=0)),
        "aligner, one pass": Aligner(network, bare),
        "aligner, no plane": Aligner(network, replace(ours.options, snap=2.0)),
        "aligner": ours,
    }
    rows = []
    for name, (pairs, size) in _sets(options).items():
        samples = [pair.load(size) for pair in pairs]
        for method, model in methods.items():
            began = time.process_time()
            errors = [_errors(model.flow(s.a, s.b), s) for s in samples]
            seconds = (time.process_time() - began) / len(samples)
            rows.append(
                {"data": name, "method": method, "pairs": len(samples), **_mean(errors), "CPU-s a pair": seconds}
            )
    columns = ["data", "method", "pairs", "AEPE", "median", "Acc@1", "Acc@3", "Acc@5", "CPU-s a pair"]
    return Record(columns, rows)


def matching(options: Options) -> Record:
    """MMA and right matches of each feature, mutual nearest and guided by the flow [LIFE Fig. 5–6, Tab. 4].

    On graf and wall, every level, and on webcams under homographies. R2D2 only where its weights are found.
    """
    folder = data_folder(options.data)
    sets = {
        "graf + wall": (layouts.hpatches(folder / "oxford", part="viewpoint"), SIZE),
        "webcams + H": (webcams_with_homographies(folder / "places", options.webcams), None),
    }
    rows: list[dict[str, Any]] = []
    for data, (pairs, size) in sets.items():
        for s in (pair.load(size) for pair in pairs):
            aligned = default().align(s.a, s.b)
            rows += [{"data": data, "pair": s.name, **row} for row in _guided_and_not(s, aligned)]
    means: list[dict[str, Any]] = []
    for data, feature, method in dict.fromkeys((r["data"], r["features"], r["method"]) for r in rows):
        some = [r for r in rows if (r["data"], r["features"], r["method"]) == (data, feature, method)]
        means.append({"data": data, "features": feature, "method": method, "pairs": len(some), **_mean(some)})
    return Record(["data", "features", "method", "pairs", "matches", "right", "MMA@1", "MMA@3", "MMA@5"], means)


def _guided_and_not(s: Any, aligned: Any) -> Iterable[dict[str, Any]]:
    """The figures of each feature's matches of a pair, with the flow and without."""
    confident = float((aligned.confidences()[0] >= 0.5).float().mean()) >= CONFIDENT
    for feature in ("sift", "xfeat", "r2d2"):
        try:
            plain = match(s.a, s.b, features=feature, matcher="mutual", guide="never")
        except FileError:  # its weights are not here
            continue
        guided = match(s.a, s.b, features=feature, matcher="mutual", guide=_Known(aligned))
        methods = {"mutual": plain, "guided": guided, "guided, stage 1": guided.of_stage(1)}
        if feature == "xfeat":
            methods["LighterGlue"] = match(s.a, s.b, guide="never")
        for name, matches in methods.items():
            shares = mma(matches, np.asarray(s.homography), (1, 3, 5))
            rates = {f"MMA@{t:g}": 100 * v for t, v in shares.items()}
            right = shares[3] * len(matches)
            yield {"features": feature, "method": name, "matches": len(matches), "right": right, **rates}
            if confident and name in ("mutual", "guided"):
                yield {"features": feature, "method": f"{name}, where the flow is confident", "matches": len(matches),
                       "right": right, **rates}  # fmt: skip


class _Known:
    """An aligner that has aligned already."""

    work = SIZE

    def __init__(self, aligned: Any) -> None:
        self.aligned = aligned

    def align(self, a: Any, b: Any) -> Any:
        """What is known."""
        return self.aligned


def tab6(options: Options) -> Record:
    """Mean ± s.e. over seeds of each arm's AEPE, of the network alone from all pairs of cells."""
    if not options.photos or not options.warm:
        raise InputError("photos, warm: expected a folder of photos and the warmed-up network to begin with")
    cells = Path(options.cells) if options.cells else cache_folder() / "benchmarks" / "pixels"
    photos, start = Photos.folder(options.photos, shortest=400), load(options.warm).network
    sets = {name: [p.load(size) for p in pairs] for name, (pairs, size) in _sets(replace(options, places=24)).items()}
    rows = []
    for name, losses in {"where it starts": None, **LOSSES}.items():
        seeds = range(1 if losses is None else options.seeds)
        runs = [
            kept(cells / f"{slug(name)}-{seed}.json", partial(_train_arm, photos, start, sets, losses, seed))
            for seed in seeds
        ]
        row: dict[str, Any] = {"losses": name, "seeds": len(runs)}
        for key in runs[0]:
            row[key], error = mean_error([run[key] for run in runs])
            row |= {} if error is None else {f"{key}, s.e.": error}
        rows.append(row)
    columns = ["losses", "seeds", *(c for n in sets for c in (n, f"{n}, s.e."))]
    return Record(columns, rows)


def _train_arm(
    photos: Photos, start: Any, sets: Mapping[str, Any], losses: dict[str, Any] | None, seed: int
) -> dict[str, float]:
    """The errors of one training, encoder and recurrence."""
    began = time.process_time()
    model: Any = Aligner(copy.deepcopy(start))
    if losses is not None:
        model = train(photos, replace(BASE, **losses, seed=seed), start=model)
    errors = {"training CPU-s": time.process_time() - began}
    plain = Aligner(model.network, PLAIN)
    return errors | {
        name: _mean(_errors(plain.flow(s.a, s.b), s) for s in samples)["AEPE"] for name, samples in sets.items()
    }


def evaluate_layout(options: Options) -> Record:
    """A model's figures on data in a published layout, in all and by group."""
    pairs = layouts.read(data_folder(options.data), options.layout)
    figures = evaluate(named_model(options.model), pairs, size=options.size or None)
    groups = {"all": figures, **figures["groups"]}
    rows = [{"group": g, **{k: v for k, v in f.items() if isinstance(v, int | float)}} for g, f in groups.items()]
    return Record(list(dict.fromkeys(k for row in rows for k in row)), rows)


def named_model(name: str) -> Any:
    """A rival by name, a saved model, or published weights of RAFT; "" is the one that comes with the package."""
    named: dict[str, Any] = {"zero": rivals.Zero, "dis": rivals.DIS, "sift": rivals.SparseHomography, "": default}
    if name in named:
        return named[name]()
    return RAFT.from_official(name) if name.endswith((".pth", ".pt")) else load(name)


TABLES = (
    Table("flow", "End-point errors beside zero flow, DIS, and SIFT or XFeat with a homography", Options, flow),
    Table("geometry", "Places: true pairs with a geometry, and false alarms", Options, geometry),
    Table("matching", "MMA with and without the flow's guidance [LIFE Fig. 5-6, Tab. 4]", Options, matching),
    Table("confidence", "How often flow is within 3 px, by what confidence says", Options, confidence),
    Table("tab6", "The losses at equal steps [LIFE Tab. 6]", Options, tab6),
    Table("raft", "RAFT-small from its authors' weights, trained on by LIFE's losses", RaftOptions, raft),
    Table("evaluate", "A model on data in a published layout", Options, evaluate_layout),
)
