"""The shapes that public signatures promise (jaxtyping) are those that go in and come out, checked by beartype."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import types
import typing
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import beartype
import jaxtyping
import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError, jaxtyped
from PIL import Image

MODULES = (
    "likewise.media",
    "likewise.images.data",
    "likewise.sets.transport.batched",
    "likewise.pixels.geometry",
    "likewise.images.losses",
    "likewise.images.embedder",
    "likewise.nn.backbone",
    "likewise.nn.efficientnet",
    "likewise.nn.inception",
    "likewise.nn.resnet",
    "likewise.pixels.life",
    "likewise.pixels.life.network",
)
SHAPED = re.compile(r"\b(Float|UInt8|Int|Bool|Shaped)\[")
# numpy's ints are numbers where the annotation says float
CHECKER = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))


def shaped() -> dict[str, Callable[..., Any]]:
    """Every public function and method whose annotations have a shape."""
    result = {}
    for name in MODULES:
        module = importlib.import_module(name)
        for holder in (module, *(c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == name)):
            for f in vars(holder).values():
                own = inspect.isfunction(f) and f.__module__ == name and not f.__name__.startswith("_")
                if own and any(SHAPED.search(str(a)) for a in f.__annotations__.values()):
                    result[f"{name.removeprefix('likewise.')}.{f.__qualname__}"] = f
    return result


def typed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with its annotations resolved and checked at every call."""
    names = {n: getattr(jaxtyping, n) for n in ("Float", "UInt8", "Int", "Bool")}
    names |= {"Tensor": torch.Tensor, "Image": Image, "Picture": Any}
    copy = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__annotations__ = typing.get_type_hints(function, localns=names)
    return jaxtyped(typechecker=CHECKER)(copy)


@functools.cache
def photo() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, size=(40, 60, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def png(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shapes") / "photo.png"
    Image.fromarray(photo()).save(path)
    return path


def network() -> Any:
    from likewise.nn.efficientnet import EfficientNetLite0

    return EfficientNetLite0(classes=7)


def named(name: str) -> Any:
    from likewise import nn as backbones

    return backbones.named(name)


def batch(*shape: int) -> torch.Tensor:
    return torch.linspace(0, 1, int(np.prod(shape)), dtype=torch.float64).reshape(shape)


def unit(*shape: int) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.sin(7 * batch(*shape) + 1), dim=-1)


def tail() -> Any:
    from likewise.images.embedder import assemble

    return assemble(named("convnet"), frozen=1, total=8, heads=2)


def contrast() -> Any:
    from likewise.images.losses import Contrast

    return Contrast(0, 4, 5).double()


def labels() -> torch.Tensor:
    return torch.tensor([0, 0, 1, 1])


def decorrelation() -> Any:
    from likewise.images.losses import Decorrelation

    return Decorrelation(4).to(unit(1, 4).dtype)


CALLS: dict[str, Callable[[Callable[..., Any], Path], Any] | None] = {
    "media.read": lambda f, png: f(png),
    "media.read_array": lambda f, png: f(png),
    "media.decode": lambda f, png: f(png.read_bytes()),
    "media.from_pillow": lambda f, png: f(Image.open(BytesIO(png.read_bytes()))),
    "media.over_white": lambda f, png: f(np.zeros((4, 5, 4), np.uint8)),
    "media.frames": None,
    "nn.backbone.crop": lambda f, png: f(photo()),
    "nn.backbone.resize": lambda f, png: f(photo(), (20, 10), (0, 0, 40, 30)),
    "sets.transport.batched.solve": lambda f, png: f(
        batch(2, 3, 4), batch(2, 3) / batch(2, 3).sum(1, True), batch(2, 4) * 0 + 0.25, 0.5, 1e-3, False
    ),
    "images.losses.distances": lambda f, png: f(unit(3, 4), unit(5, 4)),
    "images.losses.distance_weights": lambda f, png: f(unit(3, 4).abs(), torch.ones(3, 4, dtype=torch.bool), 6),
    "images.losses.mine_discriminative": lambda f, png: f(unit(4, 4).abs(), labels(), 6, torch.Generator()),
    "images.losses.mine_shared": lambda f, png: f(unit(4, 4).abs(), labels(), 6, torch.Generator()),
    "images.losses.mine_permuted": lambda f, png: f(unit(4, 4).abs(), labels(), 6, torch.Generator()),
    "images.losses.mine_intra": lambda f, png: f(labels(), torch.Generator()),
    "images.losses.Decorrelation.forward": lambda f, png: f(decorrelation(), unit(3, 4), unit(3, 4)),
    "images.losses.Queue.push": lambda f, png: f(contrast().queue, unit(3, 4), torch.arange(3)),
    "images.losses.draw": lambda f, png: f(unit(3, 4).abs(), torch.Generator()),
    "images.data.sample": lambda f, png: f(photo(), 20),
    "images.losses.Contrast.weights": lambda f, png: f(contrast(), unit(3, 4), torch.ones(3, 5, dtype=torch.bool)),
    "images.embedder.Tail.forward": lambda f, png: f(tail().tail, batch(2, 3, 32, 32).float()),
    "images.embedder.Network.features": lambda f, png: f(tail(), batch(2, 3, 32, 32).float()),
    "images.embedder.Network.join": lambda f, png: f(tail(), unit(3, 2, 4)),
    "images.embedder.Tail.project": lambda f, png: f(tail().tail, batch(2, tail().tail.projection.in_features).float()),
    "nn.backbone.Backbone.forward": lambda f, png: [
        f(net, batch(2, 3, 32, 32).float()) for net in (named("convnet"), network())
    ],
    "nn.backbone.Backbone.features": lambda f, png: f(named("convnet"), batch(2, 3, 32, 32).float()),
    "nn.efficientnet.EfficientNetLite0.features": lambda f, png: f(network(), batch(2, 3, 32, 32).float()),
}

SKEW = torch.tensor([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]])


