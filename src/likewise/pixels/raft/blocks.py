"""RAFT's parts: encoders of residual blocks or bottlenecks, and the update block [RAFT Eq. 3–6, Fig. 8].

Module names are those of the published state dicts, so that weights load by key. The gates' convolutions read the
state, the context and the motion side by side; the context never changes, so its part is computed once
(`Update.gates`), and the gates z and r, which read the same, are one convolution. The numbers are those of the
separate ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from likewise.nn.backbone import convolve

Norm: TypeAlias = Literal["instance", "batch", "none"]
Widths: TypeAlias = tuple[int, int, int, int]


class InstanceNorm(nn.Module):
    """(x − mean) / √(variance + ε) of each image's channel; no weights, as in the original."""

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """x s − mean s with s = 1/√(variance + ε), read as rows: torch's statistics are slow on channels-last maps."""
        rows = x.permute(0, 2, 3, 1).flatten(1, 2)
        variance, mean = torch.var_mean(rows, 1, correction=0, keepdim=True)
        scale = torch.rsqrt(variance + 1e-5)
        b, c, h, w = x.shape
        return torch.addcmul(-mean * scale, rows, scale).view(b, h, w, c).permute(0, 3, 1, 2)


def norm(kind: Norm, width: int) -> nn.Module:
    """The normalisation of a name."""
    if kind == "batch":
        return nn.BatchNorm2d(width)
    return InstanceNorm() if kind == "instance" else nn.Identity()


def unit(x: Tensor, conv: nn.Conv2d, norm: nn.Module, *, relu: bool = True, add: Tensor | None = None) -> Tensor:
    """n(w ∗ x), relu(n(w ∗ x)), or with a residual relu(add + relu(n(w ∗ x)))."""
    y = convolve(x, conv, norm)
    y = y.relu_() if relu else y
    return y if add is None else (y + add).relu_()


