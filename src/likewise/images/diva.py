"""DiVA's mathematics: one head a task on a shared feature, four kinds of triplets and pairs, and decorrelation.

Milbich, Roth, Bharadhwaj, Sinha, Bengio, Ommer, Cohen, "DiVA: Diverse Visual Feature Aggregation for Deep Metric
Learning" (ECCV 2020). A head gives unit rows φ; a task is a loss on one head's rows. Where the text is silent or wrong,
docs/errata.md says what is done here and why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from likewise.errors import InputError
from likewise.images import triplets
from likewise.train.loop import average_into


@dataclass(frozen=True, eq=False)
class Batch:
    """What tasks see of one step, of all processes together: b pictures, h heads of D dimensions.

    z (b, h, D) are the rows of the first view, `moved` those of the second view under the momentum network (or None);
    y (b,) classes, ids (b,) the pictures' numbers in the data; `turned` (4 t, h, D) are rows of the first t pictures
    turned by 0, 90, 180 and 270 degrees, where a task asks for them; step and seed decide every draw.
    """

    z: Float[Tensor, "b h D"]
    y: Int[Tensor, " b"]
    ids: Int[Tensor, " b"]
    moved: Float[Tensor, "b h D"] | None = None
    turned: Float[Tensor, "t h D"] | None = None
    step: int = 0
    seed: int = 0

    def generator(self, stream: int) -> torch.Generator:
        """A source of draws of its own for each seed, step and stream."""
        made = torch.Generator()
        made.manual_seed((self.seed * 1_000_003 + self.step) * 1_009 + stream)
        return made


class Task(nn.Module):
    """A loss on the rows of head number `head`."""

    momentum = False
    """Whether it needs the second view under the momentum network."""
    turned = False
    """Whether it needs turned pictures."""

    def __init__(self, head: int) -> None:
        super().__init__()
        self.head = head

    def forward(self, batch: Batch) -> Tensor:
        """The loss of a batch."""
        raise NotImplementedError

    def after(self, batch: Batch) -> None:
        """What happens once the step is taken."""


class Ranked(Task):
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
        d = triplets.distances(z)
        a, p, n = self.mine(d.detach(), batch.y, z.shape[1], batch.generator(self.head))
        return triplets.margin(d[a, p], d[a, n], self.beta[batch.y[a]], self.gamma)

    def mine(self, d: Tensor, y: Tensor, dim: int, generator: torch.Generator) -> triplets.Triplets:
        """The triplets of this kind in a batch with distances d."""
        if self.kind == "intra":
            return triplets.intra(y, generator)
        if self.kind == "shared":
            mined = triplets.shared if self.shared == "full" else triplets.permuted
            return mined(d, y, dim, generator)
        return triplets.discriminative(d, y, dim, generator)


class Queue(nn.Module):
    """The last rows of the momentum network and the pictures they are of; all processes hold the same."""

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


class Bank(Queue):
    """A row for each picture, the last one seen."""

    def push(self, rows: Float[Tensor, "b D"], ids: Int[Tensor, " b"]) -> None:
        """Put rows in their pictures' places."""
        self.rows[ids], self.ids[ids] = rows.detach().to(self.rows.dtype), ids


TINY = torch.finfo(torch.float32).tiny


class Contrast(Task):
    """Noise contrast against the rows of a queue: DaNCE with weights by distance, MoCo with even ones [DiVA Eq. 5–6].

    L = −log e^{⟨a,p⟩/τ} / (e^{⟨a,p⟩/τ} + λ Σ_n w_n e^{⟨a,n⟩/τ}), w by `core.triplets.distance_weights`, Σ w = 1. Eq. 6
    sums over I_a and leaves the positive out: a slip. It never gives λ; λ = 1 by default, λ = "count", the
    number of negatives, makes even weights the usual noise contrast. A picture is never its own negative.
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
        """The same pictures' rows in the other view, under the momentum network."""
        if batch.moved is None:
            raise InputError("moved: this task needs a second view under the momentum network")
        return batch.moved[:, self.head].detach()

    def weights(self, z: Float[Tensor, "b D"], allowed: Tensor) -> Float[Tensor, "b q"]:
        """λ w: distance weights or even ones, summing to λ in each row."""
        count = allowed.sum(dim=1, keepdim=True)
        if self.weighted:
            w = triplets.distance_weights(triplets.distances(z, self.queue.rows), allowed, z.shape[1])
        else:
            w = allowed / count.clamp(min=1)
        return w * count if self.scale == "count" else w

    def after(self, batch: Batch) -> None:
        """Queue the momentum rows."""
        self.queue.push(self.positive(batch), batch.ids)


