"""How fast and how large: the measures of images on many embeddings, each in a process of its own, beside its peers.

    python benchmarks/speed.py images                  the test part of SOP in size: 60,502 × 512, 11,316 classes
    python benchmarks/speed.py images --world cub      that of CUB200: 5,924 × 512, 100 classes
    python benchmarks/speed.py images --n 5000         smaller

Peers: FAISS (flat index, the nearest 101, the row itself taken out by its place) for R@k, pytorch-metric-learning for
mAP@R. "products alone" are the matrix products that R@k needs, each pair of rows once, and nothing else: no exact
method on float32 can be faster. Figures of ours and of peers are printed next to each other; peers order in float32.
"""

from __future__ import annotations

import os

import click

import alone
from record import record

_RUN = """
import sys
import numpy as np
what, n, classes, d, noise, threads = sys.argv[1], *map(int, sys.argv[2:5]), float(sys.argv[5]), int(sys.argv[6])
r = np.random.default_rng(0)
y = np.concatenate([np.repeat(np.arange(classes), 2), r.integers(0, classes, n - 2 * classes)])
X = np.empty((n, d), dtype=np.float32)
centres = r.standard_normal((classes, d), dtype=np.float32)
for i in range(0, n, 4096):
    part = slice(i, i + 4096)
    X[part] = centres[y[part]] + noise * r.standard_normal((len(y[part]), d), dtype=np.float32)
    X[part] /= np.linalg.norm(X[part], axis=1, keepdims=True)
del centres
KS = (1, 10, 100)
def named(recall):
    return {f"R@{k}": float(v) for k, v in recall.items()}
def faiss_recall():
    near = faiss.knn(X, X, max(KS) + 1, metric=faiss.METRIC_INNER_PRODUCT)[1].astype(np.int64)
    own = near == np.arange(n)[:, None]
    own[~own.any(axis=1), -1] = True
    near = near[~own].reshape(n, -1)
    right = y[near] == y[:, None]
    return named({k: right[:, :k].any(axis=1).mean() for k in KS})
def pml_map():
    measure = AccuracyCalculator(include=("mean_average_precision_at_r",), device=torch.device("cpu"))
    found = measure.get_accuracy(torch.from_numpy(X), torch.from_numpy(y))
    return {"mAP@R": float(found["mean_average_precision_at_r"])}
def products():
    for i in range(0, n, 2048):
        for j in range(i, n, 2048):
            X[i : i + 2048] @ X[j : j + 2048].T
    return {}
def clustering():
    found = metrics.clusters(X, classes)
    return {"NMI": metrics.nmi(X, y, found=found), "F1": metrics.f1(X, y, found=found)}
# everything is imported before the clock starts
import faiss, sklearn.metrics.cluster
from likewise.images import metrics
faiss.omp_set_num_threads(threads)
if "pytorch" in what:
    import torch
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    torch.set_num_threads(threads)
run = {
    "rows alone": lambda: {},
    "products alone": products,
    "R@1, 10, 100": lambda: named(metrics.recall_at_k(X, y, KS)),
    "R@1, 10, 100: FAISS": faiss_recall,
    "mAP@R": lambda: {"mAP@R": metrics.map_at_r(X, y)},
    "mAP@R: pytorch-metric-learning": pml_map,
    "spectral decay": lambda: {"decay": metrics.spectral_decay(X)},
    "NMI, F1": clustering,
}[what]
"""

MEASURES = (
    "rows alone",
    "products alone",
    "R@1, 10, 100",
    "R@1, 10, 100: FAISS",
    "spectral decay",
    "mAP@R",
    "mAP@R: pytorch-metric-learning",
    "NMI, F1",
)
WORLDS = {"sop": (60_502, 11_316, 2.2), "cub": (5_924, 100, 3.0)}
"""Rows, classes, and the noise that brings R@1 to about 0.8 in 512 dimensions."""


def measured(what: str, world: tuple[int, int, float], d: int, threads: int) -> dict[str, object]:
    """One row: a measure in a process of its own."""
    n, classes, noise = world
    row: dict[str, object] = {"measure": what, "rows": n, "classes": classes}
    try:
        row |= alone.measured(_RUN, what, n, classes, d, noise, threads, threads=threads)
    except alone.Failed as error:
        row["figures"] = failed(what, str(error))
    row["load"] = round(os.getloadavg()[0], 1)
    click.echo("  ".join(str(v) for v in row.values()))
    return row


def failed(what: str, last: str) -> str:
    """What is said of a peer that did not fit into memory; anything else ends the run."""
    if ":" in what and ("memory" in last or last == "killed"):
        return "failed: not enough memory"
    raise SystemExit(f"{what}: {last}")


@click.command()
@click.option("--world", "worlds", multiple=True, default=("cub", "sop"), type=click.Choice(sorted(WORLDS)))
@click.option("--n", type=click.IntRange(100), help="Rows, instead of those of the world; classes in proportion.")
@click.option("--d", default=512, show_default=True, help="Dimensions of an embedding.")
@click.option("--threads", default=2, show_default=True, help="Threads of BLAS and FAISS.")
@click.option("--measure", "measures", multiple=True, default=MEASURES, type=click.Choice(MEASURES))
def images(worlds: tuple[str, ...], n: int | None, d: int, threads: int, measures: tuple[str, ...]) -> None:
    """Recall, mAP@R, spectrum and clusters of embeddings: time and peak memory, beside FAISS and its like."""
    rows: list[dict[str, object]] = []
    for name in worlds:
        world = WORLDS[name]
        if n is not None:
            world = (n, max(2, n * world[1] // world[0]), world[2])
        for what in measures:
            rows.append({"world": name, **measured(what, world, d, threads)})
            if n is None and measures == MEASURES:
                written(rows, worlds, d, threads)


def written(rows: list[dict[str, object]], worlds: tuple[str, ...], d: int, threads: int) -> None:
    """What was measured so far: a long run that is stopped leaves what it has."""
    asked = " ".join(f"--world {name}" for name in worlds)
    load = max(float(str(row["load"])) for row in rows)
    shared = f"; others ran on the machine (load {load}), so compare CPU seconds" if load > threads + 1 else ""
    record(
        "speed-images",
        ["measure", "rows", "classes", "CPU s", "wall s", "peak GB", "figures"],
        rows,
        f"python benchmarks/speed.py images {asked} --d {d} --threads {threads}",
        f"float32 rows of {d} numbers, {threads} threads, each measure in its own process; peak memory is that of the "
        f"process, with the rows{shared}",
    )


if __name__ == "__main__":
    images()
