"""Flow files: known bytes, round trips, OpenCV beside ours, and hostile files that end in one sentence."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from likewise.errors import FileError, InputError
from likewise.media import PNG_MAGIC as PNG
from likewise.types import Flow, read_flow, write_flow

NORMAL = st.floats(-1e9, 1e9, width=32)
SMALL = st.integers(0, 65535).map(lambda v: (v - 32768) / 64)


@st.composite
def flows(draw: st.DrawFn, element: st.SearchStrategy[float]) -> Flow:
    h, w = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    vectors = draw(arrays.arrays(np.float32, (h, w, 2), elements=element))
    valid = draw(st.none() | arrays.arrays(np.bool_, (h, w)))
    return Flow(vectors, valid)


def same(one: Flow, two: Flow) -> None:
    np.testing.assert_array_equal(one.vectors, two.vectors)
    every = np.ones((one.height, one.width), dtype=bool)
    np.testing.assert_array_equal(every if one.valid is None else one.valid, every if two.valid is None else two.valid)


# ---------------------------------------------------------------------------------------------------------------- .flo


def test_a_flo_by_hand(tmp_path: Path) -> None:
    numbers = [1.0, -2.0, 1e10, 1e10, 0.5, np.nan, 3.0, -4.0]
    (tmp_path / "x.flo").write_bytes(b"PIEH" + struct.pack("<ii8f", 2, 2, *numbers))
    flow = read_flow(tmp_path / "x.flo")
    assert flow.valid is not None
    np.testing.assert_array_equal(flow.valid, [[True, False], [False, True]])
    np.testing.assert_array_equal(flow.vectors, [[[1, -2], [0, 0]], [[0, 0], [3, -4]]])


@pytest.mark.parametrize("component", [1.1e9, -1e10, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 1])
def test_what_is_beyond_the_limit_is_unknown(tmp_path: Path, component: float, place: int) -> None:
    numbers = [0.0, 0.0, 1e9, -1e9]
    numbers[place] = component
    (tmp_path / "x.flo").write_bytes(b"PIEH" + struct.pack("<ii4f", 2, 1, *numbers))
    flow = read_flow(tmp_path / "x.flo")
    assert flow.valid is not None
    np.testing.assert_array_equal(flow.valid, [[False, True]])
    np.testing.assert_array_equal(flow.vectors, [[[0, 0], [1e9, -1e9]]])


@settings(max_examples=30)
@given(flow=flows(NORMAL))
def test_a_flo_keeps_every_bit(tmp_path_factory: pytest.TempPathFactory, flow: Flow) -> None:
    path = tmp_path_factory.mktemp("flo") / "x.flo"
    assert write_flow(path, flow) == path
    same(read_flow(path), flow)


def test_a_flo_is_opencvs(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(0, 30, (7, 5, 2)).astype(np.float32)
    write_flow(tmp_path / "ours.flo", vectors)
    np.testing.assert_array_equal(cv2.readOpticalFlow(str(tmp_path / "ours.flo")), vectors)
    assert cv2.writeOpticalFlow(str(tmp_path / "theirs.flo"), vectors)
    assert (tmp_path / "theirs.flo").read_bytes() == (tmp_path / "ours.flo").read_bytes()


def test_what_a_flo_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="above 1e9 px means unknown"):
        write_flow(tmp_path / "x.flo", [[[2e9, 0.0]]])
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------------------------------- KITTI's PNG


@settings(max_examples=30)
@given(flow=flows(SMALL))
def test_a_png_keeps_what_is_on_its_grid(tmp_path_factory: pytest.TempPathFactory, flow: Flow) -> None:
    path = write_flow(tmp_path_factory.mktemp("png") / "x.png", flow)
    same(read_flow(path), flow)


@settings(max_examples=30)
@given(flow=flows(st.floats(-511, 511, width=32)))
def test_a_png_is_off_by_half_a_step_at_most(tmp_path_factory: pytest.TempPathFactory, flow: Flow) -> None:
    path = write_flow(tmp_path_factory.mktemp("png") / "x.png", flow)
    assert np.abs(read_flow(path).vectors - flow.vectors).max() <= 1 / 128


def test_a_png_is_read_by_opencv_as_kitti_says(tmp_path: Path) -> None:
    write_flow(tmp_path / "x.png", [[[1.0, -2.0], [9.0, 9.0]]], np.array([[True, False]]))
    blue, green, red = np.moveaxis(cv2.imread(str(tmp_path / "x.png"), cv2.IMREAD_UNCHANGED), 2, 0)
    assert (red[0, 0], green[0, 0], blue[0, 0]) == (32768 + 64, 32768 - 128, 1)
    assert (red[0, 1], green[0, 1], blue[0, 1]) == (0, 0, 0)


def test_a_png_of_opencv_is_read_with_all_its_filters(tmp_path: Path) -> None:
    y, x = np.mgrid[:48, :64]
    vectors = np.stack([np.round(64 * np.sin(x / 9) * 20) / 64, np.round(64 * (y - 24) * 0.7) / 64], axis=2)
    bgr = np.stack([np.ones_like(x), vectors[..., 1] * 64 + 32768, vectors[..., 0] * 64 + 32768], axis=2)
    cv2.imwrite(str(tmp_path / "x.png"), bgr.astype(np.uint16))
    same(read_flow(tmp_path / "x.png"), Flow(vectors))


@pytest.mark.parametrize("component", [-512.02, 512.0, 1e6])
def test_what_a_png_cannot_hold_is_refused(tmp_path: Path, component: float) -> None:
    with pytest.raises(InputError, match=r"holds vectors from −512 to 511\.98 px, got .*; write a \.flo"):
        write_flow(tmp_path / "x.png", [[[0.0, component]]])
    write_flow(tmp_path / "x.png", [[[0.0, component], [1.0, 1.0]]], np.array([[False, True]]))


# ------------------------------------------------------------------------------------------------------- hostile files


def png(width: int, height: int, data: bytes, *, bits: int = 16, colour: int = 2, interlace: int = 0) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, interlace)
    parts = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    return PNG + b"".join(struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts)


ROWS = zlib.compress(bytes(2 * 13))  # 2 × 2 pixels of 6 bytes, each row after its filter

HOSTILE = {
    "empty": (b"", "the file is empty"),
    "text": (b"hello, world", "neither .flo nor a PNG of KITTI; it starts with b'hello, w'"),
    "big-endian flo": (b"HEIP" + bytes(20), "neither .flo nor a PNG"),
    "flo, header alone": (b"PIEH\x01\x00\x00\x00", "ends within its header"),
    "flo, truncated": (b"PIEH" + struct.pack("<ii3f", 2, 1, 0, 0, 0), "are 16 bytes, and it holds 12"),
    "flo, too long": (b"PIEH" + struct.pack("<ii3f", 1, 1, 0, 0, 0), "are 8 bytes, and it holds 12"),
    "flo, no pixel": (b"PIEH" + struct.pack("<ii", 0, 4), "declares 0 × 4 pixels"),
    "flo, negative": (b"PIEH" + struct.pack("<ii", -3, 4), "declares -3 × 4 pixels"),
    "flo, huge": (b"PIEH" + struct.pack("<ii", 2**31 - 1, 2**31 - 1), "more than 200,000,000; raise most_pixels"),
    "png, huge": (png(2**31 - 1, 2**31 - 1, ROWS), "more than 200,000,000; raise most_pixels"),
    "png, no pixel": (png(0, 2, ROWS), "declares 0 × 2 pixels"),
    "png, 8 bits": (png(2, 2, ROWS, bits=8), "8 bits, colour type 2; KITTI's flow is a plain PNG of 16 bits"),
    "png, grey": (png(2, 2, ROWS, colour=0), "colour type 0; KITTI"),
    "png, alpha": (png(2, 2, ROWS, colour=6), "colour type 6"),
    "png, odd colour": (png(2, 2, ROWS, colour=9), "colour type 9"),
    "png, interlaced": (png(2, 2, ROWS, interlace=1), "a plain PNG"),
    "png, too little": (png(2, 3, ROWS), "asks for 39 bytes"),
    "png, too much": (png(2, 1, ROWS), "asks for 13 bytes"),
    "png, a bomb": (png(2, 2, zlib.compress(bytes(50_000_000))), "asks for 26 bytes"),
    "png, not packed": (png(2, 2, b"nonsense"), "damaged: "),
    "png, cut data": (png(2, 2, ROWS[:-3]), "asks for 26 bytes"),
    "png, tail in data": (png(2, 2, ROWS + b"more"), "asks for 26 bytes"),
    "png, cut file": (png(2, 2, ROWS)[:-20], "it is truncated"),
    "png, no end": (png(2, 2, ROWS)[:-12], "it is truncated"),
    "png, no header": (PNG + png(2, 2, ROWS)[33:], "a PNG without a header"),
    "png, wrong checksum": (png(2, 2, ROWS)[:-13] + b"?" + png(2, 2, ROWS)[-12:], "its checksum wrong"),
    "png, magic alone": (PNG, "a PNG without a header"),
    "png, unknown filter": (png(2, 2, zlib.compress(b"\x09" * 26)), "cannot be decoded"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_end_in_one_sentence(tmp_path: Path, name: str) -> None:
    content, words = HOSTILE[name]
    path = tmp_path / "x.bin"
    path.write_bytes(content)
    with pytest.raises(FileError, match=words) as caught:
        read_flow(path)
    assert str(path) in str(caught.value)


def test_what_is_no_flow_is_not_written(tmp_path: Path) -> None:
    flow: NDArray[np.float64] = np.zeros((2, 2, 2))
    with pytest.raises(InputError, match=r"path: expected a name that ends in \.flo or \.png, got 'x\.tif'"):
        write_flow("x.tif", flow)
    with pytest.raises(InputError, match="valid: the Flow has its own"):
        write_flow(tmp_path / "x.flo", Flow(flow), np.ones((2, 2), dtype=bool))
    with pytest.raises(InputError, match="NaN or infinity"):
        write_flow(tmp_path / "x.flo", flow * np.nan)
    assert list(tmp_path.iterdir()) == []


def test_middleburys_rubber_whale(data: Path) -> None:
    flow = read_flow(data / "middlebury" / "RubberWhale" / "flow10.flo")
    assert (flow.height, flow.width) == (388, 584)
    theirs = cv2.readOpticalFlow(str(data / "middlebury" / "RubberWhale" / "flow10.flo"))
    assert flow.valid is not None
    np.testing.assert_array_equal(flow.valid, (np.abs(theirs) < 1e9).all(axis=2))
    np.testing.assert_array_equal(flow.vectors[flow.valid], theirs[flow.valid])
    assert 0.9 < flow.valid.mean() < 1