def places() -> torch.Tensor:
    return torch.rand(1, 8, 10, 2)


def still() -> torch.Tensor:
    return torch.zeros(2, 8, 10, 2)


def bent(kind: str = "affine") -> Any:
    from likewise.pixels import geometry

    return getattr(geometry, f"random_{kind}")(2, 8, 10, generator=torch.Generator().manual_seed(0))


def encoder() -> Any:
    from likewise.pixels.life.network import Encoder

    return Encoder()


def refined(forward: Callable[..., Any]) -> Any:
    from likewise.pixels.life.network import Refine
    from likewise.pixels.raft.correlation import Correlation

    fa, fb, start = torch.rand(2, 12, 3, 4), torch.rand(2, 12, 5, 6), torch.zeros(2, 3, 4, 2)
    volume = Correlation(fa, fb, levels=3, radius=3, centred=True)
    return forward(Refine(12, 8), fa, volume, start, 2)


CALLS |= {
    "pixels.geometry.skew": lambda f, png: f(torch.rand(4, 3)),
    "pixels.geometry.fundamental": lambda f, png: f(torch.eye(3), torch.eye(3), torch.eye(3), torch.ones(3)),
    "pixels.geometry.apply": lambda f, png: f(SKEW.expand(2, 3, 3), places()),
    "pixels.geometry.transform": lambda f, png: f(torch.eye(3).expand(2, 3, 3), places()),
    "pixels.geometry.homography_flow": lambda f, png: f(torch.eye(3).expand(2, 3, 3), 8, 10),
    "pixels.geometry.scaling": lambda f, png: f((4, 5), (6, 7)),
    "pixels.geometry.rescale_fundamental": lambda f, png: f(SKEW, (4, 5), (6, 7), (4, 5), (6, 7)),
    "pixels.geometry.rescale_homography": lambda f, png: f(
        torch.eye(3).expand(2, 3, 3), (4, 5), (6, 7), (4, 5), (6, 7)
    ),
    "pixels.geometry.rescale_intrinsics": lambda f, png: f(torch.eye(3), (4, 5), (6, 7)),
    "pixels.geometry.grid": lambda f, png: f(4, 5),
    "pixels.geometry.sample": lambda f, png: f(torch.rand(2, 3, 4, 5), places().expand(2, -1, -1, -1)),
    "pixels.geometry.inside": lambda f, png: f(places(), 4, 5),
    "pixels.geometry.warp": lambda f, png: f(torch.rand(2, 3, 4, 5), still()),
    "pixels.geometry.follow": lambda f, png: f(still()),
    "pixels.geometry.compose": lambda f, png: (f(still(), still()), f(still()[0], torch.zeros(5, 6, 2))),
    "pixels.geometry.carried": lambda f, png: f(still(), still()),
    "pixels.geometry.resize_flow": lambda f, png: f(still(), (4, 5)),
    "pixels.geometry.resize_points": lambda f, png: f(places(), (4, 5), (6, 7)),
    "pixels.geometry.Affine.backward": lambda f, png: f(bent(), places()),
    "pixels.geometry.Affine.invert": lambda f, png: f(bent(), places()),
    "pixels.geometry.ThinPlate.backward": lambda f, png: f(bent("thin_plate"), places()),
    "pixels.geometry.ThinPlate.invert": lambda f, png: f(bent("thin_plate"), places()),
    "pixels.geometry.ThinPlate.slope": lambda f, png: f(bent("thin_plate"), places()),
    "pixels.geometry.Chain.backward": lambda f, png: f(bent("warp"), places()),
    "pixels.geometry.Chain.invert": lambda f, png: f(bent("warp"), places()),
    "pixels.geometry.Warp.backward": None,
    "pixels.geometry.Warp.invert": None,
    "pixels.geometry.Warp.forward": lambda f, png: f(bent("warp"), places()),
    "pixels.life.sed": lambda f, png: f(still(), still(), SKEW.expand(2, 3, 3)),
    "pixels.life.sed_loss": lambda f, png: f(still(), SKEW.expand(2, 3, 3)),
    "pixels.life.cycle_loss": lambda f, png: f(still(), torch.zeros(2, 5, 6, 2)),
    "pixels.life.cycle": lambda f, png: f(still(), torch.zeros(2, 5, 6, 2)),
    "pixels.life.bit_loss": lambda f, png: f(still(), still(), bent("warp")),
    "pixels.life.life_loss": lambda f, png: f(
        still(), [still()], SKEW.expand(2, 3, 3), there=still(), back=still(), warp=bent("warp")
    ),
    "pixels.life.masked_mean": lambda f, png: f(still(), still() > 0),
    "pixels.life.network.Encoder.forward": lambda f, png: f(encoder(), torch.rand(1, 3, 32, 64)),
    "pixels.life.network.Refine.forward": lambda f, png: refined(f),
    "pixels.life.network.at_pixels": lambda f, png: f(torch.zeros(1, 3, 4, 2), 24, 32),
    "pixels.geometry.resize": lambda f, png: f(torch.rand(3, 8, 10), (4, 5)),
    "pixels.geometry.shrink": lambda f, png: f(photo(), longest=20),
    "pixels.life.network.similarities": lambda f, png: f(torch.rand(1, 4, 3, 5), torch.rand(1, 4, 2, 6), 0.1),
    "pixels.life.network.log_dual": lambda f, png: f(torch.rand(1, 4, 3)),
    "pixels.life.network.starts": lambda f, png: f(torch.rand(1, 4, 3, 5), torch.rand(1, 4, 2, 6), 0.1),
}


