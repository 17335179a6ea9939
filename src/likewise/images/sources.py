"""What a training step is given: batches of pictures, or the kept output of a frozen stem for a few crops of each."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from likewise import media
from likewise.images.batches import BalancedBatches
from likewise.images.loading import Loader
from likewise.images.model import Skipped
from likewise.store.run import progress, read_json
from likewise.train.distributed import ProcessGroup

Index = NDArray[np.int64]
CHUNK = 16
"""Pictures in one pass of a frozen stem."""


class Source(Protocol):
    """Where batches come from."""

    def batch(self, step: int) -> tuple[Index, Tensor]:
        """The numbers of a step's pictures, of all processes, and this process's inputs to the tail (views, n, …)."""


def as_tensor(arrays: NDArray[np.uint8], device: str | torch.device = "cpu") -> Tensor:
    """Pictures (…, h, w, 3) uint8 as (…, 3, h, w) in [0, 1], laid out channels-last."""
    return torch.from_numpy(arrays).to(device).movedim(-1, -3).to(torch.float32).div_(255.0)


@torch.no_grad()
def through(stem: nn.Module, x: Tensor, chunk: int = CHUNK) -> Tensor:
    """A frozen stem's output, a few pictures at a time."""
    return torch.cat([stem(part) for part in torch.split(x, chunk)])


class Schedule:
    """Which pictures are in which step, whatever step one begins with."""

    def __init__(self, batches: BalancedBatches) -> None:
        self.batches = batches
        self._epoch, self._of_epoch = -1, [np.empty(0, dtype=np.int64)]

    def __call__(self, step: int) -> Index:
        """The numbers of a step's pictures."""
        epoch, place = divmod(step, len(self.batches))
        if epoch != self._epoch:
            self._epoch, self._of_epoch = epoch, self.batches.epoch(epoch)
        return self._of_epoch[place]

    def following(self, step: int) -> Iterator[Index]:
        """The batches from a step on, without end."""
        while True:
            yield self(step)
            step += 1


class Pictures:
    """Crops made anew in every step, decoded in threads ahead of time, then through the frozen stem, if any."""

    def __init__(
        self,
        loader: Loader,
        schedule: Schedule,
        stem: nn.Module,
        *,
        processes: ProcessGroup,
        device: str | torch.device = "cpu",
    ) -> None:
        self.loader, self.schedule, self.stem, self.processes, self.device = loader, schedule, stem, processes, device
        self._ahead: Iterator[Any] | None = None
        self._next = -1

    def batch(self, step: int) -> tuple[Index, Tensor]:
        """The batch of a step; steps that follow each other are prepared ahead."""
        if self._ahead is None or step != self._next:
            parts = (indices[self.processes.part(len(indices))] for indices in self.schedule.following(step))
            self._ahead = iter(self.loader.ahead(parts, start=step))
        _, own, arrays = next(self._ahead)
        self._next = step + 1
        x = as_tensor(arrays, self.device)
        if len(self.stem):  # type: ignore[arg-type]
            x = torch.stack([through(self.stem, view) for view in x])
        return self.processes.gather(torch.from_numpy(own)).numpy(), x


class Kept:
    """The stem's output for `kept` crops of each picture, of which every step draws as many as it needs.

    maps (n, kept, …) float16: half the memory, and far below what the crops differ by. `shown` (n,) are the pictures
    that they are of: an unreadable one is replaced.
    """

    def __init__(
        self,
        maps: NDArray[np.float16],
        shown: Index,
        schedule: Schedule,
        *,
        views: int,
        seed: int,
        processes: ProcessGroup,
        device: str | torch.device = "cpu",
    ) -> None:
        self.maps, self.shown, self.schedule, self.views = maps, shown, schedule, views
        self.seed, self.processes, self.device = seed, processes, device

    def batch(self, step: int) -> tuple[Index, Tensor]:
        """The batch of a step, each picture in different crops for different views."""
        indices = self.schedule(step)
        rng = np.random.default_rng([self.seed, 7, step])
        order = rng.random((len(indices), self.maps.shape[1])).argsort(axis=1)[:, : self.views]
        own = self.processes.part(len(indices))
        drawn = self.maps[indices[own, None], order[own]].swapaxes(0, 1)
        return self.shown[indices], torch.from_numpy(drawn.astype(np.float32)).to(self.device)


def keep(
    stem: nn.Module,
    loader: Loader,
    count: int,
    kept: int,
    *,
    device: str | torch.device = "cpu",
    folder: Path | None = None,
    show: bool = True,
) -> tuple[NDArray[np.float16], Index]:
    """The stem's output for `kept` crops of each of `count` pictures, (count, kept, …) float16, and whose they are.

    With `folder`, it is a file there, named after all that decides it, and made only once; what could not be read then
    is told by the loader as if it had tried again.
    """
    if folder is None:
        return _made(stem, loader, count, kept, device, show)
    file = folder / f"frozen-{_key(stem, loader, kept)[:16]}.npy"
    beside = file.with_suffix(".json")
    if not file.exists():
        maps, shown = _made(stem, loader, count, kept, device, show)
        file.parent.mkdir(parents=True, exist_ok=True)
        skipped = [[s.index, s.name, s.reason] for s in loader.skipped]
        replaced = [[int(i), int(shown[i])] for i in np.flatnonzero(shown != np.arange(count))]
        media.write_text(beside, json.dumps({"skipped": skipped, "replaced": replaced}) + "\n")
        with media.atomic(file) as sibling, open(sibling, "wb") as stream:
            np.save(stream, maps, allow_pickle=False)
    said = read_json(beside)
    loader.leave_out(Skipped(int(i), str(name), str(why)) for i, name, why in said["skipped"])
    shown = np.arange(count, dtype=np.int64)
    for i, j in said["replaced"]:
        shown[i] = j
    return np.load(file, mmap_mode="r", allow_pickle=False), shown


def _made(
    stem: nn.Module, loader: Loader, count: int, kept: int, device: str | torch.device, show: bool
) -> tuple[NDArray[np.float16], Index]:
    maps, shown = np.empty((0, kept), dtype=np.float16), np.arange(count, dtype=np.int64)
    parts = np.array_split(np.arange(count, dtype=np.int64), max(1, count // 64))
    with progress(kept * len(parts), "frozen part", show=show) as advance:
        for k in range(kept):
            ahead = loader.ahead(parts, start=k, stride=0)
            for part, (_, real, views) in zip(parts, ahead, strict=True):
                y = through(stem, as_tensor(views[0], device)).cpu().numpy()
                if not len(maps):
                    maps = np.empty((count, kept, *y.shape[1:]), dtype=np.float16)
                maps[part, k], shown[part] = y, real
                advance()
    return maps, shown


def _key(stem: nn.Module, loader: Loader, kept: int) -> str:
    """sha256 of the stem's weights, the pictures (files by name, size and time), and how crops are drawn."""
    found = hashlib.sha256(f"{loader.augment} {loader.seed} {kept} {stem}".encode())
    for name, value in sorted(stem.state_dict().items()):
        found.update(name.encode() + np.ascontiguousarray(value.cpu().numpy()).tobytes())
    for item in loader.items:
        if isinstance(item, str | os.PathLike):
            found.update(os.fsencode(item) + f" {media.size_and_time(item)}\n".encode())
        else:
            array = np.asarray(item)
            found.update(f"{array.shape} {array.dtype}\n".encode() + array.tobytes())
    return found.hexdigest()
