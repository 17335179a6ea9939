"""The two kinds of network that can be trained here, seen alike: the aligner's at its cells, RAFT at every pixel.

Flows, truths and fundamental matrices of a learner are in its own unit, `stride` pixels.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from likewise.pixels import life
from likewise.pixels.config import Config
from likewise.pixels.contrast import cell_truth, contrast
from likewise.pixels.encoder import CENTRE, STRIDE
from likewise.pixels.geometry import Warp
from likewise.pixels.network import Network
from likewise.pixels.photos import Bent
from likewise.pixels.raft import RAFT
from likewise.pixels.start import Start, log_dual, similarities


class Ways(NamedTuple):
    """The flows of a batch after each iteration, there and back, and the flow that they started from."""

    there: list[Tensor]
    back: list[Tensor]
    start: Tensor | None = None


class Learner(Protocol):
    """What a training needs of a network."""

    stride: int

    @property
    def network(self) -> nn.Module:
        """What learns."""

    def groups(self, config: Config) -> list[dict[str, Any]]:
        """Its parameter groups, each with its rate."""

    def contrast(self, bent: Bent) -> Tensor | None:
        """The loss of the warm-up, or None where BiT stands for it."""

    def bent(self, bent: Bent, config: Config, *, learning: bool) -> tuple[Ways, life.Truth, Tensor | None]:
        """Flows between photos and their bent selves, what they should be, and the contrast where `learning`."""

    def views(self, a: Tensor, b: Tensor, iters: int) -> Ways:
        """Flows between two views of a scene."""

    def epipolar(self, F: Tensor) -> Tensor:
        """A fundamental matrix in this learner's unit."""


class CellLearner:
    """The aligner's network: contrast teaches its encoder, flow its recurrence."""

    stride = STRIDE

    def __init__(self, network: Network) -> None:
        self.network = network.requires_grad_(True)

    def groups(self, config: Config) -> list[dict[str, Any]]:
        """Encoder, projection, temperature, recurrence."""
        c, n = config, self.network
        rest = [p for name, p in n.encoder.named_parameters() if not name.startswith("project")]
        return [
            {"params": rest, "lr": c.lr, "weight_decay": c.weight_decay},
            {"params": list(n.encoder.project.parameters()), "lr": c.head_lr, "weight_decay": c.weight_decay},
            {"params": [n.log_tau], "lr": c.head_lr},
            {"params": list(n.refine.parameters()), "lr": c.refine_lr, "weight_decay": c.weight_decay},
        ]

    def contrast(self, bent: Bent) -> Tensor:
        """−log P of the right cells, both ways."""
        fa, fb = self.network.features(bent.b, bent.bent)
        return self._contrast(fa, fb, self._truth(bent.warp, fa))

    def bent(self, bent: Bent, config: Config, *, learning: bool) -> tuple[Ways, life.Truth, Tensor | None]:
        """The recurrence sees the first `share` of the photos, the contrast all."""
        with torch.set_grad_enabled(learning and torch.is_grad_enabled()):
            fa, fb = self.network.features(bent.b, bent.bent)
            truth = self._truth(bent.warp, fa)
            missed = self._contrast(fa, fb, truth) if learning else None
        few = max(1, round(config.share * len(fa)))
        ways = self._ways(fa[:few].detach(), fb[:few].detach(), config.iters)
        return ways, life.Truth(*(x[:few] for x in truth)), missed

    def views(self, a: Tensor, b: Tensor, iters: int) -> Ways:
        """The encoder only looks."""
        with torch.no_grad():
            fa, fb = self.network.features(a, b)
        return self._ways(fa, fb, iters)

    def epipolar(self, F: Tensor) -> Tensor:
        """Sᵀ F S: cells stand at pixels 4 i + 1."""
        S = torch.tensor([[STRIDE, 0, CENTRE], [0, STRIDE, CENTRE], [0, 0, 1]], dtype=F.dtype, device=F.device)
        return S.T @ F @ S

    def _truth(self, warp: Warp, f: Tensor) -> life.Truth:
        return cell_truth(warp, int(f.shape[-2]), int(f.shape[-1]))

    def _contrast(self, fa: Tensor, fb: Tensor, truth: life.Truth) -> Tensor:
        return contrast(log_dual(similarities(fa, fb, self.network.log_tau.exp())), truth)

    def _ways(self, fa: Tensor, fb: Tensor, iters: int) -> Ways:
        """Both directions as one batch."""
        n, b = self.network, len(fa)
        with torch.no_grad():
            one, two = n.starts(fa, fb)
        start = Start(torch.cat([one.flow, two.flow]), torch.cat([one.confidence, two.confidence]))
        flows = n.towards(torch.cat([fa, fb]), torch.cat([fb, fa]), start, iters).flows
        return Ways([f[:b] for f in flows], [f[b:] for f in flows], one.flow)


class RaftLearner:
    """A RAFT: everything learns from flow."""

    stride = 1

    def __init__(self, network: RAFT) -> None:
        self.network = network.requires_grad_(True)

    def groups(self, config: Config) -> list[dict[str, Any]]:
        """One group."""
        return [
            {"params": list(self.network.parameters()), "lr": config.refine_lr, "weight_decay": config.weight_decay}
        ]

    def bent(self, bent: Bent, config: Config, *, learning: bool) -> tuple[Ways, life.Truth, Tensor | None]:
        """Flows at every pixel of the first `share` of the photos."""
        few = max(1, round(config.share * len(bent.b)))
        ways = self.views(bent.b[:few], bent.bent[:few], config.iters)
        h, w = int(bent.b.shape[-2]), int(bent.b.shape[-1])
        truth = life.bit_truth(bent.warp, (h, w))
        return ways, life.Truth(*(x[:few] for x in truth)), None

    def views(self, a: Tensor, b: Tensor, iters: int) -> Ways:
        """Both directions as one batch."""
        flows = self.network(torch.cat([a, b]), torch.cat([b, a]), iters)
        n = len(a)
        return Ways([f[:n] for f in flows], [f[n:] for f in flows])

    def contrast(self, bent: Bent) -> None:
        """There are no cells to contrast."""

    def epipolar(self, F: Tensor) -> Tensor:
        """Pixels are its unit."""
        return F
