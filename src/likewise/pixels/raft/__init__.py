"""RAFT (Teed and Deng 2020): dense flow by a recurrent search in the correlations of all pairs of features.

Small and large are the published networks, number for number: their state dicts load by key, the official ones and
torchvision's, and give the same flow. Besides there are sizes for a CPU, to be trained. Pixel centres are at
integers; a cell of the maps at 1/8 stands at 8 times its index; flow is x, then y, in pixels.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from likewise.errors import FileError, InputError, ShapeError
from likewise.nn.backbone import seeded
from likewise.nn.pretrained import State, as_state, load_state
from likewise.pixels.geometry import grid, resize_flow
from likewise.pixels.raft.blocks import Encoder, Norm, Update, Widths
from likewise.pixels.raft.correlation import Correlation, Kind

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
        flow = flow[:, :, top : top + high, left : left + wide]
        if self.size != (self.h, self.w):
            flow = functional.interpolate(flow, (self.h, self.w), mode="bilinear", align_corners=False)
            flow = flow * _pair(flow, self.w / wide, self.h / high)
        return flow.permute(0, 2, 3, 1)

    def cells(self, flow: Tensor) -> Tensor:
        """Flow (b, h, w, 2) of the given images as (b, 2, h/8, w/8) of the cells, in cells: means over 8 × 8."""
        high, wide = self.size
        flow = flow.permute(0, 3, 1, 2)
        if self.size != (self.h, self.w):
            flow = functional.interpolate(flow, self.size, mode="bilinear", align_corners=False)
            flow = flow * _pair(flow, wide / self.w, high / self.h)
        return functional.avg_pool2d(functional.pad(flow, self.padding, mode="replicate"), STRIDE) / STRIDE


def _pair(like: Tensor, x: float, y: float) -> Tensor:
    return like.new_tensor([x, y]).view(1, 2, 1, 1)


def size_of(image: Tensor) -> tuple[int, int]:
    """(h, w) of images (…, h, w)."""
    return image.shape[-2], image.shape[-1]


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
    """The weights under our names, whichever of the two layouts they come in."""
    if any(key.startswith(("feature_encoder.", "context_encoder.", "mask_predictor.")) for key in state):
        state = _from_torchvision(state)
    return _without_aliases(state)


def _from_torchvision(state: State) -> dict[str, Tensor]:
    official = {}
    separable = any(".recurrent_block.convgru2." in key for key in state)
    for key, value in state.items():
        name = key
        for pattern, ours in _TORCHVISION:
            name = re.sub(pattern, ours, name)
        if not separable:
            name = re.sub(r"(gru\.conv[zrq])1\.", r"\1.", name)
        official[name] = value
    return official


def _without_aliases(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`norm3` (residual) and `norm4` (bottleneck) of a shortcut as its `downsample.1`."""
    own = dict(state)
    for key in state:
        twin = _twin(key, state)
        if twin is None:
            continue
        if twin in state and not _equal(state[key], state[twin]):
            raise FileError(f"weights of RAFT: {key} and {twin} are one module under two names, but they differ")
        own[twin] = own.pop(key)
    return own


