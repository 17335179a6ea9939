"""Every untrusted byte: formats, modes, orientation, damage, bombs, folders, videos, arrays, and files going out."""

from __future__ import annotations

import io as stdio
import os
import struct
import subprocess
import sys
import threading
import warnings
import zipfile
import zlib
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin
from PIL.TiffImagePlugin import IFDRational

from likewise import bounded, media
from likewise.errors import FileError, InputError, MissingExtra, ShapeError
from likewise.images.embedding import embed_images
from tests.fuzz import seeds
from worlds.layouts import film


def gradient(height: int = 40, width: int = 60) -> np.ndarray:
    """A picture in which every flip and turn shows: red runs right, green runs down, blue marks the top left."""
    y, x = np.mgrid[:height, :width]
    blue = np.where((y < height // 2) & (x < width // 2), 200, 30)
    return np.stack([x * 255 // (width - 1), y * 255 // (height - 1), blue], axis=2).astype(np.uint8)


def save(path: Path, array: np.ndarray, kind: str, mode: str | None = None, **options: object) -> Path:
    im = Image.fromarray(array)
    (im.convert(mode) if mode else im).save(path, kind, **options)
    return path


def mode_of(path: Path) -> str:
    with Image.open(path) as im:
        return im.mode


# ------------------------------------------------------------------------------------------------- formats, modes


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "PPM"])
def test_lossless_formats_come_back_exactly_and_the_name_does_not_matter(tmp_path: Path, kind: str) -> None:
    path = save(tmp_path / "wrong_name.txt", gradient(), kind)
    np.testing.assert_array_equal(media.read_array(path), gradient())


@pytest.mark.parametrize("kind", ["JPEG", "WEBP", "AVIF", "GIF"])
def test_lossy_formats_come_back_nearly(tmp_path: Path, kind: str) -> None:
    path = save(tmp_path / "x", gradient(), kind, **({} if kind == "GIF" else {"quality": 95}))
    got = media.read_array(path)
    assert got.shape == (40, 60, 3)
    assert np.abs(got.astype(int) - gradient()).mean() < 6


def test_read_is_a_float_tensor_in_unit_range(tmp_path: Path) -> None:
    import torch

    import likewise as lw

    x = lw.read(save(tmp_path / "x.png", gradient(), "PNG"))
    assert x.shape == (3, 40, 60)
    assert x.dtype == torch.float32
    np.testing.assert_allclose(x.permute(1, 2, 0).numpy() * 255, gradient(), atol=1e-4)


def test_grey_and_bilevel(tmp_path: Path) -> None:
    grey = np.arange(256, dtype=np.uint8).reshape(16, 16)
    got = media.read_array(save(tmp_path / "l.png", grey, "PNG"))
    np.testing.assert_array_equal(got, np.repeat(grey[:, :, None], 3, axis=2))
    Image.fromarray(grey).point(lambda v: 255 * (v > 100)).convert("1").save(tmp_path / "one.png")
    assert set(np.unique(media.read_array(tmp_path / "one.png"))) == {0, 255}


@pytest.mark.parametrize("alpha", [0, 1, 127, 254, 255])
def test_alpha_is_laid_over_white(tmp_path: Path, alpha: int) -> None:
    rgba = np.dstack([gradient(), np.full((40, 60), alpha, np.uint8)])
    save(tmp_path / "a.png", rgba, "PNG")
    want = np.rint(gradient() * (alpha / 255) + 255 * (1 - alpha / 255))
    assert np.abs(media.read_array(tmp_path / "a.png") - want).max() <= 0.5 + 1e-9


def palette() -> Image.Image:
    im = Image.new("P", (2, 1))
    im.putpalette([255, 0, 0, 0, 0, 255])
    im.putdata([0, 1])
    return im


GREY_ALPHA = Image.fromarray(np.dstack([np.full((1, 2), 100, np.uint8), np.full((1, 2), 51, np.uint8)]))
COLOURS = Image.fromarray(np.array([[[10, 20, 30], [40, 50, 60]]], np.uint8))


@pytest.mark.parametrize(
    ("im", "transparency", "want"),
    [
        (GREY_ALPHA, None, [[224] * 3] * 2),  # 100·0.2 + 255·0.8
        (palette(), 0, [[255, 255, 255], [0, 0, 255]]),
        (palette(), b"\x80\xff", [[255, 127, 127], [0, 0, 255]]),
        (COLOURS, (10, 20, 30), [[255, 255, 255], [40, 50, 60]]),
    ],
    ids=["grey with alpha", "palette entry", "palette bytes", "colour key"],
)
def test_every_kind_of_transparency(tmp_path: Path, im: Image.Image, transparency: object, want: object) -> None:
    im.save(tmp_path / "x.png", **({} if transparency is None else {"transparency": transparency}))
    assert mode_of(tmp_path / "x.png") == im.mode
    np.testing.assert_array_equal(media.read_array(tmp_path / "x.png")[0], want)


def test_cmyk_tiff_and_adobe_jpeg_agree_with_the_rgb_they_came_from(tmp_path: Path) -> None:
    flat = np.full((32, 32, 3), (200, 120, 40), np.uint8)
    save(tmp_path / "c.tif", flat, "TIFF", "CMYK")
    save(tmp_path / "c.jpg", flat, "JPEG", "CMYK", quality=98)
    for name in ("c.tif", "c.jpg"):
        assert mode_of(tmp_path / name) == "CMYK"
        assert np.abs(media.read_array(tmp_path / name).astype(int) - flat).max() <= 6


def test_cmyk_jpeg_without_adobe_marker_is_not_inverted(tmp_path: Path) -> None:
    """Without the marker the stored numbers are ink; with it they are 255 − ink."""
    flat = np.full((32, 32, 3), (200, 120, 40), np.uint8)
    ink = Image.fromarray(flat).convert("CMYK")
    buffer = stdio.BytesIO()
    Image.fromarray(255 - np.asarray(ink), mode="CMYK").save(buffer, "JPEG", quality=98)  # Pillow stores 255 − this
    data = buffer.getvalue()
    start = data.index(b"\xff\xee")
    length = struct.unpack(">H", data[start + 2 : start + 4])[0]
    (tmp_path / "plain.jpg").write_bytes(data[:start] + data[start + 2 + length :])
    assert np.abs(media.read_array(tmp_path / "plain.jpg").astype(int) - flat).max() <= 6


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bit_grey_is_scaled(tmp_path: Path, kind: str) -> None:
    deep = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    Image.fromarray(deep).save(tmp_path / "deep", kind)
    np.testing.assert_array_equal(media.read_array(tmp_path / "deep")[:, :, 0], np.rint(deep / 257))


def png(width: int, height: int, depth: int, colour: int, rows: bytes, *extra: tuple[bytes, bytes]) -> bytes:
    """A PNG put together by hand."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    chunks = [(b"IHDR", head), *extra, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(n, d) for n, d in chunks)


def test_sixteen_bit_rgb_png_is_scaled() -> None:
    deep = np.random.default_rng(0).integers(0, 65536, (5, 7, 3), dtype=np.uint16)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in deep)
    got = media.decode(png(7, 5, 16, 2, rows))
    assert np.abs(got - deep / 257).max() <= 1
    assert media.decode(png(1, 1, 16, 2, b"\0" + b"\xff" * 6)).tolist() == [[[255, 255, 255]]]


def test_deep_integers(tmp_path: Path) -> None:
    every = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    np.testing.assert_array_equal(media._grey8(every), np.rint(every / 257))
    wide = np.array([[-5, 0, 65535, 2**30, 2**31 - 1]], np.int32)
    Image.fromarray(wide).save(tmp_path / "wide.tif")
    assert media.read_array(tmp_path / "wide.tif")[0, :, 0].tolist() == [0, 0, 0, 128, 255]
    Image.fromarray(wide[:, :3].copy()).save(tmp_path / "narrow.tif")
    assert media.read_array(tmp_path / "narrow.tif")[0, :, 0].tolist() == [0, 0, 255]


def test_float_tiff(tmp_path: Path) -> None:
    unit = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
    Image.fromarray(unit).save(tmp_path / "unit.tif")
    np.testing.assert_array_equal(media.read_array(tmp_path / "unit.tif")[:, :, 0], np.rint(unit.astype(float) * 255))
    wide = np.array([[-3.0, 0.0, np.nan, 7.0, np.inf]], np.float32)
    Image.fromarray(wide).save(tmp_path / "wide.tif")
    assert media.read_array(tmp_path / "wide.tif")[0, :, 0].tolist() == [0, 76, 76, 255, 255]


def test_animated_gives_the_first_frame(tmp_path: Path) -> None:
    first, second = Image.new("RGB", (8, 8), (255, 0, 0)), Image.new("RGB", (8, 8), (0, 0, 255))
    for kind in ("GIF", "WEBP", "PNG", "TIFF"):
        first.save(tmp_path / "a", kind, save_all=True, append_images=[second])
        assert np.abs(media.read_array(tmp_path / "a")[4, 4].astype(int) - [255, 0, 0]).max() <= 3, kind


# ------------------------------------------------------------------------------------------------- HEIC, RAW, EXIF


def heic(path: Path, array: np.ndarray, **options: object) -> Path:
    pillow_heif = pytest.importorskip("pillow_heif", reason="pip install 'likewise[heic]'")
    pillow_heif.from_pillow(Image.fromarray(array)).save(path, quality=95, **options)
    return path


def jpeg(array: np.ndarray) -> bytes:
    buffer = stdio.BytesIO()
    Image.fromarray(array).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def test_heic_is_read_as_every_picture_is(tmp_path: Path) -> None:
    path = heic(tmp_path / "x.dat", gradient(64, 96))
    got = media.read_array(path)
    assert np.abs(got.astype(int) - gradient(64, 96)).mean() < 6
    np.testing.assert_array_equal(media.decode(path.read_bytes(), side=8), got)
    assert media.images(tmp_path) == [path]
    clear = heic(tmp_path / "clear.heic", np.dstack([gradient(64, 96), np.zeros((64, 96), np.uint8)]))
    assert media.read_array(clear).min() >= 250, "transparency is laid over white"


def test_a_turned_heic_is_upright_and_keeps_its_exif(tmp_path: Path) -> None:
    path = heic(tmp_path / "x.heic", gradient(64, 96), exif=seeds.exif().tobytes())
    got = media.read_array(path)
    want = np.rot90(gradient(64, 96), 3)  # orientation 6: row 0 is the right side
    assert got.shape == want.shape
    assert np.abs(got.astype(int) - want).mean() < 6
    assert media.read_exif(path).place == pytest.approx((-10.51, -20.0, 12.5))
    assert media.read_exif(path).make == "Maker Model"


@pytest.mark.parametrize("brand", [b"heic", b"heix", b"hevc", b"mif1", b"msf1"])
def test_kinds_of_heif_are_told_by_their_brands(brand: bytes) -> None:
    assert media._sniff(b"\0\0\0\x1cftyp" + brand + b"\0\0\0\0mif1heicmiaf") == "HEIC"
    assert media._sniff(b"\0\0\0\x1cftyp" + brand[:2] + b"zz\0\0\0\0mif1heic") is None
    assert media._sniff(b"\0\0\0\x1cftypmif1\0\0\0\0mif1avifmiaf") == "AVIF"


@pytest.mark.parametrize(("orientation", "quarters"), [(1, 0), (3, 2), (6, 3), (8, 1)])
def test_the_preview_inside_a_raw_file_is_read_upright(tmp_path: Path, orientation: int, quarters: int) -> None:
    pytest.importorskip("rawpy", reason="pip install 'likewise[raw]'")
    (tmp_path / "x.nef").write_bytes(seeds.dng(jpeg(gradient(320, 480)), orientation, (600, 900)))
    got, want = media.read_array(tmp_path / "x.nef"), np.rot90(gradient(320, 480), quarters)
    assert got.shape == want.shape, "the preview's size, not the sensor's"
    assert np.abs(got.astype(int) - want).mean() < 3
    assert media.read_array(tmp_path / "x.nef", side=160).shape == (want.shape[0] // 2, want.shape[1] // 2, 3)
    assert media.images(tmp_path) == [tmp_path / "x.nef"]


def test_a_preview_of_plain_pixels_is_turned_as_the_camera_was() -> None:
    pytest.importorskip("rawpy", reason="pip install 'likewise[raw]'")
    packed, plain = jpeg(gradient(320, 480)), gradient(320, 480)
    data = seeds.dng(packed, 6, (600, 900)).removesuffix(packed) + plain.tobytes()
    for tag, kind, was, now in ((259, 3, 7, 1), (262, 3, 6, 2), (279, 4, len(packed), plain.size)):
        data = data.replace(struct.pack("<HHII", tag, kind, 1, was), struct.pack("<HHII", tag, kind, 1, now))
    np.testing.assert_array_equal(media.decode(data), np.rot90(plain, 3))


@pytest.mark.parametrize("preview", [None, (40, 60)], ids=["no preview", "a thumbnail"])
def test_without_a_preview_the_sensor_is_read_at_half_its_size(tmp_path: Path, preview: Any) -> None:
    pytest.importorskip("rawpy", reason="pip install 'likewise[raw]'")
    (tmp_path / "x.dng").write_bytes(seeds.dng(preview and jpeg(gradient(*preview)), 6, (400, 600)))
    assert media.read_array(tmp_path / "x.dng").shape == (300, 200, 3)


def test_a_scan_is_no_raw_file(tmp_path: Path) -> None:
    """A plain TIFF of two pages, with a camera's tags, is Pillow's to read."""
    exif = Image.Exif()
    exif[0x010F] = "Scanner"
    path = save(
        tmp_path / "x.tif", gradient(), "TIFF", exif=exif, save_all=True, append_images=[Image.new("L", (9, 9))]
    )
    np.testing.assert_array_equal(media.read_array(path), gradient())


@pytest.mark.parametrize(("package", "extra"), [("pillow_heif", "heic"), ("rawpy", "raw")])
def test_without_the_extra_a_file_is_listed_and_reading_it_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, extra: str
) -> None:
    if extra == "heic":
        path = heic(tmp_path / "x.heic", gradient(64, 64))
    else:
        path = media.write_bytes(tmp_path / "x.dng", seeds.dng(None))
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(bounded, "trust", True)
    assert media.images(tmp_path) == [path], "a folder does not pass it over: whoever reads it says why it cannot"
    (left_out,) = embed_images(SimpleNamespace(embed=None), [path]).skipped
    assert f"pip install 'likewise[{extra}]'" in left_out.reason
    with pytest.raises(MissingExtra, match=rf"{package.replace('_', '-')} is not installed.*likewise\[{extra}\]"):
        media.read_array(path)
    assert media.read_exif(path).make == ("" if extra == "heic" else "Maker Model")


def test_large_and_damaged_heic_and_raw_are_one_file_error(tmp_path: Path) -> None:
    pytest.importorskip("rawpy", reason="pip install 'likewise[raw]'")
    photo = heic(tmp_path / "x.heic", np.random.default_rng(0).integers(0, 255, (64, 96, 3), np.uint8)).read_bytes()
    raw, size = seeds.dng(None, 1, (600, 900)), struct.pack(">II", 96, 64)
    assert photo.count(size) == 1
    for data in (photo.replace(size, struct.pack(">II", 20000, 20000)), raw.replace(*DECLARED)):
        with pytest.raises(FileError, match=r"^big: (declares|damaged)"):
            media.decode(data, name="big")
    with pytest.raises(FileError, match="declares 96 × 64 pixels, more than 6,143"):
        media.decode(photo, most_pixels=6143)
    with pytest.raises(FileError, match="declares 900 × 600 pixels"):
        media.decode(raw, most_pixels=539_999)
    for data in (photo, raw):
        for part in (0.02, 0.3, 0.7):
            with pytest.raises(FileError, match=r"^cut: .*(HEIC|RAW|TIFF): \S[^\n]*$"):
                media.decode(data[: int(len(data) * part)], name="cut")


DECLARED = struct.pack("<HHII", 256, 4, 1, 900), struct.pack("<HHII", 256, 4, 1, 60000)
"""A sensor's width as a DNG declares it, and a larger one."""


@pytest.mark.parametrize(
    ("time", "zone", "want"),
    [
        ("2023:06:01 12:30:05", "+02:00", "2023-06-01T12:30:05+02:00"),
        ("2023:06:01 12:30:05", "-03:30", "2023-06-01T12:30:05-03:30"),
        ("2023-06-01T12:30:05.25", "", "2023-06-01T12:30:05"),
        ("2023:06:01 12:30", "nonsense", "2023-06-01T12:30:00"),
        ("2023:06:01 12:30:05", "+99:00", "2023-06-01T12:30:05"),
        ("0000:00:00 00:00:00", "", None),
        ("2023:02:30 12:30:05", "", None),
        ("    :  :     :  :  ", "", None),
        ("yesterday", "+02:00", None),
    ],
)
def test_the_time_is_read_as_cameras_write_it(tmp_path: Path, time: str, zone: str, want: str | None) -> None:
    exif = Image.Exif()
    exif.get_ifd(0x8769).update({0x9003: time, 0x9011: zone})
    got = media.read_exif(save(tmp_path / "x.jpg", gradient(), "JPEG", exif=exif))
    assert (got.taken and got.taken.isoformat()) == want
    assert got.time == time.strip(), "as written"


def test_without_the_moment_of_the_photo_its_files_counts(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0132] = "2020:01:02 03:04:05"
    exif.get_ifd(0x8769).update({0x9010: "+01:00", 0x9011: "+05:00"})
    got = media.read_exif(save(tmp_path / "x.jpg", gradient(), "JPEG", exif=exif)).taken
    assert got is not None
    assert got.isoformat() == "2020-01-02T03:04:05+01:00"


def test_a_raw_file_tells_when_and_where_without_a_decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rawpy", None)
    (tmp_path / "x.dng").write_bytes(seeds.dng(None))
    got = media.read_exif(tmp_path / "x.dng")
    assert got.place == (47.5, -47.5, 0.0)
    assert got.taken is not None
    assert got.taken.isoformat() == "2023-06-01T12:30:00+02:00"


@pytest.mark.parametrize(
    ("gps", "want"),
    [
        ({1: "N", 2: (47, 30, 0), 3: "E", 4: (8, 15, 0), 6: 400}, (47.5, 8.25, 400.0)),
        ({1: "N", 2: (47, 30, 0), 3: "E", 4: (8, 15, 0), 6: IFDRational(0, 0)}, (47.5, 8.25, 0.0)),
        ({1: "N", 2: (91, 0, 0), 3: "E", 4: (8, 0, 0)}, None),
        ({1: "N", 2: (47, 0, 0), 3: "W", 4: (180, 1, 0)}, None),
        ({1: "N", 2: (IFDRational(1, 0), 0, 0), 3: "E", 4: (8, 0, 0)}, None),
        ({1: "X", 2: (47, 0, 0), 3: "E", 4: (8, 0, 0)}, None),
        ({1: "N", 2: (47, 0, 0)}, None),
        ({1: "N", 2: (0, 0, 0), 3: "E", 4: (0, 0, 0)}, None),
    ],
)
def test_places_out_of_the_world_are_not_told(tmp_path: Path, gps: dict[int, Any], want: Any) -> None:
    exif = Image.Exif()
    exif.get_ifd(0x8825).update(gps)
    got = media.read_exif(save(tmp_path / "x.jpg", gradient(), "JPEG", exif=exif))
    assert got.place == (None if want is None else pytest.approx(want))


# ----------------------------------------------------------------------------------------------------- orientation


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize(("orientation", "corner"), [(1, [0, 0]), (3, [1, 2]), (6, [0, 1]), (8, [2, 0])])
def test_the_top_left_of_what_is_stored_comes_where_the_orientation_says(
    tmp_path: Path, kind: str, orientation: int, corner: list[int]
) -> None:
    """6 says: the camera was turned, row 0 is the right side. The stored top left belongs at the top right."""
    stored = np.zeros((2, 3, 3), np.uint8)
    stored[0, 0] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {}
    got = media.read_array(save(tmp_path / "x", stored, kind, exif=exif.tobytes(), **options))
    assert got.shape == ((2, 3, 3) if orientation < 5 else (3, 2, 3))
    assert np.argwhere(got[:, :, 0]).tolist() == [corner]


def test_damaged_exif_counts_as_upright(tmp_path: Path) -> None:
    path = save(tmp_path / "x.jpg", gradient(), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01\x12nonsense")
    assert media.read_array(path).shape == (40, 60, 3)


# ---------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF", "GIF", "BMP", "PPM", "AVIF"])
@pytest.mark.parametrize("part", [0.3, 0.7, 0.98])
def test_truncated_files_are_one_file_error_that_names_the_file(tmp_path: Path, kind: str, part: float) -> None:
    rng = np.random.default_rng(0)
    path = save(tmp_path / "cut", rng.integers(0, 255, (64, 64, 3), dtype=np.uint8), kind)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(FileError, match="cut"):
        media.read_array(path)


def test_what_is_no_picture_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.jpg").write_text("P3 is not only a format; BM neither")
    (tmp_path / "page.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    for name, says in [
        ("empty.png", "empty"),
        ("text.jpg", "not a picture"),
        ("page.png", "not a picture"),
        ("none.png", "no such file"),
        (".", "folder"),
    ]:
        with pytest.raises(FileError, match=says) as caught:
            media.read_array(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
    with pytest.raises(FileError, match="cannot be opened"):
        media.read_array("a\0b")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(FileError, match="not a regular file"):
        media.read_array(tmp_path / "pipe.jpg")
    assert media.images(tmp_path) == []


def bombs() -> dict[str, bytes]:
    """Small files that declare 50,000 × 50,000 pixels (WebP: its largest, 16,384 × 16,384)."""
    side = 50_000
    tags = [
        (256, 4, side),
        (257, 4, side),
        (258, 3, 8),
        (259, 3, 1),
        (262, 3, 1),
        (273, 4, 8),
        (278, 4, side),
        (279, 4, 9),
    ]
    tiff = b"II*\0\x08\0\0\0" + struct.pack("<H", len(tags))
    tiff += b"".join(struct.pack("<HHII", t, k, 1, v) for t, k, v in tags) + b"\0" * 4
    vp8x = b"VP8X\x0a\0\0\0\0\0\0\0" + (16383).to_bytes(3, "little") * 2
    jpeg = b"\xff\xd8\xff\xc0\0\x11\x08" + struct.pack(">HH", side, side) + b"\x03\x01\x11\0\x02\x11\0\x03\x11\0"
    return {
        "PNG": png(side, side, 8, 2, b"\0" * 100),
        "GIF": b"GIF89a"
        + struct.pack("<HHBBB", side, side, 0, 0, 0)
        + b","
        + struct.pack("<HHHHB", 0, 0, side, side, 0)
        + b"\x02\0;",
        "BMP": b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, side, side, 1, 24, 0, 0, 0, 0, 0, 0),
        "PPM": b"P6 50000 50000 255\n",
        "TIFF": tiff,
        "WEBP": b"RIFF" + struct.pack("<I", 4 + len(vp8x)) + b"WEBP" + vp8x,
        "JPEG": jpeg + b"\xff\xda\0\x0c\x03\x01\0\x02\0\x03\0\0\x3f\0\xff\xd9",
    }


@pytest.mark.parametrize("argument", ["most_pixels", "side"])
@pytest.mark.parametrize("value", [0, -1, 2.5])
def test_limits_that_are_no_limits_are_named(tmp_path: Path, argument: str, value: object) -> None:
    path = save(tmp_path / "x.jpg", gradient(), "JPEG")
    with pytest.raises(InputError, match=f"{argument}: expected a whole number"):
        media.read_array(path, **{argument: value})


def test_a_tall_transparent_picture_is_mixed_in_every_band(tmp_path: Path) -> None:
    rgba = np.random.default_rng(0).integers(0, 256, (600, 5, 4), dtype=np.uint8)
    got = media.read_array(save(tmp_path / "x.png", rgba, "PNG"))
    alpha = rgba[:, :, 3:] / 255
    assert np.abs(got - (rgba[:, :, :3] * alpha + 255 * (1 - alpha))).max() <= 0.5 + 1e-9


@pytest.mark.parametrize("kind", list(bombs()))
def test_bombs_are_refused_by_their_declared_size_before_decoding(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def decoded(*_: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", decoded)
    with pytest.raises(FileError, match=r"declares (50000 × 50000|16384 × 16384) pixels"):
        media.decode(bombs()[kind])


def test_the_cap_is_the_callers_and_beats_pillows_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "x.png", gradient(), "PNG")
    with pytest.raises(FileError, match="2,399"):
        media.read_array(path, most_pixels=2399)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # Pillow would warn at 100 and refuse at 200
    assert media.read_array(path, most_pixels=2400).shape == (40, 60, 3)


@pytest.mark.parametrize("chunk", [b"zTXt", b"iCCP"])
def test_swollen_text_and_profile_chunks_are_refused(chunk: bytes) -> None:
    swollen = zlib.compress(b"x" * (PngImagePlugin.MAX_TEXT_MEMORY + 1))
    with pytest.raises(FileError, match=r"swollen\.png.*too large"):
        media.decode(png(1, 1, 8, 2, b"\0abc", (chunk, b"name\0\0" + swollen)), name="swollen.png")


def test_no_warning_leaks_and_the_filters_are_left_as_they_were(tmp_path: Path) -> None:
    path = save(tmp_path / "x.jpg", gradient(), "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\x02\0\x12\x01")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        before = list(warnings.filters)
        threads = [threading.Thread(target=media.read_array, args=(path,)) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert list(warnings.filters) == before
        with Image.open(path) as im:
            im.getexif()
    assert [type(w.message) for w in caught] == [UserWarning], "only the one that we provoked ourselves, outside"


# --------------------------------------------------------------------------------------------------- draft, folders


def test_side_lets_a_jpeg_come_smaller_but_never_below_it(tmp_path: Path) -> None:
    path = save(tmp_path / "x.jpg", gradient(800, 1200), "JPEG")
    assert media.read_array(path).shape == (800, 1200, 3)
    assert media.read_array(path, side=200).shape == (200, 300, 3)
    assert media.read_array(path, side=201).shape == (400, 600, 3)
    assert media.read_array(path, side=801).shape == (800, 1200, 3)
    small = media.read_array(path, side=200)
    full = gradient(800, 1200).reshape(200, 4, 300, 4, 3).mean(axis=(1, 3))
    assert np.abs(small - full).mean() < 4


def test_images_sorts_naturally_and_leaves_out_what_is_hidden_or_no_picture(tmp_path: Path) -> None:
    for name in ("f10.png", "f2.png", "F1.png", "sub/f1.png", "sub/deep/a.dat", ".hidden.png", ".git/x.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        save(tmp_path / name, gradient(), "PNG")
    (tmp_path / "notes.png").write_text("not a picture")
    (tmp_path / "empty.jpg").touch()
    got = [str(p.relative_to(tmp_path)) for p in media.images(tmp_path)]
    assert got == ["F1.png", "f2.png", "f10.png", "sub/deep/a.dat", "sub/f1.png"]
    assert [p.name for p in media.images(tmp_path, recursive=False)] == ["F1.png", "f2.png", "f10.png"]
    with pytest.raises(FileError, match="no such folder"):
        media.images(tmp_path / "none")
    with pytest.raises(FileError, match="not a folder"):
        media.images(tmp_path / "f2.png")


@given(st.lists(st.text(alphabet="abA019١²", min_size=1, max_size=6), max_size=8), st.randoms())
def test_natural_order_does_not_depend_on_the_order_of_finding(names: list[str], random: Random) -> None:
    paths = [Path(n) for n in names]
    shuffled = random.sample(paths, len(paths))
    assert sorted(paths, key=media.natural) == sorted(shuffled, key=media.natural)


def test_from_pillow_and_decode_agree_with_read_array(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 8
    path = save(tmp_path / "x.png", gradient(), "PNG", exif=exif.tobytes())
    want = media.read_array(path)
    np.testing.assert_array_equal(media.decode(path.read_bytes()), want)
    with Image.open(path) as im:
        np.testing.assert_array_equal(media.from_pillow(im), want)


# ------------------------------------------------------------------------------------------------------------ video


def grey_film(path: Path, n: int = 12, codec: str = "mpeg4") -> Path:
    """A grey video of 64 × 48 px, 20 levels lighter with each frame."""
    pytest.importorskip("av", reason="pip install 'likewise[video]'")
    return film(path, [np.full((48, 64, 3), 20 * i, np.uint8) for i in range(n)], codec)


def test_frames_every_and_most(tmp_path: Path) -> None:
    path = grey_film(tmp_path / "v.mp4")
    greys = [round(float(f.mean()) / 20) for f in media.frames(path)]
    assert greys == list(range(12))
    assert [round(float(f.mean()) / 20) for f in media.frames(path, every=5)] == [0, 5, 10]
    assert [round(float(f.mean()) / 20) for f in media.frames(path, every=2, most=3)] == [0, 2, 4]
    first = next(media.frames(path))
    assert (first.shape, first.dtype) == ((48, 64, 3), np.uint8)


def test_frames_refuses_bad_arguments_caps_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = grey_film(tmp_path / "v.mp4")
    with pytest.raises(InputError, match="every"):
        media.frames(path, every=0)
    with pytest.raises(FileError, match="64 × 48"):
        next(media.frames(path, most_pixels=1000))
    monkeypatch.setattr(media, "MOST_FRAMES", 5)
    monkeypatch.setattr(bounded, "trust", True)
    with pytest.raises(FileError, match="more than 5 frames"):
        list(media.frames(path))
    (tmp_path / "noise.mp4").write_bytes(os.urandom(4096))
    with pytest.raises(FileError, match=r"noise\.mp4"):
        next(media.frames(tmp_path / "noise.mp4"))
    (tmp_path / "cut.mp4").write_bytes(path.read_bytes()[:400])
    with pytest.raises(FileError, match=r"cut\.mp4"):
        next(media.frames(tmp_path / "cut.mp4"))


def test_a_playlist_cannot_make_ffmpeg_open_other_files(tmp_path: Path) -> None:
    grey_film(tmp_path / "secret.ts", codec="mpeg2video")
    playlist = "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nsecret.ts\n#EXT-X-ENDLIST\n"
    (tmp_path / "list.mp4").write_text(playlist)
    (tmp_path / "list.m3u8").write_text(playlist)
    (tmp_path / "concat.mp4").write_text("ffconcat version 1.0\nfile secret.ts\n")
    assert len(list(media.frames(tmp_path / "secret.ts"))) == 12
    for name in ("list.mp4", "list.m3u8", "concat.mp4"):
        with pytest.raises(FileError, match=name):
            list(media.frames(tmp_path / name))


def test_frames_of_a_phone_held_upright_are_turned_clockwise(tmp_path: Path) -> None:
    """The matrix (0 1; −1 0) in a track header, as phones write it, means: show it turned right by a quarter."""
    pytest.importorskip("av", reason="pip install 'likewise[video]'")
    picture = np.zeros((48, 64, 3), np.uint8)
    picture[:24, :32] = 250
    path = film(tmp_path / "v.mp4", [picture])
    data = bytearray(path.read_bytes())
    matrix = data.index(b"tkhd") + 4 + 40
    assert struct.unpack_from(">9i", data, matrix)[0] == 1 << 16
    struct.pack_into(">9i", data, matrix, 0, 1 << 16, 0, -1 << 16, 0, 0, 48 << 16, 0, 1 << 30)
    path.write_bytes(data)
    turned = next(media.frames(path))
    assert turned.shape == (64, 48, 3)
    assert turned[:30, 26:].mean() > 200, "the bright top left is now at the top right"
    assert turned[:30, :22].mean() < 50


def test_frames_without_pyav_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtra, match=r"likewise\[video\]"):
        media.frames(tmp_path / "v.mp4")


# ------------------------------------------------------------------------------------------------------------ arrays


def test_arrays_come_back_from_npz_and_npy(tmp_path: Path) -> None:
    a, b = np.arange(12.0).reshape(3, 4), np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3))
    np.savez_compressed(tmp_path / "x.npz", a=a, b=b, empty=np.empty((0, 3)), words=np.array(["x", "yz"]))
    got = media.load_arrays(tmp_path / "x.npz")
    assert list(got) == ["a", "b", "empty", "words"]
    for name, want in np.load(tmp_path / "x.npz").items():
        np.testing.assert_array_equal(got[name], want)
        assert got[name].dtype == want.dtype
    np.save(tmp_path / "y.npy", b)
    np.testing.assert_array_equal(media.load_arrays(tmp_path / "y.npy")["arr_0"], b)
    got["a"][0, 0] = 7  # what was read is the caller's to change


def test_object_arrays_are_refused_and_nothing_is_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path(tmp_path / "sprung").write_text, ("x",))

    np.save(tmp_path / "o.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "o.npz", a=np.array([Trap()], dtype=object))
    (tmp_path / "p.npy").write_bytes(b"\x80\x04.")
    for name in ("o.npy", "o.npz"):
        with pytest.raises(FileError, match="Python objects"):
            media.load_arrays(tmp_path / name)
    with pytest.raises(FileError, match=r"neither \.npy nor \.npz"):
        media.load_arrays(tmp_path / "p.npy")
    assert not (tmp_path / "sprung").exists()


def header(shape: str, descr: str = "'<f8'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text


def test_array_bombs_and_damage_are_refused_before_reading(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "zeros.npz", a=np.zeros(200_000))
    assert (tmp_path / "zeros.npz").stat().st_size < 5000
    with pytest.raises(FileError, match="more than 1,000,000"):
        media.load_arrays(tmp_path / "zeros.npz", most_bytes=1_000_000)
    cases = {
        "huge.npy": (header("(10000000000000,)"), "declares"),
        "short.npy": (header("(100,)") + b"\0" * 80, "truncated"),
        "negative.npy": (header("(-1, -8)") + b"\0" * 80, "shape"),
        "odd.npy": (header("'x'"), "damaged"),
        "version.npy": (b"\x93NUMPY\x09\0", "format"),
        "cut.zip": ((tmp_path / "zeros.npz").read_bytes()[:200], "damaged"),
    }
    for name, (data, says) in cases.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(FileError, match=says) as caught:
            media.load_arrays(tmp_path / name)
        assert name in str(caught.value)


def test_zip_members_that_are_no_arrays_or_have_one_name_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.npz", "w") as z:
        z.writestr("readme.txt", "hello there")
    with pytest.raises(FileError, match="readme"):
        media.load_arrays(tmp_path / "t.npz")
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as z:
        z.writestr("a.npy", header("(0,)"))
        z.writestr("a", header("(0,)"))
    with pytest.raises(FileError, match="two arrays named 'a'"):
        media.load_arrays(tmp_path / "d.npz")


# --------------------------------------------------------------------------------------------------------- files out


def test_atomic_keeps_the_old_file_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "made" / "deep" / "x.txt"
    media.write_text(path, "old ä")

    def fail_half_way() -> None:
        with media.atomic(path) as sibling:
            sibling.write_text("half")
            assert path.read_text(encoding="utf-8") == "old ä"
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail_half_way()
    assert path.read_text(encoding="utf-8") == "old ä"
    assert [p.name for p in path.parent.iterdir()] == ["x.txt"], "nothing is left behind"
    with media.atomic(path) as sibling:
        assert sibling.parent == path.parent
        assert sibling.suffix == ".txt"
        sibling.write_text("new")
    assert path.read_text() == "new"


def test_atomic_syncs_the_file_before_the_rename_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    sync, replace = os.fsync, os.replace

    def fsync(number: int) -> None:
        events.append("folder" if os.path.isdir(f"/proc/self/fd/{number}") else "file")
        sync(number)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append("rename"), replace(a, b)))
    media.write_bytes(tmp_path / "x", b"1")
    assert events[1] == "rename"
    assert len(events) == 3
    if sys.platform == "linux":
        assert events == ["file", "rename", "folder"]


def test_writing_where_one_cannot_is_a_file_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError, match="cannot be made"):
        media.write_text(tmp_path / "file" / "inner.txt", "x")
    with pytest.raises(FileError, match="is a folder"):
        media.write_text(tmp_path, "x")
    with pytest.raises(FileError, match="nothing was written"), media.atomic(tmp_path / "y"):
        pass
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]


def test_a_written_file_has_ordinary_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("x")
    media.write_text(tmp_path / "ours", "x")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_write_image_and_back(tmp_path: Path) -> None:
    np.testing.assert_array_equal(media.read_array(media.write_image(tmp_path / "a" / "x.png", gradient())), gradient())
    media.write_image(tmp_path / "f.png", gradient() / 255.0)
    np.testing.assert_array_equal(media.read_array(tmp_path / "f.png"), gradient())
    media.write_image(tmp_path / "x.jpg", gradient()[:, :, 0])
    assert mode_of(tmp_path / "x.jpg") == "L"
    with pytest.raises(InputError, match="ends in"):
        media.write_image(tmp_path / "x.exe", gradient())
    with pytest.raises(InputError, match=r"0 to 2"):
        media.write_image(tmp_path / "x.png", gradient() / 127.5)
    with pytest.raises(InputError, match="nan"):
        media.write_image(tmp_path / "x.png", np.full((2, 2), np.nan))
    with pytest.raises(ShapeError, match=r"\(2, 2, 5\)"):
        media.write_image(tmp_path / "x.png", np.zeros((2, 2, 5), np.uint8))


def test_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIKEWISE_CACHE", str(tmp_path / "c"))
    assert media.cache_folder() == tmp_path / "c"
    monkeypatch.delenv("LIKEWISE_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert media.cache_folder() == tmp_path / "xdg" / "likewise"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert media.cache_folder() == tmp_path / ".cache" / "likewise"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert media.cache_folder() == tmp_path / "Library" / "Caches" / "likewise"


def test_importing_io_brings_in_nothing_heavy() -> None:
    code = (
        "import sys, likewise.media; print([m for m in ('torch', 'PIL', 'av', 'cv2', 'jaxtyping') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ------------------------------------------------------------------------------------------ what mutated files showed


def test_text_that_is_no_unicode_is_refused(tmp_path: Path) -> None:
    """NumPy makes an array of it, and Python breaks on its first use with a SystemError."""
    for code in (0x110000, 0xD800, 0xFFFFFFFF):
        np.save(tmp_path / "x.npy", np.array([[code, 65]], dtype="<u4").view("<U2"))
        with pytest.raises(FileError, match="text that is not Unicode"):
            media.load_arrays(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.array(["größer", "\U0001f600"]))
    assert media.load_arrays(tmp_path / "x.npy")["arr_0"].tolist() == ["größer", "\U0001f600"]


def test_records_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(2, dtype=[("a", "<f4"), ("b", "<U2")]))
    with pytest.raises(FileError, match="holds records"):
        media.load_arrays(tmp_path / "x.npy")


def test_an_array_is_mapped_as_it_was_saved(tmp_path: Path) -> None:
    for array in (np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3)), np.empty((0, 4))):
        np.save(tmp_path / "x.npy", array)
        mapped = media.map_array(tmp_path / "x.npy")
        assert mapped.dtype == array.dtype
        assert np.array_equal(mapped, array)


