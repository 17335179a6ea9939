"""Features: where blobs are found, what is kept, what is refused; kornia's through its own untrained networks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from scipy.spatial import cKDTree

from likewise.errors import InputError, LikewiseError, MissingExtra, ShapeError
from likewise.pixels import features
from likewise.pixels.features import Features, detect, root


def blob(x: float, y: float, sigma: float, size: tuple[int, int] = (128, 128)) -> np.ndarray:
    rows, columns = np.mgrid[: size[0], : size[1]]
    hill = np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * sigma**2))
    return np.rint(30 + 200 * hill).astype(np.uint8)


def texture(seed: int = 0, size: tuple[int, int] = (240, 320), blur: float = 2.5) -> np.ndarray:
    noise = gaussian_filter(np.random.default_rng(seed).normal(size=size), blur)
    return np.rint(255 * (noise - noise.min()) / np.ptp(noise)).astype(np.uint8)


# ------------------------------------------------------------------------------------------------------------- places


@pytest.mark.parametrize("sigma", [2.0, 5.0, 9.0])
def test_sift_finds_a_blob_where_it_is(sigma: float) -> None:
    rng = np.random.default_rng(int(sigma))
    off = []
    for _ in range(6):
        x, y = rng.uniform(60, 68, 2)
        off.append(detect(blob(x, y, sigma)).points[0] - (x, y))
    assert np.abs(np.mean(off, axis=0)).max() < 0.05  # OpenCV's default is off by 0.25
    assert np.abs(off).max() < 0.2


def test_a_mirror_image_has_mirrored_features() -> None:
    """Half of what an image's features and its mirror image's disagree by is 0 if centres are at integers."""
    shown = texture(3)
    one, two = detect(shown), detect(np.ascontiguousarray(shown[:, ::-1]))
    back = np.column_stack([shown.shape[1] - 1 - two.points[:, 0], two.points[:, 1]])
    apart, which = cKDTree(back).query(one.points)
    near = apart < 3
    assert near.sum() > 20
    assert abs(np.median((one.points - back[which])[near, 0])) / 2 < 0.06


# -------------------------------------------------------------------------------------------------------- descriptors


def test_root_sift_by_hand() -> None:
    rows = np.array([[1.0, 3.0], [0.0, 0.0]], dtype=np.float32)
    assert np.allclose(root(rows), [[0.5, np.sqrt(0.75)], [0, 0]])


def test_sift_is_opencvs_with_roots_of_its_descriptors() -> None:
    one, plain = detect(texture()), detect(texture(), cv2.SIFT_create(enable_precise_upscale=True))
    assert np.array_equal(one.points, plain.points)
    assert np.allclose(one.descriptors, np.sqrt(plain.descriptors / plain.descriptors.sum(axis=1, keepdims=True)))
    assert np.allclose(np.linalg.norm(one.descriptors, axis=1), 1, atol=1e-5)


def test_any_detector_of_opencv_will_do() -> None:
    result = detect(texture(), cv2.ORB_create(nfeatures=80), most=50)
    assert result.binary
    assert result.descriptors.shape == (50, 32)
    assert (np.diff(result.scores) <= 0).all()
    none = detect(np.full((80, 80, 3), 128, np.uint8), cv2.ORB_create())
    assert (len(none), none.binary, none.descriptors.shape) == (0, True, (0, 32))
    with pytest.raises(LikewiseError, match=r"features: OpenCV's .* failed on this image"):
        detect(texture(), cv2.ORB_create(patchSize=1))


def test_the_strongest_are_kept_in_order() -> None:
    all_of_them, few, again = (detect(texture(), most=n) for n in (4000, 50, 50))
    assert len(few) == 50
    assert (np.diff(few.scores) <= 0).all()
    assert np.array_equal(few.points, all_of_them.points[:50])
    assert np.array_equal(few.points, again.points)
    assert np.array_equal(few.descriptors, again.descriptors)


def test_dark_pictures_are_lit_up_and_others_are_left_alone() -> None:
    day = texture(size=(120, 160))
    night = (day / 255.0) ** 2.2 / 12
    assert np.array_equal(features.brighten((day / 255).astype(np.float32)), day)
    expected = 255 * np.sqrt(np.clip(night / np.percentile(night, 99.5), 0, 1))
    assert np.abs(features.brighten(night.astype(np.float32)) - expected).max() < 0.51
    bright, dim = detect(day), detect(np.rint(65535 * night).astype(np.uint16))
    assert len(dim) > 0.7 * len(bright)
    apart, _ = cKDTree(bright.points).query(dim.points)
    assert np.mean(apart < 1.5) > 0.7
    assert len(detect(np.zeros((64, 64), np.uint8))) == 0


# --------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("size", [(1, 1), (5, 9), (40, 40), (200, 200)])
def test_blank_and_tiny_pictures_have_none(size: tuple[int, int]) -> None:
    result = detect(np.full((*size, 3), 128, np.uint8))
    assert len(result) == 0
    assert result.points.shape == (0, 2)
    assert result.descriptors.ndim == 2


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: detect(texture(), "surf"), InputError, "features: expected sift, .* or a function of the image"),
        (lambda: detect(texture(), most=0), InputError, "most: expected"),
        (lambda: detect(texture(), lambda image: 3), InputError, "expected Features"),
        (lambda: Features(np.zeros((3, 2)), np.zeros((2, 8))), ShapeError, "descriptors: expected"),
        (lambda: Features(np.zeros((3, 2)), np.zeros((3, 8)), [1.0]), ShapeError, "scores: expected"),
        (lambda: Features([[np.nan, 0]], [[1.0]]), InputError, "NaN"),
        (lambda: Features([[0, 0]], [[1.0]], binary=True), InputError, "bytes"),
    ],
)
def test_refusals(call: Callable[[], object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_own_functions_and_arrays() -> None:
    given = ([[1.0, 2.0], [3.0, 4.0]], [[1.0, 0.0], [0.0, 1.0]], [0.1, 0.9])
    result = detect(texture(), lambda image: given if image.shape == (3, 240, 320) else None, most=1)
    assert result.points.tolist() == [[3.0, 4.0]]
    assert not result.binary
    kept = Features(given[0], given[1])
    assert detect(texture(), kept, most=1) is kept
    assert "2 numbers" in repr(kept)


# ------------------------------------------------------------------------------------------------------------- kornia


class Disk(torch.nn.Module):
    """What kornia's DISK looks like from outside: a list of objects with three tensors."""

    def forward(self, images: torch.Tensor, n: int, pad_if_not_divisible: bool) -> list[SimpleNamespace]:
        assert images.shape == (1, 3, 240, 320)
        assert pad_if_not_divisible
        keys = torch.tensor([[1.0, 2.0], [30.0, 4.0]])
        scores = torch.tensor([0.5, 2.0])
        return [SimpleNamespace(keypoints=keys, descriptors=torch.eye(2), detection_scores=scores)]