def _twin(key: str, state: State) -> str | None:
    """The other name of a shortcut's normalisation: the norm after the block's last convolution's own."""
    match = re.match(r"^(.net\.layer\d\.\d)\.norm([34])\.(.+)$", key)
    if match is None:
        return None
    block, number, leaf = match.groups()
    bottleneck = f"{block}.conv3.weight" in state
    return f"{block}.downsample.1.{leaf}" if number == ("4" if bottleneck else "3") else None


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a == b).all())


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
    "large": Size(
        widths=(64, 64, 96, 128),
        features=256,
        hidden=128,
        context=128,
        radius=4,
        seen=(256, 192),
        moved=(128, 64),
        motion=126,
        head=256,
        mask=256,
        bottleneck=False,
        separable=True,
        context_norm="batch",
    ),
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
        self,
        a: Float[Tensor, "b 3 h w"],
        b: Float[Tensor, "b 3 h w"],
        iters: int = 12,
        start: Float[Tensor, "b h w 2"] | None = None,
        *,
        correlation: Kind = "auto",
    ) -> list[Float[Tensor, "b h w 2"]]:
        """The flow a→b after each iteration, in pixels; `start` is a first guess, at the images' size.

        Images in [0, 1] of one size ≥ 64 px. They are enlarged to 128 px where smaller and padded to multiples of 8
        by their border, on both sides, and the flow is brought back. Gradients flow through everything but the guess
        that an iteration starts from [RAFT Sec. 3.3].
        """
        frame = _check_pair(a, b, iters, start)
        a, b = frame.enter(a), frame.enter(b)
        fa, fb = self.fnet(torch.cat([a, b])).chunk(2)
        at = None if start is None else frame.cells(start)
        steps = self._iterate(fa, fb, self.cnet(a), iters, at, correlation)
        return [frame.leave(self.update_block.enlarge(flow, h)) for flow, h in steps]

    @torch.no_grad()
    def flow(
        self,
        a: Float[Tensor, "3 h w"],
        b: Float[Tensor, "3 h2 w2"],
        iters: int = 12,
        start: Float[Tensor, "h w 2"] | None = None,
        *,
        correlation: Kind = "auto",
    ) -> Float[Tensor, "h w 2"]:
        """The flow a→b of two images in [0, 1], in pixels of b.

        An image b of another size is brought to a's size, and the flow to b's own pixels; `start` is in them, too.
        Images are computed on the model's device and in its precision; the flow comes back to a's device.
        Correlations are computed on demand where that is faster, or where all pairs would take more than 1 GB.
        """
        there, fitted = self._fitted(a, b)
        size_a, size_b = size_of(a), size_of(b)
        _check_start(start, (*size_a, 2))
        guess = None if start is None else resize_flow(start.to(there), size_a, (size_b, size_a))[None]
        frame = _check_pair(there, fitted, iters, guess)
        with _evaluating(self):
            x, y = frame.enter(there), frame.enter(fitted)
            at = None if guess is None else frame.cells(guess)
            flow = self._last(frame, self.fnet(x), self.fnet(y), self.cnet(x), iters, at, correlation)
        return resize_flow(flow[0], size_a, (size_a, size_b)).to(a.device)

    @torch.no_grad()
    def both(
        self, a: Float[Tensor, "3 h w"], b: Float[Tensor, "3 h2 w2"], iters: int = 12, *, correlation: Kind = "auto"
    ) -> tuple[Float[Tensor, "h w 2"], Float[Tensor, "h2 w2 2"]]:
        """The flows a→b and b→a, each in pixels of its target; each image is encoded once."""
        there, fitted = self._fitted(a, b)
        frame = _check_pair(there, fitted, iters, None)
        with _evaluating(self):
            x, y = frame.enter(there), frame.enter(fitted)
            fa, fb = self.fnet(x), self.fnet(y)
            forward = self._last(frame, fa, fb, self.cnet(x), iters, None, correlation)
            backward = self._last(frame, fb, fa, self.cnet(y), iters, None, correlation)
        size_a, size_b = size_of(a), size_of(b)
        there = resize_flow(forward[0], size_a, (size_a, size_b))
        return there.to(a.device), resize_flow(backward[0], size_b, (size_a, size_a)).to(b.device)

    def _fitted(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Two images as batches of one, b at a's size, of the weights' kind and on their device."""
        _check_picture(a, "a")
        _check_picture(b, "b")
        like = self.fnet.conv1.weight
        a, b = (x[None].to(like.device, like.dtype) for x in (a, b))
        if size_of(a) != size_of(b):
            b = functional.interpolate(b, size_of(a), mode="bilinear", align_corners=False, antialias=True)
        return a, b

    def _last(self, frame: Frame, fa: Tensor, fb: Tensor, context: Tensor, *rest: Any) -> Tensor:
        """The last iteration's flow, the only one that is made large."""
        flow, h = fa, fa
        for flow, h in self._iterate(fa, fb, context, *rest):  # noqa: B007
            pass
        return frame.leave(self.update_block.enlarge(flow, h))

    def _iterate(
        self, fa: Tensor, fb: Tensor, context: Tensor, iters: int, start: Tensor | None, kind: Kind
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Flow at 1/8, in its pixels, and the state, after each iteration."""
        h, given = torch.split(context, [self.size.hidden, self.size.context], dim=1)
        h, gates = torch.tanh(h), self.update_block.gates(torch.relu(given))
        pairs = Correlation(fa, fb, levels=self.size.levels, radius=self.size.radius, kind=kind)
        home = grid(*size_of(fa), like=fa)
        flow = torch.zeros_like(home).permute(2, 0, 1).expand(len(fa), -1, -1, -1) if start is None else start
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
    """The size whose keys and shapes agree with most of the weights."""
    agreeing = {name: _agreeing(state, name) for name in SIZES}
    best = max(agreeing, key=lambda name: agreeing[name])
    if agreeing[best] == 0:
        first = next(iter(state), "nothing")
        raise FileError(f"weights are not RAFT's: expected keys such as fnet.conv1.weight, got {first}")
    return best


def _agreeing(state: Mapping[str, Tensor], name: str) -> int:
    wanted = _shapes(name)
    return sum(k in wanted and isinstance(v, Tensor) and v.shape == wanted[k] for k, v in state.items())


@functools.cache
def _shapes(name: str) -> dict[str, torch.Size]:
    """Every key of a size, without the numbers."""
    with torch.device("meta"):
        return {k: v.shape for k, v in RAFT(name, device="meta").state_dict().items()}


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


def _check_pair(a: Tensor, b: Tensor, iters: int, start: Tensor | None) -> Frame:
    """Two batches of images of one size, or an error that says what is wrong."""
    for name, x in (("a", a), ("b", b)):
        if x.ndim != 4 or x.shape[1] != 3:
            raise ShapeError(f"{name}: expected (b, 3, h, w), got shape {tuple(x.shape)}")
        _check_kind(x, name)
    if a.shape != b.shape:
        raise ShapeError(
            f"a, b: expected images of one size, got {tuple(a.shape)} and {tuple(b.shape)}; resize one, "
            f"or call flow(), which does"
        )
    if not isinstance(iters, int) or iters < 1:
        raise InputError(f"iters: expected a whole number ≥ 1, got {iters!r}")
    _check_start(start, (a.shape[0], *size_of(a), 2))
    return Frame(*size_of(a))


def _check_kind(x: Tensor, name: str) -> None:
    if min(size_of(x)) < LEAST:
        raise ShapeError(f"{name}: expected at least {LEAST} × {LEAST} px, got {x.shape[-2]} × {x.shape[-1]}")
    if not x.is_floating_point():
        raise InputError(f"{name}: expected floats in [0, 1], got {x.dtype}; divide by 255")


def _check_start(start: Tensor | None, shape: tuple[int, ...]) -> None:
    if start is not None and start.shape != shape:
        raise ShapeError(f"start: expected a flow {shape}, got shape {tuple(start.shape)}")


def _check_picture(x: Tensor, name: str) -> None:
    """One image (3, h, w) in [0, 1], or an error that says what is wrong; a little beyond is rounding."""
    if x.ndim != 3 or x.shape[0] != 3:
        hint = "; drop the alpha channel" if x.ndim == 3 and x.shape[0] == 4 else ""
        raise ShapeError(f"{name}: expected an image (3, h, w), got shape {tuple(x.shape)}{hint}")
    _check_kind(x, name)
    low, high = float(x.amin()), float(x.amax())
    if not (low >= -0.01 and high <= 1.01):
        raise InputError(f"{name}: expected numbers in [0, 1], got {low:g} to {high:g}")
