"""RAFT-small against a straightforward eager implementation of it: same weights, same pictures, same output.

    python benchmarks/speed.py raft             CPU time of one thread, 480 × 640, 12 iterations; parts; memory
    python benchmarks/speed.py raft --rounds 0  peak memory alone

The straightforward one is tests/pixels/raft_oracle.py: plain torch, (b, c, h, w), pooled volumes of all pairs read by
`grid_sample`, gates on torch.cat of state and input. "each enlarged" makes the flow large in every iteration, as the
official code does also when only the last is wanted; "last enlarged" spares it that. Rounds of all contestants
alternate, because the machine is noisy; ratios are medians over rounds of ratios within a round.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch

from likewise.pixels.geometry import grid
from likewise.pixels.raft import RAFT, Frame
from likewise.pixels.raft.correlation import Correlation
from record import record

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from pixels import raft_oracle

ITERS = 12
Pictures = tuple[torch.Tensor, torch.Tensor]


def pictures(h: int, w: int, seed: int = 0) -> Pictures:
    """Smooth noise and the same moved by a few pixels: (3, h, w) in [0, 1]."""
    g = torch.Generator().manual_seed(seed)
    noise = torch.rand(1, 3, h // 4 + 4, w // 4 + 4, generator=g)
    whole = torch.nn.functional.interpolate(noise, (h + 16, w + 16), mode="bicubic", align_corners=False).clamp(0, 1)[0]
    return whole[:, 8 : 8 + h, 8 : 8 + w].clone(), whole[:, 5 : 5 + h, 12 : 12 + w].clone()


def weights() -> dict[str, torch.Tensor]:
    """Random weights whose flow stays within the picture."""
    state = raft_oracle.random_state("small", dtype=torch.float32)
    state["update_block.flow_head.conv2.weight"] *= 0.1
    return state


def contestants(state: dict[str, torch.Tensor], a: torch.Tensor, b: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """Each gives the last flow (h, w, 2)."""
    model = RAFT.from_official(state)
    return {
        "straightforward, each enlarged": lambda: raft_oracle.flows(state, a[None], b[None], ITERS)[-1][0],
        "straightforward, last enlarged": lambda: raft_oracle.flows(state, a[None], b[None], ITERS, every=False)[-1][0],
        "likewise": lambda: model.flow(a, b, ITERS),
        "likewise, all pairs": lambda: model.flow(a, b, ITERS, correlation="all"),
    }


def seconds(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


@click.command()
@click.option("--rounds", default=7, show_default=True, type=click.IntRange(0))
def raft(rounds: int) -> None:
    """RAFT-small against a straightforward implementation."""
    torch.set_num_threads(1)
    if rounds:
        with torch.inference_mode():
            _race(rounds)
            _parts(rounds)
    _memory()


def _race(rounds: int) -> None:
    a, b = pictures(480, 640)
    field = contestants(weights(), a, b)
    first, *_ = field
    flows = {name: work() for name, work in field.items()}
    exact = raft_oracle.flows({k: v.double() for k, v in weights().items()}, a.double()[None], b.double()[None], ITERS)
    times = [{name: seconds(work) for name, work in field.items()} for _ in range(rounds)]
    rows = []
    for name in field:
        rows.append({
            "implementation": name,
            "CPU s": statistics.median(t[name] for t in times),
            "of each enlarged": statistics.median(t[name] / t[first] for t in times),
            "of last enlarged": statistics.median(t[name] / t["straightforward, last enlarged"] for t in times),
            "largest difference, px": float((flows[name] - flows[first]).abs().max()),
            "from float64, px": float((flows[name] - exact[-1][0]).abs().max()),
        })  # fmt: skip
        click.echo("  ".join(f"{k} {v if isinstance(v, str) else round(v, 6)}" for k, v in rows[-1].items()))
    click.echo(f"largest flow {float(flows[first].abs().max()):.1f} px")
    note = f"RAFT-small, 480 × 640, {ITERS} iterations, one thread, CPU time, median of {rounds} alternating rounds"
    record("speed-raft", list(rows[0]), rows, "python benchmarks/speed.py raft", note)


def _parts(rounds: int) -> None:
    """Where our time goes."""
    a, b = pictures(480, 640)
    model, frame, size = RAFT.from_official(weights()), Frame(480, 640), RAFT("small").size
    x, y = frame.enter(a[None]), frame.enter(b[None])
    fa, fb = model.fnet(torch.cat([x, y])).chunk(2)
    h, given = torch.split(model.cnet(x), [size.hidden, size.context], dim=1)
    h, given, block = torch.tanh(h), torch.relu(given), model.update_block
    pairs, gates, flow = Correlation(fa, fb, kind="demand"), block.gates(given), 0 * fa[:, :2]
    at = grid(*fa.shape[2:], like=fa)[None] + 0.3
    planes = pairs.lookup(at)
    motion = block.encoder(planes, flow)
    work: dict[str, tuple[int, Callable[[], Any]]] = {
        "features of two pictures": (1, lambda: model.fnet(torch.cat([x, y]))),
        "context of one": (1, lambda: model.cnet(x)),
        "gates' context part": (1, lambda: block.gates(given)),
        "lookups on demand": (ITERS, lambda: pairs.lookup(at)),
        "motion encoder": (ITERS, lambda: block.encoder(planes, flow)),
        "GRU": (ITERS, lambda: gates[0](h, motion)),
        "flow head": (ITERS, lambda: block.flow_head(h)),
        "enlargement": (1, lambda: block.enlarge(flow, h)),
    }
    times = {name: n * min(seconds(one) for _ in range(rounds)) for name, (n, one) in work.items()}
    whole = sum(times.values())
    rows = [{"part": name, "CPU ms": 1e3 * t, "share": t / whole} for name, t in times.items()]
    for row in rows:
        click.echo("  ".join(f"{k} {v if isinstance(v, str) else round(v, 3)}" for k, v in row.items()))
    note = f"parts of RAFT-small by themselves, 480 × 640, {ITERS} iterations, the fastest of {rounds}"
    record("speed-raft-parts", list(rows[0]), rows, "python benchmarks/speed.py raft", note)


def peak() -> int:
    """The largest resident size of this process so far, in kB (ru_maxrss would count the parent that it came from)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


_PEAK = """
import torch, speed_raft
from likewise.pixels.raft import RAFT
torch.set_num_threads(1)
model = RAFT("small")
model.flow(*speed_raft.pictures(128, 128), 1)
before = speed_raft.peak()
model.flow(*speed_raft.pictures({h}, {w}), 2, correlation={kind!r})
print(before, speed_raft.peak())
"""


def _memory() -> None:
    """Peak memory of a flow of two iterations (more need no more), in a process of its own."""
    rows = []
    for h, w, kind in ((480, 640, "demand"), (480, 640, "all"), (1000, 1500, "demand"), (2000, 3000, "demand")):
        done = subprocess.run(
            [sys.executable, "-c", _PEAK.format(h=h, w=w, kind=kind)],
            cwd=Path(__file__).resolve().parent,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        before, after = (int(x) / 1024 for x in done.stdout.split())
        cells = (h // 8) * (w // 8)
        rows.append({
            "size": f"{h} × {w}",
            "correlation": kind,
            "growth MB": round(after - before),
            "peak MB": round(after),
            "all pairs would hold, MB": round(cells * cells * 4 * 85 / 64 / 2**20),
        })  # fmt: skip
        click.echo(rows[-1])
    note = "peak resident size of RAFT-small, and its growth over a warm process"
    record("speed-raft-memory", list(rows[0]), rows, "python benchmarks/speed.py raft", note)
