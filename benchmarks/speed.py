"""How fast: many small transport problems against POT and OTT, in one run, on one thread, in CPU time.

    python benchmarks/speed.py transport     pairs per CPU-second: ours, POT's loop, batches, exact, ott-jax, roofline
    python benchmarks/speed.py threads       n_jobs = 2 against 1, wall clock (needs two free cores)
    python benchmarks/speed.py start         CPU-seconds of the first call: nothing compiled yet, then from the cache
    python benchmarks/speed.py profile       where the time of a pair goes
    python benchmarks/speed.py memory        peak memory against the size of the output
    python benchmarks/speed.py spectra       singular values of Jacobians (speed_spectra.py)
    python benchmarks/speed.py images        measures of embeddings: recall, mAP@R, clusters (speed_images.py)
    python benchmarks/speed.py diva          a step of DiVA against a margin-only step (speed_diva.py)
    python benchmarks/speed.py embed         the embedder against the bare network (speed_embed.py)
    python benchmarks/speed.py raft          RAFT against a straightforward implementation (speed_raft.py)
    python benchmarks/speed.py aligner       the shipped aligner: time a pair, memory of 12 megapixels
    python benchmarks/speed.py search WHAT   index, shortlist, stages of a search (speed_search.py)

The workload of the first: N × N distances of sets of 2 to 1000 weighted points in 2 to 2048 dimensions, γ = 0.05, 0.2
and 1 × the median ground cost, marginal error 1e-6, from points to distances. Peers get their best: no padding
(problems of one size are batched together), compiled before the clock starts, whichever of their methods is fastest and
right. Each figure is the median of the rounds; rounds of all contestants alternate, because the machine is noisy.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import click
import numpy as np

from likewise.sets.transport import solvers as transport
from likewise.sets.transport.solvers import Pack
from record import record

WORLDS = ("cloud", "clustered")
PEERS = ("POT loop", "ot.solve_batch", "ot.emd2", "ott-jax")


SIZES = (
    (2, 2, 2, 800), (5, 20, 2, 500), (5, 20, 100, 800), (20, 20, 2048, 160), (50, 50, 2, 150), (50, 50, 512, 150),
    (50, 50, 2048, 80), (200, 200, 2, 30), (200, 200, 512, 30), (200, 200, 2048, 20), (1000, 1000, 2, 6),
    (1000, 1000, 512, 8),
)  # fmt: skip
"""Fewest and most points of a set, dimensions, sets."""


def world(kind: str, N: int = 1000, d: int = 100, seed: int = 0, points: tuple[int, int] = (5, 20)) -> Pack:
    """Sets of 5–20 weighted points: "cloud", all from one Gaussian; "clustered", a centre a set, spread 1 around it."""
    r = np.random.default_rng(seed)
    sizes = r.integers(points[0], points[1] + 1, N)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    points = r.normal(size=(offsets[-1], d))
    if kind == "clustered":
        points += np.repeat(r.normal(size=(N, d)), sizes, axis=0)
    weights = r.uniform(0.5, 1.5, offsets[-1])
    weights /= np.repeat(np.add.reduceat(weights, offsets[:-1]), sizes)
    return Pack(points, weights, offsets.astype(np.int64))


@dataclass
class Batch:
    """Pairs of one size: points (B, m, d), (B, n, d), weights (B, m), (B, n)."""

    P: np.ndarray
    Q: np.ndarray
    a: np.ndarray
    b: np.ndarray


def batches(X: Pack, shapes: int, each: int, seed: int = 0) -> list[Batch]:
    """A sample of pairs as the peers like them: `shapes` random sizes (m, n), `each` pairs of it."""
    r = np.random.default_rng(seed)
    out = []
    for _ in range(shapes):
        m, n = (int(X.sizes[k]) for k in r.integers(0, len(X), 2))
        left, right = (r.choice(np.flatnonzero(X.sizes == s), each) for s in (m, n))
        gather = [np.stack([x[X.rows(k)] for k in side]) for side in (left, right) for x in (X.points, X.weights)]
        out.append(Batch(gather[0], gather[2], gather[1], gather[3]))
    return out


def costs(batch: Batch) -> np.ndarray:
    """‖p − q‖², by one batched product."""
    norms = [np.einsum("bid,bid->bi", x, x) for x in (batch.P, batch.Q)]
    return np.maximum(norms[0][:, :, None] + norms[1][:, None, :] - 2 * batch.P @ batch.Q.transpose(0, 2, 1), 0)


def kl_value(C: np.ndarray, F: np.ndarray, a: np.ndarray, b: np.ndarray, gamma: float) -> float:
    """⟨C, F⟩ + γ KL(F ‖ a bᵀ)."""
    return float((C * F).sum() + gamma * (F * np.log(np.maximum(F, 1e-300) / np.outer(a, b))).sum())


def truth(sample: list[Batch], gamma: float, count: int = 4) -> list[list[float]]:
    """The right values of the first pairs of each batch, to 1e-10."""
    rows = []
    for batch in sample:
        C = costs(batch)
        found = [transport.sinkhorn(C[k], batch.a[k], batch.b[k], gamma, tol=1e-10) for k in range(count)]
        rows.append([float(batch.a[k] @ f + batch.b[k] @ g) for k, (f, g, *_) in enumerate(found)])
    return rows


class Contestant:
    """Something that computes the sample: `run` returns (pairs solved, first values of each batch or None)."""

    def __init__(self, name: str, run: Callable[[], tuple[int, list[list[float]] | None]]) -> None:
        self.name, self.run = name, run
        self.rates: list[float] = []
        self.error: float | None = None
        self.seconds = 0.0

    def round(self, right: list[list[float]] | None) -> None:
        start = time.process_time()
        pairs, values = self.run()
        self.seconds = time.process_time() - start
        self.rates.append(pairs / self.seconds)
        if values is not None and right is not None:
            count = len(right[0])
            got, want = np.array([v[:count] for v in values]), np.array(right)
            self.error = float(np.abs(got / want - 1).max())

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


def ours(X: Pack, gamma: float) -> Contestant:
    def run() -> tuple[int, None]:
        found = transport.solve_all(X, None, gamma)
        if not found.converged.all():
            raise RuntimeError("not converged")
        return len(X) * (len(X) + 1) // 2, None

    return Contestant("likewise", run)


def ours_on(sample: list[Batch], gamma: float, right: list[list[float]]) -> float:
    """Our largest relative error on the peers' own sample."""
    worst = 0.0
    for batch, row in zip(sample, right, strict=True):
        n = len(row)
        X, Y = (
            Pack(x[:n].reshape(-1, x.shape[2]), w[:n].ravel(), np.arange(n + 1) * x.shape[1])
            for x, w in ((batch.P, batch.a), (batch.Q, batch.b))
        )
        found = transport.solve_all(X, Y, gamma).value.diagonal()
        worst = max(worst, float(np.abs(found / row - 1).max()))
    return worst


