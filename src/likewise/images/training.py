"""train(dataset, config): an embedder that is learned from classes and used on new ones."""

from __future__ import annotations

import copy
import dataclasses
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from likewise.errors import InputError
from likewise.images import losses
from likewise.images.config import Config
from likewise.images.data import Augment, BalancedBatches, Dataset, Loader, as_dataset
from likewise.images.embedder import Embedder, assemble
from likewise.images.feature_cache import (
    MOST_KEPT,
    CachedCrops,
    FeatureCache,
    Images,
    Source,
    ValidationSet,
    run_frozen,
)
from likewise.nn.backbone import as_backbone, seeded
from likewise.nn.pretrained import named
from likewise.store import checkpoint
from likewise.store.run import Run
from likewise.train.distributed import ProcessGroup
from likewise.train.loop import Fitted, Loop, average_into

log = logging.getLogger(__name__)

MODEL, WEIGHTS = "model.safetensors", "weights.safetensors"
"""The file of a run directory that holds the embedder, and what stands in its place for a backbone of one's own."""
NAMED = 5
"""Unreadable images that are named one by one."""
TURNED = 16
"""Images of a batch that are turned where a task asks for that."""
PCA_ROWS = 10_000
"""Images from which the principal axes are computed, at most."""


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
    """Train an embedder on labelled images, with DiVA's tasks by default.

    Parameters
    ----------
    dataset : Dataset or path
        Labelled images, or the path of class folders (`lw.images.folder`).
    config : Config, optional
        The recipe; its defaults are for one CPU and photos.
    out : path, optional
        A run directory: model.safetensors, metrics.jsonl and what is needed to resume.
    resume : bool, default False
        Resume the run in `out`, to the same bits as if it had not stopped.
    validation : Dataset, optional
        Classes that are never learned from and choose the weights; by default a share `config.validation` of the
        classes is set aside.
    watch : mapping of str to Dataset, optional
        Further data whose R@1 is recorded, and decides nothing.
    backbone : torch.nn.Module, optional
        A network of your own instead of `config.backbone`; see `lw.nn.as_backbone`.
    cache : path, optional
        A folder for the output of frozen parts; by default the run directory.
    device : str, default "cpu"
        Where to train.

    Returns
    -------
    Embedder
        With `.figures`, the R@1 of its evaluation. Under torchrun every process calls this, and each gets the same.

    Raises
    ------
    InputError
        If the data cannot fill a batch, or have too few classes to set some aside.

    Examples
    --------
    >>> import likewise as lw, numpy as np
    >>> colours = np.repeat(np.arange(6), 4)
    >>> images = [np.full((36, 36, 3), 40 * c, np.uint8) for c in colours]
    >>> recipe = lw.images.Config(backbone="convnet", size=32, shortest=36, dim=16, classes=3, queue=16, steps=2)
    >>> lw.images.train(lw.images.Dataset(images, colours, name="colours"), recipe)
    Embedder(convnet trained on colours, 16 dimensions)
    """
    chosen = config or Config()
    training, held = _divide(as_dataset(dataset, "train"), validation, chosen)
    processes = ProcessGroup.current()
    run = _create_run(out, training, held, chosen, resume, processes)
    folder = Path(cache) if cache else Path(out) if out else None
    problem = Training(
        training, held, watch or {}, chosen, processes=processes, backbone=backbone, cache=folder, device=device
    )
    return problem.fit(run, resume=resume)


def _divide(dataset: Dataset, validation: Dataset | None, config: Config) -> tuple[Dataset, Dataset | None]:
    """What is learned from, and the classes that are set aside."""
    if validation is not None or not config.validation:
        return dataset, validation
    if len(dataset.classes) < 4:
        raise InputError(
            f"dataset: {len(dataset.classes)} classes are too few to set some aside for validation; validation=0 "
            f"trains on all"
        )
    return dataset.split(config.validation, seed=config.seed)


def _create_run(
    out: str | os.PathLike[str] | None,
    training: Dataset,
    held: Dataset | None,
    config: Config,
    resume: bool,
    processes: ProcessGroup,
) -> Run | None:
    if out is None:
        return None
    about = dataclasses.asdict(config) | {
        "data": training.name,
        "images": len(training),
        "classes_of_data": len(training.classes),
        "validation_images": 0 if held is None else len(held),
        "processes": processes.size,
    }
    if processes.first:
        Run.create(Path(out), about, seed=config.seed, resume=resume)
    processes.barrier()
    return Run.create(Path(out), about, seed=config.seed, resume=True)


