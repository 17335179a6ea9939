"""Embedding against the bare network: how much of the time is the backbone's own forward pass.

    python benchmarks/speed.py embed            with LIKEWISE_DATA: photos of birds; without: noise as JPEGs

EfficientNet-Lite0 at 224 px, the default embedder. "bare" is the network on prepared crops in the chunks that the
embedder uses; "decoded" is `embed` of uint8 pictures in memory (crop and resampling included), "files" of JPEG files.
CPU time of all threads and wall time, rounds of the three taking turns; ratios are medians over rounds.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from PIL import Image

from likewise import media
from likewise.images import default
from likewise.nn.backbone import crop
from record import record


def files(count: int, folder: Path) -> list[Path]:
    """JPEGs: birds of the data folder, spread over its classes, or noise."""
    data = os.environ.get("LIKEWISE_DATA")
    if data and Path(data, "cub200").is_dir():
        found = sorted(Path(data, "cub200").glob("*/*.jpg"))
        return found[:: max(1, len(found) // count)][:count]
    rng = np.random.default_rng(0)
    for i in range(count):
        Image.fromarray(rng.integers(0, 255, (144, 200, 3), dtype=np.uint8)).save(folder / f"{i}.jpg")
    return sorted(folder.iterdir())


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """CPU and wall seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


@click.command()
@click.option("--count", default=96, show_default=True, type=click.IntRange(8))
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1))
def embed(count: int, rounds: int) -> None:
    """The embedder against the bare network."""
    model = default()
    with tempfile.TemporaryDirectory() as folder:
        paths = files(count, Path(folder))
        arrays = [media.read_array(p) for p in paths]
        crops = [crop(a) for a in arrays]
        work = {
            "bare": lambda: [model._forward(crops[i : i + 32]) for i in range(0, count, 32)],
            "decoded": lambda: model.embed(arrays),
            "files": lambda: model.embed(paths),
        }
        rows = [_row(threads, work, rounds, count) for threads in (1, 2)]
    columns = (
        "threads",
        "bare, pictures / CPU s",
        "decoded / bare",
        "files / bare",
        "wall: files / bare",
        "cores busy",
    )
    record("speed-embed", columns, rows, "python benchmarks/speed.py embed", f"{count} pictures, {rounds} rounds")


def _row(threads: int, work: dict[str, Callable[[], Any]], rounds: int, count: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    for one in work.values():
        one()
    times = [{name: timed(one) for name, one in work.items()} for _ in range(rounds)]
    median = statistics.median
    row = {
        "threads": threads,
        "bare, pictures / CPU s": count / median(t["bare"][0] for t in times),
        "decoded / bare": median(t["bare"][0] / t["decoded"][0] for t in times),
        "files / bare": median(t["bare"][0] / t["files"][0] for t in times),
        "wall: files / bare": median(t["bare"][1] / t["files"][1] for t in times),
        "cores busy": median(t["files"][0] / t["files"][1] for t in times),
    }
    click.echo("  ".join(f"{k} {round(v, 3)}" for k, v in row.items()))
    return row
