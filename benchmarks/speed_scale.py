"""What an index costs a photo, and what that comes to for ten million and for a billion of them (docs/scale.md).

    python benchmarks/speed_scale.py measure      CPU time a photo and a query, one thread; needs $LIKEWISE_DATA
    python benchmarks/speed_scale.py sums         the arithmetic, from the last measurement

Photos are those of places/ and of cub200-232 in turn. CPU time, as the machine is shared; each figure in a process of
its own, with modules and model loaded before the clock starts, except in workers, whose start is given apart.
"""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from record import RESULTS, record

CORE_HOUR, GB_MONTH, MEMORY_GB_MONTH = 0.04, 0.08, 3.0
"""Assumed prices in dollars: an hour of a rented core, a month of a gigabyte on SSD, a month of one in memory."""
CORES, LOOKED, CODE, MACHINE = 64, 64, 64, 96
"""Assumed: cores that index; lists that a query looks into; bytes of a quantised vector; GB of vectors a machine."""
PHOTO_MB, DISK = 4.0, 1.0
"""Assumed: megabytes of a photo as cameras make them, and the GB/s at which they are read."""
PER_LIST, ROUNDS = 40, 10
"""As in store/index.py: rows that a list is trained on, rounds of k-means."""
PAGES = sqlite3.connect(":memory:").execute("PRAGMA max_page_count").fetchone()[0]
"""The most pages of a file, as this SQLite was built; newer ones allow four times as many as older ones."""
SIDE, FEW = 4000, 12
"""The longest side of photos as cameras make them, and how many of those are measured."""


@click.group()
def main() -> None:
    """Cost a photo, and of very many."""


