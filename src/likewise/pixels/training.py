"""Training on photos by LIFE's losses: SED, adaptive cycle and BiT, through recurrence and encoder.

At first the encoder of a new network learns from the contrast between cells alone: trained through an untrained
recurrence it is spoilt (25 px instead of 2 on rendered places), and a recurrence learns nothing from features that do
not find their like under another light.
"""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from likewise.errors import InputError
from likewise.nn.backbone import seeded
from likewise.pixels import life
from likewise.pixels.aligner import Aligner
from likewise.pixels.data import Bent, Photos, bend
from likewise.pixels.geometry import grid, size_of
from likewise.pixels.life import Truth, masked_mean
from likewise.pixels.life.network import CENTRE, STRIDE, Network, cells, log_dual, similarities
from likewise.pixels.raft import RAFT
from likewise.pixels.rendering import Renderer
from likewise.pixels.rendering.textures import Textures
from likewise.pixels.sfm import Pairs, Views
from likewise.store import checkpoint
from likewise.store.run import Run
from likewise.train.distributed import ProcessGroup
from likewise.train.loop import Fitted, Loop, create_run
from likewise.train.options import LoopOptions, option


@dataclass(frozen=True)
class Config(LoopOptions):
    """The recipe of `likewise.pixels.train`; its defaults are for one CPU and a folder of photos.

    Every option is also one of `likewise pixels train`; docs/pixels.md lists them with their defaults.

    Examples
    --------
    >>> import likewise as lw
    >>> recipe = lw.pixels.Config(refine=10, joint=5)
    >>> recipe.total, recipe.stage(12)
    (15, 'joint')
    """

    network: Literal["cells", "tiny", "light", "small", "large"] = option(
        "cells", "the aligner's own network on cells, or a RAFT of this size"
    )
    refine: int = option(
        300, "steps in which the encoder learns from contrast alone, the recurrence from the rest", low=0
    )
    joint: int = option(1500, "steps in which every loss reaches both", low=0)
    height: int = option(160, "height of training images in pixels", low=64)
    width: int = option(224, "width of training images in pixels", low=64)
    pairs: int = option(6, "photos, each with its bent copy, in a batch", low=0)
    scenes: int = option(3, "triplets in a batch: two views A, B with a fundamental matrix, and B bent", low=0)
    hidden: int = option(64, "width of the recurrence", low=8)
    iters: int = option(3, "steps of the recurrence in training", low=1)
    bend: float = option(1.2, "strength of the bends T: 1 turns by up to 30°, scales by up to 1.4", low=0)
    light: float = option(1.0, "strength of the change of light between B and B′; 0: none", low=0)
    night: float = option(0.3, "share of the images that fall dark", low=0, high=1)
    sed: float = option(0.5, "weight of the epipolar loss", low=0)
    bit: float = option(1.0, "weight of the loss of bent photos", low=0)
    cycle: float = option(0.1, "weight of the cycle loss", low=0)
    contrast: float = option(0.3, "weight of the contrast between cells of bent photos", low=0)
    seeded: float = option(0.5, "share of bent images whose flow starts near the truth", low=0, high=1)
    one_way: bool = option(False, "BiT in the direction B→B′ only, T(B′B) of the paper's Tab. 6")
    cycle_mode: Literal["adaptive", "full"] = option("adaptive", "which pixels the cycle loss keeps")
    alpha: float = option(3.0, "cycle errors in pixels up to which a pixel is kept", low=0)
    beta: float = option(0.05, "and as a share of its displacement", low=0)
    sed_scale: float = option(5.0, "pixels from which on the epipolar loss grows slowly", above=0)
    bit_scale: float = option(4.0, "pixels from which on BiT grows slowly", above=0)
    gamma: float = option(0.8, "weight of an iteration's loss relative to the next one's", above=0, high=1)
    lr: float = option(1e-4, "learning rate of the encoder", low=0)
    refine_lr: float = option(1e-3, "learning rate of the recurrence", low=0)
    validation: float = option(0.1, "share of the photos kept for validation", above=0, high=0.9)
    keep: Literal["best", "last"] = option("best", "weights that are given back: best on validation, or the last")
    seed: int = option(0, "seed of every draw", low=0)

    @property
    def total(self) -> int:
        """Steps of all stages."""
        return self.refine + self.joint

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of training images."""
        return self.height, self.width

    def stage(self, step: int) -> str:
        """What is learned at a step: refine or joint."""
        return "refine" if step < self.refine else "joint"


def contrast(log_p: Float[Tensor, "b n m"], truth: Truth) -> Float[Tensor, ""]:
    """−log P of the true cell, P mixed bilinearly of the four around it, the mean both ways."""
    b, h, w = truth.there.shape[:3]
    base = grid(h, w)
    ways = (
        (log_p, base + truth.there, truth.there_valid),
        (log_p.transpose(1, 2), base + truth.back, truth.back_valid),
    )
    missed = [_missed(p, g.reshape(b, h * w, 2), known.reshape(b, h * w), (h, w)) for p, g, known in ways]
    return 0.5 * (missed[0] + missed[1])


def _missed(log_p: Tensor, goals: Tensor, known: Bool[Tensor, "b n"], size: tuple[int, int]) -> Tensor:
    h, w = size
    low = goals.floor()
    fx, fy = (goals - low).unbind(-1)
    corners = []
    for dy, wy in ((0, 1 - fy), (1, fy)):
        for dx, wx in ((0, 1 - fx), (1, fx)):
            x, y = (low[..., 0] + dx).clamp(0, w - 1).long(), (low[..., 1] + dy).clamp(0, h - 1).long()
            value = log_p.gather(2, (y * w + x)[..., None])[..., 0]
            corners.append(value + (wx * wy).clamp_min(1e-6).log())
    return masked_mean(-torch.logsumexp(torch.stack(corners), 0), known)


class Ways(NamedTuple):
    """The flows of a batch after each iteration, there and back, and the flow that they started from."""

    there: list[Tensor]
    back: list[Tensor]
    start: Tensor | None = None


class Learner:
    """A network and what it learns from. Every loss reaches the whole of it: SED, cycle and BiT through the recurrence
    and the correlations that it reads to the encoder, contrast to the encoder alone.

    The aligner's flows are in cells, cell i at pixel `stride` · i + `centre`; of a RAFT a cell is a pixel.
    """

    def __init__(self, network: Network | RAFT) -> None:
        self.network = network.requires_grad_(True)
        self.stride, self.centre = (STRIDE, CENTRE) if isinstance(network, Network) else (1, 0.0)

    def groups(self, c: Config) -> list[dict[str, Any]]:
        """Encoder, temperature, recurrence; a RAFT is one group."""
        n = self.network
        if isinstance(n, RAFT):
            return [{"params": list(n.parameters()), "lr": c.refine_lr, "weight_decay": c.weight_decay}]
        return [
            {"params": list(n.encoder.parameters()), "lr": c.lr, "weight_decay": c.weight_decay},
            {"params": [n.log_tau], "lr": c.refine_lr},
            {"params": list(n.refine.parameters()), "lr": c.refine_lr, "weight_decay": c.weight_decay},
        ]

    def truth(self, bent: Bent) -> life.Truth:
        """The flows between a photo and its bent copy, in cells."""
        size = cells(bent.b) if isinstance(self.network, Network) else size_of(bent.b)
        return life.bit_truth(bent.warp, size, stride=self.stride, centre=self.centre)

    def encode(self, images: Tensor) -> Tensor:
        """The features of images; a RAFT takes images themselves."""
        return images if isinstance(self.network, RAFT) else cast(Tensor, self.network.encoder(images))

    def contrast(self, fa: Tensor, fb: Tensor, truth: life.Truth) -> Tensor | None:
        """−log P of the right cells, both ways; a RAFT has none to contrast."""
        if isinstance(self.network, RAFT):
            return None
        return contrast(log_dual(similarities(fa, fb, self.network.log_tau.exp())), truth)

    def ways(self, fa: Tensor, fb: Tensor, iters: int, near: tuple[Tensor, Tensor] | None = None) -> Ways:
        """Both directions as one batch, from what `encode` gave; `near` are first flows of the last pairs."""
        n, b = self.network, len(fa)
        if isinstance(n, RAFT):
            first, flows = None, n(torch.cat([fa, fb]), torch.cat([fb, fa]), iters)
            return Ways([f[:b] for f in flows], [f[b:] for f in flows], first)
        with torch.no_grad():  # the recurrence learns from where it is put; how it got there, contrast teaches
            there, back = (start.flow for start in n.starts(fa, fb))
        if near is not None and len(near[0]):
            there[-len(near[0]) :], back[-len(near[1]) :] = near
        flows = n.towards(torch.cat([fa, fb]), torch.cat([fb, fa]), torch.cat([there, back]), iters)
        return Ways([f[:b] for f in flows], [f[b:] for f in flows], there)

    def epipolar(self, F: Tensor) -> Tensor:
        """Sᵀ F S for points in cells."""
        s, c = self.stride, self.centre
        S = torch.tensor([[s, 0, c], [0, s, c], [0, 0, 1]], dtype=F.dtype, device=F.device)
        return S.T @ F @ S


Scenes = Callable[[int, tuple[int, int], Sequence[int]], Views]
"""(how many, size, seed) → pairs of views."""


def scenes_of(what: Scenes | str | os.PathLike[str] | None, photos: Photos) -> Scenes | None:
    """The source of pairs that is meant: "rendered", a folder of `likewise pixels sfm`, or a function as it is."""
    if what is None or callable(what):
        return what
    return rendered(photos) if what == "rendered" else cast(Scenes, Pairs.open(what).views)


def rendered(photos: Photos) -> Scenes:
    """Lit places with these photos on their walls; their exact flow is not looked at."""
    textures = Textures(photos.pictures)  # once: their pyramids take a second

    def pairs(n: int, size: tuple[int, int], seed: Sequence[int]) -> Views:
        renderer = Renderer(textures, size)
        first = int(np.random.default_rng(list(seed)).integers(2**31))
        made = renderer.batch([first + i for i in range(n)])
        return Views(made.a, made.b, torch.as_tensor(made.F))

    return pairs


MODEL = "model.safetensors"
"""The file of a run directory that holds the trained model."""

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

    Parameters
    ----------
    photos : Photos or path
        The photos.
    config : Config, optional
        The recipe.
    scenes : "rendered", path, callable or None
        The pairs with fundamental matrices of the joint stage: places rendered with the photos as textures, a folder
        that `likewise pixels sfm` wrote, or a function (n, size, seed) → Views.
    out : path, optional
        Where a run directory is written; `resume=True` continues it.
    start : Aligner or RAFT, optional
        A trained model to continue from.
    check : callable, optional
        A further evaluation: figures by name, of which the first, smaller being better, chooses the weights.
    device : str
        Where it is trained.

    Returns
    -------
    Aligner or RAFT
        As `config.network` says. Under torchrun every process calls this, and each gets the same network.

    Raises
    ------
    InputError
        Where there are too few photos, or the joint stage lacks its pairs.

    Examples
    --------
    >>> import likewise as lw
    >>> model = lw.pixels.train("photos/", lw.pixels.Config(joint=600), out="run/")     # doctest: +SKIP
    >>> lw.save(model, "mine.safetensors")                                             # doctest: +SKIP
    """
    chosen = config or Config()
    pictures = photos if isinstance(photos, Photos) else Photos.folder(photos)
    processes = ProcessGroup.current()
    said = dataclasses.asdict(chosen) | {"photos": len(pictures), "processes": processes.size}
    run = create_run(out, said, seed=chosen.seed, resume=resume, processes=processes)
    problem = Training(
        pictures, scenes_of(scenes, pictures), chosen, processes=processes, start=start, check=check, device=device
    )
    return problem.fitted(run, resume=resume)


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
        if (config.sed or config.cycle) and config.scenes and scenes is None:
            raise InputError("scenes: SED and cycle need pairs with a fundamental matrix; give some, or scenes=0")
        self.config, self.processes, self.device = config, processes or ProcessGroup.current(), device
        self.photos, self.aside = photos.split(config.validation, config.seed)
        self.scenes, self.check = scenes, check
        self.manner: dict[str, Any] = {"strength": config.bend, "light": config.light, "night": config.night}
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
            run.finish(steps=fitted.step, best_step=fitted.best_step, **fitted.figures)
        return made

    def model(self, fitted: Fitted | None = None) -> Aligner | RAFT:
        """The network as it stands, ready for photos."""
        network: Any = copy.deepcopy(self.network).requires_grad_(False).eval()
        if isinstance(network, RAFT):
            return network
        recipe = dataclasses.asdict(self.config) | {"photos": len(self.photos)}
        return Aligner(network, name="trained aligner", recipe=recipe, figures=fitted.figures if fitted else {})

    # ------------------------------------------------------------------------------------------------ a Problem

    def groups(self) -> list[dict[str, Any]]:
        """The learner's parameter groups."""
        return self.learner.groups(self.config)

    def loss(self, step: int) -> tuple[Tensor, Mapping[str, Any]]:
        """The losses of a step over this process's share of the batch; gradients are summed over processes."""
        parts = self.parts(step)
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
        c = self.config
        first, last = [], []
        for k in range(EXAMINED):
            bent = self.aside.bent(8, c.size, (c.seed, 2, k), **self.manner).to(self.device)
            ways = self.learner.ways(self.learner.encode(bent.b), self.learner.encode(bent.bent), c.iters)
            truth = self.learner.truth(bent)
            last.append(self._error(ways.there[-1], truth))
            first += [] if ways.start is None else [self._error(ways.start, truth)]
        errors = {"bent": float(np.mean(last))} | ({"bent_start": float(np.mean(first))} if first else {})
        more = dict(self.check(self.network)) if self.check else {}
        return {"score": -next(iter(more.values()), errors["bent"]), **errors, **more}

    # ----------------------------------------------------------------------------------------------------- losses

    def parts(self, step: int) -> dict[str, Tensor]:
        """BiT and contrast on photos and their bent copies, SED and cycle on pairs of views [LIFE Eq. 1–3].

        Of a triplet A, B, B′ [LIFE Fig. 3] the views A and B have a fundamental matrix, and B′ is B bent.
        """
        c, learner, parts = self.config, self.learner, dict[str, Tensor]()
        views, bents = self._views(step), self._bent(step)
        if views is not None:
            part = self.processes.part(c.scenes)
            if c.bit:  # all are bent and some taken: a triplet's draw depends on its number in the batch alone
                made = bend(views.b, _generator((c.seed, 4, step)), **self.manner)
                bents.append(Bent(made.b[part], made.bent[part], made.warp.part(part)))
            views = Views(views.a[part], views.b[part], views.F[part])
        images = [x for bent in bents for x in (bent.b, bent.bent)] + ([] if views is None else [views.a, views.b])
        if not images:
            raise InputError("pairs, scenes: expected one of them at least in a batch, got none")
        encoded = torch.split(learner.encode(torch.cat(images).to(self.device)), [len(x) for x in images])
        n = len(bents)
        if n and (c.bit or c.contrast):
            fa, fb = torch.cat(encoded[0 : 2 * n : 2]), torch.cat(encoded[1 : 2 * n : 2])
            parts |= self._bit(fa, fb, _joined([learner.truth(bent) for bent in bents], self.device), step)
        if views is not None and (c.sed or c.cycle):
            fa, fb = (self._taught(f, step) for f in encoded[-2:])
            parts |= self._epipolar(fa, fb, views.F.to(self.device))
        return parts

    def _taught(self, features: Tensor, step: int) -> Tensor:
        """The features for the recurrence: with their gradients in the joint stage."""
        return features if self.config.stage(step) == "joint" else features.detach()

    def _bent(self, step: int) -> list[Bent]:
        """This process's share of the step's photos; a photo's draw depends on its number in the batch alone."""
        c = self.config
        if not c.pairs or not (c.bit or c.contrast):
            return []
        return [self.photos.bent(c.pairs, c.size, (c.seed, 1, step), part=self.processes.part(c.pairs), **self.manner)]

    def _views(self, step: int) -> Views | None:
        """The step's pairs of views, of all processes."""
        c = self.config
        if self.scenes is None or not c.scenes or not (c.sed or c.cycle):
            return None
        return self.scenes(c.scenes, c.size, (c.seed, 3, step))

    def _bit(self, fa: Tensor, fb: Tensor, truth: life.Truth, step: int) -> dict[str, Tensor]:
        c, s, parts = self.config, self.learner.stride, dict[str, Tensor]()
        if c.contrast and (missed := self.learner.contrast(fa, fb, truth)) is not None:
            parts["contrast"] = c.contrast * missed
        fa, fb = self._taught(fa, step), self._taught(fb, step)
        if c.bit:
            near = _near(truth, round(c.seeded * len(fa)), (c.seed, 5, step))
            ways = self.learner.ways(fa, fb, c.iters, near)
            losses = [
                life.bit_loss(f, g, truth, one_way=c.one_way, scale=c.bit_scale / s)
                for f, g in zip(ways.there, ways.back, strict=True)
            ]
            parts["bit"] = s * c.bit * life.sequence(losses, c.gamma)
        return parts

    def _epipolar(self, fa: Tensor, fb: Tensor, F: Tensor) -> dict[str, Tensor]:
        c, s = self.config, self.learner.stride
        ways = self.learner.ways(fa, fb, c.iters)
        both = life.life_loss(
            *(ways.there, ways.back, self.learner.epipolar(F).to(fa.dtype)),
            weights=life.Weights(c.sed, 0.0, c.cycle),
            gamma=c.gamma,
            cycle_mode=c.cycle_mode,
            alpha=c.alpha / s,
            beta=c.beta,
            sed_scale=c.sed_scale / s,
        )
        weighted = {"sed": (c.sed, both.sed), "cycle": (c.cycle, both.cycle)}
        return {name: s * weight * value for name, (weight, value) in weighted.items() if value is not None}

    def _error(self, flow: Tensor, truth: life.Truth) -> float:
        """Mean end-point error in pixels where the truth is known."""
        d = torch.linalg.vector_norm(flow - truth.there, dim=-1)
        return self.learner.stride * float(life.masked_mean(d, truth.there_valid))


