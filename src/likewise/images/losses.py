"""DiVA's losses: one head a task on a shared feature, three kinds of triplets, noise contrast, and decorrelation.

Milbich, Roth, Bharadhwaj, Sinha, Bengio, Ommer, Cohen, "DiVA: Diverse Visual Feature Aggregation for Deep Metric
Learning" (ECCV 2020). A head gives unit rows φ; a task is a loss on one head's rows. Where the text is silent or wrong,
docs/errata.md says what is done here and why.

Everything random is drawn on the CPU from a generator that is handed in, so that equal seeds give equal triplets on
every device and in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from likewise.errors import InputError
from likewise.images import config as settings
from likewise.images.config import Config

LOWER, UPPER = 0.5, 1.4
"""Distances below 0.5 count as 0.5 (their weights would be extreme); beyond 1.4, about orthogonal, none is drawn."""

TINY = torch.finfo(torch.float32).tiny

# ------------------------------------------------------------------------------------------------------------ triplets


class Triplets(NamedTuple):
    """Rows of a batch by index: anchors, those to be near, those to be far."""

    anchor: Int[Tensor, " t"]
    positive: Int[Tensor, " t"]
    negative: Int[Tensor, " t"]


def distances(x: Float[Tensor, "n d"], y: Float[Tensor, "m d"] | None = None) -> Float[Tensor, "n m"]:
    """‖x_i − y_j‖ of unit rows, √(2 − 2 ⟨x, y⟩), with a gradient that is finite where rows are equal."""
    similarity = x @ (x if y is None else y).T
    return (2.0 - 2.0 * similarity).clamp(min=1e-8).sqrt()


def log_density(d: Tensor, dim: int) -> Tensor:
    """log q(d) = (D − 2) log d + (D − 3)/2 log(1 − d²/4) but for a constant: two random unit rows in D dimensions."""
    if dim < 2:
        raise InputError(f"dim: unit rows need at least 2 dimensions, got {dim}")
    return (dim - 2.0) * d.log() + 0.5 * (dim - 3.0) * (1.0 - 0.25 * d * d).clamp(min=1e-8).log()


def distance_weights(d: Float[Tensor, "n m"], allowed: Bool[Tensor, "n m"], dim: int) -> Float[Tensor, "n m"]:
    """q(max(d, 0.5))⁻¹ where allowed and d < 1.4, each row normalised to sum 1.

    A row with nothing below 1.4 falls back on all that is allowed, evenly; one with nothing allowed is 0.
    """
    near = allowed & (d < UPPER)
    logits = -log_density(d.detach().clamp(min=LOWER), dim)
    weights = torch.softmax(logits.masked_fill(~near, -torch.inf), dim=1)
    even = allowed / allowed.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.where(near.any(dim=1, keepdim=True), weights.nan_to_num(0.0), even.to(d.dtype))


def draw(weights: Float[Tensor, "n m"], generator: torch.Generator) -> Int[Tensor, " n"]:
    """One column a row with the row's weights; −1 for a row of zeros."""
    w = weights.detach().to(device="cpu", dtype=torch.float64)
    total = w.cumsum(dim=1)
    u = torch.rand(len(w), 1, generator=generator, dtype=torch.float64) * total[:, -1:]
    column = torch.searchsorted(total, u, right=True).clamp(max=w.shape[1] - 1).squeeze(1)
    return torch.where(total[:, -1] > 0, column, -1).to(weights.device)


def mine_discriminative(
    d: Float[Tensor, "n n"], y: Int[Tensor, " n"], dim: int, generator: torch.Generator
) -> Triplets:
    """y_a = y_p ≠ y_n: every ordered pair of one class, its negative drawn by distance [DiVA Eq. 2]."""
    same = y[:, None] == y[None, :]
    a, p = torch.nonzero(same & ~_eye(same), as_tuple=True)
    return _complete(a, p, draw(distance_weights(d, ~same, dim)[a], generator))


def mine_shared(d: Float[Tensor, "n n"], y: Int[Tensor, " n"], dim: int, generator: torch.Generator) -> Triplets:
    """y_a, y_p, y_n mutually different, both members drawn by distance [DiVA Eq. 3]; one triplet an anchor."""
    other = y[:, None] != y[None, :]
    a = torch.arange(len(y), device=y.device)
    p = draw(distance_weights(d, other, dim), generator)
    third = other & (y[None, :] != y[p.clamp(min=0)][:, None])
    return _complete(a, p, draw(distance_weights(d, third, dim), generator))