def stub(**members: object) -> ModuleType:
    module = ModuleType("kornia.feature")
    for name, value in members.items():
        setattr(module, name, value)
    return module


def with_kornia(monkeypatch: pytest.MonkeyPatch, module: ModuleType | None) -> None:
    parent = ModuleType("kornia")
    if module is not None:
        parent.feature = module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "kornia", parent if module is not None else None)
    monkeypatch.setitem(sys.modules, "kornia.feature", module)
    monkeypatch.setattr(features, "_NETWORKS", {})


def test_a_kornia_network_is_loaded_once_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = []
    loader = SimpleNamespace(from_pretrained=lambda name: loads.append(name) or Disk())
    with_kornia(monkeypatch, stub(DISK=loader))
    for _ in range(2):
        result = detect(texture(), "disk")
    assert loads == ["depth"]
    assert result.points.tolist() == [[30.0, 4.0], [1.0, 2.0]]
    assert result.scores.tolist() == [2.0, 0.5]


def test_without_kornia_or_its_weights_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with_kornia(monkeypatch, None)
    with pytest.raises(MissingExtra, match="kornia is not installed"):
        detect(texture(), "disk")

    def offline(name: str) -> None:
        raise OSError("no route to host")

    with_kornia(monkeypatch, stub(DISK=SimpleNamespace(from_pretrained=offline)))
    with pytest.raises(LikewiseError, match=r"weights of disk cannot be loaded \(no route to host\)"):
        detect(texture(), "disk")
    with pytest.raises(LikewiseError, match="this kornia has no aliked"):
        detect(texture(), "aliked")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["disk", "aliked", "xfeat"])
def test_real_kornia_networks_fit_the_adapters(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Untrained: no weights can be fetched in a test; shapes, order and places are those of the real classes."""
    kornia = pytest.importorskip("kornia.feature", reason="kornia is not installed")
    torch.manual_seed(0)
    build = {"disk": "DISK", "aliked": "ALIKED", "xfeat": "XFeat"}[name]
    if not hasattr(kornia, build):
        pytest.skip(f"this kornia has no {build}")
    monkeypatch.setattr(features, "_NETWORKS", {name: getattr(kornia, build)().eval()})
    result = detect(texture(size=(128, 160)), name, most=100)
    assert not result.binary
    assert result.points.shape == (len(result), 2)
    assert len(result) <= 100
    assert (np.diff(result.scores) <= 0).all()
    assert len(result) == 0 or (result.points.min() >= 0 and result.points[:, 0].max() < 160)
