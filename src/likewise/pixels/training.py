"""Training on photos: contrast between cells, then BiT, then SED, BiT and cycle together.

The aligner's encoder learns from the contrast alone, its recurrence from the paper's losses on correlations that it
cannot change: an encoder that is trained through an untrained recurrence is spoilt.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from likewise.errors import InputError
from likewise.nn.backbone import seeded
from likewise.pixels import life
from likewise.pixels.config import Config
from likewise.pixels.learners import CellLearner, Learner, RaftLearner
from likewise.pixels.model import Aligner
from likewise.pixels.network import Network
from likewise.pixels.photos import Bent, Photos
from likewise.pixels.raft import RAFT
from likewise.pixels.sources import Scenes, scenes_of
from likewise.store import checkpoint
from likewise.store.run import Run
from likewise.train.distributed import ProcessGroup
from likewise.train.loop import Fitted, Loop

MODEL = "model.safetensors"
"""The file of a run directory that holds the trained model."""

BEGIN = 24
"""Photos from which the principal axes of the features are found."""

EXAMINED = 4
"""Batches of eight bent photos that an evaluation looks at."""

Check = Callable[[nn.Module], Mapping[str, float]]
"""A further evaluation: figures by name, of which the first, smaller being better, chooses the weights."""


def train(
    photos: Photos | str | os.PathLike[str],
    config: Config | None = None,
    *,
    scenes: Scenes | str | os.PathLike[str] | None = "rendered",
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    start: Aligner | RAFT | None = None,
    check: Check | None = None,
    device: str = "cpu",
) -> Aligner | RAFT:
    """A network trained on a folder of photos; photos that are set aside choose among its weights.

    `scenes` are the pairs with fundamental matrices of the joint stage: "rendered" makes places with the photos as
    textures, a folder is one that `likewise pixels sfm` wrote, a function gives its own. With `out`, a run directory is
    written; `resume=True` goes on with it. `start` goes on from a trained model. Under torchrun every process calls
    this, and each gives back the same network.
    """
    chosen = config or Config()
    pictures = photos if isinstance(photos, Photos) else Photos.folder(photos)
    processes = ProcessGroup.current()
    run = _run(out, pictures, chosen, resume, processes)
    problem = Training(
        pictures, scenes_of(scenes, pictures), chosen, processes=processes, start=start, check=check, device=device
    )
    return problem.fitted(run, resume=resume)


def _run(
    out: str | os.PathLike[str] | None, photos: Photos, config: Config, resume: bool, processes: ProcessGroup
) -> Run | None:
    if out is None:
        return None
    said = dataclasses.asdict(config) | {"photos": len(photos), "processes": processes.size}
    if processes.first:
        Run.create(Path(out), said, seed=config.seed, resume=resume)
    processes.barrier()
    return Run.create(Path(out), said, seed=config.seed, resume=True)


class Training:
    """Network, losses and batches of one training: the `Problem` of `engine.fit`."""

    def __init__(
        self,
        photos: Photos,
        scenes: Scenes | None,
        config: Config,
        *,
        processes: ProcessGroup | None = None,
        start: Aligner | RAFT | None = None,
        check: Check | None = None,
        device: str = "cpu",
    ) -> None:
        if config.joint and (config.sed or config.cycle) and config.scenes and scenes is None:
            raise InputError("scenes: the joint stage needs pairs with a fundamental matrix; give some, or scenes=0")
        self.config, self.processes, self.device = config, processes or ProcessGroup.current(), device
        self.photos, self.aside = photos.split(config.validation, config.seed)
        self.scenes, self.check = scenes, check
        self.learner = _learner(config, self.photos, start, device)
        self.network = self.learner.network
        self.objective: nn.Module = nn.Module()
        self.settings = dataclasses.replace(config, steps=config.steps or config.total)

    def fitted(self, run: Run | None, *, resume: bool) -> Aligner | RAFT:
        """Train to the end; the model with the weights that were best on what is set aside, or the last."""
        best: dict[str, Tensor] = {}

        def note() -> None:
            best.update({k: v.detach().clone() for k, v in self.network.state_dict().items()})

        loop = Loop(self, self.settings, run=run, resume=resume, processes=self.processes, keep_best=note)
        fitted = loop.run()
        with loop.weights():
            if self.config.keep == "best" and best:
                self.network.load_state_dict(best)
            for value in self.network.state_dict().values():
                self.processes.broadcast(value)
            made = self.model(fitted)
        if run is not None and self.processes.first:
            checkpoint.save(made, run.path / MODEL)
            run.finish(steps=fitted.step, best_step=fitted.best_step, **_last(fitted))
        return made

    def model(self, fitted: Fitted | None = None) -> Aligner | RAFT:
        """The network as it stands, ready for photos."""
        import copy

        network: Any = copy.deepcopy(self.network).requires_grad_(False).eval()
        if isinstance(network, RAFT):
            return network
        recipe = dataclasses.asdict(self.config) | {"photos": len(self.photos)}
        return Aligner(network, name="trained aligner", recipe=recipe, figures=_last(fitted) if fitted else {})

    # ------------------------------------------------------------------------------------------------ a Problem

    def groups(self) -> list[dict[str, Any]]:
        """The learner's parameter groups."""
        return self.learner.groups(self.config)

    def loss(self, step: int) -> tuple[Tensor, Mapping[str, Any]]:
        """The loss of a step's stage over this process's share of the batch; gradients are summed over processes."""
        stage = self.config.stage(step)
        bent = self._bent(step, stage)
        missed = self.learner.contrast(bent) if stage == "warm" else None
        parts = self._parts(step, bent, stage) if missed is None else {"contrast": missed}
        total = torch.stack([*parts.values()]).sum() / self.processes.size
        return total, {name: value.detach() for name, value in parts.items()}

    def after(self, step: int) -> None:
        """Nothing follows a step."""

    def extra(self) -> Mapping[str, nn.Module]:
        """No other module belongs to the run."""
        return {}

    @torch.no_grad()
    def evaluate(self) -> Mapping[str, float]:
        """End-point errors in pixels on bent photos that are never learned from, of the first flow and of the last."""
        c = dataclasses.replace(self.config, share=1.0)
        first, last = [], []
        for k in range(EXAMINED):
            bent = self._on_device(self.aside.bent(8, c.size, (c.seed, 2, k), **self._manner()))
            ways, truth, _ = self.learner.bent(bent, c, learning=False)
            last.append(self._error(ways.there[-1], truth))
            first += [] if ways.start is None else [self._error(ways.start, truth)]
        found = {"bent": float(np.mean(last))} | ({"bent_start": float(np.mean(first))} if first else {})
        more = dict(self.check(self.network)) if self.check else {}
        return {"score": -next(iter(more.values()), found["bent"]), **found, **more}

    # ----------------------------------------------------------------------------------------------------- losses

    def _manner(self) -> dict[str, Any]:
        return {"strength": self.config.bend, "light": self.config.light, "night": self.config.night}

    def _bent(self, step: int, stage: str) -> Bent:
        """This process's share of the step's photos; a photo's draw depends on its number in the batch alone."""
        c = self.config
        h, w = (max(64, 4 * round(c.small * n / 4)) for n in c.size) if stage == "warm" else c.size
        part = self.processes.part(c.pairs)
        return self._on_device(self.photos.bent(c.pairs, (h, w), (c.seed, 1, step), part=part, **self._manner()))

    def _on_device(self, bent: Bent) -> Bent:
        return bent if self.device == "cpu" else bent.to(self.device)

    def _parts(self, step: int, bent: Bent, stage: str) -> dict[str, Tensor]:
        """BiT; in the joint stage also SED, cycle and contrast."""
        c, s = self.config, self.learner.stride
        joint, parts = stage == "joint", dict[str, Tensor]()
        if c.bit or (joint and c.contrast):
            ways, truth, missed = self.learner.bent(bent, c, learning=joint and c.contrast > 0)
            losses = [
                s * life.bit_loss(f, g, truth, one_way=c.one_way, scale=c.bit_scale / s)
                for f, g in zip(ways.there, ways.back, strict=True)
            ]
            parts["bit"] = c.bit * life.sequence(losses, c.gamma)
            parts |= {} if missed is None else {"contrast": c.contrast * missed}
        if joint and self.scenes is not None and c.scenes and (c.sed or c.cycle):
            parts |= self._epipolar(step, self.scenes)
        return parts

    def _epipolar(self, step: int, scenes: Scenes) -> dict[str, Tensor]:
        """SED and cycle on pairs of views, the means of both directions [LIFE Eq. 1, 2]."""
        c, s = self.config, self.learner.stride
        views = scenes(c.scenes, c.size, (c.seed, 3, step))
        part = self.processes.part(c.scenes)
        a, b = (x[part].to(self.device) for x in (views.a, views.b))
        F = self.learner.epipolar(views.F[part].to(self.device)).to(a.dtype)
        ways = self.learner.views(a, b, c.iters)
        pairs = list(zip(ways.there, ways.back, strict=True))
        found: dict[str, Tensor] = {}
        if c.sed:
            scale = c.sed_scale / s
            losses = [life.sed_loss(f, F, scale=scale) + life.sed_loss(g, F.mT, scale=scale) for f, g in pairs]
            found["sed"] = 0.5 * s * c.sed * life.sequence(losses, c.gamma)
        if c.cycle:
            options: dict[str, Any] = {"mode": c.cycle_mode, "alpha": c.alpha / s, "beta": c.beta}
            losses = [life.cycle_loss(f, g, **options) + life.cycle_loss(g, f, **options) for f, g in pairs]
            found["cycle"] = 0.5 * s * c.cycle * life.sequence(losses, c.gamma)
        return found

    def _error(self, flow: Tensor, truth: life.Truth) -> float:
        """Mean end-point error in pixels where the truth is known."""
        d = torch.linalg.vector_norm(flow - truth.there, dim=-1)
        return self.learner.stride * float(life.masked_mean(d, truth.there_valid))


def _learner(config: Config, photos: Photos, start: Aligner | RAFT | None, device: str) -> Learner:
    import copy

    if isinstance(start, Aligner):
        return CellLearner(copy.deepcopy(start.network).to(device))
    if isinstance(start, RAFT):
        return RaftLearner(copy.deepcopy(start).to(device))
    if config.network != "cells":
        return RaftLearner(RAFT(config.network, seed=config.seed, device=device))
    return CellLearner(begun(config, photos).to(device))


def begun(config: Config, photos: Photos) -> Network:
    """A network with ImageNet's encoder, a projection onto principal axes, and a random recurrence."""
    with seeded(config.seed):
        network = Network(config.dim, config.hidden)
    network.encoder.begin()
    network.encoder.principal(photos.pieces(BEGIN, config.size, np.random.default_rng([config.seed, 0])))
    return network


def _last(fitted: Fitted) -> dict[str, float]:
    """The figures of the best evaluation, or of the last where none is best."""
    rows = [h for h in fitted.history if h["step"] == fitted.best_step] or fitted.history[-1:]
    return {k: v for k, v in rows[0].items() if k not in ("step", "score")} if rows else {}
