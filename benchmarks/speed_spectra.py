"""Singular values of Jacobians: every method against reverse rows, the paper's sketch and K plain forwards, in one run.

CPU time on one thread; contestants alternate. Reverse rows, the way without a method, is one backward pass for each of
the D outputs; it gets the best of several batch sizes, looped and vmapped, and is timed on a part of the rows. The line
"K forwards" is K plain passes without any derivative, at its best batch size: the floor of K forward-mode columns that
share nothing. Bias and noise are mean and standard deviation over samples of the error of v_k = Σ log σ_i against
`gram`; the spread is that of v_k itself. Errors of `gram` are against a float64 SVD of the same network in float64.
A fused network (normalisation folded, channels last) is held against its own fused lines. The cost of a pilot (exact
samples, once) is not in the figure of the method that reuses it.
"""

from __future__ import annotations

import copy
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from likewise.distributions import load
from likewise.distributions.formats.stylegan import StyleGAN2, StyleMapping
from likewise.distributions.spectra import Composite, Spectrum, pilot, spectrum
from record import record

K_FAST = 10
REVERSE_ROWS = 64
PILOTS = 32


class Transposed(nn.Module):
    """A DCGAN: transposed convolutions with batch normalisation and ReLU, tanh at the end; keys gen.*."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        super().__init__()
        *inner, last = shapes
        blocks = [nn.Sequential(nn.ConvTranspose2d(*s), nn.BatchNorm2d(s[1]), nn.ReLU()) for s in inner]
        self.gen = nn.Sequential(*blocks, nn.Sequential(nn.ConvTranspose2d(*last), nn.Tanh()))

    def forward(self, z: Tensor) -> Tensor:
        return self.gen(z[:, :, None, None])

    def fused(self) -> Transposed:
        """The same network with normalisation folded into the convolutions and channels last in memory."""
        made = copy.deepcopy(self)
        for i, block in enumerate(made.gen[:-1]):
            made.gen[i] = nn.Sequential(fuse_conv_bn_eval(block[0], block[1], transpose=True), block[2])
        return made.requires_grad_(False).to(memory_format=torch.channels_last)


def calibrated(net: nn.Module, dim: int) -> nn.Module:
    """A random network whose normalisation has seen latents, in evaluation mode."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
    net.train()
    with torch.no_grad():
        net(torch.randn(128, dim))
    return net.eval().requires_grad_(False)


@dataclass
class Subject:
    """A network to be measured on n latents; `sure` of them also in float64."""

    name: str
    net: nn.Module
    dim: int
    n: int
    sure: int
    rounds: int
    f: Callable[[Tensor], Any]
    wide: Callable[[Tensor], Any]
    z: Tensor = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.z = torch.randn(self.n, self.dim)
        with torch.no_grad():
            self.size = self.f(self.z[:1]).numel()


def subjects(data: Path, only: str) -> list[Subject]:
    """The two real generators and four random ones of real structure."""
    made = []
    for name, make in _MAKERS.items():
        if only in name:
            torch.manual_seed(0)
            made.append(make(name, data))
    return made


def _real(name: str, net: nn.Module, file: Path, dim: int) -> Subject:
    net.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    net.eval().requires_grad_(False)
    return Subject(name, net, dim, 64, 24, 2, net, copy.deepcopy(net).double())


def _digits(name: str, data: Path) -> Subject:
    net = Transposed([(64, 256, 3, 2), (256, 128, 4, 1), (128, 64, 3, 2), (64, 1, 4, 2)])
    return _real(name, net, data / "generators" / "dcgan_mnist_z64.pth", 64)


def _classes(name: str, data: Path) -> Subject:
    """The conditional generator, its class held at 3."""
    net: Any = load(data / "generators" / "cwgan_mnist_z10.pth", latent_first=True, slope=0.0).net

    def held(net: Any) -> Callable[[Tensor], Tensor]:
        return lambda z: net(z, torch.full((len(z),), 3))

    return Subject(name, net, net.dim, 64, 24, 2, held(net), held(copy.deepcopy(net).double()))


def _dcgan(dim: int, n: int) -> Callable[[str, Path], Subject]:
    def make(name: str, _: Path) -> Subject:
        doubling = [(256, 128, 4, 2, 1), (128, 64, 4, 2, 1), (64, 32, 4, 2, 1), (32, 3, 4, 2, 1)]
        net = calibrated(Transposed([(dim, 256, 4, 1), *doubling]), dim)
        return Subject(name, net, dim, n, 1, 1, net, copy.deepcopy(net).double())

    return make


