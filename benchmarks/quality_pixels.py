"""Flow, matches and losses of the level pixels, beside zero flow, DIS, DIS on equalised grey and SIFT + MAGSAC.

    python benchmarks/quality.py pixels                     every experiment; finished runs of the ablation are kept
    python benchmarks/quality.py pixels --only flow         end-point errors on rendered places, graf + wall, leuven + H
    python benchmarks/quality.py pixels --only matching     MMA@3 of raw and of guided SIFT on graf and wall
    python benchmarks/quality.py pixels --only ablation     the losses of the paper's Tab. 6 at equal steps, ≥ 3 seeds

Rendered: version 1 of the held-out places, 96 × 128 px, textures that training never saw; over visible pixels. graf and
wall: pairs 1–2, 1–4, 1–6 with the shorter side at 480 px; AEPE over all pixels of the first picture, those whose goal
lies outside the second included, and over those inside. leuven: pairs 1–2 … 1–6, the second picture drawn by a
generated homography. The data folder is $LIKEWISE_DATA.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
import numpy as np

from likewise.media import cache_folder, write_text
from likewise.pixels.training import Config
from record import record

Rows = list[dict[str, Any]]
SIZE = 480

# -------------------------------------------------------------------------------------------------------------- flow


def methods() -> dict[str, Any]:
    """What is measured, by name."""
    from likewise.papers.life import rivals as baselines
    from likewise.pixels.aligner import Aligner, AlignerOptions, default

    network, plain = default().network, AlignerOptions(search="never", passes=1, polish=False, snap=2.0)
    return {
        "zero flow": baselines.Zero(),
        "DIS": baselines.DIS(),
        "DIS on equalised grey": baselines.DIS(equalized=True),
        "SIFT + MAGSAC homography": baselines.SiftHomography(),
        "aligner, its start": Aligner(network, dataclasses.replace(plain, iters=0)),
        "aligner, one pass": Aligner(network, plain),
        "aligner": default(),
    }


def sets(data: Path | None, places: int) -> dict[str, tuple[Any, int | None]]:
    """The data sets and the size of the shorter side."""
    from likewise.papers.life import layouts
    from likewise.pixels.data import rendered
    from likewise.pixels.rendering import held_out_pairs

    found: dict[str, tuple[Any, int | None]] = {"rendered": (rendered(held_out_pairs(places)), None)}
    if data is not None:
        oxford = data / "oxford"
        found["graf + wall"] = (layouts.hpatches(oxford, part="viewpoint", levels=(2, 4, 6)), SIZE)
        found["leuven + H"] = (layouts.hpatches(oxford, part="illumination", generated=True), SIZE)
        found["RubberWhale"] = (layouts.read(data / "middlebury"), None)
    return found


def flow(data: Path | None, places: int) -> Rows:
    """A row a set and method."""
    rows: Rows = []
    for name, (pairs, size) in sets(data, places).items():
        samples = [pair.load(size) for pair in pairs]
        for method, model in methods().items():
            began = time.process_time()
            errors = [error(model.flow(s.a, s.b), s) for s in samples]
            seconds = (time.process_time() - began) / len(samples)
            rows.append(
                {"data": name, "method": method, "pairs": len(samples), **mean(errors), "CPU-s a pair": seconds}
            )
            click.echo(json.dumps(rows[-1], ensure_ascii=False))
    return rows


def error(found: Any, sample: Any) -> dict[str, float]:
    """End-point errors of one pair: where the truth is known and inside; with a homography also everywhere."""
    import torch

    from likewise.pixels.geometry import homography_flow

    truth, valid = np.asarray(sample.flow), np.asarray(sample.flow.valid)
    d = np.linalg.norm(np.asarray(found) - truth, axis=-1)
    row = {"AEPE": d[valid].mean()} | {f"Acc@{px}": 100 * (d[valid] <= px).mean() for px in (1, 3, 5)}
    if sample.homography is not None:
        whole = homography_flow(torch.as_tensor(np.asarray(sample.homography)), *truth.shape[:2]).numpy()
        e = np.linalg.norm(np.asarray(found) - whole, axis=-1)
        row |= {"AEPE, all pixels": e.mean(), "Acc@5, all pixels": 100 * (e <= 5).mean()}
    return {k: float(v) for k, v in row.items()}


def mean(rows: Iterable[dict[str, float]]) -> dict[str, float]:
    """Means over pairs, each of the same weight."""
    listed = list(rows)
    return {k: float(np.mean([r[k] for r in listed])) for k in listed[0]}


def bars(rows: Rows) -> Rows:
    """Each bar of the level with what was measured for it."""

    def of(data: str, method: str) -> dict[str, Any]:
        return next(r for r in rows if r["data"] == data and r["method"] == method)

    names = {r["data"] for r in rows}
    ours, dis, equal = (of("rendered", m) for m in ("aligner", "DIS", "DIS on equalised grey"))
    start, one = of("rendered", "aligner, its start"), of("rendered", "aligner, one pass")
    found = [
        bar("rendered: AEPE of the aligner / of DIS", ours["AEPE"] / dis["AEPE"], 0.40, below=True),
        bar("rendered: AEPE of the aligner / of DIS on equalised grey", ours["AEPE"] / equal["AEPE"], 0.55, below=True),
        bar("rendered: Acc@1", ours["Acc@1"], 64, below=False),
        bar("rendered: Acc@3", ours["Acc@3"], 88, below=False),
        bar("rendered: AEPE after the recurrence / at its start", one["AEPE"] / start["AEPE"], 0.90, below=True),
    ]
    if "graf + wall" in names:
        wall, leuven = of("graf + wall", "aligner"), of("leuven + H", "aligner")
        found += [
            bar("graf + wall: AEPE over all pixels", wall["AEPE, all pixels"], 18, below=True),
            bar("graf + wall: Acc@5 over all pixels", wall["Acc@5, all pixels"], 75, below=False),
            bar("leuven + H: AEPE", leuven["AEPE"], 1.2, below=True),
            bar("leuven + H: Acc@5", leuven["Acc@5"], 98, below=False),
        ]
    return found


def bar(what: str, value: float, wanted: float, *, below: bool) -> dict[str, Any]:
    """A bar, its value, and whether it is met."""
    met = value <= wanted if below else value >= wanted
    return {
        "bar": what,
        "measured": value,
        "wanted": f"{'≤' if below else '≥'} {wanted:g}",
        "met": "yes" if met else "no",
    }


# ---------------------------------------------------------------------------------------------------------- matching


def matching(data: Path) -> Rows:
    """MMA@3 and how many matches, raw mutual-nearest SIFT and guided, on every level of graf and wall."""
    from likewise.papers.life import layouts
    from likewise.pixels.aligner import default
    from likewise.pixels.matching import match, raw
    from likewise.pixels.metrics import mma

    rows: Rows = []
    for pair in layouts.hpatches(data / "oxford", part="viewpoint"):
        s = pair.load(SIZE)
        flows = default().both(s.a, s.b)
        found = {
            "raw SIFT": (raw(s.a, s.b), None),
            "guided": (match(s.a, s.b, flows=flows, flow_size=default().work), None),
            "guided, stage 2 among the left over": (
                match(s.a, s.b, flows=flows, flow_size=default().work, search="left"), None
            ),
        }  # fmt: skip
        found["guided, stage 1 alone"] = (found["guided"][0], 1)
        for name, (m, stage) in found.items():
            rates = mma(m, np.asarray(s.homography), (1, 3, 5), stage=stage)
            row = {"pair": pair.name, "method": name, "matches": len(m if stage is None else m.of_stage(stage))}
            rows.append(row | {f"MMA@{t:g}": 100 * v for t, v in rates.items()})
            click.echo(json.dumps(rows[-1], ensure_ascii=False))
    names = dict.fromkeys(r["method"] for r in rows)
    means = [{"pair": "mean", "method": n, **mean(_numbers(r) for r in rows if r["method"] == n)} for n in names]
    return [*means, *rows]


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    return {k: float(v) for k, v in row.items() if isinstance(v, int | float)}


# ---------------------------------------------------------------------------------------------------------- ablation

BASE = Config(
    warm=0, refine=0, joint=80, height=112, width=144, pairs=3, share=1.0, scenes=3, light=0.0, night=0.0, contrast=0.0,
    sed=0.0, bit=0.0, cycle=0.0, evaluate_every=1000, keep="last", schedule="linear", clip=20.0, ema=0.9, warmup=10,
)  # fmt: skip
"""No change of light and no contrast in any arm; the warmed-up encoder stays as it is, the recurrence begins anew."""
ARMS: dict[str, dict[str, Any]] = {
    "T(B′B)": {"bit": 1.0, "one_way": True},
    "BiT": {"bit": 1.0},
    "SED": {"sed": 0.5},
    "SED + adaptive cycle": {"sed": 0.5, "cycle": 0.1},
    "SED + full cycle": {"sed": 0.5, "cycle": 0.1, "cycle_mode": "full"},
    "SED + BiT + adaptive cycle": {"sed": 0.5, "bit": 1.0, "cycle": 0.1},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "all, α 1": {**ARMS["SED + BiT + adaptive cycle"], "alpha": 1.0},
    "all, β 0": {**ARMS["SED + BiT + adaptive cycle"], "beta": 0.0},
    "all, cycle × 10": {**ARMS["SED + BiT + adaptive cycle"], "cycle": 1.0},
    "all, SED × 4": {**ARMS["SED + BiT + adaptive cycle"], "sed": 2.0},
}


def ablation(
    photos: Path, warm: Path, data: Path | None, cells: Path, seeds: int, arms: dict[str, dict[str, Any]]
) -> Rows:
    """Mean ± s.e. over seeds of each arm's AEPE, of the recurrence alone (one pass)."""
    import likewise as lw
    from likewise.pixels.life.pairs import Photos

    pictures, start = Photos.folder(photos, shortest=400), lw.load(warm).network
    rows = []
    for name, options in arms.items():
        files = [cells / f"{_slug(name)}-{seed}.json" for seed in range(seeds)]
        runs = [_arm(pictures, start, data, file, {**options, "seed": seed}) for seed, file in enumerate(files)]
        row: dict[str, Any] = {"losses": name, "seeds": seeds}
        for key in runs[0]:
            values = [r[key] for r in runs]
            row[key] = float(np.mean(values))
            row[f"{key}, s.e."] = float(np.std(values, ddof=1) / math.sqrt(seeds)) if seeds > 1 else 0.0
        rows.append(row)
        click.echo(json.dumps(row, ensure_ascii=False))
    return rows


