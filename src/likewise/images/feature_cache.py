"""What a training step and a validation are given: images, or the cached output of a frozen stem for a few crops."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from likewise import media
from likewise.images.config import Config
from likewise.images.data import Augment, BalancedBatches, Dataset, Loader
from likewise.images.embedder import Network, Skipped
from likewise.images.metrics import recall_at_k
from likewise.nn.backbone import as_tensor
from likewise.store.run import progress, read_json
from likewise.train.distributed import ProcessGroup

Index = NDArray[np.int64]
CHUNK = 16
"""Images in one pass of a frozen stem."""
ROWS = 60
"""Images in one piece of a validation."""
MOST_KEPT = 2 << 30
"""Bytes of images that are kept in memory rather than decoded again."""


class Source(Protocol):
    """Where batches come from."""

    def batch(self, step: int) -> tuple[Index, Tensor]:
        """The numbers of a step's images, of all processes, and this process's inputs to the tail (views, n, …)."""


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
        self,
        stem: nn.Module,
        loader: Loader,
        crops: int,
        *,
        device: str | torch.device = "cpu",
        folder: Path | None = None,
        show: bool = True,
    ) -> None:
        self.stem, self.loader, self.crops, self.device, self.show = stem, loader, crops, device, show
        self.maps, self.shown = self._make() if folder is None else self._open(folder)

    def _open(self, folder: Path) -> tuple[NDArray[np.float16], Index]:
        file = folder / f"frozen-{self._key()[:16]}.npy"
        beside = file.with_suffix(".json")
        n = len(self.loader.items)
        if not file.exists():
            maps, shown = self._make()
            file.parent.mkdir(parents=True, exist_ok=True)
            skipped = [[s.index, s.name, s.reason] for s in self.loader.skipped]
            replaced = [[int(i), int(shown[i])] for i in np.flatnonzero(shown != np.arange(n))]
            media.write_text(beside, json.dumps({"skipped": skipped, "replaced": replaced}) + "\n")
            with media.atomic(file) as sibling, open(sibling, "wb") as stream:
                np.save(stream, maps, allow_pickle=False)
        known = read_json(beside)
        self.loader.leave_out(Skipped(int(i), str(name), str(why)) for i, name, why in known["skipped"])
        shown = np.arange(n, dtype=np.int64)
        for i, j in known["replaced"]:
            shown[i] = j
        return np.load(file, mmap_mode="r", allow_pickle=False), shown

    def _make(self) -> tuple[NDArray[np.float16], Index]:
        n = len(self.loader.items)
        maps, shown = np.empty((0, self.crops), dtype=np.float16), np.arange(n, dtype=np.int64)
        parts = np.array_split(np.arange(n, dtype=np.int64), max(1, n // 64))
        with progress(self.crops * len(parts), "frozen part", show=self.show) as advance:
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
        sha = hashlib.sha256(f"{self.loader.augment} {self.loader.seed} {self.crops} {self.stem}".encode())
        for name, value in sorted(self.stem.state_dict().items()):
            sha.update(name.encode() + np.ascontiguousarray(value.cpu().numpy()).tobytes())
        for item in self.loader.items:
            if isinstance(item, str | os.PathLike):
                sha.update(os.fsencode(item) + f" {media.size_and_time(item)}\n".encode())
            else:
                array = np.asarray(item)
                sha.update(f"{array.shape} {array.dtype}\n".encode() + array.tobytes())
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

    def __init__(
        self,
        data: Dataset,
        config: Config,
        stem: nn.Module,
        device: str,
        *,
        cache: Path | None = None,
        most: int | None = None,
    ) -> None:
        chosen = np.arange(len(data))
        if most is not None and len(data) > most:
            chosen = np.sort(np.random.default_rng(config.seed).choice(len(data), most, replace=False))
        self.labels, self.stem, self.device = data.labels[chosen], stem, device
        self.config, self.cache = config, cache
        augment = Augment(size=config.size, mode="none", shortest=config.shortest)
        self.loader = Loader([data.items[i] for i in chosen], self.labels, augment, workers=config.workers)
        self._kept: dict[bool, list[NDArray[Any]]] = {}

    def inputs(self, mirrored: bool = False) -> Iterator[Tensor]:
        """Batches of inputs to the tail, in order: of the images, or of their mirror images."""
        if self.config.frozen:
            if mirrored not in self._kept:
                stem = nn.Sequential(_Mirror(), self.stem) if mirrored else self.stem
                maps = FeatureCache(stem, self.loader, 1, device=self.device, folder=self.cache).maps[:, 0]
                self._kept[mirrored] = [maps[s : s + ROWS] for s in range(0, len(maps), ROWS)]
            yield from (torch.from_numpy(m.astype(np.float32)).to(self.device) for m in self._kept[mirrored])
            return
        for array in self._images():
            x = as_tensor(array, self.device)
            yield x.flip(-1) if mirrored else x

    def _images(self) -> Iterator[NDArray[Any]]:
        """The prepared images, in pieces; decoded once, if there is memory for all."""
        if False in self._kept:
            yield from self._kept[False]
            return
        size = self.config.size
        kept: list[NDArray[Any]] | None = [] if 3 * size * size * len(self.labels) <= MOST_KEPT else None
        parts = np.array_split(np.arange(len(self.labels)), range(ROWS, len(self.labels), ROWS))
        for _, _, views in self.loader.ahead(parts, stride=0):
            if kept is not None:
                kept.append(views[0])
            yield views[0]
        if kept is not None:
            self._kept[False] = kept

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
        rows, read = self.embed(network), np.ones(len(self.labels), dtype=np.bool_)
        read[[bad.index for bad in self.loader.skipped]] = False
        return float(recall_at_k(rows[read], self.labels[read], ks=(1,))[1])
