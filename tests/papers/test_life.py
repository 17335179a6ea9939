"""LIFE's layouts, rebuilt in miniature, truth at every size, one clear sentence for what cannot be read; its recipe."""

from __future__ import annotations

import contextlib
import io as stdio
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from likewise import media
from likewise.errors import FileError, InputError
from likewise.papers.life import layouts
from likewise.papers.life.layouts import object_arrays
from likewise.papers.life.rivals import RECIPE
from likewise.pixels import data as truths
from likewise.pixels import metrics
from likewise.pixels.data import FlowDataset, FlowPair, fitted, rendered
from likewise.pixels.training import Config
from likewise.types import Flow
from worlds import scenes

Floats = NDArray[np.float64]


def epipolar(pair: Any) -> Floats:
    """Distances of b's points from the lines F a, in pixels."""
    a, b = (np.column_stack([p, np.ones(len(p))]) for p in pair.points)
    lines = a @ pair.F.T
    return np.asarray(np.abs((lines * b).sum(axis=1)) / np.hypot(lines[:, 0], lines[:, 1]))


# ------------------------------------------------------------------------------------------------------------ HPatches


def test_hpatches_has_levels_and_two_kinds(tmp_path: Path) -> None:
    root = scenes.hpatches(tmp_path, suffix=".jpg")
    dataset = layouts.read(root)
    assert repr(dataset) == "FlowDataset(hpatches: 10 pairs in 10 groups)"
    assert dataset.groups[:5] == tuple(f"illumination {n}" for n in ("I", "II", "III", "IV", "V"))
    pair = next(p for p in dataset if p.group == "viewpoint III")
    assert (pair.name, pair.truths) == ("v_door 1–4", ("homography",))
    flow = pair.load().flow
    np.testing.assert_array_equal(flow.valid, np.arange(64)[None].repeat(48, axis=0) <= 64 - 1 - 4)
    np.testing.assert_allclose(flow.vectors[flow.valid], np.tile((4, 0), (flow.valid.sum(), 1)), atol=1e-6)
    assert len(layouts.hpatches(root, part="viewpoint")) == len(layouts.read(root / "v_door")) == 5
    assert len(layouts.hpatches(root, part="illumination", levels=(2, 6))) == 2


def test_generated_homographies_draw_the_second_picture_and_the_truth_follows(tmp_path: Path) -> None:
    """b at the end of the true flow looks like a, but for its light, and only then."""
    picture, root = scenes.texture(3, 96, 128), tmp_path / "i_lamp"
    for k in (1, 2, 3):
        media.write_image(root / f"{k}.png", picture)
        (root / f"H_1_{k}").write_text("1 0 0 0 1 0 0 0 1")
    dataset, again, other = (layouts.hpatches(root, levels=(2, 3), generated=True, seed=s) for s in (4, 4, 5))
    for pair in dataset:
        sample = pair.load(None)
        y, x = np.mgrid[:96, :128].astype(np.float32)
        ends = np.stack([x, y], axis=2) + sample.flow.vectors
        back = cv2.remap(sample.b.permute(1, 2, 0).numpy(), ends, None, cv2.INTER_LINEAR)
        error = np.abs(back - sample.a.permute(1, 2, 0).numpy())[sample.flow.valid]
        still = np.abs((sample.b - sample.a).permute(1, 2, 0).numpy())[sample.flow.valid]
        assert error.mean() < 0.03 < still.mean()
        assert sample.flow.magnitude()[sample.flow.valid].mean() > 2
    np.testing.assert_array_equal(again[1].load(64).b, dataset[1].load(64).b)
    assert not torch.equal(other[1].load(64).b, dataset[1].load(64).b)
    assert not torch.equal(dataset[0].load(64).b, dataset[1].load(64).b)


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(20, 300), st.integers(20, 300))
def test_a_random_homography_moves_the_corners_as_it_says(seed: int, h: int, w: int) -> None:
    H = layouts.random_homography((h, w), seed=seed)
    corners = np.array([[0, 0], [w - 1, 0], [w - 1, h - 1], [0, h - 1]], dtype=np.float64)
    ends = metrics.project(H, corners)
    assert (np.abs(ends - corners) <= layouts.PERTURBATION * np.array([w, h]) + 1e-9).all()
    theirs = cv2.getPerspectiveTransform(corners.astype(np.float32), ends.astype(np.float32))
    inner = [[w / 3, h / 2]]
    np.testing.assert_allclose(metrics.project(H, inner), metrics.project(theirs, inner), atol=0.02)


