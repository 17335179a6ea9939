"""train(dataset, config): an embedder that is learned from classes and used on new ones."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from likewise.errors import InputError
from likewise.images import diva, layouts
from likewise.images.augment import Augment
from likewise.images.batches import BalancedBatches
from likewise.images.config import Config
from likewise.images.examined import MOST_KEPT, Examined
from likewise.images.loading import Loader
from likewise.images.model import Embedder
from likewise.images.network import Network, assemble
from likewise.images.sources import Kept, Pictures, Schedule, Source, keep, through
from likewise.images.tasks import RANKED
from likewise.nn.backbone import seeded
from likewise.store import checkpoint
from likewise.store.run import Run
from likewise.train.distributed import ProcessGroup
from likewise.train.loop import Fitted, Loop

if TYPE_CHECKING:
    from likewise.images.layouts import Dataset

log = logging.getLogger(__name__)

MODEL = "model.safetensors"
"""The file of a run directory that holds the embedder."""
WEIGHTS = "weights.safetensors"
"""What stands in its place where the backbone is a module of the user's own."""
NAMED = 5
"""Unreadable pictures that are named one by one."""
TURNED = 16
"""Pictures of a batch that are turned where a task asks for that."""


def train(
    dataset: Dataset | str | os.PathLike[str],
    config: Config | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    validation: Dataset | None = None,
    watch: Mapping[str, Dataset] | None = None,
    backbone: nn.Module | None = None,
    cache: str | os.PathLike[str] | None = None,
    device: str = "cpu",
) -> Embedder:
    """An embedder trained on labelled pictures; the classes of `validation`, never learned from, choose its weights.

    Without `validation`, a share `config.validation` of the classes is set aside. `watch` names further data whose R@1
    is noted beside (and decides nothing). With `out`, a run directory is written; `resume=True` goes on with it to the
    same bits. `cache` is a folder for the output of frozen parts, by default the run directory. Under torchrun every
    process calls this, and each gives back the same embedder.
    """
    chosen = config or Config()
    training, held = divided(dataset, validation, chosen)
    processes = ProcessGroup.current()
    run = _run(out, training, held, chosen, resume, processes)
    folder = Path(cache) if cache else Path(out) if out else None
    problem = Training(
        training, held, dict(watch or {}), chosen, processes=processes, backbone=backbone, cache=folder, device=device
    )
    return problem.fitted(run, resume=resume)


def divided(
    dataset: Dataset | str | os.PathLike[str], validation: Dataset | None, config: Config
) -> tuple[Dataset, Dataset | None]:
    """What is learned from, and the classes that are set aside."""
    if isinstance(dataset, str | os.PathLike):
        dataset = layouts.read(dataset, split="train")
    if validation is not None or not config.validation:
        return dataset, validation
    if len(dataset.classes) < 4:
        raise InputError(
            f"dataset: {len(dataset.classes)} classes are too few to set some aside for validation; validation=0 "
            f"trains on all"
        )
    return dataset.split(config.validation, seed=config.seed)


def _run(
    out: str | os.PathLike[str] | None,
    training: Dataset,
    held: Dataset | None,
    config: Config,
    resume: bool,
    processes: ProcessGroup,
) -> Run | None:
    if out is None:
        return None
    said = dataclasses.asdict(config) | {
        "data": training.name,
        "pictures": len(training),
        "classes_of_data": len(training.classes),
        "validation_pictures": 0 if held is None else len(held),
        "processes": processes.size,
    }
    if processes.first:
        Run.create(Path(out), said, seed=config.seed, resume=resume)
    processes.barrier()
    return Run.create(Path(out), said, seed=config.seed, resume=True)