def test_every_promise_of_a_shape_is_called_here() -> None:
    promises = {n for n, f in shaped().items() if SHAPED.search(str(f.__annotations__.get("return")))}
    assert promises <= set(CALLS), "add a call to CALLS for each function that promises a shape"
    assert set(CALLS) <= set(shaped()), "CALLS has functions that are gone"


@pytest.mark.parametrize("name", sorted(n for n, call in CALLS.items() if call))
def test_shapes_are_as_promised(name: str, png: Path) -> None:
    CALLS[name](typed(shaped()[name]), png)


def test_frames_come_one_by_one_in_their_shape(tmp_path: Path) -> None:
    import av

    from likewise.media import frames

    path = tmp_path / "clip.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=5, options={"strict": "experimental"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for shade in (10, 200):
            picture = np.full((48, 64, 3), shade, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
    result = list(frames(path))
    assert len(result) == 2
    assert all(isinstance(frame, jaxtyping.UInt8[np.ndarray, "48 64 3"]) for frame in result)


def test_a_wrong_shape_is_found() -> None:
    """The check itself can fail: in the argument, in the result, and between the two."""
    crop = typed(shaped()["nn.backbone.crop"])
    with pytest.raises(TypeCheckError):
        crop(photo()[:, :, 0])

    def wrong(x: jaxtyping.Float[torch.Tensor, "b d"]) -> jaxtyping.Float[torch.Tensor, "b d"]:
        return x.T

    with pytest.raises(TypeCheckError):
        typed(wrong)(batch(2, 3))