# ------------------------------------------------------------------------------------------- KITTI, Sintel, Middlebury


@pytest.mark.parametrize("year", [2012, 2015])
def test_kitti(tmp_path: Path, year: int) -> None:
    root = scenes.kitti(tmp_path, year)
    dataset = layouts.read(root)
    assert (dataset.name, len(dataset)) == (f"kitti{year}", 2)
    sample = layouts.read(root / "training")[1].load()
    assert sample.name == f"kitti{year} 000001"
    assert sample.flow.valid.mean() == 0.75
    np.testing.assert_array_equal(np.unique(sample.flow.vectors[sample.flow.valid], axis=0), [[3, -2]])
    (root / "training" / dataset[0].b.parent.name / "000000_11.png").unlink()
    with pytest.raises(FileError, match=r"000000_11\.png, but there is no such file"):
        layouts.kitti(root)


def test_sintel(tmp_path: Path) -> None:
    dataset = layouts.read(scenes.sintel(tmp_path))
    assert (len(dataset), dataset.groups) == (8, ("clean", "final"))
    sample = dataset[0].load()
    assert sample.name == "clean alley_1 1"
    np.testing.assert_array_equal(sample.occluded, np.arange(64)[None].repeat(48, axis=0) >= 62)
    assert dataset[0].load(24).occluded.shape == (24, 32)
    (tmp_path / "training" / "flow" / "alley_1" / "frame_x.flo").touch()
    with pytest.raises(FileError, match=r"frame_x\.flo: expected a name such as frame_0001\.flo"):
        layouts.read(tmp_path)


@pytest.mark.parametrize("apart", [False, True])
def test_middlebury(tmp_path: Path, apart: bool) -> None:
    dataset = layouts.read(scenes.middlebury(tmp_path, apart=apart))
    assert [p.name for p in dataset] == ["Dimetrodon", "Venus"]
    np.testing.assert_array_equal(dataset[0].load().flow.vectors, np.ones((48, 64, 2)))


# -------------------------------------------------------------------------------------------------------- sparse truth


def test_robotcar_goes_from_the_target_to_the_source(tmp_path: Path) -> None:
    root = scenes.robotcar(tmp_path)
    dataset = layouts.read(root)
    assert (dataset.name, dataset.groups, len(dataset)) == ("test6511", ("dusk", "night"), 3)
    sample = dataset[2].load()
    assert sample.name == "t2 – s2"
    a, b = sample.points
    np.testing.assert_allclose(b - a, np.tile((2.0, 0.0), (6, 1)))
    assert len(layouts.read(root / "test6511.csv", "robotcar")) == 3


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("s0.png,t0.png,dusk,1;2,1;2,1;2", "line 5 has 6 cells; expected 7"),
        ("../s0.png,t0.png,dusk,1,1,1,1", "which is outside of its folder"),
        ("s0.png,t0.png,dusk,1;2,1;2,1;2,1", "a pair with 2, 2, 2 and 1 coordinates"),
        ("s0.png,t0.png,dusk,1;x,1;2,1;2,1;2", "points that are not numbers"),
    ],
)
def test_lists_of_points_that_cannot_be_read(tmp_path: Path, line: str, words: str) -> None:
    file = scenes.robotcar(tmp_path) / "test6511.csv"
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(FileError, match=words):
        layouts.read(tmp_path)[3].load()


@pytest.mark.parametrize("kind", ["loftr", "d2net"])
def test_megadepths_index_without_unpickling(tmp_path: Path, kind: str) -> None:
    world = scenes.world()
    root = scenes.megadepth(tmp_path, world, kind)
    dataset = layouts.read(root)
    assert [p.name for p in dataset] == ["p0 – p1", "p1 – p2"]  # 0–3 overlap too little, the last one is lacking
    assert {p.name for p in layouts.read(root, overlap=(0.01, 0.5))} == {"p0 – p3", "p1 – p2"}
    sample = dataset[0].load()
    np.testing.assert_allclose(sample.Ka, world.K)
    relative = world.poses[1] @ np.linalg.inv(world.poses[0])
    np.testing.assert_allclose(np.column_stack([sample.R, sample.t]), relative[:3], atol=1e-12)
    with pytest.raises(FileError, match=r"no pair overlaps by 0\.99 to 1"):
        layouts.read(root, overlap=(0.99, 1.0))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("pair_infos", [7, 8], "its pairs are not"),
        ("poses", [np.zeros((4, 4))] * 4, "has no camera"),
        ("intrinsics", [np.full((3, 3), np.nan)] * 4, "has no camera"),
    ],
)
def test_an_index_of_other_things_is_refused(tmp_path: Path, name: str, value: list[Any], words: str) -> None:
    root = scenes.megadepth(tmp_path, scenes.world(), "loftr")
    file = next((root / "scene_info").glob("*.npz"))
    np.savez(file, **{**object_arrays(file, np.load(file).files), name: scenes.objects(value)})
    with pytest.raises(FileError, match=words):
        layouts.read(root)