class Training:
    """Network, objective and batches of one training: the `Problem` of `train.loop`."""

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
        self.cache, self.config, self.processes, self.device, self.data = cache, config, processes, device, dataset
        self.custom = backbone is not None
        self.batches = BalancedBatches(dataset.labels, config.classes, config.per_class, seed=config.seed)
        sizes = {"images": len(dataset), "classes": len(dataset.classes), "steps_per_epoch": len(self.batches)}
        with seeded(config.seed):
            base = named(config.backbone, config.weights or None) if backbone is None else as_backbone(backbone)
            self.whole = assemble(
                base,
                frozen=config.frozen,
                total=config.dim,
                heads=len(config.heads),
                norm=config.norm,
                chunk=config.chunk,
            ).to(device)
            self.objective = losses.make_objective(config, **sizes).to(device)
        self.network = self.whole.tail
        self.settings = dataclasses.replace(
            config,
            steps=config.steps or max(1, round(config.epochs * len(self.batches))),
            evaluate_every=config.evaluate_every or len(self.batches),
        )
        self.views = 2 if self.objective.momentum else 1
        self.watched: dict[str, ValidationSet] = {}
        for name, data in {"validation": validation, **watch}.items():
            if data is None:
                continue
            if data.counts.max() < 2:
                raise InputError(f"{name}: no class has two images, so none could be found; add some, or leave it out")
            self.watched[name] = ValidationSet(data, config, self.whole.stem, device, cache=cache)
        self.source = self._source()
        if config.start == "pca":
            self.network.begin(self._features(), seed=config.seed)
        self.follower = _copy(self.network) if self.objective.momentum else None
        self._batch: losses.Batch | None = None

    def fit(self, run: Run | None, *, resume: bool) -> Embedder:
        """Train to the end; the embedder with the best weights on validation, or the last."""
        best: dict[str, Tensor] = {}

        def keep_best() -> None:
            best.update({k: v.detach().clone() for k, v in self.network.state_dict().items()})
            if run is not None:
                self._save(run)

        choosing = self.config.keep == "best" and "validation" in self.watched
        note = keep_best if choosing else None
        loop = Loop(self, self.settings, run=run, resume=resume, processes=self.processes, keep_best=note)
        fitted = loop.run()
        with loop.weights():
            if choosing:
                self._put_best(best, run)
            made = self.embedder(fitted)
            if run is not None and self.processes.first:
                self._save(run, fitted)
        skipped = self.loader.skipped
        for one in skipped[:NAMED]:
            log.warning("left out: %s: %s", one.name, one.reason)
        if len(skipped) > NAMED:
            log.warning("left out: %d more of the training images", len(skipped) - NAMED)
        if run is not None and self.processes.first:
            run.finish(steps=fitted.step, best_step=fitted.best_step, **_figures(fitted), left_out=len(skipped))
        return made

    def _put_best(self, best: dict[str, Tensor], run: Run | None) -> None:
        if not best and run is not None:  # the best came before a resume
            best = self._saved(run)
        if best and self.processes.first:
            self.network.load_state_dict(best)
        for value in self.network.state_dict().values():
            self.processes.broadcast(value)

    def _save(self, run: Run, fitted: Fitted | None = None) -> None:
        """Write the embedder as it stands; of a network that a file cannot describe, the trained weights alone."""
        if not self.custom:
            checkpoint.save(self.embedder(fitted), run.path / MODEL)
            return
        arrays = {key: value.cpu().numpy() for key, value in self.network.state_dict().items()}
        checkpoint.write(run.path / WEIGHTS, arrays, {"trained": "the end of a network of your own, and its heads"})

    def _saved(self, run: Run) -> dict[str, Tensor]:
        """The trained weights that `_save` wrote, or nothing."""
        if self.custom and (run.path / WEIGHTS).exists():
            return {key: torch.from_numpy(value) for key, value in checkpoint.read(run.path / WEIGHTS)[0].items()}
        if not self.custom and (run.path / MODEL).exists():
            return dict(checkpoint.load(run.path / MODEL).network.tail.state_dict())
        return {}

    # ------------------------------------------------------------------------------------------------------ a Problem

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
        """The joint loss of a step [DiVA Eq. 9]."""
        indices, x = self.source.batch(step)
        z = self.processes.gather(self.network(x[0]))
        moved = None
        if self.follower is not None:
            with torch.no_grad():
                moved = self.processes.gather(self.follower(x[1]))
        self._batch = losses.Batch(
            z,
            torch.from_numpy(self.data.labels[indices]).to(self.device),
            torch.from_numpy(indices).to(self.device),
            moved,
            self._turn(x[0]) if self.objective.turned else None,
            step=step,
            seed=self.config.seed,
        )
        total, parts = self.objective(self._batch)
        return total, parts

    def _turn(self, x: Tensor) -> Tensor:
        """Rows of some of the images, turned by 0 to 3 quarters."""
        if self.config.frozen:
            raise InputError("frozen: a task that turns images needs them whole; use frozen=0")
        few = x[: max(1, TURNED // self.processes.size)]
        rows = self.processes.gather(self.network(torch.cat([few.rot90(k, (-2, -1)) for k in range(4)])))
        by_process = rows.reshape(self.processes.size, 4, len(few), *rows.shape[1:])
        return by_process.transpose(0, 1).flatten(0, 2)  # all that are turned alike side by side

    def after(self, step: int) -> None:
        """Queue rows, and let the momentum network follow.

        θ′ ← m θ′ + (1 − m) θ for parameters and floating buffers alike: the statistics of batch normalisation are
        buffers, and a momentum network without them has weights and statistics that do not fit each other.
        """
        if self._batch is not None:
            self.objective.after(self._batch)
        if self.follower is not None:
            average_into(self.follower.state_dict(), self.network, self.config.momentum)

    def extra(self) -> Mapping[str, nn.Module]:
        """The momentum network."""
        return {} if self.follower is None else {"momentum": self.follower}

    @torch.no_grad()
    def evaluate(self) -> Mapping[str, float]:
        """R@1 on validation, which is the score, and on what is watched."""
        figures = {f"{name}_r1": data.recall(self.whole) for name, data in self.watched.items()}
        return {"score": figures["validation_r1"], **figures} if "validation" in self.watched else figures

    def embedder(self, fitted: Fitted | None = None) -> Embedder:
        """The network as it stands, ready for images of the user's own."""
        c = self.config
        return Embedder(
            _copy(self.whole).eval(),
            name=f"{'custom' if self.custom else c.backbone} trained on {self.data.name}",
            dim=c.dim,
            device=self.device,
            size=c.size,
            shortest=c.shortest,
            mirror=c.mirrored,
            recipe=dataclasses.asdict(c) | {"data": self.data.name, "classes_of_data": len(self.data.classes)},
            figures=_figures(fitted) if fitted else {},
        )

    # --------------------------------------------------------------------------------------------------------- inputs

    def _source(self) -> Source:
        c, stem = self.config, self.whole.stem
        if c.frozen and c.views:
            if c.views < self.views:
                raise InputError(f"views: these tasks need {self.views} crops of an image, got {c.views}")
            self.loader = self._loader(views=1)
            kept = FeatureCache(
                stem, self.loader, c.views, device=self.device, folder=self.cache, show=self.processes.first
            )
            return CachedCrops(kept, self.batches, views=self.views, seed=c.seed, processes=self.processes)
        self.loader = self._loader(views=self.views)
        return Images(self.loader, self.batches, stem, processes=self.processes, device=self.device)

    def _loader(self, *, views: int) -> Loader:
        c = self.config
        augment = Augment(size=c.size, mode=c.crops, shortest=c.shortest, smallest=c.smallest, flip=c.flip)
        side = min(2 * c.shortest, augment.decoded_side)
        small = 4 * side * side * len(self.data) <= MOST_KEPT  # then an image is decoded once, not in every epoch
        options: dict[str, Any] = {"views": views, "seed": c.seed, "workers": c.workers}
        return Loader(self.data.items, self.data.labels, augment, keep_side=side if small else None, **options)

    @torch.no_grad()
    def _features(self) -> NDArray[np.float32]:
        """The backbone's features of the training images, before any training."""
        rows = ValidationSet(self.data, self.config, self.whole.stem, self.device, cache=self.cache, most=PCA_ROWS)
        return np.concatenate([run_frozen(self.network.trunk, x).cpu().numpy() for x in rows.inputs()])


def _copy(module: Any) -> Any:
    return copy.deepcopy(module).requires_grad_(False)


def _figures(fitted: Fitted) -> dict[str, float]:
    """The figures of the best evaluation, or of the last where none is best."""
    rows = [h for h in fitted.history if h["step"] == fitted.best_step] or fitted.history[-1:]
    return {k: v for k, v in rows[0].items() if k not in ("step", "score")} if rows else {}
