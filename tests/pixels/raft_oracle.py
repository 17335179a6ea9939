"""RAFT as its paper and its published layout describe it, in plain eager torch: what ours must equal and outrun.

Functions on a state dict under the official keys (without `module.`). Nothing but the shapes of weights is the
library's, nothing is clever: images stay (b, c, h, w), correlations of all pairs are pooled and sampled by
`grid_sample`, gates read torch.cat of state and input, and the flow is made large in every iteration, as the official
code does it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from likewise.pixels.raft import RAFT

State = dict[str, Tensor]

# ------------------------------------------------------------------------------------------------ the published layout


def shapes(size: str) -> dict[str, tuple[int, ...]]:
    """Every key of the official state dict with its shape: ours, and shared modules under their second name.

    That the keys are the official ones is told by what follows, which reads them by hand, and by the published number
    of weights.
    """
    own = {key: tuple(value.shape) for key, value in RAFT(size).state_dict().items()}
    return own | {key.replace("downsample.1", "norm3"): shape for key, shape in own.items() if ".downsample.1." in key}


def random_state(size: str, seed: int = 0, dtype: torch.dtype = torch.float64) -> State:
    """Random weights of a trained network's size under the official keys; shared modules hold the same numbers."""
    g = torch.Generator().manual_seed(seed)
    state: State = {}
    for key, shape in shapes(size).items():
        if key.endswith("num_batches_tracked"):
            state[key] = torch.tensor(7)
        elif key.endswith("running_var") or (len(shape) == 1 and "norm" in key and key.endswith(".weight")):
            state[key] = 0.5 + torch.rand(shape, generator=g, dtype=dtype)
        elif len(shape) == 1:
            state[key] = 0.1 * torch.randn(shape, generator=g, dtype=dtype)
        else:
            fan = shape[1] * shape[2] * shape[3]
            state[key] = torch.randn(shape, generator=g, dtype=dtype) * (1.5 / fan) ** 0.5
    for key in [k for k in state if ".downsample.1." in k]:
        state[key] = state[key.replace("downsample.1", "norm3")]
    return state


def torchvision_state(state: State) -> State:
    """The same weights under torchvision's keys."""
    result = {}
    for key, value in state.items():
        if ".norm3." in key and ".downsample.1." not in key and _bottleneck(key, state) is False:
            continue  # torchvision holds the shared module once
        result[_torchvision(key)] = value
    return result


def _bottleneck(key: str, state: State) -> bool:
    return key.rsplit(".norm", 1)[0] + ".conv3.weight" in state


def _torchvision(key: str) -> str:
    net, *rest, leaf = key.split(".")
    if net in ("fnet", "cnet"):
        start = {"fnet": "feature_encoder", "cnet": "context_encoder"}[net]
        if len(rest) == 1:
            middle = {"conv1": "convnormrelu.0", "norm1": "convnormrelu.1", "conv2": "conv"}[rest[0]]
            return f"{start}.{middle}.{leaf}"
        layer, block, *part = rest
        if part[0] == "downsample":
            return f"{start}.{layer}.{block}.downsample.{part[1]}.{leaf}"
        kind, number = part[0][:-1], part[0][-1]
        return f"{start}.{layer}.{block}.convnormrelu{number}.{0 if kind == 'conv' else 1}.{leaf}"
    part, *name = rest
    if part == "encoder":
        word = {"convc1": "convcorr1", "convc2": "convcorr2", "convf1": "convflow1", "convf2": "convflow2"}
        return f"update_block.motion_encoder.{word.get(name[0], name[0])}.0.{leaf}"
    if part == "gru":
        number = name[0][5:] or "1"
        return f"update_block.recurrent_block.convgru{number}.{name[0][:5]}.{leaf}"
    if part == "mask":
        return f"mask_predictor.{'convrelu.0' if name[0] == '0' else 'conv'}.{leaf}"
    return f"update_block.flow_head.{name[0]}.{leaf}"