@pytest.mark.parametrize("binary", [False, True])
def test_colmaps_model(tmp_path: Path, binary: bool) -> None:
    world = scenes.world()
    dataset = layouts.read(scenes.colmap(tmp_path, world, binary=binary))
    assert len(dataset) >= 3
    for pair in dataset:
        i, j = (int(name[1:]) for name in pair.name.split(" – "))
        shared = len(set(world.seen(i)[1]) & set(world.seen(j)[1]))
        for sample in (pair.load(), pair.load(24)):
            assert len(sample.points[0]) == shared >= 30
            assert epipolar(sample).max() < 1e-6
        full, relative = pair.load(), world.poses[j] @ np.linalg.inv(world.poses[i])
        np.testing.assert_allclose(full.Ka, world.K)
        assert metrics.pose_error(full.R, full.t, relative[:3, :3], relative[:3, 3]) == pytest.approx((0, 0), abs=1e-5)


# ------------------------------------------------------------------------------------------- what cannot be read


def damaged(root: Path, name: str, change: Callable[[bytes], bytes]) -> Any:
    """What is read of a model of COLMAP, one file of which is changed."""
    file = scenes.colmap(root, scenes.world(cameras=3), binary=name.endswith(".bin")) / "sparse" / name
    before = file.read_bytes()
    file.write_bytes(change(before))
    assert file.read_bytes() != before
    return layouts.read(root)


ANNOUNCED = struct.pack("<QI7dI", 1, *range(9)) + b"x" * 10_000


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda p: layouts.read(p), "none of the layouts robotcar, megadepth, colmap"),
        (lambda p: layouts.read(p / "none"), "no such file or folder"),
        (lambda p: layouts.read(p, "hpatch"), "layout: expected auto, robotcar"),
        (lambda p: layouts.hpatches(p, part="both"), "part: expected all, viewpoint, illumination, got"),
        (lambda p: layouts.hpatches(p, levels=(1,)), r"levels: expected numbers .* 2 to 6, got \(1,\)"),
        (lambda p: layouts.megadepth(scenes.megadepth(p, scenes.world()), overlap=(1, 0)), "overlap: expected"),
        (lambda p: layouts.colmap(scenes.colmap(p, scenes.world()), least=0), "least: expected a whole"),
        (lambda p: layouts.colmap(scenes.colmap(p, scenes.world()), least=500), "no two of 4 photos share 500"),
        (lambda p: layouts.read(scenes.colmap(p, scenes.world(), model="OPENCV")), "p0.png is OPENCV; undistort"),
        (lambda p: damaged(p, "images.txt", lambda b: b.replace(b"p0.", b"../../p0.")), "outside of its folder"),
        (lambda p: damaged(p, "images.txt", lambda b: b.replace(b" 3 p1", b" 9 p1")), "not a readable COLMAP model"),
        (lambda p: damaged(p, "cameras.txt", lambda b: b.replace(b" 48 ", b" 0 ")), "no usable camera"),
        (lambda p: damaged(p, "images.bin", lambda b: b[:-1]), "sparse"),
        (lambda p: damaged(p, "images.bin", lambda b: b[:3] + b"\xff" + b[4:-100]), "sparse"),
        (lambda p: damaged(p, "images.bin", lambda b: struct.pack("<Q", 2**60)), "not a readable COLMAP model"),
        (lambda p: damaged(p, "images.bin", lambda b: ANNOUNCED), "not a readable COLMAP model"),
        *((lambda p, n=n: layouts.read(p, n), "test_what_cannot_be_read") for n in layouts.LAYOUTS),
    ],
)
def test_what_cannot_be_read_is_told(tmp_path: Path, read: Callable[[Path], Any], words: str) -> None:
    with pytest.raises((FileError, InputError), match=words):
        read(tmp_path)


