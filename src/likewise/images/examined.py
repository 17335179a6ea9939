"""Data whose recall is watched during training, prepared once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from likewise.images.augment import Augment
from likewise.images.config import Config
from likewise.images.loading import Loader
from likewise.images.metrics import recall_at_k
from likewise.images.network import Network
from likewise.images.sources import as_tensor, keep

if TYPE_CHECKING:
    from likewise.images.dataset import Dataset

ROWS = 60
"""Pictures in one piece of an evaluation."""
MOST_KEPT = 2 << 30
"""Bytes of pictures that are kept in memory rather than decoded again."""


class Examined:
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
        items = [data.items[i] for i in chosen]
        self.loader = Loader(items, self.labels, augment, views=1, workers=config.workers)
        self._kept: dict[bool, list[NDArray[Any]]] = {}

    def inputs(self, mirrored: bool = False) -> Iterator[Tensor]:
        """Batches of inputs to the tail, in order: of the pictures, or of their mirror images."""
        if self.frozen:
            for map_ in self._maps(mirrored):
                yield torch.from_numpy(map_.astype(np.float32)).to(self.device)
            return
        for array in self._pictures():
            x = as_tensor(array, self.device)
            yield x.flip(-1) if mirrored else x

    @property
    def frozen(self) -> bool:
        """Whether what is kept is a frozen stem's output, not pictures."""
        return self.config.frozen > 0

    def _maps(self, mirrored: bool) -> list[NDArray[Any]]:
        """The frozen stem's output, in pieces."""
        if mirrored not in self._kept:
            stem = nn.Sequential(Mirror(), self.stem) if mirrored else self.stem
            maps = keep(stem, self.loader, len(self.labels), 1, device=self.device, folder=self.cache)[0][:, 0]
            self._kept[mirrored] = [maps[s : s + ROWS] for s in range(0, len(maps), ROWS)]
        return self._kept[mirrored]

    def _pictures(self) -> Iterator[NDArray[Any]]:
        """The prepared pictures, in pieces; decoded once, if there is memory for all."""
        if False in self._kept:
            yield from self._kept[False]
            return
        kept: list[NDArray[Any]] = []
        parts = np.array_split(np.arange(len(self.labels)), range(ROWS, len(self.labels), ROWS))
        for _, _, views in self.loader.ahead(parts, stride=0):
            kept.append(views[0])
            yield kept[-1]
            if sum(a.nbytes for a in kept) > MOST_KEPT:
                kept = [kept[-1]]
        if sum(map(len, kept)) == len(self.labels):
            self._kept[False] = kept

    def rows(self, network: Network) -> NDArray[np.float32]:
        """Embeddings of all its pictures, with their mirror images where the configuration says so."""
        rows = self._rows(network, mirrored=False)
        if not self.config.mirrored:
            return rows
        rows = rows + self._rows(network, mirrored=True)
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))

    def _rows(self, network: Network, *, mirrored: bool) -> NDArray[np.float32]:
        return np.concatenate([network.joined(network.tail(x)).cpu().numpy() for x in self.inputs(mirrored)])

    def recall(self, network: Network) -> float:
        """R@1 of the pictures that can be read."""
        rows, read = self.rows(network), np.ones(len(self.labels), dtype=np.bool_)
        read[[bad.index for bad in self.loader.skipped]] = False
        return float(recall_at_k(rows[read], self.labels[read], ks=(1,))[1])


class Mirror(nn.Module):
    """Pictures with left and right exchanged."""

    def forward(self, x: Tensor) -> Tensor:
        """x with its last axis turned round."""
        return x.flip(-1)
