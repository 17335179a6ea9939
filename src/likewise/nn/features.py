"""From images to rows of features, wherever they come from: what sets and distributions are compared by.

A net is None or "default" (EfficientNet-Lite0 with ImageNet weights: the rows of `likewise.images.default()`), one of
`likewise.nn.pretrained.NETWORKS` by name ("inception", "vgg16" …), anything with `.embed(images)`, or a callable of
tensors (b, c, h, w). Callables get files and 8-bit arrays as floats in [0, 1] with three channels; batches of floats,
and what a generator gives, come as they are.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from likewise import inputs, media
from likewise.errors import FileError, InputError, LikewiseError, ShapeError
from likewise.nn.backbone import CROP, SHORTEST, as_tensor, crop
from likewise.nn.inception_v3 import tensorflow_resize
from likewise.nn.pretrained import DEFAULT, default_network, feature_network
from likewise.types import Image, Signature

Rows = NDArray[np.floating]

BATCH = 64
"""Images that are in memory at a time."""
CHUNK = 4
"""Images in one pass of the default net: larger passes leave the processor's cache and are slower."""
LARGEST = float(np.finfo(np.float32).max)
"""The largest number in a feature: the fourth power of a larger one, which the Fréchet distance takes, is infinite."""
SAMPLES = 5000
"""How many samples are taken of a generator where nothing else says it."""
PLAIN = "features"
"""The name of the net where rows came without one."""