def _learner(config: Config, photos: Photos, start: Aligner | RAFT | None, device: str) -> Learner:
    """`start`, a new RAFT, or XFeat's published trunk with a random recurrence."""
    if start is not None:
        return Learner(copy.deepcopy(start.network if isinstance(start, Aligner) else start).to(device))
    if config.network != "cells":
        return Learner(RAFT(config.network, seed=config.seed, device=device))
    with seeded(config.seed):
        network = Network(config.hidden)
    network.encoder.begin()
    return Learner(network.to(device))


def _joined(truths: Sequence[life.Truth], device: str) -> life.Truth:
    """The truths of several batches as one."""
    return life.Truth(*(torch.cat(parts).to(device) for parts in zip(*truths, strict=True)))


def _generator(seed: Sequence[int]) -> torch.Generator:
    return torch.Generator().manual_seed(int(np.random.default_rng(list(seed)).integers(2**62)))


def _near(truth: life.Truth, n: int, seed: Sequence[int]) -> tuple[Tensor, Tensor]:
    """First flows of the last n pairs: the truth, off by up to some cells that change slowly over the image."""
    generator, flows = _generator(seed), []
    for known in (truth.there, truth.back):
        b, h, w = n, *known.shape[1:3]
        coarse = torch.randn(b, 2, 3, 4, generator=generator) * 1.5 * torch.rand(b, 1, 1, 1, generator=generator)
        off = nn.functional.interpolate(coarse, (h, w), mode="bilinear", align_corners=True).to(known)
        flows.append(known[len(known) - n :] + off.movedim(1, -1))
    return flows[0], flows[1]