def mine_permuted(d: Float[Tensor, "n n"], y: Int[Tensor, " n"], dim: int, generator: torch.Generator) -> Triplets:
    """`mine_discriminative` on permuted labels: what the released code of DiVA takes for Eq. 3."""
    order = torch.randperm(len(y), generator=generator).to(y.device)
    return mine_discriminative(d, y[order], dim, generator)


def mine_intra(y: Int[Tensor, " n"], generator: torch.Generator) -> Triplets:
    """Three distinct rows of one class, two drawn evenly for each anchor [DiVA Eq. 4]."""
    same = y[:, None] == y[None, :]
    weights = (same & ~_eye(same)).to(torch.float64)
    p = draw(weights, generator)
    weights.scatter_(1, p.clamp(min=0)[:, None], 0.0)
    return _complete(torch.arange(len(y), device=y.device), p, draw(weights, generator))


def margin(d_ap: Tensor, d_an: Tensor, beta: Tensor, gamma: float) -> Tensor:
    """Σ [γ + d_ap − β]₊ + [γ − d_an + β]₊ over the number of its positive terms [DiVA Eq. 1]; 0 where there is none.

    The gradient is that of the sum over a fixed count.
    """
    terms = torch.cat([torch.relu(gamma + d_ap - beta), torch.relu(gamma - d_an + beta)])
    return terms.sum() / (terms > 0).sum().clamp(min=1)


def _eye(like: Tensor) -> Tensor:
    return torch.eye(len(like), dtype=torch.bool, device=like.device)


def _complete(a: Tensor, p: Tensor, n: Tensor) -> Triplets:
    """Those that have both members."""
    complete = (p >= 0) & (n >= 0)
    return Triplets(a[complete], p[complete], n[complete])


# --------------------------------------------------------------------------------------------------------------- tasks


@dataclass(frozen=True, eq=False)
class Batch:
    """What tasks see of one step, of all processes together: b images, h heads of D dimensions.

    z (b, h, D) are the rows of the first view, `moved` those of the second view under the momentum network (or None);
    y (b,) classes, ids (b,) the images' numbers in the data; step and seed decide every draw.
    """

    z: Float[Tensor, "b h D"]
    y: Int[Tensor, " b"]
    ids: Int[Tensor, " b"]
    moved: Float[Tensor, "b h D"] | None = None
    step: int = 0
    seed: int = 0

    def generator(self, stream: int) -> torch.Generator:
        """A source of draws of its own for each seed, step and stream."""
        made = torch.Generator()
        made.manual_seed((self.seed * 1_000_003 + self.step) * 1_009 + stream)
        return made


class Task(nn.Module):
    """A loss on the rows of head number `head`; this one, "none", has no loss and is never computed."""

    momentum = False
    """Whether it needs the second view under the momentum network."""

    def __init__(self, head: int) -> None:
        super().__init__()
        self.head = head

    def forward(self, batch: Batch) -> Tensor:
        """The loss of a batch."""
        raise NotImplementedError

    def after(self, batch: Batch) -> None:
        """What happens once the step is taken."""


class TripletMargin(Task):
    """Margin loss with a learnable boundary β for each class on triplets of one kind [DiVA Eq. 1–4].

    The text has β fixed; the released code learns it, and so do we (`beta_lr=0` fixes it).
    """

    def __init__(
        self, head: int, kind: str, classes: int, *, beta: float = 1.2, gamma: float = 0.2, shared: str = "full"
    ) -> None:
        super().__init__(head)
        self.kind, self.gamma, self.shared = kind, gamma, shared
        self.beta = nn.Parameter(torch.full((classes,), float(beta)))

    def forward(self, batch: Batch) -> Tensor:
        """Σ [γ + d_ap − β_{y_a}]₊ + [γ − d_an + β_{y_a}]₊ over its positive terms."""
        z = batch.z[:, self.head]
        d = distances(z)
        a, p, n = self.mine(d.detach(), batch.y, z.shape[1], batch.generator(self.head))
        return margin(d[a, p], d[a, n], self.beta[batch.y[a]], self.gamma)

    def mine(self, d: Tensor, y: Tensor, dim: int, generator: torch.Generator) -> Triplets:
        """The triplets of this kind in a batch with distances d."""
        if self.kind == "intra":
            return mine_intra(y, generator)
        if self.kind == "shared":
            return (mine_shared if self.shared == "full" else mine_permuted)(d, y, dim, generator)
        return mine_discriminative(d, y, dim, generator)