@main.command()
@click.option("--n", default=240, show_default=True, help="photos")
@click.option("--queries", default=4, show_default=True)
@click.option("--rows", default=20_000, show_default=True, help="made vectors that are searched, and listed by IVF")
def measure(n: int, queries: int, rows: int) -> None:
    """CPU time a photo, in one process and in two; bytes; CPU time of a query's stages and of FAISS."""
    data = Path(os.environ["LIKEWISE_DATA"])
    places, birds = (sorted(data.glob(p)) for p in ("places/*/reference/*.jpg", "cub200-232/*/*.*"))
    chosen = [p for pair in zip(_evenly(places, n // 2), _evenly(birds, n - n // 2), strict=True) for p in pair]
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "photos").mkdir()
        for i, photo in enumerate(chosen):
            Path(scratch, "photos", f"{i:05d}{photo.suffix}").symlink_to(photo.resolve())
        _enlarge(_evenly(places, FEW), Path(scratch, "large"))
        asked = _evenly(sorted(data.glob("places/*/query/*.jpg")), queries)
        made = {
            "one": _child("build", scratch, "photos", "1"),
            "large": _child("build", scratch, "large", "1"),
            "two": _child("build", scratch, "photos", "2"),
            "query": _child("query", scratch, *map(str, asked)),
            "vectors": _child("vectors", scratch, str(rows)),
        }
    one, two, lists = made["one"], made["two"], made["vectors"]
    figures = {
        "indexing, one process, CPU-s a photo": one["cpu"] / n,
        f"the same, photos of {SIDE} px, CPU-s a photo": made["large"]["cpu"] / FEW,
        "two processes, CPU-s of workers a photo": (two["children"] - 2 * one["start"]) / n,
        "two processes, CPU-s of the writer a photo": two["cpu"] / n,
        "cores that one writer keeps busy": (two["children"] - 2 * one["start"]) / two["cpu"],
        "start of a worker, CPU-s": one["start"],
        "memory of one process, GB": one["memory"] / 1e6,
        "run again, nothing new, CPU-ms a photo": 1000 * one["again"] / n,
        "numbers of a vector": one["dim"],
        "index, kB a photo": one["bytes"] / n / 1e3,
        "kB a photo that a worker sends": one["sent"] / n / 1e3,
        "flat, CPU-ms a query and 100,000 rows": 1e8 * lists["one"] / rows,
        "flat, the nine views of a query, CPU-ms and 100,000 rows": 1e8 * lists["nine"] / rows,
        "IVF, building, GFLOP a CPU-s": lists["rate"],
        "shortlist of these photos, CPU-s a query": made["query"]["shortlist"],
        "re-rank, CPU-ms a candidate": 1000 * made["query"]["re-rank"] / made["query"]["candidates"],
        "verify, CPU-s a candidate": made["query"]["verify"] / 10,
    }
    table = [{"what": name, "measured": value} for name, value in figures.items()]
    _print_rows(table)
    note = f"{n} photos of places/ and cub200-232, {queries} queries, {rows:,} made vectors; one thread, CPU time"
    command = f"python benchmarks/speed_scale.py measure --n {n} --queries {queries} --rows {rows}"
    record("speed-scale", ["what", "measured"], table, command, note)


@main.command()
def sums() -> None:
    """Photos × cost, machines, memory and money, from the last measurement."""
    last = json.loads((RESULTS / "speed-scale.jsonl").read_text().splitlines()[-1])
    m = {row["what"]: row["measured"] for row in last["rows"]}
    columns = {name: _sums(m, n) for name, n in (("10 million", 10**7), ("1 billion", 10**9))}
    first = next(iter(columns.values()))
    table = [{"what": what, "how": first[what][0], **{c: of[what][1] for c, of in columns.items()}} for what in first]
    _print_rows(table)
    note = (
        f"assumed: ${CORE_HOUR} a core-hour, ${GB_MONTH} a GB-month on SSD, ${MEMORY_GB_MONTH:g} a GB-month in memory, "
        f"{CORES} cores that index, photos of {PHOTO_MB:g} MB read at {DISK:g} GB/s, {LOOKED} lists looked into, "
        f"{CODE} bytes a quantised vector, {MACHINE} GB of vectors a machine; all else as measured above"
    )
    record("speed-scale-sums", list(table[0]), table, "python benchmarks/speed_scale.py sums", note)


def _sums(m: dict[str, float], n: int) -> dict[str, tuple[str, float]]:
    """Each line of the arithmetic: how it comes about, and what it comes to for n photos."""
    small, large = m["indexing, one process, CPU-s a photo"], m[f"the same, photos of {SIDE} px, CPU-s a photo"]
    writer, dim = m["two processes, CPU-s of the writer a photo"], m["numbers of a vector"]
    file, row = n * m["index, kB a photo"] / 1e6, m["flat, CPU-ms a query and 100,000 rows"] / 1e8
    features, pace = m["kB a photo that a worker sends"] - 4 * dim / 1e3, m["IVF, building, GFLOP a CPU-s"] * 1e9
    lists, kept, exact = 4 * n**0.5, n * (dim * 2 + 8) / 1e9, n * dim * 4 / 1e9
    rest = 100 * m["re-rank, CPU-ms a candidate"] / 1000 + 10 * m["verify, CPU-s a candidate"]
    return {
        "indexing photos of 200–500 px, core-hours": ("n × CPU-s a photo", n * small / 3600),
        f"indexing photos of {SIDE} px, core-hours": ("n × CPU-s a photo", n * large / 3600),
        f"… days on {CORES} cores": (f"÷ {CORES} ÷ 24", n * large / 3600 / CORES / 24),
        "… dollars": (f"× {CORE_HOUR}", n * large / 3600 * CORE_HOUR),
        "reading them, hours": (f"n × {PHOTO_MB:g} MB ÷ {DISK:g} GB/s", n * PHOTO_MB / 1e3 / DISK / 3600),
        "the one process that writes, CPU-hours": ("n × CPU-s of the writer", n * writer / 3600),
        "run again, nothing new, CPU-hours": (
            "n × CPU-ms",
            n * m["run again, nothing new, CPU-ms a photo"] / 3.6e6,
        ),
        "index.sqlite, GB": ("n × kB a photo", file),
        "… on SSD, dollars a month": (f"× {GB_MONTH}", file * GB_MONTH),
        "… share of the largest that SQLite takes": (f"÷ (4,096 bytes × {PAGES:,} pages)", file * 1e9 / 4096 / PAGES),
        "vectors in memory, flat, GB": ("n × dim × 4 bytes", exact),
        "vectors in memory, IVF, GB": ("n × (dim × 2 + 8) bytes", kept),
        "… dollars a month": (f"× {MEMORY_GB_MONTH:g}", kept * MEMORY_GB_MONTH),
        "… machines": (f"÷ {MACHINE} GB, rounded up", -(-kept // MACHINE)),
        "building IVF, memory at the peak, GB": ("2 × flat + IVF", 2 * exact + kept),
        "building IVF, core-hours": (
            f"2 × dim × (n + {ROUNDS} × {PER_LIST} × lists) × lists ÷ FLOP a core-hour",
            2 * dim * (n + ROUNDS * PER_LIST * lists) * lists / pace / 3600,
        ),
        "vectors quantised (not offered), GB": (f"n × ({CODE} + 8) bytes", n * (CODE + 8) / 1e9),
        "shortlist, flat, CPU-s a query of nine views": (
            "n × CPU-s a row",
            n * m["flat, the nine views of a query, CPU-ms and 100,000 rows"] / 1e8,
        ),
        "shortlist, IVF, CPU-s a query of nine views": (
            f"9 × (lists + {LOOKED} × n ÷ lists) × CPU-s a row",
            9 * (lists + LOOKED * n / lists) * row,
        ),
        "re-rank 100 and verify 10, CPU-s a query": ("100 × re-rank + 10 × verify", rest),
        "Milvus, vectors in memory, GB": ("n × dim × 4 bytes", exact),
        "Milvus, local features as text, GB": ("n × kB of features × 5 ÷ 4", n * features * 1.25 / 1e6),
    }


# ── in processes of their own ─────────────────────────────────────────────────────────────────────────────────────


def build(scratch: str, folder: str, n_jobs: str) -> dict[str, float]:
    """Photos indexed, and the index brought up to date once more."""
    from likewise.images import default
    from likewise.search import Collection
    from likewise.search.local import describe

    model, photos, place = default(), Path(scratch, folder), Path(scratch, f"index-{folder}-{n_jobs}")
    describe(model, [min(photos.iterdir())])  # what is loaded and compiled once
    before, start = _children(), time.process_time()
    began = start
    with Collection.build(photos, place / "i", model=model, n_jobs=int(n_jobs)) as made:
        cpu, children, began = time.process_time() - began, _children() - before, time.process_time()
        made.update()
        again, names = time.process_time() - began, list(made.index.names())
        sent = sum(map(len, made.index.features(names).values())) + 4 * made.about.dim * len(made)
        figures = {
            "cpu": cpu,
            "children": children,
            "again": again,
            "dim": made.about.dim,
            "sent": sent,
            "start": start,
        }
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = sum(file.stat().st_size for file in (place / "i").iterdir())  # once it is closed: nothing is written ahead
    return {**figures, "bytes": size, "memory": memory}


def query(scratch: str, *asked: str) -> dict[str, float]:
    """CPU-seconds of the stages of a query, the mean."""
    from likewise.search import Collection

    cpu, candidates = dict[str, float](), 0
    with Collection.open(Path(scratch, "index-photos-1", "i")) as photos:
        photos.search(asked[0])
        for one in asked:
            last = [time.process_time()]

            def note_stage(stage: str, hits: Any, last: list[float] = last) -> None:
                now = time.process_time()
                cpu[stage] = cpu.get(stage, 0.0) + (now - last[0]) / len(asked)
                last[0] = now

            candidates += len(photos.search(one, 1000, on_stage=note_stage))
    return {**cpu, "candidates": candidates / len(asked)}


def vectors(scratch: str, rows: str) -> dict[str, float]:
    """CPU-seconds of a query of made vectors, of nine at once, and the pace at which FAISS makes lists of them."""
    import numpy as np

    from likewise.search import local
    from likewise.store import index as stored

    n, dim = int(rows), 1280 + local.projection().dim
    made = stored.unit(np.random.default_rng(0).standard_normal((n, dim), dtype=np.float32)).astype(np.float32)
    seconds = {}
    for name, count in (("one", 1), ("nine", 9)):
        stored.exact(made, made[:count], 100)
        began = time.process_time()
        for _ in range(9):
            stored.exact(made, made[:count], 100)
        seconds[name] = (time.process_time() - began) / 9
    began = time.process_time()
    facts, inner = stored.build(made, np.arange(n, dtype=np.int64), 0.01)  # so low that there is nothing to tune
    spent = time.process_time() - began
    trained = min(n - facts.queries * 2, PER_LIST * inner.nlist)
    flop = 2 * dim * (inner.nlist * (ROUNDS * trained + n) + 2 * facts.queries * n)
    return {**seconds, "rate": flop / 1e9 / spent}


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _child(*words: str) -> dict[str, float]:
    env = {**os.environ, **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")}
    command = [sys.executable, __file__, "child", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode:
        raise SystemExit(done.stderr)
    click.echo(f"{words[0]} {done.stdout.splitlines()[-1]}", err=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _evenly(items: list[Path], count: int) -> list[Path]:
    return [items[i * len(items) // count] for i in range(count)]


def _enlarge(photos: list[Path], folder: Path) -> None:
    """Photos at the size that cameras make, as JPEG."""
    from PIL import Image

    folder.mkdir()
    for i, photo in enumerate(photos):
        with Image.open(photo) as image:
            factor = SIDE / max(image.size)
            size = round(image.width * factor), round(image.height * factor)
            image.convert("RGB").resize(size, Image.Resampling.BICUBIC).save(folder / f"{i}.jpg", quality=90)


def _print_rows(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        click.echo("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        print(json.dumps({"build": build, "query": query, "vectors": vectors}[sys.argv[2]](*sys.argv[3:])))
    else:
        main()
