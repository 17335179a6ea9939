"""RAFT (Teed and Deng 2020): dense flow by a recurrent search in the correlations of all pairs of features.

Small and large are the published networks, number for number: their state dicts load by key, the official ones and
torchvision's, and give the same flow. Besides there are sizes for a CPU, to be trained. Pixel centres are at
integers; a cell of the maps at 1/8 stands at 8 times its index; flow is x, then y, in pixels.

Module names are those of the published state dicts, so that weights load by key. The gates' convolutions read the
state, the context and the motion side by side; the context never changes, so its part is computed once
(`Update.gates`), and the gates z and r, which read the same, are one convolution. The numbers are those of the
separate ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from likewise.errors import FileError, InputError, ShapeError
from likewise.nn.backbone import convolve, seeded
from likewise.nn.pretrained import State, as_state, load_state
from likewise.pixels.geometry import grid, resize, resize_flow, size_of
from likewise.pixels.raft.correlation import Correlation, Kind

Norm: TypeAlias = Literal["instance", "batch", "none"]
Widths: TypeAlias = tuple[int, int, int, int]

STRIDE = 8
"""Pixels of a cell of the feature maps."""

SMALLEST = 128
"""An image with a shorter side is enlarged to it first: below, the coarsest correlations would be a single cell."""


@dataclass(frozen=True)
class Frame:
    """The way of images (h, w) into the network and of flow out: enlarged where small, padded to multiples of 8."""

    h: int
    w: int

    @property
    def size(self) -> tuple[int, int]:
        """The size before padding."""
        factor = max(1.0, SMALLEST / min(self.h, self.w))
        return round(self.h * factor), round(self.w * factor)

    @property
    def padding(self) -> tuple[int, int, int, int]:
        """Left, right, top, bottom: half on each side, the odd pixel right and below, as the original for Sintel."""
        high, wide = (-side % STRIDE for side in self.size)
        return wide // 2, wide - wide // 2, high // 2, high - high // 2

    def enter(self, image: Tensor) -> Tensor:
        """2 x − 1, enlarged and padded."""
        if self.size != (self.h, self.w):
            image = functional.interpolate(image, self.size, mode="bilinear", align_corners=False)
        return functional.pad(2 * image - 1, self.padding, mode="replicate")

    def leave(self, flow: Tensor) -> Tensor:
        """Flow (b, 2, h, w) of the padded images as (b, h, w, 2) of the given ones."""
        left, _, top, _ = self.padding
        high, wide = self.size
        return resize_flow(flow[:, :, top : top + high, left : left + wide].permute(0, 2, 3, 1), (self.h, self.w))


_TORCHVISION = (
    (r"^feature_encoder\.", "fnet."),
    (r"^context_encoder\.", "cnet."),
    (r"^(.net)\.convnormrelu\.0\.", r"\1.conv1."),
    (r"^(.net)\.convnormrelu\.1\.", r"\1.norm1."),
    (r"^(.net)\.conv\.", r"\1.conv2."),
    (r"\.convnormrelu(\d)\.0\.", r".conv\1."),
    (r"\.convnormrelu(\d)\.1\.", r".norm\1."),
    (r"^update_block\.motion_encoder\.convcorr(\d)\.0\.", r"update_block.encoder.convc\1."),
    (r"^update_block\.motion_encoder\.convflow(\d)\.0\.", r"update_block.encoder.convf\1."),
    (r"^update_block\.motion_encoder\.conv\.0\.", "update_block.encoder.conv."),
    (r"^update_block\.recurrent_block\.convgru(\d)\.conv([zrq])\.", r"update_block.gru.conv\2\1."),
    (r"^mask_predictor\.convrelu\.0\.", "update_block.mask.0."),
    (r"^mask_predictor\.conv\.", "update_block.mask.2."),
)
"""torchvision's names to the official ones, one after the other."""


def translated(state: State) -> dict[str, Tensor]:
    """The weights under our names, whichever of the two layouts they come in.

    A shortcut's normalisation is `downsample.1`; officially it is also the norm after that of the block's last
    convolution: `norm3`, of a bottleneck `norm4`.
    """
    vision = any(key.startswith(("feature_encoder.", "context_encoder.", "mask_predictor.")) for key in state)
    names = _official_names(state) if vision else {key: key for key in state}
    given = {names[key]: value for key, value in state.items()}
    ours = dict(given)
    for key in given:
        alias = re.match(r"^(.net\.layer\d\.\d)\.norm([34])\.(.+)$", key)
        if alias is None or alias[2] != ("4" if f"{alias[1]}.conv3.weight" in given else "3"):
            continue
        twin = f"{alias[1]}.downsample.1.{alias[3]}"
        if twin in given and not torch.equal(given[key], given[twin]):
            raise FileError(f"weights of RAFT: {key} and {twin} are one module under two names, but they differ")
        ours[twin] = ours.pop(key)
    return ours


