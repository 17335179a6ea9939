"""Small valid inputs of every reader, made by the library itself or by the library whose format it is."""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save_file
from scipy.io import savemat
from tests.worlds import layouts, networks, snapshots
from tests.worlds.generators import Linear

import likewise as lw
from likewise import types
from likewise.distributions import Bank, data
from likewise.images import Embedder
from likewise.images.embedder import assemble
from likewise.nn import named
from likewise.pixels.aligner import Aligner, AlignerOptions
from likewise.pixels.life.network import Network
from likewise.pixels.matching import Matches
from likewise.search.local import Local
from likewise.store.index import About, Index, Record
from likewise.store.run import Run
from likewise.types import Flow

SMALL = (24, 32)


def picture(seed: int = 0, size: tuple[int, int] = SMALL) -> NDArray[np.uint8]:
    """A smooth picture with some noise: every compressor has something to do."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[: size[0], : size[1]]
    smooth = np.stack([x * 7 % 256, y * 9 % 256, (x + y) * 3 % 256], axis=2)
    return (smooth + rng.integers(0, 20, smooth.shape)).clip(0, 255).astype(np.uint8)


# ------------------------------------------------------------------------------------------------------------ pictures


def exif() -> Image.Exif:
    """The EXIF of a camera that says where it stood."""
    data = Image.Exif()
    data[0x010F], data[0x0110], data[0x0112] = "Maker", "Model", 6
    data.get_ifd(0x8769)[0xA405] = 27
    data.get_ifd(0x8825).update({1: "S", 2: (10.0, 30.0, 36.0), 3: "W", 4: (20.0, 0.0, 0.0), 6: 12.5})
    return data


def _run_lengths() -> bytes:
    """A BMP of 8 × 8 pixels in runs, which Pillow reads and does not write."""
    pixels = b"".join(bytes([8, row]) + b"\0\0" for row in range(8)) + b"\0\1"
    head = (40).to_bytes(4, "little") + (8).to_bytes(4, "little") * 2 + b"\1\0\x08\0" + (1).to_bytes(4, "little")
    head += len(pixels).to_bytes(4, "little") + bytes(8) + (256).to_bytes(4, "little") + bytes(4)
    palette = b"".join(bytes([i, 255 - i, i // 2, 0]) for i in range(256))
    start = 14 + len(head) + len(palette)
    front = b"BM" + (start + len(pixels)).to_bytes(4, "little") + bytes(4) + start.to_bytes(4, "little")
    return front + head + palette + pixels


def heic(folder: Path) -> None:
    """HEIC as phones write it, with EXIF and a turn, and one that is transparent."""
    import pillow_heif

    for k, (mode, options) in enumerate([("RGB", {"exif": exif().tobytes()}), ("RGBA", {})]):
        pillow_heif.from_pillow(Image.fromarray(picture(0, (64, 64))).convert(mode)).save(
            folder / f"{k}.heic", **options
        )


def dng(preview: bytes | None, orientation: int = 1, size: tuple[int, int] = (48, 64)) -> bytes:
    """A camera's file: EXIF, a preview (bytes of a JPEG, or none), and a sensor's mosaic of size (h, w) below it."""
    height, width = size
    mosaic = np.random.default_rng(0).integers(500, 4000, size).astype("<u2").tobytes()
    matrix = b"".join(struct.pack("<ii", n, 10000) for n in (7000, -1000, -500, -4000, 12000, 1500, -500, 1000, 6000))
    raw: dict[int, Any] = {254: [0], 256: [width], 257: [height], 258: [16], 259: [1], 262: [32803], 273: [0], 277: [1]}
    raw |= {278: [height], 279: [len(mosaic)], 33421: [2, 2], 33422: bytes([0, 1, 1, 2]), 50717: [4095]}
    main: dict[int, Any] = {
        254: [1],
        271: b"Maker\0",
        272: b"Model\0",
        274: [orientation],
        330: [0],
        34665: [0],
        34853: [0],
    }
    main |= {50706: bytes([1, 4, 0, 0]), 50708: b"Maker Model\0", 50721: matrix, 50728: struct.pack("<6I", *[1] * 6)}
    if preview is not None:
        wide, high = Image.open(io.BytesIO(preview)).size
        main |= {256: [wide], 257: [high], 258: [8, 8, 8], 259: [7], 262: [6], 273: [0], 277: [3], 278: [high]}
        main |= {279: [len(preview)]}
    told = {36867: b"2023:06:01 12:30:00\0", 36881: b"+02:00\0"}
    angle = struct.pack("<6I", 47, 1, 30, 1, 0, 1)
    where = {1: b"N\0\0\0", 2: angle, 3: b"W\0\0\0", 4: angle}
    out = bytearray(b"II*\0" + struct.pack("<I", 8))
    shorts, texts = {254, 258, 259, 262, 274, 277, 33421}, {271, 272, 50708, 36867, 36881, 1, 3}
    kinds = {50721: 10, 50728: 5, 2: 5, 4: 5}

    def directory(tags: dict[int, Any]) -> dict[int, int]:
        """Write one; where the value of each tag lies, to be filled in later."""
        places, after = {}, len(out) + 2 + 12 * len(tags) + 4
        rows, tail = struct.pack("<H", len(tags)), b""
        for tag in sorted(tags):
            value, kind = tags[tag], kinds.get(tag) or (2 if tag in texts else 1)
            if isinstance(value, list):
                kind = 3 if tag in shorts else 4
                value = struct.pack(f"<{len(value)}{'H' if kind == 3 else 'I'}", *value)
            count = len(value) // {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 10: 8}[kind]
            places[tag] = len(out) + len(rows) + 8
            inline = value.ljust(4, b"\0") if len(value) <= 4 else struct.pack("<I", after + len(tail))
            rows, tail = (
                rows + struct.pack("<HHI", tag, kind, count) + inline,
                tail + (value if len(value) > 4 else b""),
            )
        out.extend(rows + bytes(4) + tail)
        return places

    first = directory(main)
    for tag, tags in ((330, raw), (34665, told), (34853, where)):
        struct.pack_into("<I", out, first[tag], len(out))
        places = directory(tags)
        if tag == 330:
            struct.pack_into("<I", out, places[273], len(out))
            out += mosaic
    if preview is not None:
        struct.pack_into("<I", out, first[273], len(out))
        out += preview
    return bytes(out)


def camera(folder: Path) -> None:
    """A RAW file with a preview, and one without."""
    buffer = io.BytesIO()
    Image.fromarray(picture(0, (48, 64))).save(buffer, "JPEG")
    for k, preview in enumerate((buffer.getvalue(), None)):
        (folder / f"{k}.dng").write_bytes(dng(preview, 6))


MOVING = {"save_all": True, "append_images": [Image.fromarray(picture(1))]}
PACKED = (None, "tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits")
PICTURES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "png": [("RGB", {}), ("P", {"transparency": 3}), ("I;16", {}), ("RGBA", {"exif": exif()}), ("RGB", MOVING)],
    "jpeg": [("RGB", {"exif": exif()}), ("RGB", {"progressive": True}), ("CMYK", {}), ("L", {"comment": b"words"})],
    "webp": [("RGB", {"exif": exif()}), ("RGBA", {"lossless": True}), ("RGB", MOVING)],
    "tiff": [*[("RGB", {"compression": how}) for how in PACKED], ("1", {"compression": "group4"}), ("F", {})],
    "bmp": [("RGB", {}), ("P", {}), ("1", {})],
    "gif": [("P", {"interlace": 1, "transparency": 5}), ("P", {**MOVING, "comment": b"words"})],
    "ppm": [("RGB", {}), ("1", {})],
    "avif": [("RGB", {"exif": exif()}), ("RGBA", {})],
}
"""Modes and options with which Pillow writes a format."""
BY_HAND = {
    "bmp": [_run_lengths()],
    "ppm": [b"P3\n# words\n2 2\n255\n" + b"0 128 255 " * 4 + b"\n", b"P5 4 4 65535\n" + bytes(range(32))],
}


def pictures(kind: str) -> Callable[[Path], None]:
    """What writes the pictures of a format."""

    def make(folder: Path) -> None:
        for k, (mode, options) in enumerate(PICTURES[kind]):
            Image.fromarray(picture()).convert(mode).save(folder / f"{k}.{kind}", kind.upper(), **options)
        for k, content in enumerate(BY_HAND.get(kind, [])):
            (folder / f"hand{k}.{kind}").write_bytes(content)

    return make


def video(folder: Path) -> None:
    for suffix in (".mp4", ".avi", ".mkv"):
        layouts.video(folder / f"v{suffix}", frames=4, size=(48, 64))


# -------------------------------------------------------------------------------------------------------------- arrays


def arrays(folder: Path) -> None:
    np.save(folder / "a.npy", np.arange(12, dtype=np.float32).reshape(3, 4))
    np.save(folder / "b.npy", np.asfortranarray(np.arange(6).reshape(2, 3)))
    np.save(folder / "c.npy", np.array(["one", "two"]))
    np.savez(folder / "d.npz", a=np.arange(5), b=np.eye(3))
    np.savez_compressed(folder / "e.npz", rows=np.zeros((40, 8)), names=np.array(["x"] * 40))


def object_arrays(folder: Path) -> None:
    held = np.empty(3, dtype=object)
    held[:] = [np.eye(2), "text", [1, np.arange(3.0)]]
    for protocol in (2, 4):
        (folder / f"{protocol}.pkl").write_bytes(pickle.dumps(held, protocol=protocol))


def matlab(folder: Path) -> None:
    cells = np.empty((1, 2), dtype=object)
    cells[0, :] = [np.eye(2), "text"]
    for packed in (False, True):
        savemat(folder / f"{packed}.mat", {"x": np.arange(6.0).reshape(2, 3), "cells": cells}, do_compression=packed)


def set_arrays(folder: Path) -> None:
    points = np.random.default_rng(0).normal(size=(9, 3))
    np.savez(
        folder / "sets.npz", points=points, offsets=np.array([0, 4, 9]), weights=np.r_[[0.25] * 4, [0.2] * 5],
        labels=np.array(["a", "b"]), levels=np.array([1, 2]), names=np.array([f"n{i}" for i in range(9)]),
    )  # fmt: skip
    np.savez(folder / "plain.npz", one=points[:4], two=points[4:])


def match_arrays(folder: Path) -> None:
    points = np.random.default_rng(0).random((12, 2)) * 60
    Matches(points, points + 1, np.ones(12, np.uint8), np.full(12, 0.5)).save(folder / "m.npz")


def reference_arrays(folder: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(
        folder / "r.npz",
        latents=rng.normal(size=(6, 4)),
        svds=np.exp(rng.normal(size=(6, 3))),
        labels=np.eye(3)[[0, 1, 2] * 2],
    )


def feature_arrays(folder: Path) -> None:
    np.save(folder / "f.npy", np.random.default_rng(0).normal(size=(40, 3)))
    np.savez(folder / "g.npz", rows=np.random.default_rng(1).normal(size=(40, 3)))


def flo(folder: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(6, 8, 2)).astype(np.float32)
    types.write_flow(folder / "a.flo", vectors)
    types.write_flow(folder / "b.flo", Flow(vectors, np.arange(48).reshape(6, 8) % 3 > 0))


def kitti(folder: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(6, 8, 2)).astype(np.float32)
    types.write_flow(folder / "a.png", Flow(vectors, np.arange(48).reshape(6, 8) % 3 > 0))


# -------------------------------------------------------------------------------------------------------------- models


def learned(folder: Path) -> None:
    """A metric of eight sets and two classes, put together by hand: learning one compiles for seconds."""
    eye, index = np.eye(3), np.arange(8) % 2
    arrays: dict[str, Any] = {"blocks": np.stack([eye, eye, 2 * eye]), "frame": eye, "codes": index, "level": index}
    arrays |= {"points": np.random.default_rng(0).normal(size=(32, 3)), "weights": np.full(32, 0.25)}
    arrays |= {"offsets": np.arange(0, 33, 4), "targets": np.stack([np.arange(6), np.arange(2, 8)], axis=1)}
    header: dict[str, Any] = {"options": lw.sets.WassersteinLMNN().get_params(), "levels": [0, 1], "rho": [0.5, 0.5]}
    header |= {"classes": {"dtype": "<i8", "values": [0, 1]}, "scale": 1.0, "gamma": 0.1, "rule": "global"}
    header |= {"start": [0.0, 1.0], "selection": {}, "history": [{"step": 0, "objective": 1.0}], "source": {}}
    model = lw.sets.WassersteinLMNN.from_state(arrays, header)
    lw.save(model, folder / "lmnn.safetensors")


def raft(folder: Path) -> None:
    lw.save(lw.pixels.RAFT("tiny"), folder / "raft.safetensors")


def aligner(folder: Path) -> None:
    lw.save(Aligner(Network(hidden=8), AlignerOptions(fine=False, iters=2), name="n"), folder / "a.safetensors")


def embedder(folder: Path) -> None:
    with torch.random.fork_rng():
        network = assemble(named("convnet"), frozen=1, total=32, heads=4, norm="folded").eval()
    recipe = {"backbone": "convnet", "frozen": 1, "norm": "folded", "data": "birds", "classes_of_data": 80}
    model = Embedder(network, name="diva", dim=32, size=32, shortest=40, recipe=recipe, figures={"R@1": 0.4})
    lw.save(model, folder / "e.safetensors")


def state_dicts(folder: Path) -> None:
    state = named("convnet").state_dict()
    torch.save(state, folder / "a.pth")
    torch.save(dict(state), folder / "b.pt", _use_new_zipfile_serialization=False)
    save_file({k: v.contiguous() for k, v in state.items()}, folder / "c.safetensors")


def generators(folder: Path) -> None:
    for name in ("dcgan", "vae", "stylegan2"):
        net = networks.ALL[name]()
        torch.save({"g_ema": net.state_dict()}, folder / f"{name}.pt")
        save_file({k: v.contiguous().clone() for k, v in net.state_dict().items()}, folder / f"{name}.safetensors")
    data.save(data.load(folder / "dcgan.pt", **networks.EXAMPLE), folder / "saved.safetensors")


def training_snapshots(folder: Path) -> None:
    for name, net in (("two", networks.stylegan2(4)), ("three", networks.stylegan3())):
        (folder / f"{name}.pkl").write_bytes(snapshots.whole(net))


# ------------------------------------------------------------------------------------------------------------- folders


def bank(folder: Path) -> None:
    generator = lw.distributions.Generator(Linear(3, 5), lw.distributions.Normal(3))
    lw.distributions.harvest(generator, 12, out=folder / "bank", shard_size=5, progress=False)


def saved_bank(folder: Path) -> None:
    rng = np.random.default_rng(0)
    logs = -np.sort(-rng.normal(size=(9, 3)), axis=1)
    Bank(rng.normal(size=(9, 4)).astype(np.float32), logs, labels=np.arange(9) % 3).save(folder / "bank")


def run(folder: Path) -> None:
    made = Run.create(folder / "run", {"lr": 0.1, "steps": 3, "inner": {"a": [1, 2]}}, seed=3, command="train")
    for step in range(3):
        made.log(step, loss=1.0 / (step + 1), note="fine", odd=float("nan"))
    made.finish(score=0.5, odd=float("inf"))


def distance_matrix(folder: Path) -> Any:
    sets = [np.random.default_rng(k).normal(size=(3, 2)) for k in range(4)]
    return lw.sets.distance_matrix(sets, out=folder / "m", progress=False)


def index(folder: Path) -> None:
    """An index with local features and a removed row, searched exactly; the model is the tests' own."""
    _filled(folder / "i", "flat", 8, points=4)


def ivf_index(folder: Path) -> None:
    """An index with an approximate index beside it."""
    _filled(folder / "i", "ivf", 1200)


def _filled(path: Path, kind: str, rows: int, *, points: int = 0) -> None:
    made = Index.create(path, About(str(path.parent), "m", "d1", 8, kind, 0.9, 6))
    rng = np.random.default_rng(0)
    codes, grey = rng.integers(-7, 8, (points, 64)).astype(np.int8), np.zeros((16, 16), np.uint8)
    local = Local(rng.uniform(0, 9, (points, 2)).astype(np.float32), codes, (10, 10), (20, 20), grey)
    for batch in range(3 if points else 1):
        x = rng.normal(size=(rows, 8)).astype(np.float32)
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        features = [local.to_bytes()] * rows if points else []
        made.put([Record(f"k{i % 3}/p{batch}-{i:04d}.png", 1, 1) for i in range(rows)], x, features)
    made.remove(["k1/p0-0001.png"])
    made.settle()
    made.close()