class Block(nn.Module):
    """relu(x + y), where y is x through convolutions, each with its normalisation and ReLU [RAFT Fig. 8].

    Convolutions are 3 × 3, 3 × 3, or as a bottleneck 1 × 1, 3 × 3, 1 × 1 on a quarter of the width; x goes through
    `downsample` where the map is halved.
    """

    def __init__(self, into: int, width: int, stride: int, kind: Norm, bottleneck: bool) -> None:
        super().__init__()
        narrow = width // 4
        if bottleneck:
            rows = [(into, narrow, 1, 1), (narrow, narrow, 3, stride), (narrow, width, 1, 1)]
        else:
            rows = [(into, width, 3, stride), (width, width, 3, 1)]
        self.depth = len(rows)
        for i, (a, b, kernel, step) in enumerate(rows, start=1):
            setattr(self, f"conv{i}", nn.Conv2d(a, b, kernel, step, kernel // 2))
            setattr(self, f"norm{i}", norm(kind, b))
        self.downsample: nn.Sequential | None = None
        if stride != 1:
            self.downsample = nn.Sequential(nn.Conv2d(into, width, 1, stride), norm(kind, width))

    def forward(self, x: Tensor) -> Tensor:
        """The formula of the class."""
        y = x
        if self.downsample is not None:
            x = unit(x, cast(nn.Conv2d, self.downsample[0]), self.downsample[1], relu=False)
        for i in range(1, self.depth + 1):
            last = i == self.depth
            y = unit(y, getattr(self, f"conv{i}"), getattr(self, f"norm{i}"), add=x if last else None)
        return y


class Encoder(nn.Module):
    """Images (b, 3, h, w) in [−1, 1] to features (b, out, h/8, w/8); `widths` are the stem's and the stages'."""

    def __init__(self, widths: Widths, out: int, kind: Norm, *, bottleneck: bool) -> None:
        super().__init__()
        stem, one, two, three = widths
        self.conv1, self.norm1 = nn.Conv2d(3, stem, 7, 2, 3), norm(kind, stem)
        self.layer1 = self._stage(stem, one, 1, kind, bottleneck)
        self.layer2 = self._stage(one, two, 2, kind, bottleneck)
        self.layer3 = self._stage(two, three, 2, kind, bottleneck)
        self.conv2 = nn.Conv2d(three, out, 1)

    @staticmethod
    def _stage(into: int, width: int, stride: int, kind: Norm, bottleneck: bool) -> nn.Sequential:
        return nn.Sequential(Block(into, width, stride, kind, bottleneck), Block(width, width, 1, kind, bottleneck))

    def forward(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b out h2 w2"]:
        """Stem, three stages of two blocks, 1 × 1."""
        x = unit(x.contiguous(memory_format=torch.channels_last), self.conv1, self.norm1)
        x = self.layer3(self.layer2(self.layer1(x)))
        return cast(Tensor, self.conv2(x))


MASK_SCALE = 0.25
"""Of the mask's logits, to balance gradients: the original's."""


class Motion(nn.Module):
    """Correlation planes and flow to motion features, with the flow itself as the last two."""

    def __init__(self, planes: int, seen: tuple[int, ...], moved: tuple[int, int], out: int) -> None:
        super().__init__()
        self.convc1 = nn.Conv2d(planes, seen[0], 1)
        self.convc2 = nn.Conv2d(seen[0], seen[1], 3, padding=1) if len(seen) > 1 else None
        self.convf1, self.convf2 = nn.Conv2d(2, moved[0], 7, padding=3), nn.Conv2d(moved[0], moved[1], 3, padding=1)
        self.conv = nn.Conv2d(seen[-1] + moved[1], out, 3, padding=1)

    def forward(self, planes: Tensor, flow: Tensor) -> Tensor:
        """relu of each convolution: planes and flow apart, then together."""
        seen = self.convc1(planes).relu_()
        if self.convc2 is not None:
            seen = self.convc2(seen).relu_()
        moved = self.convf2(self.convf1(flow).relu_()).relu_()
        joined = self.conv(torch.cat([seen, moved], dim=1)).relu_()
        return torch.cat([joined, flow], dim=1)


@dataclass
class Gate:
    """A GRU's convolutions without their context part: of z and r together, and of q; and that part, computed."""

    zr: Tensor
    q: Tensor
    zr_context: Tensor
    q_context: Tensor

    def __call__(self, h: Tensor, motion: Tensor) -> Tensor:
        """z, r = σ(W [h, x]), q = tanh(W [r h, x]), h + z (q − h) [RAFT Eq. 3–6]."""
        around = (self.zr.shape[2] // 2, self.zr.shape[3] // 2)
        zr = functional.conv2d(torch.cat([h, motion], dim=1), self.zr, None, 1, around)
        z, r = (zr + self.zr_context).sigmoid_().chunk(2, dim=1)
        q = functional.conv2d(torch.cat([r * h, motion], dim=1), self.q, None, 1, around)
        return torch.lerp(h, (q + self.q_context).tanh_(), z)


class GRU(nn.Module):
    """A convolutional GRU: one of 3 × 3, or two after one another, 1 × 5 and 5 × 1."""

    def __init__(self, hidden: int, context: int, motion: int, *, separable: bool) -> None:
        super().__init__()
        self.hidden, self.context = hidden, context
        self.stages = ("1", "2") if separable else ("",)
        kernels = ((1, 5), (5, 1)) if separable else ((3, 3),)
        for stage, kernel in zip(self.stages, kernels, strict=True):
            for gate in "zrq":
                around = (kernel[0] // 2, kernel[1] // 2)
                conv = nn.Conv2d(hidden + context + motion, hidden, kernel, padding=around)
                setattr(self, f"conv{gate}{stage}", conv)

    def gates(self, context: Tensor) -> list[Gate]:
        """What the iterations need: weights by input, and the context's part with the bias."""
        return [self._gate(context, stage) for stage in self.stages]

    def _gate(self, context: Tensor, stage: str) -> Gate:
        z, r, q = (cast(nn.Conv2d, getattr(self, f"conv{gate}{stage}")) for gate in "zrq")
        weight = torch.cat([z.weight, r.weight, q.weight])
        bias = torch.cat([cast(Tensor, c.bias) for c in (z, r, q)])
        sizes = [self.hidden, self.context, weight.shape[1] - self.hidden - self.context]
        state, given, motion = torch.split(weight, sizes, dim=1)
        around = (weight.shape[2] // 2, weight.shape[3] // 2)
        computed = functional.conv2d(context, given, bias, 1, around)
        rest = torch.cat([state, motion], dim=1).contiguous(memory_format=torch.channels_last)
        two = 2 * self.hidden
        return Gate(rest[:two], rest[two:], computed[:, :two], computed[:, two:])


class FlowHead(nn.Module):
    """State to a step of the flow: 3 × 3, ReLU, 3 × 3."""

    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(hidden, width, 3, padding=1), nn.Conv2d(width, 2, 3, padding=1)

    def forward(self, h: Tensor) -> Tensor:
        """(b, 2, h, w): x, then y."""
        return cast(Tensor, self.conv2(self.conv1(h).relu_()))


class Update(nn.Module):
    """One step of the recurrence: look at the correlations, remember, move.

    `seen`, `moved` and `motion` are widths of the motion encoder, `head` of the flow head, `mask` of the mask head
    (0: there is none, and flow is enlarged bilinearly).
    """

    def __init__(
        self,
        planes: int,
        hidden: int,
        context: int,
        seen: tuple[int, ...],
        moved: tuple[int, int],
        motion: int,
        head: int,
        mask: int = 0,
        *,
        separable: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = Motion(planes, seen, moved, motion)
        self.gru = GRU(hidden, context, motion + 2, separable=separable)
        self.flow_head = FlowHead(hidden, head)
        self.mask: nn.Sequential | None = None
        if mask:
            self.mask = nn.Sequential(nn.Conv2d(hidden, mask, 3, padding=1), nn.ReLU(), nn.Conv2d(mask, 64 * 9, 1))

    def gates(self, context: Float[Tensor, "b c h w"]) -> list[Gate]:
        """The part of every step that only depends on the context: once a pair."""
        return self.gru.gates(context)

    def forward(
        self,
        h: Float[Tensor, "b hidden h w"],
        gates: list[Gate],
        planes: Float[Tensor, "b planes h w"],
        flow: Float[Tensor, "b 2 h w"],
    ) -> tuple[Float[Tensor, "b hidden h w"], Float[Tensor, "b 2 h w"]]:
        """The new state, and the step."""
        motion = self.encoder(planes, flow)
        for gate in gates:
            h = gate(h, motion)
        return h, self.flow_head(h)

    def enlarge(self, flow: Float[Tensor, "b 2 h w"], h: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 2 h8 w8"]:
        """The flow at eight times the size: convex by the mask head of state h, or bilinear where there is none."""
        return bilinear(flow) if self.mask is None else convex(flow, MASK_SCALE * self.mask(h))


def bilinear(flow: Float[Tensor, "b 2 h w"]) -> Float[Tensor, "b 2 h8 w8"]:
    """Eight times the size and the vectors, corner on corner, as the original's small network does."""
    size = (8 * flow.shape[2], 8 * flow.shape[3])
    return 8 * functional.interpolate(flow, size=size, mode="bilinear", align_corners=True)


def convex(flow: Float[Tensor, "b 2 h w"], logits: Float[Tensor, "b 576 h w"]) -> Float[Tensor, "b 2 h8 w8"]:
    """Each of a cell's 8 × 8 pixels is a convex combination of the 3 × 3 cells around, weights softmax(logits).

    The combination's index is the slowest of the 576, as in the original; zero flow beyond the border.
    """
    b, _, h, w = flow.shape
    weights = logits.reshape(b, 9, 64, h, w).softmax(dim=1)
    around = functional.unfold(8 * flow, 3, padding=1).view(b, 2, 9, h, w)
    fine = torch.einsum("bkshw,bckhw->bcshw", weights, around)
    return fine.view(b, 2, 8, 8, h, w).permute(0, 1, 4, 2, 5, 3).reshape(b, 2, 8 * h, 8 * w)