class Training:
    """Network, objective and batches of one training: the `Problem` of `engine.fit`."""

    def __init__(
        self,
        dataset: Dataset,
        validation: Dataset | None,
        watch: Mapping[str, Dataset],
        config: Config,
        *,
        processes: ProcessGroup,
        backbone: nn.Module | None = None,
        cache: Path | None = None,
        device: str = "cpu",
    ) -> None:
        self.cache = cache
        self.config, self.processes, self.device, self.data = config, processes, device, dataset
        self.custom = backbone is not None
        self.batches = BalancedBatches(dataset.labels, config.classes, config.per_class, seed=config.seed)
        with seeded(config.seed):
            self.whole = _assembled(config, backbone).to(device)
            self.objective = objective(config, dataset, len(self.batches)).to(device)
        self.network = self.whole.tail
        self.settings = dataclasses.replace(
            config,
            steps=config.steps or max(1, round(config.epochs * len(self.batches))),
            evaluate_every=config.evaluate_every or len(self.batches),
        )
        self.views = 2 if self.objective.momentum else 1
        for name, data in {"validation": validation, **watch}.items():
            if data is not None and data.counts.max() < 2:
                raise InputError(
                    f"{name}: no class has two pictures, so none could be found; add some, or leave it out"
                )
        self.examined = {
            name: Examined(data, config, self.whole.stem, device, cache=cache)
            for name, data in {"validation": validation, **watch}.items()
            if data is not None
        }
        self.source = self._source()
        if config.start == "pca":
            self.network.begin(self._features(), seed=config.seed)
        self.follower = _copy(self.network) if self.objective.momentum else None
        self._batch: diva.Batch | None = None

    def fitted(self, run: Run | None, *, resume: bool) -> Embedder:
        """Train to the end; the embedder with the best weights on validation, or the last."""
        best: dict[str, Tensor] = {}

        def note() -> None:
            best.update({k: v.detach().clone() for k, v in self.network.state_dict().items()})
            if run is not None:
                self._keep(run)

        choosing = self.config.keep == "best" and "validation" in self.examined
        loop = Loop(
            self, self.settings, run=run, resume=resume, processes=self.processes, keep_best=note if choosing else None
        )
        fitted = loop.run()
        with loop.weights():
            self._put_best(choosing, best, run, loop.processes)
            made = self.embedder(fitted)
            if run is not None and self.processes.first:
                self._keep(run, fitted)
        self._tell_left_out()
        if run is not None and self.processes.first:
            left_out = len(self.loader.skipped)
            run.finish(steps=fitted.step, best_step=fitted.best_step, **_last(fitted), left_out=left_out)
        return made

    def _tell_left_out(self) -> None:
        """Name the training pictures that could not be read and were replaced by others of their classes."""
        skipped = self.loader.skipped
        for one in skipped[:NAMED]:
            log.warning("left out: %s: %s", one.name, one.reason)
        if len(skipped) > NAMED:
            log.warning("left out: %d more of the training pictures", len(skipped) - NAMED)

    def _put_best(self, choosing: bool, best: dict[str, Tensor], run: Run | None, processes: ProcessGroup) -> None:
        if not choosing:
            return
        if not best and run is not None:  # the best came before a resume
            best = self._kept(run)
        if best and processes.first:
            self.network.load_state_dict(best)
        for value in self.network.state_dict().values():
            processes.broadcast(value)

    def _keep(self, run: Run, fitted: Fitted | None = None) -> None:
        """Write the embedder as it stands; of a network that a file cannot describe, the trained weights alone."""
        if not self.custom:
            checkpoint.save(self.embedder(fitted), run.path / MODEL)
            return
        arrays = {key: value.cpu().numpy() for key, value in self.network.state_dict().items()}
        checkpoint.write(run.path / WEIGHTS, arrays, {"trained": "the end of a network of your own, and its heads"})

    def _kept(self, run: Run) -> dict[str, Tensor]:
        """The trained weights that `_keep` wrote, or nothing."""
        if self.custom and (run.path / WEIGHTS).exists():
            return {key: torch.from_numpy(value) for key, value in checkpoint.read(run.path / WEIGHTS)[0].items()}
        if not self.custom and (run.path / MODEL).exists():
            return dict(checkpoint.load(run.path / MODEL).network.tail.state_dict())
        return {}

    # ------------------------------------------------------------------------------------------------ a Problem

    def groups(self) -> list[dict[str, Any]]:
        """Backbone, heads, β, and what else the objective learns, each with its rate."""
        c = self.config
        beta = [p for n, p in self.objective.named_parameters() if n.endswith("beta")]
        tau = [p for n, p in self.objective.named_parameters() if n.endswith("log_tau") and c.learn_tau]
        rest = [p for n, p in self.objective.named_parameters() if not n.endswith(("beta", "log_tau"))]
        groups: list[dict[str, Any]] = [
            {"params": list(self.network.trunk.parameters()), "lr": c.lr, "weight_decay": c.weight_decay},
            {"params": list(self.network.projection.parameters()), "lr": c.head_lr, "weight_decay": c.weight_decay},
            {"params": beta, "lr": c.beta_lr},
            {"params": [*rest, *tau], "lr": c.psi_lr},
        ]
        return [g for g in groups if g["params"]]

    def loss(self, step: int) -> tuple[Tensor, Mapping[str, Any]]:
        """The joint loss of a step."""
        indices, x = self.source.batch(step)
        z = self.processes.gather(self.network(x[0]))
        moved = None
        if self.follower is not None:
            with torch.no_grad():
                moved = self.processes.gather(self.follower(x[1]))
        self._batch = diva.Batch(
            z,
            torch.from_numpy(self.data.labels[indices]).to(self.device),
            torch.from_numpy(indices).to(self.device),
            moved,
            self._turned(x[0]) if self.objective.turned else None,
            step=step,
            seed=self.config.seed,
        )
        total, parts = self.objective(self._batch)
        return total, parts

    def _turned(self, x: Tensor) -> Tensor:
        if self.config.frozen:
            raise InputError("frozen: the task rotation needs whole pictures; use frozen=0")
        few = x[: max(1, TURNED // self.processes.size)]
        rows = self.processes.gather(self.network(torch.cat([few.rot90(k, (-2, -1)) for k in range(4)])))
        by_process = rows.reshape(self.processes.size, 4, len(few), *rows.shape[1:])
        return by_process.transpose(0, 1).flatten(0, 2)  # all that are turned alike side by side

    def after(self, step: int) -> None:
        """Queue rows, and let the momentum network follow."""
        if self._batch is not None:
            self.objective.after(self._batch)
        if self.follower is not None:
            diva.follow(self.follower, self.network, self.config.momentum)

    def extra(self) -> Mapping[str, nn.Module]:
        """The momentum network."""
        return {} if self.follower is None else {"momentum": self.follower}

    @torch.no_grad()
    def evaluate(self) -> Mapping[str, float]:
        """R@1 on validation, which is the score, and on what is watched."""
        found = {f"{name}_r1": e.recall(self.whole) for name, e in self.examined.items()}
        return {"score": found["validation_r1"], **found} if "validation" in self.examined else found

    def embedder(self, fitted: Fitted | None = None) -> Embedder:
        """The network as it stands, ready for pictures of the user's own."""
        c = self.config
        recipe = dataclasses.asdict(c) | {"data": self.data.name, "classes_of_data": len(self.data.classes)}
        return Embedder(
            _copy(self.whole).eval(),
            name=f"{'custom' if self.custom else c.backbone} trained on {self.data.name}",
            dim=c.dim,
            device=self.device,
            size=c.size,
            shortest=c.shortest,
            mirror=c.mirrored,
            recipe=recipe,
            figures=_last(fitted) if fitted else {},
        )

    # ----------------------------------------------------------------------------------------------------- inputs

    def _source(self) -> Source:
        c = self.config
        schedule = Schedule(self.batches)
        if c.frozen and c.views:
            if c.views < self.views:
                raise InputError(f"views: these tasks need {self.views} crops of a picture, got {c.views}")
            self.loader = self._loader(views=1)
            stem, show, where = self.whole.stem, self.processes.first, self.device
            maps, shown = keep(stem, self.loader, len(self.data), c.views, device=where, folder=self.cache, show=show)
            return Kept(maps, shown, schedule, views=self.views, seed=c.seed, processes=self.processes, device=where)
        self.loader = self._loader(views=self.views)
        return Pictures(self.loader, schedule, self.whole.stem, processes=self.processes, device=self.device)

    def _loader(self, *, views: int) -> Loader:
        c = self.config
        augment = Augment(size=c.size, mode=c.crops, shortest=c.shortest, scale=(c.smallest, 1.0), flip=c.flip)
        side = min(2 * c.shortest, augment.decoded_side)
        small = 4 * side * side * len(self.data) <= MOST_KEPT  # then a picture is decoded once, not in every epoch
        return Loader(
            self.data.items,
            self.data.labels,
            augment,
            views=views,
            seed=c.seed,
            workers=c.workers,
            keep_side=side if small else None,
        )

    @torch.no_grad()
    def _features(self) -> NDArray[np.float32]:
        """The backbone's features of the training pictures, before any training."""
        rows = Examined(self.data, self.config, self.whole.stem, self.device, cache=self.cache, most=PCA_ROWS)
        return np.concatenate([through(self.network.trunk, x).cpu().numpy() for x in rows.inputs()])


PCA_ROWS = 10_000
"""Pictures from which the principal axes are found, at most."""


def objective(config: Config, data: Dataset, steps_an_epoch: int) -> diva.Objective:
    """The tasks of a configuration, with the weights it gives them."""
    dim = config.dim // len(config.heads)
    tasks = [_task(name, head, dim, config, data, steps_an_epoch) for head, name in enumerate(config.heads)]
    rho = dict.fromkeys(diva.pairs(config.heads, config.decorrelate), config.rho) if config.rho else {}
    return diva.Objective(tasks, [config.alpha(name) for name in config.heads], dim, rho)


def _task(name: str, head: int, dim: int, c: Config, data: Dataset, steps_an_epoch: int) -> diva.Task:
    if name in RANKED:
        return diva.Ranked(head, name, len(data.classes), beta=c.beta, gamma=c.gamma, shared=c.shared)
    if name in ("dance", "moco"):
        scale = c.scale if name == "dance" else "count"
        return diva.Contrast(head, dim, c.queue, tau=c.tau, weighted=name == "dance", scale=scale)
    if name == "instance":
        return diva.Instance(head, dim, len(data), tau=c.tau)
    if name == "rotation":
        return diva.Rotation(head, dim)
    if name == "cluster":
        return diva.Cluster(head, dim, len(data), len(data.classes), every=steps_an_epoch)
    return diva.Task(head)


def _assembled(config: Config, backbone: nn.Module | None) -> Network:
    base = _backbone(config) if backbone is None else _as_backbone(backbone)
    return assemble(
        base, frozen=config.frozen, total=config.dim, heads=len(config.heads), norm=config.norm, chunk=config.chunk
    )


def _backbone(config: Config) -> Any:
    from likewise import nn as backbones

    return backbones.named(config.backbone, config.weights or None)


def _as_backbone(module: nn.Module) -> Any:
    """A module that has no parts is one part."""
    from likewise.nn import as_backbone

    return module if hasattr(module, "parts") and hasattr(module, "dim") else as_backbone(module)


def _copy(module: Any) -> Any:
    import copy

    return copy.deepcopy(module).requires_grad_(False)


def _last(fitted: Fitted) -> dict[str, float]:
    """The figures of the best evaluation, or of the last where none is best."""
    rows = [h for h in fitted.history if h["step"] == fitted.best_step] or fitted.history[-1:]
    return {k: v for k, v in rows[0].items() if k not in ("step", "score")} if rows else {}
