"""How fast a search is: indexing beside the embedder alone, a shortlist, re-ranking and verification.

    python benchmarks/speed.py search index       photos indexed beside the same photos embedded, CPU time, alternating
    python benchmarks/speed.py search shortlist   a query of 100,000 × 512, exact, after start-up
    python benchmarks/speed.py search stages      a search of 4,000 photos: each stage warm, and the command cold

The first and the last need $LIKEWISE_DATA. Wall clock is that of two threads on two cores, and needs them free; CPU
time does not.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import click

from record import record

INDEX = """
import json, sys, tempfile, time, resource
from pathlib import Path
import torch
torch.set_num_threads(1)
from likewise.images import default
from likewise.search import Collection
what, folder, n = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
model = default()
model.embed([sorted(folder.rglob("*.jpg"))[0]])
began = time.process_time()
if what == "embed":
    model.embed(sorted(folder.rglob("*.jpg")))
else:
    with tempfile.TemporaryDirectory() as out:
        Collection.build(folder, Path(out) / "i", model=model).close()
print(json.dumps({"cpu": time.process_time() - began, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}))
"""


def _run(script: str, *words: str) -> dict[str, Any]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True, env=env)
    return dict(json.loads(done.stdout.splitlines()[-1]))


@click.group("search")
def search() -> None:
    """Indexing and the stages of a search."""


@search.command()
@click.option("--n", default=1000, show_default=True, help="photos")
@click.option("--rounds", default=3, show_default=True)
def index(n: int, rounds: int) -> None:
    """Photos indexed beside the same photos embedded."""
    birds = sorted((Path(os.environ["LIKEWISE_DATA"]) / "cub200").rglob("*.jpg"))
    with tempfile.TemporaryDirectory() as scratch:
        for i in range(n):
            Path(scratch, f"{i:05d}.jpg").symlink_to(birds[i * len(birds) // n].resolve())
        times: dict[str, list[dict[str, Any]]] = {"embed": [], "index": []}
        for _ in range(rounds):
            for what in times:
                times[what].append(_run(INDEX, what, scratch, str(n)))
                click.echo(f"{what} {times[what][-1]}", err=True)
    ratios = [b["cpu"] / a["cpu"] for a, b in zip(times["embed"], times["index"], strict=True)]
    rows = [
        {
            "what": {"embed": "the embedder alone", "index": "likewise index"}[what],
            "photos / CPU-s": round(n / median(t["cpu"] for t in found), 2),
            "of the embedder's time": round(median(ratios), 3) if what == "index" else 1.0,
            "memory, GB": round(median(t["memory"] for t in found) / 1e6, 2),
        }
        for what, found in times.items()
    ]
    _print_rows(rows)
    note = f"{n:,} bird photos, from files, one thread, median of {rounds} alternating rounds in processes of their own"
    command = f"python benchmarks/speed.py search index --n {n} --rounds {rounds}"
    record("speed-index", list(rows[0]), rows, command, note)


@search.command()
@click.option("--n", default=100_000, show_default=True)
@click.option("--dim", default=512, show_default=True)
def shortlist(n: int, dim: int) -> None:
    """A query of many rows, after start-up."""
    import numpy as np

    from likewise.store.index import About, Index, Record

    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as out:
        index = Index.create(Path(out) / "i", About(out, "made", "made", dim, "flat"))
        for start in range(0, n, 4096):
            rows = draw.standard_normal((min(4096, n - start), dim), dtype=np.float32)
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
            index.put([Record(f"{start + i:06d}.jpg", 1, 1) for i in range(len(rows))], rows)
        queries = draw.standard_normal((60, dim), dtype=np.float32)
        index.nearest(queries[:1], 100)
        wall, cpu = [], []
        for query in queries:
            began, used = time.perf_counter(), time.process_time()
            index.nearest(query[None], 100)
            wall.append(time.perf_counter() - began)
            cpu.append(time.process_time() - used)
    rows = [
        {
            "query": f"{n:,} × {dim}, the nearest 100, exact",
            "wall, ms": round(1000 * median(wall), 1),
            "slowest of 60, ms": round(1000 * max(wall), 1),
            "CPU, ms": round(1000 * median(cpu), 1),
        }
    ]
    _print_rows(rows)
    record(
        "speed-shortlist", list(rows[0]), rows, "python benchmarks/speed.py search shortlist", "median of 60 queries"
    )


@search.command()
@click.option("--n", default=4000, show_default=True, help="photos: all references of places/, then birds")
@click.option("--queries", default=24, show_default=True)
@click.option("--threads", default=2, show_default=True)
def stages(n: int, queries: int, threads: int) -> None:
    """A search end to end: each stage warm, and the command cold."""
    import numpy as np
    import torch

    from likewise.search import Collection

    torch.set_num_threads(threads)
    data = Path(os.environ["LIKEWISE_DATA"])
    photos, asked = (sorted((data / "places").glob(f"*/{side}/*.jpg")) for side in ("reference", "query"))
    birds = sorted((data / "cub200-232").rglob("*.*"))
    photos += birds[:: max(1, len(birds) // (n - len(photos)))][: n - len(photos)]
    chosen = [asked[i] for i in np.linspace(0, len(asked) - 1, queries + 1).astype(int)]
    with tempfile.TemporaryDirectory() as scratch:
        for i, photo in enumerate(photos):
            Path(scratch, "photos").mkdir(exist_ok=True)
            Path(scratch, "photos", f"{i:05d}{photo.suffix}").symlink_to(photo.resolve())
        place, began = Path(scratch) / "index", time.process_time()
        with Collection.build(Path(scratch) / "photos", place) as found:
            indexing = time.process_time() - began
            times = [_staged(found, query, 10) for query in chosen][1:]
            five = [_staged(found, query, 5) for query in chosen[1:]]
        kept = sum(file.stat().st_size for file in place.iterdir()) / len(photos)  # closed: without the log
        cold = [_cold(query, place) for query in chosen[1:6]]
    names = ("shortlist", "re-rank", "verify", "all")
    rows = [
        {
            "stage": name if name != "verify" else "verify 10",
            "wall, s": round(median(t[name] for t in times), 3),
            "CPU-s": round(median(t[f"{name}, CPU"] for t in times), 3),
        }
        for name in names
    ]
    rows.append({"stage": "verify 5", **{k: round(median(t[v] for t in five), 3) for k, v in VERIFY.items()}})
    rows.append({"stage": "likewise search, cold", **{k: round(median(t[k] for t in cold), 2) for k in VERIFY}})
    _print_rows(rows)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    note = (
        f"{len(times)} queries of {len(photos):,} photos, {threads} threads, medians; {memory:.2f} GB; indexed at "
        f"{len(photos) / indexing:.1f} photos a CPU-s; {kept / 1e3:.1f} kB a photo; load {os.getloadavg()[2]:.0f}"
    )
    command = f"python benchmarks/speed.py search stages --n {n} --queries {queries}"
    record("speed-search", ["stage", "wall, s", "CPU-s"], rows, command, note)


VERIFY = {"wall, s": "verify", "CPU-s": "verify, CPU"}


def _staged(found: Any, query: Path, verify: int) -> dict[str, float]:
    """Wall clock and CPU-seconds of each stage, and of all."""
    cpu, before, began = dict[str, float](), [time.process_time()], time.perf_counter()

    def note_stage(stage: str, _: Any) -> None:
        now = time.process_time()
        cpu[f"{stage}, CPU"] = now - before[0]
        before[0] = now

    start = before[0]
    seconds = found.search(query, verify=verify, on_stage=note_stage).seconds
    return {**seconds, **cpu, "all": time.perf_counter() - began, "all, CPU": time.process_time() - start}


def _cold(query: Path, place: Path) -> dict[str, float]:
    """The command, in a process of its own."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    words = [sys.executable, "-m", "likewise.cli", "search", str(query), "--index", str(place)]
    subprocess.run(words, check=True, capture_output=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"wall, s": wall, "CPU-s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def _print_rows(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        click.echo("  ".join(f"{k} {v}" for k, v in row.items()))
