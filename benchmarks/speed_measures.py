"""How fast and how large: the measures of distributions on many features, each in a process of its own.

    python benchmarks/speed_measures.py              50,000 × 2048 on each side, float32: time and peak memory
    python benchmarks/speed_measures.py --n 5000     smaller

Beside ours stands the package prdc, as long as its three distance matrices (3 · 8 n² bytes) fit into `--most` GB.
Figures of prdc and of ours are printed next to each other: they must agree.
"""

from __future__ import annotations

import click

import alone
from record import record

_RUN = """
import sys
import numpy as np
what, n, d, seed = sys.argv[1], *map(int, sys.argv[2:5])
def sample(seed, shift):
    mix = np.random.default_rng(0).normal(size=(64, d)).astype(np.float32) / 8
    r = np.random.default_rng(seed)
    X = np.empty((n, d), dtype=np.float32)
    for i in range(0, n, 4096):
        rows = len(X[i : i + 4096])
        X[i : i + 4096] = (r.standard_normal((rows, 64), dtype=np.float32) + shift) @ mix
        X[i : i + 4096] += 0.3 * r.standard_normal((rows, d), dtype=np.float32)
    return X
X, Y = sample(seed + 1, 0.0), sample(seed + 2, 0.25)
if what == "prdc":
    from prdc import compute_prdc
    import contextlib, io
    def run():
        with contextlib.redirect_stdout(io.StringIO()):
            found = compute_prdc(X, Y, 3)
        return {k: float(v) for k, v in found.items()}
else:
    from likewise.distributions import metrics
    def support():
        s = metrics.support(X, Y, k=3)
        return {k: float(getattr(s, k)) for k in ("precision", "recall", "density", "coverage")}
    run = {
        "features alone": lambda: {},
        "frechet": lambda: {"frechet": float(metrics.frechet(X, Y))},
        "kid": lambda: {"kid": float(metrics.kid(X, Y))},
        "precision, recall, density, coverage": support,
    }[what]
"""

OURS = (
    "features alone",
    "frechet",
    "kid",
    "precision, recall, density, coverage",
)


def measured(what: str, n: int, d: int, threads: int) -> dict[str, object]:
    """One row: a measure in a process of its own."""
    row: dict[str, object] = {"measure": what, "n, each side": n, "features": d}
    try:
        row |= alone.measured(_RUN, what, n, d, 0, threads=threads)
    except alone.Failed as error:
        raise SystemExit(f"{what}: {error}") from None
    click.echo("  ".join(str(v) for v in row.values()))
    return row


@click.command()
@click.option("--n", "sizes", multiple=True, default=(5000, 50_000), show_default=True, help="Samples of each side.")
@click.option("--d", default=2048, show_default=True, help="Features of a sample.")
@click.option("--threads", default=1, show_default=True, help="Threads of BLAS.")
@click.option("--most", default=8.0, show_default=True, help="GB that prdc may take.")
def main(sizes: tuple[int, ...], d: int, threads: int, most: float) -> None:
    """Time and peak memory of each measure; the result goes to benchmarks/results/speed-measures.jsonl."""
    rows: list[dict[str, object]] = []
    for n in sizes:
        for what in (*OURS, *(["prdc"] if 3 * 8 * n * n / 1e9 <= most else [])):
            rows.append(measured(what, n, d, threads))
            written(rows, sizes, d, threads)


def written(rows: list[dict[str, object]], sizes: tuple[int, ...], d: int, threads: int) -> None:
    """What was measured so far: a long run that is stopped leaves what it has."""
    asked = " ".join(f"--n {n}" for n in sizes)
    record(
        "speed-measures",
        ["measure", "n, each side", "features", "CPU s", "wall s", "peak GB"],
        rows,
        f"python benchmarks/speed_measures.py {asked} --d {d} --threads {threads}",
        "float32 features, each measure in its own process; peak memory is that of the process, with both inputs",
    )


if __name__ == "__main__":
    main()