class Queue(nn.Module):
    """The last rows of the momentum network and the images they are of; all processes hold the same."""

    rows: Tensor
    ids: Tensor
    at: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(size, dim))
        self.register_buffer("ids", torch.full((size,), -1, dtype=torch.int64))
        self.register_buffer("at", torch.zeros((), dtype=torch.int64))

    def push(self, rows: Float[Tensor, "b D"], ids: Int[Tensor, " b"]) -> None:
        """Put rows in the place of the oldest."""
        rows, ids = rows[-len(self.rows) :], ids[-len(self.rows) :]
        places = (int(self.at) + torch.arange(len(rows), device=self.rows.device)) % len(self.rows)
        self.rows[places], self.ids[places] = rows.detach().to(self.rows.dtype), ids
        self.at.fill_((int(self.at) + len(rows)) % len(self.rows))


class Contrast(Task):
    """Noise contrast against the rows of a queue: DaNCE with weights by distance, MoCo with even ones [DiVA Eq. 5–6].

    L = −log e^{⟨a,p⟩/τ} / (e^{⟨a,p⟩/τ} + λ Σ_n w_n e^{⟨a,n⟩/τ}), w by `distance_weights`, Σ w = 1. Eq. 6 sums over I_a
    and leaves the positive out: a slip. It never gives λ; λ = 1 by default, λ = "count", the number of negatives,
    makes even weights the usual noise contrast. An image is never its own negative.
    """

    momentum = True

    def __init__(
        self, head: int, dim: int, size: int, *, tau: float = 0.1, weighted: bool = True, scale: str = "one"
    ) -> None:
        super().__init__(head)
        self.weighted, self.scale = weighted, scale
        self.log_tau = nn.Parameter(torch.tensor(float(tau)).log())
        self.queue = Queue(size, dim)

    def forward(self, batch: Batch) -> Tensor:
        """The mean loss of the batch's rows; 0 while the queue is empty."""
        z, positive = batch.z[:, self.head], self.positive(batch)
        allowed = (self.queue.ids >= 0)[None, :] & (self.queue.ids[None, :] != batch.ids[:, None])
        weights = self.weights(z.detach(), allowed)
        similarity = z @ self.queue.rows.T
        near = (z * positive).sum(dim=1) / self.tau
        # a weight of 0 counts as the smallest number there is: log 0 has no gradient
        far = torch.logsumexp(similarity / self.tau + weights.clamp(min=TINY).log(), dim=1)
        return (torch.logaddexp(near, far) - near).mean()

    @property
    def tau(self) -> Tensor:
        """The temperature."""
        return self.log_tau.exp()

    def positive(self, batch: Batch) -> Tensor:
        """The same images' rows in the other view, under the momentum network."""
        if batch.moved is None:
            raise InputError("moved: this task needs a second view under the momentum network")
        return batch.moved[:, self.head].detach()

    def weights(self, z: Float[Tensor, "b D"], allowed: Tensor) -> Float[Tensor, "b q"]:
        """λ w: distance weights or even ones, summing to λ in each row."""
        count = allowed.sum(dim=1, keepdim=True)
        if self.weighted:
            w = distance_weights(distances(z, self.queue.rows), allowed, z.shape[1])
        else:
            w = allowed / count.clamp(min=1)
        return w * count if self.scale == "count" else w

    def after(self, batch: Batch) -> None:
        """Queue the momentum rows."""
        self.queue.push(self.positive(batch), batch.ids)


# ------------------------------------------------------------------------------------------------------- decorrelation


def reverse_gradient(x: Tensor) -> Tensor:
    """R: the same forwards, the gradient negated backwards [DiVA Eq. 8]."""
    return 2 * x.detach() - x  # to the bit: twice a number is exact, and so is what is left of it


class Decorrelation(nn.Module):
    """How well one head is predicted from another: D² c, c = mean (R(φ_a) ⊙ ψ(R(φ_b)))² [DiVA Eq. 7–8].

    ψ, a two-layer network with unit output, makes c large (the loss has −ρ D² c in it); through the reversal R heads
    make it small. In units of D² c, about 1 for unrelated unit rows, the paper's weights 1500, 300, 100 for c are
    0.092, 0.018, 0.006 at D = 128. The text maps a to b, the formula applies ψ to b: this is the formula.
    """

    def __init__(self, dim: int, hidden: int | None = None) -> None:
        super().__init__()
        wide = hidden or dim
        self.psi = nn.Sequential(nn.Linear(dim, wide), nn.ReLU(), nn.Linear(wide, dim))

    def forward(self, a: Float[Tensor, "b D"], b: Float[Tensor, "b D"]) -> Tensor:
        """D² times the mean over batch and dimensions."""
        predicted = nn.functional.normalize(self.psi(reverse_gradient(b)), dim=1)
        return (reverse_gradient(a) * predicted).square().mean() * a.shape[1] ** 2