def _arm(photos: Any, start: Any, data: Path | None, cell: Path, options: dict[str, Any]) -> dict[str, float]:
    import copy

    import torch

    from likewise.nn.backbone import seeded
    from likewise.pixels.aligner import Aligner, AlignerOptions
    from likewise.pixels.life.network import Refine
    from likewise.pixels.training import train

    if cell.exists():
        return dict(json.loads(cell.read_text()))
    torch.set_num_threads(1)
    network = copy.deepcopy(start)
    with seeded(options["seed"]):
        network.refine = Refine(network.dim, network.hidden)
    began = time.process_time()
    model = train(photos, dataclasses.replace(BASE, **options), start=Aligner(network))
    seconds = time.process_time() - began
    plain = Aligner(model.network, AlignerOptions(search="never", passes=1, polish=False, snap=2.0))  # type: ignore[union-attr]
    found = {"training CPU-s": seconds}
    for name, (pairs, size) in sets(data, 24).items():
        if name in ("rendered", "graf + wall"):
            found[name] = mean(error(plain.flow(s.a, s.b), s) for s in (p.load(size) for p in pairs))["AEPE"]
    write_text(cell, json.dumps(found) + "\n")
    return found


def _slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name.lower())


# ------------------------------------------------------------------------------------------------------------ command