# ------------------------------------------------------------------------------------------------------------ the maths


def flows(
    w: State, a: Tensor, b: Tensor, iters: int = 12, *, start: Tensor | None = None, every: bool = True
) -> list[Tensor]:
    """RAFT's flows (b, h, w, 2) of images (b, 3, h, w) in [0, 1], h and w multiples of 8, h, w ≥ 128.

    `start` is a flow at 1/8 of the size, in its pixels, (b, 2, h/8, w/8). With `every`, as officially, each iteration's
    flow is made large; without it only the last one is, which is what a user of the network could ask for.
    """
    small = "update_block.gru.convz.weight" in w
    hidden = 96 if small else 128
    a, b = 2 * a - 1, 2 * b - 1
    both = encoder(w, "fnet", torch.cat([a, b]), "instance", small)
    fa, fb = both.chunk(2)
    context = encoder(w, "cnet", a, "none" if small else "batch", small)
    state, given = torch.tanh(context[:, :hidden]), torch.relu(context[:, hidden:])
    pyramid = volume(fa, fb)
    home = positions(fa)
    at = home if start is None else home + start
    result = []
    for i in range(iters):
        at = at.detach()
        planes = lookup(pyramid, at, 3 if small else 4)
        state, step, mask = (small_update if small else large_update)(w, state, given, planes, at - home)
        at = at + step
        if every or i == iters - 1:
            result.append(enlarged(at - home) if mask is None else convex(at - home, mask))
    return [f.permute(0, 2, 3, 1) for f in result]