def _official_names(state: State) -> dict[str, str]:
    """The official name of each of torchvision's."""
    rules = list(_TORCHVISION)
    if not any(".recurrent_block.convgru2." in key for key in state):
        rules.append((r"(gru\.conv[zrq])1\.", r"\1."))
    names = {key: key for key in state}
    for pattern, ours in rules:
        names = {key: re.sub(pattern, ours, name) for key, name in names.items()}
    return names


# ------------------------------------------------------------------------------------------------------------ the parts


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


# ---------------------------------------------------------------------------------------------------------- the network


LEAST = 64
"""The smallest side of an image that is taken, in px."""


@dataclass(frozen=True)
class Size:
    """Widths of a RAFT: `widths` of the encoders' stem and stages, `features` that are correlated, the GRU's `hidden`
    and `context`, the window's `radius`; of the motion encoder `seen` (correlations), `moved` (flow) and `motion`
    (both); of the flow head and of the mask head (0: bilinear enlargement)."""

    widths: Widths
    features: int
    hidden: int
    context: int
    radius: int
    seen: tuple[int, ...]
    moved: tuple[int, int]
    motion: int
    head: int
    mask: int = 0
    bottleneck: bool = True
    separable: bool = False
    context_norm: Norm = "none"
    levels: int = 4

    @property
    def planes(self) -> int:
        """Numbers that a lookup gives a point."""
        return self.levels * (2 * self.radius + 1) ** 2


SIZES: dict[str, Size] = {
    "tiny": Size((16, 16, 32, 48), 64, 48, 32, 3, (64,), (32, 16), 46, 64),
    "light": Size((24, 24, 48, 64), 96, 64, 48, 3, (80,), (48, 24), 62, 96),
    "small": Size((32, 32, 64, 96), 128, 96, 64, 3, (96,), (64, 32), 80, 128),
    "large": Size((64, 64, 96, 128), 256, 128, 128, 4, (256, 192), (128, 64), 126, 256, 256, False, True, "batch"),
}
"""The sizes by name: small (0.99 M weights) and large (5.26 M) as published, tiny (0.28 M) and light (0.51 M) ours."""


WIDEST = 1024
"""The widest network that is made of a file."""


