"""The tables of LIFE: flow and matches beside classical methods, the losses of Tab. 6, and any data in a known layout.

flow: end-point errors on version 2 of the held-out rendered places (96 × 128 px, textures that training never saw, over
visible pixels), on graf and wall (pairs 1–2, 1–4, 1–6, shorter side 480 px) and on leuven (pairs 1–2 … 1–6, the second
image drawn by a generated homography). matching: MMA of raw and of guided SIFT. tab6: the losses at equal steps.
evaluate: a model on a data set in one of the published layouts. Real data is below $LIKEWISE_DATA.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from likewise.errors import InputError
from likewise.media import cache_folder
from likewise.nn.backbone import seeded
from likewise.papers import Record, Table, data_folder, kept, mean_error, slug
from likewise.papers.life import layouts, rivals
from likewise.pixels.aligner import Aligner, AlignerOptions, default
from likewise.pixels.data import Photos, rendered
from likewise.pixels.evaluation import evaluate
from likewise.pixels.geometry import homography_flow
from likewise.pixels.life.network import Refine
from likewise.pixels.matching import match, raw
from likewise.pixels.metrics import mma
from likewise.pixels.raft import RAFT
from likewise.pixels.rendering import held_out_pairs
from likewise.pixels.training import Config, train
from likewise.store.checkpoint import load
from likewise.train.options import option

SIZE = 480
PLAIN = AlignerOptions(matches=False, fine=False, polish=False, snap=2.0)
"""One pass of the network and nothing after it."""
BASE = Config(
    refine=0, joint=80, height=128, width=160, pairs=3, scenes=3, light=0.0, night=0.0, contrast=0.0,
    sed=0.0, bit=0.0, cycle=0.0, evaluate_every=1000, keep="last", schedule="linear", clip=20.0, ema=0.9, warmup=10,
)  # fmt: skip
"""No change of light and no contrast in any arm; the warmed-up encoder stays as it is, the recurrence begins anew."""
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
    return sets


def _errors(flow: Any, sample: Any) -> dict[str, float]:
    """End-point errors of one pair: where the truth is known and inside; with a homography also everywhere."""
    truth, valid = np.asarray(sample.flow), np.asarray(sample.flow.valid)
    d = np.linalg.norm(np.asarray(flow) - truth, axis=-1)
    row = {"AEPE": d[valid].mean()} | {f"Acc@{px}": 100 * (d[valid] <= px).mean() for px in (1, 3, 5)}
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
    network = default().network
    methods = {m.name: m for m in rivals.baselines()} | {
        "aligner, its start": Aligner(network, replace(PLAIN, iters=0)),
        "aligner, one pass": Aligner(network, PLAIN),
        "aligner": default(),
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
    columns = ["data", "method", "AEPE", "AEPE, all pixels", "Acc@1", "Acc@3", "Acc@5", "CPU-s a pair"]
    return Record([c for c in columns if any(c in r for r in rows)], rows)


def matching(options: Options) -> Record:
    """MMA and how many matches, raw mutual-nearest SIFT and guided, on every level of graf and wall."""
    rows: list[dict[str, Any]] = []
    for pair in layouts.hpatches(data_folder(options.data) / "oxford", part="viewpoint"):
        s = pair.load(SIZE)
        given: dict[str, Any] = {"flows": default().both(s.a, s.b), "flow_size": default().work}
        guided = match(s.a, s.b, **given)
        methods = {
            "raw SIFT": raw(s.a, s.b),
            "guided": guided,
            "guided, stage 2 among the left over": match(s.a, s.b, search="left", **given),
            "guided, stage 1 alone": guided.of_stage(1),
        }
        for name, matches in methods.items():
            rates = {f"MMA@{t:g}": 100 * v for t, v in mma(matches, np.asarray(s.homography), (1, 3, 5)).items()}
            rows.append({"pair": pair.name, "method": name, "matches": len(matches), **rates})
    names = dict.fromkeys(r["method"] for r in rows)
    means = [{"pair": "mean", "method": n, **_mean(r for r in rows if r["method"] == n)} for n in names]
    return Record(["pair", "method", "matches", "MMA@1", "MMA@3", "MMA@5"], [*means, *rows])


def tab6(options: Options) -> Record:
    """Mean ± s.e. over seeds of each arm's AEPE, of the recurrence alone (one pass)."""
    if not options.photos or not options.warm:
        raise InputError("photos, warm: expected a folder of photos and the warmed-up network to begin with")
    cells = Path(options.cells) if options.cells else cache_folder() / "benchmarks" / "pixels"
    photos, start = Photos.folder(options.photos, shortest=400), load(options.warm).network
    rows = []
    for name, losses in LOSSES.items():
        runs = [
            kept(cells / f"{slug(name)}-{seed}.json", partial(_train_arm, photos, start, options, losses, seed))
            for seed in range(options.seeds)
        ]
        row: dict[str, Any] = {"losses": name, "seeds": options.seeds}
        for key in runs[0]:
            row[key], row[f"{key}, s.e."] = mean_error([run[key] for run in runs])
        rows.append(row)
    columns = ["losses", *(c for n in ("rendered", "graf + wall") if n in rows[0] for c in (n, f"{n}, s.e."))]
    return Record(columns, rows)


def _train_arm(photos: Photos, start: Any, options: Options, losses: dict[str, Any], seed: int) -> dict[str, float]:
    """The errors of one training."""
    network = copy.deepcopy(start)
    with seeded(seed):
        network.refine = Refine(network.dim, network.hidden)
    began = time.process_time()
    model: Any = train(photos, replace(BASE, **losses, seed=seed), start=Aligner(network))
    errors = {"training CPU-s": time.process_time() - began}
    plain = Aligner(model.network, PLAIN)
    for data, (pairs, size) in _sets(replace(options, places=24)).items():
        if data in ("rendered", "graf + wall"):
            errors[data] = _mean(_errors(plain.flow(s.a, s.b), s) for s in (p.load(size) for p in pairs))["AEPE"]
    return errors


def evaluate_layout(options: Options) -> Record:
    """A model's figures on data in a published layout, in all and by group."""
    pairs = layouts.read(data_folder(options.data), options.layout)
    figures = evaluate(named_model(options.model), pairs, size=options.size or None)
    groups = {"all": figures, **figures["groups"]}
    rows = [{"group": g, **{k: v for k, v in f.items() if isinstance(v, int | float)}} for g, f in groups.items()]
    return Record(list(dict.fromkeys(k for row in rows for k in row)), rows)


def named_model(name: str) -> Any:
    """A rival by name, a saved model, or published weights of RAFT; "" is the one that comes with the package."""
    named: dict[str, Any] = {"zero": rivals.Zero, "dis": rivals.DIS, "sift": rivals.SiftHomography, "": default}
    if name in named:
        return named[name]()
    return RAFT.from_official(name) if name.endswith((".pth", ".pt")) else load(name)


TABLES = (
    Table("flow", "End-point errors beside zero flow, DIS and SIFT + MAGSAC", Options, flow),
    Table("matching", "MMA of raw and of guided SIFT on graf and wall", Options, matching),
    Table("tab6", "The losses at equal steps [LIFE Tab. 6]", Options, tab6),
    Table("evaluate", "A model on data in a published layout", Options, evaluate_layout),
)
