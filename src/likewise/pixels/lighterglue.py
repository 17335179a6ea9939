"""LighterGlue on a processor: kornia's network of one head, its sums in another order and in pieces.

The matches are kornia's to rounding, in 0.6 of its time on AMD. Products are oneDNN's, twice as fast there as those of
the library that torch calls; each new size costs it a millisecond, so features are padded to a multiple of STEP, and
padded and pruned ones are masked. Attention goes through STEP rows at a time: buffers of megabytes are given back to
the system after each operation and faulted in again, 14,000 pages a pair in kornia's, 2,300 here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

Index = NDArray[np.int64]
Rows = NDArray[np.float32]
Affine = tuple[Tensor, Tensor]

STEP = 128
"""Features are padded to a multiple of this, and attention takes so many rows at a time: 103 ms a pair; 256: 112."""
NEVER = -1e9
"""What is added to the similarity to a feature that is masked."""
BACKEND: Any = torch.backends.mkldnn
ONEDNN: bool = BACKEND.is_available()


class Block(NamedTuple):
    """Attention of an image to itself or to the other one, and what is learned from it."""

    project: Affine
    first: Affine
    norm: Any
    last: Affine

    def update(self, x: Tensor, heard: Tensor) -> Tensor:
        """The descriptors after what was heard."""
        return x + linear(functional.gelu(self.norm(linear(torch.cat([x, heard], 1), *self.first))), *self.last)


class LighterGlue:
    """kornia's LightGlue of one head, made ready: q is scaled, and what is heard goes on without a step between."""

    def __init__(self, network: Any) -> None:
        self.network, conf = network, network.conf
        self.prune, self.least = 1 - conf.width_confidence, conf.filter_threshold
        with torch.no_grad():
            self.layers = [(_own(layer.self_attn), _cross(layer.cross_attn)) for layer in network.transformers]

    @torch.inference_mode()
    def __call__(self, data: dict[str, dict[str, Tensor]]) -> tuple[Index, Index, Rows]:
        """Matches i ↔ j and their scores, of what kornia's network takes."""
        net, sides = self.network, [self._prepared(**side) for side in data.values()]
        for (own, cross), head in zip(self.layers, net.log_assignment, strict=True):
            for side in sides:
                q, k, v = linear(side.x, *own.project).chunk(3, 1)
                side.x = own.update(side.x, attend(_turned(q, side.turns), _turned(k, side.turns), v, side.mask))
            (q0, v0), (q1, v1) = (linear(side.x, *cross.project).chunk(2, 1) for side in sides)
            heard = attend(q0, q1, v1, sides[1].mask), attend(q1, q0, v0, sides[0].mask)
            for side, news in zip(sides, heard, strict=True):
                side.x = cross.update(side.x, news)
                if head is not net.log_assignment[-1]:
                    side.keep(torch.sigmoid(head.matchability(side.x))[:, 0] > self.prune)
            if not all(len(side.left) for side in sides):
                return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float32)
        return self._assigned(*sides)

    def _prepared(self, keypoints: Tensor, descriptors: Tensor, image_size: Tensor) -> Side:
        places = (keypoints[0] - image_size / 2) / (image_size.max() / 2)
        angles = self.network.posenc.Wr(places)
        return Side(self.network.input_proj(descriptors[0]), torch.polar(torch.ones_like(angles), angles))

    def _assigned(self, a: Side, b: Side) -> tuple[Index, Index, Rows]:
        """Features that choose each other by the last layer."""
        head, x, y = self.network.log_assignment[-1], a.x[a.alive], b.x[b.alive]
        one, two = (head.final_proj(d) / d.shape[1] ** 0.25 for d in (x, y))
        similar = one @ two.T
        rows = similar.logsumexp(1, keepdim=True) - functional.logsigmoid(head.matchability(x))
        columns = similar.logsumexp(0, keepdim=True) - functional.logsigmoid(head.matchability(y)).T
        score = similar.mul_(2).sub_(rows).sub_(columns).numpy()
        j = score.argmax(axis=1)
        best = score[np.arange(len(j)), j]
        i = np.flatnonzero((best == score.max(axis=0)[j]) & (np.exp(best) > self.least))
        return a.left.numpy()[i], b.left.numpy()[j[i]], np.exp(best[i])


class Side:
    """One image's descriptors, padded, what turns them by their places, which rows are alive, and whose they are."""

    def __init__(self, x: Tensor, turns: Tensor) -> None:
        self.left = torch.arange(len(x))
        self._fit(x, turns)

    def _fit(self, x: Tensor, turns: Tensor) -> None:
        self.alive, more = torch.arange(len(x)), -len(x) % STEP
        self.x, self.turns = (torch.cat([z, z.new_zeros(more, z.shape[1])]) for z in (x, turns))
        self.mask = torch.full((len(self.x),), NEVER).index_fill_(0, self.alive, 0)

    def keep(self, sure: Tensor) -> None:
        """Mask the rows that are not sure; take them out where a step of them is gone."""
        kept = sure[self.alive]
        self.left, self.alive = self.left[kept], self.alive[kept]
        if len(self.alive) <= len(self.x) - STEP:
            self._fit(self.x[self.alive], self.turns[self.alive])
        else:
            self.mask = torch.full_like(self.mask, NEVER).index_fill_(0, self.alive, 0)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x Wᵀ + b."""
    return functional.linear(x.to_mkldnn(), weight, bias).to_dense() if ONEDNN else functional.linear(x, weight, bias)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """softmax(q kᵀ + mask) v."""
    k, columns = k.contiguous(), v.T.contiguous()
    heard = []
    for part in torch.split(q.contiguous(), STEP):
        similar = functional.linear(part.to_mkldnn() if ONEDNN else part, k, mask)
        some = functional.linear(similar.softmax(-1), columns)
        heard.append(some.to_dense() if ONEDNN else some)
    return torch.cat(heard)


def _turned(x: Tensor, turns: Tensor) -> Tensor:
    """Pairs of numbers as complex ones, turned by their places."""
    pairs = torch.view_as_complex(torch.unflatten(x.contiguous(), 1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(1)


def _own(block: Any) -> Block:
    # kornia has q, k and v of each number side by side
    weight, bias = (w.unflatten(0, (-1, 3)).transpose(0, 1).clone() for w in (block.Wqkv.weight, block.Wqkv.bias))
    weight[0], bias[0] = weight[0] * block.head_dim**-0.5, bias[0] * block.head_dim**-0.5
    return _block(block, (weight.flatten(0, 1), bias.flatten(0, 1)), block.out_proj)


def _cross(block: Any) -> Block:
    scale = block.scale**0.5
    weight = torch.cat([block.to_qk.weight * scale, block.to_v.weight])
    return _block(block, (weight, torch.cat([block.to_qk.bias * scale, block.to_v.bias])), block.to_out)


def _block(block: Any, project: Affine, out: Any) -> Block:
    first, norm, _, last = block.ffn
    x, heard = first.weight.chunk(2, 1)
    joined = torch.cat([x, heard @ out.weight], 1), first.bias + heard @ out.bias
    return Block(project, joined, norm, (last.weight, last.bias))