def pot_loop(sample: list[Batch], gamma: float, method: str, each: int) -> Contestant:
    import ot

    def run() -> tuple[int, list[list[float]]]:
        values = []
        for batch in sample:
            row = []
            for k in range(each):
                a, b = batch.a[k], batch.b[k]
                C = ot.dist(batch.P[k], batch.Q[k])
                _, log = ot.sinkhorn(a, b, C, gamma, method=method, stopThr=1e-6, numItermax=100_000, log=True)
                row.append(gamma * float(a @ np.log(log["u"] / a) + b @ np.log(log["v"] / b)))
            values.append(row)
        return each * len(sample), values

    return Contestant(f"POT loop, {method}", run)


def pot_batch(sample: list[Batch], gamma: float, method: str) -> Contestant:
    import ot

    def run() -> tuple[int, list[list[float]]]:
        values = []
        for batch in sample:
            C = costs(batch)
            F = ot.solve_batch(
                C, gamma, a=batch.a, b=batch.b, method=method, tol=1e-6, max_iter=100_000, grad="detach"
            ).plan
            values.append([kl_value(C[k], F[k], batch.a[k], batch.b[k], gamma) for k in range(4)])
        return sum(len(b.P) for b in sample), values

    return Contestant(f"ot.solve_batch, {method}", run)


def pot_exact(sample: list[Batch], each: int) -> Contestant:
    import ot

    def run() -> tuple[int, None]:
        for batch in sample:
            for k in range(each):
                ot.emd2(batch.a[k], batch.b[k], ot.dist(batch.P[k], batch.Q[k]))
        return each * len(sample), None

    return Contestant("ot.emd2 (exact)", run)


def ott(sample: list[Batch], gamma: float, lse: bool) -> Contestant:
    import jax

    jax.config.update("jax_enable_x64", True)
    from ott.geometry import geometry
    from ott.problems.linear import linear_problem
    from ott.solvers.linear import sinkhorn

    solver = sinkhorn.Sinkhorn(lse_mode=lse, threshold=1e-6, max_iterations=100_000, inner_iterations=10)

    def one(C, a, b):  # type: ignore[no-untyped-def]
        out = solver(linear_problem.LinearProblem(geometry.Geometry(cost_matrix=C, epsilon=gamma), a, b))
        return out.matrix

    solve = jax.jit(jax.vmap(one))
    for batch in sample:
        jax.block_until_ready(solve(costs(batch), batch.a, batch.b))

    def run() -> tuple[int, list[list[float]]]:
        values = []
        for batch in sample:
            C = costs(batch)
            F = np.asarray(jax.block_until_ready(solve(C, batch.a, batch.b)))
            values.append([kl_value(C[k], F[k], batch.a[k], batch.b[k], gamma) for k in range(4)])
        return sum(len(b.P) for b in sample), values

    return Contestant(f"ott-jax vmap, {'log' if lse else 'kernel'}", run)