@pytest.mark.parametrize(("text", "words"), [("1 0 0 0 1 0 0 0", "nine numbers, got 8"), ("one 0 0", "not a matrix")])
def test_matrices_that_cannot_be_read(tmp_path: Path, text: str, words: str) -> None:
    (scenes.hpatches(tmp_path, ("v_door",)) / "v_door" / "H_1_3").write_text(text)
    with pytest.raises(FileError, match=rf"H_1_3: .*{words}"):
        layouts.hpatches(tmp_path)


# ---------------------------------------------------------------------------------------------------- plain data only


class Hostile:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_nothing_in_an_index_is_called(tmp_path: Path, protocol: int) -> None:
    hostile = pickle.dumps(scenes.objects([1, Hostile(tmp_path / "made")]), protocol=protocol)
    with pytest.raises(FileError, match=r"names (posix|nt)\.mkdir, which arrays do not need"):
        media.unpickle_arrays(hostile, "x")
    pickle.loads(hostile)
    assert (tmp_path / "made").is_dir()  # the same bytes unpickled


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=12,
)


@settings(max_examples=40)
@given(items=st.lists(PLAIN, min_size=1, max_size=4), protocol=st.sampled_from([2, 3, 4]))
def test_plain_data_comes_back_as_it_was(items: list[Any], protocol: int) -> None:
    pickled = pickle.dumps(scenes.objects(items), protocol=protocol)
    assert media.unpickle_arrays(pickled, "x").tolist() == items


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_within_come_back_as_they_were(protocol: int, order: Any) -> None:
    inner = [np.arange(6, dtype=d).reshape((2, 3), order=order) for d in ("<f8", "<f4", "<i2", "|u1")]
    inner += [np.array(["day", "night"]), np.float32(0.5), np.int64(7), np.str_("x")]
    result = media.unpickle_arrays(pickle.dumps(scenes.objects(inner), protocol=protocol), "x")
    for one, two in zip(result, inner, strict=True):
        np.testing.assert_array_equal(one, two)
        assert np.asarray(one).dtype == np.asarray(two).dtype


def packed(file: Path, pickled: bytes, n: int) -> Path:
    """An .npz with an array x of n objects."""
    header = stdio.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|O", "fortran_order": False, "shape": (n,)})
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", header.getvalue() + pickled)
    return file


@settings(max_examples=100)
@given(
    changes=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6),
    protocol=st.sampled_from([2, 4]),
)
def test_damaged_objects_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], protocol: int
) -> None:
    content = scenes.objects([("a", 1.5, None), {3: np.eye(2)}, [np.float32(2), "path"], np.array(["x", "y"])])
    stored = bytearray(pickle.dumps(content, protocol=protocol))
    for place, byte in changes:
        stored[place % len(stored)] = byte
    file = packed(tmp_path_factory.mktemp("objects") / "x.npz", bytes(stored), 4)
    with contextlib.suppress(FileError):  # and nothing else
        assert isinstance(object_arrays(file, ["x"])["x"], np.ndarray)


def test_index_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("hello")
    np.savez(tmp_path / "big.npz", x=np.zeros(1000))
    packed(tmp_path / "itself.npz", b"\x80\x04]\x94(h\x00h\x00e.", 2)  # a list of itself, which NumPy walks 2^64 times
    for name, words in (
        ("none", "No such file"),
        ("text", "cannot be read as plain arrays"),
        ("itself", "holds itself"),
    ):
        with pytest.raises(FileError, match=words):
            object_arrays(tmp_path / f"{name}.npz", ["x"])
    with pytest.raises(FileError, match="declares 8,128 bytes, more than 100 allowed"):
        object_arrays(tmp_path / "big.npz", ["x"], most_bytes=100)
    (tmp_path / "scene_info").mkdir()
    np.savez(tmp_path / "scene_info" / "0.npz", x=np.zeros(3))
    with pytest.raises(FileError, match="has no image_paths, intrinsics, poses; no scene index"):
        layouts.read(tmp_path)


# ------------------------------------------------------------------------------------------------ real data, the recipe


