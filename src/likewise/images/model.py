"""Pictures to unit vectors: decoded in threads, prepared in one way, passed through a network in small chunks."""

from __future__ import annotations

import functools
import hashlib
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np

from likewise.errors import InputError, LikewiseError
from likewise.images import data
from likewise.images.parts import pooled, walked
from likewise.nn.backbone import CROP, SHORTEST, crop

if TYPE_CHECKING:
    import torch
    from jaxtyping import Float32, Int8, UInt8
    from torch import Tensor

    from likewise.images.data import Picture
    from likewise.nn import EfficientNetLite0

    UnderWay: TypeAlias = tuple[int, Picture, Future[np.ndarray[Any, Any]]]

T = TypeVar("T")
R = TypeVar("R")

CHUNK = 4
"""Pictures in one pass of the network, whatever the batch: larger passes leave the processor's cache and are slower."""

DEFAULT = "efficientnet-lite0-imagenet"
"""The name of the embedder that needs no training."""

LOCAL_BLOCK = 10
"""The last map of stride 16: 112 channels, 14 × 14 cells for 224 px."""


@dataclass(frozen=True)
class Skipped:
    """A picture that could not be read: its place in the input (folders counted file by file), its name, and why."""

    index: int
    name: str
    reason: str


class Embedder:
    """Pictures in, unit rows out: rows are near where pictures look alike.

    Takes file paths, folders, uint8 arrays (h, w, 3), Pillow images and tensors (3, h, w) in [0, 1], also mixed, also
    from a generator. Pixels are rounded to 8 bits first, so a picture gives the same row in whichever form it comes
    (a JPEG whose shortest side is 1024 px or more is decoded at a fraction of its size, and may differ slightly).
    `network.features` maps (b, 3, size, size) in [0, 1] to rows: the centre of a picture with its shortest side at
    `shortest` px. With `mirror`, a row is the mean direction of a picture and its mirror image, which takes twice the
    time and finds more of the same. `recipe` and `figures` say how it was trained and how well that went.
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
        self,
        images: Picture | Iterable[Picture],
        *,
        batch_size: int = 32,
        progress: bool = False,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> Float32[np.ndarray, "n dim"]:
        """One row of length 1 for each picture, in order: (n, dim) float32.

        With on_error="skip" a picture that cannot be read gives no row, and `.skipped` says which, by place and name.
        """
        _check(batch_size, on_error)
        skipped: list[Skipped] = []
        crops = self._crops(images, skipped if on_error == "skip" else None, lookahead=2 * batch_size)
        with closing(crops):
            rows = [self._forward(batch)[0] for batch in _batches(_shown(crops, images, progress), batch_size)]
        self.skipped = tuple(skipped)
        return np.concatenate(rows) if rows else np.empty((0, self.dim), dtype=np.float32)

    def embed_with_parts(
        self, images: Picture | Iterable[Picture], *, batch_size: int = 32, on_error: Literal["raise", "skip"] = "raise"
    ) -> tuple[Float32[np.ndarray, "n dim"], Int8[np.ndarray, "n cells d"]]:
        """The rows of `embed`, and what each picture shows where (`likewise.images.parts`), in the same pass."""
        _check(batch_size, on_error)
        if self.part_shape is None:
            raise InputError(f"parts: {self.name} has no map of a picture's parts; likewise.images.default() has")
        skipped: list[Skipped] = []
        crops = self._crops(images, skipped if on_error == "skip" else None, lookahead=2 * batch_size)
        with closing(crops):
            found = [self._forward(batch, parts=True) for batch in _batches(crops, batch_size)]
        self.skipped = tuple(skipped)
        if not found:
            return np.empty((0, self.dim), dtype=np.float32), np.empty((0, *self.part_shape), dtype=np.int8)
        rows, parts = (np.concatenate(side) for side in zip(*found, strict=True))
        return rows, parts

    @functools.cached_property
    def part_shape(self) -> tuple[int, int] | None:
        """How many parts a picture has, and numbers each; None for a network that has no map on its way."""
        found = self._forward([np.zeros((self.size, self.size, 3), dtype=np.uint8)], parts=True)
        return None if len(found) < 2 else (int(found[1].shape[1]), int(found[1].shape[2]))

    def local(
        self, image: Picture, grid: int | tuple[int, int] | None = 7, *, block: int = LOCAL_BLOCK
    ) -> Float32[np.ndarray, "n d"]:
        """Unit descriptors of a picture's parts, row by row from the top left: a block's map averaged over a grid.

        The whole picture is taken, its shortest side at 224 px. grid=7 is 7 × 7 parts; None keeps the map's own cells.
        """
        import torch

        from likewise.nn import EfficientNetLite0

        if not isinstance(self.network, EfficientNetLite0):
            raise InputError(f"local: {self.name} has no maps of a picture's parts; likewise.images.default() has")
        with torch.inference_mode():
            maps = self.network.features(self._tensor([data.whole(data.picture(image))]), block)
            if grid is not None:
                maps = torch.nn.functional.adaptive_avg_pool2d(maps, _grid(grid))
            rows = torch.nn.functional.normalize(maps[0].flatten(1).T, dim=1)
        return np.ascontiguousarray(rows.cpu().numpy())

    @functools.cached_property
    def digest(self) -> str:
        """sha256 of all that decides a row: the weights and how a picture is prepared."""
        found = hashlib.sha256(f"{type(self.network).__name__} {self.size} {self.shortest} {self.mirror}".encode())
        for name, array in sorted(_arrays(self.network).items()):
            found.update(f"{name} {array.dtype} {array.shape}".encode())
            found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return found.hexdigest()

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
        header |= {"recipe": self.recipe, "figures": self.figures}
        return _arrays(self.network), header

    @classmethod
    def from_state(cls, arrays: dict[str, Any], header: dict[str, Any]) -> Embedder:
        """The embedder that `state` described."""
        import torch

        if header["name"] == DEFAULT:
            return default()
        network = _structure(header)
        network.load_state_dict({k: torch.from_numpy(np.array(v)) for k, v in arrays.items()})
        header = {"mirror": False, **header}
        words = {key: header[key] for key in ("name", "dim", "size", "shortest", "mirror", "recipe", "figures")}
        return cls(network.requires_grad_(False).eval(), **words)

    def _crops(
        self, images: Picture | Iterable[Picture], skipped: list[Skipped] | None, *, lookahead: int
    ) -> Generator[UInt8[np.ndarray, "s s 3"] | None]:
        """Prepared pictures in order, None for a skipped one; those to come are decoded in threads meanwhile."""
        with closing(_ahead(data.pictures(images), lookahead, self._prepared)) as under_way:
            for index, item, future in under_way:
                try:
                    yield future.result()
                except LikewiseError as error:
                    if skipped is None:
                        raise
                    skipped.append(Skipped(index, data.name_of(item) or f"image {index}", str(error)))
                    yield None

    def _prepared(self, item: Picture, index: int) -> UInt8[np.ndarray, "s s 3"]:
        return crop(data.picture(item, where=f"image {index}"), self.size, self.shortest)

    def _forward(self, crops: list[UInt8[np.ndarray, "s s 3"]], *, parts: bool = False) -> tuple[Any, ...]:
        """The rows (n, dim) of prepared pictures; with `parts`, and where the network has them, those, too."""
        import torch

        chunks = torch.split(self._tensor(crops), CHUNK)
        parallel = torch.device(self.device).type == "cpu" and _openmp()
        function = self._features_and_parts if parts else self._features
        found = in_threads(function, chunks) if parallel else [function(x) for x in chunks]
        return tuple(np.concatenate(side) for side in zip(*found, strict=True))

    def _features(self, x: Tensor) -> tuple[Any, ...]:
        import torch

        with torch.inference_mode():
            return (unit_rows(self.network, x, self.mirror).cpu().numpy(),)

    def _features_and_parts(self, x: Tensor) -> tuple[Any, ...]:
        import torch

        with torch.inference_mode():
            vectors, maps = walked(self.network, x)
            rows = mirrored(self.network, x, vectors, self.mirror).cpu().numpy()
            return (rows,) if maps is None else (rows, pooled(maps))

    def _tensor(self, arrays: list[UInt8[np.ndarray, "h w 3"]]) -> Tensor:
        """(b, 3, h, w) in [0, 1]; the arrays already lie in memory as channels-last wants it."""
        import torch

        stacked = torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2)
        return stacked.to(self.device).to(torch.float32).div_(255.0)


def unit_rows(network: Any, x: Tensor, mirror: bool) -> Tensor:
    """Rows of length 1 of prepared pictures (b, 3, h, w); with `mirror`, the mean direction with the mirror image."""
    return mirrored(network, x, network.features(x), mirror)


def mirrored(network: Any, x: Tensor, vectors: Tensor, mirror: bool) -> Tensor:
    """Unit rows of the vectors of x; with `mirror`, the mean direction with those of the mirror images."""
    from torch.nn.functional import normalize

    rows = normalize(vectors, dim=1)
    return normalize(rows + normalize(network.features(x.flip(-1)), dim=1), dim=1) if mirror else rows


def default(*, device: str = "cpu") -> Embedder:
    """The embedder that needs no training: EfficientNet-Lite0 with ImageNet weights, 1280 dimensions."""
    return Embedder(_network(device), name=DEFAULT, dim=1280, device=device)


def _structure(header: Mapping[str, Any]) -> Any:
    """The network that a header describes, its weights still to be filled in."""
    from likewise import nn as backbones
    from likewise.images.network import assemble

    return assemble(
        backbones.named(header["backbone"]),
        frozen=header["frozen"],
        total=header["dim"],
        heads=header["heads"],
        norm=header["norm"],
    )


def _arrays(network: Any) -> dict[str, np.ndarray[Any, Any]]:
    return {k: v.detach().cpu().numpy() for k, v in network.state_dict().items()}


@functools.cache
def _network(device: str) -> EfficientNetLite0:
    from likewise.nn import named

    network: EfficientNetLite0 = named("efficientnet-lite0").fold().to(device)
    return network


@functools.cache
def _openmp() -> bool:
    """Whether torch can be told, thread by thread, how many threads an operation may use."""
    import torch

    return "OpenMP" in torch.__config__.parallel_info()


def in_threads(function: Callable[[T], R], chunks: Sequence[T]) -> list[R]:
    """One chunk a thread and one thread a chunk: as many at a time as torch would have used inside each operation.

    Two to five times faster than threads inside operations where cores are shared with others (threads that meet after
    every small operation wait for each other), and the result no longer depends on their number.
    """
    import torch

    threads = torch.get_num_threads()
    if threads == 1:
        return [function(x) for x in chunks]
    try:
        with ThreadPoolExecutor(threads, "likewise-embed", initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(function, chunks))
    finally:
        torch.set_num_threads(threads)  # a thread's own setting is also the one that new threads start with


def _check(batch_size: int, on_error: str) -> None:
    if not isinstance(batch_size, int) or batch_size < 1:
        raise InputError(f"batch_size: expected a whole number ≥ 1, got {batch_size!r}")
    if on_error not in ("raise", "skip"):
        raise InputError(f'on_error: expected "raise" or "skip", got {on_error!r}')


def _grid(grid: int | tuple[int, int]) -> tuple[int, int]:
    rows, columns = grid if isinstance(grid, tuple) and len(grid) == 2 else (grid, grid)
    if not (isinstance(rows, int) and isinstance(columns, int) and rows >= 1 and columns >= 1):
        raise InputError(f"grid: expected a whole number ≥ 1, two of them, or None, got {grid!r}")
    return rows, columns


def _ahead(
    items: Iterable[Picture], lookahead: int, prepared: Callable[[Picture, int], np.ndarray[Any, Any]]
) -> Generator[UnderWay]:
    """Each item with its preparation under way, in order, at most `lookahead` of them in memory."""
    waiting: deque[UnderWay] = deque()
    pool = ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1), thread_name_prefix="likewise-decode")
    try:
        for index, item in enumerate(items):
            waiting.append((index, item, pool.submit(prepared, item, index)))
            if len(waiting) >= lookahead:
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _batches(crops: Iterable[np.ndarray[Any, Any] | None], size: int) -> Iterator[list[np.ndarray[Any, Any]]]:
    batch: list[np.ndarray[Any, Any]] = []
    for one in crops:
        if one is not None:
            batch.append(one)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _shown(crops: Iterator[R], images: object, progress: bool) -> Iterator[R]:
    """The same pictures, counted on a bar on stderr where `progress`."""
    if not progress:
        yield from crops
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(crops, "embedding", total=data.count(images), console=Console(stderr=True))
