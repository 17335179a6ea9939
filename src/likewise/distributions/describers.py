"""Nets that describe pictures: any callable of tensors, any embedder, and the one that is used where none is given."""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from likewise.errors import InputError, ShapeError
from likewise.nn.backbone import CROP, SHORTEST, crop

if TYPE_CHECKING:
    from torch import Tensor

    from likewise.nn import EfficientNetLite0

Describe = Any
"""Tensors (b, c, h, w) → rows (b, …), as a callable; an embedder with `.embed(pictures)`; None: EfficientNet-Lite0."""
Rows = NDArray[np.floating]

DEFAULT = "efficientnet-lite0-imagenet"
"""The name of the default net: the rows are those of `likewise.images.default()`."""
CHUNK = 4
"""Pictures in one pass of the default net: larger passes leave the processor's cache and are slower."""


class Describer(Protocol):
    """A net with its name: a list of pictures, or a tensor (b, c, h, w), to rows (b, d).

    `side`: JPEG files may be decoded at a fraction of their size, no smaller than this (None: at full size).
    """

    name: str
    default: bool
    side: int | None
    takes_any_size: bool

    def __call__(self, pictures: Any, *, where: str) -> Rows:
        """One row a picture."""


def describer(describe: Describe) -> Describer:
    """What `describe` stands for; anything that cannot describe pictures is refused."""
    if describe is None:
        return _Embedding(_Lite0(), default=True)
    if callable(getattr(describe, "embed", None)):
        return _Embedding(describe)
    if callable(describe):
        return _Calling(describe)
    raise InputError(
        f"describe: expected a callable of pictures or an embedder with .embed, got {type(describe).__name__}"
    )


def name_of(describe: Describe) -> str:
    """A net's name: its own, else that of its class or function and a few digits of what it holds."""
    name = getattr(describe, "name", None)
    if isinstance(name, str) and name:
        return name
    from likewise.distributions.identity import fingerprint

    kind = getattr(describe, "__qualname__", None) or type(describe).__qualname__
    return f"{kind}-{hashlib.sha256(fingerprint(describe)).hexdigest()[:8]}"


class _Calling:
    """A callable of tensors; a module is held in evaluation mode meanwhile."""

    side: int | None = None
    default, takes_any_size = False, False

    def __init__(self, describe: Any) -> None:
        self.describe, self.name = describe, name_of(describe)

    def __call__(self, pictures: Any, *, where: str) -> Rows:
        import torch

        x = _stacked(pictures, where) if isinstance(pictures, list) else pictures
        training = bool(getattr(self.describe, "training", False))
        try:
            if training:
                self.describe.eval()
            with torch.no_grad():
                rows = self.describe(x)
        finally:
            if training:
                self.describe.train()
        array = np.asarray(rows.detach().cpu() if isinstance(rows, torch.Tensor) else rows)
        if array.ndim < 2 or array.dtype.kind != "f":
            raise ShapeError(f"describe: expected floats ({len(x)}, …), got {array.dtype} of shape {array.shape}")
        return array.reshape(len(array), -1).astype(np.float64 if array.itemsize == 8 else np.float32)


class _Embedding:
    """Something with `.embed`, which takes 8-bit pictures of any sizes."""

    side: int | None = 2 * SHORTEST
    takes_any_size = True

    def __init__(self, embedder: Any, default: bool = False) -> None:
        self.embedder, self.name, self.default = embedder, name_of(embedder), default

    def __call__(self, pictures: Any, *, where: str) -> Rows:
        try:
            arrays = [a for p in pictures for a in _eight_bits(p)]
        except InputError as error:
            fix = f"; {self.name} takes pictures in [0, 1]: bring them there, or give another describe="
            raise InputError(f"{where}: {error}{fix}") from None
        rows = np.asarray(self.embedder.embed(arrays))
        return rows if rows.dtype in (np.float32, np.float64) else rows.astype(np.float64)


def _eight_bits(picture: Any) -> list[NDArray[np.uint8]]:
    from likewise.media import as_uint8

    if isinstance(picture, np.ndarray):
        return [as_uint8(picture, where="pictures")]
    return [as_uint8(a, where="pictures") for a in arrays_of(picture[None])]


# ------------------------------------------------------------------------------------------------- tensors, arrays