def test_oxford_is_in_hpatches_layout(data: Path) -> None:
    dataset = layouts.read(data / "oxford")
    assert (dataset.name, len(dataset)) == ("hpatches", 15)
    sample = next(p for p in dataset if p.name == "v_graf 1–2").load(120)
    known = sample.flow.valid.copy()
    known[90:, 90:] = False  # a car stands before the wall
    ends = np.stack(np.meshgrid(np.arange(150), np.arange(120)), axis=2) + sample.flow.vectors
    a, b = (x.permute(1, 2, 0).numpy() for x in (sample.a, sample.b))
    back = cv2.remap(b, ends.astype(np.float32), None, cv2.INTER_LINEAR)
    warped, plain = (np.corrcoef(x[known].ravel(), a[known].ravel())[0, 1] for x in (back, b))
    assert warped > 0.85 > plain


def test_middlebury_is_in_its_layout(data: Path) -> None:
    (pair,) = layouts.read(data / "middlebury")
    assert pair.name == "RubberWhale"
    assert pair.load().a.shape == (3, 388, 584)


def test_the_papers_recipe_has_its_three_losses_and_no_change_of_light() -> None:
    assert (RECIPE.network, RECIPE.sed, RECIPE.bit, RECIPE.cycle, RECIPE.contrast) == ("large", 1.0, 1.0, 1.0, 0.0)
    assert (RECIPE.cycle_mode, RECIPE.one_way, RECIPE.light, RECIPE.night) == ("adaptive", False, 0.0, 0.0)
    assert (RECIPE.alpha, RECIPE.beta) == (Config().alpha, Config().beta)
    assert {RECIPE.stage(step) for step in (0, RECIPE.total - 1)} == {"joint"}


# --------------------------------------------------------------------------------------------------- truth at any size


def test_a_data_set_knows_its_groups() -> None:
    a = scenes.texture(0)
    dataset = FlowDataset(tuple(FlowPair(a, a, str(i), "ab"[i % 2], homography=np.eye(3)) for i in range(4)), "four")
    assert (dataset.groups, len(dataset)) == (("a", "b"), 4)
    with pytest.raises(InputError, match="items: nothing has no pair"):
        FlowDataset((), "nothing")


@given(st.tuples(st.integers(1, 4000), st.integers(1, 4000)), st.integers(8, 600))
def test_pictures_are_made_smaller_never_larger(size: tuple[int, int], px: int) -> None:
    h, w = fitted(size, px)
    assert min(h, w) <= max(px, 1)
    assert (h, w) == size or min(h, w) == px
    assert max(fitted(size, px, "longest")) <= px or size == fitted(size, px, "longest")
    assert fitted(size, None) == size


H = np.array([[1.05, 0.04, 3.0], [-0.03, 0.96, 5.0], [3e-4, -2e-4, 1.0]])


@pytest.mark.parametrize("side", ["shortest", "longest"])
def test_a_homography_is_resized_exactly(side: Any) -> None:
    """The dense truth at a small size is the truth at full size, seen at the centres of the small pixels."""
    pair = FlowPair(scenes.texture(0, 60, 90), scenes.texture(1, 80, 70), homography=H)
    sample = pair.load(30, side=side)
    h, w = sample.a.shape[-2:]
    assert (min(h, w) if side == "shortest" else max(h, w)) == 30
    y, x = np.argwhere(sample.flow.valid).T
    start = np.stack([(x + 0.5) * 90 / w - 0.5, (y + 0.5) * 60 / h - 0.5], axis=1)
    end = metrics.project(H, start)
    small = (end + 0.5) * [sample.b.shape[2] / 70, sample.b.shape[1] / 80] - 0.5
    np.testing.assert_allclose(sample.flow.vectors[y, x], small - np.stack([x, y], axis=1), atol=1e-4)


@pytest.mark.parametrize("size", [17, 30, 45])
def test_a_dense_flow_is_resized_as_its_homography_is(size: int) -> None:
    vectors = metrics.project(H, np.argwhere(np.ones((60, 90)))[:, ::-1]) - np.argwhere(np.ones((60, 90)))[:, ::-1]
    a, b = scenes.texture(0, 60, 90), scenes.texture(1, 60, 90)
    flow = FlowPair(a, b, flow=vectors.reshape(60, 90, 2)).load(size).flow
    exact = FlowPair(a, b, homography=H).load(size).flow
    np.testing.assert_allclose(flow.vectors[exact.valid], exact.vectors[exact.valid], atol=0.01)


