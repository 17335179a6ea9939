"""One door: every function takes every form of an image, of images and of features, with one meaning."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch

import likewise as lw
from likewise import bounded, inputs, media
from likewise.images.embedder import Embedder
from likewise.nn import features
from likewise.pixels import features as detectors
from likewise.sets.data import describe
from likewise.types import Image
from worlds.aligners import Shifted
from worlds.scenes import texture

PHOTO, OTHER = texture(3, 72, 80), texture(4, 72, 80)
GREY = np.repeat(PHOTO[..., :1], 3, axis=2)


def opaque(photo: np.ndarray) -> np.ndarray:
    return np.concatenate([photo, np.full((*photo.shape[:2], 1), 255, np.uint8)], axis=2)


def as_file(photo: np.ndarray, folder: Path) -> Path:
    return media.write_image(folder / f"{int(photo.sum())}.png", photo)


ONE: dict[str, Callable[[np.ndarray, Path], Any]] = {
    "str": lambda p, folder: str(as_file(p, folder)),
    "Path": as_file,
    "uint8": lambda p, _: p,
    "uint8 with alpha": lambda p, _: opaque(p),
    "uint16": lambda p, _: p.astype(np.uint16) * 257,
    "float32": lambda p, _: p.astype(np.float32) / 255,
    "float64": lambda p, _: p / 255,
    "Pillow": lambda p, _: PIL.Image.fromarray(p),
    "Pillow with alpha": lambda p, _: PIL.Image.fromarray(opaque(p), "RGBA"),
    "tensor": lambda p, _: torch.from_numpy(p / 255).permute(2, 0, 1).float(),
    "tensor uint8": lambda p, _: torch.from_numpy(p.copy()).permute(2, 0, 1),
    "half tensor": lambda p, _: torch.from_numpy(p / 255).permute(2, 0, 1).to(torch.bfloat16),
    "Image": lambda p, _: Image(p),
}
GREYS: dict[str, Callable[[np.ndarray, Path], Any]] = {
    "uint8 (h, w)": lambda p, _: p[..., 0],
    "uint8 (h, w, 1)": lambda p, _: p[..., :1],
    "uint16 (h, w)": lambda p, _: p[..., 0].astype(np.uint16) * 257,
    "Pillow L": lambda p, _: PIL.Image.fromarray(p[..., 0]),
    "tensor (1, h, w)": lambda p, _: torch.from_numpy(p[..., 0] / 255)[None],
}
COARSE = {"half tensor"}  # eight bits of mantissa

FUNCTIONS: dict[str, Callable[[Any, Any], np.ndarray]] = {
    "pixels.compare": lambda a, b: np.asarray(lw.pixels.compare(a, b, model=Shifted()).images[0]) / 255.0,
    "images.compare": lambda a, b: np.array([lw.images.compare(a, b).distance]),
    "images.embed": lambda a, b: lw.images.default().embed([a, b]),
    "sets": lambda a, b: describe([a, b], k=None).points,
    "distributions": lambda a, b: features.extract([a, b]).rows,
    "compare at images": lambda a, b: np.array([lw.compare(a, b, level="images").distance]),
    "compare at sets": lambda a, b: np.array([lw.compare([a], [b], level="sets").distance]),
    "features of one's own": lambda a, b: features.extract([a, b], lambda x: x.mean((2, 3))).rows,
}


@functools.cache
def of_arrays(function: str, grey: bool) -> np.ndarray:
    return FUNCTIONS[function](GREY if grey else PHOTO, OTHER)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("form", [*ONE, *GREYS])
def test_a_form_means_the_same_everywhere(form: str, function: str, tmp_path: Path) -> None:
    photo = GREY if form in GREYS else PHOTO
    convert = GREYS.get(form) or ONE[form]
    expected = of_arrays(function, form in GREYS)
    got = FUNCTIONS[function](convert(photo, tmp_path), OTHER)
    np.testing.assert_allclose(got, expected, atol=0.05 if form in COARSE else 2e-6)


MANY: dict[str, Callable[[list[np.ndarray], Path], Any]] = {
    "folder": lambda ps, folder: [as_file(p, folder) for p in ps] and folder,
    "list of paths": lambda ps, folder: [str(as_file(p, folder)) for p in ps],
    "list of arrays": lambda ps, _: ps,
    "list of Pillow images": lambda ps, _: [PIL.Image.fromarray(p) for p in ps],
    "mixed list": lambda ps, folder: [as_file(ps[0], folder), *(PIL.Image.fromarray(p) for p in ps[1:])],
    "array (n, h, w, 3)": lambda ps, _: np.stack(ps),
    "array (n, h, w, 4)": lambda ps, _: np.stack([opaque(p) for p in ps]),
    "array (n, 3, h, w)": lambda ps, _: np.moveaxis(np.stack(ps), 3, 1),
    "tensor (n, 3, h, w)": lambda ps, _: torch.from_numpy(np.stack(ps) / 255).permute(0, 3, 1, 2).float(),
}
OF_MANY: dict[str, Callable[[Any], np.ndarray]] = {
    "images.embed": lambda xs: lw.images.default().embed(xs),
    "sets": lambda xs: describe(xs, k=None).points,
    "distributions": lambda xs: features.extract(xs).rows,
    "features of one's own": lambda xs: features.extract(xs, lambda x: x.mean((2, 3))).rows,
}


@pytest.mark.parametrize("function", OF_MANY)
@pytest.mark.parametrize("form", MANY)
def test_many_images_mean_the_same_everywhere(form: str, function: str, tmp_path: Path) -> None:
    photos = sorted((texture(seed, 40, 48) for seed in (5, 6, 7)), key=lambda p: int(p.sum()))
    got = OF_MANY[function](MANY[form](photos, tmp_path))
    np.testing.assert_allclose(got, OF_MANY[function](photos), atol=2e-6)


@pytest.mark.parametrize("n", [200, 201])
def test_lists_of_pillow_images_are_sets_and_distributions(n: int) -> None:
    """201 of them used to end in an error: the reader of one level did not know what that of another took."""
    images = [PIL.Image.fromarray(texture(i, 8, 8)) for i in range(n)]
    result = lw.compare(images, images[::-1], features=lambda x: x.mean((2, 3)))
    assert result.level == ("sets" if n <= 200 else "distributions")
    assert result.distance < 0.05


@pytest.mark.parametrize(
    "wrong",
    [3, None, b"bytes", np.zeros(5), np.zeros((0, 4, 3)), np.zeros((4, 4, 3), complex), np.full((4, 4, 3), 7.0)],
    ids=repr,
)
def test_what_is_no_image_is_refused_alike(wrong: Any) -> None:
    for call in (
        lambda: lw.images.default().embed([wrong]),
        lambda: lw.images.compare(wrong, PHOTO),
        lambda: lw.pixels.compare(wrong, PHOTO, model=Shifted()),
        lambda: inputs.image(wrong).pixels,
    ):
        with pytest.raises(lw.InputError, match=r"image|a: "):
            call()


# ------------------------------------------------------------------------------------------------------------ Image


def test_an_image_is_decoded_once_and_remembers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    inner = media.read_array
    monkeypatch.setattr(media, "read_array", lambda path, **how: decoded.append(str(path)) or inner(path, **how))
    image = Image(as_file(PHOTO, tmp_path))
    assert decoded == []
    assert image.pixels is image.pixels
    assert tuple(image.tensor.shape) == (3, 72, 80)
    assert image.reduced(16) is image.pixels
    assert (image.size, len(decoded)) == ((72, 80), 1)
    made: list[int] = []
    assert [image.remember("x", lambda: made.append(1) or 5) for _ in range(3)] == [5, 5, 5]
    assert made == [1]


def test_deep_images_keep_their_precision() -> None:
    ramp = np.linspace(0, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
    assert len(np.unique(Image(ramp).tensor)) == 64 * 64
    assert len(np.unique(Image((ramp * 65535).astype(np.uint16)).tensor)) > 4000
    assert len(np.unique(Image(ramp).pixels)) == 256


def test_transparency_is_white() -> None:
    clear = np.zeros((4, 4, 4), np.uint8)
    assert (Image(clear).pixels == 255).all()
    assert float(Image(clear / 255).tensor.min()) == 1.0
    assert (Image(PIL.Image.fromarray(clear, "RGBA")).pixels == 255).all()


def test_comparing_two_photos_looks_at_each_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: dict[str, int] = {}

    def counting(module: Any, name: str, n: Callable[..., int] = lambda *a, **k: 1) -> None:
        inner = getattr(module, name)

        def outer(*given: Any, **options: Any) -> Any:
            counts[name] = counts.get(name, 0) + n(*given, **options)
            return inner(*given, **options)

        monkeypatch.setattr(module, name, outer)

    monkeypatch.setattr(bounded, "trust", True)  # in this process, where it is counted
    counting(media, "_decode")
    counting(Embedder, "_forward", lambda self, crops, **_: sum(bool(crop.any()) for crop in crops))
    counting(detectors, "_run", lambda features, name, image, most: int(max(image.shape) <= 1024))
    lw.compare(as_file(PHOTO, tmp_path), as_file(PHOTO[:, ::-1, :][:, ::-1], tmp_path))
    assert counts == {"_decode": 2, "_forward": 2, "_run": 6}  # both photos for flow and for evidence, and both under H