def conv(w: State, name: str, x: Tensor, stride: int = 1) -> Tensor:
    weight = w[f"{name}.weight"]
    around = (weight.shape[2] // 2, weight.shape[3] // 2)
    return functional.conv2d(x, weight, w[f"{name}.bias"], stride=stride, padding=around)


def norm(w: State, name: str, x: Tensor, kind: str) -> Tensor:
    if kind == "instance":
        return functional.instance_norm(x)
    if kind == "none":
        return x
    mean, var = w[f"{name}.running_mean"], w[f"{name}.running_var"]
    return functional.batch_norm(x, mean, var, w[f"{name}.weight"], w[f"{name}.bias"])


def encoder(w: State, net: str, x: Tensor, kind: str, small: bool) -> Tensor:
    x = torch.relu(norm(w, f"{net}.norm1", conv(w, f"{net}.conv1", x, 2), kind))
    for layer in (1, 2, 3):
        for i in (0, 1):
            block = f"{net}.layer{layer}.{i}"
            stride = 2 if layer > 1 and i == 0 else 1
            y = x
            for number in (1, 2, 3) if small else (1, 2):
                strided = number == (2 if small else 1)
                y = conv(w, f"{block}.conv{number}", y, stride if strided else 1)
                y = torch.relu(norm(w, f"{block}.norm{number}", y, kind))
            if stride == 2:
                x = norm(w, f"{block}.downsample.1", conv(w, f"{block}.downsample.0", x, 2), kind)
            x = torch.relu(x + y)
    return conv(w, f"{net}.conv2", x)


def volume(fa: Tensor, fb: Tensor, levels: int = 4) -> list[Tensor]:
    """⟨fa, fb⟩ / √C of all pairs, and its means over 2 × 2, 4 × 4 … of b."""
    n, c, h, w = fa.shape
    whole = torch.matmul(fa.flatten(2).transpose(1, 2), fb.flatten(2)) / c**0.5
    pyramid = [whole.reshape(n * h * w, 1, h, w)]
    for _ in range(levels - 1):
        pyramid.append(functional.avg_pool2d(pyramid[-1], 2, 2))
    return pyramid


def positions(like: Tensor) -> Tensor:
    """(b, 2, h, w): x, then y."""
    n, _, h, w = like.shape
    y, x = torch.meshgrid(*(torch.arange(s, dtype=like.dtype) for s in (h, w)), indexing="ij")
    return torch.stack([x, y]).expand(n, 2, h, w)


def lookup(pyramid: list[Tensor], at: Tensor, radius: int) -> Tensor:
    """Windows around the points; the offset that varies slowest is added to x: the original's transposed window."""
    n, _, h, w = at.shape
    steps = torch.linspace(-radius, radius, 2 * radius + 1, dtype=at.dtype)
    window = torch.stack(torch.meshgrid(steps, steps, indexing="ij"), dim=-1)
    centre = at.permute(0, 2, 3, 1).reshape(n * h * w, 1, 1, 2)
    planes = []
    for level, c in enumerate(pyramid):
        points = centre / 2**level + window
        scale = points.new_tensor([c.shape[3] - 1, c.shape[2] - 1])
        result = functional.grid_sample(c, 2 * points / scale - 1, align_corners=True)
        planes.append(result.view(n, h, w, -1))
    return torch.cat(planes, dim=-1).permute(0, 3, 1, 2).contiguous()


def small_update(w: State, h: Tensor, given: Tensor, planes: Tensor, flow: Tensor) -> tuple[Tensor, Tensor, None]:
    e = "update_block.encoder"
    seen = torch.relu(conv(w, f"{e}.convc1", planes))
    moved = torch.relu(conv(w, f"{e}.convf2", torch.relu(conv(w, f"{e}.convf1", flow))))
    motion = torch.relu(conv(w, f"{e}.conv", torch.cat([seen, moved], dim=1)))
    h = gated(w, h, torch.cat([given, motion, flow], dim=1), "")
    return h, head(w, h), None


def large_update(w: State, h: Tensor, given: Tensor, planes: Tensor, flow: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    e = "update_block.encoder"
    seen = torch.relu(conv(w, f"{e}.convc2", torch.relu(conv(w, f"{e}.convc1", planes))))
    moved = torch.relu(conv(w, f"{e}.convf2", torch.relu(conv(w, f"{e}.convf1", flow))))
    motion = torch.relu(conv(w, f"{e}.conv", torch.cat([seen, moved], dim=1)))
    x = torch.cat([given, motion, flow], dim=1)
    h = gated(w, gated(w, h, x, "1"), x, "2")
    mask = 0.25 * conv(w, "update_block.mask.2", torch.relu(conv(w, "update_block.mask.0", h)))
    return h, head(w, h), mask


def gated(w: State, h: Tensor, x: Tensor, number: str) -> Tensor:
    both = torch.cat([h, x], dim=1)
    z = torch.sigmoid(conv(w, f"update_block.gru.convz{number}", both))
    r = torch.sigmoid(conv(w, f"update_block.gru.convr{number}", both))
    q = torch.tanh(conv(w, f"update_block.gru.convq{number}", torch.cat([r * h, x], dim=1)))
    return (1 - z) * h + z * q


def head(w: State, h: Tensor) -> Tensor:
    return conv(w, "update_block.flow_head.conv2", torch.relu(conv(w, "update_block.flow_head.conv1", h)))


def enlarged(flow: Tensor) -> Tensor:
    """Eight times as large, corner on corner."""
    high, wide = flow.shape[2:]
    return 8 * functional.interpolate(flow, size=(8 * high, 8 * wide), mode="bilinear", align_corners=True)


def convex(flow: Tensor, mask: Tensor) -> Tensor:
    """Each of the 64 pixels of a cell is a convex combination of the 3 × 3 cells around it."""
    n, _, h, w = flow.shape
    weights = torch.softmax(mask.view(n, 1, 9, 8, 8, h, w), dim=2)
    around = functional.unfold(8 * flow, [3, 3], padding=1).view(n, 2, 9, 1, 1, h, w)
    return (weights * around).sum(dim=2).permute(0, 1, 4, 2, 5, 3).reshape(n, 2, 8 * h, 8 * w)