def test_no_vector_is_made_between_two_surfaces_or_out_of_unknown_ones() -> None:
    vectors = np.zeros((8, 8, 2))
    vectors[:, 4:] = (20.0, 0.0)
    small = truths.resized_flow(Flow(vectors), (4, 4), (8, 8), (4, 4))
    assert set(np.unique(small.vectors[..., 0]).round(6)) == {0.0, 10.0}
    odd = truths.resized_flow(Flow(vectors), (3, 3), (8, 8), (3, 3))
    ends = (odd.vectors[..., 0] + np.arange(3) + 0.5) * 8 / 3 - 0.5
    starts = (np.arange(3) + 0.5) * 8 / 3 - 0.5
    assert set(np.unique((ends - starts).round(4))) == {0.0, 20.0}
    known = np.zeros((8, 8), dtype=bool)
    known[::2, ::2] = True
    sparse = truths.resized_flow(Flow(vectors, known), (8, 8), (8, 8), (4, 4))
    np.testing.assert_array_equal(sparse.valid, known)
    nothing = truths.resized_flow(Flow(vectors, np.zeros((8, 8), dtype=bool)), (4, 4), (8, 8), (4, 4))
    assert not nothing.valid.any()


def test_truth_behind_the_camera_or_out_of_frame_is_not_known() -> None:
    turned = np.array([[1.0, 0, 0], [0, 1, 0], [-0.1, 0, 1]])  # x = 10 goes to infinity
    flow = truths.homography_truth(turned, (2, 20), (2, 100))
    np.testing.assert_array_equal(flow.valid[0], np.arange(20) <= 9)


def test_a_rendered_pair_is_a_pair() -> None:
    class Pair:
        a = b = torch.rand(3, 24, 32)
        flow = torch.ones(24, 32, 2)
        visible = torch.ones(24, 32, dtype=torch.bool)
        F, Ka, Kb, R, t = torch.eye(3), torch.eye(3), torch.eye(3), torch.eye(3), torch.ones(3)

    dataset = rendered([Pair(), Pair()])
    assert (dataset.name, dataset.groups, len(dataset)) == ("rendered", ("rendered",), 2)
    sample = dataset[0].load(12)
    assert sample.a.shape == (3, 12, 16)
    np.testing.assert_allclose(sample.flow.vectors, 0.5, atol=1e-6)
    np.testing.assert_allclose(sample.Ka, [[0.5, 0, -0.25], [0, 0.5, -0.25], [0, 0, 1]])


@pytest.mark.parametrize(
    ("truth", "load", "words"),
    [
        ({"flow": np.zeros((2, 2, 2))}, {}, "flow of x: expected 48 × 64, a vector a pixel of a, got 2 × 2"),
        ({"homography": np.eye(2)}, {}, r"homography of x: expected a finite matrix \(3, 3\)"),
        ({"points": (np.zeros((2, 2)), np.zeros((1, 2)))}, {}, "points of x: expected as many in b as in a"),
        ({"occluded": np.zeros((2, 2), dtype=bool)}, {}, "occluded of x: expected 48 × 64"),
        ({}, {"size": 7}, "size: expected a whole number ≥ 8, the shortest side"),
        ({}, {"size": 16, "side": "height"}, "side: expected shortest or longest"),
        ({"flow": np.zeros((48, 64, 2)), "seen_through": np.eye(3)}, {}, "seen_through: expected a pair of which"),
    ],
)
def test_pairs_that_cannot_be_loaded(truth: dict[str, Any], load: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        FlowPair(scenes.texture(0), scenes.texture(1), "x", **truth).load(**load)


def test_b_is_drawn_after_the_pairs_own_homography() -> None:
    """G H, not H G: a point of a goes to b by H, and with b's image by G."""
    own, G = np.array([[1.0, 0, 4], [0, 1, 0], [0, 0, 1]]), np.array([[0.5, 0, 0], [0, 0.5, 0], [0, 0, 1]])
    sample = FlowPair(scenes.texture(0), scenes.texture(1), homography=own, seen_through=G).load()
    np.testing.assert_allclose(sample.homography, G @ own)
    np.testing.assert_allclose(sample.flow.vectors[10, 20], [12 - 20, 5 - 10])
    np.testing.assert_array_equal(sample.flow.valid[0], np.arange(64) + 4 <= 63)
    np.testing.assert_allclose(sample.b[:, 5, 12], scenes.texture(1)[10, 24] / 255, atol=1e-5)
