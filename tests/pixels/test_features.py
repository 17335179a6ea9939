"""Features: where blobs are found, every form that others give them in, what is refused, and networks' own places."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import cv2
import kornia.feature
import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from scipy.spatial import cKDTree
from torch.nn import functional

from likewise import samples
from likewise.errors import FileError, InputError, LikewiseError, ShapeError
from likewise.pixels import features
from likewise.pixels.features import Features, as_features, detect, detect_view, root
from likewise.types import Image


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
        (lambda: detect(texture(), "surf"), InputError, "features: expected xfeat, sift, .*; got 'surf'"),
        (lambda: detect(texture(), most=0), InputError, "most: expected"),
        (lambda: detect(texture(), lambda image: 3), InputError, "features: expected .*; got int"),
        (lambda: detect(texture(), 3), InputError, "features: expected .* a detector of OpenCV or kornia.*; got int"),
        (lambda: as_features({"points3d": 1}), InputError, "keypoints and descriptors in a dict, got points3d"),
        (lambda: as_features({}), InputError, "got an empty one"),
        (lambda: as_features((1, 2, 3, 4)), InputError, "got 4 items"),
        (lambda: as_features([cv2.KeyPoint(1, 2, 3)]), InputError, "got KeyPoint"),
        (lambda: as_features([cv2.KeyPoint(1, 2, 3)] * 2), InputError, "got 2 items"),
        (lambda: as_features((np.zeros((2, 5, 2)), np.zeros((2, 5, 8)))), ShapeError, "one image, got a batch of 2"),
        (lambda: as_features((np.zeros((5, 2)), np.zeros((4, 8)))), ShapeError, r"descriptors: expected \(5, d\)"),
        (lambda: as_features((np.zeros((5, 3)), np.zeros((5, 8)))), ShapeError, r"points: expected \(n, 2\)"),
        (lambda: as_features((["a", "b"], np.zeros((2, 8)))), InputError, "keypoints: expected an array of numbers"),
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


# -------------------------------------------------------------------------------------------------- forms of others

XY = np.array([[1.0, 2.0], [30.0, 4.0], [5.5, 60.0]], dtype=np.float32)
ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)
SCORES = np.array([0.5, 2.0, 1.0], dtype=np.float32)
KEYS = [cv2.KeyPoint(float(x), float(y), 5, -1, float(s)) for (x, y), s in zip(XY, SCORES, strict=True)]
LAFS = np.zeros((1, 5, 2, 3), dtype=np.float32)
LAFS[0, :3] = np.dstack([np.tile(np.eye(2) * 4, (3, 1, 1)), XY[:, :, None]])
PADDED = np.vstack([ROWS, np.ones((2, 4))])[None]
DISK = SimpleNamespace(
    keypoints=torch.tensor(XY), descriptors=torch.tensor(ROWS), detection_scores=torch.tensor(SCORES)
)


@pytest.mark.parametrize(
    "given",
    [
        (XY, ROWS, SCORES),
        [torch.tensor(XY), torch.tensor(ROWS, dtype=torch.bfloat16), torch.tensor(SCORES)],
        (XY.tolist(), ROWS.tolist(), SCORES.tolist()),
        (XY.T, ROWS.T, SCORES),
        (XY[None], SCORES[None], ROWS[None]),
        (KEYS, ROWS),
        {"keypoints": XY, "descriptors": ROWS, "scores": SCORES},
        {"keypoints": torch.tensor(XY)[None], "descriptors": torch.tensor(ROWS)[None], "keypoint_scores": SCORES[None]},
        {"keypoints": XY, "descriptors": ROWS.T, "scores": SCORES, "image_size": [9, 9]},
        {"keypoints": XY[None], "descriptors": ROWS.T[None], "scores": SCORES[None]},
        {"keypoints": KEYS, "descriptors": ROWS},
        [{"keypoints": XY, "descriptors": ROWS, "detection_scores": SCORES}],
        DISK,
        [DISK],
        (LAFS, np.pad(SCORES, (0, 2))[None], PADDED),
        {"lafs": LAFS, "responses": np.pad(SCORES, (0, 2))[None, :, None], "descriptors": PADDED},
        Features(XY, ROWS, SCORES),
    ],
)
def test_every_form_reads_the_same(given: object) -> None:
    for result in (as_features(given), detect(texture(), given, most=1), detect(texture(), lambda image: given)):
        order = np.argsort(result.points[:, 0])
        assert np.array_equal(result.points[order], XY[[0, 2, 1]])
        assert np.array_equal(result.descriptors[order], ROWS[[0, 2, 1]])
        assert np.array_equal(result.scores[order], SCORES[[0, 2, 1]])


def test_nothing_in_every_form_and_squares_as_rows() -> None:
    for given in (((), None), {"keypoints": np.zeros((1, 0, 2)), "descriptors": np.zeros((1, 64, 0))}, ([], [])):
        assert len(as_features(given)) == 0
    assert as_features({"keypoints": np.zeros((0, 2)), "descriptors": np.zeros((64, 0))}).descriptors.shape == (0, 64)
    square = as_features((np.zeros((4, 2)), np.arange(16.0).reshape(4, 4)))
    assert square.descriptors[0].tolist() == [0, 1, 2, 3]
    assert (as_features((XY, ROWS)).scores == 1).all()
    assert as_features((XY, ROWS.astype(np.uint8))).binary


class Layers(torch.nn.Module):
    """A network of one's own: it gets a batch of one and gives dicts."""

    def forward(self, images: torch.Tensor) -> list[dict[str, torch.Tensor]]:
        assert images.shape == (1, 3, 240, 320)
        assert not torch.is_grad_enabled()
        return [{"keypoints": torch.tensor(XY), "descriptors": torch.tensor(ROWS), "scores": torch.tensor(SCORES)}]