@pytest.mark.parametrize("header", [b"{'descr': '<f8', ", b"{'descr': 3, 'fortran_order': False, 'shape': (1,)}", b"["])
def test_a_header_that_numpys_parser_breaks_on_is_refused(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + bytes(64))
    for read in (media.map_array, media.load_arrays):
        with pytest.raises(FileError, match=r"x\.npy: damaged"):
            read(tmp_path / "x.npy")


def test_a_mapped_array_must_be_whole(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6.0))
    data = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(data[:-1])
    with pytest.raises(FileError, match="it is truncated"):
        media.map_array(tmp_path / "x.npy")


def test_a_name_that_no_file_system_takes_is_the_name_of_no_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    assert media.is_file(tmp_path / "x")
    assert not any(media.is_file(tmp_path / name) for name in ("y", "a" * 5000, "a\0b", "\ud800", "."))


def test_a_video_of_an_unknown_codec_is_refused(tmp_path: Path) -> None:
    path = grey_film(tmp_path / "v.mkv", 2)
    data = path.read_bytes()
    assert data.count(b"V_MPEG4/ISO/ASP") == 1
    path.write_bytes(data.replace(b"V_MPEG4/ISO/ASP", b"V_MPEGX/ISO/ASP"))
    with pytest.raises(FileError, match=r"does not decode|damaged or unsupported"):
        list(media.frames(path))
