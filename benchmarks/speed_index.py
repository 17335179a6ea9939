"""How fast a large index is: opened until it can be searched, added to, searched.

    python benchmarks/speed_index.py                          1,000,000 rows of 512 floats; 2.3 GB under --folder
    python benchmarks/speed_index.py --n 100000 --kind ivf

Bars: opening ≤ 10 s, a batch of 1,000 adds ≤ 1 s. That kill −9 loses nothing which was acknowledged is
tests/store/test_index.py's, 2 moments in the fast lane, 40 in the slow one.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

import click
import numpy as np

from likewise.store.index import FILE, About, Index, Record
from record import record


@click.command()
@click.option("--n", default=1_000_000, show_default=True, help="rows")
@click.option("--dim", default=512, show_default=True)
@click.option("--kind", default="flat", show_default=True, type=click.Choice(["flat", "ivf"]))
@click.option("--folder", type=click.Path(), help="where the index is made; by default the system's temporary folder")
def main(n: int, dim: int, kind: str, folder: str | None) -> None:
    """Build, open, search and add to an index; seconds are wall clock, `CPU` is this process's own time."""
    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        place, began = Path(scratch) / "i", time.perf_counter()
        index = Index.create(place, About(scratch, "made", "made", dim, kind))
        for start in range(0, n, 10_000):
            index.put(*_batch(draw, start, min(10_000, n - start), dim))
        index.settle()
        figures = {"rows": n, "dim": dim, "kind": kind, "build s": round(time.perf_counter() - began, 1)}
        figures["GB"] = round((place / FILE).stat().st_size / 1e9, 2)
        index.close()
        query = draw.standard_normal((1, dim), dtype=np.float32)
        query /= np.linalg.norm(query)
        began, used = time.perf_counter(), time.process_time()
        index = Index(place)
        index.nearest(query, 10)
        figures["open and first search s"] = round(time.perf_counter() - began, 2)
        figures["open and first search CPU s"] = round(time.process_time() - used, 2)
        figures["query ms"] = round(1000 * median(_seconds(lambda: index.nearest(query, 10)) for _ in range(9)), 1)
        batches = [_batch(draw, n + 1000 * i, 1000, dim) for i in range(5)]
        added = [_seconds(lambda batch=batch: (index.put(*batch), index.settle())) for batch in batches]
        figures["add 1,000 s"] = round(median(added), 3)
        index.close()
    click.echo("  ".join(f"{name} {value}" for name, value in figures.items()))
    command = f"python benchmarks/speed_index.py --n {n} --dim {dim} --kind {kind}"
    record("speed-store", list(figures), [figures], command, "wall clock")


def _batch(draw: np.random.Generator, start: int, count: int, dim: int) -> tuple[list[Record], np.ndarray]:
    rows = draw.standard_normal((count, dim), dtype=np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return [Record(f"{(start + i) // 1000:04d}/{start + i:07d}.jpg", 1, 1) for i in range(count)], rows


def _seconds(work: object) -> float:
    began = time.perf_counter()
    work()  # type: ignore[operator]
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
