"""What DiVA's tasks cost: a step of all four against a margin-only step of the same batch, backbone and dimension.

    python benchmarks/speed.py diva

EfficientNet-Lite0 at 128 px, all of it trained, 20 × 4 pictures, one thread, CPU time; steps of the two take turns, and
the medians are told. The momentum network's forward pass, which the sample-specific task adds, is told by itself.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import click
import numpy as np
import torch

from likewise.images.config import Config
from likewise.images.data import Dataset
from likewise.images.training import Training
from likewise.train.distributed import ProcessGroup
from likewise.train.loop import Loop
from record import record

FROZEN = {"everything trained": 0, "stem and blocks 0–10 frozen and kept": 12}


def made(pictures: int = 160, each: int = 8) -> Dataset:
    """Noise, 144 px: what a step costs does not depend on what is seen."""
    rng = np.random.default_rng(0)
    items = tuple(rng.integers(0, 255, (144, 160, 3), dtype=np.uint8) for _ in range(pictures))
    return Dataset(items, np.repeat(np.arange(pictures // each), each), name="noise")


class Timed:
    """A training whose momentum passes are timed apart."""

    def __init__(self, **changes: Any) -> None:
        config = Config(start="random", validation=0.0, views=2, **changes)
        self.problem = Training(made(), None, {}, config, processes=ProcessGroup())
        self.loop, self.moved = Loop(self.problem, self.problem.settings, processes=ProcessGroup()), 0.0
        if self.problem.follower is not None:
            self.problem.follower.register_forward_pre_hook(lambda *_: self._mark(-1))
            self.problem.follower.register_forward_hook(lambda *_: self._mark(+1))

    def _mark(self, sign: int) -> None:
        self.moved += sign * time.process_time()

    def step(self, number: int) -> tuple[float, float]:
        """CPU seconds of a step without the momentum pass, and of that pass."""
        self.moved, began = 0.0, time.process_time()
        self.loop._step(number)
        whole = time.process_time() - began
        return whole - self.moved, self.moved


@click.command()
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(3), help="steps of each that are timed")
def diva(rounds: int) -> None:
    """A DiVA step against a margin-only step."""
    torch.set_num_threads(1)
    rows = []
    for what, frozen in FROZEN.items():
        pair = {
            "margin": Timed(tasks="disc", frozen=frozen),
            "DiVA": Timed(tasks="disc,shared,intra,dance", rho=0.02, frozen=frozen),
        }
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in pair}
        for number in range(rounds + 2):
            for name, timed in pair.items():
                times[name].append(timed.step(number))
        kept = {name: values[2:] for name, values in times.items()}  # the first two warm up
        margin, ours = (statistics.median(t for t, _ in kept[name]) for name in ("margin", "DiVA"))
        moved = statistics.median(m for _, m in kept["DiVA"])
        rows.append({
            "network": what,
            "margin step, ms": 1e3 * margin,
            "DiVA step, ms": 1e3 * ours,
            "momentum pass, ms": 1e3 * moved,
            "ratio": ours / margin,
            "with the momentum pass": (ours + moved) / margin,
        })  # fmt: skip
        click.echo("  ".join(f"{k} {v if isinstance(v, str) else round(v, 3)}" for k, v in rows[-1].items()))
    record("speed-diva", list(rows[0]), rows, "python benchmarks/speed.py diva", "one thread, CPU time, in one run")