@dataclass(frozen=True, eq=False, repr=False)
class Features:
    """Rows (n, d), float32 or float64, and the name of the net that made them.

    `names` says what each row stands for (a file, a frame); `images` gives those of some rows back, for a plot;
    `skipped` names what could not be read, with the reason.
    """

    rows: Rows
    net: str = PLAIN
    names: tuple[str, ...] | None = None
    images: Callable[[Sequence[int]], list[Any]] | None = None
    skipped: tuple[tuple[str, str], ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def dim(self) -> int:
        """The number d of features of an image."""
        return int(self.rows.shape[1])

    def __repr__(self) -> str:
        return f"Features({len(self)} rows of {self.dim}, {self.net})"


def extract(
    source: Any,
    net: Any = None,
    *,
    n: int | None = None,
    seed: int = 0,
    every: int = 1,
    where: str = "images",
    on_error: Literal["raise", "skip"] = "raise",
    progress: Callable[[int], Any] | None = None,
    planes: int | None = None,
) -> Features:
    """The features of anything that `inputs` knows: one row an image; rows (n, d) are taken as they are.

    `n` and `seed` say how many samples are taken of a generator, and which; `every` which frames of a video. With
    on_error="skip" files that cannot be read are left out, and in `.skipped`. planes=1 gives a callable grey images of
    one plane. `progress` is called with the number of images done.
    """
    if isinstance(source, Features):
        return source
    if on_error not in ("raise", "skip"):
        raise InputError(f'on_error: expected "raise" or "skip", got {on_error!r}')
    job = _Extraction(as_net(net), where, on_error == "skip", progress, planes)
    if inputs.is_generator(source):
        return _sampled(source, job, n, seed)
    if isinstance(source, Iterator):
        source = list(source)
    given = inputs.classify(source, where)
    if given.kind == "features":
        from_file = isinstance(given.item, str | os.PathLike)
        return job.take(_rows(given.item, where), str(given.item) if from_file else where)
    if given.kind == "generator":
        raise InputError(f"{where}: {given.words}; load it first (likewise.distributions.load)")
    if inputs.is_batch(given.item):
        return job.tensors(len(given.item), lambda which: to_tensor(given.item[which], where=where))
    if isinstance(given.item, Path) and given.item.is_dir():
        job.note_misnamed(given.item)
    return job.items(inputs.images(given.item, where=where, every=every))


def channels_of(source: Any) -> int | None:
    """How many channels the images of a generator or of a batch have; None where that is not known."""
    if inputs.is_generator(source):
        labels = getattr(source, "labels", None)
        z = source.latent.sample(1, np.random.default_rng(0))
        source = source(z) if labels is None else source(z, np.zeros(1, dtype=np.int64))
    shape = tuple(getattr(source, "shape", ()))
    return int(shape[1]) if len(shape) == 4 and shape[1] in (1, 3) else None


def to_uint8(x: Any) -> list[NDArray[np.uint8]]:
    """A batch (n, 1 or 3, h, w) of a network as 8-bit images (h, w, 3).

    Values are taken to lie in [0, 1], or in [−1, 1] if any is below −0.01; what lies outside is cut.
    """
    batch = _numpy(x).astype(np.float32)
    if batch.ndim != 4 or batch.shape[1] not in (1, 3):
        raise ShapeError(f"images: expected (n, 1 or 3, h, w), got shape {batch.shape}")
    if batch.size and batch.min() < -0.01:
        batch = (batch + np.float32(1)) / np.float32(2)
    whole = np.rint(np.clip(batch, 0, 1) * 255).astype(np.uint8)
    return [np.ascontiguousarray(np.broadcast_to(p, (3, *p.shape[1:])).transpose(1, 2, 0)) for p in whole]


# ------------------------------------------------------------------------------------------------------------- rows


def _rows(item: Any, where: str) -> NDArray[Any]:
    """Features that are there already, as they are."""
    if isinstance(item, str | os.PathLike) and "#" not in str(item):
        arrays = media.load_arrays(item)
        if len(arrays) != 1:
            raise FileError(f"{item}: expected one array of features (n, d), got {len(arrays)}: {', '.join(arrays)}")
        return next(iter(arrays.values()))
    if isinstance(item, str | os.PathLike | tuple | Signature):
        return inputs.signature(item, where=where).points
    try:
        return _numpy(item) if hasattr(item, "shape") else np.asarray(item, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{where}: expected files, images or rows of numbers in the list") from None


def _sampled(generator: Any, job: _Extraction, n: int | None, seed: int) -> Features:
    """Samples of a generator itself (ρ = 0), in the order of the seed; only latents are kept."""
    count = SAMPLES if n is None else n
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 2:
        raise InputError(f"n: expected a whole number ≥ 2, got {n!r}")
    rng = np.random.default_rng(seed)
    z = generator.latent.sample(int(count), rng)
    labels = getattr(generator, "labels", None)
    y = None if labels is None else rng.integers(labels, size=int(count))

    def sample(which: Any) -> Tensor:
        x: Tensor = generator(z[which]) if y is None else generator(z[which], y[which])
        return x

    if job.net.default and sample([0]).ndim == 2:
        rows = [_numpy(sample(slice(i, i + BATCH))) for i in range(0, int(count), BATCH)]
        return job.take(np.concatenate(rows), job.where)
    return job.tensors(int(count), sample)


# ------------------------------------------------------------------------------------------------------- extraction


@dataclass
class _Extraction:
    """How one source becomes rows: by which net, what it is called in errors, whether bad files are skipped."""

    net: Net
    where: str
    skip: bool
    progress: Callable[[int], Any] | None
    planes: int | None = None
    skipped: list[tuple[str, str]] = field(default_factory=list)
    parts: list[Rows] = field(default_factory=list)

    def take(self, rows: NDArray[Any], where: str) -> Features:
        """Rows that are features already."""
        if rows.dtype.kind in "iub" or rows.dtype.itemsize > 8:
            rows = rows.astype(np.float64)
        if rows.ndim != 2 or 0 in rows.shape or rows.dtype.kind != "f":
            raise ShapeError(f"{where}: expected features (n, d) as numbers, got {rows.dtype} of shape {rows.shape}")
        rows = rows.astype(np.float32) if rows.dtype.itemsize < 4 else rows
        _check_finite(rows, where)
        return Features(rows, PLAIN if self.net.default else self.net.name)

    def tensors(self, n: int, images: Callable[[Any], Tensor]) -> Features:
        """n images, of which `images` gives a slice, or a list of indices, as a tensor."""
        for start in range(0, n, BATCH):
            batch = images(slice(start, min(start + BATCH, n)))
            self._keep(self.net.run(batch, self.where), len(batch))
            if self.progress:
                self.progress(len(batch))

        def some(which: Sequence[int]) -> list[Any]:
            x = images(np.asarray(which, dtype=np.int64)) if len(which) else None
            return to_uint8(x) if x is not None and x.ndim == 4 and x.shape[1] in (1, 3) else []

        return Features(np.concatenate(self.parts), self.net.name, None, some, tuple(self.skipped))

    def items(self, images: Iterator[Image]) -> Features:
        """Images of any sizes: neighbours of one size go through the net together."""
        kept: list[Image] = []
        seen = 0
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "likewise-decode") as pool:
            while some := list(islice(images, BATCH)):
                seen += len(some)
                tried: Iterator[tuple[Image, Any]] = zip(some, pool.map(self._read, some), strict=True)
                read = [pair for pair in tried if self._readable(*pair)]
                # all together where the net takes any size, else runs of one shape
                shapes = groupby(read, key=lambda one: None if self.net.takes_any_size else one[1].shape)
                for group in (list(run) for _, run in shapes):
                    self._keep(self.net.run([pixels for _, pixels in group], self.where), len(group))
                kept += [Image(image.path, name=image.name) if image.path else image for image, _ in read]
                if self.progress:
                    self.progress(len(some))
        if not kept:
            raise FileError(f"{self.where}: none of {seen} images can be read; the first: {self.skipped[0][1]}")
        names = tuple(image.name for image in kept) if all(image.name for image in kept) else None
        rows = np.concatenate(self.parts)
        return Features(
            rows,
            self.net.name,
            names,
            lambda which: [kept[i].path or kept[i].pixels for i in which],
            tuple(self.skipped),
        )

    def note_misnamed(self, folder: Path) -> None:
        """Note files that are named like images and are none."""
        for path in inputs.misnamed(folder):
            if not self.skip:
                raise FileError(f"{path}: empty, or not an image; remove it, or skip it with on_error='skip'")
            self.skipped.append((str(path), "empty, or not an image"))

    def _read(self, image: Image) -> NDArray[Any] | LikewiseError:
        """The pixels of an image, or why there are none."""
        try:
            pixels = image.reduced(self.net.side) if self.net.side else image.pixels
        except LikewiseError as error:
            return error
        one_plane = self.planes == 1 and not self.net.takes_any_size
        return np.asarray(np.rint(pixels @ np.array([0.299, 0.587, 0.114])), dtype=np.uint8) if one_plane else pixels

    def _readable(self, image: Image, pixels: Any) -> bool:
        if not isinstance(pixels, LikewiseError):
            return True
        if not self.skip or image.path is None:
            raise pixels
        self.skipped.append((image.name, str(pixels)))
        return False

    def _keep(self, rows: Rows, n: int) -> None:
        if rows.ndim != 2 or len(rows) != n or rows.shape[1] == 0:
            raise ShapeError(f"features: expected ({n}, …), one row an image, got shape {rows.shape}")
        if self.parts and rows.shape[1] != self.parts[0].shape[1]:
            raise ShapeError(
                f"features: gave {rows.shape[1]} numbers for one image of {self.where} and "
                f"{self.parts[0].shape[1]} for another; it must pool over images of different sizes"
            )
        _check_finite(rows, f"features, of {self.where},")
        self.parts.append(rows)


def _numpy(x: Any) -> NDArray[Any]:
    return np.asarray(x.detach().cpu() if hasattr(x, "detach") else x)


def _check_finite(rows: Rows, where: str) -> None:
    for start in range(0, len(rows), 4096):
        good = (np.abs(rows[start : start + 4096]) <= LARGEST).all(axis=1)  # NaN is not, either
        if not good.all():
            row = start + int((~good).argmax())
            what = f"a number beyond ±{LARGEST:.1e}" if np.isfinite(rows[row]).all() else "NaN or infinity"
            raise InputError(f"{where}: row {row} contains {what}")


# -------------------------------------------------------------------------------------------------------------- nets


@dataclass(frozen=True, eq=False)
class Net:
    """A net with its name: `run` maps a list of 8-bit images, or a tensor (b, c, h, w), to rows (b, d).

    `side`: JPEG files may be decoded at a fraction of their size, no smaller than this (None: at full size).
    """

    run: Callable[[Any, str], Rows]
    name: str
    default: bool = False
    side: int | None = None
    takes_any_size: bool = False


def as_net(net: Any) -> Net:
    """What `features=` stands for; anything that cannot describe images is refused."""
    if isinstance(net, Net):
        return net
    if net is None or (isinstance(net, str) and net == "default"):
        return _embedding(_Lite0(), default=True)
    if isinstance(net, str):
        network = feature_network(net)
        side = CROP if net == "vgg16" else None  # all images at one size; as a space it takes them as they are
        return Net(functools.partial(_call, lambda x: network(_as_bytes(x, side))), network.name)
    if callable(getattr(net, "embed", None)):
        return _embedding(net)
    if callable(net):
        return Net(functools.partial(_call, net), name_of(net))
    raise InputError(f"features: expected a callable of images or an embedder with .embed, got {type(net).__name__}")


def name_of(net: Any) -> str:
    """A net's name: its own, else that of its class or function and a few digits of what it holds."""
    name = getattr(net, "name", None)
    if isinstance(name, str) and name:
        return name
    kind = getattr(net, "__qualname__", None) or type(net).__qualname__
    return f"{kind}-{hashlib.sha256(fingerprint(net)).hexdigest()[:8]}"


def _embedding(embedder: Any, default: bool = False) -> Net:
    """Something with `.embed`, which takes 8-bit images of any sizes."""
    name = name_of(embedder)

    def run(images: Any, where: str) -> Rows:
        try:
            arrays = [inputs.image(image, where="images").pixels for image in images]
        except InputError as error:
            fix = f"; {name} takes images in [0, 1]: bring them there, or give another features="
            raise InputError(f"{where}: {error}{fix}") from None
        rows = np.asarray(embedder.embed(arrays))
        return rows if rows.dtype in (np.float32, np.float64) else rows.astype(np.float64)

    return Net(run, name, default, getattr(embedder, "side", 2 * SHORTEST), takes_any_size=True)


def _call(net: Any, images: Any, where: str) -> Rows:
    """A callable of tensors; a module is held in evaluation mode meanwhile."""
    x = to_tensor(np.stack(images), where=where) if isinstance(images, list) else images
    training = bool(getattr(net, "training", False))
    try:
        if training:
            net.eval()
        with torch.no_grad():
            rows = net(x)
    finally:
        if training:
            net.train()
    array = _numpy(rows)
    if array.ndim < 2 or array.dtype.kind != "f":
        raise ShapeError(f"features: expected floats ({len(x)}, …), got {array.dtype} of shape {array.shape}")
    return array.reshape(len(array), -1).astype(np.float64 if array.itemsize == 8 else np.float32)


def _as_bytes(x: Tensor, side: int | None) -> Tensor:
    """Images in [0, 1] as 8 bits hold them: a generator's are measured as if they had been written to files."""
    whole = (255 * x.to(torch.float32)).clamp(0, 255).round() / 255
    return whole if side is None else tensorflow_resize(whole, side)


def to_tensor(images: Any, *, where: str) -> Tensor:
    """A batch as a tensor (b, c, h, w): channels first, 8 bits as floats in [0, 1]; floats stay as they are.

    Transparency is laid over white.
    """
    if isinstance(images, np.ndarray):
        array = np.ascontiguousarray(images)
        x = torch.from_numpy(array if array.flags.writeable else array.copy())
    else:
        x = images
    if x.ndim == 3:
        x = x[:, None]
    elif x.ndim == 4 and x.shape[1] not in inputs.CHANNELS and x.shape[3] in inputs.CHANNELS:
        x = x.permute(0, 3, 1, 2)
    if x.ndim != 4:
        raise ShapeError(f"{where}: expected images (n, h, w), (n, h, w, 3) or (n, c, h, w), got {tuple(x.shape)}")
    if x.dtype == torch.uint8:
        x = x.to(torch.float32) / 255.0
    if not x.is_floating_point():
        raise InputError(f"{where}: expected images as uint8 or floats, got {x.dtype}")
    if x.shape[1] == 4:
        x = x[:, :3] * x[:, 3:] + (1 - x[:, 3:])
    return x if x.dtype in (torch.float32, torch.float64) else x.to(torch.float32)


class _Lite0:
    """EfficientNet-Lite0 with ImageNet weights: the centre of an image to 1280 features of length 1."""

    name = DEFAULT

    def embed(self, arrays: list[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """One row an image."""
        rows, network = [], default_network()  # made outside of inference mode: others may want its gradients
        with torch.inference_mode():
            for start in range(0, len(arrays), CHUNK):
                x = as_tensor(np.stack([crop(a) for a in arrays[start : start + CHUNK]]))
                rows.append(torch.nn.functional.normalize(network.features(x), dim=1).numpy())
        return np.concatenate(rows)


class PhotoFeatures:
    """The default net as a differentiable function of tensors (b, 1 or 3, h, w) → rows (b, 1280) of length 1.

    Nothing is rounded or cut: the whole image is resampled to 224 × 224, so rows differ a little from the default's,
    and the name says so. For spaces in which volumes are measured, and for paths of small steps.
    """

    name = f"{DEFAULT}-smooth"

    def __call__(self, x: Tensor) -> Tensor:
        """One row of length 1 an image."""
        if x.ndim != 4 or x.shape[1] not in (1, 3):
            raise ShapeError(f"images: expected (b, 1 or 3, h, w), got shape {tuple(x.shape)}")
        network = default_network(str(x.device))
        rgb, how = x.float().expand(-1, 3, -1, -1), {"align_corners": False, "antialias": True}
        sized = torch.nn.functional.interpolate(rgb, (CROP, CROP), mode="bilinear", **how)
        return torch.nn.functional.normalize(network.features(sized), dim=1)


# ---------------------------------------------------------------------------------- what tells one net from another


def fingerprint(part: Any) -> bytes:
    """What tells one callable from another: a module's weights and structure, else the code and what it holds."""
    own = getattr(part, "digest", None)
    if isinstance(own, str):
        return own.encode()
    digest = hashlib.sha256(f"{type(part).__module__}.{type(part).__qualname__}".encode())
    if isinstance(part, torch.nn.Module):
        digest.update(repr(part).encode())
        for key, value in sorted(part.state_dict().items()):
            digest.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.digest()
    digest.update(_code(part))
    for value in _held(part):
        if isinstance(value, torch.Tensor):
            digest.update(value.detach().cpu().contiguous().numpy().tobytes())
        elif isinstance(value, np.ndarray):
            digest.update(np.ascontiguousarray(value).tobytes())
        elif isinstance(value, int | float | str | bool):
            digest.update(repr(value).encode())
        elif callable(value) and value is not part:
            digest.update(fingerprint(value))
    return digest.digest()


def _code(part: Any) -> bytes:
    """The source of a function or of a callable's class; its name where there is none."""
    try:
        return inspect.getsource(part if inspect.isroutine(part) else type(part)).encode()
    except (OSError, TypeError):
        return str(getattr(part, "__qualname__", type(part).__qualname__)).encode()


def _held(part: Any) -> list[Any]:
    """What a closure, a bound method or a callable object holds."""
    if inspect.ismethod(part):
        return [part.__self__]
    if inspect.isfunction(part):
        return [cell.cell_contents for cell in part.__closure__ or ()]
    return [value for _, value in sorted(getattr(part, "__dict__", {}).items())]
