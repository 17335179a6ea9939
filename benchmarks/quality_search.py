"""Do re-ranking and verification find more? A collection with known places among thousands of other photos.

    python benchmarks/quality.py search                     the table: which picture comes first, by stage and source
    python benchmarks/quality.py search --distractors 1000  a smaller collection

Queries: graf, wall, leuven (real, viewpoint and light: the first picture of each in the gallery), lund (real: every
fourth photo of a street in the gallery, a hit is right if it shares 30 points of the reconstruction with the query),
two stereo or motion pairs (real), places in the photographs of scikit-image and scikit-learn and in bird photos (made:
another view and light, benchmarks/places.py). The rest of the gallery are other quarters of the same photographs, and
photos of birds. None of these pictures was used to train the aligner or to fit the verdict; graf, wall and leuven were
looked at while the aligner was made. The data folder is $LIKEWISE_DATA.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

import places
from likewise import media, samples
from likewise.search import Collection
from record import record

BIRDS = 80
METHODS = {
    "shortlist": {"rerank": False, "verify": 0},
    "re-ranked": {"rerank": True, "verify": 0},
    "re-ranked, verified": {"rerank": True, "verify": 5},
}


def collection(data: Path, folder: Path, distractors: int) -> tuple[Collection, list[places.Query]]:
    """The gallery, indexed, and the queries."""
    birds = sorted((data / "cub200").rglob("*.jpg"))
    order = np.random.default_rng(0).permutation(len(birds))
    photos = [media.write_image(folder / "photos" / f"{n}.png", samples.photograph(n)) for n in samples.names()]
    queries = [
        *places.oxford(data, folder),
        *places.lund(data, folder, common(data, folder)),
        *places.pairs(data, folder),
        *places.made([p for p in photos if p.stem != "motorcycle"], folder, seed=1, source="photographs", each=4),
        *places.whole([birds[i] for i in order[:BIRDS]], folder, seed=2, source="birds"),
    ]
    for i in order[BIRDS : BIRDS + distractors]:
        places.linked(birds[i], folder / "gallery" / "others" / f"{birds[i].parent.name}-{birds[i].name}")
    return Collection.build(folder / "gallery", folder / "index", progress=True), queries


def common(data: Path, folder: Path) -> Any:
    """(29, 29): 30 where two photos of lund share at least 30 points of their reconstruction, else 0."""
    from likewise.pixels import reconstruct

    found = reconstruct(data / "lund", folder / "lund", threads=1)
    numbers = [int(n.partition("_")[0]) for n in found.names]  # as the photos come, "0003_04.jpg"
    shared = np.zeros((29, 29), dtype=int)
    for a, b in zip(found.arrays["a"], found.arrays["b"], strict=True):
        shared[numbers[a], numbers[b]] = shared[numbers[b], numbers[a]] = 30
    return shared


def measured(found: Collection, queries: Sequence[places.Query]) -> tuple[list[dict[str, Any]], list[Any]]:
    """For each query and method, whether the first hit is right; and every verified candidate's verdict and truth."""
    rows, verdicts = [], []
    began = time.perf_counter()
    for number, query in enumerate(queries):
        row: dict[str, Any] = {"source": query.source, "query": query.path.name}
        for name, options in METHODS.items():
            result = found.search(query.path, 10, **options)
            row[name] = Path(result[0].path) in query.right
            if name == "re-ranked, verified":
                checked = [h for h in result.hits if h.evidence is not None and Path(h.path) not in query.seen]
                verdicts += [(h.probability, Path(h.path) in query.right) for h in checked]
        row["in shortlist"] = any(Path(h.path) in query.right for h in found.search(query.path, 100, verify=0).hits)
        rows.append(row)
        if number % 20 == 0:
            click.echo(f"{number} of {len(queries)}, {time.perf_counter() - began:.0f} s", err=True)
    return rows, verdicts


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Top-1 precision of each method, by source and over all queries, with binomial standard errors."""
    sources = ["all", *dict.fromkeys(r["source"] for r in rows)]
    table = []
    for name in METHODS:
        line: dict[str, Any] = {"method": name}
        for source in sources:
            right = [r[name] for r in rows if source in ("all", r["source"])]
            line[source] = round(float(np.mean(right)), 4)
            if source == "all":
                line["all ±"] = round(math.sqrt(np.mean(right) * (1 - np.mean(right)) / len(right)), 4)
        table.append(line)
    table.append({"method": "in the shortlist of 100"} | {
        s: round(float(np.mean([r["in shortlist"] for r in rows if s in ("all", r["source"])])), 4) for s in sources
    })  # fmt: skip
    return table


def judged(verdicts: Sequence[Any]) -> list[dict[str, Any]]:
    """What the verdicts are worth on candidates that were verified."""
    p, same = (np.asarray(v) for v in zip(*verdicts, strict=True))
    rows = []
    for word, which in (("same", p >= 0.9), ("unsure", (p > 0.1) & (p < 0.9)), ("different", p <= 0.1)):
        share = float(same[which].mean()) if which.any() else 0.0
        mean = float(p[which].mean()) if which.any() else 0.0
        rows.append({"verdict": word, "candidates": int(which.sum()), "mean probability": round(mean, 4),
                     "show the same": round(share, 4)})  # fmt: skip
    return rows


@click.command()
@click.option("--distractors", default=4000, show_default=True, help="photos that show something else")
@click.option("--folder", type=click.Path(path_type=Path), help="where the collection is made and kept")
@click.option("--most", type=int, help="only so many queries, nothing written")
def search(distractors: int, folder: Path | None, most: int | None) -> None:
    """Known places among thousands of photos."""
    data = Path(os.environ["LIKEWISE_DATA"])
    place = folder or media.cache_folder() / "quality-search"
    found, queries = collection(data, place, distractors)
    with found:
        size = len(found)
        rows, verdicts = measured(found, queries[:most])
    table, words = summary(rows), judged(verdicts)
    for line in [*table, *words]:
        click.echo("  ".join(f"{k} {v}" for k, v in line.items()))
    if most is not None:
        return
    counts = {s: sum(r["source"] == s for r in rows) for s in dict.fromkeys(r["source"] for r in rows)}
    note = f"share of queries whose first hit is right, of {len(rows)} ("
    note += ", ".join(f"{s} {n}" for s, n in counts.items()) + f"), among {size:,} pictures"
    command = "python benchmarks/quality.py search" + (f" --distractors {distractors}" if distractors != 4000 else "")
    record("quality-search", ["method", "all", "all ±", *counts], table, command, note)
    record("quality-verdict", list(words[0]), words, command, "the five best candidates of each query, verified")
