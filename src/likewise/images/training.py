"""train(dataset, config): an embedder that is learned from classes and used on new ones.

A step is given images, or the cached output of the backbone's frozen part for a few crops; a validation, too.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from likewise import media
from likewise.errors import InputError
from likewise.images import losses
from likewise.images.config import Config
from likewise.images.data import Augment, BalancedBatches, Dataset, Loader, as_dataset
from likewise.images.embedder import Embedder, Network, Skipped, assemble
from likewise.images.embedding import stamp
from likewise.images.metrics import recall_at_k
from likewise.nn.backbone import as_backbone, as_tensor, seeded
from likewise.nn.features import fingerprint
from likewise.nn.pretrained import named
from likewise.store import checkpoint
from likewise.store.run import Run, progress, read_json
from likewise.train.distributed import ProcessGroup
from likewise.train.loop import Fitted, Loop, average_into, averaged, create_run

log = logging.getLogger(__name__)

MODEL, WEIGHTS = "model.safetensors", "weights.safetensors"
"""The file of a run directory that holds the embedder, and what stands in its place for a backbone of one's own."""
NAMED = 5
"""Unreadable images that are named one by one."""
PCA_ROWS = 10_000
"""Images from which the principal axes are computed, at most."""
CHUNK = 16
"""Images in one pass of a frozen stem."""
ROWS = 60
"""Images in one piece of a validation."""
MOST_KEPT = 2 << 30
"""Bytes of images that are kept in memory rather than decoded again."""

Index = NDArray[np.int64]


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
    chosen, processes = config or Config(), ProcessGroup.current()
    training, held = as_dataset(dataset, "train"), validation
    if held is None and chosen.validation:
        training, held = training.split(chosen.validation, seed=chosen.seed)
    about = dataclasses.asdict(chosen) | {
        "data": training.name,
        "images": len(training),
        "classes_of_data": len(training.classes),
        "validation_images": 0 if held is None else len(held),
        "processes": processes.size,
    }
    run = create_run(out, about, seed=chosen.seed, resume=resume, processes=processes)
    folder = Path(cache) if cache else Path(out) if out else None
    problem = Training(
        training, held, watch or {}, chosen, processes=processes, backbone=backbone, cache=folder, device=device
    )
    return problem.fit(run, resume=resume)


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
            heads = len(config.heads)
            self.whole = assemble(
                base, frozen=config.frozen, total=config.dim, heads=heads, norm=config.norm, chunk=config.chunk
            ).to(device)
            self.objective = losses.make_objective(config, **sizes).to(device)
        self.network = self.whole.tail
        steps = config.steps or max(1, round(config.epochs * len(self.batches)))
        every = config.evaluate_every or len(self.batches)
        self.settings = dataclasses.replace(config, steps=steps, evaluate_every=every)
        self.views = 2 if self.objective.momentum else 1
        self.watched: dict[str, ValidationSet] = {}
        for name, data in {"validation": validation, **watch}.items():
            if data is None:
                continue
            if data.counts.max() < 2:
                raise InputError(f"{name}: no class has two images, so none could be found; add some, or leave it out")
            self.watched[name] = ValidationSet(data, config, self.whole.stem, device, cache)
        self.source = self._source()
        if config.start == "pca":
            self.network.begin(self._features(), seed=config.seed)
        self.follower = _copy(self.network) if self.objective.momentum else None
        self._batch: losses.Batch | None = None

    def fit(self, run: Run | None, *, resume: bool) -> Embedder:
        """Train to the end; the embedder with the best weights on validation, or the last."""
        best: dict[str, Tensor] = {}

        def keep_best() -> None:
            best.update(averaged(self.network))
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
            run.finish(steps=fitted.step, best_step=fitted.best_step, **fitted.figures, left_out=len(skipped))
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
            step=step,
            seed=self.config.seed,
        )
        total, parts = self.objective(self._batch)
        return total, parts

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
            figures=fitted.figures if fitted else {},
        )

    # --------------------------------------------------------------------------------------------------------- inputs

    def _source(self) -> Images | CachedCrops:
        c, stem = self.config, self.whole.stem
        if c.frozen and c.views:
            if c.views < self.views:
                raise InputError(f"views: these tasks need {self.views} crops of an image, got {c.views}")
            self.loader = self._loader(views=1)
            kept = FeatureCache(stem, self.loader, c.views, device=self.device, folder=self.cache)
            return CachedCrops(kept, self.batches, views=self.views, seed=c.seed, processes=self.processes)
        self.loader = self._loader(views=self.views)
        return Images(self.loader, self.batches, stem, processes=self.processes, device=self.device)

    def _loader(self, *, views: int) -> Loader:
        c = self.config
        augment = Augment(size=c.size, shortest=c.shortest, smallest=c.smallest, flip=c.flip)
        side = min(2 * c.shortest, augment.decoded_side)
        small = 4 * side * side * len(self.data) <= MOST_KEPT  # then an image is decoded once, not in every epoch
        options: dict[str, Any] = {"views": views, "seed": c.seed, "workers": c.workers}
        return Loader(self.data.items, self.data.labels, augment, keep_side=side if small else None, **options)

    @torch.no_grad()
    def _features(self) -> NDArray[np.float32]:
        """The backbone's features of the training images, before any training."""
        data = self.data
        if len(data) > PCA_ROWS:
            drawn = np.random.default_rng(self.config.seed).choice(len(data), PCA_ROWS, replace=False)
            data = data.subset(np.sort(drawn))
        rows = ValidationSet(data, self.config, self.whole.stem, self.device, self.cache)
        return np.concatenate([run_frozen(self.network.trunk, x).cpu().numpy() for x in rows.inputs()])