def _style(dim: int, n: int) -> Callable[[str, Path], Subject]:
    def make(name: str, _: Path) -> Subject:
        net = StyleGAN2(StyleMapping(dim, dim, 8), (32, 32, 32, 16, 8)).eval().requires_grad_(False)
        wide = copy.deepcopy(net).double()
        return Subject(name, net, dim, n, 1, 1, Composite(net.style, net.synthesis), wide.preactivation)

    return make


_MAKERS: dict[str, Callable[[str, Path], Subject]] = {
    "DCGAN MNIST, z = 64 (trained)": _digits,
    "cWGAN MNIST, z = 10 (trained)": _classes,
    "DCGAN-64, z = 128 (random)": _dcgan(128, 8),
    "DCGAN-64, z = 512 (random)": _dcgan(512, 6),
    "StyleGAN2-64, z = 128 (random)": _style(128, 8),
    "StyleGAN2-64, z = 512 (random)": _style(512, 6),
}


# ── contestants ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Contestant:
    """Something that is timed; `run` gives a spectrum, or nothing for the two lines that are only a cost."""

    name: str
    run: Callable[[], Spectrum | None]
    samples: float
    seconds: list[float] = field(default_factory=list)
    found: Spectrum | None = None

    def round(self) -> None:
        start = time.process_time()
        self.found = self.run()
        self.seconds.append(time.process_time() - start)

    @property
    def cost(self) -> float:
        """CPU milliseconds a sample."""
        return 1e3 * float(np.median(self.seconds)) / self.samples