@click.command()
@click.option("--only", type=click.Choice(["flow", "matching", "ablation", "options"]), help="one experiment")
@click.option("--places", default=100, show_default=True, help="rendered pairs")
@click.option(
    "--photos", type=click.Path(path_type=Path), help="the folder of benchmarks/training_photos.py, for ablation"
)
@click.option("--warm", type=click.Path(path_type=Path), help="the warmed-up network of train_aligner.py, for ablation")
@click.option("--seeds", default=3, show_default=True)
@click.option("--cells", type=click.Path(path_type=Path), help="where finished runs of the ablation are kept")
def pixels(
    only: str | None, places: int, photos: Path | None, warm: Path | None, seeds: int, cells: Path | None
) -> None:
    """The experiments on flow and matching."""
    named = os.environ.get("LIKEWISE_DATA")
    data = Path(named) if named else None
    chosen: Callable[[str], bool] = lambda name: only in (None, name)  # noqa: E731
    command = "python benchmarks/quality.py pixels"
    if chosen("flow"):
        rows = flow(data, places)
        columns = ["data", "method", "AEPE", "AEPE, all pixels", "Acc@1", "Acc@3", "Acc@5", "CPU-s a pair"]
        record("quality-pixels-flow", columns, rows, f"{command} --only flow")
        record("quality-pixels-bars", ["bar", "measured", "wanted", "met"], bars(rows), f"{command} --only flow")
    if chosen("matching") and data is not None:
        columns = ["pair", "method", "matches", "MMA@1", "MMA@3", "MMA@5"]
        record("quality-pixels-matching", columns, matching(data), f"{command} --only matching")
    folder = cells or cache_folder() / "benchmarks" / "pixels"
    for study, arms in (("ablation", ARMS), ("options", OPTIONS)):
        if chosen(study) and photos is not None and warm is not None:
            rows = ablation(photos, warm, data, folder, seeds, arms)
            columns = ["losses", "rendered", "rendered, s.e.", *(["graf + wall", "graf + wall, s.e."] if data else [])]
            record(
                f"quality-pixels-{study}",
                columns,
                rows,
                f"{command} --only {study} --photos PHOTOS --warm WARM --seeds {seeds}",
            )
