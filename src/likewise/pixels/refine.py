"""The recurrence: look around where a cell goes to now, and move it; a small RAFT on the cells of the encoder.

Of the correlations of a cell with the cells around its present goal, (2 r + 1)² on each of three scales, a gated
recurrent unit makes a step. The same weights serve every step, both directions, and pictures of any size.
"""

from __future__ import annotations

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from likewise.pixels import lookup
from likewise.pixels.geometry import grid

RADIUS = 3
LEVELS = 3


class Volume:
    """All similarities of the cells of two pictures, with the second at 1, 1/2 and 1/4 of its size."""

    def __init__(self, fa: Float[Tensor, "b d h w"], fb: Float[Tensor, "b d h2 w2"], levels: int = LEVELS) -> None:
        self.shape = fa.shape
        self.levels: list[Tensor] = []
        self.sizes: list[tuple[int, int]] = []
        rows = fa.flatten(2).transpose(1, 2)
        for i in range(levels):
            if i:
                fb = functional.avg_pool2d(fb, 2, ceil_mode=True, count_include_pad=False)
            self.sizes.append((int(fb.shape[-2]), int(fb.shape[-1])))
            self.levels.append(torch.bmm(rows, fb.flatten(2)))

    def around(self, goals: Float[Tensor, "b h w 2"], radius: int = RADIUS) -> Float[Tensor, "b planes h w"]:
        """Similarities in windows around the cells' goals, given in cells of the second picture."""
        b, _, h, w = self.shape
        planes = []
        for i, (level, size) in enumerate(zip(self.levels, self.sizes, strict=True)):
            at = (goals.reshape(b, h * w, 2) + 0.5) / 2**i - 0.5
            planes.append(window(level, at, size, radius))
        return torch.cat(planes, -1).view(b, h, w, -1).movedim(-1, 1)  # channels-last as it stands


class Nearby:
    """The same windows, computed from the features when they are asked for: for inference, in little memory."""

    def __init__(self, fa: Float[Tensor, "b d h w"], fb: Float[Tensor, "b d h2 w2"], levels: int = LEVELS) -> None:
        self.shape = fa.shape
        self.rows = fa.movedim(1, -1).flatten(0, 2).contiguous().numpy()
        self.maps = []
        for i in range(levels):
            if i:
                fb = functional.avg_pool2d(fb, 2, ceil_mode=True, count_include_pad=False)
            self.maps.append(fb.movedim(1, -1).contiguous().numpy())

    def around(self, goals: Float[Tensor, "b h w 2"], radius: int = RADIUS) -> Float[Tensor, "b planes h w"]:
        """Similarities in windows around the cells' goals, given in cells of the second picture."""
        b, _, h, w = self.shape
        side = 2 * radius + 1
        planes = goals.new_empty(b * h * w, len(self.maps), side, side)
        for i, features in enumerate(self.maps):
            at = ((goals + 0.5) / 2**i - 0.5).reshape(-1, 2).contiguous().numpy()
            found = goals.new_empty(b * h * w, side * side)
            lookup.on_demand(self.rows, [features], at, radius, found.numpy())
            planes[:, i] = found.view(-1, side, side).mT  # there, x is the slower one
        return planes.view(b, h, w, -1).movedim(-1, 1)


def window(level: Float[Tensor, "b n m"], at: Float[Tensor, "b n 2"], size: tuple[int, int], radius: int) -> Tensor:
    """(2 r + 1)² bilinear samples of each row's picture, 0 outside; all share one fraction: 2 r + 2 whole lines do."""
    h, w = size
    low = at.floor()
    fx, fy = (at - low).unbind(-1)
    offsets = torch.arange(-radius, radius + 2, device=at.device)
    x = low[..., 0, None].long() + offsets
    y = low[..., 1, None].long() + offsets
    index = y.clamp(0, h - 1)[..., :, None] * w + x.clamp(0, w - 1)[..., None, :]
    values = level.gather(2, index.flatten(2)).view(index.shape)
    inside = ((y >= 0) & (y < h))[..., :, None] & ((x >= 0) & (x < w))[..., None, :]
    values = values * inside
    across = torch.lerp(values[..., :-1], values[..., 1:], fx[..., None, None])
    return torch.lerp(across[..., :-1, :], across[..., 1:, :], fy[..., None, None]).flatten(2)


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
        """The hidden state of a picture's cells, and what its context adds to the gates in every step."""
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
        volume: Volume | Nearby,
        start: Float[Tensor, "b h w 2"],
        sure: Float[Tensor, "b h w"],
        iters: int,
    ) -> list[Float[Tensor, "b h w 2"]]:
        """The flow after each step, in cells; gradients do not flow from step to step through the places looked at."""
        hidden, given = self.begin(fa)
        flow = start.detach()
        base = grid(int(start.shape[1]), int(start.shape[2]), like=start)
        found: list[Tensor] = []
        for _ in range(iters):
            flow = flow.detach()
            seen = volume.around(base + flow, self.radius)
            hidden, step = self.step(hidden, given, seen, flow.movedim(-1, 1), sure[:, None])
            flow = flow + step.movedim(1, -1)
            found.append(flow)
        return found
