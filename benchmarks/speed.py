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

The workload of the first: N = 1000 sets of 5–20 points in 100 dimensions, γ = 0.05 and 0.01 × the median ground cost,
marginal error 1e-6, from points to distances. Peers get their best: no padding (problems of one size are batched
together), compiled before the clock starts, whichever of their methods is fastest and right. Each figure is the median
of the rounds; rounds of all contestants alternate, because the machine is noisy.
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


def world(kind: str, N: int = 1000, d: int = 100, seed: int = 0) -> Pack:
    """Sets of 5–20 weighted points: "cloud", all from one Gaussian; "clustered", a centre a set, spread 1 around it."""
    r = np.random.default_rng(seed)
    sizes = r.integers(5, 21, N)
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
    """The right values of the first pairs of each batch, to 1e-12."""
    rows = []
    for batch in sample:
        C = costs(batch)
        found = [transport.sinkhorn(C[k], batch.a[k], batch.b[k], gamma, tol=1e-13) for k in range(count)]
        rows.append([float(batch.a[k] @ f + batch.b[k] @ g) for k, (f, g, *_) in enumerate(found)])
    return rows


class Contestant:
    """Something that computes the sample: `run` returns (pairs solved, first values of each batch or None)."""

    def __init__(self, name: str, run: Callable[[], tuple[int, list[list[float]] | None]]) -> None:
        self.name, self.run = name, run
        self.rates: list[float] = []
        self.error: float | None = None

    def round(self, right: list[list[float]] | None) -> None:
        start = time.process_time()
        pairs, values = self.run()
        self.rates.append(pairs / (time.process_time() - start))
        if values is not None and right is not None:
            got, want = np.array([v[:4] for v in values]), np.array(right)
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


def ours_on(sample: list[Batch], gamma: float) -> float:
    """Our largest relative error on the peers' own sample."""
    worst = 0.0
    for batch, right in zip(sample, truth(sample, gamma), strict=True):
        X, Y = (
            Pack(x[:4].reshape(-1, x.shape[2]), w[:4].ravel(), np.arange(5) * x.shape[1])
            for x, w in ((batch.P, batch.a), (batch.Q, batch.b))
        )
        found = transport.solve_all(X, Y, gamma).value.diagonal()
        worst = max(worst, float(np.abs(found / right - 1).max()))
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
                F = ot.sinkhorn(a, b, C, gamma, method=method, stopThr=1e-6, numItermax=100_000)
                row.append(kl_value(C, F, a, b, gamma))
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
    rows, columns = _Rows.of(X, centre), _Columns.of(X, centre)
    exponentials = _exponentials()
    exponentials(np.zeros(64))

    def run() -> tuple[int, None]:
        with one_blas_thread():
            for r0, r1, q0, q1 in _tiles(rows, columns, True):
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
@click.option("--rounds", default=5, help="Alternating rounds; the median counts.")
@click.option("--shapes", default=8, help="Sizes (m, n) in the peers' sample.")
@click.option("--each", default=256, help="Pairs of each size for batched peers.")
def transport_(rounds: int, shapes: int, each: int) -> None:
    """Pairs per CPU-second against every peer."""
    warnings.simplefilter("ignore")
    rows = []
    for kind in WORLDS:
        X = world(kind)
        for fraction in (0.05, 0.01):
            gamma = transport.auto_gamma(X, fraction=fraction)
            rows += _race(X, kind, fraction, gamma, batches(X, shapes, each), rounds)
    record(
        "speed-transport",
        ["world", "γ / median", "method", "pairs / CPU-s", "× POT loop", "largest relative error"],
        rows,
        f"python benchmarks/speed.py transport --rounds {rounds} --shapes {shapes} --each {each}",
        "N = 1000 sets of 5–20 points, d = 100, error 1e-6, one thread, CPU time, median of alternating rounds",
    )


def _race(
    X: Pack, kind: str, fraction: float, gamma: float, sample: list[Batch], rounds: int
) -> list[dict[str, object]]:
    right = truth(sample, gamma)
    few = max(8, 40 if fraction > 0.02 else 12)
    field = [
        ours(X, gamma),
        pot_loop(sample, gamma, "sinkhorn", few),
        pot_loop(sample, gamma, "sinkhorn_log", few),
        pot_batch(sample, gamma, "sinkhorn"),
        pot_batch(sample, gamma, "log_sinkhorn"),
        pot_exact(sample, few),
        ott(sample, gamma, True),
        ott(sample, gamma, False),
        roofline(X),
    ]
    transport.solve_all(X, None, gamma)
    for _ in range(rounds):
        for contestant in field:
            contestant.round(right)
    field[0].error = ours_on(sample, gamma)
    loops = [c for c in field if c.name.startswith("POT loop") and (c.error or 0) < 1e-3]
    base = max(c.rate for c in loops)
    rows = []
    for c in field:
        row = {
            "world": kind,
            "γ / median": fraction,
            "method": c.name,
            "pairs / CPU-s": round(c.rate),
            "× POT loop": round(c.rate / base, 2),
            "largest relative error": "" if c.error is None else f"{c.error:.0e}",
        }
        click.echo("  ".join(f"{v}" for v in row.values()))
        rows.append(row)
    return rows


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
            _panels.solve_all(X, X, True, gamma, options.get("tol", 1e-6), False, transport.LARGE, 1, found)
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
