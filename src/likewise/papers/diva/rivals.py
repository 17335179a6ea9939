"""What DiVA is compared with, and how its own runs are set.

The sample-specific tasks beside DaNCE [DiVA Fig. 1, 4]: MoCo, instance discrimination and DeepCluster, not RotNet. Once
this module is imported, `Config.tasks` may name them: moco, instance, cluster.

The settings by data set and backbone [DiVA Tab. 1] are those of the authors' sample runs, for a GPU and hundreds of
epochs. Two things differ on purpose: four images a class, as three distinct ones make a triplet within a class (the
released runs take two), and ρ in units of D² c. The backbone's weights are the user's to give.
"""

from __future__ import annotations

import difflib
from typing import Any

import torch
from jaxtyping import Float, Int
from sklearn.cluster import KMeans
from torch import Tensor, nn

from likewise.errors import ConfigError
from likewise.images.config import Config
from likewise.images.losses import Batch, Contrast, Queue, Task, register_task

SHARPNESS = 8.0
"""Unit rows give small logits; this scales them to where a cross entropy can become small."""
HEAD = 128
"""Dimensions of a head in the paper: four of them make 512."""


class Bank(Queue):
    """A row for each image, the last one seen."""

    def push(self, rows: Float[Tensor, "b D"], ids: Int[Tensor, " b"]) -> None:
        """Put rows in their images' places."""
        self.rows[ids], self.ids[ids] = rows.detach().to(self.rows.dtype), ids


class Instance(Contrast):
    """Instance discrimination: the negatives are the last rows of all other images, the positive its own last row."""

    momentum = False

    def __init__(self, head: int, dim: int, images: int, *, tau: float = 0.1) -> None:
        super().__init__(head, dim, images, tau=tau, weighted=False, scale="count")
        self.queue = Bank(images, dim)

    def positive(self, batch: Batch) -> Tensor:
        """The image's own last row, or its present one where it was never seen."""
        seen = (self.queue.ids[batch.ids] >= 0)[:, None]
        return torch.where(seen, self.queue.rows[batch.ids], batch.z[:, self.head].detach())

    def after(self, batch: Batch) -> None:
        """Keep the rows of this step."""
        self.queue.push(batch.z[:, self.head], batch.ids)


class Cluster(Task):
    """DeepCluster: k-means of the rows seen last, repeated now and then, whose clusters are predicted from a row."""

    assigned: Tensor

    def __init__(self, head: int, dim: int, images: int, clusters: int, *, every: int) -> None:
        super().__init__(head)
        self.clusters, self.every = clusters, every
        self.bank = Bank(images, dim)
        self.classifier = nn.Linear(dim, clusters)
        self.register_buffer("assigned", torch.full((images,), -1, dtype=torch.int64))

    def forward(self, batch: Batch) -> Tensor:
        """Cross entropy of the clusters of those images that have one; 0 before the first clustering."""
        known = self.assigned[batch.ids] >= 0
        logits = self.classifier(batch.z[:, self.head][known]) * SHARPNESS
        loss = nn.functional.cross_entropy(logits, self.assigned[batch.ids[known]], reduction="sum")
        return loss / known.sum().clamp(min=1)

    def after(self, batch: Batch) -> None:
        """Keep the rows; every so many steps, cluster what was seen and reset the classifier."""
        self.bank.push(batch.z[:, self.head], batch.ids)
        if (batch.step + 1) % self.every:
            return
        seen = torch.nonzero(self.bank.ids >= 0).squeeze(1)
        rows = self.bank.rows[seen].cpu().numpy()
        assigned = KMeans(min(self.clusters, len(rows)), n_init=1, random_state=batch.seed).fit_predict(rows)
        self.assigned[seen] = torch.from_numpy(assigned).to(self.assigned)
        nn.init.zeros_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)


register_task(
    "moco", lambda s: Contrast(s.head, s.dim, s.config.queue, tau=s.config.tau, weighted=False, scale="count")
)
register_task("instance", lambda s: Instance(s.head, s.dim, s.images, tau=s.config.tau))
register_task("cluster", lambda s: Cluster(s.head, s.dim, s.images, s.classes, every=s.steps_per_epoch))


# ------------------------------------------------------------------------------------------------------------- presets


def _run(backbone: str, alpha: float, rho: float, drop: float, epoch: int, epochs: int, batches: int) -> dict[str, Any]:
    """A row of the table; `batches` is the length of the queue in batches of 112."""
    return {
        "backbone": backbone,
        "size": 224,
        "shortest": 256,
        "dim": 4 * HEAD,
        "tasks": "disc,shared,intra,dance",
        "alpha_shared": alpha,
        "alpha_intra": alpha,
        "alpha_sample": alpha,
        "shared": "random",
        "rho": rho / HEAD**2,
        "tau": 0.01,
        "queue": 112 * batches,
        "momentum": 0.9,
        "norm": "frozen" if backbone == "resnet50" else "trained",
        "start": "random",
        "classes": 28,
        "per_class": 4,
        "epochs": float(epochs),
        "schedule": "drop",
        "drop_at": epoch / epochs,
        "drop": drop,
        "lr": 1e-5,
        "head_lr": 1e-5,
        "psi_lr": 1e-5,
        "weight_decay": 4e-4,
        "smallest": 0.16,
        "mirror": False,
    }


PRESETS: dict[str, dict[str, Any]] = {
    "cub200-resnet50": _run("resnet50", 0.3, 1500, 0.2, 55, 350, 30),
    "cub200-inception-bn": _run("inception-bn", 0.1, 300, 0.3, 70, 350, 30),
    "cars196-resnet50": _run("resnet50", 0.15, 100, 0.2, 70, 350, 30),
    "cars196-inception-bn": _run("inception-bn", 0.15, 100, 0.3, 160, 350, 30),
    "sop-resnet50": _run("resnet50", 0.2, 150, 0.3, 70, 150, 70),
    "sop-inception-bn": _run("inception-bn", 0.1, 150, 0.3, 80, 150, 70),
}


def preset(name: str, **changes: Any) -> Config:
    """The configuration of one of the paper's runs, with changes."""
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"preset: expected one of {', '.join(PRESETS)}, got {name!r}{hint}")
    return Config(**{**PRESETS[name], **changes})