class Finder:
    """What has OpenCV's method, but is not OpenCV's."""

    def detectAndCompute(self, image: torch.Tensor) -> tuple[np.ndarray, ...]:
        assert image.shape == (3, 240, 320)
        return XY, ROWS, SCORES


@pytest.mark.parametrize("detector", [Layers(), Finder()])
def test_modules_and_finders_of_ones_own(detector: object) -> None:
    result = detect(texture(), detector, most=2)
    assert result.points.tolist() == [[30.0, 4.0], [5.5, 60.0]]
    assert result.name == ""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["DISK", "ALIKED", "XFeat", "SIFTFeature"])
def test_modules_of_kornia(kind: str) -> None:
    """Untrained, as no weights need be fetched for this: shapes, order and names are those of the real classes."""
    torch.manual_seed(0)
    module = getattr(kornia.feature, kind)(*[80] if kind == "SIFTFeature" else []).eval()
    result = detect(texture(size=(100, 133)), module, most=60)
    assert result.name == {"SIFTFeature": ""}.get(kind, kind.lower())
    assert not result.binary
    assert result.points.shape == (len(result), 2)
    assert len(result) <= 60
    assert len(result) > 5 or kind == "XFeat"
    assert (np.diff(result.scores) <= 0).all()
    assert len(result) == 0 or (result.points.min() >= -0.5 and result.points[:, 0].max() < 132.5)


# ------------------------------------------------------------------------------------------------------------ networks


def photo(width: int, height: int) -> np.ndarray:
    return cv2.resize(samples.photograph("temple"), (width, height), interpolation=cv2.INTER_AREA)


def test_xfeat_counts_from_pixel_centres() -> None:
    """Of an image of 991 × 863, made 960 × 832 inside, pixel i is at (i + ½) s − ½; kornia says i · s."""
    shown = photo(991, 863)
    inside = functional.interpolate(
        torch.from_numpy(shown).permute(2, 0, 1)[None].float() / 255, (832, 960), mode="bilinear"
    )
    peers = features.network("xfeat").detectAndCompute(inside, top_k=300)[0]
    result, s = detect(shown, "xfeat", most=300), np.array([991 / 960, 863 / 832])
    inner = peers["keypoints"].numpy()
    assert np.array_equal(inner, np.rint(inner))
    assert np.allclose(result.points, (inner + 0.5) * s - 0.5, atol=1e-3)
    assert np.allclose(result.descriptors, peers["descriptors"], atol=1e-4)


def test_xfeats_points_move_with_the_image() -> None:
    """A shift by whole cells moves points by it; a photo of half the size has them at half their places, on average."""
    shown = photo(1024, 672)
    whole, part = detect(shown, "xfeat", 2000), detect(shown[32:, 64:], "xfeat", 2000)
    apart, which = cKDTree(part.points + np.array([64, 32])).query(whole.points)
    off = (whole.points - part.points[which] - [64, 32])[apart < 1.5]
    assert len(off) > 700
    assert np.abs(off.mean(axis=0)).max() < 0.05
    half = detect(cv2.resize(shown, (512, 336), interpolation=cv2.INTER_AREA), "xfeat", 2000)
    apart, which = cKDTree(2 * half.points + 0.5).query(whole.points)
    off = (whole.points - 2 * half.points[which] - 0.5)[apart < 2]
    assert len(off) > 500
    assert np.abs(off.mean(axis=0)).max() < 0.25  # by the corners of pixels it would be ½