class RAFT(nn.Module):
    """RAFT: dense flow by a recurrent search in the correlations of all pairs of features.

    Parameters
    ----------
    size : str or Size
        "small" and "large" as published, "tiny" and "light" for a CPU, or a `Size` of your own.
    seed : int
        New weights are a function of it; `from_official` loads published ones.
    device : str
        Where it runs. The model starts in evaluation mode.

    Raises
    ------
    InputError
        Where there is no such size.

    Examples
    --------
    >>> import torch
    >>> import likewise as lw
    >>> model = lw.pixels.RAFT("tiny")
    >>> a, b = torch.rand(2, 3, 64, 80)
    >>> model.flow(a, b, iters=2).shape
    torch.Size([64, 80, 2])
    """

    def __init__(self, size: str | Size = "small", *, seed: int = 0, device: str | torch.device = "cpu") -> None:
        super().__init__()
        self.size = s = _size(size)
        with seeded(seed):
            self.fnet = Encoder(s.widths, s.features, "instance", bottleneck=s.bottleneck)
            self.cnet = Encoder(s.widths, s.hidden + s.context, s.context_norm, bottleneck=s.bottleneck)
            self.update_block = Update(
                s.planes, s.hidden, s.context, s.seen, s.moved, s.motion, s.head, s.mask, separable=s.separable
            )
            self.apply(_start)
        nn.Module.to(self, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.to(device).eval()

    def extra_repr(self) -> str:
        """The size's name, or its widths."""
        return _name(self.size)

    @classmethod
    def from_official(cls, state: State | str | Path, *, device: str | torch.device = "cpu") -> Self:
        """The network of published weights: the official layout or torchvision's, the size told from the shapes.

        A state dict, or a .pth or .safetensors file of one (read without running anything in it). Keys that are
        unknown, missing or of another shape are one FileError that names them.
        """
        ours = translated(as_state(state))
        name = _closest(ours)
        model = cls(name).to(_kind(ours))
        load_state(model, ours, f"RAFT {name}")
        return model.to(device)

    # ----------------------------------------------------------------------------------------------------- the network

    def forward(
        self, a: Float[Tensor, "b 3 h w"], b: Float[Tensor, "b 3 h w"], iters: int = 12, *, correlation: Kind = "auto"
    ) -> list[Float[Tensor, "b h w 2"]]:
        """The flow a→b after each iteration, in pixels.

        Images in [0, 1] of one size ≥ 64 px. They are enlarged to 128 px where smaller and padded to multiples of 8
        by their border, on both sides, and the flow is brought back. Gradients flow through everything but the guess
        that an iteration starts from [RAFT Sec. 3.3].
        """
        frame = _check_pair(a, b, iters)
        a, b = frame.enter(a), frame.enter(b)
        fa, fb = self.fnet(torch.cat([a, b])).chunk(2)
        steps = self._iterate(fa, fb, self.cnet(a), iters, correlation)
        return [frame.leave(self.update_block.enlarge(flow, h)) for flow, h in steps]

    @torch.no_grad()
    def flow(
        self, a: Float[Tensor, "3 h w"], b: Float[Tensor, "3 h2 w2"], iters: int = 12, *, correlation: Kind = "auto"
    ) -> Float[Tensor, "h w 2"]:
        """The flow a→b of two images in [0, 1], in pixels of b.

        An image b of another size is brought to a's size, and the flow to b's own pixels.
        Images are computed on the model's device and in its precision; the flow comes back to a's device.
        Correlations are computed on demand where that is faster, or where all pairs would take more than 1 GB.
        """
        return self._directions(a, b, iters, correlation, back=False)[0]

    @torch.no_grad()
    def both(
        self, a: Float[Tensor, "3 h w"], b: Float[Tensor, "3 h2 w2"], iters: int = 12, *, correlation: Kind = "auto"
    ) -> tuple[Float[Tensor, "h w 2"], Float[Tensor, "h2 w2 2"]]:
        """The flows a→b and b→a, each in pixels of its target; each image is encoded once."""
        there, back = self._directions(a, b, iters, correlation)
        return there, back

    def _directions(self, a: Tensor, b: Tensor, iters: int, kind: Kind, *, back: bool = True) -> tuple[Tensor, ...]:
        """The flow a→b, and b→a where asked for: b at a's size, in the weights' precision and on their device."""
        for name, image in (("a", a), ("b", b)):
            _check_images(image, name, batch=False)
        size_a, size_b, like = size_of(a), size_of(b), self.fnet.conv1.weight
        one, two = (resize(x.to(like.device, like.dtype), size_a)[None] for x in (a, b))
        frame = _check_pair(one, two, iters)
        with _evaluating(self):
            x, y = frame.enter(one), frame.enter(two)
            fa, fb = self.fnet(x), self.fnet(y)
            there = self._last(frame, fa, fb, self.cnet(x), iters, kind)[0]
            flows = [resize_flow(there, size_a, (size_a, size_b)).to(a.device)]
            if back:
                again = self._last(frame, fb, fa, self.cnet(y), iters, kind)[0]
                flows.append(resize_flow(again, size_b, (size_a, size_a)).to(b.device))
        return tuple(flows)

    def _last(self, frame: Frame, fa: Tensor, fb: Tensor, context: Tensor, *rest: Any) -> Tensor:
        """The last iteration's flow, the only one that is made large."""
        flow, h = fa, fa
        for flow, h in self._iterate(fa, fb, context, *rest):  # noqa: B007
            pass
        return frame.leave(self.update_block.enlarge(flow, h))

    def _iterate(
        self, fa: Tensor, fb: Tensor, context: Tensor, iters: int, kind: Kind
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Flow at 1/8, in its pixels, and the state, after each iteration."""
        h, given = torch.split(context, [self.size.hidden, self.size.context], dim=1)
        h, gates = torch.tanh(h), self.update_block.gates(torch.relu(given))
        pairs = Correlation(fa, fb, levels=self.size.levels, radius=self.size.radius, kind=kind)
        home = grid(*size_of(fa), like=fa)
        flow = torch.zeros_like(home).permute(2, 0, 1).expand(len(fa), -1, -1, -1)
        for _ in range(iters):
            flow = flow.detach()
            planes = pairs.lookup(home + flow.permute(0, 2, 3, 1))
            h, step = self.update_block(h, gates, planes, flow)
            flow = flow + step
            yield flow, h

    # ---------------------------------------------------------------------------------------------------- on a disk

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Weights, and the size, for `likewise.save`."""
        arrays = {k: v.detach().cpu().contiguous().numpy() for k, v in self.state_dict().items()}
        return arrays, {"size": asdict(self.size)}

    @classmethod
    def from_state(cls, arrays: dict[str, Any], header: dict[str, Any]) -> Self:
        """The network that `state` described, in evaluation mode on the CPU."""
        words: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in header["size"].items()}
        size, weights = Size(**words), {k: torch.from_numpy(v.copy()) for k, v in arrays.items()}
        numbers = [n for value in words.values() for n in (value if isinstance(value, tuple) else (value,))]
        if any(isinstance(n, int | float) and not 0 <= n <= WIDEST for n in numbers):  # memory is taken for it
            raise InputError(f"size: expected numbers from 0 to {WIDEST}, got {words}")
        model = cls(size)
        load_state(model.to(_kind(weights)), weights, f"RAFT {_name(size)}")
        return model


# ------------------------------------------------------------------------------------------------------- sizes, weights


def _size(size: str | Size) -> Size:
    if isinstance(size, Size):
        return size
    if size not in SIZES:
        raise InputError(f"size: expected one of {', '.join(SIZES)}, or a Size, got {size!r}")
    return SIZES[size]


def _name(size: Size) -> str:
    return next((name for name, known in SIZES.items() if known == size), f"of widths {size.widths}")


def _start(module: nn.Module) -> None:
    """He's start for the encoders' convolutions, fan-out, as in the original; the update block keeps torch's."""
    if isinstance(module, Encoder):
        for part in module.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")


def _kind(weights: Mapping[str, Tensor]) -> torch.dtype:
    """float64 where the weights are, else float32: on a CPU half precision is only a way to store."""
    doubles = all(v.dtype == torch.float64 for v in weights.values() if isinstance(v, Tensor) and v.is_floating_point())
    return torch.float64 if doubles else torch.float32


def _closest(state: Mapping[str, Tensor]) -> str:
    """The size whose first convolution is as wide as that of the weights."""
    stem = state.get("fnet.conv1.weight")
    for name, size in SIZES.items():
        if isinstance(stem, Tensor) and stem.shape[:1] == size.widths[:1]:
            return name
    first = next(iter(state), "nothing")
    raise FileError(f"weights are not RAFT's: expected keys such as fnet.conv1.weight, got {first}")


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for the while."""
    before = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(before)


# -------------------------------------------------------------------------------------------------------------- checks


def _check_pair(a: Tensor, b: Tensor, iters: int) -> Frame:
    """Two batches of images of one size, or an error that says what is wrong."""
    for name, x in (("a", a), ("b", b)):
        _check_images(x, name)
    if a.shape != b.shape:
        raise ShapeError(
            f"a, b: expected images of one size, got {tuple(a.shape)} and {tuple(b.shape)}; resize one, "
            f"or call flow(), which does"
        )
    if not isinstance(iters, int) or iters < 1:
        raise InputError(f"iters: expected a whole number ≥ 1, got {iters!r}")
    return Frame(*size_of(a))


def _check_images(x: Tensor, name: str, *, batch: bool = True) -> None:
    """A batch of images, or one image in [0, 1] (a little beyond is rounding), or an error that says what is wrong."""
    if x.ndim != 3 + batch or x.shape[-3] != 3:
        hint = "; drop the alpha channel" if x.ndim == 3 + batch and x.shape[-3] == 4 else ""
        words = "(b, 3, h, w)" if batch else "an image (3, h, w)"
        raise ShapeError(f"{name}: expected {words}, got shape {tuple(x.shape)}{hint}")
    if min(size_of(x)) < LEAST:
        raise ShapeError(f"{name}: expected at least {LEAST} × {LEAST} px, got {x.shape[-2]} × {x.shape[-1]}")
    if not x.is_floating_point():
        raise InputError(f"{name}: expected floats in [0, 1], got {x.dtype}; divide by 255")
    if not batch and not (float(x.amin()) >= -0.01 and float(x.amax()) <= 1.01):
        raise InputError(f"{name}: expected numbers in [0, 1], got {float(x.amin()):g} to {float(x.amax()):g}")