def tensor_of(pictures: Any, *, where: str) -> Tensor:
    """A batch as a tensor (b, c, h, w): channels first, 8 bits as floats in [0, 1]; floats stay as they are."""
    import torch

    x = pictures if isinstance(pictures, torch.Tensor) else torch.from_numpy(_writable(pictures))
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
        x = x.permute(0, 3, 1, 2)
    if x.ndim != 4:
        raise ShapeError(f"{where}: expected pictures (n, h, w), (n, h, w, 3) or (n, c, h, w), got {tuple(x.shape)}")
    if x.dtype == torch.uint8:
        return x.to(torch.float32) / 255.0
    if not x.is_floating_point():
        raise InputError(f"{where}: expected pictures as uint8 or floats, got {x.dtype}")
    return x if x.dtype in (torch.float32, torch.float64) else x.to(torch.float32)


def _writable(pictures: Any) -> NDArray[Any]:
    """A contiguous array that torch takes without complaint: a copy where it is read-only."""
    array = np.ascontiguousarray(pictures)
    return array if array.flags.writeable else array.copy()


def arrays_of(batch: Tensor) -> list[NDArray[Any]]:
    """The pictures of a batch (b, 1 or 3, h, w) as arrays (h, w, 3), their values as they are."""
    if batch.ndim != 4 or batch.shape[1] not in (1, 3):
        raise ShapeError(f"expected pictures of 1 or 3 channels (b, c, h, w), got shape {tuple(batch.shape)}")
    return list(batch.detach().cpu().expand(-1, 3, -1, -1).permute(0, 2, 3, 1).contiguous().numpy())


def _stacked(pictures: list[Any], where: str) -> Tensor:
    """Pictures of one size as one tensor."""
    import torch

    if isinstance(pictures[0], torch.Tensor):
        return torch.stack(pictures)
    return tensor_of(np.stack(pictures), where=where)


# ---------------------------------------------------------------------------------------------------- the default


class _Lite0:
    """EfficientNet-Lite0 with ImageNet weights: the centre of a picture to 1280 features of length 1."""

    name = DEFAULT

    def embed(self, arrays: list[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """One row a picture."""
        import torch

        net, rows = _network(), []
        with torch.inference_mode():
            for start in range(0, len(arrays), CHUNK):
                crops = np.stack([crop(_three(a)) for a in arrays[start : start + CHUNK]])
                x = torch.from_numpy(crops).permute(0, 3, 1, 2).to(torch.float32).div_(255.0)
                rows.append(torch.nn.functional.normalize(net.features(x), dim=1).numpy())
        return np.concatenate(rows)


class PhotoFeatures:
    """The same net as a differentiable function of tensors: pictures (b, 1 or 3, h, w) → rows (b, 1280) of length 1.

    Nothing is rounded or cut: the whole picture is resampled to 224 × 224, so rows differ a little from the default's,
    and the name says so. For spaces in which volumes are measured, and for paths of small steps. Values from `low` to
    `high` are taken for black to white: low=-1 for a net that ends in tanh.
    """

    def __init__(self, low: float = 0.0, high: float = 1.0) -> None:
        if not low < high:
            raise InputError(f"low, high: expected low < high, got {low} and {high}")
        self.low, self.high, self.name = float(low), float(high), f"{DEFAULT}-smooth"

    def __call__(self, x: Tensor) -> Tensor:
        """One row of length 1 a picture."""
        from torch.nn import functional

        if x.ndim != 4 or x.shape[1] not in (1, 3):
            raise ShapeError(f"pictures: expected (b, 1 or 3, h, w), got shape {tuple(x.shape)}")
        net = _network().to(x.device)
        unit = ((x - self.low) / (self.high - self.low)).float().expand(-1, 3, -1, -1)
        sized = functional.interpolate(unit, (CROP, CROP), mode="bilinear", align_corners=False, antialias=True)
        return functional.normalize(net.features(sized), dim=1)


@functools.cache
def _network() -> EfficientNetLite0:
    from likewise.nn import named

    network: EfficientNetLite0 = named("efficientnet-lite0").fold()
    return network


def _three(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A grey picture (h, w) as three equal planes."""
    return array if array.ndim == 3 else np.repeat(array[:, :, None], 3, axis=2)