def _copy(module: Any) -> Any:
    return copy.deepcopy(module).requires_grad_(False)


# ---------------------------------------------------------------------------- what a step and a validation are given


@torch.no_grad()
def run_frozen(stem: nn.Module, x: Tensor) -> Tensor:
    """A frozen stem's output, a few images at a time."""
    return torch.cat([stem(part) for part in torch.split(x, CHUNK)])


class Images:
    """New crops in every step, decoded in threads ahead of time, then through the frozen stem, if any."""

    def __init__(
        self, loader: Loader, batches: BalancedBatches, stem: nn.Sequential, *, processes: ProcessGroup, device: str
    ) -> None:
        self.loader, self.batches, self.stem, self.processes, self.device = loader, batches, stem, processes, device
        self._ahead: Iterator[Any] | None = None
        self._next = -1

    def batch(self, step: int) -> tuple[Index, Tensor]:
        """The batch of a step; steps that follow each other are prepared ahead."""
        if self._ahead is None or step != self._next:
            following = (self.batches.batch(s) for s in count(step))
            parts = (indices[self.processes.part(len(indices))] for indices in following)
            self._ahead = iter(self.loader.ahead(parts, start=step))
        _, own, arrays = next(self._ahead)
        self._next = step + 1
        x = as_tensor(arrays, self.device)
        if len(self.stem):
            x = torch.stack([run_frozen(self.stem, view) for view in x])
        return self.processes.gather(torch.from_numpy(own)).numpy(), x