class Instance(Contrast):
    """Instance discrimination: the negatives are the last rows of all other pictures, the positive its own last row."""

    momentum = False

    def __init__(self, head: int, dim: int, pictures: int, *, tau: float = 0.1) -> None:
        super().__init__(head, dim, pictures, tau=tau, weighted=False, scale="count")
        self.queue = Bank(pictures, dim)

    def positive(self, batch: Batch) -> Tensor:
        """The picture's own last row, or its present one where it was never seen."""
        seen = (self.queue.ids[batch.ids] >= 0)[:, None]
        return torch.where(seen, self.queue.rows[batch.ids], batch.z[:, self.head].detach())

    def after(self, batch: Batch) -> None:
        """Keep the rows of this step."""
        self.queue.push(batch.z[:, self.head], batch.ids)


class Rotation(Task):
    """RotNet: by how many quarters a picture is turned, told from its row."""

    turned = True

    def __init__(self, head: int, dim: int) -> None:
        super().__init__(head)
        self.classifier = nn.Linear(dim, 4)

    def forward(self, batch: Batch) -> Tensor:
        """Cross entropy of the four turns."""
        if batch.turned is None:
            raise InputError("turned: this task needs turned pictures")
        rows = batch.turned[:, self.head]
        turns = torch.arange(4, device=rows.device).repeat_interleave(len(rows) // 4)
        return nn.functional.cross_entropy(self.classifier(rows) * SHARPNESS, turns)


SHARPNESS = 8.0
"""Unit rows give small logits; this scales them to where a cross entropy can become small."""


class Cluster(Task):
    """DeepCluster: k-means of the rows seen last, made anew now and then, whose clusters are told from a row."""

    assigned: Tensor

    def __init__(self, head: int, dim: int, pictures: int, clusters: int, *, every: int) -> None:
        super().__init__(head)
        self.clusters, self.every = clusters, every
        self.bank = Bank(pictures, dim)
        self.classifier = nn.Linear(dim, clusters)
        self.register_buffer("assigned", torch.full((pictures,), -1, dtype=torch.int64))

    def forward(self, batch: Batch) -> Tensor:
        """Cross entropy of the clusters of those pictures that have one; 0 before the first clustering."""
        known = self.assigned[batch.ids] >= 0
        logits = self.classifier(batch.z[:, self.head][known]) * SHARPNESS
        loss = nn.functional.cross_entropy(logits, self.assigned[batch.ids[known]], reduction="sum")
        return loss / known.sum().clamp(min=1)

    def after(self, batch: Batch) -> None:
        """Keep the rows; every so many steps, cluster what was seen and forget the old classifier."""
        self.bank.push(batch.z[:, self.head], batch.ids)
        if (batch.step + 1) % self.every == 0:
            self._cluster(batch.seed)

    def _cluster(self, seed: int) -> None:
        from sklearn.cluster import KMeans

        seen = torch.nonzero(self.bank.ids >= 0).squeeze(1)
        rows = self.bank.rows[seen].cpu().numpy()
        found = KMeans(min(self.clusters, len(rows)), n_init=1, random_state=seed).fit_predict(rows)
        self.assigned[seen] = torch.from_numpy(found).to(self.assigned)
        with torch.no_grad():
            self.classifier.weight.zero_()
            self.classifier.bias.zero_()


# ---------------------------------------------------------------------------------------------------- decorrelation


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        return -gradients[0]


def reverse(x: Tensor) -> Tensor:
    """R: the same forwards, the gradient negated backwards [DiVA Eq. 8]."""
    reversed_: Tensor = _Reversed.apply(x)  # type: ignore[no-untyped-call]
    return reversed_


class Decorrelation(nn.Module):
    """How well one head is told from another: D² c, c = mean (R(φ_a) ⊙ ψ(R(φ_b)))² [DiVA Eq. 7–8].

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
        told = nn.functional.normalize(self.psi(reverse(b)), dim=1)
        return (reverse(a) * told).square().mean() * a.shape[1] ** 2


def pairs(tasks: Sequence[str], which: str) -> list[tuple[int, int]]:
    """The heads that are decorrelated: "disc" pairs the first with every other, "all" every two, "none" nothing."""
    if which == "all":
        return list(combinations(range(len(tasks)), 2))
    return [(0, other) for other in range(1, len(tasks))] if which == "disc" else []


# ------------------------------------------------------------------------------------------------------- the whole


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

    @property
    def turned(self) -> bool:
        """Whether any task needs turned pictures."""
        return any(task.turned for task in self.active())

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


def follow(momentum: nn.Module, network: nn.Module, rate: float) -> None:
    """θ′ ← rate θ′ + (1 − rate) θ for parameters and floating buffers alike; whole numbers are copied.

    The statistics of batch normalisation are buffers: a momentum network without them has weights and statistics that
    do not fit each other.
    """
    average_into(momentum.state_dict(), network, rate)