def test_xfeat_finds_a_dark_photo_alike_and_nothing_in_blank_ones() -> None:
    shown = photo(320, 224).astype(np.float64) / 255
    day, night = detect(shown, "xfeat", 500), detect(shown / 8, "xfeat", 500)
    apart, _ = cKDTree(day.points).query(night.points)
    assert np.mean(apart < 1) > 0.8
    for size in ((1, 1), (5, 40), (64, 64)):
        assert len(detect(np.full((*size, 3), 128, np.uint8), "xfeat")) == 0


@pytest.mark.parametrize("turn", [0, 1, 2, 3])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_views_are_those_of_the_turned_and_scaled_image(turn: int, scale: float) -> None:
    """Features of a turned image, at their places in it as it is: a pixel there is the same pixel here."""
    shown = np.random.default_rng(0).integers(0, 255, (40, 56, 3), dtype=np.uint8)

    def corner(image: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """The pixels of the first row, with their colours as descriptors."""
        w = image.shape[2]
        return np.column_stack([np.arange(w), np.zeros(w)]), image[:, 0].T.numpy()

    found = detect_view(Image(shown), corner, 999, turn, scale)
    if scale == 1.0:
        x, y = np.rint(found.points).astype(int).T
        assert np.allclose(found.descriptors, shown[y, x] / 255, atol=1e-6)
    sides = {0: found.points[:, 1], 1: 55 - found.points[:, 0], 2: 39 - found.points[:, 1], 3: found.points[:, 0]}
    assert np.allclose(sides[turn], 0 if scale == 1.0 else 0.5, atol=1e-4)


def test_an_image_keeps_the_features_of_each_name_and_view() -> None:
    shown = Image(photo(128, 96))
    assert detect(shown, "xfeat") is detect(shown, "xfeat")
    assert detect_view(shown, "xfeat", 100, 1) is detect_view(shown, "xfeat", 100, 5)
    assert detect(shown, "xfeat", 100) is not detect(shown, "sift", 100)
    assert features.network("xfeat") is features.network("xfeat")


@pytest.mark.parametrize(
    ("size", "name", "scale", "expected"),
    [
        ((300, 480), "xfeat", 1.0, (600, 960)),
        ((480, 640), "xfeat", 1.0, (720, 960)),
        ((480, 640), "xfeat", 0.5, (360, 480)),
        ((30, 40), "xfeat", 1.0, (60, 80)),
        ((3000, 4000), "xfeat", 1.0, (768, 1024)),
        ((3000, 4000), "r2d2", 1.0, (768, 1024)),
        ((300, 400), "disk", 1.0, (300, 400)),
        ((3000, 4000), "sift", 1.0, (3000, 4000)),
        ((3000, 4000), "", 0.5, (1500, 2000)),
    ],
)
def test_the_size_that_networks_see(size, name, scale, expected) -> None:
    assert features.working_size(size, name, scale) == expected


@pytest.mark.parametrize("name", ["superpoint", "r2d2", "aliked", "disk"])
def test_networks_by_name_take_their_weights_from_the_list(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    torch.manual_seed(0)
    made = features.LEARNED[name]()
    state = {k: v for k, v in made.state_dict().items() if not k.endswith("num_batches_tracked")}
    torch.save(state, tmp_path / "w.pt")
    asked: list[str] = []
    monkeypatch.setattr(features, "weights_file", lambda name: asked.append(name) or tmp_path / "w.pt")
    features.network.cache_clear()
    result = detect(photo(96, 64), name, most=20)
    assert asked == [{"aliked": "aliked-n16"}.get(name, name)]
    assert result.name == name
    assert result.descriptors.shape == (len(result), features.WIDTHS[name])
    assert len(detect(photo(20, 12), name)) == 0
    state.pop(next(iter(state)))
    torch.save(state, tmp_path / "w.pt")
    features.network.cache_clear()
    with pytest.raises(FileError, match="weights do not fit"):
        detect(photo(96, 64), name)
    features.network.cache_clear()


@pytest.mark.skipif("LIKEWISE_DATA" not in os.environ, reason="LIKEWISE_DATA is not set")
def test_r2d2s_published_weights_find_points_again(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(os.environ["LIKEWISE_DATA"]) / "weights"
    if not (folder / "r2d2_WASF_N16.pt").exists():
        pytest.skip("no weights of R2D2 there")
    monkeypatch.setenv("LIKEWISE_WEIGHTS", str(folder))
    shown = photo(256, 160)
    one, two = (detect(part, "r2d2", 300) for part in (shown, np.ascontiguousarray(shown[:, ::-1])))
    back = np.column_stack([255 - two.points[:, 0], two.points[:, 1]])
    apart, which = cKDTree(back).query(one.points)
    assert np.mean(apart < 1.5) > 0.3
    # R2D2's own points lean to one side: -0.5 px here, -0.2 on another photo; a pixel would be an error of ours
    assert abs(np.median((one.points - back[which])[apart < 1.5, 0])) / 2 < 0.7
