"""Training on photos: contrast between cells, then BiT, then SED, BiT and cycle together.

The encoder learns from the contrast alone, the recurrence from the paper's losses on correlations that it cannot
change: an encoder that is trained through an untrained recurrence is spoilt. Losses are taken at the encoder's cells.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from likewise.backbones.network import seeded
from likewise.core.geometry import grid
from likewise.engine import checkpoint
from likewise.engine.fit import Fitted, Loop
from likewise.engine.runs import Run
from likewise.engine.world import World
from likewise.errors import InputError
from likewise.pixels import life
from likewise.pixels.config import Config
from likewise.pixels.contrast import cell_truth, contrast
from likewise.pixels.encoder import CENTRE, STRIDE
from likewise.pixels.network import Direction, Network
from likewise.pixels.photos import Bent, Photos
from likewise.pixels.start import log_dual, similarities

MODEL = "model.safetensors"
"""The file of a run directory that holds the trained model."""

BEGIN = 24
"""Photos from which the principal axes of the features are found."""


@dataclasses.dataclass(frozen=True)
class Views:
    """Pairs of pictures (n, 3, h, w) of one scene each, with the fundamental matrices (n, 3, 3) between them."""

    a: Tensor
    b: Tensor
    F: Tensor


Scenes = Callable[[int, tuple[int, int], Sequence[int]], Views]
"""(how many, size, seed) → pairs of views; rendered scenes, or the pairs of a structure from motion."""


class Check(Protocol):
    """An evaluation of a network: figures by name, smaller is better for the first."""

    def __call__(self, network: Network) -> Mapping[str, float]: ...


class Training:
    """Network and batches of one training: the `Problem` of `engine.fit`."""

    def __init__(
        self,
        photos: Photos,
        scenes: Scenes | None,
        config: Config,
        *,
        world: World | None = None,
        check: Check | None = None,
        network: Network | None = None,
    ) -> None:
        if config.joint and config.sed and scenes is None:
            raise InputError("scenes: the joint stage needs pairs with a fundamental matrix; give some, or sed=0")
        self.config, self.world = config, world or World.current()
        self.photos, self.aside = photos.split(config.validation, config.seed)
        self.scenes, self.check = scenes, check
        self.network = network or begun(config, self.photos)
        self.objective: nn.Module = nn.Module()
        self.settings = dataclasses.replace(config, steps=config.steps or config.total)

    # ------------------------------------------------------------------------------------------------ a Problem

    def groups(self) -> list[dict[str, Any]]:
        """Encoder, projection and temperature, recurrence, each with its rate."""
        c, n = self.config, self.network
        n.requires_grad_(True)
        heads = list(n.encoder.project.parameters())
        rest = [p for name, p in n.encoder.named_parameters() if not name.startswith("project")]
        return [
            {"params": rest, "lr": c.lr, "weight_decay": c.weight_decay},
            {"params": heads, "lr": c.head_lr, "weight_decay": c.weight_decay},
            {"params": [n.log_tau], "lr": c.head_lr},
            {"params": list(n.refine.parameters()), "lr": c.refine_lr, "weight_decay": c.weight_decay},
        ]

    def loss(self, step: int) -> tuple[Tensor, Mapping[str, Any]]:
        """The loss of a step's stage, over this process's share of the batch."""
        stage = self.config.stage(step)
        bent = self._bent(step, stage)
        if stage == "warm":
            total = self._contrast(bent)
            return self._share(total), {"contrast": total.detach()}
        return self._flows(step, bent, joint=stage == "joint")

    def after(self, step: int) -> None:
        """Nothing follows a step."""

    def extra(self) -> Mapping[str, nn.Module]:
        """No other module belongs to the run."""
        return {}

    @torch.no_grad()
    def evaluate(self) -> Mapping[str, float]:
        """End-point errors on bent photos that are never learned from, of the first flow and of the last."""
        c = self.config
        first, last = [], []
        for k in range(4):
            bent = self.aside.bent(8, c.size, (c.seed, 2, k), strength=c.bend, light=c.light, night=c.night)
            there = self.network(*self.network.features(bent.b, bent.bent), iters=c.iters)[0]
            truth = cell_truth(bent.warp, *there.last.shape[1:3])
            first.append(_error(there.start.flow, truth))
            last.append(_error(there.last, truth))
        found = {"bent_start": float(np.mean(first)), "bent": float(np.mean(last))}
        more = dict(self.check(self.network)) if self.check else {}
        return {"score": -next(iter(more.values()), found["bent"]), **found, **more}

    # ----------------------------------------------------------------------------------------------------- losses

    def _bent(self, step: int, stage: str) -> Bent:
        c = self.config
        size = tuple(4 * round(c.small * n / 4) for n in c.size) if stage == "warm" else c.size
        part = self.world.part(c.pairs)
        whole = self.photos.bent(
            part.stop - part.start, (size[0], size[1]), (c.seed, 1, step, part.start),
            strength=c.bend, light=c.light, night=c.night,
        )  # fmt: skip
        return whole

    def _share(self, total: Tensor) -> Tensor:
        """A process's part of the mean over the batch: gradients are summed over processes."""
        return total / self.world.size

    def _contrast(self, bent: Bent) -> Tensor:
        n = self.network
        fa, fb = n.features(bent.b, bent.bent)
        truth = cell_truth(bent.warp, int(fa.shape[-2]), int(fa.shape[-1]))
        return contrast(log_dual(similarities(fa, fb, n.log_tau.exp())), truth)

    def _flows(self, step: int, bent: Bent, *, joint: bool) -> tuple[Tensor, Mapping[str, Any]]:
        """BiT, and in the joint stage SED, cycle and contrast beside it."""
        c = self.config
        parts: dict[str, Tensor] = {}
        learning = joint and c.contrast > 0
        with torch.set_grad_enabled(learning):
            fa, fb = self.network.features(bent.b, bent.bent)
            truth = cell_truth(bent.warp, int(fa.shape[-2]), int(fa.shape[-1]))
            if learning:
                parts["contrast"] = c.contrast * contrast(
                    log_dual(similarities(fa, fb, self.network.log_tau.exp())), truth
                )
        if c.bit:
            there, back = self._both(fa, fb)
            losses = [
                STRIDE * life.bit_loss(f, g, truth, one_way=c.one_way, scale=c.bit_scale / STRIDE)
                for f, g in zip(there.flows, back.flows, strict=True)
            ]
            parts["bit"] = c.bit * life.sequence(losses, c.gamma)
        if joint and self.scenes is not None and (c.sed or c.cycle):
            parts |= self._epipolar(step)
        total = sum(parts.values(), fa.new_zeros(()))
        return self._share(total), {name: value.detach() for name, value in parts.items()}

    def _epipolar(self, step: int) -> dict[str, Tensor]:
        """SED and cycle on pairs of views [LIFE Eq. 1, 2]."""
        c = self.config
        part = self.world.part(c.scenes)
        assert_scenes = self.scenes
        if assert_scenes is None:
            return {}
        views = assert_scenes(part.stop - part.start, c.size, (c.seed, 3, step, part.start))
        with torch.no_grad():
            fa, fb = self.network.features(views.a, views.b)
        there, back = self._both(fa, fb)
        F = of_cells(views.F).to(fa.dtype)
        found: dict[str, Tensor] = {}
        if c.sed:
            ways = zip(there.flows, back.flows, strict=True)
            losses = [
                STRIDE * 0.5 * (life.sed_loss(f, F, scale=c.sed_scale / STRIDE) + life.sed_loss(g, F.mT, scale=c.sed_scale / STRIDE))
                for f, g in ways
            ]  # fmt: skip
            found["sed"] = c.sed * life.sequence(losses, c.gamma)
        if c.cycle:
            knobs: dict[str, Any] = {"mode": c.cycle_mode, "alpha": c.alpha / STRIDE, "beta": c.beta}
            ways = zip(there.flows, back.flows, strict=True)
            losses = [
                STRIDE * 0.5 * (life.cycle_loss(f, g, **knobs) + life.cycle_loss(g, f, **knobs)) for f, g in ways
            ]
            found["cycle"] = c.cycle * life.sequence(losses, c.gamma)
        return found

    def _both(self, fa: Tensor, fb: Tensor) -> tuple[Direction, Direction]:
        """Both directions as one batch; no gradient reaches the features."""
        n, b = self.network, len(fa)
        fa, fb = fa.detach(), fb.detach()
        with torch.no_grad():
            first = n.starts(fa, fb)
        start = type(first[0])(*(torch.cat([getattr(s, k) for s in first]) for k in ("flow", "confidence")))
        flows = n.towards(torch.cat([fa, fb]), torch.cat([fb, fa]), start, self.config.iters).flows
        return Direction(first[0], [f[:b] for f in flows]), Direction(first[1], [f[b:] for f in flows])


def begun(config: Config, photos: Photos) -> Network:
    """A network with ImageNet's encoder, a projection onto principal axes, and a random recurrence."""
    with seeded(config.seed):
        network = Network(config.dim, config.hidden)
    network.encoder.begin()
    pieces = photos.pieces(BEGIN, config.size, np.random.default_rng([config.seed, 0]))
    network.encoder.principal(pieces)
    return network


def of_cells(F: Tensor) -> Tensor:
    """Sᵀ F S: the fundamental matrix between cells, which stand at pixels 4 i + 1."""
    S = torch.tensor([[STRIDE, 0, CENTRE], [0, STRIDE, CENTRE], [0, 0, 1]], dtype=F.dtype)
    return S.T @ F @ S


def _error(flow: Tensor, truth: life.Truth) -> float:
    """Mean end-point error in pixels where the truth is known."""
    d = torch.linalg.vector_norm(flow - truth.there, dim=-1)
    return STRIDE * float(life.masked_mean(d, truth.there_valid))