def decorrelated_pairs(tasks: Sequence[str], which: str) -> list[tuple[int, int]]:
    """The heads that are decorrelated: "disc" pairs the first with every other, "all" every two."""
    if which == "all":
        return list(combinations(range(len(tasks)), 2))
    return [(0, other) for other in range(1, len(tasks))]


# ----------------------------------------------------------------------------------------------------------- the whole


class Objective(nn.Module):
    """Σ_t α_t L_t − Σ_{(a,b)} ρ_{ab} D² c_{ab}: every task on its head, and decorrelation between heads [DiVA Eq. 9].

    A task of weight 0 is not computed, nor a decorrelation of weight 0.
    """

    def __init__(
        self,
        tasks: Iterable[Task],
        weights: Sequence[float],
        dim: int,
        decorrelated: Mapping[tuple[int, int], float] | None = None,
    ) -> None:
        super().__init__()
        self.tasks = nn.ModuleList(tasks)
        self.weights = tuple(float(w) for w in weights)
        if len(self.tasks) != len(self.weights):
            raise InputError(f"weights: expected {len(self.tasks)}, one a task, got {len(self.weights)}")
        self.rho = {pair: float(rho) for pair, rho in (decorrelated or {}).items() if rho}
        self.decorrelations = nn.ModuleDict({f"{a}-{b}": Decorrelation(dim) for a, b in self.rho})

    @property
    def momentum(self) -> bool:
        """Whether any task needs the momentum network."""
        return any(task.momentum for task in self.active())

    def active(self) -> list[Task]:
        """The tasks of weight > 0."""
        return [task for task, weight in zip(self.tasks, self.weights, strict=True) if weight]  # type: ignore[misc]

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The joint loss, and each of its parts by name."""
        parts, total = {}, batch.z.sum() * 0.0
        for task, weight in zip(self.tasks, self.weights, strict=True):
            if weight:
                part = task(batch)
                total = total + weight * part
                parts[f"loss_{task.head}"] = part.detach()
        for (a, b), rho in self.rho.items():
            part = self.decorrelations[f"{a}-{b}"](batch.z[:, a], batch.z[:, b])
            total = total - rho * part
            parts[f"decorrelation_{a}_{b}"] = part.detach()
        return total, parts

    @torch.no_grad()
    def after(self, batch: Batch) -> None:
        """What tasks do once the step is taken: queue, remember, cluster."""
        for task in self.active():
            task.after(batch)


class Setting(NamedTuple):
    """What a task is made for: head number, its dimension, the recipe, and how much data there is."""

    head: int
    dim: int
    config: Config
    images: int
    classes: int
    steps_per_epoch: int


def _triplets(kind: str, s: Setting) -> Task:
    return TripletMargin(s.head, kind, s.classes, beta=s.config.beta, gamma=s.config.gamma, shared=s.config.shared)


_MAKERS: dict[str, Callable[[Setting], Task]] = {
    **{kind: partial(_triplets, kind) for kind in ("disc", "shared", "intra")},
    "dance": lambda s: Contrast(s.head, s.dim, s.config.queue, tau=s.config.tau, scale=s.config.scale),
    "none": lambda s: Task(s.head),
}


def register_task(name: str, make: Callable[[Setting], Task]) -> None:
    """Let `Config.tasks` name a task of one's own; `make` builds it for a head."""
    _MAKERS[name] = make
    if name not in settings.TASKS:
        settings.TASKS.append(name)


def make_objective(config: Config, *, images: int, classes: int, steps_per_epoch: int) -> Objective:
    """The tasks of a recipe on data of so many images and classes, with the weights it gives them [DiVA Eq. 9]."""
    dim = config.dim // len(config.heads)
    tasks = [
        _MAKERS[name](Setting(head, dim, config, images, classes, steps_per_epoch))
        for head, name in enumerate(config.heads)
    ]
    rho = dict.fromkeys(decorrelated_pairs(config.heads, config.decorrelate), config.rho) if config.rho else {}
    return Objective(tasks, [config.alpha(name) for name in config.heads], dim, rho)