def roofline(X: Pack) -> Contestant:
    """What no smoothed solver can leave out: the inner products (BLAS) and one exponential an entry; no iteration."""
    from likewise.sets.transport.panels import _Columns, _Rows, _tiles, one_blas_thread

    centre = X.points.mean(axis=0)
    X = Pack(X.points - centre, X.weights, X.offsets)
    rows, columns = _Rows.of(X, 8, np.float64), _Columns.of(X, 8, np.float64)
    exponentials = _exponentials()
    exponentials(np.zeros(64))

    def run() -> tuple[int, None]:
        with one_blas_thread():
            for r0, r1, q0, q1 in _tiles(rows, columns, True, 8):
                left = slice(rows.offsets[r0], rows.offsets[r1])
                G = rows.points[left] @ columns.points[columns.bases[q0] : columns.bases[q1]].T
                exponentials(G.ravel())
        return len(X) * (len(X) + 1) // 2, None

    return Contestant("roofline: inner products + one exp an entry", run)


def _exponentials() -> Callable[[np.ndarray], None]:
    from numba import njit

    from likewise.sets.transport import simd as simd

    @njit
    def run(x):  # type: ignore[no-untyped-def]
        for i in range(0, len(x) // 8 * 8, 8):
            simd.store(x, i, simd.exp(simd.load(x, i)))

    return run  # type: ignore[no-any-return]


@click.group()
def main() -> None:
    """Speed, measured; results go to benchmarks/results."""


@main.command("transport")
@click.option("--rounds", default=3, help="Alternating rounds; the median counts.")
@click.option("--patience", default=3.0, help="CPU-seconds after which a contestant is not asked again.")
def transport_(rounds: int, patience: float) -> None:
    """Pairs per CPU-second against every peer, at every size."""
    warnings.simplefilter("ignore")
    rows = []
    for low, high, d, N in SIZES:
        X = world("cloud", N, d, points=(low, high))
        for fraction in (0.05, 0.2, 1.0):
            rows.append(_race(X, (low, high), fraction, rounds, patience))
            click.echo("  ".join(f"{v}" for v in rows[-1].values()))
    record(
        "speed-transport",
        list(rows[0]),
        rows,
        f"python benchmarks/speed.py transport --rounds {rounds} --patience {patience:g}",
        "pairs per CPU-second, marginal error 1e-6, one thread, CPU time, median of alternating rounds; of each peer "
        "the fastest method that is right to 1e-3; ott-jax only from 100 to 512 dimensions, up to 200 points",
    )


def _race(X: Pack, points: tuple[int, int], fraction: float, rounds: int, patience: float) -> dict[str, object]:
    gamma, area = transport.auto_gamma(X, fraction=fraction), points[1] ** 2
    each, few = (int(np.clip(most / area, 4, 128)) for most in (1.5e6, 1e6))
    sample = batches(X, 1, each)
    right = truth(sample, gamma, 4 if area <= 10_000 else 1)
    field = [ours(X, gamma), pot_loop(sample, gamma, "sinkhorn", min(few, 20)), pot_batch(sample, gamma, "sinkhorn")]
    field += [pot_exact(sample, min(few, 20))]
    if area <= 50_000 and 100 <= X.dim <= 512:  # elsewhere its loops take minutes, or it is far behind
        field += [ott(sample, gamma, True), ott(sample, gamma, False)]
    transport.solve_all(X, None, gamma)
    for _ in range(rounds):
        for contestant in field:
            if contestant.seconds < patience:
                contestant.round(right)
    best: dict[str, float] = {}
    for c in field[1:]:
        name = c.name.split(",")[0].removesuffix(" (exact)").removesuffix(" vmap")
        if c.error is None or c.error < 1e-3:
            best[name] = max(best.get(name, 0.0), c.rate)
    m = "–".join(str(p) for p in dict.fromkeys(points))
    rates: dict[str, object] = {name: round(best[name]) if name in best else None for name in PEERS}
    return {
        **{"points": m, "d": X.dim, "γ / median": fraction, "likewise": round(field[0].rate)},
        **rates,
        "× the best": round(field[0].rate / max(best.values()), 1),
        "our largest relative error": f"{ours_on(sample, gamma, right):.0e}",
    }


@main.command()
@click.option("--rounds", default=5)
def threads(rounds: int) -> None:
    """n_jobs = 2 against n_jobs = 1, wall clock."""
    rows = []
    for fraction in (0.05, 0.01):
        X = world("cloud")
        gamma = transport.auto_gamma(X, fraction=fraction)
        transport.solve_all(X, None, gamma)
        walls: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(rounds):
            for n_jobs, times in walls.items():
                start = time.perf_counter()
                transport.solve_all(X, None, gamma, n_jobs=n_jobs)
                times.append(time.perf_counter() - start)
        one, two = (statistics.median(walls[n]) for n in (1, 2))
        row = {
            "γ / median": fraction,
            "n_jobs=1 s": round(one, 3),
            "n_jobs=2 s": round(two, 3),
            "×": round(one / two, 2),
        }
        click.echo(row)
        rows.append(row)
    record("speed-threads", list(rows[0]), rows, "python benchmarks/speed.py threads", "wall clock, median of rounds")


_FIRST = """
import resource, sys, time
import numpy as np
import likewise as lw
X = [np.random.default_rng(i).normal(size=(3 + i % 5, 4)) for i in range(12)]
t, w = time.process_time(), time.perf_counter()
lw.sets.distances(X); lw.sets.compare(X[0], X[1])
print(time.process_time() - t, time.perf_counter() - w)
"""


@main.command()
def start() -> None:
    """The first call: with an empty cache, and after that."""
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        for what in ("nothing compiled yet", "from the cache", "from the cache, again"):
            done = subprocess.run(
                [sys.executable, "-c", _FIRST],
                env={**os.environ, "LIKEWISE_CACHE": cache},
                capture_output=True,
                text=True,
            )
            cpu, wall = (float(x) for x in done.stdout.split())
            rows.append({"first call": what, "CPU-s": round(cpu, 2), "wall s": round(wall, 2)})
            click.echo(rows[-1])
    record(
        "speed-start", list(rows[0]), rows, "python benchmarks/speed.py start", "distances of 12 sets and one compare"
    )


@main.command()
@click.option("--rounds", default=5)
def profile(rounds: int) -> None:
    """Where the time of a pair goes: inner products, the kernel with no step, and its steps."""
    rows = []
    for kind in WORLDS:
        X = world(kind)
        for fraction in (0.05, 0.01):
            gamma = transport.auto_gamma(X, fraction=fraction)
            rows.append(_profile(X, kind, fraction, gamma, rounds))
            click.echo(rows[-1])
    note = "µs of CPU a pair; median of rounds"
    record("speed-profile", list(rows[0]), rows, "python benchmarks/speed.py profile", note)


def _profile(X: Pack, kind: str, fraction: float, gamma: float, rounds: int) -> dict[str, object]:
    from likewise.sets.transport import panels as _panels

    pairs = len(X) * (len(X) + 1) / 2
    found = transport.solve_all(X, None, gamma)

    def timed(**options: float) -> float:
        times = []
        for _ in range(rounds):
            begin = time.process_time()
            _panels.solve_all(X, X, True, gamma, options.get("tol", 1e-6), 2000, False, 1, found)
            times.append((time.process_time() - begin) / pairs * 1e6)
        return statistics.median(times)

    whole, no_steps = timed(), timed(tol=1e9)
    products = roofline(X)
    for _ in range(rounds):
        products.round(None)
    steps = float(transport.solve_all(X, None, gamma).iterations[np.triu_indices(len(X))].mean())
    return {
        "world": kind,
        "γ / median": fraction,
        "all": round(whole, 2),
        "inner products + exp": round(1e6 / products.rate, 2),
        "to the first check": round(no_steps, 2),
        "steps after it": round(whole - no_steps, 2),
        "steps, mean": round(steps, 1),
    }


@main.command()
def memory() -> None:
    """Peak memory of an N × N matrix against its own size."""
    rows = []
    for N in (1000, 2000, 4000):
        code = (
            "import resource, speed; from likewise.sets import transport as t; X = speed.world('cloud', 64);"
            "t.solve_all(X, None, 10.0); a = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
            f"X = speed.world('cloud', {N}); t.solve_all(X, None, 10.0);"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - a)"
        )
        here = os.path.dirname(os.path.abspath(__file__))
        done = subprocess.run([sys.executable, "-c", code], cwd=here, capture_output=True, text=True, check=True)
        grown = int(done.stdout) / 1024
        rows.append({"N": N, "output MB": round(N * N * 16 / 2**20), "growth MB": round(grown)})
        click.echo(rows[-1])
    note = "output = value, residual and iterations, 16 bytes a pair; growth = peak resident size over a warm process"
    record("speed-memory", list(rows[0]), rows, "python benchmarks/speed.py memory", note)


if __name__ == "__main__":
    from speed_aligner import aligner
    from speed_diva import diva
    from speed_embed import embed
    from speed_images import images
    from speed_raft import raft
    from speed_search import search
    from speed_spectra import spectra

    for added in (spectra, images, diva, embed, raft, aligner, search):
        main.add_command(added)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
