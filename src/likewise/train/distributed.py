"""The processes of one training: `torchrun` starts several, each holds a part of every batch.

Every process sees all rows (`gather`) and computes the whole loss with the same draws, but the gradient flows only
through its own rows; summed over processes it is the gradient that one process with the whole batch would have. What
acts on gathered rows (the parameters of a loss) has its whole gradient in each process already.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from likewise.errors import InputError


@dataclass(frozen=True)
class ProcessGroup:
    """This process's number and how many there are."""

    rank: int = 0
    size: int = 1

    @classmethod
    def current(cls) -> ProcessGroup:
        """The processes that torchrun has started, joined on the first call; otherwise this one alone."""
        if not dist.is_available():
            return cls()
        if not dist.is_initialized():
            if int(os.environ.get("WORLD_SIZE", "1")) == 1:
                return cls()
            if torch.cuda.is_available():  # "cuda" is then the card of this process, as NCCL needs it
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
            dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and speaks."""
        return self.rank == 0

    def part(self, n: int) -> slice:
        """The rows of a batch of n that are this process's."""
        if n % self.size:
            raise InputError(f"batch: {n} images cannot be dealt evenly to {self.size} processes")
        share = n // self.size
        return slice(self.rank * share, (self.rank + 1) * share)

    def gather(self, x: Tensor) -> Tensor:
        """The rows of all processes in their order; the gradient flows through this process's own."""
        if self.size == 1:
            return x
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x.detach().contiguous())
        parts[self.rank] = x
        return torch.cat(parts)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Add up the gradients of all processes, in one message; one that a process lacks counts as 0."""
        if self.size == 1:
            return
        every = [p for p in parameters if p.requires_grad]
        if not every:
            return
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in every])
        dist.all_reduce(flat)
        for p, g in zip(every, torch.split(flat, [p.numel() for p in every]), strict=True):
            p.grad = g.reshape(p.shape).clone()

    def broadcast(self, x: Tensor) -> Tensor:
        """The first process's value in every process."""
        if self.size > 1:
            dist.broadcast(x, 0)
        return x

    def barrier(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            dist.barrier()