class FeatureCache:
    """The stem's output for a few crops of each image, of which every step draws as many as it needs.

    `maps` (n, crops, …) are float16: half the memory, and far below what the crops differ by. `shown` (n,) are the
    images that they are of: an unreadable one is replaced. With `folder`, they are a file there, named after all that
    decides it, and made only once; what could not be read then is reported by the loader as if it had tried again.
    """

    def __init__(
        self, stem: nn.Module, loader: Loader, crops: int, *, device: str = "cpu", folder: Path | None = None
    ) -> None:
        self.stem, self.loader, self.crops, self.device = stem, loader, crops, device
        self.maps, self.shown = self._make() if folder is None else self._open(folder)

    def _open(self, folder: Path) -> tuple[NDArray[np.float16], Index]:
        file = folder / f"frozen-{self._key()[:16]}.npy"
        beside = file.with_suffix(".json")
        if not file.exists():
            maps, shown = self._make()
            skipped = [[s.index, s.name, s.reason] for s in self.loader.skipped]
            media.write_text(beside, json.dumps({"skipped": skipped, "shown": shown.tolist()}) + "\n")
            with media.atomic(file) as sibling, open(sibling, "wb") as stream:
                np.save(stream, maps, allow_pickle=False)
        known = read_json(beside)
        self.loader.leave_out(Skipped(int(i), str(name), str(why)) for i, name, why in known["skipped"])
        return np.load(file, mmap_mode="r", allow_pickle=False), np.asarray(known["shown"], dtype=np.int64)

    def _make(self) -> tuple[NDArray[np.float16], Index]:
        n = len(self.loader.items)
        maps, shown = np.empty((0, self.crops), dtype=np.float16), np.arange(n, dtype=np.int64)
        parts = np.array_split(np.arange(n, dtype=np.int64), max(1, n // 64))
        with progress(self.crops * len(parts), "frozen part", show=ProcessGroup.current().first) as advance:
            for k in range(self.crops):
                ahead = self.loader.ahead(parts, start=k, stride=0)
                for part, (_, real, views) in zip(parts, ahead, strict=True):
                    y = run_frozen(self.stem, as_tensor(views[0], self.device)).cpu().numpy()
                    if not len(maps):
                        maps = np.empty((n, self.crops, *y.shape[1:]), dtype=np.float16)
                    maps[part, k], shown[part] = y, real
                    advance()
        return maps, shown

    def _key(self) -> str:
        """sha256 of the stem's weights, the images (files by name, size and time), and how crops are drawn."""
        sha = hashlib.sha256(f"{self.loader.augment} {self.loader.seed} {self.crops}".encode())
        sha.update(fingerprint(self.stem) + stamp(self.loader.items).encode())
        return sha.hexdigest()


class CachedCrops:
    """Batches from a feature cache, each image in different crops for different views."""

    def __init__(
        self, cache: FeatureCache, batches: BalancedBatches, *, views: int, seed: int, processes: ProcessGroup
    ) -> None:
        self.cache, self.batches, self.views, self.seed, self.processes = cache, batches, views, seed, processes

    def batch(self, step: int) -> tuple[Index, Tensor]:
        """The batch of a step."""
        indices, maps = self.batches.batch(step), self.cache.maps
        rng = np.random.default_rng([self.seed, 7, step])
        order = rng.random((len(indices), maps.shape[1])).argsort(axis=1)[:, : self.views]
        own = self.processes.part(len(indices))
        drawn = maps[indices[own, None], order[own]].swapaxes(0, 1)
        return self.cache.shown[indices], torch.from_numpy(drawn.astype(np.float32)).to(self.cache.device)


class _Mirror(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flip(-1)


class ValidationSet:
    """Data whose recall is watched: its inputs to the tail are made once and kept, where memory allows."""

    def __init__(self, data: Dataset, config: Config, stem: nn.Module, device: str, cache: Path | None = None) -> None:
        self.labels, self.stem, self.device, self.config, self.cache = data.labels, stem, device, config, cache
        augment = Augment(size=config.size, random=False, shortest=config.shortest)
        self.loader = Loader(data.items, data.labels, augment, workers=config.workers)
        self._maps: dict[bool, NDArray[np.float16]] = {}
        self._images: list[NDArray[np.uint8]] = []

    def inputs(self, mirrored: bool = False) -> Iterator[Tensor]:
        """Batches of inputs to the tail, in order: of the images, or of their mirror images."""
        if self.config.frozen:
            if mirrored not in self._maps:
                stem = nn.Sequential(_Mirror(), self.stem) if mirrored else self.stem
                cached = FeatureCache(stem, self.loader, 1, device=self.device, folder=self.cache)
                self._maps[mirrored] = cached.maps[:, 0]
            for s in range(0, len(self.labels), ROWS):
                yield torch.from_numpy(self._maps[mirrored][s : s + ROWS].astype(np.float32)).to(self.device)
            return
        for array in self._prepared():
            x = as_tensor(array, self.device)
            yield x.flip(-1) if mirrored else x

    def _prepared(self) -> Iterable[NDArray[np.uint8]]:
        """The prepared images, in pieces; decoded once, if there is memory for all."""
        if self._images:
            return self._images
        parts = np.array_split(np.arange(len(self.labels)), range(ROWS, len(self.labels), ROWS))
        decoded = (views[0] for _, _, views in self.loader.ahead(parts, stride=0))
        if 3 * self.config.size**2 * len(self.labels) > MOST_KEPT:
            return decoded
        self._images = list(decoded)
        return self._images

    @torch.no_grad()
    def embed(self, network: Network) -> NDArray[np.float32]:
        """Embeddings of all its images, with their mirror images where the configuration says so."""
        sides = [
            np.concatenate([network.join(network.tail(x)).cpu().numpy() for x in self.inputs(mirrored)])
            for mirrored in ((False, True) if self.config.mirrored else (False,))
        ]
        if len(sides) == 1:
            return sides[0]
        rows = sides[0] + sides[1]
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))

    def recall(self, network: Network) -> float:
        """R@1 of the images that can be read."""
        rows = self.embed(network)
        read = np.delete(np.arange(len(rows)), [bad.index for bad in self.loader.skipped])
        return float(recall_at_k(rows[read], self.labels[read], ks=(1,))[1])