def forwards(s: Subject, f: Callable[[Tensor], Any], batch: int, label: str = "") -> Contestant:
    """K plain passes for each sample, on a part of the samples."""
    x = torch.randn(batch, s.dim)
    passes = max(1, min(s.n, 4) * s.dim // batch)

    def run() -> None:
        with torch.no_grad():
            for _ in range(passes):
                f(x)

    return Contestant(f"{label}K forwards, {batch} at a time", run, passes * batch / s.dim)


def reverse(s: Subject, f: Callable[[Tensor], Any], n: int, vmapped: bool, label: str = "") -> Contestant:
    """One backward pass for an output, on a part of the outputs, scaled to all D."""
    z = s.z[:n]
    axes = torch.eye(s.size)[:REVERSE_ROWS]

    def run() -> None:
        x = z.clone().requires_grad_()
        y = f(x).flatten(1)
        if vmapped:
            seeds = axes[:, None].expand(-1, len(z), -1)
            torch.autograd.grad(y, x, seeds, is_grads_batched=True)
            return
        for axis in axes:
            torch.autograd.grad(y, x, axis.expand_as(y), retain_graph=True)

    how = "vmapped" if vmapped else "looped"
    return Contestant(f"{label}reverse rows, {n} samples {how}", run, n * REVERSE_ROWS / s.size)


def ours(s: Subject, name: str, f: Callable[[Tensor], Any], k: int, **options: Any) -> Contestant:
    return Contestant(name, lambda: spectrum(f, s.z, k, **options), s.n)


def field_of(s: Subject) -> list[Contestant]:
    """Everything that is compared on a network."""
    k = min(K_FAST, s.dim)
    batches = (16, 64, 256) if s.size < 2000 else (8, 16, 64)
    found = [forwards(s, s.f, b) for b in batches]
    counts = sorted({min(s.n, m) for m in (4, 16, 64)})
    found += [reverse(s, s.f, n, False) for n in counts] + [reverse(s, s.f, 1, True)]
    found += [ours(s, "gram", s.f, s.dim, method="gram"), ours(s, "sketch, 128 rows", s.f, k, method="sketch")]
    if s.dim >= 64:
        found += [ours(s, "left", s.f, k, method="left"), ours(s, "subspace, q = 1", s.f, k, method="subspace")]
        basis = pilot(s.f, torch.randn(PILOTS if s.size < 2000 else 4, s.dim), k + 8)
        found.append(ours(s, "left, basis of a pilot", s.f, k, method="left", basis=basis))
    if isinstance(s.f, Composite):
        found += [ours(s, f"through, tail {t:g}", s.f, k, method="through", tail=t) for t in (1e-3, 0.1)]
    if _fusible(s):
        quick = s.net.fused()
        found += [forwards(s, quick, b, "fused ") for b in batches]
        found += [reverse(s, quick, n, False, "fused ") for n in counts] + [reverse(s, quick, 1, True, "fused ")]
        found.append(ours(s, "gram, fused", quick, s.dim, method="gram"))
        if s.dim == 64:
            found.append(ours(s, "left, basis of a pilot, fused", quick, k, method="left", basis=basis))
    return found


# ── figures ───────────────────────────────────────────────────────────────────────────────────────────────────────


def best(field: list[Contestant], start: str) -> Contestant:
    """The cheapest of the variants of a line."""
    return min((c for c in field if c.name.startswith(start)), key=lambda c: c.cost)


def measure(s: Subject) -> list[dict[str, object]]:
    field = field_of(s)
    for _ in range(s.rounds):
        for contestant in field:
            contestant.round()
    base, line = best(field, "reverse rows"), best(field, "K forwards, ")
    fused = [best(field, f"fused {what}") for what in ("reverse rows", "K forwards")] if _fusible(s) else []
    exact = next(c for c in field if c.name == "gram").found
    wide = spectrum(s.wide, s.z[: s.sure].double(), s.dim, method="gram")
    kept = [base, line, *fused, *(c for c in field if c.found is not None)]
    return [_row(s, c, *(fused if "fused" in c.name else (base, line)), exact, wide) for c in kept]


def _fusible(s: Subject) -> bool:
    return isinstance(s.net, Transposed)


def _row(
    s: Subject, c: Contestant, base: Contestant, line: Contestant, exact: Spectrum | None, wide: Spectrum
) -> dict[str, object]:
    row: dict[str, object] = {
        "network": s.name,
        "K": s.dim,
        "D": s.size,
        "method": _BATCH.sub("", c.name),
        "batch": "".join(m[1] for m in _BATCH.finditer(c.name)),
        "CPU ms / sample": round(c.cost, 2),
        "× reverse rows": round(base.cost / c.cost, 2),
        "× K forwards": round(line.cost / c.cost, 2),
        "0.45 D / K": round(0.45 * s.size / s.dim, 2),
    }
    if c.found is not None and exact is not None:
        row |= {"passes": round(c.found.cost, 1), "carried out": c.found.method}
        row |= _accuracy(s, c.found, exact, wide, c.name.startswith("gram"))
    click.echo("  ".join(f"{key} {value}" for key, value in row.items() if key not in ("K", "D")))
    return row


def _accuracy(s: Subject, found: Spectrum, exact: Spectrum, wide: Spectrum, is_exact: bool) -> dict[str, object]:
    if is_exact:
        return {f"error, k = {k}": _error(found, wide, k) for k in (10, 30, s.dim) if k <= s.dim}
    k = found.values.shape[1]
    truth = exact.log_values[:, :k].sum(1)
    error = found.log_volume - truth
    return {
        "bias (nats)": round(float(error.mean()), 4),
        "noise (nats)": float(f"{error.std():.3g}"),
        "noise / spread, %": round(100 * float(error.std() / truth.std()), 3),
    }


def _error(found: Spectrum, wide: Spectrum, k: int) -> str:
    """Median and largest |Δ v_k| in nats over the samples, where float64 finds k values."""
    count = len(wide)
    alive = (wide.rank >= k) & (found.rank[:count] >= k)
    if not alive.any():
        return f"rank < {k}"
    error = np.abs(found.log_values[:count, :k].sum(1) - wide.log_values[:, :k].sum(1))[alive]
    return f"{np.median(error):.1e}, {error.max():.1e}"


_BATCH = re.compile(r", (\d+ (?:samples looped|samples vmapped|at a time))$")
"""The batch size in the name of a contestant that has several."""
COLUMNS = [
    "network",
    "method",
    "batch",
    "CPU ms / sample",
    "passes",
    "× reverse rows",
    "× K forwards",
    "noise / spread, %",
]
COLUMNS += ["error, k = 10", "error, k = 30"]


@click.command("spectra")
@click.option("--only", default="", help="Only networks whose name holds this; nothing is recorded then.")
def spectra(only: str) -> None:
    """Singular values of Jacobians against reverse rows, the paper's sketch and K plain forwards."""
    torch.set_num_threads(1)
    folder = os.environ.get("LIKEWISE_DATA")
    if folder is None:
        raise click.UsageError("LIKEWISE_DATA is not set: the two real generators are in its folder generators/")
    rows = [row for s in subjects(Path(folder), only) for row in measure(s)]
    if only:
        return
    note = (
        "one thread, CPU time; mean of 2 rounds for trained networks (64 samples), 1 round for random ones (8 samples, "
        "6 for z = 512) of half width; v_k at k = 10; error: median and largest |Δ v_k| in nats against float64, of 24 "
        "samples for trained networks and 1 for random ones"
    )
    record("speed-spectra", COLUMNS, rows, "python benchmarks/speed.py spectra", note)
